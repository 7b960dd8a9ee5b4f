//! Values of a range's and the catalog's rows: a version, then fields in order (see
//! `docs/formats/object.md`).

use codec::cursor::{Cursor, put_bytes, put_varint};
use object_proto::limits::{INLINE_MAX, POLICY_MAX, SETTINGS_MAX, SMALL_MAX};
use object_proto::{
    AccessKey, Bucket, BucketConfig, BucketId, BucketName, BucketRules, BucketSettings,
    BucketState, CallId, Committed, DataId, Etag, FileName, NewObject, ObjectData, ObjectFacts,
    ObjectInfo, ObjectLock, PartMap, Quota, SessionId, Stamp, User, UserId, VersionId, Versioning,
};
use table::Place;

use crate::fields::{
    TEXT_MAX, VERSION, are_checksums, begin, checksums, envelope, flag, is_acl, lock,
    put_checksums, put_lock, put_text, text, whole,
};
use crate::headers::{Headers, encode_headers, put_headers};
use crate::map::{map_apart, put_runs, put_upload_id, runs, upload_id};

/// Metadata, tags and permissions up to this many bytes are in an object's row.
pub const HEADERS_IN_ROW: usize = 256;

/// Bits of the byte that says what follows: the row of the metadata is apart, there is a call; the
/// version has an ID; it is a delete marker.
const APART: u8 = 1;
const CALL: u8 = 2;
const HAS_ID: u8 = 4;
const MARKER: u8 = 8;
/// Tags follow the metadata, here or apart; permissions follow those.
const TAGS: u8 = 16;
const ACL: u8 = 32;
/// There is a lock, which is in the row.
const LOCK: u8 = 64;
/// The envelope of its encryption is in the row, too, behind the lock: all bits have a meaning.
const ENCRYPTED: u8 = 128;

const INLINE: u8 = 0;
const FILE: u8 = 1;
/// In a log: the place is the end of the row.
const LOGGED: u8 = 2;
/// In parts: the upload, then the parts unless these have a row of their own.
const PARTS: u8 = 3;

/// The row of a current object, of an older version, or of a delete marker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectRow {
    /// The object. Its metadata, tags and permissions are empty when these have a row of their own.
    pub info: ObjectInfo,
    /// Its metadata has a row of its own.
    pub metadata_apart: bool,
    /// The call that put it, if that had conditions.
    pub call: Option<CallId>,
    /// Its data is in a log.
    pub log: Option<InLog>,
    /// It has parts, whose map has a row of its own; the one here is empty.
    pub map_apart: bool,
    /// It is a delete marker: no object.
    pub marker: bool,
}

/// Where data that is in a log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InLog {
    /// Its batch has no place in a log yet: only the owner that submitted it meets such a row.
    Unplaced,
    /// There.
    At(Place),
}

impl ObjectRow {
    /// True when the row of an object can be read back: no part of it is longer than
    /// [`ObjectRow::decode`] takes.
    pub fn holds(object: &NewObject) -> bool {
        let ObjectFacts { etag, checksums, owner, acl, .. } = &object.facts;
        let data = match &object.data {
            ObjectData::Inline(bytes) => {
                bytes.len() <= INLINE_MAX && bytes.len() as u64 == object.size
            }
            ObjectData::Piece(piece) => {
                let head = piece.len().checked_sub(object.size as usize);
                head.is_some_and(|head| head > 0) && object.size <= SMALL_MAX as u64
            }
            // Only an owner gives data its place.
            ObjectData::Logged { file, offset } => Place::of(file.as_str(), *offset).is_some(),
            ObjectData::File { file, .. } => file.as_str().len() <= TEXT_MAX,
            ObjectData::Parts(map) => map.size() == object.size,
        };
        data && etag.as_str().len() <= TEXT_MAX
            && owner.as_str().len() <= TEXT_MAX
            && are_checksums(checksums)
            && is_acl(acl)
    }

    /// The value of a delete marker that a user makes at `stamp`.
    pub fn encode_marker(stamp: Stamp, (nonce, by): (u64, &UserId), has_id: bool) -> Vec<u8> {
        let object = marker_of(nonce, by);
        let bits = MARKER | if has_id { HAS_ID } else { 0 };
        ObjectRow::encode_with(stamp, &object, None, bits).0
    }

