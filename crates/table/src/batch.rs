//! [`Batch`]: changes that are made together.

use crate::format::ops::{Op, op_len, put_op, read_ops};
use crate::limits::{BATCH_BYTES_MAX, BATCH_OPS_MAX, KEY_MAX, VALUE_MAX};

/// Changes that are made all at once or not at all, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// As the log holds them.
    pub(crate) body: Vec<u8>,
    pub(crate) count: u32,
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

    /// Deletes a key; no error when it is not there.
    pub fn delete(&mut self, key: &[u8]) -> &mut Batch {
        self.add(Op { key, value: None })
    }

    fn add(&mut self, op: Op<'_>) -> &mut Batch {
        if op.key.is_empty() || op.key.len() > KEY_MAX {
            self.flaw = Some("a key has 1 to 1024 bytes");
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

    /// Approximate bytes of its record in the log.
    pub fn bytes(&self) -> usize {
        self.body.len()
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
