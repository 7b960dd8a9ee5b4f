//! Checksums of the parts that an object was made of.

use std::collections::BTreeMap;

use object_proto::{Checksum, PartMap, PartNumber, PartsRequest, Target};
use s3s::S3Result;

use super::state::State;
use crate::errors::s3_error;

/// Checksums of an object's parts by their numbers: of up to `limit` parts above the number `after`. Empty when
/// the object was removed after its row was read.
pub async fn part_checksums(
    state: &State,
    target: &Target,
    map: &PartMap,
    (after, limit): (u16, u32),
) -> S3Result<BTreeMap<PartNumber, Vec<Checksum>>> {
    let ask = PartsRequest { target: target.clone(), upload: map.upload, after, limit };
    let parts = state.backend.object_parts(ask).await.map_err(s3_error)?;
    Ok(parts.into_iter().map(|(number, part)| (number, part.object.facts.checksums)).collect())
}
