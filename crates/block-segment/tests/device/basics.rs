//! Answers of one owner.

use base::Kind;
use block_segment::limits::{PAGE_BLOCKS, SEGMENT_BYTES_MAX};
use block_segment::{Options, Segment};
use block_testing::device::{load, whole};
use block_volume::contract::{AllocationExtent, Clear, Device};
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use runtime::{Duration, Rng};

use crate::device::support::{BYTES, IDENTITY, World, device, on, open, plan, shared, small};

#[test]
fn random_requests_are_answered_as_the_model_does() {
    let mut total = 0;
    for seed in 0..6 {
        let world = World::new(seed);
        let (_, env) = world.boot();
        let (oracle, disk, at) = (world.oracle.clone(), world.disk.clone(), env.clone());
        total += world.run(async {
            let work = async move {
                let segment = open(&at, &disk, 1, small()).await.unwrap();
                let mut rng = Rng::new(seed);
                let loaded =
                    load(&at, device(&segment), &oracle, &mut rng, plan(400)).await.unwrap();
                // Collection goes on for a while, and its moves are changes too.
                for _ in 0..20 {
                    segment.checkpoint().await.unwrap();
                    if segment.stats().index_dirty == 0 {
                        break;
                    }
                    at.sleep(Duration::from_millis(100)).await;
                }
                let stats = segment.stats();
                assert!(stats.live <= stats.blocks, "{stats:?}");
                assert_eq!(stats.index_dirty, 0, "{stats:?}");
                assert!(stats.checkpoints > 2 && stats.files > 4 && stats.txns > 9, "{stats:?}");
                segment.close().await.unwrap();
                // All of it is there, from the table alone.
                let segment = open(&at, &disk, 2, small()).await.unwrap();
                let oracle = oracle.owned_by(2);
                oracle.settle(&whole(&segment).await.unwrap()).unwrap();
                loaded.done
            };
            on(&env, work).await.unwrap()
        });
    }
    assert!(total > 1200, "{total}");
}

/// A segment of 2^32 blocks: the number behind the last one does not fit in 32 bits.
#[test]
fn last_block_of_the_largest_segment_is_recovered_and_damage_of_it_is_found() {
    const LAST: u64 = SEGMENT_BYTES_MAX - 4096;
    let world = World::new(3);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let opened = async |epoch| {
            let (what, store) = ((IDENTITY, SEGMENT_BYTES_MAX, epoch), disk.store(&at));
            let options = Options { scrub_bytes_per_second: 0, ..small() };
            Segment::open(&at, store, &shared(), what, options).await.unwrap()
        };
        let segment = opened(1).await;
        for (offset, value) in [(LAST, 1), (0, 2)] {
            let data = at.pool().copy_of(&[value; 4096]).unwrap();
            segment.write(offset, data).await.unwrap();
        }
        segment.close().await.unwrap();
        let segment = opened(2).await;
        for (offset, value) in [(LAST, 1), (0, 2)] {
            let read = segment.read(Extent { offset, len: 4096 }).await.unwrap();
            assert_eq!(read[..], [value; 4096]);
        }
        let last_page = SEGMENT_BYTES_MAX / 4096 / u64::from(PAGE_BLOCKS);
        let good = segment.check(last_page).await.unwrap();
        assert_eq!((good.blocks, good.findings_count, good.next), (1, 0, 0), "{good:?}");
        segment.close().await.unwrap();
        let first = disk.names().into_iter().find(|name| name.starts_with("data-")).unwrap();
        let mut bytes = disk.content(&first).unwrap();
        bytes[64 + 64 + 99] ^= 1;
        disk.set_content(&first, Some(bytes));
        let bad = opened(3).await.check(last_page).await.unwrap();
        assert_eq!((bad.blocks, bad.findings_count, bad.next), (0, 1, 0), "{bad:?}");
    };
    world.run(async { on(&env, work).await.unwrap() });
}

