//! Multipart uploads (`object-protocols.md` 8): decided under the lock of their object's key, like all that
//! concerns it.

use std::rc::Rc;

use object_proto::limits::{LIST_MAX, PARTS_MAX};
use object_proto::{
    BucketId, Change, ChangeReply, Committed, Completion, Conditions, DataId, Error, NewObject,
    NewUpload, ObjectData, ObjectFacts, ObjectInfo, Part, PartMap, PartNumber, PartsPage,
    PartsRequest, RequestHead, Stamp, Target, UploadEnd, UploadId, UploadInfo,
};
use runtime::{Duration, Instant};
use table::{Purpose, Range as Rows, Snapshot};

use crate::body_files::Places;
use crate::decisions::{Basis, damaged, of_table};
use crate::file_rows::FileOf;
use crate::keys::{
    CURRENT, UPLOAD, UPLOAD_END, above_part, bucket_prefix, due_key, object_key, part_key,
    parts_prefix, read_part_key, read_upload_key, upload_end_key, upload_key,
};
use crate::limits::{COLLECT_ROWS, PART_BODIES_MAX, PARTS_SLICE};
use crate::planted::Planted;
use crate::range::{Range, too_long};
use crate::row::ObjectRow;
use crate::upload_row::{Due, UploadRow};
use crate::usage::{put_row, without_upload};
use crate::versions::{Decided, put_unused};

/// A row of a part.
pub(crate) fn part_row(value: &[u8], target: &Target) -> Result<ObjectInfo, Error> {
    let row = ObjectRow::decode(value);
    Ok(row.ok_or_else(|| damaged(&format!("a part of {target}")))?.info)
}

fn later(stamp: Stamp, age: Duration) -> u64 {
    stamp.get().saturating_add(age.as_micros() as u64)
}

impl Range {
    /// Makes a change of an upload.
    pub(crate) async fn decide_upload(
        self: &Rc<Self>,
        head: &RequestHead,
        change: Change,
        came: Instant,
    ) -> Result<ChangeReply, Error> {
        let held = self.decisions.lock(&object_key(CURRENT, change.target())).await;
        let submitted = match change {
            Change::BeginUpload { target, upload } => {
                self.begin_upload((head, came), &target, *upload)
            }
            Change::PutPart { target, upload, number, part } => {
                self.put_part((head, came), &target, (upload, number), *part).await
            }
            Change::CompleteUpload { target, completion, conditions } => {
                self.complete((head, came), target, *completion, &conditions).await
            }
            Change::AbortUpload { target, upload } => {
                self.abort((head, came), &target, upload).await
            }
            Change::Put { .. }
            | Change::Delete { .. }
            | Change::DeleteVersion { .. }
            | Change::SetTags { .. }
            | Change::SetAcl { .. }
            | Change::SetLock { .. } => {
                unreachable!("it concerns no upload")
            }
        };
        drop(held);
        match submitted {
            Ok((committed, basis)) => {
                self.decisions.settled(basis).await?;
                Ok(ChangeReply { committed, by_earlier: false })
            }
            Err(Refused { basis: None, error }) => Err(error),
            Err(Refused { basis: Some(basis), error }) => {
                self.decisions.settled_for_refusal(basis).await?;
                self.check_lease()?;
                Err(error)
            }
        }
    }

    fn begin_upload(
        self: &Rc<Self>,
        (head, came): (&RequestHead, Instant),
        target: &Target,
        upload: NewUpload,
    ) -> Submitted {
        let known = self.buckets.check_change(target.bucket);
        known.map_err(|error| Refused { basis: Some(Basis::default()), error })?;
        self.default_retention(target.bucket, upload.lock)
            .map_err(|error| Refused { basis: Some(Basis::default()), error })?;
        if !UploadRow::holds(&upload) {
            return Err(too_long().into());
        }
        self.check_submit(head, came)?;
        let age = self.upload_times.age;
        let mut usage = self.usages.of(target.bucket);
        usage.uploads += 1;
        let done = self.submit_answered(head, plain, |batch, stamp| {
            batch.set_purpose(Purpose::Data);
            let abort_us = later(stamp, age);
            let row = UploadRow { upload, abort_us, end: None };
            batch.put(&upload_key(target, stamp), &row.encode());
            batch.put(&due_key(abort_us, target, stamp), &Due::Abort.encode());
            put_row(batch, target.bucket, usage);
        })?;
        self.usages.set(target, usage);
        Ok(done)
    }

