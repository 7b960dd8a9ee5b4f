//! Processes of one block server: the one that joined last has the segments, whatever previous ones
//! send afterwards.

use base::GIB;
use block_manager::limits::SERVER_DEAD;
use block_manager::{Machine, ManagerState, Refusal};
use block_proto::{BlockHeartbeat, BlockReply, BlockRequest};

use super::snapshots::next_leader;
use super::{Server, at, machine, spec, volume};

fn heartbeat_of(server: &mut Server) -> BlockHeartbeat {
    server.seq += 1;
    BlockHeartbeat {
        server: server.id,
        addr: "127.0.0.1:7000".parse().expect("an address"),
        boot: server.boot,
        seq: server.seq,
        seen: server.seen,
        unopened: Vec::new(),
        unopened_count: 0,
        loads: Vec::new(),
        leaving: false,
        asks_admission: true,
    }
}

/// True when a heartbeat is answered with a lease or with the changes that come before it.
fn is_granted(machine: &mut Machine, ms: u64, heartbeat: BlockHeartbeat) -> bool {
    match machine.handle(at(ms), BlockRequest::Heartbeat(heartbeat)) {
        Ok(BlockReply::Grant(grant)) => grant.known && (grant.lease_ms > 0 || grant.more),
        _ => false,
    }
}

/// A server whose process was replaced by another, and the leader that saw it.
fn replaced() -> (Machine, Server, Server) {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut former = Server::join(&mut machine, at(0), "bs1");
    former.heartbeat(&mut machine, at(0));
    let create = BlockRequest::Create { nonce: 1, spec: spec("a", GIB) };
    volume(machine.handle(at(1), create));
    former.heartbeat(&mut machine, at(2));
    let mut live = Server::join(&mut machine, at(10), "bs1");
    live.heartbeat(&mut machine, at(11));
    live.heartbeat(&mut machine, at(12));
    (machine, former, live)
}

fn epochs(machine: &Machine) -> Vec<u64> {
    machine.state().segments().map(|(_, segment)| segment.epoch).collect()
}

#[test]
fn heartbeat_of_a_previous_process_takes_nothing_from_the_live_one() {
    let (machine, mut former, mut live) = replaced();
    let mut machine = next_leader(&machine);
    assert!(is_granted(&mut machine, 5000, heartbeat_of(&mut live)));
    let before = epochs(&machine);
    assert!(
        !is_granted(&mut machine, 5001, heartbeat_of(&mut former)),
        "a former process has a lease"
    );
    assert_eq!(epochs(&machine), before, "segments were given again");
    assert!(is_granted(&mut machine, 5002, heartbeat_of(&mut live)), "the live process is refused");
}

#[test]
fn heartbeat_of_a_previous_process_that_a_new_leader_hears_first_is_refused() {
    let (machine, mut former, mut live) = replaced();
    let mut machine = next_leader(&machine);
    assert!(
        !is_granted(&mut machine, 5000, heartbeat_of(&mut former)),
        "a former process has a lease"
    );
    assert!(is_granted(&mut machine, 5001, heartbeat_of(&mut live)), "the live process is refused");
}

#[test]
fn heartbeat_of_a_previous_process_is_refused_after_any_number_of_others() {
    let (mut machine, mut former, mut live) = replaced();
    for _ in 0..20 {
        live = Server { boot: live.boot + 1, seq: 0, seen: block_proto::Seen::default(), ..live };
        assert!(is_granted(&mut machine, 20, heartbeat_of(&mut live)));
    }
    assert!(
        !is_granted(&mut machine, 21, heartbeat_of(&mut former)),
        "a former process has a lease"
    );
    assert!(is_granted(&mut machine, 22, heartbeat_of(&mut live)), "the live process is refused");
}

#[test]
fn second_process_elsewhere_is_refused_while_the_first_is_heard() {
    let (mut machine, _, mut live) = replaced();
    let register = |addr: &str| BlockRequest::Register {
        name: "bs1".to_owned(),
        addr: addr.parse().expect("an address"),
    };
    let refused = machine.handle(at(20), register("127.0.0.1:7001"));
    assert!(matches!(refused, Err(Refusal::Second { .. })), "{refused:?}");
    // At the same address the first one cannot run any more.
    let again = machine.handle(at(21), register("127.0.0.1:7000"));
    assert!(matches!(again, Ok(BlockReply::Registered { boot, .. }) if boot > live.boot));
    // A number alone changes nothing: its process may have ended before its first heartbeat.
    assert!(is_granted(&mut machine, 22, heartbeat_of(&mut live)));
    let silent = 22 + SERVER_DEAD.as_millis() as u64;
    (22..silent).step_by(50).for_each(|ms| {
        machine.tick(at(ms));
    });
    machine.tick(at(silent - 1));
    assert!(machine.handle(at(silent - 1), register("127.0.0.1:7001")).is_err());
    machine.tick(at(silent));
    machine.handle(at(silent), register("127.0.0.1:7001")).expect("the first is silent");
}

/// A leader that dies amid the storing of what a process was given leaves a part of it: the process
/// is given all of it again, under epochs of its own.
#[test]
fn process_of_which_a_part_was_stored_is_given_all_again() {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut former = Server::join(&mut machine, at(0), "bs1");
    former.heartbeat(&mut machine, at(0));
    volume(machine.handle(at(1), BlockRequest::Create { nonce: 1, spec: spec("a", GIB) }));
    former.heartbeat(&mut machine, at(2));
    let owned: Vec<(_, u64)> =
        machine.state().segments().map(|(id, segment)| (id, segment.epoch)).collect();
    let mut live = Server::join(&mut machine, at(10), "bs1");
    let before = machine.state().clone();
    machine.take_rows();
    live.heartbeat(&mut machine, at(11));
    let rows = machine.take_rows();
    assert!(rows.len() > owned.len());
    for stored in 0..rows.len() {
        let mut state = before.clone();
        rows[..stored].iter().cloned().for_each(|row| state.apply(row));
        let mut next = super::machine(state, 2, at(5000));
        let mut live = Server { seq: 0, seen: block_proto::Seen::default(), ..live };
        assert!(is_granted(&mut next, 5000, heartbeat_of(&mut live)));
        let again = |(id, epoch): &(_, u64)| next.state().segment(*id).unwrap().epoch > *epoch;
        assert!(owned.iter().all(again), "with {stored} rows an epoch has two processes");
        assert!(!is_granted(&mut next, 5001, heartbeat_of(&mut former)));
    }
}
