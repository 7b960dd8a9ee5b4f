//! Work of two tasks or instances on the same files, in an order that the test chooses.

use std::cell::Cell;
use std::rc::Rc;

use base::Kind;
use block_segment::{LinkFrom, Segment};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use futures_util::future::LocalBoxFuture;
use runtime::{Duration, Env};
use table::{Answer, Cache, Names, Source, Store, Table, Writer};

use crate::device::support::{BYTES, IDENTITY, World, on, open, shared, small};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 48;
const HOLD: Duration = Duration::from_secs(1);

/// A call of a store that a test delays.
enum Call<'a> {
    /// Before a file is opened for reading.
    Open(&'a str),
}

type Hook = Rc<dyn Fn(Call<'_>) -> LocalBoxFuture<'static, ()>>;

/// A store whose calls wait for a hook.
struct Hooked(Rc<dyn Store>, Hook);

impl Store for Hooked {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        self.0.create(name)
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
            let Call::Open(name) = call;
            let sorted = name.starts_with("sorted-").then(|| name.to_owned());
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
