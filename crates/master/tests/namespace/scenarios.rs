//! Masters under faults, by seed. `CRATON_SEED=n` runs one seed, `CRATON_SEEDS=a..b` a range.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{DirId, FileId, Kind};
use master_consensus::peers::Peers;
use master_consensus::service::Hosted;
use master_namespace::{Entry, Namespace};
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Duration, Env};
use wire::control::{
    Attributes, ClusterReply, ClusterRequest, ControlReply, ControlRequest, LockChange,
    MemberChange, NameKey, NamespaceChange, NamespaceReply, NamespaceRequest, Node, Policy,
    namespace_partition,
};

use super::cluster::{Client, Cluster};
use testing::history::{Did, Operation, OperationEnd, check};

pub const ATTRIBUTES: Attributes = Attributes { mode: 0o644, mtime: 5 };

pub fn root(name: &str) -> NameKey {
    NameKey { parent: DirId::ROOT, name: name.to_owned() }
}

pub fn create(place: NameKey, mtime: u64) -> NamespaceChange {
    let (policy, attributes) = (Policy::strict(3), Attributes { mtime, ..ATTRIBUTES });
    NamespaceChange::Create { place, policy, attributes, exclusive: true, inherit: false }
}

pub async fn mkdir(client: &Client, place: NameKey) -> DirId {
    match client.change(NamespaceChange::Mkdir { place, attributes: ATTRIBUTES }).await {
        Ok(NamespaceReply::Node { node: Node::Dir { dir, .. }, .. }) => dir,
        other => panic!("not a new directory: {other:?}"),
    }
}

/// Runs `work` on a client's host while the masters run on theirs.
pub fn with_client<F: Future<Output = ()> + 'static>(
    sim: &Sim,
    cluster: &Rc<Cluster>,
    work: impl FnOnce(Client) -> F,
) {
    let env = sim.boot(sim.add_host("client"));
    let client = Client::new(&env, cluster, Duration::from_secs(20));
    let work = work(client);
    sim.run(async {
        cluster.form().await;
        env.spawn(Class::Foreground, "client", work).await.expect("no crash of the client");
    })
    .expect("a task is always due");
}

#[test]
fn one_master_serves_and_comes_back() {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, 1, 1, 1);
    let (world, masters) = (sim.clone(), cluster.clone());
    with_client(&sim, &cluster, |client| async move {
        let place = NameKey { parent: mkdir(&client, root("d")).await, name: "f".to_owned() };
        client.change(create(place.clone(), 1)).await.unwrap();
        let (node, grant) = client.lookup(&place).await.unwrap().unwrap();
        assert_ne!(grant, [0; 16]);
        masters.crash(1, CrashMode::Power);
        world.sleep(Duration::from_millis(100)).await;
        masters.start(1);
        assert_eq!(client.lookup(&place).await.unwrap().unwrap().0, node);
        client.change(NamespaceChange::Unlink { place: place.clone() }).await.unwrap();
        assert_eq!(client.lookup(&place).await.unwrap(), None);
    });
}

/// Each removal of a file has its stream deleted in a round of its own. Clients' sessions are
/// refused when a reply table has too many.
#[test]
fn orphans_of_many_rounds_take_one_session() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, 1, 1, 1);
    let (world, masters) = (sim.clone(), cluster.clone());
    with_client(&sim, &cluster, |client| async move {
        for round in 0..100 {
            let place = root(&format!("f{round}"));
            client.change(create(place.clone(), 1)).await.unwrap();
            client.change(NamespaceChange::Unlink { place }).await.unwrap();
            world.sleep(Duration::from_millis(50)).await;
        }
        let master = masters.master(1).expect("it runs");
        assert_eq!(master.figures().sessions, 1);
        let left = master.namespaces()[0].host().read(|state| state.orphans(None, 9));
        assert_eq!(left, []);
    });
}

