//! Tables of `docs/formats/object.md` that this crate writes: sections, rows of one form, the head of a piece.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use codec::cursor::Cursor;
use object_proto::{
    Bucket, BucketId, BucketName, BucketSettings, BucketUsage, DataId, FileName, ObjectKey,
    ObjectServerId, PartNumber, RangeBound, RangeId, SessionId, Setting, Stamp, Target, UserId,
    Versioning,
};

use crate::file_rows::{BodyRow, FileOf};
use crate::keys::{Writer, writer_of};
use crate::piece::{Body, HEAD_MAX, PieceHead};
use crate::row::{BucketRow, LogRow, encode_session, encode_stamp};
use crate::server_row::{RangeRow, ServerRow, SplitRow, encode_number};
use crate::usage::encode_usage;

const PAGE: &str = include_str!("../../../docs/formats/object.md");

fn section(heading: &str) -> &'static str {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading));
    section.expect("the section is there")
}

/// Rows of a section's table that begin with a row's letter: the letter, and what the last cell says.
fn rows(heading: &str) -> Vec<(char, &'static str)> {
    let rows = section(heading).lines().filter_map(|line| {
        let (letter, rest) = line.strip_prefix("| `")?.split_once('`')?;
        let letter = letter.parse().ok()?;
        // What is in the cell may have bars of its own.
        Some((letter, rest.split_once("| ")?.1.strip_suffix(" |")?))
    });
    rows.collect()
}

fn letters(heading: &str) -> BTreeSet<char> {
    rows(heading).into_iter().map(|(letter, _)| letter).collect()
}

#[test]
fn sections_are_those_of_the_page() {
    let source = include_str!("keys.rs").lines();
    let letters_of_source = source.filter_map(|line| {
        let value = line.strip_prefix("pub const ")?.split_once(": u8 = b'")?.1;
        value.strip_suffix("';")?.parse::<char>().ok()
    });
    let all: Vec<char> = letters_of_source.collect();
    let of_source: BTreeSet<char> = all.iter().copied().collect();
    assert_eq!(all.len(), of_source.len(), "two sections have one letter");
    let of_range = letters("Keys of the range's table\n");
    let of_catalog = letters("Keys of the catalog's table\n");
    assert_eq!(of_range.union(&of_catalog).copied().collect::<BTreeSet<_>>(), of_source);
    assert_eq!(of_range.intersection(&of_catalog).collect::<String>(), "is");
    assert!(of_range.iter().all(char::is_ascii_lowercase));
    let values = rows("Values\n");
    assert_eq!(letters("Values\n"), of_source);
    assert_eq!(values.len(), of_source.len(), "a row has one value");
}

/// What is behind a value's version, by the brackets in its row of the page.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Fixed(usize),
    Varint,
    Text,
    /// A bound of a range, as in the row `R`.
    Bound,
}

fn kinds(text: &str) -> Vec<Kind> {
    let brackets = text.split('(').skip(1).filter_map(|rest| rest.split(')').next());
    let kinds = brackets.filter_map(|inner| match inner.split([',', ':', ';']).next()? {
        "varint" => Some(Kind::Varint),
        "text" | "bytes" => Some(Kind::Text),
        "as in `R`" => Some(Kind::Bound),
        number => number.parse().ok().map(Kind::Fixed),
    });
    kinds.collect()
}

/// A value is a version and what these are, and no more.
fn check(letter: char, kinds: &[Kind], value: &[u8]) {
    let mut cursor = Cursor(value);
    assert_eq!(cursor.u8(), Some(1), "{letter}");
    for kind in kinds {
        let is_there = match kind {
            Kind::Fixed(bytes) => cursor.take(*bytes).is_some(),
            Kind::Varint => cursor.varint().is_some(),
            Kind::Text => cursor.bytes(usize::MAX).is_some(),
            Kind::Bound => cursor.u64().is_some() && cursor.bytes(usize::MAX).is_some(),
        };
        assert!(is_there, "{letter}: {kind:?} of {kinds:?}");
    }
    assert!(cursor.is_empty(), "{letter}: {:?} behind {kinds:?}", cursor.0);
}

