//! `chase-model` (`protocols.md` 8): every order of the steps of a writer, its three replicas and a
//! recovery, for a few appends. The writer is the client's state machine and the sealed length the
//! masters' rule; replicas and the stream service are as small as they can be, and there is no network.
//!
//! A step is chosen, tried, and taken back by running the others again from the start: the writer is
//! not copied. Two orders that lead to the same state are followed once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, ServerId, Set};
use client::writer::{
    Action, ChaseBudget, Event, OpDone, OpError, SendError, SendId, StreamOp, Writer, WriterConfig,
};
use master_stream::sealed_lens;
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaPlace, WriterGrant};
use wire::data::DataError;

const EPOCH: Epoch = Epoch::new(7);
const COPIES: usize = 3;
const ACKS: usize = 2;
/// Servers: those of the first chunk, and two more.
const SERVERS: usize = 5;
/// The slow one.
const SLOW: usize = 2;
const LEN: u32 = 100;
/// Longer than a replica is chased, a thin chunk waits for its end, and an ended one is owed.
const LONG: Duration = Duration::from_secs(11);

/// Faults that may happen in one order.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    appends: u64,
    /// Requests or answers that are lost.
    losses: u32,
    /// Pauses of [`LONG`].
    waits: u32,
    /// New leaders amid the recovery.
    leaders: u32,
    /// A disk is destroyed, or loses its last write silently.
    harm: Harm,
    /// Masters recover the file at some moment.
    recovers: bool,
    /// All appends come before the first step.
    burst: bool,
    /// Requests and answers of all servers but the third arrive at once.
    one_is_slow: bool,
    /// Appends that a chunk has room for.
    chunk: u32,
    /// The writer's host dies then; otherwise the writer goes on beside the recovery.
    dies: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harm {
    None,
    Destroyed,
    LastWrite,
}

/// An error in a rule, which an order must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// The writer acknowledges what one replica has.
    AckBelowM,
    /// Recovery believes one vote less than it needs, as if the record had shrunk.
    RecordShrinks,
    /// The length is that of the vote of the rank, not the longest.
    StatisticIsLength,
    /// A copy makes a replica that has no vote of one that was fenced before its creation, and the
    /// next leader counts it no more.
    FillRepairing,
}

type Channel = (ChunkId, usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Append,
    Close,
    /// The next request of a channel is served.
    Serve(Channel),
    LoseRequest(Channel),
    /// The next answer of a channel arrives.
    Answer(Channel),
    LoseAnswer(Channel),
    /// The stream service serves the operation.
    Operate,
    OperationAnswered,
    Wait,
    Destroy(usize),
    LoseLastWrite(usize),
    /// Masters take the writer for dead, or it is.
    Recover,
    Fence(usize),
    Fill(usize),
    NewLeader,
    Seal,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    seq: u64,
    offset: u32,
}

#[derive(Clone, Default, Debug)]
struct Replica {
    records: Vec<Record>,
    fenced: bool,
    /// Filled by repair under [`Planted::FillRepairing`].
    voteless: bool,
}

impl Replica {
    fn len(&self) -> u32 {
        self.records.len() as u32 * LEN
    }
}

#[derive(Clone, Debug)]
struct Chunk {
    id: ChunkId,
    base: u64,
    servers: Vec<usize>,
    sealed: Option<u32>,
}

/// A recovery of the current chunk.
#[derive(Default, Debug)]
struct Recovery {
    votes: BTreeMap<usize, u32>,
    leaders: u32,
}

/// A request on its way: the append, its offset, and whether it may make the replica.
#[derive(Debug)]
struct Request {
    id: SendId,
    record: Record,
    create: bool,
}

/// The end of a sending, on its way to the writer.
type Answer = (SendId, Result<u32, SendError>);

/// All but the writer.
#[derive(Default, Debug)]
struct Peers {
    requests: BTreeMap<Channel, VecDeque<Request>>,
    answers: BTreeMap<Channel, VecDeque<Answer>>,
    op: Option<StreamOp>,
    op_answer: Option<Result<OpDone, OpError>>,
    replicas: BTreeMap<Channel, Replica>,
    /// What each replica has ever had durable: (chunk, server, append).
    held: BTreeSet<(ChunkId, usize, u64)>,
    /// The chunk that is current at the stream service is the last.
    stream: Vec<Chunk>,
    spares: Vec<Chunk>,
    next_chunk: u64,
    recovery: Option<Recovery>,
    recovered: bool,
    destroyed: Option<usize>,
    harmed: bool,
    /// Chunk and offset of each append, as laid out last.
    placed: BTreeMap<u64, (ChunkId, u32)>,
    acked: u64,
    left: BTreeSet<Channel>,
    /// Replicas that were sent something.
    followed: BTreeSet<Channel>,
    over: bool,
    closing: bool,
    appended: u64,
    losses: u32,
    waits: u32,
}