/// A leader that waits for its peers with all requests that it may have is reached all the same.
#[test]
fn an_overloaded_master_answers_pings() {
    let sim = Sim::new(4);
    let cluster = Cluster::new(&sim, 3, 3, 1);
    let (world, masters) = (sim.clone(), cluster.clone());
    with_client(&sim, &cluster, |client| async move {
        mkdir(&client, root("d")).await;
        let leads =
            |id: &u64| masters.master(*id).is_some_and(|it| it.namespaces()[0].host().leads());
        let leader = masters.ids().into_iter().find(leads).expect("one leads");
        for other in masters.ids().into_iter().filter(|&id| id != leader) {
            world.set_blocked(masters.host(leader), masters.host(other), true);
        }
        // More than limits::REQUESTS_INFLIGHT_MAX, from clients that may have 1024 each.
        let to = masters.info(leader).addr;
        for flood in 0..17 {
            let env = world.boot(world.add_host(&format!("flood{flood}")));
            let client = Client::new(&env, &masters, Duration::from_secs(1));
            for _ in 0..1000 {
                let client = client.clone();
                env.spawn(Class::Foreground, "flood", async move {
                    let request = NamespaceRequest::Lookup { place: root("d") };
                    // It fails: the leader stands alone.
                    let _ = client.call(to, &ControlRequest::Namespace(request)).await;
                });
            }
        }
        world.sleep(Duration::from_millis(100)).await;
        let refused = client.call(to, &ControlRequest::Cluster(ClusterRequest::Info)).await;
        assert_eq!(refused.expect_err("it has no room").kind, Kind::Retry);
        let infos: Vec<_> = masters.ids().into_iter().map(|id| masters.info(id)).collect();
        let peers = Peers::new(client.env(), client.endpoint(), &infos);
        assert!(peers.ping(9, leader, Duration::from_millis(50)).await.is_some());
    });
}

#[test]
fn locks_outlive_their_leader_and_run_out() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, 3, 3, 1);
    let (world, masters) = (sim.clone(), cluster.clone());
    with_client(&sim, &cluster, |client| async move {
        let acquire = |client: Client, owner: &str| {
            let (name, owner) = ("segment".to_owned(), owner.to_owned());
            let change = LockChange::Acquire { name, owner, ttl_ms: 5000 };
            let op = client.next_op();
            let request = ControlRequest::Cluster(ClusterRequest::Lock { op, change });
            async move { client.ask(request).await }
        };
        let reply = acquire(client.clone(), "a").await.unwrap();
        assert_eq!(reply, ControlReply::Cluster(ClusterReply::Lock { fencing: 1 }));
        let taken = world.elapsed();
        let leader = masters.ids().into_iter().find(|&id| {
            masters.master(id).unwrap().leads().contains(&wire::control::Group::Cluster)
        });
        masters.crash(leader.unwrap(), CrashMode::Power);
        loop {
            match acquire(client.clone(), "b").await {
                Ok(reply) => {
                    assert_eq!(reply, ControlReply::Cluster(ClusterReply::Lock { fencing: 2 }));
                    break;
                }
                Err(error) => assert_eq!(error.kind, Kind::Exists),
            }
            world.sleep(Duration::from_millis(100)).await;
        }
        let held = world.elapsed() - taken;
        assert!(held >= Duration::from_secs(5), "taken over after {held:?}");
        assert!(held < Duration::from_secs(9), "not taken over for {held:?}");
    });
}

#[test]
fn a_master_joins_and_another_leaves() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, 4, 3, 2);
    let (world, masters) = (sim.clone(), cluster.clone());
    with_client(&sim, &cluster, |client| async move {
        let dir = mkdir(&client, root("d")).await;
        masters.start(4);
        let members = |change| {
            let client = client.clone();
            let request = ControlRequest::Cluster(ClusterRequest::Members { change });
            async move { client.ask(request).await }
        };
        members(MemberChange::Add(masters.info(4))).await.unwrap();
        members(MemberChange::Remove { id: 1 }).await.unwrap();
        masters.crash(1, CrashMode::Power);
        // Three of four voters would do; of the three that are left one may go.
        masters.crash(2, CrashMode::Power);
        client.change(create(NameKey { parent: dir, name: "f".into() }, 1)).await.unwrap();
        while !masters.master(4).is_some_and(|master| master.is_ready()) {
            world.sleep(Duration::from_millis(10)).await;
        }
        let info = members_of(&client).await;
        assert_eq!(info, [2, 3, 4]);
    });
}

