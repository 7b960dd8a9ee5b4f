//! Users, access keys and settings of buckets: what is on record, and what gateways keep of it.

use std::rc::Rc;

use object_index::{Bugs, Planted};
use object_proto::limits::{KEYS_PER_USER_MAX, POLICY_MAX};
use object_proto::{
    BucketSettings, Error, NewKey, PublicAccess, Setting, User, UserChange, UserId,
};
use object_testing::settings::SettingsLoad;
use object_testing::{Fate, add_user};
use runtime::sim::CrashMode;
use runtime::{Class, Duration, Rng};

use super::basics::run;
use super::support::{Unit, World, name};

fn new_key(id: &str) -> Box<NewKey> {
    let (wrapped_secret, policy) = (vec![1, 2], Some("{}".to_owned()));
    Box::new(NewKey { id: id.to_owned(), wrapped_secret, expires_us: Some(9), policy })
}

fn named(id: &str, name: &str) -> Box<User> {
    Box::new(User {
        id: UserId::new(id),
        name: name.to_owned(),
        email: "a@b".to_owned(),
        policy: Some("{}".to_owned()),
        ..User::default()
    })
}

#[test]
fn users_and_keys_are_made_changed_and_removed() {
    run(|world, service, _| async move {
        let (ann, id) = (named("1", "ann"), UserId::new("1"));
        assert_eq!(service.access_key("A").await, Ok(None));
        assert_eq!(service.user("ann").await, Err(Error::NoSuchUser));
        let create = |user: &User, key| UserChange::Create {
            user: Box::new(user.clone()),
            key: new_key(key),
        };
        service.change_user(create(&ann, "A")).await.unwrap();
        let key = service.access_key("A").await.unwrap().expect("it is there");
        assert_eq!((&key.user, &key.wrapped_secret[..], key.enabled), (&*ann, &[1, 2][..], true));
        assert_eq!((key.expires_us, key.policy.as_deref()), (Some(9), Some("{}")));
        for (user, key) in
            [(named("2", "ann"), "B"), (named("1", "bea"), "B"), (named("2", "bea"), "A")]
        {
            assert_eq!(service.change_user(create(&user, key)).await, Err(Error::NameTaken));
        }
        service.change_user(create(&named("2", "bea"), "B")).await.unwrap();
        let add =
            |user: &str, key| UserChange::AddKey { user: UserId::new(user), key: new_key(key) };
        assert_eq!(service.change_user(add("3", "C")).await, Err(Error::NoSuchUser));
        assert_eq!(service.change_user(add("1", "B")).await, Err(Error::NameTaken));
        service.change_user(add("1", "C")).await.unwrap();
        let enable = |user: &str, key: &str, enabled| UserChange::EnableKey {
            user: UserId::new(user),
            key: key.to_owned(),
            enabled,
        };
        let other = service.change_user(enable("2", "C", false)).await;
        assert_eq!(other, Err(Error::NoSuchAccessKey));
        service.change_user(enable("1", "C", false)).await.unwrap();
        let policy = UserChange::SetPolicy { user: id.clone(), policy: None };
        service.change_user(policy).await.unwrap();
        // Another manager knows it all.
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        let keys = service.keys(id.clone()).await.unwrap();
        let shown: Vec<_> = keys.iter().map(|key| (key.id.as_str(), key.enabled)).collect();
        assert_eq!(shown, [("A", true), ("C", false)]);
        assert!(keys.iter().all(|key| key.wrapped_secret.is_empty() && key.user.policy.is_none()));
        let users = service.users().await.unwrap();
        let names: Vec<_> = users.iter().map(|user| user.name.as_str()).collect();
        assert_eq!(names, ["ann", "bea"]);
        assert!(users.iter().all(|user| user.policy.is_none()));
        assert_eq!(service.user("bea").await.unwrap().policy.as_deref(), Some("{}"));
        let bucket = service.create_bucket(name("abc"), id.clone(), BucketSettings::default());
        bucket.await.unwrap();
        let remove = UserChange::Remove(id.clone());
        assert_eq!(service.change_user(remove.clone()).await, Err(Error::UserHasBuckets));
        service.remove_bucket(name("abc")).await.unwrap();
        let remove_key = UserChange::RemoveKey { user: id.clone(), key: "C".to_owned() };
        service.change_user(remove_key.clone()).await.unwrap();
        assert_eq!(service.change_user(remove_key).await, Err(Error::NoSuchAccessKey));
        service.change_user(remove.clone()).await.unwrap();
        assert_eq!(service.access_key("A").await, Ok(None));
        assert_eq!(service.change_user(remove).await, Err(Error::NoSuchUser));
        assert_eq!(service.keys(id).await, Err(Error::NoSuchUser));
    });
}

