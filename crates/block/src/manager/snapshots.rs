//! Snapshots, clones and rollbacks in what the manager remembers (B10, B11; `protocols.md` 6.6,
//! 6.7). It does no I/O: [`super::cuts`] asks the block servers.
//!
//! A clone is a volume that names its snapshot, and no more than that at first: each of its
//! segments is linked from the snapshot's by whoever opens it first ([`Machine::clone_of`]).
//!
//! A snapshot is a volume that never changes, named `VOLUME@NAME`. It has segments, and so owners,
//! only while somebody uses it. While the directories of a snapshot or rollback are made it is *in
//! the making*: its name is taken, and nobody can open it. A leader that takes over gives up all
//! that is in the making; who asked for it asks again, and gets another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use base::VolumeId;
use base::limits::NAME_MAX;
use runtime::Instant;
use wire::control::{BlockReply, Policy, SegmentId};

use super::error::Refusal;
use super::limits::{LINK_ATTEMPT, NAMES_SHOWN, SEGMENTS_MAX, SNAPSHOT_REST};
use super::machine::Machine;
use super::rows::{Key, Row, Value};
use super::state::{Family, Trash, Volume};

/// Stands between the names of a volume and its snapshot.
pub const AT: char = '@';

/// What goes on with snapshots under one leader.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Volumes whose segments are being cut: one cut at a time.
    cutting: BTreeSet<VolumeId>,
    /// Snapshots that have segments, and when they were used last.
    served: BTreeMap<VolumeId, Instant>,
    /// Snapshots that are about to be removed: no clone is made of them any more.
    parting: BTreeSet<VolumeId>,
}

/// A segment that takes part in a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The segment.
    pub segment: SegmentId,
    /// Its owner's epoch.
    pub epoch: u64,
    /// Where its owner is reached.
    pub addr: SocketAddr,
}

/// How an order begins.
#[derive(Clone, PartialEq, Debug)]
pub enum Begun<T> {
    /// It was carried out before: this was the answer.
    Done(BlockReply),
    /// What to do.
    Go(T),
}

impl Machine {
    /// What a leader that takes over finds.
    pub(super) fn inherit(&mut self, now: Instant) {
        let all: Vec<(VolumeId, Family)> =
            self.state.volumes().map(|(id, volume)| (id, volume.family)).collect();
        for (id, family) in all {
            if family.making {
                self.give_up(now, id);
            } else if family.parent.is_some() && self.state.segments_of(id, 0).next().is_some() {
                self.snapshots.served.insert(id, now);
            }
        }
    }

    /// A volume that is whole.
    fn whole(&self, id: VolumeId) -> Result<&Volume, Refusal> {
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

    /// Whether this name can be made by this order; the answer when it has been.
    fn check_new(&self, nonce: u64, name: &str) -> Result<Option<BlockReply>, Refusal> {
        if let Some(id) = self.state.find(name) {
            return match self.whole(id)?.nonce == nonce {
                true => self.volume_reply(id).map(Some),
                false => Err(Refusal::Exists(name.to_owned())),
            };
        }
        if self.state.volume_count() >= self.config.volumes_max {
            return Err(Refusal::Full { what: "volumes", max: self.config.volumes_max });
        }
        Ok(None)
    }

    fn begin_cutting(&mut self, volume: VolumeId) -> Result<(), Refusal> {
        let name = || self.state.volume(volume).map(|known| known.spec.name.clone());
        match self.snapshots.cutting.insert(volume) {
            true => Ok(()),
            false => Err(Refusal::Making { name: name().unwrap_or_default() }),
        }
    }

    /// The cut of a volume's segments has ended, well or not.
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
    ) -> Result<Begun<Vec<Part>>, Refusal> {
        let full = snapshot_name(&self.changeable(volume)?.spec.name, name)?;
        if let Some(reply) = self.check_new(nonce, &full)? {
            return Ok(Begun::Done(reply));
        }
        let parts = self.parts(volume)?;
        self.begin_cutting(volume)?;
        Ok(Begun::Go(parts))
    }

    /// All segments of a volume with their owners.
    fn parts(&self, volume: VolumeId) -> Result<Vec<Part>, Refusal> {
        let part = |(id, segment): (SegmentId, super::state::Segment)| {
            let addr = self.owner_addr(id).filter(|_| self.serves(id, segment.owner));
            let what = || Refusal::Server { what: format!("{id} is not open yet") };
            Ok(Part { segment: id, epoch: segment.epoch, addr: addr.ok_or_else(what)? })
        };
        self.state.segments_of(volume, 0).map(part).collect()
    }

