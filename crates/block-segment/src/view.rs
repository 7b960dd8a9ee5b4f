//! [`View`]: the content of a segment that no owner changes, read from its directory alone: no block server
//! takes part (B10). It finds differences between snapshots, and the files that they pin.
//!
//! A location of a block is a file and a unit of it. Files are distinguished by their numbers in
//! the core: no two files ever have the same, and a file keeps its number in all directories that
//! it is linked into. Names do not distinguish them: a segment that was cut off and made again
//! begins with the same ones. So a block with one location in two snapshots has not changed; one
//! with two was written again, or moved by garbage collection.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::ids::{FileId, FileNo};
use block_volume::record::{DecodeError, UNIT};
use runtime::Env;
use table::{Cache, Range, Redundancy, Snapshot, Store, Table};

use super::format::page::decode_page;
use super::format::state::{
    FILE_PREFIX, FileState, PAGE_PREFIX, SEGMENT_KEY, SegmentState, TXN_PREFIX, page_key, read_key,
};
use super::format::txn::Txn;
use super::index::{Found, IndexMap};
use super::limits::PAGE_BLOCKS;
use super::types::Loc;

/// Bytes of the index in memory beside the changes of the TxnFile.
const INDEX_BYTES: usize = 1 << 20;
/// Bytes of the table's blocks in memory.
const CACHE_BYTES: usize = 4 << 20;

/// A segment's part of a DataFile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileUse {
    /// The file.
    pub file: FileId,
    /// Bytes of its content up to the segment's end of it, neither copies nor parity counted.
    pub bytes: u64,
    /// True when another segment made it.
    pub linked: bool,
    /// The erasure code that it was made with; none for copies.
    pub code: Option<Redundancy>,
}

impl FileUse {
    /// Bytes of it on media, where files without a code have so many copies.
    pub fn stored_bytes(&self, copies: u8) -> u64 {
        self.code.unwrap_or(Redundancy::copies(copies)).stored(self.bytes)
    }
}

/// Content of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Has {
    /// Nothing: it reads as zeroes.
    Hole,
    /// Zeroes that count as data.
    Zero,
    /// Data.
    Data,
}

/// Blocks that differ between two views, or may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The first byte.
    pub offset: u64,
    /// Bytes; whole blocks.
    pub len: u64,
    /// Their content in the newer view.
    pub now: Has,
    /// Both have data, at different locations: it may be the same data.
    pub perhaps: bool,
}

/// Identity of a block's content: equal ones are the same, different ones may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spot {
    Hole,
    Zero,
    At(FileId, u32),
}

/// A segment, read from its directory.
pub struct View {
    name: String,
    rows: Snapshot,
    /// Existing files: one that was removed since the rows were read has no number.
    files: BTreeMap<FileNo, Option<FileUse>>,
    index: IndexMap,
    pages: BTreeSet<u32>,
}

impl View {
    /// Opens a segment. `NotFound` when the directory is none; `Retry` when it is being changed.
    pub async fn open(env: &Env, store: Rc<dyn Store>) -> Result<View, Fault> {
        let name = store.name().to_owned();
        let seen = View::read(env, store).await?;
        seen.ok_or_else(|| Fault::new(Kind::Retry, format!("{name} is no segment yet")))
    }

    /// Opens a segment, as [`View::open`] does; nothing where no owner has made one yet.
    pub async fn find(env: &Env, store: Rc<dyn Store>) -> Result<Option<View>, Fault> {
        match View::read(env, store).await {
            Err(fault) if fault.kind == Kind::NotFound => Ok(None),
            seen => seen,
        }
    }

    /// Nothing where the directory has a table, and no segment in it.
    async fn read(env: &Env, store: Rc<dyn Store>) -> Result<Option<View>, Fault> {
        let name = store.name().to_owned();
        let rows = Table::open_view(env, store.clone(), &Cache::new(CACHE_BYTES)).await;
        let rows = rows.map_err(|error| cause(&name, &error))?;
        let (files, index, pages) = (BTreeMap::new(), IndexMap::new(), BTreeSet::new());
        let mut view = View { name, rows, files, index, pages };
        let state = view.rows.get(SEGMENT_KEY).await.map_err(|error| cause(&view.name, &error))?;
        let Some(state) = state else { return Ok(None) };
        SegmentState::decode(&state).map_err(|flaw| view.damage(flaw))?;
        view.read_files(&*store).await?;
        view.read_changes(env).await?;
        Ok(Some(view))
    }

    fn damage(&self, flaw: DecodeError) -> Fault {
        match flaw {
            DecodeError::Damaged(what) => {
                Fault::new(Kind::Corrupt, format!("{}: {what}", self.name))
            }
            DecodeError::Version(seen) => Fault::new(
                Kind::Invalid,
                format!("{}: format version {seen}; use the program that wrote it", self.name),
            ),
        }
    }

    async fn read_files(&mut self, store: &dyn Store) -> Result<(), Fault> {
        let (mut found, mut names) = (Vec::new(), Vec::new());
        let mut scan = self.rows.scan(Range::prefix(&[FILE_PREFIX]));
        while let Some((key, value)) =
            scan.next().await.map_err(|error| cause(&self.name, &error))?
        {
            let flaw = DecodeError::Damaged("a DataFile's key is none");
            let number = read_key(&key).and_then(FileNo::new).ok_or_else(|| self.damage(flaw))?;
            let file = FileState::decode(&value).map_err(|flaw| self.damage(flaw))?;
            names.push(number.name(file.generation));
            found.push((number, file));
        }
        let ids = store.numbers(&names).await;
        let ids = ids
            .map_err(|fault| Fault::new(fault.kind, format!("{}: {}", self.name, fault.message)))?;
        for ((number, file), id) in found.into_iter().zip(ids) {
            let (bytes, linked) = (u64::from(file.units) * UNIT, file.clone_source != 0);
            let code = file.code;
            let of = |id| FileUse { file: FileId::new(id), bytes, linked, code };
            self.files.insert(number, id.map(of));
        }
        Ok(())
    }

