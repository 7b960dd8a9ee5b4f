//! Blocks of sorted files: keys in order with all their versions.

use std::cmp::Ordering;

use super::DecodeError;
use super::frame::placed_crc;
use super::ops::{put_value, take_value};
use crate::limits::{BLOCK_RAW_MAX, KEY_MAX};
use crate::options::Compression;
use crate::types::{FileNo, Seq};
use codec::cursor::{Cursor, put_bytes, put_varint};

/// Bytes in front of a block's content.
pub(crate) const BLOCK_HEAD: usize = 12;
/// Bytes of content before the shared prefix: count of keys, lowest sequence.
const CONTENT_HEAD: usize = 12;

/// A version of a key: its sequence and value; no value when it deletes the key.
pub(crate) type Version<'a> = (Seq, Option<&'a [u8]>);

/// Collects a block.
#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    /// Keys, in order and without gaps, and where each ends.
    keys: Vec<u8>,
    key_ends: Vec<usize>,
    /// Versions of each key: how many.
    counts: Vec<usize>,
    versions: Vec<(Seq, Option<std::ops::Range<usize>>)>,
    values: Vec<u8>,
}

impl BlockBuilder {
    /// Adds a key above all before it, with its versions, newest first.
    pub(crate) fn add<'a>(&mut self, key: &[u8], versions: impl Iterator<Item = Version<'a>>) {
        debug_assert!(self.key_ends.is_empty() || self.last_key() < key, "keys in order");
        let before = self.versions.len();
        for (seq, value) in versions {
            let range = value.map(|value| {
                self.values.extend_from_slice(value);
                self.values.len() - value.len()..self.values.len()
            });
            self.versions.push((seq, range));
        }
        assert!(self.versions.len() > before, "a key has a version");
        self.counts.push(self.versions.len() - before);
        self.keys.extend_from_slice(key);
        self.key_ends.push(self.keys.len());
    }

    /// Bytes of the content, about.
    pub(crate) fn size(&self) -> usize {
        self.keys.len() + self.values.len() + 6 * self.key_ends.len() + 4 * self.versions.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.key_ends.is_empty()
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        self.key(self.key_ends.len() - 1)
    }

    fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.key_ends[before]);
        &self.keys[start..self.key_ends[index]]
    }

    /// Appends the block, to be at `offset` of `file`, to `out`; empties the builder. Answers its
    /// length in bytes.
    pub(crate) fn finish(
        &mut self,
        file: FileNo,
        offset: u64,
        compression: Compression,
        out: &mut Vec<u8>,
    ) -> u32 {
        let content = self.content();
        *self = BlockBuilder::default();
        encode(file, offset, compression, &content, out)
    }

    fn content(&self) -> Vec<u8> {
        assert!(!self.is_empty());
        let count = self.key_ends.len();
        let base = self.versions.iter().map(|(seq, _)| *seq).min().expect("not empty");
        let prefix = shared(self.key(0), self.last_key());
        let mut out = Vec::with_capacity(self.size() + 64);
        out.extend_from_slice(&(count as u32).to_le_bytes());
        out.extend_from_slice(&base.get().to_le_bytes());
        put_bytes(&mut out, &self.key(0)[..prefix]);
        let mut offsets = Vec::with_capacity(4 * count);
        let mut versions = self.versions.iter();
        for index in 0..count {
            offsets.extend_from_slice(&(out.len() as u32).to_le_bytes());
            put_bytes(&mut out, &self.key(index)[prefix..]);
            put_varint(&mut out, self.counts[index] as u64);
            for (seq, value) in versions.by_ref().take(self.counts[index]) {
                put_varint(&mut out, seq.get() - base.get());
                put_value(&mut out, value.clone().map(|range| &self.values[range]));
            }
        }
        out.extend_from_slice(&offsets);
        out
    }
}

/// Bytes that two keys begin with alike.
fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Appends stored content: head, then the content, compressed where that saves an eighth.
pub(crate) fn encode(
    file: FileNo,
    offset: u64,
    compression: Compression,
    content: &[u8],
    out: &mut Vec<u8>,
) -> u32 {
    let at = out.len();
    assert!(content.len() <= BLOCK_RAW_MAX);
    out.extend_from_slice(&[0; BLOCK_HEAD]);
    let mut codec = Compression::None;
    if compression == Compression::Lz4 {
        let packed = lz4_flex::block::compress(content);
        if packed.len() + content.len() / 8 <= content.len() {
            codec = Compression::Lz4;
            out.extend_from_slice(&packed);
        }
    }
    if codec == Compression::None {
        out.extend_from_slice(content);
    }
    out[at + 4] = codec.code();
    out[at + 8..at + 12].copy_from_slice(&(content.len() as u32).to_le_bytes());
    let crc = placed_crc(file, offset, &out[at + 4..]);
    out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    (out.len() - at) as u32
}

