//! [`VersionedLoad`]: clients of a bucket whose versioning is enabled and suspended while they put, delete,
//! lock and remove versions, read and list them; and what they saw.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use object_index::Service;
use object_proto::{
    Bucket, BucketId, Committed, Conditions, Error, Etag, ListRequest, Listed, ListedVersion,
    LockChange, LockRule, ObjectData, ObjectFacts, ObjectInfo, ObjectKey, ObjectLock, ObjectTags,
    Retention, RetentionMode, Setting, Tags, Target, UserId, VersionId, Versioning,
    VersionsRequest,
};
use runtime::sim::Sim;
use runtime::{Duration, Rng};

use crate::load::{KEYS, bytes, part_files, shown_as, size_of};
use crate::parts::InParts;
use crate::storage::plan_of;
use crate::usage::check_usage;
use crate::versions::{self, At, Did, Ended, Entry, Found, Operation, is_in_parts, tags_of_put};

/// Versions of a key that a client knows of; with more it removes some.
const KNOWN_MAX: usize = 5;

struct LoadInner {
    sim: Sim,
    bucket: Bucket,
    keys: usize,
    pause: Duration,
    /// The wall clock at the simulation's beginning, microseconds since 1970; of a load with locks.
    began_us: Cell<u64>,
    /// Object lock is enabled some time.
    locks: Cell<bool>,
    /// It is, as an answer said.
    has_locks: Cell<bool>,
    histories: RefCell<BTreeMap<usize, Vec<Operation>>>,
    /// Versions by key, as answers have named them.
    known: RefCell<BTreeMap<usize, Vec<(u64, VersionId)>>>,
    values: Cell<u64>,
    done: Cell<u64>,
    stop: Cell<bool>,
    violation: RefCell<Option<String>>,
}

/// A load on a bucket of its own, which has no versions at first. Clones share it.
#[derive(Clone)]
pub struct VersionedLoad(Rc<LoadInner>);

/// A change that is noted as unknown while it is under way.
struct Noted {
    keys: Vec<usize>,
    at: Vec<usize>,
}

impl VersionedLoad {
    /// Its bucket.
    pub fn bucket(&self) -> BucketId {
        self.0.bucket.id
    }

    /// A load on a bucket that is empty.
    pub fn new(sim: &Sim, bucket: Bucket, keys: usize, pause: Duration) -> VersionedLoad {
        VersionedLoad(Rc::new(LoadInner {
            sim: sim.clone(),
            bucket,
            keys: keys.min(KEYS.len()),
            pause,
            began_us: Cell::new(0),
            locks: Cell::new(false),
            has_locks: Cell::new(false),
            histories: RefCell::default(),
            known: RefCell::default(),
            values: Cell::new(0),
            done: Cell::new(0),
            stop: Cell::new(false),
            violation: RefCell::default(),
        }))
    }

    /// The same with locks, which end by a right clock: it shows `now_us`.
    pub fn with_locks(self, now_us: u64) -> VersionedLoad {
        self.0.began_us.set(now_us - self.0.sim.elapsed().as_micros() as u64);
        self.0.locks.set(true);
        self
    }

    /// Clients end after the operation that they are in.
    pub fn stop(&self) {
        self.0.stop.set(true);
    }

    /// True when clients end.
    pub fn is_stopped(&self) -> bool {
        self.0.stop.get()
    }

    /// Operations that were answered.
    pub fn done(&self) -> u64 {
        self.0.done.get()
    }

    /// The first rule that was seen broken while clients ran.
    pub fn violation(&self) -> Option<String> {
        self.0.violation.borrow().clone()
    }

    fn violated(&self, what: String) {
        self.0.violation.borrow_mut().get_or_insert(what);
    }

    fn target(&self, key: usize) -> Target {
        let key = ObjectKey::new(KEYS[key]).expect("a key");
        Target { bucket: self.0.bucket.id, key }
    }

