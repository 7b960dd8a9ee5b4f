//! Heartbeats to masters that answer, refuse or are silent.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{ClusterId, DiskId, FormationId, Kind, ServerId, TraceId};
use chunkserver::{Chunkserver, Config, ShardDirectory};
use chunkstore::{Append, ChunkStore};
use runtime::sim::{HostId, Sim};
use runtime::{Env, Instant};
use testing::chunks::ModelDisk;
use transport::{ClusterKey, Endpoint, Incoming, Limits, Priority, Request, Response, Service};
use wire::control::{
    ChunkserverRequest, ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest,
    Heartbeat, IssuerClock, MasterInfo,
};
use wire::data::{ChunkRef, DataError, DataReply, DataRequest, FenceRequest, Purpose, ReadRequest};
use wire::data_codec::decode_answer;
use wire::sector::{AppendAt, format_append};
use wire::token::{Issuer, IssuerTime, Rights, TokenKey};

use crate::latent::Latent;
use crate::{CHUNK, EPOCH, PORT, identity};

const FORMATION: FormationId = FormationId::new(2);

/// Reaction of a stub master to a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reaction {
    Answer,
    Refuse,
    Silence,
}

/// A master that registers every server, and keeps the heartbeats that it answers.
struct StubMaster {
    addr: SocketAddr,
    /// The heartbeats that came, and the reaction to each.
    beats: Rc<RefCell<Vec<(Heartbeat, Reaction)>>>,
    /// The masters that its answers name.
    named: Rc<RefCell<Vec<SocketAddr>>>,
    /// Whether its answers say that it knows the server.
    knows: Rc<Cell<bool>>,
    /// Whether registrations are answered.
    registers: Rc<Cell<bool>>,
    /// The issuer whose clock its answers show. It begins with the stub.
    issuer: Rc<Cell<Option<Issuer>>>,
    started: Instant,
    _endpoint: Endpoint,
}

impl StubMaster {
    async fn start(
        sim: &Sim,
        index: u16,
        react: impl Fn(&Heartbeat) -> Reaction + 'static,
    ) -> StubMaster {
        let host = sim.add_host(&format!("m{index}"));
        let (env, addr) = (sim.boot(host), sim.addr(host, PORT));
        let endpoint = Endpoint::new(&env, identity("master"), Limits::default());
        let (beats, named) = <(Rc<RefCell<Vec<_>>>, Rc<RefCell<Vec<_>>>)>::default();
        let (noted, names) = (beats.clone(), named.clone());
        let (knows, registers) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(true)));
        let (known, registered) = (knows.clone(), registers.clone());
        let (issuer, started) = (Rc::new(Cell::new(None)), env.now());
        let (shown, clock_env) = (issuer.clone(), env.clone());
        let held = RefCell::new(Vec::new());
        let handler = move |incoming: Incoming| {
            let asked = ControlRequest::decode(&incoming.request.body).unwrap();
            let ControlRequest::Cluster(asked) = asked else { panic!("{asked:?}") };
            let reaction = match &asked {
                ClusterRequest::Heartbeat(beat) => {
                    let reaction = react(beat);
                    noted.borrow_mut().push((beat.clone(), reaction));
                    reaction
                }
                ClusterRequest::Register(_) if registered.get() => Reaction::Answer,
                ClusterRequest::Register(_) => Reaction::Silence,
                _ => Reaction::Refuse,
            };
            let reply = match asked {
                ClusterRequest::Register(_) => ClusterReply::Registered {
                    server: ServerId::new(1),
                    cluster: ClusterId::new(5),
                    formation: Some(FORMATION),
                },
                _ => {
                    let masters = names.borrow();
                    let masters = (1..).zip(masters.iter()).map(|(id, &addr): (_, &SocketAddr)| {
                        MasterInfo { id, name: format!("m{id}"), addr }
                    });
                    ClusterReply::Beat {
                        masters: masters.collect(),
                        known: known.get(),
                        clock: shown.get().map(|issuer| IssuerClock {
                            issuer,
                            clock_ms: clock_env.now().since(started).as_millis() as u64,
                        }),
                    }
                }
            };
            match reaction {
                Reaction::Answer => {
                    let body = ControlReply::Cluster(reply).encode();
                    incoming.reply.send(Response::ok(body));
                }
                Reaction::Refuse => {
                    let error = ControlError::new(Kind::Retry, "not now");
                    incoming.reply.send(Response::error(&error));
                }
                Reaction::Silence => held.borrow_mut().push(incoming),
            }
        };
        endpoint.listen(addr, Rc::new(handler)).await.unwrap();
        StubMaster { addr, beats, named, knows, registers, issuer, started, _endpoint: endpoint }
    }

    fn count(&self) -> usize {
        self.beats.borrow().len()
    }

    fn answered(&self, has: impl Fn(&Heartbeat) -> bool) -> usize {
        let beats = self.beats.borrow();
        beats.iter().filter(|(beat, reaction)| *reaction == Reaction::Answer && has(beat)).count()
    }
}

