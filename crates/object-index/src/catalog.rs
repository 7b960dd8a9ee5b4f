//! [`Catalog`]: buckets, users, access keys, sessions and the map of ranges, in a table of the object
//! manager's.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use object_proto::limits::{BUCKETS_PER_USER_MAX, LIFECYCLE_MAX, SETTINGS_MAX};
use object_proto::{
    Bucket, BucketConfig, BucketId, BucketName, BucketSettings, BucketState, BucketView,
    CatalogReply, CatalogRequest, Error, KeptName, RangeId, RangeMap, RangePlace, RequestHead,
    SessionId, Setting, Stamp, User, UserId, Versioning,
};
use runtime::sync::Notify;
use runtime::{Class, Env};

use crate::answer_pages::{buckets_reply, map_reply};
use crate::decisions::{Decisions, damaged};
use crate::ground::{Files, Lease, Ranges};
use crate::keys::{
    BUCKET, RANGE, REPLY, SESSION, USER, number_key, read_number_key, read_text_key, reply_key,
    text_key,
};
use crate::limits::{COLLECT_ROWS, PAUSE, USAGE_INTERVAL};
use crate::once::{Came, Once};
use crate::orders::Orders;
use crate::paths::{SESSIONS_DIR, session_dir, session_of};
use crate::planted::{Bugs, Planted};
use crate::quotas::Quotas;
use crate::row::{BucketRow, decode_session, decode_user, encode_session, encode_stamp};
use crate::server_row::RangeRow;
use crate::sessions::Sessions;
use crate::splits::Splits;
use crate::watchers::Watchers;

/// The catalog that this process owns.
pub(crate) struct Catalog {
    pub(crate) env: Env,
    pub(crate) files: Rc<dyn Files>,
    pub(crate) decisions: Rc<Decisions>,
    sessions: Sessions,
    pub(crate) orders: Orders,
    pub(crate) splits: Splits,
    pub(crate) watchers: Watchers,
    pub(crate) quotas: Quotas,
    lease: Rc<dyn Lease>,
    epoch: u64,
    once: Once<CatalogReply>,
    /// Buckets of each user, with those that are submitted.
    owned: RefCell<BTreeMap<UserId, usize>>,
    /// Buckets that are not removed after all, which is not on record yet.
    staying: RefCell<BTreeSet<BucketName>>,
    /// Buckets with a change on record of which owners of their keys may not have heard.
    order_due: RefCell<BTreeSet<BucketName>>,
    some_due: Notify,
    /// Names of buckets that are there.
    names: RefCell<BTreeMap<BucketId, BucketName>>,
    pub(crate) bugs: Bugs,
}

/// What a manager stands on.
pub(crate) struct Ground {
    pub(crate) files: Rc<dyn Files>,
    pub(crate) ranges: Rc<dyn Ranges>,
    pub(crate) lease: Rc<dyn Lease>,
    pub(crate) epoch: u64,
    /// Ranges of a cluster whose catalog is empty.
    pub(crate) new_ranges: u32,
    pub(crate) bugs: Bugs,
}

fn check_settings(settings: &BucketSettings) -> Result<(), Error> {
    let period = settings.lock.and_then(|rule| rule.default).map(|(_, period)| period);
    if period.is_some_and(|period| !period.is_valid()) {
        let message = "objects are retained for a day to 100 years".to_owned();
        return Err(Error::Invalid { message });
    }
    let lifecycle = settings.lifecycle.as_ref();
    if lifecycle.is_some_and(|lifecycle| lifecycle.encoded_len() > LIFECYCLE_MAX) {
        let message = format!("rules of lifecycle have {LIFECYCLE_MAX} bytes at most");
        return Err(Error::Invalid { message });
    }
    match settings.encode().len() > SETTINGS_MAX {
        true => {
            let message = format!("a bucket's settings have {SETTINGS_MAX} bytes at most");
            Err(Error::Invalid { message })
        }
        false => Ok(()),
    }
}

/// All users.
pub(crate) async fn users_of(decisions: &Decisions) -> Result<Vec<User>, Error> {
    let mut users = Vec::new();
    for (key, value) in decisions.all(&[USER]).await? {
        let user = read_text_key(&key).and_then(|id| decode_user(id, &value));
        users.push(user.ok_or_else(|| damaged("a user's row"))?);
    }
    Ok(users)
}

