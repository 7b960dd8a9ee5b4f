//! Links between processes (C22, N5, D5, D11): calls with priorities, deadlines and cancellation
//! over TCP, inside a process, and in the simulator, behind one [`Endpoint`].
//!
//! A link is made on the first call to a peer, shared by all calls, and made again after it
//! breaks. Small frames never wait behind megabytes: large messages are sent in parts. A payload
//! is received into the aligned buffer that goes to disk.
//!
//! Invariant: knows no store and no service; never decodes a body or payload.

mod bodies;
mod connect;
mod deferred;
mod endpoint;
mod error;
mod handshake;
mod limits;
mod link;
mod local;
mod message;
mod queue;
mod receive;
mod slot;
mod stats;
mod writer;

pub use endpoint::{Endpoint, Identity};
pub use error::{CallError, TransportError};
pub use limits::{LINK_DEAD, Limits};
pub use message::{Handler, Incoming, PeerInfo, Reply, Request, Response};
pub use stats::{LinkStats, ServiceStats, Stats};
pub use wire::frame::{Priority, Service};
pub use wire::handshake::ClusterKey;
pub use wire::token::Token;
