//! Work of two tasks or instances on the same files, in an order that the test chooses.

use std::cell::Cell;
use std::rc::Rc;

use base::Kind;
use block_segment::{LinkFrom, Options, Segment};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use futures_util::future::LocalBoxFuture;
use runtime::{Duration, Env};
use table::{Answer, Cache, Names, Pending, Source, Store, Table, Writer};

use crate::device::support::{BYTES, IDENTITY, World, on, open, shared, small};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 48;
const HOLD: Duration = Duration::from_secs(1);

/// A call of a store that a test delays.
enum Call<'a> {
    /// Before a file is opened for reading.
    Open(&'a str),
    /// A page behind this name, before it is returned.
    Listed(&'a str),
    /// A durable append to a file, before it is answered.
    Appended(&'a str),
}

type Hook = Rc<dyn Fn(Call<'_>) -> LocalBoxFuture<'static, ()>>;

/// A store whose calls wait for a hook.
struct Hooked(Rc<dyn Store>, Hook);

struct HookedWriter(Box<dyn Writer>, String, Hook);

impl Store for Hooked {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        Box::pin(async move {
            let writer = self.0.create(name).await?;
            let writer = HookedWriter(writer, name.to_owned(), self.1.clone());
            Ok(Box::new(writer) as Box<dyn Writer>)
        })
    }

    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        self.0.seal(name)
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(async move {
            (self.1)(Call::Open(name)).await;
            self.0.open(name).await
        })
    }

    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names> {
        Box::pin(async move {
            let page = self.0.list(after).await;
            (self.1)(Call::Listed(after)).await;
            page
        })
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

impl Writer for HookedWriter {
    fn submit<'a>(&'a self, data: &'a [u8]) -> Answer<'a, Pending> {
        Box::pin(async move {
            let pending = self.0.submit(data).await?;
            let (hook, name) = (self.2.clone(), self.1.clone());
            Ok(Box::pin(async move {
                let done = pending.await;
                hook(Call::Appended(&name)).await;
                done
            }) as Pending)
        })
    }

    fn close(self: Box<Self>) -> Answer<'static, u64> {
        self.0.close()
    }
}

/// Writes all blocks with one request.
async fn fill(env: &Env, segment: &Segment, value: u8) {
    let data = env.pool().copy_of(&vec![value; (BLOCKS * BLOCK) as usize]).unwrap();
    segment.write(0, data).await.unwrap();
}

async fn assert_filled(segment: &Segment, value: u8) {
    let all = segment.read(Extent { offset: 0, len: BLOCKS * BLOCK }).await.unwrap();
    assert!(all.iter().all(|byte| *byte == value));
}

/// A clone is opened while its snapshot is open elsewhere: the snapshot's table may merge its runs.
#[test]
fn first_opening_of_a_clone_beside_a_merge_of_its_snapshots_table_can_be_repeated() {
    let world = World::new(71);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1, small()).await.unwrap();
        fill(&at, &segment, 5).await;
        segment.cut(1, HOLD).await.unwrap();
        segment.release(1, true).unwrap();
        let snapshot = disk.beside("snapshot");
        let to = Identity { volume: 101, ..IDENTITY };
        segment.link(1, snapshot.store(&at), to).await.unwrap();
        let cache = Cache::new(32 << 10);
        let table = Table::open(&at, snapshot.store(&at), &cache, small().table).await.unwrap();
        table.flush().await.unwrap();
        let (is_merged, directory, slept) = (Cell::new(false), snapshot.clone(), at.clone());
        let owner = table.clone();
        let hook: Hook = Rc::new(move |call| {
            let (table, directory, env) = (table.clone(), directory.clone(), slept.clone());
            let sorted = match call {
                Call::Open(name) if name.starts_with("sorted-") => Some(name.to_owned()),
                _ => None,
            };
            let first = sorted.filter(|_| !is_merged.replace(true));
            Box::pin(async move {
                let Some(first) = first else { return };
                table.put(b"x", &[]).await.unwrap(); // A row that no segment reads.
                table.flush().await.unwrap();
                table.compact().await.unwrap();
                while directory.names().contains(&first) {
                    env.sleep(Duration::from_millis(1)).await;
                }
            })
        });
        let source: Rc<dyn Store> = Rc::new(Hooked(snapshot.store(&at), hook));
        let clone_source = || -> LinkFrom {
            let found = source.clone();
            Box::new(move || {
                let found = found.clone();
                Box::pin(async move { Ok(found) })
            })
        };
        let (clone, to) = (disk.beside("clone"), Identity { volume: 102, ..IDENTITY });
        let stores = || (clone.store(&at), clone.store(&at));
        let options = || (small(), Some(clone_source()));
        let first = Segment::open_from(&at, stores(), &shared(), (to, BYTES, 1), options()).await;
        if let Err(fault) = first {
            assert_eq!(fault.kind, Kind::Retry, "{fault}");
        }
        // Replicas may not show the last append to an open manifest; they show the one before.
        owner.put(b"y", &[]).await.unwrap();
        owner.flush().await.unwrap();
        let second = Segment::open_from(&at, stores(), &shared(), (to, BYTES, 2), options()).await;
        assert_filled(&second.unwrap(), 5).await;
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// A file of an earlier owner is collected while a cut needs it, and the sweep has its name in a
/// page that it listed before.
#[test]
fn sweep_beside_a_collection_keeps_a_file_of_a_cut() {
    let world = World::new(72);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let options = || Options { file_bytes: 1 << 20, ..small() };
        let segment = open(&at, &disk, 1, options()).await.unwrap();
        fill(&at, &segment, 1).await;
        segment.close().await.unwrap();
        let (sweeps, is_slow) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (gate, slow, slept) = (sweeps.clone(), is_slow.clone(), at.clone());
        let hook: Hook = Rc::new(move |call| {
            let (gate, env) = (gate.clone(), slept.clone());
            let is_sweep = matches!(call, Call::Listed(after) if after.starts_with("data-"));
            let is_log = matches!(call, Call::Appended(name) if name.starts_with("log-"));
            let pause = Duration::from_millis(if is_log && slow.get() { 100 } else { 0 });
            Box::pin(async move {
                while is_sweep && !gate.get() {
                    env.sleep(Duration::from_millis(1)).await;
                }
                env.sleep(pause).await;
            })
        });
        let store: Rc<dyn Store> = Rc::new(Hooked(disk.store(&at), hook));
        let what = (IDENTITY, BYTES, 2);
        let segment = Segment::open(&at, store, &shared(), what, options()).await.unwrap();
        at.sleep(HOLD).await;
        segment.cut(1, HOLD).await.unwrap();
        segment.release(1, true).unwrap();
        is_slow.set(true);
        fill(&at, &segment, 2).await;
        let before = segment.stats();
        while segment.stats().files == before.files {
            at.sleep(Duration::from_micros(100)).await;
        }
        // Its row is deleted, and not durably yet.
        assert_eq!(segment.stats().collected, before.collected);
        sweeps.set(true);
        while segment.stats().collected == before.collected {
            at.sleep(Duration::from_millis(1)).await;
        }
        is_slow.set(false);
        let target = disk.beside("snapshot");
        let to = Identity { volume: 101, ..IDENTITY };
        let linked = segment.link(1, target.store(&at), to).await;
        linked.unwrap_or_else(|fault| panic!("{fault}"));
        let (shared, what) = (shared(), (to, BYTES, 1));
        let opened = Segment::open(&at, target.store(&at), &shared, what, small()).await;
        assert_filled(&opened.unwrap(), 1).await;
        assert_filled(&segment, 2).await;
    };
    world.run(async { on(&env, work).await.unwrap() });
}
