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

/// Microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "people read the access log by the wall clock")]
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
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
    random_bytes().map(u64::from_le_bytes)
}

/// A new key's bytes; `None` when the system gives no randomness.
pub fn random_key() -> Option<[u8; 32]> {
    random_bytes()
}

/// Bytes that cannot be guessed; `None` when the system gives no randomness.
pub fn random_bytes<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}
