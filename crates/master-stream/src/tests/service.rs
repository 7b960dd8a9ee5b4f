//! The service end to end without faults: what each request answers.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use base::{Epoch, FileId, Kind, ServerId};
use futures_util::future::{join, join_all};
use runtime::sim::Sim;
use runtime::{Class, Duration};
use wire::control::{Policy, StreamChange, StreamReply, StreamRequest, StreamView};

use super::log::{MemoryLog, World};
use super::model::Model;
use super::writer::{Client, Cluster, Writer};
use crate::planted::{Planted, plant};
use crate::{ClusterSource, StreamConfig, StreamParts, StreamService};

/// Short times, so that a run sees all of them pass, some drawn at random.
pub fn config(sim: &Sim) -> StreamConfig {
    let pick = |millis: &[u64]| Duration::from_millis(sim.with_rng(|rng| *rng.pick(millis)));
    StreamConfig {
        vote_timeout: pick(&[0, 1, 50]),
        scan_interval: pick(&[50, 200, 500]),
        garbage_interval: pick(&[200, 1000]),
        repair_parallel: 1 + sim.with_rng(|rng| rng.below(4)) as usize,
        token_life: Duration::from_secs(2),
        clock_skew: Duration::from_millis(200),
        file_memory: Duration::from_secs(3),
        call_timeout: Duration::from_millis(200),
        copy_timeout: Duration::from_secs(1),
        recover_timeout: Duration::from_secs(2),
        chase_grace: pick(&[0, 300]),
        dead_grace: pick(&[200, 1000]),
        gone_memory: Duration::from_secs(10),
        open_grace: Duration::from_secs(20),
        list_interval: Duration::from_secs(3),
        balance_interval: pick(&[100, 1000]),
        balance_slack: sim.with_rng(|rng| *rng.pick(&[64, 4096])),
        ..StreamConfig::default()
    }
}

impl Cluster {
    /// Two masters, of which the first leads.
    pub fn new(sim: &Sim, policy: Policy, servers: u32) -> Rc<Cluster> {
        Cluster::with_config(sim, policy, servers, || config(sim))
    }

    /// As [`Cluster::new`], with so many disks on each server.
    pub fn with_disks(sim: &Sim, policy: Policy, servers: u32, disks: u32) -> Rc<Cluster> {
        Cluster::with(sim, policy, (servers, disks), || config(sim))
    }

    /// As [`Cluster::new`], with other times.
    pub fn with_config(
        sim: &Sim,
        policy: Policy,
        servers: u32,
        config: impl Fn() -> StreamConfig,
    ) -> Rc<Cluster> {
        Cluster::with(sim, policy, (servers, 1), config)
    }

    fn with(
        sim: &Sim,
        policy: Policy,
        (servers, disks): (u32, u32),
        config: impl Fn() -> StreamConfig,
    ) -> Rc<Cluster> {
        let host = sim.add_host("masters");
        let env = sim.boot(host);
        let world = World::new(sim);
        let model = Model::new(sim, &env, &world, servers, disks);
        let services = [1, 2].map(|node| {
            let parts = StreamParts {
                log: MemoryLog { node, world: world.clone() },
                cluster: model.clone() as Rc<dyn ClusterSource>,
                calls: model.clone() as _,
                tokens: model.issuer(&env),
                grants: Rc::new(|_, _| Box::pin(async { Ok(true) })),
                config: config(),
            };
            StreamService::new(&env, parts)
        });
        Rc::new(Cluster {
            sim: sim.clone(),
            world,
            model,
            services: services.into(),
            policy,
            clients: Cell::new(0),
            stop: Cell::new(false),
            targets: OnceCell::new(),
        })
    }

    /// Runs `test` on a node of the world, and fails on a violation.
    pub fn run<F: Future<Output = ()> + 'static>(
        sim: &Sim,
        cluster: &Rc<Cluster>,
        test: impl FnOnce(Rc<Cluster>) -> F,
    ) {
        let env = cluster.model.env.borrow().clone();
        let task = env.spawn(Class::Foreground, "test", test(cluster.clone()));
        sim.run(task).expect("no stall").expect("no crash");
        assert_eq!(*cluster.world.violation.borrow(), None);
    }

    pub async fn locate(self: &Rc<Self>, file: FileId, offset: u64) -> Option<StreamView> {
        let request = StreamRequest::Locate { file, offset, limit: 256 };
        match Client::new(self).ask(request).await {
            Ok(StreamReply::Views(views)) => views.into_iter().next(),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    }
}

