//! Block managers and block servers, as `craton` starts them, on a simulated cluster.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use block_manager::ManagerConfig;
use block_segment::Options;
use block_server::ownership::LeaseState;
use block_volume::ids::SegmentId;
use roles::block::{SegmentSettings, ServerRole};
use roles::seams::Seams;
use runtime::sim::{CrashMode, HostId};
use runtime::{Class, Env};

use super::slow;
use crate::cluster::{Cluster, parse};
use crate::planted::{Planted, acts};

const PORT: u16 = 7401;

/// A host of the block service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A block manager, by its index.
    Manager(usize),
    /// A block server, by its index.
    Server(usize),
}

/// The block service of a cluster.
pub struct Stack {
    cluster: Cluster,
    managers: Vec<HostId>,
    servers: Vec<HostId>,
    /// Bytes of a DataFile.
    file_bytes: u64,
    /// Time for which the data of deleted volumes is kept.
    kept: Duration,
    running: RefCell<Vec<Option<ServerRole>>>,
    verdict: RefCell<Option<String>>,
}

/// Small parts, so that files end and are collected within seconds.
fn options(file_bytes: u64) -> Options {
    Options {
        file_bytes,
        // One record: places of blocks are given as soon as others are written, so that clients
        // read them directly.
        recent_bytes: 8 << 10,
        txn_updates: 20,
        txn_wait: Duration::from_millis(20),
        checkpoint_updates: 100,
        table: table::Options {
            memtable_bytes: 32 << 10,
            block_bytes: 2 << 10,
            file_bytes: 64 << 10,
            manifest_bytes: 1 << 10,
            ..table::Options::default()
        },
        ..Options::default()
    }
}

impl Stack {
    /// So many managers and servers, running.
    pub fn start(cluster: &Cluster, count: (usize, usize), file_bytes: u64) -> Rc<Stack> {
        Stack::start_keeping(cluster, count, file_bytes, Duration::from_secs(3600))
    }

    /// The same, where the data of deleted volumes is kept for so long.
    pub fn start_keeping(
        cluster: &Cluster,
        (managers, servers): (usize, usize),
        file_bytes: u64,
        kept: Duration,
    ) -> Rc<Stack> {
        let hosts = |kind: &str, count: usize| -> Vec<HostId> {
            (1..=count).map(|number| cluster.sim().add_host(&format!("{kind}{number}"))).collect()
        };
        let stack = Rc::new(Stack {
            cluster: cluster.clone(),
            managers: hosts("bm", managers),
            servers: hosts("bs", servers),
            file_bytes,
            kept,
            running: RefCell::new(vec![None; servers]),
            verdict: RefCell::default(),
        });
        stack.boot_all();
        stack
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn managers(&self) -> &[HostId] {
        &self.managers
    }

    pub(super) fn servers(&self) -> &[HostId] {
        &self.servers
    }

    /// The first violation counts.
    pub(super) fn violation(&self, text: String) {
        self.verdict.borrow_mut().get_or_insert(text);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.verdict.borrow().is_some()
    }

    /// The first violation, if there was one.
    pub fn verdict(&self) -> Result<(), String> {
        self.verdict.borrow_mut().take().map_or(Ok(()), Err)
    }

    pub(super) fn host(&self, role: Role) -> HostId {
        match role {
            Role::Manager(index) => self.managers[index],
            Role::Server(index) => self.servers[index],
        }
    }

    /// Some host, a manager one time in three.
    pub(super) fn any(&self) -> Role {
        let draw = |bound: usize| self.cluster.sim().with_rng(|rng| rng.below(bound as u64));
        match draw(3) {
            0 => Role::Manager(draw(self.managers.len()) as usize),
            _ => Role::Server(draw(self.servers.len()) as usize),
        }
    }

    /// Beliefs of every running server about its segments.
    pub(super) fn ownership_views(&self) -> Vec<(usize, (SegmentId, u64, LeaseState))> {
        let running = self.running.borrow();
        let hosts = running.iter().enumerate();
        let hosts = hosts.filter_map(|(index, host)| host.as_ref().map(|host| (index, host)));
        let of = |(index, role): (usize, &ServerRole)| {
            role.host().agent().lease_states().into_iter().map(move |state| (index, state))
        };
        hosts.flat_map(of).collect()
    }

    /// Takes a host down.
    pub fn crash(&self, role: Role, mode: CrashMode) {
        if let Role::Server(index) = role {
            self.running.borrow_mut()[index] = None;
        }
        self.cluster.sim().crash(self.host(role), mode);
    }

    /// A server gives its segments to others, then ends.
    pub(super) async fn leave(&self, index: usize) {
        let (host, sim) = (self.running.borrow()[index].clone(), self.cluster.sim());
        if let (Some(host), Some(env)) = (host, sim.env(self.servers[index])) {
            let stop = async move { host.stop().await };
            let _ = env.spawn(Class::Control, "leave", stop).await;
        }
        self.crash(Role::Server(index), CrashMode::Process);
    }

    pub(super) fn boot_all(self: &Rc<Self>) {
        (0..self.managers.len()).for_each(|index| self.boot(Role::Manager(index)));
        (0..self.servers.len()).for_each(|index| self.boot(Role::Server(index)));
    }

    /// Starts a host's process; nothing when it runs.
    pub fn boot(self: &Rc<Self>, role: Role) {
        let (sim, host) = (self.cluster.sim(), self.host(role));
        if sim.env(host).is_some() {
            return;
        }
        let (env, this) = (sim.boot(host), self.clone());
        env.clone().spawn(Class::Control, "boot", async move {
            match role {
                Role::Manager(index) => this.manager(&env, index).await,
                Role::Server(index) => this.server(&env, index).await,
            }
        });
    }

    /// A configuration of the block service's hosts.
    fn config_text(&self, id: &str, listen: SocketAddr) -> String {
        let masters = self.cluster.masters_text();
        self.cluster.config_text(id, &masters) + &format!("listen = '{listen}'\n")
    }

    async fn manager(&self, env: &Env, index: usize) {
        let listen = self.cluster.sim().addr(self.managers[index], PORT);
        let text = self.config_text(&format!("bm{}", index + 1), listen);
        let kept = self.kept.as_secs();
        let own = format!("lock_ms = 600\nvolume_mib_min = 1\nvolume_undelete_s = {kept}\n");
        let config = parse(&(text + &own));
        let first = self.cluster.first_epochs();
        let tune = |settings: &mut ManagerConfig| {
            settings.first = first;
            if acts(Planted::HalfKept) {
                settings.undelete /= 2;
            }
        };
        let seams = self.cluster.seams();
        let started = roles::block::start_manager_with(env, &config, &seams, tune).await;
        if let Err(error) = started {
            self.violation(format!("a manager did not start: {error}"));
        }
    }

    async fn server(&self, env: &Env, index: usize) {
        let listen = self.cluster.sim().addr(self.servers[index], PORT);
        let config = parse(&self.config_text(&format!("bs{}", index + 1), listen));
        let seams = Seams { devices: slow::slow, ..self.cluster.seams() };
        let tune = |settings: &mut SegmentSettings| {
            // Room for the pages of one segment: all that this server has share it.
            settings.cache_bytes = 256 << 10;
            settings.index_bytes = 16 << 10;
            settings.options = options(self.file_bytes);
        };
        match roles::block::start_server_with(env, &config, &seams, tune).await {
            Ok(role) => self.running.borrow_mut()[index] = Some(role),
            Err(error) => self.violation(format!("a block server did not start: {error}")),
        }
    }
}
