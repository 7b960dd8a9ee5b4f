//! Pings: the leading manager asks block servers whether they hear it, and gives the segments of those
//! that do not to others (`protocols-tail.md` 10.7).

use std::net::SocketAddr;
use std::rc::Rc;

use block_proto::managers::ask_peer;
use block_proto::{BlockServerId, BlockServerRequest, Request};
use client::PeerError;
use runtime::{Class, Duration, Instant};

use super::limits::UNREACHED;
use super::machine::Machine;
use super::service::{LeaderTerm, Manager};

impl Machine {
    /// Judges the answers to the pings so far, and returns the servers that are to be pinged now.
    /// The next round is due after [`Machine::ping_pause`].
    pub fn ping_round(&mut self, now: Instant) -> Vec<(BlockServerId, SocketAddr)> {
        let judged = self.fleet.begin_round(now, &self.state);
        for server in &judged.back {
            tracing::info!(%server, "block server answers pings again");
        }
        for server in &judged.lost {
            tracing::warn!(
                %server,
                "block server answers no ping, though its heartbeats come: others take its segments"
            );
        }
        if !judged.lost.is_empty() {
            self.adopt(now);
        }
        let due = self.fleet.due_pings(&self.state);
        due.into_iter().filter_map(|id| Some((id, self.state.server(id)?.addr))).collect()
    }

    /// True when this manager gets no heartbeats though block servers answer its pings.
    pub fn is_cut_off(&self, now: Instant) -> bool {
        self.fleet.is_cut_off(now, &self.state)
    }

    /// Time from the latest round of pings to the next: longer while no server has a segment.
    pub fn ping_pause(&self) -> Duration {
        self.fleet.ping_pause()
    }

    /// True once after a server has got its first segment: a round of pings is due now.
    pub fn take_ping_soon(&mut self) -> bool {
        self.fleet.take_ping_soon()
    }

    /// A server has answered the ping that was sent at `sent`.
    pub fn answered(&mut self, now: Instant, server: BlockServerId, sent: Instant) {
        if self.fleet.get(server).is_some() {
            self.fleet.answered(server, sent);
            self.answer_times.note(now, now - sent);
        }
    }
}

impl Manager {
    /// Pings a server; false when no answer came in time.
    pub(super) async fn ping_once(
        &self,
        lead: &Rc<LeaderTerm>,
        server: BlockServerId,
        addr: SocketAddr,
        timeout: Duration,
    ) -> bool {
        let (env, sent) = (self.env(), self.env().now());
        let request = Request::BlockServer(BlockServerRequest::Ping);
        let reply = ask_peer(self.client(), addr, request, timeout).await;
        // One of an older version refuses what it does not know, and is reached.
        let answers = !matches!(reply, Err(PeerError::Silent(_) | PeerError::Unreachable(_)));
        if answers {
            lead.machine.borrow_mut().answered(env.now(), server, sent);
        }
        answers
    }

    /// Pings block servers: one that hears nothing is to serve nothing. When it is this manager that hears
    /// nothing, it leads no more (`protocols-tail.md` 10.11, decision 112).
    pub(super) async fn ping(self, lead: Rc<LeaderTerm>) {
        let env = self.env();
        while !lead.is_over() {
            let due = lead.machine.borrow_mut().ping_round(env.now());
            if lead.machine.borrow().is_cut_off(env.now()) {
                env.mark("block manager: one that is cut off leads no more");
                tracing::warn!(
                    "no heartbeat comes, though block servers answer pings: what is sent to this manager is \
                     lost, and another one is to lead"
                );
                return self.yield_lead(&lead);
            }
            self.after(&lead);
            for (server, addr) in due {
                let (this, lead) = (self.clone(), lead.clone());
                env.spawn(Class::Control, "block manager: ping", async move {
                    this.ping_once(&lead, server, addr, UNREACHED).await;
                });
            }
            let pause = lead.machine.borrow().ping_pause();
            let _ = env.timeout(pause, lead.ping_soon.notified()).await; // Either has happened.
        }
    }
}