    /// The value of an object that `call` commits at `stamp`, and the one of the row of its metadata if
    /// that is long.
    pub fn encode(
        stamp: Stamp,
        object: &NewObject,
        call: Option<CallId>,
        has_id: bool,
    ) -> (Vec<u8>, Option<Vec<u8>>) {
        ObjectRow::encode_with(stamp, object, call, if has_id { HAS_ID } else { 0 })
    }

    fn encode_with(
        stamp: Stamp,
        object: &NewObject,
        call: Option<CallId>,
        bits: u8,
    ) -> (Vec<u8>, Option<Vec<u8>>) {
        let facts = &object.facts;
        let mut headers = Vec::new();
        put_headers(&mut headers, facts);
        let bits = bits | if facts.tags.is_empty() { 0 } else { TAGS };
        let bits = bits | if facts.acl.is_empty() { 0 } else { ACL };
        let bits = bits | if facts.lock.is_none() { 0 } else { LOCK };
        let bits = bits | if facts.encryption.is_some() { ENCRYPTED } else { 0 };
        let apart = headers.len() > HEADERS_IN_ROW;
        let mut out = vec![VERSION];
        out.extend(stamp.get().to_le_bytes());
        out.extend(object.data_id.get().to_le_bytes());
        put_varint(&mut out, object.size);
        put_text(&mut out, facts.etag.as_str());
        put_text(&mut out, facts.owner.as_str());
        put_checksums(&mut out, &facts.checksums);
        out.push(bits | if apart { APART } else { 0 } | if call.is_some() { CALL } else { 0 });
        if let Some(call) = call {
            out.extend(call.get().to_le_bytes());
        }
        if !facts.lock.is_none() {
            put_lock(&mut out, facts.lock);
        }
        if let Some(envelope) = &facts.encryption {
            put_bytes(&mut out, envelope.as_bytes());
        }
        if !apart {
            out.extend_from_slice(&headers);
        }
        match &object.data {
            ObjectData::Inline(bytes) => {
                out.push(INLINE);
                put_bytes(&mut out, bytes);
            }
            ObjectData::Piece(_) => {
                out.push(LOGGED);
                out.extend([0; Place::BYTES]);
            }
            ObjectData::Logged { file, offset } => {
                out.push(LOGGED);
                let place = Place::of(file.as_str(), *offset);
                out.extend(place.map_or([0; Place::BYTES], Place::encode));
            }
            ObjectData::File { file, offset } => put_file(&mut out, file, *offset),
            ObjectData::Parts(map) => {
                out.push(PARTS);
                put_upload_id(&mut out, map.upload);
                let apart = map_apart(stamp, map).is_some();
                out.push(u8::from(apart));
                if !apart {
                    put_runs(&mut out, map);
                }
            }
        }
        (out, apart.then(|| encode_headers(stamp, facts)))
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<ObjectRow> {
        let mut cursor = begin(value)?;
        let stamp = Stamp::new(cursor.u64()?);
        let data_id = DataId::new(cursor.u128()?);
        let size = cursor.varint()?;
        let etag = Etag::new(text(&mut cursor, TEXT_MAX)?);
        let owner = UserId::new(text(&mut cursor, TEXT_MAX)?);
        let checksums = checksums(&mut cursor)?;
        let bits = cursor.u8()?;
        let call = match bits & CALL {
            0 => None,
            _ => Some(CallId::new(cursor.u128()?)),
        };
        let lock = match bits & LOCK {
            0 => ObjectLock::default(),
            _ => lock(&mut cursor)?,
        };
        let encryption = match bits & ENCRYPTED {
            0 => None,
            _ => Some(envelope(&mut cursor)?),
        };
        let metadata_apart = bits & APART != 0;
        let headers = match metadata_apart {
            true => Headers::default(),
            false => Headers::read(&mut cursor, (bits & TAGS != 0, bits & ACL != 0))?,
        };
        let (mut log, mut map_apart) = (None, false);
        let data = match cursor.u8()? {
            INLINE => ObjectData::Inline(cursor.bytes(INLINE_MAX)?.to_vec()),
            FILE => {
                let file = FileName::new(text(&mut cursor, TEXT_MAX)?);
                ObjectData::File { file, offset: cursor.varint()? }
            }
            LOGGED => match cursor.array::<{ Place::BYTES }>()? {
                unplaced if unplaced == [0; Place::BYTES] => {
                    log = Some(InLog::Unplaced);
                    ObjectData::Piece(Vec::new())
                }
                bytes => {
                    let place = Place::decode(bytes)?;
                    log = Some(InLog::At(place));
                    let file = FileName::new(place.file_name());
                    ObjectData::Logged { file, offset: place.offset() }
                }
            },
            PARTS => {
                let upload = upload_id(&mut cursor)?;
                map_apart = flag(&mut cursor)?;
                ObjectData::Parts(match map_apart {
                    true => PartMap::of(upload, []),
                    false => runs(&mut cursor, upload)?,
                })
            }
            _ => return None,
        };
        let is_whole = match &data {
            ObjectData::Inline(bytes) => bytes.len() as u64 == size,
            ObjectData::Parts(map) => map_apart || map.size() == size,
            _ => true,
        };
        if !is_whole {
            return None;
        }
        let mut facts =
            ObjectFacts { etag, checksums, owner, lock, encryption, ..ObjectFacts::default() };
        headers.give(&mut facts);
        let object = NewObject { data_id, size, facts, data };
        let (has_id, marker) = (bits & HAS_ID != 0, bits & MARKER != 0);
        let is_bare = || object == marker_of(data_id.get() as u64, &object.facts.owner);
        if marker
            && (call.is_some() || metadata_apart || bits & (TAGS | ACL | LOCK) != 0 || !is_bare())
        {
            return None;
        }
        let info = ObjectInfo { stamp, has_id, object };
        whole(cursor, ObjectRow { info, metadata_apart, call, log, map_apart, marker })
    }
}

/// The end of the row of an object that is in a file.
fn put_file(out: &mut Vec<u8>, file: &FileName, offset: u64) {
    out.push(FILE);
    put_text(out, file.as_str());
    put_varint(out, offset);
}

/// The value of an object or part that is in a file, when it is moved: all else of it stays as it is, what is
/// in rows beside it too. None when it is not in a file.
pub fn moved_row(value: &[u8], (file, offset): (&FileName, u64)) -> Option<Vec<u8>> {
    let ObjectData::File { file: old, offset: at } = ObjectRow::decode(value)?.info.object.data
    else {
        return None;
    };
    // The place ends the row.
    let mut end = Vec::new();
    put_file(&mut end, &old, at);
    let mut out = value.strip_suffix(&*end)?.to_vec();
    put_file(&mut out, file, offset);
    Some(out)
}

/// What a delete marker has of an object.
fn marker_of(nonce: u64, by: &UserId) -> NewObject {
    let facts = ObjectFacts { owner: by.clone(), ..ObjectFacts::default() };
    let (data_id, data) = (DataId::new(nonce.into()), ObjectData::Inline(Vec::new()));
    NewObject { data_id, size: 0, facts, data }
}

/// A log of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogRow {
    /// Bytes of its data that no object names.
    pub dead: u64,
    /// It is of no use any more since this time, microseconds since 1970.
    pub trash_us: Option<u64>,
    /// `dead` is all that is dead, and all that dies from now on is counted.
    pub counted: bool,
}

