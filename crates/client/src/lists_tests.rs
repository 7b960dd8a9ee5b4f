//! Lists: data, and what must hold whatever comes.

use base::DiskId;
use runtime::Rng;
use wire::control::{CallKind, SizeClass};

use super::*;
use crate::health::CallEnd;
use crate::limits::SLOW_MIN;

const READ: CallClass = CallClass { kind: CallKind::Read, size: SizeClass::Small };
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn target(number: u16) -> Target {
    let addr = SocketAddr::from(([10, 0, 0, number as u8], 1));
    Target { addr, disk: DiskId::new(u128::from(number)) }
}

struct Bed {
    lists: Lists,
    health: Health,
    now: Instant,
    rng: Rng,
}

impl Bed {
    fn new(servers: u16) -> Bed {
        let now = Instant::from_nanos(1_000_000_000_000);
        let (mut lists, rng) = (Lists::new(SLOW_MIN), Rng::new(1));
        for number in 0..servers {
            lists.note_server(target(number).addr, ServerId::new(u32::from(number) + 1));
        }
        Bed { lists, health: Health::new(now), now, rng }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Each server answers a read in its time, one after the other, `rounds` times.
    fn reads(&mut self, latencies: &[Duration], rounds: usize) {
        for _ in 0..rounds {
            let begun: Vec<_> = (0..latencies.len())
                .map(|number| self.health.begin(target(number as u16), READ, self.now))
                .collect();
            let slowest = *latencies.iter().max().expect("not empty");
            for (ticket, latency) in begun.into_iter().zip(latencies) {
                self.health.end(ticket, CallEnd::Timed, self.now + *latency);
            }
            self.pass(slowest);
        }
    }

    fn judge(&mut self) {
        let (rng, now) = (&mut self.rng, self.now);
        self.lists.judge(&mut self.health, now, |bound| rng.below(bound));
    }

    fn listed(&self) -> Vec<(u16, ListState)> {
        let number = |listed: &ListedDisk| (listed.target.disk.get() as u16, listed.state);
        self.lists.listed().iter().map(number).collect()
    }

    /// Probes of a disk, one a second, with the same outcome.
    fn probe(&mut self, number: u16, probed: Probed, times: usize) {
        for _ in 0..times {
            self.pass(SECOND);
            self.end_probe(number, probed);
        }
    }

    fn end_probe(&mut self, number: u16, probed: Probed) {
        let (peer, next) = ((probed, Some(2 * MS)), self.now + SECOND);
        self.lists.probed(target(number), peer, &mut self.health, (self.now, next));
    }
}

#[test]
fn a_disk_is_slow_by_what_its_peers_take() {
    // Latency of the first of five disks, that of the others, and how often it is listed in a second
    // of judgements, of 100 runs.
    for (first, others, least, most) in [
        (16 * MS, MS, 100, 100),
        (9 * MS, MS, 100, 100),
        (8 * MS, 2 * MS, 0, 15),
        (6 * MS, MS, 20, 60),
        (2 * MS, MS, 0, 0),
        // Below 5 ms none is slow.
        (4 * MS, MS / 10, 0, 0),
    ] {
        let mut listed = 0;
        for run in 0..100 {
            let mut bed = Bed::new(5);
            bed.rng = Rng::new(run);
            bed.reads(&[first, others, others, others, others], 40);
            bed.lists.judged = bed.now;
            for _ in 0..50 {
                bed.reads(&[first, others, others, others, others], 1);
                bed.now = bed.lists.judged + 20 * MS;
                bed.judge();
            }
            listed += usize::from(!bed.listed().is_empty());
            assert!(bed.listed().iter().all(|it| *it == (0, ListState::Slow)));
        }
        assert!((least..=most).contains(&listed), "{first:?} beside {others:?}: {listed} of 100");
    }
}

#[test]
fn a_call_without_an_answer_counts_by_its_age() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS, MS, MS], 40);
    let _stuck = bed.health.begin(target(2), READ, bed.now);
    bed.pass(4 * MS);
    bed.judge();
    assert_eq!(bed.listed(), []);
    bed.pass(8 * MS);
    bed.judge();
    assert_eq!(bed.listed(), [(2, ListState::Slow)]);
    assert!(bed.lists.is_asked_last(target(2)) && !bed.lists.is_asked_last(target(1)));
}

