//! Timers of a writer.

use base::ChunkId;
use runtime::Instant;
use wire::control::ReplicaFault;
use wire::data::{CommitRequest, DataError};

use super::chunk::{Replica, SendState};
use super::core::{Failure, Life, Verdict, Writer};
use super::event::{Action, SendError, WriterError};

impl Writer {
    /// When [`super::Event::Tick`] is due, if time matters at all.
    pub fn deadline(&self) -> Option<Instant> {
        if self.life == Life::Over {
            return None;
        }
        let mut due = self.resend_at;
        let mut add = |at: Instant| due = Some(due.map_or(at, |now| now.min(at)));
        if self.acked < self.next_seq() {
            add(self.acked_at + self.config.stall_budget);
        }
        if self.op.is_none() && self.needs_spares() {
            add(self.need_after);
        }
        if self.op.is_none() && self.wants_spares() {
            add(self.extend_after);
        }
        if self.op.is_none() && self.is_short() {
            add(self.whole_after);
        }
        if self.op.is_none()
            && let Some(at) = self.thin_question()
        {
            add(at);
        }
        if let Some(at) = self.thin_end() {
            add(at);
        }
        if self.op.is_none()
            && self.owed > 0
            && let Some(since) = self.closing_since
        {
            add(since + self.config.close_chase);
        }
        self.each_owing(|at, _, _| add(at));
        for replica in self.debts.iter().flat_map(|debt| debt.chunk.followed()) {
            if replica.owes() {
                add(replica.silent_since().max(replica.resent_at) + self.config.resend_after);
            }
        }
        if self.op.is_none()
            && let Some(at) = self.renewal_due()
        {
            add(at);
        }
        let Some(current) = &self.current else {
            if self.may_open() {
                add(self.open_after);
            }
            return due;
        };
        if let Some(at) = self.blocked_at() {
            add(at);
        }
        let config = &self.config;
        for replica in current.followed().filter(|replica| replica.owes()) {
            let silent = replica.silent_since();
            add(silent + config.replica_timeout);
            add(replica.progress_at + config.stuck_timeout);
            add(silent.max(replica.resent_at) + config.resend_after);
            if let Some(since) = replica.unreachable_since {
                add(since + config.unreachable_timeout);
            }
        }
        if self.is_idle() {
            let wants = |replica: &&Replica| !replica.telling;
            let tell_at = |replica: &Replica| self.tell_at(replica, current.acked);
            if let Some(at) = current.followed().filter(wants).map(tell_at).min() {
                add(at.max(self.progress_at + config.commit_idle));
            }
        }
        due
    }

    /// Time at which a replica is to be sent the committed length.
    fn tell_at(&self, replica: &Replica, committed: u32) -> Instant {
        if replica.notified < committed {
            replica.tell_after
        } else {
            replica.tell_after.max(replica.heard_at + self.config.commit_repeat)
        }
    }

