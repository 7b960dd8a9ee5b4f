//! Multipart uploads (object protocols, 8).

use std::collections::BTreeMap;

use http::header::HOST;
use object_proto::limits::{LIST_MAX, OBJECT_MAX, PART_MIN, PARTS_MAX};
use object_proto::{
    Checksum, ChecksumKind, ChecksumPlan, Completion, Conditions, Error, Etag, ListedUpload,
    NewUpload, ObjectFacts, Part, PartNumber, PartsPage, PartsRequest, Target, UploadEnd, UploadId,
    UploadInfo, UploadsPage, UploadsRequest, User,
};
use ring::rand::{SecureRandom, SystemRandom};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType,
    CommonPrefix, CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag, Initiator,
    ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput,
    MultipartUpload, Owner, Part as ShownPart, StorageClass, UploadPartInput, UploadPartOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::list::{Text, type_of};
use super::put::{check_received, check_wishes, conditions_of, content_len, metadata_of, receive};
use super::state::{State, bucket_of, caller_of, context_of, modified, target_of, timestamp};
use crate::digest::{Digest, Expected, composite, etag_of_parts, joined, name_of, text_of};
use crate::errors::{coded, internal, refused, s3_error};
use crate::query;
use crate::reply::Refusal;

/// Times that an upload's parts are looked at before parts that change in between end the request.
const ATTEMPTS: u32 = 3;

/// An output of s3s, with these checksums: it has a field for each kind.
macro_rules! with_checksums {
    ($checksums:expr, $output:expr) => {{
        let (checksums, mut output): (&[Checksum], _) = ($checksums, $output);
        let text = |kind| checksums.iter().find(|it| it.kind == kind).map(text_of);
        output.checksum_crc32 = text(ChecksumKind::Crc32);
        output.checksum_crc32c = text(ChecksumKind::Crc32c);
        output.checksum_crc64nvme = text(ChecksumKind::Crc64Nvme);
        output.checksum_sha1 = text(ChecksumKind::Sha1);
        output.checksum_sha256 = text(ChecksumKind::Sha256);
        output
    }};
}
pub(super) use with_checksums;

/// Begins an upload.
pub async fn create_multipart_upload(
    state: &State,
    request: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let input = &request.input;
    let checksum = plan_of(input.checksum_algorithm.as_ref(), input.checksum_type.as_ref())?;
    let mut nonce = [0; 8];
    SystemRandom::new().fill(&mut nonce).map_err(|_| internal())?;
    let upload = NewUpload {
        nonce: u64::from_le_bytes(nonce),
        checksum,
        metadata: metadata_of(&request.headers, input.metadata.as_ref())?,
        owner: caller_of(&request)?.id.clone(),
    };
    let id = state.backend.begin_upload(target, upload).await.map_err(s3_error)?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(bucket_of(&request)?.name.as_str().to_owned()),
        key: Some(input.key.clone()),
        upload_id: Some(id.to_string()),
        checksum_algorithm: checksum.map(|plan| ChecksumAlgorithm::from_static(name_of(plan.kind))),
        checksum_type: checksum.map(|plan| type_of(plan.composite)),
        ..CreateMultipartUploadOutput::default()
    }))
}

/// An algorithm by its name.
pub fn kind_named(name: &str) -> S3Result<ChecksumKind> {
    ChecksumKind::ALL.into_iter().find(|kind| name_of(*kind) == name).ok_or_else(|| {
        let message = "Checksum algorithm provided is unsupported. Please try again with any of \
                       the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]";
        S3Error::with_message(S3ErrorCode::InvalidRequest, message)
    })
}

fn plan_of(
    algorithm: Option<&ChecksumAlgorithm>,
    of: Option<&ChecksumType>,
) -> S3Result<Option<ChecksumPlan>> {
    let invalid = |message: String| S3Error::with_message(S3ErrorCode::InvalidRequest, message);
    let Some(algorithm) = algorithm else {
        return match of {
            None => Ok(None),
            Some(_) => Err(invalid(
                "The x-amz-checksum-type header can only be used with the \
                 x-amz-checksum-algorithm header."
                    .to_owned(),
            )),
        };
    };
    let kind = kind_named(algorithm.as_str())?;
    let composite = match of.map(ChecksumType::as_str) {
        None => kind != ChecksumKind::Crc64Nvme,
        Some(ChecksumType::COMPOSITE) => true,
        Some(ChecksumType::FULL_OBJECT) => false,
        Some(_) => {
            return Err(invalid("Value for x-amz-checksum-type header is invalid.".to_owned()));
        }
    };
    let is_sha = matches!(kind, ChecksumKind::Sha1 | ChecksumKind::Sha256);
    if (is_sha && !composite) || (kind == ChecksumKind::Crc64Nvme && composite) {
        let (of, name) = (type_of(composite), name_of(kind).to_lowercase());
        let of = of.as_str();
        return Err(invalid(format!(
            "The {of} checksum type cannot be used with the {name} checksum algorithm."
        )));
    }
    Ok(Some(ChecksumPlan { kind, composite }))
}

