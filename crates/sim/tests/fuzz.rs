//! Every decoder over its corpus and over changed copies of it.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use runtime::Rng;
use sim::fuzz::{TARGETS, Target, mutate};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn decoders_stand_their_corpus_and_changed_copies_of_it() {
    assert!(sim::fuzz::run(TARGETS), "there is no such target");
}

/// A canary: the loop finds what it should.
#[test]
fn a_planted_defect_is_found() {
    let target = Target {
        name: "planted",
        run: |bytes| assert!(!bytes.starts_with(b"bug!") || bytes.len() % 7 != 3),
        corpus: "",
    };
    let mut rng = Rng::new(1);
    let seeds = [b"bug! and more".to_vec()];
    let fails = |input: Vec<u8>| catch_unwind(|| (target.run)(&input)).is_err();
    assert!((0..1000).any(|_| fails(mutate(&mut rng, &seeds))));
}

/// `CRATON_WRITE_CORPUS=1` writes the seeds that are made by code.
#[test]
fn corpora_are_written_on_request() {
    if std::env::var_os("CRATON_WRITE_CORPUS").is_none() {
        return;
    }
    let folder = root().join("crates/sim/corpus");
    std::fs::create_dir_all(&folder).expect("writable");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).expect("writable");
    };
    for (name, bytes) in made_seeds() {
        write(&name, &bytes);
    }
}

