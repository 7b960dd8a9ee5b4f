//! A network between the members of a simulated cluster that loses, delays, reorders and
//! duplicates messages, and blocks paths one way.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use master_consensus::{Groups, LocalFuture, NetError, PeerSend};
use runtime::sim::Sim;
use runtime::sync::oneshot;
use runtime::{Class, Duration, Env};

/// Odds are "one in n", 0 is never.
#[derive(Clone, Default)]
pub struct Faults {
    pub drop_one_in: u64,
    pub duplicate_one_in: u64,
    pub delay_one_in: u64,
}

pub struct Network {
    sim: Sim,
    nodes: RefCell<BTreeMap<u64, (Env, Groups)>>,
    blocked: RefCell<BTreeSet<(u64, u64)>>,
    /// The member at an address that another has for a third.
    strays: RefCell<BTreeMap<(u64, u64), u64>>,
    faults: RefCell<Faults>,
}

impl Network {
    pub fn new(sim: &Sim) -> Rc<Network> {
        Rc::new(Network {
            sim: sim.clone(),
            nodes: RefCell::default(),
            blocked: RefCell::default(),
            strays: RefCell::default(),
            faults: RefCell::default(),
        })
    }

    pub fn attach(&self, node: u64, env: &Env, groups: &Groups) {
        self.nodes.borrow_mut().insert(node, (env.clone(), groups.clone()));
    }

    pub fn detach(&self, node: u64) {
        self.nodes.borrow_mut().remove(&node);
    }

    pub fn set_faults(&self, faults: Faults) {
        *self.faults.borrow_mut() = faults;
    }

    pub fn block(&self, from: u64, to: u64) {
        self.blocked.borrow_mut().insert((from, to));
    }

    /// Messages of `from` to `to` arrive at `there`.
    pub fn stray(&self, from: u64, to: u64, there: u64) {
        self.strays.borrow_mut().insert((from, to), there);
    }

    pub fn heal(&self) {
        self.blocked.borrow_mut().clear();
        self.strays.borrow_mut().clear();
    }

    pub fn endpoint(self: &Rc<Self>, node: u64) -> Rc<dyn PeerSend> {
        Rc::new(Endpoint { net: self.clone(), node })
    }

    /// Times at which the copies of one message arrive; none when it is lost.
    fn arrivals(&self) -> Vec<Duration> {
        let faults = self.faults.borrow().clone();
        self.sim.with_rng(|rng| {
            if rng.one_in(faults.drop_one_in) {
                return Vec::new();
            }
            let copies = if rng.one_in(faults.duplicate_one_in) { 2 } else { 1 };
            let mut arrival = || {
                let late = rng.one_in(faults.delay_one_in);
                Duration::from_micros(rng.between(50, if late { 400_000 } else { 1_000 }))
            };
            (0..copies).map(|_| arrival()).collect()
        })
    }

    fn is_blocked(&self, from: u64, to: u64) -> bool {
        self.blocked.borrow().contains(&(from, to))
    }
}

type Answer = Rc<RefCell<Option<oneshot::Sender<Result<Vec<u8>, NetError>>>>>;

struct Endpoint {
    net: Rc<Network>,
    node: u64,
}

impl PeerSend for Endpoint {
    fn send(
        &self,
        to: u64,
        group: u32,
        rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        let (sender, receiver) = oneshot::channel();
        let answer: Answer = Rc::new(RefCell::new(Some(sender)));
        let to = self.net.strays.borrow().get(&(self.node, to)).copied().unwrap_or(to);
        for arrival in self.net.arrivals() {
            let (net, from) = (self.net.clone(), self.node);
            let (rpc, answer) = (rpc.clone(), answer.clone());
            self.net.sim.spawn("request", async move {
                net.sim.sleep(arrival).await;
                if net.is_blocked(from, to) {
                    return;
                }
                let Some((env, groups)) = net.nodes.borrow().get(&to).cloned() else { return };
                let back = net.clone();
                env.spawn(Class::Control, "receive", async move {
                    let reply = groups.deliver(group, rpc).await;
                    for arrival in back.arrivals() {
                        let (net, reply, answer) = (back.clone(), reply.clone(), answer.clone());
                        back.sim.spawn("reply", async move {
                            net.sim.sleep(arrival).await;
                            let waiting = answer.borrow_mut().take();
                            if let Some(sender) = waiting
                                && !net.is_blocked(to, from)
                            {
                                let _ = sender.send(reply);
                            }
                        });
                    }
                });
            });
        }
        drop(answer);
        Box::pin(async move {
            match receiver.await {
                Ok(reply) => reply,
                // Some connections break; others stay silent for ever.
                Err(_) if self.net.sim.with_rng(|rng| rng.one_in(2)) => Err(NetError::Lost),
                Err(_) => std::future::pending().await,
            }
        })
    }
}
