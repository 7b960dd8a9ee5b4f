//! Identifiers of the object service.

use std::fmt;

base::id!(
    /// A bucket, random; never used again, also when a bucket of the same name is made later.
    BucketId(u64), "bkt_"
);
base::id!(
    /// A body that was sent, random. It is in each piece of the body and in the object's row: a place
    /// that holds other bytes is found out (`object-protocols.md` 9.1).
    DataId(u128), "dat_"
);
base::id!(
    /// Time of a commit, microseconds since 1970 by the owner's clock, but always above the range's
    /// commits before it (`object-protocols.md` 2.4).
    Stamp(u64), "stm_"
);
base::id!(
    /// A call of a client, as all attempts of it name it: a hash of the SDK's invocation ID, of the user
    /// and of the content (`object-protocols.md` 6.4).
    CallId(u128), "cal_"
);
base::id!(
    /// One life of a gateway, random. Never used again.
    SessionId(u64), "gws_"
);
base::id!(
    /// A range of buckets, whose keys one owner decides; never used again (`object-protocols.md` 1.3).
    RangeId(u64), "rng_"
);
base::id!(
    /// An object server. Numbers are used once.
    ObjectServerId(u32), "osv_"
);

/// Canonical ID of a user, as S3 shows it: any text without spaces.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct UserId(String);

impl UserId {
    /// From its text.
    pub fn new(text: impl Into<String>) -> UserId {
        UserId(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
