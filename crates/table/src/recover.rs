//! Replay of logs.

use std::rc::Rc;

use base::Kind;
use futures_util::future::join_all;

use crate::bounds::Bounds;
use crate::error::Error;
use crate::file::TableFiles;
use crate::format::DecodeError;
use crate::format::edit::DataLog;
use crate::format::frame::{FILE_HEAD, Form, Next, Record, next_record, read_log_head};
use crate::format::ops::{Op, read_ops};
use crate::layout::Layout;
use crate::limits::BATCH_BYTES_MAX;
use crate::memtable::Memtable;
use crate::planted::{Bugs, Planted};
use crate::store::Source;
use crate::types::{Name, Seq};

/// Bytes of one read of a log.
const READ: usize = 1 << 20;

/// Content of a table's logs beyond its runs.
pub(crate) struct Recovered {
    /// All changes; its logs are those with at least one.
    pub(crate) memtable: Memtable,
    /// The last change.
    pub(crate) last: Seq,
    /// Logs without such changes that have data.
    pub(crate) kept: Vec<DataLog>,
}

/// Shuts out the writer of the logs, and reads them. None when one is gone: the manifest that named
/// it may not be the live one any more.
pub(crate) async fn logs(
    table_files: &TableFiles,
    layout: &Layout,
    bugs: Bugs,
) -> Result<Option<Recovered>, Error> {
    // All are sealed at the same time, and before any is read: the old owner is fenced sooner.
    let seals = layout.logs.keys().map(|&file| async move {
        let name = Name::Log(file);
        match table_files.store.seal(&name.to_string()).await {
            Err(fault) if fault.kind == Kind::NotFound => Ok(None),
            Err(fault) => Err(Error::of_store(fault, "seal", &table_files.path(name))),
            Ok(len) => Ok(Some(len)),
        }
    });
    let lens = join_all(seals).await.into_iter().collect::<Result<Option<Vec<u64>>, Error>>()?;
    let Some(lens) = lens else { return Ok(None) };
    let mut last = layout.flushed();
    let (mut used, mut kept) = (Vec::new(), Vec::new());
    let memtable = Memtable::new(Vec::new());
    for (known, len) in layout.logs.values().zip(lens) {
        let before = last;
        let shows = layout.bounds.of_log(known.file).map(|bounds| &**bounds);
        let shows = shows.filter(|_| !bugs.has(Planted::LooseReplay));
        let known = Known { log: *known, shows, bugs };
        let log = match replay(table_files, known, End::Sealed(len), &memtable, &mut last).await {
            Err(Error::Missing { .. }) => return Ok(None),
            replayed => replayed?,
        };
        if last > before {
            used.push(log);
        } else if log.data > 0 {
            kept.push(log);
        }
    }
    memtable.set_logs(used, false);
    Ok(Some(Recovered { memtable, last, kept }))
}

/// Content of the logs at present, without shutting out their writer.
pub(crate) async fn peek(table_files: &TableFiles, layout: &Layout) -> Result<Recovered, Error> {
    let (mut last, memtable) = (layout.flushed(), Memtable::new(Vec::new()));
    for known in layout.logs.values() {
        let shows = layout.bounds.of_log(known.file).map(|bounds| &**bounds);
        let known = Known { log: *known, shows, bugs: Bugs::default() };
        replay(table_files, known, End::Shown, &memtable, &mut last).await?;
    }
    Ok(Recovered { memtable, last, kept: Vec::new() })
}

/// All that a file shows at present.
pub(crate) async fn read_shown(table_files: &TableFiles, name: Name) -> Result<Vec<u8>, Error> {
    let path = table_files.path(name);
    let cause = |fault| Error::of_store(fault, "read", &path);
    let source = table_files.store.open(&name.to_string()).await.map_err(cause)?;
    let mut bytes = Vec::new();
    loop {
        let more = source.read_at(bytes.len() as u64, READ).await.map_err(cause)?;
        bytes.extend_from_slice(&more);
        if more.len() < READ {
            return Ok(bytes);
        }
    }
}

