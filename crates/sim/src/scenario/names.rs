//! Several clients create, link, move and remove a few names in directories of several
//! partitions, under faults; what they saw is linearizable (invariant 8).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{FileId, Kind};
use client::{Client, Error};
use runtime::sim::Sim;
use runtime::{Class, Rng};
use wire::control::{NameKey, Node, Policy};

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::tuning::Tuning;
use testing::history::{Did, Operation, OperationEnd, check};

const CLIENTS: u64 = 3;
const DIRECTORIES: usize = 4;
/// Names: few, so that operations meet.
const NAMES: usize = 6;
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
    for name in 0..NAMES {
        let did = Did::Lookup { name };
        if record(&load, &client, did, None).await == OperationEnd::Unknown {
            return Err("a look-up has no answer in a cluster without faults".to_owned());
        }
    }
    let history = load.history.borrow().clone();
    sim.note(history.len() as u64);
    let done = history.iter().filter(|operation| operation.ended == OperationEnd::Done).count();
    check(history, NAMES)?;
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
        let name = rng.below(NAMES as u64) as usize;
        let did = match rng.below(10) {
            0..3 => {
                load.files.set(load.files.get() + 1);
                Did::Create { name, value: u64::from(load.files.get()) }
            }
            3 => Did::Unlink { name },
            4..6 => Did::Rename { from: name, to: rng.below(NAMES as u64) as usize },
            6 if seen.is_some() => Did::Link { name, value: seen.expect("checked").1 },
            _ => Did::Lookup { name },
        };
        let file = seen.map(|(file, _)| file);
        record(&load, &client, did, file).await;
        if let Did::Lookup { name } = did
            && let Ok(found) = client.lookup_at(load.places[name].clone(), "").await
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
    let path = |name: usize| format!("/d{}/{}", name % DIRECTORIES, load.places[name].name);
    let ended = match did {
        Did::Create { name, value } => {
            let made = client.create(&path(name), Policy::rep(3), value as u32, true).await;
            made.map(|_| ())
        }
        Did::Unlink { name } => client.unlink(&path(name)).await,
        Did::Rename { from, to } => client.rename(&path(from), &path(to), true).await,
        Did::Link { name, .. } => {
            let link = (file.expect("known when it is linked"), load.places[name].clone());
            client.link_many(vec![link]).await
        }
        Did::Lookup { name } => {
            return match client.lookup_at(load.places[name].clone(), &path(name)).await {
                Ok(found) => match found.node {
                    Node::File { attributes, .. } => {
                        OperationEnd::Saw(Some(attributes.mode.into()))
                    }
                    _ => OperationEnd::Saw(Some(u64::MAX)), // No client makes anything else here.
                },
                Err(Error::NotFound { .. }) => OperationEnd::Saw(None),
                Err(_) => OperationEnd::Unknown,
            };
        }
    };
    match ended.map_err(|error| error.kind()) {
        Ok(()) => OperationEnd::Done,
        Err(Kind::Exists) => OperationEnd::Exists,
        Err(Kind::NotFound) => OperationEnd::NotFound,
        Err(_) => OperationEnd::Unknown,
    }
}
