//! Traced operations with the times of their stages (D12, C25).

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;

use base::{ChunkId, DiskId, TraceId};

use crate::limits::{OPERATIONS_MAX, SLOW_KEEP_NS, SLOW_MAX, STAGES_MAX};

/// What a stage was about: it makes a slow operation explain itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact {
    /// Nothing to add.
    None,
    /// The peer that it waited for.
    Peer(SocketAddr),
    /// The disk that it waited for.
    Disk(DiskId),
    /// The chunk that it worked on.
    Chunk(ChunkId),
    /// How many bytes it moved.
    Bytes(u64),
}

/// A point that an operation passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// What was reached, e.g. `durable`.
    pub name: &'static str,
    /// When, in ns of the process's clock.
    pub at_ns: u64,
    /// What it was about.
    pub fact: Fact,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is under way.
    Open,
    /// It did what was asked.
    Done,
    /// It did not.
    Failed(base::Kind),
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Follows the operation across processes.
    pub trace: TraceId,
    /// What was asked, e.g. `append`.
    pub name: &'static str,
    /// When it came, in ns of the process's clock.
    pub began_ns: u64,
    /// When it ended; `began_ns` while it is open.
    pub ended_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
    stages: [Stage; STAGES_MAX],
    passed: u32,
}

impl Operation {
    /// The stages that were kept, in order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages[..STAGES_MAX.min(self.passed as usize)]
    }

    /// Stages passed beyond those that were kept.
    pub fn stages_left_out(&self) -> u32 {
        self.passed.saturating_sub(STAGES_MAX as u32)
    }

    /// How long it took, in ns; 0 while it is open.
    pub fn took_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns)
    }
}

/// An operation under way. Its slot may be taken by a later one; then it is no longer kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u64);

/// The latest operations of one core, and the slowest of the last minutes. Fixed in size; a
/// stage costs a few stores.
#[derive(Debug)]
pub struct TraceRing {
    slots: RefCell<Vec<Operation>>,
    /// Operations begun so far. Operation `n` stands in slot `n % OPERATIONS_MAX`.
    begun: Cell<u64>,
    slow: RefCell<Vec<Operation>>,
    /// Below this duration an operation is not slow enough to be kept.
    slow_floor_ns: Cell<u64>,
    /// When the first of the kept slow operations gives its place up.
    slow_stale_ns: Cell<u64>,
}

impl Default for TraceRing {
    fn default() -> TraceRing {
        TraceRing::new()
    }
}

impl TraceRing {
    /// An empty ring, with all the memory that it will use.
    pub fn new() -> TraceRing {
        TraceRing {
            slots: RefCell::new(Vec::with_capacity(OPERATIONS_MAX)),
            begun: Cell::new(0),
            slow: RefCell::new(Vec::with_capacity(SLOW_MAX)),
            slow_floor_ns: Cell::new(0),
            slow_stale_ns: Cell::new(u64::MAX),
        }
    }

    /// Starts an operation, in the place of the oldest.
    pub fn begin(&self, trace: TraceId, name: &'static str, now_ns: u64) -> Key {
        let nothing = Stage { name: "", at_ns: 0, fact: Fact::None };
        let operation = Operation {
            trace,
            name,
            began_ns: now_ns,
            ended_ns: now_ns,
            outcome: Outcome::Open,
            stages: [nothing; STAGES_MAX],
            passed: 0,
        };
        let number = self.begun.get();
        self.begun.set(number + 1);
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(slot(number)) {
            Some(oldest) => *oldest = operation,
            None => slots.push(operation),
        }
        Key(number)
    }

    /// The operation has reached a stage.
    pub fn stage(&self, key: Key, name: &'static str, now_ns: u64, fact: Fact) {
        self.change(key, |operation| {
            if let Some(stage) = operation.stages.get_mut(operation.passed as usize) {
                *stage = Stage { name, at_ns: now_ns, fact };
            }
            operation.passed = operation.passed.saturating_add(1);
        });
    }

    /// The operation has ended.
    pub fn end(&self, key: Key, now_ns: u64, outcome: Outcome) {
        let ended = self.change(key, |operation| {
            operation.ended_ns = now_ns;
            operation.outcome = outcome;
            *operation
        });
        let Some(ended) = ended else { return };
        if ended.took_ns() >= self.slow_floor_ns.get() || now_ns >= self.slow_stale_ns.get() {
            self.keep_slow(ended);
        }
    }

    /// The slowest operations that have ended, the slowest first.
    pub fn slowest(&self, count: usize) -> Vec<Operation> {
        let mut slow = self.slow.borrow().clone();
        slow.sort_by_key(|operation| std::cmp::Reverse(operation.took_ns()));
        slow.truncate(count);
        slow
    }

    /// What is known of a trace, in order of beginning.
    pub fn find(&self, trace: TraceId) -> Vec<Operation> {
        let is_it = |operation: &&Operation| operation.trace == trace;
        let slots = self.slots.borrow();
        let mut found: Vec<Operation> = slots.iter().filter(is_it).copied().collect();
        for slow in self.slow.borrow().iter().filter(is_it) {
            if !found.contains(slow) {
                found.push(*slow);
            }
        }
        found.sort_by_key(|operation| operation.began_ns);
        found
    }

