//! Fragments of coded chunks, made from others (C18, `protocols-tail.md` 9.11).
//!
//! The cell of a row is what its writer laid out, bit for bit: what is decoded is compared with the row
//! check, over all cells of the row, before it is stored.

use base::Kind;
use base::limits::{APPEND_SECTORS_MAX, SECTOR, SECTOR_DATA_MAX};
use chunkstore::ChunkStore;
use codec::ec::{Kernel, Rebuild as Decoding};
use codec::row::{Cell, RowDecoder, RowError, sets};
use futures_util::future::join_all;
use runtime::Buf;
use wire::control::{ControlError, ReplicaPlace};
use wire::data::{ChunkRef, DataRequest, ReadRequest};
use wire::row::{CellPart, Fragment, Layout, Row, cell_to, place_cell, row_at, rows, stamp_cell};
use wire::sector::{AppendAt, Footer, SectorError, sectors_for, verify_sector};

use crate::copy::{CopySource, NoSectors, call_read};
use crate::server::Chunkserver;

/// A fragment that is being made.
pub(crate) struct Rebuild {
    fragment: Fragment,
    decoder: RowDecoder,
}

/// The code of a fragment, to read what is coded by it: none of its fragments is being made.
pub(crate) fn reading(code: Fragment) -> Fragment {
    Fragment { number: u8::MAX, ..code }
}

/// The layout of a source with a fragment of the same code as another.
fn layout(code: Fragment, number: u8) -> Layout {
    Layout::Rows(Fragment { number, ..code })
}

/// Those of `all` with a bit in a set.
fn chosen<T>(all: &[T], set: u32) -> impl Iterator<Item = &T> {
    all.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, it)| it)
}

/// Verified sectors of whole cells of one fragment.
type Cells = (u8, Buf);

impl Rebuild {
    /// Of this fragment.
    pub(crate) fn of(fragment: Fragment) -> Rebuild {
        Rebuild { fragment, decoder: RowDecoder::new() }
    }

    /// Fragments that give all others.
    fn k(&self) -> usize {
        usize::from(self.fragment.k)
    }

