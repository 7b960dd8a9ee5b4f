//! The writer's protocol in random orders of events, against an oracle that knows what every
//! replica holds and what the stream service has recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, ServerId};
use client::writer::{
    Action, ChaseBudget, Event, Laid, OpDone, OpError, SendError, SendId, StreamOp, Writer,
    WriterConfig, WriterError,
};
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, Policy, ReplicaPlace, WriterGrant};
use wire::data::{AppendRequest, DataError};
use wire::sector::AppendAt;

type Rng = runtime::Rng;

const EPOCH: Epoch = Epoch::new(7);

/// An append as a replica holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    seq: u64,
    offset: u32,
    len: u32,
    base: u64,
}

#[derive(Default)]
struct Replica {
    records: Vec<Record>,
    fenced: bool,
}

impl Replica {
    fn len(&self) -> u32 {
        self.records.last().map_or(0, |record| record.offset + record.len)
    }
}

#[derive(Clone, Debug)]
struct Chunk {
    id: ChunkId,
    base: u64,
    sealed: Option<u32>,
    servers: Vec<usize>,
    policy: Policy,
}

impl Chunk {
    fn acks(&self) -> usize {
        self.policy.acks.into()
    }
}

enum Message {
    Append { id: SendId, at: AppendAt, request: AppendRequest, server: usize },
    Answer { id: SendId, result: Result<u32, SendError> },
    NotifyCommitted { replica: u8, chunk: ChunkId, committed: u32, server: usize },
    CommittedNotified { replica: u8, chunk: ChunkId, committed: u32, result: Result<(), SendError> },
    Op(StreamOp),
    OpAnswer(Result<OpDone, OpError>),
}

struct Model {
    rng: Rng,
    policy: Policy,
    now: Instant,
    writer: Writer,
    messages: Vec<Message>,
    alive: Vec<bool>,
    replicas: BTreeMap<(ChunkId, usize), Replica>,
    next_chunk: u64,
    /// Sealed chunks with bytes, and the current one at the end.
    stream: Vec<Chunk>,
    spares: Vec<Chunk>,
    fenced: bool,
    closed: Option<u64>,
    failed: Option<WriterError>,
    placed: BTreeMap<u64, AppendAt>,
    lens: Vec<u32>,
    /// What the sectors of each are, and so what chunks hold.
    laid: Vec<Laid>,
    layouts: BTreeMap<ChunkId, Laid>,
    last_laid: Laid,
    acked: u64,
    /// Appends whose bytes the writer has let go.
    released: BTreeSet<u64>,
    /// Fragments whose cells an acknowledged append still has.
    kept: BTreeMap<u64, u32>,
    /// Replicas that get nothing more.
    left: BTreeSet<(ChunkId, u8)>,
    servers: BTreeMap<ChunkId, Vec<usize>>,
    policies: BTreeMap<ChunkId, Policy>,
    /// Replicas that were sent something.
    followed: BTreeSet<(ChunkId, u8)>,
    /// Rare events that happened.
    switches: u32,
    drops: u32,
    stale: u32,
}

fn config() -> WriterConfig {
    WriterConfig {
        chunk_len_max: 4000,
        stall_budget: Duration::from_secs(100_000),
        ..WriterConfig::default()
    }
}

