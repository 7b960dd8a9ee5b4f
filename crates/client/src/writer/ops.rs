//! Operations of the writer at the stream service: one at a time.

use base::{ChunkId, ServerId};
use runtime::Instant;
use wire::control::{ChunkPlace, WriterGrant};

use crate::limits::AVOID_MAX;

use super::chunk::{EndedChunk, OpenChunk, check_place};
use super::core::{Life, Writer};
use super::event::{Action, OpDone, OpError, StreamOp, WriterError};
use super::layout::Layout;

/// The operation under way.
#[derive(Clone, Debug)]
pub(super) struct OpState {
    kind: OpKind,
    /// Servers it named as unwanted.
    avoid: Vec<ServerId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OpKind {
    /// To the chunk, with its base.
    Advance(ChunkId, u64),
    /// `true`: nothing can be written before it ends.
    Extend(bool),
    /// For a chunk with all copies, in place of one that is short of some.
    Whole,
    /// For spares without the servers that a thin chunk is written without.
    Thin,
    /// For spares without the servers that a blocked append waits for.
    Elsewhere,
    /// For a chunk in the form that is wanted: copies or the code.
    Form,
    /// Rights, and nothing else.
    Renew,
    Close,
}

impl Writer {
    /// Asks for the operation that is due, if one is.
    pub(super) fn next_op(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.op.is_some() {
            return;
        }
        if let Life::Closing { finish } = self.life
            && self.acked == self.next_seq()
        {
            let since = *self.closing_since.get_or_insert(now);
            if self.owed == 0 || now >= since + self.config.close_chase {
                return self.ask_close(finish, out);
            }
        }
        let Some(ended) = self.ended.clone() else {
            return self.ask_ahead(now, out);
        };
        let avoid = self.avoided(now);
        let spares = self.config.spares.max(1);
        let Some(current) = &self.current else {
            if self.needs_spares() && now >= self.need_after {
                self.ask_spares(now, true, spares, avoid, out);
            }
            return;
        };
        let next = current.id();
        let kind = OpKind::Advance(next, current.base);
        self.op = Some(OpState { kind, avoid: avoid.clone() });
        let EndedChunk { chunk: sealed, len, left, .. } = ended;
        let in_copies = self.form.in_copies;
        out.push(Action::Op(StreamOp::Advance {
            sealed,
            len,
            next,
            avoid,
            spares,
            left,
            in_copies,
        }));
    }

    /// True when nothing can be written without an answer of the stream service.
    pub(super) fn needs_spares(&self) -> bool {
        self.current.is_none() && (self.spares.is_empty() || self.tokens_stale)
    }

    /// True when spares are few but nothing waits for them.
    pub(super) fn wants_spares(&self) -> bool {
        self.life == Life::Open
            && self.spares.len() < usize::from(self.config.spares)
            && self.current.as_ref().is_some_and(|current| current.end > 0)
    }

    /// True when the chunk that is written was opened with fewer copies than the file asks for, or
    /// is written without a server that is avoided.
    pub(super) fn is_short(&self) -> bool {
        let short = |current: &OpenChunk| current.followed().count() < self.wanted(&current.place);
        self.life == Life::Open && self.ended.is_none() && self.current.as_ref().is_some_and(short)
    }

    /// Copies that a chunk was to get: the file's policy may have been set since.
    fn wanted(&self, place: &ChunkPlace) -> usize {
        usize::from(if place.copies == 0 { self.config.copies } else { place.copies })
    }

    /// Asks for a chunk with all copies. Servers that failed are allowed: the stream service places
    /// chunks on servers whose heartbeats reach it.
    fn ask_whole(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.whole_after = now + self.whole_pause;
        self.ask_extend(OpKind::Whole, self.config.spares.max(1), Vec::new(), out);
    }

    /// Leaves a chunk that is short of copies for a spare that has them all, if there is one.
    /// Appends under way are acknowledged first.
    fn leave_short(&mut self, now: Instant) {
        let whole = |spare: &ChunkPlace| spare.replicas.len() >= self.wanted(spare);
        let whole = self.spares.iter().position(whole);
        let Some(at) = whole.filter(|_| self.is_short()) else { return };
        self.spares.drain(..at);
        let servers: Vec<_> = self.spares[0].replicas.iter().map(|it| it.server).collect();
        self.avoid.retain(|(server, _)| !servers.contains(server));
        self.current.as_mut().expect("it is short").full = true;
        self.whole_since = Some(now);
    }

