//! Cuts and directories linked from them: each has all that was answered before it, nothing that
//! began after it, with any later work of source, links and owners, and any crash of the owner.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Fault, Kind};
use block_segment::{LinkFrom, Options, Segment};
use block_testing::device::whole;
use block_volume::contract::Device;
use block_volume::ids::Identity;
use futures_util::future::{Either, select};
use runtime::sim::CrashMode;
use runtime::{Class, Duration, Env, Rng};
use table::{Batch, Cache, Table};
use testing::tables::MemDisk;

use crate::device::support::{BYTES, IDENTITY, World, on, open, shared, small};

/// Blocks in use; each is written by one task, with values that count up.
const BLOCKS: usize = 48;
const LANES: usize = 8;
const BLOCK: u64 = 4096;
const HOLD: Duration = Duration::from_secs(1);

/// Values that were begun and that were answered, block by block.
#[derive(Default)]
struct Track {
    begun: RefCell<Vec<u64>>,
    acked: RefCell<Vec<u64>>,
    stop: Cell<bool>,
}

/// A linked directory: its least and its largest values.
struct Made {
    number: u64,
    least: Vec<u64>,
    most: Vec<u64>,
}

fn name(number: u64) -> String {
    format!("cut-{number}")
}

fn identity(number: u64) -> Identity {
    Identity { volume: 100 + number, ..IDENTITY }
}

async fn open_linked(env: &Env, disk: &MemDisk, number: u64, epoch: u64) -> Segment {
    let (what, disk) = ((identity(number), BYTES, epoch), disk.beside(&name(number)));
    let options = Options { create: false, ..small() };
    let opened = Segment::open(env, disk.store(env), &shared(), what, options).await;
    opened.unwrap_or_else(|fault| panic!("cut {number}: {fault}"))
}

/// The values of all blocks; each is whole.
async fn values(segment: &Segment) -> Result<Vec<u64>, String> {
    let all = whole(segment).await.map_err(|fault| fault.to_string())?;
    let value = |lba: usize| {
        let block = &all[lba * BLOCK as usize..][..BLOCK as usize];
        match block.chunks(8).all(|word| word == &block[..8]) {
            true => Ok(u64::from_le_bytes(block[..8].try_into().unwrap())),
            false => Err(format!("block {lba} is half of a write")),
        }
    };
    (0..BLOCKS).map(value).collect()
}

fn between(least: &[u64], have: &[u64], most: &[u64]) -> Result<(), String> {
    for lba in 0..BLOCKS {
        if !(least[lba]..=most[lba]).contains(&have[lba]) {
            let (least, have, most) = (least[lba], have[lba], most[lba]);
            return Err(format!("block {lba} has {have}, not {least} to {most}"));
        }
    }
    Ok(())
}

async fn write(env: &Env, segment: &Segment, lba: usize, value: u64) -> Result<(), base::Fault> {
    let data = env.pool().copy_of(&value.to_le_bytes().repeat(512)).unwrap();
    segment.write(lba as u64 * BLOCK, data).await
}

/// Writes its blocks in turn, with a pause now and then.
async fn lane(env: Env, segment: Segment, track: Rc<Track>, lane: usize, mut rng: Rng) {
    while !track.stop.get() {
        let lba = lane + LANES * rng.below((BLOCKS / LANES) as u64) as usize;
        let value = track.begun.borrow()[lba] + 1;
        track.begun.borrow_mut()[lba] = value;
        if write(&env, &segment, lba, value).await.is_err() {
            return;
        }
        track.acked.borrow_mut()[lba] = value;
        env.sleep(Duration::from_micros(rng.below(600))).await;
    }
}

