//! Files of bodies: what is written to which, what becomes of them, and of bodies in them.

use std::rc::Rc;

use futures_util::future::join;
use object_index::{Bugs, Planted, Service};
use object_proto::limits::PIECE_BYTES;
use object_proto::{
    BodyPlan, Bucket, Conditions, Error, FilesChecked, ObjectData, ObjectFacts, ObjectKey, RangeId,
    Setting, StorageRule, StoredBytes, Target,
};
use object_testing::Fate;
use runtime::{Class, Duration, Env};
use wire::control::{Compression, Policy};

use super::basics::{put, read, run, run_with};
use super::support::{PACKS, Unit, World, bucket, me};

fn at(bucket: &Bucket, key: &str) -> Target {
    Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() }
}

fn at_number(bucket: &Bucket, number: usize) -> Target {
    at(bucket, &format!("stored {number}"))
}

/// The file and place of an object.
async fn place(service: &Service, target: &Target) -> (String, u64) {
    match service.look(target, None).await.unwrap().object.data {
        ObjectData::File { file, offset } => (file.as_str().to_owned(), offset),
        data => panic!("it is in no file: {data:?}"),
    }
}

async fn stored(service: &Service) -> StoredBytes {
    service.stored(RangeId::new(1)).await.unwrap()
}

/// Sealed, given up, in the trash and removed.
async fn settle(env: &Env) {
    env.sleep(Duration::from_secs(9)).await;
}

#[test]
fn bodies_share_a_file_and_those_that_are_sent_at_once_do_not() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        for key in ["a", "b", "c"] {
            put(&service, &at(&bucket, key), &[1; 5000], ObjectFacts::default()).await;
        }
        let [a, b, c] = ["a", "b", "c"].map(|key| at(&bucket, key));
        let places = [place(&service, &a).await, place(&service, &b).await];
        assert_eq!(places[0].0, places[1].0);
        assert!(places[0].1 == 0 && places[1].1 > 5000, "{places:?}");
        assert_eq!(place(&service, &c).await.0, places[0].0);
        let sending: Vec<_> = (0..4)
            .map(|number| {
                let (service, target) = (service.clone(), at(&bucket, &format!("m{number}")));
                env.spawn(Class::Foreground, "put", async move {
                    let body = vec![number; PIECE_BYTES + 9];
                    put(&service, &target, &body, ObjectFacts::default()).await;
                    assert_eq!(read(&service, &target).await, body);
                })
            })
            .collect();
        for sending in sending {
            sending.await.unwrap();
        }
        assert_eq!(world.bodies().len(), 4);
        assert_eq!(world.sent(), world.bodies());
        let written = stored(&service).await;
        assert_eq!((written.live, written.written), (world.body_bytes(), written.live));
        settle(&env).await;
        // All are sealed, and are the range's alone.
        assert!(world.sent().is_empty());
        let live = world.body_bytes();
        assert_eq!(stored(&service).await, StoredBytes { live, ..StoredBytes::default() });
        put(&service, &a, &[2; 5000], ObjectFacts::default()).await;
        assert_eq!(world.bodies().len(), 5);
    });
}

#[test]
fn full_files_are_sealed_and_long_bodies_have_their_own() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let target = |key: &str| at(&bucket, key);
        let none = ObjectFacts::default;
        put(&service, &target("first"), &[1; 5000], none()).await;
        // Of a length that is known, and of one that is not.
        let long = PACKS.own as usize;
        let mut known =
            service.put_planned(target("known"), BodyPlan::sized(Some(long as u64))).await.unwrap();
        known.write(&vec![2; long]).await.unwrap();
        known.commit(none(), Conditions::default()).await.unwrap();
        assert_eq!(place(&service, &target("known")).await.1, 0);
        put(&service, &target("unknown"), &vec![3; long], none()).await;
        assert!(place(&service, &target("unknown")).await.1 > 0);
        put(&service, &target("next"), &[4; 5000], none()).await;
        assert_eq!(place(&service, &target("next")).await.1, 0);
        let mut files = vec![place(&service, &target("next")).await.0];
        for key in 0..20 {
            let target = target(&format!("{key}"));
            put(&service, &target, &vec![key; 300_000], none()).await;
            files.push(place(&service, &target).await.0);
        }
        files.dedup();
        assert_eq!(files.len(), 2, "{files:?}");
        settle(&env).await;
        service.delete(target("known"), me(), Conditions::default()).await.unwrap();
        let before = world.bodies().len();
        settle(&env).await;
        assert_eq!(world.bodies().len(), before - 1);
    });
}

