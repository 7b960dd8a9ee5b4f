//! Policies that a seed writes with.

use std::cell::Cell;

use object_proto::StorageRule;
use wire::control::Policy;

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// The seed that this thread runs from now on.
pub(crate) fn begin(seed: u64) {
    SEED.set(seed);
}

/// `rep3` in half of the seeds, where writers chase the third copy (C14), `rep3-strict` in the
/// others. It is taken from the seed itself: a draw from the run's numbers would change what all
/// seeds do after it.
pub(super) fn drawn() -> Policy {
    let mixed = SEED.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if mixed >> 63 == 0 { Policy::strict(3) } else { Policy::rep(3) }
}

/// What a seed makes volumes with: in a third of the seeds what is collected has a code, `ec2+2`, which
/// survives as many losses (B3); else as [`drawn`].
pub(super) fn drawn_volume() -> Policy {
    match SEED.get() % 3 {
        1 => Policy::ec(2, 2),
        _ => drawn(),
    }
}

/// How a bucket's bodies are stored once collection has moved them, taken from the seed as well.
pub(super) fn drawn_storage() -> StorageRule {
    object_testing::storage::storage_of(SEED.get())
}
