//! Recovery of a coded chunk (`protocols-tail.md` 9.7): as `master_stream` does it, but that each copy
//! may break off after any row, and go on under the next leader.

use std::ops::RangeInclusive;

use super::*;

/// An order to copy rows to a server, up to a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order {
    pub(super) len: u32,
    /// Given in an attempt before: its end counts for none.
    pub(super) late: bool,
}

/// A replica that recovery has recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) fragment: usize,
}

impl World {
    pub(super) fn coded_recovery_steps(&self, recovery: &Recovery, steps: &mut Vec<Step>) {
        let peers = &self.peers;
        let voters = peers.tail().servers.iter().copied();
        let votes = |server: &usize| recovery.votes.contains_key(server);
        let unasked = voters.filter(|it| peers.is_alive(*it) && !votes(it));
        steps.extend(unasked.map(Step::Fence));
        if recovery.leaders < self.bounds.leaders && !recovery.votes.is_empty() {
            steps.push(Step::NewLeader);
        }
        let mut met = recovery.votes.keys().chain(recovery.copied.keys());
        if met.any(|it| !peers.is_alive(*it)) {
            steps.push(Step::Again);
        }
        let can_go_on = peers.orders.keys().filter(|it| peers.next_row(**it).is_some());
        steps.extend(can_go_on.map(|&server| Step::CopyRow(server)));
        let Some(range) = self.sealed_lens(recovery) else { return };
        let longest = *range.end();
        let mut lens: Vec<_> = recovery.votes.values().copied().collect();
        lens.retain(|len| range.contains(len));
        lens.sort_unstable();
        lens.dedup();
        let may_seal = |len: &&u32| **len == 0 || self.is_held(recovery, **len);
        steps.extend(lens.iter().filter(may_seal).map(|&len| Step::SealAt(len)));
        let ordered = |it: &usize| peers.orders.get(it).is_some_and(|order| !order.late);
        let holders = self.holders(recovery, longest);
        let places = recovery.votes.keys().chain(peers.targets.keys()).copied();
        let lacks = |it: &usize| peers.is_alive(*it) && !holders.contains(it) && !ordered(it);
        steps.extend(places.filter(lacks).map(Step::Order));
        if longest > 0 && peers.targets.len() < self.bounds.targets {
            let have: BTreeSet<_> = holders.iter().chain(peers.targets.keys()).copied().collect();
            let is_short = peers.distinct(&have) < self.bounds.code.a;
            steps.extend(self.free_server().filter(|_| is_short).map(Step::AddTarget));
        }
    }

    /// The lengths at which the last chunk may be sealed, if there are votes enough.
    fn sealed_lens(&self, recovery: &Recovery) -> Option<RangeInclusive<u32>> {
        let Code { n, a, k } = self.bounds.code;
        let mut lens: Vec<u32> = recovery.votes.values().copied().collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        if self.planted == Some(Planted::VotesAsCopies) {
            let decoded = *lens.get(k.min(lens.len()).checked_sub(1)?)?;
            return (lens.len() > n - a).then_some(decoded..=decoded);
        }
        let range = self.bounds.code.quorum().sealed_lens(&lens)?;
        if self.planted == Some(Planted::SealBelowK) {
            return Some(lens[0]..=lens[0]);
        }
        if self.bounds.harm == Harm::LastWrite {
            // A write that was lost silently costs nothing while all answer.
            return (lens.len() == n).then_some(*range.end()..=*range.end());
        }
        Some(range)
    }

    /// Replicas that this attempt knows to hold so much.
    fn holders(&self, recovery: &Recovery, len: u32) -> BTreeSet<usize> {
        let all = recovery.votes.iter().chain(&recovery.copied);
        all.filter(|it| *it.1 >= len).map(|it| *it.0).collect()
    }

    /// How many different ones they are, as the masters count.
    fn held(&self, recovery: &Recovery, len: u32) -> usize {
        let holders = self.holders(recovery, len);
        match self.planted {
            Some(Planted::SameFragmentTwice) => holders.len(),
            _ => self.peers.distinct(&holders),
        }
    }

    /// True when enough replicas hold so much. Fewer than `a` are asked again: one that has been lost
    /// since its vote is missed by the others.
    fn is_held(&self, recovery: &Recovery, len: u32) -> bool {
        let held = self.held(recovery, len);
        let is_asked = !matches!(self.planted, Some(Planted::StaleHolders | Planted::SealBelowK));
        let all_alive = || self.holders(recovery, len).iter().all(|it| self.peers.is_alive(*it));
        held >= self.bounds.code.a || held >= self.holders_floor() && (!is_asked || all_alive())
    }

    /// Holders that a seal needs: `a`, or what the places allow.
    fn holders_floor(&self) -> usize {
        let Code { a, k, .. } = self.bounds.code;
        if self.planted == Some(Planted::SealBelowK) {
            return 1;
        }
        let is_placed = self.peers.targets.len() < self.bounds.targets;
        let disks = if is_placed && self.free_server().is_some() { SERVERS } else { k };
        self.bounds.code.quorum().holders_floor(2, disks).min(a)
    }

    fn free_server(&self) -> Option<usize> {
        let peers = &self.peers;
        let is_free = |server: &usize| {
            peers.is_alive(*server) && peers.fragment(peers.tail().id, *server).is_none()
        };
        (0..SERVERS).find(is_free)
    }

    pub(super) fn order(&mut self, server: usize) {
        let recovery = self.peers.recovery.as_ref().expect("chosen");
        let len = *self.sealed_lens(recovery).expect("chosen").end();
        let peers = &mut self.peers;
        if peers.len_at(server) >= len {
            peers.recovery.as_mut().expect("chosen").copied.insert(server, len);
        } else {
            peers.orders.insert(server, Order { len, late: false });
        }
    }

