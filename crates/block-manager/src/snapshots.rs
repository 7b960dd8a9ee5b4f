//! Snapshots, clones and rollbacks in the manager's state (B10, B11; `protocols.md` 6.6, 6.7). It
//! does no I/O: [`super::cuts`] asks the block servers.
//!
//! A clone is a volume that names its snapshot, and no more than that at first: the server that
//! first opens one of its segments links it from the snapshot's ([`Machine::clone_of`]).
//!
//! A snapshot is a volume that never changes, named `VOLUME@NAME`. It has segments, and so owners,
//! only while it is used. While the directories of a snapshot or rollback are made it is *in the
//! making*: its name is taken, and it cannot be opened. A leader that takes over gives up all that
//! is in the making; the requester asks again, and gets another.

use std::fmt;

use base::Kind;
use base::limits::NAME_MAX;
use block_proto::BlockReply;
use block_proto::paths::AT;
use block_volume::ids::{SegmentId, VolumeId};
use runtime::Instant;
use wire::control::Policy;

use super::cut::{Begun, CutSegment};
use super::entity::{Family, PendingDelete, Volume, segments_of_all};
use super::error::Refusal;
use super::limits::{
    FAMILY_ROWS_BYTES_MAX, LINK_ATTEMPT, NAMES_SHOWN, ROW_OVERHEAD, SEGMENTS_MAX, SNAPSHOT_REST,
};
use super::machine::{FirstEpochs, Machine};
use super::refusals::Once;
use super::rows::{Key, Row, Value};

impl Machine {
    /// State that a leader finds at takeover.
    pub(super) fn inherit(&mut self, now: Instant) {
        let all: Vec<(VolumeId, Family)> =
            self.state.volumes().map(|(id, volume)| (id, volume.family)).collect();
        for (id, family) in all {
            if family.making {
                self.give_up(now, id);
            } else if (family.parent.is_some() || self.is_deleted(id))
                && self.state.segments_of(id, 0).next().is_some()
            {
                self.snapshots.served.insert(id, now);
            }
        }
    }

    /// A volume that is whole, and not deleted.
    fn whole(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let known = self.made(id)?;
        match known.deleted {
            Some(_) => Err(Refusal::NoVolume(id)),
            None => Ok(known),
        }
    }

    /// A volume that is not in the making.
    fn made(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let known = self.state.volume(id).ok_or(Refusal::NoVolume(id))?;
        match known.family.making {
            true => Err(Refusal::Making { name: known.spec.name.clone() }),
            false => Ok(known),
        }
    }

    /// A volume that is whole and may change.
    pub(super) fn changeable(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let known = self.whole(id)?;
        match known.family.parent {
            Some(_) => Err(Refusal::Snapshot { name: known.spec.name.clone() }),
            None => Ok(known),
        }
    }

    /// A snapshot that is whole.
    fn snapshot(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let known = self.whole(id)?;
        match known.family.parent {
            Some(_) => Ok(known),
            None => Err(Refusal::NoSnapshot { name: known.spec.name.clone() }),
        }
    }

    /// Checks that this order can make this name; the answer when it has been made.
    fn check_new(&self, nonce: u64, name: &str) -> Result<Option<BlockReply>, Refusal> {
        if let Some(id) = self.state.find(name) {
            return match self.whole(id)?.nonce == nonce {
                true => self.volume_reply(id).map(Some),
                false => Err(Refusal::Exists(name.to_owned())),
            };
        }
        self.check_count().map(|()| None)
    }

    fn begin_cutting(&mut self, volume: VolumeId) -> Result<(), Refusal> {
        let name = || self.state.volume(volume).map(|known| known.spec.name.clone());
        match self.snapshots.cutting.insert(volume) {
            true => Ok(()),
            false => Err(Refusal::Making { name: name().unwrap_or_default() }),
        }
    }

    /// Ends the cut of a volume's segments, successful or not.
    pub fn end_cutting(&mut self, now: Instant, volume: VolumeId) {
        self.snapshots.cutting.remove(&volume);
        if let Some(used) = self.snapshots.served.get_mut(&volume) {
            *used = now;
        }
    }

