//! Pieces of a body's file: a head, then bytes of the body (`object-protocols.md` 5.3).
//!
//! All pieces of a body but the last hold [`PIECE_BYTES`], and their heads are of one length: where a
//! byte of the body is follows from its offset.

use codec::crc32c;
use codec::cursor::Cursor;
use object_proto::limits::{KEY_MAX, PIECE_BYTES};
use object_proto::{BucketId, DataId, ObjectKey, Target};

const MAGIC: [u8; 4] = *b"CrOb";
const VERSION: u8 = 1;
/// Bytes of a head before the key: magic, version, zero, length of the key, data ID, bucket, offset,
/// length, CRC of the bytes, CRC of the head and key.
const FIXED: usize = 4 + 1 + 1 + 2 + 16 + 8 + 8 + 4 + 4 + 4;
/// Bytes of a head at most.
pub const HEAD_MAX: usize = FIXED + KEY_MAX;

/// Whose bytes a piece holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// Identity of the body.
    pub data_id: DataId,
    /// The object that it was sent for.
    pub target: Target,
}

/// What a piece's head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceHead {
    /// Offset in the body.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// CRC32C of the bytes.
    pub crc: u32,
}

/// Cause of a piece's refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceFlaw {
    /// It is no piece, or was altered.
    Damaged,
    /// It holds bytes of another body.
    Other,
}

/// Bytes that the pieces of a body of `size` bytes have together.
pub fn stored_len(target: &Target, size: u64) -> u64 {
    size + size.div_ceil(PIECE_BYTES as u64) * head_len(target)
}

fn head_len(target: &Target) -> u64 {
    (FIXED + target.key.as_str().len()) as u64
}

impl Body {
    /// Bytes of a head of its pieces.
    pub fn head_len(&self) -> usize {
        head_len(&self.target) as usize
    }

    /// Where the piece at a multiple of [`PIECE_BYTES`] begins, from the place of the first one on.
    pub fn place(&self, piece: u64) -> u64 {
        piece * (self.head_len() + PIECE_BYTES) as u64
    }

    /// Whose piece bytes begin with, and its head; none when they begin with no whole head.
    pub fn read(bytes: &[u8]) -> Option<(Body, PieceHead)> {
        let mut cursor = Cursor(bytes.get(6..)?);
        let len = usize::from(cursor.u16()?);
        let data_id = DataId::new(cursor.u128()?);
        let bucket = BucketId::new(cursor.u64()?);
        let key = std::str::from_utf8(bytes.get(FIXED..FIXED + len)?).ok()?;
        let target = Target { bucket, key: ObjectKey::new(key).ok()? };
        let body = Body { data_id, target };
        let head = body.decode(bytes, true).ok()?;
        Some((body, head))
    }

    /// The head of a piece.
    pub fn encode(&self, head: PieceHead) -> Vec<u8> {
        let key = self.target.key.as_str().as_bytes();
        let mut out = Vec::with_capacity(self.head_len());
        out.extend(MAGIC);
        out.extend([VERSION, 0]);
        out.extend((key.len() as u16).to_le_bytes());
        out.extend(self.data_id.get().to_le_bytes());
        out.extend(self.target.bucket.get().to_le_bytes());
        out.extend(head.offset.to_le_bytes());
        out.extend(head.len.to_le_bytes());
        out.extend(head.crc.to_le_bytes());
        let crc = codec::crc32c_extend(crc32c(&out), key);
        out.extend(crc.to_le_bytes());
        out.extend(key);
        out
    }

    /// A piece of `bytes` at `offset` of the body.
    pub fn piece(&self, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let head = PieceHead { offset, len: bytes.len() as u32, crc: crc32c(bytes) };
        let mut out = self.encode(head);
        out.extend_from_slice(bytes);
        out
    }

    /// True when `piece` is the one piece of the whole body.
    pub fn is_whole(&self, piece: &[u8]) -> bool {
        self.decode(piece, true).is_ok_and(|head| {
            let bytes = &piece[self.head_len()..];
            (head.offset, head.len as usize, head.crc) == (0, bytes.len(), crc32c(bytes))
        })
    }

    /// Reads a head of one of its pieces; without `own`, of another body's too.
    pub fn decode(&self, bytes: &[u8], own: bool) -> Result<PieceHead, PieceFlaw> {
        let (data_id, bucket, key, head) = read(bytes).ok_or(PieceFlaw::Damaged)?;
        let target = &self.target;
        let is_own = data_id == self.data_id.get()
            && bucket == target.bucket.get()
            && key == target.key.as_str().as_bytes();
        if is_own || !own { Ok(head) } else { Err(PieceFlaw::Other) }
    }
}

/// The parts of a head that is intact: data ID, bucket, key, the rest.
fn read(bytes: &[u8]) -> Option<(u128, u64, &[u8], PieceHead)> {
    let mut cursor = Cursor(bytes);
    let signed = bytes.get(..FIXED - 4)?;
    if cursor.array()? != MAGIC || cursor.array()? != [VERSION, 0] {
        return None;
    }
    let key_len = usize::from(cursor.u16()?);
    let (data_id, bucket) = (cursor.u128()?, cursor.u64()?);
    let head = PieceHead { offset: cursor.u64()?, len: cursor.u32()?, crc: cursor.u32()? };
    let crc = cursor.u32()?;
    let key = cursor.take(key_len)?;
    (codec::crc32c_extend(crc32c(signed), key) == crc).then_some((data_id, bucket, key, head))
}

#[cfg(test)]
mod tests {
    use object_proto::{BucketId, ObjectKey};
    use proptest::prelude::*;

    use super::*;

    fn body(data_id: u128, key: &str) -> Body {
        let target = Target { bucket: BucketId::new(3), key: ObjectKey::new(key).unwrap() };
        Body { data_id: DataId::new(data_id), target }
    }

    #[test]
    fn a_head_reads_back_for_its_body_only() {
        let own = body(7, "a/b");
        let bytes = own.piece(PIECE_BYTES as u64, b"hello");
        assert_eq!(bytes.len(), own.head_len() + 5);
        let head = own.decode(&bytes, true).unwrap();
        assert_eq!((head.offset, head.len), (PIECE_BYTES as u64, 5));
        assert_eq!(head.crc, crc32c(b"hello"));
        assert_eq!(body(8, "a/b").decode(&bytes, true), Err(PieceFlaw::Other));
        assert_eq!(body(7, "a/c").decode(&bytes, true), Err(PieceFlaw::Other));
        for at in 0..own.head_len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(own.decode(&bytes, true), Err(PieceFlaw::Damaged), "byte {at}");
        }
        for end in 0..own.head_len() {
            assert_eq!(own.decode(&bytes[..end], true), Err(PieceFlaw::Damaged), "{end} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, magic: bool) {
            if magic && bytes.len() > 6 {
                bytes[..6].copy_from_slice(b"CrOb\x01\x00");
            }
            let _ = body(7, "a").decode(&bytes, true);
        }
    }
}
