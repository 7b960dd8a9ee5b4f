//! Reading a replica's sectors from the front by what their footers say: what recovery does with
//! open replicas behind the last checkpoint, and how a lost offset map is rebuilt.

use base::limits::{CHUNK_LEN_MAX, SECTOR};
use wire::row::{Fragment, Layout, Row, row_at};
use wire::sector::{
    FLAG_FIRST, FLAG_LAST, Footer, SectorKind, chain, client_crc, server_part, verify_sector,
};

use super::planted::Planted;
use super::record::{Extent, Identity};
use super::store::{FlashStoreInner, is_unreadable};
use crate::contract::StoreError;
use crate::limits::{CHUNK_SECTORS_INFLIGHT_MAX, RECOVERY_FIRST_SECTORS, RECOVERY_READ_SECTORS};
use crate::map::{INDEX_RUNS, RunMap};

/// Progress through a replica's sectors. An unbroken chain of sectors of the right incarnation
/// is accepted, nothing behind a break.
#[derive(Debug)]
pub(crate) struct Scan {
    id: Identity,
    /// Accept no byte at or behind this one.
    cap: Option<u32>,
    map: RunMap,
    chain: u32,
    /// Accepted sectors behind the map: an append whose last sector is not seen yet.
    tail: Vec<u16>,
    tail_chain: u32,
    /// The row whose cell they begin, where the replica has rows.
    row: Option<(Row, Footer)>,
    /// True when more may have been acknowledged: a sector far behind the break proves it, or the
    /// one at the break cannot be read.
    evidence: bool,
    lax: bool,
    torn_counts: bool,
}

/// Result of a scan.
pub(crate) struct Scanned {
    pub(crate) map: RunMap,
    pub(crate) chain: u32,
    pub(crate) evidence: bool,
}

impl Scan {
    pub(crate) fn new(id: Identity, cap: Option<u32>) -> Scan {
        Scan::resume(id, cap, RunMap::default(), 0)
    }

    /// Goes on behind what a checkpoint knows.
    pub(crate) fn resume(id: Identity, cap: Option<u32>, map: RunMap, chain: u32) -> Scan {
        let (tail, row) = (Vec::new(), None);
        let (evidence, lax, torn_counts) = (false, false, false);
        Scan { id, cap, map, chain, tail, tail_chain: chain, row, evidence, lax, torn_counts }
    }

    fn next_sector(&self) -> u32 {
        self.map.sectors() + self.tail.len() as u32
    }

    fn next_offset(&self) -> u32 {
        match self.id.layout {
            Layout::Plain => {
                self.map.len() + self.tail.iter().map(|&len| u32::from(len)).sum::<u32>()
            }
            // A row counts once its cell is whole.
            Layout::Rows(_) => self.map.len(),
        }
    }

    /// Offset from which on no byte counts. A chunk of the largest length ends there, whatever is
    /// behind it: a bound beyond it is the length of no chunk.
    fn limit(&self) -> u32 {
        self.cap.unwrap_or(CHUNK_LEN_MAX as u32)
    }

    /// Accepts the next sector, and answers by how many bytes the replica is longer; nothing when it
    /// does not continue the replica.
    fn accept(&mut self, sector: &[u8], expected: u32) -> Option<u32> {
        if expected >= self.limit() {
            return None;
        }
        let footer = verify_sector(sector).ok()?;
        let part = server_part(sector);
        let goes_on = footer.chunk == self.id.chunk
            && footer.epoch == self.id.epoch
            && footer.base == self.id.base
            && footer.offset == expected
            && (self.lax
                || part.tag == self.id.tag
                    && part.chain == chain(self.tail_chain, client_crc(sector), self.id.tag));
        if !goes_on {
            return None;
        }
        let len = match self.id.layout {
            Layout::Plain if footer.kind == SectorKind::Data => u32::from(footer.len),
            Layout::Plain => return None,
            Layout::Rows(fragment) => self.accept_part(fragment, sector, footer)?,
        };
        self.tail.push(footer.len);
        self.tail_chain = part.chain;
        if footer.flags & FLAG_LAST != 0 {
            self.close_append();
        }
        Some(len)
    }

    /// The logical bytes that the next sector of a cell makes whole; nothing when it is not the next.
    fn accept_part(&mut self, fragment: Fragment, sector: &[u8], footer: Footer) -> Option<u32> {
        let (row, first) = match self.row {
            Some(begun) => begun,
            None => (row_at(sector).ok()?, footer),
        };
        let index = self.tail.len() as u32;
        if row.fragment != fragment || !row.has(&first, index, &footer) {
            return None;
        }
        self.row = Some((row, first));
        Some(if footer.flags & FLAG_LAST == 0 { 0 } else { row.len })
    }

