//! Volumes: made, removed, resized, opened.

use std::ops::Range;

use block_proto::limits::ATTACHMENTS_MAX;
use block_proto::{BlockReply, NamedSettings, Standing, VolumeSpec, attachment_process, geometry};
use block_volume::geometry::Geometry;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::limits::{BLOCK, VOLUME_BYTES};
use block_volume::qos::VolumeLimits;
use runtime::Instant;
use wire::control::Policy;

use super::entity::{AttachedClient, Counters, Family, PendingDelete, Segment, Volume};
use super::error::Refusal;
use super::limits::{ATTACHMENT_EPOCH_MAX, SEGMENTS_MAX, VOLUME_SEGMENTS_MAX};
use super::machine::{FirstEpochs, Machine};
use super::presence::Presence;
use super::refusals::Once;
use super::rows::{Key, Row, Value};

impl Machine {
    pub(super) fn create(
        &mut self,
        now: Instant,
        nonce: u64,
        spec: VolumeSpec,
    ) -> Result<BlockReply, Refusal> {
        if let Some(id) = self.state.find(&spec.name) {
            // The same creation once more, its answer was lost.
            if self.state.volume(id).is_some_and(|volume| volume.nonce == nonce) {
                return self.volume_reply(id);
            }
            return Err(Refusal::Exists(spec.name));
        }
        // It comes late: what it asked for has been, or has another name by now.
        if self.state.was_made(nonce) {
            return Err(Refusal::NoName(spec.name));
        }
        super::snapshots::check_name(&spec.name)?;
        let sizes = spec.geometry;
        Geometry::new(sizes.group_bytes, sizes.segments_per_group, sizes.data_sector)
            .map_err(Refusal::Geometry)?;
        let count = self.check_length(&spec, spec.bytes)?;
        check_limits(spec.limits)?;
        check_policy(spec.policy)?;
        self.check_count()?;
        let id = self.number_volume();
        let attached = Vec::new();
        let family = Family::default();
        let FirstEpochs { owner: owner_floor, attachment } = self.config.first;
        let (attach_epoch, deleted) = (u64::from(attachment), None);
        let volume = Volume { nonce, spec, attach_epoch, owner_floor, attached, family, deleted };
        self.put(Key::Volume(id), Value::Volume(volume));
        self.add_segments(now, id, 0..count as u32);
        self.volume_reply(id)
    }

    /// Refuses one more volume when there is no room for it, or no number.
    pub(super) fn check_count(&self) -> Result<(), Refusal> {
        if self.state.volume_count() >= self.config.volumes_max {
            return Err(Refusal::Full { what: "volumes", max: self.config.volumes_max });
        }
        match self.state.counters().volume.checked_add(1) {
            Some(_) => Ok(()),
            None => Err(Refusal::NoNumbers { what: "volumes and snapshots" }),
        }
    }

    /// The number of a new volume, after [`Machine::check_count`].
    pub(super) fn number_volume(&mut self) -> VolumeId {
        let counters = self.state.counters();
        let next = counters.volume.checked_add(1).expect("checked before");
        let after = Counters { volume: next, ..counters };
        self.put(Key::Counters, Value::Counters(after));
        VolumeId::new(counters.volume)
    }

    /// The number of segments, when the length is possible.
    fn check_length(&self, spec: &VolumeSpec, bytes: u64) -> Result<u64, Refusal> {
        let geometry = geometry(spec).map_err(Refusal::Geometry)?;
        let (least, most) = (self.config.bytes_least, VOLUME_BYTES.1);
        if bytes < least.max(BLOCK) || bytes > most || !bytes.is_multiple_of(BLOCK) {
            return Err(Refusal::Bytes { bytes, least });
        }
        let count = geometry.segments(bytes);
        if count > VOLUME_SEGMENTS_MAX {
            return Err(Refusal::Segments { count, max: VOLUME_SEGMENTS_MAX });
        }
        if self.state.segment_count() + count as usize > SEGMENTS_MAX {
            return Err(Refusal::Full { what: "segments", max: SEGMENTS_MAX });
        }
        Ok(count)
    }

    pub(super) fn add_segments(
        &mut self,
        now: Instant,
        volume: VolumeId,
        indices: std::ops::Range<u32>,
    ) {
        let epoch = self.state.volume(volume).map_or(0, |volume| volume.owner_floor);
        for index in indices {
            let id = SegmentId { volume, index };
            self.put(Key::Segment(id), Value::Segment(Segment { epoch, owner: None }));
        }
        self.adopt(now);
    }

