//! [`Combined`]: the CRC of a content from those of its parts.

use codec::Crc;
use object_proto::ChecksumKind;

/// The CRC of a content that grows part by part.
#[derive(Debug)]
pub struct Combined {
    crc: Crc,
    bytes: usize,
    /// None before the first part.
    value: Option<u64>,
}

impl Combined {
    /// Of no bytes; `None` when the kind is no CRC.
    pub fn new(kind: ChecksumKind) -> Option<Combined> {
        let crc = match kind {
            ChecksumKind::Crc32 => Crc::Crc32,
            ChecksumKind::Crc32c => Crc::Crc32c,
            ChecksumKind::Crc64Nvme => Crc::Crc64Nvme,
            ChecksumKind::Sha1 | ChecksumKind::Sha256 => return None,
        };
        Some(Combined { crc, bytes: kind.bytes(), value: None })
    }

    /// Adds a part of `len` bytes with its CRC, high bytes first.
    pub fn add(&mut self, crc: &[u8], len: u64) {
        let crc = crc.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        self.value = Some(match self.value {
            None => crc,
            Some(before) => self.crc.combine(before, crc, len),
        });
    }

    /// The CRC, high bytes first.
    pub fn finish(self) -> Vec<u8> {
        self.value.unwrap_or(0).to_be_bytes()[8 - self.bytes..].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use proptest::prelude::*;

    fn crc(kind: ChecksumKind, bytes: &[u8]) -> Vec<u8> {
        let mut digest = Digest::new(kind);
        digest.update(bytes);
        digest.finish().checksum.value
    }

    const CRCS: [ChecksumKind; 3] =
        [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme];

    #[test]
    fn a_hash_is_no_crc() {
        for kind in ChecksumKind::ALL {
            assert_eq!(Combined::new(kind).is_some(), CRCS.contains(&kind), "{kind:?}");
        }
    }

    #[test]
    fn a_long_part_of_zeros_is_combined() {
        for kind in CRCS {
            let zeros = vec![0; (5 << 20) + 1];
            let mut combined = Combined::new(kind).expect("a CRC");
            combined.add(&crc(kind, b"head"), 4);
            combined.add(&crc(kind, &zeros), zeros.len() as u64);
            combined.add(&crc(kind, b""), 0);
            assert_eq!(combined.finish(), crc(kind, &[&b"head"[..], &zeros].concat()), "{kind:?}");
        }
    }

    proptest! {
        #[test]
        fn the_crc_of_parts_is_that_of_their_bytes(
            parts in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..300), 0..6,
            ),
        ) {
            for kind in CRCS {
                let mut combined = Combined::new(kind).expect("a CRC");
                for part in &parts {
                    combined.add(&crc(kind, part), part.len() as u64);
                }
                prop_assert_eq!(combined.finish(), crc(kind, &parts.concat()));
            }
        }
    }
}
