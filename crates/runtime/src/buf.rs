//! Buffers: aligned, pooled, counted against a hard budget, shared without copies.
//!
//! A payload is received into a [`BufMut`], frozen into a [`Buf`], and written to disk and sent
//! to peers from the same memory (design D2, C10).

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::limits::{BUF_ALIGN, BUF_MAX, BUF_MIN, FREE_LIST_BYTES_MAX};
use crate::slab::{SlabRegion, Slabs};

/// Size classes: powers of two from [`BUF_MIN`] to [`BUF_MAX`].
pub(crate) const CLASSES: usize = (BUF_MAX.ilog2() - BUF_MIN.ilog2() + 1) as usize;

/// No buffer: nothing was allocated. The pool's budget is spent, and buffers that are released make
/// room; or no buffer can be so large ([`OutOfMemory::may_pass`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub want: usize,
    /// Bytes the pool may hold.
    pub budget: usize,
}

impl OutOfMemory {
    /// False when waiting does not help: more was asked for than a buffer may have, or than the
    /// whole budget.
    pub fn may_pass(&self) -> bool {
        self.want <= BUF_MAX && self.want.next_power_of_two() <= self.budget
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.want > BUF_MAX {
            return write!(f, "a buffer of {} bytes; it may have {BUF_MAX} at most", self.want);
        }
        write!(f, "no room for {} bytes in the buffer budget of {} bytes", self.want, self.budget)
    }
}

impl std::error::Error for OutOfMemory {}

/// A pool of buffers. Clones share one budget. Thread-safe.
#[derive(Clone)]
pub struct BufPool(Arc<Shared>);

struct Shared {
    budget: usize,
    /// Bytes in buffers that are in use.
    used: AtomicUsize,
    memory: Memory,
}

enum Memory {
    /// The allocator's, with a list of free regions per class: for small pools.
    Heap([Mutex<Vec<Region>>; CLASSES]),
    /// Slabs on huge pages: for processes.
    Slabs(Mutex<Slabs>),
}

/// One allocation of `capacity` initialised bytes, owned.
struct Region {
    start: NonNull<u8>,
    capacity: usize,
    /// The slab it is a piece of; `None` when it is the allocator's.
    slab: Option<u32>,
}

// SAFETY: a Region owns its memory; access goes through `&` or `&mut` of its owner.
unsafe impl Send for Region {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for Region {}

impl Region {
    fn layout(capacity: usize) -> Layout {
        let align = capacity.min(BUF_ALIGN);
        Layout::from_size_align(capacity, align).expect("capacity is a power of two within bounds")
    }

    fn allocate(capacity: usize) -> Region {
        let layout = Region::layout(capacity);
        // SAFETY: the layout has a non-zero size (at least BUF_MIN).
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Region { start, capacity, slab: None }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        assert!(self.slab.is_none(), "a piece of a slab goes back to it");
        // SAFETY: allocated in `allocate` with the same layout; freed once, here.
        unsafe { dealloc(self.start.as_ptr(), Region::layout(self.capacity)) }
    }
}

/// A region on loan from its pool; goes back when the last user drops it.
struct Loan {
    region: Option<Region>,
    pool: Arc<Shared>,
}

impl Loan {
    fn region(&self) -> &Region {
        self.region.as_ref().expect("present until dropped")
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else { return };
        let capacity = region.capacity;
        match &self.pool.memory {
            Memory::Heap(free) => {
                let mut free = free[class_of(capacity)].lock().expect("no panic inside");
                if (free.len() + 1) * capacity <= FREE_LIST_BYTES_MAX {
                    free.push(region);
                }
            }
            Memory::Slabs(slabs) => {
                let (start, slab) = (region.start, region.slab.expect("a piece of a slab"));
                std::mem::forget(region); // Its memory is the slab's.
                slabs.lock().expect("no panic inside").give(SlabRegion { start, slab });
            }
        }
        // Last, so that who sees the budget sees the memory too.
        self.pool.used.fetch_sub(capacity, Ordering::Release);
    }
}

fn class_of(capacity: usize) -> usize {
    (capacity.next_power_of_two().max(BUF_MIN).ilog2() - BUF_MIN.ilog2()) as usize
}

impl BufPool {
    /// A pool whose buffers in use never exceed `budget` bytes, from the allocator.
    pub fn new(budget: usize) -> BufPool {
        let free = [(); CLASSES].map(|()| Mutex::new(Vec::new()));
        BufPool::with(budget, Memory::Heap(free))
    }

