//! [`GatewaySession`]: one life of a gateway: its number of requests, its clock, the epochs of owners and
//! of the manager (`object-protocols.md` 6.3).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};

use object_proto::{
    CatalogReply, CatalogRequest, Error, FileName, RangeId, RangeReply, RangeRequest, Reply,
    Request, RequestHead, SessionId,
};
use runtime::sync::Mutex;
use runtime::{Class, Duration, Env, Instant};

use crate::ground::Owners;
use crate::keys::file_name;
use crate::limits::{
    ATTEMPT, BEAT_INTERVAL, CHANGE_BUDGET, DRIFT, PAUSE, SAMPLE_MAX, SESSION_SILENT,
};

/// A session that the owner has opened.
struct Life {
    id: SessionId,
    /// The beginning of its clock.
    begun: Instant,
    next: Cell<u64>,
    /// Names of files that it has given.
    files: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
    /// Sending time of the last sign of life that was answered.
    heard: Cell<Instant>,
    over: Cell<bool>,
}

impl Life {
    fn floor(&self) -> u64 {
        self.under_way.borrow().first().copied().unwrap_or(self.next.get())
    }
}

/// A session for as long as one upload: its file and its request are of the same session, so that no
/// request names a file that was swept.
#[derive(Clone)]
pub(crate) struct Stay {
    life: Rc<Life>,
    env: Env,
}

impl Stay {
    /// The session.
    pub(crate) fn session(&self) -> SessionId {
        self.life.id
    }

    /// A name that no other file of the session has.
    pub(crate) fn file(&self) -> FileName {
        self.life.files.set(self.life.files.get() + 1);
        file_name(self.life.id, self.life.files.get())
    }

    /// True of the same session.
    pub(crate) fn is_of(&self, other: &Stay) -> bool {
        self.life.id == other.life.id
    }

    /// True when the session is over.
    pub(crate) fn is_over(&self) -> bool {
        self.life.over.get()
    }

    /// A number for a request that begins now. A body that is still being sent has none: requests that
    /// come behind it are over before it.
    pub(crate) fn number(&self) -> Number {
        let number = self.life.next.get();
        self.life.next.set(number + 1);
        self.life.under_way.borrow_mut().insert(number);
        Number { attempts: Cell::new(0), life: self.life.clone(), number }
    }

    /// An error when the session may be over soon: then its files would not be looked after.
    pub(crate) fn check_fresh(&self) -> Result<(), Error> {
        let is_fresh = self.env.now() - self.life.heard.get() < SESSION_SILENT / 2;
        match is_fresh && !self.life.over.get() {
            true => Ok(()),
            false => Err(silent()),
        }
    }
}

/// Number of a request of a session. Until it is dropped the request is not over.
pub(crate) struct Number {
    attempts: Cell<u32>,
    life: Rc<Life>,
    number: u64,
}

impl Drop for Number {
    fn drop(&mut self) {
        self.life.under_way.borrow_mut().remove(&self.number);
    }
}

/// Who decides a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Decider {
    /// The object manager.
    Manager,
    /// The owner of a range.
    Owner(RangeId),
}

/// A decider that answered, and that has a sample of this clock.
#[derive(Clone, Copy)]
struct Route {
    session: SessionId,
    epoch: u64,
    sample_us: u64,
}

struct SessionInner {
    env: Env,
    owners: Rc<dyn Owners>,
    life: RefCell<Option<Rc<Life>>>,
    routes: RefCell<BTreeMap<Decider, Route>>,
    /// The longest round trip of a sample that is in use.
    slack: Cell<Duration>,
    opening: Mutex<()>,
    /// For each decider that was asked for.
    routing: RefCell<BTreeMap<Decider, Rc<Mutex<()>>>>,
}

/// A gateway's session; begun with its first change, and again when it is over.
#[derive(Clone)]
pub(crate) struct GatewaySession(Rc<SessionInner>);

impl GatewaySession {
    pub(crate) fn new(env: &Env, owners: Rc<dyn Owners>) -> GatewaySession {
        GatewaySession(Rc::new(SessionInner {
            env: env.clone(),
            owners,
            life: RefCell::default(),
            routes: RefCell::default(),
            slack: Cell::new(Duration::ZERO),
            opening: Mutex::new(()),
            routing: RefCell::default(),
        }))
    }

    fn life(&self) -> Option<Rc<Life>> {
        self.0.life.borrow().clone().filter(|life| !life.over.get())
    }

    async fn catalog(
        &self,
        request: CatalogRequest,
        timeout: Duration,
    ) -> Result<CatalogReply, Error> {
        match self.0.owners.call(Request::Catalog(request), timeout).await? {
            Reply::Catalog(reply) => Ok(reply),
            Reply::Range(..) | Reply::Server => Err(Error::Reroute),
        }
    }

    /// A number for a request that begins now.
    pub(crate) async fn number(&self) -> Result<Number, Error> {
        Ok(self.stay().await?.number())
    }

    /// The session, for an upload.
    pub(crate) async fn stay(&self) -> Result<Stay, Error> {
        Ok(Stay { life: self.open().await?, env: self.0.env.clone() })
    }

