//! DataFiles of the core for direct reads, and the backoff after reads that failed.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use block_volume::contract::Answer;
use block_volume::ids::SegmentId;
use runtime::{Env, Instant};
use table::Source;

use crate::limits::DIRECT_PAUSE;

/// Opens DataFiles for a client.
pub trait DataFiles {
    /// Opens a file of a segment's directory for reading.
    /// The directory is looked up again: a segment that was discarded may have been made again.
    fn open<'a>(&'a self, segment: SegmentId, name: &'a str) -> Answer<'a, Rc<dyn Source>>;
}

/// Backoff of direct reads. After a failure all reads of a volume go through the block servers for
/// a while; then one read tries again.
#[derive(Default)]
pub(super) struct DirectReadBackoff {
    not_before: Cell<Instant>,
    /// Backoff after the last failed read; zero after a success.
    pause: Cell<Duration>,
    /// Reads under way.
    tries: Cell<usize>,
}

/// A read under way.
pub(super) struct Try<'a>(&'a DirectReadBackoff);

impl Drop for Try<'_> {
    fn drop(&mut self) {
        self.0.tries.set(self.0.tries.get() - 1);
    }
}

impl DirectReadBackoff {
    pub(super) fn allows(&self, env: &Env) -> bool {
        let tried = self.tries.get() > 0 && !self.pause.get().is_zero();
        env.now() >= self.not_before.get() && !tried
    }

    pub(super) fn begin(&self) -> Try<'_> {
        self.tries.set(self.tries.get() + 1);
        Try(self)
    }

    pub(super) fn note_success(&self) {
        self.pause.set(Duration::ZERO);
    }

    pub(super) fn note_failure(&self, env: &Env) {
        if env.now() < self.not_before.get() {
            return; // Another read that was under way has noted it.
        }
        let (first, longest) = DIRECT_PAUSE;
        let pause = (2 * self.pause.get()).clamp(first, longest);
        self.pause.set(pause);
        self.not_before.set(env.now() + env.jitter(pause));
    }
}
