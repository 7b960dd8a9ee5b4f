//! Numbers of a table: sequence, generations, files.

use std::fmt;

/// Position of a change in a table's history. Every operation of a batch has its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Seq(u64);

impl Seq {
    /// Before the first change.
    pub const ZERO: Seq = Seq(0);

    /// From its number on disk.
    pub const fn new(raw: u64) -> Seq {
        Seq(raw)
    }

    /// Its number on disk.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one `count` behind it.
    pub(crate) const fn plus(self, count: u64) -> Seq {
        Seq(self.0 + count)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Number of a file: the generation of the instance that made it and a counter. Never reused:
/// no two instances have one generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileNo {
    /// Number of the manifest with which the maker began.
    pub(crate) generation: u32,
    pub(crate) counter: u32,
}

impl FileNo {
    pub(crate) const fn new(generation: u32, counter: u32) -> FileNo {
        FileNo { generation, counter }
    }

    /// The number of a manifest.
    pub(crate) const fn manifest(number: u32) -> FileNo {
        FileNo::new(number, 0)
    }

    pub(crate) const fn get(self) -> u64 {
        (self.generation as u64) << 32 | self.counter as u64
    }

    pub(crate) const fn from_raw(raw: u64) -> FileNo {
        FileNo::new((raw >> 32) as u32, raw as u32)
    }
}

impl fmt::Debug for FileNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:08x}", self.generation, self.counter)
    }
}

/// Where a log has data that came with a batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    log: FileNo,
    offset: u64,
}

impl Place {
    /// Bytes of a place in a value.
    pub const BYTES: usize = 16;

    pub(crate) fn new(log: FileNo, offset: u64) -> Place {
        Place { log, offset }
    }

    /// From [`Place::file_name`] and [`Place::offset`].
    pub fn of(file_name: &str, offset: u64) -> Option<Place> {
        match Name::parse(file_name)? {
            Name::Log(log) if offset != 0 => Some(Place { log, offset }),
            _ => None,
        }
    }

    /// The log's number in its table.
    pub fn log(self) -> u64 {
        self.log.get()
    }

    /// Offset of the data in the log's file.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Name of the log's file in the table's directory.
    pub fn file_name(self) -> String {
        self.name().to_string()
    }

    pub(crate) fn log_file(self) -> FileNo {
        self.log
    }

    pub(crate) fn name(self) -> Name {
        Name::Log(self.log)
    }

    /// As a value has it.
    pub fn encode(self) -> [u8; Place::BYTES] {
        let mut out = [0; Place::BYTES];
        out[..8].copy_from_slice(&self.log.get().to_le_bytes());
        out[8..].copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    /// Reads it from a value; none as long as its batch is not in the log.
    pub fn decode(bytes: [u8; Place::BYTES]) -> Option<Place> {
        let (log, offset) = bytes.split_at(8);
        let long = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of it"));
        let place = Place { log: FileNo::from_raw(long(log)), offset: long(offset) };
        (place.offset != 0).then_some(place)
    }
}

/// Meaning of a file's name in a table's directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Name {
    /// Changes not yet in sorted files.
    Log(FileNo),
    /// The manifest of this number.
    Manifest(u32),
    /// Sorted entries.
    Sorted(FileNo),
    /// A manifest in the making.
    Draft(FileNo),
}

impl Name {
    /// The instance that made it, as far as the name shows.
    pub(crate) fn generation(self) -> u32 {
        match self {
            Name::Log(file) | Name::Sorted(file) | Name::Draft(file) => file.generation,
            Name::Manifest(number) => number,
        }
    }

    /// The meaning of a name; none for foreign ones.
    pub(crate) fn parse(text: &str) -> Option<Name> {
        let (kind, rest) = text.split_once('-')?;
        let hex = |part: &str| {
            let fits = part.len() == 8
                && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            fits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
        };
        if kind == "manifest" {
            return hex(rest).map(Name::Manifest);
        }
        let (generation, counter) = rest.split_once('-')?;
        let file = FileNo::new(hex(generation)?, hex(counter)?);
        match kind {
            "log" => Some(Name::Log(file)),
            "sorted" => Some(Name::Sorted(file)),
            "draft" => Some(Name::Draft(file)),
            _ => None,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Log(file) => write!(f, "log-{file:?}"),
            Name::Manifest(number) => write!(f, "manifest-{number:08x}"),
            Name::Sorted(file) => write!(f, "sorted-{file:?}"),
            Name::Draft(file) => write!(f, "draft-{file:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_sort_by_number() {
        let file = FileNo::new(0x1f, 2);
        for name in [Name::Log(file), Name::Manifest(31), Name::Sorted(file), Name::Draft(file)] {
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        assert_eq!(Name::Log(file).to_string(), "log-0000001f-00000002");
        for text in ["", "log", "log-1-2", "manifest-0000001F", "other-0000001f-00000002"] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
        assert!(Name::Manifest(9).to_string() < Name::Manifest(10).to_string());
        assert_eq!(FileNo::from_raw(file.get()), file);
    }
}
