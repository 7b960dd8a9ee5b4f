//! [`FileUses`]: reads of segments' directories for the manager.

use block_proto::VolumeInfo;
use block_volume::space::Use;
use futures_util::future::LocalBoxFuture;

/// Lists the DataFiles of volumes. The manager does not know how a segment's directory is read.
pub trait FileUses {
    /// The DataFiles of volumes and snapshots, from their directories: no server has to have them
    /// open. Changes that an owner is about to make may be missing. An error when a directory
    /// cannot be read.
    fn uses<'a>(
        &'a self,
        volumes: &'a [VolumeInfo],
    ) -> LocalBoxFuture<'a, Result<Vec<Use>, client::Error>>;
}
