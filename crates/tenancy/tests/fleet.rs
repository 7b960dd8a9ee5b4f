//! The cost of a heartbeat, by what the leader asks about owners; servers that are forgotten and come back.

use std::cell::Cell;
use std::collections::BTreeMap;

use runtime::{Duration, Instant};
use tenancy::Fleet;
use tenancy::fleet::{Beat, Heard, Owners, Times};
use tenancy::limits::{LEASE, SERVER_DEAD, SERVER_GONE, UNREACHED};

const UNITS: u32 = 10_000;
const SERVER: u16 = 1;

/// Units of one server but for the first few, and the number of questions about their owners.
#[derive(Default)]
struct Counted {
    lost: Cell<u32>,
    asked: Cell<u32>,
}

impl Owners<u16, u32> for Counted {
    fn owner(&self, unit: u32) -> Option<u16> {
        self.asked.set(self.asked.get() + 1);
        (unit >= self.lost.get()).then_some(SERVER)
    }

    fn owned_count(&self, _: u16) -> usize {
        (UNITS - self.lost.get()) as usize
    }
}

fn heartbeat(fleet: &mut Fleet<u16, u32>, now: Instant, seq: u64, seen: u64, owners: &Counted) {
    assert_ne!(fleet.hear(now, SERVER, (1, seq)), Heard::Late);
    if seq == 1 {
        fleet.begin(now, SERVER, 1);
    }
    let said = Beat {
        leaving: false,
        asks_admission: true,
        seen,
        unopened: BTreeMap::new(),
        unopened_count: 0,
        loads: if seq == 1 { vec![(0, (1, 4096))] } else { Vec::new() },
    };
    fleet.beat(now, SERVER, seq, said, owners);
}

/// Each server sends one every 150 ms, whatever it owns.
#[test]
fn heartbeat_visits_lost_units_and_no_others() {
    let lease = Duration::from_millis(600);
    let times = Times { lease, dead: lease, unreached: lease };
    let (now, owners) = (Instant::from_nanos(1_000_000_000), Counted::default());
    let owned = (0..UNITS).map(|unit| (SERVER, unit));
    let mut fleet = Fleet::new(times, now, [SERVER].into_iter(), owned);
    heartbeat(&mut fleet, now, 1, 0, &owners);
    let all = fleet.changes(SERVER, 0, UNITS as usize + 1);
    assert_eq!((all.units.len(), all.more), (UNITS as usize, false));
    (2..12).for_each(|seq| heartbeat(&mut fleet, now, seq, all.upto, &owners));
    assert!(owners.asked.get() < 100, "{} units were visited", owners.asked.get());
    // What it loses is forgotten once it knows, and what it has stays for a later process.
    owners.lost.set(3);
    (0..3).for_each(|unit| fleet.take(now, unit, (SERVER, 1)));
    // Taken and given back at once, as to a new process of the same server.
    fleet.take(now, 3, (SERVER, 1));
    let left = |fleet: &Fleet<u16, u32>| fleet.changes(SERVER, 0, UNITS as usize + 1).units.len();
    heartbeat(&mut fleet, now, 12, all.upto, &owners);
    assert_eq!((left(&fleet), fleet.serves(3, Some(SERVER))), (UNITS as usize, false));
    // The second time it knows that no owner before it has a lease.
    for seq in 13..15 {
        let upto = fleet.changes(SERVER, all.upto, 10).upto;
        heartbeat(&mut fleet, now, seq, upto, &owners);
    }
    assert_eq!((left(&fleet), fleet.serves(3, Some(SERVER))), (UNITS as usize - 3, true));
    assert_eq!(fleet.get(SERVER).map(|member| member.load_of(0)), Some((0, 0)));
    assert!(owners.asked.get() < 200, "{} units were visited", owners.asked.get());
}

/// It is another server for a leader that has forgotten it, and may have seen more changes than there are of that one.
#[test]
fn server_that_comes_back_as_another_has_seen_none_of_its_changes() {
    const BACK: u16 = 2;
    let times = Times { lease: LEASE, dead: SERVER_DEAD, unreached: UNREACHED };
    let (start, owners) = (Instant::from_nanos(1_000_000_000), Counted::default());
    owners.lost.set(UNITS);
    let mut fleet =
        Fleet::new(times, start, [SERVER].into_iter(), (0..9).map(|unit| (SERVER, unit)));
    heartbeat(&mut fleet, start, 1, 0, &owners);
    let seen = fleet.changes(SERVER, 0, 10).upto;
    assert!(!fleet.has_seen_none(SERVER, 0), "it is the first of this number");
    let later = start + SERVER_GONE;
    assert_eq!(fleet.longest_gone(later, &owners, |_| true), None, "it lives");
    assert_eq!(fleet.condemn(later, &owners), [SERVER]);
    let soon = later - Duration::from_nanos(1);
    assert_eq!(fleet.longest_gone(soon, &owners, |_| true), None);
    assert_eq!(fleet.longest_gone(later, &owners, |server| server != SERVER), None);
    assert_eq!(fleet.longest_gone(later, &owners, |_| true), Some(SERVER));
    owners.lost.set(UNITS - 1);
    assert_eq!(fleet.longest_gone(later, &owners, |_| true), None, "it owns a unit");
    fleet.remove(SERVER);
    assert_eq!(fleet.hear(later, SERVER, (1, 2)), Heard::Unknown);
    fleet.add(later, BACK);
    assert!(fleet.has_seen_none(BACK, seen));
    let first = fleet.changes(BACK, 0, 10);
    assert!(first.units.is_empty() && !fleet.has_seen_none(BACK, first.upto));
    fleet.note(BACK, 7);
    let next = fleet.changes(BACK, first.upto, 10);
    assert_eq!((next.units, next.more), (vec![7], false));
    assert_eq!(fleet.changes(BACK, 0, 10).units, [7], "all of them");
}
