use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::block::Codec;
use crate::limits::{BLOCK_LOG2_MAX, BLOCK_LOG2_MIN, CELL_MAX};
use crate::{crc32c, limits};

fn scheme(k: usize, p: usize, log2: u8) -> Scheme {
    Scheme::new(k, p, BlockSize::new(log2).expect("within limits")).expect("within limits")
}

/// Bytes of which some are compressed well and some are not.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| if i / 3000 % 2 == 0 { (i * i / 5 + i) as u8 } else { 3 }).collect()
}

fn encoded(scheme: Scheme, codec: Codec, row: &[u8]) -> (CellHead, Vec<Vec<u8>>) {
    let mut cells = vec![vec![0x77; scheme.cell_max(row.len())]; scheme.n()];
    let mut views: Vec<&mut [u8]> = cells.iter_mut().map(Vec::as_mut_slice).collect();
    let head = RowEncoder::new(scheme, codec).encode(row, &mut views);
    cells.iter_mut().for_each(|cell| cell.truncate(head.cell_len()));
    (head, cells)
}

fn chosen<'a>(cells: &'a [Vec<u8>], numbers: &[u8]) -> Vec<Cell<'a>> {
    let cell = |&fragment: &u8| Cell { fragment, bytes: &cells[usize::from(fragment)] };
    numbers.iter().map(cell).collect()
}

fn read(cells: &[Cell<'_>], len: usize) -> Result<Vec<u8>, RowError> {
    let mut row = vec![0x33; len];
    RowDecoder::new().read(cells, &mut row).map(|_| row)
}

/// Sets of k of n fragments, with the others.
fn choices(scheme: Scheme) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let sets = (0u32..1 << scheme.n()).filter(move |set| set.count_ones() as usize == scheme.k());
    sets.map(move |set| (0..scheme.n() as u8).partition(|number| set >> number & 1 == 1))
}

/// Made by a script of another language from the format's page.
#[test]
fn cells_have_the_known_bytes() {
    let (_, cells) = encoded(scheme(2, 1, 12), Codec::Lz4, &[1, 2, 3, 4, 5]);
    let hex = |cell: &Vec<u8>| cell.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let head = "0202010c050000000b00000047f09ddc";
    let expected = ["030000001ef230f1010203", "0200000012021a8a040500", "7a000000018ce57b79028f"];
    let cells: Vec<String> = cells.iter().map(hex).collect();
    assert_eq!(cells, expected.map(|stored| format!("{head}{stored}")));

    let row: Vec<u8> = (0..30_000u64).map(|i| (i * i / 5 + i) as u8).collect();
    let (head, cells) = encoded(scheme(4, 2, 12), Codec::Plain, &row);
    let crcs: Vec<u32> = cells.iter().map(|cell| crc32c(cell)).collect();
    assert_eq!(head.cell_len(), 7532);
    let expected = [0x1361_5080, 0xbfd4_f773, 0x324c_a3da, 0xe1e7_cac2, 0x8be0_ac65, 0x3969_d3d8];
    assert_eq!(crcs, expected);
}

