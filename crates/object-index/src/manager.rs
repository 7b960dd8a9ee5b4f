//! [`ObjectManager`]: a manager's process. It competes for a lock of the core; while it has it, it opens the
//! catalog, answers for it, and says which server owns which range.
//!
//! The lock's token is the manager's term: the catalog's table, opened under it, shuts former managers out.
//! The lock's lease allows to grant leases, and to answer from memory.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use client::Client;
use futures_util::future::{Either, LocalBoxFuture, select};
use object_proto::{
    CatalogReply, CatalogRequest, Error, ObjectServerId, Peer, PeerRole, PeerState, RangeBound,
    RangeId, RangeReply, RangeRequest, Reply, Request, ServerGrant, ServerRequest, ServiceStatus,
};
use runtime::sync::Notify;
use runtime::{Class, Duration, Env, Instant};
use table::Cache;
use tenancy::{Contest, Term};

use crate::answer_pages::status_reply;
use crate::assign::Assignments;
use crate::config::Config;
use crate::decisions::{Basis, unix_us};
use crate::ground::{Files, Lease, Ranges};
use crate::limits::{
    HEARTBEAT_ATTEMPT, HERE, IDLE_AFTER, IDLE_LONGER, LEAD_PAUSE, LINK_ATTEMPT, PING_LOCAL,
    UNREACHED,
};
use crate::messages::{ask_peer, is_unheard};
use crate::planted::Planted;
use crate::room::Room;
use crate::rule::ManagerRule;
use crate::server::ObjectServer;
use crate::stats::ManagerStats;

struct ManagerInner {
    env: Env,
    client: Client,
    contest: Contest,
    name: String,
    addr: SocketAddr,
    files: Rc<dyn Files>,
    config: Config,
    room: Room,
    /// A server in this process, which needs no messages.
    local: RefCell<Option<ObjectServer>>,
    lead: RefCell<Option<Rc<Lead>>>,
    /// When a request came last, signs of life apart.
    asked: Cell<Instant>,
    stopping: Cell<bool>,
    stop: Notify,
    stopped: Cell<bool>,
}

/// An object manager. Clones share it.
#[derive(Clone)]
pub struct ObjectManager(Rc<ManagerInner>);

/// A manager's time as leader.
struct Lead {
    rule: Rc<ManagerRule>,
    lease: Rc<dyn Lease>,
    assignments: Rc<RefCell<Assignments>>,
    /// The last batch of rows of servers and ranges.
    stored: Cell<Basis>,
    /// Servers that are being asked for a heartbeat.
    notifying: RefCell<BTreeSet<SocketAddr>>,
    /// A round of pings is due.
    ping_soon: Notify,
}

impl Lead {
    /// What the service is made of, or its ranges that begin behind a bound; `leader` is this manager's address.
    fn status(
        &self,
        (now, leader): (Instant, SocketAddr),
        behind: Option<&RangeBound>,
    ) -> CatalogReply {
        let assignments = &mut *self.assignments.borrow_mut();
        let (status, term) = (assignments.status(now, leader), assignments.term());
        let splitting = self.rule.splitting() as u32;
        status_reply(ServiceStatus { splitting, ..status }, behind, term)
    }
}

/// Owners of ranges, as the catalog reaches them.
struct Links {
    /// It has the catalog, which has this.
    manager: Weak<ManagerInner>,
    assignments: OnceCell<Rc<RefCell<Assignments>>>,
}

impl Links {
    fn owner(&self, range: RangeId) -> Option<(u64, SocketAddr)> {
        self.assignments.get()?.borrow().owner(range)
    }
}

impl Ranges for Links {
    fn epoch(&self, range: RangeId) -> Option<u64> {
        self.owner(range).map(|(epoch, _)| epoch)
    }