    /// As [`BufPool::new`], from slabs on huge pages: reserved ones if the operator has set some
    /// aside (`vm.nr_hugepages`), else such as the kernel merges. The mapped memory exceeds
    /// `budget` by one slab of 4 MiB per size class at most. When buffers of some sizes are
    /// scattered over all slabs, buffers of another size may be refused before the budget is spent.
    pub fn on_huge_pages(budget: usize) -> BufPool {
        BufPool::with(budget, Memory::Slabs(Mutex::new(Slabs::new(budget))))
    }

    fn with(budget: usize, memory: Memory) -> BufPool {
        BufPool(Arc::new(Shared { budget, used: AtomicUsize::new(0), memory }))
    }

    /// A buffer of `len` bytes (at most [`BUF_MAX`]) whose content is initialised but arbitrary.
    /// Buffers of 4 KiB and more start at a multiple of [`BUF_ALIGN`]. A length above the maximum is
    /// an error, not a broken invariant: peers choose lengths.
    pub fn alloc(&self, len: usize) -> Result<BufMut, OutOfMemory> {
        let refused = OutOfMemory { want: len, budget: self.0.budget };
        if len > BUF_MAX {
            return Err(refused);
        }
        let class = class_of(len);
        let capacity = BUF_MIN << class;
        let used = self.0.used.fetch_add(capacity, Ordering::Acquire);
        if used + capacity > self.0.budget {
            self.0.used.fetch_sub(capacity, Ordering::Relaxed);
            return Err(refused);
        }
        let region = match &self.0.memory {
            Memory::Heap(free) => {
                let kept = free[class].lock().expect("no panic inside").pop();
                Some(kept.unwrap_or_else(|| Region::allocate(capacity)))
            }
            Memory::Slabs(slabs) => {
                let piece = slabs.lock().expect("no panic inside").take(class);
                let region = |piece: SlabRegion| {
                    let (start, slab) = (piece.start, Some(piece.slab));
                    Region { start, capacity, slab }
                };
                piece.map(region)
            }
        };
        let Some(region) = region else {
            self.0.used.fetch_sub(capacity, Ordering::Relaxed);
            return Err(refused);
        };
        let loan = Loan { region: Some(region), pool: self.0.clone() };
        Ok(BufMut { loan: Arc::new(loan), len })
    }

    /// As [`BufPool::alloc`], filled with zeros.
    pub fn alloc_zeroed(&self, len: usize) -> Result<BufMut, OutOfMemory> {
        let mut buf = self.alloc(len)?;
        buf.fill(0);
        Ok(buf)
    }

    /// A buffer with a copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Result<Buf, OutOfMemory> {
        let mut buf = self.alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        Ok(buf.freeze())
    }

    /// Bytes of a pool that a buffer of `len` bytes takes; more than any buffer has where none can be so long.
    pub fn taken(len: usize) -> usize {
        len.checked_next_power_of_two().map_or(usize::MAX, |taken| taken.max(BUF_MIN))
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that the process holds for the pool; 0 for one from the allocator.
    pub fn mapped(&self) -> usize {
        match &self.0.memory {
            Memory::Heap(_) => 0,
            Memory::Slabs(slabs) => slabs.lock().expect("no panic inside").mapped(),
        }
    }

    /// Bytes that may be in use.
    pub fn budget(&self) -> usize {
        self.0.budget
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufPool({} of {} bytes)", self.used(), self.0.budget)
    }
}

/// A buffer with one owner, who may write it.
pub struct BufMut {
    loan: Arc<Loan>,
    len: usize,
}

impl BufMut {
    /// Makes it read-only and shareable. No copy.
    pub fn freeze(self) -> Buf {
        Buf { loan: self.loan, start: 0, len: self.len }
    }

    /// Bytes it can hold without another allocation.
    pub fn capacity(&self) -> usize {
        self.loan.region().capacity
    }

    /// Changes its length; bytes that become visible are initialised but arbitrary.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes in a buffer of {}", self.capacity());
        self.len = len;
    }
}

