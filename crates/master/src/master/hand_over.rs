//! Pings between masters, and what a master does that others hear and do not reach: see
//! [`crate::reach`].

use std::collections::BTreeSet;

use futures_util::future::join_all;
use runtime::{Class, Duration};

use super::Master;
use crate::limits::{PING, UNREACHED};

/// Pause between two looks of a master that is alone for others: a process without clients sleeps.
const ALONE: Duration = Duration::from_secs(1);

impl Master {
    /// Pings the other masters from now on.
    pub(super) fn start_pings(&self) {
        let this = self.clone();
        self.0.env.spawn(Class::Control, "pings of masters", async move {
            let mut next = this.0.env.now() + PING;
            loop {
                this.0.env.sleep_until(next).await;
                if this.ping_others() {
                    this.judge_reach();
                    // A late round is no reason for two in a row.
                    next = (next + PING).max(this.0.env.now() + PING / 2);
                } else {
                    next = this.0.env.now() + ALONE;
                }
            }
        });
    }

    /// False when there are no others.
    fn ping_others(&self) -> bool {
        let (env, own) = (&self.0.env, self.0.cluster.master());
        let hosts = self.0.router.hosts().into_iter();
        let others: BTreeSet<u64> =
            hosts.flat_map(|host| host.voters()).filter(|&other| other != own).collect();
        let (sent, are_there) = (env.now(), !others.is_empty());
        self.0.reach.borrow_mut().begin_round(sent, &others);
        for other in others {
            let this = self.clone();
            env.spawn(Class::Control, "ping of a master", async move {
                let answer = this.0.peers.ping(own, other, UNREACHED).await;
                if let Some(unreached) = answer {
                    let (now, doubts) = (this.0.env.now(), unreached.contains(&own));
                    this.0.reach.borrow_mut().note_answer(now, other, sent, doubts);
                }
            });
        }
        are_there
    }

    /// Another master has pinged this one: the answer.
    pub(super) fn answer_ping(&self, body: &[u8]) -> Vec<u8> {
        let (now, mut reach) = (self.0.env.now(), self.0.reach.borrow_mut());
        if let Ok(from) = body.try_into() {
            reach.note_ping(now, u64::from_le_bytes(from));
        }
        let own = self.0.cluster.master();
        let ids = [own].into_iter().chain(reach.unreached(now));
        ids.flat_map(u64::to_le_bytes).collect()
    }

    /// Hands over what this master leads when others hear it and do not reach it.
    fn judge_reach(&self) {
        let now = self.0.env.now();
        let Some(successors) = self.0.reach.borrow().successors(now) else { return };
        let hosts = self.0.router.hosts().into_iter();
        let led: Vec<_> = hosts.filter(|host| host.leadership().leading).collect();
        if led.is_empty() || successors.is_empty() {
            return;
        }
        self.0.reach.borrow_mut().note_hand_over(now);
        self.0.env.mark("master: hands over what it leads");
        tracing::warn!(
            master = self.0.cluster.master(),
            "other masters hear this one and do not reach it: another leads from now on. Check what \
             is sent to its address, such as a firewall's rules"
        );
        self.0.env.spawn(Class::Control, "hand over", async move {
            join_all(led.iter().map(|host| host.lead_no_more(&successors))).await;
        });
    }
}
