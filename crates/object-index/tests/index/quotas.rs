//! Quotas of buckets and users, as gateways hear of them.

use std::rc::Rc;

use object_index::Service;
use object_proto::{
    Bucket, BucketUsage, Conditions, ObjectFacts, ObjectKey, Quota, Room, Setting, Target,
    UserChange, UserId,
};
use object_testing::check_usage;
use runtime::{Duration, Env};

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
