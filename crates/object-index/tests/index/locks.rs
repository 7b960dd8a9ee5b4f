//! Object lock: which versions stay, until when, and by which clock.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use object_index::{Bugs, ObjectServer, Owners, Planted, Service, ServiceOptions};
use object_proto::{
    BodyPlan, Bucket, BucketConfig, BucketRules, BucketSettings, BucketState, CatalogReply,
    CatalogRequest, Committed, Completion, Conditions, DataId, Error, Etag, LockChange, LockPeriod,
    LockRule, NewUpload, ObjectFacts, ObjectKey, ObjectLock, ObjectServerId, ObjectTags,
    PartNumber, PartsRequest, RangeGrant, RangeId, RangeRequest, Reply, Request, Retention,
    RetentionMode, Seen, ServerGrant, Setting, Stamp, Target, UploadId, VersionId, Versioning,
};
use object_testing::add_user;
use runtime::{Class, Duration, Env};

use super::basics::{run, run_with};
use super::support::{Host, Unit, World, config, me, name};

const GOVERNANCE: RetentionMode = RetentionMode::Governance;
const COMPLIANCE: RetentionMode = RetentionMode::Compliance;
const NONE: ObjectLock = ObjectLock { retention: None, hold: None };
const HELD: ObjectLock = ObjectLock { retention: None, hold: Some(true) };
const DAY_US: u64 = 24 * 3600 * 1_000_000;

fn now_us(env: &Env) -> u64 {
    env.unix_time().as_nanos() / 1000
}

/// A retention that ends so many seconds from now.
fn retained(env: &Env, mode: RetentionMode, seconds: u64) -> ObjectLock {
    let retention = Some(Retention { mode, until_us: now_us(env) + seconds * 1_000_000 });
    ObjectLock { retention, hold: None }
}

fn at(bucket: &Bucket, key: &str) -> Target {
    Target { bucket: bucket.id, key: ObjectKey::new(key).unwrap() }
}

/// Makes a bucket.
async fn made(service: &Service, lock: Option<LockRule>) -> Bucket {
    add_user(service, &me()).await;
    let settings = BucketSettings { lock, ..BucketSettings::default() };
    service.create_bucket(name("abc"), me(), settings).await.unwrap()
}

async fn put(service: &Service, target: &Target, lock: ObjectLock) -> Result<VersionId, Error> {
    let mut upload = service.put(target.clone()).await?;
    upload.write(b"something").await?;
    let facts = ObjectFacts { lock, owner: me(), ..ObjectFacts::default() };
    let put = upload.commit(facts, Conditions::default()).await?;
    Ok(put.version.unwrap_or(VersionId::Null))
}

/// Removes a version.
async fn remove(
    service: &Service,
    target: &Target,
    version: VersionId,
    bypass: bool,
) -> Result<(), Error> {
    let none = Conditions::default();
    service.delete_version(target.clone(), version, none, bypass).await.map(drop)
}

async fn delete(service: &Service, target: &Target) -> Result<Committed, Error> {
    service.delete(target.clone(), me(), Conditions::default()).await
}

async fn change(
    service: &Service,
    (target, version): (&Target, VersionId),
    change: LockChange,
    bypass: bool,
) -> Result<Option<VersionId>, Error> {
    let set = service.set_lock(target.clone(), Some(version), change, bypass).await?;
    Ok(set.version)
}

async fn lock_of(service: &Service, target: &Target, version: VersionId) -> ObjectLock {
    service.look(target, Some(version)).await.unwrap().object.facts.lock
}

async fn replaced(world: &Rc<World>) {
    let old = world.owners.borrow().last().expect("one rules").clone();
    world.crash(&old);
    world.take_over().await.expect("it opens");
}

/// Until an owner has heard the manager's clock.
async fn heard(env: &Env) {
    env.sleep(Duration::from_secs(1)).await;
}

async fn begin(service: &Service, target: &Target, lock: ObjectLock) -> Result<UploadId, Error> {
    let upload = NewUpload { nonce: 1, owner: me(), lock, ..NewUpload::default() };
    let id = service.begin_upload(target.clone(), upload).await?;
    let mut part = service
        .put_part(target.clone(), (id, PartNumber::new(1).unwrap()), BodyPlan::default())
        .await?;
    part.write(b"one").await?;
    part.commit(ObjectFacts::default(), Conditions::default()).await?;
    Ok(id)
}

