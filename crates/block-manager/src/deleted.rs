//! Deleted volumes: their names are free, and their data is kept for a while, so that they can be
//! brought back with their snapshots.
//!
//! A deleted volume stays a row, without owners of its segments and without attachments. Volumes
//! that share files with it are not affected. When its time is over it is removed like any other.
//!
//! Its time passes while a manager leads, by that manager's own clock: calendars are set, and
//! leaders change. The rest is stored now and then. A leader begins with what it finds, so that
//! data is kept for that much longer at most, and never shorter.
//!
//! A snapshot is deleted when its volume is. The volume's row is the one that counts; those of its
//! snapshots follow in parts, and a leader that takes over completes them.

use std::collections::{BTreeMap, BTreeSet};

use block_proto::paths::AT;
use block_proto::{BlockReply, DeletedVolume, VolumeInfo};
use block_volume::ids::VolumeId;
use runtime::{Duration, Instant};

use super::entity::{Deleted, Deletion, Volume};
use super::error::Refusal;
use super::limits::{EXPIRY, LEFT_STEP_MAX, LEFT_STEPS};
use super::machine::{Left, Machine};
use super::rows::{Key, Value};
use super::snapshots::check_name;

impl Machine {
    /// Frees the name of a volume, and those of its snapshots, which have to be asked for.
    pub fn delete(
        &mut self,
        (now, unix_ms): (Instant, u64),
        volume: VolumeId,
        (force, snapshots): (bool, bool),
    ) -> Result<BlockReply, Refusal> {
        let Some(known) = self.state.volume(volume) else {
            // It may have been removed since: an identity is never given twice.
            return self.remove(now, volume, force);
        };
        if known.deleted.is_some() {
            return Ok(self.deleted_reply(volume, now)); // The same request once more.
        }
        let family = self.check_delete(now, volume, (force, snapshots))?;
        // Snapshots that were used have segments; what they are is not part of the change.
        for &snapshot in &family {
            self.rest(now, snapshot);
        }
        let all_ms = self.config.undelete.as_millis() as u64;
        let until_ms = unix_ms.saturating_add(all_ms);
        let deleted = Deleted { at_ms: unix_ms, until_ms, left_ms: Some(all_ms) };
        self.left.insert(volume, Left { stored: deleted.left(), since: now });
        self.next_change();
        self.retire_all(now, volume);
        self.set_deleted(volume, Some(deleted), None);
        self.align_snapshots(now, volume, family);
        Ok(self.deleted_reply(volume, now))
    }

    /// Refuses a volume that cannot be deleted, and changes nothing. Answers its snapshots, which
    /// have to be asked for.
    pub fn check_delete(
        &self,
        now: Instant,
        volume: VolumeId,
        (force, snapshots): (bool, bool),
    ) -> Result<Vec<VolumeId>, Refusal> {
        self.refuse_cutting(volume)?;
        let family: Vec<VolumeId> =
            self.snapshots_of(volume).into_iter().map(|(id, _)| id).collect();
        if !snapshots && !family.is_empty() {
            self.refuse_needed(volume, force)?;
        }
        // Clones keep their clone source, and need not be linked for this.
        for &snapshot in &family {
            self.refuse_cutting(snapshot)?;
        }
        if !force {
            self.refuse_cloned(&family)?;
        }
        for &one in [volume].iter().chain(&family) {
            if !force {
                self.refuse_attached(now, one)?;
            }
        }
        Ok(family)
    }

    /// Refuses to delete snapshots that volumes were cloned from.
    fn refuse_cloned(&self, snapshots: &[VolumeId]) -> Result<(), Refusal> {
        let all: BTreeSet<VolumeId> = snapshots.iter().copied().collect();
        let live = self.state.volumes().filter(|(_, one)| one.deleted.is_none());
        let mut clone_sources = live.filter_map(|(_, one)| one.family.clone_source);
        let Some(of) = clone_sources.find(|clone_source| all.contains(clone_source)) else {
            return Ok(());
        };
        self.refuse_needed(of, false)
    }

    fn set_deleted(&mut self, one: VolumeId, deleted: Option<Deleted>, name: Option<String>) {
        let Some(mut known) = self.state.volume(one).cloned() else { return };
        if deleted.is_some() {
            let of_it = (one, 0)..=(one, u64::MAX);
            let kept: Vec<_> = self.kept.range(of_it).map(|(&key, _)| key).collect();
            for key in kept {
                self.kept.remove(&key);
            }
            known.attached.clear();
        }
        known.deleted = deleted;
        known.spec.name = name.unwrap_or(known.spec.name);
        self.put(Key::Volume(one), Value::Volume(known));
    }

