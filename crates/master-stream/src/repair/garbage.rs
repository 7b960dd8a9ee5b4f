//! Collection: dead replicas are deleted, then forgotten; replicas that servers hold and no chunk
//! refers to are condemned (`protocols.md` 2.4).

use std::collections::BTreeSet;
use std::rc::Rc;

use base::ChunkId;
use futures_util::stream::{self, StreamExt};
use runtime::Duration;
use wire::control::ControlError;

use super::seal::is_whole;
use super::unknown::Comparison;
use crate::limits::{BATCH_MAX, SCAN_SLICE};
use crate::placement::{PlaceState, ReplicaLocation};
use crate::{Action, Dead, Listing, Log, PlaceIndex, Service};

/// Disks that are worked on at the same time at most.
const DISKS_PARALLEL: usize = 16;

/// What is due for a dead replica.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Delete,
    Forget,
    /// Its disk is gone: so is its record.
    Gone,
}

/// Which dead replicas of a place are due.
#[derive(Clone, Copy)]
struct Judge {
    now_ms: u64,
    /// Of a disk that is gone, those that became due by then.
    gone_by_ms: Option<u64>,
}

impl Judge {
    fn fate(self, dead: Dead) -> Option<Fate> {
        let (fate, at_ms, by_ms) = match (self.gone_by_ms, dead.forget_at_ms) {
            (Some(by_ms), _) => (Fate::Gone, dead.delete_at_ms, by_ms),
            (None, None) => (Fate::Delete, dead.delete_at_ms, self.now_ms),
            (None, Some(at_ms)) => (Fate::Forget, at_ms, self.now_ms),
        };
        (at_ms <= by_ms).then_some(fate)
    }
}

/// Replicas that are due at one place.
#[derive(Default)]
struct Due {
    delete: Vec<ChunkId>,
    forget: Vec<ChunkId>,
    /// Records of a disk that is gone.
    gone: Vec<ChunkId>,
}

impl Due {
    fn of(&mut self, fate: Fate) -> &mut Vec<ChunkId> {
        match fate {
            Fate::Delete => &mut self.delete,
            Fate::Forget => &mut self.forget,
            Fate::Gone => &mut self.gone,
        }
    }

    fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.forget.is_empty() && self.gone.is_empty()
    }

    /// Keeps what is due by the records as they are now.
    fn keep(&mut self, fate_now: impl Fn(ChunkId) -> Option<Fate>) {
        for fate in [Fate::Delete, Fate::Forget, Fate::Gone] {
            self.of(fate).retain(|&chunk| fate_now(chunk) == Some(fate));
        }
    }
}

impl<L: Log> Service<L> {
    pub(super) async fn collect_garbage(self: Rc<Self>) {
        loop {
            self.env.sleep(self.env.jitter(self.config.garbage_interval)).await;
            if !self.leads() || self.log.with_state(|state| state.dead_count()) == 0 {
                continue;
            }
            let places: Vec<_> = self.log.with_state(|state| state.places().collect());
            stream::iter(places)
                .for_each_concurrent(DISKS_PARALLEL, async |(index, place)| {
                    if let Err(error) = self.collect(index, place).await {
                        tracing::debug!(%error, "a collection did not finish");
                    }
                })
                .await;
        }
    }

    /// None: nothing can be due at a place.
    fn judge_dead(&self, index: PlaceIndex, place: ReplicaLocation) -> Option<Judge> {
        let (now_ms, view) = (self.clock_ms(), self.cluster.view());
        let gone_by_ms = match view.state(place) {
            PlaceState::Failed | PlaceState::Absent if self.is_gone(index, place) => {
                let memory = match view.has_left(place.server) {
                    true => 0,
                    false => self.config.gone_memory.as_millis() as u64,
                };
                Some(now_ms.saturating_sub(memory))
            }
            PlaceState::Silent | PlaceState::Failed | PlaceState::Absent => return None,
            PlaceState::Good(_) => None,
        };
        Some(Judge { now_ms, gone_by_ms })
    }

    /// Whether a disk has been away for long, on a server that lives, or has left.
    fn is_gone(&self, index: PlaceIndex, place: ReplicaLocation) -> bool {
        let state = self.cluster.view().state(place);
        matches!(state, PlaceState::Failed | PlaceState::Absent)
            && self.absent_for(index) >= self.config.dead_grace
    }

    /// What is due at a place, of a slice of its records, and whether there are more: most of very many may
    /// not be due. The next round goes on behind the slice.
    fn due(&self, index: PlaceIndex, judge: Judge) -> (Due, bool) {
        let mut dead_after = self.repairs.dead_after.borrow_mut();
        let (mut due, mut last) = (Due::default(), None);
        let more = self.log.with_state(|state| {
            let mut records = state.dead_after(index, dead_after.get(&index).copied());
            for _ in 0..SCAN_SLICE {
                let Some((chunk, dead)) = records.next() else { return false };
                if let Some(fate) = judge.fate(dead) {
                    let batch = due.of(fate);
                    if batch.len() == BATCH_MAX {
                        return true;
                    }
                    batch.push(chunk);
                }
                last = Some(chunk);
            }
            true
        });
        match last.filter(|_| more) {
            Some(last) => dead_after.insert(index, last),
            None => dead_after.remove(&index),
        };
        (due, more)
    }

