//! Bugs on purpose, each of which a checker must find. They stand around the product, in wrappers
//! that only the simulator puts in: what a chunkserver takes for its disk's store, what a client
//! takes for the network, what a block server takes for its requests and segments, and how these are
//! cut, what a front end takes for its volumes. The product has no switch for them.
//!
//! A bug acts each time that it could, or, in its rare form, one time in so many: what goes wrong
//! seldom is what tests miss.

mod frontend;
mod peers;
mod store;
mod volumes;

use std::cell::RefCell;

pub(crate) use frontend::exports_of;
pub(crate) use peers::peers_of;
pub use store::Store;
pub(crate) use volumes::{handler_of, opener_of};

use runtime::Rng;

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
    /// Clients that no master answers for a while answer look-ups from what they saw last.
    OldWhenCut,
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
    pub const ALL: [Planted; 25] = [
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
        Planted::OldWhenCut,
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

/// A bug while a seed runs with it.
struct Active {
    bug: Planted,
    /// It acts one time in so many.
    one_in: u64,
    /// Decides when. Its own, so that a bug that has not acted yet changes nothing.
    rng: Rng,
    /// How often it has acted.
    count: u64,
}

thread_local! {
    static ACTIVE: RefCell<Option<Active>> = const { RefCell::new(None) };
}

/// Runs a seed with a bug planted that acts one time in `one_in`. Answers also how often it has
/// acted.
pub fn run_planted(
    scenario: &Scenario,
    seed: u64,
    bug: Planted,
    one_in: u64,
) -> (Result<Outcome, Failure>, u64) {
    let rng = Rng::new(seed ^ 0x000b_ad5e_ed00);
    ACTIVE.set(Some(Active { bug, one_in, rng, count: 0 }));
    let result = run_seed(scenario, seed);
    let active = ACTIVE.take();
    (result, active.map_or(0, |active| active.count))
}

/// The bug planted on this thread.
pub(crate) fn planted() -> Option<Planted> {
    ACTIVE.with_borrow(|active| active.as_ref().map(|active| active.bug))
}

/// Whether a bug that is planted on this thread acts seldom.
fn is_rare() -> bool {
    ACTIVE.with_borrow(|active| active.as_ref().is_some_and(|active| active.one_in > 1))
}

/// Whether `bug` is planted on this thread and acts now.
pub(crate) fn acts(bug: Planted) -> bool {
    acts_in(bug, 1)
}

/// As [`acts`], of a bug that acts one time in `least` at most.
fn acts_in(bug: Planted, least: u64) -> bool {
    ACTIVE.with_borrow_mut(|active| match active {
        Some(active) if active.bug == bug => {
            let one_in = active.one_in.max(least);
            let acts = one_in == 1 || active.rng.one_in(one_in);
            active.count += u64::from(acts);
            acts
        }
        _ => false,
    })
}
