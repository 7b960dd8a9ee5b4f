//! Places on the medium, and the superblock that records them.
//!
//! ```text
//! 0        superblock, first copy
//! 512 KiB  superblock, second copy
//! 1 MiB    log, first copy | checkpoint area 0 | checkpoint area 1 | log, second copy | units
//! ```
//!
//! Parts that must not be lost together are apart by more than a misdirected write strays.

use base::limits::SECTOR;
use base::{ClusterId, DiskId, FormationId, MIB};
use codec::crc32c;
use codec::cursor::Cursor;

use super::bytes::all_zero;
use crate::contract::StoreOwner;
use crate::limits::{LOG_BYTES_MIN, UNIT_MAX, UNIT_MIN};
use crate::map::RUN_BYTES;

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"CRATONCS";
/// Newest version of the format: the store may have replicas with rows. It gets it with the first
/// one. Readers refuse newer ones.
pub const VERSION: u32 = 3;
/// The version of stores without rows.
pub const VERSION_PLAIN: u32 = 2;
/// The version before stores noted their cluster. Such stores keep it until they join one.
pub const VERSION_UNMARKED: u32 = 1;
/// Offsets of the two copies of the superblock.
pub const SUPER_AT: [u64; 2] = [0, MIB / 2];
/// Offset of the log's first copy.
pub const LOG_AT: u64 = MIB;
/// Bytes of a log or checkpoint block, of a superblock, and of a checkpoint's header.
pub const BLOCK: u64 = SECTOR as u64;
/// Superblock flag: the medium is a raw device, whose units need no preparation.
pub const FLAG_RAW: u32 = 1;
/// Flag of a store of version 3: it was formatted by a version that noted no owner, and has none.
const FLAG_UNMARKED: u32 = 2;
/// Bytes a checkpoint takes for a unit at most: a sealed replica of one unit, with its share of
/// block headers and of what does not fit at a block's end.
pub const CHECKPOINT_UNIT_BYTES: u64 = 144;
/// Bytes a checkpoint takes for a tombstone at most.
pub const CHECKPOINT_TOMBSTONE_BYTES: u64 = 24;
/// Everything starts at a multiple of this, so that units are aligned for the device.
const ALIGN: u64 = MIB;

/// A store's fixed facts. Written at format time, twice, and once more when it joins a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Super {
    /// The disk's incarnation.
    pub disk: DiskId,
    /// When it was formatted, nanoseconds since 1970.
    pub created: u64,
    /// Bytes of a unit.
    pub unit: u32,
    /// [`FLAG_RAW`].
    pub flags: u32,
    /// Units at most.
    pub units: u32,
    /// Blocks of one copy of the log.
    pub log_blocks: u32,
    /// Tombstones at most.
    pub tombstones: u32,
    /// Bytes of offset maps of open chunks at most.
    pub open_map_bytes: u32,
    /// Bytes by which the file grows.
    pub grow_step: u64,
    /// The store's owner.
    pub owner: StoreOwner,
    /// The store may have replicas with rows (`wire::row`).
    pub rows: bool,
}

