//! Whole rows of coded chunks: what the leader has checked, and what becomes of what that finds.

use std::rc::Rc;

use base::{ChunkId, FileId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::Policy;

use super::writer::{Client, Cluster, Writer};
use crate::placement::ReplicaLocation;
use crate::planted::{Planted, plant};

const FILE: FileId = FileId::new(1);
const BYTES: usize = 100_000;
const CODE: Policy = Policy::ec(2, 1);

/// A closed file of one coded chunk; its chunk.
async fn coded_file(cluster: &Rc<Cluster>) -> ChunkId {
    cluster.services.iter().for_each(|service| service.start_background());
    let mut writer = Writer::open(Client::new(cluster), FILE).await.unwrap();
    writer.append(&[7; BYTES]).await.unwrap();
    writer.close(false).await.unwrap();
    cluster.sim.sleep(Duration::from_secs(1)).await;
    fragments(cluster).await.0
}

/// The chunk of the file, and the places of its fragments, all whole.
async fn fragments(cluster: &Rc<Cluster>) -> (ChunkId, Vec<ReplicaLocation>) {
    let view = cluster.locate(FILE, 0).await.expect("the file is there");
    let [chunk] = &view.chunks[..] else { panic!("{view:?}") };
    let servers = cluster.model.servers.borrow();
    let places = chunk.replicas.iter().map(|replica| {
        let found = &servers[&replica.server].replicas[&(replica.disk, chunk.chunk)];
        assert!(found.bytes == vec![7; BYTES], "other bytes at {replica:?}");
        ReplicaLocation { server: replica.server, disk: replica.disk }
    });
    (chunk.chunk, places.collect())
}

/// A fragment with a cell of another row is made again at another place.
#[test]
fn a_fragment_with_a_cell_that_is_not_its_rows_is_replaced() {
    for seed in 0..4 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, CODE, 6);
        Cluster::run(&sim, &cluster, async move |cluster| {
            let chunk = coded_file(&cluster).await;
            let (_, before) = fragments(&cluster).await;
            let wrong = (before[seed as usize % 3], chunk);
            cluster.model.wrong.borrow_mut().insert(wrong);
            cluster.sim.sleep(Duration::from_secs(10)).await;
            let (same, after) = fragments(&cluster).await;
            assert_eq!((same, after.len()), (chunk, 3));
            assert!(!after.contains(&wrong.0), "seed {seed}: {wrong:?} stays");
            let all = cluster.model.wrong.borrow();
            let still: Vec<_> = after.iter().filter(|at| all.contains(&(**at, chunk))).collect();
            assert!(still.is_empty(), "seed {seed}: {still:?} have the cell of {wrong:?}");
        });
    }
}

/// Rows that were coded wrong: the chunk is laid out again, and nothing of it stays. Not while rows are not
/// looked at.
fn is_laid_out_again(seed: u64) -> bool {
    let sim = Sim::new(seed);
    let cluster = Cluster::new(&sim, CODE, 6);
    let again = Rc::new(std::cell::Cell::new(false));
    let seen = again.clone();
    Cluster::run(&sim, &cluster, async move |cluster| {
        let chunk = coded_file(&cluster).await;
        cluster.model.miscoded.borrow_mut().insert(chunk);
        cluster.sim.sleep(Duration::from_secs(20)).await;
        let (made, places) = fragments(&cluster).await;
        assert_eq!(places.len(), 3);
        seen.set(made != chunk);
        if made != chunk {
            let servers = cluster.model.servers.borrow();
            let left = servers.values().flat_map(|server| &server.replicas);
            let left = left.filter(|((_, of), it)| *of == chunk && !it.state.is_tombstone());
            assert_eq!(left.count(), 0, "replicas of the chunk as it was");
        }
    });
    again.get()
}

#[test]
fn a_chunk_that_was_coded_wrong_is_laid_out_again() {
    for seed in 0..4 {
        assert!(is_laid_out_again(seed), "seed {seed}");
    }
    plant(Some(Planted::RowsUnchecked));
    let again = is_laid_out_again(1);
    plant(None);
    assert!(!again, "the bug is not there");
}
