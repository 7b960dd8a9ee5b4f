//! Doubts: a client that gets no answer of a segment's owner has the leading manager look at it at once
//! (`protocols-tail.md` 10.9, decision 71). Its word moves nothing: the manager's own ping decides, and
//! only when another server answers in the same time.

use std::net::SocketAddr;
use std::rc::Rc;

use block_proto::BlockServerId;
use block_volume::ids::SegmentId;
use futures_util::future::{join, join_all};
use runtime::{Class, Duration, Instant};

use super::limits::{DOUBT_FRESH, DOUBT_LATE, DOUBT_PING, DOUBT_PING_FACTOR, DOUBT_WITNESSES};
use super::machine::Machine;
use super::service::{LeaderTerm, Manager};

/// A server that a client doubts, and what finds out about it.
#[derive(Clone, Debug)]
pub struct Doubted {
    server: BlockServerId,
    boot: Option<u64>,
    addr: SocketAddr,
    witnesses: Vec<(BlockServerId, SocketAddr)>,
    timeout: Duration,
}

impl Machine {
    /// The server that a client doubts, unless it has lost the segment, or has answered just now. With it
    /// others, and for how long their answers are awaited.
    pub fn doubted(&mut self, now: Instant, segment: SegmentId, epoch: u64) -> Option<Doubted> {
        let known = self.state.segment(segment).filter(|known| known.epoch == epoch)?;
        let server = known.owner?;
        let member = self.fleet.get(server).filter(|member| member.is_staying())?;
        if member.has_answered_since(now - DOUBT_FRESH) {
            return None;
        }
        let addr_of = |id: BlockServerId| Some((id, self.state.server(id)?.addr));
        let others = self
            .fleet
            .iter()
            .filter(|(id, member)| *id != server && member.is_staying() && member.has_heartbeat());
        let witnesses = others.filter_map(|(id, _)| addr_of(id)).take(DOUBT_WITNESSES).collect();
        let (boot, addr) = (member.boot(), addr_of(server)?.1);
        let timeout = self.answer_times.timeout(now, DOUBT_PING_FACTOR, DOUBT_PING);
        Some(Doubted { server, boot, addr, witnesses, timeout })
    }

    /// The doubted server has given no answer, and another one has: its segments are given to others, as
    /// far as the bounds allow it.
    pub fn give_up_server(&mut self, now: Instant, doubted: &Doubted) {
        let doubtful = (doubted.server, doubted.boot);
        if !self.fleet.give_up(now, doubtful, doubted.timeout, &self.state) {
            return;
        }
        tracing::warn!(
            server = %doubted.server,
            "block server answers neither a client nor a ping: others take its segments"
        );
        self.adopt(now);
    }
}

impl Manager {
    /// Finds out whether the owner of a segment serves, which a client doubts. Several doubts of one
    /// server are answered by one ping.
    pub(super) async fn look_into(&self, lead: &Rc<LeaderTerm>, segment: SegmentId, epoch: u64) {
        let env = self.env();
        loop {
            let changed = lead.doubts_changed.notified();
            let doubted = lead.machine.borrow_mut().doubted(env.now(), segment, epoch);
            let Some(doubted) = doubted else { return };
            if !lead.doubts.borrow_mut().insert(doubted.server) {
                changed.await;
                if lead.doubts.borrow().contains(&doubted.server) {
                    continue; // Another one's answer.
                }
                return;
            }
            let (this, at) = (self.clone(), lead.clone());
            let look = async move { this.look_at(&at, doubted).await };
            // It goes on when the client waits no more.
            let _ = env.spawn(Class::Control, "block manager: doubt", look).await;
            return;
        }
    }

    async fn look_at(&self, lead: &Rc<LeaderTerm>, doubted: Doubted) {
        let (env, sent) = (self.env(), self.env().now());
        let timeout = doubted.timeout;
        let ask = |(server, addr)| self.ping_once(lead, server, addr, timeout);
        let others = join_all(doubted.witnesses.iter().copied().map(ask));
        let (answers, others) = join(ask((doubted.server, doubted.addr)), others).await;
        let is_late = env.now() - sent > timeout + DOUBT_LATE;
        let alone = doubted.witnesses.is_empty() || !others.contains(&true);
        if !answers && !is_late && !alone {
            env.mark("block manager: a doubted server gives no answer");
            lead.machine.borrow_mut().give_up_server(env.now(), &doubted);
            self.after(lead);
        }
        lead.doubts.borrow_mut().remove(&doubted.server);
        lead.doubts_changed.notify_waiters();
    }
}