/// The front of a data cell, and the contents of some of its blocks, give these blocks; whatever is
/// changed in either is an error or changes nothing.
#[test]
fn blocks_are_read_without_the_rest_of_their_cell() {
    let mut decoder = RowDecoder::new();
    for (k, p, log2) in [(1, 0, 12), (1, 0, 16), (4, 2, 13)] {
        let scheme = scheme(k, p, log2);
        for codec in Codec::ALL {
            for len in [1, 4097, 60_000, 4 * 60_000] {
                let row = bytes(len);
                let (head, cells) = encoded(scheme, codec, &row);
                for wanted in [0..1, len / 2..len / 2 + 1, len / 3..len, 0..len, len - 1..len] {
                    let mut back = Vec::new();
                    for (fragment, cell) in cells.iter().enumerate().take(k) {
                        let front = &cell[..cell.len().min(FRONT_MAX)];
                        let front = CellFront::of(fragment as u8, front).unwrap();
                        assert_eq!(front.head(), head);
                        let blocks = front.blocks(wanted.clone());
                        let (logical, place) = (
                            front.logical(blocks.clone()),
                            front.contents(blocks.clone()).unwrap(),
                        );
                        let mut out = vec![0x55; logical.len()];
                        let contents = &cell[place];
                        decoder.read_blocks(&front, blocks.clone(), contents, &mut out).unwrap();
                        let from = wanted.start.clamp(logical.start, logical.end) - logical.start;
                        let to = wanted.end.clamp(logical.start, logical.end) - logical.start;
                        back.extend_from_slice(&out[from..to]);
                        let mut damaged = contents.to_vec();
                        if let Some(byte) = damaged.last_mut() {
                            *byte ^= 0x10;
                            let read =
                                decoder.read_blocks(&front, blocks.clone(), &damaged, &mut out);
                            assert!(read.is_err(), "a changed byte of {codec:?} was not seen");
                            damaged.pop();
                            assert!(
                                decoder.read_blocks(&front, blocks, &damaged, &mut out).is_err()
                            );
                        }
                    }
                    assert!(back == row[wanted.clone()], "{wanted:?} of {len} bytes, {codec:?}");
                }
                for (fragment, cell) in cells.iter().enumerate().skip(k) {
                    assert!(CellFront::of(fragment as u8, cell).is_err(), "parity has no blocks");
                }
            }
        }
    }
}

