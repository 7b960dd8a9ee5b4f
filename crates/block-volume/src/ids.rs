//! IDs of segments, their changes and their DataFiles.

use std::fmt;

base::id!(
    /// A volume (B1): a virtual disk of the block service. Never reused.
    VolumeId(u64), "vol_"
);

/// A segment of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentId {
    /// The volume.
    pub volume: VolumeId,
    /// Number of the segment in it.
    pub index: u32,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.index)
    }
}

/// Identity of a segment. It is in every record.
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

/// A DataFile's number in the core, the same in all directories that have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileId(u64);

impl FileId {
    /// The file of a number in the core.
    pub const fn new(number: u64) -> FileId {
        FileId(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Position of a change in a segment's history (`protocols.md` 6.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Seq {
    /// Epoch of the owner that made it.
    pub epoch: u64,
    /// Continues over owners.
    pub counter: u64,
}

/// Number of a DataFile within its segment, from 1. Never given to two files that a table names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNo(u32);

impl FileNo {
    /// The file of a number; none for 0.
    pub const fn new(raw: u32) -> Option<FileNo> {
        if raw == 0 { None } else { Some(FileNo(raw)) }
    }

    /// Its number, not 0.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Its name in the directory; `generation` is of the table's instance that made it.
    pub fn name(self, generation: u32) -> String {
        format!("data-{generation:08x}-{:08x}", self.0)
    }
}

impl fmt::Debug for FileNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Generation and number in a DataFile's name; nothing for foreign ones.
pub fn parse_name(text: &str) -> Option<(u32, FileNo)> {
    let (generation, number) = text.strip_prefix("data-")?.split_once('-')?;
    let hex = |part: &str| {
        let fits = part.len() == 8
            && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        fits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
    };
    Some((hex(generation)?, FileNo::new(hex(number)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_what_was_written() {
        let file = FileNo::new(0x1f).unwrap();
        assert_eq!(file.name(2), "data-00000002-0000001f");
        assert_eq!(parse_name(&file.name(2)), Some((2, file)));
        for text in ["data-1-2", "data-00000002-00000000", "log-00000002-0000001f", "data-"] {
            assert_eq!(parse_name(text), None, "{text}");
        }
    }
}
