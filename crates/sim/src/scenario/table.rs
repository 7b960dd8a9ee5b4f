//! Tables on the core: owners that take them over from one another while chunkservers crash and
//! masters fail over, judged by the table's oracle; then quiet, and the whole content.

use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use client::Client;
use runtime::Rng;
use runtime::sim::Sim;
use table::{Cache, ClientStore, Options, Table};
use testing::tables::{Oracle, own};

use super::policy;
use crate::contenders::{self, Resource};
use crate::nemesis::Faults;
use crate::planted::files_of;

/// Options of a table scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) faults: Faults,
    /// Duration of faults and load.
    pub(super) load: Duration,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { faults: Faults::default(), load: Duration::from_secs(10) }
    }
}

const TABLES: usize = 2;
/// Batches to be acknowledged in a run, at least.
const ACKED_MIN: u64 = 50;

/// An owner's pause between two steps, at most: a step is up to a dozen batches.
const PAUSE: Duration = Duration::from_millis(60);

/// Small parts, so that flushes, merges and rolls happen within seconds.
pub(super) fn options() -> Options {
    Options {
        memtable_bytes: 32 << 10,
        block_bytes: 2 << 10,
        file_bytes: 64 << 10,
        manifest_bytes: 1 << 10,
        ..Options::default()
    }
}

/// One table under load.
struct Loaded {
    path: String,
    oracle: Oracle,
}

impl Loaded {
    async fn open(&self, client: &Client, cache: &Cache) -> Result<Table, table::Error> {
        let policy = policy::drawn();
        let store = ClientStore::new(client, &self.path, policy).await.map_err(|error| {
            let what = format!("open {}", self.path);
            table::Error::Unavailable { what, cause: error.to_string() }
        })?;
        Table::open(client.env(), files_of(store), cache, options()).await
    }
}

impl Resource for Loaded {
    const PAUSE_MS: u64 = 700;
    const COUNTED: &'static str = "batches";
    type Process = Cache;

    fn process(&self) -> Cache {
        Cache::new(256 << 10)
    }

    fn name(&self) -> String {
        self.path.clone()
    }

    async fn own(
        &self,
        client: &Client,
        cache: &Cache,
        rng: &mut Rng,
    ) -> Result<Option<u64>, String> {
        match self.open(client, cache).await {
            Ok(table) => {
                let owned = own(client.env(), &table, &self.oracle, rng, (40, PAUSE)).await?;
                Ok(Some(owned.acked))
            }
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                Err(format!("not opened: {error}"))
            }
            Err(_) => Ok(None),
        }
    }

    /// Through merges, too.
    async fn check_whole(&self, client: &Client) -> Result<(), String> {
        let text = |error: table::Error| error.to_string();
        let table = self.open(client, &Cache::default()).await.map_err(text)?;
        own(client.env(), &table, &self.oracle, &mut Rng::new(1), (10, PAUSE)).await?;
        table.flush().await.map_err(text)?;
        table.compact().await.map_err(text)?;
        let entries = table.scan(table::Range::all()).take(usize::MAX).await.map_err(text)?;
        let mark = table.get(Oracle::MARK).await.map_err(text)?;
        let node = Oracle::node_of(mark.as_deref())?;
        self.oracle.compare(node, &entries, false, |_| true)?;
        table.close().await.map_err(text)
    }
}

pub(super) async fn run(sim: Sim, plan: Plan) -> Result<(), String> {
    let loaded =
        |number| Rc::new(Loaded { path: format!("/tables/t{number}"), oracle: Oracle::new() });
    let plan = contenders::Plan { faults: plan.faults, load: plan.load, acked_min: ACKED_MIN };
    contenders::run(sim, plan, (0..TABLES).map(loaded).collect()).await
}
