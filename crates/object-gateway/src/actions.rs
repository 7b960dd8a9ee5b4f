//! [`Action`]: what a request asks for, as policies name it.

use http::header::HeaderMap;
use object_proto::Permission;

use crate::facts::{LOCK_HOLD, LOCK_MODE, LOCK_UNTIL, TAGGING, gives_tags};

/// An action of S3's policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    name: &'static str,
    /// It concerns the object that the same request puts.
    of_put: bool,
}

impl Action {
    /// To list a bucket's keys.
    pub const LIST: Action = Action::new("s3:ListBucket");
    /// To read an object.
    pub const GET: Action = Action::new("s3:GetObject");
    /// To read a version of an object.
    pub const GET_VERSION: Action = Action::new("s3:GetObjectVersion");
    /// To delete an object.
    pub const DELETE: Action = Action::new("s3:DeleteObject");
    /// To delete a version of an object.
    pub const DELETE_VERSION: Action = Action::new("s3:DeleteObjectVersion");
    /// To give an object tags.
    pub const PUT_TAGS: Action = Action::new("s3:PutObjectTagging");
    /// To give a version of an object tags.
    pub const PUT_VERSION_TAGS: Action = Action::new("s3:PutObjectVersionTagging");
    /// To give an object tags with its content.
    pub const PUT_WITH_TAGS: Action = Action::of_put("s3:PutObjectTagging");
    /// To put an object.
    pub const PUT: Action = Action::new("s3:PutObject");
    /// To read an object's tags.
    pub const GET_TAGS: Action = Action::new("s3:GetObjectTagging");
    /// To read the tags of a version of an object.
    pub const GET_VERSION_TAGS: Action = Action::new("s3:GetObjectVersionTagging");
    /// To read an object's retention.
    pub const GET_RETENTION: Action = Action::new("s3:GetObjectRetention");
    /// To change an object's retention.
    pub const PUT_RETENTION: Action = Action::new("s3:PutObjectRetention");
    /// To read whether an object is held.
    pub const GET_HOLD: Action = Action::new("s3:GetObjectLegalHold");
    /// To hold an object, and to take its hold off.
    pub const PUT_HOLD: Action = Action::new("s3:PutObjectLegalHold");
    /// To weaken a retention under governance, and to remove what has one.
    pub const BYPASS: Action = Action::new("s3:BypassGovernanceRetention");
    /// To enable object lock of a bucket, and to say how versions are retained.
    pub const PUT_LOCK_RULE: Action = Action::new("s3:PutBucketObjectLockConfiguration");
    /// To say whether a bucket keeps versions.
    pub const PUT_VERSIONING: Action = Action::new("s3:PutBucketVersioning");
    /// To list one's buckets.
    pub const LIST_ALL: Action = Action::new("s3:ListAllMyBuckets");
    /// To make a bucket.
    pub const CREATE: Action = Action::new("s3:CreateBucket");
    /// What is not implemented: only administrators and owners find out.
    const UNKNOWN: Action = Action::new("s3:");

    const fn new(name: &'static str) -> Action {
        Action { name, of_put: false }
    }

