//! Memory of the program that a call reads or fills.

#![allow(unsafe_code)]

use std::ffi::c_void;

/// A range of the program's memory, which belongs to a call until it ends.
#[derive(Clone, Copy)]
pub struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: by the contract of `craton.h` no other code touches the range before the call has ended;
// so it may be used on whatever thread.
unsafe impl Send for Memory {}

impl Memory {
    /// The range that a call was given.
    ///
    /// # Safety
    /// It is valid for what the call does with it until the call has ended.
    pub unsafe fn new(start: *mut c_void, len: usize) -> Memory {
        Memory { start: start.cast(), len }
    }

    /// Its bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Fills a part of it.
    pub fn fill(self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len), "within it");
        // SAFETY: within the range, which is valid for writes; `bytes` is memory of our own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    /// Copies a part of it.
    pub fn copy_to(self, at: usize, bytes: &mut [u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len), "within it");
        // SAFETY: within the range, which is valid for reads; `bytes` is memory of our own.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), bytes.len());
        }
    }
}
