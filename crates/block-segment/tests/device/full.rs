//! Segments of one process on a full cluster.

use base::Kind;
use block_segment::Segment;
use block_segment::limits::FULL_PAUSE;
use block_volume::contract::Device;
use block_volume::ids::Identity;
use futures_util::FutureExt;
use futures_util::future::join_all;
use runtime::{Duration, Env};
use testing::tables::MemDisk;

use crate::device::support::{BYTES, World, on, shared, small};

const SEGMENTS: u32 = 4;

/// Writes a block to each segment at the same time; how many writes were done. Of those that were not,
/// one that has tried does not know.
async fn write_all(env: &Env, segments: &[Segment]) -> usize {
    let data = env.pool().copy_of(&[1; 4096]).expect("within the budget");
    let writes = segments.iter().map(|segment| segment.write(0, data.clone()));
    let done = join_all(writes).await;
    for fault in done.iter().filter_map(|done| done.as_ref().err()) {
        assert!(matches!(fault.kind, Kind::Full | Kind::Unknown), "{fault}");
    }
    done.iter().filter(|done| done.is_ok()).count()
}

/// The segments that have not stopped: to open one again takes room for metadata.
fn living(segments: &[Segment]) -> Vec<Segment> {
    let living = segments.iter().filter(|it| it.until_stopped().now_or_never().is_none());
    living.cloned().collect()
}

#[test]
fn one_write_of_all_segments_tries_on_a_full_cluster() {
    let world = World::new(31);
    let disks: Vec<_> = (0..SEGMENTS).map(|_| MemDisk::new(&world.sim)).collect();
    world.run(async {
        let (_, env) = world.boot();
        let at = env.clone();
        let done = on(&env, async move {
            let (shared, mut segments) = (shared(), Vec::new());
            for (segment, disk) in disks.iter().enumerate() {
                let what = (Identity { volume: 7, segment: segment as u32 }, BYTES, 1);
                let store = disk.store(&at);
                let opened = Segment::open(&at, store, &shared, what, small()).await;
                segments.push(opened.expect("it is new"));
            }
            assert_eq!(write_all(&at, &segments).await, segments.len());
            let set_full = |full| {
                disks.iter().for_each(|disk| disk.with_faults(|faults| faults.full = full));
            };
            // Blocks find no room; the segments' metadata does, before and after.
            let pause = FULL_PAUSE + Duration::from_millis(1);
            at.sleep(pause).await;
            set_full(true);
            assert_eq!(write_all(&at, &segments[..1]).await, 0);
            set_full(false);
            for left in [3, 2] {
                let living = living(&segments);
                assert_eq!(living.len(), left, "one write tries, and stops its segment");
                assert_eq!(write_all(&at, &living).await, 0, "it is too early");
                at.sleep(pause).await;
                set_full(left > 2);
                let done = write_all(&at, &living).await;
                set_full(false);
                assert_eq!(done, usize::from(left == 2), "of {left} writes one tries");
            }
            // It has found room, so that the others go on.
            assert_eq!(write_all(&at, &living(&segments)).await, 2);
        });
        done.await.expect("no crash");
    });
}
