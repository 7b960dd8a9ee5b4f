//! Other facts for an object that is there, without another content: tags, permissions. All else of it
//! stays; its row is written again, at the same key.

use std::rc::Rc;

use object_proto::{
    ChangeReply, Committed, Error, ObjectData, RequestHead, Stamp, Target, VersionId, Versioning,
};
use runtime::Instant;
use table::Purpose;

use crate::decisions::damaged;
use crate::headers::Headers;
use crate::keys::{CURRENT, MAP, METADATA, object_key};
use crate::map::decode_map;
use crate::new_fact::NewFact;
use crate::range::{Range, too_long};
use crate::row::{InLog, ObjectRow};
use crate::versions::{Version, beside};

impl Range {
    /// Gives an object, or a version of it, another fact.
    pub(crate) async fn set_fact(
        self: &Rc<Self>,
        (head, came): (&RequestHead, Instant),
        target: &Target,
        version: Option<VersionId>,
        fact: NewFact,
    ) -> Result<ChangeReply, Error> {
        if !fact.fits() {
            return Err(too_long());
        }
        let held = self.decisions.lock(&object_key(CURRENT, target)).await;
        let found = loop {
            let found = self.meant(target, version).await?;
            match &found {
                // A row without a place is not written again: its place would be lost.
                Ok(found) if found.row.log == Some(InLog::Unplaced) => {
                    self.decisions.settled_for_refusal(found.basis).await?;
                }
                _ => break found,
            }
        };
        let last = self.decisions.last();
        let found = match self.buckets.check_change(target.bucket).and(found) {
            Ok(found) => found,
            Err(error) => {
                drop(held);
                self.decisions.settled_for_refusal(last).await?;
                self.check_lease()?;
                return Err(error);
            }
        };
        let row = self.whole_row(target, &found).await?;
        let mut object = row.info.object.clone();
        fact.give(&mut object.facts);
        let ObjectRow { call, info, .. } = &row;
        let (value, metadata) = ObjectRow::encode(info.stamp, &object, *call, info.has_id);
        let apart = beside(METADATA, target, &row);
        let is_versioned = self.buckets.versioning(target.bucket) != Versioning::Off;
        let version = is_versioned.then(|| row.info.version());
        self.check_submit(head, came)?;
        let answer = |stamp: Stamp| Committed { stamp, version, marker: false };
        let (committed, basis) = self.submit_answered(head, answer, |batch, _| {
            batch.set_purpose(Purpose::Data);
            batch.put(&found.key, &value);
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

    /// The version that is meant, of a key that the caller holds; why there is none.
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
        Ok(found.and_then(|found| match found.row.marker {
            true => {
                let (version, stamp) = (found.row.info.version(), found.row.info.stamp);
                Err(Error::Marker { version, stamp, asked: true })
            }
            false => Ok(found),
        }))
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
