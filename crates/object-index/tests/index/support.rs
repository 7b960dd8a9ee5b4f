//! A world with the directories of the object service, and hosts that own it in turn: all of it, or the
//! catalog and each range by themselves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use base::Fault;
use futures_util::future::{LocalBoxFuture, join, join_all, select, select_all, try_join_all};
use object_index::limits::RECOUNT;
use object_index::{
    Bugs, Config, Files, Held, Lease, ManagerRule, Managers, Owners, Pace, PackOptions, RangeRule,
    Ranges, Room, SESSIONS_DIR, Service, ServiceOptions, range_dir,
};
use object_proto::{
    Bucket, BucketName, BucketSettings, CatalogReply, CatalogRequest, Error, LifecycleDay, RangeId,
    RangeReply, RangeRequest, Reply, Request, StorageRule, UserId,
};
use object_testing::{Network, Target};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Duration, Env, Instant};
use table::{Cache, Store};
use testing::tables::MemDisk;

/// Lease of an owner.
pub const LEASE: Duration = Duration::from_millis(800);
/// Bytes of a log, unless a test sets others.
const LOG_BYTES: u64 = 24 << 10;
/// Files of bodies, unless a test has others.
pub const PACKS: PackOptions =
    PackOptions { bytes: 4 << 20, idle: Duration::from_secs(1), own: 3 << 20 };
/// Wait for the answer to a question of an owner or the manager.
const LINK_ATTEMPT: Duration = Duration::from_secs(1);

pub struct World {
    pub sim: Sim,
    pub disk: MemDisk,
    pub network: Network,
    pub bugs: Bugs,
    pub room: Room,
    /// Of the next service ([`ServiceOptions::keeps`]).
    pub keeps: Cell<bool>,
    /// Of the next service ([`ServiceOptions::small_max`]).
    pub small_max: Cell<usize>,
    /// Of the next service ([`ServiceOptions::packs`]).
    pub packs: Cell<PackOptions>,
    /// Of the next owner ([`Config::trash_age`]).
    pub trash_age: Cell<Duration>,
    /// Of the next owner ([`Config::recount`]).
    pub recount: Cell<Duration>,
    /// Of the next owner ([`Config::log_least`], [`Config::log_bytes`]).
    pub log_bytes: Cell<(u64, u64)>,
    /// Of the next owner ([`Config::lifecycle_day`], [`Config::lifecycle_bytes_per_s`]).
    pub lifecycle: Cell<(LifecycleDay, u64)>,
    /// Owners hear nothing of the manager's clock.
    pub is_clock_silent: Cell<bool>,
    /// Of the first manager ([`Config::new_ranges`]).
    pub new_ranges: Cell<u32>,
    /// Epochs of owners, and when the last lease ends for sure, in the simulation's time.
    reigns: RefCell<BTreeMap<Unit, (u64, std::time::Duration)>>,
    pub owners: RefCell<Vec<Rc<Host>>>,
    /// See [`World::asked`].
    pub asked: Rc<RefCell<Vec<(String, StorageRule)>>>,
}

/// What one host owns at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unit {
    /// Catalog and ranges.
    All,
    /// The catalog.
    Manager,
    /// A range.
    Range(RangeId),
}

/// A host that owns, or owned, a unit.
pub struct Host {
    pub id: HostId,
    unit: Unit,
    env: Env,
    lease: Rc<TestLease>,
    rule: Ruled,
}

#[derive(Clone)]
enum Ruled {
    All(Rc<Rule>),
    Manager(Rc<ManagerRule>),
    Range(Rc<RangeRule>),
}

struct TestLease {
    env: Env,
    end: Cell<Instant>,
    /// The manager's wall clock as it was heard last, and when that was.
    manager_clock: Cell<Option<(u64, Instant)>>,
}

impl Lease for TestLease {
    fn is_valid(&self) -> bool {
        self.env.now() < self.end.get()
    }

    fn manager_us(&self) -> Option<u64> {
        let (heard_us, heard) = self.manager_clock.get()?;
        Some(heard_us + (self.env.now() - heard).as_micros() as u64)
    }
}

impl Ruled {
    async fn handle(self, request: Request) -> Result<Reply, Error> {
        match (self, request) {
            (Ruled::All(rule), request) => rule.handle(request).await,
            (Ruled::Manager(rule), Request::Catalog(request)) => {
                rule.handle(request).await.map(Reply::Catalog)
            }
            (Ruled::Range(rule), Request::Range(_, request)) => {
                rule.handle(request).await.map(Reply::Range)
            }
            (Ruled::Manager(_), _) | (Ruled::Range(_), _) => Err(Error::Reroute),
        }
    }

