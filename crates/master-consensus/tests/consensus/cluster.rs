//! A group of masters in the simulator, with clients and a source of faults.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::rc::Rc;

use chunkstore::flash::{self, FormatOptions, MountError};
use master_consensus::{
    Checkpoints, DeviceError, EngineDevice, Group, GroupConfig, GroupStore, Groups, LogDevice,
    LogImage, OpenError, ProposeError, open_store,
};
use runtime::sim::{CrashMode, DiskFaults, HostId, Sim};
use runtime::{Class, Duration, Env};

use super::checkers::{
    Action, Observer, Operation, Registers, check_linearizable, check_log_matching, set_command,
};
use super::network::{Faults, Network};

pub const GROUP: u32 = 7;
/// Path of a member's store.
pub const STORE: &str = "/data/raft/store";
const REGISTERS: u64 = 4;

/// Acknowledges batches that it has not written.
struct Lying {
    inner: EngineDevice,
    withheld: VecDeque<(u64, Vec<u8>)>,
    limit: usize,
}

impl LogDevice for Lying {
    fn segment_len(&self) -> u64 {
        self.inner.segment_len()
    }

    fn block_len(&self) -> usize {
        self.inner.block_len()
    }

    fn resume_at(&self, end: u64) -> u64 {
        self.inner.resume_at(end)
    }

    async fn read_all(&mut self) -> Result<LogImage, DeviceError> {
        self.inner.read_all().await
    }

    async fn append(&mut self, at: u64, batch: &[u8]) -> Result<(), DeviceError> {
        self.withheld.push_back((at, batch.to_vec()));
        while self.withheld.len() > self.limit {
            let (at, batch) = self.withheld.pop_front().expect("not empty");
            self.inner.append(at, &batch).await?;
        }
        Ok(())
    }

    async fn drop_prefix(&mut self, below: u64) -> Result<(), DeviceError> {
        self.inner.drop_prefix(below).await
    }
}

pub struct Cluster {
    pub sim: Sim,
    pub net: Rc<Network>,
    pub observer: Rc<Observer>,
    hosts: BTreeMap<u64, HostId>,
    groups: RefCell<BTreeMap<u64, Group<Registers>>>,
    history: RefCell<BTreeMap<u64, Vec<Operation>>>,
    next_value: Cell<u64>,
    clients: Cell<usize>,
    stop: Cell<bool>,
    /// Bytes of a log segment, randomised (`docs/style.md`).
    segment_len: u64,
    snapshot_after: u64,
    /// Acknowledged batches that a log keeps to itself: 0 in all tests but the canary.
    withheld: usize,
}

impl Cluster {
    pub fn new(sim: &Sim, members: u64) -> Rc<Cluster> {
        Cluster::with_lying_logs(sim, members, 0)
    }

    /// Logs acknowledge `withheld` batches before they write them.
    pub fn with_lying_logs(sim: &Sim, members: u64, withheld: usize) -> Rc<Cluster> {
        let hosts = (1..=members).map(|node| (node, sim.add_host(&format!("master-{node}"))));
        let hosts: BTreeMap<u64, HostId> = hosts.collect();
        for &host in hosts.values() {
            // Clocks that differ by at most 1 % (`protocols.md` 6.5).
            let drift = sim.with_rng(|rng| rng.between(0, 10_000)) as i64 - 5_000;
            sim.set_clock_drift(host, drift);
        }
        Rc::new(Cluster {
            sim: sim.clone(),
            net: Network::new(sim),
            observer: Rc::default(),
            hosts,
            groups: RefCell::default(),
            history: RefCell::default(),
            next_value: Cell::new(1),
            clients: Cell::new(0),
            stop: Cell::new(false),
            segment_len: sim.with_rng(|rng| *rng.pick(&[32 << 10, 64 << 10, 256 << 10])),
            snapshot_after: sim.with_rng(|rng| *rng.pick(&[20, 100, 1000])),
            withheld,
        })
    }

    pub fn nodes(&self) -> Vec<u64> {
        self.hosts.keys().copied().collect()
    }

    pub fn host(&self, node: u64) -> HostId {
        self.hosts[&node]
    }

    pub fn group(&self, node: u64) -> Option<Group<Registers>> {
        self.groups.borrow().get(&node).cloned()
    }

