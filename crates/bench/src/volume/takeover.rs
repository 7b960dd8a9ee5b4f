//! Waits of clients when a block server is killed: detection, the rest of its lease, recovery by
//! the next owner and retries included, which the recovery alone (`segment`) does not have.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::GIB;
use block_client::VolumeExports;
use block_proto::{Managers, VolumeGeometry};
use block_segment::limits::CHECKPOINT_UPDATES_DEFAULT;
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::limits::{BLOCK, DATA_SECTOR_DEFAULT};
use futures_util::future::{LocalBoxFuture, try_join, try_join_all};
use runtime::{Buf, Env, Instant};

use super::super::{Error, Latencies, Processes, Row};
use super::VolumeOptions;
use super::make::{LOOK, OPEN_WAIT, create_as, remove};
use super::nbd::Nbd;
use super::options::{LARGE, LARGE_DEPTH, SMALL, noise};

/// Bytes of the segment, which is the whole volume.
const SEGMENT: u64 = 32 * GIB;
/// Written before at most: a block server stores a segment's index after 1 GiB of blocks. The rest
/// is for what is written until the server is killed.
const WRITTEN_MAX: u64 = CHECKPOINT_UPDATES_DEFAULT * BLOCK - (64 << 20);
/// Time of the clients' work before the kill, and after it: a takeover is over by then, or it shows.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(4);
/// A sleep of this length is measured beside, as the machine's own delay.
const NAP: Duration = Duration::from_millis(5);
const SLEEP: &str = "takeover: a sleep of 5 ms";
/// Volumes of measurements, which have no users.
const OURS: &str = ".bench-";

/// The reason why a block server of this cluster cannot be killed.
pub(super) async fn objection(
    exports: &VolumeExports,
    processes: &dyn Processes,
) -> Result<Option<String>, Error> {
    let objection = processes.objection()?;
    if objection.is_some() {
        return Ok(objection);
    }
    let mut after: Option<String> = None;
    loop {
        let page = exports.names(after.as_deref()).await.map_err(Error::failed)?;
        if let Some(name) = page.names.iter().find(|name| !name.starts_with(OURS)) {
            return Ok(Some(format!("the cluster has a volume {name}: a block server is killed")));
        }
        after = page.names.last().cloned();
        if !page.more || after.is_none() {
            return Ok(None);
        }
    }
}

/// Kills the block server of a segment while clients read and write it, through the block client
/// and through NBD; a row each. The server is started again.
pub(super) async fn takeover(
    managers: &Managers,
    exports: &VolumeExports,
    processes: &dyn Processes,
    options: &VolumeOptions,
) -> Result<Vec<Row>, Error> {
    let env = managers.client().env();
    let name = format!("{OURS}takeover-{:016x}", env.random_u64());
    let geometry = VolumeGeometry {
        group_bytes: SEGMENT,
        segments_per_group: 1,
        data_sector: DATA_SECTOR_DEFAULT,
    };
    // It is shared: by the block client here, and by the front end.
    let volume = create_as(managers, &name, options.policy, (SEGMENT, geometry, true)).await?;
    let killed = Cell::new(None);
    let measured = async {
        let clients = Clients {
            env: env.clone(),
            device: exports.open(&name).await.map_err(Error::failed)?,
            nbd: match options.nbd {
                Some(addr) => Some(Nbd::open(env, addr, &name).await?),
                None => None,
            },
            written: (options.takeover_mib << 20).min(WRITTEN_MAX),
            small: noise(env, SMALL)?,
            large: noise(env, LARGE)?,
        };
        clients.fill().await?;
        let kill = async {
            env.sleep(BEFORE).await;
            let owners = managers.map(volume).await.map_err(Error::failed)?;
            let owner = owners
                .into_iter()
                .next()
                .ok_or_else(|| Error::failed("the volume has no segment"))?
                .name;
            killed.set(Some(owner.clone()));
            processes.kill_block_server(&owner)?;
            let at = env.now();
            env.sleep(AFTER).await;
            let deadline = env.now() + OPEN_WAIT;
            loop {
                let places = managers.map(volume).await.map_err(Error::failed)?;
                if places.iter().all(|place| place.name != owner && place.serving) {
                    return Ok(at);
                }
                if env.now() > deadline {
                    let left = format!("{owner} was killed, and no other has its segment");
                    return Err(Error::Failed(left));
                }
                env.sleep(LOOK).await;
            }
        };
        clients.run(kill).await
    };
    let measured: Result<Vec<Row>, Error> = measured.await;
    let again = match killed.take() {
        Some(id) => start_again(env, processes, &id).await,
        None => Ok(()),
    };
    let gone = remove(managers, volume).await;
    let rows = measured?;
    again?;
    gone?;
    Ok(rows)
}

