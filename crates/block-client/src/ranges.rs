//! Requests that overlap on a block, in the order in which they came (`protocols.md` 6.2).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Poll, Waker};

/// Claims on blocks of a segment. When two overlap and one is a change, the later waits for the
/// earlier. A change may have to be sent again: until it ends, no other request reads or changes
/// its blocks.
#[derive(Default)]
pub(super) struct Ranges(RefCell<RangesState>);

#[derive(Default)]
struct RangesState {
    next: u64,
    /// In the order of arrival.
    claims: VecDeque<Entry>,
}

struct Entry {
    id: u64,
    blocks: Range<u64>,
    alone: bool,
    granted: bool,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        (self.alone || other.alone)
            && self.blocks.start < other.blocks.end
            && other.blocks.start < self.blocks.end
    }
}

impl RangesState {
    fn position(&self, id: u64) -> Option<usize> {
        self.claims.binary_search_by_key(&id, |claim| claim.id).ok()
    }

    fn may_go(&self, at: usize) -> bool {
        let claim = &self.claims[at];
        !self.claims.range(..at).any(|earlier| earlier.conflicts(claim))
    }
}

/// A claim. It ends when it is dropped.
pub(super) struct Claim<'a> {
    ranges: &'a Ranges,
    id: u64,
}

impl Ranges {
    /// Waits until no earlier claim is in the way. The order is that of the first polls.
    pub(super) async fn claim(&self, blocks: Range<u64>, alone: bool) -> Claim<'_> {
        let (claim, granted) = {
            let state = &mut *self.0.borrow_mut();
            let id = state.next;
            state.next += 1;
            state.claims.push_back(Entry { id, blocks, alone, granted: false, waker: None });
            let last = state.claims.len() - 1;
            let granted = state.may_go(last);
            state.claims[last].granted = granted;
            (Claim { ranges: self, id }, granted)
        };
        if !granted {
            poll_fn(|cx| {
                let state = &mut *self.0.borrow_mut();
                let at = state.position(claim.id).expect("there until it is dropped");
                let entry = &mut state.claims[at];
                if entry.granted {
                    return Poll::Ready(());
                }
                entry.waker = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
        claim
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut wakers = Vec::new();
        {
            let state = &mut *self.ranges.0.borrow_mut();
            let at = state.position(self.id).expect("dropped once");
            let ended = state.claims.remove(at).expect("just found");
            for later in at..state.claims.len() {
                let entry = &state.claims[later];
                if !entry.granted && entry.conflicts(&ended) && state.may_go(later) {
                    let entry = &mut state.claims[later];
                    entry.granted = true;
                    wakers.extend(entry.waker.take());
                }
            }
        }
        // With no borrow held.
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn overlapping_claims_wait_in_order_of_arrival() {
        let ranges = Ranges::default();
        let now = |blocks: Range<u64>, alone| ranges.claim(blocks, alone).now_or_never();
        let first = now(0..4, true).expect("no other claim");
        let beside = now(4..8, true).expect("no overlap");
        let mut second = Box::pin(ranges.claim(3..5, false));
        assert!(second.as_mut().now_or_never().is_none());
        // It would go with what is held, but not with what waits before it.
        let mut third = Box::pin(ranges.claim(2..4, true));
        let mut fourth = Box::pin(ranges.claim(4..6, false));
        assert!(third.as_mut().now_or_never().is_none());
        assert!(fourth.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.as_mut().now_or_never().is_none());
        drop(beside);
        let second = second.as_mut().now_or_never().expect("both are gone");
        let fourth = fourth.as_mut().now_or_never().expect("two may look");
        assert!(third.as_mut().now_or_never().is_none());
        drop((second, fourth));
        assert!(third.as_mut().now_or_never().is_some());
        drop(third);
        // A claim without a waiter does not block others.
        let held = now(0..1, true).expect("free");
        let mut left = Box::pin(ranges.claim(0..1, true));
        assert!(left.as_mut().now_or_never().is_none());
        drop(left);
        drop(held);
        assert!(now(0..9, true).is_some());
    }
}
