//! Fresh seeds, for as long as the environment says.

use std::time::{Duration, Instant, SystemTime};

use sim::SCENARIOS;

use super::check;

/// Seconds of fresh seeds; 0 runs none.
const VARIABLE: &str = "CRATON_SIM_FRESH_S";

/// A failure names its seed: it is replayed with `craton-sim replay`, and becomes a test.
#[test]
#[expect(clippy::disallowed_methods, reason = "what is fresh depends on the hour")]
fn scenarios_hold_on_fresh_seeds() {
    let budget = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let started = Instant::now();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let first = since.as_secs() << 16;
    let mut count = 0;
    // Not from the first scenario on each time: a short budget reaches all of them in the end.
    let turns = SCENARIOS.iter().cycle().skip(since.as_secs() as usize % SCENARIOS.len());
    for (turn, scenario) in turns.enumerate() {
        if started.elapsed() >= Duration::from_secs(budget) {
            break;
        }
        check(scenario, first + turn as u64);
        count += 1;
    }
    println!("{count} fresh seeds from {first}");
}