    /// The sectors of the fragment's cells of the rows that begin at a place, from those of k others; as
    /// many as one append takes, and as all of them have. An error when the first row does not give
    /// its cell.
    fn decode(&mut self, at: AppendAt, cells: &[&Cells]) -> Result<Vec<u8>, RowError> {
        let mut all: Vec<_> = cells.iter().map(|(number, it)| (*number, rows(it))).collect();
        let mut out = Vec::new();
        loop {
            let row: Option<Vec<_>> =
                all.iter_mut().map(|(number, rows)| Some((*number, rows.next()?))).collect();
            let Some(row) = row else { break };
            let first = row[0].1.0;
            if out.len() / SECTOR + first.sectors() as usize > APPEND_SECTORS_MAX {
                break;
            }
            match self.decode_row(at, &row) {
                Ok(sectors) => out.extend(sectors),
                Err(error) if out.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        if out.is_empty() { Err(RowError::Head) } else { Ok(out) }
    }

    fn decode_row(
        &mut self,
        at: AppendAt,
        row: &[(u8, (Row, &[u8]))],
    ) -> Result<Vec<u8>, RowError> {
        let first = row[0].1.0;
        let mut bytes = Vec::with_capacity(row.len());
        for (fragment, (other, sectors)) in row {
            let same = Row { fragment: other.fragment, ..first };
            if *other != same {
                return Err(RowError::Mixed { fragment: *fragment });
            }
            let mut cell = vec![0; other.cell_len as usize];
            cell_to(sectors, &mut cell);
            bytes.push((*fragment, cell));
        }
        self.cell(at, &first, &bytes)
    }

    /// The sectors of the fragment's cell of a row, from k others, verified by the row check.
    fn cell(
        &mut self,
        at: AppendAt,
        row: &Row,
        others: &[(u8, Vec<u8>)],
    ) -> Result<Vec<u8>, RowError> {
        let cells: Vec<_> =
            others.iter().map(|(fragment, bytes)| Cell { fragment: *fragment, bytes }).collect();
        let number = self.fragment.number;
        let mut cell = vec![0; row.cell_len as usize];
        self.decoder.rebuild(&cells, &[number], &mut [&mut cell])?;
        Ok(self.stamped(at, row, &cell))
    }

    /// As [`Rebuild::decode`], of whichever k of the cells at hand agree. Where none give the row check, by no
    /// instructions, the row was coded wrong: of those that have its bytes.
    fn decode_any(&mut self, at: AppendAt, cells: &[Cells]) -> Result<Vec<u8>, RowError> {
        if let Ok(sectors) = self.decode_some(at, cells) {
            return Ok(sectors);
        }
        // What is made of a row without a check of all its cells is by instructions that do not err.
        let own = std::mem::replace(&mut self.decoder, RowDecoder::with_kernel(Kernel::portable()));
        let made = self.decode_some(at, cells);
        let made = made.or_else(|error| self.decode_miscoded(at, cells).ok_or(error));
        self.decoder = own;
        made
    }

    /// Of the first k that give the row check.
    fn decode_some(&mut self, at: AppendAt, cells: &[Cells]) -> Result<Vec<u8>, RowError> {
        let mut error = RowError::Head;
        for set in sets(cells.len(), self.k()) {
            match self.decode(at, &chosen(cells, set).collect::<Vec<_>>()) {
                Ok(sectors) => return Ok(sectors),
                Err(found) => error = found,
            }
        }
        Err(error)
    }

    /// The sectors of the fragment's cell of the first row, by the checksums of its blocks alone.
    fn decode_miscoded(&mut self, at: AppendAt, cells: &[Cells]) -> Option<Vec<u8>> {
        let (all, mut scratch) = (first_cells(cells), Vec::new());
        for set in sets(all.len(), self.k()) {
            let chosen: Vec<_> = chosen(&all, set).collect();
            let row = chosen[0].0;
            let is_same = |other: Row| other == Row { fragment: other.fragment, ..row };
            if !chosen.iter().all(|(other, _)| is_same(*other)) {
                continue;
            }
            let given: Vec<_> = chosen.iter().map(|it| cell_of(it)).collect();
            let mut cell = vec![0; row.cell_len as usize];
            let (wanted, made) = (&[self.fragment.number], &mut [&mut cell[..]]);
            if self.decoder.rebuild_by_blocks(&given, wanted, made, &mut scratch).is_ok() {
                return Some(self.stamped(at, &row, &cell));
            }
        }
        None
    }

    fn stamped(&self, at: AppendAt, row: &Row, cell: &[u8]) -> Vec<u8> {
        let mut sectors = vec![0; sectors_for(cell.len()) * SECTOR];
        place_cell(cell, &mut sectors);
        let number = self.fragment.number;
        let part = CellPart { fragment: number, codec: row.codec, index: 0 };
        stamp_cell(AppendAt { offset: row.offset, ..at }, part, cell.len(), &mut sectors);
        sectors
    }
}

impl<S: ChunkStore> Chunkserver<S> {
    /// The next cells of a fragment that is being made: from a replica that has the same one, else
    /// decoded from k others, each row of which is verified. Sources may be damaged at different places:
    /// less at a time, then other sources, and of a row that no k of them have whole, its sectors.
    pub(crate) async fn next_cells(
        &self,
        copy: &CopySource,
        rebuild: &mut Rebuild,
        sources: &mut Vec<&ReplicaPlace>,
        offset: u32,
        want: &mut u32,
    ) -> Result<Buf, ControlError> {
        let at = AppendAt {
            chunk: copy.order.chunk,
            epoch: copy.order.epoch,
            base: copy.order.base,
            offset,
        };
        let number = rebuild.fragment.number;
        loop {
            let mut same: Vec<_> =
                sources.iter().copied().filter(|it| it.fragment == number).collect();
            let copied = self.fetch_from(copy, &mut same, offset, *want).await;
            if let Some(sectors) =
                copied.filter(|it| Layout::of(it) == layout(rebuild.fragment, number))
            {
                return Ok(sectors);
            }
            sources.retain(|it| it.fragment != number || same.contains(it));
            let (code, k) = (rebuild.fragment, rebuild.k());
            let mut cells = self.gather(copy, code, sources, (offset, *want), k).await;
            if cells.len() == rebuild.k() {
                let chosen: Vec<_> = cells.iter().collect();
                if let Ok(sectors) = rebuild.decode(at, &chosen) {
                    return self.buffer(&sectors);
                }
                self.0.env.mark("rebuild: cells of a row do not agree");
            }
            if *want > 1 && sources.len() >= rebuild.k() {
                *want = if *want as usize > SECTOR_DATA_MAX { *want / 2 } else { 1 };
                continue;
            }
            if cells.len() == rebuild.k() {
                let n = usize::from(code.k + code.p);
                cells = self.gather(copy, code, sources, (offset, 1), n).await;
                if let Ok(sectors) = rebuild.decode_any(at, &cells) {
                    return self.buffer(&sectors);
                }
            }
            if let Some(sectors) = self.collect_cells(copy, rebuild, sources, at).await {
                self.0.env.mark("rebuild: a row from sectors of several sources");
                return self.buffer(&sectors);
            }
            let text = format!(
                "fewer than {} of {} fragments serve {} from byte {offset}",
                rebuild.fragment.k,
                rebuild.fragment.k + rebuild.fragment.p,
                copy.order.chunk
            );
            return Err(ControlError::new(Kind::Reroute, text));
        }
    }

    fn buffer(&self, sectors: &[u8]) -> Result<Buf, ControlError> {
        let copied = self.0.env.pool().copy_of(sectors);
        copied.map_err(|error| ControlError::new(Kind::Retry, error.to_string()))
    }

    /// Whole cells from a place on, of as many different fragments of a code as are wanted, or as there are.
    /// None of them is `code` itself, which is being made, unless it is for [`reading`].
    pub(crate) async fn gather(
        &self,
        copy: &CopySource,
        code: Fragment,
        sources: &mut Vec<&ReplicaPlace>,
        (offset, want): (u32, u32),
        count: usize,
    ) -> Vec<Cells> {
        let mut cells: Vec<Cells> = Vec::new();
        let number = code.number;
        let mut untried: Vec<_> =
            sources.iter().copied().filter(|it| it.fragment != number).collect();
        loop {
            let mut batch: Vec<&ReplicaPlace> = Vec::new();
            untried.retain(|place| {
                let known = cells.iter().map(|cell| cell.0);
                let known = known.chain(batch.iter().map(|it| it.fragment));
                let next = cells.len() + batch.len() < count
                    && known.into_iter().all(|fragment| fragment != place.fragment);
                if next {
                    batch.push(place);
                }
                !next
            });
            if batch.is_empty() {
                return cells;
            }
            let fetch = batch.iter().map(|place| self.fetch(copy, place, offset, want));
            let answers = join_all(fetch).await;
            for (place, answer) in batch.into_iter().zip(answers) {
                let why = match answer {
                    Ok(sectors) if Layout::of(&sectors) == layout(code, place.fragment) => {
                        cells.push((place.fragment, sectors));
                        continue;
                    }
                    Ok(_) => "it has another fragment".to_owned(),
                    Err(NoSectors::Damaged(why)) => why,
                    Err(NoSectors::Lost(why)) => {
                        sources.retain(|source| *source != place);
                        why
                    }
                };
                let source = place.addr;
                tracing::debug!(chunk = %copy.order.chunk, %source, offset, why, "no cells");
                self.0.env.mark("rebuild goes on with another fragment");
            }
        }
    }

    /// The cell of the row at a place, where no k sources have theirs whole: sector by sector, for all
    /// cells of a row have the same bytes coded at the same place.
    async fn collect_cells(
        &self,
        copy: &CopySource,
        rebuild: &mut Rebuild,
        sources: &[&ReplicaPlace],
        at: AppendAt,
    ) -> Option<Vec<u8>> {
        let Fragment { k, p, number } = rebuild.fragment;
        let n = usize::from(k + p);
        let mut row: Option<(Row, Footer)> = None;
        let mut cells = vec![Vec::new(); n];
        let mut index = 0;
        while row.is_none_or(|(row, _)| index < row.sectors()) {
            let mut parts: Vec<(u8, Buf)> = Vec::new();
            for place in sources.iter().filter(|it| it.fragment != number) {
                if parts.len() == usize::from(k) {
                    break;
                }
                if parts.iter().any(|(fragment, _)| *fragment == place.fragment) {
                    continue;
                }
                let read = DataRequest::Read(ReadRequest {
                    at: ChunkRef { chunk: copy.order.chunk, disk: place.disk },
                    offset: at.offset,
                    len: 1,
                    uncommitted: true,
                    cell_sector: Some(index as u16),
                    blocks: false,
                });
                let (env, endpoint) = (&self.0.env, &self.0.endpoint);
                let Ok(sector) = call_read(env, endpoint, place, read, copy).await else {
                    continue;
                };
                let own = Fragment { number: place.fragment, ..rebuild.fragment };
                if check_part(&mut row, at, own, index, &sector).is_ok() {
                    parts.push((place.fragment, sector));
                }
            }
            if parts.len() < usize::from(k) {
                return None;
            }
            let (row, _) = row.as_ref()?;
            let rest = row.cell_len as usize - index as usize * SECTOR_DATA_MAX;
            fill_parts(row, &parts, rest.min(SECTOR_DATA_MAX), &mut cells);
            index += 1;
        }
        let (row, _) = row?;
        let others: Vec<_> = (0..n as u8)
            .filter(|other| *other != number)
            .take(k.into())
            .map(|other| (other, std::mem::take(&mut cells[usize::from(other)])))
            .collect();
        rebuild.cell(at, &row, &others).ok()
    }
}

/// The first row of a fragment, and its cell.
pub(crate) type FirstCell = (Row, Vec<u8>);

/// Of verified sectors of several fragments, the cell of each one's first row.
pub(crate) fn first_cells(cells: &[Cells]) -> Vec<FirstCell> {
    let first = cells.iter().filter_map(|(_, sectors)| {
        let (row, sectors) = rows(sectors).next()?;
        let mut cell = vec![0; row.cell_len as usize];
        cell_to(sectors, &mut cell);
        Some((row, cell))
    });
    first.collect()
}

/// The cell for a decoder.
pub(crate) fn cell_of((row, bytes): &FirstCell) -> Cell<'_> {
    Cell { fragment: row.fragment.number, bytes }
}

/// Verifies one sector of a fragment's cell. The first that is good says which row it is.
fn check_part(
    row: &mut Option<(Row, Footer)>,
    at: AppendAt,
    own: Fragment,
    index: u32,
    sector: &[u8],
) -> Result<(), SectorError> {
    let footer = verify_sector(sector)?;
    let (known, first) = match *row {
        Some(known) => known,
        None => {
            let found = row_at(sector)?;
            if AppendAt::of(&footer) != at {
                return Err(SectorError::Field("place"));
            }
            (found, footer)
        }
    };
    let is_part = Row { fragment: own, ..known }.has(&first, index, &footer);
    let same_code = (own.k, own.p) == (known.fragment.k, known.fragment.p);
    // Only the first sector has the head, which all cells have alike.
    let same_row = index > 0 || row_at(sector)? == Row { fragment: own, ..known };
    if !(is_part && same_code && same_row) {
        return Err(SectorError::Field("cell"));
    }
    *row = Some((known, first));
    Ok(())
}

/// Adds the bytes at one index to all cells of a row, from those of k of them.
fn fill_parts(row: &Row, parts: &[(u8, Buf)], len: usize, cells: &mut [Vec<u8>]) {
    let Fragment { k, p, .. } = row.fragment;
    let code = codec::ec::Code::new(k.into(), p.into()).expect("rows have codes that there are");
    let from: Vec<u8> = parts.iter().map(|part| part.0).collect();
    let to: Vec<u8> = (0..k + p).filter(|number| !from.contains(number)).collect();
    let decoder = code.decoder(Decoding { from: &from, to: &to }).expect("k different fragments");
    let known: Vec<&[u8]> = parts.iter().map(|(_, sector)| &sector[..len]).collect();
    let mut made = vec![vec![0; len]; to.len()];
    let mut views: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
    decoder.decode(&known, &mut views);
    // The head is not coded: it is the same everywhere.
    let head = if cells[0].is_empty() { codec::row::CELL_HEAD } else { 0 };
    for (number, bytes) in from.iter().zip(&known) {
        cells[usize::from(*number)].extend_from_slice(bytes);
    }
    for (number, mut bytes) in to.iter().zip(made) {
        bytes[..head].copy_from_slice(&known[0][..head]);
        cells[usize::from(*number)].extend_from_slice(&bytes);
    }
}
