//! [`Range`]: the owner of keys decides every change of them (`object-protocols.md` 6), answers for
//! objects and lists keys.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use object_proto::{
    BucketConfig, BucketId, BucketState, BucketUsage, CatalogReply, CatalogRequest, Change,
    ChangeReply, Committed, Conditions, Error, LifecycleDay, NewObject, ObjectData, ObjectInfo,
    RangeReply, RangeRequest, RequestHead, SessionId, Stamp, Target, VersionId,
};
use runtime::{Class, Duration, Env, Instant};
use table::{Batch, Place, Purpose};

use crate::body_files::{BodyFiles, FileRows};
use crate::buckets::Buckets;
use crate::decisions::{Basis, Decisions, damaged, of_table};
use crate::ground::{Lease, Managers};
use crate::headers::Headers;
use crate::keys::{
    CURRENT, LOG, METADATA, PASS, REPLY, USAGE, number_key, object_key, read_number_key,
    read_reply_key, reply_key,
};
use crate::list;
use crate::list_versions;
use crate::once::{Came, Once};
use crate::pass_rows::Passes;
use crate::piece::Body;
use crate::planted::{Bugs, Planted};
use crate::row::{InLog, LogRow, ObjectRow, decode_committed, encode_committed};
use crate::sessions::Sessions;
use crate::usage::{Usages, behind, put_row};
use crate::versions::{Decided, Marker, Replaced, beside, fill};
use crate::whole::whole_map;

/// A range of keys that this process owns.
pub(crate) struct Range {
    pub(crate) env: Env,
    pub(crate) decisions: Rc<Decisions>,
    pub(crate) sessions: Sessions,
    pub(crate) buckets: Buckets,
    managers: Rc<dyn Managers>,
    pub(crate) lease: Rc<dyn Lease>,
    pub(crate) epoch: u64,
    /// Files of bodies, with all that is submitted.
    pub(crate) files: BodyFiles,
    pub(crate) upload_times: UploadTimes,
    /// Of lifecycle.
    pub(crate) day: LifecycleDay,
    /// How far lifecycle is, with all that is submitted.
    pub(crate) passes: Passes,
    once: Once<ChangeReply>,
    /// What buckets hold, with all that is submitted.
    pub(crate) usages: Usages,
    /// Requests whose answers are rows.
    replies: RefCell<BTreeMap<SessionId, BTreeSet<u64>>>,
    bugs: Bugs,
}

/// Times that uploads are held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadTimes {
    /// An upload that is under way for so long is aborted.
    pub(crate) age: Duration,
    /// It is remembered for so long how an upload was completed.
    pub(crate) end_age: Duration,
}

/// What the owner of a range stands on.
pub(crate) struct Ground {
    pub(crate) managers: Rc<dyn Managers>,
    pub(crate) lease: Rc<dyn Lease>,
    pub(crate) epoch: u64,
    pub(crate) upload_times: UploadTimes,
    pub(crate) day: LifecycleDay,
    pub(crate) bugs: Bugs,
}

/// What a change of an object wants.
enum Wish {
    Put(Box<NewObject>),
    Delete(Marker),
    /// One that is retained under governance too, if so.
    DeleteVersion(VersionId, bool),
}

/// What a batch changes in what is known of logs and files of bodies.
#[derive(Default)]
pub(crate) struct Noted {
    /// Data in a log that it replaces.
    dead: Option<Dead>,
    /// Rows of files.
    files: Option<FileRows>,
}

/// Data in a log that a batch replaces.
pub(crate) enum Dead {
    /// The log, and its row with the batch.
    In {
        /// Number of the log.
        log: u64,
        /// Its row.
        row: LogRow,
    },
    /// It has no place yet.
    Unplaced {
        /// The batch that put it.
        batch: u64,
        /// Its bytes.
        bytes: u64,
    },
}

