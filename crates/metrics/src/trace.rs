//! Traced operations with the times of their stages (D12, C25).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use base::{ChunkId, DiskId, TraceId};

use crate::limits::{
    ASKED_MAX, NAMES_MAX, OPERATIONS_MAX, SLOW_KEEP_NS, SLOW_MAX, SLOW_NS_DEFAULT, STAGES_MAX,
};

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Stages of an operation.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Step {
            $($(#[$doc])* $name,)*
        }

        impl Step {
            /// Its name, as operators see it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Step::$name => $text,)*
                }
            }
        }
    };
}

steps! {
    /// Client: the path's components are known.
    Resolved = "resolved",
    /// Client: the chunk is known.
    Located = "located",
    /// Client: the data is in its sectors, with footers and checksums.
    Formatted = "formatted",
    /// Transport: a request to a peer waits to be sent.
    Queued = "queued",
    /// Transport: the request or answer was given to the kernel.
    Sent = "sent",
    /// Transport: a peer's answer is here.
    Replied = "answer received",
    /// Client: as many replicas as the policy asks have it, and all before it.
    Acknowledged = "acknowledged",
    /// Server: it may be done, and there is room for it.
    Admitted = "admitted",
    /// Chunkserver: checksums and places of its sectors are verified.
    Verified = "verified",
    /// Chunkserver: given to the device.
    Submitted = "device submit",
    /// Chunkserver: the device is done.
    DeviceDone = "device done",
    /// Master: given to the group's leader here.
    Proposed = "proposed",
    /// Master: in the logs of a quorum.
    Committed = "committed",
    /// Master: in the state.
    Applied = "applied",
    /// Master: a quorum confirms that this master leads, so its state may be read.
    Confirmed = "read confirmed",
    /// Server: the answer waits to be sent.
    Answered = "answered",
}

/// Subject of a stage: it makes a slow operation explain itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact {
    /// Nothing to add.
    None,
    /// The peer that it went to or came from.
    Peer(SocketAddr),
    /// The disk that it waited for.
    Disk(DiskId),
    /// The chunk that it worked on.
    Chunk(ChunkId),
    /// Bytes that it moved.
    Bytes(u64),
    /// The number of a Raft group.
    Group(u32),
}

/// A point that an operation passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// The stage reached.
    pub step: Step,
    /// When, in ns of the process's clock.
    pub at_ns: u64,
    /// Its subject.
    pub fact: Fact,
}

/// End of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is under way, or its caller has dropped it.
    Open,
    /// It did what was asked.
    Done,
    /// It did not.
    Failed(base::Kind),
}

/// One operation of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Follows the operation across processes.
    pub trace: TraceId,
    /// The operation, e.g. `append`.
    pub name: &'static str,
    /// The peer that asked; none for what began in this process.
    pub peer: Option<SocketAddr>,
    /// When it came, in ns of the process's clock.
    pub began_ns: u64,
    /// When it ended; `began_ns` while it is open.
    pub ended_ns: u64,
    /// Its end.
    pub outcome: Outcome,
    /// The stages that were kept, in order.
    pub stages: Vec<Stage>,
    /// Stages passed beyond those that were kept.
    pub stages_left_out: u32,
}

impl Operation {
    /// Its duration, in ns; 0 while it is open.
    pub fn took_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns)
    }

    /// The stage that was waited for longest before its end, with the wait in ns.
    pub fn slowest_stage(&self) -> Option<(Stage, u64)> {
        let mut before = self.began_ns;
        let mut slowest = None;
        for stage in self.stages.iter().filter(|stage| stage.at_ns <= self.ended_ns) {
            let wait = stage.at_ns.saturating_sub(before);
            before = stage.at_ns;
            if slowest.is_none_or(|(_, longest)| wait > longest) {
                slowest = Some((*stage, wait));
            }
        }
        slowest
    }
}

/// An operation under way. Its slot may be taken by a later one; then it is no longer kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u64);

