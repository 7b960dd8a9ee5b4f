//! Times that block managers, block servers and clients rely on (`protocols.md` 6.5), with reason
//! and arithmetic.

use runtime::Duration;
pub use tenancy::limits::{DRIFT, IDLE, RENEW, drifted};

/// A lease, from the sending of the last granted renewal: four renewals, of which two may be
/// lost and the third be late.
pub const LEASE: Duration = Duration::from_millis(600);
/// Between two renewals of a front end's attachments.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(1000);
/// Between two reports of a manager or front end.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(3);
/// The same until the first one has come through: a new cluster shows all its roles at once.
pub const ANNOUNCE_INTERVAL_FIRST: Duration = Duration::from_millis(300);
/// Wait for the answer to one heartbeat: three fit into a lease.
pub const HEARTBEAT_ATTEMPT: Duration = Duration::from_millis(200);
/// Between two attempts, at first; eight times that later on.
pub const PAUSE: Duration = Duration::from_millis(20);
/// Location lease, from the sending of the request: half of the block server's own lease, which has
/// twice as much left after a renewal that came in time (`protocols.md` 6.5). After a client has
/// died, the next opener of a segment waits as long.
pub const LOCATION_LEASE: Duration = Duration::from_millis(300);

/// Epoch of a segment's first owner.
pub const FIRST_EPOCH: u64 = 1;

const _: () = assert!(RENEW.as_millis() * 4 <= LEASE.as_millis());
const _: () = assert!(2 * LOCATION_LEASE.as_millis() <= LEASE.as_millis());
