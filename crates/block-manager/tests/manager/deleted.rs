//! Volumes that are deleted, brought back, and removed in the end.

use base::GIB;
use block_manager::rows::{Row, Value};
use block_manager::{Machine, ManagerState, Refusal};
use block_proto::{BlockGrant, BlockReply, BlockRequest, DeletedVolume};
use block_volume::ids::VolumeId;
use block_volume::qos::VolumeLimits;
use runtime::Duration;

use super::snapshots::{find, next_leader, open, remove, snapshot, world};
use super::{Server, at, spec, volume};

/// Unix time of the tests' first millisecond.
const EPOCH: u64 = 1_700_000_000_000;

fn delete(
    machine: &mut Machine,
    ms: u64,
    id: VolumeId,
    how: (bool, bool),
) -> Result<Vec<DeletedVolume>, Refusal> {
    match machine.delete((at(ms), EPOCH + ms), id, how)? {
        BlockReply::Deleted { volumes, .. } => Ok(volumes),
        other => panic!("{other:?}"),
    }
}

fn undelete(
    machine: &mut Machine,
    id: VolumeId,
    name: Option<&str>,
) -> Result<BlockReply, Refusal> {
    let name = name.map(str::to_owned);
    machine.handle(at(5000), BlockRequest::Undelete { volume: id, name })
}

