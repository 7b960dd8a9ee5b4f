//! Repair of single chunks, step by step.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{ChunkId, DiskId, FileId, ServerId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{Policy, ReplicaPlace, StreamChange, StreamReply, StreamView};
use wire::data::{DataError, ReplicaState};

use super::model::Append;
use super::service::config;
use super::writer::{Client, Cluster, Writer};
use crate::limits::{LOCATE_CHUNKS_MAX, UNKNOWN_REPLICAS_MAX};
use crate::placement::ReplicaLocation;
use crate::{CallError, ChunkserverCalls, StreamConfig};

const FILE: FileId = FileId::new(1);

/// What a run has marked, and how often.
type Marks = BTreeMap<&'static str, u64>;

/// A closed file of one chunk, under repair from now on; the servers of its replicas.
async fn closed_file(cluster: &Rc<Cluster>) -> Vec<ServerId> {
    cluster.services.iter().for_each(|service| service.start_background());
    let mut writer = Writer::open(Client::new(cluster), FILE).await.unwrap();
    writer.append(&[1; 100]).await.unwrap();
    assert_eq!(writer.close(false).await, Ok(100));
    cluster.sim.sleep(Duration::from_secs(1)).await;
    servers(&cluster.locate(FILE, 0).await.unwrap())
}

fn servers(view: &StreamView) -> Vec<ServerId> {
    assert!(view.chunks.len() < LOCATE_CHUNKS_MAX as usize);
    view.chunks[0].replicas.iter().map(|replica| replica.server).collect()
}

#[test]
fn a_copy_that_finds_no_room_is_made_elsewhere() {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        let full = (1..=4).map(ServerId::new).find(|id| !held.contains(id)).unwrap();
        cluster.model.full.borrow_mut().insert(full);
        cluster.model.crash(held[0]);
        cluster.sim.sleep(Duration::from_secs(5)).await;
        // After any attempts so far: a disk with room comes, and is found.
        cluster.model.add_server(9, 1);
        for _ in 0..100 {
            cluster.sim.sleep(Duration::from_millis(300)).await;
            let now = servers(&cluster.locate(FILE, 0).await.unwrap());
            if now.len() == 3 && now.contains(&ServerId::new(9)) && !now.contains(&held[0]) {
                return;
            }
        }
        panic!("{:?}", cluster.locate(FILE, 0).await);
    });
}

#[test]
fn a_server_that_joins_gets_its_share() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, Policy::strict(2), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        for round in 0..60 {
            writer.append(&[round; 4000]).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
        }
        writer.close(true).await.unwrap();
        cluster.model.add_server(9, 1);
        let held = || {
            let servers = cluster.model.servers.borrow();
            let len = |server: &super::model::Server| -> usize {
                server.replicas.values().map(|replica| replica.bytes.len()).sum()
            };
            servers.values().map(len).collect::<Vec<_>>()
        };
        // 480,000 bytes on four disks: 120,000 each, within a tenth or what the slack allows.
        for _ in 0..100 {
            cluster.sim.sleep(Duration::from_millis(500)).await;
            if held().iter().all(|&len| (104_000..=136_000).contains(&len)) {
                let (status, moves) = (cluster.services[0].status(), 22..=40);
                assert!(moves.contains(&status.moved), "{} moves", status.moved);
                assert_eq!((status.under_replicated, status.repair.pending), (0, 0));
                return;
            }
        }
        panic!("{:?}", held());
    });
}

#[test]
fn repair_without_a_place_is_pending() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        let pending = || cluster.services[0].status().repair.pending;
        assert_eq!(pending(), 0);
        cluster.model.crash(held[0]);
        cluster.sim.sleep(Duration::from_secs(3)).await;
        for _ in 0..40 {
            assert_eq!(pending(), 1, "repair goes on trying, and says so");
            cluster.sim.sleep(Duration::from_millis(37)).await;
        }
        cluster.model.restart(held[0]);
        cluster.sim.sleep(Duration::from_secs(3)).await;
        assert_eq!(pending(), 0);
    });
}