async fn members_of(client: &Client) -> Vec<u64> {
    match client.ask(ControlRequest::Cluster(ClusterRequest::Info)).await {
        Ok(ControlReply::Cluster(ClusterReply::Info(info))) => {
            info.masters.iter().map(|master| master.id).collect()
        }
        other => panic!("not the cluster's facts: {other:?}"),
    }
}

/// Clients on a few names and directories, and what they saw.
struct Play {
    sim: Sim,
    cluster: Rc<Cluster>,
    places: Vec<NameKey>,
    dirs: Vec<DirId>,
    history: RefCell<Vec<Operation>>,
    /// Files by value, as far as a client was answered.
    files: RefCell<BTreeMap<u64, FileId>>,
    next_value: Cell<u64>,
    stop: Cell<bool>,
    clients: Cell<usize>,
}

impl Play {
    fn draw(&self) -> Did {
        let count = self.places.len() as u64;
        let known = self.files.borrow().len() as u64;
        let (kind, name, to, which) = self.sim.with_rng(|rng| {
            let names = (rng.below(count) as usize, rng.below(count) as usize);
            (rng.below(10), names.0, names.1, rng.below(known.max(1)))
        });
        match kind {
            0..=2 => {
                let value = self.next_value.replace(self.next_value.get() + 1);
                Did::Create { name, value }
            }
            3 => Did::Unlink { name },
            4 | 5 => Did::Rename { from: name, to },
            6 => match self.files.borrow().iter().rev().nth((which % 4) as usize) {
                Some((&value, _)) => Did::Link { name, value },
                None => Did::Lookup { name },
            },
            _ => Did::Lookup { name },
        }
    }

    fn change(&self, did: Did) -> NamespaceChange {
        let place = |name: usize| self.places[name].clone();
        match did {
            Did::Create { name, value } => create(place(name), value),
            Did::Unlink { name } => NamespaceChange::Unlink { place: place(name) },
            Did::Rename { from, to } => {
                NamespaceChange::Rename { from: place(from), to: place(to), replace: true }
            }
            Did::Link { name, value } => {
                NamespaceChange::Link { links: vec![(self.files.borrow()[&value], place(name))] }
            }
            Did::Lookup { .. } | Did::Mkdir { .. } | Did::Rmdir { .. } => {
                unreachable!("no such change is drawn")
            }
        }
    }

    async fn act(&self, client: &Client) {
        let did = self.draw();
        let start = self.sim.elapsed();
        let reply = match did {
            Did::Lookup { name } => match client.lookup(&self.places[name]).await {
                Ok(Some((Node::File { file, attributes, .. }, _))) => {
                    self.files.borrow_mut().insert(attributes.mtime, file);
                    Ok(OperationEnd::Saw(Some(attributes.mtime)))
                }
                Ok(Some((node, _))) => panic!("no client made {node:?}"),
                Ok(None) => Ok(OperationEnd::Saw(None)),
                Err(error) => Err(error),
            },
            did => client.change(self.change(did)).await.map(|_| OperationEnd::Done),
        };
        let ended = match reply {
            Ok(ended) => ended,
            Err(error) => match error.kind {
                Kind::Exists => OperationEnd::Exists,
                Kind::NotFound => OperationEnd::NotFound,
                Kind::Unknown => OperationEnd::Unknown,
                _ => panic!("{did:?}: {error:?}"),
            },
        };
        self.sim.note(ended_code(ended));
        if ended == OperationEnd::Unknown && matches!(did, Did::Lookup { .. }) {
            return;
        }
        let end = self.sim.elapsed();
        self.history.borrow_mut().push(Operation { did, ended, start, end });
    }

