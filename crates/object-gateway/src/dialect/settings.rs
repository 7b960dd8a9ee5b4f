//! Settings of a bucket: its policy, what of it may be public, whose its objects are, its tags.

use std::collections::BTreeMap;

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use object_policy::{Policy, PolicyKind};
use object_proto::{BucketSettings, Ownership, PublicAccess, Setting, TAG_NAME_MAX, TAG_VALUE_MAX};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::acl::has_others;
use super::state::{State, bucket_of, place_of};
use super::unset::Missing;
use crate::errors::{coded, internal, s3_error};

/// Tags of a bucket at most, as in S3.
const TAGS_MAX: usize = 50;

/// Settings of the bucket that access was checked for.
pub fn settings_of<T>(request: &S3Request<T>) -> S3Result<&BucketSettings> {
    place_of(request).map(|place| &place.view.settings)
}

/// Changes a setting of that bucket.
pub async fn set<T>(state: &State, request: &S3Request<T>, setting: Setting) -> S3Result<()> {
    let name = bucket_of(request)?.name.clone();
    state.backend.set_bucket(name, setting).await.map_err(s3_error)
}

/// The bucket's policy, parsed, with its text.
fn policy_of<T>(request: &S3Request<T>) -> S3Result<(Policy, &str)> {
    let text = settings_of(request)?.policy.as_deref().ok_or_else(|| Missing::Policy.error())?;
    let name = bucket_of(request)?.name.as_str();
    // It was parsed when it was stored.
    let policy = Policy::parse(text, PolicyKind::Bucket { name }).map_err(|_| internal())?;
    Ok((policy, text))
}

/// Gives a bucket a policy.
pub async fn put_policy(
    state: &State,
    request: S3Request<PutBucketPolicyInput>,
) -> S3Result<S3Response<PutBucketPolicyOutput>> {
    let text = request.input.policy.as_str();
    let name = bucket_of(&request)?.name.as_str();
    let flawed = |flaw: object_policy::PolicyError| {
        coded("MalformedPolicy", StatusCode::BAD_REQUEST, flaw.to_string())
    };
    let policy = Policy::parse(text, PolicyKind::Bucket { name }).map_err(flawed)?;
    if policy.is_public() && settings_of(&request)?.public_access.block_policy {
        return Err(S3Error::with_message(
            S3ErrorCode::AccessDenied,
            "Access Denied: the policy is public, and BlockPublicPolicy of the bucket's public \
             access block refuses such policies",
        ));
    }
    set(state, &request, Setting::Policy(Some(text.to_owned()))).await?;
    Ok(S3Response::new(PutBucketPolicyOutput {}))
}

/// A bucket's policy, as it was put.
pub fn get_policy(
    request: &S3Request<GetBucketPolicyInput>,
) -> S3Result<S3Response<GetBucketPolicyOutput>> {
    let (_, text) = policy_of(request)?;
    let mut response = S3Response::new(GetBucketPolicyOutput { policy: Some(text.to_owned()) });
    response.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Whether a bucket's policy is public.
pub fn get_policy_status(
    request: &S3Request<GetBucketPolicyStatusInput>,
) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
    let is_public = Some(policy_of(request)?.0.is_public());
    let policy_status = Some(PolicyStatus { is_public });
    Ok(S3Response::new(GetBucketPolicyStatusOutput { policy_status }))
}

/// Takes a bucket's policy away.
pub async fn delete_policy(
    state: &State,
    request: S3Request<DeleteBucketPolicyInput>,
) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
    set(state, &request, Setting::Policy(None)).await?;
    Ok(S3Response::new(DeleteBucketPolicyOutput {}))
}

/// Says what of a bucket may be public.
pub async fn put_public_access(
    state: &State,
    request: S3Request<PutPublicAccessBlockInput>,
) -> S3Result<S3Response<PutPublicAccessBlockOutput>> {
    let asked = &request.input.public_access_block_configuration;
    let blocks = PublicAccess {
        block_acls: asked.block_public_acls == Some(true),
        ignore_acls: asked.ignore_public_acls == Some(true),
        block_policy: asked.block_public_policy == Some(true),
        restrict: asked.restrict_public_buckets == Some(true),
    };
    set(state, &request, Setting::PublicAccess(blocks)).await?;
    Ok(S3Response::new(PutPublicAccessBlockOutput {}))
}

/// What of a bucket may be public. S3 knows a bucket without such a setting, whose blocks are all off:
/// here the two are one, so that the answer behind a deletion is S3's.
pub fn get_public_access(
    request: &S3Request<GetPublicAccessBlockInput>,
) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
    let blocks = settings_of(request)?.public_access;
    if blocks == PublicAccess::all(false) {
        return Err(Missing::PublicAccess.error());
    }
    let public_access_block_configuration = Some(PublicAccessBlockConfiguration {
        block_public_acls: Some(blocks.block_acls),
        block_public_policy: Some(blocks.block_policy),
        ignore_public_acls: Some(blocks.ignore_acls),
        restrict_public_buckets: Some(blocks.restrict),
    });
    Ok(S3Response::new(GetPublicAccessBlockOutput { public_access_block_configuration }))
}

/// Takes all blocks away.
pub async fn delete_public_access(
    state: &State,
    request: S3Request<DeletePublicAccessBlockInput>,
) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
    set(state, &request, Setting::PublicAccess(PublicAccess::all(false))).await?;
    Ok(S3Response::new(DeletePublicAccessBlockOutput {}))
}

