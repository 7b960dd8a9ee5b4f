//! Codes by their numbers of fragments.

use std::fmt;

use super::decode::{DecodeError, Decoder, Rebuild};
use super::kernel::{Factors, Kernel};
use crate::gf::Matrix;
use crate::limits::{DATA_MAX, PARITY_MAX};

/// A code with its coefficients and the kernel that this CPU runs.
#[derive(Clone, Debug)]
pub struct Code {
    parity: Matrix,
    factors: Factors,
    kernel: Kernel,
}

/// A code that is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeError {
    /// k is 0 or above [`DATA_MAX`].
    Data(usize),
    /// p is above [`PARITY_MAX`].
    Parity(usize),
}

impl fmt::Display for CodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodeError::Data(k) => write!(f, "a code has 1 to {DATA_MAX} data fragments, not {k}"),
            CodeError::Parity(p) => write!(f, "a code has up to {PARITY_MAX} parity, not {p}"),
        }
    }
}

impl std::error::Error for CodeError {}

impl Code {
    /// The code with `k` data and `p` parity fragments, for the fastest kernel of this CPU. The error
    /// names the limit.
    pub fn new(k: usize, p: usize) -> Result<Code, CodeError> {
        Code::with_kernel(k, p, Kernel::fastest())
    }

    /// The same for a kernel: all of them give the same bytes.
    pub fn with_kernel(k: usize, p: usize, kernel: Kernel) -> Result<Code, CodeError> {
        Code::check(k, p)?;
        let parity = Matrix::cauchy(k, p);
        Ok(Code { parity, factors: Factors::new(&parity), kernel })
    }

    /// Whether there is such a code.
    pub fn check(k: usize, p: usize) -> Result<(), CodeError> {
        if !(1..=DATA_MAX).contains(&k) {
            return Err(CodeError::Data(k));
        }
        if p > PARITY_MAX {
            return Err(CodeError::Parity(p));
        }
        Ok(())
    }

    /// Its kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Data fragments.
    pub fn k(&self) -> usize {
        self.parity.columns
    }

    /// Parity fragments.
    pub fn p(&self) -> usize {
        self.parity.rows
    }

    /// All fragments.
    pub fn n(&self) -> usize {
        self.k() + self.p()
    }

    /// Computes all parity fragments from all data fragments. Panics when there are not k and p of
    /// them, of one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        self.kernel.apply(&self.factors, data, parity);
    }

    /// Prepares what gives back the fragments `to` from the k fragments `from`; see [`Rebuild`].
    pub fn decoder(&self, rebuild: Rebuild<'_>) -> Result<Decoder, DecodeError> {
        Decoder::new(&self.parity, self.kernel, rebuild)
    }
}