struct World {
    bounds: Bounds,
    planted: Option<Planted>,
    writer: Option<Writer>,
    now: Instant,
    peers: Peers,
}

/// Rare states that were reached.
type Marks = BTreeMap<&'static str, u64>;

fn index_of(addr: std::net::SocketAddr) -> usize {
    let std::net::IpAddr::V4(ip) = addr.ip() else { unreachable!("as placed") };
    usize::from(ip.octets()[3])
}

impl World {
    fn new(bounds: Bounds, planted: Option<Planted>) -> World {
        let now = Instant::from_nanos(1_000_000_000);
        let mut peers = Peers { next_chunk: 1, ..Peers::default() };
        let first = peers.allocate(&[]);
        peers.stream.push(first);
        peers.top_up(1, &[]);
        let mut world = World { bounds, planted, writer: None, now, peers };
        let config = WriterConfig {
            copies: COPIES as u8,
            chunk_len_max: bounds.chunk * LEN,
            spares: 1,
            // Nothing but what is chased takes time here.
            commit_idle: Duration::from_secs(1_000_000),
            stall_budget: Duration::from_secs(1_000_000),
            ..WriterConfig::default()
        };
        let (grant, budget) = (world.grant(true), Rc::new(ChaseBudget::new(1 << 30)));
        world.writer = Some(Writer::new(config, budget, grant, now).expect("a grant"));
        if bounds.burst {
            for _ in 0..bounds.appends {
                world.take(Step::Append, &mut Marks::new()).expect("nothing is acknowledged");
            }
        }
        world
    }

    fn grant(&self, current: bool) -> WriterGrant {
        let place = |chunk: &Chunk| ChunkPlace {
            chunk: chunk.id,
            epoch: EPOCH,
            base: chunk.base,
            sealed: None,
            replicas: chunk.servers.iter().map(|&server| replica_place(server)).collect(),
            acks: if self.planted == Some(Planted::AckBelowM) { 1 } else { ACKS as u8 },
            token: [1; 16],
            copies: chunk.servers.len() as u8,
            data: 1,
            compression: None,
        };
        let tail = self.peers.tail();
        WriterGrant {
            epoch: EPOCH,
            len: tail.base,
            current: current.then(|| place(tail)),
            spares: self.peers.spares.iter().map(place).collect(),
        }
    }

    /// The steps that may come next.
    fn steps(&self) -> Vec<Step> {
        let (peers, bounds) = (&self.peers, &self.bounds);
        let mut steps = Vec::new();
        let writes = self.writer.is_some() && !peers.over;
        if writes && !peers.closing {
            steps.push(if peers.appended < bounds.appends { Step::Append } else { Step::Close });
        }
        for (&channel, requests) in &peers.requests {
            if !requests.is_empty() {
                steps.push(Step::Serve(channel));
                if peers.losses < bounds.losses {
                    steps.push(Step::LoseRequest(channel));
                }
            }
        }
        for (&channel, answers) in &peers.answers {
            if writes && !answers.is_empty() {
                steps.push(Step::Answer(channel));
                if peers.losses < bounds.losses && answers[0].1.is_ok() {
                    steps.push(Step::LoseAnswer(channel));
                }
            }
        }
        if peers.op.is_some() {
            steps.push(Step::Operate);
        }
        if writes && peers.op_answer.is_some() {
            steps.push(Step::OperationAnswered);
        }
        let due = self.writer.as_ref().and_then(Writer::deadline);
        if writes && peers.waits < bounds.waits && due.is_some() {
            steps.push(Step::Wait);
        }
        if !peers.harmed && bounds.harm != Harm::None && peers.appended > 0 {
            for server in 0..COPIES {
                match bounds.harm {
                    Harm::Destroyed => steps.push(Step::Destroy(server)),
                    _ if peers.has_records(server) => steps.push(Step::LoseLastWrite(server)),
                    _ => {}
                }
            }
        }
        match &peers.recovery {
            None if bounds.recovers && peers.appended > 0 && !peers.recovered => {
                steps.push(Step::Recover)
            }
            Some(recovery) => self.recovery_steps(recovery, &mut steps),
            None => {}
        }
        steps
    }

