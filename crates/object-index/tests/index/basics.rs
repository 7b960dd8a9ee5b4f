//! One owner and one gateway, without faults.

use std::collections::BTreeMap;
use std::rc::Rc;

use object_index::{Bugs, Planted, Service, ServiceHandle};
use object_proto::limits::{KEY_MAX, SMALL_MAX};
use object_proto::wire::encode_answer;
use object_proto::{
    Backend, BodyPlan, BucketId, BucketSettings, Conditions, Error, Etag, ListRequest, Metadata,
    ObjectData, ObjectFacts, ObjectKey, ObjectTags, RangeReply, Reply, Tags, Target, UserId,
};
use object_testing::add_user;
use runtime::{Class, Duration, Env};
use table::Purpose;
use testing::tables::Medium;

use super::support::{World, bucket, me, name};

pub fn run<F: Future<Output = ()> + 'static>(work: impl FnOnce(Rc<World>, Service, Env) -> F) {
    run_with(Bugs::default(), work);
}

pub fn run_with<F: Future<Output = ()> + 'static>(
    bugs: Bugs,
    work: impl FnOnce(Rc<World>, Service, Env) -> F,
) {
    let world = World::new(1, bugs);
    world.clone().run(async move {
        world.take_over().await.expect("it opens");
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        env.spawn(Class::Foreground, "test", work(world, service, env.clone())).await.unwrap();
    });
}

fn facts(etag: &str) -> ObjectFacts {
    ObjectFacts { etag: Etag::new(etag), owner: UserId::new("me"), ..ObjectFacts::default() }
}

pub async fn put(service: &Service, target: &Target, body: &[u8], facts: ObjectFacts) {
    let mut upload = service.put(target.clone()).await.unwrap();
    upload.write(body).await.unwrap();
    upload.commit(facts, Conditions::default()).await.unwrap();
}

pub async fn read(service: &Service, target: &Target) -> Vec<u8> {
    let info = service.look(target, None).await.unwrap();
    let content = service.content(target, &info).await.unwrap();
    let mut body = Vec::new();
    loop {
        let part = content.read(body.len() as u64, 400_000).await.unwrap();
        if part.is_empty() {
            return body;
        }
        body.extend(part);
    }
}

#[test]
fn objects_of_all_sizes_read_back_with_their_metadata_after_a_takeover_too() {
    run(|world, service, _| async move {
        let bucket = bucket(&service, "abc").await;
        let target = |key: &str| Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() };
        let headers = BTreeMap::from([
            ("content-type".to_owned(), "text/plain".to_owned()),
            ("x-amz-meta-long".to_owned(), "v".repeat(1000)),
        ]);
        world.small_max.set(SMALL_MAX);
        let service = world.service(service.env());
        let small = SMALL_MAX;
        let sizes = [0, 1, 512, 513, small, small + 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 77];
        for (index, size) in sizes.into_iter().enumerate() {
            let mut facts = facts("e");
            if index % 2 == 1 {
                facts.metadata = Metadata::new(headers.clone()).unwrap();
            }
            let body: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
            put(&service, &target(&format!("k{index}")), &body, facts).await;
        }
        for takeover in [false, true] {
            if takeover {
                let old = world.owners.borrow()[0].clone();
                world.crash(&old);
                world.take_over().await.expect("it opens");
            }
            for (index, size) in sizes.into_iter().enumerate() {
                let target = target(&format!("k{index}"));
                let body = read(&service, &target).await;
                assert_eq!(body.len(), size);
                let as_put = |(at, &byte): (usize, &u8)| byte == (at * 7 + at / 251) as u8;
                assert!(body.iter().enumerate().all(as_put));
                let info = service.look(&target, None).await.unwrap();
                let metadata = info.object.facts.metadata;
                assert_eq!(metadata.is_empty(), index % 2 == 0);
                assert_eq!(metadata.get("content-type").is_some(), index % 2 == 1);
            }
        }
    });
}

