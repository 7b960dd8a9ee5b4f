//! Content of a clone's segment: the first opening links it from the snapshot's (B11).
//!
//! No other process takes part: the snapshot's table is read, its DataFiles are linked, and its
//! rows are copied into the table that the opening has just taken over. The row that makes the
//! directory a segment comes last: an opening that finds it links no more, and another begins
//! again. A snapshot never changes. If it is open elsewhere, its table may advance during the copy:
//! then the opening fails with `Retry`, and the next one begins again.

use base::{Fault, Kind};
use block_volume::ids::FileNo;
use block_volume::record::DecodeError;
use runtime::Env;
use table::{Batch, Cache, Range, Snapshot, Table};

use super::format::state::{
    FILE_PREFIX, FileState, PAGE_PREFIX, Role, SEGMENT_KEY, SegmentState, TXN_PREFIX, file_key,
    read_key,
};
use super::limits::LINK_ROWS_BYTES;
use super::open::SegmentOpening;
use super::options::LinkFrom;

/// Bytes of the cache for a table that is read once.
const LOOK_CACHE: usize = 256 << 10;

/// An error of the snapshot's table does not end this segment.
fn of_clone_source(error: table::Error) -> Fault {
    let kind = match (&error, error.kind()) {
        // It has advanced during the read.
        (table::Error::Missing { .. }, _) => Kind::Retry,
        (_, kind @ (Kind::Corrupt | Kind::Invalid)) => kind,
        _ => Kind::Retry,
    };
    Fault::new(kind, format!("the snapshot that it is cloned from: {error}"))
}

impl SegmentOpening {
    /// Gives the segment, whose table is open, the content of another.
    pub(super) async fn link_from(
        &self,
        table: &Table,
        clone_source: &LinkFrom,
    ) -> Result<(), Fault> {
        let from = clone_source().await.map_err(|fault| {
            let kind = if fault.kind == Kind::NotFound { Kind::Corrupt } else { fault.kind };
            self.fault(kind, format!("the snapshot that it is cloned from: {}", fault.message))
        })?;
        let rows = Table::open_view(&self.env, from.clone(), &Cache::new(LOOK_CACHE)).await;
        let rows = rows.map_err(of_clone_source)?;
        let state = self.clone_source_state(&rows).await?;
        let files = self.clone_source_files(&rows, &state).await?;
        let names: Vec<String> =
            files.iter().map(|(number, file)| number.name(file.generation)).collect();
        let linked = from.link(&names, self.store.name()).await;
        linked.map_err(|fault| {
            let kind = if fault.kind == Kind::NotFound { Kind::Retry } else { fault.kind };
            let what = format!("could not link files of {}", from.name());
            self.fault(kind, format!("{what}: {}", fault.message))
        })?;
        let filling = Filling {
            env: &self.env,
            rows: &rows,
            table,
            check: &|| Ok(()),
            of_rows: &of_clone_source,
            of_table: &|error| self.fault(error.kind(), error),
        };
        filling.run(&files, SegmentState { identity: self.identity, epoch: 0, ..state }).await?;
        self.env.mark("segment: linked by its first opening");
        Ok(())
    }

    async fn clone_source_state(&self, rows: &Snapshot) -> Result<SegmentState, Fault> {
        let state = rows.get(SEGMENT_KEY).await.map_err(of_clone_source)?;
        let state = state.ok_or_else(|| {
            self.fault(Kind::Retry, "the snapshot that it is cloned from is not shown yet")
        })?;
        let state = SegmentState::decode(&state);
        let state = state.map_err(|flaw| self.damage("its snapshot's table", 0, flaw))?;
        match state.identity.segment == self.identity.segment {
            true => Ok(state),
            false => Err(self.fault(Kind::Corrupt, format!("is to be linked from {state:?}"))),
        }
    }

