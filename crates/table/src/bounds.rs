//! [`Bounds`]: the keys that a reference to a file shows. Pure.
//!
//! Files are shared by tables that came from one by a fork. What a table shows of a shared file is said
//! by its reference to it, in its manifest, and not by the table's own keys: a file that was inherited
//! for keys below `m` shows none of those above, even if the table has these by another way. Else rows
//! that the other side of a fork has deleted long ago would come back when both sides are joined.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use crate::limits::{BOUND_BYTES_MAX, BOUNDS_RANGES_MAX};
use crate::range::Range;
use crate::types::FileNo;

/// Keys from `low` on and below `high`; an empty `high` is no end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyRange {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Vec<u8>,
}

impl KeyRange {
    fn is_below_end(&self, key: &[u8]) -> bool {
        self.high.is_empty() || key < self.high.as_slice()
    }
}

/// A set of keys: ranges in order, none of which touches the next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bounds {
    ranges: Vec<KeyRange>,
}

impl Bounds {
    /// The keys of some ranges, in any order; their direction has no meaning.
    pub(crate) fn of(ranges: &[Range]) -> Bounds {
        let successor = |key: &[u8]| [key, &[0]].concat();
        let mut found = Vec::new();
        for range in ranges {
            let mut low = match &range.lower {
                Bound::Unbounded => Vec::new(),
                Bound::Included(low) => low.clone(),
                Bound::Excluded(low) => successor(low),
            };
            let mut high = match &range.upper {
                Bound::Unbounded => Vec::new(),
                Bound::Included(high) => successor(high),
                Bound::Excluded(high) if high.is_empty() => continue,
                Bound::Excluded(high) => high.clone(),
            };
            // No key is longer than one byte less: of keys, the rest says nothing.
            low.truncate(BOUND_BYTES_MAX);
            high.truncate(BOUND_BYTES_MAX);
            if high.is_empty() || low < high {
                found.push(KeyRange { low, high });
            }
        }
        found.sort_by(|a, b| a.low.cmp(&b.low));
        let mut bounds = Bounds::default();
        found.into_iter().for_each(|range| bounds.push(range));
        bounds
    }

    /// Adds a range that begins no lower than the last one.
    fn push(&mut self, range: KeyRange) {
        match self.ranges.last_mut() {
            Some(last) if last.high.is_empty() => {}
            Some(last) if last.high >= range.low => {
                if range.high.is_empty() || range.high > last.high {
                    last.high = range.high;
                }
            }
            _ => self.ranges.push(range),
        }
    }

    /// The ranges as a manifest has them; none if they are not in the one form that a set has.
    pub(crate) fn from_ranges(ranges: Vec<KeyRange>) -> Option<Bounds> {
        let is_one = |range: &KeyRange| range.high.is_empty() || range.low < range.high;
        let apart = |pair: &[KeyRange]| !pair[0].high.is_empty() && pair[0].high < pair[1].low;
        let fits = ranges.iter().all(is_one) && ranges.windows(2).all(apart);
        fits.then_some(Bounds { ranges })
    }

    pub(crate) fn ranges(&self) -> &[KeyRange] {
        &self.ranges
    }

