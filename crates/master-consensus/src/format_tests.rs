//! The formats of `docs/formats/raft.md`: the page, their fuzz functions with their corpus, and
//! what comes back from damaged bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderIdExt;
use proptest::prelude::*;
use runtime::Rng;

use super::fuzz::fuzz_log;
use super::limits::{PIECE_BYTES, RUN_CHUNK_LEN, RUN_PARTS_MAX};
use super::manifest::{self, RunFacts, fuzz_manifest};
use super::record::{PurgePayload, RecordKind, Stamp, encode, pad};
use super::rows::{Merge, Rows, Step, fuzz_rows};
use super::types::{Command, Entry, LogId, SnapshotMeta, Vote};

fn log_id(index: u64) -> LogId {
    let leader = openraft::impls::leader_id_std::LeaderId::<u64, u64>::new_committed(3, 1);
    LogId::new(leader, index)
}

fn bytes_of(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a vector grows as needed")
}

/// One record of each kind, as a log of one segment.
fn sample_log() -> Vec<u8> {
    let vote: Vote = openraft::Vote::new(3, 1);
    let payload = EntryPayload::Normal(Command(b"a command"[..].into()));
    let entry = Entry::new(log_id(0), payload);
    let purge = PurgePayload { purged: log_id(0), vote: Some(vote), committed: Some(log_id(0)) };
    let records = [
        (RecordKind::Open, Vec::new()),
        (RecordKind::Vote, bytes_of(&vote)),
        (RecordKind::Entry, bytes_of(&entry)),
        (RecordKind::Truncate, bytes_of(&Some(log_id(0)))),
        (RecordKind::Mark, bytes_of(&Some(log_id(0)))),
        (RecordKind::Purge, bytes_of(&purge)),
    ];
    let mut log = Vec::new();
    for ((kind, payload), seq) in records.into_iter().zip(1..) {
        encode(&mut log, kind, Stamp { seq, durable: seq, generation: 1 }, &payload);
    }
    pad(&mut log, 4048);
    log
}

fn sample_rows() -> Rows {
    let mut rows = Rows::default();
    rows.put(b"b", Some(b"two"));
    rows.put(b"a", Some(b"one"));
    rows.put(b"c", None);
    rows
}

fn sample_manifest() -> Vec<u8> {
    let meta = SnapshotMeta { last_log_id: Some(log_id(7)), ..SnapshotMeta::default() };
    manifest::encode(&meta, &[RunFacts { id: 5, len: 77, crc: 9 }])
}

type Fuzz = fn(&[u8]);

