//! Names in the core.

/// The lock of the owner.
pub const LOCK: &str = "object";
/// Directory of the catalog's table.
pub const CATALOG_DIR: &str = "/.craton/object/catalog";
/// Directory of the range: its table and the files of bodies.
pub const RANGE_DIR: &str = "/.craton/object/ranges/1";
