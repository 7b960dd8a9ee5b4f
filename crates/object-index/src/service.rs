//! [`Service`]: buckets and objects as a gateway serves them: finds the owner of a key, makes changes once
//! whatever is lost on the way, writes and reads bodies beside the owner.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use object_proto::limits::{INLINE_MAX, SMALL_MAX};
use object_proto::{
    BodyPlan, CatalogReply, CatalogRequest, Change, Committed, Completion, Conditions, DataId,
    Error, FileName, Grant, LockChange, NewObject, NewUpload, ObjectData, ObjectFacts, ObjectInfo,
    ObjectTags, PartNumber, PartsPage, PartsRequest, RangeId, RangeMap, RangeReply, RangeRequest,
    Reply, Request, RequestHead, Target, UploadId, UploadInfo, UserId, VersionId,
};
use runtime::{Env, Instant};
use table::{Source, Store};

use crate::bodies::{self, BodyReader, BodyWriter, Whole};
use crate::content::{BodyContent, Bytes};
use crate::fullness::Fullness;
use crate::ground::{Files, Owners};
use crate::kept::Kept;
use crate::limits::OPENED_MAX;
use crate::packs::{OpenPack, PackOptions, Packs, SentFile};
use crate::parts::{Bodies, PartBodies, PartsReader};
use crate::paths::range_dir;
use crate::piece::Body;
use crate::planted::{Bugs, Planted};
use crate::session::{GatewaySession, Stay};

/// A range's directory.
type Stores = BTreeMap<RangeId, Rc<dyn Store>>;
/// A log of a range or a file of bodies, opened.
type Opened = ((RangeId, FileName), Rc<dyn Source>);

pub(crate) struct ServiceInner {
    pub(crate) env: Env,
    pub(crate) owners: Rc<dyn Owners>,
    /// Buckets and keys, for a service that keeps some.
    pub(crate) kept: Option<Arc<Kept>>,
    /// The task that asks for changes of them runs.
    pub(crate) watching: Cell<bool>,
    /// Managers are taken to be silent before this time.
    pub(crate) silent_until: Cell<Instant>,
    /// Requests that went by what was kept, as they were.
    pub(crate) silent_uses: Cell<u64>,
    /// The ranges, as they were when they were asked for.
    pub(crate) map: RefCell<Option<Rc<RangeMap>>>,
    stores: RefCell<Stores>,
    pub(crate) files: Rc<dyn Files>,
    pub(crate) session: GatewaySession,
    /// Whether bodies found room lately.
    pub(crate) fullness: Arc<Fullness>,
    /// Logs and files that were read lately, newest last.
    opened: RefCell<Vec<Opened>>,
    /// Files that are sent.
    pub(crate) packs: Packs,
    pub(crate) options: ServiceOptions,
}

/// Options of a service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceOptions {
    /// Bodies of this many bytes at most go with the change into the owner's log;
    /// [`object_proto::limits::SMALL_MAX`] at most. Larger ones are in files.
    pub small_max: usize,
    /// Those files.
    pub packs: PackOptions,
    /// Buckets and access keys are kept, and the manager is asked for changes of them while they are used:
    /// for a gateway.
    pub keeps: bool,
    /// For tests.
    pub bugs: Bugs,
}

impl Default for ServiceOptions {
    fn default() -> ServiceOptions {
        let packs = PackOptions::default();
        ServiceOptions { small_max: SMALL_MAX, packs, keeps: false, bugs: Bugs::default() }
    }
}

/// The object service on the side of a gateway. Cheap to clone; stays on its thread.
#[derive(Clone)]
pub struct Service(pub(crate) Rc<ServiceInner>);

impl Service {
    /// A service that asks `owners` and writes bodies to `files`. Its session begins with the first
    /// change, and is kept alive from then on.
    pub fn new(
        env: &Env,
        owners: Rc<dyn Owners>,
        files: Rc<dyn Files>,
        options: ServiceOptions,
    ) -> Service {
        let session = GatewaySession::new(env, owners.clone());
        Service(Rc::new(ServiceInner {
            env: env.clone(),
            owners,
            kept: options.keeps.then(|| Arc::new(Kept::new(options.bugs))),
            watching: Cell::default(),
            silent_until: Cell::default(),
            silent_uses: Cell::default(),
            map: RefCell::default(),
            stores: RefCell::default(),
            files,
            session,
            fullness: Arc::default(),
            opened: RefCell::default(),
            packs: Packs::default(),
            options,
        }))
    }

