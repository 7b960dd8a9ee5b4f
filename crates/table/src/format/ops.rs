//! Operations of a batch, as the log holds them.

use super::DecodeError;
use crate::limits::{KEY_MAX, VALUE_MAX};
use codec::cursor::{Cursor, put_bytes, put_varint};

/// One change of one key; no value deletes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: Option<&'a [u8]>,
}

/// Appends an operation: the key, then 0 or one more than the value's length, then the value.
pub(crate) fn put_op(out: &mut Vec<u8>, op: Op<'_>) {
    put_bytes(out, op.key);
    put_value(out, op.value);
}

pub(crate) fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    put_varint(out, value.map_or(0, |value| value.len() as u64 + 1));
    out.extend_from_slice(value.unwrap_or_default());
}

pub(crate) fn take_value<'a>(input: &mut Cursor<'a>) -> Option<Option<&'a [u8]>> {
    match input.varint()? {
        0 => Some(None),
        len if len <= VALUE_MAX as u64 + 1 => input.take(len as usize - 1).map(Some),
        _ => None,
    }
}

/// Bytes of an operation.
pub(crate) fn op_len(op: Op<'_>) -> usize {
    let varint = |value: usize| (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize;
    let value = op.value.map_or(0, <[u8]>::len);
    let tag = op.value.map_or(0, |value| value.len() + 1);
    varint(op.key.len()) + op.key.len() + varint(tag) + value
}

/// The operations of a record, `count` in number.
pub(crate) fn read_ops(body: &[u8], count: u32) -> Result<Vec<Op<'_>>, DecodeError> {
    let mut input = Cursor(body);
    let mut ops = Vec::new();
    for _ in 0..count {
        let op = input.bytes(KEY_MAX).filter(|key| !key.is_empty());
        let op = op.and_then(|key| Some(Op { key, value: take_value(&mut input)? }));
        ops.push(op.ok_or(DecodeError::Damaged("a batch does not have the operations it counts"))?);
    }
    if !input.is_empty() {
        return Err(DecodeError::Damaged("a batch goes on behind its last operation"));
    }
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_come_back_and_have_the_length_foretold() {
        let long = vec![7; 200];
        let ops = [
            Op { key: b"a", value: None },
            Op { key: b"b", value: Some(b"") },
            Op { key: &long, value: Some(&long) },
        ];
        let mut out = Vec::new();
        for op in ops {
            let before = out.len();
            put_op(&mut out, op);
            assert_eq!(out.len() - before, op_len(op));
        }
        assert_eq!(read_ops(&out, 3).unwrap(), ops);
        assert!(read_ops(&out, 2).is_err() && read_ops(&out, 4).is_err());
    }
}
