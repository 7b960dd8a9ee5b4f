//! DataFiles: their head, and the records in them (`docs/formats/block.md`). Decoders never panic and
//! accept only what encoders write.

use std::borrow::Cow;

use base::{GIB, KIB};
use codec::crc32c;
use codec::cursor::Cursor;

use crate::ids::{FileNo, Identity, Seq};
use crate::limits::BLOCK;

/// Bytes of a record's head: the metadata of one block (B2). Locations in DataFiles are counted in
/// it, too: all records begin at a multiple.
pub const UNIT: u64 = 64;
/// Units of a record with a block's data: 65.
pub const RECORD_UNITS: u32 = ((UNIT + BLOCK) / UNIT) as u32;
/// Bytes of a record with a block's data.
pub const RECORD: usize = (UNIT + BLOCK) as usize;

/// Smallest and largest configured DataFile. 2^32 units are 256 GiB; 4 GiB are what one
/// collection should move at most.
pub const FILE_BYTES: (u64, u64) = (16 * KIB, 4 * GIB);
/// Bytes of one read of a DataFile at most.
pub const READ_BYTES_MAX: usize = 252 * RECORD;

/// Version of the formats.
pub const VERSION: u32 = 1;

/// Errors of decoders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// Another version wrote it.
    Version(u32),
    /// The field that is wrong.
    Damaged(&'static str),
}

/// Magic of a DataFile.
pub const MAGIC: [u8; 8] = *b"CRTNBDAT";
/// Bytes of a DataFile's head: one unit.
pub const FILE_HEAD: usize = UNIT as usize;
/// Bytes of a record's head: one unit.
pub const RECORD_HEAD: usize = UNIT as usize;

/// Bytes of a packed block at most: it saves an eighth, or is stored as it is.
pub const PACKED_MAX: u16 = (BLOCK - BLOCK / 8) as u16;

/// The effect of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// One block; its data stands behind the head.
    Data,
    /// A range is a hole.
    Trim,
    /// A range is zeroes.
    Zero,
    /// One block; behind the head stands its data as an LZ4 block of this many bytes, and zeroes
    /// up to the next unit. Written by garbage collection only.
    Packed(u16),
}

impl What {
    const fn code(self) -> u8 {
        match self {
            What::Data => 1,
            What::Trim => 2,
            What::Zero => 3,
            What::Packed(_) => 4,
        }
    }

    const fn from_code(code: u8, packed: u16) -> Option<What> {
        match (code, packed) {
            (1, 0) => Some(What::Data),
            (2, 0) => Some(What::Trim),
            (3, 0) => Some(What::Zero),
            (4, 1..=PACKED_MAX) => Some(What::Packed(packed)),
            _ => None,
        }
    }

    /// True when it is a block with data.
    pub const fn has_data(self) -> bool {
        matches!(self, What::Data | What::Packed(_))
    }
}

/// The head of a record: the 64 bytes of metadata of a block (B2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The effect on its blocks.
    pub what: What,
    /// CRC32C of the block's data; it stays when the block is copied. 0 without data.
    pub data_crc: u32,
    /// The segment that wrote it.
    pub identity: Identity,
    /// The DataFile that holds it.
    pub file: FileNo,
    /// Its position in the DataFile, in units of [`UNIT`].
    pub unit: u32,
    /// Position of the change in the segment's history.
    pub seq: Seq,
    /// Its first block.
    pub lba: u32,
    /// Blocks: 1 with data.
    pub count: u32,
    /// The client's change that it belongs to; none for changes without a client's request, and for
    /// copies.
    pub tag: Option<RequestTag>,
}

/// A client's change, as its records name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestTag {
    /// The attachment's epoch, not 0.
    pub attachment: u32,
    /// The low 32 bits of the change's number.
    pub seq: u32,
    /// It is the change's last record.
    pub last: bool,
}

/// Flag of a record that is the last one of its change.
const LAST: u8 = 1;

impl Head {
    /// Bytes of the whole record.
    pub fn record_len(&self) -> usize {
        match self.what {
            What::Data => RECORD,
            What::Trim | What::Zero => RECORD_HEAD,
            What::Packed(len) => RECORD_HEAD + usize::from(len).next_multiple_of(UNIT as usize),
        }
    }

    /// Bytes of data behind the head.
    fn stored_len(&self) -> usize {
        match self.what {
            What::Data => BLOCK as usize,
            What::Trim | What::Zero => 0,
            What::Packed(len) => usize::from(len),
        }
    }

