//! Subresources that a request names and its operation does not have. s3s takes a bucket's settings on a key, or a
//! key's on a bucket, for no subresource at all: `DELETE /b/k?lifecycle` would delete the object, `PUT` replace it by
//! the document, and `DELETE /b?acl` delete the bucket.

use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::query::Query;

/// Names of subresources that s3s knows, of buckets and of keys.
pub(crate) const SUBRESOURCES: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "uploads",
    "versioning",
    "versions",
    "website",
];

/// Operations on objects and buckets themselves.
const PLAIN: &[&str] = &[
    "CopyObject",
    "CreateBucket",
    "DeleteBucket",
    "DeleteObject",
    "GetObject",
    "HeadBucket",
    "HeadObject",
    "ListObjects",
    "ListObjectsV2",
    "PutObject",
];

/// Refuses an operation on an object or bucket itself whose request names a subresource.
pub(crate) fn check(operation: &str, query: &str) -> S3Result<()> {
    if !PLAIN.contains(&operation) {
        return Ok(());
    }
    let query = Query::parse(query);
    match SUBRESOURCES.iter().find(|name| query.has(name)) {
        None => Ok(()),
        Some(name) => Err(S3Error::with_message(
            S3ErrorCode::MethodNotAllowed,
            format!("?{name} is no subresource that this method and resource have."),
        )),
    }
}
