//! Placement of a volume's bytes: segment groups, segments, data sectors round-robin (B1).
//!
//! A volume is cut into groups; a group's data sectors go to its segments in turn. So all segments
//! of a group serve a burst on one range of a volume, and a segment can move to another server
//! alone. The location of a byte does not depend on the volume's length: a volume grows and shrinks
//! at its end without moving anything.

use std::fmt;

use crate::limits::{
    BLOCK, DATA_SECTOR, DATA_SECTOR_DEFAULT, GROUP_BYTES_DEFAULT, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN, SEGMENTS_PER_GROUP_DEFAULT, SEGMENTS_PER_GROUP_MAX,
};

/// Number of a segment within its volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentIndex(u32);

impl SegmentIndex {
    /// From its number.
    pub const fn new(raw: u32) -> SegmentIndex {
        SegmentIndex(raw)
    }

    /// Its number, from 0.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Sizes that a volume keeps for its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    group_bytes: u64,
    segments_per_group: u32,
    data_sector: u64,
}

/// Errors of sizes that make no geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeometryError {
    /// A data sector is a power of two from 4 KiB to 2 MiB.
    DataSector(u64),
    /// A group has 1 to 64 segments.
    Segments(u32),
    /// A group is a whole number of rounds of data sectors, one for each segment, and has at
    /// least 64 KiB for each, and 16 TiB at most.
    GroupBytes(u64),
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeometryError::DataSector(bytes) => write!(
                f,
                "a data sector of {bytes} bytes; choose a power of two from {} to {}",
                DATA_SECTOR.0, DATA_SECTOR.1
            ),
            GeometryError::Segments(count) => {
                write!(f, "a group of {count} segments; choose 1 to {SEGMENTS_PER_GROUP_MAX}")
            }
            GeometryError::GroupBytes(bytes) => write!(
                f,
                "a group of {bytes} bytes; choose a multiple of the data sector times the \
                 segments of a group, of {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes a segment"
            ),
        }
    }
}

impl std::error::Error for GeometryError {}

impl Default for Geometry {
    fn default() -> Geometry {
        Geometry {
            group_bytes: GROUP_BYTES_DEFAULT,
            segments_per_group: SEGMENTS_PER_GROUP_DEFAULT,
            data_sector: DATA_SECTOR_DEFAULT,
        }
    }
}

/// A range of bytes of a volume or of a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Extent {
    /// The byte behind it; nothing past 2^64.
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// The part of a request that goes to one segment, in one piece there. Its bytes are those of
/// `parts`, in order, without gaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentRequest {
    /// The segment.
    pub segment: SegmentIndex,
    /// Range in it.
    pub extent: Extent,
    /// Ranges of its bytes in the request, in the order they have in the segment.
    pub parts: Vec<Extent>,
}

impl Geometry {
    /// The geometry of a new volume.
    pub const fn new(
        group_bytes: u64,
        segments_per_group: u32,
        data_sector: u64,
    ) -> Result<Geometry, GeometryError> {
        match Geometry::stored(group_bytes, segments_per_group, data_sector) {
            Ok(sizes) if sizes.segment_bytes() > SEGMENT_BYTES_MAX => {
                Err(GeometryError::GroupBytes(group_bytes))
            }
            sizes => sizes,
        }
    }

    /// The geometry of a stored volume. Older programs made volumes with segments of any length;
    /// above 16 TiB no server opens these.
    pub const fn stored(
        group_bytes: u64,
        segments_per_group: u32,
        data_sector: u64,
    ) -> Result<Geometry, GeometryError> {
        let (least, most) = DATA_SECTOR;
        if !data_sector.is_power_of_two() || data_sector < least || data_sector > most {
            return Err(GeometryError::DataSector(data_sector));
        }
        if segments_per_group == 0 || segments_per_group > SEGMENTS_PER_GROUP_MAX {
            return Err(GeometryError::Segments(segments_per_group));
        }
        let round = data_sector * segments_per_group as u64;
        let least = SEGMENT_BYTES_MIN * segments_per_group as u64;
        if group_bytes < least || !group_bytes.is_multiple_of(round) {
            return Err(GeometryError::GroupBytes(group_bytes));
        }
        Ok(Geometry { group_bytes, segments_per_group, data_sector })
    }

    /// Bytes of a segment group.
    pub const fn group_bytes(&self) -> u64 {
        self.group_bytes
    }

    /// Segments of a group.
    pub const fn segments_per_group(&self) -> u32 {
        self.segments_per_group
    }

    /// Bytes of a data sector.
    pub const fn data_sector(&self) -> u64 {
        self.data_sector
    }

    /// Bytes of a whole segment.
    pub const fn segment_bytes(&self) -> u64 {
        self.group_bytes / self.segments_per_group as u64
    }

    /// Segments of a volume of `len` bytes. Its last group may be begun only, but has all its
    /// segments.
    pub const fn segments(&self, len: u64) -> u64 {
        len.div_ceil(self.group_bytes) * self.segments_per_group as u64
    }

    /// Bytes that a segment has in a volume of `len` bytes.
    pub fn segment_len(&self, segment: SegmentIndex, len: u64) -> u64 {
        let group = u64::from(segment.0 / self.segments_per_group);
        let lane = u64::from(segment.0 % self.segments_per_group);
        let start = group.saturating_mul(self.group_bytes);
        let in_group = len.saturating_sub(start).min(self.group_bytes);
        let round = self.data_sector * u64::from(self.segments_per_group);
        let rest = (in_group % round).saturating_sub(lane * self.data_sector);
        in_group / round * self.data_sector + rest.min(self.data_sector)
    }

