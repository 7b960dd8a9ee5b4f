//! Quotas of buckets and users, as gateways hear of them.

use std::rc::Rc;

use futures_util::future::join;
use object_index::Service;
use object_index::{Bugs, CATALOG_DIR};
use object_proto::{
    Bucket, BucketUsage, Conditions, Error, ObjectFacts, ObjectKey, Quota, Room, Setting, Target,
    UserChange, UserId,
};
use object_testing::check_usage;
use runtime::{Class, Duration, Env};

use super::basics::{put, run};
use super::support::{World, bucket};
use super::uploads::{complete, ids, new_upload, send};

/// A room is known this long after what it is made of at most.
const KNOWN: Duration = Duration::from_millis(1600);

fn target(bucket: &Bucket, key: &str) -> Target {
    Target { bucket: bucket.id, key: ObjectKey::new(key).expect("a key") }
}

async fn put_bytes(service: &Service, bucket: &Bucket, key: &str, size: usize) {
    put(service, &target(bucket, key), &vec![7; size], ObjectFacts::default()).await;
}

async fn room(service: &Service, env: &Env, bucket: &Bucket) -> Room {
    env.sleep(KNOWN).await;
    service.bucket(bucket.name.clone()).await.expect("it is there").room
}

fn bytes(room: u64) -> Room {
    Room { objects: None, bytes: Some(room) }
}

#[test]
fn a_bucket_has_the_room_that_its_quota_and_its_owners_leave() {
    run(|world: Rc<World>, service, env| async move {
        let (one, other) = (bucket(&service, "abc").await, bucket(&service, "other").await);
        put_bytes(&service, &one, "a", 1000).await;
        put_bytes(&service, &other, "b", 10_000).await;
        assert_eq!(room(&service, &env, &one).await, Room::default());

        let own = Quota { objects: Some(5), bytes: Some(4000) };
        service.set_bucket(one.name.clone(), Setting::Quota(own)).await.expect("it is set");
        let left = Room { objects: Some(4), bytes: Some(3000) };
        assert_eq!(room(&service, &env, &one).await, left);
        assert_eq!(room(&service, &env, &other).await, Room::default());

        let quota = Quota { objects: None, bytes: Some(12_000) };
        service
            .change_user(UserChange::SetQuota { user: UserId::new("load"), quota })
            .await
            .expect("it is set");
        assert_eq!(room(&service, &env, &one).await, Room { bytes: Some(1000), ..left });
        assert_eq!(room(&service, &env, &other).await, bytes(1000));
        // A bucket that is made later is under it too.
        let late = bucket(&service, "late").await;
        put_bytes(&service, &late, "c", 400).await;
        assert_eq!(room(&service, &env, &late).await, bytes(600));

        // Another manager, and another owner, know the same.
        world.crash_all();
        world.take_over().await.expect("it opens");
        put_bytes(&service, &other, "d", 500).await;
        assert_eq!(room(&service, &env, &late).await, bytes(100));
        assert_eq!(room(&service, &env, &one).await, Room { bytes: Some(100), ..left });

        let quota = Quota::default();
        service
            .change_user(UserChange::SetQuota { user: UserId::new("load"), quota })
            .await
            .expect("it is set");
        assert_eq!(room(&service, &env, &other).await, Room::default());
        assert_eq!(room(&service, &env, &one).await, left);
        service.set_bucket(one.name.clone(), Setting::Quota(quota)).await.expect("it is set");
        assert_eq!(room(&service, &env, &one).await, Room::default());
    });
}