    /// Begins a snapshot: the segments to be cut. [`Machine::end_cutting`] has to follow.
    pub fn begin_snapshot(
        &mut self,
        nonce: u64,
        volume: VolumeId,
        name: &str,
    ) -> Result<Begun<Vec<CutSegment>>, Refusal> {
        let begun = self.try_begin_snapshot(nonce, volume, name);
        if let Err(refusal) = &begun {
            self.note_refused((nonce, volume), refusal.kind(), refusal);
        }
        begun
    }

    fn try_begin_snapshot(
        &mut self,
        nonce: u64,
        volume: VolumeId,
        name: &str,
    ) -> Result<Begun<Vec<CutSegment>>, Refusal> {
        let full = snapshot_name(&self.changeable(volume)?.spec.name, name)?;
        if let Some(reply) = self.check_new(nonce, &full)? {
            return Ok(Begun::Done(reply));
        }
        // It was made, and is gone or has another name by now.
        if self.state.was_done(volume, nonce) {
            return Err(Refusal::NoName(full));
        }
        self.refuse_refused((nonce, volume))?;
        let parts = self.parts(volume)?;
        self.begin_cutting(volume)?;
        Ok(Begun::Go(parts))
    }

    /// All segments of a volume with their owners.
    fn parts(&self, volume: VolumeId) -> Result<Vec<CutSegment>, Refusal> {
        let part = |(id, segment): (SegmentId, super::entity::Segment)| {
            let addr = self.owner_addr(id).filter(|_| self.fleet.serves(id, segment.owner));
            let what = || Refusal::Server { what: format!("{id} is not open yet") };
            Ok(CutSegment { segment: id, epoch: segment.epoch, addr: addr.ok_or_else(what)? })
        };
        self.state.segments_of(volume, 0).map(part).collect()
    }

    /// All segments are cut: the snapshot counts if no segment has changed hands since. A new owner
    /// may have answered what its own cut would not have had.
    pub fn commit_snapshot(
        &mut self,
        nonce: u64,
        volume: VolumeId,
        name: &str,
        parts: &[CutSegment],
    ) -> Result<(VolumeId, Policy), Refusal> {
        let known = self.changeable(volume)?.clone();
        // A copy that came at the same time may have been refused.
        self.refuse_refused((nonce, volume))?;
        let epochs = parts.iter().map(|part| (part.segment, part.epoch));
        let now = self.state.segments_of(volume, 0).map(|(id, segment)| (id, segment.epoch));
        if !now.eq(epochs) {
            let what = format!("{}: a segment changed its server", known.spec.name);
            return Err(Refusal::Server { what });
        }
        let mut spec = known.spec;
        spec.name = snapshot_name(&spec.name, name)?;
        if self.check_new(nonce, &spec.name)?.is_some() {
            return Err(Refusal::Exists(spec.name));
        }
        let policy = spec.policy;
        let family = Family { parent: Some(volume), making: true, ..Family::default() };
        Ok((self.add(nonce, spec, family), policy))
    }

    fn add(&mut self, nonce: u64, spec: block_proto::VolumeSpec, family: Family) -> VolumeId {
        let id = self.number_volume();
        let attached = Vec::new();
        let FirstEpochs { owner: owner_floor, attachment } = self.config.first;
        let (attach_epoch, deleted) = (u64::from(attachment), None);
        let volume = Volume { nonce, spec, attach_epoch, owner_floor, attached, family, deleted };
        self.put(Key::Volume(id), Value::Volume(volume));
        id
    }

    /// The snapshot's directories are there.
    pub fn finish_snapshot(&mut self, id: VolumeId, hold_us: u64) -> Result<BlockReply, Refusal> {
        let mut known = self.state.volume(id).cloned().ok_or(Refusal::NoVolume(id))?;
        (known.family.making, known.family.hold_us) = (false, hold_us);
        let (nonce, parent) = (known.nonce, known.family.parent);
        self.put(Key::Volume(id), Value::Volume(known));
        if let Some(parent) = parent.filter(|&parent| self.state.volume(parent).is_some()) {
            self.note_done(parent, nonce);
        }
        self.volume_reply(id)
    }

