//! Fragments from any k others.

use std::fmt;

use super::kernel::{Factors, Kernel};
use crate::gf::{Matrix, mul};
use crate::limits::{DATA_MAX, FRAGMENTS_MAX, PARITY_MAX};

/// Numbers of fragments, data or parity, in the order in which their bytes will be given.
#[derive(Clone, Copy, Debug)]
pub struct Rebuild<'a> {
    /// The k fragments at hand.
    pub from: &'a [u8],
    /// Fragments that are wanted; none of those at hand.
    pub to: &'a [u8],
}

/// Fragment numbers that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// So many fragments are at hand, and the code needs exactly k.
    Count {
        /// At hand.
        have: usize,
        /// k.
        want: usize,
    },
    /// The code has no fragment of this number.
    Unknown(u8),
    /// The fragment's number is there twice.
    Repeated(u8),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Count { have, want } => {
                write!(f, "decoding takes {want} fragments, {have} are given")
            }
            DecodeError::Unknown(number) => write!(f, "the code has no fragment {number}"),
            DecodeError::Repeated(number) => write!(f, "fragment {number} is given twice"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Coefficients of wanted fragments over those at hand: made once, for any number of rows.
#[derive(Clone, Debug)]
pub struct Decoder {
    factors: Factors,
    kernel: Kernel,
}

impl Decoder {
    /// A decoder for the code whose rows of parity are `parity`.
    pub(super) fn new(
        parity: &Matrix,
        kernel: Kernel,
        rebuild: Rebuild<'_>,
    ) -> Result<Decoder, DecodeError> {
        check(parity, rebuild)?;
        Ok(Decoder { factors: Factors::new(&coefficients(parity, rebuild)), kernel })
    }

    /// Computes the wanted fragments, in the order of `to`, from those at hand, in the order of `from`.
    /// The same range of all fragments may be given instead of all their bytes. Panics when there are
    /// other numbers of buffers, or when lengths differ.
    pub fn decode(&self, from: &[&[u8]], to: &mut [&mut [u8]]) {
        self.kernel.apply(&self.factors, from, to);
    }

    /// Fragments that are wanted.
    pub fn count(&self) -> usize {
        self.factors.rows()
    }
}

fn check(parity: &Matrix, rebuild: Rebuild<'_>) -> Result<(), DecodeError> {
    let (have, want) = (rebuild.from.len(), parity.columns);
    if have != want {
        return Err(DecodeError::Count { have, want });
    }
    let mut seen = [false; FRAGMENTS_MAX];
    for &number in rebuild.from.iter().chain(rebuild.to) {
        if usize::from(number) >= parity.columns + parity.rows {
            return Err(DecodeError::Unknown(number));
        }
        if std::mem::replace(&mut seen[usize::from(number)], true) {
            return Err(DecodeError::Repeated(number));
        }
    }
    Ok(())
}

/// Each lost data fragment is a sum over those at hand, by as many equations of parity as data
/// fragments are lost: the system to solve has at most p unknowns. A wanted parity fragment is its
/// row of the code, with these sums in place of the lost data.
fn coefficients(parity: &Matrix, rebuild: Rebuild<'_>) -> Matrix {
    let k = parity.columns;
    let lost = Lost::solve(parity, rebuild.from);
    let mut result = Matrix::zero(rebuild.to.len(), k);
    for (wanted, row) in rebuild.to.iter().zip(&mut result.cells) {
        match usize::from(*wanted) {
            data if data < k => *row = lost.row(data),
            number => {
                let code_row = &parity.cells[number - k];
                for (column, from) in rebuild.from.iter().enumerate() {
                    if usize::from(*from) < k {
                        row[column] = code_row[usize::from(*from)];
                    }
                }
                for (data, sums) in lost.rows() {
                    for (cell, sum) in row.iter_mut().zip(sums) {
                        *cell ^= mul(code_row[data], *sum);
                    }
                }
            }
        }
    }
    result
}

/// Data fragments that are not at hand, each with its coefficients over those at hand.
struct Lost {
    numbers: [usize; PARITY_MAX],
    sums: Matrix,
}

impl Lost {
    fn solve(parity: &Matrix, from: &[u8]) -> Lost {
        let k = parity.columns;
        let mut at_hand = [false; FRAGMENTS_MAX];
        from.iter().for_each(|number| at_hand[usize::from(*number)] = true);
        // As many data fragments are lost as there are parity fragments at hand.
        let mut numbers = [0; PARITY_MAX];
        let lost = (0..k).filter(|number| !at_hand[*number]);
        let count = numbers.iter_mut().zip(lost).map(|(place, number)| *place = number).count();
        let numbers_used = &numbers[..count];
        let equations = || {
            let numbered = from.iter().map(|number| usize::from(*number)).enumerate();
            numbered.filter(|(_, number)| *number >= k).map(move |(at, number)| (at, number - k))
        };
        let mut system = Matrix::zero(count, count);
        for (row, (_, equation)) in system.cells.iter_mut().zip(equations()) {
            for (cell, number) in row.iter_mut().zip(numbers_used) {
                *cell = parity.cells[equation][*number];
            }
        }
        let solved = system.inverted().expect("every square part of a Cauchy matrix is regular");
        let mut sums = Matrix::zero(count, k);
        for (row, solved) in sums.cells.iter_mut().zip(&solved.cells) {
            for ((at, equation), factor) in equations().zip(solved) {
                row[at] = *factor;
                for (column, number) in from.iter().map(|one| usize::from(*one)).enumerate() {
                    if number < k {
                        row[column] ^= mul(*factor, parity.cells[equation][number]);
                    }
                }
            }
        }
        Lost { numbers, sums }
    }

    fn rows(&self) -> impl Iterator<Item = (usize, &[u8; DATA_MAX])> {
        self.numbers.iter().copied().zip(&self.sums.cells).take(self.sums.rows)
    }

    fn row(&self, number: usize) -> [u8; DATA_MAX] {
        let found = self.rows().find(|(lost, _)| *lost == number);
        *found.expect("a wanted data fragment is not at hand").1
    }
}
