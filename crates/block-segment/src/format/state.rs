//! Rows of the segment and of each DataFile; the table's keys.

use block_volume::ids::{FileNo, Identity};
use block_volume::record::{DecodeError, VERSION};
use codec::cursor::{Cursor, put_varint};
use table::Redundancy;

/// Key of the segment's row.
pub(crate) const SEGMENT_KEY: &[u8] = b"s";
/// Key of the scrub's progress.
pub(crate) const SCRUB_KEY: &[u8] = b"c";
/// Start of the keys of DataFiles.
pub(crate) const FILE_PREFIX: u8 = b'f';
/// Start of the keys of index pages.
pub(crate) const PAGE_PREFIX: u8 = b'p';
/// Start of the keys of attachments' windows.
pub(crate) const ORIGIN_PREFIX: u8 = b'o';
/// Start of the keys of TxnFile batches.
pub(crate) const TXN_PREFIX: u8 = b't';

/// Key of a DataFile.
pub(crate) fn file_key(file: FileNo) -> [u8; 5] {
    key(FILE_PREFIX, file.get())
}

/// Key of an attachment's window.
pub(crate) fn dedup_key(attachment: u32) -> [u8; 5] {
    key(ORIGIN_PREFIX, attachment)
}

/// Key of an index page.
pub(crate) fn page_key(page: u32) -> [u8; 5] {
    key(PAGE_PREFIX, page)
}

fn key(prefix: u8, number: u32) -> [u8; 5] {
    let mut key = [prefix; 5];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Key of a TxnFile batch.
pub(crate) fn txn_key(number: u64) -> [u8; 9] {
    let mut key = [TXN_PREFIX; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The number in the key of a DataFile, of a page or of an attachment.
pub(crate) fn read_key(key: &[u8]) -> Option<u32> {
    key.get(1..).and_then(|rest| rest.try_into().ok()).map(u32::from_be_bytes)
}

/// The number in the key of a TxnFile batch.
pub(crate) fn read_txn_key(key: &[u8]) -> Option<u64> {
    key.get(1..).and_then(|rest| rest.try_into().ok()).map(u64::from_be_bytes)
}

/// State of a segment, and of its counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentState {
    pub(crate) identity: Identity,
    /// Bytes of it.
    pub(crate) bytes: u64,
    /// Highest epoch of an owner so far.
    pub(crate) epoch: u64,
    /// Number of the next DataFile.
    pub(crate) next_file: u32,
    /// Counter of the last change that the TxnFile covered when this was written.
    pub(crate) counter: u64,
}

impl SegmentState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        put_varint(&mut out, self.identity.volume);
        put_varint(&mut out, u64::from(self.identity.segment));
        put_varint(&mut out, self.bytes);
        put_varint(&mut out, self.epoch);
        put_varint(&mut out, u64::from(self.next_file));
        put_varint(&mut out, self.counter);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentState, DecodeError> {
        let damaged = DecodeError::Damaged("the segment's entry does not decode");
        let mut input = Cursor(bytes);
        let version = input.u32().ok_or(damaged)?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let state = (|| {
            let identity = Identity { volume: input.varint()?, segment: input.varint32()? };
            let (bytes, epoch) = (input.varint()?, input.varint()?);
            let (next_file, counter) = (input.varint32()?, input.varint()?);
            Some(SegmentState { identity, bytes, epoch, next_file, counter })
        })();
        state.filter(|_| input.is_empty()).ok_or(damaged)
    }
}

/// Progress of a segment's scrub (B14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ScrubState {
    /// Passes over the whole segment.
    pub(crate) passes: u64,
    /// The block at which the present pass goes on; 0 between two of them.
    pub(crate) next: u64,
    /// Begin of the present pass, else of the last one: seconds since 1970.
    pub(crate) begun: u64,
    /// Blocks that did not verify, in that pass.
    pub(crate) damaged: u64,
    /// The same of the pass before, while one is under way.
    pub(crate) damaged_before: u64,
}

