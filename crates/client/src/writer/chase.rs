//! Chasing (C14): acknowledgements at MinCopy of MaxCopy copies, and the rest soon after.
//!
//! An append is acknowledged when MinCopy followed replicas have it. What other followed replicas
//! lack stays in memory and is owed to them, within a budget that never makes an append wait: a
//! replica that owes too much, or for too long, is left. The chunk is thin then, and ends soon, for
//! only ended chunks are repaired. What an ended chunk owes stays owed in the same way.
//!
//! Invariant: an acknowledged append is released when every followed replica of its chunk has it,
//! so that MinCopy replicas have it at least.

use base::{ChunkId, ServerId};
use runtime::{Duration, Instant};
use wire::control::ChunkPlace;

use super::chunk::{Debt, OpenChunk, Replica, Thin};
use super::core::{Life, Writer};
use super::event::Action;
use crate::limits::{AVOID_MAX, DEBTS_MAX};
use crate::planted::{Planted, planted};

impl Writer {
    /// Lets appends go that every followed replica of their chunk has.
    pub(super) fn release(&mut self, out: &mut Vec<Action>) {
        let acked = self.acked;
        let current = self.current.iter_mut().map(|current| (current, acked));
        let debts = self.debts.iter_mut().map(|debt| (&mut debt.chunk, debt.below));
        for (chunk, below) in current.chain(debts) {
            let held = chunk.followed().map(|replica| replica.next).min().unwrap_or(below);
            let (from, below) = (chunk.released, held.min(below));
            if from >= below {
                continue;
            }
            chunk.released = below;
            let range = (from - self.first) as usize..(below - self.first) as usize;
            for slot in self.slots.range_mut(range) {
                slot.released = true;
                self.owed -= slot.bytes();
            }
            out.push(Action::Released { from, below });
        }
        self.debts.retain(|debt| debt.chunk.released < debt.below);
        while self.slots.front().is_some_and(|slot| slot.released) {
            self.slots.pop_front();
            self.first += 1;
        }
    }

    /// Keeps what is owed within the budgets: replicas that lack the oldest appends are left.
    pub(super) fn bound_chase(&mut self, now: Instant, out: &mut Vec<Action>) {
        loop {
            let fits = self.owed <= u64::from(self.config.chase_bytes);
            if fits && self.chase.change(self.charged, self.owed) {
                self.charged = self.owed;
                return;
            }
            let Some((chunk, index)) = self.hindmost() else {
                // Those that are left would leave too few copies: it is bounded by time.
                return;
            };
            self.leave_slow(now, chunk, index, out);
            self.release(out);
        }
    }

    /// The replica that lacks the oldest acknowledged append, of those that may be left.
    fn hindmost(&self) -> Option<(ChunkId, usize)> {
        let owing = |chunk: &OpenChunk, below: u64| {
            let replicas = chunk.replicas.iter().enumerate();
            let late = replicas.filter(|(_, replica)| !replica.left && replica.next < below);
            let mut late: Vec<_> = late.map(|(index, replica)| (replica.next, index)).collect();
            late.sort_unstable();
            late
        };
        for debt in &self.debts {
            let late = owing(&debt.chunk, debt.below);
            if let Some((_, index)) = late.into_iter().find(|it| self.may_leave(debt, it.1)) {
                return Some((debt.chunk.id(), index));
            }
        }
        let current = self.current.as_ref()?;
        let late = owing(current, self.acked);
        let (_, index) = late.into_iter().find(|it| current.can_leave(it.1))?;
        Some((current.id(), index))
    }

    /// True when what is owed to this replica of an ended chunk is held elsewhere as often as it was
    /// acknowledged. If not, the bytes here may be the only other copy, and are kept.
    fn may_leave(&self, debt: &Debt, index: usize) -> bool {
        let chunk = &debt.chunk;
        let failed = |server| self.avoid.iter().any(|&(id, _)| id == server);
        let holds =
            |it: &Replica| it.durable >= chunk.acked && !it.lost && !failed(it.place.server);
        let others = chunk.replicas.iter().enumerate();
        let others = others.filter(|&(at, other)| at != index && holds(other));
        others.count() >= chunk.acks()
    }

    /// What a server held counts as no copy any more, also when masters grant it again: it may have other disks.
    pub(super) fn note_lost(&mut self, server: ServerId) {
        let debts = self.debts.iter_mut().map(|debt| &mut debt.chunk);
        let chunks = self.current.iter_mut().chain(debts);
        let replicas = chunks.flat_map(|chunk| &mut chunk.replicas);
        replicas.filter(|it| it.place.server == server).for_each(|it| it.lost = true);
    }

    /// A replica of this chunk gets nothing more, and its answers count no more.
    pub(super) fn leave(&mut self, chunk: ChunkId, index: usize, out: &mut Vec<Action>) {
        let replica = &mut self.chunk_mut(chunk).expect("the caller has it").replicas[index];
        let server = replica.place.server;
        if !std::mem::replace(&mut replica.left, true) {
            if let Some(ended) = self.ended.as_mut().filter(|ended| ended.chunk == chunk) {
                ended.left.push(server);
            }
            out.push(Action::Left { chunk, replica: index as u8 });
        }
    }

