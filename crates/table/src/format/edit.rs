//! Edits: what a manifest's records say.

use super::DecodeError;
use crate::limits::{FILES_READ_MAX, KEY_MAX};
use crate::types::{FileNo, Seq};
use codec::cursor::{Cursor, put_bytes, put_varint};

/// A sorted file, as the manifest knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileInfo {
    pub(crate) file: FileNo,
    pub(crate) len: u64,
    /// Offset of its top block: from there to the end is one read.
    pub(crate) top_at: u64,
    /// Versions of keys in it.
    pub(crate) versions: u64,
    pub(crate) first_key: Vec<u8>,
    pub(crate) last_key: Vec<u8>,
}

/// A sorted run: files whose keys do not overlap, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunInfo {
    /// The changes in it: sequences from `first` to `last`, no others are of this range.
    pub(crate) first: Seq,
    pub(crate) last: Seq,
    pub(crate) files: Vec<FileInfo>,
}

/// One change of what a table consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The instance that writes from here on; first in a manifest, and only there.
    Owner { generation: u32 },
    /// A log that changes may be in.
    AddLog(FileNo),
    /// A log whose changes are all in runs, and whose data is not needed.
    DropLog(FileNo),
    /// A run.
    AddRun(RunInfo),
    /// The run that begins with this sequence has gone into another one.
    DropRun(Seq),
    /// Changes of a log below an offset are all in runs.
    ReplayLog {
        /// The log, and data in it below the offset.
        log: DataLog,
    },
    /// A log whose changes are all in runs, and which stays for its data.
    KeepLog {
        /// The log as it ended.
        log: DataLog,
    },
}

/// A log up to an offset, and the data in that part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DataLog {
    pub(crate) file: FileNo,
    pub(crate) len: u64,
    /// Bytes of data, which is less than `len`.
    pub(crate) data: u64,
}

const OWNER: u8 = 1;
const ADD_LOG: u8 = 2;
const DROP_LOG: u8 = 3;
const ADD_RUN: u8 = 4;
const DROP_RUN: u8 = 5;
const REPLAY_LOG: u8 = 6;
const KEEP_LOG: u8 = 7;

/// Appends a change.
pub(crate) fn put_change(out: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Owner { generation } => {
            out.push(OWNER);
            put_varint(out, u64::from(*generation));
        }
        Change::AddLog(file) => put_number(out, ADD_LOG, *file),
        Change::DropLog(file) => put_number(out, DROP_LOG, *file),
        Change::AddRun(run) => {
            out.push(ADD_RUN);
            put_varint(out, run.first.get());
            put_varint(out, run.last.get());
            put_varint(out, run.files.len() as u64);
            for file in &run.files {
                out.extend_from_slice(&file.file.get().to_le_bytes());
                put_varint(out, file.len);
                put_varint(out, file.top_at);
                put_varint(out, file.versions);
                put_bytes(out, &file.first_key);
                put_bytes(out, &file.last_key);
            }
        }
        Change::DropRun(first) => {
            out.push(DROP_RUN);
            put_varint(out, first.get());
        }
        Change::ReplayLog { log } => put_log(out, REPLAY_LOG, log),
        Change::KeepLog { log } => put_log(out, KEEP_LOG, log),
    }
}

fn put_log(out: &mut Vec<u8>, code: u8, log: &DataLog) {
    put_number(out, code, log.file);
    put_varint(out, log.len);
    put_varint(out, log.data);
}

fn take_log(input: &mut Cursor<'_>) -> Option<DataLog> {
    let file = FileNo::from_raw(input.u64()?);
    let (len, data) = (input.varint()?, input.varint()?);
    (data < len).then_some(DataLog { file, len, data })
}

fn put_number(out: &mut Vec<u8>, code: u8, file: FileNo) {
    out.push(code);
    out.extend_from_slice(&file.get().to_le_bytes());
}

