//! [`DaysLoad`]: clients of buckets with rules of lifecycle, whose days are short: they overwrite, tag, lock and
//! delete what is about to expire, complete uploads that are about to be aborted, and take rules away.
//!
//! Each key has one client, so it is known what is there. What is gone before it was due by a right clock breaks a
//! promise, as does what is there in the end though it was due.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use object_index::Service;
use object_proto::{
    BodyPlan, Bucket, BucketName, BucketSettings, Committed, Completion, Conditions, CurrentExpiry,
    Error, Etag, FilterForm, Lifecycle, LifecycleDay, LifecycleFilter, LifecycleRule, LockRule,
    NewUpload, NoncurrentExpiry, ObjectFacts, ObjectKey, ObjectLock, ObjectTags, PartNumber,
    PartsRequest, Retention, RetentionMode, Setting, Stamp, Target, UploadId, UserId, VersionId,
    Versioning, VersionsRequest,
};
use runtime::sim::Sim;
use runtime::{Duration, Rng};

use crate::usage::check_usage;

/// Keys that a client puts at once.
const BATCH: usize = 14;
/// Keys of whose versions a client makes some at once.
const KEYS: usize = 5;
/// Bytes above which an object of prefix `s/` expires.
const SIZE: u64 = 200;
/// A request of a gateway that has crashed is made within this time, or never.
const LATE: Duration = Duration::from_secs(12);
/// Clocks of owners were ahead by so much at most: what they put, markers of lifecycle too, is due later.
const AHEAD_US: u64 = 75_000_000;
/// Days behind all that is due, in which markers that hide it go, too.
const DAYS_AFTER: u64 = 8;

const PLAIN: usize = 0;
const RULES: usize = 1;
const VERSIONS: usize = 2;
const SUSPENDED: usize = 3;
const NAMES: [&str; 4] = ["days-plain", "days-rules", "days-versions", "days-suspended"];

struct LoadInner {
    sim: Sim,
    day: LifecycleDay,
    /// The wall clock at the simulation's beginning, microseconds since 1970.
    began_us: u64,
    buckets: RefCell<Vec<Bucket>>,
    rest: RefCell<Vec<Rest>>,
    /// The rules of one bucket are being changed, or may be by a late request until then.
    changing: Cell<bool>,
    unclear_until: Cell<std::time::Duration>,
    keys: Cell<u64>,
    done: Cell<u64>,
    stop: Cell<bool>,
    violation: RefCell<Option<String>>,
}

/// A load. Clones share it.
#[derive(Clone)]
pub struct DaysLoad(Rc<LoadInner>);

/// What is there in the end, or is not.
struct Rest {
    target: Target,
    what: What,
    end: End,
}

#[derive(Clone, Copy)]
enum What {
    Object,
    Version(VersionId),
    /// All versions and markers of the key.
    All,
    Upload(UploadId),
}

#[derive(Clone, Copy)]
enum End {
    Stays,
    /// It is due from this time on.
    Goes(u64),
}

impl End {
    fn of(due_us: Option<u64>) -> End {
        due_us.map_or(End::Stays, End::Goes)
    }

    fn due_us(self) -> u64 {
        match self {
            End::Stays => u64::MAX,
            End::Goes(due_us) => due_us,
        }
    }
}

/// An object without versions.
struct Item {
    target: Target,
    stamp: Stamp,
    size: u64,
    tagged: bool,
}

impl Item {
    fn end(&self, day: LifecycleDay) -> End {
        let expires = match self.target.key.as_str().as_bytes()[0] {
            b'd' => true,
            b't' => self.tagged,
            b's' => self.size > SIZE,
            _ => false,
        };
        End::of(expires.then(|| day.due_us(self.stamp.get(), 1)))
    }
}

/// A version that a client has made: its ID, time, and the end of its retention.
#[derive(Clone, Copy)]
struct Made {
    version: VersionId,
    stamp: Stamp,
    is_marker: bool,
    locked_us: u64,
}

fn rule(id: &str, prefix: &str) -> LifecycleRule {
    let prefix = Some(prefix.to_owned());
    let form = FilterForm::Plain;
    let filter =
        LifecycleFilter { form, prefix, tags: BTreeMap::new(), larger: None, smaller: None };
    let (id, enabled) = (id.to_owned(), true);
    LifecycleRule { id, enabled, filter, current: None, noncurrent: None, abort_days: None }
}