    fn number(&self) -> u64 {
        self.0.values.set(self.0.values.get() + 1);
        self.0.values.get()
    }

    /// One client, until the load is stopped or its host crashes.
    pub async fn client(self, service: Service, mut rng: Rng) {
        let env = service.env().clone();
        while !self.0.stop.get() && self.violation().is_none() {
            let key = rng.below(self.0.keys as u64) as usize;
            let many = self.0.known.borrow().get(&key).map_or(0, Vec::len) > KNOWN_MAX;
            let (locks, has_locks) = (self.0.locks.get(), self.0.has_locks.get());
            if locks && !has_locks && rng.one_in(12) {
                self.enable_lock(&service).await;
            }
            match rng.below(100) {
                0..30 if many => self.remove(&service, key, &mut rng).await,
                0..3 => self.set(&service, &mut rng).await,
                3..35 => self.put(&service, key, &mut rng).await,
                35..48 if has_locks || locks && rng.one_in(20) => {
                    self.lock(&service, key, &mut rng).await;
                }
                35..50 => self.delete(&service, key).await,
                50..58 => self.remove(&service, key, &mut rng).await,
                58..64 => self.tag(&service, key, &mut rng).await,
                64..76 => self.look(&service, key, None, &mut rng).await,
                76..90 => self.look_at(&service, key, &mut rng).await,
                _ => self.list(&service).await,
            }
            env.sleep(Duration::from_micros(rng.below(self.0.pause.as_micros() as u64 + 1))).await;
        }
    }

    /// Notes a change as unknown: the client may crash in it.
    fn begin(&self, keys: Vec<usize>, did: Did) -> Noted {
        let (start, end) = (self.0.sim.elapsed(), std::time::Duration::MAX);
        let histories = &mut *self.0.histories.borrow_mut();
        let note = |key: &usize| {
            let history = histories.entry(*key).or_default();
            history.push(Operation { did, ended: Ended::Unknown, start, end });
            history.len() - 1
        };
        let at = keys.iter().map(note).collect();
        Noted { keys, at }
    }

    /// The end of a change; nothing if it was not made.
    fn end(&self, noted: &Noted, ended: Option<Ended>) {
        let end = self.0.sim.elapsed();
        let histories = &mut *self.0.histories.borrow_mut();
        self.0.done.set(self.0.done.get() + u64::from(ended.is_some()));
        for (key, &at) in noted.keys.iter().zip(&noted.at) {
            let operation = &mut histories.get_mut(key).expect("noted")[at];
            match &ended {
                Some(ended) => {
                    operation.ended = ended.clone();
                    operation.end = end;
                }
                None => {
                    operation.did = Did::Look;
                    operation.end = operation.start;
                }
            }
        }
    }

    /// The end of a change by its outcome.
    fn outcome<T>(
        &self,
        what: &dyn fmt::Debug,
        outcome: Result<T, Error>,
        made: impl FnOnce(T) -> Ended,
    ) -> Option<Ended> {
        match outcome {
            Ok(done) => Some(made(done)),
            Err(Error::Precondition) => Some(Ended::Refused),
            Err(Error::Locked) => Some(Ended::Locked),
            Err(Error::Invalid { .. }) => Some(Ended::Invalid),
            Err(Error::Unknown { .. }) => Some(Ended::Unknown),
            Err(Error::Busy { .. } | Error::Full) => None,
            Err(error) => {
                self.violated(format!("{what:?}: {error}"));
                None
            }
        }
    }

    async fn set(&self, service: &Service, rng: &mut Rng) {
        let versioning = if rng.below(3) > 0 { Versioning::Enabled } else { Versioning::Suspended };
        let did = Did::Set(versioning);
        let noted = self.begin((0..self.0.keys).collect(), did);
        let set = service.set_versioning(self.0.bucket.name.clone(), versioning).await;
        let ended = self.outcome(&did, set, |()| Ended::Made(None));
        self.end(&noted, ended);
    }

