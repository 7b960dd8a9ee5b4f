//! A world with the directories of the object service, and hosts that own it in turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::Fault;
use futures_util::future::LocalBoxFuture;
use object_index::{Bugs, Config, Files, Lease, Room, Rule, Service, ServiceOptions};
use object_proto::{Bucket, BucketName, Error, Reply, Request, UserId};
use object_testing::{Network, Target};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Duration, Env, Instant};
use table::Store;
use testing::tables::MemDisk;

/// Lease of an owner.
pub const LEASE: Duration = Duration::from_millis(800);
/// Bytes of a log, unless a test sets others.
const LOG_BYTES: u64 = 24 << 10;

pub struct World {
    pub sim: Sim,
    pub disk: MemDisk,
    pub network: Network,
    pub bugs: Bugs,
    pub room: Room,
    /// Of the next service ([`ServiceOptions::small_max`]).
    pub small_max: Cell<usize>,
    /// Of the next owner ([`Config::trash_age`]).
    pub trash_age: Cell<Duration>,
    /// Of the next owner ([`Config::log_least`], [`Config::log_bytes`]).
    pub log_bytes: Cell<(u64, u64)>,
    epoch: Cell<u64>,
    /// When the last lease ends for sure, in the simulation's time.
    free_at: Cell<std::time::Duration>,
    pub owners: RefCell<Vec<Rc<Host>>>,
}

/// A host that owns, or owned, the objects.
pub struct Host {
    pub id: HostId,
    env: Env,
    lease: Rc<TestLease>,
    rule: Rc<Rule>,
}

struct TestLease {
    env: Env,
    end: Cell<Instant>,
}

impl Lease for TestLease {
    fn is_valid(&self) -> bool {
        self.env.now() < self.end.get()
    }
}

impl Target for Host {
    fn env(&self) -> Env {
        self.env.clone()
    }

    fn handle(&self, request: Request) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        let rule = self.rule.clone();
        Box::pin(async move { rule.handle(request).await })
    }

    fn leads(&self) -> bool {
        self.lease.is_valid()
    }
}

/// Directories in memory.
pub struct MemFiles {
    pub disk: MemDisk,
    pub env: Env,
}

impl Files for MemFiles {
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        let store = self.disk.beside(path).store(&self.env);
        Box::pin(std::future::ready(Ok(store)))
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
            small_max: Cell::new(600),
            trash_age: Cell::new(Duration::from_secs(2)),
            log_bytes: Cell::new((LOG_BYTES, LOG_BYTES)),
            epoch: Cell::new(0),
            free_at: Cell::default(),
            owners: RefCell::default(),
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
        Rc::new(MemFiles { disk: self.disk.clone(), env: env.clone() })
    }

    pub fn service(&self, env: &Env) -> Service {
        let options = ServiceOptions { small_max: self.small_max.get(), bugs: self.bugs };
        Service::new(env, self.network.owners(env), self.files(env), options)
    }

    /// Another host owns the objects, once the lease of the one before is over.
    pub async fn take_over(self: &Rc<Self>) -> Result<Rc<Host>, Error> {
        let now = self.sim.elapsed();
        self.sim.sleep(self.free_at.get().saturating_sub(now)).await;
        let (id, env) = self.host("owner");
        let lease = Rc::new(TestLease { env: env.clone(), end: Cell::new(env.now() + LEASE) });
        self.free_at.set(self.sim.elapsed() + LEASE);
        let epoch = self.epoch.get() + 1;
        self.epoch.set(epoch);
        let (trash_age, (log_least, log_bytes)) = (self.trash_age.get(), self.log_bytes.get());
        let config = Config { trash_age, log_least, log_bytes, ..config(self.bugs) };
        let (files, room) = (self.files(&env), self.room.clone());
        let renewed = env.spawn(Class::Control, "renew", renew(self.clone(), lease.clone(), id));
        let held: Rc<dyn Lease> = lease.clone();
        let opening = {
            let (env, config) = (env.clone(), config.clone());
            async move { Rule::open(&env, &*files, &config, (held, epoch), &room).await }
        };
        let rule = env.spawn(Class::Foreground, "open", opening).await;
        let rule = rule.map_err(|_| Error::Reroute)?.inspect_err(|_| renewed.abort())?;
        env.spawn(Class::Background, "collect", rule.clone().tend(config.collect_interval));
        let host = Rc::new(Host { id, env, lease, rule });
        self.network.add(host.clone());
        self.owners.borrow_mut().push(host.clone());
        Ok(host)
    }

    /// Has another host own the objects whenever one has ended by itself.
    pub async fn replace_ended(self: Rc<Self>) {
        loop {
            let last = self.owners.borrow().last().cloned();
            if let Some(host) = last {
                host.rule.ended().await;
                self.crash(&host);
            }
            self.sim.sleep(Duration::from_millis(500)).await;
            let _ = self.take_over().await; // On a full core it tries again.
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

    /// Names of the range's logs.
    pub fn logs(&self) -> Vec<String> {
        let mut names = self.disk.beside(object_index::RANGE_DIR).names();
        names.retain(|name| name.starts_with("log-"));
        names
    }

    /// The names in the directory of the range that are of bodies.
    pub fn bodies(&self) -> Vec<String> {
        let mut names = self.disk.beside(object_index::RANGE_DIR).names();
        names.retain(|name| name.starts_with("body-"));
        names
    }
}

/// Renews an owner's lease while it is among the world's owners.
async fn renew(world: Rc<World>, lease: Rc<TestLease>, id: HostId) {
    let mut known = false;
    loop {
        lease.env.sleep(LEASE / 4).await;
        let listed = world.owners.borrow().iter().any(|host| host.id == id);
        known |= listed;
        if known && !listed {
            return;
        }
        // Its lease is over for all before it is by its own clock, which may be slow.
        lease.end.set(lease.env.now() + LEASE * 95 / 100);
        world.free_at.set(world.sim.elapsed() + LEASE);
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
    loop {
        match service.create_bucket(name(text), UserId::new("load")).await {
            Ok(bucket) => return bucket,
            Err(Error::BucketExists { own: true }) => {
                return service.bucket(name(text)).await.expect("it is there");
            }
            Err(error) => {
                assert!(matches!(error, Error::Busy { .. } | Error::Unknown { .. }), "{error}");
            }
        }
    }
}
