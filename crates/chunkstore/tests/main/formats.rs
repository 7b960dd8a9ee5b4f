//! The on-disk format: its page, its fuzz corpus, stores of older versions.

use std::fs;
use std::path::{Path, PathBuf};

use base::limits::SECTOR;
use base::{ChunkId, ClusterId, DiskId, Epoch, FormationId};
use chunkstore::flash::block::{self, BlockHead, BlockKind, PAYLOAD_AT, PAYLOAD_MAX};
use chunkstore::flash::layout::{self, Super};
use chunkstore::flash::record::{Extent, Identity, MapPlace, Record};
use chunkstore::flash::{CheckpointHeader, Config, FlashStore, encode_index};
use chunkstore::fuzz::{self, INDEX_ID, STORE};
use chunkstore::limits::{CHUNK_SECTORS_INFLIGHT_MAX, LOG_BATCH_BLOCKS_MAX};
use chunkstore::map::{ChunkEnd, RUN_BYTES, Run};
use chunkstore::{Append, ChunkStore, StoreError, StoreOwner};
use codec::block::Codec;
use proptest::prelude::*;
use runtime::sim::{CrashMode, Sim};
use runtime::{Duration, Env, OpenOptions, Rng, WriteMode};
use wire::row::{Fragment, Layout};

use crate::engine::{Engine, Flash, append_of, data_of, row_append_of, small, store_path};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn all_records() -> Vec<Record> {
    let chunk = ChunkId::new(7);
    let id = Identity { chunk, epoch: Epoch::new(5), base: 9, tag: 11, layout: Layout::Plain };
    let run = Run::plain(ChunkEnd::default(), 4096, 3);
    let next = Run::plain(ChunkEnd { len: 12_288, sectors: 6 }, 100, 1);
    let extents = vec![Extent { start: 3, count: 2 }, Extent { start: 9, count: 1 }];
    let map = MapPlace::Inline { count: 2, runs: [run, next] };
    let fence = Epoch::new(6);
    vec![
        Record::Mount { mount: 4 },
        Record::Replica {
            id,
            fence,
            bound: 4096,
            cap: Some(12_388),
            repairing: true,
            extents: extents.clone(),
        },
        Record::Extend { chunk, tag: 11, bound: 1, units: 3, extents: vec![extents[0]] },
        Record::Runs { chunk, tag: 11, before: 0, runs: vec![run, next] },
        Record::Progress { chunk, tag: 11, len: 12_388, sectors: 7, chain: 77 },
        Record::Fence { chunk, tag: 11, epoch: fence, len: 12_388, ends: true },
        Record::Bound { chunk, tag: 11, len: 12_388 },
        Record::Seal { chunk, tag: 11, len: 12_388, units: 2, map },
        Record::Delete { chunk },
        Record::Forget { chunk },
        Record::Ready { units: 64 },
        Record::Tombstone { chunk: ChunkId::new(8), fence },
        Record::Sealed { id, len: 12_388, map: MapPlace::Index { first: 7, runs: 2 }, extents },
        Record::Sealed { id, len: 1, map: MapPlace::Footers, extents: Vec::new() },
    ]
}

/// Those of replicas with rows.
fn row_records() -> Vec<Record> {
    let chunk = ChunkId::new(7);
    let layout = Layout::Rows(Fragment { k: 4, p: 2, number: 5 });
    let id = Identity { chunk, epoch: Epoch::new(5), base: 9, tag: 11, layout };
    let run = Run::rows(ChunkEnd::default(), 1 << 20, 66, 3);
    let next = Run::rows(ChunkEnd { len: 3 << 20, sectors: 198 }, 100, 1, 1);
    let map = MapPlace::Inline { count: 2, runs: [run, next] };
    let (fence, len) = (Epoch::NONE, (3 << 20) + 100);
    vec![
        Record::Replica { id, fence, bound: 0, cap: None, repairing: false, extents: Vec::new() },
        Record::Runs { chunk, tag: 11, before: 0, runs: vec![run, next] },
        Record::Seal { chunk, tag: 11, len, units: 2, map },
        Record::Sealed { id, len, map, extents: vec![Extent { start: 3, count: 2 }] },
    ]
}

