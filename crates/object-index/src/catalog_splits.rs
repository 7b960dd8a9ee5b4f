//! Splits of ranges on the manager's side (`object-protocols.md` 4.2 and 4.3): what is on record of them, the
//! batch that puts two ranges in the place of one, and the directories that are left.
//!
//! # Why nothing is lost, and nothing decided twice
//!
//! A split is committed by one batch, and only while its range has the epoch under which the owner has made the
//! halves. Another owner needs a later epoch to open the range: with that on record the batch is never made, and
//! the range goes on. With the batch on record the range is in no map, and is never given to anyone.
//!
//! Directories of halves are removed only when their split was withdrawn, which is when its range has another
//! epoch on record: no batch can come that makes ranges of them. Numbers of ranges are never used again, so that
//! a directory's path is its identity.

use object_proto::limits::KEY_MAX;
use object_proto::{CatalogReply, Error, RangeBound, RangeId};
use runtime::Duration;

use crate::catalog::Catalog;
use crate::decisions::{Basis, unix_us};
use crate::keys::{GONE, RANGE, SPLIT, number_key};
use crate::limits::RANGES_MAX;
use crate::paths::{RANGES_DIR, range_dir};
use crate::planted::Planted;
use crate::server_row::{SplitRow, encode_number};

fn outside(at: &RangeBound, range: RangeId) -> Error {
    Error::Invalid {
        message: format!(
            "{at} is not within {range}, behind its first key: 'craton range ls' shows its bounds"
        ),
    }
}

impl Catalog {
    /// Puts on record that the owner of a range, which has this epoch, is about to split it.
    pub(crate) async fn prepare_split(
        &self,
        range: RangeId,
        epoch: u64,
        at: RangeBound,
    ) -> Result<CatalogReply, Error> {
        if at.key.len() > KEY_MAX {
            let message = format!("a bound's key has at most {KEY_MAX} bytes, as keys of objects");
            return Err(Error::Invalid { message });
        }
        let begun = self.splits.begun.borrow().get(&range).cloned();
        // Halves of a split under a former epoch.
        let former: Vec<RangeId> =
            begun.iter().filter(|row| row.epoch != epoch).flat_map(halves).collect();
        let known = begun.filter(|row| row.epoch == epoch);
        let (low, high) = match &known {
            Some(row) => (row.low, row.high),
            None => {
                let last = self.splits.last.get();
                (RangeId::new(last + 1), RangeId::new(last + 2))
            }
        };
        let map = self.map();
        if map.split(range, &at, (low, high)).is_none() {
            return Err(outside(&at, range));
        }
        if map.places().len() >= RANGES_MAX {
            return Err(Error::Invalid { message: format!("there are {RANGES_MAX} ranges") });
        }
        let row = SplitRow { epoch, low, high, at };
        if known.as_ref() != Some(&row) {
            let since = unix_us(&self.env);
            let (_, basis) = self.decisions.submit(|batch, _| {
                batch.put(&[SPLIT], &encode_number(self.splits.last.get().max(high.get())));
                batch.put(&number_key(SPLIT, range.get()), &row.encode());
                for half in &former {
                    batch.put(&number_key(GONE, half.get()), &encode_number(since));
                }
            })?;
            self.splits.gone.borrow_mut().extend(former.iter().map(|half| (*half, since)));
            self.splits.last.set(self.splits.last.get().max(high.get()));
            self.splits.begun.borrow_mut().insert(range, row);
            self.decisions.settled(basis).await?;
        } else {
            self.decisions.settled(self.decisions.last()).await?;
        }
        self.check_lease()?;
        Ok(CatalogReply::Halves { low, high })
    }

    /// The split of a range that an owner has begun under its epoch.
    pub(crate) fn split_of(&self, range: RangeId, epoch: u64) -> Option<SplitRow> {
        let row = self.splits.begun.borrow().get(&range).cloned();
        row.filter(|row| row.epoch == epoch || self.bugs.has(Planted::LateCommit))
    }

