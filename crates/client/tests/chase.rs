//! Chasing (C14): a writer of 3/2 goes on at once with two replicas, keeps what the third lacks for
//! a while, leaves it when it lacks too much, and ends the chunk soon.

use std::rc::Rc;

use base::{ChunkId, Epoch, ServerId};
use client::writer::{
    Action, ChaseBudget, Event, Fragments, Laid, OpDone, OpError, SendError, SendId, StreamOp,
    Writer, WriterConfig,
};
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaPlace, WriterGrant};
use wire::data::DataError;

const EPOCH: Epoch = Epoch::new(7);
const LEN: u32 = 4000;

pub(super) fn chunk(id: u64, servers: [u32; 3]) -> ChunkPlace {
    ChunkPlace { acks: 2, ..crate::idle::chunk(id, servers) }
}

/// A writer in chunk 1 on servers 1, 2, 3, with a spare on 4, 5, 6, whose replicas answer or not.
pub(super) struct Rig {
    pub(super) writer: Writer,
    pub(super) now: Instant,
    /// Replicas of a chunk whose appends have no answer: they wait here.
    pub(super) silent: Vec<(ChunkId, u8)>,
    pub(super) waiting: Vec<(SendId, u32)>,
    /// No chunkserver is reached.
    unreachable: bool,
    /// What the stream service answers; nothing: it is away.
    masters: bool,
    /// It gives another spare whenever it is asked.
    endless: bool,
    pub(super) spare: Vec<ChunkPlace>,
    /// The last chunk that was given.
    given: u64,
    pub(super) acked: u64,
    len: u64,
    released: u64,
    pub(super) left: Vec<(ChunkId, u8)>,
    /// Servers that masters are to hear of, or that are looked at for that.
    pub(super) reported: Vec<ServerId>,
    pub(super) doubted: Vec<ServerId>,
    pub(super) ops: Vec<(Duration, StreamOp)>,
    pub(super) sent: Vec<SendId>,
    closed: Option<Duration>,
    failed: bool,
    pub(super) start: Instant,
    current: ChunkPlace,
}

impl Rig {
    pub(super) fn new(config: WriterConfig, budget: u64) -> Rig {
        let start = Instant::from_nanos(1_000_000_000);
        let (current, spare) = (chunk(1, [1, 2, 3]), vec![chunk(2, [4, 5, 6])]);
        let grant = WriterGrant {
            epoch: EPOCH,
            len: 0,
            current: Some(current.clone()),
            spares: spare.clone(),
            rights_ms: None,
        };
        let config = WriterConfig { copies: 3, spares: 1, ..config };
        let writer = Writer::new(config, Rc::new(ChaseBudget::new(budget)), grant, start);
        Rig {
            writer: writer.expect("a grant that fits"),
            now: start,
            silent: vec![(ChunkId::new(1), 2)],
            waiting: vec![],
            unreachable: false,
            masters: true,
            endless: false,
            spare,
            given: 2,
            acked: 0,
            len: 0,
            released: 0,
            left: vec![],
            reported: vec![],
            doubted: vec![],
            ops: vec![],
            sent: vec![],
            closed: None,
            failed: false,
            start,
            current,
        }
    }

    fn slow_third() -> Rig {
        Rig::new(WriterConfig::default(), 1 << 30)
    }