/// One server of `count` shards, with a disk each.
async fn server(
    sim: &Sim,
    count: u16,
    masters: &[SocketAddr],
) -> (Env, Vec<Chunkserver<Latent>>, Vec<Latent>) {
    server_with(sim, count, masters, |_, _| ()).await
}

/// As [`server`]; `prepare` gets each store before the server does.
async fn server_with(
    sim: &Sim,
    count: u16,
    masters: &[SocketAddr],
    prepare: impl Fn(u16, &Latent),
) -> (Env, Vec<Chunkserver<Latent>>, Vec<Latent>) {
    server_on(sim, sim.add_host("cs0"), (count, masters), prepare).await
}

/// As [`server_with`], on a host of the test.
async fn server_on(
    sim: &Sim,
    host: HostId,
    (count, masters): (u16, &[SocketAddr]),
    prepare: impl Fn(u16, &Latent),
) -> (Env, Vec<Chunkserver<Latent>>, Vec<Latent>) {
    let (directory, mut shards, mut stores) = (ShardDirectory::default(), Vec::new(), Vec::new());
    let env = sim.boot(host);
    for index in 0..count {
        let endpoint = Endpoint::new(&env, identity("chunkserver"), Limits::default());
        let disk = DiskId::new(100 + u128::from(index));
        let store = Latent::new(ModelDisk::new(disk).open(Some(env.clone())));
        prepare(index, &store);
        stores.push(store.clone());
        let mut config = Config::new("cs0", sim.addr(host, PORT + index), masters.to_vec());
        config.token_key = Some(TokenKey::derive(&ClusterKey::new([7; 32])));
        config.shards = u32::from(count);
        config.scrub_rate = 0;
        let disks = vec![("/disk".to_owned(), store)];
        shards.push(Chunkserver::shard(&env, endpoint, config, disks, &directory).await.unwrap());
    }
    shards[0].speak();
    (env, shards, stores)
}

/// The answer to a request of another host.
async fn ask(sim: &Sim, addr: SocketAddr, asked: DataRequest) -> Result<DataReply, DataError> {
    ask_until(sim, addr, asked, IssuerTime::wall(u64::MAX)).await
}

/// As [`ask`], with a right until `expiry`.
async fn ask_until(
    sim: &Sim,
    addr: SocketAddr,
    asked: DataRequest,
    expiry: IssuerTime,
) -> Result<DataReply, DataError> {
    let env = sim.boot(sim.add_host("caller"));
    let endpoint = Endpoint::new(&env, identity("caller"), Limits::default());
    let key = TokenKey::derive(&ClusterKey::new([7; 32]));
    let request = Request {
        service: Service::DATA,
        op: asked.op(),
        priority: Priority::Foreground,
        flow: 0,
        trace: TraceId::new(1),
        token: key.issue(CHUNK, Rights::ALL, EPOCH, expiry),
        body: asked.encode(),
        payload: None,
    };
    let answer = endpoint.call(addr, request, Duration::from_secs(1)).await.expect("an answer");
    decode_answer(answer.status, &answer.body).expect("of its form")
}

/// A sealed replica of a few bytes.
async fn fill(env: &Env, store: &Latent) {
    let at = AppendAt { chunk: CHUNK, epoch: EPOCH, base: 0, offset: 0 };
    let mut sectors = env.pool().alloc(4096).unwrap();
    format_append(at, &[1; 100], &mut sectors);
    let append = Append {
        chunk: CHUNK,
        epoch: EPOCH,
        base: 0,
        offset: 0,
        sectors: sectors.freeze(),
        create: true,
        repair: false,
        purpose: Purpose::Data,
    };
    store.append(append).await.unwrap();
    store.fence(CHUNK, EPOCH.next()).await.unwrap();
    store.seal(CHUNK, 100).await.unwrap();
}