/// The rules of all buckets.
fn rules() -> Arc<Lifecycle> {
    let days = |days| Some(CurrentExpiry::Days(days));
    let mut tagged = LifecycleRule { current: days(1), ..rule("tagged", "t/") };
    tagged.filter.tags = tag(true).iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let mut large = LifecycleRule { current: days(1), ..rule("large", "s/") };
    large.filter.larger = Some(SIZE);
    let of = |newer| Some(NoncurrentExpiry { days: 1, newer });
    Arc::new(Lifecycle {
        rules: vec![
            LifecycleRule { current: days(1), ..rule("days", "d/") },
            tagged,
            large,
            LifecycleRule { abort_days: Some(1), ..rule("uploads", "u/") },
            LifecycleRule { current: days(2), noncurrent: of(1), ..rule("versions", "v/") },
            LifecycleRule { current: days(1), noncurrent: of(0), ..rule("all", "m/") },
            LifecycleRule { enabled: false, current: days(1), ..rule("off", "") },
        ],
    })
}

fn tag(is_there: bool) -> ObjectTags {
    let pair = is_there.then(|| ("x".to_owned(), "1".to_owned()));
    ObjectTags::new(pair.into_iter().collect()).expect("tags")
}

/// Says when the rules of a bucket are being changed no more; of a client that crashes, later.
struct Changing<'a> {
    load: &'a LoadInner,
    is_clear: bool,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.load.changing.set(false);
        if !self.is_clear {
            self.load.unclear_until.set(self.load.sim.elapsed() + LATE);
        }
    }
}

impl DaysLoad {
    /// A load whose days have this length; a right wall clock shows `now_us`.
    pub fn new(sim: &Sim, day: LifecycleDay, now_us: u64) -> DaysLoad {
        DaysLoad(Rc::new(LoadInner {
            sim: sim.clone(),
            day,
            began_us: now_us - sim.elapsed().as_micros() as u64,
            buckets: RefCell::default(),
            rest: RefCell::default(),
            changing: Cell::default(),
            unclear_until: Cell::default(),
            keys: Cell::default(),
            done: Cell::default(),
            stop: Cell::default(),
            violation: RefCell::default(),
        }))
    }

    /// Clients end after the keys that they are at.
    pub fn stop(&self) {
        self.0.stop.set(true);
    }

    /// Operations that were answered.
    pub fn done(&self) -> u64 {
        self.0.done.get()
    }

    /// The first promise that was seen broken while clients ran.
    pub fn violation(&self) -> Option<String> {
        self.0.violation.borrow().clone()
    }

    fn violated(&self, what: String) {
        self.0.violation.borrow_mut().get_or_insert(what);
    }

    /// True when clients end.
    pub fn is_over(&self) -> bool {
        self.0.stop.get() || self.violation().is_some()
    }

    fn now_us(&self) -> u64 {
        self.0.began_us + self.0.sim.elapsed().as_micros() as u64
    }

    fn target(&self, bucket: usize, prefix: &str) -> Target {
        self.0.keys.set(self.0.keys.get() + 1);
        let key = ObjectKey::new(format!("{prefix}{:06}", self.0.keys.get())).expect("a key");
        Target { bucket: self.0.buckets.borrow()[bucket].id, key }
    }

    /// Makes the buckets and their rules, whatever it takes.
    pub async fn prepare(&self, service: &Service) {
        let owner = UserId::new("load");
        for (at, name) in NAMES.into_iter().enumerate() {
            let name = BucketName::new(name).expect("a name");
            let lock = (at == VERSIONS).then(LockRule::default);
            let settings = BucketSettings { lock, ..BucketSettings::default() };
            let bucket = loop {
                let settings = settings.clone();
                match service.create_bucket(name.clone(), owner.clone(), settings).await {
                    Ok(bucket) => break bucket,
                    Err(Error::BucketExists { .. }) => {
                        if let Ok(view) = service.bucket(name.clone()).await {
                            break view.bucket.clone();
                        }
                    }
                    Err(_) => service.env().sleep(Duration::from_millis(100)).await,
                }
            };
            if at == SUSPENDED {
                for versioning in [Versioning::Enabled, Versioning::Suspended] {
                    while service.set_versioning(name.clone(), versioning).await.is_err() {}
                }
            }
            while !self.set_rules(service, &name, true).await {}
            self.0.buckets.borrow_mut().push(bucket);
        }
    }

    /// Gives a bucket its rules, or takes them away; false when it is not known whether that was done.
    async fn set_rules(&self, service: &Service, name: &BucketName, are_there: bool) -> bool {
        let setting = Setting::Lifecycle(are_there.then(rules));
        service.set_bucket(name.clone(), setting).await.is_ok()
    }

