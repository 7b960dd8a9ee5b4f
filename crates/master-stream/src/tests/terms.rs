//! What a leader says of its partition when its term has just begun.

use base::{FileId, ServerId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{Policy, RepairStatus};

use super::writer::{Client, Cluster, Writer};

/// A master leads, another one does while a server comes back, and then the first again. What it has counted in
/// its first term is not shown in its second, before that has been looked at.
#[test]
fn figures_of_an_earlier_term_are_not_shown() {
    let sim = Sim::new(23);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FileId::new(1)).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        let server = writer.current.replicas[0].server;
        writer.close(false).await.unwrap();
        cluster.model.crash(server);
        cluster.sim.sleep(Duration::from_secs(3)).await;
        let figures = |node: usize| {
            let status = cluster.services[node - 1].status();
            let RepairStatus { pending, .. } = status.repair;
            let looked_at = status.survive.iter().sum::<u64>();
            (status.chunks, looked_at, status.under_replicated, pending)
        };
        assert_eq!(figures(1), (1, 1, 1, 1));
        cluster.world.elect(2);
        cluster.model.restart(server);
        cluster.sim.sleep(Duration::from_secs(3)).await;
        assert_eq!(figures(2), (1, 1, 0, 0));
        cluster.world.elect(1);
        assert_eq!(figures(1), (1, 0, 0, 0), "it has not looked at any yet");
        cluster.sim.sleep(Duration::from_secs(1)).await;
        assert_eq!(figures(1), (1, 1, 0, 0));
    });
}

/// The same of what is on a server that an operator has emptied.
#[test]
fn holdings_of_an_earlier_term_are_not_shown() {
    let sim = Sim::new(25);
    let cluster = Cluster::new(&sim, Policy::strict(2), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let server = ServerId::new(1);
        cluster.model.drain(server, true);
        cluster.sim.sleep(Duration::from_secs(2)).await;
        assert_eq!(cluster.services[0].draining().len(), 1);
        cluster.world.elect(2);
        cluster.model.drain(server, false);
        cluster.sim.sleep(Duration::from_secs(2)).await;
        cluster.world.elect(1);
        assert_eq!(cluster.services[0].draining(), []);
    });
}
