//! What a process does under an epoch: a [`RangeRule`] for each range that it owns, a [`ManagerRule`] for the
//! catalog.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use base::Fault;
use futures_util::future::{join3, join4};
use object_proto::{
    CatalogReply, CatalogRequest, Error, ObjectServerId, RangeBound, RangeId, RangeMap, RangeReply,
    RangeRequest,
};
use runtime::{Duration, Env};
use table::{Cache, Options, Store, Table};

use crate::assign::{Record, StoredRow};
use crate::catalog::{Catalog, Ground as CatalogGround};
use crate::check_files::FileCheck;
use crate::collect::{CollectOptions, Collector};
use crate::config::Config;
use crate::decisions::{Basis, Decisions, damaged, of_table};
use crate::ground::{Files, Lease, Managers, Ranges};
use crate::halves::adopt;
use crate::heat::Heat;
use crate::keys::{INHERITED, RANGE, SERVER, read_number_key};
use crate::lifecycle::Keeper;
use crate::limits::{COLLECT_INTERVAL_FULL, PACK_IDLE};
use crate::pace::Pace;
use crate::paths::{CATALOG_DIR, range_dir};
use crate::planted::{Bugs, Planted};
use crate::range::{Ground, Range, UploadTimes};
use crate::room::Room;
use crate::server_row::{RangeRow, ServerRow, SplitRow};
use crate::split::{Split, Splitting};
use crate::stats::TableStats;

/// The rights to a table: until when they last, and their number, which is above those of all before.
pub type Held = (Rc<dyn Lease>, u64);

/// A range under one epoch.
pub struct RangeRule {
    env: Env,
    id: RangeId,
    epoch: u64,
    managers: Rc<dyn Managers>,
    range: Rc<Range>,
    collector: Collector,
    check: FileCheck,
    keeper: Keeper,
    splitting: Splitting,
    heat: Heat,
    /// See [`Config::range_bytes`].
    range_bytes: u64,
    /// See [`Config::range_requests`], [`Config::range_hot`].
    range_load: (u64, Duration),
}

impl RangeRule {
    /// Opens a range, which shuts its owners before out.
    pub async fn open(
        (env, files, config): (&Env, &Rc<dyn Files>, &Config),
        id: RangeId,
        (lease, epoch): Held,
        (cache, room, pace): (&Cache, &Room, &Pace),
        managers: Rc<dyn Managers>,
    ) -> Result<Rc<RangeRule>, Error> {
        let dir = range_dir(id);
        let (data_log_bytes, data_log_least) = (config.log_bytes, config.log_least);
        let with_data = Options { data_log_bytes, data_log_least, ..config.table.clone() };
        let rows = open_table(env, &**files, &dir, (&with_data, cache), epoch).await?;
        let bugs = config.bugs;
        let decisions = Decisions::new(env, rows, lease.clone(), room, bugs).await?;
        adopt(&decisions, id, bugs).await?;
        let upload_times = UploadTimes { age: config.upload_age, end_age: config.upload_end_age };
        let day = config.lifecycle_day;
        let ground = Ground { managers: managers.clone(), lease, epoch, upload_times, day, bugs };
        let range = Range::open(env, decisions, ground).await?;
        let store = files.dir(&dir).await.map_err(of_fault)?;
        let inherits = range.decisions.durable(&INHERITED).await?.is_some();
        let collector = Collector {
            id,
            managers: managers.clone(),
            inherits: Cell::new(inherits),
            range: range.clone(),
            store,
            files: files.clone(),
            options: CollectOptions {
                trash_age: config.trash_age,
                recount: config.recount,
                pack_bytes: config.pack_bytes,
                pack_idle: PACK_IDLE.min(config.trash_age),
                orphans_interval: config.orphans_interval,
            },
            pace: pace.clone(),
            damaged_logs: RefCell::default(),
            log_began: Cell::new(0),
            outputs: RefCell::default(),
            outputs_made: Cell::new(0),
            damaged_files: RefCell::default(),
            orphans_at: Cell::new(env.now()),
        };
        let keeper = Keeper { range: range.clone(), pace: pace.clone() };
        let (env, splitting, range_bytes) = (env.clone(), Splitting::default(), config.range_bytes);
        // Alone, a server has all ranges in any case.
        let most = if config.beside_manager { u64::MAX } else { config.range_requests };
        let range_load = (most, config.range_hot);
        let rule = RangeRule {
            env,
            id,
            epoch,
            managers,
            range,
            collector,
            check: FileCheck::default(),
            keeper,
            splitting,
            heat: Heat::default(),
            range_bytes,
            range_load,
        };
        Ok(Rc::new(rule))
    }

