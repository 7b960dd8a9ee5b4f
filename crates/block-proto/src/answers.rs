//! [`AnswerTimes`]: for how long an answer to a ping is awaited before its silence says something. What
//! answers took lately decides, so that a busy machine is not taken for a dead one.

use runtime::{Duration, Instant};

/// The latest answers count for one to two times as long as this.
const WINDOW: Duration = Duration::from_secs(10);
/// So many of the longest do not count: a server that comes back answers a few old pings late.
const OUTLIERS: usize = 7;

/// The longest that answers to pings took lately, longest first.
type Longest = [Duration; OUTLIERS + 1];

/// What answers to pings took lately, but for the longest few: in this window and in the one before.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerTimes {
    window: u64,
    longest: [Longest; 2],
}

impl AnswerTimes {
    fn turn(&mut self, now: Instant) {
        let window = now.as_nanos() / WINDOW.as_nanos() as u64;
        match window.saturating_sub(self.window) {
            0 => return,
            1 => self.longest = [Longest::default(), self.longest[0]],
            _ => self.longest = Default::default(),
        }
        self.window = window;
    }

    /// An answer has come that took so long.
    pub fn note(&mut self, now: Instant, took: Duration) {
        self.turn(now);
        let longest = &mut self.longest[0];
        if took > longest[OUTLIERS] {
            longest[OUTLIERS] = took;
            longest.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// `factor` times what the longest of the latest answers took, within bounds.
    pub fn timeout(
        &mut self,
        now: Instant,
        factor: u32,
        (least, most): (Duration, Duration),
    ) -> Duration {
        self.turn(now);
        let mut all = self.longest.concat();
        all.sort_unstable_by(|a, b| b.cmp(a));
        (all[OUTLIERS] * factor).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_answers_are_remembered_for_a_while_and_a_few_say_nothing() {
        let millis = Duration::from_millis;
        let (bounds, start) = ((millis(20), millis(300)), Instant::default() + 5 * WINDOW);
        let mut times = AnswerTimes::default();
        let note = |times: &mut AnswerTimes, at, took, count| {
            (0..count).for_each(|_| times.note(at, took));
        };
        assert_eq!(times.timeout(start, 6, bounds), bounds.0);
        note(&mut times, start, millis(400), OUTLIERS);
        note(&mut times, start, millis(1), 100);
        assert_eq!(times.timeout(start, 6, bounds), bounds.0);
        note(&mut times, start, millis(15), 1);
        assert_eq!(times.timeout(start + WINDOW, 6, bounds), millis(90));
        note(&mut times, start + WINDOW, millis(10), 20);
        assert_eq!(times.timeout(start + WINDOW, 6, bounds), millis(90));
        assert_eq!(times.timeout(start + 2 * WINDOW, 6, bounds), millis(60));
        note(&mut times, start + 2 * WINDOW, Duration::from_secs(1 << 40), 8);
        assert_eq!(times.timeout(start + 2 * WINDOW, 6, bounds), bounds.1);
        assert_eq!(times.timeout(start + 4 * WINDOW, 6, bounds), bounds.0);
    }
}