pub(crate) async fn buckets_of(decisions: &Decisions) -> Result<Vec<BucketRow>, Error> {
    let mut buckets = Vec::new();
    for (key, value) in decisions.all(&[BUCKET]).await? {
        let row = read_text_key(&key).and_then(|name| BucketRow::decode(name, &value));
        buckets.push(row.ok_or_else(|| damaged("a bucket's row"))?);
    }
    Ok(buckets)
}

/// The map of the ranges; made in a catalog without one. One of before there were maps has one range.
async fn map_of(decisions: &Rc<Decisions>, new_ranges: u32) -> Result<RangeMap, Error> {
    let mut places = Vec::new();
    for (key, value) in decisions.all(&[RANGE]).await? {
        let row = read_number_key(&key).zip(RangeRow::decode(&value));
        let (range, row) = row.ok_or_else(|| damaged("a range's row"))?;
        places.push(RangePlace { range: RangeId::new(range), first: row.first });
    }
    places.sort_unstable_by(|one, other| one.first.cmp(&other.first));
    if !places.is_empty() {
        return RangeMap::new(places).ok_or_else(|| damaged("the map of ranges"));
    }
    let is_new = decisions.all(&[]).await?.is_empty();
    let map = RangeMap::even(if is_new { new_ranges } else { 1 });
    let (_, basis) = decisions.submit(|batch, _| {
        for place in map.places() {
            let row = RangeRow { first: place.first.clone(), epoch: 0, owner: None };
            batch.put(&number_key(RANGE, place.range.get()), &row.encode());
        }
    })?;
    decisions.settled(basis).await?;
    Ok(map)
}

impl Catalog {
    /// The catalog of a table that was just opened.
    pub(crate) async fn open(
        env: &Env,
        decisions: Rc<Decisions>,
        ground: Ground,
    ) -> Result<Rc<Catalog>, Error> {
        let Ground { files, ranges, lease, epoch, new_ranges, bugs } = ground;
        let map = map_of(&decisions, new_ranges).await?;
        let last = map.places().iter().map(|place| place.range.get()).max().unwrap_or(0);
        let splits = Splits::open(&decisions, last).await?;
        let mut sessions = Vec::new();
        for (key, value) in decisions.all(&[SESSION]).await? {
            let id = read_number_key(&key).map(SessionId::new);
            let session = id.zip(decode_session(&value));
            sessions.push(session.ok_or_else(|| damaged("a session's row"))?);
        }
        let (mut owned, mut names) = (BTreeMap::<UserId, usize>::new(), BTreeMap::new());
        let buckets = buckets_of(&decisions).await?;
        let quotas = Quotas::default();
        for user in users_of(&decisions).await? {
            quotas.set_user(&user.id, user.quota);
        }
        for BucketRow { bucket, settings, .. } in &buckets {
            quotas.set_bucket(bucket, settings.quota);
            *owned.entry(bucket.owner.clone()).or_default() += 1;
            names.insert(bucket.id, bucket.name.clone());
        }
        let catalog = Rc::new(Catalog {
            env: env.clone(),
            files,
            decisions,
            sessions: Sessions::of_manager(env, sessions, bugs),
            orders: Orders::new(env, map, ranges, lease.clone()),
            splits,
            watchers: Watchers::new(env, epoch, bugs),
            quotas,
            lease,
            epoch,
            once: Once::default(),
            owned: RefCell::new(owned),
            staying: RefCell::default(),
            order_due: RefCell::default(),
            some_due: Notify::new(),
            names: RefCell::new(names),
            bugs,
        });
        // The manager that has changed them may have ended before their owners heard of it.
        for row in buckets.iter().filter(|row| row.order_due) {
            catalog.order_later(&row.bucket.name);
        }
        // The manager that was removing them has not done so.
        for row in buckets.into_iter().filter(|row| row.closing) {
            catalog.take_back(row).await?;
        }
        Ok(catalog)
    }

