//! Records of latencies: data, and a model.

use std::collections::BTreeMap;

use base::DiskId;
use metrics::{recent_bucket, recent_bucket_end};
use runtime::{Duration, Instant, Rng};
use wire::control::{CallKind, SizeClass};

use super::*;

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn target(number: u16) -> Target {
    let addr = SocketAddr::from(([10, 0, 0, 1], number));
    Target { addr, disk: DiskId::new(u128::from(number)) }
}

const READ: CallClass = CallClass { kind: CallKind::Read, size: SizeClass::Small };

fn micros(duration: Option<Duration>) -> Option<u64> {
    duration.map(|duration| duration.as_micros() as u64)
}

#[test]
fn sizes_fall_into_their_classes() {
    for (len, class) in [
        (0, SizeClass::Small),
        (16 << 10, SizeClass::Small),
        ((16 << 10) + 1, SizeClass::Medium),
        (128 << 10, SizeClass::Medium),
        ((128 << 10) + 1, SizeClass::Large),
        (usize::MAX, SizeClass::Large),
    ] {
        assert_eq!(SizeClass::of(len), class, "{len}");
    }
}

#[test]
fn quantiles_are_those_of_the_calls_of_a_class_at_all_disks() {
    let mut health = Health::new(at(0));
    assert_eq!(health.quantile(READ, 500, at(0)), None);
    // 1 to 1,000 ms apart in time, 100 us to 100 ms long, at ten disks.
    for number in 1..=1000u64 {
        let ticket = health.begin(target(number as u16 % 10), READ, at(0));
        health.end(ticket, CallEnd::Timed, at(number * 100));
    }
    let other = health.begin(target(1), CallClass::append(100), at(0));
    health.end(other, CallEnd::Timed, at(4_000_000));
    assert_eq!(health.samples(READ, at(100_000)), 1000);
    for (per_mille, exact) in [(500, 50_000), (900, 90_000), (980, 98_000), (999, 99_900)] {
        let found = micros(health.quantile(READ, per_mille, at(100_000))).unwrap();
        assert!(found >= exact && found <= exact * 5 / 4 + 1, "p{per_mille}: {found} of {exact}");
    }
}

#[test]
fn healthy_latency_is_that_of_the_disk_in_the_middle() {
    let mut health = Health::new(at(0));
    let mut calls = |disks: std::ops::Range<u16>, calls: u64, took: u64| {
        for number in disks {
            for _ in 0..calls {
                let ticket = health.begin(target(number), READ, at(0));
                health.end(ticket, CallEnd::Timed, at(took));
            }
        }
        micros(health.healthy(READ, 999, at(1000)))
    };
    assert_eq!(calls(0..2, 15, 1000), None, "too few");
    let few = calls(2..5, 15, 1000).expect("of all together");
    assert!((1000..=1250).contains(&few), "{few}");
    let one = calls(0..1, 1000, 50_000).expect("of the one disk that has enough");
    assert!((50_000..=62_500).contains(&one), "{one}");
    let most = calls(1..5, 1000, 1000).expect("slow ones are few");
    assert!((1000..=1250).contains(&most), "{most}");
    for number in 0..5 {
        let ticket = health.begin(target(number), READ, at(0)).at_listed(true);
        health.end(ticket, CallEnd::Timed, at(900_000));
    }
    assert_eq!(micros(health.healthy(READ, 1000, at(1000))), Some(most), "those of listed disks");
}

#[test]
fn age_of_the_oldest_call_is_a_latency_before_it_ends() {
    let mut health = Health::new(at(0));
    let quick = health.begin(target(1), READ, at(0));
    health.end(quick, CallEnd::Timed, at(100));
    let (first, second) =
        (health.begin(target(1), READ, at(1000)), health.begin(target(1), READ, at(2000)));
    assert_eq!(health.under_way(target(1), READ, at(9000)), (2, Duration::from_micros(8000)));
    assert_eq!(micros(health.latency(target(1), READ, 900, at(9000))), Some(8000));
    health.end(first, CallEnd::Untimed, at(9000));
    assert_eq!(micros(health.latency(target(1), READ, 900, at(9000))), Some(7000));
    health.end(second, CallEnd::Untimed, at(9000));
    let latency = micros(health.latency(target(1), READ, 900, at(9000))).unwrap();
    assert!((100..=125).contains(&latency), "{latency} us: one call counts");
    assert_eq!(health.samples(READ, at(9000)), 1);
    assert_eq!(health.latency(target(2), READ, 900, at(9000)), None);
}

