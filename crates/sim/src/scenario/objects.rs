//! The object service on a cluster: managers and object servers as processes start them, gateways beside them,
//! a network between that loses, delays and doubles, while all of them and the core's processes crash. Keys are
//! linearizable, each object has its bytes, and in the end the range's directory holds the files of
//! objects and no others (`object-protocols.md` 14).

mod operator;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::Fault;
use client::Client;
use futures_util::future::LocalBoxFuture;
use object_index::limits::RANGES;
use object_index::{
    Config, Files, Local, ObjectServer, Owners, PackOptions, RANGES_DIR, RemoteOwners,
    SESSIONS_DIR, Service, ServiceOptions, dirs_of, range_dir, remove_dir_of,
};
use object_proto::limits::{INLINE_MAX, SMALL_MAX};
use object_proto::{
    Bucket, BucketName, BucketSettings, Error, RangeId, Reply, Request, ServiceStatus, StorageRule,
    UserId,
};
use object_testing::{Fate, Network, Target};
use roles::object::{ManagerRole, ServerRole};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env, Rng};
use table::{ClientStore, Store};

use super::object_clients::{Clients, DAY, Kind, TRASH};
use super::policy;
use crate::cluster::{Cluster, Shape, parse};
use crate::nemesis::{Cut, Faults, Nemesis, Way, keep_cutting};
use crate::planted::{files_of, object_bugs, object_table_bugs};
use crate::tuning::Tuning;

const MANAGERS: usize = 2;
const SERVERS: usize = 2;
/// Processes of the service: managers, then servers.
const PROCESSES: usize = MANAGERS + SERVERS;
const GATEWAYS: usize = 2;
const CLIENTS: usize = 2;
const PORT: u16 = 7601;
/// Files of bodies.
const PACKS: PackOptions =
    PackOptions { bytes: 4 << 20, idle: Duration::from_secs(3), own: 3 << 20 };
/// The same where they are to be collected often.
const SMALL_PACKS: PackOptions =
    PackOptions { bytes: 100_000, idle: Duration::from_secs(1), own: 1 << 20 };
/// Between two looks at who believes to own a range.
const LOOK: Duration = Duration::from_millis(5);
/// Operations to be answered in a run, at least: an object server may be cut off for most of it.
const DONE_MIN: u64 = 8;
/// Behind the last request: sessions run out and are swept, and the trash is emptied.
const SWEPT: Duration = Duration::from_secs(80);
/// The same where clocks of owners were ahead by [`CLOCK_MS`] at most: commits have later times for as long.
const SWEPT_AHEAD: Duration = Duration::from_secs(150);
/// Requests a second of a range that is split for its load, and for how long it has them.
const HOT: (u64, Duration) = (10, Duration::from_millis(500));
/// Numbers that ranges get in splits, at most, of those whose leases are looked at.
const SPLIT_IDS: u32 = 60;
/// After all processes have started again, until ranges are served, and for the read of an object then.
const SERVED: Duration = Duration::from_secs(20);
const READ_BACK: Duration = Duration::from_secs(2);
/// Milliseconds that a wall clock is set wrong by, at most: more than a minute, from which on no lock ends.
const CLOCK_MS: u64 = 65_000;
/// Pause between wrong clocks of managers and of servers: longer than a lease, and three times as long where no server
/// owns a range.
const CLOCKS_RIGHT: Duration = Duration::from_secs(4);
/// Of passes of lifecycle: 16 rows take half a second or more, and owners change in the midst of a pass.
const LIFECYCLE_BYTES_PER_S: u64 = 6_000;
/// Retentions of a run have ended behind its last request.
const RETENTIONS: Duration = Duration::from_secs(10);

/// What a run has.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) faults: Faults,
    pub(super) fate: Fate,
    pub(super) kind: Kind,
    pub(super) load: Duration,
    /// Ranges are split.
    pub(super) splits: bool,
}

/// The service of a cluster.
struct World {
    kind: Kind,
    /// Ranges are split, also for their load.
    splits: bool,
    cluster: Cluster,
    network: Network,
    processes: Vec<HostId>,
    servers: RefCell<Vec<(Env, ObjectServer)>>,
    stop: Cell<bool>,
    violation: RefCell<Option<String>>,
}

