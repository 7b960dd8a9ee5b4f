//! Appends of a writer from their submission until no replica needs them.

use std::collections::VecDeque;
use std::ops::Range;

use metrics::Span;
use runtime::sync::{OwnedSemaphorePermit, oneshot};
use wire::data::Purpose;

use crate::error::Error;
use crate::planted::{Planted, planted};
use crate::stage::Staged;

/// Appends that are not released, and tasks that wait for their acknowledgement.
#[derive(Default)]
pub(crate) struct Queue {
    /// Appends from number `first`.
    appends: VecDeque<Pending>,
    first: u64,
    acked: u64,
    /// Offset in the file of the next append.
    pub(crate) end: u64,
    /// Tasks that wait until appends below a number are acknowledged, in order.
    waiters: VecDeque<(u64, oneshot::Sender<Result<(), Error>>)>,
}

/// An append that some replica may need.
pub(crate) struct Pending {
    /// Until no replica needs it.
    pub(crate) staged: Option<Staged>,
    pub(crate) len: u32,
    pub(crate) purpose: Purpose,
    pub(crate) span: Span,
    /// Its part of the window, until it is acknowledged: a late replica holds up no append.
    pub(crate) room: Option<[OwnedSemaphorePermit; 2]>,
}

impl Queue {
    /// A queue whose first append goes to offset `end` of the file.
    pub(crate) fn new(end: u64) -> Queue {
        Queue { end, ..Queue::default() }
    }

    /// True when all that was submitted is acknowledged.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.first + self.appends.len() as u64 <= self.acked
    }

    /// Adds the next append.
    pub(crate) fn push(&mut self, append: Pending) {
        self.end += u64::from(append.len);
        self.appends.push_back(append);
    }

    /// An append by its number, until it is released.
    pub(crate) fn get(&mut self, seq: u64) -> Option<&mut Pending> {
        let index = seq.checked_sub(self.first)? as usize;
        self.appends.get_mut(index)
    }

    /// Something that ends when all that was submitted is acknowledged; nothing when it is.
    pub(crate) fn wait_for_all(&mut self) -> Option<oneshot::Receiver<Result<(), Error>>> {
        if self.is_acknowledged() {
            return None;
        }
        let below = self.first + self.appends.len() as u64;
        let (sender, receiver) = oneshot::channel();
        self.waiters.push_back((below, sender));
        Some(receiver)
    }

    /// Appends below a number are acknowledged: gives back their part of the window, shows each of them
    /// to `each`, and calls who waits for them.
    pub(crate) fn acknowledge(&mut self, below: u64, mut each: impl FnMut(&Pending)) {
        let fresh = (self.acked - self.first) as usize..(below - self.first) as usize;
        for append in self.appends.range_mut(fresh) {
            if !planted(Planted::OneBudget) {
                append.room = None;
            }
            if planted(Planted::ReleaseAtM) {
                append.staged = None;
            }
            each(append);
        }
        self.acked = below;
        while self.waiters.front().is_some_and(|(want, _)| *want <= below) {
            let (_, waiter) = self.waiters.pop_front().expect("just seen");
            let _ = waiter.send(Ok(())); // The caller may have gone.
        }
    }

    /// Frees the cells of an append that no replica needs.
    pub(crate) fn trim(&mut self, seq: u64, keep: u32) {
        if let Some(staged) = self.get(seq).and_then(|append| append.staged.as_mut()) {
            staged.keep(keep);
        }
    }

    /// No replica needs these appends any more.
    pub(crate) fn release(&mut self, appends: Range<u64>) {
        for seq in appends {
            if let Some(append) = self.get(seq) {
                append.staged = None;
            }
        }
        while self.appends.front().is_some_and(|append| append.staged.is_none()) {
            self.appends.pop_front();
            self.first += 1;
        }
    }

    /// The writer has ended: who waits for an acknowledgement hears of it, and `each` sees the appends
    /// that are not released.
    pub(crate) fn end(&mut self, failure: Option<&Error>, mut each: impl FnMut(&Pending)) {
        for (_, waiter) in self.waiters.drain(..) {
            // The caller may have gone.
            let _ = waiter.send(failure.cloned().map_or(Ok(()), Err));
        }
        self.first += self.appends.len() as u64;
        self.appends.drain(..).for_each(|append| each(&append));
    }
}
