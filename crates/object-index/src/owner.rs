//! [`Owner`]: the process that owns the objects. It competes for a lock of the core; while it has it,
//! it opens the tables of the catalog and of the range and answers.
//!
//! The lock's token is the epoch: tables opened under it shut former owners out, and requests name it.
//! What is answered from memory or from reads is answered while the lock's lease lasts.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use base::Fault;
use client::Client;
use futures_util::future::{Either, LocalBoxFuture, join, select};
use object_proto::{CatalogRequest, Error, Reply, Request};
use runtime::sync::Notify;
use runtime::{Class, Duration, Env, Instant};
use table::{Cache, ClientStore, Options, Store, Table};
use tenancy::{Contest, Term};
use wire::control::Policy;

use crate::buckets::Buckets;
use crate::catalog::{Catalog, CatalogRows};
use crate::collect::Collector;
use crate::decisions::Decisions;
use crate::ground::{Files, Lease};
use crate::limits::{
    COLLECT_INTERVAL, COLLECT_INTERVAL_FULL, IDLE_AFTER, IDLE_LONGER, LEAD_PAUSE, LOCK_TTL,
    LOG_BYTES, LOG_LEAST, TRASH_AGE, UPLOAD_AGE, UPLOAD_END_AGE,
};
use crate::paths::{CATALOG_DIR, RANGE_DIR};
use crate::planted::Bugs;
use crate::range::{Ground, Range, UploadTimes};
use crate::room::Room;
use crate::sessions::Sessions;

/// Directories of the core through a client, for files of one policy.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// The client.
    pub client: Client,
    /// Copies of new files.
    pub policy: Policy,
}

impl Files for ClientFiles {
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        Box::pin(async move {
            let store = ClientStore::new(&self.client, path, self.policy).await;
            let store = store.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
            Ok(Rc::new(store) as Rc<dyn Store>)
        })
    }
}

/// Configuration of an owner.
#[derive(Clone, Debug)]
pub struct Config {
    /// Options of its tables.
    pub table: Options,
    /// Bytes at which a log with small objects ends: at most, and while there is little data
    /// ([`Options::data_log_least`]).
    pub log_bytes: u64,
    /// See [`Config::log_bytes`].
    pub log_least: u64,
    /// Bytes of the cache of its tables' blocks.
    pub cache_bytes: usize,
    /// Lease of its lock.
    pub lock_ttl: Duration,
    /// Files stay in the trash for this long.
    pub trash_age: Duration,
    /// An upload that is under way for so long is aborted, within [`Config::trash_age`].
    pub upload_age: Duration,
    /// It is remembered for so long how an upload was completed, and for [`Config::trash_age`] more.
    pub upload_end_age: Duration,
    /// Between two passes of collection.
    pub collect_interval: Duration,
    /// For tests.
    pub bugs: Bugs,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            table: Options::default(),
            log_bytes: LOG_BYTES,
            log_least: LOG_LEAST,
            cache_bytes: 16 << 20,
            lock_ttl: LOCK_TTL,
            trash_age: TRASH_AGE,
            upload_age: UPLOAD_AGE,
            upload_end_age: UPLOAD_END_AGE,
            collect_interval: COLLECT_INTERVAL,
            bugs: Bugs::default(),
        }
    }
}

/// Catalog and range under one epoch.
pub struct Rule {
    env: Env,
    range: Rc<Range>,
    catalog: Rc<Catalog>,
    decisions: [Rc<Decisions>; 2],
    collector: Collector,
}

