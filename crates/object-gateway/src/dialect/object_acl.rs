//! ACLs of objects: given with an object, changed, shown.

use object_proto::{Grant, Ownership, UserId};
use s3s::dto::{GetObjectAclInput, GetObjectAclOutput, PutObjectAclInput, PutObjectAclOutput};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::acl::{AskedAcl, Owners, has_others, shown, shown_owner};
use super::bucket_acl::{asked_acl, check_public};
use super::state::{State, place_of, read_error, target_of, version_id_of};
use super::wishes::check_features;

fn acls_are_off() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::AccessControlListNotSupported,
        "The bucket does not allow ACLs",
    )
}

/// The ACL as it is stored, of an object of `owner`. Where ACLs are off only what grants nothing to
/// others than the bucket's owner is taken.
async fn stored<T>(
    state: &State,
    request: &S3Request<T>,
    asked: AskedAcl,
    owner: &UserId,
) -> S3Result<Vec<Grant>> {
    let view = &place_of(request)?.view;
    let (bucket_owner, settings) = (&view.bucket.owner, &view.settings);
    let acl = asked.stored(state, Owners { own: owner, bucket: Some(bucket_owner) }).await?;
    if settings.ownership == Ownership::Enforced {
        return match acl.is_empty() || !has_others(&acl, bucket_owner) {
            true => Ok(Vec::new()),
            false => Err(acls_are_off()),
        };
    }
    check_public(&acl, settings.public_access)?;
    Ok(acl)
}

/// The ACL of an object of `owner` that a request makes.
pub async fn acl_of_new<T>(
    state: &State,
    request: &S3Request<T>,
    owner: &UserId,
) -> S3Result<Vec<Grant>> {
    let Some(asked) = AskedAcl::of_headers(&request.headers)? else { return Ok(Vec::new()) };
    if place_of(request)?.view.settings.ownership == Ownership::Enforced {
        // Other names are not looked up.
        return match asked {
            AskedAcl::Canned(name) if name == "private" || name == "bucket-owner-full-control" => {
                Ok(Vec::new())
            }
            _ => Err(acls_are_off()),
        };
    }
    stored(state, request, asked, owner).await
}

/// Gives an object, or a version of it, another ACL.
pub async fn put_acl(
    state: &State,
    mut request: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    check_features(&request.headers)?;
    let document = request.input.access_control_policy.take();
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let found = state.backend.head(target.clone(), version).await;
    let found = found.map_err(|error| read_error(&request, error))?;
    let owner = &found.object.facts.owner;
    let asked = asked_acl(&request.headers, document, owner)?;
    let acl = stored(state, &request, asked, owner).await?;
    if place_of(&request)?.view.settings.ownership != Ownership::Enforced {
        let set = state.backend.set_acl(target, version, acl).await;
        set.map_err(|error| read_error(&request, error))?;
    }
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

/// An object's ACL, or that of a version of it. Where ACLs are off the bucket's owner has all.
pub async fn get_acl(
    state: &State,
    request: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let found = state.backend.head(target, version).await;
    let facts = found.map_err(|error| read_error(&request, error))?.object.facts;
    let view = &place_of(&request)?.view;
    let (owner, acl) = match view.settings.ownership {
        Ownership::Enforced => (&view.bucket.owner, &[][..]),
        Ownership::Preferred | Ownership::Writer => (&facts.owner, &facts.acl[..]),
    };
    let users = state.backend.users().await.map_err(crate::errors::s3_error)?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(shown(acl, owner, &users)),
        owner: Some(shown_owner(owner, &users)),
        ..GetObjectAclOutput::default()
    }))
}