    /// All segments are cut: the snapshot will be, if no segment changed hands meanwhile. A new
    /// owner may have answered what its own cut would not have had.
    pub fn commit_snapshot(
        &mut self,
        nonce: u64,
        volume: VolumeId,
        name: &str,
        parts: &[Part],
    ) -> Result<(VolumeId, Policy), Refusal> {
        let known = self.changeable(volume)?.clone();
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

    fn add(&mut self, nonce: u64, spec: wire::control::VolumeSpec, family: Family) -> VolumeId {
        let id = VolumeId::new(self.state.counters().volume);
        self.count(|counters| counters.volume += 1);
        let attached = Vec::new();
        let volume = Volume { nonce, spec, attach_epoch: 0, owner_floor: 0, attached, family };
        self.put(Key::Volume(id), Value::Volume(volume));
        id
    }

    /// The snapshot's directories are there.
    pub fn finish_snapshot(&mut self, id: VolumeId, hold_us: u64) -> Result<BlockReply, Refusal> {
        let mut known = self.state.volume(id).cloned().ok_or(Refusal::NoVolume(id))?;
        (known.family.making, known.family.hold_us) = (false, hold_us);
        self.put(Key::Volume(id), Value::Volume(known));
        self.volume_reply(id)
    }

    /// What is in the making is not to be. Its files go when no link can come any more.
    pub fn give_up(&mut self, now: Instant, id: VolumeId) {
        if !self.state.volume(id).is_some_and(|known| known.family.making) {
            return;
        }
        self.change(Row::delete(Key::Volume(id)));
        self.discard(now + LINK_ATTEMPT, Trash { volume: id, segment: None }, 0);
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
        let mut spec = self.snapshot(snapshot)?.spec.clone();
        check_name(name)?;
        if let Some(reply) = self.check_new(nonce, name)? {
            return Ok(reply);
        }
        if self.state.was_removed(nonce) {
            return Err(Refusal::NoName(name.to_owned()));
        }
        if self.snapshots.parting.contains(&snapshot) {
            return Err(Refusal::Making { name: spec.name });
        }
        name.clone_into(&mut spec.name);
        let count = self.check_room(&spec, 1)?;
        let family = Family { origin: Some(snapshot), ..Family::default() };
        let id = self.add(nonce, spec, family);
        self.add_segments(now, id, 0..count);
        self.volume_reply(id)
    }

    /// How many segments a volume has; refused when so many times as many are too many.
    fn check_room(&self, spec: &wire::control::VolumeSpec, times: usize) -> Result<u32, Refusal> {
        let count = super::state::geometry(spec).map_or(0, |sizes| sizes.segments(spec.bytes));
        match self.state.segment_count() + times * count as usize > SEGMENTS_MAX {
            true => Err(Refusal::Full { what: "segments", max: SEGMENTS_MAX }),
            false => Ok(count as u32),
        }
    }

    /// A snapshot is to be removed whatever hangs on it: its clones, of which every segment has to
    /// be opened before. [`Machine::end_parting`] has to follow.
    pub fn begin_parting(&mut self, snapshot: VolumeId) -> Vec<VolumeId> {
        self.snapshots.parting.insert(snapshot);
        let is_clone = |(_, known): &(VolumeId, &Volume)| known.family.origin == Some(snapshot);
        self.state.volumes().filter(is_clone).map(|(id, _)| id).collect()
    }

    /// It is removed now, or stays.
    pub fn end_parting(&mut self, snapshot: VolumeId) {
        self.snapshots.parting.remove(&snapshot);
    }

    /// Begins the rollback of a snapshot's volume: the volume that is made, which takes its place
    /// later. [`Machine::end_cutting`] of the snapshot has to follow.
    pub fn begin_rollback(
        &mut self,
        now: Instant,
        nonce: u64,
        snapshot: VolumeId,
    ) -> Result<Begun<(VolumeId, Policy)>, Refusal> {
        let known = self.snapshot(snapshot)?.clone();
        let parent = known.family.parent.expect("a snapshot has a volume");
        let (mut spec, volume) = (known.spec, self.changeable(parent)?);
        if volume.nonce == nonce {
            return self.volume_reply(parent).map(Begun::Done);
        }
        self.refuse_attached(now, parent)?;
        spec.name = format!("{}{AT}{AT}rollback", volume.spec.name);
        if let Some(reply) = self.check_new(nonce, &spec.name)? {
            return Ok(Begun::Done(reply));
        }
        self.check_room(&spec, 2)?;
        self.begin_cutting(snapshot)?;
        self.serve_snapshot(now, snapshot);
        let policy = spec.policy;
        let family = Family { origin: Some(snapshot), making: true, ..Family::default() };
        Ok(Begun::Go((self.add(nonce, spec, family), policy)))
    }

    /// A snapshot's segments get owners, if it has none.
    pub(super) fn serve_snapshot(&mut self, now: Instant, id: VolumeId) {
        let Some(known) = self.state.volume(id) else { return };
        if known.family.parent.is_none() {
            return;
        }
        let count = super::state::geometry(&known.spec)
            .map_or(0, |geometry| geometry.segments(known.spec.bytes)) as u32;
        if self.state.segments_of(id, 0).next().is_none() {
            self.add_segments(now, id, 0..count);
        }
        self.snapshots.served.insert(id, now);
    }

    /// The segments of a snapshot with their owners, when all are open.
    pub fn snapshot_parts(&self, id: VolumeId) -> Result<Vec<Part>, Refusal> {
        self.snapshot(id)?;
        self.parts(id)
    }

    /// The directories are there: the volume's name and snapshots are those of `id` from now on,
    /// and what was its content goes.
    pub fn finish_rollback(&mut self, now: Instant, id: VolumeId) -> Result<BlockReply, Refusal> {
        let mut made = self.state.volume(id).cloned().ok_or(Refusal::NoVolume(id))?;
        let origin = made.family.origin.take().and_then(|origin| self.state.volume(origin));
        let parent = origin.and_then(|snapshot| snapshot.family.parent);
        let parent = parent.ok_or(Refusal::NoVolume(id))?;
        let former = self.changeable(parent)?.clone();
        self.refuse_attached(now, parent)?;
        made.family.making = false;
        made.spec.name.clone_from(&former.spec.name);
        (made.spec.limits, made.spec.shared) = (former.spec.limits, former.spec.shared);
        self.drop_volume(now, parent, former.nonce);
        for (snapshot, mut known) in self.snapshots_of(parent) {
            known.family.parent = Some(id);
            self.put(Key::Volume(snapshot), Value::Volume(known));
        }
        let count = super::state::geometry(&made.spec)
            .map_or(0, |geometry| geometry.segments(made.spec.bytes)) as u32;
        self.put(Key::Volume(id), Value::Volume(made));
        self.add_segments(now, id, 0..count);
        self.volume_reply(id)
    }

    /// Snapshots of a volume, those in the making too.
    fn snapshots_of(&self, volume: VolumeId) -> Vec<(VolumeId, Volume)> {
        let is_its = |(_, known): &(VolumeId, &Volume)| known.family.parent == Some(volume);
        let found = self.state.volumes().filter(is_its);
        found.map(|(id, known)| (id, known.clone())).collect()
    }

    /// Refuses to remove what others hang on. Clones keep their data without their snapshot, so
    /// that it may go when that is asked for.
    pub(super) fn refuse_needed(&self, id: VolumeId, force: bool) -> Result<(), Refusal> {
        let known = self.whole(id)?;
        if self.snapshots.cutting.contains(&id) {
            return Err(Refusal::Making { name: known.spec.name.clone() });
        }
        let names = |wanted: &dyn Fn(&Family) -> bool| -> Vec<String> {
            let found = self.state.volumes().filter(|(_, volume)| wanted(&volume.family));
            found.map(|(_, volume)| volume.spec.name.clone()).take(NAMES_SHOWN).collect()
        };
        let snapshots = names(&|family| family.parent == Some(id));
        let clones = match force {
            true => Vec::new(),
            false => names(&|family| family.origin == Some(id)),
        };
        let name = known.spec.name.clone();
        match (snapshots.is_empty(), clones.is_empty()) {
            (false, _) => Err(Refusal::HasSnapshots { name, snapshots }),
            (_, false) => Err(Refusal::HasClones { name, clones }),
            _ => Ok(()),
        }
    }

    /// A clone shares nothing any more.
    pub fn flattened(&mut self, id: VolumeId) {
        if let Some(mut known) = self.state.volume(id).cloned()
            && known.family.origin.take().is_some()
        {
            self.put(Key::Volume(id), Value::Volume(known));
        }
    }

    /// Segments of a volume that may change, with their owners.
    pub fn flatten_parts(&self, id: VolumeId) -> Result<Vec<Part>, Refusal> {
        self.changeable(id)?;
        self.parts(id)
    }

    /// Snapshots that nobody has used for a while have no owners any more.
    pub(super) fn rest_snapshots(&mut self, now: Instant) {
        let served = std::mem::take(&mut self.snapshots.served);
        for (id, used) in served {
            let Some(known) = self.state.volume(id).cloned() else { continue };
            let attached = known.attached.iter().any(|one| !self.is_dead(now, id, one));
            if attached || self.snapshots.cutting.contains(&id) || now - used < SNAPSHOT_REST {
                let used = if attached { now } else { used };
                self.snapshots.served.insert(id, used);
                continue;
            }
            let mut known = known;
            let segments: Vec<_> = self.state.segments_of(id, 0).collect();
            for (segment, of) in segments {
                known.owner_floor = known.owner_floor.max(of.epoch);
                self.retire(segment);
            }
            self.put(Key::Volume(id), Value::Volume(known));
        }
    }
}

/// A name that a volume can have: what is behind an [`AT`] names a snapshot.
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
