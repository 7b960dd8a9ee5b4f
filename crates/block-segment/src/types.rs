//! Locations of blocks, and changes of them.

use std::fmt;

use block_volume::ids::FileNo;
use block_volume::record::{RECORD_UNITS, UNIT};

use super::limits::{CLEAR_PAGE_VISITS, PAGE_BLOCKS};

/// Location of a block's content, in 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Loc(u64);

impl Loc {
    /// No record: never written, or trimmed.
    pub(crate) const HOLE: Loc = Loc(0);
    /// No record: zeroes that count as data.
    pub(crate) const ZERO: Loc = Loc(1);
    /// In memory only: the table's location is not known yet.
    pub(crate) const UNKNOWN: Loc = Loc(2);

    /// A location in a file, in units.
    pub(crate) const fn new(file: FileNo, unit: u32) -> Loc {
        Loc((file.get() as u64) << 32 | unit as u64)
    }

    /// File and unit, when there is a record.
    pub(crate) const fn place(self) -> Option<(FileNo, u32)> {
        match FileNo::new((self.0 >> 32) as u32) {
            Some(file) => Some((file, self.0 as u32)),
            None => None,
        }
    }

    /// The location of the record `count` records behind that one; itself otherwise.
    pub(crate) fn plus(self, count: u32) -> Loc {
        match self.place() {
            Some((file, unit)) => Loc::new(file, unit.wrapping_add(count * RECORD_UNITS)),
            None => self,
        }
    }
}

impl fmt::Debug for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.place()) {
            (_, Some((file, unit))) => write!(f, "{file:?}+{}", u64::from(unit) * UNIT),
            (Loc::HOLE, _) => f.write_str("hole"),
            (Loc::ZERO, _) => f.write_str("zero"),
            _ => f.write_str("unknown"),
        }
    }
}

/// A change of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Update {
    /// Blocks whose records are in order, without gaps.
    Data { lba: u32, count: u32, at: Loc },
    /// A range without data: `to` is a hole or zero.
    Clear { lba: u32, count: u32, to: Loc },
    /// A block whose data was copied, if it is still at `from`.
    Move { lba: u32, from: Loc, to: Loc },
}

impl Update {
    /// Blocks that it sets in the index; each whole page that it clears counts as a few.
    pub(crate) fn visits(&self) -> u64 {
        let (lba, count) = match *self {
            Update::Data { count, .. } => return u64::from(count),
            Update::Move { .. } => return 1,
            Update::Clear { lba, count, .. } => (u64::from(lba), u64::from(count)),
        };
        let page = u64::from(PAGE_BLOCKS);
        let pages = ((lba + count) / page).saturating_sub(lba.div_ceil(page));
        count - pages * page + pages * CLEAR_PAGE_VISITS
    }

    /// Updates of single blocks that take as long to replay.
    fn weight(&self) -> u64 {
        match *self {
            Update::Clear { count, .. } => u64::from(count.div_ceil(PAGE_BLOCKS)),
            _ => 1,
        }
    }
}

/// What updates count of those after which a checkpoint is due: it bounds the time of a replay.
pub(crate) fn replay_weight(updates: &[Update]) -> u64 {
    updates.iter().map(Update::weight).sum()
}

/// Adds an update, to the last one if it continues that. Behind block 2^32 - 1 comes none.
pub(crate) fn merge(updates: &mut Vec<Update>, next: Update) {
    if let (Some(Update::Data { lba, count, at }), Update::Data { lba: to, count: more, at: place }) =
        (updates.last_mut(), next)
        && lba.checked_add(*count) == Some(to)
        && at.plus(*count) == place
    {
        *count += more;
        return;
    }
    updates.push(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_of_the_last_and_the_first_block_are_not_merged() {
        let at = Loc::new(FileNo::new(1).unwrap(), 1);
        let last = Update::Data { lba: u32::MAX, count: 1, at };
        let first = Update::Data { lba: 0, count: 1, at: at.plus(1) };
        let mut updates = vec![last];
        merge(&mut updates, first);
        assert_eq!(updates, [last, first]);
    }

    #[test]
    fn whole_pages_of_a_clear_count_as_a_few_blocks() {
        let clear = |lba, count| Update::Clear { lba, count, to: Loc::HOLE };
        let cases = [
            ((0, 1), (1, 1)),
            ((0, 512), (16, 1)),
            ((1, 512), (512, 1)),
            ((511, 514), (2 + 16, 2)),
            ((5, 1024), (512 + 16, 2)),
            ((0, u32::MAX), (16 * ((1 << 23) - 1) + 511, 1 << 23)),
            ((u32::MAX, 1), (1, 1)),
        ];
        for ((lba, count), want) in cases {
            let update = clear(lba, count);
            assert_eq!((update.visits(), replay_weight(&[update])), want, "{update:?}");
        }
        let data = Update::Data { lba: 0, count: 252, at: Loc::new(FileNo::new(1).unwrap(), 1) };
        assert_eq!((data.visits(), replay_weight(&[data, data])), (252, 2));
    }

    #[test]
    fn locations_decode_to_what_was_encoded() {
        let file = FileNo::new(0x1f).unwrap();
        let loc = Loc::new(file, 7);
        assert_eq!((loc.place(), loc.plus(2)), (Some((file, 7)), Loc::new(file, 137)));
        for none in [Loc::HOLE, Loc::ZERO, Loc::UNKNOWN] {
            assert_eq!((none.place(), none.plus(3)), (None, none));
        }
    }
}
