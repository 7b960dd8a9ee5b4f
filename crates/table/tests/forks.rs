//! Forks on the store in memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::{Duration, Env, Rng};
use table::{Bugs, Cache, Options, Planted, Store, Table};
use testing::tables::{Ground, MemDisk, forks};

use crate::support::{World, small, small_with_data};

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

/// Seeds of a longer search: `FORK_SEEDS=a..b`.
fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("FORK_SEEDS") else { return usual };
    let (from, to) = text.split_once("..").expect("FORK_SEEDS=a..b");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn forks_hold_with_small_parts() {
    check_seeds(seeds(0..12), &small());
}

#[test]
fn forks_hold_with_data_in_logs() {
    check_seeds(seeds(100..112), &small_with_data());
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