    fn recovery_steps(&self, recovery: &Recovery, steps: &mut Vec<Step>) {
        let peers = &self.peers;
        let tail = peers.tail();
        let alive = tail.servers.iter().copied().filter(|&server| peers.is_alive(server));
        let alive: Vec<_> = alive.collect();
        let votes = |server: &usize| recovery.votes.contains_key(server);
        let is_voteless = |server: &usize| {
            peers.replicas.get(&(tail.id, *server)).is_some_and(|replica| replica.voteless)
        };
        steps.extend(
            alive.iter().filter(|it| !votes(it) && !is_voteless(it)).map(|&it| Step::Fence(it)),
        );
        if recovery.leaders < self.bounds.leaders && !recovery.votes.is_empty() {
            steps.push(Step::NewLeader);
        }
        let Some(len) = self.seal_len(recovery) else { return };
        let holds = |server: &usize| {
            peers.replicas.get(&(tail.id, *server)).is_some_and(|replica| replica.len() >= len)
        };
        let holders = alive.iter().filter(|it| holds(it)).count();
        if holders >= ACKS.min(alive.len()) {
            steps.push(Step::Seal);
        }
        let fenced = |server: &usize| {
            peers.replicas.get(&(tail.id, *server)).is_some_and(|replica| replica.fenced)
        };
        let short = alive.iter().filter(|it| fenced(it) && !holds(it));
        steps.extend(short.map(|&server| Step::Fill(server)));
    }

    /// The length at which the current chunk may be sealed, if there are votes enough.
    fn seal_len(&self, recovery: &Recovery) -> Option<u32> {
        let votes: Vec<u32> = recovery.votes.values().copied().collect();
        let tail = self.peers.tail();
        let all = tail.servers.iter().filter(|&&server| self.peers.is_alive(server)).count();
        // A write that was lost silently costs nothing while all answer.
        if self.bounds.harm == Harm::LastWrite && votes.len() < all {
            return None;
        }
        let acks = if self.planted == Some(Planted::RecordShrinks) { COPIES } else { ACKS };
        let lens = sealed_lens(COPIES, acks, &votes)?;
        if self.planted == Some(Planted::StatisticIsLength) {
            return Some(*lens.start());
        }
        // What no replica has any more, above the vote of the rank, is given up.
        let voters =
            recovery.votes.keys().filter_map(|it| self.peers.replicas.get(&(tail.id, *it)));
        let there = voters.map(Replica::len).max().unwrap_or(0);
        Some(there.min(*lens.end()).max(*lens.start()))
    }

    fn take(&mut self, step: Step, marks: &mut Marks) -> Result<(), String> {
        match step {
            Step::Append => {
                self.peers.appended += 1;
                self.give(Event::plain_append(LEN), marks)?;
            }
            Step::Close => {
                self.peers.closing = true;
                self.give(Event::Close { finish: false }, marks)?;
            }
            Step::Serve(channel) => {
                let request = self.peers.next_request(channel);
                let id = request.id;
                let result = self.peers.serve(channel, request, marks)?;
                self.peers.answers.entry(channel).or_default().push_back((id, result));
            }
            Step::LoseRequest(channel) => {
                self.peers.losses += 1;
                let id = self.peers.next_request(channel).id;
                let answers = self.peers.answers.entry(channel).or_default();
                answers.push_back((id, Err(SendError::Silent)));
            }
            Step::Answer(channel) | Step::LoseAnswer(channel) => {
                let answers = self.peers.answers.get_mut(&channel).expect("chosen");
                let (id, mut result) = answers.pop_front().expect("chosen");
                if matches!(step, Step::LoseAnswer(_)) {
                    self.peers.losses += 1;
                    result = Err(SendError::Silent);
                }
                self.give(Event::Sent { id, result }, marks)?;
            }
            Step::Operate => {
                let op = self.peers.op.take().expect("chosen");
                let answer = self.operate(op, marks)?;
                self.peers.op_answer = Some(answer);
            }
            Step::OperationAnswered => {
                let answer = self.peers.op_answer.take().expect("chosen");
                self.give(Event::Op(answer), marks)?;
            }
            Step::Wait => {
                self.peers.waits += 1;
                let end = self.now + LONG;
                // What is due in this time happens in its order.
                while let Some(due) = self.writer.as_ref().and_then(Writer::deadline)
                    && due <= end
                {
                    self.now = self.now.max(due);
                    self.give(Event::Tick, marks)?;
                }
                self.now = end;
            }
            Step::Destroy(server) => {
                self.peers.harmed = true;
                self.peers.destroyed = Some(server);
                self.peers.replicas.retain(|channel, _| channel.1 != server);
                // Its bytes can not be had: the next attempt counts without it.
                if let Some(recovery) = &mut self.peers.recovery {
                    recovery.votes.remove(&server);
                }
            }
            Step::LoseLastWrite(server) => {
                self.peers.harmed = true;
                let replicas = self.peers.replicas.iter_mut().rev();
                let mut of_server = replicas.filter(|(channel, _)| channel.1 == server);
                let last = of_server.find(|(_, replica)| !replica.records.is_empty());
                last.expect("chosen").1.records.pop();
            }
            Step::Recover => {
                if self.bounds.dies {
                    self.writer = None;
                    (self.peers.op, self.peers.op_answer) = (None, None);
                }
                self.peers.recovery = Some(Recovery::default());
            }
            Step::Fence(server) => self.fence(server, marks),
            Step::Fill(server) => self.fill(server, marks)?,
            Step::NewLeader => {
                let recovery = self.peers.recovery.as_mut().expect("chosen");
                recovery.leaders += 1;
                recovery.votes.clear();
                *marks.entry("a new leader amid a recovery").or_default() += 1;
            }
            Step::Seal => self.seal(marks)?,
        }
        if self.bounds.one_is_slow {
            self.run_fast(marks)?;
        }
        self.check()
    }