/// As gateways' threads use it: small objects in one step, large ones while they come.
#[test]
fn objects_through_a_handle_read_back_and_a_body_too_long_for_its_announcement_is_refused() {
    run(|_, service, _| async move {
        let handle = ServiceHandle::new(&service);
        let bucket = bucket(&service, "abc").await;
        let target = |key: &str| Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() };
        let sizes = [0, 700, 5000, 20_000, SMALL_MAX, SMALL_MAX + 1, (3 << 20) + 77];
        for (index, size) in sizes.into_iter().enumerate() {
            let body: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
            for len in [None, Some(size as u64)] {
                let target = target(&format!("k{index}-{}", len.is_some()));
                let mut upload = handle.put(target.clone(), BodyPlan::sized(len)).await.unwrap();
                for piece in body.chunks(300_001.min(size / 2 + 1)) {
                    upload.write(piece.to_vec()).await.unwrap();
                }
                upload.commit(facts("e"), Conditions::default()).await.unwrap();
                let found = handle.get(target, None).await.unwrap();
                assert_eq!(found.info.object.size, size as u64);
                assert_eq!(found.content.read(0, size + 1).await.unwrap(), body);
                let (from, to) = (size / 3, size / 2);
                let part = found.content.read(from as u64, to - from).await.unwrap();
                assert_eq!(part, body[from..to]);
                assert!(found.content.read(size as u64, 9).await.unwrap().is_empty());
            }
        }
        let mut upload = handle.put(target("long"), BodyPlan::sized(Some(10))).await.unwrap();
        upload.write(vec![1; 10]).await.unwrap();
        let refused = upload.write(vec![1; SMALL_MAX]).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        let refused = upload.commit(facts("e"), Conditions::default()).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        // A put whose conditions fail, and one that is dropped, leave nothing.
        let mut upload = handle.put(target("k1-true"), BodyPlan::sized(Some(5))).await.unwrap();
        upload.write(vec![2; 5]).await.unwrap();
        let conditions = Conditions { if_none_match: Some(Tags::Any), ..Conditions::default() };
        assert_eq!(upload.commit(facts("f"), conditions).await, Err(Error::Precondition));
        let mut upload = handle.put(target("dropped"), BodyPlan::sized(Some(5))).await.unwrap();
        upload.write(vec![2; 5]).await.unwrap();
        drop(upload);
        for key in ["long", "dropped"] {
            let found = handle.get(target(key), None).await.map(|found| found.info);
            assert_eq!(found.unwrap_err(), Error::NoSuchKey, "{key}");
        }
    });
}

#[test]
fn files_of_replaced_and_dropped_bodies_go_and_others_stay() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let target = |key: &str| Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() };
        let body = vec![1; 5000];
        put(&service, &target("a"), &body, facts("1")).await;
        put(&service, &target("a"), &body, facts("2")).await;
        put(&service, &target("b"), &body, facts("3")).await;
        service.delete(target("b"), me(), Conditions::default()).await.unwrap();
        let mut dropped = service.put(target("c")).await.unwrap();
        dropped.write(&body).await.unwrap();
        drop(dropped);
        let refused = async {
            let mut upload = service.put(target("a")).await.unwrap();
            upload.write(&body).await.unwrap();
            let conditions = Conditions { if_none_match: Some(Tags::Any), ..Conditions::default() };
            upload.commit(facts("4"), conditions).await
        };
        assert_eq!(refused.await, Err(Error::Precondition));
        let sent = world.bodies();
        assert!(!sent.is_empty(), "they have no file");
        env.sleep(Duration::from_secs(10)).await;
        // What is left of it is in a file that collection has written.
        let kept = world.bodies();
        assert!(kept.len() == 1 && kept[0].starts_with("kept-"), "{kept:?}");
        assert!(world.sent().is_empty());
        assert_eq!(read(&service, &target("a")).await, body);
    });
}

fn numbered(bucket: BucketId, at: usize) -> Target {
    Target { bucket, key: ObjectKey::new(format!("{at:03}")).unwrap() }
}

async fn read_at_once(service: &Service, target: &Target) -> Result<Vec<u8>, Error> {
    service.open(target, None).await?.1.read(0, 1 << 20).await
}