fn check(test: impl AsyncFnOnce(&Sim)) {
    let sim = Sim::new(1);
    sim.run(async { test(&sim).await }).unwrap();
    sim.close();
}

#[test]
fn damage_report_that_one_master_refuses_reaches_it_later() {
    check(async |sim| {
        let refused = Cell::new(false);
        let a = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
        let b = StubMaster::start(sim, 2, move |beat| {
            match beat.damaged.is_empty() || refused.replace(true) {
                true => Reaction::Answer,
                false => Reaction::Refuse,
            }
        })
        .await;
        let (env, shards, stores) = server(sim, 1, &[a.addr, b.addr]).await;
        env.sleep(Duration::from_secs(2)).await;
        fill(&env, &stores[0]).await;
        stores[0].spoil(10);
        let at = ChunkRef { chunk: CHUNK, disk: DiskId::new(100) };
        let read = DataRequest::Read(ReadRequest {
            at,
            offset: 0,
            len: 100,
            uncommitted: true,
            cell_sector: None,
            blocks: false,
        });
        let answer = ask(sim, shards[0].addr(), read).await;
        assert!(matches!(answer, Err(DataError::Corrupt { .. })), "{answer:?}");
        env.sleep(Duration::from_secs(4)).await;
        let has = |beat: &Heartbeat| beat.damaged.contains(&(at.disk, CHUNK));
        assert_eq!(a.answered(has), 1, "a master that has it gets it once");
        assert_eq!(b.answered(has), 1, "a master that refused the report gets it again");
    });
}

#[test]
fn disk_of_another_formation_that_comes_back_is_never_reported_nor_served() {
    for shard in 0..2 {
        check(async |sim| {
            let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
            let (env, shards, _) = server(sim, 2, &[master.addr]).await;
            env.sleep(Duration::from_secs(2)).await;
            assert!(master.count() > 0);
            let disk = DiskId::new(200);
            let store = Latent::new(ModelDisk::new(disk).open(Some(env.clone())));
            store.adopt(ClusterId::new(5), FormationId::new(1)).await.unwrap();
            assert!(shards[shard].add_disk("/back".to_owned(), store).is_ok());
            let at = ChunkRef { chunk: CHUNK, disk };
            let fence = DataRequest::Fence(FenceRequest { at, epoch: EPOCH });
            let answer = ask(sim, shards[shard].addr(), fence).await;
            env.sleep(Duration::from_secs(2)).await;
            let beats = master.beats.borrow();
            let with = beats.iter().filter(|(beat, _)| beat.disks.iter().any(|it| it.disk == disk));
            assert_eq!(with.count(), 0, "heartbeats with a disk of another formation");
            assert_eq!(answer, Err(DataError::WrongDisk));
            let last = &beats.last().unwrap().0;
            let report = last.disks.iter().find(|report| report.path == "/back").unwrap();
            assert!(report.reason.contains("formation"), "{}", report.reason);
        });
    }
}

#[test]
fn disk_of_this_formation_that_comes_back_is_reported_within_a_heartbeat_or_two() {
    check(async |sim| {
        let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
        let (env, shards, _) = server(sim, 2, &[master.addr]).await;
        env.sleep(Duration::from_secs(2)).await;
        let disk = DiskId::new(200);
        let store = Latent::new(ModelDisk::new(disk).open(Some(env.clone())));
        store.adopt(ClusterId::new(5), FORMATION).await.unwrap();
        assert!(shards[1].add_disk("/back".to_owned(), store).is_ok());
        env.sleep(Duration::from_millis(500)).await;
        let beats = master.beats.borrow();
        let report = beats.last().unwrap().0.disks.iter().find(|it| it.disk == disk);
        assert!(report.is_some_and(|report| !report.failed), "{report:?}");
    });
}

#[test]
fn silent_master_delays_no_heartbeat_to_others() {
    check(async |sim| {
        let a = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
        let b = StubMaster::start(sim, 2, |_| Reaction::Silence).await;
        let (env, _, _) = server(sim, 1, &[a.addr, b.addr]).await;
        env.sleep(Duration::from_secs(1)).await;
        let before = a.count();
        env.sleep(Duration::from_secs(4)).await;
        let count = a.count() - before;
        assert!((10..=30).contains(&count), "{count} heartbeats in 4 s");
        assert!(b.count() > 1, "a silent master is asked again");
    });
}

