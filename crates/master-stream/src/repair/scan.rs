//! The scan over all chunks, for chunks in danger and streams that no task recovers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{ChunkId, Epoch, FileId, ServerId};
use runtime::{Class, Duration, Instant};
use wire::control::Holdings;

use super::Absence;
use super::drain::{begin_tally, tally_conversions, tally_draining};
use super::judged::{Judged, Worth, distinct, is_complete, margin};
use crate::limits::{ABANDONED_MAX, QUIET_FRESH, SCAN_SLICE};
use crate::placement::{ClusterView, PlaceState, ReplicaLocation};
use crate::planted::{Planted, planted};
use crate::service::Danger;
use crate::{Action, Chunk, Log, Outcome, PlaceIndex, Service, Slot, Stream, StreamMachine};

#[derive(Default)]
struct Tally {
    danger: Danger,
    queue: BTreeSet<(usize, ChunkId)>,
    /// Files to seal, with the writer and the open chunk that were seen.
    abandoned: BTreeMap<FileId, (Epoch, ChunkId)>,
    /// Open chunks with fewer copies than they should have, while there is room for all.
    degraded: BTreeSet<ChunkId>,
    /// Spares of writers that are of no use, with the epoch of their writer.
    useless: BTreeMap<FileId, (Epoch, Vec<ChunkId>)>,
    /// Open chunks that their writers are to leave: short of copies, or with a replica at a place that is
    /// not good, or on a server that drains.
    to_leave: BTreeSet<ChunkId>,
    /// Of these, those with all replicas at good places.
    drained: BTreeMap<ChunkId, (FileId, Epoch)>,
    /// What is on the servers that drain.
    draining: BTreeMap<ServerId, Holdings>,
}

/// Good replicas with which a chunk waits for a server under maintenance, at least, beyond those that
/// give its bytes back.
const SERVING_WAITS: usize = 1;

/// Has the chunks that a scan found in a state, with since when they are.
fn note_since(known: &RefCell<BTreeMap<ChunkId, Instant>>, found: BTreeSet<ChunkId>, now: Instant) {
    let mut known = known.borrow_mut();
    known.retain(|chunk, _| found.contains(chunk));
    found.into_iter().for_each(|chunk| {
        known.entry(chunk).or_insert(now);
    });
}

impl<L: Log> Service<L> {
    pub(super) async fn scan_chunks(self: Rc<Self>) {
        loop {
            self.env.sleep(self.env.jitter(self.config.scan_interval)).await;
            if !self.leads() {
                continue;
            }
            self.note_absent();
            self.end_recoveries();
            let tally = self.scan().await;
            if !self.leads() {
                continue;
            }
            self.danger.set(tally.danger);
            *self.repairs.draining.borrow_mut() = tally.draining;
            let under_replicated: BTreeSet<_> = tally.queue.iter().map(|&(_, id)| id).collect();
            let mut queue = tally.queue;
            {
                let (now, mut setbacks) = (self.env.now(), self.repairs.setbacks.borrow_mut());
                setbacks.retain(|id, _| under_replicated.contains(id));
                queue.retain(|(_, id)| setbacks.get(id).is_none_or(|setback| setback.at <= now));
            }
            *self.repairs.under_replicated.borrow_mut() = under_replicated;
            *self.repairs.queue.borrow_mut() = queue;
            self.repairs.queued_some.notify_waiters();
            self.add_repair_workers();
            self.count_repair(0, 0);
            note_since(&self.repairs.degraded, tally.degraded, self.env.now());
            note_since(&self.repairs.to_leave, tally.to_leave, self.env.now());
            self.end_unwritten(tally.drained);
            for (file, (epoch, drop)) in tally.useless.into_iter().take(ABANDONED_MAX) {
                self.drop_spares(file, epoch, drop);
            }
            for (file, (epoch, chunk)) in tally.abandoned.into_iter().take(ABANDONED_MAX) {
                self.seal_abandoned(file, epoch, chunk);
            }
        }
    }

