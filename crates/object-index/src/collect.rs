//! Passes that remove what is of no use any more, and of them logs whose data is dead for the greater part, once
//! the rest is moved (`object-protocols.md` 10.1 and 10.2).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use base::Kind;
use object_proto::{Error, FileName, RangeId};
use runtime::{Duration, Instant};
use table::{KeptLog, Place, Purpose, Range as Rows, Snapshot, Store};

use crate::decisions::{Basis, damaged, of_table};
use crate::ground::{Files, Managers};
use crate::keys::{
    CURRENT, LOG, VERSIONS, number_key, object_key, read_object_key, read_version_key, version_key,
};
use crate::limits::{
    COLLECT_ROWS, COLLECT_SLICE, LOG_AGE_FULL, LOG_APPENDS_FULL, MOVED_BYTES, TRASH_AGE_FULL,
};
use crate::output::Outputs;
use crate::pace::Pace;
use crate::piece::Body;
use crate::planted::Planted;
use crate::range::Range;
use crate::row::{InLog, LogRow, ObjectRow};

/// What a pass needs.
pub(crate) struct Collector {
    /// The range's number.
    pub(crate) id: RangeId,
    pub(crate) managers: Rc<dyn Managers>,
    /// The range was split off another one, and may have files of that one's.
    pub(crate) inherits: Cell<bool>,
    pub(crate) range: Rc<Range>,
    pub(crate) store: Rc<dyn Store>,
    pub(crate) files: Rc<dyn Files>,
    pub(crate) options: CollectOptions,
    pub(crate) pace: Pace,
    /// Logs with live data that cannot be read: they stay.
    pub(crate) damaged_logs: RefCell<BTreeSet<u64>>,
    /// Appends of the table when a log was last ended for its room.
    pub(crate) log_began: Cell<u64>,
    /// The files that bodies are moved to, and how many this owner has made.
    pub(crate) outputs: RefCell<Outputs>,
    pub(crate) outputs_made: Cell<u32>,
    /// Files with live bodies that cannot be read: they stay.
    pub(crate) damaged_files: RefCell<BTreeSet<FileName>>,
    /// When to look for files that no row has.
    pub(crate) orphans_at: Cell<Instant>,
}

/// Bounds of collection.
pub(crate) struct CollectOptions {
    /// Files stay in the trash for this long.
    pub(crate) trash_age: Duration,
    /// What lives in a file is counted again once in this time.
    pub(crate) recount: Duration,
    /// Bytes at which a file ends that bodies are moved to.
    pub(crate) pack_bytes: u64,
    /// It ends too when nothing was moved for so long.
    pub(crate) pack_idle: Duration,
    /// Between two looks for files that no row has.
    pub(crate) orphans_interval: Duration,
}

impl Collector {
    /// One pass. What fails is left for the next one and holds up nothing else; returns the first error.
    pub(crate) async fn pass(&self) -> Result<(), Error> {
        self.range.check_lease()?;
        let mut result = self.drop_foreign().await;
        result = result.and(self.tend_uploads().await);
        result = result.and(self.tend_files().await);
        result = result.and(self.end_log().await);
        let decisions = &self.range.decisions;
        let mut logs = decisions.table.data_logs();
        // Those of which least lives first: for others there may be no room yet.
        logs.sort_by_key(|log| log.data.saturating_sub(decisions.logs.row(log.log).dead));
        for log in logs {
            result = result.and(self.collect_log(&log).await);
        }
        result.and(self.drop_logs().await)
    }

    /// On a full core, ends a log that holds many sectors: of deletions nothing stays then.
    async fn end_log(&self) -> Result<(), Error> {
        let decisions = &self.range.decisions;
        let appends = decisions.table.stats().groups;
        if !decisions.room.is_tight(&self.range.env)
            || appends - self.log_began.get() < LOG_APPENDS_FULL
        {
            return Ok(());
        }
        self.log_began.set(appends);
        self.range.env.mark("object: a log is ended for its room");
        decisions.table.end_log().await.map_err(of_table)
    }

    /// Moves what is alive in a log of which half is dead, and has it go.
    async fn collect_log(&self, log: &KeptLog) -> Result<(), Error> {
        let range = &self.range;
        range.check_lease()?;
        if !range.decisions.logs.row(log.log).counted {
            match log.is_own {
                true => self.end_count(log).await?,
                false => self.count(log).await?,
            }
        }
        let row = range.decisions.logs.row(log.log);
        let is_damaged = self.damaged_logs.borrow().contains(&log.log);
        if 2 * row.dead < log.data || row.trash_us.is_some() || is_damaged {
            return Ok(());
        }
        let (mut from, mut moved) = (Some(0), Moved::default());
        let goes_on = |moved: &Moved| !moved.is_held_up && !range.has_bug(Planted::CountOnly);
        while let Some(at) = from.filter(|_| goes_on(&moved)) {
            let page = range.decisions.table.read_log(log.log, at).await.map_err(of_table)?;
            let Some(page) = page else { return Ok(()) };
            for (at, (key, value)) in page.changes.into_iter().enumerate() {
                if at % COLLECT_SLICE == 0 {
                    range.env.yield_now().await;
                }
                if let Some(known) = Logged::read(log, &key, value.as_deref())? {
                    self.move_out(log, &known, &mut moved).await?;
                }
            }
            from = page.next;
        }
        range.decisions.settled(moved.basis).await?;
        if self.damaged_logs.borrow().contains(&log.log) || moved.is_held_up {
            return Ok(());
        }
        // No object names it any more, and none ever will: places are given in the log that is written.
        let row = range.decisions.logs.row(log.log);
        let trashed = LogRow { trash_us: Some(range.decisions.now_us()), ..row };
        let basis = range.decisions.put_log(log.log, trashed)?;
        range.decisions.settled(basis).await?;
        range.env.mark("object: a log is collected");
        Ok(())
    }

