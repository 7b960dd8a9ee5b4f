//! Frames of encrypted bodies: 64 KiB of content each, sealed with AES-256-GCM by the body's own key.
//!
//! A body is: a head of 32 random bytes, its identity; then its frames, each with its tag of 16
//! bytes behind it. All but the last have 64 KiB of content, and there is one at least, which is
//! empty where the content is. The key of a body is derived from the object's, its identity and its
//! part's number, so no two bodies have the same. A frame's nonce is its index and whether it is
//! the last one: a frame that is at another place, in another body, or that ends a body which does
//! not end there, is refused.

use object_proto::{BODY_HEAD, FRAME_BYTES, SEALED_FRAME, TAG_BYTES};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

/// What the key of a body is derived for.
const OF_BODY: &[u8] = b"craton body\0";
/// What the tag of an object is derived for.
const OF_ETAG: &[u8] = b"craton etag\0";

/// The random key of an object, or of an upload: all keys of bodies are derived from it.
#[derive(Clone)]
pub struct DataKey([u8; DataKey::BYTES]);

/// Without its bytes.
impl std::fmt::Debug for DataKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DataKey")
    }
}

impl DataKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// From its bytes, which are random.
    pub fn new(bytes: [u8; DataKey::BYTES]) -> DataKey {
        DataKey(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; DataKey::BYTES] {
        &self.0
    }

    fn derived(&self, fields: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        fields.iter().for_each(|field| context.update(field));
        context.sign()
    }

    /// The key of a body with that identity: of the part of that number, or of the whole object for
    /// 0.
    pub fn body(&self, head: &[u8; BODY_HEAD], part: u16) -> BodyKey {
        let key = self.derived(&[OF_BODY, &part.to_le_bytes(), head]);
        let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("AES-256 has 32 bytes");
        BodyKey(LessSafeKey::new(key))
    }

    /// A tag for a content with that MD5, which does not show the MD5.
    pub fn etag(&self, md5: &[u8]) -> [u8; 16] {
        let tag = self.derived(&[OF_ETAG, md5]);
        *tag.as_ref().first_chunk().expect("a SHA-256 has 32 bytes")
    }
}

/// A frame does not open: it was changed, is of another place, or of another body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameError;

/// The key of a body.
pub struct BodyKey(LessSafeKey);

impl BodyKey {
    /// A key seals each frame once: its index and `is_last` are the nonce.
    fn nonce(index: u64, is_last: bool) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[0] = u8::from(is_last);
        nonce[4..].copy_from_slice(&index.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Appends a frame of at most [`FRAME_BYTES`], sealed.
    pub fn seal(&self, out: &mut Vec<u8>, content: &[u8], (index, is_last): (u64, bool)) {
        assert!(content.len() <= FRAME_BYTES && (is_last || content.len() == FRAME_BYTES));
        let start = out.len();
        out.extend_from_slice(content);
        let nonce = BodyKey::nonce(index, is_last);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::empty(), &mut out[start..]);
        out.extend_from_slice(tag.expect("AES-GCM seals up to 64 GiB").as_ref());
    }