#[test]
fn master_that_is_removed_gets_no_more_heartbeats() {
    check(async |sim| {
        let a = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
        let b = StubMaster::start(sim, 2, |_| Reaction::Silence).await;
        let c = StubMaster::start(sim, 3, |_| Reaction::Answer).await;
        *a.named.borrow_mut() = vec![a.addr, b.addr, c.addr];
        *c.named.borrow_mut() = vec![a.addr, b.addr, c.addr];
        let (env, _, _) = server(sim, 1, &[a.addr]).await;
        env.sleep(Duration::from_secs(2)).await;
        assert!(b.count() > 0 && c.count() > 0, "masters are learned from answers");
        *a.named.borrow_mut() = vec![a.addr, c.addr];
        *c.named.borrow_mut() = vec![a.addr, c.addr];
        env.sleep(Duration::from_secs(20)).await;
        let (gone, kept) = (b.count(), c.count());
        env.sleep(Duration::from_secs(4)).await;
        assert_eq!(b.count(), gone, "a removed master is asked");
        assert!(c.count() > kept + 5);
    });
}

fn reports(beat: &Heartbeat, disk: u128) -> bool {
    beat.disks.iter().any(|report| report.disk == DiskId::new(disk) && !report.failed)
}

#[test]
fn disk_that_hangs_while_the_server_joins_holds_back_no_other_disk() {
    for hung in 0..2u16 {
        check(async |sim| {
            let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
            let hang = |index, store: &Latent| {
                if index == hung {
                    store.hang();
                }
            };
            let (env, _, _) = server_with(sim, 2, &[master.addr], hang).await;
            env.sleep(Duration::from_secs(6)).await;
            let (other, hung) = (100 + u128::from(1 - hung), 100 + u128::from(hung));
            assert!(
                master.answered(|beat| reports(beat, other)) > 5,
                "heartbeats with disk {other}"
            );
            assert_eq!(master.answered(|beat| reports(beat, hung)), 0, "disk {hung} is not ready");
            let beats = master.beats.borrow();
            let left_out = |it: &&wire::control::DiskReport| it.failed && !it.reason.is_empty();
            assert_eq!(beats.last().unwrap().0.disks.iter().filter(left_out).count(), 1);
        });
    }
}

#[test]
fn disk_that_hangs_when_it_is_added_holds_back_no_heartbeat() {
    for shard in 0..2 {
        check(async |sim| {
            let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
            let (env, shards, _) = server(sim, 2, &[master.addr]).await;
            env.sleep(Duration::from_secs(2)).await;
            let store = Latent::new(ModelDisk::new(DiskId::new(200)).open(Some(env.clone())));
            store.hang();
            assert!(shards[shard].add_disk("/back".to_owned(), store).is_ok());
            env.sleep(Duration::from_secs(1)).await;
            let before = master.count();
            // Another one is judged all the same.
            let store = Latent::new(ModelDisk::new(DiskId::new(201)).open(Some(env.clone())));
            assert!(shards[shard].add_disk("/good".to_owned(), store).is_ok());
            env.sleep(Duration::from_secs(4)).await;
            let count = master.count() - before;
            assert!((10..=40).contains(&count), "{count} heartbeats in 4 s");
            let beats = master.beats.borrow();
            assert!(reports(&beats.last().unwrap().0, 201), "{:?}", beats.last());
        });
    }
}

#[test]
fn check_of_a_disk_that_hangs_holds_back_no_other_check() {
    check(async |sim| {
        let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
        let (env, shards, stores) = server(sim, 1, &[master.addr]).await;
        let other = Latent::new(ModelDisk::new(DiskId::new(200)).open(Some(env.clone())));
        assert!(shards[0].add_disk("/other".to_owned(), other.clone()).is_ok());
        env.sleep(Duration::from_secs(2)).await;
        stores[0].hang();
        env.sleep(Duration::from_secs(2)).await;
        let before = other.checks();
        env.sleep(Duration::from_secs(5)).await;
        assert!(other.checks() > before + 2, "{} checks, then {}", before, other.checks());
    });
}

