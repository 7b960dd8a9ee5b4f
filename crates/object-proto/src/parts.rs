//! Numbers of parts, IDs of uploads, and the map of a completed object's parts (`object-protocols.md` 8).

use std::fmt;
use std::ops::Range;

use crate::ids::Stamp;
use crate::limits::PARTS_MAX;

/// A multipart upload of a key: the commit that began it, and a number that was drawn for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UploadId {
    /// The commit that began it: no two uploads of a key have the same.
    pub stamp: Stamp,
    /// Random: an ID cannot be guessed from the time.
    pub nonce: u64,
}

impl UploadId {
    /// From its text; `None` for any other text.
    pub fn parse(text: &str) -> Option<UploadId> {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != 32 || !digits {
            return None;
        }
        let (stamp, nonce) = text.split_at(16);
        let stamp = Stamp::new(u64::from_str_radix(stamp, 16).ok()?);
        Some(UploadId { stamp, nonce: u64::from_str_radix(nonce, 16).ok()? })
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.stamp.get(), self.nonce)
    }
}

/// Number of a part: 1 to 10,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PartNumber(u16);

impl PartNumber {
    /// A number within its bounds.
    pub fn new(number: u64) -> Option<PartNumber> {
        let number = u16::try_from(number).ok()?;
        (1..=PARTS_MAX).contains(&number).then_some(PartNumber(number))
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PartNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parts of one size with numbers that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartRun {
    /// The first number.
    pub first: u16,
    /// Parts.
    pub count: u16,
    /// Bytes of each.
    pub size: u64,
}

/// The parts that a completed object consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartMap {
    /// The upload that they are parts of.
    pub upload: UploadId,
    runs: Vec<PartRun>,
}

impl PartMap {
    /// A map of parts with their sizes, in order of numbers.
    pub fn of(upload: UploadId, parts: impl IntoIterator<Item = (PartNumber, u64)>) -> PartMap {
        let mut runs: Vec<PartRun> = Vec::new();
        for (number, size) in parts {
            let number = number.get();
            match runs.last_mut() {
                Some(run) if run.size == size && run.first + run.count == number => run.count += 1,
                _ => runs.push(PartRun { first: number, count: 1, size }),
            }
        }
        PartMap { upload, runs }
    }

    /// From its runs; `None` unless their numbers are within bounds and ascend.
    pub fn from_runs(upload: UploadId, runs: Vec<PartRun>) -> Option<PartMap> {
        let mut next = 1;
        for run in &runs {
            let end = run.first.checked_add(run.count)?;
            if run.count == 0 || run.first < next || end > PARTS_MAX + 1 {
                return None;
            }
            next = end;
        }
        let map = PartMap { upload, runs };
        map.checked_size().map(|_| map)
    }

    /// Its runs.
    pub fn runs(&self) -> &[PartRun] {
        &self.runs
    }

    fn checked_size(&self) -> Option<u64> {
        self.runs
            .iter()
            .try_fold(0u64, |sum, run| sum.checked_add(run.size.checked_mul(u64::from(run.count))?))
    }

    /// Bytes of all parts.
    pub fn size(&self) -> u64 {
        self.runs.iter().map(|run| run.size * u64::from(run.count)).sum()
    }

    /// Number of parts.
    pub fn count(&self) -> u32 {
        self.runs.iter().map(|run| u32::from(run.count)).sum()
    }

    /// True when a number is one of the object's parts.
    pub fn has(&self, number: u16) -> bool {
        self.runs.iter().any(|run| (run.first..run.first + run.count).contains(&number))
    }

    /// Bytes of the object that a part is.
    pub fn range(&self, number: PartNumber) -> Option<Range<u64>> {
        let mut start = 0;
        for run in &self.runs {
            if let Some(before) = number.get().checked_sub(run.first)
                && before < run.count
            {
                let start = start + run.size * u64::from(before);
                return Some(start..start + run.size);
            }
            start += run.size * u64::from(run.count);
        }
        None
    }

    /// The parts that have bytes of a range of the object, with their own ranges of the object.
    pub fn within(&self, range: Range<u64>) -> Vec<(PartNumber, Range<u64>)> {
        let (mut found, mut start) = (Vec::new(), 0);
        if range.is_empty() {
            return found;
        }
        for run in self.runs.iter().filter(|run| run.size > 0) {
            let end = start + run.size * u64::from(run.count);
            if start < range.end && end > range.start {
                let first = range.start.saturating_sub(start) / run.size;
                let last = (range.end.min(end) - start).div_ceil(run.size);
                for at in first..last {
                    let from = start + at * run.size;
                    found.push((PartNumber(run.first + at as u16), from..from + run.size));
                }
            }
            start = end;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: UploadId = UploadId { stamp: Stamp::new(1_000_000), nonce: 0xfeed };

    #[test]
    fn an_id_reads_back_and_nothing_else_is_one() {
        assert_eq!(ID.to_string(), "00000000000f4240000000000000feed");
        assert_eq!(UploadId::parse(&ID.to_string()), Some(ID));
        for text in ["", "0", "+0000000000f4240000000000000feed", &ID.to_string().to_uppercase()] {
            assert_eq!(UploadId::parse(text), None, "{text:?}");
        }
        assert_eq!(UploadId::parse(&"ä".repeat(16)), None);
    }

    #[test]
    fn numbers_are_bounded() {
        assert_eq!(PartNumber::new(0), None);
        assert_eq!(PartNumber::new(10_000).map(PartNumber::get), Some(10_000));
        assert_eq!(PartNumber::new(10_001), None);
        assert_eq!(PartNumber::new(u64::MAX), None);
    }

    #[test]
    fn runs_that_cannot_be_are_refused() {
        let run = |first, count, size| PartRun { first, count, size };
        let from = |runs: &[PartRun]| PartMap::from_runs(ID, runs.to_vec()).is_some();
        assert!(from(&[run(1, 10_000, 5 << 30)]));
        assert!(from(&[]));
        for bad in [
            &[run(0, 1, 1)][..],
            &[run(1, 0, 1)],
            &[run(1, 10_001, 1)],
            &[run(2, u16::MAX, 1)],
            &[run(2, 2, 1), run(3, 1, 1)],
            &[run(1, 2, u64::MAX)],
        ] {
            assert!(!from(bad), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_map_says_where_each_byte_is(
            parts in prop::collection::btree_map(1u16..40, 0u64..4, 0..20),
            start in 0u64..60, len in 0u64..60,
        ) {
            let parts: Vec<_> = parts
                .into_iter()
                .map(|(number, size)| (PartNumber::new(number.into()).unwrap(), size))
                .collect();
            let map = PartMap::of(ID, parts.clone());
            prop_assert_eq!(PartMap::from_runs(ID, map.runs().to_vec()), Some(map.clone()));
            prop_assert_eq!(map.count() as usize, parts.len());
            let (mut at, mut within) = (0, Vec::new());
            for (number, size) in parts {
                let range = at..at + size;
                prop_assert_eq!(map.range(number), Some(range.clone()));
                prop_assert!(map.has(number.get()));
                at = range.end;
                if range.start.max(start) < range.end.min(start + len) {
                    within.push((number, range));
                }
            }
            prop_assert_eq!(map.size(), at);
            prop_assert_eq!(map.within(start..start + len), within);
        }
    }
}
