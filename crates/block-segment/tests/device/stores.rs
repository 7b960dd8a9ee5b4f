//! Calls of a segment to its stores: the store that makes each file, and the number of reads.

use std::cell::Cell;
use std::rc::Rc;

use block_segment::limits::PAGE_BLOCKS;
use block_segment::{Options, Segment, Shared, View};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::limits::BLOCK;
use runtime::{Duration, Rng};
use table::{Answer, Cache, Names, Redundancy, Source, Store, Writer};
use testing::tables::MemDisk;

use crate::device::support::{BYTES, IDENTITY, World, on, shared, small};

/// Calls of a store.
#[derive(Default)]
struct Calls {
    /// DataFiles that it made.
    data_files: Cell<u64>,
    /// Reads of other files: those of the segment's table.
    table_reads: Cell<u64>,
}

/// A store whose calls are counted, and that says what its files take on media.
struct Counted(Rc<dyn Store>, Rc<Calls>, Redundancy);

struct CountedSource(Rc<dyn Source>, Rc<Calls>);

fn counted(store: Rc<dyn Store>) -> (Rc<dyn Store>, Rc<Calls>) {
    let calls = Rc::new(Calls::default());
    (Rc::new(Counted(store, calls.clone(), Redundancy::ONE)), calls)
}

fn add_one(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

impl Store for Counted {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn redundancy(&self) -> Redundancy {
        self.2
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        if name.starts_with("data-") {
            add_one(&self.1.data_files);
        }
        self.0.create(name)
    }

    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        self.0.seal(name)
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(async move {
            let source = self.0.open(name).await?;
            Ok(match name.starts_with("data-") {
                true => source,
                false => Rc::new(CountedSource(source, self.1.clone())) as Rc<dyn Source>,
            })
        })
    }

    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names> {
        self.0.list(after)
    }

    fn publish<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        self.0.publish(from, to)
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.0.remove(name)
    }

    fn numbers<'a>(&'a self, names: &'a [String]) -> Answer<'a, Vec<Option<u64>>> {
        self.0.numbers(names)
    }

    fn link<'a>(&'a self, names: &'a [String], to: &'a str) -> Answer<'a, ()> {
        self.0.link(names, to)
    }
}

impl Source for CountedSource {
    fn read_at(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        add_one(&self.1.table_reads);
        self.0.read_at(offset, len)
    }

    fn read_acknowledged(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        add_one(&self.1.table_reads);
        self.0.read_acknowledged(offset, len)
    }
}

