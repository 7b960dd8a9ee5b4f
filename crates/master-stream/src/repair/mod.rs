//! Background work of a stream partition's leader: it confirms seals of replicas, restores
//! redundancy in order of danger, balances, ends recoveries without a caller, and collects what no
//! file refers to (`protocols.md` 1.4, 2.3, 2.4).
//!
//! Everything here is soft state of one leader: the next leader finds it again.
//!
//! Invariant: nothing is made, dropped or deleted before the decision is committed; nothing that
//! holds a byte is dropped before enough replacements are sealed, and verified where what is
//! dropped is damaged (`docs/decisions/0033`).

mod balance;
mod chunks;
mod convert;
mod drain;
mod garbage;
mod judged;
mod rows;
mod scan;
mod seal;
mod unknown;
mod unused;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use base::{ChunkId, ClientId, FileId, ServerId};
use master_consensus::limits::SESSION_REPLIES_MAX;
use runtime::sync::{Notify, Semaphore};
use runtime::{Class, Duration, Env, Instant};
use wire::control::{Holdings, OpId};

use unknown::Unknown;

use crate::limits::REPORTS_MAX;
use crate::placement::ReplicaLocation;
use crate::service::Danger;
use crate::{Log, PlaceIndex, Service, StreamService};

/// Chunks whose replicas are sealed at the same time at most.
const SEALS_MAX: usize = 32;

/// Soft state of the background work.
pub(crate) struct Repairs {
    /// The term that the soft state belongs to.
    term: Cell<Option<u64>>,
    /// Chunks to repair: those that survive the fewest losses first.
    queue: RefCell<BTreeSet<(usize, ChunkId)>>,
    /// Chunks under repair.
    busy: RefCell<BTreeSet<ChunkId>>,
    /// Chunks that the last scan found incomplete, and that no repair has completed since. A chunk
    /// that waits for a server to come back or for room on a disk stays here.
    under_replicated: RefCell<BTreeSet<ChunkId>>,
    /// The chunk that moves for balance: it lacks nothing.
    moving: Cell<Option<ChunkId>>,
    /// Chunks moved for balance.
    pub(crate) moves: Cell<u64>,
    /// Chunks that were given another form.
    pub(crate) converted: Cell<u64>,
    /// Replicas that were checked and are not whole, and since when that is known.
    bad: RefCell<BTreeMap<(ChunkId, ReplicaLocation), (Defect, Instant)>>,
    /// Replicas that were read to their end, or just made and read back, in the repair of their
    /// chunk that is under way.
    verified: RefCell<BTreeSet<(ChunkId, ReplicaLocation)>>,
    /// Chunks whose repair brought nothing, and when it is tried again.
    setbacks: RefCell<BTreeMap<ChunkId, Setback>>,
    /// Chunks whose conversion did not end, and when it is tried again.
    doubts: RefCell<BTreeMap<ChunkId, Retry>>,
    /// Chunks with rows that their writer coded wrong: they are to be laid out again.
    miscoded: RefCell<BTreeSet<ChunkId>>,
    /// Chunks that readers have reported, and whose replicas are whole each: all their rows are checked.
    suspects: RefCell<BTreeSet<ChunkId>>,
    /// Open replicas whose writers are silent, and the time of their servers' reports.
    quiet: RefCell<BTreeMap<(ChunkId, ReplicaLocation), Instant>>,
    /// Locations that are not healthy.
    absent: RefCell<BTreeMap<PlaceIndex, Absence>>,
    /// Replicas that have not been sealed with their chunk, and since when.
    unsealed: RefCell<BTreeMap<(ChunkId, PlaceIndex), Instant>>,
    /// Chunks with replicas that were not sealed with them, and since when that is known here.
    partly_sealed: RefCell<BTreeMap<ChunkId, Instant>>,
    /// Replicas that were short of their sealed chunk, and since when.
    short: RefCell<BTreeMap<(ChunkId, PlaceIndex), Instant>>,
    /// Replicas of sealed chunks to which their writers send no more, as these say.
    left: RefCell<BTreeSet<(ChunkId, PlaceIndex)>>,
    /// Open chunks that were made with fewer copies than they should have, and since when the cluster
    /// has had room for all of them.
    degraded: RefCell<BTreeMap<ChunkId, Instant>>,
    /// Open chunks that their writers are to leave, and since when that is known, or their writers were
    /// heard of last.
    to_leave: RefCell<BTreeMap<ChunkId, Instant>>,
    /// Streams in recovery, and since when.
    recovering: RefCell<BTreeMap<FileId, Instant>>,
    /// Chunks that have ended just now: their replicas are to be sealed.
    ended: RefCell<BTreeSet<ChunkId>>,
    /// Chunks whose replicas are being sealed, or are to be sealed later.
    sealing: RefCell<BTreeMap<ChunkId, Retry>>,
    pub(crate) seal_permits: Arc<Semaphore>,
    /// Replicas that are sealed, to be committed together.
    sealed: RefCell<Vec<(ChunkId, ReplicaLocation, u32)>>,
    sealed_some: Notify,
    queued_some: Notify,
    /// There are reports to check.
    pub(crate) reported_some: Notify,
    /// Repair workers beside those that are always there.
    more_workers: Cell<usize>,
    /// Disks with more unknown replicas than are condemned unasked.
    pub(crate) unknown: Unknown,
    /// How far the records of dead replicas were looked through, at places with very many.
    dead_after: RefCell<BTreeMap<PlaceIndex, ChunkId>>,
    /// Bytes of replicas that no stream refers to, by the last comparison with each disk.
    pub(crate) unreferenced: RefCell<BTreeMap<ReplicaLocation, u64>>,
    /// What is on the servers that drain, as of the last scan.
    draining: RefCell<BTreeMap<ServerId, Holdings>>,
    /// When the next copy may start, by the pace.
    next_copy: Cell<Instant>,
    /// The session under which the leader seals abandoned chunks.
    session: ClientId,
    seq: Cell<u64>,
    /// Operations of the session whose answers may still be asked for.
    under_way: Rc<RefCell<BTreeSet<u64>>>,
}