    /// The row of an upload that is under way, submitted or durable. The caller holds its key.
    async fn open_upload(
        &self,
        target: &Target,
        upload: UploadId,
        ended_too: Option<Planted>,
    ) -> Result<(UploadRow, Basis), Refused> {
        let seen = self.decisions.read(&upload_key(target, upload.stamp)).await?;
        let refused = |error| Refused { basis: Some(seen.basis), error };
        let ended_too = ended_too.is_some_and(|bug| self.has_bug(bug));
        let value = match ended_too && seen.value.is_none() {
            true => self.decisions.read(&upload_end_key(target, upload.stamp)).await?.value,
            false => seen.value,
        };
        self.buckets.check_change(target.bucket).map_err(refused)?;
        let Some(value) = value else { return Err(refused(Error::NoSuchUpload)) };
        let row = UploadRow::decode(&value);
        let row = row.ok_or_else(|| damaged(&format!("an upload of {target}")))?;
        let is_it = row.upload.nonce == upload.nonce && (row.end.is_none() || ended_too);
        if is_it { Ok((row, seen.basis)) } else { Err(refused(Error::NoSuchUpload)) }
    }

    async fn put_part(
        self: &Rc<Self>,
        (head, came): (&RequestHead, Instant),
        target: &Target,
        (upload, number): (UploadId, PartNumber),
        mut part: NewObject,
    ) -> Submitted {
        let key = part_key(target, upload.stamp, number);
        // Read first: between the look at the upload and the batch nothing is awaited.
        let old = self.decisions.read(&key).await?.value;
        let old = old.map(|value| part_row(&value, target)).transpose()?;
        let open = self.open_upload(target, upload, Some(Planted::PartAfterEnd)).await;
        if !self.has_bug(Planted::PartAfterEnd) {
            open?;
        }
        part.facts = ObjectFacts {
            etag: part.facts.etag,
            checksums: part.facts.checksums,
            ..ObjectFacts::default()
        };
        let may = matches!(part.data, ObjectData::Inline(_) | ObjectData::File { .. });
        if !may || !ObjectRow::holds(&part) {
            return Err(too_long().into());
        }
        self.check_submit(head, came)?;
        self.files.check(&part.data)?;
        let (as_part, mut files) = (FileOf::Part(upload.stamp, number), None);
        let mut usage = self.usages.of(target.bucket);
        let gone = old.as_ref().map_or(0, |old| old.object.size);
        usage.upload_bytes = usage.upload_bytes.saturating_sub(gone).saturating_add(part.size);
        let done = self.submit_answered(head, plain, |batch, stamp| {
            batch.set_purpose(Purpose::Data);
            batch.put(&key, &ObjectRow::encode(stamp, &part, None, false).0);
            let mut places = Places::default();
            places.give(batch, (target, as_part), &part);
            if let Some(old) = old.filter(|_| !self.has_bug(Planted::PartLeak)) {
                put_unused(batch, stamp, (target, as_part), &old.object, &mut places);
            }
            files = Some(self.files.put(batch, &places));
            put_row(batch, target.bucket, usage);
        })?;
        files.into_iter().for_each(|rows| self.files.know(rows));
        self.usages.set(target, usage);
        Ok(done)
    }

