//! [`BucketSettings`]: what a bucket's owner sets, for gateways to go by.

use std::collections::BTreeMap;
use std::sync::Arc;

use wire::control::{Compression, Policy};

use crate::ids::UserId;
use crate::lifecycle::Lifecycle;
use crate::locks::LockRule;
use crate::storage::StorageRule;
use crate::usage::Quota;

/// Settings of a bucket. [`BucketSettings::default`] is what S3 gives a new one: ACLs are off, nothing is
/// public.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BucketSettings {
    /// Who may what, in S3's JSON.
    pub policy: Option<String>,
    /// What of it and of ACLs counts for nothing since it is public.
    pub public_access: PublicAccess,
    /// Whose objects are.
    pub ownership: Ownership,
    /// Permissions, all of them; none for the owner's full control alone.
    pub acl: Vec<Grant>,
    /// What scripts of other sites may ask.
    pub cors: Vec<CorsRule>,
    /// Names and values.
    pub tags: BTreeMap<String, String>,
    /// Object lock, once it is enabled: for ever, and with versions.
    pub lock: Option<LockRule>,
    /// How much it may hold.
    pub quota: Quota,
    /// How new objects are encrypted.
    pub encryption: BucketEncryption,
    /// What becomes of its objects with time; none without rules.
    pub lifecycle: Option<Arc<Lifecycle>>,
    /// How its objects are stored: new ones, and those that collection moves.
    pub storage: StorageRule,
}

/// How new objects of a bucket are encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketEncryption {
    /// What is done where a request asks for nothing.
    pub default: Option<DefaultEncryption>,
    /// What is written into the bucket may not be encrypted with keys of clients (SSE-C).
    pub blocks_customer_keys: bool,
}

impl Default for BucketEncryption {
    fn default() -> BucketEncryption {
        BucketEncryption { default: None, blocks_customer_keys: true }
    }
}

/// Encryption where a request asks for none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DefaultEncryption {
    /// SSE-S3.
    S3,
    /// SSE-KMS.
    Kms {
        /// The key; the default one for none.
        key: Option<String>,
        /// Answers say that a key of the bucket is used.
        bucket_key: bool,
    },
}

/// Blocks of what is public.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublicAccess {
    /// An ACL that allows all is refused.
    pub block_acls: bool,
    /// What an ACL allows all is not granted.
    pub ignore_acls: bool,
    /// A policy that allows all is refused.
    pub block_policy: bool,
    /// Under such a policy, only the owner's requests are served.
    pub restrict: bool,
}

impl PublicAccess {
    /// All of them, or none.
    pub const fn all(blocked: bool) -> PublicAccess {
        PublicAccess {
            block_acls: blocked,
            ignore_acls: blocked,
            block_policy: blocked,
            restrict: blocked,
        }
    }
}

impl Default for PublicAccess {
    fn default() -> PublicAccess {
        PublicAccess::all(true)
    }
}

/// Whose objects are, and whether ACLs count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ownership {
    /// The bucket's owner's; ACLs are off.
    #[default]
    Enforced,
    /// The bucket's owner's, if the writer grants it full control; else the writer's.
    Preferred,
    /// The writer's.
    Writer,
    /// The writer's, as nothing was said.
    Unset,
}

/// A permission that an ACL grants.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Grant {
    /// To whom.
    pub grantee: Grantee,
    /// What.
    pub permission: Permission,
}

/// Whom an ACL grants something.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Grantee {
    /// A user.
    User(UserId),
    /// Everybody, without a signature too.
    All,
    /// Users.
    Authenticated,
    /// The service that writes logs of requests, which there is not.
    LogDelivery,
}

/// What an ACL grants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Permission {
    /// All.
    Full,
    /// To read an object, or to list a bucket.
    Read,
    /// To put and delete objects of a bucket.
    Write,
    /// To read the ACL.
    ReadAcl,
    /// To change the ACL.
    WriteAcl,
}

/// What scripts of some sites may ask of a bucket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CorsRule {
    /// Its name; empty for none.
    pub id: String,
    /// Sites, with a `*` each at most.
    pub origins: Vec<String>,
    /// Methods.
    pub methods: Vec<String>,
    /// Headers of requests, with a `*` each at most.
    pub headers: Vec<String>,
    /// Headers of answers that scripts may read.
    pub expose: Vec<String>,
    /// Seconds that a browser keeps this.
    pub max_age: Option<u32>,
}

