//! Expiry of deleted volumes: the leading manager removes those whose time is over, and the oldest
//! of the others when the cluster has little room.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::limits::reserve_bytes;
use block_proto::{BlockReply, VolumeInfo};
use block_volume::ids::VolumeId;
use block_volume::space::{Use, alone};
use runtime::Instant;
use wire::control::{ClusterReply, ClusterRequest, ControlError};

use super::entity::Deletion;
use super::limits::{EXPIRY, FREE_PERCENT, FREED_SOON, LOOKED_AT_MAX, UNKNOWN_CHECKS_MAX};
use super::refusals::Once;
use super::service::{LeaderTerm, Manager};

/// What the removal of a deleted volume with its snapshots gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gain {
    /// Bytes of files that no other volume names.
    alone: u64,
    /// Bytes of its files that no volume names but deleted ones: they go with the last of these.
    among_deleted: u64,
}

impl Gain {
    /// From all files of a volume and its relatives.
    fn of(
        uses: &[Use],
        own: impl Fn(VolumeId) -> bool,
        is_deleted: impl Fn(VolumeId) -> bool,
    ) -> Gain {
        let named: BTreeSet<_> =
            uses.iter().filter(|one| own(one.volume)).map(|one| one.file).collect();
        let its: Vec<Use> = uses.iter().filter(|one| named.contains(&one.file)).copied().collect();
        Gain { alone: alone(&its, own), among_deleted: alone(&its, is_deleted) }
    }
}

/// Counts clones, in the order of their identities, as volumes that name what their snapshots name: a segment of a
/// clone has no directory before its first use, and keeps the snapshot's files when that goes.
fn add_clones(uses: &mut Vec<Use>, clones: &[(VolumeId, VolumeId)]) {
    let mut of = BTreeMap::<VolumeId, Vec<Use>>::new();
    for one in uses.iter() {
        of.entry(one.volume).or_default().push(*one);
    }
    for &(clone, snapshot) in clones {
        let named = of.get(&snapshot).into_iter().flatten();
        let its: Vec<Use> = named.map(|one| Use { volume: clone, ..*one }).collect();
        uses.extend(its.iter().copied());
        of.entry(clone).or_default().extend(its);
    }
}

/// Files of families of volumes that were looked at in one check, of those with further deleted volumes.
type LookedAt = Vec<(Vec<VolumeId>, Vec<Use>)>;

/// What becomes of a deleted volume while room is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// It goes early, and gives back so many bytes.
    Goes(u64),
    /// Its removal gives nothing back, or nothing that is known: it stays until its time is over.
    Stays,
    /// It is its turn, and what it holds is not known yet: no other one goes before the next check.
    Waits,
}

/// Choice of the deleted volumes that go early, over the checks for them.
#[derive(Default)]
struct EarlyRemovals {
    /// Checks in a row that ended at a volume whose room was not known.
    waited: u32,
    /// True when the present check has met one.
    has_unknown: bool,
}

impl EarlyRemovals {
    fn begin_check(&mut self) {
        if !std::mem::take(&mut self.has_unknown) {
            self.waited = 0;
        }
    }

    /// The turn of the volume whose time ends next.
    fn turn(&mut self, gain: Option<Gain>) -> Turn {
        match gain {
            Some(Gain { among_deleted: 0, .. }) => Turn::Stays,
            Some(gain) => Turn::Goes(gain.alone),
            None => {
                let is_passed_over = self.waited >= UNKNOWN_CHECKS_MAX;
                if !std::mem::replace(&mut self.has_unknown, true) && !is_passed_over {
                    self.waited += 1;
                }
                if is_passed_over { Turn::Stays } else { Turn::Waits }
            }
        }
    }
}

impl Manager {
    /// Milliseconds of Unix time.
    pub(super) fn unix_ms(&self) -> u64 {
        self.env().unix_time().as_nanos() / 1_000_000
    }

    /// Frees a volume's name. A snapshot is removed at once; so is a volume when nothing is kept.
    pub(super) async fn delete(
        &self,
        lead: &Rc<LeaderTerm>,
        (once, volume): Once,
        (force, snapshots): (bool, bool),
    ) -> Result<BlockReply, ControlError> {
        let (gone, is_snapshot) = {
            let machine = lead.machine.borrow();
            let known = machine.state().volume(volume);
            (known.is_none(), known.is_some_and(|known| known.family.parent.is_some()))
        };
        if is_snapshot || self.undelete().is_zero() {
            let removed = self.remove_at_once(lead, (once, volume), (force, snapshots && !gone));
            return self.unless_refused(lead, (once, volume), removed).await;
        }
        let (now, unix_ms) = (self.env().now(), self.unix_ms());
        let deleted = lead.machine.borrow_mut().once(now, (once, volume), |machine| {
            machine.delete((now, unix_ms), volume, (force, snapshots))
        });
        let deleted = self.durable(lead, deleted).await??;
        self.env().mark("block manager: volume deleted");
        Ok(deleted)
    }

