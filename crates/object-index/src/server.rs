//! [`ObjectServer`]: a process that owns ranges while the manager says so (`object-protocols.md` 3,
//! `protocols.md` 6.5). It sends heartbeats, opens what it is given, and answers for it while its lease lasts.
//!
//! A table that is opened under a range's epoch shuts the owners before out, so that a change that is durable
//! was this owner's to make, with or without a lease. What is answered from memory or from reads needs one,
//! and waits until the leases of owners before are over.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use futures_util::future::{LocalBoxFuture, join, join_all, select};
use object_proto::{
    CatalogReply, CatalogRequest, Change, Error, ObjectData, ObjectServerId, RangeBound, RangeId,
    RangeLoad, RangeReply, RangeRequest, Reply, Request, Seen, ServerBeat, ServerGrant, Unserved,
};
use runtime::sync::{Notify, oneshot};
use runtime::{Class, Duration, Env, Instant, JoinHandle};
use table::Cache;
use tenancy::lease::{
    Action, Grant, LeaseState, Owned, Ownership, OwnershipLease, Predecessors, Seen as LeaseSeen,
    Setup,
};
use tenancy::limits::{IDLE, RENEW};

use crate::config::Config;
use crate::decisions::{are_apart, unix_us};
use crate::ground::{Files, Lease, Managers, Owners};
use crate::limits::{
    BEAT_LOCAL, BEAT_PAUSE, CLOSE_TIME, HEARTBEAT_ATTEMPT, LEAD_PAUSE, LINK_ATTEMPT, LOADS,
    OPENING_WAIT, SPLIT_ANSWER,
};
use crate::pace::Pace;
use crate::planted::Planted;
use crate::room::Room;
use crate::rule::RangeRule;
use crate::stats::{ServerStats, TableStats};

/// Ranges have nothing beside their epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plain;

impl Setup for Plain {
    fn update(&mut self, _: Plain) -> bool {
        false
    }
}

/// A range of this server's.
struct Place {
    epoch: u64,
    rule: Option<Rc<RangeRule>>,
    /// Why there is no rule.
    cause: String,
    /// There was one.
    ended: bool,
    task: Option<JoinHandle<()>>,
    requests: Cell<u64>,
    bytes: Cell<u64>,
    /// The load that was reported last.
    reported: Cell<(u32, u64)>,
}

struct ServerInner {
    env: Env,
    name: String,
    addr: SocketAddr,
    owners: Rc<dyn Owners>,
    files: Rc<dyn Files>,
    config: Config,
    cache: Cache,
    room: Room,
    pace: Pace,
    ownership: RefCell<OwnershipLease<RangeId, Plain>>,
    places: RefCell<BTreeMap<RangeId, Place>>,
    boot: Cell<u64>,
    /// The manager's wall clock by its last grant, and when that came.
    manager_clock: Cell<Option<(u64, Instant)>>,
    /// It is far from this server's.
    clocks_apart: Cell<bool>,
    /// Requests of clients since it began, and bytes of objects in them.
    asked: Cell<(u64, u64)>,
    beat: Notify,
    /// A range was opened, given or taken.
    changed: Notify,
    leaving: Cell<bool>,
    /// It is about to end, and the manager has taken note.
    left: Cell<bool>,
    stopped: Cell<bool>,
    /// Ranges that are being closed.
    closing: Cell<usize>,
}

/// An object server. Clones share it.
#[derive(Clone)]
pub struct ObjectServer(Rc<ServerInner>);

/// The right to answer for a range from memory.
struct RangeLease {
    server: Weak<ServerInner>,
    range: RangeId,
    epoch: u64,
}

impl Lease for RangeLease {
    fn is_valid(&self) -> bool {
        let server = self.server.upgrade().map(ObjectServer);
        server.is_some_and(|server| server.may_answer(self.range, self.epoch))
    }

