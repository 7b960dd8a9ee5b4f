//! Kernel of aarch64: look-ups of NEON.

#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::factors::Factors;
use super::lanes::{Call, Lanes};

/// Bytes `from..to` of a call, with NEON.
pub(super) fn neon(call: &Call<'_>, from: usize, to: usize) {
    #[target_feature(enable = "neon")]
    fn run(call: &Call<'_>, from: usize, to: usize) {
        // SAFETY: this function has the instructions of the type.
        unsafe { call.run::<Table128>(from, to) }
    }
    // SAFETY: a `Kernel` of this kind exists only where the CPU has the feature.
    unsafe { run(call, from, to) }
}

/// 16 bytes; a product is two look-ups of halves.
#[derive(Clone, Copy)]
struct Table128(uint8x16_t);

impl Lanes for Table128 {
    const WIDTH: usize = 16;
    /// Low and high halves of the bytes.
    type Ready = (uint8x16_t, uint8x16_t);
    /// Products of the two kinds of halves.
    type Factor = (uint8x16_t, uint8x16_t);

    // SAFETY: callers keep the trait's demands, here and below.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's demands.
        unsafe { Table128(vld1q_u8(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's demands.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's demands.
        unsafe { Table128(vdupq_n_u8(0)) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn ready(self) -> Self::Ready {
        // SAFETY: the trait's demands.
        unsafe { (vandq_u8(self.0, vdupq_n_u8(15)), vshrq_n_u8::<4>(self.0)) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn factor(factors: &Factors, column: usize, row: usize) -> Self::Factor {
        let (low, high) = factors.nibbles[column][row].split_at(16);
        // SAFETY: the trait's demands; each half has the 16 bytes that are read.
        unsafe { (vld1q_u8(low.as_ptr()), vld1q_u8(high.as_ptr())) }
    }

    // SAFETY: callers keep the trait's demands.
    #[inline(always)]
    unsafe fn plus(self, by: Self::Ready, factor: Self::Factor) -> Self {
        // SAFETY: the trait's demands.
        unsafe {
            let product = veorq_u8(vqtbl1q_u8(factor.0, by.0), vqtbl1q_u8(factor.1, by.1));
            Table128(veorq_u8(self.0, product))
        }
    }
}