    /// Removes a volume, with its snapshots when that is asked for.
    async fn remove_at_once(
        &self,
        lead: &Rc<LeaderTerm>,
        once: Once,
        (force, snapshots): (bool, bool),
    ) -> Result<BlockReply, ControlError> {
        let volume = once.1;
        if snapshots {
            // All of them are checked before the first one goes.
            let (now, how) = (self.env().now(), (force, snapshots));
            let family = lead.machine.borrow().check_delete(now, volume, how)?;
            for snapshot in family.into_iter().rev() {
                self.remove_now(lead, once, snapshot, force).await?;
            }
        }
        self.remove_now(lead, once, volume, force).await
    }

    /// Removes a volume, deleted or not as it is now.
    pub(super) async fn remove_now(
        &self,
        lead: &Rc<LeaderTerm>,
        once: Once,
        volume: VolumeId,
        force: bool,
    ) -> Result<BlockReply, ControlError> {
        let deletion = lead.machine.borrow().deletion(volume);
        self.remove(lead, once, (volume, deletion), force).await
    }

    /// Removes a volume, and the snapshots that were deleted with it. With a deletion each of them
    /// is removed only while that is in force: it may be brought back at any wait. Under a number nothing is
    /// removed once that was refused: a copy that came at the same time may have had that answer.
    async fn remove(
        &self,
        lead: &Rc<LeaderTerm>,
        once: Once,
        (volume, deletion): (VolumeId, Option<Deletion>),
        force: bool,
    ) -> Result<BlockReply, ControlError> {
        let removed = if self.needs_parting(lead, volume, force) {
            for snapshot in self.deleted_snapshots(lead, volume) {
                Box::pin(self.remove(lead, once, (snapshot, deletion), true)).await?;
            }
            // Clones without files get them before the snapshot's files go.
            let clones = lead.machine.borrow_mut().begin_parting(volume);
            let parted = self.part(&clones, lead).await;
            // In one step: no clone is made between the guard's end and the removal, and no volume
            // is brought back between the check and the removal.
            let machine = &mut *lead.machine.borrow_mut();
            let removed = parted.and_then(|()| {
                machine.parted(volume, &clones);
                machine.refuse_refused(once)?;
                machine.remove_under(self.env().now(), volume, force, deletion)
            });
            machine.end_parting(volume);
            removed
        } else {
            let machine = &mut *lead.machine.borrow_mut();
            let is_free = machine.refuse_refused(once);
            is_free.and_then(|()| machine.remove_under(self.env().now(), volume, force, deletion))
        };
        self.durable(lead, removed).await?.map_err(ControlError::from)
    }

    /// Removes a deleted volume with its snapshots. A volume that is there again is refused.
    pub(super) async fn remove_deleted(
        &self,
        lead: &Rc<LeaderTerm>,
        once: Once,
    ) -> Result<BlockReply, ControlError> {
        let removed = async {
            let deletion = lead.machine.borrow_mut().begin_remove_deleted(once)?;
            self.remove(lead, once, (once.1, deletion), true).await
        };
        self.unless_refused(lead, once, removed).await
    }

    /// True when clones have to get their files, or snapshots to go, before a volume can be removed.
    fn needs_parting(&self, lead: &LeaderTerm, volume: VolumeId, force: bool) -> bool {
        let machine = &mut *lead.machine.borrow_mut();
        let has_clones = machine.serve_deleted_clones(self.env().now(), volume);
        force || has_clones || machine.is_deleted(volume)
    }

    /// Snapshots that go with a deleted volume.
    fn deleted_snapshots(&self, lead: &LeaderTerm, volume: VolumeId) -> Vec<VolumeId> {
        let machine = lead.machine.borrow();
        match machine.is_deleted(volume) {
            true => machine.deleted_snapshots(volume),
            false => Vec::new(),
        }
    }

