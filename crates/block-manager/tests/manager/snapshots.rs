//! Snapshots, clones and rollbacks in the manager's state, without block servers: their answers
//! are the test's.

use base::{GIB, Kind};
use block_manager::entity::PendingDelete;
use block_manager::rows::{Key, Value};
use block_manager::{Begun, CutSegment, Machine, ManagerState, Refusal};
use block_proto::{BlockReply, BlockRequest, VolumeInfo};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use wire::control::Policy;

use super::{Server, at, machine, spec, volume};

/// A machine with a volume `a` of four segments that a server has open.
pub fn world() -> (Machine, Server, VolumeId) {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut server = Server::join(&mut machine, at(0), "bs1");
    server.heartbeat(&mut machine, at(0));
    let request = BlockRequest::Create { nonce: 1, spec: spec("a", GIB) };
    let id = volume(machine.handle(at(0), request)).volume;
    open(&mut machine, &mut server);
    (machine, server, id)
}

/// The server takes all that it was given, and reports it.
pub fn open(machine: &mut Machine, server: &mut Server) {
    (0..3).for_each(|_| drop(server.heartbeat(machine, at(1))));
}

fn cut(machine: &mut Machine, nonce: u64, id: VolumeId, name: &str) -> Vec<CutSegment> {
    match machine.begin_snapshot(nonce, id, name) {
        Ok(Begun::Go(parts)) => parts,
        other => panic!("{name}: {other:?}"),
    }
}

pub fn snapshot(machine: &mut Machine, nonce: u64, id: VolumeId, name: &str) -> VolumeInfo {
    let parts = cut(machine, nonce, id, name);
    let (made, _) = machine.commit_snapshot(nonce, id, name, &parts).expect("nothing moved");
    machine.end_cutting(at(1), id);
    volume(machine.finish_snapshot(made, 1500))
}

fn rollback(
    machine: &mut Machine,
    server: &mut Server,
    nonce: u64,
    of: VolumeId,
) -> Result<VolumeInfo, Refusal> {
    let (made, _) = match machine.begin_rollback(at(1), nonce, of)? {
        Begun::Go(made) => made,
        Begun::Done(reply) => return Ok(volume(Ok(reply))),
    };
    open(machine, server);
    assert_eq!(machine.snapshot_parts(of).expect("they are open").len(), 4);
    machine.end_cutting(at(1), of);
    let done = machine.finish_rollback(at(1), made);
    open(machine, server);
    done.map(|reply| volume(Ok(reply)))
}

pub fn find(machine: &mut Machine, name: &str) -> Result<VolumeInfo, Refusal> {
    let reply = machine.handle(at(1), BlockRequest::Find { name: name.into() })?;
    Ok(volume(Ok(reply)))
}

pub fn remove(machine: &mut Machine, volume: VolumeId, force: bool) -> Result<BlockReply, Refusal> {
    machine.handle(at(1), BlockRequest::Remove { volume, force })
}

/// The next leader, from the rows in the table.
pub fn next_leader(machine: &Machine) -> Machine {
    let mut state = ManagerState::default();
    machine.state().rows().into_iter().for_each(|row| state.apply(row));
    super::machine(state, 2, at(1))
}