    async fn enable_lock(&self, service: &Service) {
        let did = Did::EnableLock;
        let noted = self.begin((0..self.0.keys).collect(), did);
        let setting = Setting::Lock(LockRule::default());
        let set = service.set_bucket(self.0.bucket.name.clone(), setting).await;
        let ended = self.outcome(&did, set, |()| Ended::Made(None));
        self.0.has_locks.set(self.0.has_locks.get() || ended == Some(Ended::Made(None)));
        self.end(&noted, ended);
    }

    /// A retention of some seconds.
    fn retention(&self, rng: &mut Rng) -> Retention {
        let modes = [RetentionMode::Governance, RetentionMode::Compliance];
        let now_us = self.0.began_us.get() + self.0.sim.elapsed().as_micros() as u64;
        Retention { mode: *rng.pick(&modes), until_us: now_us + rng.between(500_000, 9_000_000) }
    }

    /// A lock that an object is put with.
    fn lock_of_put(&self, rng: &mut Rng) -> ObjectLock {
        match self.0.locks.get() && rng.one_in(if self.0.has_locks.get() { 2 } else { 20 }) {
            true => {
                let hold = rng.one_in(4).then_some(true);
                ObjectLock { retention: Some(self.retention(rng)), hold }
            }
            false => ObjectLock::default(),
        }
    }

    /// Takes note of a version that an answer names; how the operation has ended.
    fn made(&self, key: usize, number: u64, committed: Committed, is_delete: bool) -> Ended {
        if committed.marker != (is_delete && committed.version.is_some()) {
            self.violated(format!("{:?}, number {number}: {committed:?}", KEYS[key]));
        }
        if let Some(id @ VersionId::Of { stamp, .. }) = committed.version {
            if stamp != committed.stamp {
                self.violated(format!("{:?}: {committed:?} has another version's ID", KEYS[key]));
            }
            self.0.known.borrow_mut().entry(key).or_default().push((number, id));
        }
        Ended::Made(committed.version.map(|version| version == VersionId::Null))
    }

    async fn put(&self, service: &Service, key: usize, rng: &mut Rng) {
        let (number, if_none) = (self.number(), rng.one_in(8));
        let lock = self.lock_of_put(rng);
        let did = Did::Put(number, if_none, lock);
        let noted = self.begin(vec![key], did);
        let put = self.send(service, key, (number, if_none, lock)).await;
        let ended = self.outcome(&did, put, |made| self.made(key, number, made, false));
        self.end(&noted, ended);
    }

    async fn send(
        &self,
        service: &Service,
        key: usize,
        (number, if_none, lock): (u64, bool, ObjectLock),
    ) -> Result<Committed, Error> {
        let body = bytes(number, size_of(number, false));
        let etag = Etag::new(format!("{number:032x}"));
        let if_none_match = if_none.then_some(Tags::Any);
        let conditions = Conditions { if_none_match, ..Conditions::default() };
        if is_in_parts(number) {
            let (violated, target) = (|what| self.violated(what), self.target(key));
            let sent = InParts { violated: &violated, service, target, value: number, lock };
            return sent.put(&body, etag, conditions, Duration::ZERO).await;
        }
        let mut upload = service.put_planned(self.target(key), plan_of(number)).await?;
        for part in body.chunks(300_000) {
            upload.write(part).await?;
        }
        let (tags, owner) = (tags_with(tags_of_put(number)), UserId::new("load"));
        let facts = ObjectFacts { etag, owner, tags, lock, ..ObjectFacts::default() };
        upload.commit(facts, conditions).await
    }

    async fn delete(&self, service: &Service, key: usize) {
        let number = self.number();
        let did = Did::Delete(number);
        let noted = self.begin(vec![key], did);
        let by = UserId::new("load");
        let deleted = service.delete(self.target(key), by, Conditions::default()).await;
        let ended = self.outcome(&did, deleted, |made| {
            // Of a bucket without versions nothing is made.
            self.made(key, number, made, made.version.is_some())
        });
        self.end(&noted, ended);
    }