/// Where a log ends.
#[derive(Clone, Copy)]
enum End {
    /// At its length.
    Sealed(u64),
    /// Where it shows no more: its writer may go on.
    Shown,
}

/// A log that is read on from an offset.
struct LogReader<'a> {
    path: String,
    source: Rc<dyn Source>,
    end: End,
    form: Form,
    log: DataLog,
    bytes: Vec<u8>,
    /// Place of the next record in `bytes`.
    at: usize,
    /// Offset in the file of the first of `bytes`.
    base: u64,
    table_files: &'a TableFiles,
}

/// A batch as its log has it.
pub(crate) struct Logged<'a> {
    pub(crate) seq: u64,
    pub(crate) ops: Vec<Op<'a>>,
}

impl<'a> LogReader<'a> {
    /// Reads on behind the part of a log that is known. Nothing when not even its head is shown: a log
    /// is named before every reader can see it.
    async fn open(
        table_files: &'a TableFiles,
        known: DataLog,
        end: End,
    ) -> Result<Option<LogReader<'a>>, Error> {
        let name = Name::Log(known.file);
        let path = table_files.path(name);
        let cause = |fault| Error::of_store(fault, "read", &path);
        let source = table_files.store.open(&name.to_string()).await.map_err(cause)?;
        let log = DataLog { file: known.file, len: FILE_HEAD as u64, data: known.data };
        let (bytes, at, base, form) = (Vec::new(), 0, 0, Form::Plain);
        let mut reader = LogReader { path, source, end, form, log, bytes, at, base, table_files };
        if !reader.fill(FILE_HEAD).await? && matches!(end, End::Shown) {
            return Ok(None);
        }
        // A log is named in the manifest only when its head is durable.
        let (form, file) = read_log_head(&reader.bytes).map_err(|flaw| reader.flawed(flaw))?;
        if file != known.file {
            let what = DecodeError::Damaged("its head has another number than its name");
            return Err(reader.flawed(what));
        }
        reader.form = form;
        reader.log.len = known.len;
        Ok(Some(reader))
    }

    fn flawed(&self, flaw: DecodeError) -> Error {
        let file = self.table_files.path(Name::Log(self.log.file));
        match flaw {
            DecodeError::Version(seen) => Error::Version { file, seen },
            DecodeError::Damaged(what) => {
                Error::Corrupt { file, offset: self.base + self.at as u64, what }
            }
        }
    }

    /// Goes to the first record that was not read, past the data of the last one.
    fn skip(&mut self) {
        let ahead = usize::try_from(self.log.len - self.base).ok();
        match ahead.filter(|&ahead| ahead <= self.bytes.len()) {
            Some(at) => self.at = at,
            None => {
                self.bytes.clear();
                (self.base, self.at) = (self.log.len, 0);
            }
        }
    }

    /// Reads until `need` bytes from its place on are there; false when the file ends before.
    async fn fill(&mut self, need: usize) -> Result<bool, Error> {
        self.bytes.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        while self.bytes.len() < need {
            let at = self.base + self.bytes.len() as u64;
            let want = match self.end {
                End::Sealed(len) => len.saturating_sub(at).min(READ as u64) as usize,
                End::Shown => READ,
            };
            if want == 0 {
                return Ok(false);
            }
            let more = self.source.read_at(at, want).await;
            let more = more.map_err(|fault| Error::of_store(fault, "read", &self.path))?;
            self.bytes.extend_from_slice(&more);
            if more.len() < want {
                match self.end {
                    End::Shown => return Ok(self.bytes.len() >= need),
                    End::Sealed(_) => {
                        let what = "it is shorter than its length";
                        let file = self.path.clone();
                        return Err(Error::Corrupt { file, offset: at, what });
                    }
                }
            }
        }
        Ok(true)
    }

    /// True when the file reaches up to an offset.
    async fn reaches(&self, offset: u64) -> Result<bool, Error> {
        match self.end {
            End::Sealed(len) => Ok(offset <= len),
            End::Shown => {
                let last = self.source.read_at(offset - 1, 1).await;
                let last = last.map_err(|fault| Error::of_store(fault, "read", &self.path))?;
                Ok(last.len() == 1)
            }
        }
    }

    /// The next batch; nothing at the log's end, or where an append was under way when its writer
    /// ended: such a one was never acknowledged.
    async fn next(&mut self) -> Result<Option<Logged<'_>>, Error> {
        self.skip();
        // Its parts by their lengths: nothing of it may be borrowed while more is read.
        let (seq, count, body, data, len) = loop {
            let rest = &self.bytes[self.at..];
            let next = next_record(self.form, self.log.file, rest, BATCH_BYTES_MAX);
            match next.map_err(|flaw| self.flawed(flaw))? {
                Next::Partial(need) => {
                    if !self.fill(need).await? {
                        return Ok(None);
                    }
                }
                Next::Record(record) => {
                    let Record { seq, count, body, data } = record;
                    break (seq, count, body.len(), data, record.len(self.form));
                }
            }
        };
        let end = self.log.len + len;
        if data > 0 && !self.reaches(end).await? {
            return Ok(None);
        }
        let body_at = self.at + self.form.record_head();
        let ops = read_ops(&self.bytes[body_at..body_at + body], count);
        let ops = ops.map_err(|flaw| self.flawed(flaw))?;
        self.log.len = end;
        self.log.data += u64::from(data);
        Ok(Some(Logged { seq, ops }))
    }
}

