//! The leadership of a group that a member publishes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use metrics::Counter;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::vote::RaftLeaderId;
use openraft::{Raft, ServerState};
use runtime::sync::watch;
use runtime::{Class, Env};

use super::machine::Worker;
use super::types::Types;

/// The leader of a group, as this member knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// Its leader.
    pub leader: Option<u64>,
    /// This member leads: it takes proposals. It may be deposed already without knowing.
    pub leading: bool,
}

/// The leadership that others see.
pub(super) struct Published {
    /// None: the member has stopped.
    sender: RefCell<Option<watch::Sender<Leadership>>>,
    receiver: watch::Receiver<Leadership>,
    /// The term in which this member has led and handed over, and to whom.
    given_up: Cell<Option<(u64, u64)>>,
}

impl Published {
    /// Follows the library's state from now on, and counts leaders that come.
    pub(super) fn watch(
        env: &Env,
        node: u64,
        raft: &Raft<Types, Worker>,
        elections: Counter,
    ) -> Rc<Published> {
        let (sender, receiver) = watch::channel(Leadership::default());
        let (sender, given_up) = (RefCell::new(Some(sender)), Cell::new(None));
        let published = Rc::new(Published { sender, receiver, given_up });
        let this = published.clone();
        let mut metrics = raft.server_metrics();
        env.spawn(Class::Control, "raft leadership", async move {
            loop {
                let now = {
                    let metrics = metrics.borrow_and_update();
                    this.unless_given_up(Leadership {
                        term: metrics.vote.leader_id.term(),
                        leader: metrics.current_leader,
                        leading: metrics.state == ServerState::Leader
                            && metrics.current_leader == Some(node),
                    })
                };
                this.modify(|known| {
                    let before = std::mem::replace(known, now);
                    if now.leader.is_some()
                        && (now.leader, now.term) != (before.leader, before.term)
                    {
                        elections.inc();
                    }
                });
                if metrics.changed().await.is_err() {
                    // The member has stopped; it leads nothing, and follows nothing.
                    this.modify(|known| (known.leader, known.leading) = (None, false));
                    this.sender.take();
                    return;
                }
            }
        });
        published
    }

    pub(super) fn now(&self) -> Leadership {
        *self.receiver.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Leadership> {
        self.receiver.clone()
    }

    /// The member hands over: it leads no more in this term, though it may hear of no other leader.
    pub(super) fn give_up(&self, term: u64, successor: u64) {
        self.given_up.set(Some((term, successor)));
        self.modify(|known| *known = self.unless_given_up(*known));
    }

    fn modify(&self, change: impl FnOnce(&mut Leadership)) {
        if let Some(sender) = &*self.sender.borrow() {
            sender.send_if_modified(|known| {
                let before = *known;
                change(known);
                before != *known
            });
        }
    }

    fn unless_given_up(&self, now: Leadership) -> Leadership {
        match self.given_up.get() {
            Some((term, successor)) if term == now.term && now.leading => {
                Leadership { leader: Some(successor), leading: false, ..now }
            }
            _ => now,
        }
    }
}
