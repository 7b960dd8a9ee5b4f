//! What a seek of a scan reads. That it finds the right entry is the suite's.

use table::{Cache, Compression, Options, Range, Scan, Table};

use crate::support::World;

fn key(prefix: u32, number: u32) -> Vec<u8> {
    format!("prefix/{prefix:02}/{number:05}").into_bytes()
}

/// Opens a table of 20 prefixes with `count` keys each, in one run, and its cache is so small that
/// each block is read from the store.
async fn filled(world: &World, count: u32, block_bytes: usize) -> Table {
    let (_, env) = world.boot();
    let compression = Compression::None;
    let options = Options { block_bytes, compression, ..Options::default() };
    let table = Table::open(&env, world.disk.store(&env), &Cache::new(1), options).await.unwrap();
    for prefix in 0..20 {
        for number in 0..count {
            table.put(&key(prefix, number), &[7; 40]).await.unwrap();
        }
    }
    table.flush().await.unwrap();
    table.compact().await.unwrap();
    table
}

/// The number of calls of the store that a call makes, reads most of them, and what it answers.
async fn reads<T>(world: &World, call: impl Future<Output = T>) -> (u64, T) {
    let before = world.disk.points();
    let answer = call.await;
    (world.disk.points() - before, answer)
}

async fn next_key(scan: &mut Scan) -> Option<Vec<u8>> {
    scan.next().await.unwrap().map(|(key, _)| key)
}

#[test]
fn seek_within_blocks_that_a_scan_has_reads_nothing() {
    let world = World::new(1);
    world.run(async {
        let table = filled(&world, 5, 64 << 10).await;
        for reverse in [false, true] {
            let range = Range { reverse, ..Range::all() };
            let mut scan = table.scan(range);
            let first = if reverse { key(19, 4) } else { key(0, 0) };
            assert_eq!(next_key(&mut scan).await, Some(first));
            for step in 1..20 {
                let prefix = if reverse { 19 - step } else { step };
                let (count, sought) = reads(&world, scan.seek(&key(prefix, 2))).await;
                sought.unwrap();
                assert_eq!(count, 0);
                assert_eq!(next_key(&mut scan).await, Some(key(prefix, 2)));
                // What is passed already changes nothing.
                scan.seek(&key(prefix, 2)).await.unwrap();
                let after = if reverse { 1 } else { 3 };
                assert_eq!(next_key(&mut scan).await, Some(key(prefix, after)));
            }
        }
    });
}

#[test]
fn seek_before_the_first_entry_reads_nothing_and_narrows_the_range() {
    let world = World::new(2);
    world.run(async {
        let table = filled(&world, 5, 512).await;
        for (reverse, end) in [(false, key(20, 0)), (true, b"a".to_vec())] {
            let mut scan = table.scan(Range { reverse, ..Range::prefix(b"prefix/") });
            let (count, _) = reads(&world, async {
                scan.seek(&key(7, 3)).await.unwrap();
                scan.seek(&key(if reverse { 9 } else { 5 }, 0)).await.unwrap();
            })
            .await;
            assert_eq!(count, 0);
            assert_eq!(next_key(&mut scan).await, Some(key(7, 3)));
            let mut ended = table.scan(Range { reverse, ..Range::prefix(b"prefix/") });
            let (count, entry) = reads(&world, async {
                ended.seek(&end).await.unwrap();
                next_key(&mut ended).await
            })
            .await;
            assert_eq!((count, entry), (0, None));
        }
    });
}

/// Each prefix is 14 blocks or so, of which a scan that seeks behind each prefix reads one or two.
#[test]
fn seeks_behind_prefixes_read_a_block_or_two_for_each() {
    let world = World::new(3);
    world.run(async {
        let table = filled(&world, 100, 512).await;
        for reverse in [false, true] {
            let range = Range { reverse, ..Range::all() };
            let order = |n: u32| if reverse { 19 - n } else { n };
            let mut scan = table.scan(range);
            let first = if reverse { 99 } else { 0 };
            let (count, _) = reads(&world, async {
                for n in 0..20 {
                    assert_eq!(next_key(&mut scan).await, Some(key(order(n), first)));
                    let mut end = key(order(n), 99_999);
                    if reverse {
                        end = format!("prefix/{:02}/", order(n)).into_bytes();
                    }
                    scan.seek(&end).await.unwrap();
                }
                assert_eq!(next_key(&mut scan).await, None);
            })
            .await;
            assert!(count <= 2 * 20, "reverse {reverse}: {count} reads");
        }
    });
}

/// A scan that goes on reads ahead: its seeks go through what it has.
#[test]
fn seeks_over_a_few_keys_read_no_more_than_a_scan_of_all() {
    let world = World::new(4);
    world.run(async {
        let table = filled(&world, 100, 512).await;
        let mut whole = table.scan(Range::all());
        let (all, entries) = reads(&world, whole.take(usize::MAX)).await;
        assert_eq!(entries.unwrap().len(), 2000);
        let mut scan = table.scan(Range::all());
        let (some, _) = reads(&world, async {
            for prefix in 0..20 {
                for number in (0..100).step_by(3) {
                    scan.seek(&key(prefix, number)).await.unwrap();
                    assert_eq!(next_key(&mut scan).await, Some(key(prefix, number)));
                }
            }
        })
        .await;
        assert!(some <= all, "{some} reads, {all} for all");
    });
}
