//! The head of a file, and records of logs and manifests.

use codec::cursor::Cursor;
use codec::{crc32c, crc32c_extend};

use super::{DecodeError, VERSION, VERSION_DATA, VERSIONS_BOUNDED};
use crate::limits::BATCH_DATA_MAX;
use crate::types::FileNo;

/// Bytes of a file's head.
pub(crate) const FILE_HEAD: usize = 32;
/// Bytes of the head of a record without data.
pub(crate) const RECORD_HEAD: usize = 32;

/// Form of a table's logs and manifests: those of a table that keeps data in its logs have another
/// version, which programs that know no data refuse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Form {
    /// Logs hold changes, and go when these are in sorted files.
    #[default]
    Plain,
    /// Behind a batch's changes a log may hold data, for which it stays.
    WithData,
}

impl Form {
    const fn version(self) -> u32 {
        match self {
            Form::Plain => VERSION,
            Form::WithData => VERSION_DATA,
        }
    }

    /// Bytes of the head of a log's record.
    pub(crate) const fn record_head(self) -> usize {
        match self {
            Form::Plain => RECORD_HEAD,
            Form::WithData => RECORD_HEAD + 8,
        }
    }
}

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

/// What the head of a file says beside its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) form: Form,
    /// Of a manifest: references have bounds.
    pub(crate) is_bounded: bool,
    pub(crate) file: FileNo,
    /// Of a manifest: the highest number of an owner so far.
    pub(crate) owner: u64,
}

impl Head {
    const fn version(self) -> u32 {
        match (self.form, self.is_bounded) {
            (form, false) => form.version(),
            (Form::Plain, true) => VERSIONS_BOUNDED.0,
            (Form::WithData, true) => VERSIONS_BOUNDED.1,
        }
    }

    /// Form and bounds of a version; none if files of such a content have no such version.
    const fn of_version(content: Content, version: u32) -> Option<(Form, bool)> {
        Some(match (content, version) {
            (_, VERSION) => (Form::Plain, false),
            (Content::Log | Content::Manifest, VERSION_DATA) => (Form::WithData, false),
            (Content::Manifest, version) if version == VERSIONS_BOUNDED.0 => (Form::Plain, true),
            (Content::Manifest, version) if version == VERSIONS_BOUNDED.1 => (Form::WithData, true),
            _ => return None,
        })
    }

    /// Its bytes.
    pub(crate) fn encode(self, content: Content) -> [u8; FILE_HEAD] {
        let mut head = [0; FILE_HEAD];
        head[0..8].copy_from_slice(&content.magic());
        head[8..12].copy_from_slice(&self.version().to_le_bytes());
        head[16..24].copy_from_slice(&self.file.get().to_le_bytes());
        head[24..32].copy_from_slice(&self.owner.to_le_bytes());
        let crc = crc32c(&head);
        head[12..16].copy_from_slice(&crc.to_le_bytes());
        head
    }
}

/// The head of a sorted file.
pub(crate) fn sorted_head(file: FileNo) -> [u8; FILE_HEAD] {
    Head { form: Form::Plain, is_bounded: false, file, owner: 0 }.encode(Content::Sorted)
}

/// The head of a log.
pub(crate) fn log_head(form: Form, file: FileNo) -> [u8; FILE_HEAD] {
    Head { form, is_bounded: false, file, owner: 0 }.encode(Content::Log)
}

/// The form and the number in a log's head.
pub(crate) fn read_log_head(bytes: &[u8]) -> Result<(Form, FileNo), DecodeError> {
    match read_head(Content::Log, bytes)? {
        Head { form, file, owner: 0, .. } => Ok((form, file)),
        _ => Err(DecodeError::Damaged("its head does not verify")),
    }
}

/// The head of any file.
pub(crate) fn read_head(content: Content, bytes: &[u8]) -> Result<Head, DecodeError> {
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
    let Some((form, is_bounded)) = Head::of_version(content, version) else {
        return Err(DecodeError::Version(version));
    };
    let mut zeroed: [u8; FILE_HEAD] = head.try_into().expect("its length");
    zeroed[12..16].fill(0);
    if crc32c(&zeroed) != crc {
        return Err(DecodeError::Damaged("its head does not verify"));
    }
    Ok(Head { form, is_bounded, file: FileNo::from_raw(raw), owner })
}

/// A record of a log (a batch) or of a manifest (an edit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record<'a> {
    /// Sequence of its first operation, or number of the edit.
    pub(crate) seq: u64,
    /// Operations or changes in it.
    pub(crate) count: u32,
    pub(crate) body: &'a [u8],
    /// Bytes of data that follow the body, which no checksum of the record covers.
    pub(crate) data: u32,
}

impl Record<'_> {
    /// Bytes from its start to the next record.
    pub(crate) fn len(&self, form: Form) -> u64 {
        (form.record_head() + self.body.len()) as u64 + u64::from(self.data)
    }
}

/// Next item in a log or manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next<'a> {
    Record(Record<'a>),
    /// This many bytes are needed to decide; at the end of a file: an append that was under way
    /// when its writer died, and that was never acknowledged.
    Partial(usize),
}

