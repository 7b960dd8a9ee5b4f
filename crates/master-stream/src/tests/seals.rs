//! Seals of the replicas of chunks that have ended.

use base::FileId;
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::Policy;

use super::service::config;
use super::writer::{Client, Cluster, Writer};
use crate::StreamConfig;

/// A writer ends chunk after chunk: the replicas of each are sealed at once, and those that wait are not all
/// looked at for it.
#[test]
fn end_of_a_chunk_is_no_reason_to_look_at_all_that_wait() {
    const CHUNKS: usize = 300;
    const INTERVAL: Duration = Duration::from_secs(2);
    let sim = Sim::new(24);
    let seldom = || StreamConfig { scan_interval: INTERVAL, ..config(&sim) };
    let cluster = Cluster::with_config(&sim, Policy::strict(2), 2, seldom);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let begin = cluster.sim.elapsed();
        let mut writer = Writer::open(Client::new(&cluster), FileId::new(1)).await.unwrap();
        for _ in 0..CHUNKS {
            writer.append(&[1; 10]).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
        }
        cluster.sim.sleep(Duration::from_millis(50)).await;
        assert_eq!(cluster.world.state.borrow().partly_sealed().count(), 0);
        let time = cluster.sim.elapsed() - begin;
        let marks = cluster.sim.marks();
        let looks = marks.get("all chunks with replicas to seal looked at").copied();
        let most = 1 + (time.as_millis() / INTERVAL.as_millis()) as u64;
        assert!(looks.is_some_and(|looks| looks <= most), "{looks:?} in {time:?}");
    });
}
