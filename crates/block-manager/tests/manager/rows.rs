//! Rows of the manager's table.

use std::path::Path;

use block_manager::entity::{
    AttachedClient, Boots, Counters, Deleted, Family, PendingDelete, Segment, Server, Volume,
};
use block_manager::fuzz::fuzz_manager_row;
use block_manager::rows::{Key, Row, VERSION, Value};
use block_proto::BlockServerId;
use block_volume::ids::{SegmentId, VolumeId};
use proptest::prelude::*;
use runtime::Rng;

fn rows() -> Vec<(&'static str, Row)> {
    let segment = SegmentId { volume: VolumeId::new(7), index: 3 };
    let owner = Some(BlockServerId::new(2));
    let server = |addr: &str| {
        Value::Server(Server { name: "bs1".into(), addr: addr.parse().expect("an address") })
    };
    let attached = AttachedClient { epoch: 4, nonce: 9, holder: "front end f1".into() };
    let volume = Volume {
        nonce: 77,
        spec: super::spec("data", 5 << 30),
        attach_epoch: 4,
        owner_floor: 12,
        attached: vec![attached.clone(), AttachedClient { epoch: 5, ..attached }],
        family: Family::default(),
        deleted: None,
    };
    let parent = Some(VolumeId::new(7));
    let snapshot = Family { parent, hold_us: 1500, ..Family::default() };
    let clone = Family { clone_source: Some(VolumeId::new(8)), making: true, ..Family::default() };
    let counted = Family { clone_source_segments: Some(4), ..clone };
    let of = |family: Family| Value::Volume(Volume { family, ..volume.clone() });
    let deleted =
        Some(Deleted { at_ms: 1_700_000_000_000, until_ms: 1_700_086_400_000, left_ms: None });
    let left_ms = Some(86_000_000);
    let timed = deleted.map(|deleted| Deleted { left_ms, ..deleted });
    let timed = Value::Volume(Volume { deleted: timed, ..volume.clone() });
    let gone = Value::Volume(Volume { deleted, ..volume.clone() });
    let part = PendingDelete { volume: segment.volume, segment: Some(3) };
    let whole = PendingDelete { volume: segment.volume, segment: None };
    let id = BlockServerId::new(2);
    vec![
        ("counters", Row::put(Key::Counters, Value::Counters(Counters { volume: 8, server: 3 }))),
        ("server-v4", Row::put(Key::Server(id), server("127.0.0.1:7301"))),
        ("server-v6", Row::put(Key::Server(id), server("[fe80::1%4]:7301"))),
        ("owned", Row::put(Key::Segment(segment), Value::Segment(Segment { epoch: 5, owner }))),
        (
            "orphan",
            Row::put(Key::Segment(segment), Value::Segment(Segment { epoch: 6, owner: None })),
        ),
        ("trash", Row::put(Key::PendingDelete(part), Value::PendingDelete { nonce: 1 })),
        ("trash-whole", Row::put(Key::PendingDelete(whole), Value::PendingDelete { nonce: 1 })),
        ("volume", Row::put(Key::Volume(segment.volume), Value::Volume(volume.clone()))),
        ("volume-snapshot", Row::put(Key::Volume(segment.volume), of(snapshot))),
        ("volume-clone", Row::put(Key::Volume(segment.volume), of(clone))),
        ("volume-clone-counted", Row::put(Key::Volume(segment.volume), of(counted))),
        ("volume-deleted", Row::put(Key::Volume(segment.volume), gone)),
        ("volume-deleted-timed", Row::put(Key::Volume(segment.volume), timed)),
        ("boots", Row::put(Key::Boots(id), Value::Boots(Boots { given: 4, heard: 3 }))),
        ("done", Row::put(Key::Done(segment.volume), Value::Done(vec![5, u64::MAX]))),
    ]
}