#[test]
fn a_disk_whose_calls_are_given_up_is_probed() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS, MS, MS], 40);
    for _ in 0..80 {
        let call = bed.health.begin(target(2), READ, bed.now);
        bed.pass(2 * MS);
        bed.health.end(call, CallEnd::GivenUp, bed.now);
    }
    // One probe a second, as long as it is no slower than a peer by its probes.
    for _ in 0..3 {
        bed.judge();
        assert_eq!(bed.lists.take_due(bed.now), [target(2)]);
        let (served, next) = ((Probed::Served(7 * MS), Some(MS)), bed.now + SECOND);
        bed.lists.probed(target(2), served, &mut bed.health, (bed.now, next));
        bed.judge();
        assert_eq!((bed.lists.take_due(bed.now), bed.listed()), (vec![], vec![]));
        bed.pass(SECOND);
        for _ in 0..40 {
            let call = bed.health.begin(target(2), READ, bed.now);
            bed.pass(2 * MS);
            bed.health.end(call, CallEnd::GivenUp, bed.now);
        }
    }
    bed.judge();
    assert_eq!(bed.lists.take_due(bed.now), [target(2)]);
    let (served, next) = ((Probed::Served(9 * MS), Some(MS)), bed.now + SECOND);
    bed.lists.probed(target(2), served, &mut bed.health, (bed.now, next));
    assert_eq!(bed.listed(), [(2, ListState::Slow)]);
}

/// Calls of each second to a disk, how many of them are answered between two that are given up, and
/// probes in three seconds, each of which the disk serves.
#[test]
fn a_disk_that_answers_none_of_its_few_calls_is_probed() {
    for (a_second, answered, least, most) in
        [(1, 0, 1, 1), (2, 0, 2, 3), (5, 0, 2, 3), (20, 0, 2, 3), (2, 1, 0, 0), (20, 3, 0, 0)]
    {
        let mut bed = Bed::new(3);
        bed.reads(&[MS, MS, MS], 40);
        let (mut probes, pause) = (0, SECOND / a_second);
        for call in 0..3 * a_second {
            let medium = CallClass { size: SizeClass::Medium, ..READ };
            // Classes are compared by themselves; silence is of the disk.
            let class = if call % 2 == 0 { READ } else { medium };
            let ticket = bed.health.begin(target(2), class, bed.now);
            bed.pass(2 * MS);
            let is_answered = call % (answered + 1) != 0;
            let end = if is_answered { CallEnd::Timed } else { CallEnd::GivenUp };
            bed.health.end(ticket, end, bed.now);
            let next = bed.now + pause - 2 * MS;
            while bed.now < next {
                bed.pass((next - bed.now).min(10 * MS));
                bed.judge();
                for suspect in bed.lists.take_due(bed.now) {
                    assert_eq!(suspect, target(2));
                    probes += 1;
                    bed.end_probe(2, Probed::Served(MS));
                }
            }
        }
        let what = format!("{a_second} calls a second, {answered} answered between");
        assert!((least..=most).contains(&probes), "{probes} probes, {what}");
        assert_eq!(bed.listed(), [], "{what}");
    }
}

#[test]
fn a_silent_disk_is_out_when_it_answers_no_probe_either() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS, MS, MS], 40);
    for _ in 0..2 {
        let call = bed.health.begin(target(2), READ, bed.now);
        bed.pass(SECOND);
        bed.health.end(call, CallEnd::GivenUp, bed.now);
    }
    bed.judge();
    assert_eq!((bed.lists.take_due(bed.now), bed.listed()), (vec![target(2)], vec![]));
    assert!(!bed.lists.is_asked_last(target(2)), "its probe decides");
    bed.end_probe(2, Probed::Unanswered);
    assert_eq!(bed.listed(), [(2, ListState::Out)]);
}

#[test]
fn a_call_given_up_is_no_silence_while_others_are_answered_soon_after() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS, MS, MS], 40);
    for _ in 0..100 {
        let calls: Vec<_> = (0..2).map(|_| bed.health.begin(target(2), READ, bed.now)).collect();
        bed.pass(2 * MS);
        for call in calls {
            bed.health.end(call, CallEnd::GivenUp, bed.now);
        }
        bed.pass(40 * MS);
        bed.judge();
        // More are answered than are given up.
        bed.reads(&[MS, MS, MS], 4);
        bed.pass(SECOND / 10);
        bed.judge();
        assert_eq!((bed.lists.take_due(bed.now), bed.listed()), (vec![], vec![]));
    }
}

