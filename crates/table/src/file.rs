//! [`SortedFile`]: reading a sorted file, part by part, through the cache.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use runtime::sync::Mutex;
use runtime::{Class, Env};

use crate::bounds::Bounds;
use crate::cache::{Cache, Cached};
use crate::error::Error;
use crate::format::DecodeError;
use crate::format::block::Block;
use crate::format::edit::FileInfo;
use crate::format::filter;
use crate::format::footer::{FOOTER, FilePart, Footer, read_index_value, read_top_value};
use crate::format::frame::placed_crc;
use crate::pending_deletes::PendingDeletes;
use crate::store::{Source, Store};
use crate::types::{FileNo, Name, Seq};

/// State that all files of one open table share.
pub(crate) struct TableFiles {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) cache: Cache,
    /// The table's number in the cache.
    pub(crate) table: u64,
    pub(crate) pending_deletes: Rc<PendingDeletes>,
}

impl TableFiles {
    /// Removes a file that could not be made, of which the name may be there, without waiting for
    /// it. No manifest names it; if it cannot be removed now, the next opening's sweep does.
    pub(crate) fn discard(self: &Rc<Self>, env: &Env, name: Name) {
        let table_files = self.clone();
        env.mark("table: unmade file removed");
        env.spawn(Class::Background, "table: discard", async move {
            if let Err(fault) = table_files.store.remove(&name.to_string()).await {
                tracing::debug!(
                    file = table_files.path(name),
                    cause = fault.message,
                    "not removed"
                );
            }
        });
    }

    /// A file's name, for messages.
    pub(crate) fn path(&self, name: Name) -> String {
        format!("{}/{name}", self.store.name())
    }
}

/// A part of a file: the places of its data blocks, and a filter of its keys.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) index: Block,
    filter: Vec<u8>,
}

/// A sorted file. Opened when it is first read; its bytes go when it is obsolete and has no reader
/// any more.
pub(crate) struct SortedFile {
    table_files: Rc<TableFiles>,
    pub(crate) info: FileInfo,
    /// Keys that it shows, if these are not all of its.
    pub(crate) bounds: Option<Rc<Bounds>>,
    opened: RefCell<Option<Rc<OpenedFile>>>,
    opening: Mutex<()>,
    obsolete: Cell<bool>,
}

/// Part of a file that stays in memory once it has been read.
pub(crate) struct OpenedFile {
    source: Rc<dyn Source>,
    /// For each partition its last key and its place.
    pub(crate) top: Block,
}

/// A version of a key, with its value.
pub(crate) type Owned = (Seq, Option<Vec<u8>>);

impl SortedFile {
    pub(crate) fn new(
        table_files: &Rc<TableFiles>,
        info: FileInfo,
        bounds: Option<Rc<Bounds>>,
    ) -> SortedFile {
        SortedFile {
            table_files: table_files.clone(),
            info,
            bounds,
            opened: RefCell::default(),
            opening: Mutex::new(()),
            obsolete: Cell::new(false),
        }
    }

    /// True when it shows a key, if it has it.
    pub(crate) fn shows(&self, key: &[u8]) -> bool {
        self.bounds.as_ref().is_none_or(|bounds| bounds.has(key))
    }

    /// No manifest names it any more.
    pub(crate) fn retire(&self) {
        self.obsolete.set(true);
    }

    fn file(&self) -> FileNo {
        self.info.file
    }

    fn flaw(&self, flaw: DecodeError, offset: u64) -> Error {
        let file = self.table_files.path(Name::Sorted(self.file()));
        match flaw {
            DecodeError::Version(seen) => Error::Version { file, seen },
            DecodeError::Damaged(what) => Error::Corrupt { file, offset, what },
        }
    }

    pub(crate) fn damaged(&self, what: &'static str, offset: u64) -> Error {
        self.flaw(DecodeError::Damaged(what), offset)
    }

