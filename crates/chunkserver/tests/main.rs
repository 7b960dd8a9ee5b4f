//! Chunkservers over the simulated network, on model stores.

mod beats;
mod cancelled;
mod convert;
mod latent;
mod orders;
mod probes;
mod rebuild;
mod rows;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use base::{ChunkId, DiskId, Epoch, ServerId, TraceId};
use chunkserver::{Chunkserver, Config, ShardDirectory};
use codec::block::Codec;
use latent::Latent;
use runtime::Env;
use runtime::sim::Sim;
use testing::chunks::ModelDisk;
use testing::rows::cell_of;
use transport::{ClusterKey, Endpoint, Identity, Limits, Priority, Request, Service, Token};
use wire::control::{
    ChunkserverReply, ChunkserverRequest, ControlError, ControlReply, ControlRequest, CopyOrder,
    ReplicaPlace,
};
use wire::data::{
    AppendRequest, ChunkRef, CommitRequest, DataError, DataReply, DataRequest, FenceRequest,
    Purpose, ReadRequest, ReplicaState, SealRequest,
};
use wire::data_codec::decode_answer;
use wire::row::Fragment;
use wire::sector::{AppendAt, format_append, sectors_for};
use wire::token::{IssuerTime, Rights, TokenKey};

const PORT: u16 = 7100;
const CHUNK: ChunkId = ChunkId::new(0x11);
const EPOCH: Epoch = Epoch::new(3);
const BASE: u64 = 1 << 20;

/// Servers with one model disk each, and a caller.
struct Bed {
    env: Env,
    endpoint: Endpoint,
    key: TokenKey,
    servers: Vec<(SocketAddr, DiskId, Chunkserver<Latent>)>,
    stores: Vec<Latent>,
    /// Appends are rows of this codec.
    rows: Cell<Option<Codec>>,
}

fn identity(name: &str) -> Identity {
    let key = ClusterKey::new([7; 32]);
    Identity { cluster: base::ClusterId::new(5), key: Some(key), name: name.to_owned() }
}

impl Bed {
    async fn start(sim: &Sim, count: usize) -> Bed {
        Bed::start_with(sim, count, Some(ClusterKey::new([7; 32]))).await
    }

    /// As a cluster with this key runs them, or one without a key.
    async fn start_with(sim: &Sim, count: usize, key: Option<ClusterKey>) -> Bed {
        Bed::start_as(sim, count, key, |_| ()).await
    }

    async fn start_as(
        sim: &Sim,
        count: usize,
        key: Option<ClusterKey>,
        configure: impl Fn(&mut Config),
    ) -> Bed {
        let token_key = key.as_ref().map(TokenKey::derive);
        let key = TokenKey::of_cluster(key.as_ref());
        let (mut servers, mut stores) = (Vec::new(), Vec::new());
        for index in 0..count {
            let host = sim.add_host(&format!("cs{index}"));
            let env = sim.boot(host);
            let endpoint = Endpoint::new(&env, identity("chunkserver"), Limits::default());
            let disk = DiskId::new(100 + index as u128);
            let store = Latent::new(ModelDisk::new(disk).open(Some(env.clone())));
            stores.push(store.clone());
            let mut config = Config::new(&format!("cs{index}"), sim.addr(host, PORT), Vec::new());
            config.scrub_pause = Duration::from_secs(1);
            config.scrub_rate = 64 << 20;
            config.token_key = token_key.clone();
            config.fault_injection = true;
            configure(&mut config);
            let disks = vec![("/disk".to_owned(), store)];
            let server = Chunkserver::start(&env, endpoint, config, disks).await.unwrap();
            servers.push((sim.addr(host, PORT), disk, server));
        }
        let env = sim.boot(sim.add_host("caller"));
        let endpoint = Endpoint::new(&env, identity("caller"), Limits::default());
        Bed { env, endpoint, key, servers, stores, rows: Cell::new(None) }
    }

