//! Rebalancing: sealed chunks move from disks that hold more than their share of the
//! partition's bytes to those that hold less, as when a chunkserver joins.
//!
//! A disk's share is by its capacity. Each partition balances the bytes in its own state. Those
//! change with a decision, not with a later report, so leaders of several partitions do not
//! overshoot together, and a balanced cluster is one whose partitions are.
//!
//! A move is a repair of a chunk that has all it needs: a replica is recorded, made and sealed
//! before the other is dropped. Repair ends moves that a lost leader leaves half done. Repair goes
//! first, and a move must leave both disks nearer to their shares, so that there is a last one.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::ChunkId;
use runtime::Duration;
use wire::control::ControlError;
use wire::data::Purpose;

use super::judged::{Judged, distinct, is_complete};
use crate::limits::SCAN_SLICE;
use crate::placement::{ClusterView, ReplicaLocation, ServerView, Wanted, choose};
use crate::{Action, Log, Outcome, Service};

/// Rounds without a move stretch the pause between them up to so many times.
const FRUITLESS_MAX: u32 = 32;

/// Chunks for which a place is sought in one go: the cost of each is that of all disks.
const TRIES_MAX: usize = 64;

/// A chunk's replica that should be on another disk.
struct Move {
    chunk: ChunkId,
    len: u64,
    from: ReplicaLocation,
    to: ReplicaLocation,
}

/// Result of checking a slice of the chunks.
enum Look {
    Move(Move),
    /// Nothing yet; there are more chunks.
    On,
    /// All chunks were checked.
    End,
}

/// Content and capacity of each disk: all disks that serve.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    disks: BTreeMap<ReplicaLocation, Disk>,
    held: u64,
    capacity: u64,
}

#[derive(Clone, Copy, Debug)]
struct Disk {
    held: u64,
    capacity: u64,
}

impl Shares {
    /// Of the disks that serve, with what the partition has on each.
    pub(super) fn new(view: &ClusterView, held: &BTreeMap<ReplicaLocation, u64>) -> Shares {
        let mut shares = Shares::default();
        let takes =
            |server: &&ServerView| server.serves() && !server.draining && !server.maintained;
        for server in view.servers().iter().filter(takes) {
            for disk in server.disks.iter().filter(|disk| !disk.failed && disk.capacity > 0) {
                let place = ReplicaLocation { server: server.server, disk: disk.disk };
                let held = held.get(&place).copied().unwrap_or(0);
                shares.disks.insert(place, Disk { held, capacity: disk.capacity });
                shares.held += held;
                shares.capacity = shares.capacity.saturating_add(disk.capacity);
            }
        }
        shares
    }

    /// Bytes that a disk would hold if all held alike for their size.
    fn share(&self, disk: &Disk) -> u64 {
        let share = u128::from(self.held) * u128::from(disk.capacity);
        (share / u128::from(self.capacity.max(1))) as u64
    }

    /// True when a disk is off its share by more than a tenth of it and `slack`.
    fn is_uneven(&self, slack: u64) -> bool {
        self.disks.values().any(|disk| {
            let share = self.share(disk);
            disk.held.abs_diff(share) > (share / 10).max(slack)
        })
    }

    /// True when `len` bytes more leave a disk within its share.
    fn takes(&self, place: ReplicaLocation, len: u64) -> bool {
        self.disks.get(&place).is_some_and(|disk| disk.held + len <= self.share(disk))
    }

    /// True when a disk keeps its share without `len` bytes.
    fn spares(&self, place: ReplicaLocation, len: u64) -> bool {
        self.disks.get(&place).is_some_and(|disk| disk.held >= self.share(disk) + len)
    }

    fn moved(&mut self, from: ReplicaLocation, to: ReplicaLocation, len: u64) {
        if let Some(disk) = self.disks.get_mut(&from) {
            disk.held -= len.min(disk.held);
        }
        if let Some(disk) = self.disks.get_mut(&to) {
            disk.held += len;
        }
    }
}

impl<L: Log> Service<L> {
    pub(super) async fn balance_chunks(self: Rc<Self>) {
        let mut pause = self.config.balance_interval;
        loop {
            self.env.sleep(self.env.jitter(pause)).await;
            if !self.may_balance() {
                continue;
            }
            let before = self.repairs.moves.get();
            match self.balance_round().await {
                // Disks that must differ in size and content may never be even: checked rarely.
                Ok(true) if self.repairs.moves.get() == before => {
                    pause = (pause * 2).min(self.config.balance_interval * FRUITLESS_MAX);
                }
                Ok(_) => pause = self.config.balance_interval,
                Err(error) => tracing::debug!(%error, "a round of balancing did not finish"),
            }
        }
    }