#[test]
fn a_file_is_written_and_located() {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, Policy::strict(3), 6);
    Cluster::run(&sim, &cluster, async |cluster| {
        let file = FileId::new(1);
        assert_eq!(cluster.locate(file, 0).await, None);
        let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
        assert_eq!((writer.grant.epoch, writer.grant.spares.len()), (Epoch::new(1), 2));
        writer.append(&[1; 100]).await.unwrap();
        writer.advance(Vec::new()).await.unwrap();
        assert_eq!((writer.current.base, writer.grant.spares.len()), (100, 2));
        writer.append(&[2; 50]).await.unwrap();
        let view = cluster.locate(file, 20).await.unwrap();
        assert_eq!((view.chunks.len(), view.sealed_len, view.open), (2, 100, true));
        let current = writer.current.chunk;
        assert_eq!(writer.close(false).await, Ok(150));
        let view = cluster.locate(file, 100).await.unwrap();
        assert_eq!((view.chunks.len(), view.sealed_len, view.open), (1, 150, false));
        assert_eq!((view.chunks[0].chunk, view.chunks[0].sealed), (current, Some(50)));
        assert_eq!(cluster.locate(file, 150).await.unwrap().chunks, []);
    });
}

#[test]
fn an_open_fences_the_writer_before() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, Policy::plain(3, 2), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let file = FileId::new(1);
        let mut first = Writer::open(Client::new(&cluster), file).await.unwrap();
        first.append(&[1; 30]).await.unwrap();
        let second = Writer::open(Client::new(&cluster), file).await.unwrap();
        assert_eq!((second.grant.epoch, second.current.base), (Epoch::new(2), 30));
        assert_eq!(first.append(&[2; 10]).await.unwrap_err().kind, Kind::Fenced);
        assert_eq!(second.close(true).await, Ok(30));
        let again = Writer::open(Client::new(&cluster), file).await;
        assert_eq!(again.err().unwrap().kind, Kind::Invalid);
    });
}

#[test]
fn a_reader_seals_what_a_lost_writer_left() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let file = FileId::new(1);
        let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
        writer.append(&[1; 30]).await.unwrap();
        let client = Client::new(&cluster);
        let seal = client.change(StreamChange::seal(file));
        assert_eq!(seal.await, Ok(StreamReply::Done { len: 30 }));
        assert!(!cluster.locate(file, 0).await.unwrap().open);
        let none = client.change(StreamChange::seal(FileId::new(9))).await;
        assert_eq!(none.unwrap_err().kind, Kind::NotFound);
    });
}

/// Each of them takes an epoch of its own, so one shuts the other's recovery out.
#[test]
fn seals_of_one_file_at_the_same_time_all_succeed() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::strict(3), 6);
        Cluster::run(&sim, &cluster, async |cluster| {
            let file = FileId::new(1);
            let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
            writer.append(&[1; 30]).await.unwrap();
            let clients: Vec<_> = (0..3).map(|_| Client::new(&cluster)).collect();
            let seals = clients.iter().map(|client| client.change(StreamChange::seal(file)));
            for seal in join_all(seals).await {
                assert_eq!(seal, Ok(StreamReply::Done { len: 30 }));
            }
            assert!(!cluster.locate(file, 0).await.unwrap().open);
        });
    }
}

/// An opening that comes during a seal has the file: it is not sealed any more.
#[test]
fn seal_that_an_opening_shuts_out_is_refused() {
    let (mut refused, mut sealed) = (0, 0);
    for seed in 0..16 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::strict(3), 6);
        let ended = Rc::new(Cell::new(None));
        let seen = ended.clone();
        Cluster::run(&sim, &cluster, async move |cluster| {
            let file = FileId::new(1);
            let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
            writer.append(&[1; 30]).await.unwrap();
            let (one, other) = (Client::new(&cluster), Client::new(&cluster));
            let (seal, next) =
                join(one.change(StreamChange::seal(file)), Writer::open(other, file)).await;
            if let Ok(mut next) = next {
                next.append(&[2; 10]).await.unwrap();
                assert!(cluster.locate(file, 0).await.unwrap().open);
                seen.set(Some((true, seal.map_err(|error| error.kind))));
            } else {
                let kind = next.err().map(|error| error.kind);
                assert!(matches!(kind, Some(Kind::Fenced | Kind::Refresh)), "{kind:?}");
                assert!(!cluster.locate(file, 0).await.unwrap().open);
                seen.set(Some((false, seal.map_err(|error| error.kind))));
            }
        });
        match ended.take().expect("it has run") {
            (_, Ok(reply)) => {
                assert_eq!(reply, StreamReply::Done { len: 30 });
                sealed += 1;
            }
            (opened, Err(kind)) => {
                assert_eq!((opened, kind), (true, Kind::Fenced), "one of them has the file");
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && sealed > 0, "{refused} refused, {sealed} sealed");
}

