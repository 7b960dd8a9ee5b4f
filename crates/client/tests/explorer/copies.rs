//! Recovery of a chunk of copies.

use master_stream::sealed_lens;

use super::*;

impl World {
    pub(super) fn recovery_steps(&self, recovery: &Recovery, steps: &mut Vec<Step>) {
        let peers = &self.peers;
        let tail = peers.tail();
        let alive = tail.servers.iter().copied().filter(|&server| peers.is_alive(server));
        let alive: Vec<_> = alive.collect();
        let votes = |server: &usize| recovery.votes.contains_key(server);
        let is_voteless = |server: &usize| {
            peers.replicas.get(&(tail.id, *server)).is_some_and(|replica| replica.voteless)
        };
        steps.extend(
            alive.iter().filter(|it| !votes(it) && !is_voteless(it)).map(|&it| Step::Fence(it)),
        );
        if recovery.leaders < self.bounds.leaders && !recovery.votes.is_empty() {
            steps.push(Step::NewLeader);
        }
        let Some(len) = self.seal_len(recovery) else { return };
        let holds = |server: &usize| {
            peers.replicas.get(&(tail.id, *server)).is_some_and(|replica| replica.len() >= len)
        };
        let holders = alive.iter().filter(|it| holds(it)).count();
        if holders >= REP3.a.min(alive.len()) {
            steps.push(Step::Seal);
        }
        let fenced = |server: &usize| {
            peers.replicas.get(&(tail.id, *server)).is_some_and(|replica| replica.fenced)
        };
        let short = alive.iter().filter(|it| fenced(it) && !holds(it));
        steps.extend(short.map(|&server| Step::Fill(server)));
    }

    /// The length at which the current chunk may be sealed, if there are votes enough.
    pub(super) fn seal_len(&self, recovery: &Recovery) -> Option<u32> {
        let votes: Vec<u32> = recovery.votes.values().copied().collect();
        let tail = self.peers.tail();
        let all = tail.servers.iter().filter(|&&server| self.peers.is_alive(server)).count();
        // A write that was lost silently costs nothing while all answer.
        if self.bounds.harm == Harm::LastWrite && votes.len() < all {
            return None;
        }
        let Code { n, a, .. } = self.bounds.code;
        let acks = if self.planted == Some(Planted::RecordShrinks) { n } else { a };
        let lens = sealed_lens(n, acks, &votes)?;
        if self.planted == Some(Planted::StatisticIsLength) {
            return Some(*lens.start());
        }
        // What no replica has any more, above the vote of the rank, is given up.
        let voters =
            recovery.votes.keys().filter_map(|it| self.peers.replicas.get(&(tail.id, *it)));
        let there = voters.map(Replica::len).max().unwrap_or(0);
        Some(there.min(*lens.end()).max(*lens.start()))
    }

    pub(super) fn fill(&mut self, server: usize, marks: &mut Marks) -> Result<(), String> {
        let recovery = self.peers.recovery.as_ref().expect("chosen");
        let len = self.seal_len(recovery).expect("chosen");
        let peers = &mut self.peers;
        let tail = peers.tail().clone();
        let source = tail.servers.iter().filter_map(|it| peers.replicas.get(&(tail.id, *it)));
        let source = source.max_by_key(|replica| replica.len()).expect("one has votes").clone();
        let recovery = peers.recovery.as_mut().expect("chosen");
        let replica = peers.replicas.get_mut(&(tail.id, server)).expect("it is fenced");
        if replica.records.is_empty() {
            *marks.entry("a tombstone is filled").or_default() += 1;
            replica.voteless = self.planted == Some(Planted::FillRepairing);
        }
        let count = (len / LEN) as usize;
        if !source.records.starts_with(&replica.records) || source.records.len() < count {
            return Err(format!("replicas differ: {source:?}, {replica:?}"));
        }
        replica.records = source.records[..count].to_vec();
        recovery.votes.entry(server).and_modify(|vote| *vote = len);
        for record in &source.records[..count] {
            peers.held.insert((tail.id, server, record.seq));
        }
        Ok(())
    }

    pub(super) fn seal(&mut self, marks: &mut Marks) -> Result<(), String> {
        let recovery = self.peers.recovery.take().expect("chosen");
        let len = self.seal_len(&recovery).expect("chosen");
        let peers = &mut self.peers;
        let acked = peers.acked_in(peers.tail().id);
        if len < acked {
            return Err(format!("sealed at {len}, {acked} bytes are acknowledged"));
        }
        if len > acked {
            *marks.entry("more is sealed than was acknowledged").or_default() += 1;
        }
        peers.recovered = true;
        peers.stream.last_mut().expect("a chunk").sealed = Some(len);
        Ok(())
    }
}
