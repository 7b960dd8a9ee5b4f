//! [`Pace`]: what all ranges of a server read for lifecycle together, and move as they collect, bounded.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use runtime::{Duration, Env, Instant};

use crate::limits::MOVED_BYTES_PER_S;

/// A rate that several readers share. Clones are one.
#[derive(Clone)]
pub struct Pace(Rc<Shared>);

struct Shared {
    bytes_per_s: u64,
    /// What was read before takes until then.
    free_at: Cell<Option<Instant>>,
    /// The same of what was moved.
    moved_at: Cell<Option<Instant>>,
}

impl Pace {
    /// So many bytes a second, one at least.
    pub fn new(bytes_per_s: u64) -> Pace {
        let bytes_per_s = bytes_per_s.max(1);
        Pace(Rc::new(Shared { bytes_per_s, free_at: Cell::default(), moved_at: Cell::default() }))
    }

    /// Waits until what was read before has had its time; the bytes that were read now have theirs behind it.
    pub(crate) async fn take(&self, env: &Env, bytes: usize) {
        wait(env, &self.0.free_at, (bytes, self.0.bytes_per_s)).await;
    }

    /// The same of bytes that are moved, [`MOVED_BYTES_PER_S`].
    pub(crate) async fn take_moved(&self, env: &Env, bytes: usize) {
        wait(env, &self.0.moved_at, (bytes, MOVED_BYTES_PER_S)).await;
    }
}

async fn wait(env: &Env, free_at: &Cell<Option<Instant>>, (bytes, bytes_per_s): (usize, u64)) {
    let now = env.now();
    let from = free_at.get().map_or(now, |free_at| free_at.max(now));
    let us = (bytes as u64).saturating_mul(1_000_000) / bytes_per_s;
    free_at.set(Some(from + Duration::from_micros(us)));
    env.sleep_until(from).await;
    env.yield_now().await;
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pace({} bytes a second)", self.0.bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use runtime::sim::Sim;

    use super::*;

    #[test]
    fn two_readers_have_one_rate_and_what_is_left_unused_is_not_saved() {
        let sim = Sim::new(1);
        let host = sim.add_host("reader");
        let env = sim.boot(host);
        let done = sim.run(async {
            let (pace, begun) = (Pace::new(1000), env.now());
            let other = pace.clone();
            for _ in 0..5 {
                pace.take(&env, 100).await;
                other.take(&env, 100).await;
            }
            // The last one's time is not waited for.
            assert_eq!(env.now() - begun, Duration::from_millis(900));
            env.sleep(Duration::from_secs(60)).await;
            let again = env.now();
            pace.take(&env, 1000).await;
            pace.take(&env, 1000).await;
            assert_eq!(env.now() - again, Duration::from_secs(1));
        });
        done.expect("it goes on");
        sim.close();
    }
}
