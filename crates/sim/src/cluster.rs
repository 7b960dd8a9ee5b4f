//! A simulated cluster: the real masters, chunkservers and clients on simulated hosts.

pub mod harm;
mod leaving;
mod settle;
mod shape;
mod twin;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{ClusterId, DiskId, Kind};
use block_manager::FirstEpochs;
use chunkserver::Chunkserver;
use chunkstore::ChunkStore;
use chunkstore::flash::{self, FlashStore, FormatOptions, SyncMode};
use client::Client;
use master::{FirstNumbers, Master};
use roles::chunkserver::{Role, Start};
use roles::config::{self, Config};
use roles::seams::{Seams, Stores};
use roles::stores::{self, Unopened, UnopenedState};
use runtime::sim::{CrashMode, DiskFaults, HostId, Sim};
use runtime::{Class, Env};
use transport::{ClusterKey, Endpoint, Identity, Limits};
use wire::control::{ClusterRequest, Group, MasterInfo, MemberChange};

use self::harm::Harms;
pub use self::shape::Shape;
use crate::numbers::{first_epochs, first_numbers};
use crate::planted::{Store, exports_of, peers_of, share_of, times_halving, times_of};
use crate::tuning::Tuning;

const MASTER_PORT: u16 = 7001;
const SERVER_PORT: u16 = 7101;
/// Directory of a master's logs.
pub const MASTER_DIR: &str = "/master";
/// Directory of a chunkserver's disks.
pub const DISK_ROOT: &str = "/disks";

struct ClusterInner {
    sim: Sim,
    shape: Shape,
    tuning: Tuning,
    /// Shards of each chunkserver, which share its disks out among them.
    shards: usize,
    cluster: ClusterId,
    key: ClusterKey,
    masters: Vec<HostId>,
    /// Indexes of the masters that the cluster has.
    members: RefCell<BTreeSet<usize>>,
    servers: Vec<HostId>,
    running: RefCell<Vec<Option<Role<Store>>>>,
    running_masters: RefCell<Vec<Option<Master>>>,
    /// The Raft ID of each master: another one once its disk was replaced.
    master_ids: RefCell<Vec<u64>>,
    /// The last number that a master was given.
    newest_master: Cell<u64>,
    /// Causes for which each master did not start, or has failed, since it was replaced.
    master_errors: RefCell<Vec<Vec<String>>>,
    /// Violations that no fault explains.
    violations: RefCell<Vec<String>>,
    clients: Cell<u32>,
    client_hosts: RefCell<Vec<HostId>>,
    /// Faults of media: processes that fail by one are started again.
    harms: Harms,
    /// Disks of each server that are not there.
    absent: Vec<Absent>,
    /// Disks that an operator formats before their server starts: new ones, and those whose
    /// formatting was broken off.
    formatting: RefCell<BTreeSet<(usize, usize)>>,
    /// Servers whose disks are empty.
    empty: RefCell<BTreeSet<usize>>,
    left: RefCell<BTreeSet<usize>>,
}

/// Time for which a cluster is without a master that is being replaced, at most, in milliseconds.
const REPLACE_PAUSE_MS_MAX: u64 = 2_000;
/// Time in which a process stops that is asked to: its host may be paused for three seconds.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two checks whether it has.
const STOP_PAUSE: Duration = Duration::from_millis(5);
/// Pause before a process that has ended because of its disk starts again.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

/// A simulated cluster. Clones share it.
#[derive(Clone)]
pub struct Cluster(Rc<ClusterInner>);