async fn start_again(env: &Env, processes: &dyn Processes, id: &str) -> Result<(), Error> {
    let started = processes.start_block_server(env, id).await;
    started.map_err(|why| Error::Failed(format!("{id} was killed and does not start: {why}")))
}

/// When a request ended, and what it took.
type Wait = (Instant, Duration);
type Lane<'a> = LocalBoxFuture<'a, Result<Vec<Wait>, Error>>;

/// Clients that read and write while the block server is killed.
struct Clients {
    env: Env,
    device: Rc<dyn Device>,
    nbd: Option<Nbd>,
    /// Bytes of the segment that were written before, from its start.
    written: u64,
    small: Buf,
    large: Buf,
}

impl Clients {
    async fn fill(&self) -> Result<(), Error> {
        let next = Cell::new(0);
        let lanes = (0..LARGE_DEPTH).map(|_| async {
            while next.get() < self.written {
                let offset = next.replace(next.get() + LARGE as u64);
                self.device.write(offset, self.large.clone()).await.map_err(Error::failed)?;
            }
            Ok::<_, Error>(())
        });
        try_join_all(lanes).await.map(drop)
    }

    /// Works until `kill` has returned the time of the kill.
    async fn run(
        &self,
        kill: impl Future<Output = Result<Instant, Error>>,
    ) -> Result<Vec<Row>, Error> {
        let over = Cell::new(false);
        let mut kinds = vec!["takeover: volume write", "takeover: volume read"];
        let mut lanes: Vec<Lane<'_>> = vec![
            Box::pin(self.lane(&over, async || {
                self.device.write(self.anywhere(), self.small.clone()).await.map_err(Error::failed)
            })),
            Box::pin(self.lane(&over, async || self.read_back().await)),
        ];
        if let Some(nbd) = &self.nbd {
            kinds.extend(["takeover: nbd write", "takeover: nbd read"]);
            lanes.push(Box::pin(
                self.lane(&over, async || nbd.write(self.anywhere(), &self.small).await),
            ));
            lanes.push(Box::pin(self.lane(&over, async || nbd.read(self.anywhere(), SMALL).await)));
        }
        kinds.push(SLEEP);
        lanes.push(Box::pin(self.lane(&over, async || {
            self.env.sleep(NAP).await;
            Ok(())
        })));
        let kill = async {
            let struck = kill.await;
            over.set(true);
            struck
        };
        let began = self.env.now();
        let (waits, struck) = try_join(try_join_all(lanes), kill).await?;
        let elapsed = self.env.now() - began;
        let rows = kinds.into_iter().zip(waits);
        rows.map(|(kind, waits)| row(kind, &waits, struck, elapsed)).collect()
    }

    /// Requests in order, until it is over.
    async fn lane(
        &self,
        over: &Cell<bool>,
        ask: impl AsyncFn() -> Result<(), Error>,
    ) -> Result<Vec<Wait>, Error> {
        let mut waits = Vec::new();
        while !over.get() {
            let began = self.env.now();
            ask().await?;
            waits.push((self.env.now(), self.env.now() - began));
        }
        Ok(waits)
    }

    /// Reads a block, and compares it with the fill or with the writers' bytes.
    async fn read_back(&self) -> Result<(), Error> {
        let offset = self.anywhere();
        let got =
            self.device.read(Extent { offset, len: SMALL as u64 }).await.map_err(Error::failed)?;
        let filled = &self.large[(offset % LARGE as u64) as usize..][..SMALL];
        match got[..] == *filled || got[..] == self.small[..] {
            true => Ok(()),
            false => Err(Error::Failed(format!(
                "the block at {offset} has something else than was written"
            ))),
        }
    }

    fn anywhere(&self) -> u64 {
        self.env.random_below(self.written / SMALL as u64) * SMALL as u64
    }
}

fn row(kind: &str, waits: &[Wait], struck: Instant, elapsed: Duration) -> Result<Row, Error> {
    let after = waits.iter().filter(|(ended, _)| *ended >= struck).map(|&(_, took)| took);
    let longest =
        after.max().ok_or_else(|| Error::Failed(format!("{kind}: none ended after the kill")))?;
    let mut latencies = Latencies::default();
    waits.iter().for_each(|&(_, took)| latencies.add(took));
    let mut row = Row { kind: Some(kind.to_owned()), depth: 1, ..Row::default() };
    row.size = (kind != SLEEP).then_some(SMALL as u64);
    row.longest_ms = Some(longest.as_secs_f64() * 1e3);
    latencies.fill(&mut row, elapsed);
    Ok(row)
}