async fn complete(
    service: &Service,
    target: &Target,
    upload: UploadId,
) -> Result<Committed, Error> {
    let ask = PartsRequest { target: target.clone(), upload, after: 0, limit: 9 };
    let parts = service.parts(ask).await?.parts;
    let parts: Vec<(PartNumber, DataId)> =
        parts.iter().map(|part| (part.number, part.data_id)).collect();
    let completion = Completion { upload, parts, etag: Etag::new("e"), checksums: Vec::new() };
    service.complete_upload(target.clone(), completion, Conditions::default()).await
}

#[test]
fn locked_versions_stay_until_their_time_and_held_ones_until_they_are_let_go() {
    run(|world, service, env| async move {
        let bucket = made(&service, Some(LockRule::default())).await;
        let target = at(&bucket, "a");
        let free = put(&service, &target, NONE).await.unwrap();
        let governed = put(&service, &target, retained(&env, GOVERNANCE, 20)).await.unwrap();
        let kept = put(&service, &target, retained(&env, COMPLIANCE, 20)).await.unwrap();
        let long = retained(&env, COMPLIANCE, 20);
        let held = put(&service, &target, ObjectLock { hold: Some(true), ..long }).await.unwrap();
        // Nothing is lost by what hides and is put over it.
        let marker = delete(&service, &target).await.unwrap();
        assert!(marker.marker);
        let last = put(&service, &target, NONE).await.unwrap();
        for version in [free, last, marker.version.unwrap()] {
            assert_eq!(remove(&service, &target, version, false).await, Ok(()));
        }
        for takeover in [false, true] {
            if takeover {
                replaced(&world).await;
                heard(&env).await;
            }
            for (version, bypass) in
                [(governed, false), (kept, false), (kept, true), (held, false), (held, true)]
            {
                let removed = remove(&service, &target, version, bypass).await;
                assert_eq!(removed, Err(Error::Locked), "{version} {bypass}");
            }
        }
        assert_eq!(service.look(&target, None).await.unwrap().version(), held);
        // A condition fails before a lock does.
        let wrong = Conditions {
            if_match: Some(object_proto::Tags::Of(vec![Etag::new("x")])),
            ..Conditions::default()
        };
        let failed = service.delete_version(target.clone(), kept, wrong, false).await;
        assert_eq!(failed, Err(Error::Precondition));
        assert_eq!(remove(&service, &target, governed, true).await, Ok(()));
        assert_eq!(service.remove_bucket(name("abc")).await, Err(Error::BucketNotEmpty));
        env.sleep(Duration::from_secs(20)).await;
        assert_eq!(remove(&service, &target, kept, false).await, Ok(()));
        assert_eq!(remove(&service, &target, held, true).await, Err(Error::Locked));
        let off = LockChange::Hold(false);
        assert_eq!(change(&service, (&target, held), off, false).await, Ok(Some(held)));
        assert_eq!(remove(&service, &target, held, false).await, Ok(()));
        assert_eq!(service.remove_bucket(name("abc")).await, Ok(()));
    });
}

#[test]
fn a_retention_is_prolonged_by_all_and_weakened_only_under_governance() {
    run(|world, service, env| async move {
        let bucket = made(&service, Some(LockRule::default())).await;
        let target = at(&bucket, "a");
        let version = put(&service, &target, NONE).await.unwrap();
        let set = async |lock: ObjectLock, bypass| {
            let retention = LockChange::Retention(lock.retention);
            change(&service, (&target, version), retention, bypass).await.map(drop)
        };
        let later = |mode, seconds| retained(&env, mode, seconds);
        assert_eq!(set(later(GOVERNANCE, 20), false).await, Ok(()));
        assert_eq!(set(later(GOVERNANCE, 30), false).await, Ok(()));
        for weaker in [later(GOVERNANCE, 20), later(COMPLIANCE, 40), NONE] {
            assert_eq!(set(weaker, false).await, Err(Error::Locked), "{weaker:?}");
        }
        assert_eq!(set(later(GOVERNANCE, 20), true).await, Ok(()));
        assert_eq!(set(NONE, true).await, Ok(()));
        assert_eq!(set(later(GOVERNANCE, 20), false).await, Ok(()));
        assert_eq!(set(later(COMPLIANCE, 20), true).await, Ok(()));
        replaced(&world).await;
        heard(&env).await;
        for weaker in [later(COMPLIANCE, 5), later(GOVERNANCE, 40), NONE] {
            assert_eq!(set(weaker, true).await, Err(Error::Locked), "{weaker:?}");
        }
        let last = later(COMPLIANCE, 25);
        assert_eq!(set(last, false).await, Ok(()));
        // A hold is apart from it, and so are other facts.
        let hold = LockChange::Hold(true);
        assert_eq!(change(&service, (&target, version), hold, false).await, Ok(Some(version)));
        service.set_tags(target.clone(), Some(version), ObjectTags::default()).await.unwrap();
        let both = ObjectLock { hold: Some(true), ..last };
        assert_eq!(lock_of(&service, &target, version).await, both);
        env.sleep(Duration::from_secs(25)).await;
        assert_eq!(set(NONE, false).await, Ok(()));
        assert_eq!(lock_of(&service, &target, version).await, HELD);
        let marker = delete(&service, &target).await.unwrap().version.unwrap();
        let set = change(&service, (&target, marker), hold, false).await;
        assert!(matches!(set, Err(Error::Marker { asked: true, .. })), "{set:?}");
        let newest = service.set_lock(target.clone(), None, hold, false).await;
        assert_eq!(newest, Err(Error::NoSuchKey));
    });
}

