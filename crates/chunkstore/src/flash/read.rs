//! Reads: find the sectors, read them, verify every one.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use base::ChunkId;
use base::limits::{SECTOR, SECTOR_DATA_MAX};
use futures_util::stream::{self, StreamExt};
use metrics::{Fact, Step};
use runtime::{Buf, BufMut, Instant};
use wire::pieces::CellPieces;
use wire::row::{Layout, row_at, verify_cell};
use wire::sector::{AppendAt, SectorKind, server_part, verify_sector};

use super::planted::Planted;
use super::record::{Extent, Identity, MapPlace};
use super::scan::Scan;
use super::store::FlashStoreInner;
use super::table::{Entry, place};
use crate::contract::{Read, StoreError};
use crate::limits::{BUF_RETRY, PIECES_ABOVE, READ_BYTES_MAX, READ_PARTS_MAX};
use crate::map::{ChunkPosition, INDEX_RUNS, RUN_BYTES, Run, is_sound, locate};

/// Facts of a replica that a read needs, taken at one moment.
struct View {
    id: Identity,
    len: u32,
    sealed: bool,
    map: MapRef,
    extents: Vec<Extent>,
}

enum MapRef {
    /// The sectors of the range asked for: the map is resident.
    Places(Option<(ChunkPosition, u32)>),
    Runs(Rc<[Run]>),
    Stored(MapPlace),
}

/// First place and last sector of the range, in `runs`.
fn range(runs: &[Run], offset: u32, end: u32) -> Option<(ChunkPosition, u32)> {
    let first = locate(runs, offset)?;
    let last = locate(runs, end - 1)?;
    Some((first, last.sector + last.sectors - 1))
}

/// One read, whose caller may go away between its operations of the device.
#[derive(Default)]
pub(crate) struct Wanted<'a> {
    /// None: it is wanted whatever happens.
    is_wanted: Option<&'a dyn Fn() -> bool>,
    /// When the device was asked first.
    asked: Cell<Option<Instant>>,
}

