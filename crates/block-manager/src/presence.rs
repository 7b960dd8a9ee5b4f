//! [`Presence`]: what the leader has heard of a client that has a volume open, and whether another process of that
//! client may take its place.
//!
//! A holder's process that asks again has lost its attachment. Another process of the holder was started in its
//! place, or beside it by mistake. Only the silence of the first one shows which. Two that take volumes from each
//! other fail the requests of both, for as long as both run. A process has the upper half of its attachments' numbers
//! for itself ([`block_proto::attachment_process`]), and their rows have the numbers: every leader distinguishes them.

use runtime::{Duration, Instant};

use super::limits::{ATTACH_DEAD, SECOND_SILENT};

/// What the leader has heard of an attachment's client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Presence {
    /// The latest sign of life. A block server that has its client gives one too, which may be late.
    heard: Instant,
    /// The latest that its process itself has given to this leader: it has attached, or renewed.
    renewed: Instant,
    /// From then on another process of its holder may take its place.
    silent_at: Instant,
    second: Option<Second>,
}

/// The request of another process that was refused last.
#[derive(Clone, Copy, Debug)]
struct Second {
    nonce: u64,
    /// The attachment was renewed since.
    outlived: bool,
}

impl Presence {
    /// An attachment that begins now, or that a leader finds when it begins. Its process has as much time to find
    /// this leader as for a renewal.
    pub(super) fn begun(now: Instant) -> Presence {
        Presence { heard: now, renewed: now, silent_at: now + SECOND_SILENT, second: None }
    }

    /// Notes a sign of life that may be another's word, or late.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Notes a renewal.
    pub(super) fn renew(&mut self, now: Instant) {
        (self.heard, self.renewed, self.silent_at) = (now, now, now + SECOND_SILENT);
        if let Some(second) = &mut self.second {
            second.outlived = true;
        }
    }

    /// The leader stood still: renewals may wait to be read.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.silent_at = self.silent_at.max(now + SECOND_SILENT);
    }

    /// True when it was not renewed for long: any client may take its place.
    pub(super) fn is_dead(&self, now: Instant) -> bool {
        now - self.heard > ATTACH_DEAD
    }

    /// True when another process of its holder may take its place.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        now >= self.silent_at
    }

    /// Refuses request `nonce` of another process. The time since the attachment was renewed, if that was after the
    /// request had been refused first: then its process lives. Otherwise it may have ended, and the request is to come again.
    pub(super) fn refuse(&mut self, now: Instant, nonce: u64) -> Option<Duration> {
        if self.second.is_some_and(|second| second.nonce == nonce && second.outlived) {
            // The next request has to see that again.
            self.second = None;
            return Some(now - self.renewed);
        }
        if self.second.is_none_or(|second| second.nonce != nonce) {
            self.second = Some(Second { nonce, outlived: false });
        }
        None
    }
}
