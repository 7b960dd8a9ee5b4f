//! The S3 edge of the object service: HTTP, signatures, who may, checksums and bodies, above a
//! [`Backend`](object_proto::Backend).
//!
//! s3s does the dialect, hyper HTTP, on tokio threads of the gateway's own ([`Gateway`]). A front
//! of ours stands before s3s (object protocols, 12.2): it refuses what S3 refuses and s3s takes,
//! and holds bodies to their share of memory, their time and their framing.
//!
//! The life of a PUT: the front checks the head; s3s checks the signature, asks [`KeyFile`]'s keys
//! for the secret, and has access checked; memory is claimed; the body is read, digested and handed
//! on in pieces; all digests that the request gave are compared; the upload is committed. The first
//! of them that fails answers, and nothing is stored.
//!
//! Forms of browsers go past s3s: their fields become the headers of such a PUT.
//!
//! s3s logs each request that is refused at level ERROR with the targets `s3s::service`, `s3s::ops`
//! and below. They are no errors of this process: a binary turns the target `s3s` off, as the front
//! answers and the access log show the same.
//!
//! Where this differs from S3, because s3s decides it before any code of ours:
//!
//! - a `Range`, `If-Match`, `If-None-Match`, date or `Expires` that cannot be read is refused with
//!   400; S3 passes over some of them. Several tags in a condition are read as one, which no object
//!   has;
//! - XML with CDATA, a document type, or a reference to a control character is refused;
//! - `PutBucket...` operations that are not implemented read their document first: a flawed one is
//!   `MalformedXML`;
//! - what is no HTTP, and heads above [`limits::HEAD_READ_MAX`], are answered by hyper, without
//!   XML.
//!
//! Invariant: holds no storage logic; knows no range, piece, file of the core or manager.

mod access_log;
mod actions;
mod auth;
mod base64;
mod body;
mod budget;
mod chunked;
mod clock;
mod config;
mod conn;
mod content_check;
mod context;
mod cors;
mod crc;
mod dialect;
mod digest;
mod documents;
mod errors;
mod facts;
mod form;
mod front;
mod gateway;
mod head;
mod hex;
mod hosts;
mod keychange;
mod keyfile;
mod keyring;
pub mod limits;
mod parts;
mod payload;
mod query;
mod quota;
mod reply;
mod requests;
mod rights;
mod seal;
mod subresources;
mod tls;

pub use access_log::{AccessLog, Sink};
pub use chunked::fuzz_chunked;
pub use clock::random_key;
pub use config::{GatewayConfig, Times};
pub use content_check::ContentCheck;
pub use gateway::{Gateway, GatewayError, Ready};
pub use keychange::{KeyChangeError, create_key, rotate_key};
pub use keyfile::{DEFAULT_KEY, Flaw, KeyFile, KeyFileError, KeyId, UnwrapError, fuzz_key_file};
pub use keyring::Keyring;
pub use seal::fuzz_envelope;
pub use tls::{Tls, TlsError};