    /// Merges the TxnFile over the pages, and lists the pages.
    async fn read_changes(&mut self, env: &Env) -> Result<(), Fault> {
        let mut visits = 0;
        let mut scan = self.rows.scan(Range::prefix(&[TXN_PREFIX]));
        while let Some((_, value)) = scan.next().await.map_err(|error| cause(&self.name, &error))? {
            let txn = Txn::decode(&value).map_err(|flaw| self.damage(flaw))?;
            self.index.apply_in_steps(env, &txn.updates, &mut visits).await;
            // Rows of files that are written have their ends as of the last checkpoint.
            for mark in &txn.marks {
                if let Some(Some(file)) = self.files.get_mut(&mark.file) {
                    file.bytes = file.bytes.max(u64::from(mark.end) * UNIT);
                }
            }
        }
        self.pages.extend(self.index.dirty_pages());
        let mut scan = self.rows.scan(Range::prefix(&[PAGE_PREFIX]));
        while let Some((key, _)) = scan.next().await.map_err(|error| cause(&self.name, &error))? {
            let flaw = DecodeError::Damaged("an index page's key is none");
            self.pages.insert(read_key(&key).ok_or_else(|| self.damage(flaw))?);
        }
        Ok(())
    }

    /// Its DataFiles.
    pub fn files(&self) -> impl Iterator<Item = FileUse> {
        self.files.values().flatten().copied()
    }

    fn next_page(&self, page: u32) -> Option<u32> {
        self.pages.range(page..).next().copied()
    }

    async fn page(&mut self, page: u32) -> Result<Vec<Spot>, Fault> {
        if !self.pages.contains(&page) {
            return Ok(vec![Spot::Hole; PAGE_BLOCKS as usize]);
        }
        if !self.index.has_met(page) {
            let stored = self.rows.get(&page_key(page)).await;
            let stored = stored.map_err(|error| cause(&self.name, &error))?;
            let locs = decode_page(stored.as_deref().unwrap_or_default());
            let locs = locs.map_err(|flaw| self.damage(flaw))?;
            self.index.trim(INDEX_BYTES);
            self.index.meet(page, &locs);
        }
        let mut spots = Vec::with_capacity(PAGE_BLOCKS as usize);
        for block in 0..PAGE_BLOCKS {
            let loc = match self.index.get(page * PAGE_BLOCKS + block) {
                Found::Loc(loc) => loc,
                Found::Ask(_) => unreachable!("the page has just met the table"),
            };
            spots.push(match (loc, loc.place()) {
                (_, Some((file, unit))) => {
                    let flaw = DecodeError::Damaged("a block is in a file that is not there");
                    let known = self.files.get(&file).ok_or_else(|| self.damage(flaw))?;
                    let known = known.ok_or_else(|| {
                        let text = format!("{}: a DataFile went while it was read", self.name);
                        Fault::new(Kind::Retry, text)
                    })?;
                    Spot::At(known.file, unit)
                }
                (Loc::ZERO, _) => Spot::Zero,
                _ => Spot::Hole,
            });
        }
        Ok(spots)
    }

    /// Passes to `take`, in order, ranges where this view differs from `older`, or may, in the
    /// first 512 blocks at or behind `page` times as many of which one of them has some. Without an
    /// older view, passes all that is no hole. Returns the page to go on with, nothing at the end.
    pub async fn changes(
        &mut self,
        mut older: Option<&mut View>,
        take: &mut dyn FnMut(Change),
        page: u32,
    ) -> Result<Option<u32>, Fault> {
        let older_next = older.as_deref().and_then(|view| view.next_page(page));
        let next = self.next_page(page).into_iter().chain(older_next).min();
        let Some(page) = next else { return Ok(None) };
        let now = self.page(page).await?;
        let before = match &mut older {
            Some(older) => older.page(page).await?,
            None => vec![Spot::Hole; PAGE_BLOCKS as usize],
        };
        let mut open: Option<Change> = None;
        for (block, (now, before)) in now.iter().zip(&before).enumerate() {
            if now == before {
                continue;
            }
            let has = match now {
                Spot::Hole => Has::Hole,
                Spot::Zero => Has::Zero,
                Spot::At(..) => Has::Data,
            };
            let perhaps = has == Has::Data && matches!(before, Spot::At(..));
            let block = u64::from(page) * u64::from(PAGE_BLOCKS) + block as u64;
            let offset = block * block_volume::limits::BLOCK;
            match &mut open {
                Some(change)
                    if change.offset + change.len == offset
                        && (change.now, change.perhaps) == (has, perhaps) =>
                {
                    change.len += block_volume::limits::BLOCK;
                }
                _ => {
                    let len = block_volume::limits::BLOCK;
                    let next = Change { offset, len, now: has, perhaps };
                    open.replace(next).into_iter().for_each(&mut *take);
                }
            }
        }
        open.into_iter().for_each(take);
        Ok(page.checked_add(1))
    }
}

/// A table that cannot be read.
fn cause(name: &str, error: &table::Error) -> Fault {
    let kind = match error {
        table::Error::NotFound { .. } => Kind::NotFound,
        // It has advanced during the read.
        table::Error::Missing { .. } | table::Error::Fenced { .. } => Kind::Retry,
        other => other.kind(),
    };
    Fault::new(kind, format!("{name}: {error}"))
}
