//! Connections that have no export yet, and the bound on log lines about refused clients.
//!
//! Any peer that reaches the socket can begin a handshake, so handshakes hold no connection permit;
//! a connection gets it when it opens an export. Their number has a bound of its own. Beyond it the
//! oldest one that has shown no certificate ends: a quick client gets through a flood of slow ones.
//! When all have shown one, the oldest of the certificate that has most of them ends: its holder
//! alone cannot keep the others out.

use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::Instant;
use runtime::sync::Notify;

use crate::protocol::limits::NBD_REFUSALS_LOGGED;

/// The handshakes of a front end.
#[derive(Clone, Default)]
pub(super) struct Handshakes(Rc<HandshakesState>);

#[derive(Default)]
struct HandshakesState {
    next: Cell<u64>,
    /// By the order in which they began.
    open: RefCell<BTreeMap<u64, Rc<One>>>,
}

#[derive(Default)]
struct One {
    /// The names in the certificate that it has shown. It ends only after those without one.
    names: OnceCell<Vec<String>>,
    ended: Cell<bool>,
    end: Notify,
}

/// A handshake; counted until it is dropped.
pub(super) struct Handshake {
    of: Handshakes,
    number: u64,
    one: Rc<One>,
}

impl Handshakes {
    pub(super) fn count(&self) -> usize {
        self.0.open.borrow().len()
    }

    pub(super) fn begin(&self) -> Handshake {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        let one = Rc::new(One::default());
        self.0.open.borrow_mut().insert(number, one.clone());
        Handshake { of: self.clone(), number, one }
    }

    /// Ends the oldest that has shown no certificate. When all have, it ends the oldest of the
    /// certificate that has most of them. False when there is none.
    pub(super) fn end_oldest(&self) -> bool {
        let open = &mut *self.0.open.borrow_mut();
        let unproven = open.iter().find(|(_, one)| one.names.get().is_none());
        let oldest = unproven.map(|(&number, _)| number).or_else(|| oldest_of_most(open));
        let Some(one) = oldest.and_then(|number| open.remove(&number)) else { return false };
        one.ended.set(true);
        one.end.notify_one();
        true
    }
}

/// The oldest of the certificate that has most; of two with as many, the older one.
fn oldest_of_most(open: &BTreeMap<u64, Rc<One>>) -> Option<u64> {
    let mut counts = BTreeMap::new();
    for (&number, one) in open {
        let (count, _) = counts.entry(one.names.get()).or_insert((0, Reverse(number)));
        *count += 1;
    }
    counts.into_values().max().map(|(_, Reverse(number))| number)
}

impl Handshake {
    /// Its client has shown a certificate with these names.
    pub(super) fn prove(&self, names: &[String]) {
        self.one.names.get_or_init(|| names.to_vec());
    }

    /// Ends when another handshake needs its place.
    pub(super) async fn ended(&self) {
        while !self.one.ended.get() {
            self.one.end.notified().await;
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.of.0.open.borrow_mut().remove(&self.number);
    }
}

/// Counts refusals; a bounded number in each span of time gets a line in the log.
#[derive(Default)]
pub(super) struct RefusalLog {
    since: Cell<Option<Instant>>,
    logged: Cell<u64>,
    unlogged: Cell<u64>,
}

impl RefusalLog {
    /// When this refusal may have a line: the number of refusals without one since the last line.
    pub(super) fn take(&self, now: Instant) -> Option<u64> {
        let (most, span) = NBD_REFUSALS_LOGGED;
        if self.since.get().is_none_or(|since| now - since >= span) {
            self.since.set(Some(now));
            self.logged.set(0);
        }
        if self.logged.get() >= most {
            self.unlogged.set(self.unlogged.get() + 1);
            return None;
        }
        self.logged.set(self.logged.get() + 1);
        Some(self.unlogged.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_a_bounded_number_of_lines_in_a_time_and_are_all_counted() {
        let (most, span) = NBD_REFUSALS_LOGGED;
        let log = RefusalLog::default();
        let start = Instant::default();
        let lines = |at: Instant| (0..1000).filter_map(|_| log.take(at)).collect::<Vec<_>>();
        assert_eq!(lines(start), vec![0; most as usize]);
        assert_eq!(lines(start + span / 2), []);
        let mut counted = vec![2000 - most];
        counted.resize(most as usize, 0);
        assert_eq!(lines(start + span), counted);
    }
}
