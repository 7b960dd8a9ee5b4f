//! The units in use: one bit each. 1 TiB in units of 1 MiB takes 128 KiB of memory, in units of 16
//! KiB 8 MiB.

use super::record::Extent;

/// The allocator. Units at or above `ready` are not zeroed yet and are never handed out.
#[derive(Debug)]
pub(crate) struct Allocator {
    used: Vec<u64>,
    units: u32,
    ready: u32,
    used_count: u32,
    /// Start of the search for free units.
    cursor: u32,
}

impl Allocator {
    pub(crate) fn new(units: u32, ready: u32) -> Allocator {
        assert!(ready <= units);
        let words = (units as usize).div_ceil(64);
        Allocator { used: vec![0; words], units, ready, used_count: 0, cursor: 0 }
    }

    fn is_used(&self, unit: u32) -> bool {
        self.used[unit as usize / 64] >> (unit % 64) & 1 != 0
    }

    /// Notes that `extent` is in use; false when a part of it was, or is out of range.
    pub(crate) fn claim(&mut self, extent: Extent) -> bool {
        let end = extent.start.saturating_add(extent.count);
        if end > self.units || (extent.start..end).any(|unit| self.is_used(unit)) {
            return false;
        }
        for unit in extent.start..end {
            self.used[unit as usize / 64] |= 1 << (unit % 64);
        }
        self.used_count += extent.count;
        true
    }

    /// Takes up to `want` units in a row, from `near` when that is free.
    pub(crate) fn take(&mut self, want: u32, near: Option<u32>) -> Option<Extent> {
        assert!(want > 0);
        let start = near
            .filter(|&unit| unit < self.ready && !self.is_used(unit))
            .or_else(|| self.next_free(self.cursor, self.ready))
            .or_else(|| self.next_free(0, self.cursor.min(self.ready)))?;
        let mut count = 1;
        while count < want && start + count < self.ready && !self.is_used(start + count) {
            count += 1;
        }
        let extent = Extent { start, count };
        assert!(self.claim(extent), "the units were free");
        self.cursor = start + count;
        Some(extent)
    }

    fn next_free(&self, from: u32, to: u32) -> Option<u32> {
        let mut unit = from;
        while unit < to {
            let free = !self.used[unit as usize / 64] >> (unit % 64);
            if free != 0 {
                let found = unit + free.trailing_zeros();
                return (found < to).then_some(found);
            }
            unit = (unit / 64 + 1) * 64;
        }
        None
    }

    /// Gives units back.
    pub(crate) fn release(&mut self, extent: Extent) {
        for unit in extent.start..extent.start + extent.count {
            assert!(self.is_used(unit), "unit {unit} is released twice");
            self.used[unit as usize / 64] &= !(1 << (unit % 64));
        }
        self.used_count -= extent.count;
    }

    /// Units below `ready` may be handed out from now on.
    pub(crate) fn set_ready(&mut self, ready: u32) {
        assert!(self.ready <= ready && ready <= self.units);
        self.ready = ready;
    }

    pub(crate) fn ready(&self) -> u32 {
        self.ready
    }

    pub(crate) fn used(&self) -> u32 {
        self.used_count
    }

    /// Units that can be handed out at once.
    pub(crate) fn free_ready(&self) -> u32 {
        self.ready - self.used_count
    }

    /// Units not in use, ready or not.
    pub(crate) fn free(&self) -> u32 {
        self.units - self.used_count
    }

    pub(crate) fn can_grow(&self) -> bool {
        self.ready < self.units
    }
}

#[cfg(test)]
#[path = "alloc_tests.rs"]
mod tests;
