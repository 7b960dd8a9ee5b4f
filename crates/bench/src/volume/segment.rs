//! The cost of garbage collection, and the time of a segment's recovery (`protocols.md` 7): on the
//! device of a segment in this process, since both are started at a chosen moment.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{GIB, MIB};
use block_segment::limits::INDEX_MEMORY_DEFAULT;
use block_segment::{Options, Segment, Shared};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use client::Client;
use futures_util::future::try_join_all;
use runtime::{Buf, Env, Rng};
use table::{Cache, ClientStore};
use wire::control::Policy;

use super::super::{Error, Latencies, Row};
use super::options::{LARGE, LARGE_DEPTH, SMALL};

/// Share of the live blocks among all in DataFiles, percent.
const UTILISATION: u32 = 80;
/// Skew of the writes (`protocols.md` 7).
const ZIPF: f64 = 0.99;
/// Overwrites of everything before the measured ones.
const OVERWRITES: u64 = 3;
/// Measured overwrites: with 64 MiB 114,688 writes, of which eleven are slower than the p99.99.
const MEASURED: u64 = 7;
/// Writes under way: while the steady state is reached, and measured.
const DEPTHS: (usize, usize) = (32, 8);
/// DataFiles that the live blocks fill: as many as a segment of 32 GiB has at 512 MiB each.
const DATA_FILES: u64 = 64;
/// Bytes of the segment that is recovered.
const RECOVERED: u64 = 32 * GIB;
const IDENTITY: Identity = Identity { volume: 1, segment: 0 };

/// A directory for one segment.
struct Place<'a> {
    client: &'a Client,
    dir: String,
    policy: Policy,
    shared: Shared,
}

impl<'a> Place<'a> {
    fn new(client: &'a Client, tag: u64, policy: Policy) -> Place<'a> {
        let dir = format!("/.bench-segment-{tag:016x}");
        let shared = Shared::new(Cache::new(64 << 20), INDEX_MEMORY_DEFAULT);
        Place { client, dir, policy, shared }
    }

    async fn open(&self, bytes: u64, epoch: u64, options: Options) -> Result<Segment, Error> {
        let store =
            ClientStore::new(self.client, &self.dir, self.policy).await.map_err(Error::failed)?;
        let (env, which) = (self.client.env(), (IDENTITY, bytes, epoch));
        Segment::open(env, Rc::new(store), &self.shared, which, options)
            .await
            .map_err(Error::failed)
    }

    /// Runs `work` here, and removes its files.
    async fn with<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let done = work.await;
        for entry in self.client.list_all(&self.dir).await.map_err(Error::failed)? {
            let _ = self.client.unlink(&format!("{}/{}", self.dir, entry.name)).await; // Gone by now.
        }
        self.client.rmdir(&self.dir).await.map_err(Error::failed)?;
        done
    }
}

/// Writes `count` times, `depth` at once.
async fn write_many(
    env: &Env,
    segment: &Segment,
    (count, depth): (u64, usize),
    data: &Buf,
    pick: impl Fn(u64) -> u64,
) -> Result<Latencies, Error> {
    let next = Cell::new(0);
    let lanes = (0..depth).map(|_| async {
        let mut latencies = Latencies::default();
        while next.get() < count {
            let n = next.replace(next.get() + 1);
            let started = env.now();
            segment.write(pick(n), data.clone()).await.map_err(Error::failed)?;
            latencies.add(env.now() - started);
        }
        Ok::<_, Error>(latencies)
    });
    let mut all = Latencies::default();
    try_join_all(lanes).await?.into_iter().for_each(|part| all.merge(part));
    Ok(all)
}

/// Draws blocks so that the n-th most popular is drawn 1/n^0.99 times as often as the first.
struct Zipf {
    sums: Vec<f64>,
    /// The blocks by popularity: neighbours are not alike.
    blocks: Vec<u64>,
}

impl Zipf {
    fn new(blocks: u64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=blocks).map(|n| {
            sum += (n as f64).powf(-ZIPF);
            sum
        });
        let (sums, mut rng) = (sums.collect(), Rng::new(11));
        let mut blocks: Vec<u64> = (0..blocks).collect();
        for n in (1..blocks.len()).rev() {
            blocks.swap(n, rng.below(n as u64 + 1) as usize);
        }
        Zipf { sums, blocks }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let part = rng.below(1 << 53) as f64 / (1u64 << 53) as f64;
        let at = self.sums.partition_point(|sum| *sum < part * self.sums[self.sums.len() - 1]);
        self.blocks[at.min(self.blocks.len() - 1)]
    }
}

/// Random writes in a steady state with garbage collection, beside the same without: the copies,
/// and the longest latencies. `mib` is the size of the segment.
pub(super) async fn collection(
    client: &Client,
    policy: Policy,
    mib: u64,
) -> Result<Vec<Row>, Error> {
    let env = client.env();
    let mut noise = vec![0; SMALL];
    Rng::new(3).fill(&mut noise);
    // Every other sixteen bytes are alike: LZ4 saves about half.
    let mut half = noise.clone();
    half.chunks_exact_mut(32).for_each(|part| part[..16].fill(7));
    let noise = env.pool().copy_of(&noise).map_err(Error::failed)?;
    let half = env.pool().copy_of(&half).map_err(Error::failed)?;
    let lanes = [
        ("without collection", &noise, false, 0),
        ("with collection", &noise, true, OVERWRITES),
        ("with it, compressible", &half, true, OVERWRITES),
    ];
    let mut rows: Vec<Row> = Vec::new();
    for (kind, data, collect, overwrites) in lanes {
        let place = Place::new(client, env.random_u64(), policy);
        let file_bytes = (mib * MIB / DATA_FILES).max(MIB);
        let garbage_percent = 100 - UTILISATION;
        let options = Options { garbage_percent, file_bytes, collect, ..Options::default() };
        let mut row = place
            .with(async {
                let segment = place.open(mib * MIB, 1, options).await?;
                let row = steady(env, &segment, mib * MIB, data, overwrites).await?;
                segment.close().await.map_err(Error::failed)?;
                Ok(row)
            })
            .await?;
        row.kind = Some(kind.to_owned());
        row.ratio_tail = rows.first().map(|without| row.tail().1 / without.tail().1.max(1e-9));
        row.tail = Some(row.tail().0);
        rows.push(row);
    }
    Ok(rows)
}

