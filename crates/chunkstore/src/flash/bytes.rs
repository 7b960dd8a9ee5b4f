//! Little-endian fields out of bytes, without panics.

/// Takes fields from the front of a slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes(2).map(|bytes| u16::from_le_bytes(bytes.try_into().expect("2 bytes")))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.bytes(16).map(|bytes| u128::from_le_bytes(bytes.try_into().expect("16 bytes")))
    }
}

pub(crate) fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