#[test]
fn a_snapshot_is_a_volume_that_never_changes() {
    let (mut machine, mut server, id) = world();
    let made = snapshot(&mut machine, 7, id, "s");
    assert_eq!((made.spec.name.as_str(), made.parent, made.hold_us), ("a@s", Some(id), 1500));
    // The same order once more has the same answer; another has none.
    let again = machine.begin_snapshot(7, id, "s");
    assert_eq!(again, Ok(Begun::Done(BlockReply::Volume(made.clone()))));
    assert_eq!(machine.begin_snapshot(8, id, "s"), Err(Refusal::Exists("a@s".into())));
    let of_it = machine.begin_snapshot(8, made.volume, "t");
    assert!(matches!(of_it, Err(Refusal::Snapshot { .. })), "{of_it:?}");
    let resize = BlockRequest::Resize { volume: made.volume, bytes: 2 * GIB, force: true };
    assert!(matches!(machine.handle(at(1), resize), Err(Refusal::Snapshot { .. })));
    for bad in ["", "a@b", "a/b"] {
        let refused = machine.begin_snapshot(9, id, bad);
        assert!(matches!(refused, Err(Refusal::Name { .. })), "{bad}: {refused:?}");
    }
    // It has owners while a client has it open, and they take no changes.
    assert_eq!(machine.state().segments_of(made.volume, 0).count(), 0);
    let attach = |nonce, holder: &str| {
        let (name, holder) = ("a@s".to_owned(), holder.to_owned());
        BlockRequest::Attach { name, nonce, holder }
    };
    let mut epochs = Vec::new();
    for (nonce, holder) in [(1, "f1"), (2, "f2")] {
        let Ok(BlockReply::Attached { epoch, .. }) = machine.handle(at(1), attach(nonce, holder))
        else {
            panic!("any number may read it");
        };
        epochs.push(epoch);
    }
    let grant = server.heartbeat(&mut machine, at(1));
    let ownerships: Vec<_> = grant.changes.iter().filter_map(|change| change.ownership).collect();
    assert_eq!(ownerships.len(), 4);
    assert!(ownerships.iter().all(|ownership| ownership.read_only));
    let owner_epoch = ownerships[0].epoch;
    for epoch in epochs {
        let detach = BlockRequest::Detach { volume: made.volume, epoch };
        machine.handle(at(2), detach).expect("it is done");
    }
    machine.tick(at(3));
    assert_eq!(machine.state().segments_of(made.volume, 0).count(), 4, "it rests later");
    server.heartbeat(&mut machine, at(20_000));
    machine.tick(at(20_000));
    assert_eq!(machine.state().segments_of(made.volume, 0).count(), 0);
    // Owners that come later have larger epochs.
    machine.handle(at(20_001), attach(3, "f1")).expect("it opens again");
    let epoch = machine.state().segments_of(made.volume, 0).map(|(_, segment)| segment.epoch);
    assert!(epoch.min() > Some(owner_epoch));
}

#[test]
fn cut_is_refused_when_a_segment_has_moved() {
    let (mut machine, _, id) = world();
    let parts = cut(&mut machine, 7, id, "s");
    assert_eq!(parts.len(), 4);
    let twice = machine.begin_snapshot(8, id, "t");
    assert_eq!(twice.expect_err("one at a time").kind(), Kind::Retry);
    // Another process of the same server, and so another owner.
    let mut other = Server::join(&mut machine, at(2), "bs1");
    other.boot += 1;
    other.heartbeat(&mut machine, at(2));
    let refused = machine.commit_snapshot(7, id, "s", &parts).expect_err("an owner has changed");
    assert_eq!(refused.kind(), Kind::Retry, "{refused}");
    machine.end_cutting(at(2), id);
    assert!(find(&mut machine, "a@s").is_err());
    open(&mut machine, &mut other);
    snapshot(&mut machine, 7, id, "s");
}

#[test]
fn snapshot_in_the_making_is_given_up_by_the_next_leader() {
    let (mut machine, _, id) = world();
    let parts = cut(&mut machine, 7, id, "s");
    let (made, _) = machine.commit_snapshot(7, id, "s", &parts).expect("nothing moved");
    assert_eq!(find(&mut machine, "a@s").map(|info| info.volume), Ok(made));
    let attach = BlockRequest::Attach { name: "a@s".into(), nonce: 1, holder: "f".into() };
    assert!(matches!(machine.handle(at(1), attach), Err(Refusal::Making { .. })));
    let list = BlockRequest::List { after: None, limit: 10 };
    let Ok(BlockReply::Volumes { volumes, .. }) = machine.handle(at(1), list) else { panic!() };
    assert_eq!(volumes.len(), 1, "what is in the making is not listed");
    assert!(matches!(remove(&mut machine, made, true), Err(Refusal::Making { .. })));
    assert!(matches!(remove(&mut machine, id, true), Err(Refusal::Making { .. })));
    machine.end_cutting(at(1), id);
    assert!(matches!(remove(&mut machine, id, true), Err(Refusal::HasSnapshots { .. })));
    let mut next = next_leader(&machine);
    assert!(find(&mut next, "a@s").is_err());
    // No late link comes into a directory that was removed before.
    let pending_delete = PendingDelete { volume: made, segment: None };
    assert_eq!(next.due_deletes(at(20_000)), []);
    assert_eq!(next.due_deletes(at(60_000)), [pending_delete]);
    assert!(!next.state().was_removed(7), "who asked may ask again");
    assert_eq!(remove(&mut next, id, false), Ok(BlockReply::Done));
}

