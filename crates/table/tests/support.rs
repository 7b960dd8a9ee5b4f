//! A world with one directory.

use runtime::Env;
use runtime::sim::{HostId, Sim};
use table::{Cache, Compression, Options, Table};
use testing::tables::MemDisk;

pub struct World {
    pub sim: Sim,
    pub disk: MemDisk,
}

/// Everything small, so that all that happens seldom happens often.
pub fn small() -> Options {
    Options {
        memtable_bytes: 12 << 10,
        block_bytes: 512,
        file_bytes: 16 << 10,
        manifest_bytes: 1 << 10,
        compression: Compression::Lz4,
        ..Options::default()
    }
}

/// The same, with data in its logs.
pub fn small_with_data() -> Options {
    Options { data_log_bytes: 24 << 10, ..small() }
}

impl World {
    pub fn new(seed: u64) -> World {
        let sim = Sim::new(seed);
        let disk = MemDisk::new(&sim);
        World { sim, disk }
    }

    pub fn boot(&self) -> (HostId, Env) {
        let host = self.sim.add_host("owner");
        (host, self.sim.boot(host))
    }

    pub async fn open(&self, env: &Env, options: Options) -> Result<Table, table::Error> {
        Table::open(env, self.disk.store(env), &Cache::new(64 << 10), options).await
    }

    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let done = self.sim.run(work).expect("it goes on");
        self.sim.close();
        done
    }
}

/// Runs a future on a host, as a task of its node; nothing when the host crashes first.
pub async fn on<T: 'static>(env: &Env, work: impl Future<Output = T> + 'static) -> Option<T> {
    env.spawn(runtime::Class::Foreground, "test", work).await.ok()
}

/// Seeds of a search that a variable asks for, as `a..b`; else the usual ones.
pub fn seeds(variable: &str, usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var(variable) else { return usual };
    let (from, to) = text.split_once("..").expect("a..b");
    from.parse().expect("a number")..to.parse().expect("a number")
}
