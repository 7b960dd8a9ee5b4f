//! Bounds of control messages. A message beyond one is refused by the conversion that meets it.

use std::time::Duration;

use base::limits::{PATH_MAX, REPLICAS_MAX};

/// Bytes of an encoded control message at most: those of a frame's body. An answer whose elements
/// could add up to more (a batch look-up of 64 files x 256 chunks, a page of 1000 long symbolic
/// links) is cut by the server that makes it, with `more` set or files left out.
pub const MESSAGE_LEN_MAX: usize = crate::frame::BODY_MAX;
/// A batch link always fits: 1000 x (255 bytes of name + 45 of identity and framing) = 300 KB.
const _: () = assert!(LINKS_MAX * (base::limits::NAME_MAX + 45) < MESSAGE_LEN_MAX);

/// Bytes of a symbolic link's target, as POSIX file systems have it.
pub const TARGET_MAX: usize = PATH_MAX - 1;
/// Permission bits, setuid, setgid and sticky.
pub const MODE_MAX: u32 = 0o7777;
/// Names in one page of a directory.
pub const LIST_MAX: u32 = 1000;
/// Names in one batch link.
pub const LINKS_MAX: usize = 1000;

/// Chunks of one file in one answer (C8).
pub const LOCATE_CHUNKS_MAX: u32 = 256;
/// Files in one batch look-up (C7).
pub const LOCATE_FILES_MAX: usize = 64;
/// Spare chunks that a writer may ask for (C8).
pub const SPARES_MAX: u8 = 4;
/// Seconds from the seal of a chunk until it may get another form by its file's policy.
pub const LATER_MIN_S: u32 = 1;
/// Ten years.
pub const LATER_MAX_S: u32 = 10 * 366 * 24 * 3600;
/// Of appends that are verified as samples, one in so many is (`protocols-tail.md` 9.10).
pub const VERIFY_SAMPLE: u64 = 256;
/// Servers that a writer may ask to avoid.
pub const AVOID_MAX: usize = 256;
/// Replicas of one chunk in an answer: a policy's, and those that take the place of others.
pub const PLACES_MAX: usize = codec::limits::FRAGMENTS_MAX + 4;
const _: () = assert!(PLACES_MAX > REPLICAS_MAX);

/// A group keeps the answers of a client session at least this long after its last change, by the
/// group's clock, which never runs faster than time. No client repeats a change for longer: behind
/// this time it would be done again.
pub const SESSION_IDLE: Duration = Duration::from_secs(300);

/// Chunks in one order to a chunkserver, and replicas in one page of its list.
pub const CHUNKS_MAX: usize = 1000;

/// Probes of a disk that come within this time after one has ended are answered by it: many clients
/// that list a disk cost it five writes a second.
pub const PROBE_SHARED: Duration = Duration::from_millis(200);

/// Bytes of a server's or lock's name, of a failure domain and of a lock's owner.
pub const LABEL_MAX: usize = 255;
/// Disks of one chunkserver.
pub const DISKS_MAX: usize = 256;
/// Damaged replicas in one heartbeat; more wait for the next.
pub const DAMAGED_MAX: usize = 1000;
/// Masters of one cluster: voters, and those about to become or cease to be voters.
pub const MASTERS_MAX: usize = 16;
/// Chunkservers of one cluster.
pub const SERVERS_MAX: usize = 10_000;
/// Abnormal servers that masters name to clients (C28): 64 x 8 bytes = 512 bytes a second and client
/// at most. When there are more, the cluster has another problem, and clients see for themselves.
pub const ABNORMAL_MAX: usize = 64;
/// Groups that one message names: the cluster group, and up to 2048 partitions of each kind.
pub const GROUPS_MAX: usize = 1 + 2 * 2048;
/// Collections that one master reports as stopped: 256 x 50 bytes = 13 KB; more wait for their
/// turn.
pub const STOPPED_MAX: usize = 256;
/// Chunks that an answer about a chunkserver's replicas names as lost; the others are counted.
pub const LOST_CHUNKS_MAX: usize = 1000;
/// Files that an answer about a chunkserver's replicas names: enough to find the others.
pub const HELD_FILES_MAX: usize = 16;
/// Chunkservers that drain at the same time and that one master reports: more wait for their turn.
pub const DRAINING_MAX: usize = 64;
/// Maintenance of a chunkserver, milliseconds, at most: a day.
pub const MAINTENANCE_MAX_MS: u64 = 24 * 3600 * 1000;
/// Lease of a lock, milliseconds, at least.
pub const LOCK_TTL_MIN_MS: u64 = 100;
/// Lease of a lock, milliseconds, at most.
pub const LOCK_TTL_MAX_MS: u64 = 600_000;

/// Operations in one answer about a trace: 256 x 17 stages x 60 bytes = 260 KB.
pub const TRACE_OPERATIONS_MAX: usize = 256;
/// Slow operations that may be asked for at once.
pub const TRACE_SLOW_MAX: u32 = TRACE_OPERATIONS_MAX as u32;
/// Stages of one operation: those that a ring keeps, and room for those of other versions.
pub const TRACE_STAGES_MAX: usize = 64;
const _: () = assert!(TRACE_STAGES_MAX >= metrics::limits::STAGES_MAX);

/// Bytes of an error's message; longer ones are cut when they are encoded.
pub const ERROR_MESSAGE_MAX: usize = 4096;
/// Bytes of the cause of a disk's failure; the rest is cut off.
pub const REASON_MAX: usize = 512;
