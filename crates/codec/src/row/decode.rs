//! From any k cells to logical bytes, or to the other cells.

use std::array::from_fn;

use super::{CELL_HEAD, CellHead, RowError, Sources, Targets, row_check};
use crate::block::Unpacker;
use crate::copy::copy;
use crate::ec::{DecodeError, Kernel, Rebuild};
use crate::limits::{FRAGMENTS_MAX, PARITY_MAX, SHARE_STORED_MAX};
use crate::planted;

/// A whole cell as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// Number of its fragment: the replica's, for no cell has it.
    pub fragment: u8,
    /// Its head and what is behind.
    pub bytes: &'a [u8],
}

/// Reads rows from any k of their cells. Its memory, 1 MiB and contexts of codecs, is allocated with
/// it: a row allocates nothing.
pub struct RowDecoder {
    pub(super) unpacker: Unpacker,
    kernel: Kernel,
    /// What is decoded of the fragments that are not at hand, one after the other.
    decoded: Box<[u8]>,
}

impl Default for RowDecoder {
    fn default() -> Self {
        RowDecoder::new()
    }
}

impl RowDecoder {
    /// A decoder for rows of any scheme.
    pub fn new() -> RowDecoder {
        RowDecoder::with_kernel(Kernel::fastest())
    }

    /// The same for a kernel: all of them give the same bytes.
    pub fn with_kernel(kernel: Kernel) -> RowDecoder {
        let decoded = vec![0; PARITY_MAX * SHARE_STORED_MAX].into_boxed_slice();
        RowDecoder { unpacker: Unpacker::new(), kernel, decoded }
    }

    /// Does something without vector instructions. What does not agree with them is looked at again so, before a
    /// row is taken for wrong: a CPU may err in them, and by the same bytes each time.
    pub fn portably<T>(&mut self, work: impl FnOnce(&mut RowDecoder) -> T) -> T {
        let own = std::mem::replace(&mut self.kernel, Kernel::portable());
        let done = work(self);
        self.kernel = own;
        done
    }

