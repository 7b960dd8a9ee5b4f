//! Bloom filters: which keys a part of a file surely has not.

use crate::limits::{FILTER_BITS_PER_KEY, FILTER_PROBES};

/// Hash of a key: 64-bit FNV-1a, then a finishing mix. Part of the format.
pub(crate) fn hash(key: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in key {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The bits of a hash in a filter of `bits`.
fn places(hash: u64, bits: u64) -> impl Iterator<Item = u64> {
    // Two halves make as many hashes as are wanted. The step is odd, so they differ.
    let (start, step) = (hash, hash.rotate_left(32) | 1);
    (0..u64::from(FILTER_PROBES)).map(move |n| start.wrapping_add(n.wrapping_mul(step)) % bits)
}

/// The filter of keys with these hashes.
pub(crate) fn build(hashes: &[u64]) -> Vec<u8> {
    let bytes = (hashes.len() * FILTER_BITS_PER_KEY).div_ceil(64).max(1) * 8;
    let mut filter = vec![0u8; bytes];
    for &hash in hashes {
        for place in places(hash, bytes as u64 * 8) {
            filter[(place / 8) as usize] |= 1 << (place % 8);
        }
    }
    filter
}

/// False when no key with this hash is among those the filter was built of.
pub(crate) fn may_have(filter: &[u8], hash: u64) -> bool {
    if filter.is_empty() {
        return true;
    }
    let mut places = places(hash, filter.len() as u64 * 8);
    places.all(|place| filter[(place / 8) as usize] & 1 << (place % 8) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_what_it_was_built_of_and_little_else() {
        let keys = |range: std::ops::Range<u32>| range.map(|n| hash(&n.to_be_bytes()));
        let filter = build(&keys(0..10_000).collect::<Vec<_>>());
        assert!(keys(0..10_000).all(|hash| may_have(&filter, hash)));
        let wrong = keys(10_000..110_000).filter(|&hash| may_have(&filter, hash)).count();
        assert!((30..200).contains(&wrong), "{wrong} of 100,000, about 0.1 % expected");
    }

    #[test]
    fn the_hash_is_the_formats() {
        assert_eq!(hash(b""), 0xefd0_1f60_ba99_2926);
        assert_eq!(hash(b"craton"), 0xfb26_9f7c_2adf_1053);
    }
}
