//! A medium without room for writes to places that the store has already, as a thin volume or a file
//! with holes has: reads are served, and writes again once there is room.

use base::ChunkId;
use chunkstore::flash::{Config, FlashStore, MountError, Planted, SyncMode};
use chunkstore::{ChunkStore, StoreError};
use runtime::sim::{CrashMode, DiskError, DiskFaults, Sim};
use runtime::{Duration, Rng};

use crate::conformance::seeds;
use crate::engine::{Engine, Flash, append_of, data_of, small};
use crate::errors::check_acked;
use crate::recovery::{Acked, EPOCH, fill};

const MODES: [SyncMode; 2] = [SyncMode::PerWrite, SyncMode::Group];

fn engine(sim: &Sim, sync: SyncMode) -> Flash {
    Flash::new(sim, small(), Config { sync, waits_for_room: true, ..Config::default() })
}

fn no_room() -> DiskFaults {
    DiskFaults { write_fails_one_in: 1, error: DiskError::Space, ..DiskFaults::default() }
}

/// Appends until one is acknowledged; how long that took.
async fn takes_writes(sim: &Sim, store: &FlashStore, acked: &mut Acked) -> Duration {
    let begun = sim.elapsed();
    let append = append_of(ChunkId::new(900), EPOCH, 0, &data_of(ChunkId::new(900), 0, 100, 0));
    loop {
        match store.append(append.clone()).await {
            Ok(_) => break,
            Err(StoreError::Failed | StoreError::Full) => {
                sim.sleep(Duration::from_millis(10)).await
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sim.elapsed() < begun + Duration::from_secs(10), "{:?}", store.info());
    }
    acked.note(&append);
    sim.elapsed() - begun
}

#[test]
fn a_store_is_mounted_on_a_full_medium() {
    for (seed, sync) in seeds(0..30).flat_map(|seed| MODES.map(|sync| (seed, sync))) {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, sync);
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut acked = Acked::default();
            fill(&store, &mut Rng::new(seed), &mut acked, 30).await;
            drop(store);
            engine.crash([CrashMode::Power, CrashMode::Process][seed as usize % 2]);
            sim.with_disk_faults(engine.host, |faults| *faults = no_room());
            let store = engine.boot().await.unwrap();
            check_acked(&store, &acked).await.unwrap();
            let info = store.info();
            assert!(info.failed && info.reason.contains("room"), "{info:?}");
            let append = append_of(ChunkId::new(99), EPOCH, 0, &data_of(ChunkId::new(99), 0, 9, 0));
            assert_eq!(store.append(append).await, Err(StoreError::Failed), "seed {seed}");
            let millis = sim.with_rng(|rng| rng.below(3_000));
            sim.sleep(Duration::from_millis(millis)).await;
            check_acked(&store, &acked).await.unwrap();
            sim.with_disk_faults(engine.host, |faults| *faults = Default::default());
            let took = takes_writes(&sim, &store, &mut acked).await;
            assert!(took < Duration::from_secs(2), "seed {seed}: {took:?}");
            fill(&store, &mut Rng::new(seed + 1), &mut acked, 30).await;
            drop(store);
            engine.crash(CrashMode::Power);
            let store = engine.boot().await.unwrap();
            check_acked(&store, &acked).await.unwrap();
        };
        sim.run(run).unwrap();
    }
}

/// Once there is room, reads fail for a while: what is there is looked at again.
#[test]
fn a_store_that_waits_for_room_outlasts_other_errors() {
    for (seed, sync) in seeds(0..10).flat_map(|seed| MODES.map(|sync| (seed, sync))) {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, sync);
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut acked = Acked::default();
            fill(&store, &mut Rng::new(seed), &mut acked, 30).await;
            drop(store);
            engine.crash(CrashMode::Process);
            sim.with_disk_faults(engine.host, |faults| *faults = no_room());
            let store = engine.boot().await.unwrap();
            assert!(store.info().failed);
            let faults = DiskFaults { read_fails_one_in: 1, ..DiskFaults::default() };
            sim.with_disk_faults(engine.host, |all| *all = faults);
            sim.sleep(Duration::from_secs(3)).await;
            sim.with_disk_faults(engine.host, |faults| *faults = Default::default());
            let took = takes_writes(&sim, &store, &mut acked).await;
            assert!(took < Duration::from_secs(3), "seed {seed}: {took:?}");
            check_acked(&store, &acked).await.unwrap();
        };
        sim.run(run).unwrap();
    }
}

