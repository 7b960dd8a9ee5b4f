//! Expiry of deleted volumes: the leading manager removes those whose time is over, and the oldest
//! of the others when the cluster has little room.

use std::rc::Rc;

use base::limits::reserve_bytes;
use block_proto::{BlockReply, BlockRequest};
use block_volume::ids::VolumeId;
use block_volume::space::alone;
use runtime::Instant;
use wire::control::{ClusterReply, ClusterRequest, ControlError};

use super::entity::Deletion;
use super::error::Refusal;
use super::limits::{EXPIRY, FREE_PERCENT, FREED_SOON};
use super::service::{LeaderTerm, Manager};

impl Manager {
    /// Milliseconds of Unix time.
    pub(super) fn unix_ms(&self) -> u64 {
        self.env().unix_time().as_nanos() / 1_000_000
    }

    /// Frees a volume's name. A snapshot is removed at once; so is a volume when nothing is kept.
    pub(super) async fn delete(
        &self,
        lead: &Rc<LeaderTerm>,
        (once, volume): (u64, VolumeId),
        (force, snapshots): (bool, bool),
    ) -> Result<BlockReply, ControlError> {
        let (gone, is_snapshot) = {
            let machine = lead.machine.borrow();
            let known = machine.state().volume(volume);
            (known.is_none(), known.is_some_and(|known| known.family.parent.is_some()))
        };
        if is_snapshot || self.undelete().is_zero() {
            if snapshots && !gone {
                // All of them are checked before the first one goes.
                let (now, how) = (self.env().now(), (force, snapshots));
                let family = lead.machine.borrow().check_delete(now, volume, how)?;
                for snapshot in family.into_iter().rev() {
                    let request = BlockRequest::Remove { volume: snapshot, force };
                    Box::pin(self.serve(request)).await?;
                }
            }
            return Box::pin(self.serve(BlockRequest::Remove { volume, force })).await;
        }
        let (now, unix_ms) = (self.env().now(), self.unix_ms());
        let deleted = lead.machine.borrow_mut().once(now, (once, volume), |machine| {
            machine.delete((now, unix_ms), volume, (force, snapshots))
        });
        let deleted = self.durable(lead, deleted).await??;
        self.env().mark("block manager: volume deleted");
        Ok(deleted)
    }

    /// Removes a volume, and the snapshots that were deleted with it. With a `deletion` each of them
    /// is removed only while that is in force: it may be brought back at any wait.
    pub(super) async fn remove(
        &self,
        lead: &Rc<LeaderTerm>,
        volume: VolumeId,
        force: bool,
        deletion: Option<Deletion>,
    ) -> Result<BlockReply, ControlError> {
        let removed = if self.needs_parting(lead, volume, force) {
            for snapshot in self.deleted_snapshots(lead, volume) {
                Box::pin(self.remove(lead, snapshot, true, deletion)).await?;
            }
            // Clones without files get them before the snapshot's files go.
            let clones = lead.machine.borrow_mut().begin_parting(volume);
            let parted = self.part(&clones, lead).await;
            // In one step: no clone is made between the guard's end and the removal, and no volume
            // is brought back between the check and the removal.
            let machine = &mut *lead.machine.borrow_mut();
            let removed = parted.and_then(|()| {
                machine.parted(volume, &clones);
                machine.remove_under(self.env().now(), volume, force, deletion)
            });
            machine.end_parting(volume);
            removed
        } else {
            let now = self.env().now();
            lead.machine.borrow_mut().remove_under(now, volume, force, deletion)
        };
        self.durable(lead, removed).await?.map_err(ControlError::from)
    }

    /// Removes a deleted volume with its snapshots. A volume that is there again is refused.
    pub(super) async fn remove_deleted(
        &self,
        lead: &Rc<LeaderTerm>,
        volume: VolumeId,
    ) -> Result<BlockReply, ControlError> {
        let (deletion, name) = {
            let machine = lead.machine.borrow();
            let known = machine.state().volume(volume);
            (machine.deletion(volume), known.map(|known| known.spec.name.clone()))
        };
        match (deletion, name) {
            (None, Some(name)) => Err(Refusal::NotDeleted { name }.into()),
            _ => self.remove(lead, volume, true, deletion).await,
        }
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
            for (volume, left, deletion) in kept {
                if free >= capacity / 100 * FREE_PERCENT || lead.is_over() {
                    break;
                }
                let bytes = self.alone(&lead, volume).await.unwrap_or(0);
                if lead.machine.borrow().deletion(volume) != Some(deletion) {
                    continue; // It was brought back while room was counted.
                }
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
        match self.remove(lead, volume, true, Some(deletion)).await {
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

    /// Bytes that the removal of a deleted volume with its snapshots gives back.
    async fn alone(&self, lead: &LeaderTerm, volume: VolumeId) -> Option<u64> {
        let (family, own) = {
            let machine = lead.machine.borrow();
            let mut own = machine.deleted_snapshots(volume);
            own.push(volume);
            (machine.relatives(volume), own)
        };
        let uses = self.file_uses().uses(&family).await.ok()?;
        Some(alone(&uses, |volume| own.contains(&volume)))
    }
}
