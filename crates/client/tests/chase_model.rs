//! `chase-model` (`protocols-tail.md` 8): every order of the steps of a writer, its three replicas and a
//! recovery, for a few appends.

use crate::explorer::{Bounds, Harm, NONE, Planted, appends, explore, explored};

#[test]
fn recovery_beside_a_living_writer_loses_nothing_in_any_order() {
    let bounds = Bounds { appends: appends(), recovers: true, burst: appends() > 2, ..NONE };
    let reached = [
        "a fence before the creation",
        "a tombstone is filled",
        "an acknowledgement after a fence",
        "an append meets a fence",
        "an operation of a writer that was taken for dead",
        "more is sealed than was acknowledged",
    ];
    explored(bounds, &reached);
}

#[test]
fn recovery_loses_nothing_with_one_disk_destroyed_and_a_new_leader_at_any_step() {
    let bounds = Bounds { recovers: true, burst: true, dies: true, leaders: 1, ..NONE };
    let bounds = Bounds { harm: Harm::Destroyed, appends: appends(), ..bounds };
    explored(bounds, &["a new leader amid a recovery", "a tombstone is filled"]);
}

#[test]
fn recovery_loses_nothing_when_one_disk_has_lost_its_last_write() {
    let bounds = Bounds { recovers: true, burst: true, dies: true, ..NONE };
    let bounds = Bounds { harm: Harm::LastWrite, appends: appends(), ..bounds };
    explored(bounds, &["more is sealed than was acknowledged"]);
}

#[test]
fn slow_replica_is_left_or_gets_what_it_is_owed_in_any_order() {
    let slow = Bounds { one_is_slow: true, appends: 3, ..NONE };
    let reached =
        ["a replica is left", "a thin chunk ends", "the end of a chunk names who was left"];
    explored(Bounds { waits: 2, losses: 1, ..slow }, &reached);
    let reached = ["a chunk ends that owes something", "what an ended chunk owed is there"];
    explored(Bounds { waits: 1, losses: 1, chunk: 2, ..slow }, &reached);
}

/// Masters complete a late replica of a chunk that has ended, in any order with the writer's steps.
fn completed() -> Bounds {
    Bounds { completes: true, one_is_slow: true, appends: 3, chunk: 2, ..NONE }
}

#[test]
fn writer_lives_when_masters_complete_what_it_owes() {
    explored(completed(), &["masters complete what a writer owes", "an append meets a fence"]);
}

#[test]
fn writer_loses_nothing_when_a_disk_is_replaced_at_any_step() {
    let bounds = Bounds { harm: Harm::Replaced, appends: appends(), ..NONE };
    explored(bounds, &["a replica is left"]);
}

/// Each rule that is broken shows in some order.
#[test]
fn planted_errors_are_found() {
    let recovery = Bounds { recovers: true, burst: true, dies: true, ..NONE };
    let of_writer = Planted::Writer;
    let replaced = Bounds { harm: Harm::Replaced, appends: 3, ..NONE };
    let slow = Bounds { one_is_slow: true, appends: 3, waits: 1, losses: 1, ..NONE };
    let cases = [
        (of_writer(client::Planted::LeftCounts), replaced, "is acknowledged with 1 replicas"),
        (Planted::ReleaseAtM, slow, "is released, and server 2 lacks it"),
        (of_writer(client::Planted::EndAbovePlaced), Bounds { disks: 2, ..replaced }, " ends at "),
        (of_writer(client::Planted::DebtDropped), Bounds { chunk: 2, ..slow }, "is left, and"),
        (of_writer(client::Planted::DebtEndsWriter), completed(), "the writer fails"),
        (Planted::AckBelowM, Bounds { ..NONE }, "is acknowledged with 1 replicas"),
        (Planted::RecordShrinks, recovery, "bytes are acknowledged"),
        (
            Planted::StatisticIsLength,
            Bounds { harm: Harm::LastWrite, ..recovery },
            "bytes are acknowledged",
        ),
        (
            Planted::FillRepairing,
            Bounds { harm: Harm::Destroyed, leaders: 1, ..recovery },
            "a recovery does not end",
        ),
    ];
    for (planted, bounds, words) in cases {
        let broken = explore(bounds, Some(planted)).expect_err("it is found");
        assert!(broken.what.contains(words), "{planted:?}: {broken:?}");
        println!("{planted:?}: {} states, {}", broken.states, broken.what);
    }
}
