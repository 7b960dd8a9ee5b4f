//! How appends are laid out, and their places in chunks (`protocols-tail.md` 9.2, 9.5).
//!
//! An append is laid out when it is submitted, as the youngest chunk that was granted asks for. A chunk
//! of a code takes rows of this code only, and no chunk of copies does: an append that is placed where
//! it does not fit is laid out anew there. In a chunk it never changes.

use base::limits::SECTOR;
use codec::block::BlockSize;
use codec::row::Scheme;
use runtime::Instant;
use wire::control::{ChunkPlace, Compression};
use wire::sector::{AppendAt, sectors_for};

use super::core::Writer;
use super::event::Action;

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

impl Writer {
    /// How appends are laid out from now on: as the youngest chunk asks that was granted.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Gives appends their places in the current chunk.
    pub(super) fn place(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        let end = self.first + self.slots.len() as u64;
        while self.placed < end && !current.full {
            let slot = &mut self.slots[(self.placed - self.first) as usize];
            let laid = current.laid_for(slot);
            if !current.takes(slot, self.config.chunk_len_max) {
                current.full = true;
                break;
            }
            slot.lay_out(laid, current.replicas.len());
            (slot.offset, slot.placed_at, current.laid) = (current.end, now, laid);
            current.end += slot.len;
            for replica in &mut current.replicas {
                if replica.next == self.placed {
                    replica.progress_at = now;
                }
            }
            let at = AppendAt {
                chunk: current.id(),
                epoch: self.epoch,
                base: current.base,
                offset: slot.offset,
            };
            let compression = current.place.compression;
            out.push(Action::Place { seq: self.placed, at, laid, compression });
            self.placed += 1;
        }
    }
}