impl Super {
    /// Writes it into a zeroed block.
    pub fn encode(&self, block: &mut [u8]) {
        assert_eq!(block.len(), SECTOR);
        let mut out = Vec::with_capacity(104);
        let version = match self.owner {
            _ if self.rows => VERSION,
            StoreOwner::Unmarked => VERSION_UNMARKED,
            StoreOwner::Fresh | StoreOwner::Of { .. } => VERSION_PLAIN,
        };
        let is_unmarked = self.rows && self.owner == StoreOwner::Unmarked;
        let flags = self.flags | if is_unmarked { FLAG_UNMARKED } else { 0 };
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&[0; 4]); // The CRC's place.
        out.extend_from_slice(&self.disk.get().to_le_bytes());
        out.extend_from_slice(&self.created.to_le_bytes());
        for field in
            [self.unit, flags, self.units, self.log_blocks, self.tombstones, self.open_map_bytes]
        {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.grow_step.to_le_bytes());
        if let StoreOwner::Of { cluster, formation } = self.owner {
            out.extend_from_slice(&cluster.get().to_le_bytes());
            out.extend_from_slice(&formation.get().to_le_bytes());
        }
        block.fill(0);
        block[..out.len()].copy_from_slice(&out);
        let crc = crc32c(block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads it back.
    pub fn decode(block: &[u8]) -> Result<Super, SuperError> {
        if block.len() != SECTOR || block[..8] != MAGIC {
            return Err(SuperError::Magic);
        }
        let mut copy = [0; SECTOR];
        copy.copy_from_slice(block);
        copy[12..16].fill(0);
        let stored = u32::from_le_bytes(block[12..16].try_into().expect("4 bytes"));
        if crc32c(&copy) != stored {
            return Err(SuperError::Crc);
        }
        let mut reader = Cursor(&block[8..]);
        let version = reader.u32().ok_or(SuperError::Crc)?;
        if !(VERSION_UNMARKED..=VERSION).contains(&version) {
            return Err(SuperError::Version(version));
        }
        let parsed = Super::fields(&mut reader, version).ok_or(SuperError::Field)?;
        if !all_zero(reader.0) || !parsed.is_sound() {
            return Err(SuperError::Field);
        }
        Ok(parsed)
    }

    fn fields(reader: &mut Cursor<'_>, version: u32) -> Option<Super> {
        reader.u32()?; // The CRC.
        let mut parsed = Super {
            disk: DiskId::new(reader.u128()?),
            created: reader.u64()?,
            unit: reader.u32()?,
            flags: reader.u32()?,
            units: reader.u32()?,
            log_blocks: reader.u32()?,
            tombstones: reader.u32()?,
            open_map_bytes: reader.u32()?,
            grow_step: reader.u64()?,
            owner: StoreOwner::Unmarked,
            rows: version >= VERSION,
        };
        if version >= VERSION_PLAIN {
            let (cluster, formation) = (reader.u128()?, reader.u128()?);
            let is_unmarked = parsed.rows && parsed.flags & FLAG_UNMARKED != 0;
            parsed.flags &= if parsed.rows { !FLAG_UNMARKED } else { u32::MAX };
            parsed.owner = match (cluster, formation) {
                (0, 0) if is_unmarked => StoreOwner::Unmarked,
                _ if is_unmarked => return None,
                (0, 0) => StoreOwner::Fresh,
                (0, _) => return None,
                _ => StoreOwner::Of {
                    cluster: ClusterId::new(cluster),
                    formation: FormationId::new(formation),
                },
            };
        }
        Some(parsed)
    }

    fn is_sound(&self) -> bool {
        self.unit.is_power_of_two()
            && (UNIT_MIN..=UNIT_MAX).contains(&self.unit)
            && self.flags & !FLAG_RAW == 0
            && self.units > 0
            && self.units < u32::MAX / 2
            && u64::from(self.log_blocks) * BLOCK >= LOG_BYTES_MIN
            && self.log_blocks <= 1 << 24
            && self.grow_step > 0
            && self.grow_step.is_multiple_of(u64::from(self.unit))
    }

    /// True when units need no preparation.
    pub fn is_raw(&self) -> bool {
        self.flags & FLAG_RAW != 0
    }

    /// Sectors of a unit.
    pub fn unit_sectors(&self) -> u32 {
        self.unit / SECTOR as u32
    }

    /// Bytes of one copy of the log.
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.log_blocks) * BLOCK
    }

    /// Blocks of a checkpoint, its header included, while `units` units are in use at most.
    pub fn area_blocks(&self, units: u32) -> u64 {
        let bytes = u64::from(units) * CHECKPOINT_UNIT_BYTES
            + u64::from(self.tombstones) * CHECKPOINT_TOMBSTONE_BYTES
            // Runs are cut to blocks: a sixteenth is lost at most.
            + u64::from(self.open_map_bytes) / RUN_BYTES as u64 * (RUN_BYTES as u64 + 1);
        2 + bytes.div_ceil(super::block::PAYLOAD_MAX as u64)
    }

    /// Bytes between the starts of the two checkpoint areas.
    fn area_bytes(&self) -> u64 {
        (self.area_blocks(self.units) * BLOCK).next_multiple_of(ALIGN)
    }

    /// Offset of checkpoint area 0 or 1.
    pub fn area_at(&self, area: usize) -> u64 {
        (LOG_AT + self.log_bytes()).next_multiple_of(ALIGN) + area as u64 * self.area_bytes()
    }

    /// Offset of a copy of the log.
    pub fn log_at(&self, copy: usize) -> u64 {
        if copy == 0 { LOG_AT } else { self.area_at(2) }
    }

    /// Offset of unit 0.
    pub fn data_at(&self) -> u64 {
        (self.log_at(1) + self.log_bytes()).next_multiple_of(ALIGN)
    }

    /// Offset of a unit.
    pub fn unit_at(&self, unit: u32) -> u64 {
        self.data_at() + u64::from(unit) * u64::from(self.unit)
    }
}

/// Cause for which a block is no superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuperError {
    /// It does not start like one.
    Magic,
    /// Its checksum does not match.
    Crc,
    /// A format that this program does not know.
    Version(u32),
    /// A field is out of range.
    Field,
}
