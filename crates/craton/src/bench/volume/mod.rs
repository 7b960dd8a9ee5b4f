//! `craton bench volume`: a block volume through the block client and through NBD, beside the
//! core's own appends and reads (`protocols.md` 7).

mod clones;
mod lane;
mod nbd;
mod parts;
mod segment;
mod takeover;

pub use parts::{LeftOut, Parts, VolumePart};

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use block_client::VolumeExports;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeSpec};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::ids::VolumeId;
use block_volume::limits::{
    DATA_SECTOR_DEFAULT, GROUP_BYTES_DEFAULT, SEGMENTS_PER_GROUP_DEFAULT, VOLUME_BYTES,
};
use block_volume::qos::VolumeLimits;
use client::{Appender, Client, FlatLogFile};
use futures_util::future::join_all;
use lane::{Lane, Scenario, Work, measure};
use nbd::Nbd;
use runtime::{Buf, Env, Rng};
use wire::control::Policy;

use super::{Latencies, Report, Row, Target};

/// What `bench volume` measures.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Copies of all data.
    pub replicas: u8,
    /// A front end; without one NBD is not measured.
    pub nbd: Option<SocketAddr>,
    /// Time for each combination, all its lanes together.
    pub duration: Duration,
    /// MiB that each lane writes in order, and that are read afterwards.
    pub fill_mib: u64,
    /// Volumes, and clones, made and removed to measure their rates; 0: none.
    pub creates: u32,
    /// MiB written to the segment that is recovered, and to the one that is taken over.
    pub takeover_mib: u64,
    /// What is measured, beside the fill.
    pub parts: Parts,
}

const SMALL: usize = 4 << 10;
const LARGE: usize = 128 << 10;
/// Requests in order under way: 1 MiB, as clients that copy disks have.
const LARGE_DEPTH: usize = 8;
/// Random writes of a lane at most, at depth 1 and above: about 100 and 230 MB on three disks.
const WRITES_MAX: (u64, u64) = (4_000, 16_000);
/// Volumes that are being made at a time.
const CREATE_DEPTH: usize = 16;
/// Between two looks at a volume that is being made.
const LOOK: Duration = Duration::from_millis(5);
/// How long a volume may take to be served.
const OPEN_WAIT: Duration = Duration::from_secs(20);

