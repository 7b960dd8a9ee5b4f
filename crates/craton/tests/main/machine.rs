//! What the machine itself does to a process that only sleeps and writes: the part of a wait that
//! is not the cluster's. Virtual machines lose their CPUs and their disk for a while now and then.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks.
const TURN: Duration = Duration::from_millis(10);
/// Waits that one operation of the cluster can meet one after the other: its client, the first of a
/// chain, the last of it, and the answer.
const IN_A_ROW: u32 = 4;

/// Sleeps and writes beside what is tested, and notes how late that got.
pub struct Hiccups {
    stop: Arc<AtomicBool>,
    turns: JoinHandle<Vec<(Instant, Duration)>>,
}

/// What was noted: when each turn began, and how late it got.
pub struct Noted(Vec<(Instant, Duration)>);

impl Hiccups {
    /// Begins; the writes go to a file beside the cluster's stores.
    pub fn watch(dir: &Path) -> Hiccups {
        let stop = Arc::new(AtomicBool::new(false));
        let file = File::create(dir.join("hiccups")).expect("a file");
        let seen = stop.clone();
        let turns = std::thread::spawn(move || turns(&file, &seen));
        Hiccups { stop, turns }
    }

    pub fn end(self) -> Noted {
        self.stop.store(true, Ordering::Relaxed);
        Noted(self.turns.join().expect("no panic"))
    }
}

fn turns(file: &File, stop: &AtomicBool) -> Vec<(Instant, Duration)> {
    let mut turns = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        std::thread::sleep(TURN);
        file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_data()).expect("the disk works");
        turns.push((began, began.elapsed().saturating_sub(TURN)));
    }
    turns
}

impl Noted {
    /// The latest turn.
    pub fn longest(&self) -> Duration {
        self.0.iter().map(|&(_, late)| late).max().unwrap_or_default()
    }

    /// What an operation of the cluster may take that has `limit` on a machine without hiccups.
    pub fn allow(&self, limit: Duration) -> Duration {
        limit + IN_A_ROW * self.longest()
    }
}