/// A process that may lead.
struct Manager {
    env: Env,
    role: ManagerRole,
}

impl Target for Manager {
    fn env(&self) -> Env {
        self.env.clone()
    }

    fn handle(&self, request: Request) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        let local = Local { manager: Some(self.role.manager().clone()), server: None };
        Box::pin(async move { local.handle(request).await })
    }

    fn takes(&self, request: &Request) -> bool {
        matches!(request, Request::Catalog(_))
    }

    fn leads(&self, _: &Request) -> bool {
        self.role.manager().leads()
    }
}

/// A process that may own ranges.
struct Server {
    env: Env,
    role: ServerRole,
}

impl Target for Server {
    fn env(&self) -> Env {
        self.env.clone()
    }

    fn handle(&self, request: Request) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        let local = Local { manager: None, server: Some(self.role.server().clone()) };
        Box::pin(async move { local.handle(request).await })
    }

    fn takes(&self, request: &Request) -> bool {
        matches!(request, Request::Range(..))
    }

    fn leads(&self, request: &Request) -> bool {
        matches!(request, Request::Range(range, _) if self.role.server().serves(*range))
    }
}

/// Directories as scenarios open them.
struct SeamedFiles(Client);

impl Files for SeamedFiles {
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        Box::pin(async move {
            let store = ClientStore::new(&self.0, path, policy::drawn()).await;
            let store = store.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
            Ok(files_of(store))
        })
    }

    fn dir_for<'a>(
        &'a self,
        path: &'a str,
        storage: StorageRule,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        Box::pin(async move {
            if storage == StorageRule::default() {
                return self.dir(path).await;
            }
            let policy = storage.policy(policy::drawn().uncompressed());
            let store = ClientStore::new(&self.0, path, policy).await;
            let store = store.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
            Ok(files_of(store))
        })
    }

    fn dirs<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(dirs_of(&self.0, path))
    }

    fn remove_dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<(), Fault>> {
        Box::pin(remove_dir_of(&self.0, path))
    }
}

/// Small parts, so that flushes, merges and passes of collection happen within seconds.
fn tune(config: &mut Config) {
    config.table = table::Options {
        memtable_bytes: 32 << 10,
        block_bytes: 2 << 10,
        file_bytes: 64 << 10,
        manifest_bytes: 1 << 10,
        bugs: object_table_bugs(),
        ..table::Options::default()
    };
    config.log_bytes = 64 << 10;
    config.cache_bytes = 64 << 10;
    config.trash_age = TRASH;
    config.recount = Duration::from_secs(10);
    config.pack_bytes = PACKS.bytes;
    config.orphans_interval = Duration::from_secs(5);
    config.upload_age = Duration::from_secs(20);
    config.upload_end_age = Duration::from_secs(10);
    config.collect_interval = Duration::from_secs(1);
    config.lifecycle_day = DAY;
    config.lifecycle_bytes_per_s = LIFECYCLE_BYTES_PER_S;
    config.bugs = object_bugs();
}

/// Small files that are collected all the time, by counts that are wrong at times.
fn tune_to_collect(config: &mut Config) {
    tune(config);
    config.pack_bytes = SMALL_PACKS.bytes;
    // An operator's checks set right what is made wrong.
    config.recount = Config::default().recount;
    config.collect_interval = Duration::from_millis(300);
    config.bugs = config.bugs.with_wrong_counts();
}

impl Kind {
    fn tune(self) -> fn(&mut Config) {
        if self == Kind::Collect { tune_to_collect } else { tune }
    }
}

impl World {
    fn sim(&self) -> &Sim {
        self.cluster.sim()
    }

    fn draw(&self, least: u64, most: u64) -> u64 {
        self.sim().with_rng(|rng| rng.between(least, most))
    }

    /// Starts a process; nothing when it runs.
    fn boot(self: &Rc<Self>, index: usize) {
        let host = self.processes[index];
        if self.sim().env(host).is_some() {
            return;
        }
        let (env, world) = (self.sim().boot(host), self.clone());
        env.clone().spawn(Class::Control, "boot", async move {
            let started = match index.checked_sub(MANAGERS) {
                None => world.start_manager(&env, host, index).await,
                Some(server) => world.start_server(&env, host, server).await,
            };
            match started {
                Ok(target) => world.network.add(target),
                Err(_) if env.is_closed() => {}
                Err(error) => world.violated(format!("process {index} did not start: {error}")),
            }
        });
    }