    /// Applies a change while the operation still has its slot.
    fn change<T>(&self, key: Key, change: impl FnOnce(&mut Operation) -> T) -> Option<T> {
        let lost = self.begun.get() - key.0 > OPERATIONS_MAX as u64;
        (!lost).then(|| change(&mut self.slots.borrow_mut()[slot(key.0)]))
    }

    fn keep_slow(&self, ended: Operation) {
        let mut slow = self.slow.borrow_mut();
        let now_ns = ended.ended_ns;
        let stale_at = |kept: &Operation| kept.ended_ns.saturating_add(SLOW_KEEP_NS);
        if slow.len() < SLOW_MAX {
            slow.push(ended);
        } else {
            // A stale one goes first, else the fastest.
            let rank = |kept: &&mut Operation| (stale_at(kept) > now_ns, kept.took_ns());
            let out = slow.iter_mut().min_by_key(rank);
            if let Some(out) = out
                && (stale_at(out) <= now_ns || out.took_ns() < ended.took_ns())
            {
                *out = ended;
            }
        }
        if slow.len() == SLOW_MAX {
            let floor = slow.iter().map(Operation::took_ns).min();
            self.slow_floor_ns.set(floor.map_or(0, |floor| floor + 1));
            let stale = slow.iter().map(stale_at).min();
            self.slow_stale_ns.set(stale.unwrap_or(u64::MAX));
        }
    }
}

fn slot(number: u64) -> usize {
    (number % OPERATIONS_MAX as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ring: &TraceRing, trace: u64, began_ns: u64, took_ns: u64) {
        let key = ring.begin(TraceId::new(trace), "append", began_ns);
        ring.end(key, began_ns + took_ns, Outcome::Done);
    }

    #[test]
    fn an_operation_explains_itself() {
        let ring = TraceRing::new();
        let disk = Fact::Disk(DiskId::new(7));
        let key = ring.begin(TraceId::new(1), "append", 100);
        ring.stage(key, "submitted", 110, Fact::Bytes(4096));
        ring.stage(key, "durable", 190, disk);
        assert_eq!(ring.find(TraceId::new(1))[0].outcome, Outcome::Open);
        ring.end(key, 200, Outcome::Failed(base::Kind::Full));
        let found = ring.find(TraceId::new(1));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].outcome, Outcome::Failed(base::Kind::Full));
        assert_eq!(found[0].took_ns(), 100);
        let stages: Vec<_> = found[0].stages().iter().map(|one| (one.name, one.at_ns)).collect();
        assert_eq!(stages, [("submitted", 110), ("durable", 190)]);
        assert_eq!(found[0].stages()[1].fact, disk);
        assert!(ring.find(TraceId::new(2)).is_empty());
    }

    #[test]
    fn stages_are_bounded() {
        let ring = TraceRing::new();
        let key = ring.begin(TraceId::new(1), "append", 0);
        (0..STAGES_MAX as u64 + 3).for_each(|at| ring.stage(key, "turn", at, Fact::None));
        let found = ring.find(TraceId::new(1))[0];
        assert_eq!(found.stages().len(), STAGES_MAX);
        assert_eq!(found.stages_left_out(), 3);
    }

    #[test]
    fn the_ring_is_fixed_and_slow_ones_stay() {
        let ring = TraceRing::new();
        let early = ring.begin(TraceId::new(9), "append", 0);
        run(&ring, 1, 0, 1_000_000);
        for count in 0..3 * OPERATIONS_MAX as u64 {
            run(&ring, 2, count, 10 + count % 7);
        }
        // Its slot is another's by now: the end of the first operation changes nothing.
        ring.end(early, 5_000_000, Outcome::Done);
        assert!(ring.find(TraceId::new(9)).is_empty());
        assert_eq!(ring.slots.borrow().len(), OPERATIONS_MAX);
        let slowest = ring.slowest(3);
        assert_eq!((slowest[0].trace, slowest[0].took_ns()), (TraceId::new(1), 1_000_000));
        assert_eq!(slowest.len(), 3);
        assert_eq!(slowest[1].took_ns(), 16);
        assert_eq!(ring.find(TraceId::new(1)).len(), 1);
    }

    #[test]
    fn slow_ones_give_their_place_up_in_time() {
        let ring = TraceRing::new();
        (0..SLOW_MAX as u64).for_each(|trace| run(&ring, trace, 0, 1_000_000));
        run(&ring, 1000, 1_000_000, 5);
        assert!(ring.slowest(SLOW_MAX).iter().all(|one| one.took_ns() == 1_000_000));
        run(&ring, 1001, 2 * SLOW_KEEP_NS, 5);
        assert!(ring.slowest(SLOW_MAX).iter().any(|one| one.trace == TraceId::new(1001)));
    }
}
