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
            Bounds { code: EC2_1, appends: 1, losses: 1, waits: 1, one_is_slow: true, ..NONE },
            "cells of one row differ",
        ),
    ];
    for (planted, bounds, words) in cases {
        let broken = explore(bounds, Some(planted)).expect_err("it is found");
        assert!(broken.what.contains(words), "{planted:?}: {broken:?}");
        println!("{planted:?}: {broken:?}");
    }
}

#[test]
fn measure() {
    let a4 = Code { a: 4, ..EC2_2 };
    let ec3_2 = Code { n: 5, a: 4, k: 3 };
    let live = Bounds { dies: false, burst: false, ..CRASH };
    let all = [
        ("2+1 L2 T2", Bounds { code: EC2_1, leaders: 2, targets: 2, ..CRASH }),
        ("2+1 D2", Bounds { code: EC2_1, leaders: 1, disks: 2, ..CRASH }),
        ("2+1 last", Bounds { code: EC2_1, leaders: 1, harm: Harm::LastWrite, ..CRASH }),
        ("2+2 last", Bounds { code: EC2_2, leaders: 1, harm: Harm::LastWrite, ..CRASH }),
        ("2+2 L1", Bounds { code: EC2_2, leaders: 1, ..CRASH }),
        ("2+2 a4 D2 L0", Bounds { code: a4, disks: 2, ..CRASH }),
        ("2+1 live", Bounds { code: EC2_1, harm: Harm::None, ..live }),
        ("2+1 live destroyed", Bounds { code: EC2_1, ..live }),
        ("2+2 slow dies", Bounds { code: EC2_2, waits: 1, one_is_slow: true, ..CRASH }),
        ("2+2 L1 T1", Bounds { code: EC2_2, leaders: 1, targets: 1, ..CRASH }),
        ("2+2 D2 L1", Bounds { code: EC2_2, disks: 2, leaders: 1, ..CRASH }),
        ("2+2 a4 D2 L1", Bounds { code: a4, disks: 2, leaders: 1, ..CRASH }),
        ("2+2 live", Bounds { code: EC2_2, harm: Harm::None, ..live }),
        ("3+2 L0", Bounds { code: ec3_2, ..CRASH }),
    ];
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, bounds) in all.into_iter().filter(|it| it.0.starts_with(&only)) {
        let start = std::time::Instant::now();
        let found = explore(bounds, None);
        let text = match found {
            Ok(found) => format!("{} states {} steps {:?}", found.states, found.steps, found.marks),
            Err(broken) => format!("{broken:?}"),
        };
        println!("== {name}: {:?} {text}", start.elapsed());
    }
}
