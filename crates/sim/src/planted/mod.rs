//! Bugs on purpose, each of which a checker must find. They stand around the product, in wrappers
//! that only the simulator puts in: what a chunkserver takes for its disk's store, what a client
//! takes for the network, what a block server takes for its requests and segments, and how these are
//! cut, what a front end takes for its volumes. The product has no switch for them.

mod frontend;
mod peers;
mod store;
mod volumes;

use std::cell::Cell;

pub(crate) use frontend::exports_of;
pub(crate) use peers::peers_of;
pub use store::Store;
pub(crate) use volumes::{handler_of, opener_of};

use crate::run::{Failure, Outcome, run_seed};
use crate::scenario::Scenario;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Stores acknowledge appends before they are durable.
    AckEarly,
    /// Stores answer a fence and go on taking appends of the old writer.
    NoFence,
    /// Stores answer a seal without sealing.
    NoSeal,
    /// Stores answer a deletion and keep the replica.
    NoDelete,
    /// Stores delete a neighbour beside what they are asked to delete.
    DeleteNeighbour,
    /// Stores never take what repair copies.
    NoRepair,
    /// Stores hand out other bytes than were written, with good checksums.
    WrongBytes,
    /// Clients count an append as stored when it was sent.
    AckUnsent,
    /// Replicas of open chunks say for ever what they said when a client first asked.
    StaleTail,
    /// Replicas serve what they hold of open chunks beyond the committed length.
    Uncommitted,
    /// Clients answer a look-up of a name from what they saw first.
    StaleNames,
    /// Clients send some namespace changes again as if they were others.
    TwiceChanged,
    /// Clients that are refused a lock go on as if they had got it.
    ForgedLock,
    /// Clients take a rename for done that they never sent.
    LostRename,
    /// Block servers acknowledge writes at once, whoever had the segment before.
    NoHold,
    /// Block servers take their leases for three times as long as they are.
    LongLease,
    /// Block servers do a change as often as its message comes.
    NoSequence,
    /// Block servers answer for segments that others have.
    EndlessLease,
    /// Block servers go on with attachments that are over.
    OldAttachment,
    /// Segments do not remember which changes have happened.
    ForgetChanges,
    /// Block servers without a lease take a segment for theirs without asking.
    NoConfirm,
    /// Segments answer changes behind a cut before all segments are cut.
    NoCutHold,
    /// Segments say where blocks were when they were first asked for.
    OldPlaces,
    /// Front ends answer writes before they are done.
    EarlyAnswer,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 24] = [
        Planted::AckEarly,
        Planted::NoFence,
        Planted::NoSeal,
        Planted::NoDelete,
        Planted::DeleteNeighbour,
        Planted::NoRepair,
        Planted::WrongBytes,
        Planted::AckUnsent,
        Planted::StaleTail,
        Planted::Uncommitted,
        Planted::StaleNames,
        Planted::TwiceChanged,
        Planted::ForgedLock,
        Planted::LostRename,
        Planted::NoHold,
        Planted::LongLease,
        Planted::NoSequence,
        Planted::EndlessLease,
        Planted::OldAttachment,
        Planted::ForgetChanges,
        Planted::NoConfirm,
        Planted::NoCutHold,
        Planted::OldPlaces,
        Planted::EarlyAnswer,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Runs a seed with a bug planted.
pub fn run_planted(scenario: &Scenario, seed: u64, bug: Planted) -> Result<Outcome, Failure> {
    PLANTED.set(Some(bug));
    let result = run_seed(scenario, seed);
    PLANTED.set(None);
    result
}

/// The bug planted on this thread.
pub(crate) fn planted() -> Option<Planted> {
    PLANTED.get()
}