    fn order(
        &self,
        range: RangeId,
        request: RangeRequest,
    ) -> LocalBoxFuture<'_, Result<RangeReply, Error>> {
        Box::pin(async move {
            let (_, addr) = self.owner(range).ok_or(Error::Reroute)?;
            let manager = ObjectManager(self.manager.upgrade().ok_or(Error::Reroute)?);
            let (inner, local) = (&*manager.0, manager.local(addr));
            let asked = async {
                match local {
                    Some(server) => server.handle(range, request).await.map(Reply::Range),
                    None => {
                        let request = Request::Range(range, request);
                        ask_peer(&inner.client, addr, request, LINK_ATTEMPT).await
                    }
                }
            };
            match inner.env.timeout(LINK_ATTEMPT, asked).await {
                Ok(Ok(Reply::Range(reply))) => Ok(reply),
                Ok(Ok(_)) => Err(Error::Reroute),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Error::Unknown { cause: "its owner does not answer".to_owned() }),
            }
        })
    }
}

impl ObjectManager {
    /// Competes for the lock. Its address must be answered at with [`ObjectManager::handle`].
    pub fn start(
        client: &Client,
        contest: Contest,
        (name, addr): (&str, SocketAddr),
        files: Rc<dyn Files>,
        config: Config,
    ) -> ObjectManager {
        let env = client.env().clone();
        let manager = ObjectManager(Rc::new(ManagerInner {
            client: client.clone(),
            contest,
            name: name.to_owned(),
            addr,
            files,
            config,
            room: Room::default(),
            local: RefCell::default(),
            lead: RefCell::default(),
            asked: Cell::new(env.now()),
            stopping: Cell::new(false),
            stop: Notify::new(),
            stopped: Cell::new(false),
            env: env.clone(),
        }));
        env.spawn(Class::Control, "object manager", manager.clone().compete());
        env.spawn(Class::Control, "object manager: here", manager.clone().announce());
        manager
    }

    /// A server is in the same process.
    pub fn set_local(&self, server: &ObjectServer) {
        self.0.local.replace(Some(server.clone()));
    }

    fn local(&self, addr: SocketAddr) -> Option<ObjectServer> {
        self.0.local.borrow().clone().filter(|server| server.addr() == addr)
    }

    /// True while it leads.
    pub fn leads(&self) -> bool {
        self.0.lead.borrow().is_some()
    }

    /// What the service has at present, as far as it hears; none while it does not lead.
    pub fn stats(&self) -> Option<ManagerStats> {
        let lead = self.0.lead.borrow().clone()?;
        let status = lead.assignments.borrow_mut().status(self.0.env.now(), self.0.addr);
        let is_up = |state: PeerState| state == PeerState::Up;
        let gateways = status.peers.iter().filter(|one| one.peer.role == PeerRole::Gateway);
        Some(ManagerStats {
            ranges: status.ranges.len(),
            unserved: status.ranges.iter().filter(|range| !range.served).count(),
            servers: status.servers.iter().filter(|server| is_up(server.state)).count(),
            gateways: gateways.filter(|one| is_up(one.state)).count(),
        })
    }

    /// Answers a request; one that does not lead says so.
    pub async fn handle(&self, request: CatalogRequest) -> Result<CatalogReply, Error> {
        let inner = &*self.0;
        if !request.is_sign() {
            inner.asked.set(inner.env.now());
        }
        let lead = inner.lead.borrow().clone().ok_or(Error::Reroute)?;
        let now = inner.env.now();
        let reply = match request {
            CatalogRequest::Where => Ok(CatalogReply::Where(lead.assignments.borrow().places())),
            CatalogRequest::Register { name, addr } => {
                let registered = lead.assignments.borrow_mut().register(now, &name, addr);
                registered.map(|(server, boot)| CatalogReply::Registered { server, boot })
            }
            CatalogRequest::MoveRange { range, server } => {
                let moved = lead.assignments.borrow_mut().move_range(now, range, server);
                moved.map(|()| CatalogReply::Done)
            }
            CatalogRequest::SplitRange { range, at } => {
                return lead.rule.split(range, at).await.map(|()| CatalogReply::Done);
            }
            CatalogRequest::PrepareSplit { range, epoch, at } => {
                if lead.assignments.borrow().epoch(range) != Some(epoch) {
                    return Err(Error::Reroute);
                }
                return lead.rule.prepare_split(range, epoch, at).await;
            }
            CatalogRequest::EndSplit { range, epoch, commit } => {
                let committed = end_split(&lead, now, (range, epoch), commit)?;
                Ok(CatalogReply::SplitEnded { committed })
            }
            CatalogRequest::ServerBeat(beat) => {
                let leads = lead.lease.is_valid();
                let grant = lead.assignments.borrow_mut().beat(now, *beat, leads);
                let now_us = match inner.config.bugs.has(Planted::ClockUnsaid) {
                    true => 0,
                    false => unix_us(&inner.env),
                };
                grant.map(|grant| CatalogReply::Grant(Box::new(ServerGrant { now_us, ..grant })))
            }
            CatalogRequest::Here(peer) => {
                lead.assignments.borrow_mut().here(now, peer);
                Ok(CatalogReply::Done)
            }
            CatalogRequest::Status => Ok(lead.status((now, inner.addr), None)),
            CatalogRequest::StatusBehind(bound) => Ok(lead.status((now, inner.addr), Some(&bound))),
            request => return lead.rule.handle(request).await,
        };
        self.after(&lead);
        lead.rule.settled(lead.stored.get()).await?;
        reply
    }