    /// A replica of the current chunk has failed. When the writer moved to it for all copies, and soon
    /// before, the next such move waits longer.
    pub(super) fn note_whole_failed(&mut self, now: Instant) {
        let Some(since) = self.whole_since.take() else { return };
        self.whole_pause = match now.since(since) < self.whole_pause * 2 {
            true => (self.whole_pause * 2).min(self.config.whole_pause_max),
            false => self.config.whole_pause,
        };
        self.whole_after = self.whole_after.max(now + self.whole_pause);
    }

    fn ask_ahead(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.wants_spares_elsewhere(now) {
            self.note_asked_elsewhere(now);
            let avoid = self.avoided(now);
            return self.ask_extend(OpKind::Elsewhere, self.config.spares.max(1), avoid, out);
        }
        if self.thin_question().is_some_and(|at| now >= at) {
            return self.ask_thin(now, out);
        }
        if self.is_short() && now >= self.whole_after {
            return self.ask_whole(now, out);
        }
        if self.wants_form(now) {
            return self.ask_form(now, out);
        }
        if self.wants_spares() && now >= self.extend_after {
            let avoid = self.avoided(now);
            self.ask_spares(now, false, self.config.spares, avoid, out);
        } else if self.renewal_due().is_some_and(|at| now >= at) {
            self.renew_after = now + self.config.extend_pause;
            self.ask_extend(OpKind::Renew, 0, Vec::new(), out);
        }
    }

    /// True when the chunk that is written is not in the form that is wanted, and it is time to ask for
    /// one that is.
    fn wants_form(&self, now: Instant) -> bool {
        let open = self.life == Life::Open && self.ended.is_none();
        open && self.current.as_ref().is_some_and(|it| self.form.is_due(&it.place, now))
    }

    /// Leaves the chunk for a spare in the form that is wanted, if there is one. Appends under way are
    /// acknowledged first.
    fn leave_for_form(&mut self) {
        let Some(at) = self.spares.iter().position(|spare| self.form.has(spare)) else { return };
        let current = self.current.as_mut().filter(|current| !self.form.has(&current.place));
        let Some(current) = current.filter(|_| self.life == Life::Open) else { return };
        current.full = true;
        self.spares.drain(..at);
    }

    /// Asks for a chunk in the form that is wanted.
    fn ask_form(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.form.note_asked(now, self.config.extend_pause);
        self.ask_extend(OpKind::Form, self.config.spares.max(1), self.avoided(now), out);
    }

    /// Asks for spares without the servers that the chunk is written without.
    fn ask_thin(&mut self, now: Instant, out: &mut Vec<Action>) {
        let mut avoid = self.avoided(now);
        let current = self.current.as_ref().expect("it is thin");
        let left = current.left();
        let pushed = self.pushed.iter().copied().filter(|_| self.ends_for_masters());
        for server in left.into_iter().chain(pushed) {
            if !avoid.contains(&server) {
                avoid.push(server);
            }
        }
        self.thin_after = now + self.config.extend_pause;
        self.ask_extend(OpKind::Thin, self.config.spares.max(1), avoid, out);
    }

    /// When the stream service is to be asked for rights alone.
    pub(super) fn renewal_due(&self) -> Option<Instant> {
        let open = self.current.is_some() && self.ended.is_none();
        self.renew_at.filter(|_| open).map(|at| at.max(self.renew_after))
    }

    fn ask_spares(
        &mut self,
        now: Instant,
        needed: bool,
        spares: u8,
        avoid: Vec<ServerId>,
        out: &mut Vec<Action>,
    ) {
        // Needed ones are asked for often, until the stall budget ends.
        self.need_after = now + self.config.extend_pause / 50;
        self.extend_after = now + self.config.extend_pause;
        self.ask_extend(OpKind::Extend(needed), spares, avoid, out);
    }

