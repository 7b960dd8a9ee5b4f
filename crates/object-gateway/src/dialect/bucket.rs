//! Buckets: making, finding, removing, listing.

use object_proto::{BucketName, LockRule};
use s3s::dto::{
    Bucket, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput, DeleteBucketInput,
    DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput, HeadBucketInput,
    HeadBucketOutput, ListBucketsInput, ListBucketsOutput, Owner,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::bucket_acl::settings_of_new;
use super::state::{State, bucket_of, caller_of, not_implemented, timestamp};
use super::wishes::check_features;
use crate::base64;
use crate::errors::s3_error;

/// The region whose rules are S3's oldest: it has no name as a location, and a bucket of one's own
/// is made again without an error. Scripts written against it rely on that.
const FIRST_REGION: &str = "us-east-1";

/// Makes a bucket.
pub async fn create_bucket(
    state: &State,
    request: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    let input = &request.input;
    check_wishes_of_bucket(&request)?;
    let invalid = |_| S3Error::new(S3ErrorCode::InvalidBucketName);
    let name = BucketName::new(&input.bucket).map_err(invalid)?;
    // Such names were made before, and stay reachable.
    if name.as_str().contains(".-") || name.as_str().contains("-.") {
        return Err(S3Error::new(S3ErrorCode::InvalidBucketName));
    }
    let location = format!("/{name}");
    let owner = caller_of(&request)?.id.clone();
    let ownership = input.object_ownership.as_ref();
    let mut settings = settings_of_new(state, &request.headers, ownership, &owner).await?;
    let has_lock = input.object_lock_enabled_for_bucket == Some(true);
    settings.lock = has_lock.then(LockRule::default);
    match state.backend.create_bucket(name, owner, settings).await {
        Ok(_) => {}
        Err(object_proto::Error::BucketExists { own: true }) if state.region == FIRST_REGION => {}
        Err(error) => return Err(s3_error(error)),
    }
    Ok(S3Response::new(CreateBucketOutput { location: Some(location) }))
}

fn check_wishes_of_bucket(request: &S3Request<CreateBucketInput>) -> S3Result<()> {
    let input = &request.input;
    check_features(&request.headers)?;
    // Any location is taken: clients send the region that they are set to.
    let configuration = input.create_bucket_configuration.as_ref();
    if configuration.is_some_and(|given| given.bucket.is_some() || given.location.is_some()) {
        return Err(not_implemented("A directory bucket"));
    }
    Ok(())
}

/// Finds a bucket.
pub fn head_bucket(
    state: &State,
    request: &S3Request<HeadBucketInput>,
) -> S3Result<S3Response<HeadBucketOutput>> {
    bucket_of(request)?;
    Ok(S3Response::new(HeadBucketOutput {
        bucket_region: Some(state.region.clone()),
        ..HeadBucketOutput::default()
    }))
}

/// Removes a bucket.
pub async fn delete_bucket(
    state: &State,
    request: S3Request<DeleteBucketInput>,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    let name = bucket_of(&request)?.name.clone();
    state.backend.remove_bucket(name).await.map_err(s3_error)?;
    Ok(S3Response::new(DeleteBucketOutput {}))
}

/// Region of a bucket.
pub fn get_bucket_location(
    state: &State,
    request: &S3Request<GetBucketLocationInput>,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    bucket_of(request)?;
    let location_constraint = (state.region != FIRST_REGION)
        .then(|| BucketLocationConstraint::from(state.region.clone()));
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
}

/// Lists the caller's buckets.
pub async fn list_buckets(
    state: &State,
    request: S3Request<ListBucketsInput>,
) -> S3Result<S3Response<ListBucketsOutput>> {
    let caller = caller_of(&request)?.clone();
    let input = request.input;
    let invalid = |what: &str| {
        let message = format!("Argument {what} is not valid");
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    };
    let max = match input.max_buckets {
        None => usize::MAX,
        Some(max) if (1..=10_000).contains(&max) => max as usize,
        Some(_) => return Err(invalid("max-buckets")),
    };
    let after = match &input.continuation_token {
        None => String::new(),
        Some(token) => {
            let bytes = base64::decode(token).ok_or_else(|| invalid("continuation-token"))?;
            String::from_utf8(bytes).map_err(|_| invalid("continuation-token"))?
        }
    };
    let prefix = input.prefix.clone().unwrap_or_default();
    let is_other_region =
        input.bucket_region.as_deref().is_some_and(|region| region != state.region);
    let mut buckets = state.backend.buckets(Some(caller.id.clone())).await.map_err(s3_error)?;
    buckets.retain(|bucket| {
        let name = bucket.name.as_str();
        !is_other_region && name.starts_with(&prefix) && name > after.as_str()
    });
    let is_truncated = buckets.len() > max;
    buckets.truncate(max);
    let last = buckets.last().filter(|_| is_truncated);
    let continuation_token = last.map(|bucket| base64::encode(bucket.name.as_str().as_bytes()));
    let shown = buckets.iter().map(|bucket| Bucket {
        name: Some(bucket.name.as_str().to_owned()),
        creation_date: Some(timestamp(bucket.created_us)),
        bucket_region: input.max_buckets.map(|_| state.region.clone()),
    });
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(shown.collect()),
        continuation_token,
        owner: Some(Owner {
            id: Some(caller.id.as_str().to_owned()),
            display_name: Some(caller.display_name),
        }),
        prefix: input.prefix,
    }))
}
