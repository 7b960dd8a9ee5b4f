//! A simulated cluster: the real masters, chunkservers and clients on simulated hosts.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base::{ClusterId, DiskId, MIB};
use chunkserver::Chunkserver;
use chunkstore::ChunkStore;
use chunkstore::flash::{self, FormatOptions, MountError};
use client::Client;
use master::{Master, MasterConfig};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env};
use transport::{ClusterKey, Endpoint, Identity, Limits};
use wire::control::MasterInfo;
use wire::token::TokenKey;

use crate::planted::{Store, peers_of};
use crate::tuning::Tuning;

const MASTER_PORT: u16 = 7001;
const SERVER_PORT: u16 = 7101;
/// Where a master keeps its logs.
pub const MASTER_DIR: &str = "/master";
/// Where a chunkserver's disks are.
pub const DISK_ROOT: &str = "/disks";

/// How large a cluster is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Masters: 1, 3 or 5.
    pub masters: usize,
    /// Chunkservers.
    pub servers: usize,
    /// Disks of each chunkserver.
    pub disks: usize,
    /// Bytes of each disk.
    pub disk_bytes: u64,
    /// Namespace partitions.
    pub namespace_partitions: u16,
    /// Stream partitions.
    pub stream_partitions: u16,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            masters: 3,
            servers: 5,
            disks: 1,
            disk_bytes: 256 * MIB,
            namespace_partitions: 1,
            stream_partitions: 1,
        }
    }
}

struct Inner {
    sim: Sim,
    shape: Shape,
    tuning: Tuning,
    cluster: ClusterId,
    key: ClusterKey,
    masters: Vec<HostId>,
    servers: Vec<HostId>,
    running: RefCell<Vec<Option<Chunkserver<Store>>>>,
    /// The stores of each server that runs, by disk.
    stores: RefCell<Vec<Vec<(DiskId, Store)>>>,
    /// What went wrong in ways that no fault explains.
    troubles: RefCell<Vec<String>>,
    clients: Cell<u32>,
}

/// A simulated cluster. Clones share it.
#[derive(Clone)]
pub struct Cluster(Rc<Inner>);

