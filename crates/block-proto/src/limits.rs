//! Bounds of requests between block processes, with reason and arithmetic.

use runtime::Duration;

/// Wait for one answer of a manager: longer than an append to its table takes while a chunkserver is
/// silent.
pub const ATTEMPT: Duration = Duration::from_millis(1500);
/// Wait for one answer about the block service's status: users read the rest of the status first.
pub const STATUS_ATTEMPT: Duration = Duration::from_millis(500);
/// A request to managers is given up after this long, unless chosen: several takeovers.
pub const BUDGET: Duration = Duration::from_secs(10);
/// A client without an answer sends a request again after this long. A server that has died is
/// noticed at once, a silent one by the transport after 0.6 s.
pub const BLOCK_CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a volume in a message, at least and at most. Those below 1 GiB are for tests:
/// [`block_volume::limits::VOLUME_BYTES`] limits volumes (B11).
pub const VOLUME_BYTES_WIRE: (u64, u64) = (4096, 64 << 40);
/// Volumes in one page of a list: 256 x (4 attachments and two texts of 255 bytes) = 400 KB.
pub const VOLUMES_PAGE: u32 = 256;
/// Attachments of one volume at once.
pub const ATTACHMENTS_MAX: usize = 16;
/// Attachments that one front end keeps with one message.
pub const KEEPS_MAX: usize = 4096;
/// Segments in one page of a map, and changes in one grant: 4096 x 70 bytes = 290 KB, and 256
/// causes of 512 bytes for each of a few block servers that cannot open theirs.
pub const SEGMENTS_PAGE: u32 = 4096;
/// Segments that a heartbeat may name as not open; more are counted only.
pub const UNOPENED_MAX: usize = 256;
/// Segments whose load one heartbeat may report, the busiest first.
pub const LOADS_MAX: usize = 1024;
/// Block servers of one cluster.
pub const BLOCK_SERVERS_MAX: usize = 1000;
/// Managers and front ends that a leader remembers: 1000 x 300 bytes = 300 KB in an answer.
pub const BLOCK_PEERS_MAX: usize = 1000;
/// A lease, and a hold of acknowledgements, milliseconds, at most.
pub const LEASE_MAX_MS: u32 = 60_000;

const _: () = assert!(block_volume::limits::IO_MAX <= wire::frame::PAYLOAD_MAX);
