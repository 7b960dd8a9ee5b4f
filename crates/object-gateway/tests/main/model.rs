//! A backend in memory, as simple as can be.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use object_gateway::KeyFile;
use object_proto::{
    AccessKey, Answer, Backend, BodyPlan, Bucket, BucketId, BucketName, BucketSettings,
    BucketUsage, BucketView, Committed, Completion, Conditions, Content, DataId, Error, Found,
    Grant, ListPage, ListRequest, Listed, ListedUpload, ListedVersion, LockChange, NewObject,
    NewUpload, ObjectData, ObjectFacts, ObjectInfo, ObjectKey, ObjectTags, Part, PartMap,
    PartNumber, PartsPage, PartsRequest, Retention, Setting, Stamp, Target, Upload, UploadEnd,
    UploadId, UploadInfo, UploadsPage, UploadsRequest, User, UserId, VersionId, Versioning,
    VersionsPage, VersionsRequest,
};

/// Time of the first commit, seconds since 1970.
pub const FIRST_COMMIT_S: u64 = 1_700_000_000;

/// A version of a key, or a delete marker.
#[derive(Clone)]
struct Version {
    info: ObjectInfo,
    content: Arc<Vec<u8>>,
    marker: bool,
}

/// Versions of each key, newest first; none is empty.
type Objects = BTreeMap<ObjectKey, Vec<Version>>;

/// The object of a key, unless its newest version is a delete marker.
fn current(versions: &[Version]) -> Option<&Version> {
    versions.first().filter(|version| !version.marker)
}

/// A multipart upload with what was received of it.
struct Uploading {
    info: UploadInfo,
    parts: BTreeMap<PartNumber, (Part, Vec<u8>)>,
}

#[derive(Default)]
struct Data {
    keys: BTreeMap<String, AccessKey>,
    buckets: BTreeMap<BucketName, Bucket>,
    settings: BTreeMap<BucketId, BucketSettings>,
    objects: BTreeMap<BucketId, Objects>,
    uploads: BTreeMap<(Target, UploadId), Uploading>,
    commits: u64,
    /// Completions that find a part to be another one.
    flawed_completions: u32,
    /// Answer of the next operations that are asked for data.
    fault: Option<Error>,
    /// Answer of the next look at an object.
    head_fault: Option<Error>,
    /// Reads fail from this offset on.
    read_until: Option<u64>,
    /// Entries of a page at most.
    page_max: Option<u32>,
    /// Keys that wrap something, in the order in which they were named.
    used_keys: Vec<String>,
    /// A change that comes just before the next one of a bucket's settings.
    set_before: Option<Setting>,
}

/// The backend.
#[derive(Clone, Default)]
pub struct Model {
    data: Arc<Mutex<Data>>,
    /// Uploads that were begun.
    pub uploads_begun: Arc<AtomicUsize>,
    /// Contents that are being read.
    pub contents_open: Arc<AtomicUsize>,
}

