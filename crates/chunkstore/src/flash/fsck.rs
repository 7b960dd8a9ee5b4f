//! Reads a store that is offline, sector by sector, and changes nothing.

use std::fmt;
use std::path::Path;
use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, Epoch};
use runtime::{Env, OpenOptions};
use wire::data::{ReplicaStat, ReplicaState};
use wire::row::{Layout, Row, row_at};
use wire::sector::{Footer, SectorKind, chain, client_crc, server_part, verify_sector};

use super::checkpoint::Header;
use super::layout::Super;
use super::planted::Bugs;
use super::read::decode_index;
use super::record::{Extent, Identity, MapPlace};
use super::recover::{Loaded, Medium, claim_units};
use super::store::FlashStoreInner;
use super::table::{Entry, place};
use super::{Config, MountError, assemble, lock};
use crate::contract::StoreError;
use crate::limits::BATCH_SECTORS_MAX;
use crate::map::Run;

/// A fault of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// A copy of the superblock is damaged; the next mount writes it again.
    Superblock {
        /// The copy, 0 or 1.
        copy: usize,
    },
    /// A checkpoint is damaged and the one before it replaces it. The text has the area.
    Checkpoint(String),
    /// Log blocks that only one copy still holds; the next checkpoints repair them.
    LogCopies {
        /// Number of blocks.
        blocks: u64,
    },
    /// Records were acknowledged and lost: the store does not mount, and must not vote.
    LogLost(String),
    /// Two replicas claim one unit.
    Units,
    /// Acknowledged bytes at a replica's end are not readable.
    Short {
        /// The chunk.
        chunk: ChunkId,
        /// Readable bytes.
        len: u32,
        /// Known-durable bytes.
        bound: u32,
    },
    /// A sector does not verify.
    Sector {
        /// The chunk.
        chunk: ChunkId,
        /// The sector, as index in the chunk.
        sector: u32,
        /// Its place on the medium, bytes.
        at: u64,
        /// Offset in the chunk of its first byte.
        offset: u32,
    },
    /// A sealed replica's offset index is damaged; reads rebuild it from the footers.
    Index {
        /// The chunk.
        chunk: ChunkId,
    },
}

impl Problem {
    /// True when acknowledged bytes or records of this store are gone: repair from others.
    pub fn loses_data(&self) -> bool {
        matches!(
            self,
            Problem::LogLost(_) | Problem::Units | Problem::Short { .. } | Problem::Sector { .. }
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Superblock { copy } => {
                write!(f, "superblock {copy} is bad; the next mount writes it again")
            }
            Problem::Checkpoint(what) => write!(f, "{what}; the one before it is used"),
            Problem::LogCopies { blocks } => {
                write!(f, "{blocks} log blocks are left in one copy; checkpoint the store")
            }
            Problem::LogLost(what) => {
                write!(f, "{what}: replace the disk, its replicas are repaired from others")
            }
            Problem::Units => f.write_str("two replicas claim one unit: replace the disk"),
            Problem::Short { chunk, len, bound } => write!(
                f,
                "{chunk}: {len} bytes are readable of {bound} known durable; repair the replica"
            ),
            Problem::Sector { chunk, sector, at, offset } => write!(
                f,
                "{chunk}: sector {sector} (byte {at} of the medium, offset {offset}) is damaged; \
                 repair the replica"
            ),
            Problem::Index { chunk } => {
                write!(f, "{chunk}: its offset index is bad; reads rebuild it from the footers")
            }
        }
    }
}

/// Result of a check of a whole store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsckReport {
    /// The store's fixed facts.
    pub superblock: Super,
    /// Replicas.
    pub chunks: u64,
    /// Of these, sealed ones.
    pub sealed: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Data sectors verified.
    pub sectors: u64,
    /// Data bytes in them.
    pub bytes: u64,
    /// Units in use, and units made ready.
    pub units: (u32, u32),
    /// Problems found.
    pub problems: Vec<Problem>,
}

