//! [`Payload`]: the SHA-256 that a request's head says its body has.

use http::header::HeaderMap;
use s3s::crypto::{Checksum as _, Sha256};

use crate::hex;
use crate::reply::Refusal;

/// A body whose bytes are compared with `x-amz-content-sha256` as they come.
pub struct Payload {
    /// Bytes that are to come.
    left: u64,
    /// None once it was compared.
    hasher: Option<Sha256>,
    wanted: Vec<u8>,
}

impl Payload {
    /// For a body of `len` bytes; `None` where the headers have no digest of it.
    pub fn of(headers: &HeaderMap, len: u64) -> Option<Payload> {
        let value = headers.get("x-amz-content-sha256")?.to_str().ok()?;
        let wanted = hex::decode(value).filter(|bytes| bytes.len() == 32)?;
        Some(Payload { left: len, hasher: Some(Sha256::new()), wanted })
    }

    /// Takes the next bytes, and compares when they are the last ones.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the body is another one.
    pub fn receive(&mut self, data: &[u8]) -> Result<(), Refusal> {
        self.left = self.left.saturating_sub(data.len() as u64);
        let Some(hasher) = &mut self.hasher else { return Ok(()) };
        hasher.update(data);
        if self.left > 0 {
            return Ok(());
        }
        let found = self.hasher.take().map(|hasher| hasher.finalize());
        match found.is_some_and(|found| found[..] == self.wanted) {
            true => Ok(()),
            false => Err(sha256_mismatch()),
        }
    }
}

/// The digest of a body is not that of its bytes.
pub fn sha256_mismatch() -> Refusal {
    Refusal::new(
        "XAmzContentSHA256Mismatch",
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    )
}