/// As the corpus has it: the key's length, the key, the value.
fn entry(row: &Row) -> Vec<u8> {
    let (key, value) = (row.key_bytes(), row.value_bytes().expect("it has a value"));
    [&[key.len() as u8], key.as_slice(), value.as_slice()].concat()
}

#[test]
fn rows_decode_to_what_was_encoded() {
    for (name, row) in rows() {
        let value = row.value_bytes().expect("it has a value");
        assert_eq!(Row::decode(&row.key_bytes(), &value), Ok(row.clone()), "{name}");
        for cut in 0..value.len() {
            assert!(Row::decode(&row.key_bytes(), &value[..cut]).is_err(), "{name} cut at {cut}");
        }
    }
}

#[test]
fn row_of_another_version_is_refused_with_its_version() {
    let (_, row) = rows().remove(0);
    let mut value = row.value_bytes().expect("it has a value");
    value[0] = VERSION + 1;
    let error = Row::decode(&row.key_bytes(), &value).expect_err("another version");
    assert_eq!(error.version, Some(VERSION + 1));
    assert!(error.to_string().contains("use the program that wrote it"), "{error}");
}

#[test]
fn format_page_matches_the_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/block-manager.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    assert!(page.contains(&format!("**Version {VERSION}.**")), "the page is of another version");
    for (name, row) in rows() {
        let letter = char::from(row.key_bytes()[0]);
        assert!(page.contains(&format!("| `{letter}`")), "the page has no row of {name}");
    }
    // Lengths that the format page adds up.
    let len = |at: usize| rows()[at].1.value_bytes().expect("a value").len();
    assert_eq!((len(0), len(1), len(2)), (1 + 8 + 4, 1 + 5 + 7, 1 + 5 + 23));
    assert_eq!((len(3), len(5)), (1 + 8 + 4, 1 + 8));
    let (fixed, texts) = (1 + 8 + 8 + 8 + 4 + 8 + 3 + 32 + 8 + 8 + 1, 6 + 2 * (16 + 14));
    assert_eq!(len(7), fixed + texts);
    assert_eq!((len(8), len(9)), (len(7) + 25, len(7) + 25));
    assert_eq!((len(10), len(11)), (len(7) + 29, len(7) + 16));
    assert_eq!((len(12), len(13), len(14)), (len(11) + 8, 1 + 16, 1 + 1 + 16));
}

#[test]
fn the_corpus_is_what_this_version_writes_and_survives_changes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/manager_row");
    let write = std::env::var_os("BLOCK_WRITE_CORPUS").is_some();
    let mut rng = Rng::new(3);
    for (name, row) in rows() {
        let (path, bytes) = (dir.join(name), entry(&row));
        if write {
            std::fs::create_dir_all(&dir).expect("it is made");
            std::fs::write(&path, &bytes).expect("it is written");
        }
        let kept = std::fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(kept, bytes, "{name} is encoded in another way");
        fuzz_manager_row(&kept);
        for _ in 0..2000 {
            let mut changed = kept.clone();
            for _ in 0..rng.between(1, 4) {
                let at = rng.below(changed.len() as u64) as usize;
                changed[at] ^= 1 << rng.below(8);
            }
            changed.truncate(rng.between(1, changed.len() as u64) as usize);
            fuzz_manager_row(&changed);
        }
    }
}

/// Older programs made volumes with segments that no server opens: they are listed and removed.
#[test]
fn stored_volume_with_segments_above_the_bound_is_decoded() {
    let (_, row) = rows().into_iter().find(|(name, _)| *name == "volume").expect("it is there");
    let Value::Volume(mut volume) = row.value.clone().expect("it has a value") else {
        unreachable!("a volume's row")
    };
    volume.spec.geometry.group_bytes = 64 << 40;
    volume.spec.geometry.segments_per_group = 1;
    let row = Row::put(row.key, Value::Volume(volume));
    let value = row.value_bytes().expect("it has a value");
    assert_eq!(Row::decode(&row.key_bytes(), &value), Ok(row));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        fuzz_manager_row(&bytes);
    }
}
