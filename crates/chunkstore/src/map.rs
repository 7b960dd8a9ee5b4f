//! Offset maps: the place of a logical offset in a chunk's sectors (`protocols.md` 3.3).

use base::limits::{CHUNK_LEN_MAX, SECTOR_DATA_MAX};
use wire::row::CELL_SECTORS_MAX;

const FULL: u32 = SECTOR_DATA_MAX as u32;

/// Pieces of a run, at most.
const COUNT_MAX: u32 = (1 << 24) - 1;
/// Flag in the stored start: pieces are rows. No chunk has so many bytes.
const ROWS: u32 = 1 << 31;
const _: () = assert!(CHUNK_LEN_MAX <= ROWS as u64 && CELL_SECTORS_MAX <= 255);

/// Pieces of equal length, in order and without gaps, each in its own sectors: parts of the file whose
/// sectors are all full but the last, or rows, each with a cell of equally many sectors.
///
/// Kept as it is stored (`docs/formats/chunkstore.md`): of small appends there is one each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// Offset in the chunk of the first piece, and [`ROWS`].
    start: u32,
    /// Its first sector, as index in the chunk.
    sector: u32,
    /// Data bytes of a piece, at least 1.
    stride: u32,
    /// Pieces; of rows the sectors of a cell in the highest byte.
    count: u32,
}

/// Bytes of an encoded run.
pub const RUN_BYTES: usize = 16;
/// Runs that one index sector holds.
pub(crate) const INDEX_RUNS: usize = SECTOR_DATA_MAX / RUN_BYTES;

impl Run {
    /// A run of plain pieces, at least one byte each.
    pub const fn plain(at: ChunkEnd, stride: u32, count: u32) -> Run {
        Run { start: at.len, sector: at.sectors, stride, count }
    }

    /// A run of `count` rows of `len` logical bytes, whose cells have `sectors` sectors each.
    pub fn rows(at: ChunkEnd, len: u32, sectors: u32, count: u32) -> Run {
        assert!((1..=255).contains(&sectors) && count <= COUNT_MAX, "{count} rows of {sectors}");
        Run { start: at.len | ROWS, sector: at.sectors, stride: len, count: count | sectors << 24 }
    }

    /// Offset in the chunk of the first piece.
    pub fn start(&self) -> u32 {
        self.start & !ROWS
    }

    /// Its first sector, as index in the chunk.
    pub fn sector(&self) -> u32 {
        self.sector
    }

    /// Data bytes of a piece, at least 1.
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Pieces.
    pub fn count(&self) -> u32 {
        if self.is_rows() { self.count & COUNT_MAX } else { self.count }
    }

    /// Whether pieces are rows.
    pub fn is_rows(&self) -> bool {
        self.start & ROWS != 0
    }

    /// Sectors of one piece.
    pub fn span(&self) -> u32 {
        if self.is_rows() { self.count >> 24 } else { self.stride.div_ceil(FULL) }
    }

    /// Offset behind the last piece.
    pub fn end(&self) -> u64 {
        u64::from(self.start()) + u64::from(self.stride) * u64::from(self.count())
    }

    /// Index behind the last sector.
    pub fn sector_end(&self) -> u64 {
        u64::from(self.sector) + u64::from(self.span()) * u64::from(self.count())
    }

    /// Its first pieces, which hold `len` bytes from its start; perhaps some more.
    fn cut_behind(mut self, len: u32) -> Run {
        self.count -= self.count().saturating_sub(len.div_ceil(self.stride));
        self
    }

    /// Whether one more row of `len` logical bytes and `sectors` sectors can follow in the run.
    fn takes_row(&self, len: u32, sectors: u32) -> bool {
        (self.stride, self.span()) == (len, sectors) && self.count() < COUNT_MAX
    }

    /// Whether it begins at that offset and sector.
    fn follows(&self, end: u64, sector_end: u64) -> bool {
        u64::from(self.start()) == end && u64::from(self.sector) == sector_end
    }

    /// Writes its 16 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.start, self.sector, self.stride, self.count] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    /// From 16 bytes; none when a field is out of range.
    pub fn decode(bytes: &[u8]) -> Option<Run> {
        let field =
            |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().expect("4")));
        let run = Run { start: field(0)?, sector: field(4)?, stride: field(8)?, count: field(12)? };
        let row_max = codec::limits::ROW_MAX as u32;
        let row_like = !run.is_rows() || run.span() > 0 && run.stride <= row_max;
        let sound = row_like
            && run.stride > 0
            && run.count() > 0
            && run.end() <= u64::from(u32::MAX)
            && run.sector_end() <= u64::from(u32::MAX);
        sound.then_some(run)
    }
}

/// Bytes and sectors in front of a place of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChunkEnd {
    /// Bytes of the file.
    pub len: u32,
    /// Sectors.
    pub sectors: u32,
}

/// A place in a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPosition {
    /// The sector, as index in the chunk.
    pub sector: u32,
    /// Offset in the chunk of the sector's first byte.
    pub offset: u32,
    /// Sectors that belong together from there: those of a cell, or one.
    pub sectors: u32,
}

