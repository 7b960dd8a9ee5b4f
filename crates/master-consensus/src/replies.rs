//! The replicated reply table (`protocols.md` 4.2): a mutation that is repeated after a failover
//! is answered, not done again.
//!
//! It is part of a state machine, so it depends on nothing but the commands. Time is the group's
//! clock: milliseconds that its leaders have counted, carried in the commands.

use std::collections::{BTreeMap, BTreeSet};

use base::ClientId;
use wire::control::OpId;
use wire::control::limits::SESSION_IDLE;

use crate::Rows;
use crate::bytes::{DecodeError, Reader, Writer, row_key, split_key};
use crate::limits::{REPLY_BYTES_MAX, SESSION_REPLIES_MAX, SESSIONS_MAX};
use crate::tracked::Tracked;

/// Knowledge of a mutation in the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It was not done: do it, then [`ReplyTable::keep`] the answer.
    New,
    /// It was done: here is the answer.
    Answered(Vec<u8>),
    /// The client has acknowledged the answer: a late duplicate.
    Late,
    /// Too many sessions, or answers that wait for an acknowledgement. Nothing was done.
    Busy,
}

/// Answers by client session and sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplyTable {
    sessions: Tracked<ClientId, Session>,
    /// Sessions by the second of their last use: the first is forgotten first.
    by_use: BTreeSet<(u64, ClientId)>,
    /// Bytes of all answers.
    bytes: usize,
    sessions_max: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Session {
    /// Seconds of the group's clock at the last mutation.
    used: u64,
    acked_below: u64,
    replies: BTreeMap<u64, Vec<u8>>,
}

impl Default for ReplyTable {
    fn default() -> Self {
        ReplyTable::new(SESSIONS_MAX)
    }
}

impl ReplyTable {
    /// No answers yet, room for `sessions_max` sessions. All replicas use the same bound.
    pub fn new(sessions_max: usize) -> ReplyTable {
        ReplyTable { sessions: Tracked::default(), by_use: BTreeSet::new(), bytes: 0, sessions_max }
    }

    /// Knowledge of `op` at `clock_ms`; notes which answers the client has acknowledged.
    pub fn look(&mut self, op: &OpId, clock_ms: u64) -> Seen {
        let now = clock_ms / 1000;
        if !self.admit(op.client, now) {
            return Seen::Busy;
        }
        let session = self.sessions.get_mut(&op.client).expect("admitted");
        if op.acked_below > session.acked_below {
            session.acked_below = op.acked_below;
            let kept = session.replies.split_off(&op.acked_below);
            let gone = std::mem::replace(&mut session.replies, kept);
            self.bytes -= gone.values().map(Vec::len).sum::<usize>();
        }
        if let Some(reply) = session.replies.get(&op.seq) {
            return Seen::Answered(reply.clone());
        }
        if op.seq < session.acked_below {
            return Seen::Late;
        }
        let window = session.acked_below.saturating_add(SESSION_REPLIES_MAX);
        if op.seq >= window {
            return Seen::Busy;
        }
        // Clients that have ended acknowledge nothing more. The asking session was used now.
        while self.bytes >= REPLY_BYTES_MAX {
            if !self.forget_idle(now) {
                return Seen::Busy;
            }
        }
        Seen::New
    }

    /// True when the answer to `op` is on record.
    pub fn is_answered(&self, op: &OpId) -> bool {
        self.sessions.get(&op.client).is_some_and(|it| it.replies.contains_key(&op.seq))
    }

    /// Remembers the answer to `op`, which [`ReplyTable::look`] called new.
    pub fn keep(&mut self, op: &OpId, reply: &[u8]) {
        let Some(session) = self.sessions.get_mut(&op.client) else { return };
        self.bytes += reply.len();
        if let Some(old) = session.replies.insert(op.seq, reply.to_vec()) {
            self.bytes -= old.len();
        }
    }

    /// Drops the answer to `op`: nothing happened, and it may be executed again.
    pub fn forget(&mut self, op: &OpId) {
        let session = self.sessions.get_mut(&op.client);
        let old = session.and_then(|session| session.replies.remove(&op.seq));
        self.bytes -= old.map_or(0, |old| old.len());
    }

    /// The answer to `op`, if one is kept.
    pub fn answer(&self, op: &OpId) -> Option<&[u8]> {
        self.sessions.get(&op.client)?.replies.get(&op.seq).map(Vec::as_slice)
    }

