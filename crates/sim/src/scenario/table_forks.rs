//! Tables that are forked on the core while rivals take them over, chunkservers crash and masters fail
//! over. Which tables there are is held here, as the object service's manager does: a fork counts only
//! while no rival has been given the table. In the quiet end all other directories are removed.

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use client::Client;
use futures_util::future::join;
use runtime::Rng;
use runtime::sim::Sim;
use table::{Cache, Child, ClientStore, Range, Table};
use testing::tables::{Oracle, own};

use super::{policy, table::options};
use crate::contenders::{self, Resource};
use crate::nemesis::{Faults, NONE};
use crate::planted::table_bugs;

/// Tables of a family at most.
const TABLES_MAX: usize = 6;
/// Duration of faults and load.
const LOAD: Duration = Duration::from_secs(20);
/// Batches to be acknowledged in a run, at least.
const ACKED_MIN: u64 = 50;
/// An owner's pause between two steps, at most.
const PAUSE: Duration = Duration::from_millis(60);
/// Time of a fork, beyond which its owner gives it up.
const FORK_MAX: Duration = Duration::from_secs(4);

/// A table that counts.
#[derive(Clone)]
struct Known {
    path: String,
    oracle: Oracle,
    /// Number of its present owner.
    epoch: u64,
}

/// What came of one table.
struct Family {
    root: String,
    known: RefCell<Vec<Known>>,
    dirs: Cell<u32>,
}

fn text(error: table::Error) -> String {
    error.to_string()
}

impl Family {
    fn new(number: usize) -> Family {
        let root = format!("/forks/f{number}");
        let first = Known { path: format!("{root}/t0"), oracle: Oracle::new(), epoch: 0 };
        Family { root, known: RefCell::new(vec![first]), dirs: Cell::new(0) }
    }

    async fn store(&self, client: &Client, path: &str) -> Result<ClientStore, table::Error> {
        ClientStore::new(client, path, policy::drawn()).await.map_err(|error| {
            table::Error::Unavailable { what: format!("open {path}"), cause: error.to_string() }
        })
    }

    async fn open(
        &self,
        client: &Client,
        known: &Known,
        cache: &Cache,
    ) -> Result<Table, table::Error> {
        let store = Rc::new(self.store(client, &known.path).await?);
        let options = table::Options { owner: known.epoch, bugs: table_bugs(), ..options() };
        Table::open(client.env(), store, cache, options).await
    }

