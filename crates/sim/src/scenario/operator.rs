//! Changes that an operator makes to volumes under load: limits, lengths, deletion and its undoing,
//! beside their snapshots and clones. An answer has all that was there before, but for the change;
//! a longer volume has zeroes in its new part; a client that opens a volume reads nothing beyond the
//! end.

use base::Kind;
use block_proto::managers::Error;
use block_proto::{BlockReply, BlockRequest, VolumeInfo};
use block_volume::ids::VolumeId;
use block_volume::limits::BLOCK;
use runtime::Duration;
use wire::control::Policy;

use super::cuts::{AGAIN, Keeper, TIMEOUT};
use super::disks::{BYTES, BYTES_MAX, limits};

/// Time for which a volume stays deleted, at most: clients notice it and ask, or do not.
const DELETED_MS: u64 = 3000;

impl Keeper {
    /// Makes a change.
    pub(super) async fn change(&self, volume: VolumeId) -> Result<(), String> {
        match self.env.random_below(5) {
            0 => self.set(volume).await,
            1 => self.resize(volume).await,
            2 => self.delete_and_undelete(volume).await,
            _ => {
                self.delete_and_undelete(volume).await?;
                // Clients have not opened it again.
                self.resize(volume).await
            }
        }
    }

    /// Gives volumes the length back in which clients use them.
    pub(super) async fn grow_again(&self) -> Result<(), String> {
        let volumes: Vec<VolumeId> = self.known.borrow().keys().copied().collect();
        for volume in volumes {
            self.resize_to(volume, BYTES_MAX).await?;
        }
        Ok(())
    }

    async fn set(&self, volume: VolumeId) -> Result<(), String> {
        let limits = limits(&self.env);
        let shared = self.known.borrow()[&volume].shared;
        let copies = [Policy::rep(3), Policy::strict(3), Policy::rep(2)];
        let policies =
            [None, Some(Policy::ec(2, 2)), Some(copies[0]), Some(copies[1]), Some(copies[2])];
        let policy = policies[self.env.random_below(policies.len() as u64) as usize];
        let answer = self.done(BlockRequest::Set { volume, limits, shared, policy }).await?;
        answer.map_err(|error| format!("set: {error}"))?;
        {
            let known = &mut *self.known.borrow_mut();
            let spec = known.get_mut(&volume).expect("it is known");
            (spec.limits, spec.policy) = (limits, policy.unwrap_or(spec.policy));
        }
        self.env.mark("operator: limits are set");
        self.compare(volume).await
    }

    async fn resize(&self, volume: VolumeId) -> Result<(), String> {
        let is_long = self.known.borrow()[&volume].bytes > BYTES;
        self.resize_to(volume, if is_long { BYTES } else { BYTES_MAX }).await
    }

    /// Makes a volume longer. Or shorter: that is refused while a client has it open.
    async fn resize_to(&self, volume: VolumeId, bytes: u64) -> Result<(), String> {
        let before = self.known.borrow()[&volume].bytes;
        if bytes == before {
            return Ok(());
        }
        let asked = self.record.now();
        self.record.set_length(volume, None);
        let answer = self.done(BlockRequest::Resize { volume, bytes, force: true }).await?;
        let is_cut = bytes < before;
        match answer {
            Ok(_) => {
                self.known.borrow_mut().get_mut(&volume).expect("it is known").bytes = bytes;
                if is_cut {
                    self.env.mark("operator: a volume is cut");
                    self.cut.borrow_mut().insert(volume, asked);
                } else {
                    self.env.mark("operator: a volume grows");
                    // It does as soon as the files of what was cut off are gone: a client that no
                    // manager reaches may use them until then (`protocols.md` 6.5).
                    let cut = self.cut.borrow_mut().remove(&volume);
                    let cut = cut.expect("it had its full length before it was cut");
                    let beyond = self.blocks.iter().filter(|&&block| block * BLOCK >= before);
                    beyond.for_each(|&block| self.record.cleared((volume, block), cut));
                }
            }
            Err(Error::Refused { kind: Kind::Invalid, .. }) if is_cut => {
                self.env.mark("operator: an open volume is not cut");
            }
            Err(error) => return Err(format!("resize from {before} to {bytes}: {error}")),
        }
        self.record.set_length(volume, Some(self.known.borrow()[&volume].bytes));
        self.compare(volume).await
    }

    async fn delete_and_undelete(&self, volume: VolumeId) -> Result<(), String> {
        self.record.set_length(volume, None);
        let delete = BlockRequest::Delete { volume, force: true, snapshots: true };
        let once = self.env.random_u64().max(1);
        let deleted = self.done_as(once, delete.clone()).await?;
        deleted.map_err(|error| format!("delete: {error}"))?;
        self.record.set_length(volume, Some(0));
        let pause = Duration::from_millis(self.env.random_below(DELETED_MS));
        self.env.sleep(pause).await;
        let name = self.known.borrow()[&volume].name.clone();
        match self.managers.volume(&name).await {
            Err(error) if error.kind() == Kind::NotFound => {}
            other => return Err(format!("{name} is deleted, and is there: {other:?}")),
        }
        self.record.set_length(volume, None);
        let back = self.done(BlockRequest::Undelete { volume, name: None }).await?;
        back.map_err(|error| format!("undelete: {error}"))?;
        // Its message comes again, late.
        let late = self.done_as(once, delete).await?;
        late.map_err(|error| format!("a late deletion: {error}"))?;
        self.record.set_length(volume, Some(self.known.borrow()[&volume].bytes));
        self.env.mark("operator: a deleted volume came back");
        self.compare(volume).await
    }

    /// Asks until the request is done, or refused for good.
    async fn done(&self, request: BlockRequest) -> Result<Result<BlockReply, Error>, String> {
        self.done_as(self.env.random_u64().max(1), request).await
    }

    /// The same, under a number by which a repeat is known.
    async fn done_as(
        &self,
        once: u64,
        request: BlockRequest,
    ) -> Result<Result<BlockReply, Error>, String> {
        let end = self.record.now() + TIMEOUT;
        loop {
            match self.managers.ask_as(once, request.clone()).await {
                Err(error) if error.kind() == Kind::Retry => {
                    if self.record.now() > end {
                        return Err(format!("{}, for {TIMEOUT:?}: {error}", request.name()));
                    }
                    self.env.sleep(AGAIN).await;
                }
                answer => return Ok(answer),
            }
        }
    }

    /// An error unless a volume is as answered requests have made it.
    async fn compare(&self, volume: VolumeId) -> Result<(), String> {
        let known = self.known.borrow()[&volume].clone();
        let found: VolumeInfo =
            self.managers.volume(&known.name).await.map_err(|error| error.to_string())?;
        match (found.volume, &found.spec) == (volume, &known) {
            true => Ok(()),
            false => Err(format!("{found:?} is not what it was made: {known:?}")),
        }
    }
}
