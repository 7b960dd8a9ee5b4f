//! Every scenario on fixed seeds, then on fresh ones for a while; determinism.

use std::time::{Duration, Instant, SystemTime};

use sim::{SCENARIOS, Scenario, find, run_seed};

/// Fixed seeds of each scenario.
const SEEDS: u64 = 2;
/// Seconds of fresh seeds; 0 runs none.
const FRESH_VARIABLE: &str = "CRATON_SIM_FRESH_S";

fn check(scenario: &Scenario, seed: u64) -> u64 {
    match run_seed(scenario, seed) {
        Ok(outcome) => outcome.trace_hash,
        Err(failure) => panic!("{}: {failure}\n{}", scenario.name, failure.violation),
    }
}

/// Scenarios without a known defect; the others are named as skipped.
fn sound() -> impl Iterator<Item = &'static Scenario> {
    SCENARIOS.iter().filter(|scenario| scenario.defect.is_empty())
}

#[test]
fn scenarios_hold_on_fixed_seeds() {
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.defect.is_empty()) {
        println!("skipped: {}: {}", scenario.name, scenario.defect);
    }
    for scenario in sound() {
        for seed in 0..SEEDS {
            check(scenario, seed);
        }
    }
}

#[test]
fn a_seed_has_one_trace_hash() {
    for name in ["echo", "append-storm"] {
        let scenario = find(name).expect("in the table");
        let alone = check(scenario, 3);
        let other = check(scenario, 4);
        let after = check(scenario, 3);
        assert_eq!(alone, after, "{name}: the hash depends on earlier runs");
        assert_ne!(alone, other, "{name}: the hash ignores the seed");
    }
}

/// Fresh seeds for as long as the environment says. A failure names its seed: it is replayed
/// with `craton sim replay`, and becomes a test.
#[test]
#[expect(clippy::disallowed_methods, reason = "what is fresh depends on the hour")]
fn scenarios_hold_on_fresh_seeds() {
    let budget = std::env::var(FRESH_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let started = Instant::now();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut seed = since.as_secs() << 16;
    let mut count = 0;
    while started.elapsed() < Duration::from_secs(budget) {
        for scenario in sound() {
            check(scenario, seed);
            count += 1;
        }
        seed += 1;
    }
    println!("{count} fresh seeds, up to {seed}");
}
