//! Replicas, the stream service, and what must hold of them in every state.

use super::*;

/// An append, or a cell of its row: those of one row have one layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) seq: u64,
    pub(super) offset: u32,
    pub(super) layout: u32,
}

#[derive(Clone, Default, Debug)]
pub(super) struct Replica {
    pub(super) records: Vec<Record>,
    pub(super) fenced: bool,
    /// Filled by repair under [`Planted::FillRepairing`].
    pub(super) voteless: bool,
}

impl Replica {
    pub(super) fn len(&self) -> u32 {
        self.records.len() as u32 * LEN
    }
}

#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) id: ChunkId,
    pub(super) base: u64,
    pub(super) servers: Vec<usize>,
    pub(super) sealed: Option<u32>,
}

/// A recovery of the current chunk.
#[derive(Clone, Default, Debug)]
pub(super) struct Recovery {
    pub(super) votes: BTreeMap<usize, u32>,
    /// Of a coded chunk, replicas to which this attempt has copied, with their lengths then.
    pub(super) copied: BTreeMap<usize, u32>,
    pub(super) leaders: u32,
}

/// A request on its way: the append, its offset, and whether it may make the replica.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) id: SendId,
    pub(super) record: Record,
    pub(super) create: bool,
}

/// The end of a sending, on its way to the writer.
pub(super) type Answer = (SendId, Result<u32, SendError>);

/// All but the writer.
#[derive(Clone, Default, Debug)]
pub(super) struct Peers {
    pub(super) code: Code,
    pub(super) requests: BTreeMap<Channel, VecDeque<Request>>,
    pub(super) answers: BTreeMap<Channel, VecDeque<Answer>>,
    pub(super) op: Option<StreamOp>,
    pub(super) op_answer: Option<Result<OpDone, OpError>>,
    pub(super) replicas: BTreeMap<Channel, Replica>,
    /// What each replica has ever had durable: (chunk, server, append).
    pub(super) held: BTreeSet<(ChunkId, usize, u64)>,
    /// The chunk that is current at the stream service is the last.
    pub(super) stream: Vec<Chunk>,
    pub(super) spares: Vec<Chunk>,
    pub(super) next_chunk: u64,
    pub(super) recovery: Option<Recovery>,
    pub(super) recovered: bool,
    /// Orders to copy that are under way: a new leader does not stop them.
    pub(super) orders: BTreeMap<usize, Order>,
    /// Replicas that recovery has recorded in the last chunk.
    pub(super) targets: BTreeMap<usize, Target>,
    pub(super) destroyed: BTreeSet<usize>,
    /// An empty disk is in the place of a destroyed one.
    pub(super) replaced: bool,
    pub(super) harmed: usize,
    /// Appends that all fragments had before the first disk was destroyed.
    pub(super) chased: BTreeSet<(ChunkId, u64)>,
    /// Length up to which `a` different fragments held the last chunk when it was sealed.
    pub(super) held_well: u32,
    /// Chunk and offset of each append, as laid out last.
    pub(super) placed: BTreeMap<u64, Placed>,
    pub(super) acked: u64,
    pub(super) left: BTreeSet<Channel>,
    /// Replicas that were sent something.
    pub(super) followed: BTreeSet<Channel>,
    pub(super) over: bool,
    pub(super) closing: bool,
    pub(super) appended: u64,
    pub(super) losses: u32,
    pub(super) waits: u32,
}