impl Model {
    fn new(seed: u64, policy: Policy) -> Model {
        let rng = Rng::new(seed);
        let now = Instant::from_nanos(1_000_000_000);
        let empty =
            WriterGrant { epoch: EPOCH, len: 0, current: None, spares: vec![], rights_ms: None };
        assert!(Writer::new(config(), chase(), empty, now).is_err());
        let mut model = Model {
            rng,
            policy,
            now,
            writer: dummy(now),
            messages: vec![],
            alive: vec![true; if policy.is_coded() { 8 } else { 6 }],
            replicas: BTreeMap::new(),
            next_chunk: 1,
            stream: vec![],
            spares: vec![],
            fenced: false,
            closed: None,
            failed: None,
            placed: BTreeMap::new(),
            lens: vec![],
            laid: vec![],
            layouts: BTreeMap::new(),
            last_laid: Laid::Plain,
            acked: 0,
            released: BTreeSet::new(),
            kept: BTreeMap::new(),
            left: BTreeSet::new(),
            servers: BTreeMap::new(),
            policies: BTreeMap::new(),
            followed: BTreeSet::new(),
            switches: 0,
            drops: 0,
            stale: 0,
        };
        let first = model.allocate(&[]);
        model.stream.push(first);
        model.top_up(2, &[]);
        let grant = model.grant(true);
        model.writer = Writer::new(config(), chase(), grant, now).unwrap();
        let after = Duration::from_millis(model.rng.between(1, 1000));
        model.writer.set_blocked_after([after; _]);
        model
    }

    fn allocate(&mut self, avoid: &[ServerId]) -> Chunk {
        let id = ChunkId::new(self.next_chunk);
        self.next_chunk += 1;
        let mut servers: Vec<usize> = (0..self.alive.len()).collect();
        let count = servers.len() as u64;
        servers.rotate_left(self.rng.below(count) as usize);
        servers.swap(0, self.rng.below(count) as usize);
        servers.sort_by_key(|&server| avoid.contains(&ServerId::new(server as u32)));
        let mut policy = self.policy;
        // Where places are short a chunk of a code is in copies.
        if policy.is_coded() && self.rng.one_in(4) {
            policy = policy.in_copies();
        }
        servers.truncate(policy.copies.into());
        self.servers.insert(id, servers.clone());
        self.policies.insert(id, policy);
        Chunk { id, base: 0, sealed: None, servers, policy }
    }

    fn top_up(&mut self, wanted: usize, avoid: &[ServerId]) {
        while self.spares.len() < wanted {
            let chunk = self.allocate(avoid);
            self.spares.push(chunk);
        }
    }

    fn place(&self, chunk: &Chunk) -> ChunkPlace {
        let Policy { copies, acks, data, .. } = chunk.policy;
        let coded = chunk.policy.is_coded();
        let replica = |(index, &server): (usize, &usize)| ReplicaPlace {
            server: ServerId::new(server as u32),
            disk: DiskId::new(server as u128),
            addr: ([10, 0, 0, server as u8], 1).into(),
            fragment: if coded { index as u8 } else { 0 },
        };
        ChunkPlace {
            chunk: chunk.id,
            epoch: EPOCH,
            base: chunk.base,
            sealed: None,
            replicas: chunk.servers.iter().enumerate().map(replica).collect(),
            acks,
            token: [1; 16],
            copies: if coded { copies } else { 0 },
            data,
            compression: None,
        }
    }

    fn grant(&self, current: bool) -> WriterGrant {
        let tail = self.stream.last().unwrap();
        WriterGrant {
            epoch: EPOCH,
            len: tail.base,
            current: current.then(|| self.place(tail)),
            spares: self.spares.iter().map(|chunk| self.place(chunk)).collect(),
            rights_ms: None,
        }
    }