    /// Removes deleted volumes when their time is over.
    pub(super) async fn expire(self, lead: Rc<LeaderTerm>) {
        let env = self.env();
        let is_idle = || lead.machine.borrow().deleted_volumes(env.now()).is_empty();
        if self.undelete().is_zero() && is_idle() {
            return; // Nothing will be kept.
        }
        // Room that is about to be free, and since when.
        let mut freed: Vec<(Instant, u64)> = Vec::new();
        let mut early = EarlyRemovals::default();
        while !lead.is_over() {
            env.sleep(EXPIRY).await;
            lead.machine.borrow_mut().note_left(env.now());
            self.after(&lead);
            let (over, kept): (Vec<_>, Vec<_>) = {
                let machine = lead.machine.borrow();
                let deleted = machine.deleted_volumes(env.now()).into_iter();
                let deleted =
                    deleted.filter_map(|(id, left)| Some((id, left, machine.deletion(id)?)));
                deleted.partition(|(_, left, _)| left.is_zero())
            };
            for (volume, _, deletion) in over {
                tracing::info!(%volume, "the time of a deleted volume is over: it is removed");
                self.expire_one(&lead, volume, deletion).await;
            }
            if kept.is_empty() {
                continue;
            }
            let now = env.now();
            freed.retain(|(since, _)| now - *since < FREED_SOON);
            let Some((capacity, used)) = self.room().await else { continue };
            let soon: u64 = freed.iter().map(|(_, bytes)| bytes).sum();
            let mut free = capacity.saturating_sub(used).saturating_add(soon);
            early.begin_check();
            let mut looked = LookedAt::new();
            for (volume, left, deletion) in kept {
                if free >= capacity / 100 * FREE_PERCENT || lead.is_over() {
                    break;
                }
                let gain = self.gain(&lead, volume, &mut looked).await;
                if lead.machine.borrow().deletion(volume) != Some(deletion) {
                    continue; // It was brought back while room was counted.
                }
                let bytes = match early.turn(gain) {
                    Turn::Goes(bytes) => bytes,
                    Turn::Stays => continue,
                    Turn::Waits => break,
                };
                let left_s = left.as_secs();
                tracing::warn!(
                    %volume, bytes, left_s, free,
                    "less than {FREE_PERCENT} % of the cluster is free: a deleted volume goes \
                     before its time; add disks, or remove what is not needed"
                );
                env.mark("block manager: deleted volume goes early");
                if self.expire_one(&lead, volume, deletion).await {
                    freed.push((now, bytes));
                    free = free.saturating_add(bytes);
                    looked.clear();
                }
            }
        }
    }

    /// Removes a volume unless it was brought back since; true when it is removed.
    async fn expire_one(
        &self,
        lead: &Rc<LeaderTerm>,
        volume: VolumeId,
        deletion: Deletion,
    ) -> bool {
        match self.remove(lead, (0, volume), (volume, Some(deletion)), true).await {
            Ok(_) => true,
            Err(error) => {
                // The next look tries again.
                tracing::debug!(%volume, %error, "a deleted volume was not removed yet");
                false
            }
        }
    }

    /// Users' bytes that the healthy disks can take, and bytes in use; nothing while that is not
    /// known.
    async fn room(&self) -> Option<(u64, u64)> {
        let reply = self.client().cluster_ask(ClusterRequest::Status).await.ok()?;
        let ClusterReply::Status(status) = reply else { return None };
        let disks = status.servers.iter().flat_map(|server| &server.disks);
        let good = disks.filter(|disk| !disk.failed);
        let sums = good.fold((0u64, 0u64), |(capacity, used), disk| {
            (capacity + disk.capacity - reserve_bytes(disk.capacity), used + disk.used)
        });
        (sums.0 > 0).then_some(sums)
    }

    /// What the removal of a deleted volume gives back; nothing while a directory cannot be read.
    async fn gain(
        &self,
        lead: &LeaderTerm,
        volume: VolumeId,
        looked: &mut LookedAt,
    ) -> Option<Gain> {
        let (family, own, deleted) = {
            let machine = lead.machine.borrow();
            let mut own = machine.deleted_snapshots(volume);
            own.push(volume);
            let family = machine.relatives(volume);
            let ids = family.iter().map(|info| info.volume);
            let deleted: BTreeSet<_> = ids.filter(|&id| machine.is_deleted(id)).collect();
            (family, own, deleted)
        };
        let is_own = |volume| own.contains(&volume);
        let is_deleted = |volume| deleted.contains(&volume);
        let ids: Vec<_> = family.iter().map(|info| info.volume).collect();
        if let Some((_, uses)) = looked.iter().find(|(of, _)| *of == ids) {
            return Some(Gain::of(uses, is_own, is_deleted));
        }
        match self.file_uses().uses(&family).await {
            Ok(mut uses) => {
                let clone = |info: &VolumeInfo| Some((info.volume, info.clone_source?));
                add_clones(&mut uses, &family.iter().filter_map(clone).collect::<Vec<_>>());
                let gain = Gain::of(&uses, is_own, is_deleted);
                let kept: usize = looked.iter().map(|(_, uses)| uses.len()).sum();
                if deleted.len() > own.len() && kept + uses.len() <= LOOKED_AT_MAX {
                    looked.push((ids, uses));
                }
                Some(gain)
            }
            Err(error) => {
                tracing::warn!(
                    %volume, %error,
                    "what a deleted volume holds is not known: it is not removed for its room"
                );
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
