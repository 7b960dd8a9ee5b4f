//! Round trips, refusals, and the replay of the fuzz corpus.

use std::path::Path;

use base::{DirId, FileId, Kind};
use proptest::prelude::*;

use super::arbitrary::{error, reply, request};
use super::{Message, Proto, fuzz_control, pb};
use crate::control::*;

proptest! {
    #[test]
    fn requests_round_trip(value in request()) {
        prop_assert_eq!(ControlRequest::decode(&value.encode()), Ok(value));
    }

    #[test]
    fn replies_round_trip(value in reply()) {
        prop_assert_eq!(ControlReply::decode(&value.encode()), Ok(value));
    }

    #[test]
    fn errors_round_trip(value in error()) {
        prop_assert_eq!(ControlError::decode(&value.encode()), Ok(value));
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_control(&bytes);
    }

    #[test]
    fn damaged_messages_are_answered(
        value in request(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = value.encode();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            fuzz_control(&bytes);
            fuzz_control(&bytes[..at]);
        }
    }

    #[test]
    fn unknown_fields_are_skipped(value in request()) {
        let mut bytes = value.encode();
        // Field 1000, a varint.
        bytes.extend([0xc0, 0x3e, 7]);
        prop_assert_eq!(ControlRequest::decode(&bytes), Ok(value));
    }
}

fn place(name: &str) -> NameKey {
    NameKey { parent: DirId::ROOT, name: name.to_owned() }
}

fn refused<T: std::fmt::Debug>(result: Result<T, WireError>, want: &str) {
    let error = result.expect_err(want);
    assert!(error.to_string().contains(want), "'{error}' does not name '{want}'");
}

#[test]
fn names_are_checked() {
    for good in ["a", "...", ".a", "ä", &"x".repeat(255)] {
        assert_eq!(NameKey::decode(&place(good).encode()), Ok(place(good)));
    }
    for bad in ["", ".", "..", "a/b", "/", &"x".repeat(256)] {
        let want = WireError::BadName { field: "NameKey.name" };
        assert_eq!(NameKey::decode(&place(bad).encode()), Err(want));
    }
}

#[test]
fn policies_are_checked() {
    for copies in 0..=6u8 {
        for acks in 0..=7u8 {
            let policy = Policy::plain(copies, acks);
            let valid = acks >= 1 && acks <= copies && copies <= 5 && 2 * acks > copies;
            assert_eq!(Policy::decode(&policy.encode()).is_ok(), valid, "{policy:?}");
        }
    }
    let huge = pb::Policy { copies: 300, acks: 300, ..pb::Policy::default() }.encode_to_vec();
    refused(Policy::decode(&huge), "Policy.copies");
    refused(Policy::decode(&Policy::plain(255, 200).encode()), "Policy");
    let coded = |data, parity, acks| pb::Policy {
        coded: Some(pb::Coded { data, parity, acks }),
        ..pb::Policy::default()
    };
    assert_eq!(Policy::decode(&coded(4, 2, 5).encode_to_vec()), Ok(Policy::ec(4, 2)));
    for (data, parity, acks) in [(1, 1, 2), (4, 0, 4), (13, 2, 14), (4, 5, 8), (4, 2, 4), (4, 2, 7)]
    {
        refused(Policy::decode(&coded(data, parity, acks).encode_to_vec()), "Policy.coded");
    }
    let both = pb::Policy { copies: 3, acks: 2, ..coded(4, 2, 5) };
    refused(Policy::decode(&both.encode_to_vec()), "Policy.coded");
}

