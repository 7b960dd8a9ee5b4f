//! Writers that do nothing for longer than rights live, with a chunk they have not written to or
//! one they have, while others take their files over; on clusters of several sizes, with a key
//! and without. Some hear nothing of it: they are cut from all, or their hosts stand still; they reach
//! chunkservers again before masters, and act on rights that have ended. A writer's acts after its pause
//! are judged as in `takeover`, and so is what readers on other hosts see in all that time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::Client;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Rng};
use wire::control::Policy;

use super::append::{check_content, seal_all};
use super::entry::Scenario;
use super::readers::{Readers, Shared};
use crate::audit;
use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::oracle::Oracle;
use crate::tuning::Tuning;

/// Idle writers whose files others take over.
pub(super) const IDLE: Scenario = Scenario {
    name: "takeover-idle",
    about: "writers do nothing for longer than rights live, and others take their files over",
    run: |sim| {
        let faults = Faults { server_crashes: true, bad_clocks: true, ..Faults::default() };
        Box::pin(run(sim, faults))
    },
    marks: &[
        "idle: acknowledged after a pause",
        "idle: a writer that heard nothing reaches chunkservers",
        "idle: a writer whose host stood still goes on",
        "idle: with a key",
        "idle: without a key",
        "idle: one of three servers is down",
        "stream recovered",
        "readers: far beyond the end",
        "readers: a file that was sealed just now",
    ],
};

const WRITERS: u64 = 3;
const READERS: usize = 2;
const FILES: u64 = 2;
const APPEND_MAX: u64 = 20_000;
/// Rights live 20 s here, and deleted replicas are forgotten another 10 s later.
const IDLE_MS: (u64, u64) = (15_000, 75_000);
/// Such pauses of writers that hear nothing: a deleted replica and its tombstone are forgotten by then.
const DEAF_MS: (u64, u64) = (55_000, 80_000);
/// Chunkservers are reached so long before masters.
const DEAF_TO_MASTERS: Duration = Duration::from_secs(2);
const LOAD: Duration = Duration::from_secs(100);
/// A run in which writers were idle nearly all the time goes on for so long.
const LOAD_MAX: Duration = Duration::from_secs(300);
/// Stays at least: the load does not stand still.
const STAYS_MIN: u64 = 3;
const APPENDS_MIN: u64 = 5;
const TIMEOUT: Duration = Duration::from_secs(240);

struct Load {
    cluster: Cluster,
    oracle: Oracle,
    stop: Cell<bool>,
    verdict: Rc<RefCell<Option<String>>>,
    policy: Policy,
    stays: Cell<u64>,
    appended: Cell<u64>,
}

impl Load {
    /// Cuts a host from all for a while, or has it stand still, and cuts it from masters for a little
    /// longer.
    async fn cut(self: Rc<Self>, host: HostId, pause: Duration, still: bool) {
        let sim = self.cluster.sim().clone();
        let set = |others: &[HostId], blocked| {
            for &other in others {
                sim.set_blocked(host, other, blocked);
                sim.set_blocked(other, host, blocked);
            }
        };
        let (masters, servers) = (self.cluster.masters(), self.cluster.servers());
        set(masters, true);
        match still {
            true => sim.pause(host, pause),
            false => set(servers, true),
        }
        let end = sim.elapsed() + pause;
        while sim.elapsed() < end && !self.stop.get() {
            sim.sleep(Duration::from_millis(100)).await;
        }
        set(servers, false);
        sim.mark("idle: a writer that heard nothing reaches chunkservers");
        sim.sleep(DEAF_TO_MASTERS).await;
        set(masters, false);
    }

    fn is_enough(&self) -> bool {
        self.stays.get() >= STAYS_MIN && self.appended.get() >= APPENDS_MIN
    }
}

/// Three servers of which one is down all the time, five, or six.
fn shape(sim: &Sim) -> (Shape, bool) {
    let servers = sim.with_rng(|rng| *rng.pick(&[3, 5, 6]));
    let key = sim.with_rng(|rng| rng.one_in(2));
    (Shape { servers, key, ..Shape::default() }, servers == 3)
}

