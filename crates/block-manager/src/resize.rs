//! What has to hold before a volume is cut: nothing goes unasked.

use std::ops::Range;

use base::Kind;
use block_proto::managers::ask_peer;
use block_proto::paths::segment_path;
use block_proto::{BlockServerReply, BlockServerRequest, Reply, Request};
use block_volume::ids::{SegmentId, VolumeId};
use futures_util::stream::{StreamExt, iter};
use wire::control::ControlError;

use super::error::Refusal;
use super::limits::{CONTENT_ATTEMPT, LINKS_INFLIGHT};
use super::service::{LeaderTerm, Manager};

impl Manager {
    /// Makes sure that nothing is cut off unasked, and that cut parts of segments that stay, even
    /// all of them, read as zeroes later on. Nothing is changed here: a message of a manager that
    /// was stopped could come when the volume has grown again.
    pub(super) async fn before_cut(
        &self,
        lead: &LeaderTerm,
        volume: VolumeId,
        bytes: u64,
        force: bool,
    ) -> Result<(), ControlError> {
        let attached = |lead: &LeaderTerm| {
            let machine = lead.machine.borrow();
            machine
                .state()
                .volume(volume)
                .map(|known| (known.attach_epoch, known.spec.name.clone()))
        };
        let before = attached(lead);
        let cut = lead.machine.borrow().check_cut(self.env().now(), volume, bytes)?;
        let kept = lead.machine.borrow().state().segments_at(volume, bytes);
        // The files of a segment that goes go with it.
        let asked = cut.into_iter().filter(|(segment, _)| !force || segment.index < kept);
        let looks = asked.map(|(segment, part)| self.has_data(lead, segment, part));
        let mut looks = iter(looks).buffer_unordered(LINKS_INFLIGHT);
        while let Some(found) = looks.next().await {
            if found? {
                let name = before.map_or_else(|| volume.to_string(), |(_, name)| name);
                return Err(Refusal::HasData { name, bytes }.into());
            }
        }
        match attached(lead) == before {
            true => Ok(()),
            false => Err(Refusal::Opened { volume }.into()),
        }
    }

    /// True when a part of a segment has data.
    async fn has_data(
        &self,
        lead: &LeaderTerm,
        segment: SegmentId,
        Range { start: from, end: to }: Range<u64>,
    ) -> Result<bool, Refusal> {
        let failed = |what: String| Refusal::Server { what: format!("{segment}: {what}") };
        match self.client().lookup(&segment_path(segment)).await {
            Ok(_) => {}
            // It was not used yet: a large volume has many such.
            Err(error) if error.kind() == Kind::NotFound => return Ok(false),
            Err(error) => return Err(failed(error.to_string())),
        }
        let server = lead.machine.borrow().owner_addr(segment);
        let server = server.ok_or_else(|| failed("no block server has it".to_owned()))?;
        let asked = Request::BlockServer(BlockServerRequest::HasData { segment, from, to });
        match ask_peer(self.client(), server, asked, CONTENT_ATTEMPT).await {
            Ok(Reply::BlockServer(BlockServerReply::HasData(found))) => Ok(found),
            Ok(_) => Err(failed(format!("{server} is no block server"))),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}