#[test]
fn a_clone_keeps_its_snapshot_until_it_is_flattened() {
    let (mut machine, mut server, id) = world();
    let made = snapshot(&mut machine, 7, id, "s");
    let copy = volume(machine.clone_of(at(1), 8, made.volume, "c"));
    assert_eq!((copy.clone_source, copy.parent), (Some(made.volume), None));
    let again = machine.clone_of(at(1), 8, made.volume, "c");
    assert_eq!(again, Ok(BlockReply::Volume(copy.clone())));
    // A server that opens its segments gets their clone source; of the snapshot nothing is used.
    let grant = server.heartbeat(&mut machine, at(1));
    let ownerships: Vec<_> = grant.changes.iter().filter_map(|change| change.ownership).collect();
    assert_eq!(ownerships.len(), 4);
    assert!(ownerships.iter().all(|ownership| ownership.clone_source == Some(made.volume)));
    assert_eq!(machine.state().segments_of(made.volume, 0).count(), 0);
    let grow = BlockRequest::Resize { volume: copy.volume, bytes: 8 * GIB, force: false };
    volume(machine.handle(at(1), grow));
    let count = machine.state().segments_of(copy.volume, 0).count() as u32;
    let clone_sources = (0..count).map(|index| SegmentId { volume: copy.volume, index });
    let clone_sources =
        clone_sources.filter(|&id| machine.state().clone_source_of(id).is_some()).count();
    assert!(count > 4 && clone_sources == 4, "{clone_sources} of {count}: the rest is its own");
    let smaller = BlockRequest::Resize { volume: copy.volume, bytes: GIB, force: true };
    let refused = machine.handle(at(1), smaller).expect_err("what is cut off could come back");
    assert!(matches!(refused, Refusal::Shares { .. }), "{refused}");
    let other = machine.clone_of(at(1), 9, id, "d");
    assert!(matches!(other, Err(Refusal::NoSnapshot { .. })), "{other:?}");
    let refused = remove(&mut machine, made.volume, false).expect_err("it has a clone");
    assert!(refused.to_string().contains("has clones (c)"), "{refused}");
    let refused = remove(&mut machine, id, true).expect_err("it has a snapshot");
    assert!(refused.to_string().contains("has snapshots (a@s)"), "{refused}");
    // While clones are parted from it, no other can be made.
    assert_eq!(machine.begin_parting(made.volume), [copy.volume]);
    let refused = machine.clone_of(at(1), 9, made.volume, "d").expect_err("it is about to go");
    assert_eq!(refused.kind(), Kind::Retry, "{refused}");
    let unlinked = remove(&mut machine, made.volume, true);
    assert!(matches!(unlinked, Err(Refusal::Making { .. })), "a clone is not linked: {unlinked:?}");
    machine.end_parting(made.volume);
    machine.flattened(copy.volume);
    let segment = SegmentId { volume: copy.volume, index: 0 };
    assert_eq!(machine.state().clone_source_of(segment), None);
    assert_eq!(remove(&mut machine, made.volume, false), Ok(BlockReply::Done));
    assert_eq!(remove(&mut machine, id, false), Ok(BlockReply::Done));
    assert!(find(&mut machine, "c").is_ok());
}

