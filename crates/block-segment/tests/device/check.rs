//! Findings of a check and of a scrub.

use block_segment::{Options, Segment};
use block_volume::contract::{Clear, Device};
use block_volume::figures::SegmentCheck;
use block_volume::geometry::Extent;
use runtime::sim::CrashMode;
use runtime::{Duration, Env};

use crate::device::support::{BYTES, World, on, open, small};

const BLOCK: u64 = 4096;

async fn check(segment: &Segment) -> SegmentCheck {
    let (mut sum, mut from) = (SegmentCheck::default(), 0);
    loop {
        let piece = segment.check(from).await.expect("it can be looked at");
        sum.blocks += piece.blocks;
        sum.files += piece.files;
        sum.findings_count += piece.findings_count;
        sum.findings.extend(piece.findings);
        from = piece.next;
        if from == 0 {
            return sum;
        }
    }
}

async fn write(env: &Env, segment: &Segment, blocks: std::ops::Range<u64>, byte: u8) {
    for lba in blocks {
        let data = env.pool().copy_of(&[byte; BLOCK as usize]).expect("within the budget");
        segment.write(lba * BLOCK, data).await.expect("all is well");
    }
}

#[test]
fn check_lists_all_damage() {
    let world = World::new(21);
    world.run(async {
        let (_, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let done = on(&env, async move {
            let segment = open(&at, &disk, 1, small()).await.expect("it is new");
            write(&at, &segment, 0..150, 1).await;
            write(&at, &segment, 700..800, 2).await;
            let half = Extent { offset: 100 * BLOCK, len: 50 * BLOCK };
            segment.clear(half, Clear::Trim).await.expect("all is well");
            let good = check(&segment).await;
            assert_eq!((good.blocks, good.findings_count), (200, 0), "{good:?}");
            assert_eq!(good.files, segment.stats().files as u64);
            // Bits of a block's data, of its metadata, and a record in another's unit.
            let names: Vec<String> =
                disk.names().into_iter().filter(|name| name.starts_with("data-")).collect();
            let first = names[0].clone();
            let mut bytes = disk.content(&first).expect("it is there");
            let record = |n: usize| 64 + n * 4160;
            bytes[record(3) + 64 + 99] ^= 1;
            bytes[record(5) + 20] ^= 128;
            let (from, to) = (record(8), record(9));
            bytes.copy_within(from..from + 4160, to);
            segment.close().await.expect("all is well");
            disk.set_content(&first, Some(bytes));
            let segment = open(&at, &disk, 2, small()).await.expect("it opens");
            let bad = check(&segment).await;
            assert_eq!((bad.blocks, bad.findings_count), (197, 3), "{bad:?}");
            for (finding, lba) in bad.findings.iter().zip([3, 5, 9]) {
                assert!(finding.starts_with(&format!("block {lba} ")), "{finding}");
                assert!(finding.contains(&first), "{finding}");
            }
            // A file that no row names, and a missing file.
            disk.set_content("data-00000001-0000abcd", Some(vec![0; 64]));
            disk.set_content("data-ffffffff-0000abcd", Some(vec![0; 64]));
            disk.set_content(&first, None);
            let bad = check(&segment).await;
            let all = bad.findings.join("\n");
            assert!(all.contains(&format!("{first} is missing")), "{all}");
            assert!(all.contains("data-00000001-0000abcd is a leak"), "{all}");
            assert!(!all.contains("data-ffffffff-0000abcd"), "a later owner's: {all}");
        });
        done.await.expect("no crash");
    });
}

#[test]
fn scrub_reads_all_in_turn_and_counts_damage() {
    let world = World::new(22);
    let marks = world.run(async {
        let (_, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let done = on(&env, async move {
            let options = Options {
                scrub_bytes_per_second: 64 << 10,
                scrub_period: Duration::from_secs(60),
                ..small()
            };
            let segment = open(&at, &disk, 1, options.clone()).await.expect("it is new");
            write(&at, &segment, 0..64, 1).await;
            write(&at, &segment, 1000..1064, 2).await;
            // 512 KiB at 64 KiB a second, after the pause that follows an opening.
            at.sleep(Duration::from_secs(36)).await;
            let early = segment.scrub();
            assert_eq!((early.passes, early.damaged, early.total_bytes), (0, 0, BYTES));
            assert!(early.done_bytes > 0 && early.done_bytes < BYTES, "{early:?}");
            at.sleep(Duration::from_secs(30)).await;
            let once = segment.scrub();
            assert_eq!((once.passes, once.read_bytes, once.damaged), (1, 128 * BLOCK, 0));
            let names = disk.names();
            let first = names.iter().find(|name| name.starts_with("data-")).expect("one");
            let mut bytes = disk.content(first).expect("it is there");
            bytes[64 + 64] ^= 1;
            segment.close().await.expect("all is well");
            disk.set_content(first, Some(bytes));
            let segment = open(&at, &disk, 2, options).await.expect("it opens");
            at.sleep(Duration::from_secs(60)).await;
            let again = segment.scrub();
            assert_eq!((again.passes, again.damaged), (2, 1), "{again:?}");
            segment.close().await.expect("all is well");
        });
        done.await.expect("no crash");
        world.sim.marks()
    });
    assert_eq!(marks.get("segment: scrubbed"), Some(&2));
}

/// A takeover repeats the last minute of the scrub, and begins no pass before its time.
#[test]
fn scrub_goes_on_where_another_owner_was() {
    let world = World::new(23);
    world.run(async {
        let (first, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let options = Options {
            scrub_bytes_per_second: 4 << 10,
            scrub_period: Duration::from_secs(3600),
            ..small()
        };
        let first_options = options.clone();
        let begun = on(&env, async move {
            let segment = open(&at, &disk, 1, first_options).await.expect("it is new");
            // 512 KiB at 4 KiB a second.
            write(&at, &segment, 0..128, 1).await;
            at.sleep(Duration::from_secs(130)).await;
            assert_eq!(segment.scrub().passes, 0);
            std::mem::forget(segment);
        });
        begun.await.expect("no crash");
        world.sim.crash(first, CrashMode::Process);
        let (_, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let goes_on = on(&env, async move {
            let segment = open(&at, &disk, 2, options.clone()).await.expect("it opens");
            let left = segment.scrub();
            assert!(left.done_bytes > 0 && left.read_bytes == 0, "{left:?}");
            at.sleep(Duration::from_secs(130)).await;
            let once = segment.scrub();
            assert_eq!((once.passes, once.damaged), (1, 0), "{once:?}");
            assert!(once.read_bytes < 128 * BLOCK, "not all of it again: {once:?}");
            segment.close().await.expect("all is well");
            let segment = open(&at, &disk, 3, options.clone()).await.expect("it opens");
            at.sleep(Duration::from_secs(1800)).await;
            let rests = segment.scrub();
            assert_eq!((rests.passes, rests.read_bytes), (1, 0), "{rests:?}");
            at.sleep(Duration::from_secs(2000)).await;
            assert_eq!(segment.scrub().passes, 2);
            segment.close().await.expect("all is well");
            // Away for longer than the time between two passes.
            at.sleep(Duration::from_secs(9000)).await;
            let segment = open(&at, &disk, 4, options).await.expect("it opens");
            at.sleep(Duration::from_secs(250)).await;
            assert_eq!(segment.scrub().passes, 3);
            segment.close().await.expect("all is well");
        });
        goes_on.await.expect("no crash");
    });
}