impl Cluster {
    /// Boots every host of a new cluster.
    pub fn start(sim: &Sim, shape: Shape, tuning: Tuning) -> Cluster {
        let hosts = shape.masters + shape.spare_masters;
        let masters: Vec<_> = (1..=hosts).map(|id| sim.add_host(&format!("m{id}"))).collect();
        let servers: Vec<_> =
            (1..=shape.servers).map(|id| sim.add_host(&format!("cs{id}"))).collect();
        let mut key = [0; 32];
        sim.with_rng(|rng| rng.fill(&mut key));
        let shards = match shape.disks {
            0 | 1 => 1,
            disks => 1 + sim.with_rng(|rng| rng.below(disks as u64)) as usize,
        };
        let cluster = Cluster(Rc::new(ClusterInner {
            sim: sim.clone(),
            shape,
            tuning,
            shards,
            cluster: ClusterId::new(u128::from(sim.with_rng(|rng| rng.next_u64())) | 1),
            key: ClusterKey::new(key),
            running_masters: RefCell::new((0..hosts).map(|_| None).collect()),
            // One that is added gets its number then.
            master_ids: RefCell::new((1..=hosts as u64).collect()),
            master_errors: RefCell::new(vec![Vec::new(); hosts]),
            masters,
            members: RefCell::new((0..shape.masters).collect()),
            newest_master: Cell::new(shape.masters as u64),
            running: RefCell::new((0..servers.len()).map(|_| None).collect()),
            formatting: RefCell::new(
                (0..servers.len()).flat_map(|at| (0..shape.disks).map(move |d| (at, d))).collect(),
            ),
            servers,
            violations: RefCell::default(),
            clients: Cell::new(0),
            client_hosts: RefCell::default(),
            harms: Harms::default(),
            absent: (0..shape.servers).map(|_| Absent::default()).collect(),
            empty: RefCell::default(),
            left: RefCell::default(),
        }));
        cluster.boot_all();
        cluster
    }

    /// The world.
    pub fn sim(&self) -> &Sim {
        &self.0.sim
    }

    /// The masters' hosts.
    pub fn masters(&self) -> &[HostId] {
        &self.0.masters
    }

    /// The chunkservers' hosts.
    pub fn servers(&self) -> &[HostId] {
        &self.0.servers
    }

    /// Addresses of the masters that the cluster has.
    pub fn master_addrs(&self) -> Vec<SocketAddr> {
        let members = self.0.members.borrow();
        members.iter().map(|&at| self.0.sim.addr(self.0.masters[at], MASTER_PORT)).collect()
    }

    /// Indexes of the masters that the cluster has, or of the hosts without one.
    pub(crate) fn member_masters(&self, there: bool) -> Vec<usize> {
        let members = self.0.members.borrow();
        (0..self.0.masters.len()).filter(|index| members.contains(index) == there).collect()
    }

    /// Boots every host that is down.
    pub fn boot_all(&self) {
        (0..self.0.masters.len()).for_each(|index| self.boot_master(index));
        (0..self.0.servers.len()).for_each(|index| self.boot_server(index));
    }

    /// Violations that no fault explains, so far.
    pub fn violations(&self) -> Vec<String> {
        self.0.violations.borrow().clone()
    }

    pub(crate) fn violation(&self, text: String) {
        self.0.violations.borrow_mut().push(text);
    }

    /// An endpoint of a host of the cluster.
    pub fn endpoint(&self, env: &Env) -> Endpoint {
        let identity = Identity {
            cluster: self.0.cluster,
            key: Some(self.0.key.clone()),
            name: env.name().to_owned(),
        };
        Endpoint::new(env, identity, Limits::default())
    }

    /// Boots a master; nothing when it runs, or the cluster has none there.
    pub fn boot_master(&self, index: usize) {
        let host = self.0.masters[index];
        if self.0.sim.env(host).is_some() || !self.0.members.borrow().contains(&index) {
            return;
        }
        let env = self.0.sim.boot(host);
        let this = self.clone();
        env.clone().spawn(Class::Control, "boot master", async move {
            let config = this.master_config(index);
            match this.start_master(&env, &config).await {
                Ok(master) => this.0.running_masters.borrow_mut()[index] = Some(master),
                Err(_) if env.is_closed() => {}
                Err(error) => {
                    let failure = format!("master {} did not start: {error}", index + 1);
                    this.0.master_errors.borrow_mut()[index].push(failure.clone());
                    this.restart_harmed(host, failure, move |cluster| {
                        cluster.crash_master(index, CrashMode::Process);
                        move |cluster: &Cluster| cluster.boot_master(index)
                    });
                }
            }
        });
    }

    /// Starts a master's process.
    async fn start_master(
        &self,
        env: &Env,
        config: &config::Master,
    ) -> Result<Master, roles::Error> {
        let timing = times_of(self.0.tuning.master.clone());
        let (key, first) = (self.0.shape.key, self.first_numbers());
        let tune = |settings: &mut master::MasterConfig| {
            settings.timing = timing;
            settings.first = first;
            settings.key = settings.key.take().filter(|_| key);
        };
        let role = roles::master::start_with(env, config, &self.seams(), tune).await?;
        Ok(role.master)
    }

