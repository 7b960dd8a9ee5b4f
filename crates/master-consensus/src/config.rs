//! [`GroupConfig`]: times and limits of a group.

use std::time::Duration;

use openraft::{Config, SnapshotPolicy};

use super::limits::{APPEND_ENTRIES_MAX, PROPOSALS_INFLIGHT_MAX};

/// Configuration of a group. All members of a group use the same times.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The group, in every message.
    pub group: u32,
    /// This member.
    pub node: u64,
    /// A follower that receives nothing for this long stands for election, a little later than those
    /// before it.
    pub election_timeout: Duration,
    /// Pause between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// A proposal or read without an outcome by then is given up.
    pub request_timeout: Duration,
    /// The owner calls [`Group::heartbeat`] at that pace, for all its groups at once, so that their
    /// messages go together. Otherwise the group has its own timer.
    pub heartbeats_together: bool,
    /// Entries after which a snapshot is taken.
    pub snapshot_after: u64,
    /// Entries in front of a snapshot that are kept, for followers that are a little behind.
    pub entries_kept: u64,
}

impl GroupConfig {
    /// Values for tests; a master has those of its configuration (`protocols.md` 6.5).
    pub fn new(group: u32, node: u64) -> GroupConfig {
        GroupConfig {
            group,
            node,
            election_timeout: Duration::from_millis(300),
            heartbeat: Duration::from_millis(50),
            heartbeats_together: false,
            request_timeout: Duration::from_secs(2),
            snapshot_after: 20_000,
            entries_kept: 5_000,
        }
    }

    /// Time limit of a call to another member, with its disk.
    pub(super) fn call_timeout(&self) -> Duration {
        self.election_timeout / 2
    }

    pub(super) fn to_raft(&self) -> Config {
        let millis = |duration: Duration| duration.as_millis() as u64;
        Config {
            cluster_name: format!("group {}", self.group),
            // The longer of the two is a leader's lease, in which others get no vote; the shorter one
            // limits calls. Elections are ours.
            election_timeout_min: millis(self.call_timeout()),
            election_timeout_max: millis(self.election_timeout * 2 / 3),
            enable_elect: false,
            heartbeat_interval: millis(self.heartbeat),
            install_snapshot_timeout: millis(self.election_timeout),
            max_payload_entries: APPEND_ENTRIES_MAX,
            max_append_entries: Some(APPEND_ENTRIES_MAX),
            replication_lag_threshold: self.snapshot_after + self.entries_kept,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_after),
            max_in_snapshot_log_to_keep: self.entries_kept,
            purge_batch_size: (self.snapshot_after / 8).max(1),
            api_channel_size: Some(2 * PROPOSALS_INFLIGHT_MAX as u64),
            notification_channel_size: Some(8192),
            state_machine_channel_size: Some(1024),
            enable_pre_vote: Some(true),
            // A restarted leader is elected again: its commit may be older than its last answers.
            enable_leader_restore: Some(false),
            backoff: "20ms 40ms ...200ms".to_owned(),
            ..Config::default()
        }
    }
}