impl Rule {
    /// Opens catalog and range under `epoch`, which is above that of all owners before.
    pub async fn open(
        env: &Env,
        files: &dyn Files,
        config: &Config,
        (lease, epoch): (Rc<dyn Lease>, u64),
        room: &Room,
    ) -> Result<Rc<Rule>, Error> {
        let cache = Cache::new(config.cache_bytes);
        let (data_log_bytes, data_log_least) = (config.log_bytes, config.log_least);
        let with_data = Options { data_log_bytes, data_log_least, ..config.table.clone() };
        let catalog_rows =
            open_table(env, files, CATALOG_DIR, (&config.table, &cache), epoch).await?;
        let rows = open_table(env, files, RANGE_DIR, (&with_data, &cache), epoch).await?;
        let bugs = config.bugs;
        let decisions = Decisions::new(env, rows, room, bugs).await?;
        let catalog_decisions = Decisions::new(env, catalog_rows, room, Bugs::default()).await?;
        let known = CatalogRows::read(&catalog_decisions).await?;
        let sessions = Rc::new(Sessions::new(env, known.sessions.iter().copied(), bugs));
        let buckets = Rc::new(Buckets::default());
        known.buckets.iter().for_each(|bucket| buckets.open(bucket.id, bucket.versioning));
        let upload_times = UploadTimes { age: config.upload_age, end_age: config.upload_end_age };
        let ground = Ground { sessions, buckets, lease: lease.clone(), epoch, upload_times, bugs };
        let range = Range::open(env, decisions.clone(), ground).await?;
        let (all, lease) = ([decisions, catalog_decisions.clone()], (lease, epoch));
        let catalog = Catalog::new(env, catalog_decisions, range.clone(), lease, &known);
        let store = files.dir(RANGE_DIR).await.map_err(of_fault)?;
        let collector = Collector {
            range: range.clone(),
            catalog: catalog.clone(),
            store,
            trash_age: config.trash_age,
            damaged_logs: Default::default(),
            log_began: Cell::new(0),
        };
        let env = env.clone();
        Ok(Rc::new(Rule { env, range, catalog, decisions: all, collector }))
    }

    /// Answers a request.
    pub async fn handle(&self, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Range(request) => self.range.handle(request).await.map(Reply::Range),
            Request::Catalog(request) => self.catalog.handle(request).await.map(Reply::Catalog),
        }
    }

    /// Removes what is of no use any more, in passes that begin `interval` apart, and sooner on a full
    /// core; looks there for room. For ever.
    pub async fn tend(self: Rc<Self>, interval: Duration) {
        join(self.collect(interval), self.look_for_room()).await;
    }

    async fn look_for_room(&self) {
        let room = &self.range.decisions.room;
        loop {
            room.filled().await;
            self.env.sleep(self.env.jitter(room.pause())).await;
            room.look(&self.env, &*self.collector.store).await;
        }
    }

    /// Ends when nothing is decided any more: another owner came, or an append has failed.
    pub async fn ended(&self) {
        let [range, catalog] = &self.decisions;
        select(Box::pin(range.ended()), Box::pin(catalog.ended())).await;
    }

    /// Ends at once; what is under way has an unknown outcome.
    pub fn end(&self, cause: &str) {
        self.decisions.iter().for_each(|decisions| decisions.end(cause.to_owned()));
    }

    /// Ends in order, so that the next opening is quick.
    pub async fn close(&self) {
        let [range, catalog] = &self.decisions;
        join(range.close(), catalog.close()).await;
    }

    async fn collect(&self, interval: Duration) {
        let (env, room) = (&self.env, &self.range.decisions.room);
        loop {
            if !room.is_tight(env) {
                let _ = env.timeout(env.jitter(interval), room.filled()).await; // Either has happened.
            }
            if room.is_tight(env) {
                env.sleep(env.jitter(interval.min(COLLECT_INTERVAL_FULL))).await;
            }
            if let Err(error) = self.collector.pass().await {
                tracing::debug!(%error, "a pass over what may be removed was not finished");
            }
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rule")
    }
}

fn of_fault(fault: Fault) -> Error {
    Error::Busy { cause: fault.message }
}

async fn open_table(
    env: &Env,
    files: &dyn Files,
    path: &str,
    (options, cache): (&Options, &Cache),
    epoch: u64,
) -> Result<Table, Error> {
    let store = files.dir(path).await.map_err(of_fault)?;
    let options = Options { owner: epoch, ..options.clone() };
    let table = Table::open(env, store, cache, options).await;
    table.map_err(crate::decisions::of_table)
}

