//! [`Splits`]: splits of ranges that have begun, and directories of ranges that are no more, as the catalog has
//! them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use object_proto::{Error, RangeId};

use crate::decisions::{Decisions, damaged};
use crate::keys::{GONE, SPLIT, read_number_key};
use crate::server_row::{SplitRow, decode_number};

/// Splits that have begun, and directories of ranges that are no more or never were.
#[derive(Default)]
pub(crate) struct Splits {
    /// The last number that a range got.
    pub(crate) last: Cell<u64>,
    pub(crate) begun: RefCell<BTreeMap<RangeId, SplitRow>>,
    /// With the time since when.
    pub(crate) gone: RefCell<BTreeMap<RangeId, u64>>,
}

impl Splits {
    /// Of a catalog in which ranges up to `last` are on record.
    pub(crate) async fn open(decisions: &Decisions, last: u64) -> Result<Splits, Error> {
        let splits = Splits { last: Cell::new(last), ..Splits::default() };
        for (key, value) in decisions.all(&[SPLIT]).await? {
            if key == [SPLIT] {
                let given = decode_number(&value).ok_or_else(|| damaged("the number of ranges"))?;
                splits.last.set(last.max(given));
                continue;
            }
            let row = read_number_key(&key).map(RangeId::new).zip(SplitRow::decode(&value));
            let (range, row) = row.ok_or_else(|| damaged("a split's row"))?;
            splits.begun.borrow_mut().insert(range, row);
        }
        for (key, value) in decisions.all(&[GONE]).await? {
            let row = read_number_key(&key).map(RangeId::new).zip(decode_number(&value));
            let (range, since) = row.ok_or_else(|| damaged("the row of a range that is gone"))?;
            splits.gone.borrow_mut().insert(range, since);
        }
        Ok(splits)
    }

    /// Ranges that are being split.
    pub(crate) fn begun(&self) -> usize {
        self.begun.borrow().len()
    }
}