    /// What died in a log that this owner has written is known: from now on each death is of a place.
    async fn end_count(&self, log: &KeptLog) -> Result<(), Error> {
        let decisions = &self.range.decisions;
        decisions.settled(decisions.last()).await?;
        let row = LogRow { counted: true, ..decisions.logs.row(log.log) };
        decisions.put_log(log.log, row).map(drop)
    }

    /// Counts what is dead in a log.
    async fn count(&self, log: &KeptLog) -> Result<(), Error> {
        let decisions = &self.range.decisions;
        let before = decisions.logs.row(log.log).dead;
        let (mut from, mut live) = (Some(0), 0);
        // A row that is written again in the same log, as its object gets tags, names the same data.
        let mut counted = BTreeSet::new();
        while let Some(at) = from {
            let page = decisions.table.read_log(log.log, at).await.map_err(of_table)?;
            let Some(page) = page else { return Ok(()) };
            for (at, (key, value)) in page.changes.into_iter().enumerate() {
                if at % COLLECT_SLICE == 0 {
                    self.range.env.yield_now().await;
                }
                if let Some(known) = Logged::read(log, &key, value.as_deref())?
                    && known.is_live(&decisions.snapshot()).await?
                    && counted.insert(known.place)
                {
                    live += known.len() as u64;
                }
            }
            from = page.next;
        }
        let row = decisions.logs.row(log.log);
        // What died while it was read may count twice; then a pass comes early.
        let dead = log.data.saturating_sub(live) + (row.dead - before);
        decisions.put_log(log.log, LogRow { dead, counted: true, ..row })?;
        self.range.env.mark("object: a log is counted");
        Ok(())
    }

    /// Writes the data of a change that a log has into the present one, if an object has it still.
    async fn move_out(
        &self,
        log: &KeptLog,
        known: &Logged,
        moved: &mut Moved,
    ) -> Result<(), Error> {
        let range = &self.range;
        // Most are dead: looked at without the key's lock first.
        if !known.is_live(&range.decisions.snapshot()).await? {
            return Ok(());
        }
        if range.decisions.room.lacks(Purpose::Collection) {
            moved.is_held_up = true;
            return Ok(());
        }
        let piece = match range.decisions.table.read_data(known.place, known.len()).await {
            Ok(piece) => Some(piece).filter(|piece| known.body.is_whole(piece)),
            Err(table::Error::Corrupt { .. } | table::Error::Missing { .. }) => None,
            Err(error) => return Err(of_table(error)),
        };
        let target = &known.body.target;
        let Some(piece) = piece else {
            tracing::error!(log = log.name, %target, "the data of an object is damaged: its log stays");
            self.damaged_logs.borrow_mut().insert(log.log);
            return Ok(());
        };
        let held = range.decisions.lock(&object_key(CURRENT, target)).await;
        let mut found = None;
        for key in known.keys() {
            let seen = range.decisions.read(&key).await?;
            if let Some(value) = seen.value.filter(|value| known.is_in(value)) {
                found = Some((key, value, seen.basis));
            }
        }
        if found.is_none() && range.has_bug(Planted::BlindMove) {
            found = Some((known.key.clone(), known.value.clone(), Basis::default()));
        }
        if range.has_bug(Planted::MoveForgetsTags)
            && let Some((_, value, _)) = &mut found
        {
            value.clone_from(&known.value);
        }
        let Some((key, value, basis)) = found else {
            range.env.mark("object: replaced while it was moved");
            return Ok(());
        };
        let (mut dead, piece) = (None, Rc::new(piece));
        let (_, basis) = range.decisions.submit(|batch, _| {
            batch.put_with_data(&key, &value, value.len() - Place::BYTES, piece);
            batch.set_purpose(Purpose::Collection);
            dead = range.count_dead(batch, target, (&known.row, basis));
        })?;
        range.note_dead(dead);
        drop(held);
        range.env.mark("object: moved out of a log");
        moved.basis = basis;
        moved.bytes += known.len();
        if moved.bytes >= MOVED_BYTES {
            moved.bytes = 0;
            range.decisions.settled(basis).await?;
        }
        Ok(())
    }