    fn leave_slow(&mut self, now: Instant, chunk: ChunkId, index: usize, out: &mut Vec<Action>) {
        self.note_fault(chunk, index, "too slow");
        let replica = &self.chunk(chunk).expect("the caller has it").replicas[index];
        let (server, oldest) = (replica.place.server, self.placed_at(replica.next));
        // One that is late for a moment only is welcome in the next chunk.
        if now.since(oldest) >= self.config.slow_after {
            self.avoid_server(server, now);
        }
        self.leave(chunk, index, out);
        self.note_thin(now);
    }

    /// What followed replicas lack of a chunk that has ended stays owed.
    pub(super) fn owe(&mut self, now: Instant, mut chunk: OpenChunk, out: &mut Vec<Action>) {
        let below = self.acked;
        for (index, replica) in chunk.replicas.iter_mut().enumerate() {
            replica.next = replica.next.min(below);
            replica.unsent = replica.unsent.min(below);
            if replica.left {
                continue;
            }
            let owed = (replica.next - self.first) as usize..(replica.unsent - self.first) as usize;
            let gapped = self.slots.range(owed).filter(|slot| slot.is_blocked_at(index));
            replica.gapped = gapped.count() as u32;
        }
        chunk.thin = None;
        self.debts.push_back(Debt { chunk, below, ended_at: now });
        self.release(out);
        if self.debts.len() > DEBTS_MAX || planted(Planted::DebtDropped) && !self.debts.is_empty() {
            let oldest = &self.debts[0].chunk;
            let (id, count) = (oldest.id(), oldest.replicas.len());
            (0..count).for_each(|index| self.leave(id, index, out));
            self.release(out);
        }
    }

    /// Looks for replicas that owe an acknowledged append for too long.
    pub(super) fn check_chased(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some((chunk, index)) = self.overdue(now) {
            self.leave_slow(now, chunk, index, out);
            self.release(out);
        }
    }

    fn overdue(&self, now: Instant) -> Option<(ChunkId, usize)> {
        let mut due = None;
        self.each_owing(|at, chunk, index| {
            if at <= now && due.is_none() {
                due = Some((chunk, index));
            }
        });
        due
    }

    /// Calls `each` with the moment at which a replica that owes something is to be left.
    pub(super) fn each_owing(&self, mut each: impl FnMut(Instant, ChunkId, usize)) {
        for debt in &self.debts {
            for (index, replica) in debt.chunk.replicas.iter().enumerate() {
                if replica.left || replica.next >= debt.below {
                    continue;
                }
                let kept = debt.ended_at + self.config.debt_kept;
                let at = self.placed_at(replica.next) + self.config.chase_for;
                let may = self.may_leave(debt, index);
                each(if may { at.min(kept) } else { kept }, debt.chunk.id(), index);
            }
        }
        let Some(current) = &self.current else { return };
        for (index, replica) in current.replicas.iter().enumerate() {
            if !replica.left && replica.next < self.acked && current.can_leave(index) {
                each(self.placed_at(replica.next) + self.config.chase_for, current.id(), index);
            }
        }
    }

    fn placed_at(&self, seq: u64) -> Instant {
        self.slots[(seq - self.first) as usize].placed_at
    }

    /// Notes when the current chunk became thin, if it is.
    pub(super) fn note_thin(&mut self, now: Instant) {
        let calm = self.thin_ended.is_none_or(|at| now.since(at) >= self.config.whole_pause);
        let Some(current) = &mut self.current else { return };
        let thin = current.thin.as_ref().is_some_and(|thin| !thin.pushed);
        if thin || current.replicas.iter().all(|replica| !replica.left) {
            return;
        }
        if calm {
            self.thin_ends = 0;
        }
        let pause = current.spread(self.config.thin_pause) * (1 << self.thin_ends.min(16));
        let end_at = now + pause.min(self.config.whole_pause_max);
        current.thin = Some(Thin { end_at, answered: false, pushed: false });
        self.thin_after = now;
    }

    /// Notes that masters do not reach a server of the current chunk, or do again: a chunk that is
    /// otherwise whole ends a while after the former, so that only then it can be repaired (C28).
    fn note_pushed(&mut self, now: Instant) {
        let Some(current) = &mut self.current else { return };
        let marked = current.thin.as_ref().is_some_and(|thin| thin.pushed);
        if self.pushed.is_empty() && !marked {
            return;
        }
        let pushed = current.followed().any(|it| self.pushed.contains(&it.place.server));
        if marked && !pushed {
            current.thin = None;
        } else if pushed && current.thin.is_none() {
            let end_at = now + current.spread(self.config.pushed_pause);
            current.thin = Some(Thin { end_at, answered: false, pushed: true });
            self.thin_after = end_at;
        }
    }

