//! Owners in other processes: requests on the core's transport, in the envelope of its control
//! messages (`docs/formats/services.md`).

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use base::Kind;
use client::leader::holder_addr;
use client::{Client, PeerError};
use futures_util::future::LocalBoxFuture;
use object_proto::wire::{decode_answer, encode_answer};
use object_proto::{Error, Reply, Request};
use runtime::sync::Mutex;
use runtime::{Class, Duration, Env, Instant};
use transport::{Handler, Incoming, Response, Service};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, ServiceMessage,
    ServiceTag, TraceReply,
};

use crate::ground::Owners;
use crate::owner::Owner;
use crate::paths::LOCK;

/// Requests to the process that owns the objects, and its answers.
pub const OBJECTS: ServiceTag = ServiceTag::new(8).expect("a service's tag");

/// Between two questions for the holder of the lock while there is none.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Answers requests of other processes with an owner.
pub struct OwnerService {
    env: Env,
    owner: Owner,
    name: String,
}

impl OwnerService {
    /// For an endpoint of the process `name`.
    pub fn new(env: &Env, owner: &Owner, name: &str) -> OwnerService {
        OwnerService { env: env.clone(), owner: owner.clone(), name: name.to_owned() }
    }
}

async fn answer(
    env: &Env,
    owner: &Owner,
    (name, body): (&str, &[u8]),
) -> Result<ControlReply, ControlError> {
    let invalid = |what: &str| Err(ControlError::new(Kind::Invalid, what.to_owned()));
    match ControlRequest::decode(body) {
        Ok(ControlRequest::Service(ServiceMessage { tag: OBJECTS, body })) => {
            let Some(request) = Request::decode(&body) else {
                return invalid("no request of this version: update the object servers first");
            };
            let body = encode_answer(&owner.handle(request).await);
            Ok(ControlReply::Service(ServiceMessage { tag: OBJECTS, body }))
        }
        Ok(ControlRequest::Trace(asked)) => {
            let (process, now) = (format!("object server {name}"), env.now().as_nanos());
            let answer = TraceReply::answer(&asked, &process, env.tracer().ring(), now);
            Ok(ControlReply::Trace(answer))
        }
        Ok(_) => invalid("this is an object server: it answers for objects only"),
        Err(error) => invalid(&error.to_string()),
    }
}

impl Handler for OwnerService {
    fn handle(&self, incoming: Incoming) {
        let (env, owner, name) = (self.env.clone(), self.owner.clone(), self.name.clone());
        self.env.spawn(Class::Foreground, "object server request", async move {
            let answered = match incoming.request.service {
                Service::CONTROL => answer(&env, &owner, (&name, &incoming.request.body)).await,
                _ => Err(ControlError::new(Kind::Invalid, "this is an object server")),
            };
            incoming.reply.send(match answered {
                Ok(reply) => Response::ok(reply.encode()),
                Err(error) => Response::error(&error),
            });
        });
    }
}

impl fmt::Debug for OwnerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerService({})", self.name)
    }
}

/// The owner, wherever it is: the holder of the lock, whose text names its address.
pub struct RemoteOwners {
    client: Client,
    /// An owner in this process, which needs no message while it owns the objects.
    local: Option<Owner>,
    known: Cell<Option<SocketAddr>>,
    finding: Mutex<()>,
}

impl RemoteOwners {
    /// Owners of the client's cluster, and perhaps one in this process.
    pub fn new(client: &Client, local: Option<Owner>) -> Rc<RemoteOwners> {
        let known = Cell::new(None);
        Rc::new(RemoteOwners { client: client.clone(), local, known, finding: Mutex::new(()) })
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
        if let Some(addr) = self.known.get() {
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
                self.known.set(Some(addr));
                Ok(addr)
            }
            None => {
                // Held for a moment: others that wait for this ask no more often.
                env.sleep(LOOK_PAUSE).await;
                Err(Error::Busy { cause: "no process owns the objects".to_owned() })
            }
        }
    }

    fn forget(&self, addr: SocketAddr) {
        if self.known.get() == Some(addr) {
            self.known.set(None);
        }
    }

    async fn ask(&self, request: Request, deadline: Instant) -> Result<Reply, Error> {
        let env = self.env();
        if let Some(local) = self.local.as_ref().filter(|local| local.leads()) {
            let answered = env.timeout(deadline - env.now(), local.handle(request)).await;
            return answered.unwrap_or_else(|_| Err(unknown("the owner does not answer")));
        }
        let addr = match self.known.get() {
            Some(addr) => addr,
            None => self.find(deadline).await?,
        };
        let message = ServiceMessage { tag: OBJECTS, body: request.encode() };
        let asked = ControlRequest::Service(message);
        match self.client.ask_peer(addr, asked, deadline - env.now()).await {
            Ok(ControlReply::Service(ServiceMessage { tag: OBJECTS, body })) => {
                let answer = decode_answer(&body)
                    .unwrap_or_else(|| Err(unknown("the owner's answer is of another version")));
                if answer == Err(Error::Reroute) {
                    self.forget(addr);
                }
                answer
            }
            Ok(_) => {
                self.forget(addr);
                Err(unknown("the owner answered something else"))
            }
            // It has not seen the request.
            Err(PeerError::Unreachable(_) | PeerError::Foreign(_)) => {
                self.forget(addr);
                Err(Error::Reroute)
            }
            Err(error @ PeerError::Busy) => Err(Error::Busy { cause: error.to_string() }),
            Err(PeerError::Silent(cause)) => {
                self.forget(addr);
                Err(Error::Unknown { cause })
            }
            Err(PeerError::Refused(error)) => {
                self.forget(addr);
                match error.kind {
                    Kind::Invalid => Err(Error::Invalid { message: error.message }),
                    _ => Err(unknown(&error.message)),
                }
            }
        }
    }
}

fn unknown(cause: &str) -> Error {
    Error::Unknown { cause: cause.to_owned() }
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
        match self.known.get() {
            Some(addr) => write!(f, "RemoteOwners({addr})"),
            None => f.write_str("RemoteOwners(none known)"),
        }
    }
}
