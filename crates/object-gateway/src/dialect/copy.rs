//! CopyObject and UploadPartCopy: the gateway reads the source, and puts what it has read.

use std::ops::Range;

use http::StatusCode;
use object_proto::limits::PUT_MAX;
use object_proto::{
    Bucket, BucketName, Checksum, ChecksumKind, Conditions, Found as Source, Metadata, ObjectFacts,
    ObjectKey, Target, Upload, User,
};
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, CopySource, ETag,
    ETagCondition, MetadataDirective, Timestamp, UploadPartCopyInput, UploadPartCopyOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::get::holds;
use super::list::type_of;
use super::multipart::with_checksums;
use super::multipart::{kind_named, open_upload, part_number, source_too_large, upload_id};
use super::put::{check_wishes, conditions_of, metadata_of};
use super::state::{State, caller_of, check_version, modified, not_implemented, target_of};
use crate::auth::{denied, may_use};
use crate::digest::{Digest, Found, text_of};
use crate::errors::{coded, internal, s3_error};
use crate::limits::GET_PIECE;

/// What a copy asks of its source.
struct Asked<'a> {
    source: &'a CopySource,
    owner: Option<&'a str>,
    if_match: Option<&'a ETagCondition>,
    if_none_match: Option<&'a ETagCondition>,
    if_modified_since: Option<&'a Timestamp>,
    if_unmodified_since: Option<&'a Timestamp>,
}

/// The same of both operations: s3s has a type of input for each, with the same fields.
macro_rules! asked {
    ($input:ident) => {
        Asked {
            source: &$input.copy_source,
            owner: $input.expected_source_bucket_owner.as_deref(),
            if_match: $input.copy_source_if_match.as_ref(),
            if_none_match: $input.copy_source_if_none_match.as_ref(),
            if_modified_since: $input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: $input.copy_source_if_unmodified_since.as_ref(),
        }
    };
}

impl Asked<'_> {
    /// The source, if the user may read it and it is as the conditions want it.
    async fn open(&self, state: &State, user: &User) -> S3Result<(Target, Source)> {
        let CopySource::Bucket { bucket, key, version_id } = self.source else {
            return Err(not_implemented("An access point"));
        };
        check_version(version_id.as_deref())?;
        let name = BucketName::new(bucket);
        let name = name.map_err(|_| S3Error::new(S3ErrorCode::InvalidBucketName))?;
        let bucket: Bucket = state.backend.bucket(name).await.map_err(s3_error)?;
        let is_other = self.owner.is_some_and(|owner| owner != bucket.owner.as_str());
        if is_other || !may_use(user, &bucket) {
            return Err(denied());
        }
        let too_long =
            |_| S3Error::with_message(S3ErrorCode::KeyTooLongError, "Your key is too long");
        let key = ObjectKey::new(&**key).map_err(too_long)?;
        let target = Target { bucket: bucket.id, key };
        let source = state.backend.get(target.clone()).await.map_err(s3_error)?;
        let matched = holds(&source.info, (self.if_match, self.if_unmodified_since), false)
            && holds(&source.info, (self.if_none_match, self.if_modified_since), true);
        if !matched {
            return Err(S3Error::with_message(
                S3ErrorCode::PreconditionFailed,
                "At least one of the pre-conditions you specified did not hold",
            ));
        }
        Ok((target, source))
    }
}

/// Copies bytes of a source to an upload, and digests them.
async fn transfer(
    state: &State,
    source: &Source,
    mut left: Range<u64>,
    kind: ChecksumKind,
    upload: &mut dyn Upload,
) -> S3Result<Found> {
    let len = (left.end - left.start).min(GET_PIECE as u64) as usize;
    let slow_down =
        || S3Error::with_message(S3ErrorCode::SlowDown, "Please reduce your request rate.");
    let _claim = match len {
        0 => None,
        _ => Some(state.budget.claim(len, state.claim_time).await.ok_or_else(slow_down)?),
    };
    let mut digest = Digest::new(kind);
    while !left.is_empty() {
        let len = (left.end - left.start).min(GET_PIECE as u64) as usize;
        let bytes = source.content.read(left.start, len).await.map_err(s3_error)?;
        if bytes.len() != len {
            return Err(internal());
        }
        digest.update(&bytes);
        left.start += len as u64;
        upload.write(bytes).await.map_err(s3_error)?;
    }
    Ok(digest.finish())
}