/// Two changes are made at once, as by operators who have both read the quota before. Managers that follow know
/// of both.
#[test]
fn bounds_of_a_quota_that_are_changed_at_once_both_survive() {
    run(|world: Rc<World>, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        put_bytes(&service, &bucket, "a", 1000).await;
        let (load, of) = (|| UserId::new("load"), |objects, bytes| Quota { objects, bytes });
        let before = of(Some(100), Some(100_000));
        let name = || bucket.name.clone();
        service.set_bucket(name(), Setting::Quota(before)).await.expect("it is set");
        let set = UserChange::SetQuota { user: load(), quota: before };
        service.change_user(set).await.expect("it is set");

        let objects = service.set_bucket(name(), Setting::QuotaObjects(Some(9)));
        let bytes = service.set_bucket(name(), Setting::QuotaBytes(Some(9000)));
        assert_eq!(join(objects, bytes).await, (Ok(()), Ok(())));
        let objects = UserChange::SetQuotaObjects { user: load(), objects: Some(5) };
        let bytes = UserChange::SetQuotaBytes { user: load(), bytes: Some(4000) };
        let (objects, bytes) = (service.change_user(objects), service.change_user(bytes));
        assert_eq!(join(objects, bytes).await, (Ok(()), Ok(())));
        for takeover in [false, true] {
            if takeover {
                world.crash_all();
                world.take_over().await.expect("it opens");
            }
            let settings = service.bucket(name()).await.expect("it is there").settings.clone();
            assert_eq!(settings.quota, of(Some(9), Some(9000)), "{takeover}");
            let user = service.user("load").await.expect("it is there");
            assert_eq!(user.quota, of(Some(5), Some(4000)), "{takeover}");
            let left = Room { objects: Some(4), bytes: Some(3000) };
            assert_eq!(room(&service, &env, &bucket).await, left, "{takeover}");
        }

        // A bound that is taken away leaves the other one.
        let none = UserChange::SetQuotaObjects { user: load(), objects: None };
        service.change_user(none).await.expect("it is set");
        service.set_bucket(name(), Setting::QuotaBytes(None)).await.expect("it is set");
        let left = Room { objects: Some(8), bytes: Some(3000) };
        assert_eq!(room(&service, &env, &bucket).await, left);
        let none = UserChange::SetQuotaBytes { user: load(), bytes: None };
        service.change_user(none).await.expect("it is set");
        service.set_bucket(name(), Setting::QuotaObjects(None)).await.expect("it is set");
        assert_eq!(room(&service, &env, &bucket).await, Room::default());
        let none = UserChange::SetQuotaBytes { user: UserId::new("none"), bytes: None };
        assert_eq!(service.change_user(none).await, Err(Error::NoSuchUser));
    });
}

#[test]
fn parts_of_uploads_count_until_the_upload_ends() {
    run(|world: Rc<World>, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let quota = Quota { objects: None, bytes: Some(100_000) };
        service.set_bucket(bucket.name.clone(), Setting::Quota(quota)).await.expect("it is set");
        let mut uploads = Vec::new();
        for (nonce, key) in [(1, "done"), (2, "aborted"), (3, "forgotten")] {
            let (target, upload) = (target(&bucket, key), new_upload(nonce));
            let id = service.begin_upload(target.clone(), upload).await.expect("it begins");
            uploads.push((target, id));
        }
        for (of, at, size) in
            [(0, 1, 10_000), (0, 1, 20_000), (0, 2, 5000), (1, 1, 30_000), (2, 7, 7)]
        {
            let (target, upload) = &uploads[of];
            send(&service, target, (*upload, at), &vec![1; size]).await.expect("it is sent");
        }
        let all = BucketUsage { uploads: 3, upload_bytes: 55_007, ..BucketUsage::default() };
        assert_eq!(service.usage(bucket.id).await, Ok(all));
        assert_eq!(room(&service, &env, &bucket).await, bytes(44_993));

        let (target, upload) = &uploads[1];
        service.abort_upload(target.clone(), *upload).await.expect("it is aborted");
        let rest = BucketUsage { uploads: 2, upload_bytes: 25_007, ..all };
        assert_eq!(service.usage(bucket.id).await, Ok(rest));

        // Part 2 is not named: its bytes are freed.
        let (target, upload) = &uploads[0];
        let named = ids(&service, target, *upload).await;
        complete(&service, target, *upload, named[..1].to_vec(), Conditions::default())
            .await
            .expect("it is completed");
        let object = BucketUsage {
            objects: 1,
            bytes: 20_000,
            uploads: 1,
            upload_bytes: 7,
            ..BucketUsage::default()
        };
        assert_eq!(service.usage(bucket.id).await, Ok(object));

        world.crash_all();
        world.take_over().await.expect("it opens");
        assert_eq!(service.usage(bucket.id).await, Ok(object));
        // The last one is aborted by its age.
        env.sleep(Duration::from_secs(40)).await;
        let rest = BucketUsage { uploads: 0, upload_bytes: 0, ..object };
        assert_eq!(service.usage(bucket.id).await, Ok(rest));
        check_usage(&service, bucket.id).await.expect("it is exact");
    });
}