/// An owner that makes cuts under load, and links them.
async fn life_of_owner(
    env: Env,
    disk: MemDisk,
    track: Rc<Track>,
    made: Rc<RefCell<Vec<Made>>>,
    seed: u64,
) -> Result<(), String> {
    let options = Options { garbage_percent: 5, ..small() };
    let segment = open(&env, &disk, 1, options).await.map_err(|fault| fault.to_string())?;
    let mut rng = Rng::new(seed);
    let lanes: Vec<_> = (0..LANES)
        .map(|number| {
            let work = lane(env.clone(), segment.clone(), track.clone(), number, rng.fork());
            env.spawn(Class::Foreground, "lane", work)
        })
        .collect();
    for number in 1..=4 {
        env.sleep(Duration::from_millis(1 + rng.below(12))).await;
        let least = track.acked.borrow().clone();
        segment.cut(number, HOLD).await.map_err(|fault| fault.to_string())?;
        let most = track.begun.borrow().clone();
        // An answer sent before the cut may arrive a moment later.
        env.sleep(Duration::from_micros(1)).await;
        let acked = track.acked.borrow().clone();
        env.sleep(Duration::from_micros(rng.below(2000))).await;
        if *track.acked.borrow() != acked {
            return Err(format!("cut {number}: a change was answered while it held back"));
        }
        let held = segment.release(number, true).map_err(|fault| fault.to_string())?;
        assert!(held > Duration::ZERO && held < HOLD, "{held:?}");
        let target = disk.beside(&name(number)).store(&env);
        let linked = segment.link(number, target, identity(number)).await;
        linked.map_err(|fault| fault.to_string())?;
        made.borrow_mut().push(Made { number, least, most });
    }
    track.stop.set(true);
    for lane in lanes {
        let _ = lane.await;
    }
    segment.close().await.map_err(|fault| fault.to_string())
}

/// A life up to a step; returns the steps of all of it.
fn life(seed: u64, stop_at: Option<u64>) -> u64 {
    let world = World::new(seed);
    let done = world.run(async {
        world.disk.stop_at(stop_at);
        let (host, env) = world.boot();
        let track = Rc::new(Track::default());
        track.begun.replace(vec![0; BLOCKS]);
        track.acked.replace(vec![0; BLOCKS]);
        let made: Rc<RefCell<Vec<Made>>> = Rc::default();
        let owner =
            life_of_owner(env.clone(), world.disk.clone(), track.clone(), made.clone(), seed);
        let owner = env.spawn(Class::Foreground, "owner", owner);
        let which = select(Box::pin(owner), Box::pin(world.disk.stopped())).await;
        match which {
            Either::Left((ended, _)) => ended.expect("no crash yet")?,
            Either::Right(_) => {}
        }
        let points = world.disk.points();
        world.disk.stop_at(None);
        world.sim.crash(host, CrashMode::Process);
        let (_, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let after = async move {
            let segment = open(&at, &disk, 2, small()).await.map_err(|fault| fault.to_string())?;
            let have = values(&segment).await?;
            between(&track.acked.borrow(), &have, &track.begun.borrow())?;
            for cut in made.take() {
                let number = cut.number;
                let bad = |what: String| format!("cut {number}: {what}");
                let linked = open_linked(&at, &disk, number, 1).await;
                let was = values(&linked).await.map_err(bad)?;
                between(&cut.least, &was, &cut.most).map_err(bad)?;
                // It is a segment as any other, independent of the source.
                let refused = |fault: base::Fault| bad(fault.to_string());
                for lba in 0..4 {
                    write(&at, &linked, lba, 1 << 40).await.map_err(refused)?;
                }
                linked.checkpoint().await.map_err(refused)?;
                let is = values(&linked).await.map_err(bad)?;
                assert!(is[..4].iter().all(|value| *value == 1 << 40) && is[4..] == was[4..]);
            }
            assert_eq!(values(&segment).await?, have, "links changed their source");
            Ok::<(), String>(())
        };
        on(&env, after).await.expect("no crash")?;
        Ok::<u64, String>(points)
    });
    done.unwrap_or_else(|what| panic!("seed {seed}, crash at step {stop_at:?}: {what}"))
}

#[test]
fn cut_has_answered_changes_and_no_later_ones() {
    for seed in 0..4 {
        life(seed, None);
    }
}

#[test]
fn links_are_whole_after_a_crash_at_any_step() {
    let points = life(5, None);
    assert!(points > 500, "only {points} steps to crash at");
    for point in (1..=points).step_by(37) {
        life(5, Some(point));
    }
}

#[test]
fn flattened_link_shares_nothing() {
    let world = World::new(3);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1, small()).await.unwrap();
        for lba in 0..BLOCKS {
            write(&at, &segment, lba, lba as u64 + 1).await.unwrap();
        }
        segment.cut(1, HOLD).await.unwrap();
        segment.release(1, true).unwrap();
        let target = disk.beside(&name(1)).store(&at);
        segment.link(1, target.clone(), identity(1)).await.unwrap();
        // Once more does no harm.
        segment.link(1, target, identity(1)).await.unwrap();
        let linked = open_linked(&at, &disk, 1, 1).await;
        // A link of a link: its records are of the first.
        linked.cut(7, HOLD).await.unwrap();
        linked.release(7, true).unwrap();
        let second = disk.beside(&name(2)).store(&at);
        linked.link(7, second, identity(2)).await.unwrap();
        let second = open_linked(&at, &disk, 2, 1).await;
        let want: Vec<u64> = (1..=BLOCKS as u64).collect();
        for segment in [&linked, &second] {
            assert_eq!(values(segment).await.unwrap(), want);
            assert!(segment.flatten() > 0);
            let mut rounds = 0;
            while segment.flatten() > 0 {
                at.sleep(Duration::from_millis(50)).await;
                rounds += 1;
                assert!(rounds < 200, "{} blocks are still shared", segment.flatten());
            }
        }
        // Its source may go now, and the first link too.
        let gone = |disk: &MemDisk| {
            for name in disk.names() {
                disk.set_content(&name, None);
            }
        };
        segment.close().await.unwrap();
        gone(&disk);
        linked.close().await.unwrap();
        gone(&disk.beside(&name(1)));
        second.close().await.unwrap();
        let again = open_linked(&at, &disk, 2, 2).await;
        assert_eq!(values(&again).await.unwrap(), want);
    };
    world.run(async { on(&env, work).await.unwrap() });
}

