//! What operations stand on, and what they ask of each request.

use std::sync::Arc;
use std::time::Duration;

use object_proto::{Backend, Bucket, ObjectKey, Stamp, Target, User};
use s3s::dto::Timestamp;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use crate::auth::{Caller, Place};
use crate::budget::Budget;
use crate::context::RequestContext;
use crate::errors::internal;

/// What operations stand on.
pub struct State {
    /// Buckets and objects.
    pub backend: Arc<dyn Backend>,
    /// Memory for bodies.
    pub budget: Budget,
    /// Time that a download waits for its share of memory.
    pub claim_time: Duration,
    /// Region, as clients see it.
    pub region: String,
}

/// The bucket that access was checked for.
pub fn bucket_of<T>(request: &S3Request<T>) -> S3Result<&Bucket> {
    request.extensions.get::<Place>().map(|place| &place.0).ok_or_else(internal)
}

/// The user that access was checked for.
pub fn caller_of<T>(request: &S3Request<T>) -> S3Result<&User> {
    request.extensions.get::<Caller>().map(|caller| &caller.0).ok_or_else(internal)
}

/// The request's context.
pub fn context_of<T>(request: &S3Request<T>) -> S3Result<&Arc<RequestContext>> {
    request.extensions.get().ok_or_else(internal)
}

/// The place of a key in the bucket that access was checked for.
pub fn target_of<T>(request: &S3Request<T>, key: &str) -> S3Result<Target> {
    let too_long = |_| S3Error::with_message(S3ErrorCode::KeyTooLongError, "Your key is too long");
    let key = ObjectKey::new(key).map_err(too_long)?;
    Ok(Target { bucket: bucket_of(request)?.id, key })
}

/// A feature that is not there.
pub fn not_implemented(what: &str) -> S3Error {
    let message = format!("{what} is not implemented");
    S3Error::with_message(S3ErrorCode::NotImplemented, message)
}

/// A request for a version: there is only the one without ID, whose name is `null`.
pub fn check_version(id: Option<&str>) -> S3Result<()> {
    match id {
        None | Some("null") => Ok(()),
        Some(_) => {
            Err(S3Error::with_message(S3ErrorCode::InvalidArgument, "Invalid version id specified"))
        }
    }
}

/// The last second of the year 9999: later times have no text.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time as S3 shows it.
pub fn timestamp(us: u64) -> Timestamp {
    let since = Duration::from_micros(us).min(Duration::from_secs(LAST_SECOND));
    Timestamp::from(std::time::UNIX_EPOCH + since)
}

/// Time of a commit.
pub fn modified(stamp: Stamp) -> Timestamp {
    timestamp(stamp.get())
}
