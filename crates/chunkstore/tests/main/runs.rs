//! Chunks with as many runs as they may have: what ever-changing append sizes leave.

use base::{ChunkId, Epoch};
use chunkstore::flash::record::{Extent, Identity, Record};
use chunkstore::flash::{
    Config, FlashStore, FormatOptions, decode_index, dump, encode_index, replay,
};
use chunkstore::limits::RUNS_PER_CHUNK_MAX;
use chunkstore::map::{RUN_BYTES, Run, RunMap, is_sound, locate};
use chunkstore::{Append, ChunkStore, StoreError};
use runtime::Rng;
use runtime::sim::{CrashMode, Sim};
use wire::data::Purpose;
use wire::row::Layout;
use wire::sector::parse_footer;

use crate::engine::{Engine, Flash, append_of, data_of, small, store_path};
use crate::suite::contents;

const SECTOR: usize = 4096;
/// Runs that writers may make in these tests.
const RUNS_MAX: usize = 700;

fn flash(sim: &Sim, open_map_bytes: u32) -> Flash {
    let options = FormatOptions { open_map_bytes, ..small() };
    Flash::new(sim, options, Config { runs_max: RUNS_MAX, ..Config::default() })
}

/// Appends to a chunk until the store takes no more; its bytes. Sizes differ from one to the next,
/// and some have more than a sector.
async fn fill(store: &FlashStore, chunk: ChunkId) -> u32 {
    let mut offset = 0;
    for number in 0.. {
        let len = match number % 4 {
            0 => 4048 * 2 + 100,
            1 => 5,
            2 => 4048,
            _ => 7,
        };
        let data = data_of(chunk, offset, len, 0);
        match store.append(append_of(chunk, 5, offset, &data)).await {
            Ok(appended) => offset = appended.len,
            Err(error) => {
                assert_eq!(error, StoreError::Busy);
                return offset;
            }
        }
    }
    unreachable!("a bound is met")
}

/// Copies bytes `done..len`, `most` sectors at a time.
pub(crate) async fn copy(
    from: &FlashStore,
    to: &FlashStore,
    chunk: ChunkId,
    (mut done, len): (u32, u32),
    most: usize,
) -> Result<u32, (u32, StoreError)> {
    while done < len {
        let mut sectors = from.read(chunk, done, 1 << 20).await.unwrap().sectors;
        sectors = sectors.slice(0..sectors.len().min(most * SECTOR));
        let footer = parse_footer(&sectors[..SECTOR]).unwrap();
        let (epoch, base) = (footer.epoch, footer.base);
        let create = done == 0;
        let append = Append {
            chunk,
            epoch,
            base,
            offset: done,
            sectors,
            create,
            repair: true,
            purpose: Purpose::Data,
        };
        done = to.append(append).await.map_err(|error| (done, error))?.len;
    }
    Ok(done)
}

#[test]
fn chunk_at_its_run_limit_is_copied() {
    for most in [1, 3, 256] {
        let sim = Sim::new(5);
        let (mut source, mut target) = (flash(&sim, 64 << 10), flash(&sim, 64 << 10));
        let run = async {
            let (from, to) = (source.boot().await.unwrap(), target.boot().await.unwrap());
            let chunk = ChunkId::new(1);
            let len = fill(&from, chunk).await;
            let runs = from.map_bytes().0 / RUN_BYTES;
            assert_eq!(runs, RUNS_MAX, "the writer is bound");
            let copied = copy(&from, &to, chunk, (0, len), most).await;
            assert_eq!(copied, Ok(len), "{most} sectors at a time");
            assert!(to.map_bytes().0 / RUN_BYTES <= runs, "{} bytes of map", to.map_bytes().0);
            to.checkpoint().await.unwrap();
            drop(to);
            target.crash(CrashMode::Power);
            let to = target.boot().await.unwrap();
            to.seal(chunk, len).await.unwrap();
            from.seal(chunk, len).await.unwrap();
            assert_eq!(contents(&to, chunk).await, contents(&from, chunk).await);
            assert_eq!((from.map_bytes().0, to.map_bytes().0), (0, 0));
            to.close().await.unwrap();
            drop(to);
            target.crash(CrashMode::Process);
            let env = sim.boot(target.host);
            let found = chunkstore::flash::fsck(&env, &store_path()).await.unwrap();
            assert_eq!(found.problems, []);
            assert_eq!(dump(&env, &store_path()).await.unwrap().chunks.len(), 1);
        };
        sim.run(run).unwrap();
    }
}

