//! Deleted volumes: their names are free, and their data is kept for a while, so that they can be
//! brought back with their snapshots.
//!
//! A deleted volume stays a row, without owners of its segments and without attachments. Those
//! that share files with it need not know. When its time is over it is removed as one that is
//! there.

use std::collections::BTreeSet;

use base::VolumeId;
use runtime::Instant;
use wire::control::{BlockReply, DeletedVolume, VolumeInfo};

use super::error::Refusal;
use super::machine::Machine;
use super::rows::{Key, Value};
use super::snapshots::{AT, check_name};
use super::state::{Deleted, Volume};

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
            return Ok(self.deleted_reply(volume, unix_ms)); // The same request once more.
        }
        self.refuse_cutting(volume)?;
        let family: Vec<VolumeId> =
            self.snapshots_of(volume).into_iter().map(|(id, _)| id).collect();
        if !snapshots && !family.is_empty() {
            self.refuse_needed(volume, force)?;
        }
        for &snapshot in &family {
            // Its clones keep their origin, and need not be linked for this.
            match force {
                true => self.refuse_cutting(snapshot)?,
                false => self.refuse_needed(snapshot, false)?,
            }
        }
        for &one in [volume].iter().chain(&family) {
            if !force {
                self.refuse_attached(now, one)?;
            }
        }
        self.check_family(volume)?;
        // Snapshots that were used have segments; what they are is not part of the change.
        for &snapshot in &family {
            self.rest(snapshot);
        }
        self.next_change();
        let until_ms = unix_ms.saturating_add(self.config.undelete.as_millis() as u64);
        for one in [volume].into_iter().chain(family) {
            self.kept.retain(|(other, _), _| *other != one);
            self.retire_all(one);
            let mut known = self.state.volume(one).cloned().expect("it is there");
            known.attached.clear();
            known.deleted = Some(Deleted { at_ms: unix_ms, until_ms });
            self.put(Key::Volume(one), Value::Volume(known));
        }
        Ok(self.deleted_reply(volume, unix_ms))
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
        self.check_family(volume)?;
        self.rest(volume); // A clone may have linked what it shares just now.
        self.next_change();
        for (id, mut snapshot) in family {
            snapshot.spec.name = rename(&snapshot);
            snapshot.deleted = None;
            self.put(Key::Volume(id), Value::Volume(snapshot));
        }
        let mut known = self.state.volume(volume).cloned().expect("it is there");
        (known.spec.name, known.deleted) = (name, None);
        self.put(Key::Volume(volume), Value::Volume(known));
        self.add_segments(now, volume, 0..count);
        self.volume_reply(volume)
    }

    fn deleted_reply(&self, volume: VolumeId, unix_ms: u64) -> BlockReply {
        let volumes = self.deleted_info(volume, unix_ms).into_iter().collect();
        BlockReply::Deleted { volumes, more: false }
    }

    fn deleted_info(&self, volume: VolumeId, unix_ms: u64) -> Option<DeletedVolume> {
        let Deleted { at_ms, until_ms } = self.state.volume(volume)?.deleted?;
        let info = self.state.info(volume)?;
        Some(DeletedVolume { info, at_ms, left_ms: until_ms.saturating_sub(unix_ms) })
    }

    /// Deleted volumes and their snapshots above one.
    pub fn list_deleted(&self, unix_ms: u64, after: Option<VolumeId>, limit: u32) -> BlockReply {
        let is_next = |id: &VolumeId| after.is_none_or(|after| *id > after);
        let found = self.state.deleted().map(|(id, _)| id).filter(is_next);
        let mut found: Vec<VolumeId> = found.take(limit as usize + 1).collect();
        let more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let volumes = found.into_iter().filter_map(|id| self.deleted_info(id, unix_ms)).collect();
        BlockReply::Deleted { volumes, more }
    }

    /// Deleted volumes, without their snapshots: those whose time ends first come first.
    pub fn deleted_volumes(&self) -> Vec<(VolumeId, Deleted)> {
        let of = |(id, volume): (VolumeId, &Volume)| {
            Some((id, volume.deleted.filter(|_| volume.family.parent.is_none())?))
        };
        let mut found: Vec<_> = self.state.deleted().filter_map(of).collect();
        found.sort_by_key(|(id, deleted)| (deleted.until_ms, *id));
        found
    }

    /// True for a volume that is deleted, and still there.
    pub fn is_deleted(&self, volume: VolumeId) -> bool {
        self.state.volume(volume).is_some_and(|known| known.deleted.is_some())
    }

    /// Deleted clones of a snapshot that is about to go get owners, who link what they share; false
    /// when there are none.
    pub fn serve_deleted_clones(&mut self, now: Instant, snapshot: VolumeId) -> bool {
        let is_clone = |volume: &Volume| volume.family.origin == Some(snapshot);
        let clones = self.state.deleted().filter(|(_, volume)| is_clone(volume));
        let clones: Vec<VolumeId> = clones.map(|(id, _)| id).collect();
        for &clone in &clones {
            self.serve_for_a_while(now, clone);
        }
        !clones.is_empty()
    }

    /// Snapshots of a volume, the youngest first.
    pub fn snapshot_ids(&self, volume: VolumeId) -> Vec<VolumeId> {
        self.snapshots_of(volume).into_iter().map(|(id, _)| id).rev().collect()
    }

    /// All that may share files with a volume, itself too: parents, snapshots, origins, clones.
    pub fn relatives(&self, volume: VolumeId) -> Vec<VolumeInfo> {
        let mut known = BTreeSet::from([volume]);
        loop {
            let before = known.len();
            for (id, one) in self.state.volumes() {
                let near = [Some(id), one.family.parent, one.family.origin];
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
