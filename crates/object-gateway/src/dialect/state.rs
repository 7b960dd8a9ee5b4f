//! What operations stand on, and what they ask of each request.

use std::sync::Arc;
use std::time::Duration;

use object_proto::limits::LIST_MAX;
use object_proto::{
    Backend, Bucket, BucketSettings, ChecksumPlan, Committed, LifecycleDay, NewObject, ObjectInfo,
    ObjectKey, Ownership, PartNumber, Stamp, Target, User, UserId, VersionId, Versioning,
};
use s3s::dto::{ChecksumAlgorithm, ChecksumType, Owner, Timestamp};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::sealer::Sealer;
use crate::actions::Action;
use crate::budget::Budget;
use crate::context::RequestContext;
use crate::digest::name_of;
use crate::errors::{internal, s3_error};
use crate::facts::Facts;
use crate::rights::{Place, Places, Rights, Ruled, denied, hides_keys};

/// What operations stand on.
#[derive(Clone)]
pub struct State {
    /// Buckets and objects.
    pub backend: Arc<dyn Backend>,
    /// Buckets with their policies.
    pub places: Arc<Places>,
    /// Encryption of objects.
    pub sealer: Arc<Sealer>,
    /// Memory for bodies.
    pub budget: Budget,
    /// Time that a download waits for its share of memory.
    pub claim_time: Duration,
    /// Region, as clients see it.
    pub region: String,
    /// Settings of new buckets, where requests say nothing.
    pub new_buckets: BucketSettings,
    /// Length of a day of lifecycle.
    pub lifecycle_day: LifecycleDay,
}

/// The bucket that access was checked for, with its settings.
pub fn place_of<T>(request: &S3Request<T>) -> S3Result<&Arc<Ruled>> {
    request.extensions.get::<Place>().map(|place| &place.0).ok_or_else(internal)
}

/// The bucket that access was checked for.
pub fn bucket_of<T>(request: &S3Request<T>) -> S3Result<&Bucket> {
    place_of(request).map(|place| &place.view.bucket)
}

/// What the caller may.
pub fn rights_of<T>(request: &S3Request<T>) -> S3Result<&Rights> {
    request.extensions.get::<Rights>().ok_or_else(internal)
}

/// The user that access was checked for.
pub fn caller_of<T>(request: &S3Request<T>) -> S3Result<&User> {
    rights_of(request)?.user().ok_or_else(denied)
}

/// Whose an object will be that the request makes.
pub fn owner_of<T>(request: &S3Request<T>) -> S3Result<UserId> {
    let view = &place_of(request)?.view;
    let acl = request.headers.get("x-amz-acl");
    let is_owners = match view.settings.ownership {
        Ownership::Enforced => true,
        Ownership::Preferred => acl.is_some_and(|acl| acl == "bucket-owner-full-control"),
        Ownership::Writer | Ownership::Unset => false,
    };
    match is_owners {
        true => Ok(view.bucket.owner.clone()),
        false => rights_of(request).map(Rights::id),
    }
}

/// The caller as listings name it. Names of others would be a request to the object manager.
#[derive(Clone, Default)]
pub struct Lister(Option<(UserId, String)>);

impl Lister {
    /// Of a request.
    pub fn of<T>(request: &S3Request<T>) -> S3Result<Lister> {
        let user = rights_of(request)?.user();
        Ok(Lister(user.map(|user| (user.id.clone(), user.display_name.clone()))))
    }

    /// The name of a user, if it is the caller.
    pub fn name_of(&self, id: &UserId) -> Option<String> {
        self.0.as_ref().filter(|(own, _)| own == id).map(|(_, name)| name.clone())
    }

    /// An owner, with its name if it is the caller.
    pub fn owner(&self, id: &UserId) -> Owner {
        Owner { id: Some(id.as_str().to_owned()), display_name: self.name_of(id) }
    }
}

/// S3's error for a read: who may not list the bucket does not learn which keys there are.
pub fn read_error<T>(request: &S3Request<T>, error: object_proto::Error) -> S3Error {
    match place_of(request) {
        Ok(place) => hidden_error(rights_of(request), place, &Facts::of(request), error),
        Err(error) => error,
    }
}