#[test]
fn ranges_outside_and_odd_ones_are_answered_properly() {
    let world = World::new(1);
    let (_, env) = world.boot();
    let disk = world.disk.clone();
    let at = env.clone();
    world.run(async {
        let work = async move {
            let segment = open(&at, &disk, 1, small()).await.unwrap();
            let kind = |offset, len| {
                let (segment, extent) = (segment.clone(), Extent { offset, len });
                async move { segment.read(extent).await.map_err(|fault| fault.kind) }
            };
            assert_eq!(kind(BYTES, 1).await.unwrap_err(), Kind::Invalid);
            assert_eq!(kind(u64::MAX, 2).await.unwrap_err(), Kind::Invalid);
            assert_eq!(kind(0, BYTES).await.unwrap_err(), Kind::Invalid); // Too long at once.
            assert_eq!(kind(BYTES, 0).await.unwrap().len(), 0);
            let data = at.pool().copy_of(&[1; 10]).unwrap();
            let past = segment.write(BYTES - 5, data.clone()).await;
            assert_eq!(past.unwrap_err().kind, Kind::Invalid);
            segment.write(0, data.slice(0..0)).await.unwrap();
            segment.clear(Extent { offset: 0, len: 0 }, Clear::Zero).await.unwrap();
            // None of these has written anything.
            assert_eq!(segment.stats().appends, 0);
            segment.write(BYTES - 10, data).await.unwrap();
            assert_eq!(
                kind(BYTES - 12, 12).await.unwrap()[..],
                [[0; 2].as_slice(), &[1; 10]].concat()
            );
            segment.close().await.unwrap();
        };
        on(&env, work).await.unwrap();
    });
}

#[test]
fn pieces_distinguish_holes_zeroes_and_data() {
    let world = World::new(2);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    world.run(async {
        let work = async move {
            let segment = open(&at, &disk, 1, small()).await.unwrap();
            let k = 4096;
            segment.write(10 * k, at.pool().copy_of(&[3; 8192]).unwrap()).await.unwrap();
            segment.clear(Extent { offset: 12 * k, len: 5 * k }, Clear::Zero).await.unwrap();
            segment.clear(Extent { offset: 11 * k, len: k }, Clear::Trim).await.unwrap();
            // Part of a hole is zeroed: all of it is zero, and data.
            segment.clear(Extent { offset: 20 * k + 5, len: 9 }, Clear::Zero).await.unwrap();
            segment.clear(Extent { offset: 30 * k + 5, len: 9 }, Clear::Trim).await.unwrap();
            let piece = |len, hole, zero| AllocationExtent { len: len * k, hole, zero };
            let all = segment.pieces(Extent { offset: 0, len: BYTES }, 100).await.unwrap();
            let want = [
                piece(10, true, true),
                piece(1, false, false),
                piece(1, true, true),
                piece(5, false, true),
                piece(3, true, true),
                piece(1, false, true),
                piece(BYTES / k - 21, true, true),
            ];
            assert_eq!(all, want);
            let some = segment.pieces(Extent { offset: 10 * k + 7, len: 4 * k }, 2).await.unwrap();
            assert_eq!(
                some,
                [AllocationExtent { len: k - 7, hole: false, zero: false }, piece(1, true, true)]
            );
        };
        on(&env, work).await.unwrap();
    });
}

#[test]
fn opening_with_an_old_epoch_or_another_identity_is_refused() {
    let world = World::new(3);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    world.run(async {
        let work = async move {
            let none = Options { create: false, ..small() };
            let missing = open(&at, &disk, 1, none.clone()).await.unwrap_err();
            assert_eq!(missing.kind, Kind::NotFound);
            let first = open(&at, &disk, 5, small()).await.unwrap();
            let data = at.pool().copy_of(&[9; 4096]).unwrap();
            first.write(0, data.clone()).await.unwrap();
            let second = open(&at, &disk, 6, none).await.unwrap();
            let late = first.write(4096, data.clone()).await.unwrap_err();
            assert_eq!(late.kind, Kind::Fenced, "{late}");
            assert_eq!(first.until_stopped().await.kind, Kind::Fenced);
            second.write(4096, data.clone()).await.unwrap();
            let stale = open(&at, &disk, 5, small()).await.unwrap_err();
            assert_eq!(stale.kind, Kind::Fenced, "{stale}");
            // The same epoch again: its numbers go on.
            let third = open(&at, &disk, 6, small()).await.unwrap();
            assert_eq!(third.read(Extent { offset: 4096, len: 4096 }).await.unwrap()[..], data[..]);
            third.close().await.unwrap();
            let other = Identity { volume: 8, ..IDENTITY };
            let foreign =
                Segment::open(&at, disk.store(&at), &shared(), (other, BYTES, 9), small()).await;
            assert_eq!(foreign.unwrap_err().kind, Kind::Invalid);
        };
        on(&env, work).await.unwrap();
    });
}

