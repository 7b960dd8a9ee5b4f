//! What a check reads.

use block::contract::{Clear, Device};
use block::device::Segment;
use block::geometry::Extent;
use runtime::Env;
use wire::control::SegmentCheck;

use crate::device::support::{World, on, open, small};

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
fn a_check_reads_all_that_has_data() {
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
        });
        done.await.expect("no crash");
    });
}
