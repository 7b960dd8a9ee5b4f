//! The formats: their page, their fuzz corpus, arbitrary bytes.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use runtime::Rng;

use super::block::{BLOCK_HEAD, BlockBuilder};
use super::edit::{Change, DataLog, FileInfo, RunInfo, put_change};
use super::footer::{FOOTER, Footer};
use super::frame::{
    Content, FILE_HEAD, Form, Head, RECORD_HEAD, Record, next_record, put_record, sorted_head,
};
use super::ops::{Op, put_op, read_ops};
use crate::bounds::Bounds;
use crate::fuzz;
use crate::limits;
use crate::options::Compression;
use crate::range::Range;
use crate::types::{FileNo, Name, Seq};

const FILE: FileNo = FileNo::new(3, 7);

type Target = fn(&[u8]);

fn ops() -> Vec<u8> {
    let mut out = Vec::new();
    put_op(&mut out, Op { key: b"volume/7/segment/1", value: Some(b"server 4") });
    put_op(&mut out, Op { key: b"volume/6", value: None });
    put_op(&mut out, Op { key: b"w", value: Some(b"") });
    out
}

fn changes() -> Vec<Change> {
    let file = |n: u32, first: &str, last: &str| FileInfo {
        file: FileNo::new(2, n),
        len: 70_000,
        top_at: 69_000,
        versions: 900,
        first_key: first.into(),
        last_key: last.into(),
        bounds: 0,
    };
    let run = |first, last, files| {
        Change::AddRun(RunInfo { first: Seq::new(first), last: Seq::new(last), files })
    };
    vec![
        Change::Owner { generation: 3 },
        Change::AddLog(FileNo::new(3, 1)),
        run(901, 1500, vec![file(4, "volume/1", "volume/3"), file(5, "volume/4", "volume/9")]),
        run(1, 900, vec![]),
        Change::DropRun(Seq::new(1)),
    ]
}

fn content() -> BlockBuilder {
    let mut builder = BlockBuilder::default();
    for n in 0..40u64 {
        let key = format!("volume/{n:04}/segment");
        let versions = [(Seq::new(90 + n), Some(&b"server 4, server 5, server 4"[..]))];
        let older = (n % 3 == 0).then_some((Seq::new(50), None));
        builder.add(key.as_bytes(), versions.into_iter().chain(older));
    }
    builder
}

fn manifest_head(form: Form, is_bounded: bool, owner: u64) -> Vec<u8> {
    let head = Head { form, is_bounded, file: FileNo::manifest(3), owner };
    head.encode(Content::Manifest).to_vec()
}

fn manifest() -> Vec<u8> {
    let mut out = manifest_head(Form::Plain, false, 0);
    crate::manifest::encode_edit(3, 0, &changes()[..4], &mut out);
    crate::manifest::encode_edit(3, 1, &[Change::DropLog(FileNo::new(3, 1))], &mut out);
    out
}

/// Changes of logs that have data.
fn data_changes() -> Vec<Change> {
    let log = |counter, len, data| DataLog { file: FileNo::new(3, counter), len, data };
    vec![
        Change::Owner { generation: 3 },
        Change::AddLog(FileNo::new(3, 2)),
        Change::ReplayLog { log: log(2, 70_000, 60_000) },
        Change::KeepLog { log: log(1, 1 << 28, 1 << 27) },
    ]
}

fn data_manifest() -> Vec<u8> {
    let mut out = manifest_head(Form::WithData, false, 7);
    crate::manifest::encode_edit(3, 0, &data_changes(), &mut out);
    crate::manifest::encode_edit(3, 1, &[Change::DropLog(FileNo::new(3, 1))], &mut out);
    out
}

/// Changes of references that have bounds.
fn bounded_changes() -> Vec<Change> {
    let [first, second] = [(b"volume/2".as_slice(), b"volume/5".as_slice()), (b"x", b"x/9")];
    let ranges = [first, second].map(|(from, to)| Range::between(from, to));
    let above = Range { lower: std::ops::Bound::Excluded(b"y".to_vec()), ..Range::all() };
    let Change::AddRun(mut run) = changes()[2].clone() else { panic!("it is a run") };
    run.files[0].bounds = 1;
    vec![
        Change::AddBounds { number: 1, bounds: Bounds::of(&ranges) },
        Change::AddBounds { number: 9, bounds: Bounds::of(&[above]) },
        Change::AddRun(run),
        Change::BoundLog { file: FileNo::new(3, 1), bounds: 9 },
        Change::BoundLog { file: FileNo::new(3, 2), bounds: 1 },
    ]
}