/// Issue 10, 3.1: the removal that ended first lifted the guard of the other, which then removed the
/// snapshot under a clone that was not linked: the clone read as zeroes.
#[test]
fn duplicate_forced_removals_of_which_one_ended_still_guard_the_snapshot() {
    let (mut machine, _, id) = world();
    let made = snapshot(&mut machine, 7, id, "s").volume;
    let first = volume(machine.clone_of(at(1), 8, made, "first")).volume;
    assert_eq!(machine.begin_parting(made), [first]);
    assert_eq!(machine.begin_parting(made), [first]);
    // A block server did not answer to one of them.
    machine.end_parting(made);
    let early = machine.clone_of(at(1), 9, made, "early");
    assert_eq!(early.expect_err("the other is under way").kind(), Kind::Retry);
    machine.parted(made, &[first]);
    assert_eq!(remove(&mut machine, made, true), Ok(BlockReply::Done));
    machine.end_parting(made);
    // Guards are counted: none is left of a snapshot that stays.
    let other = snapshot(&mut machine, 10, id, "t").volume;
    machine.begin_parting(other);
    machine.end_parting(other);
    volume(machine.clone_of(at(1), 11, other, "late"));
}

#[test]
fn a_clone_made_since_the_last_look_keeps_its_snapshot_from_a_forced_removal() {
    let (mut machine, _, id) = world();
    let made = snapshot(&mut machine, 7, id, "s").volume;
    let first = volume(machine.clone_of(at(1), 8, made, "first")).volume;
    machine.begin_parting(made);
    machine.end_parting(made);
    volume(machine.clone_of(at(1), 9, made, "second"));
    machine.begin_parting(made);
    machine.parted(made, &[first]);
    let refused = remove(&mut machine, made, true).expect_err("the second is not linked");
    assert_eq!(refused.kind(), Kind::Retry, "{refused}");
    assert!(find(&mut machine, "a@s").is_ok());
}

/// A segment that was not linked when its snapshot went must not be taken for an empty one.
#[test]
fn a_clone_whose_snapshot_is_gone_still_names_it() {
    let (mut machine, _, id) = world();
    let made = snapshot(&mut machine, 7, id, "s").volume;
    let copy = volume(machine.clone_of(at(1), 8, made, "c")).volume;
    let grow = BlockRequest::Resize { volume: copy, bytes: 8 * GIB, force: false };
    volume(machine.handle(at(1), grow));
    machine.begin_parting(made);
    machine.parted(made, &[copy]);
    assert_eq!(remove(&mut machine, made, true), Ok(BlockReply::Done));
    machine.end_parting(made);
    let next = next_leader(&machine);
    for state in [machine.state(), next.state()] {
        let count = state.segments_of(copy, 0).count() as u32;
        let clone_source = |index| state.clone_source_of(SegmentId { volume: copy, index });
        assert!((0..4).all(|index| clone_source(index) == Some(made)), "they were linked from it");
        assert!(
            count > 4 && (4..count).all(|index| clone_source(index).is_none()),
            "the rest is its own"
        );
    }
}

/// Rows of programs that kept no count: their snapshot shows it, and with a forced removal the row
/// gets it. Where the snapshot had gone before, every segment had been linked.
#[test]
fn a_clone_of_an_older_program_gets_its_count_when_its_snapshot_goes() {
    let (mut machine, _, id) = world();
    let made = snapshot(&mut machine, 7, id, "s").volume;
    let copy = volume(machine.clone_of(at(1), 8, made, "c")).volume;
    let older = |without: Option<VolumeId>| {
        let mut state = ManagerState::default();
        for mut row in machine.state().rows() {
            if let Some(Value::Volume(volume)) = &mut row.value {
                volume.family.clone_source_segments = None;
            }
            if without.is_none_or(|gone| row.key != Key::Volume(gone)) {
                state.apply(row);
            }
        }
        super::machine(state, 2, at(1))
    };
    let segment = SegmentId { volume: copy, index: 3 };
    let mut kept = older(None);
    assert_eq!(kept.state().clone_source_of(segment), Some(made));
    kept.begin_parting(made);
    kept.parted(made, &[copy]);
    assert_eq!(remove(&mut kept, made, true), Ok(BlockReply::Done));
    assert_eq!(kept.state().clone_source_of(segment), Some(made));
    assert_eq!(kept.state().clone_source_of(SegmentId { index: 4, ..segment }), None);
    assert_eq!(older(Some(made)).state().clone_source_of(segment), None);
}