impl Range {
    /// The range of a table that was just opened.
    pub(crate) async fn open(
        env: &Env,
        decisions: Rc<Decisions>,
        ground: Ground,
    ) -> Result<Rc<Range>, Error> {
        let usages = Usages::open(&decisions).await?;
        let passes = Passes::open(&decisions).await?;
        let mut replies: BTreeMap<SessionId, BTreeSet<u64>> = BTreeMap::new();
        for (key, _) in decisions.all(&[REPLY]).await? {
            let (session, number) = read_reply_key(&key).ok_or_else(|| damaged("an answer"))?;
            replies.entry(session).or_default().insert(number);
        }
        for (key, value) in decisions.all(&[LOG]).await? {
            let row = read_number_key(&key).zip(LogRow::decode(&value));
            let (log, row) = row.ok_or_else(|| damaged("a log's row"))?;
            decisions.logs.known(log, row);
        }
        let Ground { managers, lease, epoch, upload_times, day, bugs } = ground;
        let files = BodyFiles::open(env, &decisions, bugs).await?;
        Ok(Rc::new(Range {
            env: env.clone(),
            decisions,
            sessions: Sessions::of_owner(env, bugs),
            buckets: Buckets::new(env, managers.clone()),
            managers,
            lease,
            epoch,
            files,
            upload_times,
            day,
            passes,
            once: Once::default(),
            usages,
            replies: RefCell::new(replies),
            bugs,
        }))
    }

    /// Answers a request.
    pub(crate) async fn handle(
        self: &Rc<Self>,
        request: RangeRequest,
    ) -> Result<RangeReply, Error> {
        if let Some(bucket) = request.read_bucket() {
            self.buckets.load(bucket).await?;
        }
        match request {
            RangeRequest::Change { head, change } => {
                self.change(head, change).await.map(RangeReply::Changed)
            }
            RangeRequest::Look { target, version } => {
                let found = self.look(&target, version).await;
                self.check_lease()?;
                found.map(|info| RangeReply::Object(Box::new(info)))
            }
            RangeRequest::Read { target, version } => {
                let found = self.look(&target, version).await;
                self.check_lease()?;
                let mut info = found?;
                if let ObjectData::Logged { file, offset } = &info.object.data
                    && let Some(place) = Place::of(file.as_str(), *offset)
                    && let Some(piece) = self.decisions.recent.get(place)
                {
                    info.object.data = ObjectData::Piece(piece.to_vec());
                }
                Ok(RangeReply::Object(Box::new(info)))
            }
            RangeRequest::List(ask) => {
                let page = match self.buckets.check(ask.bucket) {
                    Ok(()) => list::page(self.decisions.snapshot(), &ask).await,
                    Err(error) => Err(error),
                };
                self.check_lease()?;
                page.map(RangeReply::Page)
            }
            RangeRequest::Upload { target, upload } => {
                let found = self.find_upload(&target, upload).await;
                self.check_lease()?;
                found.map(|info| RangeReply::Upload(Box::new(info)))
            }
            RangeRequest::Parts(ask) => {
                let page = self.list_parts(&ask).await;
                self.check_lease()?;
                page.map(RangeReply::Parts)
            }
            RangeRequest::PartBodies(ask) => {
                let bodies = self.part_bodies(&ask).await;
                self.check_lease()?;
                bodies.map(RangeReply::PartBodies)
            }
            RangeRequest::Uploads(ask) => {
                let page = match self.buckets.check(ask.bucket) {
                    Ok(()) => list::uploads(self.decisions.snapshot(), &ask).await,
                    Err(error) => Err(error),
                };
                self.check_lease()?;
                page.map(RangeReply::Uploads)
            }
            RangeRequest::Versions(ask) => {
                let page = match self.buckets.check(ask.bucket) {
                    Ok(()) => list_versions::page(self.decisions.snapshot(), &ask).await,
                    Err(error) => Err(error),
                };
                self.check_lease()?;
                page.map(RangeReply::Versions)
            }
            RangeRequest::Usage(buckets) => {
                let usages = buckets.iter().map(|bucket| self.usages.of(*bucket)).collect();
                self.check_lease()?;
                Ok(RangeReply::Usage(usages))
            }
            RangeRequest::Lifecycle(bucket) => {
                let state = match self.buckets.check(bucket) {
                    Ok(()) => Ok(self.lifecycle_state(bucket)),
                    Err(error) => Err(error),
                };
                self.check_lease()?;
                state.map(RangeReply::Lifecycle)
            }
            RangeRequest::Stored => {
                let stored = self.files.stored();
                self.check_lease()?;
                Ok(RangeReply::Stored(stored))
            }
            RangeRequest::Route { session, sent_us } => {
                self.know_session(session).await?;
                let sampled = self.sessions.sample(session, sent_us);
                self.check_lease()?;
                sampled.map(|()| RangeReply::Route(self.epoch))
            }
            RangeRequest::Configure { epoch, bucket, config } => {
                self.check_epoch(epoch)?;
                let is_empty = self.configure(bucket, config).await?;
                Ok(RangeReply::Configured { is_empty })
            }
            RangeRequest::CloseSession { epoch, session } => {
                self.check_epoch(epoch)?;
                self.sessions.shut(session);
                Ok(RangeReply::Done)
            }
            RangeRequest::Hold { .. }
            | RangeRequest::Release { .. }
            | RangeRequest::Check { .. }
            | RangeRequest::Sweep { .. }
            | RangeRequest::Split { .. } => {
                unreachable!("collection does it, or the server")
            }
        }
    }

