//! Numbers of chunkservers near the end of their range.

use base::ServerId;
use master::FirstNumbers;
use master::cluster::{
    Answer, ClusterMachine, Command, Outcome, Refusal, decode_outcome, encode_command,
};
use master_consensus::{Rows, StateMachine};
use wire::control::Registration;

fn register(state: &mut ClusterMachine, name: &str) -> Outcome {
    let addr = ([127, 0, 0, 1], 1).into();
    let registration = Registration { name: name.into(), addr, domain: "d".into() };
    let command = encode_command(0, &Command::Register(registration));
    decode_outcome(&state.apply(0, &command).expect("it decodes")).expect("an outcome")
}

/// What a member has that takes the state from another one, or from its own disk.
fn loaded(state: &mut ClusterMachine, into: &ClusterMachine) -> ClusterMachine {
    let (mut rows, mut copy) = (Rows::default(), into.blank());
    assert!(!state.take_changes(&mut rows), "it is one row");
    for (key, value) in rows.iter() {
        copy.load(key, value.expect("it is there")).expect("a row of this state");
    }
    copy
}

/// Members have the same numbers, also those that begin with the rows of another one, from before the first
/// registration or after it.
#[test]
fn last_numbers_of_chunkservers_are_given_once_by_all_members() {
    let server = ServerId::new(u32::MAX - 2);
    let first = FirstNumbers { server, ..FirstNumbers::default() };
    let new = ClusterMachine::new().starting_at(first);
    let mut state = new.clone();
    let mut members = vec![loaded(&mut state, &new)];
    for (name, number) in [("cs1", u32::MAX - 1), ("cs2", u32::MAX), ("cs1", u32::MAX - 1)] {
        let registered = Ok(Answer::Registered(ServerId::new(number)));
        assert_eq!(register(&mut state, name), registered);
        for member in &mut members {
            assert_eq!(register(member, name), registered);
        }
        members.push(loaded(&mut state, &new));
    }
    for member in members.iter_mut().chain([&mut state]) {
        assert_eq!(register(member, "cs3"), Err(Refusal::Full));
        assert_eq!(register(member, "cs2"), Ok(Answer::Registered(ServerId::new(u32::MAX))));
    }
}