    /// Its environment.
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    /// What it keeps of the catalog.
    pub(crate) fn owners(&self) -> &Rc<dyn Owners> {
        &self.0.owners
    }

    pub(crate) fn kept(&self) -> Option<&Arc<Kept>> {
        self.0.kept.as_ref()
    }

    /// The directory of a range.
    async fn store(&self, range: RangeId) -> Result<Rc<dyn Store>, Error> {
        if let Some(store) = self.0.stores.borrow().get(&range) {
            return Ok(store.clone());
        }
        let store = self.0.files.dir(&range_dir(range)).await;
        let store = store.map_err(|fault| Error::Busy { cause: fault.message })?;
        self.0.stores.borrow_mut().insert(range, store.clone());
        Ok(store)
    }

    pub(crate) async fn catalog(&self, request: CatalogRequest) -> Result<CatalogReply, Error> {
        match self.ask(Request::Catalog(request)).await? {
            Reply::Catalog(reply) => Ok(reply),
            Reply::Range(..) | Reply::Server => Err(unexpected()),
        }
    }

    pub(crate) async fn change_catalog(
        &self,
        build: impl Fn(RequestHead) -> CatalogRequest,
    ) -> Result<CatalogReply, Error> {
        let number = self.0.session.number().await?;
        let build = |head| Request::Catalog(build(head));
        match self.change(&number, (None, None), |head, _| build(head)).await? {
            Reply::Catalog(reply) => Ok(reply),
            Reply::Range(..) | Reply::Server => Err(unexpected()),
        }
    }

    /// An object, or a version of it. Its bytes are read with [`Service::content`].
    pub async fn look(
        &self,
        target: &Target,
        version: Option<VersionId>,
    ) -> Result<ObjectInfo, Error> {
        self.find(target, RangeRequest::Look { target: target.clone(), version }).await
    }

    /// As [`Service::look`], for a caller who reads the object then.
    pub async fn read(
        &self,
        target: &Target,
        version: Option<VersionId>,
    ) -> Result<ObjectInfo, Error> {
        self.find(target, RangeRequest::Read { target: target.clone(), version }).await
    }

    async fn find(&self, target: &Target, request: RangeRequest) -> Result<ObjectInfo, Error> {
        match self.ask_owner(target, request).await? {
            RangeReply::Object(info) => Ok(*info),
            _ => Err(unexpected()),
        }
    }

    /// Removes an object, or hides it behind a delete marker of `by` where versions are kept; none is no
    /// error.
    pub async fn delete(
        &self,
        target: Target,
        by: UserId,
        conditions: Conditions,
    ) -> Result<Committed, Error> {
        let (number, nonce) = (self.0.session.number().await?, self.0.env.random_u64());
        let change = Change::Delete { target, nonce, by, conditions };
        Ok(self.change_object(&number, &change).await?.committed)
    }

    /// Removes a version; none is no error. One that is retained under governance too with `bypass`.
    pub async fn delete_version(
        &self,
        target: Target,
        version: VersionId,
        conditions: Conditions,
        bypass: bool,
    ) -> Result<Committed, Error> {
        let number = self.0.session.number().await?;
        let change = Change::DeleteVersion { target, version, conditions, bypass };
        Ok(self.change_object(&number, &change).await?.committed)
    }

    /// Gives an object, or a version of it, other tags; which version it is.
    pub async fn set_tags(
        &self,
        target: Target,
        version: Option<VersionId>,
        tags: ObjectTags,
    ) -> Result<Committed, Error> {
        let number = self.0.session.number().await?;
        let change = Change::SetTags { target, version, tags };
        Ok(self.change_object(&number, &change).await?.committed)
    }

    /// Gives an object, or a version of it, other permissions; which version it is.
    pub async fn set_acl(
        &self,
        target: Target,
        version: Option<VersionId>,
        acl: Vec<Grant>,
    ) -> Result<Committed, Error> {
        let number = self.0.session.number().await?;
        let change = Change::SetAcl { target, version, acl };
        Ok(self.change_object(&number, &change).await?.committed)
    }