/// The ID that a text stands for: any other text is that of no upload.
pub fn upload_id(text: &str) -> S3Result<UploadId> {
    UploadId::parse(text).ok_or_else(|| s3_error(Error::NoSuchUpload))
}

/// A number of a part.
pub fn part_number(number: i32) -> S3Result<PartNumber> {
    u64::try_from(number).ok().and_then(PartNumber::new).ok_or_else(|| {
        let message =
            format!("Part number must be an integer between 1 and {PARTS_MAX}, inclusive");
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    })
}

/// An upload that takes parts.
pub async fn open_upload(state: &State, target: &Target, id: UploadId) -> S3Result<UploadInfo> {
    let info = state.backend.upload(target.clone(), id).await.map_err(s3_error)?;
    if info.end.is_some() { Err(s3_error(Error::NoSuchUpload)) } else { Ok(info) }
}

/// The algorithm of a part's checksum, when its request names one or none.
fn part_kind(info: &UploadInfo, sent: Option<ChecksumKind>) -> S3Result<ChecksumKind> {
    match (info.upload.checksum, sent) {
        (Some(plan), Some(sent)) if plan.kind != sent => {
            let [plan, sent] = [plan.kind, sent].map(|kind| name_of(kind).to_lowercase());
            Err(S3Error::with_message(
                S3ErrorCode::InvalidRequest,
                format!(
                    "Checksum Type mismatch occurred, expected checksum Type: {plan}, actual \
                     checksum Type: {sent}"
                ),
            ))
        }
        (Some(plan), _) => Ok(plan.kind),
        (None, sent) => Ok(sent.unwrap_or(ChecksumKind::Crc64Nvme)),
    }
}

/// Receives a part.
pub async fn upload_part(
    state: &State,
    mut request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let context = context_of(&request)?.clone();
    let len = content_len(&context)?;
    let (id, number) =
        (upload_id(&request.input.upload_id)?, part_number(request.input.part_number)?);
    let mut expected = Expected::of(&request.headers).map_err(refused)?;
    let info = open_upload(state, &target, id).await?;
    let kind = part_kind(&info, expected.kind())?;
    context.begin_content();

    let part = state.backend.put_part(target, id, number, Some(len)).await;
    let mut part = part.map_err(s3_error)?;
    let body = request.input.body.take();
    let found = receive(body, len, Digest::new(kind), &mut *part, &context).await?;
    check_received(&request, &mut expected, &found)?;
    let facts = ObjectFacts {
        etag: found.etag(),
        checksums: vec![found.checksum.clone()],
        ..ObjectFacts::default()
    };
    part.commit(facts, Conditions::default()).await.map_err(s3_error)?;
    let shown = expected.kind().is_some() || info.upload.checksum.is_some();
    let checksums = if shown { std::slice::from_ref(&found.checksum) } else { &[] };
    let e_tag = Some(ETag::Strong(found.etag().as_str().to_owned()));
    let output = UploadPartOutput { e_tag, ..UploadPartOutput::default() };
    Ok(S3Response::new(with_checksums!(checksums, output)))
}

/// A part as a completion names it.
struct Named {
    number: PartNumber,
    etag: String,
    checksums: Vec<(ChecksumKind, String)>,
}

fn named_of(part: CompletedPart) -> S3Result<Named> {
    let (Some(number), Some(etag)) = (part.part_number, part.e_tag) else {
        return Err(malformed());
    };
    let sent = [
        (ChecksumKind::Crc32, part.checksum_crc32),
        (ChecksumKind::Crc32c, part.checksum_crc32c),
        (ChecksumKind::Crc64Nvme, part.checksum_crc64nvme),
        (ChecksumKind::Sha1, part.checksum_sha1),
        (ChecksumKind::Sha256, part.checksum_sha256),
    ];
    let checksums = sent.into_iter().filter_map(|(kind, value)| Some((kind, value?))).collect();
    Ok(Named { number: part_number(number)?, etag: etag.value().to_owned(), checksums })
}

fn malformed() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema",
    )
}

fn invalid_part() -> S3Error {
    s3_error(Error::NoSuchPart { number: 0 })
}

