//! Bounds and times of the stream partitions.

use std::time::Duration;

use base::limits::REPLICAS_MAX;

/// Replicas of a chunk on record at most: those it has, and three that are being made in place of
/// others.
pub const SLOTS_MAX: usize = REPLICAS_MAX + 3;
/// Replicas of a coded chunk on record at most, beyond its fragments.
pub const CODED_TARGETS_MAX: usize = 4;
/// Spare chunks of a writer at most (C8).
pub const SPARES_MAX: usize = 4;
/// Chunks in one answer to `Locate` at most.
pub const LOCATE_CHUNKS_MAX: u32 = 256;
/// Files in one `LocateMany` at most (C7).
pub const LOCATE_FILES_MAX: usize = 64;
/// Chunks of copies in one answer to `LocateMany` at most: 64 files with 64 each.
pub const LOCATE_MANY_CHUNKS_MAX: usize = 4096;
/// Bytes of a replica in an answer, at most: server, disk, IPv6 address and fragment.
pub const PLACE_BYTES_MAX: usize = 51;
/// Replicas in one answer at most, each chunk counted as two more for what else is said of it: three
/// copies of [`LOCATE_MANY_CHUNKS_MAX`] chunks. Of coded chunks there are fewer.
pub const LOCATE_REPLICAS_MAX: usize = LOCATE_MANY_CHUNKS_MAX * (3 + 2);
const _: () = assert!(LOCATE_REPLICAS_MAX * PLACE_BYTES_MAX <= wire::frame::BODY_MAX);
const _: () = assert!(LOCATE_CHUNKS_MAX as usize * (SLOTS_CODED_MAX + 2) <= LOCATE_REPLICAS_MAX);
/// Replicas of a coded chunk on record at most.
const SLOTS_CODED_MAX: usize = wire::row::FRAGMENTS_MAX + CODED_TARGETS_MAX;
/// Requests that wait in a stream partition at most; beyond it they are answered "retry".
pub const REQUESTS_INFLIGHT_MAX: usize = 4096;
/// Replicas in one command of housekeeping, and in one call to a chunkserver, at most.
pub const BATCH_MAX: usize = 1000;
/// Copies of a chunk that a recovery starts at the same time at most.
pub const COPY_TARGETS_MAX: usize = 3;
/// Attempts of a recovery at a copy that its chunkserver is too busy for, at most: about 2 s with
/// the pauses between them, then another place is tried.
pub const COPY_TRIES_MAX: u32 = 12;
/// Chunks that wait for the seal of their replicas at most; what does not fit is found again by the scan.
pub const SEAL_QUEUE_MAX: usize = 4096;
/// Reports of damaged replicas that wait for a check, at most; further ones are dropped.
pub const REPORTS_MAX: usize = 4096;
/// Files whose writers are gone that one scan seals at most; the next seals more.
pub const ABANDONED_MAX: usize = 64;
/// Time for which a chunkserver's report of a silent writer counts: the server repeats it every
/// third of the time after which it reports first.
pub const QUIET_FRESH: Duration = Duration::from_secs(60);
/// Copies in a row that find no source for some byte before the target is given up: it may be the
/// one that reaches none of the sources.
pub const TORN_COPIES_MAX: u32 = 3;
/// Pauses between two attempts to convert a chunk: first and longest.
pub const CONVERSION_RETRY: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(60));
/// Chunks that a scan checks before other tasks get their turn.
pub const SCAN_SLICE: usize = 2048;

const _: () = assert!(SLOTS_MAX <= 8, "the masks of a chunk have 8 bits");
const _: () = assert!(COPY_TARGETS_MAX <= SLOTS_MAX - REPLICAS_MAX);
const _: () = assert!(COPY_TARGETS_MAX <= CODED_TARGETS_MAX);
/// Clients are given all replicas of a chunk that are made.
const _: () =
    assert!(wire::row::FRAGMENTS_MAX + CODED_TARGETS_MAX <= wire::control::limits::PLACES_MAX);
/// A command of housekeeping (8 bytes of chunk, 20 of place, 4 of length each) fits the log.
const _: () = assert!(BATCH_MAX * 64 <= master_consensus::limits::COMMAND_LEN_MAX);