/// A stage in 24 bytes: each operation on the data path writes about ten.
#[derive(Clone, Copy)]
struct Packed {
    at_ns: u64,
    value: u64,
    step: Step,
    kind: FactKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum FactKind {
    None,
    PeerV4,
    /// The value is an index into the ring's names.
    Named,
    Chunk,
    Bytes,
    Group,
}

#[derive(Clone, Copy)]
struct Slot {
    trace: TraceId,
    name: &'static str,
    peer: Option<SocketAddr>,
    began_ns: u64,
    ended_ns: u64,
    outcome: Outcome,
    passed: u32,
    /// A copy is among the slow or asked-for ones: it gets late stages too.
    copied: bool,
    stages: [Packed; STAGES_MAX],
}

/// A copy that outlives its slot.
struct Kept {
    number: u64,
    slot: Slot,
}

/// The latest operations of one core, the slow ones of the last minutes, and those whose trace
/// was asked for when they were begun. Fixed in size; a stage costs a few stores.
pub struct TraceRing {
    slots: RefCell<Vec<Slot>>,
    /// Operations begun so far. Operation `n` is in slot `n % OPERATIONS_MAX`.
    begun: Cell<u64>,
    /// Duration from which on an operation is slow, in ns.
    slow_ns: Cell<u64>,
    slow: RefCell<Vec<Kept>>,
    asked: RefCell<VecDeque<Kept>>,
    names: RefCell<Vec<Fact>>,
}

impl Default for TraceRing {
    fn default() -> TraceRing {
        TraceRing::new()
    }
}

impl TraceRing {
    /// An empty ring. Its memory is taken as it fills.
    pub fn new() -> TraceRing {
        TraceRing {
            slots: RefCell::default(),
            begun: Cell::new(0),
            slow_ns: Cell::new(SLOW_NS_DEFAULT),
            slow: RefCell::default(),
            asked: RefCell::default(),
            names: RefCell::default(),
        }
    }

    /// Duration from which on an operation is slow, in ns.
    pub fn slow_ns(&self) -> u64 {
        self.slow_ns.get()
    }

    /// Sets the duration from which on an operation is slow, in ns.
    pub fn set_slow_ns(&self, slow_ns: u64) {
        self.slow_ns.set(slow_ns);
    }

    /// Starts an operation, in the place of the oldest.
    pub fn begin(
        &self,
        trace: TraceId,
        name: &'static str,
        peer: Option<SocketAddr>,
        now_ns: u64,
    ) -> Key {
        let number = self.begun.get();
        self.begun.set(number + 1);
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(place(number)) {
            // The stages stay as they are: none of them counts.
            Some(oldest) => {
                oldest.trace = trace;
                oldest.name = name;
                oldest.peer = peer;
                (oldest.began_ns, oldest.ended_ns) = (now_ns, now_ns);
                oldest.outcome = Outcome::Open;
                oldest.passed = 0;
                oldest.copied = false;
            }
            None => {
                let nothing =
                    Packed { at_ns: 0, value: 0, step: Step::Queued, kind: FactKind::None };
                slots.push(Slot {
                    trace,
                    name,
                    peer,
                    began_ns: now_ns,
                    ended_ns: now_ns,
                    outcome: Outcome::Open,
                    passed: 0,
                    copied: false,
                    stages: [nothing; STAGES_MAX],
                });
            }
        }
        Key(number)
    }

    /// The operation has reached a stage; also after its end, e.g. when its answer is sent.
    pub fn stage(&self, key: Key, step: Step, now_ns: u64, fact: Fact) {
        let (kind, value) = self.pack(fact);
        let copied = self.change(key, |slot| {
            if let Some(stage) = slot.stages.get_mut(slot.passed as usize) {
                *stage = Packed { at_ns: now_ns, value, step, kind };
            }
            slot.passed = slot.passed.saturating_add(1);
            slot.copied.then_some(*slot)
        });
        if let Some(Some(slot)) = copied {
            let mut slow = self.slow.borrow_mut();
            let mut asked = self.asked.borrow_mut();
            let copies = slow.iter_mut().chain(asked.iter_mut());
            copies.filter(|kept| kept.number == key.0).for_each(|kept| kept.slot = slot);
        }
    }

