//! What a bucket has no setting of, or no bucket yet: it answers as S3 does on a new bucket.

use http::StatusCode;
use s3s::S3Error;

use crate::errors::coded;

/// Settings that a bucket may be without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Policy.
    Policy,
    /// Blocks of what is public.
    PublicAccess,
    /// CORS.
    Cors,
    /// Lifecycle.
    Lifecycle,
    /// Tags.
    Tags,
    /// Encryption by default.
    Encryption,
    /// Object lock.
    ObjectLock,
    /// Whose objects are.
    Ownership,
    /// Replication.
    Replication,
    /// Website.
    Website,
}

impl Missing {
    /// S3's error for a bucket without.
    pub fn error(self) -> S3Error {
        let (code, message) = match self {
            Missing::Policy => ("NoSuchBucketPolicy", "The bucket policy does not exist"),
            Missing::PublicAccess => (
                "NoSuchPublicAccessBlockConfiguration",
                "The public access block configuration was not found",
            ),
            Missing::Cors => ("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
            Missing::Lifecycle => {
                ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist")
            }
            Missing::Tags => ("NoSuchTagSet", "The TagSet does not exist"),
            Missing::Encryption => (
                "ServerSideEncryptionConfigurationNotFoundError",
                "The server side encryption configuration was not found",
            ),
            Missing::ObjectLock => (
                "ObjectLockConfigurationNotFoundError",
                "Object Lock configuration does not exist for this bucket",
            ),
            Missing::Ownership => {
                ("OwnershipControlsNotFoundError", "The bucket ownership controls were not found")
            }
            Missing::Replication => (
                "ReplicationConfigurationNotFoundError",
                "The replication configuration was not found",
            ),
            Missing::Website => (
                "NoSuchWebsiteConfiguration",
                "The specified bucket does not have a website configuration",
            ),
        };
        coded(code, StatusCode::NOT_FOUND, message)
    }
}
