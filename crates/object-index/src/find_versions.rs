//! Versions of a key as the range has them: those that a change concerns, whose key its decision holds, and
//! those that readers are shown.

use object_proto::{Error, Stamp, Target, VersionId, Versioning};
use table::{Range as Rows, Snapshot};

use crate::decisions::{Basis, damaged, of_table};
use crate::keys::{CURRENT, NULL, VERSIONS, object_key, version_key};
use crate::planted::Planted;
use crate::range::Range;
use crate::row::{ObjectRow, decode_stamp};
use crate::versions::{Replaced, Version};

impl Range {
    /// The current object of a key that the caller holds, and the batch that put or removed it.
    pub(crate) async fn current(&self, target: &Target) -> Result<(Option<Version>, Basis), Error> {
        let key = object_key(CURRENT, target);
        let seen = self.decisions.read(&key).await?;
        let Some(value) = seen.value else { return Ok((None, seen.basis)) };
        Ok((Some(Version::read(target, key, value, seen.basis)?), seen.basis))
    }

    async fn older(&self, target: &Target, stamp: Stamp) -> Result<Option<Version>, Error> {
        let key = version_key(target, stamp);
        let seen = self.decisions.read(&key).await?;
        let read = |value| Version::read(target, key, value, seen.basis);
        seen.value.map(read).transpose()
    }

    /// The version without an ID of a key that the caller holds, if it is not the current object.
    async fn older_null(&self, target: &Target) -> Result<Option<Version>, Error> {
        let seen = self.decisions.read(&object_key(NULL, target)).await?;
        let Some(value) = seen.value else { return Ok(None) };
        let stamp = decode_stamp(&value).ok_or_else(|| damaged("a version's stamp"))?;
        let found = self.older(target, stamp).await?;
        found.map(Some).ok_or_else(|| damaged(&format!("the null version of {target}")))
    }

    /// What a put or delete makes of the versions of a key that the caller holds.
    pub(crate) async fn replaced(
        &self,
        target: &Target,
        current: Option<Version>,
    ) -> Result<Replaced, Error> {
        let versioning = self.buckets.versioning(target.bucket);
        let mut replaced = Replaced {
            has_id: versioning == Versioning::Enabled,
            is_versioned: versioning != Versioning::Off,
            ..Replaced::default()
        };
        match versioning {
            Versioning::Off => replaced.gone = current,
            Versioning::Enabled => replaced.kept = current,
            Versioning::Suspended => match current {
                Some(current) if !current.row.info.has_id => replaced.gone = Some(current),
                current => {
                    replaced.kept = current;
                    replaced.gone = self.older_null(target).await?;
                }
            },
        }
        Ok(replaced)
    }

    /// A version of a key that the caller holds.
    pub(crate) async fn find_version(
        &self,
        target: &Target,
        version: VersionId,
        current: Option<Version>,
    ) -> Result<Option<Version>, Error> {
        if let Some(current) = current.filter(|current| current.row.info.version() == version) {
            return Ok(Some(current));
        }
        let found = match version {
            VersionId::Null => self.older_null(target).await?,
            VersionId::Of { stamp, .. } => self.older(target, stamp).await?,
        };
        Ok(found.filter(|found| found.row.info.version() == version))
    }

    /// What the removal of a version makes of the others of its key, which the caller holds and which has a
    /// current object or none.
    pub(crate) async fn without_version(
        &self,
        target: &Target,
        gone: Version,
        has_current: bool,
    ) -> Result<Replaced, Error> {
        let first = self.decisions.first(&object_key(VERSIONS, target), 2).await?;
        let mut older = Vec::new();
        for (key, value, basis) in first {
            older.push(Version::read(target, key, value, basis)?);
        }
        // Without a current object the newest is a marker.
        let is_first = older.first().is_some_and(|first| first.key == gone.key);
        let was_newest = gone.is_current() || !has_current && is_first;
        let next = older.into_iter().find(|version| version.key != gone.key);
        let is_hidden = self.has_bug(Planted::NoMoveBack);
        let back = next.filter(|next| was_newest && !next.row.marker && !is_hidden);
        // One without an ID may go from a bucket that never had versions.
        let is_versioned = self.buckets.versioning(target.bucket) != Versioning::Off;
        Ok(Replaced { gone: Some(gone), back, is_versioned, ..Replaced::default() })
    }

    /// A version as it is durable; the newest for none. Its bucket may be gone.
    pub(crate) async fn row_of(
        &self,
        rows: &Snapshot,
        target: &Target,
        version: Option<VersionId>,
    ) -> Result<ObjectRow, Error> {
        let get = async |key: Vec<u8>| {
            let value = rows.get(&key).await.map_err(of_table)?;
            let read = |value| Version::read(target, key, value, Basis::default());
            Ok(value.map(read).transpose()?.map(|version| version.row))
        };
        let current = get(object_key(CURRENT, target)).await?;
        let Some(version) = version else {
            if let Some(row) = current {
                return Ok(row);
            }
            if self.buckets.versioning(target.bucket) == Versioning::Off {
                return Err(Error::NoSuchKey);
            }
            let mut scan = rows.scan(Rows::prefix(&object_key(VERSIONS, target)));
            let Some((key, value)) = scan.next().await.map_err(of_table)? else {
                return Err(Error::NoSuchKey);
            };
            let row = Version::read(target, key, value, Basis::default())?.row;
            return Err(marker(&row, false));
        };
        if let Some(row) = current.filter(|row| row.info.version() == version) {
            return Ok(row);
        }
        let stamp = match version {
            VersionId::Of { stamp, .. } => Some(stamp),
            VersionId::Null => {
                let stamp = rows.get(&object_key(NULL, target)).await.map_err(of_table)?;
                stamp.and_then(|value| decode_stamp(&value))
            }
        };
        let row = match stamp {
            Some(stamp) => get(version_key(target, stamp)).await?,
            None => None,
        };
        match row.filter(|row| row.info.version() == version) {
            Some(row) if row.marker => Err(marker(&row, true)),
            Some(row) => Ok(row),
            None => Err(Error::NoSuchVersion),
        }
    }
}

fn marker(row: &ObjectRow, asked: bool) -> Error {
    Error::Marker { version: row.info.version(), stamp: row.info.stamp, asked }
}