    /// A version that an answer has named; the one without an ID for none.
    fn draw(&self, key: usize, rng: &mut Rng) -> Option<(u64, VersionId)> {
        let known = self.0.known.borrow();
        let known = known.get(&key).map_or(&[][..], Vec::as_slice);
        (!known.is_empty() && rng.below(4) > 0).then(|| *rng.pick(known))
    }

    async fn remove(&self, service: &Service, key: usize, rng: &mut Rng) {
        let (drawn, bypass) = (self.draw(key, rng), self.0.locks.get() && rng.one_in(3));
        let did = match drawn {
            None => Did::RemoveNull(bypass),
            Some((number, _)) => Did::Remove(number, bypass),
        };
        let version = drawn.map_or(VersionId::Null, |(_, version)| version);
        let noted = self.begin(vec![key], did);
        let none = Conditions::default();
        let removed = service.delete_version(self.target(key), version, none, bypass).await;
        let ended = self.outcome(&did, removed, |_| Ended::Made(None));
        if let (Some((number, _)), Some(Ended::Made(_))) = (drawn, &ended)
            && rng.below(4) > 0
        {
            let known = &mut *self.0.known.borrow_mut();
            known.entry(key).or_default().retain(|(other, _)| *other != number);
        }
        self.end(&noted, ended);
    }

    async fn tag(&self, service: &Service, key: usize, rng: &mut Rng) {
        let tags = if rng.one_in(4) { 0 } else { self.number() };
        let (at, version) = self.draw_at(key, rng);
        let did = Did::Tag(at, tags);
        let noted = self.begin(vec![key], did);
        let set = service.set_tags(self.target(key), version, tags_with(tags)).await;
        let ended = self.fact_set(did, set);
        self.end(&noted, ended);
    }

    async fn lock(&self, service: &Service, key: usize, rng: &mut Rng) {
        let (change, bypass) = match rng.below(8) {
            0 => (LockChange::Hold(true), false),
            1..4 => (LockChange::Hold(false), false),
            4 => (LockChange::Retention(None), rng.one_in(2)),
            _ => (LockChange::Retention(Some(self.retention(rng))), rng.one_in(3)),
        };
        let (at, version) = self.draw_at(key, rng);
        let did = Did::Lock(at, change, bypass);
        let noted = self.begin(vec![key], did);
        let set = service.set_lock(self.target(key), version, change, bypass).await;
        let ended = self.fact_set(did, set);
        self.end(&noted, ended);
    }

    /// A version whose facts are changed.
    fn draw_at(&self, key: usize, rng: &mut Rng) -> (At, Option<VersionId>) {
        match (rng.one_in(2), self.draw(key, rng)) {
            (true, _) => (At::Newest, None),
            (false, None) => (At::Null, Some(VersionId::Null)),
            (false, Some((number, version))) => (At::Number(number), Some(version)),
        }
    }

    fn fact_set(&self, did: Did, set: Result<Committed, Error>) -> Option<Ended> {
        match set {
            Ok(set) => Some(Ended::Made(set.version.map(|set| set == VersionId::Null))),
            Err(Error::NoSuchKey | Error::NoSuchVersion) => Some(Ended::Saw(Found::Nothing)),
            Err(Error::Marker { .. }) => Some(Ended::Saw(Found::Marker)),
            failed => self.outcome(&did, failed, |_| Ended::Unknown),
        }
    }

    async fn look_at(&self, service: &Service, key: usize, rng: &mut Rng) {
        let drawn = self.draw(key, rng);
        self.look(service, key, Some(drawn), rng).await;
    }

