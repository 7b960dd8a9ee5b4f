//! An explorer of every order of the steps of a writer, its replicas and a recovery, for a few appends.
//! The writer is the client's state machine and the sealed length the masters' rule; replicas and the
//! stream service are as small as they can be, and there is no network.
//!
//! A step is chosen, tried, and taken back by running the others again from the start: the writer is
//! not copied. Once it is gone, the rest is copied instead. Two orders that lead to the same state are
//! followed once. What only a writer that is gone would see is no part of the state.

mod copies;
mod fragments;
mod peers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, ServerId, Set};
use client::writer::{
    Action, ChaseBudget, Event, Fragments, Laid, OpDone, OpError, SendError, SendId, StreamOp,
    Writer, WriterConfig,
};
use master_stream::Quorum;
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaPlace, WriterGrant};
use wire::data::DataError;

use self::fragments::{Order, Target};
use self::peers::{Chunk, Peers, Record, Recovery, Replica, Request};

const EPOCH: Epoch = Epoch::new(7);
/// Servers: those of the first chunk, and one or two more.
const SERVERS: usize = 5;
/// The slow one.
const SLOW: usize = 2;
const LEN: u32 = 100;
/// Longer than a replica is chased, a thin chunk waits for its end, and an ended one is owed.
const LONG: Duration = Duration::from_secs(11);

/// How a chunk is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code {
    /// Replicas: copies, or fragments.
    pub(crate) n: usize,
    /// Of them, those that acknowledge.
    pub(crate) a: usize,
    /// Replicas that give the bytes back together.
    pub(crate) k: usize,
}

/// Three copies, of which two acknowledge.
pub(crate) const REP3: Code = Code { n: 3, a: 2, k: 1 };

impl Default for Code {
    fn default() -> Code {
        REP3
    }
}

impl Code {
    fn is_coded(self) -> bool {
        self.k > 1
    }

    fn fragments(self) -> Fragments {
        Fragments { k: self.k as u8, p: (self.n - self.k) as u8 }
    }

    fn quorum(self) -> Quorum {
        Quorum { n: self.n, m: self.a, k: self.k }
    }
}

/// Faults that may happen in one order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) code: Code,
    pub(crate) appends: u64,
    /// Requests or answers that are lost.
    pub(crate) losses: u32,
    /// Pauses of [`LONG`].
    pub(crate) waits: u32,
    /// New leaders amid the recovery.
    pub(crate) leaders: u32,
    /// A disk is destroyed, or loses its last write silently.
    pub(crate) harm: Harm,
    /// Disks to which that happens.
    pub(crate) disks: usize,
    /// Replicas of a coded chunk that recovery may make on servers without one.
    pub(crate) targets: usize,
    /// Masters recover the file at some moment.
    pub(crate) recovers: bool,
    /// Masters complete what replicas of ended chunks lack, beside the writer.
    pub(crate) completes: bool,
    /// All appends come before the first step.
    pub(crate) burst: bool,
    /// Requests and answers of all servers but the third arrive at once.
    pub(crate) one_is_slow: bool,
    /// The writer ends in order when all is appended.
    pub(crate) closes: bool,
    /// Appends that a chunk has room for.
    pub(crate) chunk: u32,
    /// The writer's host dies then; otherwise the writer goes on beside the recovery.
    pub(crate) dies: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Harm {
    None,
    Destroyed,
    /// Its server has an empty disk in its place, and says so.
    Replaced,
    LastWrite,
}

/// An error in a rule, which an order must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
    /// The writer acknowledges what one replica has.
    AckBelowM,
    /// An append is released when it is acknowledged.
    ReleaseAtM,
    /// A bug of the writer itself.
    Writer(client::Planted),
    /// Recovery believes one vote less than it needs, as if the record had shrunk.
    RecordShrinks,
    /// The length is that of the vote of the rank, not the longest.
    StatisticIsLength,
    /// A copy makes a replica that has no vote of one that was fenced before its creation, and the
    /// next leader counts it no more.
    FillRepairing,
    /// The writer of a coded chunk acknowledges what as many fragments have as are decoded.
    AckBelowA,
    /// Recovery of a coded chunk is content with as many votes as copies need.
    VotesAsCopies,
    /// Recovery of a coded chunk seals at the longest vote, with any holder.
    SealBelowK,
    /// Holders of a coded chunk are counted as replicas, not as different fragments.
    SameFragmentTwice,
    /// A seal with fewer holders than `a` believes the votes: a holder may have been lost since.
    StaleHolders,
    /// A row is laid out again when it is sent again.
    RowRelaid,
}

type Channel = (ChunkId, usize);