    /// First values of its counters.
    pub(crate) fn first_numbers(&self) -> FirstNumbers {
        self.0.tuning.first.unwrap_or_else(|| first_numbers(self.0.cluster))
    }

    /// First epochs of its volumes.
    pub(crate) fn first_epochs(&self) -> FirstEpochs {
        first_epochs(self.first_numbers())
    }

    /// A master as the others know it.
    fn master_info(&self, index: usize) -> MasterInfo {
        let id = self.0.master_ids.borrow()[index];
        MasterInfo {
            id,
            name: format!("m{id}"),
            addr: self.0.sim.addr(self.0.masters[index], MASTER_PORT),
        }
    }

    /// The cause that a master gives for taking no part, if it has failed.
    pub(crate) fn master_failure(&self, index: usize) -> Option<String> {
        self.0.running_masters.borrow()[index].as_ref().and_then(Master::failure)
    }

    /// Whether a master serves: it is ready, and has not failed.
    pub fn master_serves(&self, index: usize) -> bool {
        let running = self.0.running_masters.borrow();
        running[index].as_ref().is_some_and(|it| it.is_ready() && it.failure().is_none())
    }

    /// Causes for which a master did not start, or has failed, since it was replaced.
    pub(crate) fn master_errors(&self, index: usize) -> Vec<String> {
        self.0.master_errors.borrow()[index].clone()
    }

    /// The violation of a master that should have refused to take part.
    pub(crate) fn not_refused(&self, index: usize) -> String {
        let state = match &self.0.running_masters.borrow()[index] {
            Some(master) => format!("leads {:?}", master.leads()),
            None => "does not start".to_owned(),
        };
        let id = self.0.master_ids.borrow()[index];
        format!("master {id} takes part without its disk: it {state}")
    }

    /// An operator replaces a master: removes it, and after a while adds another in its place.
    pub(crate) async fn replace_master(&self, index: usize) -> Result<(), String> {
        self.remove_master(index).await?;
        let pause = self.0.sim.with_rng(|rng| rng.between(1, REPLACE_PAUSE_MS_MAX));
        self.0.sim.sleep(Duration::from_millis(pause)).await;
        self.add_master(index).await
    }

    /// An operator removes a master, and its disk's content.
    pub(crate) async fn remove_master(&self, index: usize) -> Result<(), String> {
        let id = self.0.master_ids.borrow()[index];
        self.change_members(MemberChange::Remove { id }).await?;
        self.0.members.borrow_mut().remove(&index);
        self.crash_master(index, CrashMode::Process);
        self.0.sim.wipe(self.0.masters[index], MASTER_DIR.as_ref());
        self.0.harms.replace(self.0.masters[index]);
        self.0.master_errors.borrow_mut()[index].clear();
        Ok(())
    }

    /// An operator adds a master, which starts with an empty directory and a number of its own.
    pub(crate) async fn add_master(&self, index: usize) -> Result<(), String> {
        let newest = self.0.newest_master.get() + 1;
        self.0.newest_master.set(newest);
        self.0.master_ids.borrow_mut()[index] = newest;
        self.0.members.borrow_mut().insert(index);
        self.boot_master(index);
        self.change_members(MemberChange::Add(self.master_info(index))).await
    }

    /// Repeats an operator's change of the membership for a minute: it can be done twice.
    async fn change_members(&self, change: MemberChange) -> Result<(), String> {
        let (host, client) = self.client(None).await.map_err(|error| error.to_string())?;
        let end = self.0.sim.elapsed() + Duration::from_secs(60);
        let outcome = loop {
            let change = change.clone();
            match client.cluster_ask(ClusterRequest::Members { change }).await {
                Ok(_) => break Ok(()),
                // A repeat of a removal that was done finds no such master.
                Err(error) if error.kind() == Kind::NotFound => break Ok(()),
                Err(error) if self.0.sim.elapsed() > end => break Err(error.to_string()),
                Err(_) => self.0.sim.sleep(Duration::from_millis(500)).await,
            }
        };
        self.0.sim.crash(host, CrashMode::Process);
        outcome
    }

