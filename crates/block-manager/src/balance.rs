//! Placement of segments on servers (B9): orphans at once, then by load.

use std::collections::BTreeMap;

use block_proto::BlockServerId;
use block_volume::ids::{SegmentId, VolumeId};
use runtime::Instant;
use tenancy::fleet::Member;

use super::limits::{BALANCE, BYTES_PER_REQUEST, REBALANCE_COOLDOWN, SEGMENT_COST};
use super::machine::Machine;

/// Living servers with what they bear, kept up to date while segments are given out.
struct Spread {
    costs: BTreeMap<BlockServerId, u64>,
    /// Segments of a volume on each server: a volume's burst is to be served by many.
    counts: BTreeMap<VolumeId, BTreeMap<BlockServerId, u64>>,
}

impl Spread {
    /// Of the servers that this leader has heard of: one that it assumes alive since its takeover
    /// may be dead. When there are none, of all.
    fn of(machine: &Machine) -> Spread {
        let staying = || machine.fleet.iter().filter(|(_, member)| member.is_staying());
        let heard = staying().any(|(_, member)| member.has_heartbeat());
        let alive = staying().filter(|(_, member)| member.has_heartbeat() || !heard);
        let cost = |id: BlockServerId, busy: u64| {
            busy + machine.state.owned_count(id) as u64 * SEGMENT_COST
        };
        let costs = alive.map(|(id, member)| (id, cost(id, requests(member.load())))).collect();
        Spread { costs, counts: BTreeMap::new() }
    }

    /// The server for a segment that costs `cost`.
    fn choose(&mut self, machine: &Machine, id: SegmentId, cost: u64) -> Option<BlockServerId> {
        let counts = self.counts.entry(id.volume).or_insert_with(|| {
            let mut counts = BTreeMap::new();
            for (_, segment) in machine.state.segments_of(id.volume, 0) {
                if let Some(owner) = segment.owner {
                    *counts.entry(owner).or_default() += 1;
                }
            }
            counts
        });
        let rank = |&(&server, &cost): &(&BlockServerId, &u64)| {
            (counts.get(&server).copied().unwrap_or(0), cost, server)
        };
        let (&server, _) = self.costs.iter().min_by_key(rank)?;
        *counts.entry(server).or_default() += 1;
        *self.costs.get_mut(&server)? += cost;
        Some(server)
    }
}

/// A load in requests a second.
fn requests((requests, bytes): (u64, u64)) -> u64 {
    requests + bytes / BYTES_PER_REQUEST
}

/// Cost of a segment for its server, in requests a second.
fn cost(member: &Member<SegmentId>, id: SegmentId) -> u64 {
    let (iops, bytes) = member.load_of(id);
    SEGMENT_COST + requests((u64::from(iops), bytes))
}

impl Machine {
    /// Gives segments without a living owner to those that live.
    pub(super) fn adopt(&mut self, now: Instant) {
        if !self.fleet.iter().any(|(_, member)| member.is_staying()) {
            return;
        }
        let judges = self.fleet.judges_at().is_some_and(|at| now >= at);
        let gone = self.fleet.iter().filter(|(_, member)| judges && !member.is_staying());
        let left = gone.flat_map(|(id, _)| self.state.owned(id));
        let orphans: Vec<SegmentId> = self.state.orphans().chain(left).collect();
        if orphans.is_empty() {
            return;
        }
        let mut spread = Spread::of(self);
        for id in orphans {
            let Some(server) = spread.choose(self, id, SEGMENT_COST) else { return };
            let had_owner = self.state.segment(id).is_some_and(|segment| segment.owner.is_some());
            self.moves += u64::from(had_owner);
            self.give(now, id, Some(server));
        }
    }

    /// Takes all segments from a server that is about to end: others open them at once.
    pub(super) fn evacuate(&mut self, now: Instant, server: BlockServerId) {
        let owned: Vec<SegmentId> = self.state.owned(server).collect();
        let mut spread = Spread::of(self);
        for id in owned {
            let to = spread.choose(self, id, SEGMENT_COST);
            self.moves += u64::from(to.is_some());
            self.give(now, id, to);
        }
    }

    /// Moves one segment from the busiest server to the idlest, when that is worth it.
    pub(super) fn balance(&mut self, now: Instant) {
        if now - self.balanced < BALANCE {
            return;
        }
        self.balanced = now;
        self.moved.retain(|_, at| now - *at < REBALANCE_COOLDOWN);
        let costs = Spread::of(self).costs;
        let busiest = costs.iter().max_by_key(|&(&id, &cost)| (cost, id));
        let idlest = costs.iter().min_by_key(|&(&id, &cost)| (cost, id));
        let (Some((&from, &most)), Some((&to, &least))) = (busiest, idlest) else { return };
        let mean = costs.values().sum::<u64>() / costs.len() as u64;
        let gap = most - least;
        if gap <= mean / 4 {
            return;
        }
        // The move leaves both nearer to each other: the costliest segment within the gap.
        let Some(member) = self.fleet.get(from) else { return };
        let fits = |id: &SegmentId| {
            cost(member, *id) < gap * 3 / 4 && !self.moved.contains_key(id) && self.is_calm(*id)
        };
        let best = self.state.owned(from).filter(fits).max_by_key(|&id| (cost(member, id), id));
        let Some(id) = best else { return };
        tracing::info!(segment = %id, %from, %to, gap, "moves for balance");
        self.moved.insert(id, now);
        self.moves += 1;
        self.give(now, id, Some(to));
    }

    /// True when a segment is served and its owner waits for no previous owner's lease.
    fn is_calm(&self, id: SegmentId) -> bool {
        let owner = self.state.segment(id).and_then(|segment| segment.owner);
        self.fleet.serves(id, owner) && !self.fleet.is_held(id)
    }
}
