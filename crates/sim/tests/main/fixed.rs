//! Fixed seeds: the same runs at every commit, with the marks that prove that rare paths ran.

use std::collections::BTreeSet;

use sim::{SCENARIOS, find, run_seeds};

use super::check;

/// Fixed seeds of each scenario.
const SEEDS: u64 = 3;
/// Fixed seeds of the one that takes no time.
const ECHO_SEEDS: u64 = 50;

/// Runs a scenario's fixed seeds; together they reach all its marks.
fn hold(name: &str) {
    let scenario = find(name).expect("in the table");
    let mut reached = BTreeSet::new();
    let seeds = if name == "echo" { ECHO_SEEDS } else { SEEDS };
    for seed in 0..seeds {
        reached.extend(check(scenario, seed).marks.into_keys());
    }
    let missed: Vec<_> = scenario.marks.iter().filter(|mark| !reached.contains(*mark)).collect();
    assert!(missed.is_empty(), "no seed reached {missed:?}; reached: {reached:#?}");
}

/// A test for each scenario, so that they run side by side.
macro_rules! scenarios {
    ($($test:ident $name:literal,)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                hold($name);
            }
        )*
    };
}

scenarios! {
    echo "echo",
    append "append",
    append_blackout "append-blackout",
    append_clocks "append-clocks",
    append_disks "append-disks",
    append_masters "append-masters",
    append_network "append-network",
    append_partitions "append-partitions",
    append_policies "append-policies",
    append_rot "append-rot",
    append_servers "append-servers",
    append_storm "append-storm",
    append_wipe "append-wipe",
    append_writers "append-writers",
    block_managers "block-managers",
    disks "disks",
    locks "locks",
    names "names",
    segments "segments",
    snapshots "snapshots",
    table "table",
    takeover "takeover",
    volumes "volumes",
}

#[test]
fn every_scenario_has_a_test() {
    let names: BTreeSet<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
    assert_eq!(names, TESTED.iter().copied().collect());
}

#[test]
fn a_seed_has_one_trace_hash() {
    for name in ["echo", "append-storm"] {
        let scenario = find(name).expect("in the table");
        let alone = check(scenario, 3).trace_hash;
        let other = check(scenario, 4).trace_hash;
        let after = check(scenario, 3).trace_hash;
        assert_eq!(alone, after, "{name}: the hash depends on earlier runs");
        assert_ne!(alone, other, "{name}: the hash ignores the seed");
    }
}

#[test]
fn threads_change_nothing() {
    let scenario = find("takeover").expect("in the table");
    let hashes = |threads| {
        let mut hashes = Vec::new();
        let count = run_seeds(scenario, 5..8, threads, |seed, outcome| {
            hashes.push((seed, outcome.trace_hash));
        });
        assert_eq!(count.map_err(|failure| failure.violation), Ok(3));
        hashes
    };
    assert_eq!(hashes(1), hashes(3));
}
