//! Times of owners' leases and of pings to them, with reason and arithmetic (`protocols.md` 6.5,
//! `protocols-tail.md` 10.7). They are the same in every service: one test of the whole protocol counts
//! for all.

use runtime::Duration;

/// Between two heartbeats of a server, each of which renews its lease.
pub const RENEW: Duration = Duration::from_millis(150);
/// Drift between two clocks, at most, in thousandths: 1 % each, and a little.
pub const DRIFT: u32 = 25;
/// Factor of times where nothing is served: an idle cluster sleeps. A server without units sends
/// heartbeats that rarely, is pinged that rarely and may be silent that long; the lock of managers that
/// have nothing to serve lasts that long.
pub const IDLE: u32 = 3;
/// Between two pings to a server that owns units; one without gets every [`IDLE`]th.
pub const PING: Duration = Duration::from_millis(100);
/// A manager whose clock check is this late does not count its own silence as the servers'.
pub const PAUSED: Duration = Duration::from_millis(100);
/// A server that has answered no ping yet may be silent for this long: the link to it may be dead since
/// an earlier fault, and is given up after half a second (docs/simulation.md).
pub const UNREACHED_FIRST: Duration = Duration::from_millis(1000);
/// A manager that gets no heartbeat for this long, from servers that answer its pings, is cut off: three renewals and
/// the time of a ping.
pub const CUT_OFF: Duration = Duration::from_millis(500);
/// Until a process that nothing reaches tries the lock again that it gave up.
pub const YIELD_PAUSE: Duration = Duration::from_secs(3);
/// Heartbeats further apart than this do not come regularly: one and a half renewals.
pub const BEAT_GAP: Duration = Duration::from_millis(225);
/// Heartbeats must have come regularly for this long, since the last answer, before that says anything:
/// a server that stood still sends its next heartbeat before it answers.
pub const BEATS_MIN: Duration = RENEW;
/// A server that was not reached is given units again when its answers have come for this long.
pub const REACHED_AGAIN: Duration = Duration::from_secs(2);
/// Servers that are not reached at most, and a third of those that live at most, though one always:
/// what a manager does for one broken server must not empty a cluster.
pub const UNREACHED_MAX: usize = 3;

/// `span` as another clock may measure it at most.
pub fn drifted(span: Duration) -> Duration {
    span + span * DRIFT / 1000
}
