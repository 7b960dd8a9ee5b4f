//! Locations from an owner, for direct reads (decision 23).

use block_volume::contract::{BlockLocations, Clear, Device, Owned};
use block_volume::geometry::Extent;
use block_volume::limits::BLOCK;
use block_volume::location::LocationRun;
use runtime::Duration;
use table::Store;

use crate::device::support::{World, on, open, small};

/// Bytes of a record's head, and of the unit of locations.
const UNIT: u64 = 64;
const BLOCKS: u64 = 40;

fn at(block: u64, count: u64) -> Extent {
    Extent { offset: block * BLOCK, len: count * BLOCK }
}

/// The block at each location, by a direct read: a record's data is behind its head. Nothing where
/// the file does not show it: it may be its last append, or the file may have been collected.
async fn look(store: &dyn Store, spans: &[LocationRun]) -> Vec<Option<Vec<u8>>> {
    let mut seen = Vec::new();
    for span in spans {
        let Some(place) = span.at else {
            seen.extend((0..span.blocks).map(|_| Some(vec![0; BLOCK as usize])));
            continue;
        };
        let name = format!("data-{:08x}-{:08x}", place.file.0, place.file.1);
        let Ok(source) = store.open(&name).await else {
            seen.extend((0..span.blocks).map(|_| None));
            continue;
        };
        for n in 0..u64::from(span.blocks) {
            let offset = u64::from(place.unit) * UNIT + n * (UNIT + BLOCK) + UNIT;
            let bytes = source.read_at(offset, BLOCK as usize).await.expect("it reads");
            seen.push(Some(bytes).filter(|bytes| bytes.len() as u64 == BLOCK));
        }
    }
    seen
}

#[test]
fn locations_show_what_a_read_shows() {
    let world = World::new(31);
    let (_, env) = world.boot();
    let (disk, at_env) = (world.disk.clone(), env.clone());
    world.run(async {
        let work = async move {
            let env = at_env;
            // Nothing is packed, so that this test can read it.
            let options = block_segment::Options { compress: false, ..small() };
            let segment = open(&env, &disk, 1, options.clone()).await.unwrap();
            let write = |block: u64, value: u8| {
                let data = env.pool().copy_of(&[value; BLOCK as usize]).unwrap();
                segment.write(block * BLOCK, data)
            };
            write(0, 1).await.unwrap();
            // It is among the last appends: no direct read is sure to find it.
            assert_eq!(segment.locate(at(0, 1), true).await.unwrap(), None);
            // Never written, or trimmed.
            let hole = |first, blocks| {
                let spans = vec![LocationRun { blocks, at: None }];
                Some(BlockLocations { first, spans })
            };
            assert_eq!(segment.locate(at(100, 3), false).await.unwrap(), hole(100, 3));
            // Neighbours, as far as replicas show them.
            assert_eq!(segment.locate(at(100, 3), true).await.unwrap(), hole(96, 32));
            assert_eq!(segment.locate(at(2, 1), true).await.unwrap(), hole(1, 31));
            for block in 0..BLOCKS {
                write(block, block as u8 + 10).await.unwrap();
            }
            segment.clear(at(4, 3), Clear::Trim).await.unwrap();
            assert_eq!(segment.locate(at(4, 3), false).await.unwrap(), hole(4, 3));
            // One write of many blocks, whose records are in order, without gaps.
            let many = env.pool().copy_of(&[9; 8 * BLOCK as usize]).unwrap();
            segment.write(10 * BLOCK, many).await.unwrap();
            let (mut collected, mut shown) = (0, 0);
            for round in 0..12u8 {
                // Others are overwritten, until the first have been collected.
                for block in 200..300 {
                    write(block, round).await.unwrap();
                }
                let range = at(1, BLOCKS - 1);
                let around = segment.locate(range, true).await.unwrap().expect("they are shown");
                let BlockLocations { first, spans } = around;
                // Block 0 has a location, and those behind the range are zeroes.
                assert_eq!(first, 0);
                let count = spans.iter().map(|span| u64::from(span.blocks)).sum::<u64>();
                assert_eq!(count, 64);
                let only = segment.locate(range, false).await.unwrap().expect("as before");
                assert_eq!(only.first, 1);
                let spans = only.spans;
                let eight = spans.iter().any(|span| span.blocks >= 8 && span.at.is_some());
                assert!(eight || round > 0, "{spans:?}");
                let seen = look(&*disk.store(&env), &spans).await;
                let read = segment.read(range).await.unwrap();
                assert_eq!(seen.len() as u64, BLOCKS - 1);
                for (n, seen) in seen.iter().enumerate() {
                    let Some(seen) = seen else { continue };
                    shown += 1;
                    let wanted = &read[n * BLOCK as usize..(n + 1) * BLOCK as usize];
                    assert!(seen == wanted, "block {} in round {round}", n + 1);
                }
                env.sleep(Duration::from_millis(20)).await;
                collected = segment.stats().collected_blocks;
            }
            assert!(collected > BLOCKS && shown > 5 * BLOCKS, "{collected}, {shown}");
            // A part of a block has the location of the whole.
            let part = Extent { offset: 12 * BLOCK + 5, len: 7 };
            let whole = segment.locate(at(12, 1), false).await.unwrap();
            assert_eq!(segment.locate(part, false).await.unwrap(), whole);
            let beyond = Extent { offset: u64::MAX - 9, len: 10 };
            assert!(segment.locate(beyond, true).await.is_err());
        };
        on(&env, work).await.unwrap()
    });
}
