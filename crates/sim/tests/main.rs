//! Every scenario on a few fixed seeds; determinism.

use sim::{SCENARIOS, run_seed};

/// Fixed seeds of each scenario in this binary; `craton sim check` runs more.
const SEEDS: u64 = 10;

#[test]
fn scenarios_hold_on_fixed_seeds() {
    for scenario in SCENARIOS {
        for seed in 0..SEEDS {
            if let Err(failure) = run_seed(scenario, seed) {
                panic!("{}: {failure}\n{}", scenario.name, failure.violation);
            }
        }
    }
}

#[test]
fn a_seed_has_one_trace_hash() {
    for scenario in SCENARIOS {
        let alone = run_seed(scenario, 3).expect("holds").trace_hash;
        let other = run_seed(scenario, 4).expect("holds").trace_hash;
        let after = run_seed(scenario, 3).expect("holds").trace_hash;
        assert_eq!(alone, after, "{}: the hash depends on earlier runs", scenario.name);
        assert_ne!(alone, other, "{}: the hash ignores the seed", scenario.name);
    }
}
