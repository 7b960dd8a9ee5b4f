//! Forks on the store in memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::{Duration, Env, Rng};
use table::{Bugs, Cache, Child, Compression, Options, Planted, Range, Store, Table};
use testing::tables::{Ground, MemDisk, forks};

use crate::support::{World, seeds, small, small_with_data};

/// Directories of a world as one node reaches them.
struct Dirs {
    env: Env,
    disk: MemDisk,
    options: Options,
}

impl Ground for Dirs {
    fn dir(&self, name: &str) -> Rc<dyn Store> {
        self.disk.beside(name).store(&self.env)
    }

    async fn open(&self, name: &str, owner: u64) -> Result<Table, table::Error> {
        let options = Options { owner, ..self.options.clone() };
        let cache = Cache::new(32 << 10);
        loop {
            let opened = Table::open(&self.env, self.dir(name), &cache, options.clone()).await;
            match opened {
                Err(table::Error::Unavailable { .. }) => {
                    self.env.sleep(Duration::from_millis(1)).await;
                }
                opened => return opened,
            }
        }
    }
}

fn check(seed: u64, steps: u32, options: &Options) -> Result<u32, String> {
    let world = World::new(seed);
    let options = options.clone();
    world.run(async {
        let (_, env) = world.boot();
        let dirs = Dirs { env, disk: world.disk.clone(), options };
        forks(&dirs, &mut Rng::new(seed), steps).await
    })
}

fn check_seeds(seeds: std::ops::Range<u64>, options: &Options) {
    let mut kept = 0;
    for seed in seeds.clone() {
        kept += check(seed, 300, options).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    assert!(kept > 3 * (seeds.end - seeds.start) as u32, "{kept} forks");
}

#[test]
fn forks_hold_with_small_parts() {
    check_seeds(seeds("FORK_SEEDS", 0..12), &small());
}

#[test]
fn forks_hold_with_data_in_logs() {
    check_seeds(seeds("FORK_SEEDS", 100..112), &small_with_data());
}

/// Each bug shows within some seeds.
#[test]
fn planted_bugs_are_found() {
    let bugs = [
        Planted::LooseBounds,
        Planted::LooseReplay,
        Planted::ForgetHidden,
        Planted::LowNumber,
        Planted::ForgetKept,
    ];
    let mut found = BTreeMap::new();
    for bug in bugs {
        let options = Options { bugs: Bugs::of(bug), ..small_with_data() };
        let first = (0..20).find_map(|seed| Some((seed, check(seed, 300, &options).err()?)));
        found.insert(format!("{bug:?}"), first);
    }
    println!("{found:#?}");
    for (bug, first) in found {
        assert!(first.is_some(), "{bug} was not found");
    }
}

fn row(number: u32) -> Vec<u8> {
    format!("row/{number:05}").into_bytes()
}

/// Runs of which a child shows every other part of many: blocks of a few keys, files of some hundred.
#[test]
fn parts_of_runs_are_scanned_both_ways_and_what_is_between_is_not_read() {
    for (seed, part) in [(1, 700), (2, 100), (3, 7), (4, 1)] {
        let world = World::new(seed);
        world.run(async {
            let (_, env) = world.boot();
            let compression = Compression::None;
            let options =
                Options { block_bytes: 256, file_bytes: 24 << 10, compression, ..small() };
            let dirs = Dirs { env, disk: world.disk.clone(), options };
            let table = dirs.open("parent", 1).await.unwrap();
            for number in 0..2800 {
                table.put(&row(number), &number.to_le_bytes().repeat(6)).await.unwrap();
            }
            table.flush().await.unwrap();
            table.compact().await.unwrap();
            assert!(table.stats().files > 2 && table.stats().runs == 1);
            let reads = async |table: &Table, reverse| {
                let before = world.disk.points();
                let mut scan = table.scan(Range { reverse, ..Range::all() });
                let all = scan.take(usize::MAX).await.unwrap();
                let keys: Vec<_> = all.into_iter().map(|entry| entry.0).collect();
                (world.disk.points() - before, keys)
            };
            let (whole, _) = reads(&table, true).await;
            let shows = |rest: u32| {
                let parts = (0..2800 / part).filter(|number| number % 2 == rest);
                parts.map(|n| Range::between(&row(n * part), &row((n + 1) * part))).collect()
            };
            let child = |rest: u32| Child {
                store: dirs.dir(&rest.to_string()),
                owner: 1,
                shows: shows(rest),
            };
            let fork = table.fork(vec![child(0), child(1)]).unwrap();
            assert_eq!(fork.cut().await.unwrap().get(), 2800);
            let mut rng = Rng::new(seed);
            for rest in [0, 1] {
                let child = dirs.open(&rest.to_string(), 2).await.unwrap();
                let shown: Vec<u32> = (0..2800).filter(|n| n / part % 2 == rest).collect();
                for reverse in [false, true] {
                    let mut want = shown.clone();
                    if reverse {
                        want.reverse();
                    }
                    let (count, keys) = reads(&child, reverse).await;
                    assert!(keys.iter().eq(&want.iter().map(|&n| row(n)).collect::<Vec<_>>()));
                    // Back, blocks are read one by one.
                    let most = whole * 6 / 10 + 4 * u64::from(2800 / part);
                    assert!(!reverse || count <= most, "{count} reads, of {whole}");
                    // A few keys from anywhere, by a bound or by a seek.
                    for _ in 0..200 {
                        let at = rng.below(2802) as u32;
                        let (range, from) = match rng.below(3) {
                            0 => (Range { reverse, ..Range::all() }, want[0]),
                            _ if reverse => (Range::between(b"", &row(at + 1)).reversed(), at),
                            _ => (Range::between(&row(at), b"s"), at),
                        };
                        let is_before = |n: u32, at: u32| if reverse { n > at } else { n < at };
                        let mut next = want.partition_point(|&n| is_before(n, from));
                        let mut scan = child.scan(range);
                        let taken = rng.below(2) as usize;
                        next += scan.take(taken).await.unwrap().len();
                        let to = rng.below(2802) as u32;
                        scan.seek(&row(to)).await.unwrap();
                        next = next.max(want.partition_point(|&n| is_before(n, to)));
                        let entries = scan.take(3).await.unwrap();
                        let got: Vec<_> = entries.into_iter().map(|entry| entry.0).collect();
                        let ahead: Vec<_> = want[next..].iter().take(3).map(|&n| row(n)).collect();
                        assert_eq!(got, ahead, "{rest} {reverse} from {from} to {to}");
                    }
                }
                for number in 0..2800 {
                    let value = child.get(&row(number)).await.unwrap();
                    assert_eq!(value.is_some(), number / part % 2 == rest);
                }
                // What it shows is its own in the end, and no more than that.
                child.compact().await.unwrap();
                let (stats, bytes) = (child.stats(), table.stats().bytes);
                assert!(stats.bytes < bytes * 6 / 10, "{stats:?} of {bytes}");
                let all = child.scan(Range::all()).take(usize::MAX).await.unwrap();
                assert_eq!(all.len(), shown.len());
            }
        });
    }
}
