//! CreateMultipartUpload, UploadPart, AbortMultipartUpload.

use object_proto::{
    ChecksumKind, ChecksumPlan, Conditions, Error, NewUpload, ObjectFacts, Target, UploadId,
    UploadInfo,
};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumType,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag, UploadPartInput,
    UploadPartOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::object_acl::acl_of_new;
use super::object_lock::{check_digest, lock_of_new};
use super::put::metadata_of;
use super::receive::Sent;
use super::state::{State, bucket_of, owner_of, part_number_of, shown_plan, target_of};
use super::tags::tags_of;
use super::wishes::{check_features, check_wishes};
use crate::clock;
use crate::digest::{Found, kind_mismatch, kind_of_name, name_of};
use crate::errors::{internal, refused, s3_error};
use crate::quota::check_room;

/// Begins a multipart upload.
pub async fn create_upload(
    state: &State,
    request: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    check_features(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let checksum = plan_of(&request.input)?;
    let owner = owner_of(&request)?;
    let acl = acl_of_new(state, &request, &owner).await?;
    check_room(&request, 1, 1)?;
    let upload = NewUpload {
        nonce: clock::random().ok_or_else(internal)?,
        checksum,
        metadata: metadata_of(&request.headers, request.input.metadata.as_ref())?,
        tags: tags_of(&request.headers)?,
        owner,
        acl,
        lock: lock_of_new(&request)?,
    };
    let id = state.backend.begin_upload(target, upload).await.map_err(s3_error)?;
    let (checksum_algorithm, checksum_type) = shown_plan(checksum);
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(bucket_of(&request)?.name.as_str().to_owned()),
        key: Some(request.input.key),
        upload_id: Some(id.to_string()),
        checksum_algorithm,
        checksum_type,
        ..CreateMultipartUploadOutput::default()
    }))
}

/// The checksums that an upload's client wants.
fn plan_of(input: &CreateMultipartUploadInput) -> S3Result<Option<ChecksumPlan>> {
    let invalid = |message: String| S3Error::with_message(S3ErrorCode::InvalidRequest, message);
    let wanted = input.checksum_type.as_ref().map(ChecksumType::as_str);
    let Some(algorithm) = &input.checksum_algorithm else {
        return match wanted {
            None => Ok(None),
            Some(_) => Err(invalid(
                "The x-amz-checksum-type header can only be used with the \
                 x-amz-checksum-algorithm header."
                    .to_owned(),
            )),
        };
    };
    let kind = kind_of_name(algorithm.as_str()).map_err(refused)?;
    let composite = match wanted {
        None => kind != ChecksumKind::Crc64Nvme,
        Some(ChecksumType::COMPOSITE) => true,
        Some(ChecksumType::FULL_OBJECT) => false,
        Some(_) => {
            return Err(invalid("Value for x-amz-checksum-type header is invalid.".to_owned()));
        }
    };
    let is_possible = match kind {
        ChecksumKind::Crc32 | ChecksumKind::Crc32c => true,
        ChecksumKind::Crc64Nvme => !composite,
        ChecksumKind::Sha1 | ChecksumKind::Sha256 => composite,
    };
    if !is_possible {
        let wanted = if composite { "COMPOSITE" } else { "FULL_OBJECT" };
        let name = name_of(kind).to_ascii_lowercase();
        return Err(invalid(format!(
            "The {wanted} checksum type cannot be used with the {name} checksum algorithm."
        )));
    }
    Ok(Some(ChecksumPlan { kind, composite }))
}

/// Receives a part.
pub async fn upload_part(
    state: &State,
    mut request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let number = part_number_of(request.input.part_number)?;
    let id = upload_id_of(&request.input.upload_id)?;
    let body = request.input.body.take();
    let sent = Sent::of(&request, body)?;
    let info = under_way(state, &target, id).await?;
    let kind = kind_of_part(&info, sent.kind())?;
    check_digest(&request, (info.upload.lock, &sent), "Put Part")?;
    check_room(&request, 0, sent.len().unwrap_or(1))?;

    let part = state.backend.put_part(target, id, number, sent.len());
    let mut part = part.await.map_err(s3_error)?;
    let found = sent.receive(kind, &mut *part).await?;
    part.commit(part_facts(&found), Conditions::default()).await.map_err(s3_error)?;
    let mut output = UploadPartOutput {
        e_tag: Some(ETag::Strong(found.etag().as_str().to_owned())),
        ..UploadPartOutput::default()
    };
    show_checksums!(output, [&found.checksum]);
    Ok(S3Response::new(output))
}

/// What is kept of a part's content.
pub fn part_facts(found: &Found) -> ObjectFacts {
    ObjectFacts {
        etag: found.etag(),
        checksums: vec![found.checksum.clone()],
        ..ObjectFacts::default()
    }
}

/// The checksum that a part gets: the upload's, or else the one that is sent.
pub fn kind_of_part(info: &UploadInfo, sent: Option<ChecksumKind>) -> S3Result<ChecksumKind> {
    match (info.upload.checksum, sent) {
        (Some(plan), Some(sent)) if plan.kind != sent => {
            Err(refused(kind_mismatch(plan.kind, sent)))
        }
        (Some(plan), _) => Ok(plan.kind),
        (None, sent) => Ok(sent.unwrap_or(ChecksumKind::Crc64Nvme)),
    }
}

/// Ends an upload without an object.
pub async fn abort_upload(
    state: &State,
    request: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let id = upload_id_of(&request.input.upload_id)?;
    state.backend.abort_upload(target, id).await.map_err(s3_error)?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

/// An upload's ID. Any other text is that of no upload.
pub fn upload_id_of(text: &str) -> S3Result<UploadId> {
    UploadId::parse(text).ok_or_else(|| s3_error(Error::NoSuchUpload))
}

/// An upload that is under way.
pub async fn under_way(state: &State, target: &Target, id: UploadId) -> S3Result<UploadInfo> {
    let info = state.backend.upload(target.clone(), id).await.map_err(s3_error)?;
    match info.end {
        None => Ok(info),
        Some(_) => Err(s3_error(Error::NoSuchUpload)),
    }
}
