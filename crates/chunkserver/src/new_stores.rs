//! How a chunkserver's process makes stores, for orders to replace a disk.

use base::DiskId;
use futures_util::future::LocalBoxFuture;

/// Makes stores: the process's part, which knows how its stores are configured.
pub trait NewStores {
    /// An error, for operators, where a store cannot be made at `path` because of what lies there, or
    /// because no store is configured there. Changes nothing.
    fn check(&self, path: &str) -> LocalBoxFuture<'static, Result<(), String>>;

    /// Makes a store at `path` and has it served soon ([`Chunkserver::add_disk`](crate::Chunkserver::add_disk)); its incarnation.
    fn make(&self, path: &str) -> LocalBoxFuture<'static, Result<DiskId, String>>;
}
