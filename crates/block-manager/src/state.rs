//! [`ManagerState`]: the state of the block manager. Each of its parts is a row of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use block_proto::{Attachment, BlockServerId, VolumeInfo, geometry};
use block_volume::geometry::SegmentIndex;
use block_volume::ids::{SegmentId, VolumeId};

use super::entity::{
    AttachedClient, Boots, Counters, Family, PendingDelete, Segment, Server, Volume,
    segments_of_all,
};
use super::refusals::parts;
use super::rows::{Key, Row, Value};

/// Everything that a manager's table holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagerState {
    counters: Counters,
    volumes: BTreeMap<VolumeId, Volume>,
    names: BTreeMap<String, VolumeId>,
    segments: BTreeMap<SegmentId, Segment>,
    owned: BTreeMap<BlockServerId, BTreeSet<SegmentId>>,
    orphans: BTreeSet<SegmentId>,
    servers: BTreeMap<BlockServerId, Server>,
    server_names: BTreeMap<String, BlockServerId>,
    boots: BTreeMap<BlockServerId, Boots>,
    /// With the nonce of the volume's creation.
    pending_deletes: BTreeMap<PendingDelete, u64>,
    /// Numbers of changes of volumes that have happened, or were refused.
    done: BTreeMap<VolumeId, Vec<u64>>,
    /// Removed volumes with such numbers: those of their creations.
    gone: BTreeSet<VolumeId>,
}

impl Default for ManagerState {
    fn default() -> ManagerState {
        ManagerState {
            counters: Counters { volume: 1, server: 1 },
            volumes: BTreeMap::new(),
            names: BTreeMap::new(),
            segments: BTreeMap::new(),
            owned: BTreeMap::new(),
            orphans: BTreeSet::new(),
            servers: BTreeMap::new(),
            server_names: BTreeMap::new(),
            boots: BTreeMap::new(),
            pending_deletes: BTreeMap::new(),
            done: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }
}

impl ManagerState {
    /// The state of a cluster that has stored nothing yet, and numbers from there on.
    pub fn starting_at(counters: Counters) -> ManagerState {
        ManagerState { counters, ..ManagerState::default() }
    }

    /// Makes a change.
    pub fn apply(&mut self, row: Row) {
        match (row.key, row.value) {
            (Key::Counters, Some(Value::Counters(counters))) => self.counters = counters,
            (Key::Volume(id), value) => {
                // Another may have the name of a deleted one.
                if let Some(former) = self.volumes.remove(&id)
                    && self.names.get(&former.spec.name) == Some(&id)
                {
                    self.names.remove(&former.spec.name);
                }
                let Some(Value::Volume(volume)) = value else {
                    if self.done.contains_key(&id) {
                        self.gone.insert(id);
                    }
                    return;
                };
                self.gone.remove(&id);
                if volume.deleted.is_none() {
                    self.names.insert(volume.spec.name.clone(), id);
                }
                self.volumes.insert(id, volume);
            }
            (Key::Segment(id), value) => {
                if let Some(Segment { owner: Some(owner), .. }) = self.segments.remove(&id)
                    && let Some(owned) = self.owned.get_mut(&owner)
                {
                    owned.remove(&id);
                }
                self.orphans.remove(&id);
                let Some(Value::Segment(segment)) = value else { return };
                match segment.owner {
                    Some(owner) => self.owned.entry(owner).or_default().insert(id),
                    None => self.orphans.insert(id),
                };
                self.segments.insert(id, segment);
            }
            (Key::Server(id), Some(Value::Server(server))) => {
                self.server_names.insert(server.name.clone(), id);
                self.servers.insert(id, server);
            }
            (Key::Server(id), None) => {
                if let Some(server) = self.servers.remove(&id)
                    && self.server_names.get(&server.name) == Some(&id)
                {
                    self.server_names.remove(&server.name);
                }
            }
            (Key::Boots(id), Some(Value::Boots(boots))) => {
                self.boots.insert(id, boots);
            }
            (Key::Boots(id), None) => {
                self.boots.remove(&id);
            }
            (Key::Done(id), Some(Value::Done(done))) => {
                if !self.volumes.contains_key(&id) {
                    self.gone.insert(id);
                }
                self.done.insert(id, done);
            }
            (Key::Done(id), None) => {
                self.done.remove(&id);
                self.gone.remove(&id);
            }
            (Key::PendingDelete(pending_delete), Some(Value::PendingDelete { nonce })) => {
                self.pending_deletes.insert(pending_delete, nonce);
            }
            (Key::PendingDelete(pending_delete), None) => {
                self.pending_deletes.remove(&pending_delete);
            }
            (key, value) => unreachable!("{key:?} with {value:?}: checked where rows are made"),
        }
    }