/// Puts objects of which all but one in four are removed then.
async fn half_dead(service: &Service, bucket: &Bucket) {
    for number in 0..40_u8 {
        let target = at(bucket, &format!("{number:02}"));
        put(service, &target, &vec![number; 30_000], ObjectFacts::default()).await;
    }
    service.env().sleep(Duration::from_secs(4)).await;
    for number in (0..40_u8).filter(|number| number % 4 != 0) {
        let target = at(bucket, &format!("{number:02}"));
        service.delete(target, me(), Conditions::default()).await.unwrap();
    }
}

async fn check_half(service: &Service, bucket: &Bucket) {
    for number in (0..40_u8).step_by(4) {
        let target = at(bucket, &format!("{number:02}"));
        assert_eq!(read(service, &target).await, vec![number; 30_000]);
    }
}

#[test]
fn bodies_are_stored_as_their_bucket_says_and_moved_as_it_says_then() {
    run(|world, service, env| async move {
        let coded = StorageRule { durability: Some(Policy::ec(2, 1)), compression: None };
        let packed = StorageRule { durability: None, compression: Some(Compression::LZ4) };
        let bucket = bucket(&service, "abc").await;
        for (at, storage) in [coded, packed, StorageRule::default(), coded].into_iter().enumerate()
        {
            let plan = BodyPlan { len: None, storage };
            let target = at_number(&bucket, at);
            let mut upload = service.put_planned(target, plan).await.unwrap();
            upload.write(&[1; 30_000]).await.unwrap();
            upload.commit(ObjectFacts::default(), Conditions::default()).await.unwrap();
        }
        let mut files = Vec::new();
        for at in 0..4 {
            files.push(place(&service, &at_number(&bucket, at)).await.0);
        }
        assert!(files[0] == files[3], "{files:?}");
        files.pop();
        files.sort();
        files.dedup();
        assert_eq!(files.len(), 3);
        let sent: Vec<_> = world.asked.borrow().iter().map(|(_, storage)| *storage).collect();
        assert_eq!(sent, [coded, packed, StorageRule::default()]);

        half_dead(&service, &bucket).await;
        service.set_bucket(bucket.name.clone(), Setting::Storage(packed)).await.unwrap();
        world.asked.borrow_mut().clear();
        settle(&env).await;
        check_half(&service, &bucket).await;
        let kept: Vec<_> =
            world.bodies().into_iter().filter(|it| it.starts_with("kept-")).collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        let asked = world.asked.borrow();
        assert!(asked.iter().any(|(dir, storage)| !dir.contains("session") && *storage == packed));
        assert!(asked.iter().all(|(dir, storage)| dir.contains("session") || *storage == packed));
    });
}

