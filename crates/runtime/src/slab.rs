//! Memory of a process's buffers: slabs on huge pages, carved into pieces of one size class.
//!
//! A slab whose pieces are all free can be carved again for any class, so memory moves to where it
//! is needed and the sum stays bounded.

#![allow(unsafe_code)]

use std::ptr::{NonNull, null_mut};

use crate::limits::{BUF_MAX, BUF_MIN};

/// Bytes of a slab: the largest buffer, and two huge pages.
pub(crate) const SLAB: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;
/// Slabs beyond the budget that partly used ones may take: one per class.
const SLACK: usize = crate::buf::CLASSES * SLAB;

const _: () = assert!(SLAB >= BUF_MAX && SLAB.is_multiple_of(HUGE_PAGE));
const _: () = assert!(SLAB / BUF_MIN <= 1 << u16::BITS);

/// A piece of a slab.
pub(crate) struct SlabRegion {
    pub(crate) start: NonNull<u8>,
    pub(crate) slab: u32,
}

struct Slab {
    base: NonNull<u8>,
    class: usize,
    /// Pieces that came back, and the first that was never handed out since it was carved.
    free: Vec<u16>,
    fresh: usize,
    used: usize,
}

impl Slab {
    fn pieces(&self) -> usize {
        SLAB / (BUF_MIN << self.class)
    }
}

/// All slabs of a pool.
pub(crate) struct Slabs {
    slabs: Vec<Slab>,
    /// Slabs with free and used pieces, by class.
    partial: [Vec<u32>; crate::buf::CLASSES],
    empty: Vec<u32>,
    slabs_max: usize,
    /// Reserved huge pages gave out: from here on the kernel merges pages by itself.
    reserved_spent: bool,
}

// SAFETY: the pool's lock gives access to one thread at a time; pieces are handed out once.
unsafe impl Send for Slabs {}

impl Slabs {
    pub(crate) fn new(budget: usize) -> Slabs {
        Slabs {
            slabs: Vec::new(),
            partial: Default::default(),
            empty: Vec::new(),
            slabs_max: (budget + SLACK).div_ceil(SLAB),
            reserved_spent: false,
        }
    }

    /// Bytes mapped.
    pub(crate) fn mapped(&self) -> usize {
        self.slabs.len() * SLAB
    }

    /// A piece of `BUF_MIN << class` bytes, initialised. `None` when all slabs are in use.
    pub(crate) fn take(&mut self, class: usize) -> Option<SlabRegion> {
        let slab = match self.partial[class].last() {
            Some(&slab) => slab,
            None => {
                let slab = self.empty.pop().or_else(|| self.map())?;
                let carved = &mut self.slabs[slab as usize];
                carved.free.clear();
                (carved.class, carved.fresh) = (class, 0);
                self.partial[class].push(slab);
                slab
            }
        };
        let from = &mut self.slabs[slab as usize];
        let piece = from.free.pop().map_or(from.fresh, usize::from);
        from.fresh = from.fresh.max(piece + 1);
        from.used += 1;
        // SAFETY: pieces of a class lie within their slab.
        let start = unsafe { from.base.add(piece * (BUF_MIN << class)) };
        if from.used == from.pieces() {
            self.partial[class].pop();
        }
        Some(SlabRegion { start, slab })
    }

    /// Takes a piece back.
    pub(crate) fn give(&mut self, piece: SlabRegion) {
        let to = &mut self.slabs[piece.slab as usize];
        let size = BUF_MIN << to.class;
        let offset = piece.start.as_ptr() as usize - to.base.as_ptr() as usize;
        assert!(offset < SLAB && offset.is_multiple_of(size), "not a piece of this slab");
        let was_full = to.used == to.pieces();
        to.used -= 1;
        to.free.push((offset / size) as u16);
        let partial = &mut self.partial[to.class];
        match (was_full, to.used) {
            (false, 0) => {
                let at = partial.iter().position(|&slab| slab == piece.slab);
                partial.swap_remove(at.expect("a slab in part use is listed"));
                self.empty.push(piece.slab);
            }
            (true, 0) => self.empty.push(piece.slab), // Its only piece.
            (true, _) => partial.push(piece.slab),
            (false, _) => {}
        }
    }

    fn map(&mut self) -> Option<u32> {
        if self.slabs.len() == self.slabs_max {
            return None;
        }
        let base = (!self.reserved_spent).then(map_reserved).flatten();
        self.reserved_spent |= base.is_none();
        let base = base.or_else(map_merged)?;
        self.slabs.push(Slab { base, class: 0, free: Vec::new(), fresh: 0, used: 0 });
        Some(u32::try_from(self.slabs.len() - 1).expect("fewer than 2^32 slabs"))
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        for slab in &self.slabs {
            assert_eq!(slab.used, 0, "buffers keep their pool alive");
            // SAFETY: mapped by `map` with this length; no piece is in use.
            unsafe { libc::munmap(slab.base.as_ptr().cast(), SLAB) };
        }
    }
}

fn map_anonymous(len: usize, flags: libc::c_int) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let start =
        unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// From the huge pages that the operator has reserved (`vm.nr_hugepages`).
fn map_reserved() -> Option<NonNull<u8>> {
    map_anonymous(SLAB, libc::MAP_HUGETLB)
}

/// Plain memory at a multiple of a huge page, which the kernel backs by huge pages if it can.
fn map_merged() -> Option<NonNull<u8>> {
    let start = map_anonymous(SLAB + HUGE_PAGE, 0)?;
    let before = start.as_ptr().align_offset(HUGE_PAGE);
    // SAFETY: the slab lies within the mapping; what lies around it is ours to unmap, and no
    // pointer to it exists. The advice may be refused: then pages are small.
    unsafe {
        let base = start.add(before);
        if before > 0 {
            libc::munmap(start.as_ptr().cast(), before);
        }
        if before < HUGE_PAGE {
            libc::munmap(base.add(SLAB).as_ptr().cast(), HUGE_PAGE - before);
        }
        libc::madvise(base.as_ptr().cast(), SLAB, libc::MADV_HUGEPAGE);
        Some(base)
    }
}
