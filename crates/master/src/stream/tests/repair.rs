//! Repair of single chunks, step by step.

use base::{FileId, ServerId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{Policy, StreamView};

use super::writer::{Client, Cluster, Writer};
use crate::stream::limits::LOCATE_CHUNKS_MAX;

const FILE: FileId = FileId::new(1);

/// A closed file of one chunk, under repair from now on; the servers of its replicas.
async fn closed_file(cluster: &std::rc::Rc<Cluster>) -> Vec<ServerId> {
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
    let cluster = Cluster::new(&sim, Policy::rep(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let held = closed_file(&cluster).await;
        let full = (1..=4).map(ServerId::new).find(|id| !held.contains(id)).unwrap();
        cluster.model.full.borrow_mut().insert(full);
        cluster.model.crash(held[0]);
        cluster.sim.sleep(Duration::from_secs(5)).await;
        // Whatever was tried by now: a disk with room comes, and is found.
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
    let cluster = Cluster::new(&sim, Policy::rep(2), 3);
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
fn what_waits_for_a_place_is_pending() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, Policy::rep(3), 3);
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
