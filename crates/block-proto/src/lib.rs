//! Messages between block processes: requests and replies of block managers and block servers (B6,
//! B9, B11), the layouts of a block server's data path, the times that all rely on, names in the
//! core, and the search for the leading block manager.
//!
//! Invariant: its only state is the known leader; a generated type never leaves it.

pub mod answers;
mod control;
mod data;
mod ids;
pub mod lease;
pub mod limits;
pub mod managers;
mod message;
pub mod paths;
mod proto;

pub use control::*;
pub use data::*;
pub use ids::{BlockServerId, attachment_nonce, attachment_process};
pub use managers::Managers;
pub use message::{Reply, Request};
pub use proto::fuzz_control;
pub use tenancy::lease::Seen;

use block_volume::geometry::{Geometry, GeometryError};
use wire::control::ServiceTag;
use wire::frame::Service;

/// Raw layouts between block clients and block servers; payloads are bytes of volumes.
pub const SERVICE: Service = Service::new(4).expect("a service's number");

/// Requests to the block manager that leads, and their replies.
pub const MANAGER: ServiceTag = ServiceTag::new(6).expect("a service's tag");
/// Requests to a block server, and their replies.
pub const SERVER: ServiceTag = ServiceTag::new(7).expect("a service's tag");

/// The geometry of a stored volume.
pub fn geometry(spec: &VolumeSpec) -> Result<Geometry, GeometryError> {
    let sizes = spec.geometry;
    Geometry::stored(sizes.group_bytes, sizes.segments_per_group, sizes.data_sector)
}