    pub(super) fn give(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            self.writer.handle(self.now, event, &mut actions);
            for action in actions {
                self.act(action, &mut events);
            }
            events.reverse();
        }
    }

    fn act(&mut self, action: Action, events: &mut Vec<Event>) {
        match action {
            Action::Send { id, request, .. } => {
                let end = request.offset + request.len;
                self.sent.push(id);
                match self.silent.contains(&(id.chunk, id.replica)) {
                    _ if self.unreachable => {
                        events.push(Event::Sent { id, result: Err(SendError::Unreachable) });
                    }
                    true => self.waiting.push((id, end)),
                    false => events.push(Event::Sent { id, result: Ok(end) }),
                }
            }
            Action::NotifyCommitted { replica, request, .. } => {
                let (chunk, committed) = (request.at.chunk, request.committed);
                events.push(Event::CommittedNotified { chunk, replica, committed, result: Ok(()) });
            }
            Action::Op(op) => {
                self.ops.push((self.now.since(self.start), op.clone()));
                events.push(Event::Op(match op {
                    _ if !self.masters => Err(OpError::Failed("masters are away".to_owned())),
                    StreamOp::Advance { next, .. } => {
                        let at = self.spare.iter().position(|it| it.chunk == next).expect("known");
                        self.current = self.spare.drain(..=at).next_back().expect("found");
                        self.current.base = self.len;
                        Ok(OpDone::Writer(self.grant()))
                    }
                    StreamOp::Extend { .. } => {
                        if self.endless {
                            self.given += 1;
                            self.spare.push(chunk(self.given, [1, 2, 3]));
                        }
                        Ok(OpDone::Writer(self.grant()))
                    }
                    StreamOp::Close { .. } => Ok(OpDone::Closed { len: self.len }),
                }));
            }
            Action::Acked { below, len } => (self.acked, self.len) = (below, len),
            Action::Released { from, below } => self.released += below - from,
            Action::Left { chunk, replica } => self.left.push((chunk, replica)),
            Action::Closed { .. } => self.closed = Some(self.now.since(self.start)),
            Action::Failed(_) => self.failed = true,
            Action::Report { server, .. } => self.reported.push(server),
            Action::Doubt { place, .. } => self.doubted.push(place.server),
            Action::Place { .. } | Action::Trimmed { .. } | Action::Blocked { .. } => {}
        }
    }

    pub(super) fn grant(&self) -> WriterGrant {
        let (current, spares) = (Some(self.current.clone()), self.spare.clone());
        WriterGrant { epoch: EPOCH, len: self.len, current, spares, rights_ms: None }
    }

    pub(super) fn append(&mut self, count: u64) {
        (0..count).for_each(|_| self.give(Event::plain_append(LEN)));
    }

    /// Lets time pass, in steps of the writer's deadlines.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.writer.deadline().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.give(Event::Tick);
        }
        self.now = end;
    }

    /// Answers all that waits for an answer.
    fn answer(&mut self, result: impl Fn(u32) -> Result<u32, SendError>) {
        for (id, end) in std::mem::take(&mut self.waiting) {
            self.give(Event::Sent { id, result: result(end) });
        }
    }

    pub(super) fn advances(&self) -> Vec<Duration> {
        let advances = self.ops.iter().filter(|(_, op)| matches!(op, StreamOp::Advance { .. }));
        advances.map(|(at, _)| *at).collect()
    }
}

#[test]
fn late_replica_holds_up_no_append_and_gets_its_bytes() {
    let mut rig = Rig::slow_third();
    rig.append(40);
    assert_eq!((rig.acked, rig.released, rig.left.len()), (40, 0, 0), "two of three have them");
    rig.pass(Duration::from_millis(100));
    rig.answer(Ok);
    assert_eq!((rig.released, rig.left.len()), (40, 0), "the third has them too");
    rig.silent.clear();
    rig.pass(Duration::from_secs(3));
    assert_eq!((rig.left.len(), rig.advances().len()), (0, 0), "and is followed on");
}

#[test]
fn replica_that_owes_too_many_bytes_is_left() {
    let chase_bytes = 10 * 4096;
    let mut rig = Rig::new(WriterConfig { chase_bytes, ..WriterConfig::default() }, 1 << 30);
    rig.append(10);
    assert_eq!((rig.released, rig.left.len()), (0, 0));
    rig.append(1);
    assert_eq!((rig.acked, rig.released), (11, 11), "nothing is kept for a replica that was left");
    assert_eq!(rig.left, [(ChunkId::new(1), 2)]);
}

#[test]
fn replicas_are_left_when_all_writers_owe_too_much_together() {
    let budget = Rc::new(ChaseBudget::new(10 * 4096));
    let mut rigs = [Rig::slow_third(), Rig::slow_third()];
    for rig in &mut rigs {
        let grant = rig.grant();
        let config = WriterConfig { copies: 3, spares: 1, ..WriterConfig::default() };
        rig.writer = Writer::new(config, budget.clone(), grant, rig.start).expect("it fits");
    }
    let [first, second] = &mut rigs;
    first.append(6);
    second.append(5);
    assert_eq!((first.left.len(), second.left.len()), (0, 1), "the one that finds no room");
    assert_eq!(budget.bytes(), 6 * 4096);
    drop(rigs);
    assert_eq!(budget.bytes(), 0, "writers that end owe nothing");
}

#[test]
fn replica_that_owes_for_half_a_second_is_left() {
    let config = WriterConfig { replica_timeout: Duration::from_secs(60), ..Default::default() };
    let mut rig = Rig::new(config, 1 << 30);
    rig.append(1);
    rig.pass(Duration::from_millis(499));
    assert!(rig.left.is_empty());
    rig.pass(Duration::from_millis(2));
    assert_eq!((rig.left.len(), rig.released), (1, 1));
}

