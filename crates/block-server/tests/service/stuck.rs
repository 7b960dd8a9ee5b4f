//! A segment that stands still holds up neither other segments nor its clients' deadlines.

use std::time::Duration;

use block_client::{Limits, Volume};
use block_volume::contract::Device;
use block_volume::geometry::{Extent, SegmentIndex};
use block_volume::qos::VolumeLimits;
use runtime::{Class, Env, JoinHandle};

use super::limits::NONE;
use super::{VOLUME, World, buf, on, segment, shape, world};

const BLOCK: u64 = 4096;
const SECOND: Duration = Duration::from_secs(1);
/// A client repeats its requests after this long.
const SHORT: Duration = Duration::from_millis(200);

/// Offsets of the blocks of a segment.
fn blocks_of(index: u32) -> impl Iterator<Item = u64> {
    let blocks = (0..shape().bytes / BLOCK).map(|block| block * BLOCK);
    blocks.filter(move |offset| shape().geometry.locate(*offset).0 == SegmentIndex::new(index))
}

fn block(offset: u64) -> Extent {
    Extent { offset, len: BLOCK }
}

/// Reads a block of a segment; false when that takes more than a second.
async fn reads_within_a_second((env, volume): &(Env, Volume), index: u32) -> bool {
    let (inner, volume) = (env.clone(), volume.clone());
    let offset = blocks_of(index).next().expect("each segment has blocks");
    let read = async move { inner.timeout(SECOND, volume.read(block(offset))).await };
    on(env, read).await.is_ok_and(|read| read.is_ok())
}

/// Another client's read of another segment while requests of one client stand still at segment 0.
fn beside_stuck_requests(
    (count, call_timeout): (usize, Duration),
    work: impl Fn(&(Env, Volume), u64) -> JoinHandle<()>,
) {
    world(30, async |world: World| {
        let limits = Limits { call_timeout, ..Limits::default() };
        let stuck = world.volume(world.manager.attach(VOLUME, false), limits);
        let other = world.volume(world.manager.attach(VOLUME, false), Limits::default());
        assert!(reads_within_a_second(&stuck, 0).await && reads_within_a_second(&other, 1).await);
        world.gates.device(segment(0)).shut();
        blocks_of(0).take(count).for_each(|offset| drop(work(&stuck, offset)));
        world.sim.sleep(4 * SECOND).await;
        assert!(reads_within_a_second(&other, 1).await, "held up by another segment's requests");
    });
}

#[test]
fn writes_that_stand_still_hold_up_no_other_segment() {
    beside_stuck_requests((8, SHORT), |(env, volume), offset| {
        let (volume, data) = (volume.clone(), buf(env, &[1; BLOCK as usize]));
        env.spawn(Class::Foreground, "write", async move {
            volume.write(offset, data).await.expect_err("it stands still");
        })
    });
}

fn read_without_an_answer((env, volume): &(Env, Volume), offset: u64) -> JoinHandle<()> {
    let volume = volume.clone();
    env.spawn(Class::Foreground, "read", async move {
        volume.read(block(offset)).await.expect_err("it stands still");
    })
}

#[test]
fn reads_that_stand_still_hold_up_no_other_segment() {
    beside_stuck_requests((8, SHORT), read_without_an_answer);
}

#[test]
fn many_reads_that_stand_still_hold_up_no_other_segment() {
    beside_stuck_requests((120, Limits::default().call_timeout), read_without_an_answer);
}

/// Promised requests begin at once, however many are under way: those that stand still do not count
/// as load of the server.
#[test]
fn promised_reads_that_stand_still_hold_up_no_other_segment() {
    world(34, async |world: World| {
        let stuck = world.volume(world.manager.attach(VOLUME, false), Limits::default());
        let other = world.volume(world.manager.attach(VOLUME, false), Limits::default());
        stuck.1.set_limits(VolumeLimits { iops_base: 1000, ..NONE }, 1);
        assert!(reads_within_a_second(&stuck, 0).await && reads_within_a_second(&other, 1).await);
        world.gates.device(segment(0)).shut();
        blocks_of(0).take(120).for_each(|offset| drop(read_without_an_answer(&stuck, offset)));
        for _ in 0..20 {
            world.sim.sleep(SECOND / 2).await;
            let read = reads_within_a_second(&other, 1).await;
            assert!(read, "held up by promised requests of another segment");
        }
    });
}

#[test]
fn openings_that_stand_still_leave_the_link_to_other_segments() {
    world(31, async |world: World| {
        world.kill(0);
        let limits = transport::Limits { requests_inflight_max: 8, ..Default::default() };
        world.boot_with(0, limits).await;
        world.gates.shut_opening(segment(0));
        let short = Limits { open_timeout: SHORT, ..Limits::default() };
        let (env, volume) = world.volume(world.manager.attach(VOLUME, true), short);
        let stuck = volume.clone();
        env.spawn(Class::Foreground, "read", async move {
            let first = blocks_of(0).next().expect("each segment has blocks");
            stuck.read(block(first)).await.expect_err("it stands still");
        });
        world.sim.sleep(4 * SECOND).await;
        let other = (env, volume);
        assert!(reads_within_a_second(&other, 1).await, "the link is full of openings");
    });
}

/// Or a segment whose recovery takes longer than clients wait would never be open.
#[test]
fn opening_goes_on_when_its_request_is_given_up() {
    world(33, async |world: World| {
        world.gates.shut_opening(segment(0));
        let short = Limits { open_timeout: SHORT, ..Limits::default() };
        let client = world.volume(world.manager.attach(VOLUME, true), short);
        assert!(!reads_within_a_second(&client, 0).await);
        world.gates.end_opening(segment(0));
        assert!(reads_within_a_second(&client, 0).await);
        assert_eq!(world.gates.openings_begun(), 1);
    });
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
