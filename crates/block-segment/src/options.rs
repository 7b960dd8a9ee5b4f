//! Options of a block server for its segments.

use std::rc::Rc;

use base::{Fault, MIB};
use block_volume::record::{FILE_BYTES, RECORD};
use futures_util::future::LocalBoxFuture;
use runtime::Duration;
use table::Store;

use super::limits::{
    CHECKPOINT_UPDATES_DEFAULT, COLLECT_RATE_DEFAULT, FILE_BYTES_DEFAULT, GARBAGE_PERCENT_DEFAULT,
    RECENT_BYTES_DEFAULT, SCRUB_PERIOD_DEFAULT, SCRUB_RATE_DEFAULT, TXN_UPDATES_DEFAULT,
    TXN_UPDATES_MAX, TXN_WAIT_DEFAULT,
};

/// Finds the directory that a segment's content is linked from, when it has to be.
pub type LinkFrom = Box<dyn Fn() -> LocalBoxFuture<'static, Result<Rc<dyn Store>, Fault>>>;

/// Behaviour of a [`crate::Segment`]. None of it is part of the format: each opening may choose
/// other values.
#[derive(Clone, Debug)]
pub struct Options {
    /// Make the segment when its directory is empty.
    pub create: bool,
    /// Bytes of a DataFile, 16 KiB to 4 GiB (B2).
    pub file_bytes: u64,
    /// Bytes of the last records kept in memory, which no replica may show yet (`protocols.md`
    /// 1.6). With fewer than the appends in flight have, reads of them wait.
    pub recent_bytes: usize,
    /// Updates of the index at which a TxnFile batch is written, 1 to 8192.
    pub txn_updates: usize,
    /// Longest wait of an update for its batch.
    pub txn_wait: Duration,
    /// Updates in the TxnFile at which changed index pages are written.
    pub checkpoint_updates: u64,
    /// Garbage at which collection begins, in percent of all blocks in DataFiles, 1 to 90 (B3).
    pub garbage_percent: u32,
    /// Changes are refused, as in a snapshot: its blocks stay where they are, and the scrub does
    /// not store its progress.
    pub read_only: bool,
    /// Collect garbage at all (B3); without, blocks stay where they are.
    pub collect: bool,
    /// Collection packs blocks with LZ4 where that saves an eighth (B3, C19).
    pub compress: bool,
    /// Bytes of DataFiles that collection reads in a second, unless there is half as much garbage
    /// again as [`Options::garbage_percent`].
    pub collect_bytes_per_second: u64,
    /// Bytes that the scrubs of all segments of the process read in a second at most; 0: there
    /// are none (B14).
    pub scrub_bytes_per_second: u64,
    /// Between the begins of two scrubs.
    pub scrub_period: Duration,
    /// The table that holds the TxnFile and the index pages.
    pub table: table::Options,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create: true,
            file_bytes: FILE_BYTES_DEFAULT,
            recent_bytes: RECENT_BYTES_DEFAULT,
            txn_updates: TXN_UPDATES_DEFAULT,
            txn_wait: TXN_WAIT_DEFAULT,
            checkpoint_updates: CHECKPOINT_UPDATES_DEFAULT,
            garbage_percent: GARBAGE_PERCENT_DEFAULT,
            read_only: false,
            collect: true,
            compress: true,
            collect_bytes_per_second: COLLECT_RATE_DEFAULT,
            scrub_bytes_per_second: SCRUB_RATE_DEFAULT,
            scrub_period: SCRUB_PERIOD_DEFAULT,
            // Pages do not compress; a page fits in a data block.
            table: table::Options {
                memtable_bytes: 8 * MIB as usize,
                compression: table::Compression::None,
                ..table::Options::default()
            },
        }
    }
}

impl Options {
    /// The same with every value within its bounds.
    pub fn clamped(mut self) -> Options {
        self.file_bytes = self.file_bytes.clamp(FILE_BYTES.0, FILE_BYTES.1);
        self.txn_updates = self.txn_updates.clamp(1, TXN_UPDATES_MAX);
        self.checkpoint_updates = self.checkpoint_updates.max(1);
        self.garbage_percent = self.garbage_percent.clamp(1, 90);
        self
    }
}

const _: () = assert!(FILE_BYTES.0 as usize > 2 * RECORD);
