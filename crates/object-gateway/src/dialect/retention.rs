//! Retention and legal hold of objects that are there.

use http::StatusCode;
use http::header::HeaderValue;
use object_proto::{LockChange, Retention, Target, VersionId};
use s3s::dto::{
    GetObjectLegalHoldInput, GetObjectLegalHoldOutput, GetObjectRetentionInput,
    GetObjectRetentionOutput, ObjectLockLegalHold, ObjectLockLegalHoldStatus, ObjectLockRetention,
    ObjectLockRetentionMode, PutObjectLegalHoldInput, PutObjectLegalHoldOutput,
    PutObjectRetentionInput, PutObjectRetentionOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::object_lock::{
    date_value, future, may_bypass, mode_of, name_of_hold, name_of_mode, no_lock, shown_until,
    unix_us,
};
use super::state::{State, place_of, read_error, rights_of, target_of, version_id_of};
use crate::actions::Action;
use crate::clock;
use crate::errors::coded;
use crate::facts::{Client, Facts, LOCK_HOLD, LOCK_MODE, LOCK_UNTIL};
use crate::rights::AskedObject;

fn malformed() -> S3Error {
    S3Error::new(S3ErrorCode::MalformedXML)
}

/// S3's error for an object without a lock of that kind.
fn no_lock_of_object() -> S3Error {
    coded(
        "NoSuchObjectLockConfiguration",
        StatusCode::NOT_FOUND,
        "The specified object does not have a ObjectLock configuration",
    )
}

fn check_bucket<T>(request: &S3Request<T>) -> S3Result<()> {
    match place_of(request)?.view.settings.lock {
        Some(_) => Ok(()),
        None => Err(no_lock()),
    }
}

/// Allows a change of a lock, of whose document conditions of policies may ask: as headers it has the names that
/// a put has them under.
async fn check<T>(
    state: &State,
    request: &S3Request<T>,
    (target, version): (&Target, Option<VersionId>),
    action: Action,
    facts: Facts<'_>,
) -> S3Result<()> {
    let object = AskedObject { backend: &*state.backend, target, version };
    let place = place_of(request)?;
    rights_of(request)?.check_object(&[action], place, object, facts).await?;
    check_bucket(request)
}

/// Gives an object, or a version of it, another retention, or none.
pub async fn put_retention(
    state: &State,
    request: S3Request<PutObjectRetentionInput>,
) -> S3Result<S3Response<PutObjectRetentionOutput>> {
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let asked = request.input.retention.as_ref().ok_or_else(malformed)?;
    let asked = match (&asked.mode, &asked.retain_until_date) {
        (None, None) => None,
        (Some(mode), Some(until)) => Some((mode_of(mode.as_str()).ok_or_else(malformed)?, until)),
        _ => return Err(malformed()),
    };
    let mut headers = request.headers.clone();
    headers.remove(LOCK_MODE);
    headers.remove(LOCK_UNTIL);
    if let Some((mode, until)) = asked {
        headers.insert(LOCK_MODE, HeaderValue::from_static(name_of_mode(mode)));
        headers.insert(LOCK_UNTIL, date_value(&shown_until(unix_us(until)?))?);
    }
    let client = request.extensions.get::<Client>().copied();
    let facts = || Facts::new(&headers, &request.uri, client);
    let at = (&target, version);
    check(state, &request, at, Action::PUT_RETENTION, facts()).await?;
    let now_us = clock::unix_seconds() * 1_000_000;
    let retention = asked
        .map(|(mode, until)| future(until, now_us).map(|until_us| Retention { mode, until_us }));
    let change = LockChange::Retention(retention.transpose()?);
    let bypass = may_bypass(&request, target.key.as_str(), &facts())?;
    let set = state.backend.set_lock(target, version, change, bypass).await;
    set.map_err(|error| read_error(&request, error))?;
    Ok(S3Response::new(PutObjectRetentionOutput::default()))
}

/// An object's retention, or that of a version of it.
pub async fn get_retention(
    state: &State,
    request: S3Request<GetObjectRetentionInput>,
) -> S3Result<S3Response<GetObjectRetentionOutput>> {
    check_bucket(&request)?;
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let found = state.backend.head(target, version).await;
    let lock = found.map_err(|error| read_error(&request, error))?.object.facts.lock;
    let Retention { mode, until_us } = lock.retention.ok_or_else(no_lock_of_object)?;
    let retention = Some(ObjectLockRetention {
        mode: Some(ObjectLockRetentionMode::from_static(name_of_mode(mode))),
        retain_until_date: Some(shown_until(until_us)),
    });
    Ok(S3Response::new(GetObjectRetentionOutput { retention }))
}

/// Holds an object, or a version of it, or takes its hold off.
pub async fn put_hold(
    state: &State,
    request: S3Request<PutObjectLegalHoldInput>,
) -> S3Result<S3Response<PutObjectLegalHoldOutput>> {
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let status = request.input.legal_hold.as_ref().and_then(|hold| hold.status.as_ref());
    let hold = match status.map(ObjectLockLegalHoldStatus::as_str) {
        Some(ObjectLockLegalHoldStatus::ON) => true,
        Some(ObjectLockLegalHoldStatus::OFF) => false,
        _ => return Err(malformed()),
    };
    let mut headers = request.headers.clone();
    headers.insert(LOCK_HOLD, HeaderValue::from_static(name_of_hold(hold)));
    let client = request.extensions.get::<Client>().copied();
    let facts = Facts::new(&headers, &request.uri, client);
    check(state, &request, (&target, version), Action::PUT_HOLD, facts).await?;
    let set = state.backend.set_lock(target, version, LockChange::Hold(hold), false).await;
    set.map_err(|error| read_error(&request, error))?;
    Ok(S3Response::new(PutObjectLegalHoldOutput::default()))
}

/// Whether an object, or a version of it, is held: where that was said once.
pub async fn get_hold(
    state: &State,
    request: S3Request<GetObjectLegalHoldInput>,
) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
    check_bucket(&request)?;
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let found = state.backend.head(target, version).await;
    let lock = found.map_err(|error| read_error(&request, error))?.object.facts.lock;
    let hold = name_of_hold(lock.hold.ok_or_else(no_lock_of_object)?);
    let status = Some(ObjectLockLegalHoldStatus::from_static(hold));
    let legal_hold = Some(ObjectLockLegalHold { status });
    Ok(S3Response::new(GetObjectLegalHoldOutput { legal_hold }))
}
