//! Reading a replica's sectors from the front by what their footers say: what recovery does with
//! open replicas behind the last checkpoint, and how a lost offset map is rebuilt.

use base::limits::SECTOR;
use wire::sector::{
    FLAG_FIRST, FLAG_LAST, SectorKind, chain, client_crc, server_part, verify_sector,
};

use super::planted::{Bugs, Planted};
use super::record::{Extent, Identity};
use super::store::{FlashStoreInner, is_unreadable};
use crate::contract::StoreError;
use crate::limits::{CHUNK_SECTORS_INFLIGHT_MAX, RECOVERY_FIRST_SECTORS, RECOVERY_READ_SECTORS};
use crate::map::RunMap;

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
    /// True when more may have been acknowledged: a sector far behind the break proves it, or the
    /// one at the break cannot be read.
    evidence: bool,
    lax: bool,
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
        let tail = Vec::new();
        Scan { id, cap, map, chain, tail, tail_chain: chain, evidence: false, lax: false }
    }

    fn next_sector(&self) -> u32 {
        self.map.sectors() + self.tail.len() as u32
    }

    fn next_offset(&self) -> u32 {
        self.map.len() + self.tail.iter().map(|&len| u32::from(len)).sum::<u32>()
    }

    /// Accepts the next sector; false when it does not continue the replica.
    fn accept(&mut self, sector: &[u8], expected: u32) -> Option<u16> {
        if self.cap.is_some_and(|cap| expected >= cap) {
            return None;
        }
        let footer = verify_sector(sector).ok()?;
        let part = server_part(sector);
        let goes_on = footer.chunk == self.id.chunk
            && footer.epoch == self.id.epoch
            && footer.base == self.id.base
            && footer.kind == SectorKind::Data
            && footer.offset == expected
            && (self.lax
                || part.tag == self.id.tag
                    && part.chain == chain(self.tail_chain, client_crc(sector), self.id.tag));
        if !goes_on {
            return None;
        }
        self.tail.push(footer.len);
        self.tail_chain = part.chain;
        if footer.flags & FLAG_LAST != 0 {
            self.close_append();
        }
        Some(footer.len)
    }

    fn close_append(&mut self) {
        self.map.push(self.tail.drain(..));
        self.chain = self.tail_chain;
    }

    /// Reads as far as the chain holds.
    pub(crate) async fn run(
        &mut self,
        inner: &FlashStoreInner,
        extents: &[Extent],
    ) -> Result<(), StoreError> {
        self.lax = Bugs::of(&inner.config).has(Planted::ScanLax);
        let units: u32 = extents.iter().map(|extent| extent.count).sum();
        let end = units * inner.sb.unit_sectors();
        let mut step = RECOVERY_FIRST_SECTORS;
        let mut expected = self.next_offset();
        while self.next_sector() < end && self.cap.is_none_or(|cap| expected < cap) {
            let first = self.next_sector();
            let count = step.min(end - first);
            let sectors = inner.read_patiently(extents, first, count).await?;
            for sector in sectors.chunks(SECTOR) {
                let capped = self.cap.is_some_and(|cap| expected >= cap);
                match self.accept(sector, expected) {
                    Some(len) => expected += u32::from(len),
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

    /// Searches behind the break for sectors of the same incarnation: one that is a whole window
    /// behind it could only be written once the break was acknowledged.
    async fn seek_evidence(
        &mut self,
        inner: &FlashStoreInner,
        extents: &[Extent],
        end: u32,
    ) -> Result<(), StoreError> {
        if self.cap.is_some() {
            return Ok(()); // The length is on record.
        }
        let broken = self.next_sector();
        let mut at = broken + 1;
        while at < end {
            let count = RECOVERY_READ_SECTORS.min(end - at);
            let sectors = inner.read_patiently(extents, at, count).await?;
            let own = sectors.chunks(SECTOR).rposition(|sector| {
                server_part(sector).tag == self.id.tag
                    && verify_sector(sector).is_ok_and(|footer| footer.chunk == self.id.chunk)
            });
            let Some(own) = own else { return Ok(()) };
            let begins = |sector: &[u8]| {
                server_part(sector).tag == self.id.tag
                    && verify_sector(sector).is_ok_and(|footer| {
                        footer.chunk == self.id.chunk && footer.flags & FLAG_FIRST != 0
                    })
            };
            // With one append of a chunk at a time, the next began when this one had ended.
            let later = inner.config.serial && sectors.chunks(SECTOR).any(begins);
            if later || at + own as u32 >= broken + CHUNK_SECTORS_INFLIGHT_MAX {
                self.evidence = true;
                return Ok(());
            }
            at += count;
        }
        Ok(())
    }

    /// Whole appends only: a retry sends all of an append again.
    pub(crate) fn finish(self) -> Scanned {
        Scanned { map: self.map, chain: self.chain, evidence: self.evidence }
    }

    /// Every sector accepted: for replicas that repair fills, and damaged ones.
    pub(crate) fn finish_by_sector(mut self) -> Scanned {
        self.close_append();
        self.finish()
    }

    pub(crate) fn sector_len(&self) -> u32 {
        self.next_offset()
    }
}
