//! Failures: a number for programs, words for people.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use base::{Fault, Kind};

/// Numbers of Linux, which C has as `errno.h`.
pub mod errno {
    #![allow(missing_docs)]
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const EAGAIN: i32 = 11;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const EDEADLK: i32 = 35;
    pub const ESTALE: i32 = 116;
}

/// A failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The errno, positive.
    pub errno: i32,
    /// Cause and remedy.
    pub words: String,
}

impl Error {
    pub fn new(errno: i32, words: impl Into<String>) -> Error {
        Error { errno, words: words.into() }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let errno = match fault.kind {
            Kind::NotFound => errno::ENOENT,
            Kind::Exists => errno::EEXIST,
            Kind::Invalid => errno::EINVAL,
            Kind::Full => errno::ENOSPC,
            Kind::Fenced => errno::ESTALE,
            Kind::Retry | Kind::Refresh | Kind::Reroute | Kind::Corrupt | Kind::Unknown => {
                errno::EIO
            }
        };
        Error::new(errno, fault.message)
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the words for this thread's [`last`]; answers the number.
pub fn keep(error: &Error) -> i64 {
    let words: Vec<u8> = error.words.bytes().filter(|byte| *byte != 0).collect();
    let words = CString::new(words).expect("no zeroes are left");
    LAST.with(|last| *last.borrow_mut() = words);
    -i64::from(error.errno)
}

/// The words that were kept last on this thread, valid until the next ones.
pub fn last() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