    /// One server of two shards, with a disk each.
    async fn shards(sim: &Sim) -> Bed {
        let key = TokenKey::derive(&ClusterKey::new([7; 32]));
        let (directory, mut servers, mut stores) =
            (ShardDirectory::default(), Vec::new(), Vec::new());
        let host = sim.add_host("cs0");
        let env = sim.boot(host);
        for index in 0..2 {
            let endpoint = Endpoint::new(&env, identity("chunkserver"), Limits::default());
            let disk = DiskId::new(100 + u128::from(index));
            let store = Latent::new(ModelDisk::new(disk).open(Some(env.clone())));
            stores.push(store.clone());
            let addr = sim.addr(host, PORT + index);
            let mut config = Config::new("cs0", addr, Vec::new());
            config.token_key = Some(key.clone());
            config.shards = 2;
            config.left_out = vec![("/absent".to_owned(), "it is absent".to_owned())];
            let disks = vec![("/disk".to_owned(), store)];
            let shard =
                Chunkserver::shard(&env, endpoint, config, disks, &directory).await.unwrap();
            servers.push((addr, disk, shard));
        }
        servers[0].2.speak();
        let env = sim.boot(sim.add_host("caller"));
        let endpoint = Endpoint::new(&env, identity("caller"), Limits::default());
        Bed { env, endpoint, key, servers, stores, rows: Cell::new(None) }
    }

    fn at(&self, server: usize) -> ChunkRef {
        ChunkRef { chunk: CHUNK, disk: self.servers[server].1 }
    }

    fn token(&self) -> Token {
        let expiry = self.env.unix_time().as_nanos() / 1_000_000_000 + 60;
        self.key.issue(CHUNK, Rights::ALL, EPOCH, IssuerTime::wall(expiry))
    }

    async fn data(
        &self,
        server: usize,
        request: DataRequest,
        payload: Option<runtime::Buf>,
    ) -> Result<(DataReply, Vec<u8>), DataError> {
        self.data_with(server, request, payload, self.token()).await
    }

    async fn data_with(
        &self,
        server: usize,
        request: DataRequest,
        payload: Option<runtime::Buf>,
        token: Token,
    ) -> Result<(DataReply, Vec<u8>), DataError> {
        let request = Request {
            service: Service::DATA,
            op: request.op(),
            priority: Priority::Foreground,
            flow: 0,
            trace: TraceId::new(1),
            token,
            body: request.encode(),
            payload,
        };
        let answer = self.endpoint.call(self.servers[server].0, request, Duration::from_secs(2));
        let answer = answer.await.unwrap();
        let reply = decode_answer(answer.status, &answer.body).unwrap()?;
        Ok((reply, answer.payload.map(|payload| payload.to_vec()).unwrap_or_default()))
    }

    async fn control(
        &self,
        server: usize,
        request: ChunkserverRequest,
    ) -> Result<ChunkserverReply, ControlError> {
        self.send_control(server, request).await.expect("it ends")
    }

