//! A service in one file: numbers, messages, a process that leads, its client. The core carries what
//! it says by number; no crate of the core has a line for it (decision 62).

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{Kind, TraceId};
use client::Client;
use client::leader::{Leader, LeaderError, Led};
use runtime::Class;
use runtime::sim::{CrashMode, HostId, Sim};
use sim::cluster::{Cluster, Shape};
use sim::tuning::Tuning;
use transport::{Handler, Incoming, Priority, Request, Response, Service, Token};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, LockChange,
    ServiceMessage, ServiceTag, holder_text,
};

const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 7900;
/// The counter's data path: a body of no bytes is answered with the sum.
const DATA: Service = Service::new(30).expect("a service's number");
/// The counter's control messages.
const TAG: ServiceTag = ServiceTag::new(100).expect("a service's tag");
const COUNTERS: Led =
    Led { lock: "counter", title: "counter", attempt: SECOND, pause: Duration::from_millis(20) };

/// A control message: add a number; the answer is the sum.
fn add(number: u64) -> ControlRequest {
    ControlRequest::Service(ServiceMessage { tag: TAG, body: number.to_le_bytes().to_vec() })
}

fn number(body: &[u8]) -> Option<u64> {
    body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn sum(reply: ControlReply) -> Result<u64, String> {
    match reply {
        ControlReply::Service(message) if message.tag == TAG => {
            number(&message.body).ok_or_else(|| ": an answer of another length".to_owned())
        }
        _ => Err(" is no counter".to_owned()),
    }
}

/// A process of the service. Its counters go with it.
#[derive(Clone, Default)]
struct Counter {
    leads: Rc<Cell<bool>>,
    sum: Rc<Cell<u64>>,
}

impl Counter {
    fn add(&self, body: &[u8]) -> Result<ControlReply, ControlError> {
        let invalid = |text: &str| ControlError::new(Kind::Invalid, text);
        let message = match ControlRequest::decode(body) {
            Ok(ControlRequest::Service(message)) if message.tag == TAG => message,
            Ok(_) => return Err(invalid("this is a counter")),
            Err(error) => return Err(invalid(&error.to_string())),
        };
        if !self.leads.get() {
            return Err(ControlError::new(Kind::Reroute, "another counter leads"));
        }
        let number = number(&message.body).ok_or_else(|| invalid("a number has 8 bytes"))?;
        self.sum.set(self.sum.get() + number);
        let body = self.sum.get().to_le_bytes().to_vec();
        Ok(ControlReply::Service(ServiceMessage { tag: TAG, body }))
    }

    /// Competes for the lock, and renews it, until the host goes down.
    async fn run(self, client: Client, addr: SocketAddr, name: String) {
        let mut held: Option<u64> = None;
        loop {
            let lock = COUNTERS.lock.to_owned();
            let ttl_ms = SECOND.as_millis() as u64;
            let change = match held {
                None => LockChange::Acquire { name: lock, owner: holder_text(&name, addr), ttl_ms },
                Some(fencing) => LockChange::Renew { name: lock, fencing, ttl_ms },
            };
            let build = |op| ClusterRequest::Lock { op, change };
            held = match client.cluster_change("the counter's lock", build).await {
                Ok(ClusterReply::Lock { fencing }) => Some(fencing),
                Ok(_) => held,
                Err(_) => None,
            };
            self.leads.set(held.is_some());
            client.env().sleep(SECOND / 4).await;
        }
    }
}

impl Handler for Counter {
    fn handle(&self, incoming: Incoming) {
        let Incoming { request, reply, .. } = incoming;
        reply.send(match request.service {
            DATA => Response::ok(self.sum.get().to_le_bytes().to_vec()),
            Service::CONTROL => match self.add(&request.body) {
                Ok(answer) => Response::ok(answer.encode()),
                Err(error) => Response::error(&error),
            },
            _ => Response::error(&ControlError::new(Kind::Invalid, "this is a counter")),
        });
    }
}

async fn start(cluster: &Cluster) -> (HostId, SocketAddr) {
    let (host, client) = cluster.client(None).await.expect("the cluster answers");
    let (counter, env) = (Counter::default(), client.env().clone());
    let (addr, endpoint) = (cluster.sim().addr(host, PORT), cluster.endpoint(&env));
    let name = env.name().to_owned();
    let listening = {
        let counter = counter.clone();
        async move { endpoint.listen(addr, Rc::new(counter)).await.map(|_| endpoint) }
    };
    let endpoint = env.spawn(Class::Control, "listen", listening).await.expect("the host is up");
    let endpoint = endpoint.expect("it listens");
    env.clone().spawn(Class::Control, "counter", async move {
        counter.run(client, addr, name).await;
        drop(endpoint);
    });
    (host, addr)
}

fn data_request(body: Vec<u8>) -> Request {
    Request {
        service: DATA,
        op: 1,
        priority: Priority::Foreground,
        flow: 0,
        trace: TraceId::new(1),
        token: Token::NONE,
        body,
        payload: None,
    }
}

#[test]
fn service_of_one_file_is_asked_followed_and_refused() {
    let sim = Sim::new(1);
    let shape = Shape { masters: 3, servers: 3, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, Tuning::default());
    let work = {
        let cluster = cluster.clone();
        async move {
            cluster.settle(30 * SECOND).await?;
            let counters = [start(&cluster).await, start(&cluster).await];
            let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
            let (masters, endpoint) = (cluster.master_addrs(), cluster.endpoint(client.env()));
            let (user, sim) = (client.env().clone(), cluster.sim().clone());
            let asking = async move {
                let leader = Leader::new(&client, COUNTERS);
                let ask = |number| {
                    let leader = leader.clone();
                    async move { leader.ask("add", &add(number), sum, 10 * SECOND).await }
                };
                assert_eq!((ask(5).await, ask(37).await), (Ok(5), Ok(42)));
                // The data path, of the process that leads.
                let mut sums = Vec::new();
                for (host, addr) in counters {
                    let answer = endpoint.call(addr, data_request(Vec::new()), SECOND).await;
                    sums.push((number(&answer.expect("an answer").body), host));
                }
                sums.sort();
                assert_eq!([sums[0].0, sums[1].0], [Some(0), Some(42)]);
                // The core does not know either message, and says so.
                let refused = client.ask_peer(masters[0], add(1), SECOND).await;
                let text = refused.expect_err("a master counts nothing").to_string();
                assert!(text.contains("of the service that the message is of"), "{text}");
                let answer = endpoint.call(masters[0], data_request(Vec::new()), SECOND).await;
                assert_ne!(answer.expect("an answer").status, 0);
                // The next one leads when the first is gone.
                sim.crash(sums[1].1, CrashMode::Power);
                assert_eq!(ask(1).await, Ok(1), "another process, which begins at nothing");
                sim.crash(sums[0].1, CrashMode::Power);
                client.env().sleep(2 * SECOND).await;
                let error = ask(1).await.expect_err("nothing counts any more");
                assert!(matches!(error, LeaderError::Unavailable { .. }), "{error}");
                assert!(error.to_string().contains("no counter answered"), "{error}");
            };
            let asked = user.spawn(Class::Foreground, "user", asking).await;
            cluster.sim().crash(host, CrashMode::Process);
            asked.map_err(|_| "the user's host is down".to_owned())
        }
    };
    assert_eq!(sim.run(work).expect("no deadlock"), Ok(()));
    sim.close();
}