    /// Makes, moves and removes directories below the given ones; the outcome is judged at the
    /// end as a whole.
    async fn shuffle(&self, client: &Client) {
        let (kind, from, to, names) = self.sim.with_rng(|rng| {
            let dirs = (*rng.pick(&self.dirs), *rng.pick(&self.dirs));
            (rng.below(6), dirs.0, dirs.1, [rng.below(3), rng.below(3)])
        });
        let place = |parent, at: usize| NameKey { parent, name: format!("sub{}", names[at]) };
        let (mut from, mut to) = (place(from, 0), place(to, 1));
        // Half of the time one level deeper, so that cycles are tried.
        for side in [&mut from, &mut to] {
            if self.sim.with_rng(|rng| rng.one_in(2))
                && let Ok(Some((Node::Dir { dir, .. }, _))) = client.lookup(side).await
            {
                side.parent = dir;
            }
        }
        let attributes = ATTRIBUTES;
        let change = match kind {
            0 | 1 => NamespaceChange::Mkdir { place: from, attributes },
            2 => NamespaceChange::Rmdir { place: from },
            _ => NamespaceChange::Rename { from, to, replace: names[0] > 0 },
        };
        let reply = client.change(change).await;
        self.sim.note(reply.is_ok().into());
    }

    fn start_client(self: &Rc<Self>, env: &Env, shuffles: bool) {
        let this = self.clone();
        // The impatient ones leave changes behind whose outcome they never learn.
        let timeout = self.sim.with_rng(|rng| *rng.pick(&[500, 3000, 3000]));
        let client = Client::new(env, &self.cluster, Duration::from_millis(timeout));
        self.clients.set(self.clients.get() + 1);
        env.spawn(Class::Foreground, "client", async move {
            while !this.stop.get() {
                if shuffles {
                    this.shuffle(&client).await;
                } else {
                    this.act(&client).await;
                }
                let pause = this.sim.with_rng(|rng| rng.below(20_000));
                this.sim.sleep(Duration::from_micros(pause)).await;
            }
            this.clients.set(this.clients.get() - 1);
        });
    }

    /// One random disturbance, or its end.
    fn disturb(&self) {
        let ids = self.cluster.ids();
        let (id, other, kind) =
            self.sim.with_rng(|rng| (*rng.pick(&ids), *rng.pick(&ids), rng.below(10)));
        let (here, there) = (self.cluster.host(id), self.cluster.host(other));
        match kind {
            0 if self.cluster.is_up(id) => self.cluster.crash(id, CrashMode::Power),
            1 if self.cluster.is_up(id) => self.cluster.crash(id, CrashMode::Process),
            0..=3 => {
                ids.iter().filter(|&&id| !self.cluster.is_up(id)).for_each(|&id| {
                    self.cluster.start(id);
                });
            }
            4 => self.sim.set_blocked(here, there, true),
            5 => ids.iter().for_each(|&id| {
                self.sim.set_blocked(here, self.cluster.host(id), true);
                self.sim.set_blocked(self.cluster.host(id), here, true);
            }),
            6 | 7 => self.sim.heal_network(),
            8 => {
                let pause = Duration::from_millis(self.sim.with_rng(|rng| rng.between(10, 1000)));
                self.sim.pause(here, pause);
            }
            _ => {
                let stalls = self.sim.with_rng(|rng| *rng.pick(&[0, 0, 20, 200]));
                self.sim.with_disk_faults(here, |faults| faults.stall_one_in = stalls);
            }
        }
    }

    fn replicas(&self, partition: u16) -> Vec<Namespace> {
        let replicas = self.cluster.ids().into_iter().filter_map(|id| {
            let master = self.cluster.master(id)?;
            let host = master.namespaces()[usize::from(partition)].host().clone();
            Some(host.read(Namespace::clone))
        });
        replicas.collect()
    }