#[test]
fn a_rollback_that_comes_late_behind_another_is_no_third_one_and_changes_no_setting() {
    let (mut machine, mut server, id) = world();
    let (first, second) = (snapshot(&mut machine, 7, id, "s"), snapshot(&mut machine, 8, id, "t"));
    let policy = Policy::rep(2);
    let set = |volume| BlockRequest::Set {
        volume,
        limits: VolumeLimits::default(),
        shared: false,
        policy: Some(policy),
    };
    assert_ne!(volume(machine.handle(at(1), set(id))).spec.policy, first.spec.policy);
    let one = rollback(&mut machine, &mut server, 9, first.volume).expect("it is made");
    assert_eq!(one.spec.policy, policy, "it brings content back, and no setting");
    let other = rollback(&mut machine, &mut server, 10, second.volume).expect("it is made");
    assert_ne!(other.volume, one.volume);
    for late in [9, 10] {
        let again = rollback(&mut machine, &mut server, late, first.volume);
        assert_eq!(again, Ok(other.clone()), "{late}");
    }
    assert_eq!(find(&mut machine, "a").map(|info| info.volume), Ok(other.volume));
}

/// Its caller has the refusal, and goes on with the volume as it is.
#[test]
fn rollback_that_was_refused_and_comes_late_changes_nothing() {
    let (mut machine, mut server, id) = world();
    let (first, second) = (snapshot(&mut machine, 7, id, "s"), snapshot(&mut machine, 8, id, "t"));
    let attach = |machine: &mut Machine, nonce| {
        let (name, holder) = ("a".into(), "f".into());
        let attached = machine.handle(at(1), BlockRequest::Attach { name, nonce, holder });
        let Ok(BlockReply::Attached { epoch, volume }) = attached else { panic!("it is free") };
        BlockRequest::Detach { volume: volume.volume, epoch }
    };
    let detach = attach(&mut machine, 1);
    let refused = machine.begin_rollback(at(1), 9, first.volume);
    assert!(matches!(refused, Err(Refusal::AttachedClient { .. })), "{refused:?}");
    machine.handle(at(1), detach).expect("it is done");
    // A client opens the volume while a rollback is made.
    let Ok(Begun::Go((made, _))) = machine.begin_rollback(at(1), 10, first.volume) else {
        panic!("it begins")
    };
    open(&mut machine, &mut server);
    machine.end_cutting(at(1), first.volume);
    let detach = attach(&mut machine, 2);
    let refused = machine.finish_rollback(at(1), made);
    assert!(matches!(refused, Err(Refusal::AttachedClient { .. })), "{refused:?}");
    machine.give_up(at(1), made);
    machine.handle(at(1), detach).expect("it is done");
    let mut next = next_leader(&machine);
    for nonce in [9, 10] {
        for machine in [&mut machine, &mut next] {
            let late = machine.begin_rollback(at(2), nonce, first.volume);
            assert_eq!(late.expect_err("it was refused").kind(), Kind::Invalid, "{nonce}");
        }
    }
    // The volume that takes its place knows as much.
    let rolled = rollback(&mut machine, &mut server, 11, second.volume).expect("it is made");
    let late = machine.begin_rollback(at(2), 9, first.volume);
    assert_eq!(late.expect_err("it was refused").kind(), Kind::Invalid);
    assert_eq!(rollback(&mut machine, &mut server, 11, second.volume), Ok(rolled));
}

