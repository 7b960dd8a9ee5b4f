//! [`ObjectPeer`]: answers requests of other processes of the object service.

use std::fmt;
use std::net::SocketAddr;

use base::{Kind, TraceId};
use object_proto::wire::encode_answer;
use object_proto::{Error, Reply, Request, ServerRequest};
use runtime::{Class, Env};
use transport::{Handler, Incoming, Response, Service};
use wire::control::{ControlError, ControlReply, ControlRequest, ServiceMessage, TraceReply};

use crate::manager::ObjectManager;
use crate::messages::OBJECTS;
use crate::server::ObjectServer;
use crate::traced::as_operation;

/// The manager and the server of a process, which may have one of them alone.
#[derive(Clone, Default, Debug)]
pub struct Local {
    /// The manager.
    pub manager: Option<ObjectManager>,
    /// The server.
    pub server: Option<ObjectServer>,
}

impl Local {
    /// Answers a request.
    pub async fn handle(&self, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Catalog(request) => {
                let manager = self.manager.as_ref().ok_or(Error::Reroute)?;
                manager.handle(request).await.map(Reply::Catalog)
            }
            Request::Range(range, request) => {
                let server = self.server.as_ref().ok_or(Error::Reroute)?;
                server.handle(range, request).await.map(Reply::Range)
            }
            Request::Server(request) => {
                let server = self.server.as_ref().ok_or(Error::Reroute)?;
                match request {
                    ServerRequest::Ping => {}
                    ServerRequest::BeatNow => server.beat_now(),
                }
                Ok(Reply::Server)
            }
        }
    }
}

/// Answers requests of other processes.
pub struct ObjectPeer {
    env: Env,
    local: Local,
    /// Role and name, as traces show them.
    name: String,
}

impl ObjectPeer {
    /// For an endpoint of the process `name`.
    pub fn new(env: &Env, local: Local, name: String) -> ObjectPeer {
        ObjectPeer { env: env.clone(), local, name }
    }
}

async fn answer(
    env: &Env,
    local: &Local,
    (name, body): (&str, &[u8]),
    from: (TraceId, SocketAddr),
) -> Result<ControlReply, ControlError> {
    let invalid = |what: String| Err(ControlError::new(Kind::Invalid, what));
    match ControlRequest::decode(body) {
        Ok(ControlRequest::Service(ServiceMessage { tag: OBJECTS, body })) => {
            let Some(request) = Request::decode(&body) else {
                let what = "no request of this version: update object managers and servers first";
                return invalid(what.to_owned());
            };
            let body = encode_answer(&handle(env, local, request, from).await);
            Ok(ControlReply::Service(ServiceMessage { tag: OBJECTS, body }))
        }
        Ok(ControlRequest::Trace(asked)) => {
            let now = env.now().as_nanos();
            Ok(ControlReply::Trace(TraceReply::answer(&asked, name, env.tracer().ring(), now)))
        }
        Ok(_) => invalid(format!("this is the {name}: it answers for objects only")),
        Err(error) => invalid(error.to_string()),
    }
}

/// Answers as an operation of the peer's trace.
async fn handle(
    env: &Env,
    local: &Local,
    request: Request,
    (trace, peer): (TraceId, SocketAddr),
) -> Result<Reply, Error> {
    let Some(operation) = request.operation() else { return local.handle(request).await };
    as_operation(env, (trace, operation, Some(peer)), local.handle(request)).await
}

impl Handler for ObjectPeer {
    fn handle(&self, incoming: Incoming) {
        let (env, local, name) = (self.env.clone(), self.local.clone(), self.name.clone());
        self.env.spawn(Class::Foreground, "object request", async move {
            let from = (incoming.request.trace, incoming.peer.addr);
            let answered = match incoming.request.service {
                Service::CONTROL => {
                    answer(&env, &local, (&name, &incoming.request.body), from).await
                }
                _ => Err(ControlError::new(Kind::Invalid, format!("this is the {name}"))),
            };
            incoming.reply.send(match answered {
                Ok(reply) => Response::ok(reply.encode()),
                Err(error) => Response::error(&error),
            });
        });
    }
}

impl fmt::Debug for ObjectPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectPeer({})", self.name)
    }
}
