//! Chunks of the largest length, 2 GiB: with rows in full, with plain sectors from a checkpoint that is
//! made for it.

use std::path::Path;

use base::limits::{APPEND_DATA_MAX, CHUNK_LEN_MAX};
use base::{ChunkId, Epoch};
use chunkstore::flash::block::{self, BlockHead, BlockKind};
use chunkstore::flash::layout::BLOCK;
use chunkstore::flash::record::{Extent, Record};
use chunkstore::flash::{CheckpointHeader, Config, FlashStore, FormatOptions, dump, fsck};
use chunkstore::map::{ChunkEnd, Run};
use chunkstore::{Append, Appended, ChunkStore, StoreError};
use codec::block::Codec;
use runtime::sim::{CrashMode, Sim};
use runtime::{OpenOptions, WriteMode};
use wire::data::ReplicaState;
use wire::row::{CODED_ROW_MAX, CellPart, Fragment, logical_end, row_at, stamp_cell};
use wire::sector::AppendAt;

use crate::engine::{
    Engine, Flash, Model, append_of, buf_of, data_of, row_append_of, small, store_path,
};
use crate::recovery::EPOCH;
use crate::runs::copy;

const CHUNK: ChunkId = ChunkId::new(7);
const LONGEST: u32 = CHUNK_LEN_MAX as u32;
const SECTOR: usize = 4096;
const TOO_LONG: StoreError = StoreError::Invalid("a chunk has at most 2 GiB");

fn plain(offset: u32, len: u32) -> Append {
    append_of(CHUNK, EPOCH, offset, &data_of(CHUNK, offset, len, 0))
}

/// The last bytes are read however many are asked for, and none behind them.
async fn check_end<S: ChunkStore>(store: &S, state: ReplicaState) {
    let stat = store.stat(CHUNK).unwrap();
    assert_eq!((stat.state, stat.len, stat.durable_bound), (state, LONGEST, LONGEST));
    let sealed = state == ReplicaState::Sealed;
    for (offset, len) in [(LONGEST - 1, 1), (LONGEST - 1, u32::MAX), (LONGEST - 300, 400)] {
        let read = store.read(CHUNK, offset, len).await.unwrap();
        assert_eq!((read.len, read.sealed), (LONGEST, sealed));
        assert_eq!(logical_end(&read.sectors), Some(LONGEST), "{len} bytes at {offset}");
    }
    for (offset, len) in [(LONGEST, 1), (LONGEST, u32::MAX), (u32::MAX, u32::MAX)] {
        let read = store.read(CHUNK, offset, len).await.unwrap();
        assert_eq!((read.len, read.sectors.len()), (LONGEST, 0), "{len} bytes at {offset}");
    }
}

/// A full replica is fenced, then sealed.
async fn check_fence_and_seal<S: ChunkStore>(store: &S) {
    let fence = Epoch::new(EPOCH + 1);
    assert_eq!(store.fence(CHUNK, fence).await.unwrap().len, LONGEST);
    check_end(store, ReplicaState::Fenced(fence)).await;
    assert_eq!(store.seal(CHUNK, LONGEST + 1).await, Err(StoreError::Gap { len: LONGEST }));
    assert_eq!(store.seal(CHUNK, LONGEST).await.unwrap().len, LONGEST);
    check_end(store, ReplicaState::Sealed).await;
}

/// Mounts the store again after a power cut.
async fn remount(engine: &mut Flash, store: FlashStore) -> FlashStore {
    drop(store);
    engine.crash(CrashMode::Power);
    engine.boot().await.unwrap()
}

// Rows.

/// Logical bytes of the rows that fill a chunk but for the last two.
const ROW: u32 = CODED_ROW_MAX as u32;
const ROWS: u32 = LONGEST / ROW;
/// Bytes of the last row but one.
const SHORT: u32 = 100;

/// A row of zeros, whose cell takes few sectors.
struct ZeroRow(Append);

impl ZeroRow {
    fn new(len: u32) -> ZeroRow {
        let fragment = Fragment { k: 4, p: 2, number: 1 };
        let row = vec![0; len as usize];
        ZeroRow(row_append_of((CHUNK, EPOCH, 0), &row, fragment, Codec::Lz4))
    }

