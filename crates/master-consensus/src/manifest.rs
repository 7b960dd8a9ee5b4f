//! The manifest of a checkpoint, as bytes. The byte table is in `docs/formats/raft.md`.

use super::types::SnapshotMeta;
use crate::bytes::{DecodeError, Reader, begin_snapshot, end_snapshot, open_snapshot};

const MAGIC: [u8; 4] = *b"CRck";
const VERSION: u8 = 1;

/// A run, as others know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct RunFacts {
    /// Its number, never used again.
    pub(super) id: u64,
    /// Its bytes.
    pub(super) len: u64,
    /// CRC32C of them.
    pub(super) crc: u32,
}

/// The bytes of a manifest.
pub(super) fn encode(meta: &SnapshotMeta, runs: &[RunFacts]) -> Vec<u8> {
    let mut to = begin_snapshot(64 + 20 * runs.len());
    to.count(runs.len());
    for run in runs {
        to.u64(run.id).u64(run.len).u32(run.crc);
    }
    to.raw(&postcard::to_allocvec(meta).expect("a vector grows as needed"));
    end_snapshot(MAGIC, VERSION, to)
}

/// Content of a manifest.
pub(super) fn decode(bytes: &[u8]) -> Result<(SnapshotMeta, Vec<RunFacts>), DecodeError> {
    let (version, body) = open_snapshot(MAGIC, bytes)?;
    if version != VERSION {
        return Err(DecodeError);
    }
    let mut from = Reader::new(body);
    let take = |from: &mut Reader<'_>| {
        Ok(RunFacts { id: from.u64()?, len: from.u64()?, crc: from.u32()? })
    };
    let runs = from.list(take)?;
    let (meta, rest) = postcard::take_from_bytes(from.rest()).map_err(|_| DecodeError)?;
    if !rest.is_empty() || runs.iter().any(|run| run.len > super::limits::SNAPSHOT_LEN_MAX) {
        return Err(DecodeError);
    }
    Ok((meta, runs))
}

/// Fuzz target: any bytes are a manifest or an error, also behind a valid checksum; a manifest
/// is written as it is read.
pub fn fuzz_manifest(bytes: &[u8]) {
    let _ = decode(bytes);
    let sealed = crate::bytes::seal_snapshot(MAGIC, VERSION, bytes);
    if let Ok((meta, runs)) = decode(&sealed) {
        let again = decode(&encode(&meta, &runs));
        assert_eq!(again, Ok((meta, runs)), "a manifest is what it says");
    }
}