impl Model {
    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().expect("no panic while it is held")
    }

    /// Adds a user with an access key.
    pub fn add_user(&self, name: &str, admin: bool, id: &str, secret: &str, file: &KeyFile) {
        let user = User {
            id: UserId::new(format!("id-{name}")),
            name: name.to_owned(),
            display_name: name.to_owned(),
            email: format!("{name}@example.com"),
            admin,
            ..User::default()
        };
        let wrapped_secret = file.wrap(id, secret, [9; 12]);
        let (id_text, enabled) = (id.to_owned(), true);
        let (expires_us, policy) = (None, None);
        let key = AccessKey { id: id_text, user, wrapped_secret, enabled, expires_us, policy };
        self.data().keys.insert(id.to_owned(), key);
    }

    /// Changes a key and its user.
    pub fn change_key(&self, id: &str, change: impl FnOnce(&mut AccessKey)) {
        change(self.data().keys.get_mut(id).expect("a key"));
    }

    /// Changes a setting of a bucket.
    pub fn set(&self, bucket: &str, setting: Setting) {
        let data = &mut *self.data();
        let name = BucketName::new(bucket).expect("a name");
        let id = data.buckets[&name].id;
        data.settings.entry(id).or_default().set(setting);
    }

    /// Lets another client change a setting just before the next change of one.
    pub fn set_before_next(&self, setting: Setting) {
        self.data().set_before = Some(setting);
    }

    /// Switches a key on or off.
    pub fn enable(&self, id: &str, enabled: bool) {
        if let Some(key) = self.data().keys.get_mut(id) {
            key.enabled = enabled;
        }
    }

    /// Lets all questions for data fail.
    pub fn set_fault(&self, fault: Option<Error>) {
        self.data().fault = fault;
    }

    /// Lets the next look at an object fail.
    pub fn fail_next_head(&self, fault: Error) {
        self.data().head_fault = Some(fault);
    }

    /// Lets reads of content fail from an offset on.
    pub fn read_until(&self, offset: Option<u64>) {
        self.data().read_until = offset;
    }

    /// Lets pages be short.
    pub fn page_max(&self, entries: Option<u32>) {
        self.data().page_max = entries;
    }

    /// Lets completions find that a part was sent again.
    pub fn flaw_completions(&self, count: u32) {
        self.data().flawed_completions = count;
    }

    /// Completions that are still to find that.
    pub fn flawed_completions(&self) -> u32 {
        self.data().flawed_completions
    }

    /// Number of objects.
    pub fn objects(&self) -> usize {
        let data = self.data();
        let versions = data.objects.values().flat_map(BTreeMap::values);
        versions.filter(|versions| current(versions).is_some()).count()
    }

    /// An object's facts and content.
    pub fn object(&self, key: &str) -> Option<(ObjectInfo, Vec<u8>)> {
        let key = ObjectKey::new(key).ok()?;
        let data = self.data();
        let versions = data.objects.values().find_map(|objects| objects.get(&key))?;
        let version = current(versions)?;
        Some((version.info.clone(), version.content.to_vec()))
    }

    /// Changes what is stored of an object: its row, and its bytes.
    pub fn change(&self, key: &str, change: impl FnOnce(&mut ObjectInfo, &mut Vec<u8>)) {
        let key = ObjectKey::new(key).expect("a key");
        let data = &mut *self.data();
        let versions = data.objects.values_mut().find_map(|objects| objects.get_mut(&key));
        let version = versions.and_then(|versions| versions.first_mut()).expect("an object");
        let mut content = version.content.to_vec();
        change(&mut version.info, &mut content);
        version.content = Arc::new(content);
    }

    /// Keys that wrap something.
    pub fn used_keys(&self) -> Vec<String> {
        self.data().used_keys.clone()
    }

    fn ask<T>(&self, act: impl FnOnce(&mut Data) -> Result<T, Error>) -> Result<T, Error> {
        let mut data = self.data();
        match data.fault.clone() {
            Some(fault) => Err(fault),
            None => act(&mut data),
        }
    }

    fn put_now(
        &self,
        target: Target,
        content: Vec<u8>,
        facts: ObjectFacts,
        conditions: &Conditions,
    ) -> Result<Committed, Error> {
        let place = ObjectData::Inline(Vec::new());
        self.ask(|data| data.put(target, content, facts, place, conditions))
    }
}

impl Data {
    fn next_stamp(&mut self) -> Stamp {
        self.commits += 1;
        Stamp::new(FIRST_COMMIT_S * 1_000_000 + self.commits)
    }

    fn put(
        &mut self,
        target: Target,
        content: Vec<u8>,
        facts: ObjectFacts,
        data: ObjectData,
        conditions: &Conditions,
    ) -> Result<Committed, Error> {
        self.check(&target, conditions)?;
        let data_id = DataId::new(u128::from(self.commits) + 1);
        let object = NewObject { data_id, size: content.len() as u64, facts, data };
        self.add(&target, object, content, false)
    }

