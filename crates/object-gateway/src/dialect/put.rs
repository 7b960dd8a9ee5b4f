//! PutObject.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::HeaderMap;
use object_proto::limits::PUT_MAX;
use object_proto::{ChecksumKind, Conditions, Etag, Metadata, ObjectFacts, Tags, Upload};
use s3s::dto::{ChecksumType, ETag, ETagCondition, PutObjectInput, PutObjectOutput, StreamingBlob};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, StdError};

use super::state::{State, caller_of, context_of, not_implemented, target_of};
use crate::body::sha256_mismatch;
use crate::context::RequestContext;
use crate::digest::{Digest, Expected, Found, text_of};
use crate::errors::{refused, s3_error};
use crate::limits::PUT_BUFFER;
use crate::reply::Refusal;

/// Headers of an object, apart from its user's.
pub const SYSTEM_HEADERS: [&str; 6] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];
/// Headers that ask for what is not there, with S3's name of it.
const NOT_IMPLEMENTED: [(&str, &str); 8] = [
    ("x-amz-copy-source-server-side-encryption", "Server-side encryption"),
    ("x-amz-server-side-encryption", "Server-side encryption"),
    ("x-amz-tagging", "Tagging"),
    ("x-amz-object-lock-", "Object lock"),
    ("x-amz-website-redirect-location", "Website redirection"),
    ("x-amz-write-offset-bytes", "Appending to an object"),
    ("x-amz-mfa", "Multi-factor authentication"),
    ("x-amz-if-match-", "A condition on time or size"),
];

/// Puts an object.
pub async fn put_object(
    state: &State,
    mut request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let context = context_of(&request)?.clone();
    let len = content_len(&context)?;
    let metadata = metadata_of(&request.headers, request.input.metadata.as_ref())?;
    let conditions =
        conditions_of(request.input.if_match.as_ref(), request.input.if_none_match.as_ref());
    let mut expected = Expected::of(&request.headers).map_err(refused)?;
    let owner = caller_of(&request)?.id.clone();
    context.begin_content();

    let mut upload = state.backend.put(target, Some(len)).await.map_err(s3_error)?;
    let kind = expected.kind().unwrap_or(ChecksumKind::Crc64Nvme);
    let body = request.input.body.take();
    let found = receive(body, len, Digest::new(kind), &mut *upload, &context).await?;
    check_received(&request, &mut expected, &found)?;

    let facts = ObjectFacts {
        etag: found.etag(),
        checksums: vec![found.checksum.clone()],
        metadata,
        owner,
    };
    upload.commit(facts, conditions).await.map_err(s3_error)?;
    Ok(S3Response::new(output(&found)))
}

/// Bytes of the content that the request has; one put has 5 GiB at most.
pub fn content_len(context: &RequestContext) -> S3Result<u64> {
    let len = context.content_len();
    let len = len.ok_or_else(|| S3Error::new(S3ErrorCode::MissingContentLength))?;
    match len > PUT_MAX {
        false => Ok(len),
        true => Err(S3Error::with_message(
            S3ErrorCode::EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed size",
        )),
    }
}

/// Compares what was received with what the request says of it, before the body and behind it.
pub fn check_received<T>(
    request: &S3Request<T>,
    expected: &mut Expected,
    found: &Found,
) -> S3Result<()> {
    let trailers = request.trailing_headers.as_ref().and_then(|trailers| trailers.take());
    expected.take_trailers(trailers.as_ref()).map_err(refused)?;
    expected.check(found).map_err(refused)
}

/// Sends the body to the upload, in pieces, and digests it.
pub async fn receive(
    body: Option<StreamingBlob>,
    len: u64,
    mut digest: Digest,
    upload: &mut dyn Upload,
    context: &RequestContext,
) -> S3Result<Found> {
    let incomplete = || {
        S3Error::with_message(
            S3ErrorCode::IncompleteBody,
            "The request body does not have the length that its headers say",
        )
    };
    let capacity = usize::try_from(len).unwrap_or(PUT_BUFFER).min(PUT_BUFFER);
    let mut buffer = Vec::with_capacity(capacity);
    let mut received = 0u64;
    let mut body = body;
    while let Some(body) = &mut body
        && let Some(data) = body.next().await
    {
        let mut data: Bytes = data.map_err(|error| body_error(&error, context))?;
        received += data.len() as u64;
        if received > len {
            return Err(incomplete());
        }
        digest.update(&data);
        while !data.is_empty() {
            let part = data.split_to(data.len().min(PUT_BUFFER - buffer.len()));
            buffer.extend_from_slice(&part);
            if buffer.len() == PUT_BUFFER {
                let left = len - received + data.len() as u64;
                let capacity = usize::try_from(left).unwrap_or(PUT_BUFFER).min(PUT_BUFFER);
                let full = std::mem::replace(&mut buffer, Vec::with_capacity(capacity));
                upload.write(full).await.map_err(s3_error)?;
            }
        }
    }
    if received != len {
        return Err(incomplete());
    }
    if !buffer.is_empty() {
        upload.write(buffer).await.map_err(s3_error)?;
    }
    Ok(digest.finish())
}