    async fn complete(
        self: &Rc<Self>,
        (head, came): (&RequestHead, Instant),
        target: Target,
        completion: Completion,
        conditions: &Conditions,
    ) -> Submitted {
        let Completion { upload: id, parts, etag, checksums } = completion;
        // The key is held, so all parts are durable rows then, and stay what they are.
        let last = self.decisions.last();
        self.decisions.settled_for_refusal(last).await?;
        let (map, NamedParts { others, bytes: part_bytes }) =
            self.named_parts(&target, id, &parts).await?;
        let (current, basis) = self.current(&target).await?;
        let versioning = self.buckets.versioning(target.bucket);
        let replaced = self.replaced(&target, current.clone()).await?;
        let (row, _) = self.open_upload(&target, id, Some(Planted::CompleteTwice)).await?;
        let refused = |error| Refused { basis: Some(basis), error };
        let there = current.as_ref().map(|there| &there.row.info.object.facts.etag);
        conditions.check(there).map_err(refused)?;
        let map = map.map_err(refused)?;
        let NewUpload { metadata, tags, owner, acl, lock, encryption, .. } = row.upload.clone();
        let default_retention = self.default_retention(target.bucket, lock).map_err(refused)?;
        let facts = ObjectFacts { etag, checksums, metadata, tags, owner, acl, lock, encryption };
        let object = Box::new(NewObject {
            data_id: DataId::new(u128::from(id.nonce) << 64 | u128::from(id.stamp.get())),
            size: map.size(),
            facts,
            data: ObjectData::Parts(map.clone()),
        });
        let end = |stamp| UploadEnd {
            stamp,
            etag: object.facts.etag.clone(),
            checksums: object.facts.checksums.clone(),
        };
        if !ObjectRow::holds(&object) || !UploadRow::holds_end(&end(Stamp::default())) {
            return Err(too_long().into());
        }
        self.check_submit(head, came)?;
        let (new, end_age) = (Some(object.clone()), self.upload_times.end_age);
        let is_other = versioning != self.buckets.versioning(target.bucket);
        if replaced.unplaced().is_some() || is_other {
            let cause = "the object that is there is being moved".to_owned();
            return Err(Error::Busy { cause }.into());
        }
        let target = target.clone();
        let (marker, piece, call) = (None, None, None);
        let stay = self.has_bug(Planted::PartsStayCounted);
        let ended_upload = Some(if stay { 0 } else { part_bytes });
        let decided = Decided {
            target: target.clone(),
            new,
            marker,
            piece,
            replaced,
            ended_upload,
            call,
            default_retention,
            latest_us: self.latest_us(),
            bypass: false,
        };
        let last = self.decisions.last();
        let submitted = self.submit(head, decided, |batch, stamp| {
            batch.delete(&due_key(row.abort_us, &target, id.stamp));
            let forget = due_key(later(stamp, end_age), &target, id.stamp);
            batch.put(&forget, &Due::Forget.encode());
            if others {
                let due = due_key(stamp.get(), &target, id.stamp);
                batch.put(&due, &Due::OtherParts(map).encode());
            }
            let row = UploadRow { end: Some(end(stamp)), ..row };
            batch.delete(&upload_key(&target, id.stamp));
            batch.put(&upload_end_key(&target, id.stamp), &row.encode());
        });
        submitted.map_err(|error| match error {
            Error::Locked => Refused { basis: Some(last), error },
            error => error.into(),
        })
    }