    fn give(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.writer.handle(self.now, event, &mut actions);
        for action in actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        assert!(self.closed.is_none() && self.failed.is_none(), "acts after its end: {action:?}");
        match action {
            Action::Place { seq, at, laid, .. } => {
                assert!(seq >= self.acked, "an acknowledged append is moved");
                self.placed.insert(seq, at);
                let was = std::mem::replace(&mut self.laid[seq as usize], laid);
                let layout = *self.layouts.entry(at.chunk).or_insert(laid);
                assert_eq!(layout, laid, "{} has rows and plain sectors", at.chunk);
                // Only for a chunk of another kind, or from one, an append is laid out again.
                let coded = |laid| matches!(laid, Laid::Coded(_));
                assert!(was == laid || coded(was) || coded(laid));
                assert_eq!(coded(laid), self.policies[&at.chunk].is_coded());
            }
            Action::Send { id, request, to, fragment, .. } => {
                let is_coded = self.policies[&id.chunk].is_coded();
                assert_eq!(fragment, if is_coded { id.replica } else { 0 });
                let at = self.placed[&id.seq];
                assert_eq!(
                    (at.chunk, at.offset, at.base),
                    (id.chunk, request.offset, request.base)
                );
                assert_eq!(request.len, self.lens[id.seq as usize]);
                assert!(!self.released.contains(&id.seq), "sent after its release");
                let kept = self.kept.get(&id.seq).is_none_or(|kept| kept >> fragment & 1 == 1);
                assert!(kept, "a cell is sent that was given up");
                assert!(!self.left.contains(&(id.chunk, id.replica)), "sent to a left replica");
                assert!(u64::from(request.committed) <= self.acked_in(id.chunk));
                self.followed.insert((id.chunk, id.replica));
                let server = server_of(to);
                self.messages.push(Message::Append { id, at, request, server });
            }
            Action::NotifyCommitted { replica, to, request, .. } => {
                let chunk = request.at.chunk;
                assert_eq!(u64::from(request.committed), self.acked_in(chunk));
                let committed = request.committed;
                let server = server_of(to);
                self.messages.push(Message::NotifyCommitted { replica, chunk, committed, server });
            }
            Action::Op(op) => self.messages.push(Message::Op(op)),
            Action::Trimmed { seq, keep } => {
                assert!(self.kept.insert(seq, keep).is_none(), "trimmed twice");
            }
            Action::Acked { below, len } => self.on_acked(below, len),
            Action::Released { from, below } => self.on_released(from, below),
            Action::Left { chunk, replica } => {
                assert!(self.left.insert((chunk, replica)), "left twice");
            }
            Action::Report { .. } | Action::Doubt { .. } | Action::Blocked { .. } => {}
            Action::Closed { len } => {
                assert_eq!(self.acked, self.lens.len() as u64);
                self.closed = Some(len);
            }
            Action::Failed(error) => self.failed = Some(error),
        }
    }

    /// Bytes are let go when each replica that was not left has them, MinCopy at least.
    fn on_released(&mut self, from: u64, below: u64) {
        assert!(from < below && below <= self.acked);
        for seq in from..below {
            assert!(self.released.insert(seq), "released twice");
            let chunk = self.placed[&seq].chunk;
            for (index, &server) in self.servers[&chunk].iter().enumerate() {
                let replica = self.replicas.get(&(chunk, server));
                let holds = replica.is_some_and(|it| it.records.iter().any(|it| it.seq == seq));
                let left = self.left.contains(&(chunk, index as u8));
                assert!(holds || left || !self.followed.contains(&(chunk, index as u8)));
            }
        }
    }

    /// Bytes acknowledged in a chunk.
    fn acked_in(&self, chunk: ChunkId) -> u64 {
        let acked = (0..self.acked).filter(|seq| self.placed[seq].chunk == chunk);
        acked.map(|seq| u64::from(self.lens[seq as usize])).sum()
    }

    /// Invariant 1: acknowledged means durable on enough replicas of the recorded chunk.
    fn on_acked(&mut self, below: u64, len: u64) {
        assert!(below > self.acked);
        for seq in self.acked..below {
            let at = self.placed[&seq];
            let tail = self.stream.last().unwrap();
            assert_eq!(at.chunk, tail.id, "acknowledged in a chunk that is not current");
            assert_eq!(at.base, tail.base);
            let holds = |server: &&usize| {
                let replica = self.replicas.get(&(at.chunk, **server));
                replica.is_some_and(|replica| replica.records.iter().any(|r| r.seq == seq))
            };
            let count = tail.servers.iter().filter(holds).count();
            assert!(count >= tail.acks(), "append {seq} acknowledged with {count} replicas");
        }
        self.acked = below;
        let sum: u64 = self.lens[..below as usize].iter().map(|&len| u64::from(len)).sum();
        assert_eq!(len, sum);
        assert_eq!(len, self.writer.acked_len());
    }