fn say(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn noise(env: &Env, len: usize) -> Result<Buf, String> {
    let mut bytes = vec![0; len];
    Rng::new(3).fill(&mut bytes);
    env.pool().copy_of(&bytes).map_err(say)
}

/// `craton bench volume`: makes volumes of its own, and removes them.
pub async fn volume(
    client: &Client,
    exports: &VolumeExports,
    target: &Target,
    options: &VolumeOptions,
) -> Result<Report, String> {
    let parts = &options.parts;
    let mut report = Report { left_out: parts.left_out(), ..Report::new("volume", Vec::new()) };
    let managers = Managers::new(client);
    let part = VolumePart::Takeover;
    let objection = match parts.has(part) {
        true => takeover::objection(exports, target).await?,
        false => None,
    };
    if let Some(why) = objection.as_ref().filter(|_| !parts.lenient) {
        return Err(format!("takeover cannot be measured: {why}"));
    }
    if parts.has_any(&OF_VOLUMES) {
        report.results.extend(of_volumes(&managers, exports, target, options).await?);
    }
    if parts.has(part) && objection.is_none() {
        let rows = takeover::takeover(&managers, exports, target, options).await?;
        report.results.extend(rows);
    }
    report.left_out.extend(objection.map(|why| LeftOut { part, why: Some(why) }));
    if parts.has(VolumePart::Recovery) {
        let bytes = options.takeover_mib << 20;
        report.results.extend(segment::recovery(client, options.replicas, bytes).await?);
    }
    if parts.has(VolumePart::Collection) {
        let mib = options.fill_mib;
        report.results.extend(segment::collection(client, options.replicas, mib).await?);
    }
    Ok(report)
}

/// The parts that work on a volume with the fill.
const OF_VOLUMES: [VolumePart; 4] =
    [VolumePart::Sequential, VolumePart::Reads, VolumePart::Writes, VolumePart::Creates];

async fn of_volumes(
    managers: &Managers,
    exports: &VolumeExports,
    target: &Target,
    options: &VolumeOptions,
) -> Result<Vec<Row>, String> {
    let client = managers.client();
    let tag = client.env().random_u64();
    // One for each way: who has a volume alone reads by places that are lent (decision 24).
    let mut names = vec![format!(".bench-volume-{tag:016x}")];
    names.extend(options.nbd.map(|_| format!(".bench-nbd-volume-{tag:016x}")));
    let mut made = Vec::new();
    let measured = async {
        for name in &names {
            made.push(create(managers, name, options.replicas).await?);
        }
        let device = exports.open(&names[0]).await.map_err(say)?;
        let nbd = match options.nbd {
            Some(addr) => Some(Nbd::open(client.env(), addr, &names[1]).await?),
            None => None,
        };
        let mut rows = requests(client, (&device, nbd), tag, target, options).await?;
        if options.creates > 0 && options.parts.has(VolumePart::Creates) {
            let how = (options.replicas, options.creates);
            rows.push(creations(managers, tag, how).await?);
            rows.extend(clones::clones(managers, exports, tag, how).await?);
        }
        Ok(rows)
    };
    let measured: Result<Vec<Row>, String> = measured.await;
    let mut gone = Ok(());
    for volume in made {
        let removed = managers.ask(BlockRequest::Remove { volume, force: true }).await;
        gone = gone.and(removed.map(drop).map_err(say));
    }
    let rows = measured?;
    gone.map(|()| rows)
}

async fn create(managers: &Managers, name: &str, copies: u8) -> Result<VolumeId, String> {
    let geometry = VolumeGeometry {
        group_bytes: GROUP_BYTES_DEFAULT,
        segments_per_group: SEGMENTS_PER_GROUP_DEFAULT,
        data_sector: DATA_SECTOR_DEFAULT,
    };
    create_as(managers, name, copies, (VOLUME_BYTES.0, geometry, false)).await
}

async fn create_as(
    managers: &Managers,
    name: &str,
    copies: u8,
    (bytes, geometry, shared): (u64, VolumeGeometry, bool),
) -> Result<VolumeId, String> {
    let env = managers.client().env();
    let spec = VolumeSpec {
        name: name.to_owned(),
        bytes,
        geometry,
        policy: Policy::rep(copies),
        limits: VolumeLimits::default(),
        shared,
    };
    let nonce = env.random_u64();
    let request = BlockRequest::Create { nonce, spec };
    let BlockReply::Volume(info) = managers.ask(request).await.map_err(say)? else {
        return Err("the block manager answers something else than a volume".to_owned());
    };
    until_served(managers, info.volume, name).await?;
    Ok(info.volume)
}

async fn until_served(managers: &Managers, id: VolumeId, name: &str) -> Result<(), String> {
    let env = managers.client().env();
    let deadline = env.now() + OPEN_WAIT;
    while !managers.map(id).await.map_err(say)?.iter().all(|place| place.serving) {
        if env.now() > deadline {
            return Err(format!("the volume {name} is not served within {OPEN_WAIT:?}"));
        }
        env.sleep(LOOK).await;
    }
    Ok(())
}

/// What the lanes of requests work on.
struct Bench<'a> {
    env: Env,
    target: &'a Target,
    device: Rc<dyn Device>,
    nbd: Option<Nbd>,
    appender: Appender,
    file: FlatLogFile,
    fill: u64,
    small: Buf,
    large: Buf,
    time: Duration,
    parts: &'a Parts,
}

async fn requests(
    client: &Client,
    (device, nbd): (&Rc<dyn Device>, Option<Nbd>),
    tag: u64,
    target: &Target,
    options: &VolumeOptions,
) -> Result<Vec<Row>, String> {
    let env = client.env().clone();
    let policy = Policy::rep(options.replicas);
    let paths = ["small", "large"].map(|what| format!("/.bench-volume-{what}-{tag:016x}"));
    let make = async |path: &str| client.create(path, policy, 0o644, true).await.map_err(say);
    let (appends, file) = (make(&paths[0]).await?, make(&paths[1]).await?);
    let bench = Bench {
        env: env.clone(),
        target,
        device: device.clone(),
        nbd,
        appender: appends.append_handle().await.map_err(say)?,
        file,
        fill: options.fill_mib << 20,
        small: noise(&env, SMALL)?,
        large: noise(&env, LARGE)?,
        time: options.duration,
        parts: &options.parts,
    };
    let measured = bench.run().await;
    let Bench { appender, .. } = bench;
    appender.close().await.map_err(say)?;
    for path in &paths {
        client.unlink(path).await.map_err(say)?;
    }
    measured
}