/// A log as the manifest has it.
#[derive(Clone, Copy)]
struct Known<'a> {
    log: DataLog,
    /// Keys that it shows, if these are not all of its.
    shows: Option<&'a Bounds>,
    bugs: Bugs,
}

/// Replays what a log has behind the part that is known and the change `last`; returns it as it ends.
/// Of keys that it does not show nothing is seen, but changes of them have their sequences.
async fn replay(
    table_files: &TableFiles,
    Known { log: known, shows, bugs }: Known<'_>,
    end: End,
    memtable: &Memtable,
    last: &mut Seq,
) -> Result<DataLog, Error> {
    let Some(mut log) = LogReader::open(table_files, known, end).await? else { return Ok(known) };
    loop {
        let at = log.log.len;
        let Some(batch) = log.next().await? else { break };
        if batch.seq != last.plus(1).get() {
            let what = "changes are missing before it";
            let file = table_files.path(Name::Log(known.file));
            return Err(Error::Corrupt { file, offset: at, what });
        }
        for op in batch.ops {
            *last = last.plus(1);
            match shows.is_none_or(|shows| shows.has(op.key)) {
                true => memtable.insert(*last, op.key, op.value, |_, _| true),
                false if bugs.has(Planted::ForgetHidden) => {}
                false => memtable.pass(*last),
            }
        }
    }
    Ok(match end {
        End::Sealed(len) => DataLog { len, ..log.log },
        End::Shown => log.log,
    })
}

/// Changes of a page of a log at most: a few milliseconds of work.
const PAGE_CHANGES: usize = 4096;

/// Changes that a log has, in their order, from an offset on; those of keys that it shows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogPage {
    /// Keys and the values that they got; none for a deletion.
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Where the next page begins; none behind the last.
    pub next: Option<u64>,
}

/// A page of a sealed log, with the keys that it shows.
pub(crate) async fn page(
    table_files: &TableFiles,
    (log, shows): (DataLog, Option<&Bounds>),
    from: u64,
) -> Result<LogPage, Error> {
    let known = DataLog { len: from.max(FILE_HEAD as u64), ..log };
    let opened = LogReader::open(table_files, known, End::Sealed(log.len)).await?;
    let mut log = opened.expect("a sealed log shows its head");
    let mut page = LogPage::default();
    while page.changes.len() < PAGE_CHANGES {
        let Some(batch) = log.next().await? else { return Ok(page) };
        let owned = |op: Op<'_>| (op.key.to_vec(), op.value.map(<[u8]>::to_vec));
        let shown = batch.ops.into_iter().filter(|op| shows.is_none_or(|shows| shows.has(op.key)));
        page.changes.extend(shown.map(owned));
    }
    page.next = Some(log.log.len);
    Ok(page)
}