/// Where an append is laid out, and how often it was in this chunk before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placed {
    chunk: ChunkId,
    offset: u32,
    layout: u32,
}

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
    /// An attempt at recovery that met a destroyed disk begins again.
    Again,
    /// The leader orders a copy of a coded chunk's rows.
    Order(usize),
    /// A server executes its order by one row: a copy breaks off anywhere.
    CopyRow(usize),
    /// The leader records a replica to be made.
    AddTarget(usize),
    SealAt(u32),
    /// Masters fence a short replica of an ended chunk, and copy what it lacks.
    Complete(Channel),
}

struct World {
    bounds: Bounds,
    planted: Option<Planted>,
    writer: Option<Writer>,
    now: Instant,
    peers: Peers,
}

/// Rare states that were reached.
pub(crate) type Marks = BTreeMap<&'static str, u64>;

fn index_of(addr: std::net::SocketAddr) -> usize {
    let std::net::IpAddr::V4(ip) = addr.ip() else { unreachable!("as placed") };
    usize::from(ip.octets()[3])
}

impl World {
    fn new(bounds: Bounds, planted: Option<Planted>) -> World {
        let now = Instant::from_nanos(1_000_000_000);
        let replaced = bounds.harm == Harm::Replaced;
        let mut peers = Peers { next_chunk: 1, code: bounds.code, replaced, ..Peers::default() };
        let first = peers.allocate(&[]);
        peers.stream.push(first);
        peers.top_up(1, &[]);
        let mut world = World { bounds, planted, writer: None, now, peers };
        let config = WriterConfig {
            copies: bounds.code.n as u8,
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

    /// Takes these steps from the start.
    fn take_again(&mut self, path: &[Step]) {
        *self = World::new(self.bounds, self.planted);
        for &step in path {
            self.take(step, &mut Marks::new()).expect("it was taken before");
        }
    }

    fn grant(&self, current: bool) -> WriterGrant {
        let Code { n, a, k } = self.bounds.code;
        // The writer refuses a coded chunk with so few acknowledgements: it takes it for copies.
        let (acks, data) = match self.planted {
            Some(Planted::AckBelowM) => (1, k),
            Some(Planted::AckBelowA) => (k, 1),
            _ => (a, k),
        };
        let fragment = |at: usize| if data > 1 { at as u8 } else { 0 };
        let place = |chunk: &Chunk| ChunkPlace {
            chunk: chunk.id,
            epoch: EPOCH,
            base: chunk.base,
            sealed: None,
            replicas: (chunk.servers.iter().enumerate())
                .map(|(at, &server)| replica_place(server, fragment(at)))
                .collect(),
            acks: acks as u8,
            token: [1; 16],
            copies: n as u8,
            data: data as u8,
            compression: None,
        };
        let tail = self.peers.tail();
        WriterGrant {
            epoch: EPOCH,
            len: tail.base,
            current: current.then(|| place(tail)),
            spares: self.peers.spares.iter().map(place).collect(),
            rights_ms: None,
        }
    }

    /// The steps that may come next.
    fn steps(&self) -> Vec<Step> {
        let (peers, bounds) = (&self.peers, &self.bounds);
        let mut steps = Vec::new();
        let writes = self.writer.is_some() && !peers.over;
        if writes && peers.appended < bounds.appends {
            steps.push(Step::Append);
        } else if writes && bounds.closes && !peers.closing {
            steps.push(Step::Close);
        }
        for (&channel, requests) in &peers.requests {
            if !requests.is_empty() {
                steps.push(Step::Serve(channel));
                if writes && peers.losses < bounds.losses {
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
        if peers.harmed < bounds.disks && bounds.harm != Harm::None && peers.appended > 0 {
            let mine = |it: &usize| *it < bounds.code.n || peers.targets.contains_key(it);
            for server in (0..SERVERS).filter(mine) {
                match bounds.harm {
                    Harm::Destroyed | Harm::Replaced if !peers.is_alive(server) => {}
                    Harm::Destroyed | Harm::Replaced => steps.push(Step::Destroy(server)),
                    _ if peers.has_records(server) => steps.push(Step::LoseLastWrite(server)),
                    _ => {}
                }
            }
        }
        if bounds.completes && writes {
            steps.extend(peers.short().map(Step::Complete));
        }
        match &peers.recovery {
            None if bounds.recovers && peers.appended > 0 && !peers.recovered => {
                steps.push(Step::Recover)
            }
            Some(recovery) if bounds.code.is_coded() => {
                self.coded_recovery_steps(recovery, &mut steps);
            }
            Some(recovery) => self.recovery_steps(recovery, &mut steps),
            None => {}
        }
        steps
    }
}

impl World {
    fn take(&mut self, step: Step, marks: &mut Marks) -> Result<(), String> {
        match step {
            Step::Append => {
                self.peers.appended += 1;
                let laid = self.laid();
                let event = match Event::plain_append(LEN) {
                    Event::Append { len, bytes, .. } => Event::Append { len, bytes, laid },
                    _ => unreachable!("an append"),
                };
                self.give(event, marks)?;
            }
            Step::Close => {
                self.peers.closing = true;
                self.give(Event::Close { finish: false }, marks)?;
            }
            Step::Serve(channel) => {
                let request = self.peers.next_request(channel);
                let id = request.id;
                let result = self.peers.serve(channel, request, marks)?;
                self.peers.answer(channel, id, result);
            }
            Step::LoseRequest(channel) => {
                self.peers.losses += 1;
                let id = self.peers.next_request(channel).id;
                self.peers.answer(channel, id, Err(SendError::Silent));
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
                self.peers.destroy(server);
                // Its bytes can not be had: the next attempt counts without it.
                if let Some(recovery) = &mut self.peers.recovery
                    && !self.bounds.code.is_coded()
                {
                    recovery.votes.remove(&server);
                }
            }
            Step::LoseLastWrite(server) => {
                self.peers.harmed += 1;
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
                self.begin_again();
                *marks.entry("a new leader amid a recovery").or_default() += 1;
            }
            Step::Seal => self.seal(marks)?,
            Step::Again => self.begin_again(),
            Step::Order(server) => self.order(server),
            Step::CopyRow(server) => self.copy_row(server, marks)?,
            Step::AddTarget(server) => self.add_target(server, marks),
            Step::SealAt(len) => self.seal_at(len, marks)?,
            Step::Complete(channel) => {
                self.peers.complete(channel);
                *marks.entry("masters complete what a writer owes").or_default() += 1;
            }
        }
        if self.bounds.one_is_slow {
            self.run_fast(marks)?;
        }
        if self.peers.over {
            self.writer = None;
        }
        if self.writer.is_none() {
            self.peers.forget_writer();
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
                self.peers.answer(channel, id, result);
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

    /// The next attempt asks all replicas again.
    fn begin_again(&mut self) {
        let recovery = self.peers.recovery.as_mut().expect("chosen");
        recovery.votes.clear();
        recovery.copied.clear();
        self.peers.orders.values_mut().for_each(|order| order.late = true);
    }

    /// What appends are laid out as.
    fn laid(&self) -> Laid {
        let code = self.bounds.code;
        match code.is_coded() && self.planted != Some(Planted::AckBelowA) {
            true => Laid::Coded(code.fragments()),
            false => Laid::Plain,
        }
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
        let laid_as = self.laid();
        let peers = &mut self.peers;
        match action {
            Action::Place { seq, at, laid, .. } => {
                if seq < peers.acked {
                    return Err(format!("acknowledged append {seq} is moved"));
                }
                if laid != laid_as {
                    return Err(format!("append {seq} is laid out as {laid:?}, not {laid_as:?}"));
                }
                // In one chunk a row is laid out once.
                let before = peers.placed.get(&seq).filter(|it| it.chunk == at.chunk);
                let layout = before.map_or(0, |it| it.layout + 1);
                peers.placed.insert(seq, Placed { chunk: at.chunk, offset: at.offset, layout });
            }
            Action::Send { id, to, request, fragment, .. } => {
                let channel = (id.chunk, index_of(to));
                if peers.left.contains(&channel) {
                    return Err(format!("{id:?} is sent to a replica that was left"));
                }
                peers.followed.insert(channel);
                let due = peers.fragment(id.chunk, channel.1);
                if matches!(laid_as, Laid::Coded(_)) && due != Some(fragment.into()) {
                    return Err(format!("{id:?} sends fragment {fragment}, not {due:?}"));
                }
                let mut layout = peers.placed[&id.seq].layout;
                if self.planted == Some(Planted::RowRelaid) {
                    layout += u32::from(id.attempt);
                }
                let record = Record { seq: id.seq, offset: request.offset, layout };
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
                    if self.planted == Some(Planted::ReleaseAtM) {
                        peers.check_released(seq, marks)?;
                    }
                }
                peers.acked = below;
            }
            Action::Trimmed { .. } => {}
            Action::Released { from, below } => {
                for seq in from..below {
                    peers.check_released(seq, marks)?;
                }
            }
            Action::Left { chunk, replica } => {
                let of_chunk = |it: &&Chunk| it.id == chunk;
                let known = peers.stream.iter().chain(&peers.spares).find(of_chunk);
                if let Some(known) = known {
                    let server = known.servers[usize::from(replica)];
                    peers.check_left(known, server)?;
                    peers.left.insert((chunk, server));
                }
                *marks.entry("a replica is left").or_default() += 1;
            }
            Action::Report { .. } | Action::Doubt { .. } | Action::Blocked { .. } => {}
            Action::Closed { .. } => peers.over = true,
            Action::Failed(error) => {
                if peers.recovery.is_none() && !peers.recovered {
                    return Err(format!("the writer fails, and nothing has fenced it: {error:?}"));
                }
                peers.over = true;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.peers.check()
    }

    fn fingerprint(&self, text: &mut String) -> u64 {
        text.clear();
        // Without a writer, nothing takes time.
        let writer = self.writer.as_ref().map(|writer| (writer, self.now));
        write!(text, "{writer:?} {:?}", self.peers).expect("memory");
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    }
}

fn replica_place(server: usize, fragment: u8) -> ReplicaPlace {
    ReplicaPlace {
        server: ServerId::new(server as u32),
        disk: DiskId::new(server as u128),
        addr: ([10, 0, 0, server as u8], 1).into(),
        fragment,
    }
}

/// What an exploration has seen.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) steps: u64,
    pub(crate) marks: Marks,
}

/// A rule that was broken, and after how many states.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) what: String,
    pub(crate) states: usize,
}

/// A state on the path: the steps that are still to be taken in it, and all of it once the writer is
/// gone.
struct Open {
    left: Vec<Step>,
    peers: Option<Peers>,
}

/// Takes every step in every state, until one breaks a rule: then the rule, and the steps to it.
pub(crate) fn explore(bounds: Bounds, planted: Option<Planted>) -> Result<Explored, Broken> {
    let of_writer = match planted {
        Some(Planted::Writer(bug)) => Some(bug),
        _ => None,
    };
    client::plant(of_writer);
    let found = explore_all(bounds, planted);
    client::plant(None);
    found
}

fn explore_all(bounds: Bounds, planted: Option<Planted>) -> Result<Explored, Broken> {
    let mut seen: Set<u64> = Set::default();
    let (mut marks, mut steps, mut text) = (Marks::new(), 0, String::new());
    let mut path: Vec<Step> = Vec::new();
    let mut world = World::new(bounds, planted);
    let mut open = vec![Open { left: world.steps(), peers: None }];
    let mut elsewhere = false;
    while let Some(state) = open.last_mut() {
        let Some(step) = state.left.pop() else {
            open.pop();
            path.pop();
            elsewhere = true;
            continue;
        };
        if std::mem::take(&mut elsewhere) {
            match &state.peers {
                Some(peers) => {
                    (world.writer, world.peers) = (None, peers.clone());
                }
                None => world.take_again(&path),
            }
        }
        path.push(step);
        steps += 1;
        let broken = |what| Broken { what: format!("{what}, after {path:?}"), states: seen.len() };
        world.take(step, &mut marks).map_err(broken)?;
        if seen.insert(world.fingerprint(&mut text)) {
            let left = world.steps();
            if left.is_empty() && world.peers.recovery.is_some() {
                if !world.peers.lacks_voters() {
                    let what = format!("a recovery does not end, after {path:?}");
                    return Err(Broken { what, states: seen.len() });
                }
                *marks.entry("a recovery waits for voters").or_default() += 1;
            }
            let peers = world.writer.is_none().then(|| world.peers.clone());
            open.push(Open { left, peers });
        } else {
            path.pop();
            elsewhere = true;
        }
    }
    Ok(Explored { states: seen.len(), steps, marks })
}

pub(crate) const NONE: Bounds = Bounds {
    code: REP3,
    appends: 2,
    losses: 0,
    waits: 0,
    leaders: 0,
    harm: Harm::None,
    disks: 1,
    targets: 0,
    recovers: false,
    completes: false,
    burst: false,
    one_is_slow: false,
    closes: true,
    chunk: 1000,
    dies: false,
};

/// Explores all, and wants these marks.
pub(crate) fn explored(bounds: Bounds, reached: &[&str]) -> Explored {
    let found = explore(bounds, None);
    let found = found.unwrap_or_else(|broken| panic!("{bounds:?}: {broken:?}"));
    println!("{bounds:?}: {found:?}");
    assert!(found.steps as usize > found.states);
    for mark in reached {
        assert!(found.marks.contains_key(mark), "'{mark}' is not reached: {found:?}");
    }
    found
}

/// Appends of each order: more in `make test-long`.
pub(crate) fn appends() -> u64 {
    std::env::var("CRATON_CHASE_MODEL_APPENDS").map_or(2, |count| count.parse().expect("a number"))
}
