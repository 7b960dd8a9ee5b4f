//! Records of log and checkpoint. Each starts with type (1 byte), flags (1) and total length (2);
//! the fields follow in the order of the variant, little-endian. A record may be applied again, or
//! to a state that is ahead of it: later records correct the result. A checkpoint is taken while
//! the store works, and the log is replayed over it from before its start.

use base::{ChunkId, Epoch};

use super::block::PAYLOAD_MAX;
use crate::limits::INLINE_RUNS_MAX;
use crate::map::{RUN_BYTES, Run};
use codec::cursor::Cursor;
use wire::row::{Fragment, Layout};

/// `count` units from `start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// First unit.
    pub start: u32,
    /// Units, at least 1.
    pub count: u32,
}

/// Place of a sealed replica's offset map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapPlace {
    /// Here.
    Inline {
        /// Runs in use.
        count: u8,
        /// The runs.
        runs: [Run; INLINE_RUNS_MAX],
    },
    /// In index sectors of the chunk.
    Index {
        /// The first, as index in the chunk.
        first: u32,
        /// Runs in them.
        runs: u32,
    },
    /// Nowhere: there was no room for index sectors. The footers have it.
    Footers,
}

/// Unchanging part of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Offset in the file of its first byte.
    pub base: u64,
    /// Tag of the incarnation.
    pub tag: u32,
    /// Layout of its sectors.
    pub layout: Layout,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A mount began.
    Mount {
        /// Its number, above all before it.
        mount: u64,
    },
    /// A replica that is not sealed. Of another number where it has rows, which older versions do
    /// not read.
    Replica {
        /// Its unchanging part.
        id: Identity,
        /// Its fence.
        fence: Epoch,
        /// Known-durable bytes.
        bound: u32,
        /// Length that it was fenced at; later bytes do not count.
        cap: Option<u32>,
        /// True while repair fills it.
        repairing: bool,
        /// Its units.
        extents: Vec<Extent>,
    },
    /// More units of a replica.
    Extend {
        /// The chunk.
        chunk: ChunkId,
        /// Its incarnation.
        tag: u32,
        /// Known-durable bytes.
        bound: u32,
        /// Units it had before.
        units: u32,
        /// The units added.
        extents: Vec<Extent>,
    },
    /// Part of an open replica's offset map. In checkpoints only.
    Runs {
        /// The chunk.
        chunk: ChunkId,
        /// Its incarnation.
        tag: u32,
        /// Runs before these.
        before: u32,
        /// The runs.
        runs: Vec<Run>,
    },
    /// Length to which an open replica's sectors are known. In checkpoints only, behind its runs.
    Progress {
        /// The chunk.
        chunk: ChunkId,
        /// Its incarnation.
        tag: u32,
        /// Durable bytes.
        len: u32,
        /// Sectors that hold them.
        sectors: u32,
        /// Chained check of the last.
        chain: u32,
    },
    /// A fence. Makes a tombstone when the chunk is absent.
    Fence {
        /// The chunk.
        chunk: ChunkId,
        /// Its incarnation; 0 when it is absent.
        tag: u32,
        /// Epochs below act no more.
        epoch: Epoch,
        /// Durable bytes at that time.
        len: u32,
        /// True when the replica takes no more appends by it.
        ends: bool,
    },
    /// A replica is sealed.
    Seal {
        /// The chunk.
        chunk: ChunkId,
        /// Its incarnation.
        tag: u32,
        /// Final length.
        len: u32,
        /// Units kept, from the front.
        units: u32,
        /// Place of its map.
        map: MapPlace,
    },
    /// A replica goes, a tombstone for ever closed takes its place.
    Delete {
        /// The chunk.
        chunk: ChunkId,
    },
    /// A tombstone goes.
    Forget {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Known-durable bytes of a replica.
    Bound {
        /// The chunk.
        chunk: ChunkId,
        /// Its incarnation.
        tag: u32,
        /// The bytes.
        len: u32,
    },
    /// Units below this one are zeroed and synced.
    Ready {
        /// The unit.
        units: u32,
    },
    /// A tombstone. In checkpoints only.
    Tombstone {
        /// The chunk.
        chunk: ChunkId,
        /// Its fence; the largest number when it was deleted.
        fence: Epoch,
    },
    /// A sealed replica. In checkpoints only. Of another number where it has rows.
    Sealed {
        /// Its unchanging part.
        id: Identity,
        /// Final length.
        len: u32,
        /// Place of its map.
        map: MapPlace,
        /// Its units; more may follow by [`Record::Extend`].
        extents: Vec<Extent>,
    },
}

/// Extents in one record at most.
pub const EXTENTS_MAX: usize = 128;
/// Runs in one record at most.
pub const RUNS_MAX: usize = 240;
/// Bytes of a record at most.
pub const RECORD_MAX: usize = 4 + 20 + RUNS_MAX * RUN_BYTES;
const _: () = assert!(RECORD_MAX <= PAYLOAD_MAX);
const _: () = assert!(4 + 96 + EXTENTS_MAX * 8 <= PAYLOAD_MAX);

