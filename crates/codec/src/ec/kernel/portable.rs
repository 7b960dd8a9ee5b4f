//! The kernel without any instruction of its own: the compiler makes vectors of its loops.

use super::factors::Factors;
use crate::limits::PARITY_MAX;

/// Bytes at a time; their doublings and all sums fit in 1 KiB.
const BATCH: usize = 128;

/// Multiplies by all coefficients of a source at once: its bytes are doubled seven times, and each
/// target takes the doublings whose bits its coefficient has.
pub(super) fn apply(factors: &Factors, sources: &[&[u8]], targets: &mut [&mut [u8]]) {
    let len = targets.first().map_or(0, |target| target.len());
    for at in (0..len).step_by(BATCH) {
        let end = len.min(at + BATCH);
        let mut sums = [[0; BATCH]; PARITY_MAX];
        for (source, column) in sources.iter().zip(&factors.bytes) {
            let mut doubled = [0; BATCH];
            doubled[..end - at].copy_from_slice(&source[at..end]);
            for bit in 0..8 {
                for (sum, factor) in sums[..factors.rows].iter_mut().zip(column) {
                    if factor >> bit & 1 == 1 {
                        sum.iter_mut().zip(&doubled).for_each(|(sum, byte)| *sum ^= byte);
                    }
                }
                for byte in &mut doubled {
                    *byte = (*byte << 1) ^ (0x1d & ((*byte as i8) >> 7) as u8);
                }
            }
        }
        for (target, sum) in targets.iter_mut().zip(&sums) {
            target[at..end].copy_from_slice(&sum[..end - at]);
        }
    }
}
