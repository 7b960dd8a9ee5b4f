//! Sealing the replicas of chunks whose length is committed: after an advance, a close, or a
//! recovery. Short replicas are completed, damaged ones are left to repair.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ChunkId, Kind, ServerId};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use runtime::{Class, Duration};
use wire::control::CopyOrder;
use wire::data::{DataError, ReplicaStat, ReplicaState};
use wire::token::Rights;

use super::{Defect, Retry};
use crate::limits::{BATCH_MAX, REPORTS_MAX, SEAL_QUEUE_MAX};
use crate::placement::{PlaceState, ReplicaLocation};
use crate::{Action, CallError, Chunk, Log, Outcome, PlaceIndex, Service};

/// Pauses between two attempts to seal the replicas of a chunk: first and longest.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Reported replicas that are checked at the same time at most.
const CHECKS_MAX: usize = 32;

/// Result for one replica.
enum SealAttempt {
    Sealed,
    /// It has fewer bytes, and may be completed.
    Short,
    Bad(Defect),
    /// It does not answer now.
    Later,
    /// It was deleted: none is made there.
    Barred,
}

impl<L: Log> Service<L> {
    /// The replicas of a chunk are to be sealed now.
    pub(crate) fn seal_soon(&self, chunk: ChunkId) {
        let mut ended = self.repairs.ended.borrow_mut();
        if ended.len() < SEAL_QUEUE_MAX {
            ended.insert(chunk);
        }
        self.work.notify_one();
    }

    pub(super) async fn seal_chunks(self: Rc<Self>) {
        let mut look_at = self.env.now();
        loop {
            self.wait(&self.work, self.config.scan_interval).await;
            if !self.leads() {
                continue;
            }
            let now = self.env.now();
            // While a server is away very many wait for it, and each end of a chunk comes here.
            let look = now >= look_at;
            if look {
                look_at = now + self.config.scan_interval;
                self.env.mark("all chunks with replicas to seal looked at");
            }
            let due: BTreeSet<_> = self.log.with_state(|state| {
                let ended = std::mem::take(&mut *self.repairs.ended.borrow_mut());
                let mut sealing = self.repairs.sealing.borrow_mut();
                if look && sealing.len() > SEAL_QUEUE_MAX {
                    sealing.retain(|&chunk, retry| {
                        retry.at.is_none() || state.is_partly_sealed(chunk)
                    });
                }
                let due = |chunk: &ChunkId| {
                    sealing.get(chunk).is_none_or(|retry| retry.at.is_some_and(|at| at <= now))
                };
                // Those that have just ended wait for none of the many.
                let partly = |chunk: &ChunkId| state.is_partly_sealed(*chunk);
                let mut all: BTreeSet<_> = ended.into_iter().filter(partly).filter(due).collect();
                if look {
                    all.extend(state.partly_sealed().filter(due).take(SEAL_QUEUE_MAX));
                }
                all
            });
            for chunk in due {
                let permits = self.repairs.seal_permits.clone();
                let Ok(permit) = permits.acquire_owned().await else { return };
                let mut sealing = self.repairs.sealing.borrow_mut();
                let pause = sealing.get(&chunk).map_or(RETRY.0, |retry| retry.pause);
                sealing.insert(chunk, Retry { at: None, pause });
                let service = self.clone();
                self.env.spawn(Class::Background, "seal a chunk", async move {
                    let whole = service.seal_chunk(chunk).await;
                    drop(permit);
                    let mut sealing = service.repairs.sealing.borrow_mut();
                    if whole {
                        sealing.remove(&chunk);
                        return;
                    }
                    let at = Some(service.env.now() + service.env.jitter(pause));
                    sealing.insert(chunk, Retry { at, pause: (pause * 2).min(RETRY.1) });
                });
            }
        }
    }

    /// Commits what was sealed, many replicas with one command.
    pub(super) async fn commit_seals(self: Rc<Self>) {
        loop {
            self.wait(&self.repairs.sealed_some, self.config.scan_interval).await;
            while self.leads() {
                let mut replicas = std::mem::take(&mut *self.repairs.sealed.borrow_mut());
                if replicas.is_empty() {
                    break;
                }
                let rest = replicas.split_off(replicas.len().min(BATCH_MAX));
                self.repairs.sealed.borrow_mut().extend(rest);
                if self.decide(Action::SealReplicas { replicas }).await.is_err() {
                    break; // Found again: they still have replicas to seal.
                }
            }
        }
    }

