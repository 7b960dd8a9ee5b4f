//! Object lock of objects: what headers ask for, what answers show, and what goes past it.

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use object_proto::{ObjectInfo, ObjectLock, Retention, RetentionMode};
use s3s::dto::{ObjectLockLegalHoldStatus, ObjectLockRetentionMode, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::receive::Sent;
use super::state::{place_of, rights_of, timestamp};
use crate::actions::Action;
use crate::clock;
use crate::errors::{coded, internal};
use crate::facts::{Facts, LOCK_HOLD, LOCK_MODE, LOCK_UNTIL};

/// The caller wants what is retained under governance to yield.
const BYPASS: HeaderName = HeaderName::from_static("x-amz-bypass-governance-retention");

/// S3's error for a lock in a bucket without object lock.
pub fn no_lock() -> S3Error {
    coded("InvalidRequest", StatusCode::BAD_REQUEST, "Bucket is missing Object Lock Configuration")
}

/// The lock that headers give an object.
///
/// # Errors
///
/// S3's, also for a lock in a bucket without object lock.
pub fn lock_of_new<T>(request: &S3Request<T>) -> S3Result<ObjectLock> {
    let lock = asked_lock(&request.headers, clock::unix_seconds() * 1_000_000)?;
    match lock.is_none() || place_of(request)?.view.settings.lock.is_some() {
        true => Ok(lock),
        false => Err(no_lock()),
    }
}

fn asked_lock(headers: &HeaderMap, now_us: u64) -> S3Result<ObjectLock> {
    let text = |name: &HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let hold = match text(&LOCK_HOLD) {
        None => None,
        Some(b"ON") => Some(true),
        Some(b"OFF") => Some(false),
        Some(_) => return Err(invalid("Legal Hold must be either of 'ON' or 'OFF'")),
    };
    let retention = match (headers.get(&LOCK_MODE), headers.get(&LOCK_UNTIL)) {
        (None, None) => None,
        (Some(mode), Some(until)) => {
            let mode = mode.to_str().ok().and_then(mode_of);
            let mode = mode.ok_or_else(|| invalid("Unknown wormMode directive."))?;
            let until = until.to_str().ok();
            let until =
                until.and_then(|until| Timestamp::parse(TimestampFormat::DateTime, until).ok());
            let flawed = || invalid("The retain until date must be provided in ISO 8601 format");
            Some(Retention { mode, until_us: future(&until.ok_or_else(flawed)?, now_us)? })
        }
        _ => {
            return Err(invalid(
                "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be \
                 supplied",
            ));
        }
    };
    Ok(ObjectLock { retention, hold })
}

fn invalid(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

/// A mode by S3's name.
pub fn mode_of(name: &str) -> Option<RetentionMode> {
    match name {
        ObjectLockRetentionMode::GOVERNANCE => Some(RetentionMode::Governance),
        ObjectLockRetentionMode::COMPLIANCE => Some(RetentionMode::Compliance),
        _ => None,
    }
}

/// S3's name of a mode.
pub fn name_of_mode(mode: RetentionMode) -> &'static str {
    match mode {
        RetentionMode::Governance => ObjectLockRetentionMode::GOVERNANCE,
        RetentionMode::Compliance => ObjectLockRetentionMode::COMPLIANCE,
    }
}

/// S3's name of a hold, or of one that was taken off.
pub fn name_of_hold(hold: bool) -> &'static str {
    match hold {
        true => ObjectLockLegalHoldStatus::ON,
        false => ObjectLockLegalHoldStatus::OFF,
    }
}

/// The end of a retention, microseconds since 1970, which is not over.
pub fn future(until: &Timestamp, now_us: u64) -> S3Result<u64> {
    let until_us = unix_us(until)?;
    match until_us > now_us {
        true => Ok(until_us),
        false => Err(invalid("The retain until date must be in the future!")),
    }
}

/// A time in microseconds since 1970, to the millisecond, as S3: what is shown is taken again.
pub fn unix_us(time: &Timestamp) -> S3Result<u64> {
    let mut text = Vec::new();
    time.format(TimestampFormat::EpochSeconds, &mut text).map_err(|_| internal())?;
    let seconds = std::str::from_utf8(&text).ok().and_then(|text| text.parse::<f64>().ok());
    Ok((seconds.ok_or_else(internal)? * 1000.0).round().max(0.0) as u64 * 1000)
}

/// The end of a retention as answers show it: to the millisecond, and not before it ends.
pub fn shown_until(until_us: u64) -> Timestamp {
    timestamp(until_us.next_multiple_of(1000))
}