/// The same for a read in any bucket.
pub fn hidden_error(
    rights: S3Result<&Rights>,
    place: &Ruled,
    facts: &Facts<'_>,
    error: object_proto::Error,
) -> S3Error {
    match rights {
        Err(error) => error,
        Ok(rights) if hides_keys(&error) && !rights.may(Action::LIST, (place, None), facts) => {
            denied()
        }
        Ok(_) => s3_error(error),
    }
}

/// The request's context.
pub fn context_of<T>(request: &S3Request<T>) -> S3Result<&Arc<RequestContext>> {
    request.extensions.get().ok_or_else(internal)
}

/// The place of a key in the bucket that access was checked for.
pub fn target_of<T>(request: &S3Request<T>, key: &str) -> S3Result<Target> {
    let too_long = |_| S3Error::with_message(S3ErrorCode::KeyTooLongError, "Your key is too long");
    let key = ObjectKey::new(key).map_err(too_long)?;
    Ok(Target { bucket: bucket_of(request)?.id, key })
}

/// A feature that is not there.
pub fn not_implemented(what: &str) -> S3Error {
    let message = format!("{what} is not implemented");
    S3Error::with_message(S3ErrorCode::NotImplemented, message)
}

/// There is no memory for the request now.
pub fn slow_down() -> S3Error {
    S3Error::with_message(S3ErrorCode::SlowDown, "Please reduce your request rate.")
}

/// The version that a request names.
pub fn version_id_of(id: Option<&str>) -> S3Result<Option<VersionId>> {
    let invalid =
        || S3Error::with_message(S3ErrorCode::InvalidArgument, "Invalid version id specified");
    id.map(|id| VersionId::parse(id).ok_or_else(invalid)).transpose()
}

/// The version that a change has made, as answers name it.
pub fn made_version(committed: &Committed) -> Option<String> {
    committed.version.map(|version| version.to_string())
}

/// The version that an object is, as answers name it: of a bucket without versions none has a name.
pub fn shown_version(bucket: &Bucket, info: &ObjectInfo) -> Option<String> {
    let is_named = bucket.versioning != Versioning::Off || info.has_id;
    is_named.then(|| info.version().to_string())
}

/// A part's number.
pub fn part_number_of(number: i32) -> S3Result<PartNumber> {
    let number = u64::try_from(number).ok().and_then(PartNumber::new);
    number.ok_or_else(|| {
        let message = "Part number must be an integer between 1 and 10000, inclusive";
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    })
}

/// Entries of a page at most.
pub fn count_of(asked: Option<i32>, name: &str) -> S3Result<u32> {
    let Some(asked) = asked else { return Ok(LIST_MAX) };
    let asked = u32::try_from(asked).map_err(|_| out_of_bounds(name))?;
    Ok(asked.min(LIST_MAX))
}

/// S3's error for a count or marker that is none.
pub fn out_of_bounds(name: &str) -> S3Error {
    let message = format!("Argument {name} must be an integer between 0 and 2147483647");
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

/// Algorithm and type of checksums, as S3 names them.
pub fn shown_plan(plan: Option<ChecksumPlan>) -> (Option<ChecksumAlgorithm>, Option<ChecksumType>) {
    let algorithm = plan.map(|plan| ChecksumAlgorithm::from_static(name_of(plan.kind)));
    (algorithm, plan.map(|plan| checksum_type(plan.composite)))
}

/// Type of a checksum, as S3 names it.
pub fn checksum_type(is_composite: bool) -> ChecksumType {
    ChecksumType::from_static(match is_composite {
        true => ChecksumType::COMPOSITE,
        false => ChecksumType::FULL_OBJECT,
    })
}

/// Bytes of an object's content. One whose row is damaged has those that are stored.
pub fn shown_size(object: &NewObject) -> i64 {
    i64::try_from(object.content_size().unwrap_or(object.size)).unwrap_or(i64::MAX)
}

/// The last second of the year 9999: later times have no text.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time as S3 shows it.
pub fn timestamp(us: u64) -> Timestamp {
    let since = Duration::from_micros(us).min(Duration::from_secs(LAST_SECOND));
    Timestamp::from(std::time::UNIX_EPOCH + since)
}

/// Time of a commit.
pub fn modified(stamp: Stamp) -> Timestamp {
    timestamp(stamp.get())
}