/// A store's metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dump {
    /// The store's fixed facts.
    pub superblock: Super,
    /// The checkpoints' headers, where they are valid.
    pub checkpoints: [Option<Header>; 2],
    /// Blocks of the log that replay read: from, to.
    pub log: (u64, u64),
    /// Mounts so far.
    pub mounts: u64,
    /// Replicas.
    pub chunks: Vec<ChunkDump>,
    /// Tombstones with their fences.
    pub tombstones: Vec<(ChunkId, Epoch)>,
}

/// A replica in a dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkDump {
    /// Its unchanging part.
    pub id: Identity,
    /// Its facts.
    pub stat: ReplicaStat,
    /// Its units.
    pub extents: Vec<Extent>,
    /// Place of its offset map; none while it is open.
    pub map: Option<MapPlace>,
    /// Its offset map, where that is at hand.
    pub runs: Vec<Run>,
}

/// One sector of a replica as it is on the medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectorDump {
    /// Its index in the chunk.
    pub sector: u32,
    /// Its place on the medium, bytes.
    pub at: u64,
    /// Its footer, when data and footer match their CRC.
    pub footer: Option<Footer>,
    /// The row whose cell begins here.
    pub row: Option<Row>,
    /// Tag of the incarnation that wrote it.
    pub tag: u32,
    /// True when its chained check follows from the sector before it.
    pub chained: bool,
}

struct Offline {
    inner: Rc<FlashStoreInner>,
    loaded_log: (u64, u64),
    mounts: u64,
    headers: [Option<Header>; 2],
    problems: Vec<Problem>,
}

async fn load(env: &Env, path: &Path) -> Result<Offline, MountError> {
    let file = env.open_file(path, OpenOptions::READ.direct()).await;
    let file = file.map_err(|error| MountError::io(&error))?;
    lock(env, &file, path).await?;
    let medium = Medium { env, file: &file };
    let (sb, bad) = medium.read_super().await?;
    let mut problems: Vec<_> = bad.into_iter().map(|copy| Problem::Superblock { copy }).collect();
    let headers = [medium.read_header(&sb, 0).await?, medium.read_header(&sb, 1).await?];
    let loaded: Loaded = medium.load(&sb, Bugs::default()).await?;
    problems.extend(loaded.mended.iter().cloned().map(Problem::Checkpoint));
    if loaded.single_blocks > 0 {
        problems.push(Problem::LogCopies { blocks: loaded.single_blocks });
    }
    problems.extend(loaded.lost.clone().map(Problem::LogLost));
    let (mounts, log) = (loaded.mount, (loaded.header.log_seq, loaded.next_seq));
    let alloc = claim_units(&sb, &loaded.table).unwrap_or_else(|| {
        problems.push(Problem::Units);
        super::alloc::Allocator::new(sb.units, 0)
    });
    let inner = assemble(env, file, sb, loaded, alloc, Config::default());
    inner.state.borrow_mut().failed = true; // Nothing is written.
    inner.recover_tails().await.map_err(|error| broken(&error))?;
    Ok(Offline { inner, loaded_log: log, mounts, headers, problems })
}

fn broken(error: &StoreError) -> MountError {
    MountError::Io { kind: std::io::ErrorKind::Other, text: error.to_string() }
}