#[test]
fn bounds_are_checked() {
    let list = |limit| NamespaceRequest::List { dir: DirId::ROOT, after: None, limit }.encode();
    refused(NamespaceRequest::decode(&list(0)), "NamespaceRequest.List.limit");
    assert!(NamespaceRequest::decode(&list(1000)).is_ok());
    refused(NamespaceRequest::decode(&list(1001)), "NamespaceRequest.List.limit");

    let link = |count| NamespaceChange::Link {
        links: (0..count).map(|count| (FileId::new(count), place("a"))).collect(),
    };
    assert!(NamespaceChange::decode(&link(1000).encode()).is_ok());
    refused(NamespaceChange::decode(&link(1001).encode()), "NamespaceChange.Link.links");

    let mode = Attributes { mode: 0o10_000, mtime: 0 };
    refused(Attributes::decode(&mode.encode()), "Attributes.mode");

    let lock = LockChange::Acquire { name: "l".into(), owner: String::new(), ttl_ms: 99 };
    refused(LockChange::decode(&lock.encode()), "LockChange.Acquire.ttl_ms");

    let close = |left| StreamChange::Close {
        file: FileId::new(1),
        epoch: base::Epoch::new(1),
        sealed: None,
        finish: false,
        left: vec![base::ServerId::new(1); left],
    };
    assert!(StreamChange::decode(&close(limits::PLACES_MAX).encode()).is_ok());
    let beyond = close(limits::PLACES_MAX + 1).encode();
    refused(StreamChange::decode(&beyond), "StreamChange.Close.left");

    let server = base::ServerId::new(1);
    let server = AbnormalServer { server, unreached: true, slow: true, draining: false };
    let abnormal = |count| AbnormalServers {
        version: AbnormalVersion { boot: 1, changes: 1 },
        full: true,
        many: false,
        servers: vec![server; count],
    };
    assert!(AbnormalServers::decode(&abnormal(limits::ABNORMAL_MAX).encode()).is_ok());
    let beyond = abnormal(limits::ABNORMAL_MAX + 1).encode();
    refused(AbnormalServers::decode(&beyond), "ClusterReply.Abnormal.servers");

    let long = vec![0; limits::MESSAGE_LEN_MAX + 1];
    assert_eq!(ControlReply::decode(&long), Err(WireError::TooLong { len: long.len() }));
}

#[test]
fn missing_and_unknown_parts_are_named() {
    refused(ControlRequest::decode(&[]), "ControlRequest.to");
    let no_place = pb::NamedNode { name: "a".into(), node: None };
    refused(NamedNode::from_pb(no_place), "NamedNode.node");
    let no_kind = pb::ControlError { kind: 77, message: String::new(), leader: None };
    refused(ControlError::from_pb(no_kind), "ControlError.kind");
    let short = pb::NameKey { parent: vec![0; 15], name: "a".into() };
    refused(NameKey::from_pb(short), "NameKey.parent");
    assert_eq!(ControlReply::decode(&[0xff; 9]), Err(WireError::Malformed));
}

#[test]
fn long_error_messages_are_cut_between_characters() {
    let error = ControlError::new(Kind::Full, "ä".repeat(3000) + "x");
    let back = ControlError::decode(&error.encode()).expect("it was cut to fit");
    assert_eq!(back.message, "ä".repeat(2048));
}

/// `CRATON_WRITE_CORPUS=1` writes inputs of [`fuzz_control`]: messages of every kind, damaged ones
/// too.
#[test]
fn the_corpus_is_written_on_request() {
    if std::env::var_os("CRATON_WRITE_CORPUS").is_some() {
        write_corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/control"));
    }
}

fn write_corpus(dir: &Path) {
    let (requests, replies) = (request().boxed(), reply().boxed());
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for index in 0..16 {
        let request = requests.new_tree(&mut runner).expect("a request").current().encode();
        let reply = replies.new_tree(&mut runner).expect("a reply").current().encode();
        let mut damaged = request.clone();
        if let Some(byte) = damaged.get_mut(index) {
            *byte ^= 0x41;
        }
        for (kind, bytes) in [("request", request), ("reply", reply), ("damaged", damaged)] {
            let path = dir.join(format!("{kind}-{index:02}"));
            std::fs::write(path, bytes).expect("the corpus can be written");
        }
    }
}

