//! [`Load`]: clients that put, read, list and delete through gateways, and what they saw.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use object_index::Service;
use object_proto::limits::{INLINE_MAX, PIECE_BYTES, SMALL_MAX};
use object_proto::{
    BucketId, CallId, Conditions, Error, Etag, ListRequest, Listed, ObjectData, ObjectFacts,
    ObjectInfo, ObjectKey, ObjectLock, PartMap, PartsRequest, Tags, Target, UploadsRequest, UserId,
};
use runtime::sim::Sim;
use runtime::{Duration, Rng};

use crate::history::{self, Did, Ended, Operation, Value, When};
use crate::parts::InParts;
use crate::storage::plan_of;
use crate::usage::check_usage;

/// Keys of a load: some are alike up to a delimiter, and bytes are at the ends of what is allowed.
pub const KEYS: [&str; 8] = ["a", "a/", "a/b", "a//", "b\0", "b\0c", "ä/ö", "~"];

/// Shape of a load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Keys that are used, at most all of [`KEYS`].
    pub keys: usize,
    /// Pause of a client between two operations, at most.
    pub pause: Duration,
    /// Most changes have conditions, and bodies are small: many clients race for few keys.
    pub races: bool,
    /// What objects have had stays readable for this long by the clocks of owners, which are right: reads
    /// take up to half of that, and end.
    pub trash: Option<Duration>,
}

/// One put in so many is slow: the client pauses this long at most behind its last byte, so that other
/// requests of its session are over before it commits.
const SLOW_ONE_IN: u64 = 60;
const SLOW: Duration = Duration::from_secs(20);

/// One put in so many is sent in parts; in races, where others wait for it.
const PARTS_ONE_IN: (u64, u64) = (6, 12);

/// Before one put in so many another body of the key breaks off.
const BREAKS_ONE_IN: u64 = 40;

/// One answer in so many to a put with a condition is lost: the client makes another attempt of its call.
const LOST_ONE_IN: u64 = 10;

struct LoadInner {
    sim: Sim,
    bucket: BucketId,
    plan: Plan,
    histories: RefCell<BTreeMap<usize, Vec<Operation>>>,
    values: Cell<u64>,
    done: Cell<u64>,
    stop: Cell<bool>,
    violation: RefCell<Option<String>>,
}

/// A load on one bucket. Clones share it.
#[derive(Clone)]
pub struct Load(Rc<LoadInner>);

/// Sizes about each limit.
const SIZES: [usize; 9] = [
    0,
    1,
    INLINE_MAX,
    INLINE_MAX + 1,
    9000,
    SMALL_MAX,
    SMALL_MAX + 1,
    PIECE_BYTES,
    2 * PIECE_BYTES + 17,
];

/// The bytes of an object: they follow from its number.
pub(crate) fn bytes(value: u64, size: usize) -> Vec<u8> {
    let mut rng = Rng::new(value);
    let word = rng.next_u64().to_le_bytes();
    (0..size).map(|at| word[at % 8] ^ (at >> 3) as u8).collect()
}

pub(crate) fn size_of(value: u64, races: bool) -> usize {
    let mut rng = Rng::new(value ^ 0x517e);
    let most = if races { 4 } else { SIZES.len() as u64 };
    // Large bodies are rare: they take the simulator's time.
    let index = if rng.one_in(4) { rng.below(most) } else { rng.below(most.min(5)) };
    SIZES[index as usize]
}

impl Load {
    /// Its bucket.
    pub fn bucket(&self) -> BucketId {
        self.0.bucket
    }

