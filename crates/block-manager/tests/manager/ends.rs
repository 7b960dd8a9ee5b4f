//! Epochs at the end of their range: none is used twice.

use base::GIB;
use block_manager::entity::Segment;
use block_manager::rows::{Key, Row, Value};
use block_manager::{Machine, ManagerState, Refusal};
use block_proto::{BlockReply, BlockRequest};

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