    /// The session, which is begun if there is none.
    async fn open(&self) -> Result<Rc<Life>, Error> {
        if let Some(life) = self.life() {
            return Ok(life);
        }
        let env = &self.0.env;
        let (deadline, mut pause) = (env.now() + CHANGE_BUDGET, PAUSE.0);
        let _opening =
            env.timeout(CHANGE_BUDGET, self.0.opening.lock()).await.map_err(|_| silent())?;
        if let Some(life) = self.life() {
            return Ok(life);
        }
        loop {
            let sent = env.now();
            let cause = match self.catalog(CatalogRequest::OpenSession, ATTEMPT).await {
                Ok(CatalogReply::Session(id)) => return Ok(self.begin(id, sent)),
                Ok(_) => "the owner answered something else".to_owned(),
                Err(error) => error.to_string(),
            };
            if env.now() >= deadline {
                return Err(Error::Busy { cause });
            }
            env.sleep(env.jitter(pause)).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    fn begin(&self, id: SessionId, sent: Instant) -> Rc<Life> {
        let life = Rc::new(Life {
            id,
            begun: sent,
            next: Cell::new(1),
            files: Cell::new(0),
            under_way: RefCell::default(),
            heard: Cell::new(sent),
            over: Cell::new(false),
        });
        self.0.life.replace(Some(life.clone()));
        self.0.routes.borrow_mut().clear();
        let beating = beat(Rc::downgrade(&self.0), life.clone(), self.0.env.clone());
        self.0.env.spawn(Class::Control, "object: session", beating);
        life
    }

    /// The head of a request that is sent now and may be made until `deadline`.
    pub(crate) async fn head(
        &self,
        number: &Number,
        decider: Decider,
        (deadline, left): (Instant, Duration),
    ) -> Result<RequestHead, Error> {
        let life = &number.life;
        if life.over.get() {
            return Err(Error::SessionOver);
        }
        let route = self.route(life, decider, left).await?;
        let us = |at: Instant| (at - life.begun).as_micros() as u64;
        number.attempts.set(number.attempts.get() + 1);
        Ok(RequestHead {
            session: life.id,
            number: number.number,
            attempt: number.attempts.get(),
            floor: life.floor(),
            epoch: route.epoch,
            sample_us: route.sample_us,
            sent_us: us(self.0.env.now()),
            deadline_us: us(deadline),
        })
    }

    /// The epoch of a decider, and the sample that it has of this clock.
    async fn route(
        &self,
        life: &Rc<Life>,
        decider: Decider,
        left: Duration,
    ) -> Result<Route, Error> {
        let known = || {
            let routes = self.0.routes.borrow();
            routes.get(&decider).copied().filter(|route| route.session == life.id)
        };
        if let Some(route) = known() {
            return Ok(route);
        }
        let env = &self.0.env;
        let asked = env.now();
        let routing = self.0.routing.borrow_mut().entry(decider).or_default().clone();
        let _routing = env.timeout(left, routing.lock()).await.map_err(|_| silent())?;
        if let Some(route) = known() {
            return Ok(route);
        }
        let sent = env.now();
        let left = left.saturating_sub(sent - asked);
        let sent_us = (sent - life.begun).as_micros() as u64;
        let session = life.id;
        let ask = match decider {
            Decider::Manager => Request::Catalog(CatalogRequest::Route { session, sent_us }),
            Decider::Owner(range) => {
                Request::Range(range, RangeRequest::Route { session, sent_us })
            }
        };
        match self.0.owners.call(ask, ATTEMPT.min(left)).await {
            Ok(
                Reply::Catalog(CatalogReply::Route(epoch)) | Reply::Range(RangeReply::Route(epoch)),
            ) => {
                let round_trip = env.now() - sent;
                if round_trip > SAMPLE_MAX {
                    return Err(Error::Busy { cause: "the owner answers slowly".to_owned() });
                }
                life.heard.set(life.heard.get().max(sent));
                self.0.slack.set(self.0.slack.get().max(round_trip));
                let route = Route { session, epoch, sample_us: sent_us };
                self.0.routes.borrow_mut().insert(decider, route);
                Ok(route)
            }
            Ok(_) => Err(Error::Reroute),
            Err(Error::SessionOver) => {
                life.over.set(true);
                Err(Error::SessionOver)
            }
            Err(error) => Err(error),
        }
    }

    /// The decider is another one, or does not answer.
    pub(crate) fn lost_route(&self, decider: Decider) {
        self.0.routes.borrow_mut().remove(&decider);
    }

    /// The session of a request is over.
    pub(crate) fn over(&self, number: &Number) {
        number.life.over.set(true);
    }

    /// When a request with this deadline is made or never will be: its owner knows this clock to a
    /// round trip, and the clocks drift.
    pub(crate) fn decided_by(&self, deadline: Instant) -> Instant {
        deadline + self.0.slack.get() + CHANGE_BUDGET * DRIFT / 1000
    }
}

impl fmt::Debug for GatewaySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.life() {
            Some(life) => write!(f, "{}", life.id),
            None => f.write_str("no session"),
        }
    }
}

fn silent() -> Error {
    Error::Busy { cause: "the owner of the objects is silent".to_owned() }
}

/// Keeps a session alive while its gateway is there.
async fn beat(session: Weak<SessionInner>, life: Rc<Life>, env: Env) {
    loop {
        env.sleep(env.jitter(BEAT_INTERVAL)).await;
        let Some(inner) = session.upgrade() else { return };
        if life.over.get() && life.under_way.borrow().is_empty() {
            return;
        }
        let sent = env.now();
        let session = GatewaySession(inner);
        match session.catalog(CatalogRequest::Beat(life.id), ATTEMPT).await {
            Ok(_) => life.heard.set(sent),
            Err(Error::SessionOver) => life.over.set(true),
            Err(_) => {}
        }
    }
}