    fn manager_us(&self) -> Option<u64> {
        ObjectServer(self.server.upgrade()?).manager_us()
    }
}

/// The way to the manager.
struct Link(Rc<dyn Owners>);

impl Managers for Link {
    fn ask(&self, request: CatalogRequest) -> LocalBoxFuture<'_, Result<CatalogReply, Error>> {
        Box::pin(ask(&*self.0, request, LINK_ATTEMPT))
    }
}

async fn ask(
    owners: &dyn Owners,
    request: CatalogRequest,
    timeout: Duration,
) -> Result<CatalogReply, Error> {
    match owners.call(Request::Catalog(request), timeout).await? {
        Reply::Catalog(reply) => Ok(reply),
        Reply::Range(_) | Reply::Server => Err(Error::Reroute),
    }
}

impl ObjectServer {
    /// A server of this name and address; asks the manager through `owners`. Its address must be answered at
    /// with [`ObjectServer::handle`].
    pub fn start(
        env: &Env,
        (name, addr): (&str, SocketAddr),
        owners: Rc<dyn Owners>,
        files: Rc<dyn Files>,
        config: Config,
    ) -> ObjectServer {
        let server = ObjectServer(Rc::new(ServerInner {
            env: env.clone(),
            name: name.to_owned(),
            addr,
            owners,
            files,
            cache: Cache::new(config.cache_bytes),
            pace: Pace::new(config.lifecycle_bytes_per_s),
            config,
            room: Room::default(),
            ownership: RefCell::default(),
            places: RefCell::default(),
            boot: Cell::new(0),
            manager_clock: Cell::default(),
            clocks_apart: Cell::default(),
            asked: Cell::default(),
            beat: Notify::new(),
            changed: Notify::new(),
            leaving: Cell::new(false),
            left: Cell::new(false),
            stopped: Cell::new(false),
            closing: Cell::new(0),
        }));
        env.spawn(Class::Control, "object server: beats", server.clone().beats());
        env.spawn(Class::Background, "object server: room", server.clone().look_for_room());
        server
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// What it has at present.
    pub fn stats(&self) -> ServerStats {
        let places = self.0.places.borrow();
        let (requests, request_bytes) = self.0.asked.get();
        let (mut served, mut tables) = (0, TableStats::default());
        for rule in places.values().filter_map(|place| place.rule.as_ref()) {
            served += 1;
            tables.add(rule.stats());
        }
        ServerStats { ranges: places.len(), served, requests, request_bytes, tables }
    }

    /// True while it serves a range, as far as it knows.
    pub fn serves(&self, range: RangeId) -> bool {
        let places = self.0.places.borrow();
        places.get(&range).is_some_and(|place| {
            let is_its = !matches!(self.state(range, place.epoch), LeaseState::Revoked);
            place.rule.is_some() && is_its
        })
    }

    /// True while it believes that it may answer for a range from memory: no other server does at that time.
    pub fn believes(&self, range: RangeId) -> bool {
        let epoch = self.0.places.borrow().get(&range).map(|place| place.epoch);
        epoch.is_some_and(|epoch| self.may_answer(range, epoch))
    }

    fn may_answer(&self, range: RangeId, epoch: u64) -> bool {
        match self.state(range, epoch) {
            LeaseState::Active(_) => true,
            LeaseState::HoldingAcks(_) => self.0.config.bugs.has(Planted::NoHold),
            LeaseState::Expired(_) | LeaseState::Revoked => false,
        }
    }

    /// The manager's wall clock, or an earlier time: some passed before its answer came.
    fn manager_us(&self) -> Option<u64> {
        let (granted_us, came) = self.0.manager_clock.get()?;
        Some(granted_us.saturating_add((self.0.env.now() - came).as_micros() as u64))
    }

    /// Takes note of the manager's wall clock, and reports once that locks do not end.
    fn hear_clock(&self, now_us: u64) {
        self.0.manager_clock.set(Some((now_us, self.0.env.now())));
        let apart = are_apart(unix_us(&self.0.env), now_us);
        if !self.0.clocks_apart.replace(apart) && apart {
            let name = &self.0.name;
            tracing::warn!(
                name,
                "the clocks of this object server and of the object manager are a minute apart, or more: \
                 no lock of an object ends until they are set right"
            );
        }
    }

    fn state(&self, range: RangeId, epoch: u64) -> LeaseState {
        let now = self.0.env.now();
        self.0.ownership.borrow().lease_state(range, epoch, Predecessors::All, now)
    }

    /// The manager has news: a heartbeat is due.
    pub fn beat_now(&self) {
        self.0.beat.notify_one();
    }

    /// Answers a request to a range. One that is being opened is waited for, and so is the lease of its owner
    /// before.
    pub async fn handle(&self, range: RangeId, request: RangeRequest) -> Result<RangeReply, Error> {
        let inner = &*self.0;
        let deadline = inner.env.now() + OPENING_WAIT;
        if let RangeRequest::Split { epoch, at } = request {
            return self.split(range, epoch, at).await.map(|()| RangeReply::Done);
        }
        loop {
            let changed = inner.changed.notified();
            let (epoch, rule) = match inner.places.borrow().get(&range) {
                None => return Err(Error::Reroute),
                Some(Place { epoch, rule, .. }) => (*epoch, rule.clone()),
            };
            let now = inner.env.now();
            match (rule, self.state(range, epoch)) {
                (_, LeaseState::Revoked) => return Err(Error::Reroute),
                (Some(_), LeaseState::HoldingAcks(until))
                    if !inner.config.bugs.has(Planted::NoHold) =>
                {
                    inner.env.mark("object: waits for the lease before");
                    inner.env.sleep(until - now).await;
                }
                (Some(rule), _) if !rule.is_cut() => {
                    rule.note(&request);
                    self.note(range, &request);
                    return rule.handle(request).await;
                }
                _ if now < deadline => {
                    let _ = inner.env.timeout(deadline - now, changed).await; // Either has happened.
                }
                _ => {
                    let cause = format!("{range} is being opened or split");
                    return Err(Error::Busy { cause });
                }
            }
        }
    }

    /// Begins to split a range, at a bound or in its middle. An error when it comes to nothing at once.
    async fn split(&self, range: RangeId, epoch: u64, at: Option<RangeBound>) -> Result<(), Error> {
        let busy = |cause: &str| Err(Error::Busy { cause: format!("{range} {cause}") });
        let rule = match self.0.places.borrow().get(&range) {
            Some(place) if place.epoch == epoch => place.rule.clone(),
            _ => return Err(Error::Reroute),
        };
        let Some(rule) = rule else { return busy("is being opened") };
        if !rule.begin_split() {
            return busy("is being split");
        }
        let (server, (ended, ends)) = (self.clone(), oneshot::channel());
        self.0.env.spawn(Class::Background, "object server: split", async move {
            tracing::info!(%range, "a range is to be split");
            // What became of it is on record: the next heartbeat brings it.
            let _ = ended.send(rule.split(&*server.0.files, at).await); // It may wait no more.
            server.beat_now();
        });
        match self.0.env.timeout(SPLIT_ANSWER, ends).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Splits a range whenever it is too large, or has too much load. For ever.
    async fn split_when_due(&self, range: RangeId, rule: &RangeRule, epoch: u64) {
        let pause = self.0.config.collect_interval.min(self.0.config.range_hot);
        loop {
            self.0.env.sleep(self.0.env.jitter(pause)).await;
            if let Some(at) = rule.is_due_for_split()
                && let Err(error) = self.split(range, epoch, at).await
            {
                tracing::debug!(%range, %error, "a range is not split");
            }
        }
    }

    /// Counts a request as load of its range.
    fn note(&self, range: RangeId, request: &RangeRequest) {
        let bytes = match request {
            RangeRequest::Change { change: Change::Put { object, .. }, .. } => match &object.data {
                ObjectData::Piece(bytes) | ObjectData::Inline(bytes) => bytes.len() as u64,
                _ => 0,
            },
            // The manager's own say nothing of clients.
            RangeRequest::Configure { .. }
            | RangeRequest::CloseSession { .. }
            | RangeRequest::Split { .. }
            | RangeRequest::Sweep { .. } => return,
            _ => 0,
        };
        if let Some(place) = self.0.places.borrow().get(&range) {
            place.requests.set(place.requests.get() + 1);
            place.bytes.set(place.bytes.get() + bytes);
            let (requests, sum) = self.0.asked.get();
            self.0.asked.set((requests + 1, sum + bytes));
        }
    }

    /// Gives its ranges up, so that others own them at once, and ends.
    pub async fn stop(&self) {
        let inner = &*self.0;
        inner.leaving.set(true);
        let end = inner.env.now() + CLOSE_TIME;
        while !inner.stopped.get() && inner.env.now() < end {
            let is_empty = inner.places.borrow().is_empty() && inner.closing.get() == 0;
            if is_empty && inner.left.get() {
                break;
            }
            self.beat_now();
            inner.env.sleep(Duration::from_millis(10)).await;
        }
        inner.stopped.set(true);
        self.beat_now();
        // Without a manager it knows of no successor.
        let places = std::mem::take(&mut *inner.places.borrow_mut());
        let rules = places.into_values().filter_map(|place| {
            place.task.inspect(JoinHandle::abort);
            place.rule
        });
        let rules: Vec<_> = rules.collect();
        let closing = join_all(rules.iter().map(|rule| rule.close()));
        let _ = inner.env.timeout(CLOSE_TIME, closing).await; // The next opening finds all of it.
    }

    async fn beats(self) {
        let env = self.0.env.clone();
        let (mut server, mut seq, mut reported) = (None, 0, env.now());
        while !self.0.stopped.get() {
            let sent = env.now();
            let Some(known) = server else {
                server = self.register().await;
                if server.is_none() {
                    env.sleep(env.jitter(RENEW)).await;
                }
                continue;
            };
            seq += 1;
            let loads = match sent - reported {
                since if since >= LOADS => {
                    reported = sent;
                    self.loads(since)
                }
                _ => Vec::new(),
            };
            let leaves = self.0.leaving.get();
            let leaves_none = leaves && self.0.ownership.borrow().units().next().is_none();
            let beat = CatalogRequest::ServerBeat(Box::new(self.beat(known, seq, loads)));
            let asked = ask(&*self.0.owners, beat, HEARTBEAT_ATTEMPT);
            match env.timeout(HEARTBEAT_ATTEMPT, asked).await {
                Ok(Ok(CatalogReply::Grant(grant))) => {
                    if !grant.known {
                        server = None;
                    }
                    let known = grant.known;
                    if grant.lease_ms > 0 {
                        self.hear_clock(grant.now_us);
                    }
                    let mut grant = grant_of(*grant);
                    if self.0.config.bugs.has(Planted::LongLease) {
                        grant.lease_ms *= 4;
                    }
                    let actions = self.0.ownership.borrow_mut().granted(sent, env.now(), &grant);
                    let again = grant.more || !actions.is_empty();
                    actions.into_iter().for_each(|action| self.act(action));
                    self.0.left.set(leaves_none && known);
                    if again {
                        continue; // The next heartbeat reports the changes at once.
                    }
                }
                Ok(Ok(_)) => tracing::warn!("not an answer to a heartbeat"),
                Ok(Err(Error::Replaced)) => return self.replaced(),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "heartbeat not answered");
                    env.sleep(env.jitter(BEAT_PAUSE)).await;
                    continue;
                }
                Err(_) => continue, // It was long enough.
            }
            let idle = self.0.places.borrow().is_empty();
            let factor = match (idle, self.0.config.beside_manager) {
                (true, _) => IDLE,
                (false, true) => BEAT_LOCAL,
                (false, false) => 1,
            };
            let next = (sent + RENEW * factor) - env.now();
            let _ = env.timeout(next, self.0.beat.notified()).await; // Either is a reason.
        }
    }

