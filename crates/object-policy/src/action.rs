//! Actions: those that there are, and patterns of them.

use crate::error::{Flaw, PolicyError};
use crate::pattern::{Syntax, Template};

/// An action of S3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownAction {
    /// Its name, as `s3:GetObject`.
    pub name: &'static str,
    /// What it is on.
    pub scope: ActionScope,
}

/// What an action is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActionScope {
    /// A bucket.
    Bucket,
    /// An object, or a key where one is to be.
    Object,
    /// The account, an access point, a job, or a bucket that is not there yet: no bucket's policy
    /// covers it.
    Elsewhere,
}

const fn known(name: &'static str, scope: ActionScope) -> KnownAction {
    KnownAction { name, scope }
}

/// All actions of S3 that a policy may name, in order of their names in lower case.
pub const ACTIONS: &[KnownAction] = &[
    known("s3:AbortMultipartUpload", ActionScope::Object),
    known("s3:AssociateAccessGrantsIdentityCenter", ActionScope::Elsewhere),
    known("s3:BypassGovernanceRetention", ActionScope::Object),
    known("s3:CreateAccessGrant", ActionScope::Elsewhere),
    known("s3:CreateAccessGrantsInstance", ActionScope::Elsewhere),
    known("s3:CreateAccessGrantsLocation", ActionScope::Elsewhere),
    known("s3:CreateAccessPoint", ActionScope::Elsewhere),
    known("s3:CreateAccessPointForObjectLambda", ActionScope::Elsewhere),
    known("s3:CreateBucket", ActionScope::Elsewhere),
    known("s3:CreateBucketMetadataTableConfiguration", ActionScope::Bucket),
    known("s3:CreateJob", ActionScope::Elsewhere),
    known("s3:CreateMultiRegionAccessPoint", ActionScope::Elsewhere),
    known("s3:CreateStorageLensGroup", ActionScope::Elsewhere),
    known("s3:DeleteAccessGrant", ActionScope::Elsewhere),
    known("s3:DeleteAccessGrantsInstance", ActionScope::Elsewhere),
    known("s3:DeleteAccessGrantsInstanceResourcePolicy", ActionScope::Elsewhere),
    known("s3:DeleteAccessGrantsLocation", ActionScope::Elsewhere),
    known("s3:DeleteAccessPoint", ActionScope::Elsewhere),
    known("s3:DeleteAccessPointForObjectLambda", ActionScope::Elsewhere),
    known("s3:DeleteAccessPointPolicy", ActionScope::Elsewhere),
    known("s3:DeleteAccessPointPolicyForObjectLambda", ActionScope::Elsewhere),
    known("s3:DeleteBucket", ActionScope::Bucket),
    known("s3:DeleteBucketMetadataTableConfiguration", ActionScope::Bucket),
    known("s3:DeleteBucketPolicy", ActionScope::Bucket),
    known("s3:DeleteBucketWebsite", ActionScope::Bucket),
    known("s3:DeleteJobTagging", ActionScope::Elsewhere),
    known("s3:DeleteMultiRegionAccessPoint", ActionScope::Elsewhere),
    known("s3:DeleteObject", ActionScope::Object),
    known("s3:DeleteObjectTagging", ActionScope::Object),
    known("s3:DeleteObjectVersion", ActionScope::Object),
    known("s3:DeleteObjectVersionTagging", ActionScope::Object),
    known("s3:DeleteStorageLensConfiguration", ActionScope::Elsewhere),
    known("s3:DeleteStorageLensConfigurationTagging", ActionScope::Elsewhere),
    known("s3:DeleteStorageLensGroup", ActionScope::Elsewhere),
    known("s3:DescribeJob", ActionScope::Elsewhere),
    known("s3:DescribeMultiRegionAccessPointOperation", ActionScope::Elsewhere),
    known("s3:DissociateAccessGrantsIdentityCenter", ActionScope::Elsewhere),
    known("s3:GetAccelerateConfiguration", ActionScope::Bucket),
    known("s3:GetAccessGrant", ActionScope::Elsewhere),
    known("s3:GetAccessGrantsInstance", ActionScope::Elsewhere),
    known("s3:GetAccessGrantsInstanceForPrefix", ActionScope::Elsewhere),
    known("s3:GetAccessGrantsInstanceResourcePolicy", ActionScope::Elsewhere),
    known("s3:GetAccessGrantsLocation", ActionScope::Elsewhere),
    known("s3:GetAccessPoint", ActionScope::Elsewhere),
    known("s3:GetAccessPointConfigurationForObjectLambda", ActionScope::Elsewhere),
    known("s3:GetAccessPointForObjectLambda", ActionScope::Elsewhere),
    known("s3:GetAccessPointPolicy", ActionScope::Elsewhere),
    known("s3:GetAccessPointPolicyForObjectLambda", ActionScope::Elsewhere),
    known("s3:GetAccessPointPolicyStatus", ActionScope::Elsewhere),
    known("s3:GetAccessPointPolicyStatusForObjectLambda", ActionScope::Elsewhere),
    known("s3:GetAccountPublicAccessBlock", ActionScope::Elsewhere),
    known("s3:GetAnalyticsConfiguration", ActionScope::Bucket),
    known("s3:GetBucketAbac", ActionScope::Bucket),
    known("s3:GetBucketAcl", ActionScope::Bucket),
    known("s3:GetBucketCORS", ActionScope::Bucket),
    known("s3:GetBucketLocation", ActionScope::Bucket),
    known("s3:GetBucketLogging", ActionScope::Bucket),
    known("s3:GetBucketMetadataTableConfiguration", ActionScope::Bucket),
    known("s3:GetBucketNotification", ActionScope::Bucket),
    known("s3:GetBucketObjectLockConfiguration", ActionScope::Bucket),
    known("s3:GetBucketOwnershipControls", ActionScope::Bucket),
    known("s3:GetBucketPolicy", ActionScope::Bucket),
    known("s3:GetBucketPolicyStatus", ActionScope::Bucket),
    known("s3:GetBucketPublicAccessBlock", ActionScope::Bucket),
    known("s3:GetBucketRequestPayment", ActionScope::Bucket),
    known("s3:GetBucketTagging", ActionScope::Bucket),
    known("s3:GetBucketVersioning", ActionScope::Bucket),
    known("s3:GetBucketWebsite", ActionScope::Bucket),
    known("s3:GetDataAccess", ActionScope::Elsewhere),
    known("s3:GetEncryptionConfiguration", ActionScope::Bucket),
    known("s3:GetIntelligentTieringConfiguration", ActionScope::Bucket),
    known("s3:GetInventoryConfiguration", ActionScope::Bucket),
    known("s3:GetJobTagging", ActionScope::Elsewhere),
    known("s3:GetLifecycleConfiguration", ActionScope::Bucket),
    known("s3:GetMetricsConfiguration", ActionScope::Bucket),
    known("s3:GetMultiRegionAccessPoint", ActionScope::Elsewhere),
    known("s3:GetMultiRegionAccessPointPolicy", ActionScope::Elsewhere),
    known("s3:GetMultiRegionAccessPointPolicyStatus", ActionScope::Elsewhere),
    known("s3:GetMultiRegionAccessPointRoutes", ActionScope::Elsewhere),
    known("s3:GetObject", ActionScope::Object),
    known("s3:GetObjectAcl", ActionScope::Object),
    known("s3:GetObjectAttributes", ActionScope::Object),
    known("s3:GetObjectLegalHold", ActionScope::Object),
    known("s3:GetObjectRetention", ActionScope::Object),
    known("s3:GetObjectTagging", ActionScope::Object),
    known("s3:GetObjectTorrent", ActionScope::Object),
    known("s3:GetObjectVersion", ActionScope::Object),
    known("s3:GetObjectVersionAcl", ActionScope::Object),
    known("s3:GetObjectVersionAttributes", ActionScope::Object),
    known("s3:GetObjectVersionForReplication", ActionScope::Object),
    known("s3:GetObjectVersionTagging", ActionScope::Object),
    known("s3:GetObjectVersionTorrent", ActionScope::Object),
    known("s3:GetReplicationConfiguration", ActionScope::Bucket),
    known("s3:GetStorageLensConfiguration", ActionScope::Elsewhere),
    known("s3:GetStorageLensConfigurationTagging", ActionScope::Elsewhere),
    known("s3:GetStorageLensDashboard", ActionScope::Elsewhere),
    known("s3:GetStorageLensGroup", ActionScope::Elsewhere),
    known("s3:InitiateReplication", ActionScope::Object),
    known("s3:ListAccessGrants", ActionScope::Elsewhere),
    known("s3:ListAccessGrantsInstances", ActionScope::Elsewhere),
    known("s3:ListAccessGrantsLocations", ActionScope::Elsewhere),
    known("s3:ListAccessPoints", ActionScope::Elsewhere),
    known("s3:ListAccessPointsForObjectLambda", ActionScope::Elsewhere),
    known("s3:ListAllMyBuckets", ActionScope::Elsewhere),
    known("s3:ListBucket", ActionScope::Bucket),
    known("s3:ListBucketMultipartUploads", ActionScope::Bucket),
    known("s3:ListBucketVersions", ActionScope::Bucket),
    known("s3:ListCallerAccessGrants", ActionScope::Elsewhere),
    known("s3:ListJobs", ActionScope::Elsewhere),
    known("s3:ListMultipartUploadParts", ActionScope::Object),
    known("s3:ListMultiRegionAccessPoints", ActionScope::Elsewhere),
    known("s3:ListStorageLensConfigurations", ActionScope::Elsewhere),
    known("s3:ListStorageLensGroups", ActionScope::Elsewhere),
    known("s3:ListTagsForResource", ActionScope::Bucket),
    known("s3:ObjectOwnerOverrideToBucketOwner", ActionScope::Object),
    known("s3:PauseReplication", ActionScope::Bucket),
    known("s3:PutAccelerateConfiguration", ActionScope::Bucket),
    known("s3:PutAccessGrantsInstanceResourcePolicy", ActionScope::Elsewhere),
    known("s3:PutAccessPointConfigurationForObjectLambda", ActionScope::Elsewhere),
    known("s3:PutAccessPointPolicy", ActionScope::Elsewhere),
    known("s3:PutAccessPointPolicyForObjectLambda", ActionScope::Elsewhere),
    known("s3:PutAccessPointPublicAccessBlock", ActionScope::Elsewhere),
    known("s3:PutAccountPublicAccessBlock", ActionScope::Elsewhere),
    known("s3:PutAnalyticsConfiguration", ActionScope::Bucket),
    known("s3:PutBucketAbac", ActionScope::Bucket),
    known("s3:PutBucketAcl", ActionScope::Bucket),
    known("s3:PutBucketCORS", ActionScope::Bucket),
    known("s3:PutBucketLogging", ActionScope::Bucket),
    known("s3:PutBucketNotification", ActionScope::Bucket),
    known("s3:PutBucketObjectLockConfiguration", ActionScope::Bucket),
    known("s3:PutBucketOwnershipControls", ActionScope::Bucket),
    known("s3:PutBucketPolicy", ActionScope::Bucket),
    known("s3:PutBucketPublicAccessBlock", ActionScope::Bucket),
    known("s3:PutBucketRequestPayment", ActionScope::Bucket),
    known("s3:PutBucketTagging", ActionScope::Bucket),
    known("s3:PutBucketVersioning", ActionScope::Bucket),
    known("s3:PutBucketWebsite", ActionScope::Bucket),
    known("s3:PutEncryptionConfiguration", ActionScope::Bucket),
    known("s3:PutIntelligentTieringConfiguration", ActionScope::Bucket),
    known("s3:PutInventoryConfiguration", ActionScope::Bucket),
    known("s3:PutJobTagging", ActionScope::Elsewhere),
    known("s3:PutLifecycleConfiguration", ActionScope::Bucket),
    known("s3:PutMetricsConfiguration", ActionScope::Bucket),
    known("s3:PutMultiRegionAccessPointPolicy", ActionScope::Elsewhere),
    known("s3:PutObject", ActionScope::Object),
    known("s3:PutObjectAcl", ActionScope::Object),
    known("s3:PutObjectLegalHold", ActionScope::Object),
    known("s3:PutObjectRetention", ActionScope::Object),
    known("s3:PutObjectTagging", ActionScope::Object),
    known("s3:PutObjectVersionAcl", ActionScope::Object),
    known("s3:PutObjectVersionTagging", ActionScope::Object),
    known("s3:PutReplicationConfiguration", ActionScope::Bucket),
    known("s3:PutStorageLensConfiguration", ActionScope::Elsewhere),
    known("s3:PutStorageLensConfigurationTagging", ActionScope::Elsewhere),
    known("s3:ReplicateDelete", ActionScope::Object),
    known("s3:ReplicateObject", ActionScope::Object),
    known("s3:ReplicateTags", ActionScope::Object),
    known("s3:RestoreObject", ActionScope::Object),
    known("s3:SubmitMultiRegionAccessPointRoutes", ActionScope::Elsewhere),
    known("s3:TagResource", ActionScope::Bucket),
    known("s3:UntagResource", ActionScope::Bucket),
    known("s3:UpdateAccessGrantsLocation", ActionScope::Elsewhere),
    known("s3:UpdateBucketMetadataInventoryTableConfiguration", ActionScope::Bucket),
    known("s3:UpdateBucketMetadataJournalTableConfiguration", ActionScope::Bucket),
    known("s3:UpdateJobPriority", ActionScope::Elsewhere),
    known("s3:UpdateJobStatus", ActionScope::Elsewhere),
    known("s3:UpdateStorageLensGroup", ActionScope::Elsewhere),
];

