//! The map of an object's parts, as rows hold it.

use codec::cursor::{Cursor, put_varint};
use object_proto::limits::PARTS_MAX;
use object_proto::{PartMap, PartRun, Stamp, UploadId};

use crate::fields::{VERSION, begin, whole};

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
