//! Every engine against the model.

use std::ops::Range;

use chunkstore::flash::{Planted, SyncMode};
use runtime::sim::Sim;

use crate::engine::{Flash, Model};
use crate::suite::{FAR, PLAN, Plan, ROWS, Run};

fn check_flash(
    seed: u64,
    planted: Option<Planted>,
    sync: SyncMode,
    plan: Plan,
) -> Result<(), String> {
    let sim = Sim::new(seed);
    let engine = Flash::planted(&sim, planted, sync);
    let mut run = Run::new(&sim, engine, seed, plan);
    let result = sim.run(run.run()).map_err(|stalled| stalled.to_string());
    result.and_then(|result| result).map_err(|why| format!("seed {seed}: {why}"))
}

/// The seeds given, or those of `CHUNKSTORE_SEEDS=from..to` for a longer search.
pub fn seeds(default: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("CHUNKSTORE_SEEDS") else { return default };
    let (from, to) = text.split_once("..").expect("CHUNKSTORE_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn the_model_conforms() {
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let mut run = Run::new(&sim, Model::new(&sim), seed, PLAN);
        let result = sim.run(run.run()).expect("no deadlock");
        result.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn flash_conforms() {
    for seed in seeds(0..100) {
        check_flash(seed, None, SyncMode::PerWrite, PLAN).unwrap();
    }
}

#[test]
fn the_model_conforms_with_rows() {
    for seed in 3000..3050 {
        let sim = Sim::new(seed);
        let mut run = Run::new(&sim, Model::new(&sim), seed, ROWS);
        let result = sim.run(run.run()).expect("no deadlock");
        result.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn flash_conforms_with_rows() {
    for seed in seeds(3000..3150) {
        check_flash(seed, None, SyncMode::PerWrite, ROWS).unwrap();
    }
}

#[test]
fn flash_conforms_with_group_sync() {
    for seed in seeds(1000..1060) {
        check_flash(seed, None, SyncMode::Group, PLAN).unwrap();
    }
}

#[test]
fn flash_conforms_at_the_ends_of_types() {
    for seed in seeds(2000..2040) {
        check_flash(seed, None, SyncMode::PerWrite, FAR).unwrap();
    }
}

/// As [`flash_conforms`] does it, with a bug on purpose.
pub fn check_planted(seed: u64, planted: Planted) -> Result<(), String> {
    check_flash(seed, Some(planted), SyncMode::PerWrite, PLAN)
}

/// As [`flash_conforms_with_rows`] does it, with a bug on purpose.
pub fn check_planted_rows(seed: u64, planted: Planted) -> Result<(), String> {
    check_flash(seed, Some(planted), SyncMode::PerWrite, ROWS)
}
