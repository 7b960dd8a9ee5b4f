//! Writers as clients are: they send to all replicas, acknowledge in order, go on in a spare when
//! a replica fails, and vanish at any moment.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use base::{ClientId, Epoch, FileId, Kind, ServerId};
use runtime::sim::Sim;
use runtime::sync::mpsc;
use runtime::{Duration, Env};
use wire::control::{
    ChunkPlace, ControlError, OpId, Policy, StreamChange, StreamReply, StreamRequest, WriterGrant,
};
use wire::data::Purpose;

use super::log::{MemoryLog, World};
use super::model::{Append, Model};
use crate::StreamService;
use crate::placement::ReplicaLocation;

/// Masters, chunkservers and the oracle, for writers and tests.
pub struct Cluster {
    pub sim: Sim,
    pub world: Rc<World>,
    pub model: Rc<Model>,
    pub services: Vec<StreamService<MemoryLog>>,
    pub policy: Policy,
    pub clients: Cell<u64>,
    /// Stops writers.
    pub stop: Cell<bool>,
    /// Policies that files are converted to now and then.
    pub targets: OnceCell<Vec<Policy>>,
}

impl Cluster {
    pub fn targets(&self) -> &[Policy] {
        self.targets.get().map_or(&[], Vec::as_slice)
    }
}

/// A client session.
pub struct Client {
    pub cluster: Rc<Cluster>,
    id: ClientId,
    seq: Cell<u64>,
}

impl Client {
    pub fn new(cluster: &Rc<Cluster>) -> Client {
        cluster.clients.set(cluster.clients.get() + 1);
        let id = ClientId::new(cluster.clients.get());
        Client { cluster: cluster.clone(), id, seq: Cell::new(0) }
    }

    fn env(&self) -> Env {
        self.cluster.model.env.borrow().clone()
    }

    pub async fn ask(&self, request: StreamRequest) -> Result<StreamReply, ControlError> {
        let leader = self.cluster.world.leader.get() as usize;
        let service = self.cluster.services[leader - 1].clone();
        service.handle(request).await
    }

    /// A change, repeated until its outcome is known. Gives up after a while.
    pub async fn change(&self, change: StreamChange) -> Result<StreamReply, ControlError> {
        self.seq.set(self.seq.get() + 1);
        let seq = self.seq.get();
        let op = OpId { client: self.id, seq, acked_below: seq };
        let mut last = ControlError::new(Kind::Unknown, "no try");
        for _ in 0..60 {
            let request = StreamRequest::Change { op, change: change.clone() };
            let timeout = self.cluster.sim.with_rng(|rng| rng.between(100, 5000));
            let answer = self.ask(request);
            match self.env().timeout(Duration::from_millis(timeout), answer).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(error))
                    if !matches!(error.kind, Kind::Retry | Kind::Reroute | Kind::Unknown) =>
                {
                    return Err(error);
                }
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
            let pause = self.cluster.sim.with_rng(|rng| rng.between(1, 100));
            self.cluster.sim.sleep(Duration::from_millis(pause)).await;
        }
        Err(last)
    }

    pub async fn open(&self, file: FileId) -> Result<WriterGrant, ControlError> {
        let policy = self.cluster.policy;
        // Every other client is of a version that names no epoch.
        let mut follows = self.id.get().is_multiple_of(2).then_some(Epoch::NONE);
        loop {
            let (grant, spares, purpose) = ([0; 16], 2, Purpose::Data);
            let change = StreamChange::Open {
                file,
                policy,
                grant,
                spares,
                purpose,
                follows,
                in_copies: false,
                avoid: Vec::new(),
            };
            match self.change(change).await? {
                StreamReply::Writer(grant) => return Ok(grant),
                StreamReply::Epoch { epoch } if follows != Some(epoch) => follows = Some(epoch),
                other => panic!("{other:?}"),
            }
        }
    }

    /// One request to open, which names the epoch that it follows.
    pub fn opening(&self, seq: u64, file: FileId, follows: u64) -> StreamRequest {
        let (policy, follows) = (self.cluster.policy, Some(Epoch::new(follows)));
        let (grant, spares, purpose) = ([0; 16], 1, Purpose::Data);
        let change = StreamChange::Open {
            file,
            policy,
            grant,
            spares,
            purpose,
            follows,
            in_copies: false,
            avoid: Vec::new(),
        };
        let op = OpId { client: self.id, seq, acked_below: 1 };
        StreamRequest::Change { op, change }
    }
}

/// A writer of one file.
pub struct Writer {
    pub client: Client,
    pub file: FileId,
    pub grant: WriterGrant,
    pub current: ChunkPlace,
    /// Acknowledged bytes of the current chunk.
    pub acked: u32,
    /// Servers that the end of the writer names as left.
    pub left: Vec<ServerId>,
}

impl Writer {
    pub async fn open(client: Client, file: FileId) -> Result<Writer, ControlError> {
        let grant = client.open(file).await?;
        let current = grant.current.clone().expect("an open grants a chunk");
        assert_eq!((current.base, current.sealed), (grant.len, None));
        Ok(Writer { client, file, grant, current, acked: 0, left: Vec::new() })
    }

