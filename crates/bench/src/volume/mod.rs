//! `craton bench volume`: a block volume through the block client and through NBD, beside the
//! core's own appends and reads (`protocols.md` 7).

mod clones;
mod lane;
mod make;
mod nbd;
mod options;
mod parts;
mod segment;
mod takeover;

pub use options::VolumeOptions;
pub use parts::{LeftOut, Parts, VolumePart};

use std::rc::Rc;
use std::time::Duration;

use block_client::VolumeExports;
use block_proto::Managers;
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use client::{Appender, Client, FlatLogFile};
use lane::{Lane, Scenario, Work, measure};
use make::{create, creations, remove};
use nbd::Nbd;
use options::{LARGE, LARGE_DEPTH, SMALL, noise};
use runtime::{Buf, Env};

use super::{Error, Processes, Report, Row};

/// Random writes of a lane at most, at depth 1 and above: about 100 and 230 MB on three disks.
const WRITES_MAX: (u64, u64) = (4_000, 16_000);

/// Measures volumes of its own, which are removed. An error when an operation fails, or when a part
/// that is asked for by its name cannot be measured.
pub async fn volume(
    client: &Client,
    exports: &VolumeExports,
    processes: &dyn Processes,
    options: &VolumeOptions,
) -> Result<Report, Error> {
    let parts = &options.parts;
    let mut report = Report { left_out: parts.left_out(), ..Report::new("volume", Vec::new()) };
    let managers = Managers::new(client);
    let part = VolumePart::Takeover;
    let objection = match parts.has(part) {
        true => takeover::objection(exports, processes).await?,
        false => None,
    };
    if let Some(why) = objection.as_ref().filter(|_| !parts.lenient) {
        return Err(Error::Failed(format!("takeover cannot be measured: {why}")));
    }
    if parts.has_any(&OF_VOLUMES) {
        report.results.extend(of_volumes(&managers, exports, processes, options).await?);
    }
    if parts.has(part) && objection.is_none() {
        let rows = takeover::takeover(&managers, exports, processes, options).await?;
        report.results.extend(rows);
    }
    report.left_out.extend(objection.map(|why| LeftOut { part, why: Some(why) }));
    if parts.has(VolumePart::Recovery) {
        let bytes = options.takeover_mib << 20;
        report.results.extend(segment::recovery(client, options.policy, bytes).await?);
    }
    if parts.has(VolumePart::Collection) {
        let mib = options.fill_mib;
        report.results.extend(segment::collection(client, options.policy, mib).await?);
    }
    Ok(report)
}

/// The parts that work on a volume with the fill.
const OF_VOLUMES: [VolumePart; 4] =
    [VolumePart::Sequential, VolumePart::Reads, VolumePart::Writes, VolumePart::Creates];

async fn of_volumes(
    managers: &Managers,
    exports: &VolumeExports,
    processes: &dyn Processes,
    options: &VolumeOptions,
) -> Result<Vec<Row>, Error> {
    let client = managers.client();
    let tag = client.env().random_u64();
    // One for each way: a client that has a volume alone reads at leased locations (decision 24).
    let mut names = vec![format!(".bench-volume-{tag:016x}")];
    names.extend(options.nbd.map(|_| format!(".bench-nbd-volume-{tag:016x}")));
    let mut made = Vec::new();
    let measured = async {
        for name in &names {
            made.push(create(managers, name, options.policy).await?);
        }
        let device = exports.open(&names[0]).await.map_err(Error::failed)?;
        let nbd = match options.nbd {
            Some(addr) => Some(Nbd::open(client.env(), addr, &names[1]).await?),
            None => None,
        };
        let mut rows = requests(client, (&device, nbd), tag, processes, options).await?;
        if options.creates > 0 && options.parts.has(VolumePart::Creates) {
            let how = (options.policy, options.creates);
            rows.push(creations(managers, tag, how).await?);
            rows.extend(clones::clones(managers, exports, tag, how).await?);
        }
        Ok(rows)
    };
    let measured: Result<Vec<Row>, Error> = measured.await;
    let mut gone = Ok(());
    for volume in made {
        gone = gone.and(remove(managers, volume).await);
    }
    let rows = measured?;
    gone.map(|()| rows)
}

