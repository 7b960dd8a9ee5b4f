//! Fuzz targets: plain functions over bytes. The tests replay them over the corpus in `tests/corpus/`;
//! a coverage-guided run calls the same (`docs/fuzzing.md`).

use crate::block::{BLOCK_HEAD, BlockHead, BlockSize, Codec, Packer, Unpacker};
use crate::cursor::Cursor;
use crate::ec::{Code, Kernel, Rebuild};
use crate::limits::{BLOCK_LOG2_MAX, BLOCK_MAX, FRAGMENTS_MAX};
use crate::row::{CELL_HEAD, Cell, CellHead, RowDecoder, RowJudgement};

/// A stored block: two bytes of its logical length less one, then head and content. What is accepted
/// can be packed again by every codec, and its head has one form.
pub fn fuzz_block(bytes: &[u8]) {
    let mut input = Cursor(bytes);
    let Some(len) = input.u16() else { return };
    let mut block = vec![0; usize::from(len) + 1];
    let mut unpacker = Unpacker::new();
    let Ok(used) = unpacker.unpack(input.0, &mut block) else { return };
    let (stored, head) = (&input.0[..used], input.array::<BLOCK_HEAD>().expect("it was read"));
    let decoded = BlockHead::decode(&head, block.len()).expect("it was accepted");
    assert_eq!(decoded.encode(), head);
    assert_eq!(stored.len(), BLOCK_HEAD + decoded.stored_len as usize);
    let size = BlockSize::new(BLOCK_LOG2_MAX).expect("within limits");
    for codec in Codec::ALL {
        let (mut again, mut back) = (vec![0; block.len() + BLOCK_HEAD], vec![0; block.len()]);
        let len = Packer::new(codec, size).pack(&block, &mut again);
        assert_eq!(unpacker.unpack(&again[..len], &mut back), Ok(len));
        assert!(back == block);
    }
}

/// The head of a cell: what is accepted has one form, and lengths within the limits.
pub fn fuzz_cell_head(bytes: &[u8]) {
    let Some(head) = bytes.first_chunk::<CELL_HEAD>() else { return };
    if let Ok(decoded) = CellHead::decode(head) {
        assert_eq!(decoded.encode(), *head);
        let row_len = decoded.row_len as usize;
        assert!((1..=decoded.scheme.row_max()).contains(&row_len));
        assert!(decoded.cell_len() <= decoded.scheme.cell_max(row_len));
    }
}

/// Cells of which a row is judged here, at most: there are many sets of more.
const JUDGED_MAX: usize = 6;

/// Cells of a row: for each its fragment, two bytes of length, and bytes. Cells that give back all others
/// by the row check also do so from the others.
pub fn fuzz_row(bytes: &[u8]) {
    let cells = cells(bytes);
    let Some(head) = cells.first().and_then(|cell| cell.bytes.first_chunk()) else { return };
    let Ok(head) = CellHead::decode(head) else { return };
    let mut decoder = RowDecoder::new();
    let mut row = vec![0; head.row_len as usize];
    let is_read = decoder.read(&cells, &mut row).is_ok();
    if cells.len() <= JUDGED_MAX {
        // Of k that are read another k may be, too: never an unreadable row.
        let judged = decoder.judge(&cells, head.scheme.k(), &mut Vec::new());
        assert!(!is_read || !matches!(judged, RowJudgement::Unreadable(_)), "{judged:?}");
    }
    let n = head.scheme.n() as u8;
    let wanted: Vec<u8> =
        (0..n).filter(|number| cells.iter().all(|cell| cell.fragment != *number)).collect();
    let mut rebuilt = vec![vec![0; head.cell_len()]; wanted.len()];
    let mut out: Vec<&mut [u8]> = rebuilt.iter_mut().map(Vec::as_mut_slice).collect();
    if decoder.rebuild(&cells, &wanted, &mut out).is_err() {
        return;
    }
    let others = wanted.iter().zip(&rebuilt).map(|(&fragment, bytes)| Cell { fragment, bytes });
    let all: Vec<Cell<'_>> = others.chain(cells).collect();
    let others = &all[..head.scheme.k()];
    assert_eq!(decoder.rebuild(others, &[], &mut []), Ok(head));
    let mut same = vec![0; row.len()];
    assert_eq!(decoder.read(others, &mut same).is_ok(), is_read);
    assert!(!is_read || same == row);
}

fn cells(bytes: &[u8]) -> Vec<Cell<'_>> {
    let mut input = Cursor(bytes);
    let mut next = || {
        let (fragment, len) = (input.u8()?, input.u16()?);
        Some(Cell { fragment, bytes: input.take(usize::from(len))? })
    };
    std::iter::from_fn(&mut next).collect()
}

/// Sets of fragments: k, p, counts and numbers of fragments at hand and wanted, and the bytes of the
/// data. Whatever set is accepted gives back what was encoded, with every kernel.
pub fn fuzz_erasure(bytes: &[u8]) {
    let mut input = Cursor(bytes);
    let mut number = || input.u8().map(usize::from);
    let (Some(k), Some(p), Some(have), Some(want)) = (number(), number(), number(), number())
    else {
        return;
    };
    let Ok(code) = Code::new(k, p) else { return };
    let Some(from) = input.take(have.min(FRAGMENTS_MAX)) else { return };
    let Some(to) = input.take(want.min(FRAGMENTS_MAX)) else { return };
    let rebuild = Rebuild { from, to };
    if code.decoder(rebuild).is_err() {
        return;
    }
    let len = input.0.len().min(BLOCK_MAX);
    let mut all: Vec<Vec<u8>> = (0..code.n()).map(|_| input.0[..len].to_vec()).collect();
    for (index, fragment) in all.iter_mut().enumerate() {
        fragment.rotate_left(index.min(len));
    }
    let (data, parity) = all.split_at_mut(k);
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut parity);
    let at_hand: Vec<&[u8]> = from.iter().map(|one| &all[usize::from(*one)][..]).collect();
    for kernel in Kernel::available() {
        let code = Code::with_kernel(k, p, kernel).expect("within limits");
        let mut rebuilt = vec![vec![0; len]; to.len()];
        let mut out: Vec<&mut [u8]> = rebuilt.iter_mut().map(Vec::as_mut_slice).collect();
        code.decoder(rebuild).expect("accepted before").decode(&at_hand, &mut out);
        for (number, bytes) in to.iter().zip(&rebuilt) {
            assert!(*bytes == all[usize::from(*number)], "{} with {}", number, kernel.name());
        }
    }
}

#[cfg(test)]
mod tests;