/// Passes what reads have met to the leader, as heartbeats do.
fn report_met(cluster: &Cluster) {
    for (place, chunk) in std::mem::take(&mut *cluster.model.met.borrow_mut()) {
        cluster.services[0].report_damaged(place, chunk);
    }
}

/// Scrub meets the holes of a server's replicas.
fn scrub(cluster: &Cluster, id: ServerId) {
    let mut servers = cluster.model.servers.borrow_mut();
    let server = servers.get_mut(&id).unwrap();
    for (&(disk, chunk), replica) in &mut server.replicas {
        if !replica.holes.is_empty() {
            replica.noticed = true;
            cluster.model.met.borrow_mut().insert((ReplicaLocation { server: id, disk }, chunk));
        }
    }
}

/// The chunk is on three servers that are up, and each has every byte.
fn is_whole(cluster: &Cluster, view: &StreamView) -> bool {
    let all = cluster.model.servers.borrow();
    let whole = |replica: &ReplicaPlace| {
        let server = &all[&replica.server];
        let found = server.replicas.get(&(replica.disk, view.chunks[0].chunk));
        let whole = found.is_some_and(|it| it.holes.is_empty() && it.bytes == [1; 100]);
        server.up && server.disks.contains(&replica.disk) && whole
    };
    view.chunks[0].replicas.len() == 3 && view.chunks[0].replicas.iter().all(whole)
}

async fn until_whole(cluster: &Rc<Cluster>, timeout: Duration) {
    let mut waited = Duration::ZERO;
    while !is_whole(cluster, &cluster.locate(FILE, 0).await.unwrap()) {
        report_met(cluster);
        assert!(waited < timeout, "{:?}", cluster.locate(FILE, 0).await);
        cluster.sim.sleep(Duration::from_millis(100)).await;
        waited += Duration::from_millis(100);
    }
}

#[test]
fn latent_errors_at_two_places_and_a_dead_server_lose_nothing() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::strict(3), 5);
        Cluster::run(&sim, &cluster, async |cluster| {
            let held = closed_file(&cluster).await;
            cluster.model.rot(held[0], 10);
            cluster.model.rot(held[1], 50);
            cluster.model.crash(held[2]);
            scrub(&cluster, held[0]);
            until_whole(&cluster, Duration::from_secs(60)).await;
            cluster.sim.sleep(Duration::from_secs(2)).await; // The next scan sees it.
            let status = cluster.services[0].status();
            assert_eq!((status.under_replicated, status.lost), (0, 0));
        });
        let marks = sim.marks();
        assert!(marks.contains_key("chunk repaired"), "seed {seed}: {marks:?}");
    }
}

#[test]
fn a_damaged_replica_is_kept_while_its_copies_can_not_be_made() {
    let sim = Sim::new(4);
    let cluster = Cluster::new(&sim, Policy::strict(3), 5);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        let others: Vec<_> = (1..=5).map(ServerId::new).filter(|id| !held.contains(id)).collect();
        cluster.model.full.borrow_mut().extend(&others);
        cluster.model.rot(held[0], 10);
        scrub(&cluster, held[0]);
        for _ in 0..100 {
            report_met(&cluster);
            cluster.sim.sleep(Duration::from_millis(100)).await;
            let now = servers(&cluster.locate(FILE, 0).await.unwrap());
            assert!(now.contains(&held[0]), "dropped without a replacement: {now:?}");
        }
        cluster.model.full.borrow_mut().clear();
        until_whole(&cluster, Duration::from_secs(60)).await;
    });
}

