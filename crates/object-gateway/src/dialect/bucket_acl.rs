//! ACLs of buckets, and the settings that a bucket is made with.

use http::StatusCode;
use http::header::HeaderMap;
use object_proto::{BucketSettings, Grant, Ownership, PublicAccess, Setting, UserId};
use s3s::dto::{
    GetBucketAclInput, GetBucketAclOutput, ObjectOwnership, PutBucketAclInput, PutBucketAclOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::acl::{AskedAcl, Owners, is_public, shown, shown_owner};
use super::settings::{acl_with_ownership, ownership_of, set, settings_of};
use super::state::{State, bucket_of};
use crate::errors::{coded, s3_error};

/// S3's error for an ACL where ACLs are off.
pub fn acls_are_off() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::AccessControlListNotSupported,
        "The bucket does not allow ACLs",
    )
}

/// Refuses an ACL that is public where such ones are blocked.
pub fn check_public(acl: &[Grant], blocks: PublicAccess) -> S3Result<()> {
    match blocks.block_acls && is_public(acl) {
        false => Ok(()),
        true => Err(S3Error::with_message(
            S3ErrorCode::AccessDenied,
            "Access Denied: the ACL is public, and BlockPublicAcls of the bucket's public access \
             block refuses such ACLs",
        )),
    }
}

/// The ACL that a request gives in one of three ways.
pub fn asked_acl(
    headers: &HeaderMap,
    document: Option<s3s::dto::AccessControlPolicy>,
    owner: &UserId,
) -> S3Result<AskedAcl> {
    match (AskedAcl::of_headers(headers)?, document) {
        (Some(asked), None) => Ok(asked),
        (None, Some(document)) => AskedAcl::of_document(document, owner),
        (Some(_), Some(_)) => Err(coded(
            "UnexpectedContent",
            StatusCode::BAD_REQUEST,
            "This request does not support content",
        )),
        (None, None) => Err(coded(
            "MissingSecurityHeader",
            StatusCode::BAD_REQUEST,
            "Your request was missing a required header: x-amz-acl",
        )),
    }
}

/// Gives a bucket another ACL.
pub async fn put_acl(
    state: &State,
    mut request: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let document = request.input.access_control_policy.take();
    let settings = settings_of(&request)?;
    let owner = &bucket_of(&request)?.owner;
    let asked = asked_acl(&request.headers, document, owner)?;
    if settings.ownership == Ownership::Enforced && !asked.is_full_control_of(owner) {
        return Err(acls_are_off());
    }
    let acl = asked.stored(state, Owners { own: owner, bucket: None }).await?;
    check_public(&acl, settings.public_access)?;
    set(state, &request, Setting::Acl(acl)).await?;
    Ok(S3Response::new(PutBucketAclOutput {}))
}

/// A bucket's ACL. Where ACLs are off, its owner has all.
pub async fn get_acl(
    state: &State,
    request: S3Request<GetBucketAclInput>,
) -> S3Result<S3Response<GetBucketAclOutput>> {
    let (owner, settings) = (&bucket_of(&request)?.owner, settings_of(&request)?);
    let acl = match settings.ownership {
        Ownership::Enforced => &[][..],
        Ownership::Preferred | Ownership::Writer | Ownership::Unset => &settings.acl,
    };
    let users = state.backend.users().await.map_err(s3_error)?;
    Ok(S3Response::new(GetBucketAclOutput {
        grants: Some(shown(acl, owner, &users)),
        owner: Some(shown_owner(owner, &users)),
    }))
}

/// Settings of a bucket that is made by a request with these headers.
pub async fn settings_of_new(
    state: &State,
    headers: &HeaderMap,
    ownership: Option<&ObjectOwnership>,
    owner: &UserId,
) -> S3Result<BucketSettings> {
    let unknown = || {
        let message = "Invalid x-amz-object-ownership header";
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    };
    let mut settings = state.new_buckets.clone();
    if let Some(ownership) = ownership {
        settings.ownership = ownership_of(ownership.as_str()).ok_or_else(unknown)?;
    }
    if let Some(asked) = AskedAcl::of_headers(headers)? {
        settings.acl = asked.stored(state, Owners { own: owner, bucket: None }).await?;
    }
    if settings.ownership == Ownership::Enforced && !settings.acl.is_empty() {
        return Err(acl_with_ownership());
    }
    check_public(&settings.acl, settings.public_access)?;
    Ok(settings)
}
