//! Repair of one chunk: make the missing replicas, then drop the useless ones.
//!
//! A damaged replica is kept until the copies that replace it are sealed and every whole replica
//! has been read to its end: it may be the last to have some sector. Until then it is a source of
//! last resort. Replicas of servers and disks that are gone stay on record as long, and count again
//! when they return first.

use std::rc::Rc;

use base::{ChunkId, Kind};
use runtime::{Class, Duration};
use wire::control::ControlError;
use wire::data::Purpose;

use super::judged::{Judged, Worth, distinct, is_complete, must_stay};
use super::seal::{RETRY, is_whole};
use super::{Defect, Setback};
use crate::limits::TORN_COPIES_MAX;
use crate::placement::{PlaceState, ReplicaLocation, Wanted, choose};
use crate::planted::{Planted, planted};
use crate::{Action, Chunk, Log, Outcome, Service, Slot};

/// Result of choosing places for missing replicas.
enum Missing {
    /// None is missing, or there is nothing to copy from.
    None,
    /// New replicas are on record.
    Added,
    /// There is no place, or no room on record.
    NoPlace,
}

impl<L: Log> Service<L> {
    /// One of the repair workers that are always there.
    pub(super) async fn repair_chunks(self: Rc<Self>) {
        loop {
            self.repair_queued().await;
            self.wait(&self.repairs.queued_some, self.config.scan_interval).await;
        }
    }

    /// Adds workers to those that are always there, while more chunks wait than they take and the
    /// cluster has disks for more: a large one is whole again sooner (`protocols-tail.md` 10.14).
    pub(super) fn add_repair_workers(self: &Rc<Self>) {
        let more = self.config.repair_width(self.cluster.view().disks())
            - self.config.repair_parallel.max(1);
        let waiting = self.repairs.queue.borrow().len();
        while self.repairs.more_workers.get() < more.min(waiting) {
            self.repairs.more_workers.set(self.repairs.more_workers.get() + 1);
            self.env.mark("repair has more workers");
            let service = self.clone();
            self.env.spawn(Class::Background, "repair more chunks", async move {
                service.repair_queued().await;
                service.repairs.more_workers.set(service.repairs.more_workers.get() - 1);
            });
        }
    }

    /// Repairs chunks while any waits, those in the greatest danger first.
    async fn repair_queued(&self) {
        while let Some(chunk) = self.next_repair() {
            let result = self.repair_chunk(chunk).await;
            self.repairs.verified.borrow_mut().retain(|&(of, _)| of != chunk);
            self.repairs.busy.borrow_mut().remove(&chunk);
            let complete =
                self.judged(chunk).is_none_or(|(chunk, replicas)| is_complete(&chunk, &replicas));
            if complete {
                self.repairs.under_replicated.borrow_mut().remove(&chunk);
            }
            if complete || matches!(result, Ok(1..)) {
                self.repairs.setbacks.borrow_mut().remove(&chunk);
            } else {
                self.note_setback(chunk);
            }
            match result {
                Ok(bytes) => self.count_repair(u64::from(bytes > 0), bytes),
                Err(error) => tracing::debug!(%chunk, %error, "a repair did not finish"),
            }
        }
    }

    fn next_repair(&self) -> Option<ChunkId> {
        if !self.leads() {
            return None;
        }
        let mut busy = self.repairs.busy.borrow_mut();
        loop {
            let (_, chunk) = self.repairs.queue.borrow_mut().pop_first()?;
            if busy.insert(chunk) {
                return Some(chunk);
            }
        }
    }

    /// The repair brought nothing: it is tried again after a pause, which grows.
    fn note_setback(&self, chunk: ChunkId) {
        let mut setbacks = self.repairs.setbacks.borrow_mut();
        let now = self.env.now();
        let setback = setbacks.entry(chunk).or_insert(Setback { at: now, pause: RETRY.0, torn: 0 });
        setback.at = now + self.env.jitter(setback.pause);
        setback.pause = (setback.pause * 2).min(RETRY.1);
    }