#[test]
fn small_objects_are_in_logs_which_go_when_half_of_them_is_dead() {
    run(|world, _, env| async move {
        world.small_max.set(SMALL_MAX);
        let service = world.service(&env);
        let bucket = bucket(&service, "abc").await;
        let target = |at: usize| numbered(bucket.id, at);
        let body = |at: usize| vec![at as u8; 1000 + at];
        for at in 0..200 {
            put(&service, &target(at), &body(at), facts("1")).await;
        }
        assert!(world.bodies().is_empty(), "they have files");
        let before = world.logs();
        assert!(before.len() > 3, "{before:?}");
        let stamps = service.look(&target(7), None).await.unwrap().stamp;
        for at in (0..200).filter(|at| at % 4 != 3) {
            service.delete(target(at), me(), Conditions::default()).await.unwrap();
        }
        // The log that is written stays, and one that is flushed late may.
        env.sleep(Duration::from_secs(10)).await;
        let after = world.logs();
        let left = before.iter().filter(|log| after.contains(log)).count();
        assert!(left <= 2, "{left} of {before:?} are left");
        assert!(after.len() < before.len());
        for at in (3..200).step_by(4) {
            assert_eq!(read(&service, &target(at)).await, body(at));
        }
        // What was moved is what it was.
        assert_eq!(service.look(&target(7), None).await.unwrap().stamp, stamps);
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        for at in (3..200).step_by(4) {
            assert_eq!(read(&service, &target(at)).await, body(at));
        }
    });
}

#[test]
fn on_a_full_core_small_objects_are_refused_and_deletions_go_on() {
    run(|world, _, env| async move {
        world.small_max.set(SMALL_MAX);
        let service = world.service(&env);
        let bucket = bucket(&service, "abc").await;
        let target = |key: &str| Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() };
        put(&service, &target("a"), &[1; 2000], facts("1")).await;
        put(&service, &target("b"), &[2; 2000], facts("1")).await;
        let range = world.disk.beside(&world.range_dirs()[0]);
        range.with_faults(|faults| faults.full_for = Some(Purpose::Data));
        // The first one ends the table's instance; what it did is known when another owner rules.
        let first = {
            let (service, target) = (service.clone(), target("c"));
            env.spawn(Class::Foreground, "put", async move {
                let mut upload = service.put(target).await.unwrap();
                upload.write(&[3; 2000]).await.unwrap();
                upload.commit(facts("1"), Conditions::default()).await
            })
        };
        env.sleep(Duration::from_secs(1)).await;
        assert!(world.room.is_full());
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        assert!(matches!(first.await.unwrap(), Err(Error::Unknown { .. })));
        assert_eq!(service.look(&target("c"), None).await, Err(Error::NoSuchKey));
        let upload = async |body: &[u8]| {
            let mut upload = service.put(target("c")).await.unwrap();
            upload.write(body).await.unwrap();
            upload.commit(facts("1"), Conditions::default()).await
        };
        assert_eq!(upload(&[3; 2000]).await, Err(Error::Full));
        // No other body is asked for, for a while.
        let handle = ServiceHandle::new(&service);
        let begin = async || handle.put(target("long"), BodyPlan::sized(Some(1 << 20))).await;
        assert_eq!(begin().await.err(), Some(Error::Full));
        env.sleep(Duration::from_millis(1100)).await;
        assert!(begin().await.is_ok());
        assert_eq!(upload(&[3; 2000]).await, Err(Error::Full));
        assert_eq!(begin().await.err(), Some(Error::Full));
        service.delete(target("a"), me(), Conditions::default()).await.unwrap();
        assert_eq!(upload(&[3; 200]).await, Err(Error::Full), "deletions need the reserve");
        assert_eq!(read(&service, &target("b")).await, vec![2; 2000]);
        range.with_faults(|faults| faults.full_for = None);
        env.sleep(Duration::from_secs(2)).await;
        assert!(!world.room.is_full());
        assert!(upload(&[3; 2000]).await.is_ok());
        assert!(begin().await.is_ok());
        assert!(!range.names().contains(&"room".to_owned()));
    });
}

/// A core in which 200 objects are in logs, and that eight puts at once find full: without room for
/// appends of `full_for` from then on. Another owner rules. Answers the objects' bucket and the logs.
async fn filled(
    world: &Rc<World>,
    service: &Rc<Service>,
    env: &Env,
    full_for: Purpose,
) -> (BucketId, Vec<String>) {
    let bucket = bucket(service, "abc").await.id;
    for at in 0..200 {
        put(service, &numbered(bucket, at), &[at as u8; 2000], facts("1")).await;
    }
    let logs = world.logs();
    let range = world.disk.beside(&world.range_dirs()[0]);
    range.with_faults(|faults| faults.full_for = Some(full_for));
    let put = |at: usize| {
        let service = service.clone();
        env.spawn(Class::Foreground, "put", async move {
            let mut upload = service.put(numbered(bucket, 900 + at)).await.unwrap();
            upload.write(&[3; 2000]).await.unwrap();
            upload.commit(facts("1"), Conditions::default()).await
        })
    };
    let puts: Vec<_> = (0..8).map(put).collect();
    env.sleep(Duration::from_secs(1)).await;
    assert!(world.room.is_full());
    replaced(world).await;
    for put in puts {
        assert!(matches!(put.await.unwrap(), Err(Error::Unknown { .. } | Error::Full)));
    }
    (bucket, logs)
}

