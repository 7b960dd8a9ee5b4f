//! Owners that take the objects over from one another, gateways that die, and a network between that
//! loses, delays and doubles: keys are linearizable, and nothing is left behind.

use std::collections::BTreeMap;
use std::rc::Rc;

use object_index::{Bugs, Planted, SESSIONS_DIR, range_dir};
use object_proto::limits::{INLINE_MAX, PIECE_BYTES, SMALL_MAX};
use object_proto::{
    Conditions, Error, ObjectFacts, ObjectKey, RangeId, StoredBytes, Target, UserId,
};
use object_testing::Fate;
use object_testing::buckets::BucketLoad;
use object_testing::load::{KEYS, Load, Plan};
use object_testing::versioned::VersionedLoad;
use runtime::sim::CrashMode;
use runtime::{Class, Duration, Rng};
use testing::tables::StoreFaults;

use super::support::{Host, Unit, World, bucket};

pub const FATE: Fate =
    Fate { lose: 30, late_one_in: 25, late: Duration::from_secs(14), double: 12, stray: 12 };

/// Where most attempts take several trips.
const WORSE: Fate = Fate { lose: 8, late_one_in: 4, ..FATE };

type Marks = BTreeMap<&'static str, u64>;

pub fn faults(world: &World, on: bool) {
    let set = |faults: &mut StoreFaults| {
        *faults = StoreFaults::default();
        faults.latency = (Duration::from_micros(20), Duration::from_millis(3));
        if on {
            faults.refuse_one_in = 150;
            faults.lose_one_in = 60;
        }
    };
    // Directories of sessions have it from there.
    world.disk.with_faults(set);
    let sessions = world.disk.dirs_in(SESSIONS_DIR).into_iter();
    let sessions = sessions.map(|name| format!("{SESSIONS_DIR}/{name}"));
    let dirs = world.range_dirs().into_iter().chain([object_index::CATALOG_DIR.to_owned()]);
    dirs.chain(sessions).for_each(|dir| world.disk.beside(&dir).with_faults(set));
}

/// Sets the wall clock of an owner: right, less than a minute off, so that locks end, or more.
fn set_clock(world: &World, host: &Host, rng: &mut Rng) {
    let off = match rng.below(6) {
        0 | 1 => 0,
        2 => rng.between(60_000, 70_000),
        _ => rng.between(0, 59_000),
    };
    let skew = if rng.one_in(2) { off as i64 } else { -(off as i64) };
    world.sim.set_wall_skew(host.id, skew);
}

/// Owners of a unit come and go until the load is stopped.
pub async fn reign(world: Rc<World>, unit: Unit, is_stopped: impl Fn() -> bool, mut rng: Rng) {
    while !is_stopped() {
        let Ok(host) = world.take_over_unit(unit).await else {
            world.sim.sleep(Duration::from_millis(50)).await;
            continue;
        };
        let most = if rng.one_in(3) { 30_000 } else { 5000 };
        let end = world.sim.elapsed() + Duration::from_millis(rng.between(400, most));
        while world.sim.elapsed() < end && !is_stopped() {
            // Of ranges alone: the right one is the manager's.
            if unit != Unit::Manager && rng.one_in(100) {
                set_clock(&world, &host, &mut rng);
            }
            world.sim.sleep(Duration::from_millis(20)).await;
        }
        if is_stopped() {
            world.sim.set_wall_skew(host.id, 0);
            return;
        }
        match rng.below(3) {
            0 => world.crash(&host),
            // It goes on beside its successor, which has shut it out.
            1 => world.abandon(&host),
            _ => {
                world.sim.pause(host.id, Duration::from_millis(rng.between(500, 3000)));
                world.abandon(&host);
            }
        }
    }
}

/// Loads on a bucket without and one with versions, and on buckets that are removed.
#[derive(Clone)]
struct Loads {
    plain: Load,
    versioned: VersionedLoad,
    buckets: BucketLoad,
}

