//! Strings of the protocol. Its numbers are big-endian.

use codec::cursor::Cursor;

/// A string behind its length; nothing when it is longer than `max` or no UTF-8.
pub(super) fn string(input: &mut Cursor<'_>, max: usize) -> Option<String> {
    let len = input.u32_be()? as usize;
    if len > max {
        return None;
    }
    text(input.take(len)?)
}

/// All that is left, as a string.
pub(super) fn rest(input: &mut Cursor<'_>, max: usize) -> Option<String> {
    let bytes = std::mem::take(&mut input.0);
    if bytes.len() > max {
        return None;
    }
    text(bytes)
}

/// The value, when nothing is left behind it.
pub(super) fn done<T>(input: Cursor<'_>, value: T) -> Option<T> {
    input.is_empty().then_some(value)
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