    /// Appends that enough replicas of the current chunk hold, and all before them.
    fn durable(&self) -> u64 {
        let tail = self.stream.last().unwrap();
        let len_at = |s: &usize| self.replicas.get(&(tail.id, *s)).map_or(0, Replica::len);
        let mut lens: Vec<_> = tail.servers.iter().map(len_at).collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        self.check_content(lens[tail.acks() - 1])
    }

    fn serve_append(
        &mut self,
        at: AppendAt,
        id: SendId,
        request: &AppendRequest,
        server: usize,
    ) -> Result<u32, DataError> {
        let key = (at.chunk, server);
        if request.create {
            assert_eq!(request.offset, 0);
            self.replicas.entry(key).or_default();
        }
        let replica = self.replicas.get_mut(&key).ok_or(DataError::NotFound)?;
        if replica.fenced {
            return Err(DataError::Fenced { epoch: EPOCH.next() });
        }
        let Record { seq, offset, len, base } =
            Record { seq: id.seq, offset: at.offset, len: request.len, base: at.base };
        if offset < replica.len() {
            let record = Record { seq, offset, len, base };
            assert!(replica.records.contains(&record), "a retry sends something else: {record:?}");
            return Ok(replica.len());
        }
        if offset > replica.len() {
            return Err(DataError::Gap { len: replica.len() });
        }
        match self.rng.below(60) {
            0 => return Err(DataError::Busy),
            1 => return Err(DataError::Unknown),
            2 if self.rng.one_in(4) => return Err(DataError::DiskFailed),
            3 if self.rng.one_in(8) => return Err(DataError::Denied),
            4 => return Err(DataError::BadSectors { index: 0 }),
            _ => {}
        }
        let replica = self.replicas.get_mut(&key).unwrap();
        replica.records.push(Record { seq, offset, len, base });
        Ok(replica.len())
    }

    fn serve_op(&mut self, op: StreamOp) -> Result<OpDone, OpError> {
        if self.fenced {
            return Err(OpError::Fenced);
        }
        match op {
            StreamOp::Advance { sealed, len, next, avoid, spares, .. } => {
                let tail = self.stream.last().unwrap().clone();
                assert_eq!(tail.id, sealed, "not the current chunk");
                assert_eq!(u64::from(len), self.acked_in(sealed), "not what was acknowledged");
                let Some(at) = self.spares.iter().position(|spare| spare.id == next) else {
                    self.stale += 1;
                    return Err(OpError::Stale);
                };
                self.switches += 1;
                let mut passed: Vec<_> = self.spares.drain(..=at).collect();
                let mut successor = passed.pop().unwrap();
                successor.base = tail.base + u64::from(len);
                if len == 0 {
                    self.stream.pop();
                } else {
                    self.stream.last_mut().unwrap().sealed = Some(len);
                }
                self.stream.push(successor);
                self.change_spares(&avoid, spares);
                Ok(OpDone::Writer(self.grant(true)))
            }
            StreamOp::Extend { avoid, spares, .. } => {
                self.change_spares(&avoid, spares);
                Ok(OpDone::Writer(self.grant(false)))
            }
            StreamOp::Close { sealed, .. } => {
                let (chunk, len) = sealed.unwrap();
                assert_eq!(self.stream.last().unwrap().id, chunk);
                self.stream.last_mut().unwrap().sealed = Some(len);
                let tail = self.stream.last().unwrap();
                Ok(OpDone::Closed { len: tail.base + u64::from(len) })
            }
        }
    }

