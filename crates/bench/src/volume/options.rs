//! Options of the measurements of volumes, and the data that all of them write.

use std::net::SocketAddr;
use std::time::Duration;

use runtime::{Buf, Env, Rng};
use wire::control::Policy;

use super::super::Error;
use super::Parts;

/// Options of `bench volume`.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Copies of all data.
    pub policy: Policy,
    /// A front end; without one NBD is not measured.
    pub nbd: Option<SocketAddr>,
    /// Time for each combination, all its lanes together.
    pub duration: Duration,
    /// MiB that each lane writes in order, and that are read afterwards.
    pub fill_mib: u64,
    /// Volumes, and clones, made and removed to measure their rates; 0: none.
    pub creates: u32,
    /// MiB written to the segment that is recovered, and to the one that is taken over.
    pub takeover_mib: u64,
    /// The measured parts, beside the fill.
    pub parts: Parts,
}

/// Bytes of a small request.
pub(super) const SMALL: usize = 4 << 10;
/// Bytes of a large request.
pub(super) const LARGE: usize = 128 << 10;
/// Requests in order under way: 1 MiB, as clients that copy disks have.
pub(super) const LARGE_DEPTH: usize = 8;

/// Bytes that no device can leave out, the same at each call.
pub(super) fn noise(env: &Env, len: usize) -> Result<Buf, Error> {
    let mut bytes = vec![0; len];
    Rng::new(3).fill(&mut bytes);
    env.pool().copy_of(&bytes).map_err(Error::failed)
}
