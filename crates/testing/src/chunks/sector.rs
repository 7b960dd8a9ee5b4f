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
pub(super) struct Sector(Buf);

impl Sector {
    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[DATA + at + index])
    }

    /// The sector's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Offset in the chunk of its first data byte.
    pub(super) fn offset(&self) -> u32 {
        u32::from_le_bytes(self.number(24))
    }

    /// Offset in the chunk behind its last data byte.
    pub(super) fn end(&self) -> u32 {
        self.offset() + u32::from(u16::from_le_bytes(self.number(28)))
    }

    /// Whether its append begins here.
    fn is_first(&self) -> bool {
        self.0[DATA + 31] & 1 != 0
    }

    /// Whether its append ends here.
    pub(super) fn is_last(&self) -> bool {
        self.0[DATA + 31] & 2 != 0
    }

    /// The client's checksum.
    fn crc(&self) -> u32 {
        u32::from_le_bytes(self.number(36))
    }

    /// Whether both are the same sector for their client.
    pub(super) fn equals(&self, other: &Sector) -> bool {
        self.crc() == other.crc()
    }

    /// Whether it is what a writer of this chunk may have sent for this offset.
    fn belongs(&self, append: &Append, offset: u64) -> bool {
        let len = usize::from(u16::from_le_bytes(self.number(28)));
        checksum(&self.0[..DATA + 36]) == self.crc()
            && self.number(0) == append.chunk.get().to_le_bytes()
            && self.number(8) == append.epoch.get().to_le_bytes()
            && self.number(16) == append.base.to_le_bytes()
            && u64::from(self.offset()) == offset
            && len != 0
            && len <= DATA
            && offset + len as u64 <= u64::from(u32::MAX)
            && self.0[DATA + 30] == 1
            && self.0[DATA + 31] < 4
            && self.number(32) == [0; 4]
    }
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
    let mut sectors = Vec::new();
    let mut end = u64::from(append.offset);
    for at in (0..bytes).step_by(SIZE) {
        let sector = Sector(append.sectors.slice(at..at + SIZE));
        if !sector.belongs(append, end) {
            return Err(StoreError::BadSectors { index: sectors.len() as u32 });
        }
        end = u64::from(sector.end());
        sectors.push(sector);
    }
    if end > CHUNK_LEN_MAX {
        return Err(StoreError::Invalid("a chunk has at most 2 GiB"));
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

#[cfg(test)]
mod tests {
    use base::{ChunkId, Epoch};
    use runtime::{BufPool, Rng};
    use wire::data::Purpose;
    use wire::sector::{AppendAt, format_append, sectors_for};

    use super::*;

    #[test]
    fn checksum_has_the_published_values() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
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
            let start = rng.below((bytes.len() / SIZE) as u64) as usize * SIZE;
            if rng.one_in(2) {
                bytes[start + DATA + rng.below(48) as usize] = rng.below(8) as u8;
            }
            if rng.one_in(2) {
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
