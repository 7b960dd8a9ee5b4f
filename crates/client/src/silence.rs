//! Watch over masters that leave requests without an answer. One that answers pings works on them; one
//! that does not is given up long before its answer is (`protocols-tail.md` 10.2, 10.12).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::rc::Rc;

use runtime::sync::Notify;
use runtime::{Class, Env};
use wire::control::{ClusterRequest, ControlRequest};

use crate::limits::{OWN_PAUSE, PING_AFTER, PING_TIMEOUT};
use crate::peers::{PeerError, Peers};

/// The masters that requests wait for.
#[derive(Clone)]
pub(crate) struct Silence(Rc<Inner>);

struct Inner {
    env: Env,
    peers: Rc<dyn Peers>,
    masters: RefCell<BTreeMap<SocketAddr, Rc<Waiting>>>,
}

/// Requests that wait for one master.
#[derive(Default)]
struct Waiting {
    requests: Cell<u32>,
    /// Answers of the master, to requests and pings.
    answers: Cell<u64>,
    silent: Notify,
}

/// A request that waits.
struct Waits(Rc<Waiting>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
    }
}

impl Silence {
    pub(crate) fn new(env: &Env, peers: Rc<dyn Peers>) -> Silence {
        Silence(Rc::new(Inner { env: env.clone(), peers, masters: RefCell::default() }))
    }

    /// Whether a master answers a ping now.
    pub(crate) async fn answers(&self, master: SocketAddr) -> bool {
        self.0.answers(master).await
    }

    /// Returns when a master is silent, to pings too. Dropped with the request that waits for it.
    pub(crate) async fn of(&self, master: SocketAddr) {
        let (waiting, watched) = match self.0.masters.borrow_mut().entry(master) {
            Entry::Occupied(entry) => (entry.get().clone(), true),
            Entry::Vacant(entry) => (entry.insert(Rc::default()).clone(), false),
        };
        waiting.requests.set(waiting.requests.get() + 1);
        let waits = Waits(waiting);
        if !watched {
            let watch = watch(self.0.clone(), master, waits.0.clone());
            self.0.env.spawn(Class::Foreground, "client: watch over a master", watch);
        }
        waits.0.silent.notified().await;
    }

    /// A master has answered a request.
    pub(crate) fn note_answer(&self, master: SocketAddr) {
        if let Some(waiting) = self.0.masters.borrow().get(&master) {
            waiting.answers.set(waiting.answers.get() + 1);
        }
    }
}

/// Pings a master while requests wait for it and none is answered.
async fn watch(inner: Rc<Inner>, master: SocketAddr, waiting: Rc<Waiting>) {
    loop {
        let answers = waiting.answers.get();
        inner.env.sleep(PING_AFTER).await;
        if waiting.requests.get() == 0 {
            inner.masters.borrow_mut().remove(&master);
            return;
        }
        if waiting.answers.get() == answers && !inner.answers(master).await {
            waiting.silent.notify_waiters();
        }
    }
}

impl Inner {
    /// Any answer is one. Time in which this process itself stood still does not count.
    async fn answers(&self, master: SocketAddr) -> bool {
        let sent = self.env.now();
        let ping = ControlRequest::Cluster(ClusterRequest::Info);
        let answer = self.peers.control(master.into(), ping, PING_TIMEOUT).await;
        let paused = self.env.now() - sent > PING_TIMEOUT + OWN_PAUSE;
        let silent = matches!(answer, Err(PeerError::Unreachable(_) | PeerError::Silent(_)));
        !silent || paused
    }
}