/// Appends a record of the file, but for its data.
pub(crate) fn put_record(out: &mut Vec<u8>, form: Form, file: FileNo, record: &Record<'_>) {
    let len = u32::try_from(record.body.len()).expect("records have a bound");
    let mut head = [0; Form::WithData.record_head()];
    head[4..8].copy_from_slice(&crc32c(record.body).to_le_bytes());
    head[8..12].copy_from_slice(&len.to_le_bytes());
    head[12..16].copy_from_slice(&record.count.to_le_bytes());
    head[16..24].copy_from_slice(&record.seq.to_le_bytes());
    head[24..32].copy_from_slice(&file.get().to_le_bytes());
    head[32..36].copy_from_slice(&record.data.to_le_bytes());
    let head = &mut head[..form.record_head()];
    let crc = crc32c(&head[4..]);
    head[0..4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(record.body);
}

/// The record at the start of `bytes`, whose body has `max` bytes at most. Its data may not be there.
pub(crate) fn next_record(
    form: Form,
    file: FileNo,
    bytes: &[u8],
    max: usize,
) -> Result<Next<'_>, DecodeError> {
    let head_len = form.record_head();
    let Some((head, rest)) = bytes.split_at_checked(head_len) else {
        return Ok(Next::Partial(head_len));
    };
    let mut input = Cursor(head);
    let mut word = || input.u32().expect("within the head");
    let (head_crc, body_crc, len, count) = (word(), word(), word() as usize, word());
    let mut long = || input.u64().expect("within the head");
    let (seq, owner) = (long(), FileNo::from_raw(long()));
    let data = if form == Form::WithData { long() } else { 0 };
    if crc32c(&head[4..]) != head_crc {
        return Err(DecodeError::Damaged("a record's head does not verify"));
    }
    if owner != file {
        return Err(DecodeError::Damaged("a record is of another file"));
    }
    let data = u32::try_from(data).unwrap_or(u32::MAX);
    if len > max || data as usize > BATCH_DATA_MAX {
        return Err(DecodeError::Damaged("a record is longer than any may be"));
    }
    let Some(body) = rest.get(..len) else {
        return Ok(Next::Partial(head_len + len));
    };
    if crc32c(body) != body_crc {
        return Err(DecodeError::Damaged("a record's content does not verify"));
    }
    Ok(Next::Record(Record { seq, count, body, data }))
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
        for (form, data) in [(Form::Plain, 0), (Form::WithData, 70_000)] {
            let good = Record { seq: 77, count: 2, body: b"some body", data };
            let mut out = Vec::new();
            put_record(&mut out, form, FILE, &good);
            let next = |bytes: &[u8]| next_record(form, FILE, bytes, 99).map(drop);
            assert_eq!(next_record(form, FILE, &out, 99), Ok(Next::Record(good)));
            assert_eq!(good.len(form), (out.len() + data as usize) as u64);
            for bit in 0..out.len() * 8 {
                let mut bad = out.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(next(&bad).is_err(), "bit {bit}");
            }
            for cut in 0..out.len() {
                let head = form.record_head();
                let want = if cut < head { head } else { out.len() };
                let seen = next_record(form, FILE, &out[..cut], 99);
                assert_eq!(seen, Ok(Next::Partial(want)));
            }
            assert!(next_record(form, FileNo::new(3, 8), &out, 99).is_err());
            assert!(next_record(form, FILE, &out, 8).is_err());
        }
        let mut out = Vec::new();
        let data = BATCH_DATA_MAX as u32 + 1;
        put_record(&mut out, Form::WithData, FILE, &Record { seq: 1, count: 0, body: b"", data });
        assert!(next_record(Form::WithData, FILE, &out, 99).is_err());
    }

    #[test]
    fn manifest_heads_have_bounds_and_owner() {
        for (form, is_bounded, version) in [
            (Form::Plain, false, 1),
            (Form::WithData, false, 2),
            (Form::Plain, true, 3),
            (Form::WithData, true, 4),
        ] {
            let head = Head { form, is_bounded, file: FILE, owner: 9 };
            let bytes = head.encode(Content::Manifest);
            assert_eq!(bytes[8], version);
            assert_eq!(read_head(Content::Manifest, &bytes), Ok(head));
            let log = Head { owner: 0, ..head }.encode(Content::Log);
            assert_eq!(read_log_head(&log).is_ok(), !is_bounded);
        }
    }

    #[test]
    fn heads_have_content_form_and_file() {
        for form in [Form::Plain, Form::WithData] {
            let head = log_head(form, FILE);
            assert_eq!(read_log_head(&head), Ok((form, FILE)));
            assert!(matches!(read_head(Content::Manifest, &head), Err(DecodeError::Damaged(_))));
            let mut newer = head;
            newer[8] = 3;
            assert_eq!(read_log_head(&newer), Err(DecodeError::Version(3)));
            for bit in 0..head.len() * 8 {
                let mut bad = head;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(read_log_head(&bad).is_err(), "bit {bit}");
            }
        }
    }
}
