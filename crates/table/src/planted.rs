//! Bugs on purpose: each must be found by a test. The feature `planted` compiles them in, for the
//! tests; without it [`Bugs::has`] is a constant.

/// A bug of forks (`object-protocols.md` 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A merge takes all keys of a file, whatever its reference shows.
    LooseBounds,
    /// An opening replays all keys of a log, whatever its reference shows.
    LooseReplay,
    /// Changes of a log that are not shown have no sequences.
    ForgetHidden,
    /// A fork seals neither log nor manifest, and its instance goes on.
    UnsealedParent,
    /// A child begins with manifest 1, so that its files get names that it has inherited.
    LowNumber,
    /// A fork leaves out the logs that are kept for their data.
    ForgetKept,
}

/// The bug that runs, if any.
#[derive(Clone, Copy, Default, Debug)]
pub struct Bugs {
    #[cfg(feature = "planted")]
    planted: Option<Planted>,
}

impl Bugs {
    /// The bug.
    #[cfg(feature = "planted")]
    pub fn of(bug: Planted) -> Bugs {
        Bugs { planted: Some(bug) }
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