/// With outputs in a code, what is not overwritten is collected until little is left in copies; what has
/// the code is not collected again, and a later instance knows what has it (B3, C18).
#[test]
fn blocks_without_garbage_are_collected_into_a_code_once() {
    let world = World::new(43);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let in_form = |form| {
            let store = counted(disk.store(&at)).0;
            Rc::new(Counted(store, Rc::default(), form)) as Rc<dyn Store>
        };
        let (copies, code) = (Redundancy::copies(3), Redundancy { replicas: 6, data: 4 });
        let (shared, options) = (shared(), small());
        let open = |epoch| {
            let what = (IDENTITY, BYTES, epoch);
            Segment::open_with(&at, in_form(copies), in_form(code), &shared, what, options.clone())
        };
        let segment = open(1).await.unwrap();
        let blocks = 1024;
        for block in 0..blocks {
            let data = at.pool().copy_of(&[block as u8 | 1; BLOCK as usize]).unwrap();
            segment.write(block * BLOCK, data).await.unwrap();
        }
        at.sleep(Duration::from_secs(20)).await;
        let stats = segment.stats();
        assert!(stats.blocks == blocks && stats.live == blocks, "{stats:?}");
        assert!(stats.collected_blocks >= blocks / 2, "{stats:?}");
        assert!(stats.stored_bytes < 3 * stats.file_bytes * 7 / 10, "{stats:?}");
        segment.close().await.unwrap();
        let again = open(2).await.unwrap();
        at.sleep(Duration::from_secs(20)).await;
        let later = again.stats();
        assert!(later.stored_bytes <= stats.stored_bytes * 11 / 10, "{stats:?}, {later:?}");
        assert!(later.collected_blocks <= blocks / 4, "{later:?}");
        for block in 0..blocks {
            let read = again.read(Extent { offset: block * BLOCK, len: BLOCK }).await.unwrap();
            assert!(read.iter().all(|byte| *byte == block as u8 | 1), "block {block}");
        }
        again.close().await.unwrap();
        // What is read from the directory alone says the same of each file.
        let view = View::open(&at, disk.store(&at)).await.unwrap();
        let (files, seen) = (view.files().collect::<Vec<_>>(), later.stored_bytes);
        let stored: u64 = files.iter().map(|file| file.stored_bytes(copies.replicas)).sum();
        assert!(files.iter().any(|file| file.code == Some(code)), "{files:?}");
        assert!((seen * 9 / 10..=seen * 11 / 10).contains(&stored), "{stored} of {later:?}");
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// Collection writes through a store of its own, which may have another policy (B3).
#[test]
fn collected_files_are_made_by_the_store_of_outputs() {
    let world = World::new(41);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let (log, of_log) = counted(disk.store(&at));
        let (outputs, of_outputs) = counted(disk.store(&at));
        let (shared, what) = (shared(), (IDENTITY, BYTES, 1));
        let opened = Segment::open_with(&at, log, outputs, &shared, what, small()).await;
        let segment = opened.unwrap();
        let mut rng = Rng::new(3);
        let mut values = vec![0u8; 256];
        while segment.stats().collected_blocks < 64 {
            for _ in 0..64 {
                let block = rng.below(256) as usize;
                values[block] = values[block].wrapping_add(1).max(1);
                let data = at.pool().copy_of(&[values[block]; BLOCK as usize]).unwrap();
                segment.write(block as u64 * BLOCK, data).await.unwrap();
            }
            at.sleep(Duration::from_millis(5)).await;
        }
        assert!(of_log.data_files.get() > 0 && of_outputs.data_files.get() > 0);
        let made = of_log.data_files.get() + of_outputs.data_files.get();
        assert!(made >= segment.stats().files as u64);
        for (block, value) in values.iter().enumerate() {
            let extent = Extent { offset: block as u64 * BLOCK, len: BLOCK };
            let read = segment.read(extent).await.unwrap();
            assert!(read.iter().all(|byte| byte == value), "block {block}");
        }
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// Index memory (B2, `protocols.md` 7): past its bound a look-up costs one more read of the core at
/// most, in 99 of 100.
#[test]
fn a_tenth_of_the_index_in_memory_costs_one_more_read() {
    // In which order the table's runs come depends on the seed.
    [42, 1].into_iter().for_each(look_up_with_a_tenth_in_memory);
}

fn look_up_with_a_tenth_in_memory(seed: u64) {
    const PAGES: u64 = 40;
    const PAGE_BLOCKS: u64 = 512;
    let world = World::new(seed);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let (store, calls) = counted(disk.store(&at));
        let options = Options {
            file_bytes: 16 << 20,
            scrub_bytes_per_second: 0, // It looks up as well.
            table: table::Options {
                memtable_bytes: 32 << 10,
                file_bytes: 256 << 10,
                ..table::Options::default()
            },
            ..Options::default()
        };
        // Four pages and a little of forty. Room for the metadata of the table's files, and for few pages.
        let what = (IDENTITY, PAGES * PAGE_BLOCKS * BLOCK, 1);
        let shared = Shared::new(Cache::new(48 << 10), 17 << 10);
        let opened = Segment::open_with(&at, store.clone(), store, &shared, what, options).await;
        let segment = opened.unwrap();
        // In an order in which no neighbours are stored together, so that pages are large.
        for n in 0..PAGES * PAGE_BLOCKS {
            let data = at.pool().copy_of(&[7; BLOCK as usize]).unwrap();
            let block = n * 7919 % (PAGES * PAGE_BLOCKS);
            segment.write(block * BLOCK, data).await.unwrap();
        }
        segment.checkpoint().await.unwrap();
        let stats = segment.stats();
        assert!(stats.index_bytes <= 20 << 10, "{} bytes in memory", stats.index_bytes);
        let (mut rng, mut more) = (Rng::new(5), Vec::new());
        for _ in 0..4000 {
            let extent = Extent { offset: rng.below(PAGES * PAGE_BLOCKS) * BLOCK, len: BLOCK };
            let before = calls.table_reads.get();
            assert_eq!(segment.read(extent).await.unwrap()[..8], [7; 8]);
            more.push(calls.table_reads.get() - before);
        }
        more.sort_unstable();
        let (mean, p99) = (more.iter().sum::<u64>() as f64 / more.len() as f64, more[3960]);
        println!(
            "reads of the table a look-up: {mean:.2} on average, {p99} at p99, {:?} at most",
            more.last()
        );
        assert!(mean > 0.4, "most pages are not in memory: {mean}");
        assert!(p99 <= 1, "{mean:.2} on average, {p99} at p99, {:?} at most", more.last());
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// Two segments of one process have one bound for their indexes: the one that is used has most of
/// it, and unstored pages of the other are stored when room is short.
#[test]
fn segments_share_the_memory_of_their_indexes() {
    const ROOM: usize = 96 << 10;
    const PAGES: u64 = 40;
    let world = World::new(43);
    let (_, env) = world.boot();
    let (disks, at) = ([world.disk.clone(), MemDisk::new(&world.sim)], env.clone());
    let work = async move {
        let shared = Shared::new(Cache::new(48 << 10), ROOM);
        let blocks = PAGES * u64::from(PAGE_BLOCKS);
        let options = Options { file_bytes: 16 << 20, ..Options::default() };
        let mut segments = Vec::new();
        for disk in &disks {
            let (store, what) = (disk.store(&at), (IDENTITY, blocks * BLOCK, 1));
            let opened = Segment::open(&at, store, &shared, what, options.clone()).await;
            segments.push(opened.unwrap());
        }
        let mut most = (0, 0);
        for (turn, segment) in [0, 1, 0].into_iter().enumerate() {
            let segment = &segments[segment];
            for n in 0..8000 {
                let data = at.pool().copy_of(&[turn as u8 + 1; BLOCK as usize]).unwrap();
                segment.write(n * 7919 % blocks * BLOCK, data).await.unwrap();
                let dirty = segments.iter().map(|segment| segment.stats().index_dirty).sum();
                most = (shared.index_bytes().max(most.0), most.1.max(dirty));
            }
            let used: Vec<usize> = segments.iter().map(|one| one.stats().index_bytes).collect();
            assert_eq!(used.iter().sum::<usize>(), shared.index_bytes());
            assert!(segment.stats().index_bytes > ROOM / 2, "{used:?}");
        }
        // One page above the room, and pages that changed while others were stored.
        assert!(most.0 <= ROOM + (8 << 10), "{} bytes in memory", most.0);
        assert!(most.1 > ROOM / 4 && most.1 <= ROOM, "{} bytes dirty", most.1);
        for (segment, want) in segments.iter().zip([3, 2]) {
            for n in (0..8000).step_by(41) {
                let extent = Extent { offset: n * 7919 % blocks * BLOCK, len: BLOCK };
                assert_eq!(segment.read(extent).await.unwrap()[..8], [want; 8]);
            }
        }
        drop(segments);
        at.sleep(Duration::from_millis(1)).await;
        assert_eq!(shared.index_bytes(), 0);
    };
    world.run(async { on(&env, work).await.unwrap() });
}