    /// Begins a split; false when one is under way. The caller goes on with [`RangeRule::split`].
    pub fn begin_split(&self) -> bool {
        self.splitting.begin()
    }

    /// Splits the range at a bound, or in its middle. Ends when it is known what became of it: it goes on, or
    /// the manager has given it another epoch, or two others are in its place.
    pub async fn split(&self, files: &dyn Files, at: Option<RangeBound>) -> Result<(), Error> {
        let split = Split {
            env: &self.env,
            files,
            managers: &*self.managers,
            range: &self.range,
            store: &*self.collector.store,
            splitting: &self.splitting,
            id: self.id,
            epoch: self.epoch,
        };
        split.run(at).await
    }

    /// It is shut out for its split: what becomes of it is the manager's to say.
    pub fn is_cut(&self) -> bool {
        self.splitting.is_cut()
    }

    /// Counts a request as load.
    pub fn note(&self, request: &RangeRequest) {
        self.heat.note(self.env.now(), request, self.range_load.0);
    }

    /// It is to be split by itself: for its size, in the middle; or for its load, where that divides.
    pub fn is_due_for_split(&self) -> Option<Option<RangeBound>> {
        if !self.splitting.may_begin(&self.env) {
            return None;
        }
        if self.range.decisions.table.stats().bytes > self.range_bytes {
            return Some(None);
        }
        let (most, time) = self.range_load;
        let at = self.heat.bound(self.env.now(), most, time)?;
        self.env.mark("object: a range is to be split for its load");
        Some(Some(at))
    }

    /// Answers a request.
    pub async fn handle(&self, request: RangeRequest) -> Result<RangeReply, Error> {
        match request {
            RangeRequest::Sweep { epoch, session } => {
                self.range.check_epoch(epoch)?;
                self.collector.sweep(session).await.map(|()| RangeReply::Done)
            }
            RangeRequest::Hold { session, file } => self.collector.hold(session, &file).await,
            RangeRequest::Release { file, .. } => self.collector.release(&file).await,
            RangeRequest::Check { run } => {
                self.range.check_lease()?;
                Ok(RangeReply::Checked(self.check.ask(&self.env, run)))
            }
            request => self.range.handle(request).await,
        }
    }

    /// Removes what is of no use any more, in passes that begin `interval` apart, and sooner on a full
    /// core, and what has expired, in a pass of each day. For ever.
    pub async fn collect(&self, interval: Duration) {
        let checks = self.collector.run_checks(&self.check);
        let recounts = self.collector.run_recounts();
        join4(self.collect_garbage(interval), self.keeper.run(), checks, recounts).await;
    }

