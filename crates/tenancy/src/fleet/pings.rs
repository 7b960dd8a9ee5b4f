//! Pings of the leading manager to servers: one that hears nothing is to serve nothing (N5,
//! `protocols-tail.md` 10.7).
//!
//! Few are taken out at a time (N8), and a manager that reaches fewer than half of those it hears
//! takes none out: it is cut off itself.

use runtime::{Duration, Instant};

use super::{Fleet, Owners, slower};
use crate::limits::{BEAT_GAP, CUT_OFF, IDLE, PAUSED, PING, UNREACHED_MAX};

/// What a round of pings says of servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged<S> {
    /// They count as unreached from now on: their units are to be given to others.
    pub lost: Vec<S>,
    /// They may have units again.
    pub back: Vec<S>,
}

/// Servers that may be lost at a time, of so many that live (N8).
fn lost_max(living: usize) -> usize {
    (living / 3).clamp(1, UNREACHED_MAX)
}

impl<S: Copy + Ord, U: Copy + Ord> Fleet<S, U> {
    /// Begins a round of pings, with what the answers to the rounds before say.
    pub fn begin_round(&mut self, now: Instant, owners: &impl Owners<S, U>) -> Judged<S> {
        if now - self.pinged > self.ping_pause + PAUSED {
            // This manager stood still: answers may wait to be read.
            self.servers.values_mut().for_each(|member| member.reach.excuse(now));
            self.awake_since = now;
        }
        self.pinged = now;
        self.pings += 1;
        let mut news = Judged { lost: Vec::new(), back: Vec::new() };
        let judged = self.judged(now, owners);
        if !reaches_half(&judged) {
            return news;
        }
        let most = lost_max(judged.len());
        let mut lost = self.lost_of(&judged);
        for (id, reached) in judged {
            let reach = &mut self.servers.get_mut(&id).expect("just seen").reach;
            if reach.is_lost() {
                // One that stands still is reached, as far as is known, and answers nothing.
                let unreached = self.times.unreached;
                if reach.note_return(now, reach.has_answered_since(now - unreached)) {
                    lost -= 1;
                    news.back.push(id);
                }
            } else if !reached && lost < most {
                reach.lose();
                lost += 1;
                news.lost.push(id);
            }
        }
        news
    }

    /// True when this manager gets no heartbeats though servers answer its pings: what is sent to it is lost, and its
    /// own connections stay. It is to let another one lead (`protocols-tail.md` 10.11).
    pub fn is_cut_off(&self, now: Instant, owners: &impl Owners<S, U>) -> bool {
        let Some((latest, slower)) = self.heard_last(owners) else { return false };
        let silence = CUT_OFF * slower;
        now - latest >= silence && self.any_answered_since(now - silence / 2)
    }

    /// Until when the silence of all servers may be this manager's: heartbeats have been overdue since the last one
    /// of all, pings sent since then are answered, and it has had no time yet to find out that it is cut off.
    pub(super) fn doubts_itself_until(
        &self,
        now: Instant,
        owners: &impl Owners<S, U>,
    ) -> Option<Instant> {
        let (latest, slower) = self.heard_last(owners)?;
        let until = latest + (CUT_OFF + 2 * PING) * slower;
        let doubts = now - latest >= BEAT_GAP * slower && now < until;
        (doubts && self.any_answered_since(latest)).then_some(until)
    }

    /// When the last heartbeat of any server came, and the factor of times: longer while none has a unit.
    fn heard_last(&self, owners: &impl Owners<S, U>) -> Option<(Instant, u32)> {
        let heard = || self.servers.iter().filter(|(_, member)| member.has_heartbeat());
        let latest = heard().map(|(_, member)| member.last_heartbeat).max()?;
        let all_idle = heard().all(|(&id, _)| owners.owned_count(id) == 0);
        // While it stood still, heartbeats may wait to be read.
        Some((latest.max(self.awake_since), if all_idle { IDLE } else { 1 }))
    }

