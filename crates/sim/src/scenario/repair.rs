//! Losses that redundancy allows, at the worst places; each is repaired without an operator.
//!
//! - Chunks opened while servers are down get all copies soon after those are back, whether their
//!   writers append or not.
//! - Two replicas of each chunk have an unreadable sector each, at different places, and the server
//!   of the third is dead: no byte is lost.
//! - A writer vanishes, and no reader asks for its file: the tail is sealed.
//! - The third of three servers never saw a chunk's creation; another one and the writer die, and the
//!   masters' leader while the third is filled: the file is opened again on two servers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use base::limits::SECTOR;
use base::{ChunkId, MIB};
use chunkstore::ChunkStore;
use client::{Appender, Client};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env, JoinHandle, OpenOptions};
use wire::control::{ChunkPlace, Compression, Policy, ReplicaPlace};
use wire::data::ReplicaState;
use wire::row::{Row, row_at};
use wire::sector::{Footer, SectorKind, parse_footer};

use super::append::{check_content, check_end, open_again};
use crate::cluster::{Cluster, Shape};
use crate::oracle::Oracle;
use crate::tuning::Tuning;

const APPEND_MAX: u64 = 20_000;
const TIMEOUT: Duration = Duration::from_secs(180);
/// Full redundancy is back so long after it became possible.
const WHOLE_WITHIN: Duration = Duration::from_secs(20);
/// A file is opened again within this time, on the servers that are left.
const OPENED_WITHIN: Duration = Duration::from_secs(60);
/// A tail whose writer is gone is sealed within this time.
const SEALED_WITHIN: Duration = Duration::from_secs(60);

struct Act {
    sim: Sim,
    cluster: Cluster,
    oracle: Oracle,
}

/// Events of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// Chunks are opened while servers are down.
    Short,
    /// Unreadable sectors on two replicas, and a dead server.
    Latent,
    /// A writer vanishes.
    Quiet,
    /// Of three servers one never saw the creation, and another one dies with the writer.
    Three,
}