    /// The condition holds of the object that is there.
    fn check(&self, target: &Target, conditions: &Conditions) -> Result<(), Error> {
        let objects = self.objects.get(&target.bucket).ok_or(Error::NoSuchBucket)?;
        let there = objects.get(&target.key).and_then(|versions| current(versions));
        conditions.check(there.map(|version| &version.info.object.facts.etag))
    }

    fn versioning(&self, bucket: BucketId) -> Versioning {
        let bucket = self.buckets.values().find(|other| other.id == bucket);
        bucket.map(|bucket| bucket.versioning).unwrap_or_default()
    }

    /// Adds a version, or a delete marker.
    fn add(
        &mut self,
        target: &Target,
        mut object: NewObject,
        content: Vec<u8>,
        marker: bool,
    ) -> Result<Committed, Error> {
        let (stamp, versioning) = (self.next_stamp(), self.versioning(target.bucket));
        let rule = self.settings.get(&target.bucket).and_then(|settings| settings.lock);
        let default = rule.and_then(|rule| rule.default).filter(|_| !marker);
        let lock = &mut object.facts.lock;
        if let (None, Some((mode, period))) = (lock.retention, default) {
            lock.retention = Some(Retention { mode, until_us: period.until_us(stamp) });
        }
        let objects = self.objects.get_mut(&target.bucket).ok_or(Error::NoSuchBucket)?;
        let has_id = versioning == Versioning::Enabled;
        let info = ObjectInfo { stamp, has_id, object };
        let version = (versioning != Versioning::Off).then(|| info.version());
        let versions = objects.entry(target.key.clone()).or_default();
        versions.retain(|version| has_id || version.info.has_id);
        if !marker || versioning != Versioning::Off {
            versions.insert(0, Version { info, content: Arc::new(content), marker });
        }
        objects.retain(|_, versions| !versions.is_empty());
        Ok(Committed { stamp, version, marker: marker && version.is_some() })
    }

    fn find(&self, target: &Target, asked: Option<VersionId>) -> Result<&Version, Error> {
        let versions = self.objects.get(&target.bucket).and_then(|all| all.get(&target.key));
        let mut versions = versions.into_iter().flatten();
        let found = match asked {
            None => versions.next().ok_or(Error::NoSuchKey),
            Some(asked) => {
                versions.find(|it| it.info.version() == asked).ok_or(Error::NoSuchVersion)
            }
        }?;
        let (version, stamp) = (found.info.version(), found.info.stamp);
        match found.marker {
            true => Err(Error::Marker { version, stamp, asked: asked.is_some() }),
            false => Ok(found),
        }
    }

    fn under_way(&mut self, target: &Target, id: UploadId) -> Result<&mut Uploading, Error> {
        let upload = self.uploads.get_mut(&(target.clone(), id));
        upload.filter(|upload| upload.info.end.is_none()).ok_or(Error::NoSuchUpload)
    }

    fn put_part(
        &mut self,
        (target, id, number): (Target, UploadId, PartNumber),
        content: Vec<u8>,
        facts: ObjectFacts,
    ) -> Result<Committed, Error> {
        let stamp = self.next_stamp();
        let part = Part {
            number,
            stamp,
            data_id: DataId::new(u128::from(self.commits)),
            size: content.len() as u64,
            etag: facts.etag,
            checksums: facts.checksums,
        };
        self.under_way(&target, id)?.parts.insert(number, (part, content));
        Ok(Committed { stamp, ..Committed::default() })
    }

