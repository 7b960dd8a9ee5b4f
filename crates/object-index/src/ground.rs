//! What owners, managers and gateways stand on: a lease, directories of the core, ways to each other. Tests
//! replace them.

use std::rc::Rc;

use base::Fault;
use futures_util::future::LocalBoxFuture;
use object_proto::{
    CatalogReply, CatalogRequest, Error, RangeId, RangeReply, RangeRequest, Reply, Request,
    StorageRule,
};
use runtime::Duration;
use table::Store;

/// Says how long what an owner knows is not stale.
pub trait Lease {
    /// True while no other owner can have come.
    fn is_valid(&self) -> bool;

    /// The manager's wall clock, or an earlier time, microseconds since 1970; none if the manager was not heard.
    fn manager_us(&self) -> Option<u64> {
        None
    }
}

impl Lease for tenancy::Term {
    fn is_valid(&self) -> bool {
        tenancy::Term::is_valid(self)
    }
}

/// Directories of the core.
pub trait Files {
    /// The files of a directory, which is made if it is missing. What was made of a directory that is removed
    /// then makes and finds nothing any more.
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>>;

    /// As [`Files::dir`]; files that are made there are for bodies, and stored as a bucket says.
    fn dir_for<'a>(
        &'a self,
        path: &'a str,
        storage: StorageRule,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>>;

    /// Names of the directories in one; none while it is missing.
    fn dirs<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Vec<String>, Fault>>;

    /// Removes a directory with its files, and is content when there is none.
    fn remove_dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<(), Fault>>;
}

/// How a gateway reaches owners and the manager. An answer that is lost, or comes too late, is
/// [`Error::Unknown`].
pub trait Owners {
    /// Asks who is concerned, wherever that is; waits `timeout` at most.
    fn call(&self, request: Request, timeout: Duration)
    -> LocalBoxFuture<'_, Result<Reply, Error>>;
}

/// How the manager reaches the owners of ranges.
pub trait Ranges {
    /// The epoch of a range's owner; none while it has no owner.
    fn epoch(&self, range: RangeId) -> Option<u64>;

    /// Asks a range's owner. An answer may be lost.
    fn order(
        &self,
        range: RangeId,
        request: RangeRequest,
    ) -> LocalBoxFuture<'_, Result<RangeReply, Error>>;
}

/// How a range's owner reaches the manager.
pub trait Managers {
    /// Asks the manager. An answer may be lost.
    fn ask(&self, request: CatalogRequest) -> LocalBoxFuture<'_, Result<CatalogReply, Error>>;
}
