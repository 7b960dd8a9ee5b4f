//! [`Logs`]: how much of the data in the range's logs no object names any more
//! (`object-protocols.md` 5.2, 10.1).
//!
//! What an object's data was when its batch had no place yet is counted in memory alone. So the row of a
//! log says whether its count is whole: it is once the log is ended, and an owner that has written all
//! of it has said so. Otherwise a later owner counts.

use std::cell::RefCell;
use std::collections::BTreeMap;

use table::Place;

use crate::row::LogRow;

#[derive(Default)]
pub(crate) struct Logs {
    rows: RefCell<BTreeMap<u64, LogRow>>,
    /// Data that was replaced before its batch had a place, by that batch.
    unplaced: RefCell<BTreeMap<u64, u64>>,
}

impl Logs {
    /// A row that was read or submitted.
    pub(crate) fn known(&self, log: u64, row: LogRow) {
        self.rows.borrow_mut().insert(log, row);
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
        }
    }

    /// A log is gone.
    pub(crate) fn forget(&self, log: u64) {
        self.rows.borrow_mut().remove(&log);
    }
}