    /// Asks for `spares` spares in all without some servers, and for rights.
    fn ask_extend(
        &mut self,
        kind: OpKind,
        spares: u8,
        avoid: Vec<ServerId>,
        out: &mut Vec<Action>,
    ) {
        self.op = Some(OpState { kind, avoid: avoid.clone() });
        let (purpose, in_copies) = (self.purpose_of_need(), self.form.in_copies);
        out.push(Action::Op(StreamOp::Extend { avoid, spares, purpose, in_copies }));
    }

    fn ask_close(&mut self, finish: bool, out: &mut Vec<Action>) {
        // When the current chunk of the stream service has ended here, the one behind it holds
        // nothing that was acknowledged.
        let (sealed, left) = match (&self.ended, &self.current) {
            (Some(ended), _) => (Some((ended.chunk, ended.len)), ended.left.clone()),
            (None, Some(current)) => (Some((current.id(), current.acked)), current.left()),
            (None, None) => (None, Vec::new()),
        };
        self.op = Some(OpState { kind: OpKind::Close, avoid: Vec::new() });
        out.push(Action::Op(StreamOp::Close { sealed, finish, left }));
    }

    /// True while the stream service closes the writer.
    pub(super) fn is_closing_now(&self) -> bool {
        self.op.as_ref().is_some_and(|op| op.kind == OpKind::Close)
    }

    fn avoided(&self, now: Instant) -> Vec<ServerId> {
        let failed = self.avoid.iter().filter(|(_, until)| *until > now);
        let mut avoided: Vec<_> = failed.map(|&(server, _)| server).collect();
        let listed =
            self.listed.iter().filter(|server| !self.avoid.iter().any(|it| it.0 == **server));
        avoided.extend(listed);
        avoided.truncate(AVOID_MAX);
        avoided
    }

    pub(super) fn on_op(
        &mut self,
        now: Instant,
        result: Result<OpDone, OpError>,
        out: &mut Vec<Action>,
    ) {
        if matches!(result, Ok(OpDone::Writer(_))) {
            self.rights_at = now;
        }
        let op = self.op.take().expect("an operation is under way");
        let taken = match (op.kind, result) {
            (OpKind::Advance(next, base), Ok(OpDone::Writer(grant))) => {
                self.on_advanced(now, (next, base), grant, &op.avoid, out)
            }
            (OpKind::Extend(_) | OpKind::Renew, Ok(OpDone::Writer(grant))) => {
                self.adopt(now, grant, &op.avoid, out)
            }
            (OpKind::Whole, Ok(OpDone::Writer(grant))) => {
                let taken = self.adopt(now, grant, &[], out);
                self.leave_short(now);
                taken
            }
            (OpKind::Form, Ok(OpDone::Writer(grant))) => {
                let taken = self.adopt(now, grant, &op.avoid, out);
                self.leave_for_form();
                taken
            }
            (OpKind::Thin, Ok(OpDone::Writer(grant))) => {
                let taken = self.adopt(now, grant, &op.avoid, out);
                self.note_thin_answer(now);
                taken
            }
            (OpKind::Elsewhere, Ok(OpDone::Writer(grant))) => {
                let taken = self.adopt(now, grant, &[], out);
                self.note_elsewhere(now);
                taken
            }
            (OpKind::Close, Ok(OpDone::Closed { len })) => {
                return self.on_closed(len, out);
            }
            (_, Ok(answer)) => {
                Err(WriterError::Protocol(format!("the answer does not fit: {answer:?}")))
            }
            (_, Err(OpError::Fenced)) => Err(WriterError::Fenced),
            (_, Err(OpError::Gone)) => Err(WriterError::Gone),
            // The chunk that was to follow is not recorded any more: see what is.
            (OpKind::Advance(next, _), Err(OpError::Stale)) => {
                if self.current.as_ref().is_some_and(|current| current.id() == next) {
                    self.abandon_current(now, out);
                }
                self.spares.clear();
                Ok(())
            }
            // Nothing waits for it: ask again later.
            (
                OpKind::Whole | OpKind::Thin | OpKind::Form | OpKind::Elsewhere,
                Err(OpError::Full | OpError::Stale | OpError::Failed(_)),
            ) => Ok(()),
            (OpKind::Extend(false), Err(_)) => {
                self.extend_after = now + self.config.extend_pause;
                Ok(())
            }
            (OpKind::Renew, Err(_)) => {
                self.renew_after = now + self.config.extend_pause;
                Ok(())
            }
            (_, Err(OpError::Full)) => Err(WriterError::Full),
            (_, Err(OpError::Stale)) => {
                let text = "the stream service does not agree on the open chunk".to_owned();
                Err(WriterError::Protocol(text))
            }
            (_, Err(OpError::Failed(cause))) => Err(WriterError::Stalled { cause }),
        };
        if let Err(error) = taken {
            self.fail(error, out);
        }
    }

