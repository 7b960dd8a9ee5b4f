//! [`Kms`]: what wraps the keys of objects. That of a gateway is its key file; a service for keys
//! could stand in its place.

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

use super::frames::DataKey;
use crate::keyfile::KeyId;

/// Bytes that the key which wraps is derived with.
pub const SALT_BYTES: usize = 16;
/// Bytes of a wrapped key: the key, and a tag.
pub const WRAPPED_BYTES: usize = DataKey::BYTES + 16;

/// What the key that wraps is derived for.
const OF_WRAPPING: &[u8] = b"craton data key\0";
/// What the check of a client's key is derived for.
const OF_CHECK: &[u8] = b"craton check\0";

/// A wrapped key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrapped {
    /// What has wrapped it.
    pub key: KeyId,
    /// What the key that wraps was derived with.
    pub salt: [u8; SALT_BYTES],
    /// The key, encrypted.
    pub bytes: [u8; WRAPPED_BYTES],
}

/// Why a key is not wrapped, or not unwrapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KmsError {
    /// There is no such key.
    NoKey {
        /// As it was asked for.
        key: String,
    },
    /// The key of that name does not open it: it is another one, or what was wrapped was changed, or
    /// is another object's.
    Refused {
        /// The key.
        key: KeyId,
    },
    /// There is no randomness.
    NoRandomness,
}

impl fmt::Display for KmsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KmsError::NoKey { key } => write!(
                f,
                "the key file has no key {key}: copy the file of a gateway that has it, or restore a \
                 backup"
            ),
            KmsError::Refused { key } => write!(
                f,
                "key {key} of the key file does not open what a key of that name has wrapped: use \
                 the file that wrapped it; if it did, the object's row is damaged"
            ),
            KmsError::NoRandomness => f.write_str("the system gives no random bytes"),
        }
    }
}

impl std::error::Error for KmsError {}

/// Wraps keys of objects with keys of its own, which it never shows.
#[async_trait::async_trait]
pub trait Kms: Send + Sync + 'static {
    /// Wraps a key with the newest version of the key of that name; with the default one for none.
    /// `bound` is authenticated: nothing else unwraps it.
    async fn wrap(
        &self,
        name: Option<&str>,
        key: &DataKey,
        bound: &[u8],
    ) -> Result<Wrapped, KmsError>;

    /// Unwraps a key.
    async fn unwrap(&self, wrapped: &Wrapped, bound: &[u8]) -> Result<DataKey, KmsError>;
}

/// The key that wraps one object's key. Each has its own, so that no nonce is used twice.
pub fn kek_of(master: &hmac::Key, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
    let mut context = hmac::Context::with_key(master);
    context.update(OF_WRAPPING);
    context.update(salt);
    let key = context.sign();
    let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("AES-256 has 32 bytes");
    LessSafeKey::new(key)
}

/// How a client's key is known again, without the key.
pub fn check_of(master: &hmac::Key, salt: &[u8; SALT_BYTES]) -> [u8; 16] {
    let mut context = hmac::Context::with_key(master);
    context.update(OF_CHECK);
    context.update(salt);
    *context.sign().as_ref().first_chunk().expect("a SHA-256 has 32 bytes")
}

/// A key of one use has one nonce.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// Wraps a key with one that wraps nothing else.
pub fn seal_key(kek: &LessSafeKey, key: &DataKey, bound: &[u8]) -> [u8; WRAPPED_BYTES] {
    let mut sealed = key.bytes().to_vec();
    kek.seal_in_place_append_tag(nonce(), Aad::from(bound), &mut sealed)
        .expect("AES-GCM seals up to 64 GiB");
    sealed.try_into().expect("the key and its tag")
}

/// Unwraps a key; `None` when something else was wrapped, or is bound to something else.
pub fn open_key(kek: &LessSafeKey, wrapped: &[u8; WRAPPED_BYTES], bound: &[u8]) -> Option<DataKey> {
    let mut sealed = *wrapped;
    let key = kek.open_in_place(nonce(), Aad::from(bound), &mut sealed).ok()?;
    Some(DataKey::new((&*key).try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_unwrapped_as_it_was_wrapped_only() {
        let master = |byte| hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32]);
        let (salt, key) = ([3; SALT_BYTES], DataKey::new([5; 32]));
        let wrapped = seal_key(&kek_of(&master(1), &salt), &key, b"here");
        let open = |byte, salt: &[u8; SALT_BYTES], wrapped: &[u8; WRAPPED_BYTES], bound: &[u8]| {
            open_key(&kek_of(&master(byte), salt), wrapped, bound).map(|key| *key.bytes())
        };
        assert_eq!(open(1, &salt, &wrapped, b"here"), Some([5; 32]));
        assert_eq!(open(2, &salt, &wrapped, b"here"), None);
        assert_eq!(open(1, &[4; SALT_BYTES], &wrapped, b"here"), None);
        assert_eq!(open(1, &salt, &wrapped, b"there"), None);
        for at in 0..WRAPPED_BYTES {
            let mut flipped = wrapped;
            flipped[at] ^= 1;
            assert_eq!(open(1, &salt, &flipped, b"here"), None, "{at}");
        }
        assert_ne!(check_of(&master(1), &salt), check_of(&master(2), &salt));
        assert_ne!(check_of(&master(1), &salt), check_of(&master(1), &[4; SALT_BYTES]));
    }
}