    async fn read(&self, source: &dyn Source, part: FilePart) -> Result<Vec<u8>, Error> {
        let bytes = source.read_at(part.at, part.len as usize).await.map_err(|fault| {
            Error::of_store(fault, "read", &self.table_files.path(Name::Sorted(self.file())))
        })?;
        if bytes.len() != part.len as usize {
            return Err(self.damaged("it is shorter than the manifest says", part.at));
        }
        Ok(bytes)
    }

    /// The file, opened: its footer and top block are read and verified.
    pub(crate) async fn open(&self) -> Result<Rc<OpenedFile>, Error> {
        if let Some(opened) = &*self.opened.borrow() {
            return Ok(opened.clone());
        }
        let _opening = self.opening.lock().await;
        if let Some(opened) = &*self.opened.borrow() {
            return Ok(opened.clone());
        }
        let name = Name::Sorted(self.file());
        let source = self.table_files.store.open(&name.to_string()).await;
        let source =
            source.map_err(|fault| Error::of_store(fault, "open", &self.table_files.path(name)))?;
        let (len, top_at) = (self.info.len, self.info.top_at);
        let tail = len.checked_sub(top_at).and_then(|tail| u32::try_from(tail).ok());
        let tail = tail.filter(|&tail| tail as usize > FOOTER);
        let tail = tail.ok_or_else(|| self.damaged("its end cannot be where it is said", len))?;
        let bytes = self.read(&*source, FilePart { at: top_at, len: tail }).await?;
        let (top, footer) = bytes.split_at(bytes.len() - FOOTER);
        let footer_at = len - FOOTER as u64;
        let footer = Footer::decode(self.file(), footer_at, footer)
            .map_err(|flaw| self.flaw(flaw, footer_at))?;
        if footer.top_at != top_at || footer.versions != self.info.versions {
            return Err(self.damaged("its footer is not what the manifest says", footer_at));
        }
        let top =
            Block::decode(self.file(), top_at, top).map_err(|flaw| self.flaw(flaw, top_at))?;
        if top.key(top.len() - 1) != self.info.last_key {
            return Err(self.damaged("its last key is not what the manifest says", top_at));
        }
        let opened = Rc::new(OpenedFile { source, top });
        *self.opened.borrow_mut() = Some(opened.clone());
        Ok(opened)
    }

    /// A partition, by its place in the top block.
    pub(crate) async fn partition(
        &self,
        opened: &OpenedFile,
        number: usize,
        fill: bool,
    ) -> Result<Rc<Partition>, Error> {
        let value = opened.top.visible(number, Seq::new(u64::MAX)).and_then(|version| version.1);
        let parts = read_top_value(value, self.info.top_at);
        let (index, filter) =
            parts.ok_or_else(|| self.damaged("its top block names no place", self.info.top_at))?;
        let key = (self.table_files.table, self.file(), index.at);
        match self.table_files.cache.get(key) {
            Some(Cached::Partition(partition)) => return Ok(partition),
            Some(Cached::Data(_)) => return Err(self.damaged("two parts share a place", index.at)),
            None => {}
        }
        let both = FilePart { at: index.at, len: index.len.saturating_add(filter.len) };
        let bytes = self.read(&*opened.source, both).await?;
        let (index_bytes, filter_bytes) = bytes.split_at(index.len as usize);
        let block = Block::decode(self.file(), index.at, index_bytes)
            .map_err(|flaw| self.flaw(flaw, index.at))?;
        let filter_bytes = read_filter(self.file(), filter.at, filter_bytes)
            .map_err(|flaw| self.flaw(flaw, filter.at))?;
        let bytes = block.memory() + filter_bytes.len();
        let partition = Rc::new(Partition { index: block, filter: filter_bytes.to_vec() });
        if fill {
            self.table_files.cache.insert(key, Cached::Partition(partition.clone()), bytes);
        }
        Ok(partition)
    }

    /// Place of a partition's data block.
    fn data_part(&self, partition: &Partition, number: usize) -> Result<FilePart, Error> {
        let value = partition.index.visible(number, Seq::new(u64::MAX)).and_then(|v| v.1);
        let part = read_index_value(value, self.info.top_at);
        part.ok_or_else(|| self.damaged("an index block names no place", self.info.top_at))
    }

