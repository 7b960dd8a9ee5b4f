//! Sectors as the model reads them: written from the table that describes them in `wire::sector`,
//! with a checksum of its own, so that an error in the code of `wire` or `codec` is not the
//! model's too.

use base::limits::CHUNK_LEN_MAX;
use chunkstore::{Append, StoreError};
use runtime::Buf;

/// Bytes of a sector.
const SIZE: usize = 4096;
/// Bytes of data in a full sector; the footer follows.
const DATA: usize = 4048;
/// Sectors of an append at most.
const SECTORS_MAX: usize = 256;

/// CRC32C by the definition: reflected, polynomial 0x1edc6f41, all ones before and after.
fn checksum(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut value = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { (value >> 1) ^ 0x82f6_3b78 } else { value >> 1 };
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc: u32, byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

/// One sector.
#[derive(Clone, Debug)]
pub(super) struct Sector {
    bytes: Buf,
    /// Offset in the chunk behind its last data byte; of a cell's sector that behind its row.
    end: u32,
}

impl Sector {
    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.bytes[DATA + at + index])
    }

    /// The sector's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Offset in the chunk of its first data byte; of a cell's sector that of its row.
    pub(super) fn offset(&self) -> u32 {
        u32::from_le_bytes(self.number(24))
    }

    /// Offset in the chunk behind its last data byte; of a cell's sector that behind its row.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    fn len(&self) -> u16 {
        u16::from_le_bytes(self.number(28))
    }

    fn flags(&self) -> u8 {
        self.bytes[DATA + 31]
    }

    /// Whether it holds a part of a cell.
    pub(super) fn is_of_cell(&self) -> bool {
        self.bytes[DATA + 30] == 3
    }

    /// Whether its append begins here.
    fn is_first(&self) -> bool {
        self.flags() & 1 != 0
    }

    /// Whether its append, or its cell, ends here.
    pub(super) fn is_last(&self) -> bool {
        self.flags() & 2 != 0
    }

    /// The client's checksum.
    fn crc(&self) -> u32 {
        u32::from_le_bytes(self.number(36))
    }

    /// Whether both are the same sector for their client.
    pub(super) fn equals(&self, other: &Sector) -> bool {
        self.crc() == other.crc()
    }

    /// Whether it is what a writer of this chunk may have sent for this offset, whatever its kind.
    fn belongs(&self, append: &Append, offset: u64) -> bool {
        let len = usize::from(self.len());
        checksum(&self.bytes[..DATA + 36]) == self.crc()
            && self.number(0) == append.chunk.get().to_le_bytes()
            && self.number(8) == append.epoch.get().to_le_bytes()
            && self.number(16) == append.base.to_le_bytes()
            && u64::from(self.offset()) == offset
            && len != 0
            && len <= DATA
            && self.flags() < 4
    }

    fn is_plain(&self) -> bool {
        self.bytes[DATA + 30] == 1 && self.number(32) == [0; 4]
    }

    /// The row whose cell begins here.
    fn row(&self) -> Option<Row> {
        let [fragment, layout] = self.number(32);
        let [version, k, p, log2, numbers @ ..] = *self.bytes.first_chunk::<12>()?;
        let [s, y] = [0, 4].map(|at| {
            u32::from_le_bytes(std::array::from_fn(|index| numbers[at + index])) as usize
        });
        let (k, p) = (usize::from(k), usize::from(p));
        let codes = if k == 1 { p == 0 } else { (2..=12).contains(&k) && p <= 4 };
        if version != 2 || !codes || !(12..=16).contains(&log2) {
            return None;
        }
        let width = s.div_ceil(k);
        let blocks = width.div_ceil(1 << log2);
        let sound = s > 0
            && s <= (1 << 20).min(k * (512 << 10))
            && (9 * blocks..=width + 8 * blocks).contains(&y)
            && usize::from(fragment) < k + p
            && layout >> 4 == 2
            && layout & 15 < 3;
        let fragment = [k as u8, p as u8, fragment];
        sound.then_some(Row { fragment, layout, len: s as u64, bytes: 16 + y })
    }

    /// Whether it is the sector at `index` of a row's cell.
    fn is_part(&self, row: &Row, index: usize) -> bool {
        let count = row.bytes.div_ceil(DATA);
        let [low, high] = (index as u16).to_le_bytes();
        let flags = u8::from(index == 0) + 2 * u8::from(index + 1 == count);
        self.is_of_cell()
            && self.number(32) == [row.fragment[2], row.layout, low, high]
            && self.flags() == flags
            && usize::from(self.len()) == DATA.min(row.bytes - index * DATA)
    }
}