    /// The writer of a chunk that has ended sends no more to these servers: what their replicas lack is
    /// copied at once. A hint of one writer, of which nothing else follows; the next leader does without.
    pub(crate) fn note_left(&self, outcome: &Outcome, chunk: ChunkId, servers: &[ServerId]) {
        if servers.is_empty() || matches!(outcome, Outcome::Refused { .. }) {
            return;
        }
        self.log.with_state(|state| {
            let Some((_, _, found)) = state.chunk(chunk) else { return };
            if !state.is_partly_sealed(chunk) {
                return;
            }
            let named = |place: PlaceIndex| servers.contains(&state.place(place).server);
            let mut left = self.repairs.left.borrow_mut();
            for slot in found.slots().filter(|slot| !slot.sealed && named(slot.place)) {
                if left.len() < REPORTS_MAX {
                    left.insert((chunk, slot.place));
                }
            }
        });
    }

    pub(super) fn note_sealed(&self, chunk: ChunkId, place: ReplicaLocation, len: u32) {
        self.repairs.sealed.borrow_mut().push((chunk, place, len));
        self.repairs.sealed_some.notify_one();
    }

    /// A sealed chunk with the places of its replicas.
    pub(super) fn sealed_chunk(&self, chunk: ChunkId) -> Option<(Chunk, Vec<ReplicaLocation>)> {
        self.log.with_state(|state| {
            let (_, _, found) = state.chunk(chunk)?;
            found.sealed()?;
            let places = found.slots().map(|slot| state.place(slot.place)).collect();
            Some((found.clone(), places))
        })
    }

    /// Seals the replicas of one chunk. True when nothing is left to do for it here.
    async fn seal_chunk(self: &Rc<Self>, id: ChunkId) -> bool {
        let Some((chunk, places)) = self.sealed_chunk(id) else { return true };
        let len = chunk.sealed().expect("sealed");
        let view = self.cluster.view();
        let slots: Vec<_> = chunk.slots().zip(places).collect();
        let mut waiting = Vec::new();
        for &(slot, place) in slots.iter().filter(|(slot, _)| !slot.sealed && !slot.target) {
            let bad = self.repairs.bad.borrow().contains_key(&(id, place));
            match view.state(place) {
                PlaceState::Good(_) if !bad => waiting.push((slot.place, place)),
                PlaceState::Good(_) => {}
                // It is hoped for, or missed, as its server is.
                _ => self.repairs.forget_unsealed(id, slot.place),
            }
        }
        let seal = |&(_, place): &(PlaceIndex, ReplicaLocation)| self.seal_replica(id, place, len);
        let sealed = join_all(waiting.iter().map(seal)).await;
        let (mut short, mut sealed_now) = (Vec::new(), Vec::new());
        let mut whole = true;
        for (&(index, place), outcome) in waiting.iter().zip(sealed) {
            match outcome {
                SealAttempt::Sealed => {
                    sealed_now.push(place);
                    self.note_sealed(id, place, len);
                }
                SealAttempt::Short => short.push((index, place)),
                SealAttempt::Bad(defect) => self.found_bad(id, place, defect),
                SealAttempt::Later | SealAttempt::Barred => {
                    self.repairs.note_unsealed(id, index, self.env.now());
                    whole = false;
                }
            }
        }
        for (index, place) in short {
            let others = self.sources(id, place).into_iter().filter(|at| !sealed_now.contains(at));
            let sources: Vec<_> = sealed_now.iter().copied().chain(others).collect();
            match self.complete_replica(&chunk, (index, place), &sources).await {
                SealAttempt::Sealed => self.note_sealed(id, place, len),
                SealAttempt::Bad(defect) => self.found_bad(id, place, defect),
                SealAttempt::Barred => {
                    self.repairs.note_bad(id, place, Defect::Missing, self.env.now())
                }
                SealAttempt::Short | SealAttempt::Later => whole = false,
            }
        }
        // Replicas on silent servers are tried again, or repaired around.
        whole && waiting.len() == slots.iter().filter(|(slot, _)| !slot.sealed).count()
    }

    pub(super) fn found_bad(&self, chunk: ChunkId, place: ReplicaLocation, defect: Defect) {
        tracing::warn!(%chunk, ?place, ?defect, "a replica is not whole: it will be replaced");
        self.env.mark("bad replica found");
        self.repairs.note_bad(chunk, place, defect, self.env.now());
    }

