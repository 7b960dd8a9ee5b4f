//! Names in the core, and of snapshots.

use block_volume::ids::SegmentId;

/// The lock of the core's lock service that the leader holds.
pub const LOCK: &str = "block-manager";
/// Directory of the block service's files in the core.
pub const ROOT: &str = "/.craton/block";
/// Stands between the names of a volume and its snapshot.
pub const AT: char = '@';

/// Directory of a segment's files in the core.
pub fn segment_path(segment: SegmentId) -> String {
    format!("{ROOT}/{}/{}", segment.volume, segment.index)
}