    fn agrees(&self, partition: u16) -> bool {
        self.replicas(partition).windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Replicas agree by now.
    fn check_tree(&self) {
        let mut parts: Vec<Namespace> = Vec::new();
        for partition in 0..self.cluster.partitions {
            parts.extend(self.replicas(partition).into_iter().next());
        }
        let home = |dir| &parts[usize::from(namespace_partition(dir, self.cluster.partitions))];
        let (mut todo, mut reached) = (vec![DirId::ROOT], BTreeSet::new());
        let mut links = BTreeMap::<FileId, u32>::new();
        while let Some(dir) = todo.pop() {
            assert!(reached.insert(dir), "{dir} is reached twice");
            assert!(home(dir).parent(dir).is_ok(), "{dir} has a name and is not there");
            for (name, entry) in home(dir).entries(dir) {
                match entry {
                    Entry::Dir { dir: inner, .. } => {
                        assert_eq!(home(*inner).parent(*inner), Ok(dir), "parent of {name}");
                        todo.push(*inner);
                    }
                    Entry::File(file) => *links.entry(*file).or_default() += 1,
                    Entry::Symlink { .. } => {}
                }
            }
        }
        for part in &parts {
            for (dir, _) in part.dir_ids() {
                assert!(reached.contains(&dir), "{dir} is there and has no name");
            }
            for (file, inode) in part.inodes() {
                assert_eq!(links.remove(&file), Some(inode.links), "names of {file}");
            }
        }
        assert!(links.is_empty(), "names of no file: {links:?}");
    }

    async fn settle(&self) {
        self.stop.set(true);
        self.cluster.heal();
        self.cluster.ready(Duration::from_secs(20)).await;
        let deadline = self.sim.elapsed() + Duration::from_secs(20);
        while self.clients.get() > 0 {
            assert!(self.sim.elapsed() < deadline, "clients do not end");
            self.sim.sleep(Duration::from_millis(20)).await;
        }
        let is_quiet = |id: u64| {
            let Some(master) = self.cluster.master(id) else { return false };
            master.namespaces().iter().all(|service| {
                service.host().read(|state| state.is_quiet() && state.orphans(None, 1).is_empty())
            })
        };
        while !self.cluster.ids().into_iter().all(is_quiet) {
            assert!(self.sim.elapsed() < deadline, "intents or orphans are left over");
            self.sim.sleep(Duration::from_millis(20)).await;
        }
        while !(0..self.cluster.partitions).all(|partition| self.agrees(partition)) {
            assert!(self.sim.elapsed() < deadline, "replicas differ");
            self.sim.sleep(Duration::from_millis(20)).await;
        }
        self.check_tree();
    }
}

fn ended_code(ended: OperationEnd) -> u64 {
    match ended {
        OperationEnd::Done => 1,
        OperationEnd::Exists => 2,
        OperationEnd::NotFound => 3,
        OperationEnd::Unknown => 4,
        OperationEnd::Refused => u64::MAX,
        OperationEnd::Saw(value) => 5 + value.unwrap_or(0),
    }
}

struct Outcome {
    hash: u64,
    operations: usize,
    unknown: usize,
    marks: BTreeMap<&'static str, u64>,
}

/// Three masters, clients on names in two directories, disturbances, then a quiet phase.
fn run(seed: u64, partitions: u16, disturbances: u64) -> Outcome {
    let sim = Sim::new(seed);
    let cluster = Cluster::new(&sim, 3, 3, partitions);
    let env = sim.boot(sim.add_host("clients"));
    let outcome = sim.run(async {
        cluster.form().await;
        let client = Client::new(&env, &cluster, Duration::from_secs(10));
        let made = env.spawn(Class::Foreground, "setup", async move {
            // Names of directories in different partitions, where there are several.
            let mut dirs = Vec::new();
            for name in 0..4 {
                dirs.push(mkdir(&client, root(&format!("dir{name}"))).await);
            }
            dirs
        });
        let dirs = made.await.expect("no crash yet");
        let places = dirs
            .iter()
            .take(2)
            .flat_map(|&parent| ["a", "b"].map(|name| NameKey { parent, name: name.to_owned() }));
        let play = Rc::new(Play {
            sim: sim.clone(),
            cluster: cluster.clone(),
            places: places.collect(),
            dirs: dirs.clone(),
            history: RefCell::default(),
            files: RefCell::default(),
            next_value: Cell::new(1),
            stop: Cell::new(false),
            clients: Cell::new(0),
        });
        (0..5).for_each(|_| play.start_client(&env, false));
        (0..2).for_each(|_| play.start_client(&env, true));
        for _ in 0..disturbances {
            let pause = sim.with_rng(|rng| rng.between(1, 800));
            sim.sleep(Duration::from_millis(pause)).await;
            play.disturb();
        }
        sim.sleep(Duration::from_secs(2)).await;
        play.settle().await;
        let history = play.history.take();
        let unknown = history.iter().filter(|it| it.ended == OperationEnd::Unknown).count();
        let operations = history.len();
        check(history, play.places.len()).unwrap_or_else(|error| panic!("{error}"));
        (operations, unknown)
    });
    let (operations, unknown) = outcome.expect("a task is always due");
    Outcome { hash: sim.trace_hash(), operations, unknown, marks: sim.marks() }
}

fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let number = |text: &str| text.parse().expect("a number");
    if let Ok(seed) = std::env::var("CRATON_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    match std::env::var("CRATON_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("a range a..b");
            number(from)..number(to)
        }
        Err(_) => default,
    }
}