#[test]
fn what_was_long_ago_counts_less_and_then_not_at_all() {
    let mut health = Health::new(at(0));
    let call = |health: &mut Health, from: u64, took: u64| {
        let ticket = health.begin(target(1), READ, at(from));
        health.end(ticket, CallEnd::Timed, at(from + took));
    };
    for _ in 0..100 {
        call(&mut health, 1_000_000, 50_000);
    }
    for _ in 0..60 {
        call(&mut health, 6_000_000, 100);
    }
    assert_eq!(health.samples(READ, at(7_000_000)), 50 + 60);
    assert!(micros(health.quantile(READ, 500, at(7_000_000))).unwrap() < 200);
    assert_eq!(health.samples(READ, at(11_000_000)), 25 + 30);
    assert_eq!(health.samples(READ, at(100_000_000)), 0);
    assert_eq!(health.quantile(READ, 500, at(100_000_000)), None);
}

#[test]
fn record_that_was_idle_for_longest_makes_room() {
    let mut health = Health::with_room(3, at(0));
    let busy = health.begin(target(1), READ, at(0));
    for (number, from) in [(2, 20), (3, 10), (4, 40)] {
        let ticket = health.begin(target(number), READ, at(from));
        health.end(ticket, CallEnd::Timed, at(from + 1));
    }
    assert_eq!(health.records(), 3);
    let known =
        |health: &mut Health, number| health.latency(target(number), READ, 500, at(100)).is_some();
    let found: Vec<u16> = (1..=4).filter(|&number| known(&mut health, number)).collect();
    assert_eq!(found, [1, 2, 4], "3 was used before 2, and 1 has a call");
    // All have calls: one more is counted for all disks, and has no record.
    let more: Vec<_> =
        [2, 4, 5].map(|number| health.begin(target(number), READ, at(200))).into_iter().collect();
    assert_eq!(health.records(), 3);
    let before = health.samples(READ, at(300));
    for ticket in more.into_iter().chain([busy]) {
        health.end(ticket, CallEnd::Timed, at(300));
    }
    assert_eq!(health.samples(READ, at(300)), before + 4);
    assert!(!known(&mut health, 5));
}

/// As [`Health`], with every count halved at every period, and every call kept.
#[derive(Default)]
struct Model {
    counts: BTreeMap<(Target, CallClass), BTreeMap<usize, u64>>,
    all: BTreeMap<CallClass, BTreeMap<usize, u64>>,
    calls: BTreeMap<u64, (Target, CallClass, Instant)>,
    used: BTreeMap<(Target, CallClass), Instant>,
    /// Calls in a row that were given up, and when the first was.
    silences: BTreeMap<Target, (u32, Instant)>,
}

impl Model {
    fn halve(&mut self) {
        let counts = self.counts.values_mut().chain(self.all.values_mut());
        counts.flat_map(BTreeMap::values_mut).for_each(|count| *count /= 2);
    }

    fn has_calls(&self, key: (Target, CallClass)) -> bool {
        self.calls.values().any(|&(target, class, _)| (target, class) == key)
    }

    fn begin(&mut self, number: u64, key: (Target, CallClass), now: Instant, room: usize) {
        if !self.used.contains_key(&key) && self.used.len() == room {
            let idle = self.used.iter().filter(|(other, _)| !self.has_calls(**other));
            let Some(oldest) = idle.min_by_key(|(key, used)| (**used, **key)).map(|(key, _)| *key)
            else {
                return;
            };
            self.used.remove(&oldest);
            self.counts.remove(&oldest);
            self.silences.retain(|silent, _| self.used.keys().any(|(target, _)| target == silent));
        }
        self.used.insert(key, now);
        self.calls.insert(number, (key.0, key.1, now));
    }