    async fn register(&self) -> Option<ObjectServerId> {
        let (name, addr) = (self.0.name.clone(), self.0.addr);
        let request = CatalogRequest::Register { name, addr };
        match ask(&*self.0.owners, request, HEARTBEAT_ATTEMPT * 5).await {
            Ok(CatalogReply::Registered { server, boot }) => {
                // It keeps the number that it began with: it is no later process.
                if self.0.boot.get() == 0 {
                    self.0.boot.set(boot);
                }
                tracing::info!(name = self.0.name, %server, "joined the object manager");
                Some(server)
            }
            Ok(_) => None,
            Err(Error::NameTaken) => {
                let name = &self.0.name;
                tracing::warn!(name, "another process is the object server of this name: it waits");
                None
            }
            Err(error) => {
                tracing::debug!(%error, "registration not taken");
                None
            }
        }
    }

    /// Another process is this server: its ranges are fenced off, and its heartbeats end.
    fn replaced(&self) {
        self.0.env.mark("object: server replaced by a later process");
        tracing::error!("serves no more: a later process is this object server");
        self.0.stopped.set(true);
        let actions = self.0.ownership.borrow_mut().end();
        actions.into_iter().for_each(|action| self.act(action));
    }

    fn beat(&self, server: ObjectServerId, seq: u64, loads: Vec<RangeLoad>) -> ServerBeat {
        let places = self.0.places.borrow();
        let unserved = places.iter().filter(|(_, place)| place.rule.is_none());
        let unserved = unserved.map(|(&range, place)| {
            let (epoch, cause, ended) = (place.epoch, place.cause.clone(), place.ended);
            Unserved { range, epoch, cause, ended }
        });
        let seen = self.0.ownership.borrow().seen();
        ServerBeat {
            server,
            boot: self.0.boot.get(),
            seq,
            addr: self.0.addr,
            seen: Seen { term: seen.term, change: seen.change },
            leaving: self.0.leaving.get(),
            unserved: unserved.collect(),
            loads,
        }
    }

