//! Garbage collection: space comes back, content stays, amplification is bounded.

use base::Kind;
use block_segment::{Options, Segment, Stats};
use block_testing::device::{Oracle, Plan, load, whole};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use runtime::{Class, Duration, Rng};

use crate::device::support::{BYTES, World, device, on, open, small};

/// Overwrites with a fifth of garbage allowed; returns the segment's counters.
fn overwrite(seed: u64, options: Options, rounds: u64, hot: bool) -> (Stats, usize) {
    let world = World::new(seed);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    world.run(async {
        let work = async move {
            let segment = open(&at, &disk, 1, options).await.unwrap();
            let blocks = BYTES / 4096;
            let mut rng = Rng::new(seed);
            let write = |segment: Segment, lba: u64, tag: u64| {
                let data = at.pool().copy_of(&tag.to_le_bytes().repeat(512)).unwrap();
                at.spawn(Class::Foreground, "write", async move {
                    segment.write(lba * 4096, data).await.unwrap();
                })
            };
            let mut want = vec![0; blocks as usize];
            let mut waiting: Vec<(u64, runtime::JoinHandle<()>)> = Vec::new();
            for n in 0..blocks * rounds {
                let lba = match n {
                    _ if n < blocks => n,
                    // Nine of ten writes go to a tenth of the blocks.
                    _ if hot && !rng.one_in(10) => rng.below(blocks / 10),
                    _ => rng.below(blocks),
                };
                want[lba as usize] = n + 1;
                // Writes under way are of different blocks: tasks are polled in any order.
                let twice = waiting.iter().any(|(other, _)| *other == lba);
                if waiting.len() == 32 || twice {
                    for (_, one) in waiting.drain(..) {
                        one.await.unwrap();
                    }
                    at.sleep(Duration::from_millis(1)).await;
                }
                waiting.push((lba, write(segment.clone(), lba, n + 1)));
            }
            for (_, one) in waiting {
                one.await.unwrap();
            }
            at.sleep(Duration::from_secs(20)).await;
            segment.checkpoint().await.unwrap();
            at.sleep(Duration::from_secs(5)).await;
            let stats = segment.stats();
            let files = disk.names().iter().filter(|name| name.starts_with("data-")).count();
            let all = whole(&segment).await.unwrap();
            for (lba, tag) in want.iter().enumerate() {
                let have = &all[lba * 4096..][..4096];
                assert!(have == tag.to_le_bytes().repeat(512), "block {lba} has {:?}", &have[..8]);
            }
            (stats, files)
        };
        on(&env, work).await.unwrap()
    })
}

/// As for data that does not pack.
fn plain() -> Options {
    Options { compress: false, ..small() }
}

#[test]
fn packed_copies_are_small() {
    let (stats, _) = overwrite(7, small(), 4, true);
    println!("{stats:?}");
    assert!(stats.collected_blocks > 500 && stats.live == BYTES / 4096, "{stats:?}");
    // A record of two or three units, not 65.
    assert!(stats.collected_bytes < stats.collected_blocks * 4 * 64, "{stats:?}");
}

#[test]
fn overwritten_space_comes_back() {
    for hot in [false, true] {
        let (stats, files) = overwrite(7, plain(), 6, hot);
        println!("hot {hot}: {stats:?}");
        assert!(stats.collected > 20, "{stats:?}");
        assert_eq!(stats.live, BYTES / 4096, "{stats:?}");
        // A fifth of garbage, and the open files.
        assert!(stats.blocks < stats.live * 10 / 8 + 6 * 63, "{stats:?}");
        assert!(files <= stats.files + 2, "{files} files, {stats:?}");
    }
}

#[test]
fn hot_and_cold_apart_cost_less_than_all_alike() {
    let amplification = |hot| {
        let (stats, _) = overwrite(9, plain(), 8, hot);
        (stats.records + stats.collected_blocks) as f64 / stats.records as f64
    };
    let (hot, alike) = (amplification(true), amplification(false));
    println!("write amplification at 80 %: {hot:.2} with hot blocks, {alike:.2} without");
    assert!(hot < alike, "{hot} {alike}");
}

#[test]
fn requests_race_collection() {
    for seed in 0..4 {
        let world = World::new(seed);
        let (_, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let oracle: Oracle = world.oracle.clone();
        world.run(async {
            let work = async move {
                let options = Options { garbage_percent: 1, compress: seed % 2 == 0, ..small() };
                let mut rng = Rng::new(seed);
                let pause = Duration::from_micros(500);
                let plan = Plan { steps: 1500, depth: 12, pause, blocks: 6 };
                let mut collected = 0;
                for epoch in 1..4 {
                    let segment = open(&at, &disk, epoch, options.clone()).await.unwrap();
                    let oracle = oracle.owned_by(epoch);
                    oracle.settle(&whole(&segment).await.unwrap()).unwrap();
                    load(&at, device(&segment), &oracle, &mut rng, plan).await.unwrap();
                    collected += segment.stats().collected;
                }
                assert!(collected > 30, "{collected}");
            };
            on(&env, work).await.unwrap();
        });
    }
}

/// Issue 10, 3.6: one bad record stopped all collection, and each try left a file behind.
#[test]
fn a_damaged_record_stops_the_collection_of_its_file_only() {
    let world = World::new(77);
    let (_, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    world.run(async {
        let work = async move {
            let options = Options { collect: false, recent_bytes: 0, ..small() };
            let segment = open(&at, &disk, 1, options).await.unwrap();
            let write = async |segment: &Segment, lba: u64, tag: u8| {
                let data = at.pool().copy_of(&[tag; 4096]).unwrap();
                segment.write(lba * 4096, data).await.unwrap();
            };
            // Of each file of 63 records, half becomes garbage.
            for lba in 0..620 {
                write(&segment, lba, 1).await;
            }
            for lba in (0..620).filter(|lba| lba % 2 == 0) {
                write(&segment, lba, 2).await;
            }
            segment.checkpoint().await.unwrap();
            segment.close().await.unwrap();
            let data_files = || disk.names().into_iter().filter(|name| name.starts_with("data-"));
            // The last record but one of the first file is of a block that was not written again.
            let first = data_files().next().unwrap();
            let mut bytes = disk.content(&first).unwrap();
            let inside = bytes.len() - 4160 - 2000;
            bytes[inside] ^= 1;
            disk.set_content(&first, Some(bytes));
            let segment = open(&at, &disk, 2, small()).await.unwrap();
            write(&segment, 0, 3).await;
            at.sleep(Duration::from_secs(60)).await;
            let (stats, files) = (segment.stats(), data_files().count());
            assert!(stats.collected >= 3, "the others are not collected: {stats:?}");
            assert!(files <= 16 && files <= stats.files + 2, "{files} files: {stats:?}");
            assert!(data_files().any(|name| name == first), "what is damaged stays");
            for lba in (1..620).filter(|lba| lba % 2 == 1) {
                match segment.read(Extent { offset: lba * 4096, len: 4096 }).await {
                    Ok(data) => assert!(data.iter().all(|&byte| byte == 1), "block {lba}"),
                    Err(fault) => assert_eq!((fault.kind, lba), (Kind::Corrupt, 61), "{fault}"),
                }
            }
            segment.close().await.unwrap();
        };
        on(&env, work).await.unwrap();
    });
}