    /// Sessions that are remembered.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn admit(&mut self, client: ClientId, now: u64) -> bool {
        if let Some(session) = self.sessions.get_mut(&client) {
            if now > session.used {
                self.by_use.remove(&(session.used, client));
                self.by_use.insert((now, client));
                session.used = now;
            }
            return true;
        }
        if self.sessions.len() >= self.sessions_max && !self.forget_idle(now) {
            return false;
        }
        self.sessions.insert(client, Session { used: now, ..Session::default() });
        self.by_use.insert((now, client));
        true
    }

    /// Forgets the session that was used least recently, if that was long ago.
    fn forget_idle(&mut self, now: u64) -> bool {
        let Some(&(used, client)) = self.by_use.first() else { return false };
        if now < used.saturating_add(SESSION_IDLE.as_secs()) {
            return false;
        }
        self.by_use.pop_first();
        let session = self.sessions.remove(&client).expect("the two maps agree");
        self.bytes -= session.replies.values().map(Vec::len).sum::<usize>();
        true
    }

    /// Puts the sessions that have changed, as rows of `table`; true when more is left.
    pub fn take_changes(&mut self, table: u8, rows: &mut Rows) -> bool {
        self.sessions.take_changes(rows, |rows, client, session| {
            let key = row_key(table, client.get().to_be_bytes(), "");
            let value = session.map(|session| {
                let mut to = Writer::new();
                session.encode(&mut to);
                to.finish()
            });
            rows.put(&key, value.as_deref());
        })
    }

    /// Adds a row of [`ReplyTable::take_changes`].
    pub fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), DecodeError> {
        let (client, "") = split_key(key)? else { return Err(DecodeError) };
        let client = ClientId::new(u64::from_be_bytes(client));
        let mut from = Reader::new(value);
        let session = Session::decode(&mut from)?;
        from.end()?;
        self.bytes += session.replies.values().map(Vec::len).sum::<usize>();
        self.by_use.insert((session.used, client));
        match self.sessions.load(client, session) {
            None => Ok(()),
            Some(_) => Err(DecodeError),
        }
    }

    /// Removes one session of a table that is not needed any more; false when none is left.
    pub fn shed(&mut self) -> bool {
        self.sessions.shed().is_some()
    }

    /// Writes the table whole.
    pub fn encode(&self, to: &mut Writer) {
        to.count(self.sessions.len());
        for (client, session) in &self.sessions {
            session.encode(to.u64(client.get()));
        }
    }

    /// Reads what [`ReplyTable::encode`] wrote.
    pub fn decode(from: &mut Reader<'_>) -> Result<ReplyTable, DecodeError> {
        let mut table = ReplyTable::default();
        let take = |from: &mut Reader<'_>| Ok((ClientId::new(from.u64()?), Session::decode(from)?));
        for (client, session) in from.list(take)? {
            table.bytes += session.replies.values().map(Vec::len).sum::<usize>();
            table.by_use.insert((session.used, client));
            if table.sessions.load(client, session).is_some() {
                return Err(DecodeError);
            }
        }
        Ok(table)
    }
}

impl Session {
    fn encode(&self, to: &mut Writer) {
        to.u64(self.used).u64(self.acked_below).count(self.replies.len());
        for (&seq, reply) in &self.replies {
            to.u64(seq).bytes(reply);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Session, DecodeError> {
        let (used, acked_below) = (from.u64()?, from.u64()?);
        let replies = from.list(|from| Ok((from.u64()?, from.bytes()?.to_vec())))?;
        Ok(Session { used, acked_below, replies: replies.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(client: u64, seq: u64, acked_below: u64) -> OpId {
        OpId { client: ClientId::new(client), seq, acked_below }
    }

    #[test]
    fn a_repeat_is_answered_until_acknowledged() {
        let mut table = ReplyTable::default();
        assert_eq!(table.look(&op(1, 1, 0), 0), Seen::New);
        table.keep(&op(1, 1, 0), b"one");
        assert_eq!(table.look(&op(1, 1, 0), 0), Seen::Answered(b"one".to_vec()));
        assert_eq!(table.look(&op(2, 1, 0), 0), Seen::New);
        assert_eq!(table.look(&op(1, 2, 2), 0), Seen::New);
        assert_eq!(table.look(&op(1, 1, 0), 0), Seen::Late);
        assert_eq!(table.look(&op(1, 2 + SESSION_REPLIES_MAX, 2), 0), Seen::Busy);
        assert_eq!(table.bytes, 0);
    }

    #[test]
    fn only_idle_sessions_are_forgotten() {
        let mut table = ReplyTable::new(2);
        let idle_ms = SESSION_IDLE.as_millis() as u64;
        assert_eq!(table.look(&op(1, 1, 0), 0), Seen::New);
        table.keep(&op(1, 1, 0), b"one");
        assert_eq!(table.look(&op(2, 1, 0), 5_000), Seen::New);
        assert_eq!(table.look(&op(3, 1, 0), idle_ms - 1), Seen::Busy);
        assert_eq!(table.look(&op(3, 1, 0), idle_ms), Seen::New);
        assert_eq!((table.answer(&op(1, 1, 0)), table.bytes), (None, 0));
        assert_eq!(table.look(&op(1, 1, 0), idle_ms), Seen::Busy);
    }

    /// Each client that ends leaves the answers that it has not acknowledged.
    #[test]
    fn answers_of_idle_sessions_make_room_for_others() {
        const ANSWER: usize = 1 << 20;
        let mut table = ReplyTable::default();
        let idle_ms = SESSION_IDLE.as_millis() as u64;
        let ended = (REPLY_BYTES_MAX / ANSWER) as u64;
        for client in 0..ended {
            assert_eq!(table.look(&op(client, 1, 0), client), Seen::New);
            table.keep(&op(client, 1, 0), &[7; ANSWER]);
        }
        assert_eq!(table.look(&op(ended, 1, 0), idle_ms - 1), Seen::Busy, "they may be repeated");
        assert_eq!(table.look(&op(0, 1, 0), idle_ms - 1), Seen::Answered(vec![7; ANSWER]));
        assert_eq!(table.look(&op(ended, 1, 0), idle_ms + 1), Seen::New);
        assert_eq!((table.answer(&op(1, 1, 0)), table.bytes), (None, REPLY_BYTES_MAX - ANSWER));
        assert!(table.answer(&op(0, 1, 0)).is_some(), "it was used since");
    }

    #[test]
    fn a_snapshot_is_the_table() {
        let mut table = ReplyTable::default();
        for seq in 1..50 {
            let op = op(seq % 7, seq, seq.saturating_sub(20));
            assert_eq!(table.look(&op, seq * 900), Seen::New);
            table.keep(&op, &vec![seq as u8; seq as usize]);
        }
        let mut bytes = Writer::new();
        table.encode(&mut bytes);
        let bytes = bytes.finish();
        let mut reader = Reader::new(&bytes);
        assert_eq!(ReplyTable::decode(&mut reader), Ok(table));
        assert_eq!(reader.end(), Ok(()));
    }
}