impl Loads {
    fn violation(&self) -> Option<String> {
        let plain = self.plain.violation().or_else(|| self.versioned.violation());
        plain.or_else(|| self.buckets.violation())
    }

    fn is_stopped(&self) -> bool {
        self.plain.is_stopped() || self.violation().is_some()
    }

    fn stop(&self) {
        self.plain.stop();
        self.versioned.stop();
        self.buckets.stop();
    }
}

fn run(seed: u64, bugs: Bugs) -> Result<((u64, u64, u64), Marks), String> {
    let bugs = if seed % 4 == 1 { bugs.with_wrong_counts() } else { bugs };
    let world = World::new(seed, bugs);
    let done = world.clone().run(async move {
        let races = world.sim.with_rng(|rng| rng.one_in(2));
        faults(&world, false);
        world.new_ranges.set(world.sim.with_rng(|rng| rng.between(1, 3)) as u32);
        let ranges = (1..=world.new_ranges.get()).map(|id| Unit::Range(RangeId::new(id.into())));
        let units: Vec<Unit> = ranges.chain([Unit::Manager]).collect();
        let mut first = Vec::new();
        for &unit in &units {
            first.push(world.take_over_unit(unit).await.map_err(|error| error.to_string())?);
        }
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        let made = env
            .spawn(Class::Foreground, "bucket", async move {
                (bucket(&service, "abc").await, bucket(&service, "versions").await)
            })
            .await
            .expect("no crash yet");
        let keys = if races { 2 } else { KEYS.len() };
        let plan = Plan { keys, pause: Duration::from_millis(8), races, trash: None };
        let pause = Duration::from_millis(20);
        let locks = world.sim.with_rng(|rng| rng.below(3) > 0);
        let now_us = env.unix_time().as_nanos() / 1000;
        let versioned = VersionedLoad::new(&world.sim, made.1, 3, pause);
        let load = Loads {
            plain: Load::new(&world.sim, made.0.id, plan),
            versioned: if locks { versioned.with_locks(now_us) } else { versioned },
            buckets: BucketLoad::new(&world.sim, pause),
        };
        faults(&world, true);
        world.network.set_fate(if seed.is_multiple_of(3) { WORSE } else { FATE });
        first.iter().for_each(|host| world.crash(host));
        let reigning: Vec<_> = units
            .iter()
            .map(|&unit| {
                let rng = world.sim.with_rng(Rng::fork);
                let load = load.clone();
                let is_stopped = move || load.is_stopped();
                world.sim.spawn("reign", reign(world.clone(), unit, is_stopped, rng))
            })
            .collect();
        let gateways: Vec<_> = (0..3)
            .map(|_| world.sim.spawn("gateway", gateway(world.clone(), load.clone())))
            .collect();
        let seconds = world.sim.with_rng(|rng| rng.between(10, 40));
        let end = world.sim.elapsed() + Duration::from_secs(seconds);
        while world.sim.elapsed() < end && load.violation().is_none() {
            world.sim.sleep(Duration::from_millis(100)).await;
        }
        faults(&world, false);
        world.network.set_fate(Fate::NONE);
        load.stop();
        let limit = world.sim.elapsed() + Duration::from_secs(120);
        while gateways.iter().any(|gateway| !gateway.is_finished()) {
            if world.sim.elapsed() > limit {
                return Err("a client does not end in two minutes without faults".to_owned());
            }
            world.sim.sleep(Duration::from_millis(100)).await;
        }
        while reigning.iter().any(|reigning| !reigning.is_finished()) {
            world.sim.sleep(Duration::from_millis(20)).await;
        }
        settle(&world, &load, &units).await?;
        load.plain.check()?;
        load.versioned.check()?;
        let done = (load.plain.done(), load.versioned.done(), load.buckets.done());
        if let Some(violation) = load.violation() {
            return Err(violation);
        }
        Ok::<_, String>((done, world.sim.marks()))
    })?;
    Ok(done)
}