    /// Loads since the last call that are others than those reported.
    fn loads(&self, since: Duration) -> Vec<RangeLoad> {
        let millis = since.as_millis().max(1) as u64;
        let places = self.0.places.borrow();
        let loads = places.iter().filter_map(|(&range, place)| {
            let requests = place.requests.take() * 1000 / millis;
            let requests = u32::try_from(requests).unwrap_or(u32::MAX);
            let bytes = place.bytes.take().saturating_mul(1000) / millis;
            let is_news = place.reported.replace((requests, bytes)) != (requests, bytes);
            is_news.then_some(RangeLoad { range, requests, bytes })
        });
        loads.collect()
    }

    fn act(&self, action: Action<RangeId, Plain>) {
        match action {
            Action::Open(range, Owned { epoch, .. }) => {
                let opening = self.clone().keep(range, epoch);
                let task = self.0.env.spawn(Class::Foreground, "object server: range", opening);
                let place = Place {
                    epoch,
                    rule: None,
                    cause: "it is being opened".to_owned(),
                    ended: false,
                    task: Some(task),
                    requests: Cell::new(0),
                    bytes: Cell::new(0),
                    reported: Cell::new((0, 0)),
                };
                self.0.places.borrow_mut().insert(range, place);
            }
            Action::Close(range, epoch) => self.close(range, epoch),
            Action::Change(..) => {}
        }
        self.0.changed.notify_waiters();
    }

