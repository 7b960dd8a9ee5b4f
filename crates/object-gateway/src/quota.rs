//! What quotas have no room for (object protocols, 11.1).

use object_proto::{Backend, Room};
use s3s::{S3Error, S3Request, S3Result};

use crate::errors::{coded, internal, s3_error};
use crate::rights::Place;

/// S3 has no quotas, and so no code for them: this is Ceph's.
const CODE: &str = "QuotaExceeded";

/// Refuses what a bucket's quotas have no room for, before it is received.
pub fn check_room<T>(request: &S3Request<T>, objects: u64, bytes: u64) -> S3Result<()> {
    let Place(place) = request.extensions.get::<Place>().ok_or_else(internal)?;
    let room = place.view.room;
    match room.holds(objects, bytes) {
        true => Ok(()),
        false => Err(over_quota(room)),
    }
}

/// The same for what was received, before it is stored: others have been since.
pub async fn check_room_now<T>(
    backend: &dyn Backend,
    request: &S3Request<T>,
    objects: u64,
    bytes: u64,
) -> S3Result<()> {
    let Place(place) = request.extensions.get::<Place>().ok_or_else(internal)?;
    let view = &place.view;
    if view.room == Room::default() {
        return Ok(());
    }
    let now = backend.bucket(view.bucket.name.clone()).await.map_err(s3_error)?;
    match now.room.holds(objects, bytes) {
        true => Ok(()),
        false => Err(over_quota(now.room)),
    }
}

fn over_quota(Room { objects, bytes }: Room) -> S3Error {
    let left = match (objects, bytes) {
        (Some(objects), Some(bytes)) => format!("{objects} objects and {bytes} bytes"),
        (Some(objects), None) => format!("{objects} objects"),
        (None, bytes) => format!("{} bytes", bytes.unwrap_or(0)),
    };
    let message = format!(
        "The quota of the bucket, or that of its owner's buckets together, leaves room for {left}"
    );
    coded(CODE, http::StatusCode::FORBIDDEN, message)
}
