//! Rows on their way into sectors and back (C18, C19, C26): the codecs' memory, which all writers and
//! readers of a client share.

use std::array::from_fn;
use std::ops::Range;

use base::limits::SECTOR;
use codec::block::{BlockSize, Codec};
use codec::limits::FRAGMENTS_MAX;
use codec::row::{Cell, CellFront, RowDecoder, RowEncoder, Scheme};
use wire::pieces::CellPieces;
use wire::row::{Fragment, Row, cell_to};

use crate::writer::Layout;

/// The codecs of one client. Memory comes with the first row: that of a row and of its cells, 4 MiB at
/// most, and a compressor's for writers, 3 MiB for readers.
#[derive(Default)]
pub(crate) struct Rows {
    encoders: Vec<((Scheme, Codec), RowEncoder)>,
    decoder: Option<RowDecoder>,
    row: Vec<u8>,
    cells: Vec<u8>,
}

/// A cell that is not what its row's writer laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadCell;

/// The rows of a layout: their scheme, and the codec of their blocks.
pub(crate) fn rows_of(layout: Layout) -> (Scheme, Codec) {
    let (codec, block) = match layout.compression {
        Some(compression) => (compression.codec, compression.block),
        None => (Codec::Plain, BlockSize::PAPERS),
    };
    let scheme = match layout.code {
        Some(code) => code.scheme(block).expect("checked when it was granted"),
        None => Scheme::new(1, 0, block).expect("copies are offered"),
    };
    (scheme, codec)
}

/// Verified sectors with a whole cell, of the fragment with this number.
pub(crate) type CellSectors<'a> = (u8, &'a [u8]);

impl Rows {
    /// Lays a row with these bytes out, in order and without gaps: 1 to the most that its layout takes.
    /// `place` gets each cell, in the order of fragments. Returns the length of a cell.
    pub(crate) fn encode<E>(
        &mut self,
        layout: Layout,
        parts: &[&[u8]],
        mut place: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let kind = rows_of(layout);
        let at = match self.encoders.iter().position(|(of, _)| *of == kind) {
            Some(at) => at,
            None => {
                self.encoders.push((kind, RowEncoder::new(kind.0, kind.1)));
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
        let (n, cell_max) = (kind.0.n(), kind.0.cell_max(row.len()));
        self.cells.resize(self.cells.len().max(n * cell_max), 0);
        let mut chunks = self.cells.chunks_mut(cell_max);
        let mut cells: [&mut [u8]; FRAGMENTS_MAX] = from_fn(|_| chunks.next().unwrap_or_default());
        let head = self.encoders[at].1.encode(row, &mut cells[..n]);
        for cell in &cells[..n] {
            place(&cell[..head.cell_len()])?;
        }
        Ok(head.cell_len())
    }

    /// The logical bytes of a row of copies whose cell, in verified `sectors`, is this.
    pub(crate) fn decode(&mut self, row: &Row, sectors: &[u8]) -> Result<&[u8], BadCell> {
        if row.fragment != Fragment::COPY {
            return Err(BadCell);
        }
        debug_assert_eq!(sectors.len(), row.sectors() as usize * SECTOR);
        self.decode_cells((row.len, row.cell_len), &[(0, sectors)])
    }

    /// The logical bytes of a row of `row_len` bytes, from as many cells of `cell_len` bytes as it has
    /// data fragments.
    pub(crate) fn decode_cells(
        &mut self,
        (row_len, cell_len): (u32, u32),
        cells: &[CellSectors<'_>],
    ) -> Result<&[u8], BadCell> {
        let (row_len, cell_len) = (row_len as usize, cell_len as usize);
        if cells.len() > FRAGMENTS_MAX || cell_len == 0 {
            return Err(BadCell);
        }
        self.cells.resize(self.cells.len().max(cells.len() * cell_len), 0);
        for ((_, sectors), cell) in cells.iter().zip(self.cells.chunks_mut(cell_len)) {
            cell_to(sectors, cell);
        }
        let cell = |at: usize| Cell {
            fragment: cells.get(at).map_or(0, |cell| cell.0),
            bytes: self.cells.chunks(cell_len).nth(at).unwrap_or_default(),
        };
        let given: [Cell<'_>; FRAGMENTS_MAX] =
            from_fn(
                |at| if at < cells.len() { cell(at) } else { Cell { fragment: 0, bytes: &[] } },
            );
        self.row.resize(row_len, 0);
        let decoder = self.decoder.get_or_insert_default();
        decoder.read(&given[..cells.len()], &mut self.row).map_err(|_| BadCell)?;
        Ok(&self.row)
    }

    /// Memory for the bytes of a row, to be [given back](Rows::give_row).
    pub(crate) fn take_row(&mut self) -> Vec<u8> {
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        row
    }

    /// The row that was decoded last.
    pub(crate) fn row(&self) -> &[u8] {
        &self.row
    }

    /// See [`Rows::row`].
    pub(crate) fn row_mut(&mut self) -> &mut Vec<u8> {
        &mut self.row
    }

    /// See [`Rows::take_row`].
    pub(crate) fn give_row(&mut self, row: Vec<u8>) {
        self.row = row;
    }
}

impl Rows {
    /// The logical bytes of the blocks with some bytes of a row, and the offset in the row of the first,
    /// from a part of the cell of a copy or of a data fragment: as far as its share has them.
    pub(crate) fn decode_blocks(
        &mut self,
        pieces: &CellPieces<'_>,
        bytes: Range<usize>,
    ) -> Result<(usize, &[u8]), BadCell> {
        let row = &pieces.row;
        self.cells.resize(self.cells.len().max(row.cell_len as usize), 0);
        let cell = &mut self.cells[..row.cell_len as usize];
        pieces.place(cell);
        let front = CellFront::of(row.fragment.number, cell).map_err(|_| BadCell)?;
        if !front.share().contains(&bytes.start) {
            return Err(BadCell);
        }
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