    fn config_text(&self, name: &str, host: HostId) -> String {
        let masters = self.cluster.masters_text();
        self.cluster.config_text(name, &masters)
            + &format!("listen = '{}'\n", self.sim().addr(host, PORT))
    }

    async fn start_manager(
        &self,
        env: &Env,
        host: HostId,
        index: usize,
    ) -> Result<Rc<dyn Target>, String> {
        let text = self.config_text(&format!("om{}", index + 1), host) + "lock_ms = 800\n";
        let seams = self.cluster.seams();
        let role =
            roles::object::start_manager_with(env, &parse(&text), &seams, self.kind.tune()).await;
        let role = role.map_err(|error| error.to_string())?;
        Ok(Rc::new(Manager { env: env.clone(), role }))
    }

    async fn start_server(
        &self,
        env: &Env,
        host: HostId,
        index: usize,
    ) -> Result<Rc<dyn Target>, String> {
        let text = self.config_text(&format!("os{}", index + 1), host);
        let seams = self.cluster.seams();
        let tune = |config: &mut Config| {
            self.kind.tune()(config);
            if self.splits {
                (config.range_requests, config.range_hot) = HOT;
            }
        };
        let role = roles::object::start_server_with(env, &parse(&text), None, &seams, tune).await;
        let role = role.map_err(|error| error.to_string())?;
        let servers = &mut *self.servers.borrow_mut();
        servers.retain(|(env, _)| !env.is_closed());
        servers.push((env.clone(), role.server().clone()));
        Ok(Rc::new(Server { env: env.clone(), role }))
    }

    fn violated(&self, what: String) {
        self.violation.borrow_mut().get_or_insert(what);
    }

    fn is_over(&self) -> bool {
        self.stop.get() || self.violation.borrow().is_some()
    }

    /// A service on a host of a gateway's.
    fn service(&self, client: &Client, kind: Kind) -> Service {
        let env = client.env();
        let files = Rc::new(SeamedFiles(client.clone()));
        let in_files = matches!(kind, Kind::Collect | Kind::Gateways);
        let small_max = match in_files {
            true => INLINE_MAX,
            false => self.sim().with_rng(|rng| *rng.pick(&[INLINE_MAX, 10_000, SMALL_MAX])),
        };
        let packs = if kind == Kind::Collect { SMALL_PACKS } else { PACKS };
        let keeps = kind == Kind::Keys;
        let bugs = object_bugs();
        let options = ServiceOptions { small_max, packs, keeps, bugs };
        // Some ask as real gateways do, over the cluster's network and its faults.
        let owners: Rc<dyn Owners> = match self.draw(0, 2) {
            0 => {
                self.sim().mark("objects: a gateway asks over the network");
                RemoteOwners::new(client)
            }
            _ => self.network.owners(env),
        };
        Service::new(env, owners, files, options)
    }

    /// Managers and servers crash, lose power or stand still, and come back.
    async fn shake(self: Rc<Self>) {
        while !self.is_over() {
            self.sim().sleep(Duration::from_millis(self.draw(500, 4000))).await;
            let index = self.draw(0, PROCESSES as u64 - 1) as usize;
            let host = self.processes[index];
            if self.is_over() || self.sim().env(host).is_none() {
                continue;
            }
            let harm = self.draw(0, 4);
            if harm == 1 {
                self.sim().mark(match index < MANAGERS {
                    true => "objects: what is sent to a manager is lost",
                    false => "objects: what is sent to an owner is lost",
                });
                self.sim().set_grey(host, true);
                self.sim().sleep(Duration::from_millis(self.draw(300, 4000))).await;
                self.sim().set_grey(host, false);
                continue;
            }
            if harm == 0 {
                self.sim().mark(match index < MANAGERS {
                    true => "objects: a manager stands still",
                    false => "objects: an owner stands still",
                });
                self.sim().pause(host, Duration::from_millis(self.draw(300, 2500)));
                continue;
            }
            self.sim().mark(match index < MANAGERS {
                true => "objects: a manager crashes",
                false => "objects: an owner crashes",
            });
            let power = self.draw(0, 2) == 0;
            self.sim().crash(host, if power { CrashMode::Power } else { CrashMode::Process });
            self.sim().sleep(Duration::from_millis(self.draw(50, 1500))).await;
            self.boot(index);
        }
        (0..PROCESSES).for_each(|index| self.boot(index));
    }

