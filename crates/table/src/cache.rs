//! [`Cache`]: blocks of sorted files in memory, for all tables of a process.
//!
//! Partitions stay while they take half of it at most: without one a look-up costs two reads, and
//! one of them covers 200 data blocks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::file::Partition;
use crate::format::block::Block;
use crate::limits::{CACHE_BYTES_DEFAULT, WRITE_MEMORY_MIN};
use crate::memory::Writes;
use crate::types::FileNo;

/// A part of a file in the cache.
#[derive(Clone, Debug)]
pub(crate) enum Cached {
    Data(Rc<Block>),
    Partition(Rc<Partition>),
}

/// Table, file and offset.
type Key = (u64, FileNo, u64);

struct Entry {
    what: Cached,
    bytes: usize,
    used: u64,
}

/// Entries of one kind.
#[derive(Default)]
struct Order {
    /// Keys by the time of their last use.
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
}

#[derive(Default)]
struct CacheState {
    entries: BTreeMap<Key, Entry>,
    data: Order,
    partitions: Order,
    clock: u64,
    tables: u64,
    hits: u64,
    misses: u64,
}

/// Verified blocks, those used last, up to a number of bytes; and the memory of changes that are
/// in no sorted file yet. Clones share both; tables of one process share one.
#[derive(Clone)]
pub struct Cache {
    state: Rc<RefCell<CacheState>>,
    limit: usize,
    writes: Rc<Writes>,
}

impl Cache {
    /// A cache of `limit` bytes. Blocks that a read is using stay in memory beside it.
    pub fn new(limit: usize) -> Cache {
        Cache { state: Rc::default(), limit, writes: Rc::new(Writes::new(usize::MAX)) }
    }

    /// The same with a bound of the memory that changes of all its tables take together, beside the
    /// bound of each: [`crate::limits::WRITE_MEMORY_MIN`] at least. To be set before the first
    /// table is opened.
    pub fn with_write_memory(self, bytes: usize) -> Cache {
        Cache { writes: Rc::new(Writes::new(bytes.max(WRITE_MEMORY_MIN))), ..self }
    }

    /// Another cache of `limit` bytes, whose tables share the memory of changes with those of
    /// this one.
    pub fn beside(&self, limit: usize) -> Cache {
        Cache { state: Rc::default(), limit, writes: self.writes.clone() }
    }

    /// Bytes that changes of its tables take in memory.
    pub fn write_bytes(&self) -> usize {
        self.writes.bytes()
    }

    pub(crate) fn writes(&self) -> &Rc<Writes> {
        &self.writes
    }

    /// Bytes that it may have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.state.borrow().bytes()
    }

    /// Look-ups that found their block, and those that did not, so far.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        let state = self.state.borrow();
        (state.hits, state.misses)
    }

    /// A number for one more table.
    pub(crate) fn register(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        state.tables += 1;
        state.tables
    }

    pub(crate) fn get(&self, key: Key) -> Option<Cached> {
        let state = &mut *self.state.borrow_mut();
        let Some(entry) = state.entries.get_mut(&key) else {
            state.misses += 1;
            return None;
        };
        state.hits += 1;
        state.clock += 1;
        let (was, what) = (std::mem::replace(&mut entry.used, state.clock), entry.what.clone());
        let now = state.clock;
        let order = state.order(&what);
        order.by_use.remove(&was);
        order.by_use.insert(now, key);
        Some(what)
    }

    pub(crate) fn insert(&self, key: Key, what: Cached, bytes: usize) {
        if bytes > self.limit {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        state.drop_entry(key);
        state.clock += 1;
        let used = state.clock;
        let order = state.order(&what);
        order.by_use.insert(used, key);
        order.bytes += bytes;
        state.entries.insert(key, Entry { what, bytes, used });
        while state.bytes() > self.limit {
            let stay = state.partitions.bytes <= self.limit / 2;
            let first = |order: &Order| order.by_use.first_key_value().map(|(_, key)| *key);
            let data = first(&state.data).filter(|_| stay);
            let oldest = data.or_else(|| first(&state.partitions));
            state.drop_entry(oldest.expect("bytes are in entries"));
        }
    }

    /// Drops all parts of a file.
    pub(crate) fn forget_file(&self, table: u64, file: FileNo) {
        let state = &mut *self.state.borrow_mut();
        let range = (table, file, 0)..=(table, file, u64::MAX);
        let keys: Vec<Key> = state.entries.range(range).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| state.drop_entry(key));
    }
}

impl CacheState {
    fn bytes(&self) -> usize {
        self.data.bytes + self.partitions.bytes
    }

    fn order(&mut self, what: &Cached) -> &mut Order {
        match what {
            Cached::Data(_) => &mut self.data,
            Cached::Partition(_) => &mut self.partitions,
        }
    }

    fn drop_entry(&mut self, key: Key) {
        let Some(gone) = self.entries.remove(&key) else { return };
        let order = self.order(&gone.what);
        order.by_use.remove(&gone.used);
        order.bytes -= gone.bytes;
    }
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::new(CACHE_BYTES_DEFAULT)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({} of {} bytes)", self.bytes(), self.limit)
    }
}
