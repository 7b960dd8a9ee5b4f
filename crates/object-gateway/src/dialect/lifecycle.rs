//! Lifecycle of buckets: PutBucketLifecycleConfiguration, GetBucketLifecycleConfiguration, DeleteBucketLifecycle.

mod rules;
mod shown;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use object_proto::Setting;
use object_proto::limits::LIFECYCLE_MAX;
use s3s::dto::{
    DeleteBucketLifecycleInput, DeleteBucketLifecycleOutput, GetBucketLifecycleConfigurationInput,
    GetBucketLifecycleConfigurationOutput, PutBucketLifecycleConfigurationInput,
    PutBucketLifecycleConfigurationOutput, TransitionDefaultMinimumObjectSize,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::settings::{set, settings_of};
use super::state::{State, not_implemented};
use super::unset::Missing;
use crate::clock;
use crate::errors::internal;

pub use rules::{lifecycle_of, shown_rules};
pub use shown::{show_abort, show_expiry, show_made};

/// An ID for a rule without one.
fn new_id() -> Option<String> {
    let bytes: [u8; 16] = clock::random_bytes()?;
    Some(crate::hex::encode(&bytes))
}

/// What of transitions every configuration has that S3 takes without them.
fn minimum_size() -> Option<TransitionDefaultMinimumObjectSize> {
    let name = TransitionDefaultMinimumObjectSize::ALL_STORAGE_CLASSES_128K;
    Some(TransitionDefaultMinimumObjectSize::from_static(name))
}

/// Gives a bucket rules in place of those that it has.
pub async fn put_lifecycle(
    state: &State,
    mut request: S3Request<PutBucketLifecycleConfigurationInput>,
) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
    let size = request.input.transition_default_minimum_object_size.as_ref();
    if size.is_some() && size != minimum_size().as_ref() {
        return Err(not_implemented("A transition of objects by their size"));
    }
    let document = request.input.lifecycle_configuration.take();
    let document = document.ok_or_else(|| S3Error::new(S3ErrorCode::MalformedXML))?;
    let lifecycle = lifecycle_of(document, || new_id().ok_or_else(internal))?;
    if lifecycle.encoded_len() > LIFECYCLE_MAX {
        let message = format!("The rules of a bucket have {LIFECYCLE_MAX} bytes at most");
        return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message));
    }
    set(state, &request, Setting::Lifecycle(Some(Arc::new(lifecycle)))).await?;
    let transition_default_minimum_object_size = minimum_size();
    let output = PutBucketLifecycleConfigurationOutput { transition_default_minimum_object_size };
    Ok(S3Response::new(output))
}

/// A bucket's rules, as they were put.
pub fn get_lifecycle(
    request: &S3Request<GetBucketLifecycleConfigurationInput>,
) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
    let lifecycle = settings_of(request)?.lifecycle.as_ref();
    let lifecycle = lifecycle.ok_or_else(|| Missing::Lifecycle.error())?;
    Ok(S3Response::new(GetBucketLifecycleConfigurationOutput {
        rules: Some(shown_rules(lifecycle)),
        transition_default_minimum_object_size: minimum_size(),
    }))
}

/// Takes a bucket's rules away.
pub async fn delete_lifecycle(
    state: &State,
    request: S3Request<DeleteBucketLifecycleInput>,
) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
    if settings_of(&request)?.lifecycle.is_some() {
        set(state, &request, Setting::Lifecycle(None)).await?;
    }
    Ok(S3Response::new(DeleteBucketLifecycleOutput {}))
}
