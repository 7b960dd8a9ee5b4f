//! Several clients create, link, move and remove a few names in directories of several
//! partitions, and directories with a name in each, under faults; what they saw is linearizable
//! (invariant 8).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{DirId, FileId, Kind};
use client::{Client, Error};
use runtime::sim::Sim;
use runtime::{Class, Rng};
use wire::control::{NameKey, Node, Policy};

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::tuning::Tuning;
use testing::history::{DIR, Did, Operation, OperationEnd, check_tree};

const CLIENTS: u64 = 3;
const DIRECTORIES: usize = 4;
/// Names in directories that stay: few, so that operations meet.
const NAMES: usize = 6;
/// Directories that are made, at most. The name in directory `n` has the index `NAMES + n`.
const MADE: usize = 24;
/// The name in each of them.
const CHILD: &str = "c";
const LOAD: Duration = Duration::from_secs(10);
/// Operations of one client at most: the search for an order grows with them.
const OPERATIONS: u64 = 90;

struct Load {
    sim: Sim,
    places: Vec<NameKey>,
    stop: Cell<bool>,
    history: RefCell<Vec<Operation>>,
    /// Numbers given to files: the mode of each is its own.
    files: Cell<u32>,
    /// Numbers given to directories: the mode of each is its own.
    dirs: Cell<usize>,
    /// Directories that a client has seen, by number.
    seen_dirs: RefCell<BTreeMap<usize, DirId>>,
}

impl Load {
    /// A place whose directory is known.
    fn place(&self, name: usize) -> NameKey {
        match name.checked_sub(NAMES) {
            None => self.places[name].clone(),
            Some(dir) => {
                let parent = self.seen_dirs.borrow()[&dir];
                NameKey { parent, name: CHILD.to_owned() }
            }
        }
    }

    /// A path of a name, where it has one that stays.
    fn path(&self, name: usize) -> Option<String> {
        let place = self.places.get(name)?;
        Some(format!("/d{}/{}", name % DIRECTORIES, place.name))
    }

    /// Indexes of the names whose directories are known.
    fn known(&self) -> Vec<usize> {
        let made = self.seen_dirs.borrow().keys().map(|dir| NAMES + dir).collect::<Vec<_>>();
        (0..NAMES).chain(made).collect()
    }

    /// Any of them: one time in three in a directory that was made, mostly a new one.
    fn draw_name(&self, rng: &mut Rng) -> usize {
        let made = self.seen_dirs.borrow().keys().rev().take(4).copied().collect::<Vec<_>>();
        match !made.is_empty() && rng.one_in(3) {
            true => NAMES + *rng.pick(&made),
            false => rng.below(NAMES as u64) as usize,
        }
    }

    /// The number of what a name is of; a directory is known from now on.
    fn value_of(&self, node: &Node) -> u64 {
        match node {
            Node::File { attributes, .. } => attributes.mode.into(),
            Node::Dir { dir, attributes } => {
                self.seen_dirs.borrow_mut().insert(attributes.mode as usize, *dir);
                DIR + u64::from(attributes.mode)
            }
            Node::Symlink { .. } => u64::MAX, // No client makes one here.
        }
    }
}

