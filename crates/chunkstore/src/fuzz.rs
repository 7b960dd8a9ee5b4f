//! Fuzz targets: plain functions over bytes, one per decoder of the on-disk format. The tests
//! replay them over the corpus in `tests/corpus/`; a coverage-guided run calls the same.
//!
//! Beside "no panic", each checks that accepted bytes are written back as they were read, so that
//! no two programs can read one block differently.

use base::{ChunkId, Epoch};
use wire::row::Layout;

use crate::flash::block::{self, BlockKind, PAYLOAD_MAX};
use crate::flash::layout::Super;
use crate::flash::record::{Identity, Record};
use crate::flash::{CheckpointHeader, decode_index, encode_index, replay};
use crate::map::{Run, is_sound, locate};

/// The store of all fuzzed blocks.
pub const STORE: u64 = 0x5704;

/// [`Super::decode`].
pub fn fuzz_superblock(bytes: &[u8]) {
    if let Ok(sb) = Super::decode(bytes) {
        let mut back = vec![0; bytes.len()];
        sb.encode(&mut back);
        assert_eq!(back, bytes);
        // For any content, places can be computed.
        assert!(sb.data_at() > sb.log_at(1) && sb.unit_at(sb.units) > sb.data_at());
    }
}

/// [`block::decode`] of a log block and of the records in it.
pub fn fuzz_log_block(bytes: &[u8]) {
    if let Some((head, payload)) = block::decode(BlockKind::Log, STORE, bytes) {
        let mut back = vec![0; bytes.len()];
        block::encode(&head, payload, &mut back);
        assert_eq!(back, bytes);
        fuzz_records(payload);
    }
}

/// [`Record::decode`], and replay of what it gives.
pub fn fuzz_records(bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let before = rest;
        let Some(record) = Record::decode(&mut rest) else { break };
        let mut back = Vec::new();
        let count = record.encode(&mut back);
        assert_eq!(back, before[..count]);
    }
    if bytes.len() <= PAYLOAD_MAX {
        replay(bytes);
    }
}

/// A checkpoint's header, and a block of its records.
pub fn fuzz_checkpoint(bytes: &[u8]) {
    if let Some(header) = CheckpointHeader::decode(STORE, bytes) {
        let mut back = vec![0; bytes.len()];
        header.encode(STORE, &mut back);
        assert_eq!(back, bytes);
    }
    if let Some((_, payload)) = block::decode(BlockKind::Checkpoint, STORE, bytes) {
        fuzz_records(payload);
    }
}

/// [`decode_index`].
pub fn fuzz_index(bytes: &[u8]) {
    let id = INDEX_ID;
    let Some(runs) = decode_index(&id, 0, bytes) else { return };
    let mut back = vec![0; bytes.len()];
    encode_index(&id, &runs, 0, &mut back);
    let same: Vec<Run> = decode_index(&id, 0, &back).expect("what was written is read");
    assert_eq!(same, runs);
    if is_sound(&runs, 0) {
        let end = runs.last().map_or(0, Run::end);
        for offset in (0..end).step_by(1 + end as usize / 64) {
            let place = locate(&runs, offset as u32).expect("within the runs");
            assert!(u64::from(place.offset) <= offset);
        }
    }
}

/// The replica that [`fuzz_index`] reads for.
pub const INDEX_ID: Identity = Identity {
    chunk: ChunkId::new(7),
    epoch: Epoch::new(5),
    base: 9,
    tag: 11,
    layout: Layout::Plain,
};