#[test]
fn users_have_a_bounded_number_of_keys_and_policies_a_size() {
    run(|_, service, _| async move {
        let user = UserId::new("u");
        add_user(&service, &user).await;
        for at in 1..KEYS_PER_USER_MAX {
            let key = new_key(&at.to_string());
            service.change_user(UserChange::AddKey { user: user.clone(), key }).await.unwrap();
        }
        let more = UserChange::AddKey { user: user.clone(), key: new_key("more") };
        assert_eq!(service.change_user(more).await, Err(Error::TooManyUsers));
        for (id, name) in [("x".repeat(1025), "n".to_owned()), ("x".to_owned(), "n".repeat(1025))] {
            let create = UserChange::Create { user: named(&id, &name), key: new_key("x") };
            let long = service.change_user(create).await;
            assert!(matches!(long, Err(Error::Invalid { .. })), "{long:?}");
        }
        let policy = Some("x".repeat(POLICY_MAX + 1));
        let long = service.change_user(UserChange::SetPolicy { user, policy }).await;
        assert!(matches!(long, Err(Error::Invalid { .. })), "{long:?}");
    });
}

#[test]
fn settings_of_buckets_are_kept_over_takeovers() {
    run(|world, service, _| async move {
        let owner = UserId::new("u");
        add_user(&service, &owner).await;
        let cors = vec![object_proto::CorsRule::default()];
        let settings = BucketSettings { cors, ..BucketSettings::default() };
        service.create_bucket(name("abc"), owner, settings.clone()).await.unwrap();
        let blocks = PublicAccess::all(false);
        let policy = Some("p".repeat(20_000));
        service.set_bucket(name("abc"), Setting::PublicAccess(blocks)).await.unwrap();
        service.set_bucket(name("abc"), Setting::Policy(policy.clone())).await.unwrap();
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        let view = service.bucket(name("abc")).await.unwrap();
        assert_eq!(view.settings, BucketSettings { public_access: blocks, policy, ..settings });
        let none = service.set_bucket(name("none"), Setting::Policy(None)).await;
        assert_eq!(none, Err(Error::NoSuchBucket));
        let tags = (0..50).map(|at| (at.to_string(), "v".repeat(8000))).collect();
        let large = service.set_bucket(name("abc"), Setting::Tags(tags)).await;
        assert!(matches!(large, Err(Error::Invalid { .. })), "{large:?}");
    });
}

const FATE: Fate =
    Fate { lose: 12, late_one_in: 12, late: Duration::from_secs(4), double: 12, stray: 12 };

/// Managers come and go until the load is stopped.
async fn reign(world: Rc<World>, load: SettingsLoad, end: Duration, mut rng: Rng) {
    while world.sim.elapsed() < end && load.violation().is_none() {
        let Ok(host) = world.take_over_unit(Unit::Manager).await else {
            world.sim.sleep(Duration::from_millis(50)).await;
            continue;
        };
        let most = if rng.one_in(2) { 8000 } else { 2000 };
        let until = world.sim.elapsed() + Duration::from_millis(rng.between(300, most));
        world.sim.sleep(until.min(end).saturating_sub(world.sim.elapsed())).await;
        match rng.below(3) {
            0 => world.crash(&host),
            1 => world.abandon(&host),
            _ => {
                world.sim.pause(host.id, Duration::from_millis(rng.between(200, 2000)));
                world.abandon(&host);
            }
        }
    }
}