    async fn collect(&self, index: PlaceIndex, place: ReplicaLocation) -> Result<(), ControlError> {
        let Some(judge) = self.judge_dead(index, place) else { return Ok(()) };
        let (mut due, more) = self.due(index, judge);
        if more {
            self.env.mark("dead records looked at in slices");
            self.env.yield_now().await;
        }
        if due.is_empty() {
            return Ok(());
        }
        // Counted from before the read: what is dead now stays dead until the order has run out.
        let not_after = self.orders_end();
        // Only a leader that a quorum confirms deletes: what it sees as dead is dead.
        self.read().await?;
        let Some(judge) = self.judge_dead(index, place) else { return Ok(()) };
        self.log.with_state(|state| {
            due.keep(|chunk| judge.fate(state.dead(chunk, place)?));
        });
        let records = |chunks: &[ChunkId]| chunks.iter().map(|&chunk| (chunk, place)).collect();
        let timeout = self.config.call_timeout;
        if !due.delete.is_empty() {
            let call = self.calls.delete(self.address(place), due.delete.clone(), not_after);
            if let Ok(Ok(())) = self.env.timeout(timeout, call).await {
                // The tombstone stays until no delayed request can bring the replica back.
                let forget_at_ms = self.rights_end_ms();
                let replicas = records(&due.delete);
                self.decide(Action::Deleted { replicas, forget_at_ms }).await?;
                self.env.mark("dead replicas deleted");
            }
        }
        if !due.forget.is_empty() {
            let call = self.calls.forget(self.address(place), due.forget.clone(), not_after);
            if let Ok(Ok(())) = self.env.timeout(timeout, call).await {
                let replicas = records(&due.forget);
                self.decide(Action::Forget { replicas, gone: false }).await?;
            }
        }
        if !due.gone.is_empty() {
            let replicas = records(&due.gone);
            self.decide(Action::Forget { replicas, gone: true }).await?;
        }
        Ok(())
    }

    /// Compares what disks hold with what streams refer to, one disk after the other.
    pub(super) async fn compare_disks(self: Rc<Self>) {
        let mut done: BTreeSet<ReplicaLocation> = BTreeSet::new();
        loop {
            let places = self.good_places();
            let pause = self.config.list_interval / (places.len().max(1) as u32);
            self.env.sleep(self.env.jitter(pause.max(Duration::from_millis(50)))).await;
            if !self.leads() {
                continue;
            }
            let Some(&place) = places.iter().find(|place| !done.contains(place)) else {
                done.clear();
                continue;
            };
            done.insert(place);
            if let Err(error) = self.compare_disk(place).await {
                tracing::debug!(?place, %error, "a comparison with a disk did not finish");
            }
        }
    }

    fn good_places(&self) -> Vec<ReplicaLocation> {
        let view = self.cluster.view();
        let disks = view.servers().iter().flat_map(|server| {
            server
                .disks
                .iter()
                .map(|disk| ReplicaLocation { server: server.server, disk: disk.disk })
        });
        disks.filter(|&place| matches!(view.state(place), PlaceState::Good(_))).collect()
    }

    async fn compare_disk(&self, place: ReplicaLocation) -> Result<(), ControlError> {
        let partition = self.log.with_state(|state| state.partition());
        let mut after = ChunkId::compose(partition, 0);
        let mut comparison = Comparison::new(place);
        loop {
            let call = self.calls.list(self.address(place), Some(after), BATCH_MAX as u32);
            let page = self.env.timeout(self.config.call_timeout, call).await;
            let Ok(Ok((page, more))) = page else { return Ok(()) };
            // Newer than the report: what is not referred to now never will be again.
            self.read().await?;
            let last = page.last().map(|&(chunk, _)| chunk);
            self.compare_page(place, after, &(page, more), &mut comparison);
            match last.filter(|last| more && last.partition() == partition) {
                Some(last) => after = last,
                None => break,
            }
        }
        {
            let unreferenced = &mut *self.repairs.unreferenced.borrow_mut();
            unreferenced.insert(place, comparison.unreferenced_bytes);
            // Of disks that are not compared now the figure is not known.
            let view = self.cluster.view();
            unreferenced.retain(|&place, _| matches!(view.state(place), PlaceState::Good(_)));
        }
        let condemned = self.repairs.unknown.judge(comparison);
        for chunks in condemned.chunks(BATCH_MAX) {
            self.env.mark("unreferenced replicas condemned");
            let delete_at_ms = self.rights_end_ms();
            let replicas = chunks.iter().map(|&chunk| (chunk, place)).collect();
            self.decide(Action::Condemn { replicas, delete_at_ms }).await?;
        }
        Ok(())
    }

    fn compare_page(
        &self,
        place: ReplicaLocation,
        after: ChunkId,
        (page, more): &Listing,
        comparison: &mut Comparison,
    ) {
        let reported: Vec<ChunkId> = self.log.with_state(|state| {
            let own = page.iter().filter(|(chunk, _)| chunk.partition() == state.partition());
            for &(chunk, stat) in own {
                let referred = state.refers_to(chunk, place);
                let known = referred || state.dead(chunk, place).is_some();
                let holds = !stat.state.is_tombstone();
                if holds && !referred {
                    comparison.unreferenced_bytes += u64::from(stat.len.max(stat.durable_bound));
                }
                comparison.add(chunk, holds, !known && state.may_have_made(chunk));
            }
            // Sealed replicas that the disk does not have whole.
            let end = page.last().filter(|_| *more).map_or(u64::MAX, |&(chunk, _)| chunk.get());
            let in_page = state.chunk_ids(Some(after)).take_while(|chunk| chunk.get() <= end);
            let damaged = in_page.filter(|&id| {
                let Some((_, _, chunk)) = state.chunk(id) else { return false };
                let Some(len) = chunk.sealed() else { return false };
                let here =
                    chunk.slots().any(|slot| slot.sealed && state.place(slot.place) == place);
                let at = page.binary_search_by_key(&id, |&(chunk, _)| chunk);
                here && !at.is_ok_and(|at| is_whole(&page[at].1, len))
            });
            damaged.collect()
        });
        for chunk in reported {
            self.note_report(chunk, place);
        }
    }
}
