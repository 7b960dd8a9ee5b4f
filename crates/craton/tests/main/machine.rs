//! What the machine itself does to a thread that only sleeps: the part of a wait that is not the
//! cluster's. Virtual machines lose their CPUs for a while now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks.
const TURN: Duration = Duration::from_millis(5);

/// A time in which the machine stood still: from when, and for how long.
type Hiccup = (Instant, Duration);

/// Sleeps beside what is tested, and notes when it was woken late. It uses no disk.
pub struct Hiccups {
    stop: Arc<AtomicBool>,
    turns: JoinHandle<Vec<Hiccup>>,
}

/// What was noted.
pub struct Noted(Vec<Hiccup>);

impl Hiccups {
    /// Begins.
    pub fn watch() -> Hiccups {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let turns = std::thread::spawn(move || turns(&seen));
        Hiccups { stop, turns }
    }

    pub fn end(self) -> Noted {
        self.stop.store(true, Ordering::Relaxed);
        Noted(self.turns.join().expect("no panic"))
    }
}

fn turns(stop: &AtomicBool) -> Vec<Hiccup> {
    let mut late = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let due = Instant::now() + TURN;
        std::thread::sleep(TURN);
        let by = due.elapsed();
        if !by.is_zero() {
            late.push((due, by));
        }
    }
    late
}

impl Noted {
    /// The latest turn.
    pub fn longest(&self) -> Duration {
        self.0.iter().map(|&(_, late)| late).max().unwrap_or_default()
    }

    /// The longest of some waits, each without what the machine has added to it.
    pub fn worst(&self, waits: &[(Instant, Duration)]) -> Duration {
        waits.iter().map(|&(began, took)| self.without(began, took)).max().unwrap_or_default()
    }

    /// What is left of a wait without the times in it in which the machine stood still.
    pub fn without(&self, began: Instant, took: Duration) -> Duration {
        let end = began + took;
        let overlap = |&(from, late): &Hiccup| {
            let (from, to) = (from.max(began), (from + late).min(end));
            to.saturating_duration_since(from)
        };
        took.saturating_sub(self.0.iter().map(overlap).sum())
    }
}

#[test]
fn hiccups_are_subtracted_where_they_happened() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    let noted = Noted(vec![(at(100), ms(50)), (at(300), ms(200))]);
    assert_eq!(noted.longest(), ms(200));
    // Before, around, across the border of, and behind a hiccup.
    assert_eq!(noted.without(at(0), ms(100)), ms(100));
    assert_eq!(noted.without(at(90), ms(100)), ms(50));
    assert_eq!(noted.without(at(120), ms(100)), ms(70));
    assert_eq!(noted.without(at(50), ms(500)), ms(250));
    assert_eq!(noted.without(at(600), ms(900)), ms(900));
}
