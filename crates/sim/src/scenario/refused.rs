//! Requests that block managers refuse: each changes nothing, under a leader that has just taken
//! over too.

use std::time::Duration;

use base::{Kind, MIB};
use block_proto::managers::Error;
use block_proto::{BlockRequest, VolumeInfo};
use block_volume::ids::VolumeId;
use block_volume::qos::VolumeLimits;
use wire::control::Policy;

use super::deleted::{BOUND, KEPT, PART, World};
use super::stored::list;

/// Tries of a request until it is refused for good, and the pause between two.
const TRIES: (u32, Duration) = (100, Duration::from_millis(100));
/// Bytes of the volume that may not get shorter, all of them written.
const WRITTEN: u64 = 2 * MIB;
/// Requests of a run: all are asked for within some seeds.
const REQUESTS: usize = 8;
/// Volumes whose content stays.
const NAMES: [&str; 4] = ["a", "a@s", "k", "closed"];

/// All that a request could change, but for contents.
#[derive(PartialEq, Debug)]
struct Rows {
    volumes: Vec<VolumeInfo>,
    /// Deleted volumes, with the times of their deletions.
    deleted: Vec<(VolumeInfo, u64)>,
    /// Numbers of segments of volumes and clones.
    segments: Vec<usize>,
}

/// Volumes that refused requests are about.
struct Family {
    /// Open, with a snapshot that has a clone.
    open: VolumeId,
    snapshot: VolumeId,
    /// Not open.
    clone: VolumeId,
    /// Not open, with data everywhere.
    closed: VolumeId,
    /// Deleted, with a snapshot; another volume has its name.
    deleted: VolumeId,
    deleted_snapshot: VolumeId,
}

impl World {
    /// Asks for all that is refused, while managers crash: volumes, snapshots, clones and deleted
    /// volumes stay as they are. Volume `a` is there, with a snapshot `s`.
    pub(super) async fn refusals_change_nothing(&self) -> Result<(), String> {
        let family = self.make_family().await?;
        let ends = self.sim().elapsed() + KEPT - Duration::from_secs(10);
        let held = self.open("a").await?;
        let mut requests = self.refused_requests(&family);
        let first = self.sim().with_rng(|rng| rng.below(requests.len() as u64));
        requests.rotate_left(first as usize);
        requests.truncate(REQUESTS);
        for request in requests {
            if self.sim().elapsed() > ends {
                break; // The deleted volume goes soon.
            }
            for volume in [family.snapshot, family.clone, family.closed] {
                self.until_closed(volume).await?;
            }
            let before = self.rows().await?;
            self.refuse(&request).await?;
            let after = self.rows().await?;
            if after != before {
                return Err(format!("{request:?} was refused: {before:?} became {after:?}"));
            }
            let name = self.sim().with_rng(|rng| *rng.pick(&NAMES));
            self.check(name, PART).await.map_err(|what| format!("{request:?}: {what}"))?;
            if self.sim().with_rng(|rng| rng.one_in(4)) {
                self.disturb().await;
            }
        }
        for name in NAMES {
            self.check(name, MIB).await?;
        }
        drop(held);
        let name = Some("back".to_owned());
        self.ask(BlockRequest::Undelete { volume: family.deleted, name }).await?;
        self.check("back", MIB).await?;
        self.check("back@s", MIB).await?;
        self.env.mark("deleted: refusals change nothing");
        Ok(())
    }

    async fn make_family(&self) -> Result<Family, String> {
        let (open, snapshot) = (self.find("a").await?, self.find("a@s").await?);
        let (nonce, name) = (self.env.random_u64(), "k".to_owned());
        let clone = self.volume(BlockRequest::Clone { nonce, snapshot, name }).await?.volume;
        let closed = self.create("closed", WRITTEN).await?;
        self.write("closed", WRITTEN).await?;
        let deleted = self.create("n", MIB).await?;
        self.write("n", MIB).await?;
        let deleted_snapshot = self.snapshot(deleted, "s").await?;
        self.delete(deleted).await?;
        self.create("n", MIB).await?;
        Ok(Family { open, snapshot, clone, closed, deleted, deleted_snapshot })
    }

