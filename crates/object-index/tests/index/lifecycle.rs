//! Lifecycle: what a day's pass removes, what it leaves, and who goes on with it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use object_index::{Bugs, Planted, Service};
use object_proto::{
    Bucket, BucketUsage, Conditions, CurrentExpiry, Error, FilterForm, Lifecycle, LifecycleDay,
    LifecycleFilter, LifecycleRule, ListRequest, ListedVersion, LockChange, LockRule,
    NoncurrentExpiry, ObjectFacts, ObjectKey, ObjectLock, ObjectTags, RangeId, Retention,
    RetentionMode, Setting, Target, UserId, VersionId, Versioning, VersionsRequest,
};
use object_testing::check_usage;
use runtime::{Class, Duration, Env};

use super::support::{Unit, World, bucket};
use super::uploads::{complete, ids, new_upload, send};

const DAY: Duration = Duration::from_secs(10);
const DAY_US: u64 = 10_000_000;
/// A pass begins so long behind its day at most, and takes some time.
const PASS: Duration = Duration::from_secs(4);

fn run<F: Future<Output = ()> + 'static>(
    bytes_per_s: u64,
    work: impl FnOnce(Rc<World>, Service, Env) -> F,
) {
    run_units(&[Unit::All], (bytes_per_s, Bugs::default()), work);
}

fn run_units<F: Future<Output = ()> + 'static>(
    units: &[Unit],
    (bytes_per_s, bugs): (u64, Bugs),
    work: impl FnOnce(Rc<World>, Service, Env) -> F,
) {
    let world = World::new(1, bugs);
    world.lifecycle.set((LifecycleDay::from_us(DAY_US), bytes_per_s));
    world.clone().run(async move {
        for unit in units {
            world.take_over_unit(*unit).await.expect("it opens");
        }
        let (_, env) = world.host("gateway");
        let service = world.service(&env);
        env.spawn(Class::Foreground, "test", work(world, service, env.clone())).await.unwrap();
    });
}

const FAST: u64 = 10_000_000;

fn now_us(env: &Env) -> u64 {
    env.unix_time().as_nanos() / 1000
}

fn at(bucket: &Bucket, key: &str) -> Target {
    Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() }
}

fn tags(value: &str) -> ObjectTags {
    ObjectTags::new(BTreeMap::from([("x".to_owned(), value.to_owned())])).unwrap()
}

async fn put(service: &Service, target: &Target, size: usize, tags: ObjectTags) -> u64 {
    let mut upload = service.put(target.clone()).await.unwrap();
    upload.write(&vec![1; size]).await.unwrap();
    let facts = ObjectFacts { tags, owner: UserId::new("me"), ..ObjectFacts::default() };
    upload.commit(facts, Conditions::default()).await.unwrap().stamp.get()
}

fn rule(id: &str, prefix: &str) -> LifecycleRule {
    LifecycleRule {
        id: id.to_owned(),
        enabled: true,
        filter: LifecycleFilter {
            form: FilterForm::And,
            prefix: Some(prefix.to_owned()),
            tags: BTreeMap::new(),
            larger: None,
            smaller: None,
        },
        current: None,
        noncurrent: None,
        abort_days: None,
    }
}

async fn set(service: &Service, bucket: &Bucket, rules: Vec<LifecycleRule>) {
    let lifecycle = (!rules.is_empty()).then(|| Arc::new(Lifecycle { rules }));
    service.set_bucket(bucket.name.clone(), Setting::Lifecycle(lifecycle)).await.unwrap();
}