    fn quantile(counts: Option<&BTreeMap<usize, u64>>, per_mille: u64) -> Option<Duration> {
        let all: Vec<usize> = counts?
            .iter()
            .flat_map(|(&bucket, &count)| std::iter::repeat_n(bucket, count as usize))
            .collect();
        let wanted = (all.len() as u64 * per_mille).div_ceil(1000).max(1);
        all.get(wanted as usize - 1).map(|&bucket| recent_bucket_end(bucket))
    }
}

#[test]
fn random_calls_are_counted_as_a_model_counts_them() {
    const ROOM: usize = 6;
    let classes = [CallClass::read(1), CallClass::read(100_000), CallClass::append(1 << 20)];
    let mut found_silent = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut health = Health::with_room(ROOM, at(0));
        let (mut model, mut now, mut open) = (Model::default(), 0u64, Vec::new());
        for step in 0..600 {
            let long = [200, 20_000, 3_000_000, 12_000_000][rng.below(4) as usize];
            let most = if rng.one_in(8) { long } else { 200 };
            let then = now + rng.below(most);
            let period = HEALTH_HALVING.as_micros() as u64;
            (now / period..then / period).for_each(|_| model.halve());
            now = then;
            let key = (target(rng.below(4) as u16), *rng.pick(&classes));
            if rng.one_in(2) && open.len() < 20 {
                let ticket = health.begin(key.0, key.1, at(now));
                model.begin(ticket.number, key, at(now), ROOM);
                open.push(ticket);
            } else if !open.is_empty() {
                let ticket = open.swap_remove(rng.below(open.len() as u64) as usize);
                let ends = [CallEnd::Untimed, CallEnd::Timed, CallEnd::Timed, CallEnd::GivenUp];
                let end = *rng.pick(&ends);
                let key = (ticket.target, ticket.class);
                model.calls.remove(&ticket.number);
                let index = recent_bucket(at(now).since(ticket.begun));
                if end != CallEnd::Untimed {
                    *model.all.entry(key.1).or_default().entry(index).or_default() += 1;
                }
                if let Some(used) = model.used.get_mut(&key) {
                    *used = at(now);
                    if end != CallEnd::Untimed {
                        *model.counts.entry(key).or_default().entry(index).or_default() += 1;
                    }
                    match end {
                        CallEnd::GivenUp => {
                            model.silences.entry(key.0).or_insert((0, at(now))).0 += 1;
                        }
                        _ => drop(model.silences.remove(&key.0)),
                    }
                }
                health.end(ticket, end, at(now));
            }
            let what = format!("seed {seed}, step {step}");
            assert_eq!(health.records(), model.used.len(), "{what}");
            let silent = model.silences.iter().filter(|(_, (calls, since))| {
                *calls >= SILENT_CALLS && at(now).since(*since) >= SILENT_AGE
            });
            let silent: Vec<_> = silent.map(|(target, _)| *target).collect();
            found_silent += silent.len();
            assert_eq!(health.silent(at(now)), silent, "{what}");
            if rng.one_in(50) {
                health.probed(key.0);
                model.silences.remove(&key.0);
            }
            for class in classes {
                for per_mille in [500, 980, 999] {
                    let found = health.quantile(class, per_mille, at(now));
                    let expected = Model::quantile(model.all.get(&class), u64::from(per_mille));
                    assert_eq!(found, expected, "{what}: {class:?}");
                }
                for number in 0..4 {
                    let key = (target(number), class);
                    let calls = model.calls.values().filter(|&&(t, c, _)| (t, c) == key);
                    let begun = calls.clone().map(|&(_, _, begun)| begun).min();
                    let oldest = begun.map_or(Duration::ZERO, |begun| at(now).since(begun));
                    let under_way = health.under_way(key.0, class, at(now));
                    assert_eq!(under_way, (calls.count(), oldest), "{what}: {key:?}");
                    let ended = Model::quantile(model.counts.get(&key), 900);
                    let expected = match begun {
                        None => ended,
                        Some(_) => Some(ended.map_or(oldest, |ended| ended.max(oldest))),
                    };
                    assert_eq!(health.latency(key.0, class, 900, at(now)), expected, "{what}");
                }
            }
        }
    }
    assert!(found_silent > 500, "{found_silent} times silent");
}
