//! Values of the rows of multipart uploads (see `docs/formats/object.md`). A part's row is written as an
//! object's.

use codec::cursor::{Cursor, put_varint};
use object_proto::limits::PARTS_MAX;
use object_proto::{
    ChecksumPlan, Etag, NewUpload, PartMap, PartRun, Stamp, UploadEnd, UploadId, UploadInfo, UserId,
};

use crate::row::{
    TEXT_MAX, VERSION, are_checksums, begin, checksums, flag, kind_code, kind_of, metadata,
    put_checksums, put_metadata, put_text, text, whole,
};

/// A map of parts up to this many bytes is in its object's row: that of an upload whose parts have one
/// size, but for the last, has a dozen.
pub const MAP_IN_ROW: usize = 64;

pub(crate) fn put_upload_id(out: &mut Vec<u8>, id: UploadId) {
    out.extend(id.stamp.get().to_le_bytes());
    out.extend(id.nonce.to_le_bytes());
}

pub(crate) fn upload_id(cursor: &mut Cursor<'_>) -> Option<UploadId> {
    Some(UploadId { stamp: Stamp::new(cursor.u64()?), nonce: cursor.u64()? })
}

/// Parts: how many numbers are left out before each run, its parts, and the bytes of each.
pub(crate) fn put_runs(out: &mut Vec<u8>, map: &PartMap) {
    put_varint(out, map.runs().len() as u64);
    let mut next = 1;
    for run in map.runs() {
        put_varint(out, u64::from(run.first - next));
        put_varint(out, u64::from(run.count));
        put_varint(out, run.size);
        next = run.first + run.count;
    }
}

pub(crate) fn runs(cursor: &mut Cursor<'_>, upload: UploadId) -> Option<PartMap> {
    let count = cursor.varint().filter(|&count| count <= u64::from(PARTS_MAX))?;
    let (mut runs, mut next) = (Vec::new(), 1u16);
    for _ in 0..count {
        let first = next.checked_add(u16::try_from(cursor.varint()?).ok()?)?;
        let count = u16::try_from(cursor.varint()?).ok()?;
        runs.push(PartRun { first, count, size: cursor.varint()? });
        next = first.checked_add(count)?;
    }
    PartMap::from_runs(upload, runs)
}

/// The value of the row of an object's map, if that is too long for the object's row.
pub(crate) fn map_apart(stamp: Stamp, map: &PartMap) -> Option<Vec<u8>> {
    let mut out = encode_map(stamp, map);
    out.drain(..9);
    (out.len() > MAP_IN_ROW).then(|| encode_map(stamp, map))
}

fn encode_map(stamp: Stamp, map: &PartMap) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend(stamp.get().to_le_bytes());
    put_runs(&mut out, map);
    out
}

/// Reads the value of the row of a map: the commit that it belongs to, and the map.
pub fn decode_map(value: &[u8], upload: UploadId) -> Option<(Stamp, PartMap)> {
    let mut cursor = begin(value)?;
    let stamp = Stamp::new(cursor.u64()?);
    let map = runs(&mut cursor, upload)?;
    whole(cursor, (stamp, map))
}

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
        upload.owner.as_str().len() <= TEXT_MAX
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
        out.push(u8::from(self.end.is_some()));
        if let Some(end) = &self.end {
            out.extend(end.stamp.get().to_le_bytes());
            put_text(&mut out, end.etag.as_str());
            put_checksums(&mut out, &end.checksums);
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
        let end = match flag(&mut cursor)? {
            false => None,
            true => Some(UploadEnd {
                stamp: Stamp::new(cursor.u64()?),
                etag: Etag::new(text(&mut cursor, TEXT_MAX)?),
                checksums: checksums(&mut cursor)?,
            }),
        };
        let upload = NewUpload { nonce, checksum, metadata, owner };
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
    /// All its parts are of no use any more.
    Parts,
    /// Its parts are of no use any more, but for those of the object that it has become.
    OtherParts(PartMap),
}

impl Due {
    /// The value of its row.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self {
            Due::Abort => 0,
            Due::Forget => 1,
            Due::Parts => 2,
            Due::OtherParts(_) => 3,
        };
        let mut out = vec![VERSION, kind];
        if let Due::OtherParts(map) = self {
            put_upload_id(&mut out, map.upload);
            put_runs(&mut out, map);
        }
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<Due> {
        let mut cursor = begin(value)?;
        let due = match cursor.u8()? {
            0 => Due::Abort,
            1 => Due::Forget,
            2 => Due::Parts,
            3 => {
                let upload = upload_id(&mut cursor)?;
                Due::OtherParts(runs(&mut cursor, upload)?)
            }
            _ => return None,
        };
        whole(cursor, due)
    }
}
