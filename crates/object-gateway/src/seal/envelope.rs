//! [`Envelope`]: how an object is encrypted, and its wrapped key, as rows hold them
//! (`docs/formats/object.md`).

use super::kms::{SALT_BYTES, WRAPPED_BYTES};
use crate::keyfile::KeyId;

/// Version of the form, and of the frames of bodies.
const VERSION: u8 = 1;
const S3: u8 = 1;
const KMS: u8 = 2;
const CUSTOMER: u8 = 3;
/// Bytes of a check of a client's key.
pub const CHECK_BYTES: usize = 16;
/// Bytes of a context, as its header has it, at most.
pub const CONTEXT_MAX: usize = 1 << 10;

/// What SSE-KMS shows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KmsFacts {
    /// The context as its header has it; empty for none.
    pub context: String,
    /// Answers say that a key of the bucket is used.
    pub bucket_key: bool,
}

/// By what the object's key is wrapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contents {
    /// SSE-S3: a key of the key file.
    S3(KeyId),
    /// SSE-KMS: a key of the key file that the client has named, or the default one.
    Kms(KeyId, KmsFacts),
    /// SSE-C: the client's key, and how it is known again.
    Customer([u8; CHECK_BYTES]),
}

/// How an object is encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// By what the key is wrapped.
    pub contents: Contents,
    /// What the key that wraps was derived with.
    pub salt: [u8; SALT_BYTES],
    /// The object's key, wrapped.
    pub wrapped: [u8; WRAPPED_BYTES],
}

impl Envelope {
    /// As rows hold it.
    pub fn encode(&self) -> object_proto::Envelope {
        let mut out = vec![VERSION];
        match &self.contents {
            Contents::S3(key) => {
                out.push(S3);
                put_key(&mut out, key);
            }
            Contents::Kms(key, facts) => {
                out.push(KMS);
                put_key(&mut out, key);
                out.push(u8::from(facts.bucket_key));
                let len = u16::try_from(facts.context.len()).expect("CONTEXT_MAX is below 64 KiB");
                out.extend(len.to_le_bytes());
                out.extend(facts.context.as_bytes());
            }
            Contents::Customer(check) => {
                out.push(CUSTOMER);
                out.extend(check);
            }
        }
        out.extend(self.salt);
        out.extend(self.wrapped);
        object_proto::Envelope::new(out).expect("its parts are bounded")
    }

    /// Reads what a row holds; `None` for what is not one, or is of a newer gateway.
    pub fn decode(envelope: &object_proto::Envelope) -> Option<Envelope> {
        let mut input = Input(envelope.as_bytes());
        if input.array()? != [VERSION] {
            return None;
        }
        let [kind] = input.array()?;
        let contents = match kind {
            S3 => Contents::S3(input.key()?),
            KMS => {
                let key = input.key()?;
                let bucket_key = match input.array()? {
                    [0] => false,
                    [1] => true,
                    _ => return None,
                };
                let len = usize::from(u16::from_le_bytes(input.array()?));
                let context = input.text(len).filter(|_| len <= CONTEXT_MAX)?;
                Contents::Kms(key, KmsFacts { context, bucket_key })
            }
            CUSTOMER => Contents::Customer(input.array()?),
            _ => return None,
        };
        let (salt, wrapped) = (input.array()?, input.array()?);
        input.0.is_empty().then_some(Envelope { contents, salt, wrapped })
    }
}

fn put_key(out: &mut Vec<u8>, key: &KeyId) {
    out.push(u8::try_from(key.name().len()).expect("names of keys are short"));
    out.extend(key.name().as_bytes());
    out.extend(key.version().to_le_bytes());
}

/// What is left of an envelope.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn text(&mut self, len: usize) -> Option<String> {
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn key(&mut self) -> Option<KeyId> {
        let [len] = self.array()?;
        let name = self.text(usize::from(len))?;
        KeyId::new(&name, u32::from_le_bytes(self.array()?))
    }
}

/// Fuzz target: any bytes are an envelope, which has one form, or are none.
pub fn fuzz_envelope(bytes: &[u8]) {
    if let Some(row) = object_proto::Envelope::new(bytes.to_vec())
        && let Some(envelope) = Envelope::decode(&row)
    {
        assert_eq!(envelope.encode(), row);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn envelopes() -> Vec<Envelope> {
        let key = |name, version| KeyId::new(name, version).expect("a key");
        let facts = |context: &str, bucket_key| KmsFacts { context: context.into(), bucket_key };
        [
            Contents::S3(key("k1", 0)),
            Contents::Kms(key("k1", 0), KmsFacts::default()),
            Contents::Kms(key("Team_key.1", 7), facts("eyJhIjoiYiJ9", true)),
            Contents::Kms(key(&"a".repeat(64), u32::MAX), facts(&"c".repeat(CONTEXT_MAX), false)),
            Contents::Customer([9; CHECK_BYTES]),
        ]
        .map(|contents| Envelope { contents, salt: [1; SALT_BYTES], wrapped: [2; WRAPPED_BYTES] })
        .to_vec()
    }

    #[test]
    fn an_envelope_reads_back_and_no_shorter_one_does() {
        for (number, envelope) in envelopes().into_iter().enumerate() {
            let row = envelope.encode();
            assert_eq!(Envelope::decode(&row), Some(envelope));
            for end in 1..row.as_bytes().len() {
                let short = object_proto::Envelope::new(row.as_bytes()[..end].to_vec());
                assert_eq!(Envelope::decode(&short.expect("an envelope")), None, "{end}");
            }
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/envelope");
            let path = path.join(number.to_string());
            if std::env::var_os("OBJECT_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                std::fs::write(&path, row.as_bytes()).expect("it is written");
            }
            let kept = std::fs::read(&path).expect("it is there");
            assert_eq!(kept, row.as_bytes(), "{number} was written differently before");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            at in 0usize..5, place in any::<proptest::sample::Index>(), bits in 1u8..,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            fuzz_envelope(&bytes);
            let mut row = envelopes()[at].encode().as_bytes().to_vec();
            let place = place.index(row.len());
            row[place] ^= bits;
            fuzz_envelope(&row);
        }
    }
}
