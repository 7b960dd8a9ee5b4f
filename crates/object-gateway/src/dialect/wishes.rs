//! Headers that ask for what is not there.

use http::header::HeaderMap;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::state::not_implemented;

/// Headers that ask for what is not there, with S3's name of it.
const NOT_IMPLEMENTED: [(&str, &str); 4] = [
    ("x-amz-website-redirect-location", "Website redirection"),
    ("x-amz-write-offset-bytes", "Appending to an object"),
    ("x-amz-mfa", "Multi-factor authentication"),
    ("x-amz-if-match-", "A condition on time or size"),
];

/// Refuses headers that ask for what is not there: to pass over them would store an object that is
/// not what its user takes it for.
pub fn check_wishes(headers: &HeaderMap) -> S3Result<()> {
    check_features(headers)?;
    for (name, value) in headers {
        let name = name.as_str();
        if name.starts_with("x-amz-object-lock-") {
            return Err(not_implemented("Object lock by this operation"));
        }
        let is_owners = value == "private" || value == "bucket-owner-full-control";
        if name.starts_with("x-amz-grant-") || (name == "x-amz-acl" && !is_owners) {
            return Err(S3Error::with_message(
                S3ErrorCode::AccessControlListNotSupported,
                "The bucket does not allow ACLs",
            ));
        }
    }
    Ok(())
}

/// The same, but for ACLs and locks.
pub fn check_features(headers: &HeaderMap) -> S3Result<()> {
    for (name, value) in headers {
        let name = name.as_str();
        let missing = NOT_IMPLEMENTED.iter().find(|(start, _)| name.starts_with(start));
        if let Some((_, what)) = missing {
            return Err(not_implemented(what));
        }
        if name == "x-amz-storage-class" && value != "STANDARD" {
            return Err(S3Error::with_message(
                S3ErrorCode::InvalidStorageClass,
                "The storage class you specified is not valid",
            ));
        }
    }
    Ok(())
}