    /// One client, until the load is stopped or its host crashes.
    pub async fn client(self, service: Service, mut rng: Rng) {
        while !self.is_over() {
            match rng.below(9) {
                0..3 => self.plain(&service, &mut rng).await,
                3 | 4 => self.rules(&service, &mut rng).await,
                5..7 => self.versions(&service, &mut rng).await,
                7 => self.suspended(&service, &mut rng).await,
                _ => self.uploads(&service, &mut rng).await,
            }
            let pause = Duration::from_micros(rng.below(50_000));
            service.env().sleep(pause).await;
        }
    }

    /// Notes an answer; none for one that leaves it open what was done.
    fn answered<T>(&self, what: &Target, outcome: Result<T, Error>) -> Option<Result<T, Error>> {
        match outcome {
            Err(Error::Busy { .. } | Error::Unknown { .. } | Error::Full) => return None,
            Err(
                Error::NoSuchKey
                | Error::NoSuchVersion
                | Error::NoSuchUpload
                | Error::Marker { .. }
                | Error::Locked,
            )
            | Ok(_) => {}
            Err(ref error) => self.violated(format!("{what}: {error}")),
        }
        self.0.done.set(self.0.done.get() + 1);
        Some(outcome)
    }

    async fn put(
        &self,
        service: &Service,
        target: &Target,
        (size, tagged, lock): (u64, bool, ObjectLock),
    ) -> Option<Committed> {
        let put = async {
            let mut upload = service.put(target.clone()).await?;
            upload.write(&vec![7; size as usize]).await?;
            let facts = ObjectFacts {
                etag: Etag::new("e"),
                tags: tag(tagged),
                owner: UserId::new("load"),
                lock,
                ..ObjectFacts::default()
            };
            upload.commit(facts, Conditions::default()).await
        };
        self.answered(target, put.await)?.ok()
    }

    /// What is there, or not; none when it is not known.
    async fn is_there(
        &self,
        service: &Service,
        target: &Target,
        version: Option<VersionId>,
    ) -> Option<bool> {
        let looked = self.answered(target, service.look(target, version).await)?;
        Some(match looked {
            // The marker that is asked for is there.
            Err(Error::Marker { asked, .. }) => asked,
            looked => looked.is_ok(),
        })
    }

    /// Something is gone: a broken promise before it was due.
    fn gone(&self, target: &Target, end: End) {
        let (now_us, due_us) = (self.now_us(), end.due_us());
        if now_us < due_us {
            let due = match end {
                End::Stays => "never".to_owned(),
                End::Goes(due_us) => format!("in {} us", due_us - now_us),
            };
            self.violated(format!("{target} is gone, and was due {due}"));
        }
    }

    /// Waits until about the time at which something is due, a few days at most.
    async fn wait(&self, service: &Service, due_us: u64, rng: &mut Rng) {
        let around = due_us.saturating_sub(50_000) + rng.below(1_200_000);
        let wait_us = around.saturating_sub(self.now_us()).min(3 * self.0.day.us());
        service.env().sleep(Duration::from_micros(wait_us)).await;
    }

    fn keep(&self, target: Target, what: What, end: End) {
        self.0.rest.borrow_mut().push(Rest { target, what, end });
    }

    /// Objects without versions, which change at the time at which they are due.
    async fn plain(&self, service: &Service, rng: &mut Rng) {
        let (day, mut items) = (self.0.day, Vec::new());
        for _ in 0..BATCH {
            let prefix = *rng.pick(&["d/", "d/", "t/", "t/", "s/", "k/"]);
            let (target, size) = (self.target(PLAIN, prefix), rng.between(1, 400));
            let tagged = rng.one_in(2);
            let put = self.put(service, &target, (size, tagged, ObjectLock::default())).await;
            items.extend(put.map(|made| Item { target, stamp: made.stamp, size, tagged }));
        }
        let due_us = items.iter().map(|item| item.end(day)).filter(|end| end.due_us() != u64::MAX);
        let due_us = due_us.map(End::due_us).max().unwrap_or_default();
        self.wait(service, due_us, rng).await;
        let mut kept = Vec::new();
        for mut item in items {
            let end = item.end(day);
            match rng.below(5) {
                0 | 1 => {
                    let size = rng.between(1, 400);
                    let put = (size, item.tagged, ObjectLock::default());
                    let Some(made) = self.put(service, &item.target, put).await else { continue };
                    kept.push(Item { stamp: made.stamp, size, ..item });
                }
                2 | 3 => {
                    item.tagged = !item.tagged;
                    let tags = tag(item.tagged);
                    let set = service.set_tags(item.target.clone(), None, tags).await;
                    match self.answered(&item.target, set) {
                        Some(Ok(_)) => kept.push(item),
                        Some(Err(_)) => self.gone(&item.target, end),
                        None => {}
                    }
                }
                _ => kept.push(item),
            }
        }
        service.env().sleep(Duration::from_micros(rng.below(1_000_000))).await;
        for item in kept {
            let end = item.end(day);
            match self.is_there(service, &item.target, None).await {
                Some(false) => self.gone(&item.target, end),
                _ => self.keep(item.target, What::Object, end),
            }
        }
    }