/// A gateway that is cut off, stands still, and dies.
async fn gateway(world: Rc<World>, load: SettingsLoad, end: Duration) {
    while world.sim.elapsed() < end {
        let (host, env) = world.host("gateway");
        let service = world.service(&env);
        let rng = world.sim.with_rng(Rng::fork);
        env.spawn(Class::Foreground, "client", load.clone().client(service, rng));
        for _ in 0..world.sim.with_rng(|rng| rng.between(1, 4)) {
            let pause = world.sim.with_rng(|rng| rng.between(100, 4000));
            world.sim.sleep(Duration::from_millis(pause)).await;
            let time = Duration::from_millis(world.sim.with_rng(|rng| rng.between(200, 3000)));
            match world.sim.with_rng(|rng| rng.below(4)) {
                0 => world.network.cut_from_manager(&env, time),
                1 => world.network.hold(&env, time),
                2 => world.sim.pause(host, time),
                _ => {}
            }
        }
        world.sim.crash(host, CrashMode::Process);
    }
}

fn settings(seed: u64, bugs: Bugs) -> Result<(u64, u64), String> {
    let world = World::new(seed, bugs);
    world.keeps.set(true);
    world.clone().run(async move {
        let load = SettingsLoad::new(&world.sim, Duration::from_millis(15));
        let first = world.take_over_unit(Unit::Manager).await.map_err(|error| error.to_string())?;
        let (_, env) = world.host("maker");
        let preparing = {
            let (load, service) = (load.clone(), world.service(&env));
            async move { load.prepare(&service).await }
        };
        env.spawn(Class::Foreground, "prepare", preparing).await.expect("no crash");
        world.crash(&first);
        if seed.is_multiple_of(2) {
            world.network.set_fate(FATE);
        }
        let end = world.sim.elapsed() + Duration::from_secs(20);
        let rng = world.sim.with_rng(Rng::fork);
        world.sim.spawn("reign", reign(world.clone(), load.clone(), end, rng));
        for _ in 0..3 {
            world.sim.spawn("gateway", gateway(world.clone(), load.clone(), end));
        }
        while world.sim.elapsed() < end && load.violation().is_none() {
            world.sim.sleep(Duration::from_millis(100)).await;
        }
        load.stop();
        match load.violation() {
            Some(what) => Err(what),
            None => Ok(load.done()),
        }
    })
}

#[test]
fn no_gateway_goes_by_what_was_before_a_change() {
    let (mut changes, mut reads) = (0, 0);
    for seed in 0..100 {
        let done = settings(seed, Bugs::default());
        let done = done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        (changes, reads) = (changes + done.0, reads + done.1);
    }
    assert!(changes > 5000 && reads > 80_000, "{changes} changes, {reads} reads");
}

#[test]
fn planted_bugs_of_what_is_kept_are_found() {
    for bug in [Planted::KeyForever, Planted::KeptForever, Planted::KeptOfFormer, Planted::KeptLate]
    {
        let found = (0..300).find_map(|seed| {
            let found = settings(seed, Bugs::of(bug)).err();
            found.map(|what| (seed, what))
        });
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {what}");
    }
}

/// A gateway that reaches no manager goes on with what it knows for ten minutes, and refuses all then.
#[test]
fn a_gateway_that_is_cut_off_ends_after_its_time() {
    let world = World::new(1, Bugs::default());
    world.keeps.set(true);
    world.clone().run(async move {
        world.take_over_unit(Unit::Manager).await.expect("no faults");
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        let asking = {
            let (world, env) = (world.clone(), env.clone());
            async move {
                add_user(&service, &UserId::new("u")).await;
                let known = service.access_key("key-of-u").await.expect("it is reached");
                assert!(known.is_some());
                world.network.cut_from_manager(&env, Duration::from_secs(3600));
                let mut answered = 0;
                let begun = world.sim.elapsed();
                let end = begun + Duration::from_secs(700);
                let mut last = begun;
                while world.sim.elapsed() < end {
                    if service.access_key("key-of-u").await.is_ok_and(|key| key.is_some()) {
                        (answered, last) = (answered + 1, world.sim.elapsed());
                    }
                    env.sleep(Duration::from_secs(1)).await;
                }
                (answered, last - begun, service.access_key("other").await)
            }
        };
        let asked = env.spawn(Class::Foreground, "ask", asking).await.expect("no crash");
        let (answered, time, unknown) = asked;
        assert!(answered > 400, "{answered}");
        let minutes = Duration::from_secs(595)..Duration::from_secs(602);
        assert!(minutes.contains(&time), "{time:?}");
        assert!(matches!(unknown, Err(Error::Busy { .. })), "{unknown:?}");
    });
}
