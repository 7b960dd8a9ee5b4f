//! Hosts with endpoints, and a handler that answers what it is asked.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{ClusterId, TraceId};
use runtime::sim::{HostId, NetFaults, Sim};
use runtime::{Buf, Class, Env, Stream};
use transport::{
    CallError, ClusterKey, Endpoint, Handler, Identity, Incoming, Limits, Priority, Request,
    Response, Service, Token,
};
use wire::frame::{FrameKind, HEADER, Header};
use wire::handshake::{Hello, Side, Transcript};

pub const PORT: u16 = 7000;

/// Gives back what came.
pub const OP_ECHO: u16 = 1;
/// Answers after as many microseconds as the body says.
pub const OP_SLOW: u16 = 2;
/// Never answers, and keeps the request for ever.
pub const OP_HOLD: u16 = 3;
/// Drops the request without an answer.
pub const OP_DROP: u16 = 4;
/// A payload of as many bytes as the body says.
pub const OP_FETCH: u16 = 5;
/// A body of as many bytes as the body says.
pub const OP_BODY: u16 = 7;
/// As [`OP_BODY`], after 100 ms.
pub const OP_LATE_BODY: u16 = 8;
/// Answers that it is busy.
pub const OP_BUSY: u16 = 6;
/// Answered with its number as the status.
pub const OP_UNKNOWN: u16 = 99;

pub fn key(number: u8) -> ClusterKey {
    ClusterKey::new([number; 32])
}

pub fn identity(name: &str) -> Identity {
    Identity { cluster: ClusterId::new(7), key: Some(key(1)), name: name.to_owned() }
}