pub(super) async fn run(sim: Sim, shape: Shape, faults: Faults) -> Result<(), String> {
    let tuning = Tuning::draw(&sim);
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let mut places = Vec::new();
    for index in 0..DIRECTORIES {
        let parent = client.mkdir_all(&format!("/d{index}"), 0o755).await;
        let parent = parent.map_err(|error| error.to_string())?;
        places.push(parent);
    }
    let places = (0..NAMES).map(|index| {
        let (parent, name) = (places[index % DIRECTORIES], format!("n{}", index / DIRECTORIES));
        NameKey { parent, name }
    });
    let load = Rc::new(Load {
        sim: sim.clone(),
        places: places.collect(),
        stop: Cell::new(false),
        history: RefCell::default(),
        files: Cell::new(0),
        dirs: Cell::new(0),
        seen_dirs: RefCell::default(),
    });
    let nemesis = Nemesis::start(&cluster, faults);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let connected = loop {
            match cluster.client(None).await {
                Ok((_, client)) => break client,
                Err(_) => sim.sleep(Duration::from_millis(200)).await,
            }
        };
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let task = operate(load.clone(), connected.clone(), rng);
        clients.push(connected.env().spawn(Class::Foreground, "names", task));
    }
    sim.sleep(LOAD).await;
    nemesis.stop().await;
    sim.sleep(Duration::from_secs(1)).await;
    load.stop.set(true);
    let deadline = sim.elapsed() + Duration::from_secs(60);
    while !clients.iter().all(|client| client.is_finished()) {
        if sim.elapsed() > deadline {
            return Err("a client does not end in a minute without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    cluster.settle(Duration::from_secs(60)).await?;
    // The last check: the present target of each name.
    for name in load.known() {
        let did = Did::Lookup { name };
        if record(&load, &client, did, None).await == OperationEnd::Unknown {
            return Err("a look-up has no answer in a cluster without faults".to_owned());
        }
    }
    let history = load.history.borrow().clone();
    sim.note(history.len() as u64);
    let done = history.iter().filter(|operation| operation.ended == OperationEnd::Done).count();
    let counts = |wanted: fn(&Did) -> bool, ended| {
        history.iter().any(|it| wanted(&it.did) && it.ended == ended)
    };
    if counts(|did| matches!(did, Did::Rmdir { .. }), OperationEnd::Done) {
        sim.mark("names: a directory is removed");
    }
    if counts(|did| matches!(did, Did::Rmdir { .. }), OperationEnd::Refused) {
        sim.mark("names: a directory with a name stays");
    }
    let made = (0..MADE as u64).map(|dir| Some(DIR + dir));
    let parents: Vec<_> = std::iter::repeat_n(None, NAMES).chain(made).collect();
    check_tree(history, &parents)?;
    if done < 10 {
        return Err(format!("only {done} changes in {LOAD:?}: the load stands still"));
    }
    Ok(())
}

async fn operate(load: Rc<Load>, client: Client, mut rng: Rng) {
    // A file seen lately, to be linked.
    let mut seen: Option<(FileId, u64)> = None;
    for _ in 0..OPERATIONS {
        if load.stop.get() {
            return;
        }
        let (name, fixed) = (load.draw_name(&mut rng), rng.below(NAMES as u64) as usize);
        let did = match rng.below(12) {
            0..3 => {
                load.files.set(load.files.get() + 1);
                Did::Create { name, value: u64::from(load.files.get()) }
            }
            3 => Did::Unlink { name },
            4..6 => Did::Rename { from: name, to: load.draw_name(&mut rng) },
            6 if seen.is_some() => Did::Link { name, value: seen.expect("checked").1 },
            7 if load.dirs.get() < MADE => {
                let dir = load.dirs.replace(load.dirs.get() + 1);
                Did::Mkdir { name: fixed, value: DIR + dir as u64 }
            }
            8 => Did::Rmdir { name: fixed },
            _ => Did::Lookup { name },
        };
        let file = seen.map(|(file, _)| file);
        record(&load, &client, did, file).await;
        if let Did::Lookup { name } = did
            && let Ok(found) = client.lookup_at(load.place(name), "").await
            && let Node::File { file, attributes, .. } = found.node
        {
            seen = Some((file, u64::from(attributes.mode)));
        }
        client.env().sleep(Duration::from_millis(rng.below(120))).await;
    }
}

/// Does it and writes down when and how it ended.
async fn record(load: &Load, client: &Client, did: Did, file: Option<FileId>) -> OperationEnd {
    let start = load.sim.elapsed();
    let ended = perform(load, client, did, file).await;
    let end = load.sim.elapsed();
    load.history.borrow_mut().push(Operation { did, ended, start, end });
    ended
}

async fn perform(load: &Load, client: &Client, did: Did, file: Option<FileId>) -> OperationEnd {
    let ended = match did {
        Did::Create { name, value } => {
            let (policy, mode) = (Policy::strict(3), value as u32);
            let made = match load.path(name) {
                Some(path) => client.create(&path, policy, mode, true).await,
                None => client.create_at(load.place(name), CHILD, policy, mode, true).await,
            };
            made.map(|_| ())
        }
        Did::Mkdir { name, value } => {
            let path = load.path(name).expect("it is in a directory that stays");
            client.mkdir(&path, (value - DIR) as u32).await.map(|_| ())
        }
        Did::Rmdir { name } => {
            client.rmdir(&load.path(name).expect("it is in a directory that stays")).await
        }
        Did::Unlink { name } => match load.path(name) {
            Some(path) => client.unlink(&path).await,
            None => client.unlink_at(load.place(name), CHILD).await,
        },
        Did::Rename { from, to } => match (load.path(from), load.path(to)) {
            (Some(from), Some(to)) => client.rename(&from, &to, true).await,
            _ => client.rename_at(load.place(from), load.place(to), true, CHILD).await,
        },
        Did::Link { name, .. } => {
            let link = (file.expect("known when it is linked"), load.place(name));
            client.link_many(vec![link]).await
        }
        Did::Lookup { name } => {
            let path = load.path(name).unwrap_or_else(|| CHILD.to_owned());
            return match client.lookup_at(load.place(name), &path).await {
                Ok(found) => OperationEnd::Saw(Some(load.value_of(&found.node))),
                Err(Error::NotFound { .. }) => OperationEnd::Saw(None),
                Err(_) => OperationEnd::Unknown,
            };
        }
    };
    match ended.map_err(|error| error.kind()) {
        Ok(()) => OperationEnd::Done,
        Err(Kind::Exists) => OperationEnd::Exists,
        Err(Kind::NotFound) => OperationEnd::NotFound,
        Err(Kind::Invalid) => OperationEnd::Refused,
        Err(_) => OperationEnd::Unknown,
    }
}