    fn send_control(
        &self,
        server: usize,
        request: ChunkserverRequest,
    ) -> runtime::JoinHandle<Result<ChunkserverReply, ControlError>> {
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Control,
            flow: 0,
            trace: TraceId::new(2),
            token: Token::NONE,
            body: ControlRequest::Chunkserver(request).encode(),
            payload: None,
        };
        let (endpoint, to) = (self.endpoint.clone(), self.servers[server].0);
        self.env.spawn(runtime::Class::Foreground, "control", async move {
            let answer = endpoint.call(to, request, Duration::from_secs(9)).await.unwrap();
            if answer.status != 0 {
                return Err(ControlError::decode(&answer.body).unwrap());
            }
            match ControlReply::decode(&answer.body).unwrap() {
                ControlReply::Chunkserver(reply) => Ok(reply),
                other => panic!("{other:?}"),
            }
        })
    }

    async fn append(
        &self,
        server: usize,
        offset: u32,
        data: &[u8],
        committed: u32,
    ) -> Result<u32, DataError> {
        self.append_with(server, offset, data, committed, self.token()).await
    }

    async fn append_with(
        &self,
        server: usize,
        offset: u32,
        data: &[u8],
        committed: u32,
        token: Token,
    ) -> Result<u32, DataError> {
        let at = AppendAt { chunk: CHUNK, epoch: EPOCH, base: BASE, offset };
        let sectors = match self.rows.get() {
            Some(codec) => cell_of(at, data, Fragment::COPY, codec),
            None => {
                let mut sectors = vec![0; sectors_for(data.len()) * 4096];
                format_append(at, data, &mut sectors);
                sectors
            }
        };
        let sectors = self.env.pool().copy_of(&sectors).unwrap();
        let request = DataRequest::Append(AppendRequest {
            at: self.at(server),
            epoch: EPOCH,
            base: BASE,
            offset,
            len: data.len() as u32,
            committed,
            create: offset == 0,
            purpose: Purpose::Data,
        });
        match self.data_with(server, request, Some(sectors), token).await?.0 {
            DataReply::Appended { len } => Ok(len),
            other => panic!("{other:?}"),
        }
    }

    /// An order to server `to` to copy the chunk from the servers `from`.
    fn replicate(&self, to: usize, from: &[usize], len: u32) -> ChunkserverRequest {
        self.to_copy(to, self.copy_from(from, len))
    }

    fn to_copy(&self, to: usize, order: CopyOrder) -> ChunkserverRequest {
        ChunkserverRequest::Replicate { disk: self.servers[to].1, order }
    }

    fn copy_from(&self, from: &[usize], len: u32) -> CopyOrder {
        let source = |&server: &usize| {
            let (addr, disk, _) = self.servers[server];
            ReplicaPlace { server: ServerId::new(server as u32 + 1), disk, addr, fragment: 0 }
        };
        CopyOrder {
            chunk: CHUNK,
            epoch: EPOCH,
            base: BASE,
            len,
            sources: from.iter().map(source).collect(),
            token: self.token().0,
            seal: true,
            fragment: None,
            urgent: false,
        }
    }

    async fn seal(&self, server: usize, len: u32) {
        let seal = SealRequest { at: self.at(server), len };
        self.data(server, DataRequest::Seal(seal), None).await.unwrap();
    }

    async fn commit(&self, server: usize, committed: u32) -> Result<(), DataError> {
        let commit = CommitRequest { at: self.at(server), epoch: EPOCH, committed };
        self.data(server, DataRequest::Commit(commit), None).await.map(drop)
    }

    async fn read(&self, server: usize, uncommitted: bool) -> Result<(u32, usize), DataError> {
        let request = ReadRequest {
            at: self.at(server),
            offset: 0,
            len: 100_000,
            uncommitted,
            cell_sector: None,
            blocks: false,
        };
        match self.data(server, DataRequest::Read(request), None).await? {
            (DataReply::Read { readable, .. }, sectors) => Ok((readable, sectors.len())),
            other => panic!("{other:?}"),
        }
    }
}

/// As [`check`], with plain appends and with rows.
fn check_layouts(count: usize, test: impl AsyncFn(Bed)) {
    for rows in [None, Some(Codec::Lz4), Some(Codec::Plain)] {
        check(count, async |bed| {
            bed.rows.set(rows);
            test(bed).await;
        });
    }
}

fn check(count: usize, test: impl AsyncFnOnce(Bed)) {
    let sim = Sim::new(1);
    sim.run(async {
        let bed = Bed::start(&sim, count).await;
        test(bed).await;
    })
    .unwrap();
    sim.close();
}

#[test]
fn open_chunk_serves_its_committed_bytes_only() {
    check(1, async |bed| {
        assert_eq!(bed.append(0, 0, &[1; 5000], 0).await, Ok(5000));
        assert_eq!(bed.read(0, false).await, Ok((0, 0)));
        assert_eq!(bed.read(0, true).await, Ok((5000, 8192)));
        assert_eq!(bed.append(0, 5000, &[2; 100], 5000).await, Ok(5100));
        assert_eq!(bed.read(0, false).await, Ok((5000, 8192)));
        let commit = CommitRequest { at: bed.at(0), epoch: EPOCH, committed: 5100 };
        bed.data(0, DataRequest::Commit(commit), None).await.unwrap();
        assert_eq!(bed.read(0, false).await, Ok((5100, 12_288)));
    });
}

#[test]
fn open_chunk_serves_whole_rows_that_are_committed() {
    check(1, async |bed| {
        bed.rows.set(Some(Codec::Plain));
        // Two sectors, then one.
        assert_eq!(bed.append(0, 0, &[1; 5000], 0).await, Ok(5000));
        assert_eq!(bed.append(0, 5000, &[2; 100], 5000).await, Ok(5100));
        assert_eq!(bed.read(0, false).await, Ok((5000, 8192)));
        // A length amid a row shows the row: its reader cuts it.
        bed.commit(0, 5050).await.unwrap();
        assert_eq!(bed.read(0, false).await, Ok((5050, 12_288)));
    });
}