    /// All rows, in the order of their keys.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = vec![Row::put(Key::Counters, Value::Counters(self.counters))];
        rows.extend(
            self.servers
                .iter()
                .map(|(&id, server)| Row::put(Key::Server(id), Value::Server(server.clone()))),
        );
        rows.extend(
            self.boots.iter().map(|(&id, &boots)| Row::put(Key::Boots(id), Value::Boots(boots))),
        );
        rows.extend(
            self.segments
                .iter()
                .map(|(&id, &segment)| Row::put(Key::Segment(id), Value::Segment(segment))),
        );
        rows.extend(self.pending_deletes.iter().map(|(&pending_delete, &nonce)| {
            Row::put(Key::PendingDelete(pending_delete), Value::PendingDelete { nonce })
        }));
        rows.extend(
            self.done.iter().map(|(&id, done)| Row::put(Key::Done(id), Value::Done(done.clone()))),
        );
        rows.extend(
            self.volumes
                .iter()
                .map(|(&id, volume)| Row::put(Key::Volume(id), Value::Volume(volume.clone()))),
        );
        rows
    }

    /// Numbers that come next.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// True when a change of a volume has happened.
    pub(super) fn was_done(&self, volume: VolumeId, once: u64) -> bool {
        parts(self.done(volume)).1.contains(&once)
    }

    /// True when a change of a volume was refused. A leader knows of more refusals than its rows.
    pub(super) fn was_refused(&self, volume: VolumeId, once: u64) -> bool {
        parts(self.done(volume)).0.contains(&!once)
    }

    /// Changes of a volume that have happened, the latest ones in order, behind those that were refused.
    pub(super) fn done(&self, volume: VolumeId) -> &[u64] {
        self.done.get(&volume).map_or(&[], Vec::as_slice)
    }