    /// Counts copies that found no source for some byte, in a row.
    fn note_torn(&self, chunk: ChunkId) -> u32 {
        let mut setbacks = self.repairs.setbacks.borrow_mut();
        let fresh = Setback { at: self.env.now(), pause: RETRY.0, torn: 0 };
        let setback = setbacks.entry(chunk).or_insert(fresh);
        setback.torn += 1;
        setback.torn
    }

    /// The chunk as it is now.
    pub(super) fn judged(&self, id: ChunkId) -> Option<(Chunk, Vec<Judged>)> {
        let view = self.cluster.view();
        self.log.with_state(|state| {
            let (_, _, chunk) = state.chunk(id)?;
            chunk.sealed()?;
            let replicas = self.judge_chunk(&view, state, chunk);
            Some((chunk.clone(), replicas))
        })
    }

    /// Restores a chunk's redundancy as far as the cluster allows. Returns the bytes copied.
    async fn repair_chunk(&self, id: ChunkId) -> Result<u64, ControlError> {
        let mut copied = self.fill_targets(id).await?;
        match self.add_missing(id).await? {
            Missing::Added => copied += self.fill_targets(id).await?,
            Missing::NoPlace => self.give_way(id).await?,
            Missing::None => {}
        }
        self.drop_useless(id).await?;
        Ok(copied)
    }

    /// Makes the replicas that are on record as being made, of this leader or one before it.
    pub(super) async fn fill_targets(&self, id: ChunkId) -> Result<u64, ControlError> {
        let Some((chunk, replicas)) = self.judged(id) else { return Ok(0) };
        let mut copied = 0;
        for target in replicas.iter().filter(|replica| replica.slot.target) {
            match target.worth {
                _ if target.leaves => {
                    self.drop_replica(id, target.place, Vec::new()).await?;
                    continue;
                }
                Worth::Hoped => continue,
                Worth::Dead => {
                    self.drop_replica(id, target.place, Vec::new()).await?;
                    continue;
                }
                Worth::Good => {}
            }
            let sources = self.sources(id, target.place);
            if !self.gives_back(&chunk, &sources) {
                return Ok(copied);
            }
            copied += self.fill_target(&chunk, target.place, &sources).await?;
        }
        Ok(copied)
    }

    async fn fill_target(
        &self,
        chunk: &Chunk,
        place: ReplicaLocation,
        sources: &[ReplicaLocation],
    ) -> Result<u64, ControlError> {
        let (id, len) = (chunk.id, chunk.sealed().expect("judged chunks are sealed"));
        self.keep_pace(u64::from(len)).await;
        match self.copy(chunk, place, sources).await {
            Ok((stat, bytes)) if is_whole(&stat, len) => {
                self.env.mark("chunk repaired");
                tracing::info!(chunk = %id, ?place, bytes, "repaired a chunk");
                self.repairs.verified.borrow_mut().insert((id, place));
                let replicas = vec![(id, place, len)];
                self.decide(Action::SealReplicas { replicas }).await?;
                return Ok(bytes.max(1));
            }
            // It may be full for ever: another disk has room, or will.
            Err(error) if error.kind() == Kind::Full => {
                self.env.mark("repair leaves a full disk");
                tracing::info!(chunk = %id, ?place, "a copy found no room");
                self.drop_replica(id, place, Vec::new()).await?;
            }
            // No source has some byte now. Copied bytes stay, and the copy goes on there when a
            // source is back.
            Err(error) if error.kind() == Kind::Reroute => {
                self.env.mark("copy finds no source for a byte");
                tracing::warn!(chunk = %id, ?place, %error, "a copy has no source for some bytes");
                if self.note_torn(id).is_multiple_of(TORN_COPIES_MAX) {
                    self.drop_replica(id, place, Vec::new()).await?;
                }
            }
            Err(error) if error.is_passing() => {
                tracing::debug!(chunk = %id, ?place, %error, "a copy failed");
            }
            failed => {
                tracing::warn!(chunk = %id, ?place, ?failed, "a copy failed");
                self.drop_replica(id, place, Vec::new()).await?;
            }
        }
        Ok(0)
    }