    /// An error for a request that another owner was asked.
    pub(crate) fn check_epoch(&self, epoch: u64) -> Result<(), Error> {
        if epoch == self.epoch { Ok(()) } else { Err(Error::Reroute) }
    }

    /// Asks the manager about a session that is not known. One that was closed is refused for ever.
    pub(crate) async fn know_session(&self, session: SessionId) -> Result<(), Error> {
        if self.bugs.has(Planted::UnaskedSession) {
            self.sessions.open(session);
        }
        if self.sessions.is_open(session).is_none() {
            match self.managers.ask(CatalogRequest::IsOpen(session)).await {
                Ok(CatalogReply::Open(true)) => self.sessions.open(session),
                Ok(CatalogReply::Open(false)) => self.sessions.shut(session),
                Ok(_) | Err(_) => {
                    let cause = "the object manager does not say whether the session is open";
                    return Err(Error::Busy { cause: cause.to_owned() });
                }
            }
        }
        Ok(())
    }

    /// A bucket is so from now on. When this ends, all that was decided before is durable; true when the
    /// bucket holds nothing.
    async fn configure(
        self: &Rc<Self>,
        bucket: BucketId,
        config: BucketConfig,
    ) -> Result<bool, Error> {
        let is_gone = config.state == BucketState::Gone;
        self.buckets.learn(bucket, config);
        self.decisions.settled_to_go_on(self.decisions.last()).await?;
        if is_gone {
            self.forget_bucket(bucket);
            let range = self.clone();
            // What is not done here is found when the uploads have been under way for too long.
            self.env.spawn(Class::Background, "object: uploads of a bucket", async move {
                if let Err(error) = range.abort_all(bucket).await {
                    tracing::debug!(%error, "the uploads of a bucket that is gone stay for now");
                }
            });
        }
        Ok(self.usages.of(bucket).is_empty())
    }

    /// Bugs that are planted.
    pub(crate) fn bugs(&self) -> Bugs {
        self.bugs
    }

    /// Whether a bug is planted.
    pub(crate) fn has_bug(&self, bug: Planted) -> bool {
        self.bugs.has(bug)
    }

    /// What was read before this was not stale then: no other owner had come.
    pub(crate) fn check_lease(&self) -> Result<(), Error> {
        match self.lease.is_valid() || self.bugs.has(Planted::StaleOwner) {
            true => Ok(()),
            false => Err(Error::Reroute),
        }
    }

    /// An object as it is durable.
    pub(crate) async fn look(
        &self,
        target: &Target,
        version: Option<VersionId>,
    ) -> Result<ObjectInfo, Error> {
        self.buckets.check(target.bucket)?;
        let rows = self.decisions.snapshot();
        let mut row = self.row_of(&rows, target, version).await?;
        if row.metadata_apart {
            let apart = rows.get(&beside(METADATA, target, &row)).await.map_err(of_table)?;
            let apart = apart.and_then(|value| Headers::decode(&value));
            let apart = apart.filter(|(stamp, _)| *stamp == row.info.stamp);
            let (_, headers) =
                apart.ok_or_else(|| damaged(&format!("the metadata of {target}")))?;
            headers.give(&mut row.info.object.facts);
        }
        whole_map(&rows, target, &mut row).await?;
        Ok(row.info)
    }

    /// Makes a change, once.
    async fn change(
        self: &Rc<Self>,
        head: RequestHead,
        change: Change,
    ) -> Result<ChangeReply, Error> {
        self.check_epoch(head.epoch)?;
        if let Err(error) = self.sessions.admit(&head) {
            if error == Error::Reroute {
                self.once.refuse((head.session, head.number), head.attempt);
            }
            // A former owner may have closed a session by itself.
            self.check_lease()?;
            return Err(error);
        }
        self.once.forget_below(head.session, self.sessions.floor(head.session));
        let id = (head.session, head.number);
        if self.bugs.has(Planted::ForgetReply) {
            self.once.forget(id);
        }
        match self.once.come(id, head.attempt) {
            Came::Again(ticket) => {
                self.env.mark("object: a request came again");
                ticket.outcome().await
            }
            Came::First(ticket) => {
                let (range, ended, came) = (self.clone(), ticket.clone(), self.env.now());
                // A task of its own: its caller may go while it holds a key.
                self.env.spawn(Class::Foreground, "object: change", async move {
                    let outcome = match range.buckets.load_for_change(change.target().bucket).await
                    {
                        Ok(()) => range.decide(&head, change, came).await,
                        Err(error) => Err(error),
                    };
                    let forgets = outcome.is_err() && range.bugs.has(Planted::ForgetRefusal);
                    range.once.end(&ended, outcome);
                    if forgets {
                        range.once.forget(id);
                    }
                });
                ticket.outcome().await
            }
        }
    }

