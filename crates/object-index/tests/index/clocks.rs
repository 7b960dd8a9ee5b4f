//! An owner whose wall clock is years ahead for a while, beside a manager whose clock is right: nothing is taken
//! for old, and no time is shifted for good.

use object_index::{Bugs, Planted};
use object_proto::{
    Completion, Conditions, Error, Etag, ObjectFacts, ObjectKey, RangeId, Target, UploadId,
};
use runtime::{Duration, Env};

use super::basics::{put, read};
use super::locks::Clocks;
use super::support::{Unit, bucket, me};
use super::uploads::{ids, new_upload, send};

/// Seconds that the owner's clock is ahead.
const YEARS: i64 = 3 * 365 * 86_400;

fn now_us(env: &Env) -> u64 {
    env.unix_time().as_nanos() / 1000
}

async fn target(clocks: &Clocks, key: &str) -> Target {
    let bucket = bucket(&clocks.service, "plain").await.id;
    Target { bucket, key: ObjectKey::new(key).unwrap() }
}

async fn begin(clocks: &Clocks, target: &Target, nonce: u64) -> UploadId {
    let upload = clocks.service.begin_upload(target.clone(), new_upload(nonce)).await.unwrap();
    send(&clocks.service, target, (upload, 1), &[7; 900]).await.unwrap();
    upload
}

#[test]
fn an_upload_is_aborted_and_its_end_forgotten_by_the_lower_clock() {
    Clocks::run(Bugs::default(), |clocks| async move {
        let (open, ended) = (target(&clocks, "open").await, target(&clocks, "ended").await);
        let (service, upload) = (&clocks.service, begin(&clocks, &open, 1).await);
        let done = begin(&clocks, &ended, 2).await;
        let parts = ids(service, &ended, done).await;
        let completion =
            Completion { upload: done, parts, etag: Etag::new("e"), checksums: Vec::new() };
        let none = Conditions::default();
        service.complete_upload(ended.clone(), completion, none).await.unwrap();
        clocks.set([0, YEARS]).await;
        clocks.env.sleep(Duration::from_secs(8)).await;
        assert_eq!(ids(service, &open, upload).await.len(), 1, "it is under way");
        assert!(service.upload(ended.clone(), done).await.is_ok(), "it is remembered how it ended");
        clocks.set([0, 0]).await;
        clocks.env.sleep(Duration::from_secs(40)).await;
        assert_eq!(service.upload(open, upload).await, Err(Error::NoSuchUpload));
        assert_eq!(service.upload(ended.clone(), done).await, Err(Error::NoSuchUpload));
        assert_eq!(read(service, &ended).await, [7; 900]);
    });
}

#[test]
fn times_are_right_again_once_the_clock_is() {
    Clocks::run(Bugs::default(), |clocks| async move {
        let (target, service) = (target(&clocks, "a").await, &clocks.service);
        clocks.set([0, YEARS]).await;
        put(service, &target, &[1; 900], ObjectFacts::default()).await;
        service.delete(target.clone(), me(), Conditions::default()).await.unwrap();
        // The file goes to the trash.
        clocks.env.sleep(Duration::from_secs(10)).await;
        clocks.set([0, 0]).await;
        put(service, &target, &[2; 100], ObjectFacts::default()).await;
        let stamp = service.look(&target, None).await.unwrap().stamp.get();
        assert!(stamp < now_us(&clocks.env) + 61_000_000, "{stamp}");
        clocks.env.sleep(Duration::from_secs(75)).await;
        assert_eq!(clocks.world.bodies(), [] as [String; 0], "the trash is emptied");
        put(service, &target, &[3; 100], ObjectFacts::default()).await;
        let stamp = service.look(&target, None).await.unwrap().stamp.get();
        assert!(stamp.abs_diff(now_us(&clocks.env)) < 1_000_000, "{stamp}");
    });
}

#[test]
fn an_owners_clock_alone_shifts_times() {
    Clocks::run(Bugs::of(Planted::AnyClock), |clocks| async move {
        let (target, service) = (target(&clocks, "a").await, &clocks.service);
        clocks.set([0, YEARS]).await;
        put(service, &target, b"1", ObjectFacts::default()).await;
        clocks.set([0, 0]).await;
        put(service, &target, b"2", ObjectFacts::default()).await;
        let stamp = service.look(&target, None).await.unwrap().stamp.get();
        assert!(stamp > now_us(&clocks.env) + 365 * 86_400 * 1_000_000, "{stamp}");
    });
}

#[test]
fn times_are_those_of_a_new_owner_beside_a_manager_that_is_known_to_be_wrong() {
    Clocks::run(Bugs::default(), |clocks| async move {
        let (target, service) = (target(&clocks, "a").await, &clocks.service);
        put(service, &target, &[1; 100], ObjectFacts::default()).await;
        clocks.set([-YEARS, 0]).await;
        clocks.env.sleep(Duration::from_secs(5000)).await;
        clocks.world.crash(&clocks.hosts[1]);
        clocks.world.take_over_unit(Unit::Range(RangeId::new(1))).await.expect("it opens");
        put(service, &target, &[2; 100], ObjectFacts::default()).await;
        let stamp = service.look(&target, None).await.unwrap().stamp.get();
        assert!(stamp.abs_diff(now_us(&clocks.env)) < 1_000_000, "{stamp}");
    });
}

#[test]
fn times_go_on_beside_a_manager_whose_clock_is_years_behind() {
    Clocks::run(Bugs::default(), |clocks| async move {
        let (target, service) = (target(&clocks, "a").await, &clocks.service);
        put(service, &target, &[1; 100], ObjectFacts::default()).await;
        clocks.set([-YEARS, 0]).await;
        for _ in 0..5 {
            clocks.env.sleep(Duration::from_secs(1000)).await;
            put(service, &target, &[2; 100], ObjectFacts::default()).await;
            let stamp = service.look(&target, None).await.unwrap().stamp.get();
            assert!(stamp.abs_diff(now_us(&clocks.env)) < 1_000_000, "{stamp}");
        }
    });
}
