//! [`MasterConfig`]: what a master is given at its start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::ClusterId;
use chunkstore::flash::FormatOptions;
use master_consensus::limits::LOG_SEGMENT_LEN;
use master_consensus::{GroupConfig, store_options};
use master_namespace::NamespaceTiming;
use master_stream::StreamConfig;
use wire::control::MasterInfo;
use wire::handshake::ClusterKey;

use crate::first::FirstNumbers;
use crate::limits::{ABNORMAL_SHARE, PARTITIONS_MAX, REPORT_HOSTS, SLOW_DISK_MIN, UNREACHED};

/// Configuration of a master, given at its start.
#[derive(Clone)]
pub struct MasterConfig {
    /// Its Raft ID, from 1, unique in the cluster for ever.
    pub id: u64,
    /// Its name, e.g. `m1`.
    pub name: String,
    /// Address to listen at; port 0 picks a free one, for a cluster of one.
    pub addr: SocketAddr,
    /// Directory of its groups. Its own; made when absent.
    pub dir: PathBuf,
    /// The cluster; zero to draw one (a cluster of one), or to take the directory's.
    pub cluster: ClusterId,
    /// The secret that all roles share.
    pub key: Option<ClusterKey>,
    /// All masters, this one too. Those that are learned later count first.
    pub masters: Vec<MasterInfo>,
    /// Form a new cluster of `masters`, when the directory is empty. False: join one.
    pub form: bool,
    /// Number of namespace partitions, the same for ever.
    pub namespace_partitions: u16,
    /// Number of stream partitions, the same for ever.
    pub stream_partitions: u16,
    /// First values of a new cluster's counters.
    pub first: FirstNumbers,
    /// Times and sizes.
    pub timing: MasterTiming,
}

/// Times and sizes of a master. The simulator randomises them.
#[derive(Clone, Debug)]
pub struct MasterTiming {
    /// A follower that receives nothing for this long stands for election, a little later than those
    /// before it.
    pub election_timeout: Duration,
    /// A master that answers no ping for so long is not reached.
    pub unreached: Duration,
    /// Hosts whose clients' reports that a chunkserver is not reached are enough without a failed ping.
    pub report_hosts: usize,
    /// The same of doubts about the holder of a lock.
    pub doubt_hosts: usize,
    /// When more than one chunkserver of so many is abnormal, none is named to clients.
    pub abnormal_share: usize,
    /// No disk is slow, by the times of heartbeats, below this latency.
    pub slow_disk_min: Duration,
    /// Pause between two heartbeats of a group's leader.
    pub heartbeat: Duration,
    /// A proposal or read without an outcome by then is given up.
    pub request_timeout: Duration,
    /// One call to another master.
    pub call_timeout: Duration,
    /// Entries of a group after which a snapshot is taken.
    pub snapshot_after: u64,
    /// Entries in front of a snapshot that are kept.
    pub entries_kept: u64,
    /// Bytes of one segment of a group's log; fixed when the directory is made.
    pub log_segment_len: u64,
    /// Format options of the store in the directory, when it is made.
    pub store: FormatOptions,
    /// A chunkserver that is silent for so long is dead: a dozen of its heartbeats.
    pub dead_after: Duration,
    /// Namespace partitions.
    pub namespace: NamespaceTiming,
    /// Stream partitions.
    pub stream: StreamConfig,
}

impl Default for MasterTiming {
    fn default() -> MasterTiming {
        let group = GroupConfig::new(0, 0);
        MasterTiming {
            election_timeout: group.election_timeout,
            unreached: UNREACHED,
            report_hosts: REPORT_HOSTS,
            doubt_hosts: REPORT_HOSTS,
            abnormal_share: ABNORMAL_SHARE,
            slow_disk_min: SLOW_DISK_MIN,
            heartbeat: group.heartbeat,
            request_timeout: group.request_timeout,
            call_timeout: Duration::from_secs(1),
            snapshot_after: group.snapshot_after,
            entries_kept: group.entries_kept,
            log_segment_len: LOG_SEGMENT_LEN,
            store: store_options(),
            dead_after: Duration::from_secs(3),
            namespace: NamespaceTiming::default(),
            stream: StreamConfig::default(),
        }
    }
}

impl MasterConfig {
    /// An error, in words, when the configuration contradicts itself.
    pub(crate) fn check(&self) -> Result<(), String> {
        let partitions = 1..=PARTITIONS_MAX;
        let wrong = if self.id == 0 {
            "a master's ID counts from 1"
        } else if self.name.is_empty() {
            "a master needs a name"
        } else if !partitions.contains(&self.namespace_partitions)
            || !partitions.contains(&self.stream_partitions)
        {
            "there are 1 to 256 partitions of each kind"
        } else if self.form && self.cluster == ClusterId::default() && self.masters.len() > 1 {
            "several masters form a cluster under one ID: give each of them the same"
        } else {
            return Ok(());
        };
        Err(wrong.to_owned())
    }
}