const HAS_CAP: u8 = 1;
const REPAIRING: u8 = 2;
const ENDS: u8 = 1;

impl Record {
    /// The number of its type.
    pub const fn code(&self) -> u8 {
        match self {
            Record::Mount { .. } => 1,
            Record::Replica { id, .. } if matches!(id.layout, Layout::Rows(_)) => 14,
            Record::Replica { .. } => 2,
            Record::Extend { .. } => 3,
            Record::Runs { .. } => 4,
            Record::Progress { .. } => 5,
            Record::Fence { .. } => 6,
            Record::Seal { .. } => 7,
            Record::Delete { .. } => 8,
            Record::Forget { .. } => 9,
            Record::Bound { .. } => 10,
            Record::Ready { .. } => 11,
            Record::Tombstone { .. } => 12,
            Record::Sealed { id, .. } if matches!(id.layout, Layout::Rows(_)) => 15,
            Record::Sealed { .. } => 13,
        }
    }

    /// Appends its bytes to `out`; returns how many.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&[self.code(), 0, 0, 0]);
        let flags = match self {
            Record::Mount { mount } => {
                put64(out, *mount);
                0
            }
            Record::Replica { id, fence, bound, cap, repairing, extents } => {
                put_id(out, id);
                put64(out, fence.get());
                put32(out, *bound);
                put32(out, cap.unwrap_or(0));
                put_extents(out, extents);
                (u8::from(cap.is_some()) * HAS_CAP) | (u8::from(*repairing) * REPAIRING)
            }
            Record::Extend { chunk, tag, bound, units, extents } => {
                put_ref(out, *chunk, *tag);
                put32(out, *bound);
                put32(out, *units);
                put_extents(out, extents);
                0
            }
            Record::Runs { chunk, tag, before, runs } => {
                put_ref(out, *chunk, *tag);
                put32(out, *before);
                runs.iter().for_each(|run| run.encode(out));
                0
            }
            Record::Progress { chunk, tag, len, sectors, chain } => {
                put_ref(out, *chunk, *tag);
                [len, sectors, chain].into_iter().for_each(|field| put32(out, *field));
                0
            }
            Record::Fence { chunk, tag, epoch, len, ends } => {
                put_ref(out, *chunk, *tag);
                put64(out, epoch.get());
                put32(out, *len);
                u8::from(*ends) * ENDS
            }
            Record::Seal { chunk, tag, len, units, map } => {
                put_ref(out, *chunk, *tag);
                put32(out, *len);
                put32(out, *units);
                put_map(out, map)
            }
            Record::Delete { chunk } | Record::Forget { chunk } => {
                put64(out, chunk.get());
                0
            }
            Record::Bound { chunk, tag, len } => {
                put_ref(out, *chunk, *tag);
                put32(out, *len);
                0
            }
            Record::Ready { units } => {
                put32(out, *units);
                0
            }
            Record::Tombstone { chunk, fence } => {
                put64(out, chunk.get());
                put64(out, fence.get());
                0
            }
            Record::Sealed { id, len, map, extents } => {
                put_id(out, id);
                put32(out, *len);
                let flags = put_map(out, map);
                put_extents(out, extents);
                flags
            }
        };
        let count = out.len() - start;
        assert!(count <= PAYLOAD_MAX, "a record of {count} bytes");
        out[start + 1] = flags;
        out[start + 2..start + 4].copy_from_slice(&(count as u16).to_le_bytes());
        count
    }

    /// Takes one record from the front of `bytes`; none when it is no record that
    /// [`Record::encode`] writes.
    pub fn decode(bytes: &mut &[u8]) -> Option<Record> {
        let head = bytes.get(..4)?;
        let (code, flags) = (head[0], head[1]);
        let count = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if count < 4 {
            return None;
        }
        let mut reader = Cursor(bytes.get(4..count)?);
        let record = decode_body(code, flags, &mut reader)?;
        if !reader.0.is_empty() {
            return None;
        }
        *bytes = &bytes[count..];
        Some(record)
    }
}

