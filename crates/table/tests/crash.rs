//! An owner crashes at every step of its calls; the next one finds all that was acknowledged.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::future::{Either, select};
use runtime::sim::CrashMode;
use runtime::{Duration, Rng};
use table::{Cache, Options, Table};
use testing::tables::{Oracle, own};

use crate::support::{World, on, small, small_with_data};

/// A life of an owner up to the step; nothing when it did not get there. Answers the steps that
/// its world has seen.
fn life(seed: u64, options: &Options, stop_at: Option<u64>, lose_one_in: u64) -> u64 {
    let world = World::new(seed);
    let oracle = Oracle::new();
    let done = world.run(async {
        world.disk.stop_at(stop_at);
        world.disk.with_faults(|faults| faults.lose_one_in = lose_one_in);
        let (host, env) = world.boot();
        let first = {
            let (oracle, disk, at) = (oracle.clone(), world.disk.clone(), env.clone());
            let options = options.clone();
            env.spawn(runtime::Class::Foreground, "owner", async move {
                let cache = table::Cache::new(16 << 10);
                let opened = table::Table::open(&at, disk.store(&at), &cache, options).await;
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
            let options = options.clone();
            let next = on(&env, async move {
                let cache = table::Cache::new(16 << 10);
                let opened = table::Table::open(&at, disk.store(&at), &cache, options).await;
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

/// Crashes in each step, or in each third one with answers lost.
fn lives(seed: u64, options: &Options, lose_one_in: u64) {
    let points = life(seed, options, None, lose_one_in);
    assert!(points > 200, "seed {seed}: only {points} steps to crash at");
    for point in (1..=points).step_by(if lose_one_in > 0 { 3 } else { 1 }) {
        life(seed, options, Some(point), lose_one_in);
    }
}

#[test]
fn nothing_acknowledged_is_lost_wherever_an_owner_crashes() {
    lives(1, &small(), 0);
}

#[test]
fn nothing_acknowledged_is_lost_when_answers_are_lost() {
    [2, 5, 9].into_iter().for_each(|seed| lives(seed, &small(), 30));
}

#[test]
fn no_data_is_lost_wherever_an_owner_crashes() {
    lives(3, &small_with_data(), 0);
}

#[test]
fn no_data_is_lost_when_answers_are_lost() {
    [4, 6, 8].into_iter().for_each(|seed| lives(seed, &small_with_data(), 30));
}

/// A merge ends with an edit of the manifest. An edit of which only the beginning was done must not
/// be followed by another with its number.
#[test]
fn table_opens_after_a_compaction_whose_caller_gave_up() {
    for polls in 1.. {
        let world = World::new(5);
        let ended = world.run(async {
            let (_, env) = world.boot();
            let (at, disk) = (env.clone(), world.disk.clone());
            let work = on(&env, async move {
                let options = Options { auto_compact: false, ..small() };
                let cache = Cache::new(16 << 10);
                let open = || Table::open(&at, disk.store(&at), &cache, options.clone());
                let table = open().await.expect("it is new");
                for key in 0..2u8 {
                    table.put(&[key], &[key]).await.expect("it is stored");
                    table.flush().await.expect("it is flushed");
                }
                let mut compaction = Box::pin(table.compact());
                let mut left = polls;
                let ended = poll_fn(|cx| {
                    let ended = compaction.as_mut().poll(cx).is_ready();
                    left -= 1;
                    if ended || left == 0 { Poll::Ready(ended) } else { Poll::Pending }
                });
                let ended = ended.await;
                drop(compaction);
                table.put(&[2], &[2]).await.expect("it is stored");
                table.flush().await.expect("it is flushed");
                drop(table);
                let table = open().await.unwrap_or_else(|error| panic!("{polls} polls: {error}"));
                for key in 0..3u8 {
                    assert_eq!(table.get(&[key]).await, Ok(Some(vec![key])), "{polls} polls");
                }
                ended
            });
            work.await.expect("no crash")
        });
        if ended {
            assert!(polls > 1, "it was never left in the middle");
            return;
        }
    }
}
