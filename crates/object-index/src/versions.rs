//! Versions of a key (`object-protocols.md` 2.3 and 7.1): what a change makes of those that are there.
//!
//! Invariants: a key has a current row exactly when its newest version is no delete marker; a row that
//! moves between current and older versions keeps its bytes, so that data in logs has one place.

use std::borrow::Cow;
use std::rc::Rc;

use object_proto::{
    CallId, Committed, Error, LockPeriod, NewObject, ObjectData, Retention, RetentionMode, Stamp,
    Target, UserId, VersionId,
};
use table::{Batch, Place};

use crate::body_files::Places;
use crate::decisions::{Basis, damaged};
use crate::file_rows::FileOf;
use crate::keys::{CURRENT, MAP, METADATA, NULL, by_stamp, due_key, object_key, version_key};
use crate::map::map_apart;
use crate::row::{InLog, ObjectRow, encode_stamp};
use crate::upload_row::Due;

/// A version of a key that the caller holds.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// Key of its row.
    pub(crate) key: Vec<u8>,
    /// Its row's bytes.
    pub(crate) value: Vec<u8>,
    pub(crate) row: ObjectRow,
    /// The batch that the row is of.
    pub(crate) basis: Basis,
}

impl Version {
    pub(crate) fn read(
        target: &Target,
        key: Vec<u8>,
        value: Vec<u8>,
        basis: Basis,
    ) -> Result<Version, Error> {
        let row = ObjectRow::decode(&value);
        let row = row.ok_or_else(|| damaged(&format!("the row of a version of {target}")))?;
        Ok(Version { key, value, row, basis })
    }

    pub(crate) fn is_current(&self) -> bool {
        self.key.first() == Some(&CURRENT)
    }
}

/// What a change makes of the versions that are there.
#[derive(Default, Debug)]
pub(crate) struct Replaced {
    /// Goes.
    pub(crate) gone: Option<Version>,
    /// The current object becomes an older version.
    pub(crate) kept: Option<Version>,
    /// Becomes the current object.
    pub(crate) back: Option<Version>,
    /// What takes their place has an ID.
    pub(crate) has_id: bool,
    /// The bucket has versions.
    pub(crate) is_versioned: bool,
}

impl Replaced {
    /// The batch of a row that must be placed before it moves: a row keeps its bytes.
    pub(crate) fn unplaced(&self) -> Option<Basis> {
        let moved = [&self.kept, &self.back].into_iter().flatten();
        let mut unplaced = moved.filter(|version| version.row.log == Some(InLog::Unplaced));
        unplaced.next().map(|version| version.basis)
    }
}

/// The key of a row beside a version's: of the one without an ID there is one, others have stamps.
fn apart_key(section: u8, target: &Target, (stamp, has_id): (Stamp, bool)) -> Vec<u8> {
    if has_id { by_stamp(section, target, stamp) } else { object_key(section, target) }
}

/// The key of what is beside the row of a version.
pub(crate) fn beside(section: u8, target: &Target, row: &ObjectRow) -> Vec<u8> {
    apart_key(section, target, (row.info.stamp, row.info.has_id))
}

/// How a new version is retained that has no retention of its own.
pub(crate) type DefaultRetention = (RetentionMode, LockPeriod);

/// A put or delete that holds its key.
pub(crate) struct Decided {
    pub(crate) target: Target,
    /// The object that is put.
    pub(crate) new: Option<Box<NewObject>>,
    /// The delete marker that is put.
    pub(crate) marker: Option<Marker>,
    /// Data of it that goes into the log.
    pub(crate) piece: Option<Rc<Vec<u8>>>,
    /// What becomes of the versions that are there.
    pub(crate) replaced: Replaced,
    /// It ends an upload that has so many bytes of parts.
    pub(crate) ended_upload: Option<u64>,
    /// The call that puts it, if it has conditions.
    pub(crate) call: Option<CallId>,
    /// How the object is retained, if it is by its bucket's rule.
    pub(crate) default_retention: Option<DefaultRetention>,
    /// The later one of the owner's clock and the manager's, microseconds since 1970.
    pub(crate) latest_us: u64,
    /// What goes may be retained under governance.
    pub(crate) bypass: bool,
}