impl Cluster {
    /// Boots every host of a new cluster.
    pub fn start(sim: &Sim, shape: Shape, tuning: Tuning) -> Cluster {
        let masters = (1..=shape.masters).map(|id| sim.add_host(&format!("m{id}"))).collect();
        let servers: Vec<_> =
            (1..=shape.servers).map(|id| sim.add_host(&format!("cs{id}"))).collect();
        let mut key = [0; 32];
        sim.with_rng(|rng| rng.fill(&mut key));
        let cluster = Cluster(Rc::new(Inner {
            sim: sim.clone(),
            shape,
            tuning,
            cluster: ClusterId::new(u128::from(sim.with_rng(|rng| rng.next_u64())) | 1),
            key: ClusterKey::new(key),
            masters,
            running: RefCell::new((0..servers.len()).map(|_| None).collect()),
            stores: RefCell::new(vec![Vec::new(); servers.len()]),
            servers,
            troubles: RefCell::default(),
            clients: Cell::new(0),
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

    /// Masters' addresses.
    pub fn master_addrs(&self) -> Vec<SocketAddr> {
        self.0.masters.iter().map(|&host| self.0.sim.addr(host, MASTER_PORT)).collect()
    }

    /// Boots every host that is down.
    pub fn boot_all(&self) {
        (0..self.0.masters.len()).for_each(|index| self.boot_master(index));
        (0..self.0.servers.len()).for_each(|index| self.boot_server(index));
    }

    /// What went wrong in ways that no fault explains, so far.
    pub fn troubles(&self) -> Vec<String> {
        self.0.troubles.borrow().clone()
    }

    fn trouble(&self, text: String) {
        self.0.troubles.borrow_mut().push(text);
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

    /// Boots a master; nothing when it runs.
    pub fn boot_master(&self, index: usize) {
        let host = self.0.masters[index];
        if self.0.sim.env(host).is_some() {
            return;
        }
        let env = self.0.sim.boot(host);
        let this = self.clone();
        env.clone().spawn(Class::Control, "boot master", async move {
            let masters = this.0.masters.iter().enumerate().map(|(index, &host)| MasterInfo {
                id: index as u64 + 1,
                name: format!("m{}", index + 1),
                addr: this.0.sim.addr(host, MASTER_PORT),
            });
            let config = MasterConfig {
                id: index as u64 + 1,
                name: format!("m{}", index + 1),
                addr: this.0.sim.addr(host, MASTER_PORT),
                dir: PathBuf::from(MASTER_DIR),
                cluster: this.0.cluster,
                key: Some(this.0.key.clone()),
                masters: masters.collect(),
                form: true,
                namespace_partitions: this.0.shape.namespace_partitions,
                stream_partitions: this.0.shape.stream_partitions,
                timing: this.0.tuning.master.clone(),
            };
            let endpoint = this.endpoint(&env);
            match Master::start(&env, config, endpoint).await {
                // It lives in the tasks it spawned.
                Ok(_) => {}
                Err(_) if env.is_closed() => {}
                Err(error) => this.trouble(format!("master {} did not start: {error}", index + 1)),
            }
        });
    }

    /// Boots a chunkserver, formatting disks that are empty; nothing when it runs.
    pub fn boot_server(&self, index: usize) {
        let host = self.0.servers[index];
        if self.0.sim.env(host).is_some() {
            return;
        }
        let env = self.0.sim.boot(host);
        let this = self.clone();
        env.clone().spawn(Class::Foreground, "boot chunkserver", async move {
            match this.start_server(&env, index).await {
                Ok(server) => this.0.running.borrow_mut()[index] = Some(server),
                Err(_) if env.is_closed() => {}
                Err(error) => {
                    this.trouble(format!("chunkserver {} did not start: {error}", index + 1));
                }
            }
        });
    }

    /// Path of a disk's store.
    pub fn disk_path(disk: usize) -> PathBuf {
        Path::new(DISK_ROOT).join(format!("d{disk}/store"))
    }

    async fn start_server(&self, env: &Env, index: usize) -> Result<Chunkserver<Store>, String> {
        let (mut disks, mut stores) = (Vec::new(), Vec::new());
        for disk in 0..self.0.shape.disks {
            let path = Cluster::disk_path(disk);
            let parent = path.parent().expect("below the root");
            env.create_dir_all(parent).await.map_err(|error| error.to_string())?;
            let open = || flash::open_with(env, &path, Store::config());
            let opened = match open().await {
                Err(MountError::NotAStore) => {
                    let options = FormatOptions {
                        capacity: self.0.shape.disk_bytes,
                        grow_step: self.0.tuning.grow_step,
                        force: true,
                        ..FormatOptions::small_files()
                    };
                    let formatted = flash::format(env, &path, &options).await;
                    formatted.map_err(|error| error.to_string())?;
                    open().await
                }
                opened => opened,
            };
            let store = opened.map_err(|error| format!("{}: {error}", path.display()))?;
            let store = Store::new(env, store);
            stores.push((store.info().disk, store.clone()));
            disks.push((path.display().to_string(), store));
        }
        self.0.stores.borrow_mut()[index] = stores;
        let addr = self.0.sim.addr(self.0.servers[index], SERVER_PORT);
        let name = format!("cs{}", index + 1);
        let mut config = chunkserver::Config::new(&name, addr, self.master_addrs());
        config.token_key = Some(TokenKey::derive(&self.0.key));
        config.fault_injection = true;
        config.heartbeat = self.0.tuning.heartbeat;
        config.scrub_pause = self.0.tuning.scrub_pause;
        let started = Chunkserver::start(env, self.endpoint(env), config, disks).await;
        started.map_err(|error| error.to_string())
    }

    /// Takes a chunkserver down.
    pub fn crash_server(&self, index: usize, mode: CrashMode) {
        self.0.running.borrow_mut()[index] = None;
        self.0.stores.borrow_mut()[index].clear();
        self.0.sim.crash(self.0.servers[index], mode);
    }

    /// Takes a master down.
    pub fn crash_master(&self, index: usize, mode: CrashMode) {
        self.0.sim.crash(self.0.masters[index], mode);
    }

    /// The chunkserver that runs at `index`.
    pub fn server(&self, index: usize) -> Option<Chunkserver<Store>> {
        self.0.running.borrow()[index].clone()
    }

    /// The stores of the chunkserver that runs at `index`, by disk.
    pub fn stores(&self, index: usize) -> Vec<(DiskId, Store)> {
        self.0.stores.borrow()[index].clone()
    }

    /// How large it is.
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// A client on a new host, or on `host` when it runs no node.
    pub async fn client(&self, host: Option<HostId>) -> Result<(HostId, Client), client::Error> {
        let host = host.unwrap_or_else(|| {
            let number = self.0.clients.get() + 1;
            self.0.clients.set(number);
            self.0.sim.add_host(&format!("client{number}"))
        });
        let env = match self.0.sim.env(host) {
            Some(env) => env,
            None => self.0.sim.boot(host),
        };
        let connecting = {
            let (this, env) = (self.clone(), env.clone());
            let config = self.0.tuning.client.clone();
            async move {
                let endpoint = this.endpoint(&env);
                let masters = this.master_addrs();
                Client::connect_over(&env, peers_of(&env, endpoint), masters, config).await
            }
        };
        let connected = env.spawn(Class::Foreground, "connect", connecting).await;
        Ok((host, connected.unwrap_or_else(|_| Err(closed("connect")))?))
    }

    /// Ends all faults and waits until the cluster is whole again (the liveness phase).
    pub async fn settle(&self, patience: Duration) -> Result<(), String> {
        self.0.sim.heal_network();
        for &host in self.0.servers.iter().chain(&self.0.masters) {
            self.0.sim.set_clock_drift(host, 0);
            self.0.sim.set_wall_skew(host, 0);
            self.0.sim.with_disk_faults(host, |faults| *faults = Default::default());
        }
        self.boot_all();
        self.until_whole(patience).await
    }

    /// Waits until every chunk has its copies and nothing waits for repair.
    pub async fn until_whole(&self, patience: Duration) -> Result<(), String> {
        let (host, client) = self.client(None).await.map_err(|error| error.to_string())?;
        let started = self.0.sim.elapsed();
        let mut last = String::from("no status");
        loop {
            if self.0.sim.elapsed() - started > patience {
                return Err(format!("not whole after {patience:?} without faults: {last}"));
            }
            self.0.sim.sleep(Duration::from_millis(500)).await;
            let statuses = match client.status().await {
                Ok(statuses) => statuses,
                Err(error) => {
                    last = error.to_string();
                    continue;
                }
            };
            let streams = statuses.iter().flat_map(|(_, status)| &status.leads);
            let streams = streams.filter(|g| matches!(g, wire::control::Group::Stream(_))).count();
            let sum = |count: fn(&wire::control::ClusterStatus) -> u64| {
                statuses.iter().map(|(_, status)| count(status)).sum::<u64>()
            };
            let lost = sum(|status| status.lost);
            let (bad, pending) =
                (sum(|status| status.under_replicated), sum(|status| status.repair.pending));
            last = format!(
                "{} chunks, {bad} under-replicated, {lost} lost, {pending} repairs pending, {streams} stream leaders",
                sum(|status| status.chunks)
            );
            if streams == usize::from(self.0.shape.stream_partitions) && bad + lost + pending == 0 {
                self.0.sim.crash(host, CrashMode::Process);
                return Ok(());
            }
        }
    }
}

fn closed(what: &str) -> client::Error {
    client::Error::Unavailable {
        what: what.to_owned(),
        cause: "the host went down".to_owned(),
        waited: Duration::ZERO,
    }
}
