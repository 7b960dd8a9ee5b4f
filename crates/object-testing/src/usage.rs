//! Whether a bucket's count is what is there.

use object_index::Service;
use object_proto::{
    BucketId, BucketUsage, Error, ListedUpload, ListedVersion, PartsRequest, Target,
    UploadsRequest, VersionsRequest,
};

/// What a bucket holds, counted by listings, without faults and clients.
async fn counted(service: &Service, bucket: BucketId) -> Result<BucketUsage, Error> {
    let mut usage = BucketUsage::default();
    let (mut after, mut after_version) = (String::new(), None);
    loop {
        let ask = VersionsRequest {
            bucket,
            prefix: String::new(),
            delimiter: String::new(),
            after: after.clone(),
            after_version,
            limit: 100,
        };
        let page = service.versions(ask).await?;
        for entry in page.entries {
            match entry {
                ListedVersion::Version { key, info, latest } => {
                    usage.objects += 1;
                    usage.older += u64::from(!latest);
                    usage.bytes += info.object.size;
                    (after, after_version) = (key.as_str().to_owned(), Some(info.version()));
                }
                ListedVersion::Marker { key, version, .. } => {
                    usage.markers += 1;
                    (after, after_version) = (key.as_str().to_owned(), Some(version));
                }
                ListedVersion::Prefix(_) => {}
            }
        }
        if !page.more {
            break;
        }
    }
    let ask = UploadsRequest {
        bucket,
        prefix: String::new(),
        delimiter: String::new(),
        after: String::new(),
        after_upload: None,
        limit: 1000,
    };
    for upload in service.uploads(ask).await?.entries {
        let ListedUpload::Upload { key, info } = upload else { continue };
        usage.uploads += 1;
        let target = Target { bucket, key };
        let ask = PartsRequest { target, upload: info.id, after: 0, limit: 1000 };
        usage.upload_bytes +=
            service.parts(ask).await?.parts.iter().map(|part| part.size).sum::<u64>();
    }
    Ok(usage)
}

/// An error when a bucket's count is not what is there, without faults and clients.
pub async fn check_usage(service: &Service, bucket: BucketId) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let there = counted(service, bucket).await.map_err(text)?;
    let usage = service.usage(bucket).await.map_err(text)?;
    match usage == there {
        true => Ok(()),
        false => Err(format!("{bucket} is said to hold {usage:?}, and holds {there:?}")),
    }
}
