//! A medium that answers with errors for a while, and checkpoints that do not read back.

use base::{ChunkId, Epoch};
use chunkstore::flash::layout::Super;
use chunkstore::flash::{CheckpointHeader, FlashStore, MountError, SyncMode};
use chunkstore::{Append, ChunkStore, StoreError};
use runtime::sim::{CrashMode, DiskError, DiskFaults, Sim};
use runtime::{Duration, Env, OpenOptions, Rng, WriteMode};

use crate::conformance::seeds;
use crate::engine::{Engine, Flash, append_of, data_of, store_path};
use crate::recovery::{Acked, EPOCH, check_chunks, fill};
use crate::suite::contents;

const MISS: &str = "chunkstore: checkpoint does not read back";

async fn superblock(env: &Env) -> Super {
    let file = env.open_file(&store_path(), OpenOptions::READ).await.unwrap();
    let (count, block) = file.read_at(0, env.pool().alloc(4096).unwrap()).await;
    assert_eq!(count.unwrap(), 4096);
    Super::decode(&block).unwrap()
}

/// Offset of the next checkpoint.
async fn next_area(env: &Env) -> u64 {
    let sb = superblock(env).await;
    let file = env.open_file(&store_path(), OpenOptions::READ).await.unwrap();
    let mut numbers = Vec::new();
    for area in [0, 1].map(|area| sb.area_at(area)) {
        let (count, block) = file.read_at(area, env.pool().alloc(4096).unwrap()).await;
        assert_eq!(count.unwrap(), 4096);
        let header = CheckpointHeader::decode(sb.disk.get() as u64, &block);
        numbers.push((header.map(|header| header.number), area));
    }
    numbers.into_iter().min().unwrap().1
}

/// A checkpoint does not read back, a longer one is taken in its place, and the power is cut
/// before the header of that one is there.
fn check_second_attempt(seed: u64) -> Result<bool, String> {
    let sim = Sim::new(seed);
    let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
    let run = async {
        let store = engine.boot().await?;
        let mut acked = Acked::default();
        // The last in a checkpoint: what comes before them moves them on.
        for number in 0..300 {
            let chunk = ChunkId::new(100_000 + number);
            let append = append_of(chunk, EPOCH, 0, &data_of(chunk, 0, 100, 0));
            store.append(append.clone()).await.map_err(|error| error.to_string())?;
            acked.note(&append);
        }
        // Both areas have a checkpoint with all of them, so that the log does not.
        for _ in 0..2 {
            store.checkpoint().await.map_err(|error| error.to_string())?;
        }
        sim.sleep(Duration::from_millis(100)).await;
        let at = next_area(&sim.env(engine.host).unwrap()).await + 4096;
        let before = sim.marks().get(MISS).copied().unwrap_or(0);
        let taken = store.clone();
        let first = sim.spawn("checkpoint", async move { drop(taken.checkpoint().await) });
        let mut fences = Vec::new();
        for step in 0u64.. {
            // The first block of records, until reading it back has failed.
            sim.make_unreadable(engine.host, &store_path(), at);
            if step < 600 {
                let store = store.clone();
                fences.push(sim.spawn("fence", async move {
                    drop(store.fence(ChunkId::new(1 + step), Epoch::new(3)).await);
                }));
            }
            if sim.marks().get(MISS).copied().unwrap_or(0) > before || step > 2_000 {
                break;
            }
            sim.sleep(Duration::from_micros(5)).await;
        }
        let missed = sim.marks().get(MISS).copied().unwrap_or(0) > before;
        let micros = sim.with_rng(|rng| rng.below(900));
        sim.sleep(Duration::from_micros(micros)).await;
        engine.crash(CrashMode::Power);
        first.abort();
        fences.iter().for_each(|task| task.abort());
        drop((store, fences, first));
        let store = engine.boot().await?;
        match check_chunks(&store, &acked).await? {
            0 => Ok(missed),
            damaged => Err(format!("{damaged} chunks are damaged")),
        }
    };
    sim.run(run).unwrap().map_err(|why: String| format!("seed {seed}: {why}"))
}

