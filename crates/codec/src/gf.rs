//! The field GF(2^8) with the polynomial 0x11d, and the Cauchy matrix over it (C18).
//!
//! The tables are computed when the crate is compiled.

use crate::limits::{DATA_MAX, PARITY_MAX};

/// x^8 + x^4 + x^3 + x^2 + 1, of which 2 is a generator; without its x^8.
const POLYNOMIAL: u8 = 0x1d;

const fn double(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 == 0 { 0 } else { POLYNOMIAL }
}

/// Powers of 2 twice in a row, so that a sum of two logarithms is an index.
static POWERS: [u8; 510] = {
    let (mut powers, mut value, mut index) = ([0; 510], 1, 0);
    while index < 510 {
        powers[index] = value;
        value = double(value);
        index += 1;
    }
    powers
};

/// Logarithms to the base 2; that of 0 is not used.
static LOGARITHMS: [u8; 256] = {
    let (mut logarithms, mut value, mut index) = ([0; 256], 1, 0);
    while index < 255 {
        logarithms[value as usize] = index;
        value = double(value);
        index += 1;
    }
    logarithms
};

/// The product of two elements.
pub fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let log = |of: u8| usize::from(LOGARITHMS[usize::from(of)]);
    POWERS[log(a) + log(b)]
}

/// The element whose product with `a` is 1; `None` for zero.
pub fn inverse(a: u8) -> Option<u8> {
    (a != 0).then(|| POWERS[255 - usize::from(LOGARITHMS[usize::from(a)])])
}

const fn const_mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= if b & 1 == 0 { 0 } else { a };
        a = double(a);
        b >>= 1;
    }
    product
}

/// For each element its products with 0 to 15, then those with 16 times 0 to 15: a byte's product
/// is the sum of those of its halves.
pub(crate) static NIBBLES: [[u8; 32]; 256] = {
    let mut tables = [[0; 32]; 256];
    let mut of = 0;
    while of < 256 {
        let mut half = 0;
        while half < 16 {
            tables[of][half] = const_mul(of as u8, half as u8);
            tables[of][16 + half] = const_mul(of as u8, (half as u8) << 4);
            half += 1;
        }
        of += 1;
    }
    tables
};

/// For each element the product with it as a matrix of bits, as the x86 instruction `GF2P8AFFINEQB`
/// takes it: byte 7 - i has the bits of a factor whose sum is bit i of the product.
pub(crate) static BIT_MATRICES: [u64; 256] = {
    let mut matrices = [0; 256];
    let mut of = 0;
    while of < 256 {
        let mut from = 0;
        while from < 8 {
            let column = const_mul(of as u8, 1 << from);
            let mut to = 0;
            while to < 8 {
                let bit = (column >> to & 1) as u64;
                matrices[of] |= bit << (8 * (7 - to) + from);
                to += 1;
            }
            from += 1;
        }
        of += 1;
    }
    matrices
};

/// Coefficients of linear combinations: each of `rows` targets is a sum over `columns` sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Targets; the rest of `cells` is zero.
    pub rows: usize,
    /// Sources.
    pub columns: usize,
    /// The coefficients, row by row.
    pub cells: [[u8; DATA_MAX]; PARITY_MAX],
}

impl Matrix {
    /// A matrix of zeros. Panics beyond [`PARITY_MAX`] rows or [`DATA_MAX`] columns.
    pub fn zero(rows: usize, columns: usize) -> Matrix {
        assert!(rows <= PARITY_MAX && columns <= DATA_MAX);
        Matrix { rows, columns, cells: [[0; DATA_MAX]; PARITY_MAX] }
    }

    /// The rows of parity of the systematic Cauchy code with `k` data and `p` parity fragments: row
    /// i and column j have the inverse of (k + i) xor j. Any k rows of it and of the identity above
    /// it are independent. The bytes are those of ISA-L's `gf_gen_cauchy1_matrix`.
    pub fn cauchy(k: usize, p: usize) -> Matrix {
        let mut matrix = Matrix::zero(p, k);
        for (i, row) in matrix.cells.iter_mut().enumerate().take(p) {
            for (j, cell) in row.iter_mut().enumerate().take(k) {
                *cell = inverse(((k + i) ^ j) as u8).expect("k + i is not j");
            }
        }
        matrix
    }

