//! Formatting where a store was, broken off by a power cut at each of its steps.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch};
use chunkstore::ChunkStore;
use chunkstore::flash::{self, Config, FlashStore, FormatOptions, MountError};
use runtime::sim::{CrashMode, Sim};
use runtime::{Duration, OpenOptions};
use wire::data::ReplicaState;

use crate::engine::{Engine, Flash, append_of, data_of, small, store_path};
use crate::recovery::{Acked, EPOCH, check_chunks};

/// Chunks that have only a fence, from this one on.
const FENCED: u64 = 1000;
const FENCES: u64 = 40;
/// Time between the moments at which the power is cut: the medium takes longer for each operation.
const STEP_US: u64 = 20;

/// A medium of 16 MiB, as a block device is one.
async fn add_device(engine: &Flash) {
    let env = engine.sim.boot(engine.host);
    env.create_dir_all(Path::new("/disk0")).await.unwrap();
    let device = env.open_file(&store_path(), OpenOptions::CREATE).await.unwrap();
    device.set_len(16 << 20).await.unwrap();
    env.sync_dir(Path::new("/")).await.unwrap();
    env.sync_dir(Path::new("/disk0")).await.unwrap();
    drop(device);
    engine.sim.crash(engine.host, CrashMode::Process);
}

/// Acknowledged state on both sides of a checkpoint: a part of it is in the log alone.
async fn fill(store: &FlashStore) -> Acked {
    let mut acked = Acked::default();
    for number in 0..FENCES {
        store.fence(ChunkId::new(FENCED + number), Epoch::new(9)).await.unwrap();
        if number % 8 == 0 {
            let chunk = ChunkId::new(1 + number);
            let append = append_of(chunk, EPOCH, 0, &data_of(chunk, 0, 20_000, 0));
            store.append(append.clone()).await.unwrap();
            acked.note(&append);
        }
        if number == FENCES / 2 {
            store.checkpoint().await.unwrap();
        }
    }
    acked
}

/// The store on the medium after a broken-off formatting.
#[derive(PartialEq, Eq, Debug)]
enum Left {
    Old,
    Nothing,
    New,
}

/// Looks at what was left; an error describes a mixture of both stores.
async fn look(engine: &mut Flash, old: DiskId, acked: &Acked) -> Result<Left, String> {
    let store = match engine.try_boot().await {
        Ok(store) => store,
        Err(MountError::NotAStore) => return Ok(Left::Nothing),
        // One superblock was being written, and the other is cleared.
        Err(MountError::Damaged(why)) if why == "both superblocks are damaged" => {
            return Ok(Left::Nothing);
        }
        Err(error) => return Err(error.to_string()),
    };
    if store.info().disk != old {
        let is_empty = store.list(None, 10).is_empty();
        return if is_empty { Ok(Left::New) } else { Err("the new store has chunks".into()) };
    }
    for number in 0..FENCES {
        let stat = store.stat(ChunkId::new(FENCED + number));
        if !stat.as_ref().is_ok_and(|stat| stat.state == ReplicaState::Tombstone) {
            return Err(format!("the old store mounts without fence {number}: {stat:?}"));
        }
    }
    match check_chunks(&store, acked).await? {
        0 => Ok(Left::Old),
        damaged => Err(format!("the old store mounts with {damaged} chunks damaged")),
    }
}

/// Formats over a store and cuts the power after `micros`; whether formatting had ended, and what is
/// left.
fn check(raw: bool, micros: u64, seed: u64) -> (bool, Left) {
    let sim = Sim::new(seed);
    let options = FormatOptions { raw, ..small() };
    let mut engine = Flash::new(&sim, options.clone(), Config::default());
    let run = async {
        if raw {
            add_device(&engine).await;
        }
        let store = engine.boot().await.unwrap();
        let (old, acked) = (store.info().disk, fill(&store).await);
        drop(store);
        engine.crash(CrashMode::Power);
        let env = sim.boot(engine.host);
        let force = FormatOptions { force: true, ..options };
        let ended = Rc::new(Cell::new(false));
        let (first, has_ended) = (force.clone(), ended.clone());
        let task = sim.spawn("format", async move {
            has_ended.set(flash::format(&env, &store_path(), &first).await.is_ok());
        });
        sim.sleep(Duration::from_micros(micros)).await;
        let has_ended = ended.get();
        engine.crash(CrashMode::Power);
        drop(task);
        let left = look(&mut engine, old, &acked).await;
        let left = left.unwrap_or_else(|why| panic!("raw {raw}, {micros} us, seed {seed}: {why}"));
        // It can be ordered again, whatever is left.
        engine.crash(CrashMode::Power);
        let env = sim.boot(engine.host);
        let disk = flash::format(&env, &store_path(), &force).await.unwrap();
        drop(env);
        engine.crash(CrashMode::Power);
        let store = engine.boot().await.unwrap();
        assert_eq!((store.info().disk, store.info().chunks), (disk, 0));
        (has_ended, left)
    };
    let seen = sim.run(run).unwrap();
    sim.close();
    seen
}

/// Cuts the power at each step of a formatting.
fn check_all(raw: bool) {
    let mut seen = Vec::new();
    for step in 0.. {
        let micros = step * STEP_US;
        let (has_ended, left) = check(raw, micros, step);
        if has_ended {
            assert_eq!(left, Left::New, "raw {raw}, {micros} us");
        }
        seen.push(left);
        // Each seed has other latencies: the last ones end early.
        if has_ended && seen.iter().rev().take(10).all(|left| *left == Left::New) {
            break;
        }
        assert!(step < 1000, "formatting does not end");
    }
    // A simulated file is cut to nothing at once, so that of the old store there nothing is left.
    let expected = [Left::Nothing, Left::New].into_iter().chain(raw.then_some(Left::Old));
    for left in expected {
        assert!(seen.contains(&left), "raw {raw}: no power cut leaves {left:?}");
    }
}

#[test]
fn device_has_the_old_store_or_none_or_the_new_one_after_a_broken_off_formatting() {
    check_all(true);
}

#[test]
fn file_has_the_old_store_or_none_or_the_new_one_after_a_broken_off_formatting() {
    check_all(false);
}