/// Copies an object.
pub async fn copy_object(
    state: &State,
    request: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let caller = caller_of(&request)?;
    let input = &request.input;
    let replaces = match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
        None | Some(MetadataDirective::COPY) => false,
        Some(MetadataDirective::REPLACE) => true,
        Some(_) => {
            return Err(S3Error::with_message(
                S3ErrorCode::InvalidArgument,
                "Unknown metadata directive.",
            ));
        }
    };
    let conditions = conditions_of(
        input_condition(&request.headers, "if-match")?.as_ref(),
        input_condition(&request.headers, "if-none-match")?.as_ref(),
    );
    let replaced = metadata_of(&request.headers, input.metadata.as_ref())?;
    let asked = asked!(input);
    let (from, source) = asked.open(state, caller).await?;
    if from == target && !replaces {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without \
             changing the object's metadata, storage class, website redirect location or \
             encryption attributes.",
        ));
    }
    let object = &source.info.object;
    if object.size > PUT_MAX {
        return Err(source_too_large());
    }
    let kind = match &input.checksum_algorithm {
        Some(algorithm) => kind_named(algorithm.as_str())?,
        None => object.facts.checksums.first().map_or(ChecksumKind::Crc64Nvme, |sum| sum.kind),
    };
    let metadata: Metadata = if replaces { replaced } else { object.facts.metadata.clone() };
    let upload = state.backend.put(target, Some(object.size)).await;
    let mut upload = upload.map_err(s3_error)?;
    let found = transfer(state, &source, 0..object.size, kind, &mut *upload).await?;
    let facts = ObjectFacts {
        etag: found.etag(),
        checksums: vec![found.checksum.clone()],
        metadata,
        owner: caller.id.clone(),
    };
    let stamp = upload.commit(facts, conditions).await.map_err(s3_error)?;
    let checksums = std::slice::from_ref(&found.checksum);
    let result = CopyObjectResult {
        e_tag: Some(ETag::Strong(found.etag().as_str().to_owned())),
        last_modified: Some(modified(stamp)),
        checksum_type: Some(type_of(false)),
        ..CopyObjectResult::default()
    };
    Ok(S3Response::new(CopyObjectOutput {
        copy_object_result: Some(with_checksums!(checksums, result)),
        ..CopyObjectOutput::default()
    }))
}

/// A condition on the target, which s3s does not read for copies.
fn input_condition(headers: &http::HeaderMap, name: &str) -> S3Result<Option<ETagCondition>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let invalid = || {
        let message = format!("The value of {name} is not valid");
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    };
    ETagCondition::parse_http_header(value.as_bytes()).map(Some).map_err(|_| invalid())
}

/// Makes a part of an object's bytes.
pub async fn upload_part_copy(
    state: &State,
    request: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let input = &request.input;
    let (id, number) = (upload_id(&input.upload_id)?, part_number(input.part_number)?);
    let info = open_upload(state, &target, id).await?;
    let asked = asked!(input);
    let (_, source) = asked.open(state, caller_of(&request)?).await?;
    let size = source.info.object.size;
    let range = match input.copy_source_range.as_deref() {
        Some(text) => range_of(text, size)?,
        None => 0..size,
    };
    if range.end - range.start > PUT_MAX {
        return Err(source_too_large());
    }
    let plan = info.upload.checksum;
    let kind = plan.map_or(ChecksumKind::Crc64Nvme, |plan| plan.kind);
    let len = range.end - range.start;
    let part = state.backend.put_part(target, id, number, Some(len)).await;
    let mut part = part.map_err(s3_error)?;
    let found = transfer(state, &source, range, kind, &mut *part).await?;
    let facts = ObjectFacts {
        etag: found.etag(),
        checksums: vec![found.checksum.clone()],
        ..ObjectFacts::default()
    };
    let stamp = part.commit(facts, Conditions::default()).await.map_err(s3_error)?;
    let checksums = if plan.is_some() { std::slice::from_ref(&found.checksum) } else { &[] };
    let result = CopyPartResult {
        e_tag: Some(ETag::Strong(found.etag().as_str().to_owned())),
        last_modified: Some(modified(stamp)),
        ..CopyPartResult::default()
    };
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(with_checksums!(checksums, result)),
        ..UploadPartCopyOutput::default()
    }))
}

/// Bytes of a source, by `bytes=FIRST-LAST`.
fn range_of(text: &str, size: u64) -> S3Result<Range<u64>> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| digits)
    };
    let parse = || {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some((first, last))
    };
    let (first, last) = parse().ok_or_else(|| {
        S3Error::with_message(
            S3ErrorCode::InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first \
             and last are the zero-based offsets of the first and last bytes to copy",
        )
    })?;
    match last < size {
        true => Ok(first..last + 1),
        false => Err(coded(
            "InvalidRange",
            StatusCode::RANGE_NOT_SATISFIABLE,
            format!("Range specified is not valid for source object of size: {size}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_its_source() {
        let of = |text: &str| {
            range_of(text, 100).map_err(|error| error.status_code().map(|code| code.as_u16()))
        };
        assert_eq!(of("bytes=0-99"), Ok(0..100));
        assert_eq!(of("bytes=7-7"), Ok(7..8));
        assert_eq!(of("bytes=0-100"), Err(Some(416)));
        for text in ["", "0-1", "bytes=-5", "bytes=5-", "bytes=5-4", "bytes=+1-2", "bytes=0-1,3-4"]
        {
            assert_eq!(of(text), Err(Some(400)), "{text}");
        }
    }
}
