//! The gateway over HTTP, with a backend in memory behind it.

mod acls;
mod bodies;
mod buckets;
mod client;
mod copies;
mod cors;
mod encrypted_parts;
mod encryption;
mod forms;
mod heads;
mod listing;
mod locks;
mod model;
mod multipart;
mod object_acls;
mod objects;
mod quotas;
mod requests;
mod rights;
mod settings;
mod signatures;
mod signer;
mod tags;
mod tls;
mod uploads;
mod versions;