    fn any_answered_since(&self, since: Instant) -> bool {
        let mut heard = self.servers.values().filter(|member| member.has_heartbeat());
        heard.any(|member| member.reach.has_answered_since(since))
    }

    /// Servers that are pinged in this round. The next one is due after [`Fleet::ping_pause`].
    pub fn due_pings(&mut self, owners: &impl Owners<S, U>) -> Vec<S> {
        // The answers of one that has just fallen silent say whether it is this manager that hears nothing.
        let silent = self.pinged - CUT_OFF * (IDLE + 1);
        let is_due = |member: &super::Member<U>| {
            member.has_heartbeat() && (member.alive || member.last_heartbeat > silent)
        };
        let heard = self.servers.iter().filter(|(_, member)| is_due(member));
        let heard: Vec<S> = heard.map(|(&id, _)| id).collect();
        let all_idle = heard.iter().all(|&id| self.ping_every(id, owners) == IDLE);
        self.ping_pause = if all_idle { PING * IDLE } else { PING };
        let is_due =
            |id: &S| all_idle || self.pings.is_multiple_of(u64::from(self.ping_every(*id, owners)));
        heard.into_iter().filter(is_due).collect()
    }

    /// Time from the latest round of pings to the next: longer while no server has a unit.
    pub fn ping_pause(&self) -> Duration {
        self.ping_pause
    }

    /// True once after a server has got its first unit: a round of pings is due now.
    pub fn take_ping_soon(&mut self) -> bool {
        std::mem::take(&mut self.ping_soon)
    }

    /// A server has answered the ping that was sent at `sent`.
    pub fn answered(&mut self, server: S, sent: Instant) {
        if let Some(member) = self.servers.get_mut(&server) {
            member.reach.note_answer(sent);
        }
    }

    /// A server answers neither a client nor the ping that was sent to it `timeout` ago, and another one
    /// does: it counts as unreached, and true is returned, as far as the bounds allow it.
    pub fn give_up(
        &mut self,
        now: Instant,
        (server, boot): (S, Option<u64>),
        timeout: Duration,
        owners: &impl Owners<S, U>,
    ) -> bool {
        let same = self.servers.get(&server).filter(|member| member.boot == boot);
        let Some(member) = same.filter(|member| member.is_staying()) else { return false };
        if member.reach.has_answered_since(now - timeout) {
            return false;
        }
        let judged = self.judged(now, owners);
        if !reaches_half(&judged) || self.lost_of(&judged) >= lost_max(judged.len()) {
            return false;
        }
        self.servers.get_mut(&server).expect("just seen").reach.lose();
        true
    }

    /// Rounds of pings from one to a server to the next. A server that is lost is pinged in each: its
    /// return is to be seen.
    fn ping_every(&self, id: S, owners: &impl Owners<S, U>) -> u32 {
        let lost = self.servers.get(&id).is_some_and(|member| member.reach.is_lost());
        if lost { 1 } else { slower(owners, id) }
    }

    /// Servers that live, and whether they are reached.
    fn judged(&self, now: Instant, owners: &impl Owners<S, U>) -> Vec<(S, bool)> {
        let unreached = self.times.unreached;
        let heard =
            self.servers.iter().filter(|(_, member)| member.alive && member.has_heartbeat());
        let judge = |(&id, member): (&S, &super::Member<U>)| {
            (id, member.reach.is_reached(now, unreached, self.ping_every(id, owners)))
        };
        heard.map(judge).collect()
    }

    fn lost_of(&self, judged: &[(S, bool)]) -> usize {
        judged.iter().filter(|(id, _)| self.servers[id].reach.is_lost()).count()
    }
}

fn reaches_half<S>(judged: &[(S, bool)]) -> bool {
    judged.iter().filter(|(_, reached)| *reached).count() * 2 >= judged.len()
}
