//! Any bytes may come: commands and snapshots.

use base::{ClientId, ClusterId, DirId};
use master::cluster;
use master_consensus::{RowCopy, StateMachine};
use master_namespace::{
    Action, Command, Entry, IntentId, Namespace, encode_command, fuzz_command, fuzz_row,
};
use proptest::prelude::*;
use runtime::Rng;
use wire::control::{Attributes, MasterInfo, NameKey, NamespaceChange, OpId, Policy, Registration};

fn samples() -> Vec<Vec<u8>> {
    let place = NameKey { parent: DirId::ROOT, name: "name".to_owned() };
    let attributes = Attributes { mode: 0o755, mtime: 12 };
    let op = OpId { client: ClientId::new(3), seq: 4, acked_below: 2 };
    let intent = IntentId { partition: 0, index: 1 };
    let entry = Entry::Dir { dir: DirId::new(9), attributes };
    let change = |change| Command::Change { op, change };
    let commands = [
        change(NamespaceChange::Mkdir { place: place.clone(), attributes }),
        change(NamespaceChange::Create {
            place: place.clone(),
            policy: Policy::strict(3),
            attributes,
            exclusive: true,
            inherit: false,
        }),
        change(NamespaceChange::Rename { from: place.clone(), to: place.clone(), replace: true }),
        change(NamespaceChange::SetDirPolicy { dir: DirId::ROOT, policy: None }),
        change(NamespaceChange::SetDirPolicy { dir: DirId::ROOT, policy: Some(Policy::rep(3)) }),
        change(NamespaceChange::SetFilePolicy {
            place: place.clone(),
            file: base::FileId::new(1),
            policy: Policy::rep(2),
        }),
        change(NamespaceChange::Link { links: vec![(base::FileId::new(1), place.clone())] }),
        change(NamespaceChange::SetAttributes {
            place: place.clone(),
            attributes,
            len: Some(5),
            file: None,
        }),
        change(NamespaceChange::SetAttributes {
            place: place.clone(),
            attributes,
            len: None,
            file: Some(base::FileId::new(1)),
        }),
        Command::Prepare {
            intent: IntentId { partition: 1, index: 5 },
            floor: 2,
            stage: 0,
            actions: vec![
                Action::Put { place: place.clone(), entry: entry.clone(), replace: true },
                Action::Take { place, entry },
                Action::NewDir { dir: DirId::new(8), parent: DirId::ROOT },
                Action::EndDir { dir: DirId::ROOT },
                Action::Count { files: vec![(base::FileId::new(1), u32::MAX)] },
                Action::RenameTurn,
            ],
        },
        Command::Decide {
            intent,
            commit: true,
            participants: vec![1, 2],
            outcome: Ok(master_namespace::Answer::Done),
        },
        Command::Resolve { intent: IntentId { partition: 1, index: 5 }, floor: 9, commit: true },
        Command::Forget { intent },
        Command::Deleted { files: vec![base::FileId::new(1)] },
    ];
    commands.iter().map(|it| encode_command(77, it)).collect()
}

/// Commands of the cluster group, encoded.
fn samples_of_cluster() -> Vec<Vec<u8>> {
    let addr = "10.0.0.1:80".parse().expect("an address");
    let master = MasterInfo { id: 1, name: "m1".into(), addr };
    let formed = cluster::Formed {
        cluster: ClusterId::new(5),
        namespace_partitions: 1,
        stream_partitions: 1,
        formation: Default::default(),
    };
    let of_cluster = [
        cluster::Command::Form { formed, masters: vec![master.clone()] },
        cluster::Command::Register(Registration { name: "cs1".into(), addr, domain: "d".into() }),
        cluster::Command::AddMaster(master),
        cluster::Command::RemoveMaster(1),
    ];
    of_cluster.iter().map(|it| cluster::encode_command(77, it)).collect()
}

#[test]
fn damaged_commands_are_refused_or_applied() {
    let mut rng = Rng::new(1);
    for sample in samples().into_iter().chain(samples_of_cluster()) {
        fuzz_command(&sample);
        cluster::fuzz_command(&sample);
        for _ in 0..2000 {
            let mut bytes = sample.clone();
            for _ in 0..rng.between(1, 4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            if rng.one_in(4) {
                bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            }
            fuzz_command(&bytes);
            cluster::fuzz_command(&bytes);
        }
    }
}

#[test]
fn damaged_rows_are_refused_or_loaded() {
    let mut state = Namespace::new(0, 1);
    for (index, sample) in samples().iter().enumerate() {
        state.apply(index as u64 + 1, sample).expect("a sample decodes");
    }
    let mut copy = RowCopy::default();
    copy.follow(&mut state);
    for (key, value) in copy.rows() {
        let whole = [&[key.len() as u8][..], key, value].concat();
        fuzz_row(&whole);
        assert!(state.blank().load(&key[..key.len() - 1], value).is_err() || key.len() > 17);
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fuzz_row(&bytes);
            fuzz_row(&whole[..at]);
        }
    }
    for seed in samples() {
        cluster::fuzz_snapshot(&seed);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_command(&bytes);
        fuzz_row(&bytes);
        cluster::fuzz_command(&bytes);
        cluster::fuzz_snapshot(&bytes);
    }
}
