//! Numbers in bytes, for decoders that answer `None` where bytes are missing.

/// Appends a variable-length number: 7 bits a byte, low ones first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length, as [`put_varint`] does, and the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes values off the front of bytes. Numbers are little-endian, but where a method's name ends
/// in `_be`. `None` when there are fewer bytes: then nothing is taken.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// True when all has been taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// So many bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Sixteen bytes.
    #[inline]
    pub fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// Two bytes, big-endian.
    #[inline]
    pub fn u16_be(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes, big-endian.
    #[inline]
    pub fn u32_be(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight bytes, big-endian.
    #[inline]
    pub fn u64_be(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A variable-length number in its shortest form.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
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
    #[inline]
    pub fn varint32(&mut self) -> Option<u32> {
        let mut rest = *self;
        let value = u32::try_from(rest.varint()?).ok()?;
        *self = rest;
        Some(value)
    }

    /// A length of `max` at most, as a variable-length number, and as many bytes.
    #[inline]
    pub fn bytes(&mut self, max: usize) -> Option<&'a [u8]> {
        let mut rest = *self;
        let len = rest.varint().filter(|&len| len <= max as u64)?;
        let bytes = rest.take(len as usize)?;
        *self = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_length_numbers_come_back_in_one_form_only() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                let mut input = Cursor(&out);
                assert_eq!(input.varint(), Some(value));
                assert!(input.is_empty());
                assert_eq!(Cursor(&out).varint32(), u32::try_from(value).ok());
            }
        }
        for bad in [&[0x80, 0x00][..], &[0x80], &[], &[0xff; 10], &[0xff; 11]] {
            assert_eq!(Cursor(bad).varint(), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_that_are_cut_off_take_nothing() {
        let bytes = [1, 2, 3, 4, 5, 6, 7];
        let mut input = Cursor(&bytes);
        assert_eq!((input.u64(), input.u128(), input.u64_be(), input.take(8)), Default::default());
        assert_eq!(
            (input.u8(), input.u16(), input.u32_be()),
            (Some(1), Some(0x0302), Some(0x04050607))
        );
        assert!(input.is_empty() && input.u8().is_none());
    }

    #[test]
    fn bytes_have_a_bound() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"abc");
        assert_eq!(Cursor(&out).bytes(2), None);
        assert_eq!(Cursor(&out).bytes(3), Some(&b"abc"[..]));
        assert_eq!(Cursor(&out[..3]).bytes(3), None);
    }
}
