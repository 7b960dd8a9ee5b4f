//! Big-endian fields.

/// Takes fields off the front of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes(bytes.try_into().expect("2 bytes")))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_be_bytes(bytes.try_into().expect("4 bytes")))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")))
    }

    /// A string behind its length; nothing when it is longer than `max` or no UTF-8.
    pub(super) fn string(&mut self, max: usize) -> Option<String> {
        let len = self.u32()? as usize;
        if len > max {
            return None;
        }
        text(self.take(len)?)
    }

    /// All that is left, as a string.
    pub(super) fn rest(&mut self, max: usize) -> Option<String> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.len() > max {
            return None;
        }
        text(bytes)
    }

    /// The value, when nothing is left behind it.
    pub(super) fn done<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
