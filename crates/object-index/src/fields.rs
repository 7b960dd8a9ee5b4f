//! Fields that values of rows share: texts, metadata, tags, permissions, locks, checksums.

use codec::cursor::{Cursor, put_bytes, put_varint};
use object_proto::limits::{GRANTS_MAX, METADATA_MAX};
use object_proto::{
    Checksum, ChecksumKind, ENVELOPE_MAX, Envelope, Grant, Grantee, Metadata, ObjectLock,
    ObjectTags, Permission, Retention, RetentionMode, TAGS_MAX, UserId,
};

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

/// Tags behind the metadata.
pub fn put_tags(out: &mut Vec<u8>, tags: &ObjectTags) {
    put_varint(out, tags.iter().len() as u64);
    for (name, value) in tags.iter() {
        put_text(out, name);
        put_text(out, value);
    }
}

pub(crate) fn tags(cursor: &mut Cursor<'_>) -> Option<ObjectTags> {
    let count = cursor.varint().filter(|&count| count <= TAGS_MAX as u64)?;
    let mut tags = std::collections::BTreeMap::new();
    for _ in 0..count {
        let name = text(cursor, TEXT_MAX)?;
        tags.insert(name, text(cursor, TEXT_MAX)?);
    }
    ObjectTags::new(tags).ok().filter(|tags| tags.iter().len() as u64 == count)
}

/// What a permission is in its byte, below the kind of its grantee.
const PERMISSIONS: [Permission; 5] = [
    Permission::Full,
    Permission::Read,
    Permission::Write,
    Permission::ReadAcl,
    Permission::WriteAcl,
];

/// Kinds of grantees in a permission's byte; the name of a user follows it.
const TO_USER: u8 = 0;
const TO_ALL: u8 = 1;
const TO_AUTHENTICATED: u8 = 2;
const TO_LOG_DELIVERY: u8 = 3;

/// True when [`acl`] takes it, or it is empty.
pub(crate) fn is_acl(acl: &[Grant]) -> bool {
    let fits = |grant: &Grant| match &grant.grantee {
        Grantee::User(user) => user.as_str().len() <= TEXT_MAX,
        Grantee::All | Grantee::Authenticated | Grantee::LogDelivery => true,
    };
    acl.len() <= GRANTS_MAX && acl.iter().all(fits)
}

/// Permissions behind the tags, where there are some.
pub(crate) fn put_acl(out: &mut Vec<u8>, acl: &[Grant]) {
    put_varint(out, acl.len() as u64);
    for Grant { grantee, permission } in acl {
        let kind = match grantee {
            Grantee::User(_) => TO_USER,
            Grantee::All => TO_ALL,
            Grantee::Authenticated => TO_AUTHENTICATED,
            Grantee::LogDelivery => TO_LOG_DELIVERY,
        };
        let at = PERMISSIONS.iter().position(|other| other == permission);
        out.push(kind << 4 | at.expect("it is one of all") as u8);
        if let Grantee::User(user) = grantee {
            put_text(out, user.as_str());
        }
    }
}

pub(crate) fn acl(cursor: &mut Cursor<'_>) -> Option<Vec<Grant>> {
    let count = cursor.varint().filter(|&count| (1..=GRANTS_MAX as u64).contains(&count))?;
    let grant = |_| {
        let code = cursor.u8()?;
        let permission = *PERMISSIONS.get(usize::from(code & 0xf))?;
        let grantee = match code >> 4 {
            TO_USER => Grantee::User(UserId::new(text(cursor, TEXT_MAX)?)),
            TO_ALL => Grantee::All,
            TO_AUTHENTICATED => Grantee::Authenticated,
            TO_LOG_DELIVERY => Grantee::LogDelivery,
            _ => return None,
        };
        Some(Grant { grantee, permission })
    };
    (0..count).map(grant).collect()
}

/// Bits of a lock's byte, of which one hold and one mode at most are set; behind a mode the end of the retention
/// follows.
const HELD: u8 = 1;
const GOVERNANCE: u8 = 2;
const COMPLIANCE: u8 = 4;
const LET_GO: u8 = 8;

/// A lock, where there is one.
pub(crate) fn put_lock(out: &mut Vec<u8>, lock: ObjectLock) {
    let mode = match lock.retention.map(|retention| retention.mode) {
        None => 0,
        Some(RetentionMode::Governance) => GOVERNANCE,
        Some(RetentionMode::Compliance) => COMPLIANCE,
    };
    let hold = match lock.hold {
        None => 0,
        Some(true) => HELD,
        Some(false) => LET_GO,
    };
    out.push(mode | hold);
    if let Some(retention) = lock.retention {
        put_varint(out, retention.until_us);
    }
}

pub(crate) fn lock(cursor: &mut Cursor<'_>) -> Option<ObjectLock> {
    let bits = cursor.u8()?;
    let hold = match bits & (HELD | LET_GO) {
        0 => None,
        HELD => Some(true),
        LET_GO => Some(false),
        _ => return None,
    };
    let mode = match bits & !(HELD | LET_GO) {
        0 if hold.is_some() => None,
        GOVERNANCE => Some(RetentionMode::Governance),
        COMPLIANCE => Some(RetentionMode::Compliance),
        _ => return None,
    };
    let retention = match mode {
        None => None,
        Some(mode) => Some(Retention { mode, until_us: cursor.varint()? }),
    };
    Some(ObjectLock { retention, hold })
}

/// How an object is encrypted.
pub(crate) fn envelope(cursor: &mut Cursor<'_>) -> Option<Envelope> {
    Envelope::new(cursor.bytes(ENVELOPE_MAX)?.to_vec())
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
