//! Collection of dead replicas.

use std::ops::Range;

use base::{ChunkId, Epoch, ServerId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::Policy;

use super::writer::Cluster;
use crate::limits::{BATCH_MAX, SCAN_SLICE};
use crate::placement::ReplicaLocation;
use crate::{Action, StreamMachine};

/// A mass deletion has left very many records of one disk. One of them is due, the last: the leader passes over
/// some of the others at a time.
#[test]
fn replica_that_is_due_is_found_among_very_many_in_slices() {
    const DEAD: u64 = 3 * SCAN_SLICE as u64;
    let sim = Sim::new(21);
    let cluster = Cluster::new(&sim, Policy::strict(2), 2);
    *cluster.world.state.borrow_mut() = StreamMachine::new(0).starting_at(DEAD + 1, Epoch::NONE);
    Cluster::run(&sim, &cluster, async |cluster| {
        let server = ServerId::new(1);
        let disk = cluster.model.servers.borrow()[&server].disks[0];
        let place = ReplicaLocation { server, disk };
        let chunk = |counter: u64| ChunkId::compose(0, counter);
        let condemn = async |counters: Range<u64>, delete_at_ms| {
            let replicas: Vec<_> = counters.map(|counter| (chunk(counter), place)).collect();
            for replicas in replicas.chunks(BATCH_MAX) {
                let condemn = Action::Condemn { replicas: replicas.to_vec(), delete_at_ms };
                cluster.services[0].0.decide(condemn).await.unwrap();
            }
        };
        condemn(1..DEAD, u64::MAX).await;
        condemn(DEAD..DEAD + 1, 0).await;
        cluster.services.iter().for_each(|service| service.start_background());
        cluster.sim.sleep(Duration::from_secs(10)).await;
        let state = cluster.world.state.borrow();
        let is_deleted = |counter| {
            let dead = state.dead(chunk(counter), place);
            dead.is_none_or(|dead| dead.forget_at_ms.is_some())
        };
        assert!(is_deleted(DEAD));
        assert!((1..DEAD).all(|counter| !is_deleted(counter)));
    });
    let marks = sim.marks();
    assert!(marks.contains_key("dead records looked at in slices"));
    assert_eq!(marks.get("dead replicas deleted"), Some(&1));
}

/// As many are due as one call takes, and more.
#[test]
fn all_of_very_many_dead_replicas_are_deleted() {
    const DEAD: u64 = 5 * BATCH_MAX as u64 / 2;
    let sim = Sim::new(22);
    let cluster = Cluster::new(&sim, Policy::strict(2), 2);
    *cluster.world.state.borrow_mut() = StreamMachine::new(0).starting_at(DEAD + 1, Epoch::NONE);
    Cluster::run(&sim, &cluster, async |cluster| {
        let server = ServerId::new(2);
        let disk = cluster.model.servers.borrow()[&server].disks[0];
        let place = ReplicaLocation { server, disk };
        let replicas: Vec<_> = (1..=DEAD).map(|at| (ChunkId::compose(0, at), place)).collect();
        for replicas in replicas.chunks(BATCH_MAX) {
            let condemn = Action::Condemn { replicas: replicas.to_vec(), delete_at_ms: 0 };
            cluster.services[0].0.decide(condemn).await.unwrap();
        }
        cluster.services.iter().for_each(|service| service.start_background());
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert_eq!(cluster.world.state.borrow().dead_count(), 0, "deleted, and then forgotten");
    });
}