#[test]
fn answers_of_a_left_replica_acknowledge_nothing() {
    let mut rig = Rig::slow_third();
    rig.append(1);
    rig.masters = false;
    rig.pass(Duration::from_millis(600));
    assert_eq!(rig.left.len(), 1);
    rig.silent.push((ChunkId::new(1), 1));
    rig.append(1);
    assert_eq!(rig.acked, 1, "the first replica alone has the second append");
    let late = SendId { seq: 1, ..rig.waiting[0].0 };
    assert_eq!(late.replica, 2);
    rig.give(Event::Sent { id: late, result: Ok(2 * LEN) });
    assert_eq!(rig.acked, 1);
}

#[test]
fn thin_chunk_ends_soon_after_masters_have_answered() {
    let mut rig = Rig::slow_third();
    rig.append(3);
    rig.masters = false;
    rig.pass(Duration::from_secs(20));
    assert!(rig.advances().is_empty(), "masters are away: the writer goes on with two");
    rig.append(3);
    assert_eq!(rig.acked, 6);
    rig.masters = true;
    let back = rig.now.since(rig.start);
    rig.pass(Duration::from_secs(3));
    let [at] = rig.advances()[..] else { panic!("{:?}", rig.ops) };
    assert!(at - back <= Duration::from_millis(1100), "{at:?} after {back:?}");
    let mut asked = rig.ops.iter().filter_map(|(_, op)| match op {
        StreamOp::Extend { avoid, .. } => Some(avoid.contains(&ServerId::new(3))),
        _ => None,
    });
    assert!(asked.next_back().expect("it asked"), "for spares without the server that was left");
}

#[test]
fn idle_writer_ends_its_thin_chunk_too() {
    let mut rig = Rig::slow_third();
    rig.append(1);
    rig.pass(Duration::from_secs(3));
    let [at] = rig.advances()[..] else { panic!("{:?}", rig.ops) };
    let since = at - Duration::from_millis(500);
    assert!(Duration::from_millis(200) <= since && since <= Duration::from_millis(1001), "{at:?}");
    assert!(!rig.failed);
}

/// A writer whose first chunk is full and has ended, with two appends that the third lacks.
fn indebted() -> Rig {
    let config = WriterConfig {
        chunk_len_max: 2 * LEN,
        replica_timeout: Duration::from_secs(60),
        ..WriterConfig::default()
    };
    let mut rig = Rig::new(config, 1 << 30);
    rig.append(3);
    assert_eq!((rig.acked, rig.advances().len()), (3, 1));
    assert_eq!(rig.released, 1, "the third append, of the next chunk, is on all of its replicas");
    rig
}

#[test]
fn what_an_ended_chunk_owes_arrives() {
    let mut rig = indebted();
    rig.answer(Ok);
    assert_eq!((rig.released, rig.left.len()), (3, 0));
}

#[test]
fn what_an_ended_chunk_owes_is_sent_again() {
    let mut rig = indebted();
    rig.answer(|_| Err(SendError::Silent));
    let before = rig.sent.len();
    rig.silent.clear();
    rig.pass(Duration::from_millis(100));
    let again: Vec<_> = rig.sent[before..].iter().map(|id| (id.chunk.get(), id.seq)).collect();
    assert_eq!(again, [(1, 0), (1, 1)]);
    assert_eq!((rig.released, rig.left.len()), (3, 0));
}