    /// Changes what keeps an object, or a version of it, from being removed; which version it is. A retention
    /// under governance is weakened only with `bypass`.
    pub async fn set_lock(
        &self,
        target: Target,
        version: Option<VersionId>,
        change: LockChange,
        bypass: bool,
    ) -> Result<Committed, Error> {
        let number = self.0.session.number().await?;
        let change = Change::SetLock { target, version, change, bypass };
        Ok(self.change_object(&number, &change).await?.committed)
    }

    /// Begins a multipart upload.
    pub async fn begin_upload(&self, target: Target, upload: NewUpload) -> Result<UploadId, Error> {
        let (number, nonce) = (self.0.session.number().await?, upload.nonce);
        let change = Change::BeginUpload { target, upload: Box::new(upload) };
        let stamp = self.change_object(&number, &change).await?.committed.stamp;
        Ok(UploadId { stamp, nonce })
    }

    /// An upload that is under way, or was completed in the last days.
    pub async fn upload(&self, target: Target, upload: UploadId) -> Result<UploadInfo, Error> {
        let ask = RangeRequest::Upload { target: target.clone(), upload };
        match self.ask_owner(&target, ask).await? {
            RangeReply::Upload(info) => Ok(*info),
            _ => Err(unexpected()),
        }
    }

    /// Parts of an upload that is under way.
    pub async fn parts(&self, ask: PartsRequest) -> Result<PartsPage, Error> {
        match self.ask_owner(&ask.target.clone(), RangeRequest::Parts(ask)).await? {
            RangeReply::Parts(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    /// Bodies of an object's parts.
    pub async fn part_bodies(
        &self,
        ask: PartsRequest,
    ) -> Result<Vec<(PartNumber, ObjectInfo)>, Error> {
        match self.ask_owner(&ask.target.clone(), RangeRequest::PartBodies(ask)).await? {
            RangeReply::PartBodies(bodies) => Ok(bodies),
            _ => Err(unexpected()),
        }
    }

    /// Makes an object of an upload's parts, if the conditions hold.
    pub async fn complete_upload(
        &self,
        target: Target,
        completion: Completion,
        conditions: Conditions,
    ) -> Result<Committed, Error> {
        let number = self.0.session.number().await?;
        let completion = Box::new(completion);
        let change = Change::CompleteUpload { target, completion, conditions };
        Ok(self.change_object(&number, &change).await?.committed)
    }

    /// Ends an upload without an object.
    pub async fn abort_upload(&self, target: Target, upload: UploadId) -> Result<(), Error> {
        let number = self.0.session.number().await?;
        self.change_object(&number, &Change::AbortUpload { target, upload }).await.map(drop)
    }

    /// Begins an object.
    pub async fn put(&self, target: Target) -> Result<BodyUpload, Error> {
        self.put_planned(target, BodyPlan::default()).await
    }

    /// Begins an object of which something is known.
    pub async fn put_planned(&self, target: Target, plan: BodyPlan) -> Result<BodyUpload, Error> {
        self.begin_body(target, None, plan).await
    }

    /// Begins a part of an upload, in place of the one of that number. Conditions do not concern it.
    pub async fn put_part(
        &self,
        target: Target,
        (upload, number): (UploadId, PartNumber),
        plan: BodyPlan,
    ) -> Result<BodyUpload, Error> {
        self.begin_body(target, Some((upload, number)), plan).await
    }

    /// [`Error::Full`] when a body found no room just now.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        match self.0.fullness.is_known(self.0.env.now()) {
            true => Err(Error::Full),
            false => Ok(()),
        }
    }

    async fn begin_body(
        &self,
        target: Target,
        part: Option<(UploadId, PartNumber)>,
        plan: BodyPlan,
    ) -> Result<BodyUpload, Error> {
        let range = self.map().await?.of(&target);
        let stay = self.0.session.stay().await?;
        let env = &self.0.env;
        let data_id = u128::from(env.random_u64()) << 64 | u128::from(env.random_u64());
        let body = Body { data_id: DataId::new(data_id), target };
        let upload = BodyUpload {
            service: self.clone(),
            range,
            stay,
            body,
            part,
            plan,
            size: 0,
            first: Vec::new(),
            writer: None,
            failed: false,
        };
        Ok(upload)
    }

    /// An object and its content, as they are at one time.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] when the object's file is gone.
    pub async fn open(
        &self,
        target: &Target,
        version: Option<VersionId>,
    ) -> Result<(ObjectInfo, BodyContent), Error> {
        let mut info = self.read(target, version).await?;
        loop {
            let before = self.map().await?.of(target);
            let gone = match self.content(target, &info).await {
                Ok(content) => return Ok((info, content)),
                Err(Error::NoSuchKey) => info,
                Err(error) => return Err(error),
            };
            info = self.read(target, version).await?;
            let is_moved = self.map().await?.of(target) != before;
            let is_same =
                info.object.data == gone.object.data && info.object.data_id == gone.object.data_id;
            // Collection may have moved it, or its range was split.
            if is_same && !is_moved {
                let what = format!("the file of {target} is not there");
                tracing::error!(what, "an object is damaged");
                return Err(Error::Damaged { what });
            }
        }
    }

    /// The content of an object that was found. [`Error::NoSuchKey`] when its file is gone: the object was
    /// replaced or deleted long ago, or is damaged.
    pub async fn content(&self, target: &Target, info: &ObjectInfo) -> Result<BodyContent, Error> {
        let source = match &info.object.data {
            ObjectData::Parts(map) => {
                Bytes::Parts(PartsReader::new(Rc::new(self.clone()), target, map).await?)
            }
            _ => Bytes::Whole(self.whole(target, &info.object).await?),
        };
        Ok(BodyContent { source })
    }

    /// The bytes of an object without parts, or of a part.
    async fn whole(&self, target: &Target, object: &NewObject) -> Result<Whole, Error> {
        Ok(match &object.data {
            ObjectData::Inline(bytes) => Whole::Here(bytes.clone()),
            ObjectData::Piece(piece) => {
                let body = Body { data_id: object.data_id, target: target.clone() };
                if !body.is_whole(piece) {
                    let what = format!("the owner's data of {target}");
                    return Err(Error::Damaged { what });
                }
                Whole::Here(piece[body.head_len()..].to_vec())
            }
            ObjectData::Logged { file, offset } | ObjectData::File { file, offset } => {
                let source = self.source(self.map().await?.of(target), file).await?;
                Whole::File(self.reader((file, *offset), target, object, source))
            }
            ObjectData::Parts(_) => {
                return Err(Error::Damaged { what: format!("a part of {target} has parts") });
            }
        })
    }

    fn reader(
        &self,
        place: (&FileName, u64),
        target: &Target,
        object: &NewObject,
        source: Rc<dyn Source>,
    ) -> BodyReader {
        let body = Body { data_id: object.data_id, target: target.clone() };
        BodyReader::new(source, place, (body, object.size), self.0.options.bugs)
    }

    /// A log of a range or a file of bodies, opened: many objects are in each.
    async fn source(&self, range: RangeId, file: &FileName) -> Result<Rc<dyn Source>, Error> {
        let key = (range, file.clone());
        let of = |files: &[Opened]| files.iter().position(|(known, _)| *known == key);
        {
            let files = &mut *self.0.opened.borrow_mut();
            if let Some(at) = of(files) {
                let known = files.remove(at);
                files.push(known.clone());
                return Ok(known.1);
            }
        }
        let source = bodies::open(&*self.store(range).await?, file).await?;
        let files = &mut *self.0.opened.borrow_mut();
        if of(files).is_none() {
            if files.len() >= OPENED_MAX {
                files.remove(0);
            }
            files.push((key, source.clone()));
        }
        Ok(source)
    }
}

impl PartBodies for Service {
    fn ask(&self, ask: PartsRequest) -> LocalBoxFuture<'_, Result<Bodies, Error>> {
        Box::pin(self.part_bodies(ask))
    }

