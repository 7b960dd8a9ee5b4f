//! [`Network`]: what is between gateways, owners and the manager, in the simulator: requests and answers
//! are lost, late and doubled, and go to owners that are none any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use object_index::Owners;
use object_proto::{Error, RangeRequest, Reply, Request};
use runtime::sim::Sim;
use runtime::sync::oneshot;
use runtime::{Class, Duration, Env};

/// A process that may own a range, or be the manager.
pub trait Target {
    /// Its environment; work of a request runs there, and ends when it crashes.
    fn env(&self) -> Env;
    /// Answers a request.
    fn handle(&self, request: Request) -> LocalBoxFuture<'static, Result<Reply, Error>>;
    /// Requests of this kind are for it, while it leads.
    fn takes(&self, request: &Request) -> bool;
    /// It says that it owns what a request is for.
    fn leads(&self, request: &Request) -> bool;
}

/// Odds of what happens to a frame, "one in n"; 0 is never.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// It is lost.
    pub lose: u64,
    /// It comes late, up to [`Fate::late`].
    pub late_one_in: u64,
    /// How late at most.
    pub late: Duration,
    /// It comes twice, the second time late.
    pub double: u64,
    /// It goes to a process that leads no more, or not yet.
    pub stray: u64,
}

impl Fate {
    /// Nothing happens to frames.
    pub const NONE: Fate =
        Fate { lose: 0, late_one_in: 0, late: Duration::ZERO, double: 0, stray: 0 };
}

struct NetworkInner {
    sim: Sim,
    targets: RefCell<Vec<Rc<dyn Target>>>,
    fate: Cell<Fate>,
    /// Frames of these gateways are held until then.
    held: RefCell<BTreeMap<u32, std::time::Duration>>,
    /// Frames of these gateways do not reach the manager until then.
    cut: RefCell<BTreeMap<u32, std::time::Duration>>,
    /// Changes of these gateways are held until then.
    late: RefCell<BTreeMap<u32, std::time::Duration>>,
    /// Requests to these owners are lost until then.
    deaf: RefCell<BTreeMap<u32, std::time::Duration>>,
}

/// Connects gateways, owners and managers. Clones share it.
#[derive(Clone)]
pub struct Network(Rc<NetworkInner>);

impl Network {
    /// A network without targets.
    pub fn new(sim: &Sim) -> Network {
        let (targets, fate) = (RefCell::default(), Cell::new(Fate::NONE));
        let (held, cut, late, deaf) = Default::default();
        let sim = sim.clone();
        Network(Rc::new(NetworkInner { sim, targets, fate, held, cut, late, deaf }))
    }

    /// Changes the fate of frames.
    pub fn set_fate(&self, fate: Fate) {
        self.0.fate.set(fate);
    }

    /// Holds all frames of a gateway back for a time: none is lost, all come behind it.
    pub fn hold(&self, gateway: &Env, time: Duration) {
        self.0.held.borrow_mut().insert(gateway.node(), self.0.sim.elapsed() + time);
    }

    /// Holds the changes of a gateway back for a time; its questions come through.
    pub fn hold_changes(&self, gateway: &Env, time: Duration) {
        self.0.late.borrow_mut().insert(gateway.node(), self.0.sim.elapsed() + time);
    }

    /// How long a request is held back beside its delay.
    fn late(&self, gateway: u32, request: &Request) -> Duration {
        let until = self.0.late.borrow().get(&gateway).copied().unwrap_or_default();
        match request {
            Request::Range(_, RangeRequest::Change { .. }) => {
                until.saturating_sub(self.0.sim.elapsed())
            }
            _ => Duration::ZERO,
        }
    }

    /// Cuts a gateway off from the manager for a time; it reaches owners.
    pub fn cut_from_manager(&self, gateway: &Env, time: Duration) {
        self.0.cut.borrow_mut().insert(gateway.node(), self.0.sim.elapsed() + time);
    }

    /// Requests to a process are lost for a time, all others' and the manager's; its own come through.
    pub fn cut_off(&self, owner: &Env, time: Duration) {
        self.0.deaf.borrow_mut().insert(owner.node(), self.0.sim.elapsed() + time);
    }

    fn is_deaf(&self, owner: &Env) -> bool {
        let until = self.0.deaf.borrow().get(&owner.node()).copied().unwrap_or_default();
        self.0.sim.elapsed() < until
    }

    fn is_cut(&self, gateway: u32, request: &Request) -> bool {
        let until = self.0.cut.borrow().get(&gateway).copied().unwrap_or_default();
        matches!(request, Request::Catalog(_)) && self.0.sim.elapsed() < until
    }

    /// A process is there from now on; those before it that have crashed are gone.
    pub fn add(&self, target: Rc<dyn Target>) {
        let targets = &mut *self.0.targets.borrow_mut();
        targets.retain(|target| !target.env().is_closed());
        targets.push(target);
    }