/// A table may end while it has no writes, by a manifest or log of its own that fails: its owner notices.
#[test]
fn an_owner_whose_table_has_ended_in_the_background_is_replaced() {
    run(|world, service, env| async move {
        world.sim.spawn("owners", world.clone().replace_ended());
        let bucket = bucket(&service, "abc").await.id;
        let range = world.disk.beside(&world.range_dirs()[0]);
        for round in 0..20 {
            // Logs of which all is dead: collection releases them when there are no writes.
            for at in 0..30 {
                put(&service, &numbered(bucket, at), &[at as u8; 580], facts("1")).await;
            }
            env.sleep(Duration::from_millis(round * 100)).await;
            range.with_faults(|faults| faults.full = true);
            env.sleep(Duration::from_secs(2)).await;
            range.with_faults(|faults| faults.full = false);
            // There may be no room for a while; then a put is made.
            let mut outcome = Err(Error::Full);
            for _ in 0..8 {
                let mut upload = service.put(numbered(bucket, 0)).await.unwrap();
                upload.write(b"again").await.unwrap();
                outcome = upload.commit(facts("2"), Conditions::default()).await;
                if outcome.is_ok() {
                    break;
                }
                env.sleep(Duration::from_secs(5)).await;
            }
            assert!(outcome.is_ok(), "round {round}: {outcome:?}");
        }
    });
}

/// Another owner rules.
async fn replaced(world: &Rc<World>) {
    let old = world.owners.borrow().last().expect("one rules").clone();
    world.crash(&old);
    world.take_over().await.expect("it opens");
}

/// Of the objects of [`filled`], one of four in one half of the logs.
fn is_kept(at: usize) -> bool {
    at >= 100 && at % 4 == 3
}

/// What is deleted on a full core comes back: logs without objects go, and what lives in others is
/// moved in the room that is kept for it.
#[test]
fn on_a_full_core_logs_are_collected() {
    run(|world, _, env| async move {
        world.small_max.set(SMALL_MAX);
        let service = Rc::new(world.service(&env));
        let (bucket, before) = filled(&world, &service, &env, Purpose::Data).await;
        for at in (0..200).filter(|&at| !is_kept(at)) {
            service.delete(numbered(bucket, at), me(), Conditions::default()).await.unwrap();
        }
        env.sleep(Duration::from_secs(10)).await;
        assert!(world.room.is_full());
        let after = world.logs();
        let left = before.iter().filter(|log| after.contains(log)).count();
        assert!(left <= 2, "{left} of {before:?} are left");
        for at in (0..200).filter(|&at| is_kept(at)) {
            assert_eq!(read(&service, &numbered(bucket, at)).await, vec![at as u8; 2000]);
        }
    });
}

/// What is deleted to make room makes it before the reserve for deletions is used up, though the trash
/// keeps things for an hour.
/// A row is written again when its object gets tags, and names the same data.
#[test]
fn a_log_with_rows_that_were_written_again_goes_when_all_of_it_is_dead() {
    run(|world, _, env| async move {
        world.small_max.set(SMALL_MAX);
        world.log_bytes.set((1 << 20, 1 << 20));
        let first = world.owners.borrow().last().expect("one rules").clone();
        world.crash(&first);
        world.take_over().await.expect("it opens");
        let service = world.service(&env);
        let bucket = bucket(&service, "abc").await.id;
        for at in 0..10 {
            put(&service, &numbered(bucket, at), &[at as u8; 1500], facts("1")).await;
        }
        let log = world.logs().pop().expect("one");
        for at in 0..6 {
            service.delete(numbered(bucket, at), me(), Conditions::default()).await.unwrap();
        }
        for (round, at) in (0..2).flat_map(|round| (6..10).map(move |at| (round, at))) {
            let tags = [("round".to_owned(), round.to_string())];
            let tags = ObjectTags::new(tags.into()).unwrap();
            service.set_tags(numbered(bucket, at), None, tags).await.unwrap();
        }
        let old = world.owners.borrow().last().expect("one rules").clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        // The next owner counts what is dead.
        env.sleep(Duration::from_secs(5)).await;
        for at in 6..10 {
            service.delete(numbered(bucket, at), me(), Conditions::default()).await.unwrap();
        }
        env.sleep(Duration::from_secs(30)).await;
        assert!(!world.logs().contains(&log), "{log} is left");
    });
}

