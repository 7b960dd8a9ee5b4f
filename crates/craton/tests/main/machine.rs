//! Delays of the machine: the part of a wait that is not the cluster's. Virtual machines lose their
//! CPUs for a while now and then, which a thread that only sleeps notes, and their disks stand still,
//! which one that writes a sector every few milliseconds notes.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two checks.
const TURN: Duration = Duration::from_millis(5);
/// A durable write of one sector that takes so long finds the disk standing still. Beside the
/// heaviest load of these tests 99 of 100 take less than 15 ms.
const DISK_STANDS: Duration = Duration::from_millis(100);
/// The times in which the disk stood still are taken out of waits up to this sum, or up to this part of the
/// watched time if that is more. The disk is the cluster's, too: more of them may be the cluster's own. The
/// longest that was seen of a machine took 1.3 s.
const DISK_STOOD_MAX: Duration = Duration::from_millis(1500);
const DISK_STOOD_PART: u32 = 10;
const SECTOR: usize = 4096;
const DSYNC: i32 = rustix::fs::OFlags::DSYNC.bits().cast_signed();

/// A time in which the machine stood still: from when, and for how long.
type Hiccup = (Instant, Duration);

/// Sleeps beside what is tested, and notes when it was woken late; where it is asked to, writes to
/// the disk too, and notes when that stood still.
pub struct Hiccups {
    began: Instant,
    noted: Arc<Mutex<Noted>>,
    watches: Vec<JoinHandle<()>>,
}

/// Recorded hiccups.
#[derive(Default)]
pub struct Noted {
    /// Those that are taken out, by their beginnings; they may overlap.
    late: Vec<Hiccup>,
    /// Those of the disk, before the end of the watch.
    disk: Vec<Hiccup>,
    /// Nothing more is to be noted.
    over: bool,
}

fn open(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hiccups {
    /// Begins with the CPUs.
    pub fn watch() -> Hiccups {
        let noted = Arc::<Mutex<Noted>>::default();
        let shared = noted.clone();
        let watches = vec![std::thread::spawn(move || turns(&shared))];
        Hiccups { began: Instant::now(), noted, watches }
    }

    /// Begins with the CPUs and the disk that has temporary files. No file of a cluster is used: the probe's
    /// lies beside all directories of tests.
    pub fn watch_with_disk() -> Hiccups {
        let mut hiccups = Hiccups::watch();
        let shared = hiccups.noted.clone();
        hiccups.watches.push(std::thread::spawn(move || writes(&shared)));
        hiccups
    }

    /// A wait less the recorded times in which the machine stood still.
    pub fn without(&self, began: Instant, took: Duration) -> Duration {
        open(&self.noted).without(began, took)
    }

    /// Ends.
    pub fn end(mut self) -> Noted {
        self.join();
        let mut noted = std::mem::take(&mut *open(&self.noted));
        noted.take_disk_out(self.began.elapsed());
        noted
    }

    fn join(&mut self) {
        open(&self.noted).over = true;
        for watch in self.watches.drain(..) {
            watch.join().expect("no panic");
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
            noted.add(due, by);
        }
    }
}

fn writes(noted: &Mutex<Noted>) {
    let name = format!("craton-disk-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let mut options = File::options();
    // A size that never changes: each write is one of the device.
    let options = options.create(true).truncate(true).write(true);
    let file = options.custom_flags(DSYNC).open(&path).expect("a file on the disk");
    std::fs::remove_file(path).expect("its name goes");
    let sector = [0; SECTOR];
    loop {
        let began = Instant::now();
        file.write_all_at(&sector, 0).expect("the disk takes a sector");
        let took = began.elapsed();
        {
            let mut noted = open(noted);
            if took >= DISK_STANDS {
                noted.disk.push((began, took));
            }
            if noted.over {
                return;
            }
        }
        std::thread::sleep(TURN);
    }
}

impl Noted {
    fn add(&mut self, from: Instant, late: Duration) {
        let at = self.late.partition_point(|&(earlier, _)| earlier <= from);
        self.late.insert(at, (from, late));
    }

    /// Takes the times in which the disk stood still out too, unless they are too many: then waits are judged
    /// with them, and the output of a test that fails has the cause.
    fn take_disk_out(&mut self, watched: Duration) {
        let disk = std::mem::take(&mut self.disk);
        let stood: Duration = disk.iter().map(|&(_, late)| late).sum();
        let most = DISK_STOOD_MAX.max(watched / DISK_STOOD_PART);
        if stood > most {
            println!(
                "the disk is too slow to judge waits: it stood still {} times, {stood:.1?} of {watched:.1?}, and \
                 {most:.1?} at most are taken out; run the test when no other program writes to it",
                disk.len()
            );
            return;
        }
        disk.into_iter().for_each(|(from, late)| self.add(from, late));
    }

    /// The longest time in which the machine stood still.
    pub fn longest(&self) -> Duration {
        self.late.iter().map(|&(_, late)| late).max().unwrap_or_default()
    }

    /// The longest of some waits, each without what the machine has added to it.
    pub fn worst(&self, waits: &[(Instant, Duration)]) -> Duration {
        waits.iter().map(|&(began, took)| self.without(began, took)).max().unwrap_or_default()
    }

    /// A wait less the times in which the machine stood still.
    pub fn without(&self, began: Instant, took: Duration) -> Duration {
        let (mut counted, end) = (began, began + took);
        let overlap = |&(from, late): &Hiccup| {
            let to = (from + late).min(end);
            let new = to.saturating_duration_since(from.max(counted));
            counted = counted.max(to);
            new
        };
        took.saturating_sub(self.late.iter().map(overlap).sum())
    }
}

#[test]
fn hiccups_are_subtracted_where_they_happened() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    let mut noted = Noted::default();
    noted.add(at(300), ms(200));
    noted.add(at(100), ms(50));
    assert_eq!(noted.longest(), ms(200));
    // Before, around, across the border of, and behind a hiccup.
    assert_eq!(noted.without(at(0), ms(100)), ms(100));
    assert_eq!(noted.without(at(90), ms(100)), ms(50));
    assert_eq!(noted.without(at(120), ms(100)), ms(70));
    assert_eq!(noted.without(at(50), ms(500)), ms(250));
    assert_eq!(noted.without(at(600), ms(900)), ms(900));
    // CPUs and disk at once: the time counts once.
    noted.add(at(320), ms(10));
    noted.add(at(450), ms(100));
    assert_eq!(noted.without(at(200), ms(500)), ms(250));
}

#[test]
fn stalls_of_the_disk_are_subtracted_up_to_a_bound() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    let without = |stalls: &[(u64, u64)], watched_s| {
        let mut noted = Noted::default();
        noted.add(at(0), ms(50));
        noted.disk = stalls.iter().map(|&(from, late)| (at(from), ms(late))).collect();
        noted.take_disk_out(Duration::from_secs(watched_s));
        noted.without(at(0), ms(5000))
    };
    assert_eq!(without(&[(100, 1300)], 5), ms(3650));
    assert_eq!(without(&[(100, 700), (2000, 800)], 5), ms(3450));
    // Beyond the bound none is; the CPUs' are as before.
    assert_eq!(without(&[(100, 700), (2000, 801)], 5), ms(4950));
    assert_eq!(without(&[(100, 1700)], 16), ms(4950));
    assert_eq!(without(&[(100, 1700)], 17), ms(3250));
}