/// Ends of uploads by their age, and removals of their buckets at about that time.
#[test]
fn an_upload_ends_as_its_bucket_is_removed() {
    for seed in 0..1500 {
        let world = World::new(seed, Bugs::default());
        world.clone().run(async move {
            world.take_over().await.expect("it opens");
            let (_, env) = world.host("gateway");
            let service = world.service(&env);
            let work = async move {
                let (busy, gone) = (bucket(&service, "busy").await, bucket(&service, "gone").await);
                let target = target(&gone, "k");
                let upload = service.begin_upload(target.clone(), new_upload(1)).await;
                let upload = upload.expect("it begins");
                send(&service, &target, (upload, 1), &[1; 700]).await.expect("it is sent");
                // What is decided waits for batches that are under way.
                for dir in world.range_dirs() {
                    world.disk.beside(&dir).with_faults(|faults| {
                        faults.latency = (Duration::from_millis(60), Duration::from_millis(100));
                    });
                }
                let (putting, env) = (service.clone(), service.env().clone());
                env.spawn(Class::Foreground, "puts", async move {
                    for number in 0.. {
                        put_bytes(&putting, &busy, &format!("k{}", number % 5), 10).await;
                    }
                });
                let late = 26_700 + env.random_u64() % 1300;
                env.sleep(Duration::from_millis(late)).await;
                service.remove_bucket(gone.name.clone()).await.expect("no object is in it");
                env.sleep(Duration::from_secs(3)).await;
                assert_eq!(service.usage(gone.id).await, Ok(BucketUsage::default()));
            };
            env.spawn(Class::Foreground, "test", work).await.expect("no crash");
        });
    }
}

/// The quotas that are set last count, whatever is set at the same time.
#[test]
fn quotas_of_a_user_and_of_its_buckets_are_set_at_once() {
    for seed in 0..300 {
        let world = World::new(seed, Bugs::default());
        world.clone().run(async move {
            world.take_over().await.expect("it opens");
            let (_, env) = world.host("gateway");
            let service = world.service(&env);
            let work = async move {
                let mut buckets = Vec::new();
                for at in 0..12 {
                    buckets.push(bucket(&service, &format!("bucket-{at}")).await);
                    // Rows are in files, whose reading takes its time.
                    let policy = Setting::Policy(Some("x".repeat(6000)));
                    let name = buckets[at].name.clone();
                    service.set_bucket(name, policy).await.expect("it is set");
                }
                world.disk.beside(CATALOG_DIR).with_faults(|faults| {
                    faults.latency = (Duration::from_micros(200), Duration::from_millis(3));
                });
                let quota = |bytes| Quota { objects: None, bytes };
                let env = service.env().clone();
                let setting: Vec<_> = buckets
                    .iter()
                    .map(|bucket| {
                        let (service, env, name) =
                            (service.clone(), env.clone(), bucket.name.clone());
                        env.clone().spawn(Class::Foreground, "bucket", async move {
                            let mut last = None;
                            for _ in 0..6 {
                                env.sleep(Duration::from_micros(env.random_u64() % 30_000)).await;
                                last = Some(1 + env.random_u64() % 100).filter(|size| *size > 50);
                                let set = Setting::Quota(quota(last));
                                service.set_bucket(name.clone(), set).await.expect("it is set");
                            }
                            last
                        })
                    })
                    .collect();
                let mut of_user = None;
                for _ in 0..8 {
                    env.sleep(Duration::from_micros(env.random_u64() % 20_000)).await;
                    of_user = Some(1 + env.random_u64() % 100).filter(|size| *size > 50);
                    let user = UserId::new("load");
                    let set = UserChange::SetQuota { user, quota: quota(of_user) };
                    service.change_user(set).await.expect("it is set");
                }
                let mut own = Vec::new();
                for setting in setting {
                    own.push(setting.await.expect("no crash"));
                }
                for (bucket, own) in buckets.iter().zip(own) {
                    let least = own.into_iter().chain(of_user).min();
                    let room = room(&service, &env, bucket).await;
                    assert_eq!(room, Room { objects: None, bytes: least }, "{}", bucket.name);
                }
            };
            env.spawn(Class::Foreground, "test", work).await.expect("no crash");
        });
    }
}
