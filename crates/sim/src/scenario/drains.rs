//! An operator drains chunkservers, cancels that, puts them under maintenance and decommissions them
//! while processes crash, disks are full and leaders change (`protocols-tail.md` 10.15). A watcher sees
//! every replica that is taken off the record: as many settled ones as the chunk has copies stay on
//! servers that neither drain nor are down for long. Nothing is on record of a server that has been
//! decommissioned, then and later. Drains end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::{ChunkId, Kind, ServerId};
use client::Client;
use master_stream::StreamMachine;
use runtime::sim::CrashMode;
use wire::control::{ClusterRequest, Losses, ServerOrder};

use crate::cluster::Cluster;

/// Pause between two looks of the watcher.
const LOOK: Duration = Duration::from_millis(10);
/// Masters act on an order, or on the silence of a server, by then.
const KNOWN: Duration = Duration::from_secs(5);
/// Longest pause between two orders, milliseconds.
const PAUSE_MS_MAX: u64 = 1_500;
/// Servers that are decommissioned under load at most: three copies, and places for others, stay.
const LEAVE_MAX: usize = 2;
/// A server that is drained is decommissioned within this time, when nothing fails.
const LEFT: Duration = Duration::from_secs(90);
/// Its dead replicas are forgotten by then: rights live for 25 s, and a disk that is gone is hoped for
/// as long as a silent server, 10 s.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The operator and the watcher of a run. Clones share it.
#[derive(Clone)]
pub(super) struct Drains(Rc<State>);

struct State {
    cluster: Cluster,
    over: Cell<bool>,
    violation: RefCell<Option<String>>,
    /// Servers that drain or may drain, by the operator's orders, and since when.
    drains: RefCell<BTreeMap<usize, Duration>>,
    /// Servers whose drain may have been cancelled or not: the outcome is unknown.
    unsure: RefCell<BTreeSet<usize>>,
    /// Servers that have been decommissioned.
    left: RefCell<BTreeSet<usize>>,
    /// Since when hosts are down.
    down: RefCell<BTreeMap<usize, Duration>>,
}

/// Settled replicas of a sealed chunk, by server, as a partition had them last.
#[derive(Default)]
struct Seen {
    applied: u64,
    /// With the fragments that they have of a coded chunk.
    settled: BTreeMap<ChunkId, BTreeMap<ServerId, u8>>,
}

impl Drains {
    pub(super) fn start(cluster: &Cluster) -> Drains {
        let drains = Drains(Rc::new(State {
            cluster: cluster.clone(),
            over: Cell::new(false),
            violation: RefCell::default(),
            drains: RefCell::default(),
            unsure: RefCell::default(),
            left: RefCell::default(),
            down: RefCell::default(),
        }));
        let (operator, watcher) = (drains.clone(), drains.clone());
        let sim = cluster.sim();
        sim.spawn("operator", async move { operator.give_orders().await });
        sim.spawn("watcher", async move { watcher.watch().await });
        drains
    }

    /// A violation that was found.
    pub(super) fn verdict(&self) -> Result<(), String> {
        self.0.violation.borrow().clone().map_or(Ok(()), Err)
    }

    fn violate(&self, text: String) {
        self.0.violation.borrow_mut().get_or_insert(text);
    }

    fn draw(&self, bound: u64) -> u64 {
        self.0.cluster.sim().with_rng(|rng| rng.below(bound))
    }

    /// The name of a server, and its identity: servers register in any order.
    fn id_of(&self, index: usize) -> Option<ServerId> {
        self.0.cluster.server_id(&name(index))
    }

    async fn give_orders(self) {
        let sim = self.0.cluster.sim().clone();
        while !self.0.over.get() {
            sim.sleep(Duration::from_millis(self.draw(PAUSE_MS_MAX))).await;
            let Ok((host, client)) = self.0.cluster.client(None).await else { continue };
            for _ in 0..1 + self.draw(6) {
                if !self.0.over.get() {
                    self.give_order(&client).await;
                }
            }
            sim.crash(host, CrashMode::Process);
        }
    }

