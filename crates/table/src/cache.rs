//! [`Cache`]: blocks of sorted files in memory, for all tables of a process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::file::Partition;
use crate::format::block::Block;
use crate::limits::CACHE_BYTES_DEFAULT;
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

#[derive(Default)]
struct State {
    entries: BTreeMap<Key, Entry>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, Key>,
    clock: u64,
    bytes: usize,
    tables: u64,
    hits: u64,
    misses: u64,
}

/// Verified blocks, those used last, up to a number of bytes. Clones share it; tables of one
/// process share one.
#[derive(Clone)]
pub struct Cache {
    state: Rc<RefCell<State>>,
    limit: usize,
}

impl Cache {
    /// A cache of `limit` bytes. Blocks that a read is using stay in memory beside it.
    pub fn new(limit: usize) -> Cache {
        Cache { state: Rc::default(), limit }
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.state.borrow().bytes
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
        state.order.remove(&entry.used);
        entry.used = state.clock;
        state.order.insert(state.clock, key);
        Some(entry.what.clone())
    }

    pub(crate) fn insert(&self, key: Key, what: Cached, bytes: usize) {
        if bytes > self.limit {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        state.clock += 1;
        let used = state.clock;
        if let Some(old) = state.entries.insert(key, Entry { what, bytes, used }) {
            state.order.remove(&old.used);
            state.bytes -= old.bytes;
        }
        state.order.insert(used, key);
        state.bytes += bytes;
        while state.bytes > self.limit {
            let (_, oldest) = state.order.pop_first().expect("bytes are in entries");
            let gone = state.entries.remove(&oldest).expect("both have it");
            state.bytes -= gone.bytes;
        }
    }

    /// Drops all parts of a file.
    pub(crate) fn forget_file(&self, table: u64, file: FileNo) {
        let state = &mut *self.state.borrow_mut();
        let range = (table, file, 0)..=(table, file, u64::MAX);
        let keys: Vec<Key> = state.entries.range(range).map(|(key, _)| *key).collect();
        for key in keys {
            let gone = state.entries.remove(&key).expect("just listed");
            state.order.remove(&gone.used);
            state.bytes -= gone.bytes;
        }
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