fn listed(machine: &Machine) -> Vec<VolumeId> {
    match machine.list_deleted(at(0), None, 10) {
        BlockReply::Deleted { volumes, more: false } => {
            volumes.into_iter().map(|one| one.info.volume).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn deleted_volume_comes_back_with_its_snapshots() {
    let (mut machine, mut server, id) = world();
    let of = snapshot(&mut machine, 7, id, "s").volume;
    let before: Vec<u64> =
        machine.state().segments_of(id, 0).map(|(_, segment)| segment.epoch).collect();
    assert!(matches!(
        delete(&mut machine, 10, id, (true, false)),
        Err(Refusal::HasSnapshots { .. })
    ));
    let gone = delete(&mut machine, 10, id, (false, true)).expect("no client has it open");
    assert_eq!((gone[0].at_ms, gone[0].left_ms), (EPOCH + 10, 24 * 3600 * 1000));
    let again = delete(&mut machine, 20, id, (false, true)).expect("the same answer");
    assert_eq!((again[0].at_ms, again[0].left_ms), (EPOCH + 10, 24 * 3600 * 1000 - 10));
    assert_eq!(listed(&machine), [id, of]);
    for name in ["a", "a@s"] {
        assert_eq!(find(&mut machine, name), Err(Refusal::NoName(name.into())));
    }
    assert_eq!(machine.state().segments_of(id, 0).count(), 0);
    for request in [
        BlockRequest::Resize { volume: id, bytes: 2 * GIB, force: true },
        BlockRequest::Map { volume: id, from: 0, limit: 1 },
    ] {
        assert_eq!(machine.handle(at(30), request), Err(Refusal::NoVolume(id)));
    }
    // A late repeat of its creation makes no second one, and its name is free for others.
    let create = |nonce| BlockRequest::Create { nonce, spec: spec("a", GIB) };
    assert_eq!(machine.handle(at(30), create(1)), Err(Refusal::NoName("a".into())));
    // The next leader knows as much, and its servers are notified.
    let mut machine = next_leader(&machine);
    open(&mut machine, &mut server);
    let other = volume(machine.handle(at(40), create(9))).volume;
    assert_eq!(undelete(&mut machine, id, None), Err(Refusal::Exists("a".into())));
    assert_eq!(listed(&machine), [id, of]);
    for _ in 0..2 {
        let back = volume(undelete(&mut machine, id, Some("b")));
        assert_eq!((back.volume, back.spec.name.as_str()), (id, "b"));
    }
    assert_eq!(find(&mut machine, "b@s").expect("it is back").parent, Some(id));
    assert_eq!(find(&mut machine, "a").expect("it is another").volume, other);
    let now: Vec<u64> =
        machine.state().segments_of(id, 0).map(|(_, segment)| segment.epoch).collect();
    assert_eq!(now.len(), before.len());
    assert!(now.iter().zip(before).all(|(now, before)| *now > before), "an epoch comes again");
    // Nothing takes its segments away later.
    machine.tick(at(100_000));
    assert_eq!(machine.state().segments_of(id, 0).count(), now.len());
    assert!(listed(&machine).is_empty());
}

#[test]
fn volume_whose_snapshot_has_a_clone_is_deleted_by_force_only() {
    let (mut machine, _, id) = world();
    let of = snapshot(&mut machine, 7, id, "s").volume;
    let clone = volume(machine.clone_of(at(1), 8, of, "c")).volume;
    let refused = delete(&mut machine, 2, id, (false, true));
    assert!(matches!(refused, Err(Refusal::HasClones { .. })), "{refused:?}");
    delete(&mut machine, 3, id, (true, true)).expect("the clone keeps its origin");
    assert_eq!(listed(&machine), [id, of]);
    assert_eq!(find(&mut machine, "c").expect("it is not deleted").clone_source, Some(of));
    assert!(machine.state().segments_of(clone, 0).count() > 0);
    volume(undelete(&mut machine, id, None));
    assert_eq!(find(&mut machine, "a@s").expect("it is back").volume, of);
}

#[test]
fn open_volume_is_deleted_by_force_only_and_its_attachments_are_over() {
    let (mut machine, _, id) = world();
    let (name, holder) = ("a".to_owned(), "f1".to_owned());
    machine.handle(at(1), BlockRequest::Attach { name, nonce: 1, holder }).expect("it is free");
    let refused = delete(&mut machine, 2, id, (false, false));
    assert!(matches!(refused, Err(Refusal::AttachedClient { .. })), "{refused:?}");
    delete(&mut machine, 3, id, (true, false)).expect("although a client has it open");
    let keep = BlockRequest::Keep { attachments: vec![(id, 1)] };
    assert_eq!(machine.handle(at(4), keep), Ok(BlockReply::Kept { over: vec![(id, 1)] }));
    let back = volume(undelete(&mut machine, id, None));
    assert!(back.attachments.is_empty());
    let (name, holder) = ("a".to_owned(), "f2".to_owned());
    let attached = machine.handle(at(5), BlockRequest::Attach { name, nonce: 2, holder });
    assert!(matches!(attached, Ok(BlockReply::Attached { epoch: 2, .. })), "{attached:?}");
}

#[test]
fn time_of_a_deleted_volume_ends_and_what_is_removed_does_not_come_back() {
    let (mut machine, _, id) = world();
    delete(&mut machine, 0, id, (false, false)).expect("no client has it open");
    let day = Duration::from_secs(24 * 3600);
    let ends = at(day.as_millis() as u64);
    assert_eq!(machine.deleted_volumes(at(0))[..], [(id, day)]);
    let almost = at(day.as_millis() as u64 - 1);
    assert_eq!(machine.deleted_volumes(almost)[..], [(id, Duration::from_millis(1))]);
    assert_eq!(machine.deleted_volumes(ends)[..], [(id, Duration::ZERO)]);
    assert_eq!(remove(&mut machine, id, true), Ok(BlockReply::Done));
    assert!(machine.deleted_volumes(at(0)).is_empty());
    assert_eq!(undelete(&mut machine, id, None), Err(Refusal::NoVolume(id)));
    assert_eq!(machine.due_deletes(at(60_000)).len(), 1, "its files go");
}

/// A removal waits for clones of the snapshots: what is brought back in that time must stay.
#[test]
fn volume_brought_back_during_its_removal_stays_with_its_snapshots() {
    let (mut machine, mut server, id) = world();
    let of = snapshot(&mut machine, 7, id, "s").volume;
    let clone = volume(machine.clone_of(at(1), 8, of, "c")).volume;
    open(&mut machine, &mut server);
    delete(&mut machine, 2, id, (true, true)).expect("the clone keeps its origin");
    let deletion = machine.deletion(id);
    assert!(deletion.is_some() && deletion == machine.deletion(of));
    assert_eq!(machine.begin_parting(of), [clone]);
    volume(undelete(&mut machine, id, None));
    machine.parted(of, &[clone]);
    let refused = |name: &str| Err(Refusal::BroughtBack { name: name.into() });
    assert_eq!(machine.remove_under(at(5001), of, true, deletion), refused("a@s"));
    machine.end_parting(of);
    assert_eq!(machine.remove_under(at(5001), id, true, deletion), refused("a"));
    for (name, volume) in [("a", id), ("a@s", of)] {
        assert_eq!(find(&mut machine, name).expect("it was brought back").volume, volume);
    }
    // Deleted once more, it has all of its time.
    delete(&mut machine, 6000, id, (true, true)).expect("the clone keeps its origin");
    assert_eq!(machine.remove_under(at(6001), of, true, deletion), refused("a@s"));
    let deletion = machine.deletion(id);
    machine.begin_parting(of);
    machine.parted(of, &[clone]);
    for volume in [of, id, id] {
        let removed = machine.remove_under(at(6002), volume, true, deletion);
        assert_eq!(removed, Ok(BlockReply::Done), "{volume}");
    }
    assert_eq!(machine.state().deleted().count(), 0);
}

/// A manager that keeps no deleted volumes removes the snapshots one after the other: it checks all
/// of them before.
#[test]
fn deletion_that_would_be_refused_is_refused_by_its_check_and_changes_nothing() {
    let (mut machine, _, id) = world();
    let (first, second) =
        (snapshot(&mut machine, 7, id, "s").volume, snapshot(&mut machine, 8, id, "t").volume);
    assert_eq!(machine.check_delete(at(1), id, (false, true)), Ok(vec![first, second]));
    let (name, holder) = ("a".to_owned(), "f1".to_owned());
    machine.handle(at(1), BlockRequest::Attach { name, nonce: 1, holder }).expect("it is free");
    let refused = machine.check_delete(at(2), id, (false, true));
    assert!(matches!(refused, Err(Refusal::AttachedClient { .. })), "{refused:?}");
    machine.handle(at(3), BlockRequest::Detach { volume: id, epoch: 1 }).expect("it is done");
    volume(machine.clone_of(at(3), 9, first, "c"));
    let refused = machine.check_delete(at(4), id, (false, true));
    assert!(matches!(refused, Err(Refusal::HasClones { .. })), "{refused:?}");
    let refused = machine.check_delete(at(4), id, (true, false));
    assert!(matches!(refused, Err(Refusal::HasSnapshots { .. })), "{refused:?}");
    assert_eq!(machine.check_delete(at(4), id, (true, true)), Ok(vec![first, second]));
}

/// A clone that was never used has no files: it gets them before its snapshot goes, even if it is
/// deleted.
#[test]
fn deleted_clone_is_served_before_its_snapshot_goes() {
    let (mut machine, mut server, id) = world();
    let of = snapshot(&mut machine, 7, id, "s").volume;
    let clone = volume(machine.clone_of(at(1), 8, of, "c")).volume;
    delete(&mut machine, 2, clone, (false, false)).expect("no client has it open");
    assert!(machine.clone_parts(clone).is_err(), "its segments open for no client");
    assert!(machine.serve_deleted_clones(at(3), of));
    open(&mut machine, &mut server);
    assert_eq!(machine.clone_parts(clone).expect("they are open").len(), 4);
    assert_eq!(listed(&machine), [clone]);
    // A while later no server has it again, and the next leader takes its owners away, too.
    let mut next = next_leader(&machine);
    for machine in [&mut machine, &mut next] {
        machine.tick(at(100_000));
        assert_eq!(machine.state().segments_of(clone, 0).count(), 0);
    }
    // When it is restored in between, it keeps them.
    assert!(machine.serve_deleted_clones(at(100_001), of));
    volume(undelete(&mut machine, clone, None));
    machine.tick(at(300_000));
    assert_eq!(machine.state().segments_of(clone, 0).count(), 4);
    assert!(!machine.serve_deleted_clones(at(300_001), of));
}

/// Clocks of leaders show any time: data is kept for as long as was left when that was stored last,
/// an hour of a day more at most, and never less.
#[test]
fn remaining_time_is_counted_by_leaders_clocks_not_calendars() {
    let (mut machine, _, id) = world();
    delete(&mut machine, 0, id, (false, false)).expect("no client has it open");
    let hour = 3_600_000;
    let left = |machine: &Machine, ms| machine.deleted_volumes(at(ms))[0].1.as_millis() as u64;
    // A leader's own clock begins anywhere.
    let next = next_leader(&machine);
    assert_eq!(left(&next, 1), 24 * hour);
    for ms in (0..=5 * hour + hour / 2).step_by(10_000) {
        machine.note_left(at(ms));
    }
    assert_eq!(left(&machine, 5 * hour + hour / 2), 18 * hour + hour / 2);
    let mut next = next_leader(&machine);
    assert_eq!(left(&next, 1), 19 * hour);
    assert_eq!(left(&next, 19 * hour), 1, "it began to lead 1 ms later");
    // Listed as it is kept, with its snapshots.
    let BlockReply::Deleted { volumes, .. } = next.list_deleted(at(hour + 1), None, 10) else {
        panic!("no list")
    };
    assert_eq!((volumes[0].at_ms, volumes[0].left_ms), (EPOCH, 18 * hour));
    volume(undelete(&mut next, id, None));
    assert!(next.deleted_volumes(at(0)).is_empty());
}

/// A row without the time that is left, as programs before wrote it, has all of it.
#[test]
fn row_without_the_time_that_is_left_has_all_of_it() {
    let (mut machine, _, id) = world();
    delete(&mut machine, 0, id, (false, false)).expect("no client has it open");
    let mut state = ManagerState::default();
    for mut row in machine.state().rows() {
        if let Some(Value::Volume(volume)) = &mut row.value {
            volume.deleted.as_mut().expect("it is the only one").left_ms = None;
        }
        state.apply(row);
    }
    let next = super::machine(state, 2, at(1));
    assert_eq!(next.deleted_volumes(at(1))[0].1, Duration::from_secs(24 * 3600));
}

/// Rows of 8,000 snapshots do not fit in one batch: they are stored in parts, and the next leader
/// completes them.
#[test]
fn volume_of_8_000_snapshots_is_deleted_and_brought_back_in_parts() {
    let (mut machine, _, id) = world();
    for nonce in 0..8000 {
        snapshot(&mut machine, 100 + nonce, id, &format!("{nonce:0>250}"));
    }
    machine.take_rows();
    let before = machine.state().clone();
    let deleted_count = |machine: &Machine| machine.state().deleted().count();
    let step = |machine: &mut Machine, before: &ManagerState, name: &str, gone: usize| {
        let changes = machine.take_changes();
        let bytes = |rows: &Vec<Row>| -> usize {
            let len = |row: &Row| row.value_bytes().map_or(0, |value| value.len() + 32);
            rows.iter().map(len).sum()
        };
        assert!(changes.len() > 1 && changes.iter().all(|rows| bytes(rows) < 4 << 20));
        // Stored in part: the next leader has all of it.
        for stored in 1..=changes.len() {
            let mut state = before.clone();
            changes[..stored].iter().flatten().cloned().for_each(|row| state.apply(row));
            let mut next = super::machine(state, 2, at(1));
            assert_eq!(deleted_count(&next), gone, "after {stored} parts");
            let own = format!("{name}@{:0>250}", 4711);
            assert_eq!(find(&mut next, &own).is_ok(), gone == 0, "after {stored} parts");
        }
    };
    delete(&mut machine, 1, id, (false, true)).expect("no client has them open");
    assert_eq!(deleted_count(&machine), 8001);
    step(&mut machine, &before, "a", 8001);
    let before = machine.state().clone();
    volume(undelete(&mut machine, id, Some("b")));
    assert_eq!(deleted_count(&machine), 0);
    step(&mut machine, &before, "b", 0);
}

/// A server that lost its link keeps its lease for a while: owners of the volume that is back must
/// wait for that lease.
#[test]
fn owners_after_an_undelete_wait_for_leases_from_before_the_deletion() {
    let (mut machine, mut first, id) = world();
    let mut second = Server::join(&mut machine, at(1), "bs2");
    first.heartbeat(&mut machine, at(2000));
    second.heartbeat(&mut machine, at(2000));
    delete(&mut machine, 2001, id, (true, false)).expect("by force");
    let back = BlockRequest::Undelete { volume: id, name: None };
    volume(machine.handle(at(2002), back));
    let holds = |grant: BlockGrant| -> Vec<u32> {
        grant.changes.iter().filter_map(|one| Some(one.ownership?.hold_ms)).collect()
    };
    let grant = holds(second.heartbeat(&mut machine, at(2003)));
    assert!(!grant.is_empty() && grant.iter().all(|&ms| (600..640).contains(&ms)), "{grant:?}");
    // The first server has made the change, and serves the volume no more.
    first.heartbeat(&mut machine, at(2004));
    first.heartbeat(&mut machine, at(2005));
    let grant = holds(second.heartbeat(&mut machine, at(2006)));
    assert!(!grant.is_empty() && grant.iter().all(|&ms| ms == 0), "{grant:?}");
}

/// Brought back alone, it would be deleted again by the next leader, and until then keep its volume
/// from being removed.
#[test]
fn deleted_snapshot_is_not_brought_back_without_its_volume() {
    let (mut machine, _, id) = world();
    let of = snapshot(&mut machine, 7, id, "s").volume;
    delete(&mut machine, 1, id, (false, true)).expect("no client has it open");
    let refused = undelete(&mut machine, of, Some("foo")).expect_err("it is a snapshot");
    assert_eq!(refused.kind(), base::Kind::Invalid);
    assert!(refused.to_string().contains(&format!("volume undelete {id}")), "{refused}");
    assert_eq!(listed(&machine), [id, of]);
    volume(undelete(&mut machine, id, None));
    assert_eq!(find(&mut machine, "a@s").expect("it is back with its volume").volume, of);
}

/// To link the segments of a large clone takes longer than an unused volume keeps its owners.
#[test]
fn deleted_clone_keeps_its_owners_while_it_is_parted() {
    let (mut machine, mut server, id) = world();
    let of = snapshot(&mut machine, 7, id, "s").volume;
    let clone = volume(machine.clone_of(at(1), 8, of, "c")).volume;
    delete(&mut machine, 2, clone, (false, false)).expect("no client has it open");
    assert!(machine.serve_deleted_clones(at(3), of));
    assert_eq!(machine.begin_parting(of), [clone]);
    open(&mut machine, &mut server);
    let beat_and_tick = |machine: &mut Machine, server: &mut Server, ms| {
        server.heartbeat(machine, at(ms));
        machine.tick(at(ms));
        machine.state().segments_of(clone, 0).count()
    };
    assert_eq!(beat_and_tick(&mut machine, &mut server, 11_000), 4, "it is being parted");
    // It is tried again soon when a server did not answer.
    machine.end_parting(of);
    assert_eq!(beat_and_tick(&mut machine, &mut server, 12_000), 4, "it was used just now");
    assert_eq!(beat_and_tick(&mut machine, &mut server, 30_000), 0);
}

/// A message may come again long after it was answered: its sender has asked twice, or the network has
/// kept it. It changes nothing behind later changes, under the next leader either.
#[test]
fn a_change_that_comes_late_changes_nothing() {
    let mut machine = super::machine(ManagerState::default(), 1, at(0));
    let create = BlockRequest::Create { nonce: 1, spec: spec("a", 4 * GIB) };
    let id = volume(machine.handle(at(0), create)).volume;
    let grow = |gib: u64| BlockRequest::Resize { volume: id, bytes: gib * GIB, force: true };
    let set = |shared| BlockRequest::Set {
        volume: id,
        limits: VolumeLimits::default(),
        shared,
        policy: None,
    };
    let mut numbered = vec![(11, grow(8)), (12, grow(4)), (13, set(true)), (14, set(false))];
    for (once, request) in &numbered {
        machine.handle_once(at(1), *once, request.clone()).expect("it is done");
        // Segments that were cut off are gone.
        let gone: Vec<_> = machine.state().pending_deletes().collect();
        gone.into_iter().for_each(|gone| machine.purged(gone));
    }
    for _ in 0..2 {
        let before = machine.state().rows();
        for (once, request) in &numbered {
            let repeated = machine.handle_once(at(2), *once, request.clone());
            let info = volume(repeated);
            assert_eq!((info.spec.bytes, info.spec.shared), (4 * GIB, false), "{request:?}");
        }
        assert_eq!(machine.state().rows(), before);
        machine = next_leader(&machine);
    }
    // Without a number, as older clients ask, it happens again.
    let info = volume(machine.handle_once(at(3), 0, grow(8)));
    assert_eq!(info.spec.bytes, 8 * GIB);
    // The numbers of a volume are bounded, and go with it.
    numbered.clear();
    for once in 100..200 {
        machine.handle_once(at(4), once, set(once % 2 == 0)).expect("it is done");
    }
    let rows = machine.state().rows();
    let done = rows.iter().find_map(|row| match &row.value {
        Some(block_manager::rows::Value::Done(done)) => Some(done.len()),
        _ => None,
    });
    assert_eq!(done, Some(block_manager::limits::DONE_MAX));
    let remove = BlockRequest::Remove { volume: id, force: true };
    machine.handle(at(5), remove).expect("it is removed");
    let rows = machine.state().rows();
    let left = rows.iter().filter_map(|row| match &row.value {
        Some(block_manager::rows::Value::Done(done)) => Some(done.as_slice()),
        _ => None,
    });
    assert_eq!(left.collect::<Vec<_>>(), [&[1]], "that of its creation is left");
}

/// Seconds after its caller has removed the volume: its files are gone by then.
#[test]
fn creation_that_comes_late_makes_no_volume_that_was_removed_again() {
    let mut machine = super::machine(ManagerState::default(), 1, at(0));
    let create = |nonce| BlockRequest::Create { nonce, spec: spec("a", GIB) };
    let removed = |machine: &mut Machine, nonce| {
        let id = volume(machine.handle(at(0), create(nonce))).volume;
        let remove = BlockRequest::Remove { volume: id, force: false };
        machine.handle(at(1), remove).expect("it is removed");
        let due = machine.due_deletes(at(60_000));
        assert_eq!(due.len(), 1);
        due.into_iter().for_each(|due| machine.purged(due));
        id
    };
    removed(&mut machine, 11);
    // As many are made as a leader knows of, the first one included.
    for nonce in 12..1035 {
        removed(&mut machine, nonce);
    }
    for _ in 0..2 {
        for nonce in [11, 12, 1034] {
            let late = machine.handle(at(60_000), create(nonce));
            assert_eq!(late, Err(Refusal::NoName("a".into())), "{nonce}");
        }
        machine = next_leader(&machine);
    }
    // The numbers are bounded.
    let last = removed(&mut machine, 1035);
    let is_done =
        |row: &&block_manager::rows::Row| matches!(row.key, block_manager::rows::Key::Done(_));
    assert_eq!(machine.state().rows().iter().filter(is_done).count(), 1024);
    // Another request for the same makes one.
    assert!(volume(machine.handle(at(60_001), create(7))).volume > last);
}

#[test]
fn creation_that_comes_late_makes_no_second_volume_when_the_first_has_another_name() {
    let (mut machine, _, id) = world();
    delete(&mut machine, 10, id, (false, false)).expect("no client has it open");
    volume(undelete(&mut machine, id, Some("b")));
    for _ in 0..2 {
        let late = BlockRequest::Create { nonce: 1, spec: spec("a", GIB) };
        assert_eq!(machine.handle(at(5001), late), Err(Refusal::NoName("a".into())));
        assert_eq!(find(&mut machine, "b").map(|info| info.volume), Ok(id));
        machine = next_leader(&machine);
    }
}

/// A snapshot keeps the numbers of its latest clones alone.
#[test]
fn clone_that_comes_late_makes_no_second_volume_when_the_first_has_another_name() {
    let (mut machine, _, id) = world();
    let of = snapshot(&mut machine, 7, id, "s").volume;
    let clone = volume(machine.clone_of(at(1), 100, of, "c")).volume;
    delete(&mut machine, 2, clone, (false, false)).expect("no client has it open");
    volume(undelete(&mut machine, clone, Some("d")));
    for nonce in 101..120 {
        volume(machine.clone_of(at(5001), nonce, of, &format!("c{nonce}")));
    }
    let late = machine.clone_of(at(5002), 100, of, "c");
    assert_eq!(late, Err(Refusal::NoName("c".into())));
    assert_eq!(find(&mut machine, "d").map(|info| info.volume), Ok(clone));
}

/// Its caller has the refusal, and goes on with the volume as it is: a copy that comes when the cause is gone
/// changes nothing, under the next leader either.
#[test]
fn a_change_that_was_refused_and_comes_late_changes_nothing() {
    let mut machine = super::machine(ManagerState::default(), 1, at(0));
    let create = BlockRequest::Create { nonce: 1, spec: spec("a", 8 * GIB) };
    let id = volume(machine.handle(at(0), create)).volume;
    let resize = |gib: u64| BlockRequest::Resize { volume: id, bytes: gib * GIB, force: true };
    let attach = BlockRequest::Attach { name: "a".into(), nonce: 2, holder: "f".into() };
    let Ok(BlockReply::Attached { epoch, .. }) = machine.handle(at(1), attach) else { panic!() };
    volume(machine.handle_once(at(1), 10, resize(12)));
    for _ in 0..2 {
        let refused = machine.handle_once(at(1), 11, resize(4));
        assert_eq!(refused.expect_err("a client has it open").kind(), base::Kind::Invalid);
    }
    machine.handle(at(2), BlockRequest::Detach { volume: id, epoch }).expect("it is done");
    let mut machine = next_leader(&machine);
    let late = machine.handle_once(at(3), 11, resize(4)).expect_err("it was refused");
    assert_eq!(late.kind(), base::Kind::Invalid, "{late}");
    assert_eq!(machine.state().volume(id).map(|known| known.spec.bytes), Some(12 * GIB));
    // Another request for the same is none that was refused.
    assert_eq!(volume(machine.handle_once(at(3), 12, resize(4))).spec.bytes, 4 * GIB);
    // What is refused for a while only may come again: its client asks until it is done.
    let busy = machine.handle_once(at(3), 13, resize(8)).expect_err("files of segments are going");
    assert_eq!(busy.kind(), base::Kind::Retry, "{busy}");
    let gone: Vec<_> = machine.state().pending_deletes().collect();
    gone.into_iter().for_each(|gone| machine.purged(gone));
    assert_eq!(volume(machine.handle_once(at(4), 13, resize(8))).spec.bytes, 8 * GIB);
    // A caller that is refused in a loop makes no change happen twice that has happened.
    for once in 100..200 {
        let far = machine.handle_once(at(5), once, resize(1 << 20));
        assert_ne!(far.expect_err("it is too long").kind(), base::Kind::Retry);
    }
    let mut machine = next_leader(&machine);
    for once in [10, 12, 13] {
        let again = volume(machine.handle_once(at(6), once, resize(12)));
        assert_eq!(again.spec.bytes, 8 * GIB, "{once}");
    }
}

/// Its caller has the refusal, and brings the volume back, or closes it: a copy that comes later removes nothing.
#[test]
fn removal_that_was_refused_and_comes_late_removes_nothing() {
    let (mut machine, _, id) = world();
    let attach = BlockRequest::Attach { name: "a".into(), nonce: 1, holder: "f".into() };
    let Ok(BlockReply::Attached { epoch, .. }) = machine.handle(at(1), attach) else { panic!() };
    let removal = BlockRequest::Remove { volume: id, force: false };
    let refused = machine.handle_once(at(1), 10, removal.clone());
    assert!(matches!(refused, Err(Refusal::AttachedClient { .. })), "{refused:?}");
    machine.handle(at(2), BlockRequest::Detach { volume: id, epoch }).expect("it is done");
    let mut next = next_leader(&machine);
    for machine in [&mut machine, &mut next] {
        let late = machine.handle_once(at(3), 10, removal.clone());
        assert_eq!(late.expect_err("it was refused").kind(), base::Kind::Invalid);
        assert!(machine.state().volume(id).is_some());
    }
    // Another request, and one of an older client, which has no number.
    let mut other = next_leader(&machine);
    assert_eq!(other.handle_once(at(4), 11, removal.clone()), Ok(BlockReply::Done));
    assert_eq!(other.handle_once(at(4), 11, removal.clone()), Ok(BlockReply::Done), "asked again");
    assert_eq!(next.handle_once(at(4), 0, removal), Ok(BlockReply::Done));
}

/// As above, of a volume that is deleted again: what is removed does not come back.
#[test]
fn removal_of_a_deleted_volume_that_was_refused_and_comes_late_removes_nothing() {
    let (mut machine, _, id) = world();
    let refused = machine.begin_remove_deleted((10, id));
    assert!(matches!(refused, Err(Refusal::NotDeleted { .. })), "{refused:?}");
    delete(&mut machine, 1, id, (false, false)).expect("no client has it open");
    let mut next = next_leader(&machine);
    for machine in [&mut machine, &mut next] {
        let late = machine.begin_remove_deleted((10, id));
        assert_eq!(late.expect_err("it was refused").kind(), base::Kind::Invalid);
        for once in [11, 0] {
            assert_eq!(machine.begin_remove_deleted((once, id)), Ok(machine.deletion(id)));
        }
    }
    remove(&mut machine, id, true).expect("it is deleted");
    assert_eq!(machine.begin_remove_deleted((11, id)), Ok(None), "asked again");
}

/// The answer was lost, and the client asks once more: what it does depends on the kind.
#[test]
fn refusal_is_the_same_when_it_is_asked_for_again() {
    let (mut machine, _, id) = world();
    let grow = BlockRequest::Resize { volume: id, bytes: 8 * GIB, force: false };
    volume(machine.handle_once(at(1), 9, grow));
    let mut ask = |once, bytes| {
        let resize = BlockRequest::Resize { volume: id, bytes, force: false };
        let refused = machine.handle_once(at(1), once, resize).expect_err("it is too short");
        (refused.kind(), refused.to_string())
    };
    let (data, short) = (ask(10, GIB), ask(11, GIB / 2));
    assert_eq!((data.0, short.0), (base::Kind::Exists, base::Kind::Invalid));
    assert_eq!((ask(10, GIB), ask(11, GIB / 2)), (data, short));
}