    /// Notes since when locations are not healthy.
    fn note_absent(&self) {
        let (view, now) = (self.cluster.view(), self.env.now());
        let mut absent = self.repairs.absent.borrow_mut();
        self.log.with_state(|state| {
            for (index, place) in state.places() {
                if matches!(view.state(place), PlaceState::Good(_)) {
                    absent.remove(&index);
                    continue;
                }
                let lasts = absent.entry(index).or_insert(Absence { since: now, gone: None });
                let lives = view.server(place.server).is_some_and(|it| it.alive && !it.reached);
                match lives {
                    true => lasts.gone = None,
                    false => lasts.gone = lasts.gone.or(Some(now)),
                }
            }
            let known =
                |&(chunk, place): &(ChunkId, ReplicaLocation)| state.refers_to(chunk, place);
            self.repairs.bad.borrow_mut().retain(|key, _| known(key));
            let fresh = |at: Instant| now.since(at) < QUIET_FRESH;
            self.repairs.quiet.borrow_mut().retain(|key, at| known(key) && fresh(*at));
            let mut unsealed = self.repairs.unsealed.borrow_mut();
            unsealed.retain(|&(chunk, _), _| state.is_partly_sealed(chunk));
            let mut partly = self.repairs.partly_sealed.borrow_mut();
            partly.retain(|&chunk, _| state.is_partly_sealed(chunk));
            for chunk in state.partly_sealed() {
                partly.entry(chunk).or_insert(now);
            }
            let mut short = self.repairs.short.borrow_mut();
            short.retain(|&(chunk, _), _| state.is_partly_sealed(chunk));
            let mut left = self.repairs.left.borrow_mut();
            left.retain(|&(chunk, _)| state.is_partly_sealed(chunk));
        });
    }

    /// Time for which a location has not been healthy.
    pub(crate) fn absent_for(&self, place: PlaceIndex) -> Duration {
        let absent = self.repairs.absent.borrow();
        absent.get(&place).map_or(Duration::ZERO, |absence| self.env.now().since(absence.since))
    }

    /// Time for which a location has been gone for the writers that use it, too: one whose server
    /// sends heartbeats and is not reached by masters may be reached by them.
    pub(super) fn gone_for(&self, place: PlaceIndex) -> Duration {
        let absent = self.repairs.absent.borrow();
        let gone = absent.get(&place).and_then(|absence| absence.gone);
        gone.map_or(Duration::ZERO, |since| self.env.now().since(since))
    }

    /// Judges the replicas of a chunk.
    pub(super) fn judge_chunk(
        &self,
        view: &ClusterView,
        state: &StreamMachine,
        chunk: &Chunk,
    ) -> Vec<Judged> {
        let (bad, unsealed) = (self.repairs.bad.borrow(), self.repairs.unsealed.borrow());
        let (now, grace) = (self.env.now(), self.config.dead_grace);
        // Of a server under maintenance it is known that it comes back; what has one good replica left
        // does not wait for that.
        let serving = chunk.slots().filter(|slot| {
            let place = state.place(slot.place);
            let good = matches!(view.state(place), PlaceState::Good(_));
            good && !slot.target && !bad.contains_key(&(chunk.id, place))
        });
        let waits = chunk.distinct(serving) >= chunk.data() + SERVING_WAITS;
        // Before that its writer, if it lives, is about to give the others what they lack.
        let partly = self.repairs.partly_sealed.borrow();
        let known_for = partly.get(&chunk.id).map(|&since| now.since(since));
        let unsettled = known_for.is_some_and(|time| time >= self.config.chase_grace)
            && !planted(Planted::UnsettledCounts);
        let judge = |slot: Slot| {
            let place = state.place(slot.place);
            let server = view.server(place.server);
            let maintained = waits && server.is_some_and(|server| server.maintained);
            let worth = match view.state(place) {
                PlaceState::Good(_) => Worth::Good,
                PlaceState::Failed => Worth::Dead,
                _ if maintained || self.absent_for(slot.place) < grace => Worth::Hoped,
                PlaceState::Silent | PlaceState::Absent => Worth::Dead,
            };
            // Nor is a fragment made on a server that makes none.
            let makes = !chunk.is_coded() || view.makes_fragments(place.server);
            let leaves = server.is_some_and(|server| server.draining) || slot.target && !makes;
            let bad = bad.get(&(chunk.id, place)).map(|&(defect, _)| defect);
            let since = unsealed.get(&(chunk.id, slot.place)).filter(|_| !slot.sealed);
            let late = since.is_some_and(|&since| now.since(since) >= grace)
                && !planted(Planted::UnsettledCounts);
            let short = !slot.sealed && !slot.target && unsettled;
            Judged { slot, place, worth, bad, late, short, leaves }
        };
        chunk.slots().map(judge).collect()
    }

