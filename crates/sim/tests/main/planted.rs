//! Each planted bug is found, by the checker it is for.

use sim::{Planted, find, run_planted};

/// Each bug with scenarios and the seeds that find it first there, and what is said then.
const FOUND: [(Planted, &str, u64, &str); 25] = [
    // Oracle: acknowledged bytes are there.
    (Planted::AckEarly, "append-blackout", 0, "were acknowledged"),
    (Planted::AckUnsent, "append-writers", 0, "were there before"),
    // Oracle: no read ends below what was there when it began.
    (Planted::StaleTail, "append", 0, "were there before"),
    // Oracle: no read goes back.
    (Planted::Uncommitted, "takeover", 0, "were there before"),
    // Oracle: one writer.
    (Planted::NoFence, "takeover", 0, "were acknowledged"),
    // Oracle: bytes have their content.
    (Planted::WrongBytes, "append", 0, "is 0x"),
    // Liveness: the cluster is whole again.
    (Planted::NoSeal, "append", 0, "not whole"),
    (Planted::NoRepair, "append-wipe", 0, "not whole"),
    // Audit: all replicas are there, and nothing else.
    (Planted::NoDelete, "append-servers", 0, "nobody's"),
    (Planted::DeleteNeighbour, "append-servers", 0, "1 of 3 replicas"),
    // Linearizability of names.
    (Planted::StaleNames, "names", 0, "not linearizable"),
    (Planted::TwiceChanged, "names", 0, "not linearizable"),
    (Planted::LostRename, "names", 0, "not linearizable"),
    // Exclusion of lock holders.
    (Planted::ForgedLock, "locks", 0, "at the same time"),
    // One owner of a segment acknowledges at a time.
    (Planted::NoHold, "block-managers", 0, "believe"),
    (Planted::LongLease, "block-managers", 0, "believe"),
    // Linearizability of blocks.
    (Planted::NoSequence, "volumes", 0, "not linearizable"),
    (Planted::EndlessLease, "volumes", 1, "not linearizable"),
    (Planted::ForgetChanges, "volumes", 30, "not linearizable"),
    (Planted::NoConfirm, "volumes", 0, "not linearizable"),
    (Planted::OldPlaces, "volumes", 0, "not linearizable"),
    // The same over the whole stack, from a front end's answer to the power cut.
    (Planted::EarlyAnswer, "disks", 0, "not linearizable"),
    // One owner of a segment, with real segments.
    (Planted::LongLease, "disks", 0, "believe"),
    // Snapshots are consistent cuts over segments.
    (Planted::NoCutHold, "snapshots", 0, "no consistent cut"),
    // Exclusion of attachments.
    (Planted::OldAttachment, "volumes", 0, "acts after"),
];

/// Seeds in which a bug must show.
const NEAR: u64 = 40;

#[test]
fn planted_bugs_are_found() {
    let has = |bug: &Planted| FOUND.iter().any(|found| found.0 == *bug);
    assert!(Planted::ALL.iter().all(has), "each bug has a checker that finds it");
    for (bug, name, seed, says) in FOUND {
        let scenario = find(name).expect("in the table");
        // The one named finds it, or a near one does when all seeds have shifted.
        // Another checker may be first to see what it has done: the one that is meant must too.
        let mut others = Vec::new();
        let meant = (seed..seed + NEAR).any(|seed| match run_planted(scenario, seed, bug) {
            Err(found) if found.violation.contains(says) => true,
            Err(found) => {
                others.push(found.violation);
                false
            }
            Ok(_) => false,
        });
        assert!(meant, "{bug:?} in {name}, seed {seed} on: found {others:?}");
    }
}
