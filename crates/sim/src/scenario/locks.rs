//! Clients compete for locks with leases, under faults and drifting clocks: no two hold one at
//! the same time, and fencing tokens grow (invariant 6).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use client::Client;
use runtime::sim::Sim;
use runtime::{Class, Env, Instant, Rng};
use wire::control::{ClusterReply, ClusterRequest, LockChange};

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, Nemesis};
use crate::tuning::Tuning;

const CLIENTS: u64 = 4;
const LOCKS: u64 = 2;
const LOAD: Duration = Duration::from_secs(15);
/// Grants of a run at least: the load does not stand still.
const GRANTS_MIN: u64 = 8;

/// Facts of one lock, seen from outside.
#[derive(Default)]
struct Lock {
    holder: Option<Holder>,
    /// Tokens granted: to whom and when.
    granted: BTreeMap<u64, (u64, Duration)>,
    /// Largest token that was granted by the time of a request.
    largest: u64,
}

/// A client that believes to hold a lock, and the end of its lease by its own clock.
struct Holder {
    client: u64,
    token: u64,
    env: Env,
    end: Instant,
}

struct Load {
    sim: Sim,
    stop: Cell<bool>,
    locks: RefCell<Vec<Lock>>,
    verdict: RefCell<Option<String>>,
    grants: Cell<u64>,
}

pub(super) async fn run(sim: Sim, shape: Shape, faults: Faults) -> Result<(), String> {
    let tuning = Tuning::draw(&sim);
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let load = Rc::new(Load {
        sim: sim.clone(),
        stop: Cell::new(false),
        locks: RefCell::new((0..LOCKS).map(|_| Lock::default()).collect()),
        verdict: RefCell::default(),
        grants: Cell::new(0),
    });
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let ppm = sim.with_rng(|rng| rng.between(0, 20_000)) as i64 - 10_000;
        sim.set_clock_drift(host, ppm);
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let task = compete(load.clone(), client.clone(), number, rng);
        clients.push(client.env().spawn(Class::Foreground, "locks", task));
    }
    let nemesis = Nemesis::start(&cluster, faults);
    let end = sim.elapsed() + LOAD;
    while sim.elapsed() < end && load.verdict.borrow().is_none() {
        sim.sleep(Duration::from_millis(100)).await;
    }
    nemesis.stop().await;
    // A leading master that peers reach and clients do not leads on for as long as that lasts, nearly
    // all of the load in some seeds: without faults there are grants enough.
    let end = sim.elapsed() + LOAD;
    while load.grants.get() < GRANTS_MIN && sim.elapsed() < end {
        sim.sleep(Duration::from_millis(100)).await;
    }
    load.stop.set(true);
    let deadline = sim.elapsed() + Duration::from_secs(60);
    while !clients.iter().all(|client| client.is_finished()) {
        if sim.elapsed() > deadline {
            return Err("a client does not end in a minute without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    if let Some(violation) = load.verdict.borrow_mut().take() {
        return Err(violation);
    }
    // Liveness: leases run out, so that every lock can be taken in the end.
    cluster.settle(Duration::from_secs(30)).await?;
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    for lock in 0..LOCKS {
        let deadline = sim.elapsed() + Duration::from_secs(20);
        while acquire(&client, lock, "the last", 1000).await.is_none() {
            if sim.elapsed() > deadline {
                return Err(format!("lock {lock} cannot be taken 20 s after its last lease"));
            }
            sim.sleep(Duration::from_millis(200)).await;
        }
    }
    if load.grants.get() < GRANTS_MIN {
        return Err(format!("only {} grants: the load stands still", load.grants.get()));
    }
    sim.note(load.grants.get());
    Ok(())
}

async fn acquire(client: &Client, lock: u64, owner: &str, ttl_ms: u64) -> Option<u64> {
    let (name, owner) = (format!("lock{lock}"), owner.to_owned());
    let change = LockChange::Acquire { name, owner, ttl_ms };
    change_lock(client, change).await
}

async fn change_lock(client: &Client, change: LockChange) -> Option<u64> {
    let build = |op| ClusterRequest::Lock { op, change };
    match client.cluster_change("a lock", build).await {
        Ok(ClusterReply::Lock { fencing }) => Some(fencing),
        _ => None,
    }
}

/// When a lease asked for at `sent` ends for its holder: counted from the sending, less what its
/// clock and the master's may drift apart (one in a hundred each).
fn lease_end(sent: Instant, ttl_ms: u64) -> Instant {
    sent + Duration::from_micros(ttl_ms * 975)
}

async fn compete(load: Rc<Load>, client: Client, number: u64, mut rng: Rng) {
    let env = client.env().clone();
    while !load.stop.get() && load.verdict.borrow().is_none() {
        env.sleep(Duration::from_millis(rng.below(300))).await;
        let (lock, ttl_ms) = (rng.below(LOCKS), rng.between(200, 1500));
        let (sent, floor) = (env.now(), load.locks.borrow()[lock as usize].largest);
        let owner = format!("client {number}");
        let Some(token) = acquire(&client, lock, &owner, ttl_ms).await else { continue };
        let mut end = lease_end(sent, ttl_ms);
        load.granted(lock, number, token, floor);
        while !load.stop.get() && env.now() < end {
            load.used(lock, Holder { client: number, token, env: env.clone(), end });
            env.sleep(Duration::from_millis(rng.below(100))).await;
            // It may be over by now: checked before every use.
            if env.now() < end && rng.one_in(4) {
                let (sent, ttl_ms) = (env.now(), rng.between(200, 1500));
                let name = format!("lock{lock}");
                let renew = LockChange::Renew { name, fencing: token, ttl_ms };
                if change_lock(&client, renew).await.is_some() {
                    end = end.max(lease_end(sent, ttl_ms));
                }
            }
            if rng.one_in(12) {
                break;
            }
        }
        // Gives up first, then says so.
        load.left(lock, number);
        if rng.one_in(2) {
            let release = LockChange::Release { name: format!("lock{lock}"), fencing: token };
            let _ = change_lock(&client, release).await;
        }
    }
}

impl Load {
    fn violation(&self, text: String) {
        self.verdict.borrow_mut().get_or_insert(text);
    }

    /// A client was granted a lock: the token is new, and larger than all that were granted
    /// before it asked.
    fn granted(&self, lock: u64, client: u64, token: u64, floor: u64) {
        self.grants.set(self.grants.get() + 1);
        let state = &mut self.locks.borrow_mut()[lock as usize];
        if token <= floor {
            self.violation(format!("lock {lock}: token {token} after {floor} was granted"));
        }
        if let Some((other, at)) = state.granted.insert(token, (client, self.sim.elapsed())) {
            self.violation(format!(
                "lock {lock}: token {token} for client {client}, and for client {other} at {at:?}"
            ));
        }
        state.largest = state.largest.max(token);
    }

    /// A client acts in the belief that it holds a lock.
    fn used(&self, lock: u64, user: Holder) {
        let state = &mut self.locks.borrow_mut()[lock as usize];
        let other = state.holder.take().filter(|other| other.client != user.client);
        if let Some(other) = other.filter(|other| other.env.now() < other.end) {
            self.violation(format!(
                "lock {lock}: clients {} and {} hold it at the same time, with tokens {} and {}",
                user.client, other.client, user.token, other.token
            ));
        }
        state.holder = Some(user);
    }

    fn left(&self, lock: u64, client: u64) {
        let state = &mut self.locks.borrow_mut()[lock as usize];
        if state.holder.as_ref().is_some_and(|holder| holder.client == client) {
            state.holder = None;
        }
    }
}