/// Verifies everything that the store holds. Memory: the metadata of all replicas.
pub async fn fsck(env: &Env, path: &Path) -> Result<FsckReport, MountError> {
    let Offline { inner, mut problems, .. } = load(env, path).await?;
    let (chunks, tombstones, units) = {
        let state = inner.state.borrow();
        let chunks: Vec<ChunkId> = state.table.chunks.keys().copied().collect();
        let units = (state.alloc.used(), state.alloc.ready());
        (chunks, state.table.tombstones.len() as u64, units)
    };
    let (mut sealed, mut sectors, mut bytes) = (0, 0, 0);
    let count = chunks.len() as u64;
    for chunk in chunks {
        let dump = describe(&inner, chunk);
        let ReplicaStat { len, durable_bound: bound, .. } = dump.stat;
        if len < bound {
            problems.push(Problem::Short { chunk, len, bound });
        }
        sealed += u64::from(dump.stat.state == ReplicaState::Sealed);
        if let Some(MapPlace::Index { first, runs }) = dump.map {
            let good = index_is_good(&inner, &dump, first, runs).await?;
            if !good {
                problems.push(Problem::Index { chunk });
            }
        }
        let mut expected = 0;
        let mut walk = Walk::new(&inner, &dump);
        while expected < len {
            let Some(found) = walk.next().await? else { break };
            let good = found.footer.filter(|footer| {
                let of_here = belongs(&dump.id, footer) && footer.offset == expected;
                of_here && found.tag == dump.id.tag
            });
            let taken = good.and_then(|footer| walk.take(footer, found.row));
            match taken {
                Some(more) if found.chained || walk.after_damage => {
                    walk.after_damage = false;
                    sectors += 1;
                    bytes += u64::from(more);
                    expected += more;
                }
                _ => {
                    let (sector, at) = (found.sector, found.at);
                    problems.push(Problem::Sector { chunk, sector, at, offset: expected });
                    // The map has the next offset; without one the rest is not checked.
                    walk.after_damage = true;
                    walk.skip_cell(&dump.runs);
                    match offset_behind(&dump.runs, walk.next - 1) {
                        Some(next) => expected = next,
                        None => break,
                    }
                }
            }
        }
    }
    let superblock = inner.sb;
    Ok(FsckReport {
        superblock,
        chunks: count,
        sealed,
        tombstones,
        sectors,
        bytes,
        units,
        problems,
    })
}

fn belongs(id: &Identity, footer: &Footer) -> bool {
    footer.chunk == id.chunk
        && footer.epoch == id.epoch
        && footer.base == id.base
        && footer.kind != SectorKind::Index
}

/// Offset of the first byte behind `sector`, by the map.
fn offset_behind(runs: &[Run], sector: u32) -> Option<u32> {
    let next = sector + 1;
    let run = runs.iter().find(|run| u64::from(next) < run.sector_end())?;
    let within = next.checked_sub(run.sector())?;
    let (piece, inner) = (within / run.span(), within % run.span());
    let inner = if run.is_rows() { 0 } else { inner * base::limits::SECTOR_DATA_MAX as u32 };
    Some(run.start() + piece * run.stride() + inner)
}

async fn index_is_good(
    inner: &FlashStoreInner,
    dump: &ChunkDump,
    first: u32,
    runs: u32,
) -> Result<bool, MountError> {
    let count = (runs as usize).div_ceil(crate::map::INDEX_RUNS) as u32;
    for index in 0..count {
        let sector = inner.read_patiently(&dump.extents, first + index, 1).await;
        let sector = sector.map_err(|error| broken(&error))?;
        let before = index * crate::map::INDEX_RUNS as u32;
        if decode_index(&dump.id, before, &sector).is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Goes through a replica's sectors.
struct Walk<'a> {
    inner: &'a FlashStoreInner,
    dump: &'a ChunkDump,
    end: u32,
    next: u32,
    chain: u32,
    after_damage: bool,
    /// The row whose cell is read, the footer of its first sector, and sectors read of it.
    cell: Option<(Row, Footer, u32)>,
    batch: Option<(u32, runtime::BufMut)>,
}

impl<'a> Walk<'a> {
    fn new(inner: &'a FlashStoreInner, dump: &'a ChunkDump) -> Walk<'a> {
        let units: u32 = dump.extents.iter().map(|extent| extent.count).sum();
        let end = units * inner.sb.unit_sectors();
        let (after_damage, cell, batch) = (false, None, None);
        Walk { inner, dump, end, next: 0, chain: 0, after_damage, cell, batch }
    }

    /// The data bytes that end with a sector of the chunk: its own, or those of the row whose cell
    /// it ends. Nothing when it is not the next one of its cell, or of another layout.
    fn take(&mut self, footer: Footer, begun: Option<Row>) -> Option<u32> {
        let Layout::Rows(fragment) = self.dump.id.layout else {
            return (footer.kind == SectorKind::Data).then(|| u32::from(footer.len));
        };
        let (row, first, index) = match self.cell.take() {
            Some(cell) => cell,
            None => (begun?, footer, 0),
        };
        if row.fragment != fragment || !row.has(&first, index, &footer) {
            return None;
        }
        let is_whole = index + 1 == row.sectors();
        if !is_whole {
            self.cell = Some((row, first, index + 1));
        }
        Some(if is_whole { row.len } else { 0 })
    }

    /// Goes on behind the cell that the last sector belongs to, by the map.
    fn skip_cell(&mut self, runs: &[Run]) {
        self.cell = None;
        let last = self.next - 1;
        let run = runs.iter().find(|run| u64::from(last) < run.sector_end());
        if let Some(run) = run.filter(|run| run.is_rows() && run.sector() <= last) {
            let within = last - run.sector();
            self.next = run.sector() + (within / run.span() + 1) * run.span();
        }
    }

    async fn next(&mut self) -> Result<Option<SectorDump>, MountError> {
        if self.next >= self.end {
            return Ok(None);
        }
        let sector = self.next;
        let step = BATCH_SECTORS_MAX / 4;
        if self.batch.as_ref().is_none_or(|(first, _)| sector >= first + step) {
            let count = step.min(self.end - sector);
            let read = self.inner.read_patiently(&self.dump.extents, sector, count).await;
            self.batch = Some((sector, read.map_err(|error| broken(&error))?));
        }
        let (first, batch) = self.batch.as_ref().expect("read above");
        let start = (sector - first) as usize * SECTOR;
        let bytes = &batch[start..start + SECTOR];
        let (unit, within, _) =
            place(&self.dump.extents, self.inner.sb.unit_sectors(), sector).expect("below the end");
        let at = self.inner.sb.unit_at(unit) + u64::from(within) * SECTOR as u64;
        let part = server_part(bytes);
        let chained = part.chain == chain(self.chain, client_crc(bytes), part.tag);
        self.chain = part.chain;
        self.next += 1;
        Ok(Some(SectorDump {
            sector,
            at,
            footer: verify_sector(bytes).ok(),
            row: row_at(bytes).ok(),
            tag: part.tag,
            chained,
        }))
    }
}