#[test]
fn a_bucket_with_locks_has_versions_and_keeps_both() {
    run(|world, service, env| async move {
        let bucket = made(&service, None).await;
        let target = at(&bucket, "a");
        let null = put(&service, &target, NONE).await.unwrap();
        let enable = |default| service.set_bucket(name("abc"), Setting::Lock(LockRule { default }));
        let is_invalid = |done: Result<(), Error>| matches!(done, Err(Error::Invalid { .. }));
        let days = |mode, days| Some((mode, LockPeriod::Days(days)));
        for versioning in [Versioning::Off, Versioning::Suspended, Versioning::Enabled] {
            if versioning != Versioning::Off {
                service.set_versioning(name("abc"), versioning).await.unwrap();
            }
            for lock in [HELD, retained(&env, GOVERNANCE, 9)] {
                assert!(is_invalid(put(&service, &target, lock).await.map(drop)));
                assert!(is_invalid(begin(&service, &target, lock).await.map(drop)));
            }
            let hold = change(&service, (&target, null), LockChange::Hold(true), false).await;
            assert!(is_invalid(hold.map(drop)));
            if versioning != Versioning::Enabled {
                assert!(is_invalid(enable(None).await), "{versioning:?}");
            }
        }
        for period in [LockPeriod::Days(0), LockPeriod::Years(101)] {
            assert!(is_invalid(enable(Some((GOVERNANCE, period))).await), "{period:?}");
        }
        enable(None).await.unwrap();
        assert!(put(&service, &target, HELD).await.is_ok());
        let hold = change(&service, (&target, null), LockChange::Hold(true), false).await;
        assert_eq!(hold, Ok(Some(null)));
        for takeover in [false, true] {
            if takeover {
                replaced(&world).await;
            }
            let suspended = service.set_versioning(name("abc"), Versioning::Suspended).await;
            assert!(is_invalid(suspended), "{takeover}");
            enable(days(COMPLIANCE, 2)).await.unwrap();
            service.set_versioning(name("abc"), Versioning::Enabled).await.unwrap();
            let view = service.bucket(name("abc")).await.unwrap();
            let rule = LockRule { default: days(COMPLIANCE, 2) };
            assert_eq!(view.settings.lock, Some(rule));
            assert_eq!(view.bucket.versioning, Versioning::Enabled);
            assert_eq!(remove(&service, &target, null, true).await, Err(Error::Locked));
        }
        let settings =
            BucketSettings { lock: Some(LockRule::default()), ..BucketSettings::default() };
        let made = service.create_bucket(name("new"), me(), settings).await.unwrap();
        assert_eq!(made.versioning, Versioning::Enabled);
        assert!(put(&service, &at(&made, "a"), HELD).await.is_ok());
    });
}

