//! DeleteObject and DeleteObjects.

use futures_util::{StreamExt, stream};
use object_proto::limits::KEY_MAX;
use object_proto::{Committed, Conditions, Etag, ObjectKey, Tags, Target, UserId, VersionId};
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    Error, ObjectIdentifier,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::object_lock::may_bypass;
use super::put::conditions_of;
use super::state::{
    State, made_version, not_implemented, place_of, rights_of, target_of, version_id_of,
};
use super::wishes::check_wishes;
use crate::actions::Action;
use crate::digest::Expected;
use crate::errors::{refused, s3_error};
use crate::facts::Facts;
use crate::limits::{DELETE_MAX, DELETES_INFLIGHT};
use crate::rights::{AskedObject, Rights, Ruled};

/// Deletes an object.
pub async fn delete_object(
    state: &State,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    check_wishes(&request.headers)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let target = target_of(&request, &request.input.key)?;
    let conditions = conditions_of(request.input.if_match.as_ref(), None);
    let caller = rights_of(&request)?.id();
    let bypass =
        version.is_some() && may_bypass(&request, &request.input.key, &Facts::of(&request))?;
    let committed = delete(state, (target, version, bypass), caller, conditions).await?;
    // Of a version that was named, that name.
    let version_id = request.input.version_id.or_else(|| made_version(&committed));
    let delete_marker = committed.marker.then_some(true);
    let output = DeleteObjectOutput { delete_marker, version_id, ..DeleteObjectOutput::default() };
    Ok(S3Response::new(output))
}

async fn delete(
    state: &State,
    (target, version, bypass): (Target, Option<VersionId>, bool),
    caller: UserId,
    conditions: Conditions,
) -> S3Result<Committed> {
    let deleted = match version {
        None => state.backend.delete(target, caller, conditions),
        Some(version) => state.backend.delete_version(target, version, conditions, bypass),
    };
    deleted.await.map_err(s3_error)
}

/// Deletes many objects. Each key has an outcome of its own.
pub async fn delete_objects(
    state: &State,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    check_wishes(&request.headers)?;
    // The digest itself was checked as the document came in.
    if !Expected::of(&request.headers).map_err(refused)?.is_given() {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "Missing required header for this request: Content-MD5 OR x-amz-checksum-*",
        ));
    }
    let delete = &request.input.delete;
    let (rights, place) = (rights_of(&request)?, place_of(&request)?);
    let bulk = Bulk { state, request: &request, rights, place };
    if delete.objects.is_empty() || delete.objects.len() > DELETE_MAX {
        return Err(S3Error::with_message(
            S3ErrorCode::MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published \
             schema",
        ));
    }
    let is_quiet = delete.quiet == Some(true);
    let outcomes = stream::iter(0..delete.objects.len()).map(|at| bulk.delete(&delete.objects[at]));
    let outcomes: Vec<_> = outcomes.buffered(DELETES_INFLIGHT).collect().await;
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for (object, outcome) in delete.objects.iter().zip(outcomes) {
        let (key, version_id) = (Some(shown(&object.key)), object.version_id.clone());
        match outcome {
            Ok(_) if is_quiet => {}
            Ok(committed) => {
                let marker = made_version(&committed).filter(|_| committed.marker);
                deleted.push(DeletedObject {
                    key,
                    version_id,
                    delete_marker: committed.marker.then_some(true),
                    delete_marker_version_id: marker,
                });
            }
            Err(error) => errors.push(Error {
                code: Some(error.code().as_str().to_owned()),
                key,
                message: error.message().map(str::to_owned),
                version_id,
            }),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        ..DeleteObjectsOutput::default()
    }))
}

/// A bulk delete: each key is allowed by itself.
struct Bulk<'a> {
    state: &'a State,
    request: &'a S3Request<DeleteObjectsInput>,
    rights: &'a Rights,
    place: &'a Ruled,
}

/// A key as it is sent back: one that no object has may be as long as the document.
fn shown(key: &str) -> String {
    key[..key.floor_char_boundary(KEY_MAX)].to_owned()
}

impl Bulk<'_> {
    async fn delete(&self, object: &ObjectIdentifier) -> S3Result<Committed> {
        let version = version_id_of(object.version_id.as_deref())?;
        if object.last_modified_time.is_some() || object.size.is_some() {
            return Err(not_implemented("A condition on time or size"));
        }
        let key = ObjectKey::new(object.key.as_str()).map_err(|error| match object.key.len() {
            0 => S3Error::with_message(S3ErrorCode::UserKeyMustBeSpecified, error.0),
            _ => S3Error::with_message(S3ErrorCode::KeyTooLongError, "Your key is too long"),
        })?;
        let action = if version.is_some() { Action::DELETE_VERSION } else { Action::DELETE };
        let target = Target { bucket: self.place.view.bucket.id, key };
        let facts = || Facts::of(self.request).of_version(object.version_id.as_deref());
        let asked = AskedObject { backend: &*self.state.backend, target: &target, version };
        self.rights.check_object(&[action], self.place, asked, facts()).await?;
        let if_match = object.e_tag.as_ref().map(|tag| match tag.value() {
            "*" => Tags::Any,
            value => Tags::Of(vec![Etag::new(value)]),
        });
        let conditions = Conditions { if_match, ..Conditions::default() };
        let bypass = may_bypass(self.request, &object.key, &facts())?;
        delete(self.state, (target, version, bypass), self.rights.id(), conditions).await
    }
}