#[test]
fn a_checkpoint_is_of_one_attempt() {
    let missed = seeds(0..120).filter(|&seed| check_second_attempt(seed).unwrap()).count();
    assert!(missed > 60, "{missed} checkpoints did not read back");
}

/// All acknowledged bytes are there; behind them may be bytes of failed appends.
pub(crate) async fn check_acked(store: &FlashStore, acked: &Acked) -> Result<(), String> {
    for (&chunk, (sectors, len, _)) in &acked.0 {
        let stat = store.stat(chunk).map_err(|error| format!("{chunk} of {len}: {error}"))?;
        let found = contents(store, chunk).await;
        let found = found.map_err(|error| format!("{chunk} {stat:?}: {error}"))?;
        if !found.starts_with(sectors) {
            return Err(format!("{chunk} is {stat:?}, {len} bytes were acknowledged"));
        }
    }
    Ok(())
}

/// The medium has `faults` for a while, then none; then the power is cut. True when the store has
/// failed.
async fn live_through(
    sim: &Sim,
    engine: &mut Flash,
    seed: u64,
    faults: &DiskFaults,
) -> Result<bool, String> {
    let mut rng = Rng::new(seed);
    let store = engine.boot().await?;
    let mut acked = Acked::default();
    fill(&store, &mut rng, &mut acked, 20).await;
    sim.with_disk_faults(engine.host, |now| *now = faults.clone());
    fill(&store, &mut rng, &mut acked, 40).await;
    sim.with_disk_faults(engine.host, |faults| *faults = Default::default());
    let failed = store.info().failed;
    fill(&store, &mut rng, &mut acked, 10).await;
    sim.sleep(Duration::from_secs(1)).await;
    drop(store);
    engine.crash(CrashMode::Power);
    let store = engine.boot().await?;
    check_acked(&store, &acked).await.map(|()| failed)
}

#[test]
fn want_of_room_or_memory_for_a_moment_fails_no_store() {
    for error in [DiskError::Memory, DiskError::Space] {
        for (seed, sync) in
            seeds(0..20).flat_map(|seed| [(seed, SyncMode::PerWrite), (seed, SyncMode::Group)])
        {
            let sim = Sim::new(seed);
            let mut engine = Flash::planted(&sim, None, sync);
            let faults = DiskFaults { write_fails_one_in: 12, error, ..DiskFaults::default() };
            let run = live_through(&sim, &mut engine, seed, &faults);
            assert_eq!(sim.run(run).unwrap(), Ok(false), "seed {seed}, {error:?}, {sync:?}");
        }
    }
}

/// The host is short of memory for a moment: that says nothing about its disks and what is on them.
#[test]
fn reads_that_are_refused_for_a_moment_condemn_neither_store_nor_bytes() {
    for seed in seeds(0..20) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut acked = Acked::default();
            fill(&store, &mut Rng::new(seed), &mut acked, 20).await;
            let faults = DiskFaults {
                read_fails_one_in: 1,
                error: DiskError::Memory,
                ..DiskFaults::default()
            };
            sim.with_disk_faults(engine.host, |all| *all = faults);
            let (watched, read) = (store.clone(), store.clone());
            let looked = sim.spawn("watch", async move { watched.check_medium().await });
            let checked =
                sim.spawn("read", async move { check_acked(&read, &acked).await.map(|()| acked) });
            sim.sleep(Duration::from_millis(100)).await;
            sim.with_disk_faults(engine.host, |faults| *faults = Default::default());
            looked.await.unwrap();
            assert!(!store.info().failed, "seed {seed}: {:?}", store.info());
            let acked = checked.await.unwrap().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            check_acked(&store, &acked).await.unwrap();
        };
        sim.run(run).unwrap();
    }
}

