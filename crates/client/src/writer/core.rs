//! The state, the window of appends, and what replicas answer.

use std::collections::VecDeque;

use base::limits::APPEND_DATA_MAX;
use base::{ChunkId, Epoch, ServerId};
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaFault, WriterGrant};
use wire::data::{AppendRequest, DataError, Purpose};
use wire::sector::AppendAt;

use super::chunk::{EndedChunk, OpenChunk, Progress, SendState, Slot};
use super::event::{Action, Event, SendError, SendId, WriterConfig, WriterError};
use super::ops::OpState;
use crate::limits::AVOID_MAX;

/// Refusals of one append's bytes by one replica after which it is given up: a damaged frame
/// happens once.
const REFUSALS_MAX: u16 = 3;

/// State of the writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Takes appends.
    Open,
    /// Takes no more; ends when all are acknowledged.
    Closing { finish: bool },
    /// Has ended.
    Over,
}

/// One writer of one file under one epoch. See the module.
#[derive(Debug)]
pub struct Writer {
    pub(super) config: WriterConfig,
    /// Purpose of the next append.
    pub(super) purpose: Purpose,
    pub(super) epoch: Epoch,
    pub(super) life: Life,
    /// The chunk that is current at the stream service, when it has ended here. Nothing is
    /// acknowledged until the service knows of its end.
    pub(super) ended: Option<EndedChunk>,
    /// The chunk being written.
    pub(super) current: Option<OpenChunk>,
    /// Chunks recorded to follow, in order.
    pub(super) spares: VecDeque<ChunkPlace>,
    /// The youngest chunk that was ever written; spares up to it have been passed over.
    pub(super) youngest: ChunkId,
    /// The spares' tokens have expired.
    pub(super) tokens_stale: bool,
    /// Appends `first..first + slots.len()`.
    pub(super) slots: VecDeque<Slot>,
    pub(super) first: u64,
    /// Appends below are acknowledged.
    pub(super) acked: u64,
    /// Appends below are placed in the current chunk, or an earlier one.
    pub(super) placed: u64,
    /// The stream operation under way.
    pub(super) op: Option<OpState>,
    /// Servers that failed this writer, and until when they are avoided.
    pub(super) avoid: VecDeque<(ServerId, Instant)>,
    /// Chunks that failed in a row without an acknowledgement.
    pub(super) failures: u32,
    /// No new chunk is opened before.
    pub(super) open_after: Instant,
    /// No request for spares ahead of need before.
    pub(super) extend_after: Instant,
    /// No request for spares that are needed at once before.
    pub(super) need_after: Instant,
    /// No question for a chunk with all copies before, and the pause between two.
    pub(super) whole_after: Instant,
    /// See `whole_after`.
    pub(super) whole_pause: Duration,
    /// When the writer last left a chunk for one with all copies.
    pub(super) whole_since: Option<Instant>,
    /// When the rights to its chunks are to be renewed, if that is known.
    pub(super) renew_at: Option<Instant>,
    /// No request for renewal before.
    pub(super) renew_after: Instant,
    /// Earliest moment at which a refused append is to be sent again.
    pub(super) resend_at: Option<Instant>,
    /// When an append was last acknowledged, or waiting began.
    pub(super) progress_at: Instant,
    /// The last failure met, for operators.
    pub(super) fault: String,
}

impl Writer {
    /// A writer as the stream service granted it.
    pub fn new(
        config: WriterConfig,
        grant: WriterGrant,
        now: Instant,
    ) -> Result<Writer, WriterError> {
        let Some(current) = grant.current else {
            return Err(WriterError::Protocol("opened without a chunk to write".to_owned()));
        };
        if current.base != grant.len {
            let text = format!("chunk at {} for a file of {} bytes", current.base, grant.len);
            return Err(WriterError::Protocol(text));
        }
        check_place(&current, grant.epoch)?;
        let (base, config_pause) = (current.base, config.whole_pause);
        let mut writer = Writer {
            config,
            purpose: Purpose::Data,
            epoch: grant.epoch,
            life: Life::Open,
            ended: None,
            youngest: current.chunk,
            current: Some(OpenChunk::new(current, base, 0, now)),
            spares: VecDeque::new(),
            tokens_stale: false,
            slots: VecDeque::new(),
            first: 0,
            acked: 0,
            placed: 0,
            op: None,
            avoid: VecDeque::new(),
            failures: 0,
            open_after: now,
            extend_after: now,
            need_after: now,
            whole_after: now + config_pause,
            whole_pause: config_pause,
            whole_since: None,
            renew_at: None,
            renew_after: now,
            resend_at: None,
            progress_at: now,
            fault: String::new(),
        };
        writer.adopt_spares(grant.spares, &[], &mut Vec::new())?;
        Ok(writer)
    }