/// A gateway that dies again and again, with two clients and one of versions.
async fn gateway(world: Rc<World>, load: Loads) {
    while !load.is_stopped() {
        let (host, env) = world.host("gateway");
        if world.sim.with_rng(|rng| rng.one_in(2)) {
            let drift = world.sim.with_rng(|rng| rng.between(0, 16_000)) as i64 - 8_000;
            world.sim.set_clock_drift(host, drift);
        }
        let small_max = [INLINE_MAX, INLINE_MAX, 10_000, SMALL_MAX];
        world.small_max.set(world.sim.with_rng(|rng| *rng.pick(&small_max)));
        let service = world.service(&env);
        let mut clients: Vec<_> = (0..2)
            .map(|_| {
                let rng = world.sim.with_rng(Rng::fork);
                let client = load.plain.clone().client(service.clone(), rng);
                env.spawn(Class::Foreground, "client", client)
            })
            .collect();
        let rng = world.sim.with_rng(Rng::fork);
        let client = load.versioned.clone().client(service.clone(), rng);
        clients.push(env.spawn(Class::Foreground, "client of versions", client));
        let rng = world.sim.with_rng(Rng::fork);
        let client = load.buckets.clone().client(service.clone(), rng);
        clients.push(env.spawn(Class::Foreground, "client of buckets", client));
        let life = Duration::from_millis(world.sim.with_rng(|rng| rng.between(2000, 25_000)));
        let end = world.sim.elapsed() + life;
        if world.sim.with_rng(|rng| rng.one_in(12)) {
            // Its session is closed; then it goes on.
            world.sim.sleep(Duration::from_millis(700)).await;
            let time = world.sim.with_rng(|rng| rng.between(55_000, 75_000));
            world.sim.pause(host, Duration::from_millis(time));
        } else if world.sim.with_rng(|rng| rng.one_in(2)) {
            // Its requests are not answered for as long as a change may take.
            world.sim.sleep(Duration::from_millis(800)).await;
            let time = world.sim.with_rng(|rng| rng.between(5000, 13_000));
            world.network.hold(&env, Duration::from_millis(time));
        }
        while world.sim.elapsed() < end && !load.is_stopped() {
            world.sim.sleep(Duration::from_millis(50)).await;
        }
        if load.is_stopped() {
            while clients.iter().any(|client| !client.is_finished()) {
                world.sim.sleep(Duration::from_millis(50)).await;
            }
            return;
        }
        world.sim.crash(host, CrashMode::Process);
    }
}