#[test]
fn append_with_a_gap_or_to_a_wrong_disk_is_refused() {
    check(1, async |bed| {
        bed.append(0, 0, &[1; 100], 0).await.unwrap();
        assert_eq!(bed.append(0, 200, &[1; 10], 0).await, Err(DataError::Gap { len: 100 }));
        let elsewhere = ChunkRef { chunk: CHUNK, disk: DiskId::new(999) };
        let asked = bed.data(0, DataRequest::Stat(elsewhere), None).await;
        assert_eq!(asked, Err(DataError::WrongDisk));
    });
}

#[test]
fn append_below_a_fence_is_refused() {
    check(1, async |bed| {
        bed.append(0, 0, &[1; 100], 0).await.unwrap();
        let fence = FenceRequest { at: bed.at(0), epoch: EPOCH.next() };
        // The token is of the writer's epoch: it must not fence for a later one.
        let refused = bed.data(0, DataRequest::Fence(fence), None).await;
        assert_eq!(refused, Err(DataError::Denied));
        let token = bed.key.issue(CHUNK, Rights::ALL, EPOCH.next(), IssuerTime::wall(u64::MAX));
        bed.data_with(0, DataRequest::Fence(fence), None, token).await.unwrap();
        let late = bed.append(0, 100, &[1; 100], 0).await;
        assert_eq!(late, Err(DataError::Fenced { epoch: EPOCH.next() }));
        let seal = SealRequest { at: bed.at(0), len: 100 };
        let (reply, _) = bed.data(0, DataRequest::Seal(seal), None).await.unwrap();
        let DataReply::Stat(stat) = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, 100));
    });
}

#[test]
fn calls_without_rights_are_refused() {
    check(1, async |bed| {
        let stat = DataRequest::Stat(bed.at(0));
        let none = bed.data_with(0, stat.clone(), None, Token::NONE).await;
        assert_eq!(none, Err(DataError::Denied));
        let other = TokenKey::derive(&ClusterKey::new([8; 32]));
        let forged = other.issue(CHUNK, Rights::ALL, EPOCH, IssuerTime::wall(u64::MAX));
        assert_eq!(bed.data_with(0, stat, None, forged).await, Err(DataError::Denied));
    });
}

/// A writer opens a file and idles; another takes it over, so that the first one's chunk, of which
/// nothing was written, is fenced, deleted and forgotten. The first one's append comes after that.
#[test]
fn append_of_a_forgotten_chunk_is_refused_with_a_key_and_without() {
    for key in [None, Some(ClusterKey::new([7; 32]))] {
        let sim = Sim::new(1);
        sim.run(async {
            let bed = Bed::start_with(&sim, 1, key).await;
            let old = bed.token();
            let (at, disk) = (bed.at(0), bed.servers[0].1);
            let token = bed.key.issue(CHUNK, Rights::ALL, EPOCH.next(), IssuerTime::wall(u64::MAX));
            let fence = DataRequest::Fence(FenceRequest { at, epoch: EPOCH.next() });
            bed.data_with(0, fence, None, token).await.unwrap();
            bed.env.sleep(Duration::from_secs(65)).await;
            let delete = ChunkserverRequest::Delete { disk, chunks: vec![CHUNK], not_after: None };
            bed.control(0, delete).await.unwrap();
            bed.env.sleep(Duration::from_secs(65)).await;
            let forget = ChunkserverRequest::Forget { disk, chunks: vec![CHUNK], not_after: None };
            bed.control(0, forget).await.unwrap();
            let late = bed.append_with(0, 0, &[1; 100], 0, old).await;
            assert_eq!(late, Err(DataError::Denied));
        })
        .unwrap();
        sim.close();
    }
}

#[test]
fn calls_without_rights_are_refused_without_a_key() {
    let sim = Sim::new(1);
    sim.run(async {
        let bed = Bed::start_with(&sim, 1, None).await;
        bed.append(0, 0, &[1; 100], 0).await.unwrap();
        let stat = DataRequest::Stat(bed.at(0));
        let none = bed.data_with(0, stat, None, Token::NONE).await;
        assert_eq!(none, Err(DataError::Denied));
    })
    .unwrap();
    sim.close();
}