async fn run(sim: Sim, faults: Faults) -> Result<(), String> {
    let tuning = Tuning::draw(&sim);
    let (shape, one_down) = shape(&sim);
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    sim.mark(if shape.key { "idle: with a key" } else { "idle: without a key" });
    let faults = if one_down {
        sim.mark("idle: one of three servers is down");
        cluster.crash_server(sim.with_rng(|rng| rng.below(3)) as usize, CrashMode::Power);
        Faults { server_crashes: false, ..faults }
    } else {
        faults
    };
    let acks = sim.with_rng(|rng| rng.between(2, 3)) as u8;
    let load = Rc::new(Load {
        cluster: cluster.clone(),
        oracle: Oracle::new(),
        stop: Cell::new(false),
        verdict: Rc::default(),
        policy: Policy::plain(3, acks),
        stays: Cell::new(0),
        appended: Cell::new(0),
    });
    let (mut hosts, mut writers) = (Vec::new(), Vec::new());
    for _ in 0..WRITERS {
        let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let task = write(load.clone(), (host, client.clone()), rng);
        writers.push(client.env().spawn(Class::Foreground, "idle writer", task));
        hosts.push(host);
    }
    let (oracle, verdict) = (load.oracle.clone(), load.verdict.clone());
    let shared = Shared { oracle, verdict, writers_live: false, faults };
    let readers = Readers::start(&cluster, shared, READERS).await?;
    let nemesis = Nemesis::start(&cluster, faults);
    let began = sim.elapsed();
    let goes_on = || match sim.elapsed() - began {
        past if past < LOAD => true,
        past => past < LOAD_MAX && !load.is_enough(),
    };
    while goes_on() && load.verdict.borrow().is_none() {
        sim.sleep(Duration::from_millis(200)).await;
    }
    nemesis.stop().await;
    cluster.boot_all();
    load.stop.set(true);
    let deadline = sim.elapsed() + Duration::from_secs(90);
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
    if !load.is_enough() {
        let (stays, appended) = (load.stays.get(), load.appended.get());
        return Err(format!("{stays} stays, {appended} appends: the load stands still"));
    }
    sim.note(load.appended.get());
    Ok(())
}

async fn write(load: Rc<Load>, (host, client): (HostId, Client), mut rng: Rng) {
    while !load.stop.get() && load.verdict.borrow().is_none() {
        let path = format!("/shared{}", rng.below(FILES));
        if let Err(violation) = stay(&load, (host, &client), &path, &mut rng).await {
            load.verdict.borrow_mut().get_or_insert(violation);
        }
        client.env().sleep(Duration::from_millis(rng.below(5_000))).await;
    }
}

/// Opens a file, perhaps writes, does nothing for long, then writes as if no time had passed.
async fn stay(
    load: &Rc<Load>,
    (host, client): (HostId, &Client),
    path: &str,
    rng: &mut Rng,
) -> Result<(), String> {
    let env = client.env();
    let file = match client.create(path, load.policy, 0o644, false).await {
        Ok(file) => file,
        Err(_) => return Ok(()),
    };
    let Ok(appender) = file.append_handle().await else { return Ok(()) };
    let epoch = appender.epoch();
    load.oracle.opened(path, epoch, appender.acked_len(), rng.next_u64())?;
    load.stays.set(load.stays.get() + 1);
    // One time in two its chunk stays empty through the first pause.
    let mut bursts = rng.below(2) * rng.between(1, 4);
    let mut cut = None;
    for round in 0..rng.between(1, 4) {
        for _ in 0..bursts {
            let len = rng.between(1, APPEND_MAX);
            let data = load.oracle.next(path, epoch, len as usize);
            let Ok(append) = appender.submit(&data).await else { return Ok(()) };
            let end = append.offset() + len;
            if append.await.is_err() {
                return Ok(());
            }
            load.oracle.acked(path, epoch, end)?;
            load.appended.set(load.appended.get() + 1);
            if round > 0 {
                env.mark("idle: acknowledged after a pause");
            }
        }
        bursts = rng.between(1, 4);
        let mut left = rng.between(IDLE_MS.0, IDLE_MS.1);
        if rng.one_in(2) {
            left = rng.between(DEAF_MS.0, DEAF_MS.1);
            if let Some(last) = cut.take() {
                let _ = last.await; // It has no result.
            }
            let (sim, length) = (load.cluster.sim(), Duration::from_millis(left));
            let still = rng.one_in(2) && !load.stop.get();
            cut = Some(sim.spawn("cut", load.clone().cut(host, length, still)));
            if still {
                env.sleep(length).await;
                sim.mark("idle: a writer whose host stood still goes on");
                continue;
            }
            // It acts when it reaches chunkservers.
            left += 300;
        }
        while left > 0 && !load.stop.get() {
            let step = left.min(500);
            env.sleep(Duration::from_millis(step)).await;
            left -= step;
        }
    }
    if let Some(last) = cut {
        let _ = last.await; // The next stay is not cut off by this one.
    }
    // Fenced, or done: the next opening shows it.
    if appender.close().await.is_ok() {
        load.oracle.closed(path, epoch, load.cluster.sim().elapsed());
    }
    Ok(())
}