    pub fn is_up(&self, node: u64) -> bool {
        self.sim.env(self.host(node)).is_some()
    }

    fn config(&self, node: u64) -> GroupConfig {
        let mut config = GroupConfig::new(GROUP, node);
        config.request_timeout = Duration::from_millis(800);
        config.snapshot_after = self.snapshot_after;
        config.entries_kept = self.snapshot_after / 4;
        config
    }

    /// Boots a node and recovers its member.
    pub fn start(self: &Rc<Self>, node: u64) {
        let env = self.sim.boot(self.host(node));
        let this = self.clone();
        env.clone().spawn(Class::Control, "master", async move {
            match this.open(&env, node).await {
                Ok(group) => this.serve(&env, node, group),
                Err(error) => panic!("member {node} does not open: {error}"),
            }
        });
    }

    /// Boots a node whose member may refuse to open.
    pub async fn start_any(self: &Rc<Self>, node: u64) -> Result<(), OpenError> {
        let env = self.sim.boot(self.host(node));
        let this = self.clone();
        let opened = env.clone().spawn(Class::Control, "master", async move {
            let group = this.open(&env, node).await?;
            this.serve(&env, node, group);
            Ok(())
        });
        let opened = opened.await.expect("no crash");
        if opened.is_err() {
            self.crash(node, CrashMode::Power);
        }
        opened
    }

    /// Boots a node whose member must refuse to open, and takes it down again.
    pub async fn start_refused(self: &Rc<Self>, node: u64) -> OpenError {
        let env = self.sim.boot(self.host(node));
        let this = self.clone();
        let opened = env.clone().spawn(Class::Control, "master", async move {
            this.open(&env, node).await.err().expect("the member opens")
        });
        let error = opened.await.expect("no crash");
        self.crash(node, CrashMode::Power);
        error
    }

    /// Offset of the first log segment in the store of a member that is down.
    pub async fn first_log_byte(&self, node: u64) -> u64 {
        let env = self.sim.boot(self.host(node));
        let inspect = env.clone();
        let found = env.spawn(Class::Control, "inspect", async move {
            let chunks = (0..).map(|number| GroupStore::segment_chunk(GROUP, number));
            for chunk in chunks.take(1000) {
                let dump = flash::dump_chunk(&inspect, Path::new(STORE), chunk).await;
                if let Some((_, sectors)) = dump.expect("a store") {
                    return sectors[0].at;
                }
            }
            panic!("the log is empty");
        });
        let at = found.await.expect("no crash");
        self.crash(node, CrashMode::Power);
        at
    }

    async fn open(&self, env: &Env, node: u64) -> Result<Group<Registers>, OpenError> {
        let dir = Path::new("/data/raft");
        env.create_dir_all(dir).await.expect("a directory");
        let path = Path::new(STORE);
        if open_store(env, path).await.is_err_and(|error| error == MountError::NotAStore) {
            flash::format(env, path, &FormatOptions::tiny()).await.expect("an empty disk");
        }
        let store = open_store(env, path).await.expect("a sound store");
        let group_store = GroupStore::new(env, store, GROUP);
        let checkpoints = Checkpoints::open(group_store.clone()).await?;
        let inner = EngineDevice::new(group_store, self.segment_len);
        let device = Lying { inner, withheld: VecDeque::new(), limit: self.withheld };
        let machine = Registers::new(&self.observer);
        let peers = self.net.endpoint(node);
        Group::open(env, self.config(node), device, checkpoints, peers, machine).await
    }

    fn serve(self: &Rc<Self>, env: &Env, node: u64, group: Group<Registers>) {
        let groups = Groups::new();
        groups.insert(GROUP, Rc::new(group.clone()));
        self.net.attach(node, env, &groups);
        let mut leadership = group.watch_leadership();
        let observer = self.observer.clone();
        env.spawn(Class::Control, "observe leadership", async move {
            loop {
                let now = *leadership.borrow_and_update();
                if now.leading {
                    observer.leads(now.term, node);
                }
                if leadership.changed().await.is_err() {
                    return;
                }
            }
        });
        self.groups.borrow_mut().insert(node, group);
    }

    pub fn crash(&self, node: u64, mode: CrashMode) {
        self.groups.borrow_mut().remove(&node);
        self.net.detach(node);
        self.sim.crash(self.host(node), mode);
    }