    /// Forks a table in two, with writes until the cut. Nothing when that fails.
    async fn fork(
        &self,
        client: &Client,
        table: &Table,
        known: &Known,
        rng: &mut Rng,
    ) -> Result<u64, String> {
        let at = rng.pick(&[&b"b"[..], b"row/00030", b"row/00075", b"row/00120"]).to_vec();
        let low = Range { upper: Bound::Excluded(at.clone()), ..Range::all() };
        let high = Range { lower: Bound::Included(at.clone()), ..Range::all() };
        let mut children = Vec::new();
        let mut made = Vec::new();
        for shows in [low, high] {
            self.dirs.set(self.dirs.get() + 1);
            let path = format!("{}/t{}", self.root, self.dirs.get());
            let Ok(store) = self.store(client, &path).await else { return Ok(0) };
            let is_low = shows.upper != Bound::Unbounded;
            made.push((path, is_low));
            // The mark of the state is in both.
            let shows = vec![Range::prefix(Oracle::MARK), shows];
            children.push(Child { store: Rc::new(store), owner: 1, shows });
        }
        let mut fork = table.fork(children).map_err(text)?;
        let (env, mut load_rng) = (client.env(), rng.fork());
        let load = own(env, table, &known.oracle, &mut load_rng, (8, PAUSE));
        let work = env.timeout(FORK_MAX, async {
            for _ in 0..3 {
                let _ = fork.link().await; // The cut links what is left.
                env.sleep(PAUSE).await;
            }
            let began = env.now();
            let cut = fork.cut().await;
            tracing::debug!(took = ?(env.now() - began), done = cut.is_ok(), "cut");
            cut
        });
        let (loaded, forked) = join(load, work).await;
        let acked = loaded?.acked;
        match forked {
            Err(_) => env.mark("table-forks: given up after a time"),
            Ok(Err(error)) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                return Err(format!("not forked: {error}"));
            }
            Ok(Err(_)) => env.mark("table-forks: given up"),
            Ok(Ok(_)) => {
                let all = &mut *self.known.borrow_mut();
                let is_it = |other: &Known| other.path == known.path && other.epoch == known.epoch;
                let Some(place) = all.iter().position(is_it) else {
                    env.mark("table-forks: too late");
                    return Ok(acked);
                };
                all.remove(place);
                for (path, is_low) in made {
                    let oracle = known.oracle.forked(|key| (key < at.as_slice()) == is_low);
                    all.push(Known { path, oracle, epoch: 1 });
                }
            }
        }
        Ok(acked)
    }

    /// Removes all names of directories that do not count.
    async fn remove_others(&self, client: &Client) -> Result<(), String> {
        let known: Vec<_> = self.known.borrow().iter().map(|known| known.path.clone()).collect();
        let failed = |error: client::Error| error.to_string();
        for number in 0..=self.dirs.get() {
            let path = format!("{}/t{number}", self.root);
            if known.contains(&path) {
                continue;
            }
            let names = match client.list_all(&path).await {
                Err(error) if error.kind() == Kind::NotFound => continue,
                names => names.map_err(failed)?,
            };
            for entry in names {
                client.unlink(&format!("{path}/{}", entry.name)).await.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// All of a table, through merges too.
    async fn check(&self, client: &Client, index: usize) -> Result<(), String> {
        let known = {
            let known = &mut self.known.borrow_mut()[index];
            known.epoch += 1;
            known.clone()
        };
        let (path, oracle) = (&known.path, &known.oracle);
        let at = |what| format!("{path}: {what}");
        let opened = self.open(client, &known, &Cache::default()).await;
        let table = opened.map_err(text).map_err(at)?;
        own(client.env(), &table, oracle, &mut Rng::new(1), (10, PAUSE)).await.map_err(at)?;
        table.flush().await.map_err(text).map_err(at)?;
        table.compact().await.map_err(text).map_err(at)?;
        let entries = table.scan(Range::all()).take(usize::MAX).await.map_err(text).map_err(at)?;
        let mark = table.get(Oracle::MARK).await.map_err(text).map_err(at)?;
        let node = Oracle::node_of(mark.as_deref())?;
        oracle.compare(node, &entries, false, |_| true).map_err(at)?;
        table.close().await.map_err(text).map_err(at)
    }
}

impl Resource for Family {
    const PAUSE_MS: u64 = 900;
    const COUNTED: &'static str = "batches";
    type Process = Cache;

    fn process(&self) -> Cache {
        Cache::new(256 << 10)
    }

    fn name(&self) -> String {
        self.root.clone()
    }

    async fn own(
        &self,
        client: &Client,
        cache: &Cache,
        rng: &mut Rng,
    ) -> Result<Option<u64>, String> {
        let known = {
            let all = &mut *self.known.borrow_mut();
            let index = rng.below(all.len() as u64) as usize;
            all[index].epoch += 1;
            all[index].clone()
        };
        match self.open(client, &known, cache).await {
            Ok(table) => {
                let owned = own(client.env(), &table, &known.oracle, rng, (12, PAUSE)).await?;
                if owned.fenced || self.known.borrow().len() >= TABLES_MAX || rng.one_in(3) {
                    return Ok(Some(owned.acked));
                }
                let more = self.fork(client, &table, &known, rng).await?;
                Ok(Some(owned.acked + more))
            }
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                // Its directory does not go before the end.
                Err(format!("{} is not opened: {error}", known.path))
            }
            Err(_) => Ok(None),
        }
    }

    async fn check_whole(&self, client: &Client) -> Result<(), String> {
        let count = self.known.borrow().len();
        for index in 0..count {
            if index == count / 2 {
                self.remove_others(client).await?;
            }
            self.check(client, index).await?;
        }
        for index in 0..count {
            self.check(client, index).await?;
        }
        Ok(())
    }
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
    let plan = contenders::Plan { faults, load: LOAD, acked_min: ACKED_MIN };
    contenders::run(sim, plan, (0..2).map(|number| Rc::new(Family::new(number))).collect()).await
}