    /// Fills `row`, which has the length that the caller knows, from k cells. `Ok` says that every
    /// block has its checksum, also one of a share that was decoded from other cells; after an error
    /// the bytes in `row` have no meaning.
    pub fn read(&mut self, cells: &[Cell<'_>], row: &mut [u8]) -> Result<CellHead, RowError> {
        let head = common_head(cells)?;
        let (want, seen) = (row.len(), head.row_len as usize);
        if want != seen {
            return Err(RowError::RowLength { want, seen });
        }
        let (scheme, stored_len) = (head.scheme, head.stored_len as usize);
        let missing = Missing::of(cells, scheme.k());
        self.decode(&head, cells, missing)?;
        for index in 0..scheme.k() {
            let stored = match missing.place(index as u8) {
                Some(place) => &self.decoded[place * stored_len..][..stored_len],
                None => stored_of(cells, index as u8).expect("at hand or missing"),
            };
            let share = index as u8;
            let logical = &mut row[scheme.share(want, index)];
            let Some((heads, contents)) = stored.split_at_checked(scheme.heads(logical.len()))
            else {
                return Err(RowError::Head);
            };
            let mut at = 0;
            let blocks = logical.chunks_mut(scheme.block().bytes());
            for (block, head) in blocks.zip(heads.as_chunks().0) {
                let used = self.unpacker.unpack_apart(head, &contents[at..], block);
                at += used.map_err(|error| RowError::Block { share, error })?;
            }
            if contents[at..].iter().any(|&byte| byte != 0) {
                return Err(RowError::Padding { share });
            }
        }
        Ok(head)
    }

    /// As [`RowDecoder::rebuild`] of a row that was coded wrong, whose cells do not give the row check: what is
    /// written follows from k cells that have all blocks of the row with their checksums. `row` is scratch
    /// space.
    pub fn rebuild_by_blocks(
        &mut self,
        cells: &[Cell<'_>],
        wanted: &[u8],
        out: &mut [&mut [u8]],
        row: &mut Vec<u8>,
    ) -> Result<CellHead, RowError> {
        assert_eq!(wanted.len(), out.len());
        let head = common_head(cells)?;
        row.resize(head.row_len as usize, 0);
        self.read(cells, row)?;
        let missing = Missing::of(cells, head.scheme.n());
        self.decode(&head, cells, missing)?;
        self.write_cells(&head, missing, wanted, out)?;
        Ok(head)
    }

    /// Writes the cells `wanted`, none of which is at hand, to the fronts of `out`, from k cells. All n
    /// cells of the row are computed and compared with the row check first, so `Ok` says that every
    /// byte is the encoder's. Without `wanted` it is the check alone. Panics when `out` has another
    /// number of buffers, or less than a cell in one.
    pub fn rebuild(
        &mut self,
        cells: &[Cell<'_>],
        wanted: &[u8],
        out: &mut [&mut [u8]],
    ) -> Result<CellHead, RowError> {
        assert_eq!(wanted.len(), out.len());
        let head = common_head(cells)?;
        let (n, stored_len) = (head.scheme.n(), head.stored_len as usize);
        let missing = Missing::of(cells, n);
        self.decode(&head, cells, missing)?;
        let decoded = |fragment: u8| {
            let place = missing.place(fragment)?;
            Some(&self.decoded[place * stored_len..][..stored_len])
        };
        let crcs: [u32; FRAGMENTS_MAX] = from_fn(|index| {
            let fragment = index as u8;
            let stored = decoded(fragment).or_else(|| stored_of(cells, fragment));
            stored.map_or(0, |stored| head.cell_crc(stored))
        });
        if row_check(&crcs[..n]) != head.check {
            return Err(RowError::Check);
        }
        self.write_cells(&head, missing, wanted, out)?;
        Ok(head)
    }

    /// Writes cells that were decoded.
    fn write_cells(
        &self,
        head: &CellHead,
        missing: Missing,
        wanted: &[u8],
        out: &mut [&mut [u8]],
    ) -> Result<(), RowError> {
        let stored_len = head.stored_len as usize;
        for (fragment, out) in wanted.iter().zip(out) {
            let Some(place) = missing.place(*fragment) else {
                let error = match usize::from(*fragment) < head.scheme.n() {
                    true => DecodeError::Repeated(*fragment),
                    false => DecodeError::Unknown(*fragment),
                };
                return Err(RowError::Fragments(error));
            };
            let stored = &self.decoded[place * stored_len..][..stored_len];
            out[..CELL_HEAD].copy_from_slice(&head.encode());
            copy(stored, &mut out[CELL_HEAD..head.cell_len()]);
        }
        Ok(())
    }

    /// Decodes the missing fragments into `decoded`.
    fn decode(
        &mut self,
        head: &CellHead,
        cells: &[Cell<'_>],
        missing: Missing,
    ) -> Result<(), RowError> {
        let numbers: [u8; FRAGMENTS_MAX] =
            from_fn(|at| cells.get(at).map_or(0, |cell| cell.fragment));
        let from = numbers.get(..cells.len()).unwrap_or(&numbers);
        let to = missing.numbers();
        let decoder = head.scheme.code_with(self.kernel).decoder(Rebuild { from, to });
        let decoder = decoder.map_err(RowError::Fragments)?;
        let mut sources: Sources = [&[]; _];
        for (source, cell) in sources.iter_mut().zip(cells) {
            *source = &cell.bytes[CELL_HEAD..];
        }
        let mut places = self.decoded.chunks_mut(head.stored_len as usize);
        let mut targets: Targets = from_fn(|_| places.next().expect("room for all parity"));
        decoder.decode(&sources[..cells.len()], &mut targets[..to.len()]);
        if !self.kernel.is_portable() && planted::decoding_errs() {
            targets[..to.len()].iter_mut().for_each(|target| target[0] ^= 1);
        }
        Ok(())
    }
}

/// The head that all cells have, each of which has its length.
fn common_head(cells: &[Cell<'_>]) -> Result<CellHead, RowError> {
    let mut common: Option<(&[u8; CELL_HEAD], CellHead)> = None;
    for &Cell { fragment, bytes } in cells {
        let Some(stored) = bytes.first_chunk() else {
            return Err(RowError::CellLength { fragment });
        };
        let (first, head) = match common {
            Some(common) => common,
            None => (stored, CellHead::decode(stored)?),
        };
        common = Some((first, head));
        if stored != first {
            return Err(RowError::Mixed { fragment });
        }
        if bytes.len() != head.cell_len() {
            return Err(RowError::CellLength { fragment });
        }
    }
    let (_, head) = common.ok_or(RowError::Head)?;
    Ok(head)
}

/// What a cell at hand has behind its head.
fn stored_of<'a>(cells: &[Cell<'a>], fragment: u8) -> Option<&'a [u8]> {
    let cell = cells.iter().find(|cell| cell.fragment == fragment);
    cell.map(|cell| &cell.bytes[CELL_HEAD..])
}

/// Fragments that are not at hand, in order.
#[derive(Clone, Copy)]
struct Missing {
    numbers: [u8; FRAGMENTS_MAX],
    count: usize,
}

impl Missing {
    /// Of the first `count` fragments.
    fn of(cells: &[Cell<'_>], count: usize) -> Missing {
        let mut missing = Missing { numbers: [0; FRAGMENTS_MAX], count: 0 };
        for number in 0..count as u8 {
            if cells.iter().all(|cell| cell.fragment != number) {
                missing.numbers[missing.count] = number;
                missing.count += 1;
            }
        }
        missing
    }

    fn numbers(&self) -> &[u8] {
        &self.numbers[..self.count]
    }

    fn place(&self, fragment: u8) -> Option<usize> {
        self.numbers().iter().position(|number| *number == fragment)
    }
}
