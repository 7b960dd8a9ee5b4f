//! [`RemoteOwners`]: the manager and owners of ranges, wherever they are. The manager is the holder of the
//! lock, whose text names its address; it says where ranges are served.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use client::Client;
use futures_util::future::LocalBoxFuture;
use object_proto::{CatalogReply, CatalogRequest, Error, RangeId, Reply, Request};
use runtime::sync::Mutex;
use runtime::{Duration, Env, Instant};
use wire::control::{ClusterReply, ClusterRequest, holder_addr};

use crate::ground::Owners;
use crate::limits::WHERE_ATTEMPT;
use crate::messages::{ask_leader, ask_peer, unknown};
use crate::paths::LOCK;
use crate::peer::Local;

/// Between two questions for the manager, or for the owner of a range, while there is none.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Manager and owners of the client's cluster.
pub struct RemoteOwners {
    client: Client,
    /// Those in this process, which need no message.
    local: RefCell<Local>,
    manager: Cell<Option<SocketAddr>>,
    finding: Mutex<()>,
    ranges: RefCell<BTreeMap<RangeId, SocketAddr>>,
    locating: Mutex<()>,
}

impl RemoteOwners {
    /// Of the client's cluster.
    pub fn new(client: &Client) -> Rc<RemoteOwners> {
        Rc::new(RemoteOwners {
            client: client.clone(),
            local: RefCell::default(),
            manager: Cell::new(None),
            finding: Mutex::new(()),
            ranges: RefCell::default(),
            locating: Mutex::new(()),
        })
    }

    /// A manager and a server are in this process.
    pub fn set_local(&self, local: Local) {
        self.local.replace(local);
    }

    fn env(&self) -> &Env {
        self.client.env()
    }

    /// The address of the lock's holder.
    async fn find(&self, deadline: Instant) -> Result<SocketAddr, Error> {
        let env = self.env();
        let silent = || Error::Busy { cause: "the masters do not answer".to_owned() };
        let left = deadline - env.now();
        let _finding = env.timeout(left, self.finding.lock()).await.map_err(|_| silent())?;
        if let Some(addr) = self.manager.get() {
            return Ok(addr);
        }
        let look = ClusterRequest::LockHolder { name: LOCK.to_owned() };
        let left = deadline - env.now();
        let holder = match env.timeout(left, self.client.cluster_ask(look)).await {
            Ok(Ok(ClusterReply::Holder(holder))) => holder,
            Ok(Ok(_)) => None,
            Ok(Err(error)) => return Err(Error::Busy { cause: error.to_string() }),
            Err(_) => return Err(silent()),
        };
        match holder.and_then(|(text, _)| holder_addr(&text)) {
            Some(addr) => {
                self.manager.set(Some(addr));
                Ok(addr)
            }
            None => {
                // Held for a moment: others that wait for this ask no more often.
                env.sleep(LOOK_PAUSE).await;
                Err(Error::Busy { cause: "no object manager leads".to_owned() })
            }
        }
    }

    async fn ask_manager(
        &self,
        request: CatalogRequest,
        deadline: Instant,
    ) -> Result<Reply, Error> {
        let env = self.env();
        let local = self.local.borrow().manager.clone();
        if let Some(manager) = local.filter(|manager| manager.leads()) {
            let answered = env.timeout(deadline - env.now(), manager.handle(request)).await;
            let answered = answered.unwrap_or_else(|_| Err(unknown("the manager does not answer")));
            return answered.map(Reply::Catalog);
        }
        let addr = match self.manager.get() {
            Some(addr) => addr,
            None => self.find(deadline).await?,
        };
        let request = Request::Catalog(request);
        let answer = ask_leader(&self.client, addr, request, deadline - env.now()).await;
        if matches!(answer, Err(Error::Reroute | Error::Unknown { .. }))
            && self.manager.get() == Some(addr)
        {
            self.manager.set(None);
        }
        answer
    }

    /// The address of a range's owner.
    async fn locate(&self, range: RangeId, deadline: Instant) -> Result<SocketAddr, Error> {
        let env = self.env();
        let silent = || Error::Busy { cause: "the object manager does not answer".to_owned() };
        let left = deadline - env.now();
        let _locating = env.timeout(left, self.locating.lock()).await.map_err(|_| silent())?;
        if let Some(&addr) = self.ranges.borrow().get(&range) {
            return Ok(addr);
        }
        // One that stands still is asked no longer: another one may lead.
        let until = deadline.min(env.now() + WHERE_ATTEMPT);
        match self.ask_manager(CatalogRequest::Where, until).await {
            Ok(Reply::Catalog(CatalogReply::Where(places))) => {
                let known = &mut *self.ranges.borrow_mut();
                if places.iter().all(|place| place.range != range) {
                    // It was split: who asks for it has a former map.
                    known.remove(&range);
                    return Err(Error::Reroute);
                }
                for place in places {
                    match place.addr {
                        Some(addr) => known.insert(place.range, addr),
                        None => known.remove(&place.range),
                    };
                }
            }
            Ok(_) => return Err(unknown("the object manager answered something else")),
            // Nothing was asked of the range.
            Err(error) => return Err(Error::Busy { cause: error.to_string() }),
        }
        let found = self.ranges.borrow().get(&range).copied();
        match found {
            Some(addr) => Ok(addr),
            None => {
                // Held for a moment, as above.
                env.sleep(LOOK_PAUSE).await;
                Err(Error::Busy { cause: format!("{range} has no owner") })
            }
        }
    }

    async fn ask(&self, request: Request, deadline: Instant) -> Result<Reply, Error> {
        let range = match request {
            Request::Catalog(request) => return self.ask_manager(request, deadline).await,
            Request::Range(range, _) => range,
            Request::Server(_) => {
                let message = "a server is asked by its address".to_owned();
                return Err(Error::Invalid { message });
            }
        };
        let env = self.env();
        let known = self.ranges.borrow().get(&range).copied();
        let addr = match known {
            Some(addr) => addr,
            None => self.locate(range, deadline).await?,
        };
        let local = self.local.borrow().clone();
        let here = local.server.as_ref().is_some_and(|server| server.addr() == addr);
        let answer = match here {
            true => {
                let answered = env.timeout(deadline - env.now(), local.handle(request)).await;
                answered.unwrap_or_else(|_| Err(unknown("the owner does not answer")))
            }
            false => ask_peer(&self.client, addr, request, deadline - env.now()).await,
        };
        if matches!(answer, Err(Error::Reroute | Error::Unknown { .. })) {
            let known = &mut *self.ranges.borrow_mut();
            if known.get(&range) == Some(&addr) {
                known.remove(&range);
            }
        }
        answer
    }
}

impl Owners for RemoteOwners {
    fn call(
        &self,
        request: Request,
        timeout: Duration,
    ) -> LocalBoxFuture<'_, Result<Reply, Error>> {
        let deadline = self.env().now() + timeout;
        Box::pin(self.ask(request, deadline))
    }
}

impl fmt::Debug for RemoteOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.manager.get() {
            Some(addr) => write!(f, "RemoteOwners({addr})"),
            None => f.write_str("RemoteOwners(none known)"),
        }
    }
}