#[test]
fn any_k_cells_give_back_the_row_and_every_other_cell() {
    let mut decoder = RowDecoder::new();
    for (k, p, log2) in [(1, 0, 14), (2, 1, 12), (3, 0, 12), (4, 2, 12), (5, 4, 13), (8, 3, 16)] {
        let scheme = scheme(k, p, log2);
        for codec in Codec::ALL {
            for len in [1, 2, k, k + 1, 4096, 4096 * k + 1, 50_000] {
                let row = bytes(len);
                let (head, cells) = encoded(scheme, codec, &row);
                for (from, to) in choices(scheme).step_by(7) {
                    let at_hand = chosen(&cells, &from);
                    assert_eq!(read(&at_hand, len), Ok(row.clone()), "{len} bytes of {from:?}");
                    let mut rebuilt = vec![vec![0; head.cell_len()]; to.len()];
                    let mut views: Vec<&mut [u8]> =
                        rebuilt.iter_mut().map(Vec::as_mut_slice).collect();
                    assert_eq!(decoder.rebuild(&at_hand, &to, &mut views), Ok(head));
                    for (number, cell) in to.iter().zip(&rebuilt) {
                        assert!(*cell == cells[usize::from(*number)], "cell {number} of {from:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn longest_rows_fit_in_the_longest_cells() {
    let block = BlockSize::new(BLOCK_LOG2_MIN).expect("within limits");
    let mut longest = 0;
    for k in 1..=DATA_MAX {
        let scheme = Scheme::new(k, 0, block).expect("within limits");
        longest = longest.max(scheme.cell_max(scheme.row_max()));
    }
    assert_eq!(longest, CELL_MAX);
    let (copies, coded) = (scheme(1, 0, BLOCK_LOG2_MAX), scheme(12, 4, BLOCK_LOG2_MAX));
    assert_eq!((copies.row_max(), coded.row_max()), (SHARE_MAX, ROW_MAX));
    for scheme in [copies, coded] {
        let row = bytes(scheme.row_max());
        let (_, cells) = encoded(scheme, Codec::Plain, &row);
        let last: Vec<u8> = (scheme.p() as u8..scheme.n() as u8).collect();
        assert!(read(&chosen(&cells, &last), row.len()) == Ok(row));
    }
}

#[test]
fn cells_of_two_rows_are_never_decoded_together() {
    let scheme = scheme(2, 1, 12);
    let (_, one) = encoded(scheme, Codec::Plain, &[1; 100]);
    let (_, other) = encoded(scheme, Codec::Plain, &[[1; 99].as_slice(), &[2]].concat());
    let mixed = [Cell { fragment: 0, bytes: &one[0] }, Cell { fragment: 1, bytes: &other[1] }];
    assert_eq!(read(&mixed, 100), Err(RowError::Mixed { fragment: 1 }));
}

#[test]
fn cells_that_are_not_k_whole_ones_are_refused() {
    let (_, cells) = encoded(scheme(2, 1, 12), Codec::Plain, &[1; 100]);
    let fragments = |numbers: &[u8]| read(&chosen(&cells, numbers), 100).err();
    let count = |have| Some(RowError::Fragments(DecodeError::Count { have, want: 2 }));
    assert_eq!(fragments(&[1]), count(1));
    assert_eq!(fragments(&[1, 0, 2]), count(3));
    assert_eq!(fragments(&[1, 1]), Some(RowError::Fragments(DecodeError::Repeated(1))));
    let unknown = [Cell { fragment: 3, bytes: &cells[2] }, chosen(&cells, &[0])[0]];
    assert_eq!(read(&unknown, 100), Err(RowError::Fragments(DecodeError::Unknown(3))));
    assert_eq!(read(&[], 100), Err(RowError::Head));
    let short = Cell { fragment: 1, bytes: &cells[1][..cells[1].len() - 1] };
    let length = RowError::CellLength { fragment: 1 };
    assert_eq!(read(&[chosen(&cells, &[0])[0], short], 100), Err(length));
    assert_eq!(read(&[Cell { fragment: 1, bytes: &[2; 15] }], 100), Err(length));
    let known = read(&chosen(&cells, &[0, 1]), 99);
    assert_eq!(known, Err(RowError::RowLength { want: 99, seen: 100 }));
    let error = RowDecoder::new().rebuild(&chosen(&cells, &[0, 1]), &[0], &mut [&mut [0; 80]]);
    assert_eq!(error, Err(RowError::Fragments(DecodeError::Repeated(0))));
}

#[test]
fn heads_that_no_encoder_writes_are_refused() {
    let (head, _) = encoded(scheme(4, 2, 14), Codec::Lz4, &bytes(70_000));
    let good = head.encode();
    assert_eq!(CellHead::decode(&good), Ok(head));
    let changed = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        CellHead::decode(&bytes).err()
    };
    assert_eq!(changed(0, 1), Some(RowError::Version(1)));
    let bad = [(1, 0), (1, 1), (1, 13), (2, 5), (3, 11), (3, 17), (6, 16), (10, 1), (11, 1)];
    for (at, byte) in bad {
        assert_eq!(changed(at, byte), Some(RowError::Head), "byte {at} is {byte}");
    }
    let lengths = |row_len, stored_len| {
        CellHead::decode(&CellHead { row_len, stored_len, ..head }.encode()).is_ok()
    };
    assert!(lengths(4, 9) && !lengths(4, 8) && !lengths(4, 10) && !lengths(0, 9));
    assert!(lengths(1 << 20, 144) && !lengths(1 << 20, 143) && !lengths((1 << 20) + 1, 153));
    assert!(lengths(1 << 20, (1 << 18) + 128) && !lengths(1 << 20, (1 << 18) + 129));
}

#[test]
fn schemes_beyond_limits_are_refused() {
    let block = BlockSize::new(14).expect("within limits");
    let refused = |k, p| Scheme::new(k, p, block).expect_err("refused");
    assert_eq!(refused(1, 2), SchemeError::Copies { p: 2 });
    assert_eq!(refused(13, 2), SchemeError::Code(CodeError::Data(13)));
    assert_eq!(refused(4, 5), SchemeError::Code(CodeError::Parity(5)));
}

#[test]
fn padding_and_parity_that_were_written_wrongly_are_found() {
    let scheme = scheme(2, 1, 12);
    let (_, mut cells) = encoded(scheme, Codec::Plain, &[5; 99]);
    let end = cells[1].len() - 1;
    cells[1][end] = 1;
    let found = read(&chosen(&cells, &[0, 1]), 99);
    assert_eq!(found, Err(RowError::Padding { share: 1 }));
    // The rest of the row is good, but it is not what the row check was computed over.
    let check = RowDecoder::new().rebuild(&chosen(&cells, &[0, 1]), &[], &mut []);
    assert_eq!(check, Err(RowError::Check));
}

/// A row that was coded with a byte of one cell wrong, over which its row check was computed.
fn miscoded(scheme: Scheme, row: &[u8], victim: usize, at: usize) -> Vec<Vec<u8>> {
    let (mut head, mut cells) = encoded(scheme, Codec::Plain, row);
    cells[victim][at] ^= 1;
    let crcs: Vec<u32> = cells.iter().map(|cell| head.cell_crc(&cell[CELL_HEAD..])).collect();
    head.check = row_check(&crcs);
    cells.iter_mut().for_each(|cell| cell[..CELL_HEAD].copy_from_slice(&head.encode()));
    cells
}

/// All cells of a row, or as many as are enough, say whether they belong together, and which does not.
/// A CPU that errs in what it decodes says nothing of a row: it is looked at without vector instructions.
#[test]
fn a_kernel_that_errs_takes_no_row_for_wrong() {
    let (mut decoder, mut scratch) = (RowDecoder::new(), Vec::new());
    for (k, p) in [(2, 1), (4, 2), (8, 3)] {
        let scheme = scheme(k, p, 12);
        let row = bytes(30_000);
        let (_, cells) = encoded(scheme, Codec::Lz4, &row);
        let all: Vec<u8> = (0..scheme.n() as u8).collect();
        for errs in [true, false] {
            crate::planted::plant_decoding(errs);
            let judged = decoder.judge(&chosen(&cells, &all), k, &mut scratch);
            assert_eq!(judged, RowJudgement::Sound, "{k}+{p}");
            let mut other = cells.clone();
            other[k][CELL_HEAD + 9] ^= 4;
            let judged = decoder.judge(&chosen(&other, &all), k, &mut scratch);
            assert_eq!(judged, RowJudgement::Wrong(1 << k), "{k}+{p}");
            let mut back = Vec::new();
            let read = decoder.read_any(&chosen(&cells, &all[1..]), k, &mut back);
            assert!(read.is_ok() && back == row, "{k}+{p}: {read:?}");
        }
    }
}

#[test]
fn cells_of_a_row_are_judged_together() {
    let (mut decoder, mut scratch) = (RowDecoder::new(), Vec::new());
    for (k, p) in [(2, 1), (4, 2), (8, 3)] {
        let scheme = scheme(k, p, 12);
        let row = bytes(30_000);
        let (_, cells) = encoded(scheme, Codec::Lz4, &row);
        let all: Vec<u8> = (0..scheme.n() as u8).collect();
        let mut judge = |cells: &[Vec<u8>], numbers: &[u8]| {
            decoder.judge(&chosen(cells, numbers), k, &mut scratch)
        };
        assert_eq!(judge(&cells, &all), RowJudgement::Sound);
        assert_eq!(judge(&cells, &all[p..]), RowJudgement::Sound);
        let few = judge(&cells, &all[1..k]);
        assert!(matches!(few, RowJudgement::Unreadable(_)), "{few:?}");
        for &victim in &all {
            let (_, mut other) = encoded(scheme, Codec::Lz4, &bytes(29_999));
            for change in [0, CELL_HEAD + 9] {
                let mut cells = cells.clone();
                let cell = &mut cells[usize::from(victim)];
                match change {
                    0 => *cell = std::mem::take(&mut other[usize::from(victim)]),
                    at => cell[at] ^= 4,
                }
                assert_eq!(judge(&cells, &all), RowJudgement::Wrong(1 << victim), "{change}");
            }
            // Of a row that was coded wrong another k give the bytes, if there are others.
            let cells = miscoded(scheme, &row, victim.into(), CELL_HEAD + 100);
            assert_eq!(judge(&cells, &all), RowJudgement::Miscoded, "{victim}");
            let mut back = Vec::new();
            let read = RowDecoder::new().read_any(&chosen(&cells, &all), k, &mut back);
            assert!(read.is_ok() && back == row, "{victim}: {read:?}");
            // So it is of the cell that was wrong, as the code has it.
            let others: Vec<u8> = all.iter().copied().filter(|it| *it != victim).collect();
            let mut cell = vec![0; cells[0].len()];
            let made = &mut [&mut cell[..]];
            let from = chosen(&cells, &others[others.len() - k..]);
            let again = RowDecoder::new().rebuild_by_blocks(&from, &[victim], made, &mut back);
            assert!(again.is_ok(), "{victim}: {again:?}");
            let (_, sound) = encoded(scheme, Codec::Plain, &row);
            assert!(cell[CELL_HEAD..] == sound[usize::from(victim)][CELL_HEAD..], "{victim}");
            if victim > 0 {
                // Nor is it right without one of the others.
                assert_eq!(
                    judge(&cells, &all[1..]),
                    match p {
                        1 => RowJudgement::Unreadable(judged_error(&cells, &all[1..])),
                        _ => RowJudgement::Miscoded,
                    }
                );
            }
        }
    }
}

fn judged_error(cells: &[Vec<u8>], numbers: &[u8]) -> RowError {
    RowDecoder::new().rebuild(&chosen(cells, numbers), &[], &mut []).expect_err("it is wrong")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A changed bit in one of the cells: an error, or the same bytes.
    #[test]
    fn changed_bit_of_a_cell_never_gives_other_bytes(
        codec in prop::sample::select(&Codec::ALL[..]),
        len in 1usize..20_000,
        set in any::<prop::sample::Index>(),
        victim in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let scheme = scheme(4, 2, 12);
        let row = bytes(len);
        let (head, mut cells) = encoded(scheme, codec, &row);
        let all: Vec<_> = choices(scheme).collect();
        let (from, to) = &all[set.index(all.len())];
        let victim = usize::from(from[victim.index(from.len())]);
        let at = at.index(head.cell_len());
        cells[victim][at] ^= 1u8 << bit;
        let at_hand = chosen(&cells, from);
        if let Ok(back) = read(&at_hand, len) {
            prop_assert!(back == row);
        }
        let mut rebuilt = vec![vec![0; head.cell_len()]; to.len()];
        let mut views: Vec<&mut [u8]> = rebuilt.iter_mut().map(Vec::as_mut_slice).collect();
        prop_assert!(RowDecoder::new().rebuild(&at_hand, to, &mut views).is_err());
    }
}

/// The format page has the values of the source.
#[test]
fn format_page_has_these_numbers() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/row.md");
    let page = fs::read_to_string(page).expect("it is there");
    let codecs = Codec::ALL.map(|codec| format!("| {} | {} |", codec as u8, codec.name()));
    for text in [
        format!("head of {CELL_HEAD} bytes"),
        format!("| 0 | 1 | version {CELL_VERSION} |"),
        format!("k, 1 to {DATA_MAX}"),
        format!("p, up to {PARITY_MAX}"),
        format!("block size, {BLOCK_LOG2_MIN} to {BLOCK_LOG2_MAX}"),
        format!("| {CELL_HEAD} | y | "),
        format!("head of {BLOCK_HEAD} bytes"),
        format!("| 4 | {} | CRC of the block's", BLOCK_HEAD - 4),
        format!("1/{} of the", crate::block::SAVED_PART_MIN),
        format!("{SHARE_MAX} bytes a share and {ROW_MAX} bytes a row"),
        format!("{} bytes at most", limits::CELL_MAX),
    ]
    .iter()
    .chain(&codecs)
    {
        assert!(page.contains(text), "the page lacks: {text}");
    }
}
