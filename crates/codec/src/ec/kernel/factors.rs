//! Coefficients as kernels take them.

use crate::gf::{BIT_MATRICES, Matrix, NIBBLES};
use crate::limits::{DATA_MAX, PARITY_MAX};

/// The coefficients of a matrix in the forms that kernels take them, column by column: 2 KiB.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) bytes: [[u8; PARITY_MAX]; DATA_MAX],
    pub(super) nibbles: [[[u8; 32]; PARITY_MAX]; DATA_MAX],
    pub(super) bit_matrices: [[u64; PARITY_MAX]; DATA_MAX],
}

impl Factors {
    pub(crate) fn new(matrix: &Matrix) -> Factors {
        let mut factors = Factors {
            rows: matrix.rows,
            columns: matrix.columns,
            bytes: [[0; PARITY_MAX]; DATA_MAX],
            nibbles: [[[0; 32]; PARITY_MAX]; DATA_MAX],
            bit_matrices: [[0; PARITY_MAX]; DATA_MAX],
        };
        for row in 0..matrix.rows {
            for column in 0..matrix.columns {
                let byte = matrix.cells[row][column];
                factors.bytes[column][row] = byte;
                factors.nibbles[column][row] = NIBBLES[usize::from(byte)];
                factors.bit_matrices[column][row] = BIT_MATRICES[usize::from(byte)];
            }
        }
        factors
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}
