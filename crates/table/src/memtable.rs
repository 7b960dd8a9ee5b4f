//! [`Memtable`]: changes in memory, in order of keys.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use crate::format::edit::DataLog;
use crate::limits::ENTRY_OVERHEAD;
use crate::types::Seq;

/// A version of a key, newest last in its list.
type KeyVersion = (Seq, Option<Rc<[u8]>>);

/// Changes of a range of sequences. Written by one, read by many; frozen by not being written.
#[derive(Debug)]
pub(crate) struct Memtable {
    keys: RefCell<BTreeMap<Box<[u8]>, Vec<KeyVersion>>>,
    bytes: Cell<usize>,
    /// First and last sequence given to a change in it.
    range: Cell<Option<(Seq, Seq)>>,
    /// Logs that its changes are in, up to where: known when no more come.
    logs: RefCell<Vec<DataLog>>,
    /// Later changes are in the last of these too.
    goes_on: Cell<bool>,
}

impl Memtable {
    pub(crate) fn new(logs: Vec<DataLog>) -> Memtable {
        Memtable {
            keys: RefCell::default(),
            bytes: Cell::new(0),
            range: Cell::new(None),
            logs: RefCell::new(logs),
            goes_on: Cell::new(false),
        }
    }

    pub(crate) fn logs(&self) -> Vec<DataLog> {
        self.logs.borrow().clone()
    }

    pub(crate) fn set_logs(&self, logs: Vec<DataLog>, goes_on: bool) {
        *self.logs.borrow_mut() = logs;
        self.goes_on.set(goes_on);
    }

    /// True when later changes are in the last of its logs too.
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on.get()
    }

    /// Memory it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    pub(crate) fn range(&self) -> Option<(Seq, Seq)> {
        self.range.get()
    }

    /// Counts a change above all before it of which nothing is to be seen.
    pub(crate) fn pass(&self, seq: Seq) {
        let first = self.range.get().map_or(seq, |(first, _)| first);
        self.range.set(Some((first, seq)));
    }

    /// Adds a change above all before it. The version it replaces is dropped when `unseen` is true
    /// of both sequences: no snapshot sees the older one.
    pub(crate) fn insert(
        &self,
        seq: Seq,
        key: &[u8],
        value: Option<&[u8]>,
        unseen: impl Fn(Seq, Seq) -> bool,
    ) {
        self.pass(seq);
        let keys = &mut *self.keys.borrow_mut();
        let mut bytes = self.bytes.get();
        let size = |value: &Option<Rc<[u8]>>| value.as_ref().map_or(0, |value| value.len()) + 24;
        let value: Option<Rc<[u8]>> = value.map(Rc::from);
        bytes += size(&value);
        match keys.get_mut(key) {
            Some(versions) => {
                let newest = versions.last().expect("never empty");
                assert!(newest.0 < seq, "sequences rise");
                if unseen(newest.0, seq) {
                    let (_, old) = versions.pop().expect("just seen");
                    bytes -= size(&old);
                }
                versions.push((seq, value));
            }
            None => {
                bytes += key.len() + ENTRY_OVERHEAD;
                keys.insert(key.into(), vec![(seq, value)]);
            }
        }
        self.bytes.set(bytes);
    }

    /// The newest version of a key at or below `seq`.
    pub(crate) fn get(&self, key: &[u8], seq: Seq) -> Option<KeyVersion> {
        let keys = self.keys.borrow();
        keys.get(key)?.iter().rev().find(|version| version.0 <= seq).cloned()
    }

    /// The newest version of each key that was not deleted, in order.
    pub(crate) fn each(&self, mut see: impl FnMut(&[u8], &[u8])) {
        for (key, versions) in self.keys.borrow().iter() {
            if let Some((_, Some(value))) = versions.last() {
                see(key, value);
            }
        }
    }

    /// The first key within bounds, or the last.
    pub(crate) fn next_key(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        reverse: bool,
    ) -> Option<Box<[u8]>> {
        if is_empty(lower, upper) {
            return None;
        }
        let keys = self.keys.borrow();
        let mut range = keys.range::<[u8], _>((lower, upper));
        let found = if reverse { range.next_back() } else { range.next() };
        found.map(|(key, _)| key.clone())
    }

    /// The keys behind `after` with their versions, up to `limit` of them.
    pub(crate) fn page(
        &self,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Vec<(Box<[u8]>, Vec<KeyVersion>)> {
        let keys = self.keys.borrow();
        let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = keys.range::<[u8], _>((lower, Bound::Unbounded));
        range.take(limit).map(|(key, versions)| (key.clone(), versions.clone())).collect()
    }
}

/// True when no key can be within the bounds (where a map's range would panic).
pub(crate) fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Excluded(low), Bound::Included(high))
        | (Bound::Included(low) | Bound::Excluded(low), Bound::Excluded(high)) => low >= high,
        _ => false,
    }
}