/// The changes of a record, `count` in number.
pub(crate) fn read_changes(body: &[u8], count: u32) -> Result<Vec<Change>, DecodeError> {
    let mut input = Cursor(body);
    let mut changes = Vec::new();
    for _ in 0..count {
        let change = take_change(&mut input);
        changes.push(
            change.ok_or(DecodeError::Damaged("an edit does not have the changes it counts"))?,
        );
    }
    if !input.is_empty() {
        return Err(DecodeError::Damaged("an edit goes on behind its last change"));
    }
    Ok(changes)
}

fn take_change(input: &mut Cursor<'_>) -> Option<Change> {
    Some(match input.u8()? {
        OWNER => Change::Owner { generation: u32::try_from(input.varint()?).ok()? },
        ADD_LOG => Change::AddLog(FileNo::from_raw(input.u64()?)),
        DROP_LOG => Change::DropLog(FileNo::from_raw(input.u64()?)),
        ADD_RUN => Change::AddRun(take_run(input)?),
        DROP_RUN => Change::DropRun(Seq::new(input.varint()?)),
        REPLAY_LOG => Change::ReplayLog { log: take_log(input)? },
        KEEP_LOG => Change::KeepLog { log: take_log(input)? },
        _ => return None,
    })
}

fn take_run(input: &mut Cursor<'_>) -> Option<RunInfo> {
    let (first, last) = (Seq::new(input.varint()?), Seq::new(input.varint()?));
    let count = input.varint()?;
    if first > last || first == Seq::ZERO || count > FILES_READ_MAX as u64 {
        return None;
    }
    let mut files: Vec<FileInfo> = Vec::new();
    for _ in 0..count {
        let file = take_file(input)?;
        // Files of a run follow one another.
        if files.last().is_some_and(|before| before.last_key >= file.first_key) {
            return None;
        }
        files.push(file);
    }
    Some(RunInfo { first, last, files })
}

fn take_file(input: &mut Cursor<'_>) -> Option<FileInfo> {
    let file = FileNo::from_raw(input.u64()?);
    let (len, top_at, versions) = (input.varint()?, input.varint()?, input.varint()?);
    let first_key = input.bytes(KEY_MAX)?.to_vec();
    let last_key = input.bytes(KEY_MAX)?.to_vec();
    let fits = top_at < len && versions > 0 && !first_key.is_empty() && first_key <= last_key;
    fits.then_some(FileInfo { file, len, top_at, versions, first_key, last_key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back() {
        let file = |n: u32, first: &str, last: &str| FileInfo {
            file: FileNo::new(2, n),
            len: 1000,
            top_at: 900,
            versions: 7,
            first_key: first.into(),
            last_key: last.into(),
        };
        let run = |files| RunInfo { first: Seq::new(4), last: Seq::new(900), files };
        let good = vec![
            Change::Owner { generation: 2 },
            Change::AddLog(FileNo::new(2, 1)),
            Change::DropLog(FileNo::new(1, 1)),
            Change::AddRun(run(vec![file(1, "a", "b"), file(2, "c", "c")])),
            Change::AddRun(run(vec![])),
            Change::DropRun(Seq::new(4)),
            Change::ReplayLog { log: DataLog { file: FileNo::new(2, 1), len: 9, data: 8 } },
            Change::KeepLog { log: DataLog { file: FileNo::new(2, 1), len: 1 << 40, data: 0 } },
        ];
        let bytes = |changes: &[Change]| {
            let mut out = Vec::new();
            changes.iter().for_each(|change| put_change(&mut out, change));
            out
        };
        assert_eq!(read_changes(&bytes(&good), 8).unwrap(), good);
        assert!(read_changes(&bytes(&good), 7).is_err());
        let lies = Change::KeepLog { log: DataLog { file: FileNo::new(2, 1), len: 9, data: 9 } };
        assert!(read_changes(&bytes(&[lies]), 1).is_err());
        for overlap in [file(2, "b", "c"), file(2, "a", "c"), file(2, "d", "c"), file(2, "", "c")] {
            let bad = [Change::AddRun(run(vec![file(1, "a", "b"), overlap]))];
            assert!(read_changes(&bytes(&bad), 1).is_err());
        }
    }
}
