//! Bounds of the transport, with their reasons.

use std::time::Duration;

use wire::frame::{BODY_MAX, HEADER, PART_MAX, PAYLOAD_MAX, Priority};

/// Wait for an address that is in use, and pause between two attempts.
pub const LISTEN_TIMEOUT: Duration = Duration::from_secs(3);
/// See [`LISTEN_TIMEOUT`].
pub const LISTEN_RETRY: Duration = Duration::from_millis(20);

/// A link that is dead since an earlier fault is given up in less than this when something is asked over it: who
/// asks again then asks over another link. [`Limits::silence_max`], as it is by default, and a look.
pub const LINK_DEAD: Duration = Duration::from_millis(600);

/// Bounds and times of one endpoint. The simulator randomises them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes that wait to be sent on one link; beyond it calls get `Busy`. 16 MiB = 16 of the
    /// largest appends. Background calls get half of it, foreground calls 7/8. While as much waits
    /// on an accepted link, its requests wait too: up to as many bytes, beyond it they are answered
    /// `Busy`.
    pub queue_bytes_max: usize,
    /// Frames that wait to be sent on one link: 4096 x 100 bytes of state. While as many wait,
    /// nothing is read. More than answers of all requests, since these wait for credit.
    pub queue_frames_max: usize,
    /// Requests of one peer that are being handled or wait; beyond it they are answered `Busy`. Those
    /// of control priority find room for an eighth more: heartbeats and pings come through, however
    /// many other requests of the peer are handled.
    pub requests_inflight_max: usize,
    /// Accepted links whose peers have proven themselves; beyond it connections are refused.
    /// 1024 x `staging_bytes`.
    pub links_max: usize,
    /// Accepted connections in their handshake, beside the links: unproven peers take no seat of
    /// proven ones. Beyond it the oldest one of the address that has most of them is closed. 64 x
    /// `staging_bytes`.
    pub handshakes_max: usize,
    /// Addresses whose state is kept; beyond it those without a link are forgotten, and calls to
    /// new ones get `Busy` when none is.
    pub peers_max: usize,
    /// Bytes of the buffer that headers, bodies and small payloads of a link are received into.
    pub staging_bytes: usize,
    /// A payload's bytes that are not yet here and are at most this many come through the
    /// staging buffer (one system call brings many frames); more are read straight into place.
    pub staged_tail_max: usize,
    /// Bytes of one part of a split message. A message is split when it has more.
    pub part_bytes: usize,
    /// Parts sent on one link that the peer has not yet taken in: 3 x 256 KiB. Without this
    /// bound megabytes of them wait in the kernel's buffers, before any small frame (2.2 ms
    /// instead of 0.09 ms beside eight calls of 1 MiB on loopback). It bounds the large messages
    /// of one link to 768 KiB per round trip: 7 GB/s at 0.1 ms.
    pub parts_inflight_max: u32,
    /// Bytes given to the driver in one write: what a frame that comes next waits for.
    pub batch_bytes: usize,
    /// Frames in one write: keeps it below the kernel's 1024 pieces.
    pub batch_frames: usize,
    /// A peer that says nothing for this long while an answer is due is dead: its calls fail.
    /// Half of the 1 s that a writer may stall.
    pub silence_max: Duration,
    /// A peer that takes nothing for this long of what waits for it is given up: its answers hold
    /// buffers. So is one that sends nothing for this long of the rest of a message. Checked as
    /// often as idle links are probed.
    pub stalled_max: Duration,
    /// An idle link is probed this often, so that half-open ones go away.
    pub idle_probe: Duration,
    /// A connection and its handshake take at most this long.
    pub connect_timeout: Duration,
    /// First pause after a failed connection; doubles up to `backoff_max`.
    pub backoff_min: Duration,
    /// Longest pause after failed connections: a peer that comes back is found this soon.
    pub backoff_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            queue_bytes_max: 16 << 20,
            queue_frames_max: 4096,
            requests_inflight_max: 1024,
            links_max: 1024,
            handshakes_max: 64,
            peers_max: 4096,
            staging_bytes: 64 << 10,
            staged_tail_max: 16 << 10,
            part_bytes: PART_MAX,
            parts_inflight_max: 3,
            batch_bytes: 256 << 10,
            batch_frames: 128,
            silence_max: Duration::from_millis(500),
            stalled_max: Duration::from_secs(10),
            idle_probe: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(250),
        }
    }
}