/// Facts of a row, from its head.
struct Row {
    /// Data fragments, parity fragments, the number of the fragment.
    fragment: [u8; 3],
    /// Layout and codec.
    layout: u8,
    /// Logical bytes.
    len: u64,
    /// Bytes of the cell.
    bytes: usize,
}

/// The fragment that sectors hold; nothing when they are plain ones.
pub(super) fn fragment_of(sectors: &[Sector]) -> Option<[u8; 3]> {
    sectors.first().filter(|first| first.is_of_cell())?.row().map(|row| row.fragment)
}

/// The sectors of an append and their data bytes, or why no store may take it.
pub(super) fn sectors_of(append: &Append) -> Result<(Vec<Sector>, u32), StoreError> {
    if append.create && append.offset > 0 {
        return Err(StoreError::Invalid("a chunk is made by an append at offset 0"));
    }
    let bytes = append.sectors.len();
    if bytes > SECTORS_MAX * SIZE {
        return Err(StoreError::Invalid("an append has at most 256 sectors"));
    }
    if bytes == 0 || !bytes.is_multiple_of(SIZE) {
        return Err(StoreError::BadSectors { index: 0 });
    }
    let cut = |at: usize| Sector { bytes: append.sectors.slice(at..at + SIZE), end: 0 };
    let mut sectors: Vec<Sector> = (0..bytes).step_by(SIZE).map(cut).collect();
    let is_row = sectors[0].is_of_cell();
    let measured = if is_row { measure_rows } else { measure_plain };
    let end = measured(append, &mut sectors)
        .map_err(|index| StoreError::BadSectors { index: index as u32 })?;
    if end > CHUNK_LEN_MAX {
        return Err(StoreError::Invalid("a chunk has at most 2 GiB"));
    }
    let rows = sectors.iter().filter(|sector| sector.is_last()).count();
    if !append.repair && is_row && rows > 1 {
        return Err(StoreError::Invalid("an append of rows is one row"));
    }
    if !append.repair {
        let last = sectors.len() - 1;
        for (index, marked) in [(0, sectors[0].is_first()), (last, sectors[last].is_last())] {
            if !marked {
                return Err(StoreError::BadSectors { index: index as u32 });
            }
        }
    }
    Ok((sectors, (end - u64::from(append.offset)) as u32))
}

/// Notes where each plain sector ends; the index of the first that is none.
fn measure_plain(append: &Append, sectors: &mut [Sector]) -> Result<u64, usize> {
    let mut end = u64::from(append.offset);
    for (index, sector) in sectors.iter_mut().enumerate() {
        let next = end + u64::from(sector.len());
        if !sector.belongs(append, end) || !sector.is_plain() || next > u64::from(u32::MAX) {
            return Err(index);
        }
        sector.end = next as u32;
        end = next;
    }
    Ok(end)
}