/// Actions of a statement: a name, possibly with wildcards, in any case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ActionPattern(Template);

impl ActionPattern {
    /// Of a bucket's policy: one that matches some action of S3.
    pub(crate) fn of_bucket(text: &str) -> Result<ActionPattern, PolicyError> {
        let pattern = ActionPattern::parse(text)?;
        if ACTIONS.iter().any(|action| pattern.matches(action.name)) {
            Ok(pattern)
        } else {
            Err(PolicyError::of(Flaw::Action, text))
        }
    }

    /// Of a user's policy: it may name actions of other services, or of later versions of S3, which
    /// no request has.
    pub(crate) fn of_identity(text: &str) -> Result<ActionPattern, PolicyError> {
        let named =
            text.split_once(':').is_some_and(|(of, name)| !of.is_empty() && !name.is_empty());
        if named || text.bytes().all(|c| c == b'*') {
            ActionPattern::parse(text)
        } else {
            Err(PolicyError::of(Flaw::Action, text))
        }
    }

    fn parse(text: &str) -> Result<ActionPattern, PolicyError> {
        let is_action = |c: u8| c.is_ascii_alphanumeric() || b":-*?".contains(&c);
        let syntax = Syntax { wildcards: true, variables: false };
        let template = match !text.is_empty() && text.bytes().all(is_action) {
            true => Template::parse(text, syntax),
            false => None,
        };
        template.map(ActionPattern).ok_or_else(|| PolicyError::of(Flaw::Action, text))
    }

