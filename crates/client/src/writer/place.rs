//! Places of appends in chunks.

use runtime::Instant;
use wire::sector::AppendAt;

use super::core::Writer;
use super::event::Action;
use super::layout::Layout;

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
            self.form.note(current.place.is_coded(), slot.len, now);
            let compression = current.place.compression;
            out.push(Action::Place { seq: self.placed, at, laid, compression });
            self.placed += 1;
        }
    }
}
