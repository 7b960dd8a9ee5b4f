//! An owner crashes at every step of its calls; the next one finds all that was acknowledged.

use futures_util::future::{Either, select};
use runtime::sim::CrashMode;
use runtime::{Duration, Rng};
use testing::tables::{Oracle, own};

use crate::support::{World, on, small};

/// A life of an owner up to the step; nothing when it did not get there. Answers the steps that
/// its world has seen.
fn life(seed: u64, stop_at: Option<u64>, lose_one_in: u64) -> u64 {
    let world = World::new(seed);
    let oracle = Oracle::new();
    let done = world.run(async {
        world.disk.stop_at(stop_at);
        world.disk.with_faults(|faults| faults.lose_one_in = lose_one_in);
        let (host, env) = world.boot();
        let first = {
            let (oracle, disk, at) = (oracle.clone(), world.disk.clone(), env.clone());
            env.spawn(runtime::Class::Foreground, "owner", async move {
                let cache = table::Cache::new(16 << 10);
                let opened = table::Table::open(&at, disk.store(&at), &cache, small()).await;
                let Ok(table) = opened else { return Ok(()) };
                own(&at, &table, &oracle, &mut Rng::new(seed), (40, Duration::ZERO)).await?;
                let _ = table.compact().await; // Lost answers may end it.
                let _ = table.barrier().await;
                let _ = table.close().await;
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
            let (oracle, disk, at) = (oracle.clone(), world.disk.clone(), env.clone());
            let next = on(&env, async move {
                let cache = table::Cache::new(16 << 10);
                let opened = table::Table::open(&at, disk.store(&at), &cache, small()).await;
                let table = opened.map_err(|error| error.to_string())?;
                own(&at, &table, &oracle, &mut Rng::new(seed + round), (4, Duration::ZERO)).await?;
                if round == 1 {
                    table.close().await.map_err(|error| error.to_string())?;
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
fn nothing_acknowledged_is_lost_wherever_an_owner_crashes() {
    let points = life(1, None, 0);
    assert!(points > 200, "only {points} steps to crash at");
    for point in 1..=points {
        life(1, Some(point), 0);
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_answers_are_lost() {
    let points = life(2, None, 8);
    for point in (1..=points).step_by(3) {
        life(2, Some(point), 8);
    }
}