    /// Nothing is in danger or to be made elsewhere, there is a choice of disks, and no operator has
    /// chunks stay where they are.
    fn may_balance(&self) -> bool {
        self.leads()
            && self.config.balance_bytes_per_s > 0
            && self.repairs.under_replicated.borrow().is_empty()
            && self.cluster.view().disks() > 1
            && !self.cluster.view().is_balance_paused()
    }

    /// Moves chunks until the disks are even; true when they are not, and nothing can be moved.
    async fn balance_round(&self) -> Result<bool, ControlError> {
        let held = self.held().await;
        let mut shares = Shares::new(&self.cluster.view(), &held);
        let slack = self.config.balance_slack;
        let mut after = None;
        while shares.is_uneven(slack) && self.may_balance() {
            let Move { chunk, len, from, to } = match self.next_move(&shares, &mut after) {
                Look::Move(found) => found,
                Look::On => {
                    self.env.sleep(Duration::from_millis(2)).await;
                    continue;
                }
                Look::End => return Ok(true),
            };
            if self.move_chunk(chunk, from, to).await? {
                shares.moved(from, to, len);
                let nanos = u128::from(len) * 1_000_000_000
                    / u128::from(self.config.balance_bytes_per_s.max(1));
                let pace = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                self.env.sleep(pace).await;
            }
        }
        Ok(false)
    }

    /// Bytes of sealed chunks on each disk.
    async fn held(&self) -> BTreeMap<ReplicaLocation, u64> {
        let (mut held, mut after) = (BTreeMap::new(), None);
        loop {
            let more = self.log.with_state(|state| {
                let mut count = 0;
                for id in state.chunk_ids(after).take(SCAN_SLICE) {
                    count += 1;
                    after = Some(id);
                    let (_, _, chunk) = state.chunk(id).expect("just listed");
                    let Some(len) = chunk.sealed() else { continue };
                    for slot in chunk.slots() {
                        *held.entry(state.place(slot.place)).or_default() += chunk.replica_len(len);
                    }
                }
                count == SCAN_SLICE
            });
            if !more {
                return held;
            }
            self.env.sleep(Duration::from_millis(2)).await;
        }
    }

    /// Searches the chunks after `after` for one that a move would help.
    fn next_move(&self, shares: &Shares, after: &mut Option<ChunkId>) -> Look {
        let view = self.cluster.view();
        self.log.with_state(|state| {
            let (mut looked, mut tried) = (0, 0);
            for id in state.chunk_ids(*after).take(SCAN_SLICE) {
                *after = Some(id);
                looked += 1;
                let (_, _, chunk) = state.chunk(id).expect("just listed");
                let Some(len) = chunk.sealed().map(|len| chunk.replica_len(len)) else {
                    continue;
                };
                let replicas = self.judge_chunk(&view, state, chunk);
                let mut places = replicas.iter().map(|replica| replica.place);
                let from = places.find(|&place| shares.spares(place, len));
                let Some(from) = from else { continue };
                tried += 1;
                if tried > TRIES_MAX {
                    return Look::On;
                }
                let whole = is_complete(chunk, &replicas) && replicas.iter().all(Judged::is_source);
                if !whole || self.repairs.busy.borrow().contains(&id) {
                    continue;
                }
                // A disk takes no copy of a chunk that it had shortly before: one that moves again and
                // again would leave repair no place.
                if shares.disks.keys().any(|place| state.dead(id, *place).is_some()) {
                    continue;
                }
                let unfit = |place: &ReplicaLocation| !shares.takes(*place, len);
                let stay: Vec<ReplicaLocation> =
                    replicas.iter().map(|r| r.place).filter(|&place| place != from).collect();
                let never = shares.disks.keys().copied().filter(unfit).chain([from]);
                let never: Vec<ReplicaLocation> = never.chain(self.barred(&view, chunk)).collect();
                let wanted = Wanted {
                    copies: chunk.copies,
                    have: &stay,
                    never: &never,
                    avoid: &[],
                    floor: 0,
                    need: len,
                    purpose: Purpose::Data,
                };
                let chosen = choose(&view, &wanted, &mut |bound| self.env.random_below(bound));
                if let Some(&to) = chosen.unwrap_or_default().first() {
                    return Look::Move(Move { chunk: id, len, from, to });
                }
            }
            if looked == SCAN_SLICE { Look::On } else { Look::End }
        })
    }