    /// Objects whose rules are taken away at the time at which they are due.
    async fn rules(&self, service: &Service, rng: &mut Rng) {
        let inner = &*self.0;
        if inner.changing.get() || inner.sim.elapsed() < inner.unclear_until.get() {
            return;
        }
        inner.changing.set(true);
        let mut changing = Changing { load: inner, is_clear: false };
        let (mut items, name) = (Vec::new(), BucketName::new(NAMES[RULES]).expect("a name"));
        for _ in 0..3 * BATCH {
            let target = self.target(RULES, "d/");
            let put = self.put(service, &target, (9, false, ObjectLock::default())).await;
            items.extend(put.map(|made| Item {
                target,
                stamp: made.stamp,
                size: 9,
                tagged: false,
            }));
        }
        let due_us = items.iter().map(|item| item.end(inner.day).due_us()).max();
        self.wait(service, due_us.unwrap_or_default(), rng).await;
        if !self.set_rules(service, &name, false).await {
            return;
        }
        let mut there = Vec::new();
        // A pass is in the order of keys: the last ones are the last to go.
        for item in items.into_iter().rev() {
            let end = item.end(inner.day);
            match self.is_there(service, &item.target, None).await {
                Some(true) => there.push(item),
                Some(false) => self.gone(&item.target, end),
                None => {}
            }
        }
        service.env().sleep(Duration::from_micros(rng.below(2_000_000))).await;
        for item in there {
            if self.is_there(service, &item.target, None).await == Some(false) {
                self.violated(format!("{} is gone by rules that were taken away", item.target));
            }
            let end = item.end(inner.day);
            self.keep(item.target, What::Object, end);
        }
        changing.is_clear = self.set_rules(service, &name, true).await;
    }

    /// From when on a version of a key of prefix `v/` may be gone: `made` are the key's, newest first.
    fn version_end(&self, made: &[Made], at: usize) -> End {
        let day = self.0.day;
        let Some(newer) = at.checked_sub(1) else { return End::Stays };
        let newest = made[0];
        let newer_objects = made[..at].iter().filter(|made| !made.is_marker).count();
        let older_of_them = newer_objects - usize::from(!newest.is_marker);
        let since_us = day.due_us(made[newer].stamp.get(), 1);
        let due_us = match (older_of_them, newest.is_marker) {
            (1.., _) => since_us,
            // It is the second one once the newest has expired.
            (0, false) => since_us.max(day.due_us(newest.stamp.get(), 2)),
            (0, true) => return End::Stays,
        };
        End::Goes(due_us.max(made[at].locked_us))
    }

    /// Keys of versions, some of them locked, side by side.
    async fn versions(&self, service: &Service, rng: &mut Rng) {
        let mut rngs: Vec<_> = (0..KEYS).map(|_| rng.fork()).collect();
        join_all(rngs.iter_mut().map(|rng| self.versions_of_a_key(service, rng))).await;
    }

    /// What older versions of a key are there, while newer ones are made: none may go before it is due.
    async fn check_versions(&self, service: &Service, target: &Target, made: &[Made]) {
        let is_all = target.key.as_str().starts_with("m/");
        for (at, Made { version, locked_us, stamp, .. }) in made.iter().enumerate().skip(1) {
            let end = match is_all {
                true => {
                    // It may have expired before the next one was put: the marker is newer by then.
                    let day = self.0.day;
                    let expired_us = day.due_us(stamp.get(), 1);
                    let since_us = made[at - 1].stamp.get().min(expired_us);
                    End::Goes(day.due_us(since_us, 1).max(*locked_us))
                }
                false => self.version_end(made, at),
            };
            let is_there = match made[at].is_marker {
                true => None,
                false => self.is_there(service, target, Some(*version)).await,
            };
            if is_there == Some(false) {
                self.gone(target, end);
            }
        }
    }

