//! [`Batch`]: changes that are made together.

use std::rc::Rc;

use wire::data::Purpose;

use crate::format::ops::{Op, op_len, put_op, read_ops};
use crate::limits::{BATCH_BYTES_MAX, BATCH_DATA_MAX, BATCH_OPS_MAX, KEY_MAX, VALUE_MAX};
use crate::types::{FileNo, Place};

/// Data behind a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Data {
    bytes: Rc<Vec<u8>>,
    /// Where its place stands in the batch's body.
    place_at: usize,
}

// What `Batch::add` says of keys.
const _: () = assert!(KEY_MAX == 2304);

/// Changes that are made all at once or not at all, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// As the log holds them.
    pub(crate) body: Vec<u8>,
    pub(crate) count: u32,
    data: Vec<Data>,
    data_bytes: usize,
    purpose: Option<Purpose>,
    flaw: Option<&'static str>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets a key's value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Batch {
        if value.len() > VALUE_MAX {
            self.flaw = Some("a value has 256 KiB at most; store larger ones in a file");
            return self;
        }
        self.add(Op { key, value: Some(value) })
    }

    /// Sets a key's value and has the log keep `data`. The [`Place::BYTES`] bytes of the value from
    /// `place_at` on are replaced by the data's place. Only for tables with
    /// [`crate::Options::data_log_bytes`].
    pub fn put_with_data(
        &mut self,
        key: &[u8],
        value: &[u8],
        place_at: usize,
        data: Rc<Vec<u8>>,
    ) -> &mut Batch {
        if place_at + Place::BYTES > value.len() {
            self.flaw = Some("a value has no room for the place of its data");
            return self;
        }
        if data.is_empty() || self.data_bytes + data.len() > BATCH_DATA_MAX {
            self.flaw = Some("a batch has 1 MiB of data at most, and none that is empty");
            return self;
        }
        let mut unplaced = value.to_vec();
        unplaced[place_at..place_at + Place::BYTES].fill(0);
        let before = self.count;
        self.put(key, &unplaced);
        if self.count > before {
            let place_at = self.body.len() - value.len() + place_at;
            self.data_bytes += data.len();
            self.data.push(Data { bytes: data, place_at });
        }
        self
    }

    /// What it is for; users' bytes, unless said, or metadata if it brings no data. An append is for the
    /// one of its batches that has the least right to the reserve of a full cluster.
    pub fn set_purpose(&mut self, purpose: Purpose) -> &mut Batch {
        self.purpose = Some(purpose);
        self
    }

    /// What its append is for, as far as it goes.
    pub fn purpose(&self) -> Purpose {
        let usual = if self.data.is_empty() { Purpose::Metadata } else { Purpose::Data };
        self.purpose.unwrap_or(usual)
    }

    /// Deletes a key; no error when it is not there.
    pub fn delete(&mut self, key: &[u8]) -> &mut Batch {
        self.add(Op { key, value: None })
    }

    fn add(&mut self, op: Op<'_>) -> &mut Batch {
        if op.key.is_empty() || op.key.len() > KEY_MAX {
            self.flaw = Some("a key has 1 to 2304 bytes");
        } else if self.count as usize == BATCH_OPS_MAX
            || self.body.len() + op_len(op) > BATCH_BYTES_MAX
        {
            self.flaw = Some("a batch has 65,536 operations and 4 MiB at most; split it");
        } else {
            put_op(&mut self.body, op);
            self.count += 1;
        }
        self
    }

    /// Operations in it.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// True when it has no operations.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Approximate bytes of its record in the log, with its data.
    pub fn bytes(&self) -> usize {
        self.body.len() + self.data_bytes
    }

    /// Its data, in its order.
    pub fn data(&self) -> impl Iterator<Item = &Rc<Vec<u8>>> {
        self.data.iter().map(|data| &data.bytes)
    }

    /// Bytes of its data.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Writes the places of its data into its values: the first is at `offset` of the log, the others
    /// follow.
    pub(crate) fn place(&mut self, log: FileNo, mut offset: u64) -> Vec<Place> {
        let mut places = Vec::with_capacity(self.data.len());
        for data in &self.data {
            let place = Place::new(log, offset);
            self.body[data.place_at..data.place_at + Place::BYTES].copy_from_slice(&place.encode());
            places.push(place);
            offset += data.bytes.len() as u64;
        }
        places
    }

    /// Appends its data.
    pub(crate) fn put_data(&self, out: &mut Vec<u8>) {
        self.data.iter().for_each(|data| out.extend_from_slice(&data.bytes));
    }

    /// Cause when it cannot be written.
    pub(crate) fn flaw(&self) -> Option<&'static str> {
        self.flaw
    }

    /// Keys that it changes, in its order, with the new value, or none for a deletion.
    pub fn changes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.ops().into_iter().map(|op| (op.key, op.value))
    }

    pub(crate) fn ops(&self) -> Vec<Op<'_>> {
        read_ops(&self.body, self.count).expect("encoded here")
    }
}