    /// Gives the lock up, so that another leads at once, and ends.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.0.stop.notify_waiters();
        while !self.0.stopped.get() {
            self.0.env.sleep(Duration::from_millis(5)).await;
        }
    }

    async fn pause(&self, pause: Duration) {
        let stop = self.0.stop.notified();
        if !self.0.stopping.get() {
            let _ = self.0.env.timeout(pause, stop).await; // Either has happened.
        }
    }

    /// Reports to the leader that this manager is there, also when it is the leader itself.
    async fn announce(self) {
        let (inner, mut pause) = (&*self.0, HERE.1);
        while !inner.stopping.get() {
            let (role, name, addr) = (PeerRole::Manager, inner.name.clone(), inner.addr);
            let here = CatalogRequest::Here(Peer { role, name, addr, connections: 0 });
            let heard = match inner.contest.leader() {
                _ if self.leads() => self.handle(here).await.is_ok(),
                Some(leader) if leader != addr => {
                    let here = Request::Catalog(here);
                    ask_peer(&inner.client, leader, here, LINK_ATTEMPT).await.is_ok()
                }
                _ => false,
            };
            if heard {
                pause = HERE.0;
            }
            self.pause(inner.env.jitter(pause)).await;
        }
    }

    async fn compete(self) {
        let inner = &*self.0;
        let mut pause = LEAD_PAUSE.0;
        while !inner.stopping.get() {
            if let Some(term) = inner.contest.acquire().await {
                let term = Rc::new(term);
                let ruled = self.rule(&term).await;
                if let Some(lead) = inner.lead.take() {
                    lead.rule.end("another manager leads now");
                }
                match ruled {
                    Ok(()) => {
                        tracing::info!(term = term.fencing(), "object manager leads no more");
                        pause = LEAD_PAUSE.0;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "object manager cannot lead yet");
                        self.pause(inner.env.jitter(pause)).await;
                        pause = (2 * pause).min(LEAD_PAUSE.1);
                    }
                }
                inner.contest.release(&term).await;
            }
            self.pause(inner.env.jitter(LEAD_PAUSE.0)).await;
        }
        inner.stopped.set(true);
    }

    async fn open(&self, term: &Rc<Term>) -> Result<Rc<Lead>, Error> {
        let inner = &*self.0;
        let links =
            Rc::new(Links { manager: Rc::downgrade(&self.0), assignments: OnceCell::new() });
        let lease: Rc<dyn Lease> = term.clone();
        let what = (&inner.env, &inner.files, &inner.config);
        let cache = Cache::new(inner.config.cache_bytes);
        let held = (lease.clone(), term.fencing());
        let rule = ManagerRule::open(what, held, (&cache, &inner.room), links.clone()).await?;
        let record = rule.record().await?;
        let assignments = Assignments::new(term.fencing(), record, inner.env.now());
        let assignments = Rc::new(RefCell::new(assignments));
        links.assignments.set(assignments.clone()).expect("it is set here only");
        let (stored, notifying, ping_soon) = (Cell::default(), RefCell::default(), Notify::new());
        Ok(Rc::new(Lead { rule, lease, assignments, stored, notifying, ping_soon }))
    }

    /// Leads until the lock or the catalog is lost, or it is asked to stop.
    async fn rule(&self, term: &Rc<Term>) -> Result<(), Error> {
        let inner = &*self.0;
        // It may take long: the lock is renewed beside it.
        let mut opening = Box::pin(self.open(term));
        let lead = loop {
            match select(opening, Box::pin(self.pause(inner.contest.renewal_pause(1)))).await {
                Either::Left((opened, _)) => break opened?,
                Either::Right(((), goes_on)) => opening = goes_on,
            }
            if inner.stopping.get() || !inner.contest.renew(term, 1).await {
                return Ok(());
            }
        };
        tracing::info!(name = inner.name, term = term.fencing(), "object manager leads");
        inner.env.mark("object: manager leads");
        inner.lead.replace(Some(lead.clone()));
        let (rule, interval) = (lead.rule.clone(), inner.config.collect_interval);
        let trash_age = inner.config.trash_age;
        let tasks = [
            inner.env.spawn(
                Class::Control,
                "object manager: tick",
                self.clone().watch(lead.clone()),
            ),
            inner.env.spawn(
                Class::Control,
                "object manager: pings",
                self.clone().ping(lead.clone()),
            ),
            inner.env.spawn(Class::Background, "object manager: tend", async move {
                rule.tend(interval, trash_age).await;
            }),
        ];
        let mut longer = 1;
        loop {
            let pause = Box::pin(self.pause(inner.contest.renewal_pause(longer)));
            let over = matches!(select(Box::pin(lead.rule.ended()), pause).await, Either::Left(_));
            // Where its servers are in other processes, so may another manager be that is to be quick.
            let is_alone = inner.local.borrow().is_some();
            let is_idle = is_alone && inner.env.now() - inner.asked.get() > IDLE_AFTER;
            longer = if is_idle { IDLE_LONGER } else { 1 };
            if over || inner.stopping.get() || !inner.contest.renew(term, longer).await {
                break;
            }
        }
        tasks.iter().for_each(runtime::JoinHandle::abort);
        if inner.stopping.get() {
            inner.lead.replace(None);
            lead.rule.close().await;
        }
        Ok(())
    }

    /// Stores rows of servers and ranges, and notifies servers of news behind that.
    fn after(&self, lead: &Rc<Lead>) {
        let (rows, news) = {
            let assignments = &mut *lead.assignments.borrow_mut();
            if assignments.take_ping_soon() {
                lead.ping_soon.notify_one();
            }
            (assignments.take_rows(), assignments.take_news())
        };
        if !rows.is_empty() {
            match lead.rule.put_rows(&rows) {
                Ok(basis) => lead.stored.set(basis),
                // What it has in memory is not on record: it reads what is.
                Err(error) => return lead.rule.end(&error.to_string()),
            }
        }
        for addr in news {
            if !lead.notifying.borrow_mut().insert(addr) {
                continue;
            }
            let (manager, lead, stored) = (self.clone(), lead.clone(), lead.stored.get());
            self.0.env.spawn(Class::Control, "object manager: news", async move {
                if lead.rule.settled(stored).await.is_ok() {
                    match manager.local(addr) {
                        Some(server) => server.beat_now(),
                        None => {
                            let request = Request::Server(ServerRequest::BeatNow);
                            // It sends a heartbeat soon in any case.
                            let _ =
                                ask_peer(&manager.0.client, addr, request, HEARTBEAT_ATTEMPT).await;
                        }
                    }
                }
                lead.notifying.borrow_mut().remove(&addr);
            });
        }
    }

    async fn watch(self, lead: Rc<Lead>) {
        let env = &self.0.env;
        loop {
            let due = lead.assignments.borrow_mut().tick(env.now());
            self.after(&lead);
            env.sleep(due - env.now()).await;
        }
    }

    /// Pings object servers: one that hears nothing is to serve nothing.
    async fn ping(self, lead: Rc<Lead>) {
        let env = &self.0.env;
        loop {
            let due = lead.assignments.borrow_mut().ping_round(env.now());
            if lead.assignments.borrow().is_cut_off(env.now()) {
                env.mark("object: a manager that is cut off leads no more");
                tracing::warn!(
                    "no heartbeat comes, though object servers answer pings: what is sent to this manager is \
                     lost, and another one is to lead"
                );
                self.0.contest.yield_lock();
                return lead.rule.end("nothing reaches this manager");
            }
            self.after(&lead);
            let all_local = due.iter().all(|(_, addr)| self.local(*addr).is_some());
            for (server, addr) in due {
                match self.local(addr) {
                    Some(_) => lead.assignments.borrow_mut().answered(server, env.now()),
                    None => {
                        let (this, lead) = (self.clone(), lead.clone());
                        env.spawn(Class::Control, "object manager: ping", async move {
                            this.ping_once(&lead, (server, addr)).await;
                        });
                    }
                }
            }
            // One in this process hears as long as this manager runs.
            let pause = match all_local {
                true => PING_LOCAL,
                false => lead.assignments.borrow().ping_pause(),
            };
            let _ = env.timeout(pause, lead.ping_soon.notified()).await; // Either has happened.
        }
    }

    async fn ping_once(&self, lead: &Lead, (server, addr): (ObjectServerId, SocketAddr)) {
        let (sent, request) = (self.0.env.now(), Request::Server(ServerRequest::Ping));
        let answer = ask_peer(&self.0.client, addr, request, UNREACHED).await;
        if !is_unheard(&answer) {
            lead.assignments.borrow_mut().answered(server, sent);
        }
    }
}