/// Keys, as a listing has them.
async fn keys(service: &Service, bucket: &Bucket) -> Vec<String> {
    let ask = ListRequest {
        bucket: bucket.id,
        prefix: String::new(),
        delimiter: String::new(),
        after: String::new(),
        limit: 1000,
    };
    let page = service.list(ask).await.unwrap();
    page.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

/// Keys of versions and markers, newest first, with what they are.
async fn versions(service: &Service, bucket: &Bucket) -> Vec<(String, bool)> {
    let ask = VersionsRequest {
        bucket: bucket.id,
        prefix: String::new(),
        delimiter: String::new(),
        after: String::new(),
        after_version: None,
        limit: 1000,
    };
    let page = service.versions(ask).await.unwrap();
    let entry = |entry: &ListedVersion| {
        (entry.name().to_owned(), matches!(entry, ListedVersion::Marker { .. }))
    };
    page.entries.iter().map(entry).collect()
}

/// Waits until some time before a day begins, or behind.
async fn wait_until(env: &Env, us: u64) {
    env.sleep(Duration::from_micros(us.saturating_sub(now_us(env)))).await;
}

#[test]
fn objects_expire_when_their_days_are_over_and_others_stay() {
    run(FAST, |_, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let days =
            |rule: LifecycleRule| LifecycleRule { current: Some(CurrentExpiry::Days(1)), ..rule };
        let mut tagged = days(rule("tag", "t/"));
        tagged.filter.tags.insert("x".to_owned(), "1".to_owned());
        let mut large = days(rule("large", "s/"));
        (large.filter.larger, large.filter.smaller) = (Some(100), Some(1000));
        let far =
            LifecycleRule { current: Some(CurrentExpiry::Date(u64::MAX)), ..rule("date", "f/") };
        let past =
            LifecycleRule { current: Some(CurrentExpiry::Date(DAY_US)), ..rule("past", "p/") };
        let off = LifecycleRule { enabled: false, ..days(rule("off", "")) };
        set(&service, &bucket, vec![days(rule("days", "d/")), tagged, large, far, past, off]).await;

        let mut due_us = 0;
        for (key, size, tags) in [
            ("d/1", 5, ObjectTags::default()),
            // In the log, and in a file.
            ("d/2", 550, tags("1")),
            ("d/3", 5000, tags("1")),
            ("f/1", 5, tags("1")),
            ("p/1", 5, tags("1")),
            ("s/1", 100, tags("1")),
            ("s/2", 101, tags("1")),
            ("s/3", 1000, tags("1")),
            ("t/1", 5, tags("1")),
            ("t/2", 5, tags("2")),
            ("t/3", 5, ObjectTags::default()),
        ] {
            let stamp = put(&service, &at(&bucket, key), size, tags).await;
            due_us = LifecycleDay::from_us(DAY_US).due_us(stamp, 1);
        }
        // Tags that are apart from their row.
        let many = (0..9).map(|at| (format!("k{at}"), "v".repeat(200)));
        let many = many.chain([("x".to_owned(), "1".to_owned())]).collect();
        let many = ObjectTags::new(many).unwrap();
        let stamp = put(&service, &at(&bucket, "t/4"), 5, many).await;
        assert_eq!(LifecycleDay::from_us(DAY_US).due_us(stamp, 1), due_us);
        wait_until(&env, due_us - 100_000).await;
        let all = keys(&service, &bucket).await;
        // What a date has expire goes with any day's pass.
        assert_eq!(all.iter().filter(|key| *key != "p/1").count(), 11, "{all:?}");
        env.sleep(PASS).await;
        assert_eq!(keys(&service, &bucket).await, ["f/1", "s/1", "s/3", "t/2", "t/3"]);
        check_usage(&service, bucket.id).await.expect("it is exact");
        let state = service.lifecycle_state(bucket.id).await.unwrap();
        assert_eq!((state.removed, state.behind_us), (7, 0));
        assert!(now_us(&env) - state.last_pass_us < DAY_US, "{state:?}");
        env.sleep(2 * DAY).await;
        assert_eq!(keys(&service, &bucket).await.len(), 5);
    });
}