#[test]
fn a_copy_is_equal_and_sealed() {
    check_layouts(2, async |bed| {
        let (mut len, mut turn) = (0, 0);
        while len < 3_000_000 {
            let data = vec![turn as u8; 1 + (turn * 7919) % 50_000];
            len = bed.append(0, len, &data, len).await.unwrap();
            turn += 1;
        }
        let (addr, disk, _) = bed.servers[0];
        let sources = vec![
            // The first source has no such disk: the copy goes on from the next.
            ReplicaPlace { server: ServerId::new(1), disk: DiskId::new(999), addr, fragment: 0 },
            ReplicaPlace { server: ServerId::new(1), disk, addr, fragment: 0 },
        ];
        let replicate = bed.to_copy(1, CopyOrder { sources, ..bed.copy_from(&[0], len) });
        let reply = bed.control(1, replicate.clone()).await.unwrap();
        let ChunkserverReply::Replicated { stat, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, len));
        assert_eq!(bed.read(1, false).await, bed.read(0, true).await);
        // Asked again after its answer was lost: the same answer, nothing copied.
        let again = bed.control(1, replicate).await.unwrap();
        assert_eq!(again, ChunkserverReply::Replicated { stat, bytes: 0 });
    });
}

#[test]
fn a_short_fenced_replica_is_completed_in_place() {
    check(2, async |bed| {
        for server in 0..2 {
            bed.append(server, 0, &[1; 5000], 0).await.unwrap();
        }
        bed.append(0, 5000, &[2; 3000], 0).await.unwrap();
        let token = bed.key.issue(CHUNK, Rights::ALL, EPOCH.next(), IssuerTime::wall(u64::MAX));
        for server in 0..2 {
            let fence = FenceRequest { at: bed.at(server), epoch: EPOCH.next() };
            bed.data_with(server, DataRequest::Fence(fence), None, token).await.unwrap();
        }
        let replicate =
            |seal| bed.to_copy(1, CopyOrder { token: token.0, seal, ..bed.copy_from(&[0], 8000) });
        let reply = bed.control(1, replicate(false)).await.unwrap();
        let ChunkserverReply::Replicated { stat, bytes } = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Fenced(EPOCH.next()), 8000));
        assert_eq!(bytes, 4096, "only what it lacked");
        // The writer is shut out as before.
        let late = bed.append(1, 8000, &[3; 100], 0).await;
        assert_eq!(late, Err(DataError::Fenced { epoch: EPOCH.next() }));
        let reply = bed.control(1, replicate(true)).await.unwrap();
        let ChunkserverReply::Replicated { stat, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, 8000));
    });
}

/// Server 0 has the chunk, server 1 never saw its creation; both are fenced.
async fn fenced_before_its_creation(bed: &Bed) -> Token {
    bed.append(0, 0, &[1; 5000], 0).await.unwrap();
    bed.append(0, 5000, &[2; 3000], 0).await.unwrap();
    let token = bed.key.issue(CHUNK, Rights::ALL, EPOCH.next(), IssuerTime::wall(u64::MAX));
    for server in 0..2 {
        let fence = FenceRequest { at: bed.at(server), epoch: EPOCH.next() };
        bed.data_with(server, DataRequest::Fence(fence), None, token).await.unwrap();
    }
    token
}

#[test]
fn tombstone_of_a_fence_is_filled_and_stays_fenced() {
    check(2, async |bed| {
        fenced_before_its_creation(&bed).await;
        for (len, copied) in [(5000, 8192), (8000, 4096)] {
            let order = CopyOrder { seal: false, ..bed.copy_from(&[0], len) };
            let reply = bed.control(1, bed.to_copy(1, order)).await.unwrap();
            let ChunkserverReply::Replicated { stat, bytes } = reply else { panic!("{reply:?}") };
            let fenced = ReplicaState::Fenced(EPOCH.next());
            assert_eq!((stat.state, stat.len, bytes), (fenced, len, copied));
        }
        // The writer is shut out as before.
        let late = bed.append(1, 8000, &[3; 100], 0).await;
        assert_eq!(late, Err(DataError::Fenced { epoch: EPOCH.next() }));
        let reply = bed.control(1, bed.replicate(1, &[0], 8000)).await.unwrap();
        let ChunkserverReply::Replicated { stat, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, 8000));
    });
}