#[test]
fn on_a_full_core_what_is_dead_goes_soon() {
    dead_logs_go_soon(false);
}

/// A sector that is free again is no room for what is being deleted.
#[test]
fn on_a_core_that_was_full_just_now_what_is_dead_goes_soon() {
    dead_logs_go_soon(true);
}

fn dead_logs_go_soon(has_room_again: bool) {
    run(move |world, _, env| async move {
        world.small_max.set(SMALL_MAX);
        world.trash_age.set(Duration::from_secs(3600));
        let service = Rc::new(world.service(&env));
        let (bucket, before) = filled(&world, &service, &env, Purpose::Data).await;
        if has_room_again {
            let range = world.disk.beside(&world.range_dirs()[0]);
            range.with_faults(|faults| faults.full_for = None);
            env.sleep(Duration::from_secs(3)).await;
        }
        assert_eq!(world.room.is_full(), !has_room_again);
        for at in 0..200 {
            service.delete(numbered(bucket, at), me(), Conditions::default()).await.unwrap();
        }
        env.sleep(Duration::from_secs(30)).await;
        let after = world.logs();
        let left = before.iter().filter(|log| after.contains(log)).count();
        assert!(left <= 2, "{left} of {before:?} are left");
    });
}

/// Without even that room, what is wholly dead goes all the same, and no object is lost.
#[test]
fn on_a_core_without_any_room_for_data_dead_logs_go() {
    run(|world, _, env| async move {
        world.small_max.set(SMALL_MAX);
        let service = Rc::new(world.service(&env));
        let (bucket, before) = filled(&world, &service, &env, Purpose::Collection).await;
        // The first move ends the table's instance, maybe amid the deletions; the next owner moves nothing.
        world.sim.spawn("owners", world.clone().replace_ended());
        for at in (0..200).filter(|&at| !is_kept(at)) {
            service.delete(numbered(bucket, at), me(), Conditions::default()).await.unwrap();
        }
        env.sleep(Duration::from_secs(13)).await;
        let after = world.logs();
        let left = before.iter().filter(|log| after.contains(log)).count();
        assert!(left < before.len() - 5, "{left} of {before:?} are left");
        assert!(left > 5, "what lives was moved without room");
        for at in (0..200).filter(|&at| is_kept(at)) {
            assert_eq!(read(&service, &numbered(bucket, at)).await, vec![at as u8; 2000]);
        }
        service.delete(numbered(bucket, 103), me(), Conditions::default()).await.unwrap();
        let range = world.disk.beside(&world.range_dirs()[0]);
        range.with_faults(|faults| faults.full_for = None);
        env.sleep(Duration::from_secs(10)).await;
        let after = world.logs();
        let left = before.iter().filter(|log| after.contains(log)).count();
        assert!(left <= 2, "{left} of {before:?} are left with room");
    });
}

/// A medium that small objects have filled, small as its reserve and logs are:
/// its users delete most of them, and what they do not delete is to be read all the while. Nothing is
/// refused for longer than what is given back takes to come back, and then there is room again.
#[test]
fn a_full_medium_has_room_again_when_most_is_deleted() {
    let world = World::new(1, Bugs::default());
    world.small_max.set(SMALL_MAX);
    world.trash_age.set(Duration::from_secs(3600));
    world.log_bytes.set((1 << 20, 6 << 20));
    world.disk.set_medium(Medium {
        bytes: 24 << 20,
        reserve: 2 << 20,
        unit: 16 << 10,
        sector: 4 << 10,
        held: Duration::from_secs(65),
    });
    world.clone().run(async move {
        world.take_over().await.expect("it opens");
        world.sim.spawn("owners", world.clone().replace_ended());
        let (_, env) = world.host("gateway");
        let service = Rc::new(world.service(&env));
        let work = fill_and_delete(service, env.clone());
        env.spawn(Class::Foreground, "test", work).await.unwrap();
    });
}

