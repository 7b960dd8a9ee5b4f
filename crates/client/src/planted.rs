//! Bugs that tests plant, to see that the checkers find them. The feature `planted` compiles them in,
//! for this crate's tests and the simulator; without it [`planted`] is a constant.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Answers of replicas that were left count for acknowledgements (`protocols-tail.md` 8.3).
    LeftCounts,
    /// An acknowledged append is released as soon as MinCopy replicas have it (8.3).
    ReleaseAtM,
    /// A chunk ends at what was placed in it, not at what was acknowledged (8.5).
    EndAbovePlaced,
    /// A replica of an ended chunk that masters have fenced ends the writer (8.6).
    DebtEndsWriter,
    /// What an ended chunk owes is released at its end (8.6).
    DebtDropped,
    /// An append keeps its place in the window until all followed replicas have it (8.2).
    OneBudget,
    /// An append waits for late replicas for as long as for servers that are gone (10.3).
    BlockedWaits,
    /// A chunk ends for late replicas also where the next one survives less (10.3).
    FewerWhenLate,
    /// A writer that stood still holds that against replicas (10.2).
    OwnPauseEnds,
    /// A writer stays in a chunk without bytes, whichever servers it is to leave.
    EmptyStays,
    /// No row is read back before it is sent.
    VerifySkipped,
    /// The first answer without the bytes is the end of an open chunk (8.11).
    ShortIsEnd,
}

/// A binary that holds this text has the bugs compiled in: `cargo xtask shipped` looks for it.
#[cfg(feature = "planted")]
#[used]
static MARKER: &str = "bugs are planted in this binary: it is for tests only";

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug on this thread, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Planted>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub(crate) fn planted(bug: Planted) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

/// Whether `bug` is planted: never.
#[cfg(not(feature = "planted"))]
pub(crate) const fn planted(_bug: Planted) -> bool {
    false
}