    /// The inverse of a square matrix of [`PARITY_MAX`] rows at most; `None` when there is none.
    pub fn inverted(&self) -> Option<Matrix> {
        assert_eq!(self.rows, self.columns);
        let size = self.rows;
        let (mut left, mut right) = (*self, Matrix::zero(size, size));
        for i in 0..size {
            right.cells[i][i] = 1;
        }
        for pivot in 0..size {
            let found = (pivot..size).find(|&row| left.cells[row][pivot] != 0)?;
            left.cells.swap(pivot, found);
            right.cells.swap(pivot, found);
            let scale = inverse(left.cells[pivot][pivot])?;
            for matrix in [&mut left, &mut right] {
                matrix.cells[pivot] = matrix.cells[pivot].map(|cell| mul(cell, scale));
            }
            for row in (0..size).filter(|&row| row != pivot) {
                let factor = left.cells[row][pivot];
                for matrix in [&mut left, &mut right] {
                    let taken = matrix.cells[pivot];
                    for (cell, taken) in matrix.cells[row].iter_mut().zip(taken) {
                        *cell ^= mul(factor, taken);
                    }
                }
            }
        }
        Some(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product by its definition: of polynomials, reduced bit by bit.
    fn product(a: u8, b: u8) -> u8 {
        let mut wide = (0..8)
            .fold(0u16, |sum, bit| sum ^ if b >> bit & 1 == 1 { u16::from(a) << bit } else { 0 });
        for bit in (8..16).rev() {
            if wide >> bit & 1 == 1 {
                wide ^= 0x11d << (bit - 8);
            }
        }
        wide as u8
    }

    #[test]
    fn products_and_inverses_follow_their_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), product(a, b), "{a} {b}");
                assert_eq!(const_mul(a, b), product(a, b), "{a} {b}");
            }
            assert_eq!(inverse(a).map(|b| product(a, b)), (a != 0).then_some(1));
        }
    }

    #[test]
    fn tables_of_kernels_give_the_product() {
        for a in 0..=255u8 {
            let (nibbles, matrix) = (&NIBBLES[usize::from(a)], BIT_MATRICES[usize::from(a)]);
            for b in 0..=255u8 {
                let halves = nibbles[usize::from(b & 15)] ^ nibbles[16 + usize::from(b >> 4)];
                assert_eq!(halves, product(a, b));
                // The instruction's definition in Intel's manual.
                let bits = (0..8u32).fold(0, |byte, i| {
                    let row = matrix.to_le_bytes()[7 - i as usize];
                    byte | ((row & b).count_ones() as u8 & 1) << i
                });
                assert_eq!(bits, product(a, b));
            }
        }
    }

    /// Computed by a script of another language from the definition.
    #[test]
    fn cauchy_rows_are_those_of_isa_l() {
        let matrix = Matrix::cauchy(4, 2);
        assert_eq!(matrix.cells[0][..4], CAUCHY_4_2[0]);
        assert_eq!(matrix.cells[1][..4], CAUCHY_4_2[1]);
        let matrix = Matrix::cauchy(8, 3);
        (0..3).for_each(|row| assert_eq!(matrix.cells[row][..8], CAUCHY_8_3[row]));
    }

    const CAUCHY_4_2: [[u8; 4]; 2] = [[0x47, 0xa7, 0x7a, 0xba], [0xa7, 0x47, 0xba, 0x7a]];
    const CAUCHY_8_3: [[u8; 8]; 3] = [
        [0xad, 0x9d, 0xdd, 0x98, 0x3d, 0xaa, 0x5d, 0x96],
        [0x9d, 0xad, 0x98, 0xdd, 0xaa, 0x3d, 0x96, 0x5d],
        [0xdd, 0x98, 0xad, 0x9d, 0x5d, 0x96, 0x3d, 0xaa],
    ];

    #[test]
    fn inverted_matrix_times_the_matrix_is_the_identity() {
        for (k, p) in [(1, 1), (2, 2), (3, 3), (4, 4), (12, 4)] {
            // Any square part of a Cauchy matrix has an inverse.
            let mut square = Matrix::cauchy(k, p);
            square.columns = p;
            let inverted = square.inverted().expect("it is regular");
            for row in 0..p {
                for column in 0..p {
                    let sum = (0..p).fold(0, |sum, at| {
                        sum ^ mul(square.cells[row][at], inverted.cells[at][column])
                    });
                    assert_eq!(sum, u8::from(row == column));
                }
            }
        }
        let mut singular = Matrix::zero(2, 2);
        (singular.cells[0][0], singular.cells[1][0]) = (3, 7);
        assert_eq!(singular.inverted(), None);
    }
}