#[test]
fn scrub_of_a_disk_that_hangs_holds_back_no_other_scrub() {
    for hung in 0..2 {
        check(async |sim| {
            let host = sim.add_host("cs0");
            let env = sim.boot(host);
            let endpoint = Endpoint::new(&env, identity("chunkserver"), Limits::default());
            let mut config = Config::new("cs0", sim.addr(host, PORT), Vec::new());
            (config.scrub_rate, config.scrub_pause) = (64 << 20, Duration::from_secs(1));
            let store = |id| Latent::new(ModelDisk::new(DiskId::new(id)).open(Some(env.clone())));
            let stores = [store(100), store(101)];
            let disks = stores.iter().map(|store| ("/disk".to_owned(), store.clone())).collect();
            let server = Chunkserver::start(&env, endpoint, config, disks).await.unwrap();
            for store in &stores {
                fill(&env, store).await;
                store.spoil(50);
            }
            stores[hung].hang();
            env.sleep(Duration::from_secs(5)).await;
            assert_eq!(server.stats().damaged, 1, "disk {} is not scrubbed", 1 - hung);
            assert!(server.stats().scrub_passes >= 3, "{:?}", server.stats());
        });
    }
}

#[test]
fn master_that_does_not_know_the_server_delays_no_heartbeat_to_others() {
    check(async |sim| {
        let a = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
        let b = StubMaster::start(sim, 2, |_| Reaction::Answer).await;
        let (env, _, _) = server(sim, 1, &[a.addr, b.addr]).await;
        env.sleep(Duration::from_secs(1)).await;
        // Its state is old, and the cluster's group has no leader.
        b.knows.set(false);
        a.registers.set(false);
        b.registers.set(false);
        env.sleep(Duration::from_secs(1)).await;
        let before = a.count();
        env.sleep(Duration::from_secs(4)).await;
        let count = a.count() - before;
        assert!((10..=30).contains(&count), "{count} heartbeats in 4 s");
    });
}

/// Masters have bounded sets of reports, and may lose one after they have answered.
#[test]
fn damage_report_is_repeated_until_the_replica_is_gone_or_whole() {
    for gone in [true, false] {
        check(async |sim| {
            let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
            let (env, shards, stores) = server(sim, 2, &[master.addr]).await;
            env.sleep(Duration::from_secs(2)).await;
            fill(&env, &stores[1]).await;
            stores[1].spoil(10);
            let at = ChunkRef { chunk: CHUNK, disk: DiskId::new(101) };
            let read = ReadRequest {
                at,
                offset: 0,
                len: 100,
                uncommitted: true,
                cell_sector: None,
                blocks: false,
            };
            let answer = ask(sim, shards[1].addr(), DataRequest::Read(read)).await;
            assert!(matches!(answer, Err(DataError::Corrupt { .. })), "{answer:?}");
            let count = || master.answered(|beat| beat.damaged.contains(&(at.disk, CHUNK)));
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(count(), 1);
            env.sleep(Duration::from_secs(200)).await;
            let before = count();
            assert!((3..=5).contains(&before), "{before} reports in 210 s");
            match gone {
                true => stores[1].delete(CHUNK).await.unwrap(),
                false => stores[1].mend(),
            }
            env.sleep(Duration::from_secs(200)).await;
            assert_eq!(count(), before);
        });
    }
}

/// Clocks on the wall may show anything: a right ends by the clock of its issuer, which this server
/// carries on while it hears nothing of it.
#[test]
fn rights_end_by_the_clock_of_their_issuer() {
    const HOUR_MS: i64 = 3_600_000;
    for wall_ms in [0, -100 * HOUR_MS, 100 * HOUR_MS] {
        check(async |sim| {
            let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
            let issuer = Issuer::new(7);
            master.issuer.set(Some(issuer));
            let host = sim.add_host("cs0");
            sim.set_wall_skew(host, wall_ms);
            let (env, shards, stores) = server_on(sim, host, (2, &[master.addr]), |_, _| ()).await;
            fill(&env, &stores[1]).await;
            let at = ChunkRef { chunk: CHUNK, disk: DiskId::new(101) };
            env.sleep(Duration::from_secs(1)).await;
            let now_s = env.now().since(master.started).as_secs();
            let until = |seconds| IssuerTime { issuer, seconds };
            let ask = |expiry| ask_until(sim, shards[1].addr(), DataRequest::Stat(at), expiry);
            assert!(ask(until(now_s + 30)).await.is_ok());
            assert_eq!(ask(until(now_s)).await, Err(DataError::Denied));
            // Nothing is heard of the master any more.
            master.issuer.set(None);
            env.sleep(Duration::from_secs(25)).await;
            assert!(ask(until(now_s + 30)).await.is_ok());
            env.sleep(Duration::from_secs(5)).await;
            assert_eq!(ask(until(now_s + 30)).await, Err(DataError::Denied));
        });
    }
}