    /// Starts all members and forms the group.
    pub async fn form(self: &Rc<Self>, members: &[u64]) {
        members.iter().for_each(|&node| self.start(node));
        while members.iter().any(|&node| self.group(node).is_none()) {
            self.sim.sleep(Duration::from_millis(5)).await;
        }
        let (group, members) = (self.group(members[0]).expect("started"), members.to_vec());
        let env = self.sim.env(self.host(members[0])).expect("up");
        let formed = env.spawn(Class::Control, "bootstrap", async move {
            group.bootstrap(&members.into_iter().collect()).await
        });
        formed.await.expect("no crash yet").expect("a new group");
    }

    /// Runs `work` with a member's group on its node. None when the node is down, or crashes.
    pub async fn on<T: 'static, F>(
        &self,
        node: u64,
        work: impl FnOnce(Group<Registers>) -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + 'static,
    {
        let (group, env) = (self.group(node)?, self.sim.env(self.host(node))?);
        env.spawn(Class::Foreground, "client", work(group)).await.ok()
    }

    async fn act(&self, node: u64) {
        let (register, writes, padding) = self.sim.with_rng(|rng| {
            let padding = if rng.one_in(4) { rng.below(6000) as usize } else { 0 };
            (rng.below(REGISTERS), rng.one_in(2), padding)
        });
        let start = self.sim.elapsed();
        let (action, known) = if writes {
            let value = self.next_value.replace(self.next_value.get() + 1);
            let command = set_command(register, value, padding);
            let result = self.on(node, |group| async move { group.propose(command).await }).await;
            self.sim.note(value);
            match result {
                Some(Ok(old)) => {
                    assert!(self.observer.contains(value), "acknowledged, not committed");
                    let old = u64::from_le_bytes(old.try_into().expect("8 bytes"));
                    (Action::Write { value, old: Some(old) }, true)
                }
                Some(Err(ProposeError::Unknown | ProposeError::Stopped)) | None => {
                    (Action::Write { value, old: None }, false)
                }
                Some(Err(_)) => return,
            }
        } else {
            let read = self.on(node, move |group| async move {
                group.read_index().await.map(|_| group.read(|machine| machine.get(register)))
            });
            let Some(Ok(value)) = read.await else { return };
            self.sim.note(value);
            (Action::Read { value }, true)
        };
        let end = known.then(|| self.sim.elapsed());
        let operation = Operation { action, start, end };
        self.history.borrow_mut().entry(register).or_default().push(operation);
    }

    /// A client that mostly asks the member that it believes to lead.
    pub fn start_client(self: &Rc<Self>) {
        let this = self.clone();
        self.clients.set(self.clients.get() + 1);
        self.sim.spawn("client", async move {
            let nodes = this.nodes();
            while !this.stop.get() {
                let any = this.sim.with_rng(|rng| *rng.pick(&nodes));
                let hint = this.group(any).and_then(|group| group.leader());
                let stray = this.sim.with_rng(|rng| rng.one_in(8));
                this.act(hint.filter(|_| !stray).unwrap_or(any)).await;
                let pause = this.sim.with_rng(|rng| rng.below(30_000));
                this.sim.sleep(Duration::from_micros(pause)).await;
            }
            this.clients.set(this.clients.get() - 1);
        });
    }

    /// One random disturbance, or its end.
    pub fn disturb(self: &Rc<Self>) {
        let nodes = self.nodes();
        let (node, other, kind) =
            self.sim.with_rng(|rng| (*rng.pick(&nodes), *rng.pick(&nodes), rng.below(12)));
        match kind {
            0 if self.is_up(node) => self.crash(node, CrashMode::Power),
            1 if self.is_up(node) => self.crash(node, CrashMode::Process),
            2 => nodes.iter().for_each(|&node| self.crash(node, CrashMode::Power)),
            0 | 1 | 3 | 4 => {
                nodes.iter().filter(|&&node| !self.is_up(node)).for_each(|&node| self.start(node));
            }
            5 => self.net.block(node, other),
            6 => nodes.iter().for_each(|&other| {
                self.net.block(node, other);
                self.net.block(other, node);
            }),
            7 | 8 => self.net.heal(),
            9 => {
                let pause = Duration::from_millis(self.sim.with_rng(|rng| rng.between(10, 1500)));
                self.sim.pause(self.host(node), pause);
            }
            10 => {
                let odds = |rng: &mut runtime::Rng| *rng.pick(&[0, 0, 3, 10, 50]);
                let faults = self.sim.with_rng(|rng| Faults {
                    drop_one_in: odds(rng),
                    duplicate_one_in: odds(rng),
                    delay_one_in: odds(rng),
                });
                self.net.set_faults(faults);
            }
            _ => {
                let stalls = self.sim.with_rng(|rng| *rng.pick(&[0, 0, 20, 200]));
                let slowest = self.sim.with_rng(|rng| *rng.pick(&[150, 150, 2_000, 20_000]));
                self.sim.with_disk_faults(self.host(node), |faults| {
                    faults.stall_one_in = stalls;
                    faults.latency.1 = Duration::from_micros(slowest);
                });
            }
        }
    }