fn data_files(disk: &MemDisk) -> BTreeSet<String> {
    disk.names().into_iter().filter(|name| name.starts_with("data-")).collect()
}

/// Shared blocks of a clone are collected with the rest of it (`protocols.md` 6.7).
#[test]
fn overwritten_link_releases_its_shared_files() {
    let world = World::new(6);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1, small()).await.unwrap();
        for lba in 0..BLOCKS {
            write(&at, &segment, lba, 1).await.unwrap();
        }
        segment.cut(1, HOLD).await.unwrap();
        segment.release(1, true).unwrap();
        let target = disk.beside(&name(1));
        segment.link(1, target.store(&at), identity(1)).await.unwrap();
        let shared = data_files(&target);
        assert!(!shared.is_empty());
        let linked = open_linked(&at, &disk, 1, 1).await;
        // All but three blocks.
        let mut rounds = 1;
        while !shared.is_disjoint(&data_files(&target)) {
            rounds += 1;
            assert!(rounds < 100, "{shared:?} of {:?}", data_files(&target));
            for lba in (0..BLOCKS).filter(|lba| lba % 16 != 0) {
                write(&at, &linked, lba, rounds).await.unwrap();
            }
            at.sleep(Duration::from_millis(20)).await;
        }
        let value = |lba| if lba % 16 == 0 { 1 } else { rounds };
        assert_eq!(values(&linked).await.unwrap(), (0..BLOCKS).map(value).collect::<Vec<_>>());
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// Names of linked files carry the generation of another directory's table, which may be above that
/// of the clone's: files that a clone does not need any more go nevertheless.
#[test]
fn linked_file_that_no_table_names_is_removed_by_the_next_opening() {
    let world = World::new(6);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        // A source with many owners: its table's generation is well above a new one's.
        for epoch in 1..30 {
            let segment = open(&at, &disk, epoch, small()).await.unwrap();
            write(&at, &segment, epoch as usize, epoch).await.unwrap();
            segment.close().await.unwrap();
        }
        let segment = open(&at, &disk, 30, small()).await.unwrap();
        segment.cut(1, HOLD).await.unwrap();
        segment.release(1, true).unwrap();
        let target = disk.beside(&name(1));
        segment.link(1, target.store(&at), identity(1)).await.unwrap();
        let shared = data_files(&target);
        assert!(shared.len() > 20, "{shared:?}");
        let contents: Vec<_> =
            shared.iter().map(|name| (name.clone(), target.content(name))).collect();
        // The clone copies shared blocks, and the removal of the shared files is lost.
        let linked = open_linked(&at, &disk, 1, 1).await;
        while linked.flatten() > 0 {
            at.sleep(Duration::from_millis(50)).await;
        }
        at.sleep(Duration::from_millis(500)).await;
        linked.close().await.unwrap();
        assert!(shared.is_disjoint(&data_files(&target)));
        for (name, content) in contents {
            target.set_content(&name, content);
        }
        let linked = open_linked(&at, &disk, 1, 2).await;
        at.sleep(Duration::from_millis(500)).await;
        let left: Vec<_> = shared.intersection(&data_files(&target)).cloned().collect();
        assert_eq!(left, Vec::<String>::new());
        let values = values(&linked).await.unwrap();
        assert_eq!(values[1..30], (1..30).collect::<Vec<u64>>());
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// The same names are not those of later owners: a check finds these files.
#[test]
fn check_of_a_link_from_a_segment_with_many_owners_finds_its_files() {
    let world = World::new(6);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        for epoch in 1..30 {
            let segment = open(&at, &disk, epoch, small()).await.unwrap();
            write(&at, &segment, epoch as usize, epoch).await.unwrap();
            segment.close().await.unwrap();
        }
        let segment = open(&at, &disk, 30, small()).await.unwrap();
        segment.cut(1, HOLD).await.unwrap();
        segment.release(1, true).unwrap();
        let target = disk.beside(&name(1));
        segment.link(1, target.store(&at), identity(1)).await.unwrap();
        let linked = open_linked(&at, &disk, 1, 1).await;
        let checked = linked.check(0).await.unwrap();
        assert_eq!((checked.findings_count, checked.findings), (0, vec![]));
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// An opening that links a clone may end anywhere, and the snapshot's table may advance before the
/// next one begins: rows of the first must not be mixed with rows of the second.
#[test]
fn first_opening_restarts_an_unfinished_link() {
    let world = World::new(5);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1, small()).await.unwrap();
        for round in 1..=2 {
            for lba in 0..BLOCKS {
                write(&at, &segment, lba, round).await.unwrap();
            }
            segment.cut(round, HOLD).await.unwrap();
            segment.release(round, true).unwrap();
            let target = disk.beside(&name(round)).store(&at);
            segment.link(round, target, identity(round)).await.unwrap();
            // The batches that the first cut has are in pages when the second one comes.
            segment.checkpoint().await.unwrap();
        }
        segment.close().await.unwrap();
        let cache = Cache::new(32 << 10);
        let (old, clone) = (disk.beside(&name(1)), disk.beside("clone"));
        let rows = Table::open_view(&at, old.store(&at), &cache).await.unwrap();
        let left = Table::open(&at, clone.store(&at), &cache, small().table).await.unwrap();
        let mut scan = rows.scan(table::Range::all());
        let mut batch = Batch::new();
        while let Some((key, value)) = scan.next().await.unwrap() {
            // The last row has not come.
            if key[0] != b's' {
                batch.put(&key, &value);
            }
        }
        left.write(&batch).await.unwrap();
        left.close().await.unwrap();
        let clone_source = || -> LinkFrom {
            let found = disk.beside(&name(2)).store(&at);
            Box::new(move || {
                let found = found.clone();
                Box::pin(async move { Ok(found) })
            })
        };
        let want = vec![2; BLOCKS];
        for epoch in 1..=2 {
            let (what, options) = ((identity(9), BYTES, epoch), (small(), Some(clone_source())));
            let stores = (clone.store(&at), clone.store(&at));
            let opened = Segment::open_from(&at, stores, &shared(), what, options).await.unwrap();
            assert_eq!(values(&opened).await.unwrap(), want);
            opened.close().await.unwrap();
        }
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// Issue 10, 3.1: a clone whose snapshot is gone must not be made as an empty segment, which reads as zeroes.
#[test]
fn clone_whose_snapshot_is_gone_is_corrupt_at_each_opening() {
    let world = World::new(6);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let clone = disk.beside("clone");
        for epoch in 1..=2 {
            let gone: LinkFrom = Box::new(|| {
                Box::pin(async { Err(Fault::new(Kind::NotFound, "there is no such snapshot")) })
            });
            let (what, options) = ((identity(9), BYTES, epoch), (small(), Some(gone)));
            let stores = (clone.store(&at), clone.store(&at));
            let opened = Segment::open_from(&at, stores, &shared(), what, options).await;
            let Err(fault) = opened else {
                panic!("opening {epoch}: nothing to read is no content")
            };
            assert_eq!(fault.kind, Kind::Corrupt, "opening {epoch}: {fault}");
            assert!(fault.message.contains("no such snapshot"), "opening {epoch}: {fault}");
        }
    };
    world.run(async { on(&env, work).await.unwrap() });
}

#[test]
fn hold_without_a_release_expires() {
    let world = World::new(4);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1, small()).await.unwrap();
        write(&at, &segment, 0, 1).await.unwrap();
        segment.cut(1, Duration::from_millis(20)).await.unwrap();
        let before = at.now();
        write(&at, &segment, 0, 2).await.unwrap();
        assert!(at.now() - before > Duration::from_millis(10), "it was not held back");
        let late = segment.release(1, true).unwrap_err();
        assert_eq!(late.kind, Kind::NotFound, "{late}");
        let target = disk.beside(&name(1)).store(&at);
        let late = segment.link(1, target, identity(1)).await.unwrap_err();
        assert_eq!(late.kind, Kind::NotFound, "{late}");
        // A cut that is not released cannot be linked; the next one takes its place.
        segment.cut(2, HOLD).await.unwrap();
        let target = disk.beside(&name(1)).store(&at);
        assert!(segment.link(2, target, identity(1)).await.is_err());
        segment.cut(3, HOLD).await.unwrap();
        assert!(segment.release(2, true).is_err());
        assert!(segment.release(3, false).is_ok());
        assert!(segment.release(3, true).is_err());
        write(&at, &segment, 0, 3).await.unwrap();
        segment.close().await.unwrap();
    };
    world.run(async { on(&env, work).await.unwrap() });
}

