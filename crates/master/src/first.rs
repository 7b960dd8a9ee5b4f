//! First values of a new cluster's counters.

use base::{Epoch, ServerId};

/// First values of a new cluster's counters. All of its masters need the same, at each start. No
/// configuration file has them: the simulator brings counters near the ends of their ranges so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstNumbers {
    /// Number of the first file of a namespace partition.
    pub file: u64,
    /// Number of the first chunk of a stream partition.
    pub chunk: u64,
    /// Epoch of a stream before its first writer.
    pub epoch: Epoch,
    /// The fencing token before the first lock.
    pub fencing: u64,
    /// The number before the first chunkserver's.
    pub server: ServerId,
}

impl Default for FirstNumbers {
    fn default() -> FirstNumbers {
        let server = ServerId::new(0);
        FirstNumbers { file: 1, chunk: 1, epoch: Epoch::NONE, fencing: 0, server }
    }
}
