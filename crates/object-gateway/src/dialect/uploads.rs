//! ListParts and ListMultipartUploads.

use object_proto::{
    ListedUpload, Part, PartsPage, PartsRequest, UploadId, UploadInfo, UploadsPage, UploadsRequest,
};
use s3s::dto::{
    CommonPrefix, ETag, Initiator, ListMultipartUploadsInput, ListMultipartUploadsOutput,
    ListPartsInput, ListPartsOutput, MultipartUpload, Owner, StorageClass,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::lifecycle::show_abort;
use super::list::Text;
use super::state::{
    Lister, State, bucket_of, count_of, modified, out_of_bounds, shown_plan, target_of,
};
use super::upload::{parts_of_content, under_way, upload_id_of};
use crate::errors::s3_error;

/// Lists parts of an upload.
pub async fn list_parts(
    state: &State,
    request: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let input = &request.input;
    let target = target_of(&request, &input.key)?;
    let upload = upload_id_of(&input.upload_id)?;
    let limit = count_of(input.max_parts, "max-parts")?;
    let marker = input.part_number_marker.unwrap_or(0);
    let after = u32::try_from(marker).map_err(|_| out_of_bounds("part-number-marker"))?;
    let after = u16::try_from(after).unwrap_or(u16::MAX);
    let info = under_way(state, &target, upload).await?;
    let page = match limit {
        0 => PartsPage::default(),
        _ => {
            let ask = PartsRequest { target, upload, after, limit };
            let is_encrypted = info.upload.encryption.is_some();
            parts_of_content(state.backend.parts(ask).await, is_encrypted).map_err(s3_error)?
        }
    };
    let next = page.parts.last().map_or(marker, |part| i32::from(part.number.get()));
    let owner = Lister::of(&request)?.owner(&info.upload.owner);
    let (checksum_algorithm, checksum_type) = shown_plan(info.upload.checksum);
    let (abort_date, abort_rule_id) = show_abort(state, &request, &input.key, info.id.stamp)?;
    Ok(S3Response::new(ListPartsOutput {
        abort_date,
        abort_rule_id,
        bucket: Some(bucket_of(&request)?.name.as_str().to_owned()),
        key: Some(input.key.clone()),
        upload_id: Some(input.upload_id.clone()),
        part_number_marker: Some(marker),
        next_part_number_marker: Some(next),
        max_parts: Some(limit.cast_signed()),
        is_truncated: Some(page.more),
        parts: Some(page.parts.iter().map(shown_part).collect()),
        initiator: Some(initiator_of(&owner)),
        owner: Some(owner),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm,
        checksum_type,
        ..ListPartsOutput::default()
    }))
}

fn shown_part(part: &Part) -> s3s::dto::Part {
    let mut shown = s3s::dto::Part {
        part_number: Some(i32::from(part.number.get())),
        last_modified: Some(modified(part.stamp)),
        e_tag: Some(ETag::Strong(part.etag.as_str().to_owned())),
        size: Some(i64::try_from(part.size).unwrap_or(i64::MAX)),
        ..s3s::dto::Part::default()
    };
    show_checksums!(shown, &part.checksums);
    shown
}

/// Lists uploads that are under way.
pub async fn list_uploads(
    state: &State,
    request: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let bucket = bucket_of(&request)?.clone();
    let lister = Lister::of(&request)?;
    let input = request.input;
    let text = Text::of(input.encoding_type.as_ref())?;
    let limit = count_of(input.max_uploads, "max-uploads")?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    let after = input.key_marker.unwrap_or_default();
    let marker = input.upload_id_marker.filter(|marker| !marker.is_empty());
    let ask = UploadsRequest {
        bucket: bucket.id,
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: delimiter.clone().unwrap_or_default(),
        after_upload: after_upload_of(&after, marker.as_deref())?,
        after: after.clone(),
        limit,
    };
    let page = match limit {
        0 => UploadsPage::default(),
        _ => state.backend.uploads(ask).await.map_err(s3_error)?,
    };
    let next = page.entries.last().filter(|_| page.more).map(|last| match last {
        ListedUpload::Upload { key, info } => (key.as_str().to_owned(), info.id.to_string()),
        ListedUpload::Prefix(prefix) => (prefix.clone(), String::new()),
    });
    let (next_key, next_upload) = next.unzip();
    let (mut uploads, mut prefixes) = (Vec::new(), Vec::new());
    for entry in page.entries {
        match entry {
            ListedUpload::Upload { key, info } => {
                uploads.push(shown_upload(text.of_name(key.as_str()), &info, &lister));
            }
            ListedUpload::Prefix(prefix) => {
                prefixes.push(CommonPrefix { prefix: Some(text.of_name(&prefix)) });
            }
        }
    }
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(bucket.name.as_str().to_owned()),
        prefix: Some(text.of_name(&input.prefix.unwrap_or_default())),
        delimiter: delimiter.map(|delimiter| text.of_name(&delimiter)),
        key_marker: Some(text.of_name(&after)),
        upload_id_marker: Some(marker.unwrap_or_default()),
        next_key_marker: next_key.map(|key| text.of_name(&key)),
        next_upload_id_marker: next_upload,
        max_uploads: Some(limit.cast_signed()),
        is_truncated: Some(page.more),
        uploads: Some(uploads),
        common_prefixes: Some(prefixes),
        encoding_type: input.encoding_type,
        ..ListMultipartUploadsOutput::default()
    }))
}

/// The upload that a page begins behind. Without a key it says nothing, as in S3.
fn after_upload_of(key: &str, marker: Option<&str>) -> S3Result<Option<UploadId>> {
    let Some(marker) = marker.filter(|_| !key.is_empty()) else { return Ok(None) };
    UploadId::parse(marker).map(Some).ok_or_else(|| {
        S3Error::with_message(S3ErrorCode::InvalidArgument, "Invalid uploadId marker")
    })
}

fn initiator_of(owner: &Owner) -> Initiator {
    Initiator { id: owner.id.clone(), display_name: owner.display_name.clone() }
}

fn shown_upload(key: String, info: &UploadInfo, lister: &Lister) -> MultipartUpload {
    let owner = lister.owner(&info.upload.owner);
    let (checksum_algorithm, checksum_type) = shown_plan(info.upload.checksum);
    MultipartUpload {
        key: Some(key),
        upload_id: Some(info.id.to_string()),
        initiated: Some(modified(info.id.stamp)),
        initiator: Some(initiator_of(&owner)),
        owner: Some(owner),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm,
        checksum_type,
    }
}
