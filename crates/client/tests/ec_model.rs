//! `ec-model` (`protocols-tail.md` 9): every order of the steps of a writer, the fragments of its coded
//! chunk and a recovery, for two rows.
//!
//! A recovery has its votes from any replicas that are enough, the others are silent. What it lacks is
//! copied row by row: to replicas that voted, and to one that it records on another server. A copy may
//! break off after any row. It may go on under the next leader, who counts only what it ordered itself.

use crate::explorer::{Bounds, Code, Harm, NONE, Planted, appends, explore, explored};

/// The code that three servers can have: each fragment acknowledges.
const EC2_1: Code = Code { n: 3, a: 3, k: 2 };
/// One fragment may be late when a row is acknowledged: the writer chases it.
const EC2_2: Code = Code { n: 4, a: 3, k: 2 };

/// The writer dies at some step, and a disk is destroyed at another.
const CRASH: Bounds = Bounds {
    recovers: true,
    burst: true,
    dies: true,
    closes: false,
    harm: Harm::Destroyed,
    ..NONE
};

const REACHED: [&str; 5] = [
    "a fence before the creation",
    "a copy is partly made",
    "a copy goes on under the next leader",
    "sealed by the next leader",
    "sealed without a destroyed disk",
];

#[test]
fn code_of_three_servers_loses_nothing_with_new_leaders_and_a_disk_destroyed_at_any_step() {
    let bounds = Bounds { code: EC2_1, leaders: 1, targets: 1, ..CRASH };
    explored(bounds, &REACHED);
    let reached = ["a replica is made elsewhere", "a lost fragment is made elsewhere"];
    explored(Bounds { leaders: 2, ..bounds }, &reached);
}

#[test]
fn code_with_a_late_fragment_loses_nothing_with_a_new_leader_and_a_disk_destroyed_at_any_step() {
    let bounds = Bounds { code: EC2_2, leaders: 1, ..CRASH };
    explored(bounds, &REACHED);
    if appends() > 2 {
        explored(Bounds { targets: 1, ..bounds }, &["a lost fragment is made elsewhere"]);
        let ec3_2 = Code { n: 5, a: 4, k: 3 };
        explored(Bounds { code: ec3_2, leaders: 0, ..bounds }, &["a copy is partly made"]);
    }
}

/// One disk more than may be lost at success: what all fragments had is there, and nothing is sealed
/// without the votes.
#[test]
fn recovery_with_too_few_votes_waits_and_what_all_fragments_had_is_there() {
    let bounds = Bounds { disks: 2, ..CRASH };
    let reached = ["a recovery waits for voters", "sealed without a destroyed disk"];
    explored(Bounds { code: EC2_1, leaders: 1, ..bounds }, &reached);
    explored(Bounds { code: EC2_2, ..bounds }, &reached);
}

/// A row has one layout in a chunk, however often it is sent; the writer goes on beside the recovery.
#[test]
fn recovery_beside_a_living_writer_loses_nothing_in_any_order() {
    let bounds = Bounds { dies: false, burst: false, harm: Harm::None, ..CRASH };
    let reached = ["an acknowledgement after a fence", "an append meets a fence"];
    explored(Bounds { code: EC2_1, ..bounds }, &reached);
}

#[test]
fn slow_fragment_is_left_and_a_disk_destroyed_at_any_step_loses_nothing() {
    let bounds = Bounds { code: EC2_2, one_is_slow: true, waits: 1, leaders: 1, ..CRASH };
    let reached = ["a replica is left", "a thin chunk ends", "a chunk ends that owes something"];
    explored(bounds, &reached);
}

/// Each rule that is broken shows in some order. States until then: `AckBelowA` 1,690 (the writer refuses
/// such a grant of a coded chunk: here it takes it for copies), `VotesAsCopies` 28,273, `SealBelowK` 38,
/// `SameFragmentTwice` 6,547, `StaleHolders` 245, `RowRelaid` 8. `StaleHolders` is what `master_stream`
/// does yet, where the cluster has no other place.
#[test]
fn planted_errors_are_found() {
    let cases = [
        (Planted::AckBelowA, Bounds { code: EC2_1, ..CRASH }, "is acknowledged with 2 replicas"),
        (Planted::VotesAsCopies, Bounds { code: EC2_2, ..CRASH }, "bytes are acknowledged"),
        (Planted::SealBelowK, Bounds { code: EC2_1, ..CRASH }, "on 1 different fragments"),
        (
            Planted::SameFragmentTwice,
            Bounds { code: EC2_1, leaders: 1, targets: 1, ..CRASH },
            "is sealed and on 1 replicas",
        ),
        (
            Planted::StaleHolders,
            Bounds { code: EC2_1, ..CRASH },
            "sealed at 100, append 0 is on 1 fragments",
        ),
        (
            Planted::RowRelaid,
            Bounds { code: EC2_1, appends: 1, losses: 1, waits: 1, one_is_slow: true, ..NONE },
            "cells of one row differ",
        ),
    ];
    for (planted, bounds, words) in cases {
        let broken = explore(bounds, Some(planted)).expect_err("it is found");
        assert!(broken.what.contains(words), "{planted:?}: {broken:?}");
        println!("{planted:?}: {} states, {}", broken.states, broken.what);
    }
}
