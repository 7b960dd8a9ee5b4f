//! Blocks: the 4096-byte containers of log and checkpoint records.
//! The byte table of a block is in `docs/formats/chunkstore.md`.

use base::limits::SECTOR;
use codec::crc32c;
use codec::cursor::Cursor;

use super::bytes::all_zero;

/// Offset of records in a block.
pub const PAYLOAD_AT: usize = 48;
/// Bytes of records that a block holds.
pub const PAYLOAD_MAX: usize = SECTOR - PAYLOAD_AT;

/// The structure that a block belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// The log.
    Log,
    /// A checkpoint's records.
    Checkpoint,
    /// A checkpoint's header: written last, makes it count.
    CheckpointHeader,
}

impl BlockKind {
    /// First bytes of such a block.
    pub const fn magic(self) -> [u8; 4] {
        match self {
            BlockKind::Log => *b"CLOG",
            BlockKind::Checkpoint => *b"CCKP",
            BlockKind::CheckpointHeader => *b"CHDR",
        }
    }
}

/// The head of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHead {
    /// The structure that it belongs to.
    pub kind: BlockKind,
    /// Low half of the disk's incarnation.
    pub store: u64,
    /// Position in its sequence.
    pub seq: u64,
    /// The write (log) or checkpoint it is part of.
    pub group: u64,
    /// The mount that wrote it.
    pub mount: u64,
    /// Records in it.
    pub count: u16,
}

/// Fills `block` with head and records.
pub fn encode(head: &BlockHead, payload: &[u8], block: &mut [u8]) {
    assert!(block.len() == SECTOR && payload.len() <= PAYLOAD_MAX);
    block[0..4].copy_from_slice(&head.kind.magic());
    block[8..16].copy_from_slice(&head.store.to_le_bytes());
    block[16..24].copy_from_slice(&head.seq.to_le_bytes());
    block[24..32].copy_from_slice(&head.group.to_le_bytes());
    block[32..40].copy_from_slice(&head.mount.to_le_bytes());
    block[40..42].copy_from_slice(&(payload.len() as u16).to_le_bytes());
    block[42..44].copy_from_slice(&head.count.to_le_bytes());
    block[44..48].fill(0);
    block[PAYLOAD_AT..PAYLOAD_AT + payload.len()].copy_from_slice(payload);
    block[PAYLOAD_AT + payload.len()..].fill(0);
    let crc = crc32c(&block[8..]);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The head and records of a block, if it is one of `kind` and of `store`.
pub fn decode(kind: BlockKind, store: u64, block: &[u8]) -> Option<(BlockHead, &[u8])> {
    if block.len() != SECTOR || block[..4] != kind.magic() {
        return None;
    }
    let mut reader = Cursor(&block[4..]);
    if reader.u32()? != crc32c(&block[8..]) || reader.u64()? != store {
        return None;
    }
    let (seq, group, mount) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (len, count) = (usize::from(reader.u16()?), reader.u16()?);
    if reader.u32()? != 0 || len > PAYLOAD_MAX {
        return None;
    }
    let (payload, rest) = reader.0.split_at(len);
    all_zero(rest).then_some((BlockHead { kind, store, seq, group, mount, count }, payload))
}
