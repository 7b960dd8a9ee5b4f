//! What SDKs name a call by, the same in all its attempts.

use http::header::HeaderMap;

/// Its header.
pub const INVOCATION_ID: &str = "amz-sdk-invocation-id";
/// Bytes of it at most; a longer one is none.
pub const INVOCATION_ID_MAX: usize = 256;

/// What an SDK names the call of a request by, if it does.
pub fn invocation_of(headers: &HeaderMap) -> Option<&[u8]> {
    let id = headers.get(INVOCATION_ID).map(|id| id.as_bytes());
    id.filter(|id| !id.is_empty() && id.len() <= INVOCATION_ID_MAX)
}