    /// Snapshots are deleted, or are there, as their volume is: a change for each of them.
    fn align_snapshots(&mut self, now: Instant, volume: VolumeId, snapshots: Vec<VolumeId>) {
        let Some(known) = self.state.volume(volume) else { return };
        let (name, deleted) = (known.spec.name.clone(), known.deleted);
        for id in snapshots {
            let Some(snapshot) = self.state.volume(id) else { continue };
            if snapshot.deleted.is_some() == deleted.is_some() {
                continue;
            }
            let own = snapshot.spec.name.rsplit(AT).next().unwrap_or_default();
            let name = format!("{name}{AT}{own}");
            self.next_change();
            self.retire_all(now, id);
            self.set_deleted(id, deleted, Some(name));
        }
    }

    /// State that a leader finds at takeover: time that is left, and rows of snapshots that the
    /// previous leader did not complete.
    pub(super) fn inherit_deleted(&mut self, now: Instant) {
        let mut family: BTreeMap<VolumeId, Vec<VolumeId>> = BTreeMap::new();
        for (id, known) in self.state.volumes() {
            match (known.family.parent, known.deleted) {
                (Some(parent), _) => family.entry(parent).or_default().push(id),
                (None, Some(deleted)) => {
                    self.left.insert(id, Left { stored: deleted.left(), since: now });
                }
                (None, None) => {}
            }
        }
        for (volume, snapshots) in family {
            self.align_snapshots(now, volume, snapshots);
        }
    }

    /// Time for which the data of a deleted volume, or of its snapshot, is still kept.
    fn left(&self, volume: VolumeId, now: Instant) -> Option<Duration> {
        let known = self.state.volume(volume)?;
        let deleted = known.deleted?;
        let left = self.left.get(&known.family.parent.unwrap_or(volume));
        Some(left.map_or(deleted.left(), |left| left.at(now)))
    }

    /// Stores the time that is left of deleted volumes, when it has become less by a good part: the
    /// next leader begins with it.
    pub fn note_left(&mut self, now: Instant) {
        let step = (self.config.undelete / LEFT_STEPS).clamp(EXPIRY, LEFT_STEP_MAX);
        let due = self.left.iter().filter(|(_, left)| left.stored - left.at(now) >= step);
        for id in due.map(|(&id, _)| id).collect::<Vec<_>>() {
            let Some(deleted) = self.state.volume(id).and_then(|known| known.deleted) else {
                self.left.remove(&id);
                continue;
            };
            let left = self.left[&id].at(now);
            self.left.insert(id, Left { stored: left, since: now });
            let left_ms = Some(left.as_millis() as u64);
            self.next_change();
            self.set_deleted(id, Some(Deleted { left_ms, ..deleted }), None);
        }
    }

    /// Brings a deleted volume back, with the snapshots that were deleted with it.
    pub fn undelete(
        &mut self,
        now: Instant,
        volume: VolumeId,
        name: Option<&str>,
    ) -> Result<BlockReply, Refusal> {
        let known = self.state.volume(volume).cloned().ok_or(Refusal::NoVolume(volume))?;
        let name = name.unwrap_or(&known.spec.name).to_owned();
        if known.deleted.is_none() {
            return match known.spec.name == name {
                true => self.volume_reply(volume), // The same request once more.
                false => Err(Refusal::NotDeleted { name: known.spec.name }),
            };
        }
        if let Some(volume) = known.family.parent {
            return Err(Refusal::DeletedSnapshot { name: known.spec.name, volume });
        }
        check_name(&name)?;
        let family = self.snapshots_of(volume);
        let rename = |snapshot: &Volume| {
            let own = snapshot.spec.name.rsplit(AT).next().unwrap_or_default();
            format!("{name}{AT}{own}")
        };
        for name in [name.clone()].into_iter().chain(family.iter().map(|(_, one)| rename(one))) {
            if name.len() > base::limits::NAME_MAX {
                return Err(Refusal::Name { name });
            }
            if self.state.find(&name).is_some() {
                return Err(Refusal::Exists(name));
            }
        }
        let count = self.check_room(&known.spec, 1)?;
        self.rest(now, volume); // A clone may be linking shared files.
        self.next_change();
        self.left.remove(&volume);
        self.set_deleted(volume, None, Some(name));
        self.add_segments(now, volume, 0..count);
        self.align_snapshots(now, volume, family.into_iter().map(|(id, _)| id).collect());
        self.volume_reply(volume)
    }

    pub(super) fn deleted_reply(&self, volume: VolumeId, now: Instant) -> BlockReply {
        let volumes = self.deleted_info(volume, now).into_iter().collect();
        BlockReply::Deleted { volumes, more: false }
    }