impl<'a> Wanted<'a> {
    fn by(is_wanted: &'a dyn Fn() -> bool) -> Wanted<'a> {
        Wanted { is_wanted: Some(is_wanted), asked: Cell::new(None) }
    }

    /// Called before each operation of the device.
    fn check(&self) -> Result<(), StoreError> {
        match self.is_wanted {
            Some(is_wanted) if !is_wanted() => {
                Err(StoreError::Unwanted { device_asked: self.asked.get().is_some() })
            }
            _ => Ok(()),
        }
    }
}

impl FlashStoreInner {
    /// See [`crate::ChunkStore::read_while`].
    pub(crate) async fn read(
        self: &Rc<Self>,
        (chunk, offset, len): (ChunkId, u32, u32),
        blocks: bool,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Read, StoreError> {
        // In the order in which they came.
        let _place = self.read_places.acquire().await.expect("never closed");
        let wanted = Wanted::by(is_wanted);
        wanted.check()?;
        let read = self.read_placed((chunk, offset, len), blocks, &wanted).await;
        if let Some(asked) = wanted.asked.get() {
            self.latencies.read.record((self.env.now() - asked).as_nanos() as u64);
        }
        read
    }

    async fn read_placed(
        self: &Rc<Self>,
        (chunk, offset, len): (ChunkId, u32, u32),
        blocks: bool,
        wanted: &Wanted<'_>,
    ) -> Result<Read, StoreError> {
        let view = self.view(chunk, offset, len)?;
        let end = offset.saturating_add(len).min(view.len);
        if offset >= end {
            let empty = self.env.pool().alloc(0).map_err(|_| StoreError::Busy)?;
            return Ok(Read { sectors: empty.freeze(), len: view.len, sealed: view.sealed });
        }
        let places = match &view.map {
            MapRef::Places(places) => *places,
            MapRef::Runs(runs) => range(runs, offset, end),
            MapRef::Stored(map) => match self.load_map(&view, map, wanted).await {
                Ok(runs) => range(&runs, offset, end),
                Err(error) => return Err(self.judge(&view.id, error)),
            },
        };
        let Some((first, last)) = places else { return Err(StoreError::Corrupt { offset }) };
        let one_row = last - first.sector < first.sectors && first.sectors > PIECES_ABOVE;
        if blocks && one_row {
            let pieces = self.read_pieces(&view, first, offset..end, wanted).await;
            if let Some(sectors) = pieces.map_err(|error| self.judge(&view.id, error))? {
                return Ok(Read { sectors, len: view.len, sealed: view.sealed });
            }
        }
        let count = (last - first.sector + 1).min((READ_BYTES_MAX / SECTOR) as u32);
        self.env.note(Step::Submitted, Fact::Bytes(u64::from(count) * SECTOR as u64));
        let read = self.read_sectors(&view.extents, first.sector, count, wanted).await;
        self.env.note(Step::DeviceDone, Fact::Disk(self.disk()));
        let result = match read {
            Ok(buf) => self.verify(&view.id, first.offset, buf),
            Err(error) => Err(error),
        };
        self.env.note(Step::Verified, Fact::None);
        let sectors = result.map_err(|error| self.judge(&view.id, error))?;
        Ok(Read { sectors, len: view.len, sealed: view.sealed })
    }

    /// The first sector of the cell at `first`, and those of the blocks with a range of its row: two
    /// operations of the device, for few bytes. None when all sectors are needed, or the cell does not
    /// say which.
    async fn read_pieces(
        &self,
        view: &View,
        first: ChunkPosition,
        range: Range<u32>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Buf>, StoreError> {
        let id = &view.id;
        let at = AppendAt { chunk: id.chunk, epoch: id.epoch, base: id.base, offset: first.offset };
        let front = self.read_sectors(&view.extents, first.sector, 1, wanted).await?;
        let of_row = |byte: u32| (byte - first.offset) as usize;
        let needed = pieces_of(id, at, &front)?.needed(of_row(range.start)..of_row(range.end));
        let Some(needed) = needed else { return Ok(None) };
        let count = needed.end - needed.start;
        if 1 + count >= first.sectors {
            return Ok(None);
        }
        let bytes = (1 + count as usize) * SECTOR;
        self.env.note(Step::Submitted, Fact::Bytes(bytes as u64));
        let mut sectors = self.env.pool().alloc(bytes).map_err(|_| StoreError::Busy)?;
        sectors[..SECTOR].copy_from_slice(&front);
        if count > 0 {
            let start = first.sector + needed.start;
            let rest = self.read_sectors(&view.extents, start, count, wanted).await?;
            sectors[SECTOR..].copy_from_slice(&rest);
        }
        self.env.note(Step::DeviceDone, Fact::Disk(self.disk()));
        pieces_of(id, at, &sectors)?;
        self.env.note(Step::Verified, Fact::None);
        self.env.mark("chunkstore: blocks of a row read alone");
        Ok(Some(sectors.freeze()))
    }

    /// See [`crate::ChunkStore::read_cell_sector`].
    pub(crate) async fn read_cell_sector(
        self: &Rc<Self>,
        (chunk, offset, index): (ChunkId, u32, u16),
    ) -> Result<Read, StoreError> {
        let _place = self.read_places.acquire().await.expect("never closed");
        let (view, wanted) = (self.view(chunk, offset, 1)?, Wanted::default());
        let Layout::Rows(fragment) = view.id.layout else {
            return Err(StoreError::Invalid("the replica has no rows"));
        };
        if offset >= view.len {
            return Err(StoreError::Invalid("the cell has no such sector"));
        }
        let first = match &view.map {
            MapRef::Places(places) => places.map(|(first, _)| first),
            MapRef::Runs(runs) => locate(runs, offset),
            MapRef::Stored(map) => {
                let runs = self.load_map(&view, map, &wanted).await;
                locate(&runs.map_err(|error| self.judge(&view.id, error))?, offset)
            }
        };
        let Some(first) = first else { return Err(StoreError::Corrupt { offset }) };
        if u32::from(index) >= first.sectors {
            return Err(StoreError::Invalid("the cell has no such sector"));
        }
        let sector = first.sector + u32::from(index);
        let read = self.read_sectors(&view.extents, sector, 1, &wanted).await?;
        let id = &view.id;
        let good = verify_sector(&read).is_ok_and(|footer| {
            let place = (footer.chunk, footer.epoch, footer.base, footer.offset);
            let is_part = matches!(footer.kind, SectorKind::Row(part)
                if part.fragment == fragment.number && part.index == index);
            place == (id.chunk, id.epoch, id.base, first.offset) && is_part
        });
        if !good || server_part(&read).tag != id.tag {
            return Err(self.judge(id, StoreError::Corrupt { offset: first.offset }));
        }
        Ok(Read { sectors: read.freeze(), len: view.len, sealed: view.sealed })
    }

    /// Meaning of a failed read of a replica.
    fn judge(&self, id: &Identity, error: StoreError) -> StoreError {
        let state = self.state.borrow();
        let current = state.table.chunks.get(&id.chunk).is_some_and(|entry| entry.tag() == id.tag);
        drop(state);
        if !current {
            return StoreError::NotFound; // Its units may belong to another chunk by now.
        }
        if let StoreError::Corrupt { offset } = error {
            self.note_damage(id.chunk, offset);
        }
        error
    }

    fn view(&self, chunk: ChunkId, offset: u32, want: u32) -> Result<View, StoreError> {
        let state = &mut *self.state.borrow_mut();
        if state.closed {
            return Err(StoreError::Invalid("the store is closed"));
        }
        let entry = state.table.chunks.get(&chunk).ok_or(StoreError::NotFound)?;
        let id = entry.id(chunk);
        let extents = entry.extents().to_vec();
        Ok(match entry {
            Entry::Open(open) => {
                let len_now = open.map.len();
                let end = offset.saturating_add(want).min(len_now);
                let places = (offset < end).then(|| range(open.map.runs(), offset, end)).flatten();
                View { id, len: len_now, sealed: false, map: MapRef::Places(places), extents }
            }
            Entry::Sealed(sealed) => {
                let len = sealed.len;
                let map = match sealed.map {
                    MapPlace::Inline { count, runs } => {
                        let end = offset.saturating_add(want).min(len);
                        let runs = &runs[..usize::from(count)];
                        MapRef::Places((offset < end).then(|| range(runs, offset, end)).flatten())
                    }
                    place => match state.cache.get(chunk) {
                        Some(runs) => MapRef::Runs(runs),
                        None => MapRef::Stored(place),
                    },
                };
                View { id, len, sealed: true, map, extents }
            }
        })
    }

    fn is_current(&self, id: &Identity) -> bool {
        let state = self.state.borrow();
        state.table.chunks.get(&id.chunk).is_some_and(|entry| entry.tag() == id.tag)
    }

    fn note_damage(&self, chunk: ChunkId, offset: u32) {
        let state = &mut *self.state.borrow_mut();
        state.counters.corrupt_sectors += 1;
        let first = state.damage.entry(chunk).or_insert(offset);
        *first = offset.min(*first);
        tracing::info!(%chunk, offset, disk = %self.disk(), "stored bytes do not verify");
        self.env.mark("chunkstore: damage met");
    }

    /// One operation of the device, unless the read is wanted no more.
    async fn read_part(
        &self,
        device: u64,
        len: usize,
        wanted: &Wanted<'_>,
    ) -> Result<BufMut, StoreError> {
        wanted.check()?;
        if wanted.asked.get().is_none() {
            wanted.asked.set(Some(self.env.now()));
        }
        self.read_exact(device, len).await
    }

    /// Reads `count` sectors of a chunk into one buffer.
    pub(crate) async fn read_sectors(
        &self,
        extents: &[Extent],
        first: u32,
        count: u32,
        wanted: &Wanted<'_>,
    ) -> Result<BufMut, StoreError> {
        let mut parts = Vec::with_capacity(1);
        let mut at = first;
        while at < first + count {
            let (unit, inner, run) =
                place(extents, self.sb.unit_sectors(), at).ok_or(StoreError::Failed)?;
            let part = run.min(first + count - at);
            let device = self.sb.unit_at(unit) + u64::from(inner) * SECTOR as u64;
            parts.push((device, part as usize * SECTOR));
            at += part;
        }
        if let [(device, len)] = parts[..] {
            return self.read_part(device, len, wanted).await;
        }
        let mut whole =
            self.env.pool().alloc(count as usize * SECTOR).map_err(|_| StoreError::Busy)?;
        let reads = parts.iter().map(|&(device, len)| self.read_part(device, len, wanted));
        let mut reads = stream::iter(reads).buffered(READ_PARTS_MAX);
        let mut done = 0;
        while let Some(part) = reads.next().await {
            let part = part?;
            whole[done..done + part.len()].copy_from_slice(&part);
            done += part.len();
        }
        Ok(whole)
    }

    /// As [`FlashStoreInner::read_sectors`], waiting for memory.
    pub(crate) async fn read_patiently(
        &self,
        extents: &[Extent],
        first: u32,
        count: u32,
    ) -> Result<BufMut, StoreError> {
        loop {
            match self.read_sectors(extents, first, count, &Wanted::default()).await {
                Err(StoreError::Busy) => self.env.sleep(BUF_RETRY).await,
                result => return result,
            }
        }
    }

    /// Checks that `sectors` are the chunk's from `offset` on. Of a cell that goes on behind them
    /// nothing is left.
    fn verify(&self, id: &Identity, offset: u32, sectors: BufMut) -> Result<Buf, StoreError> {
        if id.layout != Layout::Plain {
            return verify_rows(id, offset, sectors.freeze());
        }
        if self.config.bugs().has(Planted::ReadUnverified) {
            return Ok(sectors.freeze());
        }
        let mut expected = offset;
        for sector in sectors.chunks(SECTOR) {
            let footer = verify_sector(sector).ok().filter(|footer| {
                footer.chunk == id.chunk
                    && footer.epoch == id.epoch
                    && footer.base == id.base
                    && footer.offset == expected
                    && footer.kind == SectorKind::Data
                    && server_part(sector).tag == id.tag
            });
            let Some(footer) = footer else {
                return Err(StoreError::Corrupt { offset: expected });
            };
            expected += u32::from(footer.len);
        }
        Ok(sectors.freeze())
    }

    /// The map of a sealed replica that is not resident.
    async fn load_map(
        &self,
        view: &View,
        place: &MapPlace,
        wanted: &Wanted<'_>,
    ) -> Result<Rc<[Run]>, StoreError> {
        let runs = match place {
            MapPlace::Index { first, runs } => {
                self.read_index(view, (*first, *runs), wanted).await?
            }
            _ => None,
        };
        let runs: Rc<[Run]> = match runs {
            Some(runs) => runs.into(),
            None => {
                // No index, or a damaged one: the footers have the same facts.
                self.env.mark("chunkstore: map rebuilt from footers");
                let mut scan = Scan::new(view.id, Some(view.len));
                scan.run(self, &view.extents).await?;
                let map = scan.finish_by_sector().map;
                if map.len() < view.len {
                    return Err(StoreError::Corrupt { offset: map.len() });
                }
                map.truncated(view.len).into()
            }
        };
        if self.is_current(&view.id) {
            self.state.borrow_mut().cache.insert(view.id.chunk, runs.clone());
        }
        Ok(runs)
    }

    async fn read_index(
        &self,
        view: &View,
        (first, runs): (u32, u32),
        wanted: &Wanted<'_>,
    ) -> Result<Option<Vec<Run>>, StoreError> {
        let count = (runs as usize).div_ceil(INDEX_RUNS) as u32;
        let mut all = Vec::with_capacity(runs as usize);
        let step = (READ_BYTES_MAX / SECTOR) as u32;
        for at in (0..count).step_by(step as usize) {
            let part = step.min(count - at);
            let sectors = self.read_sectors(&view.extents, first + at, part, wanted).await?;
            for (index, sector) in sectors.chunks(SECTOR).enumerate() {
                let before = (at as usize + index) * INDEX_RUNS;
                match decode_index(&view.id, before as u32, sector) {
                    Some(runs) => all.extend(runs),
                    None => return Ok(None),
                }
            }
        }
        let sound = all.len() == runs as usize && is_sound(&all, view.len);
        Ok(sound.then_some(all))
    }

    /// Whether the chunk holds exactly these sectors from `offset` on.
    pub(crate) async fn is_stored(
        self: &Rc<Self>,
        chunk: ChunkId,
        tag: u32,
        offset: u32,
        sectors: &Buf,
    ) -> Result<bool, StoreError> {
        let found = {
            let state = &mut *self.state.borrow_mut();
            let open = state.open_mut(chunk, tag).ok_or(StoreError::NotFound)?;
            let count = (sectors.len() / SECTOR) as u32;
            locate(open.map.runs(), offset)
                .filter(|at| at.offset == offset && at.sector + count <= open.map.sectors())
                .map(|at| (open.id, open.extents.clone(), at.sector, count))
        };
        let Some((id, extents, first, count)) = found else { return Ok(false) };
        let stored = self.read_sectors(&extents, first, count, &Wanted::default()).await?;
        let stored = self.verify(&id, offset, stored)?;
        Ok(stored
            .chunks(SECTOR)
            .zip(sectors.chunks(SECTOR))
            .all(|(a, b)| wire::sector::client_crc(a) == wire::sector::client_crc(b)))
    }
}

/// Verified sectors of the cell of the row at a place.
fn pieces_of<'a>(
    id: &Identity,
    at: AppendAt,
    sectors: &'a [u8],
) -> Result<CellPieces<'a>, StoreError> {
    let pieces = CellPieces::verify(at, sectors).ok().filter(|pieces| {
        let mut tags = sectors.chunks(SECTOR).map(|sector| server_part(sector).tag);
        Layout::Rows(pieces.row.fragment) == id.layout
            && pieces.row.offset == at.offset
            && tags.all(|tag| tag == id.tag)
    });
    pieces.ok_or(StoreError::Corrupt { offset: at.offset })
}

/// As [`FlashStoreInner::verify`], of rows.
fn verify_rows(id: &Identity, offset: u32, sectors: Buf) -> Result<Buf, StoreError> {
    let mut at = AppendAt { chunk: id.chunk, epoch: id.epoch, base: id.base, offset };
    let mut done = 0;
    while done < sectors.len() {
        let rest = &sectors[done..];
        let is_cut = row_at(rest).is_ok_and(|row| row.sectors() as usize * SECTOR > rest.len());
        if is_cut && done > 0 {
            break;
        }
        let row = verify_cell(at, rest)
            .ok()
            .filter(|row| Layout::Rows(row.fragment) == id.layout)
            .filter(|row| {
                let cell = &rest[..row.sectors() as usize * SECTOR];
                cell.chunks(SECTOR).all(|sector| server_part(sector).tag == id.tag)
            });
        let Some(row) = row else { return Err(StoreError::Corrupt { offset: at.offset }) };
        at.offset += row.len;
        done += row.sectors() as usize * SECTOR;
    }
    Ok(if done == sectors.len() { sectors } else { sectors.slice(0..done) })
}

/// The runs in an index sector whose first run has `before` runs in front of it.
pub fn decode_index(id: &Identity, before: u32, sector: &[u8]) -> Option<Vec<Run>> {
    let footer = verify_sector(sector).ok()?;
    let mine = footer.chunk == id.chunk
        && footer.epoch == id.epoch
        && footer.base == id.base
        && footer.offset == before
        && footer.kind == SectorKind::Index
        && server_part(sector).tag == id.tag;
    let len = usize::from(footer.len);
    if !mine || !len.is_multiple_of(RUN_BYTES) {
        return None;
    }
    sector[..len].chunks(RUN_BYTES).map(Run::decode).collect()
}

/// Writes index sectors of `runs` into `out`, from index sector `first` on.
pub fn encode_index(id: &Identity, runs: &[Run], first: u32, out: &mut [u8]) {
    use wire::sector::{Footer, ServerPart, chain, client_crc, format_sector, set_server_part};
    let parts = runs.chunks(INDEX_RUNS).enumerate().skip(first as usize);
    for ((index, part), sector) in parts.zip(out.chunks_mut(SECTOR)) {
        let mut bytes = Vec::with_capacity(SECTOR_DATA_MAX);
        part.iter().for_each(|run| run.encode(&mut bytes));
        sector[..bytes.len()].copy_from_slice(&bytes);
        let footer = Footer {
            chunk: id.chunk,
            epoch: id.epoch,
            base: id.base,
            offset: (index * INDEX_RUNS) as u32,
            len: bytes.len() as u16,
            kind: SectorKind::Index,
            flags: 0,
        };
        format_sector(sector, &footer);
        let chain = chain(0, client_crc(sector), id.tag);
        set_server_part(sector, ServerPart { tag: id.tag, chain });
    }
}