    /// All lose power at once, gateways with open files of bodies too, and start again. What was acknowledged is
    /// read as soon as ranges are served: sessions of the gateways that are gone stay for longer.
    async fn outage(self: &Rc<Self>, load: &Clients) -> Result<(), String> {
        let (cluster, sim) = (&self.cluster, self.sim().clone());
        sim.mark("objects: all lose power at once");
        (0..cluster.masters().len()).for_each(|at| cluster.crash_master(at, CrashMode::Power));
        (0..cluster.servers().len()).for_each(|at| cluster.crash_server(at, CrashMode::Power));
        let hosts = cluster.client_hosts().into_iter().filter(|&host| sim.env(host).is_some());
        hosts.for_each(|host| sim.crash(host, CrashMode::Power));
        sim.sleep(Duration::from_millis(self.draw(10, 1000))).await;
        cluster.boot_all();
        cluster.settle(Duration::from_secs(120)).await.map_err(|e| format!("all start: {e}"))?;
        (0..PROCESSES).for_each(|index| self.boot(index));
        let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let (service, load) = (self.service(&client, self.kind), load.clone());
        let reading = async move {
            let end = sim.elapsed() + SERVED;
            let all = |status: ServiceStatus| status.ranges.iter().all(|range| range.served);
            while !service.status().await.is_ok_and(all) {
                if sim.elapsed() > end {
                    return Err("ranges are not served after all have started again".to_owned());
                }
                sim.sleep(Duration::from_millis(50)).await;
            }
            load.read_back(&service, READ_BACK).await
        };
        let read = client.env().spawn(Class::Foreground, "read back", reading).await;
        read.map_err(|_| "the host went down".to_owned())?
    }

    /// Sets the wall clocks of managers and of servers in turn: those of the others are right, so that the lower one
    /// of two is never ahead. No lease with a wrong clock is left when the others' turn comes.
    async fn set_clocks(self: Rc<Self>) {
        let (managers, servers) = self.processes.split_at(MANAGERS);
        let mut turn = self.draw(0, 1);
        while !self.is_over() {
            let (hosts, mark) = match turn % 2 {
                0 => (managers, "objects: a manager's clock is set"),
                _ => (servers, "objects: an owner's clock is set"),
            };
            let end = self.sim().elapsed() + Duration::from_millis(self.draw(3000, 8000));
            while !self.is_over() && self.sim().elapsed() < end {
                self.sim().sleep(Duration::from_millis(self.draw(200, 1500))).await;
                let off = match self.draw(0, 3) {
                    0 => 0,
                    1 => self.draw(60_000, CLOCK_MS),
                    _ => self.draw(0, 59_000),
                };
                let skew = if self.draw(0, 1) == 0 { off as i64 } else { -(off as i64) };
                let host = hosts[self.draw(0, hosts.len() as u64 - 1) as usize];
                self.sim().set_wall_skew(host, skew);
                self.sim().mark(mark);
            }
            hosts.iter().for_each(|&host| self.sim().set_wall_skew(host, 0));
            self.sleep(CLOCKS_RIGHT).await;
            turn += 1;
        }
    }

    /// Looks whether two servers believe at one time that they may answer for a range.
    async fn judge(self: Rc<Self>) {
        while !self.is_over() {
            for range in (1..=RANGES + SPLIT_IDS).map(|id| RangeId::new(id.into())) {
                let servers = self.servers.borrow();
                let alive = servers.iter().filter(|(env, _)| !env.is_closed());
                if alive.filter(|(_, server)| server.believes(range)).count() > 1 {
                    self.violated(format!("two servers believe to own {range}"));
                }
            }
            self.sim().sleep(LOOK).await;
        }
    }

    /// Sleeps, until the run is over at most.
    async fn sleep(&self, time: Duration) {
        let end = self.sim().elapsed() + time;
        while !self.is_over() && self.sim().elapsed() < end {
            self.sim().sleep(Duration::from_millis(50)).await;
        }
    }