/// An operation of the leader's own session, under way until this is dropped.
struct OwnOp {
    id: OpId,
    under_way: Rc<RefCell<BTreeSet<u64>>>,
}

impl Drop for OwnOp {
    fn drop(&mut self) {
        self.under_way.borrow_mut().remove(&self.id.seq);
    }
}

/// Since when a location is not healthy.
#[derive(Clone, Copy, Debug)]
struct Absence {
    since: Instant,
    /// Since when no server that sends heartbeats has it.
    gone: Option<Instant>,
}

/// When something that did not work is tried again.
#[derive(Clone, Copy)]
struct Retry {
    /// `None` while it is under way.
    at: Option<Instant>,
    pause: Duration,
}

/// Fault of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Defect {
    /// Some of it does not verify, or it ends early: a source of last resort.
    Damaged,
    /// A fragment with a cell that is not its row's, though its sectors verify: a source of last resort for
    /// other fragments, of which the row check says whether they are right, and none for its own.
    Wrong,
    /// Its server does not have it.
    Missing,
}

/// A chunk whose repair brought nothing.
#[derive(Clone, Copy)]
struct Setback {
    at: Instant,
    pause: Duration,
    /// Copies that found no source for some byte, in a row.
    torn: u32,
}

impl Repairs {
    pub(crate) fn new(env: &Env) -> Repairs {
        Repairs {
            term: Cell::new(None),
            queue: RefCell::default(),
            busy: RefCell::default(),
            under_replicated: RefCell::default(),
            moving: Cell::new(None),
            moves: Cell::new(0),
            converted: Cell::new(0),
            bad: RefCell::default(),
            verified: RefCell::default(),
            setbacks: RefCell::default(),
            doubts: RefCell::default(),
            miscoded: RefCell::default(),
            suspects: RefCell::default(),
            quiet: RefCell::default(),
            absent: RefCell::default(),
            unsealed: RefCell::default(),
            partly_sealed: RefCell::default(),
            short: RefCell::default(),
            left: RefCell::default(),
            degraded: RefCell::default(),
            to_leave: RefCell::default(),
            recovering: RefCell::default(),
            ended: RefCell::default(),
            sealing: RefCell::default(),
            seal_permits: Arc::new(Semaphore::new(SEALS_MAX)),
            sealed: RefCell::default(),
            sealed_some: Notify::new(),
            queued_some: Notify::new(),
            reported_some: Notify::new(),
            more_workers: Cell::new(0),
            unknown: Unknown::default(),
            dead_after: RefCell::default(),
            unreferenced: RefCell::default(),
            draining: RefCell::default(),
            next_copy: Cell::new(Instant::default()),
            session: ClientId::new(env.random_u64()),
            seq: Cell::new(0),
            under_way: Rc::default(),
        }
    }

    /// Forgets all that another leader may have overtaken.
    fn reset(&self, term: u64) {
        self.term.set(Some(term));
        self.queue.borrow_mut().clear();
        self.under_replicated.borrow_mut().clear();
        self.bad.borrow_mut().clear();
        self.verified.borrow_mut().clear();
        self.setbacks.borrow_mut().clear();
        self.miscoded.borrow_mut().clear();
        self.suspects.borrow_mut().clear();
        self.quiet.borrow_mut().clear();
        self.absent.borrow_mut().clear();
        self.unsealed.borrow_mut().clear();
        self.partly_sealed.borrow_mut().clear();
        self.short.borrow_mut().clear();
        self.left.borrow_mut().clear();
        self.degraded.borrow_mut().clear();
        self.to_leave.borrow_mut().clear();
        self.recovering.borrow_mut().clear();
        self.ended.borrow_mut().clear();
        self.sealing.borrow_mut().retain(|_, retry| retry.at.is_none());
        self.sealed.borrow_mut().clear();
        self.unknown.reset();
        self.unreferenced.borrow_mut().clear();
        self.draining.borrow_mut().clear();
    }