    /// Waits until a copy of `bytes` fits the pace.
    pub(super) async fn keep_pace(&self, bytes: u64) {
        let rate = self.config.repair_rate(self.cluster.view().disks());
        let now = self.env.now();
        let start = self.repairs.next_copy.get().max(now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.repairs.next_copy.set(start + takes);
        if start > now {
            self.env.sleep_until(start).await;
        }
    }

    /// Records new replicas for those that are missing, of a coded chunk with the fragments that are.
    async fn add_missing(&self, id: ChunkId) -> Result<Missing, ControlError> {
        let Some((chunk, replicas)) = self.judged(id) else { return Ok(Missing::None) };
        let copies = chunk.copies;
        let source = |it: &Judged| it.is_source() || it.is_last_resort();
        let has_source = distinct(&chunk, &replicas, source) >= chunk.data();
        let useful = |replica: &&Judged| {
            let made = replica.slot.target && replica.worth == Worth::Good && !replica.leaves;
            replica.counts() || made
        };
        // One of each fragment, of which there may be two for a while.
        let once = |at: usize, it: &Judged| {
            let other = |other: &Judged| useful(&other) && other.slot.fragment == it.slot.fragment;
            !chunk.is_coded() || !replicas[..at].iter().any(other)
        };
        let have = replicas.iter().enumerate().filter(|&(at, it)| useful(&it) && once(at, it));
        let have: Vec<_> = have.map(|(_, replica)| replica.place).collect();
        let missing = chunk.missing(replicas.iter().filter(useful).map(|replica| replica.slot));
        let room = chunk.slots_max() - chunk.len_slots();
        if missing.is_empty() || !has_source {
            return Ok(Missing::None);
        }
        let dead: Vec<ReplicaLocation> = self.log.with_state(|state| {
            let places = state.places().map(|(_, place)| place);
            places.filter(|&place| state.dead(id, place).is_some()).collect()
        });
        let view = self.cluster.view();
        let on_record = replicas.iter().map(|replica| replica.place);
        let never: Vec<_> = on_record.chain(dead).chain(self.barred(&view, &chunk)).collect();
        let need = chunk.replica_len(chunk.sealed().expect("judged chunks are sealed"));
        let (avoid, purpose) = (&[][..], Purpose::Data);
        let wanted = Wanted { copies, have: &have, never: &never, avoid, floor: 0, need, purpose };
        let chosen = choose(&view, &wanted, &mut |bound| self.env.random_below(bound));
        let mut places = chosen.unwrap_or_default();
        places.truncate(room);
        if places.is_empty() {
            self.env.mark("repair finds no place");
            return Ok(Missing::NoPlace);
        }
        let action = Action::add(&chunk, chunk.epoch, &places, &missing);
        Ok(match self.decide(action).await? {
            Outcome::Refused { .. } => Missing::None,
            _ => Missing::Added,
        })
    }

    /// Drops one replica that is of no more use where its place, or its room on record, is all that
    /// a replacement can get: with as many servers as copies a damaged replica would stay for ever.
    /// No other place has come for long, and what is whole has been read to its end.
    async fn give_way(&self, id: ChunkId) -> Result<(), ControlError> {
        let Some((chunk, replicas)) = self.judged(id) else { return Ok(()) };
        let full = chunk.len_slots() == chunk.slots_max();
        // A place is about to be free.
        let freed = |place: &ReplicaLocation| {
            let good = matches!(self.cluster.view().state(*place), PlaceState::Good(_));
            good && self.log.with_state(|state| state.dead(id, *place).is_some())
        };
        let places: Vec<_> =
            self.log.with_state(|state| state.places().map(|(_, place)| place).collect());
        // Two whole ones stay, where the policy asks for more than two: a single one has no other
        // to restore it from. Of a code one more than give the bytes back.
        let (k, others) = (chunk.data(), usize::from(chunk.copies).saturating_sub(1));
        let enough = distinct(&chunk, &replicas, Judged::is_source) >= others.clamp(k, k + 1);
        let for_long = |place| {
            let bad = self.repairs.bad.borrow();
            let age = bad.get(&(id, place)).map(|&(_, since)| self.env.now().since(since));
            age.is_some_and(|age| age >= self.config.open_grace)
        };
        // A fragment that is there twice has the place of one that lacks: its first holder came back
        // when another was made.
        let stays = replicas.iter().filter(|it| it.stays()).map(|it| it.place);
        let twice = match chunk.is_coded() {
            true => self.surplus(&chunk, &stays.collect::<Vec<_>>()),
            false => None,
        };
        let worthless = replicas.iter().find(|it| Some(it.place) == twice).or_else(|| {
            replicas.iter().find(|replica| match replica.worth {
                Worth::Good => enough && for_long(replica.place),
                Worth::Dead => full && !replica.slot.target,
                Worth::Hoped => false,
            })
        });
        let Some(worthless) = worthless else { return Ok(()) };
        if !full && places.iter().any(freed) {
            return Ok(());
        }
        let Some(mut remaining) = self.verified_sources(id).await else { return Ok(()) };
        remaining.retain(|&place| place != worthless.place);
        if chunk.may_lose(worthless.slot, &self.slots_at(id, &remaining)) {
            self.env.mark("damaged replica gives way");
            self.drop_replica(id, worthless.place, remaining).await?;
        }
        Ok(())
    }

    /// The whole replicas of a chunk, each read to its end. `None` when one of them is not whole,
    /// or could not be read now.
    async fn verified_sources(&self, id: ChunkId) -> Option<Vec<ReplicaLocation>> {
        let (chunk, replicas) = self.judged(id)?;
        let len = chunk.sealed().expect("judged chunks are sealed");
        for replica in replicas.iter().filter(|replica| replica.is_source()) {
            let place = replica.place;
            if self.repairs.verified.borrow().contains(&(id, place)) {
                continue;
            }
            self.keep_pace(u64::from(len)).await;
            // An order to copy what is there already is one to read it.
            match self.copy(&chunk, place, &[place]).await {
                Ok((stat, _)) if is_whole(&stat, len) => {
                    self.repairs.verified.borrow_mut().insert((id, place));
                }
                Err(error) if error.is_passing() || error.kind() == Kind::Reroute => return None,
                Ok(_) | Err(_) => {
                    self.env.mark("replica damaged when the last resort was to go");
                    self.found_bad(id, place, Defect::Damaged);
                    return None;
                }
            }
        }
        let (_, replicas) = self.judged(id)?;
        let now = replicas.iter().filter(|replica| replica.is_source()).map(|it| it.place);
        let now: Vec<_> = now.collect();
        let verified = self.repairs.verified.borrow();
        now.iter().all(|&place| verified.contains(&(id, place))).then_some(now)
    }

    /// Drops replicas that are no use: what is not there at once, all else when all copies are
    /// there.
    async fn drop_useless(&self, id: ChunkId) -> Result<(), ControlError> {
        let Some((chunk, replicas)) = self.judged(id) else { return Ok(()) };
        let sources = replicas.iter().filter(|it| it.is_source());
        let (good, slots): (Vec<_>, Vec<_>) = sources.map(|it| (it.place, it.slot)).unzip();
        let nothing = |it: &&Judged| it.worth == Worth::Good && it.bad == Some(Defect::Missing);
        for replica in replicas.iter().filter(nothing) {
            if chunk.may_lose(replica.slot, &slots) {
                self.drop_replica(id, replica.place, good.clone()).await?;
            }
        }
        let enough = must_stay(&chunk);
        if distinct(&chunk, &replicas, Judged::stays) < enough {
            return Ok(());
        }
        let is_damage = |bad| matches!(bad, Defect::Damaged | Defect::Wrong);
        let damaged = |it: &Judged| !it.slot.target && it.bad.is_some_and(is_damage);
        if replicas.iter().any(damaged) {
            // Several leaders read each for itself; a new fault is for the next round.
            let verified = self.verified_sources(id).await;
            let whole = |whole: Vec<_>| chunk.distinct(self.slots_at(id, &whole).into_iter());
            if verified.map_or(0, whole) < enough {
                return Ok(());
            }
        }
        let Some((chunk, replicas)) = self.judged(id) else { return Ok(()) };
        let mut good: Vec<_> = replicas.iter().filter(|it| it.stays()).map(|it| it.place).collect();
        if distinct(&chunk, &replicas, Judged::stays) < must_stay(&chunk) {
            return Ok(());
        }
        for replica in &replicas {
            if replica.slot.target {
                self.drop_replica(id, replica.place, Vec::new()).await?;
            } else if replica.leaves {
                self.drop_leaving(id, replica.place).await?;
            } else if !replica.is_source() && replica.worth != Worth::Hoped {
                // Damaged, gone, or not sealed: its server came back while it was repaired around.
                self.drop_replica(id, replica.place, good.clone()).await?;
            }
        }
        while let Some(surplus) = self.surplus(&chunk, &good) {
            good.retain(|&place| place != surplus);
            self.drop_replica(id, surplus, good.clone()).await?;
        }
        Ok(())
    }

    /// Of whole replicas one too many, if there is one: a copy beyond their number, or a fragment that
    /// is there twice.
    fn surplus(&self, chunk: &Chunk, good: &[ReplicaLocation]) -> Option<ReplicaLocation> {
        let counts = !chunk.is_coded() || planted(Planted::SameFragmentTwice);
        if counts && good.len() <= usize::from(chunk.copies) {
            return None;
        }
        let slots = self.slots_at(chunk.id, good);
        let twice =
            |slot: &Slot| slots.iter().filter(|other| other.fragment == slot.fragment).count() > 1;
        let places = self.log.with_state(|state| {
            let twice = slots.iter().filter(|slot| twice(slot));
            twice.map(|slot| state.place(slot.place)).collect::<Vec<_>>()
        });
        (!places.is_empty()).then(|| self.most_crowded(&places, good))
    }

    /// Of `some` of the whole replicas, one too many, that which spreads all of them least, or is on
    /// the fullest disk.
    fn most_crowded(&self, some: &[ReplicaLocation], good: &[ReplicaLocation]) -> ReplicaLocation {
        let view = self.cluster.view();
        let domain =
            |place: &ReplicaLocation| view.server(place.server).map(|server| &server.domain);
        let crowd = |place: &&ReplicaLocation| {
            let near = |other: &&ReplicaLocation| domain(other) == domain(place);
            let server = view.server(place.server);
            let disk = server.and_then(|it| it.disks.iter().find(|it| it.disk == place.disk));
            let full = disk.map_or(0, |disk| disk.used.saturating_mul(100) / disk.capacity.max(1));
            let load = server.map_or(0, |server| server.load);
            (good.iter().filter(near).count(), full, load, **place)
        };
        *some.iter().max_by_key(crowd).expect("one too many")
    }

    /// Takes a replica off the record and leaves it to the collector, which deletes it once no
    /// right to it is alive (`protocols.md` 2.4).
    pub(super) async fn drop_replica(
        &self,
        chunk: ChunkId,
        place: ReplicaLocation,
        remaining: Vec<ReplicaLocation>,
    ) -> Result<(), ControlError> {
        let delete_at_ms = self.rights_end_ms();
        let action = Action::DropReplica { chunk, place, remaining, delete_at_ms };
        let outcome = self.decide(action).await?;
        if !matches!(outcome, Outcome::Refused { .. }) {
            self.repairs.bad.borrow_mut().remove(&(chunk, place));
            tracing::debug!(%chunk, ?place, "dropped a replica");
        }
        Ok(())
    }
}