    /// Looks at a key, or at a version of it, and reads what is there.
    async fn look(
        &self,
        service: &Service,
        key: usize,
        at: Option<Option<(u64, VersionId)>>,
        rng: &mut Rng,
    ) {
        let (did, version) = match at {
            None => (Did::Look, None),
            Some(None) => (Did::LookAtNull, Some(VersionId::Null)),
            Some(Some((number, version))) => (Did::LookAt(number), Some(version)),
        };
        let (target, start) = (self.target(key), self.0.sim.elapsed());
        let looked = match rng.one_in(2) {
            true => service.read(&target, version).await,
            false => service.look(&target, version).await,
        };
        let found = match &looked {
            Ok(info) => match number_of(info) {
                Some(number) => match number_of_tags(info) {
                    Some(tags) => Found::Object(number, tags, info.object.facts.lock),
                    None => return self.violated(format!("{target}: {info:?} has odd tags")),
                },
                None => return self.violated(format!("{target}: {info:?} was never put")),
            },
            Err(Error::Marker { asked, .. }) if *asked == version.is_some() => Found::Marker,
            Err(Error::NoSuchKey) if version.is_none() => Found::Nothing,
            Err(Error::NoSuchVersion) if version.is_some() => Found::Nothing,
            Err(Error::Busy { .. } | Error::Unknown { .. }) => return,
            Err(error) => return self.violated(format!("{did:?} of {target}: {error}")),
        };
        self.note(key, did, Ended::Saw(found), start);
        if let (Ok(info), Found::Object(number, ..)) = (looked, found)
            && let Err(what) = self.read(service, (&target, version), &info, number).await
        {
            self.violated(format!("{target}, version {version:?}, object {number}: {what}"));
        }
    }

    fn note(&self, key: usize, did: Did, ended: Ended, start: std::time::Duration) {
        let operation = Operation { did, ended, start, end: self.0.sim.elapsed() };
        self.0.histories.borrow_mut().entry(key).or_default().push(operation);
        self.0.done.set(self.0.done.get() + 1);
    }

