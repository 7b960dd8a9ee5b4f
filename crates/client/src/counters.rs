//! Counts of the client's work, for benchmarks and amplification figures (C29).

use std::cell::Cell;

use metrics::{Counter, Registry};
use wire::control::StreamChange;
use wire::data::Purpose;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Running totals of one client.
        #[derive(Default, Debug)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Cell<u64>,)*
        }

        /// Totals of one client since its start.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn totals(&self) -> Totals {
                Totals { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Appends acknowledged.
    appends,
    /// Data bytes acknowledged.
    append_bytes,
    /// Bytes of sectors sent to replicas, repeats included.
    sent_bytes,
    /// Sendings of appends that were repeats.
    resends,
    /// Chunks left because a replica failed.
    chunks_failed,
    /// Chunks that ended because too few replicas answered in time (B15).
    chunks_blocked,
    /// Data bytes given to readers.
    read_bytes,
    /// Bytes of sectors received from replicas.
    received_bytes,
    /// Reads that went on at another replica.
    read_failovers,
    /// Reads that were sent to another replica too, since the first had not answered (C16).
    backup_reads,
    /// Those of them that were answered first.
    backup_reads_won,
    /// Reads for which another replica was not asked at once, since the budget was spent.
    backup_reads_refused,
    /// Appends that were read back from what was compressed and coded before they were sent (C24).
    rows_verified,
    /// Those of them that were not what they were made of: at the first, portable code takes over.
    rows_wrong,
    /// Questions to the stream service about chunks.
    locates,
    /// Reads that found their chunk in the cache.
    cache_hits,
    /// Questions to masters that were asked again.
    control_retries,
}

/// Bytes that all clients of a process have appended, for its page of metrics (C29).
pub(crate) struct AppendMetrics {
    acknowledged: [Counter; Purpose::ALL.len()],
    ended: Counter,
    verified: Counter,
    wrong: Counter,
    blocked: Counter,
}

impl AppendMetrics {
    pub(crate) fn new(registry: &Registry) -> AppendMetrics {
        let (name, help) =
            ("craton_client_appended_bytes_total", "Bytes of files whose appends are durable.");
        let of = |purpose: Purpose| registry.counter(name, help, &[("purpose", purpose.name())]);
        let help = "Those of them in chunks that their writers have ended.";
        let ended = registry.counter("craton_client_ended_bytes_total", help, &[]);
        let help =
            "Appends that were read back from what was compressed and coded before they were sent.";
        let verified = registry.counter("craton_client_rows_verified_total", help, &[]);
        let help =
            "Those of them that were not what they were made of: the CPU or its memory errs.";
        let wrong = registry.counter("craton_client_rows_wrong_total", help, &[]);
        let help =
            "Chunks that their writers ended because too few replicas answered in time (B15).";
        let blocked = registry.counter("craton_client_chunks_blocked_total", help, &[]);
        AppendMetrics { acknowledged: Purpose::ALL.map(of), ended, verified, wrong, blocked }
    }

    /// Counts a chunk that ended because too few replicas answered in time.
    pub(crate) fn end_blocked(&self) {
        self.blocked.add(1);
    }

    /// Counts appends that were read back, and those of them that were wrong.
    pub(crate) fn verify(&self, verified: u64, wrong: u64) {
        self.verified.add(verified);
        self.wrong.add(wrong);
    }

    /// Counts an append that is durable.
    pub(crate) fn acknowledge(&self, purpose: Purpose, len: u32) {
        self.acknowledged[purpose as usize].add(u64::from(len));
    }

    /// Counts a chunk that has ended at a length.
    pub(crate) fn end_chunk(&self, len: u32) {
        self.ended.add(u64::from(len));
    }
}

/// Bytes of the chunk that a change ends.
pub(crate) fn ended_len(change: &StreamChange) -> u32 {
    match change {
        StreamChange::Advance { len, .. } | StreamChange::Close { sealed: Some((_, len)), .. } => {
            *len
        }
        _ => 0,
    }
}

pub(crate) fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}
