//! From logical bytes to cells.

use std::array::from_fn;

use super::{CELL_HEAD, CellHead, Scheme, Sources, Targets, row_check};
use crate::block::{Codec, Packer};
use crate::ec::{Code, Kernel};
use crate::limits::FRAGMENTS_MAX;
use crate::planted;

/// Lays rows out. Its memory is allocated with it: a row allocates nothing.
pub struct RowEncoder {
    scheme: Scheme,
    code: Code,
    packer: Packer,
}

impl RowEncoder {
    /// An encoder for rows of `scheme`, whose blocks are compressed by `codec` where that saves enough.
    pub fn new(scheme: Scheme, codec: Codec) -> RowEncoder {
        RowEncoder::with_kernel(scheme, codec, Kernel::fastest())
    }

    /// The same for a kernel: all of them give the same bytes.
    pub fn with_kernel(scheme: Scheme, codec: Codec, kernel: Kernel) -> RowEncoder {
        let packer = Packer::new(codec, scheme.block());
        RowEncoder { scheme, code: scheme.code_with(kernel), packer }
    }

    /// The kernel of its code.
    pub fn kernel(&self) -> Kernel {
        self.code.kernel()
    }

    /// Writes the cells of `row` to the fronts of `cells`, one for each fragment, and returns their head,
    /// which has their length. Panics when `row` is empty or longer than [`Scheme::row_max`], and
    /// when there are not n buffers of [`Scheme::cell_max`] bytes.
    pub fn encode(&mut self, row: &[u8], cells: &mut [&mut [u8]]) -> CellHead {
        let (scheme, len) = (self.scheme, row.len());
        let cell_max = scheme.cell_max(len);
        assert!((1..=scheme.row_max()).contains(&len), "a row of {len} bytes");
        assert_eq!(cells.len(), scheme.n(), "cells");
        assert!(cells.iter().all(|cell| cell.len() >= cell_max), "cells of {cell_max} bytes");

        let mut ends = [CELL_HEAD; FRAGMENTS_MAX];
        for (index, end) in ends.iter_mut().enumerate().take(scheme.k()) {
            let share = &row[scheme.share(len, index)];
            let stored = &mut cells[index][CELL_HEAD..];
            let (heads, contents) = stored.split_at_mut(scheme.heads(share.len()));
            let (heads, _) = heads.as_chunks_mut();
            *end += heads.as_flattened().len();
            let mut at = 0;
            for (block, head) in share.chunks(scheme.block().bytes()).zip(heads) {
                at += self.packer.pack_apart(block, head, &mut contents[at..]);
            }
            *end += at;
        }
        let cell_len = ends.into_iter().max().expect("there are fragments");
        let (data, parity) = cells.split_at_mut(scheme.k());
        for (cell, end) in data.iter_mut().zip(ends) {
            cell[end..cell_len].fill(0);
        }
        self.encode_parity(data, parity, cell_len);
        if !self.kernel().is_portable()
            && let Some(row) = planted::errs()
        {
            let stored = &mut cells[row % scheme.n()][CELL_HEAD..cell_len];
            stored[row % (cell_len - CELL_HEAD)] ^= 1;
        }

        let stored_len = (cell_len - CELL_HEAD) as u32;
        let mut head = CellHead { scheme, row_len: len as u32, stored_len, check: 0 };
        let mut crcs = [0; FRAGMENTS_MAX];
        for (crc, cell) in crcs.iter_mut().zip(&*cells) {
            *crc = head.cell_crc(&cell[CELL_HEAD..cell_len]);
        }
        head.check = row_check(&crcs[..scheme.n()]);
        for cell in cells {
            cell[..CELL_HEAD].copy_from_slice(&head.encode());
        }
        head
    }

    fn encode_parity(&self, data: &[&mut [u8]], parity: &mut [&mut [u8]], cell_len: usize) {
        let count = parity.len();
        let mut sources: Sources = [&[]; _];
        for (source, cell) in sources.iter_mut().zip(data) {
            *source = &cell[CELL_HEAD..cell_len];
        }
        let mut parity = parity.iter_mut();
        let mut targets: Targets = from_fn(|_| match parity.next() {
            Some(cell) => &mut cell[CELL_HEAD..cell_len],
            None => &mut [],
        });
        self.code.encode(&sources[..data.len()], &mut targets[..count]);
    }
}