/// Of two changes that are made at once neither undoes the other, and the owner goes by both behind their answers.
#[test]
fn halves_of_how_bodies_are_stored_that_are_changed_at_once_both_survive() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        half_dead(&service, &bucket).await;
        let both =
            StorageRule { durability: Some(Policy::ec(2, 1)), compression: Some(Compression::LZ4) };
        let durability = Setting::Durability(both.durability);
        let durability = service.set_bucket(bucket.name.clone(), durability);
        let compression = Setting::Compression(both.compression);
        let compression = service.set_bucket(bucket.name.clone(), compression);
        assert_eq!(join(durability, compression).await, (Ok(()), Ok(())));
        world.asked.borrow_mut().clear();
        settle(&env).await;
        check_half(&service, &bucket).await;
        {
            let asked = world.asked.borrow();
            let moved: Vec<_> = asked.iter().filter(|(dir, _)| !dir.contains("session")).collect();
            assert!(!moved.is_empty() && moved.iter().all(|it| it.1 == both), "{moved:?}");
        }
        for takeover in [false, true] {
            if takeover {
                world.crash_all();
                world.take_over().await.expect("it opens");
            }
            let view = service.bucket(bucket.name.clone()).await.unwrap();
            assert_eq!(view.settings.storage, both, "{takeover}");
        }
        service.set_bucket(bucket.name.clone(), Setting::Durability(None)).await.unwrap();
        let view = service.bucket(bucket.name.clone()).await.unwrap();
        assert_eq!(view.settings.storage, StorageRule { durability: None, ..both });
    });
}

#[test]
fn what_lives_in_a_file_that_is_mostly_dead_is_moved_also_by_owners_that_follow() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        half_dead(&service, &bucket).await;
        settle(&env).await;
        let kept = world.bodies();
        assert!(kept.len() == 1 && kept[0].starts_with("kept-"), "{kept:?}");
        check_half(&service, &bucket).await;
        let old = world.owners.borrow()[0].clone();
        world.crash(&old);
        world.take_over().await.expect("it opens");
        check_half(&service, &bucket).await;
        settle(&env).await;
        let live = world.body_bytes();
        assert_eq!(stored(&service).await, StoredBytes { live, ..StoredBytes::default() });
        for number in (4..40).step_by(4) {
            let target = at(&bucket, &format!("{number:02}"));
            service.delete(target, me(), Conditions::default()).await.unwrap();
        }
        settle(&env).await;
        let kept = world.bodies();
        assert!(
            kept.len() == 1 && kept[0].starts_with("kept-0000000000000001-00000002"),
            "{kept:?}"
        );
        assert_eq!(read(&service, &at(&bucket, "00")).await, vec![0; 30_000]);
        service.delete(at(&bucket, "00"), me(), Conditions::default()).await.unwrap();
        settle(&env).await;
        assert_eq!((world.bodies().len(), stored(&service).await), (0, StoredBytes::default()));
    });
}

#[test]
fn a_file_with_a_damaged_body_stays_and_others_go() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        half_dead(&service, &bucket).await;
        let (file, offset) = place(&service, &at(&bucket, "08")).await;
        let dir = world.disk.beside(&world.range_dirs()[0]);
        let mut bytes = dir.content(&file).expect("it is there");
        bytes[offset as usize + 500] ^= 1;
        dir.set_content(&file, Some(bytes));
        settle(&env).await;
        assert!(world.bodies().contains(&file), "{:?}", world.bodies());
        let opened = service.open(&at(&bucket, "08"), None).await.unwrap().1;
        assert!(matches!(opened.read(0, 30_000).await, Err(Error::Damaged { .. })));
        assert_eq!(read(&service, &at(&bucket, "12")).await, vec![12; 30_000]);
    });
}

/// Reads an object slowly, which is replaced when the reading begins; the time that it takes is that of the
/// trash.
async fn long_read(world: Rc<World>, service: Service, env: Env) -> Result<Vec<u8>, Error> {
    world.trash_age.set(Duration::from_secs(6));
    let old = world.owners.borrow()[0].clone();
    world.crash(&old);
    world.take_over().await.expect("it opens");
    let target = at(&bucket(&service, "abc").await, "a");
    put(&service, &target, &[1; 30_000], ObjectFacts::default()).await;
    env.sleep(Duration::from_secs(5)).await;
    let content = service.open(&target, None).await?.1;
    put(&service, &target, &[2; 10], ObjectFacts::default()).await;
    let mut bytes = Vec::new();
    for _ in 0..5 {
        env.sleep(Duration::from_secs(1)).await;
        bytes.extend(content.read(bytes.len() as u64, 6000).await?);
    }
    Ok(bytes)
}

