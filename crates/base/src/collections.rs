//! Hash collections whose iteration order depends on their content alone.

#![allow(clippy::disallowed_types)] // This module is where the seeded map is replaced.

use std::hash::{BuildHasher, Hasher};

/// A hash map with a fixed hasher: two runs with the same operations iterate alike.
pub type Map<K, V> = std::collections::HashMap<K, V, FixedState>;
/// A hash set with a fixed hasher.
pub type Set<K> = std::collections::HashSet<K, FixedState>;

/// Builds [`FixedHasher`]s that all start from the same state.
#[derive(Clone, Copy, Default, Debug)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;

    fn build_hasher(&self) -> FixedHasher {
        FixedHasher(0)
    }
}

/// A multiply-rotate hasher for the keys we use (integers and short byte strings).
/// It is no defence against chosen keys: use ordered maps for keys that a client chooses.
#[derive(Clone, Copy, Default, Debug)]
pub struct FixedHasher(u64);

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl FixedHasher {
    fn mix(&mut self, word: u64) {
        let folded = u128::from(self.0 ^ word) * u128::from(MULTIPLIER);
        self.0 = (folded as u64) ^ ((folded >> 64) as u64).rotate_left(23) ^ word.rotate_left(32);
    }
}

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_u128(&mut self, value: u128) {
        self.mix(value as u64);
        self.mix((value >> 64) as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(MULTIPLIER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iteration_depends_on_content_alone() {
        let build = || (0..1000u64).map(|key| (key * 7919, key)).collect::<Map<_, _>>();
        let orders: [Vec<u64>; 2] = [(); 2].map(|()| build().values().copied().collect());
        assert_eq!(orders[0], orders[1]);
    }

    #[test]
    fn sequential_keys_spread() {
        let mut buckets = [0u32; 64];
        for key in 0..64_000u64 {
            buckets[(FixedState.hash_one(key) >> 58) as usize] += 1;
        }
        assert!(buckets.iter().all(|&count| (700..1300).contains(&count)), "{buckets:?}");
    }
}
