//! What a service asks the object manager: buckets, their settings, users and access keys, of which it keeps
//! those that requests need again and again.

use std::rc::{Rc, Weak};
use std::sync::Arc;

use object_proto::{
    AccessKey, Bucket, BucketName, BucketSettings, BucketView, CatalogReply, CatalogRequest, Error,
    KeptName, Reply, Request, Setting, User, UserChange, UserId, Versioning,
};
use runtime::{Class, Env};

use crate::answer_pages::{read_buckets, read_keys, read_users};
use crate::kept::Found;
use crate::limits::{PAUSE, SILENT_AFTER, SILENT_PAUSE, WATCH_ATTEMPT};
use crate::service::{Service, ServiceInner, unexpected};

impl Service {
    /// Makes a bucket.
    pub async fn create_bucket(
        &self,
        name: BucketName,
        owner: UserId,
        settings: BucketSettings,
    ) -> Result<Bucket, Error> {
        let build = |head| {
            let (name, owner) = (name.clone(), owner.clone());
            let settings = Box::new(settings.clone());
            CatalogRequest::CreateBucket { head, name, owner, settings }
        };
        match self.change_catalog(build).await? {
            CatalogReply::Made(bucket) => Ok(bucket),
            _ => Err(unexpected()),
        }
    }

    /// Removes a bucket that is empty.
    pub async fn remove_bucket(&self, name: BucketName) -> Result<(), Error> {
        let build = |head| CatalogRequest::RemoveBucket { head, name: name.clone() };
        self.change_catalog(build).await.map(drop)
    }

    /// Says what becomes of a bucket's objects that are replaced, from now on.
    pub async fn set_versioning(
        &self,
        name: BucketName,
        versioning: Versioning,
    ) -> Result<(), Error> {
        let build = |head| {
            let name = name.clone();
            CatalogRequest::SetVersioning { head, name, versioning }
        };
        self.change_catalog(build).await.map(drop)
    }

    /// Changes a setting of a bucket: no request that begins behind the answer goes by the former one,
    /// through any gateway that reaches a manager.
    pub async fn set_bucket(&self, name: BucketName, setting: Setting) -> Result<(), Error> {
        let build = |head| {
            let (name, setting) = (name.clone(), Box::new(setting.clone()));
            CatalogRequest::SetBucket { head, name, setting }
        };
        self.change_catalog(build).await.map(drop)
    }

    /// Changes users and access keys, likewise.
    pub async fn change_user(&self, change: UserChange) -> Result<(), Error> {
        let build = |head| CatalogRequest::ChangeUser { head, change: change.clone() };
        self.change_catalog(build).await.map(drop)
    }

    /// Says that a key of gateways' key files wraps something from now on.
    pub async fn use_key(&self, key: String) -> Result<(), Error> {
        self.catalog(CatalogRequest::UseKey(key)).await.map(drop)
    }

    /// Keys of gateways' key files that have wrapped something, in order of their names.
    pub async fn keys_in_use(&self) -> Result<Vec<String>, Error> {
        match self.catalog(CatalogRequest::KeysInUse).await? {
            CatalogReply::KeysInUse(keys) => Ok(keys),
            _ => Err(unexpected()),
        }
    }

    /// Buckets of a user, or of all, in order of names.
    pub async fn buckets(&self, of: Option<UserId>) -> Result<Vec<Bucket>, Error> {
        read_buckets(async |request| self.catalog(request).await, of).await
    }

    /// All users, without their policies, in order of names.
    pub async fn users(&self) -> Result<Vec<User>, Error> {
        read_users(async |request| self.catalog(request).await).await
    }

    /// A user; [`Error::NoSuchUser`] when there is none of that name.
    pub async fn user(&self, name: &str) -> Result<User, Error> {
        match self.catalog(CatalogRequest::User(name.to_owned())).await? {
            CatalogReply::User(user) => user.map(|user| *user).ok_or(Error::NoSuchUser),
            _ => Err(unexpected()),
        }
    }

    /// A user's access keys, without their secrets.
    pub async fn keys(&self, user: UserId) -> Result<Vec<AccessKey>, Error> {
        read_keys(async |request| self.catalog(request).await, user).await
    }