    /// Lets all messages of the servers that are not slow arrive.
    fn run_fast(&mut self, marks: &mut Marks) -> Result<(), String> {
        let fast = |channel: &Channel| channel.1 != SLOW;
        loop {
            let requests =
                self.peers.requests.iter().filter(|(it, queue)| fast(it) && !queue.is_empty());
            let next = requests.map(|(&channel, _)| channel).next();
            if let Some(channel) = next {
                let request = self.peers.next_request(channel);
                let id = request.id;
                let result = self.peers.serve(channel, request, marks)?;
                self.peers.answers.entry(channel).or_default().push_back((id, result));
                continue;
            }
            let answers =
                self.peers.answers.iter().filter(|(it, queue)| fast(it) && !queue.is_empty());
            let next = answers.map(|(&channel, _)| channel).next();
            let Some(channel) = next.filter(|_| self.writer.is_some() && !self.peers.over) else {
                return Ok(());
            };
            let answers = self.peers.answers.get_mut(&channel).expect("it has one");
            let (id, result) = answers.pop_front().expect("it has one");
            self.give(Event::Sent { id, result }, marks)?;
        }
    }

    fn fence(&mut self, server: usize, marks: &mut Marks) {
        let chunk = self.peers.tail().id;
        let replica = self.peers.replicas.entry((chunk, server)).or_insert_with(|| {
            *marks.entry("a fence before the creation").or_default() += 1;
            Replica::default()
        });
        replica.fenced = true;
        let len = replica.len();
        let recovery = self.peers.recovery.as_mut().expect("chosen");
        recovery.votes.insert(server, len);
    }

    fn fill(&mut self, server: usize, marks: &mut Marks) -> Result<(), String> {
        let recovery = self.peers.recovery.as_ref().expect("chosen");
        let len = self.seal_len(recovery).expect("chosen");
        let peers = &mut self.peers;
        let tail = peers.tail().clone();
        let source = tail.servers.iter().filter_map(|it| peers.replicas.get(&(tail.id, *it)));
        let source = source.max_by_key(|replica| replica.len()).expect("one has votes").clone();
        let recovery = peers.recovery.as_mut().expect("chosen");
        let replica = peers.replicas.get_mut(&(tail.id, server)).expect("it is fenced");
        if replica.records.is_empty() {
            *marks.entry("a tombstone is filled").or_default() += 1;
            replica.voteless = self.planted == Some(Planted::FillRepairing);
        }
        let count = (len / LEN) as usize;
        if !source.records.starts_with(&replica.records) || source.records.len() < count {
            return Err(format!("replicas differ: {source:?}, {replica:?}"));
        }
        replica.records = source.records[..count].to_vec();
        recovery.votes.entry(server).and_modify(|vote| *vote = len);
        for record in &source.records[..count] {
            peers.held.insert((tail.id, server, record.seq));
        }
        Ok(())
    }