#[test]
fn long_reads_end() {
    run(|world, service, env| async move {
        assert_eq!(long_read(world, service, env).await, Ok(vec![1; 30_000]));
    });
    run_with(Bugs::of(Planted::NoTrash), |world, service, env| async move {
        assert_eq!(long_read(world, service, env).await, Err(Error::NoSuchKey));
    });
}

#[test]
fn wrong_counts_do_no_harm_unless_files_go_by_them() {
    async fn survives(world: Rc<World>, service: Service, env: Env) -> bool {
        let bucket = bucket(&service, "abc").await;
        half_dead(&service, &bucket).await;
        for round in 0..6_u8 {
            let target = at(&bucket, &format!("other {round}"));
            put(&service, &target, &[round; 5000], ObjectFacts::default()).await;
            env.sleep(Duration::from_secs(4)).await;
        }
        assert!(world.sim.marks().contains_key("object: moved out of a file"));
        let mut lives = true;
        for number in (0..40_u8).step_by(4) {
            let found = service.open(&at(&bucket, &format!("{number:02}")), None).await;
            let Ok((_, content)) = found else {
                lives = false;
                continue;
            };
            lives &= content.read(0, 30_000).await == Ok(vec![number; 30_000]);
        }
        lives
    }
    run_with(Bugs::default().with_wrong_counts(), |world, service, env| async move {
        assert!(survives(world.clone(), service, env).await);
        assert!(world.sim.marks().contains_key("object: a count of what lives was wrong"));
    });
    let bug = Bugs::of(Planted::DropCounted).with_wrong_counts();
    run_with(bug, |world, service, env| async move {
        assert!(!survives(world, service, env).await);
    });
}

/// Counts that are wrong are right behind a check, also of a file in the trash; then it finds none.
#[test]
fn a_check_sets_counts_right_and_brings_files_back_from_the_trash() {
    let world = World::new(3, Bugs::of(Planted::DropCounted).with_wrong_counts());
    world.trash_age.set(Duration::from_secs(600));
    let test = async |world: Rc<World>, service: Service, env: Env| {
        let bucket = bucket(&service, "abc").await;
        let checked = service.check_files(bucket.id).await.unwrap();
        assert_eq!((checked.files, checked.corrected, &checked.failed), (0, 0, &None));
        half_dead(&service, &bucket).await;
        // Files go to the trash by their counts alone.
        let mut found = FilesChecked::default();
        for _ in 0..40 {
            env.sleep(Duration::from_secs(5)).await;
            found = found.and(service.check_files(bucket.id).await.unwrap());
            if found.restored > 0 {
                break;
            }
        }
        assert!(found.restored > 0, "{found:?} {:?}", world.sim.marks());
        assert!(world.sim.marks().contains_key("object: a check has set a count right"));
        check_half(&service, &bucket).await;
    };
    world.clone().run(async move {
        world.take_over().await.expect("it opens");
        let (_, env) = world.host("gateway");
        let test = test(world.clone(), world.service(&env), env.clone());
        env.spawn(Class::Foreground, "test", test).await.unwrap();
    });
    run(|_, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        half_dead(&service, &bucket).await;
        for _ in 0..8 {
            env.sleep(Duration::from_secs(1)).await;
            let checked = service.check_files(bucket.id).await.unwrap();
            assert!(
                checked.done && checked.corrected == 0 && checked.failed.is_none(),
                "{checked:?}"
            );
        }
        assert!(service.check_files(bucket.id).await.unwrap().files > 0);
    });
}

