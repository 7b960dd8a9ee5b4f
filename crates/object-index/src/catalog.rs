//! [`Catalog`]: buckets, users, access keys and sessions, in a table of the object manager's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use object_proto::limits::BUCKETS_PER_USER_MAX;
use object_proto::{
    AccessKey, Bucket, BucketId, BucketName, CatalogReply, CatalogRequest, Error, Identity,
    RequestHead, SessionId, Stamp, UserId, Versioning,
};
use runtime::{Class, Env};

use crate::decisions::{Decisions, damaged};
use crate::ground::Lease;
use crate::keys::{
    ACCESS_KEY, BUCKET, REPLY, SESSION, USER, number_key, read_number_key, read_text_key,
    reply_key, text_key,
};
use crate::limits::COLLECT_ROWS;
use crate::once::{Came, Once};
use crate::planted::Planted;
use crate::range::Range;
use crate::row::{
    BucketRow, KeyRow, decode_session, decode_user, encode_session, encode_stamp, encode_user,
};

/// The catalog that this process owns.
pub(crate) struct Catalog {
    env: Env,
    decisions: Rc<Decisions>,
    range: Rc<Range>,
    lease: Rc<dyn Lease>,
    epoch: u64,
    once: Once<CatalogReply>,
    /// Buckets of each user, with those that are submitted.
    owned: RefCell<BTreeMap<UserId, usize>>,
}

/// What the catalog's rows say about the range's work.
pub(crate) struct CatalogRows {
    pub(crate) buckets: Vec<Bucket>,
    /// Sessions, true when closed.
    pub(crate) sessions: Vec<(SessionId, bool)>,
}

impl CatalogRows {
    /// Reads them.
    pub(crate) async fn read(decisions: &Decisions) -> Result<CatalogRows, Error> {
        let buckets = buckets_of(decisions).await?;
        let mut sessions = Vec::new();
        for (key, value) in decisions.all(&[SESSION]).await? {
            let id = read_number_key(&key).map(SessionId::new);
            let session = id.zip(decode_session(&value));
            sessions.push(session.ok_or_else(|| damaged("a session's row"))?);
        }
        Ok(CatalogRows { buckets, sessions })
    }
}

async fn buckets_of(decisions: &Decisions) -> Result<Vec<Bucket>, Error> {
    let mut buckets = Vec::new();
    for (key, value) in decisions.all(&[BUCKET]).await? {
        let row = read_text_key(&key).and_then(|name| BucketRow::decode(name, &value));
        buckets.push(row.ok_or_else(|| damaged("a bucket's row"))?.bucket);
    }
    Ok(buckets)
}

impl Catalog {
    /// The catalog of a table that was just opened.
    pub(crate) fn new(
        env: &Env,
        decisions: Rc<Decisions>,
        range: Rc<Range>,
        (lease, epoch): (Rc<dyn Lease>, u64),
        rows: &CatalogRows,
    ) -> Rc<Catalog> {
        let mut owned: BTreeMap<UserId, usize> = BTreeMap::new();
        for bucket in &rows.buckets {
            *owned.entry(bucket.owner.clone()).or_default() += 1;
        }
        Rc::new(Catalog {
            env: env.clone(),
            decisions,
            range,
            lease,
            epoch,
            once: Once::default(),
            owned: RefCell::new(owned),
        })
    }

    /// Answers a request.
    pub(crate) async fn handle(
        self: &Rc<Self>,
        request: CatalogRequest,
    ) -> Result<CatalogReply, Error> {
        let reply = match request {
            CatalogRequest::CreateBucket { head, .. }
            | CatalogRequest::RemoveBucket { head, .. }
            | CatalogRequest::SetVersioning { head, .. }
            | CatalogRequest::CreateUser { head, .. } => {
                return self.change(head, request).await;
            }
            CatalogRequest::OpenSession => return self.open_session().await,
            CatalogRequest::Beat(session) => {
                self.range.sessions.heard(session).map(|()| CatalogReply::Done)
            }
            CatalogRequest::Route { session, sent_us } => {
                let sampled = self.range.sessions.sample(session, sent_us);
                sampled.map(|()| CatalogReply::Route(self.epoch))
            }
            CatalogRequest::Bucket(name) => self.bucket(&name).await.map(CatalogReply::Bucket),
            CatalogRequest::Buckets(of) => self.buckets(of).await.map(CatalogReply::Buckets),
            CatalogRequest::Key(id) => {
                self.key(&id).await.map(|key| CatalogReply::Key(key.map(Box::new)))
            }
        };
        self.check_lease()?;
        reply
    }

