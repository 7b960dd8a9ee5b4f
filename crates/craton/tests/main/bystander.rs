//! A client that works during a test, and must not notice it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::harness::wait;
use crate::nbd::{BLOCK, Nbd, READ, WRITE};

/// Places that it writes to.
const PLACES: u64 = 1000;
/// From one to the next: half a data sector and a block, so that they are in all segments.
const STRIDE: u64 = 68 << 10;
/// Rounds that show that it goes on.
const ROUNDS: u64 = 20;
/// Time for them on a machine that has nothing else to do.
const SOON: Duration = Duration::from_secs(20);

/// Writes a block and reads it back, all the time. A request that fails, and a socket that is
/// closed, fail the test.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    work: JoinHandle<()>,
}

impl Bystander {
    /// Begins on an export, on 68 MiB from `first` on, which have no other writer.
    pub fn start(url: &str, first: u64) -> Bystander {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (url, end, count) = (url.to_owned(), stop.clone(), rounds.clone());
        let work = std::thread::spawn(move || {
            let mut nbd = Nbd::open(&url);
            let mut written = BTreeMap::new();
            while !end.load(Ordering::Relaxed) {
                let round = count.load(Ordering::Relaxed);
                let offset = first + round * 41 % PLACES * STRIDE;
                // Neighbours in time and place have other bytes.
                let value = [(round % 251) as u8 + 1; BLOCK];
                nbd.ask(WRITE, offset, BLOCK, &value);
                assert!(nbd.ask(READ, offset, BLOCK, &[]) == value, "at {offset}");
                written.insert(offset, value[0]);
                count.store(round + 1, Ordering::Relaxed);
            }
            for (offset, value) in written {
                assert!(nbd.ask(READ, offset, BLOCK, &[]) == [value; BLOCK], "at {offset}");
            }
        });
        Bystander { stop, rounds, work }
    }

    /// Waits until it has done some more.
    pub fn goes_on(&self, beside: &str) {
        let before = self.rounds.load(Ordering::Relaxed);
        let on =
            || self.work.is_finished() || self.rounds.load(Ordering::Relaxed) >= before + ROUNDS;
        wait(&format!("a client goes on beside {beside}"), SOON, on);
        assert!(!self.work.is_finished(), "a client failed beside {beside}");
    }

    /// Ends it; all that it has written must be there.
    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.work.join().expect("no request failed");
    }
}
