//! How appends are laid out (`protocols-tail.md` 9.2, 9.5).
//!
//! An append is laid out when it is submitted, as the youngest chunk that was granted asks for. A chunk
//! of a code takes rows of this code only, and no chunk of copies does: an append that is placed where
//! it does not fit is laid out again there. In a chunk it never changes.

use base::limits::SECTOR;
use codec::block::BlockSize;
use codec::row::Scheme;
use wire::control::{ChunkPlace, Compression};
use wire::sector::sectors_for;

/// Fragments of an erasure code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragments {
    /// Data fragments, 2 at least.
    pub k: u8,
    /// Parity fragments.
    pub p: u8,
}

impl Fragments {
    /// Those of a chunk; none when its replicas are copies.
    pub fn of(place: &ChunkPlace) -> Option<Fragments> {
        let (k, n) = (place.data, place.copies);
        place.is_coded().then_some(Fragments { k, p: n.saturating_sub(k) })
    }

    /// All of them.
    pub fn n(self) -> usize {
        usize::from(self.k) + usize::from(self.p)
    }

    /// Rows with them, in blocks of this size; none when no code has so many.
    pub fn scheme(self, block: BlockSize) -> Option<Scheme> {
        Scheme::new(self.k.into(), self.p.into(), block).ok()
    }
}

/// What the sectors of an append are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Laid {
    /// They hold its bytes, and are alike at all replicas.
    Plain,
    /// The cell of a row, alike at all replicas.
    Row,
    /// The cells of a row, one for each fragment.
    Coded(Fragments),
}

/// How appends are to be laid out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Layout {
    /// The code; none: replicas are copies.
    pub code: Option<Fragments>,
    /// The compression; none: bytes are as they are.
    pub compression: Option<Compression>,
}

impl Layout {
    /// What a chunk asks for.
    pub fn of(place: &ChunkPlace) -> Layout {
        Layout { code: Fragments::of(place), compression: place.compression }
    }

    /// What sectors are that are laid out so.
    pub fn laid(self) -> Laid {
        match (self.code, self.compression) {
            (Some(code), _) => Laid::Coded(code),
            (None, Some(_)) => Laid::Row,
            (None, None) => Laid::Plain,
        }
    }
}

/// Bytes of the sectors of an append of `len` bytes that is laid out so, all replicas of a code
/// together, when nothing can be compressed.
pub(crate) fn bytes_max(laid: Laid, block: BlockSize, len: usize) -> usize {
    let (stored, replicas) = match laid {
        Laid::Plain => (len, 1),
        Laid::Row => (Scheme::new(1, 0, block).expect("copies are offered").cell_max(len), 1),
        Laid::Coded(code) => {
            (code.scheme(block).expect("checked when granted").cell_max(len), code.n())
        }
    };
    replicas * sectors_for(stored) * SECTOR
}