    pub(super) fn copy_row(&mut self, server: usize, marks: &mut Marks) -> Result<(), String> {
        let peers = &mut self.peers;
        let record = peers.next_row(server).expect("chosen");
        let (chunk, order) = (peers.tail().id, peers.orders[&server]);
        let replica = peers.replicas.entry((chunk, server)).or_default();
        if !replica.fenced {
            return Err(format!("rows are copied to server {server}, which is not fenced"));
        }
        replica.records.push(record);
        let len = replica.len();
        if order.late {
            *marks.entry("a copy goes on under the next leader").or_default() += 1;
        }
        if len < order.len {
            *marks.entry("a copy is partly made").or_default() += 1;
            return Ok(());
        }
        peers.orders.remove(&server);
        if let Some(recovery) = peers.recovery.as_mut().filter(|_| !order.late) {
            recovery.copied.insert(server, order.len);
        }
        Ok(())
    }

    pub(super) fn add_target(&mut self, server: usize, marks: &mut Marks) {
        let recovery = self.peers.recovery.as_ref().expect("chosen");
        let len = *self.sealed_lens(recovery).expect("chosen").end();
        let mut have = self.holders(recovery, len);
        let peers = &mut self.peers;
        have.extend(peers.targets.keys());
        let there = peers.fragments_at(&have);
        let fragment = there.trailing_ones() as usize;
        peers.targets.insert(server, Target { fragment });
        let replica = Replica { fenced: true, ..Replica::default() };
        peers.replicas.insert((peers.tail().id, server), replica);
        *marks.entry("a replica is made elsewhere").or_default() += 1;
        if !peers.is_alive(peers.tail().servers[fragment]) {
            *marks.entry("a lost fragment is made elsewhere").or_default() += 1;
        }
    }

    pub(super) fn seal_at(&mut self, len: u32, marks: &mut Marks) -> Result<(), String> {
        let recovery = self.peers.recovery.take().expect("chosen");
        let Code { n, a, k } = self.bounds.code;
        let holders = self.holders(&recovery, len);
        let held = self.held(&recovery, len);
        let distinct = self.peers.distinct(&holders);
        let peers = &mut self.peers;
        let tail = peers.tail().id;
        let acked = peers.acked_in(tail);
        if len < acked {
            return Err(format!("sealed at {len}, {acked} bytes are acknowledged"));
        }
        if len > 0 && distinct < k {
            return Err(format!("sealed at {len} on {distinct} different fragments"));
        }
        let lost = peers.destroyed.len();
        for (&seq, placed) in &peers.placed {
            let there = peers.fragments_with(seq).count_ones() as usize;
            let is_sealed = placed.chunk == tail && placed.offset < len;
            if is_sealed && lost <= a - k && there < k {
                return Err(format!("sealed at {len}, append {seq} is on {there} fragments"));
            }
        }
        if self.planted.is_none() && recovery.votes.len() < n - a + k {
            return Err(format!("sealed at {len} with the votes {:?}", recovery.votes));
        }
        let mut mark = |is: bool, what| *marks.entry(what).or_default() += u64::from(is);
        mark(len > acked, "more is sealed than was acknowledged");
        mark(len > 0 && distinct < a, "sealed with fewer holders");
        let is_exposed = len > acked && distinct == k;
        mark(is_exposed, "more than was acknowledged is sealed on k fragments");
        mark(recovery.leaders > 0, "sealed by the next leader");
        mark(!peers.destroyed.is_empty(), "sealed without a destroyed disk");
        marks.retain(|_, count| *count > 0);
        peers.held_well = if held >= a { len } else { 0 };
        peers.recovered = true;
        peers.stream.last_mut().expect("a chunk").sealed = Some(len);
        // Replicas that are recorded and hold nothing leave the record; other orders end.
        peers.orders.clear();
        let gone: Vec<_> =
            peers.targets.keys().copied().filter(|it| !holders.contains(it)).collect();
        for server in gone {
            peers.targets.remove(&server);
            peers.replicas.remove(&(tail, server));
        }
        Ok(())
    }
}

impl Peers {
    /// A bit for each fragment of the last chunk that these servers have.
    fn fragments_at(&self, servers: &BTreeSet<usize>) -> u32 {
        let tail = self.tail().id;
        let fragments = servers.iter().filter_map(|it| self.fragment(tail, *it));
        fragments.fold(0, |mask, fragment| mask | 1 << fragment)
    }

    fn distinct(&self, servers: &BTreeSet<usize>) -> usize {
        self.fragments_at(servers).count_ones() as usize
    }

    fn len_at(&self, server: usize) -> u32 {
        self.replicas.get(&(self.tail().id, server)).map_or(0, Replica::len)
    }

    /// The row that a server's order wants next, if the others give it: its own cell at a replica of the
    /// same fragment, or those of k others, of one layout.
    fn next_row(&self, server: usize) -> Option<Record> {
        let (tail, at) = (self.tail().id, (self.len_at(server) / LEN) as usize);
        let others = self.replicas.iter().filter(|it| it.0.0 == tail && it.0.1 != server);
        let cells: Vec<_> = others
            .filter_map(|(channel, it)| {
                Some((self.fragment(tail, channel.1)?, *it.records.get(at)?))
            })
            .collect();
        let own = self.fragment(tail, server)?;
        if let Some(cell) = cells.iter().find(|cell| cell.0 == own) {
            return Some(cell.1);
        }
        let of_layout = |record: &Record| {
            let same = cells.iter().filter(|cell| cell.1 == *record);
            same.fold(0u32, |mask, cell| mask | 1 << cell.0).count_ones() as usize
        };
        cells.iter().map(|cell| cell.1).find(|record| of_layout(record) >= self.code.k)
    }
}