    /// The map of the parts that are named, and what there is of parts. The caller holds the key, and
    /// all parts are durable.
    async fn named_parts(
        &self,
        target: &Target,
        upload: UploadId,
        named: &[(PartNumber, DataId)],
    ) -> Result<(Result<PartMap, Error>, NamedParts), Error> {
        if named.is_empty() || !named.is_sorted_by(|a, b| a.0 < b.0) {
            let message = "the parts of an object are in ascending order".to_owned();
            return Ok((Err(Error::Invalid { message }), NamedParts::default()));
        }
        let rows = self.decisions.snapshot();
        let mut scan = rows.scan(Rows::prefix(&parts_prefix(target, upload.stamp)));
        let (mut found, mut seen, mut bytes) = (Vec::new(), 0, 0);
        while let Some((key, value)) = scan.next().await.map_err(of_table)? {
            seen += 1;
            if seen % PARTS_SLICE == 0 {
                self.env.yield_now().await;
            }
            let (_, _, number) =
                read_part_key(&key).ok_or_else(|| damaged(&format!("a part of {target}")))?;
            let part = part_row(&value, target)?.object;
            bytes += part.size;
            let wanted = named.get(found.len()).filter(|(wanted, _)| *wanted == number);
            if wanted.is_some_and(|(_, data_id)| part.data_id == *data_id) {
                found.push((number, part.size));
            }
        }
        let map = match named.get(found.len()) {
            Some((missing, _)) => Err(Error::NoSuchPart { number: missing.get() }),
            None => Ok(PartMap::of(upload, found)),
        };
        Ok((map, NamedParts { others: seen > named.len(), bytes }))
    }

    async fn abort(
        self: &Rc<Self>,
        (head, came): (&RequestHead, Instant),
        target: &Target,
        upload: UploadId,
    ) -> Submitted {
        let part_bytes = self.part_bytes(target, upload.stamp).await?;
        let (row, _) = self.open_upload(target, upload, None).await?;
        self.check_submit(head, came)?;
        let usage = without_upload(self.usages.of(target.bucket), part_bytes);
        let done = self.submit_answered(head, plain, |batch, stamp| {
            batch.delete(&upload_key(target, upload.stamp));
            batch.delete(&due_key(row.abort_us, target, upload.stamp));
            batch.put(&due_key(stamp.get(), target, upload.stamp), &Due::Parts(None).encode());
            put_row(batch, target.bucket, usage);
        })?;
        self.usages.set(target, usage);
        Ok(done)
    }

    /// Bytes of the parts of an upload, whose key the caller holds: so they stay what they are.
    pub(crate) async fn part_bytes(&self, target: &Target, begun: Stamp) -> Result<u64, Error> {
        self.decisions.settled_to_go_on(self.decisions.last()).await?;
        let rows = self.decisions.snapshot();
        let mut scan = rows.scan(Rows::prefix(&parts_prefix(target, begun)));
        let (mut seen, mut bytes) = (0, 0);
        while let Some((_, value)) = scan.next().await.map_err(of_table)? {
            seen += 1;
            if seen % PARTS_SLICE == 0 {
                self.env.yield_now().await;
            }
            bytes += part_row(&value, target)?.object.size;
        }
        Ok(bytes)
    }

    /// Ends the uploads of a bucket that is gone, and forgets those that were completed.
    pub(crate) async fn abort_all(self: &Rc<Self>, bucket: BucketId) -> Result<(), Error> {
        self.remove_uploads(&bucket_prefix(UPLOAD, bucket)).await?;
        self.remove_uploads(&bucket_prefix(UPLOAD_END, bucket)).await
    }

    async fn remove_uploads(self: &Rc<Self>, prefix: &[u8]) -> Result<(), Error> {
        loop {
            let rows = self.decisions.snapshot();
            let rows = rows.scan(Rows::prefix(prefix)).take(COLLECT_ROWS).await;
            let rows = rows.map_err(of_table)?;
            let mut known = Vec::new();
            for (key, value) in &rows {
                let row = read_upload_key(key).zip(UploadRow::decode(value));
                let ((target, begun), row) = row.ok_or_else(|| damaged("an upload"))?;
                known.push((key, target, begun, row.end.is_none()));
            }
            if known.is_empty() {
                return Ok(());
            }
            let (_, basis) = self.decisions.submit(|batch, stamp| {
                for (key, target, begun, is_open) in &known {
                    batch.delete(key);
                    if *is_open {
                        let due = due_key(stamp.get(), target, *begun);
                        batch.put(&due, &Due::Parts(None).encode());
                    }
                }
            })?;
            self.decisions.settled(basis).await?;
        }
    }

