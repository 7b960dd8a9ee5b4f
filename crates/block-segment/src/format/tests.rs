//! The formats: their page, their fuzz corpus, arbitrary bytes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fuzz::{self, FILE, IDENTITY};
use block_volume::dedup::{DedupWindows, RequestId};
use block_volume::ids::{FileNo, Identity, Seq};
use block_volume::limits::BLOCK;
use block_volume::record;
use block_volume::record::{
    FILE_HEAD, Head, MAGIC, Next, PACKED_MAX, RECORD, RECORD_HEAD, RECORD_UNITS, UNIT, What,
    file_head, next_record, put_stored, read_block, repack,
};
use codec::crc32c;
use proptest::prelude::*;
use runtime::Rng;
use table::Redundancy;

use super::page::{Locs, decode_page, encode_page};
use super::state::{FileState, Role, SegmentState};
use super::txn::{Txn, Watermark};
use crate::limits::{PAGE_BLOCKS, TXN_UPDATES_MAX};
use crate::types::{Loc, Update};

type Target = fn(&[u8]);

fn file(number: u32) -> FileNo {
    FileNo::new(number).unwrap()
}

fn head(what: What, unit: u32, counter: u64, lba: u32, count: u32, data: &[u8]) -> Head {
    let data_crc = if data.is_empty() { 0 } else { crc32c(data) };
    let seq = Seq { epoch: 9, counter };
    let (identity, file, tag) = (IDENTITY, FILE, None);
    Head { what, data_crc, identity, file, unit, seq, lba, count, tag }
}

/// A DataFile of a block, a trim and zeroes.
fn data_file() -> Vec<u8> {
    let data: Vec<u8> = (0..BLOCK).map(|n| n as u8 ^ (n >> 8) as u8).collect();
    let mut out = file_head(IDENTITY, FILE, 9).to_vec();
    out.extend_from_slice(&head(What::Data, 1, 100, 17, 1, &data).encode());
    out.extend_from_slice(&data);
    let next = 1 + RECORD_UNITS;
    out.extend_from_slice(&head(What::Trim, next, 101, 4, 1000, &[]).encode());
    out.extend_from_slice(&head(What::Zero, next + 1, 102, 0, u32::MAX, &[]).encode());
    out
}

/// A DataFile of collection: a block that packs, and one that does not.
fn packed_file() -> Vec<u8> {
    let text: Vec<u8> = (0..BLOCK).map(|n| b"a block of a volume "[n as usize % 20]).collect();
    let mut noise = vec![0; BLOCK as usize];
    Rng::new(5).fill(&mut noise);
    let mut out = file_head(IDENTITY, FILE, 9).to_vec();
    for (lba, data) in [(17, &text), (18, &noise)] {
        let unit = (out.len() as u64 / UNIT) as u32;
        let plain = head(What::Data, unit, 200 - u64::from(lba), lba, 1, data);
        let (what, stored) = repack(&plain, data, true).expect("it is sound");
        put_stored(&mut out, Head { what, ..plain }, &stored);
    }
    out
}

/// The head of a record that is the last one of a client's change.
fn marked_head() -> Head {
    let tag = Some(record::RequestTag { attachment: 12, seq: 3_000_000_000, last: true });
    Head { tag, ..head(What::Zero, 77, 300, 5, 9, &[]) }
}

/// The window of an attachment that has done some changes, and one in part.
fn origins() -> Vec<u8> {
    let mut windows = DedupWindows::default();
    let request = |seq| RequestId { attachment: 12, seq };
    (1000..1100).for_each(|seq| windows.note(request(seq), 0..1, seq % 7 != 0));
    windows.note(request(1050), 4..9, false);
    let (_, bytes) = windows.take_changed().pop().expect("it has changed");
    bytes.expect("it is known")
}

fn locs() -> Locs {
    let mut locs = [Loc::HOLE; PAGE_BLOCKS as usize];
    for n in 0..40 {
        locs[n] = Loc::new(file(5), 1 + 65 * n as u32); // In the order of writing.
        locs[100 + n] = Loc::new(file(6), 7 + n as u32); // One unit apart.
        locs[200 + 2 * n] = Loc::new(file(n as u32 + 1), 900);
        locs[400 + n] = Loc::ZERO;
    }
    locs
}

