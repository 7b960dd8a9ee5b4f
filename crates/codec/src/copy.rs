//! Copies of bytes behind heads.

/// Bytes of a piece: below what the C library copies with `rep movsb`.
const PIECE: usize = 1024;

/// Copies `from` to `to`, which is as long, in pieces. A copy of 4 KiB or more in one go runs at 3 GB/s
/// instead of 50 on Zen 3 (glibc 2.36, `rep movsb`) when the target is a few bytes further in its page
/// than the source is; behind a head of 8 or 16 bytes that is the usual case.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    for (from, to) in from.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
        to.copy_from_slice(from);
    }
}