/// Makes an object of an upload's parts.
pub async fn complete_multipart_upload(
    state: &State,
    mut request: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let id = upload_id(&request.input.upload_id)?;
    let parts = request.input.multipart_upload.take().and_then(|all| all.parts);
    let parts = parts.filter(|parts| !parts.is_empty()).ok_or_else(malformed)?;
    let named = parts.into_iter().map(named_of).collect::<S3Result<Vec<_>>>()?;
    if !named.is_sorted_by(|a, b| a.number < b.number) {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidPartOrder,
            "The list of parts was not in ascending order. Parts must be ordered by part number.",
        ));
    }
    let etag = etag_of_parts(named.iter().map(|part| part.etag.as_str()));
    let conditions =
        conditions_of(request.input.if_match.as_ref(), request.input.if_none_match.as_ref());
    let mut attempt = 1;
    let end = loop {
        let info = state.backend.upload(target.clone(), id).await.map_err(s3_error)?;
        if let Some(end) = info.end {
            // Asked again: it is answered as the first time, whatever the conditions say now.
            match etag == Some(end.etag.clone()) {
                true => break end,
                false => return Err(s3_error(Error::NoSuchUpload)),
            }
        }
        let etag = etag.clone().ok_or_else(invalid_part)?;
        let stored = all_parts(state, &target, id).await?;
        let completion = completion_of(&request, (&info, &named), (&stored, etag))?;
        let (etag, checksums) = (completion.etag.clone(), completion.checksums.clone());
        let completed =
            state.backend.complete_upload(target.clone(), completion, conditions.clone());
        match completed.await {
            Ok(stamp) => break UploadEnd { stamp, etag, checksums },
            // A part was sent again in between.
            Err(Error::NoSuchPart { .. }) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(s3_error(error)),
        }
    };
    let bucket = bucket_of(&request)?.name.as_str().to_owned();
    let host = request.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let location = format!("http://{host}/{bucket}/{}", query::encode(target.key.as_str()));
    let composite = end.checksums.first().map(|checksum| checksum.parts > 0);
    let output = CompleteMultipartUploadOutput {
        bucket: Some(bucket),
        key: Some(target.key.as_str().to_owned()),
        location: Some(location),
        e_tag: Some(ETag::Strong(end.etag.as_str().to_owned())),
        checksum_type: composite.map(type_of),
        ..CompleteMultipartUploadOutput::default()
    };
    Ok(S3Response::new(with_checksums!(&end.checksums, output)))
}

/// All parts of an upload.
async fn all_parts(
    state: &State,
    target: &Target,
    upload: UploadId,
) -> S3Result<BTreeMap<PartNumber, Part>> {
    let (mut all, mut after) = (BTreeMap::new(), 0);
    loop {
        let ask = PartsRequest { target: target.clone(), upload, after, limit: LIST_MAX };
        let PartsPage { parts, more } = state.backend.parts(ask).await.map_err(s3_error)?;
        after = parts.last().map_or(PARTS_MAX, |last| last.number.get());
        all.extend(parts.into_iter().map(|part| (part.number, part)));
        if !more {
            return Ok(all);
        }
    }
}

/// What the named parts make, if they are those that are stored.
fn completion_of(
    request: &S3Request<CompleteMultipartUploadInput>,
    (info, named): (&UploadInfo, &[Named]),
    (stored, etag): (&BTreeMap<PartNumber, Part>, Etag),
) -> S3Result<Completion> {
    let mut parts = Vec::with_capacity(named.len());
    for name in named {
        let part = stored.get(&name.number).filter(|part| part.etag.as_str() == name.etag);
        let part = part.ok_or_else(invalid_part)?;
        let has = |(kind, value): &(ChecksumKind, String)| {
            part.checksums.iter().any(|sum| sum.kind == *kind && text_of(sum) == *value)
        };
        if !name.checksums.iter().all(has) {
            return Err(invalid_part());
        }
        parts.push(part);
    }
    let short = |part: &&&Part| part.size < PART_MIN;
    if parts[..parts.len() - 1].iter().any(|part| short(&part)) {
        return Err(S3Error::with_message(
            S3ErrorCode::EntityTooSmall,
            "Your proposed upload is smaller than the minimum allowed size",
        ));
    }
    let size = parts.iter().map(|part| part.size).sum::<u64>();
    if size > OBJECT_MAX {
        return Err(S3Error::with_message(
            S3ErrorCode::EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed size",
        ));
    }
    let wanted = request.input.mpu_object_size;
    if wanted.is_some_and(|wanted| u64::try_from(wanted) != Ok(size)) {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "The x-amz-mp-object-size header is not the sum of the sizes of the parts.",
        ));
    }
    let checksum = checksum_of(info.upload.checksum, &parts);
    check_sent(request, checksum.as_ref())?;
    Ok(Completion {
        upload: info.id,
        parts: parts.iter().map(|part| (part.number, part.data_id)).collect(),
        etag,
        checksums: checksum.into_iter().collect(),
    })
}

