//! What processes of the block service are known by.

base::id!(
    /// A block server across restarts, given at its registration. Never reused.
    BlockServerId(u32), "bsv_"
);
