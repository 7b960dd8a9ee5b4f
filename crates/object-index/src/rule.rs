//! What a process does under an epoch: a [`RangeRule`] for each range that it owns, a [`ManagerRule`] for the
//! catalog; [`Rule`] is all of them in one process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use base::Fault;
use futures_util::future::{LocalBoxFuture, join, join_all, select, select_all, try_join_all};
use object_proto::{
    CatalogReply, CatalogRequest, Error, RangeId, RangeMap, RangeReply, RangeRequest, Reply,
    Request,
};
use runtime::{Duration, Env};
use table::{Cache, Options, Store, Table};

use crate::catalog::{Catalog, Ground as CatalogGround};
use crate::collect::Collector;
use crate::config::Config;
use crate::decisions::{Decisions, of_table};
use crate::ground::{Files, Lease, Managers, Ranges};
use crate::limits::COLLECT_INTERVAL_FULL;
use crate::paths::{CATALOG_DIR, range_dir};
use crate::planted::Bugs;
use crate::range::{Ground, Range, UploadTimes};
use crate::room::Room;

/// The rights to a table: until when they last, and their number, which is above those of all before.
pub type Held = (Rc<dyn Lease>, u64);

/// A range under one epoch.
pub struct RangeRule {
    env: Env,
    range: Rc<Range>,
    collector: Collector,
}

impl RangeRule {
    /// Opens a range, which shuts its owners before out.
    pub async fn open(
        (env, files, config): (&Env, &dyn Files, &Config),
        range: RangeId,
        (lease, epoch): Held,
        (cache, room): (&Cache, &Room),
        managers: Rc<dyn Managers>,
    ) -> Result<Rc<RangeRule>, Error> {
        let dir = range_dir(range);
        let (data_log_bytes, data_log_least) = (config.log_bytes, config.log_least);
        let with_data = Options { data_log_bytes, data_log_least, ..config.table.clone() };
        let rows = open_table(env, files, &dir, (&with_data, cache), epoch).await?;
        let bugs = config.bugs;
        let decisions = Decisions::new(env, rows, room, bugs).await?;
        let upload_times = UploadTimes { age: config.upload_age, end_age: config.upload_end_age };
        let ground = Ground { managers, lease, epoch, upload_times, bugs };
        let range = Range::open(env, decisions, ground).await?;
        let store = files.dir(&dir).await.map_err(of_fault)?;
        let collector = Collector {
            range: range.clone(),
            store,
            trash_age: config.trash_age,
            damaged_logs: RefCell::default(),
            log_began: Cell::new(0),
        };
        Ok(Rc::new(RangeRule { env: env.clone(), range, collector }))
    }

    /// Answers a request.
    pub async fn handle(&self, request: RangeRequest) -> Result<RangeReply, Error> {
        match request {
            RangeRequest::Sweep { epoch, session } => {
                self.range.check_epoch(epoch)?;
                self.collector.sweep(session).await.map(|()| RangeReply::Done)
            }
            request => self.range.handle(request).await,
        }
    }

    /// Removes what is of no use any more, in passes that begin `interval` apart, and sooner on a full
    /// core. For ever.
    pub async fn collect(&self, interval: Duration) {
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

    /// Looks whether a core that was full has room again. For ever; one range of a process does so for
    /// all.
    pub async fn look_for_room(&self) {
        let room = &self.range.decisions.room;
        loop {
            room.filled().await;
            self.env.sleep(self.env.jitter(room.pause())).await;
            room.look(&self.env, &*self.collector.store).await;
        }
    }

    /// Ends when nothing is decided any more: another owner came, or an append has failed.
    pub async fn ended(&self) {
        self.range.decisions.ended().await;
    }

    /// Ends at once; what is under way has an unknown outcome.
    pub fn end(&self, cause: &str) {
        self.range.decisions.end(cause.to_owned());
    }

    /// Ends in order, so that the next opening is quick.
    pub async fn close(&self) {
        self.range.decisions.close().await;
    }
}

impl fmt::Debug for RangeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RangeRule")
    }
}

/// The catalog under one epoch.
pub struct ManagerRule {
    env: Env,
    catalog: Rc<Catalog>,
    decisions: Rc<Decisions>,
}

impl ManagerRule {
    /// Opens the catalog, which shuts managers before out.
    pub async fn open(
        (env, files, config): (&Env, &dyn Files, &Config),
        (lease, epoch): Held,
        (cache, room): (&Cache, &Room),
        ranges: Rc<dyn Ranges>,
    ) -> Result<Rc<ManagerRule>, Error> {
        let rows = open_table(env, files, CATALOG_DIR, (&config.table, cache), epoch).await?;
        let decisions = Decisions::new(env, rows, room, Bugs::default()).await?;
        let (new_ranges, bugs) = (config.new_ranges, config.bugs);
        let ground = CatalogGround { ranges, lease, epoch, new_ranges, bugs };
        let catalog = Catalog::open(env, decisions.clone(), ground).await?;
        Ok(Rc::new(ManagerRule { env: env.clone(), catalog, decisions }))
    }

    /// The ranges.
    pub fn map(&self) -> &RangeMap {
        self.catalog.map()
    }

    /// Answers a request.
    pub async fn handle(&self, request: CatalogRequest) -> Result<CatalogReply, Error> {
        self.catalog.handle(request).await
    }