    /// A load on a bucket that is empty.
    pub fn new(sim: &Sim, bucket: BucketId, plan: Plan) -> Load {
        Load(Rc::new(LoadInner {
            sim: sim.clone(),
            bucket,
            plan,
            histories: RefCell::default(),
            values: Cell::new(0),
            done: Cell::new(0),
            stop: Cell::new(false),
            violation: RefCell::default(),
        }))
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

    fn target(&self, key: usize) -> Target {
        let key = ObjectKey::new(KEYS[key]).expect("a key");
        Target { bucket: self.0.bucket, key }
    }

    fn violated(&self, what: String) {
        self.0.violation.borrow_mut().get_or_insert(what);
    }

    fn note(&self, key: usize, did: Did, ended: Ended, start: std::time::Duration) {
        let end = self.0.sim.elapsed();
        let operation = Operation { did, ended, start, end };
        self.0.histories.borrow_mut().entry(key).or_default().push(operation);
        self.0.done.set(self.0.done.get() + u64::from(ended != Ended::Unknown));
    }

    /// One client, until the load is stopped or its host crashes. A change that is under way then may
    /// happen or not.
    pub async fn client(self, service: Service, mut rng: Rng) {
        let env = service.env().clone();
        while !self.0.stop.get() && self.violation().is_none() {
            let key = rng.below(self.0.plan.keys.min(KEYS.len()) as u64) as usize;
            let (list, look) = if self.0.plan.races { (5, 30) } else { (10, 45) };
            match rng.below(100) {
                at if at < list => self.list(&service, &mut rng).await,
                at if at < look => drop(self.look(&service, key, &mut rng).await),
                _ => self.change(&service, key, &mut rng).await,
            }
            env.sleep(Duration::from_micros(rng.below(self.0.plan.pause.as_micros() as u64 + 1)))
                .await;
        }
    }

    async fn when(&self, service: &Service, key: usize, rng: &mut Rng) -> When {
        let conditional = if self.0.plan.races { 80 } else { 25 };
        if rng.below(100) >= conditional {
            return When::Always;
        }
        if rng.one_in(2) {
            return When::Absent;
        }
        match self.look(service, key, rng).await {
            Some(Some(value)) => When::Is(value),
            _ => When::Absent,
        }
    }

    async fn change(&self, service: &Service, key: usize, rng: &mut Rng) {
        let when = self.when(service, key, rng).await;
        let did = match (rng.below(100), when) {
            (0..25, When::Always | When::Is(_)) => Did::Delete(when),
            _ => {
                self.0.values.set(self.0.values.get() + 1);
                Did::Put(self.0.values.get(), when)
            }
        };
        let slow = if rng.one_in(SLOW_ONE_IN) { rng.below(SLOW.as_micros() as u64) } else { 0 };
        let is_call = self.call(did).is_some();
        let is_lost = is_call && rng.one_in(LOST_ONE_IN);
        let slow = Duration::from_micros(slow);
        let ended = self.attempt(service, key, (did, slow), is_lost).await;
        if is_call && ended == Some(Ended::Unknown) && !self.0.stop.get() {
            self.attempt(service, key, (did, Duration::ZERO), false).await;
        }
    }

    /// The call that a change is an attempt at, if its service is to know that.
    fn call(&self, did: Did) -> Option<CallId> {
        match did {
            Did::Put(value, When::Absent | When::Is(_)) if !self.is_in_parts(value) => {
                Some(CallId::new(value.into()))
            }
            _ => None,
        }
    }

    fn is_in_parts(&self, value: u64) -> bool {
        let odds = if self.0.plan.races { PARTS_ONE_IN.1 } else { PARTS_ONE_IN.0 };
        Rng::new(value ^ 0x9a47).one_in(odds)
    }

    /// One attempt at a change, and what its client knows of it: nothing if the answer is lost.
    async fn attempt(
        &self,
        service: &Service,
        key: usize,
        (did, slow): (Did, Duration),
        is_lost: bool,
    ) -> Option<Ended> {
        // Noted as unknown first: the host may crash in it.
        let start = self.0.sim.elapsed();
        let at = {
            let histories = &mut *self.0.histories.borrow_mut();
            let history = histories.entry(key).or_default();
            let end = std::time::Duration::MAX;
            history.push(Operation { did, ended: Ended::Unknown, start, end });
            history.len() - 1
        };
        let outcome = self.make(service, key, did, slow).await;
        let ended = match outcome {
            Ok(()) if is_lost => Some(Ended::Unknown),
            Ok(()) => Some(Ended::Done),
            Err(Error::Precondition) => Some(Ended::Refused),
            Err(Error::NoSuchKey) => Some(Ended::NotFound),
            Err(Error::Unknown { .. }) => Some(Ended::Unknown),
            // Nothing was changed.
            Err(Error::Busy { .. } | Error::Full) => None,
            Err(error) => {
                self.violated(format!("{did:?} of {:?}: {error}", KEYS[key]));
                return None;
            }
        };
        let end = self.0.sim.elapsed();
        let histories = &mut *self.0.histories.borrow_mut();
        let operation = &mut histories.get_mut(&key).expect("noted")[at];
        // One that has changed nothing is as a refusal that explains itself.
        operation.ended = ended.unwrap_or(Ended::Unknown);
        operation.end = if ended.is_some() { end } else { start };
        if ended.is_none() {
            operation.did = Did::Look;
        }
        self.0.done.set(self.0.done.get() + u64::from(ended == Some(Ended::Done)));
        ended
    }

    async fn make(
        &self,
        service: &Service,
        key: usize,
        did: Did,
        slow: Duration,
    ) -> Result<(), Error> {
        let (Did::Put(_, when) | Did::Delete(when)) = did else { return Ok(()) };
        let etag = |value: u64| Etag::new(format!("{value:032x}"));
        let mut conditions = match when {
            When::Always => Conditions::default(),
            When::Absent => Conditions { if_none_match: Some(Tags::Any), ..Conditions::default() },
            When::Is(value) => {
                let tags = Some(Tags::Of(vec![etag(value)]));
                Conditions { if_match: tags, ..Conditions::default() }
            }
        };
        conditions.call = self.call(did);
        let Did::Put(value, _) = did else {
            let by = UserId::new("load");
            return service.delete(self.target(key), by, conditions).await.map(drop);
        };
        let body = bytes(value, size_of(value, self.0.plan.races));
        if self.is_in_parts(value) {
            let violated = |what| self.violated(what);
            let (target, lock) = (self.target(key), ObjectLock::default());
            let sent = InParts { violated: &violated, service, target, value, lock };
            return sent.put(&body, etag(value), conditions, slow).await.map(drop);
        }
        if Rng::new(value ^ 0xb0e4).one_in(BREAKS_ONE_IN) {
            // Its client goes in the middle of it.
            let mut broken = service.put_planned(self.target(key), plan_of(value)).await?;
            broken.write(&bytes(value, PIECE_BYTES + 9)).await?;
        }
        let mut upload = service.put_planned(self.target(key), plan_of(value)).await?;
        for part in body.chunks(300_000) {
            upload.write(part).await?;
        }
        service.env().sleep(slow).await;
        let owner = UserId::new("load");
        let facts = ObjectFacts { etag: etag(value), owner, ..ObjectFacts::default() };
        upload.commit(facts, conditions).await.map(drop)
    }

    fn value_of(info: &ObjectInfo) -> Result<u64, String> {
        let etag = &info.object.facts.etag;
        u64::from_str_radix(etag.as_str(), 16).map_err(|_| format!("{etag:?} was never put"))
    }

    /// Looks at a key, and reads what is there; `None` when that was not possible.
    async fn look(&self, service: &Service, key: usize, rng: &mut Rng) -> Option<Value> {
        let start = self.0.sim.elapsed();
        let target = self.target(key);
        let looked = match rng.one_in(2) {
            true => service.read(&target, None).await,
            false => service.look(&target, None).await,
        };
        let found = match looked {
            Ok(info) => Some(info),
            Err(Error::NoSuchKey) => None,
            Err(Error::Busy { .. } | Error::Unknown { .. }) => return None,
            Err(error) => {
                self.violated(format!("look at {target}: {error}"));
                return None;
            }
        };
        let value = match &found {
            None => None,
            Some(info) => match Load::value_of(info) {
                Ok(value) => Some(value),
                Err(what) => {
                    self.violated(format!("{target}: {what}"));
                    return None;
                }
            },
        };
        self.note(key, Did::Look, Ended::Saw(value), start);
        if let (Some(info), Some(value)) = (&found, value)
            && let Err(what) = self.read(service, (&target, info), (value, start), rng).await
        {
            self.violated(format!("{target}, object {value}: {what}"));
        }
        Some(value)
    }

    async fn read(
        &self,
        service: &Service,
        (target, info): (&Target, &ObjectInfo),
        (value, start): (u64, std::time::Duration),
        rng: &mut Rng,
    ) -> Result<(), String> {
        let size = size_of(value, self.0.plan.races);
        if info.object.size != size as u64 {
            return Err(format!("has {} bytes instead of {size}", info.object.size));
        }
        let whole = rng.one_in(2);
        let offset = if whole { 0 } else { rng.below(size as u64 + 1) as usize };
        let len = if whole { size } else { rng.below((size - offset) as u64 + 1) as usize };
        let slow = self.0.plan.trash.map_or(0, |trash| rng.below(trash.as_micros() as u64 / 2));
        let read = async {
            let content = service.content(target, info).await?;
            service.env().sleep(Duration::from_micros(slow)).await;
            content.read(offset as u64, len).await
        };
        match read.await {
            Ok(read) if read == bytes(value, size)[offset..offset + len] => Ok(()),
            Ok(_) => Err(format!("bytes {offset} to {} are others", offset + len)),
            // Since before it was seen its file is kept.
            Err(Error::NoSuchKey)
                if self
                    .0
                    .plan
                    .trash
                    .is_some_and(|trash| self.0.sim.elapsed() - start < trash * 9 / 10) =>
            {
                Err("its file went before its time".to_owned())
            }
            // It was replaced since, or its file is gone.
            Err(Error::NoSuchKey) => match service.look(target, None).await {
                Ok(again)
                    if again.object.data_id == info.object.data_id
                        && again.object.data == info.object.data =>
                {
                    // A part that was moved has another place, which its object does not name.
                    let is_moved = matches!(again.object.data, ObjectData::Parts(_))
                        && !matches!(
                            self.read_once(service, target, &again).await,
                            Err(Error::NoSuchKey)
                        );
                    if is_moved { Ok(()) } else { Err("its file is gone".to_owned()) }
                }
                _ => Ok(()),
            },
            Err(Error::Busy { .. } | Error::Unknown { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads all of an object.
    async fn read_once(
        &self,
        service: &Service,
        target: &Target,
        info: &ObjectInfo,
    ) -> Result<Vec<u8>, Error> {
        let content = service.content(target, info).await?;
        content.read(0, info.object.size as usize).await
    }

    /// Lists the bucket page by page: each page saw its keys at one time.
    async fn list(&self, service: &Service, rng: &mut Rng) {
        let delimiter = if rng.one_in(2) { "/" } else { "" };
        let mut ask = ListRequest {
            bucket: self.0.bucket,
            prefix: if rng.one_in(3) { "a" } else { "" }.to_owned(),
            delimiter: delimiter.to_owned(),
            after: String::new(),
            limit: 1 + rng.below(4) as u32,
        };
        loop {
            let start = self.0.sim.elapsed();
            let page = match service.list(ask.clone()).await {
                Ok(page) => page,
                Err(Error::Busy { .. } | Error::Unknown { .. }) => return,
                Err(error) => return self.violated(format!("list: {error}")),
            };
            if let Err(what) = self.judge_page(&ask, &page, start) {
                return self.violated(format!("{ask:?} shows {page:?}: {what}"));
            }
            match page.next {
                Some(next) => ask.after = next,
                None => return,
            }
        }
    }

    fn judge_page(
        &self,
        ask: &ListRequest,
        page: &object_proto::ListPage,
        start: std::time::Duration,
    ) -> Result<(), String> {
        let names: Vec<&str> = page.entries.iter().map(Listed::name).collect();
        if !names.is_sorted_by(|a, b| a < b) || names.first().is_some_and(|at| *at <= &*ask.after) {
            return Err("entries are not in order".to_owned());
        }
        if page.entries.len() > ask.limit as usize {
            return Err("entries are more than asked for".to_owned());
        }
        for (key, text) in KEYS.iter().enumerate().take(self.0.plan.keys) {
            let shown_as = shown_as(text, ask);
            let Some(shown_as) = shown_as.filter(|name| name.as_str() > &*ask.after) else {
                continue;
            };
            if page.next.as_ref().is_some_and(|next| shown_as > *next) {
                continue;
            }
            let entry = page.entries.iter().find(|entry| entry.name() == shown_as);
            let saw = match entry {
                None => None,
                Some(Listed::Object { info, .. }) => Some(Load::value_of(info)?),
                // One of the keys that it stands for is there.
                Some(Listed::Prefix(_)) => continue,
            };
            self.note(key, Did::Look, Ended::Saw(saw), start);
        }
        Ok(())
    }

    /// Judges the histories of all keys.
    pub fn check(&self) -> Result<(), String> {
        if let Some(violation) = self.violation() {
            return Err(violation);
        }
        for (key, history) in &*self.0.histories.borrow() {
            history::check(history.clone()).map_err(|what| format!("{:?}: {what}", KEYS[*key]))?;
        }
        Ok(())
    }

    /// What is there in the end, without faults and clients: noted, and each object read. Returns
    /// the number of objects and their bytes.
    pub async fn settle(&self, service: &Service) -> Result<(u64, u64), String> {
        let (mut objects, mut size) = (0, 0);
        for (key, text) in KEYS.iter().enumerate().take(self.0.plan.keys) {
            let saw = self.look(service, key, &mut Rng::new(2)).await;
            let saw = saw.ok_or_else(|| {
                self.violation().unwrap_or_else(|| format!("{text:?} is not answered for"))
            })?;
            if let Some(value) = saw {
                objects += 1;
                size += size_of(value, self.0.plan.races) as u64;
            }
        }
        self.list(service, &mut Rng::new(3)).await;
        check_usage(service, self.0.bucket).await?;
        Ok((objects, size))
    }

    /// Reads all objects, without faults and clients: each within a time.
    pub async fn read_back(&self, service: &Service, within: Duration) -> Result<(), String> {
        let env = service.env();
        for key in 0..self.0.plan.keys {
            let (target, begun) = (self.target(key), env.now());
            let info = match service.look(&target, None).await {
                Ok(info) => info,
                Err(Error::NoSuchKey) => continue,
                Err(error) => return Err(format!("look at {target}: {error}")),
            };
            let value = Load::value_of(&info)?;
            let size = size_of(value, self.0.plan.races);
            let read = self.read_once(service, &target, &info).await;
            let read = read.map_err(|error| format!("{target}: {error}"))?;
            if read != bytes(value, size) {
                return Err(format!("{target}, object {value}: its bytes are others"));
            }
            let took = env.now() - begun;
            if took > within {
                return Err(format!("{target} is read in {took:?}"));
            }
        }
        Ok(())
    }

    /// An error when uploads are under way, without faults and clients, once they were aborted by age.
    pub async fn check_no_uploads(&self, service: &Service) -> Result<(), String> {
        let ask = UploadsRequest {
            bucket: self.0.bucket,
            prefix: String::new(),
            delimiter: String::new(),
            after: String::new(),
            after_upload: None,
            limit: 10,
        };
        let page = service.uploads(ask).await.map_err(|error| error.to_string())?;
        match page.entries.is_empty() {
            true => check_usage(service, self.0.bucket).await,
            false => Err(format!("uploads are under way: {page:?}")),
        }
    }

    /// The names of the files that objects are in, and of the logs that they are in,
    /// without faults and clients, in order.
    pub async fn files(
        &self,
        service: &Service,
    ) -> Result<(BTreeSet<String>, BTreeSet<String>), String> {
        let (mut files, mut logs) = (BTreeSet::new(), BTreeSet::new());
        for (key, text) in KEYS.iter().enumerate().take(self.0.plan.keys) {
            match service.look(&self.target(key), None).await {
                Ok(info) => match info.object.data {
                    ObjectData::File { file, .. } => {
                        files.insert(file.as_str().to_owned());
                    }
                    ObjectData::Logged { file, .. } => {
                        logs.insert(file.as_str().to_owned());
                    }
                    ObjectData::Parts(map) => {
                        files.extend(part_files(service, &self.target(key), &map).await?);
                    }
                    ObjectData::Inline(_) | ObjectData::Piece(_) => {}
                },
                Err(Error::NoSuchKey) => {}
                Err(error) => return Err(format!("{text:?}: {error}")),
            }
        }
        Ok((files, logs))
    }
}

/// The names of the files of an object's parts.
pub(crate) async fn part_files(
    service: &Service,
    target: &Target,
    map: &PartMap,
) -> Result<Vec<String>, String> {
    let (mut files, mut after, mut seen) = (Vec::new(), 0, 0);
    loop {
        let ask = PartsRequest { target: target.clone(), upload: map.upload, after, limit: 3 };
        let parts = service.part_bodies(ask).await.map_err(|error| format!("{target}: {error}"))?;
        let Some((last, _)) = parts.last() else { break };
        after = last.get();
        for (number, part) in parts {
            if !map.has(number.get()) {
                return Err(format!("{target}: part {number} is there, which the object has not"));
            }
            seen += 1;
            if let ObjectData::File { file, .. } = part.object.data {
                files.push(file.as_str().to_owned());
            }
        }
    }
    match seen == map.count() {
        true => Ok(files),
        false => Err(format!("{target}: {seen} parts are there of {}", map.count())),
    }
}

/// How a listing shows a key, if it does.
pub(crate) fn shown_as(key: &str, ask: &ListRequest) -> Option<String> {
    let rest = key.strip_prefix(&*ask.prefix)?;
    if ask.delimiter.is_empty() {
        return Some(key.to_owned());
    }
    let end = rest.find(&ask.delimiter).map_or(rest.len(), |at| at + ask.delimiter.len());
    Some(key[..ask.prefix.len() + end].to_owned())
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Load({} done)", self.done())
    }
}
