//! Round trips, refusals, golden bytes, and the replay of the fuzz corpus.

use std::path::Path;

use proptest::prelude::*;
use wire::control::{ControlReply, ControlRequest};

use super::arbitrary::{reply, request, server_reply, server_request};
use super::fuzz_control;
use crate::{Reply, Request};

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => request().prop_map(Request::Block),
        1 => (1..=u64::MAX, request()).prop_map(|(once, request)| Request::Once(once, request)),
        1 => server_request().prop_map(Request::BlockServer),
    ]
}

fn any_reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        4 => reply().prop_map(Reply::Block),
        1 => server_reply().prop_map(Reply::BlockServer),
    ]
}

proptest! {
    #[test]
    fn requests_round_trip(value in any_request()) {
        prop_assert_eq!(Request::decode(&value.clone().encode()), Ok(value));
    }

    #[test]
    fn replies_round_trip(value in any_reply()) {
        prop_assert_eq!(Reply::decode(&value.clone().encode()), Ok(value));
    }

    #[test]
    fn damaged_messages_are_refused(
        value in any_request(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = value.encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        fuzz_control(&bytes);
        fuzz_control(&bytes[..at]);
    }
}

#[test]
fn messages_of_the_core_and_of_other_services_pass_through() {
    let core = ControlRequest::Cluster(wire::control::ClusterRequest::Info);
    assert_eq!(Request::decode(&core.encode()), Ok(Request::Core(core)));
    let (tag, body) = (wire::control::ServiceTag::new(99).unwrap(), vec![1, 2, 3]);
    let other = ControlReply::Service(wire::control::ServiceMessage { tag, body });
    assert_eq!(Reply::decode(&other.encode()), Ok(Reply::Core(other)));
}

fn golden<T: std::fmt::Debug>(
    file: &str,
    drawn: &BoxedStrategy<T>,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, wire::control::WireError>,
) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    testing::messages::golden(&path, (drawn, 400), encode, decode);
}

/// Made by the build before these messages left `wire`.
#[test]
fn golden_messages_are_unchanged() {
    let (requests, replies) = (any_request().boxed(), any_reply().boxed());
    golden("requests.txt", &requests, |it| it.clone().encode(), Request::decode);
    golden("replies.txt", &replies, |it| it.clone().encode(), Reply::decode);
}
