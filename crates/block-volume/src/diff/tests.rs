//! The stream: its page, its corpus, arbitrary and damaged bytes.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use runtime::Rng;

use super::*;

fn head(base: Option<&str>) -> Head {
    let base = base.map(str::to_owned);
    Head { id: 0x1122_3344_5566_7788, bytes: 64 << 20, base, snapshot: "tuesday".to_owned() }
}

fn items() -> Vec<Item> {
    vec![
        Item::Data { offset: 0, len: 2 * BLOCK },
        Item::Hole { offset: 1 << 20, len: 1 << 20 },
        Item::Data { offset: 16 * BLOCK, len: BLOCK },
        Item::Zero { offset: 60 << 20, len: BLOCK },
    ]
}

/// A stream of these, and where its records begin.
fn stream(head: &Head, items: &[Item]) -> (Vec<u8>, Vec<usize>) {
    let (mut out, mut writer) = (head.encode(), Writer::new(head));
    let mut starts = Vec::new();
    for &item in items {
        let data: Vec<u8> = match item {
            Item::Data { len, .. } => (0..len).map(|n| (n % 251) as u8).collect(),
            _ => Vec::new(),
        };
        starts.push(out.len());
        out.extend(writer.record(item, &data));
        out.extend(data);
    }
    starts.push(out.len());
    out.extend(writer.end());
    (out, starts)
}

/// Reads a whole stream.
fn read(bytes: &[u8]) -> Result<(Head, Vec<Item>), DecodeError> {
    let (head, len) = Head::decode(bytes)?.ok_or(DecodeError::Truncated)?;
    let (mut reader, mut rest, mut items) = (Reader::new(&head), &bytes[len..], Vec::new());
    while !reader.ended() {
        let (record, behind) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        let item = reader.record(record)?;
        rest = behind;
        if let Item::Data { len, .. } = item {
            let data = rest.get(..len as usize).ok_or(DecodeError::Truncated)?;
            reader.check(data)?;
            rest = &rest[data.len()..];
        }
        items.push(item);
    }
    match rest.is_empty() {
        true => Ok((head, items)),
        false => Err(DecodeError::Damaged("behind")),
    }
}

#[test]
fn streams_decode_to_what_was_encoded() {
    for base in [None, Some("monday")] {
        let (bytes, _) = stream(&head(base), &items());
        let (seen, mut back) = read(&bytes).expect("it is whole");
        assert_eq!(seen, head(base));
        assert_eq!(back.pop(), Some(Item::End { records: 4, data: 3 * BLOCK }));
        assert_eq!(back, items());
    }
    let (bytes, _) = stream(&head(None), &[]);
    assert_eq!(read(&bytes).expect("it is whole").1, [Item::End { records: 0, data: 0 }]);
}

#[test]
fn no_byte_of_a_stream_can_be_changed_or_left_out() {
    let (whole, starts) = stream(&head(Some("monday")), &items());
    for at in 0..whole.len() {
        for bit in [0, 7] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            assert!(read(&bytes).is_err(), "bit {bit} of byte {at}");
        }
    }
    for len in 0..whole.len() {
        assert_eq!(read(&whole[..len]), Err(DecodeError::Truncated), "{len} bytes");
    }
    assert!(read(&[&whole[..], b"x"].concat()).is_err());
    for (n, pair) in starts.windows(2).enumerate() {
        let without = [&whole[..pair[0]], &whole[pair[1]..]].concat();
        assert!(read(&without).is_err(), "without record {n}");
    }
    // Records of another stream are none of this.
    let other = Head { id: 9, ..head(Some("monday")) };
    let (other, _) = stream(&other, &items());
    let mixed = [&whole[..starts[2]], &other[starts[2]..]].concat();
    assert!(read(&mixed).is_err());
    assert_eq!(read(b"QFI\xfb and so on"), Err(DecodeError::Foreign));
}

