//! How far scrub is on a disk, for operators.

use std::cell::Cell;

use base::DiskId;
use runtime::Instant;
use runtime::sync::Notify;
use wire::control::DiskScrub;

/// The pass under way, or the last one.
#[derive(Default)]
pub(crate) struct Progress {
    passes: Cell<u64>,
    running: Cell<bool>,
    done: Cell<u64>,
    replicas: Cell<u64>,
    damaged: Cell<u64>,
    ended: Cell<Option<Instant>>,
    asked: Notify,
}

impl Progress {
    pub(crate) fn begin(&self, replicas: u64) {
        self.running.set(true);
        self.replicas.set(replicas);
        self.done.set(0);
        self.damaged.set(0);
    }

    pub(crate) fn note_done(&self) {
        self.done.set(self.done.get() + 1);
    }

    pub(crate) fn note_damaged(&self) {
        self.damaged.set(self.damaged.get() + 1);
    }

    pub(crate) fn end(&self, now: Instant) {
        self.running.set(false);
        self.passes.set(self.passes.get() + 1);
        self.ended.set(Some(now));
    }

    /// An operator wants the next pass now; nothing while one is under way.
    pub(crate) fn ask(&self) {
        if !self.running.get() {
            self.asked.notify_one();
        }
    }

    /// Returns when an operator wants the next pass.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    pub(crate) fn report(&self, disk: DiskId, now: Instant) -> DiskScrub {
        let since = |at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
        DiskScrub {
            disk,
            passes: self.passes.get(),
            running: self.running.get(),
            done: self.done.get(),
            replicas: self.replicas.get(),
            damaged: self.damaged.get(),
            ended_ms: self.ended.get().map(since),
        }
    }
}