#[test]
fn a_replica_that_repair_drops_is_deleted_when_no_right_to_it_is_alive() {
    let sim = Sim::new(5);
    let cluster = Cluster::new(&sim, Policy::strict(3), 5);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        let view = cluster.locate(FILE, 0).await.unwrap();
        let replica = view.chunks[0].replicas[0];
        let place = ReplicaLocation { server: replica.server, disk: replica.disk };
        cluster.model.rot(held[0], 10);
        scrub(&cluster, held[0]);
        for _ in 0..600 {
            report_met(&cluster);
            cluster.sim.sleep(Duration::from_millis(20)).await;
            let state = cluster.world.state.borrow();
            if let Some(dead) = state.dead(view.chunks[0].chunk, place) {
                let rights_ms = 2200;
                let left = dead.delete_at_ms - state.clock_ms();
                assert!(left > rights_ms - 200, "deleted {left} ms from now");
                return;
            }
        }
        panic!("the damaged replica is not dropped");
    });
}

#[test]
fn absent_disk_is_replaced_after_the_grace_period_and_used_again() {
    let sim = Sim::new(6);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        let other = (1..=4).map(ServerId::new).find(|id| !held.contains(id)).unwrap();
        cluster.model.full.borrow_mut().insert(other);
        let disk = cluster.model.take_out(held[0]);
        for _ in 0..60 {
            cluster.sim.sleep(Duration::from_millis(100)).await;
            let now = servers(&cluster.locate(FILE, 0).await.unwrap());
            assert!(now.contains(&held[0]), "dropped before its copies are sealed: {now:?}");
        }
        assert_eq!(cluster.services[0].status().under_replicated, 1);
        cluster.model.put_back(held[0], disk);
        until_whole(&cluster, Duration::from_secs(30)).await;
        cluster.sim.sleep(Duration::from_secs(5)).await;
        let mut now = servers(&cluster.locate(FILE, 0).await.unwrap());
        let mut before = held.clone();
        now.sort();
        before.sort();
        assert_eq!(now, before, "taken back as it was");
        // With a place for its copies they are made, and it goes once they are sealed.
        cluster.model.full.borrow_mut().clear();
        cluster.sim.sleep(Duration::from_secs(10)).await;
        cluster.model.take_out(held[1]);
        until_whole(&cluster, Duration::from_secs(60)).await;
        let now = servers(&cluster.locate(FILE, 0).await.unwrap());
        assert!(now.contains(&other) && !now.contains(&held[1]), "{now:?}");
    });
}

/// All that was on it has been made elsewhere, or deleted with its files, since it went: that is known
/// of each replica, and none of them waits for an operator.
#[test]
fn disk_that_comes_back_is_collected_without_an_operator() {
    let sim = Sim::new(19);
    let cluster = Cluster::with_disks(&sim, Policy::strict(2), 3, 2);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        for file in [FILE, FileId::new(2)] {
            let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
            for round in 0..80 {
                writer.append(&[round; 40]).await.unwrap();
                writer.advance(Vec::new()).await.unwrap();
            }
            writer.close(true).await.unwrap();
        }
        let server = ServerId::new(1);
        let disk = cluster.model.take_out(server);
        let held = || {
            let servers = cluster.model.servers.borrow();
            let on_it = |(at, _): &&(DiskId, ChunkId)| *at == disk;
            servers[&server].replicas.keys().filter(on_it).count()
        };
        let before = held();
        assert!(before > 2 * UNKNOWN_REPLICAS_MAX as usize, "{before} replicas");
        let delete = StreamChange::Delete { file: FileId::new(2) };
        Client::new(&cluster).change(delete).await.unwrap();
        // Copies are made, and all rights to what is on it end.
        cluster.sim.sleep(Duration::from_secs(8)).await;
        assert_eq!(cluster.services[0].status().under_replicated, 0);
        assert_eq!(held(), before);
        cluster.model.put_back(server, disk);
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert_eq!(cluster.services[0].stopped(), []);
        // What has moved to it for balance is counted among those that streams refer to.
        let left = cluster.world.state.borrow().dead_count();
        assert_eq!(left, 0, "{} of {before} replicas are on it", held());
    });
}

