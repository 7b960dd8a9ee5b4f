//! Fuzz targets: plain functions over bytes, one per decoder. The tests replay them over the
//! corpus in `tests/corpus/`; a coverage-guided run calls the same.
//!
//! Beside "no panic", each checks that what is accepted is written back as it was read, so that
//! no two programs can read one file differently.

use block_volume::ids::{FileNo, Identity, parse_name};
use block_volume::record::{
    FILE_HEAD, Head, Next, RECORD_HEAD, file_head, next_record, read_file_head,
};

use super::format::page::{decode_page, encode_page};
use super::format::state::{FileState, ScrubState, SegmentState};
use super::format::txn::Txn;

/// The segment and file of all fuzzed records.
pub(crate) const IDENTITY: Identity = Identity { volume: 7, segment: 3 };
pub(crate) const FILE: FileNo = FileNo::new(5).expect("not 0");

/// A DataFile: its head, and the records behind it.
pub fn fuzz_data_file(bytes: &[u8]) {
    if let Ok((identity, file, epoch)) = read_file_head(bytes) {
        assert_eq!(file_head(identity, file, epoch)[..], bytes[..FILE_HEAD]);
    }
    let mut unit = 1;
    let mut rest = bytes.get(FILE_HEAD..).unwrap_or_default();
    while let Ok(Next::Record(head, data)) = next_record(IDENTITY, FILE, unit, rest) {
        assert_eq!(head.encode()[..], rest[..RECORD_HEAD]);
        assert_eq!(RECORD_HEAD + data.len().next_multiple_of(RECORD_HEAD), head.record_len());
        rest = &rest[head.record_len()..];
        unit += (head.record_len() / RECORD_HEAD) as u32;
    }
}

/// The head of a record, of any file.
pub fn fuzz_record_head(bytes: &[u8]) {
    if let Some(Ok(head)) = bytes.first_chunk().map(Head::decode) {
        assert_eq!(head.encode()[..], bytes[..RECORD_HEAD]);
    }
}

/// A page of the index.
pub fn fuzz_page(bytes: &[u8]) {
    if let Ok(locs) = decode_page(bytes) {
        assert_eq!(encode_page(&locs), bytes);
    }
}

/// A batch of the TxnFile.
pub fn fuzz_txn(bytes: &[u8]) {
    if let Ok(txn) = Txn::decode(bytes) {
        assert_eq!(txn.encode(), bytes);
    }
}

/// Rows of a segment, of its scrub, and of a DataFile.
pub fn fuzz_state(bytes: &[u8]) {
    if let Ok(state) = SegmentState::decode(bytes) {
        assert_eq!(state.encode(), bytes);
    }
    if let Ok(state) = ScrubState::decode(bytes) {
        assert_eq!(state.encode(), bytes);
    }
    if let Ok(state) = FileState::decode(bytes) {
        assert_eq!(state.encode(), bytes);
    }
}

/// Window of an attachment's changes.
pub fn fuzz_origins(bytes: &[u8]) {
    block_volume::dedup::fuzz_window(bytes);
}

/// Names of DataFiles.
pub fn fuzz_name(bytes: &[u8]) {
    if let Some(text) = std::str::from_utf8(bytes).ok()
        && let Some((generation, file)) = parse_name(text)
    {
        assert_eq!(file.name(generation), text);
    }
}
