//! GetObjectAttributes.

use http::header::HeaderMap;
use object_proto::limits::LIST_MAX;
use object_proto::{ObjectData, PartMap, PartNumber};
use s3s::dto::{
    Checksum, ETag, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    ObjectAttributes, ObjectPart, StorageClass,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::part_checksums::part_checksums;
use super::sse::OWN;
use super::state::{
    State, bucket_of, checksum_type, count_of, modified, read_error, shown_version, target_of,
    version_id_of,
};
use crate::context::BareTag;

/// Reads facts of an object, those that are asked for.
pub async fn get_attributes(
    state: &State,
    request: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    let input = &request.input;
    let target = target_of(&request, &input.key)?;
    // s3s takes a header for one name.
    let names = input.object_attributes.iter().flat_map(|names| names.as_str().split(','));
    let names: Vec<&str> = names.map(str::trim).collect();
    if let Some(name) = names.iter().find(|name| !KNOWN.contains(name)) {
        let message = format!("Invalid attribute name specified: {name}");
        return Err(S3Error::with_message(S3ErrorCode::InvalidArgument, message));
    }
    let is_asked = |name: &str| names.contains(&name);
    let limit = count_of(input.max_parts, "x-amz-max-parts")?;
    let version = version_id_of(input.version_id.as_deref())?;
    let info = state.backend.head(target.clone(), version).await;
    let info = info.map_err(|error| read_error(&request, error))?;
    let asked = (&request.headers, &request.extensions);
    let opening = state.sealer.opening(asked, OWN, (&target, info))?;
    let info = &opening.info;
    let mut output = GetObjectAttributesOutput {
        last_modified: Some(modified(info.stamp)),
        version_id: shown_version(bucket_of(&request)?, info),
        ..GetObjectAttributesOutput::default()
    };
    let facts = &info.object.facts;
    if is_asked(ObjectAttributes::ETAG) {
        output.e_tag = Some(ETag::Strong(facts.etag.as_str().to_owned()));
    }
    if is_asked(ObjectAttributes::OBJECT_SIZE) {
        output.object_size = Some(i64::try_from(info.object.size).unwrap_or(i64::MAX));
    }
    if is_asked(ObjectAttributes::STORAGE_CLASS) {
        output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
    }
    if let Some(first) = facts.checksums.first().filter(|_| is_asked(ObjectAttributes::CHECKSUM)) {
        let mut shown =
            Checksum { checksum_type: Some(checksum_type(first.parts > 0)), ..Checksum::default() };
        show_checksums!(shown, &facts.checksums);
        output.checksum = Some(shown);
    }
    if let ObjectData::Parts(map) = &info.object.data
        && is_asked(ObjectAttributes::OBJECT_PARTS)
    {
        let marker = input.part_number_marker.unwrap_or(0);
        let mut shown = shown_parts(map, marker, limit);
        if !facts.checksums.is_empty() {
            let after = u16::try_from(marker).unwrap_or_default();
            let all = part_checksums(state, &target, map, (after, limit.min(LIST_MAX))).await?;
            for part in shown.parts.iter_mut().flatten() {
                let number = part.part_number.and_then(|number| u64::try_from(number).ok());
                let number = number.and_then(PartNumber::new);
                let checksums = number.and_then(|number| all.get(&number));
                show_checksums!(part, checksums.into_iter().flatten());
            }
        }
        output.object_parts = Some(shown);
    }
    let mut headers = HeaderMap::new();
    opening.show(&mut headers)?;
    let mut response = S3Response::with_headers(output, headers);
    response.extensions.insert(BareTag);
    Ok(response)
}

const KNOWN: [&str; 5] = [
    ObjectAttributes::CHECKSUM,
    ObjectAttributes::ETAG,
    ObjectAttributes::OBJECT_PARTS,
    ObjectAttributes::OBJECT_SIZE,
    ObjectAttributes::STORAGE_CLASS,
];

/// Parts above the marker, with their numbers and sizes.
fn shown_parts(map: &PartMap, marker: i32, limit: u32) -> GetObjectAttributesParts {
    let all = map.runs().iter().flat_map(|run| {
        (run.first..run.first + run.count).map(|number| (i32::from(number), run.size))
    });
    let mut left = all.filter(|(number, _)| *number > marker).peekable();
    let mut parts = Vec::new();
    while parts.len() < limit.min(LIST_MAX) as usize
        && let Some((number, size)) = left.next()
    {
        parts.push(ObjectPart {
            part_number: Some(number),
            size: Some(i64::try_from(size).unwrap_or(i64::MAX)),
            ..ObjectPart::default()
        });
    }
    GetObjectAttributesParts {
        total_parts_count: i32::try_from(map.count()).ok(),
        part_number_marker: Some(marker),
        next_part_number_marker: parts.last().map_or(Some(marker), |part| part.part_number),
        max_parts: Some(limit.cast_signed()),
        is_truncated: Some(left.peek().is_some()),
        parts: Some(parts),
    }
}
