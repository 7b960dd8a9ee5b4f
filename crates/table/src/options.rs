//! Options of a service.

use crate::limits::{
    BLOCK_BYTES, BLOCK_BYTES_DEFAULT, DATA_LOG_BYTES, DATA_LOG_LEAST, FILE_BYTES,
    FILE_BYTES_DEFAULT, MANIFEST_BYTES, MANIFEST_BYTES_DEFAULT, MEMTABLE_BYTES,
    MEMTABLE_BYTES_DEFAULT,
};
use crate::planted::Bugs;

/// Compression of blocks of sorted files (C19). Files keep what they were written with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// As they are: for small values of numbers and identifiers.
    None,
    /// LZ4, where it saves an eighth of a block.
    #[default]
    Lz4,
}

impl Compression {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Compression> {
        match code {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// Behaviour of a [`crate::Table`]. None of it is part of the table's format: each opening may
/// choose other values.
#[derive(Clone, Debug)]
pub struct Options {
    /// Make the table when its directory is empty.
    pub create: bool,
    /// Number of the owner that opens: one that is lower than that of an owner before it is refused
    /// ([`crate::Error::Fenced`]) before it seals anything. 0 is never refused.
    pub owner: u64,
    /// Bytes of changes kept in memory before they are sorted into files, 4 KiB to 256 MiB.
    pub memtable_bytes: usize,
    /// Batches may bring data, which stays in the log behind them ([`crate::Batch::put_with_data`]): a
    /// log then has this many bytes at most, 16 KiB to 1 GiB, and is released by the service. 0 for none.
    /// Programs that know no data refuse a table that ever had it.
    pub data_log_bytes: u64,
    /// Bytes of such a log at least. Between these two it has 1/256 of the data that other logs have: so
    /// half of it finds room in the reserve of a full cluster.
    pub data_log_least: u64,
    /// Bytes of a data block, 256 to 64 KiB.
    pub block_bytes: usize,
    /// Bytes of a sorted file, 16 KiB to 1 GiB.
    pub file_bytes: u64,
    /// Bytes of edits at which a manifest is rolled over (and four times its first edit), 1 KiB
    /// to 64 MiB.
    pub manifest_bytes: u64,
    /// Compression of new blocks.
    pub compression: Compression,
    /// Merge sorted runs by itself; without it only [`crate::Table::compact`] does.
    pub auto_compact: bool,
    /// A bug on purpose, in tests alone.
    pub bugs: Bugs,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create: true,
            owner: 0,
            memtable_bytes: MEMTABLE_BYTES_DEFAULT,
            data_log_bytes: 0,
            data_log_least: DATA_LOG_LEAST,
            block_bytes: BLOCK_BYTES_DEFAULT,
            file_bytes: FILE_BYTES_DEFAULT,
            manifest_bytes: MANIFEST_BYTES_DEFAULT,
            compression: Compression::default(),
            auto_compact: true,
            bugs: Bugs::default(),
        }
    }
}

impl Options {
    /// The same with every value within its bounds.
    pub fn clamped(mut self) -> Options {
        self.memtable_bytes = self.memtable_bytes.clamp(MEMTABLE_BYTES.0, MEMTABLE_BYTES.1);
        if self.data_log_bytes != 0 {
            self.data_log_bytes = self.data_log_bytes.clamp(DATA_LOG_BYTES.0, DATA_LOG_BYTES.1);
            self.data_log_least = self.data_log_least.clamp(DATA_LOG_BYTES.0, DATA_LOG_BYTES.1);
        }
        self.block_bytes = self.block_bytes.clamp(BLOCK_BYTES.0, BLOCK_BYTES.1);
        self.manifest_bytes = self.manifest_bytes.clamp(MANIFEST_BYTES.0, MANIFEST_BYTES.1);
        self.file_bytes = self.file_bytes.clamp(FILE_BYTES.0, FILE_BYTES.1);
        self
    }
}