    /// The map of the ranges.
    pub(crate) fn map(&self) -> Rc<RangeMap> {
        self.orders.map()
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
            | CatalogRequest::SetBucket { head, .. }
            | CatalogRequest::ChangeUser { head, .. } => {
                return self.change(head, request).await;
            }
            CatalogRequest::OpenSession => return self.open_session().await,
            CatalogRequest::Beat(session) => {
                self.sessions.heard(session).map(|()| CatalogReply::Done)
            }
            CatalogRequest::Route { session, sent_us } => {
                let sampled = self.sessions.sample(session, sent_us);
                sampled.map(|()| CatalogReply::Route(self.epoch))
            }
            CatalogRequest::Bucket(name) => {
                let at = self.watchers.at();
                let found = self.bucket(&name).await.map(Box::new);
                found.map(|found| CatalogReply::Bucket { found, at })
            }
            CatalogRequest::Buckets(of) => {
                self.buckets(of).await.map(|buckets| buckets_reply(buckets, None))
            }
            CatalogRequest::BucketsBehind { of, name } => {
                self.buckets(of).await.map(|buckets| buckets_reply(buckets, Some(&name)))
            }
            CatalogRequest::Key(id) => {
                let at = self.watchers.at();
                let found = self.key(&id).await;
                found.map(|found| CatalogReply::Key { found: found.map(Box::new), at })
            }
            CatalogRequest::Users => self.users(None).await,
            CatalogRequest::UsersBehind(name) => self.users(Some(&name)).await,
            CatalogRequest::User(name) => self.user_of_name(&name).await,
            CatalogRequest::Keys(user) => self.keys_of(&user, None).await,
            CatalogRequest::KeysBehind { user, key } => self.keys_of(&user, Some(&key)).await,
            CatalogRequest::Watch { watcher, seen } => {
                self.watchers.watch(watcher, seen).await.map(CatalogReply::Changes)
            }
            CatalogRequest::UseKey(key) => self.use_key(&key).await.map(|()| CatalogReply::Done),
            CatalogRequest::KeysInUse => self.keys_in_use().await.map(CatalogReply::KeysInUse),
            CatalogRequest::Where
            | CatalogRequest::Register { .. }
            | CatalogRequest::MoveRange { .. }
            | CatalogRequest::SplitRange { .. }
            | CatalogRequest::PrepareSplit { .. }
            | CatalogRequest::EndSplit { .. }
            | CatalogRequest::ServerBeat(_)
            | CatalogRequest::Here(_)
            | CatalogRequest::Status
            | CatalogRequest::StatusBehind(_) => {
                let message = "this concerns servers, which are no part of the catalog".to_owned();
                Err(Error::Invalid { message })
            }
            CatalogRequest::Map => Ok(map_reply(&self.map(), None, self.epoch)),
            CatalogRequest::MapBehind(bound) => {
                Ok(map_reply(&self.map(), Some(&bound), self.epoch))
            }
            CatalogRequest::Config(bucket) => self.config(bucket).await.map(CatalogReply::Config),
            CatalogRequest::IsOpen(session) => {
                Ok(CatalogReply::Open(self.sessions.is_open(session) == Some(true)))
            }
        };
        self.check_lease()?;
        reply
    }

    pub(crate) fn check_lease(&self) -> Result<(), Error> {
        if self.lease.is_valid() { Ok(()) } else { Err(Error::Reroute) }
    }

    async fn bucket(&self, name: &BucketName) -> Result<BucketView, Error> {
        let row = self.decisions.durable(&text_key(BUCKET, name.as_str())).await?;
        let row = BucketRow::decode(name.as_str(), &row.ok_or(Error::NoSuchBucket)?);
        let BucketRow { bucket, settings, .. } = row.ok_or_else(|| damaged("a bucket's row"))?;
        let room = self.quotas.room(bucket.id);
        Ok(BucketView { bucket, settings, room })
    }

    /// Buckets of a user, with those that are being made.
    pub(crate) fn bucket_count(&self, owner: &UserId) -> usize {
        self.owned.borrow().get(owner).copied().unwrap_or(0)
    }

    /// Looks again and again what buckets under quotas hold. For ever.
    pub(crate) async fn watch_usage(&self) {
        loop {
            self.quotas.some().await;
            self.watchers.note(self.quotas.look(&self.orders).await);
            self.env.sleep(self.env.jitter(USAGE_INTERVAL)).await;
        }
    }

    /// Has owners hear of changes on record that they have not heard of. For ever.
    pub(crate) async fn order_again(&self) {
        loop {
            let due: Vec<BucketName> = self.order_due.borrow().iter().cloned().collect();
            if due.is_empty() {
                self.some_due.notified().await;
                continue;
            }
            for name in due {
                match self.order_due(&name).await {
                    Ok(()) => drop(self.order_due.borrow_mut().remove(&name)),
                    Err(error) => tracing::debug!(
                        bucket = name.as_str(), %error, "owners have not heard of a change yet"
                    ),
                }
            }
            self.env.sleep(self.env.jitter(PAUSE.1)).await;
        }
    }

    async fn order_due(&self, name: &BucketName) -> Result<(), Error> {
        let _held = self.decisions.lock(&text_key(BUCKET, name.as_str())).await;
        match self.held_bucket(name).await {
            Ok(row) if row.order_due => {
                self.orders.configure(row.bucket.id, row.config()).await?;
                self.env.mark("object: owners hear of a change later");
                self.watchers.note([KeptName::Bucket(name.clone())]);
                self.note_ordered(row)
            }
            Ok(_) | Err(Error::NoSuchBucket) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn order_later(&self, name: &BucketName) {
        if !self.bugs.has(Planted::OrdersForgotten) {
            self.order_due.borrow_mut().insert(name.clone());
            self.some_due.notify_waiters();
        }
    }

    /// The owners of a bucket's keys have heard of its last change. The caller holds its name.
    fn note_ordered(&self, row: BucketRow) -> Result<(), Error> {
        let row = BucketRow { order_due: false, ..row };
        let key = text_key(BUCKET, row.bucket.name.as_str());
        // One that is lost is ordered again.
        let submitted = self.decisions.submit(|batch, _| {
            batch.put(&key, &row.encode());
        });
        submitted.map(drop)
    }

    async fn buckets(&self, of: Option<UserId>) -> Result<Vec<Bucket>, Error> {
        let buckets = buckets_of(&self.decisions).await?.into_iter().map(|row| row.bucket);
        Ok(buckets.filter(|bucket| of.as_ref().is_none_or(|of| bucket.owner == *of)).collect())
    }

    /// What a bucket is. One that is asked for was made: its ID is random.
    async fn config(&self, id: BucketId) -> Result<BucketConfig, Error> {
        let name = self.names.borrow().get(&id).cloned();
        let Some(name) = name else {
            return Ok(BucketConfig { changed: Stamp::default(), state: BucketState::Gone });
        };
        if let Some(row) = self.decisions.durable(&text_key(BUCKET, name.as_str())).await? {
            let row = BucketRow::decode(name.as_str(), &row);
            let row = row.ok_or_else(|| damaged("a bucket's row"))?;
            if row.bucket.id == id {
                return Ok(row.config());
            }
        }
        // An owner never asks again for a bucket that is gone.
        Err(Error::Busy { cause: "the bucket is being made or removed".to_owned() })
    }

    async fn open_session(&self) -> Result<CatalogReply, Error> {
        let id = SessionId::new(self.env.random_u64().max(1));
        let (_, basis) = self.decisions.submit(|batch, _| {
            batch.put(&number_key(SESSION, id.get()), &encode_session(false));
        })?;
        self.decisions.settled(basis).await?;
        self.sessions.open(id);
        Ok(CatalogReply::Session(id))
    }

    /// Ends sessions that were silent for too long. What fails is left for the next time and holds up
    /// nothing else; returns the first error.
    pub(crate) async fn end_sessions(&self) -> Result<(), Error> {
        self.check_lease()?;
        let mut result = Ok(());
        for session in self.sessions.silent() {
            tracing::info!(%session, "object gateway is silent: its session is closed");
            self.env.mark("object: a silent session is closed");
            result = result.and(self.close_session(session).await);
        }
        for session in self.sessions.closed() {
            result = result.and(self.end_session(session).await);
        }
        result
    }

    /// Removes what a session left, which is closed on record.
    async fn end_session(&self, id: SessionId) -> Result<(), Error> {
        if !self.bugs.has(Planted::SweepOpen) {
            self.orders.close_session(id).await?;
        }
        self.orders.sweep(id).await?;
        self.forget_session(id).await
    }

    /// Closes a session for ever: it takes no change from now on, in this manager's time and later.
    async fn close_session(&self, id: SessionId) -> Result<(), Error> {
        self.sessions.close(id);
        let (_, basis) = self.decisions.submit(|batch, _| {
            batch.put(&number_key(SESSION, id.get()), &encode_session(true));
        })?;
        self.decisions.settled(basis).await?;
        self.sessions.closed_on_record(id);
        Ok(())
    }

    /// Forgets a closed session, of which nothing is left.
    async fn forget_session(&self, id: SessionId) -> Result<(), Error> {
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
        self.sessions.forget(id);
        Ok(())
    }

    /// Removes the directories of sessions of which no more is on record: the ranges have given up what they
    /// kept of them.
    pub(crate) async fn remove_left_dirs(&self) -> Result<(), Error> {
        let of_fault = |fault: base::Fault| Error::Busy { cause: fault.message };
        let dirs = self.files.dirs(SESSIONS_DIR).await.map_err(of_fault)?;
        let mut left: Vec<_> = dirs.iter().filter_map(|name| session_of(name)).collect();
        left.retain(|id| !self.sessions.is_known(*id));
        if left.is_empty() || self.bugs.has(Planted::OrphanKept) {
            return Ok(());
        }
        // Sessions of a later manager are not known here: what is durable now shows that there was none when
        // these were listed.
        let (_, basis) = self.decisions.submit(|_, _| {})?;
        self.decisions.settled(basis).await?;
        for id in left {
            self.files.remove_dir(&session_dir(id)).await.map_err(of_fault)?;
            self.env.mark("object: the directory of a session is removed");
        }
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
        if let Err(error) = self.sessions.admit(&head) {
            if error == Error::Reroute {
                self.once.refuse((head.session, head.number), head.attempt);
            }
            self.check_lease()?;
            return Err(error);
        }
        self.once.forget_below(head.session, self.sessions.floor(head.session));
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
            CatalogRequest::CreateBucket { name, owner, settings, .. } => {
                let made = self.create_bucket(head, (name, owner), *settings).await;
                made.map(CatalogReply::Made)
            }
            CatalogRequest::RemoveBucket { name, .. } => {
                self.remove_bucket(head, &name).await.map(|()| CatalogReply::Done)
            }
            CatalogRequest::SetVersioning { name, versioning, .. } => {
                let set = self.set_versioning(head, &name, versioning).await;
                set.map(|()| CatalogReply::Done)
            }
            CatalogRequest::SetBucket { name, setting, .. } => {
                self.set_bucket(head, &name, *setting).await.map(|()| CatalogReply::Done)
            }
            CatalogRequest::ChangeUser { change, .. } => {
                self.change_user(head, &change).await.map(|()| CatalogReply::Done)
            }
            _ => unreachable!("it is no change"),
        }
    }

    /// An error unless a change that came just now may be submitted.
    pub(crate) fn check_submit(&self, head: &RequestHead) -> Result<(), Error> {
        match self.sessions.may_submit(head, self.env.now()) {
            true => Ok(()),
            false => Err(Error::Busy { cause: "the time of the request is over".to_owned() }),
        }
    }

    async fn create_bucket(
        &self,
        head: &RequestHead,
        (name, owner): (BucketName, UserId),
        settings: BucketSettings,
    ) -> Result<Bucket, Error> {
        check_settings(&settings)?;
        let key = text_key(BUCKET, name.as_str());
        let made_by = (head.session, head.number);
        // The bucket that this request has made may be gone again.
        let reply = reply_key(head.session, head.number);
        if let Some(value) = self.decisions.durable(&reply).await? {
            let row = BucketRow::decode(name.as_str(), &value);
            return Ok(row.ok_or_else(|| damaged("an answer"))?.bucket);
        }
        let held = self.decisions.lock(&key).await;
        // Its owner may be being removed.
        let held_user = self.decisions.lock(&text_key(USER, owner.as_str())).await;
        let is_user = self.user(&owner).await?.is_some();
        let seen = self.decisions.read(&key).await?;
        let there = match &seen.value {
            Some(value) => {
                let row = BucketRow::decode(name.as_str(), value);
                Some(row.ok_or_else(|| damaged("a bucket's row"))?)
            }
            None => None,
        };
        let many = self.bucket_count(&owner) >= BUCKETS_PER_USER_MAX;
        if there.is_some() || many || !is_user {
            drop((held, held_user));
            // The count has what is submitted of other names.
            self.decisions.settled_for_refusal(self.decisions.last()).await?;
            self.check_lease()?;
            return match there {
                Some(row) if row.made_by == made_by => Ok(row.bucket),
                Some(row) => Err(Error::BucketExists { own: row.bucket.owner == owner }),
                None if !is_user => Err(Error::NoSuchUser),
                None => Err(Error::TooManyBuckets),
            };
        }
        self.check_submit(head)?;
        let id = BucketId::new(self.env.random_u64().max(1));
        let versioning = match settings.lock {
            Some(_) => Versioning::Enabled,
            None => Versioning::Off,
        };
        let (quota, new_settings) = (settings.quota, settings);
        let mut bucket = Bucket { id, name, owner: owner.clone(), created_us: 0, versioning };
        let (_, basis) = self.decisions.submit(|batch, stamp| {
            bucket.created_us = stamp.get();
            let (bucket, closing, default) = (bucket.clone(), false, BucketSettings::default());
            let (changed, order_due, settings) = (stamp, false, default);
            let mut row = BucketRow { bucket, made_by, changed, closing, order_due, settings };
            batch.put(&reply, &row.encode());
            row.settings = new_settings;
            batch.put(&key, &row.encode());
        })?;
        self.quotas.set_bucket(&bucket, quota);
        *self.owned.borrow_mut().entry(owner).or_default() += 1;
        // Before it is durable: who is shown the row may have its owner ask for it at once.
        self.names.borrow_mut().insert(id, bucket.name.clone());
        self.decisions.settled(basis).await?;
        drop((held, held_user));
        Ok(bucket)
    }

    /// Behind the answer no gateway goes by the former setting, nor the owner of its keys where it concerns
    /// that one.
    async fn set_bucket(
        &self,
        head: &RequestHead,
        name: &BucketName,
        setting: Setting,
    ) -> Result<(), Error> {
        let is_lock = matches!(setting, Setting::Lock(_));
        let for_owner = setting.is_for_owner();
        self.change_bucket(head, name, for_owner, |row| {
            if is_lock && row.bucket.versioning != Versioning::Enabled {
                let message = "object lock needs versions: enable versioning first".to_owned();
                return Err(Error::Invalid { message });
            }
            row.settings.set(setting);
            check_settings(&row.settings)
        })
        .await
    }

    /// Behind the answer the owner of its keys keeps versions as the bucket says.
    async fn set_versioning(
        &self,
        head: &RequestHead,
        name: &BucketName,
        versioning: Versioning,
    ) -> Result<(), Error> {
        if versioning == Versioning::Off {
            let message = "versioning that was enabled can be suspended, not removed".to_owned();
            return Err(Error::Invalid { message });
        }
        self.change_bucket(head, name, true, |row| {
            if row.settings.lock.is_some() && versioning != Versioning::Enabled {
                let message = "a bucket with object lock keeps its versions".to_owned();
                return Err(Error::Invalid { message });
            }
            row.bucket.versioning = versioning;
            Ok(())
        })
        .await
    }

    /// Changes the row of a bucket. Behind the answer gateways know of it, and the owner of its keys where it
    /// concerns that one.
    async fn change_bucket(
        &self,
        head: &RequestHead,
        name: &BucketName,
        for_owner: bool,
        change: impl FnOnce(&mut BucketRow) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let reply = reply_key(head.session, head.number);
        let held = self.decisions.lock(&text_key(BUCKET, name.as_str())).await;
        let answered = self.decisions.durable(&reply).await?.is_some();
        let row = match self.held_bucket(name).await {
            // Another request has removed it since.
            Err(Error::NoSuchBucket) if answered => None,
            row => Some(row?),
        };
        if let Some(mut row) = row {
            if !answered {
                if let Err(error) = change(&mut row) {
                    self.decisions.settled_for_refusal(self.decisions.last()).await?;
                    // A later manager may have changed the row.
                    self.check_lease()?;
                    return Err(error);
                }
                self.check_submit(head)?;
                row.order_due |= for_owner;
                row = self.put_bucket(row, Some(&reply)).await?;
                self.quotas.set_bucket(&row.bucket, row.settings.quota);
            }
            if for_owner && !self.bugs.has(Planted::OldConfig) {
                let ordered = self.orders.configure(row.bucket.id, row.config()).await;
                // Gateways have waited for longer than an attempt then: they say that the outcome is unknown.
                ordered.inspect_err(|_| {
                    self.order_later(name);
                    self.watchers.note([KeptName::Bucket(name.clone())]);
                })?;
                // It is on record that the order is due: one that is not noted is given again.
                if row.order_due && self.note_ordered(row).is_err() {
                    self.order_later(name);
                }
            }
            if for_owner || !answered {
                self.watchers.note([KeptName::Bucket(name.clone())]);
            }
        }
        drop(held);
        self.watchers.settled().await;
        Ok(())
    }

    /// The row of a bucket whose name the caller holds.
    pub(crate) async fn held_bucket(&self, name: &BucketName) -> Result<BucketRow, Error> {
        let seen = self.decisions.read(&text_key(BUCKET, name.as_str())).await?;
        let Some(value) = &seen.value else {
            self.decisions.settled_for_refusal(seen.basis).await?;
            self.check_lease()?;
            return Err(Error::NoSuchBucket);
        };
        let row = BucketRow::decode(name.as_str(), value);
        row.ok_or_else(|| damaged("a bucket's row"))
    }

    /// Puts the row of a bucket whose name the caller holds, with its answer; ends when it is durable.
    async fn put_bucket(
        &self,
        mut row: BucketRow,
        reply: Option<&[u8]>,
    ) -> Result<BucketRow, Error> {
        let key = text_key(BUCKET, row.bucket.name.as_str());
        let (stamp, basis) = self.decisions.submit(|batch, stamp| {
            row.changed = stamp;
            batch.put(&key, &row.encode());
            if let Some(reply) = reply {
                batch.put(reply, &encode_stamp(stamp));
            }
        })?;
        self.decisions.settled(basis).await?;
        debug_assert_eq!(row.changed, stamp);
        Ok(row)
    }

    /// Removes a bucket that is empty. It is on record that it is being removed before the owner of its
    /// keys is asked: that one, and any later one, makes no change until it is on record how this ended.
    async fn remove_bucket(
        self: &Rc<Self>,
        head: &RequestHead,
        name: &BucketName,
    ) -> Result<(), Error> {
        let reply = reply_key(head.session, head.number);
        let key = text_key(BUCKET, name.as_str());
        let held = self.decisions.lock(&key).await;
        if self.decisions.durable(&reply).await?.is_some() {
            self.watchers.settled().await;
            return Ok(());
        }
        let row = self.held_bucket(name).await?;
        self.check_submit(head)?;
        let mut row = BucketRow { closing: true, ..row };
        match self.bugs.has(Planted::CloseUnrecorded) {
            true => row.changed = Stamp::new(row.changed.get() + 1),
            false => row = self.put_bucket(row, None).await?,
        }
        let id = row.bucket.id;
        let asked = match self.orders.configure(id, row.config()).await {
            Ok(true) => self.check_submit(head),
            Ok(false) => Err(Error::BucketNotEmpty),
            Err(error) => Err(error),
        };
        if let Err(error) = asked {
            self.staying.borrow_mut().insert(name.clone());
            let row = self.take_back(row).await?;
            self.staying.borrow_mut().remove(name);
            // One that does not hear of it asks.
            let _ = self.orders.configure(id, row.config()).await;
            return Err(error);
        }
        let (stamp, basis) = self.decisions.submit(|batch, stamp| {
            batch.delete(&key);
            batch.put(&reply, &encode_stamp(stamp));
        })?;
        self.decisions.settled(basis).await?;
        self.owned.borrow_mut().entry(row.bucket.owner).and_modify(|count| *count -= 1);
        self.names.borrow_mut().remove(&id);
        self.quotas.forget(id);
        let catalog = self.clone();
        self.env.spawn(Class::Background, "object: a bucket is gone", async move {
            let config = BucketConfig { changed: stamp, state: BucketState::Gone };
            // One that does not hear of it aborts the bucket's uploads when they are old.
            let _ = catalog.orders.configure(id, config).await;
        });
        self.watchers.note([KeptName::Bucket(name.clone())]);
        drop(held);
        self.watchers.settled().await;
        Ok(())
    }

    /// Takes back what could not be taken back before.
    pub(crate) async fn take_back_all(&self) -> Result<(), Error> {
        let names: Vec<BucketName> = self.staying.borrow().iter().cloned().collect();
        for name in names {
            let _held = self.decisions.lock(&text_key(BUCKET, name.as_str())).await;
            match self.held_bucket(&name).await {
                Ok(row) if row.closing => drop(self.take_back(row).await?),
                Ok(_) | Err(Error::NoSuchBucket) => {}
                Err(error) => return Err(error),
            }
            self.staying.borrow_mut().remove(&name);
        }
        Ok(())
    }

    /// A bucket is not removed after all.
    async fn take_back(&self, row: BucketRow) -> Result<BucketRow, Error> {
        self.env.mark("object: a bucket stays");
        self.put_bucket(BucketRow { closing: false, ..row }, None).await
    }
}
