//! Kernels of x86-64: GFNI with vectors of 64 and 32 bytes, and shuffles of AVX2.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::factors::Factors;
use super::lanes::{Call, Lanes};

/// Bytes `from..to` of a call, with GFNI and AVX-512.
pub(super) fn gfni_avx512(call: &Call<'_>, from: usize, to: usize) {
    #[target_feature(enable = "gfni,avx512f")]
    fn run(call: &Call<'_>, from: usize, to: usize) {
        // SAFETY: this function has the instructions of the type.
        unsafe { call.run::<Gfni512>(from, to) }
    }
    // SAFETY: a `Kernel` of this kind exists only where the CPU has both features.
    unsafe { run(call, from, to) }
}

/// The same with GFNI and AVX2.
pub(super) fn gfni_avx2(call: &Call<'_>, from: usize, to: usize) {
    #[target_feature(enable = "gfni,avx2")]
    fn run(call: &Call<'_>, from: usize, to: usize) {
        // SAFETY: this function has the instructions of the type.
        unsafe { call.run::<Gfni256>(from, to) }
    }
    // SAFETY: a `Kernel` of this kind exists only where the CPU has both features.
    unsafe { run(call, from, to) }
}

/// The same with AVX2 alone.
pub(super) fn avx2(call: &Call<'_>, from: usize, to: usize) {
    #[target_feature(enable = "avx2")]
    fn run(call: &Call<'_>, from: usize, to: usize) {
        // SAFETY: this function has the instructions of the type.
        unsafe { call.run::<Shuffle256>(from, to) }
    }
    // SAFETY: a `Kernel` of this kind exists only where the CPU has the feature.
    unsafe { run(call, from, to) }
}

/// 64 bytes; a product is one instruction, with a matrix of bits for each 8 of them.
#[derive(Clone, Copy)]
struct Gfni512(__m512i);

impl Lanes for Gfni512 {
    const WIDTH: usize = 64;
    type Ready = __m512i;
    type Factor = __m512i;

    // SAFETY: callers keep the trait's demands, here and below.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's demands.
        unsafe { Gfni512(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's demands.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's demands.
        unsafe { Gfni512(_mm512_setzero_si512()) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn ready(self) -> Self::Ready {
        self.0
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn factor(factors: &Factors, column: usize, row: usize) -> Self::Factor {
        // SAFETY: the trait's demands.
        unsafe { _mm512_set1_epi64(factors.bit_matrices[column][row] as i64) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn plus(self, by: Self::Ready, factor: Self::Factor) -> Self {
        // SAFETY: the trait's demands.
        unsafe { Gfni512(_mm512_xor_si512(self.0, _mm512_gf2p8affine_epi64_epi8::<0>(by, factor))) }
    }
}

/// 32 bytes; a product is one instruction, with a matrix of bits for each 8 of them.
#[derive(Clone, Copy)]
struct Gfni256(__m256i);

impl Lanes for Gfni256 {
    const WIDTH: usize = 32;
    type Ready = __m256i;
    type Factor = __m256i;

    // SAFETY: callers keep the trait's demands, here and below.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's demands.
        unsafe { Gfni256(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's demands.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's demands.
        unsafe { Gfni256(_mm256_setzero_si256()) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn ready(self) -> Self::Ready {
        self.0
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn factor(factors: &Factors, column: usize, row: usize) -> Self::Factor {
        // SAFETY: the trait's demands.
        unsafe { _mm256_set1_epi64x(factors.bit_matrices[column][row] as i64) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn plus(self, by: Self::Ready, factor: Self::Factor) -> Self {
        // SAFETY: the trait's demands.
        unsafe { Gfni256(_mm256_xor_si256(self.0, _mm256_gf2p8affine_epi64_epi8::<0>(by, factor))) }
    }
}

/// 32 bytes; a product is two look-ups of halves.
#[derive(Clone, Copy)]
struct Shuffle256(__m256i);

impl Lanes for Shuffle256 {
    const WIDTH: usize = 32;
    /// Low and high halves of the bytes.
    type Ready = (__m256i, __m256i);
    /// Products of the two kinds of halves, in both parts of a vector.
    type Factor = (__m256i, __m256i);

    // SAFETY: callers keep the trait's demands, here and below.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's demands.
        unsafe { Shuffle256(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's demands.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's demands.
        unsafe { Shuffle256(_mm256_setzero_si256()) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn ready(self) -> Self::Ready {
        // SAFETY: the trait's demands.
        unsafe {
            let half = _mm256_set1_epi8(15);
            let high = _mm256_srli_epi64::<4>(self.0);
            (_mm256_and_si256(self.0, half), _mm256_and_si256(high, half))
        }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn factor(factors: &Factors, column: usize, row: usize) -> Self::Factor {
        let (low, high) = factors.nibbles[column][row].split_at(16);
        // SAFETY: the trait's demands; each half has the 16 bytes that are read.
        unsafe {
            let both =
                |half: &[u8]| _mm256_broadcastsi128_si256(_mm_loadu_si128(half.as_ptr().cast()));
            (both(low), both(high))
        }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn plus(self, by: Self::Ready, factor: Self::Factor) -> Self {
        // SAFETY: the trait's demands.
        unsafe {
            let low = _mm256_shuffle_epi8(factor.0, by.0);
            let high = _mm256_shuffle_epi8(factor.1, by.1);
            Shuffle256(_mm256_xor_si256(self.0, _mm256_xor_si256(low, high)))
        }
    }
}
