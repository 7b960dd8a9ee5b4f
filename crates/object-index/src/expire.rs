//! What lifecycle does with a key (`object-protocols.md` 11.1): an object expires, older versions and lone delete
//! markers are removed, an upload is aborted.
//!
//! All of it is decided under the key's lock, on the rows and rules of that moment: what a pass has read before
//! says only which keys are worth a look. Between the last look at the rules and the batch nothing is awaited, so
//! behind the answer to a change of rules nothing is done by the former ones. Locks hold, as [`Range::submit_own`]
//! asks them.

use std::rc::Rc;
use std::sync::Arc;

use object_proto::{
    Aging, BucketId, BucketUsage, Error, Lifecycle, NewObject, ObjectTags, Stamp, Target,
    Versioning,
};
use table::{Batch, Purpose, Range as Rows, Snapshot};

use crate::decisions::{Basis, damaged, of_table};
use crate::headers::Headers;
use crate::keys::{CURRENT, METADATA, VERSIONS, due_key, object_key, read_version_key, upload_key};
use crate::limits::{EXPIRED_AT_ONCE, PARTS_SLICE};
use crate::pass_rows::{BucketPassRow, put_pass};
use crate::planted::Planted;
use crate::range::Range;
use crate::row::ObjectRow;
use crate::upload_row::{Due, UploadRow};
use crate::usage::{put_row, without_upload};
use crate::versions::{Decided, Replaced, Version, beside};

/// What rules look at of a version with these tags.
pub(crate) fn aging<'a>(target: &'a Target, object: &NewObject, tags: &'a ObjectTags) -> Aging<'a> {
    let size = object.content_size().unwrap_or(object.size);
    Aging { key: target.key.as_str(), tags, size }
}

/// The tags of a version, of which `beside` is the row of its metadata, where that is apart.
pub(crate) fn tags_of(
    target: &Target,
    row: &ObjectRow,
    beside: Option<Vec<u8>>,
) -> Result<ObjectTags, Error> {
    if !row.metadata_apart {
        return Ok(row.info.object.facts.tags.clone());
    }
    let apart = beside.and_then(|value| Headers::decode(&value));
    let apart = apart.filter(|(stamp, _)| *stamp == row.info.stamp);
    let (_, headers) = apart.ok_or_else(|| damaged(&format!("the metadata of {target}")))?;
    Ok(headers.tags)
}

impl Range {
    /// The rules that count; those that a pass has read are `seen`.
    fn rules_now(&self, bucket: BucketId, seen: &Arc<Lifecycle>) -> Option<Arc<Lifecycle>> {
        match self.has_bug(Planted::ExpireByOldRules) {
            true => Some(seen.clone()),
            false => self.lifecycle(bucket),
        }
    }

    /// The rules of a bucket that takes changes.
    pub(crate) fn lifecycle(&self, bucket: BucketId) -> Option<Arc<Lifecycle>> {
        self.buckets.check_change(bucket).ok()?;
        self.buckets.rules(bucket).lifecycle
    }

    /// What is due by this time is due, microseconds since 1970: the time by which locks end.
    pub(crate) fn expired_us(&self) -> u64 {
        match self.has_bug(Planted::ExpireByClock) {
            true => crate::decisions::unix_us(&self.env),
            false => self.clock_us().unwrap_or(0),
        }
    }

    /// Tags of a version as it is durable, where rules ask for them.
    pub(crate) async fn durable_tags(
        &self,
        rows: &Snapshot,
        target: &Target,
        (row, rules): (&ObjectRow, &Lifecycle),
    ) -> Result<ObjectTags, Error> {
        let beside = match row.metadata_apart && rules.asks_for_tags() {
            true => rows.get(&beside(METADATA, target, row)).await.map_err(of_table)?,
            false if row.metadata_apart => return Ok(ObjectTags::default()),
            false => None,
        };
        tags_of(target, row, beside)
    }

    /// Submits what lifecycle does with a version, or with an upload, and counts it.
    fn submit_counted(
        self: &Rc<Self>,
        bucket: BucketId,
        submit: impl FnOnce(&dyn Fn(&mut Batch)) -> Result<Basis, Error>,
    ) -> Result<Basis, Error> {
        let before = self.passes.bucket(bucket).unwrap_or_default();
        let row = BucketPassRow { removed: before.removed + 1, ..before };
        let basis = submit(&|batch| put_pass(batch, bucket, row))?;
        self.passes.set(bucket, row);
        Ok(basis)
    }

