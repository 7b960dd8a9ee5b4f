//! What block managers, block servers and their clients have to agree on beside the messages: times,
//! paths in the core, and how a leading manager is found and asked.

pub mod lease;
pub mod limits;
pub mod managers;
pub mod paths;

pub use managers::Managers;

use wire::control::VolumeSpec;
use wire::frame::Service;

use block_volume::geometry::{Geometry, GeometryError};

/// Raw layouts between block clients and block servers; payloads are bytes of volumes.
pub const SERVICE: Service = Service::new(4).expect("a service's number");

/// A volume's geometry.
pub fn geometry(spec: &VolumeSpec) -> Result<Geometry, GeometryError> {
    let sizes = spec.geometry;
    Geometry::new(sizes.group_bytes, sizes.segments_per_group, sizes.data_sector)
}