#[test]
fn a_store_whose_medium_had_no_room_takes_writes_again() {
    let mut failed = 0;
    for (seed, sync) in seeds(0..60).flat_map(|seed| MODES.map(|sync| (seed, sync))) {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, sync);
        let run = async {
            let store = engine.boot().await.unwrap();
            let (mut acked, mut rng) = (Acked::default(), Rng::new(seed));
            fill(&store, &mut rng, &mut acked, 30).await;
            for _ in 0..3 {
                let one_in = rng.between(1, 3);
                let faults = DiskFaults { write_fails_one_in: one_in, ..no_room() };
                sim.with_disk_faults(engine.host, |now| *now = faults);
                fill(&store, &mut rng, &mut acked, 10).await;
                sim.sleep(Duration::from_millis(rng.below(4_000))).await;
                failed += u32::from(store.info().failed);
                sim.with_disk_faults(engine.host, |now| *now = Default::default());
                takes_writes(&sim, &store, &mut acked).await;
                check_acked(&store, &acked).await.unwrap();
                acked.0.remove(&ChunkId::new(900));
                store.fence(ChunkId::new(900), base::Epoch::new(9)).await.unwrap();
                store.delete(ChunkId::new(900)).await.unwrap();
                store.forget(ChunkId::new(900)).await.unwrap();
                fill(&store, &mut rng, &mut acked, 20).await;
            }
            drop(store);
            engine.crash([CrashMode::Power, CrashMode::Process][seed as usize % 2]);
            let store = engine.boot().await.unwrap();
            check_acked(&store, &acked).await.unwrap();
        };
        sim.run(run).unwrap();
    }
    assert!(failed > 100, "{failed} times a store took no writes");
}

/// Writers of several chunks, while some writes have no room and others land seconds late.
async fn live_with_late_writes(engine: &mut Flash, seed: u64) -> Result<u32, String> {
    let (sim, host) = (engine.sim.clone(), engine.host);
    let store = engine.boot().await?;
    let until = sim.elapsed() + Duration::from_secs(20);
    let mut writers = Vec::new();
    for number in 1..=6 {
        let (store, time) = (store.clone(), sim.clone());
        writers.push(sim.spawn("writer", async move {
            let (mut acked, mut rng) = (Acked::default(), Rng::new(seed + number));
            let (mut chunk, mut offset) = (ChunkId::new(number), 0);
            while time.elapsed() < until {
                let (len, salt) = (rng.between(1, 20_000) as u32, rng.below(200));
                let append = append_of(chunk, EPOCH, offset, &data_of(chunk, offset, len, salt));
                match store.append(append.clone()).await {
                    Ok(done) => {
                        acked.note(&append);
                        offset = done.len;
                    }
                    // An attempt before it has arrived.
                    Err(StoreError::Conflict | StoreError::Gap { .. }) => {
                        (chunk, offset) = (ChunkId::new(chunk.get() + 10), 0);
                    }
                    Err(_) => time.sleep(Duration::from_millis(20)).await,
                }
            }
            acked
        }));
    }
    let (mut rng, mut waits) = (Rng::new(seed), 0);
    while sim.elapsed() < until {
        let faults = DiskFaults {
            write_fails_one_in: rng.between(1, 4),
            stall_one_in: 6,
            stall: Duration::from_secs(3),
            ..no_room()
        };
        sim.with_disk_faults(host, |now| *now = faults);
        sim.sleep(Duration::from_millis(rng.between(300, 1_500))).await;
        waits += u32::from(store.info().failed);
        sim.with_disk_faults(host, |now| *now = Default::default());
        sim.sleep(Duration::from_millis(rng.between(500, 4_000))).await;
    }
    for writer in writers {
        check_acked(&store, &writer.await.unwrap()).await?;
    }
    Ok(waits)
}

#[test]
fn a_store_that_has_room_again_waits_for_late_writes() {
    let mut waits = 0;
    for (seed, sync) in seeds(0..20).flat_map(|seed| MODES.map(|sync| (seed, sync))) {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, sync);
        let run = live_with_late_writes(&mut engine, seed);
        waits += sim.run(run).unwrap().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    assert!(waits > 20, "{waits} times a store took no writes");
}

#[test]
fn late_writes_find_early_mounts() {
    let found = seeds(0..20).any(|seed| {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, SyncMode::PerWrite);
        engine.config.planted = Some(Planted::MountEarly);
        let run = live_with_late_writes(&mut engine, seed);
        sim.run(run).unwrap().is_err()
    });
    assert!(found, "no seed finds it");
}

/// The store of a master, whose log cannot do without writes.
#[test]
fn a_store_that_must_write_is_refused_on_a_full_medium() {
    let sim = Sim::new(1);
    let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
    let run = async {
        engine.boot().await.unwrap();
        engine.crash(CrashMode::Process);
        sim.with_disk_faults(engine.host, |faults| *faults = no_room());
        assert_eq!(engine.try_boot().await.map(drop), Err(MountError::Full));
        sim.with_disk_faults(engine.host, |faults| *faults = Default::default());
        engine.crash(CrashMode::Process);
        assert!(!engine.boot().await.unwrap().info().failed);
    };
    sim.run(run).unwrap();
}