    fn complete(
        &mut self,
        target: Target,
        completion: Completion,
        conditions: &Conditions,
    ) -> Result<Committed, Error> {
        let id = completion.upload;
        if let Some(left) = self.flawed_completions.checked_sub(1) {
            self.flawed_completions = left;
            return Err(Error::NoSuchPart { number: completion.parts[0].0.get() });
        }
        let upload = self.under_way(&target, id)?;
        let (mut content, mut sizes) = (Vec::new(), Vec::new());
        for (number, data_id) in &completion.parts {
            let part = upload.parts.get(number).filter(|(part, _)| part.data_id == *data_id);
            let (part, bytes) = part.ok_or(Error::NoSuchPart { number: number.get() })?;
            content.extend_from_slice(bytes);
            sizes.push((*number, part.size));
        }
        let facts = ObjectFacts {
            etag: completion.etag.clone(),
            checksums: completion.checksums.clone(),
            metadata: upload.info.upload.metadata.clone(),
            tags: upload.info.upload.tags.clone(),
            owner: upload.info.upload.owner.clone(),
            acl: upload.info.upload.acl.clone(),
            lock: upload.info.upload.lock,
            encryption: upload.info.upload.encryption.clone(),
        };
        let place = ObjectData::Parts(PartMap::of(id, sizes));
        let committed = self.put(target.clone(), content, facts, place, conditions)?;
        let stamp = committed.stamp;
        let upload = self.under_way(&target, id)?;
        let is_named = |number: &PartNumber| completion.parts.iter().any(|(it, _)| it == number);
        upload.parts.retain(|number, _| is_named(number));
        let (etag, checksums) = (completion.etag, completion.checksums);
        upload.info.end = Some(UploadEnd { stamp, etag, checksums });
        Ok(committed)
    }
}

fn answer<'a, T: Send + 'a>(result: Result<T, Error>) -> Answer<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Model {
    /// Gives an object, or a version of it, other facts.
    fn set_fact(
        &self,
        target: Target,
        version: Option<VersionId>,
        give: impl Fn(&mut ObjectFacts) -> Result<(), Error>,
    ) -> Answer<'_, Committed> {
        answer(self.ask(|data| {
            let (stamp, versioning) = (data.next_stamp(), data.versioning(target.bucket));
            let found = match data.find(&target, version) {
                Ok(found) => found.info.version(),
                // Without a version there is no marker to tag.
                Err(Error::Marker { asked: false, .. }) => return Err(Error::NoSuchKey),
                Err(error) => return Err(error),
            };
            let objects = data.objects.get_mut(&target.bucket).ok_or(Error::NoSuchBucket)?;
            let versions = objects.get_mut(&target.key).into_iter().flatten();
            for it in versions.filter(|it| it.info.version() == found) {
                give(&mut it.info.object.facts)?;
            }
            let version = (versioning != Versioning::Off).then_some(found);
            Ok(Committed { stamp, version, marker: false })
        }))
    }
}

impl Backend for Model {
    fn access_key<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Arc<AccessKey>>> {
        answer(Ok(self.data().keys.get(id).cloned().map(Arc::new)))
    }