/// Refused connections are logged at most this often, each time with the number of the others.
pub(crate) const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(1);

/// As many bytes as this part of the buffer budget may wait on all accepted links of an endpoint
/// together, in buffers and on the heap: messages whose parts are still to come, requests that wait,
/// answers that are not sent. 256 of 512 MiB, 64 of the largest messages. The rest is for what is
/// being served.
pub(crate) const HELD_SHARE: usize = 2;

/// As many bytes as this part of them may wait beyond that, for links that hold little: 64 MiB for one
/// message of a link that holds nothing, and as many again for small ones, divided among `links_max`:
/// 64 KiB each.
pub(crate) const EXTRA_SHARE: usize = 4;

/// Bodies of requests that are being served, on all accepted links of an endpoint together: as many bytes
/// as this part of the buffer budget. They are on the heap, beside the budget, which bounds the payloads.
/// 128 MiB with 512 MiB of buffers, 128 of the largest bodies. Control priority has an eighth more.
/// Beyond it a request is answered `Busy`. Its link is read on: cancellations and pings come through, and
/// the peer's calls do not take this side for dead. As with [`EXTRA_SHARE`], a quarter more is for links
/// that have one body being served, and another for 32 KiB on each link.
pub(crate) const SERVED_SHARE: usize = 4;

/// One link's have as many bytes as this part of them: 32 MiB, twice what a peer with the default limits
/// has waiting to be sent. One client with slow handlers leaves the rest to others.
pub(crate) const SERVED_LINK_SHARE: usize = 4;

/// A body of at most this many bytes does not count among them and is always served: what
/// `requests_inflight_max` lets in has 4 MiB on a link.
pub(crate) const SERVED_SMALL: usize = 4 << 10;

/// Bytes kept for headers and bodies when the buffer budget is spent: what holds the budget may
/// itself wait to be sent. Two of the largest writes (`batch_bytes` + one part, as a buffer of
/// 1 MiB).
pub(crate) const RESERVE_BYTES: usize = 2 << 20;

/// Bytes kept for connections that this side makes when the buffer budget is spent: what holds the budget
/// may wait for just these. 32 staging buffers of the default size, each with its first frames; those of
/// links that were made with it stay taken for as long as the links last. Connections that others
/// make get none: peers that have not proven themselves could take all of it.
pub(crate) const CONNECT_RESERVE_BYTES: usize = 33 * (64 << 10);

/// Bytes of the smallest staging buffer.
const STAGING_MIN: usize = 8 << 10;

/// A bound for what has `priority`: an eighth more than `max` for control.
pub(crate) fn with_extra(max: usize, priority: Priority) -> usize {
    if priority == Priority::Control { max + max.div_ceil(8) } else { max }
}

impl Limits {
    /// Requests of one peer that may be handled or wait when one of `priority` comes.
    pub(crate) fn requests_max(&self, priority: Priority) -> usize {
        with_extra(self.requests_inflight_max, priority)
    }

    /// Panics on values that cannot work together: a programming error.
    pub(crate) fn check(&self) {
        assert!((STAGING_MIN..=runtime::limits::BUF_MAX).contains(&self.staging_bytes));
        assert!(self.staged_tail_max <= self.staging_bytes / 2);
        assert!((1..=PART_MAX).contains(&self.part_bytes));
        assert!(self.part_bytes.is_multiple_of(base::limits::SECTOR), "parts are whole sectors");
        let batch = self.batch_bytes + self.part_bytes + self.batch_frames * 2 * HEADER;
        assert!(batch.next_power_of_two() <= RESERVE_BYTES / 2);
        assert!(self.batch_frames >= 1 && self.batch_frames <= 256);
        assert!(self.parts_inflight_max >= 1);
        assert!(self.links_max >= 1 && self.handshakes_max >= 1);
        assert!(self.queue_bytes_max >= 2 * (BODY_MAX + PAYLOAD_MAX + HEADER));
        assert!(self.queue_frames_max >= 8 && self.requests_inflight_max >= 1);
        let requests_max = self.requests_max(Priority::Control);
        assert!(self.queue_frames_max > requests_max, "credit is always read");
        assert!(self.backoff_min <= self.backoff_max);
        assert!(self.silence_max > Duration::ZERO && self.idle_probe > Duration::ZERO);
    }
}
