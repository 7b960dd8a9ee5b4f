//! [`Recent`]: data that was put lately, for reads that come at once (`object-protocols.md` 9.1).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use table::Place;

#[derive(Default)]
struct State {
    pieces: BTreeMap<Place, Rc<Vec<u8>>>,
    /// Places in the order in which they came.
    order: VecDeque<Place>,
    bytes: usize,
}

/// Pieces by their places, which never change their content: the oldest go first.
pub(crate) struct Recent {
    most: usize,
    state: RefCell<State>,
}

impl Recent {
    /// Keeps this many bytes at most.
    pub(crate) fn new(most: usize) -> Recent {
        Recent { most, state: RefCell::default() }
    }

    /// A piece is at a place.
    pub(crate) fn note(&self, place: Place, piece: Rc<Vec<u8>>) {
        let state = &mut *self.state.borrow_mut();
        state.bytes += piece.len();
        if let Some(before) = state.pieces.insert(place, piece) {
            state.bytes -= before.len();
        } else {
            state.order.push_back(place);
        }
        while state.bytes > self.most {
            let Some(oldest) = state.order.pop_front() else { return };
            let gone = state.pieces.remove(&oldest);
            state.bytes -= gone.map_or(0, |piece| piece.len());
        }
    }

    /// The piece at a place, if it came lately.
    pub(crate) fn get(&self, place: Place) -> Option<Rc<Vec<u8>>> {
        self.state.borrow().pieces.get(&place).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_memory_is_bounded() {
        let place = |offset| Place::of("log-00000001-00000001", offset).unwrap();
        let recent = Recent::new(1000);
        for offset in 1..=10 {
            recent.note(place(offset), Rc::new(vec![offset as u8; 300]));
            recent.note(place(offset), Rc::new(vec![offset as u8; 300]));
            let kept: Vec<_> = (1..=10).filter(|&at| recent.get(place(at)).is_some()).collect();
            assert_eq!(kept, (1.max(offset - offset.min(3) + 1)..=offset).collect::<Vec<_>>());
            assert_eq!(recent.state.borrow().bytes, 300 * kept.len());
        }
        recent.note(place(11), Rc::new(vec![0; 2000]));
        assert_eq!(recent.state.borrow().bytes, 0);
        assert!(recent.state.borrow().order.is_empty());
    }
}
