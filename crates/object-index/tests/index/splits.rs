//! Splits of a range with files of bodies: most are linked while the range serves, and within the cut what came since.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::Fault;
use futures_util::future::{LocalBoxFuture, join_all};
use object_index::{
    Bugs, Config, Files, Held, Lease, Managers, Pace, RangeRule, Room, range_dir, session_dir,
};
use object_proto::{
    BucketId, CatalogReply, CatalogRequest, Error, FileName, RangeBound, RangeId, RangeMap,
    RangeReply, RangeRequest, SessionId, StorageRule,
};
use runtime::{Class, Duration, Env};
use table::{Answer, Cache, Names, Source, Store, Writer};

use super::support::World;

const RANGE: RangeId = RangeId::new(1);
const HALVES: [RangeId; 2] = [RangeId::new(2), RangeId::new(3)];
const SESSION: SessionId = SessionId::new(7);

/// The core looks up, or links, so many names at once.
const BATCH: usize = 128;
/// What that takes.
const LOOK_UP: Duration = Duration::from_millis(2);
/// See [`LOOK_UP`].
const LINK: Duration = Duration::from_millis(5);

fn time(of_batch: Duration, names: usize) -> Duration {
    of_batch * names.div_ceil(BATCH) as u32
}

/// A directory in which many names take the time that they take in the core.
struct SlowStore {
    inner: Rc<dyn Store>,
    env: Env,
}

impl Store for SlowStore {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        self.inner.create(name)
    }

    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        self.inner.seal(name)
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        self.inner.open(name)
    }

    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names> {
        self.inner.list(after)
    }

    fn publish<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        self.inner.publish(from, to)
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.inner.remove(name)
    }

    fn numbers<'a>(&'a self, names: &'a [String]) -> Answer<'a, Vec<Option<u64>>> {
        Box::pin(async move {
            self.env.sleep(time(LOOK_UP, names.len())).await;
            self.inner.numbers(names).await
        })
    }

    fn link<'a>(&'a self, names: &'a [String], to: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.env.sleep(time(LINK, names.len())).await;
            self.inner.link(names, to).await
        })
    }
}

struct SlowFiles {
    inner: Rc<dyn Files>,
    env: Env,
}

impl SlowFiles {
    fn slow(&self, inner: Rc<dyn Store>) -> Rc<dyn Store> {
        Rc::new(SlowStore { inner, env: self.env.clone() })
    }
}

impl Files for SlowFiles {
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        Box::pin(async move { Ok(self.slow(self.inner.dir(path).await?)) })
    }

    fn dir_for<'a>(
        &'a self,
        path: &'a str,
        storage: StorageRule,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        Box::pin(async move { Ok(self.slow(self.inner.dir_for(path, storage).await?)) })
    }

    fn dirs<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Vec<String>, Fault>> {
        self.inner.dirs(path)
    }

    fn remove_dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<(), Fault>> {
        self.inner.remove_dir(path)
    }
}

/// A manager that commits a split whose halves are whole.
#[derive(Default)]
struct Manager {
    /// How often it was asked for the halves: the second time is just before the cut.
    asked: Cell<u32>,
    /// What happens then.
    late: RefCell<Option<LocalBoxFuture<'static, ()>>>,
    committed: Cell<Option<bool>>,
}

impl Managers for Manager {
    fn ask(&self, request: CatalogRequest) -> LocalBoxFuture<'_, Result<CatalogReply, Error>> {
        Box::pin(async move {
            Ok(match request {
                CatalogRequest::Map => CatalogReply::Map(RangeMap::even(1)),
                CatalogRequest::IsOpen(_) => CatalogReply::Open(true),
                CatalogRequest::PrepareSplit { .. } => {
                    self.asked.set(self.asked.get() + 1);
                    let late = (self.asked.get() == 2).then(|| self.late.take()).flatten();
                    if let Some(late) = late {
                        late.await;
                    }
                    CatalogReply::Halves { low: HALVES[0], high: HALVES[1] }
                }
                CatalogRequest::EndSplit { commit, .. } => {
                    self.committed.set(Some(commit));
                    CatalogReply::SplitEnded { committed: commit }
                }
                request => panic!("{request:?}"),
            })
        })
    }
}

struct Ever;

impl Lease for Ever {
    fn is_valid(&self) -> bool {
        true
    }
}

/// The owner of a range, and what it stands on.
#[derive(Clone)]
struct Owner {
    world: Rc<World>,
    env: Env,
    files: Rc<dyn Files>,
    manager: Rc<Manager>,
    rule: Rc<RangeRule>,
}