/// Name, target, bytes.
type Seed = (&'static str, fn(&[u8]), Vec<u8>);

/// The corpus: the tests write nothing; `CHUNKSTORE_WRITE_CORPUS=1` makes it again.
fn seeds() -> Vec<Seed> {
    let mut records = Vec::new();
    let all = all_records();
    for record in &all {
        record.encode(&mut records);
    }
    let sb = Super {
        disk: DiskId::new(0xabc0_0000_0000_0000_5704),
        created: 1_767_225_600_000_000_000,
        unit: 16 << 10,
        flags: 0,
        units: 4096,
        log_blocks: 64,
        tombstones: 1000,
        open_map_bytes: 65_536,
        grow_step: 1 << 20,
        owner: OWNER,
        rows: false,
    };
    let mut rows = Vec::new();
    for record in row_records() {
        record.encode(&mut rows);
    }
    let rows_unmarked = Super { owner: StoreOwner::Unmarked, rows: true, ..sb };
    let unmarked = Super { owner: StoreOwner::Unmarked, ..sb };
    let fresh = Super { owner: StoreOwner::Fresh, ..sb };
    let block_of = |fill: &dyn Fn(&mut [u8])| {
        let mut block = vec![0; SECTOR];
        fill(&mut block);
        block
    };
    let head = |kind| BlockHead {
        kind,
        store: STORE,
        seq: 12,
        group: 10,
        mount: 3,
        count: all.len() as u16,
    };
    let header = CheckpointHeader { number: 5, mount: 3, log_seq: 10, blocks: 2 };
    let runs = [Run::plain(ChunkEnd::default(), 4096, 3); 1];
    vec![
        ("superblock", fuzz::fuzz_superblock, block_of(&|out| unmarked.encode(out))),
        ("superblock_fresh", fuzz::fuzz_superblock, block_of(&|out| fresh.encode(out))),
        ("superblock_owned", fuzz::fuzz_superblock, block_of(&|out| sb.encode(out))),
        (
            "log_block",
            fuzz::fuzz_log_block,
            block_of(&|out| block::encode(&head(BlockKind::Log), &records, out)),
        ),
        ("superblock_rows", fuzz::fuzz_superblock, block_of(&|out| rows_unmarked.encode(out))),
        ("records", fuzz::fuzz_records, records.clone()),
        ("records_rows", fuzz::fuzz_records, rows),
        ("checkpoint_header", fuzz::fuzz_checkpoint, block_of(&|out| header.encode(STORE, out))),
        (
            "checkpoint_block",
            fuzz::fuzz_checkpoint,
            block_of(&|out| block::encode(&head(BlockKind::Checkpoint), &records, out)),
        ),
        ("index", fuzz::fuzz_index, block_of(&|out| encode_index(&INDEX_ID, &runs, 0, out))),
    ]
}

#[test]
fn the_corpus_is_what_this_version_writes_and_survives_changes() {
    let write = std::env::var_os("CHUNKSTORE_WRITE_CORPUS").is_some();
    for (name, target, bytes) in seeds() {
        let path = corpus().join(name);
        if write {
            fs::create_dir_all(corpus()).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        let kept = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(kept == bytes, "{name}: the format has changed without a new version");
        target(&kept);
        replay_changed(name, &kept, target);
    }
}

/// Runs a target over changed copies of a corpus entry.
fn replay_changed(name: &str, kept: &[u8], target: fn(&[u8])) {
    let mut rng = Rng::new(11);
    for _ in 0..3000 {
        let mut changed = kept.to_vec();
        for _ in 0..rng.between(1, 4) {
            let at = rng.below(changed.len().min(400) as u64) as usize;
            changed[at] = if rng.one_in(2) { changed[at] ^ 1 << rng.below(8) } else { 255 };
        }
        if rng.one_in(4) {
            changed.truncate(rng.below(changed.len() as u64) as usize);
        }
        // The CRC is corrected, so that decoding reaches what is behind it.
        let crc_at = match name {
            "superblock" | "superblock_fresh" | "superblock_owned" | "superblock_rows" => {
                Some((12, 0))
            }
            "records" | "records_rows" | "index" => None,
            _ => Some((4, 8)),
        };
        if let (Some((at, from)), true) = (crc_at, changed.len() == SECTOR) {
            changed[at..at + 4].fill(0);
            let crc = codec::crc32c(&changed[from..]);
            changed[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        target(&changed);
    }
}

/// A decoder that trusts a field which the CRC covers is found.
#[test]
#[should_panic(expected = "canary")]
fn the_canary_fails() {
    let (name, _, bytes) = seeds().remove(0);
    replay_changed(name, &bytes, |bytes| {
        if let Ok(sb) = Super::decode(bytes) {
            assert!(sb.units == 4096, "canary");
        }
    });
}

proptest! {
    #[test]
    fn arbitrary_bytes_break_no_decoder(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz::fuzz_records(&bytes);
        let mut block = bytes.clone();
        block.resize(SECTOR, 0);
        seeds().iter().for_each(|(_, target, _)| target(&block));
    }

    #[test]
    fn records_come_back(picks in prop::collection::vec(0usize..18, 1..20)) {
        let mut all = all_records();
        all.extend(row_records());
        let mut bytes = Vec::new();
        for &pick in &picks {
            all[pick].encode(&mut bytes);
        }
        let mut rest = &bytes[..];
        for pick in picks {
            prop_assert_eq!(Record::decode(&mut rest), Some(all[pick].clone()));
        }
        prop_assert!(rest.is_empty());
    }
}

/// Blocks of a store file that are not zero, with their places.
fn sparse(image: &[u8]) -> Vec<u8> {
    let blocks = image.chunks(SECTOR).enumerate();
    let full = blocks.filter(|(_, block)| block.iter().any(|&byte| byte != 0));
    full.flat_map(|(index, block)| [&(index as u64).to_le_bytes()[..], block].concat()).collect()
}

/// Puts the store `name` of the corpus in the place of the engine's.
async fn unpack(env: &Env, name: &str) {
    env.create_dir_all(Path::new("/disk0")).await.unwrap();
    let file = env.open_file(&store_path(), OpenOptions::CREATE).await.unwrap();
    for part in fs::read(corpus().join(name)).unwrap().chunks(8 + SECTOR) {
        let at = u64::from_le_bytes(part[..8].try_into().unwrap()) * SECTOR as u64;
        let block = env.pool().copy_of(&part[8..]).unwrap();
        file.write_at(at, block, WriteMode::Cached).await.unwrap();
    }
    file.sync().await.unwrap();
    env.sync_dir(Path::new("/disk0")).await.unwrap();
}

const OPEN: ChunkId = ChunkId::new(1);
const SEALED: ChunkId = ChunkId::new(2);
const FENCED: ChunkId = ChunkId::new(3);

/// Appends in the stores of the corpus.
fn appends() -> Vec<Append> {
    [(OPEN, 0, 5000), (OPEN, 5000, 10), (SEALED, 0, 9), (SEALED, 9, 4096), (SEALED, 4105, 100)]
        .into_iter()
        .map(|(chunk, at, len)| append_of(chunk, 5, at, &data_of(chunk, at, len, 0)))
        .collect()
}

/// Opens the store that lies there and compares it with what the stores of the corpus hold.
async fn open_and_compare(env: &Env) -> FlashStore {
    let store = chunkstore::flash::open(env, &store_path()).await.unwrap();
    let states: Vec<_> =
        store.list(None, 9).iter().map(|i| (i.chunk, i.stat.state, i.stat.len)).collect();
    use wire::data::ReplicaState::{Open, Sealed, Tombstone};
    let want = [(OPEN, Open, 5010), (SEALED, Sealed, 4200), (FENCED, Tombstone, 0)];
    assert_eq!(states, want);
    for append in appends() {
        let read = store.read(append.chunk, append.offset, 1).await.unwrap();
        let crc = wire::sector::client_crc;
        assert_eq!(crc(&read.sectors[..SECTOR]), crc(&append.sectors[..SECTOR]));
    }
    store
}

const OWNER: StoreOwner =
    StoreOwner::Of { cluster: ClusterId::new(0xc1), formation: FormationId::new(0xf1) };

/// The store of `b19d38d`, version 1, opens for ever. It names no cluster; then it joins one, for
/// ever, whatever part of that a power cut leaves.
#[test]
fn version_1_store_opens_and_joins_one_cluster() {
    let sim = Sim::new(77);
    let engine = Flash::new(&sim, small(), Config::default());
    let run = async {
        let env = sim.boot(engine.host);
        unpack(&env, "store_v1").await;
        let store = open_and_compare(&env).await;
        assert_eq!(store.info().owner, StoreOwner::Unmarked);
        drop(store);
        // To open it changes nothing about it: the version before still opens it.
        let mut first = vec![0; SECTOR];
        read_at(&env, 0, &mut first).await;
        assert_eq!(first[8..12], layout::VERSION_UNMARKED.to_le_bytes());
        let store = open_and_compare(&env).await;
        let (cluster, formation) = (ClusterId::new(0xc1), FormationId::new(0xf1));
        store.adopt(cluster, formation).await.unwrap();
        store.adopt(cluster, formation).await.unwrap();
        assert_eq!(store.info().owner, OWNER);
        for (cluster, formation) in [(0xc2, 0xf1), (0xc1, 0xf2), (0, 0)] {
            let (cluster, formation) = (ClusterId::new(cluster), FormationId::new(formation));
            let refused = store.adopt(cluster, formation).await;
            assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
        }
        drop(store);
        sim.crash(engine.host, CrashMode::Power);
        let env = sim.boot(engine.host);
        let store = open_and_compare(&env).await;
        assert_eq!(store.info().owner, OWNER);
        drop(store);
        // The power went between the two copies, in either order: the mount completes it.
        for copy in 0..2 {
            let at = layout::SUPER_AT[copy];
            let file = env.open_file(&store_path(), OpenOptions::CREATE).await.unwrap();
            let block = env.pool().copy_of(&first).unwrap();
            file.write_at(at, block, WriteMode::Durable).await.unwrap();
            drop(file);
            let store = open_and_compare(&env).await;
            assert_eq!(store.info().owner, OWNER, "copy {copy} is behind");
            drop(store);
            let mut mended = vec![0; SECTOR];
            read_at(&env, at, &mut mended).await;
            assert_eq!(Super::decode(&mended).unwrap().owner, OWNER);
        }
    };
    sim.run(run).unwrap();
}

async fn read_at(env: &Env, at: u64, out: &mut [u8]) {
    let file = env.open_file(&store_path(), OpenOptions::READ).await.unwrap();
    let (count, part) = file.read_at(at, env.pool().alloc(out.len()).unwrap()).await;
    assert_eq!(count.unwrap(), out.len());
    out.copy_from_slice(&part);
}

/// A store that version 2 wrote, of a cluster, opens for ever.
#[test]
fn version_2_store_opens() {
    let sim = Sim::new(77);
    let mut engine = Flash::new(&sim, small(), Config::default());
    let run = async {
        if std::env::var_os("CHUNKSTORE_WRITE_CORPUS").is_some() {
            let store = engine.boot().await.unwrap();
            assert_eq!(store.info().owner, StoreOwner::Fresh);
            store.adopt(ClusterId::new(0xc1), FormationId::new(0xf1)).await.unwrap();
            for append in appends() {
                store.append(append).await.unwrap();
            }
            store.seal(SEALED, 4200).await.unwrap();
            store.checkpoint().await.unwrap();
            store.fence(FENCED, Epoch::new(4)).await.unwrap();
            drop(store);
            engine.crash(CrashMode::Power);
            let env = sim.boot(engine.host);
            let file = env.open_file(&store_path(), OpenOptions::READ).await.unwrap();
            let mut image = Vec::new();
            for at in (0..file.len().await.unwrap()).step_by(1 << 20) {
                let (count, part) = file.read_at(at, env.pool().alloc(1 << 20).unwrap()).await;
                image.extend_from_slice(&part[..count.unwrap()]);
            }
            fs::write(corpus().join("store_v2"), sparse(&image)).unwrap();
            sim.crash(engine.host, CrashMode::Power);
            sim.wipe(engine.host, Path::new("/disk0"));
        }
        let env = sim.boot(engine.host);
        unpack(&env, "store_v2").await;
        assert_eq!(open_and_compare(&env).await.info().owner, OWNER);
    };
    sim.run(run).unwrap();
}

/// The table of blocks: each field is where its row says, and rows leave no gap.
#[test]
fn block_is_that_of_the_page() {
    let page = include_str!("../../../../docs/formats/chunkstore.md");
    let section = page.split("\n## ").find(|section| section.starts_with("Blocks\n"));
    let rows = section.expect("the section is there").lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (at, bytes): (usize, usize) = (cells.get(1)?.parse().ok()?, cells[2].parse().ok()?);
        Some((at, at + bytes, cells[3]))
    });
    let rows: Vec<_> = rows.collect();
    let mut next = 0;
    for &(at, end, field) in &rows {
        assert_eq!(at, next, "{field} follows without a gap");
        next = end;
    }
    assert_eq!(next, SECTOR);
    let encode = |head: BlockHead, payload: &[u8]| {
        let mut block = vec![0; SECTOR];
        block::encode(&head, payload, &mut block);
        block
    };
    let plain = BlockHead { kind: BlockKind::Log, store: 0, seq: 0, group: 0, mount: 0, count: 0 };
    let changed = [
        ("`CLOG`", BlockHead { kind: BlockKind::Checkpoint, ..plain }, &[][..]),
        ("store:", BlockHead { store: u64::MAX, ..plain }, &[]),
        ("seq:", BlockHead { seq: u64::MAX, ..plain }, &[]),
        ("group:", BlockHead { group: u64::MAX, ..plain }, &[]),
        ("mount:", BlockHead { mount: u64::MAX, ..plain }, &[]),
        ("bytes of records", plain, &[0]),
        ("records", BlockHead { count: u16::MAX, ..plain }, &[]),
    ];
    // The check, what is reserved, and the records themselves.
    assert_eq!(rows.len(), changed.len() + 3);
    let before = encode(plain, &[]);
    for (field, head, payload) in changed {
        let row = rows.iter().find(|row| row.2.starts_with(field)).expect("a row");
        let after = encode(head, payload);
        let differs = (0..SECTOR).filter(|&i| before[i] != after[i] && !(4..8).contains(&i));
        let differs: Vec<_> = differs.collect();
        assert!(differs.iter().all(|i| (row.0..row.1).contains(i)), "{field}: {differs:?}");
        // All magics begin with one letter.
        let first = row.0 + usize::from(field == "`CLOG`");
        assert_eq!(differs.first(), Some(&first), "{field}");
    }
    let crc = u32::from_le_bytes(before[4..8].try_into().unwrap());
    assert_eq!((rows[1].0, crc), (4, codec::crc32c(&before[8..])));
    assert_eq!(rows.last().map(|row| row.0), Some(PAYLOAD_AT));
}

/// A store has version 3 before its first row is durable, and keeps it, whatever part of that a power
/// cut leaves: programs that know no rows refuse it from then on, and open it until then.
#[test]
fn a_store_has_the_version_of_rows_before_it_has_rows() {
    for (micros, unmarked) in (0..40).flat_map(|step| [(step * 25, true), (step * 25, false)]) {
        let sim = Sim::new(micros);
        let mut engine = Flash::new(&sim, small(), Config::default());
        let run = async {
            let store = match unmarked {
                false => engine.boot().await.unwrap(),
                true => {
                    let env = sim.boot(engine.host);
                    unpack(&env, "store_v1").await;
                    drop(env);
                    engine.crash(CrashMode::Process);
                    engine.disk = Some(DiskId::new(0));
                    engine.try_boot().await.unwrap()
                }
            };
            let chunk = ChunkId::new(50);
            let append = row_append_of((chunk, 5, 0), &[7; 9000], Fragment::COPY, Codec::Lz4);
            let owner = store.info().owner;
            let done = {
                let store = store.clone();
                sim.spawn("append", async move { store.append(append).await })
            };
            drop(store);
            sim.sleep(Duration::from_micros(micros)).await;
            engine.crash(CrashMode::Power);
            drop(done);
            let env = sim.boot(engine.host);
            let mut copies = [vec![0; SECTOR], vec![0; SECTOR]];
            for (copy, at) in copies.iter_mut().zip(layout::SUPER_AT) {
                read_at(&env, at, copy).await;
            }
            let version = |copy: &Vec<u8>| copy[8..12] == layout::VERSION.to_le_bytes();
            let both = copies.iter().all(version);
            drop(env);
            engine.crash(CrashMode::Process);
            let store = engine.try_boot().await.unwrap();
            assert_eq!(store.info().owner, owner);
            let has_rows = store.stat(chunk).is_ok();
            assert!(both || !has_rows, "rows without the version after {micros} us");
            (both, has_rows)
        };
        let seen = sim.run(run).unwrap();
        match micros {
            0 => assert_eq!(seen, (false, false)),
            900.. => assert_eq!(seen, (true, true), "after {micros} us"),
            _ => {}
        }
    }
}

/// The page states the constants of the source.
#[test]
fn format_page_agrees_with_the_source() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/chunkstore.md");
    let page = fs::read_to_string(page).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut facts = vec![
        format!("version {}", layout::VERSION),
        format!("or {} (no cluster noted)", layout::VERSION_UNMARKED),
        format!("magic `{}`", text(&layout::MAGIC)),
        format!("first copy at {}", layout::SUPER_AT[0]),
        format!("second copy at {}", layout::SUPER_AT[1]),
        format!("the log's first copy at {}", layout::LOG_AT),
        format!("records from byte {PAYLOAD_AT}, {PAYLOAD_MAX} bytes at most"),
        format!("{RUN_BYTES} bytes a run"),
        format!("{} bytes a unit", layout::CHECKPOINT_UNIT_BYTES),
        format!("{} bytes a tombstone", layout::CHECKPOINT_TOMBSTONE_BYTES),
        format!("{LOG_BATCH_BLOCKS_MAX} blocks a write"),
        format!("{CHUNK_SECTORS_INFLIGHT_MAX} sectors in flight"),
    ];
    for kind in [BlockKind::Log, BlockKind::Checkpoint, BlockKind::CheckpointHeader] {
        facts.push(format!("`{}`", text(&kind.magic())));
    }
    for record in all_records().into_iter().chain(row_records()) {
        let name = format!("{record:?}");
        let name = name.split([' ', '{']).next().unwrap();
        facts.push(format!("| {} | {name} |", record.code()));
    }
    let missing: Vec<_> = facts.iter().filter(|fact| !page.contains(*fact)).collect();
    assert!(missing.is_empty(), "docs/formats/chunkstore.md does not say {missing:?}");
}
