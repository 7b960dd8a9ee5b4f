//! Pings: the leading manager asks block servers whether they hear it, and gives the segments of those
//! that do not to others (`protocols-tail.md` 10.7).

use std::net::SocketAddr;
use std::rc::Rc;

use block_proto::lease::IDLE;
use block_proto::managers::ask_peer;
use block_proto::{BlockServerId, BlockServerRequest, Request};
use client::PeerError;
use runtime::{Class, Duration, Instant};

use super::limits::{PAUSED, PING, UNREACHED, UNREACHED_MAX};
use super::machine::Machine;
use super::service::{LeaderTerm, Manager};

impl Machine {
    /// Judges the answers to the pings so far, and returns the servers that are to be pinged now.
    /// The next round is due after [`Machine::ping_pause`].
    pub fn ping_round(&mut self, now: Instant) -> Vec<(BlockServerId, SocketAddr)> {
        if now - self.pinged > self.ping_pause + PAUSED {
            // This manager stood still: answers may wait to be read.
            self.servers.values_mut().for_each(|entry| entry.reach.excuse(now));
        }
        self.pinged = now;
        self.pings += 1;
        self.judge_reach(now);
        let heard = self.servers.iter().filter(|(_, entry)| entry.alive && entry.has_heartbeat());
        let heard: Vec<BlockServerId> = heard.map(|(&id, _)| id).collect();
        let all_idle = heard.iter().all(|&id| self.ping_every(id) == IDLE);
        self.ping_pause = if all_idle { PING * IDLE } else { PING };
        let due = |id| all_idle || self.pings.is_multiple_of(u64::from(self.ping_every(id)));
        let due = heard.into_iter().filter(|&id| due(id));
        due.filter_map(|id| Some((id, self.state.server(id)?.addr))).collect()
    }

    /// Time from the latest round of pings to the next: longer while no server has a segment.
    pub fn ping_pause(&self) -> Duration {
        self.ping_pause
    }

    /// True once after a server has got its first segment: a round of pings is due now.
    pub fn take_ping_soon(&mut self) -> bool {
        std::mem::take(&mut self.ping_soon)
    }

    /// A server has answered the ping that was sent at `sent`.
    pub fn answered(&mut self, now: Instant, server: BlockServerId, sent: Instant) {
        if let Some(entry) = self.servers.get_mut(&server) {
            entry.reach.note_answer(sent);
            self.answer_times.note(now, now - sent);
        }
    }

    /// Rounds of pings from one to a server to the next. A server that is lost is pinged in each: its
    /// return is to be seen.
    fn ping_every(&self, id: BlockServerId) -> u32 {
        let lost = self.servers.get(&id).is_some_and(|entry| entry.reach.is_lost());
        if lost { 1 } else { self.slower(id) }
    }

    /// Servers that live, and whether they are reached.
    pub(super) fn judged(&self, now: Instant) -> Vec<(BlockServerId, bool)> {
        let unreached = self.config.unreached;
        let heard = self.servers.iter().filter(|(_, entry)| entry.alive && entry.has_heartbeat());
        heard
            .map(|(&id, entry)| (id, entry.reach.is_reached(now, unreached, self.ping_every(id))))
            .collect()
    }

    fn judge_reach(&mut self, now: Instant) {
        let unreached = self.config.unreached;
        let judged = self.judged(now);
        let reached = judged.iter().filter(|(_, reached)| *reached).count();
        if reached * 2 < judged.len() {
            return;
        }
        let most = lost_max(judged.len());
        let mut lost = judged.iter().filter(|(id, _)| self.servers[id].reach.is_lost()).count();
        let mut changed = false;
        for (id, reached) in judged {
            let reach = &mut self.servers.get_mut(&id).expect("just seen").reach;
            if reach.is_lost() {
                // One that stands still is reached, as far as is known, and answers nothing.
                if reach.note_return(now, reach.has_answered_since(now - unreached)) {
                    lost -= 1;
                    tracing::info!(server = %id, "block server answers pings again");
                }
            } else if !reached && lost < most {
                reach.lose();
                lost += 1;
                changed = true;
                tracing::warn!(
                    server = %id,
                    "block server answers no ping, though its heartbeats come: others take its \
                     segments"
                );
            }
        }
        if changed {
            self.adopt(now);
        }
    }
}

/// Servers that may be lost at a time, of so many that live (N8).
pub(super) fn lost_max(living: usize) -> usize {
    (living / 3).clamp(1, UNREACHED_MAX)
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

    /// Pings block servers: one that hears nothing is to serve nothing.
    pub(super) async fn ping(self, lead: Rc<LeaderTerm>) {
        let env = self.env();
        while !lead.is_over() {
            let due = lead.machine.borrow_mut().ping_round(env.now());
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
