//! Errors below a group, and the reaction of its owner.

use std::fmt;
use std::io;
use std::path::PathBuf;

use base::{ChunkId, Kind};
use chunkstore::StoreError;

/// A log or snapshot device failed. Its state is in doubt; it is not used again before the
/// process restarts and replays it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// The system refused.
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        kind: io::ErrorKind,
    },
    /// A segment between others is gone, or has another length than it was made with.
    Segment {
        /// The file.
        path: PathBuf,
    },
    /// The store refused.
    Store {
        /// The operation.
        operation: &'static str,
        /// The chunk.
        chunk: ChunkId,
        /// The store's error.
        error: StoreError,
    },
    /// Bytes of a chunk that were durable do not verify.
    Damaged {
        /// The chunk.
        chunk: ChunkId,
        /// Offset in it.
        offset: u32,
    },
    /// The buffer pool, or the store, stayed exhausted.
    NoBuffers,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Io { operation, path, kind } => {
                write!(f, "cannot {operation} {}: {kind}", path.display())
            }
            DeviceError::Segment { path } => write!(
                f,
                "log segment {} is missing or has the wrong length: remove this voter and let it \
                 rejoin as a learner",
                path.display()
            ),
            DeviceError::Store { operation, chunk, error: StoreError::Full } => write!(
                f,
                "cannot {operation} {chunk} of the master's store: the disk is full: make room"
            ),
            DeviceError::Store { operation, chunk, error } => {
                write!(f, "cannot {operation} {chunk} of the master's store: {error}")
            }
            DeviceError::Damaged { chunk, offset } => write!(
                f,
                "{chunk} of the master's store does not verify at {offset}: remove this voter and \
                 let it rejoin as a learner"
            ),
            DeviceError::NoBuffers => {
                f.write_str("no buffers for the log: raise the memory budget")
            }
        }
    }
}

impl std::error::Error for DeviceError {}

/// Cause for which a Raft log cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogError {
    /// The device failed.
    Device(DeviceError),
    /// A record that was known to be durable does not verify. This voter must leave the quorum
    /// and rejoin as a learner (`protocols.md` 4.1).
    Corrupt {
        /// Position on the device.
        position: u64,
        /// Sequence of the record; 0 when it is not known.
        seq: u64,
    },
    /// A committed command cannot be decoded: another version of this program wrote it, or it is
    /// damaged. Skipping it would make this member's state differ from the others'.
    BadCommand {
        /// Its index in the group's log.
        index: u64,
        /// Its bytes.
        len: usize,
    },
    /// The snapshot that the purged entries went into does not verify. As [`LogError::Corrupt`].
    SnapshotLost,
    /// The log was closed, or failed before.
    Closed,
    /// The Raft library has ended: a checkpoint could not be written, or a snapshot not installed.
    Ended {
        /// The library's error, with its cause.
        cause: String,
    },
}

impl LogError {
    /// The owner's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            LogError::Device(DeviceError::Segment { .. } | DeviceError::Damaged { .. }) => {
                Kind::Corrupt
            }
            LogError::Device(_) | LogError::Ended { .. } => Kind::Unknown,
            LogError::Corrupt { .. } | LogError::BadCommand { .. } | LogError::SnapshotLost => {
                Kind::Corrupt
            }
            LogError::Closed => Kind::Reroute,
        }
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Device(error) => error.fmt(f),
            LogError::Corrupt { position, seq } => write!(
                f,
                "Raft log record {seq} at {position} was durable and does not verify: remove this \
                 voter and let it rejoin as a learner"
            ),
            LogError::BadCommand { index, len } => write!(
                f,
                "committed entry {index} ({len} bytes) cannot be decoded: it was written by a \
                 newer version, or is damaged; nothing behind it is applied. Start this master \
                 with the version that the other masters run; if they all run this one, remove \
                 this voter and let it rejoin as a learner"
            ),
            LogError::SnapshotLost => f.write_str(
                "the snapshot in front of the Raft log does not verify: remove this voter and let \
                 it rejoin as a learner",
            ),
            LogError::Closed => f.write_str("the Raft log is closed"),
            LogError::Ended { cause } => write!(f, "this member has stopped: {cause}"),
        }
    }
}

impl std::error::Error for LogError {}

impl From<DeviceError> for LogError {
    fn from(error: DeviceError) -> LogError {
        LogError::Device(error)
    }
}

impl From<LogError> for io::Error {
    fn from(error: LogError) -> io::Error {
        io::Error::other(error)
    }
}
