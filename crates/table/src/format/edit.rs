//! Edits: what a manifest's records say.

use super::DecodeError;
use crate::bounds::{Bounds, KeyRange};
use crate::limits::{BOUND_BYTES_MAX, BOUNDS_RANGES_MAX, FILES_READ_MAX, KEY_MAX};
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
    /// Number of the bounds within which it shows its keys; 0 when it shows all.
    pub(crate) bounds: u32,
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
    /// Keys that references may show.
    AddBounds {
        /// Not 0.
        number: u32,
        bounds: Bounds,
    },
    /// A log, named before, of which keys within bounds are shown.
    BoundLog { file: FileNo, bounds: u32 },
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
const ADD_BOUNDS: u8 = 8;
/// A run of which some files have bounds.
const ADD_RUN_BOUNDED: u8 = 9;
const BOUND_LOG: u8 = 10;

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
            let is_bounded = run.is_bounded();
            out.push(if is_bounded { ADD_RUN_BOUNDED } else { ADD_RUN });
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
                if is_bounded {
                    put_varint(out, u64::from(file.bounds));
                }
            }
        }
        Change::DropRun(first) => {
            out.push(DROP_RUN);
            put_varint(out, first.get());
        }
        Change::ReplayLog { log } => put_log(out, REPLAY_LOG, log),
        Change::KeepLog { log } => put_log(out, KEEP_LOG, log),
        Change::AddBounds { number, bounds } => {
            out.push(ADD_BOUNDS);
            put_varint(out, u64::from(*number));
            put_varint(out, bounds.ranges().len() as u64);
            for range in bounds.ranges() {
                put_bytes(out, &range.low);
                put_bytes(out, &range.high);
            }
        }
        Change::BoundLog { file, bounds } => {
            put_number(out, BOUND_LOG, *file);
            put_varint(out, u64::from(*bounds));
        }
    }
}

impl Change {
    /// True when it is one of those that manifests without bounds do not have.
    pub(crate) fn is_of_bounds(&self) -> bool {
        match self {
            Change::AddRun(run) => run.is_bounded(),
            Change::AddBounds { .. } | Change::BoundLog { .. } => true,
            _ => false,
        }
    }
}

impl RunInfo {
    /// True when a file of it does not show all of its keys.
    pub(crate) fn is_bounded(&self) -> bool {
        self.files.iter().any(|file| file.bounds != 0)
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
        OWNER => Change::Owner { generation: take_u32(input)? },
        ADD_LOG => Change::AddLog(FileNo::from_raw(input.u64()?)),
        DROP_LOG => Change::DropLog(FileNo::from_raw(input.u64()?)),
        ADD_RUN => Change::AddRun(take_run(input, false)?),
        ADD_RUN_BOUNDED => Change::AddRun(take_run(input, true).filter(RunInfo::is_bounded)?),
        DROP_RUN => Change::DropRun(Seq::new(input.varint()?)),
        REPLAY_LOG => Change::ReplayLog { log: take_log(input)? },
        KEEP_LOG => Change::KeepLog { log: take_log(input)? },
        ADD_BOUNDS => take_bounds(input)?,
        BOUND_LOG => {
            let file = FileNo::from_raw(input.u64()?);
            Change::BoundLog { file, bounds: take_u32(input)? }
        }
        _ => return None,
    })
}

fn take_u32(input: &mut Cursor<'_>) -> Option<u32> {
    u32::try_from(input.varint()?).ok()
}

fn take_bounds(input: &mut Cursor<'_>) -> Option<Change> {
    let (number, count) = (take_u32(input)?, input.varint()?);
    if count > BOUNDS_RANGES_MAX as u64 {
        return None;
    }
    let mut ranges = Vec::new();
    for _ in 0..count {
        let low = input.bytes(BOUND_BYTES_MAX)?.to_vec();
        ranges.push(KeyRange { low, high: input.bytes(BOUND_BYTES_MAX)?.to_vec() });
    }
    Some(Change::AddBounds { number, bounds: Bounds::from_ranges(ranges)? })
}

fn take_run(input: &mut Cursor<'_>, is_bounded: bool) -> Option<RunInfo> {
    let (first, last) = (Seq::new(input.varint()?), Seq::new(input.varint()?));
    let count = input.varint()?;
    if first > last || first == Seq::ZERO || count > FILES_READ_MAX as u64 {
        return None;
    }
    let mut files: Vec<FileInfo> = Vec::new();
    for _ in 0..count {
        let mut file = take_file(input)?;
        if is_bounded {
            file.bounds = take_u32(input)?;
        }
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
    let bounds = 0;
    fits.then_some(FileInfo { file, len, top_at, versions, first_key, last_key, bounds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::Range;

    #[test]
    fn changes_come_back() {
        let file = |n: u32, first: &str, last: &str| FileInfo {
            file: FileNo::new(2, n),
            len: 1000,
            top_at: 900,
            versions: 7,
            first_key: first.into(),
            last_key: last.into(),
            bounds: 0,
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
            Change::AddBounds { number: 7, bounds: Bounds::of(&[Range::between(b"a", b"c")]) },
            Change::AddBounds { number: 8, bounds: Bounds::of(&[Range::all()]) },
            Change::AddRun(run(vec![FileInfo { bounds: 7, ..file(1, "a", "b") }])),
            Change::BoundLog { file: FileNo::new(2, 1), bounds: 7 },
        ];
        let bytes = |changes: &[Change]| {
            let mut out = Vec::new();
            changes.iter().for_each(|change| put_change(&mut out, change));
            out
        };
        assert_eq!(read_changes(&bytes(&good), 12).unwrap(), good);
        assert!(read_changes(&bytes(&good), 11).is_err());
        let lies = Change::KeepLog { log: DataLog { file: FileNo::new(2, 1), len: 9, data: 9 } };
        assert!(read_changes(&bytes(&[lies]), 1).is_err());
        for overlap in [file(2, "b", "c"), file(2, "a", "c"), file(2, "d", "c"), file(2, "", "c")] {
            let bad = [Change::AddRun(run(vec![file(1, "a", "b"), overlap]))];
            assert!(read_changes(&bytes(&bad), 1).is_err());
        }
    }
}