    const fn of_put(name: &'static str) -> Action {
        Action { name, of_put: true }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// It reads or changes a bucket's policy.
    pub fn concerns_policy(self) -> bool {
        matches!(self.name, "s3:GetBucketPolicy" | "s3:PutBucketPolicy" | "s3:DeleteBucketPolicy")
    }
}

/// The permission of a bucket's ACL that allows an action.
pub fn bucket_permission(action: Action) -> Option<Permission> {
    match action.name {
        "s3:ListBucket" | "s3:ListBucketVersions" | "s3:ListBucketMultipartUploads" => {
            Some(Permission::Read)
        }
        "s3:PutObject"
        | "s3:DeleteObject"
        | "s3:AbortMultipartUpload"
        | "s3:ListMultipartUploadParts" => Some(Permission::Write),
        "s3:PutObjectAcl" | "s3:PutObjectTagging" if action.of_put => Some(Permission::Write),
        "s3:GetBucketAcl" => Some(Permission::ReadAcl),
        "s3:PutBucketAcl" => Some(Permission::WriteAcl),
        _ => None,
    }
}

/// The permission of an object's ACL that allows an action.
pub fn object_permission(action: Action) -> Option<Permission> {
    match action.name {
        "s3:GetObject" | "s3:GetObjectVersion" => Some(Permission::Read),
        "s3:GetObjectAcl" | "s3:GetObjectVersionAcl" => Some(Permission::ReadAcl),
        "s3:PutObjectAcl" | "s3:PutObjectVersionAcl" => Some(Permission::WriteAcl),
        _ => None,
    }
}

/// What an operation of s3s asks for, all of which must be allowed; of one on many keys each of them is
/// checked by itself.
pub fn actions_of(operation: &str, has_version: bool, headers: &HeaderMap) -> Vec<Action> {
    let of = |plain: &'static str, of_version: &'static str| {
        vec![Action::new(if has_version { of_version } else { plain })]
    };
    let one = |name: &'static str| vec![Action::new(name)];
    match operation {
        "PutObject" | "CreateMultipartUpload" | "CopyObject" | "PostObject" => {
            let mut actions = one("s3:PutObject");
            if has_acl(headers) {
                actions.push(Action::of_put("s3:PutObjectAcl"));
            }
            if headers.contains_key(TAGGING) && (operation != "CopyObject" || gives_tags(headers)) {
                actions.push(Action::PUT_WITH_TAGS);
            }
            if [LOCK_MODE, LOCK_UNTIL].iter().any(|name| headers.contains_key(name)) {
                actions.push(Action::PUT_RETENTION);
            }
            if headers.contains_key(LOCK_HOLD) {
                actions.push(Action::PUT_HOLD);
            }
            actions
        }
        "UploadPart" | "UploadPartCopy" | "CompleteMultipartUpload" => one("s3:PutObject"),
        "AbortMultipartUpload" => one("s3:AbortMultipartUpload"),
        "ListParts" => one("s3:ListMultipartUploadParts"),
        "GetObject" | "HeadObject" => of("s3:GetObject", "s3:GetObjectVersion"),
        "GetObjectAttributes" => {
            let mut actions = of("s3:GetObject", "s3:GetObjectVersion");
            actions.extend(of("s3:GetObjectAttributes", "s3:GetObjectVersionAttributes"));
            actions
        }
        "DeleteObject" => of("s3:DeleteObject", "s3:DeleteObjectVersion"),
        // Each key, and what a document gives an object, is checked by the operation.
        _ if !later_actions_of(operation).is_empty() => Vec::new(),
        "GetObjectTagging" => of("s3:GetObjectTagging", "s3:GetObjectVersionTagging"),
        "DeleteObjectTagging" => of("s3:DeleteObjectTagging", "s3:DeleteObjectVersionTagging"),
        "GetObjectAcl" => of("s3:GetObjectAcl", "s3:GetObjectVersionAcl"),
        "PutObjectAcl" => of("s3:PutObjectAcl", "s3:PutObjectVersionAcl"),
        "GetObjectRetention" => vec![Action::GET_RETENTION],
        "GetObjectLegalHold" => vec![Action::GET_HOLD],
        "HeadBucket" | "ListObjects" | "ListObjectsV2" => one("s3:ListBucket"),
        "ListObjectVersions" => one("s3:ListBucketVersions"),
        "ListMultipartUploads" => one("s3:ListBucketMultipartUploads"),
        "DeleteBucket" => one("s3:DeleteBucket"),
        "GetBucketLocation" => one("s3:GetBucketLocation"),
        "GetBucketPolicy" => one("s3:GetBucketPolicy"),
        "PutBucketPolicy" => one("s3:PutBucketPolicy"),
        "DeleteBucketPolicy" => one("s3:DeleteBucketPolicy"),
        "GetBucketPolicyStatus" => one("s3:GetBucketPolicyStatus"),
        "GetBucketAcl" => one("s3:GetBucketAcl"),
        "PutBucketAcl" => one("s3:PutBucketAcl"),
        "GetPublicAccessBlock" => one("s3:GetBucketPublicAccessBlock"),
        "PutPublicAccessBlock" | "DeletePublicAccessBlock" => one("s3:PutBucketPublicAccessBlock"),
        "GetBucketOwnershipControls" => one("s3:GetBucketOwnershipControls"),
        "PutBucketOwnershipControls" | "DeleteBucketOwnershipControls" => {
            one("s3:PutBucketOwnershipControls")
        }
        "GetBucketCors" => one("s3:GetBucketCORS"),
        "PutBucketCors" | "DeleteBucketCors" => one("s3:PutBucketCORS"),
        "GetBucketTagging" => one("s3:GetBucketTagging"),
        "PutBucketTagging" | "DeleteBucketTagging" => one("s3:PutBucketTagging"),
        "GetBucketVersioning" => one("s3:GetBucketVersioning"),
        "PutBucketVersioning" => vec![Action::PUT_VERSIONING],
        "GetBucketLifecycleConfiguration" => one("s3:GetLifecycleConfiguration"),
        "PutBucketLifecycleConfiguration" | "DeleteBucketLifecycle" => {
            one("s3:PutLifecycleConfiguration")
        }
        "GetBucketEncryption" => one("s3:GetEncryptionConfiguration"),
        "PutBucketEncryption" | "DeleteBucketEncryption" => one("s3:PutEncryptionConfiguration"),
        "GetBucketLogging" => one("s3:GetBucketLogging"),
        "GetBucketNotificationConfiguration" => one("s3:GetBucketNotification"),
        "GetBucketAccelerateConfiguration" => one("s3:GetAccelerateConfiguration"),
        "GetBucketRequestPayment" => one("s3:GetBucketRequestPayment"),
        "GetBucketReplication" => one("s3:GetReplicationConfiguration"),
        "GetBucketWebsite" => one("s3:GetBucketWebsite"),
        "GetObjectLockConfiguration" => one("s3:GetBucketObjectLockConfiguration"),
        "PutObjectLockConfiguration" => vec![Action::PUT_LOCK_RULE],
        _ => vec![Action::UNKNOWN],
    }
}

/// What an operation asks for once its document is read, by what that says: before it is read, one of these
/// must be possible.
pub fn later_actions_of(operation: &str) -> &'static [Action] {
    match operation {
        "DeleteObjects" => &[Action::DELETE, Action::DELETE_VERSION],
        "PutObjectTagging" => &[Action::PUT_TAGS, Action::PUT_VERSION_TAGS],
        "PutObjectRetention" => &[Action::PUT_RETENTION],
        "PutObjectLegalHold" => &[Action::PUT_HOLD],
        _ => &[],
    }
}