/// Without faults all is answered for, and when sessions and trash are over only the files of objects
/// are left.
async fn settle(world: &Rc<World>, load: &Loads, units: &[Unit]) -> Result<(), String> {
    for &unit in units {
        // The last one may have ended by itself while there were faults.
        world.sim.spawn("owners", world.clone().replace_ended_unit(unit));
    }
    let (_, env) = world.host("gateway");
    let service = world.service(&env);
    let settling = {
        let (load, service) = (load.clone(), service.clone());
        async move {
            load.plain.settle(&service).await?;
            load.versioned.settle(&service).await?;
            load.buckets.settle(&service).await?;
            // Retentions are of some seconds.
            service.env().sleep(Duration::from_secs(10)).await;
            load.versioned.unlock(&service).await
        }
    };
    env.spawn(Class::Foreground, "settle", settling).await.expect("no crash")?;
    // What was trashed by a clock that was ahead waits for longer.
    world.sim.sleep(Duration::from_secs(150)).await;
    let files = {
        let (load, service) = (load.clone(), service.clone());
        async move {
            load.plain.check_no_uploads(&service).await?;
            let (mut files, logs) = load.plain.files(&service).await?;
            let versions = load.versioned.files(&service).await?;
            files.extend(versions.0);
            let map = service.map().await.map_err(|error| error.to_string())?;
            let named = [(load.plain.bucket(), logs), (load.versioned.bucket(), versions.1)];
            let of = |bucket| map.of_bucket(bucket).next().expect("each bucket has one");
            Ok::<_, String>((files, named.map(|(bucket, logs)| (of(bucket), logs))))
        }
    };
    let (files, named) = env.spawn(Class::Foreground, "files", files).await.expect("no crash")?;
    let bodies = world.bodies();
    if !bodies.iter().eq(&files) {
        return Err(format!("objects have the files {files:?}, and there are {bodies:?}"));
    }
    let stored = {
        let (service, units) = (service.clone(), units.to_vec());
        async move {
            let mut all = StoredBytes::default();
            for unit in units {
                let Unit::Range(range) = unit else { continue };
                let stored = service.stored(range).await.map_err(|error| error.to_string())?;
                all = all.and(stored);
            }
            Ok::<_, String>(all)
        }
    };
    let stored = env.spawn(Class::Foreground, "stored", stored).await.expect("no crash")?;
    let there = world.body_bytes();
    if stored.written > 0 || stored.live + stored.garbage + stored.trash != there {
        return Err(format!("files of bodies have {there} bytes, and owners know {stored:?}"));
    }
    let sent = world.sent();
    if !sent.is_empty() {
        return Err(format!("sessions have left the files {sent:?}"));
    }
    // Beside logs that objects are in, the one that is written, and one that is next or was flushed last. A file
    // whose making or removal had no answer is empty, and goes with the next opening.
    for &unit in units {
        let Unit::Range(range) = unit else { continue };
        let dir = range_dir(range);
        let mut logs = world.logs_in(&dir);
        logs.retain(|log| !named.iter().any(|(of, named)| *of == range && named.contains(log)));
        logs.retain(|log| world.has_changes(&dir, log));
        if logs.len() > 2 {
            return Err(format!("no object is in the logs {logs:?} of {range}"));
        }
    }
    Ok(())
}

/// What the seeds must reach.
const MARKS: [&str; 21] = [
    "object: a file is announced again",
    "object: a file of a closed session is sealed",
    "object: the directory of a session is removed",
    "object: an orphan is removed",
    "object: moved out of a file",
    "object: replaced while it was moved",
    "object: a file of bodies is collected",
    "object: a count of what lives was wrong",
    "object: a locked version stays",
    "object: a version that was locked is removed",
    "object: no lock ends, as clocks are apart",
    "object: a bucket is removed",
    "object: a bucket was not empty",
    "object: a bucket stays",
    "object: parts are dropped",
    "object: an upload is aborted by its age",
    "table: log kept for its data",
    "object: moved out of a log",
    "object: a log is collected",
    "object: a log is dropped",
    "object: an earlier attempt of the call has put it",
];

