//! Each planted bug is found, by the checker it is for.

use sim::{Planted, find, run_planted, run_seed};

/// Each bug with scenarios and the seeds that find it first there, and what is said then.
const FOUND: [(Planted, &str, u64, &str); 95] = [
    // Oracle: acknowledged bytes are there.
    (Planted::AckEarly, "append-blackout", 13, "were acknowledged"),
    (Planted::AckUnsent, "append-writers", 0, "were there before"),
    // Oracle: no read ends below what was there when it began.
    (Planted::StaleTail, "append", 0, "were there before"),
    // Oracle: no read goes back.
    (Planted::Uncommitted, "takeover", 8, "were there before"),
    // Oracle: one writer.
    (Planted::NoFence, "takeover", 0, "were acknowledged"),
    // Oracle: bytes have their content.
    (Planted::WrongBytes, "append", 0, "is 0x"),
    // What late replicas are owed is kept until they have it (C14).
    (Planted::ReleaseAtM, "chase-second", 0, "not whole"),
    (Planted::EndAbovePlaced, "append-cuts", 0, "were written"),
    (Planted::OneBudget, "chase-slow", 0, "waited"),
    // Appends do not wait for late replicas, and replicas not for a host that stands still.
    (Planted::BlockedWaits, "blocked", 0, "waited"),
    (Planted::FewerWhenLate, "blocked-few", 0, "ended for a slow disk"),
    (Planted::OwnPauseEnds, "blocked", 9, "stood still"),
    // A CPU that errs writes nothing wrong.
    (Planted::VerifySkipped, "ec-errs", 0, "no replica has intact bytes"),
    // What it did write is found, and laid out again.
    (Planted::RowsUnchecked, "ec-rows", 0, "row check"),
    // A late replica shows no end.
    (Planted::ShortIsEnd, "chase-tail", 0, "were there before"),
    // A disk that has lost its last write shortens nothing.
    (Planted::StatisticIsLength, "chase-rot-tail", 0, "were acknowledged"),
    // Copies that can not be completed are made elsewhere.
    (Planted::UnsettledCounts, "chase-second", 0, "masters say that all is whole"),
    // Reads for callers that have gone are not made.
    (Planted::CancelIgnored, "hedge", 0, "for callers that had gone"),
    // A disk is listed for as long as it is slow.
    (Planted::ProbeSkipsDisk, "flapping", 3, "not"),
    // What a disk that hangs has is made elsewhere.
    (Planted::CheckSkipsDisk, "hung-disk", 0, "beside a disk that hangs"),
    // Masters name a disk as slow for as long as it is.
    (Planted::TimesNeverAge, "slow-disk", 0, "a disk counts as slow"),
    // Liveness: the cluster is whole again.
    (Planted::NoSeal, "append", 0, "not whole"),
    (Planted::NoRepair, "append-wipe", 0, "not whole"),
    (Planted::NoFloor, "append-wipe", 0, "not whole"),
    // Liveness: two servers of three are enough.
    (Planted::FillRepairing, "chase-three", 0, "is not opened again"),
    // Audit: all replicas are there, and nothing else.
    (Planted::NoDelete, "append-servers", 0, "no chunk refers to it"),
    (Planted::DeleteNeighbour, "append-servers", 0, "1 of 3 replicas"),
    // Linearizability of names.
    (Planted::StaleNames, "names", 0, "not linearizable"),
    (Planted::OldWhenCut, "names", 57, "not linearizable"),
    (Planted::TwiceChanged, "names", 0, "not linearizable"),
    (Planted::LostRename, "names", 0, "not linearizable"),
    // Policies of directories and volumes as registers.
    (Planted::PolicyNotInherited, "policies", 0, "not linearizable"),
    (Planted::LostPolicy, "policies", 0, "not linearizable"),
    (Planted::PolicyOfOpening, "volume-policy", 0, "is set"),
    // Exclusion of lock holders.
    (Planted::ForgedLock, "locks", 3, "at the same time"),
    // One owner of a segment acknowledges at a time.
    (Planted::NoHold, "block-managers", 1, "believe"),
    (Planted::LongLease, "block-managers", 0, "believe"),
    // Linearizability of blocks.
    (Planted::NoSequence, "volumes", 0, "not linearizable"),
    (Planted::EndlessLease, "volumes", 3, "not linearizable"),
    (Planted::ForgetChanges, "volumes", 30, "not linearizable"),
    (Planted::NoConfirm, "volumes", 0, "not linearizable"),
    (Planted::OldPlaces, "volumes", 0, "not linearizable"),
    (Planted::HoldSkippedShared, "volumes", 40, "not linearizable"),
    // The same over the whole stack, from a front end's answer to the power cut.
    (Planted::EarlyAnswer, "disks", 0, "not linearizable"),
    // One owner of a segment, with real segments.
    (Planted::LongLease, "disks", 0, "believe"),
    // A refused request changes nothing; deleted volumes are kept for as long as was promised.
    (Planted::AlwaysForced, "deleted", 3, "was not refused"),
    (Planted::HalfKept, "deleted", 0, "was removed"),
    // Segments leave a server that hears nothing.
    (Planted::BeatsAreAlive, "grey-block", 0, "serves no client"),
    (Planted::BeatsAreAlive, "grey-server", 1, "a new chunk is placed"),
    // Masters name few servers, and believe few clients.
    (Planted::OneClientRules, "bad-client", 0, "by words alone"),
    (Planted::DoubtsUnheard, "block-managers", 0, "no block manager answered"),
    (Planted::OneDoubtRules, "block-managers", 0, "because one user"),
    (Planted::ManyBelieved, "many-bad", 0, "masters name servers though many"),
    (Planted::OpenGraceUnreached, "many-bad", 0, "another writer opened this file"),
    // No drop lowers redundancy, and what leaves is empty.
    (Planted::DrainDropsFirst, "drain-storm", 0, "copies"),
    (Planted::DrainedTooSoon, "drain-storm", 0, "which has left"),
    // Leadership leaves a master that hears nothing; what is relayed happens once.
    (Planted::HeardIsReached, "grey-master", 8, "and is grey"),
    (Planted::RelayNewIdentity, "grey-master", 0, "fails"),
    // An opening of a client that is gone fences no writer that lives.
    (Planted::LateOpenFences, "late-open", 0, "another writer opened this file"),
    // Rights rest on no wall clock, and end.
    (Planted::RightsByWall, "append-clocks", 0, "no answer within"),
    (Planted::RightsForEver, "takeover-idle", 0, "are acknowledged under"),
    // Idle writers hold up no drain, and lose nothing by it.
    (Planted::SparesStay, "append-wipe", 9, "not elsewhere"),
    (Planted::EmptyStays, "drain-storm", 0, "still holds"),
    // Writes on a full cluster are refused, and that soon.
    (Planted::SilentWhenFull, "full", 0, "on a full cluster takes"),
    // Snapshots are consistent cuts over segments.
    (Planted::NoCutHold, "snapshots", 0, "no consistent cut"),
    // One owner of a range answers at a time, of which the scenario looks at the leases.
    (Planted::RangeNoHold, "objects", 0, "believe"),
    (Planted::RangeLongLease, "objects", 0, "believe"),
    // No gateway goes by what was before a change that was answered.
    (Planted::KeyForever, "object-keys", 0, "as of change"),
    // No lock ends early, whichever clock is set.
    (Planted::LockByClock, "object-versions", 0, "not linearizable"),
    // Each lock has ended behind the run.
    (Planted::ClockUnsaid, "object-versions", 0, "the version is locked"),
    // What expires was due, by a right clock, and nothing else goes.
    (Planted::ExpireByKey, "object-days", 1, "was never due"),
    (Planted::ExpireForgetsTags, "object-days", 1, "was never due"),
    (Planted::ExpireByClock, "object-days", 5, "was due in"),
    (Planted::ExpireLocked, "object-days", 1, "was due in"),
    (Planted::ExpireByOldRules, "object-days", 16, "by rules that were taken away"),
    (Planted::NoncurrentByOwnAge, "object-days", 0, "was due in"),
    // Files of bodies: what was put is there, and nothing else.
    (Planted::FileDropCounted, "object-collect", 21, "the files"),
    (Planted::FileDropHeld, "object-collect", 7, "went before its time"),
    (Planted::FileNoTrash, "object-collect", 0, "went before its time"),
    (Planted::FileLostCount, "object-collect", 0, "the files"),
    (Planted::FileUnheld, "object-gateways", 0, "there is no object with that key"),
    (Planted::FileOrphanKept, "object-gateways", 0, "has left the files"),
    (Planted::FileHalfBody, "object-gateways", 8, "not those written"),
    // Splits of ranges: whole, once.
    (Planted::SweepEatsSplit, "object-ranges", 17, "and the directories"),
    (Planted::SplitNoInherit, "object-ranges", 26, "not linearizable"),
    (Planted::SplitHalfCommit, "object-ranges", 0, "their owner knows"),
    (Planted::OneRangeShown, "object-ranges", 0, "is said to hold"),
    (Planted::SplitLooseBounds, "object-ranges", 1, "is said to hold"),
    // Exclusion of attachments.
    (Planted::OldAttachment, "volumes", 0, "acts after"),
    (Planted::StandingCached, "volumes", 52, "acts after"),
    // One owner of a table, and of a segment's files.
    (Planted::LeakySeal, "table", 0, "did not find"),
    (Planted::LeakySeal, "segments", 0, "shows"),
    // Children of a fork have what they show, all of it and nothing else.
    (Planted::LooseBounds, "table-forks", 119, "entries instead of"),
    (Planted::UnsealedParent, "table-forks", 0, "is acknowledged"),
    // A client that was answered late for an earlier owner reaches the present one.
    (Planted::EarlierOwner, "disks-cuts", 4, "no answers in"),
];

