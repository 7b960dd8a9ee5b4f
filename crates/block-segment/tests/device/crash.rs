//! An owner crashes at every step of its store's calls; the next one finds all that was answered.

use block_testing::device::{load, whole};
use futures_util::future::{Either, select};
use runtime::sim::CrashMode;
use runtime::{Class, Rng};

use crate::device::support::{World, device, on, open, plan, small};

/// A life of an owner up to the step; nothing when it did not get there. Returns the steps that its
/// world has seen.
fn life(seed: u64, stop_at: Option<u64>, lose_one_in: u64) -> u64 {
    let world = World::new(seed);
    let done = world.run(async {
        world.disk.stop_at(stop_at);
        world.disk.with_faults(|faults| faults.lose_one_in = lose_one_in);
        let (host, env) = world.boot();
        let first = {
            let (oracle, disk, at) = (world.oracle.clone(), world.disk.clone(), env.clone());
            env.spawn(Class::Foreground, "owner", async move {
                let Ok(segment) = open(&at, &disk, 1, small()).await else { return Ok(()) };
                let mut rng = Rng::new(seed);
                load(&at, device(&segment), &oracle, &mut rng, plan(230)).await?;
                let _ = segment.checkpoint().await; // Lost answers may end it.
                let _ = segment.close().await;
                Ok::<(), String>(())
            })
        };
        // Either it ends, or it hangs at its step.
        let hangs = Box::pin(world.disk.stopped());
        let which = select(Box::pin(first), hangs).await;
        if let Either::Left((Ok(Err(violation)), _)) = which {
            return Err(violation);
        }
        let points = world.disk.points();
        world.disk.stop_at(None);
        world.sim.crash(host, CrashMode::Process);
        world.disk.with_faults(|faults| faults.lose_one_in = 0);
        for round in 0..2 {
            let (host, env) = world.boot();
            let (oracle, disk, at) = (world.oracle.clone(), world.disk.clone(), env.clone());
            let next = on(&env, async move {
                let segment = open(&at, &disk, 2 + round, small()).await;
                let segment = segment.map_err(|fault| fault.to_string())?;
                let oracle = oracle.owned_by(2 + round);
                oracle.settle(&whole(&segment).await.map_err(|fault| fault.to_string())?)?;
                let mut rng = Rng::new(seed + round);
                load(&at, device(&segment), &oracle, &mut rng, plan(6)).await?;
                if round == 1 {
                    segment.checkpoint().await.map_err(|fault| fault.to_string())?;
                    segment.close().await.map_err(|fault| fault.to_string())?;
                }
                Ok::<(), String>(())
            });
            next.await.expect("no crash")?;
            world.sim.crash(host, CrashMode::Process);
        }
        Ok(points)
    });
    done.unwrap_or_else(|what| panic!("seed {seed}, crash at step {stop_at:?}: {what}"))
}

#[test]
fn answered_changes_survive_a_crash_at_any_step() {
    let points = life(1, None, 0);
    assert!(points > 400, "only {points} steps to crash at");
    for point in (1..=points).step_by(2) {
        life(1, Some(point), 0);
    }
}

#[test]
fn answered_changes_survive_a_crash_with_answers_lost() {
    let points = life(2, None, 8);
    for point in (1..=points).step_by(5) {
        life(2, Some(point), 8);
    }
}