/// Times and rates of a stream partition's leader. The simulator randomises them.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// Life of a token. At least ten times a master failover (`protocols.md` 2.5).
    pub token_life: Duration,
    /// Difference of two clocks of the cluster, at most.
    pub clock_skew: Duration,
    /// Time for which a deleted file is remembered, so that a delayed `Open` cannot bring it back:
    /// the life of a namespace grant and the skew.
    pub file_memory: Duration,
    /// One call to a chunkserver that copies nothing.
    pub call_timeout: Duration,
    /// One call that copies a chunk.
    pub copy_timeout: Duration,
    /// Wait of recovery for the other living replicas, after enough votes are in.
    pub vote_timeout: Duration,
    /// Time in which an `Open` or `Seal` tries to reach enough replicas before it answers "retry".
    pub recover_timeout: Duration,
    /// A server that is silent for so long is replaced by repair.
    pub dead_grace: Duration,
    /// Time for which it is remembered which replicas of a disk that its server has not, or that has
    /// failed, are dead: should it come back, they are deleted. A disk that comes back later holds
    /// replicas that nothing explains, and waits for an operator (`docs/decisions/0048`).
    pub gone_memory: Duration,
    /// An open chunk with a replica on a dead server is sealed after this time. A living writer has
    /// gone on in another chunk long before: at its next append, or, when it is idle, within 20 s
    /// by the messages that carry its committed length to replicas. One that finds no other place is
    /// heard of: its rights are renewed at half of [`StreamConfig::token_life`], which is shorter. The
    /// same for one that was opened with fewer copies, counted from when all could be had, and for one
    /// without bytes on a server that drains.
    pub open_grace: Duration,
    /// The same for a replica on a server whose heartbeats come and that masters do not reach. Never:
    /// a writer that reaches it lives, and would be fenced (`protocols-tail.md` 10.7).
    pub open_grace_unreached: Duration,
    /// Time for which a replica that is short of its sealed chunk is left to its writer, which may
    /// be sending what it lacks (C14, `protocols-tail.md` 8.7).
    pub chase_grace: Duration,
    /// Pause between two checks of the repair worker.
    pub scan_interval: Duration,
    /// Pause between two checks for garbage.
    pub garbage_interval: Duration,
    /// Pause between two comparisons with what a disk holds.
    pub list_interval: Duration,
    /// Stream partitions of the cluster, which share what its disks take for repair.
    pub partitions: u16,
    /// Copies that repair makes at the same time, per partition: so many, or the partition's share of
    /// [`StreamConfig::repair_disk_copies`] for each disk, if that is more.
    pub repair_parallel: usize,
    /// Copies of repair for each disk of the cluster, on average, over all partitions.
    pub repair_disk_copies: usize,
    /// Bytes that repair copies a second at most, per partition: so many, or the partition's share of
    /// [`StreamConfig::repair_disk_bytes_per_s`] for each disk, if that is more.
    pub repair_bytes_per_s: u64,
    /// Bytes that repair copies a second for each disk of the cluster, on average, over all partitions.
    /// A bound for the network; what a disk gives is its own share (`protocols-tail.md` 10.14).
    pub repair_disk_bytes_per_s: u64,
    /// Of the rows of a coded chunk one in so many is checked with all its cells (`protocols-tail.md` 9.10).
    pub row_check_one_in: u32,
    /// Bytes of replicas a second that this goes through for each disk of the cluster, over all partitions: a
    /// round takes as long as one of scrub does. The least part of them is read.
    pub row_check_disk_bytes_per_s: u64,
    /// Pause between two checks whether chunks should move to other disks.
    pub balance_interval: Duration,
    /// Bytes that move a second for balance at most, per partition; 0 turns moves off.
    pub balance_bytes_per_s: u64,
    /// Bytes beyond its share of the partition that a disk may hold, if they are more than a
    /// tenth of it.
    pub balance_slack: u64,
    /// Replicas a new chunk needs, when the cluster has that many disks (`protocols.md` 1.4).
    pub copies_floor: u8,
}

impl Default for StreamConfig {
    fn default() -> StreamConfig {
        StreamConfig {
            token_life: Duration::from_secs(60),
            clock_skew: Duration::from_secs(5),
            file_memory: Duration::from_secs(65),
            call_timeout: Duration::from_secs(2),
            copy_timeout: Duration::from_secs(120),
            vote_timeout: Duration::from_millis(50),
            recover_timeout: Duration::from_secs(10),
            dead_grace: Duration::from_secs(10),
            gone_memory: Duration::from_secs(7 * 24 * 3600),
            open_grace: Duration::from_secs(60),
            open_grace_unreached: Duration::MAX,
            chase_grace: Duration::from_secs(1),
            scan_interval: Duration::from_millis(500),
            garbage_interval: Duration::from_secs(1),
            list_interval: Duration::from_secs(60),
            partitions: 1,
            repair_parallel: 4,
            repair_disk_copies: 2,
            repair_bytes_per_s: 64 << 20,
            repair_disk_bytes_per_s: 256 << 20,
            row_check_one_in: 64,
            row_check_disk_bytes_per_s: 10 << 20,
            balance_interval: Duration::from_secs(10),
            balance_bytes_per_s: 32 << 20,
            balance_slack: 64 << 20,
            copies_floor: 2,
        }
    }
}

