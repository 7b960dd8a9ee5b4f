//! Values of the rows of files of bodies, and of the bodies in them (see `docs/formats/object.md`).

use codec::cursor::put_varint;
use object_proto::{BucketId, DataId, ObjectKey, PartNumber, Stamp, Target};

use crate::fields::{TEXT_MAX, VERSION, begin, put_text, text, whole};

/// A body in a file of bodies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BodyRow {
    /// The body.
    pub data_id: DataId,
    /// Its bytes.
    pub size: u64,
    /// The object that it was committed for.
    pub target: Target,
    /// What it was committed as.
    pub of: FileOf,
}

/// What a body was committed as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileOf {
    /// An object, by this commit.
    Object(Stamp),
    /// A part: the beginning of the upload, the number.
    Part(Stamp, PartNumber),
}

impl BodyRow {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.data_id.get().to_le_bytes());
        put_varint(&mut out, self.size);
        out.extend(self.target.bucket.get().to_le_bytes());
        put_text(&mut out, self.target.key.as_str());
        match self.of {
            FileOf::Object(stamp) => out.extend(stamp.get().to_le_bytes()),
            FileOf::Part(begun, number) => {
                out.extend(begun.get().to_le_bytes());
                out.extend(number.get().to_le_bytes());
            }
        }
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<BodyRow> {
        let mut cursor = begin(value)?;
        let data_id = DataId::new(cursor.u128()?);
        let size = cursor.varint()?;
        let bucket = BucketId::new(cursor.u64()?);
        let key = ObjectKey::new(text(&mut cursor, TEXT_MAX)?).ok()?;
        let target = Target { bucket, key };
        let stamp = Stamp::new(cursor.u64()?);
        let of = match cursor.is_empty() {
            true => FileOf::Object(stamp),
            false => FileOf::Part(stamp, PartNumber::new(cursor.u16()?.into())?),
        };
        whole(cursor, BodyRow { data_id, size, target, of })
    }
}

/// A file of bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileRow {
    /// Bytes of bodies in it that objects and parts have, with the heads of their pieces.
    pub live: u64,
    /// What may become of it.
    pub state: FileState,
}

/// What may become of a file of bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileState {
    /// It is written, or bodies in it may be committed: it stays whatever lives in it.
    Held,
    /// It is sealed, and has so many bytes. Since then, microseconds since 1970.
    Sealed(u64, u64),
    /// In the trash, with so many bytes, since this time: no batch gives a place in it.
    Trash(u64, u64),
}

impl FileRow {
    /// Of a file of which nothing lives.
    pub const HELD: FileRow = FileRow { live: 0, state: FileState::Held };

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.live);
        match self.state {
            FileState::Held => out.push(0),
            FileState::Sealed(len, since) => {
                out.push(1);
                put_varint(&mut out, len);
                put_varint(&mut out, since);
            }
            FileState::Trash(len, since) => {
                out.push(2);
                put_varint(&mut out, len);
                put_varint(&mut out, since);
            }
        }
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<FileRow> {
        let mut cursor = begin(value)?;
        let live = cursor.varint()?;
        let state = match cursor.u8()? {
            0 => FileState::Held,
            1 => FileState::Sealed(cursor.varint()?, cursor.varint()?),
            2 => FileState::Trash(cursor.varint()?, cursor.varint()?),
            _ => return None,
        };
        whole(cursor, FileRow { live, state })
    }
}
