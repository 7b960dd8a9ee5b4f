//! [`Error`]: what a request to the object service may end with.

use std::fmt;

use base::Kind;

use crate::ids::Stamp;
use crate::limits::{KEYS_PER_USER_MAX, USERS_MAX};
use crate::versions::VersionId;

/// Failure of a request. The text has object, cause and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// There is no bucket of that name.
    NoSuchBucket,
    /// There is a bucket of that name.
    BucketExists {
        /// It is the caller's.
        own: bool,
    },
    /// The bucket holds objects, or its objects are being changed.
    BucketNotEmpty,
    /// The user has as many buckets as it may have.
    TooManyBuckets,
    /// There is no object with that key.
    NoSuchKey,
    /// The key has no such version.
    NoSuchVersion,
    /// What is there is a delete marker.
    Marker {
        /// Its ID.
        version: VersionId,
        /// When it was made.
        stamp: Stamp,
        /// It was asked for by its ID: else it is the newest version.
        asked: bool,
    },
    /// There is no such upload of that key: it was completed, aborted, or never begun.
    NoSuchUpload,
    /// An upload has no such part, or another body was sent as that part since.
    NoSuchPart {
        /// Its number.
        number: u16,
    },
    /// The version is retained or held: it is not removed, nor its lock weakened.
    Locked,
    /// The object is not as a condition wants it.
    Precondition,
    /// There is a user, or an access key, of that name.
    NameTaken,
    /// There is no such user.
    NoSuchUser,
    /// The user has no such access key.
    NoSuchAccessKey,
    /// The user has buckets.
    UserHasBuckets,
    /// There are as many users as there may be, or the user has as many access keys.
    TooManyUsers,
    /// Nothing was changed: ask again after a pause.
    Busy {
        /// Cause of the hold-up.
        cause: String,
    },
    /// The change may have been made, or be made still until its deadline.
    Unknown {
        /// The last failure met.
        cause: String,
    },
    /// The process does not own the key any more: ask the one that does.
    Reroute,
    /// A later process is this object server: this one owns nothing any more.
    Replaced,
    /// The owner does not keep the file that the change names: nothing was changed. It is announced again.
    Unheld,
    /// The gateway's session is over: no change of it is made any more.
    SessionOver,
    /// The cluster has no room.
    Full,
    /// Stored bytes differ from those that were written.
    Damaged {
        /// The place.
        what: String,
    },
    /// The request cannot be granted as it is.
    Invalid {
        /// Cause and remedy.
        message: String,
    },
}

impl Error {
    /// The receiver's reaction.
    pub fn kind(&self) -> Kind {
        match self {
            Error::NoSuchBucket
            | Error::NoSuchKey
            | Error::NoSuchVersion
            | Error::Marker { .. }
            | Error::NoSuchUpload
            | Error::NoSuchPart { .. }
            | Error::NoSuchUser
            | Error::NoSuchAccessKey => Kind::NotFound,
            Error::BucketExists { .. } | Error::NameTaken => Kind::Exists,
            Error::BucketNotEmpty
            | Error::TooManyBuckets
            | Error::UserHasBuckets
            | Error::TooManyUsers
            | Error::Locked
            | Error::Precondition
            | Error::Invalid { .. } => Kind::Invalid,
            Error::Busy { .. } | Error::Unheld => Kind::Retry,
            Error::Unknown { .. } => Kind::Unknown,
            Error::Reroute => Kind::Reroute,
            Error::SessionOver | Error::Replaced => Kind::Fenced,
            Error::Full => Kind::Full,
            Error::Damaged { .. } => Kind::Corrupt,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchBucket => f.write_str("there is no bucket of that name"),
            Error::BucketExists { own: true } => f.write_str("you have a bucket of that name"),
            Error::BucketExists { own: false } => {
                f.write_str("another user has a bucket of that name: choose another name")
            }
            Error::BucketNotEmpty => f.write_str(
                "the bucket holds objects, or they are being changed: delete them first",
            ),
            Error::TooManyBuckets => {
                f.write_str("you have as many buckets as a user may have: delete one")
            }
            Error::NoSuchKey => f.write_str("there is no object with that key"),
            Error::NoSuchVersion => f.write_str("the key has no such version"),
            Error::Marker { version, .. } => {
                write!(f, "the object is deleted: version {version} of its key says so")
            }
            Error::NoSuchUpload => f.write_str(
                "there is no such upload of that key: it was completed, aborted, or never begun",
            ),
            Error::NoSuchPart { number } => {
                write!(f, "the upload has no part {number}, or it was sent again: list the parts")
            }
            Error::Locked => f.write_str(
                "the version is locked: wait until its retention ends, or take its hold off",
            ),
            Error::Precondition => f.write_str("a condition of the request does not hold"),
            Error::NameTaken => {
                f.write_str("there is a user of that name or ID, or an access key of that name")
            }
            Error::NoSuchUser => f.write_str("there is no such user"),
            Error::NoSuchAccessKey => f.write_str("the user has no such access key"),
            Error::UserHasBuckets => {
                f.write_str("the user has buckets: remove them first, or have them removed")
            }
            Error::TooManyUsers => write!(
                f,
                "there are {USERS_MAX} users, or {KEYS_PER_USER_MAX} access keys of the user, as many as \
                 there may be: remove some"
            ),
            Error::Busy { cause } => write!(f, "{cause}; nothing was changed: try again"),
            Error::Unknown { cause } => {
                write!(f, "{cause}; it may or may not have been done: look, or try again")
            }
            Error::Reroute => f.write_str("the process that owns it now was not reached"),
            Error::Replaced => f.write_str("a later process is this object server"),
            Error::Unheld => {
                f.write_str("the owner does not keep the file of the body: it is announced again")
            }
            Error::SessionOver => f.write_str("the gateway's session is over: it begins another"),
            Error::Full => f.write_str("the cluster is full: add a chunkserver or delete objects"),
            Error::Damaged { what } => write!(f, "{what}: stored bytes are not those written"),
            Error::Invalid { message } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}
