//! CopyObject and UploadPartCopy: the gateway reads the source and writes the copy, piece by piece.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future;
use http::header::HeaderMap;
use object_proto::limits::PUT_MAX;
use object_proto::{
    ChecksumKind, Conditions, Content, Metadata, ObjectFacts, ObjectInfo, ObjectKey, ObjectTags,
    Target, Upload, VersionId,
};
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, CopySource, ETag,
    MetadataDirective, TaggingDirective, UploadPartCopyInput, UploadPartCopyOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::conditions::{ReadConditions, Verdict, precondition_failed};
use super::lifecycle::show_made;
use super::object_acl::acl_of_new;
use super::object_lock::lock_of_new;
use super::put::{conditions_of_headers, metadata_of, of_call};
use super::settings::settings_of;
use super::sse::SOURCE;
use super::state::{
    State, checksum_type, hidden_error, made_version, modified, not_implemented, owner_of,
    part_number_of, place_of, rights_of, slow_down, target_of, version_id_of,
};
use super::tags::tags_of;
use super::upload::{kind_of_part, part_facts, under_way, upload_id_of};
use super::wishes::{check_features, check_wishes};
use crate::actions::Action;
use crate::digest::{Digest, Found, kind_of_name};
use crate::errors::{internal, refused, s3_error};
use crate::facts::Facts;
use crate::limits::{COPY_BUFFERS, GET_PIECE};
use crate::quota::{check_room, check_room_now};
use crate::rights::{AskedObject, Ruled};

/// The conditions on a source: s3s has a type of input for each operation, with the same fields.
macro_rules! source_conditions {
    ($input:expr) => {
        ReadConditions {
            if_match: $input.copy_source_if_match.as_ref(),
            if_none_match: $input.copy_source_if_none_match.as_ref(),
            if_modified_since: $input.copy_source_if_modified_since.as_ref(),
            if_unmodified_since: $input.copy_source_if_unmodified_since.as_ref(),
        }
    };
}

