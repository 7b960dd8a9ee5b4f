//! Bounds of the namespace and cluster services. Consensus and streams have their own.

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

/// Locks at most.
pub const LOCKS_MAX: usize = 100_000;
/// Bytes of a lock's name at most.
pub const LOCK_NAME_MAX: usize = 255;
/// Bytes of a lock owner's text at most.
pub const LOCK_OWNER_MAX: usize = 255;
/// Leases, milliseconds: shortest and longest.
pub const LEASE_MS: (u64, u64) = (100, 600_000);
/// Chunkservers in one cluster at most.
pub const SERVERS_MAX: usize = 10_000;
/// Bytes of a server's name or domain at most.
pub const SERVER_NAME_MAX: usize = 255;
/// Masters at most.
pub const MASTERS_MAX: usize = 9;
/// Disks of one chunkserver at most.
pub const DISKS_MAX: usize = 256;
/// Damaged replicas that a master remembers for its stream partitions at most; what does not
/// fit is found again by scrub.
pub const DAMAGED_MAX: usize = 65_536;
/// Partitions of a kind at most.
pub const PARTITIONS_MAX: u16 = 256;

/// Files whose deletion the leader asks of stream partitions at the same time.
pub const DELETES_INFLIGHT_MAX: usize = 64;
/// A file's grant is good for so long; the stream partition remembers deleted files longer.
pub const GRANT_LIFE: Duration = Duration::from_secs(60);

/// Requests that one master serves at the same time at most; beyond it they are answered "busy".
pub const REQUESTS_INFLIGHT_MAX: usize = 16_384;

/// Replicas of one disk that a partition does not know and condemns unasked, at least: what the
/// crashes of one comparison's interval may leave.
pub const UNKNOWN_REPLICAS_MAX: u64 = 16;
/// More of them are condemned unasked while they are no more than one in so many: 1 %.
pub const UNKNOWN_PART: u64 = 100;
/// Unknown replicas of one disk that a comparison holds: 512 KiB; more wait for the next one.
/// One percent of 6.5 million replicas.
pub const UNKNOWN_HELD_MAX: usize = 1 << 16;
