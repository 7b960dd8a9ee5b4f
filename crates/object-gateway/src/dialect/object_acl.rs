//! ACLs of objects: given with an object, changed, shown.

use object_proto::{Grant, Ownership, UserId};
use s3s::dto::{GetObjectAclInput, GetObjectAclOutput, PutObjectAclInput, PutObjectAclOutput};
use s3s::{S3Request, S3Response, S3Result};

use super::acl::{AskedAcl, Owners, shown, shown_owner};
use super::bucket_acl::{acls_are_off, asked_acl, check_public};
use super::state::{State, place_of, read_error, rights_of, target_of, version_id_of};
use super::wishes::check_features;
use crate::actions::actions_of;
use crate::facts::Facts;
use crate::rights::AskedObject;

/// The ACL as it is stored, of an object of `owner`. Where ACLs are off only the bucket owner's full control
/// is taken, by its name or as a grant: with all else, `private` too, a client shows that it counts on ACLs.
async fn stored<T>(
    state: &State,
    request: &S3Request<T>,
    asked: AskedAcl,
    owner: &UserId,
) -> S3Result<Vec<Grant>> {
    let view = &place_of(request)?.view;
    let (bucket_owner, settings) = (&view.bucket.owner, &view.settings);
    if settings.ownership == Ownership::Enforced {
        // Other names are not looked up.
        return match asked.is_full_control_of(bucket_owner) {
            true => Ok(Vec::new()),
            false => Err(acls_are_off()),
        };
    }
    let acl = asked.stored(state, Owners { own: owner, bucket: Some(bucket_owner) }).await?;
    check_public(&acl, settings.public_access)?;
    Ok(acl)
}

/// The ACL of an object of `owner` that a request makes.
pub async fn acl_of_new<T>(
    state: &State,
    request: &S3Request<T>,
    owner: &UserId,
) -> S3Result<Vec<Grant>> {
    match AskedAcl::of_headers(&request.headers)? {
        None => Ok(Vec::new()),
        Some(asked) => stored(state, request, asked, owner).await,
    }
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
    // Behind the document, whose client may have waited until the object was another one.
    let facts = Facts::of(&request);
    let actions = actions_of("PutObjectAcl", version.is_some(), &request.headers);
    let object = AskedObject { backend: &*state.backend, target: &target, version };
    rights_of(&request)?.check_object(&actions, place_of(&request)?, object, facts).await?;
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
        Ownership::Preferred | Ownership::Writer | Ownership::Unset => {
            (&facts.owner, &facts.acl[..])
        }
    };
    let users = state.backend.users().await.map_err(crate::errors::s3_error)?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(shown(acl, owner, &users)),
        owner: Some(shown_owner(owner, &users)),
        ..GetObjectAclOutput::default()
    }))
}