/// Copies an object.
pub async fn copy_object(
    state: &State,
    request: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    check_features(&request.headers)?;
    let input = &request.input;
    let target = target_of(&request, &input.key)?;
    let keeps_metadata = match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
        None | Some(MetadataDirective::COPY) => true,
        Some(MetadataDirective::REPLACE) => false,
        Some(_) => return Err(invalid_argument("Unknown metadata directive.")),
    };
    let asked = input.checksum_algorithm.as_ref();
    let asked = asked.map(|name| kind_of_name(name.as_str())).transpose().map_err(refused)?;
    let metadata = match keeps_metadata {
        true => Metadata::default(),
        false => metadata_of(&request.headers, input.metadata.as_ref())?,
    };
    let keeps_tags = match input.tagging_directive.as_ref().map(TaggingDirective::as_str) {
        None | Some(TaggingDirective::COPY) => true,
        Some(TaggingDirective::REPLACE) => false,
        Some(_) => return Err(invalid_argument("Unknown tagging directive.")),
    };
    let tags = tags_of(&request.headers)?;
    let conditions = conditions_of_headers(&request.headers)?;
    let asked_source = AskedSource::find(state, &request, &input.copy_source).await?;
    let (place, version) = (asked_source.target.clone(), asked_source.version);
    // An older version may be copied over the current one: so it comes back.
    let is_same = keeps_metadata && asked.is_none() && !names_encryption(&request.headers);
    if place == target && version.is_none() && is_same {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without \
             changing the object's metadata, storage class, website redirect location or \
             encryption attributes.",
        ));
    }
    let owner = owner_of(&request)?;
    let acl = acl_of_new(state, &request, &owner).await?;
    // The source's lock stays the source's.
    let lock = lock_of_new(&request)?;
    let ask = (&request.headers, &request.extensions);
    let by_default = &settings_of(&request)?.encryption;
    let sealing = state.sealer.of_new(ask, by_default, &target).await?;
    let source = asked_source.open(state, &request, &source_conditions!(input)).await?;
    let own_tags = &source.info.object.facts.tags;
    if keeps_tags && own_tags.iter().next().is_some() {
        asked_source.check_tags(state, &request, (&target, own_tags)).await?;
    }
    // What has a name of its own is named.
    let source_version = source.info.has_id.then(|| source.info.version().to_string());
    let size = source.info.object.size;
    check_size(size)?;
    let kind = asked.unwrap_or_else(|| source.kind());
    check_room(&request, 1, size)?;

    let made_at = target.clone();
    let plan = sealing.plan(Some(size), settings_of(&request)?);
    let upload = state.backend.put(target, plan).await.map_err(s3_error)?;
    let mut upload = sealing.upload(upload, 0)?;
    let found = source.copy(state, 0..size, kind, &mut *upload).await?;
    check_room_now(&*state.backend, &request, 1, size).await?;
    let mut facts = ObjectFacts {
        etag: found.etag(),
        checksums: vec![found.checksum.clone()],
        metadata: if keeps_metadata { source.info.object.facts.metadata } else { metadata },
        tags: if keeps_tags { source.info.object.facts.tags } else { tags },
        owner,
        acl,
        lock,
        encryption: sealing.envelope(),
    };
    let conditions = of_call(conditions, &request, &facts)?;
    facts.etag = sealing.etag(&found, &request.headers);
    let etag = ETag::Strong(facts.etag.as_str().to_owned());
    let committed = upload.commit(facts, conditions).await.map_err(s3_error)?;
    let mut result = CopyObjectResult {
        e_tag: Some(etag),
        last_modified: Some(modified(committed.stamp)),
        checksum_type: Some(checksum_type(false)),
        ..CopyObjectResult::default()
    };
    show_checksums!(result, [&found.checksum]);
    let output = CopyObjectOutput {
        copy_object_result: Some(result),
        version_id: made_version(&committed),
        copy_source_version_id: source_version,
        expiration: show_made(state, &request, &made_at, committed.stamp).await?,
        ..CopyObjectOutput::default()
    };
    Ok(S3Response::with_headers(output, sealing.headers()?))
}

/// A request says how the copy is encrypted.
fn names_encryption(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with("x-amz-server-side-encryption"))
}

/// Copies an object, or a range of it, to a part of an upload.
pub async fn copy_part(
    state: &State,
    request: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    check_wishes(&request.headers)?;
    let input = &request.input;
    let target = target_of(&request, &input.key)?;
    let number = part_number_of(input.part_number)?;
    let id = upload_id_of(&input.upload_id)?;
    let range = input.copy_source_range.as_deref().map(range_of).transpose()?;
    let asked_source = AskedSource::find(state, &request, &input.copy_source).await?;
    let info = under_way(state, &target, id).await?;
    let kind = kind_of_part(&info, None)?;
    let envelope = info.upload.encryption.as_ref();
    let ask = (&request.headers, &request.extensions);
    let sealing = state.sealer.of_part(ask, &target, envelope).await?;
    let source = asked_source.open(state, &request, &source_conditions!(input)).await?;
    // What has a name of its own is named.
    let source_version = source.info.has_id.then(|| source.info.version().to_string());
    let size = source.info.object.size;
    let range = match range {
        Some(range) if range.end > size => {
            return Err(S3Error::with_message(
                S3ErrorCode::InvalidRange,
                format!("Range specified is not valid for source object of size: {size}"),
            ));
        }
        Some(range) => range,
        None => 0..size,
    };
    let len = range.end - range.start;
    check_size(len)?;
    check_room(&request, 0, len)?;

    let plan = sealing.plan(Some(len), settings_of(&request)?);
    let part = state.backend.put_part(target, id, number, plan);
    let mut part = sealing.upload(part.await.map_err(s3_error)?, number.get())?;
    let found = source.copy(state, range, kind, &mut *part).await?;
    check_room_now(&*state.backend, &request, 0, len).await?;
    let facts = part_facts(&found, &sealing);
    let etag = ETag::Strong(facts.etag.as_str().to_owned());
    let committed = part.commit(facts, Conditions::default());
    let stamp = committed.await.map_err(s3_error)?.stamp;
    let mut result = CopyPartResult {
        e_tag: Some(etag),
        last_modified: Some(modified(stamp)),
        ..CopyPartResult::default()
    };
    show_checksums!(result, [&found.checksum]);
    let output = UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: source_version,
        ..UploadPartCopyOutput::default()
    };
    Ok(S3Response::with_headers(output, sealing.headers()?))
}