fn bounded_manifest() -> Vec<u8> {
    let mut out = manifest_head(Form::WithData, true, 7);
    let all = [data_changes(), bounded_changes()].concat();
    crate::manifest::encode_edit(3, 0, &all, &mut out);
    crate::manifest::encode_edit(3, 1, &[Change::DropLog(FileNo::new(3, 1))], &mut out);
    out
}

/// Entries of the corpus: name, target, bytes.
fn seeds() -> Vec<(&'static str, Target, Vec<u8>)> {
    let mut log = Vec::new();
    let (first, data) = (Record { seq: 77, count: 3, body: &ops(), data: 0 }, b"some data");
    let barrier = Record { seq: 80, count: 0, body: &[], data: 0 };
    put_record(&mut log, Form::Plain, FILE, &first);
    put_record(&mut log, Form::Plain, FILE, &barrier);
    let mut data_log = Vec::new();
    let with_data = Record { data: data.len() as u32, ..first };
    put_record(&mut data_log, Form::WithData, FILE, &with_data);
    data_log.extend_from_slice(data);
    put_record(&mut data_log, Form::WithData, FILE, &barrier);
    let mut edit = Vec::new();
    changes().iter().for_each(|change| put_change(&mut edit, change));
    let mut data_edit = Vec::new();
    data_changes().iter().for_each(|change| put_change(&mut data_edit, change));
    let mut bounded_edit = Vec::new();
    bounded_changes().iter().for_each(|change| put_change(&mut bounded_edit, change));
    let block = |compression| {
        let mut out = Vec::new();
        content().finish(FILE, 32, compression, &mut out);
        out
    };
    let plain = block(Compression::None);
    let footer = Footer { top_at: 4000, top_len: 96, keys: 40, versions: 54 };
    vec![
        ("file_head", fuzz::fuzz_file_head, sorted_head(FILE).to_vec()),
        ("log", fuzz::fuzz_log, log),
        ("data_log", fuzz::fuzz_data_log, data_log),
        ("ops", fuzz::fuzz_ops, ops()),
        ("manifest", fuzz::fuzz_manifest, manifest()),
        ("data_manifest", fuzz::fuzz_manifest, data_manifest()),
        ("bounded_manifest", fuzz::fuzz_manifest, bounded_manifest()),
        ("changes", fuzz::fuzz_changes, edit),
        ("data_changes", fuzz::fuzz_changes, data_edit),
        ("bounded_changes", fuzz::fuzz_changes, bounded_edit),
        ("block", fuzz::fuzz_block, plain.clone()),
        ("block_lz4", fuzz::fuzz_block, block(Compression::Lz4)),
        ("block_content", fuzz::fuzz_block_content, plain[BLOCK_HEAD..].to_vec()),
        ("footer", fuzz::fuzz_footer, footer.encode(FILE, 4096).to_vec()),
        ("name", fuzz::fuzz_name, Name::Log(FILE).to_string().into_bytes()),
    ]
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The corpus: the tests write nothing; `TABLE_WRITE_CORPUS=1` makes it again.
#[test]
fn the_corpus_is_what_this_version_writes_and_survives_changes() {
    let write = std::env::var_os("TABLE_WRITE_CORPUS").is_some();
    for (name, target, bytes) in seeds() {
        let path = corpus().join(name);
        if write {
            fs::create_dir_all(corpus()).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        let kept = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(kept == bytes, "{name}: the format has changed without a new version");
        target(&kept);
        replay_changed(name, &kept, target);
    }
}

/// Corrects the CRCs of changed bytes, so that decoding reaches what is behind them.
fn mend(name: &str, bytes: &mut [u8]) {
    let crc = |bytes: &[u8]| codec::crc32c(bytes).to_le_bytes();
    match name {
        "file_head" if bytes.len() == FILE_HEAD => {
            bytes[12..16].fill(0);
            let crc = crc(bytes);
            bytes[12..16].copy_from_slice(&crc);
        }
        "log" | "data_log" | "manifest" | "data_manifest" | "bounded_manifest" => {
            let mut at = if name.ends_with("log") { 0 } else { FILE_HEAD };
            let form = if name == "data_log" { Form::WithData } else { Form::Plain };
            let head_len = form.record_head();
            while let Some(rest) = bytes.get_mut(at..).filter(|rest| rest.len() >= head_len) {
                let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
                let end = (head_len + len).min(rest.len());
                let body = crc(&rest[head_len..end]);
                rest[4..8].copy_from_slice(&body);
                let head = crc(&rest[4..head_len]);
                rest[..4].copy_from_slice(&head);
                at += end;
            }
        }
        "block" | "block_lz4" if bytes.len() > BLOCK_HEAD => {
            let crc = super::frame::placed_crc(FILE, 32, &bytes[4..]).to_le_bytes();
            bytes[..4].copy_from_slice(&crc);
        }
        "footer" if bytes.len() == FOOTER => {
            bytes[12..16].fill(0);
            let crc = super::frame::placed_crc(FILE, 4096, bytes).to_le_bytes();
            bytes[12..16].copy_from_slice(&crc);
        }
        _ => {}
    }
}

/// Runs a target over changed copies of a corpus entry.
fn replay_changed(name: &str, kept: &[u8], target: Target) {
    let mut rng = Rng::new(11);
    for _ in 0..2000 {
        let mut changed = kept.to_vec();
        for _ in 0..rng.between(1, 4) {
            let at = rng.below(changed.len() as u64) as usize;
            changed[at] = if rng.one_in(2) { changed[at] ^ 1 << rng.below(8) } else { 255 };
        }
        if rng.one_in(4) {
            changed.truncate(rng.below(changed.len() as u64) as usize);
        }
        mend(name, &mut changed);
        target(&changed);
    }
}

/// A decoder that trusts a field which the CRC covers is found.
#[test]
#[should_panic(expected = "canary")]
fn the_canary_fails() {
    let (name, _, bytes) = seeds().into_iter().find(|seed| seed.0 == "footer").unwrap();
    replay_changed(name, &bytes, |bytes| {
        if let Ok(footer) = Footer::decode(FILE, 4096, bytes) {
            assert!(footer.keys == 40, "canary");
        }
    });
}

proptest! {
    #[test]
    fn arbitrary_bytes_break_no_decoder(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for (name, target, _) in seeds() {
            let mut bytes = bytes.clone();
            target(&bytes);
            mend(name, &mut bytes);
            target(&bytes);
        }
    }

    #[test]
    fn batches_come_back(
        ops in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 1..40),
             prop::option::of(prop::collection::vec(any::<u8>(), 0..300))), 0..20),
        seq in 0u64..1 << 60,
    ) {
        let mut body = Vec::new();
        for (key, value) in &ops {
            put_op(&mut body, Op { key, value: value.as_deref() });
        }
        let mut out = Vec::new();
        let put = Record { seq, count: ops.len() as u32, body: &body, data: 0 };
        put_record(&mut out, Form::Plain, FILE, &put);
        let next = next_record(Form::Plain, FILE, &out, 1 << 20);
        let Ok(super::frame::Next::Record(record)) = next else {
            panic!("a record does not come back");
        };
        let back = read_ops(record.body, record.count).unwrap();
        prop_assert!(record.seq == seq && back.len() == ops.len());
        for (op, (key, value)) in back.iter().zip(&ops) {
            prop_assert!(op.key == key && op.value == value.as_deref());
        }
    }

    #[test]
    fn blocks_come_back(
        entries in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 1..24),
            prop::collection::btree_map(
                0u64..1 << 40,
                prop::option::of(prop::collection::vec(any::<u8>(), 0..60)), 1..4),
            1..40),
        lz4 in any::<bool>(),
    ) {
        let mut builder = BlockBuilder::default();
        for (key, versions) in &entries {
            let versions = versions.iter().rev();
            builder.add(key, versions.map(|(&seq, value)| (Seq::new(seq), value.as_deref())));
        }
        let compression = if lz4 { Compression::Lz4 } else { Compression::None };
        let mut out = Vec::new();
        builder.finish(FILE, 9, compression, &mut out);
        let block = super::block::Block::decode(FILE, 9, &out).unwrap();
        prop_assert_eq!(block.len(), entries.len());
        for (index, (key, versions)) in entries.iter().enumerate() {
            prop_assert_eq!(&block.key(index), key);
            prop_assert_eq!(block.find(key), Some(index));
            let want = versions.iter().rev().map(|(&seq, value)| (Seq::new(seq), value.as_deref()));
            prop_assert!(block.versions(index).eq(want));
        }
    }
}