    /// The operation has ended: how long it took, in ns. `None` when its place was taken, or it
    /// had ended before.
    pub fn end(&self, key: Key, now_ns: u64, outcome: Outcome) -> Option<u64> {
        let took_ns = self.change(key, |slot| {
            if slot.outcome != Outcome::Open {
                return None;
            }
            slot.ended_ns = now_ns;
            slot.outcome = outcome;
            Some(now_ns.saturating_sub(slot.began_ns))
        })??;
        let slow = took_ns >= self.slow_ns.get();
        let asked = self.change(key, |slot| slot.trace.is_asked()).unwrap_or(false);
        if slow || asked {
            self.copy(key, slow, asked);
        }
        Some(took_ns)
    }

    /// The operation, while it has its place.
    pub fn get(&self, key: Key) -> Option<Operation> {
        self.change(key, |slot| *slot).map(|slot| self.unpack(&slot))
    }

    /// The slowest of the slow operations that are kept, the slowest first.
    pub fn slowest(&self, count: usize) -> Vec<Operation> {
        let slow = self.slow.borrow();
        let mut found: Vec<&Slot> = slow.iter().map(|kept| &kept.slot).collect();
        found.sort_by_key(|slot| std::cmp::Reverse(took(slot)));
        found.into_iter().take(count).map(|slot| self.unpack(slot)).collect()
    }

    /// Operations of a trace, in order of beginning; the first `count`.
    pub fn find(&self, trace: TraceId, count: usize) -> Vec<Operation> {
        let (slots, slow, asked) = (self.slots.borrow(), self.slow.borrow(), self.asked.borrow());
        let newest = self.begun.get();
        let numbered = slots.iter().enumerate().map(|(index, slot)| {
            let behind =
                (newest + OPERATIONS_MAX as u64 - 1 - index as u64) % OPERATIONS_MAX as u64;
            (newest - 1 - behind, slot)
        });
        let copies = slow.iter().chain(asked.iter()).map(|kept| (kept.number, &kept.slot));
        let mut found: Vec<_> =
            numbered.chain(copies).filter(|(_, slot)| slot.trace == trace).collect();
        found.sort_by_key(|&(number, _)| number);
        found.dedup_by_key(|&mut (number, _)| number);
        found.into_iter().take(count).map(|(_, slot)| self.unpack(slot)).collect()
    }

    /// Applies a change while the operation still has its slot.
    fn change<T>(&self, key: Key, change: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let lost = self.begun.get() - key.0 > OPERATIONS_MAX as u64;
        (!lost).then(|| change(&mut self.slots.borrow_mut()[place(key.0)]))
    }

    fn copy(&self, key: Key, slow: bool, asked: bool) {
        let Some(slot) = self.change(key, |slot| {
            slot.copied = true;
            *slot
        }) else {
            return;
        };
        if asked {
            let mut kept = self.asked.borrow_mut();
            if kept.len() == ASKED_MAX {
                kept.pop_front();
            }
            kept.push_back(Kept { number: key.0, slot });
        }
        if slow {
            self.keep_slow(Kept { number: key.0, slot });
        }
    }

    /// A stale one gives its place up first, else the fastest.
    fn keep_slow(&self, fresh: Kept) {
        let mut slow = self.slow.borrow_mut();
        if slow.len() < SLOW_MAX {
            slow.push(fresh);
            return;
        }
        let now_ns = fresh.slot.ended_ns;
        let stale = |kept: &Kept| kept.slot.ended_ns.saturating_add(SLOW_KEEP_NS) <= now_ns;
        let out = slow.iter_mut().min_by_key(|kept| (!stale(kept), took(&kept.slot)));
        if let Some(out) = out
            && (stale(out) || took(&out.slot) < took(&fresh.slot))
        {
            *out = fresh;
        }
    }

