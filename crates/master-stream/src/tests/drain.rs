//! Draining and maintenance of servers, as repair sees them.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{FileId, Kind, ServerId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::Policy;

use super::writer::{Client, Cluster, Writer};
use crate::{Log, StreamMachine};

const FILE: FileId = FileId::new(1);

/// A closed file of one chunk with three copies, under repair from now on; its servers.
async fn closed_file(cluster: &Rc<Cluster>) -> Vec<ServerId> {
    cluster.services.iter().for_each(|service| service.start_background());
    let mut writer = Writer::open(Client::new(cluster), FILE).await.unwrap();
    writer.append(&[1; 100]).await.unwrap();
    assert_eq!(writer.close(false).await, Ok(100));
    cluster.sim.sleep(Duration::from_secs(1)).await;
    sealed(cluster).into_iter().collect()
}

/// Servers with a replica of the file's chunk that is sealed.
fn sealed(cluster: &Cluster) -> BTreeSet<ServerId> {
    cluster.services[0].0.log.with_state(|state: &StreamMachine| {
        let chunk = &state.stream(FILE).unwrap().chunks[0];
        let slots = chunk.slots().filter(|slot| slot.sealed);
        slots.map(|slot| state.place(slot.place).server).collect()
    })
}

/// Runs until `done`, and checks in all that time that three replicas stay settled on servers that
/// do not drain, once there were as many.
async fn watch(
    cluster: &Cluster,
    draining: &[ServerId],
    done: impl Fn(&BTreeSet<ServerId>) -> bool,
) {
    let mut whole = false;
    for _ in 0..4000 {
        cluster.sim.sleep(Duration::from_millis(5)).await;
        let now = sealed(cluster);
        assert!(now.len() >= 3, "{now:?}");
        let stay = now.iter().filter(|server| !draining.contains(server)).count();
        assert!(!whole || stay >= 3, "{now:?}");
        whole |= stay >= 3;
        if done(&now) {
            return;
        }
    }
    panic!("{:?}", sealed(cluster));
}

#[test]
fn chunk_of_a_draining_server_is_made_elsewhere_before_it_is_dropped() {
    for seed in 0..10 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::strict(3), 5);
        Cluster::run(&sim, &cluster, async |cluster| {
            let held = closed_file(&cluster).await;
            let service = cluster.services[0].clone();
            assert_eq!(service.held(held[0]).await.unwrap().replicas, 1);
            cluster.model.drain(held[0], true);
            watch(&cluster, &held[..1], |now| now.len() == 3 && !now.contains(&held[0])).await;
            assert_eq!(service.held(held[0]).await.unwrap().replicas, 0);
            // It takes chunks again.
            cluster.model.drain(held[0], false);
            cluster.model.drain(held[1], true);
            watch(&cluster, &held[1..2], |now| now.len() == 3 && !now.contains(&held[1])).await;
        });
    }
}

#[test]
fn draining_without_another_place_leaves_all_as_it_is() {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        cluster.model.drain(held[0], true);
        for _ in 0..200 {
            cluster.sim.sleep(Duration::from_millis(50)).await;
            assert_eq!(sealed(&cluster).len(), 3);
        }
        let shown = cluster.services[0].draining();
        assert_eq!((shown[0].server, shown[0].replicas, shown[0].only), (held[0], 1, 0));
        assert_eq!(cluster.services[0].status().under_replicated, 0, "all can be read");
        cluster.model.add_server(9, 1);
        watch(&cluster, &held[..1], |now| now.len() == 3 && !now.contains(&held[0])).await;
    });
}

#[test]
fn server_that_dies_while_it_drains_is_dropped_only_when_three_stay() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        let other = (1..=4).map(ServerId::new).find(|id| !held.contains(id)).unwrap();
        cluster.model.full.borrow_mut().insert(other);
        cluster.model.drain(held[0], true);
        cluster.sim.sleep(Duration::from_secs(2)).await;
        cluster.model.crash(held[0]);
        cluster.sim.sleep(Duration::from_secs(10)).await;
        assert!(sealed(&cluster).contains(&held[0]), "two others have it");
        cluster.model.full.borrow_mut().clear();
        watch(&cluster, &held[..1], |now| now.len() == 3 && !now.contains(&held[0])).await;
    });
}

