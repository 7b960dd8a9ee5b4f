//! Holders of locks that do not answer (`protocols-tail.md` 10.11): a client doubts one that it does not
//! reach, and no other.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use base::Kind;
use client::{Client, Config, DataAnswer, PeerError, Peers, Recipient};
use futures_util::future::{FutureExt, LocalBoxFuture, join_all};
use runtime::sim::Sim;
use runtime::{Buf, Duration, Env, Instant};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, ServiceMessage,
    ServiceTag, holder_text,
};
use wire::data::{DataError, DataRequest};

use crate::fake::Fake;

const LOCK: &str = "leader";
const MS: Duration = Duration::from_millis(1);

/// What becomes of what is sent to the holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Requests take a second; pings are answered at once.
    Busy,
    /// Nothing comes back.
    Cut,
    /// Connections are refused.
    Refused,
    /// Nothing comes back over the first link, which breaks at this time; all is well over the next one.
    DeadLink(Duration),
}

#[derive(Clone)]
struct Network {
    env: Env,
    inner: Rc<dyn Peers>,
    way: Way,
    began: Instant,
    /// Who holds the lock.
    holder: Rc<RefCell<SocketAddr>>,
    /// Doubts that came, and requests to the holder.
    doubts: Rc<RefCell<Vec<u64>>>,
    asked: Rc<Cell<u32>>,
}

const FENCING: u64 = 7;

fn addr(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, number], 7300))
}

fn request() -> ControlRequest {
    let tag = ServiceTag::new(100).unwrap();
    ControlRequest::Service(ServiceMessage { tag, body: Vec::new() })
}

impl Network {
    async fn ask_the_holder(
        self,
        request: ControlRequest,
        timeout: Duration,
    ) -> Result<ControlReply, PeerError<ControlError>> {
        let silent = || PeerError::Silent("no answer in time".to_owned());
        // A holder refuses what it does not know: that is an answer.
        let refused =
            || PeerError::Refused(ControlError::new(Kind::Invalid, "this is another service"));
        let is_ping = matches!(request, ControlRequest::Cluster(_));
        self.asked.set(self.asked.get() + u32::from(!is_ping));
        let late = match self.way {
            Way::Refused => return Err(PeerError::Unreachable("refused".to_owned())),
            Way::Busy if !is_ping => 1000 * MS,
            Way::DeadLink(breaks) if self.env.now() < self.began + breaks => {
                let left = self.began + breaks - self.env.now();
                self.env.sleep(left.min(timeout)).await;
                return Err(silent());
            }
            Way::Busy | Way::DeadLink(_) => MS,
            Way::Cut => timeout,
        };
        self.env.sleep(late.min(timeout)).await;
        match late >= timeout {
            true => Err(silent()),
            false if is_ping => Err(refused()),
            false => Ok(ControlReply::Service(ServiceMessage {
                tag: ServiceTag::new(100).unwrap(),
                body: Vec::new(),
            })),
        }
    }
}

impl Peers for Network {
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        if to.addr == addr(1) {
            return self.clone().ask_the_holder(request, timeout).boxed_local();
        }
        let answer = match &request {
            ControlRequest::Cluster(ClusterRequest::LockHolder { name }) if name == LOCK => {
                ClusterReply::Holder(Some((holder_text("p", *self.holder.borrow()), FENCING)))
            }
            ControlRequest::Cluster(ClusterRequest::LockDoubt { name, fencing })
                if name == LOCK =>
            {
                self.doubts.borrow_mut().push(*fencing);
                ClusterReply::Done
            }
            _ => return self.inner.control(to, request, timeout),
        };
        async move { Ok(ControlReply::Cluster(answer)) }.boxed_local()
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        self.inner.data(to, request, token, payload, timeout)
    }
}

/// Runs work with a client whose requests to the holder go that way.
fn run<F: Future<Output = ()>>(way: Way, work: impl FnOnce(Client, Network) -> F) {
    let sim = Sim::new(5);
    let host = sim.add_host("client");
    let env = sim.boot(host);
    let fake = Fake::new(1, 3);
    let network = Network {
        env: env.clone(),
        inner: fake.peers(&env),
        way,
        began: env.now(),
        holder: Rc::new(RefCell::new(addr(1))),
        doubts: Rc::default(),
        asked: Rc::default(),
    };
    let root = async move {
        let peers = Rc::new(network.clone());
        let config = Config::default();
        let client = Client::connect_over(&env, peers, fake.masters(), config).await.unwrap();
        work(client, network).await;
    };
    sim.run(root).expect("no deadlock");
}

/// Asks the holder, with 1.5 s for the answer; how long it took.
async fn ask(client: &Client) -> (bool, Duration) {
    let began = client.env().now();
    let answer = client.ask_holder(LOCK, addr(1), request(), 1500 * MS).await;
    (answer.is_ok(), client.env().now() - began)
}

#[test]
fn holder_that_is_busy_is_waited_for_and_not_doubted() {
    run(Way::Busy, async move |client, network| {
        let (answered, took) = ask(&client).await;
        assert!(answered && took >= 1000 * MS);
        client.env().sleep(3000 * MS).await;
        assert!(network.doubts.borrow().is_empty());
    });
}

#[test]
fn holder_that_is_silent_is_given_up_and_doubted() {
    for way in [Way::Cut, Way::Refused] {
        run(way, async move |client, network| {
            // Many ask: it is doubted once.
            let asked: Vec<_> = (0..20).map(|_| ask(&client)).collect();
            for (answered, took) in join_all(asked).await {
                assert!(!answered && took < 400 * MS, "{took:?}");
            }
            client.env().sleep(1000 * MS).await;
            assert_eq!(*network.doubts.borrow(), [FENCING], "{way:?}");
            // And again for as long as it is asked.
            ask(&client).await;
            client.env().sleep(1000 * MS).await;
            assert_eq!(*network.doubts.borrow(), [FENCING; 2], "{way:?}");
        });
    }
}

#[test]
fn attempt_that_is_shorter_than_silence_may_end_in_a_doubt_too() {
    run(Way::Cut, async move |client, network| {
        let asked = client.ask_holder(LOCK, addr(1), request(), 200 * MS).await;
        assert!(matches!(asked, Err(PeerError::Silent(_))));
        client.env().sleep(1000 * MS).await;
        assert_eq!(*network.doubts.borrow(), [FENCING]);
    });
}

#[test]
fn holder_behind_a_dead_link_is_not_doubted() {
    run(Way::DeadLink(550 * MS), async move |client, network| {
        let (answered, _) = ask(&client).await;
        assert!(!answered);
        client.env().sleep(1000 * MS).await;
        assert!(network.doubts.borrow().is_empty());
        assert!(ask(&client).await.0);
    });
}

#[test]
fn earlier_holder_is_not_doubted() {
    run(Way::Cut, async move |client, network| {
        network.holder.replace(addr(2));
        ask(&client).await;
        client.env().sleep(1000 * MS).await;
        assert!(network.doubts.borrow().is_empty());
    });
}