/// What becomes of a split that an owner has prepared: two ranges in the place of its own, if that has its epoch
/// still; else, and if it was not prepared to the end, another epoch. Returns whether the range is no more. Both
/// are on record when what was submitted so far is.
fn end_split(
    lead: &Lead,
    now: Instant,
    (range, epoch): (RangeId, u64),
    commit: bool,
) -> Result<bool, Error> {
    let assignments = &mut *lead.assignments.borrow_mut();
    let known = assignments.epoch(range);
    let is_its = known == Some(epoch);
    let split = lead.rule.split_of(range, epoch).filter(|_| commit);
    match split {
        Some(split) if is_its || known.is_some() && lead.rule.has_bug(Planted::LateCommit) => {
            let rows = assignments.split(now, range, &split);
            let submitted = lead.rule.commit_split(range, &split, &rows);
            // What it has in memory is not on record: it reads what is.
            let submitted = submitted.inspect_err(|error| lead.rule.end(&error.to_string()));
            lead.stored.set(submitted?);
            tracing::info!(%range, low = %split.low, high = %split.high, at = %split.at, "a range is split");
            Ok(true)
        }
        _ if is_its => {
            assignments.give_again(now, range);
            Ok(false)
        }
        _ => Ok(known.is_none()),
    }
}

impl fmt::Debug for ObjectManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectManager({}, leads: {})", self.0.name, self.leads())
    }
}

