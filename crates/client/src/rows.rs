//! Rows on their way into sectors and back (C18, C19, C26): the codecs' memory, which all writers and
//! readers of a client share.

use std::array::from_fn;
use std::fmt;
use std::ops::Range;

use base::limits::SECTOR;
use codec::block::{BlockSize, Codec};
use codec::ec::Kernel;
use codec::limits::FRAGMENTS_MAX;
use codec::row::{Cell, CellFront, CellHead, RowDecoder, RowEncoder, Scheme};
use runtime::OutOfMemory;
use wire::control::Verify;
use wire::control::limits::VERIFY_SAMPLE;
use wire::pieces::CellPieces;
use wire::row::{Fragment, Row, cell_to};

use crate::planted::{Planted, planted};
use crate::writer::Layout;

/// The codecs of one client. Memory comes with the first row: that of a row and of its cells, 4 MiB at
/// most, and a compressor's for writers, 3 MiB for readers, and as much with the first row that is read
/// back.
#[derive(Default)]
pub(crate) struct Rows {
    encoders: Vec<((Scheme, Codec), RowEncoder)>,
    decoder: Option<RowDecoder>,
    row: Vec<u8>,
    cells: Vec<u8>,
    /// Reads back what was laid out: there with the first row that is verified.
    checker: Option<Checker>,
    /// Rows laid out so far.
    laid_out: u64,
    /// Rows that were read back, and those of them that were wrong.
    checked: u64,
    wrong: u64,
    /// The fast kernels have erred, and are out of use.
    portable: bool,
}

struct Checker {
    decoder: RowDecoder,
    row: Vec<u8>,
}

/// Why a row is not laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LayError {
    /// There is no memory for its sectors now.
    Memory(OutOfMemory),
    /// What was compressed and coded does not read back as what it was made of, by portable code either.
    Wrong,
}

impl From<OutOfMemory> for LayError {
    fn from(error: OutOfMemory) -> LayError {
        LayError::Memory(error)
    }
}

impl fmt::Display for LayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayError::Memory(error) => error.fmt(f),
            LayError::Wrong => f.write_str(
                "what was compressed and coded does not read back as what it was made of: the CPU or \
                 the memory of this machine errs; run the client on another one",
            ),
        }
    }
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

/// The kernel that is used.
fn kernel(portable: bool) -> Kernel {
    if portable { Kernel::portable() } else { Kernel::fastest() }
}

impl Checker {
    fn new(kernel: Kernel) -> Checker {
        Checker { decoder: RowDecoder::with_kernel(kernel), row: Vec::new() }
    }

    /// Whether k of the cells, chosen by `number`, give back the row, and all others.
    fn reads_back(
        &mut self,
        number: u64,
        row: &[u8],
        head: &CellHead,
        cells: &[&mut [u8]],
    ) -> bool {
        let (k, n) = (head.scheme.k(), head.scheme.n());
        // Any k fragments, as a multiplicative hash of the row's number has them.
        let mut order: [u8; FRAGMENTS_MAX] = from_fn(|fragment| fragment as u8);
        let mut draw = number;
        for at in 0..k {
            draw = (draw ^ draw >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
            order.swap(at, at + (draw >> 33) as usize % (n - at));
        }
        let none = Cell { fragment: 0, bytes: &[] };
        let given: [Cell<'_>; FRAGMENTS_MAX] = from_fn(|at| match at < k {
            true => {
                let fragment = order[at];
                Cell { fragment, bytes: &cells[usize::from(fragment)][..head.cell_len()] }
            }
            false => none,
        });
        self.row.resize(row.len(), 0);
        let read = self.decoder.read(&given[..k], &mut self.row);
        let others = n == k || self.decoder.rebuild(&given[..k], &[], &mut []).is_ok();
        read.is_ok() && others && self.row == row
    }
}

/// Verified sectors with a whole cell, of the fragment with this number.
pub(crate) type CellSectors<'a> = (u8, &'a [u8]);