    /// True when it has the key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.next(key) == Some(key)
    }

    /// The lowest place for a key in it at or above one.
    pub(crate) fn next<'a>(&'a self, key: &'a [u8]) -> Option<&'a [u8]> {
        let above = self.ranges.partition_point(|range| range.low.as_slice() <= key);
        let within = above.checked_sub(1).map(|index| &self.ranges[index]);
        if within.is_some_and(|range| range.is_below_end(key)) {
            return Some(key);
        }
        self.ranges.get(above).map(|range| range.low.as_slice())
    }

    /// The highest place for a key in it below one, or at it when `inclusive`; whether a key may be
    /// at that place itself.
    pub(crate) fn before<'a>(&'a self, key: &'a [u8], inclusive: bool) -> Option<(&'a [u8], bool)> {
        let begins = |range: &KeyRange| match inclusive {
            true => range.low.as_slice() <= key,
            false => range.low.as_slice() < key,
        };
        let above = self.ranges.partition_point(begins);
        let range = &self.ranges[above.checked_sub(1)?];
        let reaches = range.is_below_end(key) || !inclusive && range.high == key;
        Some(if reaches { (key, inclusive) } else { (&range.high, false) })
    }

    /// True when it has a place for a key from `first` to `last`.
    pub(crate) fn meets(&self, first: &[u8], last: &[u8]) -> bool {
        self.next(first).is_some_and(|next| next <= last)
    }

    /// True when it has all keys from `first` to `last`.
    pub(crate) fn covers(&self, first: &[u8], last: &[u8]) -> bool {
        let above = self.ranges.partition_point(|range| range.low.as_slice() <= first);
        above.checked_sub(1).is_some_and(|index| self.ranges[index].is_below_end(last))
    }

    /// The keys that both have.
    pub(crate) fn intersect(&self, other: &Bounds) -> Bounds {
        let (mut left, mut right) = (0, 0);
        let mut both = Bounds::default();
        while let (Some(a), Some(b)) = (self.ranges.get(left), other.ranges.get(right)) {
            let low = (&a.low).max(&b.low).clone();
            let a_ends = !a.high.is_empty() && (b.high.is_empty() || a.high <= b.high);
            let high = if a_ends { &a.high } else { &b.high };
            if high.is_empty() || low < *high {
                both.ranges.push(KeyRange { low, high: high.clone() });
            }
            if a_ends {
                left += 1;
            } else {
                right += 1;
            }
        }
        both
    }
}

/// The bounds of a table's references: each set of keys is kept once, and references name its number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct BoundsSet {
    sets: BTreeMap<u32, Rc<Bounds>>,
    /// Sets of logs that do not show all of their keys.
    logs: BTreeMap<FileNo, u32>,
}

impl BoundsSet {
    /// The keys that a number stands for; 0 stands for all.
    pub(crate) fn get(&self, number: u32) -> Option<&Rc<Bounds>> {
        self.sets.get(&number)
    }

    /// The keys that a log shows, if these are not all.
    pub(crate) fn of_log(&self, log: FileNo) -> Option<&Rc<Bounds>> {
        self.get(self.number_of_log(log))
    }

    pub(crate) fn number_of_log(&self, log: FileNo) -> u32 {
        self.logs.get(&log).copied().unwrap_or(0)
    }

    /// True when every number stands for something.
    pub(crate) fn knows(&self, number: u32) -> bool {
        number == 0 || self.sets.contains_key(&number)
    }

    /// Adds a set; the error names the fact that does not fit.
    pub(crate) fn add(&mut self, number: u32, bounds: Bounds) -> Result<(), &'static str> {
        if number == 0 || self.sets.contains_key(&number) {
            return Err("bounds have the number of others");
        }
        let others: usize = self.sets.values().map(|set| set.ranges.len()).sum();
        if others + bounds.ranges.len() > BOUNDS_RANGES_MAX {
            return Err("its bounds have more ranges than any may");
        }
        self.sets.insert(number, Rc::new(bounds));
        Ok(())
    }

    /// The number of a set, which is added unless it is there.
    pub(crate) fn number_for(&mut self, bounds: Bounds) -> Result<u32, &'static str> {
        if let Some((&number, _)) = self.sets.iter().find(|(_, set)| ***set == bounds) {
            return Ok(number);
        }
        let number = self.sets.last_key_value().map_or(1, |(&last, _)| last + 1);
        self.add(number, bounds)?;
        Ok(number)
    }

    /// Has a log show the keys of a set alone.
    pub(crate) fn bound_log(&mut self, log: FileNo, number: u32) -> Result<(), &'static str> {
        if self.get(number).is_none() {
            return Err("a log has bounds that are not there");
        }
        match self.logs.insert(log, number) {
            None => Ok(()),
            Some(_) => Err("a log has bounds twice"),
        }
    }

    /// The log is not referred to any more.
    pub(crate) fn forget_log(&mut self, log: FileNo) {
        self.logs.remove(&log);
    }

    /// The sets with their numbers.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (u32, &Rc<Bounds>)> {
        self.sets.iter().map(|(&number, set)| (number, set))
    }
}
