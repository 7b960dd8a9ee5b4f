//! [`Heat`]: how many requests a range has, and for which keys (`object-protocols.md` 4.1). A range that has more
//! than its owner should have of one for a while is split where they divide.
//!
//! A split helps where requests come for keys on both sides of it. So it is at the median of keys that were asked
//! for, and only if of the earlier ones and of the later ones each side has its share: keys that only grow, or a
//! single one that all ask for, load one range at a time wherever it is split.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use object_proto::{RangeBound, RangeRequest, Target};
use runtime::{Duration, Instant};

/// Requests are counted for so long before they are compared with the bound.
const WINDOW: Duration = Duration::from_millis(500);
/// Between two samples at least, and how many are kept: those of 10 s.
const SAMPLE_PAUSE: Duration = Duration::from_millis(40);
const SAMPLES_MAX: usize = 250;
/// Samples by which a bound is chosen, at least.
const SAMPLES_MIN: usize = 20;
/// Of the earlier and of the later samples each half must have one in so many.
const SHARE: usize = 5;

/// The load of a range.
#[derive(Default)]
pub(crate) struct Heat {
    /// When the window began, and requests in it.
    window: Cell<(Instant, u64)>,
    /// Since when each window had more requests than the bound.
    hot_since: Cell<Option<Instant>>,
    sampled: Cell<Instant>,
    /// Keys that were asked for, the latest last.
    samples: RefCell<VecDeque<Target>>,
}

impl Heat {
    /// A request comes; `most` a second are no heat.
    pub(crate) fn note(&self, now: Instant, request: &RangeRequest, most: u64) {
        let Some(target) = target_of(request) else { return };
        self.roll(now, most);
        let (began, requests) = self.window.get();
        self.window.set((began, requests + 1));
        if now.since(self.sampled.get()) >= SAMPLE_PAUSE {
            self.sampled.set(now);
            let samples = &mut *self.samples.borrow_mut();
            if samples.len() == SAMPLES_MAX {
                samples.pop_front();
            }
            samples.push_back(target.clone());
        }
    }

    /// Ends the window when it is over.
    fn roll(&self, now: Instant, most: u64) {
        let (began, requests) = self.window.get();
        let length = now.since(began);
        if length < WINDOW {
            return;
        }
        let is_hot = u128::from(requests) * 1000 > u128::from(most) * length.as_millis();
        self.hot_since.set(is_hot.then(|| self.hot_since.get().unwrap_or(began)));
        self.window.set((now, 0));
    }

    /// Where the range is to be split for its load: when it had more than `most` requests a second for a time, and
    /// a split helps.
    pub(crate) fn bound(&self, now: Instant, most: u64, time: Duration) -> Option<RangeBound> {
        self.roll(now, most);
        self.hot_since.get().filter(|since| now.since(*since) >= time)?;
        let samples = self.samples.borrow();
        let samples: Vec<&Target> = samples.iter().collect();
        if samples.len() < SAMPLES_MIN {
            return None;
        }
        let mut sorted = samples.clone();
        sorted.sort();
        let at = sorted[sorted.len() / 2];
        // With half of the samples for one key, it is the first of the other half that is above it.
        let at = if at == sorted[0] { sorted.iter().find(|key| ***key != *at)? } else { &at };
        let helps = |some: &[&Target]| {
            let below = some.iter().filter(|key| *key < at).count();
            below * SHARE >= some.len() && (some.len() - below) * SHARE >= some.len()
        };
        let (earlier, later) = samples.split_at(samples.len() / 2);
        (helps(earlier) && helps(later)).then(|| RangeBound::of(at))
    }
}

/// The key that a client's request is for.
fn target_of(request: &RangeRequest) -> Option<&Target> {
    match request {
        RangeRequest::Change { change, .. } => Some(change.target()),
        RangeRequest::Look { target, .. }
        | RangeRequest::Read { target, .. }
        | RangeRequest::Upload { target, .. } => Some(target),
        RangeRequest::Parts(ask) | RangeRequest::PartBodies(ask) => Some(&ask.target),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use object_proto::{BucketId, ObjectKey};
    use runtime::Rng;

    use super::*;

    const MOST: u64 = 1000;
    const TIME: Duration = Duration::from_secs(10);

    /// Requests at a rate for 30 s, of keys by time and chance; when and where it is split first.
    fn split(rate: u64, key: impl Fn(u64, &mut Rng) -> u64) -> Option<(u64, String)> {
        let (heat, mut rng) = (Heat::default(), Rng::new(7));
        let begin = Instant::default() + Duration::from_secs(100);
        for number in 0..30 * rate {
            let now = begin + Duration::from_secs(1) * number as u32 / rate as u32;
            let key = ObjectKey::new(format!("{:06}", key(number, &mut rng))).expect("a key");
            let target = Target { bucket: BucketId::new(3), key };
            heat.note(now, &RangeRequest::Look { target, version: None }, MOST);
            if let Some(bound) = heat.bound(now, MOST, TIME) {
                return Some(((now - begin).as_millis() as u64, bound.key));
            }
        }
        None
    }

    #[test]
    fn range_is_split_where_its_requests_divide_once_it_had_many_for_a_while() {
        let (after_ms, at) = split(2000, |_, rng| rng.below(1000)).expect("it is hot");
        assert!((10_000..11_000).contains(&after_ms), "{after_ms}");
        assert!(("000350".."000650").contains(&&*at), "{at}");
        assert_eq!(split(900, |_, rng| rng.below(1000)), None, "it has fewer");
    }

    #[test]
    fn range_with_pauses_is_not_hot() {
        let heat = Heat::default();
        let begin = Instant::default() + Duration::from_secs(100);
        let mut rng = Rng::new(8);
        for second in 0..60 {
            for number in 0..4000 {
                let now = begin + Duration::from_secs(second) + Duration::from_micros(number * 100);
                let key = ObjectKey::new(format!("{}", rng.below(100))).expect("a key");
                let target = Target { bucket: BucketId::new(3), key };
                heat.note(now, &RangeRequest::Look { target, version: None }, 5000);
                assert_eq!(heat.bound(now, 5000, TIME), None);
            }
        }
    }

    #[test]
    fn keys_that_only_grow_and_single_keys_are_not_split() {
        assert_eq!(split(2000, |number, _| number), None, "growing");
        assert_eq!(split(2000, |_, _| 5), None, "one key");
        let mostly = |_, rng: &mut Rng| if rng.one_in(10) { rng.below(1000) } else { 500 };
        assert_eq!(split(2000, mostly), None, "one key is nine of ten");
        // Of two keys each gets its range.
        assert_eq!(split(2000, |_, rng| 4 + rng.below(2)).expect("it is hot").1, "000005");
    }

    /// Whatever is asked for, a bound divides it.
    #[test]
    fn bound_has_keys_on_both_sides() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let keys: Vec<u64> = (0..rng.between(1, 12)).map(|_| rng.below(20)).collect();
            let one = |number: u64, rng: &mut Rng| {
                keys[(number / 31 + rng.below(1 + seed % 7)) as usize % keys.len()]
            };
            if let Some((_, at)) = split(2000, one) {
                let names: Vec<String> = keys.iter().map(|key| format!("{key:06}")).collect();
                assert!(names.iter().any(|key| *key < at), "{at} of {names:?}");
                assert!(names.iter().any(|key| *key >= at), "{at} of {names:?}");
            }
        }
    }
}