    fn open<'a>(
        &'a self,
        target: &'a Target,
        part: &'a NewObject,
    ) -> LocalBoxFuture<'a, Result<Whole, Error>> {
        Box::pin(self.whole(target, part))
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({:?})", self.0.session)
    }
}

pub(crate) fn unexpected() -> Error {
    Error::Invalid { message: "the owner answered something else".to_owned() }
}

/// An object that is being sent. Dropped before it is committed, it leaves nothing but bytes that are given back.
pub struct BodyUpload {
    service: Service,
    stay: Stay,
    /// The range of its key.
    range: RangeId,
    body: Body,
    /// It is sent as a part.
    part: Option<(UploadId, PartNumber)>,
    plan: BodyPlan,
    size: u64,
    /// All of it, while it is small.
    first: Vec<u8>,
    /// The file that it is in, once it is not.
    writer: Option<(Rc<SentFile>, BodyWriter)>,
    /// A write has failed, or was broken off: the body has a hole.
    failed: bool,
}

impl BodyUpload {
    /// Takes the next bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.check_whole()?;
        self.failed = true;
        let taken = self.take(bytes).await;
        self.note_room(&taken);
        taken?;
        self.failed = false;
        Ok(())
    }

    fn check_whole(&self) -> Result<(), Error> {
        match self.failed {
            false => Ok(()),
            true => Err(Error::Busy { cause: "a part of the body was not written".to_owned() }),
        }
    }

    async fn take(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.size += bytes.len() as u64;
        let options = &self.service.0.options;
        let small_max = match self.part {
            // The last part at most is small: it is not in a log.
            Some(_) => INLINE_MAX,
            None => options.small_max.clamp(INLINE_MAX, SMALL_MAX),
        };
        if let Some((_, writer)) = &mut self.writer {
            return writer.write(bytes).await;
        }
        if self.size <= small_max as u64 {
            self.first.extend_from_slice(bytes);
            return Ok(());
        }
        let own = self.plan.len.is_some_and(|len| len >= options.packs.own);
        let how = (self.plan.storage, own);
        let open = self.service.take_pack(&self.stay, self.range, how).await?;
        let mut writer = BodyWriter::new(open.pack, self.body.clone(), options.bugs);
        writer.write(&std::mem::take(&mut self.first)).await?;
        writer.write(bytes).await?;
        self.writer = Some((open.file, writer));
        Ok(())
    }

    /// Puts the object in its place, if the conditions hold; returns when it was committed.
    pub async fn commit(
        mut self,
        facts: ObjectFacts,
        conditions: Conditions,
    ) -> Result<Committed, Error> {
        self.check_whole()?;
        // Kept until the change is decided.
        let mut sent = None;
        let data = match self.writer.take() {
            None if self.first.len() <= INLINE_MAX => {
                ObjectData::Inline(std::mem::take(&mut self.first))
            }
            None => {
                let first = std::mem::take(&mut self.first);
                ObjectData::Piece(self.body.piece(0, &first))
            }
            Some((file, writer)) => {
                let offset = writer.place();
                if let Some(pack) = writer.finish(&self.service.0.env, self.size).await? {
                    self.service.give_back(OpenPack { file: file.clone(), pack }, self.size);
                }
                file.announced().await;
                let data = ObjectData::File { file: file.name.clone(), offset };
                sent = Some(file);
                data
            }
        };
        let object =
            Box::new(NewObject { data_id: self.body.data_id, size: self.size, facts, data });
        let target = self.body.target.clone();
        let change = match self.part {
            None => Change::Put { target, object, conditions },
            Some((upload, number)) => Change::PutPart { target, upload, number, part: object },
        };
        let number = self.stay.number();
        let outcome = self.service.change_object(&number, &change).await;
        drop(sent);
        self.note_room(&outcome);
        Ok(outcome?.committed)
    }

    /// Whether there was room for what was sent.
    fn note_room<T>(&self, outcome: &Result<T, Error>) {
        let fullness = &self.service.0.fullness;
        match outcome {
            Err(Error::Full) => fullness.note_full(self.service.0.env.now()),
            Ok(_) if self.size > 0 => fullness.note_room(),
            _ => {}
        }
    }
}

impl Drop for BodyUpload {
    fn drop(&mut self) {
        if self.service.0.options.bugs.has(Planted::HalfBody)
            && let Some((file, writer)) = self.writer.take()
        {
            self.service.give_back(OpenPack { file, pack: writer.into_pack() }, 0);
        }
    }
}

impl fmt::Debug for BodyUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BodyUpload({}, {} bytes)", self.body.target, self.size)
    }
}
