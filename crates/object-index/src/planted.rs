//! Bugs on purpose: each must be found by a test. The feature `planted` compiles them in, for the
//! tests; without it [`Bugs::has`] is a constant.

/// A bug (`object-protocols.md` 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Decides on durable rows alone: what is submitted and not durable is not seen.
    DurableOnly,
    /// Answers a refusal before what it was decided on is durable.
    EarlyRefusal,
    /// Keeps no answer: a repeat is decided again.
    ForgetReply,
    /// Keeps no refusal: a first attempt that comes behind its refused repeat is made.
    ForgetRefusal,
    /// Sweeps sessions of which owners take changes still.
    SweepOpen,
    /// Takes the changes of any session that a new owner does not know.
    UnaskedSession,
    /// Takes requests below the session's floor.
    LateFrame,
    /// Takes a deadline for one that begins as the request comes.
    RelativeDeadline,
    /// Commits rows before the body is durable.
    EarlyRow,
    /// Answers reads without a lease.
    StaleOwner,
    /// Answers though the lease of the owner before may last.
    NoHold,
    /// Takes a lease for four times as long as granted.
    LongLease,
    /// Takes a piece of a body whatever its identity.
    WrongPlace,
    /// Takes a log for one without live data when half of it is dead.
    CountOnly,
    /// Takes a file for one of which nothing lives when its count says so.
    DropCounted,
    /// Removes files of which nothing lives though bodies in them may still be committed.
    DropUnpinned,
    /// Removes files at once, and keeps none in the trash.
    NoTrash,
    /// Does not count what dies in files of bodies.
    LostCount,
    /// Commits bodies in files that the owner does not keep.
    CommitUnlinked,
    /// Leaves files of closed sessions that no range keeps.
    OrphanKept,
    /// Goes on behind a body that broke off as if nothing of it was written.
    HalfBody,
    /// Commits a split whatever owner its range has.
    LateCommit,
    /// Removes the directories of a split that goes on.
    SweepEatsSplit,
    /// A half takes no answers of the range over.
    NoInherit,
    /// Commits a split whose halves lack files of bodies.
    HalfCommit,
    /// Ends a listing with the range in which it began.
    OneRangeShown,
    /// Takes a part whatever became of its upload.
    PartAfterEnd,
    /// Completes an upload that was completed before.
    CompleteTwice,
    /// Counts the parts of an upload that was completed on.
    PartsStayCounted,
    /// Leaves the file of a part that was sent again.
    PartLeak,
    /// Refuses an attempt whose condition fails for what an earlier attempt of its call has put.
    RetryLoses,
    /// Answers for a bucket's versioning before the range keeps it so.
    OldConfig,
    /// Removes files of a session that is closed, though others have taken some before.
    OrphansOfOthers,
    /// Times are by an owner's own clock, whatever that says.
    AnyClock,
    /// Forgets which owners did not hear of a change of their bucket.
    OrdersForgotten,
    /// Answers for a change before gateways have seen it.
    KeyForever,
    /// Goes by what a gateway keeps whatever managers say.
    KeptForever,
    /// A new manager answers for changes while gateways of the former one go by what they keep.
    KeptOfFormer,
    /// Keeps an answer that is older than changes that were seen.
    KeptLate,
    /// Removes a bucket without a record that it is being removed.
    CloseUnrecorded,
    /// Ends locks by the owner's clock alone.
    LockByClock,
    /// Grants leases without the manager's clock, so that no lock ends.
    ClockUnsaid,
    /// Puts an object in place of a locked one.
    LockOverwritten,
    /// Leaves the current object where a delete marker hides it.
    MarkerShown,
    /// Leaves no current object when the newest version goes.
    NoMoveBack,
    /// Moves an object's row as a log has it: tags that it got since are lost.
    MoveForgetsTags,
    /// Moves an object's data though its row has changed since it was read.
    BlindMove,
    /// Has whatever a key then has expire, when what was read of it was due.
    ExpireByKey,
    /// Goes by the tags that an object had when it was read.
    ExpireForgetsTags,
    /// Has objects expire by the owner's clock alone.
    ExpireByClock,
    /// Removes versions by lifecycle that are locked.
    ExpireLocked,
    /// Removes older versions by rules that were taken away since they were read.
    ExpireByOldRules,
    /// Counts the days of an older version from its own time on, not from that of the next newer one.
    NoncurrentByOwnAge,
}

/// One count in so many is made wrong.
#[cfg(feature = "planted")]
const COUNTS_WRONG_ONE_IN: u64 = 6;

/// The bug that runs, if any.
#[derive(Clone, Copy, Default, Debug)]
pub struct Bugs {
    #[cfg(feature = "planted")]
    planted: Option<Planted>,
    #[cfg(feature = "planted")]
    counts_wrong: bool,
}

impl Bugs {
    /// The bug.
    #[cfg(feature = "planted")]
    pub fn of(bug: Planted) -> Bugs {
        Bugs { planted: Some(bug), ..Bugs::default() }
    }

    /// The same, and counts of what lives in files are too low at times: no bug, but damage that must do no
    /// harm.
    #[cfg(feature = "planted")]
    pub fn with_wrong_counts(self) -> Bugs {
        Bugs { counts_wrong: true, ..self }
    }

    /// Whether a count is too low now.
    #[cfg(feature = "planted")]
    pub(crate) fn counts_wrong(self, env: &runtime::Env) -> bool {
        self.counts_wrong && env.random_u64().is_multiple_of(COUNTS_WRONG_ONE_IN)
    }

    /// Whether a count is too low now: never.
    #[cfg(not(feature = "planted"))]
    pub(crate) const fn counts_wrong(self, _env: &runtime::Env) -> bool {
        false
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
