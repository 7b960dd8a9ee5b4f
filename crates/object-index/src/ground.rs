//! What owners and gateways stand on: a lease, directories of the core, a way to owners. Tests replace
//! them.

use std::rc::Rc;

use base::Fault;
use futures_util::future::LocalBoxFuture;
use object_proto::{Error, Reply, Request};
use runtime::Duration;
use table::Store;

/// Says how long what an owner knows is not stale.
pub trait Lease {
    /// True while no other owner can have come.
    fn is_valid(&self) -> bool;
}

impl Lease for tenancy::Term {
    fn is_valid(&self) -> bool {
        tenancy::Term::is_valid(self)
    }
}

/// Directories of the core.
pub trait Files {
    /// The files of a directory, which is made if it is missing.
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>>;
}

/// How owners are reached. An answer that is lost, or comes too late, is [`Error::Unknown`].
pub trait Owners {
    /// Asks the owner, wherever it is; waits `timeout` at most.
    fn call(&self, request: Request, timeout: Duration)
    -> LocalBoxFuture<'_, Result<Reply, Error>>;
}
