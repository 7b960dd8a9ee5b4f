//! Names in the core.

use object_proto::RangeId;

/// The lock of the owner.
pub const LOCK: &str = "object";
/// Directory of the object service.
pub const SERVICE_DIR: &str = "/.craton/object";
/// Directory of the catalog's table.
pub const CATALOG_DIR: &str = "/.craton/object/catalog";
/// Directory of the ranges' directories.
pub const RANGES_DIR: &str = "/.craton/object/ranges";

/// Directory of a range: its table and the files of bodies.
pub fn range_dir(range: RangeId) -> String {
    format!("{RANGES_DIR}/{}", range.get())
}