/// For repair it is as silent; for writers it is there until its heartbeats end.
#[test]
fn unreached_server_is_repaired_around_and_its_living_writer_goes_on() {
    let sim = Sim::new(16);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let held = closed_file(&cluster).await;
        let other = FileId::new(FILE.get() + 1);
        let mut writer = Writer::open(Client::new(&cluster), other).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let mut of_both = writer.current.replicas.iter().map(|replica| replica.server);
        let lost = of_both.find(|server| held.contains(server)).expect("three of four each");
        cluster.model.lose_reach(lost);
        let second =
            Writer::open(Client::new(&cluster), FileId::new(FILE.get() + 2)).await.unwrap();
        assert!(second.current.replicas.iter().all(|replica| replica.server != lost));
        let mut tries = 0;
        while servers(&cluster.locate(FILE, 0).await.unwrap()).contains(&lost) {
            cluster.sim.sleep(Duration::from_millis(100)).await;
            tries += 1;
            assert!(tries < 300, "its replica is not made elsewhere");
        }
        cluster.sim.sleep(Duration::from_secs(25)).await;
        writer.append(&[1; 100]).await.unwrap();
        cluster.model.crash(lost);
        cluster.sim.sleep(Duration::from_secs(15)).await;
        assert!(cluster.locate(other, 0).await.unwrap().open, "for as long as for any dead server");
        cluster.sim.sleep(Duration::from_secs(10)).await;
        assert!(!cluster.locate(other, 0).await.unwrap().open);
    });
}

#[test]
fn with_as_many_servers_as_copies_a_damaged_replica_gives_way_in_the_end() {
    let sim = Sim::new(7);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        cluster.model.rot(held[0], 10);
        scrub(&cluster, held[0]);
        until_whole(&cluster, Duration::from_secs(90)).await;
    });
    assert!(sim.marks().contains_key("damaged replica gives way"));
}

/// The third server sends heartbeats, and none of the masters' calls reaches it: its replica is short
/// of the seal for good, and does not count as a copy.
#[test]
fn replica_that_cannot_be_sealed_is_replaced_although_its_server_beats() {
    let sim = Sim::new(13);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let held = servers(&cluster.locate(FILE, 0).await.unwrap());
        cluster.model.grey.borrow_mut().insert(held[2]);
        assert_eq!(writer.close(false).await, Ok(100));
        cluster.sim.sleep(Duration::from_secs(20)).await;
        let now = servers(&cluster.locate(FILE, 0).await.unwrap());
        assert!(!now.contains(&held[2]), "{now:?}");
        until_whole(&cluster, Duration::ZERO).await;
        let status = cluster.services[0].status();
        assert_eq!((status.under_replicated, status.repair.pending), (0, 0));
        // It comes back: what it has is no part of the file, and goes once no right to it is alive.
        cluster.model.grey.borrow_mut().clear();
        cluster.sim.sleep(Duration::from_secs(90)).await;
        let left = cluster.model.servers.borrow()[&held[2]].replicas.len();
        assert_eq!(left, 0, "its replica is deleted");
    });
}

