//! Fields that values of rows share: texts, metadata, checksums.

use codec::cursor::{Cursor, put_bytes, put_varint};
use object_proto::limits::METADATA_MAX;
use object_proto::{Checksum, ChecksumKind, Metadata, ObjectTags, TAGS_MAX};

/// Version of all rows.
pub const VERSION: u8 = 1;

/// Bytes of a text in a row at most: IDs, tags, names.
pub(crate) const TEXT_MAX: usize = 1024;

/// Checksums of an object at most: one of each kind.
const CHECKSUMS_MAX: u64 = ChecksumKind::ALL.len() as u64;

/// Headers of an object at most.
const HEADERS_MAX: u64 = METADATA_MAX as u64;

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

pub(crate) fn text(cursor: &mut Cursor<'_>, max: usize) -> Option<String> {
    String::from_utf8(cursor.bytes(max)?.to_vec()).ok()
}

pub(crate) fn flag(cursor: &mut Cursor<'_>) -> Option<bool> {
    match cursor.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

pub(crate) fn begin(value: &[u8]) -> Option<Cursor<'_>> {
    let mut cursor = Cursor(value);
    (cursor.u8()? == VERSION).then_some(cursor)
}

/// `read` when nothing follows it.
pub(crate) fn whole<T>(cursor: Cursor<'_>, read: T) -> Option<T> {
    cursor.is_empty().then_some(read)
}

/// Metadata as a row of its own holds it, or an object's row.
pub fn put_metadata(out: &mut Vec<u8>, metadata: &Metadata) {
    put_varint(out, metadata.iter().count() as u64);
    for (name, value) in metadata.iter() {
        put_text(out, name);
        put_text(out, value);
    }
}

pub(crate) fn metadata(cursor: &mut Cursor<'_>) -> Option<Metadata> {
    let count = cursor.varint().filter(|&count| count <= HEADERS_MAX)?;
    let mut headers = std::collections::BTreeMap::new();
    for _ in 0..count {
        let name = text(cursor, METADATA_MAX)?;
        headers.insert(name, text(cursor, METADATA_MAX)?);
    }
    Metadata::new(headers).ok()
}

/// Tags behind the metadata, where there are some.
pub fn put_tags(out: &mut Vec<u8>, tags: &ObjectTags) {
    put_varint(out, tags.iter().len() as u64);
    for (name, value) in tags.iter() {
        put_text(out, name);
        put_text(out, value);
    }
}

pub(crate) fn tags(cursor: &mut Cursor<'_>) -> Option<ObjectTags> {
    let count = cursor.varint().filter(|&count| (1..=TAGS_MAX as u64).contains(&count))?;
    let mut tags = std::collections::BTreeMap::new();
    for _ in 0..count {
        let name = text(cursor, TEXT_MAX)?;
        tags.insert(name, text(cursor, TEXT_MAX)?);
    }
    ObjectTags::new(tags).ok().filter(|tags| tags.iter().len() as u64 == count)
}

/// True when [`checksums`] takes them.
pub(crate) fn are_checksums(checksums: &[Checksum]) -> bool {
    checksums.len() as u64 <= CHECKSUMS_MAX
        && checksums.iter().all(|checksum| checksum.value.len() <= checksum.kind.bytes())
}

pub(crate) fn put_checksums(out: &mut Vec<u8>, checksums: &[Checksum]) {
    put_varint(out, checksums.len() as u64);
    for checksum in checksums {
        out.push(kind_code(checksum.kind));
        put_varint(out, u64::from(checksum.parts));
        put_bytes(out, &checksum.value);
    }
}

pub(crate) fn checksums(cursor: &mut Cursor<'_>) -> Option<Vec<Checksum>> {
    let count = cursor.varint().filter(|&count| count <= CHECKSUMS_MAX)?;
    let mut checksums = Vec::new();
    for _ in 0..count {
        let kind = kind_of(cursor.u8()?)?;
        let parts = u32::try_from(cursor.varint()?).ok()?;
        let value = cursor.bytes(kind.bytes())?.to_vec();
        checksums.push(Checksum { kind, value, parts });
    }
    Some(checksums)
}

pub(crate) fn kind_code(kind: ChecksumKind) -> u8 {
    ChecksumKind::ALL.iter().position(|&other| other == kind).expect("it is one of all") as u8
}

pub(crate) fn kind_of(code: u8) -> Option<ChecksumKind> {
    ChecksumKind::ALL.get(usize::from(code)).copied()
}