/// The object's checksum. Without a plan it is that of the content, if all parts have CRC64NVME.
fn checksum_of(plan: Option<ChecksumPlan>, parts: &[&Part]) -> Option<Checksum> {
    let kind = plan.map_or(ChecksumKind::Crc64Nvme, |plan| plan.kind);
    let of = |part: &&Part| part.checksums.iter().find(|sum| sum.kind == kind).cloned();
    let sums = parts.iter().map(of).collect::<Option<Vec<_>>>()?;
    match plan.is_some_and(|plan| plan.composite) {
        true => Some(composite(kind, &sums)),
        false => joined(kind, sums.iter().zip(parts.iter().map(|part| part.size))),
    }
}

/// Compares with the checksum of the object that the request has.
fn check_sent(
    request: &S3Request<CompleteMultipartUploadInput>,
    checksum: Option<&Checksum>,
) -> S3Result<()> {
    let input = &request.input;
    if let Some(of) = &input.checksum_type
        && checksum.is_some_and(|checksum| type_of(checksum.parts > 0) != *of)
    {
        let message = "The upload was created with another checksum type than that of the complete \
                       request.";
        return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message));
    }
    let sent = [
        (ChecksumKind::Crc32, &input.checksum_crc32),
        (ChecksumKind::Crc32c, &input.checksum_crc32c),
        (ChecksumKind::Crc64Nvme, &input.checksum_crc64nvme),
        (ChecksumKind::Sha1, &input.checksum_sha1),
        (ChecksumKind::Sha256, &input.checksum_sha256),
    ];
    for (kind, value) in sent {
        let Some(value) = value else { continue };
        // Clients send a composite one with or without the number of parts.
        let same = checksum.is_some_and(|checksum| {
            let text = text_of(checksum);
            checksum.kind == kind && (text == *value || text.split('-').next() == Some(value))
        });
        if !same {
            let name = name_of(kind);
            let message =
                format!("The {name} you specified did not match the calculated checksum.");
            return Err(refused(Refusal::new("BadDigest", message)));
        }
    }
    Ok(())
}

/// Ends an upload without an object.
pub async fn abort_multipart_upload(
    state: &State,
    request: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    check_wishes(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let id = upload_id(&request.input.upload_id)?;
    state.backend.abort_upload(target, id).await.map_err(s3_error)?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

fn page_max(asked: Option<i32>, name: &str) -> S3Result<u32> {
    let Some(asked) = asked else { return Ok(LIST_MAX) };
    let invalid = |_| {
        let message = format!("Argument {name} must be an integer between 0 and 2147483647");
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    };
    Ok(u32::try_from(asked).map_err(invalid)?.min(LIST_MAX))
}

fn owner_of(id: &str, caller: &User) -> (Owner, Initiator) {
    let display_name = (caller.id.as_str() == id).then(|| caller.display_name.clone());
    let id = Some(id.to_owned());
    let initiator = Initiator { id: id.clone(), display_name: display_name.clone() };
    (Owner { id, display_name }, initiator)
}

/// Lists an upload's parts.
pub async fn list_parts(
    state: &State,
    request: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let target = target_of(&request, &request.input.key)?;
    let input = &request.input;
    let (id, limit) = (upload_id(&input.upload_id)?, page_max(input.max_parts, "max-parts")?);
    let after = input.part_number_marker.map_or(Ok(0), |marker| {
        let invalid = |_| {
            let message = "Argument part-number-marker must be an integer between 0 and 2147483647";
            S3Error::with_message(S3ErrorCode::InvalidArgument, message)
        };
        u32::try_from(marker).map_err(invalid)
    })?;
    let info = open_upload(state, &target, id).await?;
    let after = u16::try_from(after).unwrap_or(u16::MAX);
    let page = match limit {
        0 => PartsPage::default(),
        _ => {
            let ask = PartsRequest { target, upload: id, after, limit };
            state.backend.parts(ask).await.map_err(s3_error)?
        }
    };
    let next = page.parts.last().filter(|_| page.more).map(|last| i32::from(last.number.get()));
    let (owner, initiator) = owner_of(info.upload.owner.as_str(), caller_of(&request)?);
    let plan = info.upload.checksum;
    let part = |part: &Part| {
        let checksums = if plan.is_some() { &part.checksums[..] } else { &[] };
        let shown = ShownPart {
            part_number: Some(i32::from(part.number.get())),
            last_modified: Some(modified(part.stamp)),
            e_tag: Some(ETag::Strong(part.etag.as_str().to_owned())),
            size: Some(i64::try_from(part.size).unwrap_or(i64::MAX)),
            ..ShownPart::default()
        };
        with_checksums!(checksums, shown)
    };
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(bucket_of(&request)?.name.as_str().to_owned()),
        key: Some(input.key.clone()),
        upload_id: Some(id.to_string()),
        max_parts: Some(limit.cast_signed()),
        part_number_marker: Some(i32::from(after)),
        next_part_number_marker: next,
        is_truncated: Some(page.more),
        parts: Some(page.parts.iter().map(part).collect()),
        owner: Some(owner),
        initiator: Some(initiator),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm: plan.map(|plan| ChecksumAlgorithm::from_static(name_of(plan.kind))),
        checksum_type: plan.map(|plan| type_of(plan.composite)),
        ..ListPartsOutput::default()
    }))
}