#[test]
fn copies_go_on_where_writers_have_filled_the_map_budget() {
    let sim = Sim::new(6);
    let (mut source, mut target) = (flash(&sim, 64 << 10), flash(&sim, 40 << 10));
    let run = async {
        let (from, to) = (source.boot().await.unwrap(), target.boot().await.unwrap());
        let (first, second) = (ChunkId::new(1), ChunkId::new(2));
        let mut lens = Vec::new();
        for chunk in [first, second] {
            lens.push(fill(&from, chunk).await);
        }
        // Of 2,560 runs writers get half.
        for number in 10..14 {
            fill(&to, ChunkId::new(number)).await;
        }
        let taken = to.map_bytes().0;
        assert!((19 << 10..21 << 10).contains(&taken), "{taken} bytes are taken by writers");
        // Two copies by turns, of which the rest of the budget takes one at a time.
        let half = copy(&from, &to, first, (0, lens[0] / 2), 256).await.unwrap();
        let refused = copy(&from, &to, second, (0, lens[1]), 256).await;
        assert!(matches!(refused, Err((_, StoreError::Busy))), "{refused:?}");
        assert_eq!(copy(&from, &to, first, (half, lens[0]), 256).await, Ok(lens[0]));
        to.seal(first, lens[0]).await.unwrap();
        assert_eq!(copy(&from, &to, second, (0, lens[1]), 256).await, Ok(lens[1]));
        to.seal(second, lens[1]).await.unwrap();
        for chunk in [first, second] {
            assert_eq!(contents(&to, chunk).await, contents(&from, chunk).await);
        }
        assert!(to.map_bytes().0 <= 40 << 10);
    };
    sim.run(run).unwrap();
}

/// Sectors of appends of ever-changing sizes, by their data bytes.
fn changing_lens(count: usize) -> Vec<u16> {
    let mut rng = Rng::new(11);
    let mut last = 0;
    let lens = (0..count).map(|_| {
        last = 1 + (last + rng.below(3999) as u16) % 4000;
        last
    });
    lens.collect()
}

/// The largest map: as many runs as a chunk may have, in memory, in index sectors, in a checkpoint.
#[test]
fn map_of_2_19_runs_is_kept_whole() {
    let lens = changing_lens(RUNS_PER_CHUNK_MAX);
    let mut map = RunMap::default();
    lens.iter().for_each(|&len| map.push(std::iter::once(len)));
    assert_eq!(map.runs().len(), RUNS_PER_CHUNK_MAX);
    assert_eq!(map.sectors() as usize, RUNS_PER_CHUNK_MAX);
    let mut copy = RunMap::default();
    lens.chunks(256).for_each(|part| copy.push_part(part.iter().copied()));
    assert_eq!(copy, map);
    assert!(is_sound(map.runs(), map.len()));
    for run in map.runs().iter().step_by(1 << 10) {
        assert_eq!(locate(map.runs(), run.start()).unwrap().sector, run.sector());
    }
    let id = Identity {
        chunk: ChunkId::new(1),
        epoch: Epoch::new(u64::MAX - 1),
        base: 1,
        tag: 9,
        layout: Layout::Plain,
    };
    let per_sector = 4048 / RUN_BYTES;
    let count = RUNS_PER_CHUNK_MAX.div_ceil(per_sector);
    let mut index = vec![0; count * SECTOR];
    encode_index(&id, map.runs(), 0, &mut index);
    let read = index.chunks(SECTOR).enumerate();
    let read = read.flat_map(|(at, sector)| {
        decode_index(&id, (at * per_sector) as u32, sector).expect("an index sector")
    });
    assert!(read.eq(map.runs().iter().copied()));
    assert!(replay(&records_of(id, &map)), "a checkpoint with the map is read back");
}

fn records_of(id: Identity, map: &RunMap) -> Vec<u8> {
    let mut bytes = Vec::new();
    let extents = vec![Extent { start: 0, count: map.sectors().div_ceil(4) }];
    let (fence, bound, chunk, tag) = (Epoch::NONE, map.len(), id.chunk, id.tag);
    let replica = Record::Replica { id, fence, bound, cap: None, repairing: false, extents };
    replica.encode(&mut bytes);
    let mut before = 0;
    for runs in map.runs().chunks(240) {
        let runs: Vec<Run> = runs.to_vec();
        let count = runs.len() as u32;
        Record::Runs { chunk, tag, before, runs }.encode(&mut bytes);
        before += count;
    }
    let (len, sectors) = (map.len(), map.sectors());
    Record::Progress { chunk, tag, len, sectors, chain: 3 }.encode(&mut bytes);
    bytes
}
