//! Digests of an object that consists of parts, from those of its parts.

use crc_fast::{CrcAlgorithm, checksum_combine};
use object_proto::{Checksum, ChecksumKind, Etag};
use s3s::crypto::{Checksum as _, Md5};

use super::Digest;
use crate::hex;

/// The tag of an object with parts: the MD5 of the MD5s of its parts, and their number. `None` when a
/// part's tag is no MD5.
pub fn etag_of_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Option<Etag> {
    let (mut md5, mut count) = (Md5::new(), 0);
    for part in parts {
        let part = hex::decode(part).filter(|part| part.len() == 16)?;
        md5.update(&part);
        count += 1;
    }
    Some(Etag::new(format!("{}-{count}", hex::encode(&md5.finalize()))))
}

/// The checksum of the checksums of an object's parts.
pub fn composite<'a>(
    kind: ChecksumKind,
    parts: impl IntoIterator<Item = &'a Checksum>,
) -> Checksum {
    let (mut digest, mut count) = (Digest::new(kind), 0);
    for part in parts {
        digest.update(&part.value);
        count += 1;
    }
    Checksum { parts: count, ..digest.finish().checksum }
}

/// The checksum of a content from those of its parts, with their lengths. `None` when that does not
/// follow from them, as with SHA.
pub fn joined<'a>(
    kind: ChecksumKind,
    parts: impl IntoIterator<Item = (&'a Checksum, u64)>,
) -> Option<Checksum> {
    let algorithm = match kind {
        ChecksumKind::Crc32 => CrcAlgorithm::Crc32IsoHdlc,
        ChecksumKind::Crc32c => CrcAlgorithm::Crc32Iscsi,
        ChecksumKind::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
        ChecksumKind::Sha1 | ChecksumKind::Sha256 => return None,
    };
    let mut all: Option<u64> = None;
    for (part, len) in parts {
        if part.kind != kind || part.parts != 0 || part.value.len() != kind.bytes() {
            return None;
        }
        let value = part.value.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        all = Some(match all {
            None => value,
            Some(before) => checksum_combine(algorithm, before, value, len),
        });
    }
    let value = all?.to_be_bytes()[8 - kind.bytes()..].to_vec();
    Some(Checksum { kind, value, parts: 0 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checksum(kind: ChecksumKind, bytes: &[u8]) -> Checksum {
        let mut digest = Digest::new(kind);
        digest.update(bytes);
        digest.finish().checksum
    }

    proptest! {
        #[test]
        fn checksums_of_parts_make_that_of_the_content(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..6),
        ) {
            for kind in ChecksumKind::ALL {
                let of: Vec<_> = parts.iter().map(|part| checksum(kind, part)).collect();
                let lens = parts.iter().map(|part| part.len() as u64);
                let whole = joined(kind, of.iter().zip(lens));
                let is_crc = !matches!(kind, ChecksumKind::Sha1 | ChecksumKind::Sha256);
                prop_assert_eq!(whole, is_crc.then(|| checksum(kind, &parts.concat())));
                let values: Vec<u8> = of.iter().flat_map(|part| part.value.clone()).collect();
                let all = Checksum { parts: of.len() as u32, ..checksum(kind, &values) };
                prop_assert_eq!(composite(kind, &of), all);
            }
        }
    }

    #[test]
    fn a_tag_names_the_number_of_parts() {
        let part = "5d41402abc4b2a76b9719d911017c592";
        let tag = etag_of_parts([part, part]).expect("they are MD5s");
        assert_eq!(tag.as_str(), format!("{}-2", two(part)));
        for other in
            ["", "5d41402abc4b2a76b9719d911017c59", "x", "5d41402abc4b2a76b9719d911017c592-1"]
        {
            assert_eq!(etag_of_parts([part, other]), None, "{other:?}");
        }
    }

    /// MD5 of a part's MD5, twice.
    fn two(part: &str) -> String {
        let mut md5 = Md5::new();
        md5.update(&hex::decode(part).expect("digits").repeat(2));
        hex::encode(&md5.finalize())
    }
}