    /// Ends sessions of gateways that are gone, in passes that begin `interval` apart. For ever.
    pub async fn tend(&self, interval: Duration) {
        loop {
            self.env.sleep(self.env.jitter(interval)).await;
            let ended = self.catalog.end_sessions().await;
            if let Err(error) = ended.and(self.catalog.take_back_all().await) {
                tracing::debug!(%error, "what the manager has to end was not all ended");
            }
        }
    }

    /// Ends when nothing is decided any more: another manager came, or an append has failed.
    pub async fn ended(&self) {
        self.decisions.ended().await;
    }

    /// Ends at once; what is under way has an unknown outcome.
    pub fn end(&self, cause: &str) {
        self.decisions.end(cause.to_owned());
    }

    /// Ends in order, so that the next opening is quick.
    pub async fn close(&self) {
        self.decisions.close().await;
    }
}

impl fmt::Debug for ManagerRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ManagerRule")
    }
}

/// Catalog and ranges under one epoch, in one process.
pub struct Rule {
    manager: Rc<ManagerRule>,
    ranges: Rc<Here>,
}

/// The ranges of this process, as its manager reaches them.
struct Here {
    epoch: u64,
    ranges: RefCell<BTreeMap<RangeId, Rc<RangeRule>>>,
}

impl Ranges for Here {
    fn epoch(&self, range: RangeId) -> Option<u64> {
        self.ranges.borrow().contains_key(&range).then_some(self.epoch)
    }

    fn order(
        &self,
        range: RangeId,
        request: RangeRequest,
    ) -> LocalBoxFuture<'_, Result<RangeReply, Error>> {
        let rule = self.ranges.borrow().get(&range).cloned();
        Box::pin(async move { rule.ok_or(Error::Reroute)?.handle(request).await })
    }
}

/// The manager of this process, as its ranges reach it.
struct ManagerHere(Weak<ManagerRule>);

impl Managers for ManagerHere {
    fn ask(&self, request: CatalogRequest) -> LocalBoxFuture<'_, Result<CatalogReply, Error>> {
        let rule = self.0.upgrade();
        Box::pin(async move { rule.ok_or(Error::Reroute)?.handle(request).await })
    }
}

impl Rule {
    /// Opens catalog and ranges under an epoch that is above those of all owners before.
    pub async fn open(
        env: &Env,
        files: &dyn Files,
        config: &Config,
        (lease, epoch): Held,
        room: &Room,
    ) -> Result<Rc<Rule>, Error> {
        let (what, cache) = ((env, files, config), Cache::new(config.cache_bytes));
        let ranges = Rc::new(Here { epoch, ranges: RefCell::default() });
        let held = (lease.clone(), epoch);
        let manager = ManagerRule::open(what, held, (&cache, room), ranges.clone()).await?;
        let opening = manager.map().places().iter().map(async |place| {
            let link = Rc::new(ManagerHere(Rc::downgrade(&manager)));
            let held = (lease.clone(), epoch);
            let rule = RangeRule::open(what, place.range, held, (&cache, room), link).await?;
            Ok::<_, Error>((place.range, rule))
        });
        let opened = try_join_all(opening).await?;
        ranges.ranges.replace(opened.into_iter().collect());
        Ok(Rc::new(Rule { manager, ranges }))
    }

    fn all(&self) -> Vec<Rc<RangeRule>> {
        self.ranges.ranges.borrow().values().cloned().collect()
    }

    /// Answers a request.
    pub async fn handle(&self, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Range(range, request) => {
                let rule = self.ranges.ranges.borrow().get(&range).cloned();
                let rule = rule.ok_or_else(|| Error::Invalid {
                    message: format!("there is no range {range}"),
                })?;
                rule.handle(request).await.map(Reply::Range)
            }
            Request::Catalog(request) => self.manager.handle(request).await.map(Reply::Catalog),
        }
    }

    /// Removes what is of no use any more, in passes that begin `interval` apart, and sooner on a full
    /// core; looks there for room. For ever.
    pub async fn tend(self: Rc<Self>, interval: Duration) {
        let all = self.all();
        let collecting = join_all(all.iter().map(|rule| rule.collect(interval)));
        let looking = join_all(all.first().map(|rule| rule.look_for_room()));
        join(self.manager.tend(interval), join(collecting, looking)).await;
    }

    /// Ends when nothing is decided any more: another owner came, or an append has failed.
    pub async fn ended(&self) {
        let all = self.all();
        let ranges = select_all(all.iter().map(|rule| Box::pin(rule.ended())));
        select(ranges, Box::pin(self.manager.ended())).await;
    }

    /// Ends at once; what is under way has an unknown outcome.
    pub fn end(&self, cause: &str) {
        self.manager.end(cause);
        self.all().iter().for_each(|rule| rule.end(cause));
    }

    /// Ends in order, so that the next opening is quick.
    pub async fn close(&self) {
        let all = self.all();
        join(join_all(all.iter().map(|rule| rule.close())), self.manager.close()).await;
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
    let store: Rc<dyn Store> = files.dir(path).await.map_err(of_fault)?;
    let options = Options { owner: epoch, ..options.clone() };
    let table = Table::open(env, store, cache, options).await;
    table.map_err(of_table)
}
