//! What no bucket has settings of yet: it answers as S3 does on a new bucket.

use http::StatusCode;
use s3s::dto::{
    GetBucketAclOutput, GetBucketOwnershipControlsOutput, GetObjectAclOutput,
    GetPublicAccessBlockOutput, Grant, Grantee, ObjectOwnership, Owner, OwnershipControls,
    OwnershipControlsRule, Permission, PublicAccessBlockConfiguration, Type,
};
use s3s::{S3Error, S3Request, S3Result};

use super::state::{State, bucket_of, target_of, version_id_of};
use crate::errors::{coded, s3_error};

/// Settings that a bucket may be without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// Policy.
    Policy,
    /// CORS.
    Cors,
    /// Lifecycle.
    Lifecycle,
    /// Tags.
    Tagging,
    /// Encryption by default.
    Encryption,
    /// Object lock.
    ObjectLock,
    /// Replication.
    Replication,
    /// Website.
    Website,
}

impl Setting {
    /// S3's error for a bucket without.
    pub fn missing(self) -> S3Error {
        let (code, message) = match self {
            Setting::Policy => ("NoSuchBucketPolicy", "The bucket policy does not exist"),
            Setting::Cors => ("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
            Setting::Lifecycle => {
                ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist")
            }
            Setting::Tagging => ("NoSuchTagSet", "The TagSet does not exist"),
            Setting::Encryption => (
                "ServerSideEncryptionConfigurationNotFoundError",
                "The server side encryption configuration was not found",
            ),
            Setting::ObjectLock => (
                "ObjectLockConfigurationNotFoundError",
                "Object Lock configuration does not exist for this bucket",
            ),
            Setting::Replication => (
                "ReplicationConfigurationNotFoundError",
                "The replication configuration was not found",
            ),
            Setting::Website => (
                "NoSuchWebsiteConfiguration",
                "The specified bucket does not have a website configuration",
            ),
        };
        coded(code, StatusCode::NOT_FOUND, message)
    }
}

/// An object's retention or legal hold, in a bucket without object lock.
pub fn no_lock() -> S3Error {
    coded("InvalidRequest", StatusCode::BAD_REQUEST, "Bucket is missing Object Lock Configuration")
}

/// The object, or its version, is there.
pub async fn check_object<T>(
    state: &State,
    request: &S3Request<T>,
    key: &str,
    version_id: Option<&str>,
) -> S3Result<()> {
    let (target, version) = (target_of(request, key)?, version_id_of(version_id)?);
    state.backend.head(target, version).await.map(drop).map_err(s3_error)
}

/// ACL of a bucket, whose owner has all.
pub fn bucket_acl<T>(request: &S3Request<T>) -> S3Result<GetBucketAclOutput> {
    let owner = bucket_of(request)?.owner.as_str();
    Ok(GetBucketAclOutput { grants: Some(vec![grant(owner)]), owner: Some(named(owner)) })
}

/// ACL of an object, whose bucket's owner has all.
pub fn object_acl<T>(request: &S3Request<T>) -> S3Result<GetObjectAclOutput> {
    let owner = bucket_of(request)?.owner.as_str();
    Ok(GetObjectAclOutput {
        grants: Some(vec![grant(owner)]),
        owner: Some(named(owner)),
        ..GetObjectAclOutput::default()
    })
}

/// ACLs are off.
pub fn ownership_controls() -> GetBucketOwnershipControlsOutput {
    let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
    let rules = vec![OwnershipControlsRule { object_ownership }];
    GetBucketOwnershipControlsOutput { ownership_controls: Some(OwnershipControls { rules }) }
}

/// Nothing can be public.
pub fn public_access_block() -> GetPublicAccessBlockOutput {
    GetPublicAccessBlockOutput {
        public_access_block_configuration: Some(PublicAccessBlockConfiguration {
            block_public_acls: Some(true),
            block_public_policy: Some(true),
            ignore_public_acls: Some(true),
            restrict_public_buckets: Some(true),
        }),
    }
}

fn named(owner: &str) -> Owner {
    Owner { id: Some(owner.to_owned()), display_name: None }
}

fn grant(owner: &str) -> Grant {
    Grant {
        grantee: Some(Grantee {
            id: Some(owner.to_owned()),
            type_: Type::from_static(Type::CANONICAL_USER),
            display_name: None,
            email_address: None,
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }
}
