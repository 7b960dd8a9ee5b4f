//! Writers take each other's files over and go on as if nothing had happened: none of an older
//! epoch is acknowledged what its successor has not found (invariant 3).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::{Appender, Client};
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Rng};
use wire::control::Policy;

use super::append::{check_content, seal_all};
use super::readers::{Readers, Shared};
use crate::audit;
use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::oracle::Oracle;
use crate::tuning::Tuning;

const WRITERS: u64 = 4;
const READERS: usize = 3;
const FILES: u64 = 2;
const APPEND_MAX: u64 = 20_000;
const LOAD: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(240);

struct Load {
    sim: Sim,
    oracle: Oracle,
    stop: Cell<bool>,
    verdict: Rc<RefCell<Option<String>>>,
    policy: Policy,
    takeovers: Cell<u64>,
}

pub(super) async fn run(sim: Sim, faults: Faults) -> Result<(), String> {
    let tuning = Tuning::draw(&sim);
    let cluster = Cluster::start(&sim, Shape::default(), tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let acks = sim.with_rng(|rng| rng.between(2, 3)) as u8;
    let load = Rc::new(Load {
        sim: sim.clone(),
        oracle: Oracle::new(),
        stop: Cell::new(false),
        verdict: Rc::default(),
        policy: Policy::plain(3, acks),
        takeovers: Cell::new(0),
    });
    let mut hosts = Vec::new();
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let task = write(load.clone(), client.clone(), rng);
        writers.push(client.env().spawn(Class::Foreground, "writer", task));
        hosts.push(host);
    }
    let (oracle, verdict) = (load.oracle.clone(), load.verdict.clone());
    let shared = Shared { oracle, verdict, writers_live: false, faults };
    let readers = Readers::start(&cluster, shared, READERS).await?;
    let nemesis = Nemesis::start(&cluster, faults);
    let end = sim.elapsed() + LOAD;
    while sim.elapsed() < end && load.verdict.borrow().is_none() {
        sim.sleep(Duration::from_millis(100)).await;
    }
    nemesis.stop().await;
    sim.sleep(Duration::from_secs(2)).await;
    load.stop.set(true);
    let deadline = sim.elapsed() + Duration::from_secs(60);
    while !writers.iter().all(|writer| writer.is_finished()) {
        if sim.elapsed() > deadline {
            return Err("a writer does not end in a minute without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    if let Some(violation) = load.verdict.borrow_mut().take() {
        return Err(violation);
    }
    hosts.into_iter().for_each(|host| sim.crash(host, CrashMode::Process));
    seal_all(&cluster).await?;
    cluster.settle(TIMEOUT).await?;
    readers.finish().await?;
    check_content(&cluster, &load.oracle).await?;
    audit::until_clean(&cluster, &load.oracle, TIMEOUT).await?;
    if load.takeovers.get() < 3 {
        return Err(format!("{} takeovers: the load stands still", load.takeovers.get()));
    }
    sim.note(load.takeovers.get());
    Ok(())
}

async fn write(load: Rc<Load>, client: Client, mut rng: Rng) {
    while !load.stop.get() && load.verdict.borrow().is_none() {
        let path = format!("/shared{}", rng.below(FILES));
        if let Err(violation) = stay(&load, &client, &path, &mut rng).await {
            load.verdict.borrow_mut().get_or_insert(violation);
        }
        client.env().sleep(Duration::from_millis(rng.below(300))).await;
    }
}

/// Takes a file over and writes until another writer has it.
async fn stay(load: &Load, client: &Client, path: &str, rng: &mut Rng) -> Result<(), String> {
    let file = match client.create(path, load.policy, 0o644, false).await {
        Ok(file) => file,
        Err(_) => return Ok(()),
    };
    let Ok(appender) = file.append_handle().await else { return Ok(()) };
    let epoch = appender.epoch();
    load.oracle.opened(path, epoch, appender.acked_len(), rng.next_u64())?;
    load.takeovers.set(load.takeovers.get() + 1);
    for _ in 0..rng.between(5, 60) {
        if load.stop.get() || !burst(load, &appender, path, rng).await? {
            return Ok(());
        }
        client.env().sleep(Duration::from_millis(rng.below(80))).await;
    }
    // Fenced, or done: the next opening shows which.
    if appender.close().await.is_ok() {
        load.oracle.closed(path, epoch, load.sim.elapsed());
    }
    Ok(())
}

/// False when the writer's time is over.
async fn burst(
    load: &Load,
    appender: &Appender,
    path: &str,
    rng: &mut Rng,
) -> Result<bool, String> {
    let (epoch, mut pending) = (appender.epoch(), Vec::new());
    for _ in 0..rng.between(1, 6) {
        let len = rng.between(1, APPEND_MAX);
        let data = load.oracle.next(path, epoch, len as usize);
        match appender.submit(&data).await {
            Ok(append) => pending.push((append, len)),
            Err(_) => return Ok(false),
        }
    }
    for (append, len) in pending {
        let end = append.offset() + len;
        if append.await.is_err() {
            return Ok(false);
        }
        load.oracle.acked(path, epoch, end)?;
    }
    Ok(true)
}