    fn seal(&mut self, marks: &mut Marks) -> Result<(), String> {
        let recovery = self.peers.recovery.take().expect("chosen");
        let len = self.seal_len(&recovery).expect("chosen");
        let peers = &mut self.peers;
        let acked = peers.acked_in(peers.tail().id);
        if len < acked {
            return Err(format!("sealed at {len}, {acked} bytes are acknowledged"));
        }
        if len > acked {
            *marks.entry("more is sealed than was acknowledged").or_default() += 1;
        }
        peers.recovered = true;
        peers.stream.last_mut().expect("a chunk").sealed = Some(len);
        Ok(())
    }

    fn operate(
        &mut self,
        op: StreamOp,
        marks: &mut Marks,
    ) -> Result<Result<OpDone, OpError>, String> {
        // A recovery begins with a new epoch.
        if self.peers.recovery.is_some() || self.peers.recovered {
            *marks.entry("an operation of a writer that was taken for dead").or_default() += 1;
            return Ok(Err(OpError::Fenced));
        }
        let peers = &mut self.peers;
        match op {
            StreamOp::Advance { sealed, len, next, avoid, spares, .. } => {
                let tail = peers.tail().clone();
                let acked = peers.acked_in(sealed);
                if (tail.id, len) != (sealed, acked) {
                    return Err(format!("{sealed} ends at {len}, {acked} are acknowledged"));
                }
                let Some(at) = peers.spares.iter().position(|spare| spare.id == next) else {
                    return Ok(Err(OpError::Stale));
                };
                let is_left = |&server: &usize| peers.left.contains(&(tail.id, server));
                if tail.servers.iter().any(is_left) {
                    *marks.entry("a thin chunk ends").or_default() += 1;
                }
                if tail.servers.iter().any(|it| !is_left(it) && peers.lacks(tail.id, *it)) {
                    *marks.entry("a chunk ends that owes something").or_default() += 1;
                }
                let mut passed: Vec<_> = peers.spares.drain(..=at).collect();
                let mut successor = passed.pop().expect("found");
                successor.base = tail.base + u64::from(len);
                peers.stream.last_mut().expect("a chunk").sealed = Some(len);
                peers.stream.push(successor);
                peers.change_spares(&avoid, spares);
                Ok(Ok(OpDone::Writer(self.grant(true))))
            }
            StreamOp::Extend { avoid, spares, .. } => {
                peers.change_spares(&avoid, spares);
                Ok(Ok(OpDone::Writer(self.grant(false))))
            }
            StreamOp::Close { sealed, .. } => {
                let (chunk, len) = sealed.ok_or("closed without a chunk")?;
                let tail = peers.tail();
                if (chunk, len) != (tail.id, peers.acked_in(tail.id)) {
                    return Err(format!("{chunk} is closed at {len}"));
                }
                let end = tail.base + u64::from(len);
                peers.stream.last_mut().expect("a chunk").sealed = Some(len);
                peers.recovered = true;
                Ok(Ok(OpDone::Closed { len: end }))
            }
        }
    }