impl LogRow {
    /// The value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.dead);
        put_varint(&mut out, self.trash_us.map_or(0, |since| since + 1));
        out.push(u8::from(self.counted));
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<LogRow> {
        let mut cursor = begin(value)?;
        let (dead, since) = (cursor.varint()?, cursor.varint()?);
        let counted = flag(&mut cursor)?;
        whole(cursor, LogRow { dead, trash_us: since.checked_sub(1), counted })
    }
}

/// The value of a row that holds a stamp.
pub fn encode_stamp(stamp: Stamp) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend(stamp.get().to_le_bytes());
    out
}

/// Reads such a value.
pub fn decode_stamp(value: &[u8]) -> Option<Stamp> {
    let mut cursor = begin(value)?;
    let stamp = Stamp::new(cursor.u64()?);
    whole(cursor, stamp)
}

/// Kinds of versions in an answer, and the bit for a delete marker.
const PLAIN: u8 = 0;
const OF_NULL: u8 = 1;
const OF_ID: u8 = 2;
const OF_MARKER: u8 = 4;

/// The value of the row of an answer to a change.
pub fn encode_committed(committed: &Committed) -> Vec<u8> {
    let mut out = encode_stamp(committed.stamp);
    let kind = match committed.version {
        None => PLAIN,
        Some(VersionId::Null) => OF_NULL,
        Some(VersionId::Of { .. }) => OF_ID,
    };
    let kind = kind | if committed.marker { OF_MARKER } else { 0 };
    if kind != PLAIN {
        out.push(kind);
    }
    if let Some(VersionId::Of { stamp, nonce }) = committed.version {
        out.extend(stamp.get().to_le_bytes());
        out.extend(nonce.to_le_bytes());
    }
    out
}

