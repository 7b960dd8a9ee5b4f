//! Epochs and numbers at the end of their range: none is used twice.

use base::{GIB, Kind};
use block_manager::entity::{Counters, Segment};
use block_manager::rows::{Key, Row, Value};
use block_manager::{Config, FirstEpochs, Machine, ManagerState, Refusal};
use block_proto::{BlockReply, BlockRequest};
use block_volume::ids::VolumeId;

use super::snapshots::{open, snapshot};
use super::{Server, at, machine, spec, volume};

/// Records of changes have 32 bits for it.
const LAST_ATTACHMENT: u64 = u32::MAX as u64;

/// A leader of a volume whose owners and attachments have one epoch left.
fn with_one_left() -> (Machine, Server) {
    let mut before = machine(ManagerState::default(), 1, at(0));
    Server::join(&mut before, at(0), "bs1");
    volume(before.handle(at(1), BlockRequest::Create { nonce: 1, spec: spec("a", GIB) }));
    let mut state = before.state().clone();
    let segment = Segment { epoch: u64::MAX - 1, owner: None };
    for (id, _) in before.state().segments() {
        state.apply(Row::put(Key::Segment(id), Value::Segment(segment)));
    }
    let (id, mut known) = before.state().volumes().map(|(id, it)| (id, it.clone())).next().unwrap();
    known.attach_epoch = LAST_ATTACHMENT - 1;
    state.apply(Row::put(Key::Volume(id), Value::Volume(known)));
    let mut machine = machine(state, 2, at(5000));
    let mut server = Server::join(&mut machine, at(5000), "bs1");
    for ms in 5001..5200 {
        server.heartbeat(&mut machine, at(ms));
        machine.tick(at(ms));
    }
    (machine, server)
}

#[test]
fn segment_whose_epochs_are_used_up_has_no_owner() {
    let (mut machine, server) = with_one_left();
    let all_have = |machine: &Machine, owner: Option<_>| {
        let last = Segment { epoch: u64::MAX, owner };
        machine.state().segments().all(|(_, segment)| segment == last)
    };
    assert!(all_have(&machine, Some(server.id)));
    // Another process of the server gets what the previous one had, under a later epoch: there is none.
    let mut live = Server::join(&mut machine, at(5210), "bs1");
    for ms in 5211..5400 {
        live.heartbeat(&mut machine, at(ms));
        machine.tick(at(ms));
        assert!(all_have(&machine, None));
    }
}

#[test]
fn volume_whose_attachments_are_used_up_is_not_attached() {
    let (mut machine, _) = with_one_left();
    let mut attach = |nonce: u64| {
        let (name, holder) = ("a".to_owned(), "host".to_owned());
        machine.handle(at(5210 + nonce), BlockRequest::Attach { name, nonce, holder })
    };
    let last = |reply: &_| matches!(reply, Ok(BlockReply::Attached { epoch: LAST_ATTACHMENT, .. }));
    assert!(last(&attach(1)));
    let refused = attach(2);
    assert!(matches!(refused, Err(Refusal::Full { .. })), "{refused:?}");
    assert!(last(&attach(1)), "the last one is as it was");
}

/// A leader that has these numbers left.
fn with_counters(volume: u64, server: u32) -> Machine {
    let mut state = ManagerState::default();
    state.apply(Row::put(Key::Counters, Value::Counters(Counters { volume, server })));
    machine(state, 2, at(0))
}

fn create(machine: &mut Machine, nonce: u64, name: &str) -> Result<BlockReply, Refusal> {
    machine.handle(at(1), BlockRequest::Create { nonce, spec: spec(name, GIB) })
}