#[test]
fn silence_in_an_own_pause_is_held_against_none() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS, MS, MS], 40);
    bed.health.watched(bed.now);
    for _ in 0..2 {
        let call = bed.health.begin(target(2), READ, bed.now);
        bed.pass(2 * MS);
        bed.health.end(call, CallEnd::GivenUp, bed.now);
    }
    bed.pass(10 * SECOND);
    assert!(!bed.health.tick(bed.now));
    bed.judge();
    assert_eq!(bed.lists.take_due(bed.now), []);
    bed.pass(40 * MS);
    bed.judge();
    assert_eq!(bed.lists.take_due(bed.now), []);
    bed.pass(20 * MS);
    bed.judge();
    assert_eq!(bed.lists.take_due(bed.now), [target(2)]);
    // What it has not answered until its probe ended says nothing any more.
    bed.end_probe(2, Probed::Served(MS));
    bed.pass(2 * SECOND);
    bed.judge();
    assert_eq!((bed.lists.take_due(bed.now), bed.listed()), (vec![], vec![]));
}

#[test]
fn own_pause_is_held_against_none() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS, MS, MS], 40);
    bed.health.watched(bed.now);
    let stuck = bed.health.begin(target(2), READ, bed.now);
    bed.pass(10 * SECOND);
    bed.health.tick(bed.now);
    bed.judge();
    bed.pass(MS);
    bed.health.end(stuck, CallEnd::Timed, bed.now);
    bed.reads(&[MS, MS, MS], 4);
    bed.judge();
    assert_eq!(bed.listed(), []);
    // An answer is taken in before the watch runs again.
    let stuck = bed.health.begin(target(2), READ, bed.now);
    bed.health.tick(bed.now);
    bed.pass(10 * SECOND);
    bed.health.end(stuck, CallEnd::Timed, bed.now);
    bed.judge();
    assert_eq!(bed.listed(), []);
}

#[test]
fn a_third_of_the_servers_is_listed_at_most_and_the_worst_of_them() {
    let mut bed = Bed::new(7);
    bed.reads(&[MS; 7], 40);
    let slow = [20 * MS, 30 * MS, 40 * MS, MS, MS, MS, MS];
    bed.reads(&slow, 8);
    bed.judge();
    assert_eq!(bed.listed(), [(1, ListState::Slow), (2, ListState::Slow)]);
    // One that does not serve is worse than any slow one, and one that does not serve stays.
    for number in [5, 6, 0] {
        bed.lists.suspect(target(number), bed.now);
        bed.probe(number, Probed::Unanswered, 1);
    }
    assert_eq!(bed.listed(), [(5, ListState::Out), (6, ListState::Out)]);
    assert_eq!(bed.lists.unwanted(3).len(), 2);
    assert_eq!(bed.lists.unwanted(6), [], "a chunk would have fewer copies");
}

#[test]
fn half_of_the_servers_at_once_are_not_blamed() {
    let mut bed = Bed::new(4);
    bed.reads(&[MS; 4], 40);
    bed.reads(&[50 * MS, 50 * MS, MS, MS], 8);
    bed.judge();
    assert!(bed.listed().is_empty() && bed.lists.doubts_itself(bed.now));
    bed.pass(2 * SECOND);
    bed.reads(&[50 * MS, MS, MS, MS], 20);
    bed.judge();
    assert_eq!(bed.listed(), [(0, ListState::Slow)]);
}

#[test]
fn a_disk_comes_back_by_probes_and_stays_longer_each_time() {
    let mut bed = Bed::new(3);
    let mut stay = 2;
    for _ in 0..7 {
        bed.reads(&[MS; 3], 40);
        bed.reads(&[MS, MS, 20 * MS], 20);
        bed.judge();
        assert_eq!(bed.listed(), [(2, ListState::Slow)]);
        bed.probe(2, Probed::Served(3 * MS), 2);
        // One that is late begins the count again.
        bed.probe(2, Probed::Served(6 * MS), 1);
        let began = bed.now;
        while !bed.listed().is_empty() {
            bed.probe(2, Probed::Served(3 * MS), 1);
        }
        let took = (bed.now - began).as_secs() + 3;
        assert_eq!(took, stay.max(6), "seconds in the list");
        // It is not slow again for two seconds.
        bed.reads(&[MS, MS, 20 * MS], 20);
        bed.judge();
        assert_eq!(bed.listed(), []);
        bed.pass(3 * SECOND);
        stay = (stay * 2).min(60);
    }
}