fn run_all(partitions: u16, default: std::ops::Range<u64>) {
    let mut marks = BTreeMap::new();
    for seed in seeds(default) {
        println!("seed {seed}");
        let disturbances = if seed == 0 { 0 } else { 20 };
        let outcome = run(seed, partitions, disturbances);
        let Outcome { operations, unknown, hash, .. } = outcome;
        println!("  {operations} operations, {unknown} unknown, {hash:x}");
        for (mark, count) in outcome.marks {
            *marks.entry(mark).or_insert(0) += count;
        }
    }
    println!("{marks:?}");
}

#[test]
fn names_are_linearizable_under_faults() {
    run_all(1, 0..8);
}

#[test]
fn names_are_linearizable_across_partitions_under_faults() {
    run_all(3, 0..8);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let first = run(5, 2, 6).hash;
    run(6, 2, 6);
    assert_eq!(first, run(5, 2, 6).hash, "two runs of one seed differ");
}

#[test]
fn a_page_is_what_a_directory_holds() {
    let sim = Sim::new(4);
    let cluster = Cluster::new(&sim, 1, 1, 3);
    with_client(&sim, &cluster, |client| async move {
        let dirs = [mkdir(&client, root("x")).await, mkdir(&client, root("y")).await];
        for number in 0..25 {
            let name = format!("n{number:02}");
            client.change(create(NameKey { parent: dirs[0], name }, number)).await.unwrap();
        }
        // Their files stay in the partition that made them.
        for number in (0..25).step_by(2) {
            let from = NameKey { parent: dirs[0], name: format!("n{number:02}") };
            let to = NameKey { parent: dirs[1], name: format!("n{number:02}") };
            let change = NamespaceChange::Rename { from, to, replace: false };
            client.change(change).await.unwrap();
        }
        let mut seen = Vec::new();
        for dir in dirs {
            let mut after = None;
            loop {
                let request = NamespaceRequest::List { dir, after: after.take(), limit: 4 };
                let Ok(NamespaceReply::List { entries, more }) = client.namespace(request).await
                else {
                    panic!("not a page");
                };
                after = entries.last().map(|entry| entry.name.clone());
                for entry in entries {
                    let Node::File { attributes, links, .. } = entry.node else { panic!() };
                    assert_eq!((entry.name, links), (format!("n{:02}", attributes.mtime), 1));
                    seen.push(attributes.mtime);
                }
                if !more {
                    break;
                }
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..25).collect::<Vec<_>>());
    });
}