#[test]
fn right_of_a_master_that_is_not_known_yet_waits_for_a_heartbeat() {
    check(async |sim| {
        let master = StubMaster::start(sim, 1, |_| Reaction::Answer).await;
        let (env, shards, stores) = server(sim, 1, &[master.addr]).await;
        fill(&env, &stores[0]).await;
        let at = ChunkRef { chunk: CHUNK, disk: DiskId::new(100) };
        env.sleep(Duration::from_secs(1)).await;
        let of = |number| IssuerTime { issuer: Issuer::new(number), seconds: 1 << 30 };
        let ask = |expiry| ask_until(sim, shards[0].addr(), DataRequest::Stat(at), expiry);
        // It is never heard of.
        let asked = env.now();
        assert_eq!(ask(of(7)).await, Err(DataError::Denied));
        assert!(env.now().since(asked) >= Duration::from_millis(300));
        // It has just started.
        master.issuer.set(Some(Issuer::new(8)));
        let (asked, before) = (env.now(), master.count());
        assert!(ask(of(8)).await.is_ok());
        assert!(
            env.now().since(asked) < Duration::from_millis(50),
            "the heartbeat goes out at once"
        );
        assert!(master.count() > before);
        // An order of one that is not known is refused, and may be sent again.
        let order = |number| ChunkserverRequest::Delete {
            disk: at.disk,
            chunks: vec![CHUNK],
            not_after: Some(of(number)),
        };
        let refused = control(sim, shards[0].addr(), order(9)).await.expect_err("refused");
        assert_eq!(refused.kind, Kind::Retry);
        assert!(ask(of(8)).await.is_ok(), "the replica is there");
        assert!(control(sim, shards[0].addr(), order(8)).await.is_ok());
    });
}

/// What is to be reported at once goes to a master whose answer is outstanding behind that answer, and to
/// no other one again: two masters that answer in turn would be sent heartbeats for ever.
#[test]
fn heartbeats_at_once_end_when_every_master_has_one() {
    check(async |sim| {
        let mut masters = Vec::new();
        for index in 1..=7 {
            masters.push(StubMaster::start(sim, index, |_| Reaction::Answer).await);
        }
        let addrs: Vec<_> = masters.iter().map(|master| master.addr).collect();
        let (env, shards, stores) = server(sim, 1, &addrs).await;
        fill(&env, &stores[0]).await;
        env.sleep(Duration::from_secs(1)).await;
        for number in 0..20 {
            let store =
                Latent::new(ModelDisk::new(DiskId::new(200 + number)).open(Some(env.clone())));
            store.adopt(ClusterId::new(5), FORMATION).await.unwrap();
            assert!(shards[0].add_disk(format!("/back{number}"), store).is_ok());
            env.sleep(Duration::from_micros(100)).await;
        }
        env.sleep(Duration::from_millis(100)).await;
        for master in &masters {
            let beats = master.beats.borrow();
            assert!(reports(&beats.last().unwrap().0, 219), "the last news has reached each");
        }
        let before: Vec<_> = masters.iter().map(StubMaster::count).collect();
        env.sleep(Duration::from_secs(4)).await;
        for (master, before) in masters.iter().zip(before) {
            let count = master.count() - before;
            assert!((10..=30).contains(&count), "{count} heartbeats in 4 s");
        }
    });
}

/// The answer to an order of a master.
async fn control(
    sim: &Sim,
    addr: SocketAddr,
    order: ChunkserverRequest,
) -> Result<(), ControlError> {
    let env = sim.boot(sim.add_host("orders"));
    let endpoint = Endpoint::new(&env, identity("master"), Limits::default());
    let request = Request {
        service: Service::CONTROL,
        op: 0,
        priority: Priority::Background,
        flow: 0,
        trace: TraceId::new(1),
        token: wire::token::Token::NONE,
        body: ControlRequest::Chunkserver(order).encode(),
        payload: None,
    };
    let answer = endpoint.call(addr, request, Duration::from_secs(1)).await.expect("an answer");
    match answer.status {
        0 => Ok(()),
        _ => Err(ControlError::decode(&answer.body).expect("of its form")),
    }
}