impl Peers {
    /// The end of a chunk names the servers that get nothing more of it, and no others.
    pub(super) fn check_named(&self, op: &StreamOp, marks: &mut Marks) -> Result<(), String> {
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

    pub(super) fn tail(&self) -> &Chunk {
        self.stream.last().expect("a chunk is current")
    }

    pub(super) fn is_alive(&self, server: usize) -> bool {
        !self.destroyed.contains(&server)
    }

    pub(super) fn has_records(&self, server: usize) -> bool {
        let mut of_server = self.replicas.iter().filter(|(channel, _)| channel.1 == server);
        of_server.any(|(_, replica)| !replica.records.is_empty())
    }

    /// Whether a replica lacks acknowledged bytes of its chunk.
    pub(super) fn lacks(&self, chunk: ChunkId, server: usize) -> bool {
        let len = self.replicas.get(&(chunk, server)).map_or(0, Replica::len);
        len < self.acked_in(chunk)
    }

    /// Replicas of ended chunks that lack something and are not fenced.
    pub(super) fn short(&self) -> impl Iterator<Item = Channel> {
        let ended = self.stream.iter().filter(|chunk| chunk.sealed.is_some());
        let all = ended.flat_map(|chunk| chunk.servers.iter().map(|&server| (chunk.id, server)));
        all.filter(|&(chunk, server)| {
            let fenced = self.replicas.get(&(chunk, server)).is_some_and(|it| it.fenced);
            !fenced && self.lacks(chunk, server)
        })
    }

    /// Fences a replica of an ended chunk, and gives it all that was acknowledged there.
    pub(super) fn complete(&mut self, channel: Channel) {
        let of_chunk = |(it, _): &(&Channel, &Replica)| it.0 == channel.0;
        let longest = self.replicas.iter().filter(of_chunk).map(|(_, it)| &it.records);
        let longest = longest.max_by_key(|records| records.len()).expect("it is acknowledged");
        let count = (self.acked_in(channel.0) / LEN) as usize;
        let records = longest[..count].to_vec();
        let held = records.iter().map(|record| (channel.0, channel.1, record.seq));
        self.held.extend(held);
        let replica = self.replicas.entry(channel).or_default();
        (replica.records, replica.fenced) = (records, true);
    }

    pub(super) fn acked_in(&self, chunk: ChunkId) -> u32 {
        (0..self.acked).filter(|seq| self.placed[seq].chunk == chunk).count() as u32 * LEN
    }

    pub(super) fn allocate(&mut self, avoid: &[ServerId]) -> Chunk {
        let id = ChunkId::new(self.next_chunk);
        self.next_chunk += 1;
        let mut servers: Vec<usize> = (0..SERVERS).collect();
        servers.sort_by_key(|&server| avoid.contains(&ServerId::new(server as u32)));
        servers.truncate(self.code.n);
        servers.sort_unstable();
        Chunk { id, base: 0, servers, sealed: None }
    }

    pub(super) fn top_up(&mut self, wanted: usize, avoid: &[ServerId]) {
        while self.spares.len() < wanted {
            let spare = self.allocate(avoid);
            self.spares.push(spare);
        }
    }

    pub(super) fn change_spares(&mut self, avoid: &[ServerId], wanted: u8) {
        let unwanted = |server: &usize| avoid.contains(&ServerId::new(*server as u32));
        self.spares.retain(|spare| !spare.servers.iter().any(unwanted));
        self.top_up(usize::from(wanted), avoid);
    }

    pub(super) fn next_request(&mut self, channel: Channel) -> Request {
        let requests = self.requests.get_mut(&channel).expect("chosen");
        requests.pop_front().expect("chosen")
    }

    pub(super) fn serve(
        &mut self,
        channel: Channel,
        request: Request,
        marks: &mut Marks,
    ) -> Result<Result<u32, SendError>, String> {
        if !self.is_alive(channel.1) {
            return Ok(Err(match self.replaced {
                true => SendError::Data(DataError::WrongDisk),
                false => SendError::Unreachable,
            }));
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
            let is_there = |it: &&Record| (it.seq, it.offset) == (record.seq, record.offset);
            return match replica.records.iter().find(is_there) {
                Some(there) if *there == record => Ok(Ok(len)),
                // Its sectors are compared with those that are there.
                Some(_) => refused(DataError::Conflict),
                None => Err(format!("{record:?} is something else than {replica:?}")),
            };
        }
        replica.records.push(record);
        self.held.insert((channel.0, channel.1, record.seq));
        Ok(Ok(len + LEN))
    }

    /// An answer to the writer, if it lives.
    pub(super) fn answer(&mut self, channel: Channel, id: SendId, result: Result<u32, SendError>) {
        self.answers.entry(channel).or_default().push_back((id, result));
    }

    /// The writer is gone: what only it would see does not matter, nor requests that are refused.
    pub(super) fn forget_writer(&mut self) {
        self.answers.clear();
        self.held.clear();
        self.left.clear();
        self.followed.clear();
        self.spares.clear();
        (self.losses, self.waits, self.closing) = (0, 0, true);
        let tail = self.tail().id;
        let (replicas, destroyed) = (&self.replicas, &self.destroyed);
        self.requests.retain(|channel, requests| {
            let fenced = replicas.get(channel).is_some_and(|it| it.fenced);
            channel.0 == tail && !requests.is_empty() && !fenced && !destroyed.contains(&channel.1)
        });
    }

    pub(super) fn destroy(&mut self, server: usize) {
        if self.destroyed.is_empty() {
            let all = |seq: &u64| self.fragments_with(*seq).count_ones() as usize == self.code.n;
            let chased = self.placed.iter().filter(|it| all(it.0));
            self.chased = chased.map(|(&seq, placed)| (placed.chunk, seq)).collect();
        }
        self.harmed += 1;
        self.destroyed.insert(server);
        self.replicas.retain(|channel, _| channel.1 != server);
        self.orders.remove(&server);
    }

    /// The number of the replica that a server has of a chunk: its fragment.
    pub(super) fn fragment(&self, chunk: ChunkId, server: usize) -> Option<usize> {
        let mut known = self.stream.iter().chain(&self.spares);
        let known = known.find(|it| it.id == chunk)?;
        let own = known.servers.iter().position(|it| *it == server);
        let target = || self.targets.get(&server).filter(|_| chunk == self.tail().id);
        own.or_else(|| target().map(|it| it.fragment))
    }

    /// A bit for each fragment whose cell of an append's row is there.
    pub(super) fn fragments_with(&self, seq: u64) -> u32 {
        let chunk = self.placed[&seq].chunk;
        let has = |(channel, replica): &(&Channel, &Replica)| {
            channel.0 == chunk && replica.records.iter().any(|record| record.seq == seq)
        };
        let holders = self.replicas.iter().filter(has);
        let fragments = holders.filter_map(|(channel, _)| self.fragment(chunk, channel.1));
        fragments.fold(0, |mask, fragment| mask | 1 << fragment)
    }

    /// True when recovery has to wait: fewer replicas than must vote are left.
    pub(super) fn lacks_voters(&self) -> bool {
        let alive = self.tail().servers.iter().filter(|it| self.is_alive(**it)).count();
        alive < self.code.quorum().votes_needed()
    }

    /// As many permanent losses as the code is to survive at success lose nothing that is
    /// acknowledged, at any moment; nor do more of them what all replicas had before. Cells of one row
    /// are of one layout.
    pub(super) fn check(&self) -> Result<(), String> {
        let Code { n, a, k } = self.code;
        let lost = self.destroyed.len();
        for (&seq, placed) in &self.placed {
            let chased = self.chased.contains(&(placed.chunk, seq)) && lost <= n - k;
            let promised = seq < self.acked && (lost <= a - k || chased);
            let sealed_well =
                placed.chunk == self.tail().id && placed.offset < self.held_well && lost <= a - k;
            let there = self.fragments_with(seq).count_ones() as usize;
            if promised && there < k {
                return Err(format!("append {seq} is acknowledged and on {there} replicas"));
            }
            if sealed_well && there < k {
                return Err(format!("append {seq} is sealed and on {there} replicas"));
            }
        }
        let mut rows: BTreeMap<(ChunkId, u32), Record> = BTreeMap::new();
        for (channel, replica) in &self.replicas {
            for record in &replica.records {
                let first = *rows.entry((channel.0, record.offset)).or_insert(*record);
                if first != *record {
                    return Err(format!("cells of one row differ: {first:?}, {record:?}"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_acked(&self, seq: u64, marks: &mut Marks) -> Result<(), String> {
        let Placed { chunk, offset, .. } = self.placed[&seq];
        // Answers of replicas that were left count no more.
        let counts = |held: &&(ChunkId, usize, u64)| {
            (held.0, held.2) == (chunk, seq) && !self.left.contains(&(chunk, held.1))
        };
        let holders = self.held.iter().filter(counts).count();
        if holders < self.code.a {
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

    /// A replica is left only while as many others stay followed as acknowledge, before any time has
    /// passed; one whose disk is gone has failed in any case.
    pub(super) fn check_left(&self, chunk: &Chunk, server: usize) -> Result<(), String> {
        let stays = |other: &&usize| **other != server && !self.left.contains(&(chunk.id, **other));
        let others = chunk.servers.iter().filter(stays).count();
        if others < self.code.a && self.waits == 0 && self.is_alive(server) {
            return Err(format!("server {server} is left, and {others} stay of {}", chunk.id));
        }
        Ok(())
    }

    /// Bytes are let go when each replica that was not left has them.
    pub(super) fn check_released(&self, seq: u64, marks: &mut Marks) -> Result<(), String> {
        let chunk = self.placed[&seq].chunk;
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