pub fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Byte `index` of a content that differs at each place and for each seed.
pub fn byte_at(seed: u64, index: usize) -> u8 {
    ((seed.wrapping_add(index as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn content(env: &Env, seed: u64, len: usize) -> Option<Buf> {
    if len == 0 {
        return None;
    }
    let mut buf = env.pool().alloc(len).expect("within the budget");
    buf.iter_mut().enumerate().for_each(|(index, byte)| *byte = byte_at(seed, index));
    Some(buf.freeze())
}

pub fn request(op: u16, body: Vec<u8>, payload: Option<Buf>) -> Request {
    Request {
        service: Service::CONTROL,
        op,
        priority: Priority::Foreground,
        flow: 0,
        trace: TraceId::new(99),
        token: Token::NONE,
        body,
        payload,
    }
}

pub struct Server {
    pub env: Env,
    pub held: std::cell::RefCell<Vec<Incoming>>,
    pub seen: std::cell::Cell<u64>,
    /// Bodies of the echoes, in the order of their arrival.
    pub echoed: std::cell::RefCell<Vec<Vec<u8>>>,
    pub cancelled: Rc<std::cell::Cell<u64>>,
}

impl Server {
    pub fn new(env: &Env) -> Rc<Server> {
        Rc::new(Server {
            env: env.clone(),
            held: Default::default(),
            seen: Default::default(),
            echoed: Default::default(),
            cancelled: Rc::default(),
        })
    }
}

fn number(body: &[u8]) -> u64 {
    u64::from_le_bytes(body[..8].try_into().expect("8 bytes"))
}

impl Handler for Server {
    fn handle(&self, incoming: Incoming) {
        self.seen.set(self.seen.get() + 1);
        if let Some(payload) = &incoming.request.payload {
            assert!(
                payload.is_aligned() || payload.len() < 4096,
                "payloads go to disk as they are"
            );
        }
        let env = self.env.clone();
        let Incoming { request, reply, .. } = incoming;
        match request.op {
            OP_ECHO => {
                self.echoed.borrow_mut().push(request.body.clone());
                reply.send(Response { status: 0, body: request.body, payload: request.payload })
            }
            OP_SLOW => {
                let pause = Duration::from_micros(number(&request.body));
                let cancelled = self.cancelled.clone();
                env.clone().spawn(Class::Foreground, "slow answer", async move {
                    env.sleep(pause).await;
                    if reply.is_cancelled() {
                        cancelled.set(cancelled.get() + 1);
                    }
                    reply.send(Response::ok(request.body));
                });
            }
            OP_FETCH => {
                let len = number(&request.body) as usize;
                let payload = content(&env, len as u64, len);
                reply.send(Response { status: 0, body: Vec::new(), payload });
            }
            OP_BODY => reply.send(Response::ok(vec![7; number(&request.body) as usize])),
            OP_LATE_BODY => {
                env.clone().spawn(Class::Foreground, "late answer", async move {
                    env.sleep(millis(100)).await;
                    reply.send(Response::ok(vec![7; number(&request.body) as usize]));
                });
            }
            OP_DROP => drop(reply),
            OP_BUSY => reply.busy(),
            OP_HOLD => self.held.borrow_mut().push(Incoming {
                request,
                reply,
                peer: incoming.peer,
                deadline: incoming.deadline,
            }),
            op => reply.send(Response { status: op, body: Vec::new(), payload: None }),
        }
    }
}

/// A running host with an endpoint that serves at [`PORT`].
pub struct Host {
    pub id: HostId,
    pub env: Env,
    pub endpoint: Endpoint,
    pub addr: SocketAddr,
    pub server: Rc<Server>,
}

pub async fn start(sim: &Sim, id: HostId, name: &str, limits: Limits) -> Host {
    start_as(sim, id, identity(name), limits).await
}

pub async fn start_as(sim: &Sim, id: HostId, identity: Identity, limits: Limits) -> Host {
    let env = sim.boot(id);
    let endpoint = Endpoint::new(&env, identity, limits);
    let server = Server::new(&env);
    let addr = on(&env, {
        let (endpoint, server, addr) = (endpoint.clone(), server.clone(), sim.addr(id, PORT));
        async move { endpoint.listen(addr, server).await.expect("a free address") }
    })
    .await;
    Host { id, env, endpoint, addr, server }
}

/// Runs `work` as a task of `env`'s node.
pub async fn on<T: 'static>(env: &Env, work: impl Future<Output = T> + 'static) -> T {
    env.spawn(Class::Foreground, "test", work).await.expect("the node lives")
}

impl Host {
    /// Calls `peer` from this host.
    pub async fn call(
        &self,
        peer: SocketAddr,
        request: Request,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        let endpoint = self.endpoint.clone();
        on(&self.env, async move { endpoint.call(peer, request, timeout).await }).await
    }
}

pub fn set_net(sim: &Sim, faults: NetFaults) {
    sim.with_net_faults(|now| *now = faults);
}

/// Nothing passes between two hosts.
pub fn partition(sim: &Sim, a: HostId, b: HostId) {
    sim.set_blocked(a, b, true);
    sim.set_blocked(b, a, true);
}

/// Two hosts with endpoints of these limits, and a world to do things to them.
pub fn pair<F: Future<Output = ()>>(
    seed: u64,
    limits: Limits,
    test: impl FnOnce(Sim, Host, Host) -> F,
) -> Sim {
    let sim = Sim::new(seed);
    let (a, b) = (sim.add_host("a"), sim.add_host("b"));
    let world = sim.clone();
    sim.run(async {
        let a = start(&world, a, "client a", limits.clone()).await;
        let b = start(&world, b, "server b", limits).await;
        test(world.clone(), a, b).await;
    })
    .expect("nothing stalls");
    sim
}

/// A peer that sends raw bytes.
pub struct Raw {
    env: Env,
    stream: Stream,
    got: Vec<u8>,
}

impl Raw {
    pub async fn connect(env: &Env, addr: SocketAddr) -> Raw {
        let stream = env.connect(addr).await.expect("a connection");
        Raw { env: env.clone(), stream, got: Vec::new() }
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let buf = self.env.pool().copy_of(bytes).expect("room");
        let _ = self.stream.write.write_all(vec![buf]).await;
    }

    pub async fn send(&mut self, kind: FrameKind, body: &[u8]) {
        let mut header = Header { body_len: body.len() as u32, ..Header::empty(kind) };
        header.body_crc = header.content_crc(body, &[]);
        self.send_bytes(&[&header.encode()[..], body].concat()).await;
    }

    /// A request of the control service, at foreground priority.
    pub async fn request(&mut self, request: u64, op: u16, body: &[u8]) {
        let mut header = Header {
            service: Some(Service::CONTROL),
            priority: Priority::Foreground,
            op,
            request,
            deadline_us: u32::MAX,
            body_len: body.len() as u32,
            ..Header::empty(FrameKind::Request)
        };
        header.body_crc = header.content_crc(body, &[]);
        self.send_bytes(&[&header.encode()[..], body].concat()).await;
    }

    /// Cancels such a request.
    pub async fn cancel(&mut self, request: u64) {
        let priority = Priority::Foreground;
        let header = Header { priority, request, ..Header::empty(FrameKind::Cancel) };
        self.send_bytes(&header.encode()).await;
    }

    /// The next frame, or `None` when the peer has closed.
    pub async fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Ok(header) = Header::decode(&self.got) {
                let end = HEADER + header.following();
                if self.got.len() >= end {
                    let frame: Vec<u8> = self.got.drain(..end).collect();
                    return Some((header, frame[HEADER..].to_vec()));
                }
            }
            let buf = self.env.pool().alloc(4096).expect("room");
            let (count, buf) = self.stream.read.read(buf, 0).await;
            match count {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.got.extend_from_slice(&buf[..count]),
            }
        }
    }

    /// A connection whose handshake is done, with the cluster key.
    pub async fn admitted(env: &Env, addr: SocketAddr) -> Raw {
        let mut raw = Raw::connect(env, addr).await;
        let own = Hello::new(ClusterId::new(7), true, [5; 32], "raw").encode();
        raw.send(FrameKind::Hello, &own).await;
        let (_, peer) = raw.receive().await.expect("a hello");
        raw.receive().await.expect("a proof");
        let transcript = Transcript { connecting: &own, accepting: &peer };
        raw.send(FrameKind::Proof, &transcript.prove(&key(1), Side::Connecting)).await;
        let (header, _) = raw.receive().await.expect("a welcome");
        assert_eq!(header.kind, FrameKind::Welcome);
        raw
    }
}