async fn fill_and_delete(service: Rc<Service>, env: Env) {
    let bucket = bucket(&service, "abc").await.id;
    let put = async |at: usize| {
        let mut upload = service.put(numbered(bucket, at)).await?;
        upload.write(&[at as u8; 2000]).await?;
        upload.commit(facts("1"), Conditions::default()).await
    };
    let mut count = 0;
    while put(count).await.is_ok() {
        count += 1;
    }
    assert!(count > 2500, "full after {count} objects");
    let is_kept = |at: usize| at.is_multiple_of(8);
    for at in (0..count).filter(|&at| !is_kept(at)) {
        let began = env.now();
        while let Err(error) =
            service.delete(numbered(bucket, at), me(), Conditions::default()).await
        {
            let passes = matches!(error, Error::Busy { .. } | Error::Unknown { .. });
            assert!(passes, "{at} of {count}: {error}");
            assert!(env.now() - began < Duration::from_secs(200), "{at} of {count}: {error}");
            env.sleep(Duration::from_millis(500)).await;
        }
        env.sleep(Duration::from_millis(3)).await;
    }
    let deleted = env.now();
    while let Err(error) = put(count).await {
        let waited = env.now() - deleted;
        assert!(
            waited < Duration::from_secs(200),
            "no room {waited:?} after all is deleted: {error}"
        );
        env.sleep(Duration::from_secs(1)).await;
    }
    for at in (0..count).filter(|&at| is_kept(at)) {
        assert_eq!(read(&service, &numbered(bucket, at)).await, vec![at as u8; 2000]);
    }
}

#[test]
fn a_log_with_damaged_data_stays_and_others_go() {
    run(|world, _, env| async move {
        world.small_max.set(SMALL_MAX);
        let service = world.service(&env);
        let bucket = bucket(&service, "abc").await;
        let target = |at: usize| numbered(bucket.id, at);
        for at in 0..200 {
            put(&service, &target(at), &[at as u8; 2000], facts("1")).await;
        }
        let info = service.look(&target(0), None).await.unwrap();
        let ObjectData::Logged { file, offset } = info.object.data else {
            panic!("it is in a log")
        };
        let dir = world.disk.beside(&world.range_dirs()[0]);
        let mut bytes = dir.content(file.as_str()).expect("it is there");
        bytes[offset as usize + 500] ^= 1;
        dir.set_content(file.as_str(), Some(bytes));
        for at in 1..190 {
            service.delete(target(at), me(), Conditions::default()).await.unwrap();
        }
        env.sleep(Duration::from_secs(10)).await;
        let left = world.logs();
        assert!(left.contains(&file.as_str().to_owned()), "{left:?}");
        assert!(left.len() <= 4, "{left:?}");
        // The owner that put it has it in memory.
        assert_eq!(read_at_once(&service, &target(0)).await, Ok(vec![0; 2000]));
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        assert!(matches!(read_at_once(&service, &target(0)).await, Err(Error::Damaged { .. })));
        assert_eq!(read(&service, &target(195)).await, vec![195; 2000]);
    });
}

/// Reads an object where its file holds the pieces of another one, as large and of as long a key.
async fn read_swapped(world: &World, service: &Service) -> (Result<Vec<u8>, Error>, Vec<u8>) {
    let bucket = bucket(service, "abc").await;
    let target = |key: &str| Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() };
    put(service, &target("a"), &[1; 5000], facts("1")).await;
    put(service, &target("b"), &[2; 5000], facts("2")).await;
    let mut places = Vec::new();
    for key in ["a", "b"] {
        let info = service.look(&target(key), None).await.unwrap();
        let ObjectData::File { file, offset } = info.object.data else { panic!("it is in a file") };
        places.push((file, offset as usize));
    }
    let dir = world.disk.beside(&world.range_dirs()[0]);
    let (file, second) = (places[0].0.as_str(), places[1].1);
    let mut bytes = dir.content(file).expect("it is there");
    bytes.rotate_left(second);
    dir.set_content(file, Some(bytes));
    let info = service.look(&target("a"), None).await.unwrap();
    let content = service.content(&target("a"), &info).await.unwrap();
    (content.read(0, 5000).await, content.read(10, 20).await.unwrap_or_default())
}

#[test]
fn bytes_of_another_object_are_not_served() {
    run(|world, service, _| async move {
        let (read, part) = read_swapped(&world, &service).await;
        assert!(matches!(read, Err(Error::Damaged { .. })), "{read:?}");
        assert!(part.is_empty());
    });
    // A reader that does not look at whose they are serves them.
    run_with(Bugs::of(Planted::WrongPlace), |world, service, _| async move {
        assert_eq!(read_swapped(&world, &service).await, (Ok(vec![2; 5000]), vec![2; 20]));
    });
}

