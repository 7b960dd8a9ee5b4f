//! Watch over masters, and leaders of services, that leave requests without an answer. One that answers
//! pings works on them; one that does not is given up long before its answer is (`protocols-tail.md`
//! 10.2, 10.11, 10.12).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use runtime::sync::Notify;
use runtime::{Class, Duration, Env, Instant, JoinHandle};
use transport::LINK_DEAD;
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
        self.0.answers(master, PING_TIMEOUT).await
    }

    /// Whether a process is reached. The link to it may be dead since an earlier fault, and is given up
    /// first: the second ping is over another one.
    pub(crate) async fn reaches(&self, process: SocketAddr) -> bool {
        self.0.answers(process, LINK_DEAD).await || self.0.answers(process, 2 * PING_TIMEOUT).await
    }

    /// Returns when a master is silent, to pings too. Dropped with the request that waits for it.
    pub(crate) async fn of(&self, master: SocketAddr) {
        self.wait(master).waiting.silent.notified().await;
    }

    fn wait(&self, master: SocketAddr) -> Waits {
        let inner = &self.0;
        let waiting = inner.masters.borrow_mut().entry(master).or_default().clone();
        waiting.requests.set(waiting.requests.get() + 1);
        if waiting.requests.get() == 1 {
            let watch = watch(inner.clone(), master, waiting.clone());
            let watch = inner.env.spawn(Class::Foreground, "client: watch over a master", watch);
            waiting.watch.replace(Some(watch));
        }
        Waits { inner: inner.clone(), master, waiting }
    }

    /// Returns when a process has been silent for twice as long: it may do more than answer masters'
    /// requests, and what follows costs more. Dropped with the request that waits for it.
    pub(crate) async fn lasting(&self, process: SocketAddr) {
        let env = &self.0.env;
        let waits = self.wait(process);
        let mut silent: Option<Instant> = None;
        loop {
            waits.waiting.silent.notified().await;
            let now = env.now();
            if silent.is_some_and(|last| now - last < 2 * (PING_AFTER + PING_TIMEOUT)) {
                return;
            }
            silent = Some(now);
        }
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
        if waiting.answers.get() == answers && !inner.answers(master, PING_TIMEOUT).await {
            waiting.silent.notify_waiters();
        }
    }
}

impl Inner {
    /// Any answer is one. Time in which this process itself stood still does not count.
    async fn answers(&self, master: SocketAddr, timeout: Duration) -> bool {
        let sent = self.env.now();
        let ping = ControlRequest::Cluster(ClusterRequest::Info);
        let answer = self.peers.control(master.into(), ping, timeout).await;
        let paused = self.env.now() - sent > timeout + OWN_PAUSE;
        let silent = matches!(answer, Err(PeerError::Unreachable(_) | PeerError::Silent(_)));
        !silent || paused
    }
}