/// Reads such a value.
pub fn decode_committed(value: &[u8]) -> Option<Committed> {
    let mut cursor = begin(value)?;
    let stamp = Stamp::new(cursor.u64()?);
    if cursor.is_empty() {
        return Some(Committed { stamp, ..Committed::default() });
    }
    let kind = cursor.u8()?;
    let version = match kind & !OF_MARKER {
        PLAIN if kind != PLAIN => None,
        OF_NULL => Some(VersionId::Null),
        OF_ID => Some(VersionId::Of { stamp: Stamp::new(cursor.u64()?), nonce: cursor.u64()? }),
        _ => return None,
    };
    whole(cursor, Committed { stamp, version, marker: kind & OF_MARKER != 0 })
}

/// A bucket's row, and the request that made it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketRow {
    /// The bucket.
    pub bucket: Bucket,
    /// The request that made it: repeated, it gets the same answer.
    pub made_by: (SessionId, u64),
    /// The commit that changed it last, for the range of its keys.
    pub changed: Stamp,
    /// It is being removed, if it is empty.
    pub closing: bool,
    /// Owners of its keys may not have heard of that commit.
    pub order_due: bool,
    /// Its settings.
    pub settings: BucketSettings,
}

impl BucketRow {
    /// What the range of its keys is to make of it.
    pub fn config(&self) -> BucketConfig {
        let (versioning, lock) = (self.bucket.versioning, self.settings.lock);
        let lifecycle = self.settings.lifecycle.clone();
        let storage = self.settings.storage;
        let rules = BucketRules { versioning, lock, lifecycle, storage };
        let state = match self.closing {
            true => BucketState::Closing(rules),
            false => BucketState::Open(rules),
        };
        BucketConfig { changed: self.changed, state }
    }

    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.bucket.id.get().to_le_bytes());
        put_text(&mut out, self.bucket.owner.as_str());
        put_varint(&mut out, self.bucket.created_us);
        out.extend(self.made_by.0.get().to_le_bytes());
        put_varint(&mut out, self.made_by.1);
        out.push(match self.bucket.versioning {
            Versioning::Off => 0,
            Versioning::Enabled => 1,
            Versioning::Suspended => 2,
        });
        put_varint(&mut out, self.changed.get());
        out.push(u8::from(self.closing) | u8::from(self.order_due) << 1);
        if self.settings != BucketSettings::default() {
            put_bytes(&mut out, &self.settings.encode());
        }
        out
    }

    /// Reads the value of the bucket `name`.
    pub fn decode(name: &str, value: &[u8]) -> Option<BucketRow> {
        let mut cursor = begin(value)?;
        let mut bucket = Bucket {
            name: BucketName::new(name).ok()?,
            id: BucketId::new(cursor.u64()?),
            owner: UserId::new(text(&mut cursor, TEXT_MAX)?),
            created_us: cursor.varint()?,
            versioning: Versioning::Off,
        };
        let made_by = (SessionId::new(cursor.u64()?), cursor.varint()?);
        // Of the first buckets the rows end here, or behind their versioning.
        let (mut changed, mut flags) = (Stamp::default(), 0);
        if !cursor.is_empty() {
            bucket.versioning = match cursor.u8()? {
                0 => Versioning::Off,
                1 => Versioning::Enabled,
                2 => Versioning::Suspended,
                _ => return None,
            };
        }
        if !cursor.is_empty() {
            (changed, flags) = (Stamp::new(cursor.varint()?), cursor.u8()?);
        }
        let mut settings = BucketSettings::default();
        if !cursor.is_empty() {
            settings = BucketSettings::decode(cursor.bytes(SETTINGS_MAX)?)?;
        }
        let (closing, order_due) = match flags {
            0..4 => (flags & 1 != 0, flags & 2 != 0),
            _ => return None,
        };
        whole(cursor, BucketRow { bucket, made_by, changed, closing, order_due, settings })
    }
}