/// Ends a chunk of 3/2 whose third replica lacks the last bytes. Half way through the time that the
/// writer has, it sends them if it is to. Answers what the third replica said, and the marks.
fn end_with_a_late_replica(sends: bool) -> (Option<Result<u32, CallError>>, Marks) {
    let sim = Sim::new(14);
    let ms = Duration::from_millis;
    let times = || StreamConfig { chase_grace: ms(800), scan_interval: ms(50), ..config(&sim) };
    let cluster = Cluster::with_config(&sim, Policy::rep(3), 4, times);
    let answer = Rc::new(RefCell::new(None));
    let late_answer = answer.clone();
    Cluster::run(&sim, &cluster, async move |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 60]).await.unwrap();
        cluster.sim.sleep(ms(20)).await;
        let ReplicaPlace { server, disk, .. } = writer.current.replicas[2];
        let (chunk, epoch, base) =
            (writer.current.chunk, writer.current.epoch, writer.current.base);
        cluster.model.in_place.set(true);
        cluster.model.cut.borrow_mut().insert(server);
        writer.append(&[1; 40]).await.unwrap();
        assert_eq!(writer.close(false).await, Ok(100));
        cluster.sim.sleep(ms(400)).await;
        cluster.model.cut.borrow_mut().clear();
        if sends {
            let append =
                Append { chunk, epoch, base, offset: 60, bytes: vec![1; 40], committed: 100 };
            let place = ReplicaLocation { server, disk };
            *late_answer.borrow_mut() = Some(cluster.model.append(place, &append).await);
        }
        until_whole(&cluster, ms(3_000)).await;
        let now = servers(&cluster.locate(FILE, 0).await.unwrap());
        assert!(now.contains(&server), "{now:?}");
    });
    (answer.take(), sim.marks())
}

#[test]
fn short_replica_of_an_ended_chunk_is_left_to_its_writer_for_a_while() {
    let (answer, marks) = end_with_a_late_replica(true);
    // It has them all, and may have been sealed with them before it answers.
    let whole = [Ok(100), Err(CallError::Data(DataError::Sealed { len: 100 }))];
    assert!(answer.as_ref().is_some_and(|it| whole.contains(it)), "{answer:?}");
    assert!(!marks.contains_key("short replica completed"), "{marks:?}");
    let (_, marks) = end_with_a_late_replica(false);
    assert!(marks.contains_key("short replica completed"), "{marks:?}");
}

/// Ends a chunk of 3/2 whose third replica lacks the last bytes, naming some of its servers as left.
/// Answers how long it takes until all copies are there, and the marks.
fn completed_after(names: impl Fn(ServerId) -> Vec<ServerId> + 'static) -> (Duration, Marks) {
    let sim = Sim::new(17);
    let ms = Duration::from_millis;
    let times = || StreamConfig { chase_grace: ms(800), scan_interval: ms(50), ..config(&sim) };
    let cluster = Cluster::with_config(&sim, Policy::rep(3), 4, times);
    let took = Rc::new(Cell::new(Duration::ZERO));
    let taken = took.clone();
    Cluster::run(&sim, &cluster, async move |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 60]).await.unwrap();
        cluster.sim.sleep(ms(20)).await;
        let late = writer.current.replicas[2].server;
        cluster.model.in_place.set(true);
        cluster.model.cut.borrow_mut().insert(late);
        writer.append(&[1; 40]).await.unwrap();
        cluster.model.cut.borrow_mut().clear();
        writer.left = names(late);
        let begun = cluster.sim.elapsed();
        assert_eq!(writer.close(false).await, Ok(100));
        until_whole(&cluster, ms(3_000)).await;
        taken.set(cluster.sim.elapsed() - begun);
        let now = servers(&cluster.locate(FILE, 0).await.unwrap());
        assert!(now.contains(&late), "{now:?}");
    });
    (took.get(), sim.marks())
}

#[test]
fn short_replica_that_its_writer_has_left_is_completed_at_once() {
    const LEFT: &str = "short replica that its writer has left";
    let ms = Duration::from_millis;
    let (took, marks) = completed_after(|late| vec![late]);
    assert!(took < ms(400) && marks.contains_key(LEFT), "after {took:?}: {marks:?}");
    assert!(!marks.contains_key("short replica left to its writer"), "{marks:?}");
    // Others, strangers among them, change nothing.
    let strangers = |late: ServerId| {
        let others = (1..=8).map(ServerId::new);
        others.filter(|server| *server != late).collect::<Vec<_>>()
    };
    for (took, marks) in [completed_after(|_| Vec::new()), completed_after(strangers)] {
        assert!(took >= ms(800) && !marks.contains_key(LEFT), "after {took:?}: {marks:?}");
    }
}

