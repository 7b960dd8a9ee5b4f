//! S3's policy documents: parsed, checked, evaluated (O1).
//!
//! A [`Policy`] is parsed once, when it is stored or loaded, and then decides on any number of
//! [`Request`]s. It knows of a request what the caller says: action, bucket, key, principal, and the
//! values of condition keys ([`Context`]). Time and addresses are such values.
//!
//! Invariant: reads no clock, does no I/O, knows no message and no HTTP.

mod action;
mod base64;
mod condition;
mod date;
mod error;
pub mod fuzz;
mod json;
mod keys;
pub mod limits;
mod network;
mod operator;
mod pattern;
mod policy;
mod principal;
mod public;
mod request;
mod resource;
mod statement;

pub use action::{ACTIONS, ActionScope, KnownAction};
pub use error::{Flaw, PolicyError};
pub use keys::{CONDITION_KEYS, TAG_KEYS};
pub use policy::{Policy, PolicyKind, Verdict};
pub use request::{Context, NoContext, Principal, Request, Values};