    /// True for a sealed chunk that survives no further loss: copies of it have a larger share of the disks
    /// (`protocols-tail.md` 10.14).
    pub(super) fn is_urgent(&self, id: ChunkId) -> bool {
        self.judged(id).is_some_and(|(chunk, replicas)| {
            distinct(&chunk, &replicas, Judged::is_redundancy) <= chunk.data()
        })
    }

    /// Checks every chunk, a slice at a time.
    async fn scan(&self) -> Tally {
        let partition = self.log.with_state(StreamMachine::partition);
        let mut draining = begin_tally(&self.cluster.view(), partition);
        self.log.with_state(|state| tally_conversions(&mut draining, state));
        let mut tally = Tally { draining, ..Tally::default() };
        let mut after = None;
        loop {
            let view = self.cluster.view();
            let more = self.log.with_state(|state| {
                let mut count = 0;
                for id in state.chunk_ids(after).take(SCAN_SLICE) {
                    count += 1;
                    after = Some(id);
                    let (file, stream, chunk) = state.chunk(id).expect("just listed");
                    self.tally_chunk(&mut tally, &view, state, (file, stream, chunk));
                }
                count == SCAN_SLICE
            });
            if !more {
                return tally;
            }
            // A hundredth of the time of a slice would do; a pause keeps the scan in the
            // background on an idle executor too.
            self.env.sleep(Duration::from_millis(2)).await;
        }
    }

    fn tally_chunk(
        &self,
        tally: &mut Tally,
        view: &ClusterView,
        state: &StreamMachine,
        (file, stream, chunk): (FileId, &Stream, &Chunk),
    ) {
        tally_draining(&mut tally.draining, state, (file, chunk));
        let open = chunk.sealed().is_none();
        if open && stream.tail().map(|tail| tail.id) != Some(chunk.id) {
            // A spare is no chunk of the file yet.
            if stream.writing && self.is_useless(view, state, chunk) {
                let (_, drop) = tally.useless.entry(file).or_insert((stream.epoch, Vec::new()));
                drop.push(chunk.id);
            }
            return;
        }
        let replicas = self.judge_chunk(view, state, chunk);
        let copies = usize::from(chunk.copies);
        let serving = distinct(chunk, &replicas, Judged::is_redundancy);
        if serving < copies {
            tally.danger.under_replicated += 1;
        }
        if let Some(survives) = margin(chunk, serving).checked_sub(1) {
            let most = tally.danger.survive.len() - 1;
            tally.danger.survive[survives.min(most)] += 1;
        }
        // Servers without a heartbeat since this master's start are no loss yet.
        let unheard = |place: ReplicaLocation| {
            view.server(place.server).is_none_or(|server| server.disks.is_empty())
        };
        let hoped = |replica: &Judged| replica.worth == Worth::Hoped && unheard(replica.place);
        // Damaged ones may have every byte between them, until a copy finds that they do not.
        let torn = || {
            let setbacks = self.repairs.setbacks.borrow();
            setbacks.get(&chunk.id).is_some_and(|setback| setback.torn > 0)
        };
        let partly = |replica: &Judged| replica.is_last_resort() && !torn();
        let hope = |replica: &Judged| replica.is_redundancy() || hoped(replica) || partly(replica);
        if serving < chunk.data() && distinct(chunk, &replicas, hope) < chunk.data() {
            tally.danger.lost += 1;
        }
        if open {
            if replicas.len() < copies && view.has_room_for(chunk.copies) {
                tally.degraded.insert(chunk.id);
            }
            if !stream.writing {
                return;
            }
            let drains = replicas.iter().any(|it| it.leaves);
            let is_good = |it: &Judged| it.worth == Worth::Good && it.bad.is_none();
            let all_good = replicas.iter().all(is_good);
            if drains || !all_good || tally.degraded.contains(&chunk.id) {
                tally.to_leave.insert(chunk.id);
            }
            if self.is_abandoned(chunk, &replicas) {
                tally.abandoned.insert(file, (stream.epoch, chunk.id));
            } else if drains && all_good {
                tally.drained.insert(chunk.id, (file, stream.epoch));
            }
            return;
        }
        let moving = self.repairs.moving.get() == Some(chunk.id);
        if !moving && !is_complete(chunk, &replicas) {
            tally.queue.insert((margin(chunk, serving), chunk.id));
        }
    }