    /// Rights that were granted now are valid for `life`: half way they are renewed, so that a slow
    /// or idle writer keeps its chunk.
    pub fn note_rights(&mut self, now: Instant, life: Duration) {
        self.renew_at = Some(now + life / 2);
    }

    /// Sets the purpose of appends from now on.
    pub fn set_purpose(&mut self, purpose: Purpose) {
        self.purpose = purpose;
    }

    /// Purpose for which chunks are asked: that of the first append that is not acknowledged.
    pub(super) fn purpose_of_need(&self) -> Purpose {
        let first = self.slots.get((self.acked - self.first) as usize);
        first.map_or(self.purpose, |slot| slot.purpose)
    }

    /// Its epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Acknowledged length of the file.
    pub fn acked_len(&self) -> u64 {
        match (&self.ended, &self.current) {
            (Some(ended), _) => ended.end(),
            (None, Some(current)) => current.base + u64::from(current.acked),
            (None, None) => unreachable!("a chunk is current at the stream service"),
        }
    }

    /// True once it has ended, with or without an error.
    pub fn is_over(&self) -> bool {
        self.life == Life::Over
    }

    /// Number of the next append.
    pub fn next_seq(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Takes an event; what is to be done is added to `out`.
    pub fn handle(&mut self, now: Instant, event: Event, out: &mut Vec<Action>) {
        if self.life == Life::Over {
            return;
        }
        match event {
            Event::Append { len } => self.on_append(now, len),
            Event::Sent { id, result } => self.on_sent(now, id, result, out),
            Event::CommittedNotified { chunk, replica, committed, result } => {
                self.on_committed_notified(now, chunk, replica, committed, result, out);
            }
            Event::Op(result) => self.on_op(now, result, out),
            Event::Close { finish } => {
                if self.life == Life::Open {
                    self.life = Life::Closing { finish };
                }
            }
            Event::Tick => self.on_tick(now, out),
        }
        self.settle(now, out);
        self.check();
    }

    fn on_append(&mut self, now: Instant, len: u32) {
        assert!(self.life == Life::Open, "append to a closing writer");
        assert!((1..=APPEND_DATA_MAX as u32).contains(&len), "append of {len} bytes");
        if self.acked == self.next_seq() {
            self.progress_at = now;
        }
        self.slots.push_back(Slot::new(len, self.purpose));
    }

    /// Does all that has become possible.
    fn settle(&mut self, now: Instant, out: &mut Vec<Action>) {
        loop {
            if self.life == Life::Over {
                return;
            }
            self.open_next(now, out);
            self.place(now, out);
            self.transmit(now, out);
            self.acknowledge(now, out);
            self.release(out);
            let full = self.current.as_ref().is_some_and(|current| current.full);
            if !(full && self.acked == self.placed) {
                break;
            }
            self.end_current(out);
        }
        self.notify_committed(now, out);
        self.next_op(now, out);
    }

    /// Starts the next chunk, when the last has ended and a spare is there.
    fn open_next(&mut self, now: Instant, out: &mut Vec<Action>) {
        while self.current.is_none() && now >= self.open_after && self.may_open() {
            let place = self.spares.pop_front().expect("checked");
            let base = self.ended.as_ref().expect("the chunk before it has ended").end();
            self.youngest = place.chunk;
            let mut chunk = OpenChunk::new(place, base, self.placed, now);
            for replica in &mut chunk.replicas {
                let server = replica.place.server;
                replica.failed = self.avoid.iter().any(|&(id, until)| id == server && until > now);
            }
            if chunk.alive().count() < chunk.acks() {
                continue; // Passed over: the stream service drops it when the next one follows.
            }
            out.reserve(self.slots.len() * (1 + chunk.replicas.len()));
            self.current = Some(chunk);
        }
    }

    /// True when a spare is there that may be opened.
    pub(super) fn may_open(&self) -> bool {
        !self.spares.is_empty() && !self.tokens_stale
    }

    /// Gives appends their places in the current chunk.
    fn place(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        let end = self.first + self.slots.len() as u64;
        while self.placed < end && !current.full {
            let slot = &mut self.slots[(self.placed - self.first) as usize];
            if current.end > 0 && current.end + slot.len > self.config.chunk_len_max {
                current.full = true;
                break;
            }
            slot.offset = current.end;
            current.end += slot.len;
            for replica in &mut current.replicas {
                if replica.next == self.placed {
                    replica.progress_at = now;
                }
            }
            let at = AppendAt {
                chunk: current.id(),
                epoch: self.epoch,
                base: current.base,
                offset: slot.offset,
            };
            out.push(Action::Place { seq: self.placed, at });
            self.placed += 1;
        }
    }

    /// Sends what was never sent and what is due to be sent again, in order.
    fn transmit(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(current) = &self.current else { return };
        for index in 0..current.replicas.len() {
            self.transmit_new(index, out);
        }
        if self.resend_at.is_none_or(|at| at > now) {
            return;
        }
        self.resend_at = None;
        let Some(current) = &self.current else { return };
        for index in 0..current.replicas.len() {
            self.resend_due(index, now, out);
        }
    }

    fn transmit_new(&mut self, index: usize, out: &mut Vec<Action>) {
        loop {
            let replica = &self.current.as_ref().expect("checked").replicas[index];
            let seq = replica.unsent;
            if replica.failed || seq >= self.placed {
                return;
            }
            self.send(seq, index, out);
            self.current.as_mut().expect("checked").replicas[index].unsent = seq + 1;
        }
    }

    fn resend_due(&mut self, index: usize, now: Instant, out: &mut Vec<Action>) {
        let replica = &self.current.as_ref().expect("checked").replicas[index];
        if replica.failed {
            return;
        }
        for seq in replica.next..replica.unsent {
            let progress = self.slots[(seq - self.first) as usize].copies[index];
            if let SendState::RetryAt(until) = progress.state {
                if until <= now {
                    self.send(seq, index, out);
                } else {
                    self.resend_at = Some(self.resend_at.map_or(until, |at| at.min(until)));
                }
            }
        }
    }

    /// Sends append `seq` to a replica; each sending but the first counts as another attempt.
    pub(super) fn send(&mut self, seq: u64, index: usize, out: &mut Vec<Action>) {
        let current = self.current.as_ref().expect("only appends of the current chunk are sent");
        let slot = &mut self.slots[(seq - self.first) as usize];
        let progress = &mut slot.copies[index];
        if progress.state != SendState::Unsent {
            progress.attempt = progress.attempt.saturating_add(1);
        }
        progress.state = SendState::InFlight;
        let committed = current.acked;
        let id = SendId {
            chunk: current.id(),
            replica: index as u8,
            seq,
            attempt: progress.attempt,
            committed,
            known: current.replicas[index].durable,
        };
        let request = AppendRequest {
            at: current.replica_ref(index),
            epoch: self.epoch,
            base: current.base,
            offset: slot.offset,
            len: slot.len,
            committed,
            create: slot.offset == 0,
            purpose: slot.purpose,
        };
        let to = current.replicas[index].place.addr;
        out.push(Action::Send { id, to, token: current.place.token, request });
    }

    fn on_sent(
        &mut self,
        now: Instant,
        id: SendId,
        result: Result<u32, SendError>,
        out: &mut Vec<Action>,
    ) {
        let Some(current) = &mut self.current else { return };
        let index = usize::from(id.replica);
        if current.id() != id.chunk || current.replicas[index].failed {
            return; // The chunk has ended for this writer: nothing in it is acknowledged now.
        }
        match result {
            Ok(len) if len > current.end => {
                let text = format!("a replica of {} has {len} bytes of {}", id.chunk, current.end);
                self.fail_replica(now, index, Some(ReplicaFault::Corrupt), text, out);
            }
            Ok(len) => self.on_durable(now, id, len),
            Err(SendError::Data(error)) => self.on_refused(now, id, &error, out),
            Err(SendError::Unreachable) => {
                current.replicas[index].unreachable_since.get_or_insert(now);
                self.wait(now, id, "no connection");
            }
            Err(SendError::Silent) => self.wait(now, id, "no answer"),
        }
    }

    fn on_durable(&mut self, now: Instant, id: SendId, len: u32) {
        let index = usize::from(id.replica);
        let replica = &mut self.current.as_mut().expect("checked").replicas[index];
        replica.notified = replica.notified.max(id.committed);
        self.advance_replica(now, index, len);
        // An answer that does not cover its own append is no success: ask again.
        let replica = &self.current.as_ref().expect("checked").replicas[index];
        if id.seq >= replica.next {
            self.wait(now, id, "an answer short of the append");
        }
    }

    /// Notes that `len` bytes are durable at a replica.
    fn advance_replica(&mut self, now: Instant, index: usize, len: u32) {
        let replica = &mut self.current.as_mut().expect("checked").replicas[index];
        replica.heard_at = now;
        replica.unreachable_since = None;
        if len <= replica.durable {
            return;
        }
        replica.durable = len;
        while replica.next < replica.unsent {
            let slot = &mut self.slots[(replica.next - self.first) as usize];
            if slot.end() > len {
                break;
            }
            if slot.copies[index].state == SendState::BlockedByGap {
                replica.gapped -= 1;
            }
            slot.copies[index].state = SendState::Durable;
            replica.next += 1;
            replica.progress_at = now;
        }
        if replica.gapped > 0 {
            replica.gapped = 0;
            for seq in replica.next..replica.unsent {
                let progress = &mut self.slots[(seq - self.first) as usize].copies[index];
                if progress.state == SendState::BlockedByGap {
                    progress.state = SendState::RetryAt(now);
                    self.resend_at = Some(now);
                }
            }
        }
    }

    /// Sends an append again after a pause, unless a later sending is under way already.
    fn wait(&mut self, now: Instant, id: SendId, fault: &str) {
        if id.seq < self.first {
            return;
        }
        let index = usize::from(id.replica);
        let progress = &mut self.slots[(id.seq - self.first) as usize].copies[index];
        if progress.state != SendState::InFlight || progress.attempt != id.attempt {
            return;
        }
        let until = now + self.config.retry_pause * (1 << id.attempt.min(6));
        progress.state = SendState::RetryAt(until);
        self.resend_at = Some(self.resend_at.map_or(until, |at| at.min(until)));
        self.note_fault(index, fault);
    }

    fn note_fault(&mut self, index: usize, fault: &str) {
        let current = self.current.as_ref().expect("checked");
        self.fault.clear();
        let place = &current.replicas[index].place;
        self.fault.push_str(&format!("{} at {}: {fault}", place.server, place.addr));
    }

    fn on_refused(&mut self, now: Instant, id: SendId, error: &DataError, out: &mut Vec<Action>) {
        let index = usize::from(id.replica);
        let replica = &mut self.current.as_mut().expect("checked").replicas[index];
        replica.heard_at = now;
        replica.unreachable_since = None;
        let fault = match error {
            // Perhaps by our own close: its answer decides.
            DataError::Fenced { .. } | DataError::Sealed { .. } if self.is_closing_now() => return,
            DataError::Fenced { .. } | DataError::Sealed { .. } if self.ended.is_none() => {
                return self.fail(WriterError::Fenced, out);
            }
            // A spare that the stream service dropped, or a newer writer: its answer decides.
            DataError::Fenced { .. } | DataError::Sealed { .. } => None,
            DataError::Gap { len } => return self.on_gap(now, id, *len, out),
            // The creation that goes before has not arrived yet.
            DataError::NotFound if id.known == 0 && !self.is_first(id) => {
                return self.on_gap(now, id, 0, out);
            }
            DataError::Busy | DataError::Unknown => {
                return self.wait(now, id, &error.to_string());
            }
            DataError::BadSectors { .. } if id.attempt < REFUSALS_MAX => {
                return self.wait(now, id, &error.to_string());
            }
            DataError::Denied => {
                self.tokens_stale = true;
                None
            }
            DataError::NotFound | DataError::WrongDisk => Some(ReplicaFault::Missing),
            DataError::DiskFailed => Some(ReplicaFault::DiskFailed),
            DataError::Corrupt { .. } | DataError::Conflict => Some(ReplicaFault::Corrupt),
            DataError::Full | DataError::BadSectors { .. } | DataError::Invalid => None,
        };
        let avoid = !matches!(error.kind(), base::Kind::Refresh | base::Kind::Fenced);
        self.fail_replica_with(now, index, fault, error.to_string(), avoid, out);
    }

    fn is_first(&self, id: SendId) -> bool {
        id.seq >= self.first && self.slots[(id.seq - self.first) as usize].offset == 0
    }

    fn on_gap(&mut self, now: Instant, id: SendId, len: u32, out: &mut Vec<Action>) {
        let index = usize::from(id.replica);
        let current = self.current.as_ref().expect("checked");
        if len > current.end {
            let text = format!("a replica of {} has {len} bytes of {}", id.chunk, current.end);
            return self.fail_replica(now, index, Some(ReplicaFault::Corrupt), text, out);
        }
        if len < id.known {
            // It had acknowledged more before this was sent.
            let text = format!("has lost bytes {len} to {} of {}", id.known, id.chunk);
            return self.fail_replica(now, index, Some(ReplicaFault::Missing), text, out);
        }
        self.advance_replica(now, index, len);
        let replica = &mut self.current.as_mut().expect("checked").replicas[index];
        if id.seq < replica.next {
            return;
        }
        let lowest = id.seq == replica.next;
        let progress = &mut self.slots[(id.seq - self.first) as usize].copies[index];
        if progress.state != SendState::InFlight || progress.attempt != id.attempt {
            return;
        }
        if lowest {
            // The answer was overtaken by one that says that all below is there.
            progress.state = SendState::RetryAt(now);
            self.resend_at = Some(now);
        } else {
            progress.state = SendState::BlockedByGap;
            replica.gapped += 1;
        }
    }

    pub(super) fn fail_replica(
        &mut self,
        now: Instant,
        index: usize,
        fault: Option<ReplicaFault>,
        text: String,
        out: &mut Vec<Action>,
    ) {
        self.fail_replica_with(now, index, fault, text, true, out);
    }

    /// A replica does not serve: the chunk ends here (C15).
    fn fail_replica_with(
        &mut self,
        now: Instant,
        index: usize,
        fault: Option<ReplicaFault>,
        text: String,
        avoid: bool,
        out: &mut Vec<Action>,
    ) {
        self.note_fault(index, &text);
        let current = self.current.as_mut().expect("checked");
        current.replicas[index].failed = true;
        let (chunk, server) = (current.id(), current.replicas[index].place.server);
        if let Some(fault) = fault {
            out.push(Action::Report { chunk, server, fault });
        }
        if avoid {
            self.avoid_server(server, now);
        }
        if current_is_empty(self.current.as_ref()) {
            self.failures += 1;
            let pause = Duration::from_millis(5) * (1 << self.failures.min(7)).min(100);
            self.open_after = if self.failures > 1 { now + pause } else { now };
        } else {
            self.failures = 0;
            self.open_after = now;
        }
        self.end_current(out);
    }

    fn avoid_server(&mut self, server: ServerId, now: Instant) {
        self.avoid.retain(|&(id, until)| id != server && until > now);
        if self.avoid.len() == AVOID_MAX {
            self.avoid.pop_front();
        }
        self.avoid.push_back((server, now + self.config.avoid_for));
    }

    /// Ends the current chunk at exactly its acknowledged length. The other appends are to be laid
    /// out again.
    fn end_current(&mut self, out: &mut Vec<Action>) {
        let current = self.current.take().expect("a chunk is open");
        if self.ended.is_none() {
            let (chunk, base, len) = (current.id(), current.base, current.acked);
            self.ended = Some(EndedChunk { chunk, base, len });
        } else {
            // Either the stream service has the chunk before it, or its end is reported next.
            // end.
            assert_eq!(current.acked, 0, "acknowledged before the switch");
        }
        self.release_below(self.acked, out);
        self.placed = self.acked;
        self.resend_at = None;
        for slot in &mut self.slots {
            slot.offset = 0;
            slot.copies.fill(Progress { state: SendState::Unsent, attempt: 0 });
        }
    }

    /// The stream service has dropped the chunk that is written: it goes on in the next.
    pub(super) fn abandon_current(&mut self, out: &mut Vec<Action>) {
        assert!(self.ended.is_some(), "only before the switch is known");
        self.end_current(out);
    }

    /// The acknowledgement rule: all below, `acks` replicas, and the chunk known to be current.
    fn acknowledge(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.ended.is_some() {
            return;
        }
        let Some(current) = &mut self.current else { return };
        let agreed = current.agreed();
        let before = self.acked;
        while self.acked < self.placed {
            let slot = &self.slots[(self.acked - self.first) as usize];
            if slot.end() > agreed {
                break;
            }
            current.acked = slot.end();
            self.acked += 1;
        }
        if self.acked > before {
            self.progress_at = now;
            self.failures = 0;
            let len = current.base + u64::from(current.acked);
            out.push(Action::Acked { below: self.acked, len });
        }
    }

    /// Lets appends go that every living replica has.
    fn release(&mut self, out: &mut Vec<Action>) {
        let Some(current) = &self.current else { return };
        let held = current.alive().map(|replica| replica.next).min().unwrap_or(self.acked);
        let below = held.min(self.acked);
        self.release_below(below, out);
    }

    fn release_below(&mut self, below: u64, out: &mut Vec<Action>) {
        if below <= self.first {
            return;
        }
        self.slots.drain(..(below - self.first) as usize);
        self.first = below;
        out.push(Action::Released { below });
    }

    /// Ends the writer.
    pub(super) fn fail(&mut self, error: WriterError, out: &mut Vec<Action>) {
        self.life = Life::Over;
        out.push(Action::Failed(error));
    }

    /// The invariants.
    fn check(&self) {
        let end = self.next_seq();
        assert!(self.first <= self.acked && self.acked <= self.placed && self.placed <= end);
        let Some(current) = &self.current else {
            assert!(self.ended.is_some(), "a chunk is current at the stream service");
            return assert_eq!(self.placed, self.acked, "placed in no chunk");
        };
        assert!(current.acked <= current.end && current.id() <= self.youngest);
        assert!(self.ended.is_none() || current.acked == 0, "acknowledged before the switch");
        for replica in current.alive() {
            assert!(replica.durable <= current.end && replica.notified <= current.acked);
            assert!(replica.next <= replica.unsent && replica.unsent <= self.placed);
            assert!(self.first <= replica.next);
        }
    }
}

fn current_is_empty(current: Option<&OpenChunk>) -> bool {
    current.is_none_or(|current| current.acked == 0)
}

/// A chunk that can be written as it is granted.
pub(super) fn check_place(place: &ChunkPlace, epoch: Epoch) -> Result<(), WriterError> {
    let replicas = place.replicas.len();
    let acks = usize::from(place.acks);
    if place.epoch != epoch || acks == 0 || acks > replicas {
        let text = format!(
            "{} granted with epoch {} for {epoch}, {replicas} replicas, {acks} acknowledgements",
            place.chunk, place.epoch
        );
        return Err(WriterError::Protocol(text));
    }
    if replicas > base::limits::REPLICAS_MAX || place.sealed.is_some() {
        return Err(WriterError::Protocol(format!("{} can not be written", place.chunk)));
    }
    Ok(())
}