#[test]
fn what_changes_before_its_pass_stays() {
    run(FAST, |_, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let mut tagged =
            LifecycleRule { current: Some(CurrentExpiry::Days(1)), ..rule("tag", "t") };
        tagged.filter.tags.insert("x".to_owned(), "1".to_owned());
        let days = LifecycleRule { current: Some(CurrentExpiry::Days(1)), ..rule("days", "d") };
        set(&service, &bucket, vec![tagged, days]).await;
        let mut stamp = 0;
        for key in ["d1", "d2", "t1", "t2"] {
            stamp = put(&service, &at(&bucket, key), 5, tags("1")).await;
        }
        let due_us = LifecycleDay::from_us(DAY_US).due_us(stamp, 1);
        wait_until(&env, due_us - 500_000).await;
        put(&service, &at(&bucket, "d1"), 6, tags("1")).await;
        service.set_tags(at(&bucket, "t1"), None, tags("2")).await.unwrap();
        env.sleep(PASS).await;
        assert_eq!(keys(&service, &bucket).await, ["d1", "t1"]);
        wait_until(&env, due_us + DAY_US).await;
        env.sleep(PASS).await;
        assert_eq!(keys(&service, &bucket).await, ["t1"]);

        // Behind the answer to a removal of rules nothing goes.
        let stamp = put(&service, &at(&bucket, "d3"), 6, tags("1")).await;
        wait_until(&env, LifecycleDay::from_us(DAY_US).due_us(stamp, 1) - 300_000).await;
        set(&service, &bucket, Vec::new()).await;
        env.sleep(2 * DAY).await;
        assert_eq!(keys(&service, &bucket).await, ["d3", "t1"]);
        let state = service.lifecycle_state(bucket.id).await.unwrap();
        assert_eq!((state.removed, state.behind_us), (3, 0));
    });
}

async fn with_versions(service: &Service) -> Bucket {
    let bucket = bucket(service, "versions").await;
    service.set_versioning(bucket.name.clone(), Versioning::Enabled).await.unwrap();
    bucket
}

#[test]
fn older_versions_go_by_the_time_of_the_next_and_by_their_count_and_lone_markers_last() {
    run(FAST, |_, service, env| async move {
        let bucket = with_versions(&service).await;
        let of = |newer| Some(NoncurrentExpiry { days: 1, newer });
        let lone = Some(CurrentExpiry::LoneMarkers);
        set(
            &service,
            &bucket,
            vec![
                LifecycleRule { noncurrent: of(0), current: lone, ..rule("all", "a") },
                LifecycleRule { noncurrent: of(2), ..rule("two", "b") },
                LifecycleRule { current: Some(CurrentExpiry::Days(1)), ..rule("current", "c") },
            ],
        )
        .await;
        let none = ObjectTags::default;
        for key in ["a", "b", "c"] {
            for size in [5, 550, 5000] {
                put(&service, &at(&bucket, key), size, none()).await;
            }
        }
        let (me, any) = (UserId::new("me"), Conditions::default);
        // Current for three days: its days begin when it is hidden.
        env.sleep(3 * DAY + PASS).await;
        let names = |all: &[(String, bool)]| {
            let name =
                |(key, marker): &(String, bool)| format!("{key}{}", if *marker { "-" } else { "" });
            all.iter().map(name).collect::<Vec<_>>()
        };
        // A marker of lifecycle hides the newest version of c, of which no rule removes an older one.
        let left = versions(&service, &bucket).await;
        assert_eq!(names(&left), ["a", "b", "b", "b", "c-", "c", "c", "c"]);
        put(&service, &at(&bucket, "b"), 5, none()).await;
        let deleted = service.delete(at(&bucket, "a"), me.clone(), any()).await.unwrap();
        let due_us = LifecycleDay::from_us(DAY_US).due_us(deleted.stamp.get(), 1);
        wait_until(&env, due_us - 100_000).await;
        let left = versions(&service, &bucket).await;
        // The third older version of b is long one: it went with the pass between.
        assert_eq!(names(&left), ["a-", "a", "b", "b", "b", "c-", "c", "c", "c"]);
        env.sleep(PASS).await;
        // The one of a, then its marker.
        let left = versions(&service, &bucket).await;
        assert_eq!(names(&left), ["a-", "b", "b", "b", "c-", "c", "c", "c"]);
        env.sleep(DAY + PASS).await;
        let left = versions(&service, &bucket).await;
        assert_eq!(names(&left), ["b", "b", "b", "c-", "c", "c", "c"]);
        check_usage(&service, bucket.id).await.expect("it is exact");
        assert_eq!(service.lifecycle_state(bucket.id).await.unwrap().removed, 6);
    });
}