/// A setting of a bucket, as it is from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting {
    /// See [`BucketSettings::policy`].
    Policy(Option<String>),
    /// See [`BucketSettings::public_access`].
    PublicAccess(PublicAccess),
    /// See [`BucketSettings::ownership`].
    Ownership(Ownership),
    /// See [`BucketSettings::acl`].
    Acl(Vec<Grant>),
    /// See [`BucketSettings::cors`].
    Cors(Vec<CorsRule>),
    /// See [`BucketSettings::tags`].
    Tags(BTreeMap<String, String>),
    /// See [`BucketSettings::lock`].
    Lock(LockRule),
    /// See [`BucketSettings::quota`].
    Quota(Quota),
    /// See [`BucketSettings::encryption`].
    Encryption(BucketEncryption),
    /// What is done where a request asks for nothing. The other half of [`BucketSettings::encryption`] stays.
    DefaultEncryption(Option<DefaultEncryption>),
    /// See [`BucketEncryption::blocks_customer_keys`]. The other half stays.
    CustomerKeysBlocked(bool),
    /// See [`BucketSettings::lifecycle`].
    Lifecycle(Option<Arc<Lifecycle>>),
    /// See [`BucketSettings::storage`].
    Storage(StorageRule),
    /// See [`StorageRule::durability`]. The other half of [`BucketSettings::storage`] stays.
    Durability(Option<Policy>),
    /// See [`StorageRule::compression`]. The other half stays.
    Compression(Option<Compression>),
    /// See [`Quota::objects`]. The other half of [`BucketSettings::quota`] stays.
    QuotaObjects(Option<u64>),
    /// See [`Quota::bytes`]. The other half stays.
    QuotaBytes(Option<u64>),
    /// See [`PublicAccess::block_policy`] and [`PublicAccess::restrict`]. What is said of ACLs stays.
    PublicPoliciesBlocked(bool),
}

impl Setting {
    /// The owner of a bucket's keys goes by it too.
    pub fn is_for_owner(&self) -> bool {
        match self {
            Setting::Lock(_)
            | Setting::Lifecycle(_)
            | Setting::Storage(_)
            | Setting::Durability(_)
            | Setting::Compression(_) => true,
            Setting::Policy(_)
            | Setting::PublicAccess(_)
            | Setting::PublicPoliciesBlocked(_)
            | Setting::Ownership(_)
            | Setting::Acl(_)
            | Setting::Cors(_)
            | Setting::Tags(_)
            | Setting::Quota(_)
            | Setting::QuotaObjects(_)
            | Setting::QuotaBytes(_)
            | Setting::Encryption(_)
            | Setting::DefaultEncryption(_)
            | Setting::CustomerKeysBlocked(_) => false,
        }
    }
}

impl BucketSettings {
    /// Changes a setting.
    pub fn set(&mut self, setting: Setting) {
        match setting {
            Setting::Policy(policy) => self.policy = policy,
            Setting::PublicAccess(blocks) => self.public_access = blocks,
            Setting::Ownership(ownership) => self.ownership = ownership,
            Setting::Acl(grants) => self.acl = grants,
            Setting::Cors(rules) => self.cors = rules,
            Setting::Tags(tags) => self.tags = tags,
            Setting::Lock(rule) => self.lock = Some(rule),
            Setting::Quota(quota) => self.quota = quota,
            Setting::Encryption(encryption) => self.encryption = encryption,
            Setting::DefaultEncryption(default) => self.encryption.default = default,
            Setting::CustomerKeysBlocked(blocked) => {
                self.encryption.blocks_customer_keys = blocked;
            }
            Setting::Lifecycle(lifecycle) => self.lifecycle = lifecycle,
            Setting::Storage(storage) => self.storage = storage,
            Setting::Durability(durability) => self.storage.durability = durability,
            Setting::Compression(compression) => self.storage.compression = compression,
            Setting::QuotaObjects(objects) => self.quota.objects = objects,
            Setting::QuotaBytes(bytes) => self.quota.bytes = bytes,
            Setting::PublicPoliciesBlocked(blocked) => {
                self.public_access.block_policy = blocked;
                self.public_access.restrict = blocked;
            }
        }
    }

    /// Settings that are not as in a new bucket, in a fixed order.
    pub fn chosen(&self) -> Vec<Setting> {
        let BucketSettings {
            policy,
            public_access,
            ownership,
            acl,
            cors,
            tags,
            lock,
            quota,
            encryption,
            lifecycle,
            storage,
        } = self.clone();
        let new = BucketSettings::default();
        [
            (policy != new.policy).then_some(Setting::Policy(policy)),
            (public_access != new.public_access).then_some(Setting::PublicAccess(public_access)),
            (ownership != new.ownership).then_some(Setting::Ownership(ownership)),
            (acl != new.acl).then_some(Setting::Acl(acl)),
            (cors != new.cors).then_some(Setting::Cors(cors)),
            (tags != new.tags).then_some(Setting::Tags(tags)),
            lock.map(Setting::Lock),
            (quota != new.quota).then_some(Setting::Quota(quota)),
            (encryption != new.encryption).then_some(Setting::Encryption(encryption)),
            lifecycle.map(|lifecycle| Setting::Lifecycle(Some(lifecycle))),
            (storage != new.storage).then_some(Setting::Storage(storage)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