    async fn decide(
        self: &Rc<Self>,
        head: &RequestHead,
        change: Change,
        came: Instant,
    ) -> Result<ChangeReply, Error> {
        let answered = self.decisions.durable(&reply_key(head.session, head.number)).await?;
        if let Some(value) = answered.filter(|_| !self.bugs.has(Planted::ForgetReply)) {
            self.env.mark("object: answered by a former owner");
            let committed = decode_committed(&value).ok_or_else(|| damaged("an answer"))?;
            return Ok(ChangeReply { committed, by_earlier: false });
        }
        match change {
            Change::Put { target, object, conditions } => {
                let wish = Wish::Put(object);
                self.decide_object((head, came), target, wish, &conditions).await
            }
            Change::Delete { target, nonce, by, conditions } => {
                let wish = Wish::Delete((nonce, by));
                self.decide_object((head, came), target, wish, &conditions).await
            }
            Change::DeleteVersion { target, version, conditions, bypass } => {
                let wish = Wish::DeleteVersion(version, bypass);
                self.decide_object((head, came), target, wish, &conditions).await
            }
            fact @ (Change::SetTags { .. } | Change::SetAcl { .. } | Change::SetLock { .. }) => {
                self.decide_fact(head, fact, came).await
            }
            upload => self.decide_upload(head, upload, came).await,
        }
    }

    async fn decide_object(
        self: &Rc<Self>,
        (head, came): (&RequestHead, Instant),
        target: Target,
        wish: Wish,
        conditions: &Conditions,
    ) -> Result<ChangeReply, Error> {
        let held = self.decisions.lock(&object_key(CURRENT, &target)).await;
        let (there, basis, mut replaced) = loop {
            let versioning = self.buckets.versioning(target.bucket);
            let (current, basis) = self.current(&target).await?;
            let has_current = current.is_some();
            let there = match wish {
                Wish::DeleteVersion(version, _) => {
                    self.find_version(&target, version, current).await?
                }
                _ => current,
            };
            let replaced = match (&wish, &there) {
                (Wish::DeleteVersion(..), None) => Replaced::default(),
                (Wish::DeleteVersion(..), Some(gone)) => {
                    self.without_version(&target, gone.clone(), has_current).await?
                }
                _ => self.replaced(&target, there.clone()).await?,
            };
            if let Some(unplaced) = replaced.unplaced() {
                self.decisions.settled_to_go_on(unplaced).await?;
            } else if versioning == self.buckets.versioning(target.bucket) {
                break (there, basis, replaced);
            }
        };
        // A look for a version is decided on several rows.
        let basis = match wish {
            Wish::DeleteVersion(..) => self.decisions.last(),
            _ => basis,
        };
        let refused = self.buckets.check_change(target.bucket).and_then(|()| {
            conditions.check(there.as_ref().map(|there| &there.row.info.object.facts.etag))
        });
        let default_retention = refused.and_then(|()| match &wish {
            Wish::Put(object) => self.default_retention(target.bucket, object.facts.lock),
            Wish::Delete(_) | Wish::DeleteVersion(..) => Ok(None),
        });
        let is_put = matches!(wish, Wish::Put(_));
        let call = conditions.call.filter(|_| is_put && !conditions.is_empty());
        let of_call = there.as_ref().filter(|old| call.is_some() && old.row.call == call);
        let of_call = of_call.filter(|_| !self.bugs.has(Planted::RetryLoses));
        let nothing = !is_put && there.is_none() && !replaced.is_versioned;
        let unchanged = match (&default_retention, of_call) {
            (Err(Error::Precondition), Some(old)) => {
                self.env.mark("object: an earlier attempt of the call has put it");
                let version = replaced.is_versioned.then(|| old.row.info.version());
                let stamp = old.row.info.stamp;
                let committed = Committed { stamp, version, marker: false };
                Some(Ok(ChangeReply { committed, by_earlier: true }))
            }
            (Err(error), _) => Some(Err(error.clone())),
            (Ok(_), _) if nothing => {
                let committed = Committed::default();
                Some(Ok(ChangeReply { committed, by_earlier: false }))
            }
            (Ok(_), _) => None,
        };
        if let Some(answer) = unchanged {
            drop(held);
            self.decisions.settled_for_refusal(basis).await?;
            self.check_lease()?;
            return answer;
        }
        let (mut new, mut marker, mut piece, mut bypass) = (None, None, None, false);
        match wish {
            Wish::Put(mut object) => {
                // Only an owner gives places.
                let is_placed =
                    matches!(object.data, ObjectData::Logged { .. } | ObjectData::Parts(_));
                if is_placed || !ObjectRow::holds(&object) {
                    return Err(too_long());
                }
                if let ObjectData::Piece(bytes) = &mut object.data {
                    piece = Some(Rc::new(std::mem::take(bytes)));
                }
                new = Some(object);
            }
            Wish::Delete(by) => {
                marker = replaced.is_versioned.then_some(by);
                if marker.is_some() && self.bugs.has(Planted::MarkerShown) {
                    replaced.kept = None;
                }
            }
            Wish::DeleteVersion(_, may) => bypass = may,
        }
        self.check_submit(head, came)?;
        let default_retention = default_retention?;
        let decided = Decided {
            target,
            new,
            marker,
            piece,
            replaced,
            ended_upload: None,
            call,
            default_retention,
            latest_us: self.latest_us(),
            bypass,
        };
        let last = self.decisions.last();
        let submitted = self.submit(head, decided, |_, _| {});
        drop(held);
        if submitted == Err(Error::Locked) {
            self.decisions.settled_for_refusal(last).await?;
            self.check_lease()?;
        }
        let (committed, basis) = submitted?;
        self.decisions.settled(basis).await?;
        Ok(ChangeReply { committed, by_earlier: false })
    }