#[test]
fn in_a_suspended_bucket_the_version_without_an_id_goes_and_its_marker_too() {
    run(FAST, |_, service, env| async move {
        let bucket = with_versions(&service).await;
        service.set_versioning(bucket.name.clone(), Versioning::Suspended).await.unwrap();
        let current = Some(CurrentExpiry::Days(1));
        set(&service, &bucket, vec![LifecycleRule { current, ..rule("all", "") }]).await;
        put(&service, &at(&bucket, "k"), 5, ObjectTags::default()).await;
        env.sleep(2 * DAY + PASS).await;
        assert_eq!(versions(&service, &bucket).await, [("k".to_owned(), true)]);
        env.sleep(2 * DAY + PASS).await;
        assert_eq!(versions(&service, &bucket).await, []);
        assert_eq!(service.usage(bucket.id).await, Ok(BucketUsage::default()));
    });
}

#[test]
fn what_is_locked_stays_until_its_lock_has_ended() {
    run(FAST, |_, service, env| async move {
        let bucket = with_versions(&service).await;
        let lock = Setting::Lock(LockRule::default());
        service.set_bucket(bucket.name.clone(), lock).await.unwrap();
        let noncurrent = Some(NoncurrentExpiry { days: 1, newer: 0 });
        set(&service, &bucket, vec![LifecycleRule { noncurrent, ..rule("all", "") }]).await;
        let put = async |key: &str, lock| {
            let target = at(&bucket, key);
            let mut upload = service.put(target.clone()).await.unwrap();
            upload.write(b"something").await.unwrap();
            let facts = ObjectFacts { lock, owner: UserId::new("me"), ..ObjectFacts::default() };
            let made = upload.commit(facts, Conditions::default()).await.unwrap();
            made.version.unwrap_or(VersionId::Null)
        };
        let until_us = now_us(&env) + 5 * DAY_US;
        let retention = Some(Retention { mode: RetentionMode::Governance, until_us });
        let retained = put("retained", ObjectLock { retention, hold: None }).await;
        let held = put("held", ObjectLock { retention: None, hold: Some(true) }).await;
        for key in ["held", "plain", "plain", "retained"] {
            put(key, ObjectLock::default()).await;
        }
        let count = async || versions(&service, &bucket).await.len();
        assert_eq!(count().await, 6);
        env.sleep(2 * DAY + PASS).await;
        assert_eq!(count().await, 5);
        let off = LockChange::Hold(false);
        service.set_lock(at(&bucket, "held"), Some(held), off, false).await.unwrap();
        env.sleep(DAY + PASS).await;
        assert_eq!(count().await, 4);
        assert!(service.look(&at(&bucket, "retained"), Some(retained)).await.is_ok());
        wait_until(&env, until_us + DAY_US).await;
        env.sleep(PASS).await;
        assert_eq!(count().await, 3);
    });
}

#[test]
fn uploads_are_aborted_by_the_rule_where_there_is_one() {
    run(FAST, |world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let of = |id, days| LifecycleRule { abort_days: Some(days), ..rule(id, id) };
        set(&service, &bucket, vec![of("soon", 1), of("late", 6)]).await;
        let mut begun = Vec::new();
        for (nonce, key) in [(1, "soon"), (2, "late"), (3, "other"), (4, "soon, but done")] {
            let target = at(&bucket, key);
            let id = service.begin_upload(target.clone(), new_upload(nonce)).await.unwrap();
            send(&service, &target, (id, 1), &[1; 5000]).await.unwrap();
            begun.push((target, id));
        }
        let (done, id) = begun.pop().unwrap();
        let parts = ids(&service, &done, id).await;
        complete(&service, &done, id, parts, Conditions::default()).await.unwrap();
        let open = async || {
            let mut open = Vec::new();
            for (target, id) in &begun {
                if service.upload(target.clone(), *id).await.is_ok() {
                    open.push(target.key.as_str().to_owned());
                }
            }
            open
        };
        env.sleep(2 * DAY + PASS).await;
        assert_eq!(open().await, ["late", "other"]);
        // The default is 25 s, and ends with the trash: it gives way to the rule.
        env.sleep(2 * DAY).await;
        assert_eq!(open().await, ["late"]);
        env.sleep(3 * DAY).await;
        assert_eq!(open().await, Vec::<String>::new());
        check_usage(&service, bucket.id).await.expect("it is exact");
        assert_eq!(service.lifecycle_state(bucket.id).await.unwrap().removed, 2);
        assert!(service.look(&done, None).await.is_ok());
        env.sleep(DAY).await;
        assert_eq!(world.bodies().len(), 1);
    });
}

