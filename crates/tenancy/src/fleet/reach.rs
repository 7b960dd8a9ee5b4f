//! Reach: a server lives when its heartbeats come *and* it answers pings (`protocols-tail.md` 10.7). One
//! that others do not reach (its inbound packets are lost, its own connections stay) renews its leases
//! for ever and serves no client. Its units are given to others, and it renews no lease.
//!
//! Few are taken out at a time (N8), and a manager that reaches fewer than half of those it hears
//! takes none out: it is cut off itself.

use runtime::{Duration, Instant};

use crate::limits::{BEAT_GAP, BEATS_MIN, REACHED_AGAIN, UNREACHED_FIRST};

/// What the pings to a server's present process say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// When the latest ping was sent that it has answered.
    answered: Option<Instant>,
    /// Since when it is pinged.
    since: Instant,
    /// Its latest heartbeat, and since when they come without a gap. A process that stands still
    /// sends none and answers nothing: heartbeats decide about it.
    beat: Instant,
    beating_since: Instant,
    lost: bool,
    /// One that was lost has answered since then.
    back: Option<Instant>,
}

impl Reach {
    /// Of a process that is pinged from now on.
    pub(super) fn new(now: Instant) -> Reach {
        Reach { answered: None, since: now, beat: now, beating_since: now, lost: false, back: None }
    }

    /// True while the server counts as unreached.
    pub(super) fn is_lost(self) -> bool {
        self.lost
    }

    /// A heartbeat of it has come.
    pub(super) fn note_heartbeat(&mut self, now: Instant, slower: u32) {
        if now - self.beat > BEAT_GAP * slower {
            self.beating_since = now;
        }
        self.beat = now;
    }

    /// Its silence so far says nothing: this manager stood still, or pings it more often from now on.
    pub(super) fn excuse(&mut self, now: Instant) {
        match &mut self.answered {
            Some(answered) => *answered = now,
            None => self.since = now,
        }
    }

    /// It has answered a ping that was sent at `sent`.
    pub(super) fn note_answer(&mut self, sent: Instant) {
        self.answered = self.answered.max(Some(sent));
    }

    /// True when it has answered a ping that was sent at `since` or later.
    pub(super) fn has_answered_since(self, since: Instant) -> bool {
        self.answered >= Some(since)
    }

    /// True unless it goes on sending heartbeats and answers nothing.
    pub(super) fn is_reached(self, now: Instant, unreached: Duration, slower: u32) -> bool {
        let (since, most) = match self.answered {
            Some(answered) => (answered, unreached),
            None => (self.since, unreached.max(UNREACHED_FIRST)),
        };
        let beats_for = self.beat - self.beating_since.max(since);
        now - since < most * slower || beats_for < BEATS_MIN * slower
    }

    /// It counts as unreached from now on.
    pub(super) fn lose(&mut self) {
        (self.lost, self.back) = (true, None);
    }

    /// One that counts as unreached is reached at this moment, or is not; true when it has been for
    /// long enough, and counts no more.
    pub(super) fn note_return(&mut self, now: Instant, reached: bool) -> bool {
        let since = if reached { *self.back.get_or_insert(now) } else { now };
        if !reached {
            self.back = None;
        }
        self.lost = now - since < REACHED_AGAIN;
        !self.lost
    }
}
