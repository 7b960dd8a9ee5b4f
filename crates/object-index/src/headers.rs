//! [`Headers`]: what an object has beside its content that may be long. It is in the object's row while it is
//! short, else in a row of its own.

use codec::cursor::Cursor;
use object_proto::{Grant, Metadata, ObjectFacts, ObjectTags, Stamp};

use crate::fields::{VERSION, acl, begin, metadata, put_acl, put_metadata, put_tags, tags, whole};

/// Metadata, tags and permissions of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Headers that it is served with.
    pub metadata: Metadata,
    /// Tags.
    pub tags: ObjectTags,
    /// Permissions.
    pub acl: Vec<Grant>,
}

/// Metadata; then tags where there are some or permissions follow; then permissions where there are some.
pub fn put_headers(out: &mut Vec<u8>, facts: &ObjectFacts) {
    put_metadata(out, &facts.metadata);
    if !facts.tags.is_empty() || !facts.acl.is_empty() {
        put_tags(out, &facts.tags);
    }
    if !facts.acl.is_empty() {
        put_acl(out, &facts.acl);
    }
}

/// The value of a row of the headers of an object that is committed at `stamp`.
pub fn encode_headers(stamp: Stamp, facts: &ObjectFacts) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend(stamp.get().to_le_bytes());
    put_headers(&mut out, facts);
    out
}

impl Headers {
    /// Reads what [`put_headers`] has put of an object that has tags, and permissions.
    pub(crate) fn read(
        cursor: &mut Cursor<'_>,
        (has_tags, has_acl): (bool, bool),
    ) -> Option<Headers> {
        let mut headers = Headers { metadata: metadata(cursor)?, ..Headers::default() };
        if has_tags || has_acl {
            headers.tags = tags(cursor)?;
        }
        if has_acl {
            headers.acl = acl(cursor)?;
        }
        (headers.tags.is_empty() != has_tags).then_some(headers)
    }

    /// Reads a row of headers, and the commit that it belongs to.
    pub fn decode(value: &[u8]) -> Option<(Stamp, Headers)> {
        let mut cursor = begin(value)?;
        let stamp = Stamp::new(cursor.u64()?);
        let mut headers = Headers { metadata: metadata(&mut cursor)?, ..Headers::default() };
        if !cursor.is_empty() {
            headers.tags = tags(&mut cursor)?;
            match (headers.tags.is_empty(), cursor.is_empty()) {
                (true, true) => return None,
                (false, true) => {}
                (_, false) => headers.acl = acl(&mut cursor)?,
            }
        }
        whole(cursor, (stamp, headers))
    }

    /// Adds them to the other facts of the object.
    pub fn give(self, facts: &mut ObjectFacts) {
        let Headers { metadata, tags, acl } = self;
        (facts.metadata, facts.tags, facts.acl) = (metadata, tags, acl);
    }
}