    fn give(&mut self, event: Event, marks: &mut Marks) -> Result<(), String> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            let writer = self.writer.as_mut().expect("it lives");
            writer.handle(self.now, event, &mut actions);
            for action in actions {
                self.act(action, &mut events, marks)?;
            }
        }
        Ok(())
    }

    fn act(
        &mut self,
        action: Action,
        events: &mut VecDeque<Event>,
        marks: &mut Marks,
    ) -> Result<(), String> {
        let peers = &mut self.peers;
        match action {
            Action::Place { seq, at, .. } => {
                if seq < peers.acked {
                    return Err(format!("acknowledged append {seq} is moved"));
                }
                peers.placed.insert(seq, (at.chunk, at.offset));
            }
            Action::Send { id, to, request, .. } => {
                let channel = (id.chunk, index_of(to));
                if peers.left.contains(&channel) {
                    return Err(format!("{id:?} is sent to a replica that was left"));
                }
                peers.followed.insert(channel);
                let record = Record { seq: id.seq, offset: request.offset };
                let request = Request { id, record, create: request.create };
                peers.requests.entry(channel).or_default().push_back(request);
            }
            Action::NotifyCommitted { replica, to, request, .. } => {
                let (chunk, committed) = (request.at.chunk, request.committed);
                let held = peers.replicas.get(&(chunk, index_of(to)));
                let result = match held {
                    None => Err(SendError::Silent),
                    Some(it) if it.fenced => {
                        Err(SendError::Data(DataError::Fenced { epoch: EPOCH.next() }))
                    }
                    Some(_) => Ok(()),
                };
                events.push_back(Event::CommittedNotified { chunk, replica, committed, result });
            }
            Action::Op(op) => {
                peers.check_named(&op, marks)?;
                peers.op = Some(op);
            }
            Action::Acked { below, .. } => {
                for seq in peers.acked..below {
                    peers.check_acked(seq, marks)?;
                }
                peers.acked = below;
            }
            Action::Released { from, below } => {
                for seq in from..below {
                    peers.check_released(seq, marks)?;
                }
            }
            Action::Left { chunk, replica } => {
                let of_chunk = |it: &&Chunk| it.id == chunk;
                let known = peers.stream.iter().chain(&peers.spares).find(of_chunk);
                if let Some(known) = known {
                    peers.left.insert((chunk, known.servers[usize::from(replica)]));
                }
                *marks.entry("a replica is left").or_default() += 1;
            }
            Action::Report { .. } => {}
            Action::Closed { .. } => peers.over = true,
            Action::Failed(_) => peers.over = true,
        }
        Ok(())
    }

    /// One permanent loss at any moment loses nothing that is acknowledged.
    fn check(&self) -> Result<(), String> {
        let peers = &self.peers;
        for seq in 0..peers.acked {
            let (chunk, _) = peers.placed[&seq];
            let has = |(channel, replica): (&Channel, &Replica)| {
                channel.0 == chunk && replica.records.iter().any(|record| record.seq == seq)
            };
            if !peers.replicas.iter().any(has) {
                return Err(format!("append {seq} is acknowledged and on no replica"));
            }
        }
        Ok(())
    }

    fn fingerprint(&self, text: &mut String) -> u64 {
        text.clear();
        write!(text, "{:?} {:?} {:?}", self.writer, self.now, self.peers).expect("memory");
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    }
}

impl Peers {
    /// The end of a chunk names the servers that get nothing more of it, and no others.
    fn check_named(&self, op: &StreamOp, marks: &mut Marks) -> Result<(), String> {
        let (chunk, named) = match op {
            StreamOp::Advance { sealed, left, .. }
            | StreamOp::Close { sealed: Some((sealed, _)), left, .. } => (*sealed, left),
            _ => return Ok(()),
        };
        let Some(ended) = self.stream.iter().find(|it| it.id == chunk) else { return Ok(()) };
        for &server in &ended.servers {
            let count = named.iter().filter(|id| **id == ServerId::new(server as u32)).count();
            let channel = (chunk, server);
            let right = match count {
                0 => !self.left.contains(&channel),
                1 => self.left.contains(&channel) || !self.followed.contains(&channel),
                _ => false,
            };
            if !right {
                return Err(format!("the end of {chunk} names {named:?} as left"));
            }
        }
        let strange =
            |id: &&ServerId| ended.servers.iter().all(|it| ServerId::new(*it as u32) != **id);
        if let Some(id) = named.iter().find(strange) {
            return Err(format!("the end of {chunk} names {id}, which has no replica of it"));
        }
        if !named.is_empty() {
            *marks.entry("the end of a chunk names who was left").or_default() += 1;
        }
        Ok(())
    }

    fn tail(&self) -> &Chunk {
        self.stream.last().expect("a chunk is current")
    }

    fn is_alive(&self, server: usize) -> bool {
        self.destroyed != Some(server)
    }

    fn has_records(&self, server: usize) -> bool {
        let mut of_server = self.replicas.iter().filter(|(channel, _)| channel.1 == server);
        of_server.any(|(_, replica)| !replica.records.is_empty())
    }

    /// Whether a replica lacks acknowledged bytes of its chunk.
    fn lacks(&self, chunk: ChunkId, server: usize) -> bool {
        let len = self.replicas.get(&(chunk, server)).map_or(0, Replica::len);
        len < self.acked_in(chunk)
    }

    fn acked_in(&self, chunk: ChunkId) -> u32 {
        (0..self.acked).filter(|seq| self.placed[seq].0 == chunk).count() as u32 * LEN
    }

    fn allocate(&mut self, avoid: &[ServerId]) -> Chunk {
        let id = ChunkId::new(self.next_chunk);
        self.next_chunk += 1;
        let mut servers: Vec<usize> = (0..SERVERS).collect();
        servers.sort_by_key(|&server| avoid.contains(&ServerId::new(server as u32)));
        servers.truncate(COPIES);
        servers.sort_unstable();
        Chunk { id, base: 0, servers, sealed: None }
    }

