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

/// What merging the runs in pieces gives.
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
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
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

/// The page states the constants of the source.
#[test]
fn the_page_tells_what_the_source_has() {
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