    async fn ended(&self) {
        match self {
            Ruled::All(rule) => rule.ended().await,
            Ruled::Manager(rule) => rule.ended().await,
            Ruled::Range(rule) => rule.ended().await,
        }
    }

    async fn tend(self, interval: Duration) {
        match self {
            Ruled::All(rule) => rule.tend(interval).await,
            Ruled::Manager(rule) => rule.tend(interval, interval).await,
            Ruled::Range(rule) => rule.collect(interval).await,
        }
    }

    /// Looks whether a core that was full has room again.
    async fn look_for_room(self, env: Env, room: Room) {
        loop {
            room.look_due(&env).await;
            match &self {
                Ruled::All(rule) => rule.all()[0].look_once().await,
                Ruled::Range(rule) => rule.look_once().await,
                Ruled::Manager(_) => {}
            }
        }
    }
}

impl Target for Host {
    fn env(&self) -> Env {
        self.env.clone()
    }

    fn handle(&self, request: Request) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        Box::pin(self.rule.clone().handle(request))
    }

    fn takes(&self, request: &Request) -> bool {
        match (self.unit, request) {
            (Unit::All, _) | (Unit::Manager, Request::Catalog(_)) => true,
            (Unit::Range(range), Request::Range(asked, _)) => range == *asked,
            _ => false,
        }
    }

    fn leads(&self, _: &Request) -> bool {
        self.lease.is_valid()
    }
}

/// The world as managers and owners reach each other.
struct Links {
    world: Rc<World>,
    owners: Rc<dyn Owners>,
}

impl Ranges for Links {
    fn epoch(&self, range: RangeId) -> Option<u64> {
        self.world.reigns.borrow().get(&Unit::Range(range)).map(|reign| reign.0)
    }

    fn order(
        &self,
        range: RangeId,
        request: RangeRequest,
    ) -> LocalBoxFuture<'_, Result<RangeReply, Error>> {
        Box::pin(async move {
            match self.owners.call(Request::Range(range, request), LINK_ATTEMPT).await? {
                Reply::Range(reply) => Ok(reply),
                _ => unreachable!("a range was asked"),
            }
        })
    }
}

impl Managers for Links {
    fn ask(&self, request: CatalogRequest) -> LocalBoxFuture<'_, Result<CatalogReply, Error>> {
        Box::pin(async move {
            match self.owners.call(Request::Catalog(request), LINK_ATTEMPT).await? {
                Reply::Catalog(reply) => Ok(reply),
                _ => unreachable!("the manager was asked"),
            }
        })
    }
}

/// Catalog and ranges under one epoch, in one process.
struct Rule {
    manager: Rc<ManagerRule>,
    ranges: Rc<Here>,
}

/// The ranges of this process, as its manager reaches them.
struct Here {
    epoch: u64,
    ranges: RefCell<BTreeMap<RangeId, Rc<RangeRule>>>,
}

impl Ranges for Here {
    fn epoch(&self, range: RangeId) -> Option<u64> {
        self.ranges.borrow().contains_key(&range).then_some(self.epoch)
    }

    fn order(
        &self,
        range: RangeId,
        request: RangeRequest,
    ) -> LocalBoxFuture<'_, Result<RangeReply, Error>> {
        let rule = self.ranges.borrow().get(&range).cloned();
        Box::pin(async move { rule.ok_or(Error::Reroute)?.handle(request).await })
    }
}

/// The manager of this process, as its ranges reach it.
struct ManagerHere(Weak<ManagerRule>);

impl Managers for ManagerHere {
    fn ask(&self, request: CatalogRequest) -> LocalBoxFuture<'_, Result<CatalogReply, Error>> {
        let rule = self.0.upgrade();
        Box::pin(async move { rule.ok_or(Error::Reroute)?.handle(request).await })
    }
}

impl Rule {
    /// Opens catalog and ranges under an epoch that is above those of all owners before.
    async fn open(
        env: &Env,
        files: &Rc<dyn Files>,
        config: &Config,
        (lease, epoch): Held,
        room: &Room,
    ) -> Result<Rc<Rule>, Error> {
        let (what, cache) = ((env, files, config), Cache::new(config.cache_bytes));
        let ranges = Rc::new(Here { epoch, ranges: RefCell::default() });
        let held = (lease.clone(), epoch);
        let manager = ManagerRule::open(what, held, (&cache, room), ranges.clone()).await?;
        let map = manager.map();
        let opening = map.places().iter().map(async |place| {
            let link = Rc::new(ManagerHere(Rc::downgrade(&manager)));
            let held = (lease.clone(), epoch);
            let pace = Pace::new(config.lifecycle_bytes_per_s);
            let common = (&cache, room, &pace);
            let rule = RangeRule::open(what, place.range, held, common, link).await?;
            Ok::<_, Error>((place.range, rule))
        });
        let opened = try_join_all(opening).await?;
        ranges.ranges.replace(opened.into_iter().collect());
        Ok(Rc::new(Rule { manager, ranges }))
    }