/// The value of a user's row; its ID is the key.
pub fn encode_user(user: &User) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_text(&mut out, &user.name);
    put_text(&mut out, &user.display_name);
    out.push(u8::from(user.admin));
    put_text(&mut out, &user.email);
    put_policy(&mut out, user.policy.as_ref());
    put_limit(&mut out, user.quota.objects);
    put_limit(&mut out, user.quota.bytes);
    out
}

fn put_limit(out: &mut Vec<u8>, limit: Option<u64>) {
    out.push(u8::from(limit.is_some()));
    if let Some(limit) = limit {
        put_varint(out, limit);
    }
}

fn limit(cursor: &mut Cursor<'_>) -> Option<Option<u64>> {
    match flag(cursor)? {
        true => cursor.varint().map(Some),
        false => Some(None),
    }
}

fn put_policy(out: &mut Vec<u8>, policy: Option<&String>) {
    out.push(u8::from(policy.is_some()));
    if let Some(policy) = policy {
        put_text(out, policy);
    }
}

fn policy(cursor: &mut Cursor<'_>) -> Option<Option<String>> {
    match flag(cursor)? {
        true => text(cursor, POLICY_MAX).map(Some),
        false => Some(None),
    }
}

/// Reads the value of the user `id`.
pub fn decode_user(id: &str, value: &[u8]) -> Option<User> {
    let mut cursor = begin(value)?;
    let name = text(&mut cursor, TEXT_MAX)?;
    let display_name = text(&mut cursor, TEXT_MAX)?;
    let admin = flag(&mut cursor)?;
    let mut user = User { id: UserId::new(id), name, display_name, admin, ..User::default() };
    // The rows of the first users end here.
    if !cursor.is_empty() {
        user.email = text(&mut cursor, TEXT_MAX)?;
        user.policy = policy(&mut cursor)?;
    }
    // Those of before there were quotas here.
    if !cursor.is_empty() {
        user.quota = Quota { objects: limit(&mut cursor)?, bytes: limit(&mut cursor)? };
    }
    whole(cursor, user)
}

/// An access key's row; its public part is the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRow {
    /// The user.
    pub user: UserId,
    /// Its secret part, wrapped.
    pub wrapped_secret: Vec<u8>,
    /// Requests that are signed with it are served.
    pub enabled: bool,
    /// They are served before this time, microseconds since 1970.
    pub expires_us: Option<u64>,
    /// Nothing but what this allows.
    pub policy: Option<String>,
}

impl KeyRow {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_text(&mut out, self.user.as_str());
        put_bytes(&mut out, &self.wrapped_secret);
        out.push(u8::from(self.enabled));
        // The request that made it, in the first rows.
        out.extend([0; 9]);
        out.push(u8::from(self.expires_us.is_some()));
        if let Some(expires_us) = self.expires_us {
            put_varint(&mut out, expires_us);
        }
        put_policy(&mut out, self.policy.as_ref());
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<KeyRow> {
        let mut cursor = begin(value)?;
        let user = UserId::new(text(&mut cursor, TEXT_MAX)?);
        let wrapped_secret = cursor.bytes(TEXT_MAX)?.to_vec();
        let enabled = flag(&mut cursor)?;
        let (_, _) = (cursor.u64()?, cursor.varint()?);
        let mut row = KeyRow { user, wrapped_secret, enabled, expires_us: None, policy: None };
        // The rows of the first keys end here.
        if !cursor.is_empty() {
            if flag(&mut cursor)? {
                row.expires_us = Some(cursor.varint()?);
            }
            row.policy = policy(&mut cursor)?;
        }
        whole(cursor, row)
    }

    /// The key of that ID, of its user.
    pub fn into_key(self, id: &str, user: User) -> AccessKey {
        let KeyRow { wrapped_secret, enabled, expires_us, policy, .. } = self;
        AccessKey { id: id.to_owned(), user, wrapped_secret, enabled, expires_us, policy }
    }
}

/// The value of a session's row.
pub fn encode_session(closed: bool) -> Vec<u8> {
    vec![VERSION, u8::from(closed)]
}

/// Reads such a value: true when the session is closed.
pub fn decode_session(value: &[u8]) -> Option<bool> {
    let mut cursor = begin(value)?;
    let closed = flag(&mut cursor)?;
    whole(cursor, closed)
}