#[test]
fn versions_without_a_retention_get_that_of_their_bucket_from_their_commit_on() {
    run(|world, service, env| async move {
        let rule = LockRule { default: Some((GOVERNANCE, LockPeriod::Days(1))) };
        let bucket = made(&service, Some(rule)).await;
        let target = at(&bucket, "a");
        let own = retained(&env, COMPLIANCE, 5);
        let begun = begin(&service, &at(&bucket, "b"), NONE).await.unwrap();
        let begun_locked = begin(&service, &at(&bucket, "c"), own).await.unwrap();
        env.sleep(Duration::from_secs(3)).await;
        for (mode, days, takeover) in [(GOVERNANCE, 1, true), (COMPLIANCE, 3, false)] {
            let rule = LockRule { default: Some((mode, LockPeriod::Days(days))) };
            service.set_bucket(name("abc"), Setting::Lock(rule)).await.unwrap();
            if takeover {
                replaced(&world).await;
            }
            let until_us = |stamp: Stamp| stamp.get() + u64::from(days) * DAY_US;
            let default = |stamp| Some(Retention { mode, until_us: until_us(stamp) });
            for hold in [None, Some(false), Some(true)] {
                let lock = ObjectLock { retention: None, hold };
                let version = put(&service, &target, lock).await.unwrap();
                let info = service.look(&target, Some(version)).await.unwrap();
                let wanted = ObjectLock { retention: default(info.stamp), hold };
                assert_eq!(info.object.facts.lock, wanted);
                assert_eq!(remove(&service, &target, version, false).await, Err(Error::Locked));
            }
            let version = put(&service, &target, own).await.unwrap();
            assert_eq!(lock_of(&service, &target, version).await, own);
        }
        // What an upload becomes is retained from its completion on.
        let made = complete(&service, &at(&bucket, "b"), begun).await.unwrap();
        let until_us = made.stamp.get() + 3 * DAY_US;
        let lock = lock_of(&service, &at(&bucket, "b"), made.version.unwrap()).await;
        assert_eq!(lock.retention, Some(Retention { mode: COMPLIANCE, until_us }));
        let made = complete(&service, &at(&bucket, "c"), begun_locked).await.unwrap();
        assert_eq!(lock_of(&service, &at(&bucket, "c"), made.version.unwrap()).await, own);
        service.set_bucket(name("abc"), Setting::Lock(LockRule::default())).await.unwrap();
        let version = put(&service, &target, NONE).await.unwrap();
        assert_eq!(lock_of(&service, &target, version).await, NONE);
    });
}

/// A manager and a range that have clocks of their own, and a bucket with locks.
pub struct Clocks {
    pub world: Rc<World>,
    pub service: Service,
    pub env: Env,
    target: Target,
    /// Each is set ahead or back: the manager's, the owner's.
    pub hosts: [Rc<Host>; 2],
}

