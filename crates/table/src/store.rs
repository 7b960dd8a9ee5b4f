//! [`Store`]: what a table needs of the place where its files are.

use std::rc::Rc;

use base::Fault;
use futures_util::future::LocalBoxFuture;
use wire::data::Purpose;

/// An answer of a store. The kinds mean: `NotFound` and `Exists` the name; `Fenced` another has
/// sealed the file; `Retry` nothing was changed; `Unknown` it may have been; `Full` no room.
pub type Answer<'a, T> = LocalBoxFuture<'a, Result<T, Fault>>;

/// What the bytes of a file take on media: `replicas / data` for each. Copies have one data part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redundancy {
    /// Copies, or fragments of an erasure code with its parity (C18).
    pub replicas: u8,
    /// Fragments with data; 1 for copies.
    pub data: u8,
}

impl Redundancy {
    /// Of a store that keeps each byte once.
    pub const ONE: Redundancy = Redundancy::copies(1);

    /// So many copies.
    pub const fn copies(copies: u8) -> Redundancy {
        Redundancy { replicas: copies, data: 1 }
    }

    /// True for fragments of an erasure code.
    pub const fn is_coded(self) -> bool {
        self.data > 1
    }

    /// Bytes on media for so many of a file; sectors' own bytes are not counted.
    pub const fn stored(self, bytes: u64) -> u64 {
        bytes * self.replicas as u64 / self.data as u64
    }
}

/// One directory of append-only files, for one table.
///
/// The table's safety rests on these promises:
/// - A name is taken by one file; `create` and `publish` fail when theirs is taken. Changes of
///   names are atomic, and durable when they are answered.
/// - `list` shows every name that was there all the while, and one page shows one moment.
/// - After `seal` has returned, no append of an earlier writer is acknowledged, and the content
///   is all that was acknowledged and a prefix of what was under way. It stays so for ever.
/// - A call that ended with an error may still take effect later.
pub trait Store {
    /// The directory, for messages.
    fn name(&self) -> &str;

    /// What files that are made now take on media.
    fn redundancy(&self) -> Redundancy {
        Redundancy::ONE
    }

    /// Makes a file whose name must be free, and opens it for append. After an error the name may
    /// be there: its maker removes it.
    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>>;

    /// Shuts out the writer of a file and answers its final length.
    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64>;

    /// Opens a file for reading.
    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>>;

    /// A page of names above `after`, in byte order.
    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names>;

    /// Gives the file at `from` the name `to` instead, which must be free.
    fn publish<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()>;

    /// Removes a name of a file. The file goes with its last name.
    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;

    /// The number of each file, nothing for a name that is not there. No two files ever have one
    /// number, in whatever directory, and a file has one under all of its names.
    fn numbers<'a>(&'a self, names: &'a [String]) -> Answer<'a, Vec<Option<u64>>>;

    /// Gives sealed files the same names in another directory too; names that it has already
    /// stay. After an error some may have them.
    fn link<'a>(&'a self, names: &'a [String], to: &'a str) -> Answer<'a, ()>;
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// Names in byte order.
    pub names: Vec<String>,
    /// True when more follow the last one.
    pub more: bool,
}

/// An append under way: ends, with the offset behind it, when it and all before it are durable.
/// Dropping it does not take the append back.
pub type Pending = LocalBoxFuture<'static, Result<u64, Fault>>;

/// The one writer of a file.
pub trait Writer {
    /// Appends from now on are for this; at first for recovery. A store that knows no reserve has
    /// nothing to do.
    fn set_purpose(&self, _purpose: Purpose) {}

    /// Starts an append behind all that were started before, when there is room for it.
    fn submit<'a>(&'a self, data: &'a [u8]) -> Answer<'a, Pending>;

    /// Ends the writer when all is durable and seals the file; answers its length.
    fn close(self: Box<Self>) -> Answer<'static, u64>;
}

/// A file to read.
pub trait Source {
    /// Bytes from `offset` on: fewer than `len` only at the file's end. A file that is not sealed
    /// may show all but its last acknowledged append, until it is sealed.
    fn read_at(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>>;

    /// `len` bytes that are known to be acknowledged: fewer only when the file has lost them. They are there
    /// also while the file is open, whatever has become of its writer.
    fn read_acknowledged(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>>;
}