    fn pack(&self, fact: Fact) -> (FactKind, u64) {
        match fact {
            Fact::None => (FactKind::None, 0),
            Fact::Chunk(chunk) => (FactKind::Chunk, chunk.get()),
            Fact::Bytes(bytes) => (FactKind::Bytes, bytes),
            Fact::Group(group) => (FactKind::Group, u64::from(group)),
            Fact::Peer(SocketAddr::V4(addr)) => {
                let ip = u64::from(u32::from(*addr.ip()));
                (FactKind::PeerV4, ip << 16 | u64::from(addr.port()))
            }
            Fact::Peer(SocketAddr::V6(_)) | Fact::Disk(_) => {
                let mut names = self.names.borrow_mut();
                let index = names.iter().position(|known| *known == fact);
                match index {
                    Some(index) => (FactKind::Named, index as u64),
                    None if names.len() == NAMES_MAX => (FactKind::None, 0),
                    None => {
                        names.push(fact);
                        (FactKind::Named, names.len() as u64 - 1)
                    }
                }
            }
        }
    }

    fn unpack(&self, slot: &Slot) -> Operation {
        let names = self.names.borrow();
        let stage = |packed: &Packed| {
            let fact = match packed.kind {
                FactKind::None => Fact::None,
                FactKind::PeerV4 => {
                    let ip = Ipv4Addr::from((packed.value >> 16) as u32);
                    Fact::Peer(SocketAddrV4::new(ip, packed.value as u16).into())
                }
                FactKind::Named => names.get(packed.value as usize).copied().unwrap_or(Fact::None),
                FactKind::Chunk => Fact::Chunk(ChunkId::new(packed.value)),
                FactKind::Bytes => Fact::Bytes(packed.value),
                FactKind::Group => Fact::Group(packed.value as u32),
            };
            Stage { step: packed.step, at_ns: packed.at_ns, fact }
        };
        Operation {
            trace: slot.trace,
            name: slot.name,
            peer: slot.peer,
            began_ns: slot.began_ns,
            ended_ns: slot.ended_ns,
            outcome: slot.outcome,
            stages: slot.stages[..STAGES_MAX.min(slot.passed as usize)].iter().map(stage).collect(),
            stages_left_out: slot.passed.saturating_sub(STAGES_MAX as u32),
        }
    }
}

impl std::fmt::Debug for TraceRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TraceRing({} operations)", self.begun.get())
    }
}

fn took(slot: &Slot) -> u64 {
    slot.ended_ns.saturating_sub(slot.began_ns)
}

