//! [`Refusals`]: what a leader has refused, so that the same request gets the same answer (`once.rs`).

use std::collections::{BTreeMap, VecDeque};

use base::Kind;
use block_volume::ids::VolumeId;

use super::limits::REFUSALS_KEPT;

/// Number of a request for a change of a volume, by which a repeat is known, and the volume. 0: it has none.
pub(super) type Once = (u64, VolumeId);

/// The latest refusals of a leader, by their requests.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    answers: BTreeMap<Once, (Kind, String)>,
    /// In the order in which they were given.
    order: VecDeque<Once>,
}

impl Refusals {
    /// Kind and text of the refusal of a request.
    pub(super) fn get(&self, once: Once) -> Option<(Kind, &str)> {
        self.answers.get(&once).map(|(kind, text)| (*kind, text.as_str()))
    }

    /// A request was refused.
    pub(super) fn note(&mut self, once: Once, kind: Kind, text: String) {
        if self.answers.insert(once, (kind, text)).is_none() {
            self.order.push_back(once);
        }
        if self.order.len() > REFUSALS_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }
}

/// The numbers of a volume's row: those of changes that were refused, inverted, and those of changes that have
/// happened.
pub(super) fn parts(numbers: &[u64]) -> (&[u64], &[u64]) {
    match numbers.iter().position(|&number| number == 0) {
        Some(zero) => (&numbers[..zero], &numbers[zero + 1..]),
        None => (&[], numbers),
    }
}