    /// Gives up what is in the making. Its files go when no link can come any more.
    pub fn give_up(&mut self, now: Instant, id: VolumeId) {
        if !self.state.volume(id).is_some_and(|known| known.family.making) {
            return;
        }
        self.next_change();
        self.change(Row::delete(Key::Volume(id)));
        self.forget_done(id);
        self.discard(now + LINK_ATTEMPT, PendingDelete { volume: id, segment: None }, 0);
    }

    /// Makes a clone of a snapshot, in the rows alone: its segments are linked when they are
    /// opened, and the snapshot cannot go before.
    pub fn clone_of(
        &mut self,
        now: Instant,
        nonce: u64,
        snapshot: VolumeId,
        name: &str,
    ) -> Result<BlockReply, Refusal> {
        let made = self.try_clone_of(now, (nonce, snapshot), name);
        match &made {
            Ok(_) if self.state.was_done(snapshot, nonce) => {}
            Ok(_) => self.note_done(snapshot, nonce),
            Err(refusal) => self.note_refused((nonce, snapshot), refusal.kind(), refusal),
        }
        made
    }

    fn try_clone_of(
        &mut self,
        now: Instant,
        (nonce, snapshot): Once,
        name: &str,
    ) -> Result<BlockReply, Refusal> {
        let mut spec = self.snapshot(snapshot)?.spec.clone();
        check_name(name)?;
        if let Some(reply) = self.check_new(nonce, name)? {
            return Ok(reply);
        }
        // It was made, and is gone or has another name by now.
        if self.state.was_done(snapshot, nonce) || self.state.was_made(nonce) {
            return Err(Refusal::NoName(name.to_owned()));
        }
        self.refuse_refused((nonce, snapshot))?;
        if self.snapshots.parting.contains_key(&snapshot) {
            return Err(Refusal::Making { name: spec.name });
        }
        name.clone_into(&mut spec.name);
        let count = self.check_room(&spec, 1)?;
        let (clone_source, clone_source_segments) = (Some(snapshot), Some(count));
        let family = Family { clone_source, clone_source_segments, ..Family::default() };
        let id = self.add(nonce, spec, family);
        self.add_segments(now, id, 0..count);
        self.volume_reply(id)
    }

    /// The number of segments of a volume; refused when `times` that number is too many.
    pub(super) fn check_room(
        &self,
        spec: &block_proto::VolumeSpec,
        times: usize,
    ) -> Result<u32, Refusal> {
        let count = block_proto::geometry(spec).map_or(0, |sizes| sizes.segments(spec.bytes));
        match self.state.segment_count() + times * count as usize > SEGMENTS_MAX {
            true => Err(Refusal::Full { what: "segments", max: SEGMENTS_MAX }),
            false => Ok(count as u32),
        }
    }

    /// A snapshot is to be removed though clones depend on it: every segment of these has to be
    /// opened before. [`Machine::end_parting`] has to follow.
    pub fn begin_parting(&mut self, snapshot: VolumeId) -> Vec<VolumeId> {
        self.snapshots.parting.entry(snapshot).or_default().removals += 1;
        self.clones_of(snapshot)
    }

    fn clones_of(&self, snapshot: VolumeId) -> Vec<VolumeId> {
        let is_clone =
            |(_, known): &(VolumeId, &Volume)| known.family.clone_source == Some(snapshot);
        self.state.volumes().filter(is_clone).map(|(id, _)| id).collect()
    }

    /// Every segment of these clones is linked: they need the snapshot no more.
    pub fn parted(&mut self, snapshot: VolumeId, clones: &[VolumeId]) {
        if let Some(parting) = self.snapshots.parting.get_mut(&snapshot) {
            parting.linked.extend(clones);
        }
    }

    /// One removal has ended, successful or not. When no other is under way, clones can be made again.
    pub fn end_parting(&mut self, snapshot: VolumeId) {
        if let Some(parting) = self.snapshots.parting.get_mut(&snapshot) {
            parting.removals -= 1;
            if parting.removals == 0 {
                self.snapshots.parting.remove(&snapshot);
            }
        }
    }

