//! [`BodyFiles`]: files of bodies of a range, as they are with all that is submitted (`object-protocols.md`
//! 6.1, 10.3). [`Places`]: bodies to which a batch gives a place in such a file, or takes it from.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use object_proto::{Error, FileName, NewObject, ObjectData, SessionId, StoredBytes, Target};
use runtime::Env;
use table::Batch;

use crate::decisions::{Decisions, damaged};
use crate::file_rows::{BodyRow, FileOf, FileRow, FileState};
use crate::keys::{FILE, INHERITED, Writer, body_key, read_text_key, text_key, writer_of};
use crate::piece::stored_len;
use crate::planted::{Bugs, Planted};

/// A file that is known.
#[derive(Clone, Copy)]
struct Known {
    row: FileRow,
    /// Bytes that have died in it since this owner began.
    died: u64,
}

/// The files of bodies of a range.
pub(crate) struct BodyFiles {
    env: Env,
    files: RefCell<BTreeMap<FileName, Known>>,
    /// Files that are being given a name in the range's directory.
    linking: RefCell<BTreeSet<FileName>>,
    bugs: Bugs,
}

/// Bodies whose places a batch gives or takes, by file: bytes that come to live there, and that die.
#[derive(Default)]
pub(crate) struct Places(BTreeMap<FileName, (u64, u64)>);

/// Rows of files that a batch has, with what dies in them.
pub(crate) struct FileRows(Vec<(FileName, FileRow, u64)>);

impl Places {
    /// Puts into a batch that a body has its place, if it has one in a file.
    pub(crate) fn give(
        &mut self,
        batch: &mut Batch,
        (target, of): (&Target, FileOf),
        object: &NewObject,
    ) {
        let ObjectData::File { file, offset } = &object.data else { return };
        let (data_id, size, target) = (object.data_id, object.size, target.clone());
        self.0.entry(file.clone()).or_default().0 += stored_len(&target, size);
        let row = BodyRow { data_id, size, target, of };
        batch.put(&body_key(file, *offset), &row.encode());
    }

    /// Puts into a batch that a body's place is of no use any more, if it has one in a file.
    pub(crate) fn take(&mut self, batch: &mut Batch, target: &Target, old: &NewObject) {
        let ObjectData::File { file, offset } = &old.data else { return };
        self.0.entry(file.clone()).or_default().1 += stored_len(target, old.size);
        batch.delete(&body_key(file, *offset));
    }
}

impl BodyFiles {
    /// The files of a table that was just opened.
    pub(crate) async fn open(
        env: &Env,
        decisions: &Decisions,
        bugs: Bugs,
    ) -> Result<BodyFiles, Error> {
        let mut files = BTreeMap::new();
        let rows = decisions.all(&[FILE]).await?;
        for (key, value) in rows.into_iter().filter(|(key, _)| *key != INHERITED) {
            let row = read_text_key(&key).map(FileName::new).zip(FileRow::decode(&value));
            let (file, row) = row.ok_or_else(|| damaged("a file's row"))?;
            files.insert(file, Known { row, died: 0 });
        }
        let (files, linking) = (RefCell::new(files), RefCell::default());
        Ok(BodyFiles { env: env.clone(), files, linking, bugs })
    }

    /// What is known of a file.
    pub(crate) fn row(&self, file: &FileName) -> Option<FileRow> {
        self.files.borrow().get(file).map(|known| known.row)
    }

    /// Bytes that have died in a file since this owner began.
    pub(crate) fn died(&self, file: &FileName) -> u64 {
        self.files.borrow().get(file).map_or(0, |known| known.died)
    }

    /// All files.
    pub(crate) fn all(&self) -> Vec<(FileName, FileRow)> {
        let files = self.files.borrow();
        files.iter().map(|(file, known)| (file.clone(), known.row)).collect()
    }

    /// The files that a session has sent and that are held.
    pub(crate) fn held_of(&self, session: SessionId) -> Vec<FileName> {
        let files = self.files.borrow();
        let held = files.iter().filter(|(file, known)| {
            known.row.state == FileState::Held
                && writer_of(file.as_str()) == Some(Writer::Session(session))
        });
        held.map(|(file, _)| file.clone()).collect()
    }

    /// An error unless the range keeps the file that data is in. Nothing is awaited between this and the
    /// submission of the batch.
    pub(crate) fn check(&self, data: &ObjectData) -> Result<(), Error> {
        let ObjectData::File { file, .. } = data else { return Ok(()) };
        match self.row(file).map(|row| row.state) {
            Some(FileState::Held | FileState::Sealed(..)) => Ok(()),
            _ if self.bugs.has(Planted::CommitUnlinked) => Ok(()),
            Some(FileState::Trash(..)) | None => Err(Error::Unheld),
        }
    }

    /// Puts the rows of files into a batch that gives and takes places. They go to [`BodyFiles::know`] when
    /// it was submitted.
    pub(crate) fn put(&self, batch: &mut Batch, places: &Places) -> FileRows {
        let mut rows = Vec::new();
        for (file, (new, dead)) in &places.0 {
            let Some(row) = self.row(file).or((*new > 0).then_some(FileRow::HELD)) else {
                continue;
            };
            let dead = if self.bugs.has(Planted::LostCount) { 0 } else { *dead };
            let missing = if self.bugs.counts_wrong(&self.env) { row.live / 2 } else { 0 };
            let live = (row.live + new).saturating_sub(dead).saturating_sub(missing);
            let row = FileRow { live, ..row };
            batch.put(&text_key(FILE, file.as_str()), &row.encode());
            rows.push((file.clone(), row, dead));
        }
        FileRows(rows)
    }

    /// A batch with these rows was submitted.
    pub(crate) fn know(&self, rows: FileRows) {
        let files = &mut *self.files.borrow_mut();
        for (file, row, dead) in rows.0 {
            let died = files.get(&file).map_or(0, |known| known.died) + dead;
            files.insert(file, Known { row, died });
        }
    }

    /// A batch with this row was submitted.
    pub(crate) fn know_one(&self, file: &FileName, row: FileRow) {
        self.know(FileRows(vec![(file.clone(), row, 0)]));
    }

    /// A file is gone, and its row.
    pub(crate) fn forget(&self, file: &FileName) {
        self.files.borrow_mut().remove(file);
    }

    /// A file is being given a name in the range's directory, while the answer is kept.
    pub(crate) fn link<'a>(&'a self, file: &'a FileName) -> Linking<'a> {
        self.linking.borrow_mut().insert(file.clone());
        Linking { files: self, file }
    }

    /// True while a file of a session's is being linked.
    pub(crate) fn is_linking(&self, session: SessionId) -> bool {
        let is_of = |file: &FileName| writer_of(file.as_str()) == Some(Writer::Session(session));
        self.linking.borrow().iter().any(is_of)
    }

    /// Bytes of all files.
    pub(crate) fn stored(&self) -> StoredBytes {
        let mut stored = StoredBytes::default();
        for Known { row, .. } in self.files.borrow().values() {
            match row.state {
                FileState::Held => {
                    stored.live += row.live;
                    stored.written += row.live;
                }
                FileState::Sealed(len, _) => {
                    stored.live += row.live;
                    stored.garbage += len.saturating_sub(row.live);
                }
                FileState::Trash(len, _) => stored.trash += len,
            }
        }
        stored
    }
}

/// See [`BodyFiles::link`].
pub(crate) struct Linking<'a> {
    files: &'a BodyFiles,
    file: &'a FileName,
}

impl Drop for Linking<'_> {
    fn drop(&mut self) {
        self.files.linking.borrow_mut().remove(self.file);
    }
}