    /// The network as a process on `env` sees it.
    pub fn owners(&self, env: &Env) -> Rc<dyn Owners> {
        Rc::new(Gateway { network: self.clone(), env: env.clone() })
    }

    fn one_in(&self, odds: u64) -> bool {
        odds != 0 && self.0.sim.with_rng(|rng| rng.one_in(odds))
    }

    fn below(&self, most: Duration) -> Duration {
        let most = most.as_micros() as u64;
        Duration::from_micros(self.0.sim.with_rng(|rng| rng.below(most + 1)))
    }

    /// A process that takes a request and says that it leads, of which there may be two, or another one.
    fn target(&self, request: &Request) -> Option<Rc<dyn Target>> {
        let targets = self.0.targets.borrow();
        let alive = targets.iter().filter(|target| !target.env().is_closed());
        let alive: Vec<_> = alive.filter(|target| target.takes(request)).collect();
        if self.one_in(self.0.fate.get().stray) && !alive.is_empty() {
            let index = self.0.sim.with_rng(|rng| rng.below(alive.len() as u64));
            return Some(alive[index as usize].clone());
        }
        let leading: Vec<_> = alive.iter().filter(|target| target.leads(request)).collect();
        let index = match leading.len() {
            0 => return None,
            1 => 0,
            several => self.0.sim.with_rng(|rng| rng.below(several as u64)) as usize,
        };
        Some(Rc::clone(leading[index]))
    }

    /// How long a frame of a gateway takes; nothing when it is lost.
    fn delay(&self, gateway: u32) -> Option<Duration> {
        let fate = self.0.fate.get();
        if self.one_in(fate.lose) {
            return None;
        }
        let until = self.0.held.borrow().get(&gateway).copied().unwrap_or_default();
        let held = until.saturating_sub(self.0.sim.elapsed());
        Some(match self.one_in(fate.late_one_in) {
            // Mostly a little.
            true => held + self.below(self.below(fate.late)),
            false => held + self.below(Duration::from_micros(500)),
        })
    }

    /// Delivers a request, and its answer, if these come through.
    fn send(
        &self,
        (gateway, target): (u32, &Rc<dyn Target>),
        request: Request,
        answer: Option<oneshot::Sender<Result<Reply, Error>>>,
    ) {
        let Some(delay) = self.delay(gateway) else { return };
        let delay = delay + self.late(gateway, &request);
        let (network, target) = (self.clone(), target.clone());
        // On the way it belongs to neither process.
        self.0.sim.clone().spawn("object frame", async move {
            let sim = network.0.sim.clone();
            sim.sleep(delay).await;
            let env = target.env();
            if env.is_closed() || network.is_deaf(&env) {
                return;
            }
            let work = target.handle(request);
            let done = env.spawn(Class::Foreground, "object request", work).await;
            let (Ok(done), Some(answer), Some(delay)) = (done, answer, network.delay(gateway))
            else {
                return;
            };
            sim.sleep(delay).await;
            let _ = answer.send(done); // The gateway may wait no more.
        });
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Network({} targets)", self.0.targets.borrow().len())
    }
}

struct Gateway {
    network: Network,
    env: Env,
}

impl Owners for Gateway {
    fn call(
        &self,
        request: Request,
        timeout: Duration,
    ) -> LocalBoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let Some(target) = self.network.target(&request) else {
                self.env.sleep(Duration::from_millis(1)).await;
                return Err(Error::Reroute);
            };
            let node = self.env.node();
            if self.network.is_cut(node, &request) {
                self.env.sleep(timeout / 4).await;
                return Err(Error::Unknown { cause: "the manager does not answer".to_owned() });
            }
            let (answer, answered) = oneshot::channel();
            let doubled = self.network.one_in(self.network.0.fate.get().double);
            if doubled {
                let (network, target) = (self.network.clone(), target.clone());
                let (request, late) = (request.clone(), self.network.0.fate.get().late);
                let delay = network.below(network.below(late));
                self.network.0.sim.clone().spawn("object frame again", async move {
                    network.0.sim.sleep(delay).await;
                    network.send((node, &target), request, None);
                });
            }
            self.network.send((node, &target), request, Some(answer));
            match self.env.timeout(timeout, answered).await {
                // These say that nothing was or will be changed, which one frame of two does not know. The
                // transport sends each once.
                Ok(Ok(Err(Error::Reroute | Error::Busy { .. } | Error::Full))) if doubled => {
                    Err(Error::Unknown { cause: "a frame came twice".to_owned() })
                }
                Ok(Ok(answer)) => answer,
                // A frame that is lost is not noticed before the time is over.
                Ok(Err(_)) => {
                    self.env.sleep(timeout / 4).await;
                    Err(Error::Unknown { cause: "the owner does not answer".to_owned() })
                }
                Err(_) => Err(Error::Unknown { cause: "the owner does not answer".to_owned() }),
            }
        })
    }
}
