//! Ports of the stream service: a replicated log, chunkservers, a view of them.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, Kind, ServerId};
use wire::control::{ControlError, Conversion, CopyOrder, ReplicaPlace, RowCheck, RowFindings};
use wire::data::{DataError, ReplicaStat};
use wire::token::{IssuerTime, Token};

use super::state::StreamMachine;
use crate::placement::{ClusterView, ReplicaLocation};
use master_consensus::{Group, LocalFuture, ProposeError, ReadError};

/// The replicated log of one stream partition, as its leader uses it.
pub trait Log: Clone + 'static {
    /// Commits a command and returns the machine's answer.
    fn propose(&self, command: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, ProposeError>>;

    /// Returns when the state here holds all that was committed before the call
    /// (`protocols.md` 4.3).
    fn read_index(&self) -> impl Future<Output = Result<(), ReadError>>;

    /// The term in which this member leads, as far as it knows.
    fn leading(&self) -> Option<u64>;

    /// Reads the state here.
    fn with_state<T>(&self, look: impl FnOnce(&StreamMachine) -> T) -> T;
}

impl Log for Group<StreamMachine> {
    async fn propose(&self, command: Vec<u8>) -> Result<Vec<u8>, ProposeError> {
        Group::propose(self, command).await
    }

    async fn read_index(&self) -> Result<(), ReadError> {
        Group::read_index(self).await.map(|_| ())
    }

    fn leading(&self) -> Option<u64> {
        let leadership = self.leadership();
        leadership.leading.then_some(leadership.term)
    }

    fn with_state<T>(&self, look: impl FnOnce(&StreamMachine) -> T) -> T {
        self.read(look)
    }
}

/// Cause of a failed call to a chunkserver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallError {
    /// No connection, no answer in time: it may or may not have taken effect.
    Unreachable,
    /// The data path's answer.
    Data(DataError),
    /// The control path's answer.
    Control(ControlError),
}

impl CallError {
    /// The caller's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            CallError::Unreachable => Kind::Unknown,
            CallError::Data(error) => error.kind(),
            CallError::Control(error) => error.kind,
        }
    }

    /// True when asking again may give another answer.
    pub fn is_passing(&self) -> bool {
        matches!(self.kind(), Kind::Unknown | Kind::Retry | Kind::Refresh | Kind::Full)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unreachable => f.write_str("the chunkserver does not answer"),
            CallError::Data(error) => error.fmt(f),
            CallError::Control(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {}

/// Replicas on a disk, in order, and whether more follow.
pub type Listing = (Vec<(ChunkId, ReplicaStat)>, bool);

/// Calls of the leader to chunkservers. Implementations bound their own queues and retry
/// nothing; the caller sets the deadline and drops the future when it has passed.
pub trait ChunkserverCalls {
    /// Fences a replica (`protocols.md` 2.1).
    fn fence(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        epoch: Epoch,
        token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>>;

    /// Seals a replica at a committed length.
    fn seal(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        len: u32,
        token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>>;

    /// State of a replica.
    fn stat(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>>;

    /// Makes or extends a replica; answers with its state and the bytes that were copied.
    fn replicate(
        &self,
        to: ReplicaPlace,
        order: CopyOrder,
    ) -> LocalFuture<'_, Result<(ReplicaStat, u64), CallError>>;

    /// Makes a chunk from another, by the server of `to`: see
    /// [`wire::control::ChunkserverRequest::Convert`].
    fn convert(
        &self,
        to: ReplicaPlace,
        order: Conversion,
    ) -> LocalFuture<'_, Result<Vec<u32>, CallError>>;

    /// The digest of a sealed replica, from its medium.
    fn digest(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        len: u32,
    ) -> LocalFuture<'_, Result<u32, CallError>>;

    /// Looks at whole rows of a coded chunk, by the server of `to`, which has one of its fragments: see
    /// [`wire::control::ChunkserverRequest::CheckRows`].
    fn check_rows(
        &self,
        to: ReplicaPlace,
        order: RowCheck,
    ) -> LocalFuture<'_, Result<RowFindings, CallError>>;

    /// Deletes replicas, unless the order arrives later than `not_after`.
    /// Those that are absent get a tombstone.
    fn delete(
        &self,
        to: ReplicaPlace,
        chunks: Vec<ChunkId>,
        not_after: IssuerTime,
    ) -> LocalFuture<'_, Result<(), CallError>>;

    /// Forgets tombstones, unless the order arrives later than `not_after`.
    fn forget(
        &self,
        to: ReplicaPlace,
        chunks: Vec<ChunkId>,
        not_after: IssuerTime,
    ) -> LocalFuture<'_, Result<(), CallError>>;

    /// Replicas and tombstones of a disk.
    fn list(
        &self,
        to: ReplicaPlace,
        after: Option<ChunkId>,
        limit: u32,
    ) -> LocalFuture<'_, Result<Listing, CallError>>;
}

/// The masters' soft view of chunkservers.
pub trait ClusterSource {
    /// All registered chunkservers as they are known now. Called often: cached between changes.
    fn view(&self) -> Rc<ClusterView>;

    /// Servers and disks missing of them, for operators; none when nothing is.
    fn missing(&self) -> Option<String> {
        None
    }
}

/// A replica's address on the wire; unspecified while its server is unknown.
pub(crate) fn replica_place(view: &ClusterView, server: ServerId, disk: DiskId) -> ReplicaPlace {
    let addr =
        view.addr(ReplicaLocation { server, disk }).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    ReplicaPlace { server, disk, addr, fragment: 0 }
}