    /// A cut between an object server and managers, which gateways may reach both.
    fn draw_cut(&self) -> Option<Cut> {
        let (managers, servers) = self.processes.split_at(MANAGERS);
        let server = [servers[self.draw(0, SERVERS as u64 - 1) as usize]];
        let manager = [managers[self.draw(0, MANAGERS as u64 - 1) as usize]];
        Some(match self.draw(0, 4) {
            0 | 1 => Cut::new("cut: an object server from managers", Way::Both, &server, managers),
            2 => Cut::new(
                "cut: heartbeats of object servers are lost",
                Way::There,
                &server,
                managers,
            ),
            3 => Cut::new("cut: answers to object servers are lost", Way::Back, &server, managers),
            _ => Cut::new("cut: a manager from object servers", Way::Both, &manager, servers),
        })
    }

    /// A gateway that dies now and then, with its clients.
    async fn gateway(self: Rc<Self>, load: Clients, kind: Kind) {
        let mut host = None;
        while !self.is_over() && load.violation().is_none() {
            let Ok((at, client)) = self.cluster.client(host).await else {
                self.sim().sleep(Duration::from_millis(200)).await;
                continue;
            };
            host = Some(at);
            let (service, env) = (self.service(&client, kind), client.env().clone());
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let rng = self.sim().with_rng(Rng::fork);
                    let client = load.clone().client(service.clone(), rng);
                    env.spawn(Class::Foreground, "object client", client)
                })
                .collect();
            // What a client of days makes is due seconds later, and only that client knows of it.
            let life_ms = if kind == Kind::Days { (8000, 30_000) } else { (3000, 16_000) };
            let end = self.sim().elapsed() + Duration::from_millis(self.draw(life_ms.0, life_ms.1));
            if kind == Kind::Keys {
                self.sim().sleep(Duration::from_millis(self.draw(200, 2000))).await;
                self.sim().mark("objects: a gateway is cut off from managers");
                let time = Duration::from_millis(self.draw(500, 4000));
                self.network.cut_from_manager(&env, time);
            } else if kind == Kind::Gateways && self.draw(0, 1) == 0 {
                // In the middle of bodies; its session is closed, or nearly.
                self.sim().sleep(Duration::from_millis(self.draw(1000, 4000))).await;
                self.sim().mark("objects: a gateway sleeps past its session");
                let time = Duration::from_millis(self.draw(50_000, 75_000));
                self.sim().pause(at, time);
                self.sleep(time + Duration::from_millis(self.draw(0, 5000))).await;
            } else if self.draw(0, 3) == 0 {
                self.sim().sleep(Duration::from_millis(500)).await;
                self.sim().mark("objects: a gateway is held up");
                self.network.hold(&env, Duration::from_millis(self.draw(2000, 12_000)));
            }
            while !self.is_over() && self.sim().elapsed() < end {
                self.sim().sleep(Duration::from_millis(50)).await;
            }
            if self.is_over() {
                while clients.iter().any(|client| !client.is_finished()) {
                    self.sim().sleep(Duration::from_millis(50)).await;
                }
                return;
            }
            self.sim().mark("objects: a gateway crashes");
            self.sim().crash(at, CrashMode::Process);
        }
    }

    /// Makes the bucket of the load.
    async fn bucket(&self, client: &Client) -> Result<Bucket, String> {
        let service = self.service(client, Kind::All);
        let (env, end) = (client.env().clone(), self.sim().elapsed() + Duration::from_secs(60));
        let sim = self.sim().clone();
        let making = async move {
            let name = BucketName::new("objects").expect("a name");
            let owner = UserId::new("load");
            object_testing::add_user(&service, &owner).await;
            loop {
                let storage = policy::drawn_storage();
                let settings = BucketSettings { storage, ..BucketSettings::default() };
                let made = service.create_bucket(name.clone(), owner.clone(), settings).await;
                let error = match made {
                    Ok(bucket) => return Ok(bucket),
                    Err(Error::BucketExists { own: true }) => {
                        let found = service.bucket(name).await;
                        return found
                            .map(|view| view.bucket.clone())
                            .map_err(|error| error.to_string());
                    }
                    Err(error) => error,
                };
                if sim.elapsed() > end {
                    return Err(format!("no bucket is made in a minute: {error}"));
                }
            }
        };
        let made = env.spawn(Class::Foreground, "bucket", making).await;
        made.map_err(|_| "the host went down".to_owned())?
    }
}

