//! Times that block managers, block servers and clients rely on (`protocols.md` 6.5), with reason
//! and arithmetic.

use runtime::Duration;

/// Between two renewals of a block server (`protocols.md` 6.5).
pub const RENEW: Duration = Duration::from_millis(150);
/// A lease, from the sending of the last granted renewal: four renewals, of which two may be
/// lost and the third be late.
pub const LEASE: Duration = Duration::from_millis(600);
/// What two clocks may drift apart, in thousandths: 1 % each, and a little.
pub const DRIFT: u32 = 25;
/// Where nothing is served, time passes so many times slower: an idle cluster sleeps. A server
/// without segments beats that rarely and may be silent that long, and the lock of managers that
/// have no volume lasts that long.
pub const IDLE: u32 = 3;
/// Between two signs of life of a front end for its attachments.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(1000);
/// Between two signs of life of a manager or front end.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(3);
/// The same until the first one has come through: a new cluster shows all its roles at once.
pub const ANNOUNCE_INTERVAL_FIRST: Duration = Duration::from_millis(300);
/// Wait for the answer to one beat: three fit into a lease.
pub const HEARTBEAT_ATTEMPT: Duration = Duration::from_millis(200);
/// Between two attempts, at first; eight times that later on.
pub const PAUSE: Duration = Duration::from_millis(20);
/// For how long a client may use places of an answer, from the sending of its question: half of
/// the block server's own lease, which has twice as much left after a renewal that came in time
/// (`protocols.md` 6.5). The next opener of a segment, after a client that has died, waits as long.
pub const LOCATION_LEASE: Duration = Duration::from_millis(300);

/// Epoch of a segment's first owner.
pub const FIRST_EPOCH: u64 = 1;

/// `span` as another clock may measure it at most.
pub fn drifted(span: Duration) -> Duration {
    span + span * DRIFT / 1000
}

const _: () = assert!(RENEW.as_millis() * 4 <= LEASE.as_millis());
const _: () = assert!(2 * LOCATION_LEASE.as_millis() <= LEASE.as_millis());