pub(super) async fn run(sim: Sim, loss: Loss) -> Result<(), String> {
    let tuning = Tuning::draw(&sim);
    let servers = if matches!(loss, Loss::Three) { 3 } else { Shape::default().servers };
    let shape = Shape { servers, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let act = Act { sim: sim.clone(), cluster, oracle: Oracle::new() };
    match loss {
        Loss::Short => act.short().await,
        Loss::Latent => act.latent().await,
        Loss::Quiet => act.quiet().await,
        Loss::Three => act.three().await,
    }?;
    let Act { cluster, oracle, .. } = act;
    check_end(&cluster, &oracle, TIMEOUT).await
}

impl Act {
    fn draw(&self, low: u64, high: u64) -> u64 {
        self.sim.with_rng(|rng| rng.between(low, high))
    }

    /// Runs `task` on the client's host.
    async fn on<T: 'static>(
        &self,
        client: &Client,
        task: impl Future<Output = Result<T, String>> + 'static,
    ) -> Result<T, String> {
        let task = client.env().spawn(Class::Foreground, "client", task);
        task.await.unwrap_or_else(|_| Err("the client's host went down".to_owned()))
    }

    /// A file that is open for append, with `appends` of mixed sizes.
    async fn write(
        &self,
        client: &Client,
        path: &str,
        appends: u64,
        policy: Policy,
    ) -> Result<Appender, String> {
        let seed = self.draw(1, u64::MAX);
        let (oracle, inner, path) = (self.oracle.clone(), client.clone(), path.to_owned());
        let lens: Vec<usize> = (0..appends)
            .map(|_| {
                let most = self.sim.with_rng(|rng| *rng.pick(&[200, 5_000, APPEND_MAX]));
                self.draw(1, most) as usize
            })
            .collect();
        self.on(client, async move {
            let text = |error: client::Error| format!("{path}: {error}");
            let file = inner.create(&path, policy, 0o644, false).await.map_err(text)?;
            let appender = file.append_handle().await.map_err(text)?;
            oracle.opened(&path, appender.epoch(), appender.acked_len(), seed)?;
            append(&oracle, &appender, &path, &lens).await?;
            Ok(appender)
        })
        .await
    }

    /// Chunks opened while three of five servers are down, by writers that append, are idle, or
    /// have not begun.
    async fn short(&self) -> Result<(), String> {
        let first = self.draw(0, 4) as usize;
        let down: Vec<_> = (0..3).map(|at| (first + at) % 5).collect();
        down.iter().for_each(|&index| self.cluster.crash_server(index, CrashMode::Process));
        self.sim.sleep(Duration::from_secs(3)).await;
        let (host, client) = self.cluster.client(None).await.map_err(|e| e.to_string())?;
        let idle = self.write(&client, "/idle", 20, Policy::strict(3)).await?;
        let busy = self.write(&client, "/busy", 20, Policy::plain(3, 2)).await?;
        let empty = self.write(&client, "/empty", 0, Policy::strict(3)).await?;
        let view = self.cluster.until_whole(Duration::from_secs(2)).await;
        if view.is_ok() {
            return Err("three copies on two servers".to_owned());
        }
        down.iter().for_each(|&index| self.cluster.boot_server(index));
        let end = self.sim.elapsed() + WHOLE_WITHIN;
        let appends = {
            let (sim, oracle) = (self.sim.clone(), self.oracle.clone());
            client.env().spawn(Class::Foreground, "busy writer", async move {
                while sim.elapsed() < end {
                    append(&oracle, &busy, "/busy", &[100]).await?;
                    sim.sleep(Duration::from_millis(200)).await;
                }
                Ok::<_, String>(busy)
            })
        };
        self.cluster.until_whole(WHOLE_WITHIN).await?;
        let busy = appends.await.unwrap_or_else(|_| Err("the writer is gone".to_owned()))?;
        self.on(&client, async move {
            for writer in [idle, busy, empty] {
                writer.close().await.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
        .await?;
        self.sim.crash(host, CrashMode::Process);
        Ok(())
    }

    async fn latent(&self) -> Result<(), String> {
        let (host, client) = self.cluster.client(None).await.map_err(|e| e.to_string())?;
        let mut chunks = Vec::new();
        // The last one is a few cells, so that both sectors of a chunk are often of one of them.
        let rows = Policy::strict(3).compressed(Some(Compression::LZ4));
        let plain = Policy::strict(3);
        for (path, policy) in [("/a", plain), ("/b", plain), ("/c", plain), ("/d", rows)] {
            let appends = if policy == rows { self.draw(1, 3) } else { self.draw(20, 60) };
            let writer = self.write(&client, path, appends, policy).await?;
            let inner = client.clone();
            let view = self.on(&client, async move {
                writer.close().await.map_err(|error| error.to_string())?;
                let file = inner.open(path).await.map_err(|error| error.to_string())?;
                file.chunks().await.map_err(|error| error.to_string())
            });
            chunks.extend(view.await?.chunks);
        }
        self.cluster.until_whole(TIMEOUT).await?;
        let dead = self.draw(0, 4) as usize;
        for chunk in &chunks {
            self.spoil(chunk, dead).await?;
        }
        // Scrub finds some first, copies find others.
        self.sim.sleep(Duration::from_millis(self.draw(0, 8_000))).await;
        self.cluster.crash_server(dead, CrashMode::Power);
        // Before anything is repaired: all bytes are there, a sector here and a sector there.
        check_content(&self.cluster, &self.oracle).await?;
        // Four servers are there: enough for three copies of all that there is.
        self.sim.sleep(Duration::from_secs(20)).await;
        self.cluster.until_whole(TIMEOUT).await?;
        check_content(&self.cluster, &self.oracle).await?;
        self.cluster.boot_server(dead);
        self.sim.crash(host, CrashMode::Process);
        Ok(())
    }

    /// Makes a sector unreadable on each replica of the chunk but the one on server `dead`: on each
    /// another one.
    async fn spoil(&self, chunk: &ChunkPlace, dead: usize) -> Result<(), String> {
        let len = chunk.sealed.ok_or("a closed file has an open chunk")?;
        let server = |replica: &ReplicaPlace| {
            let disks = |at: usize| self.cluster.stores(at).into_iter().map(|(disk, _)| disk);
            (0..5).find(|&at| disks(at).any(|disk| disk == replica.disk))
        };
        let live: Vec<_> =
            chunk.replicas.iter().filter_map(server).filter(|&at| at != dead).collect();
        let mut spoilt = None;
        let half = u64::from(len / 2);
        let first = self.draw(0, half.saturating_sub(4_096));
        // The other one is in the second half, or near: perhaps in the same row.
        let near = (first + self.draw(4_096, 16_000)).min(u64::from(len) - 1);
        let second = half + self.draw(0, half.saturating_sub(4_096));
        let second = if self.draw(0, 1) == 0 { near } else { second };
        // If the dead server has none, one replica stays whole.
        for (&server, offset) in live.iter().zip([first, second]) {
            let host = self.cluster.servers()[server];
            let found = find_sector(&self.sim, host, chunk.chunk, offset as u32).await?;
            // A small row may have one sector: it stays on one of them.
            if spoilt.replace(found.sector) != Some(found.sector) {
                self.sim.make_unreadable(host, &Cluster::disk_path(0), found.place);
            }
        }
        Ok(())
    }

    async fn quiet(&self) -> Result<(), String> {
        let (host, client) = self.cluster.client(None).await.map_err(|e| e.to_string())?;
        let policy = Policy::plain(3, self.draw(2, 3) as u8);
        let writer = self.write(&client, "/quiet", 30, policy).await?;
        self.sim.crash(host, CrashMode::Power);
        drop(writer);
        let (host, client) = self.cluster.client(None).await.map_err(|e| e.to_string())?;
        let end = self.sim.elapsed() + SEALED_WITHIN;
        loop {
            let inner = client.clone();
            let view = self.on(&client, async move {
                let file = inner.open("/quiet").await.map_err(|error| error.to_string())?;
                file.chunks().await.map_err(|error| error.to_string())
            });
            if !view.await?.open {
                self.sim.crash(host, CrashMode::Process);
                return Ok(());
            }
            if self.sim.elapsed() > end {
                return Err(format!("its tail is open after {SEALED_WITHIN:?}"));
            }
            self.sim.sleep(Duration::from_millis(500)).await;
        }
    }
}

impl Act {
    /// The third of three servers never sees the creation of a chunk. Its writer dies, and one of the
    /// two servers that hold the chunk; the masters' leader dies when the third begins to be filled.
    async fn three(&self) -> Result<(), String> {
        const PATH: &str = "/three";
        let (host, client) = self.cluster.client(None).await.map_err(|e| e.to_string())?;
        let writer = self.write(&client, PATH, 0, Policy::plain(3, 2)).await?;
        let third = self.draw(0, 2) as usize;
        let unseen = self.cluster.servers()[third];
        self.sim.set_blocked(host, unseen, true);
        self.sim.set_blocked(unseen, host, true);
        let lens = [self.draw(1, 400_000) as usize, self.draw(1, 400_000) as usize];
        let oracle = self.oracle.clone();
        let appended = async move { append(&oracle, &writer, PATH, &lens).await };
        self.on(&client, appended).await?;
        self.sim.crash(host, CrashMode::Power);
        let dead = (third + 1 + self.draw(0, 1) as usize) % 3;
        self.cluster.crash_server(dead, CrashMode::Power);
        let (host, client) = self.cluster.client(None).await.map_err(|e| e.to_string())?;
        let seed = self.draw(1, u64::MAX);
        let oracle = self.oracle.clone();
        let opening = open_again(client.clone(), oracle, PATH.to_owned(), seed, OPENED_WITHIN);
        let mut opening = client.env().spawn(Class::Foreground, "opening", opening);
        self.fail_over_while_filled(third, &opening).await;
        let opened = (&mut opening).await;
        opened.unwrap_or_else(|_| Err("the client's host went down".to_owned()))?;
        self.cluster.boot_all();
        self.sim.crash(host, CrashMode::Process);
        Ok(())
    }

    /// The leader dies as soon as a replica of which there was a tombstone has units.
    async fn fail_over_while_filled<T>(&self, server: usize, opening: &JoinHandle<T>) {
        let mut fenced = BTreeSet::new();
        while !opening.is_finished() {
            self.sim.sleep(Duration::from_micros(50)).await;
            for (_, store) in self.cluster.stores(server) {
                for info in store.list(None, 100) {
                    match info.stat.state {
                        ReplicaState::Tombstone => drop(fenced.insert(info.chunk)),
                        ReplicaState::Sealed => {}
                        _ if fenced.contains(&info.chunk) => {
                            let Some(leader) = self.cluster.leading_master() else { continue };
                            self.cluster.crash_master(leader, CrashMode::Power);
                            self.sim.mark("repair: leader dies while a tombstone is filled");
                            self.sim.sleep(Duration::from_millis(self.draw(0, 3_000))).await;
                            self.cluster.boot_master(leader);
                            return;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

async fn append(
    oracle: &Oracle,
    appender: &Appender,
    path: &str,
    lens: &[usize],
) -> Result<(), String> {
    for &len in lens {
        let data = oracle.next(path, appender.epoch(), len);
        let offset = appender.append(&data).await.map_err(|error| format!("{path}: {error}"))?;
        oracle.acked(path, appender.epoch(), offset + len as u64)?;
    }
    Ok(())
}

/// The sector with byte `offset` of a chunk on the medium of a server.
async fn find_sector(
    sim: &Sim,
    host: HostId,
    chunk: ChunkId,
    offset: u32,
) -> Result<Found, String> {
    let env = sim.env(host).ok_or("the server is down")?;
    let path = Cluster::disk_path(0);
    let find = async move {
        let at = Sought { chunk, offset, part: None };
        match find_in_file(&env, &path, at).await? {
            // A cell's sectors are at hand one by one, and the row's bytes spread over them.
            Some(Found { row: Some(row), .. }) => {
                let within = u64::from(offset - row.offset) * u64::from(row.sectors());
                let part = Some((within / u64::from(row.len)) as u16);
                find_in_file(&env, &path, Sought { chunk, offset: row.offset, part }).await
            }
            found => Ok(found),
        }
    };
    let env = sim.env(host).ok_or("the server is down")?;
    let found = env.spawn(Class::Background, "find a sector", find).await;
    let found: Option<Found> = found.map_err(|_| "the server is down")??;
    found.ok_or_else(|| format!("byte {offset} of {chunk} is not on its disk"))
}

/// A sector on a medium.
struct Found {
    place: u64,
    /// Offset in the chunk, and index in its cell: the same on all replicas.
    sector: (u32, u16),
    /// The row whose cell it begins.
    row: Option<Row>,
}

/// A sector that is sought on a medium.
struct Sought {
    chunk: ChunkId,
    /// A byte that it holds, or whose row it begins; with `part` the offset of the row.
    offset: u32,
    /// Its index in the row's cell.
    part: Option<u16>,
}

impl Sought {
    fn is(&self, footer: &Footer, row: Option<&Row>) -> bool {
        let len = row.map_or(u32::from(footer.len), |row| row.len);
        let is_part = match (footer.kind, self.part) {
            (SectorKind::Row(part), Some(index)) => {
                footer.offset == self.offset && part.index == index
            }
            (SectorKind::Row(_), None) if row.is_none() => false,
            _ => (footer.offset..footer.offset + len).contains(&self.offset),
        };
        footer.chunk == self.chunk && is_part
    }
}

async fn find_in_file(
    env: &Env,
    path: impl AsRef<Path>,
    sought: Sought,
) -> Result<Option<Found>, String> {
    let text = |error: std::io::Error| error.to_string();
    let file = env.open_file(path.as_ref(), OpenOptions::READ).await.map_err(text)?;
    let len = file.len().await.map_err(text)?;
    let mut start = 0;
    let mut step = MIB;
    while start < len {
        let buf = env.pool().alloc(step as usize).map_err(|error| error.to_string())?;
        let (read, buf) = file.read_at(start, buf).await;
        let Ok(read) = read else {
            // A sector in it was spoilt before: around it one by one.
            (start, step) = if step == MIB { (start, SECTOR as u64) } else { (start + step, step) };
            continue;
        };
        for (index, sector) in buf[..read].chunks_exact(SECTOR).enumerate() {
            let Ok(footer) = parse_footer(sector) else { continue };
            let row = row_at(sector).ok();
            if sought.is(&footer, row.as_ref()) {
                let part = match footer.kind {
                    SectorKind::Row(part) => part.index,
                    _ => 0,
                };
                let place = start + (index * SECTOR) as u64;
                return Ok(Some(Found { place, sector: (footer.offset, part), row }));
            }
        }
        start += step;
        if start.is_multiple_of(MIB) {
            step = MIB;
        }
    }
    Ok(None)
}