    fn top_up(&mut self, wanted: usize, avoid: &[ServerId]) {
        while self.spares.len() < wanted {
            let spare = self.allocate(avoid);
            self.spares.push(spare);
        }
    }

    fn change_spares(&mut self, avoid: &[ServerId], wanted: u8) {
        let unwanted = |server: &usize| avoid.contains(&ServerId::new(*server as u32));
        self.spares.retain(|spare| !spare.servers.iter().any(unwanted));
        self.top_up(usize::from(wanted), avoid);
    }

    fn next_request(&mut self, channel: Channel) -> Request {
        let requests = self.requests.get_mut(&channel).expect("chosen");
        requests.pop_front().expect("chosen")
    }

    fn serve(
        &mut self,
        channel: Channel,
        request: Request,
        marks: &mut Marks,
    ) -> Result<Result<u32, SendError>, String> {
        if !self.is_alive(channel.1) {
            return Ok(Err(SendError::Unreachable));
        }
        if request.create {
            self.replicas.entry(channel).or_default();
        }
        let refused = |error| Ok(Err(SendError::Data(error)));
        let Some(replica) = self.replicas.get_mut(&channel) else {
            return refused(DataError::NotFound);
        };
        if replica.fenced {
            *marks.entry("an append meets a fence").or_default() += 1;
            return refused(DataError::Fenced { epoch: EPOCH.next() });
        }
        let (len, record) = (replica.len(), request.record);
        if record.offset > len {
            return refused(DataError::Gap { len });
        }
        if record.offset < len {
            return match replica.records.contains(&record) {
                true => Ok(Ok(len)),
                false => Err(format!("{record:?} is something else than {replica:?}")),
            };
        }
        replica.records.push(record);
        self.held.insert((channel.0, channel.1, record.seq));
        Ok(Ok(len + LEN))
    }

    fn check_acked(&self, seq: u64, marks: &mut Marks) -> Result<(), String> {
        let (chunk, offset) = self.placed[&seq];
        let holders = self.held.iter().filter(|held| (held.0, held.2) == (chunk, seq)).count();
        if holders < ACKS {
            return Err(format!("append {seq} is acknowledged with {holders} replicas"));
        }
        let recorded = self.stream.iter().find(|it| it.id == chunk);
        let Some(recorded) = recorded else {
            return Err(format!("append {seq} is acknowledged in {chunk}, which is not recorded"));
        };
        if let Some(len) = recorded.sealed.filter(|&len| len < offset + LEN) {
            return Err(format!("append {seq} is acknowledged behind the seal at {len}"));
        }
        let fenced = |it: &usize| self.replicas.get(&(chunk, *it)).is_some_and(|it| it.fenced);
        if recorded.servers.iter().any(fenced) {
            *marks.entry("an acknowledgement after a fence").or_default() += 1;
        }
        Ok(())
    }

    /// Bytes are let go when each replica that was not left has them.
    fn check_released(&self, seq: u64, marks: &mut Marks) -> Result<(), String> {
        let (chunk, _) = self.placed[&seq];
        let of_chunk = |channel: &&Channel| channel.0 == chunk && !self.left.contains(*channel);
        for &(_, server) in self.followed.iter().filter(of_chunk) {
            if !self.held.contains(&(chunk, server, seq)) {
                return Err(format!("append {seq} is released, and server {server} lacks it"));
            }
        }
        if self.tail().id != chunk {
            *marks.entry("what an ended chunk owed is there").or_default() += 1;
        }
        Ok(())
    }
}

fn replica_place(server: usize) -> ReplicaPlace {
    ReplicaPlace {
        server: ServerId::new(server as u32),
        disk: DiskId::new(server as u128),
        addr: ([10, 0, 0, server as u8], 1).into(),
        fragment: 0,
    }
}

/// What an exploration has seen.
#[derive(Debug)]
struct Explored {
    states: usize,
    steps: u64,
    marks: Marks,
}