#[test]
fn a_new_owner_goes_on_behind_the_last_row_that_was_noted() {
    // About 40 rows a second: a pass takes longer than a day.
    run(4000, |world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        for number in 0..600 {
            put(&service, &at(&bucket, &format!("k{number:04}")), 5, ObjectTags::default()).await;
        }
        let current = Some(CurrentExpiry::Days(1));
        set(&service, &bucket, vec![LifecycleRule { current, ..rule("all", "k") }]).await;
        let left = async || service.usage(bucket.id).await.unwrap().objects;
        let deadline = now_us(&env) + 20 * DAY_US;
        let mut before = 600;
        while before > 0 && now_us(&env) < deadline {
            env.sleep(Duration::from_secs(7)).await;
            let now = left().await;
            assert!(now <= before, "{now} objects, and before {before}");
            before = now;
            world.crash_all();
            world.take_over().await.expect("it opens");
        }
        assert_eq!(left().await, 0);
        assert!(world.sim.marks()["object: a pass of lifecycle goes on"] > 0);
        assert_eq!(service.lifecycle_state(bucket.id).await.unwrap().removed, 600);
        check_usage(&service, bucket.id).await.expect("it is exact");
    });
}

#[test]
fn nothing_expires_by_a_clock_that_is_wrong() {
    let units = [Unit::Manager, Unit::Range(RangeId::new(1))];
    run_units(&units, (FAST, Bugs::default()), |world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let current = Some(CurrentExpiry::Days(3));
        set(&service, &bucket, vec![LifecycleRule { current, ..rule("all", "") }]).await;
        let stamp = put(&service, &at(&bucket, "k"), 5, ObjectTags::default()).await;
        let owner = world.owners.borrow()[1].clone();
        for ahead in [45_000, 120_000] {
            world.sim.set_wall_skew(owner.id, ahead);
            env.sleep(DAY).await;
            assert!(service.look(&at(&bucket, "k"), None).await.is_ok(), "{ahead} ms ahead");
        }
        // Too far apart: nothing is due, though it is by both.
        let due_us = LifecycleDay::from_us(DAY_US).due_us(stamp, 3);
        wait_until(&env, due_us + DAY_US).await;
        assert!(service.look(&at(&bucket, "k"), None).await.is_ok());
        let state = service.lifecycle_state(bucket.id).await.unwrap();
        assert!(state.behind_us > 100_000_000, "{state:?}");
        world.sim.set_wall_skew(owner.id, 0);
        env.sleep(DAY + PASS).await;
        let gone = service.look(&at(&bucket, "k"), None).await;
        assert_eq!(gone.map(drop), Err(Error::NoSuchKey));
    });
}

/// Objects that a pass removes in the time behind the answer to a removal of its rules.
fn removed_behind_the_rules(bugs: Bugs) -> u64 {
    let removed = Rc::new(Cell::new(0));
    let counted = removed.clone();
    // About 40 rows a second.
    run_units(&[Unit::All], (4000, bugs), |_, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        for number in 0..200 {
            put(&service, &at(&bucket, &format!("k{number:04}")), 5, ObjectTags::default()).await;
        }
        let current = Some(CurrentExpiry::Days(1));
        set(&service, &bucket, vec![LifecycleRule { current, ..rule("all", "k") }]).await;
        let left = async || service.usage(bucket.id).await.unwrap().objects;
        while left().await > 150 {
            env.sleep(Duration::from_millis(50)).await;
        }
        set(&service, &bucket, Vec::new()).await;
        let there = left().await;
        env.sleep(2 * DAY).await;
        counted.set(there - left().await);
        assert!(there > 100, "the pass was under way");
    });
    removed.get()
}

#[test]
fn nothing_goes_behind_the_answer_to_a_removal_of_rules() {
    assert_eq!(removed_behind_the_rules(Bugs::default()), 0);
    let removed = removed_behind_the_rules(Bugs::of(Planted::ExpireByOldRules));
    assert!(removed > 0, "a pass that goes by what it has read is not found");
}