#[test]
fn a_failed_write_or_sync_keeps_what_was_acknowledged() {
    let mut failed = 0;
    for seed in seeds(0..60) {
        for sync in [SyncMode::PerWrite, SyncMode::Group] {
            let sim = Sim::new(seed);
            let mut engine = Flash::planted(&sim, None, sync);
            let faults = DiskFaults {
                write_fails_one_in: [0, 40][seed as usize % 2],
                sync_fails_one_in: 6,
                error: [DiskError::Io, DiskError::Space, DiskError::Memory][seed as usize % 3],
                ..DiskFaults::default()
            };
            let run = live_through(&sim, &mut engine, seed, &faults);
            let one = sim.run(run).unwrap();
            failed += u32::from(one.unwrap_or_else(|why| panic!("seed {seed}, {sync:?}: {why}")));
        }
    }
    assert!(failed > 40, "{failed} stores have failed");
}

/// Reads fail for a moment while a checkpoint is read back: a caller that waits for it is served.
#[test]
fn a_checkpoint_that_cannot_be_read_back_for_a_moment_is_taken_again() {
    for seed in seeds(0..20) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let run = async {
            let store = engine.boot().await.unwrap();
            fill(&store, &mut Rng::new(seed), &mut Acked::default(), 20).await;
            sim.with_disk_faults(engine.host, |faults| faults.read_fails_one_in = 1);
            let taken = store.clone();
            let checkpoint = sim.spawn("checkpoint", async move { taken.checkpoint().await });
            let micros = sim.with_rng(|rng| rng.between(500, 100_000));
            sim.sleep(Duration::from_micros(micros)).await;
            sim.with_disk_faults(engine.host, |faults| *faults = Default::default());
            sim.sleep(Duration::from_secs(2)).await;
            assert!(checkpoint.is_finished(), "seed {seed}: a checkpoint never ends");
            assert_eq!(checkpoint.await.unwrap(), Ok(()), "seed {seed}");
            assert!(!store.info().failed, "seed {seed}");
        };
        sim.run(run).unwrap();
    }
}

/// A medium that cannot give its superblocks now is not an empty one.
#[test]
fn unreadable_store_is_no_missing_store() {
    for seed in seeds(0..60) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut acked = Acked::default();
            fill(&store, &mut Rng::new(seed), &mut acked, 20).await;
            drop(store);
            engine.crash(CrashMode::Process);
            sim.with_disk_faults(engine.host, |faults| faults.read_fails_one_in = 2);
            match engine.try_boot().await {
                Ok(store) => drop(store),
                Err(MountError::NotAStore) => panic!("seed {seed}: taken for no store"),
                Err(_) => {}
            }
            sim.with_disk_faults(engine.host, |faults| *faults = Default::default());
            engine.crash(CrashMode::Process);
            let store = engine.boot().await.unwrap();
            assert_eq!(check_chunks(&store, &acked).await, Ok(0), "seed {seed}");
        };
        sim.run(run).unwrap();
    }
}

/// The last sectors of an open chunk cannot be read when its store is mounted: it has no vote for
/// a shorter length, and what is there is not written over.
#[test]
fn an_unreadable_tail_is_damage_and_no_shorter_replica() {
    for seed in seeds(0..40) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let run = async {
            let store = engine.boot().await.unwrap();
            let chunk = ChunkId::new(7);
            let len = 3 * 4048;
            let append = append_of(chunk, EPOCH, 0, &data_of(chunk, 0, len, 0));
            store.append(append).await.unwrap();
            drop(store);
            // Before its length is on record.
            engine.crash(CrashMode::Power);
            let sb = superblock(&sim.boot(engine.host)).await;
            engine.crash(CrashMode::Process);
            let end = sb.unit_at(0) + 3 * 4096;
            let at = sim.with_rng(|rng| rng.between(sb.unit_at(0), end - 1));
            sim.make_unreadable(engine.host, &store_path(), at);
            let store = engine.boot().await.unwrap();
            let stat = store.stat(chunk).unwrap();
            assert!(stat.len < stat.durable_bound, "seed {seed}: {stat:?} may vote");
            let end = stat.len;
            let append = append_of(chunk, EPOCH, end, &data_of(chunk, end, 10, 1));
            let refused = store.append(append).await;
            assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
        };
        sim.run(run).unwrap();
    }
}