#[test]
fn a_server_that_does_not_answer_is_out_until_it_does() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS; 3], 40);
    // A suspect that serves is none.
    bed.lists.suspect(target(1), bed.now);
    assert_eq!(bed.lists.take_due(bed.now), [target(1)]);
    assert_eq!(bed.lists.take_due(bed.now), [], "one probe is under way");
    bed.probe(1, Probed::Served(MS), 1);
    assert!(bed.lists.is_empty());

    bed.lists.suspect(target(1), bed.now);
    bed.probe(1, Probed::Unanswered, 1);
    assert_eq!(bed.listed(), [(1, ListState::Out)]);
    // All disks behind the address are.
    let beside = Target { disk: DiskId::new(99), ..target(1) };
    assert!(bed.lists.is_asked_last(beside));
    // A good probe within two seconds does not count; the next makes it slow, and three more good.
    bed.probe(1, Probed::Served(MS), 1);
    assert_eq!(bed.listed(), [(1, ListState::Out)]);
    bed.probe(1, Probed::Served(MS), 1);
    assert_eq!(bed.listed(), [(1, ListState::Slow)]);
    assert!(!bed.lists.is_asked_last(beside));
    bed.probe(1, Probed::Served(MS), 3);
    assert!(bed.lists.is_empty());
}

#[test]
fn a_suspect_that_does_not_end_its_probe_is_slow() {
    let mut bed = Bed::new(3);
    bed.reads(&[MS; 3], 40);
    bed.lists.suspect(target(1), bed.now);
    assert_eq!(bed.lists.take_due(bed.now), [target(1)]);
    bed.pass(99 * MS);
    bed.judge();
    assert_eq!(bed.listed(), []);
    bed.pass(MS);
    bed.judge();
    assert_eq!(bed.listed(), [(1, ListState::Slow)]);
    bed.probe(1, Probed::Unanswered, 1);
    assert_eq!(bed.listed(), [(1, ListState::Out)]);
}

#[test]
fn a_failed_disk_is_out_alone() {
    let mut bed = Bed::new(3);
    bed.lists.disk_failed(target(1), &bed.health, bed.now);
    assert_eq!(bed.listed(), [(1, ListState::Out)]);
    assert!(!bed.lists.is_asked_last(Target { disk: DiskId::new(99), ..target(1) }));
    bed.probe(1, Probed::Failed, 5);
    assert_eq!(bed.listed(), [(1, ListState::Out)]);
}

/// It may have been replaced, or its server removed: no probe would ever end its listing.
#[test]
fn a_disk_that_never_serves_again_is_forgotten_at_last() {
    for probed in [Probed::Failed, Probed::Unanswered, Probed::Late] {
        let mut bed = Bed::new(3);
        bed.lists.disk_failed(target(1), &bed.health, bed.now);
        bed.probe(1, probed, 599);
        assert_eq!(bed.listed().len(), 1);
        bed.probe(1, probed, 2);
        assert!(bed.lists.is_empty(), "{probed:?}");
    }
}

/// Whatever comes: no more servers are listed than may be, and an empty list is reached by good probes.
#[test]
fn caps_hold_and_all_come_back() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let servers = 1 + rng.below(12) as u16;
        let mut bed = Bed::new(servers);
        bed.rng = Rng::new(seed + 1000);
        for _ in 0..60 {
            let latencies: Vec<_> =
                (0..servers).map(|_| if rng.below(5) == 0 { 60 * MS } else { MS }).collect();
            bed.reads(&latencies, 1 + rng.below(10) as usize);
            bed.judge();
            let number = rng.below(u64::from(servers)) as u16;
            match rng.below(4) {
                0 => bed.lists.suspect(target(number), bed.now),
                1 => bed.lists.disk_failed(target(number), &bed.health, bed.now),
                _ => {}
            }
            let outcomes = [Probed::Unanswered, Probed::Late, Probed::Failed, Probed::Served(MS)];
            bed.probe(number, outcomes[rng.below(4) as usize], 1);
            let listed = bed.listed().len();
            assert!(
                listed <= usize::from(servers / 3).max(1),
                "{listed} of {servers}, seed {seed}"
            );
        }
        for number in (0..servers).cycle().take(usize::from(servers) * 130) {
            bed.probe(number, Probed::Served(MS), 1);
        }
        assert!(bed.lists.is_empty(), "seed {seed}");
    }
}

