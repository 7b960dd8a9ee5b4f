//! Conditions on an object that is read: by GET, HEAD, and as the source of a copy.

use object_proto::ObjectInfo;
use s3s::dto::{ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode};

use super::state::modified;

/// Conditions on an object that is read.
pub struct ReadConditions<'a> {
    /// It has this tag.
    pub if_match: Option<&'a ETagCondition>,
    /// It has not this tag.
    pub if_none_match: Option<&'a ETagCondition>,
    /// It was put later than that.
    pub if_modified_since: Option<&'a Timestamp>,
    /// It was not put later than that.
    pub if_unmodified_since: Option<&'a Timestamp>,
}

/// What conditions say of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All hold.
    Holds,
    /// The object is not the one that is wanted.
    Failed,
    /// The reader has the object already.
    NotModified,
}

impl ReadConditions<'_> {
    /// Decides in HTTP's order (RFC 9110, 13.2.2), as S3 does: a tag counts more than a time.
    pub fn decide(&self, info: &ObjectInfo) -> Verdict {
        let etag = info.object.facts.etag.as_str();
        let matches = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(tag) => tag.value() == etag,
        };
        let is_later = |time: &Timestamp| seconds(&modified(info.stamp)) > seconds(time);
        let holds = match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) => matches(condition),
            (None, Some(time)) => !is_later(time),
            (None, None) => true,
        };
        if !holds {
            return Verdict::Failed;
        }
        let is_modified = match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) => !matches(condition),
            (None, Some(time)) => is_later(time),
            (None, None) => true,
        };
        if is_modified { Verdict::Holds } else { Verdict::NotModified }
    }
}

/// S3's error for a condition that does not hold.
pub fn precondition_failed() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::PreconditionFailed,
        "At least one of the pre-conditions you specified did not hold",
    )
}

/// Whole seconds, as HTTP's dates have.
fn seconds(time: &Timestamp) -> i64 {
    let mut text = Vec::new();
    let format = TimestampFormat::EpochSeconds;
    let written = time.format(format, &mut text).is_ok();
    let text = std::str::from_utf8(&text).ok().filter(|_| written);
    text.and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or_default()
}