#[test]
fn messages_of_services_are_members_of_the_envelope() {
    let tag = |tag| ServiceTag::new(tag).unwrap();
    let message = |number, body: &[u8]| {
        ControlRequest::Service(ServiceMessage { tag: tag(number), body: body.to_vec() })
    };
    let (a, b) = (message(6, b"ab").encode(), message(6, b"cd").encode());
    assert_eq!(a, [0x32, 2, b'a', b'b'], "as protobuf writes a member with tag 6");
    let cluster = ControlRequest::Cluster(ClusterRequest::Info);
    let core = cluster.encode();
    let decode = |parts: &[&[u8]]| ControlRequest::decode(&parts.concat());
    assert_eq!(decode(&[&a, &b]), Ok(message(6, b"abcd")), "two parts of one");
    assert_eq!(decode(&[&a, &message(127, b"x").encode()]), Ok(message(127, b"x")), "the last");
    assert_eq!(decode(&[&core, &a]), Ok(message(6, b"ab")), "the last");
    assert_eq!(decode(&[&a, &core]), Ok(cluster), "the last");
    // Field 6 as a number, and a field above all tags, are unknown fields.
    assert_eq!(decode(&[&a, &[0x30, 7], &[0xc0, 0x3e, 7]]), Ok(message(6, b"ab")));
    refused(decode(&[&[0x30, 7]]), "ControlRequest.to");
    for cut in [&a[..1], &a[..3], &[0x32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]]
    {
        assert_eq!(decode(&[cut]), Err(WireError::Malformed), "{cut:?}");
    }
    assert_eq!([0, 5, 128].map(ServiceTag::new), [None; 3]);
}

/// What each client is answered once a second while nothing changes.
#[test]
fn unchanged_list_of_abnormal_servers_is_a_few_bytes() {
    let version = AbnormalVersion { boot: u64::MAX, changes: 1_000_000 };
    let same = AbnormalServers { version, full: false, many: false, servers: Vec::new() };
    let reply = ControlReply::Cluster(ClusterReply::Abnormal(same)).encode();
    assert!(reply.len() <= 24, "{} bytes", reply.len());
    let known = Some(version);
    let request = ControlRequest::Cluster(ClusterRequest::Abnormal { known }).encode();
    assert!(request.len() <= 24, "{} bytes", request.len());
}

fn golden<T: std::fmt::Debug>(
    (file, draws): (&str, usize),
    drawn: &BoxedStrategy<T>,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, WireError>,
) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    testing::messages::golden(&path, (drawn, draws), encode, decode);
}

#[test]
fn golden_messages_are_unchanged() {
    let requests = request().boxed();
    golden(("requests.txt", 400), &requests, ControlRequest::encode, ControlRequest::decode);
    golden(("replies.txt", 400), &reply().boxed(), ControlReply::encode, ControlReply::decode);
    golden(("errors.txt", 120), &error().boxed(), ControlError::encode, ControlError::decode);
}

#[test]
fn missing_names_silent_servers_and_failed_disks() {
    let disk = |number: u32, failed: bool| DiskReport {
        disk: base::DiskId::new(u128::from(number)),
        path: format!("/d{number}"),
        capacity: 1,
        used: 0,
        chunks: 0,
        failed,
        reason: "it is missing".to_owned(),
        addr: None,
        background: None,
        times: Vec::new(),
    };
    let server = |number: u32, alive: bool, failed: bool| ServerStatus {
        server: base::ServerId::new(number),
        name: format!("cs{number}"),
        addr: "127.0.0.1:7".parse().expect("an address"),
        domain: format!("d{number}"),
        alive,
        unreached_ms: None,
        heard_ms: None,
        disks: vec![disk(number, failed), disk(10 + number, false)],
        draining: false,
        maintenance_ms: None,
        slow_disks: Vec::new(),
    };
    assert_eq!(missing(&[server(1, true, false)]), None);
    let text = missing(&[server(1, true, false), server(2, false, true), server(3, true, true)]);
    let want = "chunkserver 'cs2' at 127.0.0.1:7 does not answer; disk /d3 of chunkserver 'cs3' has \
                failed (it is missing)";
    assert_eq!(text.as_deref(), Some(want));
    let many: Vec<_> = (1..=9).map(|number| server(number, false, false)).collect();
    assert!(missing(&many).is_some_and(|text| text.ends_with("; 5 more are missing")));
}