    fn all(&self) -> Vec<Rc<RangeRule>> {
        self.ranges.ranges.borrow().values().cloned().collect()
    }

    /// Answers a request.
    async fn handle(&self, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Range(range, request) => {
                let rule = self.ranges.ranges.borrow().get(&range).cloned();
                let rule = rule.ok_or_else(|| Error::Invalid {
                    message: format!("there is no range {range}"),
                })?;
                rule.handle(request).await.map(Reply::Range)
            }
            Request::Catalog(request) => self.manager.handle(request).await.map(Reply::Catalog),
            Request::Server(_) => Err(Error::Reroute),
        }
    }

    async fn tend(self: Rc<Self>, interval: Duration) {
        let all = self.all();
        let collecting = join_all(all.iter().map(|rule| rule.collect(interval)));
        join(self.manager.tend(interval, interval), collecting).await;
    }

    /// Ends when nothing is decided any more: another owner came, or an append has failed.
    async fn ended(&self) {
        let all = self.all();
        let ranges = select_all(all.iter().map(|rule| Box::pin(rule.ended())));
        select(ranges, Box::pin(self.manager.ended())).await;
    }
}

/// Directories in memory.
pub struct MemFiles {
    pub disk: MemDisk,
    pub env: Env,
    /// Directories that were asked for to make files for bodies there, in order.
    pub asked: Rc<RefCell<Vec<(String, StorageRule)>>>,
}

