//! Changes of the superblock whose callers have gone: each ends before the next one, and before the next
//! mount of the store.

use base::{ChunkId, ClusterId, Epoch, FormationId};
use chunkstore::flash::{Config, FlashStore};
use chunkstore::{ChunkStore, StoreError, StoreOwner};
use runtime::Duration;
use runtime::sim::{CrashMode, DiskError, DiskFaults, Sim};

use crate::conformance::seeds;
use crate::engine::{Engine, Flash, small};

const STALL: Duration = Duration::from_secs(5);

fn owner(number: u128) -> (ClusterId, FormationId) {
    (ClusterId::new(number), FormationId::new(number))
}

/// Has the store join cluster 1, and gives it up while the medium takes long over the first write.
async fn join_and_give_up(engine: &Flash, store: &FlashStore) {
    let (sim, (cluster, formation)) = (&engine.sim, owner(1));
    sim.sleep(Duration::from_secs(1)).await;
    sim.with_disk_faults(engine.host, |now| (now.stall_one_in, now.stall) = (1, STALL));
    let mut given_up = Box::pin(store.adopt(cluster, formation));
    assert!(futures_util::poll!(&mut given_up).is_pending());
    sim.sleep(Duration::from_micros(1)).await; // The write is under way.
    drop(given_up);
    sim.with_disk_faults(engine.host, |now| now.stall_one_in = 0);
}

/// Has the store join cluster 2, and then looks at it after a power cut: it has the owner that it answered.
async fn join_another(engine: &mut Flash, store: FlashStore, seed: u64) {
    let (sim, (cluster, formation)) = (engine.sim.clone(), owner(2));
    let begun = sim.elapsed();
    let answer = loop {
        match store.adopt(cluster, formation).await {
            Err(StoreError::Failed) => sim.sleep(Duration::from_millis(10)).await,
            answer => break answer,
        }
        assert!(sim.elapsed() < begun + STALL * 4, "seed {seed}: {:?}", store.info());
    };
    let (cluster, formation) = match answer {
        Ok(()) => owner(2),
        Err(StoreError::Invalid(_)) => owner(1),
        Err(error) => panic!("seed {seed}: {error}"),
    };
    let expected = StoreOwner::Of { cluster, formation };
    assert_eq!(store.info().owner, expected, "seed {seed}");
    sim.sleep(STALL * 2).await;
    drop(store);
    engine.crash(CrashMode::Power);
    let store = engine.boot().await.unwrap();
    assert_eq!(store.info().owner, expected, "seed {seed}: the store answered {answer:?}");
}

#[test]
fn adoption_without_its_caller_ends_before_the_next_one() {
    for seed in seeds(0..10) {
        let sim = Sim::new(seed);
        let mut engine = Flash::new(&sim, small(), Config::default());
        let run = async {
            let store = engine.boot().await.unwrap();
            join_and_give_up(&engine, &store).await;
            join_another(&mut engine, store, seed).await;
        };
        sim.run(run).unwrap();
        sim.close();
    }
}

#[test]
fn adoption_without_its_caller_ends_before_the_next_mount() {
    for seed in seeds(0..10) {
        let sim = Sim::new(seed);
        let config = Config { waits_for_room: true, ..Config::default() };
        let mut engine = Flash::new(&sim, small(), config);
        let run = async {
            let store = engine.boot().await.unwrap();
            join_and_give_up(&engine, &store).await;
            let no_room = DiskFaults {
                write_fails_one_in: 1,
                error: DiskError::Space,
                ..DiskFaults::default()
            };
            sim.with_disk_faults(engine.host, |now| *now = no_room);
            let fenced = store.fence(ChunkId::new(700), Epoch::new(9)).await;
            assert_eq!(fenced, Err(StoreError::Failed), "seed {seed}");
            sim.with_disk_faults(engine.host, |now| *now = DiskFaults::default());
            join_another(&mut engine, store, seed).await;
        };
        sim.run(run).unwrap();
        sim.close();
    }
}