    async fn give_order(&self, client: &Client) {
        let sim = self.0.cluster.sim();
        let servers: Vec<_> = {
            let left = self.0.left.borrow();
            (0..self.0.cluster.servers().len()).filter(|index| !left.contains(index)).collect()
        };
        let index = servers[self.draw(servers.len() as u64) as usize];
        match self.draw(10) {
            0..=3 => self.drain(client, index).await,
            4 => self.cancel(client, index).await,
            5 => {
                let for_ms = 1 + self.draw(20_000);
                self.ask(client, index, ServerOrder::Maintain { for_ms }).await;
                if self.draw(2) == 0 {
                    self.0.cluster.stop_server(index).await;
                    sim.sleep(Duration::from_millis(self.draw(6_000))).await;
                    self.0.cluster.boot_server(index);
                    sim.mark("drains: a server was away under maintenance");
                }
            }
            6 => drop(self.ask(client, index, ServerOrder::EndMaintenance).await),
            7 => {
                let paused = self.draw(2) == 0;
                let _ = client.cluster_ask(ClusterRequest::PauseBalance { paused }).await;
            }
            _ => {
                let draining = self.0.drains.borrow().keys().next_back().copied();
                let leaves = self.0.left.borrow().len() < LEAVE_MAX;
                let index = if leaves { draining.unwrap_or(index) } else { index };
                self.decommission(client, index, leaves).await;
            }
        }
    }

    /// The answer to an order: `None` when its outcome is unknown.
    async fn ask(
        &self,
        client: &Client,
        index: usize,
        order: ServerOrder,
    ) -> Option<Result<(), String>> {
        match client.order(&name(index), order, false).await {
            Ok(_) => Some(Ok(())),
            Err(error) if error.kind() == Kind::Invalid => Some(Err(error.to_string())),
            Err(_) => None,
        }
    }

    async fn drain(&self, client: &Client, index: usize) {
        let sim = self.0.cluster.sim();
        let checked = client.order(&name(index), ServerOrder::Drain, true).await;
        let answer = self.ask(client, index, ServerOrder::Drain).await;
        if checked.is_ok() && matches!(answer, Some(Err(_))) {
            sim.mark("drains: refused although the check was passed");
        }
        match answer {
            Some(Err(why)) if why.contains("is not drained") => {
                sim.mark("drains: a drain is refused");
            }
            Some(Err(why)) => self.violate(format!("{} is not drained: {why}", name(index))),
            Some(Ok(())) => {
                self.0.unsure.borrow_mut().remove(&index);
                self.0.drains.borrow_mut().entry(index).or_insert(sim.elapsed());
            }
            // It may drain.
            None => drop(self.0.unsure.borrow_mut().insert(index)),
        }
    }

    async fn cancel(&self, client: &Client, index: usize) {
        self.0.drains.borrow_mut().remove(&index);
        self.0.unsure.borrow_mut().insert(index);
        if let Some(Ok(())) = self.ask(client, index, ServerOrder::CancelDrain).await {
            self.0.unsure.borrow_mut().remove(&index);
            self.0.cluster.sim().mark("drains: a drain is cancelled");
        }
    }