    /// Makes a replica at `to`, then drops the one at `from`. False when it did not come to that.
    async fn move_chunk(
        &self,
        id: ChunkId,
        from: ReplicaLocation,
        to: ReplicaLocation,
    ) -> Result<bool, ControlError> {
        if !self.repairs.busy.borrow_mut().insert(id) {
            return Ok(false);
        }
        self.repairs.moving.set(Some(id));
        let result = self.make_then_drop(id, from, to).await;
        self.repairs.moving.set(None);
        self.repairs.busy.borrow_mut().remove(&id);
        result
    }

    async fn make_then_drop(
        &self,
        id: ChunkId,
        from: ReplicaLocation,
        to: ReplicaLocation,
    ) -> Result<bool, ControlError> {
        let Some((chunk, _)) = self.judged(id) else { return Ok(false) };
        let Some(slot) = self.slots_at(id, &[from]).pop() else { return Ok(false) };
        let add = Action::add(&chunk, chunk.epoch, &[to], &[slot.fragment]);
        let added = self.decide(add).await?;
        if matches!(added, Outcome::Refused { .. }) {
            return Ok(false);
        }
        self.fill_targets(id).await?;
        let Some((chunk, replicas)) = self.judged(id) else { return Ok(false) };
        let stay = |replica: &Judged| replica.stays() && replica.place != from;
        let others = replicas.iter().filter(|replica| stay(replica));
        let remaining: Vec<ReplicaLocation> = others.map(|replica| replica.place).collect();
        let enough = distinct(&chunk, &replicas, stay) >= usize::from(chunk.copies);
        if !remaining.contains(&to) || !enough {
            return Ok(false); // Repair sees to it.
        }
        self.drop_replica(id, from, remaining).await?;
        self.env.mark("chunk moved for balance");
        tracing::debug!(chunk = %id, ?from, ?to, "moved a chunk");
        self.repairs.moves.set(self.repairs.moves.get() + 1);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use base::{DiskId, GIB, ServerId};

    use super::*;
    use crate::placement::DiskView;

    fn view(capacities: &[u64]) -> ClusterView {
        let server = |(at, &capacity): (usize, &u64)| {
            let disk = DiskId::new(at as u128 + 1);
            let disk = DiskView { disk, capacity, used: 0, failed: false, addr: None };
            ServerView {
                server: ServerId::new(at as u32 + 1),
                addr: "127.0.0.1:1".parse().expect("an address"),
                domain: format!("rack{at}"),
                alive: true,
                reached: true,
                load: 0,
                rows: true,
                fragments: true,
                by_issuer: true,
                disks: vec![disk],
                draining: false,
                maintained: false,
            }
        };
        ClusterView::new(capacities.iter().enumerate().map(server).collect())
    }

    fn place(at: u32) -> ReplicaLocation {
        ReplicaLocation { server: ServerId::new(at), disk: DiskId::new(u128::from(at)) }
    }

    #[test]
    fn a_share_is_by_capacity() {
        let held = BTreeMap::from([(place(1), 500), (place(2), 400)]);
        let mut shares = Shares::new(&view(&[GIB, GIB, 2 * GIB]), &held);
        // 225, 225 and 450 are the shares: the third is off by 450.
        assert!(shares.is_uneven(449) && !shares.is_uneven(450));
        assert!(shares.takes(place(3), 450) && !shares.takes(place(3), 451));
        assert!(shares.spares(place(2), 175) && !shares.spares(place(2), 176));
        shares.moved(place(1), place(3), 275);
        shares.moved(place(2), place(3), 175);
        assert!(!shares.is_uneven(0));
    }

    /// For any sizes, moves end, and each leaves two disks nearer to their shares.
    #[test]
    fn moves_come_to_an_end() {
        for seed in 0..50 {
            let mut rng = runtime::Rng::new(seed);
            let capacities: Vec<u64> = (0..5).map(|_| rng.between(1, 9) * GIB).collect();
            let mut chunks: Vec<(ReplicaLocation, u64)> =
                (0..200).map(|_| (place(rng.between(1, 2) as u32), rng.between(1, 64))).collect();
            let mut held = BTreeMap::new();
            chunks.iter().for_each(|&(at, len)| *held.entry(at).or_default() += len);
            let mut shares = Shares::new(&view(&capacities), &held);
            let mut moves = 0;
            loop {
                let next = chunks.iter_mut().find_map(|(at, len)| {
                    let fits = shares.spares(*at, *len);
                    let to = (1..=5).map(place).find(|&to| fits && shares.takes(to, *len))?;
                    let from = std::mem::replace(at, to);
                    Some((from, to, *len))
                });
                let Some((from, to, len)) = next else { break };
                shares.moved(from, to, len);
                moves += 1;
                assert!(moves <= 200, "seed {seed}: a chunk moved twice");
            }
            assert!(!shares.is_uneven(64), "seed {seed}: {shares:?}");
        }
    }
}