/// The seeds of `OBJECT_SEEDS=from..to`, for a longer search.
pub fn seeds_of(text: &str) -> std::ops::Range<u64> {
    let (from, to) = text.split_once("..").expect("OBJECT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn keys_are_linearizable_and_nothing_is_left_behind() {
    let given = std::env::var("OBJECT_SEEDS").ok();
    let seeds = given.as_deref().map_or(0..400, seeds_of);
    let (mut done, mut of_versions, mut of_buckets, mut marks) = (0, 0, 0, Marks::new());
    for seed in seeds {
        let ran = run(seed, Bugs::default());
        let (answered, seen) = ran.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        done += answered.0;
        of_versions += answered.1;
        of_buckets += answered.2;
        seen.into_iter().for_each(|(mark, count)| *marks.entry(mark).or_default() += count);
    }
    if given.is_some() {
        return;
    }
    for mark in MARKS {
        assert!(marks.contains_key(mark), "{mark} was not reached: {marks:?}");
    }
    assert!(done > 60_000, "only {done} operations were answered");
    assert!(of_versions > 20_000, "only {of_versions} operations on versions were answered");
    assert!(of_buckets > 5000, "only {of_buckets} operations on buckets were answered");
}

/// What a seed finds with a bug: a broken rule, or an assertion of the product.
fn fails(seed: u64, bug: Planted) -> Option<String> {
    outcome(|| run(seed, Bugs::of(bug)))
}

/// What a run ends with: a broken rule, or an assertion of the product.
pub fn outcome<T>(
    run: impl FnOnce() -> Result<T, String> + std::panic::UnwindSafe,
) -> Option<String> {
    match std::panic::catch_unwind(run) {
        Ok(outcome) => outcome.err(),
        Err(cause) => Some(match cause.downcast_ref::<String>() {
            Some(text) => text.clone(),
            None => cause.downcast_ref::<&str>().unwrap_or(&"it panicked").to_string(),
        }),
    }
}

#[test]
fn planted_bugs_are_found() {
    let given = std::env::var("OBJECT_SEEDS").ok();
    let seeds = given.as_deref().map_or(0..1500, seeds_of);
    for bug in [
        Planted::DurableOnly,
        Planted::EarlyRefusal,
        Planted::ForgetReply,
        Planted::ForgetRefusal,
        Planted::LateFrame,
        Planted::EarlyRow,
        Planted::StaleOwner,
        Planted::CountOnly,
        Planted::BlindMove,
        Planted::DropCounted,
        Planted::DropUnpinned,
        Planted::LostCount,
        Planted::CommitUnlinked,
        Planted::OrphanKept,
        Planted::HalfBody,
        Planted::PartAfterEnd,
        Planted::CompleteTwice,
        Planted::PartsStayCounted,
        Planted::PartLeak,
        Planted::RetryLoses,
        Planted::OldConfig,
        Planted::LockByClock,
        Planted::MarkerShown,
        Planted::NoMoveBack,
        Planted::MoveForgetsTags,
        Planted::CloseUnrecorded,
    ] {
        let found = seeds.clone().find_map(|seed| fails(seed, bug).map(|what| (seed, what)));
        let Some((seed, what)) = found else {
            assert!(given.is_some(), "{bug:?} is not found");
            println!("{bug:?}: not found");
            continue;
        };
        println!("{bug:?}: seed {seed}: {}", what.lines().next().unwrap_or_default());
    }
}

/// Puts an object whose gateway does not reach the manager for so long that its session is closed: it commits
/// `at` seconds from then, and what it sends to the owner is late. Where `replaced`, the range has another
/// owner once the object's file was swept. Returns whether the put was acknowledged, and whether the object
/// can be read.
fn silent_gateway(bugs: Bugs, at: u64, replaced: bool) -> (bool, bool) {
    let world = World::new(at, bugs);
    world.clone().run(async move {
        let range = Unit::Range(RangeId::new(1));
        world.take_over_unit(Unit::Manager).await.expect("no faults");
        let owner = world.take_over_unit(range).await.expect("no faults");
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        let bucket = {
            let service = service.clone();
            let made = async move { bucket(&service, "abc").await };
            env.spawn(Class::Foreground, "bucket", made).await.expect("no crash").id
        };
        let target = |key: &str| Target { bucket, key: ObjectKey::new(key).expect("a key") };
        let (late, other) = (target("late"), target("other"));
        let putting = {
            let (world, env) = (world.clone(), env.clone());
            async move {
                let none = Conditions::default;
                let mut upload = service.put(late.clone()).await.expect("no faults");
                upload.write(&vec![7; PIECE_BYTES]).await.expect("no faults");
                world.network.cut_from_manager(&env, Duration::from_secs(80));
                env.sleep(Duration::from_secs(at)).await;
                // The owner has a sample of this gateway's clock.
                service
                    .delete(other, UserId::new("load"), none())
                    .await
                    .expect("it reaches owners");
                world.network.hold(&env, Duration::from_secs(7));
                let put = upload.commit(ObjectFacts::default(), none()).await;
                env.sleep(Duration::from_secs(20)).await;
                let read = match service.open(&late, None).await {
                    Ok((_, content)) => content.read(0, PIECE_BYTES).await,
                    Err(error) => Err(error),
                };
                (put.is_ok(), read.is_ok())
            }
        };
        let put = env.spawn(Class::Foreground, "put", putting);
        world.sim.sleep(Duration::from_secs(1)).await;
        while replaced && !put.is_finished() && !world.bodies().is_empty() {
            world.sim.sleep(Duration::from_millis(10)).await;
        }
        if replaced && !put.is_finished() {
            world.crash(&owner);
            world.take_over_unit(range).await.expect("no faults");
        }
        put.await.expect("no crash")
    })
}

#[test]
fn a_gateway_that_the_manager_does_not_hear_commits_nothing_that_was_swept() {
    const LOST: (bool, bool) = (true, false);
    for replaced in [false, true] {
        // Nor do owners that take changes of a swept session: a commit holds its file or is refused.
        let bug = if replaced { Planted::UnaskedSession } else { Planted::SweepOpen };
        let outcomes = |bugs| (48..60).map(move |at| silent_gateway(bugs, at, replaced));
        let known: Vec<_> = outcomes(Bugs::default()).collect();
        assert!(!known.contains(&LOST), "{known:?}");
        assert!(known.contains(&(true, true)) && known.contains(&(false, false)), "{known:?}");
        assert!(outcomes(Bugs::of(bug)).all(|outcome| outcome != LOST), "{bug:?}");
    }
}

/// A delete of an object that comes to the owner `late` seconds behind its beginning, in the second attempt. Returns
/// whether the object is there when the outcome is decided, and two seconds later.
fn late_delete(bugs: Bugs, late: u64) -> (bool, bool) {
    let world = World::new(late, bugs);
    world.clone().run(async move {
        for unit in [Unit::Manager, Unit::Range(RangeId::new(1))] {
            world.take_over_unit(unit).await.expect("no faults");
        }
        let (_, env) = world.host("gateway");
        let (_, other) = world.host("another gateway");
        let (service, other_service) = (world.service(&env), world.service(&other));
        let deleting = {
            let (world, env) = (world.clone(), env.clone());
            async move {
                let none = Conditions::default;
                let bucket = bucket(&service, "abc").await.id;
                let target = Target { bucket, key: ObjectKey::new("a").expect("a key") };
                let upload = service.put(target.clone()).await.expect("no faults");
                upload.commit(ObjectFacts::default(), none()).await.expect("no faults");
                let begun = world.sim.elapsed();
                world.network.set_fate(Fate { lose: 1, ..Fate::NONE });
                let deleting = {
                    let (service, target) = (service.clone(), target.clone());
                    let delete = async move {
                        service.delete(target, UserId::new("load"), Conditions::default()).await
                    };
                    env.spawn(Class::Foreground, "delete", delete)
                };
                world.sim.sleep(Duration::from_secs(2)).await;
                world.network.set_fate(Fate::NONE);
                let until = begun + Duration::from_secs(late);
                world.network.hold_changes(&env, until - world.sim.elapsed());
                let outcome = deleting.await.expect("no crash");
                assert!(matches!(outcome, Ok(_) | Err(Error::Unknown { .. })), "{outcome:?}");
                (target, until)
            }
        };
        let (target, until) =
            env.spawn(Class::Foreground, "delete", deleting).await.expect("no crash");
        let looking = {
            let world = world.clone();
            async move {
                let first = other_service.look(&target, None).await.is_ok();
                let end = until.max(world.sim.elapsed()) + Duration::from_secs(2);
                world.sim.sleep(end - world.sim.elapsed()).await;
                (first, other_service.look(&target, None).await.is_ok())
            }
        };
        other.spawn(Class::Foreground, "look", looking).await.expect("no crash")
    })
}

#[test]
fn a_change_is_made_within_its_time_or_never() {
    let outcomes = |bugs| (6..13).map(move |late| late_delete(bugs, late));
    let known: Vec<_> = outcomes(Bugs::default()).collect();
    assert!(known.iter().all(|(first, later)| first == later), "{known:?}");
    assert!(known.contains(&(false, false)) && known.contains(&(true, true)), "{known:?}");
    let bug = Bugs::of(Planted::RelativeDeadline);
    assert!(outcomes(bug).any(|(first, later)| first != later), "it is not found");
}