    async fn decommission(&self, client: &Client, index: usize, leaves: bool) {
        let sim = self.0.cluster.sim();
        let drains = self.0.drains.borrow().contains_key(&index);
        let unsure = self.0.unsure.borrow().contains(&index);
        if !leaves && (drains || unsure) {
            return;
        }
        // No list is the right one: what is lost for a while is others' chunks. So only what is empty leaves by
        // it, too.
        let losses =
            sim.with_rng(|rng| rng.one_in(3).then(|| Losses { chunks: rng.below(3), digest: 0 }));
        let order = losses.map_or(ServerOrder::Decommission, ServerOrder::DecommissionLosing);
        let answer = self.ask(client, index, order).await;
        match answer {
            Some(Ok(())) if !drains && !unsure => {
                self.violate(format!("{} is decommissioned, and does not drain", name(index)));
            }
            Some(Ok(())) => self.has_left(index),
            Some(Err(_)) if drains && losses.is_some() => {
                sim.mark("drains: no other losses are accepted")
            }
            Some(Err(_)) if drains => sim.mark("drains: what holds data is not decommissioned"),
            Some(Err(_)) => {}
            // It may have left: repeated until that is known.
            None if drains || unsure => {
                while !self.0.over.get() {
                    sim.sleep(Duration::from_millis(500)).await;
                    match self.ask(client, index, ServerOrder::Decommission).await {
                        Some(Ok(())) => return self.has_left(index),
                        Some(Err(_)) => return,
                        None => {}
                    }
                }
            }
            None => {}
        }
    }

    /// A server has been decommissioned: the operator switches it off.
    fn has_left(&self, index: usize) {
        let sim = self.0.cluster.sim();
        sim.mark("drains: a server is decommissioned");
        self.0.drains.borrow_mut().remove(&index);
        self.0.unsure.borrow_mut().remove(&index);
        self.0.left.borrow_mut().insert(index);
        self.check_left();
        self.0.cluster.server_leaves(index);
    }

    /// Nothing is on record of servers that have left.
    fn check_left(&self) {
        let left: BTreeMap<_, _> = {
            let left = self.0.left.borrow();
            left.iter().filter_map(|&index| Some((self.id_of(index)?, index))).collect()
        };
        self.0.cluster.newest_streams(|state, _| {
            for (file, stream) in state.streams() {
                for chunk in stream.all_chunks() {
                    let mut places = chunk.slots().map(|slot| state.place(slot.place).server);
                    if let Some(index) = places.find_map(|server| left.get(&server)) {
                        let (name, id) = (name(*index), chunk.id);
                        self.violate(format!("{id} of {file} is on {name}, which has left"));
                    }
                }
            }
        });
    }

    async fn watch(self) {
        let sim = self.0.cluster.sim().clone();
        let mut seen: BTreeMap<u16, Seen> = BTreeMap::new();
        while !self.0.over.get() || !self.0.drains.borrow().is_empty() {
            sim.sleep(LOOK).await;
            self.note_down();
            self.check_left();
            let stays = self.servers_that_stay();
            self.0.cluster.newest_streams(|state, applied| {
                let seen = seen.entry(state.partition()).or_default();
                if applied > seen.applied {
                    self.compare(seen, state, &stays);
                    seen.applied = applied;
                }
            });
        }
    }

    fn note_down(&self) {
        let (sim, mut down) = (self.0.cluster.sim(), self.0.down.borrow_mut());
        for (index, &host) in self.0.cluster.servers().iter().enumerate() {
            match sim.env(host) {
                Some(_) => drop(down.remove(&index)),
                None => drop(down.entry(index).or_insert(sim.elapsed())),
            }
        }
    }

    /// Servers whose replicas count, as masters must know.
    fn servers_that_stay(&self) -> BTreeSet<ServerId> {
        let now = self.0.cluster.sim().elapsed();
        let (drains, down) = (self.0.drains.borrow(), self.0.down.borrow());
        let long = |since: Option<&Duration>| since.is_some_and(|&since| now - since > KNOWN);
        let stays = (0..self.0.cluster.servers().len())
            .filter(|index| !long(drains.get(index)) && !long(down.get(index)));
        stays.filter_map(|index| self.id_of(index)).collect()
    }

