//! Replay of logs.

use std::future::ready;

use base::Kind;
use futures_util::future::join_all;

use crate::error::Error;
use crate::file::TableFiles;
use crate::format::DecodeError;
use crate::format::frame::{Content, FILE_HEAD, Next, RECORD_HEAD, next_record, read_file_head};
use crate::format::ops::read_ops;
use crate::layout::Layout;
use crate::limits::BATCH_BYTES_MAX;
use crate::memtable::Memtable;
use crate::store::{Answer, Source};
use crate::types::{FileNo, Name, Seq};

/// Bytes of one read of a log.
const READ: usize = 1 << 20;

/// Content of a table's logs beyond its runs.
pub(crate) struct Recovered {
    /// All changes; its logs are those with at least one.
    pub(crate) memtable: Memtable,
    /// The last change.
    pub(crate) last: Seq,
}

/// Shuts out the writer of the logs, and reads them. None when one is gone: the manifest that named
/// it may not be the live one any more.
pub(crate) async fn logs(
    table_files: &TableFiles,
    layout: &Layout,
) -> Result<Option<Recovered>, Error> {
    // All are sealed at the same time, and before any is read: the old owner is fenced sooner.
    let seals = layout.logs.iter().map(|&file| async move {
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
    let mut used = Vec::new();
    let memtable = Memtable::new(Vec::new());
    for (&file, len) in layout.logs.iter().zip(lens) {
        let before = last;
        match replay(table_files, file, len, &memtable, &mut last).await {
            Err(Error::Missing { .. }) => return Ok(None),
            replayed => replayed?,
        }
        if last > before {
            used.push(file);
        }
    }
    memtable.set_logs(used);
    Ok(Some(Recovered { memtable, last }))
}

/// Content of the logs at present, without shutting out their writer.
pub(crate) async fn peek(table_files: &TableFiles, layout: &Layout) -> Result<Recovered, Error> {
    let (mut last, memtable) = (layout.flushed(), Memtable::new(Vec::new()));
    for &file in &layout.logs {
        let bytes = read_shown(table_files, Name::Log(file)).await?;
        // A log is named before its head can be read by every instance.
        if bytes.len() >= FILE_HEAD {
            let len = bytes.len() as u64;
            replay_from(table_files, &Shown(bytes), (file, len), &memtable, &mut last).await?;
        }
    }
    Ok(Recovered { memtable, last })
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

/// Bytes that a file has shown.
struct Shown(Vec<u8>);

impl Source for Shown {
    fn read_at(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        let from = usize::try_from(offset).map_or(self.0.len(), |from| from.min(self.0.len()));
        let to = from.saturating_add(len).min(self.0.len());
        Box::pin(ready(Ok(self.0[from..to].to_vec())))
    }
}

/// Replays one log of `len` bytes behind the change `last`.
async fn replay(
    table_files: &TableFiles,
    file: FileNo,
    len: u64,
    memtable: &Memtable,
    last: &mut Seq,
) -> Result<(), Error> {
    let name = Name::Log(file);
    let cause = |fault| Error::of_store(fault, "read", &table_files.path(name));
    let source = table_files.store.open(&name.to_string()).await.map_err(cause)?;
    replay_from(table_files, &*source, (file, len), memtable, last).await
}

async fn replay_from(
    table_files: &TableFiles,
    source: &dyn Source,
    (file, len): (FileNo, u64),
    memtable: &Memtable,
    last: &mut Seq,
) -> Result<(), Error> {
    let path = table_files.path(Name::Log(file));
    let mut bytes = Vec::new();
    // Offset in the file of the first of `bytes`.
    let mut base = 0u64;
    fill(source, &path, base, len, FILE_HEAD, &mut bytes).await?;
    let flawed = |flaw, offset| match flaw {
        DecodeError::Version(seen) => Error::Version { file: path.clone(), seen },
        DecodeError::Damaged(what) => Error::Corrupt { file: path.clone(), offset, what },
    };
    // A log is named in the manifest only when its head is durable.
    let head = read_file_head(Content::Log, &bytes).map_err(|flaw| flawed(flaw, 0))?;
    if head != file {
        let what = "its head has another number than its name";
        return Err(Error::Corrupt { file: path, offset: 0, what });
    }
    let mut at = FILE_HEAD;
    loop {
        let offset = base + at as u64;
        match next_record(file, &bytes[at..], BATCH_BYTES_MAX).map_err(|f| flawed(f, offset))? {
            Next::Record(record) => {
                let next = last.plus(1);
                if record.seq != next.get() {
                    return Err(flawed(
                        DecodeError::Damaged("changes are missing before it"),
                        offset,
                    ));
                }
                let ops = read_ops(record.body, record.count).map_err(|f| flawed(f, offset))?;
                for op in ops {
                    *last = last.plus(1);
                    memtable.insert(*last, op.key, op.value, |_, _| true);
                }
                at += RECORD_HEAD + record.body.len();
            }
            Next::Partial(need) => {
                if offset + need as u64 > len {
                    return Ok(()); // Under way when its writer ended: never acknowledged.
                }
                bytes.drain(..at);
                (base, at) = (offset, 0);
                fill(source, &path, base, len, need, &mut bytes).await?;
            }
        }
    }
}

/// Reads on until `need` bytes from `base` on are there, or the file ends.
async fn fill(
    source: &dyn Source,
    path: &str,
    base: u64,
    len: u64,
    need: usize,
    bytes: &mut Vec<u8>,
) -> Result<(), Error> {
    while bytes.len() < need {
        let at = base + bytes.len() as u64;
        let want = (len - at).min(READ as u64) as usize;
        if want == 0 {
            return Ok(());
        }
        let more = source.read_at(at, want).await;
        let more = more.map_err(|fault| Error::of_store(fault, "read", path))?;
        if more.len() != want {
            let what = "it is shorter than its length";
            return Err(Error::Corrupt { file: path.to_owned(), offset: at, what });
        }
        bytes.extend_from_slice(&more);
    }
    Ok(())
}