    /// A writer has sent something: it lives, and leaves its chunk when it can. It renews its rights at
    /// least twice in their life.
    pub(crate) fn note_writer_heard(&self, file: FileId, epoch: Epoch) {
        let tail = self.stream(file, |stream| {
            stream.tail().filter(|_| stream.epoch == epoch).map(|tail| tail.id)
        });
        if let Some(tail) = tail.flatten().filter(|_| !planted(Planted::WritersUnheard))
            && let Some(since) = self.repairs.to_leave.borrow_mut().get_mut(&tail)
        {
            *since = self.env.now();
        }
    }

    /// Whether a chunk is to be left, and its writer has not been heard of for long.
    pub(super) fn is_deserted(&self, chunk: ChunkId) -> bool {
        let since = self.repairs.to_leave.borrow().get(&chunk).copied();
        since.is_some_and(|since| self.env.now().since(since) > self.config.open_grace)
    }

    /// True for an open chunk whose writer has not moved on for very long from a dead server, from a
    /// damaged replica, or from fewer copies than it could have, and was not heard of, or is reported
    /// silent by the servers that have it.
    fn is_abandoned(&self, chunk: &Chunk, replicas: &[Judged]) -> bool {
        let (now, grace) = (self.env.now(), self.config.open_grace);
        let bad = self.repairs.bad.borrow();
        let given_up = |replica: &Judged| {
            let damaged = bad.get(&(chunk.id, replica.place));
            let place = replica.slot.place;
            let gone = self.gone_for(place) > grace
                || self.absent_for(place) > self.config.open_grace_unreached;
            gone && replica.worth != Worth::Good
                || damaged.is_some_and(|&(_, since)| now.since(since) > grace)
        };
        // No server reports the silence of a writer that has appended nothing ([`super::unused`]).
        let degraded = self.repairs.degraded.borrow().get(&chunk.id).copied();
        let deserted = self.is_deserted(chunk.id);
        if deserted && degraded.is_some_and(|since| now.since(since) > grace) {
            return true;
        }
        // One of several may be cut off from a living writer, which leaves it soon.
        let there = replicas.iter().filter(|replica| replica.worth == Worth::Good);
        let quiet = self.repairs.quiet.borrow();
        let silent = there.clone().filter(|it| quiet.contains_key(&(chunk.id, it.place))).count();
        deserted && replicas.iter().any(given_up) || (silent > 0 && silent >= there.count().min(2))
    }

    /// Seals the chunk of a writer that is gone, or does not move on: as the end of that writer, so that
    /// it is refused once another has opened the file.
    pub(crate) fn seal_abandoned(self: &Rc<Self>, file: FileId, epoch: Epoch, chunk: ChunkId) {
        let service = self.clone();
        self.env.spawn(Class::Background, "seal abandoned", async move {
            // A writer that went on in another chunk since then lives.
            let tail = service.stream(file, |stream| stream.tail().map(|tail| tail.id)).flatten();
            if tail != Some(chunk) {
                return;
            }
            // The next scan comes to it again.
            let Some(own) = service.repairs.begin_op() else { return };
            service.env.mark("abandoned chunk sealed");
            let op = own.id;
            // It may go on until this is decided, too: the command names the chunk.
            let seal = Action::SealAbandoned { op, file, epoch, chunk };
            if let Ok(Outcome::Recover { epoch }) = service.decide(seal).await {
                let _ = service.finish(Some(op), file, epoch, None).await;
            }
        });
    }

    /// Ends recoveries whose clients went away, or whose master did.
    fn end_recoveries(self: &Rc<Self>) {
        let now = self.env.now();
        let mut since = self.repairs.recovering.borrow_mut();
        let due: Vec<_> = self.log.with_state(|state| {
            since.retain(|&file, _| {
                state.stream(file).is_some_and(|stream| stream.needs_recovery())
            });
            let all = state.recovering().filter_map(|file| {
                let begun = *since.entry(file).or_insert(now);
                let epoch = state.stream(file)?.epoch;
                (now.since(begun) >= self.config.recover_timeout).then_some((file, epoch))
            });
            all.take(64).collect()
        });
        for (file, epoch) in due {
            since.insert(file, now);
            let service = self.clone();
            self.env.spawn(Class::Background, "end a recovery", async move {
                service.env.mark("recovery ended by the leader");
                let _ = service.finish(None, file, epoch, None).await;
            });
        }
    }
}
