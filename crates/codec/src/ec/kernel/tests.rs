//! Every kernel of this CPU, and the loop of vectors with a model of GFNI, beside a reference that
//! goes byte by byte through the field's table.

#![allow(unsafe_code)]

use super::lanes::{Call, Lanes, WIDTH_MAX};
use super::*;
use crate::gf::{Matrix, mul};
use crate::limits::{DATA_MAX, PARITY_MAX};

/// Bytes before and behind each target, which no kernel may touch.
const GUARD: usize = 70;
const MARK: u8 = 0xa5;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 * 2 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A matrix of `rows` with zeros and ones among its cells.
fn matrix(rows: usize, columns: usize) -> Matrix {
    let mut matrix = Matrix::zero(rows, columns);
    for (row, cells) in matrix.cells.iter_mut().enumerate().take(rows) {
        let drawn = bytes(rows * 100 + row, columns);
        cells[..columns].copy_from_slice(&drawn);
        cells[row % columns] = (row % 2) as u8;
    }
    matrix
}

/// Compares `apply` with the reference on buffers of `len` bytes that begin at odd places.
fn check(
    matrix: &Matrix,
    len: usize,
    apply: impl Fn(&Factors, &[&[u8]], &mut [&mut [u8]]),
    what: &str,
) {
    let held: Vec<Vec<u8>> =
        (0..matrix.columns).map(|column| bytes(column + len, len + column)).collect();
    let sources: Vec<&[u8]> =
        held.iter().enumerate().map(|(column, bytes)| &bytes[column..]).collect();
    let place = |row: usize| GUARD + row * 3;
    let mut written: Vec<Vec<u8>> =
        (0..matrix.rows).map(|row| vec![MARK; place(row) + len + GUARD]).collect();
    let mut targets: Vec<&mut [u8]> =
        written.iter_mut().enumerate().map(|(row, all)| &mut all[place(row)..][..len]).collect();
    apply(&Factors::new(matrix), &sources, &mut targets);
    for (row, written) in written.iter().enumerate() {
        let mut expected = vec![MARK; written.len()];
        for at in 0..len {
            expected[place(row) + at] = (0..matrix.columns)
                .fold(0, |sum, column| sum ^ mul(matrix.cells[row][column], sources[column][at]));
        }
        assert!(*written == expected, "{what}: row {row} of {matrix:?}, {len} bytes");
    }
}

/// Under an interpreter, which needs a second for a few KiB, some of the sizes.
fn check_all_sizes(apply: impl Fn(&Factors, &[&[u8]], &mut [&mut [u8]]), what: &str) {
    let (step, around, columns): (_, &[usize], _) = match cfg!(miri) {
        true => (101, &[], 11),
        false => (1, &[STRIP - 1, STRIP, STRIP + 1, STRIP + 63, 2 * STRIP + 65, 3 * STRIP], 1),
    };
    for rows in 1..=PARITY_MAX {
        let small = matrix(rows, 2);
        (0..=300).step_by(step).for_each(|len| check(&small, len, &apply, what));
        around.iter().for_each(|&len| check(&small, len, &apply, what));
        let widths = (1..=DATA_MAX).step_by(columns);
        widths.for_each(|columns| check(&matrix(rows, columns), 333, &apply, what));
    }
}

#[test]
fn every_kernel_of_this_cpu_gives_the_bytes_of_the_reference() {
    for kernel in Kernel::available() {
        println!("{}", kernel.name());
        check_all_sizes(|factors, from, to| kernel.apply(factors, from, to), kernel.name());
    }
}

/// All products: each coefficient with each byte.
#[test]
fn every_kernel_multiplies_every_pair() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::available() {
        for factor in (0..=255).step_by(if cfg!(miri) { 15 } else { 1 }) {
            let mut matrix = Matrix::zero(1, 1);
            matrix.cells[0][0] = factor;
            let mut products = [0; 256];
            kernel.apply(&Factors::new(&matrix), &[&all], &mut [&mut products]);
            let expected: Vec<u8> = all.iter().map(|&byte| mul(factor, byte)).collect();
            assert_eq!(products[..], expected, "{} with {factor}", kernel.name());
        }
    }
}

/// GFNI in software, with the definition of Intel's manual: the widest vectors run through the common
/// loop on every CPU.
#[derive(Clone, Copy)]
struct Model([u8; WIDTH_MAX]);

impl Lanes for Model {
    const WIDTH: usize = WIDTH_MAX;
    type Ready = [u8; WIDTH_MAX];
    type Factor = u64;

    // SAFETY: callers keep the trait's demands.
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's demands.
        Model(unsafe { from.cast::<[u8; WIDTH_MAX]>().read_unaligned() })
    }
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's demands.
        unsafe { to.cast::<[u8; WIDTH_MAX]>().write_unaligned(self.0) }
    }
    // SAFETY: it needs nothing.
    unsafe fn zero() -> Self {
        Model([0; WIDTH_MAX])
    }
    // SAFETY: it needs nothing.
    unsafe fn ready(self) -> Self::Ready {
        self.0
    }
    // SAFETY: it needs nothing.
    unsafe fn factor(factors: &Factors, column: usize, row: usize) -> u64 {
        factors.bit_matrices[column][row]
    }
    // SAFETY: it needs nothing.
    unsafe fn plus(self, by: Self::Ready, factor: u64) -> Self {
        let rows = factor.to_le_bytes();
        let mut sum = self.0;
        for (sum, byte) in sum.iter_mut().zip(by) {
            for bit in 0..8 {
                *sum ^= ((rows[7 - bit] & byte).count_ones() as u8 & 1) << bit;
            }
        }
        Model(sum)
    }
}

#[test]
fn loop_of_vectors_gives_the_bytes_of_the_reference() {
    let apply = |factors: &Factors, from: &[&[u8]], to: &mut [&mut [u8]]| {
        let len = to[0].len();
        if len < WIDTH_MAX {
            return portable::apply(factors, from, to);
        }
        let call = Call::new(factors, from, to);
        for at in (0..len).step_by(STRIP) {
            // SAFETY: the model needs no instruction.
            unsafe { call.run::<Model>(at, len.min(at + STRIP)) };
        }
    };
    check_all_sizes(apply, "model");
}