/// 0 would be the number after the last one: rows have it where there is no volume.
#[test]
fn no_volume_is_made_when_all_numbers_are_used() {
    let mut machine = with_counters(u64::MAX - 3, 1);
    let mut server = Server::join(&mut machine, at(0), "bs1");
    server.heartbeat(&mut machine, at(0));
    let id = volume(create(&mut machine, 1, "a")).volume;
    open(&mut machine, &mut server);
    let of = snapshot(&mut machine, 2, id, "s").volume;
    let copy = volume(machine.clone_of(at(1), 3, of, "c")).volume;
    assert_eq!([id, of, copy].map(|id| u64::MAX - id.get()), [3, 2, 1]);
    let before = machine.state().clone();
    let refused = [
        create(&mut machine, 4, "b").map(drop),
        machine.begin_snapshot(5, id, "t").map(drop),
        machine.clone_of(at(1), 6, of, "d").map(drop),
        machine.begin_rollback(at(1), 7, of).map(drop),
    ];
    for refused in refused {
        let refusal = refused.expect_err("there is no number for it");
        assert_eq!(refusal.kind(), Kind::Full);
        assert!(refusal.to_string().contains("all numbers of volumes"), "{refusal}");
    }
    let volumes = |state: &ManagerState| state.volumes().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(volumes(machine.state()), volumes(&before));
    assert_eq!(machine.state().counters(), before.counters());
    // What is there goes on.
    assert_eq!(volume(create(&mut machine, 1, "a")).volume, id, "the same request");
    let remove = BlockRequest::Remove { volume: copy, force: true };
    assert_eq!(machine.handle(at(2), remove.clone()), Ok(BlockReply::Done));
    assert_eq!(machine.handle(at(2), remove), Ok(BlockReply::Done), "it is known as removed");
    machine.begin_snapshot(8, id, "t").expect_err("a number is never given twice");
}

#[test]
fn no_block_server_joins_when_all_numbers_are_used() {
    let mut machine = with_counters(1, u32::MAX - 1);
    let last = Server::join(&mut machine, at(0), "bs1");
    assert_eq!(last.id.get(), u32::MAX - 1);
    let addr = "127.0.0.1:7000".parse().expect("an address");
    let register = |name: &str| BlockRequest::Register { name: name.to_owned(), addr };
    let before = machine.state().clone();
    let refusal = machine.handle(at(1), register("bs2")).expect_err("there is no number for it");
    assert_eq!(refusal.kind(), Kind::Full);
    assert!(refusal.to_string().contains("all numbers of block servers"), "{refusal}");
    assert_eq!(machine.state(), &before);
    // The last one may start again.
    let again = machine.handle(at(2), register("bs1"));
    let boot = last.boot + 1;
    assert_eq!(again, Ok(BlockReply::Registered { server: last.id, boot }));
}

/// As in the simulator, whose clusters have numbers near the ends of their ranges.
#[test]
fn volumes_and_block_servers_are_numbered_from_where_a_cluster_begins() {
    let first = FirstEpochs { owner: u64::MAX - 1000, attachment: u32::MAX - 1000 };
    let config = Config { first, ..Config::new("bm1", 1) };
    let begin = |state| {
        let mut machine = Machine::new(config.clone(), state, at(0));
        machine.lead_until(at(3_600_000));
        machine
    };
    let mut leader = begin(ManagerState::starting_at(first.counters()));
    let mut server = Server::join(&mut leader, at(0), "bs1");
    server.heartbeat(&mut leader, at(0));
    let id = volume(create(&mut leader, 1, "a")).volume;
    assert_eq!((id.get(), server.id.get()), (u64::MAX - 1000, u32::MAX - 1000));
    open(&mut leader, &mut server);
    let before = VolumeId::new(id.get() - 1);
    let remove = |volume| BlockRequest::Remove { volume, force: false };
    let never = leader.handle(at(2), remove(before));
    assert_eq!(never, Err(Refusal::NoVolume(before)), "no volume had this number");
    // What is stored counts from then on.
    let mut state = ManagerState::starting_at(first.counters());
    leader.take_rows().into_iter().for_each(|row| state.apply(row));
    let mut next = begin(state);
    let other = volume(create(&mut next, 2, "b")).volume;
    assert_eq!(other.get(), id.get() + 1);
    assert_eq!(Server::join(&mut next, at(3), "bs2").id.get(), server.id.get() + 1);
    assert_eq!(next.handle(at(3), remove(id)), Ok(BlockReply::Done));
    assert_eq!(next.handle(at(3), remove(id)), Ok(BlockReply::Done), "it was there");
    // Everywhere else both begin with 1.
    let usual = FirstEpochs::default().counters();
    assert_eq!(ManagerState::starting_at(usual), ManagerState::default());
}