/// One copy of a request makes the volume, and another one is refused at the same time: its caller has that answer.
#[test]
fn rollback_whose_copy_was_refused_takes_no_place() {
    let (mut machine, mut server, id) = world();
    let first = snapshot(&mut machine, 7, id, "s");
    let Ok(Begun::Go((made, _))) = machine.begin_rollback(at(1), 9, first.volume) else {
        panic!("it begins")
    };
    open(&mut machine, &mut server);
    machine.end_cutting(at(1), first.volume);
    let attach = BlockRequest::Attach { name: "a".into(), nonce: 1, holder: "f".into() };
    let Ok(BlockReply::Attached { epoch, .. }) = machine.handle(at(1), attach) else { panic!() };
    let copy = machine.begin_rollback(at(1), 9, first.volume);
    assert!(matches!(copy, Err(Refusal::AttachedClient { .. })), "{copy:?}");
    machine.handle(at(1), BlockRequest::Detach { volume: id, epoch }).expect("it is done");
    let finished = machine.finish_rollback(at(1), made);
    assert_eq!(finished.expect_err("it was refused").kind(), Kind::Invalid);
    machine.give_up(at(1), made);
    assert_eq!(find(&mut machine, "a").map(|info| info.volume), Ok(id));
}

/// Its caller has the refusal, and does without.
#[test]
fn snapshot_or_clone_that_was_refused_and_comes_late_makes_none() {
    let (mut machine, _, id) = world();
    let first = snapshot(&mut machine, 7, id, "s");
    let copy = volume(machine.clone_of(at(1), 8, first.volume, "c")).volume;
    assert_eq!(machine.begin_snapshot(9, id, "s"), Err(Refusal::Exists("a@s".into())));
    let refused = machine.clone_of(at(1), 10, first.volume, "c");
    assert_eq!(refused, Err(Refusal::Exists("c".into())));
    // The names are free by then.
    remove(&mut machine, copy, false).expect("none depends on it");
    let second = snapshot(&mut machine, 11, id, "t");
    let refused = machine.clone_of(at(1), 12, second.volume, "a");
    assert_eq!(refused, Err(Refusal::Exists("a".into())));
    remove(&mut machine, first.volume, false).expect("none depends on it");
    remove(&mut machine, id, true).expect_err("it has a snapshot");
    let mut next = next_leader(&machine);
    for (machine, kind) in [(&mut machine, Kind::Exists), (&mut next, Kind::Invalid)] {
        let late = machine.begin_snapshot(9, id, "s").expect_err("it was refused");
        assert_eq!(late.kind(), kind, "{late}");
        let late = machine.clone_of(at(2), 12, second.volume, "b").expect_err("it was refused");
        assert_eq!(late.kind(), kind, "{late}");
        assert_eq!(machine.state().volumes().count(), 2);
    }
    // Others have the names.
    snapshot(&mut machine, 13, id, "s");
    volume(machine.clone_of(at(2), 14, second.volume, "b"));
}

/// A copy that comes late makes no other one.
#[test]
fn snapshot_or_clone_that_was_made_and_removed_does_not_come_back() {
    let (mut machine, _, id) = world();
    let kept = snapshot(&mut machine, 7, id, "kept");
    let made = snapshot(&mut machine, 8, id, "s");
    let copy = volume(machine.clone_of(at(1), 9, kept.volume, "c"));
    let again = volume(machine.clone_of(at(1), 9, kept.volume, "c"));
    assert_eq!(again, copy, "the same request, the same answer");
    for gone in [made.volume, copy.volume] {
        remove(&mut machine, gone, false).expect("none depends on it");
        machine.purged(PendingDelete { volume: gone, segment: None });
    }
    let mut next = next_leader(&machine);
    for machine in [&mut machine, &mut next] {
        assert_eq!(machine.begin_snapshot(8, id, "s"), Err(Refusal::NoName("a@s".into())));
        let late = machine.clone_of(at(2), 9, kept.volume, "c");
        assert_eq!(late, Err(Refusal::NoName("c".into())));
        assert_eq!(machine.state().volumes().count(), 2);
    }
    // One that was given up was not made: the same request makes it.
    let parts = cut(&mut machine, 10, id, "s");
    let (half, _) = machine.commit_snapshot(10, id, "s", &parts).expect("nothing moved");
    machine.end_cutting(at(2), id);
    machine.give_up(at(2), half);
    snapshot(&mut machine, 10, id, "s");
}