fn describe(inner: &FlashStoreInner, chunk: ChunkId) -> ChunkDump {
    let state = inner.state.borrow();
    let entry = &state.table.chunks[&chunk];
    let (map, runs) = match entry {
        Entry::Open(open) => (None, open.map.runs().to_vec()),
        Entry::Sealed(sealed) => match sealed.map {
            MapPlace::Inline { count, runs } => {
                (Some(sealed.map), runs[..usize::from(count)].to_vec())
            }
            place => (Some(place), Vec::new()),
        },
    };
    let (id, stat, extents) = (entry.id(chunk), entry.stat(), entry.extents().to_vec());
    ChunkDump { id, stat, extents, map, runs }
}

/// The store's metadata.
pub async fn dump(env: &Env, path: &Path) -> Result<Dump, MountError> {
    let Offline { inner, loaded_log, mounts, headers, .. } = load(env, path).await?;
    let (chunks, tombstones): (Vec<ChunkId>, Vec<_>) = {
        let state = inner.state.borrow();
        let tombstones = state.table.tombstones.iter().map(|(&chunk, &fence)| (chunk, fence));
        (state.table.chunks.keys().copied().collect(), tombstones.collect())
    };
    let chunks = chunks.into_iter().map(|chunk| describe(&inner, chunk)).collect();
    let superblock = inner.sb;
    let checkpoints = headers;
    Ok(Dump { superblock, checkpoints, log: loaded_log, mounts, chunks, tombstones })
}

/// Every sector of a replica's units, whatever it holds; none when there is no such replica.
pub async fn dump_chunk(
    env: &Env,
    path: &Path,
    chunk: ChunkId,
) -> Result<Option<(ChunkDump, Vec<SectorDump>)>, MountError> {
    let Offline { inner, .. } = load(env, path).await?;
    if !inner.state.borrow().table.chunks.contains_key(&chunk) {
        return Ok(None);
    }
    let dump = describe(&inner, chunk);
    let mut sectors = Vec::new();
    let mut walk = Walk::new(&inner, &dump);
    while let Some(sector) = walk.next().await? {
        sectors.push(sector);
    }
    drop(walk);
    Ok(Some((dump, sectors)))
}
