//! Times of owners' leases and of pings to them, with reason and arithmetic (`protocols.md` 6.5,
//! `protocols-tail.md` 10.7). They are the same in every service: one test of the whole protocol counts
//! for all.

use runtime::Duration;

/// Between two heartbeats of a server, each of which renews its lease.
pub const RENEW: Duration = Duration::from_millis(150);
/// A lease, from the sending of the last granted renewal: four renewals, of which two may be
/// lost and the third be late.
pub const LEASE: Duration = Duration::from_millis(600);
/// Wait for the answer to one heartbeat: three fit into a lease.
pub const HEARTBEAT_ATTEMPT: Duration = Duration::from_millis(200);
/// A server without a heartbeat for this long is dead: three renewals.
pub const SERVER_DEAD: Duration = Duration::from_millis(450);
/// A server that owns nothing and was not heard of for this long, under the present leader, makes
/// room for another name: it was taken away.
pub const SERVER_GONE: Duration = Duration::from_secs(24 * 3600);
/// Between two clock checks of a manager: at least.
pub const TICK: Duration = Duration::from_millis(50);
/// Drift between two clocks, at most, in thousandths: 1 % each is a ratio of 1.01 to 0.99, a little above 20.
pub const DRIFT: u32 = 25;
/// Factor of times where nothing is served: an idle cluster sleeps. A server without units sends
/// heartbeats that rarely, is pinged that rarely and may be silent that long; the lock of managers that
/// have nothing to serve lasts that long.
pub const IDLE: u32 = 3;
/// Between two pings to a server that owns units; one without gets every [`IDLE`]th.
pub const PING: Duration = Duration::from_millis(100);
/// A server that has answered no ping for this long is not reached, though its heartbeats come: three
/// pings.
pub const UNREACHED: Duration = Duration::from_millis(300);
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
/// Between two moves for balance.
pub const BALANCE: Duration = Duration::from_secs(2);
/// A unit that was moved for balance is not moved again for this long.
pub const REBALANCE_COOLDOWN: Duration = Duration::from_secs(30);
/// Between two reports of a process without a lease that it is there.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(3);
/// The same until the first one has come through: a new cluster shows all its roles at once.
pub const ANNOUNCE_INTERVAL_FIRST: Duration = Duration::from_millis(300);
/// A process without a lease that is silent for this long is shown as down: three reports.
pub const PEER_DEAD: Duration = Duration::from_secs(10);
/// One that is silent for this long is not shown any more.
pub const PEER_FORGOTTEN: Duration = Duration::from_secs(600);

const _: () = assert!(RENEW.as_millis() * 4 <= LEASE.as_millis());
const _: () = assert!(HEARTBEAT_ATTEMPT.as_millis() * 3 <= LEASE.as_millis());
const _: () = assert!(SERVER_DEAD.as_millis() < LEASE.as_millis());
const _: () = assert!(PING.as_millis() * 3 <= UNREACHED.as_millis() && IDLE > 0);
const _: () = assert!(ANNOUNCE_INTERVAL.as_millis() * 3 <= PEER_DEAD.as_millis());
const _: () = assert!((1000 + DRIFT) * 990 >= 1010 * 1000);

/// `span` as another clock may measure it at most.
pub fn drifted(span: Duration) -> Duration {
    span + span * DRIFT / 1000
}
