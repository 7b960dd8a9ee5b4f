//! [`ServiceHandle`]: a service that any thread may use, as gateways' HTTP does.
//!
//! Work crosses to the service's thread as a closure; a large object that is being sent stays there, behind
//! a queue. A small one crosses once in each direction: each crossing wakes a thread.

use std::fmt;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use object_proto::limits::SMALL_MAX;
use object_proto::{
    AccessKey, Answer, Backend, BodyPlan, Bucket, BucketName, BucketSettings, BucketView,
    Committed, Completion, Conditions, Content, Error, Found, Grant, ListPage, ListRequest,
    LockChange, NewUpload, ObjectFacts, ObjectInfo, ObjectTags, PartNumber, PartsPage,
    PartsRequest, Setting, Target, Upload, UploadId, UploadInfo, UploadsPage, UploadsRequest, User,
    UserId, VersionId, Versioning, VersionsPage, VersionsRequest, current_trace,
};
use runtime::sync::{mpsc, oneshot};
use runtime::{Class, Env, real_now};

use crate::content::BodyContent;
use crate::fullness::Fullness;
use crate::kept::Kept;
use crate::service::{BodyUpload, Service};
use crate::traced::as_operation;

/// Requests that wait for the service's thread at most; more are refused by the gateway's bound on
/// connections before.
const QUEUE: usize = 1024;
/// Writes of one object that wait: each is acknowledged before the next but one is sent.
const UPLOAD_QUEUE: usize = 2;
/// Reads of one object that wait: the one that is sent to its client, and some ahead.
const READ_QUEUE: usize = 8;

/// Bytes of an object that are read with its facts, without a claim on the gateway's memory, at most:
/// 32 MiB for 2,000 connections.
const WHOLE_READ_MAX: u64 = 16 << 10;

type Work = Box<dyn FnOnce(Service) -> LocalBoxFuture<'static, ()> + Send>;

/// A service that any thread may use. Clones share it.
#[derive(Clone)]
pub struct ServiceHandle {
    work: mpsc::Sender<Work>,
    /// What the service keeps: no need to ask its thread.
    kept: Option<Arc<Kept>>,
    fullness: Option<Arc<Fullness>>,
}

/// The service's thread is gone.
fn stopped() -> Error {
    Error::Busy { cause: "the gateway is being stopped".to_owned() }
}

impl ServiceHandle {
    /// A handle to a service, for other threads. The service lives while handles do.
    pub fn new(service: &Service) -> ServiceHandle {
        let (work, mut queue) = mpsc::channel::<Work>(QUEUE);
        let (asked, env) = (service.clone(), service.env().clone());
        env.clone().spawn(Class::Foreground, "object: requests", async move {
            while let Some(work) = queue.recv().await {
                env.spawn(Class::Foreground, "object: request", work(asked.clone()));
            }
        });
        // Only a real host's clock is every thread's.
        let is_real = !service.env().is_simulated();
        let kept = service.kept().filter(|_| is_real).cloned();
        let fullness = is_real.then(|| service.0.fullness.clone());
        ServiceHandle { work, kept, fullness }
    }

    /// Runs a change on the service's thread: once it is sent, only its answer says what came of it.
    fn change<T, F>(&self, work: impl FnOnce(Service) -> F + Send + 'static) -> Answer<'static, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let change = self.run(work);
        Box::pin(async move {
            change.await.map_err(|error| match error == stopped() {
                true => Error::Unknown { cause: error.to_string() },
                false => error,
            })
        })
    }

    /// Runs work on the service's thread.
    fn run<T, F>(&self, work: impl FnOnce(Service) -> F + Send + 'static) -> Answer<'static, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let trace = current_trace();
        let work: Work = Box::new(move |service| {
            Box::pin(async move {
                let env = service.env().clone();
                let worked = match trace {
                    None => work(service).await,
                    Some(trace) => {
                        as_operation(&env, (trace, "s3 request", None), work(service)).await
                    }
                };
                let _ = done.send(worked); // The caller may have gone.
            })
        });
        let queue = self.work.clone();
        Box::pin(async move {
            queue.send(work).await.map_err(|_| stopped())?;
            outcome.await.map_err(|_| stopped())?
        })
    }
}