fn check_size(len: u64) -> S3Result<()> {
    match len <= PUT_MAX {
        true => Ok(()),
        false => Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            format!(
                "The specified copy source is larger than the maximum allowable size for a copy \
                 source: {PUT_MAX}"
            ),
        )),
    }
}

/// A range of a source: both ends are named, as in S3.
fn range_of(text: &str) -> S3Result<Range<u64>> {
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { digits.parse::<u64>().ok() } else { None }
    };
    let ends = text.strip_prefix("bytes=").and_then(|ends| ends.split_once('-'));
    let ends = ends.and_then(|(first, last)| number(first).zip(number(last)?.checked_add(1)));
    ends.filter(|(start, end)| start < end).map(|(start, end)| start..end).ok_or_else(|| {
        invalid_argument(
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first \
             and last are the zero-based offsets of the first and last bytes to copy",
        )
    })
}

fn invalid_argument(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

/// A source that the caller may read.
struct AskedSource {
    bucket: Arc<Ruled>,
    target: Target,
    version: Option<VersionId>,
    /// The version as the request names it.
    named: Option<String>,
}

impl AskedSource {
    async fn find<T>(
        state: &State,
        request: &S3Request<T>,
        source: &CopySource,
    ) -> S3Result<AskedSource> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(not_implemented("An access point as a source"));
        };
        let named = version_id.as_deref().map(str::to_owned);
        let version = version_id_of(named.as_deref())?;
        let key = ObjectKey::new(key.to_string()).map_err(|error| match key.len() {
            0 => invalid_argument("The source has no key"),
            _ => S3Error::with_message(S3ErrorCode::KeyTooLongError, error.0),
        })?;
        let expected = request.headers.get("x-amz-source-expected-bucket-owner");
        let bucket = state.places.find(bucket, expected).await?;
        let target = Target { bucket: bucket.view.bucket.id, key };
        let asked = AskedSource { bucket, target, version, named };
        let action = if version.is_some() { Action::GET_VERSION } else { Action::GET };
        asked.check(state, request, action).await?;
        Ok(asked)
    }

    fn facts<'a, T>(&self, request: &'a S3Request<T>) -> Facts<'a> {
        Facts::of(request).of_version(self.named.as_deref())
    }

    async fn check<T>(
        &self,
        state: &State,
        request: &S3Request<T>,
        action: Action,
    ) -> S3Result<()> {
        let (target, version) = (&self.target, self.version);
        let object = AskedObject { backend: &*state.backend, target, version };
        let facts = self.facts(request);
        rights_of(request)?.check_object(&[action], &self.bucket, object, facts).await
    }

    /// Allows a copy of the source's tags, which the caller reads by it, and gives.
    async fn check_tags<T>(
        &self,
        state: &State,
        request: &S3Request<T>,
        (target, tags): (&Target, &ObjectTags),
    ) -> S3Result<()> {
        let action = match self.version {
            Some(_) => Action::GET_VERSION_TAGS,
            None => Action::GET_TAGS,
        };
        self.check(state, request, action).await?;
        let object = AskedObject { backend: &*state.backend, target, version: None };
        let facts = Facts::of(request).of_operation("CopyObject").giving(tags);
        let actions = [Action::PUT, Action::PUT_WITH_TAGS];
        rights_of(request)?.check_object(&actions, place_of(request)?, object, facts).await
    }

    /// The object, if it is as the conditions want it, and the request has its key.
    async fn open<T>(
        &self,
        state: &State,
        request: &S3Request<T>,
        conditions: &ReadConditions<'_>,
    ) -> S3Result<Source> {
        let found = state.backend.get(self.target.clone(), self.version).await;
        let found = found.map_err(|error| {
            let facts = self.facts(request);
            hidden_error(rights_of(request), &self.bucket, &facts, error)
        })?;
        let ask = (&request.headers, &request.extensions);
        let opening = state.sealer.opening(ask, SOURCE, (&self.target, found.info))?;
        match conditions.decide(&opening.info) {
            Verdict::Holds => {
                let content = state.sealer.content(&opening, found.content).await?;
                Ok(Source { info: opening.info, content })
            }
            Verdict::Failed | Verdict::NotModified => Err(precondition_failed()),
        }
    }
}