/// Directories of two different partitions.
pub async fn dirs_apart(client: &Client, partitions: u16) -> [DirId; 2] {
    let first = mkdir(client, root("here")).await;
    for number in 0.. {
        let dir = mkdir(client, root(&format!("there{number}"))).await;
        if namespace_partition(dir, partitions) != namespace_partition(first, partitions) {
            return [first, dir];
        }
    }
    unreachable!("one of the directories lies elsewhere");
}

#[test]
fn name_that_renames_replace_is_always_found() {
    const ROUNDS: u64 = 40;
    let sim = Sim::new(12_415_025);
    let cluster = Cluster::new(&sim, 3, 3, 3);
    let (world, readers) = (sim.clone(), cluster.clone());
    with_client(&sim, &cluster, |client| async move {
        let [here, there] = dirs_apart(&client, 3).await;
        let at = |parent, name: &str| NameKey { parent, name: name.to_owned() };
        let name = at(there, "name");
        client.change(create(name.clone(), 0)).await.unwrap();
        let stop = Rc::new(Cell::new(false));
        let env = world.boot(world.add_host("readers"));
        let mut reading = Vec::new();
        for reader in 0..4 {
            let client = Client::new(&env, &readers, Duration::from_secs(20));
            let (name, stop) = (name.clone(), stop.clone());
            reading.push(env.spawn(Class::Foreground, "reader", async move {
                let (mut looks, mut missed) = (0, 0);
                while !stop.get() {
                    looks += 1;
                    let found = if reader % 2 == 0 {
                        client.lookup(&name).await.unwrap().is_some()
                    } else {
                        let list = NamespaceRequest::List { dir: there, after: None, limit: 9 };
                        match client.namespace(list).await.unwrap() {
                            NamespaceReply::List { entries, .. } => {
                                entries.iter().any(|entry| entry.name == name.name)
                            }
                            other => panic!("not a page: {other:?}"),
                        }
                    };
                    missed += u64::from(!found);
                }
                (looks, missed)
            }));
        }
        // A file of this partition and one of the other take the name in turn.
        for round in 1..=ROUNDS {
            let from = at(if round % 2 == 0 { there } else { here }, "next");
            client.change(create(from.clone(), round)).await.unwrap();
            let rename = NamespaceChange::Rename { from, to: name.clone(), replace: true };
            client.change(rename).await.unwrap();
        }
        stop.set(true);
        for reader in reading {
            let (looks, missed) = reader.await.expect("no crash of the readers");
            assert!(looks > ROUNDS, "only {looks} looks");
            assert_eq!(missed, 0, "of {looks} looks at a name that is always there");
        }
    });
}

#[test]
fn rename_of_a_file_onto_its_own_name_changes_nothing() {
    let sim = Sim::new(10);
    let cluster = Cluster::new(&sim, 1, 1, 3);
    with_client(&sim, &cluster, |client| async move {
        let [here, there] = dirs_apart(&client, 3).await;
        let from = NameKey { parent: here, name: "f".to_owned() };
        let to = NameKey { parent: there, name: "f".to_owned() };
        client.change(create(from.clone(), 7)).await.unwrap();
        // The file stays in the partition of its first name.
        let rename = NamespaceChange::Rename { from, to: to.clone(), replace: true };
        client.change(rename).await.unwrap();
        let node = client.lookup(&to).await.unwrap();
        for replace in [true, false] {
            let rename = NamespaceChange::Rename { from: to.clone(), to: to.clone(), replace };
            let renamed = client.change(rename).await.map_err(|error| error.kind);
            let wanted = if replace { Ok(NamespaceReply::Done) } else { Err(Kind::Exists) };
            assert_eq!(renamed, wanted);
            assert_eq!(client.lookup(&to).await.unwrap(), node);
        }
    });
}

