//! DataFiles that volumes name, and bytes that the removal of some volumes gives back (B11).

use std::collections::BTreeMap;

use crate::ids::{FileId, VolumeId};

/// A DataFile that a volume or snapshot names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// The volume that names it.
    pub volume: VolumeId,
    /// The file.
    pub file: FileId,
    /// Its bytes, all copies counted.
    pub bytes: u64,
}

/// Bytes of files that only some of the volumes name: their removal gives these back.
pub fn alone(uses: &[Use], only: impl Fn(VolumeId) -> bool) -> u64 {
    let mut files: BTreeMap<FileId, (u64, bool)> = BTreeMap::new();
    for one in uses {
        let (bytes, alone) = files.entry(one.file).or_insert((one.bytes, true));
        *bytes = one.bytes.max(*bytes);
        *alone &= only(one.volume);
    }
    files.values().filter(|(_, alone)| *alone).map(|(bytes, _)| bytes).sum()
}