    fn on_advanced(
        &mut self,
        now: Instant,
        next: (ChunkId, u64),
        grant: WriterGrant,
        avoided: &[ServerId],
        out: &mut Vec<Action>,
    ) -> Result<(), WriterError> {
        let (chunk, base) = next;
        let ended = self.ended.take().expect("asked for it");
        assert_eq!(ended.end(), base);
        if let Some(current) = &grant.current
            && (current.chunk, current.base) != next
        {
            let text = format!(
                "{chunk} at {base} follows, the stream service says {} at {}",
                current.chunk, current.base
            );
            return Err(WriterError::Protocol(text));
        }
        if self.current.as_ref().is_none_or(|current| current.id() != chunk) {
            // It has failed by now, with nothing acknowledged in it.
            self.ended = Some(EndedChunk { chunk, base, len: 0, left: Vec::new() });
        }
        self.progress_at = now;
        self.adopt_right(grant.current.as_ref());
        self.adopt_spares(now, grant.spares, avoided, out)
    }

    /// Takes over the answer to a request for spares: it has fresh rights to all that is recorded.
    fn adopt(
        &mut self,
        now: Instant,
        grant: WriterGrant,
        avoided: &[ServerId],
        out: &mut Vec<Action>,
    ) -> Result<(), WriterError> {
        self.tokens_stale = false;
        self.adopt_right(grant.current.as_ref());
        self.adopt_spares(now, grant.spares, avoided, out)
    }

    /// Takes over a fresh right to the chunk that is written.
    fn adopt_right(&mut self, granted: Option<&ChunkPlace>) {
        if let (Some(granted), Some(current)) = (granted, &mut self.current)
            && granted.chunk == current.id()
        {
            current.place.token = granted.token;
        }
    }

    /// Takes over the recorded spares. The answer lists all of them in order; those that were
    /// written here are passed over.
    pub(super) fn adopt_spares(
        &mut self,
        now: Instant,
        granted: Vec<ChunkPlace>,
        avoided: &[ServerId],
        out: &mut Vec<Action>,
    ) -> Result<(), WriterError> {
        if let Some(current) = &self.current
            && self.ended.is_some()
            && granted.iter().all(|place| place.chunk != current.id())
        {
            // Abandoned before the service was notified that it is written.
            self.abandon_current(now, out);
        }
        if let Some(youngest) = granted.last() {
            self.layout = Layout::of(youngest);
            self.form.learn(youngest);
        }
        let known: Vec<_> = self.spares.iter().map(|place| place.chunk).collect();
        self.spares.clear();
        for place in granted {
            check_place(&place, self.epoch)?;
            if place.chunk <= self.youngest {
                continue;
            }
            if !known.contains(&place.chunk) {
                // The stream service chose a server although its failure was reported: the service
                // has better knowledge, or there is no other server.
                let overruled = |server: &ServerId| {
                    avoided.contains(server)
                        && place.replicas.iter().any(|replica| replica.server == *server)
                };
                self.avoid.retain(|(server, _)| !overruled(server));
            }
            self.spares.push_back(place);
        }
        Ok(())
    }

    fn on_closed(&mut self, len: u64, out: &mut Vec<Action>) {
        let ours = self.acked_len();
        if len != ours {
            let text = format!("closed at {len} bytes, {ours} were acknowledged");
            return self.fail(WriterError::Protocol(text), out);
        }
        self.life = Life::Over;
        self.forget_chase();
        out.push(Action::Closed { len });
    }
}