struct OwnerInner {
    env: Env,
    contest: Contest,
    files: Rc<dyn Files>,
    config: Config,
    room: Room,
    rule: RefCell<Option<Rc<Rule>>>,
    /// When a request came last, a sign of life apart.
    asked: Cell<Instant>,
    stopping: Cell<bool>,
    stop: Notify,
    stopped: Cell<bool>,
}

/// A process that owns the objects while it has the lock. Clones share it.
#[derive(Clone)]
pub struct Owner(Rc<OwnerInner>);

impl Owner {
    /// Competes for the lock.
    pub fn start(env: &Env, contest: Contest, files: Rc<dyn Files>, config: Config) -> Owner {
        let owner = Owner(Rc::new(OwnerInner {
            env: env.clone(),
            contest,
            files,
            config,
            room: Room::default(),
            rule: RefCell::default(),
            asked: Cell::new(env.now()),
            stopping: Cell::new(false),
            stop: Notify::new(),
            stopped: Cell::new(false),
        }));
        env.spawn(Class::Control, "object owner", owner.clone().compete());
        owner
    }

    /// True while it owns the objects.
    pub fn leads(&self) -> bool {
        self.0.rule.borrow().is_some()
    }

    /// Answers a request; one that is not the owner says so.
    pub async fn handle(&self, request: Request) -> Result<Reply, Error> {
        if !matches!(request, Request::Catalog(CatalogRequest::Beat(_))) {
            self.0.asked.set(self.0.env.now());
        }
        let rule = self.0.rule.borrow().clone();
        rule.ok_or(Error::Reroute)?.handle(request).await
    }

    /// Gives the lock up, so that another owns the objects at once, and ends.
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

    async fn compete(self) {
        let inner = &*self.0;
        let mut pause = LEAD_PAUSE.0;
        while !inner.stopping.get() {
            if let Some(term) = inner.contest.acquire().await {
                let term = Rc::new(term);
                let ruled = self.rule(&term).await;
                if let Some(rule) = inner.rule.take() {
                    rule.end("another process owns the objects now");
                }
                match ruled {
                    Ok(()) => {
                        tracing::info!(epoch = term.fencing(), "owns the objects no more");
                        pause = LEAD_PAUSE.0;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "objects cannot be served yet");
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

    /// Owns the objects until the lock or a table is lost, or it is asked to stop.
    async fn rule(&self, term: &Rc<Term>) -> Result<(), Error> {
        let inner = &*self.0;
        let lease: Rc<dyn Lease> = term.clone();
        let held = (lease, term.fencing());
        let opening = Rule::open(&inner.env, &*inner.files, &inner.config, held, &inner.room);
        // It may take long: the lock is renewed beside it.
        let mut opening = Box::pin(opening);
        let rule = loop {
            match select(opening, Box::pin(self.pause(inner.contest.renewal_pause(1)))).await {
                Either::Left((opened, _)) => break opened?,
                Either::Right(((), goes_on)) => opening = goes_on,
            }
            if inner.stopping.get() || !inner.contest.renew(term, 1).await {
                return Ok(());
            }
        };
        tracing::info!(epoch = term.fencing(), "owns the objects");
        inner.env.mark("object: owner rules");
        inner.rule.replace(Some(rule.clone()));
        let tending = rule.clone().tend(inner.config.collect_interval);
        let tending = inner.env.spawn(Class::Background, "object: collect", tending);
        let mut longer = 1;
        loop {
            let pause = Box::pin(self.pause(inner.contest.renewal_pause(longer)));
            let over = matches!(select(Box::pin(rule.ended()), pause).await, Either::Left(_));
            let is_idle = inner.env.now() - inner.asked.get() > IDLE_AFTER;
            longer = if is_idle { IDLE_LONGER } else { 1 };
            if over || inner.stopping.get() || !inner.contest.renew(term, longer).await {
                break;
            }
        }
        tending.abort();
        if inner.stopping.get() {
            inner.rule.replace(None);
            rule.close().await;
        }
        Ok(())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:?})", self.0.contest)
    }
}
