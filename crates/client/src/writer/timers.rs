//! Timers of a writer.

use base::ChunkId;
use runtime::Instant;
use wire::control::ReplicaFault;
use wire::data::{CommitRequest, DataError};

use super::chunk::{Replica, SendState};
use super::core::{Life, Writer};
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
            add(self.progress_at + self.config.stall_budget);
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
        let config = &self.config;
        for replica in current.alive().filter(|replica| replica.owes()) {
            let silent = replica.silent_since();
            add(silent + config.replica_timeout);
            add(replica.progress_at + config.stuck_timeout);
            add(silent.max(replica.resent_at) + config.resend_after);
            if let Some(since) = replica.unreachable_since {
                add(since + config.unreachable_timeout);
            }
        }
        if self.is_idle() {
            let wants = |replica: &&Replica| !replica.telling && current.acked > 0;
            let tell_at = |replica: &Replica| self.tell_at(replica, current.acked);
            if let Some(at) = current.alive().filter(wants).map(tell_at).min() {
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
        if self.acked < self.next_seq() && now >= self.progress_at + self.config.stall_budget {
            let cause = if self.fault.is_empty() {
                "the stream service did not answer".to_owned()
            } else {
                std::mem::take(&mut self.fault)
            };
            return self.fail(WriterError::Stalled { cause }, out);
        }
        let count = self.current.as_ref().map_or(0, |current| current.replicas.len());
        for index in 0..count {
            if self.current.is_some() {
                self.check_replica(now, index, out);
            }
        }
    }

    fn check_replica(&mut self, now: Instant, index: usize, out: &mut Vec<Action>) {
        let current = self.current.as_mut().expect("checked");
        let replica = &mut current.replicas[index];
        if replica.failed || !replica.owes() {
            return;
        }
        let config = &self.config;
        let silent = replica.silent_since();
        let failed = if now >= silent + config.replica_timeout {
            Some("no answer")
        } else if now >= replica.progress_at + config.stuck_timeout {
            Some("no progress")
        } else if replica.unreachable_since.is_some_and(|at| now >= at + config.unreachable_timeout)
        {
            Some("no connection")
        } else {
            None
        };
        if let Some(text) = failed {
            let fault = Some(ReplicaFault::Unreachable);
            return self.fail_replica(now, index, fault, text.to_owned(), out);
        }
        if now >= silent.max(replica.resent_at) + config.resend_after {
            replica.resent_at = now;
            let seq = replica.next;
            let slot = &self.slots[(seq - self.first) as usize];
            if slot.copies[index].state == SendState::InFlight {
                self.send(seq, index, out);
            }
        }
    }

    /// Sends idle replicas the committed length, so that readers of the tail go on.
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
        if replica.failed || replica.telling || committed == 0 {
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
        if replica.failed || closing {
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
            Err(SendError::Data(DataError::NotFound | DataError::WrongDisk))
                if replica.durable > 0 =>
            {
                let text = "has lost the chunk".to_owned();
                self.fail_replica(now, index, Some(ReplicaFault::Missing), text, out);
            }
            Err(SendError::Data(DataError::Corrupt { .. })) => {
                let text = "holds a damaged replica".to_owned();
                self.fail_replica(now, index, Some(ReplicaFault::Corrupt), text, out);
            }
            Err(SendError::Data(DataError::DiskFailed)) => {
                let text = "its disk has failed".to_owned();
                self.fail_replica(now, index, Some(ReplicaFault::DiskFailed), text, out);
            }
            // The next append finds out; until then readers use the other replicas. Without a
            // next append the writer moves on, so that others can restore the redundancy.
            Err(SendError::Unreachable | SendError::Silent) => {
                let since = *replica.mute_since.get_or_insert(now);
                replica.tell_after = now + self.config.replica_timeout;
                if now >= since.max(replica.heard_at) + self.config.idle_timeout {
                    let text = "does not answer an idle writer".to_owned();
                    self.fail_replica(now, index, Some(ReplicaFault::Unreachable), text, out);
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
                    self.fail_replica(now, index, None, text, out);
                }
            }
            Err(_) => replica.tell_after = now + self.config.replica_timeout,
        }
    }
}
