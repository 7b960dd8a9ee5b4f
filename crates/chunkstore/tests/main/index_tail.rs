//! Index sectors behind an open replica's data: a seal wrote them, and its record did not come.

use base::ChunkId;
use chunkstore::flash::{ChunkDump, Config, FormatOptions, dump, encode_index};
use chunkstore::limits::CHUNK_SECTORS_INFLIGHT_MAX;
use chunkstore::map::{ChunkEnd, Run};
use chunkstore::{ChunkStore, StoreError};
use runtime::sim::{CrashMode, Sim};
use runtime::{Duration, Env, OpenOptions, WriteMode};

use crate::conformance::seeds;
use crate::engine::{Engine, Flash, append_of, data_of, small, store_path};
use crate::recovery::EPOCH;

const CHUNK: ChunkId = ChunkId::new(7);
const SECTOR: usize = 4096;
/// Runs in an index sector.
const INDEX_RUNS: usize = 253;
/// Sectors written at a time.
const STEP: u32 = 256;

/// The chunk in a store that is offline, and where its sectors begin on the medium: its units are in
/// one piece.
async fn chunk_of(env: &Env) -> (ChunkDump, u64) {
    let dump = dump(env, &store_path()).await.unwrap();
    let chunk = dump.chunks.into_iter().find(|chunk| chunk.id.chunk == CHUNK).unwrap();
    assert_eq!(chunk.extents.len(), 1);
    let at = dump.superblock.unit_at(chunk.extents[0].start);
    (chunk, at)
}

/// Writes the first `count` index sectors of a seal from sector `first` of the chunk on.
async fn write_index(env: &Env, (chunk, at): &(ChunkDump, u64), first: u32, count: u32) {
    let runs = vec![Run::plain(ChunkEnd::default(), 1, 1); count as usize * INDEX_RUNS];
    let options = OpenOptions { write: true, ..OpenOptions::READ };
    let file = env.open_file(&store_path(), options).await.unwrap();
    for done in (0..count).step_by(STEP as usize) {
        let mut sectors = vec![0; STEP.min(count - done) as usize * SECTOR];
        encode_index(&chunk.id, &runs, done, &mut sectors);
        let sectors = env.pool().copy_of(&sectors).unwrap();
        let place = at + u64::from(first + done) * SECTOR as u64;
        file.write_at(place, sectors, WriteMode::Durable).await.unwrap();
    }
}

/// A chunk with an append for each run: its map has more sectors than appends in flight may have.
/// The power is cut before the record of its seal.
#[test]
fn index_of_an_unfinished_seal_proves_no_loss() {
    let sim = Sim::new(1);
    let options = FormatOptions { grow_step: 32 << 20, ..small() };
    let mut engine = Flash::new(&sim, options, Config::default());
    let run = async {
        let store = engine.boot().await.unwrap();
        let (mut len, mut sectors) = (0, 0);
        // Units ahead have room for the index.
        let left = loop {
            let count = if sectors == 7 * STEP { STEP - 6 } else { STEP };
            let data = data_of(CHUNK, len, count * 4048, 0);
            len = store.append(append_of(CHUNK, EPOCH, len, &data)).await.unwrap().len;
            sectors += count;
            let left = (store.list(None, 1)[0].physical / SECTOR as u64) as u32 - sectors;
            if left > CHUNK_SECTORS_INFLIGHT_MAX {
                break left;
            }
            assert!(sectors < 32 * STEP, "{left} sectors are left");
        };
        sim.sleep(Duration::from_secs(1)).await;
        drop(store);
        engine.crash(CrashMode::Power);
        let env = sim.boot(engine.host);
        let chunk = chunk_of(&env).await;
        write_index(&env, &chunk, sectors, left).await;
        engine.crash(CrashMode::Process);
        let store = engine.boot().await.unwrap();
        let stat = store.stat(CHUNK).unwrap();
        assert_eq!((stat.len, stat.durable_bound), (len, len), "nothing is lost");
        store.append(append_of(CHUNK, EPOCH, len, b"it goes on")).await.unwrap();
    };
    sim.run(run).unwrap();
    sim.close();
}

/// A seal begins once all appends have ended: what is missing before its index was acknowledged.
#[test]
fn index_of_an_unfinished_seal_proves_what_was_before_it() {
    for seed in seeds(0..10) {
        let sim = Sim::new(seed);
        let mut engine = Flash::new(&sim, small(), Config::default());
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut len = 0;
            for _ in 0..3 {
                let data = data_of(CHUNK, len, 2 * 4048, 0);
                len = store.append(append_of(CHUNK, EPOCH, len, &data)).await.unwrap().len;
            }
            drop(store);
            // Before its length is on record.
            engine.crash(CrashMode::Power);
            let env = sim.boot(engine.host);
            let chunk = chunk_of(&env).await;
            write_index(&env, &chunk, 6, 2).await;
            engine.crash(CrashMode::Process);
            let lost = sim.with_rng(|rng| rng.below(6));
            assert!(sim.flip_bit(engine.host, &store_path(), chunk.1 + lost * SECTOR as u64, 3));
            let store = engine.boot().await.unwrap();
            let stat = store.stat(CHUNK).unwrap();
            assert!(stat.len < len && stat.len < stat.durable_bound, "seed {seed}: {stat:?} votes");
            let end = stat.len;
            let append = append_of(CHUNK, EPOCH, end, &data_of(CHUNK, end, 10, 1));
            let refused = store.append(append).await;
            assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "seed {seed}: {refused:?}");
        };
        sim.run(run).unwrap();
        sim.close();
    }
}
