//! Rows of lifecycle's passes (`docs/formats/object.md`, section `l`): how far a range is with the pass of a day,
//! and what came of passes for each bucket.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use codec::cursor::{put_bytes, put_varint};
use object_proto::{BucketId, Error};
use table::Batch;

use crate::decisions::{Decisions, damaged};
use crate::fields::{VERSION, begin, flag, whole};
use crate::keys::{PASS, number_key, read_number_key};
use crate::limits::OBJECT_ROW_KEY_MAX;

/// The pass of a day over a range.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PassRow {
    /// Length of a day, in microseconds: with another one, days have other numbers.
    pub day_us: u64,
    /// Number of the day, counted from 1970.
    pub day: u64,
    /// While it is under way, the last row that is done with; empty at first.
    pub at: Option<Vec<u8>>,
}

impl PassRow {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.day_us);
        put_varint(&mut out, self.day);
        out.push(u8::from(self.at.is_some()));
        if let Some(at) = &self.at {
            put_bytes(&mut out, at);
        }
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<PassRow> {
        let mut cursor = begin(value)?;
        let (day_us, day) = (cursor.varint()?, cursor.varint()?);
        let at = match flag(&mut cursor)? {
            true => Some(cursor.bytes(OBJECT_ROW_KEY_MAX + 8)?.to_vec()),
            false => None,
        };
        whole(cursor, PassRow { day_us, day, at })
    }
}

/// What came of passes over a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BucketPassRow {
    /// When the last one ended, microseconds since 1970; 0 before the first.
    pub ended_us: u64,
    /// When the day of that one began; likewise.
    pub day_us: u64,
    /// What all of them removed.
    pub removed: u64,
}

impl BucketPassRow {
    /// The value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for number in [self.ended_us, self.day_us, self.removed] {
            put_varint(&mut out, number);
        }
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<BucketPassRow> {
        let mut cursor = begin(value)?;
        let (ended_us, day_us) = (cursor.varint()?, cursor.varint()?);
        let removed = cursor.varint()?;
        whole(cursor, BucketPassRow { ended_us, day_us, removed })
    }
}

/// The rows of a range, with all that is submitted.
#[derive(Default)]
pub(crate) struct Passes {
    range: RefCell<PassRow>,
    buckets: RefCell<BTreeMap<BucketId, BucketPassRow>>,
}

impl Passes {
    /// Of a table that was just opened.
    pub(crate) async fn open(decisions: &Decisions) -> Result<Passes, Error> {
        let passes = Passes::default();
        for (key, value) in decisions.all(&[PASS]).await? {
            if key == [PASS] {
                let row = PassRow::decode(&value);
                passes.range.replace(row.ok_or_else(|| damaged("the row of a pass"))?);
                continue;
            }
            let row = read_number_key(&key).map(BucketId::new).zip(BucketPassRow::decode(&value));
            let (bucket, row) = row.ok_or_else(|| damaged("the row of a bucket's passes"))?;
            passes.buckets.borrow_mut().insert(bucket, row);
        }
        Ok(passes)
    }

    /// How far the range is.
    pub(crate) fn range(&self) -> PassRow {
        self.range.borrow().clone()
    }

    /// Submits how far the range is.
    pub(crate) fn note(&self, decisions: &Rc<Decisions>, row: PassRow) -> Result<(), Error> {
        decisions.submit(|batch, _| {
            batch.put(&[PASS], &row.encode());
        })?;
        self.range.replace(row);
        Ok(())
    }

    /// What came of passes over a bucket; none before the first.
    pub(crate) fn bucket(&self, bucket: BucketId) -> Option<BucketPassRow> {
        self.buckets.borrow().get(&bucket).copied()
    }

    /// A batch with this was submitted.
    pub(crate) fn set(&self, bucket: BucketId, row: BucketPassRow) {
        self.buckets.borrow_mut().insert(bucket, row);
    }

    /// The bucket is gone.
    pub(crate) fn forget(&self, bucket: BucketId) {
        self.buckets.borrow_mut().remove(&bucket);
    }
}

/// Puts a bucket's row into a batch.
pub(crate) fn put_pass(batch: &mut Batch, bucket: BucketId, row: BucketPassRow) {
    batch.put(&number_key(PASS, bucket.get()), &row.encode());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_and_flawed_ones_are_refused() {
        for at in [None, Some(Vec::new()), Some(vec![b'c', 0, 1])] {
            let row = PassRow { day_us: 86_400_000_000, day: 20_785, at };
            assert_eq!(PassRow::decode(&row.encode()), Some(row));
        }
        let row = BucketPassRow { ended_us: u64::MAX, day_us: 7, removed: 1 << 40 };
        assert_eq!(BucketPassRow::decode(&row.encode()), Some(row));
        assert_eq!(PassRow::decode(&[VERSION, 1, 1, 2]), None);
        assert_eq!(BucketPassRow::decode(&[VERSION, 1, 1, 2, 0]), None);
        assert_eq!(BucketPassRow::decode(&[2, 1, 1, 2]), None);
    }
}