/// A manifest of a table with `count` files, whose keys have as many bytes as tables took when they
/// had that many files.
fn manifest_of(count: usize) -> Vec<u8> {
    let key = |number: usize| {
        let mut key = vec![0; limits::KEY_MAX_BEFORE];
        key[..8].copy_from_slice(&(number as u64).to_be_bytes());
        key
    };
    let files = (0..count).map(|number| FileInfo {
        file: FileNo::new(2, number as u32),
        len: 70_000,
        top_at: 69_000,
        versions: 900,
        first_key: key(2 * number),
        last_key: key(2 * number + 1),
        bounds: 0,
    });
    let run = RunInfo { first: Seq::new(1), last: Seq::new(900), files: files.collect() };
    let mut out = manifest_head(Form::Plain, false, 0);
    let changes = [Change::Owner { generation: 3 }, Change::AddRun(run)];
    crate::manifest::encode_edit(3, 0, &changes, &mut out);
    out
}

/// Tables had up to 65,536 files before keys became longer: they are opened.
#[test]
fn manifest_with_more_files_than_a_writer_adds_is_read() {
    for count in [limits::FILES_MAX + 1, limits::FILES_READ_MAX] {
        let layout = crate::manifest::decode(3, &manifest_of(count)).unwrap();
        assert_eq!(layout.files().count(), count);
    }
    assert!(crate::manifest::decode(3, &manifest_of(limits::FILES_READ_MAX + 1)).is_err());
}

