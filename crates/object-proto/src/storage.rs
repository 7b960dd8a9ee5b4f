//! [`StorageRule`]: how the core keeps the bodies of a bucket's objects (`object-protocols.md` 5.3, 10.1).

use wire::control::{Compression, Policy};

/// How files with bodies of a bucket are stored. What is small enough for the log of a range is stored as that log
/// is, in copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StorageRule {
    /// Copies or a code, without a compression; none for the service's default.
    pub durability: Option<Policy>,
    /// How the core's client compresses bodies.
    pub compression: Option<Compression>,
}

impl StorageRule {
    /// The policy of files, where `default` is the service's.
    pub fn policy(&self, default: Policy) -> Policy {
        self.durability.unwrap_or(default).compressed(self.compression)
    }
}

/// What is known of a body before it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BodyPlan {
    /// Its bytes, if that is known.
    pub len: Option<u64>,
    /// How it is stored.
    pub storage: StorageRule,
}

impl BodyPlan {
    /// Stored by the service's default.
    pub fn sized(len: Option<u64>) -> BodyPlan {
        BodyPlan { len, ..BodyPlan::default() }
    }
}
