//! Links within the process: `craton up` runs every role on one executor, and their calls need
//! no socket. A listening address of this thread is called directly; payloads are shared.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::ClusterId;
use metrics::{Fact, Step};
use runtime::Env;
use wire::handshake::{ClusterKey, Hello, agree, wrong_key};

use crate::error::CallError;
use crate::limits::Limits;
use crate::message::{Handler, Incoming, LocalReply, PeerInfo, Reply, Request, Response, Target};
use crate::slot::Slot;

/// A service that is called within the process.
pub(crate) struct Local {
    pub(crate) env: Env,
    pub(crate) name: String,
    pub(crate) key: Option<ClusterKey>,
    pub(crate) cluster: Rc<Cell<ClusterId>>,
    pub(crate) handler: Rc<dyn Handler>,
    pub(crate) inflight: Rc<Cell<usize>>,
    pub(crate) limits: Rc<Limits>,
    pub(crate) open: Cell<bool>,
}

thread_local! {
    /// Listeners on this thread, by address. A simulated world has many nodes in one thread, and
    /// there may be several worlds: the node is compared too.
    static LISTENING: RefCell<BTreeMap<SocketAddr, Vec<Weak<Local>>>> =
        const { RefCell::new(BTreeMap::new()) };
}

pub(crate) fn register(addr: SocketAddr, local: &Rc<Local>) {
    LISTENING.with_borrow_mut(|table| {
        table.retain(|_, held| {
            held.retain(|local| local.strong_count() > 0);
            !held.is_empty()
        });
        table.entry(addr).or_default().push(Rc::downgrade(local));
    });
}

pub(crate) fn find(env: &Env, addr: SocketAddr) -> Option<Rc<Local>> {
    LISTENING.with_borrow(|table| {
        let held = table.get(&addr)?.iter().filter_map(Weak::upgrade);
        held.into_iter().find(|local| local.open.get() && local.env.is_same_node(env))
    })
}

/// The caller.
pub(crate) struct Caller<'a> {
    pub(crate) env: &'a Env,
    pub(crate) name: &'a Rc<PeerInfo>,
    pub(crate) key: Option<&'a ClusterKey>,
    pub(crate) cluster: &'a Cell<ClusterId>,
}

/// Marks the call as cancelled when its caller goes away.
struct CancelOnDrop(Rc<Cell<bool>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// The same terms as over a network: one cluster, one key.
fn admit(local: &Local, caller: &Caller<'_>) -> Result<(), String> {
    if caller.cluster.get() == local.cluster.get() && caller.key == local.key.as_ref() {
        return Ok(());
    }
    let hello = |cluster, key: Option<&ClusterKey>, name: &str| {
        Hello::new(cluster, key.is_some(), [0; 32], name)
    };
    let own = hello(caller.cluster.get(), caller.key, &caller.name.name);
    let peer = hello(local.cluster.get(), local.key.as_ref(), &local.name);
    let agreed = agree(&own, &peer)?;
    if caller.key != local.key.as_ref() {
        return Err(wrong_key(&own.name, &peer.name));
    }
    caller.cluster.set(agreed.cluster);
    local.cluster.set(agreed.cluster);
    Ok(())
}

pub(crate) async fn call(
    caller: Caller<'_>,
    (addr, local): (SocketAddr, Rc<Local>),
    request: Request,
    timeout: Duration,
) -> Result<Response, CallError> {
    admit(&local, &caller).map_err(CallError::Refused)?;
    if local.inflight.get() >= local.limits.requests_max(request.priority) {
        return Err(CallError::Busy);
    }
    local.inflight.set(local.inflight.get() + 1);
    let slot = Slot::new();
    let cancelled = Rc::new(Cell::new(false));
    let reply = LocalReply {
        slot: slot.clone(),
        cancelled: cancelled.clone(),
        inflight: local.inflight.clone(),
    };
    let _cancel = CancelOnDrop(cancelled);
    caller.env.note(Step::Sent, Fact::Peer(addr));
    local.handler.handle(Incoming {
        request,
        peer: caller.name.clone(),
        deadline: caller.env.now() + timeout,
        reply: Reply::new(Target::Local(reply)),
    });
    drop(local);
    let answer = caller.env.timeout(timeout, slot.wait()).await;
    caller.env.note(Step::Replied, Fact::Peer(addr));
    answer.unwrap_or(Err(CallError::Timeout))
}