    /// A volume.
    pub fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id)
    }

    /// All volumes.
    pub fn volumes(&self) -> impl Iterator<Item = (VolumeId, &Volume)> {
        self.volumes.iter().map(|(&id, volume)| (id, volume))
    }

    /// Deleted volumes and their snapshots.
    pub fn deleted(&self) -> impl Iterator<Item = (VolumeId, &Volume)> {
        self.volumes().filter(|(_, volume)| volume.deleted.is_some())
    }

    /// Number of volumes with a name.
    pub fn named_count(&self) -> usize {
        self.names.len()
    }

    /// Number of volumes, deleted ones too.
    pub fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    /// Number of segments.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// The volume of a name.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        self.names.get(name).copied()
    }

    /// Volumes whose names are above `after`, in the order of names.
    pub fn list(&self, after: Option<&str>) -> impl Iterator<Item = VolumeId> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.names.range::<str, _>((from, Bound::Unbounded)).map(|(_, &id)| id)
    }

    /// A segment.
    pub fn segment(&self, id: SegmentId) -> Option<Segment> {
        self.segments.get(&id).copied()
    }

    /// All segments.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, Segment)> {
        self.segments.iter().map(|(&id, &segment)| (id, segment))
    }

    /// A volume's segments from one on.
    pub fn segments_of(
        &self,
        volume: VolumeId,
        from: u32,
    ) -> impl Iterator<Item = (SegmentId, Segment)> {
        let last = SegmentId { volume, index: u32::MAX };
        let range = self.segments.range(SegmentId { volume, index: from }..=last);
        range.map(|(&id, &segment)| (id, segment))
    }

    /// Segments that a block server owns.
    pub fn owned(&self, server: BlockServerId) -> impl Iterator<Item = SegmentId> {
        self.owned.get(&server).into_iter().flatten().copied()
    }

    /// Number of segments that a block server owns.
    pub fn owned_count(&self, server: BlockServerId) -> usize {
        self.owned.get(&server).map_or(0, BTreeSet::len)
    }

    /// Segments without an owner.
    pub fn orphans(&self) -> impl Iterator<Item = SegmentId> {
        self.orphans.iter().copied()
    }

    /// A block server.
    pub fn server(&self, id: BlockServerId) -> Option<&Server> {
        self.servers.get(&id)
    }

    /// All block servers.
    pub fn servers(&self) -> impl Iterator<Item = (BlockServerId, &Server)> {
        self.servers.iter().map(|(&id, server)| (id, server))
    }

    /// The block server of a name.
    pub fn server_of(&self, name: &str) -> Option<BlockServerId> {
        self.server_names.get(name).copied()
    }

    /// Processes of a block server.
    pub fn boots(&self, id: BlockServerId) -> Boots {
        self.boots.get(&id).copied().unwrap_or_default()
    }

    /// Volumes and segments whose files are to be removed.
    pub fn pending_deletes(&self) -> impl Iterator<Item = PendingDelete> {
        self.pending_deletes.keys().copied()
    }

    /// True when parts of a volume are still to be removed.
    pub fn has_pending_deletes(&self, volume: VolumeId) -> bool {
        let first = PendingDelete { volume, segment: None };
        self.pending_deletes
            .range(first..)
            .next()
            .is_some_and(|(pending_delete, _)| pending_delete.volume == volume)
    }

    /// True for files of a volume that was given up in the making: a link may come late.
    pub fn is_given_up(&self, pending_delete: PendingDelete) -> bool {
        pending_delete.segment.is_none() && self.pending_deletes.get(&pending_delete) == Some(&0)
    }

    /// True when the volume of this creation was made and removed.
    pub fn was_removed(&self, nonce: u64) -> bool {
        self.pending_deletes
            .iter()
            .any(|(pending_delete, &known)| pending_delete.segment.is_none() && known == nonce)
            || self.deleted().any(|(_, volume)| volume.nonce == nonce)
            || self.gone.iter().any(|&volume| self.was_done(volume, nonce))
    }

    /// True when a volume was made by this creation, whatever has become of it and of its name.
    pub fn was_made(&self, nonce: u64) -> bool {
        let is_made = |volume: &Volume| volume.nonce == nonce && volume.family.parent.is_none();
        // Without a number it is unknown.
        nonce != 0 && (self.volumes.values().any(is_made) || self.was_removed(nonce))
    }

    /// Removed volumes of whose creations the numbers are known, by the order in which they were made.
    pub(super) fn gone(&self) -> &BTreeSet<VolumeId> {
        &self.gone
    }

    /// A volume as others see it.
    pub fn info(&self, id: VolumeId) -> Option<VolumeInfo> {
        let volume = self.volumes.get(&id)?;
        let attached =
            |one: &AttachedClient| Attachment { epoch: one.epoch, holder: one.holder.clone() };
        let attachments = volume.attached.iter().map(attached).collect();
        let Family { parent, clone_source, hold_us, .. } = volume.family;
        let spec = volume.spec.clone();
        Some(VolumeInfo { volume: id, spec, attachments, parent, clone_source, hold_us })
    }

    /// Bytes that a segment has for ever: volumes are thin, and their length is watched where
    /// they are opened.
    pub fn segment_bytes(&self, id: SegmentId) -> u64 {
        let spec = &self.volumes[&id.volume].spec;
        geometry(spec).expect("checked when it was made").segment_bytes()
    }

    /// The snapshot that has the content of a clone's segment, if that may not be linked yet.
    ///
    /// It is named also when it is gone: a segment that was not linked before has lost its content,
    /// and opening it fails with `Corrupt`. Without a name it would read as zeroes.
    pub fn clone_source_of(&self, id: SegmentId) -> Option<VolumeId> {
        let family = self.volumes.get(&id.volume)?.family;
        let clone_source = family.clone_source?;
        let count = match family.clone_source_segments {
            Some(count) => count,
            // A row without the count, whose snapshot is gone: every segment was linked before that.
            None => self.volumes.get(&clone_source).map_or(0, segments_of_all),
        };
        (id.index < count).then_some(clone_source)
    }

    /// Number of segments of a volume of `bytes`: of a group that is begun, all, though some of
    /// them may be empty.
    pub fn segments_at(&self, volume: VolumeId, bytes: u64) -> u32 {
        let sizes = self.volumes.get(&volume).and_then(|known| geometry(&known.spec).ok());
        sizes.map_or(0, |sizes| sizes.segments(bytes)) as u32
    }

    /// Segments of a volume that lose data when it has `bytes`, and the lost parts.
    pub fn cut(&self, volume: VolumeId, bytes: u64) -> Vec<(SegmentId, Range<u64>)> {
        let Some(known) = self.volumes.get(&volume) else { return Vec::new() };
        let geometry = geometry(&known.spec).expect("checked when it was made");
        let lost = |(id, _): (SegmentId, Segment)| {
            let index = SegmentIndex::new(id.index);
            let (was, is) =
                (geometry.segment_len(index, known.spec.bytes), geometry.segment_len(index, bytes));
            (is < was).then_some((id, is..was))
        };
        self.segments_of(volume, 0).filter_map(lost).collect()
    }
}
