//! Numbers in bytes.

/// Appends a variable-length number: 7 bits a byte, low ones first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes values off the front of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    /// A variable-length number in its shortest form.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (index, &byte) in self.0.iter().enumerate().take(10) {
            let part = u64::from(byte & 0x7f);
            if index == 9 && part > 1 {
                return None; // More than 64 bits.
            }
            value |= part << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return None; // Not the shortest form.
                }
                self.0 = &self.0[index + 1..];
                return Some(value);
            }
        }
        None
    }

    /// A length of `max` at most, and as many bytes.
    pub(crate) fn bytes(&mut self, max: usize) -> Option<&'a [u8]> {
        let len = self.varint()?;
        if len > max as u64 {
            return None;
        }
        self.take(len as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_in_one_form_only() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                let mut input = Input(&out);
                assert_eq!(input.varint(), Some(value));
                assert!(input.is_empty());
            }
        }
        for bad in [&[0x80, 0x00][..], &[0x80], &[], &[0xff; 10], &[0xff; 11]] {
            assert_eq!(Input(bad).varint(), None, "{bad:?}");
        }
    }
}