    /// Clones of a snapshot that may have segments without their content.
    fn unlinked_clones(&self, snapshot: VolumeId) -> impl Iterator<Item = VolumeId> {
        let linked = self.snapshots.parting.get(&snapshot).map(|parting| &parting.linked);
        let clones = self.clones_of(snapshot).into_iter();
        clones.filter(move |clone| !linked.is_some_and(|linked| linked.contains(clone)))
    }

    /// A snapshot goes: its clones know how many of their segments came from it.
    pub(super) fn count_origins(&mut self, snapshot: VolumeId) {
        let Some(count) = self.state.volume(snapshot).map(segments_of_all) else { return };
        for id in self.clones_of(snapshot) {
            let mut known = self.state.volume(id).cloned().expect("just seen");
            if known.family.clone_source_segments.is_none() {
                known.family.clone_source_segments = Some(count);
                self.put(Key::Volume(id), Value::Volume(known));
            }
        }
    }

    /// Begins the rollback of a snapshot's volume: the volume that is made, which takes its place
    /// later. [`Machine::end_cutting`] of the snapshot has to follow.
    pub fn begin_rollback(
        &mut self,
        now: Instant,
        nonce: u64,
        snapshot: VolumeId,
    ) -> Result<Begun<(VolumeId, Policy)>, Refusal> {
        let parent = self.state.volume(snapshot).and_then(|known| known.family.parent);
        let begun = self.try_begin_rollback(now, nonce, snapshot);
        if let (Some(parent), Err(refusal)) = (parent, &begun) {
            self.note_refused((nonce, parent), refusal.kind(), refusal);
        }
        begun
    }

    fn try_begin_rollback(
        &mut self,
        now: Instant,
        nonce: u64,
        snapshot: VolumeId,
    ) -> Result<Begun<(VolumeId, Policy)>, Refusal> {
        let known = self.snapshot(snapshot)?.clone();
        let parent = known.family.parent.expect("a snapshot has a volume");
        let (mut spec, volume) = (known.spec, self.changeable(parent)?);
        // Or it comes behind a later one.
        if volume.nonce == nonce || self.state.was_done(parent, nonce) {
            return self.volume_reply(parent).map(Begun::Done);
        }
        self.refuse_refused((nonce, parent))?;
        self.refuse_attached(now, parent)?;
        spec.name = format!("{}{AT}{AT}rollback", volume.spec.name);
        self.check_family(parent)?;
        if let Some(reply) = self.check_new(nonce, &spec.name)? {
            return Ok(Begun::Done(reply));
        }
        self.check_room(&spec, 2)?;
        self.begin_cutting(snapshot)?;
        self.serve_snapshot(now, snapshot);
        let policy = spec.policy;
        let family = Family { clone_source: Some(snapshot), making: true, ..Family::default() };
        Ok(Begun::Go((self.add(nonce, spec, family), policy)))
    }

    /// Gives owners to a snapshot's segments, if it has none.
    pub(super) fn serve_snapshot(&mut self, now: Instant, id: VolumeId) {
        if self.state.volume(id).is_some_and(|known| known.family.parent.is_some()) {
            self.serve_for_a_while(now, id);
        }
    }

    /// Gives owners to the segments of a volume that has none, until it was not used for a while.
    pub(super) fn serve_for_a_while(&mut self, now: Instant, id: VolumeId) {
        let Some(known) = self.state.volume(id) else { return };
        let count = segments_of_all(known);
        if self.state.segments_of(id, 0).next().is_none() {
            self.add_segments(now, id, 0..count);
        }
        self.snapshots.served.insert(id, now);
    }

    /// The segments of a snapshot with their owners, when all are open.
    pub fn snapshot_parts(&self, id: VolumeId) -> Result<Vec<CutSegment>, Refusal> {
        self.snapshot(id)?;
        self.parts(id)
    }