    /// A range is another server's.
    fn close(&self, range: RangeId, epoch: u64) {
        let place = {
            let places = &mut *self.0.places.borrow_mut();
            if places.get(&range).is_none_or(|place| place.epoch != epoch) {
                return;
            }
            places.remove(&range).expect("just seen")
        };
        place.task.inspect(JoinHandle::abort);
        let Some(rule) = place.rule else { return };
        self.0.env.mark("object: a range is given up");
        let inner = self.0.clone();
        inner.closing.set(inner.closing.get() + 1);
        self.0.env.spawn(Class::Foreground, "object server: close", async move {
            // Its next owner shuts it out in any case.
            let _ = inner.env.timeout(CLOSE_TIME, rule.close()).await;
            rule.end("another server owns the range now");
            inner.closing.set(inner.closing.get() - 1);
        });
    }

    /// Opens a range, serves it, and looks after it until its instance ends or it is another server's.
    async fn keep(self, range: RangeId, epoch: u64) {
        let (inner, mut pause) = (&*self.0, LEAD_PAUSE.0);
        let rule = loop {
            let what = (&inner.env, &inner.files, &inner.config);
            let lease = Rc::new(RangeLease { server: Rc::downgrade(&self.0), range, epoch });
            let managers = Rc::new(Link(inner.owners.clone()));
            let common = (&inner.cache, &inner.room, &inner.pace);
            match RangeRule::open(what, range, (lease, epoch), common, managers).await {
                Ok(rule) => break rule,
                Err(error) => {
                    tracing::warn!(%range, epoch, %error, "a range cannot be opened yet");
                    self.set(range, epoch, |place| place.cause = error.to_string());
                    inner.env.sleep(inner.env.jitter(pause)).await;
                    pause = (2 * pause).min(LEAD_PAUSE.1);
                }
            }
        };
        self.set(range, epoch, |place| place.rule = Some(rule.clone()));
        tracing::info!(%range, epoch, "owns a range");
        inner.env.mark("object: owner rules");
        inner.changed.notify_waiters();
        self.beat_now();
        let interval = inner.config.collect_interval;
        let tending = join(rule.collect(interval), self.split_when_due(range, &rule, epoch));
        select(Box::pin(rule.ended()), Box::pin(tending)).await;
        if rule.is_cut() {
            self.set(range, epoch, |place| {
                place.rule = None;
                place.cause = "it is being split".to_owned();
            });
            return;
        }
        tracing::warn!(%range, epoch, "a range's table has ended: it is opened again");
        inner.env.mark("object: a range has ended by itself");
        self.set(range, epoch, |place| {
            (place.rule, place.ended) = (None, true);
            place.cause = "its table has ended, and is opened again".to_owned();
        });
        self.beat_now();
    }