const OWNERSHIPS: [(&str, Ownership); 3] = [
    (ObjectOwnership::BUCKET_OWNER_ENFORCED, Ownership::Enforced),
    (ObjectOwnership::BUCKET_OWNER_PREFERRED, Ownership::Preferred),
    (ObjectOwnership::OBJECT_WRITER, Ownership::Writer),
];

/// An ownership by S3's name.
pub fn ownership_of(name: &str) -> Option<Ownership> {
    let known = OWNERSHIPS.iter().find(|(other, _)| *other == name);
    known.map(|(_, ownership)| *ownership)
}

/// S3's error for ACLs that grant something where they are off.
pub fn acl_with_ownership() -> S3Error {
    coded(
        "InvalidBucketAclWithObjectOwnership",
        StatusCode::BAD_REQUEST,
        "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
    )
}

/// Says whose a bucket's objects are.
pub async fn put_ownership(
    state: &State,
    request: S3Request<PutBucketOwnershipControlsInput>,
) -> S3Result<S3Response<PutBucketOwnershipControlsOutput>> {
    let malformed = || S3Error::new(S3ErrorCode::MalformedXML);
    let [rule] = request.input.ownership_controls.rules.as_slice() else { return Err(malformed()) };
    let ownership = ownership_of(rule.object_ownership.as_str()).ok_or_else(malformed)?;
    let (owner, acl) = (&bucket_of(&request)?.owner, &settings_of(&request)?.acl);
    if ownership == Ownership::Enforced && has_others(acl, owner) {
        return Err(acl_with_ownership());
    }
    set(state, &request, Setting::Ownership(ownership)).await?;
    Ok(S3Response::new(PutBucketOwnershipControlsOutput {}))
}

/// Whose a bucket's objects are.
pub fn get_ownership(
    request: &S3Request<GetBucketOwnershipControlsInput>,
) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
    let ownership = settings_of(request)?.ownership;
    let name = OWNERSHIPS.iter().find(|(_, other)| *other == ownership).map(|(name, _)| *name);
    let name = name.ok_or_else(|| Missing::Ownership.error())?;
    let object_ownership = ObjectOwnership::from_static(name);
    let rules = vec![OwnershipControlsRule { object_ownership }];
    let ownership_controls = Some(OwnershipControls { rules });
    Ok(S3Response::new(GetBucketOwnershipControlsOutput { ownership_controls }))
}

/// Has a bucket's objects be their writers', as where nothing was said of them.
pub async fn delete_ownership(
    state: &State,
    request: S3Request<DeleteBucketOwnershipControlsInput>,
) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
    set(state, &request, Setting::Ownership(Ownership::Unset)).await?;
    Ok(S3Response::new(DeleteBucketOwnershipControlsOutput {}))
}

fn invalid_tag(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidTag, message)
}

/// A bucket's tags, as S3 takes them.
fn tags_of(set: TagSet) -> S3Result<BTreeMap<String, String>> {
    if set.len() > TAGS_MAX {
        return Err(coded(
            "BadRequest",
            StatusCode::BAD_REQUEST,
            format!("Bucket tag count cannot be greater than {TAGS_MAX}"),
        ));
    }
    let mut tags = BTreeMap::new();
    for Tag { key, value } in set {
        let (Some(name), Some(value)) = (key, value) else {
            return Err(S3Error::new(S3ErrorCode::MalformedXML));
        };
        if name.is_empty() || name.chars().count() > TAG_NAME_MAX {
            return Err(invalid_tag("The TagKey you have provided is invalid"));
        }
        if name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("aws:")) {
            return Err(invalid_tag("System tags cannot be added/updated by requester"));
        }
        if value.chars().count() > TAG_VALUE_MAX {
            return Err(invalid_tag("The TagValue you have provided is invalid"));
        }
        if tags.insert(name, value).is_some() {
            return Err(invalid_tag("Cannot provide multiple Tags with the same key"));
        }
    }
    Ok(tags)
}

/// Gives a bucket other tags.
pub async fn put_tags(
    state: &State,
    mut request: S3Request<PutBucketTaggingInput>,
) -> S3Result<S3Response<PutBucketTaggingOutput>> {
    let tags = tags_of(std::mem::take(&mut request.input.tagging.tag_set))?;
    set(state, &request, Setting::Tags(tags)).await?;
    Ok(S3Response::new(PutBucketTaggingOutput {}))
}

/// A bucket's tags.
pub fn get_tags(
    request: &S3Request<GetBucketTaggingInput>,
) -> S3Result<S3Response<GetBucketTaggingOutput>> {
    let tags = &settings_of(request)?.tags;
    if tags.is_empty() {
        return Err(Missing::Tags.error());
    }
    let tag = |(name, value): (&String, &String)| Tag {
        key: Some(name.clone()),
        value: Some(value.clone()),
    };
    Ok(S3Response::new(GetBucketTaggingOutput { tag_set: tags.iter().map(tag).collect() }))
}

/// Takes a bucket's tags away.
pub async fn delete_tags(
    state: &State,
    request: S3Request<DeleteBucketTaggingInput>,
) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
    set(state, &request, Setting::Tags(BTreeMap::new())).await?;
    Ok(S3Response::new(DeleteBucketTaggingOutput {}))
}