impl Clocks {
    pub fn run<F: Future<Output = ()> + 'static>(
        bugs: Bugs,
        work: impl FnOnce(Clocks) -> F + 'static,
    ) {
        let world = World::new(1, bugs);
        world.clone().run(async move {
            let manager = world.take_over_unit(Unit::Manager).await.expect("it opens");
            let range = Unit::Range(RangeId::new(1));
            let owner = world.take_over_unit(range).await.expect("it opens");
            let (_, env) = world.host("gateway");
            let (service, hosts) = (world.service(&env), [manager, owner]);
            let work = {
                let env = env.clone();
                async move {
                    let bucket = made(&service, Some(LockRule::default())).await;
                    let target = at(&bucket, "a");
                    work(Clocks { world, service, env, target, hosts }).await;
                }
            };
            env.spawn(Class::Foreground, "test", work).await.unwrap();
        });
    }

    /// Sets the clocks, and waits until the owner has heard the manager's.
    pub async fn set(&self, seconds: [i64; 2]) {
        for (host, seconds) in self.hosts.iter().zip(seconds) {
            self.world.sim.set_wall_skew(host.id, seconds * 1000);
        }
        heard(&self.env).await;
    }

    async fn put(&self, seconds: u64) -> VersionId {
        let lock = retained(&self.env, COMPLIANCE, seconds);
        put(&self.service, &self.target, lock).await.unwrap()
    }

    /// Whether a version goes.
    async fn goes(&self, version: VersionId) -> bool {
        match remove(&self.service, &self.target, version, true).await {
            Ok(()) => true,
            Err(Error::Locked) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

const HOURS: i64 = 3 * 3600;

#[test]
fn a_clock_that_is_set_forward_frees_nothing() {
    for forward in [[HOURS, 0], [0, HOURS], [61, 0], [0, 61], [-61, 0], [0, -HOURS]] {
        Clocks::run(Bugs::default(), move |clocks| async move {
            let version = clocks.put(20).await;
            clocks.set(forward).await;
            assert!(!clocks.goes(version).await, "{forward:?}");
            // Nor is a retention weakened that is over by that clock.
            let none = LockChange::Retention(None);
            let set = clocks.service.set_lock(clocks.target.clone(), Some(version), none, true);
            assert_eq!(set.await, Err(Error::Locked));
            clocks.env.sleep(Duration::from_secs(25)).await;
            assert!(!clocks.goes(version).await, "{forward:?}: clocks are apart");
            clocks.set([0, 0]).await;
            assert!(clocks.goes(version).await, "{forward:?}: both are right");
        });
    }
}

#[test]
fn a_clock_that_is_behind_makes_no_retention_shorter() {
    for behind in [[0, -HOURS], [0, -50], [0, HOURS], [0, 0]] {
        Clocks::run(Bugs::default(), move |clocks| async move {
            let rule = LockRule { default: Some((COMPLIANCE, LockPeriod::Days(1))) };
            clocks.service.set_bucket(name("abc"), Setting::Lock(rule)).await.unwrap();
            clocks.put(1).await;
            clocks.set(behind).await;
            clocks.env.sleep(Duration::from_secs(30)).await;
            let before_us = now_us(&clocks.env);
            let version = put(&clocks.service, &clocks.target, NONE).await.unwrap();
            let lock = lock_of(&clocks.service, &clocks.target, version).await;
            let until_us = lock.retention.expect("the bucket's").until_us;
            // Clocks drift.
            assert!(until_us + 1_000_000 >= before_us + DAY_US, "{behind:?}");
        });
    }
}

#[test]
fn a_lock_ends_by_the_lower_clock() {
    // (manager, owner), seconds ahead; when a lock of 20 s ends.
    for (seconds, end) in [([50, 0], 20), ([0, 50], 20), ([10, 15], 10), ([0, -10], 30)] {
        Clocks::run(Bugs::default(), move |clocks| async move {
            let version = clocks.put(20).await;
            clocks.set(seconds).await;
            clocks.env.sleep(Duration::from_secs(end - 3)).await;
            assert!(!clocks.goes(version).await, "{seconds:?}");
            clocks.env.sleep(Duration::from_secs(4)).await;
            assert!(clocks.goes(version).await, "{seconds:?}");
        });
    }
    Clocks::run(Bugs::of(Planted::LockByClock), |clocks| async move {
        let version = clocks.put(20).await;
        clocks.set([0, 50]).await;
        assert!(clocks.goes(version).await, "the owner's own clock is ahead");
    });
}

#[test]
fn an_owner_that_has_not_heard_the_managers_clock_ends_no_lock() {
    Clocks::run(Bugs::default(), |clocks| async move {
        let (world, range) = (clocks.world.clone(), Unit::Range(RangeId::new(1)));
        let (first, second) = (clocks.put(10).await, clocks.put(10).await);
        world.is_clock_silent.set(true);
        // One that has heard it once goes on.
        clocks.env.sleep(Duration::from_secs(11)).await;
        assert!(clocks.goes(first).await);
        world.crash(&clocks.hosts[1]);
        world.take_over_unit(range).await.expect("it opens");
        clocks.env.sleep(Duration::from_secs(5)).await;
        assert!(!clocks.goes(second).await);
        assert!(put(&clocks.service, &clocks.target, NONE).await.is_ok());
        world.is_clock_silent.set(false);
        heard(&clocks.env).await;
        assert!(clocks.goes(second).await);
    });
}

/// A manager that grants a server the first range, and the way to both.
struct Granting {
    /// Where the manager's clock is.
    env: Env,
    manager: Rc<dyn Owners>,
    server: RefCell<Option<ObjectServer>>,
}

impl Owners for Granting {
    fn call(
        &self,
        request: Request,
        timeout: Duration,
    ) -> LocalBoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let reply = match request {
                Request::Catalog(CatalogRequest::Register { .. }) => {
                    CatalogReply::Registered { server: ObjectServerId::new(1), boot: 1 }
                }
                Request::Catalog(CatalogRequest::ServerBeat(beat)) => {
                    let given = RangeGrant { range: RangeId::new(1), epoch: Some((1, 0)) };
                    let is_new = beat.seen == Seen::default();
                    CatalogReply::Grant(Box::new(ServerGrant {
                        known: true,
                        lease_ms: 600,
                        reset: is_new,
                        changes: if is_new { vec![given] } else { Vec::new() },
                        seen: Seen { term: 1, change: 1 },
                        more: false,
                        now_us: now_us(&self.env),
                    }))
                }
                Request::Range(range, request) => {
                    let server = self.server.borrow().clone().ok_or(Error::Reroute)?;
                    return server.handle(range, request).await.map(Reply::Range);
                }
                request => return self.manager.call(request, timeout).await,
            };
            Ok(Reply::Catalog(reply))
        })
    }
}

