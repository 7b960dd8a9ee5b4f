//! The state, the window of appends, and what replicas answer.

use std::collections::VecDeque;
use std::rc::Rc;

use base::limits::APPEND_DATA_MAX;
use base::{ChunkId, Epoch, ServerId};
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaFault, WriterGrant};
use wire::data::{AppendRequest, DataError, Purpose};

use super::budget::ChaseBudget;
use super::chunk::{Debt, EndedChunk, OpenChunk, Replica, SendState, Slot, check_place};
use super::event::{Action, Event, SendError, SendId, WriterConfig, WriterError};
use super::form::Form;
use super::layout::{Laid, Layout};
use super::ops::OpState;
use super::wait::CopyWait;
use crate::planted::{Planted, planted};

/// Refusals of one append's bytes by one replica after which it is given up: a damaged frame
/// happens once.
const REFUSALS_MAX: u16 = 3;
/// Rights that were given this long ago have not ended by any clock but a wrong one: well below their life, 60 s.
const RIGHTS_FRESH: Duration = Duration::from_secs(10);

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
    /// Ended chunks of which followed replicas lack bytes, the oldest first.
    pub(super) debts: VecDeque<Debt>,
    /// Bytes of acknowledged appends that are not released.
    pub(super) owed: u64,
    /// The part of `owed` that is taken of `chase`.
    pub(super) charged: u64,
    /// What the writers of this process may owe together.
    pub(super) chase: Rc<ChaseBudget>,
    /// Thin chunks left in a row, each soon after the one before.
    pub(super) thin_ends: u32,
    /// When the last thin chunk was left.
    pub(super) thin_ended: Option<Instant>,
    /// No request for spares that let a thin chunk end before.
    pub(super) thin_after: Instant,
    /// When the caller asked to close, all being acknowledged.
    pub(super) closing_since: Option<Instant>,
    /// Chunks recorded to follow, in order.
    pub(super) spares: VecDeque<ChunkPlace>,
    /// What the youngest chunk granted asks for.
    pub(super) layout: Layout,
    /// Whether chunks are wanted in the file's code or in copies.
    pub(super) form: Form,
    /// The youngest chunk that was ever written; spares up to it have been passed over.
    pub(super) youngest: ChunkId,
    /// The spares' tokens have expired.
    pub(super) tokens_stale: bool,
    /// When the stream service gave rights last.
    pub(super) rights_at: Instant,
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
    /// Servers that the client lists (C17): not wanted for new chunks.
    pub(super) listed: Vec<ServerId>,
    /// Servers that masters do not reach (C28).
    pub(super) pushed: Vec<ServerId>,
    /// How long an append waits for copies.
    pub(super) copy_wait: CopyWait,
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
    /// When the writer left a chunk for one with all copies, in which no replica has failed yet.
    pub(super) whole_since: Option<Instant>,
    /// When the rights to its chunks are to be renewed, if that is known.
    pub(super) renew_at: Option<Instant>,
    /// No request for renewal before.
    pub(super) renew_after: Instant,
    /// Earliest moment at which a refused append is to be sent again.
    pub(super) resend_at: Option<Instant>,
    /// When an append was last acknowledged, or waiting began, or the writer went on in another chunk.
    pub(super) progress_at: Instant,
    /// When an append was last acknowledged, or waiting began.
    pub(super) acked_at: Instant,
    /// The last failure met, for operators.
    pub(super) fault: String,
}