/// Names of the files in a range's directory that begin with `kind`.
async fn names(client: &Client, range: RangeId, kind: &str) -> Result<BTreeSet<String>, String> {
    let entries = client.list_all(&range_dir(range)).await.map_err(|error| error.to_string())?;
    let names = entries.into_iter().map(|entry| entry.name);
    Ok(names.filter(|name| name.starts_with(kind)).collect())
}

/// Length of a file.
async fn len_of(client: &Client, path: &str) -> Result<u64, String> {
    let file = client.open(path).await.map_err(|error| error.to_string())?;
    file.len().await.map_err(|error| error.to_string())
}

/// Logs with changes that no object may be in: the one that is written, the next one, the one that is flushed.
const LOGS_UNNAMED_MAX: usize = 3;
/// Bytes of a log without changes: one whose making or removal had no answer goes with the next opening.
const LOG_HEAD: u64 = 32;

/// Without faults: all is answered for, and nothing is left behind.
async fn settle(world: &Rc<World>, load: &Clients, locks: bool) -> Result<(), String> {
    let (_, client) = world.cluster.client(None).await.map_err(|error| error.to_string())?;
    let (service, load, env) =
        (world.service(&client, Kind::All), load.clone(), client.env().clone());
    let settling = async move {
        load.settle(&service).await?;
        if locks {
            service.env().sleep(RETENTIONS).await;
            load.unlock(&service).await?;
        }
        service.env().sleep(if locks { SWEPT_AHEAD } else { SWEPT }).await;
        let (files, named) = load.files(&service).await?;
        let map = service.map().await.map_err(|error| error.to_string())?;
        let of_load: BTreeSet<RangeId> = map.of_bucket(load.bucket()).collect();
        let mut all_there = BTreeSet::new();
        for place in map.places() {
            let mut there = names(&client, place.range, "body-").await?;
            there.extend(names(&client, place.range, "kept-").await?);
            let stored = service.stored(place.range).await.map_err(|error| error.to_string())?;
            let mut bytes = 0;
            for name in &there {
                bytes += len_of(&client, &format!("{}/{name}", range_dir(place.range))).await?;
            }
            if stored.written > 0 || stored.live + stored.garbage + stored.trash != bytes {
                let known = format!("their owner knows {stored:?}");
                return Err(format!("files of {} have {bytes} bytes, and {known}", place.range));
            }
            all_there.extend(there);
            let is_of_load = of_load.contains(&place.range);
            let mut logs = names(&client, place.range, "log-").await?;
            logs.retain(|log| !(is_of_load && named.contains(log)));
            let mut changes = Vec::new();
            for log in logs {
                if len_of(&client, &format!("{}/{log}", range_dir(place.range))).await? > LOG_HEAD {
                    changes.push(log);
                }
            }
            if changes.len() > LOGS_UNNAMED_MAX {
                return Err(format!("no object is in the logs {changes:?} of {}", place.range));
            }
        }
        for session in dirs_of(&client, SESSIONS_DIR).await.map_err(|error| error.to_string())? {
            let sent = dirs_of(&client, &format!("{SESSIONS_DIR}/{session}")).await;
            let sent = sent.map_err(|error| error.to_string())?;
            if !sent.is_empty() {
                return Err(format!("session {session} has left the files {sent:?}"));
            }
        }
        // Halves of a range share files.
        if all_there != files {
            return Err(format!("objects have the files {files:?}, and there are {all_there:?}"));
        }
        let dirs = client.list_all(RANGES_DIR).await.map_err(|error| error.to_string())?;
        let mut dirs: Vec<String> = dirs.into_iter().map(|entry| entry.name).collect();
        let mut ranges: Vec<_> = map.places().iter().map(|it| it.range.get().to_string()).collect();
        dirs.sort_unstable();
        ranges.sort_unstable();
        if dirs != ranges {
            return Err(format!("there are the ranges {ranges:?}, and the directories {dirs:?}"));
        }
        Ok(())
    };
    let settled = env.spawn(Class::Foreground, "settle", settling).await;
    settled.map_err(|_| "the host went down".to_owned())?
}