/// A recovery's fence leaves a tombstone where the first append has not arrived. Nothing is damaged:
/// that place is filled.
#[test]
fn place_that_was_fenced_before_its_first_byte_is_filled_and_not_damaged() {
    let sim = Sim::new(12);
    let vote_timeout = Duration::from_millis(50);
    let all_vote = || StreamConfig { vote_timeout, ..config(&sim) };
    let cluster = Cluster::with_config(&sim, Policy::plain(3, 2), 4, all_vote);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let held = servers(&cluster.locate(FILE, 0).await.unwrap());
        let never = |server: &ServerId| {
            cluster.model.servers.borrow_mut().get_mut(server).unwrap().replicas.clear();
        };
        never(&held[2]);
        cluster.model.in_place.set(true);
        drop(writer);
        let sealed = Client::new(&cluster).change(StreamChange::seal(FILE)).await;
        assert_eq!(sealed, Ok(StreamReply::Done { len: 100 }));
        until_whole(&cluster, Duration::from_secs(10)).await;
        let now = servers(&cluster.locate(FILE, 0).await.unwrap());
        assert!(now.contains(&held[2]), "{now:?}");
    });
    let marks = sim.marks();
    assert!(marks.contains_key("place fenced before its first byte"), "{marks:?}");
    assert!(!marks.contains_key("bad replica found"), "{marks:?}");
}

/// A deletion that was held up on its way, as by a leader that others have replaced, arrives when
/// the replica has been deleted, forgotten, and made again where it was.
#[test]
fn a_deletion_that_arrives_after_the_replica_was_made_again_is_refused() {
    let sim = Sim::new(11);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        cluster.model.rot(held[0], 10);
        scrub(&cluster, held[0]);
        until_whole(&cluster, Duration::from_secs(90)).await;
        let deletions = cluster.model.deletions.borrow().clone();
        let to_it = |deletion: &(ReplicaPlace, _, _)| deletion.0.server == held[0];
        let (to, chunks, not_after) =
            deletions.into_iter().find(to_it).expect("it was deleted in between");
        let late = cluster.model.delete(to, chunks, not_after).await;
        assert!(matches!(late, Err(CallError::Control(_))), "{late:?}");
        assert!(is_whole(&cluster, &cluster.locate(FILE, 0).await.unwrap()));
    });
    assert!(sim.marks().contains_key("damaged replica gives way"));
}

#[test]
fn tail_of_a_silent_writer_is_sealed() {
    let sim = Sim::new(8);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let chunk = writer.current.chunk;
        let report = |replica: &ReplicaPlace| {
            let place = ReplicaLocation { server: replica.server, disk: replica.disk };
            let now = cluster.model.env.borrow().now();
            cluster.services[0].report_quiet(place, chunk, now);
        };
        // One of three may be cut off from the writer.
        report(&writer.current.replicas[0]);
        cluster.sim.sleep(Duration::from_secs(3)).await;
        assert!(cluster.locate(FILE, 0).await.unwrap().open);
        writer.append(&[1; 100]).await.unwrap();
        writer.current.replicas.iter().for_each(report);
        cluster.sim.sleep(Duration::from_secs(3)).await;
        let view = cluster.locate(FILE, 0).await.unwrap();
        assert_eq!((view.open, view.sealed_len), (false, 200));
    });
}