    /// Has the current object of a key expire, if it is due. A pass has read the rules and the tags that it has `seen`.
    pub(crate) async fn expire_current(
        self: &Rc<Self>,
        target: &Target,
        seen: (&Arc<Lifecycle>, &ObjectTags),
    ) -> Result<Option<Basis>, Error> {
        let bucket = target.bucket;
        let held = self.decisions.lock(&object_key(CURRENT, target)).await;
        let (current, replaced) = loop {
            let versioning = self.buckets.versioning(bucket);
            let (current, _) = self.current(target).await?;
            let Some(current) = current else { return Ok(None) };
            let apart = match current.row.metadata_apart {
                true => self.decisions.read(&beside(METADATA, target, &current.row)).await?.value,
                false => None,
            };
            let mut tags = tags_of(target, &current.row, apart)?;
            let replaced = self.replaced(target, Some(current.clone())).await?;
            if let Some(unplaced) = replaced.unplaced() {
                self.decisions.settled_to_go_on(unplaced).await?;
                continue;
            }
            if versioning != self.buckets.versioning(bucket) {
                continue;
            }
            // Nothing is awaited from here to the batch.
            let Some(rules) = self.rules_now(bucket, seen.0) else { return Ok(None) };
            if self.has_bug(Planted::ExpireForgetsTags) {
                tags.clone_from(seen.1);
            }
            let info = &current.row.info;
            let found = rules.expiry(aging(target, &info.object, &tags), info.stamp, self.day);
            let is_due = found.is_some_and(|(due_us, _)| due_us <= self.expired_us());
            if !is_due && !self.has_bug(Planted::ExpireByKey) {
                self.env.mark("object: an object has changed before it expired");
                return Ok(None);
            }
            break (current, replaced);
        };
        let by = (self.env.random_u64(), current.row.info.object.facts.owner.clone());
        let marker = replaced.is_versioned.then_some(by);
        let decided = self.removal(target, replaced, marker);
        let submitted =
            self.submit_counted(bucket, |count| self.submit_own(&decided, |batch| count(batch)));
        drop(held);
        match submitted {
            Ok(basis) => {
                self.env.mark("object: an object expires");
                Ok(Some(basis))
            }
            Err(Error::Locked) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn removal(
        &self,
        target: &Target,
        replaced: Replaced,
        marker: Option<crate::versions::Marker>,
    ) -> Decided {
        Decided {
            target: target.clone(),
            new: None,
            marker,
            piece: None,
            replaced,
            ended_upload: None,
            call: None,
            default_retention: None,
            latest_us: 0,
            bypass: false,
        }
    }

    /// Removes the older versions of a key that are due, and a delete marker that hides none; returns how many.
    pub(crate) async fn expire_versions(
        self: &Rc<Self>,
        target: &Target,
        seen: &Arc<Lifecycle>,
    ) -> Result<u64, Error> {
        let mut removed = 0;
        loop {
            let held = self.decisions.lock(&object_key(CURRENT, target)).await;
            // All rows of the key are durable then, and stay what they are while it is held.
            self.decisions.settled_to_go_on(self.decisions.last()).await?;
            let Some(rules) = self.rules_now(target.bucket, seen) else { return Ok(removed) };
            let (due, more) = self.due_versions(target, &rules).await?;
            let mut last = None;
            for gone in due {
                if self.rules_now(target.bucket, seen).is_none_or(|now| now != rules) {
                    break;
                }
                let is_versioned = self.buckets.versioning(target.bucket) != Versioning::Off;
                let is_marker = gone.row.marker;
                let replaced = Replaced { gone: Some(gone), is_versioned, ..Replaced::default() };
                let decided = self.removal(target, replaced, None);
                let submitted = self.submit_counted(target.bucket, |count| {
                    self.submit_own(&decided, |batch| count(batch))
                });
                match submitted {
                    Ok(basis) => {
                        self.env.mark(match is_marker {
                            true => "object: a delete marker is removed by its age",
                            false => "object: an older version is removed by its age",
                        });
                        last = Some(basis);
                        removed += 1;
                    }
                    // Its lock has not ended after all.
                    Err(Error::Locked) => {}
                    Err(error) => return Err(error),
                }
            }
            drop(held);
            if let Some(basis) = last {
                self.decisions.settled(basis).await?;
            }
            if !more || last.is_none() {
                return Ok(removed);
            }
        }
    }

    /// True while a version is locked.
    fn is_kept(&self, version: &Version) -> bool {
        let lock = version.row.info.object.facts.lock;
        let is_kept = !lock.is_none() && lock.check_removal(self.over_us(), false).is_err();
        is_kept && !self.has_bug(Planted::ExpireLocked)
    }

    /// Older versions of a key that are due and not locked, and a delete marker that hides none, of a key that the caller holds
    /// and whose rows are durable; whether there may be more.
    async fn due_versions(
        &self,
        target: &Target,
        rules: &Lifecycle,
    ) -> Result<(Vec<Version>, bool), Error> {
        let (rows, now_us, day) = (self.decisions.snapshot(), self.expired_us(), self.day);
        let key = object_key(CURRENT, target);
        let current = rows.get(&key).await.map_err(of_table)?;
        let current = current.map(|value| Version::read(target, key, value, Basis::default()));
        let mut since = current.transpose()?.map(|version| version.row.info.stamp);
        let (mut lone, mut due, mut newer, mut seen) = (None, Vec::new(), 0, 0);
        let mut scan = rows.scan(Rows::prefix(&object_key(VERSIONS, target)));
        while let Some((key, value)) = scan.next().await.map_err(of_table)? {
            seen += 1;
            if seen % PARTS_SLICE == 0 {
                self.env.yield_now().await;
            }
            let (_, stamp) = read_version_key(&key)
                .ok_or_else(|| damaged(&format!("the key of a version of {target}")))?;
            let version = Version::read(target, key, value, Basis::default())?;
            let Some(newest) = since.replace(stamp) else {
                // Without a current object the newest is a marker.
                lone = Some(version);
                continue;
            };
            let tags = self.durable_tags(&rows, target, (&version.row, rules)).await?;
            let object = aging(target, &version.row.info.object, &tags);
            let from = if self.has_bug(Planted::NoncurrentByOwnAge) { stamp } else { newest };
            let due_us = rules.noncurrent_due_us(object, (from, newer), day);
            newer += u32::from(!version.row.marker);
            if due_us.is_none_or(|due_us| due_us > now_us) {
                continue;
            }
            // They would be in the way of others.
            if self.is_kept(&version) {
                self.env.mark("object: a locked version outlives its days");
                continue;
            }
            due.push(version);
            if due.len() == EXPIRED_AT_ONCE {
                return Ok((due, true));
            }
        }
        if let (Some(marker), 1) = (lone, seen) {
            let due_us = rules.marker_due_us(target.key.as_str(), marker.row.info.stamp, day);
            due.extend(due_us.is_some_and(|due_us| due_us <= now_us).then_some(marker));
        }
        Ok((due, false))
    }

    /// Aborts an upload that has been under way for as many days as a rule gives it.
    pub(crate) async fn expire_upload(
        self: &Rc<Self>,
        (target, begun): (&Target, Stamp),
    ) -> Result<Option<Basis>, Error> {
        let held = self.decisions.lock(&object_key(CURRENT, target)).await;
        let key = upload_key(target, begun);
        let Some(value) = self.decisions.read(&key).await?.value else { return Ok(None) };
        let row = UploadRow::decode(&value);
        let row = row.ok_or_else(|| damaged(&format!("an upload of {target}")))?;
        if row.end.is_some() {
            return Ok(None);
        }
        let part_bytes = self.part_bytes(target, begun).await?;
        // Nothing is awaited from here to the batch.
        let Some(rules) = self.lifecycle(target.bucket) else { return Ok(None) };
        let found = rules.abort_due(target.key.as_str(), begun, self.day);
        if found.is_none_or(|(due_us, _)| due_us > self.expired_us()) {
            return Ok(None);
        }
        let usage: BucketUsage = without_upload(self.usages.of(target.bucket), part_bytes);
        let basis = self.submit_counted(target.bucket, |count| {
            let (_, basis) = self.decisions.submit(|batch, stamp| {
                batch.set_purpose(Purpose::Recovery);
                batch.delete(&key);
                batch.delete(&due_key(row.abort_us, target, begun));
                batch.put(&due_key(stamp.get(), target, begun), &Due::Parts(None).encode());
                put_row(batch, target.bucket, usage);
                count(batch);
            })?;
            Ok(basis)
        })?;
        self.usages.set(target, usage);
        drop(held);
        self.env.mark("object: an upload is aborted by a rule");
        Ok(Some(basis))
    }
}
