//! Buckets and objects on the core (O1): keys, rows, decisions and bodies, the owner of a range, and
//! the service that gateways stand on. The rules are those of `object-protocols.md`, whose sections the
//! sources name.
//!
//! The leading object manager has the catalog, and gives ranges to object servers under leases; gateways ask
//! both, and keep what they need of the catalog for each request. What is not built is listed in
//! `docs/fidelity.md` (O1).
//!
//! Invariant: knows no HTTP and no signature; keeps nothing that is not in the core.

mod answer_pages;
#[cfg(test)]
mod answer_pages_tests;
mod assign;
#[cfg(test)]
mod assign_tests;
mod bodies;
mod body_files;
mod buckets;
mod catalog;
mod catalog_calls;
mod catalog_splits;
mod check_files;
mod collect;
mod collect_files;
mod config;
mod content;
mod decisions;
mod dues;
mod expire;
mod facts;
mod fields;
mod file_rows;
mod find_versions;
mod foreign;
mod fullness;
pub mod fuzz;
mod ground;
mod halves;
mod headers;
mod heat;
mod holds;
mod kept;
mod key_locks;
mod keys;
mod lifecycle;
pub mod limits;
mod list;
#[cfg(test)]
mod list_tests;
mod list_versions;
mod locks;
mod logs;
mod manager;
mod map;
mod messages;
mod new_fact;
mod once;
mod operator;
mod orders;
mod output;
mod pace;
mod packs;
#[cfg(test)]
mod page_tests;
mod pages;
mod parts;
mod pass_rows;
mod paths;
mod peer;
mod piece;
mod planted;
mod quotas;
mod range;
mod recent;
mod remote;
mod room;
mod routes;
mod row;
#[cfg(test)]
mod row_tests;
mod rule;
mod sending;
mod server;
mod server_row;
mod service;
mod session;
mod sessions;
mod split;
mod splits;
mod stats;
mod threads;
mod traced;
mod upload_row;
mod uploads;
mod usage;
mod users;
mod versions;
mod watchers;
mod whole;
mod wrapping_keys;

pub use config::{ClientFiles, Config, dirs_of, remove_dir_of};
pub use content::BodyContent;
pub use ground::{Files, Lease, Managers, Owners, Ranges};
pub use manager::ObjectManager;
pub use messages::OBJECTS;
pub use pace::Pace;
pub use packs::PackOptions;
pub use paths::{CATALOG_DIR, LOCK, RANGES_DIR, SERVICE_DIR, SESSIONS_DIR, range_dir, session_dir};
pub use peer::{Local, ObjectPeer};
pub use planted::{Bugs, Planted};
pub use remote::RemoteOwners;
pub use room::Room;
pub use rule::{Held, ManagerRule, RangeRule};
pub use server::ObjectServer;
pub use service::{BodyUpload, Service, ServiceOptions};
pub use stats::{ManagerStats, ServerStats, TableStats};
pub use threads::ServiceHandle;