fn made_seeds() -> Vec<(String, Vec<u8>)> {
    use base::{ChunkId, ClientId, ClusterId, DirId, Epoch, FileId};
    use master::cluster;
    use master_consensus::{RowCopy, StateMachine};
    use wire::control::{
        Attributes, MasterInfo, NameKey, NamespaceChange, OpId, Policy, Registration,
    };
    use wire::row::Fragment;
    use wire::sector::{AppendAt, format_append};
    use wire::token::{FUZZED_ISSUER, Issuer, IssuerTime, Rights, TokenKey};
    use {master_namespace as namespace, master_stream as stream};

    let mut made: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| made.push((name.to_owned(), bytes));
    let at = AppendAt { chunk: ChunkId::new(3), epoch: Epoch::new(2), base: 9, offset: 5 };
    for len in [1usize, 5000] {
        let mut sectors = vec![0; wire::sector::sectors_for(len) * 4096];
        format_append(at, &vec![7; len], &mut sectors);
        add(&format!("sector-{len}"), sectors);
        let parity = Fragment { k: 4, p: 2, number: 4 };
        let row = testing::rows::cell_of(at, &vec![7; 2 * len], parity, codec::block::Codec::Lz4);
        add(&format!("sector-row-{len}"), row);
    }
    let key = TokenKey::derive(&wire::handshake::ClusterKey::new([3; 32]));
    for (name, issuer) in [("token-issued", Issuer::WALL), ("token-of-issuer", FUZZED_ISSUER)] {
        let expiry = IssuerTime { issuer, seconds: 2_000_000_000 };
        add(name, key.issue(ChunkId::new(7), Rights::READ, Epoch::new(4), expiry).0.to_vec());
    }

    // See `sim::fuzz::fuzz_stream` for what these orders mean.
    let order = |kind, flags, body, content: &[u8]| {
        let len = content.len() as u8;
        [&[kind, flags, 1, 1, body, 0, 9, len][..], content].concat()
    };
    let call = order(4, 1, 8, &[1; 8]);
    add("stream-call", [&[0xfe][..], &call, &order(8, 0, 0, &[]), &order(7, 0, 0, &[])].concat());
    let split = [order(4, 0x11, 60, &[2; 60]), order(6, 0, 60, &[2; 60])].concat();
    add("stream-split", [&[0x0e][..], &split].concat());
    add("stream-raw", [&[0x11][..], &order(0, 0x80, 0, &[3; 100])].concat());
    add("stream-early", [&[0x21][..], &call].concat());

    add("raft_log-records", (0..40u8).flat_map(|kind| [kind, 3, 0, 1, kind]).collect());
    add("raft_log-zeros", vec![0; 4096]);
    for kind in 0..5u8 {
        add(&format!("raft_message-{kind}"), [&[kind][..], &[3, 1, 0, 1, 3, 9, 0, 0, 0]].concat());
    }
    add("peer_message-group", vec![1, 0, 1, 0, 7, 7, 7]);
    let mut standing = vec![0; 26];
    (standing[0], standing[8], standing[24]) = (3, 7, 1);
    add("peer_message-standing", standing);
    let mut invitation = vec![0; 17];
    (invitation[0], invitation[16]) = (1, 1);
    add("peer_message-invitation", invitation);
    let text = "craton master 2\ncluster clu_7f\nid 3\npartitions 4 2\nmember 00000000000000000000000000000077\n";
    add("identity-text", text.as_bytes().to_vec());
    let text = text.replace("master 2", "master 3") + "crc 0d4496a1\n";
    add("identity-checked", text.into_bytes());

    let place = NameKey { parent: DirId::ROOT, name: "name".to_owned() };
    let attributes = Attributes { mode: 0o755, mtime: 12 };
    let op = |seq| OpId { client: ClientId::new(3), seq, acked_below: 1 };
    let policy = Policy::strict(3);
    let (exclusive, replace, inherit) = (true, true, true);
    let changes = [
        NamespaceChange::Mkdir { place: place.clone(), attributes },
        NamespaceChange::Create {
            place: place.clone(),
            policy,
            attributes,
            exclusive,
            inherit: false,
        },
        NamespaceChange::Rename { from: place.clone(), to: place.clone(), replace },
        NamespaceChange::Link { links: vec![(FileId::new(1), place.clone())] },
        NamespaceChange::SetAttributes {
            place: place.clone(),
            attributes,
            len: Some(5),
            file: Some(FileId::new(1)),
        },
        NamespaceChange::Unlink { place: place.clone() },
        NamespaceChange::SetDirPolicy { dir: DirId::ROOT, policy: Some(policy) },
        NamespaceChange::Create { place: place.clone(), policy, attributes, exclusive, inherit },
        NamespaceChange::SetFilePolicy { place: place.clone(), file: FileId::new(2), policy },
    ];
    let mut names = namespace::Namespace::new(0, 1);
    for (index, change) in changes.into_iter().enumerate() {
        let command = namespace::Command::Change { op: op(index as u64 + 1), change };
        let bytes = namespace::encode_command(77, &command);
        names.apply(index as u64 + 1, &bytes).expect("it decodes");
        add(&format!("namespace_command-{index}"), bytes);
    }
    let rows = |copy: &RowCopy| copy.rows().clone();
    let mut copy = RowCopy::default();
    copy.follow(&mut names);
    for (at, (key, value)) in rows(&copy).into_iter().enumerate().take(4) {
        let row = [&[key.len() as u8][..], &key, &value].concat();
        add(&format!("namespace_row-{at}"), row);
    }
    add("namespace_question-fate", vec![2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    add("namespace_question-parent", [&[1][..], &[9; 16]].concat());

    let addr = "10.0.0.1:80".parse().expect("an address");
    let master = MasterInfo { id: 1, name: "m1".into(), addr };
    let formed = cluster::Formed {
        cluster: ClusterId::new(5),
        namespace_partitions: 1,
        stream_partitions: 1,
        formation: Default::default(),
    };
    let commands = [
        cluster::Command::Form { formed, masters: vec![master.clone()] },
        cluster::Command::Register(Registration { name: "cs1".into(), addr, domain: "d".into() }),
        cluster::Command::AddMaster(master),
        cluster::Command::RemoveMaster(1),
    ];
    let mut machine = cluster::ClusterMachine::new();
    for (index, command) in commands.iter().enumerate() {
        let bytes = cluster::encode_command(77, command);
        machine.apply(index as u64 + 1, &bytes).expect("it decodes");
        add(&format!("cluster_command-{index}"), bytes);
    }
    let mut copy = RowCopy::default();
    copy.follow(&mut machine);
    add("cluster_snapshot-formed", copy.rows()[&vec![1]].clone());

    let file = FileId::new(1);
    let actions = [
        stream::Action::Open { op: op(1), file, policy, fresh: Vec::new() },
        stream::Action::Seal { op: op(2), file },
        stream::Action::Delete { op: op(3), file, delete_at_ms: 5, file_memory_ms: 6 },
        stream::Action::SetPolicy { op: op(4), file: FileId::new(2), policy },
    ];
    let mut streams = stream::StreamMachine::new(0);
    for (index, action) in actions.into_iter().enumerate() {
        let bytes = stream::Command { clock_ms: 9, action }.encode();
        streams.apply(index as u64 + 1, &bytes).expect("it decodes");
        add(&format!("stream_command-{index}"), bytes);
    }
    let mut copy = RowCopy::default();
    copy.follow(&mut streams);
    let row = |(key, value): (Vec<u8>, Vec<u8>)| {
        [&[key.len() as u8, value.len() as u8][..], &key, &value].concat()
    };
    add("stream_rows-one", rows(&copy).into_iter().map(row).collect::<Vec<_>>().concat());
    made
}