async fn steady(
    env: &Env,
    segment: &Segment,
    bytes: u64,
    data: &Buf,
    overwrites: u64,
) -> Result<Row, Error> {
    let blocks = bytes / SMALL as u64;
    let zipf = Zipf::new(blocks);
    let pick = |n: u64| zipf.draw(&mut Rng::new(n + 1)) * SMALL as u64;
    write_many(env, segment, (blocks, DEPTHS.0), data, |n| n * SMALL as u64).await?;
    write_many(env, segment, (overwrites * blocks, DEPTHS.0), data, pick).await?;
    let (before, began) = (segment.stats(), env.now());
    let skip = overwrites * blocks;
    let count = MEASURED * blocks;
    let times = write_many(env, segment, (count, DEPTHS.1), data, |n| pick(skip + n)).await?;
    let (after, elapsed) = (segment.stats(), env.now() - began);
    let written = (after.append_bytes - before.append_bytes) as f64;
    let copied = (after.collected_bytes - before.collected_bytes) as f64;
    let mut row = Row {
        size: Some(SMALL as u64),
        depth: DEPTHS.1,
        write_amplification: Some((written + copied) / written.max(1.0)),
        live_share: Some(after.live as f64 / after.blocks.max(1) as f64),
        mib_per_s: Some((MEASURED * bytes) as f64 / MIB as f64 / elapsed.as_secs_f64().max(1e-9)),
        ..Row::default()
    };
    times.fill(&mut row, elapsed);
    Ok(row)
}

/// Time of the next owner of a segment of 32 GiB until its first read and write are answered, after
/// `written` bytes since the index was stored last: at random, in requests of 4 KiB and of 128 KiB.
/// It is part of the clients' wait when a block server dies (`takeover`).
pub(super) async fn recovery(
    client: &Client,
    policy: Policy,
    written: u64,
) -> Result<Vec<Row>, Error> {
    let env = client.env();
    let mut rows = Vec::new();
    for (kind, size, depth) in [
        ("recovery, 128 KiB writes", LARGE, LARGE_DEPTH),
        ("recovery, 4 KiB writes", SMALL, DEPTHS.0),
    ] {
        let mut noise = vec![0; size];
        Rng::new(5).fill(&mut noise);
        let data = env.pool().copy_of(&noise).map_err(Error::failed)?;
        let place = Place::new(client, env.random_u64(), policy);
        let took = place.with(recover(env, &place, &data, (written, depth))).await?;
        let mut row = Row { kind: Some(kind.to_owned()), depth: 1, ..Row::default() };
        row.size = Some(size as u64);
        let mut latencies = Latencies::default();
        latencies.add(took);
        latencies.fill(&mut row, took);
        rows.push(row);
    }
    Ok(rows)
}

async fn recover(
    env: &Env,
    place: &Place<'_>,
    data: &Buf,
    (written, depth): (u64, usize),
) -> Result<Duration, Error> {
    let bytes = RECOVERED;
    // Until then nothing is stored, and nothing collected; all changes fit in memory.
    let options = Options { checkpoint_updates: u64::MAX, collect: false, ..Options::default() };
    let first = place.open(bytes, 1, options.clone()).await?;
    let size = data.len() as u64;
    let pick = |n: u64| Rng::new(n + 1).below(bytes / size) * size;
    write_many(env, &first, (written / size, depth), data, pick).await?;
    let stats = first.stats();
    if stats.checkpoints > 0 {
        return Err(Error::failed(
            "the index was stored at the same time: the figure would be too good",
        ));
    }
    let began = env.now();
    let next = place.open(bytes, 2, options).await?;
    let extent = Extent { offset: pick(written / size - 1), len: size };
    if next.read(extent).await.map_err(Error::failed)?[..] != data[..] {
        return Err(Error::failed("the next owner reads something else than what was written"));
    }
    next.write(0, data.clone()).await.map_err(Error::failed)?;
    let took = env.now() - began;
    drop(first); // It lasted until it was fenced, as a server that is cut off does.
    next.close().await.map_err(Error::failed)?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popular_blocks_are_drawn_as_often_as_they_should() {
        let zipf = Zipf::new(1000);
        let mut counts = vec![0u64; 1000];
        let mut rng = Rng::new(7);
        (0..200_000).for_each(|_| counts[zipf.draw(&mut rng) as usize] += 1);
        let (first, second) = (counts[zipf.blocks[0] as usize], counts[zipf.blocks[1] as usize]);
        let ratio = first as f64 / second as f64;
        assert!((1.8..2.2).contains(&ratio), "{first} and {second}");
        counts.sort_unstable();
        let hot: u64 = counts[800..].iter().sum();
        assert!((0.75..0.85).contains(&(hot as f64 / 200_000.0)), "a fifth gets {hot}");
    }
}