#[test]
fn what_a_gateway_left_goes_when_its_session_is_over() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let target = Target { bucket: bucket.id, key: ObjectKey::new("a").unwrap() };
        put(&service, &target, &[1; 5000], facts("1")).await;
        let (host, other) = world.host("another gateway");
        let leaving = {
            let (service, target) = (world.service(&other), target.clone());
            async move {
                let mut upload = service.put(target).await.unwrap();
                upload.write(&[2; 3 << 20]).await.unwrap();
                std::future::pending::<()>().await;
            }
        };
        other.spawn(Class::Foreground, "upload", leaving);
        env.sleep(Duration::from_secs(1)).await;
        world.sim.crash(host, runtime::sim::CrashMode::Process);
        env.sleep(Duration::from_secs(50)).await;
        assert_eq!((world.bodies().len(), world.sent().len()), (2, 1));
        env.sleep(Duration::from_secs(25)).await;
        assert_eq!((world.bodies().len(), world.sent().len()), (1, 0));
        assert_eq!(read(&service, &target).await, [1; 5000]);
        // The session of the gateway that is there goes on.
        put(&service, &target, &[3; 10], facts("3")).await;
    });
}

#[test]
fn buckets_are_unique_listed_and_removed_when_empty() {
    run(|world, service, _| async move {
        let (me, you, settings) = (UserId::new("me"), UserId::new("you"), BucketSettings::default);
        let early = service.create_bucket(name("bbb"), me.clone(), settings()).await;
        assert_eq!(early, Err(Error::NoSuchUser));
        add_user(&service, &me).await;
        add_user(&service, &you).await;
        let made = service.create_bucket(name("bbb"), me.clone(), settings()).await.unwrap();
        service.create_bucket(name("aaa"), you, settings()).await.unwrap();
        let again = service.create_bucket(name("bbb"), me.clone(), settings()).await;
        assert_eq!(again, Err(Error::BucketExists { own: true }));
        let other = service.create_bucket(name("aaa"), me.clone(), settings()).await;
        assert_eq!(other, Err(Error::BucketExists { own: false }));
        assert_eq!(service.bucket(name("bbb")).await.unwrap().bucket, made);
        assert_eq!(service.buckets(Some(me.clone())).await, Ok(vec![made.clone()]));
        assert_eq!(service.buckets(None).await.unwrap().len(), 2);
        let target = Target { bucket: made.id, key: ObjectKey::new("k").unwrap() };
        put(&service, &target, b"x", facts("1")).await;
        assert_eq!(service.remove_bucket(name("bbb")).await, Err(Error::BucketNotEmpty));
        service.delete(target.clone(), me.clone(), Conditions::default()).await.unwrap();
        assert_eq!(service.remove_bucket(name("bbb")).await, Ok(()));
        assert_eq!(service.remove_bucket(name("bbb")).await, Err(Error::NoSuchBucket));
        assert_eq!(service.look(&target, None).await, Err(Error::NoSuchBucket));
        let late = service.put(target.clone()).await.unwrap();
        let late = late.commit(facts("2"), Conditions::default()).await;
        assert_eq!(late, Err(Error::NoSuchBucket));
        // A bucket of the same name is another one.
        let new = service.create_bucket(name("bbb"), me.clone(), settings()).await.unwrap();
        assert_ne!(new.id, made.id);
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        assert_eq!(service.buckets(Some(me)).await, Ok(vec![new]));
    });
}

/// A row's key has two bytes for each NUL: no key of an object is longer there.
#[test]
fn longest_keys_are_put_read_listed_and_deleted() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let keys = ["\0".repeat(KEY_MAX), "\0".repeat(KEY_MAX - 1) + "x", "ü".repeat(KEY_MAX / 2)];
        let headers = BTreeMap::from([("x-amz-meta-long".to_owned(), "v".repeat(1000))]);
        let target = |key: &String| {
            let key = ObjectKey::new(key.as_str()).unwrap();
            Target { bucket: bucket.id, key }
        };
        for (size, key) in [10, 5000, 600].into_iter().zip(&keys) {
            let metadata = Metadata::new(headers.clone()).unwrap();
            put(&service, &target(key), &vec![7; size], ObjectFacts { metadata, ..facts("1") })
                .await;
        }
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        for (size, key) in [10, 5000, 600].into_iter().zip(&keys) {
            assert_eq!(read(&service, &target(key)).await, vec![7; size]);
            let info = service.look(&target(key), None).await.unwrap();
            assert!(info.object.facts.metadata.get("x-amz-meta-long").is_some());
        }
        let mut ask = ListRequest {
            bucket: bucket.id,
            prefix: String::new(),
            delimiter: String::new(),
            after: String::new(),
            limit: 1,
        };
        let mut seen = Vec::new();
        loop {
            let page = service.list(ask.clone()).await.unwrap();
            seen.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
            let Some(next) = page.next else { break };
            ask.after = next;
        }
        assert_eq!(seen, keys);
        for key in &keys {
            service.delete(target(key), me(), Conditions::default()).await.unwrap();
        }
        env.sleep(Duration::from_secs(10)).await;
        assert!(world.bodies().is_empty());
    });
}