fn decode_body(code: u8, flags: u8, reader: &mut Cursor<'_>) -> Option<Record> {
    let allowed = match code {
        2 | 14 => HAS_CAP | REPAIRING,
        6 => ENDS,
        7 | 13 | 15 => u8::MAX,
        _ => 0,
    };
    if flags & !allowed != 0 {
        return None;
    }
    let r = reader;
    Some(match code {
        1 => Record::Mount { mount: r.u64()? },
        2 | 14 => {
            let (id, fence) = (id(r, code == 14)?, Epoch::new(r.u64()?));
            let (bound, cap) = (r.u32()?, r.u32()?);
            if flags & HAS_CAP == 0 && cap != 0 {
                return None;
            }
            let cap = (flags & HAS_CAP != 0).then_some(cap);
            let repairing = flags & REPAIRING != 0;
            Record::Replica { id, fence, bound, cap, repairing, extents: extents(r)? }
        }
        3 => Record::Extend {
            chunk: chunk(r)?,
            tag: r.u32()?,
            bound: r.u32()?,
            units: r.u32()?,
            extents: extents(r)?,
        },
        4 => {
            let (chunk, tag, before) = (chunk(r)?, r.u32()?, r.u32()?);
            if r.0.is_empty() || r.0.len() > RUNS_MAX * RUN_BYTES {
                return None;
            }
            Record::Runs { chunk, tag, before, runs: runs(r)? }
        }
        5 => Record::Progress {
            chunk: chunk(r)?,
            tag: r.u32()?,
            len: r.u32()?,
            sectors: r.u32()?,
            chain: r.u32()?,
        },
        6 => Record::Fence {
            chunk: chunk(r)?,
            tag: r.u32()?,
            epoch: Epoch::new(r.u64()?),
            len: r.u32()?,
            ends: flags & ENDS != 0,
        },
        7 => Record::Seal {
            chunk: chunk(r)?,
            tag: r.u32()?,
            len: r.u32()?,
            units: r.u32()?,
            map: map(flags, r)?,
        },
        8 => Record::Delete { chunk: chunk(r)? },
        9 => Record::Forget { chunk: chunk(r)? },
        10 => Record::Bound { chunk: chunk(r)?, tag: r.u32()?, len: r.u32()? },
        11 => Record::Ready { units: r.u32()? },
        12 => Record::Tombstone { chunk: chunk(r)?, fence: Epoch::new(r.u64()?) },
        13 | 15 => {
            let (id, len) = (id(r, code == 15)?, r.u32()?);
            let map = map(flags, r)?;
            Record::Sealed { id, len, map, extents: extents(r)? }
        }
        _ => return None,
    })
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_ref(out: &mut Vec<u8>, chunk: ChunkId, tag: u32) {
    put64(out, chunk.get());
    put32(out, tag);
}

fn put_id(out: &mut Vec<u8>, id: &Identity) {
    put64(out, id.chunk.get());
    put64(out, id.epoch.get());
    put64(out, id.base);
    put32(out, id.tag);
    if let Layout::Rows(fragment) = id.layout {
        out.extend_from_slice(&fragment.encode());
    }
}

fn put_extents(out: &mut Vec<u8>, extents: &[Extent]) {
    assert!(extents.len() <= EXTENTS_MAX);
    for extent in extents {
        put32(out, extent.start);
        put32(out, extent.count);
    }
}

/// Returns the flags: 0 to 2 are inline runs, 254 index sectors, 255 footers.
fn put_map(out: &mut Vec<u8>, map: &MapPlace) -> u8 {
    match map {
        MapPlace::Inline { count, runs } => {
            runs[..usize::from(*count)].iter().for_each(|run| run.encode(out));
            *count
        }
        MapPlace::Index { first, runs } => {
            put32(out, *first);
            put32(out, *runs);
            254
        }
        MapPlace::Footers => 255,
    }
}

fn chunk(reader: &mut Cursor<'_>) -> Option<ChunkId> {
    reader.u64().map(ChunkId::new)
}

fn id(reader: &mut Cursor<'_>, has_rows: bool) -> Option<Identity> {
    let (chunk, epoch) = (chunk(reader)?, Epoch::new(reader.u64()?));
    let (base, tag) = (reader.u64()?, reader.u32()?);
    let layout = match has_rows {
        true => Layout::Rows(Fragment::decode(reader.take(4)?.try_into().ok()?)?),
        false => Layout::Plain,
    };
    Some(Identity { chunk, epoch, base, tag, layout })
}

fn extents(reader: &mut Cursor<'_>) -> Option<Vec<Extent>> {
    if !reader.0.len().is_multiple_of(8) || reader.0.len() > EXTENTS_MAX * 8 {
        return None;
    }
    let mut extents = Vec::with_capacity(reader.0.len() / 8);
    while !reader.0.is_empty() {
        let extent = Extent { start: reader.u32()?, count: reader.u32()? };
        if extent.count == 0 || extent.start.checked_add(extent.count)? > u32::MAX / 2 {
            return None;
        }
        extents.push(extent);
    }
    Some(extents)
}

fn runs(reader: &mut Cursor<'_>) -> Option<Vec<Run>> {
    if !reader.0.len().is_multiple_of(RUN_BYTES) {
        return None;
    }
    let count = reader.0.len() / RUN_BYTES;
    (0..count).map(|_| Run::decode(reader.take(RUN_BYTES)?)).collect()
}

fn map(flags: u8, reader: &mut Cursor<'_>) -> Option<MapPlace> {
    match flags {
        254 => Some(MapPlace::Index { first: reader.u32()?, runs: reader.u32()? }),
        255 => Some(MapPlace::Footers),
        count if usize::from(count) <= INLINE_RUNS_MAX => {
            let mut runs = [Run::default(); INLINE_RUNS_MAX];
            for run in &mut runs[..usize::from(count)] {
                *run = Run::decode(reader.take(RUN_BYTES)?)?;
            }
            Some(MapPlace::Inline { count, runs })
        }
        _ => None,
    }
}
