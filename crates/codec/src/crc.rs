//! CRC32C (Castagnoli), the one checksum from application to media and back (C26, N4); and CRCs of what comes
//! in parts.

use crc_fast::{CrcAlgorithm, Digest};

/// A CRC whose values of parts give that of the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crc {
    /// CRC32 of ISO-HDLC, as in zlib.
    Crc32,
    /// CRC32C, of iSCSI.
    Crc32c,
    /// CRC64 of NVMe.
    Crc64Nvme,
}

impl Crc {
    /// The CRC of the bytes whose CRC is `before`, followed by `len` bytes whose CRC is `crc`. Takes a time that
    /// grows with the logarithm of `len`.
    pub fn combine(self, before: u64, crc: u64, len: u64) -> u64 {
        let algorithm = match self {
            Crc::Crc32 => CrcAlgorithm::Crc32IsoHdlc,
            Crc::Crc32c => CrcAlgorithm::Crc32Iscsi,
            Crc::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
        };
        crc_fast::checksum_combine(algorithm, before, crc, len)
    }
}

/// CRC32C of `bytes`. 70 ns for 4 KiB where the CPU has VPCLMULQDQ.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC32C of the bytes whose CRC is `crc`, followed by `bytes`.
pub fn crc32c_extend(crc: u32, bytes: &[u8]) -> u32 {
    // The digest keeps the register; the published CRC is its complement.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn crcs_of_parts_combine() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 11 + i / 256) as u8).collect();
        for cut in [0, 1, 48, 4048, 5000] {
            let (head, tail) = bytes.split_at(cut);
            let (before, after) = (u64::from(crc32c(head)), u64::from(crc32c(tail)));
            let combined = Crc::Crc32c.combine(before, after, tail.len() as u64);
            assert_eq!(combined, u64::from(crc32c(&bytes)), "cut at {cut}");
        }
    }

    #[test]
    fn extending_equals_one_pass() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for cut in [0, 1, 7, 48, 64, 4048, 4999, 5000] {
            let extended = crc32c_extend(crc32c(&bytes[..cut]), &bytes[cut..]);
            assert_eq!(extended, crc32c(&bytes), "cut at {cut}");
        }
    }
}