    /// An error unless a change that came at a time may be submitted.
    pub(crate) fn check_submit(&self, head: &RequestHead, came: Instant) -> Result<(), Error> {
        match self.sessions.may_submit(head, came) {
            true => Ok(()),
            false => Err(Error::Busy { cause: "the time of the request is over".to_owned() }),
        }
    }

    /// Submits a put or delete with all that goes with it: usage, files, the answer, and what `also` puts.
    /// [`Error::Locked`] when a version would go that is locked.
    pub(crate) fn submit(
        self: &Rc<Self>,
        head: &RequestHead,
        decided: Decided,
        also: impl FnOnce(&mut Batch, Stamp),
    ) -> Result<(Committed, Basis), Error> {
        self.check_removal(&decided)?;
        if let Some(object) = &decided.new {
            self.files.check(&object.data)?;
        }
        let usage = self.usage_behind(&decided)?;
        let mut noted = Noted::default();
        let answer = |stamp| decided.committed(stamp);
        let done = self.submit_answered(head, answer, |batch, stamp| {
            noted = self.fill(batch, stamp, (&decided, usage));
            also(batch, stamp);
        })?;
        self.note(noted);
        self.usages.set(&decided.target, usage);
        Ok(done)
    }

    /// The same of a removal that no request asks for.
    pub(crate) fn submit_own(
        self: &Rc<Self>,
        decided: &Decided,
        also: impl FnOnce(&mut Batch),
    ) -> Result<Basis, Error> {
        if !self.bugs.has(Planted::ExpireLocked) {
            self.check_removal(decided)?;
        }
        let usage = self.usage_behind(decided)?;
        let mut noted = Noted::default();
        let (_, basis) = self.decisions.submit(|batch, stamp| {
            noted = self.fill(batch, stamp, (decided, usage));
            also(batch);
        })?;
        self.note(noted);
        self.usages.set(&decided.target, usage);
        Ok(basis)
    }

    fn usage_behind(&self, decided: &Decided) -> Result<BucketUsage, Error> {
        let bucket = decided.target.bucket;
        let usage = behind(self.usages.of(bucket), decided);
        usage.ok_or_else(|| damaged(&format!("the usage of {bucket}")))
    }