#[test]
fn late_append_to_a_deleted_replica_is_refused() {
    check(1, async |bed| {
        bed.append(0, 0, &[1; 100], 0).await.unwrap();
        let disk = bed.servers[0].1;
        let delete = ChunkserverRequest::Delete { disk, chunks: vec![CHUNK], not_after: None };
        assert_eq!(bed.control(0, delete).await, Ok(ChunkserverReply::Done));
        // A creation that was delayed meets the tombstone.
        assert!(bed.append(0, 0, &[1; 100], 0).await.is_err());
        let forget = ChunkserverRequest::Forget { disk, chunks: vec![CHUNK], not_after: None };
        assert_eq!(bed.control(0, forget).await, Ok(ChunkserverReply::Done));
        let list = ChunkserverRequest::List { disk, after: None, limit: 10 };
        let listed = ChunkserverReply::List { replicas: Vec::new(), more: false };
        assert_eq!(bed.control(0, list).await, Ok(listed));
    });
}

/// A master's order to delete or forget was held up on its way. The replica that it meant is gone,
/// and the one that is here was made since.
#[test]
fn delete_order_after_its_deadline_is_refused() {
    check(1, async |bed| {
        bed.env.sleep(Duration::from_secs(1)).await;
        let disk = bed.servers[0].1;
        let now_s = bed.env.unix_time().as_nanos() / 1_000_000_000;
        let not_after = Some(IssuerTime::wall(now_s));
        bed.env.sleep(Duration::from_secs(2)).await;
        bed.append(0, 0, &[1; 100], 0).await.unwrap();
        for order in [
            ChunkserverRequest::Delete { disk, chunks: vec![CHUNK], not_after },
            ChunkserverRequest::Forget { disk, chunks: vec![CHUNK], not_after },
        ] {
            let error = bed.control(0, order).await.expect_err("refused");
            assert_eq!(error.kind, base::Kind::Retry);
            assert!(error.message.contains("has run out"), "{error:?}");
        }
        bed.append(0, 100, &[2; 100], 0).await.expect("the replica is there");
        let not_after = Some(IssuerTime::wall(now_s + 60));
        let order = ChunkserverRequest::Delete { disk, chunks: vec![CHUNK], not_after };
        assert_eq!(bed.control(0, order).await, Ok(ChunkserverReply::Done));
    });
}

#[test]
fn committed_length_of_a_deleted_replica_is_forgotten() {
    check(1, async |bed| {
        bed.append(0, 0, &[1; 5000], 0).await.unwrap();
        bed.append(0, 5000, &[2; 100], 5000).await.unwrap();
        assert_eq!(bed.read(0, false).await, Ok((5000, 8192)));
        let disk = bed.servers[0].1;
        let delete = ChunkserverRequest::Delete { disk, chunks: vec![CHUNK], not_after: None };
        assert_eq!(bed.control(0, delete).await, Ok(ChunkserverReply::Done));
        // Messages of its writer that were delayed.
        assert!(bed.commit(0, 5100).await.is_err());
        assert!(bed.append(0, 0, &[1; 5000], 5100).await.is_err());
        assert!(bed.append(0, 5100, &[3; 100], 5100).await.is_err());
        let forget = ChunkserverRequest::Forget { disk, chunks: vec![CHUNK], not_after: None };
        assert_eq!(bed.control(0, forget).await, Ok(ChunkserverReply::Done));
        assert!(bed.commit(0, 5100).await.is_err());
        // One that is made again shows nothing of what its predecessor had.
        bed.append(0, 0, &[4; 5000], 0).await.unwrap();
        assert_eq!(bed.read(0, false).await, Ok((0, 0)));
    });
}

