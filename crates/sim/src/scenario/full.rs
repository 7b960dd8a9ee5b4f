//! A cluster that volumes fill, while its servers crash: writes are refused, and that soon; reads go
//! on, segments move; what makes room again is done, although all of it has to be appended first.

use std::rc::Rc;
use std::time::Duration;

use base::{Kind, MIB};
use block_proto::BlockRequest;
use block_volume::contract::{Clear, Device};
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::limits::BLOCK;
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Env};

use super::deleted::{MANAGERS, PART, SECTOR, SEGMENTS, World, byte_at};
use super::slow::Gate;
use super::stack::Role;
use crate::tuning::Tuning;

/// Time limit of the actions that make room, a takeover included.
const SOON: Duration = Duration::from_secs(15);
/// Life of a token. The reserve of the stores here, 6 MiB, is to the least one of others, 16 MiB, as the
/// life of rights here, 25 s, is to theirs, 65 s.
const TOKEN_LIFE: Duration = Duration::from_secs(20);
/// To open the 70 segments takes 5 MiB of the reserve, which come back when rights have run out, 25 s
/// later. When block servers crash three times in as long, there is no room for a takeover until then;
/// the next try is 25 s later at most.
const RESERVE_BACK: Duration = Duration::from_secs(45);
/// Chunks of deleted files keep their room for as long as rights to them live, 25 s.
const ROOM: Duration = Duration::from_secs(180);
/// Bytes that are written before the cluster is full.
const KEPT: u64 = 4 * MIB;
/// Requests to a segment that stands still, at most: twice what a block server lets one segment
/// hold (`block_server::limits::SEGMENT_FREE_MAX`).
const HELD_MAX: u64 = 64;
/// Time limit of a request to any other segment at the same time, while nothing else fails.
const OTHERS: Duration = Duration::from_secs(2);
const LARGE: u64 = 256 * MIB;

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = Tuning::default();
    tuning.master.stream.token_life = TOKEN_LIFE;
    let world = Rc::new(World::start(&sim, tuning).await?);
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
        self.others_go_on(kept).await?;
        let snapshot = self.snapshot(kept, "s").await?;
        let large = self.create("large", LARGE).await?;
        let device = self.open("large").await?;
        let mut end = self.write_until_full(&device, 0).await?;
        self.env.mark("full: a write is refused");
        for _ in 0..2 + draw(30) {
            match self.soon("a write", self.write_part(&device, end)).await? {
                Err(fault) if fault.kind == Kind::Full => {}
                Err(fault) => return Err(format!("a write to a full cluster: {fault}")),
                // What openings of files had taken of the room has come back.
                Ok(()) => {
                    self.env.mark("full: room comes back by itself");
                    end = self.write_until_full(&device, end + PART).await?;
                }
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
        self.soon("removal of a snapshot", self.ask(remove(snapshot))).await??;
        self.soon("removal of a volume", self.ask(remove(large))).await??;
        self.env.mark("full: volumes are removed");
        self.check("kept", KEPT).await?;
        let (until, device) = (self.sim().elapsed() + ROOM, self.open("kept").await?);
        while let Err(fault) = self.bounded("a write", self.write_part(&device, KEPT)).await? {
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

    /// Writes from an offset on until a write is refused for want of room; answers where.
    async fn write_until_full(&self, device: &Rc<dyn Device>, from: u64) -> Result<u64, String> {
        for offset in (from..LARGE).step_by(PART as usize) {
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

    /// One segment of a volume stands still under many requests; requests to its other segments are
    /// done, and soon. When the segment goes on, so do the requests that it has held up.
    async fn others_go_on(&self, volume: VolumeId) -> Result<(), String> {
        let draw = |bound: u64| self.sim().with_rng(|rng| rng.below(bound));
        let device = self.open("kept").await?;
        let index = draw(SEGMENTS);
        let gate = Gate::close(SegmentId { volume, index: index as u32 });
        let held: Vec<_> = (0..1 + draw(HELD_MAX))
            .map(|number| {
                let (device, env, reads) = (device.clone(), self.env.clone(), draw(2) == 0);
                let offset = index * SECTOR + number / 16 * SECTOR * SEGMENTS + number % 16 * BLOCK;
                self.env.spawn(Class::Foreground, "held", request(env, device, offset, reads))
            })
            .collect();
        let end = self.sim().elapsed() + Duration::from_millis(500 + draw(5000));
        while self.sim().elapsed() < end {
            let other = (index + 1 + draw(SEGMENTS - 1)) % SEGMENTS;
            let offset = (draw(KEPT / SECTOR / SEGMENTS) * SEGMENTS + other) * SECTOR;
            let request = request(self.env.clone(), device.clone(), offset, draw(2) == 0);
            let done = self.env.timeout(OTHERS, request).await;
            let done = done.map_err(|_| {
                format!("no answer of segment {other} in {OTHERS:?}: segment {index} stands still")
            })?;
            done.map_err(|fault| format!("segment {other} beside one that stands still: {fault}"))?;
            self.env.sleep(Duration::from_millis(draw(100))).await;
        }
        drop(gate);
        for request in held {
            let done = self.bounded("a request that was held up", request).await?;
            let done = done.map_err(|_| "the user's host has crashed".to_owned())?;
            done.map_err(|fault| format!("a request that was held up: {fault}"))?;
        }
        self.env.mark("full: one segment stood still alone");
        Ok(())
    }

    /// Runs an operation that has to be answered soon.
    async fn soon<T>(&self, what: &str, work: impl Future<Output = T>) -> Result<T, String> {
        let began = self.sim().elapsed();
        let answer = self.bounded(what, work).await?;
        let empty = self.sim().last_mark("chunkstore: the reserve is used up");
        let back = empty.map_or(Duration::ZERO, |last| (last + RESERVE_BACK).saturating_sub(began));
        let most = SOON + back.min(RESERVE_BACK);
        match self.sim().elapsed() - began {
            took if took <= most => Ok(answer),
            took => Err(format!("{what} on a full cluster takes {took:?}")),
        }
    }
}

/// Reads or writes a block, with the content that [`World::check`] expects there.
async fn request(
    env: Env,
    device: Rc<dyn Device>,
    offset: u64,
    reads: bool,
) -> Result<(), base::Fault> {
    if reads {
        return device.read(Extent { offset, len: BLOCK }).await.map(drop);
    }
    let data = env.pool().copy_of(&[byte_at(offset); BLOCK as usize]);
    let data = data.map_err(|error| base::Fault::new(Kind::Retry, error.to_string()))?;
    device.write(offset, data).await
}