    /// Now and then drops spares that it takes for useless.
    fn change_spares(&mut self, avoid: &[ServerId], wanted: u8) {
        if self.rng.one_in(3) {
            let unwanted = |chunk: &Chunk| {
                chunk.servers.iter().any(|&server| avoid.contains(&ServerId::new(server as u32)))
            };
            self.spares.retain(|chunk| !unwanted(chunk));
        }
        if self.rng.one_in(20) {
            self.drop_spares();
        }
        self.top_up(usize::from(wanted), avoid);
    }

    fn drop_spares(&mut self) {
        let written = |chunk: &Chunk| self.placed.values().any(|at| at.chunk == chunk.id);
        self.drops += u32::from(self.spares.iter().any(written));
        self.spares.clear();
    }

    /// Delivers one message, the faults allowing.
    fn deliver(&mut self, index: usize, faults: bool) {
        let lose = faults && self.rng.one_in(12);
        match self.messages.swap_remove(index) {
            Message::Append { id, at, request, server } => {
                if faults && self.rng.one_in(15) {
                    let copy = Message::Append { id, at, request, server };
                    self.messages.push(copy); // Arrives again.
                }
                let result = if !self.alive[server] {
                    let unreachable = self.rng.one_in(2);
                    Err(if unreachable { SendError::Unreachable } else { SendError::Silent })
                } else if lose {
                    Err(SendError::Silent)
                } else {
                    self.serve_append(at, id, &request, server).map_err(SendError::Data)
                };
                let result = match result {
                    Ok(_) if faults && self.rng.one_in(20) => Err(SendError::Silent),
                    result => result,
                };
                self.messages.push(Message::Answer { id, result });
            }
            Message::Answer { id, result } => self.give(Event::Sent { id, result }),
            Message::NotifyCommitted { replica, chunk, committed, server } => {
                let fenced = self.replicas.get(&(chunk, server)).is_some_and(|r| r.fenced);
                let result = if !self.alive[server] || lose {
                    Err(SendError::Silent)
                } else if fenced {
                    Err(SendError::Data(DataError::Fenced { epoch: EPOCH.next() }))
                } else if self.rng.one_in(6) {
                    Err(SendError::Data(DataError::DiskFailed)) // The chunk ends while idle.
                } else {
                    Ok(())
                };
                self.messages.push(Message::CommittedNotified {
                    replica,
                    chunk,
                    committed,
                    result,
                });
            }
            Message::CommittedNotified { replica, chunk, committed, result } => {
                self.give(Event::CommittedNotified { replica, chunk, committed, result });
            }
            Message::Op(op) => {
                let answer = self.serve_op(op);
                self.messages.push(Message::OpAnswer(answer));
            }
            Message::OpAnswer(answer) => self.give(Event::Op(answer)),
        }
    }

    fn pass_time(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        if self.writer.deadline().is_some_and(|due| due <= self.now) {
            self.give(Event::Tick);
            let due = self.writer.deadline();
            assert!(due.is_none_or(|due| due > self.now), "a tick that changes nothing");
        }
    }

    fn step(&mut self) {
        let over = self.closed.is_some() || self.failed.is_some();
        match self.rng.below(100) {
            0..=19 if !over => {
                let len = self.rng.between(1, 700) as u32;
                self.lens.push(len);
                // What the caller lays out follows the policy, which is set now and then.
                let mut laid = self.last_laid;
                if self.rng.one_in(10) {
                    laid = if laid == Laid::Plain { Laid::Row } else { Laid::Plain };
                }
                self.last_laid = laid;
                self.laid.push(laid);
                self.give(Event::Append { len, bytes: 4096, laid });
            }
            20..=21 => {
                let server = self.rng.below(self.alive.len() as u64) as usize;
                let dead = self.alive.iter().filter(|alive| !**alive).count();
                self.alive[server] = !self.alive[server] || dead > 1;
            }
            22 if self.rng.one_in(8) => self.drop_spares(),
            22..=31 if !over => {
                let millis = if self.rng.one_in(5) { 400 } else { 3 };
                let millis = self.rng.below(millis);
                self.pass_time(millis);
            }
            _ if !self.messages.is_empty() => {
                let index = self.rng.below(self.messages.len() as u64) as usize;
                self.deliver(index, true);
            }
            _ => {}
        }
    }