    fn check_lease(&self) -> Result<(), Error> {
        if self.lease.is_valid() { Ok(()) } else { Err(Error::Reroute) }
    }

    async fn bucket(&self, name: &BucketName) -> Result<Bucket, Error> {
        let row = self.decisions.durable(&text_key(BUCKET, name.as_str())).await?;
        let row = BucketRow::decode(name.as_str(), &row.ok_or(Error::NoSuchBucket)?);
        Ok(row.ok_or_else(|| damaged("a bucket's row"))?.bucket)
    }

    async fn buckets(&self, of: Option<UserId>) -> Result<Vec<Bucket>, Error> {
        let mut buckets = buckets_of(&self.decisions).await?;
        buckets.retain(|bucket| of.as_ref().is_none_or(|of| bucket.owner == *of));
        Ok(buckets)
    }

    async fn key(&self, id: &str) -> Result<Option<AccessKey>, Error> {
        let row = self.decisions.durable(&text_key(ACCESS_KEY, id)).await?;
        let Some(row) = row else { return Ok(None) };
        let row = KeyRow::decode(&row).ok_or_else(|| damaged("an access key's row"))?;
        let user = self.decisions.durable(&text_key(USER, row.user.as_str())).await?;
        let user = user.and_then(|user| decode_user(row.user.as_str(), &user));
        let user = user.ok_or_else(|| damaged("the row of an access key's user"))?;
        let KeyRow { wrapped_secret, enabled, .. } = row;
        Ok(Some(AccessKey { id: id.to_owned(), user, wrapped_secret, enabled }))
    }

    async fn open_session(&self) -> Result<CatalogReply, Error> {
        let id = SessionId::new(self.env.random_u64().max(1));
        let (_, basis) = self.decisions.submit(|batch, _| {
            batch.put(&number_key(SESSION, id.get()), &encode_session(false));
        })?;
        self.decisions.settled(basis).await?;
        self.range.sessions.open(id);
        Ok(CatalogReply::Session(id))
    }

    /// Closes a session for ever: it takes no change from now on, in this owner's time and later.
    pub(crate) async fn close_session(&self, id: SessionId) -> Result<(), Error> {
        self.range.sessions.close(id);
        let (_, basis) = self.decisions.submit(|batch, _| {
            batch.put(&number_key(SESSION, id.get()), &encode_session(true));
        })?;
        self.decisions.settled(basis).await?;
        self.range.sessions.closed_on_record(id);
        Ok(())
    }

    /// Forgets a closed session, of which nothing is left.
    pub(crate) async fn forget_session(&self, id: SessionId) -> Result<(), Error> {
        let replies = self.decisions.all(&number_key(REPLY, id.get())).await?;
        for some in replies.chunks(COLLECT_ROWS) {
            let (_, basis) = self.decisions.submit(|batch, _| {
                for (key, _) in some {
                    batch.delete(key);
                }
            })?;
            self.decisions.settled(basis).await?;
        }
        let (_, basis) = self.decisions.submit(|batch, _| {
            batch.delete(&number_key(SESSION, id.get()));
        })?;
        self.decisions.settled(basis).await?;
        self.once.forget_session(id);
        self.range.sessions.forget(id);
        Ok(())
    }

    /// Makes a change, once.
    async fn change(
        self: &Rc<Self>,
        head: RequestHead,
        request: CatalogRequest,
    ) -> Result<CatalogReply, Error> {
        if head.epoch != self.epoch {
            return Err(Error::Reroute);
        }
        if let Err(error) = self.range.sessions.admit(&head) {
            if error == Error::Reroute {
                self.once.refuse((head.session, head.number), head.attempt);
            }
            self.check_lease()?;
            return Err(error);
        }
        self.once.forget_below(head.session, self.range.sessions.floor(head.session));
        let id = (head.session, head.number);
        match self.once.come(id, head.attempt) {
            Came::Again(ticket) => ticket.outcome().await,
            Came::First(ticket) => {
                let (catalog, ended) = (self.clone(), ticket.clone());
                self.env.spawn(Class::Foreground, "object: catalog", async move {
                    let outcome = catalog.decide(&head, request).await;
                    catalog.once.end(&ended, outcome);
                });
                ticket.outcome().await
            }
        }
    }

