//! Bugs that tests plant, to see that the checkers find them. The feature `planted` compiles them in,
//! for this crate's tests and the simulator; without it `planted` is a constant.

base::planted! {
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
