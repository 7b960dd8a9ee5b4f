//! Pages of a bucket's versions.

use object_index::Service;
use object_proto::{Bucket, VersionId, VersionsPage, VersionsRequest};

use super::failed;
use crate::exit::Failure;

/// Versions that are listed at once.
const PAGE: u32 = 1000;

/// A page of a bucket's versions behind a place: a key, and a version of it.
pub(super) async fn page(
    service: &Service,
    bucket: &Bucket,
    (after, after_version): (String, Option<VersionId>),
) -> Result<VersionsPage, Failure> {
    let ask = VersionsRequest {
        bucket: bucket.id,
        prefix: String::new(),
        delimiter: String::new(),
        after,
        after_version,
        limit: PAGE,
    };
    service.versions(ask).await.map_err(|error| failed(&format!("bucket {}", bucket.name), error))
}
