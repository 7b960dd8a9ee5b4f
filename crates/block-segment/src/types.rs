//! Locations of blocks, and changes of them.

use std::fmt;

use block_volume::ids::FileNo;
use block_volume::record::{RECORD_UNITS, UNIT};

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
    fn locations_decode_to_what_was_encoded() {
        let file = FileNo::new(0x1f).unwrap();
        let loc = Loc::new(file, 7);
        assert_eq!((loc.place(), loc.plus(2)), (Some((file, 7)), Loc::new(file, 137)));
        for none in [Loc::HOLE, Loc::ZERO, Loc::UNKNOWN] {
            assert_eq!((none.place(), none.plus(3)), (None, none));
        }
    }
}