/// Notes where the row of each sector ends; the index of the first that is of no whole cell.
fn measure_rows(append: &Append, sectors: &mut [Sector]) -> Result<u64, usize> {
    let mut end = u64::from(append.offset);
    let mut fragment = None;
    let mut at = 0;
    while at < sectors.len() {
        let first = &sectors[at];
        let row = first.row().filter(|row| first.belongs(append, end) && first.is_part(row, 0));
        let row = row.ok_or(at)?;
        let count = row.bytes.div_ceil(DATA);
        for index in 1..count {
            let sector = sectors.get(at + index).ok_or(at + index)?;
            if !sector.belongs(append, end) || !sector.is_part(&row, index) {
                return Err(at + index);
            }
        }
        let next = end + row.len;
        if *fragment.get_or_insert(row.fragment) != row.fragment || next > u64::from(u32::MAX) {
            return Err(at);
        }
        sectors[at..at + count].iter_mut().for_each(|sector| sector.end = next as u32);
        (at, end) = (at + count, next);
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use base::{ChunkId, Epoch};
    use codec::block::Codec;
    use runtime::{BufPool, Rng};
    use wire::data::Purpose;
    use wire::row::Fragment;
    use wire::sector::{AppendAt, format_append, sectors_for};

    use super::*;
    use crate::rows::cell_of;

    #[test]
    fn checksum_has_the_published_values() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
    }

    /// One or two rows of a fragment, some of them at a wrong place or of another one.
    fn rows_of(rng: &mut Rng, mut at: AppendAt) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (mut k, mut p) = if rng.one_in(2) { (1, 0) } else { (4, 2) };
        for _ in 0..rng.between(1, 2) {
            let row = vec![rng.below(2) as u8; rng.between(1, 60_000) as usize];
            let codec = Codec::ALL[rng.below(3) as usize];
            let fragment = Fragment { k, p, number: k + p - 1 };
            bytes.extend(cell_of(at, &row, fragment, codec));
            at.offset += row.len() as u32 + u32::from(rng.one_in(10));
            (k, p) = if rng.one_in(10) { (2, 1) } else { (k, p) };
        }
        bytes
    }

    /// The engine's checks and the model's, each for itself, over appends with one byte changed,
    /// in part with a checksum that fits.
    #[test]
    fn both_checks_agree_on_changed_appends() {
        let mut rng = Rng::new(7);
        let pool = BufPool::new(8 << 20);
        let mut refused = 0;
        for _ in 0..4000 {
            let at = AppendAt {
                chunk: ChunkId::new(rng.below(4)),
                epoch: Epoch::new(rng.below(4)),
                base: rng.below(4),
                offset: rng.below(3) as u32 * 4048,
            };
            let len = rng.between(1, 9000) as usize;
            let mut bytes = vec![0; sectors_for(len) * SIZE];
            format_append(at, &vec![1; len], &mut bytes);
            if rng.one_in(2) {
                bytes = rows_of(&mut rng, at);
            }
            let start = rng.below((bytes.len() / SIZE) as u64) as usize * SIZE;
            if rng.one_in(2) {
                bytes[start + DATA + rng.below(48) as usize] = rng.below(8) as u8;
            } else if rng.one_in(4) {
                bytes[start + rng.below(16) as usize] = rng.below(8) as u8;
            } else if rng.one_in(8) {
                bytes.truncate(bytes.len() - SIZE);
            }
            if rng.one_in(2) && start < bytes.len() {
                let crc = checksum(&bytes[start..start + DATA + 36]);
                bytes[start + DATA + 36..start + DATA + 40].copy_from_slice(&crc.to_le_bytes());
            }
            let append = Append {
                chunk: at.chunk,
                epoch: at.epoch,
                base: at.base,
                offset: at.offset,
                sectors: pool.copy_of(&bytes).unwrap(),
                create: rng.one_in(2),
                repair: rng.one_in(2),
                purpose: Purpose::Data,
            };
            let model = sectors_of(&append).map(|(_, len)| len);
            refused += u32::from(model.is_err());
            assert_eq!(model, chunkstore::check_append(&append), "{at:?}");
        }
        assert!((1000..3000).contains(&refused), "{refused} of 4000 refused");
    }
}