    /// No faults any more: the writer must come to its end.
    fn finish(&mut self) {
        self.alive.fill(true);
        if self.rng.one_in(2) && self.failed.is_none() {
            self.go_idle();
        }
        self.give(Event::Close { finish: false });
        for _ in 0..200_000 {
            if self.closed.is_some() || self.failed.is_some() {
                return;
            }
            if self.messages.is_empty() {
                let due = self.writer.deadline().expect("waits for nothing");
                self.now = self.now.max(due);
                self.pass_time(0);
            } else {
                let index = self.rng.below(self.messages.len() as u64) as usize;
                self.deliver(index, false);
            }
        }
        panic!("no end: {:?}", self.writer);
    }

    /// Waits until all is acknowledged, and replicas have the committed length.
    fn go_idle(&mut self) {
        for _ in 0..20_000 {
            if self.failed.is_some() || (self.acked == self.lens.len() as u64 && self.rng.one_in(9))
            {
                return;
            }
            if !self.messages.is_empty() {
                let index = self.rng.below(self.messages.len() as u64) as usize;
                self.deliver(index, false);
            } else if let Some(due) = self.writer.deadline() {
                self.now = self.now.max(due);
                self.pass_time(0);
            } else {
                return;
            }
        }
    }

    /// The bytes of a chunk up to `len` as one replica has them: append numbers in order.
    fn content(&self, chunk: &Chunk, server: usize, len: u32) -> Option<Vec<u64>> {
        if len == 0 {
            return Some(Vec::new());
        }
        let replica = self.replicas.get(&(chunk.id, server))?;
        if replica.len() < len {
            return None;
        }
        let within = replica.records.iter().filter(|r| r.offset + r.len <= len);
        let records: Vec<_> = within.collect();
        let end = records.last().map_or(0, |r| r.offset + r.len);
        assert_eq!(end, len, "sealed inside an append");
        assert!(records.iter().all(|r| r.base == chunk.base), "bytes of another offset");
        Some(records.iter().map(|record| record.seq).collect())
    }

    /// The file is appends 0, 1, ... in order; returns how many.
    fn check_content(&self, tail_len: u32) -> u64 {
        let mut next = 0;
        let mut end = 0;
        for (index, chunk) in self.stream.iter().enumerate() {
            let last = index + 1 == self.stream.len();
            let len = if last { tail_len } else { chunk.sealed.unwrap() };
            assert_eq!(chunk.base, end);
            end += u64::from(len);
            let holders: Vec<_> = chunk
                .servers
                .iter()
                .filter_map(|&server| self.content(chunk, server, len))
                .collect();
            let quorum = if last { chunk.policy.data.into() } else { chunk.acks() };
            assert!(len == 0 || holders.len() >= quorum, "{chunk:?} at {len} on too few replicas");
            for seqs in &holders {
                assert_eq!(seqs, &holders[0], "replicas differ");
            }
            for &seq in holders.first().unwrap_or(&vec![]) {
                assert_eq!(seq, next, "out of order, twice or missing");
                next += 1;
            }
        }
        next
    }

    /// The writer has died: recovery fences as many replicas as it needs, and seals.
    fn recover(&mut self) {
        let tail = self.stream.last().unwrap().clone();
        let votes = usize::from(tail.policy.recovery_votes());
        let mut servers = tail.servers.clone();
        let first = self.rng.below(servers.len() as u64) as usize;
        servers.rotate_left(first);
        let len_at = |s: &usize| self.replicas.get(&(tail.id, *s)).map_or(0, Replica::len);
        // Of the fewest possible votes, the longest that can be decoded counts (`protocols.md` 2.3,
        // `protocols-tail.md` 9.7).
        let mut lens: Vec<_> = servers[..votes].iter().map(len_at).collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        let len = lens[usize::from(tail.policy.data) - 1];
        let count = self.check_content(len);
        assert!(count >= self.acked, "{} acknowledged, {count} found", self.acked);
        assert!(count <= self.lens.len() as u64);
    }
}

