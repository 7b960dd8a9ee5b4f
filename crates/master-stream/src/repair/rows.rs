//! Whole rows of coded chunks, checked on order of the leader (C26, `protocols-tail.md` 9.10).
//!
//! Scrub reads each replica alone. One server after the other is given a chunk with the places of all its
//! fragments, and codes some of its rows again. A fragment with a cell that is not its row's is repaired
//! like one that is damaged. Rows that their writer coded wrong survive fewer losses than they should: their
//! row check was computed over the wrong cells. The chunk is laid out again, in another one of the same
//! form, by a conversion (9.12), which compares what two servers make of it.

use std::rc::Rc;

use base::ChunkId;
use runtime::{Duration, Instant};
use wire::control::{ReplicaPlace, RowCheck, RowFindings};
use wire::token::Rights;

use super::Defect;
use super::judged::Judged;
use crate::limits::{REPORTS_MAX, SCAN_SLICE};
use crate::placement::ReplicaLocation;
use crate::planted::{Planted, planted};
use crate::{CallError, Chunk, Log, Service, StreamMachine};

/// Longest pause between two chunks.
const ROUND_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

impl<L: Log> Service<L> {
    pub(super) async fn check_rows(self: Rc<Self>) {
        let (mut after, mut next_round, mut led) = (None, Instant::default(), false);
        loop {
            let wait = next_round.since(self.env.now());
            let interval = self.env.jitter(self.config.scan_interval);
            let none_found = next_round == Instant::default();
            self.env.sleep(if none_found { interval } else { wait.min(interval) }).await;
            if !self.leads() || planted(Planted::RowsUnchecked) {
                (after, next_round) = (None, Instant::default());
                led = false;
                continue;
            }
            if !std::mem::replace(&mut led, true) {
                // A round takes days, and leaders may last less: each begins elsewhere.
                after = self.any_chunk();
            }
            if self.env.now() < next_round {
                continue;
            }
            let suspect = self.repairs.suspects.borrow_mut().pop_first();
            let one_in = match suspect {
                Some(_) => 1,
                None => self.config.row_check_one_in.max(1),
            };
            let chunk = suspect.or_else(|| self.next_coded(&mut after));
            let Some((chunk, sources)) = chunk.and_then(|id| self.row_sources(id)) else {
                next_round = Instant::default();
                continue;
            };
            next_round = self.env.now() + self.round_time(&chunk);
            match self.check_chunk(&chunk, &sources, one_in).await {
                Ok(found) => self.note_findings(&chunk, &sources, found),
                Err(error) => tracing::debug!(chunk = %chunk.id, %error, "rows were not checked"),
            }
        }
    }

    /// Time after which the next chunk is looked at: by the bytes of all replicas of this one.
    fn round_time(&self, chunk: &Chunk) -> Duration {
        let len = u64::from(chunk.sealed().expect("sealed"));
        let stored = len * u64::from(chunk.copies) / chunk.data() as u64;
        let rate = self.config.row_check_rate(self.cluster.view().disks());
        let nanos = u128::from(stored) * 1_000_000_000 / u128::from(rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(ROUND_TIME_MAX)
    }

    /// A chunk drawn at random, if there is one.
    fn any_chunk(&self) -> Option<ChunkId> {
        self.log.with_state(|state| {
            let (first, last) = state.chunk_bounds()?;
            let at = self.env.random_below((last.get() - first.get()).saturating_add(1));
            Some(ChunkId::new(first.get() + at))
        })
    }

    /// The first coded chunk behind `after` that is settled, of as many as one look takes. None that is to be
    /// laid out again: what more is found of it changes nothing.
    fn next_coded(&self, after: &mut Option<ChunkId>) -> Option<ChunkId> {
        let miscoded = self.repairs.miscoded.borrow();
        self.log.with_state(|state| {
            let (from, mut looked) = (*after, 0);
            for id in state.chunk_ids(from).take(SCAN_SLICE) {
                (*after, looked) = (Some(id), looked + 1);
                let (_, _, chunk) = state.chunk(id).expect("just listed");
                let is_settled = chunk.sealed().is_some() && chunk.is_sealed_everywhere();
                if chunk.is_coded() && is_settled && !miscoded.contains(&id) {
                    return Some(id);
                }
            }
            if looked < SCAN_SLICE {
                *after = None;
            }
            None
        })
    }

    /// A sealed chunk, and the replicas that are whole as far as is known, in an order drawn at random;
    /// nothing when they are too few to give its bytes.
    fn row_sources(&self, id: ChunkId) -> Option<(Chunk, Vec<ReplicaLocation>)> {
        let (chunk, replicas) = self.judged(id)?;
        if !chunk.is_coded() || self.log.with_state(|state| state.conversion(id).is_some()) {
            return None;
        }
        let whole = replicas.iter().filter(|it| it.is_source()).map(|it: &Judged| it.place);
        let mut whole: Vec<_> = whole.collect();
        if whole.is_empty() || !self.gives_back(&chunk, &whole) {
            return None;
        }
        let first = self.env.random_below(whole.len() as u64) as usize;
        whole.rotate_left(first);
        Some((chunk, whole))
    }

    async fn check_chunk(
        &self,
        chunk: &Chunk,
        sources: &[ReplicaLocation],
        one_in: u32,
    ) -> Result<RowFindings, CallError> {
        let to = self.address(sources[0]);
        // Taken off the record since: it is looked at again.
        let code = self.fragment_at(chunk, sources[0]).map_err(|_| CallError::Unreachable)?;
        let order = RowCheck {
            chunk: chunk.id,
            epoch: chunk.epoch,
            base: chunk.base,
            len: chunk.sealed().expect("sealed"),
            sources: self.addresses(chunk.id, sources),
            token: self.chunk_token(chunk.id, Rights::READ, base::Epoch::NONE).0,
            code: code.ok_or(CallError::Unreachable)?,
            one_in,
        };
        let call = self.calls.check_rows(to, order);
        let answer = self.env.timeout(self.config.copy_timeout, call).await;
        answer.unwrap_or(Err(CallError::Unreachable))
    }

    fn note_findings(&self, chunk: &Chunk, sources: &[ReplicaLocation], found: RowFindings) {
        if found.checked > 0 {
            self.env.mark("rows checked with all their cells");
        }
        if found.wrong != 0 {
            let of = |place: &ReplicaPlace| found.wrong >> place.fragment & 1 == 1;
            for place in self.addresses(chunk.id, sources).iter().filter(|place| of(place)) {
                let place = ReplicaLocation { server: place.server, disk: place.disk };
                self.found_bad(chunk.id, place, Defect::Wrong);
            }
        }
        if found.miscoded > 0 {
            tracing::warn!(chunk = %chunk.id, rows = found.miscoded, "it is laid out again");
            self.env.mark("chunk with rows that were coded wrong");
            let mut miscoded = self.repairs.miscoded.borrow_mut();
            if miscoded.len() < REPORTS_MAX {
                miscoded.insert(chunk.id);
            }
        }
    }

    /// A chunk of which a reader has complained, though each of its replicas is whole.
    pub(super) fn suspect_rows(&self, chunk: ChunkId) {
        let mut suspects = self.repairs.suspects.borrow_mut();
        let is_coded = |state: &StreamMachine| {
            state.chunk(chunk).is_some_and(|(_, _, found)| found.is_coded())
        };
        if suspects.len() < REPORTS_MAX && self.log.with_state(is_coded) {
            self.env.mark("rows of a chunk that a reader reported");
            suspects.insert(chunk);
        }
    }
}