/// Stored content, verified and unpacked.
pub(crate) fn decode(file: FileNo, offset: u64, stored: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut input = Cursor(stored);
    let crc = input.u32().ok_or(DecodeError::Damaged("a block ends within its head"))?;
    if placed_crc(file, offset, input.0) != crc {
        return Err(DecodeError::Damaged("a block does not verify"));
    }
    let head = input.u32().zip(input.u32());
    let Some((codec, len)) = head else {
        return Err(DecodeError::Damaged("a block ends within its head"));
    };
    if len as usize > BLOCK_RAW_MAX {
        return Err(DecodeError::Damaged("a block is larger than any may be"));
    }
    match u8::try_from(codec).ok().and_then(Compression::from_code) {
        Some(Compression::None) if input.0.len() == len as usize => Ok(input.0.to_vec()),
        Some(Compression::Lz4) => {
            // LZ4 makes 255 bytes of one at most: no block claims memory it does not fill.
            if (len as usize) / 255 > input.0.len() {
                return Err(DecodeError::Damaged("a block does not unpack"));
            }
            let content = lz4_flex::block::decompress(input.0, len as usize);
            let content = content.ok().filter(|content| content.len() == len as usize);
            content.ok_or(DecodeError::Damaged("a block does not unpack"))
        }
        _ => Err(DecodeError::Damaged("a block's coding or length is not one")),
    }
}

/// A verified block.
#[derive(Debug)]
pub(crate) struct Block {
    content: Vec<u8>,
    base: u64,
    prefix: std::ops::Range<usize>,
    count: usize,
    /// Offset of the places of keys.
    places: usize,
}

impl Block {
    /// From the bytes at `offset` of `file`.
    pub(crate) fn decode(file: FileNo, offset: u64, stored: &[u8]) -> Result<Block, DecodeError> {
        Block::parse(decode(file, offset, stored)?)
    }

    /// Checks all of a block's content once, so that reading it cannot fail.
    pub(crate) fn parse(content: Vec<u8>) -> Result<Block, DecodeError> {
        let block =
            Block::frame(content).ok_or(DecodeError::Damaged("a block's frame does not fit"))?;
        block.check().ok_or(DecodeError::Damaged("a block's entries do not fit"))?;
        Ok(block)
    }

    fn frame(content: Vec<u8>) -> Option<Block> {
        let mut input = Cursor(&content);
        let (count, base) = (input.u32()? as usize, input.u64()?);
        let prefix = input.bytes(KEY_MAX)?.len();
        let start = content.len() - input.0.len();
        let places = content.len().checked_sub(count.checked_mul(4)?)?;
        if count == 0 || places < start {
            return None;
        }
        Some(Block { base, prefix: start - prefix..start, count, places, content })
    }

    fn check(&self) -> Option<()> {
        let mut input = Cursor(&self.content[self.prefix.end..self.places]);
        let mut last: Option<&[u8]> = None;
        let mut lowest = u64::MAX;
        for index in 0..self.count {
            if self.place(index) != self.places - input.0.len() {
                return None;
            }
            let suffix = input.bytes(KEY_MAX - self.prefix.len())?;
            if last.is_some_and(|last| last >= suffix) {
                return None;
            }
            last = Some(suffix);
            let versions = input.varint()?;
            let mut before = u64::MAX;
            for number in 0..versions {
                let delta = input.varint()?;
                self.base.checked_add(delta)?;
                if number > 0 && delta >= before {
                    return None;
                }
                before = delta;
                take_value(&mut input)?;
            }
            if versions == 0 {
                return None;
            }
            lowest = lowest.min(before);
        }
        let whole = |index| self.suffix(index).0;
        // One form only: the base is the lowest sequence, the prefix the longest that fits.
        let one_form = lowest == 0
            && shared(whole(0), whole(self.count - 1)) == {
                if self.count == 1 { whole(0).len() } else { 0 }
            };
        let alone = self.count > 1 || whole(0).is_empty();
        (input.is_empty() && one_form && alone).then_some(())
    }

