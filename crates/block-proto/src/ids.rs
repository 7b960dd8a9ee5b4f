//! IDs of processes of the block service, and numbers of attachments.

base::id!(
    /// A block server across restarts, given at its registration. Never reused.
    BlockServerId(u32), "bsv_"
);

/// Number of a request that opens a volume. `process` is drawn once by each process that opens volumes, `drawn` for
/// each attachment.
pub fn attachment_nonce(process: u32, drawn: u32) -> u64 {
    u64::from(process) << 32 | u64::from(drawn)
}

/// The process that has drawn an attachment's number. Processes before this version have drawn all 64 bits each time: each
/// attachment of theirs looks like one of another process.
pub fn attachment_process(nonce: u64) -> u32 {
    (nonce >> 32) as u32
}
