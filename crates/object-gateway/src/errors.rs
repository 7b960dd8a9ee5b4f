//! S3's codes for what the backend answers.

use http::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use object_proto::Error;
use s3s::{S3Error, S3ErrorCode};

use crate::reply::Refusal;

/// Name of the version that an answer is about.
pub const VERSION_ID: HeaderName = HeaderName::from_static("x-amz-version-id");
/// That version is a delete marker.
const DELETE_MARKER: HeaderName = HeaderName::from_static("x-amz-delete-marker");

/// S3's error for the backend's. Nothing of it shows where data lies.
pub fn s3_error(error: Error) -> S3Error {
    use S3ErrorCode as Code;
    let text = error.to_string();
    let with = |code| S3Error::with_message(code, text.clone());
    match error {
        Error::NoSuchBucket => {
            S3Error::with_message(Code::NoSuchBucket, "The specified bucket does not exist")
        }
        Error::NoSuchKey => {
            S3Error::with_message(Code::NoSuchKey, "The specified key does not exist.")
        }
        Error::NoSuchVersion => {
            S3Error::with_message(Code::NoSuchVersion, "The specified version does not exist.")
        }
        Error::Marker { version, asked, .. } => {
            let mut error = match asked {
                true => S3Error::with_message(
                    Code::MethodNotAllowed,
                    "The specified method is not allowed against this resource.",
                ),
                false => s3_error(Error::NoSuchKey),
            };
            let mut headers = HeaderMap::from_iter([
                (DELETE_MARKER, HeaderValue::from_static("true")),
                (CONTENT_TYPE, HeaderValue::from_static("application/xml")),
            ]);
            if let Ok(value) = HeaderValue::from_str(&version.to_string()) {
                headers.insert(VERSION_ID, value);
            }
            if asked {
                headers.insert(ALLOW, HeaderValue::from_static("DELETE"));
            }
            error.set_headers(headers);
            error
        }
        Error::NoSuchUpload => S3Error::with_message(
            Code::NoSuchUpload,
            "The specified upload does not exist. The upload ID may be invalid, or the upload may \
             have been aborted or completed.",
        ),
        Error::NoSuchPart { .. } => S3Error::with_message(
            Code::InvalidPart,
            "One or more of the specified parts could not be found. The part may not have been \
             uploaded, or the specified entity tag may not match the part's entity tag.",
        ),
        Error::BucketExists { own: true } => S3Error::with_message(
            Code::BucketAlreadyOwnedByYou,
            "Your previous request to create the named bucket succeeded and you already own it.",
        ),
        Error::BucketExists { own: false } => S3Error::with_message(
            Code::BucketAlreadyExists,
            "The requested bucket name is not available. The bucket namespace is shared by all \
             users of the system. Please select a different name and try again.",
        ),
        Error::BucketNotEmpty => S3Error::with_message(
            Code::BucketNotEmpty,
            "The bucket you tried to delete is not empty",
        ),
        Error::TooManyBuckets => S3Error::with_message(
            Code::TooManyBuckets,
            "You have attempted to create more buckets than allowed",
        ),
        Error::Locked => S3Error::with_message(
            Code::AccessDenied,
            "Access Denied because object protected by object lock.",
        ),
        Error::Precondition => S3Error::with_message(
            Code::PreconditionFailed,
            "At least one of the pre-conditions you specified did not hold",
        ),
        Error::Busy { .. }
        | Error::Unheld
        | Error::Reroute
        | Error::SessionOver
        | Error::Replaced => with(Code::SlowDown),
        Error::Unknown { .. } => with(Code::ServiceUnavailable),
        Error::Full => coded("InsufficientStorage", http::StatusCode::INSUFFICIENT_STORAGE, text),
        Error::Damaged { what } => {
            tracing::warn!(%what, "stored bytes are damaged: a request was refused");
            internal()
        }
        // The user was removed since it was asked for.
        Error::NoSuchUser | Error::NoSuchAccessKey => {
            S3Error::with_message(Code::AccessDenied, "Access Denied")
        }
        Error::Invalid { .. } | Error::NameTaken | Error::UserHasBuckets | Error::TooManyUsers => {
            with(Code::InvalidArgument)
        }
    }
}

/// S3's error for a defect or damage on this side.
pub fn internal() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::InternalError,
        "We encountered an internal error. Please try again.",
    )
}

/// The refusal as s3s's error.
pub fn refused(refusal: Refusal) -> S3Error {
    coded(refusal.code, refusal.status, refusal.message)
}

/// An error with a code that s3s may not know, or knows with another status.
pub fn coded(
    code: &'static str,
    status: http::StatusCode,
    message: impl Into<std::borrow::Cow<'static, str>>,
) -> S3Error {
    let Some(code) = S3ErrorCode::from_bytes(code.as_bytes()) else { return internal() };
    let mut error = S3Error::with_message(code, message);
    error.set_status_code(status);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_code_and_status() {
        let cause = String::new;
        let (version, stamp) = (object_proto::VersionId::Null, object_proto::Stamp::new(1));
        let marker = |asked| Error::Marker { version, stamp, asked };
        let cases = [
            (Error::NoSuchBucket, "NoSuchBucket", 404),
            (Error::NoSuchKey, "NoSuchKey", 404),
            (Error::NoSuchVersion, "NoSuchVersion", 404),
            (marker(false), "NoSuchKey", 404),
            (marker(true), "MethodNotAllowed", 405),
            (Error::NoSuchUpload, "NoSuchUpload", 404),
            (Error::NoSuchPart { number: 1 }, "InvalidPart", 400),
            (Error::BucketExists { own: true }, "BucketAlreadyOwnedByYou", 409),
            (Error::BucketExists { own: false }, "BucketAlreadyExists", 409),
            (Error::BucketNotEmpty, "BucketNotEmpty", 409),
            (Error::TooManyBuckets, "TooManyBuckets", 400),
            (Error::Precondition, "PreconditionFailed", 412),
            (Error::NameTaken, "InvalidArgument", 400),
            (Error::NoSuchUser, "AccessDenied", 403),
            (Error::NoSuchAccessKey, "AccessDenied", 403),
            (Error::UserHasBuckets, "InvalidArgument", 400),
            (Error::TooManyUsers, "InvalidArgument", 400),
            (Error::Busy { cause: cause() }, "SlowDown", 503),
            (Error::Unknown { cause: cause() }, "ServiceUnavailable", 503),
            (Error::Reroute, "SlowDown", 503),
            (Error::SessionOver, "SlowDown", 503),
            (Error::Replaced, "SlowDown", 503),
            (Error::Full, "InsufficientStorage", 507),
            (Error::Damaged { what: cause() }, "InternalError", 500),
            (Error::Invalid { message: cause() }, "InvalidArgument", 400),
            (Error::Locked, "AccessDenied", 403),
        ];
        for (error, code, status) in cases {
            let found = s3_error(error);
            assert_eq!(found.code().as_str(), code);
            assert_eq!(found.status_code().map(|status| status.as_u16()), Some(status), "{code}");
        }
    }

    #[test]
    fn a_refusal_keeps_its_code_and_status() {
        let error = refused(Refusal::new("XAmzContentSHA256Mismatch", "no"));
        assert_eq!(error.code().as_str(), "XAmzContentSHA256Mismatch");
        assert_eq!(error.status_code().map(|status| status.as_u16()), Some(400));
    }
}