    fn close_append(&mut self) {
        match self.id.layout {
            Layout::Plain => self.map.push(self.tail.drain(..)),
            Layout::Rows(_) => {
                let (row, _) = self.row.take().expect("a cell was begun");
                self.map.push_row(row.len, self.tail.len() as u32);
                self.tail.clear();
            }
        }
        self.chain = self.tail_chain;
    }

    /// Reads as far as the chain holds.
    pub(crate) async fn run(
        &mut self,
        inner: &FlashStoreInner,
        extents: &[Extent],
    ) -> Result<(), StoreError> {
        self.lax = inner.config.bugs().has(Planted::ScanLax);
        self.torn_counts = inner.config.bugs().has(Planted::TornRowCounts);
        let units: u32 = extents.iter().map(|extent| extent.count).sum();
        let end = units * inner.sb.unit_sectors();
        let mut step = RECOVERY_FIRST_SECTORS;
        let mut expected = self.next_offset();
        while self.next_sector() < end && expected < self.limit() {
            let first = self.next_sector();
            let count = step.min(end - first);
            let sectors = inner.read_patiently(extents, first, count).await?;
            for sector in sectors.chunks(SECTOR) {
                let capped = expected >= self.limit();
                match self.accept(sector, expected) {
                    Some(len) => expected += len,
                    // It may have been acknowledged: it is unknown where the replica ends.
                    None if !capped && is_unreadable(sector) => {
                        inner.env.mark("chunkstore: unreadable tail");
                        self.evidence = true;
                        return Ok(());
                    }
                    None => return self.seek_evidence(inner, extents, end).await,
                }
            }
            step = RECOVERY_READ_SECTORS;
        }
        Ok(())
    }

    /// Searches behind the break for sectors of the same incarnation: one may prove that the break
    /// was acknowledged.
    async fn seek_evidence(
        &mut self,
        inner: &FlashStoreInner,
        extents: &[Extent],
        end: u32,
    ) -> Result<(), StoreError> {
        if self.cap.is_some() || self.next_offset() >= self.limit() {
            return Ok(()); // The length is on record, or no chunk is longer.
        }
        let broken = self.next_sector();
        let mut at = broken + 1;
        while at < end {
            let count = RECOVERY_READ_SECTORS.min(end - at);
            let sectors = inner.read_patiently(extents, at, count).await?;
            let mut met = false;
            for (at, sector) in (at..).zip(sectors.chunks(SECTOR)) {
                let Some(footer) = self.own(sector) else { continue };
                met = true;
                // With one append of a chunk at a time, the next began when this one had ended.
                let later = inner.config.serial && footer.flags & FLAG_FIRST != 0;
                if later || acknowledged_before(at, &footer) > broken {
                    self.evidence = true;
                    return Ok(());
                }
            }
            if !met {
                return Ok(());
            }
            at += count;
        }
        Ok(())
    }

    /// The footer of a sector that this incarnation wrote.
    fn own(&self, sector: &[u8]) -> Option<Footer> {
        if server_part(sector).tag != self.id.tag {
            return None;
        }
        verify_sector(sector).ok().filter(|footer| footer.chunk == self.id.chunk)
    }

    /// Whole appends only: a retry sends all of an append again.
    pub(crate) fn finish(mut self) -> Scanned {
        if self.torn_counts && self.row.is_some() {
            self.close_append();
        }
        Scanned { map: self.map, chain: self.chain, evidence: self.evidence }
    }

    /// Every sector accepted: for replicas that repair fills, and damaged ones.
    /// Of a cell a part is of no use, so that rows count whole here too.
    pub(crate) fn finish_by_sector(mut self) -> Scanned {
        if self.id.layout == Layout::Plain {
            self.close_append();
        }
        self.finish()
    }

    pub(crate) fn sector_len(&self) -> u32 {
        self.next_offset()
    }
}

/// The sectors from the front that were acknowledged when sector `at`, which has this footer, was
/// written.
fn acknowledged_before(at: u32, footer: &Footer) -> u32 {
    match footer.kind {
        // A seal writes the index once all appends have ended, behind their last sector.
        SectorKind::Index => at.saturating_sub(footer.offset / INDEX_RUNS as u32),
        // All that is a whole window before it.
        SectorKind::Data | SectorKind::Row(_) => {
            (at + 1).saturating_sub(CHUNK_SECTORS_INFLIGHT_MAX)
        }
    }
}
