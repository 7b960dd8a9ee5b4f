//! Linear combinations of buffers over GF(2^8), with the instructions that this CPU has (C18).
//!
//! Encoding and decoding are the same computation with other coefficients. All kernels give the same
//! bytes. This module is the only entrance: it checks lengths, and that the CPU has the instructions.

mod factors;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(super) use factors::Factors;

use crate::limits::STRIP;

/// Instructions for the computation. A value exists only where the CPU has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    GfniAvx512,
    #[cfg(target_arch = "x86_64")]
    GfniAvx2,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

impl Instructions {
    /// The fastest first.
    const ALL: &[Instructions] = &[
        #[cfg(target_arch = "x86_64")]
        Instructions::GfniAvx512,
        #[cfg(target_arch = "x86_64")]
        Instructions::GfniAvx2,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2,
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon,
        Instructions::Portable,
    ];

    fn are_there(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Instructions::GfniAvx512 => {
                is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx512f")
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::GfniAvx2 => {
                is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2")
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Instructions::Portable => true,
        }
    }
}

impl Kernel {
    /// Kernels that this CPU can run, the fastest first; the last one is portable.
    pub fn available() -> impl Iterator<Item = Kernel> {
        Instructions::ALL.iter().filter(|one| one.are_there()).map(|one| Kernel(*one))
    }

    /// The fastest of them.
    pub fn fastest() -> Kernel {
        Kernel::available().next().expect("the portable kernel runs everywhere")
    }

    /// The one that runs everywhere.
    pub fn portable() -> Kernel {
        Kernel(Instructions::Portable)
    }

    /// Whether it needs no vector instructions.
    pub fn is_portable(self) -> bool {
        self.0 == Instructions::Portable
    }

    /// Its name in measurements.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::GfniAvx512 => "gfni-avx512",
            #[cfg(target_arch = "x86_64")]
            Instructions::GfniAvx2 => "gfni-avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => "neon",
            Instructions::Portable => "portable",
        }
    }

    /// Writes to each target its linear combination of the sources. Panics when there are other
    /// numbers of them than `factors` has, or when lengths differ.
    pub(super) fn apply(self, factors: &Factors, sources: &[&[u8]], targets: &mut [&mut [u8]]) {
        assert_eq!(sources.len(), factors.columns, "sources");
        assert_eq!(targets.len(), factors.rows, "targets");
        let Some(len) = targets.first().map(|target| target.len()) else { return };
        assert!(sources.iter().all(|source| source.len() == len), "sources have {len} bytes");
        assert!(targets.iter().all(|target| target.len() == len), "targets have {len} bytes");
        match self.0 {
            Instructions::Portable => portable::apply(factors, sources, targets),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            vectors => {
                if len < lanes::WIDTH_MAX {
                    return portable::apply(factors, sources, targets);
                }
                let call = lanes::Call::new(factors, sources, targets);
                for from in (0..len).step_by(STRIP) {
                    let to = len.min(from + STRIP);
                    match vectors {
                        #[cfg(target_arch = "x86_64")]
                        Instructions::GfniAvx512 => x86::gfni_avx512(&call, from, to),
                        #[cfg(target_arch = "x86_64")]
                        Instructions::GfniAvx2 => x86::gfni_avx2(&call, from, to),
                        #[cfg(target_arch = "x86_64")]
                        Instructions::Avx2 => x86::avx2(&call, from, to),
                        #[cfg(target_arch = "aarch64")]
                        Instructions::Neon => neon::neon(&call, from, to),
                        Instructions::Portable => unreachable!("served above"),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
