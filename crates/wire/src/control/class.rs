//! Classes of calls to disks whose latencies are compared with each other (C16).

use std::fmt;

use base::KIB;

const SMALL_MAX: usize = 16 * KIB as usize;
const MEDIUM_MAX: usize = 128 * KIB as usize;

/// What a call does at a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CallKind {
    /// It reads.
    Read,
    /// It appends.
    Append,
}

/// Sizes that are counted together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SizeClass {
    /// Up to 16 KiB.
    Small,
    /// Up to 128 KiB.
    Medium,
    /// More.
    Large,
}

impl SizeClass {
    /// All of them, in the order of their numbers.
    pub const ALL: [SizeClass; SizeClass::COUNT] =
        [SizeClass::Small, SizeClass::Medium, SizeClass::Large];
    /// Classes that there are.
    pub const COUNT: usize = 3;

    /// The class of a call of `len` bytes.
    pub fn of(len: usize) -> SizeClass {
        if len <= SMALL_MAX {
            SizeClass::Small
        } else if len <= MEDIUM_MAX {
            SizeClass::Medium
        } else {
            SizeClass::Large
        }
    }
}

/// Calls that are compared with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallClass {
    /// What they do.
    pub kind: CallKind,
    /// Their size.
    pub size: SizeClass,
}

impl CallClass {
    /// Classes that there are.
    pub const COUNT: usize = 2 * SizeClass::COUNT;

    /// Reads of `len` bytes.
    pub fn read(len: usize) -> CallClass {
        CallClass { kind: CallKind::Read, size: SizeClass::of(len) }
    }

    /// Appends of `len` bytes.
    pub fn append(len: usize) -> CallClass {
        CallClass { kind: CallKind::Append, size: SizeClass::of(len) }
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = CallClass> {
        let kinds = [CallKind::Read, CallKind::Append].into_iter();
        kinds.flat_map(move |kind| {
            SizeClass::ALL.into_iter().map(move |size| CallClass { kind, size })
        })
    }

    /// Its number, below [`COUNT`](CallClass::COUNT).
    pub fn index(self) -> usize {
        self.kind as usize * SizeClass::COUNT + self.size as usize
    }
}

impl fmt::Display for CallClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            CallKind::Read => "read",
            CallKind::Append => "append",
        };
        let size = match self.size {
            SizeClass::Small => "up to 16 KiB",
            SizeClass::Medium => "up to 128 KiB",
            SizeClass::Large => "more",
        };
        write!(f, "{what}, {size}")
    }
}
