//! Openings of snapshots, which take no changes.

use base::Kind;
use block_segment::{Options, Segment};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use runtime::{Duration, Env};
use testing::tables::MemDisk;

use crate::device::support::{BYTES, IDENTITY, World, on, open, shared, small};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 16;
const SNAPSHOT: Identity = Identity { volume: 101, ..IDENTITY };

/// Links a snapshot with some blocks; returns its directory.
async fn snapshot(env: &Env, disk: &MemDisk) -> MemDisk {
    let segment = open(env, disk, 1, small()).await.unwrap();
    for lba in 0..BLOCKS {
        let data = env.pool().copy_of(&[lba as u8 + 1; BLOCK as usize]).unwrap();
        segment.write(lba * BLOCK, data).await.unwrap();
    }
    segment.cut(1, Duration::from_secs(1)).await.unwrap();
    segment.release(1, true).unwrap();
    let target = disk.beside("snapshot");
    segment.link(1, target.store(env), SNAPSHOT).await.unwrap();
    segment.close().await.unwrap();
    target
}

/// Opens the snapshot for 200 ms, reads a block of it, and returns the number of its DataFiles.
async fn open_for_a_while(env: &Env, disk: &MemDisk, epoch: u64, options: Options) -> usize {
    let (what, is_read_only) = ((SNAPSHOT, BYTES, epoch), options.read_only);
    let opened = Segment::open(env, disk.store(env), &shared(), what, options).await.unwrap();
    env.sleep(Duration::from_millis(200)).await;
    let lba = epoch % BLOCKS;
    let read = opened.read(Extent { offset: lba * BLOCK, len: BLOCK }).await.unwrap();
    assert!(read.iter().all(|byte| u64::from(*byte) == lba + 1));
    if is_read_only {
        let data = env.pool().copy_of(&[0; BLOCK as usize]).unwrap();
        assert_eq!(opened.write(0, data).await.unwrap_err().kind, Kind::Invalid);
    }
    let files = opened.stats().files;
    opened.close().await.unwrap();
    files
}

fn data_files(disk: &MemDisk) -> usize {
    disk.names().iter().filter(|name| name.starts_with("data-")).count()
}

#[test]
fn snapshot_that_is_opened_again_and_again_keeps_its_number_of_files() {
    let world = World::new(61);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let snapshot = snapshot(&at, &disk).await;
        let linked = data_files(&snapshot);
        for epoch in 1..=10 {
            let options = Options { read_only: true, ..small() };
            let files = open_for_a_while(&at, &snapshot, epoch, options).await;
            assert_eq!((files, data_files(&snapshot)), (linked, linked), "opening {epoch}");
        }
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// Older programs made a DataFile in each opening of a snapshot.
#[test]
fn empty_files_of_a_snapshot_are_removed_by_its_next_opening() {
    let world = World::new(62);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let snapshot = snapshot(&at, &disk).await;
        let linked = data_files(&snapshot);
        for epoch in 1..=5 {
            let options = Options { collect: false, ..small() };
            open_for_a_while(&at, &snapshot, epoch, options).await;
        }
        assert_eq!(data_files(&snapshot), linked + 5);
        let options = Options { read_only: true, ..small() };
        let files = open_for_a_while(&at, &snapshot, 6, options).await;
        assert_eq!((files, data_files(&snapshot)), (linked, linked));
    };
    world.run(async { on(&env, work).await.unwrap() });
}