impl fmt::Debug for ServiceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceHandle")
    }
}

impl Backend for ServiceHandle {
    fn access_key<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Arc<AccessKey>>> {
        let found = self.kept.as_ref().and_then(|kept| kept.key(id, real_now()));
        if let Some(found) = found.filter(|found| found.is_good) {
            return Box::pin(ready(Ok(Some(found.value))));
        }
        let id = id.to_owned();
        self.run(|service| async move { service.access_key(&id).await })
    }

    fn users(&self) -> Answer<'_, Vec<User>> {
        self.run(|service| async move { service.users().await })
    }

    fn create_bucket(
        &self,
        name: BucketName,
        owner: UserId,
        settings: BucketSettings,
    ) -> Answer<'_, Bucket> {
        self.change(|service| async move { service.create_bucket(name, owner, settings).await })
    }

    fn use_key(&self, key: String) -> Answer<'_, ()> {
        self.change(|service| async move { service.use_key(key).await })
    }

    fn set_bucket(&self, name: BucketName, setting: Setting) -> Answer<'_, ()> {
        self.change(|service| async move { service.set_bucket(name, setting).await })
    }

    fn remove_bucket(&self, name: BucketName) -> Answer<'_, ()> {
        self.change(|service| async move { service.remove_bucket(name).await })
    }

    fn bucket(&self, name: BucketName) -> Answer<'_, Arc<BucketView>> {
        let found = self.kept.as_ref().and_then(|kept| kept.bucket(&name, real_now()));
        if let Some(found) = found.filter(|found| found.is_good) {
            return Box::pin(ready(Ok(found.value)));
        }
        self.run(|service| async move { service.bucket(name).await })
    }

    fn buckets(&self, of: Option<UserId>) -> Answer<'_, Vec<Bucket>> {
        self.run(|service| async move { service.buckets(of).await })
    }

    fn put(&self, target: Target, plan: BodyPlan) -> Answer<'_, Box<dyn Upload>> {
        if self.fullness.as_ref().is_some_and(|it| it.is_known(real_now())) {
            return Box::pin(ready(Err(Error::Full)));
        }
        if plan.len.is_some_and(|len| len <= SMALL_MAX as u64) {
            let whole = WholeUpload { handle: self.clone(), target, bytes: Some(Vec::new()) };
            return Box::pin(ready(Ok(Box::new(whole) as Box<dyn Upload>)));
        }
        self.run(move |service| async move {
            service.check_room()?;
            let upload = service.put_planned(target, plan).await?;
            Ok(remote(&service, upload))
        })
    }

    fn begin_upload(&self, target: Target, upload: NewUpload) -> Answer<'_, UploadId> {
        self.change(|service| async move { service.begin_upload(target, upload).await })
    }

    fn upload(&self, target: Target, upload: UploadId) -> Answer<'_, UploadInfo> {
        self.run(move |service| async move { service.upload(target, upload).await })
    }

    fn put_part(
        &self,
        target: Target,
        upload: UploadId,
        number: PartNumber,
        plan: BodyPlan,
    ) -> Answer<'_, Box<dyn Upload>> {
        self.run(move |service| async move {
            service.check_room()?;
            let part = service.put_part(target, (upload, number), plan).await?;
            Ok(remote(&service, part))
        })
    }

    fn parts(&self, ask: PartsRequest) -> Answer<'_, PartsPage> {
        self.run(|service| async move { service.parts(ask).await })
    }

    fn object_parts(&self, mut ask: PartsRequest) -> Answer<'_, Vec<(PartNumber, ObjectInfo)>> {
        self.run(|service| async move {
            let mut all: Vec<(PartNumber, ObjectInfo)> = Vec::new();
            // An owner answers some at once.
            while ask.limit > 0 {
                let some = service.part_bodies(ask.clone()).await?;
                let Some((last, _)) = some.last() else { break };
                ask.after = last.get();
                ask.limit = ask.limit.saturating_sub(some.len() as u32);
                all.extend(some);
            }
            Ok(all)
        })
    }

    fn complete_upload(
        &self,
        target: Target,
        completion: Completion,
        conditions: Conditions,
    ) -> Answer<'_, Committed> {
        self.change(|service| async move {
            service.complete_upload(target, completion, conditions).await
        })
    }

    fn abort_upload(&self, target: Target, upload: UploadId) -> Answer<'_, ()> {
        self.change(move |service| async move { service.abort_upload(target, upload).await })
    }

    fn uploads(&self, ask: UploadsRequest) -> Answer<'_, UploadsPage> {
        self.run(|service| async move { service.uploads(ask).await })
    }

    fn head(&self, target: Target, version: Option<VersionId>) -> Answer<'_, ObjectInfo> {
        self.run(move |service| async move { service.look(&target, version).await })
    }

    fn get(&self, target: Target, version: Option<VersionId>) -> Answer<'_, Found> {
        self.run(move |service| async move {
            let (info, content) = service.open(&target, version).await?;
            if info.object.size <= WHOLE_READ_MAX
                // A reader asks again, and sees the error then.
                && let Ok(bytes) = content.read(0, info.object.size as usize).await
            {
                return Ok(Found { info, content: Box::new(WholeContent { bytes }) });
            }
            let (reads, queue) = mpsc::channel(READ_QUEUE);
            let env = service.env().clone();
            env.clone().spawn(Class::Foreground, "object: content", serve(env, content, queue));
            Ok(Found { info, content: Box::new(RemoteContent { reads }) })
        })
    }

    fn delete(&self, target: Target, by: UserId, conditions: Conditions) -> Answer<'_, Committed> {
        self.change(|service| async move { service.delete(target, by, conditions).await })
    }

    fn delete_version(
        &self,
        target: Target,
        version: VersionId,
        conditions: Conditions,
        bypass: bool,
    ) -> Answer<'_, Committed> {
        self.change(move |service| async move {
            service.delete_version(target, version, conditions, bypass).await
        })
    }

    fn set_tags(
        &self,
        target: Target,
        version: Option<VersionId>,
        tags: ObjectTags,
    ) -> Answer<'_, Committed> {
        self.change(move |service| async move { service.set_tags(target, version, tags).await })
    }

    fn set_acl(
        &self,
        target: Target,
        version: Option<VersionId>,
        acl: Vec<Grant>,
    ) -> Answer<'_, Committed> {
        self.change(move |service| async move { service.set_acl(target, version, acl).await })
    }

    fn set_lock(
        &self,
        target: Target,
        version: Option<VersionId>,
        change: LockChange,
        bypass: bool,
    ) -> Answer<'_, Committed> {
        self.change(move |service| async move {
            service.set_lock(target, version, change, bypass).await
        })
    }

    fn versions(&self, ask: VersionsRequest) -> Answer<'_, VersionsPage> {
        self.run(|service| async move { service.versions(ask).await })
    }

    fn set_versioning(&self, name: BucketName, versioning: Versioning) -> Answer<'_, ()> {
        self.change(move |service| async move { service.set_versioning(name, versioning).await })
    }

    fn list(&self, ask: ListRequest) -> Answer<'_, ListPage> {
        self.run(|service| async move { service.list(ask).await })
    }
}