pub(super) async fn run(sim: Sim, plan: Plan) -> Result<(), String> {
    let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let processes: Vec<_> = (1..=PROCESSES).map(|at| sim.add_host(&format!("ob{at}"))).collect();
    processes.iter().for_each(|&host| cluster.add_client_host(host));
    let world = Rc::new(World {
        kind: plan.kind,
        splits: plan.splits,
        cluster: cluster.clone(),
        network: Network::new(&sim),
        processes,
        servers: RefCell::default(),
        stop: Cell::new(false),
        violation: RefCell::default(),
    });
    (0..PROCESSES).for_each(|index| world.boot(index));
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let bucket = world.bucket(&client).await?;
    let locks = plan.kind == Kind::Versions && world.draw(0, 2) > 0;
    let sets_clocks = locks || plan.kind == Kind::Days && world.draw(0, 1) == 0;
    let needs_clock = locks || plan.kind == Kind::Days;
    let clock_us = needs_clock.then(|| client.env().unix_time().as_nanos() / 1000);
    let load = Clients::new(&sim, bucket, plan.kind, clock_us);
    let preparing = {
        let (load, service) = (load.clone(), world.service(&client, Kind::All));
        async move { load.prepare(&service).await }
    };
    if matches!(plan.kind, Kind::Keys | Kind::Days) {
        let prepared = client.env().spawn(Class::Foreground, "prepare", preparing).await;
        prepared.map_err(|_| "the host went down".to_owned())?;
    }
    let nemesis = Nemesis::start(&cluster, plan.faults);
    world.network.set_fate(plan.fate);
    let shaking = sim.spawn("shake", world.clone().shake());
    sim.spawn("judge", world.clone().judge());
    let (cutting, drawing) = (world.clone(), world.clone());
    let cutting = keep_cutting(sim.clone(), move || cutting.is_over(), move || drawing.draw_cut());
    let cutting = sim.spawn("cuts", cutting);
    let operator = world.service(&client, Kind::All);
    let operating = sim.spawn("operator", world.clone().operate(operator, load.bucket()));
    let splitter = world.service(&client, Kind::All);
    let splitting =
        plan.splits.then(|| sim.spawn("splits", world.clone().split(splitter, load.bucket())));
    let setting = sets_clocks.then(|| sim.spawn("clocks", world.clone().set_clocks()));
    let gateways: Vec<_> = (0..GATEWAYS)
        .map(|_| sim.spawn("gateway", world.clone().gateway(load.clone(), plan.kind)))
        .collect();
    let end = sim.elapsed() + plan.load;
    while sim.elapsed() < end && !world.is_over() && load.violation().is_none() {
        sim.sleep(Duration::from_millis(100)).await;
    }
    nemesis.stop().await;
    world.network.set_fate(Fate::NONE);
    world.stop.set(true);
    load.stop();
    let deadline = sim.elapsed() + Duration::from_secs(120);
    while !shaking.is_finished()
        || !cutting.is_finished()
        || !operating.is_finished()
        || splitting.as_ref().is_some_and(|splitting| !splitting.is_finished())
        || setting.as_ref().is_some_and(|setting| !setting.is_finished())
        || gateways.iter().any(|gateway| !gateway.is_finished())
    {
        if sim.elapsed() > deadline {
            return Err("a client does not end in two minutes without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    if let Some(violation) = world.violation.take() {
        return Err(violation);
    }
    let corrected = sim.marks().contains_key("object: a check has set a count right");
    if corrected && plan.kind != Kind::Collect {
        return Err("a count of what lives in a file was wrong".to_owned());
    }
    if plan.kind == Kind::Gateways {
        world.outage(&load).await?;
    }
    settle(&world, &load, sets_clocks).await?;
    load.check()?;
    if load.done() < DONE_MIN {
        return Err(format!("only {} operations in {:?}", load.done(), plan.load));
    }
    cluster.settle(Duration::from_secs(120)).await?;
    if let Some(violation) = cluster.violations().first() {
        return Err(violation.clone());
    }
    sim.note(load.done());
    Ok(())
}
