//! Rows as clients lay them out (C18, C19).

use base::limits::SECTOR;
use codec::block::{BlockSize, Codec};
use codec::row::{RowEncoder, Scheme};
use wire::row::{CellPart, Fragment, place_cell, stamp_cell};
use wire::sector::{AppendAt, sectors_for};

/// The sectors of a fragment's cell of a row with these logical bytes, in blocks of 4 KiB.
pub fn cell_of(at: AppendAt, row: &[u8], fragment: Fragment, codec: Codec) -> Vec<u8> {
    let block = BlockSize::new(codec::limits::BLOCK_LOG2_MIN).expect("it is offered");
    let scheme = Scheme::new(fragment.k.into(), fragment.p.into(), block).expect("it is offered");
    let mut cells = vec![vec![0; scheme.cell_max(row.len())]; scheme.n()];
    let mut views: Vec<&mut [u8]> = cells.iter_mut().map(Vec::as_mut_slice).collect();
    let head = RowEncoder::new(scheme, codec).encode(row, &mut views);
    let cell = &cells[usize::from(fragment.number)][..head.cell_len()];
    let mut sectors = vec![0; sectors_for(cell.len()) * SECTOR];
    place_cell(cell, &mut sectors);
    let part = CellPart { fragment: fragment.number, codec, index: 0 };
    stamp_cell(at, part, cell.len(), &mut sectors);
    sectors
}
