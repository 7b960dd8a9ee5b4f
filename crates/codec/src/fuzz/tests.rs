use std::fs;
use std::path::Path;

use super::*;
use crate::row::{RowEncoder, Scheme};

fn block(codec: Codec, content: &[u8]) -> Vec<u8> {
    let mut stored = vec![0; content.len() + BLOCK_HEAD];
    let size = BlockSize::new(BLOCK_LOG2_MAX).expect("within limits");
    let len = Packer::new(codec, size).pack(content, &mut stored);
    [&(content.len() as u16 - 1).to_le_bytes()[..], &stored[..len]].concat()
}

fn row(k: usize, p: usize, codec: Codec, content: &[u8], at_hand: &[u8]) -> Vec<u8> {
    let size = BlockSize::new(12).expect("within limits");
    let scheme = Scheme::new(k, p, size).expect("within limits");
    let mut cells = vec![vec![0; scheme.cell_max(content.len())]; scheme.n()];
    let mut views: Vec<&mut [u8]> = cells.iter_mut().map(Vec::as_mut_slice).collect();
    let len = RowEncoder::new(scheme, codec).encode(content, &mut views).cell_len();
    let stored = |fragment: &u8| {
        let head = [*fragment, len as u8, (len >> 8) as u8];
        [&head[..], &cells[usize::from(*fragment)][..len]].concat()
    };
    at_hand.iter().flat_map(stored).collect()
}

/// The seeds, by target.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let text = b"one row of a table, ".repeat(20);
    let long: Vec<u8> =
        (0..300).flat_map(|i| format!("row {} of a table, ", i * i).into_bytes()).collect();
    let cell = row(4, 2, Codec::Lz4, &text, &[0]);
    vec![
        ("block-plain", block(Codec::Plain, b"short")),
        ("block-lz4", block(Codec::Lz4, &text)),
        ("block-lz4-long", block(Codec::Lz4, &long)),
        ("block-zstd", block(Codec::Zstd, &text)),
        ("cell-coded", cell[3..][..CELL_HEAD].to_vec()),
        ("cell-copies", row(1, 0, Codec::Plain, &text, &[0])[3..][..CELL_HEAD].to_vec()),
        ("row-copies", row(1, 0, Codec::Lz4, &text, &[0])),
        ("row-data", row(2, 1, Codec::Plain, b"short", &[0, 1])),
        ("row-degraded", row(4, 2, Codec::Lz4, &text, &[0, 5, 4, 3])),
        ("row-zstd", row(2, 1, Codec::Zstd, &long, &[2, 0])),
        ("erasure-4-2", [&[4, 2, 4, 2, 0, 5, 2, 4, 1, 3][..], &text].concat()),
        (
            "erasure-12-4",
            [&[12, 4, 12, 1][..], &[15, 1, 2, 3, 4, 13, 6, 7, 8, 9, 10, 11, 0], &text].concat(),
        ),
        ("erasure-twice", [&[2, 1, 2, 1, 1, 1, 0][..], &text].concat()),
    ]
}

/// `CRATON_WRITE_CORPUS=1` writes the seeds. Otherwise every seed is there, and its target runs over it.
#[test]
fn corpus_is_written_on_request_and_is_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for (name, bytes) in seeds() {
        let path = folder.join(name);
        if std::env::var_os("CRATON_WRITE_CORPUS").is_some() {
            fs::create_dir_all(&folder).expect("writable");
            fs::write(&path, &bytes).expect("writable");
        }
        let stored = fs::read(&path).expect("the corpus is committed");
        match name.split('-').next() {
            Some("block") => fuzz_block(&stored),
            Some("cell") => fuzz_cell_head(&stored),
            Some("row") => fuzz_row(&stored),
            _ => fuzz_erasure(&stored),
        }
    }
}

/// The seeds lead beyond the first checks.
#[test]
fn seeds_are_accepted_by_what_they_are_for() {
    for (name, bytes) in seeds() {
        let is_accepted = match name.split('-').next() {
            Some("block") => {
                let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) + 1;
                Unpacker::new().unpack(&bytes[2..], &mut vec![0; len]).is_ok()
            }
            Some("cell") => CellHead::decode(bytes.first_chunk().expect("a head")).is_ok(),
            Some("row") => RowDecoder::new().rebuild(&cells(&bytes), &[], &mut []).is_ok(),
            _ => {
                let (k, [from, to]) = (bytes[0], [bytes[2], bytes[3]].map(usize::from));
                let code = Code::new(k.into(), bytes[1].into()).expect("within limits");
                let (from, to) = (&bytes[4..][..from], &bytes[4 + from..][..to]);
                code.decoder(Rebuild { from, to }).is_ok() == (name != "erasure-twice")
            }
        };
        assert!(is_accepted, "{name}");
    }
}
