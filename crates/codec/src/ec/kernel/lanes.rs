//! The loop that all kernels with vectors share; what differs is a [`Lanes`] type.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::factors::Factors;
use crate::limits::{DATA_MAX, PARITY_MAX, STRIP};

/// Bytes of the widest vector. Shorter buffers are the portable kernel's.
pub(super) const WIDTH_MAX: usize = 64;
const _: () = assert!(STRIP.is_multiple_of(4 * WIDTH_MAX), "only the last strip has a rest");

/// A vector of bytes, each an element of the field.
///
/// # Safety
///
/// All functions need a CPU that has the type's instructions. They are inlined into a function that
/// is compiled for these.
pub(super) trait Lanes: Copy {
    /// Bytes of a vector, [`WIDTH_MAX`] at most; `load` and `store` touch as many, at any alignment.
    const WIDTH: usize;
    /// A vector made ready for several multiplications.
    type Ready: Copy;
    /// A coefficient in registers.
    type Factor: Copy;

    /// # Safety
    /// `from` has [`Lanes::WIDTH`] readable bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// `to` has [`Lanes::WIDTH`] writable bytes.
    unsafe fn store(self, to: *mut u8);
    /// # Safety
    /// As the trait says.
    unsafe fn zero() -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn ready(self) -> Self::Ready;
    /// # Safety
    /// As the trait says.
    unsafe fn factor(factors: &Factors, column: usize, row: usize) -> Self::Factor;
    /// `self` and the product of `by` with `factor`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn plus(self, by: Self::Ready, factor: Self::Factor) -> Self;
}

/// Buffers of one length, of which there are as many as `factors` has columns and rows.
pub(super) struct Call<'a> {
    factors: &'a Factors,
    sources: [*const u8; DATA_MAX],
    targets: [*mut u8; PARITY_MAX],
    len: usize,
    buffers: PhantomData<(&'a [u8], &'a mut [u8])>,
}

impl<'a> Call<'a> {
    /// The caller has compared lengths and numbers; what memory depends on is compared again here.
    pub(super) fn new(
        factors: &'a Factors,
        sources: &'a [&[u8]],
        targets: &'a mut [&mut [u8]],
    ) -> Call<'a> {
        let len = targets[0].len();
        assert!(sources.len() == factors.columns && targets.len() == factors.rows);
        let mut call = Call {
            factors,
            sources: [std::ptr::null(); DATA_MAX],
            targets: [std::ptr::null_mut(); PARITY_MAX],
            len,
            buffers: PhantomData,
        };
        for (place, source) in call.sources.iter_mut().zip(sources) {
            assert_eq!(source.len(), len);
            *place = source.as_ptr();
        }
        for (place, target) in call.targets.iter_mut().zip(targets) {
            assert_eq!(target.len(), len);
            *place = target.as_mut_ptr();
        }
        call
    }

    /// Computes bytes `from..to` of all targets.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    pub(super) unsafe fn run<V: Lanes>(&self, from: usize, to: usize) {
        assert!(from < to && (WIDTH_MAX..=self.len).contains(&to) && V::WIDTH <= WIDTH_MAX);
        // SAFETY: the caller's; the assertion above is what `strip` demands.
        unsafe {
            match self.factors.rows {
                1 => self.strip::<V, 1, 4>(from, to),
                2 => self.strip::<V, 2, 2>(from, to),
                3 => self.strip::<V, 3, 2>(from, to),
                4 => self.strip::<V, 4, 2>(from, to),
                rows => unreachable!("{rows} rows"),
            }
        }
    }

    /// `UNROLL` vectors at a time, then single ones. The last vector ends at `to` and overlaps the one
    /// before it: its bytes are computed twice and come out the same, for no source is a target.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`; `to` is at most the buffers' length, and a width or more;
    /// there are `ROWS` rows.
    #[inline(always)]
    unsafe fn strip<V: Lanes, const ROWS: usize, const UNROLL: usize>(
        &self,
        from: usize,
        to: usize,
    ) {
        let mut at = from;
        while at + UNROLL * V::WIDTH <= to {
            // SAFETY: the loop's condition is the bound of `step`.
            unsafe { self.step::<V, ROWS, UNROLL>(at) };
            at += UNROLL * V::WIDTH;
        }
        while at < to {
            let last = at.min(to - V::WIDTH);
            // SAFETY: `last` plus a width is at most `to`.
            unsafe { self.step::<V, ROWS, 1>(last) };
            at = last + V::WIDTH;
        }
    }

    /// `UNROLL` vectors of each target, from byte `at`.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`; `at` plus `UNROLL` widths is at most the buffers'
    /// length; there are `ROWS` rows.
    #[inline(always)]
    unsafe fn step<V: Lanes, const ROWS: usize, const UNROLL: usize>(&self, at: usize) {
        // SAFETY: pointers are those of buffers that `self` borrows, used within their length, which
        // is the caller's promise; so is the CPU.
        unsafe {
            let mut sums = [[V::zero(); UNROLL]; ROWS];
            for (column, source) in self.sources[..self.factors.columns].iter().enumerate() {
                let mut bytes = [V::zero().ready(); UNROLL];
                for (index, bytes) in bytes.iter_mut().enumerate() {
                    *bytes = V::load(source.add(at + index * V::WIDTH)).ready();
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = V::factor(self.factors, column, row);
                    for (sum, bytes) in sums.iter_mut().zip(bytes) {
                        *sum = sum.plus(bytes, factor);
                    }
                }
            }
            for (target, sums) in self.targets.iter().zip(sums) {
                for (index, sum) in sums.into_iter().enumerate() {
                    sum.store(target.add(at + index * V::WIDTH));
                }
            }
        }
    }
}