/// Takes every step in every state, until one breaks a rule: then the rule, and the steps to it.
fn explore(bounds: Bounds, planted: Option<Planted>) -> Result<Explored, String> {
    let mut seen: Set<u64> = Set::default();
    let (mut marks, mut steps, mut text) = (Marks::new(), 0, String::new());
    let mut path: Vec<Step> = Vec::new();
    let mut world = World::new(bounds, planted);
    // Of each state on the path, the steps that are still to be taken.
    let mut open = vec![world.steps()];
    let mut elsewhere = false;
    while let Some(left) = open.last_mut() {
        let Some(step) = left.pop() else {
            open.pop();
            path.pop();
            elsewhere = true;
            continue;
        };
        if std::mem::take(&mut elsewhere) {
            world = World::new(bounds, planted);
            for &step in &path {
                world.take(step, &mut Marks::new()).expect("it was taken before");
            }
        }
        path.push(step);
        steps += 1;
        world.take(step, &mut marks).map_err(|what| format!("{what}, after {path:?}"))?;
        if seen.insert(world.fingerprint(&mut text)) {
            let next = world.steps();
            if next.is_empty() && world.peers.recovery.is_some() {
                return Err(format!("a recovery does not end, after {path:?}"));
            }
            open.push(next);
        } else {
            path.pop();
            elsewhere = true;
        }
    }
    Ok(Explored { states: seen.len(), steps, marks })
}

const NONE: Bounds = Bounds {
    appends: 2,
    losses: 0,
    waits: 0,
    leaders: 0,
    harm: Harm::None,
    recovers: false,
    burst: false,
    one_is_slow: false,
    chunk: 1000,
    dies: false,
};

/// Appends of each order: more in `make test-long`.
fn appends() -> u64 {
    std::env::var("CRATON_CHASE_MODEL_APPENDS").map_or(2, |count| count.parse().expect("a number"))
}

fn explored(bounds: Bounds, reached: &[&str]) {
    let found = explore(bounds, None).unwrap_or_else(|broken| panic!("{bounds:?}: {broken}"));
    println!("{bounds:?}: {found:?}");
    assert!(found.steps as usize > found.states);
    for mark in reached {
        assert!(found.marks.contains_key(mark), "'{mark}' is not reached: {found:?}");
    }
}

#[test]
fn recovery_beside_a_living_writer_loses_nothing_in_any_order() {
    let bounds = Bounds { appends: appends(), recovers: true, burst: appends() > 2, ..NONE };
    let reached = [
        "a fence before the creation",
        "a tombstone is filled",
        "an acknowledgement after a fence",
        "an append meets a fence",
        "an operation of a writer that was taken for dead",
        "more is sealed than was acknowledged",
    ];
    explored(bounds, &reached);
}

#[test]
fn recovery_loses_nothing_with_one_disk_destroyed_and_a_new_leader_at_any_step() {
    let bounds = Bounds { recovers: true, burst: true, dies: true, leaders: 1, ..NONE };
    let bounds = Bounds { harm: Harm::Destroyed, appends: appends(), ..bounds };
    explored(bounds, &["a new leader amid a recovery", "a tombstone is filled"]);
}

#[test]
fn recovery_loses_nothing_when_one_disk_has_lost_its_last_write() {
    let bounds = Bounds { recovers: true, burst: true, dies: true, ..NONE };
    let bounds = Bounds { harm: Harm::LastWrite, appends: appends(), ..bounds };
    explored(bounds, &["more is sealed than was acknowledged"]);
}

#[test]
fn slow_replica_is_left_or_gets_what_it_is_owed_in_any_order() {
    let slow = Bounds { one_is_slow: true, appends: 3, ..NONE };
    let reached =
        ["a replica is left", "a thin chunk ends", "the end of a chunk names who was left"];
    explored(Bounds { waits: 2, losses: 1, ..slow }, &reached);
    let reached = ["a chunk ends that owes something", "what an ended chunk owed is there"];
    explored(Bounds { waits: 1, losses: 1, chunk: 2, ..slow }, &reached);
}

/// Each rule that is broken shows in some order.
#[test]
fn planted_errors_are_found() {
    let recovery = Bounds { recovers: true, burst: true, dies: true, ..NONE };
    let cases = [
        (Planted::AckBelowM, Bounds { ..NONE }, "is acknowledged with 1 replicas"),
        (Planted::RecordShrinks, recovery, "bytes are acknowledged"),
        (
            Planted::StatisticIsLength,
            Bounds { harm: Harm::LastWrite, ..recovery },
            "bytes are acknowledged",
        ),
        (
            Planted::FillRepairing,
            Bounds { harm: Harm::Destroyed, leaders: 1, ..recovery },
            "a recovery does not end",
        ),
    ];
    for (planted, bounds, words) in cases {
        let broken = explore(bounds, Some(planted)).expect_err("it is found");
        assert!(broken.contains(words), "{planted:?}: {broken}");
        println!("{planted:?}: {broken}");
    }
}
