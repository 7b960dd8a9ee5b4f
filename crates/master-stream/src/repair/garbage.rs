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

/// Replicas that are due at one place.
struct Due {
    delete: Vec<ChunkId>,
    forget: Vec<ChunkId>,
    /// Records of a disk that is gone.
    gone: Vec<ChunkId>,
}

impl<L: Log> Service<L> {
    pub(super) async fn collect_garbage(self: Rc<Self>) {
        loop {
            self.env.sleep(self.env.jitter(self.config.garbage_interval)).await;
            if !self.leads() || self.log.with_state(|state| state.dead_count()) == 0 {
                continue;
            }
            let places: Vec<_> = self.log.with_state(|state| state.places().collect());
            let due =
                places.into_iter().filter(|&(index, place)| match self.is_gone(index, place) {
                    true => self.log.with_state(|state| state.dead_at(index).next().is_some()),
                    false => self.due(index, place).is_some(),
                });
            stream::iter(due)
                .for_each_concurrent(DISKS_PARALLEL, async |(index, place)| {
                    if let Err(error) = self.collect(index, place).await {
                        tracing::debug!(%error, "a collection did not finish");
                    }
                })
                .await;
        }
    }

    fn due(&self, index: PlaceIndex, place: ReplicaLocation) -> Option<Due> {
        let now = self.clock_ms();
        let pick = |due: &dyn Fn(&Dead) -> bool| -> Vec<ChunkId> {
            self.log.with_state(|state| {
                let dead = state.dead_at(index).filter(|(_, dead)| due(dead));
                dead.map(|(chunk, _)| chunk).take(BATCH_MAX).collect()
            })
        };
        let mut due = Due { delete: Vec::new(), forget: Vec::new(), gone: Vec::new() };
        let view = self.cluster.view();
        match view.state(place) {
            PlaceState::Failed | PlaceState::Absent if self.is_gone(index, place) => {
                let memory = match view.has_left(place.server) {
                    true => 0,
                    false => self.config.gone_memory.as_millis() as u64,
                };
                due.gone = self.forgotten(index, now.saturating_sub(memory));
            }
            PlaceState::Silent | PlaceState::Failed | PlaceState::Absent => return None,
            PlaceState::Good(_) => {
                due.delete = pick(&|dead| dead.forget_at_ms.is_none() && dead.delete_at_ms <= now);
                due.forget = pick(&|dead| dead.forget_at_ms.is_some_and(|at| at <= now));
            }
        }
        (!due.delete.is_empty() || !due.forget.is_empty() || !due.gone.is_empty()).then_some(due)
    }

    /// Whether a disk has been away for long, on a server that lives, or has left.
    fn is_gone(&self, index: PlaceIndex, place: ReplicaLocation) -> bool {
        let state = self.cluster.view().state(place);
        matches!(state, PlaceState::Failed | PlaceState::Absent)
            && self.absent_for(index) >= self.config.dead_grace
    }

    /// Records of a place that became due by a time, of those that it is their turn to be looked at: most of
    /// them may be younger.
    fn forgotten(&self, index: PlaceIndex, by_ms: u64) -> Vec<ChunkId> {
        let mut gone_after = self.repairs.gone_after.borrow_mut();
        let after = gone_after.get(&index).copied();
        self.log.with_state(|state| {
            let some: Vec<_> = state.dead_after(index, after).take(SCAN_SLICE).collect();
            match some.last() {
                Some(&(last, _)) if some.len() == SCAN_SLICE => gone_after.insert(index, last),
                _ => gone_after.remove(&index),
            };
            let due = some.into_iter().filter(|(_, dead)| dead.delete_at_ms <= by_ms);
            due.map(|(chunk, _)| chunk).take(BATCH_MAX).collect()
        })
    }

    async fn collect(&self, index: PlaceIndex, place: ReplicaLocation) -> Result<(), ControlError> {
        // Counted from before the read: what is dead now stays dead until the order has run out.
        let not_after = self.orders_end();
        // Only a leader that a quorum confirms deletes: what it sees as dead is dead.
        self.read().await?;
        let Some(due) = self.due(index, place) else { return Ok(()) };
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