    /// The append of it at an offset: its cell with other footers, without its being encoded again.
    fn at(&self, offset: u32) -> Append {
        let mut sectors = self.0.sectors.to_vec();
        let row = row_at(&sectors).unwrap();
        let part = CellPart { fragment: row.fragment.number, codec: row.codec, index: 0 };
        let at = AppendAt { chunk: CHUNK, epoch: self.0.epoch, base: self.0.base, offset };
        stamp_cell(at, part, row.cell_len as usize, &mut sectors);
        Append { offset, sectors: buf_of(&sectors), create: offset == 0, ..self.0.clone() }
    }
}

/// Fills a chunk with rows up to the largest length, and goes on.
async fn fill_with_rows<S: ChunkStore>(store: &S) {
    let (row, short) = (ZeroRow::new(ROW), ZeroRow::new(SHORT));
    let mut len = 0;
    for _ in 0..ROWS {
        len = store.append(row.at(len)).await.unwrap().len;
    }
    assert_eq!(len, ROWS * ROW);
    len = store.append(short.at(len)).await.unwrap().len;
    assert_eq!(store.append(row.at(len)).await, Err(TOO_LONG), "a row across the bound");
    let left = LONGEST - len;
    assert_eq!(store.append(ZeroRow::new(left + 1).at(len)).await, Err(TOO_LONG), "one byte more");
    let last = ZeroRow::new(left).at(len);
    assert_eq!(store.append(last.clone()).await, Ok(Appended { len: LONGEST }));
    assert_eq!(store.append(last).await, Ok(Appended { len: LONGEST }), "a repeat");
    for offset in [LONGEST, LONGEST + 1, u32::MAX - SHORT] {
        assert_eq!(store.append(short.at(offset)).await, Err(TOO_LONG), "at {offset}");
    }
    check_end(store, ReplicaState::Open).await;
}

#[test]
fn longest_chunk_with_rows_is_kept_by_the_model() {
    let sim = Sim::new(1);
    let mut engine = Model::new(&sim);
    let run = async {
        let store = engine.boot().await.unwrap();
        fill_with_rows(&store).await;
        check_fence_and_seal(&store).await;
    };
    sim.run(run).unwrap();
    sim.close();
}

#[test]
fn longest_chunk_with_rows_is_mounted_copied_sealed_and_verified() {
    let sim = Sim::new(1);
    let flash = || Flash::new(&sim, small(), Config::default());
    let (mut source, mut target) = (flash(), flash());
    let run = async {
        let store = source.boot().await.unwrap();
        fill_with_rows(&store).await;
        let store = remount(&mut source, store).await;
        check_end(&store, ReplicaState::Open).await;
        store.checkpoint().await.unwrap();
        let from = remount(&mut source, store).await;
        check_end(&from, ReplicaState::Open).await;
        let to = target.boot().await.unwrap();
        assert_eq!(copy(&from, &to, CHUNK, (0, LONGEST), 256).await, Ok(LONGEST));
        let past = Append { repair: true, ..ZeroRow::new(SHORT).at(LONGEST) };
        assert_eq!(to.append(past).await, Err(TOO_LONG));
        check_end(&to, ReplicaState::Repairing).await;
        let to = remount(&mut target, to).await;
        check_end(&to, ReplicaState::Repairing).await;
        to.seal(CHUNK, LONGEST).await.unwrap();
        check_fence_and_seal(&from).await;
        for (engine, store) in [(&mut source, from), (&mut target, to)] {
            let store = remount(engine, store).await;
            check_end(&store, ReplicaState::Sealed).await;
            store.close().await.unwrap();
            drop(store);
            engine.crash(CrashMode::Process);
            let found = fsck(&sim.boot(engine.host), &store_path()).await.unwrap();
            assert_eq!(found.problems, []);
            assert_eq!((found.sealed, found.bytes), (1, CHUNK_LEN_MAX));
        }
    };
    sim.run(run).unwrap();
    sim.close();
}

