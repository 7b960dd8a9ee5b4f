//! Bounds of policies.

/// Bytes of a policy's text at most, as in S3 for a bucket's: 20 KiB. Users' policies have the same.
pub const TEXT_MAX: usize = 20 << 10;
/// Objects and lists within each other at most. A policy needs 6: itself, its statements, one of
/// them, its conditions, an operator's, the values of a key.
pub const DEPTH_MAX: u32 = 8;
/// Characters of a policy's text that an error quotes at most.
pub const QUOTED_MAX: usize = 80;
