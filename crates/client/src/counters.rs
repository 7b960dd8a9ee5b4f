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