// Plain sectors.

/// Sectors that the checkpoint gives the chunk, all of them full; their content is not there.
const GIVEN: u32 = 530_000;
const GIVEN_BYTES: u32 = GIVEN * 4048;
const UNIT: u32 = 1 << 20;
const UNIT_SECTORS: u32 = UNIT / SECTOR as u32;
/// Chained check of the last of them.
const CHAIN: u32 = 77;
/// Bytes of the medium: the chunk's 2.02 GiB and what the store keeps free.
const DEVICE: u64 = 4 << 30;
/// Bytes of the last append.
const LAST: u32 = 360;

/// A store on a device, whose units are not written when it is formatted.
async fn flash_on_device(sim: &Sim) -> Flash {
    let options =
        FormatOptions { unit: UNIT, capacity: DEVICE, grow_step: 1 << 20, raw: true, ..small() };
    let engine = Flash::new(sim, options, Config::default());
    let env = sim.boot(engine.host);
    env.create_dir_all(Path::new("/disk0")).await.unwrap();
    let device = env.open_file(&store_path(), OpenOptions::CREATE).await.unwrap();
    device.set_len(DEVICE).await.unwrap();
    env.sync_dir(Path::new("/")).await.unwrap();
    env.sync_dir(Path::new("/disk0")).await.unwrap();
    drop(device);
    sim.crash(engine.host, CrashMode::Process);
    engine
}

/// The chunk of the store, which is closed, gets a checkpoint by which it is almost full.
async fn lengthen(engine: &Flash, repairing: bool) {
    let env = engine.sim.boot(engine.host);
    let found = dump(&env, &store_path()).await.unwrap();
    let (sb, id) = (found.superblock, found.chunks[0].id);
    let units = GIVEN.div_ceil(UNIT_SECTORS);
    let extents = vec![Extent { start: found.chunks[0].extents[0].start, count: units }];
    let runs = vec![Run::plain(ChunkEnd::default(), 4048, GIVEN)];
    let (chunk, tag, len, bound) = (CHUNK, id.tag, GIVEN_BYTES, GIVEN_BYTES);
    let records = [
        Record::Ready { units: sb.units },
        Record::Replica { id, fence: Epoch::NONE, bound, cap: None, repairing, extents },
        Record::Runs { chunk, tag, before: 0, runs },
        Record::Progress { chunk, tag, len, sectors: GIVEN, chain: CHAIN },
    ];
    let mut payload = Vec::new();
    for record in &records {
        record.encode(&mut payload);
    }
    let newest = found.checkpoints.iter().flatten().map(|header| header.number).max().unwrap();
    let (number, mount, store) = (newest + 1, found.mounts, sb.disk.get() as u64);
    let count = records.len() as u16;
    let kind = BlockKind::Checkpoint;
    let head = BlockHead { kind, store, seq: 0, group: number, mount, count };
    let header = CheckpointHeader { number, mount, log_seq: found.log.1, blocks: 1 };
    let mut blocks = vec![0; 2 * SECTOR];
    header.encode(store, &mut blocks[..SECTOR]);
    block::encode(&head, &payload, &mut blocks[SECTOR..]);
    let options = OpenOptions { write: true, ..OpenOptions::READ };
    let file = env.open_file(&store_path(), options).await.unwrap();
    assert_eq!(BLOCK, SECTOR as u64);
    let area = sb.area_at((number % 2) as usize);
    let blocks = env.pool().copy_of(&blocks).unwrap();
    file.write_at(area, blocks, WriteMode::Durable).await.unwrap();
}

/// A store with a plain chunk that has room for two large appends and [`LAST`] bytes.
async fn boot_almost_full(engine: &mut Flash, repairing: bool) -> FlashStore {
    let store = engine.boot().await.unwrap();
    store.append(Append { repair: repairing, ..plain(0, 4048) }).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    engine.crash(CrashMode::Process);
    lengthen(engine, repairing).await;
    engine.crash(CrashMode::Process);
    let store = engine.boot().await.unwrap();
    let stat = store.stat(CHUNK).unwrap();
    assert_eq!((stat.len, stat.durable_bound), (GIVEN_BYTES, GIVEN_BYTES));
    store
}