    /// The thin chunk that is written, and that the stream service knows. Without bytes there is nothing
    /// to repair in it, but it keeps its servers on record (`docs/decisions/0121`).
    fn thin(&self) -> Option<&Thin> {
        let stays = |it: &OpenChunk| it.full || it.end == 0 && planted(Planted::EmptyStays);
        let current = self.current.as_ref().filter(|it| !stays(it))?;
        current.thin.as_ref().filter(|_| self.ended.is_none() && self.life == Life::Open)
    }

    /// When the stream service is to be asked for spares that let a thin chunk end.
    pub(super) fn thin_question(&self) -> Option<Instant> {
        self.thin().filter(|thin| !thin.answered).map(|_| self.thin_after)
    }

    /// When a thin chunk is to end.
    pub(super) fn thin_end(&self) -> Option<Instant> {
        self.thin().filter(|thin| thin.answered).map(|thin| thin.end_at)
    }

    /// The stream service has answered: masters live, and what they grant is known. The chunk can
    /// end when a spare is there without a server that is avoided.
    pub(super) fn note_thin_answer(&mut self, now: Instant) {
        let pause = match self.ends_for_masters() {
            // It goes on with all its replicas.
            true => self.config.pushed_pause,
            false => self.config.extend_pause,
        };
        self.thin_after = now + pause;
        let there = self.fit_spare(now).is_some();
        if let Some(thin) = self.current.as_mut().and_then(|current| current.thin.as_mut()) {
            thin.answered = there;
        }
    }

    /// True while a server that failed this writer is not wanted.
    pub(super) fn avoids(&self, server: ServerId, now: Instant) -> bool {
        self.avoid.iter().any(|&(id, until)| id == server && until > now)
    }

    pub(super) fn avoid_server(&mut self, server: ServerId, now: Instant) {
        self.avoid_server_for(server, now, self.config.avoid_for);
    }

    pub(super) fn avoid_server_for(&mut self, server: ServerId, now: Instant, time: Duration) {
        let known = self.avoid.iter().find(|it| it.0 == server).map_or(now, |it| it.1);
        self.avoid.retain(|&(id, until)| id != server && until > now);
        if self.avoid.len() == AVOID_MAX {
            self.avoid.pop_front();
        }
        self.avoid.push_back((server, known.max(now + time)));
    }

    /// Takes over the servers that the client lists.
    pub fn set_listed(&mut self, listed: Vec<ServerId>) {
        self.listed = listed;
    }

    /// Takes over the servers that masters do not reach.
    pub fn set_pushed(&mut self, pushed: Vec<ServerId>) {
        self.pushed = pushed;
    }

    /// The current chunk is whole, and is to end because masters do not reach a server of it.
    pub(super) fn ends_for_masters(&self) -> bool {
        let thin = self.current.as_ref().and_then(|current| current.thin.as_ref());
        thin.is_some_and(|thin| thin.pushed)
    }

    pub(super) fn lists(&self, server: ServerId) -> bool {
        self.listed.contains(&server)
    }

    fn fit_spare(&self, now: Instant) -> Option<usize> {
        let current = self.current.as_ref().filter(|_| self.ends_for_masters());
        // A whole chunk is left for another one only that masters reach, and that survives as much.
        let losses = |place: &ChunkPlace| place.replicas.len().saturating_sub(place.data.into());
        let least = current.map_or(0, |current| losses(&current.place));
        let avoids =
            |server| self.avoids(server, now) || current.is_some() && self.pushed.contains(&server);
        self.spares
            .iter()
            .position(|it| losses(it) >= least && it.replicas.iter().all(|it| !avoids(it.server)))
    }

    /// Ends a thin chunk whose time has come. Appends under way are acknowledged first.
    pub(super) fn end_thin(&mut self, now: Instant) {
        self.note_pushed(now);
        if self.thin_end().is_none_or(|at| at > now) {
            return;
        }
        let fit = self.fit_spare(now).filter(|_| !self.tokens_stale);
        let may = fit.is_some() && self.chase.take_end(now);
        let current = self.current.as_mut().expect("it is thin");
        let thin = current.thin.as_mut().expect("it is thin");
        let Some(at) = fit else { return thin.answered = false };
        if !may {
            thin.end_at = now + self.config.retry_pause * 5;
            return;
        }
        self.spares.drain(..at);
        current.full = true;
        if !thin.pushed {
            self.thin_ends += 1;
            self.thin_ended = Some(now);
        }
    }

    /// Gives back what it has taken of the budget.
    pub(super) fn forget_chase(&mut self) {
        self.chase.change(self.charged, 0);
        self.charged = 0;
    }

    /// The invariants of chasing.
    pub(super) fn check_chase(&self) {
        assert!(self.debts.len() <= DEBTS_MAX && self.charged <= self.chase.bytes());
        for Debt { chunk, below, .. } in &self.debts {
            assert!(chunk.released < *below && *below <= self.acked);
            for replica in chunk.followed() {
                assert!(chunk.released <= replica.next && replica.next <= replica.unsent);
                assert!(replica.unsent <= *below);
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.forget_chase();
    }
}