#[test]
fn a_deleted_file_does_not_come_back() {
    let sim = Sim::new(4);
    let cluster = Cluster::new(&sim, Policy::strict(2), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let file = FileId::new(1);
        let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
        writer.append(&[1; 30]).await.unwrap();
        let client = Client::new(&cluster);
        client.change(StreamChange::Delete { file }).await.unwrap();
        assert_eq!(cluster.locate(file, 0).await, None);
        assert_eq!(client.open(file).await.unwrap_err().kind, Kind::NotFound);
        assert_eq!(writer.advance(Vec::new()).await.unwrap_err().kind, Kind::NotFound);
    });
}

#[test]
fn without_enough_servers_the_answer_says_what_to_do() {
    let sim = Sim::new(5);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let ids: Vec<_> = cluster.model.servers.borrow().keys().copied().collect();
        cluster.model.crash(ids[0]);
        let writer = Writer::open(Client::new(&cluster), FileId::new(1)).await.unwrap();
        assert_eq!((writer.current.replicas.len(), writer.current.acks), (2, 2));
        cluster.model.crash(ids[1]);
        let error = Client::new(&cluster).open(FileId::new(2)).await.unwrap_err();
        assert_eq!(error.kind, Kind::Retry, "{error}");
    });
}

/// Two replicas are all that there are, both hold everything, and one vote is enough: the seal needs
/// both, and waits for the one whose answer comes late.
#[test]
fn chunk_of_two_replicas_is_sealed_though_one_votes_late() {
    let sim = Sim::new(8);
    let none_waits = || StreamConfig { vote_timeout: Duration::ZERO, ..config(&sim) };
    let cluster = Cluster::with_config(&sim, Policy::strict(3), 3, none_waits);
    let env = cluster.model.env.borrow().clone();
    let inner = cluster.clone();
    let task = env.spawn(Class::Foreground, "test", async move {
        let ids: Vec<_> = inner.model.servers.borrow().keys().copied().collect();
        inner.model.crash(ids[0]);
        let file = FileId::new(1);
        let mut writer = Writer::open(Client::new(&inner), file).await.unwrap();
        assert_eq!((writer.current.replicas.len(), writer.current.acks), (2, 2));
        writer.append(&[1; 30]).await.unwrap();
        Client::new(&inner).change(StreamChange::seal(file)).await.expect("two are enough");
    });
    sim.run(task).expect("no stall").expect("it is sealed");
    assert_eq!(cluster.world.violation.borrow().clone(), None);
}

/// A file with 30 bytes on three replicas and 10 more on two, of which one loses them silently: its
/// disk had answered, and does not know of them. Seals it; the violation, if there is one.
fn seal_after_a_silent_loss(policy: Policy) -> Option<String> {
    let sim = Sim::new(6);
    let vote_timeout = Duration::from_millis(50);
    let all_vote = || StreamConfig { vote_timeout, ..config(&sim) };
    let cluster = Cluster::with_config(&sim, policy, 3, all_vote);
    cluster.model.in_place.set(true);
    let env = cluster.model.env.borrow().clone();
    let inner = cluster.clone();
    let task = env.spawn(Class::Foreground, "test", async move {
        let file = FileId::new(1);
        let mut writer = Writer::open(Client::new(&inner), file).await.unwrap();
        writer.append(&[1; 30]).await.unwrap();
        writer.append(&[2; 10]).await.unwrap();
        inner.sim.sleep(Duration::from_millis(20)).await;
        // With 3/2 the third never got them; with 3/3 all did.
        let short = 1 + usize::from(policy.acks == 2);
        for place in writer.current.replicas.iter().take(short) {
            let mut servers = inner.model.servers.borrow_mut();
            let replicas = &mut servers.get_mut(&place.server).unwrap().replicas;
            let replica = replicas.get_mut(&(place.disk, writer.current.chunk)).unwrap();
            replica.bytes.truncate(30);
            replica.durable = 30;
        }
        let _ = Client::new(&inner).change(StreamChange::seal(file)).await;
    });
    sim.run(task).expect("no stall").expect("no crash");
    cluster.world.violation.borrow().clone()
}