impl Deref for BufMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` is at most the capacity, and all capacity bytes are initialised.
        unsafe { slice::from_raw_parts(self.loan.region().start.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; a BufMut is the only owner of its loan (made unique in `alloc`,
        // kept so by `Buf::try_into_mut`), so no other reference to the bytes exists.
        unsafe { slice::from_raw_parts_mut(self.loan.region().start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

/// A read-only view of a buffer. Clones and slices share the memory.
#[derive(Clone)]
pub struct Buf {
    loan: Arc<Loan>,
    start: usize,
    len: usize,
}

impl Buf {
    /// The bytes in `range` of this view. No copy. Panics when out of range.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        Buf { loan: self.loan.clone(), start: self.start + range.start, len: range.len() }
    }

    /// Back to a writable buffer when this is the only view and it starts at the front;
    /// otherwise gives itself back.
    pub fn try_into_mut(mut self) -> Result<BufMut, Buf> {
        // `get_mut` synchronises with the drops of other views, on other threads too.
        if self.start == 0 && Arc::get_mut(&mut self.loan).is_some() {
            Ok(BufMut { loan: self.loan, len: self.len })
        } else {
            Err(self)
        }
    }

    /// True when the memory starts at a multiple of what direct I/O asks for.
    pub fn is_aligned(&self) -> bool {
        (self.as_ptr() as usize).is_multiple_of(BUF_ALIGN)
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.loan.region().start.as_ptr();
        // SAFETY: `start + len` is within the capacity (checked in `slice`), the bytes are
        // initialised, and while a Buf exists no BufMut of the same loan exists.
        unsafe { slice::from_raw_parts(start.add(self.start), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_holds_and_comes_back() {
        let pool = BufPool::new(8192);
        let first = pool.alloc(4096).unwrap();
        let second = pool.alloc(4000).unwrap();
        assert_eq!(pool.alloc(1).unwrap_err(), OutOfMemory { want: 1, budget: 8192 });
        assert!(first.freeze().is_aligned() && second.freeze().is_aligned());
        assert_eq!(pool.used(), 0);
        assert!(pool.alloc(8192).is_ok());
    }

    #[test]
    fn length_above_the_maximum_is_refused_for_ever() {
        for pool in [BufPool::new(4 * BUF_MAX), BufPool::on_huge_pages(4 * BUF_MAX)] {
            for len in [BUF_MAX + 1, usize::MAX] {
                let refused = pool.alloc(len).expect_err("no buffer is so large");
                assert!(!refused.may_pass() && pool.used() == 0, "{refused}");
                assert!(refused.to_string().contains("at most"), "{refused}");
            }
            let all: Vec<_> = (0..4).map(|_| pool.alloc(BUF_MAX).unwrap()).collect();
            assert!(pool.alloc(BUF_MAX).expect_err("it is spent").may_pass());
            drop(all);
        }
        let small = BufPool::new(BUF_MIN).alloc(BUF_MIN + 1).expect_err("above the budget");
        assert!(!small.may_pass());
    }

    #[test]
    fn slabs_move_between_classes_and_stay_bounded() {
        let budget = 32 << 20;
        let pool = BufPool::on_huge_pages(budget);
        let mut rng = crate::Rng::new(1);
        let mut kept: Vec<BufMut> = Vec::new();
        for round in 0..200_000 {
            // Phases that prefer one size, so that slabs have to change their class.
            let size = BUF_MIN << ((round / 20_000 * 4 + rng.below(3)) % CLASSES as u64);
            if rng.one_in(2) {
                if let Ok(mut buf) = pool.alloc(size) {
                    assert!(size < BUF_ALIGN || (buf.as_ptr() as usize).is_multiple_of(BUF_ALIGN));
                    let len = buf.len();
                    (buf[0], buf[len - 1]) = (round as u8, round as u8);
                    kept.push(buf);
                }
            } else if !kept.is_empty() {
                let buf = kept.swap_remove(rng.below(kept.len() as u64) as usize);
                assert_eq!(buf[0], buf[buf.len() - 1], "two buffers share memory");
            }
            if kept.len() > 300 {
                kept.clear();
            }
            assert!(pool.used() <= budget && pool.mapped() <= budget + CLASSES * (4 << 20));
        }
        kept.clear();
        assert_eq!(pool.used(), 0);
        // All of it can be one class again.
        let all: Vec<_> = (0..8).map(|_| pool.alloc(BUF_MAX).unwrap()).collect();
        assert!(pool.alloc(1).is_err());
        drop(pool);
        drop(all);
    }

    #[test]
    fn a_view_is_unique_or_shared() {
        let pool = BufPool::new(1 << 20);
        let buf = pool.copy_of(b"abcdef").unwrap();
        let tail = buf.slice(2..6);
        assert_eq!(&*tail, b"cdef");
        let buf = buf.try_into_mut().unwrap_err();
        drop(tail);
        assert_eq!(&*buf.try_into_mut().unwrap(), b"abcdef");
    }
}