    /// Versions of a key, some of them locked.
    async fn versions_of_a_key(&self, service: &Service, rng: &mut Rng) {
        let is_all = rng.one_in(4);
        let target = self.target(VERSIONS, if is_all { "m/" } else { "v/" });
        let (mut made, mut locked_us): (Vec<Made>, _) = (Vec::new(), 0);
        for _ in 0..rng.between(1, 5) {
            let is_marker = !made.is_empty() && rng.one_in(6);
            let mut lock = ObjectLock::default();
            let done = match is_marker {
                true => {
                    let by = UserId::new("load");
                    let delete = service.delete(target.clone(), by, Conditions::default()).await;
                    self.answered(&target, delete).and_then(Result::ok)
                }
                false => {
                    if rng.one_in(3) {
                        let modes = [RetentionMode::Governance, RetentionMode::Compliance];
                        let until_us = self.now_us() + rng.between(2_000_000, 12_000_000);
                        lock.retention = Some(Retention { mode: *rng.pick(&modes), until_us });
                    }
                    self.put(service, &target, (rng.between(1, 300), false, lock)).await
                }
            };
            let Some(done) = done else { return };
            let Some(version) = done.version else {
                return self.violated(format!("{target}: a version has no ID: {done:?}"));
            };
            let until_us = lock.retention.map_or(0, |retention| retention.until_us);
            locked_us = until_us.max(locked_us);
            let stamp = done.stamp;
            made.insert(0, Made { version, stamp, is_marker, locked_us: until_us });
            let pause = if rng.one_in(2) { 100_000 } else { 3 * self.0.day.us() / 2 };
            service.env().sleep(Duration::from_micros(rng.below(pause))).await;
            self.check_versions(service, &target, &made).await;
        }
        let newest_us = self.0.day.due_us(made[0].stamp.get(), 1);
        self.wait(service, newest_us + rng.below(3) * self.0.day.us(), rng).await;
        if is_all {
            let end = End::Goes(locked_us.max(newest_us));
            return self.keep(target, What::All, end);
        }
        for at in 0..made.len() {
            let (end, version) = (self.version_end(&made, at), made[at].version);
            // A marker may go with the versions that it hides.
            if made[at].is_marker {
                continue;
            }
            match self.is_there(service, &target, Some(version)).await {
                Some(false) => self.gone(&target, end),
                _ => self.keep(target.clone(), What::Version(version), end),
            }
        }
    }

    /// A key whose version without an ID expires, and then the marker in its place.
    async fn suspended(&self, service: &Service, rng: &mut Rng) {
        let target = self.target(SUSPENDED, "v/");
        let put = (rng.between(1, 300), false, ObjectLock::default());
        let Some(mut made) = self.put(service, &target, put).await else { return };
        if rng.one_in(2) {
            service.env().sleep(Duration::from_micros(rng.below(2 * self.0.day.us()))).await;
            let Some(again) = self.put(service, &target, put).await else { return };
            made = again;
        }
        let due_us = self.0.day.due_us(made.stamp.get(), 2);
        self.wait(service, due_us, rng).await;
        if self.is_there(service, &target, None).await == Some(false) {
            self.gone(&target, End::Goes(due_us));
        }
        self.keep(target, What::All, End::Goes(due_us));
    }

    /// Uploads, some of which are completed at the time at which they are due.
    async fn uploads(&self, service: &Service, rng: &mut Rng) {
        let (day, mut begun) = (self.0.day, Vec::new());
        for _ in 0..4 {
            let target = self.target(PLAIN, "u/");
            let owner = UserId::new("load");
            let upload = NewUpload { nonce: rng.below(1 << 40), owner, ..NewUpload::default() };
            let id = service.begin_upload(target.clone(), upload).await;
            let Some(Ok(id)) = self.answered(&target, id) else { continue };
            begun.push((target, id));
        }
        let mut due_us = 0;
        for (target, id) in &begun {
            let end = End::Goes(day.due_us(id.stamp.get(), 1));
            due_us = end.due_us().max(due_us);
            let sent = self.send_part(service, target, *id).await;
            if let Some(Err(_)) = self.answered(target, sent) {
                self.gone(target, end);
            }
        }
        self.wait(service, due_us, rng).await;
        for (target, id) in begun {
            let end = End::Goes(day.due_us(id.stamp.get(), 1));
            if rng.one_in(2) {
                self.keep(target, What::Upload(id), end);
                continue;
            }
            let completed = self.complete(service, &target, id).await;
            match self.answered(&target, completed) {
                Some(Ok(true)) => self.keep(target, What::Object, End::Stays),
                Some(Ok(false)) => self.keep(target, What::Upload(id), end),
                Some(Err(_)) => self.gone(&target, end),
                None => {}
            }
        }
    }

