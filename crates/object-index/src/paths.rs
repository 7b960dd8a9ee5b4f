//! Names in the core.

use object_proto::{RangeId, SessionId};

/// The lock of the owner.
pub const LOCK: &str = "object";
/// Directory of the object service.
pub const SERVICE_DIR: &str = "/.craton/object";
/// Directory of the catalog's table.
pub const CATALOG_DIR: &str = "/.craton/object/catalog";
/// Directory of the ranges' directories.
pub const RANGES_DIR: &str = "/.craton/object/ranges";

/// Directory of the directories of gateways' sessions.
pub const SESSIONS_DIR: &str = "/.craton/object/sessions";

/// Directory of a session: the files that it sends bodies in, until the ranges keep them.
pub fn session_dir(session: SessionId) -> String {
    format!("{SESSIONS_DIR}/{:016x}", session.get())
}

/// The session of a directory of that name.
pub fn session_of(name: &str) -> Option<SessionId> {
    let session = u64::from_str_radix(name, 16).ok().map(SessionId::new)?;
    session_dir(session).ends_with(&format!("/{name}")).then_some(session)
}

/// Directory of a range: its table and the files of bodies.
pub fn range_dir(range: RangeId) -> String {
    format!("{RANGES_DIR}/{}", range.get())
}