    /// Submits two ranges in the place of one, with their rows.
    pub(crate) fn commit_split(
        &self,
        range: RangeId,
        split: &SplitRow,
        rows: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Basis, Error> {
        let map = self.map().split(range, &split.at, (split.low, split.high));
        let map = map.ok_or_else(|| outside(&split.at, range))?;
        let since = unix_us(&self.env);
        let (_, basis) = self.decisions.submit(|batch, _| {
            batch.delete(&number_key(RANGE, range.get()));
            batch.delete(&number_key(SPLIT, range.get()));
            batch.put(&number_key(GONE, range.get()), &encode_number(since));
            for (key, row) in rows {
                batch.put(key, row);
            }
        })?;
        self.splits.begun.borrow_mut().remove(&range);
        self.splits.gone.borrow_mut().insert(range, since);
        self.orders.set_map(map);
        self.env.mark("object: a range is split");
        Ok(basis)
    }

    /// Withdraws splits whose range has another owner than the one that has begun them: that is on record
    /// before, as rows are stored in order.
    pub(crate) async fn withdraw_splits(&self) -> Result<(), Error> {
        let begun: Vec<_> = self.splits.begun.borrow().clone().into_iter().collect();
        for (range, row) in begun {
            let owner = self.orders.ranges.epoch(range);
            let is_stale = owner.is_some_and(|epoch| epoch != row.epoch);
            if !is_stale && !self.bugs.has(Planted::SweepEatsSplit) {
                continue;
            }
            let since = unix_us(&self.env);
            let (_, basis) = self.decisions.submit(|batch, _| {
                batch.delete(&number_key(SPLIT, range.get()));
                for half in halves(&row) {
                    batch.put(&number_key(GONE, half.get()), &encode_number(since));
                }
            })?;
            if !self.bugs.has(Planted::SweepEatsSplit) {
                self.splits.begun.borrow_mut().remove(&range);
            }
            self.splits.gone.borrow_mut().extend(halves(&row).map(|half| (half, since)));
            self.decisions.settled(basis).await?;
            self.env.mark("object: a split is withdrawn");
        }
        Ok(())
    }

    /// Puts directories on record as gone that are of no range, and of no split that has begun: an owner or a gateway of a
    /// range that is no more may have made it again, when it has slept.
    pub(crate) async fn note_left_ranges(&self) -> Result<(), Error> {
        self.check_lease()?;
        let names = self.files.dirs(RANGES_DIR).await;
        let names = names.map_err(|fault| Error::Busy { cause: fault.message })?;
        let mut left: Vec<_> =
            names.iter().filter_map(|name| name.parse().ok()).map(RangeId::new).collect();
        {
            let (map, gone) = (self.map(), self.splits.gone.borrow());
            let begun = self.splits.begun.borrow();
            let halves: Vec<RangeId> = begun.values().flat_map(halves).collect();
            // Numbers of a later manager's ranges are not known here.
            left.retain(|range| {
                let is_known = map.bounds(*range).is_some() || halves.contains(range);
                range.get() <= self.splits.last.get() && !is_known && !gone.contains_key(range)
            });
        }
        if left.is_empty() {
            return Ok(());
        }
        let since = unix_us(&self.env);
        let (_, basis) = self.decisions.submit(|batch, _| {
            for range in &left {
                batch.put(&number_key(GONE, range.get()), &encode_number(since));
            }
        })?;
        // Durable, it shows that no other manager led when they were listed.
        self.decisions.settled(basis).await?;
        self.splits.gone.borrow_mut().extend(left.into_iter().map(|range| (range, since)));
        self.env.mark("object: the directory of a range was made again");
        Ok(())
    }

    /// Removes directories that were of no use for long enough. What fails is left for the next time; returns
    /// the first error.
    pub(crate) async fn remove_gone(&self, age: Duration) -> Result<(), Error> {
        let until = unix_us(&self.env).saturating_sub(age.as_micros() as u64);
        let gone: Vec<_> = self.splits.gone.borrow().clone().into_iter().collect();
        let mut result = Ok(());
        for (range, _) in gone.into_iter().filter(|(_, since)| *since < until) {
            self.check_lease()?;
            result = result.and(self.remove_dir(range).await);
        }
        result
    }

    async fn remove_dir(&self, range: RangeId) -> Result<(), Error> {
        let removed = self.files.remove_dir(&range_dir(range)).await;
        removed.map_err(|fault| Error::Busy { cause: fault.message })?;
        let (_, basis) = self.decisions.submit(|batch, _| {
            batch.delete(&number_key(GONE, range.get()));
        })?;
        self.splits.gone.borrow_mut().remove(&range);
        self.decisions.settled(basis).await?;
        self.env.mark("object: the directory of a range is removed");
        Ok(())
    }
}

fn halves(row: &SplitRow) -> impl Iterator<Item = RangeId> + use<> {
    [row.low, row.high].into_iter()
}
