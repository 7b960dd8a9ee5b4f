//! Other facts for an object that is there, without another content: tags, permissions, locks. All else of it
//! stays; its row is written again, at the same key.

use std::rc::Rc;

use object_proto::{
    BucketId, Change, ChangeReply, Committed, Error, ObjectData, RequestHead, Stamp, Target,
    VersionId, Versioning,
};
use runtime::Instant;
use table::Purpose;

use crate::decisions::damaged;
use crate::headers::Headers;
use crate::keys::{CURRENT, MAP, METADATA, object_key};
use crate::locks::without_lock;
use crate::map::decode_map;
use crate::new_fact::NewFact;
use crate::range::{Range, too_long};
use crate::row::{InLog, ObjectRow};
use crate::versions::{Version, beside};

impl Range {
    /// Makes a change of a fact of an object, or of a version of it.
    pub(crate) async fn decide_fact(
        self: &Rc<Self>,
        head: &RequestHead,
        change: Change,
        came: Instant,
    ) -> Result<ChangeReply, Error> {
        let (target, version, fact) = match change {
            Change::SetTags { target, version, tags } => (target, version, NewFact::Tags(tags)),
            Change::SetAcl { target, version, acl } => (target, version, NewFact::Acl(acl)),
            Change::SetLock { target, version, change, bypass } => {
                (target, version, NewFact::Lock(change, bypass))
            }
            _ => unreachable!("it concerns no fact alone"),
        };
        let target = &target;
        if !fact.fits() {
            return Err(too_long());
        }
        let held = self.decisions.lock(&object_key(CURRENT, target)).await;
        let found = loop {
            let found = self.meant(target, version).await?;
            match &found {
                // A row without a place is not written again: its place would be lost.
                Ok(found) if found.row.log == Some(InLog::Unplaced) => {
                    self.decisions.settled_to_go_on(found.basis).await?;
                }
                _ => break found,
            }
        };
        let last = self.decisions.last();
        let is_lock = matches!(fact, NewFact::Lock(..));
        let given = self.check_given(target.bucket, is_lock).and(found).and_then(|found| {
            let mut object = found.row.info.object.clone();
            fact.give(&mut object.facts, self.over_us())?;
            Ok((found, object))
        });
        let (Version { key, row, .. }, object) = match given {
            Ok(given) => given,
            Err(error) => {
                drop(held);
                self.decisions.settled_for_refusal(last).await?;
                self.check_lease()?;
                return Err(error);
            }
        };
        let ObjectRow { call, info, .. } = &row;
        let (value, metadata) = ObjectRow::encode(info.stamp, &object, *call, info.has_id);
        let apart = beside(METADATA, target, &row);
        let is_versioned = self.buckets.versioning(target.bucket) != Versioning::Off;
        let version = is_versioned.then(|| row.info.version());
        self.check_submit(head, came)?;
        let answer = |stamp: Stamp| Committed { stamp, version, marker: false };
        let (committed, basis) = self.submit_answered(head, answer, |batch, _| {
            batch.set_purpose(Purpose::Data);
            batch.put(&key, &value);
            match &metadata {
                Some(metadata) => {
                    batch.put(&apart, metadata);
                }
                None if row.metadata_apart => {
                    batch.delete(&apart);
                }
                None => {}
            }
        })?;
        drop(held);
        self.decisions.settled(basis).await?;
        Ok(ChangeReply { committed, by_earlier: false })
    }

    /// The bucket takes such a change.
    fn check_given(&self, bucket: BucketId, is_lock: bool) -> Result<(), Error> {
        self.buckets.check_change(bucket)?;
        match is_lock && self.buckets.rules(bucket).lock.is_none() {
            true => Err(without_lock()),
            false => Ok(()),
        }
    }

    /// The version that is meant, of a key that the caller holds, with all that has rows of its own; why there
    /// is none.
    async fn meant(
        &self,
        target: &Target,
        version: Option<VersionId>,
    ) -> Result<Result<Version, Error>, Error> {
        let (current, _) = self.current(target).await?;
        let found = match version {
            None => current.ok_or(Error::NoSuchKey),
            Some(version) => {
                let found = self.find_version(target, version, current).await?;
                found.ok_or(Error::NoSuchVersion)
            }
        };
        match found {
            Ok(found) if found.row.marker => {
                let (version, stamp) = (found.row.info.version(), found.row.info.stamp);
                Ok(Err(Error::Marker { version, stamp, asked: true }))
            }
            Ok(found) => {
                let row = self.whole_row(target, &found).await?;
                Ok(Ok(Version { row, ..found }))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// The row of a version with all that has rows of its own.
    async fn whole_row(&self, target: &Target, found: &Version) -> Result<ObjectRow, Error> {
        let mut row = found.row.clone();
        if row.metadata_apart {
            let apart = self.decisions.read(&beside(METADATA, target, &row)).await?.value;
            let apart = apart.and_then(|value| Headers::decode(&value));
            let (_, headers) =
                apart.ok_or_else(|| damaged(&format!("the metadata of {target}")))?;
            headers.give(&mut row.info.object.facts);
        }
        if row.map_apart
            && let ObjectData::Parts(map) = &mut row.info.object.data
        {
            let apart = self.decisions.read(&beside(MAP, target, &found.row)).await?.value;
            let apart = apart.and_then(|value| decode_map(&value, map.upload));
            *map = apart.ok_or_else(|| damaged(&format!("the parts of {target}")))?.1;
        }
        Ok(row)
    }
}
