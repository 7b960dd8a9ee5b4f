//! Offset maps: the place of a logical offset in a chunk's sectors (`protocols.md` 3.3).

use base::limits::SECTOR_DATA_MAX;

const FULL: u32 = SECTOR_DATA_MAX as u32;

/// `count` pieces of `stride` bytes, each in its own sectors, all full but its last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// Offset in the chunk of the first piece.
    pub start: u32,
    /// Its first sector, as index in the chunk.
    pub sector: u32,
    /// Data bytes of a piece, at least 1.
    pub stride: u32,
    /// Pieces.
    pub count: u32,
}

/// Bytes of an encoded run.
pub const RUN_BYTES: usize = 16;

impl Run {
    /// Sectors of one piece.
    pub fn span(&self) -> u32 {
        self.stride.div_ceil(FULL)
    }

    /// Offset behind the last piece.
    pub fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.stride) * u64::from(self.count)
    }

    /// Index behind the last sector.
    pub fn sector_end(&self) -> u64 {
        u64::from(self.sector) + u64::from(self.span()) * u64::from(self.count)
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
        let sound = run.stride > 0
            && run.count > 0
            && run.end() <= u64::from(u32::MAX)
            && run.sector_end() <= u64::from(u32::MAX);
        sound.then_some(run)
    }
}

/// A place in a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPosition {
    /// The sector, as index in the chunk.
    pub sector: u32,
    /// Offset in the chunk of the sector's first byte.
    pub offset: u32,
}

/// The place of `offset` in `runs`, if they hold it.
pub fn locate(runs: &[Run], offset: u32) -> Option<ChunkPosition> {
    let run = runs[..runs.partition_point(|run| run.start <= offset)].last()?;
    if u64::from(offset) >= run.end() {
        return None;
    }
    let within = offset - run.start;
    let (piece, rest) = (within / run.stride, within % run.stride);
    let inner = rest / FULL;
    Some(ChunkPosition {
        sector: run.sector + piece * run.span() + inner,
        offset: run.start + piece * run.stride + inner * FULL,
    })
}

/// True when `runs` follow one another without gap from offset 0 and cover `len` bytes.
pub fn is_sound(runs: &[Run], len: u32) -> bool {
    let mut end = 0;
    let mut sector_end = 0;
    for run in runs {
        if u64::from(run.start) != end || u64::from(run.sector) != sector_end || run.stride == 0 {
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
            if u64::from(run.start) != end || u64::from(run.sector) != sector_end || run.stride == 0
            {
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

    fn push_pieces(&mut self, stride: u32, count: u32) {
        match self.runs.last_mut() {
            Some(last) if last.stride == stride => last.count += count,
            _ => {
                self.runs.push(Run { start: self.len, sector: self.sectors, stride, count });
            }
        }
        self.len += stride * count;
        self.sectors += stride.div_ceil(FULL) * count;
    }

    /// The runs that cover the first `len` bytes.
    pub fn truncated(&self, len: u32) -> Vec<Run> {
        let kept = self.runs.partition_point(|run| run.start < len);
        let mut runs = self.runs[..kept].to_vec();
        if let Some(last) = runs.last_mut() {
            last.count = last.count.min((len - last.start).div_ceil(last.stride));
        }
        runs
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
