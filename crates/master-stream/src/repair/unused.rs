//! What writers were given and do not use: spares on servers that are gone or drain, and chunks without
//! bytes of writers that are gone (`docs/decisions/0121`).
//!
//! A spare has no bytes, so repair does not move it, and a server without a replica reports no silent
//! writer. Both would keep their servers on record for as long as no one opens the file.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ChunkId, Epoch, FileId};
use futures_util::future::join_all;
use runtime::Class;
use wire::data::DataError;
use wire::token::Rights;

use crate::limits::ABANDONED_MAX;
use crate::placement::{ClusterView, PlaceState, ReplicaLocation};
use crate::planted::{Planted, planted};
use crate::{Action, CallError, Chunk, Log, Service, StreamMachine};

impl<L: Log> Service<L> {
    /// True for a spare at a place that its writer is not to use: on a server that drains, or gone for as
    /// long as an open chunk is left to its writer there.
    pub(super) fn is_useless(
        &self,
        view: &ClusterView,
        state: &StreamMachine,
        spare: &Chunk,
    ) -> bool {
        spare.slots().any(|slot| {
            let place = state.place(slot.place);
            let good = matches!(view.state(place), PlaceState::Good(_));
            let gone = !good && self.gone_for(slot.place) > self.config.open_grace;
            (gone || view.drains(place.server)) && !planted(Planted::SparesStay)
        })
    }

    /// Takes spares from a writer. One that goes on in such a spare is refused, and asks for others: what
    /// it has sent there was not acknowledged (`protocols.md` 1.5).
    pub(super) fn drop_spares(self: &Rc<Self>, file: FileId, epoch: Epoch, drop: Vec<ChunkId>) {
        let service = self.clone();
        self.env.spawn(Class::Background, "drop spares", async move {
            let Some(own) = service.repairs.begin_op() else { return };
            service.env.mark("useless spares dropped");
            let (op, delete_at_ms) = (own.id, service.rights_end_ms());
            let fresh = Vec::new();
            // When it is refused, its writer has ended.
            let _ =
                service.decide(Action::Extend { op, file, epoch, drop, fresh, delete_at_ms }).await;
        });
    }

    /// Ends chunks without bytes on servers that drain, whose writers have not been heard of for long.
    pub(super) fn end_unwritten(self: &Rc<Self>, drained: BTreeMap<ChunkId, (FileId, Epoch)>) {
        let deserted = drained.into_iter().filter(|(chunk, _)| self.is_deserted(*chunk));
        for (chunk, (file, epoch)) in deserted.take(ABANDONED_MAX) {
            // Asked again after as long, when it has bytes.
            self.note_writer_heard(file, epoch);
            let service = self.clone();
            self.env.spawn(Class::Background, "end an unwritten chunk", async move {
                if service.is_unwritten(chunk).await {
                    service.env.mark("unwritten chunk ended");
                    service.seal_abandoned(file, epoch, chunk);
                }
            });
        }
    }

    /// Whether all servers of an open chunk answer that they have nothing of it.
    async fn is_unwritten(&self, chunk: ChunkId) -> bool {
        let places: Option<Vec<ReplicaLocation>> = self.log.with_state(|state| {
            let (_, _, found) = state.chunk(chunk)?;
            Some(found.slots().map(|slot| state.place(slot.place)).collect())
        });
        let ask = |place| async move {
            let token = self.chunk_token(chunk, Rights::ALL, Epoch::new(u64::MAX));
            let call = self.calls.stat(self.address(place), chunk, token);
            match self.env.timeout(self.config.call_timeout, call).await {
                Ok(Ok(stat)) => stat.len == 0,
                Ok(Err(CallError::Data(DataError::NotFound))) => true,
                Ok(Err(_)) | Err(_) => false,
            }
        };
        let Some(places) = places else { return false };
        join_all(places.into_iter().map(ask)).await.into_iter().all(|nothing| nothing)
    }
}
