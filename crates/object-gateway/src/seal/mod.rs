//! Encryption of objects (object protocols, 11.4): frames of bodies, envelopes of rows, and the service
//! that wraps keys.

mod body;
mod envelope;
mod frames;
mod kms;

pub use body::{OpenedContent, SealedUpload};
pub use envelope::{CONTEXT_MAX, Contents, Envelope, KmsFacts, fuzz_envelope};
pub use frames::DataKey;
pub use kms::{Kms, KmsError, Wrapped, check_of, kek_of, open_key, seal_key};