impl Files for MemFiles {
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        let store = self.disk.beside(path).store(&self.env);
        Box::pin(std::future::ready(Ok(store)))
    }

    fn dir_for<'a>(
        &'a self,
        path: &'a str,
        storage: StorageRule,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        self.asked.borrow_mut().push((path.to_owned(), storage));
        self.dir(path)
    }

    fn dirs<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(std::future::ready(Ok(self.disk.dirs_in(path))))
    }

    fn remove_dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<(), Fault>> {
        self.disk.remove_dir(path);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// All limits small, so that rare events happen often.
pub fn config(bugs: Bugs) -> Config {
    Config {
        table: table::Options {
            memtable_bytes: 32 << 10,
            block_bytes: 1 << 10,
            file_bytes: 64 << 10,
            manifest_bytes: 1 << 10,
            ..table::Options::default()
        },
        log_bytes: LOG_BYTES,
        log_least: LOG_BYTES,
        cache_bytes: 64 << 10,
        collect_interval: Duration::from_millis(700),
        pack_bytes: PACKS.bytes,
        orphans_interval: Duration::from_secs(5),
        upload_age: Duration::from_secs(25),
        upload_end_age: Duration::from_secs(10),
        bugs,
        ..Config::default()
    }
}

impl World {
    pub fn new(seed: u64, bugs: Bugs) -> Rc<World> {
        let sim = Sim::new(seed);
        let (disk, network) = (MemDisk::new(&sim), Network::new(&sim));
        Rc::new(World {
            sim,
            disk,
            network,
            bugs,
            room: Room::default(),
            keeps: Cell::new(false),
            small_max: Cell::new(600),
            packs: Cell::new(PACKS),
            trash_age: Cell::new(Duration::from_secs(2)),
            recount: Cell::new(RECOUNT),
            log_bytes: Cell::new((LOG_BYTES, LOG_BYTES)),
            lifecycle: Cell::new((LifecycleDay::default(), 10_000_000)),
            is_clock_silent: Cell::new(false),
            new_ranges: Cell::new(1),
            reigns: RefCell::default(),
            owners: RefCell::default(),
            asked: Rc::default(),
        })
    }

    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let done = self.sim.run(work).expect("it goes on");
        self.sim.close();
        done
    }

    pub fn host(&self, name: &str) -> (HostId, Env) {
        let host = self.sim.add_host(name);
        (host, self.sim.boot(host))
    }

    pub fn files(&self, env: &Env) -> Rc<dyn Files> {
        Rc::new(MemFiles { disk: self.disk.clone(), env: env.clone(), asked: self.asked.clone() })
    }

    pub fn service(&self, env: &Env) -> Service {
        let options = ServiceOptions {
            small_max: self.small_max.get(),
            packs: self.packs.get(),
            keeps: self.keeps.get(),
            bugs: self.bugs,
        };
        Service::new(env, self.network.owners(env), self.files(env), options)
    }

    /// Another host owns the objects, once the lease of the one before is over.
    pub async fn take_over(self: &Rc<Self>) -> Result<Rc<Host>, Error> {
        self.take_over_unit(Unit::All).await
    }

    /// Another host owns a unit, once the lease of the one before is over.
    pub async fn take_over_unit(self: &Rc<Self>, unit: Unit) -> Result<Rc<Host>, Error> {
        let (epoch, free_at) = self.reigns.borrow().get(&unit).copied().unwrap_or_default();
        self.sim.sleep(free_at.saturating_sub(self.sim.elapsed())).await;
        let (id, env) = self.host("owner");
        let (end, manager_clock) = (Cell::new(env.now() + LEASE), Cell::default());
        let lease = Rc::new(TestLease { env: env.clone(), end, manager_clock });
        self.say_clock(&lease);
        let epoch = epoch + 1;
        self.reigns.borrow_mut().insert(unit, (epoch, self.sim.elapsed() + LEASE));
        let (trash_age, (log_least, log_bytes)) = (self.trash_age.get(), self.log_bytes.get());
        let new_ranges = self.new_ranges.get();
        let (lifecycle_day, lifecycle_bytes_per_s) = self.lifecycle.get();
        let config = Config {
            trash_age,
            recount: self.recount.get(),
            log_least,
            log_bytes,
            new_ranges,
            lifecycle_day,
            lifecycle_bytes_per_s,
            ..config(self.bugs)
        };
        let renewing = renew(self.clone(), lease.clone(), (id, unit));
        let renewed = env.spawn(Class::Control, "renew", renewing);
        let opening = self.clone().open(env.clone(), config.clone(), unit, (lease.clone(), epoch));
        let rule = env.spawn(Class::Foreground, "open", opening).await;
        let rule = rule.map_err(|_| Error::Reroute)?.inspect_err(|_| renewed.abort())?;
        let tending = rule.clone().tend(config.collect_interval);
        env.spawn(Class::Background, "collect", tending);
        let looking = rule.clone().look_for_room(env.clone(), self.room.clone());
        env.spawn(Class::Background, "look for room", looking);
        let host = Rc::new(Host { id, unit, env, lease, rule });
        self.network.add(host.clone());
        self.owners.borrow_mut().push(host.clone());
        Ok(host)
    }

    async fn open(
        self: Rc<Self>,
        env: Env,
        config: Config,
        unit: Unit,
        held: Held,
    ) -> Result<Ruled, Error> {
        let files = self.files(&env);
        let what = (&env, &files, &config);
        let links = Rc::new(Links { world: self.clone(), owners: self.network.owners(&env) });
        let (cache, room) = (Cache::new(config.cache_bytes), self.room.clone());
        Ok(match unit {
            Unit::All => Ruled::All(Rule::open(&env, &files, &config, held, &room).await?),
            Unit::Manager => {
                Ruled::Manager(ManagerRule::open(what, held, (&cache, &room), links).await?)
            }
            Unit::Range(range) => {
                let pace = Pace::new(config.lifecycle_bytes_per_s);
                let common = (&cache, &room, &pace);
                Ruled::Range(RangeRule::open(what, range, held, common, links).await?)
            }
        })
    }

    /// An owner hears of the manager's clock with its lease.
    fn say_clock(&self, lease: &TestLease) {
        let owners = self.owners.borrow();
        let manager = owners.iter().rfind(|host| !matches!(host.unit, Unit::Range(_)));
        if let Some(manager) = manager.filter(|_| !self.is_clock_silent.get()) {
            let now_us = manager.env.unix_time().as_nanos() / 1000;
            lease.manager_clock.set(Some((now_us, lease.env.now())));
        }
    }

    /// The epoch of the present owner of a unit.
    pub fn epoch(&self, unit: Unit) -> u64 {
        self.reigns.borrow().get(&unit).map_or(0, |reign| reign.0)
    }

    /// Has another host own the objects whenever one has ended by itself.
    pub async fn replace_ended(self: Rc<Self>) {
        self.replace_ended_unit(Unit::All).await;
    }

    /// Has another host own a unit whenever one has ended by itself.
    pub async fn replace_ended_unit(self: Rc<Self>, unit: Unit) {
        loop {
            let last = self.owners.borrow().iter().rfind(|host| host.unit == unit).cloned();
            if let Some(host) = last {
                host.rule.ended().await;
                self.crash(&host);
            }
            self.sim.sleep(Duration::from_millis(500)).await;
            let _ = self.take_over_unit(unit).await; // On a full core it tries again.
        }
    }

    /// The owner's lease is renewed no more: it goes on as if it were the owner, until it is over.
    pub fn abandon(&self, host: &Host) {
        self.owners.borrow_mut().retain(|other| other.id != host.id);
    }

    pub fn crash(&self, host: &Host) {
        self.abandon(host);
        self.sim.crash(host.id, CrashMode::Process);
    }

    /// Crashes all owners.
    pub fn crash_all(&self) {
        let owners = self.owners.borrow().clone();
        owners.iter().for_each(|host| self.crash(host));
    }

    /// Directories of the ranges of a map that begins with so many.
    pub fn range_dirs(&self) -> Vec<String> {
        (1..=self.new_ranges.get()).map(|id| range_dir(RangeId::new(id.into()))).collect()
    }

    /// Names of the logs in a directory.
    pub fn logs_in(&self, dir: &str) -> Vec<String> {
        let mut names = self.disk.beside(dir).names();
        names.retain(|name| name.starts_with("log-"));
        names
    }

    /// True when a log has more than its head of 32 bytes.
    pub fn has_changes(&self, dir: &str, log: &str) -> bool {
        self.disk.beside(dir).content(log).is_some_and(|bytes| bytes.len() > 32)
    }

    /// Names of the first range's logs.
    pub fn logs(&self) -> Vec<String> {
        self.logs_in(&self.range_dirs()[0])
    }

    /// The names in the directories of the ranges that are of bodies.
    pub fn bodies(&self) -> Vec<String> {
        let dirs = self.range_dirs().into_iter();
        let mut names: Vec<_> = dirs.flat_map(|dir| self.disk.beside(&dir).names()).collect();
        names.retain(|name| name.starts_with("body-") || name.starts_with("kept-"));
        names.sort();
        names
    }

    /// Bytes of those.
    pub fn body_bytes(&self) -> u64 {
        let dirs = self.range_dirs().into_iter();
        let dirs = dirs.map(|dir| self.disk.beside(&dir));
        let of_dir = dirs.map(|dir| {
            let mut names = dir.names();
            names.retain(|name| name.starts_with("body-") || name.starts_with("kept-"));
            let len = |name: &String| dir.content(name).map_or(0, |bytes| bytes.len() as u64);
            names.iter().map(len).sum::<u64>()
        });
        of_dir.sum()
    }

    /// The files that are in directories of sessions.
    pub fn sent(&self) -> Vec<String> {
        let dirs = self.disk.dirs_in(SESSIONS_DIR).into_iter();
        let dirs = dirs.map(|name| format!("{SESSIONS_DIR}/{name}"));
        dirs.flat_map(|dir| self.disk.beside(&dir).names()).collect()
    }
}

