//! Figures of block servers about their segments: checks, scrubs, space.

/// Findings of a check that one answer names; more are counted only.
pub const FINDINGS_MAX: usize = 64;

/// Findings of one piece of a segment's check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentCheck {
    /// Start of the next piece; 0 when this was the last.
    pub next: u64,
    /// Blocks with data that were read and verified.
    pub blocks: u64,
    /// DataFiles that were compared with the directory.
    pub files: u64,
    /// Findings in words; the first of them.
    pub findings: Vec<String>,
    /// Number of findings.
    pub findings_count: u64,
}

/// Progress of a segment's scrub (B14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SegmentScrub {
    /// Passes over the whole segment.
    pub passes: u64,
    /// Bytes of the segment that the present pass has behind it.
    pub done_bytes: u64,
    /// Bytes of the segment.
    pub total_bytes: u64,
    /// Bytes of blocks that were read and verified since its owner opened it.
    pub read_bytes: u64,
    /// Blocks that did not verify in this pass, or in the last if those were more.
    pub damaged: u64,
}

/// Space of a segment, and bytes that its present opening has written (B3, C29). Bytes of one copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SegmentUsage {
    /// Number of the segment in its volume.
    pub index: u32,
    /// DataFiles.
    pub files: u64,
    /// Bytes of them.
    pub file_bytes: u64,
    /// Bytes that they take on media, all copies or fragments; 0 from a server that does not say.
    pub stored_bytes: u64,
    /// Blocks with data in them.
    pub blocks: u64,
    /// Of these, blocks of the volume's content; the rest is garbage.
    pub live: u64,
    /// Bytes that were written to DataFiles for requests.
    pub append_bytes: u64,
    /// Bytes that were copied by garbage collection.
    pub collected_bytes: u64,
    /// Bytes that garbage collection has read.
    pub collect_read_bytes: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
}
