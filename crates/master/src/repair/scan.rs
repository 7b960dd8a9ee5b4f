//! The scan over all chunks: which are in danger, which streams nobody recovers.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ChunkId, FileId};
use runtime::{Class, Duration};

use crate::placement::{ClusterView, Place, PlaceState};
use crate::stream::limits::SCAN_SLICE;
use crate::stream::{Action, Chunk, Log, Outcome, Service, Slot, Stream, StreamMachine};

/// What a place is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Worth {
    /// Serves.
    Good,
    /// Silent, but not for long: it may come back.
    Hoped,
    /// Its server is silent for too long: its replicas are repaired around.
    Dead,
    /// Its disk has failed or is gone.
    Gone,
}

/// A replica in the eyes of repair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub slot: Slot,
    pub place: Place,
    pub worth: Worth,
    /// It was looked at and is damaged or missing.
    pub bad: bool,
}

impl Judged {
    /// Redundancy that is there now, or is about to be: settled or being settled.
    pub fn counts(&self) -> bool {
        !self.slot.target && !self.bad && matches!(self.worth, Worth::Good | Worth::Hoped)
    }

    pub fn serves(&self) -> bool {
        !self.slot.target && !self.bad && self.worth == Worth::Good
    }

    /// It can be copied from.
    pub fn is_source(&self) -> bool {
        self.serves() && self.slot.settled
    }
}

/// True when exactly `copies` replicas are there or about to be, and nothing else is on record.
pub(super) fn is_complete(copies: u8, replicas: &[Judged]) -> bool {
    let counting = replicas.iter().filter(|replica| replica.counts()).count();
    counting == usize::from(copies) && replicas.len() == usize::from(copies)
}

#[derive(Default)]
struct Tally {
    under_replicated: u64,
    lost: u64,
    queue: BTreeSet<(usize, ChunkId)>,
    abandoned: BTreeSet<FileId>,
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
            self.ailing.set((tally.under_replicated, tally.lost));
            *self.repairs.ailing.borrow_mut() = tally.queue.iter().map(|&(_, id)| id).collect();
            *self.repairs.queue.borrow_mut() = tally.queue;
            self.repairs.queued_some.notify_waiters();
            self.count_repair(0, 0);
            for file in tally.abandoned {
                self.seal_abandoned(file);
            }
        }
    }

    /// Notes since when places are not good.
    fn note_absent(&self) {
        let (view, now) = (self.cluster.view(), self.env.now());
        let mut absent = self.repairs.absent.borrow_mut();
        self.log.with_state(|state| {
            for (index, place) in state.places() {
                if matches!(view.state(place), PlaceState::Good(_)) {
                    absent.remove(&index);
                } else {
                    absent.entry(index).or_insert(now);
                }
            }
            self.repairs.bad.borrow_mut().retain(|&(chunk, place)| state.refers_to(chunk, place));
        });
    }

    /// How long a place has not been good.
    fn absent_for(&self, slot: &Slot) -> Duration {
        let absent = self.repairs.absent.borrow();
        absent.get(&slot.place).map_or(Duration::ZERO, |&since| self.env.now().since(since))
    }

    /// Judges the replicas of a chunk.
    pub(super) fn judge_chunk(
        &self,
        view: &ClusterView,
        state: &StreamMachine,
        chunk: &Chunk,
    ) -> Vec<Judged> {
        let bad = self.repairs.bad.borrow();
        let judge = |slot: Slot| {
            let place = state.place(slot.place);
            let worth = match view.state(place) {
                PlaceState::Good(_) => Worth::Good,
                PlaceState::Gone => Worth::Gone,
                PlaceState::Silent if self.absent_for(&slot) < self.config.dead_grace => {
                    Worth::Hoped
                }
                PlaceState::Silent => Worth::Dead,
            };
            let bad = !bad.is_empty() && bad.contains(&(chunk.id, place));
            Judged { slot, place, worth, bad }
        };
        chunk.slots().map(judge).collect()
    }

    /// Looks at every chunk, a slice at a time.
    async fn scan(&self) -> Tally {
        let mut tally = Tally::default();
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
        let open = chunk.sealed().is_none();
        if open && stream.tail().map(|tail| tail.id) != Some(chunk.id) {
            return; // A spare is no chunk of the file yet.
        }
        let replicas = self.judge_chunk(view, state, chunk);
        let copies = usize::from(stream.policy.copies);
        let serving = replicas.iter().filter(|replica| replica.serves()).count();
        if serving < copies {
            tally.under_replicated += 1;
        }
        // Servers that were not heard of since this master's start are no loss yet.
        let unheard =
            |place: Place| view.server(place.server).is_none_or(|server| server.disks.is_empty());
        let hoped = |replica: &Judged| replica.worth == Worth::Hoped && unheard(replica.place);
        if serving == 0 && !replicas.iter().any(hoped) {
            tally.lost += 1;
        }
        if open {
            let given_up = |replica: &Judged| {
                replica.worth != Worth::Good
                    && self.absent_for(&replica.slot) > self.config.open_grace
            };
            if stream.writing && replicas.iter().any(given_up) {
                tally.abandoned.insert(file);
            }
            return;
        }
        let moving = self.repairs.moving.get() == Some(chunk.id);
        if !moving && !is_complete(stream.policy.copies, &replicas) {
            tally.queue.insert((serving, chunk.id));
        }
    }

    /// Seals the chunk of a writer that has not moved on from a dead server for very long.
    fn seal_abandoned(self: &Rc<Self>, file: FileId) {
        let service = self.clone();
        self.env.spawn(Class::Background, "seal abandoned", async move {
            service.env.mark("abandoned chunk sealed");
            let op = service.repairs.op();
            if let Ok(Outcome::Recover { epoch }) = service.decide(Action::Seal { op, file }).await
            {
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