    async fn decide(
        self: &Rc<Self>,
        head: &RequestHead,
        request: CatalogRequest,
    ) -> Result<CatalogReply, Error> {
        match request {
            CatalogRequest::CreateBucket { name, owner, .. } => {
                self.create_bucket(head, name, owner).await.map(CatalogReply::Bucket)
            }
            CatalogRequest::RemoveBucket { name, .. } => {
                self.remove_bucket(head, &name).await.map(|()| CatalogReply::Done)
            }
            CatalogRequest::SetVersioning { name, versioning, .. } => {
                let set = self.set_versioning(head, &name, versioning).await;
                set.map(|()| CatalogReply::Done)
            }
            CatalogRequest::CreateUser { identity, .. } => {
                self.create_user(head, &identity).await.map(|()| CatalogReply::Done)
            }
            _ => unreachable!("it is no change"),
        }
    }

    /// An error unless a change that came just now may be submitted.
    fn check_submit(&self, head: &RequestHead) -> Result<(), Error> {
        match self.range.sessions.may_submit(head, self.env.now()) {
            true => Ok(()),
            false => Err(Error::Busy { cause: "the time of the request is over".to_owned() }),
        }
    }

    async fn create_bucket(
        &self,
        head: &RequestHead,
        name: BucketName,
        owner: UserId,
    ) -> Result<Bucket, Error> {
        let key = text_key(BUCKET, name.as_str());
        let made_by = (head.session, head.number);
        // The bucket that this request has made may be gone again.
        let reply = reply_key(head.session, head.number);
        if let Some(value) = self.decisions.durable(&reply).await? {
            let row = BucketRow::decode(name.as_str(), &value);
            return Ok(row.ok_or_else(|| damaged("an answer"))?.bucket);
        }
        let held = self.decisions.lock(&key).await;
        let seen = self.decisions.read(&key).await?;
        let there = match &seen.value {
            Some(value) => {
                let row = BucketRow::decode(name.as_str(), value);
                Some(row.ok_or_else(|| damaged("a bucket's row"))?)
            }
            None => None,
        };
        let many = self.owned.borrow().get(&owner).copied().unwrap_or(0) >= BUCKETS_PER_USER_MAX;
        if there.is_some() || many {
            drop(held);
            // The count has what is submitted of other names.
            self.decisions.settled_for_refusal(self.decisions.last()).await?;
            self.check_lease()?;
            return match there {
                Some(row) if row.made_by == made_by => Ok(row.bucket),
                Some(row) => Err(Error::BucketExists { own: row.bucket.owner == owner }),
                None => Err(Error::TooManyBuckets),
            };
        }
        self.check_submit(head)?;
        let id = BucketId::new(self.env.random_u64().max(1));
        let versioning = Versioning::Off;
        let mut bucket = Bucket { id, name, owner: owner.clone(), created_us: 0, versioning };
        let (_, basis) = self.decisions.submit(|batch, stamp| {
            bucket.created_us = stamp.get();
            let row = BucketRow { bucket: bucket.clone(), made_by }.encode();
            batch.put(&key, &row);
            batch.put(&reply, &row);
        })?;
        *self.owned.borrow_mut().entry(owner).or_default() += 1;
        // Held until it is durable: a removal of it finds it open.
        self.decisions.settled(basis).await?;
        self.range.buckets.open(id, versioning);
        drop(held);
        Ok(bucket)
    }

    /// The row of a bucket whose name the caller holds.
    async fn held_bucket(&self, name: &BucketName) -> Result<BucketRow, Error> {
        let seen = self.decisions.read(&text_key(BUCKET, name.as_str())).await?;
        let Some(value) = &seen.value else {
            self.decisions.settled_for_refusal(seen.basis).await?;
            self.check_lease()?;
            return Err(Error::NoSuchBucket);
        };
        let row = BucketRow::decode(name.as_str(), value);
        row.ok_or_else(|| damaged("a bucket's row"))
    }