/// An object that is being sent, for any thread.
fn remote(service: &Service, upload: BodyUpload) -> Box<dyn Upload> {
    let (steps, queue) = mpsc::channel(UPLOAD_QUEUE);
    service.env().spawn(Class::Foreground, "object: upload", receive(upload, queue));
    Box::new(RemoteUpload { steps, written: None })
}

/// A small object that is being sent: it crosses to the service's thread once, with its commit.
struct WholeUpload {
    handle: ServiceHandle,
    target: Target,
    /// None once it was more than a small object has.
    bytes: Option<Vec<u8>>,
}

/// More bytes came than were announced.
fn too_long() -> Error {
    Error::Invalid { message: format!("a body of {SMALL_MAX} bytes at most has more") }
}

impl Upload for WholeUpload {
    fn write(&mut self, bytes: Vec<u8>) -> Answer<'_, ()> {
        let before = self.bytes.take();
        self.bytes = before.filter(|all| all.len() + bytes.len() <= SMALL_MAX).map(|mut all| {
            match all.is_empty() {
                true => bytes,
                false => {
                    all.extend_from_slice(&bytes);
                    all
                }
            }
        });
        let taken = self.bytes.is_some().then_some(()).ok_or_else(too_long);
        Box::pin(ready(taken))
    }

    fn commit(
        self: Box<Self>,
        facts: ObjectFacts,
        conditions: Conditions,
    ) -> Answer<'static, Committed> {
        let WholeUpload { handle, target, bytes } = *self;
        let Some(bytes) = bytes else { return Box::pin(ready(Err(too_long()))) };
        handle.change(move |service| async move {
            let mut upload = service.put(target).await?;
            upload.write(&bytes).await?;
            upload.commit(facts, conditions).await
        })
    }
}