    /// Files of the snapshot's segment that have blocks, as rows of this one.
    async fn clone_source_files(
        &self,
        rows: &Snapshot,
        of: &SegmentState,
    ) -> Result<Vec<(FileNo, FileState)>, Fault> {
        let mut files = Vec::new();
        let mut scan = rows.scan(Range::prefix(&[FILE_PREFIX]));
        while let Some((key, value)) = scan.next().await.map_err(of_clone_source)? {
            let flaw = DecodeError::Damaged("a DataFile's key is none");
            let number = read_key(&key).and_then(FileNo::new);
            let number = number.ok_or_else(|| self.damage("its snapshot's table", 0, flaw))?;
            let file = FileState::decode(&value);
            let mut file = file.map_err(|flaw| self.damage("its snapshot's table", 0, flaw))?;
            match (file.sealed, file.role) {
                (true, _) if file.blocks > 0 => {}
                // A file of the snapshot's present owner: nothing is written to it.
                (true, _) | (false, Role::Log) => continue,
                (false, Role::Collected) => {
                    return Err(self.fault(Kind::Retry, "its snapshot is being collected"));
                }
            }
            if file.clone_source == 0 {
                file.clone_source = of.identity.volume;
            }
            files.push((number, file));
        }
        Ok(files)
    }
}

/// Copy of a segment's rows into the table of another directory.
pub(super) struct Filling<'a> {
    pub env: &'a Env,
    /// Source of the index pages and batches.
    pub rows: &'a Snapshot,
    pub table: &'a Table,
    /// Checks that it is still wanted.
    pub check: &'a dyn Fn() -> Result<(), Fault>,
    /// The fault for an error of `rows`, and for one of `table`.
    pub of_rows: &'a dyn Fn(table::Error) -> Fault,
    pub of_table: &'a dyn Fn(table::Error) -> Fault,
}

impl Filling<'_> {
    /// Makes the table that of the segment `state`, which has these files. A previous try may have
    /// begun from older rows: its rows are removed first. The row that makes the directory a
    /// segment comes last.
    pub(super) async fn run(
        &self,
        files: &[(FileNo, FileState)],
        state: SegmentState,
    ) -> Result<(), Fault> {
        for prefix in [PAGE_PREFIX, TXN_PREFIX, FILE_PREFIX] {
            let mut left = self.table.scan(Range::prefix(&[prefix]));
            let mut batch = Rows::default();
            while let Some((key, _)) = left.next().await.map_err(self.of_table)? {
                batch.delete(&key);
                self.write_full(&mut batch).await?;
            }
            self.write(batch).await?;
        }
        let mut batch = Rows::default();
        for prefix in [PAGE_PREFIX, TXN_PREFIX] {
            let mut rows = self.rows.scan(Range::prefix(&[prefix]));
            while let Some((key, value)) = rows.next().await.map_err(self.of_rows)? {
                batch.put(&key, &value);
                self.write_full(&mut batch).await?;
            }
        }
        for (number, file) in files {
            batch.put(&file_key(*number), &file.encode());
        }
        self.write(batch).await?;
        let mut last = Rows::default();
        last.put(SEGMENT_KEY, &state.encode());
        self.write(last).await
    }

    async fn write_full(&self, rows: &mut Rows) -> Result<(), Fault> {
        match rows.bytes >= LINK_ROWS_BYTES {
            true => self.write(std::mem::take(rows)).await,
            false => Ok(()),
        }
    }

    async fn write(&self, rows: Rows) -> Result<(), Fault> {
        loop {
            (self.check)()?;
            match self.table.write(&rows.batch).await {
                Ok(_) => return Ok(()),
                Err(table::Error::Busy { retry_after, .. }) => self.env.sleep(retry_after).await,
                Err(error) => return Err((self.of_table)(error)),
            }
        }
    }
}

/// A batch, and its size.
#[derive(Default)]
struct Rows {
    batch: Batch,
    bytes: usize,
}

impl Rows {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.put(key, value);
        self.bytes += key.len() + value.len();
    }

    fn delete(&mut self, key: &[u8]) {
        self.batch.delete(key);
        self.bytes += key.len();
    }
}