#[test]
fn silent_server_under_maintenance_is_repaired_around_only_when_one_good_replica_is_left() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, Policy::strict(3), 5);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        cluster.model.maintain(held[0], true);
        cluster.model.crash(held[0]);
        cluster.sim.sleep(Duration::from_secs(30)).await;
        assert_eq!(sealed(&cluster), held.iter().copied().collect());
        assert_eq!(cluster.services[0].status().repair.done, 0);
        // One is left that serves: another is made, and with two the chunk waits again.
        cluster.model.crash(held[1]);
        watch(&cluster, &[], |now| now.len() == 4).await;
        cluster.model.restart(held[0]);
        cluster.model.restart(held[1]);
        watch(&cluster, &[], |now| now.len() == 3).await;
        // After its end it is as any other.
        cluster.model.maintain(held[0], false);
        let last = *sealed(&cluster).first().unwrap();
        cluster.model.crash(last);
        watch(&cluster, &[], |now| now.len() == 3 && !now.contains(&last)).await;
    });
}

#[test]
fn chunk_is_lost_with_a_server_when_no_other_has_enough_and_none_is_expected_back() {
    let sim = Sim::new(4);
    let cluster = Cluster::new(&sim, Policy::strict(2), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held: Vec<_> = closed_file(&cluster).await;
        let service = cluster.services[0].clone();
        let lost = async |server| {
            let held = service.held(server).await.unwrap();
            assert_eq!((held.replicas, held.lost.chunks), (1, held.lost_replicas));
            held.lost_chunks
        };
        cluster.model.crash(held[0]);
        cluster.model.crash(held[1]);
        cluster.sim.sleep(service.0.config.dead_grace / 4).await;
        assert_eq!(lost(held[0]).await, [], "it may come back");
        cluster.sim.sleep(Duration::from_secs(20)).await;
        let of_first = lost(held[0]).await;
        assert_eq!(of_first.len(), 1);
        assert_eq!((of_first[0].file, of_first[0].base, of_first[0].len), (FILE, 0, 100));
        assert_eq!(lost(held[1]).await, of_first, "neither serves it");
        cluster.model.restart(held[1]);
        cluster.sim.sleep(Duration::from_secs(1)).await;
        assert_eq!(service.held(held[0]).await.unwrap().lost_chunks, [], "the other one does");
    });
}

/// What a server has on record of spares, and of chunks without bytes, is of writers that do not come
/// to use it. A chunk with bytes is its writer's.
#[test]
fn what_writers_do_not_use_is_taken_from_servers_that_drain_or_are_gone() {
    for (seed, gone) in [(5, false), (6, true)] {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::strict(3), 9);
        Cluster::run(&sim, &cluster, async move |cluster| {
            cluster.services.iter().for_each(|service| service.start_background());
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            let open_grace = cluster.services[0].0.config.open_grace;
            let held = async |server| cluster.services[0].held(server).await.unwrap().open;
            let spare = writer.grant.spares[0].replicas[0].server;
            assert!(writer.current.replicas.iter().all(|replica| replica.server != spare));
            match gone {
                true => cluster.model.crash(spare),
                false => cluster.model.drain(spare, true),
            }
            let known = if gone { open_grace } else { Duration::ZERO };
            cluster.sim.sleep(known + Duration::from_secs(5)).await;
            assert_eq!(held(spare).await, 0, "no spare is there");
            let refused = writer.advance(Vec::new()).await.expect_err("it is no spare");
            assert_eq!(refused.kind, Kind::Refresh);
            // Its writer asks for others, and goes on.
            writer.grant.spares.clear();
            writer.advance(Vec::new()).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
            let current = writer.current.replicas[0].server;
            cluster.model.drain(current, true);
            writer.append(&[1; 100]).await.unwrap();
            cluster.sim.sleep(open_grace * 3).await;
            assert!(cluster.locate(FILE, 0).await.unwrap().open, "it has bytes");
            let drained = [spare, current];
            writer.advance(drained.to_vec()).await.unwrap();
            let unwritten = writer.current.replicas[0].server;
            cluster.model.drain(unwritten, true);
            cluster.sim.sleep(open_grace / 2).await;
            assert_eq!(held(unwritten).await, 1, "its writer may leave it");
            drop(writer);
            cluster.sim.sleep(open_grace).await;
            assert_eq!(held(unwritten).await, 0);
            let view = cluster.locate(FILE, 0).await.unwrap();
            assert_eq!((view.open, view.sealed_len), (false, 100));
        });
    }
}