#[test]
fn parts_that_no_volume_has_are_refused() {
    let bytes = 64 << 20;
    for bad in [
        Item::Hole { offset: 1, len: BLOCK },
        Item::Hole { offset: 0, len: BLOCK - 1 },
        Item::Zero { offset: 0, len: 0 },
        Item::Hole { offset: bytes, len: BLOCK },
        Item::Hole { offset: u64::MAX - BLOCK + 1, len: BLOCK },
        Item::Data { offset: 0, len: DATA_MAX as u64 + BLOCK },
        Item::End { records: 7, data: 0 },
    ] {
        let (bytes, _) = stream(&head(None), &[bad]);
        assert!(matches!(read(&bytes), Err(DecodeError::Damaged(_))), "{bad:?}");
    }
    let mut newer = head(None).encode();
    newer[8] = 2;
    assert_eq!(Head::decode(&newer), Err(DecodeError::Version(2)));
    for (base, snapshot, bytes) in [
        (None, "", bytes),
        (None, "a@b", bytes),
        (Some("a/b"), "c", bytes),
        (Some("c"), "c", bytes),
        (None, "c", 0),
        (None, "c", BLOCK + 1),
        (None, "c", u64::MAX - BLOCK + 1),
    ] {
        let (base, snapshot) = (base.map(str::to_owned), snapshot.to_owned());
        let bad = Head { id: 1, bytes, base, snapshot };
        assert!(matches!(Head::decode(&bad.encode()), Err(DecodeError::Damaged(_))), "{bad:?}");
    }
}

/// The corpus: the tests write nothing; `BLOCK_WRITE_CORPUS=1` writes it again.
#[test]
fn the_corpus_is_what_this_version_writes_and_survives_changes() {
    let whole = stream(&head(Some("monday")), &items()).0;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/diff");
    if std::env::var_os("BLOCK_WRITE_CORPUS").is_some() {
        fs::write(&path, &whole).expect("it is written");
    }
    let kept = fs::read(&path).expect("it is there");
    assert!(kept == whole, "the format has changed without a new version");
    let (mut rng, head_len) = (Rng::new(11), head(Some("monday")).encode().len());
    for _ in 0..2000 {
        let mut changed = kept.clone();
        let at = rng.below(changed.len() as u64) as usize;
        changed[at] ^= 1 << rng.below(8);
        let fields = rng.below((head_len + RECORD) as u64) as usize;
        changed[fields] = changed[fields].wrapping_add(rng.below(256) as u8);
        if rng.one_in(4) {
            changed.truncate(rng.below(changed.len() as u64) as usize);
        }
        if changed.len() >= head_len + RECORD {
            // With valid CRCs, so that the fields behind them are decoded too.
            changed[12..16].fill(0);
            let crc = crc32c(&changed[..head_len]);
            changed[12..16].copy_from_slice(&crc.to_le_bytes());
            let passed = Passed { id: u64_at(&changed, 16), records: 0, data: 0 };
            let record = &mut changed[head_len..head_len + RECORD];
            let crc = passed.crc(&record[4..]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
        }
        fuzz_diff(&changed);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_diff(&bytes);
        fuzz_diff(&[&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat());
    }

    #[test]
    fn heads_decode_to_what_was_encoded(id in any::<u64>(), blocks in 1..1u64 << 30,
        base in prop::option::of("[a-z]{1,20}"), snapshot in "[A-Z]{1,20}") {
        let head = Head { id, bytes: blocks * BLOCK, base, snapshot };
        let bytes = head.encode();
        prop_assert_eq!(Head::decode(&bytes), Ok(Some((head, bytes.len()))));
    }
}

/// The format page has the values of the source.
#[test]
fn format_page_has_these_numbers() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/volume-diff.md");
    let page = fs::read_to_string(page).expect("it is there");
    for text in [
        format!("format version {VERSION}"),
        format!("magic `{}`", String::from_utf8_lossy(MAGIC)),
        format!("{DATA_MAX} at most"),
        format!("| {HEAD} | | name of the base"),
        format!("a record of {RECORD} bytes"),
    ] {
        assert!(page.contains(&text), "the page lacks: {text}");
    }
}
