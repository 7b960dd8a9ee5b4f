//! Bytes that must be zero.

/// True when all are zero.
pub(crate) fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