/// Volumes and options of the lanes of requests.
struct Bench<'a> {
    env: Env,
    processes: &'a dyn Processes,
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
    processes: &dyn Processes,
    options: &VolumeOptions,
) -> Result<Vec<Row>, Error> {
    let env = client.env().clone();
    let policy = options.policy;
    let paths = ["small", "large"].map(|what| format!("/.bench-volume-{what}-{tag:016x}"));
    let make =
        async |path: &str| client.create(path, policy, 0o644, true).await.map_err(Error::failed);
    let (appends, file) = (make(&paths[0]).await?, make(&paths[1]).await?);
    let bench = Bench {
        env: env.clone(),
        processes,
        device: device.clone(),
        nbd,
        appender: appends.append_handle().await.map_err(Error::failed)?,
        file,
        fill: options.fill_mib << 20,
        small: noise(&env, SMALL)?,
        large: noise(&env, LARGE)?,
        time: options.duration,
        parts: &options.parts,
    };
    let measured = bench.run().await;
    let Bench { appender, .. } = bench;
    appender.close().await.map_err(Error::failed)?;
    for path in &paths {
        client.unlink(path).await.map_err(Error::failed)?;
    }
    measured
}

impl Bench<'_> {
    async fn run(&self) -> Result<Vec<Row>, Error> {
        let mut rows = self.fill().await?;
        // While the data is in the order of its writing: random writes scatter it.
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
    async fn fill(&self) -> Result<Vec<Row>, Error> {
        let most = self.fill / LARGE as u64;
        let appender = self.file.append_handle().await.map_err(Error::failed)?;
        let mut lanes = vec![
            lane("core append", |_| async {
                appender.append(&self.large).await.map(drop).map_err(Error::failed)
            }),
            lane("volume write", |n| async move {
                self.device.write(n * LARGE as u64, self.large.clone()).await.map_err(Error::failed)
            }),
        ];
        if let Some(nbd) = &self.nbd {
            lanes.push(lane("nbd write", move |n| nbd.write(n * LARGE as u64, &self.large)));
        }
        // Enough for all of it: it is read later on.
        let time = Duration::from_secs(15);
        let scenario = Scenario { size: LARGE, depth: LARGE_DEPTH, most, time };
        let rows = measure(&self.env, self.processes, scenario, lanes).await?;
        appender.close().await.map_err(Error::failed)?;
        if rows.iter().any(|row| row.ops < most) {
            let late = format!("{} MiB cannot be written in {time:?}", self.fill >> 20);
            return Err(Error::Failed(late));
        }
        Ok(rows)
    }

    async fn random_writes(&self, depth: usize) -> Result<Vec<Row>, Error> {
        let mut lanes = vec![
            lane("core append", |_| async {
                self.appender.append(&self.small).await.map(drop).map_err(Error::failed)
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
        measure(&self.env, self.processes, scenario, lanes).await
    }

    async fn device_write(&self, offset: u64) -> Result<(), Error> {
        self.device.write(offset, self.small.clone()).await.map_err(Error::failed)
    }

    async fn reads(&self, size: usize, depth: usize, random: bool) -> Result<Vec<Row>, Error> {
        let reader = self.file.reader();
        let place = move |n: u64| match random {
            true => self.anywhere(size),
            false => n * size as u64 % self.fill,
        };
        let reader = &reader;
        let mut lanes = vec![
            lane(if random { "core random read" } else { "core read" }, move |n| async move {
                let bytes = reader.read_at(place(n), size).await.map_err(Error::failed)?;
                if bytes.len() == size { Ok(()) } else { Err(Error::failed("a short read")) }
            }),
            lane(if random { "volume random read" } else { "volume read" }, move |n| async move {
                let extent = Extent { offset: place(n), len: size as u64 };
                self.device.read(extent).await.map(drop).map_err(Error::failed)
            }),
        ];
        if let Some(nbd) = &self.nbd {
            let kind = if random { "nbd random read" } else { "nbd read" };
            lanes.push(lane(kind, move |n| nbd.read(place(n), size)));
        }
        let scenario = Scenario { size, depth, most: u64::MAX, time: self.time };
        measure(&self.env, self.processes, scenario, lanes).await
    }

    /// A random offset in the filled range.
    fn anywhere(&self, size: usize) -> u64 {
        self.env.random_below(self.fill / size as u64) * size as u64
    }
}

fn lane<'a, F>(kind: &'static str, work: impl Fn(u64) -> F + 'a) -> Lane<'a>
where
    F: Future<Output = Result<(), Error>> + 'a,
{
    let work: Work<'a> = Box::new(move |n| Box::pin(work(n)));
    Lane::new(kind, work)
}
