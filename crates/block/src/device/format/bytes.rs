//! Numbers in bytes.

/// Appends a variable-length number: 7 bits a byte, low ones first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes values off the front of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
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

    /// A variable-length number that fits in 32 bits.
    pub(crate) fn varint32(&mut self) -> Option<u32> {
        let mut rest = *self;
        let value = u32::try_from(rest.varint()?).ok()?;
        *self = rest;
        Some(value)
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
                assert_eq!(Input(&out).varint32(), u32::try_from(value).ok());
            }
        }
        for bad in [&[0x80, 0x00][..], &[0x80], &[], &[0xff; 10], &[0xff; 11]] {
            assert_eq!(Input(bad).varint(), None, "{bad:?}");
        }
    }
}
