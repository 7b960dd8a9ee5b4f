//! Streams of differences: the changes of a volume's snapshot since an older one, as bytes that
//! bring another volume forward (B10). Format: `docs/formats/volume-diff.md`.
//!
//! Pure: no I/O. A stream is a head, then records, the last of which has their number. All CRCs of
//! records begin with the stream's number, so that no record of another stream is accepted; and
//! records are numbered, so that none is missed.

#[cfg(test)]
mod tests;

use std::fmt;

use base::limits::NAME_MAX;
use codec::{crc32c, crc32c_extend};

use crate::limits::{BLOCK, VOLUME_BYTES};

/// The first bytes of a stream.
pub const MAGIC: &[u8; 8] = b"CRTNDIFF";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes of a head without its names.
pub const HEAD: usize = 48;
/// Bytes of a head at most.
pub const HEAD_MAX: usize = HEAD + 2 * NAME_MAX;
/// Bytes of a record without its data.
pub const RECORD: usize = 32;
/// Bytes of a record's data at most: the limit of one request to a volume.
pub const DATA_MAX: usize = 1 << 20;

/// Decode errors of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// It is no such stream.
    Foreign,
    /// Another version of this program wrote it.
    Version(u32),
    /// Its bytes are not what was written.
    Damaged(&'static str),
    /// It ends before its last record.
    Truncated,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Foreign => f.write_str(
                "it is no difference of snapshots; 'craton volume export-diff' writes such files",
            ),
            DecodeError::Version(seen) => write!(
                f,
                "it has format version {seen}, this program reads {VERSION}; use the program that \
                 wrote it"
            ),
            DecodeError::Damaged(what) => write!(f, "it is damaged: {what}; export it again"),
            DecodeError::Truncated => f.write_str("it ends too early; export it again"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Identity and range of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Number of the stream, drawn by its writer.
    pub id: u64,
    /// Bytes of the volume.
    pub bytes: u64,
    /// Name of the snapshot that it stands on, without the volume's; nothing when it has all.
    pub base: Option<String>,
    /// Name of the snapshot that it leads to.
    pub snapshot: String,
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.contains(['@', '/'])
        && !name.chars().any(char::is_control)
}

impl Head {
    /// Its bytes. Names are those that snapshots can have.
    pub fn encode(&self) -> Vec<u8> {
        let base = self.base.as_deref().unwrap_or_default();
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.id.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend((base.len() as u16).to_le_bytes());
        out.extend((self.snapshot.len() as u16).to_le_bytes());
        out.resize(HEAD, 0);
        out.extend(base.as_bytes());
        out.extend(self.snapshot.as_bytes());
        let crc = crc32c(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The head that a stream begins with, and its length; nothing when more bytes are needed, of
    /// which [`HEAD_MAX`] are enough.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Head, usize)>, DecodeError> {
        let seen = bytes.len().min(MAGIC.len());
        if bytes[..seen] != MAGIC[..seen] {
            return Err(DecodeError::Foreign);
        }
        let Some(fixed) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let version = u32_at(fixed, 8);
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let lens = [u16_at(fixed, 32), u16_at(fixed, 34)].map(usize::from);
        if lens.iter().any(|&len| len > NAME_MAX) {
            return Err(DecodeError::Damaged("a name in its head is too long"));
        }
        let len = HEAD + lens[0] + lens[1];
        let Some(whole) = bytes.get(..len) else { return Ok(None) };
        let mut zeroed = whole.to_vec();
        zeroed[12..16].fill(0);
        if crc32c(&zeroed) != u32_at(fixed, 12) {
            return Err(DecodeError::Damaged("its head does not have its CRC"));
        }
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        let (base, snapshot) = whole[HEAD..].split_at(lens[0]);
        let names = text(base).zip(text(snapshot)).filter(|(base, snapshot)| {
            (base.is_empty() || is_name(base)) && is_name(snapshot) && base != snapshot
        });
        let (base, snapshot) = names.ok_or(DecodeError::Damaged("a name in its head is none"))?;
        let bytes = u64_at(fixed, 24);
        if !bytes.is_multiple_of(BLOCK) || bytes == 0 || bytes > VOLUME_BYTES.1 {
            return Err(DecodeError::Damaged("no volume has the length in its head"));
        }
        if fixed[36..].iter().any(|&byte| byte != 0) {
            return Err(DecodeError::Damaged("reserved bytes of its head are in use"));
        }
        let base = (!base.is_empty()).then_some(base);
        Ok(Some((Head { id: u64_at(fixed, 16), bytes, base, snapshot }, len)))
    }
}

/// A record: the state of a part of the volume. Offsets and lengths are whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// It has the data behind the record.
    Data {
        /// The first byte.
        offset: u64,
        /// Bytes, [`DATA_MAX`] at most.
        len: u64,
    },
    /// It has no data any more.
    Hole {
        /// The first byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// It has zeroes that count as data.
    Zero {
        /// The first byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// That was all.
    End {
        /// Records before this one.
        records: u64,
        /// Bytes of data in them.
        data: u64,
    },
}

impl Item {
    fn fields(self) -> (u8, u64, u64) {
        match self {
            Item::Data { offset, len } => (1, offset, len),
            Item::Hole { offset, len } => (2, offset, len),
            Item::Zero { offset, len } => (3, offset, len),
            Item::End { records, data } => (4, records, data),
        }
    }
}

/// Counts records and data, for the writer and for the reader.
#[derive(Clone, Debug)]
struct Passed {
    id: u64,
    records: u64,
    data: u64,
}

impl Passed {
    fn crc(&self, bytes: &[u8]) -> u32 {
        crc32c_extend(crc32c(&self.id.to_le_bytes()), bytes)
    }

    fn count(&mut self, item: Item) {
        self.records += 1;
        if let Item::Data { len, .. } = item {
            self.data += len;
        }
    }
}

/// Writes a stream's records.
#[derive(Clone, Debug)]
pub struct Writer(Passed);

impl Writer {
    /// Behind a head.
    pub fn new(head: &Head) -> Writer {
        Writer(Passed { id: head.id, records: 0, data: 0 })
    }

    /// The bytes of the next record; its data stand behind them.
    pub fn record(&mut self, item: Item, data: &[u8]) -> [u8; RECORD] {
        let (kind, first, second) = item.fields();
        let mut out = [0; RECORD];
        if let Item::Data { len, .. } = item {
            assert_eq!(data.len() as u64, len, "a record has its data");
            out[4..8].copy_from_slice(&self.0.crc(data).to_le_bytes());
        }
        out[8] = kind;
        out[12..16].copy_from_slice(&(self.0.records as u32).to_le_bytes());
        out[16..24].copy_from_slice(&first.to_le_bytes());
        out[24..].copy_from_slice(&second.to_le_bytes());
        let crc = self.0.crc(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        self.0.count(item);
        out
    }

    /// The bytes of the last record.
    pub fn end(&mut self) -> [u8; RECORD] {
        let (records, data) = (self.0.records, self.0.data);
        self.record(Item::End { records, data }, &[])
    }

    /// Bytes of data so far.
    pub fn data(&self) -> u64 {
        self.0.data
    }
}

/// Reads a stream's records.
#[derive(Clone, Debug)]
pub struct Reader {
    passed: Passed,
    bytes: u64,
    crc: u32,
    ended: bool,
}

impl Reader {
    /// Behind a head.
    pub fn new(head: &Head) -> Reader {
        let passed = Passed { id: head.id, records: 0, data: 0 };
        Reader { passed, bytes: head.bytes, crc: 0, ended: false }
    }

    /// The next record; [`Reader::check`] has to see its data before these are used.
    pub fn record(&mut self, bytes: &[u8; RECORD]) -> Result<Item, DecodeError> {
        if self.ended {
            return Err(DecodeError::Damaged("there is something behind its last record"));
        }
        if self.passed.crc(&bytes[4..]) != u32_at(bytes, 0) {
            return Err(DecodeError::Damaged("a record does not have its CRC"));
        }
        if u32_at(bytes, 12) != self.passed.records as u32 {
            return Err(DecodeError::Damaged("records are missing or not in their order"));
        }
        let (offset, len) = (u64_at(bytes, 16), u64_at(bytes, 24));
        let item = match bytes[8] {
            1 => Item::Data { offset, len },
            2 => Item::Hole { offset, len },
            3 => Item::Zero { offset, len },
            4 => Item::End { records: offset, data: len },
            _ => return Err(DecodeError::Damaged("a record is of no known kind")),
        };
        self.crc = u32_at(bytes, 4);
        let is_data = matches!(item, Item::Data { .. });
        if bytes[9..12] != [0; 3] || !is_data && self.crc != 0 {
            return Err(DecodeError::Damaged("reserved bytes of a record are in use"));
        }
        if let Item::End { records, data } = item {
            self.ended = (records, data) == (self.passed.records, self.passed.data);
            return match self.ended {
                true => Ok(item),
                false => Err(DecodeError::Damaged("its last record counts other records")),
            };
        }
        let fits = len > 0
            && offset.is_multiple_of(BLOCK)
            && len.is_multiple_of(BLOCK)
            && offset.checked_add(len).is_some_and(|end| end <= self.bytes)
            && !(is_data && len > DATA_MAX as u64);
        if !fits {
            return Err(DecodeError::Damaged("a record is of no part of the volume"));
        }
        self.passed.count(item);
        Ok(item)
    }

    /// Verifies the data of the last record.
    pub fn check(&self, data: &[u8]) -> Result<(), DecodeError> {
        match self.passed.crc(data) == self.crc {
            true => Ok(()),
            false => Err(DecodeError::Damaged("data do not have their CRC")),
        }
    }

    /// True behind the last record.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Bytes of data so far.
    pub fn data(&self) -> u64 {
        self.passed.data
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Fuzz target: a whole stream. What is accepted is written back as it was read.
pub fn fuzz_diff(bytes: &[u8]) {
    let Ok(Some((head, len))) = Head::decode(bytes) else { return };
    assert_eq!(head.encode(), bytes[..len]);
    let (mut reader, mut writer) = (Reader::new(&head), Writer::new(&head));
    let mut rest = &bytes[len..];
    while let Some((record, behind)) = rest.split_first_chunk::<RECORD>() {
        let Ok(item) = reader.record(record) else { return };
        let data = match item {
            Item::Data { len, .. } => len as usize,
            _ => 0,
        };
        let Some(data) = behind.get(..data) else { return };
        if matches!(item, Item::Data { .. }) && reader.check(data).is_err() {
            return;
        }
        assert_eq!(writer.record(item, data), *record);
        assert_eq!(reader.data(), writer.data());
        rest = &behind[data.len()..];
    }
}
