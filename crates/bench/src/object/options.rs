//! Options of the measurement of S3.

use std::net::SocketAddr;
use std::time::Duration;

use wire::control::Policy;

/// An operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectOp {
    /// New objects.
    Put,
    /// Whole objects.
    Get,
    /// Pages of keys, and of common prefixes.
    List,
}

/// Options of `bench object`.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    /// Gateway, over HTTP.
    pub endpoint: SocketAddr,
    /// Region of signatures.
    pub region: String,
    /// Access key that may make buckets.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// Copies of the core's own files.
    pub policy: Policy,
    /// The measured operations.
    pub ops: Vec<ObjectOp>,
    /// Bytes of one object.
    pub sizes: Vec<usize>,
    /// Operations under way.
    pub depths: Vec<usize>,
    /// Keys that are listed.
    pub keys: u64,
    /// Signatures cover the payload.
    pub signed: bool,
    /// Time for each combination, the core's turns included. Puts go on for half of it, to count the
    /// bytes of devices.
    pub duration: Duration,
}