/// The pause before the next try begins in the chunk, and ends behind it.
#[test]
fn what_waits_to_be_sent_again_when_its_chunk_ends_is_sent_again() {
    let config = WriterConfig {
        chunk_len_max: 2 * LEN,
        replica_timeout: Duration::from_secs(60),
        ..WriterConfig::default()
    };
    let mut rig = Rig::new(config, 1 << 30);
    rig.append(2);
    rig.answer(|_| Err(SendError::Silent));
    rig.silent.clear();
    let before = rig.sent.len();
    rig.append(1);
    assert_eq!(rig.advances().len(), 1);
    rig.pass(Duration::from_millis(200));
    let again = rig.sent[before..].iter().filter(|id| id.chunk == ChunkId::new(1));
    assert_eq!(again.map(|id| id.seq).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((rig.released, rig.left.len()), (3, 0));
}

/// Each chunk that the append goes on in fails at once, and masters give another one.
#[test]
fn append_that_reaches_no_chunkserver_fails_within_its_budget() {
    let mut rig = Rig::slow_third();
    (rig.unreachable, rig.endless) = (true, true);
    rig.append(1);
    let budget = WriterConfig::default().stall_budget;
    rig.pass(budget - Duration::from_secs(1));
    assert!(!rig.failed && rig.advances().len() > 3, "{:?}", rig.ops);
    rig.pass(Duration::from_secs(2));
    assert!(rig.failed, "it goes on for ever: {} chunks", rig.advances().len());
}

#[test]
fn seal_of_an_ended_chunk_ends_the_debt_and_not_the_writer() {
    let mut rig = indebted();
    rig.answer(|_| Err(SendError::Data(DataError::Sealed { len: 2 * LEN })));
    assert_eq!((rig.released, rig.left.len(), rig.failed), (3, 1, false));
    rig.append(1);
    assert_eq!(rig.acked, 4);
}

#[test]
fn debt_is_over_after_half_a_second() {
    let mut rig = indebted();
    rig.pass(Duration::from_millis(501));
    assert_eq!((rig.released, rig.left.len()), (3, 1));
}

#[test]
fn bytes_are_kept_for_a_late_replica_when_another_has_failed() {
    let mut rig = Rig::slow_third();
    rig.append(2);
    // The second replica's disk fails with the next append: the chunk is followed by two, of which
    // one lacks bytes that only the first is known to have.
    rig.silent.push((ChunkId::new(1), 1));
    rig.append(1);
    let at = rig.waiting.iter().position(|(id, _)| id.replica == 1).expect("it was sent");
    let (id, _) = rig.waiting.remove(at);
    rig.give(Event::Sent { id, result: Err(SendError::Data(DataError::DiskFailed)) });
    assert_eq!(rig.left, [(ChunkId::new(1), 1)]);
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.acked, 3, "it goes on in another chunk");
    let kept = 3 - rig.released;
    assert_eq!(kept, 2, "what was acknowledged with the failed disk is kept");
    rig.pass(Duration::from_secs(12));
    assert_eq!(rig.released, 3, "for ten seconds");
}

#[test]
fn bytes_are_kept_for_a_late_replica_though_the_failed_server_is_granted_again() {
    let mut rig = Rig::slow_third();
    rig.append(2);
    rig.silent.push((ChunkId::new(1), 1));
    rig.append(1);
    // Spares are on the same three servers: each has other disks.
    rig.endless = true;
    let at = rig.waiting.iter().position(|(id, _)| id.replica == 1).expect("it was sent");
    let (id, _) = rig.waiting.remove(at);
    rig.give(Event::Sent { id, result: Err(SendError::Data(DataError::DiskFailed)) });
    assert_eq!(rig.left, [(ChunkId::new(1), 1)]);
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.acked, 3, "it goes on in another chunk");
    assert_eq!(3 - rig.released, 2, "what was acknowledged with the failed disk is kept");
    rig.pass(Duration::from_secs(12));
    assert_eq!(rig.released, 3, "for ten seconds");
}

#[test]
fn end_of_a_writer_waits_for_late_copies() {
    let mut rig = Rig::slow_third();
    rig.append(1);
    rig.give(Event::Close { finish: false });
    assert_eq!(rig.closed, None);
    rig.pass(Duration::from_millis(5));
    rig.answer(Ok);
    assert_eq!(rig.closed, Some(Duration::from_millis(5)));
    let mut rig = Rig::slow_third();
    rig.append(1);
    rig.give(Event::Close { finish: false });
    rig.pass(Duration::from_millis(100));
    assert_eq!(rig.closed, Some(Duration::from_millis(20)), "for 20 ms");
}

/// A writer in chunk 1, all of whose replicas answer, with the spare given.
fn healthy(spare: ChunkPlace) -> Rig {
    let mut rig = Rig::new(WriterConfig::default(), 1 << 30);
    rig.silent.clear();
    rig.spare = vec![spare];
    rig.append(1);
    rig
}

const PUSHED: ServerId = ServerId::new(3);
/// Time in which a chunk with a replica on a server that masters do not reach has ended.
const LEFT_WITHIN: Duration = Duration::from_secs(25);