/// Bugs that show in their rare form, each with a scenario that finds it, and what it acts once in;
/// any checker may find it. One in 1,000 where the seeds of a night have chances for that: else as
/// `docs/simulation.md` says. Behind them the seed that was the first to find it.
const RARE: [(Planted, &str, u64); 26] = [
    (Planted::WrongBytes, "append", 1000),        // 0
    (Planted::LostRename, "names", 1000),         // 0
    (Planted::ForgedLock, "locks", 1000),         // 0
    (Planted::OldPlaces, "volumes", 1000),        // 2
    (Planted::NoDelete, "append-servers", 1000),  // 0
    (Planted::NoSeal, "append", 1000),            // 0
    (Planted::DeleteNeighbour, "append", 1000),   // 0
    (Planted::StaleNames, "names", 1000),         // 3
    (Planted::StaleTail, "append", 1000),         // 10
    (Planted::TwiceChanged, "names", 1000),       // 15
    (Planted::OldAttachment, "volumes", 1000),    // 1
    (Planted::NoSequence, "volumes", 1000),       // 31
    (Planted::NoFence, "takeover", 1000),         // 41
    (Planted::LongLease, "block-managers", 1000), // 50
    (Planted::NoCutHold, "snapshots", 100),       // 7
    (Planted::NoRepair, "append-wipe", 50),       // 1
    (Planted::AckEarly, "append-blackout", 50),   // 17
    (Planted::Uncommitted, "takeover", 20),       // 0
    (Planted::ForgetChanges, "volumes", 20),      // 14
    (Planted::NoConfirm, "volumes", 20),          // 77
    (Planted::NoHold, "block-managers", 10),      // 7
    (Planted::EndlessLease, "volumes", 5),        // 0
    (Planted::EarlyAnswer, "disks", 5),           // 0
    (Planted::AckUnsent, "append-cuts", 5),       // 5
    (Planted::LeakySeal, "table", 20),            // 1
    (Planted::LeakySeal, "segments", 20),         // 0
];

