//! Files that no row of a range has: an owner that was shut out must not take them for left over.

use std::cell::Cell;
use std::rc::Rc;

use object_index::{Bugs, Planted, range_dir};
use object_proto::{ObjectFacts, ObjectKey, RangeId, Target, Versioning};
use runtime::{Class, Duration};

use super::basics::put;
use super::support::{Unit, World, bucket, name};

/// Whether an object reads back that was put by way of a second owner, with a file of a session of which the first
/// owner has never heard. That one stands still in a pass, and goes on when the session is closed.
fn reads_back(seed: u64, bugs: Bugs) -> bool {
    let (world, is_whole) = (World::new(seed, bugs), Rc::new(Cell::new(false)));
    let found = is_whole.clone();
    world.clone().run(async move {
        let range = Unit::Range(RangeId::new(1));
        world.take_over_unit(Unit::Manager).await.expect("it opens");
        let owner = world.take_over_unit(range).await.expect("it opens");
        let (_, env) = world.host("gateway");
        let (service, (_, other_env)) = (world.service(&env), world.host("other gateway"));
        let other = world.service(&other_env);
        let work = async move {
            let bucket = bucket(&service, "abc").await;
            let target = Target { bucket: bucket.id, key: ObjectKey::new("a").unwrap() };
            // Its session begins, of which the manager alone hears.
            other.set_versioning(name("abc"), Versioning::Enabled).await.unwrap();
            other.map().await.unwrap();
            world.network.cut_from_manager(&other_env, Duration::from_secs(300));
            let dir = world.disk.beside(&range_dir(RangeId::new(1)));
            let slow = (Duration::from_millis(300), Duration::from_millis(900));
            dir.with_faults(|faults| faults.latency = slow);
            let until = Duration::from_millis(world.sim.with_rng(|rng| rng.between(3000, 20_000)));
            world.sim.sleep(until).await;
            world.sim.pause(owner.id, Duration::from_secs(80));
            world.abandon(&owner);
            dir.with_faults(|faults| faults.latency = (Duration::ZERO, Duration::ZERO));
            world.take_over_unit(range).await.expect("it opens");
            let body: Vec<u8> = (0..200_000).map(|at: u32| (at >> 3) as u8).collect();
            put(&other, &target, &body, ObjectFacts::default()).await;
            world.sim.sleep(Duration::from_secs(90)).await;
            let info = service.look(&target, None).await.expect("it is there");
            let content = service.content(&target, &info).await;
            if let Ok(content) = content
                && let Ok(read) = content.read(0, body.len()).await
            {
                found.set(body.starts_with(&read) && !read.is_empty());
            }
        };
        env.spawn(Class::Foreground, "test", work).await.unwrap();
    });
    is_whole.get()
}

#[test]
fn an_owner_that_was_shut_out_removes_no_file_of_its_successor() {
    let lost = (0..200).filter(|&seed| !reads_back(seed, Bugs::default()));
    assert_eq!(lost.collect::<Vec<_>>(), []);
    let mut planted =
        (0..200).filter(|&seed| !reads_back(seed, Bugs::of(Planted::OrphansOfOthers)));
    assert!(planted.next().is_some());
}