    /// Each of them is refused, whatever leader it comes to.
    fn refused_requests(&self, of: &Family) -> Vec<BlockRequest> {
        use BlockRequest::{
            Attach, Clone, Create, Delete, Flatten, Remove, RemoveDeleted, Resize, Rollback, Set,
            Snapshot, Undelete,
        };
        let &Family { open, snapshot, clone, closed, deleted, deleted_snapshot } = of;
        let text = str::to_owned;
        let nonce = || self.env.random_u64();
        let above = VolumeLimits { iops_base: 9, iops_burst: 8, ..VolumeLimits::default() };
        let (limits, policy) = (VolumeLimits::default(), Some(Policy::rep(1)));
        let never = VolumeId::new(1 << 40);
        let snapshot_as = |volume, name| Snapshot { nonce: nonce(), volume, name: text(name) };
        let clone_as = |snapshot, name| Clone { nonce: nonce(), snapshot, name: text(name) };
        let undelete = |volume, name: Option<&str>| Undelete { volume, name: name.map(text) };
        let resize = |volume, bytes, force| Resize { volume, bytes, force };
        let attach = |name| Attach { name: text(name), nonce: nonce(), holder: text("other") };
        let mut requests = vec![
            // Names.
            Create { nonce: nonce(), spec: self.spec("a", MIB) },
            Create { nonce: nonce(), spec: self.spec("x@y", MIB) },
            Create { nonce: nonce(), spec: self.spec("x", MIB + 1) },
            snapshot_as(open, "s"),
            snapshot_as(open, "x@y"),
            clone_as(snapshot, "a"),
            clone_as(snapshot, "x/y"),
            undelete(deleted, None),
            undelete(deleted, Some("a")),
            undelete(deleted, Some("x/y")),
            attach("x"),
            // What is needed, or open.
            Delete { volume: open, force: false, snapshots: false },
            Delete { volume: open, force: false, snapshots: true },
            Delete { volume: open, force: true, snapshots: false },
            Delete { volume: snapshot, force: false, snapshots: true },
            Remove { volume: open, force: true },
            Remove { volume: snapshot, force: false },
            RemoveDeleted { volume: open },
            Rollback { nonce: nonce(), snapshot },
            attach("a"),
            // Lengths.
            resize(open, MIB, true),
            resize(clone, MIB, true),
            resize(closed, MIB, false),
            resize(closed, MIB, true),
            resize(closed, MIB + 1, true),
            resize(snapshot, 8 * MIB, true),
            // What it is not.
            Set { volume: open, limits: above, shared: false, policy: None },
            Set { volume: snapshot, limits, shared: true, policy },
            snapshot_as(snapshot, "x"),
            clone_as(open, "x"),
            Rollback { nonce: nonce(), snapshot: open },
            Flatten { volume: snapshot },
            undelete(open, Some("x")),
            undelete(deleted_snapshot, Some("x")),
        ];
        for volume in [deleted, never] {
            requests.push(snapshot_as(volume, "x"));
            requests.push(resize(volume, WRITTEN, true));
            requests.push(Set { volume, limits, shared: true, policy });
            requests.push(Flatten { volume });
        }
        for volume in [deleted_snapshot, never] {
            requests.push(clone_as(volume, "x"));
            requests.push(Rollback { nonce: nonce(), snapshot: volume });
        }
        requests
    }

    /// Asks until a leader refuses for good.
    async fn refuse(&self, request: &BlockRequest) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..TRIES.0 {
            match self.bounded(request.name(), self.managers.ask(request.clone())).await? {
                Err(Error::Refused { kind, .. }) if kind != Kind::Retry => return Ok(()),
                Err(error) => last = error.to_string(),
                Ok(reply) => return Err(format!("{request:?} was not refused: {reply:?}")),
            }
            self.env.sleep(TRIES.1).await;
        }
        Err(format!("{request:?} was neither refused nor done: {last}"))
    }

    async fn rows(&self) -> Result<Rows, String> {
        let volumes = list(&self.managers).await?;
        let deleted = self.list_deleted().await?;
        let deleted = deleted.into_iter().map(|one| (one.info, one.at_ms)).collect();
        let mut segments = Vec::new();
        // Snapshots have owners while they are used.
        for info in volumes.iter().filter(|info| info.parent.is_none()) {
            let map = self.managers.map(info.volume).await;
            segments.push(map.map_err(|error| error.to_string())?.len());
        }
        Ok(Rows { volumes, deleted, segments })
    }

    /// Waits until no client has a volume open: checks of its content end behind their answers.
    async fn until_closed(&self, volume: VolumeId) -> Result<(), String> {
        let is_it = |info: &VolumeInfo| info.volume == volume && !info.attachments.is_empty();
        let end = self.sim().elapsed() + BOUND;
        while list(&self.managers).await?.iter().any(is_it) {
            if self.sim().elapsed() > end {
                return Err(format!("{volume} is open {BOUND:?} after its last use"));
            }
            self.env.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}
