//! The switch between a file's code and copies (`protocols-tail.md` 9.8, `docs/decisions/0090`).
//!
//! A row of a code takes a sector of each fragment at least, so small appends take more room, and more
//! writes of disks, than copies that survive as many losses. The writer counts what the form that it
//! writes in takes more than the other would, since the two were last even. When that is
//! [`WriterConfig::switch_bytes`] it wants chunks in the other form, and goes on in one as soon as it has one.

use base::limits::SECTOR;
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, Policy};
use wire::sector::sectors_for;

use super::event::WriterConfig;
use super::layout::Fragments;
use crate::limits::FORM_PAUSE_MAX;

/// The form of chunks that a writer wants, of a file whose policy has a code.
#[derive(Debug)]
pub(super) struct Form {
    /// The code, as far as is known; none: chunks are copies, and nothing is to be switched.
    code: Option<Fragments>,
    /// Chunks are wanted in copies.
    pub(super) in_copies: bool,
    /// Sectors that the form has taken more than the other would have, since they were last even.
    excess: u64,
    /// How many of them are too many.
    excess_max: u64,
    /// No question for a chunk in the form before, and the pause until the next one.
    after: Instant,
    pause: Duration,
}

impl Form {
    pub(super) fn new(config: &WriterConfig, now: Instant) -> Form {
        let WriterConfig { code, in_copies, switch_bytes, .. } = *config;
        let excess_max = u64::from(switch_bytes) / SECTOR as u64;
        Form { code, in_copies, excess: 0, excess_max, after: now, pause: Duration::ZERO }
    }

    /// A chunk was granted: it may have a code that was set since the file was opened.
    pub(super) fn learn(&mut self, granted: &ChunkPlace) {
        self.code = Fragments::of(granted).or(self.code);
    }

    /// An append of `len` bytes is placed in a chunk of copies, or of a code.
    pub(super) fn note(&mut self, is_coded: bool, len: u32, now: Instant) {
        let Some(code) = self.code.filter(|_| is_coded != self.in_copies) else { return };
        let (coded, copied) = (coded_sectors(code, len), copied_sectors(code, len));
        let (taken, other) = if is_coded { (coded, copied) } else { (copied, coded) };
        self.excess = (self.excess + taken).saturating_sub(other);
        if self.excess >= self.excess_max {
            (self.in_copies, self.excess) = (!self.in_copies, 0);
            (self.after, self.pause) = (now, Duration::ZERO);
        }
    }

    /// True for a chunk in the form that is wanted.
    pub(super) fn has(&self, place: &ChunkPlace) -> bool {
        place.is_coded() != self.in_copies
    }

    /// True when it is time to ask for another chunk in place of this one, which is written.
    pub(super) fn is_due(&self, place: &ChunkPlace, now: Instant) -> bool {
        self.code.is_some() && !self.has(place) && now >= self.after
    }

    /// The question for such a chunk goes out: the next one has time, when there is none.
    pub(super) fn note_asked(&mut self, now: Instant, pause_min: Duration) {
        self.pause = (self.pause * 2).clamp(pause_min, FORM_PAUSE_MAX);
        self.after = now + self.pause;
    }
}

/// Sectors of a row of `len` bytes, over all fragments.
fn coded_sectors(code: Fragments, len: u32) -> u64 {
    /// A cell's head, and the bytes of a block with one of its own.
    const HEADS: (usize, usize) = (16, 16 << 10);
    let share = (len as usize).div_ceil(code.k.into());
    let cell = HEADS.0 + share + 8 * share.div_ceil(HEADS.1);
    (code.n() * sectors_for(cell)) as u64
}

/// Sectors of `len` bytes in the copies that survive as many losses.
fn copied_sectors(code: Fragments, len: u32) -> u64 {
    let copies = Policy::ec(code.k, code.p).in_copies().copies;
    u64::from(copies) * sectors_for(len as usize) as u64
}

/// True when an append of `len` bytes takes no more in copies than in the policy's code.
pub(crate) fn is_small(policy: Policy, len: u64) -> bool {
    let code = Fragments { k: policy.data, p: policy.parity() };
    let small = |len| copied_sectors(code, len) <= coded_sectors(code, len);
    policy.is_coded() && u32::try_from(len).is_ok_and(small)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: Fragments = Fragments { k: 4, p: 2 };

    #[test]
    fn small_appends_take_less_in_copies() {
        let small = |len| is_small(Policy::ec(4, 2), len);
        assert!(small(1) && small(4048) && small(8096));
        assert!(!small(8097) && !small(1 << 20) && !small(1 << 33));
        assert!(!is_small(Policy::rep(3), 1));
        // Four copies of two sectors, eleven fragments of one.
        assert!(is_small(Policy::ec(8, 3), 8096) && !is_small(Policy::ec(8, 3), 8097));
    }

    #[test]
    fn form_is_left_when_it_has_cost_enough_and_no_sooner() {
        let now = Instant::default();
        let config = WriterConfig { code: Some(CODE), ..WriterConfig::default() };
        let mut form = Form::new(&config, now);
        // 6 sectors in place of 3, each; now and then a large one makes up for many.
        for _ in 0..20 {
            (0..100).for_each(|_| form.note(true, 100, now));
            form.note(true, 1 << 20, now);
        }
        assert!(!form.in_copies);
        let mut appends = 0;
        while !form.in_copies {
            form.note(true, 100, now);
            appends += 1;
        }
        assert_eq!(appends, form.excess_max.div_ceil(3));
        // The chunk of the code is written until another one is there: that counts for nothing.
        (0..1000).for_each(|_| form.note(true, 100, now));
        (0..1000).for_each(|_| form.note(false, 100, now));
        assert!(form.in_copies);
        (0..3).for_each(|_| form.note(false, 1 << 20, now));
        assert!(!form.in_copies, "260 sectors of each copy, 65 of each of six fragments");
    }
}