    /// A new operation. It acknowledges the answers to those before it that have ended; none while one of them
    /// takes so long that the session has no room for more answers.
    fn begin_op(&self) -> Option<OwnOp> {
        let seq = self.seq.get() + 1;
        let mut under_way = self.under_way.borrow_mut();
        let acked_below = under_way.first().copied().unwrap_or(seq);
        if seq >= acked_below + SESSION_REPLIES_MAX {
            return None;
        }
        self.seq.set(seq);
        under_way.insert(seq);
        let id = OpId { client: self.session, seq, acked_below };
        Some(OwnOp { id, under_way: self.under_way.clone() })
    }

    fn note_bad(&self, chunk: ChunkId, place: ReplicaLocation, defect: Defect, now: Instant) {
        let mut bad = self.bad.borrow_mut();
        self.verified.borrow_mut().remove(&(chunk, place));
        if bad.len() < REPORTS_MAX || bad.contains_key(&(chunk, place)) {
            let known = bad.entry((chunk, place)).or_insert((defect, now));
            // What is wrong does not become less so.
            if known.0 != Defect::Wrong || defect == Defect::Missing {
                known.0 = defect;
            }
        }
    }

    fn note_unsealed(&self, chunk: ChunkId, place: PlaceIndex, now: Instant) {
        let mut unsealed = self.unsealed.borrow_mut();
        if unsealed.len() < REPORTS_MAX {
            unsealed.entry((chunk, place)).or_insert(now);
        }
    }

    fn forget_unsealed(&self, chunk: ChunkId, place: PlaceIndex) {
        self.unsealed.borrow_mut().remove(&(chunk, place));
    }

    /// Since when a replica is known to be short of its sealed chunk; for ever when too many are.
    fn short_since(&self, chunk: ChunkId, place: PlaceIndex, now: Instant) -> Instant {
        let mut short = self.short.borrow_mut();
        match short.len() < REPORTS_MAX {
            true => *short.entry((chunk, place)).or_insert(now),
            false => short.get(&(chunk, place)).copied().unwrap_or_default(),
        }
    }

    pub(crate) fn note_quiet(&self, chunk: ChunkId, place: ReplicaLocation, at: Instant) {
        let mut quiet = self.quiet.borrow_mut();
        if quiet.len() < REPORTS_MAX || quiet.contains_key(&(chunk, place)) {
            quiet.insert((chunk, place), at);
        }
    }

    /// Chunks that wait for repair, or are under it.
    fn pending(&self) -> u64 {
        self.under_replicated.borrow().len() as u64
    }
}

impl<L: Log> StreamService<L> {
    /// Starts the background tasks. They work while this master leads the partition, and end with
    /// the node.
    pub fn start_background(&self) {
        let service = &self.0;
        let spawn = |name, task: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
            service.env.spawn(Class::Background, name, task);
        };
        spawn("seal chunks", Box::pin(service.clone().seal_chunks()));
        spawn("commit seals", Box::pin(service.clone().commit_seals()));
        spawn("check reports", Box::pin(service.clone().check_reports()));
        spawn("scan chunks", Box::pin(service.clone().scan_chunks()));
        for _ in 0..service.config.repair_parallel.max(1) {
            spawn("repair chunks", Box::pin(service.clone().repair_chunks()));
        }
        spawn("convert chunks", Box::pin(service.clone().convert_chunks()));
        spawn("check rows", Box::pin(service.clone().check_rows()));
        spawn("balance chunks", Box::pin(service.clone().balance_chunks()));
        spawn("collect garbage", Box::pin(service.clone().collect_garbage()));
        spawn("compare disks", Box::pin(service.clone().compare_disks()));
    }
}

impl<L: Log> Service<L> {
    /// True while this master leads; forgets what it knew in an earlier term.
    pub(crate) fn leads(&self) -> bool {
        let Some(term) = self.log.leading() else { return false };
        if self.repairs.term.get() != Some(term) {
            self.repairs.reset(term);
            self.danger.set(Danger::default());
            self.count_repair(0, 0);
        }
        true
    }

    /// Waits for a notification, but no longer than `most`.
    async fn wait(&self, news: &Notify, most: Duration) {
        let _ = self.env.timeout(most, news.notified()).await;
    }

    fn count_repair(&self, done: u64, bytes: u64) {
        let mut status = self.repair.get();
        status.done += done;
        status.bytes += bytes;
        status.pending = self.repairs.pending();
        self.repair.set(status);
    }
}