    async fn collect_garbage(&self, interval: Duration) {
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

    /// Looks whether a core that was full has room again.
    pub async fn look_once(&self) {
        self.range.decisions.room.look(&self.env, &*self.collector.store).await;
    }

    /// Its table, at present.
    pub(crate) fn stats(&self) -> TableStats {
        TableStats::of(&self.range.decisions.table, &self.range.decisions.logs)
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
        (env, files, config): (&Env, &Rc<dyn Files>, &Config),
        (lease, epoch): Held,
        (cache, room): (&Cache, &Room),
        ranges: Rc<dyn Ranges>,
    ) -> Result<Rc<ManagerRule>, Error> {
        let rows = open_table(env, &**files, CATALOG_DIR, (&config.table, cache), epoch).await?;
        let bugs = Bugs::default();
        let decisions = Decisions::new(env, rows, lease.clone(), room, bugs).await?;
        let (new_ranges, bugs) = (config.new_ranges, config.bugs);
        let files = files.clone();
        let ground = CatalogGround { files, ranges, lease, epoch, new_ranges, bugs };
        let catalog = Catalog::open(env, decisions.clone(), ground).await?;
        Ok(Rc::new(ManagerRule { env: env.clone(), catalog, decisions }))
    }

    /// The ranges.
    pub fn map(&self) -> Rc<RangeMap> {
        self.catalog.map()
    }

    /// Answers a request.
    pub async fn handle(&self, request: CatalogRequest) -> Result<CatalogReply, Error> {
        self.catalog.handle(request).await
    }

    /// What is on record of servers and ranges.
    pub(crate) async fn record(&self) -> Result<Record, Error> {
        let mut record = Record::default();
        for (key, value) in self.decisions.all(&[SERVER]).await? {
            let row = read_number_key(&key).and_then(|id| u32::try_from(id).ok());
            let row = row.map(ObjectServerId::new).zip(ServerRow::decode(&value));
            let (id, row) = row.ok_or_else(|| damaged("the row of an object server"))?;
            record.servers.insert(id, row);
        }
        for (key, value) in self.decisions.all(&[RANGE]).await? {
            let row = read_number_key(&key).map(RangeId::new).zip(RangeRow::decode(&value));
            let (range, row) = row.ok_or_else(|| damaged("a range's row"))?;
            record.ranges.insert(range, row);
        }
        Ok(record)
    }

    /// Submits rows of servers and ranges.
    pub(crate) fn put_rows(&self, rows: &[StoredRow]) -> Result<Basis, Error> {
        let submitted = self.decisions.submit(|batch, _| {
            for (key, row) in rows {
                match row {
                    Some(row) => batch.put(key, row),
                    None => batch.delete(key),
                };
            }
        });
        submitted.map(|(_, basis)| basis)
    }

    /// Ends when what was submitted is durable.
    pub(crate) async fn settled(&self, basis: Basis) -> Result<(), Error> {
        self.decisions.settled(basis).await
    }

    /// Has a range's owner begin to split it.
    pub(crate) async fn split(&self, range: RangeId, at: Option<RangeBound>) -> Result<(), Error> {
        self.catalog.orders.split(range, at).await
    }

    /// See [`Catalog::prepare_split`].
    pub(crate) async fn prepare_split(
        &self,
        range: RangeId,
        epoch: u64,
        at: RangeBound,
    ) -> Result<CatalogReply, Error> {
        self.catalog.prepare_split(range, epoch, at).await
    }

    /// See [`Catalog::split_of`].
    pub(crate) fn split_of(&self, range: RangeId, epoch: u64) -> Option<SplitRow> {
        self.catalog.split_of(range, epoch)
    }

    /// See [`Catalog::commit_split`].
    pub(crate) fn commit_split(
        &self,
        range: RangeId,
        split: &SplitRow,
        rows: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Basis, Error> {
        self.catalog.commit_split(range, split, rows)
    }

    /// Ranges that are being split.
    pub(crate) fn splitting(&self) -> usize {
        self.catalog.splits.begun()
    }

    /// Whether a bug is planted.
    pub(crate) fn has_bug(&self, bug: Planted) -> bool {
        self.catalog.bugs.has(bug)
    }

    /// Ends sessions of gateways that are gone and removes what has been left of splits for `trash_age`, in
    /// passes that begin `interval` apart, watches over quotas, and has owners hear of changes of their buckets
    /// that they have not heard of. For ever.
    pub async fn tend(&self, interval: Duration, trash_age: Duration) {
        let ending = self.end_sessions(interval, trash_age);
        join3(ending, self.catalog.watch_usage(), self.catalog.order_again()).await;
    }

    async fn end_sessions(&self, interval: Duration, trash_age: Duration) {
        loop {
            self.env.sleep(self.env.jitter(interval)).await;
            let ended = self.catalog.end_sessions().await;
            let ended = ended.and(self.catalog.remove_left_dirs().await);
            let ended = ended.and(self.catalog.take_back_all().await);
            let ended = ended.and(self.catalog.withdraw_splits().await);
            let ended = ended.and(self.catalog.note_left_ranges().await);
            if let Err(error) = ended.and(self.catalog.remove_gone(trash_age).await) {
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