fn targets() -> Vec<(&'static str, Fuzz, Vec<u8>)> {
    vec![
        ("raft_log", fuzz_log, sample_log()),
        ("rows", fuzz_rows, sample_rows().encode()),
        ("manifest", fuzz_manifest, sample_manifest()),
    ]
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// The first file of each corpus is what this version writes; all others are run as they are.
/// `CRATON_BLESS=1` writes the first ones.
#[test]
fn the_corpus_is_survived_and_current() {
    for (target, fuzz, sample) in targets() {
        let first = corpus(target).join("version-current");
        if std::env::var_os("CRATON_BLESS").is_some() {
            fs::create_dir_all(corpus(target)).expect("makes it");
            fs::write(&first, &sample).expect("writes it");
        }
        assert_eq!(
            fs::read(&first).expect("it is there"),
            sample,
            "{target} changed: see the page"
        );
        for file in fs::read_dir(corpus(target)).expect("it is there") {
            fuzz(&fs::read(file.expect("a file").path()).expect("readable"));
        }
    }
}

#[test]
fn damaged_bytes_are_refused_or_read() {
    let mut rng = Rng::new(1);
    for (_, fuzz, sample) in targets() {
        let end = sample.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
        for _ in 0..3000 {
            let mut bytes = sample.clone();
            for _ in 0..rng.between(1, 4) {
                let at = rng.below(end as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            if rng.one_in(4) {
                bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            }
            fuzz(&bytes);
        }
    }
}

/// Result of merging the runs in pieces.
fn merged(runs: &[Vec<u8>], piece: usize, keep_gone: bool) -> Vec<u8> {
    let mut merge = Merge::new(runs.len(), keep_gone);
    let (mut fed, mut out) = (vec![0; runs.len()], Vec::new());
    loop {
        match merge.run().expect("rows") {
            Step::Feed(input) => {
                let end = runs[input].len().min(fed[input] + piece);
                merge.feed(input, &runs[input][fed[input]..end], end == runs[input].len());
                fed[input] = end;
            }
            Step::Full => out.append(&mut merge.take()),
            Step::Done => {
                out.append(&mut merge.take());
                return out;
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        targets().into_iter().for_each(|(_, fuzz, _)| fuzz(&bytes));
    }

    /// Runs merged are the map that their rows make, however they are cut.
    #[test]
    fn merged_runs_are_the_map(
        changes in proptest::collection::vec(
            proptest::collection::vec((0u8..20, proptest::option::of(0u8..5)), 0..30), 1..5),
        piece in 1usize..40,
    ) {
        let (mut map, mut runs) = (BTreeMap::new(), Vec::new());
        for run in &changes {
            let mut rows = Rows::default();
            for &(key, value) in run {
                let value = value.map(|len| vec![key; usize::from(len)]);
                rows.put(&[key], value.as_deref());
                map.insert(vec![key], value);
            }
            runs.push(rows.encode());
        }
        let mut expected = Rows::default();
        map.iter().for_each(|(key, value)| expected.put(key, value.as_deref()));
        prop_assert_eq!(merged(&runs, piece, true), expected.encode());
        let mut alive = Rows::default();
        let rows = map.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        rows.for_each(|(key, value)| alive.put(key, Some(value)));
        prop_assert_eq!(merged(&runs, piece, false), alive.encode());
    }
}

/// Rows of the first table behind a sentence of the page: field, first byte, bytes.
fn table_behind<'a>(page: &'a str, sentence: &str) -> Vec<(&'a str, usize, usize)> {
    let text = page.split_once(sentence).expect("the sentence is there").1;
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let bytes = cells[2].split(' ').next()?.parse().ok()?;
        Some((cells[3], cells[1].parse().ok()?, bytes))
    });
    rows.collect()
}

/// Bytes that differ, but for those of `sums`: checks, and what they cover.
fn differing(before: &[u8], after: &[u8], sums: std::ops::Range<usize>) -> Vec<usize> {
    let all = (0..before.len().max(after.len())).filter(|&at| before.get(at) != after.get(at));
    all.filter(|at| !sums.contains(at)).collect()
}

#[test]
fn records_manifests_and_rows_are_those_of_the_page() {
    let page = include_str!("../../../docs/formats/raft.md");
    let encoded = |kind, stamp, payload: &[u8]| {
        let mut bytes = Vec::new();
        encode(&mut bytes, kind, stamp, payload);
        bytes
    };
    let table = table_behind(page, "A record, magic");
    let expected = ["magic", "payload length", "sequence", "known-durable bound", "generation"];
    let expected =
        [&expected[..], &["kind", "zero", "check of bytes 0 to 31", "check of the payload"]];
    let expected = expected.concat();
    assert_eq!(table.len(), expected.len());
    let mut next = 0;
    for (&(field, at, bytes), name) in table.iter().zip(&expected) {
        assert!(field.starts_with(name) && at == next, "{field} at {at}, not {name} at {next}");
        next = at + bytes;
    }
    assert_eq!(next, super::record::RECORD_HEADER);
    let stamp = Stamp { seq: 0, durable: 0, generation: 0 };
    let plain = encoded(RecordKind::Open, stamp, &[7]);
    let all = u64::MAX;
    let longer = encoded(RecordKind::Open, stamp, &[7, 7]);
    for (row, after) in [
        (1, longer),
        (2, encoded(RecordKind::Open, Stamp { seq: all, ..stamp }, &[7])),
        (3, encoded(RecordKind::Open, Stamp { durable: all, ..stamp }, &[7])),
        (4, encoded(RecordKind::Open, Stamp { generation: u32::MAX, ..stamp }, &[7])),
        (5, encoded(RecordKind::Entry, stamp, &[7])),
    ] {
        let (field, at, bytes) = table[row];
        let differs = differing(&plain, &after, 32..42);
        assert_eq!(differs.first(), Some(&at), "{field}");
        assert!(differs.iter().all(|i| (at..at + bytes).contains(i)), "{field}: {differs:?}");
        let sum = u32::from_le_bytes(after[table[7].1..][..4].try_into().expect("4 bytes"));
        assert_eq!(sum, codec::crc32c(&after[..table[7].1]), "{field}");
    }
    let sum = u32::from_le_bytes(plain[table[8].1..][..4].try_into().expect("4 bytes"));
    assert_eq!(sum, codec::crc32c(&[7]));

    let table = table_behind(page, "A manifest, magic");
    let places: Vec<_> = table.iter().map(|row| (row.1, row.2)).collect();
    assert_eq!(places, [(0, 4), (4, 1), (5, 4), (9, 4), (13, 20)]);
    let meta = SnapshotMeta::default();
    let run = RunFacts { id: 0, len: 0, crc: 0 };
    let plain = manifest::encode(&meta, &[run]);
    for (facts, within) in [
        (RunFacts { id: all, ..run }, 13..21),
        (RunFacts { len: all, ..run }, 21..29),
        (RunFacts { crc: u32::MAX, ..run }, 29..33),
    ] {
        let after = manifest::encode(&meta, &[facts]);
        assert_eq!(differing(&plain, &after, 5..9), within.collect::<Vec<_>>());
    }
    assert_eq!((plain[4], plain[9..13].to_vec()), (1, vec![1, 0, 0, 0]));

    let table = table_behind(page, "A run is rows sorted by key");
    assert_eq!(table, [("key length", 0, 2), ("value length; 4294967295: the row is gone", 2, 4)]);
    let mut rows = Rows::default();
    rows.put(b"a", Some(b"bc"));
    assert_eq!(rows.encode(), *b"\x01\0\x02\0\0\0abc");
}

/// The page states the constants of the source.
#[test]
fn format_page_agrees_with_the_source() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/raft.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let log = sample_log();
    let mut facts = vec![
        format!("magic `{}`", String::from_utf8_lossy(&log[..4])),
        format!("magic `{}`", String::from_utf8_lossy(&sample_manifest()[..4])),
        format!("{} x 4048", super::limits::LOG_SEGMENT_LEN / 4048),
        format!("at most {PIECE_BYTES} bytes"),
        format!("a part has {} GiB", RUN_CHUNK_LEN >> 30),
        format!("run << {}", RUN_PARTS_MAX.trailing_zeros()),
        format!("{}: the row is gone", u32::MAX),
    ];
    use RecordKind::*;
    for kind in [Open, Entry, Truncate, Vote, Purge, Mark] {
        facts.push(format!("| {} | {kind:?} |", kind as u8));
    }
    let missing: Vec<_> = facts.iter().filter(|fact| !page.contains(*fact)).collect();
    assert!(missing.is_empty(), "docs/formats/raft.md does not say {missing:?}");
}