impl Bench<'_> {
    async fn run(&self) -> Result<Vec<Row>, String> {
        let mut rows = self.fill().await?;
        // While it lies as it was written: random writes tear it apart.
        if self.parts.has(VolumePart::Sequential) {
            rows.extend(self.reads(LARGE, LARGE_DEPTH, false).await?);
        }
        for depth in [1, 32] {
            if self.parts.has(VolumePart::Reads) {
                rows.extend(self.reads(SMALL, depth, true).await?);
            }
        }
        for depth in [1, 32] {
            if self.parts.has(VolumePart::Writes) {
                rows.extend(self.random_writes(depth).await?);
            }
        }
        Ok(rows)
    }

    /// Sequential writes.
    async fn fill(&self) -> Result<Vec<Row>, String> {
        let most = self.fill / LARGE as u64;
        let appender = self.file.append_handle().await.map_err(say)?;
        let mut lanes = vec![
            lane("core append", |_| async {
                appender.append(&self.large).await.map(drop).map_err(say)
            }),
            lane("volume write", |n| async move {
                self.device.write(n * LARGE as u64, self.large.clone()).await.map_err(say)
            }),
        ];
        if let Some(nbd) = &self.nbd {
            lanes.push(lane("nbd write", move |n| nbd.write(n * LARGE as u64, &self.large)));
        }
        // As long as it takes: it is read later on.
        let time = Duration::from_secs(15);
        let scenario = Scenario { size: LARGE, depth: LARGE_DEPTH, most, time };
        let rows = measure(&self.env, self.target, scenario, lanes).await?;
        appender.close().await.map_err(say)?;
        if rows.iter().any(|row| row.ops < most) {
            return Err(format!("{} MiB cannot be written in {time:?}", self.fill >> 20));
        }
        Ok(rows)
    }

    async fn random_writes(&self, depth: usize) -> Result<Vec<Row>, String> {
        let mut lanes = vec![
            lane("core append", |_| async {
                self.appender.append(&self.small).await.map(drop).map_err(say)
            }),
            lane("volume random write", |_| self.device_write(self.anywhere(SMALL))),
        ];
        if let Some(nbd) = &self.nbd {
            lanes.push(lane("nbd random write", move |_| {
                nbd.write(self.anywhere(SMALL), &self.small)
            }));
        }
        let most = if depth == 1 { WRITES_MAX.0 } else { WRITES_MAX.1 };
        let scenario = Scenario { size: SMALL, depth, most, time: self.time };
        measure(&self.env, self.target, scenario, lanes).await
    }

    async fn device_write(&self, offset: u64) -> Result<(), String> {
        self.device.write(offset, self.small.clone()).await.map_err(say)
    }

    async fn reads(&self, size: usize, depth: usize, random: bool) -> Result<Vec<Row>, String> {
        let reader = self.file.reader();
        let place = move |n: u64| match random {
            true => self.anywhere(size),
            false => n * size as u64 % self.fill,
        };
        let reader = &reader;
        let mut lanes = vec![
            lane(if random { "core random read" } else { "core read" }, move |n| async move {
                let bytes = reader.read_at(place(n), size).await.map_err(say)?;
                if bytes.len() == size { Ok(()) } else { Err("a short read".to_owned()) }
            }),
            lane(if random { "volume random read" } else { "volume read" }, move |n| async move {
                let extent = Extent { offset: place(n), len: size as u64 };
                self.device.read(extent).await.map(drop).map_err(say)
            }),
        ];
        if let Some(nbd) = &self.nbd {
            let kind = if random { "nbd random read" } else { "nbd read" };
            lanes.push(lane(kind, move |n| nbd.read(place(n), size)));
        }
        let scenario = Scenario { size, depth, most: u64::MAX, time: self.time };
        measure(&self.env, self.target, scenario, lanes).await
    }

    /// A random place in what was filled.
    fn anywhere(&self, size: usize) -> u64 {
        self.env.random_below(self.fill / size as u64) * size as u64
    }
}

fn lane<'a, F>(kind: &'static str, work: impl Fn(u64) -> F + 'a) -> Lane<'a>
where
    F: Future<Output = Result<(), String>> + 'a,
{
    let work: Work<'a> = Box::new(move |n| Box::pin(work(n)));
    Lane::new(kind, work)
}

/// Makes `count` volumes, some at a time, and removes them.
async fn creations(
    managers: &Managers,
    tag: u64,
    (copies, count): (u8, u32),
) -> Result<Row, String> {
    let env = managers.client().env();
    let began = env.now();
    let lanes = (0..CREATE_DEPTH).map(|lane| async move {
        let (mut latencies, mut made) = (Latencies::default(), Vec::new());
        for n in (lane..count as usize).step_by(CREATE_DEPTH) {
            let started = env.now();
            let name = format!(".bench-create-{tag:016x}-{n}");
            made.push(create(managers, &name, copies).await?);
            latencies.add(env.now() - started);
        }
        Ok::<_, String>((latencies, made))
    });
    let done = join_all(lanes).await;
    let busy = env.now() - began;
    let mut all = Latencies::default();
    for lane in done {
        let (latencies, made) = lane?;
        all.merge(latencies);
        for volume in made {
            let request = BlockRequest::Remove { volume, force: true };
            managers.ask(request).await.map_err(say)?;
        }
    }
    let kind = Some("create volume".to_owned());
    let mut row = Row { kind, depth: CREATE_DEPTH, ..Row::default() };
    all.fill(&mut row, busy);
    Ok(row)
}