#[test]
fn end_that_one_disk_lost_silently_is_sealed_from_another() {
    for policy in [Policy::plain(3, 2), Policy::strict(3)] {
        assert_eq!(seal_after_a_silent_loss(policy), None, "{policy:?}");
        plant(Some(Planted::StatisticIsLength));
        let found = seal_after_a_silent_loss(policy);
        plant(None);
        assert!(found.is_some_and(|it| it.contains("40 bytes")), "{policy:?}");
    }
}

/// One replica alone has the bytes that were in flight, and cannot be read there: they are given up.
#[test]
fn bytes_in_flight_that_cannot_be_copied_are_given_up() {
    let sim = Sim::new(7);
    let vote_timeout = Duration::from_millis(50);
    let all_vote = || StreamConfig { vote_timeout, ..config(&sim) };
    let cluster = Cluster::with_config(&sim, Policy::plain(3, 2), 3, all_vote);
    cluster.model.in_place.set(true);
    Cluster::run(&sim, &cluster, async |cluster| {
        let file = FileId::new(1);
        let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
        writer.append(&[1; 30]).await.unwrap();
        cluster.sim.sleep(Duration::from_millis(20)).await;
        let place = &writer.current.replicas[0];
        {
            let mut servers = cluster.model.servers.borrow_mut();
            let replicas = &mut servers.get_mut(&place.server).unwrap().replicas;
            let replica = replicas.get_mut(&(place.disk, writer.current.chunk)).unwrap();
            replica.bytes.extend([2; 10]);
            replica.durable = 40;
        }
        cluster.model.rot(place.server, 35);
        let seal = Client::new(&cluster).change(StreamChange::seal(file)).await;
        assert_eq!(seal, Ok(StreamReply::Done { len: 30 }));
    });
    assert!(sim.marks().contains_key("bytes above the statistic given up"));
}

/// The third of three servers never saw the creation, and another one dies with the writer.
#[test]
fn replica_that_was_fenced_before_its_creation_is_filled_and_votes() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::plain(3, 2), 3);
        Cluster::run(&sim, &cluster, async |cluster| {
            let file = FileId::new(1);
            let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
            let servers: Vec<_> = writer.current.replicas.iter().map(|it| it.server).collect();
            cluster.model.in_place.set(true);
            cluster.model.cut.borrow_mut().insert(servers[2]);
            writer.append(&[1; 30]).await.unwrap();
            cluster.sim.sleep(Duration::from_millis(20)).await;
            cluster.model.crash(servers[1]);
            cluster.model.cut.borrow_mut().clear();
            let client = Client::new(&cluster);
            let seal = client.change(StreamChange::seal(file)).await;
            assert_eq!(seal, Ok(StreamReply::Done { len: 30 }));
        });
    }
}

#[test]
fn first_chunk_and_its_spares_are_apart_from_servers_that_the_client_lists() {
    let sim = Sim::new(11);
    let cluster = Cluster::new(&sim, Policy::strict(3), 5);
    Cluster::run(&sim, &cluster, async |cluster| {
        let client = Client::new(&cluster);
        let open = async |file: u64, avoid: std::ops::RangeInclusive<u32>| {
            let change = StreamChange::Open {
                file: FileId::new(file),
                policy: Policy::strict(3),
                grant: [0; 16],
                spares: 1,
                purpose: wire::data::Purpose::Data,
                follows: None,
                in_copies: false,
                avoid: avoid.map(ServerId::new).collect(),
            };
            let StreamReply::Writer(grant) = client.change(change).await.unwrap() else { panic!() };
            let chunks = grant.current.into_iter().chain(grant.spares);
            let replicas = chunks.flat_map(|chunk| chunk.replicas);
            replicas.map(|replica| replica.server.get()).collect::<std::collections::BTreeSet<_>>()
        };
        for file in 0..8 {
            assert_eq!(open(1 + 2 * file, 1..=2).await, [3, 4, 5].into());
            // As in later chunks: two acknowledge it, and the third copy follows.
            assert_eq!(open(2 + 2 * file, 1..=3).await, [4, 5].into());
        }
    });
}