/// The place of `offset` in `runs`, if they hold it.
pub fn locate(runs: &[Run], offset: u32) -> Option<ChunkPosition> {
    let run = runs[..runs.partition_point(|run| run.start() <= offset)].last()?;
    if u64::from(offset) >= run.end() {
        return None;
    }
    let within = offset - run.start();
    let (piece, rest) = (within / run.stride, within % run.stride);
    let (inner, sectors) = if run.is_rows() { (0, run.span()) } else { (rest / FULL, 1) };
    Some(ChunkPosition {
        sector: run.sector + piece * run.span() + inner,
        offset: run.start() + piece * run.stride + inner * FULL,
        sectors,
    })
}

/// True when `runs` follow one another without gap from offset 0 and cover `len` bytes.
pub fn is_sound(runs: &[Run], len: u32) -> bool {
    let mut end = 0;
    let mut sector_end = 0;
    for run in runs {
        if !run.follows(end, sector_end) || run.is_rows() != runs[0].is_rows() {
            return false;
        }
        end = run.end();
        sector_end = run.sector_end();
    }
    end >= u64::from(len)
}

/// A map under construction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunMap {
    runs: Vec<Run>,
    len: u32,
    sectors: u32,
}

impl RunMap {
    /// From runs read back, which must be sound.
    pub fn from_runs(runs: Vec<Run>) -> RunMap {
        let len = runs.last().map_or(0, |run| run.end() as u32);
        let sectors = runs.last().map_or(0, |run| run.sector_end() as u32);
        RunMap { runs, len, sectors }
    }

    /// The runs.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Bytes mapped.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True when nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sectors mapped.
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// Bytes it takes in memory.
    pub fn bytes(&self) -> usize {
        self.runs.len() * RUN_BYTES
    }

    /// Adds the sectors of one append, given by their data bytes.
    pub fn push(&mut self, sector_lens: impl Iterator<Item = u16>) {
        let mut piece = 0;
        for len in sector_lens {
            piece += u32::from(len);
            if u32::from(len) != FULL {
                self.push_pieces(piece, 1);
                piece = 0;
            }
        }
        if piece > 0 {
            self.push_pieces(FULL, piece / FULL);
        }
    }

    /// Adds sectors that may begin and end amid an append, as those that repair writes do. The
    /// full sectors before them become part of the first piece: however a copy is cut, it has no
    /// more runs than the map that it is a copy of.
    pub fn push_part(&mut self, sector_lens: impl Iterator<Item = u16>) {
        let mut piece = 0;
        for len in sector_lens {
            piece += u32::from(len);
            if u32::from(len) != FULL {
                piece += self.take_full();
                self.push_pieces(piece, 1);
                piece = 0;
            }
        }
        if piece > 0 {
            self.push_pieces(FULL, piece / FULL);
        }
    }

    /// Adds a row of `len` logical bytes, whose cell has `sectors` sectors.
    pub fn push_row(&mut self, len: u32, sectors: u32) {
        match self.runs.last_mut() {
            Some(last) if last.takes_row(len, sectors) => last.count += 1,
            _ => self.runs.push(Run::rows(self.end(), len, sectors, 1)),
        }
        self.len += len;
        self.sectors += sectors;
    }

    /// Takes full sectors off the end; their bytes.
    fn take_full(&mut self) -> u32 {
        let Some(last) = self.runs.pop_if(|last| last.stride == FULL) else { return 0 };
        self.len -= FULL * last.count;
        self.sectors -= last.count;
        FULL * last.count
    }

    /// Adds runs read back; false, and nothing is added, when they do not continue the map.
    pub fn extend(&mut self, runs: &[Run]) -> bool {
        let (mut end, mut sector_end) = (u64::from(self.len), u64::from(self.sectors));
        for run in runs {
            let first = self.runs.first().unwrap_or(&runs[0]);
            if !run.follows(end, sector_end) || run.is_rows() != first.is_rows() {
                return false;
            }
            (end, sector_end) = (run.end(), run.sector_end());
        }
        let (Ok(len), Ok(sectors)) = (u32::try_from(end), u32::try_from(sector_end)) else {
            return false;
        };
        self.runs.extend_from_slice(runs);
        (self.len, self.sectors) = (len, sectors);
        true
    }

    fn end(&self) -> ChunkEnd {
        ChunkEnd { len: self.len, sectors: self.sectors }
    }

    fn push_pieces(&mut self, stride: u32, count: u32) {
        match self.runs.last_mut() {
            Some(last) if last.stride == stride => last.count += count,
            _ => self.runs.push(Run::plain(self.end(), stride, count)),
        }
        self.len += stride * count;
        self.sectors += stride.div_ceil(FULL) * count;
    }

    /// Whether a replica may end at `len` bytes: anywhere, but at the end of a row where it has rows.
    pub fn is_end(&self, len: u32) -> bool {
        let has_rows = self.runs.first().is_some_and(Run::is_rows);
        !has_rows || len == self.len || locate(&self.runs, len).is_some_and(|at| at.offset == len)
    }

    /// The runs that cover the first `len` bytes.
    pub fn truncated(&self, len: u32) -> Vec<Run> {
        let kept = self.runs.partition_point(|run| run.start() < len);
        let mut runs = self.runs[..kept].to_vec();
        if let Some(last) = runs.last_mut() {
            *last = last.cut_behind(len - last.start());
        }
        runs
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