fn place(number: u64) -> usize {
    (number % OPERATIONS_MAX as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: u64 = SLOW_NS_DEFAULT;

    fn run(ring: &TraceRing, trace: TraceId, began_ns: u64, took_ns: u64) -> Key {
        let key = ring.begin(trace, "append", None, began_ns);
        assert_eq!(ring.end(key, began_ns + took_ns, Outcome::Done), Some(took_ns));
        key
    }

    #[test]
    fn operation_has_its_stages_with_facts() {
        let ring = TraceRing::new();
        let facts = [
            Fact::Disk(DiskId::new(7)),
            Fact::Peer("10.1.2.3:65535".parse().expect("an address")),
            Fact::Peer("[2001:db8::1]:80".parse().expect("an address")),
            Fact::Disk(DiskId::new(7)),
            Fact::Chunk(ChunkId::new(u64::MAX)),
            Fact::Bytes(4096),
            Fact::Group(65_537),
            Fact::None,
        ];
        let peer = "127.0.0.1:1".parse().ok();
        let key = ring.begin(TraceId::new(1), "append", peer, 100);
        for (fact, at) in facts.into_iter().zip([110, 120, 130, 140, 190, 191, 192, 193]) {
            ring.stage(key, Step::Queued, at, fact);
        }
        assert_eq!(ring.find(TraceId::new(1), 9)[0].outcome, Outcome::Open);
        ring.end(key, 200, Outcome::Failed(base::Kind::Full));
        assert_eq!(ring.end(key, 300, Outcome::Done), None, "an operation ends once");
        let found = ring.find(TraceId::new(1), 9);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].outcome, found[0].peer), (Outcome::Failed(base::Kind::Full), peer));
        assert_eq!(found[0].took_ns(), 100);
        let seen: Vec<_> = found[0].stages.iter().map(|stage| stage.fact).collect();
        assert_eq!(seen, facts);
        let (slowest, wait) = found[0].slowest_stage().expect("it has stages");
        assert_eq!((slowest.fact, wait), (facts[4], 50));
        assert!(ring.find(TraceId::new(2), 9).is_empty());
    }

    #[test]
    fn stages_and_names_are_bounded() {
        let ring = TraceRing::new();
        let key = ring.begin(TraceId::new(1), "append", None, 0);
        (0..STAGES_MAX as u64 + 3).for_each(|at| ring.stage(key, Step::Sent, at, Fact::None));
        let found = &ring.find(TraceId::new(1), 1)[0];
        assert_eq!((found.stages.len(), found.stages_left_out), (STAGES_MAX, 3));
        for disk in 0..NAMES_MAX as u128 + 1 {
            let key = ring.begin(TraceId::new(2), "append", None, 0);
            ring.stage(key, Step::DeviceDone, 0, Fact::Disk(DiskId::new(disk)));
        }
        let found = ring.find(TraceId::new(2), usize::MAX);
        assert_eq!(found[NAMES_MAX - 1].stages[0].fact, Fact::Disk(DiskId::new(255)));
        assert_eq!(found[NAMES_MAX].stages[0].fact, Fact::None);
    }

    #[test]
    fn full_ring_keeps_slow_and_asked_operations() {
        let ring = TraceRing::new();
        let early = ring.begin(TraceId::new(9), "append", None, 0);
        run(&ring, TraceId::new(1), 0, SLOW);
        let asked = TraceId::new(3).asked();
        let late = run(&ring, asked, 0, 5);
        ring.stage(late, Step::Sent, 6, Fact::None);
        for count in 0..3 * OPERATIONS_MAX as u64 {
            run(&ring, TraceId::new(2), count, SLOW - 1);
        }
        // Its slot is another's by now: the end of the first operation changes nothing.
        assert_eq!(ring.end(early, 5 * SLOW, Outcome::Done), None);
        ring.stage(late, Step::Sent, 7, Fact::None);
        assert!(ring.find(TraceId::new(9), 9).is_empty());
        assert_eq!(ring.slots.borrow().len(), OPERATIONS_MAX);
        let slowest: Vec<_> =
            ring.slowest(3).iter().map(|one| (one.trace, one.took_ns())).collect();
        assert_eq!(slowest, [(TraceId::new(1), SLOW)], "the others were fast enough");
        assert_eq!(ring.find(TraceId::new(1), 9).len(), 1);
        assert_eq!(ring.find(asked, 9)[0].stages.len(), 1, "with the stage after its end");
        assert_eq!(ring.find(TraceId::new(2), usize::MAX).len(), OPERATIONS_MAX);
    }

    #[test]
    fn what_is_in_two_places_is_found_once() {
        let ring = TraceRing::new();
        let trace = TraceId::new(3).asked();
        for _ in 0..3 {
            run(&ring, trace, 0, SLOW);
        }
        assert_eq!(ring.find(trace, 9).len(), 3);
        assert_eq!(ring.find(trace, 2).len(), 2);
    }

    #[test]
    fn slow_ones_give_their_place_up_in_time() {
        let ring = TraceRing::new();
        (0..SLOW_MAX as u64).for_each(|trace| {
            run(&ring, TraceId::new(trace), 0, 4 * SLOW);
        });
        run(&ring, TraceId::new(1000), SLOW, SLOW);
        assert!(ring.slowest(SLOW_MAX).iter().all(|one| one.took_ns() == 4 * SLOW));
        run(&ring, TraceId::new(1001), 2 * SLOW_KEEP_NS, SLOW);
        assert!(ring.slowest(SLOW_MAX).iter().any(|one| one.trace == TraceId::new(1001)));
        ring.set_slow_ns(1);
        run(&ring, TraceId::new(1002), 3 * SLOW_KEEP_NS, 1);
        assert!(ring.slowest(SLOW_MAX).iter().any(|one| one.trace == TraceId::new(1002)));
    }
}
