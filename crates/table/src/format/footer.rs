//! The end of a sorted file.

use super::frame::placed_crc;
use super::{DecodeError, VERSION};
use crate::types::FileNo;
use codec::cursor::Cursor;

/// Bytes of the footer.
pub(crate) const FOOTER: usize = 64;
const MAGIC: [u8; 8] = *b"CRTNTEND";

/// Content of the last bytes of a sorted file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footer {
    /// Offset of the top block.
    pub(crate) top_at: u64,
    pub(crate) top_len: u32,
    /// Keys, and versions of keys.
    pub(crate) keys: u64,
    pub(crate) versions: u64,
}

impl Footer {
    /// The footer's bytes, for a file whose footer is at `offset`.
    pub(crate) fn encode(&self, file: FileNo, offset: u64) -> [u8; FOOTER] {
        let mut out = [0; FOOTER];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&file.get().to_le_bytes());
        out[24..32].copy_from_slice(&self.top_at.to_le_bytes());
        out[32..36].copy_from_slice(&self.top_len.to_le_bytes());
        out[40..48].copy_from_slice(&self.keys.to_le_bytes());
        out[48..56].copy_from_slice(&self.versions.to_le_bytes());
        let crc = placed_crc(file, offset, &out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// From the bytes at `offset` of `file`.
    pub(crate) fn decode(file: FileNo, offset: u64, bytes: &[u8]) -> Result<Footer, DecodeError> {
        let bytes: &[u8; FOOTER] =
            bytes.try_into().map_err(|_| DecodeError::Damaged("it ends within its footer"))?;
        if bytes[..8] != MAGIC {
            return Err(DecodeError::Damaged("it does not end as such a file does"));
        }
        let footer = Footer::fields(&bytes[8..]);
        let (version, footer) = footer.ok_or(DecodeError::Damaged("it ends within its footer"))?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        if footer.encode(file, offset) != *bytes {
            return Err(DecodeError::Damaged("its footer does not verify"));
        }
        let end = footer.top_at.checked_add(u64::from(footer.top_len));
        if end != Some(offset) || footer.keys == 0 || footer.versions < footer.keys {
            return Err(DecodeError::Damaged("its footer names what cannot be"));
        }
        Ok(footer)
    }

    fn fields(bytes: &[u8]) -> Option<(u32, Footer)> {
        let mut input = Cursor(bytes);
        let version = input.u32()?;
        input.take(12)?; // CRC and file: compared as a whole.
        let (top_at, top_len, _) = (input.u64()?, input.u32()?, input.u32()?);
        let (keys, versions) = (input.u64()?, input.u64()?);
        Some((version, Footer { top_at, top_len, keys, versions }))
    }
}

/// Place of a part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FilePart {
    pub(crate) at: u64,
    pub(crate) len: u32,
}

impl FilePart {
    /// Bytes of its encoding.
    pub(crate) const LEN: usize = 12;

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.at.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
    }

    pub(crate) fn take(input: &mut Cursor<'_>) -> Option<FilePart> {
        Some(FilePart { at: input.u64()?, len: input.u32()? })
    }

    pub(crate) fn end(self) -> u64 {
        self.at.saturating_add(u64::from(self.len))
    }
}

/// The value of an index entry: one data block.
pub(crate) fn index_value(block: FilePart) -> Vec<u8> {
    let mut out = Vec::with_capacity(FilePart::LEN);
    block.put(&mut out);
    out
}

/// The value of an entry of the top block: a partition's index block, and the filter behind it.
pub(crate) fn top_value(index: FilePart, filter_len: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(FilePart::LEN + 4);
    index.put(&mut out);
    out.extend_from_slice(&filter_len.to_le_bytes());
    out
}

/// See [`index_value`]; it lies below `limit`.
pub(crate) fn read_index_value(value: Option<&[u8]>, limit: u64) -> Option<FilePart> {
    let mut input = Cursor(value?);
    let part = FilePart::take(&mut input)?;
    (input.is_empty() && part.end() <= limit && part.len > 0).then_some(part)
}

/// See [`top_value`]; both lie below `limit`.
pub(crate) fn read_top_value(value: Option<&[u8]>, limit: u64) -> Option<(FilePart, FilePart)> {
    let mut input = Cursor(value?);
    let index = FilePart::take(&mut input)?;
    let filter = FilePart { at: index.end(), len: input.u32()? };
    (input.is_empty() && index.len > 0 && filter.end() <= limit).then_some((index, filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_at_its_place_only() {
        let file = FileNo::new(1, 7);
        let footer = Footer { top_at: 100, top_len: 20, keys: 5, versions: 6 };
        let bytes = footer.encode(file, 120);
        assert_eq!(Footer::decode(file, 120, &bytes), Ok(footer));
        assert!(Footer::decode(file, 121, &bytes).is_err());
        assert!(Footer::decode(FileNo::new(1, 8), 120, &bytes).is_err());
        for bit in 0..FOOTER * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(file, 120, &bad).is_err(), "bit {bit}");
        }
    }
}
