//! [`Logs`]: how much of the data in the range's logs no object names any more
//! (`object-protocols.md` 5.2, 10.1).
//!
//! The counts are hints: they say which log is worth a pass, and that pass decides. A count that is
//! not durable is lost with its owner; it is of a log that was written just then, which the next owner
//! counts again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use table::Place;

use crate::row::LogRow;

#[derive(Default)]
pub(crate) struct Logs {
    rows: RefCell<BTreeMap<u64, LogRow>>,
    /// Logs whose rows are not in the table as they are here.
    changed: RefCell<BTreeSet<u64>>,
    /// Data that was replaced before its batch had a place, by that batch.
    unplaced: RefCell<BTreeMap<u64, u64>>,
}

impl Logs {
    /// A row that was read or submitted.
    pub(crate) fn known(&self, log: u64, row: LogRow) {
        self.rows.borrow_mut().insert(log, row);
        self.changed.borrow_mut().remove(&log);
    }

    /// What is known of a log.
    pub(crate) fn row(&self, log: u64) -> LogRow {
        self.rows.borrow().get(&log).copied().unwrap_or_default()
    }

    /// Logs that are known, in order.
    pub(crate) fn all(&self) -> Vec<(u64, LogRow)> {
        self.rows.borrow().iter().map(|(log, row)| (*log, *row)).collect()
    }

    /// Data of a batch that is in no log yet was replaced.
    pub(crate) fn will_have_died(&self, batch: u64, bytes: u64) {
        *self.unplaced.borrow_mut().entry(batch).or_default() += bytes;
    }

    /// A batch is in a log.
    pub(crate) fn placed(&self, batch: u64, places: &[Place]) {
        let dead = self.unplaced.borrow_mut().remove(&batch);
        if let (Some(bytes), Some(place)) = (dead, places.first()) {
            self.rows.borrow_mut().entry(place.log()).or_default().dead += bytes;
            self.changed.borrow_mut().insert(place.log());
        }
    }

    /// A log whose row is not in the table as it is here.
    pub(crate) fn first_changed(&self) -> Option<u64> {
        self.changed.borrow().first().copied()
    }

    /// A log is gone.
    pub(crate) fn forget(&self, log: u64) {
        self.rows.borrow_mut().remove(&log);
        self.changed.borrow_mut().remove(&log);
    }
}