    pub(crate) fn matches(&self, action: &str) -> bool {
        self.0.matches_text(action, true)
    }

    /// Whether some action that it matches is on one of these.
    pub(crate) fn is_on(&self, scopes: &[ActionScope]) -> bool {
        ACTIONS.iter().any(|action| scopes.contains(&action.scope) && self.matches(action.name))
    }

    /// It names one action.
    pub(crate) fn is_fixed(&self) -> bool {
        self.0.is_fixed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_actions_are_in_order() {
        let lower: Vec<String> = ACTIONS.iter().map(|one| one.name.to_ascii_lowercase()).collect();
        assert!(lower.is_sorted() && lower.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(lower.iter().all(|name| name.starts_with("s3:")));
    }

    #[test]
    fn patterns_match_actions_in_any_case() {
        for (pattern, action, expected) in [
            ("s3:GetObject", "s3:GetObject", true),
            ("S3:getobject", "s3:GetObject", true),
            ("s3:GetObject", "s3:GetObjectAcl", false),
            ("s3:Get*", "s3:GetObjectAcl", true),
            ("s3:*Acl", "s3:GetObjectAcl", true),
            ("s3:?etObject", "s3:GetObject", true),
            ("s3:*", "s3:ListBucket", true),
            ("*", "s3:ListBucket", true),
            ("s*", "s3:ListBucket", true),
            ("iam:*", "s3:ListBucket", false),
        ] {
            let parsed = ActionPattern::of_identity(pattern).or(ActionPattern::of_bucket(pattern));
            assert_eq!(parsed.expect(pattern).matches(action), expected, "{pattern} {action}");
        }
    }

    #[test]
    fn actions_that_a_policy_may_not_name_are_refused() {
        // (text, may a bucket's policy name it, may a user's)
        for (text, bucket, identity) in [
            ("s3:GetObject", true, true),
            ("s3:getobject", true, true),
            ("s3:*", true, true),
            ("*", true, true),
            ("s3:Get*", true, true),
            ("s3:ListAllMyBuckets", true, true),
            ("s*:GetObject", true, true),
            ("s3:GetObjects", false, true),
            ("s3:Foo*", false, true),
            ("iam:CreateUser", false, true),
            ("GetObject", false, false),
            ("s3:", false, false),
            (":GetObject", false, false),
            ("", false, false),
            ("s3:Get Object", false, false),
            ("s3:${aws:username}", false, false),
        ] {
            assert_eq!(ActionPattern::of_bucket(text).is_ok(), bucket, "{text}");
            assert_eq!(ActionPattern::of_identity(text).is_ok(), identity, "{text}");
        }
    }
}