impl Decided {
    /// The object that is put, as it is when it is committed at a time.
    fn object(&self, stamp: Stamp) -> Option<Cow<'_, NewObject>> {
        let object = &**self.new.as_ref()?;
        Some(match self.default_retention {
            None => Cow::Borrowed(object),
            Some((mode, period)) => {
                let mut object = object.clone();
                // An owner whose clock is behind makes no retention shorter.
                let until_us = period.until_us(stamp.max(Stamp::new(self.latest_us)));
                object.facts.lock.retention = Some(Retention { mode, until_us });
                Cow::Owned(object)
            }
        })
    }

    /// What it makes, if it is committed at a time.
    pub(crate) fn committed(&self, stamp: Stamp) -> Committed {
        let nonce = match (&self.new, &self.marker) {
            (Some(object), _) => Some(object.data_id.get() as u64),
            (None, Some((nonce, _))) => Some(*nonce),
            (None, None) => None,
        };
        let version = match (nonce, self.replaced.has_id) {
            (Some(nonce), true) => Some(VersionId::Of { stamp, nonce }),
            (Some(_), false) => Some(VersionId::Null),
            (None, _) => self.replaced.gone.as_ref().map(|gone| gone.row.info.version()),
        };
        let removes_marker = self.replaced.gone.as_ref().is_some_and(|gone| gone.row.marker);
        Committed {
            stamp,
            version: version.filter(|_| self.replaced.is_versioned),
            marker: self.marker.is_some() || nonce.is_none() && removes_marker,
        }
    }
}

/// Puts a change into a batch: rows of versions, and of the bodies that come and go with them, whose places it
/// returns. For the range's `submit` alone, which looks whether what goes is locked.
pub(crate) fn fill(batch: &mut Batch, stamp: Stamp, decided: &Decided) -> Places {
    let mut places = Places::default();
    let Decided { target, marker, piece, replaced, call, .. } = decided;
    let Replaced { gone, kept, back, has_id, .. } = replaced;
    let current = object_key(CURRENT, target);
    let mut apart = Vec::new();
    match (decided.object(stamp), back) {
        (Some(object), _) => {
            let (row, metadata) = ObjectRow::encode(stamp, &object, *call, *has_id);
            match piece {
                Some(piece) => {
                    let place = row.len() - Place::BYTES;
                    batch.put_with_data(&current, &row, place, piece.clone());
                }
                None => {
                    batch.put(&current, &row);
                }
            }
            places.give(batch, (target, FileOf::Object(stamp)), &object);
            let map = match &object.data {
                ObjectData::Parts(parts) => map_apart(stamp, parts),
                _ => None,
            };
            for (section, value) in [(METADATA, metadata), (MAP, map)] {
                let key = apart_key(section, target, (stamp, *has_id));
                apart.extend(value.map(|value| (key, value)));
            }
        }
        (None, Some(back)) => {
            batch.put(&current, &back.value);
        }
        (None, None) if kept.is_some() || gone.as_ref().is_some_and(Version::is_current) => {
            batch.delete(&current);
        }
        (None, None) => {}
    }
    let mut null = None;
    let mut note = |row: &ObjectRow, stamp: Option<Stamp>| {
        if !row.info.has_id {
            null = Some(stamp);
        }
    };
    if let Some(gone) = gone {
        if !gone.is_current() {
            batch.delete(&gone.key);
            note(&gone.row, None);
        }
        let rows = [(METADATA, gone.row.metadata_apart), (MAP, gone.row.map_apart)];
        for (section, _) in rows.into_iter().filter(|(_, has)| *has) {
            let key = beside(section, target, &gone.row);
            if !apart.iter().any(|(put, _)| *put == key) {
                batch.delete(&key);
            }
        }
        let of = FileOf::Object(gone.row.info.stamp);
        put_unused(batch, stamp, (target, of), &gone.row.info.object, &mut places);
    }
    if let Some(back) = back {
        batch.delete(&back.key);
        note(&back.row, None);
    }
    if let Some(kept) = kept {
        batch.put(&version_key(target, kept.row.info.stamp), &kept.value);
        note(&kept.row, Some(kept.row.info.stamp));
    }
    if let Some((nonce, by)) = marker {
        let row = ObjectRow::encode_marker(stamp, (*nonce, by), *has_id);
        batch.put(&version_key(target, stamp), &row);
        if !has_id {
            null = Some(Some(stamp));
        }
    }
    match null {
        Some(Some(stamp)) => {
            batch.put(&object_key(NULL, target), &encode_stamp(stamp));
        }
        Some(None) => {
            batch.delete(&object_key(NULL, target));
        }
        None => {}
    }
    for (key, value) in apart {
        batch.put(&key, &value);
    }
    places
}

/// Puts into a batch that the data of an object, or of a part, is of no use any more.
pub(crate) fn put_unused(
    batch: &mut Batch,
    stamp: Stamp,
    (target, of): (&Target, FileOf),
    old: &NewObject,
    places: &mut Places,
) {
    match &old.data {
        ObjectData::File { .. } => places.take(batch, target, old),
        ObjectData::Parts(map) => {
            let key = due_key(stamp.get(), target, map.upload.stamp);
            let of = match of {
                FileOf::Object(stamp) => Some(stamp),
                FileOf::Part(..) => None,
            };
            batch.put(&key, &Due::Parts(of).encode());
        }
        ObjectData::Inline(_) | ObjectData::Piece(_) | ObjectData::Logged { .. } => {}
    }
}

/// Who makes a delete marker, and half of its ID.
pub(crate) type Marker = (u64, UserId);
