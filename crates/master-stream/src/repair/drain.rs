//! Draining of chunkservers (`protocols-tail.md` 10.15): what is on those that drain, and the drop of
//! replicas that have been made elsewhere.

use std::collections::BTreeMap;

use base::{ChunkId, FileId, Kind, ServerId};
use runtime::Duration;
use wire::control::limits::HELD_FILES_MAX;
use wire::control::{ControlError, Holdings, LostChunk};

use super::judged::{Judged, Worth, distinct, must_stay};
use crate::limits::SCAN_SLICE;
use crate::placement::{ClusterView, ReplicaLocation};
use crate::{Action, Chunk, Log, Service, Slot, StreamMachine, StreamService};

/// Pause between two slices of a look at all chunks.
const SLICE_PAUSE: Duration = Duration::from_millis(2);

/// Nothing yet, on each server that drains when a scan begins: one that begins to drain during the scan
/// is counted by the next.
pub(super) fn begin_tally(view: &ClusterView, partition: u16) -> BTreeMap<ServerId, Holdings> {
    let draining = view.servers().iter().filter(|server| server.draining);
    let none = |id| Holdings { partitions: vec![partition], ..Holdings::none(id) };
    draining.map(|server| (server.server, none(server.server))).collect()
}

/// Counts the replicas of a chunk, or spare, that are on draining servers.
pub(super) fn tally_draining(
    draining: &mut BTreeMap<ServerId, Holdings>,
    state: &StreamMachine,
    (file, chunk): (FileId, &Chunk),
) {
    for slot in chunk.slots() {
        let server = state.place(slot.place).server;
        if let Some(held) = draining.get_mut(&server) {
            note_held(held, (file, chunk), slot);
        }
    }
}

/// The same of what conversions make: before the chunks, which some of it is among from then on.
pub(super) fn tally_conversions(
    draining: &mut BTreeMap<ServerId, Holdings>,
    state: &StreamMachine,
) {
    for (of, made) in state.conversions() {
        let (file, ..) = state.chunk(of).expect("conversions are of chunks of streams");
        tally_draining(draining, state, (file, made));
    }
}

/// Counts one replica as held.
fn note_held(held: &mut Holdings, (file, chunk): (FileId, &Chunk), slot: Slot) {
    let sealed = chunk.sealed();
    held.replicas += 1;
    held.open += u64::from(sealed.is_none());
    held.bytes += sealed.map_or(0, |len| chunk.replica_len(len));
    let others = chunk.slots().filter(|other| other.sealed && other.place != slot.place);
    // Without it the chunk cannot be read.
    let only = sealed.is_some() && slot.sealed && chunk.distinct(others) < chunk.data();
    held.only += u64::from(only);
    let full = held.files.len() >= HELD_FILES_MAX;
    if held.files.contains(&file) || full && !only {
        return;
    }
    let at = if only { 0 } else { held.files.len() };
    held.files.insert(at, file);
    held.files.truncate(HELD_FILES_MAX);
}

/// Whether a sealed chunk can not be read any more: the whole replicas that serve, and those of servers that
/// may come back soon, are not enough.
fn is_lost(chunk: &Chunk, replicas: &[Judged]) -> bool {
    let there = |it: &Judged| it.is_source() || it.slot.sealed && it.worth == Worth::Hoped;
    distinct(chunk, replicas, there) < chunk.data()
}

impl<L: Log> StreamService<L> {
    /// What the partition has on the servers that drain, as of the last scan.
    pub fn draining(&self) -> Vec<Holdings> {
        self.0.leads();
        self.0.repairs.draining.borrow().values().cloned().collect()
    }

    /// What the partition has on a server, by a linearizable look: all that was decided, or that
    /// this leader had proposed, before the call is in it.
    pub async fn held(&self, server: ServerId) -> Result<Holdings, ControlError> {
        let service = &*self.0;
        let term = service.log.leading();
        // A command without effect: what this leader proposed before it is applied before it.
        service.decide(Action::SealReplicas { replicas: Vec::new() }).await?;
        let mut held = BTreeMap::from([(server, Holdings::none(server))]);
        service.log.with_state(|state| tally_conversions(&mut held, state));
        let mut held = held.remove(&server).expect("just put there");
        held.partitions = vec![service.log.with_state(StreamMachine::partition)];
        let mut after = None;
        while service.hold_slice(&mut held, &mut after) {
            service.env.sleep(SLICE_PAUSE).await;
        }
        // What came since is of this leader, which has placed nothing on a server that drains.
        service.read().await?;
        if service.log.leading() != term {
            let message = "another master has begun to lead the stream partition: retry";
            return Err(ControlError::new(Kind::Retry, message));
        }
        Ok(held)
    }
}

impl<L: Log> Service<L> {
    /// Looks at a slice of the chunks, spares included; true while more follow.
    fn hold_slice(&self, held: &mut Holdings, after: &mut Option<ChunkId>) -> bool {
        let view = self.cluster.view();
        self.log.with_state(|state| {
            let mut count = 0;
            for id in state.chunk_ids(*after).take(SCAN_SLICE) {
                count += 1;
                *after = Some(id);
                let (file, stream, chunk) = state.chunk(id).expect("just listed");
                held.widest = held.widest.max(chunk.copies).max(stream.policy.copies);
                let mut here = 0;
                for slot in chunk.slots() {
                    if state.place(slot.place).server == held.server {
                        note_held(held, (file, chunk), slot);
                        here += 1;
                    }
                }
                if let (1.., Some(len)) = (here, chunk.sealed())
                    && is_lost(chunk, &self.judge_chunk(&view, state, chunk))
                {
                    held.lose(LostChunk { file, chunk: id, base: chunk.base, len }, here);
                }
            }
            count == SCAN_SLICE
        })
    }

    /// Drops a replica from a draining server, if as many as the chunk has copies, or all its
    /// fragments, stay: as it is
    /// now, for other servers may have begun to drain or have gone since the chunk was judged.
    pub(super) async fn drop_leaving(
        &self,
        id: ChunkId,
        place: ReplicaLocation,
    ) -> Result<(), ControlError> {
        let Some((chunk, replicas)) = self.judged(id) else { return Ok(()) };
        let stays = |it: &Judged| it.stays() && it.place != place;
        let stay: Vec<_> = replicas.iter().filter(|it| stays(it)).map(|it| it.place).collect();
        if distinct(&chunk, &replicas, stays) < must_stay(&chunk) {
            return Ok(());
        }
        self.env.mark("replica dropped from a draining server");
        self.drop_replica(id, place, stay).await
    }
}
