//! Bounds of the cluster service. Groups, namespace and streams have their own.

use std::time::Duration;

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

/// Pause between two pings of a master to another.
pub const PING: Duration = Duration::from_millis(50);
/// A process whose pings are so late stood still: what it has not heard says nothing.
pub const PAUSED: Duration = Duration::from_millis(30);
/// A master that has answered no ping that was sent in so long is not reached: three of them.
pub const UNREACHED: Duration = Duration::from_millis(150);
/// Pause between two pings of another master beyond which it was silent in between.
pub const PING_GAP: Duration = Duration::from_millis(125);
/// A master is heard that has pinged for so long without such a pause: two of them.
pub const HEARD_MIN: Duration = Duration::from_millis(100);
/// Another master's word that it does not reach this one counts for so long.
pub const DOUBTED: Duration = Duration::from_millis(200);
/// Pause between two pings of a master to a chunkserver whose heartbeats come.
pub const SERVER_PING: Duration = Duration::from_millis(250);
/// A round of them that is so late shows that this master stood still.
pub const SERVER_PING_PAUSED: Duration = Duration::from_millis(150);
/// A chunkserver that has answered no ping which was sent in so long, and sends heartbeats, is not
/// reached: three pings, and time to answer the last one.
pub const SERVER_UNREACHED: Duration = Duration::from_millis(900);
/// One that was not reached is reached again once its answers have come for so long.
pub const SERVER_REACHED_AGAIN: Duration = Duration::from_secs(2);

/// Pause between two judgements which disks are slow by the times of heartbeats (C28).
pub const SLOW_DISK_JUDGED: Duration = Duration::from_secs(1);
/// A disk is slow at so many times the median disk's latency: as clients list it without a draw.
pub const SLOW_DISK_TIMES: u64 = 8;
/// No disk is slow below this latency: flash that is asked for much.
pub const SLOW_DISK_MIN: Duration = Duration::from_millis(5);
/// A disk that was slow stays so for so long: clients avoid it, and the few latencies that it then has are
/// of one class now and of another then.
pub const SLOW_DISK_KEPT: Duration = Duration::from_secs(15);
/// Disks with latencies of a class that are compared, at least.
pub const SLOW_DISK_PEERS: usize = 3;

/// Reports of clients of two hosts within this time are evidence that a chunkserver is not reached (C28).
pub const REPORTS_TOGETHER: Duration = Duration::from_secs(1);
/// Such evidence counts for so long.
pub const REPORTED_UNREACHED: Duration = Duration::from_secs(2);
/// A ping that a report has started has failed without an answer in this time: as between two rounds.
pub const REPORT_PING: Duration = Duration::from_millis(250);
/// Between two pings of one chunkserver that reports start: as between those of rounds.
pub const REPORT_PING_PAUSE: Duration = SERVER_PING;
/// Hosts whose reports about one chunkserver are remembered: two are enough.
pub const REPORT_HOSTS_MAX: usize = 4;
/// Chunkservers that are unreached by reports at a time, at most: what clients say may be wrong.
pub const REPORTED_MAX: usize = 3;
/// One of so many at most, and one always.
pub const REPORTED_SHARE: usize = 10;
/// Changes of the list of abnormal chunkservers that a master remembers: 4 KiB. A client that polls each
/// second is behind by a few.
pub const ABNORMAL_LOG_MAX: usize = 256;
const _: () = assert!(ABNORMAL_LOG_MAX >= 2 * wire::control::limits::ABNORMAL_MAX);
/// One chunkserver of so many may be named as abnormal, and one always.
pub const ABNORMAL_SHARE: usize = 3;
/// Hosts whose clients' reports are evidence without a failed ping: one may be cut off itself.
pub const REPORT_HOSTS: usize = 2;

/// Between two holders of a lock that clients' doubts end: more than a change of leaders takes.
pub const LOCK_DOUBTED_PAUSE: Duration = Duration::from_secs(10);
/// So many within [`LOCK_DOUBTED_SPAN`] at most, for each lock, as one master counts: clients that reach none of
/// a service's processes do not make its leadership wander.
pub const LOCK_DOUBTED_MAX: usize = 3;
/// See there.
pub const LOCK_DOUBTED_SPAN: Duration = Duration::from_secs(600);

/// Between two times at which a master that others do not reach hands over what it leads: more than a
/// hand-over takes, with an election when the successor does not follow.
pub const HAND_OVER_PAUSE: Duration = Duration::from_secs(1);
/// So often within [`HAND_OVERS_SPAN`] at most: broken ways between masters do not make leadership
/// wander.
pub const HAND_OVERS_MAX: usize = 3;
/// See there.
pub const HAND_OVERS_SPAN: Duration = Duration::from_secs(600);

/// Requests that one master relays at the same time at most: clients that do not reach a leader must
/// not take all of another master.
pub const RELAYS_INFLIGHT_MAX: usize = 1_024;
const _: () = assert!(RELAYS_INFLIGHT_MAX * 2 <= REQUESTS_INFLIGHT_MAX);