    fn use_key(&self, key: String) -> Answer<'_, ()> {
        answer(self.ask(|data| {
            data.used_keys.push(key);
            Ok(())
        }))
    }

    fn users(&self) -> Answer<'_, Vec<User>> {
        let users: BTreeMap<String, User> = {
            let keys = &self.data().keys;
            keys.values().map(|key| (key.user.name.clone(), key.user.clone())).collect()
        };
        answer(Ok(users.into_values().collect()))
    }

    fn create_bucket(
        &self,
        name: BucketName,
        owner: UserId,
        settings: BucketSettings,
    ) -> Answer<'_, Bucket> {
        answer(self.ask(|data| {
            if let Some(bucket) = data.buckets.get(&name) {
                return Err(Error::BucketExists { own: bucket.owner == owner });
            }
            let id = BucketId::new(data.buckets.len() as u64 + 1);
            let created_us = FIRST_COMMIT_S * 1_000_000;
            let has_lock = settings.lock.is_some();
            let versioning = if has_lock { Versioning::Enabled } else { Versioning::Off };
            let bucket = Bucket { id, name: name.clone(), owner, created_us, versioning };
            data.settings.insert(id, settings);
            data.buckets.insert(name, bucket.clone());
            data.objects.insert(id, Objects::new());
            Ok(bucket)
        }))
    }

    fn remove_bucket(&self, name: BucketName) -> Answer<'_, ()> {
        answer(self.ask(|data| {
            let id = data.buckets.get(&name).ok_or(Error::NoSuchBucket)?.id;
            if data.objects.get(&id).is_some_and(|objects| !objects.is_empty()) {
                return Err(Error::BucketNotEmpty);
            }
            data.buckets.remove(&name);
            Ok(())
        }))
    }

    fn bucket(&self, name: BucketName) -> Answer<'_, Arc<BucketView>> {
        answer(self.ask(|data| {
            let bucket = data.buckets.get(&name).cloned().ok_or(Error::NoSuchBucket)?;
            let settings = data.settings.get(&bucket.id).cloned().unwrap_or_default();
            let versions = data.objects.get(&bucket.id).into_iter().flat_map(|all| all.values());
            let mut usage = BucketUsage::default();
            for version in versions.flatten().filter(|version| !version.marker) {
                usage.objects += 1;
                usage.bytes += version.info.object.size;
            }
            let room = settings.quota.room(usage);
            Ok(Arc::new(BucketView { bucket, settings, room }))
        }))
    }

    fn set_bucket(&self, name: BucketName, setting: Setting) -> Answer<'_, ()> {
        answer(self.ask(|data| {
            let id = data.buckets.get(&name).ok_or(Error::NoSuchBucket)?.id;
            let before = data.set_before.take();
            let settings = data.settings.entry(id).or_default();
            before.into_iter().chain([setting]).for_each(|setting| settings.set(setting));
            Ok(())
        }))
    }

    fn buckets(&self, of: Option<UserId>) -> Answer<'_, Vec<Bucket>> {
        answer(self.ask(|data| {
            let buckets = data.buckets.values();
            let is_of = |bucket: &&Bucket| of.as_ref().is_none_or(|of| *of == bucket.owner);
            Ok(buckets.filter(is_of).cloned().collect())
        }))
    }

    fn put(&self, target: Target, _: BodyPlan) -> Answer<'_, Box<dyn Upload>> {
        self.uploads_begun.fetch_add(1, Ordering::Relaxed);
        let sending = Sending { model: self.clone(), target, part: None, content: Vec::new() };
        answer(self.ask(|_| Ok(Box::new(sending) as Box<dyn Upload>)))
    }

    fn head(&self, target: Target, version: Option<VersionId>) -> Answer<'_, ObjectInfo> {
        answer(self.ask(|data| match data.head_fault.take() {
            Some(fault) => Err(fault),
            None => data.find(&target, version).map(|found| found.info.clone()),
        }))
    }

    fn get(&self, target: Target, version: Option<VersionId>) -> Answer<'_, Found> {
        answer(self.ask(|data| {
            let Version { info, content, .. } = data.find(&target, version)?.clone();
            self.contents_open.fetch_add(1, Ordering::Relaxed);
            let open = self.contents_open.clone();
            let content = Box::new(Bytes { content, until: data.read_until, open });
            Ok(Found { info, content })
        }))
    }

    fn delete(&self, target: Target, by: UserId, conditions: Conditions) -> Answer<'_, Committed> {
        answer(self.ask(|data| {
            data.check(&target, &conditions)?;
            let facts = ObjectFacts { owner: by, ..ObjectFacts::default() };
            let data_id = DataId::new(u128::from(data.commits) + 1);
            let none = ObjectData::Inline(Vec::new());
            let object = NewObject { data_id, size: 0, facts, data: none };
            data.add(&target, object, Vec::new(), true)
        }))
    }

    fn delete_version(
        &self,
        target: Target,
        version: VersionId,
        conditions: Conditions,
        bypass: bool,
    ) -> Answer<'_, Committed> {
        answer(self.ask(|data| {
            let stamp = data.next_stamp();
            let objects = data.objects.get_mut(&target.bucket).ok_or(Error::NoSuchBucket)?;
            let Some(versions) = objects.get_mut(&target.key) else {
                conditions.check(None)?;
                return Ok(Committed::default());
            };
            let at = versions.iter().position(|it| it.info.version() == version);
            conditions.check(at.map(|at| &versions[at].info.object.facts.etag))?;
            let Some(at) = at else { return Ok(Committed::default()) };
            versions[at].info.object.facts.lock.check_removal(0, bypass)?;
            let marker = versions.remove(at).marker;
            objects.retain(|_, versions| !versions.is_empty());
            Ok(Committed { stamp, version: Some(version), marker })
        }))
    }

    fn set_tags(
        &self,
        target: Target,
        version: Option<VersionId>,
        tags: ObjectTags,
    ) -> Answer<'_, Committed> {
        self.set_fact(target, version, |facts| {
            facts.tags = tags.clone();
            Ok(())
        })
    }

    fn set_acl(
        &self,
        target: Target,
        version: Option<VersionId>,
        acl: Vec<Grant>,
    ) -> Answer<'_, Committed> {
        self.set_fact(target, version, |facts| {
            facts.acl = acl.clone();
            Ok(())
        })
    }

    fn set_lock(
        &self,
        target: Target,
        version: Option<VersionId>,
        change: LockChange,
        bypass: bool,
    ) -> Answer<'_, Committed> {
        self.set_fact(target, version, move |facts| {
            facts.lock = facts.lock.changed(change, 0, bypass)?;
            Ok(())
        })
    }

    fn versions(&self, ask: VersionsRequest) -> Answer<'_, VersionsPage> {
        answer(self.ask(|data| {
            let objects = data.objects.get(&ask.bucket).ok_or(Error::NoSuchBucket)?;
            let limit = data.page_max.map_or(ask.limit, |max| max.min(ask.limit));
            Ok(versions_page(objects, &ask, limit as usize))
        }))
    }

    fn set_versioning(&self, name: BucketName, versioning: Versioning) -> Answer<'_, ()> {
        answer(self.ask(|data| {
            let bucket = data.buckets.get_mut(&name).ok_or(Error::NoSuchBucket)?;
            bucket.versioning = versioning;
            Ok(())
        }))
    }

    fn begin_upload(&self, target: Target, upload: NewUpload) -> Answer<'_, UploadId> {
        answer(self.ask(|data| {
            let id = UploadId { stamp: data.next_stamp(), nonce: upload.nonce };
            let info = UploadInfo { id, upload, end: None };
            data.uploads.insert((target, id), Uploading { info, parts: BTreeMap::new() });
            Ok(id)
        }))
    }

    fn upload(&self, target: Target, upload: UploadId) -> Answer<'_, UploadInfo> {
        answer(self.ask(|data| {
            let upload = data.uploads.get(&(target, upload));
            upload.map(|upload| upload.info.clone()).ok_or(Error::NoSuchUpload)
        }))
    }

    fn put_part(
        &self,
        target: Target,
        upload: UploadId,
        number: PartNumber,
        _: BodyPlan,
    ) -> Answer<'_, Box<dyn Upload>> {
        self.uploads_begun.fetch_add(1, Ordering::Relaxed);
        let part = Some((upload, number));
        let sending = Sending { model: self.clone(), target, part, content: Vec::new() };
        answer(self.ask(|_| Ok(Box::new(sending) as Box<dyn Upload>)))
    }

    fn parts(&self, ask: PartsRequest) -> Answer<'_, PartsPage> {
        answer(self.ask(|data| {
            let limit = data.page_max.map_or(ask.limit, |max| max.min(ask.limit)) as usize;
            let upload = data.under_way(&ask.target, ask.upload)?;
            let parts = upload.parts.values().map(|(part, _)| part);
            let left: Vec<_> = parts.filter(|part| part.number.get() > ask.after).collect();
            let parts = left.iter().take(limit).map(|part| Part::clone(part)).collect();
            Ok(PartsPage { parts, more: left.len() > limit })
        }))
    }

    fn object_parts(&self, ask: PartsRequest) -> Answer<'_, Vec<(PartNumber, ObjectInfo)>> {
        answer(self.ask(|data| {
            let upload = data.uploads.get(&(ask.target.clone(), ask.upload));
            let parts = upload.into_iter().flat_map(|upload| upload.parts.values());
            let parts = parts.filter(|(part, _)| part.number.get() > ask.after).map(|(part, _)| {
                let (etag, checksums) = (part.etag.clone(), part.checksums.clone());
                let facts = ObjectFacts { etag, checksums, ..ObjectFacts::default() };
                let data = ObjectData::Inline(Vec::new());
                let object = NewObject { data_id: part.data_id, size: part.size, facts, data };
                (part.number, ObjectInfo { stamp: part.stamp, has_id: false, object })
            });
            Ok(parts.take(ask.limit as usize).collect())
        }))
    }

    fn complete_upload(
        &self,
        target: Target,
        completion: Completion,
        conditions: Conditions,
    ) -> Answer<'_, Committed> {
        answer(self.ask(|data| data.complete(target, completion, &conditions)))
    }

    fn abort_upload(&self, target: Target, upload: UploadId) -> Answer<'_, ()> {
        answer(self.ask(|data| {
            data.under_way(&target, upload)?;
            data.uploads.remove(&(target, upload));
            Ok(())
        }))
    }

    fn uploads(&self, ask: UploadsRequest) -> Answer<'_, UploadsPage> {
        answer(self.ask(|data| {
            let limit = data.page_max.map_or(ask.limit, |max| max.min(ask.limit));
            Ok(uploads_page(&data.uploads, &ask, limit as usize))
        }))
    }

    fn list(&self, ask: ListRequest) -> Answer<'_, ListPage> {
        answer(self.ask(|data| {
            let objects = data.objects.get(&ask.bucket).ok_or(Error::NoSuchBucket)?;
            let limit = data.page_max.map_or(ask.limit, |max| max.min(ask.limit));
            Ok(page(objects, &ask, limit as usize))
        }))
    }
}