/// Refuses a content without a digest that will be retained, as S3 does; `what` is S3's name of the operation.
pub fn check_digest<T>(
    request: &S3Request<T>,
    (lock, sent): (ObjectLock, &Sent),
    what: &str,
) -> S3Result<()> {
    let rule = place_of(request)?.view.settings.lock;
    let is_retained = !lock.is_none() || rule.is_some_and(|rule| rule.default.is_some());
    if !is_retained || sent.has_digest() {
        return Ok(());
    }
    Err(S3Error::with_message(
        S3ErrorCode::InvalidRequest,
        format!(
            "Content-MD5 OR x-amz-checksum- HTTP header is required for {what} requests with \
             Object Lock parameters"
        ),
    ))
}

/// True when the caller asks that what is retained under governance yields, and may.
pub fn may_bypass<T>(request: &S3Request<T>, key: &str, facts: &Facts<'_>) -> S3Result<bool> {
    let asks = request
        .headers
        .get(BYPASS)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    if !asks {
        return Ok(false);
    }
    let (rights, place) = (rights_of(request)?, place_of(request)?);
    Ok(rights.may(Action::BYPASS, (place, Some(key)), facts))
}

/// Adds an object's lock to an answer: what of it the caller may read.
pub fn show_lock<T>(
    request: &S3Request<T>,
    key: &str,
    info: &ObjectInfo,
    headers: &mut HeaderMap,
) -> S3Result<()> {
    let lock = info.object.facts.lock;
    if lock.is_none() {
        return Ok(());
    }
    let (rights, place) = (rights_of(request)?, place_of(request)?);
    let mut facts = Facts::of(request);
    facts.tags = Some(info.object.facts.tags.clone());
    let may = |action| rights.may(action, (place, Some(key)), &facts);
    if let Some(retention) = lock.retention.filter(|_| may(Action::GET_RETENTION)) {
        headers.insert(LOCK_MODE, HeaderValue::from_static(name_of_mode(retention.mode)));
        headers.insert(LOCK_UNTIL, date_value(&shown_until(retention.until_us))?);
    }
    if let Some(hold) = lock.hold.filter(|_| may(Action::GET_HOLD)) {
        headers.insert(LOCK_HOLD, HeaderValue::from_static(name_of_hold(hold)));
    }
    Ok(())
}

/// A date in UTC as a header's value.
pub fn date_value(date: &Timestamp) -> S3Result<HeaderValue> {
    let mut text = Vec::new();
    date.format(TimestampFormat::DateTime, &mut text).map_err(|_| internal())?;
    HeaderValue::from_bytes(&text).map_err(|_| internal())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 1_796_083_199_000_000;

    fn asked(headers: &[(HeaderName, &'static str)]) -> Result<ObjectLock, String> {
        let value = |(name, value): &(HeaderName, &'static str)| {
            (name.clone(), HeaderValue::from_static(value))
        };
        let headers = headers.iter().map(value).collect();
        asked_lock(&headers, NOW_US).map_err(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn headers_give_a_lock_or_are_refused() {
        let retained = |mode, until_us| ObjectLock {
            retention: Some(Retention { mode, until_us }),
            hold: None,
        };
        let until = |date| [(LOCK_MODE, "COMPLIANCE"), (LOCK_UNTIL, date)];
        let compliance = RetentionMode::Compliance;
        for (date, until_us) in [
            ("2026-11-30T23:59:59.001Z", NOW_US + 1000),
            ("2026-12-01T01:00:00+01:00", NOW_US + 1_000_000),
            ("2026-12-01T00:00:00.1234Z", NOW_US + 1_123_000),
        ] {
            assert_eq!(asked(&until(date)), Ok(retained(compliance, until_us)), "{date}");
        }
        assert_eq!(asked(&[]), Ok(ObjectLock::default()));
        for (value, hold) in [("ON", true), ("OFF", false)] {
            assert_eq!(asked(&[(LOCK_HOLD, value)]).map(|lock| lock.hold), Ok(Some(hold)));
        }
        let date = "2026-12-01T00:00:00Z";
        for flawed in [
            &until("2026-11-30T23:59:59Z")[..],
            &until("1969-12-31T00:00:00Z"),
            &until("2026-12-01"),
            &[(LOCK_MODE, "COMPLIANCE")],
            &[(LOCK_UNTIL, date)],
            &[(LOCK_MODE, "governance"), (LOCK_UNTIL, date)],
            &[(LOCK_HOLD, "on")],
        ] {
            assert_eq!(asked(flawed), Err("InvalidArgument".to_owned()), "{flawed:?}");
        }
    }

    #[test]
    fn what_is_shown_is_not_before_the_end_and_is_taken_again() {
        for (until_us, shown_us) in [(NOW_US, NOW_US), (NOW_US + 1, NOW_US + 1000)] {
            let again = future(&shown_until(until_us), 0).expect("it is in the future");
            assert_eq!(again, shown_us);
        }
    }
}
