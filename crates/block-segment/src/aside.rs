//! DataFiles that collection has set aside.

use std::collections::BTreeMap;

use base::Kind;
use block_volume::ids::FileNo;
use runtime::{Duration, Instant};

use super::limits::{COLLECT_ASIDE_DAMAGED, COLLECT_RETRY};

/// Files that could not be collected: number of failures, and time of the next try.
#[derive(Default)]
pub(crate) struct Aside(pub(super) BTreeMap<FileNo, (u32, Instant)>);

impl Aside {
    pub(super) fn put(&mut self, file: FileNo, now: Instant, kind: Kind) {
        let (times, until) = self.0.entry(file).or_insert((0, now));
        *until = now + if kind == Kind::Corrupt { COLLECT_ASIDE_DAMAGED } else { pause(*times) };
        *times += 1;
    }

    pub(super) fn has(&self, file: FileNo, now: Instant) -> bool {
        self.0.get(&file).is_some_and(|&(_, until)| now < until)
    }

    /// Time of the next try.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.0.values().map(|&(_, until)| until).filter(|&until| until > now).min()
    }
}

/// Pause after so many failures.
pub(super) fn pause(failures: u32) -> Duration {
    (COLLECT_RETRY.0 * 2u32.pow(failures.min(16))).min(COLLECT_RETRY.1)
}