/// An object that is copied.
struct Source {
    info: ObjectInfo,
    content: Box<dyn Content>,
}

impl Source {
    /// The checksum that a copy gets when none is asked for: of the source's algorithm.
    fn kind(&self) -> ChecksumKind {
        let own = self.info.object.facts.checksums.first();
        own.map_or(ChecksumKind::Crc64Nvme, |checksum| checksum.kind)
    }

    /// Sends a range of the content to the upload, and digests it. While a piece is written, the
    /// next one is read: the memory for both is claimed once, before the first.
    async fn copy(
        &self,
        state: &State,
        range: Range<u64>,
        kind: ChecksumKind,
        upload: &mut dyn Upload,
    ) -> S3Result<Found> {
        let len = range.end - range.start;
        let buffers = usize::try_from(len).unwrap_or(usize::MAX).min(COPY_BUFFERS);
        let claim = state.budget.claim(buffers, state.claim_time).await;
        let _claim = claim.ok_or_else(slow_down)?;
        let mut digest = Digest::new(kind);
        let mut left = range.clone();
        let mut next = self.read_piece(&mut left).await?;
        while let Some(piece) = next.take() {
            digest.update(&piece);
            let (written, read) =
                future::join(upload.write(piece), self.read_piece(&mut left)).await;
            written.map_err(s3_error)?;
            next = read?;
        }
        let found = digest.finish();
        self.check(&range, &found)?;
        Ok(found)
    }

    /// The next piece of what is left.
    async fn read_piece(&self, left: &mut Range<u64>) -> S3Result<Option<Vec<u8>>> {
        if left.is_empty() {
            return Ok(None);
        }
        let end = left.end.min(left.start.saturating_add(GET_PIECE as u64));
        let len = (end - left.start) as usize;
        let piece = self.content.read(left.start, len).await.map_err(s3_error)?;
        if piece.len() != len {
            tracing::warn!("a piece of a source has another length than the object says");
            return Err(internal());
        }
        left.start = end;
        Ok(Some(piece))
    }

    /// A copy of all has the source's checksum: else it is not kept.
    fn check(&self, range: &Range<u64>, found: &Found) -> S3Result<()> {
        let (own, copied) = (&self.info.object, &found.checksum);
        let is_same = |checksum: &object_proto::Checksum| {
            checksum.kind != copied.kind || checksum.parts > 0 || checksum.value == copied.value
        };
        if *range == (0..own.size) && !own.facts.checksums.iter().all(is_same) {
            tracing::warn!("a source has other bytes than its checksum says: it was not copied");
            return Err(internal());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_a_source_has_both_ends() {
        assert_eq!(range_of("bytes=0-0").ok(), Some(0..1));
        assert_eq!(range_of("bytes=5-10").ok(), Some(5..11));
        let most = format!("bytes=0-{}", u64::MAX);
        for text in [
            "",
            "0-5",
            "bytes=0",
            "bytes=-5",
            "bytes=5-",
            "bytes=5-4",
            "bytes=+1-5",
            "bytes=0-1,3-4",
            &most,
        ] {
            assert!(range_of(text).is_err(), "{text}");
        }
    }
}
