//! Bounds and promises of volumes (B12), in simulated time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block_client::{Limits, Volume};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::qos::VolumeLimits;
use runtime::Env;

use super::{VOLUME, World, buf, on, world};

pub const NONE: VolumeLimits =
    VolumeLimits { iops_base: 0, iops_burst: 0, bytes_base: 0, bytes_burst: 0 };
const BLOCK: u64 = 4096;

fn attached(world: &World) -> (Env, Volume) {
    world.volume(world.manager.attach(VOLUME, false), Limits::default())
}

/// Reads of one block by `lanes` at once for a while; how many were done so far.
fn load(env: &Env, volume: &Volume, lanes: usize, time: Duration) -> Rc<Cell<u64>> {
    let done = Rc::new(Cell::new(0));
    for lane in 0..lanes {
        let (env, volume, done) = (env.clone(), volume.clone(), done.clone());
        let end = env.now() + time;
        env.clone().spawn(runtime::Class::Foreground, "load", async move {
            // All to one segment.
            let extent = Extent { offset: lane as u64 % 4 * BLOCK, len: BLOCK };
            while env.now() < end {
                volume.read(extent).await.expect("it is read");
                done.set(done.get() + 1);
            }
        });
    }
    done
}

#[test]
fn volume_keeps_its_limits_and_new_limits_apply_at_once() {
    world(1, async |world| {
        let (env, volume) = attached(&world);
        let second = Duration::from_secs(1);
        on(&env.clone(), async move {
            // 100 ms of the rate may go at once, and what is under way at the end is done.
            let near = |done: u64, rate: u64, seconds: u64| {
                let (least, most) = (rate * seconds - rate / 10, rate * seconds + rate / 10 + 16);
                assert!((least..=most).contains(&done), "{done} of {rate}/s in {seconds} s");
            };
            volume.set_limits(VolumeLimits { iops_burst: 200, ..NONE }, 1);
            let done = load(&env, &volume, 16, 4 * second);
            env.sleep(3 * second).await;
            near(done.get(), 200, 3);
            // Waiting requests go at the new rate at once.
            volume.set_limits(VolumeLimits { iops_burst: 1000, ..NONE }, 1);
            done.set(0);
            env.sleep(second).await;
            near(done.get(), 1000, 1);
            env.sleep(second).await;

            // Each of two attachments has half.
            volume.set_limits(VolumeLimits { iops_burst: 1000, ..NONE }, 2);
            let done = load(&env, &volume, 16, second);
            env.sleep(second).await;
            near(done.get(), 500, 1);
            env.sleep(second).await;

            volume.set_limits(VolumeLimits { bytes_burst: 100 * BLOCK, ..NONE }, 1);
            let done = load(&env, &volume, 4, second);
            env.sleep(second).await;
            near(done.get(), 100, 1);
            env.sleep(second).await;

            // A request that is larger than the bucket goes, and the next waits for it.
            volume.set_limits(VolumeLimits { bytes_burst: 64 * BLOCK, ..NONE }, 1);
            let large = buf(&env, &vec![1; 64 * BLOCK as usize]);
            let began = env.now();
            volume.write(0, large.clone()).await.expect("it is written");
            volume.write(0, large).await.expect("it is written");
            let took = env.now() - began;
            let fits = Duration::from_millis(850)..Duration::from_millis(1100);
            assert!(fits.contains(&took), "{took:?}");

            // Without bounds again.
            volume.set_limits(NONE, 1);
            let done = load(&env, &volume, 16, second);
            env.sleep(second).await;
            assert!(done.get() > 3000, "{}", done.get());
            env.sleep(second).await;
        })
        .await;
    });
}

/// Requests of a volume on a congested server beside 200 of another, a second.
fn beside_a_crowd(promised: u64) -> (u64, u64) {
    let counts = Rc::new(Cell::new((0, 0)));
    let seen = counts.clone();
    world(2, async |world| {
        let (crowd, quiet) = (attached(&world), attached(&world));
        quiet.1.set_limits(VolumeLimits { iops_base: promised, ..NONE }, 1);
        let second = Duration::from_secs(1);
        let start = async |(env, volume): &(Env, Volume), lanes: usize| {
            let (env, volume) = (env.clone(), volume.clone());
            on(&env.clone(), async move { load(&env, &volume, lanes, 3 * second) }).await
        };
        let (crowded, quieted) = (start(&crowd, 200).await, start(&quiet, 8).await);
        world.sim.sleep(second).await;
        // The requests of the start are done.
        let before = (crowded.get(), quieted.get());
        world.sim.sleep(second).await;
        seen.set((crowded.get() - before.0, quieted.get() - before.1));
        world.sim.sleep(2 * second).await;
    });
    counts.get()
}

#[test]
fn promised_requests_go_first() {
    let (crowd, quiet) = beside_a_crowd(0);
    assert!(quiet < 1000, "without a promise it has its turn in the queue: {quiet}");
    assert!(crowd > 5000, "{crowd}");
    let (crowd, quiet) = beside_a_crowd(2000);
    assert!(quiet >= 1900, "2000 a second are promised: {quiet}");
    assert!(crowd > 4000, "the rest is free for others: {crowd}");
}

/// A steady promised load, above what the server can take: volumes without a promise have a share
/// of it, and none of their requests fails.
#[test]
fn volume_without_a_promise_progresses_under_steady_promised_load() {
    let sim = world(3, async |world| {
        let (promised, free) = (attached(&world), attached(&world));
        promised.1.set_limits(VolumeLimits { iops_base: 1_000_000, ..NONE }, 1);
        let second = Duration::from_secs(1);
        let start = async |(env, volume): &(Env, Volume), lanes: usize| {
            let (env, volume) = (env.clone(), volume.clone());
            on(&env.clone(), async move { load(&env, &volume, lanes, 4 * second) }).await
        };
        let (steady, quiet) = (start(&promised, 64).await, start(&free, 8).await);
        world.sim.sleep(second).await;
        let before = (steady.get(), quiet.get());
        world.sim.sleep(2 * second).await;
        let done = (steady.get() - before.0, quiet.get() - before.1);
        assert!(done.1 * 12 >= done.0, "{done:?}: promised, and without a promise");
        assert!(done.0 > done.1 * 6, "{done:?}: promised, and without a promise");
        world.sim.sleep(3 * second).await;
    });
    assert!(sim.marks().contains_key("block: request let in by its share"), "{:?}", sim.marks());
}