    async fn seal_replica(&self, chunk: ChunkId, place: ReplicaLocation, len: u32) -> SealAttempt {
        let token = self.chunk_token(chunk, Rights::ALL, base::Epoch::new(u64::MAX));
        let call = self.calls.seal(self.address(place), chunk, len, token);
        let answer = self.env.timeout(self.config.call_timeout, call).await;
        match answer.unwrap_or(Err(CallError::Unreachable)) {
            Ok(stat) if is_whole(&stat, len) => SealAttempt::Sealed,
            Ok(stat) => SealAttempt::Bad(defect_of(&stat)),
            Err(CallError::Data(DataError::Gap { .. } | DataError::NotFound)) => SealAttempt::Short,
            Err(error) => seal_failure(&error),
        }
    }

    /// Copies what a replica lacks. It is fenced first. While its writer may be sending that, it is
    /// left alone: it stays short.
    async fn complete_replica(
        &self,
        chunk: &Chunk,
        (index, place): (PlaceIndex, ReplicaLocation),
        sources: &[ReplicaLocation],
    ) -> SealAttempt {
        let len = chunk.sealed().expect("sealed");
        if !self.gives_back(chunk, sources) {
            return SealAttempt::Later;
        }
        let token = self.chunk_token(chunk.id, Rights::ALL, base::Epoch::new(u64::MAX));
        let to = self.address(place);
        let stat = self.calls.stat(to, chunk.id, token);
        let stat = self.env.timeout(self.config.call_timeout, stat).await;
        let state = stat.unwrap_or(Err(CallError::Unreachable)).map(|stat| stat.state);
        if matches!(state, Ok(ReplicaState::Open) | Err(CallError::Data(DataError::NotFound))) {
            let now = self.env.now();
            let since = self.repairs.short_since(chunk.id, index, now);
            let left = self.repairs.left.borrow().contains(&(chunk.id, index));
            if left {
                self.env.mark("short replica that its writer has left");
            } else if now < since + self.config.chase_grace {
                self.env.mark("short replica left to its writer");
                return SealAttempt::Short;
            }
        }
        self.env.mark("short replica completed");
        match state {
            Ok(ReplicaState::Open) => {
                let fence = self.calls.fence(to, chunk.id, chunk.epoch.next(), token);
                let fenced = self.env.timeout(self.config.call_timeout, fence).await;
                if !matches!(fenced, Ok(Ok(_))) {
                    return SealAttempt::Later;
                }
            }
            Ok(ReplicaState::Tombstone) => self.env.mark("place fenced before its first byte"),
            // Nothing is made where a replica was deleted: another place is to have the copy.
            Ok(ReplicaState::Deleted) => {
                self.env.mark("place of a deleted replica");
                return SealAttempt::Barred;
            }
            Ok(_) | Err(CallError::Data(DataError::NotFound)) => {}
            Err(error) => return seal_failure(&error),
        }
        match self.copy(chunk, place, sources).await {
            Ok((stat, _)) if is_whole(&stat, len) => SealAttempt::Sealed,
            Ok((stat, _)) => SealAttempt::Bad(defect_of(&stat)),
            // No source has some byte now: the replica is no worse than it was.
            Err(error) if error.kind() == Kind::Reroute => SealAttempt::Later,
            Err(error) => seal_failure(&error),
        }
    }

    /// Copies a sealed chunk to a place that is on record: of a coded chunk its fragment, decoded of
    /// others.
    pub(super) async fn copy(
        &self,
        chunk: &Chunk,
        place: ReplicaLocation,
        sources: &[ReplicaLocation],
    ) -> Result<(ReplicaStat, u64), CallError> {
        let order = CopyOrder {
            chunk: chunk.id,
            epoch: chunk.epoch,
            base: chunk.base,
            len: chunk.sealed().expect("sealed"),
            sources: self.addresses(chunk.id, sources),
            token: self.chunk_token(chunk.id, Rights::READ, base::Epoch::NONE).0,
            seal: true,
            // Taken off the record since: the chunk is looked at again.
            fragment: self.fragment_at(chunk, place).map_err(|_| CallError::Unreachable)?,
            urgent: self.is_urgent(chunk.id),
        };
        let call = self.calls.replicate(self.address(place), order);
        let answer = self.env.timeout(self.config.copy_timeout, call).await;
        answer.unwrap_or(Err(CallError::Unreachable))
    }