/// One copy of a request cuts the segments, and another one is refused at the same time.
#[test]
fn snapshot_whose_copy_was_refused_is_not_made() {
    let (mut machine, _, id) = world();
    let parts = cut(&mut machine, 9, id, "s");
    // Another request has the name for a moment.
    let (other, _) = machine.commit_snapshot(10, id, "s", &parts).expect("nothing moved");
    volume(machine.finish_snapshot(other, 1));
    assert_eq!(machine.begin_snapshot(9, id, "s"), Err(Refusal::Exists("a@s".into())));
    machine.end_cutting(at(1), id);
    remove(&mut machine, other, false).expect("none depends on it");
    let late = machine.commit_snapshot(9, id, "s", &parts).expect_err("it was refused");
    assert_eq!(late.kind(), Kind::Exists, "{late}");
}

#[test]
fn a_rollback_takes_the_name_and_the_snapshots() {
    let (mut machine, mut server, id) = world();
    let (first, second) = (snapshot(&mut machine, 7, id, "s"), snapshot(&mut machine, 8, id, "t"));
    let grow = BlockRequest::Resize { volume: id, bytes: 8 * GIB, force: false };
    volume(machine.handle(at(1), grow));
    open(&mut machine, &mut server);
    let attach = BlockRequest::Attach { name: "a".into(), nonce: 1, holder: "f".into() };
    let Ok(BlockReply::Attached { epoch, .. }) = machine.handle(at(1), attach) else { panic!() };
    let refused = machine.begin_rollback(at(1), 9, first.volume);
    assert!(matches!(refused, Err(Refusal::AttachedClient { .. })), "{refused:?}");
    machine.handle(at(1), BlockRequest::Detach { volume: id, epoch }).expect("it is done");
    let rolled = rollback(&mut machine, &mut server, 10, first.volume).expect("it is made");
    assert_eq!((rolled.spec.name.as_str(), rolled.spec.bytes), ("a", GIB));
    assert_eq!((rolled.clone_source, rolled.parent), (None, None));
    assert_ne!(rolled.volume, id);
    assert_eq!(rollback(&mut machine, &mut server, 10, first.volume), Ok(rolled.clone()));
    assert!(machine.state().volume(id).is_none());
    for name in ["a@s", "a@t"] {
        assert_eq!(find(&mut machine, name).map(|info| info.parent), Ok(Some(rolled.volume)));
    }
    assert_eq!(find(&mut machine, "a").map(|info| info.volume), Ok(rolled.volume));
    // Nothing of it is lost with the leader.
    let mut next = next_leader(&machine);
    assert_eq!(next.state(), machine.state());
    assert_eq!(find(&mut next, "a@t").map(|info| info.volume), Ok(second.volume));
}

#[test]
fn given_up_snapshot_is_purged_under_the_next_leader_after_the_last_link_only() {
    let (mut machine, _, id) = world();
    let parts = cut(&mut machine, 7, id, "s");
    let (made, _) = machine.commit_snapshot(7, id, "s", &parts).expect("nothing moved");
    machine.give_up(at(1), made);
    machine.end_cutting(at(1), id);
    let next = next_leader(&machine);
    assert_eq!(next.due_deletes(at(20_000)), [], "a link may come late");
    let pending_delete = PendingDelete { volume: made, segment: None };
    assert_eq!(next.due_deletes(at(60_000)), [pending_delete]);
    // What was whole gets no links.
    let (mut machine, _, id) = world();
    assert_eq!(remove(&mut machine, id, false), Ok(BlockReply::Done));
    assert_eq!(next_leader(&machine).due_deletes(at(20_000)).len(), 1);
}
