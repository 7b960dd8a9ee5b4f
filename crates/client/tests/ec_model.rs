//! `ec-model` (`protocols-tail.md` 9): every order of the steps of a writer, the fragments of its coded
//! chunk and a recovery, for two rows.

use crate::explorer::{Bounds, Code, Harm, NONE, Planted, explore, explored};

/// The code that three servers can have: each fragment acknowledges.
const EC2_1: Code = Code { n: 3, a: 3, k: 2 };
/// One fragment may be late, or be lost.
const EC2_2: Code = Code { n: 4, a: 3, k: 2 };

/// The writer dies at some step, and disks are destroyed at others.
const CRASH: Bounds =
    Bounds { recovers: true, burst: true, dies: true, harm: Harm::Destroyed, ..NONE };

#[test]
fn each_code_loses_nothing_with_a_disk_destroyed_at_any_step() {
    explored(Bounds { code: EC2_1, ..CRASH }, &["sealed without a destroyed disk"]);
    explored(Bounds { code: EC2_2, ..CRASH }, &["sealed without a destroyed disk"]);
}

#[test]
fn each_code_loses_nothing_with_a_new_leader_at_any_step() {
    explored(Bounds { code: EC2_1, leaders: 1, ..CRASH }, &["a copy is partly made"]);
    explored(Bounds { code: EC2_1, leaders: 1, targets: 1, ..CRASH }, &["a copy is partly made"]);
}

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
            Planted::RowRelaid,
            Bounds { code: EC2_1, losses: 1, waits: 1, ..NONE },
            "cells of one row differ",
        ),
    ];
    for (planted, bounds, words) in cases {
        let broken = explore(bounds, Some(planted)).expect_err("it is found");
        assert!(broken.what.contains(words), "{planted:?}: {broken:?}");
        println!("{planted:?}: {broken:?}");
    }
}