impl StreamConfig {
    /// Copies that repair of one partition makes at the same time at most, in a cluster of so many disks.
    pub fn repair_width(&self, disks: u32) -> usize {
        let share = self.repair_disk_copies * disks as usize / usize::from(self.partitions.max(1));
        share.clamp(self.repair_parallel.max(1), REPAIRS_INFLIGHT_MAX.max(self.repair_parallel))
    }

    /// Bytes a second that it copies at most, likewise.
    pub fn repair_rate(&self, disks: u32) -> u64 {
        let all = self.repair_disk_bytes_per_s.saturating_mul(u64::from(disks));
        (all / u64::from(self.partitions.max(1))).max(self.repair_bytes_per_s).max(1)
    }

    /// Bytes of replicas a second that a partition's look at whole rows goes through, likewise.
    pub fn row_check_rate(&self, disks: u32) -> u64 {
        let all = self.row_check_disk_bytes_per_s.saturating_mul(u64::from(disks));
        (all / u64::from(self.partitions.max(1))).max(1)
    }

    /// Time for which a right that was given, or a call that was sent, may still take effect.
    pub fn rights_life(&self) -> Duration {
        self.token_life + self.clock_skew
    }
}

/// Copies that repair of one partition makes at the same time at most, in a cluster of any size: a KiB or
/// two each in a master's memory.
pub const REPAIRS_INFLIGHT_MAX: usize = 512;

/// Replicas of one disk that a partition does not know and condemns unasked, at least: what the
/// crashes of one comparison's interval may leave.
pub const UNKNOWN_REPLICAS_MAX: u64 = 16;
/// More of them are condemned unasked while they are no more than one in so many: 1 %.
pub const UNKNOWN_PART: u64 = 100;
/// Unknown replicas of one disk that a comparison holds: 512 KiB; more wait for the next one.
/// One percent of 6.5 million replicas.
pub const UNKNOWN_HELD_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use base::{ChunkId, DiskId, Epoch, FileId, ServerId};
    use wire::control::{
        ChunkPlace, Compression, ControlReply, ReplicaPlace, StreamReply, StreamView,
    };

    use super::*;

    #[test]
    fn repair_of_a_partition_grows_with_the_cluster() {
        let config = StreamConfig { partitions: 4, ..StreamConfig::default() };
        let bounds = |disks| (config.repair_width(disks), config.repair_rate(disks) >> 20);
        assert_eq!(bounds(0), (4, 64));
        assert_eq!(bounds(3), (4, 192));
        assert_eq!(bounds(12), (6, 768));
        assert_eq!(bounds(1000), (500, 64_000));
        assert_eq!(bounds(u32::MAX).0, REPAIRS_INFLIGHT_MAX);
        let alone = StreamConfig { partitions: 0, repair_parallel: 0, ..config };
        assert_eq!(alone.repair_width(0), 1);
    }

    /// An answer with as many replicas as there may be has room in a frame, whatever they are.
    #[test]
    fn answers_of_many_places_fit_a_frame() {
        for count in [1, 3, 5, wire::row::FRAGMENTS_MAX, SLOTS_CODED_MAX] {
            let replica = ReplicaPlace {
                server: ServerId::new(u32::MAX),
                disk: DiskId::new(u128::MAX),
                addr: ([0xffff; 8], u16::MAX).into(),
                fragment: 15,
            };
            let chunk = ChunkPlace {
                chunk: ChunkId::new(u64::MAX),
                epoch: Epoch::new(u64::MAX),
                base: u64::MAX,
                sealed: Some(1 << 31),
                replicas: vec![replica; count],
                acks: 16,
                token: [255; 16],
                copies: 16,
                data: 12,
                compression: Some(Compression::ZSTD),
            };
            let chunks = (LOCATE_REPLICAS_MAX / (count + 2)).min(LOCATE_MANY_CHUNKS_MAX);
            let view = StreamView {
                file: FileId::new(u64::MAX),
                chunks: vec![chunk; chunks],
                sealed_len: u64::MAX,
                open: true,
                epoch: Epoch::new(u64::MAX),
                policy: None,
                loss_accepted: true,
                converting: true,
            };
            let reply = ControlReply::Stream(StreamReply::Views(vec![view])).encode();
            assert!(reply.len() <= wire::frame::BODY_MAX, "{count}: {} bytes", reply.len());
        }
    }
}
