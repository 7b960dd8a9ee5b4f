//! How bodies of a load are stored.

use object_proto::{BodyPlan, StorageRule};
use runtime::Rng;
use wire::control::{Compression, Policy};

/// How a body is stored: each way in which buckets may have it.
pub fn storage_of(value: u64) -> StorageRule {
    let (durability, compression) = match Rng::new(value ^ 0x57a6).below(4) {
        0 => (Some(Policy::ec(2, 1)), None),
        1 => (Some(Policy::ec(2, 1)), Some(Compression::LZ4)),
        2 => (None, Some(Compression::ZSTD)),
        _ => return StorageRule::default(),
    };
    StorageRule { durability, compression }
}

/// The same, of a body whose length is not known.
pub(crate) fn plan_of(value: u64) -> BodyPlan {
    BodyPlan { len: None, storage: storage_of(value) }
}