    fn place(&self, index: usize) -> usize {
        let at = self.places + 4 * index;
        u32::from_le_bytes(self.content[at..at + 4].try_into().expect("4 bytes")) as usize
    }

    /// Keys in it; never 0.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory(&self) -> usize {
        self.content.capacity() + size_of::<Block>()
    }

    fn suffix(&self, index: usize) -> (&[u8], Cursor<'_>) {
        let mut input = Cursor(&self.content[self.place(index)..self.places]);
        let suffix = input.bytes(KEY_MAX).expect("checked when it was read");
        (suffix, input)
    }

    /// A key.
    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        [&self.content[self.prefix.clone()], self.suffix(index).0].concat()
    }

    /// Reads a key into a buffer, in place of what that has.
    pub(crate) fn read_key(&self, index: usize, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&self.content[self.prefix.clone()]);
        into.extend_from_slice(self.suffix(index).0);
    }

    /// Comparison of a key with `other`.
    fn compare(&self, index: usize, other: &[u8]) -> Ordering {
        let prefix = &self.content[self.prefix.clone()];
        let head = &other[..other.len().min(prefix.len())];
        match prefix.cmp(head) {
            Ordering::Equal => self.suffix(index).0.cmp(&other[prefix.len()..]),
            unequal => unequal,
        }
    }

    /// The first key at or above `key`; the count when there is none.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            match self.compare(middle, key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal | Ordering::Greater => high = middle,
            }
        }
        low
    }

    /// The last key at or below `key`.
    pub(crate) fn last_at_or_below(&self, key: &[u8]) -> Option<usize> {
        let index = self.lower_bound(key);
        if index < self.count && self.compare(index, key) == Ordering::Equal {
            return Some(index);
        }
        index.checked_sub(1)
    }

    /// The place of `key`.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        let index = self.lower_bound(key);
        (index < self.count && self.compare(index, key) == Ordering::Equal).then_some(index)
    }

    /// The versions of a key, newest first.
    pub(crate) fn versions(&self, index: usize) -> impl Iterator<Item = Version<'_>> {
        let (_, mut input) = self.suffix(index);
        let count = input.varint().expect("checked");
        (0..count).map(move |_| {
            let seq = Seq::new(self.base + input.varint().expect("checked"));
            (seq, take_value(&mut input).expect("checked"))
        })
    }

    /// The newest version of a key at or below `seq`.
    pub(crate) fn visible(&self, index: usize, seq: Seq) -> Option<Version<'_>> {
        self.versions(index).find(|version| version.0 <= seq)
    }
}

const _: () = assert!(CONTENT_HEAD == 4 + 8);

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileNo = FileNo::new(1, 2);

    #[test]
    fn finds_keys_and_versions() {
        for compression in [Compression::None, Compression::Lz4] {
            let mut builder = BlockBuilder::default();
            let key = |n: u32| format!("shared/{n:04}").into_bytes();
            for n in (0..200).step_by(2) {
                let versions = [(Seq::new(900), None), (Seq::new(100 + u64::from(n)), Some("v"))];
                builder.add(&key(n), versions.iter().map(|v| (v.0, v.1.map(str::as_bytes))));
            }
            let mut out = Vec::new();
            assert_eq!(builder.finish(FILE, 77, compression, &mut out) as usize, out.len());
            assert!(Block::decode(FILE, 78, &out).is_err());
            let block = Block::decode(FILE, 77, &out).unwrap();
            assert_eq!(block.len(), 100);
            for n in 0..200 {
                assert_eq!(block.find(&key(n)).is_some(), n % 2 == 0);
                assert_eq!(block.lower_bound(&key(n)), (n as usize).div_ceil(2));
                assert_eq!(block.last_at_or_below(&key(n)), Some(n as usize / 2));
            }
            assert_eq!(block.lower_bound(b"a"), 0);
            assert_eq!(block.lower_bound(b"shared/"), 0);
            assert_eq!(block.lower_bound(b"z"), 100);
            assert_eq!(block.last_at_or_below(b"shared/"), None);
            assert_eq!(block.last_at_or_below(b"z"), Some(99));
            assert_eq!(block.key(3), key(6));
            assert_eq!(block.visible(3, Seq::new(899)), Some((Seq::new(106), Some(&b"v"[..]))));
            assert_eq!(block.visible(3, Seq::new(900)), Some((Seq::new(900), None)));
            assert_eq!(block.visible(3, Seq::new(105)), None);
        }
    }
}
