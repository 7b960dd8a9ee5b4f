//! Bounds of the namespace, with reason and arithmetic.

use std::time::Duration;

use base::limits::NAME_MAX;
use master_consensus::limits::COMMAND_LEN_MAX;

/// Bytes of a symbolic link's target at most, as POSIX has it.
pub const TARGET_MAX: usize = 4095;
/// Names in one page of a list at most.
pub const LIST_MAX: u32 = 1000;
/// Bytes of one name in an answer beside the name itself, and a symbolic link's target.
pub const ENTRY_BYTES: usize = 96;
/// Bytes of one page of a list: half of what an answer may have.
pub const LIST_BYTES_MAX: usize = wire::frame::BODY_MAX / 2;
const _: () = assert!(TARGET_MAX + NAME_MAX + ENTRY_BYTES <= LIST_BYTES_MAX);
/// Names in one batch link at most.
pub const LINKS_MAX: usize = 1000;
/// Bytes of a place and a file's identity in a command: 16 + 4 + name + 8.
const LINK_BYTES_MAX: usize = NAME_MAX + 28;
const _: () = assert!(LINKS_MAX * LINK_BYTES_MAX + 64 <= COMMAND_LEN_MAX);
/// Names that one file may have.
pub const FILE_LINKS_MAX: u32 = 1 << 30;
/// Version counters that a directory keeps by name; past it all names of the directory start
/// from one floor, and clients' predictions of new sub-directories' IDs miss.
pub const VERSIONS_PER_DIR_MAX: usize = 4096;
/// Names in one namespace partition at most: 100 million of some 200 bytes are 20 GB of memory.
pub const NAMES_MAX: u64 = 100_000_000;
/// Directories on the way to the root at most; bounds the walk of the cycle check.
pub const DEPTH_MAX: usize = 4096;

/// Changes across partitions that one partition coordinates at the same time.
pub const INTENTS_MAX: usize = 10_000;
/// The pause after another partition has refused such a change as locked doubles, to so many times the first.
/// Each attempt takes five commands or more.
pub const LOCK_PAUSE_GROWTH: u32 = 16;

/// Files whose deletion the leader asks of stream partitions at the same time.
pub const DELETES_INFLIGHT_MAX: usize = 64;
/// Life of a file's grant; the stream partition remembers deleted files longer.
pub const GRANT_LIFE: Duration = Duration::from_secs(60);
/// Difference of two masters' wall clocks from which on grants are not judged by them.
pub const CLOCKS_APART: Duration = Duration::from_secs(5);