/// Issue 10, 3.12: a cut was given up a minute after its release, though it was being linked.
#[test]
fn a_cut_that_is_linked_for_longer_than_cuts_are_kept_is_not_given_up() {
    let world = World::new(9);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1, small()).await.unwrap();
        for round in 1..=4 {
            for lba in 0..BLOCKS {
                write(&at, &segment, lba, round).await.unwrap();
            }
        }
        segment.cut(1, HOLD).await.unwrap();
        segment.release(1, true).unwrap();
        // The files of the cut are emptied; only the cut keeps them.
        for round in 5..=20 {
            for lba in 0..BLOCKS {
                write(&at, &segment, lba, round).await.unwrap();
            }
            at.sleep(Duration::from_millis(100)).await;
        }
        at.sleep(Duration::from_secs(30)).await;
        let named = data_files(&disk);
        disk.with_faults(|faults| {
            faults.latency = (Duration::from_secs(15), Duration::from_secs(15))
        });
        let target = disk.beside(&name(1));
        let linked = segment.link(1, target.store(&at), identity(1)).await;
        linked.unwrap_or_else(|fault| panic!("{fault}"));
        let quick = (Duration::from_micros(10), Duration::from_micros(300));
        disk.with_faults(|faults| faults.latency = quick);
        target.with_faults(|faults| faults.latency = quick);
        let linked = open_linked(&at, &disk, 1, 1).await;
        assert_eq!(values(&linked).await.unwrap(), vec![4; BLOCKS]);
        // It goes when no clone links it any more.
        at.sleep(Duration::from_secs(200)).await;
        assert!(data_files(&disk).len() < named.len(), "{:?} of {named:?}", data_files(&disk));
        let late = segment.link(1, disk.beside("late").store(&at), identity(2)).await;
        assert_eq!(late.unwrap_err().kind, Kind::NotFound);
    };
    world.run(async { on(&env, work).await.unwrap() });
}
