//! Wall clock, threads and randomness: the one place of the gateway that reaches past tokio for
//! them. The gateway runs beside the executor, on threads of its own, and is not simulated: s3s
//! reads the wall clock for signatures itself.

use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "signatures are valid by the wall clock")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Starts a thread of the gateway.
pub fn thread(
    name: String,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(run)
}

/// A number that cannot be guessed; `None` when the system gives no randomness.
pub fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}