    /// What is in the trash since before this time goes; on a full core, what is there for `full`.
    pub(crate) fn trashed_before(&self, full: Duration) -> u64 {
        self.aged(self.range.decisions.now_us(), full)
    }

    /// What is of before this time is old enough to go at another; see [`Collector::trashed_before`].
    pub(crate) fn aged(&self, at_us: u64, full: Duration) -> u64 {
        let is_tight = self.range.decisions.room.is_tight(&self.range.env);
        let trash_age = self.options.trash_age;
        let age = if is_tight { trash_age.min(full) } else { trash_age };
        at_us.saturating_sub(age.as_micros() as u64)
    }

    /// Removes the logs that were of no use for long enough.
    async fn drop_logs(&self) -> Result<(), Error> {
        let (range, until) = (&self.range, self.trashed_before(LOG_AGE_FULL));
        for (log, row) in range.decisions.logs.all() {
            if row.trash_us.is_none_or(|since| since >= until) {
                continue;
            }
            range.decisions.table.release_log(log).await.map_err(of_table)?;
            range.decisions.logs.forget(log);
            let (_, basis) = range.decisions.submit(|batch, _| {
                batch.set_purpose(Purpose::Recovery);
                batch.delete(&number_key(LOG, log));
            })?;
            range.decisions.settled(basis).await?;
            range.env.mark("object: a log is dropped");
        }
        Ok(())
    }

    pub(crate) async fn remove(&self, file: &FileName) -> Result<(), Error> {
        match self.store.remove(file.as_str()).await {
            Err(fault) if fault.kind != Kind::NotFound => Err(of_fault(fault)),
            _ => Ok(()),
        }
    }

    /// Does what is to be done with each row of a section by time that is as old as what leaves the trash.
    /// What fails holds up no other row; the first error.
    pub(crate) async fn each_old(
        &self,
        section: u8,
        act: impl AsyncFn(&[u8], &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let range = &self.range;
        let until = number_key(section, self.trashed_before(TRASH_AGE_FULL));
        let (mut from, mut result) = (vec![section], Ok(()));
        loop {
            let old = Rows::between(&from, &until);
            let rows = range.decisions.snapshot().scan(old).take(COLLECT_ROWS).await;
            let rows = rows.map_err(of_table)?;
            let Some((last, _)) = rows.last() else { return result };
            from = [last.as_slice(), &[0]].concat();
            for (key, value) in &rows {
                result = result.and(act(key, value).await);
            }
        }
    }
}

/// An object's row as a log has it, with data there.
struct Logged {
    key: Vec<u8>,
    value: Vec<u8>,
    row: ObjectRow,
    body: Body,
    place: Place,
}

impl Logged {
    /// Reads a change of a log; none if it brought no data of an object: a row that is written again, as
    /// it became an older version or got tags, has its data where that was.
    fn read(log: &KeptLog, key: &[u8], value: Option<&[u8]>) -> Result<Option<Logged>, Error> {
        let (Some(section), Some(value)) = (key.first(), value) else { return Ok(None) };
        let target = match *section {
            CURRENT => read_object_key(key),
            VERSIONS => read_version_key(key).map(|(target, _)| target),
            _ => return Ok(None),
        };
        let row = ObjectRow::decode(value).ok_or_else(|| damaged("a row in a log"))?;
        let Some(InLog::At(place)) = row.log else { return Ok(None) };
        if place.log() != log.log {
            return Ok(None);
        }
        let target = target.ok_or_else(|| damaged("a key in a log"))?;
        let body = Body { data_id: row.info.object.data_id, target };
        Ok(Some(Logged { key: key.to_vec(), value: value.to_vec(), row, body, place }))
    }

    /// Where the row of the object is, while it has one.
    fn keys(&self) -> [Vec<u8>; 2] {
        let target = &self.body.target;
        [object_key(CURRENT, target), version_key(target, self.row.info.stamp)]
    }

    /// True when a row has this data.
    fn is_in(&self, value: &[u8]) -> bool {
        ObjectRow::decode(value).is_some_and(|row| {
            row.log == self.row.log && row.info.object.data_id == self.body.data_id
        })
    }

    /// True when the object has this data. Both its places are looked at together: it may move between
    /// them.
    async fn is_live(&self, rows: &Snapshot) -> Result<bool, Error> {
        for key in self.keys() {
            let value = rows.get(&key).await.map_err(of_table)?;
            if value.is_some_and(|value| self.is_in(&value)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Bytes of its piece.
    fn len(&self) -> usize {
        self.body.head_len() + self.row.info.object.size as usize
    }
}

/// What was moved out of a log, or a file of bodies.
#[derive(Default)]
pub(crate) struct Moved {
    /// The last batch.
    pub(crate) basis: Basis,
    /// Bytes that may not be durable.
    pub(crate) bytes: usize,
    /// Something lives and there is no room for it.
    pub(crate) is_held_up: bool,
}

pub(crate) fn of_fault(fault: base::Fault) -> Error {
    Error::Busy { cause: fault.message }
}