/// A page has half of an answer's mebibyte and little more: objects and long common prefixes count together, and
/// owners and tags may be longer than here.
#[test]
fn pages_of_long_keys_and_prefixes_fit_an_answer() {
    run(|_, service, _| async move {
        let bucket = bucket(&service, "abc").await;
        for number in 0..1000 {
            let is_prefix = number >= 420;
            let long = if is_prefix { "b".repeat(1018) } else { "a".repeat(1020) };
            let key = format!("{long}{number:04}{}", if is_prefix { "/x" } else { "" });
            let target = Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() };
            put(&service, &target, b"", facts("1")).await;
        }
        let mut ask = ListRequest {
            bucket: bucket.id,
            prefix: String::new(),
            delimiter: "/".to_owned(),
            after: String::new(),
            limit: 1000,
        };
        let mut seen = 0;
        loop {
            let page = service.list(ask.clone()).await.unwrap();
            seen += page.entries.len();
            let next = page.next.clone();
            let answer = encode_answer(&Ok(Reply::Range(RangeReply::Page(page))));
            assert!(answer.len() < 700_000, "{} bytes", answer.len());
            let Some(next) = next else { break };
            ask.after = next;
        }
        assert_eq!(seen, 1000);
    });
}

#[test]
fn listings_show_each_key_or_common_prefix_once_in_order() {
    run(|_, service, _| async move {
        let bucket = bucket(&service, "abc").await;
        let keys = ["a", "a/1", "a/2", "a0", "b//c", "b//d", "b/e", "c\0", "c\0d", "ä", "\u{1}"];
        for key in keys {
            let target = Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() };
            put(&service, &target, b"", facts("1")).await;
        }
        // (prefix, delimiter, after, entries)
        let cases: [(&str, &str, &str, &[&str]); 9] = [
            (
                "",
                "",
                "",
                &["\u{1}", "a", "a/1", "a/2", "a0", "b//c", "b//d", "b/e", "c\0", "c\0d", "ä"],
            ),
            ("", "/", "", &["\u{1}", "a", "a/", "a0", "b/", "c\0", "c\0d", "ä"]),
            ("", "/", "a/", &["a0", "b/", "c\0", "c\0d", "ä"]),
            ("", "/", "a/1", &["a0", "b/", "c\0", "c\0d", "ä"]),
            ("b/", "/", "", &["b//", "b/e"]),
            ("b//", "/", "", &["b//c", "b//d"]),
            ("a", "", "a/1", &["a/2", "a0"]),
            ("a", "", "b", &[]),
            ("c\0", "", "", &["c\0", "c\0d"]),
        ];
        for (prefix, delimiter, after, want) in cases {
            for limit in [1, 2, 1000] {
                let mut ask = ListRequest {
                    bucket: bucket.id,
                    prefix: prefix.to_owned(),
                    delimiter: delimiter.to_owned(),
                    after: after.to_owned(),
                    limit,
                };
                let mut seen = Vec::new();
                loop {
                    let page = service.list(ask.clone()).await.unwrap();
                    assert!(page.entries.len() <= limit as usize);
                    seen.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
                    let Some(next) = page.next else { break };
                    ask.after = next;
                }
                assert_eq!(seen, want, "{prefix:?} {delimiter:?} {after:?} {limit}");
            }
        }
        let none = ListRequest {
            bucket: bucket.id,
            prefix: String::new(),
            delimiter: String::new(),
            after: String::new(),
            limit: 0,
        };
        assert_eq!(service.list(none).await, Ok(object_proto::ListPage::default()));
    });
}
