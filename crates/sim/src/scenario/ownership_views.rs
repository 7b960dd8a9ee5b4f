//! Beliefs of block servers about their segments, compared at one moment.

use std::collections::BTreeMap;

use block_server::ownership::LeaseState;
use block_volume::ids::SegmentId;

/// An error when two servers could acknowledge changes of a segment, or have one epoch. Otherwise
/// whether a new owner waits for a former one's lease.
pub(super) fn compare(
    ownership_views: impl IntoIterator<Item = (usize, (SegmentId, u64, LeaseState))>,
) -> Result<bool, String> {
    let mut believers: BTreeMap<SegmentId, Vec<(u64, bool, usize)>> = BTreeMap::new();
    for (server, (id, epoch, standing)) in ownership_views {
        let acknowledges = match standing {
            LeaseState::Active(_) => true,
            LeaseState::HoldingAcks(_) => false,
            LeaseState::Expired(_) | LeaseState::Revoked => continue,
        };
        believers.entry(id).or_default().push((epoch, acknowledges, server));
    }
    let mut waits = false;
    for (id, mut believers) in believers {
        believers.sort_unstable();
        waits |= believers.len() > 1;
        if believers.iter().skip(1).any(|&(_, acknowledges, _)| acknowledges) {
            return Err(format!("{id}: servers believe to own it at the same time: {believers:?}"));
        }
        if believers.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("{id}: two servers believe in one epoch: {believers:?}"));
        }
    }
    Ok(waits)
}