    /// Ends a process that its disk has failed, and starts it again later, as an operator's
    /// service manager does. A failure that no fault of its disk explains is a violation.
    fn restart_harmed<B: FnOnce(&Cluster) + 'static>(
        &self,
        host: HostId,
        failure: String,
        end: impl FnOnce(&Cluster) -> B + 'static,
    ) {
        if !self.is_harmed(host) {
            return self.violation(failure);
        }
        let this = self.clone();
        self.0.sim.spawn("restart", async move {
            this.0.sim.mark("nemesis: a process ends for its disk");
            let boot = end(&this);
            this.0.sim.sleep(RESTART_PAUSE).await;
            boot(&this);
        });
    }

    /// Ends and starts again every master that has failed, as its service manager does.
    pub(crate) fn tend_masters(&self) {
        for index in 0..self.0.masters.len() {
            let failure = {
                let running = self.0.running_masters.borrow();
                running[index].as_ref().and_then(Master::failure)
            };
            let Some(failure) = failure else { continue };
            self.0.running_masters.borrow_mut()[index] = None;
            let failure = format!("master {} has failed: {failure}", index + 1);
            self.0.master_errors.borrow_mut()[index].push(failure.clone());
            self.restart_harmed(self.0.masters[index], failure, move |cluster| {
                cluster.crash_master(index, CrashMode::Process);
                move |cluster: &Cluster| cluster.boot_master(index)
            });
        }
    }

    /// Operations on a host's disks fail from now on: a process may end by it.
    pub(crate) fn media_fail(&self, host: HostId) {
        self.0.harms.begin(host);
    }

    /// The operations that fail are over.
    pub(crate) fn media_work(&self, host: HostId) {
        self.0.sim.with_disk_faults(host, |disk| *disk = DiskFaults::default());
        self.0.harms.end(host, self.0.sim.elapsed());
    }

    /// What is stored on a host is damaged or gone, until its process is replaced.
    pub(crate) fn damage_media(&self, host: HostId) {
        self.0.harms.damage(host);
    }

    /// Whether a process that ends now on this host may do so by a fault of its disks.
    fn is_harmed(&self, host: HostId) -> bool {
        self.0.harms.explains(host, self.0.sim.elapsed())
    }

    /// Takes a disk away from the next start of its server on, or puts it back.
    pub fn set_absent(&self, server: usize, disk: usize, absent: bool) {
        self.0.absent[server].set(Cluster::disk_dir(disk), absent);
    }

    /// Servers with a store that has failed: it stays so until the process starts again.
    pub(crate) fn with_failed_stores(&self) -> Vec<usize> {
        let failed = |index: &usize| self.stores(*index).iter().any(|(_, it)| it.info().failed);
        (0..self.0.servers.len()).filter(failed).collect()
    }

    /// Replaces the disks of a server that is down by empty ones. An operator formats them before
    /// its next start, if `formatted`; otherwise they stay empty.
    pub(crate) fn empty_disks(&self, index: usize, formatted: bool) {
        self.0.sim.wipe(self.0.servers[index], DISK_ROOT.as_ref());
        if formatted {
            let disks = (0..self.0.shape.disks).map(|disk| (index, disk));
            self.0.formatting.borrow_mut().extend(disks);
        } else {
            self.0.empty.borrow_mut().insert(index);
        }
    }

    /// An operator formats the empty disks of a server that runs.
    pub(crate) async fn format_disks(&self, index: usize) -> Result<(), String> {
        let env = self.0.sim.env(self.0.servers[index]).ok_or("the server is down")?;
        let this = self.clone();
        let work = async move {
            for disk in 0..this.0.shape.disks {
                this.format_disk(&Env::current(), disk).await?;
            }
            Ok(())
        };
        let formatted = env.spawn(Class::Background, "format", work).await;
        formatted.unwrap_or_else(|_| Err("the server has gone down".to_owned()))?;
        self.note_formatted(index);
        Ok(())
    }

    /// The disks of a server have stores again.
    pub(crate) fn note_formatted(&self, index: usize) {
        self.0.empty.borrow_mut().remove(&index);
    }

    /// Formats a disk as `craton store format` does.
    async fn format_disk(&self, env: &Env, disk: usize) -> Result<(), String> {
        let dir = Cluster::disk_dir(disk);
        env.create_dir_all(&dir).await.map_err(|error| format!("{}: {error}", dir.display()))?;
        let options = FormatOptions {
            capacity: self.0.shape.disk_bytes,
            grow_step: self.0.tuning.grow_step,
            ..FormatOptions::small_files()
        };
        let formatted = roles::format::directory(env, &dir, &options, false, |_| Ok(())).await;
        formatted.map(drop).map_err(|error: roles::Error| error.to_string())
    }

    /// Formats the new disks of a server that has not started.
    async fn format_new(&self, env: &Env, index: usize) -> Result<(), String> {
        for disk in 0..self.0.shape.disks {
            if self.0.formatting.borrow().contains(&(index, disk)) {
                self.format_disk(env, disk).await?;
                self.0.formatting.borrow_mut().remove(&(index, disk));
            }
        }
        Ok(())
    }

    /// Hosts of clients, previous ones too.
    pub fn client_hosts(&self) -> Vec<HostId> {
        self.0.client_hosts.borrow().clone()
    }

    /// Counts a host as a client's: a host of a service that uses the core.
    pub fn add_client_host(&self, host: HostId) {
        self.0.client_hosts.borrow_mut().push(host);
    }

    /// The highest term of each group.
    pub(crate) fn terms(&self) -> BTreeMap<Group, u64> {
        let mut terms = BTreeMap::new();
        let running = self.0.running_masters.borrow();
        for (group, term) in running.iter().flatten().flat_map(Master::terms) {
            terms.entry(group).and_modify(|known| *known = term.max(*known)).or_insert(term);
        }
        terms
    }

    /// Groups that a master leads, as far as it knows.
    pub fn leads(&self, index: usize) -> Vec<Group> {
        self.0.running_masters.borrow()[index].as_ref().map_or_else(Vec::new, Master::leads)
    }

    /// Index of the master that leads most groups, if one leads.
    pub fn leading_master(&self) -> Option<usize> {
        let running = self.0.running_masters.borrow();
        let leads =
            |index: &usize| running[*index].as_ref().map_or(0, |master| master.leads().len());
        let most = (0..running.len()).max_by_key(leads)?;
        (leads(&most) > 0).then_some(most)
    }

    fn master_config(&self, index: usize) -> config::Master {
        let own = self.master_info(index);
        let mut text = self.config_text(&own.name, "");
        let Shape { namespace_partitions, stream_partitions, .. } = self.0.shape;
        let write = write!(
            text,
            "raft_id = {}\nlisten = '{}'\ndata_dir = '{MASTER_DIR}'\n\
             namespace_partitions = {namespace_partitions}\n\
             stream_partitions = {stream_partitions}\n",
            own.id, own.addr
        );
        write.expect("text");
        // One that is added later has no peers: it waits to be invited.
        let founders = self.0.shape.masters;
        let forms = own.id <= founders as u64;
        for index in (0..founders).filter(|_| forms) {
            let MasterInfo { id, name, addr } = self.master_info(index);
            writeln!(text, "[[peers]]\nraft_id = {id}\nid = '{name}'\naddr = '{addr}'")
                .expect("text");
        }
        parse(&text)
    }

    /// Beginning of the configuration files of all roles; `masters` for those that need it.
    pub(crate) fn config_text(&self, id: &str, masters: &str) -> String {
        let cluster = self.0.cluster;
        format!("id = '{id}'\ncluster = '{cluster}'\nkey_file = '/cluster.key'\n{masters}")
    }

    /// The masters' addresses, as configuration files have them.
    pub(crate) fn masters_text(&self) -> String {
        let addrs: Vec<_> = self.master_addrs().iter().map(SocketAddr::to_string).collect();
        format!("masters = {addrs:?}\n")
    }

    /// The parts between roles: the key, and the bug that is planted.
    pub(crate) fn seams(&self) -> Seams {
        Seams {
            key: Some(self.0.key.clone()),
            peers: peers_of,
            exports: exports_of,
            ..Seams::none()
        }
    }

    /// Boots a chunkserver, whose new disks are formatted before; nothing when it runs or has left.
    pub fn boot_server(&self, index: usize) {
        let host = self.0.servers[index];
        if self.0.sim.env(host).is_some() || self.has_left(index) {
            return;
        }
        let env = self.0.sim.boot(host);
        let this = self.clone();
        env.clone().spawn(Class::Foreground, "boot chunkserver", async move {
            match this.start_server(&env, index).await {
                Ok(role) => this.0.running.borrow_mut()[index] = Some(role),
                Err(_) if env.is_closed() => {}
                Err(error) => {
                    let failure = format!("chunkserver {} did not start: {error}", index + 1);
                    this.restart_harmed(host, failure, move |cluster| {
                        cluster.crash_server(index, CrashMode::Process);
                        move |cluster: &Cluster| cluster.boot_server(index)
                    });
                }
            }
        });
    }

    /// Directory of a disk's store.
    fn disk_dir(disk: usize) -> PathBuf {
        Path::new(DISK_ROOT).join(format!("d{disk}"))
    }

    /// Path of a disk's store.
    pub fn disk_path(disk: usize) -> PathBuf {
        Cluster::disk_dir(disk).join(stores::FILE)
    }

    async fn start_server(&self, env: &Env, index: usize) -> Result<Role<Store>, String> {
        let mut text = self.config_text(&format!("cs{}", index + 1), &self.masters_text());
        let listen = self.0.sim.addr(self.0.servers[index], SERVER_PORT);
        writeln!(text, "listen = '{listen}'").expect("text");
        for disk in 0..self.0.shape.disks {
            let dir = Cluster::disk_dir(disk);
            writeln!(text, "[[stores]]\npath = '{}'", dir.display()).expect("text");
        }
        let (tuning, key) = (self.0.tuning.clone(), self.0.shape.key);
        let tune = move |settings: &mut chunkserver::Config| {
            settings.token_key = settings.token_key.take().filter(|_| key);
            settings.heartbeat = tuning.heartbeat;
            settings.scrub_pause = tuning.scrub_pause;
            settings.writer_quiet = tuning.writer_quiet;
            settings.background = share_of(tuning.background);
            settings.times_halving = times_halving(settings.times_halving);
        };
        self.format_new(env, index).await?;
        let disks = Disks {
            sync: self.0.shape.sync,
            reads_at_device: self.0.tuning.reads_at_device,
            absent: self.0.absent[index].clone(),
        };
        let (config, seams) = (parse(&text), self.seams());
        // All its disks were there before.
        let how =
            Start { fault_injection: true, without_disks: true, shards_here: self.0.shards - 1 };
        if how.shards_here > 0 {
            self.0.sim.mark("cluster: servers of more than one lane");
        }
        let started = roles::chunkserver::start_with(env, &config, how, &seams, disks, tune, &[]);
        let role = started.await.map_err(|error| error.to_string())?;
        for unopened in &role.unopened {
            tracing::warn!(server = %config.id, error = %unopened.error, "a disk is left out");
        }
        let explained = self.is_harmed(self.0.servers[index])
            || self.0.absent[index].has_any()
            || self.0.empty.borrow().contains(&index);
        if role.left_out() > 0 && !explained {
            return Err(format!("{} disks are left out", role.left_out()));
        }
        Ok(role)
    }

    /// Takes a chunkserver down.
    pub fn crash_server(&self, index: usize, mode: CrashMode) {
        self.0.running.borrow_mut()[index] = None;
        self.0.sim.crash(self.0.servers[index], mode);
    }

    /// Takes a master down.
    pub fn crash_master(&self, index: usize, mode: CrashMode) {
        self.0.running_masters.borrow_mut()[index] = None;
        self.0.sim.crash(self.0.masters[index], mode);
    }

    /// Stops a chunkserver as SIGTERM does, and ends its process; of one that has not started,
    /// only that.
    pub(crate) async fn stop_server(&self, index: usize) {
        let role = self.0.running.borrow_mut()[index].take();
        if let Some(role) = role {
            let stop = async move { role.stop().await };
            self.stop_role(self.0.servers[index], stop).await;
        }
        self.crash_server(index, CrashMode::Process);
    }

    /// The same of a master.
    pub(crate) async fn stop_master(&self, index: usize) {
        let master = self.0.running_masters.borrow_mut()[index].take();
        if let Some(master) = master {
            let stop = async move { master.shutdown().await };
            self.stop_role(self.0.masters[index], stop).await;
        }
        self.crash_master(index, CrashMode::Process);
    }

    /// Waits until the process on a host has stopped; one that does not in time is a violation.
    pub(crate) async fn stop_role(&self, host: HostId, stop: impl Future<Output = ()> + 'static) {
        let Some(env) = self.0.sim.env(host) else { return };
        let stopping = env.spawn(Class::Control, "stop", stop);
        let end = self.0.sim.elapsed() + STOPPED_WITHIN;
        while !stopping.is_finished() {
            if self.0.sim.elapsed() > end {
                let name = env.name();
                return self.violation(format!("{name} has not stopped after {STOPPED_WITHIN:?}"));
            }
            self.0.sim.sleep(STOP_PAUSE).await;
        }
    }

    /// The chunkserver that runs at `index`.
    pub fn server(&self, index: usize) -> Option<Chunkserver<Store>> {
        self.0.running.borrow()[index].as_ref().map(|role| role.server.clone())
    }

    /// The stores of the chunkserver that runs at `index`, by disk.
    pub fn stores(&self, index: usize) -> Vec<(DiskId, Store)> {
        self.0.running.borrow()[index].as_ref().map_or_else(Vec::new, Role::served)
    }

    /// Its size.
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// A client on a new host, or on `host` when it runs no node.
    pub async fn client(&self, host: Option<HostId>) -> Result<(HostId, Client), client::Error> {
        let host = host.unwrap_or_else(|| {
            let number = self.0.clients.get() + 1;
            self.0.clients.set(number);
            let host = self.0.sim.add_host(&format!("client{number}"));
            self.add_client_host(host);
            host
        });
        let env = match self.0.sim.env(host) {
            Some(env) => env,
            None => self.0.sim.boot(host),
        };
        Ok((host, self.client_over(&env, peers_of(&env, self.endpoint(&env))).await?))
    }

    /// A client of a host over a network of its own.
    pub(crate) async fn client_over(
        &self,
        env: &Env,
        peers: Rc<dyn client::Peers>,
    ) -> Result<Client, client::Error> {
        let (here, config) = (env.clone(), self.0.tuning.client.clone());
        let masters = self.master_addrs();
        let connecting = async move { Client::connect_over(&here, peers, masters, config).await };
        let connected = env.spawn(Class::Foreground, "connect", connecting).await;
        connected.unwrap_or_else(|_| Err(closed("connect")))
    }
}