/// Bugs as rare as they have not shown: `docs/simulation.md` has the seeds. They are run by name
/// alone.
const HIDDEN: [(Planted, &str, u64); 1] = [(Planted::AckUnsent, "append-cuts", 50)];

/// Seeds that a bug in its rare form has to show in; none are run without it. One bug alone with
/// its name behind a colon.
const RARE_VARIABLE: &str = "CRATON_SIM_RARE_SEEDS";

#[test]
fn planted_bugs_are_found_in_their_rare_form() {
    let text = std::env::var(RARE_VARIABLE).unwrap_or_default();
    let (seeds, only) = text.split_once(':').unwrap_or((&text, ""));
    let seeds: u64 = seeds.parse().unwrap_or(0);
    let mut missed = Vec::new();
    let hidden = HIDDEN.into_iter().filter(|_| !only.is_empty());
    let bugs = RARE.into_iter().chain(hidden);
    for (bug, name, one_in) in bugs.filter(|(bug, ..)| format!("{bug:?}").contains(only)) {
        let scenario = find(name).expect("in the table");
        let (mut acted, mut chances) = (0, 0);
        let found = (0..seeds).find_map(|seed| {
            let (result, acts) = run_planted(scenario, seed, bug, one_in);
            (acted, chances) = (acted + acts.count, chances + acts.chances);
            let violation = result.err()?.violation;
            // A seed that fails without the bug too has not found it.
            run_seed(scenario, seed).is_ok().then_some((seed, violation))
        });
        match found {
            Some((seed, violation)) => {
                let first = violation.lines().next().unwrap_or_default();
                println!("{bug:?} in {name}: seed {seed}, {acted} acts of {chances}: {first}");
            }
            None if seeds > 0 => {
                missed.push(format!("{bug:?} in {name} ({acted} acts of {chances})"))
            }
            None => {}
        }
    }
    assert!(missed.is_empty(), "not in {seeds} seeds: {missed:?}");
}

