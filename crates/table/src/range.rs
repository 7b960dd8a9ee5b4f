//! [`Range`]: keys to be read, or shown. Pure.

use std::ops::Bound;

/// Range of keys, and their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// Lower bound.
    pub lower: Bound<Vec<u8>>,
    /// Upper bound.
    pub upper: Bound<Vec<u8>>,
    /// From the last key to the first.
    pub reverse: bool,
}

impl Range {
    /// All keys.
    pub fn all() -> Range {
        Range { lower: Bound::Unbounded, upper: Bound::Unbounded, reverse: false }
    }

    /// Keys from `from` on, below `to`.
    pub fn between(from: &[u8], to: &[u8]) -> Range {
        let (lower, upper) = (Bound::Included(from.to_vec()), Bound::Excluded(to.to_vec()));
        Range { lower, upper, reverse: false }
    }

    /// Keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Range {
        let mut end = prefix.to_vec();
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        let upper = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        Range { lower: Bound::Included(prefix.to_vec()), upper, reverse: false }
    }

    /// The same keys from the last to the first.
    pub fn reversed(mut self) -> Range {
        self.reverse = !self.reverse;
        self
    }
}

/// A bound of borrowed bytes.
pub(crate) fn bound(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Range {
    /// Leaves out the keys before `key` in the range's order.
    pub(crate) fn begin_at(&mut self, key: &[u8]) {
        let begin = if self.reverse { &mut self.upper } else { &mut self.lower };
        let inside = match begin {
            Bound::Unbounded => true,
            Bound::Included(first) | Bound::Excluded(first) if self.reverse => key < &first[..],
            Bound::Included(first) | Bound::Excluded(first) => key > &first[..],
        };
        if inside {
            *begin = Bound::Included(key.to_vec());
        }
    }

    /// True when a key is before another one in the range's order.
    pub(crate) fn is_before(&self, key: &[u8], other: &[u8]) -> bool {
        if self.reverse { key > other } else { key < other }
    }

    /// True when a key, met in the range's order, is not behind its end.
    pub(crate) fn reaches(&self, key: &[u8]) -> bool {
        if self.reverse {
            match bound(&self.lower) {
                Bound::Unbounded => true,
                Bound::Included(low) => key >= low,
                Bound::Excluded(low) => key > low,
            }
        } else {
            match bound(&self.upper) {
                Bound::Unbounded => true,
                Bound::Included(high) => key <= high,
                Bound::Excluded(high) => key < high,
            }
        }
    }
}
