//! Pings: the leading manager asks block servers whether they hear it, and gives the segments of those
//! that do not to others (`protocols-tail.md` 10.7).

use std::net::SocketAddr;
use std::rc::Rc;

use block_proto::managers::ask_peer;
use block_proto::{BlockServerId, BlockServerRequest, Request};
use client::PeerError;
use runtime::{Class, Instant};

use super::limits::{PAUSED, PING, UNREACHED, UNREACHED_MAX};
use super::machine::Machine;
use super::service::{LeaderTerm, Manager};

impl Machine {
    /// Judges the answers to the pings so far, and returns the servers that are to be pinged now.
    /// Called at intervals of [`PING`].
    pub fn ping_round(&mut self, now: Instant) -> Vec<(BlockServerId, SocketAddr)> {
        if now - self.pinged > PING + PAUSED {
            // This manager stood still: answers may wait to be read.
            self.servers.values_mut().for_each(|entry| entry.reach.excuse(now));
        }
        self.pinged = now;
        self.pings += 1;
        self.judge_reach(now);
        let due = |id: BlockServerId| self.pings.is_multiple_of(u64::from(self.ping_every(id)));
        let heard = self.servers.iter().filter(|(_, entry)| entry.alive && entry.has_heartbeat());
        let due = heard.map(|(&id, _)| id).filter(|&id| due(id));
        due.filter_map(|id| Some((id, self.state.server(id)?.addr))).collect()
    }

    /// A server has answered the ping that was sent at `sent`.
    pub fn answered(&mut self, server: BlockServerId, sent: Instant) {
        if let Some(entry) = self.servers.get_mut(&server) {
            entry.reach.note_answer(sent);
        }
    }

    /// Rounds of pings from one to a server to the next. A server that is lost is pinged in each: its
    /// return is to be seen.
    fn ping_every(&self, id: BlockServerId) -> u32 {
        let lost = self.servers.get(&id).is_some_and(|entry| entry.reach.is_lost());
        if lost { 1 } else { self.slower(id) }
    }

    fn judge_reach(&mut self, now: Instant) {
        let unreached = self.config.unreached;
        let heard = self.servers.iter().filter(|(_, entry)| entry.alive && entry.has_heartbeat());
        let judged = heard
            .map(|(&id, entry)| (id, entry.reach.is_reached(now, unreached, self.ping_every(id))));
        let judged: Vec<(BlockServerId, bool)> = judged.collect();
        let reached = judged.iter().filter(|(_, reached)| *reached).count();
        if reached * 2 < judged.len() {
            return;
        }
        let most = (judged.len() / 3).clamp(1, UNREACHED_MAX);
        let mut lost = judged.iter().filter(|(id, _)| self.servers[id].reach.is_lost()).count();
        let mut changed = false;
        for (id, reached) in judged {
            let reach = &mut self.servers.get_mut(&id).expect("just seen").reach;
            if reach.is_lost() {
                if reach.note_return(now, reached) {
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

impl Manager {
    /// Pings block servers: one that hears nothing is to serve nothing.
    pub(super) async fn ping(self, lead: Rc<LeaderTerm>) {
        let env = self.env();
        while !lead.is_over() {
            let due = lead.machine.borrow_mut().ping_round(env.now());
            self.after(&lead);
            for (server, addr) in due {
                let (client, lead) = (self.client().clone(), lead.clone());
                env.spawn(Class::Control, "block manager: ping", async move {
                    let sent = client.env().now();
                    let request = Request::BlockServer(BlockServerRequest::Ping);
                    let reply = ask_peer(&client, addr, request, UNREACHED).await;
                    // One of an older version refuses what it does not know, and is reached. A
                    // ping that did not leave here says nothing of it.
                    let lost =
                        matches!(reply, Err(PeerError::Silent(_) | PeerError::Unreachable(_)));
                    if !lost {
                        lead.machine.borrow_mut().answered(server, sent);
                    }
                });
            }
            env.sleep(PING).await;
        }
    }
}