impl Owner {
    async fn open(world: &Rc<World>, env: &Env) -> Owner {
        let inner = world.files(env);
        let files: Rc<dyn Files> = Rc::new(SlowFiles { inner, env: env.clone() });
        let manager = Rc::new(Manager::default());
        let rule = open(env, &files, (RANGE, 1), manager.clone()).await;
        Owner { world: world.clone(), env: env.clone(), files, manager, rule }
    }

    /// Has a file kept that a session sends.
    async fn hold(&self, number: usize) {
        let dir = self.world.disk.beside(&session_dir(SESSION));
        dir.set_content(&file(number), Some(Vec::new()));
        let held = hold(&self.rule, number).await;
        assert_eq!(held, Ok(RangeReply::Held { gone: false }));
    }

    /// Takes the name of a file away, as collection does before it takes the row.
    fn remove(&self, number: usize) {
        self.world.disk.beside(&range_dir(RANGE)).set_content(&file(number), None);
    }

    async fn split(&self) -> Result<(), Error> {
        assert!(self.rule.begin_split());
        let at = RangeBound::of_bucket(BucketId::new(1 << 63));
        self.rule.split(&*self.files, Some(at)).await
    }

    /// The files of bodies of a half.
    fn files_of(&self, half: RangeId) -> Vec<String> {
        let mut names = self.world.disk.beside(&range_dir(half)).names();
        names.retain(|name| name.starts_with("body-"));
        names
    }
}

async fn open(
    env: &Env,
    files: &Rc<dyn Files>,
    (range, epoch): (RangeId, u64),
    managers: Rc<dyn Managers>,
) -> Rc<RangeRule> {
    let config = Config::default();
    let (cache, room) = (Cache::new(1 << 20), Room::default());
    let pace = Pace::new(config.lifecycle_bytes_per_s);
    let held: Held = (Rc::new(Ever), epoch);
    let common = (&cache, &room, &pace);
    let opened = RangeRule::open((env, files, &config), range, held, common, managers).await;
    opened.expect("it opens")
}

async fn hold(rule: &RangeRule, number: usize) -> Result<RangeReply, Error> {
    let file = FileName::new(file(number));
    rule.handle(RangeRequest::Hold { session: SESSION, file }).await
}

fn file(number: usize) -> String {
    format!("body-{:016x}-{number:016x}", SESSION.get())
}

fn run<F: Future<Output = ()> + 'static>(work: impl FnOnce(Owner) -> F + 'static) {
    let world = World::new(1, Bugs::default());
    world.clone().run(async move {
        let (_, env) = world.host("owner");
        let on = env.clone();
        let work = async move { work(Owner::open(&world, &on).await).await };
        env.spawn(Class::Foreground, "test", work).await.unwrap();
    });
}

#[test]
fn range_with_ten_thousand_files_is_split() {
    const FILES: usize = 10_000;
    run(|owner| async move {
        for from in (0..FILES).step_by(500) {
            join_all((from..from + 500).map(|number| owner.hold(number))).await;
        }
        assert_eq!(owner.split().await, Ok(()));
        assert_eq!(owner.manager.committed.get(), Some(true));
        let all: Vec<String> = (0..FILES).map(file).collect();
        for half in HALVES {
            assert!(owner.files_of(half) == all, "{half} has all files");
        }
    });
}

#[test]
fn files_that_come_and_go_just_before_the_cut_are_linked_and_left_out() {
    run(|owner| async move {
        for number in 0..10 {
            owner.hold(number).await;
        }
        let late = owner.clone();
        owner.manager.late.replace(Some(Box::pin(async move {
            for number in 10..14 {
                late.hold(number).await;
            }
            // One was linked before, the other two were not.
            [3, 11, 13].into_iter().for_each(|number| late.remove(number));
        })));
        assert_eq!(owner.split().await, Ok(()));
        assert_eq!(owner.manager.committed.get(), Some(true));
        let linked: Vec<String> = (0..11).chain([12]).map(file).collect();
        for half in HALVES {
            assert_eq!(owner.files_of(half), linked, "{half}");
            let rule = open(&owner.env, &owner.files, (half, 2), owner.manager.clone()).await;
            for number in [0, 10, 12] {
                let held = hold(&rule, number).await;
                assert_eq!(held, Ok(RangeReply::Held { gone: false }), "{half} has file {number}");
            }
        }
    });
}
