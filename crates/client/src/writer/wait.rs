//! How long an append waits for copies that it lacks (B15).

use runtime::{Duration, Instant};
use wire::control::SizeClass;

/// Waits for the copies of the oldest append, by the class of its size.
pub type BlockedAfter = [Duration; SizeClass::COUNT];

/// What a writer knows of its waiting.
#[derive(Clone, Debug)]
pub(super) struct CopyWait {
    pub(super) after: BlockedAfter,
    /// Chunks that ended since an append was acknowledged. Each doubles the wait.
    pub(super) ends: u32,
    /// This process stood still until then: what it did not hear before says nothing.
    pub(super) awake_since: Instant,
    /// The first append that is not acknowledged, when it has waited for long enough, and until when its
    /// answers may come yet.
    pub(super) last_look: Option<(u64, Instant)>,
    /// Spares are to be asked for: none is as good as the current chunk without late servers.
    pub(super) wants_spares: bool,
    /// But not before.
    pub(super) ask_after: Instant,
}

impl CopyWait {
    pub(super) fn new(after: Duration, now: Instant) -> CopyWait {
        CopyWait {
            after: [after; _],
            ends: 0,
            awake_since: now,
            last_look: None,
            wants_spares: false,
            ask_after: now,
        }
    }

    /// An append was acknowledged: nothing is blocked.
    pub(super) fn note_progress(&mut self) {
        self.ends = 0;
        self.last_look = None;
        self.wants_spares = false;
    }
}