/// Fills the plain chunk up, and goes on.
async fn fill_up(store: &FlashStore) {
    let largest = APPEND_DATA_MAX as u32;
    let mut len = store.append(plain(GIVEN_BYTES, largest)).await.unwrap().len;
    assert_eq!(store.append(plain(len, largest)).await, Err(TOO_LONG), "across the bound");
    len = store.append(plain(len, LONGEST - LAST - len)).await.unwrap().len;
    assert_eq!(store.append(plain(len, LAST + 1)).await, Err(TOO_LONG), "one byte more");
    assert_eq!(store.append(plain(len, LAST)).await, Ok(Appended { len: LONGEST }));
    assert_eq!(store.append(plain(len, LAST)).await, Ok(Appended { len: LONGEST }), "a repeat");
    for offset in [LONGEST, LONGEST + 1, u32::MAX - 100] {
        assert_eq!(store.append(plain(offset, 1)).await, Err(TOO_LONG), "at {offset}");
    }
    check_end(store, ReplicaState::Open).await;
}

#[test]
fn longest_plain_chunk_is_mounted_copied_and_sealed() {
    let sim = Sim::new(2);
    let run = async {
        let (mut source, mut target) = (flash_on_device(&sim).await, flash_on_device(&sim).await);
        let store = boot_almost_full(&mut source, false).await;
        fill_up(&store).await;
        let store = remount(&mut source, store).await;
        check_end(&store, ReplicaState::Open).await;
        store.checkpoint().await.unwrap();
        let from = remount(&mut source, store).await;
        check_end(&from, ReplicaState::Open).await;
        let to = boot_almost_full(&mut target, true).await;
        assert_eq!(copy(&from, &to, CHUNK, (GIVEN_BYTES, LONGEST), 100).await, Ok(LONGEST));
        let past = Append { repair: true, ..plain(LONGEST, 1) };
        assert_eq!(to.append(past).await, Err(TOO_LONG));
        check_end(&to, ReplicaState::Repairing).await;
        let to = remount(&mut target, to).await;
        check_end(&to, ReplicaState::Repairing).await;
        to.seal(CHUNK, LONGEST).await.unwrap();
        check_fence_and_seal(&from).await;
        for (engine, store) in [(&mut source, from), (&mut target, to)] {
            let store = remount(engine, store).await;
            check_end(&store, ReplicaState::Sealed).await;
            store.checkpoint().await.unwrap();
            let store = remount(engine, store).await;
            check_end(&store, ReplicaState::Sealed).await;
        }
    };
    sim.run(run).unwrap();
    sim.close();
}

/// No append can have been acknowledged behind the end of a full chunk. Its bound was one byte above the
/// largest length, which messages refuse, and the replica counted as damaged.
#[test]
fn unreadable_sector_behind_a_full_chunk_proves_no_loss() {
    let sim = Sim::new(3);
    let run = async {
        let mut engine = flash_on_device(&sim).await;
        let store = boot_almost_full(&mut engine, false).await;
        fill_up(&store).await;
        drop(store);
        engine.crash(CrashMode::Power);
        let env = sim.boot(engine.host);
        let found = dump(&env, &store_path()).await.unwrap();
        let chunk = &found.chunks[0];
        assert_eq!(chunk.extents.len(), 1, "its units are in one piece");
        let sectors = chunk.runs.last().unwrap().sector_end();
        let room = u64::from(chunk.extents[0].count) * u64::from(UNIT_SECTORS);
        assert!(sectors < room, "there are sectors ahead");
        let behind = found.superblock.unit_at(chunk.extents[0].start) + sectors * SECTOR as u64;
        drop(env);
        engine.crash(CrashMode::Process);
        sim.make_unreadable(engine.host, &store_path(), behind);
        let store = engine.boot().await.unwrap();
        check_end(&store, ReplicaState::Open).await;
    };
    sim.run(run).unwrap();
    sim.close();
}