    fn set(&self, range: RangeId, epoch: u64, change: impl FnOnce(&mut Place)) {
        let places = &mut *self.0.places.borrow_mut();
        if let Some(place) = places.get_mut(&range).filter(|place| place.epoch == epoch) {
            change(place);
        }
    }

    /// Looks whether a core that was full has room again.
    async fn look_for_room(self) {
        let inner = &*self.0;
        while !inner.stopped.get() {
            inner.room.look_due(&inner.env).await;
            let rule = inner.places.borrow().values().find_map(|place| place.rule.clone());
            if let Some(rule) = rule {
                rule.look_once().await;
            }
        }
    }
}

fn grant_of(grant: ServerGrant) -> Grant<RangeId, Plain> {
    let ownership =
        |(epoch, hold_ms)| Ownership { epoch, hold_ms, predecessor_ms: 0, setup: Plain };
    Grant {
        lease_ms: grant.lease_ms,
        reset: grant.reset,
        changes: grant.changes.iter().map(|it| (it.range, it.epoch.map(ownership))).collect(),
        seen: LeaseSeen { term: grant.seen.term, change: grant.seen.change },
        more: grant.more,
    }
}

impl fmt::Debug for ObjectServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectServer({}, {} ranges)", self.0.name, self.0.places.borrow().len())
    }
}