#[cfg(test)]
mod tests {
    use base::Fault;
    use object_proto::limits::KEY_MAX;
    use object_proto::{BucketId, StorageRule};
    use runtime::sim::{HostId, Sim};
    use table::Store;
    use testing::tables::MemDisk;

    use super::*;
    use crate::planted::Bugs;

    struct Dirs(MemDisk, Env);

    impl Files for Dirs {
        fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
            Box::pin(std::future::ready(Ok(self.0.beside(path).store(&self.1))))
        }

        fn dir_for<'a>(
            &'a self,
            path: &'a str,
            _: StorageRule,
        ) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
            self.dir(path)
        }

        fn dirs<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Vec<String>, Fault>> {
            Box::pin(std::future::ready(Ok(self.0.dirs_in(path))))
        }

        fn remove_dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<(), Fault>> {
            self.0.remove_dir(path);
            Box::pin(std::future::ready(Ok(())))
        }
    }

    struct Always;

    impl Lease for Always {
        fn is_valid(&self) -> bool {
            true
        }
    }

    struct NoOwners;

    impl Ranges for NoOwners {
        fn epoch(&self, _: RangeId) -> Option<u64> {
            None
        }

        fn order(
            &self,
            _: RangeId,
            _: RangeRequest,
        ) -> LocalBoxFuture<'_, Result<RangeReply, Error>> {
            Box::pin(std::future::ready(Err(Error::Reroute)))
        }
    }

    const RANGE: RangeId = RangeId::new(1);
    /// A bound within the first range.
    const BUCKET: BucketId = BucketId::new(5);

    /// A manager with one range, whose owner has begun to split it.
    struct World {
        lead: Lead,
        now: Instant,
        epoch: u64,
    }

    impl World {
        /// Its range is owned and is being split under the epoch.
        async fn new(sim: &Sim, host: HostId, bugs: Bugs) -> World {
            let env = sim.env(host).expect("it is up");
            let files: Rc<dyn Files> = Rc::new(Dirs(MemDisk::new(sim), env.clone()));
            let config = Config { bugs, new_ranges: 1, ..Config::default() };
            let (cache, lease): (_, Rc<dyn Lease>) = (Cache::new(1 << 16), Rc::new(Always));
            let common = (&cache, &Room::default());
            let held = (lease.clone(), 1);
            let what = (&env, &files, &config);
            let rule = ManagerRule::open(what, held, common, Rc::new(NoOwners)).await.unwrap();
            let now = env.now();
            let mut assignments = Assignments::new(1, rule.record().await.unwrap(), now);
            assignments.give_again(now, RANGE);
            let epoch = assignments.epoch(RANGE).expect("there is the range");
            let at = RangeBound::of_bucket(BUCKET);
            rule.prepare_split(RANGE, epoch, at).await.expect("it may be split");
            let lead = Lead {
                rule,
                lease,
                assignments: Rc::new(RefCell::new(assignments)),
                stored: Cell::default(),
                notifying: RefCell::default(),
                ping_soon: Notify::new(),
            };
            World { lead, now, epoch }
        }

        fn end(&self, epoch: u64, commit: bool) -> bool {
            end_split(&self.lead, self.now, (RANGE, epoch), commit).expect("it is decided")
        }

        fn ranges(&self) -> usize {
            self.lead.rule.map().places().len()
        }
    }

    /// A bound that no key could be at is refused: a row with one could not be read.
    #[test]
    fn a_bound_is_as_long_as_a_key_at_most() {
        let sim = Sim::new(7);
        let host = sim.add_host("om1");
        let env = sim.boot(host);
        let inner = sim.clone();
        let work = env.spawn(Class::Control, "test", async move {
            let world = World::new(&inner, host, Bugs::default()).await;
            let bound = |len| RangeBound { bucket: BUCKET, key: "k".repeat(len) };
            let rule = &world.lead.rule;
            let refused = rule.prepare_split(RANGE, world.epoch, bound(KEY_MAX + 1)).await;
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
            rule.prepare_split(RANGE, world.epoch, bound(KEY_MAX)).await.expect("it may be split");
        });
        sim.run(work).expect("it ends").expect("it is up");
    }

    fn run<T: 'static>(bugs: Bugs, work: impl FnOnce(World) -> T + 'static) -> T {
        let sim = Sim::new(7);
        let host = sim.add_host("om1");
        let env = sim.boot(host);
        let inner = sim.clone();
        let working =
            env.spawn(
                Class::Control,
                "test",
                async move { work(World::new(&inner, host, bugs).await) },
            );
        sim.run(working).expect("it ends").expect("it is up")
    }

    #[test]
    fn split_is_committed_once_under_the_epoch_in_which_it_was_made() {
        run(Bugs::default(), |world| {
            assert_eq!(world.ranges(), 1);
            assert!(world.end(world.epoch, true));
            assert_eq!(world.ranges(), 2);
            assert!(world.end(world.epoch, true), "asked again");
            assert!(world.end(world.epoch, false), "what is committed is not given up");
            assert_eq!(world.ranges(), 2);
        });
    }

    #[test]
    fn split_that_is_given_up_is_never_committed() {
        run(Bugs::default(), |world| {
            assert!(!world.end(world.epoch, false));
            let epoch = world.lead.assignments.borrow().epoch(RANGE).expect("it goes on");
            assert!(epoch > world.epoch, "it is opened again");
            assert!(!world.end(world.epoch, true), "a late commit");
            assert!(!world.end(epoch, true), "the next owner has begun none");
            assert_eq!(world.ranges(), 1);
        });
    }

    #[test]
    fn split_of_a_former_owner_is_not_committed() {
        let late = |bugs| {
            run(bugs, |world| {
                world.lead.assignments.borrow_mut().give_again(world.now, RANGE);
                (world.end(world.epoch, true), world.ranges())
            })
        };
        assert_eq!(late(Bugs::default()), (false, 1));
        assert_eq!(late(Bugs::of(Planted::LateCommit)), (true, 2));
    }
}