/// A page of a bucket, by the words of the contract.
fn page(objects: &Objects, ask: &ListRequest, limit: usize) -> ListPage {
    let mut entries: Vec<Listed> = Vec::new();
    for (key, versions) in objects {
        let Some(Version { info, .. }) = current(versions) else { continue };
        let Some(rest) = key.as_str().strip_prefix(&ask.prefix) else { continue };
        let at = Some(&ask.delimiter).filter(|delimiter| !delimiter.is_empty());
        let at = at.and_then(|delimiter| Some(rest.find(delimiter.as_str())? + delimiter.len()));
        let entry = match at {
            Some(at) => Listed::Prefix(format!("{}{}", ask.prefix, &rest[..at])),
            None => Listed::Object { key: key.clone(), info: Box::new(info.clone()) },
        };
        let is_new = entries.last().is_none_or(|last| last.name() != entry.name());
        if is_new && entry.name() > ask.after.as_str() {
            entries.push(entry);
        }
    }
    let next = (entries.len() > limit).then(|| entries[limit - 1].name().to_owned());
    entries.truncate(limit);
    ListPage { entries, next }
}

/// A page of a bucket's versions, by the words of the contract.
fn versions_page(objects: &Objects, ask: &VersionsRequest, limit: usize) -> VersionsPage {
    let mut entries: Vec<ListedVersion> = Vec::new();
    for (key, versions) in objects {
        let Some(rest) = key.as_str().strip_prefix(&ask.prefix) else { continue };
        let at = Some(&ask.delimiter).filter(|delimiter| !delimiter.is_empty());
        let at = at.and_then(|delimiter| Some(rest.find(delimiter.as_str())? + delimiter.len()));
        if let Some(at) = at {
            let prefix = ListedVersion::Prefix(format!("{}{}", ask.prefix, &rest[..at]));
            if prefix.name() > ask.after.as_str() && entries.last() != Some(&prefix) {
                entries.push(prefix);
            }
            continue;
        }
        let after = ask.after_version.filter(|_| key.as_str() == ask.after);
        if key.as_str() < ask.after.as_str() || key.as_str() == ask.after && after.is_none() {
            continue;
        }
        let is_after = |it: &Version| after.is_some_and(|after| it.info.version() == after);
        let shown = versions.iter().position(is_after).map_or(0, |at| at + 1);
        for (at, it) in versions.iter().enumerate().skip(shown) {
            let (key, info, latest) = (key.clone(), it.info.clone(), at == 0);
            entries.push(match it.marker {
                false => ListedVersion::Version { key, info: Box::new(info), latest },
                true => ListedVersion::Marker {
                    key,
                    version: info.version(),
                    stamp: info.stamp,
                    owner: info.object.facts.owner,
                    latest,
                },
            });
        }
    }
    let more = entries.len() > limit;
    entries.truncate(limit);
    VersionsPage { entries, more }
}