impl Writer {
    /// A writer as the stream service granted it.
    pub fn new(
        config: WriterConfig,
        chase: Rc<ChaseBudget>,
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
        let mut form = Form::new(&config, now);
        form.learn(&current);
        let copy_wait = CopyWait::new(config.replica_timeout, now);
        let mut writer = Writer {
            config,
            purpose: Purpose::Data,
            epoch: grant.epoch,
            life: Life::Open,
            ended: None,
            layout: Layout::of(&current),
            form,
            youngest: current.chunk,
            current: Some(OpenChunk::new(current, base, 0, now)),
            debts: VecDeque::new(),
            owed: 0,
            charged: 0,
            chase,
            thin_ends: 0,
            thin_ended: None,
            thin_after: now,
            closing_since: None,
            spares: VecDeque::new(),
            tokens_stale: false,
            rights_at: now,
            slots: VecDeque::new(),
            first: 0,
            acked: 0,
            placed: 0,
            op: None,
            avoid: VecDeque::new(),
            listed: Vec::new(),
            pushed: Vec::new(),
            copy_wait,
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
            acked_at: now,
            fault: String::new(),
        };
        writer.adopt_spares(now, grant.spares, &[], &mut Vec::new())?;
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

    /// Purpose of the next append.
    pub fn purpose(&self) -> Purpose {
        self.purpose
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
            Event::Append { len, bytes, laid } => self.on_append(now, (len, bytes, laid)),
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

    fn on_append(&mut self, now: Instant, (len, bytes, laid): (u32, u32, Laid)) {
        assert!(self.life == Life::Open, "append to a closing writer");
        assert!((1..=APPEND_DATA_MAX as u32).contains(&len), "append of {len} bytes");
        if self.acked == self.next_seq() {
            (self.progress_at, self.acked_at) = (now, now);
        }
        self.slots.push_back(Slot::new((len, bytes, laid), self.purpose, now));
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
            self.bound_chase(now, out);
            self.end_thin(now);
            let full = self.current.as_ref().is_some_and(|current| current.full);
            if !(full && self.acked == self.placed) {
                break;
            }
            self.end_current(now, out);
        }
        self.notify_committed(now, out);
        self.next_op(now, out);
    }

    /// Starts the next chunk, when the last has ended and a spare is there: the first spare without
    /// a server that is avoided, else the first that enough others have. Those before it are passed
    /// over: the stream service drops them when the next one follows.
    fn open_next(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.current.is_some() || now < self.open_after || !self.may_open() {
            return;
        }
        let followed = |place: &ChunkPlace| {
            place.replicas.iter().filter(|it| !self.avoids(it.server, now)).count()
        };
        let is_whole = |place: &&ChunkPlace| followed(place) == place.replicas.len();
        let listed = |place: &ChunkPlace| place.replicas.iter().any(|it| self.lists(it.server));
        let mut whole = self.spares.iter().enumerate().filter(|(_, place)| is_whole(place));
        let whole = whole.clone().find(|(_, it)| !listed(it)).or_else(|| whole.next());
        let whole = whole.map(|(at, _)| at);
        let enough = || self.spares.iter().position(|it| followed(it) >= usize::from(it.acks));
        let Some(at) = whole.or_else(enough) else { return self.spares.clear() };
        let place = self.spares.drain(..=at).next_back().expect("a spare is there");
        let base = self.ended.as_ref().expect("the chunk before it has ended").end();
        self.youngest = place.chunk;
        let mut chunk = OpenChunk::new(place, base, self.placed, now);
        for replica in &mut chunk.replicas {
            replica.left = self.avoids(replica.place.server, now);
        }
        out.reserve(self.slots.len() * (1 + chunk.replicas.len()));
        self.current = Some(chunk);
        self.note_thin(now);
    }

    /// True when a spare is there that may be opened.
    pub(super) fn may_open(&self) -> bool {
        !self.spares.is_empty() && !self.tokens_stale
    }

    /// The chunk that is written, or one that has ended and is owed bytes.
    pub(super) fn chunk(&self, id: ChunkId) -> Option<&OpenChunk> {
        let debts = self.debts.iter().map(|debt| &debt.chunk);
        self.current.iter().chain(debts).find(|chunk| chunk.id() == id)
    }

    pub(super) fn chunk_mut(&mut self, id: ChunkId) -> Option<&mut OpenChunk> {
        let debts = self.debts.iter_mut().map(|debt| &mut debt.chunk);
        self.current.iter_mut().chain(debts).find(|chunk| chunk.id() == id)
    }

    /// True while calls to replicas of this chunk can be of use.
    pub fn is_owed_or_written(&self, id: ChunkId) -> bool {
        self.chunk(id).is_some()
    }

    /// The replica of a chunk that is known to be there.
    fn replica(&mut self, chunk: ChunkId, index: usize) -> &mut Replica {
        &mut self.chunk_mut(chunk).expect("the chunk is written or owed bytes").replicas[index]
    }

    /// The append, while it has its place in this chunk and some replica may need it.
    fn slot_in(&mut self, chunk: ChunkId, seq: u64) -> Option<&mut Slot> {
        let below = match &self.current {
            Some(current) if current.id() == chunk => self.placed,
            _ => self.debts.iter().find(|debt| debt.chunk.id() == chunk)?.below,
        };
        let index = seq.checked_sub(self.first)? as usize;
        self.slots.get_mut(index).filter(|slot| seq < below && !slot.released)
    }

    /// Sends what was never sent and what is due to be sent again, in order.
    fn transmit(&mut self, now: Instant, out: &mut Vec<Action>) {
        let count = self.current.as_ref().map_or(0, |current| current.replicas.len());
        for index in 0..count {
            self.transmit_new(index, out);
        }
        if self.resend_at.is_none_or(|at| at > now) {
            return;
        }
        self.resend_at = None;
        let debts = self.debts.iter().map(|debt| debt.chunk.id());
        let chunks: Vec<_> = self.current.iter().map(OpenChunk::id).chain(debts).collect();
        for chunk in chunks {
            for index in 0..self.chunk(chunk).map_or(0, |chunk| chunk.replicas.len()) {
                self.resend_due(chunk, index, now, out);
            }
        }
    }

    fn transmit_new(&mut self, index: usize, out: &mut Vec<Action>) {
        loop {
            let current = self.current.as_ref().expect("checked");
            let (chunk, replica) = (current.id(), &current.replicas[index]);
            let seq = replica.unsent;
            if replica.left || seq >= self.placed {
                return;
            }
            self.send(chunk, seq, index, out);
            self.replica(chunk, index).unsent = seq + 1;
        }
    }

    fn resend_due(&mut self, chunk: ChunkId, index: usize, now: Instant, out: &mut Vec<Action>) {
        let replica = self.replica(chunk, index);
        if replica.left {
            return;
        }
        for seq in replica.next..replica.unsent {
            let slot = &self.slots[(seq - self.first) as usize];
            if let SendState::RetryAt(until) = slot.copies[index].state {
                if until <= now {
                    self.send(chunk, seq, index, out);
                } else {
                    self.resend_at = Some(self.resend_at.map_or(until, |at| at.min(until)));
                }
            }
        }
    }

    /// Sends append `seq` to a replica; each sending but the first counts as another attempt.
    pub(super) fn send(&mut self, chunk: ChunkId, seq: u64, index: usize, out: &mut Vec<Action>) {
        let debts = self.debts.iter().map(|debt| &debt.chunk);
        let mut chunks = self.current.iter().chain(debts);
        let current = chunks.find(|it| it.id() == chunk).expect("its replicas are followed");
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
        let (to, fragment) = (current.replicas[index].place.addr, current.fragment(index));
        out.push(Action::Send { id, to, token: current.place.token, fragment, request });
    }

    fn on_sent(
        &mut self,
        now: Instant,
        id: SendId,
        result: Result<u32, SendError>,
        out: &mut Vec<Action>,
    ) {
        let index = usize::from(id.replica);
        let Some(chunk) = self.chunk_mut(id.chunk) else { return };
        let replica = &mut chunk.replicas[index];
        if replica.left {
            // Nothing that this replica has counts any more.
            if let (Ok(len), true) = (result, planted(Planted::LeftCounts)) {
                replica.durable = replica.durable.max(len.min(chunk.end));
            }
            return;
        }
        match result {
            Ok(len) if len > chunk.end => {
                let text = format!("a replica of {} has {len} bytes of {}", id.chunk, chunk.end);
                let failure = Failure::of(ReplicaFault::Corrupt, text);
                self.fail_replica(now, id.chunk, index, failure, out);
            }
            Ok(len) => self.on_durable(now, id, len),
            Err(SendError::Data(error)) => self.on_refused(now, id, &error, out),
            Err(SendError::Unreachable) => {
                chunk.replicas[index].unreachable_since.get_or_insert(now);
                self.wait(now, id, "no connection");
            }
            Err(SendError::Silent) => self.wait(now, id, "no answer"),
        }
    }

    fn on_durable(&mut self, now: Instant, id: SendId, len: u32) {
        let index = usize::from(id.replica);
        let replica = self.replica(id.chunk, index);
        replica.notified = replica.notified.max(id.committed);
        self.advance_replica(now, id.chunk, index, len);
        // An answer that does not cover its own append is no success: ask again.
        if id.seq >= self.replica(id.chunk, index).next {
            self.wait(now, id, "an answer short of the append");
        }
    }

    /// Notes that `len` bytes are durable at a replica.
    fn advance_replica(&mut self, now: Instant, chunk: ChunkId, index: usize, len: u32) {
        let debts = self.debts.iter_mut().map(|debt| &mut debt.chunk);
        let mut chunks = self.current.iter_mut().chain(debts);
        let chunk = chunks.find(|it| it.id() == chunk).expect("the caller has it");
        let replica = &mut chunk.replicas[index];
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
        let index = usize::from(id.replica);
        let until = now + self.config.retry_pause * (1 << id.attempt.min(6));
        let Some(slot) = self.slot_in(id.chunk, id.seq) else { return };
        let progress = &mut slot.copies[index];
        if progress.state != SendState::InFlight || progress.attempt != id.attempt {
            return;
        }
        progress.state = SendState::RetryAt(until);
        self.resend_at = Some(self.resend_at.map_or(until, |at| at.min(until)));
        self.note_fault(id.chunk, index, fault);
    }

    pub(super) fn note_fault(&mut self, chunk: ChunkId, index: usize, fault: &str) {
        let place = self.replica(chunk, index).place;
        self.fault = format!("{} at {}: {fault}", place.server, place.addr);
    }

    fn on_refused(&mut self, now: Instant, id: SendId, error: &DataError, out: &mut Vec<Action>) {
        let index = usize::from(id.replica);
        let replica = self.replica(id.chunk, index);
        replica.heard_at = now;
        replica.unreachable_since = None;
        let is_owed = self.current.as_ref().is_none_or(|current| current.id() != id.chunk);
        let (fault, verdict) = match error {
            // Masters have taken over an ended chunk: that says nothing of the writer.
            DataError::Fenced { .. } | DataError::Sealed { .. }
                if is_owed && !planted(Planted::DebtEndsWriter) =>
            {
                return self.leave(id.chunk, index, out);
            }
            // Perhaps by our own close: its answer decides.
            DataError::Fenced { .. } | DataError::Sealed { .. } if self.is_closing_now() => return,
            DataError::Fenced { .. } | DataError::Sealed { .. } if self.ended.is_none() => {
                return self.fail(WriterError::Fenced, out);
            }
            // A spare that the stream service dropped, or a newer writer: its answer decides.
            DataError::Fenced { .. } | DataError::Sealed { .. } => (None, Verdict::Rights),
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
            // Others take rights that were given just now: by this server's clock they have ended.
            DataError::Denied if now - self.rights_at < RIGHTS_FRESH => {
                let text = format!("refuses fresh rights: {error}; is its clock ahead?");
                let failure = Failure { fault: None, text, avoid: true, verdict: Verdict::Lost };
                return self.fail_replica(now, id.chunk, index, failure, out);
            }
            DataError::Denied => {
                self.tokens_stale |= !is_owed;
                (None, Verdict::Rights)
            }
            DataError::NotFound | DataError::WrongDisk => {
                (Some(ReplicaFault::Missing), Verdict::Lost)
            }
            DataError::DiskFailed => (Some(ReplicaFault::DiskFailed), Verdict::Lost),
            DataError::Corrupt { .. } | DataError::Conflict => {
                (Some(ReplicaFault::Corrupt), Verdict::Lost)
            }
            DataError::Full | DataError::BadSectors { .. } | DataError::Invalid => {
                (None, Verdict::Lost)
            }
        };
        let avoid = !matches!(error.kind(), base::Kind::Refresh | base::Kind::Fenced);
        let failure = Failure { fault, text: error.to_string(), avoid, verdict };
        self.fail_replica(now, id.chunk, index, failure, out);
    }

    fn is_first(&self, id: SendId) -> bool {
        let chunk = self.chunk(id.chunk).expect("the caller has it");
        id.seq == chunk.from
    }

    fn on_gap(&mut self, now: Instant, id: SendId, len: u32, out: &mut Vec<Action>) {
        let index = usize::from(id.replica);
        let end = self.chunk(id.chunk).expect("the caller has it").end;
        if len > end {
            let text = format!("a replica of {} has {len} bytes of {end}", id.chunk);
            let failure = Failure::of(ReplicaFault::Corrupt, text);
            return self.fail_replica(now, id.chunk, index, failure, out);
        }
        if len < id.known {
            // It had acknowledged more before this was sent.
            let text = format!("has lost bytes {len} to {} of {}", id.known, id.chunk);
            let failure = Failure::of(ReplicaFault::Missing, text);
            return self.fail_replica(now, id.chunk, index, failure, out);
        }
        self.advance_replica(now, id.chunk, index, len);
        let next = self.replica(id.chunk, index).next;
        if id.seq < next {
            return;
        }
        let Some(slot) = self.slot_in(id.chunk, id.seq) else { return };
        let progress = &mut slot.copies[index];
        if progress.state != SendState::InFlight || progress.attempt != id.attempt {
            return;
        }
        if id.seq == next {
            // The answer was overtaken by one that says that all below is there.
            progress.state = SendState::RetryAt(now);
            self.resend_at = Some(now);
        } else {
            progress.state = SendState::BlockedByGap;
            self.replica(id.chunk, index).gapped += 1;
        }
    }

    /// A replica does not serve. The writer leaves it while enough others stay followed; else the
    /// chunk ends here (C15).
    pub(super) fn fail_replica(
        &mut self,
        now: Instant,
        chunk: ChunkId,
        index: usize,
        failure: Failure,
        out: &mut Vec<Action>,
    ) {
        self.note_fault(chunk, index, &failure.text);
        let server = self.replica(chunk, index).place.server;
        if let Some(fault) = failure.fault {
            out.push(Action::Report { chunk, server, fault });
            if failure.verdict == Verdict::Lost {
                self.note_lost(server);
            }
        }
        if failure.avoid {
            self.avoid_server(server, now);
        }
        let current = self.current.as_ref().filter(|current| current.id() == chunk);
        let Some(current) = current else { return self.leave(chunk, index, out) };
        let leaves = failure.verdict != Verdict::Rights && current.can_leave(index);
        self.note_whole_failed(now);
        if leaves {
            self.leave(chunk, index, out);
            return self.note_thin(now);
        }
        if failure.verdict != Verdict::Late {
            self.leave(chunk, index, out);
        }
        if current_is_empty(self.current.as_ref()) {
            self.failures += 1;
            let pause = Duration::from_millis(5) * (1 << self.failures.min(7)).min(100);
            self.open_after = if self.failures > 1 { now + pause } else { now };
        } else {
            self.failures = 0;
            self.open_after = now;
        }
        self.end_current(now, out);
    }

    /// Ends the current chunk at exactly its acknowledged length. What followed replicas lack of it
    /// stays owed; the other appends are to be laid out again.
    pub(super) fn end_current(&mut self, now: Instant, out: &mut Vec<Action>) {
        let current = self.current.take().expect("a chunk is open");
        if self.ended.is_none() {
            let (chunk, base) = (current.id(), current.base);
            let len = if planted(Planted::EndAbovePlaced) { current.end } else { current.acked };
            self.ended = Some(EndedChunk { chunk, base, len, left: current.left() });
        } else {
            // Either the stream service has the chunk before it, or its end is reported next.
            assert_eq!(current.acked, 0, "acknowledged before the switch");
        }
        self.placed = self.acked;
        for slot in self.slots.iter_mut().skip((self.acked - self.first) as usize) {
            slot.offset = 0;
            slot.copies.reset();
        }
        self.owe(now, current, out);
    }

    /// The stream service has dropped the chunk that is written: it goes on in the next.
    pub(super) fn abandon_current(&mut self, now: Instant, out: &mut Vec<Action>) {
        assert!(self.ended.is_some(), "only before the switch is known");
        self.end_current(now, out);
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
            let slot = &mut self.slots[(self.acked - self.first) as usize];
            if slot.end() > agreed {
                break;
            }
            if let Some(keep) = current.lacking(slot) {
                slot.keep(keep.count_ones(), current.replicas.len());
                out.push(Action::Trimmed { seq: self.acked, keep });
            }
            current.acked = slot.end();
            self.acked += 1;
            self.owed += slot.bytes();
        }
        if self.acked > before {
            (self.progress_at, self.acked_at) = (now, now);
            self.failures = 0;
            self.copy_wait.note_progress();
            let len = current.base + u64::from(current.acked);
            out.push(Action::Acked { below: self.acked, len });
        }
    }