    /// Opens frames that follow one another, the first of which has that index, where they are:
    /// the contents come together at the front. `ends` says that the last of them ends the body.
    ///
    /// # Errors
    ///
    /// [`FrameError`] for bytes that are not these frames; nothing of them is to be used then.
    pub fn open(&self, sealed: &mut Vec<u8>, first: u64, ends: bool) -> Result<(), FrameError> {
        let (mut from, mut to, mut index) = (0, 0, first);
        while from < sealed.len() {
            let len = SEALED_FRAME.min(sealed.len() - from);
            let is_last = ends && from + len == sealed.len();
            if len < TAG_BYTES || (!is_last && len != SEALED_FRAME) {
                return Err(FrameError);
            }
            let frame = &mut sealed[from..from + len];
            let nonce = BodyKey::nonce(index, is_last);
            self.0.open_in_place(nonce, Aad::empty(), frame).map_err(|_| FrameError)?;
            sealed.copy_within(from..from + len - TAG_BYTES, to);
            (from, to, index) = (from + len, to + len - TAG_BYTES, index + 1);
        }
        sealed.truncate(to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [u8; BODY_HEAD] = [4; BODY_HEAD];

    fn key() -> DataKey {
        DataKey::new([7; 32])
    }

    /// Three frames, the last of 5 bytes.
    fn body() -> (Vec<u8>, Vec<u8>) {
        let content: Vec<u8> = (0..2 * FRAME_BYTES + 5).map(|at| (at ^ (at >> 8)) as u8).collect();
        let (key, mut sealed) = (key().body(&HEAD, 0), Vec::new());
        let frames: Vec<&[u8]> = content.chunks(FRAME_BYTES).collect();
        for (index, frame) in frames.iter().enumerate() {
            key.seal(&mut sealed, frame, (index as u64, index + 1 == frames.len()));
        }
        (content, sealed)
    }

    fn opened(sealed: &[u8], first: u64, ends: bool) -> Result<Vec<u8>, FrameError> {
        let mut sealed = sealed.to_vec();
        key().body(&HEAD, 0).open(&mut sealed, first, ends).map(|()| sealed)
    }

    #[test]
    fn frames_open_together_and_one_by_one() {
        let (content, sealed) = body();
        assert_eq!(opened(&sealed, 0, true).as_deref(), Ok(&content[..]));
        for (index, frame) in sealed.chunks(SEALED_FRAME).enumerate() {
            let start = index * FRAME_BYTES;
            let wanted = &content[start..content.len().min(start + FRAME_BYTES)];
            assert_eq!(opened(frame, index as u64, index == 2).as_deref(), Ok(wanted), "{index}");
        }
        let empty = [&key().body(&HEAD, 0)].map(|key| {
            let mut sealed = Vec::new();
            key.seal(&mut sealed, b"", (0, true));
            sealed
        });
        assert_eq!(opened(&empty[0], 0, true), Ok(Vec::new()));
    }

    #[test]
    fn frames_that_are_cut_swapped_repeated_or_moved_are_refused() {
        let (_, sealed) = body();
        let frames: Vec<&[u8]> = sealed.chunks(SEALED_FRAME).collect();
        let refused = |frames: &[&[u8]], first: u64, ends: bool| {
            assert_eq!(opened(&frames.concat(), first, ends), Err(FrameError));
        };
        refused(&frames[..2], 0, true); // The end is cut off.
        refused(&frames[1..], 0, true); // The beginning is.
        refused(&[frames[1], frames[0], frames[2]], 0, true);
        refused(&[frames[0], frames[0], frames[1], frames[2]], 0, true);
        refused(&[frames[0], frames[2]], 0, true);
        refused(&frames, 0, false); // It goes on.
        refused(&frames[..1], 1, false);
        refused(&[frames[2], frames[0]], 2, false);
        refused(&[&frames[2][..TAG_BYTES - 1]], 2, true);
        // Of another part, another body, another object.
        for key in [
            key().body(&HEAD, 1),
            key().body(&[5; BODY_HEAD], 0),
            DataKey::new([8; 32]).body(&HEAD, 0),
        ] {
            let mut sealed = sealed.clone();
            assert_eq!(key.open(&mut sealed, 0, true), Err(FrameError));
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_refused() {
        let (_, sealed) = body();
        for at in (0..sealed.len()).step_by(997).chain([sealed.len() - 1]) {
            let mut flipped = sealed.clone();
            flipped[at] ^= 1 << (at % 8);
            assert_eq!(opened(&flipped, 0, true), Err(FrameError), "{at}");
        }
    }

    #[test]
    fn tags_of_objects_differ_by_key_and_content() {
        let (key, other) = (key(), DataKey::new([8; 32]));
        assert_eq!(key.etag(b"md5"), key.etag(b"md5"));
        assert_ne!(key.etag(b"md5"), key.etag(b"md6"));
        assert_ne!(key.etag(b"md5"), other.etag(b"md5"));
    }
}
