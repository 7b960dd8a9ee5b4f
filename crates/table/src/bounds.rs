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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::KEY_MAX;

    /// All keys of up to four bytes of two kinds.
    fn keys() -> Vec<Vec<u8>> {
        let mut all = vec![vec![]];
        for len in 1..=4 {
            let longer = |key: &Vec<u8>| [0, 255].map(|byte| [key.as_slice(), &[byte]].concat());
            let next: Vec<_> = all.iter().filter(|key| key.len() + 1 == len).collect();
            let next: Vec<_> = next.into_iter().flat_map(longer).collect();
            all.extend(next);
        }
        all.sort();
        all
    }

    fn end() -> impl Strategy<Value = Bound<Vec<u8>>> {
        let key = || prop::sample::select(keys());
        prop_oneof![
            1 => Just(Bound::Unbounded),
            4 => key().prop_map(Bound::Included),
            4 => key().prop_map(Bound::Excluded),
        ]
    }

    fn ranges() -> impl Strategy<Value = Vec<Range>> {
        let range =
            (end(), end()).prop_map(|(lower, upper)| Range { lower, upper, reverse: false });
        prop::collection::vec(range, 0..5)
    }

    fn is_in(range: &Range, key: &[u8]) -> bool {
        use std::ops::RangeBounds;
        let ends = (range.lower.as_ref(), range.upper.as_ref());
        let ends = (ends.0.map(Vec::as_slice), ends.1.map(Vec::as_slice));
        RangeBounds::<[u8]>::contains(&ends, key)
    }

    proptest! {
        /// Bounds have the keys of their ranges, in one form, and answer what is near them.
        #[test]
        fn bounds_have_the_keys_of_their_ranges(ranges in ranges()) {
            let bounds = Bounds::of(&ranges);
            let again = Bounds::from_ranges(bounds.ranges.clone());
            prop_assert_eq!(again.as_ref(), Some(&bounds));
            let has = |key: &[u8]| ranges.iter().any(|range| is_in(range, key));
            // The empty one is no key.
            let keys: Vec<_> = keys().into_iter().skip(1).collect();
            for (index, key) in keys.iter().enumerate() {
                prop_assert_eq!(bounds.has(key), has(key), "{:?}", key);
                // Places between the keys of the test may be shown, too.
                let next = bounds.next(key).map(<[u8]>::to_vec);
                let above = keys[index..].iter().find(|key| has(key));
                prop_assert!(next.as_ref().is_none_or(|next| next >= key && bounds.has(next)));
                match (&next, above) {
                    (Some(next), Some(above)) => prop_assert!(next <= above),
                    (None, Some(above)) => prop_assert!(false, "{:?} is not met", above),
                    _ => {}
                }
                for inclusive in [false, true] {
                    let below = keys[..index + usize::from(inclusive)].iter().rev();
                    let below = below.filter(|key| has(key)).max();
                    match (bounds.before(key, inclusive), below) {
                        (Some((at, at_it)), Some(below)) => {
                            let below = below.as_slice();
                            prop_assert!(at > below || at_it && at == below);
                            let key = key.as_slice();
                            prop_assert!(at <= key && (inclusive || at < key || !at_it));
                        }
                        (None, Some(below)) => prop_assert!(false, "{:?} is not met", below),
                        _ => {}
                    }
                }
                for last in &keys[index..] {
                    let within = keys[index..].iter().take_while(|key| *key <= last);
                    let shown = within.clone().filter(|key| has(key)).count();
                    prop_assert!(shown == 0 || bounds.meets(key, last));
                    prop_assert!(!bounds.covers(key, last) || shown == within.count());
                }
            }
        }

        /// Both sets' keys, in the form of a set.
        #[test]
        fn intersection_has_the_keys_of_both(a in ranges(), b in ranges()) {
            let (a, b) = (Bounds::of(&a), Bounds::of(&b));
            let both = a.intersect(&b);
            prop_assert_eq!(&both, &b.intersect(&a));
            prop_assert_eq!(&both.intersect(&a), &both);
            let again = Bounds::from_ranges(both.ranges.clone());
            prop_assert_eq!(again.as_ref(), Some(&both));
            for key in keys().iter().skip(1) {
                prop_assert_eq!(both.has(key), a.has(key) && b.has(key), "{:?}", key);
            }
        }
    }

    #[test]
    fn ends_beyond_the_longest_key_are_cut_and_mean_the_same() {
        let long = |last: u8, len: usize| [&vec![7; KEY_MAX][..], &vec![last; len]].concat();
        let of = |from: &[u8], to: &[u8]| Bounds::of(&[Range::between(from, to)]);
        let key = vec![7; KEY_MAX];
        assert!(!of(&long(0, 1), &[8]).has(&key) && !of(&long(9, 100), &[8]).has(&key));
        assert!(of(&[7], &long(0, 1)).has(&key) && of(&[7], &long(9, 100)).has(&key));
        let set = of(&long(9, 100), &[8]);
        assert_eq!(set.ranges()[0].low.len(), BOUND_BYTES_MAX);
    }

    #[test]
    fn sets_have_a_bound_together() {
        let set = |from: u32, count: u32| {
            let at = |n: u32| (2 * n).to_be_bytes();
            let one = |n: u32| Range::between(&at(n), &(2 * n + 1).to_be_bytes());
            Bounds::of(&(from..from + count).map(one).collect::<Vec<_>>())
        };
        let most = BOUNDS_RANGES_MAX as u32;
        let mut all = BoundsSet::default();
        assert_eq!(all.number_for(set(0, most - 1)), Ok(1));
        assert_eq!(all.number_for(set(0, most - 1)), Ok(1), "it is there");
        assert!(all.number_for(set(1, 2)).is_err());
        assert_eq!(all.number_for(set(1, 1)), Ok(2));
        assert!(all.add(2, Bounds::default()).is_err() && all.add(0, Bounds::default()).is_err());
        assert!(all.bound_log(FileNo::new(1, 1), 3).is_err());
    }
}
