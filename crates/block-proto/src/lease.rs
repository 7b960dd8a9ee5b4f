//! Times that block managers, block servers and clients rely on (`protocols.md` 6.5), with reason
//! and arithmetic.

use runtime::Duration;
pub use tenancy::limits::{
    ANNOUNCE_INTERVAL, ANNOUNCE_INTERVAL_FIRST, DRIFT, HEARTBEAT_ATTEMPT, IDLE, LEASE, RENEW,
    drifted,
};

/// Between two renewals of a front end's attachments.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(1000);
/// Between two attempts, at first; eight times that later on.
pub const PAUSE: Duration = Duration::from_millis(20);
/// Location lease, from the sending of the request: half of the block server's own lease, which has
/// twice as much left after a renewal that came in time (`protocols.md` 6.5). After a client has
/// died, the next opener of a segment waits as long.
pub const LOCATION_LEASE: Duration = Duration::from_millis(300);

/// Epoch of a segment's first owner.
pub const FIRST_EPOCH: u64 = 1;

const _: () = assert!(2 * LOCATION_LEASE.as_millis() <= LEASE.as_millis());