impl ScrubState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let ScrubState { passes, next, begun, damaged, damaged_before } = *self;
        for number in [passes, next, begun, damaged, damaged_before] {
            put_varint(&mut out, number);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ScrubState, DecodeError> {
        let mut input = Cursor(bytes);
        let state = (|| {
            let (passes, next, begun) = (input.varint()?, input.varint()?, input.varint()?);
            let (damaged, damaged_before) = (input.varint()?, input.varint()?);
            Some(ScrubState { passes, next, begun, damaged, damaged_before })
        })();
        let state = state.filter(|_| input.is_empty());
        state.ok_or(DecodeError::Damaged("the scrub's entry does not decode"))
    }
}

/// Role of a DataFile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Takes the records of changes; recovery scans its tail.
    Log,
    /// Holds blocks that garbage collection has moved; the TxnFile has their locations.
    Collected,
}

/// Row of a DataFile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileState {
    /// Generation of the table's instance that made it: with its number, its name.
    pub(crate) generation: u32,
    pub(crate) role: Role,
    /// True when it takes no records any more and the TxnFile covers all of it.
    pub(crate) sealed: bool,
    /// Units of it that the TxnFile covers: all, once sealed.
    pub(crate) units: u32,
    /// Blocks with data in them.
    pub(crate) blocks: u32,
    /// Blocks that the index pages in the table have in it.
    pub(crate) live: u32,
    /// Counter of the segment's changes when it was made: its age.
    pub(crate) born: u64,
    /// The volume of its records; 0 for the segment's own.
    pub(crate) clone_source: u64,
    /// The erasure code that it was made with; none for copies, whose number the volume's policy has.
    pub(crate) code: Option<Redundancy>,
}

/// Flags of a DataFile's row. An unknown one is refused.
const SEALED: u8 = 1;
const COLLECTED: u8 = 2;
const LINKED: u8 = 4;
const CODED: u8 = 8;

impl FileState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.sealed, SEALED)
            | flag(self.role == Role::Collected, COLLECTED)
            | flag(self.clone_source != 0, LINKED)
            | flag(self.code.is_some(), CODED);
        let mut out = vec![flags];
        for number in [self.generation, self.units, self.blocks, self.live] {
            put_varint(&mut out, u64::from(number));
        }
        put_varint(&mut out, self.born);
        if self.clone_source != 0 {
            put_varint(&mut out, self.clone_source);
        }
        if let Some(Redundancy { replicas, data }) = self.code {
            out.extend([replicas, data]);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<FileState, DecodeError> {
        let mut input = Cursor(bytes);
        let state = (|| {
            let flags = input.u8().filter(|flags| flags >> 4 == 0)?;
            let has = |flag: u8| flags & flag != 0;
            let role = if has(COLLECTED) { Role::Collected } else { Role::Log };
            let (generation, units) = (input.varint32()?, input.varint32()?);
            let (blocks, live, born) = (input.varint32()?, input.varint32()?, input.varint()?);
            let sealed = has(SEALED);
            let clone_source = match has(LINKED) {
                true => input.varint().filter(|clone_source| *clone_source != 0)?,
                false => 0,
            };
            let code = match has(CODED) {
                true => Some(read_code(&mut input)?),
                false => None,
            };
            Some(FileState {
                generation,
                role,
                sealed,
                units,
                blocks,
                live,
                born,
                clone_source,
                code,
            })
        })();
        let state = state.filter(|_| input.is_empty());
        state.ok_or(DecodeError::Damaged("a DataFile's entry does not decode"))
    }
}

/// An erasure code, as no copies are.
fn read_code(input: &mut Cursor<'_>) -> Option<Redundancy> {
    let [replicas, data] = input.array()?;
    Some(Redundancy { replicas, data }).filter(|code| code.is_coded() && replicas > data)
}
