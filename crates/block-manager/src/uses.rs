//! [`FileUses`]: what the manager asks of those who can read a segment's directory.

use block_proto::VolumeInfo;
use block_volume::space::Use;
use futures_util::future::LocalBoxFuture;

/// Says which DataFiles volumes name. The manager does not know how a segment's directory is read.
pub trait FileUses {
    /// Which DataFiles volumes and snapshots name, as their directories show: no server has to have
    /// them open. What an owner is about to change may be missing.
    fn uses<'a>(
        &'a self,
        volumes: &'a [VolumeInfo],
    ) -> LocalBoxFuture<'a, Result<Vec<Use>, client::Error>>;
}
