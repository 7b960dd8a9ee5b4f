//! Bugs on purpose: each must be found by a test. The feature `planted` compiles them in, for the
//! tests and the simulator; without it [`Bugs::has`] is a constant.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Acknowledges before the write ends.
    AckEarly,
    /// Answers a fence without a record.
    FenceUnlogged,
    /// Answers a seal without a record.
    SealUnlogged,
    /// Answers a deletion without a record.
    DeleteUnlogged,
    /// Reuses units before the deletion is on record.
    ReuseEarly,
    /// Serves sectors without verifying them.
    ReadUnverified,
    /// Recovery accepts sectors whatever their tag and chain.
    ScanLax,
    /// Recovery forgets what was known to be durable.
    IgnoreBound,
    /// Replay takes blocks of older mounts.
    StaleLog,
    /// Replay does not check behind the log's end.
    LogGap,
    /// A copy fills the tombstone of a deletion.
    FillDeleted,
    /// A copy makes a replica without a vote of the tombstone of a fence.
    FillRepairing,
    /// Recovery takes a part of a row's cell for the row.
    TornRowCounts,
    /// A store that has room again is mounted again while earlier writes are under way.
    MountEarly,
}

/// The bug that a store runs with, if any.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Bugs {
    #[cfg(feature = "planted")]
    planted: Option<Planted>,
}

impl Bugs {
    /// That of a configuration.
    #[cfg(feature = "planted")]
    pub(crate) fn of(planted: Option<Planted>) -> Bugs {
        Bugs { planted }
    }

    /// Whether `bug` is planted.
    #[cfg(feature = "planted")]
    pub(crate) fn has(self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    /// Whether `bug` is planted: never.
    #[cfg(not(feature = "planted"))]
    pub(crate) const fn has(self, _bug: Planted) -> bool {
        false
    }
}

/// A binary that holds this text has the bugs compiled in: `cargo xtask shipped` looks for it.
#[cfg(feature = "planted")]
#[used]
static MARKER: &str = "bugs are planted in this binary: it is for tests only";