#[test]
fn pushed_servers_are_out_beside_those_that_are_listed_within_the_cap() {
    let mut bed = Bed::new(7);
    let server = |number: u16| ServerId::new(u32::from(number) + 1);
    let pushed = |numbers: &[u16], now| {
        let unreached = |it: &u16| (server(*it), (ListReason::MastersUnreached, now));
        numbers.iter().map(unreached).collect()
    };
    let last =
        |bed: &Bed| (0..7).filter(|it| bed.lists.is_asked_last(target(*it))).collect::<Vec<_>>();
    bed.reads(&[MS; 7], 40);
    let version = bed.lists.version();
    bed.lists.set_pushed(pushed(&[1, 2, 5], bed.now));
    assert!(bed.lists.version() > version, "writers take it over");
    // A third of seven.
    assert_eq!(last(&bed), [1, 2]);
    assert_eq!(bed.lists.unwanted(3), [server(1), server(2)]);
    assert_eq!(bed.lists.unwanted(6), [], "no copy is lost for it");
    // What this client sees itself comes first; it is no second listing of the same server.
    bed.lists.disk_failed(target(6), &bed.health, bed.now);
    assert_eq!(last(&bed), [1, 6]);
    bed.lists.disk_failed(target(1), &bed.health, bed.now);
    assert_eq!(last(&bed), [1, 6]);
    let targets: Vec<_> = (0..7).map(target).collect();
    let listed = bed.lists.listed_with_pushed(&targets);
    let reasons: Vec<_> = listed.iter().map(|listed| listed.reason).collect();
    assert_eq!(reasons, [ListReason::DiskFailed; 2]);
    assert_eq!(bed.lists.pushed_servers(), [server(1)]);
    // A server whose address is not known is none that could be asked.
    bed.lists.set_pushed([(ServerId::new(70), (ListReason::MastersUnreached, bed.now))].into());
    assert_eq!(last(&bed), [1, 6]);
    // The push ends: nothing is left of it, and no probe was needed.
    let mut bed = Bed::new(7);
    bed.lists.set_pushed(pushed(&[3], bed.now));
    assert_eq!((last(&bed), bed.lists.is_empty()), (vec![3], true));
    bed.lists.set_pushed(pushed(&[], bed.now));
    assert_eq!((last(&bed), bed.lists.unwanted(3)), (vec![], vec![]));
}

#[test]
fn servers_that_masters_find_slow_are_asked_last_and_written_on_to() {
    let mut bed = Bed::new(7);
    let server = |number: u16| ServerId::new(u32::from(number) + 1);
    bed.reads(&[MS; 7], 40);
    let (slow, unreached) = (ListReason::MastersSlow, ListReason::MastersUnreached);
    let pushed = [(0, slow), (1, slow), (4, unreached)];
    bed.lists.set_pushed(pushed.map(|(it, reason)| (server(it), (reason, bed.now))).into());
    // A third of seven, unreached ones first.
    let last: Vec<_> = (0..7).filter(|it| bed.lists.is_asked_last(target(*it))).collect();
    assert_eq!(last, [0, 4]);
    assert_eq!(bed.lists.unwanted(3), [server(0), server(4)]);
    assert_eq!(bed.lists.pushed_servers(), [server(4)], "no chunk ends for a slow disk");
    let targets: Vec<_> = (0..7).map(target).collect();
    let listed = bed.lists.listed_with_pushed(&targets);
    let states: Vec<_> = listed.iter().map(|listed| (listed.state, listed.reason)).collect();
    assert_eq!(states, [(ListState::Slow, slow), (ListState::Out, unreached)]);
}
