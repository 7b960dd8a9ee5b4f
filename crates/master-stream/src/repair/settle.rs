//! Sealing the replicas of chunks whose length is committed: after an advance, a close, or a
//! recovery. Short replicas are completed, damaged ones are left to repair.

use std::rc::Rc;

use base::{ChunkId, Kind};
use futures_util::future::join_all;
use runtime::{Class, Duration};
use wire::data::{DataError, ReplicaStat, ReplicaState};
use wire::token::Rights;

use super::{Flaw, Retry};
use crate::limits::{BATCH_MAX, SETTLE_QUEUE_MAX};
use crate::placement::{PlaceState, ReplicaLocation};
use crate::{Action, CallError, Chunk, CopyOrder, Log, Service};

/// Pauses between two attempts to settle a chunk: first and longest.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Result for one replica.
enum Settled {
    Yes,
    /// It has fewer bytes, and may be completed.
    Short,
    Bad(Flaw),
    /// It does not answer now.
    Later,
    /// A fence came before its first byte: none can be made there any more.
    Barred,
}

impl<L: Log> Service<L> {
    pub(super) async fn settle_chunks(self: Rc<Self>) {
        loop {
            self.wait(&self.work, self.config.scan_interval).await;
            if !self.leads() {
                continue;
            }
            self.look_into_reports().await;
            let now = self.env.now();
            let due: Vec<_> = self.log.with_state(|state| {
                let mut settling = self.repairs.settling.borrow_mut();
                if settling.len() > SETTLE_QUEUE_MAX {
                    settling
                        .retain(|&chunk, retry| retry.at.is_none() || state.is_unsettled(chunk));
                }
                let due = |chunk: &ChunkId| {
                    settling.get(chunk).is_none_or(|retry| retry.at.is_some_and(|at| at <= now))
                };
                state.unsettled().filter(due).take(SETTLE_QUEUE_MAX).collect()
            });
            for chunk in due {
                let permits = self.repairs.settle_permits.clone();
                let Ok(permit) = permits.acquire_owned().await else { return };
                let mut settling = self.repairs.settling.borrow_mut();
                let pause = settling.get(&chunk).map_or(RETRY.0, |retry| retry.pause);
                settling.insert(chunk, Retry { at: None, pause });
                let service = self.clone();
                self.env.spawn(Class::Background, "settle a chunk", async move {
                    let whole = service.settle_chunk(chunk).await;
                    drop(permit);
                    let mut settling = service.repairs.settling.borrow_mut();
                    if whole {
                        settling.remove(&chunk);
                        return;
                    }
                    let at = Some(service.env.now() + service.env.jitter(pause));
                    settling.insert(chunk, Retry { at, pause: (pause * 2).min(RETRY.1) });
                });
            }
        }
    }

    /// Commits what was settled, many replicas with one command.
    pub(super) async fn commit_settled(self: Rc<Self>) {
        loop {
            self.wait(&self.repairs.settled_some, self.config.scan_interval).await;
            while self.leads() {
                let mut replicas = std::mem::take(&mut *self.repairs.settled.borrow_mut());
                if replicas.is_empty() {
                    break;
                }
                let rest = replicas.split_off(replicas.len().min(BATCH_MAX));
                self.repairs.settled.borrow_mut().extend(rest);
                if self.decide(Action::Settle { replicas }).await.is_err() {
                    break; // Found again: the chunks are still unsettled.
                }
            }
        }
    }

