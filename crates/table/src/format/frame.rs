//! The head of a file, and records of logs and manifests.

use codec::cursor::Cursor;
use codec::{crc32c, crc32c_extend};

use super::{DecodeError, VERSION};
use crate::types::FileNo;

/// Bytes of a file's head.
pub(crate) const FILE_HEAD: usize = 32;
/// Bytes of a record's head.
pub(crate) const RECORD_HEAD: usize = 32;

/// Content of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    Log,
    Manifest,
    Sorted,
}

impl Content {
    pub(crate) const fn magic(self) -> [u8; 8] {
        match self {
            Content::Log => *b"CRTNTLOG",
            Content::Manifest => *b"CRTNTMAN",
            Content::Sorted => *b"CRTNTSRT",
        }
    }
}

/// The head of a log or sorted file.
pub(crate) fn file_head(content: Content, file: FileNo) -> [u8; FILE_HEAD] {
    head_of(content, file, 0)
}

/// The head of a manifest of this owner.
pub(crate) fn manifest_head(file: FileNo, owner: u64) -> [u8; FILE_HEAD] {
    head_of(Content::Manifest, file, owner)
}

fn head_of(content: Content, file: FileNo, owner: u64) -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[0..8].copy_from_slice(&content.magic());
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[16..24].copy_from_slice(&file.get().to_le_bytes());
    head[24..32].copy_from_slice(&owner.to_le_bytes());
    let crc = crc32c(&head);
    head[12..16].copy_from_slice(&crc.to_le_bytes());
    head
}

/// The number in the head of a log or sorted file.
pub(crate) fn read_file_head(content: Content, bytes: &[u8]) -> Result<FileNo, DecodeError> {
    match read_head(content, bytes)? {
        (file, 0) => Ok(file),
        _ => Err(DecodeError::Damaged("its head does not verify")),
    }
}

/// The number and the owner in a manifest's head.
pub(crate) fn read_manifest_head(bytes: &[u8]) -> Result<(FileNo, u64), DecodeError> {
    read_head(Content::Manifest, bytes)
}

fn read_head(content: Content, bytes: &[u8]) -> Result<(FileNo, u64), DecodeError> {
    let Some(head) = bytes.get(..FILE_HEAD) else {
        return Err(DecodeError::Damaged("it ends within its head"));
    };
    if head[..8] != content.magic() {
        return Err(DecodeError::Damaged("it does not begin as such a file does"));
    }
    let mut input = Cursor(&head[8..]);
    let parsed = (|| Some((input.u32()?, input.u32()?, input.u64()?, input.u64()?)))();
    let (version, crc, raw, owner) = parsed.expect("its length");
    // The place of the version is the same in all versions; the rest may not be.
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let mut zeroed: [u8; FILE_HEAD] = head.try_into().expect("its length");
    zeroed[12..16].fill(0);
    if crc32c(&zeroed) != crc {
        return Err(DecodeError::Damaged("its head does not verify"));
    }
    Ok((FileNo::from_raw(raw), owner))
}

/// A record of a log (a batch) or of a manifest (an edit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record<'a> {
    /// Sequence of its first operation, or number of the edit.
    pub(crate) seq: u64,
    /// Operations or changes in it.
    pub(crate) count: u32,
    pub(crate) body: &'a [u8],
}

/// Next item in a log or manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next<'a> {
    Record(Record<'a>),
    /// This many bytes are needed to decide; at the end of a file: an append that was under way
    /// when its writer died, and that was never acknowledged.
    Partial(usize),
}

/// Appends a record of the file.
pub(crate) fn put_record(out: &mut Vec<u8>, file: FileNo, seq: u64, count: u32, body: &[u8]) {
    let len = u32::try_from(body.len()).expect("records have a bound");
    let mut head = [0; RECORD_HEAD];
    head[4..8].copy_from_slice(&crc32c(body).to_le_bytes());
    head[8..12].copy_from_slice(&len.to_le_bytes());
    head[12..16].copy_from_slice(&count.to_le_bytes());
    head[16..24].copy_from_slice(&seq.to_le_bytes());
    head[24..32].copy_from_slice(&file.get().to_le_bytes());
    let crc = crc32c(&head[4..]);
    head[0..4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(body);
}

/// The record at the start of `bytes`, whose body has `max` bytes at most.
pub(crate) fn next_record(file: FileNo, bytes: &[u8], max: usize) -> Result<Next<'_>, DecodeError> {
    let Some((head, rest)) = bytes.split_at_checked(RECORD_HEAD) else {
        return Ok(Next::Partial(RECORD_HEAD));
    };
    let mut input = Cursor(head);
    let mut word = || input.u32().expect("within the head");
    let (head_crc, body_crc, len, count) = (word(), word(), word() as usize, word());
    let mut long = || input.u64().expect("within the head");
    let (seq, owner) = (long(), FileNo::from_raw(long()));
    if crc32c(&head[4..]) != head_crc {
        return Err(DecodeError::Damaged("a record's head does not verify"));
    }
    if owner != file {
        return Err(DecodeError::Damaged("a record is of another file"));
    }
    if len > max {
        return Err(DecodeError::Damaged("a record is longer than any may be"));
    }
    let Some(body) = rest.get(..len) else {
        return Ok(Next::Partial(RECORD_HEAD + len));
    };
    if crc32c(body) != body_crc {
        return Err(DecodeError::Damaged("a record's content does not verify"));
    }
    Ok(Next::Record(Record { seq, count, body }))
}

/// CRC of a part of a sorted file, bound to the file and to its place in it.
pub(crate) fn placed_crc(file: FileNo, offset: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&file.get().to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    crc32c_extend(crc32c(&place), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileNo = FileNo::new(3, 9);

    #[test]
    fn every_flipped_bit_is_seen() {
        let mut out = Vec::new();
        put_record(&mut out, FILE, 77, 2, b"some body");
        let good = Record { seq: 77, count: 2, body: b"some body" };
        assert_eq!(next_record(FILE, &out, 99), Ok(Next::Record(good)));
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(next_record(FILE, &bad, 99).is_err(), "bit {bit}");
        }
        for cut in 0..out.len() {
            let want = if cut < RECORD_HEAD { RECORD_HEAD } else { out.len() };
            assert_eq!(next_record(FILE, &out[..cut], 99), Ok(Next::Partial(want)));
        }
        assert!(next_record(FileNo::new(3, 8), &out, 99).is_err());
        assert!(next_record(FILE, &out, 8).is_err());
    }

    #[test]
    fn heads_have_content_version_and_file() {
        let head = file_head(Content::Log, FILE);
        assert_eq!(read_file_head(Content::Log, &head), Ok(FILE));
        assert!(matches!(read_file_head(Content::Sorted, &head), Err(DecodeError::Damaged(_))));
        let mut newer = head;
        newer[8] = 2;
        assert_eq!(read_file_head(Content::Log, &newer), Err(DecodeError::Version(2)));
        for bit in 0..head.len() * 8 {
            let mut bad = head;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_file_head(Content::Log, &bad).is_err(), "bit {bit}");
        }
    }
}