    /// An upload as it is durable.
    pub(crate) async fn find_upload(
        &self,
        target: &Target,
        upload: UploadId,
    ) -> Result<UploadInfo, Error> {
        self.buckets.check(target.bucket)?;
        self.upload_in(&self.decisions.snapshot(), target, upload).await
    }

    async fn upload_in(
        &self,
        rows: &Snapshot,
        target: &Target,
        upload: UploadId,
    ) -> Result<UploadInfo, Error> {
        let mut value = rows.get(&upload_key(target, upload.stamp)).await.map_err(of_table)?;
        if value.is_none() {
            let end = upload_end_key(target, upload.stamp);
            value = rows.get(&end).await.map_err(of_table)?;
        }
        let row = UploadRow::decode(&value.ok_or(Error::NoSuchUpload)?);
        let row = row.ok_or_else(|| damaged(&format!("an upload of {target}")))?;
        match row.upload.nonce == upload.nonce {
            true => Ok(row.info(upload.stamp)),
            false => Err(Error::NoSuchUpload),
        }
    }

    /// Durable parts of an upload, some of them, in order; and whether there are more.
    async fn parts_in(
        &self,
        rows: &Snapshot,
        ask: &PartsRequest,
        limit: u32,
    ) -> Result<(Vec<(PartNumber, ObjectInfo)>, bool), Error> {
        let (target, begun) = (&ask.target, ask.upload.stamp);
        let from = above_part(target, begun, ask.after.min(PARTS_MAX));
        let to = above_part(target, begun, PARTS_MAX);
        let (limit, mut parts) = (limit as usize, Vec::new());
        let mut scan = rows.scan(Rows::between(&from, &to));
        while let Some((key, value)) = scan.next().await.map_err(of_table)? {
            if parts.len() == limit {
                return Ok((parts, true));
            }
            let number = read_part_key(&key).map(|(_, _, number)| number);
            let number = number.ok_or_else(|| damaged(&format!("a part of {target}")))?;
            parts.push((number, part_row(&value, target)?));
        }
        Ok((parts, false))
    }

    /// A page of an upload's parts, as they are at one time.
    pub(crate) async fn list_parts(&self, ask: &PartsRequest) -> Result<PartsPage, Error> {
        self.buckets.check(ask.target.bucket)?;
        let rows = self.decisions.snapshot();
        if self.upload_in(&rows, &ask.target, ask.upload).await?.end.is_some() {
            return Err(Error::NoSuchUpload);
        }
        let (parts, more) = self.parts_in(&rows, ask, ask.limit.min(LIST_MAX)).await?;
        let part = |(number, info): (PartNumber, ObjectInfo)| Part {
            number,
            stamp: info.stamp,
            data_id: info.object.data_id,
            size: info.object.size,
            etag: info.object.facts.etag,
            checksums: info.object.facts.checksums,
        };
        Ok(PartsPage { parts: parts.into_iter().map(part).collect(), more })
    }

    /// Bodies of an object's parts. Its upload may be forgotten.
    pub(crate) async fn part_bodies(
        &self,
        ask: &PartsRequest,
    ) -> Result<Vec<(PartNumber, ObjectInfo)>, Error> {
        self.buckets.check(ask.target.bucket)?;
        let limit = ask.limit.min(PART_BODIES_MAX);
        Ok(self.parts_in(&self.decisions.snapshot(), ask, limit).await?.0)
    }
}

/// Parts of an upload, whether they are named or not.
#[derive(Default)]
struct NamedParts {
    /// There are some that are not named.
    others: bool,
    /// Bytes of all of them.
    bytes: u64,
}

/// Why a change was not submitted.
struct Refused {
    /// The answer waits until this is durable; without it nothing was decided.
    basis: Option<Basis>,
    error: Error,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { basis: None, error }
    }
}

type Submitted = Result<(Committed, Basis), Refused>;

/// The answer to a change that makes no object.
fn plain(stamp: Stamp) -> Committed {
    Committed { stamp, ..Committed::default() }
}
