//! Tag and checksum of an object that is made of parts, from those of its parts. Pure.

use object_proto::{Checksum, ChecksumKind, ChecksumPlan, Etag, Part};
use s3s::crypto::{Checksum as _, Md5};

use crate::crc::Combined;
use crate::digest::Digest;
use crate::hex;

/// Checksums that an object may get when its client has not said which, the best one first.
const WITHOUT_PLAN: [ChecksumKind; 3] =
    [ChecksumKind::Crc64Nvme, ChecksumKind::Crc32, ChecksumKind::Crc32c];

/// The tag of an object whose parts have these tags; `None` where one is no MD5.
pub fn etag_of<'a>(tags: impl IntoIterator<Item = &'a str>) -> Option<Etag> {
    let (mut md5, mut count) = (Md5::new(), 0);
    for tag in tags {
        md5.update(&hex::decode(tag).filter(|bytes| bytes.len() == 16)?);
        count += 1;
    }
    Some(Etag::new(format!("{}-{count}", hex::encode(&md5.finalize()))))
}

/// The checksum of an object of these parts. Without a plan, the kind that is asked for comes first.
/// `None` where a part lacks it.
pub fn checksum_of(
    plan: Option<ChecksumPlan>,
    asked: Option<ChecksumKind>,
    parts: &[&Part],
) -> Option<Checksum> {
    match plan {
        Some(ChecksumPlan { kind, composite: true }) => composite(kind, parts),
        Some(ChecksumPlan { kind, composite: false }) => full(kind, parts),
        None => asked.into_iter().chain(WITHOUT_PLAN).find_map(|kind| full(kind, parts)),
    }
}

fn value_of(part: &Part, kind: ChecksumKind) -> Option<&[u8]> {
    let found = part.checksums.iter().find(|checksum| checksum.kind == kind);
    found.map(|checksum| &checksum.value[..])
}

/// The checksum of the parts' checksums.
fn composite(kind: ChecksumKind, parts: &[&Part]) -> Option<Checksum> {
    let mut digest = Digest::new(kind);
    for part in parts {
        digest.update(value_of(part, kind)?);
    }
    let value = digest.finish().checksum.value;
    Some(Checksum { kind, value, parts: u32::try_from(parts.len()).ok()? })
}

/// The checksum of the whole content, which only CRCs give.
fn full(kind: ChecksumKind, parts: &[&Part]) -> Option<Checksum> {
    let mut combined = Combined::new(kind)?;
    for part in parts {
        combined.add(value_of(part, kind)?, part.size);
    }
    Some(Checksum { kind, value: combined.finish(), parts: 0 })
}

#[cfg(test)]
mod tests {
    use object_proto::{DataId, PartNumber, Stamp};

    use super::*;

    fn part(number: u64, content: &[u8], kinds: &[ChecksumKind]) -> Part {
        let found = |kind| {
            let mut digest = Digest::new(kind);
            digest.update(content);
            digest.finish()
        };
        Part {
            number: PartNumber::new(number).expect("a number"),
            stamp: Stamp::new(number),
            data_id: DataId::new(1),
            size: content.len() as u64,
            etag: found(ChecksumKind::Crc32).etag(),
            checksums: kinds.iter().map(|kind| found(*kind).checksum).collect(),
        }
    }

    #[test]
    fn the_tag_is_that_of_the_parts_tags() {
        let (a, b) = ("5d41402abc4b2a76b9719d911017c592", "7d793037a0760186574b0282f2f435e7");
        // By other implementations: MD5 of both MD5s.
        assert_eq!(etag_of([a, b]), Some(Etag::new("065947336a2f2a95ba8899f3675c3be6-2")));
        assert_eq!(etag_of([a, "x"]), None);
        assert_eq!(etag_of([&a[..30]]), None);
    }

    #[test]
    fn the_checksum_is_the_planned_one() {
        use ChecksumKind::{Crc32, Crc64Nvme, Sha256};
        let (one, two) = (part(1, b"hello", &[Crc32, Sha256]), part(2, b"world", &[Crc32, Sha256]));
        let parts = [&one, &two];
        let whole = part(1, b"helloworld", &[Crc32]);
        let plan = |kind, composite| Some(ChecksumPlan { kind, composite });
        let found = checksum_of(plan(Crc32, false), None, &parts).expect("full");
        assert_eq!((found.parts, &found.value), (0, &whole.checksums[0].value));
        let found = checksum_of(plan(Sha256, true), None, &parts).expect("composite");
        assert_eq!((found.parts, found.kind), (2, Sha256));
        assert_eq!(checksum_of(plan(Sha256, false), None, &parts), None);
        assert_eq!(checksum_of(plan(Crc64Nvme, false), None, &parts), None);
        assert_eq!(checksum_of(None, None, &parts).map(|found| found.kind), Some(Crc32));
        assert_eq!(checksum_of(None, Some(Sha256), &parts).map(|found| found.kind), Some(Crc32));
        let bare = part(3, b"x", &[]);
        assert_eq!(checksum_of(None, None, &[&one, &bare]), None);
    }
}