/// What CreateBucket asks for with these headers, all of which must be allowed.
pub fn actions_of_new_bucket(headers: &HeaderMap) -> Vec<Action> {
    let mut actions = vec![Action::CREATE];
    // A new bucket has the ACL `private` in any case.
    let is_private = headers.get("x-amz-acl").is_none_or(|acl| acl == "private");
    if !is_private || headers.keys().any(|name| name.as_str().starts_with("x-amz-grant-")) {
        actions.push(Action::new("s3:PutBucketAcl"));
    }
    if headers.contains_key("x-amz-object-ownership") {
        actions.push(Action::new("s3:PutBucketOwnershipControls"));
    }
    if headers.contains_key("x-amz-bucket-object-lock-enabled") {
        actions.extend([Action::PUT_LOCK_RULE, Action::PUT_VERSIONING]);
    }
    actions
}

/// A request names grants of what it makes.
fn has_acl(headers: &HeaderMap) -> bool {
    let is_grant = |name: &str| name == "x-amz-acl" || name.starts_with("x-amz-grant-");
    headers.keys().any(|name| is_grant(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelt action could be allowed by no policy.
    #[test]
    fn all_actions_are_known_to_policies() {
        let source = include_str!("actions.rs");
        let names = source.split('"').filter(|part| part.starts_with("s3:") && part.len() > 3);
        let mut count = 0;
        for name in names {
            let known = object_policy::ACTIONS.iter().any(|known| known.name == name);
            assert!(known, "{name}");
            count += 1;
        }
        assert!(count > 60, "{count}");
    }

    #[test]
    fn versions_and_headers_are_other_actions() {
        let none = HeaderMap::new();
        let names = |operation, has_version, headers: &HeaderMap| {
            let actions = actions_of(operation, has_version, headers);
            actions.iter().map(|action| action.name()).collect::<Vec<_>>()
        };
        assert_eq!(names("GetObject", false, &none), ["s3:GetObject"]);
        assert_eq!(names("HeadObject", true, &none), ["s3:GetObjectVersion"]);
        assert_eq!(names("DeleteObject", true, &none), ["s3:DeleteObjectVersion"]);
        assert_eq!(names("RestoreObject", false, &none), ["s3:"]);
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-tagging", "a=b".parse().unwrap());
        headers.insert("x-amz-grant-read", "id=x".parse().unwrap());
        let all = ["s3:PutObject", "s3:PutObjectAcl", "s3:PutObjectTagging"];
        assert_eq!(names("PutObject", false, &headers), all);
        let mut headers = HeaderMap::new();
        headers.insert(LOCK_MODE, "GOVERNANCE".parse().unwrap());
        headers.insert(LOCK_HOLD, "ON".parse().unwrap());
        let all = ["s3:PutObject", "s3:PutObjectRetention", "s3:PutObjectLegalHold"];
        assert_eq!(names("PostObject", false, &headers), all);
    }
}