#[test]
fn whole_chunk_on_a_server_that_masters_do_not_reach_ends_though_it_answers() {
    let mut rig = healthy(chunk(2, [4, 5, 6]));
    rig.writer.set_pushed(vec![PUSHED]);
    rig.give(Event::Tick);
    // For some seconds nothing happens: it may be reached again.
    rig.pass(Duration::from_secs(3));
    assert!(rig.advances().is_empty() && rig.left.is_empty());
    rig.pass(LEFT_WITHIN);
    assert_eq!((rig.advances().len(), rig.left.len(), rig.failed), (1, 0, false));
    let named = rig
        .ops
        .iter()
        .any(|(_, op)| matches!(op, StreamOp::Extend { avoid, .. } if avoid.contains(&PUSHED)));
    assert!(named, "spares are asked for without that server: {:?}", rig.ops);
    rig.pass(Duration::from_secs(300));
    assert_eq!(rig.advances().len(), 1, "the next chunk is on others");
}

#[test]
fn chunk_stays_when_masters_reach_its_server_again_soon() {
    let mut rig = healthy(chunk(2, [4, 5, 6]));
    for _ in 0..20 {
        rig.writer.set_pushed(vec![PUSHED]);
        rig.give(Event::Tick);
        rig.pass(Duration::from_secs(3));
        rig.writer.set_pushed(vec![]);
        rig.give(Event::Tick);
        rig.pass(Duration::from_secs(3));
    }
    assert!(rig.advances().is_empty());
    // An open chunk without a replica there is not concerned.
    rig.writer.set_pushed(vec![ServerId::new(9)]);
    rig.pass(Duration::from_secs(300));
    assert!(rig.advances().is_empty());
}

#[test]
fn whole_chunk_is_not_left_for_one_with_fewer_copies_or_on_the_same_server() {
    let short = ChunkPlace { acks: 2, ..chunk(2, [4, 5, 6]) };
    let short = ChunkPlace { replicas: short.replicas[..2].to_vec(), ..short };
    for spare in [short, chunk(2, [4, 3, 6])] {
        let mut rig = healthy(spare);
        rig.writer.set_pushed(vec![PUSHED]);
        rig.give(Event::Tick);
        rig.pass(Duration::from_secs(120));
        assert!(rig.advances().is_empty());
        let asked = rig.ops.len();
        assert!((5..=35).contains(&asked), "it asks {asked} times in two minutes");
        // Others have come.
        rig.spare = vec![chunk(3, [4, 5, 6])];
        rig.pass(Duration::from_secs(10));
        assert_eq!((rig.advances().len(), rig.left.len()), (1, 0));
    }
}

/// A replica that is left makes the chunk end as soon as without a push.
#[test]
fn thin_chunk_ends_soon_though_masters_do_not_reach_its_server_either() {
    let mut rig = Rig::slow_third();
    rig.writer.set_pushed(vec![PUSHED]);
    rig.append(1);
    rig.pass(Duration::from_secs(3));
    assert_eq!((rig.left.len(), rig.advances().len()), (1, 1));
}

/// What is owed to the replica of a fragment are its own cells: one of six.
#[test]
fn late_fragment_owes_its_own_cells_only() {
    let (start, six) = (Instant::from_nanos(1_000_000_000), 6 * 4096);
    let base = chunk(1, [1, 2, 3]);
    let replica = |fragment: u8| ReplicaPlace {
        server: ServerId::new(fragment.into()),
        fragment,
        ..base.replicas[0]
    };
    let replicas = (0..6).map(replica).collect();
    let current = ChunkPlace { replicas, acks: 5, copies: 6, data: 4, ..base };
    let grant = WriterGrant {
        epoch: EPOCH,
        len: 0,
        current: Some(current),
        spares: vec![],
        rights_ms: None,
    };
    let config = WriterConfig { chase_bytes: 10 * 4096, spares: 0, ..WriterConfig::default() };
    let budget = Rc::new(ChaseBudget::new(1 << 30));
    let mut writer = Writer::new(config, budget.clone(), grant, start).expect("a grant that fits");
    let laid = Laid::Coded(Fragments { k: 4, p: 2 });
    let (mut trimmed, mut left) = (Vec::new(), 0);
    for seq in 0..11 {
        let mut events = vec![Event::Append { len: LEN, bytes: six, laid }];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            writer.handle(start, event, &mut actions);
            for action in actions {
                match action {
                    Action::Send { id, request, fragment, .. } if fragment != 5 => {
                        let end = request.offset + request.len;
                        events.push(Event::Sent { id, result: Ok(end) });
                    }
                    Action::Trimmed { seq, keep } => trimmed.push((seq, keep)),
                    Action::Left { .. } => left += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(trimmed.last(), Some(&(seq, 1 << 5)), "the late one's cell is kept");
        assert_eq!(left, usize::from(seq == 10), "ten cells are within the budget: {seq}");
    }
    assert_eq!(budget.bytes(), 0, "nothing is kept for a replica that was left");
}
