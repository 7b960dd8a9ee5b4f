//! How what a range keeps of buckets is divided when it is split (`object-protocols.md` 4.4): its last row before
//! the split, which each half makes its own when it is opened first.
//!
//! A bound divides one bucket at most: all others are of one half, whole. What that bucket holds below the bound
//! is counted while the range serves on, and what changes from then on is noted.

use std::collections::BTreeMap;
use std::rc::Rc;

use codec::cursor::Cursor;
use object_proto::{BucketId, BucketUsage, Error, RangeBound, RangeId};
use table::{Purpose, Range as Rows, Snapshot};

use crate::decisions::{Decisions, damaged, of_table};
use crate::fields::{TEXT_MAX, VERSION, begin, put_text, text, whole};
use crate::keys::{
    CURRENT, HALVES, INHERITED, LOG, PART, PASS, REPLY, UPLOAD, USAGE, VERSIONS, between_bounds,
    number_key, read_number_key, read_part_key, read_upload_key, upload_key,
};
use crate::limits::PARTS_SLICE;
use crate::pass_rows::BucketPassRow;
use crate::planted::{Bugs, Planted};
use crate::row::{LogRow, ObjectRow};
use crate::upload_row::UploadRow;
use crate::usage::{encode_usage, put_usage, read_usage};

/// How a range was divided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HalvesRow {
    /// The range of the lower keys.
    pub low: RangeId,
    /// The range of the upper keys.
    pub high: RangeId,
    /// The first key of that one.
    pub at: RangeBound,
    /// What the bucket of this key holds below it, and from there on.
    pub usage: (BucketUsage, BucketUsage),
}

impl HalvesRow {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.low.get().to_le_bytes());
        out.extend(self.high.get().to_le_bytes());
        put_bound(&mut out, &self.at);
        put_usage(&mut out, self.usage.0);
        put_usage(&mut out, self.usage.1);
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<HalvesRow> {
        let mut cursor = begin(value)?;
        let (low, high) = (RangeId::new(cursor.u64()?), RangeId::new(cursor.u64()?));
        let at = bound(&mut cursor)?;
        let usage = (read_usage(&mut cursor)?, read_usage(&mut cursor)?);
        whole(cursor, HalvesRow { low, high, at, usage })
    }
}

pub(crate) fn put_bound(out: &mut Vec<u8>, bound: &RangeBound) {
    out.extend(bound.bucket.get().to_le_bytes());
    put_text(out, &bound.key);
}

pub(crate) fn bound(cursor: &mut Cursor<'_>) -> Option<RangeBound> {
    let bucket = BucketId::new(cursor.u64()?);
    Some(RangeBound { bucket, key: text(cursor, TEXT_MAX)? })
}