#[test]
fn an_object_server_knows_the_managers_clock_by_its_grants() {
    // Seconds that its own clock is ahead; whether a lock of 20 s is over behind 10 s, and behind 25 s.
    for (ahead, gone) in
        [(0, [false, true]), (50, [false, true]), (-50, [false, false]), (61, [false, false])]
    {
        let world = World::new(1, Bugs::default());
        world.clone().run(async move {
            world.take_over_unit(Unit::Manager).await.expect("it opens");
            let (_, env) = world.host("gateway");
            let (host, server_env) = world.host("server");
            world.sim.set_wall_skew(host, ahead * 1000);
            let manager = world.network.owners(&env);
            let granting =
                Rc::new(Granting { env: env.clone(), manager, server: RefCell::default() });
            let own = ("os1", "127.0.0.1:7601".parse().unwrap());
            let files = world.files(&server_env);
            let config = config(Bugs::default());
            let server = ObjectServer::start(&server_env, own, granting.clone(), files, config);
            granting.server.replace(Some(server));
            let files = world.files(&env);
            let service = Service::new(&env, granting, files, ServiceOptions::default());
            let work = {
                let env = env.clone();
                async move {
                    let target = at(&made(&service, Some(LockRule::default())).await, "a");
                    let lock = retained(&env, COMPLIANCE, 20);
                    let version = put(&service, &target, lock).await.unwrap();
                    for (gone, wait) in gone.into_iter().zip([10, 15]) {
                        env.sleep(Duration::from_secs(wait)).await;
                        let wanted = if gone { Ok(()) } else { Err(Error::Locked) };
                        let removed = remove(&service, &target, version, false).await;
                        assert_eq!(removed, wanted, "{ahead} s ahead");
                    }
                }
            };
            env.spawn(Class::Foreground, "test", work).await.unwrap();
        });
    }
}

/// What is done to a bucket that has a locked version without an ID, and is suspended or has no versions though
/// it never should: what each attempt to replace that version ends with.
async fn overwrite(
    world: &World,
    service: &Service,
    env: &Env,
    is_newest: bool,
    versioning: Versioning,
) -> Vec<Result<(), Error>> {
    let bucket = made(service, None).await;
    let target = at(&bucket, "a");
    put(service, &target, NONE).await.unwrap();
    service.set_versioning(name("abc"), Versioning::Enabled).await.unwrap();
    let rule = LockRule::default();
    service.set_bucket(name("abc"), Setting::Lock(rule)).await.unwrap();
    let upload = begin(service, &target, NONE).await.unwrap();
    let hold = LockChange::Hold(true);
    change(service, (&target, VersionId::Null), hold, false).await.unwrap();
    if !is_newest {
        put(service, &target, NONE).await.unwrap();
    }
    let epoch = world.epoch(Unit::All);
    let changed = Stamp::new(u64::MAX / 2);
    let rules = BucketRules { versioning, lock: Some(rule), ..BucketRules::default() };
    let config = BucketConfig { changed, state: BucketState::Open(rules) };
    let order = RangeRequest::Configure { epoch, bucket: bucket.id, config };
    let owners = world.network.owners(env);
    let order = Request::Range(RangeId::new(1), order);
    owners.call(order, Duration::from_secs(1)).await.unwrap();
    vec![
        put(service, &target, NONE).await.map(drop),
        delete(service, &target).await.map(drop),
        complete(service, &target, upload).await.map(drop),
        remove(service, &target, VersionId::Null, true).await,
    ]
}

#[test]
fn nothing_takes_the_place_of_a_locked_version() {
    for (is_newest, versioning) in
        [(true, Versioning::Suspended), (false, Versioning::Suspended), (true, Versioning::Off)]
    {
        run(move |world, service, env| async move {
            let outcomes = overwrite(&world, &service, &env, is_newest, versioning).await;
            assert_eq!(outcomes, vec![Err(Error::Locked); 4], "{is_newest} {versioning:?}");
            let target = at(&service.bucket(name("abc")).await.unwrap().bucket, "a");
            assert_eq!(lock_of(&service, &target, VersionId::Null).await, HELD);
            service
                .abort_upload(target.clone(), begin(&service, &target, NONE).await.unwrap())
                .await
                .unwrap();
        });
    }
    run_with(Bugs::of(Planted::LockOverwritten), |world, service, env| async move {
        let outcomes = overwrite(&world, &service, &env, true, Versioning::Suspended).await;
        assert_eq!(outcomes[0], Ok(()), "it is overwritten");
    });
}