fn chase() -> Rc<ChaseBudget> {
    Rc::new(ChaseBudget::new(1 << 30))
}

/// A writer to be replaced at once.
fn dummy(now: Instant) -> Writer {
    let place = ChunkPlace {
        chunk: ChunkId::new(0),
        epoch: EPOCH,
        base: 0,
        sealed: None,
        replicas: vec![ReplicaPlace {
            server: ServerId::new(0),
            disk: DiskId::new(0),
            addr: ([10, 0, 0, 0], 1).into(),
            fragment: 0,
        }],
        acks: 1,
        token: [0; 16],
        copies: 1,
        data: 1,
        compression: None,
    };
    let grant =
        WriterGrant { epoch: EPOCH, len: 0, current: Some(place), spares: vec![], rights_ms: None };
    Writer::new(config(), chase(), grant, now).unwrap()
}

fn server_of(addr: std::net::SocketAddr) -> usize {
    let std::net::IpAddr::V4(ip) = addr.ip() else { unreachable!() };
    usize::from(ip.octets()[3])
}

fn run(seed: u64, policy: Policy) -> [u32; 3] {
    let mut model = Model::new(seed, policy);
    let steps = model.rng.between(50, 900);
    for _ in 0..steps {
        model.step();
    }
    match model.rng.below(4) {
        0 => model.recover(),
        1 => {
            // Another writer comes: nothing is acknowledged any more once all is fenced.
            model.fenced = true;
            let tail = model.stream.last().unwrap().clone();
            for server in tail.servers {
                model.replicas.entry((tail.id, server)).or_default().fenced = true;
            }
            // Bytes that were durable before the fence may be acknowledged behind it: answers are
            // on their way. Recovery finds them.
            let durable = model.durable();
            if model.failed.is_none() {
                model.finish();
            }
            assert!(model.acked <= durable, "acknowledged behind the fence");
            assert!(matches!(model.failed, Some(WriterError::Fenced)), "{:?}", model.failed);
        }
        _ => {
            model.finish();
            assert_eq!(model.failed, None);
            let tail = model.stream.last().unwrap().sealed.unwrap();
            assert_eq!(model.check_content(tail), model.lens.len() as u64);
        }
    }
    [model.switches, model.drops, model.stale]
}

fn run_all(seeds: std::ops::Range<u64>, policy: Policy) {
    let mut sums = [0; 3];
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed, policy));
        let Ok(found) = outcome else { panic!("seed {seed} of {policy}") };
        sums.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
    }
    let [switches, drops, stale] = sums;
    println!("{policy}: {switches} switches, {drops} written spares dropped, {stale} stale");
    assert!(switches > 100 && drops > 2 && stale > 5, "rare paths are reached: {sums:?}");
}

#[test]
fn three_of_three() {
    run_all(0..400, Policy::strict(3));
}

#[test]
fn two_of_three() {
    run_all(0..400, Policy::rep(3));
}

#[test]
fn other_policies() {
    run_all(0..150, Policy::rep(1));
    run_all(0..150, Policy::rep(5));
    run_all(0..150, Policy::strict(2));
}

/// Codes, with chunks in copies among theirs.
#[test]
fn codes() {
    run_all(0..150, Policy::ec(2, 1));
    run_all(0..150, Policy::ec(4, 2));
    run_all(0..50, Policy::ec_strict(4, 2));
    // One acknowledgement more than gives the bytes back.
    run_all(0..150, Policy { acks: 3, ..Policy::ec(2, 3) });
}
