//! Numbers of a segment: who it is, sequences, files, places.

use std::fmt;

use super::limits::{RECORD_UNITS, UNIT};

/// Which segment of which volume. It stands in every record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// The volume's number, never given twice in a cluster.
    pub volume: u64,
    /// The segment's number in it.
    pub segment: u32,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} of volume {:x}", self.segment, self.volume)
    }
}

/// Position of a change in a segment's history (`protocols.md` 6.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Seq {
    /// Epoch of the owner that made it.
    pub epoch: u64,
    /// Counts on over owners.
    pub counter: u64,
}

/// Number of a DataFile within its segment, from 1. Never given to two files that a table names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileNo(u32);

impl FileNo {
    pub(crate) const fn new(raw: u32) -> Option<FileNo> {
        if raw == 0 { None } else { Some(FileNo(raw)) }
    }

    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    /// Its name in the directory; `generation` is of the table's instance that made it.
    pub(crate) fn name(self, generation: u32) -> String {
        format!("data-{generation:08x}-{:08x}", self.0)
    }
}

impl fmt::Debug for FileNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Generation and number in a DataFile's name; nothing for foreign ones.
pub(crate) fn parse_name(text: &str) -> Option<(u32, FileNo)> {
    let (generation, number) = text.strip_prefix("data-")?.split_once('-')?;
    let hex = |part: &str| {
        let fits = part.len() == 8
            && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        fits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
    };
    Some((hex(generation)?, FileNo::new(hex(number)?)?))
}

/// Where a block's content is, in 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Loc(u64);

impl Loc {
    /// Nowhere: never written, or trimmed.
    pub(crate) const HOLE: Loc = Loc(0);
    /// Nowhere: zeroes that count as data.
    pub(crate) const ZERO: Loc = Loc(1);
    /// In memory only: what the table has of it is not known yet.
    pub(crate) const UNKNOWN: Loc = Loc(2);

    /// A place in a file, in units.
    pub(crate) const fn new(file: FileNo, unit: u32) -> Loc {
        Loc((file.get() as u64) << 32 | unit as u64)
    }

    /// File and unit, when it is a place.
    pub(crate) const fn place(self) -> Option<(FileNo, u32)> {
        match FileNo::new((self.0 >> 32) as u32) {
            Some(file) => Some((file, self.0 as u32)),
            None => None,
        }
    }

    /// The place of the record `count` records behind that of a place; itself otherwise.
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
    /// Blocks whose records stand one behind the other.
    Data { lba: u32, count: u32, at: Loc },
    /// A range without data: `to` is a hole or zero.
    Clear { lba: u32, count: u32, to: Loc },
    /// A block whose data was copied, if it is still where it was.
    Move { lba: u32, from: Loc, to: Loc },
}

/// Adds an update, to the last one if it goes on from there.
pub(crate) fn merge(updates: &mut Vec<Update>, next: Update) {
    if let (Some(Update::Data { lba, count, at }), Update::Data { lba: to, count: more, at: place }) =
        (updates.last_mut(), next)
        && *lba + *count == to
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
    fn names_and_places_come_back() {
        let file = FileNo::new(0x1f).unwrap();
        assert_eq!(file.name(2), "data-00000002-0000001f");
        assert_eq!(parse_name(&file.name(2)), Some((2, file)));
        for text in ["data-1-2", "data-00000002-00000000", "log-00000002-0000001f", "data-"] {
            assert_eq!(parse_name(text), None, "{text}");
        }
        let loc = Loc::new(file, 7);
        assert_eq!((loc.place(), loc.plus(2)), (Some((file, 7)), Loc::new(file, 137)));
        for none in [Loc::HOLE, Loc::ZERO, Loc::UNKNOWN] {
            assert_eq!((none.place(), none.plus(3)), (None, none));
        }
    }
}