    /// The leader, once there is one.
    pub async fn leader(&self) -> u64 {
        let leads = |node: &u64| self.group(*node).is_some_and(|group| group.leadership().leading);
        loop {
            match self.nodes().into_iter().find(leads) {
                Some(leader) => return leader,
                None => self.sim.sleep(Duration::from_millis(30)).await,
            }
        }
    }

    /// Replaces the voters by `voters`, through the leader, as an operator would.
    pub async fn replace_voters(self: &Rc<Self>, voters: &[u64]) {
        let wanted: BTreeSet<u64> = voters.iter().copied().collect();
        loop {
            self.sim.sleep(Duration::from_millis(30)).await;
            let leader = self
                .nodes()
                .into_iter()
                .find(|&node| self.group(node).is_some_and(|group| group.leadership().leading));
            let Some(leader) = leader else { continue };
            let wanted = wanted.clone();
            let done = self.on(leader, |group| async move {
                let fresh: Vec<u64> = wanted.difference(&group.voters()).copied().collect();
                for node in fresh {
                    group.add_learner(node).await?;
                }
                group.change_membership(wanted).await
            });
            if done.await == Some(Ok(())) {
                return;
            }
        }
    }

    /// Compares all logs that are there.
    pub fn check_logs(&self) {
        let groups = self.groups.borrow();
        let logs: Vec<_> = groups.values().map(|group| group.log().entries()).collect();
        for (number, left) in logs.iter().enumerate() {
            logs[number + 1..].iter().for_each(|right| check_log_matching(left, right));
        }
    }

    /// Heals the network and the disks, and starts who is down.
    pub fn end_faults(self: &Rc<Self>) {
        self.net.heal();
        self.net.set_faults(Faults::default());
        for node in self.nodes() {
            self.sim.with_disk_faults(self.host(node), |faults| *faults = DiskFaults::default());
            if !self.is_up(node) {
                self.start(node);
            }
        }
    }

    /// Ends all faults, and requires the group to work and to agree within a bound.
    pub async fn settle(self: &Rc<Self>) {
        self.stop.set(true);
        self.end_faults();
        let deadline = self.sim.elapsed() + Duration::from_secs(15);
        let value = self.next_value.replace(self.next_value.get() + 1);
        loop {
            assert!(self.sim.elapsed() < deadline, "no progress after the faults ended");
            self.sim.sleep(Duration::from_millis(20)).await;
            if self.clients.get() > 0 {
                continue;
            }
            let nodes = self.nodes();
            let leader = nodes.iter().find_map(|&node| self.group(node)?.leader());
            let Some(leader) = leader else { continue };
            let command = set_command(0, value, 0);
            let done = self.on(leader, |group| async move { group.propose(command).await }).await;
            if matches!(done, Some(Ok(_))) {
                break;
            }
        }
        loop {
            assert!(self.sim.elapsed() < deadline, "the members do not agree");
            self.sim.sleep(Duration::from_millis(20)).await;
            self.check_logs();
            let outcome = self.observer.outcome();
            let agrees = |node| {
                let group: Option<Group<Registers>> = self.group(node);
                group.is_some_and(|group| group.read(Registers::values) == outcome)
            };
            if self.nodes().into_iter().all(agrees) {
                break;
            }
        }
        for (_, operations) in std::mem::take(&mut *self.history.borrow_mut()) {
            check_linearizable(operations);
        }
    }
}