    async fn send_part(
        &self,
        service: &Service,
        target: &Target,
        id: UploadId,
    ) -> Result<(), Error> {
        let number = PartNumber::new(1).expect("a number");
        let mut part = service.put_part(target.clone(), (id, number), BodyPlan::default()).await?;
        part.write(&[3; 100]).await?;
        let facts = ObjectFacts { etag: Etag::new("p"), ..ObjectFacts::default() };
        part.commit(facts, Conditions::default()).await.map(drop)
    }

    /// Completes an upload; false when it has no part.
    async fn complete(
        &self,
        service: &Service,
        target: &Target,
        upload: UploadId,
    ) -> Result<bool, Error> {
        let ask = PartsRequest { target: target.clone(), upload, after: 0, limit: 10 };
        let parts = service.parts(ask).await?.parts;
        if parts.is_empty() {
            return Ok(false);
        }
        let parts = parts.iter().map(|part| (part.number, part.data_id)).collect();
        let completion =
            Completion { upload, parts, etag: Etag::new("c-1"), checksums: Vec::new() };
        service.complete_upload(target.clone(), completion, Conditions::default()).await?;
        Ok(true)
    }

    /// Without faults, and with right clocks: all that was due goes, and nothing else.
    pub async fn settle(&self, service: &Service) -> Result<(), String> {
        let name = BucketName::new(NAMES[RULES]).expect("a name");
        service.env().sleep(LATE).await;
        if !self.set_rules(service, &name, true).await {
            return Err("rules are not set though there are no faults".to_owned());
        }
        let rest = self.0.rest.take();
        let last = rest.iter().map(|rest| rest.end.due_us()).filter(|due_us| *due_us != u64::MAX);
        let until_us = last.max().unwrap_or_default().max(self.now_us());
        let wait_us = until_us + DAYS_AFTER * self.0.day.us() + AHEAD_US - self.now_us();
        service.env().sleep(Duration::from_micros(wait_us)).await;
        for Rest { target, what, end } in &rest {
            let is_there = self.is_left(service, target, *what).await;
            let is_there = is_there.map_err(|error| format!("{target} at the end: {error}"))?;
            match end {
                End::Stays if !is_there => {
                    return Err(format!("{target} is gone at the end, and was never due"));
                }
                End::Goes(due_us) if is_there => {
                    let late_us = self.now_us() - due_us;
                    return Err(format!("{target} was due {late_us} us ago, and is there"));
                }
                _ => {}
            }
        }
        let buckets = self.0.buckets.borrow().clone();
        for bucket in buckets {
            check_usage(service, bucket.id).await?;
            let state = service.lifecycle_state(bucket.id).await;
            let state = state.map_err(|error| error.to_string())?;
            let is_empty = service.usage(bucket.id).await.is_ok_and(|usage| usage.is_empty());
            if state.last_pass_us == 0 && !is_empty || state.behind_us > 2 * self.0.day.us() {
                return Err(format!("lifecycle of {} is behind: {state:?}", bucket.name));
            }
        }
        Ok(())
    }

    async fn is_left(&self, service: &Service, target: &Target, what: What) -> Result<bool, Error> {
        let looked = match what {
            What::Object => service.look(target, None).await.map(drop),
            What::Version(version) => service.look(target, Some(version)).await.map(drop),
            What::Upload(id) => match service.upload(target.clone(), id).await {
                Ok(info) => return Ok(info.end.is_none()),
                Err(error) => Err(error),
            },
            What::All => {
                let ask = VersionsRequest {
                    bucket: target.bucket,
                    prefix: target.key.as_str().to_owned(),
                    delimiter: String::new(),
                    after: String::new(),
                    after_version: None,
                    limit: 10,
                };
                return service.versions(ask).await.map(|page| !page.entries.is_empty());
            }
        };
        match looked {
            Ok(()) => Ok(true),
            Err(
                Error::NoSuchKey
                | Error::NoSuchVersion
                | Error::NoSuchUpload
                | Error::Marker { asked: false, .. },
            ) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for DaysLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DaysLoad({} answered)", self.done())
    }
}