impl Rows {
    /// Lays a row with these bytes out, in order and without gaps: 1 to the most that its layout takes.
    /// `place` gets each cell, in the order of fragments. Returns the length of a cell. Rows that are to be
    /// verified are read back first; when one is wrong, the fast kernels are used no more by this client.
    pub(crate) fn encode(
        &mut self,
        (layout, verify): (Layout, Verify),
        parts: &[&[u8]],
        mut place: impl FnMut(&[u8]) -> Result<(), LayError>,
    ) -> Result<usize, LayError> {
        let kind = rows_of(layout);
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
        let cells = &mut cells[..n];
        self.laid_out += 1;
        let sampled = self.laid_out.is_multiple_of(VERIFY_SAMPLE);
        let verified = verify == Verify::All || verify == Verify::Sampled && sampled;
        let head = loop {
            let kernel = kernel(self.portable);
            let known = self.encoders.iter().position(|(of, _)| *of == kind);
            let at = known.unwrap_or_else(|| {
                let encoder = RowEncoder::with_kernel(kind.0, kind.1, kernel);
                self.encoders.push((kind, encoder));
                self.encoders.len() - 1
            });
            let head = self.encoders[at].1.encode(row, cells);
            if !verified && !self.portable || planted(Planted::VerifySkipped) {
                break head;
            }
            self.checked += 1;
            let checker = self.checker.get_or_insert_with(|| Checker::new(kernel));
            if checker.reads_back(self.laid_out, row, &head, cells) {
                break head;
            }
            self.wrong += 1;
            // With the portable kernel the row itself, or this machine's memory, is in doubt.
            if std::mem::replace(&mut self.portable, true) {
                return Err(LayError::Wrong);
            }
            tracing::error!(
                kernel = kernel.name(),
                "a row is not what it was made of: the CPU or the memory of this machine errs; \
                 portable code is used from now on, and all rows are read back"
            );
            self.encoders.clear();
            (self.checker, self.decoder) = (None, None);
        };
        for cell in &*cells {
            place(&cell[..head.cell_len()])?;
        }
        Ok(head.cell_len())
    }

    /// Rows that were read back before they were sent, and those of them that were wrong.
    pub(crate) fn verified(&self) -> (u64, u64) {
        (self.checked, self.wrong)
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
        let kernel = kernel(self.portable);
        let decoder = self.decoder.get_or_insert_with(|| RowDecoder::with_kernel(kernel));
        decoder.read(&given[..cells.len()], &mut self.row).map_err(|_| BadCell)?;
        Ok(&self.row)
    }

    /// As [`Rows::decode_cells`], from whichever k of more cells give the bytes: they are in
    /// [`Rows::row`] then.
    pub(crate) fn decode_any_cells(
        &mut self,
        lens: (u32, u32),
        k: usize,
        cells: &[CellSectors<'_>],
    ) -> Result<(), BadCell> {
        if self.decode_cells(lens, &cells[..k.min(cells.len())]).is_ok() {
            return Ok(());
        }
        let contents = cells.iter().map(|(fragment, sectors)| {
            let mut cell = vec![0; lens.1 as usize];
            cell_to(sectors, &mut cell);
            (*fragment, cell)
        });
        let contents: Vec<_> = contents.collect();
        let given = contents.iter().map(|(fragment, bytes)| Cell { fragment: *fragment, bytes });
        let given: Vec<_> = given.collect();
        let kernel = kernel(self.portable);
        let decoder = self.decoder.get_or_insert_with(|| RowDecoder::with_kernel(kernel));
        let head = decoder.read_any(&given, k, &mut self.row).map_err(|_| BadCell)?;
        if head.row_len == lens.0 { Ok(()) } else { Err(BadCell) }
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
        let kernel = kernel(self.portable);
        let decoder = self.decoder.get_or_insert_with(|| RowDecoder::with_kernel(kernel));
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