    /// Puts a change into a batch, with the usage behind it; what it changes in logs and files.
    fn fill(
        &self,
        batch: &mut Batch,
        stamp: Stamp,
        (decided, usage): (&Decided, BucketUsage),
    ) -> Noted {
        let places = fill(batch, stamp, decided);
        if decided.new.is_some() {
            batch.set_purpose(Purpose::Data); // Of small bodies too: deletions need the reserve.
        }
        put_row(batch, decided.target.bucket, usage);
        let gone = decided.replaced.gone.as_ref();
        let dead =
            gone.and_then(|gone| self.count_dead(batch, &decided.target, (&gone.row, gone.basis)));
        Noted { dead, files: Some(self.files.put(batch, &places)) }
    }

    /// A batch was submitted.
    fn note(&self, noted: Noted) {
        self.note_dead(noted.dead);
        noted.files.into_iter().for_each(|rows| self.files.know(rows));
    }

    /// Submits what `fill` puts into a batch, with the answer to its request.
    pub(crate) fn submit_answered(
        self: &Rc<Self>,
        head: &RequestHead,
        answer: impl Fn(Stamp) -> Committed,
        fill: impl FnOnce(&mut Batch, Stamp),
    ) -> Result<(Committed, Basis), Error> {
        let floor = self.sessions.floor(head.session);
        let over = self.replies_below(head.session, floor);
        let (stamp, basis) = self.decisions.submit(|batch, stamp| {
            fill(batch, stamp);
            let answer = encode_committed(&answer(stamp));
            batch.put(&reply_key(head.session, head.number), &answer);
            for &number in &over {
                batch.delete(&reply_key(head.session, number));
            }
        })?;
        let replies = &mut *self.replies.borrow_mut();
        let of_session = replies.entry(head.session).or_default();
        of_session.insert(head.number);
        for number in &over {
            of_session.remove(number);
        }
        Ok((answer(stamp), basis))
    }

    /// Puts the row of the log into a batch that replaces data in it. The result goes to
    /// [`Range::note_dead`] when the batch was submitted.
    pub(crate) fn count_dead(
        &self,
        batch: &mut Batch,
        target: &Target,
        (old, basis): (&ObjectRow, Basis),
    ) -> Option<Dead> {
        let object = &old.info.object;
        let body = Body { data_id: object.data_id, target: target.clone() };
        let bytes = body.head_len() as u64 + object.size;
        match old.log? {
            InLog::Unplaced => Some(Dead::Unplaced { batch: basis.batch(), bytes }),
            InLog::At(place) => {
                let mut row = self.decisions.logs.row(place.log());
                row.dead += bytes;
                batch.put(&number_key(LOG, place.log()), &row.encode());
                Some(Dead::In { log: place.log(), row })
            }
        }
    }

    /// A batch with what [`Range::count_dead`] has put was submitted.
    pub(crate) fn note_dead(&self, dead: Option<Dead>) {
        let logs = &self.decisions.logs;
        match dead {
            None => {}
            Some(Dead::Unplaced { batch, bytes }) => logs.will_have_died(batch, bytes),
            Some(Dead::In { log, row }) => logs.known(log, row),
        }
    }

    /// Requests of a session that are over and whose answers are rows; some of them.
    fn replies_below(&self, session: SessionId, floor: u64) -> Vec<u64> {
        let replies = self.replies.borrow();
        let of_session = replies.get(&session);
        of_session.map_or_else(Vec::new, |all| all.range(..floor).take(16).copied().collect())
    }

    /// Removes the answers to a session's requests, which all are over.
    pub(crate) async fn forget_session(&self, session: SessionId) -> Result<(), Error> {
        loop {
            let some = self.replies_below(session, u64::MAX);
            if some.is_empty() {
                self.once.forget_session(session);
                self.replies.borrow_mut().remove(&session);
                return Ok(());
            }
            let (_, basis) = self.decisions.submit(|batch, _| {
                for &number in &some {
                    batch.delete(&reply_key(session, number));
                }
            })?;
            if let Some(left) = self.replies.borrow_mut().get_mut(&session) {
                for number in &some {
                    left.remove(number);
                }
            }
            self.decisions.settled(basis).await?;
        }
    }

    /// Forgets what a bucket that is gone held: nothing.
    pub(crate) fn forget_bucket(&self, bucket: BucketId) {
        self.usages.forget(bucket);
        self.passes.forget(bucket);
        // The row is of no use; should it stay, it says that nothing is there.
        let _ = self.decisions.submit(|batch, _| {
            batch.delete(&number_key(USAGE, bucket.get()));
            batch.delete(&number_key(PASS, bucket.get()));
        });
    }
}

/// A row that cannot be read back would hold up its key and all listings.
pub(crate) fn too_long() -> Error {
    Error::Invalid { message: "the object has facts that are too long".to_owned() }
}