    pub(super) fn note_settled(&self, chunk: ChunkId, place: ReplicaLocation, len: u32) {
        self.repairs.settled.borrow_mut().push((chunk, place, len));
        self.repairs.settled_some.notify_one();
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
    async fn settle_chunk(self: &Rc<Self>, id: ChunkId) -> bool {
        let Some((chunk, places)) = self.sealed_chunk(id) else { return true };
        let len = chunk.sealed().expect("sealed");
        let view = self.cluster.view();
        let slots: Vec<_> = chunk.slots().zip(places).collect();
        let waiting: Vec<_> = slots
            .iter()
            .filter(|(slot, place)| {
                let bad = self.repairs.bad.borrow().contains_key(&(id, *place));
                let good = matches!(view.state(*place), PlaceState::Good(_));
                !slot.settled && !slot.target && !bad && good
            })
            .map(|&(_, place)| place)
            .collect();
        let sealed = join_all(waiting.iter().map(|&place| self.seal_replica(id, place, len))).await;
        let (mut short, mut sealed_now) = (Vec::new(), Vec::new());
        let mut whole = true;
        for (&place, outcome) in waiting.iter().zip(sealed) {
            match outcome {
                Settled::Yes => {
                    sealed_now.push(place);
                    self.note_settled(id, place, len);
                }
                Settled::Short => short.push(place),
                Settled::Bad(flaw) => self.found_bad(id, place, flaw),
                Settled::Later | Settled::Barred => whole = false,
            }
        }
        for place in short {
            let others = self.sources(id, place).into_iter().filter(|at| !sealed_now.contains(at));
            let sources: Vec<_> = sealed_now.iter().copied().chain(others).collect();
            match self.complete_replica(&chunk, place, &sources).await {
                Settled::Yes => self.note_settled(id, place, len),
                Settled::Bad(flaw) => self.found_bad(id, place, flaw),
                Settled::Barred => self.repairs.note_bad(id, place, Flaw::Missing, self.env.now()),
                Settled::Short | Settled::Later => whole = false,
            }
        }
        // Replicas on silent servers are tried again, or repaired around.
        whole && waiting.len() == slots.iter().filter(|(slot, _)| !slot.settled).count()
    }

    pub(super) fn found_bad(&self, chunk: ChunkId, place: ReplicaLocation, flaw: Flaw) {
        tracing::warn!(%chunk, ?place, ?flaw, "a replica is not whole: it will be replaced");
        self.env.mark("bad replica found");
        self.repairs.note_bad(chunk, place, flaw, self.env.now());
    }

    async fn seal_replica(&self, chunk: ChunkId, place: ReplicaLocation, len: u32) -> Settled {
        let token = self.chunk_token(chunk, Rights::ALL, base::Epoch::new(u64::MAX));
        let call = self.calls.seal(self.address(place), chunk, len, token);
        let answer = self.env.timeout(self.config.call_timeout, call).await;
        match answer.unwrap_or(Err(CallError::Unreachable)) {
            Ok(stat) if is_whole(&stat, len) => Settled::Yes,
            Ok(stat) => Settled::Bad(flaw_of(&stat)),
            Err(CallError::Data(DataError::Gap { .. } | DataError::NotFound)) => Settled::Short,
            Err(error) => settled_later(&error),
        }
    }

    /// Copies what a replica lacks. It is fenced first: its writer is done with it.
    async fn complete_replica(
        &self,
        chunk: &Chunk,
        place: ReplicaLocation,
        sources: &[ReplicaLocation],
    ) -> Settled {
        let len = chunk.sealed().expect("sealed");
        if sources.is_empty() {
            return Settled::Later;
        }
        self.env.mark("short replica completed");
        let token = self.chunk_token(chunk.id, Rights::ALL, base::Epoch::new(u64::MAX));
        let to = self.address(place);
        let stat = self.calls.stat(to, chunk.id, token);
        let stat = self.env.timeout(self.config.call_timeout, stat).await;
        match stat.unwrap_or(Err(CallError::Unreachable)).map(|stat| stat.state) {
            Ok(ReplicaState::Open) => {
                let fence = self.calls.fence(to, chunk.id, chunk.epoch.next(), token);
                let fenced = self.env.timeout(self.config.call_timeout, fence).await;
                if !matches!(fenced, Ok(Ok(_))) {
                    return Settled::Later;
                }
            }
            // Nothing can be made where a tombstone is: another place is to have the copy.
            Ok(ReplicaState::Tombstone) => {
                self.env.mark("place fenced before its first byte");
                return Settled::Barred;
            }
            Ok(_) | Err(CallError::Data(DataError::NotFound)) => {}
            Err(error) => return settled_later(&error),
        }
        match self.copy(chunk, place, sources).await {
            Ok((stat, _)) if is_whole(&stat, len) => Settled::Yes,
            Ok((stat, _)) => Settled::Bad(flaw_of(&stat)),
            // No source has some byte now: the replica is no worse than it was.
            Err(error) if error.kind() == Kind::Reroute => Settled::Later,
            Err(error) => settled_later(&error),
        }
    }

    /// Copies a sealed chunk to a place that is on record.
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
            sources: sources.iter().map(|&source| self.address(source)).collect(),
            token: self.chunk_token(chunk.id, Rights::READ, base::Epoch::NONE),
            seal: true,
        };
        let call = self.calls.replicate(self.address(place), order);
        let answer = self.env.timeout(self.config.copy_timeout, call).await;
        answer.unwrap_or(Err(CallError::Unreachable))
    }

    /// Asks for the state of replicas that were reported.
    async fn look_into_reports(&self) {
        let reports = std::mem::take(&mut *self.reports.borrow_mut());
        for (chunk, place) in reports {
            let slot = self.log.with_state(|state| {
                let (_, stream, found) = state.chunk(chunk)?;
                let slot = found.slots().find(|slot| state.place(slot.place) == place)?;
                let tail = stream.tail().is_some_and(|tail| tail.id == chunk);
                (slot.settled || tail).then_some(found.sealed())
            });
            let Some(sealed) = slot else { continue };
            if let Some(flaw) = self.look_at(chunk, place, sealed).await {
                self.found_bad(chunk, place, flaw);
            }
        }
    }

    /// The fault of a replica, by its server's answer. A server without the disk says nothing of
    /// the replica: the state of the location decides then.
    async fn look_at(
        &self,
        chunk: ChunkId,
        place: ReplicaLocation,
        sealed: Option<u32>,
    ) -> Option<Flaw> {
        let token = self.chunk_token(chunk, Rights::ALL, base::Epoch::new(u64::MAX));
        let call = self.calls.stat(self.address(place), chunk, token);
        let answer = self.env.timeout(self.config.call_timeout, call).await;
        match (answer.unwrap_or(Err(CallError::Unreachable)), sealed) {
            (Ok(stat), Some(len)) => (!is_whole(&stat, len)).then(|| flaw_of(&stat)),
            (Ok(stat), None) => (stat.len < stat.durable_bound).then_some(Flaw::Damaged),
            (Err(CallError::Data(DataError::NotFound)), Some(_)) => Some(Flaw::Missing),
            // An open chunk has no replica where nothing was written yet.
            (Err(_), _) => None,
        }
    }

    /// Sources of a chunk's bytes for the replica at `to`: whole replicas first, then those that
    /// are not known to be whole, of which each byte that verifies is right.
    pub(super) fn sources(&self, id: ChunkId, to: ReplicaLocation) -> Vec<ReplicaLocation> {
        let Some((_, _, replicas)) = self.judged(id) else { return Vec::new() };
        let whole = replicas.iter().filter(|replica| replica.is_source());
        let rest = replicas.iter().filter(|replica| replica.is_last_resort());
        whole.chain(rest).map(|replica| replica.place).filter(|&place| place != to).collect()
    }
}

fn settled_later(error: &CallError) -> Settled {
    match error {
        CallError::Data(DataError::WrongDisk | DataError::DiskFailed) => Settled::Later,
        error if error.is_passing() => Settled::Later,
        CallError::Data(DataError::NotFound) => Settled::Bad(Flaw::Missing),
        _ => Settled::Bad(Flaw::Damaged),
    }
}

fn flaw_of(stat: &ReplicaStat) -> Flaw {
    match stat.state {
        ReplicaState::Open | ReplicaState::Fenced(_) | ReplicaState::Sealed => Flaw::Damaged,
        ReplicaState::Repairing | ReplicaState::Tombstone => Flaw::Missing,
    }
}

/// True when a replica is sealed at `len` and reads whole.
pub(super) fn is_whole(stat: &ReplicaStat, len: u32) -> bool {
    stat.state == ReplicaState::Sealed && stat.len == len && stat.durable_bound <= len
}