/// Renews an owner's lease while it is among the world's owners.
async fn renew(world: Rc<World>, lease: Rc<TestLease>, (id, unit): (HostId, Unit)) {
    let mut known = false;
    loop {
        lease.env.sleep(LEASE / 4).await;
        let listed = world.owners.borrow().iter().any(|host| host.id == id);
        known |= listed;
        if known && !listed {
            return;
        }
        world.say_clock(&lease);
        // Its lease is over for all before it is by its own clock, which may be slow.
        lease.end.set(lease.env.now() + LEASE * 95 / 100);
        let free_at = world.sim.elapsed() + LEASE;
        world.reigns.borrow_mut().entry(unit).and_modify(|reign| reign.1 = free_at);
    }
}

pub fn me() -> UserId {
    UserId::new("me")
}

pub fn name(text: &str) -> BucketName {
    BucketName::new(text).expect("a name")
}

/// Makes a bucket, whatever it takes.
pub async fn bucket(service: &Service, text: &str) -> Bucket {
    let owner = UserId::new("load");
    object_testing::add_user(service, &owner).await;
    loop {
        match service.create_bucket(name(text), owner.clone(), BucketSettings::default()).await {
            Ok(bucket) => return bucket,
            Err(Error::BucketExists { own: true }) => {
                return service.bucket(name(text)).await.expect("it is there").bucket.clone();
            }
            Err(error) => {
                assert!(matches!(error, Error::Busy { .. } | Error::Unknown { .. }), "{error}");
            }
        }
    }
}
