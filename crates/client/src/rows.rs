//! Rows of copies on their way into sectors and back (C19, C26): the codecs' memory, which all writers
//! and readers of a client share.

use std::ops::Range;

use base::limits::SECTOR;
use codec::block::BlockSize;
use codec::row::{Cell, CellFront, RowDecoder, RowEncoder, Scheme};
use wire::control::Compression;
use wire::pieces::CellPieces;
use wire::row::{COPY_ROW_MAX, Fragment, Row, cell_to};

/// The codecs of one client. Memory comes with the first row: 0.5 MiB and a compressor's for writers,
/// 1.5 MiB for readers.
#[derive(Default)]
pub(crate) struct Rows {
    encoders: Vec<(Compression, RowEncoder)>,
    decoder: Option<RowDecoder>,
    row: Vec<u8>,
    cell: Vec<u8>,
}

/// A cell that is not what its row's writer laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadCell;

fn scheme(block: BlockSize) -> Scheme {
    Scheme::new(1, 0, block).expect("copies are offered")
}

/// Bytes of the cell of a row of `len` bytes, at most: nothing can be compressed.
pub(crate) fn cell_len_max(len: usize, block: BlockSize) -> usize {
    scheme(block).cell_max(len)
}

impl Rows {
    /// The cell of a row with these bytes, in order and without gaps: 1 to [`COPY_ROW_MAX`].
    pub(crate) fn encode(&mut self, compression: Compression, parts: &[&[u8]]) -> &[u8] {
        let Compression { codec, block } = compression;
        let at = match self.encoders.iter().position(|(of, _)| *of == compression) {
            Some(at) => at,
            None => {
                self.encoders.push((compression, RowEncoder::new(scheme(block), codec)));
                self.encoders.len() - 1
            }
        };
        let row = match parts {
            [one] => one,
            many => {
                self.row.clear();
                many.iter().for_each(|part| self.row.extend_from_slice(part));
                &self.row[..]
            }
        };
        let len_max = self.cell.len().max(cell_len_max(COPY_ROW_MAX, block));
        self.cell.resize(len_max, 0);
        let head = self.encoders[at].1.encode(row, &mut [&mut self.cell[..]]);
        &self.cell[..head.cell_len()]
    }

    /// The logical bytes of a row whose cell, in verified `sectors`, is this.
    pub(crate) fn decode(&mut self, row: &Row, sectors: &[u8]) -> Result<&[u8], BadCell> {
        if row.fragment != Fragment::COPY {
            return Err(BadCell);
        }
        debug_assert_eq!(sectors.len(), row.sectors() as usize * SECTOR);
        self.cell.resize(self.cell.len().max(row.cell_len as usize), 0);
        let cell = &mut self.cell[..row.cell_len as usize];
        cell_to(sectors, cell);
        self.row.resize(row.len as usize, 0);
        let cells = [Cell { fragment: 0, bytes: cell }];
        let decoder = self.decoder.get_or_insert_default();
        decoder.read(&cells, &mut self.row).map_err(|_| BadCell)?;
        Ok(&self.row)
    }
}

impl Rows {
    /// The logical bytes of the blocks with some bytes of a row, and the offset in the row of the first,
    /// from a part of its cell.
    pub(crate) fn decode_blocks(
        &mut self,
        pieces: &CellPieces<'_>,
        bytes: Range<usize>,
    ) -> Result<(usize, &[u8]), BadCell> {
        let row = &pieces.row;
        if row.fragment != Fragment::COPY {
            return Err(BadCell);
        }
        self.cell.resize(self.cell.len().max(row.cell_len as usize), 0);
        let cell = &mut self.cell[..row.cell_len as usize];
        pieces.place(cell);
        let front = CellFront::of(0, cell).map_err(|_| BadCell)?;
        let blocks = front.blocks(bytes);
        let contents = front.contents(blocks.clone()).map_err(|_| BadCell)?;
        if !pieces.has(&contents) {
            return Err(BadCell);
        }
        let logical = front.logical(blocks.clone());
        self.row.resize(logical.len(), 0);
        let decoder = self.decoder.get_or_insert_default();
        let read = decoder.read_blocks(&front, blocks, &cell[contents], &mut self.row);
        read.map_err(|_| BadCell)?;
        Ok((logical.start, &self.row))
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rows({} codecs)", self.encoders.len())
    }
}