#[test]
fn a_lone_write_goes_at_once_and_waiting_ones_go_together() {
    let world = World::new(4);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    world.run(async {
        let work = async move {
            let options = Options { file_bytes: 8 << 20, ..Options::default() };
            let segment = open(&at, &disk, 1, options).await.unwrap();
            let data = at.pool().copy_of(&[9; 4096]).unwrap();
            for n in 0..10 {
                segment.write(n * 4096, data.clone()).await.unwrap();
            }
            assert_eq!(segment.stats().appends, 10);
            let many = (0..320).map(|n| {
                let (segment, data) = (segment.clone(), data.clone());
                at.spawn(runtime::Class::Foreground, "write", async move {
                    segment.write(n * 4096, data).await.unwrap();
                })
            });
            for one in many.collect::<Vec<_>>() {
                one.await.unwrap();
            }
            let stats = segment.stats();
            assert!(stats.appends < 10 + 320 / 8, "{stats:?}");
            segment.close().await.unwrap();
        };
        on(&env, work).await.unwrap();
    });
}

/// Blocks an append, and the mean time of a write, when `clients` each write again a little after
/// their last write was answered.
fn at_a_time(clients: u64, pause: Duration) -> (f64, Duration) {
    let world = World::new(clients);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    world.run(async {
        let work = async move {
            let options = Options { file_bytes: 64 << 20, ..Options::default() };
            let segment = open(&at, &disk, 1, options).await.unwrap();
            let data = at.pool().copy_of(&[9; 4096]).unwrap();
            let before = segment.stats();
            let tasks = (0..clients).map(|client| {
                let (segment, data, env) = (segment.clone(), data.clone(), at.clone());
                at.spawn(runtime::Class::Foreground, "client", async move {
                    let mut took = Duration::ZERO;
                    for n in 0..400 {
                        let began = env.now();
                        segment.write((client * 40 + n % 40) * 4096, data.clone()).await.unwrap();
                        took += env.now() - began;
                        env.sleep(env.jitter(pause)).await;
                    }
                    took
                })
            });
            let mut took = Duration::ZERO;
            for task in tasks.collect::<Vec<_>>() {
                took += task.await.unwrap();
            }
            let stats = segment.stats();
            let appends = (stats.appends - before.appends) as f64;
            let writes = clients as u32 * 400;
            segment.close().await.unwrap();
            (f64::from(writes) / appends, took / writes)
        };
        on(&env, work).await.unwrap()
    })
}

#[test]
fn answered_clients_share_the_next_append() {
    let (alone, single) = at_a_time(1, PAUSE);
    let (few, of_two) = at_a_time(2, PAUSE);
    let (packed, eight) = at_a_time(8, PAUSE);
    println!("1: {alone:.2} {single:?}; 2: {few:.2} {of_two:?}; 8: {packed:.2} {eight:?}");
    assert_eq!(alone, 1.0);
    assert!(few < 1.5 && of_two < 2 * single, "{few:.2} blocks an append, {of_two:?}");
    // Seven blocks cost eight sectors: 3.43 device bytes a byte with three replicas.
    assert!(packed > 6.0, "{packed:.2} blocks an append");
    // Clients that take long to come back are not waited for again and again.
    let (slow, unhurried) = at_a_time(8, 50 * PAUSE);
    println!("8, slow: {slow:.2} {unhurried:?}");
    assert!(unhurried < 2 * single, "{unhurried:?} instead of {single:?}");
}

/// From an answer to the next request.
const PAUSE: Duration = Duration::from_micros(50);