    /// Behind the answer the range keeps versions as the bucket says: before it may do either.
    async fn set_versioning(
        &self,
        head: &RequestHead,
        name: &BucketName,
        versioning: Versioning,
    ) -> Result<(), Error> {
        let reply = reply_key(head.session, head.number);
        if self.decisions.durable(&reply).await?.is_some() {
            return Ok(());
        }
        if versioning == Versioning::Off {
            let message = "versioning that was enabled can be suspended, not removed".to_owned();
            return Err(Error::Invalid { message });
        }
        let key = text_key(BUCKET, name.as_str());
        let _held = self.decisions.lock(&key).await;
        let mut row = self.held_bucket(name).await?;
        let id = row.bucket.id;
        self.range.buckets.check_change(id)?;
        row.bucket.versioning = versioning;
        self.check_submit(head)?;
        let (_, basis) = self.decisions.submit(|batch, stamp| {
            batch.put(&key, &row.encode());
            batch.put(&reply, &encode_stamp(stamp));
        })?;
        self.decisions.settled(basis).await?;
        if !self.range.has_bug(Planted::OldConfig) {
            self.range.buckets.open(id, versioning);
        }
        Ok(())
    }

    async fn remove_bucket(&self, head: &RequestHead, name: &BucketName) -> Result<(), Error> {
        let reply = reply_key(head.session, head.number);
        if self.decisions.durable(&reply).await?.is_some() {
            return Ok(());
        }
        let key = text_key(BUCKET, name.as_str());
        let held = self.decisions.lock(&key).await;
        let bucket = self.held_bucket(name).await?.bucket;
        // From here on the range takes no changes of it.
        if !self.range.buckets.close(bucket.id) {
            return Err(Error::Busy { cause: "the bucket is being removed".to_owned() });
        }
        let removed = self.remove_empty(head, &bucket, &key).await;
        match &removed {
            Ok(()) => {
                self.range.buckets.remove(bucket.id);
                self.range.forget_bucket(bucket.id);
                let range = self.range.clone();
                // What is not done here is found when the uploads have been under way for too long.
                self.env.spawn(Class::Background, "object: uploads of a bucket", async move {
                    if let Err(error) = range.abort_all(bucket.id).await {
                        tracing::debug!(%error, "the uploads of a bucket that is gone stay for now");
                    }
                });
                let owned = &mut *self.owned.borrow_mut();
                owned.entry(bucket.owner).and_modify(|count| *count -= 1);
            }
            // It may be gone: the range takes nothing for it until another owner knows.
            Err(Error::Unknown { .. }) => {}
            Err(_) => self.range.buckets.open(bucket.id, bucket.versioning),
        }
        drop(held);
        removed
    }

    /// Removes a bucket that takes no changes, if nothing is in it.
    async fn remove_empty(
        &self,
        head: &RequestHead,
        bucket: &Bucket,
        key: &[u8],
    ) -> Result<(), Error> {
        let range = &self.range.decisions;
        let empty = self.range.usage(bucket.id).is_empty();
        range.settled_for_refusal(range.last()).await?;
        if !empty {
            self.check_lease()?;
            return Err(Error::BucketNotEmpty);
        }
        self.check_submit(head)?;
        let (_, basis) = self.decisions.submit(|batch, stamp| {
            batch.delete(key);
            batch.put(&reply_key(head.session, head.number), &encode_stamp(stamp));
        })?;
        self.decisions.settled(basis).await
    }

    async fn create_user(&self, head: &RequestHead, identity: &Identity) -> Result<(), Error> {
        let made_by = (head.session, head.number);
        let user_key = text_key(USER, identity.user.id.as_str());
        let access_key = text_key(ACCESS_KEY, &identity.access_key);
        let held = self.decisions.lock(&access_key).await;
        let held_user = self.decisions.lock(&user_key).await;
        let seen = self.decisions.read(&access_key).await?;
        let user = self.decisions.read(&user_key).await?;
        if seen.value.is_some() {
            drop((held, held_user));
            self.decisions.settled_for_refusal(seen.basis).await?;
            self.check_lease()?;
            let row = seen.value.as_deref().and_then(KeyRow::decode);
            return match row.is_some_and(|row| row.made_by == made_by) {
                true => Ok(()),
                false => Err(Error::NameTaken),
            };
        }
        self.check_submit(head)?;
        let row = KeyRow {
            user: identity.user.id.clone(),
            wrapped_secret: identity.wrapped_secret.clone(),
            enabled: true,
            made_by,
        };
        let (_, basis) = self.decisions.submit(|batch, _: Stamp| {
            if user.value.is_none() {
                batch.put(&user_key, &encode_user(&identity.user));
            }
            batch.put(&access_key, &row.encode());
        })?;
        self.decisions.settled(basis).await
    }
}