/// Their seals are operations of one session: that one is asked for acknowledges no other.
#[test]
fn tails_of_several_silent_writers_are_sealed_at_once() {
    let sim = Sim::new(18);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut silent = Vec::new();
        for file in (1..=8).map(FileId::new) {
            let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
            writer.append(&[1; 10]).await.unwrap();
            silent.push((file, writer.grant.epoch, writer.current.chunk));
        }
        for &(file, epoch, chunk) in &silent {
            cluster.services[0].0.seal_abandoned(file, epoch, chunk);
        }
        cluster.sim.sleep(Duration::from_millis(1000)).await;
        for (file, ..) in silent {
            let view = cluster.locate(file, 0).await.unwrap();
            assert_eq!((view.open, view.sealed_len), (false, 10), "{file}");
        }
    });
    assert!(!sim.marks().contains_key("recovery ended by the leader"));
}

/// No server has a replica yet, so none reports the writer's silence. A writer that lives leaves such a
/// chunk for one with all copies.
#[test]
fn empty_chunk_short_of_copies_is_sealed_when_its_writer_is_gone() {
    let sim = Sim::new(17);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let away = [ServerId::new(1), ServerId::new(2)];
        away.iter().for_each(|&server| cluster.model.crash(server));
        let writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        assert_eq!(writer.current.replicas.len(), 2);
        drop(writer);
        cluster.sim.sleep(Duration::from_secs(40)).await;
        assert!(cluster.locate(FILE, 0).await.unwrap().open, "no more copies can be made");
        away.iter().for_each(|&server| cluster.model.restart(server));
        cluster.sim.sleep(Duration::from_secs(15)).await;
        assert!(cluster.locate(FILE, 0).await.unwrap().open, "its writer may still come to it");
        cluster.sim.sleep(Duration::from_secs(10)).await;
        let view = cluster.locate(FILE, 0).await.unwrap();
        assert_eq!((view.open, view.sealed_len), (false, 0));
        assert_eq!(cluster.services[0].status().under_replicated, 0);
    });
}

/// The leader's own seal is decided for the writer that the servers report: not for one that opens the
/// file before the seal is committed.
#[test]
fn writer_that_opens_while_its_silent_predecessor_is_sealed_keeps_the_file() {
    let sim = Sim::new(13);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        for round in 0..2000 {
            let opened = Writer::open(Client::new(&cluster), FILE).await;
            let mut writer = opened.unwrap_or_else(|error| panic!("{round}: {error}"));
            let appended = writer.append(&[1; 10]).await;
            assert!(appended.is_ok(), "{round}: {appended:?}");
            let (chunk, now) = (writer.current.chunk, cluster.model.env.borrow().now());
            for replica in &writer.current.replicas {
                let place = ReplicaLocation { server: replica.server, disk: replica.disk };
                cluster.services[0].report_quiet(place, chunk, now);
            }
        }
    });
    assert!(sim.marks().contains_key("abandoned chunk sealed"));
}

/// The leader's own seal is decided for the chunk that the servers report: not for the one in which
/// its writer goes on before the seal is committed.
#[test]
fn writer_that_goes_on_while_its_quiet_chunk_is_sealed_keeps_the_next_one() {
    let sim = Sim::new(15);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let mut went_on = 0;
        for round in 0..200 {
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            writer.append(&[1; 10]).await.unwrap();
            cluster.services[0].0.seal_abandoned(FILE, writer.grant.epoch, writer.current.chunk);
            if writer.advance(Vec::new()).await.is_ok() {
                went_on += 1;
                cluster.sim.sleep(Duration::from_millis(5)).await;
                let appended = writer.append(&[1; 10]).await;
                assert!(appended.is_ok(), "{round}: {appended:?}");
                let closed = writer.close(false).await;
                assert!(closed.is_ok(), "{round}: {closed:?}");
            }
        }
        assert!((20..180).contains(&went_on), "{went_on} of 200 writers were first");
    });
    assert!(sim.marks().contains_key("abandoned chunk sealed"));
}