/// An operator checks while bodies are moved: the file that they are moved to has no row yet, and is no orphan.
#[test]
fn a_check_leaves_the_file_alone_that_bodies_are_moved_to() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        half_dead(&service, &bucket).await;
        for dir in world.range_dirs() {
            world.disk.beside(&dir).with_faults(|faults| faults.stuck = Some("kept-"));
        }
        let kept = || world.bodies().into_iter().filter(|it| it.starts_with("kept-")).count();
        while kept() == 0 {
            env.sleep(Duration::from_millis(100)).await;
        }
        let before = world.bodies();
        let checked = service.check_files(bucket.id).await.unwrap();
        assert_eq!((checked.failed, checked.removed), (None, 0));
        assert_eq!(world.bodies(), before);
    });
}

/// Without an operator too, each file in its turn.
#[test]
fn what_lives_is_counted_again_in_time() {
    let world = World::new(3, Bugs::of(Planted::DropCounted).with_wrong_counts());
    world.trash_age.set(Duration::from_secs(600));
    world.recount.set(Duration::from_secs(60));
    let test = async |world: Rc<World>, service: Service, env: Env| {
        let bucket = bucket(&service, "abc").await;
        half_dead(&service, &bucket).await;
        let has = |mark| world.sim.marks().contains_key(mark);
        for _ in 0..200 {
            env.sleep(Duration::from_secs(1)).await;
            if has("object: a check has set a count right") {
                break;
            }
        }
        assert!(has("object: a check has set a count right"), "{:?}", world.sim.marks());
        env.sleep(Duration::from_secs(70)).await;
        check_half(&service, &bucket).await;
    };
    world.clone().run(async move {
        world.take_over().await.expect("it opens");
        let (_, env) = world.host("gateway");
        let test = test(world.clone(), world.service(&env), env.clone());
        env.spawn(Class::Foreground, "test", test).await.unwrap();
    });
}

/// An owner that has not heard of a file keeps it when a commit names it; one that is gone it does not.
#[test]
fn a_commit_has_its_file_kept_or_changes_nothing() {
    let world = World::new(3, Bugs::default());
    world.clone().run(async move {
        world.take_over_unit(Unit::Manager).await.expect("no faults");
        world.take_over_unit(Unit::Range(RangeId::new(1))).await.expect("no faults");
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        let test = {
            let (world, env) = (world.clone(), env.clone());
            async move {
                let bucket = bucket(&service, "abc").await;
                let mut kept = service.put(at(&bucket, "kept")).await.unwrap();
                world.network.set_fate(Fate { lose: 1, ..Fate::NONE });
                // It is announced, and that is lost.
                kept.write(&[1; 5000]).await.unwrap();
                env.sleep(Duration::from_secs(4)).await;
                world.network.set_fate(Fate::NONE);
                assert!(world.bodies().is_empty());
                kept.commit(ObjectFacts::default(), Conditions::default()).await.unwrap();
                assert!(world.sim.marks().contains_key("object: a file is announced again"));
                assert_eq!(world.bodies(), world.sent());
                let mut lost = service.put(at(&bucket, "lost")).await.unwrap();
                env.sleep(Duration::from_secs(5)).await;
                world.network.set_fate(Fate { lose: 1, ..Fate::NONE });
                lost.write(&[1; 5000]).await.unwrap();
                env.sleep(Duration::from_secs(4)).await;
                world.network.set_fate(Fate::NONE);
                let sent = world.sent();
                assert_eq!(sent.len(), 1);
                let dirs = world.disk.dirs_in(object_index::SESSIONS_DIR);
                let dir = format!("{}/{}", object_index::SESSIONS_DIR, dirs[0]);
                world.disk.beside(&dir).set_content(&sent[0], None);
                let put = lost.commit(ObjectFacts::default(), Conditions::default()).await;
                assert!(matches!(put, Err(Error::Busy { .. })), "{put:?}");
                let look = service.look(&at(&bucket, "lost"), None).await;
                assert_eq!(look.map(drop), Err(Error::NoSuchKey));
                assert_eq!(read(&service, &at(&bucket, "kept")).await, [1; 5000]);
            }
        };
        env.spawn(Class::Foreground, "test", test).await.expect("no crash");
    });
}
