//! Object lock of buckets: whether it is enabled, and how new versions are retained.

use http::StatusCode;
use object_proto::{LockPeriod, LockRule, RetentionMode, Setting, Versioning};
use s3s::dto::{
    DefaultRetention, GetObjectLockConfigurationInput, GetObjectLockConfigurationOutput,
    ObjectLockConfiguration, ObjectLockEnabled, ObjectLockRetentionMode, ObjectLockRule,
    PutObjectLockConfigurationInput, PutObjectLockConfigurationOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::object_lock::{mode_of, name_of_mode};
use super::settings::{set, settings_of};
use super::state::{State, bucket_of};
use super::unset::Missing;
use crate::errors::coded;

/// S3's error for what the state of a bucket's versions does not allow.
pub fn invalid_state(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidBucketState, message)
}

/// Enables object lock for a bucket that keeps versions, for good, and says how new versions are retained.
pub async fn put_rule(
    state: &State,
    request: S3Request<PutObjectLockConfigurationInput>,
) -> S3Result<S3Response<PutObjectLockConfigurationOutput>> {
    let rule = rule_of(request.input.object_lock_configuration.as_ref())?;
    if bucket_of(&request)?.versioning != Versioning::Enabled {
        return Err(invalid_state(
            "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration",
        ));
    }
    set(state, &request, Setting::Lock(rule)).await?;
    Ok(S3Response::new(PutObjectLockConfigurationOutput::default()))
}

fn rule_of(document: Option<&ObjectLockConfiguration>) -> S3Result<LockRule> {
    let malformed = || S3Error::new(S3ErrorCode::MalformedXML);
    let document = document.ok_or_else(malformed)?;
    let enabled = document.object_lock_enabled.as_ref().map(ObjectLockEnabled::as_str);
    if enabled != Some(ObjectLockEnabled::ENABLED) {
        return Err(malformed());
    }
    let Some(rule) = &document.rule else { return Ok(LockRule::default()) };
    let default = rule.default_retention.as_ref().ok_or_else(malformed)?;
    let mode = default.mode.as_ref().and_then(|mode| mode_of(mode.as_str()));
    let mode = mode.ok_or_else(malformed)?;
    // None of these is valid as 0.
    let count = |asked: i32| u32::try_from(asked).unwrap_or(0);
    let period = match (default.days, default.years) {
        (Some(days), None) => LockPeriod::Days(count(days)),
        (None, Some(years)) => LockPeriod::Years(count(years)),
        _ => return Err(malformed()),
    };
    match period.is_valid() {
        true => Ok(LockRule { default: Some((mode, period)) }),
        false => Err(coded(
            "InvalidRetentionPeriod",
            StatusCode::BAD_REQUEST,
            "The retention period must be a positive integer value of at most 36500 days or 100 \
             years",
        )),
    }
}

/// Object lock of a bucket.
pub fn get_rule(
    request: &S3Request<GetObjectLockConfigurationInput>,
) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
    let rule = settings_of(request)?.lock.ok_or_else(|| Missing::ObjectLock.error())?;
    let object_lock_configuration = Some(ObjectLockConfiguration {
        object_lock_enabled: Some(ObjectLockEnabled::from_static(ObjectLockEnabled::ENABLED)),
        rule: rule.default.map(shown_rule),
    });
    Ok(S3Response::new(GetObjectLockConfigurationOutput { object_lock_configuration }))
}

fn shown_rule((mode, period): (RetentionMode, LockPeriod)) -> ObjectLockRule {
    let count = |count: u32| Some(i32::try_from(count).unwrap_or(i32::MAX));
    let (days, years) = match period {
        LockPeriod::Days(days) => (count(days), None),
        LockPeriod::Years(years) => (None, count(years)),
    };
    let mode = Some(ObjectLockRetentionMode::from_static(name_of_mode(mode)));
    ObjectLockRule { default_retention: Some(DefaultRetention { days, mode, years }) }
}
