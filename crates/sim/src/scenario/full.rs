//! A cluster that volumes fill, while its servers crash: writes are refused, and that soon; reads go
//! on, segments move; what makes room again is done, although all of it has to be appended first.

use std::rc::Rc;
use std::time::Duration;

use base::{Kind, MIB};
use block_proto::{BlockReply, BlockRequest};
use block_volume::contract::{Clear, Device};
use block_volume::geometry::Extent;
use block_volume::ids::VolumeId;
use runtime::Class;
use runtime::sim::{CrashMode, Sim};

use super::deleted::{MANAGERS, PART, World, byte_at};
use super::stack::Role;

/// Time limit of the actions that make room, a takeover included.
const SOON: Duration = Duration::from_secs(15);
/// The stores here have 6 MiB for metadata. To open the 70 segments takes 5 MiB, which come back
/// when rights have run out, 20 s later. When block servers crash three times in as long, there is
/// no room for a takeover until then, and failed attempts come back once more.
const RESERVE_BACK: Duration = Duration::from_secs(45);
/// Chunks of deleted files keep their room for as long as rights to them live, 20 s here.
const ROOM: Duration = Duration::from_secs(180);
/// Bytes that are written before the cluster is full.
const KEPT: u64 = 4 * MIB;
const LARGE: u64 = 256 * MIB;

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let world = Rc::new(World::start(&sim).await?);
    let user = world.clone();
    let work = world.env.spawn(Class::Foreground, "user", async move { user.fill_up().await });
    work.await.map_err(|_| "the user's host has crashed".to_owned())??;
    world.stack.verdict()
}

impl World {
    async fn fill_up(&self) -> Result<(), String> {
        let draw = |bound: u64| self.sim().with_rng(|rng| rng.below(bound));
        if draw(2) == 0 {
            // Stores that could grow, on media that have no more.
            for &host in self.stack.cluster().servers() {
                let used: u64 = self.sim().files(host).iter().map(|(_, len)| len).sum();
                let room = (24 + draw(24)) * MIB;
                self.sim().with_disk_faults(host, |disk| disk.capacity = used + room);
            }
            self.env.mark("full: media have less room than stores");
        }
        let kept = self.create("kept", 16 * MIB).await?;
        self.write("kept", KEPT).await?;
        let nonce = self.env.random_u64();
        let request = BlockRequest::Snapshot { nonce, volume: kept, name: "s".to_owned() };
        let BlockReply::Volume(snapshot) = self.ask(request).await? else {
            return Err("no snapshot was made".to_owned());
        };
        let large = self.create("large", LARGE).await?;
        let device = self.open("large").await?;
        let end = self.write_until_full(&device).await?;
        self.env.mark("full: a write is refused");
        for _ in 0..2 + draw(30) {
            match self.write_part(&device, end).await {
                Err(fault) if fault.kind == Kind::Full => {}
                answer => return Err(format!("a write to a full cluster: {answer:?}")),
            }
            self.env.sleep(Duration::from_millis(draw(1000))).await;
            if draw(6) == 0 {
                self.crash_one(draw(4)).await;
            }
        }
        self.check("kept", KEPT).await?;
        self.check("kept@s", KEPT).await?;
        for offset in (0..end / 2).step_by(PART as usize) {
            let extent = Extent { offset, len: PART };
            let how = if draw(2) == 0 { Clear::Trim } else { Clear::Zero };
            let cleared = self.soon("a trim", async { device.clear(extent, how).await }).await?;
            cleared.map_err(|fault| format!("a trim on a full cluster: {fault}"))?;
        }
        self.env.mark("full: blocks are trimmed");
        if draw(2) == 0 {
            self.crash_one(draw(4)).await;
        }
        drop(device);
        let remove = |volume: VolumeId| BlockRequest::Remove { volume, force: true };
        self.soon("removal of a snapshot", self.ask(remove(snapshot.volume))).await??;
        self.soon("removal of a volume", self.ask(remove(large))).await??;
        self.env.mark("full: volumes are removed");
        self.check("kept", KEPT).await?;
        let (until, device) = (self.sim().elapsed() + ROOM, self.open("kept").await?);
        while let Err(fault) = self.write_part(&device, KEPT).await {
            if self.sim().elapsed() > until {
                return Err(format!("no write {ROOM:?} after room was made: {fault}"));
            }
            self.env.sleep(Duration::from_secs(1)).await;
        }
        self.check("kept", KEPT).await
    }

    /// Writes one part, with the content that [`World::check`] expects there.
    async fn write_part(&self, device: &Rc<dyn Device>, offset: u64) -> Result<(), base::Fault> {
        let data = vec![byte_at(offset); PART as usize];
        let data = self.env.pool().copy_of(&data);
        let data = data.map_err(|error| base::Fault::new(Kind::Retry, error.to_string()))?;
        device.write(offset, data).await
    }

    /// Writes until a write is refused for want of room; answers where.
    async fn write_until_full(&self, device: &Rc<dyn Device>) -> Result<u64, String> {
        for offset in (0..LARGE).step_by(PART as usize) {
            match self.soon("a write", self.write_part(device, offset)).await? {
                Ok(()) => {}
                Err(fault) if fault.kind == Kind::Full => return Ok(offset),
                Err(fault) => return Err(format!("a write to a full cluster: {fault}")),
            }
        }
        Err("the cluster was to be full".to_owned())
    }

    /// A manager, or a block server, loses power and comes back.
    async fn crash_one(&self, drawn: u64) {
        let index = drawn as usize % MANAGERS;
        let role = if drawn < 2 { Role::Manager(index) } else { Role::Server(index) };
        self.stack.crash(role, CrashMode::Power);
        self.env.sleep(Duration::from_millis(500)).await;
        self.stack.boot(role);
    }

    /// Runs an operation that has to be answered soon.
    async fn soon<T>(&self, what: &str, work: impl Future<Output = T>) -> Result<T, String> {
        let empty = || self.sim().marks().get("chunkstore: the reserve is used up").copied();
        let (began, before) = (self.sim().elapsed(), empty());
        let answer = work.await;
        let most = if empty() == before { SOON } else { SOON + RESERVE_BACK };
        match self.sim().elapsed() - began {
            took if took <= most => Ok(answer),
            took => Err(format!("{what} on a full cluster takes {took:?}")),
        }
    }
}
