//! [`ContentCheck`]: whether stored bytes have the digests that are stored beside them.

use object_proto::{Checksum, Etag, ObjectFacts};

use crate::digest::{Digest, name_of};
use crate::hex;

/// Digests of a content as it is read, and what they should be.
pub struct ContentCheck {
    digest: Digest,
    checksum: Checksum,
    /// The tag, where it is the MD5 of the content.
    etag: Option<Etag>,
}

impl ContentCheck {
    /// For an object that is not encrypted; none when no checksum of the whole content is stored, or only its key
    /// gives the content.
    pub fn of(facts: &ObjectFacts) -> Option<ContentCheck> {
        let checksum = facts.checksums.iter().find(|checksum| checksum.parts == 0)?.clone();
        let digest = Digest::new(checksum.kind);
        // That of an object of parts has their number behind it.
        let etag = Some(&facts.etag).filter(|etag| hex::decode(etag.as_str()).is_some()).cloned();
        facts.encryption.is_none().then_some(ContentCheck { digest, checksum, etag })
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// The digest that differs.
    pub fn finish(self) -> Result<(), &'static str> {
        let found = self.digest.finish();
        if found.checksum.value != self.checksum.value {
            return Err(name_of(self.checksum.kind));
        }
        match self.etag {
            Some(etag) if etag != found.etag() => Err("MD5"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_proto::ChecksumKind;

    use super::*;

    fn facts_of(content: &[u8]) -> ObjectFacts {
        let mut digest = Digest::new(ChecksumKind::Crc64Nvme);
        digest.update(content);
        let found = digest.finish();
        let checksums = vec![found.checksum.clone()];
        ObjectFacts { etag: found.etag(), checksums, ..ObjectFacts::default() }
    }

    fn checked(facts: &ObjectFacts, content: &[u8]) -> Option<Result<(), &'static str>> {
        let mut check = ContentCheck::of(facts)?;
        content.chunks(3).for_each(|part| check.update(part));
        Some(check.finish())
    }

    #[test]
    fn other_bytes_have_other_digests() {
        let facts = facts_of(b"content");
        assert_eq!(checked(&facts, b"content"), Some(Ok(())));
        assert_eq!(checked(&facts, b"Content"), Some(Err("CRC64NVME")));
        let other = ObjectFacts { etag: facts_of(b"other").etag, ..facts.clone() };
        assert_eq!(checked(&other, b"content"), Some(Err("MD5")));
        let of_parts = ObjectFacts { etag: Etag::new(format!("{}-2", "0".repeat(32))), ..facts };
        assert_eq!(checked(&of_parts, b"content"), Some(Ok(())));
        assert_eq!(checked(&ObjectFacts::default(), b"content"), None);
    }
}