#[test]
fn undecodable_command_of_another_master_is_refused() {
    let sim = Sim::new(11);
    let cluster = Cluster::new(&sim, 1, 1, 1);
    let masters = cluster.clone();
    with_client(&sim, &cluster, |client| async move {
        let master = masters.master(1).expect("up");
        let hosts: [Rc<dyn Hosted>; 2] = [
            Rc::new(master.namespaces()[0].host().clone()),
            Rc::new(master.cluster().host().clone()),
        ];
        for host in hosts {
            let refused = host.propose_here(vec![77; 9]).await.unwrap_err();
            assert_eq!(refused.kind, Kind::Invalid);
            assert!(refused.message.contains("upgrade"), "{}", refused.message);
        }
        assert_eq!(master.failure(), None);
        mkdir(&client, root("still-served")).await;
    });
}

/// The master that has decided on a directory's move dies before the directory's home knows. The next one to move a
/// directory asks that home for the directories above, once the partition that gives the turns says that it may.
#[test]
fn directories_do_not_move_into_each_other_while_the_first_move_is_being_made_known() {
    let mut asks = 0;
    for seed in 0..40 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, 3, 3, 3);
        let (world, masters) = (sim.clone(), cluster.clone());
        with_client(&sim, &cluster, |client| async move {
            let coordinator = usize::from(namespace_partition(DirId::ROOT, 3));
            let leads = |id: &u64| {
                let master = masters.master(*id);
                master.is_some_and(|it| it.namespaces()[coordinator].host().leads())
            };
            let leader = masters.ids().into_iter().find(leads).expect("one leads");
            let other = mkdir(&client, root("other")).await;
            // Neither the coordinator nor the partition that gives the turns is its home.
            let (mut name, mut one) = (String::new(), DirId::ROOT);
            for number in 0.. {
                name = format!("one{number}");
                one = mkdir(&client, root(&name)).await;
                let home = usize::from(namespace_partition(one, 3));
                if home != coordinator && home != 0 {
                    break;
                }
            }
            assert_ne!(coordinator, 0);
            let into = |parent, name: &str| {
                let to = NameKey { parent, name: name.to_owned() };
                NamespaceChange::Rename { from: root(name), to, replace: false }
            };
            let (moving, change) = (client.clone(), into(other, &name));
            let env = client.env().clone();
            let moved =
                env.spawn(Class::Foreground, "move", async move { moving.change(change).await });
            let host = masters.master(leader).expect("up").namespaces()[coordinator].host().clone();
            let is_decided = |state: &Namespace| {
                let mut intents = state.intents().into_iter().filter_map(|id| state.intent(id));
                intents.any(|it| it.moved_dir().is_some() && matches!(it.outcome, Some((true, _))))
            };
            while !host.read(is_decided) {
                world.sleep(Duration::from_micros(5)).await;
            }
            masters.crash(leader, CrashMode::Process);
            let back = client.change(into(one, "other")).await;
            assert!(back.is_err(), "seed {seed}: each is in the other one");
            moved.await.expect("no crash").expect("it is decided");
            let found = client.lookup(&NameKey { parent: other, name }).await;
            assert!(matches!(found, Ok(Some(_))), "seed {seed}: {found:?}");
        });
        let asked = "namespace: a participant asks for an intent's fate";
        asks += sim.marks().get(asked).copied().unwrap_or(0);
    }
    assert!(asks >= 10, "{asks} questions");
}

#[test]
fn rename_of_a_directory_onto_its_parent_is_refused_at_once() {
    let sim = Sim::new(8);
    let cluster = Cluster::new(&sim, 1, 1, 4);
    let world = sim.clone();
    with_client(&sim, &cluster, |client| async move {
        let from = NameKey { parent: mkdir(&client, root("a")).await, name: "b".to_owned() };
        mkdir(&client, from.clone()).await;
        let began = world.elapsed();
        let rename = NamespaceChange::Rename { from, to: root("a"), replace: true };
        let refused = client.change(rename).await.expect_err("the parent has a name in it");
        assert_eq!(refused.message, "the directory is not empty");
        assert!(world.elapsed() - began < Duration::from_secs(1), "the answer is late");
    });
}
