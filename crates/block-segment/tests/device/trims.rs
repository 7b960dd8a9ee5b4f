//! Bursts of trims: their records are small, so one append and one tail hold very many of them.

use base::GIB;
use block_segment::limits::TXN_UPDATES_MAX;
use block_segment::{Options, Segment, Shared};
use block_volume::contract::{Clear, Device};
use block_volume::geometry::Extent;
use futures_util::future::join_all;
use runtime::Env;
use runtime::sim::CrashMode;
use table::Cache;
use testing::tables::MemDisk;

use super::support::{IDENTITY, World, on, shared, small};

const BLOCK: u64 = 4096;
/// Trims of a burst: more than one batch of the TxnFile has, and one append would have them all.
const TRIMS: u64 = TXN_UPDATES_MAX as u64 + 4000;
const BYTES: u64 = 2 * TRIMS * BLOCK;

async fn open(env: &Env, disk: &MemDisk, epoch: u64) -> Segment {
    let options = Options { file_bytes: 8 << 20, txn_updates: TXN_UPDATES_MAX, ..small() };
    let what = (IDENTITY, BYTES, epoch);
    let opened = Segment::open(env, disk.store(env), &shared(), what, options).await;
    opened.unwrap_or_else(|fault| panic!("epoch {epoch}: {fault}"))
}

async fn write(env: &Env, segment: &Segment, lba: u64) {
    let data = env.pool().copy_of(&[7; BLOCK as usize]).unwrap();
    segment.write(lba * BLOCK, data).await.unwrap();
}

/// Every second block is trimmed, so that no two trims are one; the last of them has data.
async fn burst(env: &Env, segment: &Segment) {
    let last = 2 * (TRIMS - 1);
    write(env, segment, last).await;
    write(env, segment, last + 1).await;
    let trim = |n| segment.clear(Extent { offset: 2 * n * BLOCK, len: BLOCK }, Clear::Trim);
    for trimmed in join_all((0..TRIMS).map(trim)).await {
        trimmed.unwrap();
    }
}

async fn check(segment: &Segment) {
    let last = Extent { offset: 2 * (TRIMS - 1) * BLOCK, len: 2 * BLOCK };
    let data = segment.read(last).await.unwrap();
    assert!(data[..BLOCK as usize].iter().all(|&byte| byte == 0), "a trim is lost");
    assert!(data[BLOCK as usize..].iter().all(|&byte| byte == 7), "a write is lost");
}

/// Issue 10, 3.3: the burst became one batch of the TxnFile that no opening could read.
#[test]
fn a_segment_closed_after_a_burst_of_trims_opens_again() {
    let world = World::new(61);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1).await;
        burst(&at, &segment).await;
        segment.close().await.unwrap();
        for epoch in 2..4 {
            let segment = open(&at, &disk, epoch).await;
            check(&segment).await;
            segment.close().await.unwrap();
        }
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// The same by recovery: the tail that a crash leaves becomes the first batches of the next owner.
#[test]
fn a_segment_whose_owner_crashed_after_a_burst_of_trims_opens_again_and_again() {
    let world = World::new(62);
    let disk = world.disk.clone();
    world.run(async {
        let (host, env) = world.boot();
        let (at, there) = (env.clone(), disk.clone());
        let first = async move {
            let segment = open(&at, &there, 1).await;
            // Its TxnFile gets no update: the tail has all of it.
            there.with_faults(|faults| faults.stuck = Some("log-"));
            burst(&at, &segment).await;
        };
        on(&env, first).await.unwrap();
        world.sim.crash(host, CrashMode::Process);
        disk.with_faults(|faults| faults.stuck = None);
        for epoch in 2..5 {
            let (host, env) = world.boot();
            let (at, there) = (env.clone(), disk.clone());
            let next = async move {
                let segment = open(&at, &there, epoch).await;
                check(&segment).await;
                segment.close().await.unwrap();
            };
            on(&env, next).await.unwrap();
            world.sim.crash(host, CrashMode::Process);
        }
    });
}

/// An append's changes enter the index in one step, in which nothing else runs. 32 GiB are 16,384 pages.
#[test]
fn trims_of_many_blocks_are_appended_in_pieces() {
    const BYTES: u64 = 32 * GIB;
    const PIECE: u64 = 1000;
    let (marks, world) =
        ([0, 2 * GIB / BLOCK - 1, 2 * GIB / BLOCK, BYTES / BLOCK - 1], World::new(63));
    let disk = world.disk.clone();
    let open = async move |env: &Env, disk: &MemDisk, epoch: u64| {
        let options = Options { scrub_bytes_per_second: 0, ..Options::default() };
        let (what, shared) = ((IDENTITY, BYTES, epoch), Shared::new(Cache::new(1 << 20), 64 << 20));
        let opened = Segment::open(env, disk.store(env), &shared, what, options).await;
        opened.unwrap_or_else(|fault| panic!("epoch {epoch}: {fault}"))
    };
    let check = async move |segment: &Segment| {
        for lba in marks {
            let read = segment.read(Extent { offset: lba * BLOCK, len: BLOCK }).await.unwrap();
            assert!(read.iter().all(|&byte| byte == 0), "block {lba} was trimmed");
        }
    };
    world.run(async {
        let (host, env) = world.boot();
        let (at, there) = (env.clone(), disk.clone());
        let first = async move {
            let segment = open(&at, &there, 1).await;
            for lba in marks {
                write(&at, &segment, lba).await;
            }
            let before = segment.stats().appends;
            segment.clear(Extent { offset: 0, len: BYTES }, Clear::Trim).await.unwrap();
            let appends = segment.stats().appends - before;
            assert!(appends >= 16, "32 GiB are trimmed with {appends} appends");
            check(&segment).await;
            // Most of their blocks are in pages that are covered in part.
            let before = segment.stats().appends;
            let trim = |n| {
                let extent = Extent { offset: n * PIECE * BLOCK, len: PIECE * BLOCK };
                segment.clear(extent, Clear::Trim)
            };
            for trimmed in join_all((0..256).map(trim)).await {
                trimmed.unwrap();
            }
            let appends = segment.stats().appends - before;
            assert!(appends >= 6, "256,000 blocks are trimmed with {appends} appends");
        };
        on(&env, first).await.unwrap();
        world.sim.crash(host, CrashMode::Process);
        let (_, env) = world.boot();
        let (at, there) = (env.clone(), disk.clone());
        let next = async move {
            let segment = open(&at, &there, 2).await;
            check(&segment).await;
            segment.close().await.unwrap();
        };
        on(&env, next).await.unwrap();
    });
}