/// A step of an object that is being sent.
enum Step {
    Write(Vec<u8>, oneshot::Sender<Result<(), Error>>),
    Commit(Box<(ObjectFacts, Conditions)>, oneshot::Sender<Result<Committed, Error>>),
}

/// Takes an object's steps until it is committed, or its sender has gone.
async fn receive(mut upload: BodyUpload, mut steps: mpsc::Receiver<Step>) {
    while let Some(step) = steps.recv().await {
        match step {
            Step::Write(bytes, done) => {
                let _ = done.send(upload.write(&bytes).await); // The sender may have gone.
            }
            Step::Commit(how, done) => {
                let _ = done.send(upload.commit(how.0, how.1).await); // As above.
                return;
            }
        }
    }
}

struct RemoteUpload {
    steps: mpsc::Sender<Step>,
    /// The last write, which is taken while the next bytes come.
    written: Option<oneshot::Receiver<Result<(), Error>>>,
}

/// The outcome of a step.
async fn outcome<T>(step: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    step.await.map_err(|_| Error::Unknown { cause: stopped().to_string() })?
}

impl Upload for RemoteUpload {
    fn write(&mut self, bytes: Vec<u8>) -> Answer<'_, ()> {
        Box::pin(async move {
            if let Some(written) = self.written.take() {
                outcome(written).await?;
            }
            let (done, written) = oneshot::channel();
            self.steps.send(Step::Write(bytes, done)).await.map_err(|_| stopped())?;
            self.written = Some(written);
            Ok(())
        })
    }

    fn commit(
        self: Box<Self>,
        facts: ObjectFacts,
        conditions: Conditions,
    ) -> Answer<'static, Committed> {
        let how = Box::new((facts, conditions));
        Box::pin(async move {
            let RemoteUpload { steps, written } = *self;
            if let Some(written) = written {
                outcome(written).await?;
            }
            let (done, committed) = oneshot::channel();
            steps.send(Step::Commit(how, done)).await.map_err(|_| stopped())?;
            outcome(committed).await
        })
    }
}

/// Content of a small object, which came with its facts.
struct WholeContent {
    bytes: Vec<u8>,
}

impl Content for WholeContent {
    fn read(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let end = start.saturating_add(len).min(self.bytes.len());
        Box::pin(ready(Ok(self.bytes[start..end].to_vec())))
    }
}

/// A read of an object's content.
struct Read {
    offset: u64,
    len: usize,
    done: oneshot::Sender<Result<Vec<u8>, Error>>,
}

/// Serves reads of an object's content until its reader has gone.
async fn serve(env: Env, content: BodyContent, mut reads: mpsc::Receiver<Read>) {
    let content = Rc::new(content);
    while let Some(Read { offset, len, done }) = reads.recv().await {
        let content = content.clone();
        env.spawn(Class::Foreground, "object: read", async move {
            let _ = done.send(content.read(offset, len).await); // The reader may have gone.
        });
    }
}

struct RemoteContent {
    reads: mpsc::Sender<Read>,
}

impl Content for RemoteContent {
    fn read(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        let reads = self.reads.clone();
        Box::pin(async move {
            let (done, outcome) = oneshot::channel();
            reads.send(Read { offset, len, done }).await.map_err(|_| stopped())?;
            outcome.await.map_err(|_| stopped())?
        })
    }
}

const _: fn() = || {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<ServiceHandle>();
};