    /// Asks for the state of replicas that were reported, apart from seals: many may be on a server that
    /// does not answer.
    pub(super) async fn check_reports(self: Rc<Self>) {
        loop {
            self.wait(&self.repairs.reported_some, self.config.scan_interval).await;
            if !self.leads() {
                continue;
            }
            let reports = std::mem::take(&mut *self.reports.borrow_mut());
            stream::iter(reports)
                .for_each_concurrent(CHECKS_MAX, async |(chunk, place)| {
                    if self.leads() {
                        self.check_report(chunk, place).await;
                    }
                })
                .await;
        }
    }

    async fn check_report(&self, chunk: ChunkId, place: ReplicaLocation) {
        let slot = self.log.with_state(|state| {
            let (_, stream, found) = state.chunk(chunk)?;
            let slot = found.slots().find(|slot| state.place(slot.place) == place)?;
            let tail = stream.tail().is_some_and(|tail| tail.id == chunk);
            (slot.sealed || tail).then_some(found.sealed())
        });
        let Some(sealed) = slot else { return };
        if let Some(defect) = self.check_replica(chunk, place, sealed).await {
            self.found_bad(chunk, place, defect);
        } else if sealed.is_some() {
            // A reader may have found cells that do not belong together.
            self.suspect_rows(chunk);
        }
    }

    /// The fault of a replica, by its server's answer. A server without the disk says nothing of
    /// the replica: the state of the location decides then.
    async fn check_replica(
        &self,
        chunk: ChunkId,
        place: ReplicaLocation,
        sealed: Option<u32>,
    ) -> Option<Defect> {
        let token = self.chunk_token(chunk, Rights::ALL, base::Epoch::new(u64::MAX));
        let call = self.calls.stat(self.address(place), chunk, token);
        let answer = self.env.timeout(self.config.call_timeout, call).await;
        match (answer.unwrap_or(Err(CallError::Unreachable)), sealed) {
            (Ok(stat), Some(len)) => (!is_whole(&stat, len)).then(|| defect_of(&stat)),
            (Ok(stat), None) => (stat.len < stat.durable_bound).then_some(Defect::Damaged),
            (Err(CallError::Data(DataError::NotFound)), Some(_)) => Some(Defect::Missing),
            // An open chunk has no replica where nothing was written yet.
            (Err(_), _) => None,
        }
    }

    /// Sources of a chunk's bytes for the replica at `to`: whole replicas first, then those that
    /// are not known to be whole, of which each byte that verifies is right.
    pub(super) fn sources(&self, id: ChunkId, to: ReplicaLocation) -> Vec<ReplicaLocation> {
        let Some((_, replicas)) = self.judged(id) else { return Vec::new() };
        let whole = replicas.iter().filter(|replica| replica.is_source());
        let own = replicas.iter().find(|replica| replica.place == to).map(|it| it.slot.fragment);
        let rest = replicas.iter().filter(|replica| {
            let is_own = own == Some(replica.slot.fragment);
            replica.is_last_resort() && !(is_own && replica.bad == Some(Defect::Wrong))
        });
        whole.chain(rest).map(|replica| replica.place).filter(|&place| place != to).collect()
    }
}

fn seal_failure(error: &CallError) -> SealAttempt {
    match error {
        CallError::Data(DataError::WrongDisk | DataError::DiskFailed) => SealAttempt::Later,
        error if error.is_passing() => SealAttempt::Later,
        CallError::Data(DataError::NotFound) => SealAttempt::Bad(Defect::Missing),
        _ => SealAttempt::Bad(Defect::Damaged),
    }
}

fn defect_of(stat: &ReplicaStat) -> Defect {
    match stat.state {
        ReplicaState::Open | ReplicaState::Fenced(_) | ReplicaState::Sealed => Defect::Damaged,
        ReplicaState::Repairing | ReplicaState::Tombstone | ReplicaState::Deleted => {
            Defect::Missing
        }
    }
}

/// True when a replica is sealed at `len` and reads whole.
pub(super) fn is_whole(stat: &ReplicaStat, len: u32) -> bool {
    stat.state == ReplicaState::Sealed && stat.len == len && stat.durable_bound <= len
}