/// Rows of a section at one moment: those that are durable, and those that are submitted in their place.
struct Section<'a> {
    decisions: &'a Decisions,
    rows: &'a Snapshot,
    submitted: &'a BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Section<'_> {
    async fn each(
        &self,
        range: Rows,
        mut act: impl FnMut(&[u8], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let within = (range.lower.clone(), range.upper.clone());
        for (key, value) in self.submitted.range(within) {
            if let Some(value) = value {
                act(key, value)?;
            }
        }
        let (mut scan, mut seen) = (self.rows.scan(range), 0);
        while let Some((key, value)) = scan.next().await.map_err(of_table)? {
            seen += 1;
            if seen % PARTS_SLICE == 0 {
                self.decisions.yield_now().await;
            }
            if !self.submitted.contains_key(&key) {
                act(&key, &value)?;
            }
        }
        Ok(())
    }
}

/// What the bucket of a bound holds below it, of rows as they were at one moment.
pub(crate) async fn count_below(
    decisions: &Decisions,
    (rows, submitted): (&Snapshot, &BTreeMap<Vec<u8>, Option<Vec<u8>>>),
    at: &RangeBound,
) -> Result<BucketUsage, Error> {
    let first = RangeBound::of_bucket(at.bucket);
    let section = Section { decisions, rows, submitted };
    let (mut usage, mut open) = (BucketUsage::default(), std::collections::BTreeSet::new());
    for of in [CURRENT, VERSIONS] {
        let count = |_: &[u8], value: &[u8]| {
            let row = ObjectRow::decode(value).ok_or_else(|| damaged("an object's row"))?;
            if row.marker {
                usage.markers += 1;
                return Ok(());
            }
            usage.objects += 1;
            usage.older += u64::from(of == VERSIONS);
            usage.bytes += row.info.object.size;
            Ok(())
        };
        section.each(between_bounds(of, &first, Some(at)), count).await?;
    }
    let count = |key: &[u8], value: &[u8]| {
        if UploadRow::decode(value).ok_or_else(|| damaged("an upload"))?.end.is_none() {
            usage.uploads += 1;
            read_upload_key(key).ok_or_else(|| damaged("an upload"))?;
            open.insert(key.to_vec());
        }
        Ok(())
    };
    section.each(between_bounds(UPLOAD, &first, Some(at)), count).await?;
    let count = |key: &[u8], value: &[u8]| {
        let row = read_part_key(key).zip(ObjectRow::decode(value));
        let ((target, begun, _), row) = row.ok_or_else(|| damaged("a part"))?;
        if open.contains(&upload_key(&target, begun)) {
            usage.upload_bytes += row.info.object.size;
        }
        Ok(())
    };
    section.each(between_bounds(PART, &first, Some(at)), count).await?;
    Ok(usage)
}

/// A half makes what was inherited its own: counts of the buckets that it has, and what came of passes over
/// them. Logs are counted again: what the other half has in them is dead here. Does nothing in a range that was
/// not split since it was opened last.
pub(crate) async fn adopt(
    decisions: &Rc<Decisions>,
    range: RangeId,
    bugs: Bugs,
) -> Result<(), Error> {
    let Some(value) = decisions.durable(&[HALVES]).await? else { return Ok(()) };
    let row = HalvesRow::decode(&value).ok_or_else(|| damaged("the row of a split"))?;
    let is_high = match range {
        range if range == row.low => false,
        range if range == row.high => true,
        _ => {
            // The split was given up: the range is whole.
            let (_, basis) = decisions.submit(|batch, _| {
                batch.set_purpose(Purpose::Recovery);
                batch.delete(&[HALVES]);
            })?;
            return decisions.settled_to_go_on(basis).await;
        }
    };
    let is_here = |bucket: BucketId| match is_high {
        true => bucket >= row.at.bucket,
        false => bucket < row.at.bucket || bucket == row.at.bucket && !row.at.key.is_empty(),
    };
    let mut gone = Vec::new();
    for section in [USAGE, PASS] {
        for (key, _) in decisions.all(&[section]).await? {
            if key.len() > 1 {
                let bucket = read_number_key(&key).ok_or_else(|| damaged("a bucket's row"))?;
                if !is_here(BucketId::new(bucket)) {
                    gone.push(key);
                }
            }
        }
    }
    if bugs.has(Planted::NoInherit) {
        gone.extend(decisions.all(&[REPLY]).await?.into_iter().map(|(key, _)| key));
    }
    let logs = decisions.all(&[LOG]).await?;
    let passes = number_key(PASS, row.at.bucket.get());
    let of_passes = decisions.durable(&passes).await?;
    let (_, basis) = decisions.submit(|batch, _| {
        batch.set_purpose(Purpose::Recovery);
        for key in &gone {
            batch.delete(key);
        }
        if is_here(row.at.bucket) {
            let usage = if is_high { row.usage.1 } else { row.usage.0 };
            batch.put(&number_key(USAGE, row.at.bucket.get()), &encode_usage(usage));
        }
        // What passes have removed is counted on in one half.
        if is_high && let Some(before) = of_passes.and_then(|row| BucketPassRow::decode(&row)) {
            batch.put(&passes, &BucketPassRow { removed: 0, ..before }.encode());
        }
        for (key, value) in &logs {
            if let Some(log) = LogRow::decode(value) {
                batch.put(key, &LogRow { counted: false, ..log }.encode());
            }
        }
        batch.put(&INHERITED, &[VERSION]);
        batch.delete(&[HALVES]);
    })?;
    decisions.settled_to_go_on(basis).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_and_flawed_ones_are_refused() {
        let usage = |objects| BucketUsage { objects, bytes: 1 << 40, ..BucketUsage::default() };
        let row = HalvesRow {
            low: RangeId::new(7),
            high: RangeId::new(8),
            at: RangeBound { bucket: BucketId::new(3), key: "a/b".to_owned() },
            usage: (usage(3), usage(4)),
        };
        let value = row.encode();
        assert_eq!(HalvesRow::decode(&value), Some(row));
        for len in 0..value.len() {
            assert_eq!(HalvesRow::decode(&value[..len]), None, "{len} bytes");
        }
        assert_eq!(HalvesRow::decode(&[value.as_slice(), &[0]].concat()), None);
    }
}