/// The page states the constants of the source.
#[test]
fn format_page_agrees_with_the_source() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/table.md");
    let page = fs::read_to_string(page).unwrap();
    let text = |bytes: [u8; 8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut facts = vec![
        format!("format version {}", super::VERSION),
        format!("version {}; in all versions it stands here", super::VERSION),
        format!("CRC32C of the {FILE_HEAD} bytes"),
        format!("| {RECORD_HEAD} | | body |"),
        format!("record of version {} has 8 bytes more", super::VERSION_DATA),
        format!("then data ({} bytes at most)", limits::BATCH_DATA_MAX),
        format!("| {BLOCK_HEAD} | | content |"),
        format!("placed CRC of the {FOOTER} bytes"),
        format!("bodies of logs, {} bytes at most", limits::BATCH_BYTES_MAX),
        format!("bodies of manifests, {} bytes at most", limits::EDIT_BYTES_MAX),
        format!("key (bytes, 1 to {})", limits::KEY_MAX),
        format!("Readers take {} files a run at most", limits::FILES_READ_MAX),
        format!("none beyond {} to a table", limits::FILES_MAX),
        format!("each of {} bytes at most", limits::BOUND_BYTES_MAX),
        format!("has {} ranges at most", limits::BOUNDS_RANGES_MAX),
        format!("| {}, {} | forks |", super::VERSIONS_BOUNDED.0, super::VERSIONS_BOUNDED.1),
        format!("bytes ({} at most)", limits::VALUE_MAX),
        format!("bytes of content, unpacked, {} at most", limits::BLOCK_RAW_MAX),
        format!("then bits: {} a key", limits::FILTER_BITS_PER_KEY),
        format!("for n = 0 to {}:", limits::FILTER_PROBES - 1),
        "magic `CRTNTEND`".to_owned(),
    ];
    for content in [Content::Log, Content::Manifest, Content::Sorted] {
        facts.push(format!("`{}`", text(content.magic())));
    }
    for name in [Name::Log(FILE), Name::Manifest(3), Name::Sorted(FILE), Name::Draft(FILE)] {
        let kind = name.to_string().split('-').next().unwrap().to_owned();
        facts.push(format!("| `{kind}-"));
    }
    let mut all = changes();
    all.push(Change::DropLog(FILE));
    all.extend(bounded_changes());
    for change in all {
        let name = format!("{change:?}");
        let name = name.split([' ', '{', '(']).next().unwrap().to_owned();
        let mut code = Vec::new();
        put_change(&mut code, &change);
        facts.push(format!("| {} | {name} |", code[0]));
    }
    let missing: Vec<_> = facts.iter().filter(|fact| !page.contains(*fact)).collect();
    assert!(missing.is_empty(), "docs/formats/table.md does not say {missing:?}");
}
