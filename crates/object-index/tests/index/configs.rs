//! Configurations of buckets, and owners that hear of a change late: it is on record before they are ordered to
//! go by it.

use std::cell::Cell;
use std::rc::Rc;

use object_index::{Bugs, Planted, Service};
use object_proto::{
    BucketId, Error, ObjectFacts, ObjectKey, RangeId, Target, VersionId, Versioning,
};
use runtime::sim::CrashMode;
use runtime::{Class, Duration, Env};

use super::basics::put;
use super::support::{Host, Unit, World, bucket, name};

/// A manager, the owner of the only range, and a gateway.
struct Separate {
    world: Rc<World>,
    manager: Rc<Host>,
    owner: Env,
    service: Service,
    bucket: BucketId,
}

fn run<F: Future<Output = ()> + 'static>(bugs: Bugs, work: impl FnOnce(Separate) -> F + 'static) {
    let world = World::new(1, bugs);
    world.clone().run(async move {
        let manager = world.take_over_unit(Unit::Manager).await.expect("it opens");
        let owner = world.take_over_unit(Unit::Range(RangeId::new(1))).await.expect("it opens");
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        let owner = object_testing::Target::env(&*owner);
        env.clone()
            .spawn(Class::Foreground, "test", async move {
                let bucket = bucket(&service, "abc").await.id;
                let all = Separate { world, manager, owner, service, bucket };
                // The owner knows the bucket.
                assert!(!all.keeps_versions().await);
                work(all).await;
            })
            .await
            .unwrap();
    });
}

impl Separate {
    /// Whether an object that is put now is a version.
    async fn keeps_versions(&self) -> bool {
        let target = Target { bucket: self.bucket, key: ObjectKey::new("a").unwrap() };
        put(&self.service, &target, b"1", ObjectFacts::default()).await;
        self.service.look(&target, None).await.unwrap().version() != VersionId::Null
    }

    /// Another gateway has versioning enabled, while the owner hears nothing for a time, and the manager and
    /// that gateway die.
    async fn lose_manager_and_gateway(&self) {
        let (world, sim) = (&self.world, &self.world.sim);
        world.network.cut_off(&self.owner, Duration::from_secs(2));
        let (other, env) = world.host("other gateway");
        let service = world.service(&env);
        env.spawn(Class::Foreground, "change", async move {
            let _ = service.set_versioning(name("abc"), Versioning::Enabled).await;
        });
        sim.sleep(Duration::from_millis(500)).await;
        sim.crash(other, CrashMode::Process);
        world.crash(&self.manager);
        world.take_over_unit(Unit::Manager).await.expect("it opens");
        let view = self.service.bucket(name("abc")).await.unwrap();
        assert_eq!(view.bucket.versioning, Versioning::Enabled, "it is on record");
    }
}

#[test]
fn a_manager_orders_what_its_predecessor_put_on_record() {
    for bug in [None, Some(Planted::OrdersForgotten)] {
        let bugs = bug.map_or(Bugs::default(), Bugs::of);
        run(bugs, async move |all| {
            all.lose_manager_and_gateway().await;
            all.world.sim.sleep(Duration::from_secs(5)).await;
            assert_eq!(all.keeps_versions().await, bug.is_none(), "{bug:?}");
        });
    }
}

#[test]
fn a_change_that_owners_do_not_hear_of_in_time_may_have_been_made_and_comes_to_them() {
    run(Bugs::default(), async |all| {
        // A gateway that uses the bucket all the time, and keeps what it knows of it.
        all.world.keeps.set(true);
        let (_, env) = all.world.host("other gateway");
        let other = all.world.service(&env);
        let seen = Rc::new(Cell::new(Versioning::Off));
        let last = seen.clone();
        env.spawn(Class::Foreground, "look", async move {
            loop {
                if let Ok(view) = other.bucket(name("abc")).await {
                    last.set(view.bucket.versioning);
                }
                other.env().sleep(Duration::from_millis(100)).await;
            }
        });
        all.world.network.cut_off(&all.owner, Duration::from_secs(14));
        let set = all.service.set_versioning(name("abc"), Versioning::Enabled).await;
        assert!(matches!(set, Err(Error::Unknown { .. })), "{set:?}");
        all.world.sim.sleep(Duration::from_secs(9)).await;
        assert!(all.keeps_versions().await);
        assert_eq!(seen.get(), Versioning::Enabled);
    });
}