/// Reads a configuration as a process does.
pub(crate) fn parse<T: Config>(text: &str) -> T {
    config::parse(text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
}

/// The simulated disks of a chunkserver.
#[derive(Clone)]
struct Disks {
    sync: SyncMode,
    reads_at_device: usize,
    absent: Absent,
}

/// Disks of a server that are not there now. Clones share it; a server's shards may be on several
/// threads.
#[derive(Clone, Default)]
struct Absent(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Absent {
    fn set(&self, dir: PathBuf, absent: bool) {
        let mut dirs = self.lock();
        if absent {
            dirs.insert(dir)
        } else {
            dirs.remove(&dir)
        };
    }

    fn has(&self, dir: &Path) -> bool {
        self.lock().contains(dir)
    }

    fn has_any(&self) -> bool {
        !self.lock().is_empty()
    }

    fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stores for Disks {
    type Store = Store;

    async fn open(
        &self,
        env: &Env,
        store: &config::Store,
    ) -> Result<(FlashStore, Store), Unopened> {
        let path = store.path.as_path();
        if self.absent.has(path) {
            let error = roles::Error::Setup(format!("{}: the disk is not there", path.display()));
            return Err(Unopened { error, state: UnopenedState::Absent });
        }
        let config = flash::Config {
            sync: self.sync,
            reads_at_device_max: self.reads_at_device,
            ..Store::config()
        };
        let engine = stores::open_in(env, path, config).await?;
        Ok((engine.clone(), Store::new(env, engine)))
    }
}

fn closed(what: &str) -> client::Error {
    client::Error::Unavailable {
        what: what.to_owned(),
        cause: "the host went down".to_owned(),
        waited: Duration::ZERO,
    }
}
