//! Each checker finds the bug that it is there for.

use chunkstore::flash::Planted;

use crate::{conformance, recovery};

/// Some seed finds it.
fn check(planted: Planted, mut run: impl FnMut(u64) -> Result<(), String>) {
    let found = (0..3000).find_map(|seed| run(seed).err());
    let why = found.unwrap_or_else(|| panic!("no seed finds {planted:?}"));
    println!("{planted:?}: {why:.200}");
}

fn by_conformance(planted: Planted) {
    check(planted, |seed| conformance::check_planted(seed, planted));
}

#[test]
fn conformance_finds_early_acknowledgements() {
    by_conformance(Planted::AckEarly);
}

#[test]
fn conformance_finds_unlogged_fences() {
    by_conformance(Planted::FenceUnlogged);
}

#[test]
fn conformance_finds_unlogged_seals() {
    by_conformance(Planted::SealUnlogged);
}

#[test]
fn conformance_finds_unlogged_deletions() {
    by_conformance(Planted::DeleteUnlogged);
}

#[test]
fn conformance_finds_early_reuse() {
    by_conformance(Planted::ReuseEarly);
}

#[test]
fn conformance_finds_lax_scans() {
    by_conformance(Planted::ScanLax);
}

#[test]
fn conformance_finds_deleted_replicas_that_are_filled() {
    by_conformance(Planted::FillDeleted);
}

#[test]
fn conformance_finds_filled_fences_without_a_vote() {
    by_conformance(Planted::FillRepairing);
}

#[test]
fn conformance_finds_torn_rows() {
    let planted = Planted::TornRowCounts;
    check(planted, |seed| conformance::check_planted_rows(seed, planted));
}

#[test]
fn torn_log_writes_find_stale_blocks() {
    let planted = Planted::StaleLog;
    check(planted, |seed| recovery::check_stale_log(seed, Some(planted)));
}

#[test]
fn bit_rot_finds_unverified_reads() {
    let planted = Planted::ReadUnverified;
    check(planted, |seed| recovery::check_bit_rot(seed, Some(planted), recovery::Decay::Flip));
}

#[test]
fn lost_writes_find_forgotten_bounds() {
    let planted = Planted::IgnoreBound;
    check(planted, |seed| recovery::check_bad_writes(seed, Some(planted), false).map(drop));
}

#[test]
fn lost_writes_find_the_missing_scan_behind_the_log() {
    let planted = Planted::LogGap;
    check(planted, |seed| recovery::check_bad_writes(seed, Some(planted), false).map(drop));
}