    /// Nothing is to be sent, and the chunk is known to be current.
    fn is_idle(&self) -> bool {
        self.ended.is_none() && self.acked == self.next_seq() && !self.is_closing_now()
    }

    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.acked < self.next_seq() && now >= self.acked_at + self.config.stall_budget {
            let cause = if self.fault.is_empty() {
                "the stream service did not answer".to_owned()
            } else {
                std::mem::take(&mut self.fault)
            };
            return self.fail(WriterError::Stalled { cause }, out);
        }
        self.check_chased(now, out);
        let count = self.current.as_ref().map_or(0, |current| current.replicas.len());
        for index in 0..count {
            if self.current.is_some() {
                self.check_replica(now, index, out);
            }
        }
        self.check_blocked(now, out);
        let debts = self.debts.iter().map(|debt| &debt.chunk);
        let owing: Vec<_> = debts.map(|chunk| (chunk.id(), chunk.replicas.len())).collect();
        for (chunk, count) in owing {
            (0..count).for_each(|index| self.resend_oldest(now, chunk, index, out));
        }
    }

    fn check_replica(&mut self, now: Instant, index: usize, out: &mut Vec<Action>) {
        let current = self.current.as_mut().expect("checked");
        let (chunk, replica) = (current.id(), &mut current.replicas[index]);
        if replica.left || !replica.owes() {
            return;
        }
        let config = &self.config;
        let unreached = Some(ReplicaFault::Unreachable);
        let failed = if now >= replica.silent_since() + config.replica_timeout {
            Some(("no answer", unreached))
        } else if now >= replica.progress_at + config.stuck_timeout {
            // It answers: it is reached.
            Some(("no progress", None))
        } else if replica.unreachable_since.is_some_and(|at| now >= at + config.unreachable_timeout)
        {
            Some(("no connection", unreached))
        } else {
            None
        };
        if let Some((text, fault)) = failed {
            let failure = Failure::of(ReplicaFault::Unreachable, text.to_owned());
            let failure = Failure { fault, ..failure };
            return self.fail_replica(now, chunk, index, failure, out);
        }
        self.resend_oldest(now, chunk, index, out);
    }

    /// Sends the oldest append that a silent replica lacks again.
    fn resend_oldest(&mut self, now: Instant, chunk: ChunkId, index: usize, out: &mut Vec<Action>) {
        let pause = self.config.resend_after;
        let Some(found) = self.chunk_mut(chunk) else { return };
        let replica = &mut found.replicas[index];
        let due = replica.silent_since().max(replica.resent_at) + pause;
        if replica.left || !replica.owes() || now < due {
            return;
        }
        replica.resent_at = now;
        let seq = replica.next;
        if self.slots[(seq - self.first) as usize].copies[index].state == SendState::InFlight {
            self.send(chunk, seq, index, out);
        }
    }

    /// Sends idle replicas the committed length, so that readers of the tail go on. Of a chunk without
    /// bytes it shows the writer whether its places are there.
    pub(super) fn notify_committed(&mut self, now: Instant, out: &mut Vec<Action>) {
        if !self.is_idle() || now < self.progress_at + self.config.commit_idle {
            return;
        }
        let Some(current) = &self.current else { return };
        for index in 0..current.replicas.len() {
            self.tell_replica(now, index, out);
        }
    }

    fn tell_replica(&mut self, now: Instant, index: usize, out: &mut Vec<Action>) {
        let current = self.current.as_ref().expect("checked");
        let (committed, replica) = (current.acked, &current.replicas[index]);
        if replica.left || replica.telling {
            return;
        }
        if now < self.tell_at(replica, committed) {
            return;
        }
        let request =
            CommitRequest { at: current.replica_ref(index), epoch: self.epoch, committed };
        let (to, token) = (replica.place.addr, current.place.token);
        out.push(Action::NotifyCommitted { replica: index as u8, to, token, request });
        self.current.as_mut().expect("checked").replicas[index].telling = true;
    }

    pub(super) fn on_committed_notified(
        &mut self,
        now: Instant,
        chunk: ChunkId,
        replica: u8,
        committed: u32,
        result: Result<(), SendError>,
        out: &mut Vec<Action>,
    ) {
        let closing = self.is_closing_now();
        let Some(current) = &mut self.current else { return };
        if current.id() != chunk {
            return;
        }
        let index = usize::from(replica);
        let replica = &mut current.replicas[index];
        replica.telling = false;
        if replica.left || closing {
            return;
        }
        match result {
            Ok(()) => {
                replica.notified = replica.notified.max(committed);
                replica.heard_at = now;
                replica.mute_since = None;
            }
            Err(SendError::Data(DataError::Fenced { .. } | DataError::Sealed { .. })) => {
                self.fail(WriterError::Fenced, out);
            }
            // It has no replica yet, and answers.
            Err(SendError::Data(DataError::NotFound)) if replica.durable == 0 => {
                replica.heard_at = now;
                replica.mute_since = None;
            }
            Err(SendError::Data(DataError::NotFound | DataError::WrongDisk)) => {
                let text = "has lost the chunk".to_owned();
                let failure = Failure::of(ReplicaFault::Missing, text);
                self.fail_replica(now, chunk, index, failure, out);
            }
            Err(SendError::Data(DataError::Corrupt { .. })) => {
                let text = "holds a damaged replica".to_owned();
                let failure = Failure::of(ReplicaFault::Corrupt, text);
                self.fail_replica(now, chunk, index, failure, out);
            }
            Err(SendError::Data(DataError::DiskFailed)) => {
                let text = "its disk has failed".to_owned();
                let failure = Failure::of(ReplicaFault::DiskFailed, text);
                self.fail_replica(now, chunk, index, failure, out);
            }
            // The next append finds out; until then readers use the other replicas. Without a
            // next append the writer moves on, so that others can restore the redundancy.
            Err(SendError::Unreachable | SendError::Silent) => {
                let since = *replica.mute_since.get_or_insert(now);
                replica.tell_after = now + self.config.replica_timeout;
                if now >= since.max(replica.heard_at) + self.config.idle_timeout {
                    let text = "does not answer an idle writer".to_owned();
                    let failure = Failure::of(ReplicaFault::Unreachable, text);
                    self.fail_replica(now, chunk, index, failure, out);
                }
            }
            // Its right has run out, by the replica's clock. When renewal does not help, it is
            // left: readers would wait for this writer's report for ever.
            Err(SendError::Data(DataError::Denied)) => {
                let since = *replica.mute_since.get_or_insert(now);
                replica.tell_after = now + self.config.replica_timeout;
                self.renew_at = Some(now);
                if now >= since.max(replica.heard_at) + self.config.idle_timeout {
                    let text = "refuses the right of an idle writer".to_owned();
                    let failure =
                        Failure { fault: None, text, avoid: true, verdict: Verdict::Rights };
                    self.fail_replica(now, chunk, index, failure, out);
                }
            }
            Err(_) => replica.tell_after = now + self.config.replica_timeout,
        }
    }
}
