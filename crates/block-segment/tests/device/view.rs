//! Differences between snapshots, from their directories.

use block_segment::{Change, Has, Options, View};
use block_volume::contract::Device;
use block_volume::ids::Identity;
use runtime::{Duration, Env};
use table::{Cache, Table};
use testing::tables::MemDisk;

use super::support::{IDENTITY, World, on, open, small};

const BLOCKS: u64 = 24;
const BLOCK: u64 = 4096;
const HOLD: Duration = Duration::from_secs(1);

/// Opens the segment, writes `value` to blocks from `from` on, and makes a snapshot.
async fn snapshot(env: &Env, disk: &MemDisk, number: u64, (from, value): (u64, u8)) {
    let segment = open(env, disk, number, small()).await.unwrap();
    for lba in from..BLOCKS {
        let data = env.pool().copy_of(&[value; BLOCK as usize]).unwrap();
        segment.write(lba * BLOCK, data).await.unwrap();
    }
    segment.cut(number, HOLD).await.unwrap();
    segment.release(number, true).unwrap();
    let target = disk.beside(&format!("snapshot-{number}")).store(env);
    let to = Identity { volume: 100 + number, ..IDENTITY };
    segment.link(number, target, to).await.unwrap();
    segment.close().await.unwrap();
}

async fn view(env: &Env, disk: &MemDisk, number: u64) -> View {
    View::open(env, disk.beside(&format!("snapshot-{number}")).store(env)).await.unwrap()
}

async fn changes(newer: &mut View, older: &mut View) -> Vec<Change> {
    let (mut found, mut page) = (Vec::new(), Some(0));
    while let Some(from) = page {
        page = newer.changes(Some(older), &mut |change| found.push(change), from).await.unwrap();
    }
    found
}

/// Issue 10, 3.2: a segment that is cut off and made again names its files as its predecessor did.
#[test]
fn differences_of_a_segment_made_again_show_every_block() {
    let world = World::new(51);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        snapshot(&at, &disk, 1, (0, 1)).await;
        let first = disk.names();
        // The volume shrinks and grows: the directory goes with its files and is made again.
        first.iter().for_each(|name| disk.set_content(name, None));
        snapshot(&at, &disk, 2, (0, 2)).await;
        let (mut older, mut newer) = (view(&at, &disk, 1).await, view(&at, &disk, 2).await);
        let all = Change { offset: 0, len: BLOCKS * BLOCK, now: Has::Data, perhaps: true };
        assert_eq!(changes(&mut newer, &mut older).await, [all]);
        let of = |view: &View| view.files().map(|file| file.file).collect::<Vec<_>>();
        assert!(of(&older).iter().all(|file| !of(&newer).contains(file)), "no file is shared");
    };
    world.run(async { on(&env, work).await.unwrap() });
}

#[test]
fn differences_of_two_snapshots_show_what_was_written_between_them() {
    let world = World::new(52);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        snapshot(&at, &disk, 1, (0, 1)).await;
        snapshot(&at, &disk, 2, (BLOCKS - 3, 2)).await;
        let (mut older, mut newer) = (view(&at, &disk, 1).await, view(&at, &disk, 2).await);
        let (offset, len) = ((BLOCKS - 3) * BLOCK, 3 * BLOCK);
        let last = Change { offset, len, now: Has::Data, perhaps: true };
        assert_eq!(changes(&mut newer, &mut older).await, [last]);
        let shared =
            older.files().filter(|file| newer.files().any(|other| other.file == file.file));
        assert!(shared.count() > 0, "a file has one number in all directories");
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// A deleted volume's space is requested while its last DataFile is as its owner left it.
#[test]
fn file_that_is_written_has_the_length_of_its_last_batch() {
    let world = World::new(53);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let options = Options { checkpoint_updates: 1 << 20, file_bytes: 1 << 20, ..small() };
        let segment = open(&at, &disk, 1, options).await.unwrap();
        for lba in 0..BLOCKS {
            let data = at.pool().copy_of(&[1; BLOCK as usize]).unwrap();
            segment.write(lba * BLOCK, data).await.unwrap();
        }
        at.sleep(HOLD).await;
        let seen = View::open(&at, disk.store(&at)).await.unwrap();
        let bytes: u64 = seen.files().map(|file| file.bytes).sum();
        assert!(bytes >= BLOCKS * BLOCK, "{bytes} bytes of {}", BLOCKS * BLOCK);
        segment.close().await.unwrap();
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// The manager reads directories of volumes whose owner died before it had made a segment there.
#[test]
fn directory_without_a_segment_has_no_view() {
    let world = World::new(54);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        assert!(View::find(&at, disk.store(&at)).await.unwrap().is_none(), "it has no table");
        let cache = Cache::new(32 << 10);
        let table = Table::open(&at, disk.store(&at), &cache, small().table).await.unwrap();
        table.close().await.unwrap();
        assert!(View::find(&at, disk.store(&at)).await.unwrap().is_none(), "its table is empty");
        open(&at, &disk, 1, small()).await.unwrap().close().await.unwrap();
        assert!(View::find(&at, disk.store(&at)).await.unwrap().is_some());
    };
    world.run(async { on(&env, work).await.unwrap() });
}