/// Values whose fields are always there, with numbers of two bytes.
#[test]
fn rows_of_one_form_are_those_of_the_page() {
    let first = RangeBound { bucket: BucketId::new(5), key: "k".repeat(200) };
    let target = Target { bucket: BucketId::new(7), key: ObjectKey::new("k").expect("a key") };
    let file = |of| {
        let (data_id, target) = (DataId::new(9), target.clone());
        BodyRow { data_id, size: 300, target, of }.encode()
    };
    let number = PartNumber::new(3).expect("a number");
    let usage = BucketUsage {
        objects: 300,
        older: 301,
        bytes: 302,
        markers: 303,
        uploads: 304,
        upload_bytes: 305,
    };
    let mut settings = BucketSettings::default();
    settings.set(Setting::Policy(Some("{}".repeat(100))));
    let bucket = Bucket {
        id: BucketId::new(1),
        name: BucketName::new("abc").expect("a name"),
        owner: UserId::new("me"),
        created_us: 300,
        versioning: Versioning::Enabled,
    };
    let (made_by, changed) = ((SessionId::new(3), 300), Stamp::new(301));
    let (closing, order_due) = (false, true);
    let bucket = BucketRow { bucket, made_by, changed, closing, order_due, settings };
    let (low, high) = (RangeId::new(2), RangeId::new(3));
    let split = SplitRow { epoch: 300, low, high, at: first.clone() };
    let owner = Some(ObjectServerId::new(300));
    let addr = "127.0.0.1:7301".parse().expect("an address");
    let server = ServerRow { name: "os1".to_owned(), addr, given: 300, heard: 301 };
    let log = LogRow { dead: 300, trash_us: Some(400), counted: true };
    let page: BTreeMap<char, &str> = rows("Values\n").into_iter().collect();
    for (letter, value) in [
        ('n', encode_stamp(Stamp::new(1 << 60))),
        ('s', encode_stamp(Stamp::new(1 << 60))),
        ('W', encode_stamp(Stamp::new(1 << 60))),
        ('d', log.encode()),
        ('q', encode_usage(usage)),
        ('B', bucket.encode()),
        ('S', encode_session(true)),
        ('R', RangeRow { first, epoch: 300, owner }.encode()),
        ('P', split.encode()),
        ('O', server.encode()),
        ('Z', encode_number(300)),
    ] {
        check(letter, &kinds(page[&letter]), &value);
    }
    // An object's ends otherwise than that of a part.
    let (common, ends) = page[&'b'].split_once("; then, of an object, ").expect("both forms");
    let (of_object, of_part) = ends.split_once("; of a part, ").expect("both forms");
    for (end, of) in
        [(of_object, FileOf::Object(Stamp::new(8))), (of_part, FileOf::Part(Stamp::new(8), number))]
    {
        check('b', &[kinds(common), kinds(end)].concat(), &file(of));
    }
}

/// The table of a section, whose rows leave no gap: field and place.
fn places(heading: &str) -> Vec<(&'static str, Range<usize>)> {
    let rows = section(heading).lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (at, bytes): (usize, usize) = (cells.get(1)?.parse().ok()?, cells[2].parse().ok()?);
        Some((cells[3], at..at + bytes))
    });
    let rows: Vec<_> = rows.collect();
    let mut next = 0;
    for (field, place) in &rows {
        assert_eq!(place.start, next, "{field} follows without a gap");
        next = place.end;
    }
    rows
}

#[test]
fn head_of_a_piece_is_that_of_the_page() {
    let rows = places("Files of bodies\n");
    let end = rows.last().expect("rows").1.end;
    assert_eq!(HEAD_MAX, end + object_proto::limits::KEY_MAX);
    let key = |text: &str| ObjectKey::new(text).expect("a key");
    let body = |data_id: u128, bucket: u64, name: &str| Body {
        data_id: DataId::new(data_id),
        target: Target { bucket: BucketId::new(bucket), key: key(name) },
    };
    let head = PieceHead { offset: 0, len: 0, crc: 0 };
    let plain = body(0, 0, "k");
    let before = plain.encode(head);
    assert_eq!(before.len(), end + 1);
    assert_eq!(before[..6], *b"CrOb\x01\0");
    // The last field is the sum of all before it and of the key.
    let sum = |bytes: &[u8]| codec::crc32c(&[&bytes[..end - 4], &bytes[end..]].concat());
    let changes = [
        ("bytes of the key", body(0, 0, &"k".repeat(1024)).encode(head)),
        ("data ID", body(u128::MAX, 0, "k").encode(head)),
        ("bucket's ID", body(0, u64::MAX, "k").encode(head)),
        ("offset of the piece", plain.encode(PieceHead { offset: u64::MAX, ..head })),
        ("bytes of the body in the piece", plain.encode(PieceHead { len: u32::MAX, ..head })),
        ("CRC32C of those bytes", plain.encode(PieceHead { crc: u32::MAX, ..head })),
    ];
    let constant = ["magic `CrOb`", "version 1", "zero", "CRC32C of bytes 0 to 48"];
    assert_eq!(rows.len(), changes.len() + constant.len());
    for (name, after) in changes {
        let row = rows.iter().find(|(field, _)| field.starts_with(name));
        let (field, place) = row.unwrap_or_else(|| panic!("no row {name}"));
        let differs: Vec<usize> = (0..end - 4).filter(|&at| before[at] != after[at]).collect();
        assert!(differs.iter().all(|at| place.contains(at)), "{field}: {differs:?}");
        assert_eq!(differs.first(), Some(&place.start), "{field}");
        assert_eq!(after[end - 4..end], sum(&after).to_le_bytes(), "{field}");
    }
    for name in constant {
        assert!(rows.iter().any(|(field, _)| field.starts_with(name)), "no row {name}");
    }
}

#[test]
fn names_of_files_are_those_of_the_page() {
    let text = section("Files of bodies\n");
    for (name, writer) in [
        ("body-SSSSSSSSSSSSSSSS-NNNNNNNNNNNNNNNN", Writer::Session(SessionId::new(0xabc))),
        ("kept-RRRRRRRRRRRRRRRR-EEEEEEEENNNNNNNN", Writer::Owner(RangeId::new(0xabc), 0xde)),
    ] {
        assert!(text.contains(&format!("`{name}`")), "{name}");
        let (first, number) = ("0000000000000abc", "0000000000000007");
        let name = name.replace("SSSSSSSSSSSSSSSS", first).replace("RRRRRRRRRRRRRRRR", first);
        let name = name.replace("NNNNNNNNNNNNNNNN", number).replace("EEEEEEEE", "000000de");
        let name = name.replace("NNNNNNNN", "00000007");
        assert_eq!(writer_of(FileName::new(name.as_str()).as_str()), Some(writer), "{name}");
    }
}