    /// What was taken off the record left enough.
    fn compare(&self, seen: &mut Seen, state: &StreamMachine, stays: &BTreeSet<ServerId>) {
        let mut settled = BTreeMap::new();
        for (_, stream) in state.streams() {
            for chunk in stream.chunks.iter().filter(|chunk| chunk.sealed().is_some()) {
                let slots = chunk.slots().filter(|slot| slot.sealed);
                let places: BTreeMap<_, _> =
                    slots.map(|slot| (state.place(slot.place).server, slot.fragment)).collect();
                let mut before = seen.settled.get(&chunk.id).into_iter().flatten();
                let dropped = before.find(|(server, _)| !places.contains_key(server));
                let staying = places.iter().filter(|(server, _)| stays.contains(server));
                let stay = staying.clone().count();
                // A fragment that is there twice is no redundancy.
                let twice = |fragment: &u8| {
                    chunk.is_coded() && staying.clone().any(|(_, other)| other == fragment)
                };
                if let Some((dropped, fragment)) = dropped
                    && stay < usize::from(chunk.copies)
                    && !twice(fragment)
                {
                    let (id, copies) = (chunk.id, chunk.copies);
                    let (drains, down) = (self.0.drains.borrow(), self.0.down.borrow());
                    self.violate(format!(
                        "{id} was dropped at {dropped}, and of {copies} copies {stay} stay: on \
                         {places:?}, of which only {stays:?} count; servers drain since {drains:?} \
                         and are down since {down:?}, counted from 0"
                    ));
                }
                settled.insert(chunk.id, places);
            }
        }
        seen.settled = settled;
    }

    /// The load has ended. What drains is emptied, and decommissioned.
    pub(super) async fn finish(
        &self,
        settled: impl Future<Output = Result<(), String>>,
    ) -> Result<(), String> {
        self.0.over.set(true);
        let sim = self.0.cluster.sim();
        let (_, client) = self.0.cluster.client(None).await.map_err(|error| error.to_string())?;
        for index in 0..self.0.cluster.servers().len() {
            if self.0.left.borrow().contains(&index) {
                continue;
            }
            self.insist(&client, index, ServerOrder::EndMaintenance).await?;
            if self.0.unsure.borrow().contains(&index) {
                self.insist(&client, index, ServerOrder::CancelDrain).await?;
            }
        }
        settled.await?;
        let draining: Vec<_> = self.0.drains.borrow().keys().copied().collect();
        for index in draining {
            self.insist(&client, index, ServerOrder::Decommission).await?;
            self.has_left(index);
            sim.mark("drains: a drain has ended");
        }
        self.until_forgotten().await?;
        self.verdict()
    }

    /// What was dropped at servers that have left is forgotten once no right to it can be alive.
    async fn until_forgotten(&self) -> Result<(), String> {
        let sim = self.0.cluster.sim();
        let end = sim.elapsed() + FORGOTTEN;
        loop {
            let left: BTreeSet<_> =
                self.0.left.borrow().iter().filter_map(|&index| self.id_of(index)).collect();
            let mut dead = 0;
            self.0.cluster.newest_streams(|state, _| {
                let places = state.places().filter(|(_, place)| left.contains(&place.server));
                dead += places.map(|(index, _)| state.dead_at(index).count()).sum::<usize>();
            });
            if dead == 0 {
                return Ok(());
            }
            if sim.elapsed() > end {
                return Err(format!(
                    "{dead} dead replicas are on record of servers that have left"
                ));
            }
            sim.sleep(Duration::from_millis(500)).await;
        }
    }

    /// Gives an order until it is done.
    async fn insist(
        &self,
        client: &Client,
        index: usize,
        order: ServerOrder,
    ) -> Result<(), String> {
        let sim = self.0.cluster.sim();
        let end = sim.elapsed() + LEFT;
        loop {
            let error = match client.order(&name(index), order, false).await {
                Ok(_) => return Ok(()),
                // It had left when its operator did not get the answer.
                Err(error) if error.to_string().contains("was decommissioned") => {
                    self.has_left(index);
                    return Ok(());
                }
                Err(error) => error,
            };
            if sim.elapsed() > end {
                return Err(format!("{order:?} of {} for {LEFT:?}: {error}", name(index)));
            }
            sim.sleep(Duration::from_millis(500)).await;
        }
    }
}

fn name(index: usize) -> String {
    format!("cs{}", index + 1)
}