    /// A bucket.
    pub async fn bucket(&self, name: BucketName) -> Result<Arc<BucketView>, Error> {
        let now = self.env().now();
        let found = self.kept().and_then(|kept| kept.bucket(&name, now));
        let kept_name = KeptName::Bucket(name.clone());
        let ask = async {
            match self.catalog(CatalogRequest::Bucket(name)).await? {
                CatalogReply::Bucket { found, at } => {
                    let view: Arc<BucketView> = Arc::from(found);
                    if let Some(kept) = self.kept() {
                        kept.keep_bucket(Arc::clone(&view), (at, now));
                    }
                    Ok(view)
                }
                _ => Err(unexpected()),
            }
        };
        self.kept_or(found, ask).await.inspect_err(|error| {
            if let (Some(kept), Error::NoSuchBucket) = (self.kept(), error) {
                kept.forget(&kept_name);
            }
        })
    }

    /// An access key; `None` when there is none of that name.
    pub async fn access_key(&self, id: &str) -> Result<Option<Arc<AccessKey>>, Error> {
        let now = self.env().now();
        let found = self.kept().and_then(|kept| kept.key(id, now));
        let found = found.map(|found| {
            let Found { value, is_good, is_usable } = found;
            Found { value: Some(value), is_good, is_usable }
        });
        let ask = async {
            match self.catalog(CatalogRequest::Key(id.to_owned())).await? {
                CatalogReply::Key { found, at } => {
                    let key = found.map(Arc::from);
                    match (self.kept(), &key) {
                        (Some(kept), Some(key)) => kept.keep_key(Arc::clone(key), (at, now)),
                        (Some(kept), None) => kept.forget(&KeptName::Key(id.to_owned())),
                        (None, _) => {}
                    }
                    Ok(key)
                }
                _ => Err(unexpected()),
            }
        };
        self.kept_or(found, ask).await
    }

    /// Requests that went by what was kept, as no manager answered.
    pub fn silent_uses(&self) -> u64 {
        self.0.silent_uses.get()
    }

    /// What is kept while it is good, or while managers are silent; else what they answer.
    async fn kept_or<T>(
        &self,
        found: Option<Found<T>>,
        ask: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(found) = found else {
            self.watch();
            return ask.await;
        };
        if found.is_good {
            return Ok(found.value);
        }
        self.watch();
        let inner = &*self.0;
        if inner.env.now() >= inner.silent_until.get() {
            match inner.env.timeout(SILENT_AFTER, ask).await {
                Ok(Err(Error::Busy { .. } | Error::Unknown { .. })) | Err(_) => {
                    inner.silent_until.set(inner.env.now() + SILENT_PAUSE);
                }
                Ok(answer) => return answer,
            }
        }
        if !found.is_usable {
            let cause = "this gateway has reached no object manager for too long".to_owned();
            return Err(Error::Busy { cause });
        }
        inner.env.mark("object: what is kept is used, as managers are silent");
        inner.silent_uses.set(inner.silent_uses.get() + 1);
        Ok(found.value)
    }

    /// Asks for changes of what is kept, while it is used.
    fn watch(&self) {
        if self.kept().is_some() && !self.0.watching.replace(true) {
            let (inner, env) = (Rc::downgrade(&self.0), self.env().clone());
            let watcher = env.random_u64();
            env.clone().spawn(Class::Control, "object: watch", watch(inner, env, watcher));
        }
    }
}

async fn watch(service: Weak<ServiceInner>, env: Env, watcher: u64) {
    let mut pause = PAUSE.0;
    loop {
        let Some(inner) = service.upgrade() else { return };
        let Some(kept) = inner.kept.as_ref().filter(|kept| !kept.is_idle(env.now())) else {
            inner.watching.set(false);
            return;
        };
        let (sent, seen) = (env.now(), kept.seen());
        let ask = Request::Catalog(CatalogRequest::Watch { watcher, seen });
        match inner.owners.call(ask, WATCH_ATTEMPT).await {
            Ok(Reply::Catalog(CatalogReply::Changes(changes))) => {
                kept.take((seen, sent), changes);
                inner.silent_until.set(sent);
                pause = PAUSE.0;
            }
            _ => {
                drop(inner);
                env.sleep(env.jitter(pause)).await;
                pause = (2 * pause).min(PAUSE.1);
            }
        }
    }
}