    /// The head as it is stored, with its checksum.
    pub fn encode(&self) -> [u8; RECORD_HEAD] {
        let mut out = [0; RECORD_HEAD];
        out[4..8].copy_from_slice(&self.data_crc.to_le_bytes());
        out[8] = self.what.code();
        if let What::Packed(len) = self.what {
            out[10..12].copy_from_slice(&len.to_le_bytes());
        }
        out[12..16].copy_from_slice(&self.file.get().to_le_bytes());
        out[16..24].copy_from_slice(&self.identity.volume.to_le_bytes());
        out[24..28].copy_from_slice(&self.identity.segment.to_le_bytes());
        out[28..32].copy_from_slice(&self.unit.to_le_bytes());
        out[32..40].copy_from_slice(&self.seq.epoch.to_le_bytes());
        out[40..48].copy_from_slice(&self.seq.counter.to_le_bytes());
        out[48..52].copy_from_slice(&self.lba.to_le_bytes());
        out[52..56].copy_from_slice(&self.count.to_le_bytes());
        if let Some(RequestTag { attachment, seq, last }) = self.tag {
            out[9] = if last { LAST } else { 0 };
            out[56..60].copy_from_slice(&attachment.to_le_bytes());
            out[60..64].copy_from_slice(&seq.to_le_bytes());
        }
        let crc = crc32c(&out[4..]);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// A stored head. [`DecodeError::Damaged`] when its checksum or a field is wrong.
    pub fn decode(bytes: &[u8; RECORD_HEAD]) -> Result<Head, DecodeError> {
        let damaged = DecodeError::Damaged("a record's head does not verify");
        let mut input = Cursor(bytes);
        let parsed = (|| {
            let crc = input.u32()?;
            let data_crc = input.u32()?;
            let (code, flags, packed) = (input.u8()?, input.u8()?, input.u16()?);
            let file = input.u32()?;
            let (volume, segment, unit) = (input.u64()?, input.u32()?, input.u32()?);
            let seq = Seq { epoch: input.u64()?, counter: input.u64()? };
            let (lba, count) = (input.u32()?, input.u32()?);
            let (attachment, low) = (input.u32()?, input.u32()?);
            let mark = RequestTag { attachment, seq: low, last: flags == LAST };
            let tag = (attachment != 0).then_some(mark);
            let marked = tag.is_some() && flags <= LAST || flags == 0 && low == 0;
            let clean = crc == crc32c(&bytes[4..]) && marked;
            let what = What::from_code(code, packed).filter(|_| clean)?;
            let identity = Identity { volume, segment };
            let file = FileNo::new(file)?;
            Some(Head { what, data_crc, identity, file, unit, seq, lba, count, tag })
        })();
        let head = parsed.ok_or(damaged)?;
        let sound = match head.what {
            What::Data | What::Packed(_) => head.count == 1,
            What::Trim | What::Zero => {
                head.count >= 1
                    && head.data_crc == 0
                    && u64::from(head.lba) + u64::from(head.count) <= 1 << 32
            }
        };
        if sound { Ok(head) } else { Err(DecodeError::Damaged("a record's range makes no sense")) }
    }
}

/// The next item in a DataFile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next<'a> {
    /// A record, and its data if it has any.
    Record(Head, &'a [u8]),
    /// This many bytes are needed to decode it. At the end of a file: an append that was under way
    /// when its writer ended, and that was never acknowledged.
    Partial(usize),
}

/// As [`next_record`], without a look at the data.
pub fn next_head(
    identity: Identity,
    file: FileNo,
    unit: u32,
    bytes: &[u8],
) -> Result<Next<'_>, DecodeError> {
    frame(identity, file, unit, bytes)
}

/// The record at the start of `bytes`, which begin at `unit` of a file; its data as it is stored.
pub fn next_record(
    identity: Identity,
    file: FileNo,
    unit: u32,
    bytes: &[u8],
) -> Result<Next<'_>, DecodeError> {
    let next = frame(identity, file, unit, bytes)?;
    if let Next::Record(head, stored) = next
        && head.what.has_data()
    {
        content(&head, stored)?;
    }
    Ok(next)
}

/// The same, with its data not verified.
fn frame(
    identity: Identity,
    file: FileNo,
    unit: u32,
    bytes: &[u8],
) -> Result<Next<'_>, DecodeError> {
    let Some(head) = bytes.first_chunk() else { return Ok(Next::Partial(RECORD_HEAD)) };
    let head = Head::decode(head)?;
    if head.identity != identity || (head.file, head.unit) != (file, unit) {
        return Err(DecodeError::Damaged("a record belongs elsewhere"));
    }
    let Some(rest) = bytes.get(RECORD_HEAD..head.record_len()) else {
        return Ok(Next::Partial(head.record_len()));
    };
    let (stored, padding) = rest.split_at(head.stored_len());
    if padding.iter().any(|byte| *byte != 0) {
        return Err(DecodeError::Damaged("a record's padding is not zero"));
    }
    Ok(Next::Record(head, stored))
}