/// Seeds in which a bug must show.
const NEAR: u64 = 40;

/// Those of [`FOUND`] up to here are about bytes; then come copies, up to the second; objects are from the third
/// to the fourth.
const PARTS: [usize; 4] = [21, 25, 65, 89];

#[test]
fn planted_bugs_in_bytes_are_found() {
    check_found(&FOUND[..PARTS[0]]);
}

#[test]
fn planted_bugs_in_copies_are_found() {
    check_found(&FOUND[PARTS[0]..PARTS[1]]);
}

#[test]
fn planted_bugs_in_services_are_found() {
    let has = |bug: &Planted| FOUND.iter().any(|found| found.0 == *bug);
    assert!(Planted::ALL.iter().all(has), "each bug has a checker that finds it");
    check_found(&FOUND[PARTS[1]..PARTS[2]]);
    check_found(&FOUND[PARTS[3]..]);
}

#[test]
fn planted_bugs_in_objects_are_found() {
    check_found(&FOUND[PARTS[2]..PARTS[3]]);
}

/// Checks that each bug is found by the checker it is for.
fn check_found(bugs: &[(Planted, &str, u64, &str)]) {
    // With the variable, only bugs that have its text in their names.
    let only = std::env::var("CRATON_SIM_PLANTED").unwrap_or_default();
    for &(bug, name, seed, says) in bugs {
        if !format!("{bug:?}").contains(&only) {
            continue;
        }
        let scenario = find(name).expect("in the table");
        // The one named finds it, or a near one does when all seeds have shifted.
        // Another checker may be first to see what it has done: the one that is meant must too.
        let mut others = Vec::new();
        let meant = (seed..seed + NEAR).find_map(|seed| {
            let violation = run_planted(scenario, seed, bug, 1).0.err()?.violation;
            match violation.contains(says) {
                true => Some((seed, violation.lines().next().unwrap_or_default().to_owned())),
                false => {
                    others.push(violation);
                    None
                }
            }
        });
        println!("{bug:?} in {name}: {meant:?}, others {others:?}");
        assert!(meant.is_some(), "{bug:?} in {name}, seed {seed} on: found {others:?}");
    }
}