/// A page of a bucket's uploads, by the words of the contract.
fn uploads_page(
    uploads: &BTreeMap<(Target, UploadId), Uploading>,
    ask: &UploadsRequest,
    limit: usize,
) -> UploadsPage {
    let mut entries: Vec<ListedUpload> = Vec::new();
    for ((target, id), upload) in uploads {
        if target.bucket != ask.bucket || upload.info.end.is_some() {
            continue;
        }
        let key = target.key.as_str();
        let Some(rest) = key.strip_prefix(&ask.prefix) else { continue };
        let at = Some(&ask.delimiter).filter(|delimiter| !delimiter.is_empty());
        let at = at.and_then(|delimiter| Some(rest.find(delimiter.as_str())? + delimiter.len()));
        if let Some(at) = at {
            let prefix = ListedUpload::Prefix(format!("{}{}", ask.prefix, &rest[..at]));
            let name = &key[..ask.prefix.len() + at];
            if name > ask.after.as_str() && entries.last() != Some(&prefix) {
                entries.push(prefix);
            }
            continue;
        }
        let is_behind = key == ask.after && ask.after_upload.is_some_and(|after| *id > after);
        if is_behind || key > ask.after.as_str() {
            let info = Box::new(upload.info.clone());
            entries.push(ListedUpload::Upload { key: target.key.clone(), info });
        }
    }
    let more = entries.len() > limit;
    entries.truncate(limit);
    UploadsPage { entries, more }
}

struct Sending {
    model: Model,
    target: Target,
    part: Option<(UploadId, PartNumber)>,
    content: Vec<u8>,
}

impl Upload for Sending {
    fn write(&mut self, bytes: Vec<u8>) -> Answer<'_, ()> {
        self.content.extend_from_slice(&bytes);
        answer(Ok(()))
    }

    fn commit(
        self: Box<Self>,
        facts: ObjectFacts,
        conditions: Conditions,
    ) -> Answer<'static, Committed> {
        let Sending { model, target, part, content } = *self;
        answer(match part {
            None => model.put_now(target, content, facts, &conditions),
            Some((upload, number)) => {
                model.ask(|data| data.put_part((target, upload, number), content, facts))
            }
        })
    }
}

struct Bytes {
    content: Arc<Vec<u8>>,
    until: Option<u64>,
    open: Arc<AtomicUsize>,
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Content for Bytes {
    fn read(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        if self.until.is_some_and(|until| offset + len as u64 > until) {
            return answer(Err(Error::NoSuchKey));
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.content.len());
        let end = start.saturating_add(len).min(self.content.len());
        answer(Ok(self.content[start..end].to_vec()))
    }
}