    async fn read(
        &self,
        service: &Service,
        (target, version): (&Target, Option<VersionId>),
        info: &ObjectInfo,
        number: u64,
    ) -> Result<(), String> {
        let wanted = bytes(number, size_of(number, false));
        let read = async {
            let content = service.content(target, info).await?;
            let (mut all, step) = (Vec::new(), 8 << 20);
            while (all.len() as u64) < info.object.size {
                all.extend(content.read(all.len() as u64, step).await?);
            }
            Ok(all)
        };
        match read.await {
            Ok(read) if read == wanted => Ok(()),
            Ok(_) => Err("has other bytes".to_owned()),
            // It was removed since, or its file is gone.
            Err(Error::NoSuchKey) => match service.look(target, version).await {
                Ok(again) if again.object == info.object => Err("its file is gone".to_owned()),
                _ => Ok(()),
            },
            Err(Error::Busy { .. } | Error::Unknown { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn ask(&self, limit: u32) -> VersionsRequest {
        VersionsRequest {
            bucket: self.0.bucket.id,
            prefix: String::new(),
            delimiter: String::new(),
            after: String::new(),
            after_version: None,
            limit,
        }
    }

    /// Lists all versions, which are those of one time.
    async fn list(&self, service: &Service) {
        let start = self.0.sim.elapsed();
        let page = match service.versions(self.ask(1000)).await {
            Ok(page) => page,
            Err(Error::Busy { .. } | Error::Unknown { .. }) => return,
            Err(error) => return self.violated(format!("versions: {error}")),
        };
        let mut lists = vec![Vec::new(); self.0.keys];
        for (at, entry) in page.entries.iter().enumerate() {
            let is_first = at == 0 || page.entries[at - 1].name() != entry.name();
            let (shown, latest) = match entry {
                ListedVersion::Version { info, latest, .. } => (number_of(info), *latest),
                ListedVersion::Marker { latest, .. } => (None, *latest),
                ListedVersion::Prefix(_) => return self.violated("a prefix is listed".to_owned()),
            };
            let key = KEYS.iter().position(|key| *key == entry.name());
            let Some(key) = key.filter(|_| latest == is_first) else {
                return self.violated(format!("versions show {entry:?} at {at}"));
            };
            lists[key].push((shown, entry.version() == Some(VersionId::Null)));
        }
        if page.more {
            return; // Too many to judge.
        }
        for (key, list) in lists.into_iter().enumerate() {
            self.note(key, Did::List, Ended::Listed(list), start);
        }
    }

    /// Judges the histories of all keys.
    pub fn check(&self) -> Result<(), String> {
        if let Some(violation) = self.violation() {
            return Err(violation);
        }
        for (key, history) in &*self.0.histories.borrow() {
            let checked = versions::check(history.clone(), self.0.began_us.get());
            checked.map_err(|what| format!("versions of {:?}: {what}", KEYS[*key]))?;
        }
        Ok(())
    }

    /// What is there in the end, without faults and clients: noted, each version read, and listings of
    /// pages of any size show the same, as do those of objects.
    pub async fn settle(&self, service: &Service) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        self.list(service).await;
        let all = self.pages(service, 1000, "").await?;
        for limit in [1, 2, 7] {
            let paged = self.pages(service, limit, "").await?;
            if paged != all {
                return Err(format!("pages of {limit} show {paged:?}, not {all:?}"));
            }
        }
        let (mut current, mut rng) = (Vec::new(), Rng::new(1));
        for (key, name) in KEYS.iter().enumerate().take(self.0.keys) {
            let of_key: Vec<_> = all.iter().filter(|(shown, ..)| shown == name).collect();
            for (_, version, _) in &of_key {
                let version = version.ok_or("a prefix is listed")?;
                let info = match service.look(&self.target(key), Some(version)).await {
                    Ok(info) => info,
                    Err(Error::Marker { asked: true, .. }) => continue,
                    Err(error) => return Err(format!("{name:?}, version {version}: {error}")),
                };
                let number = number_of(&info).ok_or("it was never put")?;
                self.read(service, (&self.target(key), Some(version)), &info, number).await?;
            }
            self.look(service, key, None, &mut rng).await;
            if let Some((_, _, (Some(_), _))) = of_key.first() {
                current.push((*name).to_owned());
            }
        }
        let ask = ListRequest {
            bucket: self.0.bucket.id,
            prefix: String::new(),
            delimiter: String::new(),
            after: String::new(),
            limit: 1000,
        };
        let page = service.list(ask.clone()).await.map_err(text)?;
        let listed: Vec<_> = page.entries.iter().map(|entry| entry.name().to_owned()).collect();
        current.sort();
        if listed != current || page.entries.iter().any(|one| matches!(one, Listed::Prefix(_))) {
            return Err(format!("objects are listed as {listed:?}, and {current:?} are there"));
        }
        // With a delimiter each is shown as the keys are.
        let with = ListRequest { delimiter: "/".to_owned(), ..ask };
        let mut names: Vec<_> = all.iter().filter_map(|(key, ..)| shown_as(key, &with)).collect();
        names.dedup_by(|a, b| a == b && a.ends_with('/'));
        for limit in [1, 2, 1000] {
            let paged = self.pages(service, limit, "/").await?;
            let paged: Vec<_> = paged.into_iter().map(|(name, ..)| name).collect();
            if paged != names {
                return Err(format!("pages of {limit} by '/' show {paged:?}, not {names:?}"));
            }
        }
        check_usage(service, self.0.bucket.id).await
    }

    /// Removes what is locked, without faults and clients, all clocks right, and no retention left: each hold
    /// keeps its version until it is taken off.
    pub async fn unlock(&self, service: &Service) -> Result<(), String> {
        for (name, version, _) in self.pages(service, 1000, "").await? {
            let key = ObjectKey::new(name.as_str()).map_err(|_| "no key".to_owned())?;
            let target = Target { bucket: self.0.bucket.id, key };
            let Ok(info) = service.look(&target, version).await else { continue };
            let (lock, version) = (info.object.facts.lock, info.version());
            if lock.is_none() {
                continue;
            }
            let what = |error| format!("{target}, version {version}, {lock:?}: {error}");
            let none = Conditions::default;
            let removal = || service.delete_version(target.clone(), version, none(), false);
            if lock.is_held() {
                let removed = removal().await;
                if removed != Err(Error::Locked) {
                    return Err(format!("{target}, version {version}: held, and {removed:?}"));
                }
                let off = LockChange::Hold(false);
                let set = service.set_lock(target.clone(), Some(version), off, false).await;
                set.map_err(what)?;
            }
            removal().await.map_err(what)?;
        }
        Ok(())
    }

    /// All pages of a listing: names, versions, what they are.
    async fn pages(
        &self,
        service: &Service,
        limit: u32,
        delimiter: &str,
    ) -> Result<Vec<(String, Option<VersionId>, Entry)>, String> {
        let mut ask = VersionsRequest { delimiter: delimiter.to_owned(), ..self.ask(limit) };
        let mut all = Vec::new();
        loop {
            let page = service.versions(ask.clone()).await.map_err(|error| error.to_string())?;
            for entry in &page.entries {
                let shown = match entry {
                    ListedVersion::Version { info, .. } => number_of(info),
                    _ => None,
                };
                let version = entry.version();
                let null = version == Some(VersionId::Null);
                all.push((entry.name().to_owned(), version, (shown, null)));
            }
            match page.entries.last() {
                Some(last) if page.more => {
                    ask.after = last.name().to_owned();
                    ask.after_version = last.version();
                }
                _ => return Ok(all),
            }
        }
    }

    /// The names of the files that versions are in, and of the logs that they are in, without
    /// faults and clients.
    pub async fn files(
        &self,
        service: &Service,
    ) -> Result<(BTreeSet<String>, BTreeSet<String>), String> {
        let (mut files, mut logs) = (BTreeSet::new(), BTreeSet::new());
        for (name, version, _) in self.pages(service, 1000, "").await? {
            let key = ObjectKey::new(name.as_str()).map_err(|_| "no key".to_owned())?;
            let target = Target { bucket: self.0.bucket.id, key };
            match service.look(&target, version).await {
                Ok(info) => match info.object.data {
                    ObjectData::File { file, .. } => {
                        files.insert(file.as_str().to_owned());
                    }
                    ObjectData::Logged { file, .. } => {
                        logs.insert(file.as_str().to_owned());
                    }
                    ObjectData::Parts(map) => {
                        files.extend(part_files(service, &target, &map).await?);
                    }
                    ObjectData::Inline(_) | ObjectData::Piece(_) => {}
                },
                Err(Error::Marker { .. }) => {}
                Err(error) => return Err(format!("{name:?}: {error}")),
            }
        }
        Ok((files, logs))
    }
}

/// Tags of this number: some are long, so that they are in a row of their own.
fn tags_with(number: u64) -> ObjectTags {
    let value = format!("{number}{}", " ".repeat(if number.is_multiple_of(5) { 230 } else { 0 }));
    let tags = ["a", "b"].map(|name| (name.to_owned(), value.clone()));
    let count = if number == 0 { 0 } else { 2 };
    ObjectTags::new(tags.into_iter().take(count).collect()).expect("they are short")
}

fn number_of_tags(info: &ObjectInfo) -> Option<u64> {
    let tags = &info.object.facts.tags;
    let number = match tags.iter().next() {
        None => 0,
        Some((_, value)) => value.trim_end().parse().ok()?,
    };
    (*tags == tags_with(number)).then_some(number)
}

fn number_of(info: &ObjectInfo) -> Option<u64> {
    u64::from_str_radix(info.object.facts.etag.as_str(), 16).ok()
}

impl fmt::Debug for VersionedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VersionedLoad({} done)", self.done())
    }
}