    pub(super) fn remove(
        &mut self,
        now: Instant,
        volume: VolumeId,
        force: bool,
    ) -> Result<BlockReply, Refusal> {
        let Some(known) = self.state.volume(volume).cloned() else {
            // Removed already: an identity is never given twice.
            let first = self.config.first.counters().volume;
            let given = first..self.state.counters().volume;
            let was_there = given.contains(&volume.get());
            return if was_there { Ok(BlockReply::Done) } else { Err(Refusal::NoVolume(volume)) };
        };
        self.refuse_needed(volume, force)?;
        if !force {
            self.refuse_attached(now, volume)?;
        }
        self.count_origins(volume);
        self.drop_volume(now, volume, known.nonce);
        Ok(BlockReply::Done)
    }

    /// Removes a volume; its files go later.
    pub(super) fn drop_volume(&mut self, now: Instant, volume: VolumeId, nonce: u64) {
        let is_snapshot =
            self.state.volume(volume).is_some_and(|known| known.family.parent.is_some());
        self.kept.retain(|(other, _), _| *other != volume);
        let ids: Vec<SegmentId> = self.state.segments_of(volume, 0).map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.retire(now, id));
        let parts: Vec<PendingDelete> = self
            .state
            .pending_deletes()
            .filter(|pending_delete| pending_delete.volume == volume)
            .collect();
        parts.into_iter().for_each(|pending_delete| self.purged(pending_delete));
        self.discard(now, PendingDelete { volume, segment: None }, nonce);
        self.change(Row::delete(Key::Volume(volume)));
        match is_snapshot {
            // Its number is its volume's.
            true => self.forget_done(volume),
            false => self.note_gone(volume, nonce),
        }
    }

    /// Ends the ownership of all segments of a volume; later owners begin above its epochs.
    pub(super) fn retire_all(&mut self, now: Instant, volume: VolumeId) {
        let Some(mut known) = self.state.volume(volume).cloned() else { return };
        let segments: Vec<_> = self.state.segments_of(volume, 0).collect();
        if segments.is_empty() {
            return;
        }
        for (segment, of) in segments {
            known.owner_floor = known.owner_floor.max(of.epoch);
            self.retire(now, segment);
        }
        self.put(Key::Volume(volume), Value::Volume(known));
    }

    /// Ends a segment. If it is made again, its owner waits for the leases of owners before.
    pub(super) fn retire(&mut self, now: Instant, id: SegmentId) {
        let known = self.state.segment(id);
        self.change(Row::delete(Key::Segment(id)));
        self.moved.remove(&id);
        if let Some(Segment { epoch, owner: Some(owner) }) = known {
            self.fleet.take(now, id, (owner, epoch));
        }
    }

    /// Segments that lose something when a volume has `bytes`, and from where on; none when it
    /// grows.
    pub fn check_cut(
        &self,
        now: Instant,
        volume: VolumeId,
        bytes: u64,
    ) -> Result<Vec<(SegmentId, Range<u64>)>, Refusal> {
        let known = self.changeable(volume)?;
        self.check_length(&known.spec, bytes)?;
        if bytes < known.spec.bytes {
            // A client that has it open still assumes the old length.
            self.refuse_attached(now, volume)?;
            refuse_shared(known)?;
        }
        Ok(self.state.cut(volume, bytes))
    }

    /// Cutting data off must be asked for, or the caller has checked that there is none.
    pub(super) fn resize(
        &mut self,
        now: Instant,
        volume: VolumeId,
        bytes: u64,
        force: bool,
    ) -> Result<BlockReply, Refusal> {
        let mut known = self.changeable(volume)?.clone();
        if known.spec.bytes == bytes {
            return self.volume_reply(volume);
        }
        let count = self.check_length(&known.spec, bytes)? as u32;
        let there = self.state.segments_of(volume, 0).count() as u32;
        if bytes < known.spec.bytes {
            // A client that has it open still assumes the old length.
            self.refuse_attached(now, volume)?;
            refuse_shared(&known)?;
            if !force {
                return Err(Refusal::HasData { name: known.spec.name, bytes });
            }
            // Clients that were silent for long assume the old length, too: their attachments end.
            for one in std::mem::take(&mut known.attached) {
                self.kept.remove(&(volume, one.epoch));
            }
            for (id, segment) in self.state.segments_of(volume, count).collect::<Vec<_>>() {
                known.owner_floor = known.owner_floor.max(segment.epoch);
                self.retire(now, id);
                self.discard(now, PendingDelete { volume, segment: Some(id.index) }, known.nonce);
            }
        } else if self.state.has_pending_deletes(volume) {
            return Err(Refusal::Removing { name: known.spec.name });
        }
        known.spec.bytes = bytes;
        self.put(Key::Volume(volume), Value::Volume(known));
        if count > there {
            self.add_segments(now, volume, there..count);
        }
        self.volume_reply(volume)
    }

    /// Changes the settings that are named, and the policy if there is one.
    pub(super) fn set(
        &mut self,
        volume: VolumeId,
        (limits, shared, named): (VolumeLimits, bool, NamedSettings),
        policy: Option<Policy>,
    ) -> Result<BlockReply, Refusal> {
        policy.map_or(Ok(()), check_policy)?;
        let mut known = self.changeable(volume)?.clone();
        let before = known.spec.clone();
        let policy = policy.unwrap_or(before.policy);
        named.apply(&mut known.spec, limits, shared);
        // A base that is named may be above a burst that another has set.
        check_limits(known.spec.limits)?;
        known.spec.policy = policy;
        if known.spec != before {
            self.put(Key::Volume(volume), Value::Volume(known));
        }
        if policy != before.policy {
            // Owners go on under their epochs, with another policy.
            for (id, segment) in self.state.segments_of(volume, 0).collect::<Vec<_>>() {
                if let Some(owner) = segment.owner {
                    self.fleet.note(owner, id);
                    self.fleet.tell(owner);
                }
            }
        }
        self.volume_reply(volume)
    }

    /// True when an attachment was not renewed for long.
    pub(super) fn is_dead(
        &self,
        now: Instant,
        volume: VolumeId,
        attached: &AttachedClient,
    ) -> bool {
        let presence = self.kept.get(&(volume, attached.epoch));
        presence.is_none_or(|presence| presence.is_dead(now))
    }

    /// Refuses a volume that has a live attachment.
    pub(super) fn refuse_attached(&self, now: Instant, volume: VolumeId) -> Result<(), Refusal> {
        let Some(known) = self.state.volume(volume) else { return Ok(()) };
        match known.attached.iter().find(|one| !self.is_dead(now, volume, one)) {
            None => Ok(()),
            Some(one) => {
                let (name, holder) = (known.spec.name.clone(), one.holder.clone());
                Err(Refusal::AttachedClient { name, holder })
            }
        }
    }

    pub(super) fn attach(
        &mut self,
        now: Instant,
        name: &str,
        nonce: u64,
        holder: &str,
    ) -> Result<BlockReply, Refusal> {
        let id = self.state.find(name).ok_or_else(|| Refusal::NoName(name.to_owned()))?;
        let attached = self.try_attach(now, (nonce, id), (name, holder));
        if let Err(refusal) = &attached {
            self.note_refused((nonce, id), refusal.kind(), refusal);
        }
        attached
    }

    fn try_attach(
        &mut self,
        now: Instant,
        (nonce, id): Once,
        (name, holder): (&str, &str),
    ) -> Result<BlockReply, Refusal> {
        let mut known = self.state.volume(id).cloned().expect("it has a name");
        if known.family.making {
            return Err(Refusal::Making { name: name.to_owned() });
        }
        self.serve_snapshot(now, id);
        if let Some(same) = known.attached.iter().find(|one| one.nonce == nonce) {
            let presence = self.kept.entry((id, same.epoch));
            presence.or_insert(Presence::begun(now)).hear(now);
            return self.attached_reply(id, same.epoch);
        }
        // It comes late: what it asked for has been, and its holder may have opened the volume again.
        if self.state.was_done(id, nonce) {
            return Err(Refusal::AttachmentOver { name: name.to_owned() });
        }
        self.refuse_refused((nonce, id))?;
        let over = |one: &AttachedClient| self.is_over(now, (nonce, id), (holder, one));
        let (gone, left): (Vec<_>, Vec<_>) = known.attached.into_iter().partition(over);
        known.attached = left;
        if let Some(first) = known.attached.iter().find(|one| one.holder == holder) {
            return Err(self.refuse_second_process(now, (nonce, id), (name, first)));
        }
        if let Some(other) = known.attached.first()
            && !(known.spec.shared || known.family.parent.is_some())
        {
            let (name, holder) = (name.to_owned(), other.holder.clone());
            return Err(Refusal::AttachedClient { name, holder });
        }
        if known.attached.len() >= ATTACHMENTS_MAX {
            return Err(Refusal::Full { what: "attachments of it", max: ATTACHMENTS_MAX });
        }
        let epoch = known.attach_epoch + 1;
        if epoch > ATTACHMENT_EPOCH_MAX {
            let max = ATTACHMENT_EPOCH_MAX as usize;
            return Err(Refusal::Full { what: "epochs of its attachments", max });
        }
        for one in gone {
            self.kept.remove(&(id, one.epoch));
        }
        known.attach_epoch = epoch;
        known.attached.push(AttachedClient { epoch, nonce, holder: holder.to_owned() });
        self.put(Key::Volume(id), Value::Volume(known));
        self.note_done(id, nonce);
        self.kept.insert((id, epoch), Presence::begun(now));
        self.attached_reply(id, epoch)
    }

    /// True for an attachment that request `nonce` of `holder` ends, if it gets one.
    fn is_over(
        &self,
        now: Instant,
        (nonce, id): Once,
        (holder, one): (&str, &AttachedClient),
    ) -> bool {
        if self.is_dead(now, id, one) {
            return true;
        }
        if one.holder != holder {
            return false;
        }
        // A process that asks again has lost its attachment.
        if attachment_process(one.nonce) == attachment_process(nonce) {
            return true;
        }
        let presence = self.kept.get(&(id, one.epoch));
        presence.is_none_or(|presence| presence.is_silent(now)) && !self.stood_still(now)
    }

    /// The refusal of a request of a holder of which another process has the volume open.
    fn refuse_second_process(
        &mut self,
        now: Instant,
        (nonce, id): Once,
        (name, first): (&str, &AttachedClient),
    ) -> Refusal {
        let presence = self.kept.get_mut(&(id, first.epoch));
        let heard = presence.and_then(|presence| presence.refuse(now, nonce));
        let (name, holder, epoch) = (name.to_owned(), first.holder.clone(), first.epoch);
        if heard.is_some() {
            tracing::warn!(
                volume = name,
                holder,
                "a second process of a front end is refused: stop one, or give it an ID of its own"
            );
        }
        Refusal::SecondProcess { name, holder, epoch, heard }
    }

    fn attached_reply(&self, id: VolumeId, epoch: u64) -> Result<BlockReply, Refusal> {
        let volume = self.state.info(id).ok_or(Refusal::NoVolume(id))?;
        Ok(BlockReply::Attached { volume, epoch })
    }

    pub(super) fn keep(&mut self, now: Instant, attachments: Vec<(VolumeId, u64)>) -> BlockReply {
        let mut over = Vec::new();
        for attachment in attachments {
            match self.kept.get_mut(&attachment) {
                Some(presence) => presence.renew(now),
                None => over.push(attachment),
            }
        }
        BlockReply::Kept { over }
    }

    /// The word on an attachment that asks the segment's owner of `epoch` for a session.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        (segment, epoch): (SegmentId, u64),
        attachment: u64,
    ) -> BlockReply {
        let volume = segment.volume;
        let lives = match self.kept.get_mut(&(volume, attachment)) {
            Some(presence) => {
                presence.hear(now);
                true
            }
            None => false,
        };
        let known = self.state.segment(segment);
        let owns = known.is_some_and(|known| known.epoch == epoch && known.owner.is_some());
        let latest =
            self.state.volume(volume).is_some_and(|known| known.attach_epoch == attachment);
        BlockReply::Standing(Standing { lives, owns, latest })
    }

    pub(super) fn detach(&mut self, volume: VolumeId, epoch: u64) -> BlockReply {
        if self.kept.remove(&(volume, epoch)).is_some()
            && let Some(mut known) = self.state.volume(volume).cloned()
        {
            known.attached.retain(|one| one.epoch != epoch);
            self.put(Key::Volume(volume), Value::Volume(known));
        }
        BlockReply::Done
    }
}

/// A segment that is made again would be linked from the snapshot again.
fn refuse_shared(known: &Volume) -> Result<(), Refusal> {
    match known.family.clone_source {
        Some(_) => Err(Refusal::Shares { name: known.spec.name.clone() }),
        None => Ok(()),
    }
}

fn check_limits(limits: VolumeLimits) -> Result<(), Refusal> {
    let above = |base: u64, burst: u64| burst != 0 && base > burst;
    let iops = above(limits.iops_base, limits.iops_burst);
    match iops || above(limits.bytes_base, limits.bytes_burst) {
        true => Err(Refusal::Limits),
        false => Ok(()),
    }
}

/// Collection packs blocks by itself, each alone, so that one is read without others.
fn check_policy(policy: Policy) -> Result<(), Refusal> {
    policy.compression.map_or(Ok(()), |_| Err(Refusal::Compression))
}
