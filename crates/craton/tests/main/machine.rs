//! Delays of the machine on a thread that only sleeps: the part of a wait that is not the
//! cluster's. Virtual machines lose their CPUs for a while now and then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two checks.
const TURN: Duration = Duration::from_millis(5);

/// A time in which the machine stood still: from when, and for how long.
type Hiccup = (Instant, Duration);

/// Sleeps beside what is tested, and notes when it was woken late. It uses no disk.
pub struct Hiccups {
    noted: Arc<Mutex<Noted>>,
    turns: Option<JoinHandle<()>>,
}

/// Recorded hiccups.
#[derive(Default)]
pub struct Noted {
    late: Vec<Hiccup>,
    /// Nothing more is to be noted.
    over: bool,
}

fn open(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hiccups {
    /// Begins.
    pub fn watch() -> Hiccups {
        let noted = Arc::<Mutex<Noted>>::default();
        let shared = noted.clone();
        let turns = Some(std::thread::spawn(move || turns(&shared)));
        Hiccups { noted, turns }
    }

    /// A wait less the recorded times in which the machine stood still.
    pub fn without(&self, began: Instant, took: Duration) -> Duration {
        open(&self.noted).without(began, took)
    }

    /// Ends.
    pub fn end(mut self) -> Noted {
        self.join();
        std::mem::take(&mut *open(&self.noted))
    }

    fn join(&mut self) {
        open(&self.noted).over = true;
        if let Some(turns) = self.turns.take() {
            turns.join().expect("no panic");
        }
    }
}

impl Drop for Hiccups {
    fn drop(&mut self) {
        self.join();
    }
}

fn turns(noted: &Mutex<Noted>) {
    loop {
        let due = Instant::now() + TURN;
        std::thread::sleep(TURN);
        let by = due.elapsed();
        let mut noted = open(noted);
        if noted.over {
            return;
        }
        if !by.is_zero() {
            noted.late.push((due, by));
        }
    }
}

impl Noted {
    /// The latest turn.
    pub fn longest(&self) -> Duration {
        self.late.iter().map(|&(_, late)| late).max().unwrap_or_default()
    }

    /// The longest of some waits, each without what the machine has added to it.
    pub fn worst(&self, waits: &[(Instant, Duration)]) -> Duration {
        waits.iter().map(|&(began, took)| self.without(began, took)).max().unwrap_or_default()
    }

    /// A wait less the times in which the machine stood still.
    pub fn without(&self, began: Instant, took: Duration) -> Duration {
        let end = began + took;
        let overlap = |&(from, late): &Hiccup| {
            let (from, to) = (from.max(began), (from + late).min(end));
            to.saturating_duration_since(from)
        };
        took.saturating_sub(self.late.iter().map(overlap).sum())
    }
}

#[test]
fn hiccups_are_subtracted_where_they_happened() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    let noted = Noted { late: vec![(at(100), ms(50)), (at(300), ms(200))], over: true };
    assert_eq!(noted.longest(), ms(200));
    // Before, around, across the border of, and behind a hiccup.
    assert_eq!(noted.without(at(0), ms(100)), ms(100));
    assert_eq!(noted.without(at(90), ms(100)), ms(50));
    assert_eq!(noted.without(at(120), ms(100)), ms(70));
    assert_eq!(noted.without(at(50), ms(500)), ms(250));
    assert_eq!(noted.without(at(600), ms(900)), ms(900));
}
