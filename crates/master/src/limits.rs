//! Bounds of the cluster service. Groups, namespace and streams have their own.

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
/// Damaged replicas that a master remembers for its stream partitions at most. When it is full all
/// are forgotten: chunkservers repeat their reports each minute.
pub const DAMAGED_MAX: usize = 65_536;
/// Partitions of a kind at most.
pub const PARTITIONS_MAX: u16 = 256;

/// Requests that one master serves at the same time at most; beyond it they are answered "busy".
pub const REQUESTS_INFLIGHT_MAX: usize = 16_384;