#[test]
fn failed_disk_is_reported_and_the_server_goes_on() {
    check(1, async |bed| {
        bed.append(0, 0, &[1; 100], 100).await.unwrap();
        let disk = bed.servers[0].1;
        let fail = |failed| ChunkserverRequest::FailDisk { disk, failed };
        bed.control(0, fail(true)).await.unwrap();
        assert_eq!(bed.read(0, false).await, Err(DataError::DiskFailed));
        assert!(bed.servers[0].2.disk_reports()[0].failed);
        bed.control(0, fail(false)).await.unwrap();
        assert_eq!(bed.read(0, false).await, Ok((100, 4096)));
    });
}

#[test]
fn request_at_a_shard_without_the_disk_is_handed_over() {
    let sim = Sim::new(1);
    sim.run(async {
        let mut bed = Bed::shards(&sim).await;
        assert_eq!(bed.append(0, 0, &[1; 100], 100).await, Ok(100));
        assert_eq!(bed.append(1, 0, &[2; 5000], 5000).await, Ok(5000));
        assert_eq!(bed.servers[0].2.stats().forwarded, 0);
        // The second disk, asked for at the first shard's address.
        bed.servers[0].1 = bed.servers[1].1;
        assert_eq!(bed.append(0, 5000, &[3; 100], 5100).await, Ok(5100));
        assert_eq!(bed.read(0, false).await, Ok((5100, 3 * 4096)));
        let disk = bed.servers[1].1;
        let list = ChunkserverRequest::List { disk, after: None, limit: 10 };
        let Ok(ChunkserverReply::List { replicas, .. }) = bed.control(0, list).await else {
            panic!("no list");
        };
        assert_eq!(replicas.len(), 1);
        assert!(replicas[0].physical >= Some(3 * 4096), "{replicas:?}");
        bed.env.sleep(Duration::from_secs(1)).await;
        let stats = bed.servers[0].2.stats();
        assert_eq!((stats.forwarded, stats.appends, stats.reads), (3, 3, 1));
        // No shard has this one.
        let elsewhere = ChunkRef { chunk: CHUNK, disk: DiskId::new(999) };
        let asked = bed.data(0, DataRequest::Stat(elsewhere), None).await;
        assert_eq!(asked, Err(DataError::WrongDisk));
    })
    .unwrap();
    sim.close();
}

#[test]
fn request_for_no_disk_is_refused_by_shards_that_have_disks_left_out() {
    let sim = Sim::new(1);
    sim.run(async {
        let bed = Bed::shards(&sim).await;
        let nowhere = ChunkRef { chunk: CHUNK, disk: DiskId::default() };
        for shard in 0..2 {
            let asked = bed.data(shard, DataRequest::Stat(nowhere), None).await;
            assert_eq!(asked, Err(DataError::WrongDisk));
        }
        bed.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(bed.servers[0].2.stats().forwarded, 0);
    })
    .unwrap();
    sim.close();
}

#[test]
fn scrub_reads_the_whole_of_a_chunk_of_small_appends() {
    check_layouts(1, async |bed| {
        // A read brings 4 MiB of sectors at most: 1,024 of 100 bytes.
        for at in 0..1_500 {
            bed.append(0, at * 100, &[at as u8; 100], 0).await.unwrap();
        }
        bed.seal(0, 150_000).await;
        bed.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(bed.servers[0].2.stats().damaged, 0);
        bed.stores[0].spoil(140_000);
        bed.env.sleep(Duration::from_secs(3)).await;
        let stats = bed.servers[0].2.stats();
        assert!(stats.scrub_passes >= 2);
        assert_eq!(stats.damaged, 1, "damage behind the first read is not found");
    });
}

#[test]
fn damage_of_an_open_replica_is_reported_to_its_writer() {
    check(1, async |bed| {
        bed.append(0, 0, &[1; 10_000], 0).await.unwrap();
        assert_eq!(bed.commit(0, 10_000).await, Ok(()));
        bed.stores[0].spoil(5_000);
        bed.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(bed.servers[0].2.stats().damaged, 1, "open replicas are not scrubbed");
        let refused = bed.commit(0, 10_000).await;
        assert!(matches!(refused, Err(DataError::Corrupt { .. })), "{refused:?}");
        let refused = bed.append(0, 10_000, &[2; 100], 10_000).await;
        assert!(matches!(refused, Err(DataError::Corrupt { .. })), "{refused:?}");
    });
}