    /// A data block of a partition.
    pub(crate) async fn data(
        &self,
        opened: &OpenedFile,
        partition: &Partition,
        number: usize,
        fill: bool,
    ) -> Result<Rc<Block>, Error> {
        let part = self.data_part(partition, number)?;
        let key = (self.table_files.table, self.file(), part.at);
        match self.table_files.cache.get(key) {
            Some(Cached::Data(block)) => return Ok(block),
            Some(Cached::Partition(_)) => {
                return Err(self.damaged("two parts share a place", part.at));
            }
            None => {}
        }
        let bytes = self.read(&*opened.source, part).await?;
        let block = Rc::new(self.block(part, &bytes)?);
        if fill {
            self.table_files.cache.insert(key, Cached::Data(block.clone()), block.memory());
        }
        Ok(block)
    }

    fn block(&self, part: FilePart, bytes: &[u8]) -> Result<Block, Error> {
        Block::decode(self.file(), part.at, bytes).map_err(|flaw| self.flaw(flaw, part.at))
    }

    /// Data blocks of a partition from one on, with one read of about `bytes`, past the cache.
    pub(crate) async fn data_ahead(
        &self,
        opened: &OpenedFile,
        partition: &Partition,
        first: usize,
        bytes: usize,
    ) -> Result<Vec<Rc<Block>>, Error> {
        let start = self.data_part(partition, first)?;
        let mut parts = vec![start];
        for number in first + 1..partition.index.len() {
            let part = self.data_part(partition, number)?;
            let before = parts.last().expect("not empty");
            let fits = part.end() - start.at <= bytes as u64;
            if part.at != before.end() || !fits {
                break;
            }
            parts.push(part);
        }
        let end = parts.last().expect("not empty").end();
        let all = FilePart { at: start.at, len: (end - start.at) as u32 };
        let bytes = self.read(&*opened.source, all).await?;
        let block = |part: &FilePart| {
            let from = (part.at - start.at) as usize;
            self.block(*part, &bytes[from..from + part.len as usize]).map(Rc::new)
        };
        parts.iter().map(block).collect()
    }

    /// The newest version of a key at or below `seq`.
    pub(crate) async fn get(
        &self,
        key: &[u8],
        hash: u64,
        seq: Seq,
    ) -> Result<Option<Owned>, Error> {
        let opened = self.open().await?;
        let number = opened.top.lower_bound(key);
        if number == opened.top.len() {
            return Ok(None);
        }
        let partition = self.partition(&opened, number, true).await?;
        if !filter::may_have(&partition.filter, hash) {
            return Ok(None);
        }
        let number = partition.index.lower_bound(key);
        if number == partition.index.len() {
            return Err(self.damaged("an index block ends too early", self.info.top_at));
        }
        let block = self.data(&opened, &partition, number, true).await?;
        let Some(index) = block.find(key) else { return Ok(None) };
        let found = block.visible(index, seq);
        Ok(found.map(|(seq, value)| (seq, value.map(<[u8]>::to_vec))))
    }
}

impl Drop for SortedFile {
    fn drop(&mut self) {
        if self.obsolete.get() {
            self.table_files.cache.forget_file(self.table_files.table, self.file());
            self.table_files.pending_deletes.add(Name::Sorted(self.file()));
        }
    }
}

impl fmt::Debug for SortedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SortedFile({:?})", self.file())
    }
}

/// Appends a filter with its CRC.
pub(crate) fn put_filter(out: &mut Vec<u8>, file: FileNo, offset: u64, filter: &[u8]) -> u32 {
    out.extend_from_slice(&placed_crc(file, offset, filter).to_le_bytes());
    out.extend_from_slice(filter);
    4 + filter.len() as u32
}

/// See [`put_filter`].
pub(crate) fn read_filter(file: FileNo, offset: u64, bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let (crc, filter) = bytes
        .split_first_chunk::<4>()
        .ok_or(DecodeError::Damaged("a filter ends within its CRC"))?;
    if placed_crc(file, offset, filter) != u32::from_le_bytes(*crc) {
        return Err(DecodeError::Damaged("a filter does not verify"));
    }
    Ok(filter)
}
