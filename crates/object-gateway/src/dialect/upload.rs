//! CreateMultipartUpload, UploadPart, AbortMultipartUpload.

use object_proto::{
    ChecksumKind, ChecksumPlan, Conditions, Error, NewUpload, ObjectFacts, PartsPage, Target,
    UploadId, UploadInfo, content_len,
};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumType,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag, UploadPartInput,
    UploadPartOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::lifecycle::show_abort;
use super::object_acl::acl_of_new;
use super::object_lock::{check_digest, lock_of_new};
use super::put::metadata_of;
use super::receive::Sent;
use super::sealer::Sealing;
use super::settings::settings_of;
use super::state::{State, bucket_of, owner_of, part_number_of, shown_plan, target_of};
use super::tags::tags_of;
use super::wishes::{check_features, check_wishes};
use crate::clock;
use crate::digest::{Found, kind_mismatch, kind_of_name, name_of};
use crate::errors::{internal, refused, s3_error};
use crate::quota::{check_room, check_room_now};

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
    let ask = (&request.headers, &request.extensions);
    let by_default = &settings_of(&request)?.encryption;
    let sealing = state.sealer.of_new(ask, by_default, &target).await?;
    let upload = NewUpload {
        nonce: clock::random().ok_or_else(internal)?,
        checksum,
        metadata: metadata_of(&request.headers, request.input.metadata.as_ref())?,
        tags: tags_of(&request.headers)?,
        owner,
        acl,
        lock: lock_of_new(&request)?,
        encryption: sealing.envelope(),
    };
    let id = state.backend.begin_upload(target, upload).await.map_err(s3_error)?;
    let (checksum_algorithm, checksum_type) = shown_plan(checksum);
    let (abort_date, abort_rule_id) = show_abort(state, &request, &request.input.key, id.stamp)?;
    let output = CreateMultipartUploadOutput {
        abort_date,
        abort_rule_id,
        bucket: Some(bucket_of(&request)?.name.as_str().to_owned()),
        key: Some(request.input.key),
        upload_id: Some(id.to_string()),
        checksum_algorithm,
        checksum_type,
        ..CreateMultipartUploadOutput::default()
    };
    Ok(S3Response::with_headers(output, sealing.headers()?))
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
    let envelope = info.upload.encryption.as_ref();
    let ask = (&request.headers, &request.extensions);
    let sealing = state.sealer.of_part(ask, &target, envelope).await?;

    let plan = sealing.plan(sent.len(), settings_of(&request)?);
    let part = state.backend.put_part(target, id, number, plan);
    let mut part = sealing.upload(part.await.map_err(s3_error)?, number.get())?;
    let found = sent.receive(kind, &mut *part).await?;
    check_room_now(&*state.backend, &request, 0, found.len).await?;
    let facts = part_facts(&found, &sealing);
    let etag = ETag::Strong(facts.etag.as_str().to_owned());
    part.commit(facts, Conditions::default()).await.map_err(s3_error)?;
    let mut output = UploadPartOutput { e_tag: Some(etag), ..UploadPartOutput::default() };
    show_checksums!(output, [&found.checksum]);
    Ok(S3Response::with_headers(output, sealing.headers()?))
}

/// What is kept of a part's content.
pub fn part_facts(found: &Found, sealing: &Sealing) -> ObjectFacts {
    ObjectFacts {
        etag: sealing.part_etag(found),
        checksums: vec![found.checksum.clone()],
        ..ObjectFacts::default()
    }
}

/// Parts with sizes of their contents, as clients see them.
pub fn parts_of_content(
    found: Result<PartsPage, Error>,
    is_encrypted: bool,
) -> Result<PartsPage, Error> {
    let mut page = found?;
    if is_encrypted {
        for part in &mut page.parts {
            let damaged = || Error::Damaged { what: "the length of an encrypted part".to_owned() };
            part.size = content_len(part.size).ok_or_else(damaged)?;
        }
    }
    Ok(page)
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