/// A fence of a replica with proven loss is followed by a second crash. The replica has no vote for
/// a shorter length, also when the medium gives the sector again.
#[test]
fn a_fenced_replica_with_an_unreadable_tail_has_no_vote_after_a_second_crash() {
    for seed in seeds(0..40) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let run = async {
            let store = engine.boot().await.unwrap();
            let chunk = ChunkId::new(7);
            let len = 3 * 4048;
            let append = append_of(chunk, EPOCH, 0, &data_of(chunk, 0, len, 0));
            store.append(append).await.unwrap();
            drop(store);
            // Before its length is on record.
            engine.crash(CrashMode::Power);
            let env = sim.boot(engine.host);
            let at = superblock(&env).await.unit_at(0) + sim.with_rng(|rng| rng.below(2)) * 4096;
            let file = env.open_file(&store_path(), OpenOptions::READ).await.unwrap();
            let (count, sector) = file.read_at(at, env.pool().alloc(4096).unwrap()).await;
            assert_eq!(count.unwrap(), 4096);
            let sector = sector.to_vec();
            drop(file);
            engine.crash(CrashMode::Process);
            sim.make_unreadable(engine.host, &store_path(), at);
            let store = engine.boot().await.unwrap();
            let stat = store.fence(chunk, Epoch::new(EPOCH + 1)).await.unwrap();
            assert!(stat.len < stat.durable_bound, "seed {seed}: {stat:?} may vote");
            if seed % 2 == 1 {
                store.checkpoint().await.unwrap();
            }
            drop(store);
            engine.crash(CrashMode::Process);
            if seed % 4 > 1 {
                let env = sim.boot(engine.host);
                let options = OpenOptions { write: true, ..OpenOptions::READ };
                let file = env.open_file(&store_path(), options).await.unwrap();
                let sector = env.pool().copy_of(&sector).unwrap();
                file.write_at(at, sector, WriteMode::Durable).await.unwrap();
                drop(file);
                engine.crash(CrashMode::Process);
            }
            let store = engine.boot().await.unwrap();
            let stat = store.stat(chunk).unwrap();
            let lost = stat.len < len && stat.len >= stat.durable_bound;
            assert!(!lost, "seed {seed}: {stat:?} votes for less than {len}");
        };
        sim.run(run).unwrap();
    }
}

/// The store fails between the record that lets repair complete a replica and the first append.
#[test]
fn repair_append_to_a_store_that_fails_during_its_record_ends() {
    let sim = Sim::new(1);
    let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
    let run = async {
        let store = engine.boot().await.unwrap();
        let (fenced, other) = (ChunkId::new(1), ChunkId::new(2));
        let append = append_of(fenced, EPOCH, 0, &data_of(fenced, 0, 10_000, 0));
        store.append(append).await.unwrap();
        store.fence(fenced, Epoch::new(EPOCH + 1)).await.unwrap();
        let append = append_of(fenced, EPOCH, 10_000, &data_of(fenced, 10_000, 100, 0));
        let mut repair = Box::pin(store.append(Append { repair: true, ..append }));
        assert!(futures_util::poll!(&mut repair).is_pending());
        sim.sleep(Duration::from_millis(5)).await;
        sim.with_disk_faults(engine.host, |faults| faults.write_fails_one_in = 1);
        let append = append_of(other, EPOCH, 0, &data_of(other, 0, 100, 0));
        assert_eq!(store.append(append).await, Err(StoreError::Failed));
        let env = sim.env(engine.host).unwrap();
        let ended = env.timeout(Duration::from_secs(1), repair).await;
        assert_eq!(ended, Ok(Err(StoreError::Failed)), "the repair append ends");
    };
    sim.run(run).unwrap();
}
