//! IDs of processes of the block service.

base::id!(
    /// A block server across restarts, given at its registration. Never reused.
    BlockServerId(u32), "bsv_"
);