    /// The segment that has a byte of a volume (of 64 TiB at most), and the byte's offset in it.
    pub fn locate(&self, offset: u64) -> (SegmentIndex, u64) {
        let (group, within) = (offset / self.group_bytes, offset % self.group_bytes);
        let (sector, rest) = (within / self.data_sector, within % self.data_sector);
        let count = u64::from(self.segments_per_group);
        let segment = group * count + sector % count;
        let segment = u32::try_from(segment).expect("64 TiB have fewer segments");
        (SegmentIndex(segment), sector / count * self.data_sector + rest)
    }

    /// The byte of a volume that a segment has at an offset: the inverse of [`Geometry::locate`].
    pub fn offset_of(&self, segment: SegmentIndex, offset: u64) -> u64 {
        let count = u64::from(self.segments_per_group);
        let (group, lane) = (u64::from(segment.0) / count, u64::from(segment.0) % count);
        let (row, rest) = (offset / self.data_sector, offset % self.data_sector);
        group * self.group_bytes + (row * count + lane) * self.data_sector + rest
    }

    /// Splits a request into one for each piece of a segment that it touches: data sectors that
    /// stand next to each other in a segment go together. In the order of first bytes.
    pub fn split(&self, request: Extent) -> Vec<SegmentRequest> {
        let end = request.end().expect("requests end within their volume");
        let mut found: Vec<SegmentRequest> = Vec::new();
        let mut at = request.offset;
        while at < end {
            let (segment, offset) = self.locate(at);
            let len = (self.data_sector - at % self.data_sector).min(end - at);
            let part = Extent { offset: at - request.offset, len };
            let open = found.iter_mut().rev().take(self.segments_per_group as usize);
            let mut open = open.filter(|other| other.segment == segment);
            match open.next() {
                Some(other) if other.extent.end() == Some(offset) => {
                    other.extent.len += len;
                    match other.parts.last_mut() {
                        // One segment alone: its sectors follow one another in the request too.
                        Some(last) if last.end() == Some(part.offset) => last.len += len,
                        _ => other.parts.push(part),
                    }
                }
                _ => {
                    let extent = Extent { offset, len };
                    found.push(SegmentRequest { segment, extent, parts: vec![part] });
                }
            }
            at += len;
        }
        found
    }

    /// True when a range of a volume of `len` bytes is whole blocks within it.
    pub fn is_aligned(request: Extent, len: u64) -> bool {
        request.offset.is_multiple_of(BLOCK)
            && request.len.is_multiple_of(BLOCK)
            && request.end().is_some_and(|end| end <= len)
    }
}

impl SegmentRequest {
    /// Takes its bytes out of the request's, in the segment's order.
    pub fn gather(&self, request: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; self.extent.len as usize];
        self.gather_into(request, &mut bytes);
        bytes
    }

    /// As [`SegmentRequest::gather`], into a buffer of its length.
    pub fn gather_into(&self, request: &[u8], bytes: &mut [u8]) {
        assert_eq!(bytes.len() as u64, self.extent.len, "a buffer of the part's length");
        let mut at = 0;
        for part in &self.parts {
            let from = &request[range(*part)];
            bytes[at..at + from.len()].copy_from_slice(from);
            at += from.len();
        }
    }

    /// Copies a segment's bytes to their ranges in the request.
    pub fn scatter(&self, mut bytes: &[u8], request: &mut [u8]) {
        for part in &self.parts {
            let (now, rest) = bytes.split_at(part.len as usize);
            request[range(*part)].copy_from_slice(now);
            bytes = rest;
        }
        assert!(bytes.is_empty(), "as many bytes as the segment was asked for");
    }
}

fn range(part: Extent) -> std::ops::Range<usize> {
    part.offset as usize..(part.offset + part.len) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_placed_round_robin() {
        let geometry = Geometry::new(256 << 10, 4, 4 << 10).unwrap();
        let places: Vec<_> = (0..68).map(|n| geometry.locate(n * 4096 + 5)).collect();
        let at = |segment: u32, row: u64| (SegmentIndex(segment), row * 4096 + 5);
        assert_eq!(places[..5], [at(0, 0), at(1, 0), at(2, 0), at(3, 0), at(0, 1)]);
        assert_eq!(places[63..], [at(3, 15), at(4, 0), at(5, 0), at(6, 0), at(7, 0)]);
        assert_eq!((geometry.segments(1), geometry.segments(256 << 10)), (4, 4));
        assert_eq!(geometry.segments((256 << 10) + 1), 8);
    }

    #[test]
    fn defaults_are_the_papers() {
        let geometry = Geometry::default();
        let same = Geometry::new(128 << 30, 4, 128 << 10).unwrap();
        assert_eq!((geometry, geometry.segment_bytes()), (same, 32 << 30));
        assert_eq!(geometry.segments(64 << 40), 2048);
    }

    #[test]
    fn odd_sizes_are_refused() {
        for (group, segments, sector) in [
            (1 << 20, 4, 3000),
            (1 << 20, 4, 2048),
            (1 << 30, 4, 4 << 20),
            (1 << 20, 0, 4096),
            (1 << 20, 65, 4096),
            (0, 4, 4096),
            (128 << 10, 4, 4096),
            ((1 << 20) + 4096, 4, 4096),
            (64 << 40, 1, 4096),
            ((64 << 40) + (16 << 10), 4, 4096),
        ] {
            assert!(Geometry::new(group, segments, sector).is_err(), "{group} {segments} {sector}");
        }
    }
}