#[test]
fn damaged_tail_of_a_living_writer_is_sealed_after_the_grace_period() {
    let sim = Sim::new(9);
    let cluster = Cluster::new(&sim, Policy::strict(3), 5);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let held = writer.current.replicas[0].server;
        cluster.model.rot(held, 10);
        scrub(&cluster, held);
        report_met(&cluster);
        cluster.sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(cluster.services[0].status().under_replicated, 1, "the report counts");
        assert!(cluster.locate(FILE, 0).await.unwrap().open, "the writer is to move on itself");
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert!(!cluster.locate(FILE, 0).await.unwrap().open);
        until_whole(&cluster, Duration::from_secs(30)).await;
    });
}

#[test]
fn a_spare_without_votes_does_not_hold_up_the_seal() {
    let sim = Sim::new(10);
    let cluster = Cluster::new(&sim, Policy::plain(3, 2), 6);
    Cluster::run(&sim, &cluster, async |cluster| {
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let tail: Vec<_> = writer.current.replicas.iter().map(|it| it.server).collect();
        let spares = writer.grant.spares.iter().flat_map(|spare| &spare.replicas);
        let apart: BTreeSet<_> =
            spares.map(|it| it.server).filter(|server| !tail.contains(server)).collect();
        assert!(apart.len() >= 2, "spares are on other servers: {apart:?}");
        // Disks that are replaced one after the other, and no chunk of a file was on them.
        apart.iter().for_each(|&server| cluster.model.wipe(server));
        drop(writer);
        let sealed = Client::new(&cluster).change(StreamChange::seal(FILE)).await;
        assert_eq!(sealed, Ok(StreamReply::Done { len: 100 }));
    });
}

/// Seals of other chunks, whose servers answer slowly, hold all permits for longer than a silent server
/// is hoped for: replicas that were not tried yet are copies all the same.
#[test]
fn replicas_that_wait_for_their_seal_are_copies() {
    let sim = Sim::new(14);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let held = servers(&cluster.locate(FILE, 0).await.unwrap());
        let permits = cluster.services[0].0.repairs.seal_permits.clone();
        let all = permits.available_permits() as u32;
        let taken = permits.acquire_many_owned(all).await.unwrap();
        assert_eq!(writer.close(false).await, Ok(100));
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert_eq!(servers(&cluster.locate(FILE, 0).await.unwrap()), held);
        drop(taken);
        until_whole(&cluster, Duration::from_secs(1)).await;
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert_eq!(servers(&cluster.locate(FILE, 0).await.unwrap()), held);
        assert_eq!(cluster.services[0].status().repair.done, 0);
    });
}

/// Very many replicas are reported of a server that answers no call: other chunks are sealed all the same.
#[test]
fn reports_that_wait_for_a_silent_server_hold_up_no_seal() {
    const REPORTED: u64 = 1000;
    let sim = Sim::new(15);
    // The silent server is not given up.
    let hopes = || StreamConfig { dead_grace: Duration::from_secs(600), ..config(&sim) };
    let cluster = Cluster::with_config(&sim, Policy::strict(2), 2, hopes);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        for _ in 0..REPORTED {
            writer.append(&[1; 10]).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
        }
        writer.append(&[1; 10]).await.unwrap();
        cluster.sim.sleep(Duration::from_secs(2)).await;
        let (silent, other) = (ServerId::new(1), ServerId::new(2));
        cluster.model.grey.borrow_mut().insert(silent);
        let held: Vec<_> = {
            let servers = cluster.model.servers.borrow();
            servers[&silent].replicas.keys().copied().collect()
        };
        for (disk, chunk) in held {
            let place = ReplicaLocation { server: silent, disk };
            cluster.services[0].report_damaged(place, chunk);
        }
        let last = writer.current.chunk;
        writer.close(false).await.unwrap();
        cluster.sim.sleep(Duration::from_secs(1)).await;
        let servers = cluster.model.servers.borrow();
        let mut replicas = servers[&other].replicas.iter();
        let (_, replica) = replicas.find(|((_, chunk), _)| *chunk == last).unwrap();
        assert_eq!(replica.state, ReplicaState::Sealed);
    });
}
