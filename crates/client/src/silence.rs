//! Watch over masters that leave requests without an answer. One that answers pings works on them; one
//! that does not is given up long before its answer is (`protocols-tail.md` 10.2, 10.12).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use runtime::sync::Notify;
use runtime::{Class, Env, JoinHandle};
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
    /// The task that pings it. It ends with the last request: a timer left behind would wake an idle
    /// process for nothing.
    watch: RefCell<Option<JoinHandle<()>>>,
}

/// A request that waits.
struct Waits {
    inner: Rc<Inner>,
    master: SocketAddr,
    waiting: Rc<Waiting>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let left = self.waiting.requests.get() - 1;
        self.waiting.requests.set(left);
        if left == 0 {
            self.inner.masters.borrow_mut().remove(&self.master);
            if let Some(watch) = self.waiting.watch.take() {
                watch.abort();
            }
        }
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
        let inner = &self.0;
        let waiting = inner.masters.borrow_mut().entry(master).or_default().clone();
        waiting.requests.set(waiting.requests.get() + 1);
        if waiting.requests.get() == 1 {
            let watch = watch(inner.clone(), master, waiting.clone());
            let watch = inner.env.spawn(Class::Foreground, "client: watch over a master", watch);
            waiting.watch.replace(Some(watch));
        }
        let waits = Waits { inner: inner.clone(), master, waiting };
        waits.waiting.silent.notified().await;
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