/// Lists a bucket's uploads that are under way.
pub async fn list_multipart_uploads(
    state: &State,
    request: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let bucket = bucket_of(&request)?.clone();
    let input = &request.input;
    let text = Text::of(input.encoding_type.as_ref())?;
    let limit = page_max(input.max_uploads, "max-uploads")?;
    let after = input.key_marker.clone().unwrap_or_default();
    let marker = input.upload_id_marker.as_deref().filter(|marker| !marker.is_empty());
    // Without a key it means nothing.
    let after_upload = match marker.filter(|_| !after.is_empty()) {
        Some(marker) => Some(UploadId::parse(marker).ok_or_else(|| {
            S3Error::with_message(S3ErrorCode::InvalidArgument, "Invalid uploadId marker")
        })?),
        None => None,
    };
    let delimiter = input.delimiter.clone().filter(|delimiter| !delimiter.is_empty());
    let ask = UploadsRequest {
        bucket: bucket.id,
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: delimiter.clone().unwrap_or_default(),
        after: after.clone(),
        after_upload,
        limit,
    };
    let page = match limit {
        0 => UploadsPage::default(),
        _ => state.backend.uploads(ask.clone()).await.map_err(s3_error)?,
    };
    let next = page.entries.last().filter(|_| page.more).map(|last| match last {
        ListedUpload::Upload { key, info } => (key.as_str().to_owned(), Some(info.id.to_string())),
        ListedUpload::Prefix(prefix) => (prefix.clone(), None),
    });
    let (next_key, next_upload) = next.map_or((None, None), |(key, id)| (Some(key), id));
    let (mut uploads, mut prefixes) = (Vec::new(), Vec::new());
    for entry in &page.entries {
        match entry {
            ListedUpload::Prefix(prefix) => {
                prefixes.push(CommonPrefix { prefix: Some(text.of_name(prefix)) });
            }
            ListedUpload::Upload { key, info } => {
                let (owner, initiator) = owner_of(info.upload.owner.as_str(), caller_of(&request)?);
                let plan = info.upload.checksum;
                uploads.push(MultipartUpload {
                    key: Some(text.of_name(key.as_str())),
                    upload_id: Some(info.id.to_string()),
                    initiated: Some(timestamp(info.id.stamp.get())),
                    owner: Some(owner),
                    initiator: Some(initiator),
                    storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                    checksum_algorithm: plan
                        .map(|plan| ChecksumAlgorithm::from_static(name_of(plan.kind))),
                    checksum_type: plan.map(|plan| type_of(plan.composite)),
                });
            }
        }
    }
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(bucket.name.as_str().to_owned()),
        prefix: Some(text.of_name(&ask.prefix)),
        delimiter: delimiter.map(|delimiter| text.of_name(&delimiter)),
        key_marker: Some(text.of_name(&after)),
        upload_id_marker: after_upload.map(|id| id.to_string()),
        next_key_marker: next_key.map(|key| text.of_name(&key)),
        next_upload_id_marker: next_upload,
        max_uploads: Some(limit.cast_signed()),
        is_truncated: Some(page.more),
        uploads: Some(uploads),
        common_prefixes: Some(prefixes),
        encoding_type: input.encoding_type.clone(),
        ..ListMultipartUploadsOutput::default()
    }))
}

/// An object is larger than a copy may be.
pub fn source_too_large() -> S3Error {
    coded(
        "InvalidRequest",
        http::StatusCode::BAD_REQUEST,
        "The specified copy source is larger than the maximum allowable size for a copy source: \
         5368709120",
    )
}