#[test]
fn commit_message_to_a_missing_replica_is_refused() {
    check(1, async |bed| {
        assert_eq!(bed.commit(0, 100).await, Err(DataError::NotFound));
        bed.append(0, 0, &[1; 100], 0).await.unwrap();
        assert_eq!(bed.commit(0, 100).await, Ok(()));
        let token = bed.key.issue(CHUNK, Rights::ALL, EPOCH.next(), IssuerTime::wall(u64::MAX));
        let fence = FenceRequest { at: bed.at(0), epoch: EPOCH.next() };
        bed.data_with(0, DataRequest::Fence(fence), None, token).await.unwrap();
        assert_eq!(bed.commit(0, 100).await, Err(DataError::Fenced { epoch: EPOCH.next() }));
        bed.seal(0, 100).await;
        assert_eq!(bed.commit(0, 100).await, Err(DataError::Sealed { len: 100 }));
        let delete = ChunkserverRequest::Delete {
            disk: bed.servers[0].1,
            chunks: vec![CHUNK],
            not_after: None,
        };
        bed.control(0, delete).await.unwrap();
        assert_eq!(bed.commit(0, 100).await, Err(DataError::NotFound));
    });
}

/// Two sealed replicas of 200,000 bytes, written by appends of `size` bytes.
async fn two_replicas(bed: &Bed, size: usize) -> u32 {
    let mut len = 0;
    while len < 200_000 {
        let data = vec![(len / 1000) as u8; size];
        for server in 0..2 {
            bed.append(server, len, &data, 0).await.unwrap();
        }
        len += size as u32;
    }
    bed.seal(0, len).await;
    bed.seal(1, len).await;
    len
}

#[test]
fn a_copy_takes_each_sector_from_the_source_that_has_it() {
    for size in [500, 30_000] {
        check_layouts(3, async |bed| {
            let len = two_replicas(&bed, size).await;
            [10_000, 90_000, 150_000].iter().for_each(|&at| bed.stores[0].spoil(at));
            [0, 50_000, len - 1].iter().for_each(|&at| bed.stores[1].spoil(at));
            // Both are known to be damaged, and serve what is behind.
            bed.env.sleep(Duration::from_secs(3)).await;
            assert_eq!(bed.servers[0].2.stats().damaged, 1);
            let reply = bed.control(2, bed.replicate(2, &[0, 1], len)).await.unwrap();
            let ChunkserverReply::Replicated { stat, .. } = reply else { panic!("{reply:?}") };
            assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, len));
        });
    }
}

#[test]
fn a_copy_that_has_no_source_for_a_sector_goes_on_when_it_has_one() {
    check(3, async |bed| {
        let len = two_replicas(&bed, 30_000).await;
        bed.stores[0].spoil(100_000);
        bed.stores[1].spoil(100_000);
        let error = bed.control(2, bed.replicate(2, &[0, 1], len)).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Reroute, "{error}");
        bed.stores[1].mend();
        let reply = bed.control(2, bed.replicate(2, &[0, 1], len)).await.unwrap();
        let ChunkserverReply::Replicated { stat, bytes } = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, len));
        assert!(bytes < u64::from(len), "{bytes} bytes: the copy began again");
    });
}

#[test]
fn a_copy_counts_when_the_medium_gives_it_back() {
    check(2, async |bed| {
        bed.append(0, 0, &[1; 100_000], 0).await.unwrap();
        bed.seal(0, 100_000).await;
        bed.stores[1].spoil(70_000);
        let error = bed.control(1, bed.replicate(1, &[0], 100_000)).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Corrupt, "{error}");
        // As one that is there already.
        let error = bed.control(1, bed.replicate(1, &[0], 100_000)).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Corrupt, "{error}");
        bed.stores[1].mend();
        bed.control(1, bed.replicate(1, &[0], 100_000)).await.unwrap();
    });
}

#[test]
fn a_copy_that_its_store_does_not_take_gives_its_slot_back() {
    check(2, async |bed| {
        bed.append(0, 0, &[1; 100_000], 0).await.unwrap();
        bed.seal(0, 100_000).await;
        bed.stores[1].be_busy(true);
        let error = bed.control(1, bed.replicate(1, &[0], 100_000)).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Retry, "{error}");
        bed.stores[1].be_busy(false);
        bed.control(1, bed.replicate(1, &[0], 100_000)).await.unwrap();
    });
}