fn txn() -> Txn {
    let at = Loc::new(file(5), 66);
    Txn {
        seq: Seq { epoch: 9, counter: 1 << 40 },
        marks: vec![Watermark { file: file(5), end: 1000, blocks: 15 }],
        updates: vec![
            Update::Data { lba: 17, count: 3, at },
            Update::Clear { lba: 0, count: u32::MAX, to: Loc::HOLE },
            Update::Clear { lba: 9, count: 1, to: Loc::ZERO },
            Update::Move { lba: 3, from: at, to: Loc::new(file(8), 1) },
        ],
    }
}

/// Entries of the corpus: name, target, bytes.
fn seeds() -> Vec<(&'static str, Target, Vec<u8>)> {
    let segment =
        SegmentState { identity: IDENTITY, bytes: 32 << 30, epoch: 9, next_file: 12, counter: 777 };
    let state = FileState {
        generation: 4,
        role: Role::Collected,
        sealed: true,
        units: 8_000_000,
        blocks: 123_000,
        live: 99_000,
        born: 500_000,
        clone_source: 0,
        code: None,
    };
    let code = Some(Redundancy { replicas: 11, data: 8 });
    let coded = FileState { code, ..state };
    let whole = data_file();
    vec![
        ("device_file", fuzz::fuzz_data_file, whole.clone()),
        ("device_file-packed", fuzz::fuzz_data_file, packed_file()),
        (
            "device_record_head",
            fuzz::fuzz_record_head,
            whole[FILE_HEAD..FILE_HEAD + RECORD_HEAD].to_vec(),
        ),
        ("device_page", fuzz::fuzz_page, encode_page(&locs())),
        ("device_txn", fuzz::fuzz_txn, txn().encode()),
        ("device_state-segment", fuzz::fuzz_state, segment.encode()),
        ("device_state-file", fuzz::fuzz_state, state.encode()),
        (
            "device_state-linked",
            fuzz::fuzz_state,
            FileState { clone_source: 0x1122_3344_5566_7788, ..state }.encode(),
        ),
        ("device_state-coded", fuzz::fuzz_state, coded.encode()),
        ("device_name", fuzz::fuzz_name, FILE.name(4).into_bytes()),
        ("device_record_head-origin", fuzz::fuzz_record_head, marked_head().encode().to_vec()),
        ("device_origins", fuzz::fuzz_origins, origins()),
    ]
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The corpus: the tests write nothing; `BLOCK_WRITE_CORPUS=1` writes it again.
#[test]
fn the_corpus_is_what_this_version_writes_and_survives_changes() {
    let write = std::env::var_os("BLOCK_WRITE_CORPUS").is_some();
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

/// Makes the CRCs of changed bytes valid, so that the fields behind them are decoded too.
fn mend(name: &str, bytes: &mut [u8]) {
    let mend_record = |head: &mut [u8]| {
        let crc = crc32c(&head[4..RECORD_HEAD]).to_le_bytes();
        head[..4].copy_from_slice(&crc);
    };
    match name {
        "device_record_head" | "device_record_head-origin" if bytes.len() >= RECORD_HEAD => {
            mend_record(bytes);
        }
        "device_file-packed" if bytes.len() >= FILE_HEAD + RECORD_HEAD => {
            mend_record(&mut bytes[FILE_HEAD..FILE_HEAD + RECORD_HEAD]);
        }
        "device_file" if bytes.len() >= FILE_HEAD => {
            bytes[12..16].fill(0);
            let crc = crc32c(&bytes[..FILE_HEAD]).to_le_bytes();
            bytes[12..16].copy_from_slice(&crc);
            let first = FILE_HEAD;
            if let Some(record) = bytes.get_mut(first..first + RECORD) {
                let crc = crc32c(&record[RECORD_HEAD..]).to_le_bytes();
                record[4..8].copy_from_slice(&crc);
                mend_record(record);
            }
            for at in [first + RECORD, first + RECORD + RECORD_HEAD] {
                if let Some(record) = bytes.get_mut(at..at + RECORD_HEAD) {
                    mend_record(record);
                }
            }
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
    let (name, _, bytes) = seeds().swap_remove(2);
    replay_changed(name, &bytes, |bytes| {
        if let Some(Ok(head)) = bytes.first_chunk().map(Head::decode) {
            assert!(head.lba == 17, "canary");
        }
    });
}

/// A record is found at its location only, and any bit of it counts.
#[test]
fn block_is_read_at_its_own_location_only() {
    let whole = data_file();
    let record = &whole[FILE_HEAD..FILE_HEAD + RECORD];
    let good = read_block(IDENTITY, FILE, 1, 17, record).unwrap();
    assert_eq!(good, &record[RECORD_HEAD..]);
    let other = Identity { segment: 4, ..IDENTITY };
    assert!(read_block(other, FILE, 1, 17, record).is_err());
    assert!(read_block(IDENTITY, file(6), 1, 17, record).is_err());
    assert!(read_block(IDENTITY, FILE, 2, 17, record).is_err());
    assert!(read_block(IDENTITY, FILE, 1, 18, record).is_err());
    for cut in [0, RECORD_HEAD - 1, RECORD_HEAD, RECORD - 1] {
        let need = if cut < RECORD_HEAD { RECORD_HEAD } else { RECORD };
        assert_eq!(next_record(IDENTITY, FILE, 1, &record[..cut]), Ok(Next::Partial(need)));
        assert!(read_block(IDENTITY, FILE, 1, 17, &record[..cut]).is_err());
    }
    for bit in (0..RECORD * 8).filter(|bit| *bit < RECORD_HEAD * 8 || bit % 97 == 0) {
        let mut bad = record.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(read_block(IDENTITY, FILE, 1, 17, &bad).is_err(), "bit {bit}");
    }
}

#[test]
fn packed_blocks_are_read_back() {
    let whole = packed_file();
    let first = &whole[FILE_HEAD..];
    let Ok(Next::Record(head, _)) = next_record(IDENTITY, FILE, 1, first) else {
        panic!("no record");
    };
    assert!(matches!(head.what, What::Packed(len) if len < 200) && head.lba == 17, "{head:?}");
    let block = read_block(IDENTITY, FILE, 1, 17, first).unwrap();
    assert!(block.starts_with(b"a block of a volume a") && block.len() as u64 == BLOCK);
    let unit = 1 + (head.record_len() as u64 / UNIT) as u32;
    let second = &first[head.record_len()..];
    assert_eq!(second.len(), RECORD); // It would not get smaller.
    assert_eq!(*read_block(IDENTITY, FILE, unit, 18, second).unwrap(), second[RECORD_HEAD..]);
    for bit in 0..head.record_len() * 8 {
        let mut bad = first[..head.record_len()].to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        let read = read_block(IDENTITY, FILE, 1, 17, &bad);
        // LZ4 has several encodings of the same bytes; only the decoded bytes count.
        assert!(read.is_err() || read == Ok(block.clone()), "bit {bit}");
    }
}

fn any_loc() -> impl Strategy<Value = Loc> {
    prop_oneof![
        Just(Loc::HOLE),
        Just(Loc::ZERO),
        (1u32..=u32::MAX, any::<u32>()).prop_map(|(number, unit)| Loc::new(file(number), unit)),
    ]
}

fn any_update() -> impl Strategy<Value = Update> {
    let place = || (1u32..=u32::MAX, any::<u32>()).prop_map(|(n, unit)| Loc::new(file(n), unit));
    let range = || (0u32..1 << 31, 1u32..1 << 31);
    prop_oneof![
        (range(), place()).prop_map(|((lba, count), at)| Update::Data { lba, count, at }),
        (range(), any::<bool>()).prop_map(|((lba, count), zero)| {
            Update::Clear { lba, count, to: if zero { Loc::ZERO } else { Loc::HOLE } }
        }),
        (any::<u32>(), place(), place()).prop_map(|(lba, from, to)| Update::Move { lba, from, to }),
    ]
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
    fn pages_decode_to_what_was_encoded(
        runs in prop::collection::vec((any_loc(), 1usize..100, any::<bool>()), 0..40),
    ) {
        let mut locs = [Loc::HOLE; PAGE_BLOCKS as usize];
        let mut at = 0;
        for (loc, len, follow) in runs {
            for n in 0..len.min(locs.len() - at) {
                locs[at] = if follow { loc.plus(n as u32) } else { loc };
                at += 1;
            }
        }
        prop_assert_eq!(*decode_page(&encode_page(&locs)).unwrap(), locs);
    }

    #[test]
    fn batches_decode_to_what_was_encoded(
        updates in prop::collection::vec(any_update(), 0..40),
        marks in prop::collection::vec((1u32..=u32::MAX, any::<u32>(), any::<u32>()), 0..3),
        (epoch, counter) in any::<(u64, u64)>(),
    ) {
        let marks = marks.into_iter().map(|(n, end, blocks)| Watermark { file: file(n), end, blocks });
        let txn = Txn { seq: Seq { epoch, counter }, marks: marks.collect(), updates };
        let bytes = txn.encode();
        // The bound on a batch bounds its bytes.
        prop_assert!(bytes.len() <= 24 + 48 + 26 * txn.updates.len());
        prop_assert_eq!(Txn::decode(&bytes), Ok(txn));
    }
}

/// Issue 10, 3.3: programs wrote batches above the limit of today.
#[test]
fn batch_above_the_present_limit_of_updates_is_read() {
    let clear = |lba| Update::Clear { lba, count: 1, to: Loc::HOLE };
    let updates: Vec<Update> = (0..3 * TXN_UPDATES_MAX as u32).map(|n| clear(2 * n)).collect();
    let txn = Txn { seq: Seq { epoch: 1, counter: 2 }, marks: Vec::new(), updates };
    let bytes = txn.encode();
    assert!(bytes.len() <= table::limits::VALUE_MAX, "the table took it: {} bytes", bytes.len());
    assert_eq!(Txn::decode(&bytes), Ok(txn));
}

/// The page states the constants of the source.
#[test]
fn format_page_has_the_constants_of_the_source() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/block.md");
    let page = fs::read_to_string(page).unwrap();
    let facts = [
        format!("format version {}", record::VERSION),
        format!("magic `{}`", String::from_utf8(MAGIC.to_vec()).unwrap()),
        format!("CRC32C of the {FILE_HEAD} bytes"),
        format!("CRC32C of bytes 4 to {RECORD_HEAD}"),
        format!("*unit* is {UNIT} bytes"),
        format!("{RECORD} bytes, {RECORD_UNITS} units"),
        format!("pages of {PAGE_BLOCKS} blocks"),
        format!("{TXN_UPDATES_MAX} updates at most"),
        format!("{PACKED_MAX} bytes at most"),
    ];
    for fact in facts {
        assert!(page.contains(&fact), "the page does not say: {fact}");
    }
    // Each field is at the offset on the page: bytes that differ identify the field.
    let rows = page.split("**Records:**").nth(1).expect("the table of a record's head");
    let rows = rows.split("\n\n").nth(1).expect("the table").lines().skip(2);
    let base = head(What::Data, 1, 100, 17, 1, b"");
    let seq = Seq { epoch: u64::MAX, counter: 100 };
    let later = Seq { epoch: 9, counter: u64::MAX };
    let volume = Identity { volume: u64::MAX, ..IDENTITY };
    let segment = Identity { segment: u32::MAX, ..IDENTITY };
    let mark = record::RequestTag { attachment: u32::MAX, seq: 0, last: false };
    let fields = [
        ("data CRC", Head { data_crc: u32::MAX, ..base }),
        ("kind", Head { what: What::Trim, ..base }),
        ("packed", Head { what: What::Packed(u16::MAX), ..base }),
        ("file", Head { file: file(u32::MAX), ..base }),
        ("volume", Head { identity: volume, ..base }),
        ("segment", Head { identity: segment, ..base }),
        ("unit", Head { unit: u32::MAX, ..base }),
        ("epoch", Head { seq, ..base }),
        ("counter", Head { seq: later, ..base }),
        ("LBA", Head { lba: u32::MAX, ..base }),
        ("count", Head { count: u32::MAX, ..base }),
        ("attachment", Head { tag: Some(mark), ..base }),
    ];
    let mut found = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let Some((_, changed)) = fields.iter().find(|(name, _)| cells[3].starts_with(name)) else {
            continue;
        };
        let (at, len): (usize, usize) = (cells[1].parse().unwrap(), cells[2].parse().unwrap());
        let (was, is) = (base.encode(), changed.encode());
        let differs = |at: &usize| was[*at] != is[*at];
        // A packed one has its own kind, too.
        let kind = |at: &usize| cells[3].starts_with("packed") && *at == 8;
        let places: Vec<usize> = (4..RECORD_HEAD).filter(differs).filter(|at| !kind(at)).collect();
        assert!(!places.is_empty() && places.iter().all(|p| (at..at + len).contains(p)), "{row}");
        found += 1;
    }
    assert_eq!(found, fields.len());
}