/// Why a body ended: what its guard noted, or what s3s found. s3s shows its causes as text only.
fn body_error(error: &StdError, context: &RequestContext) -> S3Error {
    if let Some(refusal) = context.failure() {
        return refused(refusal);
    }
    let text = error.to_string();
    let refusal = match text.rsplit(": ").next().unwrap_or_default() {
        "Sha256Mismatch" => sha256_mismatch(),
        "SignatureMismatch" => Refusal::new(
            "SignatureDoesNotMatch",
            "The signature of a chunk does not match the one that was calculated.",
        ),
        "Incomplete" | "LengthMismatch" => {
            Refusal::new("IncompleteBody", "The body does not have the length that its headers say")
        }
        _ => Refusal::new("InvalidRequest", "The body is not written as its headers say."),
    };
    refused(refusal)
}

/// Refuses headers that ask for what is not there: to pass over them would store an object that is
/// not what its user takes it for.
pub fn check_wishes(headers: &HeaderMap) -> S3Result<()> {
    for (name, value) in headers {
        let name = name.as_str();
        let missing = NOT_IMPLEMENTED.iter().find(|(start, _)| name.starts_with(start));
        // What there is has no tags: a copy of them is one of none.
        let is_none = name == "x-amz-tagging-directive" && value == "COPY";
        if let Some((_, what)) = missing.filter(|_| !is_none) {
            return Err(not_implemented(what));
        }
        let is_owners = value == "private" || value == "bucket-owner-full-control";
        if name.starts_with("x-amz-grant-") || (name == "x-amz-acl" && !is_owners) {
            return Err(S3Error::with_message(
                S3ErrorCode::AccessControlListNotSupported,
                "The bucket does not allow ACLs",
            ));
        }
        if name == "x-amz-storage-class" && value != "STANDARD" {
            return Err(S3Error::with_message(
                S3ErrorCode::InvalidStorageClass,
                "The storage class you specified is not valid",
            ));
        }
    }
    Ok(())
}

/// Headers that the object is served with.
pub fn metadata_of(headers: &HeaderMap, users: Option<&s3s::dto::Metadata>) -> S3Result<Metadata> {
    let mut all = BTreeMap::new();
    for name in SYSTEM_HEADERS {
        let values = headers.get_all(name).iter();
        let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
        let value = match name {
            "content-encoding" => without_aws_chunked(&values),
            _ => values.join(","),
        };
        if !value.is_empty() {
            all.insert(name.to_owned(), value);
        }
    }
    // s3s has decoded what is not ASCII.
    for (name, value) in users.into_iter().flatten() {
        all.insert(format!("{}{name}", Metadata::USER_PREFIX), value.clone());
    }
    Metadata::new(all).map_err(|_| {
        S3Error::with_message(
            S3ErrorCode::MetadataTooLarge,
            "Your metadata headers exceed the maximum allowed metadata size",
        )
    })
}

/// `aws-chunked` is how the body was sent, not how the content is encoded.
fn without_aws_chunked(values: &[&str]) -> String {
    let encodings = values.iter().flat_map(|value| value.split(',')).map(str::trim);
    let kept = encodings.filter(|encoding| !encoding.eq_ignore_ascii_case("aws-chunked"));
    kept.filter(|encoding| !encoding.is_empty()).collect::<Vec<_>>().join(",")
}

/// Conditions on the object that is there.
pub fn conditions_of(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> Conditions {
    let tags = |condition: &ETagCondition| match condition {
        ETagCondition::Any => Tags::Any,
        ETagCondition::ETag(tag) => Tags::Of(vec![Etag::new(tag.value())]),
    };
    Conditions { if_match: if_match.map(tags), if_none_match: if_none_match.map(tags) }
}

fn output(found: &Found) -> PutObjectOutput {
    let text = |kind| (found.checksum.kind == kind).then(|| text_of(&found.checksum));
    PutObjectOutput {
        e_tag: Some(ETag::Strong(found.etag().as_str().to_owned())),
        checksum_crc32: text(ChecksumKind::Crc32),
        checksum_crc32c: text(ChecksumKind::Crc32c),
        checksum_crc64nvme: text(ChecksumKind::Crc64Nvme),
        checksum_sha1: text(ChecksumKind::Sha1),
        checksum_sha256: text(ChecksumKind::Sha256),
        checksum_type: Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
        ..PutObjectOutput::default()
    }
}
