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

/// Appends 31 sectors to a chunk: the units of its next sector are on record, and apart from those
/// that it has filled but for one sector. A write of two sectors is then two writes of the medium.
async fn fill_up_to_apart_units(
    sim: &Sim,
    store: &FlashStore,
    chunk: ChunkId,
    acked: &mut Acked,
) -> u32 {
    let mut offset = 0;
    for (step, sectors) in (0..).zip([1, 6, 6, 6, 12]) {
        let data = data_of(chunk, offset, sectors * 4048, 0);
        let append = append_of(chunk, EPOCH, offset, &data);
        offset = store.append(append.clone()).await.unwrap().len;
        acked.note(&append);
        // It has the unit behind the chunk's last one.
        let other = ChunkId::new(500 + step);
        let append = append_of(other, EPOCH, 0, &data_of(other, 0, 100, 0));
        store.append(append.clone()).await.unwrap();
        acked.note(&append);
        sim.sleep(Duration::from_millis(100)).await;
    }
    // Nothing else is written later.
    sim.sleep(Duration::from_secs(2)).await;
    offset
}

/// Of the two writes of an append one has no room, and the other lands seconds later.
async fn live_with_half_an_append(
    engine: &mut Flash,
    kept_out: &mut Vec<String>,
) -> Result<(), String> {
    let (sim, host) = (engine.sim.clone(), engine.host);
    let store = engine.boot().await?;
    let (chunk, mut acked) = (ChunkId::new(1), Acked::default());
    let end = fill_up_to_apart_units(&sim, &store, chunk, &mut acked).await;
    let stall = Duration::from_secs(5);
    sim.with_disk_faults(host, |now| {
        *now = DiskFaults { stall_one_in: 2, stall, ..no_room() };
    });
    let first = append_of(chunk, EPOCH, end, &data_of(chunk, end, 2 * 4048, 1));
    let mut first = Box::pin(store.append(first));
    assert!(futures_util::poll!(&mut first).is_pending());
    sim.sleep(Duration::from_micros(1)).await; // Both are under way.
    sim.with_disk_faults(host, |now| now.stall_one_in = 0);
    sim.sleep(Duration::from_millis(700)).await;
    sim.with_disk_faults(host, |now| *now = DiskFaults::default());
    let failed = store.info().failed;
    sim.sleep(Duration::from_secs(2)).await;
    if failed && store.info().failed {
        kept_out.push(store.info().reason);
    }
    takes_writes(&sim, &store, &mut acked).await;
    let second = append_of(chunk, EPOCH, end, &data_of(chunk, end, 2 * 4048, 2));
    match store.append(second.clone()).await {
        Ok(_) => acked.note(&second),
        // The first has arrived as a whole.
        Err(StoreError::Conflict) => {}
        Err(error) => return Err(error.to_string()),
    }
    sim.sleep(stall).await;
    check_acked(&store, &acked).await
}

#[test]
fn a_store_that_has_room_again_waits_for_every_write_of_an_append() {
    let mut kept_out = Vec::new();
    for (seed, sync) in seeds(0..24).flat_map(|seed| MODES.map(|sync| (seed, sync))) {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, sync);
        let run = live_with_half_an_append(&mut engine, &mut kept_out);
        let result = sim.run(run).unwrap();
        result.unwrap_or_else(|why| panic!("seed {seed}, {sync:?}: {why}"));
    }
    assert!(kept_out.len() > 4, "{} stores waited for a write", kept_out.len());
    assert!(kept_out.iter().all(|reason| reason.contains("not answered")), "{kept_out:?}");
}

/// The medium takes seconds to reserve the room of more units. The store is mounted again in that
/// time, and the next mount makes the same units ready and fills them.
#[test]
fn units_that_an_ended_mount_was_making_ready_are_left_alone() {
    for (seed, sync) in seeds(0..10).flat_map(|seed| MODES.map(|sync| (seed, sync))) {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, sync);
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut acked = Acked::default();
            sim.sleep(Duration::from_secs(1)).await;
            let stall = Duration::from_secs(5);
            sim.with_disk_faults(engine.host, |now| (now.stall_one_in, now.stall) = (1, stall));
            // It takes all units that are ready, and waits for more.
            let large = ChunkId::new(800);
            let append = append_of(large, EPOCH, 0, &data_of(large, 0, 256 * 4048, 0));
            let mut waits = Box::pin(store.append(append));
            assert!(futures_util::poll!(&mut waits).is_pending());
            sim.sleep(Duration::from_micros(1)).await;
            sim.with_disk_faults(engine.host, |now| *now = no_room());
            let fenced = store.fence(ChunkId::new(700), base::Epoch::new(9)).await;
            assert_eq!(fenced, Err(StoreError::Failed), "seed {seed}");
            assert_eq!(waits.await.map(drop), Err(StoreError::Failed), "seed {seed}");
            sim.with_disk_faults(engine.host, |now| *now = DiskFaults::default());
            let took = takes_writes(&sim, &store, &mut acked).await;
            assert!(took < Duration::from_secs(2), "seed {seed}: {took:?}");
            fill(&store, &mut Rng::new(seed), &mut acked, 200).await;
            sim.sleep(stall).await;
            let left = check_acked(&store, &acked).await;
            left.unwrap_or_else(|why| panic!("seed {seed}, {sync:?}: {why}"));
        };
        sim.run(run).unwrap();
    }
}

/// What keeps the store out changes while it waits: no operator is to make room where there is some.
#[test]
fn reason_of_a_store_that_waits_for_room_is_what_keeps_it_out_now() {
    for (seed, sync) in seeds(0..5).flat_map(|seed| MODES.map(|sync| (seed, sync))) {
        let sim = Sim::new(seed);
        let mut engine = engine(&sim, sync);
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut acked = Acked::default();
            fill(&store, &mut Rng::new(seed), &mut acked, 30).await;
            drop(store);
            engine.crash(CrashMode::Process);
            sim.with_disk_faults(engine.host, |now| *now = no_room());
            let store = engine.boot().await.unwrap();
            let unreadable = DiskFaults { read_fails_one_in: 1, ..DiskFaults::default() };
            for (faults, cause) in [
                (no_room(), "no space left"),
                (unreadable, "the medium answers"),
                (no_room(), "no space left"),
            ] {
                sim.with_disk_faults(engine.host, |now| *now = faults);
                sim.sleep(Duration::from_secs(3)).await;
                let info = store.info();
                assert!(info.failed && info.reason.starts_with(cause), "seed {seed}: {info:?}");
            }
            sim.with_disk_faults(engine.host, |now| *now = DiskFaults::default());
            takes_writes(&sim, &store, &mut acked).await;
            let info = store.info();
            assert!(!info.failed && info.reason.is_empty(), "seed {seed}: {info:?}");
            check_acked(&store, &acked).await.unwrap();
        };
        sim.run(run).unwrap();
    }
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