    /// Sends to all replicas; `Err` with the servers that failed, when too few succeeded.
    async fn send(&self, bytes: &[u8]) -> Result<(), Vec<ServerId>> {
        let cluster = &self.client.cluster;
        let chunk = &self.current;
        let append = Append {
            chunk: chunk.chunk,
            epoch: chunk.epoch,
            base: chunk.base,
            offset: self.acked,
            bytes: bytes.to_vec(),
            committed: self.acked,
        };
        let (sender, mut answers) = mpsc::channel(16);
        for replica in &chunk.replicas {
            let (model, sender) = (cluster.model.clone(), sender.clone());
            let (append, server) = (append.clone(), replica.server);
            let place = ReplicaLocation { server, disk: replica.disk };
            let known = cluster.world.fragment(chunk.chunk, place);
            assert!(known.is_none() || known == chunk.fragment(replica), "{chunk:?}");
            cluster.sim.spawn("replica append", async move {
                let result = model.append(place, &append).await;
                let _ = sender.send((server, result.is_ok())).await;
            });
        }
        drop(sender);
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let collect = async {
            while good.len() < usize::from(chunk.acks) {
                match answers.recv().await {
                    Some((server, true)) => good.push(server),
                    Some((server, false)) => bad.push(server),
                    None => return false,
                }
            }
            true
        };
        let timeout = Duration::from_millis(30);
        if let Ok(true) = self.client.env().timeout(timeout, collect).await {
            return Ok(());
        }
        let silent = chunk.replicas.iter().map(|replica| replica.server);
        let failed = silent.filter(|server| !good.contains(server)).collect();
        Err(failed)
    }

    /// Appends and acknowledges. `Err` when this writer is finished.
    pub async fn append(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        for _ in 0..40 {
            match self.send(bytes).await {
                Ok(()) => {
                    let world = &self.client.cluster.world;
                    world.acknowledge(self.file, self.current.chunk, self.acked, bytes);
                    self.acked += bytes.len() as u32;
                    return Ok(());
                }
                Err(failed) => self.advance(failed).await?,
            }
        }
        Err(ControlError::new(Kind::Retry, "no chunk works"))
    }

    /// Goes on in the next spare.
    pub async fn advance(&mut self, avoid: Vec<ServerId>) -> Result<(), ControlError> {
        let (file, epoch) = (self.file, self.grant.epoch);
        let usable = |spare: &&ChunkPlace| {
            !spare.replicas.iter().any(|replica| avoid.contains(&replica.server))
        };
        let good = self.grant.spares.iter().find(usable).map(|spare| spare.chunk);
        let next = match good.or(self.grant.spares.first().map(|spare| spare.chunk)) {
            Some(next) => next,
            None => {
                let change = StreamChange::Extend {
                    file,
                    epoch,
                    avoid,
                    spares: 2,
                    purpose: Purpose::Data,
                    in_copies: false,
                };
                match self.client.change(change).await? {
                    StreamReply::Writer(grant) => self.grant.spares = grant.spares,
                    other => panic!("{other:?}"),
                }
                return Ok(());
            }
        };
        let change = StreamChange::Advance {
            file,
            epoch,
            sealed: self.current.chunk,
            len: self.acked,
            next,
            avoid,
            spares: 2,
            left: Vec::new(),
            in_copies: false,
        };
        match self.client.change(change).await? {
            StreamReply::Writer(grant) => {
                self.current = grant.current.clone().expect("an advance answers the chunk");
                assert_eq!((self.current.chunk, self.current.base), (next, grant.len));
                self.grant = grant;
                self.acked = 0;
                Ok(())
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn close(self, finish: bool) -> Result<u64, ControlError> {
        let sealed = Some((self.current.chunk, self.acked));
        let (file, epoch) = (self.file, self.grant.epoch);
        let left = self.left;
        let change = StreamChange::Close { file, epoch, sealed, finish, left };
        match self.client.change(change).await? {
            StreamReply::Done { len } => Ok(len),
            other => panic!("{other:?}"),
        }
    }

    /// Opens, writes, and ends in one of the ways writers end.
    pub async fn life(cluster: Rc<Cluster>, file: FileId, tag: u8) {
        let Ok(mut writer) = Writer::open(Client::new(&cluster), file).await else { return };
        let draw = |bound: u64| cluster.sim.with_rng(|rng| rng.below(bound));
        for _ in 0..draw(12) {
            if cluster.stop.get() {
                return;
            }
            let bytes: Vec<u8> = (0..1 + draw(40)).map(|_| tag ^ draw(8) as u8).collect();
            if writer.append(&bytes).await.is_err() {
                return;
            }
            match draw(6) {
                0 if writer.advance(Vec::new()).await.is_err() => return,
                1 => cluster.sim.sleep(Duration::from_millis(draw(30))).await,
                _ => {}
            }
        }
        match draw(6) {
            0 => {
                let _ = writer.close(false).await;
            }
            1 => {
                let (file, epoch) = (writer.file, writer.grant.epoch);
                let (sealed, finish, left) = (None, false, Vec::new());
                let change = StreamChange::Close { file, epoch, sealed, finish, left };
                let _ = writer.client.change(change).await;
            }
            2..4 => {
                // Vanishes with appends under way, some of them cut short.
                for _ in 0..draw(3) {
                    let bytes: Vec<u8> = (0..1 + draw(40)).map(|_| tag).collect();
                    let timeout = Duration::from_micros(draw(1500));
                    let sent = writer.send(&bytes);
                    let _ = writer.client.env().timeout(timeout, sent).await;
                }
            }
            _ => {}
        }
    }
}
