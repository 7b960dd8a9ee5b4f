//! CompleteMultipartUpload.

use std::collections::BTreeMap;

use http::header::HeaderMap;
use object_proto::limits::{LIST_MAX, OBJECT_MAX, PART_MIN};
use object_proto::{
    Checksum, ChecksumPlan, Completion, Conditions, Error, Etag, Part, PartNumber, PartsRequest,
    Stamp, Target, UploadId, VersionId,
};
use s3s::dto::{
    ChecksumType, CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart, ETag,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::lifecycle::show_made;
use super::put::conditions_of;
use super::sealer::upload_headers;
use super::state::{State, bucket_of, checksum_type, made_version, part_number_of, target_of};
use super::upload::{parts_of_content, upload_id_of};
use super::wishes::check_wishes;
use crate::base64;
use crate::digest::{bad_checksum, checksum_of_object, header_of, kind_mismatch};
use crate::errors::{refused, s3_error};
use crate::facts::Client;
use crate::limits::COMPLETE_TRIES;
use crate::parts;

/// A part as a request names it.
struct Named {
    number: PartNumber,
    etag: String,
    /// Values of checksums, as the request has them.
    checksums: Vec<(object_proto::ChecksumKind, String)>,
}

impl Named {
    fn of(part: CompletedPart) -> S3Result<Named> {
        use object_proto::ChecksumKind as Kind;
        let (Some(number), Some(etag)) = (part.part_number, part.e_tag) else {
            return Err(S3Error::new(S3ErrorCode::MalformedXML));
        };
        let texts = [
            (Kind::Crc32, part.checksum_crc32),
            (Kind::Crc32c, part.checksum_crc32c),
            (Kind::Crc64Nvme, part.checksum_crc64nvme),
            (Kind::Sha1, part.checksum_sha1),
            (Kind::Sha256, part.checksum_sha256),
        ];
        let checksums = texts.into_iter().filter_map(|(kind, text)| Some((kind, text?))).collect();
        Ok(Named { number: part_number_of(number)?, etag: etag.into_value(), checksums })
    }

    /// The part is the one that is meant.
    fn is(&self, part: &Part) -> bool {
        self.etag == part.etag.as_str()
            && self.checksums.iter().all(|(kind, text)| {
                let mut own = part.checksums.iter();
                own.any(|own| own.kind == *kind && base64::encode(&own.value) == *text)
            })
    }
}

/// The object that a completion made.
struct Made {
    etag: Etag,
    checksums: Vec<Checksum>,
    /// The commit.
    stamp: Stamp,
    /// The version that it is, in a bucket with versions.
    version: Option<String>,
    /// Of its encryption.
    headers: HeaderMap,
}

/// How an attempt at a completion ended.
enum Attempt {
    Made(Made),
    /// The upload has changed since it was looked at.
    Changed(Error),
}

/// Makes an object of an upload's parts.
pub async fn complete_upload(
    state: &State,
    mut request: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let id = upload_id_of(&request.input.upload_id)?;
    let wish = Wish::of(&mut request)?;
    let mut made = Err(Error::NoSuchUpload);
    for _ in 0..COMPLETE_TRIES {
        match wish.attempt(state, &target, id).await? {
            Attempt::Made(object) => {
                made = Ok(object);
                break;
            }
            Attempt::Changed(error) => made = Err(error),
        }
    }
    let made = made.map_err(s3_error)?;
    let host = request.headers.get("host").and_then(|host| host.to_str().ok());
    let path = request.uri.path();
    let scheme = request.extensions.get::<Client>().map_or("http", |client| client.scheme());
    let expiration = show_made(state, &request, &target, made.stamp).await?;
    let mut output = CompleteMultipartUploadOutput {
        expiration,
        location: Some(
            host.map_or_else(|| path.to_owned(), |host| format!("{scheme}://{host}{path}")),
        ),
        bucket: Some(bucket_of(&request)?.name.as_str().to_owned()),
        key: Some(request.input.key),
        e_tag: Some(ETag::Strong(made.etag.as_str().to_owned())),
        version_id: made.version.clone(),
        checksum_type: made.checksums.first().map(|checksum| checksum_type(checksum.parts > 0)),
        ..CompleteMultipartUploadOutput::default()
    };
    show_checksums!(output, &made.checksums);
    Ok(S3Response::with_headers(output, made.headers))
}

/// What a request wants.
struct Wish {
    parts: Vec<Named>,
    /// The tag of an object of these parts; `None` where a part's tag is none.
    etag: Option<Etag>,
    checksum: Option<Checksum>,
    checksum_type: Option<ChecksumType>,
    size: Option<i64>,
    conditions: Conditions,
}

impl Wish {
    fn of(request: &mut S3Request<CompleteMultipartUploadInput>) -> S3Result<Wish> {
        let input = &mut request.input;
        let named = input.multipart_upload.take().and_then(|named| named.parts).unwrap_or_default();
        if named.is_empty() {
            return Err(S3Error::new(S3ErrorCode::MalformedXML));
        }
        let named: Vec<Named> = named.into_iter().map(Named::of).collect::<S3Result<_>>()?;
        if !named.is_sorted_by(|one, next| one.number < next.number) {
            return Err(S3Error::with_message(
                S3ErrorCode::InvalidPartOrder,
                "The list of parts was not in ascending order. The parts list must be specified in \
                 order by part number.",
            ));
        }
        Ok(Wish {
            etag: parts::etag_of(named.iter().map(|part| part.etag.as_str())),
            parts: named,
            checksum: checksum_of_object(&request.headers).map_err(refused)?,
            checksum_type: input.checksum_type.take(),
            size: input.mpu_object_size,
            conditions: conditions_of(input.if_match.as_ref(), input.if_none_match.as_ref()),
        })
    }

    async fn attempt(&self, state: &State, target: &Target, id: UploadId) -> S3Result<Attempt> {
        let info = state.backend.upload(target.clone(), id).await.map_err(s3_error)?;
        let encryption = info.upload.encryption.as_ref();
        let headers = upload_headers(encryption)?;
        if let Some(end) = info.end {
            // A repeated request is answered as the first one.
            return match self.etag.as_ref() == Some(&end.etag) {
                true => {
                    let id = VersionId::Of { stamp: end.stamp, nonce: id.stamp.get() };
                    // It is not remembered whether it got one, and it may be gone.
                    let there = state.backend.head(target.clone(), Some(id)).await;
                    let version = there.is_ok().then(|| id.to_string());
                    let (etag, checksums) = (end.etag, end.checksums);
                    let stamp = end.stamp;
                    Ok(Attempt::Made(Made { etag, checksums, stamp, version, headers }))
                }
                false => Err(s3_error(Error::NoSuchUpload)),
            };
        }
        let parts = match self.find_parts(state, (target, id), encryption.is_some()).await {
            Ok(parts) => parts,
            Err(error) => return changed(error),
        };
        let (made, completion) = self.decide(info.upload.checksum, &parts, id)?;
        let conditions = self.conditions.clone();
        match state.backend.complete_upload(target.clone(), completion, conditions).await {
            Ok(committed) => {
                let version = made_version(&committed);
                let stamp = committed.stamp;
                Ok(Attempt::Made(Made { stamp, version, headers, ..made }))
            }
            Err(error) => changed(error),
        }
    }

    /// The upload's parts between the first and the last one named.
    async fn find_parts(
        &self,
        state: &State,
        (target, upload): (&Target, UploadId),
        is_encrypted: bool,
    ) -> Result<BTreeMap<PartNumber, Part>, Error> {
        let mut found = BTreeMap::new();
        let first = self.parts.first().map_or(0, |part| part.number.get() - 1);
        let last = self.parts.last().map_or(0, |part| part.number.get());
        let mut after = first;
        while after < last {
            let ask = PartsRequest { target: target.clone(), upload, after, limit: LIST_MAX };
            let page = parts_of_content(state.backend.parts(ask).await, is_encrypted)?;
            let Some(end) = page.parts.last().map(|part| part.number.get()) else { break };
            found.extend(page.parts.into_iter().map(|part| (part.number, part)));
            if !page.more {
                break;
            }
            after = end;
        }
        Ok(found)
    }

    /// Decides whether the parts make an object, and which.
    fn decide(
        &self,
        plan: Option<ChecksumPlan>,
        found: &BTreeMap<PartNumber, Part>,
        upload: UploadId,
    ) -> S3Result<(Made, Completion)> {
        let invalid_part =
            |number: PartNumber| s3_error(Error::NoSuchPart { number: number.get() });
        let mut parts = Vec::with_capacity(self.parts.len());
        for named in &self.parts {
            let part = found.get(&named.number).filter(|part| named.is(part));
            parts.push(part.ok_or_else(|| invalid_part(named.number))?);
        }
        let (_, first) =
            parts.split_last().ok_or_else(|| S3Error::new(S3ErrorCode::MalformedXML))?;
        if first.iter().any(|part| part.size < PART_MIN) {
            return Err(S3Error::with_message(
                S3ErrorCode::EntityTooSmall,
                "Your proposed upload is smaller than the minimum allowed size",
            ));
        }
        // 10,000 parts of 5 GiB at most: no overflow.
        let size: u64 = parts.iter().map(|part| part.size).sum();
        if size > OBJECT_MAX {
            return Err(S3Error::with_message(
                S3ErrorCode::EntityTooLarge,
                "Your proposed upload exceeds the maximum allowed size",
            ));
        }
        self.check_size(size)?;
        let Some(etag) = self.etag.clone() else { return Err(invalid_part(parts[0].number)) };
        let checksum = self.checksum_of(plan, &parts)?;
        let checksums = checksum.into_iter().collect();
        let (version, headers) = (None, HeaderMap::new());
        let stamp = Stamp::default();
        let made = Made { etag: etag.clone(), checksums, stamp, version, headers };
        let completion = Completion {
            upload,
            parts: parts.iter().map(|part| (part.number, part.data_id)).collect(),
            etag,
            checksums: made.checksums.clone(),
        };
        Ok((made, completion))
    }

    fn check_size(&self, size: u64) -> S3Result<()> {
        match self.size {
            Some(wanted) if u64::try_from(wanted) != Ok(size) => Err(S3Error::with_message(
                S3ErrorCode::InvalidRequest,
                format!(
                    "The provided 'x-amz-mp-object-size' header value {wanted} does not match what \
                     was computed: {size}"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The object's checksum, if it is what the request says.
    fn checksum_of(
        &self,
        plan: Option<ChecksumPlan>,
        parts: &[&Part],
    ) -> S3Result<Option<Checksum>> {
        let invalid = |message: String| S3Error::with_message(S3ErrorCode::InvalidRequest, message);
        let composite = plan.is_some_and(|plan| plan.composite);
        let own_type = checksum_type(composite);
        if self.checksum_type.as_ref().is_some_and(|wanted| *wanted != own_type) {
            let own_type = own_type.as_str();
            return Err(invalid(format!(
                "The upload was created using the {own_type} checksum mode. The complete request \
                 must use the same checksum mode."
            )));
        }
        let asked = self.checksum.as_ref().map(|checksum| checksum.kind);
        let found = parts::checksum_of(plan, asked, parts);
        let Some(wanted) = &self.checksum else { return Ok(found) };
        let kind = plan.map(|plan| plan.kind).or(found.as_ref().map(|found| found.kind));
        match (&found, kind) {
            (Some(found), _) if found.kind == wanted.kind => {
                let is_count = wanted.parts == 0 || wanted.parts == found.parts;
                if !is_count || found.value != wanted.value {
                    return Err(refused(bad_checksum(wanted.kind)));
                }
            }
            (_, Some(kind)) if kind != wanted.kind => {
                return Err(refused(kind_mismatch(kind, wanted.kind)));
            }
            _ => {
                let name = header_of(wanted.kind);
                return Err(invalid(format!("{name} was sent, but not with each part.")));
            }
        }
        Ok(found)
    }
}

fn changed(error: Error) -> S3Result<Attempt> {
    match error {
        Error::NoSuchPart { .. } | Error::NoSuchUpload => Ok(Attempt::Changed(error)),
        error => Err(s3_error(error)),
    }
}