    fn deleted_info(&self, volume: VolumeId, now: Instant) -> Option<DeletedVolume> {
        let left_ms = self.left(volume, now)?.as_millis() as u64;
        let (info, at_ms) = (self.state.info(volume)?, self.state.volume(volume)?.deleted?.at_ms);
        Some(DeletedVolume { info, at_ms, left_ms })
    }

    /// Deleted volumes and their snapshots above one.
    pub fn list_deleted(&self, now: Instant, after: Option<VolumeId>, limit: u32) -> BlockReply {
        let is_next = |id: &VolumeId| after.is_none_or(|after| *id > after);
        let found = self.state.deleted().map(|(id, _)| id).filter(is_next);
        let mut found: Vec<VolumeId> = found.take(limit as usize + 1).collect();
        let more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let volumes = found.into_iter().filter_map(|id| self.deleted_info(id, now)).collect();
        BlockReply::Deleted { volumes, more }
    }

    /// Deleted volumes, without their snapshots: those whose time ends first come first.
    pub fn deleted_volumes(&self, now: Instant) -> Vec<(VolumeId, Duration)> {
        let of = |(id, volume): (VolumeId, &Volume)| {
            Some((id, self.left(id, now).filter(|_| volume.family.parent.is_none())?))
        };
        let mut found: Vec<_> = self.state.deleted().filter_map(of).collect();
        found.sort_by_key(|&(id, left)| (left, id));
        found
    }

    /// True for a volume that is deleted, and still there.
    pub fn is_deleted(&self, volume: VolumeId) -> bool {
        self.state.volume(volume).is_some_and(|known| known.deleted.is_some())
    }

    /// The deletion of a volume, or of its snapshot, while it is in force.
    pub fn deletion(&self, volume: VolumeId) -> Option<Deletion> {
        Some(self.state.volume(volume)?.deleted?.deletion())
    }

    /// Begins the removal of a deleted volume under a number: the deletion that is to be in force; none when
    /// the volume is gone. One that is there again is refused.
    pub fn begin_remove_deleted(
        &mut self,
        (once, volume): (u64, VolumeId),
    ) -> Result<Option<Deletion>, Refusal> {
        self.refuse_refused((once, volume))?;
        let Some(known) = self.state.volume(volume) else { return Ok(None) };
        let deletion = self.deletion(volume).map(Some);
        let refusal = Refusal::NotDeleted { name: known.spec.name.clone() };
        deletion.ok_or_else(|| {
            self.note_refused((once, volume), refusal.kind(), &refusal);
            refusal
        })
    }

    /// Removes a volume. With a `deletion` it is removed only while that is in force: a volume that
    /// was brought back since stays.
    pub fn remove_under(
        &mut self,
        now: Instant,
        volume: VolumeId,
        force: bool,
        deletion: Option<Deletion>,
    ) -> Result<BlockReply, Refusal> {
        match self.state.volume(volume) {
            Some(known) if deletion.is_some() && self.deletion(volume) != deletion => {
                Err(Refusal::BroughtBack { name: known.spec.name.clone() })
            }
            _ => self.remove(now, volume, force),
        }
    }

    /// Gives owners to deleted clones of a snapshot that is about to go, so that they link what
    /// they share; false when there are none.
    pub fn serve_deleted_clones(&mut self, now: Instant, snapshot: VolumeId) -> bool {
        let is_clone = |volume: &Volume| volume.family.clone_source == Some(snapshot);
        let clones = self.state.deleted().filter(|(_, volume)| is_clone(volume));
        let clones: Vec<VolumeId> = clones.map(|(id, _)| id).collect();
        for &clone in &clones {
            self.serve_for_a_while(now, clone);
        }
        !clones.is_empty()
    }

    /// All that may share files with a volume, itself too: parents, snapshots, clone sources, clones.
    pub fn relatives(&self, volume: VolumeId) -> Vec<VolumeInfo> {
        let mut known = BTreeSet::from([volume]);
        loop {
            let before = known.len();
            for (id, one) in self.state.volumes() {
                let near = [Some(id), one.family.parent, one.family.clone_source];
                if near.iter().flatten().any(|id| known.contains(id)) {
                    known.extend(near.into_iter().flatten());
                }
            }
            if known.len() == before {
                return known.into_iter().filter_map(|id| self.state.info(id)).collect();
            }
        }
    }

    /// Deleted snapshots of a volume.
    pub fn deleted_snapshots(&self, volume: VolumeId) -> Vec<VolumeId> {
        let found = self.state.deleted().filter(|(_, one)| one.family.parent == Some(volume));
        found.map(|(id, _)| id).collect()
    }
}