    /// Ends the writer.
    pub(super) fn fail(&mut self, error: WriterError, out: &mut Vec<Action>) {
        self.life = Life::Over;
        self.forget_chase();
        out.push(Action::Failed(error));
    }

    /// The invariants.
    fn check(&self) {
        let end = self.next_seq();
        assert!(self.first <= self.acked && self.acked <= self.placed && self.placed <= end);
        self.check_chase();
        let Some(current) = &self.current else {
            assert!(self.ended.is_some(), "a chunk is current at the stream service");
            return assert_eq!(self.placed, self.acked, "placed in no chunk");
        };
        assert!(current.acked <= current.end && current.id() <= self.youngest);
        assert!(self.ended.is_none() || current.acked == 0, "acknowledged before the switch");
        for replica in current.followed() {
            assert!(replica.durable <= current.end && replica.notified <= current.acked);
            assert!(replica.next <= replica.unsent && replica.unsent <= self.placed);
            assert!(current.released <= replica.next);
        }
    }
}

/// A replica that does not serve.
pub(super) struct Failure {
    /// What masters are to hear of it.
    pub(super) fault: Option<ReplicaFault>,
    /// For operators.
    pub(super) text: String,
    /// Its server is not wanted for a while.
    pub(super) avoid: bool,
    /// Consequence for the replica.
    pub(super) verdict: Verdict,
}

/// Consequence of a failure for the replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It does not answer: it may have all that was sent, or get it yet.
    Late,
    /// It will not have the bytes.
    Lost,
    /// None: the writer's rights are refused, and no other replica will take them.
    Rights,
}

impl Failure {
    pub(super) fn of(fault: ReplicaFault, text: String) -> Failure {
        let verdict = match fault {
            ReplicaFault::Unreachable => Verdict::Late,
            _ => Verdict::Lost,
        };
        Failure { fault: Some(fault), text, avoid: true, verdict }
    }
}

fn current_is_empty(current: Option<&OpenChunk>) -> bool {
    current.is_none_or(|current| current.acked == 0)
}