    /// The directories are there: the volume's name and snapshots are those of `id` from now on,
    /// and its previous content goes.
    pub fn finish_rollback(&mut self, now: Instant, id: VolumeId) -> Result<BlockReply, Refusal> {
        let finished = self.try_finish_rollback(now, id);
        if let Err(refusal) = &finished {
            self.note_rollback_refused(id, refusal.kind(), refusal);
        }
        finished
    }

    /// The rollback for which a volume is in the making was refused.
    pub(super) fn note_rollback_refused(
        &mut self,
        id: VolumeId,
        kind: Kind,
        text: &dyn fmt::Display,
    ) {
        if let Some(once) = self.rollback_of(id) {
            self.note_refused(once, kind, text);
        }
    }

    /// The number of the rollback for which a volume is in the making, and the volume whose place it is to take.
    fn rollback_of(&self, id: VolumeId) -> Option<Once> {
        let made = self.state.volume(id)?;
        let snapshot = self.state.volume(made.family.clone_source?)?;
        Some((made.nonce, snapshot.family.parent?))
    }

    fn try_finish_rollback(&mut self, now: Instant, id: VolumeId) -> Result<BlockReply, Refusal> {
        let mut made = self.state.volume(id).cloned().ok_or(Refusal::NoVolume(id))?;
        let clone_source = made
            .family
            .take_clone_source()
            .and_then(|clone_source| self.state.volume(clone_source));
        let parent = clone_source.and_then(|snapshot| snapshot.family.parent);
        let parent = parent.ok_or(Refusal::NoVolume(id))?;
        let former = self.changeable(parent)?.clone();
        // A copy that came at the same time may have been refused.
        self.refuse_refused((made.nonce, parent))?;
        self.refuse_attached(now, parent)?;
        self.check_family(parent)?;
        self.next_change();
        made.family.making = false;
        made.spec.name.clone_from(&former.spec.name);
        (made.spec.limits, made.spec.shared) = (former.spec.limits, former.spec.shared);
        // A rollback brings content back, and no settings.
        made.spec.policy = former.spec.policy;
        self.inherit_done(id, parent);
        self.note_done(id, made.nonce);
        self.drop_volume(now, parent, former.nonce);
        for (snapshot, mut known) in self.snapshots_of(parent) {
            known.family.parent = Some(id);
            self.put(Key::Volume(snapshot), Value::Volume(known));
        }
        let count = segments_of_all(&made);
        self.put(Key::Volume(id), Value::Volume(made));
        self.add_segments(now, id, 0..count);
        self.volume_reply(id)
    }

    /// Snapshots of a volume, those in the making too.
    pub(super) fn snapshots_of(&self, volume: VolumeId) -> Vec<(VolumeId, Volume)> {
        let is_its = |(_, known): &(VolumeId, &Volume)| known.family.parent == Some(volume);
        let found = self.state.volumes().filter(is_its);
        found.map(|(id, known)| (id, known.clone())).collect()
    }

    /// Refuses to remove what is in the making or is being cut.
    pub(super) fn refuse_cutting(&self, id: VolumeId) -> Result<(), Refusal> {
        let known = self.made(id)?;
        match self.snapshots.cutting.contains(&id) {
            true => Err(Refusal::Making { name: known.spec.name.clone() }),
            false => Ok(()),
        }
    }

    /// Refuses to change a volume together with all of its snapshots when their rows do not fit
    /// in one batch.
    pub(super) fn check_family(&self, volume: VolumeId) -> Result<(), Refusal> {
        let bytes = |(id, known): (VolumeId, Volume)| {
            let row = Row::put(Key::Volume(id), Value::Volume(known));
            row.value_bytes().map_or(0, |value| value.len() + ROW_OVERHEAD)
        };
        let snapshots = self.snapshots_of(volume);
        let sum: usize = snapshots.into_iter().map(bytes).sum();
        match sum > FAMILY_ROWS_BYTES_MAX {
            true => Err(Refusal::Full {
                what: "bytes of rows of its snapshots",
                max: FAMILY_ROWS_BYTES_MAX,
            }),
            false => Ok(()),
        }
    }

