use base::{ChunkId, Epoch};
use codec::block::BlockSize;
use codec::row::{RowEncoder, Scheme};
use proptest::prelude::*;

use super::*;

const AT: AppendAt =
    AppendAt { chunk: ChunkId::new(7), epoch: Epoch::new(3), base: 1 << 41, offset: 500 };

/// The sectors of each fragment of a row with these logical bytes.
fn cells(at: AppendAt, scheme: Scheme, codec: Codec, row: &[u8]) -> Vec<Vec<u8>> {
    let mut cells = vec![vec![0; scheme.cell_max(row.len())]; scheme.n()];
    let mut views: Vec<&mut [u8]> = cells.iter_mut().map(Vec::as_mut_slice).collect();
    let head = RowEncoder::new(scheme, codec).encode(row, &mut views);
    let sectors = |(fragment, cell): (usize, &Vec<u8>)| {
        let cell = &cell[..head.cell_len()];
        let mut sectors = vec![0; sectors_for(cell.len()) * SECTOR];
        place_cell(cell, &mut sectors);
        let part = CellPart { fragment: fragment as u8, codec, index: 0 };
        stamp_cell(at, part, cell.len(), &mut sectors);
        sectors
    };
    cells.iter().enumerate().map(sectors).collect()
}

fn scheme(k: usize, p: usize) -> Scheme {
    Scheme::new(k, p, BlockSize::new(12).unwrap()).unwrap()
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| if at % 7 < 4 { 0 } else { (at * at) as u8 }).collect()
}

#[test]
fn cells_verify_as_appends_of_their_logical_length() {
    for (k, p) in [(1, 0), (4, 2), (8, 3)] {
        for len in [1, 4000, 4096, 70_000, scheme(k, p).row_max()] {
            for codec in Codec::ALL {
                let row = text(len);
                for (number, sectors) in
                    cells(AT, scheme(k, p), codec, &row).into_iter().enumerate()
                {
                    assert_eq!(verify_append(AT, &sectors), Ok(len as u32));
                    let seen = verify_cell(AT, &sectors).unwrap();
                    let fragment = Fragment { k: k as u8, p: p as u8, number: number as u8 };
                    assert_eq!((seen.fragment, seen.codec), (fragment, codec));
                    assert_eq!(seen.sectors() as usize * SECTOR, sectors.len());
                    assert_eq!(Layout::of(&sectors), Layout::Rows(fragment));
                    assert_eq!(logical_end(&sectors), Some(AT.offset + len as u32));
                }
            }
        }
    }
}

#[test]
fn a_cut_or_mixed_cell_is_refused() {
    let sectors = cells(AT, scheme(1, 0), Codec::Plain, &text(20_000)).remove(0);
    let count = sectors.len() / SECTOR;
    assert!(count > 3);
    for kept in 1..count {
        let cut = &sectors[..kept * SECTOR];
        assert_eq!(verify_append(AT, cut), Err((kept, SectorError::Field("cell is cut"))));
        assert_eq!(usable_len(cut, cut.len()), 0);
    }
    let mut swapped = sectors.clone();
    swapped[SECTOR..3 * SECTOR].rotate_left(SECTOR);
    assert_eq!(verify_append(AT, &swapped), Err((1, SectorError::Field("cell"))));
    assert!(verify_append(AT, &sectors[SECTOR..]).is_err(), "it begins amid a cell");

    // Another fragment's row behind it, and one at another offset.
    let behind = AppendAt { offset: AT.offset + 20_000, ..AT };
    for (next, good) in [
        (cells(behind, scheme(1, 0), Codec::Lz4, &text(9)).remove(0), true),
        (cells(behind, scheme(2, 1), Codec::Plain, &text(9)).remove(0), false),
        (cells(AT, scheme(1, 0), Codec::Plain, &text(9)).remove(0), false),
    ] {
        let both = [&sectors[..], &next[..]].concat();
        assert_eq!(verify_append(AT, &both).is_ok(), good);
        assert_eq!(usable_len(&both, both.len() - 1), sectors.len());
    }
}

#[test]
fn a_cell_is_collected_from_parts_of_one_row() {
    let sectors = cells(AT, scheme(1, 0), Codec::Plain, &text(20_000)).remove(0);
    let other = cells(AT, scheme(1, 0), Codec::Plain, &text(19_999)).remove(0);
    let mut parts = CellParts::new(AppendAt { offset: AT.offset + 19_999, ..AT });
    for (index, sector) in sectors.chunks(SECTOR).enumerate() {
        assert!(parts.whole().is_none());
        assert_eq!(usize::from(parts.next_index()), index);
        let again = &sectors[..SECTOR];
        assert!(index == 0 || parts.push(again).is_err(), "the first sector twice");
        let mut flipped = sector.to_vec();
        flipped[77] ^= 1;
        assert_eq!(parts.push(&flipped), Err(SectorError::Crc));
        parts.push(sector).unwrap();
    }
    assert_eq!(parts.whole(), Some(&sectors[..]));
    // Of a row that has the byte, and no other.
    for (offset, of) in [(AT.offset - 1, &sectors), (AT.offset + 19_999, &other)] {
        let refused = CellParts::new(AppendAt { offset, ..AT }).push(&of[..SECTOR]);
        assert_eq!(refused, Err(SectorError::Field("offset")));
    }
    // Sectors of two rows at one place: the last one is shorter.
    let mut mixed = CellParts::new(AT);
    let last = other.len() - SECTOR;
    sectors[..last].chunks(SECTOR).for_each(|sector| mixed.push(sector).unwrap());
    assert_eq!(mixed.push(&other[last..]), Err(SectorError::Field("cell")));
}

proptest! {
    #[test]
    fn a_changed_byte_is_noticed(len in 1usize..9000, at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut sectors = cells(AT, scheme(1, 0), Codec::Lz4, &text(len)).remove(0);
        // The server part is the store's.
        let at = at.index(sectors.len());
        prop_assume!(at % SECTOR < SECTOR - 8);
        sectors[at] ^= flip;
        let error = verify_append(AT, &sectors).unwrap_err();
        prop_assert_eq!(error.0, at / SECTOR);
    }

    #[test]
    fn parts_and_fragments_have_one_form(bytes in any::<[u8; 4]>()) {
        if let Ok(part) = CellPart::decode(bytes) {
            prop_assert_eq!(part.encode(), bytes);
        }
        if let Some(fragment) = Fragment::decode(bytes) {
            prop_assert_eq!(fragment.encode(), bytes);
        }
    }
}
