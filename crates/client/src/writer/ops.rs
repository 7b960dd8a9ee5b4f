//! What the writer does at the stream service: one operation at a time.

use base::ServerId;
use runtime::Instant;
use wire::control::{ChunkPlace, WriterGrant};

use super::core::{Life, Writer, check_place};
use super::event::{Action, OpDone, OpError, StreamOp, WriterError};

/// The operation under way.
#[derive(Clone, Debug)]
pub(super) struct OpState {
    kind: OpKind,
    /// Servers it named as unwanted.
    avoid: Vec<ServerId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OpKind {
    Advance,
    /// `true`: nothing can be written before it ends.
    Extend(bool),
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
            return self.ask_close(finish, out);
        }
        let Some(&ended) = self.chain.front() else {
            return self.ask_ahead(now, out);
        };
        let next = match (self.chain.get(1), &self.current) {
            (Some(next), _) => Some(next.chunk),
            (None, Some(current)) => Some(current.id()),
            (None, None) => None,
        };
        let avoid = self.avoided(now);
        let spares = self.config.spares.max(1);
        match next {
            Some(next) => {
                let (sealed, len) = (ended.chunk, ended.len);
                self.op = Some(OpState { kind: OpKind::Advance, avoid: avoid.clone() });
                out.push(Action::Op(StreamOp::Advance { sealed, len, next, avoid, spares }));
            }
            None if self.needs_spares() && now >= self.need_after => {
                self.ask_spares(now, true, spares, avoid, out);
            }
            None => {}
        }
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

    fn ask_ahead(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.wants_spares() && now >= self.extend_after {
            let avoid = self.avoided(now);
            self.ask_spares(now, false, self.config.spares, avoid, out);
        }
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
        self.need_after = now + self.config.extend_pause / 20;
        self.extend_after = now + self.config.extend_pause;
        self.op = Some(OpState { kind: OpKind::Extend(needed), avoid: avoid.clone() });
        out.push(Action::Op(StreamOp::Extend { avoid, spares }));
    }

    fn ask_close(&mut self, finish: bool, out: &mut Vec<Action>) {
        // What is current at the stream service is the first chunk it does not know to have
        // ended; the chunks behind it hold nothing that was acknowledged.
        let sealed = match (self.chain.front(), &self.current) {
            (Some(ended), _) => Some((ended.chunk, ended.len)),
            (None, Some(current)) => Some((current.id(), current.acked)),
            (None, None) => None,
        };
        self.op = Some(OpState { kind: OpKind::Close, avoid: Vec::new() });
        out.push(Action::Op(StreamOp::Close { sealed, finish }));
    }

    fn avoided(&self, now: Instant) -> Vec<ServerId> {
        self.avoid.iter().filter(|(_, until)| *until > now).map(|&(server, _)| server).collect()
    }

    pub(super) fn on_op(
        &mut self,
        now: Instant,
        result: Result<OpDone, OpError>,
        out: &mut Vec<Action>,
    ) {
        let op = self.op.take().expect("an operation is under way");
        let taken = match (op.kind, result) {
            (OpKind::Advance, Ok(OpDone::Writer(grant))) => self.on_advanced(now, grant, &op.avoid),
            (OpKind::Extend(_), Ok(OpDone::Writer(grant))) => {
                self.tokens_stale = false;
                self.adopt_spares(grant.spares, &op.avoid)
            }
            (OpKind::Close, Ok(OpDone::Closed { len })) => {
                return self.on_closed(len, out);
            }
            (_, Ok(answer)) => {
                Err(WriterError::Protocol(format!("the answer does not fit: {answer:?}")))
            }
            (_, Err(OpError::Fenced)) => Err(WriterError::Fenced),
            (_, Err(OpError::Gone)) => Err(WriterError::Gone),
            // Nothing waits for it: ask again later.
            (OpKind::Extend(false), Err(_)) => {
                self.extend_after = now + self.config.extend_pause;
                Ok(())
            }
            (_, Err(OpError::Full)) => Err(WriterError::Full),
            (_, Err(OpError::Failed(cause))) => Err(WriterError::Stalled { cause }),
        };
        if let Err(error) = taken {
            self.fail(error, out);
        }
    }

    fn on_advanced(
        &mut self,
        now: Instant,
        grant: WriterGrant,
        avoided: &[ServerId],
    ) -> Result<(), WriterError> {
        let ended = self.chain.pop_front().expect("asked for it");
        let next = match (self.chain.front(), &self.current) {
            (Some(next), _) => (next.chunk, next.base),
            (None, Some(current)) => (current.id(), current.base),
            (None, None) => unreachable!("asked with a successor, which stays"),
        };
        assert_eq!(ended.base + u64::from(ended.len), next.1);
        if let Some(current) = &grant.current
            && (current.chunk, current.base) != next
        {
            let text = format!(
                "{} at {} follows, the stream service says {} at {}",
                next.0, next.1, current.chunk, current.base
            );
            return Err(WriterError::Protocol(text));
        }
        self.progress_at = self.progress_at.max(now);
        self.adopt_spares(grant.spares, avoided)
    }

    /// Takes over the recorded spares. The answer lists all of them in order; those in use here
    /// already are passed over.
    pub(super) fn adopt_spares(
        &mut self,
        granted: Vec<ChunkPlace>,
        avoided: &[ServerId],
    ) -> Result<(), WriterError> {
        let known: Vec<_> = self.spares.iter().map(|place| place.chunk).collect();
        self.spares.clear();
        for place in granted {
            check_place(&place, self.epoch)?;
            let used = self.chain.iter().any(|ended| ended.chunk == place.chunk)
                || self.current.as_ref().is_some_and(|current| current.id() == place.chunk);
            if used {
                continue;
            }
            if !known.contains(&place.chunk) {
                // The stream service chose a server although it was told of its failure: it
                // knows better, or there is no other.
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
        out.push(Action::Closed { len });
    }
}