    /// Refuses to remove what others depend on. Clones keep their data without their snapshot, so
    /// that it may go when that is asked for.
    pub(super) fn refuse_needed(&self, id: VolumeId, force: bool) -> Result<(), Refusal> {
        let known = self.made(id)?;
        self.refuse_cutting(id)?;
        let names = |wanted: &dyn Fn(&Family) -> bool| -> Vec<String> {
            let live = |volume: &Volume| known.deleted.is_some() || volume.deleted.is_none();
            let found = self.state.volumes().filter(|(_, one)| live(one) && wanted(&one.family));
            found.map(|(_, volume)| volume.spec.name.clone()).take(NAMES_SHOWN).collect()
        };
        if force && self.unlinked_clones(id).next().is_some() {
            return Err(Refusal::Making { name: known.spec.name.clone() });
        }
        let snapshots = names(&|family| family.parent == Some(id));
        let clones = match force {
            true => Vec::new(),
            false => names(&|family| family.clone_source == Some(id)),
        };
        let name = known.spec.name.clone();
        match (snapshots.is_empty(), clones.is_empty()) {
            (false, _) => Err(Refusal::HasSnapshots { name, snapshots }),
            (_, false) => Err(Refusal::HasClones { name, clones }),
            _ => Ok(()),
        }
    }

    /// Notes that a clone shares nothing any more.
    pub fn flattened(&mut self, id: VolumeId) {
        if let Some(mut known) = self.state.volume(id).cloned()
            && known.family.take_clone_source().is_some()
        {
            self.put(Key::Volume(id), Value::Volume(known));
        }
    }

    /// All segments of a clone, deleted or not, whose snapshot is about to go. One that has just
    /// been deleted has none, and gets some when this is tried again.
    pub fn clone_parts(&self, id: VolumeId) -> Result<Vec<CutSegment>, Refusal> {
        let known = self.made(id)?;
        let parts = self.parts(id)?;
        let count = block_proto::geometry(&known.spec)
            .map_or(0, |geometry| geometry.segments(known.spec.bytes));
        match parts.len() as u64 == count {
            true => Ok(parts),
            false => Err(Refusal::Server { what: format!("{id} is just being deleted") }),
        }
    }

    /// Segments of a volume that may change, with their owners.
    pub fn flatten_parts(&self, id: VolumeId) -> Result<Vec<CutSegment>, Refusal> {
        self.changeable(id)?;
        self.parts(id)
    }

    /// Takes the owners from snapshots that were not used for a while.
    pub(super) fn rest_snapshots(&mut self, now: Instant) {
        let served = std::mem::take(&mut self.snapshots.served);
        for (id, used) in served {
            let Some(known) = self.state.volume(id).cloned() else { continue };
            let attached = known.attached.iter().any(|one| !self.is_dead(now, id, one));
            // Clones are opened while their snapshot is about to go.
            let parted = known.family.clone_source;
            let parted = parted.is_some_and(|of| self.snapshots.parting.contains_key(&of));
            let is_used = attached || parted;
            if is_used || self.snapshots.cutting.contains(&id) || now - used < SNAPSHOT_REST {
                let used = if is_used { now } else { used };
                self.snapshots.served.insert(id, used);
                continue;
            }
            self.rest(now, id);
        }
    }

    /// Takes the owners from the segments of a volume: a change of its own.
    pub(super) fn rest(&mut self, now: Instant, id: VolumeId) {
        self.next_change();
        self.retire_all(now, id);
        self.snapshots.served.remove(&id);
    }
}

/// Checks the name of a volume: the part behind an [`AT`] names a snapshot.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    match name.is_empty() || name.contains([AT, '/']) || name.len() > NAME_MAX {
        true => Err(Refusal::Name { name: name.to_owned() }),
        false => Ok(()),
    }
}

fn snapshot_name(volume: &str, name: &str) -> Result<String, Refusal> {
    check_name(name)?;
    let full = format!("{volume}{AT}{name}");
    match full.len() > NAME_MAX {
        true => Err(Refusal::Name { name: full }),
        false => Ok(full),
    }
}
