//! Users, their access keys, and what gateways hear of changes to them (`object-protocols.md` 11.2 and
//! 11.3).

use crate::ids::UserId;
use crate::names::BucketName;
use crate::usage::Quota;

/// A user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct User {
    /// Canonical ID.
    pub id: UserId,
    /// Name, as operators use it: no other user has it.
    pub name: String,
    /// Name, as S3 shows it.
    pub display_name: String,
    /// Mail address; empty for none.
    pub email: String,
    /// May do all.
    pub admin: bool,
    /// What it may do beyond its own buckets, or may not: a policy in S3's JSON.
    pub policy: Option<String>,
    /// How much all its buckets together may hold.
    pub quota: Quota,
}

/// An access key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessKey {
    /// Its public part.
    pub id: String,
    /// Whose it is.
    pub user: User,
    /// Its secret part, wrapped by the gateways' key file.
    pub wrapped_secret: Vec<u8>,
    /// Requests that are signed with it are served.
    pub enabled: bool,
    /// They are served before this time, microseconds since 1970; for ever without.
    pub expires_us: Option<u64>,
    /// Nothing but what this policy allows.
    pub policy: Option<String>,
}

/// An access key that is to be there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewKey {
    /// Its public part.
    pub id: String,
    /// See [`AccessKey::wrapped_secret`].
    pub wrapped_secret: Vec<u8>,
    /// See [`AccessKey::expires_us`].
    pub expires_us: Option<u64>,
    /// See [`AccessKey::policy`].
    pub policy: Option<String>,
}

/// A change of users and keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UserChange {
    /// Makes a user with a key. Its ID, its name and the key's ID are new.
    Create {
        /// The user.
        user: Box<User>,
        /// Its key.
        key: Box<NewKey>,
    },
    /// Removes a user that has no buckets, and its keys.
    Remove(UserId),
    /// Gives a user another policy, or none.
    SetPolicy {
        /// The user.
        user: UserId,
        /// The policy.
        policy: Option<String>,
    },
    /// Gives a user another quota, or none.
    SetQuota {
        /// The user.
        user: UserId,
        /// The quota.
        quota: Quota,
    },
    /// Gives a user another bound of objects, or none. Its bound of bytes stays.
    SetQuotaObjects {
        /// The user.
        user: UserId,
        /// See [`Quota::objects`].
        objects: Option<u64>,
    },
    /// Gives a user another bound of bytes, or none. Its bound of objects stays.
    SetQuotaBytes {
        /// The user.
        user: UserId,
        /// See [`Quota::bytes`].
        bytes: Option<u64>,
    },
    /// Makes an access key of a user.
    AddKey {
        /// The user.
        user: UserId,
        /// The key.
        key: Box<NewKey>,
    },
    /// Removes an access key of a user.
    RemoveKey {
        /// The user.
        user: UserId,
        /// The key's ID.
        key: String,
    },
    /// Has requests served, or not, that are signed with an access key.
    EnableKey {
        /// The user.
        user: UserId,
        /// The key's ID.
        key: String,
        /// They are served.
        enabled: bool,
    },
}

impl UserChange {
    /// The user that it concerns.
    pub fn user(&self) -> &UserId {
        match self {
            UserChange::Create { user, .. } => &user.id,
            UserChange::Remove(user)
            | UserChange::SetPolicy { user, .. }
            | UserChange::SetQuota { user, .. }
            | UserChange::SetQuotaObjects { user, .. }
            | UserChange::SetQuotaBytes { user, .. }
            | UserChange::AddKey { user, .. }
            | UserChange::RemoveKey { user, .. }
            | UserChange::EnableKey { user, .. } => user,
        }
    }

    /// The user's quota behind the change; none when it changes something else.
    pub fn quota(&self, before: Quota) -> Option<Quota> {
        match self {
            UserChange::SetQuota { quota, .. } => Some(*quota),
            UserChange::SetQuotaObjects { objects, .. } => {
                Some(Quota { objects: *objects, ..before })
            }
            UserChange::SetQuotaBytes { bytes, .. } => Some(Quota { bytes: *bytes, ..before }),
            UserChange::Create { .. }
            | UserChange::Remove(_)
            | UserChange::SetPolicy { .. }
            | UserChange::AddKey { .. }
            | UserChange::RemoveKey { .. }
            | UserChange::EnableKey { .. } => None,
        }
    }
}

/// How far a manager's changes of what gateways keep have come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SeenChanges {
    /// The manager's epoch.
    pub epoch: u64,
    /// Its changes so far.
    pub number: u64,
}

/// What gateways keep of the catalog.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeptName {
    /// A bucket with its settings.
    Bucket(BucketName),
    /// An access key with its user.
    Key(String),
}

/// Changes since those that a gateway has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptChanges {
    /// With these it has seen so many.
    pub seen: SeenChanges,
    /// What was changed; all may have been for none.
    pub names: Option<Vec<KeptName>>,
}
