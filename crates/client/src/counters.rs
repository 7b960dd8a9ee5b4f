//! Counts of the client's work, for benchmarks and amplification figures (C29).

use std::cell::Cell;

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
    /// Questions to the stream service about chunks.
    locates,
    /// Reads that found their chunk in the cache.
    cache_hits,
    /// Questions to masters that were asked again.
    control_retries,
}

pub(crate) fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}
