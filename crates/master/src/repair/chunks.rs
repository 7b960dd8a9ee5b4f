//! Repair of one chunk: make what is missing, then drop what is no use.

use std::rc::Rc;

use base::{ChunkId, Kind};
use runtime::Duration;
use wire::control::ControlError;

use super::scan::{Judged, Worth, is_complete};
use super::settle::is_whole;
use crate::placement::{Place, Wanted, choose};
use crate::stream::limits::SLOTS_MAX;
use crate::stream::{Action, Chunk, Log, Outcome, Service};

impl<L: Log> Service<L> {
    /// One of the repair workers: takes the chunk in the greatest danger.
    pub(super) async fn repair_chunks(self: Rc<Self>) {
        loop {
            let next = self.next_repair();
            let Some(chunk) = next else {
                self.wait(&self.repairs.queued_some, self.config.scan_interval).await;
                continue;
            };
            let result = self.repair_chunk(chunk).await;
            self.repairs.busy.borrow_mut().remove(&chunk);
            if self.judged(chunk).is_none_or(|(_, copies, replicas)| is_complete(copies, &replicas))
            {
                self.repairs.ailing.borrow_mut().remove(&chunk);
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

    /// The chunk as it is now.
    pub(super) fn judged(&self, id: ChunkId) -> Option<(Chunk, u8, Vec<Judged>)> {
        let view = self.cluster.view();
        self.log.with_state(|state| {
            let (_, stream, chunk) = state.chunk(id)?;
            chunk.sealed()?;
            let replicas = self.judge_chunk(&view, state, chunk);
            Some((chunk.clone(), stream.policy.copies, replicas))
        })
    }

    /// Restores a chunk's redundancy as far as the cluster allows. Returns the bytes copied.
    async fn repair_chunk(&self, id: ChunkId) -> Result<u64, ControlError> {
        let mut copied = self.fill_targets(id).await?;
        if self.add_missing(id).await? {
            copied += self.fill_targets(id).await?;
        }
        self.drop_useless(id).await?;
        Ok(copied)
    }

    /// Makes the replicas that are on record as being made, of this leader or one before it.
    pub(super) async fn fill_targets(&self, id: ChunkId) -> Result<u64, ControlError> {
        let Some((chunk, _, replicas)) = self.judged(id) else { return Ok(0) };
        let len = chunk.sealed().expect("judged chunks are sealed");
        let sources: Vec<_> =
            replicas.iter().filter(|replica| replica.is_source()).map(|r| r.place).collect();
        if sources.is_empty() {
            return Ok(0);
        }
        let mut copied = 0;
        for target in replicas.iter().filter(|replica| replica.slot.target) {
            match target.worth {
                Worth::Hoped => continue,
                Worth::Dead | Worth::Gone => {
                    self.drop_replica(id, target.place, Vec::new(), true).await?;
                    continue;
                }
                Worth::Good => {}
            }
            self.keep_pace(u64::from(len)).await;
            match self.copy(&chunk, target.place, &sources).await {
                Ok((stat, bytes)) if is_whole(&stat, len) => {
                    copied += bytes.max(1);
                    self.env.mark("chunk repaired");
                    tracing::info!(chunk = %id, place = ?target.place, bytes, "repaired a chunk");
                    let replicas = vec![(id, target.place, len)];
                    self.decide(Action::Settle { replicas }).await?;
                }
                // It may be full for ever: another disk has room, or will.
                Err(error) if error.kind() == Kind::Full => {
                    self.env.mark("repair leaves a full disk");
                    tracing::info!(chunk = %id, place = ?target.place, "a copy found no room");
                    self.drop_replica(id, target.place, Vec::new(), true).await?;
                }
                Err(error) if error.is_passing() => {
                    tracing::debug!(chunk = %id, place = ?target.place, %error, "a copy failed");
                }
                failed => {
                    tracing::warn!(chunk = %id, place = ?target.place, ?failed, "a copy failed");
                    self.drop_replica(id, target.place, Vec::new(), true).await?;
                }
            }
        }
        Ok(copied)
    }

    /// Waits until a copy of `bytes` fits the pace.
    async fn keep_pace(&self, bytes: u64) {
        let rate = self.config.repair_bytes_per_s.max(1);
        let now = self.env.now();
        let start = self.repairs.next_copy.get().max(now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.repairs.next_copy.set(start + takes);
        if start > now {
            self.env.sleep_until(start).await;
        }
    }

    /// Records new replicas for those that are missing. False when there is nothing to fill.
    async fn add_missing(&self, id: ChunkId) -> Result<bool, ControlError> {
        let Some((chunk, copies, replicas)) = self.judged(id) else { return Ok(false) };
        let has_source = replicas.iter().any(Judged::is_source);
        let useful = |replica: &&Judged| {
            replica.counts() || (replica.slot.target && replica.worth == Worth::Good)
        };
        let have: Vec<_> = replicas.iter().filter(useful).map(|replica| replica.place).collect();
        let missing = usize::from(copies).saturating_sub(have.len());
        let room = SLOTS_MAX - chunk.len_slots();
        if missing == 0 || !has_source {
            return Ok(false);
        }
        let dead: Vec<Place> = self.log.with_state(|state| {
            let places = state.places().map(|(_, place)| place);
            places.filter(|&place| state.dead(id, place).is_some()).collect()
        });
        let never: Vec<_> = replicas.iter().map(|replica| replica.place).chain(dead).collect();
        let need = u64::from(chunk.sealed().expect("judged chunks are sealed"));
        let wanted = Wanted { copies, have: &have, never: &never, avoid: &[], floor: 0, need };
        let view = self.cluster.view();
        let chosen = choose(&view, &wanted, &mut |bound| self.env.random_below(bound));
        let mut places = chosen.unwrap_or_default();
        places.truncate(room);
        if places.is_empty() {
            self.env.mark("repair finds no place");
            return Ok(false);
        }
        let action = Action::AddReplicas { chunk: id, epoch: chunk.epoch, places };
        Ok(!matches!(self.decide(action).await?, Outcome::Refused { .. }))
    }

    /// Drops replicas that are no use: damaged or gone ones as soon as another is whole, those of
    /// dead servers and surplus ones when all copies are there.
    async fn drop_useless(&self, id: ChunkId) -> Result<(), ControlError> {
        let Some((_, copies, replicas)) = self.judged(id) else { return Ok(()) };
        let mut good: Vec<_> =
            replicas.iter().filter(|replica| replica.is_source()).map(|r| r.place).collect();
        let whole = good.len() >= usize::from(copies);
        for replica in replicas.iter().filter(|replica| !replica.slot.target) {
            let broken = replica.bad || replica.worth == Worth::Gone;
            let dead = replica.worth == Worth::Dead && whole;
            if (broken && !good.is_empty()) || dead {
                self.drop_replica(id, replica.place, good.clone(), broken).await?;
            }
        }
        if whole {
            for target in replicas.iter().filter(|replica| replica.slot.target) {
                self.drop_replica(id, target.place, Vec::new(), false).await?;
            }
            // Whose servers came back while they were repaired around. Those that are not
            // settled, or silent for a moment, go first.
            for replica in &replicas {
                let waits = replica.counts() && !replica.is_source();
                if waits && replica.worth == Worth::Good {
                    self.drop_replica(id, replica.place, good.clone(), false).await?;
                }
            }
            while good.len() > usize::from(copies) {
                let surplus = self.most_crowded(&good);
                good.retain(|&place| place != surplus);
                self.drop_replica(id, surplus, good.clone(), false).await?;
            }
        }
        Ok(())
    }

    /// Of whole replicas one too many, that which spreads them least, or is on the fullest disk.
    fn most_crowded(&self, good: &[Place]) -> Place {
        let view = self.cluster.view();
        let domain = |place: &Place| view.server(place.server).map(|server| &server.domain);
        let crowd = |place: &&Place| {
            let near = |other: &&Place| domain(other) == domain(place);
            let server = view.server(place.server);
            let disk = server.and_then(|it| it.disks.iter().find(|it| it.disk == place.disk));
            let full = disk.map_or(0, |disk| disk.used.saturating_mul(100) / disk.capacity.max(1));
            let load = server.map_or(0, |server| server.load);
            (good.iter().filter(near).count(), full, load, **place)
        };
        *good.iter().max_by_key(crowd).expect("one too many")
    }

    /// Takes a replica off the record and leaves it to the collector. A broken one is deleted at
    /// once: nobody reads it, and its place may be wanted again.
    pub(super) async fn drop_replica(
        &self,
        chunk: ChunkId,
        place: Place,
        remaining: Vec<Place>,
        at_once: bool,
    ) -> Result<(), ControlError> {
        let delete_at_ms = if at_once { self.clock_ms() } else { self.rights_end_ms() };
        let action = Action::DropReplica { chunk, place, remaining, delete_at_ms };
        let outcome = self.decide(action).await?;
        if !matches!(outcome, Outcome::Refused { .. }) {
            self.repairs.bad.borrow_mut().remove(&(chunk, place));
            tracing::debug!(%chunk, ?place, "dropped a replica");
        }
        Ok(())
    }
}
