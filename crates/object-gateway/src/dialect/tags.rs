//! Tags of objects.

use std::collections::BTreeMap;

use http::StatusCode;
use http::header::HeaderMap;
use object_proto::{FlawedTags, ObjectTags};
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput,
    GetObjectTaggingOutput, PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::state::{
    State, bucket_of, made_version, place_of, read_error, rights_of, shown_version, target_of,
    version_id_of,
};
use crate::actions::Action;
use crate::errors::coded;
use crate::facts::{Facts, TAGGING};
use crate::query::Query;
use crate::rights::AskedObject;

fn invalid_tag(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidTag, message)
}

fn checked(tags: BTreeMap<String, String>) -> S3Result<ObjectTags> {
    ObjectTags::new(tags).map_err(|flaw| match flaw {
        FlawedTags::Many => {
            coded("BadRequest", StatusCode::BAD_REQUEST, "Object tags cannot be greater than 10")
        }
        FlawedTags::Name => invalid_tag("The TagKey you have provided is invalid"),
        FlawedTags::Value => invalid_tag("The TagValue you have provided is invalid"),
    })
}

/// Adds a tag, each of which has a name of its own.
fn add(tags: &mut BTreeMap<String, String>, name: String, value: String) -> S3Result<()> {
    match tags.insert(name, value) {
        None => Ok(()),
        Some(_) => Err(invalid_tag("Cannot provide multiple Tags with the same key")),
    }
}

/// The tags that headers give an object: names and values as in a query.
pub fn tags_of(headers: &HeaderMap) -> S3Result<ObjectTags> {
    let Some(header) = headers.get(TAGGING) else { return Ok(ObjectTags::default()) };
    let flawed = || {
        let message = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL \
                       query parameters without tag name duplicates.";
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    };
    let text = header.to_str().map_err(|_| flawed())?;
    let mut tags = BTreeMap::new();
    for (name, value) in Query::parse(text).iter() {
        if tags.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(flawed());
        }
    }
    checked(tags)
}

/// Reads tags.
pub async fn get_tags(
    state: &State,
    request: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let info = state.backend.head(target, version).await;
    let info = info.map_err(|error| read_error(&request, error))?;
    let tag = |(name, value): (&str, &str)| Tag {
        key: Some(name.to_owned()),
        value: Some(value.to_owned()),
    };
    let version_id = shown_version(bucket_of(&request)?, &info);
    let tag_set = info.object.facts.tags.iter().map(tag).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id }))
}

/// Gives an object other tags.
pub async fn put_tags(
    state: &State,
    request: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let mut tags = BTreeMap::new();
    for Tag { key, value } in &request.input.tagging.tag_set {
        let (Some(key), Some(value)) = (key, value) else {
            return Err(S3Error::new(S3ErrorCode::MalformedXML));
        };
        add(&mut tags, key.clone(), value.clone())?;
    }
    let tags = checked(tags)?;
    let action = if version.is_some() { Action::PUT_VERSION_TAGS } else { Action::PUT_TAGS };
    let object = AskedObject { backend: &*state.backend, target: &target, version };
    let (rights, facts) = (rights_of(&request)?, Facts::of(&request).giving(&tags));
    rights.check_object(&[action], place_of(&request)?, object, facts).await?;
    let set = state.backend.set_tags(target, version, tags).await;
    let set = set.map_err(|error| read_error(&request, error))?;
    Ok(S3Response::new(PutObjectTaggingOutput { version_id: made_version(&set) }))
}

/// Takes an object's tags away.
pub async fn delete_tags(
    state: &State,
    request: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let target = target_of(&request, &request.input.key)?;
    let version = version_id_of(request.input.version_id.as_deref())?;
    let none = ObjectTags::default();
    let set = state.backend.set_tags(target, version, none).await;
    let set = set.map_err(|error| read_error(&request, error))?;
    Ok(S3Response::new(DeleteObjectTaggingOutput { version_id: made_version(&set) }))
}
