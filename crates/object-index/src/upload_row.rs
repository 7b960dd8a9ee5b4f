//! Values of the rows of multipart uploads (see `docs/formats/object.md`). A part's row is written as an
//! object's.

use codec::cursor::{put_bytes, put_varint};
use object_proto::{
    ChecksumPlan, Etag, NewUpload, ObjectLock, ObjectTags, PartMap, Stamp, UploadEnd, UploadId,
    UploadInfo, UserId,
};

use crate::fields::{
    TEXT_MAX, VERSION, acl, are_checksums, begin, checksums, envelope, flag, is_acl, kind_code,
    kind_of, lock, metadata, put_acl, put_checksums, put_lock, put_metadata, put_tags, put_text,
    tags, text, whole,
};
use crate::map::{put_runs, put_upload_id, runs, upload_id};

/// Bits of the byte that says what follows: the end, tags, permissions, a lock.
const ENDED: u8 = 1;
const TAGGED: u8 = 2;
const GRANTED: u8 = 4;
const LOCKED: u8 = 8;
/// And the envelope of its encryption.
const ENCRYPTED: u8 = 16;
const BITS: u8 = ENDED | TAGGED | GRANTED | LOCKED | ENCRYPTED;

/// An upload's row; the commit that began it is in the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UploadRow {
    /// What it was begun with.
    pub upload: NewUpload,
    /// If it is under way still then, it is aborted; microseconds since 1970.
    pub abort_us: u64,
    /// How it was completed, if it was.
    pub end: Option<UploadEnd>,
}

impl UploadRow {
    /// True when a row can be read back.
    pub fn holds(upload: &NewUpload) -> bool {
        upload.owner.as_str().len() <= TEXT_MAX && is_acl(&upload.acl)
    }

    /// True when the row of an end can be read back.
    pub fn holds_end(end: &UploadEnd) -> bool {
        end.etag.as_str().len() <= TEXT_MAX && are_checksums(&end.checksums)
    }

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.upload.nonce.to_le_bytes());
        put_text(&mut out, self.upload.owner.as_str());
        match self.upload.checksum {
            None => out.push(0),
            Some(plan) => out.extend([1 + kind_code(plan.kind), u8::from(plan.composite)]),
        }
        put_metadata(&mut out, &self.upload.metadata);
        put_varint(&mut out, self.abort_us);
        let bits = [
            (ENDED, self.end.is_some()),
            (TAGGED, !self.upload.tags.is_empty()),
            (GRANTED, !self.upload.acl.is_empty()),
            (LOCKED, !self.upload.lock.is_none()),
            (ENCRYPTED, self.upload.encryption.is_some()),
        ];
        let bits = bits.iter().filter(|(_, is_set)| *is_set).fold(0, |all, (bit, _)| all | bit);
        out.push(bits);
        if let Some(end) = &self.end {
            out.extend(end.stamp.get().to_le_bytes());
            put_text(&mut out, end.etag.as_str());
            put_checksums(&mut out, &end.checksums);
        }
        if bits & TAGGED != 0 {
            put_tags(&mut out, &self.upload.tags);
        }
        if bits & GRANTED != 0 {
            put_acl(&mut out, &self.upload.acl);
        }
        if bits & LOCKED != 0 {
            put_lock(&mut out, self.upload.lock);
        }
        if let Some(envelope) = &self.upload.encryption {
            put_bytes(&mut out, envelope.as_bytes());
        }
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<UploadRow> {
        let mut cursor = begin(value)?;
        let nonce = cursor.u64()?;
        let owner = UserId::new(text(&mut cursor, TEXT_MAX)?);
        let checksum = match cursor.u8()?.checked_sub(1) {
            None => None,
            Some(kind) => {
                Some(ChecksumPlan { kind: kind_of(kind)?, composite: flag(&mut cursor)? })
            }
        };
        let metadata = metadata(&mut cursor)?;
        let abort_us = cursor.varint()?;
        let bits = cursor.u8().filter(|bits| *bits & !BITS == 0)?;
        let end = match bits & ENDED {
            0 => None,
            _ => Some(UploadEnd {
                stamp: Stamp::new(cursor.u64()?),
                etag: Etag::new(text(&mut cursor, TEXT_MAX)?),
                checksums: checksums(&mut cursor)?,
            }),
        };
        let tags = match bits & TAGGED {
            0 => ObjectTags::default(),
            _ => tags(&mut cursor).filter(|tags| !tags.is_empty())?,
        };
        let acl = match bits & GRANTED {
            0 => Vec::new(),
            _ => acl(&mut cursor)?,
        };
        let lock = match bits & LOCKED {
            0 => ObjectLock::default(),
            _ => lock(&mut cursor)?,
        };
        let encryption = match bits & ENCRYPTED {
            0 => None,
            _ => Some(envelope(&mut cursor)?),
        };
        let upload = NewUpload { nonce, checksum, metadata, tags, owner, acl, lock, encryption };
        whole(cursor, UploadRow { upload, abort_us, end })
    }

    /// The upload that began at a commit.
    pub fn info(self, begun: Stamp) -> UploadInfo {
        let id = UploadId { stamp: begun, nonce: self.upload.nonce };
        UploadInfo { id, upload: self.upload, end: self.end }
    }
}

/// What is to be done about an upload from a time on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Due {
    /// It ends, if it is under way.
    Abort,
    /// It is forgotten how it was completed.
    Forget,
    /// All its parts are of no use any more: with the commit of the object that had them, if one had.
    Parts(Option<Stamp>),
    /// Its parts are of no use any more, but for those of the object that it has become.
    OtherParts(PartMap),
}

impl Due {
    /// The value of its row.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self {
            Due::Abort => 0,
            Due::Forget => 1,
            Due::Parts(_) => 2,
            Due::OtherParts(_) => 3,
        };
        let mut out = vec![VERSION, kind];
        match self {
            Due::OtherParts(map) => {
                put_upload_id(&mut out, map.upload);
                put_runs(&mut out, map);
            }
            Due::Parts(Some(stamp)) => out.extend(stamp.get().to_le_bytes()),
            Due::Abort | Due::Forget | Due::Parts(None) => {}
        }
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<Due> {
        let mut cursor = begin(value)?;
        let due = match cursor.u8()? {
            0 => Due::Abort,
            1 => Due::Forget,
            2 if cursor.is_empty() => Due::Parts(None),
            2 => Due::Parts(Some(Stamp::new(cursor.u64()?))),
            3 => {
                let upload = upload_id(&mut cursor)?;
                Due::OtherParts(runs(&mut cursor, upload)?)
            }
            _ => return None,
        };
        whole(cursor, due)
    }
}
