//! Versions: a bucket's versioning, and listings of versions.

use object_proto::{ListedVersion, ObjectInfo, Versioning, VersionsPage, VersionsRequest};
use s3s::dto::{
    BucketVersioningStatus, ChecksumAlgorithm, CommonPrefix, DeleteMarkerEntry, ETag,
    GetBucketVersioningOutput, ListObjectVersionsInput, ListObjectVersionsOutput, MFADelete,
    ObjectVersion, ObjectVersionStorageClass, PutBucketVersioningInput, PutBucketVersioningOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::list::Text;
use super::lock_rule::invalid_state;
use super::settings::settings_of;
use super::state::{
    Lister, State, bucket_of, checksum_type, count_of, modified, not_implemented, shown_size,
    version_id_of,
};
use super::wishes::check_wishes;
use crate::digest::name_of;
use crate::errors::s3_error;

/// What becomes of objects that are replaced.
pub fn get_versioning<T>(
    request: &S3Request<T>,
) -> S3Result<S3Response<GetBucketVersioningOutput>> {
    let status = match bucket_of(request)?.versioning {
        Versioning::Off => None,
        Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
        Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
    };
    Ok(S3Response::new(GetBucketVersioningOutput {
        status: status.map(BucketVersioningStatus::from_static),
        ..GetBucketVersioningOutput::default()
    }))
}

/// Says what becomes of objects that are replaced.
pub async fn put_versioning(
    state: &State,
    request: S3Request<PutBucketVersioningInput>,
) -> S3Result<S3Response<PutBucketVersioningOutput>> {
    check_wishes(&request.headers)?;
    let wanted = &request.input.versioning_configuration;
    let deletes_by_mfa = wanted.mfa_delete.as_ref().map(MFADelete::as_str);
    if deletes_by_mfa == Some(MFADelete::ENABLED) {
        return Err(not_implemented("Multi-factor authentication"));
    }
    let versioning = match wanted.status.as_ref().map(BucketVersioningStatus::as_str) {
        Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
        Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
        None => {
            return Err(S3Error::with_message(
                S3ErrorCode::IllegalVersioningConfigurationException,
                "The Versioning element must be specified",
            ));
        }
        Some(_) => return Err(S3Error::new(S3ErrorCode::MalformedXML)),
    };
    if versioning != Versioning::Enabled && settings_of(&request)?.lock.is_some() {
        return Err(invalid_state(
            "An Object Lock configuration is present on this bucket, so the versioning state \
             cannot be changed.",
        ));
    }
    let name = bucket_of(&request)?.name.clone();
    state.backend.set_versioning(name, versioning).await.map_err(s3_error)?;
    Ok(S3Response::new(PutBucketVersioningOutput {}))
}

/// Lists versions and delete markers.
pub async fn list_versions(
    state: &State,
    request: S3Request<ListObjectVersionsInput>,
) -> S3Result<S3Response<ListObjectVersionsOutput>> {
    let bucket = bucket_of(&request)?.clone();
    let lister = Lister::of(&request)?;
    let input = request.input;
    let text = Text::of(input.encoding_type.as_ref())?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    let key_marker = input.key_marker.clone().unwrap_or_default();
    let marker = input.version_id_marker.as_deref().filter(|marker| !marker.is_empty());
    if marker.is_some() && key_marker.is_empty() {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidArgument,
            "A version-id marker cannot be specified without a key marker.",
        ));
    }
    let ask = VersionsRequest {
        bucket: bucket.id,
        prefix: input.prefix.unwrap_or_default(),
        delimiter: delimiter.clone().unwrap_or_default(),
        after: key_marker,
        after_version: version_id_of(marker)?,
        limit: count_of(input.max_keys, "max-keys")?,
    };
    let page = match ask.limit {
        0 => VersionsPage::default(),
        _ => state.backend.versions(ask.clone()).await.map_err(s3_error)?,
    };
    let last = page.entries.last().filter(|_| page.more);
    let next_key_marker = last.map(|last| text.of_name(last.name()));
    let next_version_id_marker = last.and_then(ListedVersion::version).map(|id| id.to_string());
    let is_truncated = Some(page.more);
    let shown = Shown::of(page, text, &lister);
    Ok(S3Response::new(ListObjectVersionsOutput {
        name: Some(bucket.name.as_str().to_owned()),
        prefix: Some(text.of_name(&ask.prefix)),
        key_marker: Some(text.of_name(&ask.after)),
        version_id_marker: Some(input.version_id_marker.unwrap_or_default()),
        max_keys: Some(ask.limit.cast_signed()),
        is_truncated,
        next_key_marker,
        next_version_id_marker,
        versions: Some(shown.versions),
        delete_markers: Some(shown.markers),
        common_prefixes: Some(shown.prefixes),
        delimiter: delimiter.map(|delimiter| text.of_name(&delimiter)),
        encoding_type: input.encoding_type,
        ..ListObjectVersionsOutput::default()
    }))
}

/// A page as S3 shows it.
#[derive(Default)]
struct Shown {
    versions: Vec<ObjectVersion>,
    markers: Vec<DeleteMarkerEntry>,
    prefixes: Vec<CommonPrefix>,
}

impl Shown {
    fn of(page: VersionsPage, text: Text, lister: &Lister) -> Shown {
        let mut shown = Shown::default();
        for entry in page.entries {
            match entry {
                ListedVersion::Version { key, info, latest } => {
                    let owner = Some(lister.owner(&info.object.facts.owner));
                    shown.versions.push(ObjectVersion {
                        is_latest: Some(latest),
                        owner,
                        ..version(text.of_name(key.as_str()), &info)
                    });
                }
                ListedVersion::Marker { key, version, stamp, owner, latest } => {
                    shown.markers.push(DeleteMarkerEntry {
                        is_latest: Some(latest),
                        key: Some(text.of_name(key.as_str())),
                        last_modified: Some(modified(stamp)),
                        owner: Some(lister.owner(&owner)),
                        version_id: Some(version.to_string()),
                    });
                }
                ListedVersion::Prefix(prefix) => {
                    let prefix = Some(text.of_name(&prefix));
                    shown.prefixes.push(CommonPrefix { prefix });
                }
            }
        }
        shown
    }
}

fn version(key: String, info: &ObjectInfo) -> ObjectVersion {
    let facts = &info.object.facts;
    let algorithms = facts.checksums.iter();
    let algorithms: Vec<_> =
        algorithms.map(|checksum| ChecksumAlgorithm::from_static(name_of(checksum.kind))).collect();
    let class = ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD);
    ObjectVersion {
        key: Some(key),
        version_id: Some(info.version().to_string()),
        last_modified: Some(modified(info.stamp)),
        e_tag: Some(ETag::Strong(facts.etag.as_str().to_owned())),
        size: Some(shown_size(&info.object)),
        storage_class: Some(class),
        checksum_algorithm: (!algorithms.is_empty()).then_some(algorithms),
        checksum_type: facts.checksums.first().map(|checksum| checksum_type(checksum.parts > 0)),
        ..ObjectVersion::default()
    }
}
