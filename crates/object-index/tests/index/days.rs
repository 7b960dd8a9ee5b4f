//! Lifecycle of short days over owners that take the objects over from one another, gateways that die, and a
//! network between that loses, delays and doubles: what goes was due, and what was due goes.

use std::rc::Rc;

use object_index::{Bugs, Planted};
use object_proto::{LifecycleDay, RangeId};
use object_testing::Fate;
use object_testing::days::DaysLoad;
use runtime::sim::CrashMode;
use runtime::{Class, Duration, Rng};

use super::owners::{FATE, faults, outcome, reign, seeds_of};
use super::support::{Unit, World, bucket};

const DAY: LifecycleDay = LifecycleDay::from_us(3_000_000);

fn run(seed: u64, bugs: Bugs) -> Result<u64, String> {
    let world = World::new(seed, bugs);
    world.clone().run(async move {
        faults(&world, false);
        let draw = |least, most| world.sim.with_rng(|rng| rng.between(least, most));
        world.new_ranges.set(draw(1, 3) as u32);
        world.lifecycle.set((DAY, draw(8000, 60_000)));
        let ranges = (1..=world.new_ranges.get()).map(|id| Unit::Range(RangeId::new(id.into())));
        let units: Vec<Unit> = ranges.chain([Unit::Manager]).collect();
        let mut first = Vec::new();
        for &unit in &units {
            first.push(world.take_over_unit(unit).await.map_err(|error| error.to_string())?);
        }
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        let now_us = env.unix_time().as_nanos() / 1000;
        let load = DaysLoad::new(&world.sim, DAY, now_us);
        let preparing = {
            let load = load.clone();
            async move {
                bucket(&service, "abc").await;
                load.prepare(&service).await;
            }
        };
        env.spawn(Class::Foreground, "prepare", preparing).await.expect("no crash yet");
        faults(&world, true);
        world.network.set_fate(FATE);
        first.iter().for_each(|host| world.crash(host));
        let reigning: Vec<_> = units
            .iter()
            .map(|&unit| {
                let (load, rng) = (load.clone(), world.sim.with_rng(Rng::fork));
                let is_stopped = move || load.is_over();
                world.sim.spawn("reign", reign(world.clone(), unit, is_stopped, rng))
            })
            .collect();
        let gateways: Vec<_> = (0..3)
            .map(|_| world.sim.spawn("gateway", gateway(world.clone(), load.clone())))
            .collect();
        let end = world.sim.elapsed() + Duration::from_secs(draw(15, 40));
        while world.sim.elapsed() < end && load.violation().is_none() {
            world.sim.sleep(Duration::from_millis(100)).await;
        }
        faults(&world, false);
        world.network.set_fate(Fate::NONE);
        load.stop();
        let limit = world.sim.elapsed() + Duration::from_secs(180);
        while gateways.iter().any(|gateway| !gateway.is_finished()) {
            if world.sim.elapsed() > limit {
                return Err("a client does not end in three minutes without faults".to_owned());
            }
            world.sim.sleep(Duration::from_millis(100)).await;
        }
        while reigning.iter().any(|reigning| !reigning.is_finished()) {
            world.sim.sleep(Duration::from_millis(20)).await;
        }
        for &unit in &units {
            // The last one may have ended by itself while there were faults.
            world.sim.spawn("owners", world.clone().replace_ended_unit(unit));
        }
        let (_, env) = world.host("gateway");
        let (settled, service) = (load.clone(), world.service(&env));
        let settling = async move { settled.settle(&service).await };
        env.spawn(Class::Foreground, "settle", settling).await.expect("no crash")?;
        match load.violation() {
            Some(violation) => Err(violation),
            None => Ok(load.done()),
        }
    })
}

/// A gateway that dies again and again, with its clients.
async fn gateway(world: Rc<World>, load: DaysLoad) {
    while !load.is_over() {
        let (host, env) = world.host("gateway");
        let service = world.service(&env);
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let rng = world.sim.with_rng(Rng::fork);
                let client = load.clone().client(service.clone(), rng);
                env.spawn(Class::Foreground, "client", client)
            })
            .collect();
        let life = Duration::from_millis(world.sim.with_rng(|rng| rng.between(4000, 25_000)));
        let end = world.sim.elapsed() + life;
        while world.sim.elapsed() < end && !load.is_over() {
            world.sim.sleep(Duration::from_millis(50)).await;
        }
        if load.is_over() {
            while clients.iter().any(|client| !client.is_finished()) {
                world.sim.sleep(Duration::from_millis(50)).await;
            }
            return;
        }
        world.sim.crash(host, CrashMode::Process);
    }
}

#[test]
fn what_goes_was_due_and_what_was_due_goes_over_random_owners() {
    let given = std::env::var("OBJECT_SEEDS").ok();
    let mut done = 0;
    for seed in given.as_deref().map_or(0..100, seeds_of) {
        done += run(seed, Bugs::default()).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    assert!(given.is_some() || done > 20_000, "only {done} operations were answered");
}

#[test]
fn planted_bugs_of_lifecycle_are_found() {
    for bug in [
        Planted::ExpireByKey,
        Planted::ExpireForgetsTags,
        Planted::ExpireByClock,
        Planted::ExpireLocked,
        Planted::NoncurrentByOwnAge,
    ] {
        let found =
            (0..300).find_map(|seed| outcome(|| run(seed, Bugs::of(bug))).map(|what| (seed, what)));
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {}", what.lines().next().unwrap_or_default());
    }
}