/// The block in a record, unpacked and verified.
pub fn content<'a>(head: &Head, stored: &'a [u8]) -> Result<Cow<'a, [u8]>, DecodeError> {
    let damaged = DecodeError::Damaged("a block's data does not verify");
    let data = match head.what {
        What::Packed(_) => {
            let block = lz4_flex::block::decompress(stored, BLOCK as usize);
            Cow::Owned(block.map_err(|_| damaged)?)
        }
        _ => Cow::Borrowed(stored),
    };
    let sound = data.len() as u64 == BLOCK && crc32c(&data) == head.data_crc;
    if sound { Ok(data) } else { Err(damaged) }
}

/// A block's data as a copy of it is stored: verified, and packed if that is asked for and saves
/// an eighth. It takes microseconds: not for a thread that serves requests (B13).
pub fn repack(head: &Head, stored: &[u8], compress: bool) -> Result<(What, Vec<u8>), DecodeError> {
    let data = content(head, stored)?;
    if compress && head.what == What::Data {
        let packed = lz4_flex::block::compress(&data);
        if let Some(len) = u16::try_from(packed.len()).ok().filter(|&len| len <= PACKED_MAX) {
            return Ok((What::Packed(len), packed));
        }
    }
    Ok((head.what, stored.to_vec()))
}

/// Appends a record whose data is already in its stored form.
pub fn put_stored(out: &mut Vec<u8>, head: Head, stored: &[u8]) {
    let end = out.len() + head.record_len();
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(stored);
    out.resize(end, 0);
}

/// The record of a block as a segment in memory makes it: it has no position in a history.
pub fn plain_record(identity: Identity, file: FileNo, unit: u32, lba: u32, data: &[u8]) -> Vec<u8> {
    let (what, seq, data_crc) = (What::Data, Seq::default(), crc32c(data));
    let head = Head { what, data_crc, identity, file, unit, seq, lba, count: 1, tag: None };
    let mut out = Vec::with_capacity(RECORD);
    put_stored(&mut out, head, data);
    out
}

/// The data of a block at its location, verified: CRC, volume, segment, LBA, file and unit.
pub fn read_block(
    identity: Identity,
    file: FileNo,
    unit: u32,
    lba: u32,
    bytes: &[u8],
) -> Result<Cow<'_, [u8]>, DecodeError> {
    match frame(identity, file, unit, bytes)? {
        Next::Record(head, stored) if head.what.has_data() && head.lba == lba => {
            content(&head, stored)
        }
        Next::Record(..) => Err(DecodeError::Damaged("a record is of another block")),
        Next::Partial(_) => Err(DecodeError::Damaged("a record is cut off")),
    }
}

/// The head of a DataFile.
pub fn file_head(identity: Identity, file: FileNo, epoch: u64) -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[0..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[16..24].copy_from_slice(&identity.volume.to_le_bytes());
    head[24..28].copy_from_slice(&identity.segment.to_le_bytes());
    head[28..32].copy_from_slice(&file.get().to_le_bytes());
    head[32..40].copy_from_slice(&epoch.to_le_bytes());
    let crc = crc32c(&head);
    head[12..16].copy_from_slice(&crc.to_le_bytes());
    head
}

/// The content of a DataFile's head: identity, number, epoch of its maker.
pub fn read_file_head(bytes: &[u8]) -> Result<(Identity, FileNo, u64), DecodeError> {
    let Some(head) = bytes.first_chunk::<FILE_HEAD>() else {
        return Err(DecodeError::Damaged("it ends within its head"));
    };
    if head[..8] != MAGIC {
        return Err(DecodeError::Damaged("it does not begin as a DataFile does"));
    }
    let mut input = Cursor(&head[8..]);
    let parsed = (|| {
        let (version, crc) = (input.u32()?, input.u32()?);
        let identity = Identity { volume: input.u64()?, segment: input.u32()? };
        Some((version, crc, identity, input.u32()?, input.u64()?))
    })();
    let (version, crc, identity, file, epoch) = parsed.expect("its length");
    // The version's offset is the same in all versions; the rest may not be.
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let mut zeroed = *head;
    zeroed[12..16].fill(0);
    let reserved = input.0.iter().any(|&byte| byte != 0);
    let file = FileNo::new(file).filter(|_| crc32c(&zeroed) == crc && !reserved);
    Ok((identity, file.ok_or(DecodeError::Damaged("its head does not verify"))?, epoch))
}

const _: () = assert!(RECORD == RECORD_HEAD + BLOCK as usize);
const _: () = assert!(BLOCK.is_multiple_of(UNIT) && RECORD as u64 == RECORD_UNITS as u64 * UNIT);
const _: () = assert!(FILE_BYTES.1 / UNIT <= u32::MAX as u64);
const _: () = assert!(READ_BYTES_MAX <= 1 << 20);
