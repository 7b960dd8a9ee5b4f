//! What answers say of rules: when an object expires, when an upload is aborted.

use object_proto::{Aging, ObjectTags, Stamp, Target};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Request, S3Result};

use super::super::settings::settings_of;
use super::super::state::{State, timestamp};
use crate::errors::{internal, s3_error};
use crate::query;

/// The value of `x-amz-expiration` of an object that was put at a commit; none when no rule has it expire.
pub fn show_expiry<T>(
    state: &State,
    request: &S3Request<T>,
    (key, tags, size): (&str, &ObjectTags, u64),
    put: Stamp,
) -> S3Result<Option<String>> {
    let Some(lifecycle) = &settings_of(request)?.lifecycle else { return Ok(None) };
    let found = lifecycle.expiry(Aging { key, tags, size }, put, state.lifecycle_day);
    let Some((due_us, rule)) = found else { return Ok(None) };
    let mut date = Vec::new();
    timestamp(due_us).format(TimestampFormat::HttpDate, &mut date).map_err(|_| internal())?;
    let date = String::from_utf8(date).map_err(|_| internal())?;
    Ok(Some(format!("expiry-date=\"{date}\", rule-id=\"{}\"", query::encode(&rule.id))))
}

/// The same of an object that a request has made just now, whose facts the owner of its key knows; none also when
/// it was replaced since.
pub async fn show_made<T>(
    state: &State,
    request: &S3Request<T>,
    target: &Target,
    made: Stamp,
) -> S3Result<Option<String>> {
    if settings_of(request)?.lifecycle.is_none() {
        return Ok(None);
    }
    // It was made, whatever is known of it.
    let Ok(info) = state.backend.head(target.clone(), None).await.map_err(s3_error) else {
        return Ok(None);
    };
    if info.stamp != made {
        return Ok(None);
    }
    let object = &info.object;
    let size = object.content_size().unwrap_or(object.size);
    show_expiry(state, request, (target.key.as_str(), &object.facts.tags, size), made)
}

/// When an upload is aborted that began at a commit, and by which rule; none without such a rule.
pub fn show_abort<T>(
    state: &State,
    request: &S3Request<T>,
    key: &str,
    begun: Stamp,
) -> S3Result<(Option<Timestamp>, Option<String>)> {
    let lifecycle = settings_of(request)?.lifecycle.as_ref();
    let found = lifecycle.and_then(|rules| rules.abort_due(key, begun, state.lifecycle_day));
    Ok(found.map(|(due_us, rule)| (timestamp(due_us), query::encode(&rule.id))).unzip())
}
