//! A segment that stands still holds up neither other segments nor its clients' deadlines.

use std::time::Duration;

use block_client::Limits;
use block_volume::contract::Device;
use block_volume::geometry::{Extent, SegmentIndex};
use runtime::Class;

use super::{VOLUME, World, segment, shape, world};

const BLOCK: u64 = 4096;
const SECOND: Duration = Duration::from_secs(1);

/// Offsets of the blocks of a segment.
fn blocks_of(index: u32) -> impl Iterator<Item = u64> {
    let blocks = (0..shape().bytes / BLOCK).map(|block| block * BLOCK);
    blocks.filter(move |offset| shape().geometry.locate(*offset).0 == SegmentIndex::new(index))
}

fn block(offset: u64) -> Extent {
    Extent { offset, len: BLOCK }
}

#[test]
fn requests_that_wait_for_a_session_fail_at_their_deadline() {
    world(32, async |world: World| {
        world.gates.shut_opening(segment(0));
        let limits = Limits { open_timeout: SECOND, deadline: 3 * SECOND, ..Limits::default() };
        let (env, volume) = world.volume(world.manager.attach(VOLUME, true), limits);
        let began = env.now();
        let reads: Vec<_> = blocks_of(0).take(64).collect();
        let reads = reads.into_iter().map(|offset| {
            let volume = volume.clone();
            env.spawn(Class::Foreground, "read", async move {
                volume.read(block(offset)).await.expect_err("no session begins");
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.expect("it ends");
        }
        let took = env.now() - began;
        assert!(took <= 5 * SECOND, "the last request failed after {took:?}");
    });
}
