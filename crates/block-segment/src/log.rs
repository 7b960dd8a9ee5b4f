//! Path of a change: a queue with bounds, packed appends, the index, the answer (B2).
//!
//! Waiting records go into one append together (`protocols.md` 3.4); a lone one goes at once.
//! Changes get their sequences when their append starts. When it is durable they enter the index,
//! in order, and are answered: no read ever shows bytes that could be lost.

use std::collections::VecDeque;
use std::future::{pending, ready};
use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::dedup::RequestId;
use block_volume::ids::{FileNo, Seq};
use block_volume::limits::BLOCK;
use block_volume::record::{self, FILE_HEAD, Head, RECORD, RECORD_UNITS, UNIT, What, file_head};
use codec::crc32c;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesOrdered, StreamExt};
use runtime::{Class, Duration, Instant};
use table::{Batch, GroupCommitPolicy, Purpose, Writer};

use super::core::{Core, PendingIndexUpdate};
use super::files::{DataFile, Open};
use super::format::state::{FileState, Role, file_key};
use super::format::txn::Watermark;
use super::limits::{
    APPEND_BYTES_LARGE, APPEND_BYTES_MAX, APPEND_BYTES_PACKED, APPEND_BYTES_SHARED,
    APPENDS_INFLIGHT_MAX, APPENDS_INFLIGHT_SMALL, STEP_VISITS, TXN_BACKLOG_MAX, TXN_UPDATES_MAX,
};
use super::queue::{Change, Work};
use super::types::{Loc, Update, merge};

/// Pause after a DataFile could not be made: first and longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Records that go into one append.
struct Group {
    file: Rc<DataFile>,
    /// Its first unit, and its end.
    unit: u32,
    end: u32,
    bytes: Rc<Vec<u8>>,
    seq: Seq,
    updates: Vec<Update>,
    blocks: u32,
    /// Blocks of clients' changes in it, and whether these are whole with them.
    done: Vec<(RequestId, Range<u64>, bool)>,
    /// Changes whose last record is in it.
    last_of: Vec<Change>,
}

impl Group {
    /// A group that only clears blocks can be written on a full cluster.
    fn purpose(&self) -> Purpose {
        match self.blocks {
            0 => Purpose::Metadata,
            _ => Purpose::Data,
        }
    }
}

impl Core {
    /// The task that writes DataFiles, until the instance is over. Without a first one no change
    /// comes.
    pub(crate) async fn write_log(self: Rc<Self>, first: Option<Open>) {
        match first {
            Some(open) => {
                if let Err(fault) = self.clone().write_groups(open).await {
                    self.end(fault);
                }
            }
            None => {
                while !self.is_over() {
                    self.share.wake_log.notified().await;
                }
            }
        }
        let over = self.over.borrow().clone().expect("it has ended");
        let waiting = std::mem::take(&mut *self.queue.borrow_mut()).waiting;
        self.share.waits(0);
        for change in waiting {
            match change.started {
                0 => change.fail(&over),
                _ => change.fail(&self.unknown(&over)),
            }
        }
        self.log_ended.set(true);
        self.changed.notify_waiters();
    }

    /// The fault for callers whose records may or may not be there.
    fn unknown(&self, over: &Fault) -> Fault {
        let kind = if over.kind == Kind::Fenced { Kind::Fenced } else { Kind::Unknown };
        Fault::new(kind, over.message.clone())
    }

    /// True when an append may start now.
    fn may_start(&self, inflight: usize, inflight_bytes: usize, pace: &GroupCommitPolicy) -> bool {
        let waiting = self.queue.borrow().bytes;
        let small = inflight_bytes <= APPEND_BYTES_SHARED && !pace.is_shared();
        let shares = small || waiting >= APPEND_BYTES_PACKED;
        let small = inflight == 0 || inflight < APPENDS_INFLIGHT_SMALL && shares;
        let large = inflight < APPENDS_INFLIGHT_MAX && waiting >= APPEND_BYTES_LARGE;
        waiting > 0 && (small || large) && !self.lags()
    }

    /// Group commit: the time until which an append should wait for requests that are about to
    /// come.
    fn group_commit_hold(&self, pace: &GroupCommitPolicy, inflight: usize) -> Option<Instant> {
        let queue = self.queue.borrow();
        let has_room = inflight == 0 && (1..APPEND_BYTES_PACKED).contains(&queue.bytes);
        has_room.then(|| pace.holds(self.env.now(), queue.len())).flatten()
    }

    /// True when writes have to wait for the TxnFile or for a checkpoint.
    fn lags(&self) -> bool {
        self.unlogged_count.get() >= TXN_BACKLOG_MAX || self.share.is_behind()
    }

    async fn write_groups(self: Rc<Self>, mut open: Open) -> Result<(), Fault> {
        let mut inflight = FuturesOrdered::new();
        // Durable, and held back by a cut.
        let mut held: VecDeque<Group> = VecDeque::new();
        // An append could not be started: nothing may be written behind the hole.
        let mut broken = false;
        let (mut inflight_bytes, mut inflight_count) = (0, 0);
        let mut pace = GroupCommitPolicy::default();
        loop {
            if !self.cuts.holds() {
                held.drain(..).for_each(|group| self.apply(group));
            }
            if self.cuts.wants_roll() && inflight.is_empty() && !broken && !self.is_over() {
                self.roll(&mut open).await?;
                self.cuts.rolled();
                continue;
            }
            while !broken
                && !self.is_over()
                && !self.cuts.wants_roll()
                && self.may_start(inflight.len(), inflight_bytes, &pace)
                && self.group_commit_hold(&pace, inflight.len()).is_none()
            {
                let units = (self.options.file_bytes / UNIT) as u32;
                if units - open.next.min(units) < RECORD_UNITS {
                    if !inflight.is_empty() || !held.is_empty() {
                        break;
                    }
                    self.roll(&mut open).await?;
                    continue;
                }
                pace.started(self.queue.borrow().len());
                let group = self.take_group(&mut open, units);
                self.share.waits(self.queue.borrow().len());
                let began = self.env.now();
                inflight_bytes += group.bytes.len();
                inflight_count += group.last_of.len();
                if open.next > units / 2 {
                    self.wake_files.notify_one();
                }
                open.writer.set_purpose(group.purpose());
                let started = open.writer.submit(&group.bytes).await;
                broken = started.is_err();
                let pending = started.unwrap_or_else(|fault| Box::pin(ready(Err(fault))));
                inflight.push_back(async move { (pending.await, group, began) });
            }
            if self.is_over() && inflight.is_empty() {
                self.drop_held(held);
                if let Err(fault) = open.writer.close().await {
                    tracing::debug!(cause = fault.message, "DataFile not closed");
                }
                return Ok(());
            }
            let done = {
                let hold = self.group_commit_hold(&pace, inflight.len());
                let woken = Box::pin(async {
                    let woken = self.share.wake_log.notified();
                    match hold {
                        Some(until) => {
                            let wait = until - self.env.now();
                            let _ = self.env.timeout(wait, woken).await; // Then it starts.
                        }
                        None => woken.await,
                    }
                });
                let first = Box::pin(async {
                    match inflight.next().await {
                        Some(done) => done,
                        None => pending().await,
                    }
                });
                match select(first, woken).await {
                    Either::Left((done, _)) => done,
                    Either::Right(_) => continue,
                }
            };
            match done {
                (Ok(_), group, began) => {
                    if group.purpose() == Purpose::Data {
                        self.share.shared().note_room(began);
                    }
                    inflight_bytes -= group.bytes.len();
                    inflight_count -= group.last_of.len();
                    let (now, waiting) = (self.env.now(), self.queue.borrow().len());
                    let others = (inflight_count, waiting);
                    let cost = (group.bytes.len(), now - began);
                    pace.ended(now, cost, group.last_of.len(), others);
                    // A group that is held back and those behind it enter the index together.
                    match self.cuts.holds() || !held.is_empty() {
                        true => held.push_back(group),
                        false => self.apply(group),
                    }
                }
                (Err(fault), group, _) => {
                    if fault.kind == Kind::Full {
                        self.share.shared().note_full(self.env.now());
                    }
                    self.drop_held(held);
                    let fault = self.cause("append to", &group.file.name, fault);
                    return Err(self.fail(fault, group, inflight).await);
                }
            }
        }
    }

    /// Durable groups that are held back when the instance ends are there for the next owner.
    fn drop_held(&self, held: VecDeque<Group>) {
        let outcome = Fault::new(Kind::Unknown, "the segment stopped before it could answer");
        let changes = held.into_iter().flat_map(|group| group.last_of);
        changes.for_each(|change| change.fail(&outcome));
    }

    /// Takes waiting changes, as far as one append and the file have room.
    fn take_group(&self, open: &mut Open, units: u32) -> Group {
        let room = APPEND_BYTES_MAX.min((units - open.next) as usize * UNIT as usize);
        let queue = &mut *self.queue.borrow_mut();
        let first = queue.waiting.front().expect("a change waits");
        let mut bytes = Vec::with_capacity(room.min(first.need().max(queue.bytes)));
        let (mut updates, mut done, mut last_of) = (Vec::new(), Vec::new(), Vec::new());
        let (file, unit) = (open.file.clone(), open.next);
        let (mut seq, mut blocks, mut visits) = (Seq::default(), 0, 0);
        // A record without data is as small as an update: one append of trims can have many.
        while updates.len() < TXN_UPDATES_MAX
            && let Some(change) = queue.waiting.front_mut()
        {
            let mut fits = (room - bytes.len()) / RECORD;
            let whole = match &change.work {
                Work::Write(data) => {
                    let rest = &data[change.started as usize * BLOCK as usize..];
                    fits = fits.min(rest.len() / BLOCK as usize);
                    let (lba, count) = (change.lba + change.started, fits as u32);
                    let at = Loc::new(file.number, unit + (bytes.len() as u64 / UNIT) as u32);
                    let whole = rest.len() == fits * BLOCK as usize;
                    for (n, data) in rest.chunks_exact(BLOCK as usize).take(fits).enumerate() {
                        seq = self.next_seq();
                        let range = (What::Data, lba + n as u32, 1);
                        let tag = change.mark(whole && n + 1 == fits);
                        let place = (file.number, unit);
                        self.put_record(&mut bytes, place, (seq, tag), range, data);
                    }
                    done.extend(change.part(count, whole));
                    if count > 0 {
                        merge(&mut updates, Update::Data { lba, count, at });
                    }
                    blocks += count;
                    change.started += count;
                    queue.bytes -= fits * RECORD;
                    whole
                }
                Work::Clear { count, to } => {
                    let update = Update::Clear { lba: change.lba, count: *count, to: *to };
                    visits += update.visits();
                    // They enter the index in one step.
                    let whole = room - bytes.len() >= UNIT as usize
                        && (updates.is_empty() || visits <= STEP_VISITS);
                    if whole {
                        seq = self.next_seq();
                        let what = if *to == Loc::ZERO { What::Zero } else { What::Trim };
                        let (range, tag) = ((what, change.lba, *count), change.mark(true));
                        self.put_record(&mut bytes, (file.number, unit), (seq, tag), range, &[]);
                        done.extend(change.part(*count, true));
                        updates.push(update);
                        queue.bytes -= UNIT as usize;
                    }
                    whole
                }
            };
            if !whole {
                break;
            }
            last_of.push(queue.waiting.pop_front().expect("just seen"));
        }
        let end = unit + (bytes.len() as u64 / UNIT) as u32;
        open.next = end;
        self.count(|counts| {
            counts.appends += 1;
            counts.records += u64::from(blocks);
            counts.log_bytes += bytes.len() as u64;
        });
        Group { file, unit, end, bytes: Rc::new(bytes), seq, updates, blocks, done, last_of }
    }

    fn put_record(
        &self,
        bytes: &mut Vec<u8>,
        (file, first): (FileNo, u32),
        (seq, tag): (Seq, Option<record::RequestTag>),
        (what, lba, count): (What, u32, u32),
        data: &[u8],
    ) {
        let unit = first + (bytes.len() as u64 / UNIT) as u32;
        let data_crc = if data.is_empty() { 0 } else { crc32c(data) };
        let identity = self.identity;
        let head = Head { what, data_crc, identity, file, unit, seq, lba, count, tag };
        bytes.extend_from_slice(&head.encode());
        bytes.extend_from_slice(data);
    }

    /// Adds a durable append to the index and answers its callers.
    fn apply(&self, group: Group) {
        let Group { file, unit, end, bytes, seq, updates, blocks, done, last_of } = group;
        {
            let once = &mut *self.dedup.borrow_mut();
            done.into_iter().for_each(|(request, blocks, whole)| once.note(request, blocks, whole));
        }
        file.end.set(end);
        file.blocks.set(file.blocks.get() + blocks);
        self.share.remember((file.number, unit), bytes, self.options.recent_bytes);
        let mark = Watermark { file: file.number, end, blocks: file.blocks.get() };
        self.install(seq, Some(mark), updates);
        for change in last_of {
            drop(change.guard);
            drop(change.permit);
            let _ = change.done.send(Ok(())); // The caller may be gone.
        }
    }

    /// Makes changes of the index, which go to the TxnFile.
    pub(crate) fn install(&self, seq: Seq, mark: Option<Watermark>, updates: Vec<Update>) {
        {
            let mut index = self.share.index.borrow_mut();
            updates.iter().for_each(|update| index.apply(*update));
        }
        let waiting = &mut *self.unlogged.borrow_mut();
        let count = self.unlogged_count.get() + updates.len().max(1);
        if waiting.is_empty() || count >= self.options.txn_updates {
            self.wake_txn.notify_one();
        }
        self.unlogged_count.set(count);
        self.installed.set(self.installed.get() + 1);
        waiting.push_back(PendingIndexUpdate { seq, mark, updates, since: self.env.now() });
        self.watch_memory();
    }

    /// An append has failed: the outcome of all behind it is not known.
    async fn fail<F>(&self, fault: Fault, group: Group, rest: FuturesOrdered<F>) -> Fault
    where
        F: Future<Output = (Result<u64, Fault>, Group, Instant)>,
    {
        self.end(fault.clone());
        let outcome = self.unknown(&fault);
        let tell =
            |group: Group| group.last_of.into_iter().for_each(|change| change.fail(&outcome));
        tell(group);
        // Appends behind a failed one are not answered, whatever their outcome.
        rest.for_each(|(_, group, _)| {
            tell(group);
            ready(())
        })
        .await;
        fault
    }

    /// Goes on in the next DataFile. All of the present one is acknowledged.
    async fn roll(self: &Rc<Self>, open: &mut Open) -> Result<(), Fault> {
        self.make_spare().await?;
        let next = self.spare.borrow_mut().take().expect("just made");
        let old = std::mem::replace(open, next);
        old.file.closed.set(true);
        self.changed.notify_waiters();
        let (file, end) = (old.file.number, old.file.end.get());
        let mark = Watermark { file, end, blocks: old.file.blocks.get() };
        // The batch that covers the end of the file marks it as sealed.
        let seq = Seq { epoch: self.epoch, counter: self.counter.get() };
        self.install(seq, Some(mark), Vec::new());
        self.env.mark("segment: next DataFile");
        self.env.spawn(Class::Background, "close DataFile", async move {
            if let Err(fault) = old.writer.close().await {
                tracing::debug!(cause = fault.message, "DataFile not closed");
            }
        });
        Ok(())
    }

    /// Makes the next DataFile ahead of its use, unless it is ready.
    pub(crate) async fn make_spare(&self) -> Result<(), Fault> {
        let _making = self.making.lock().await;
        if self.spare.borrow().is_none() {
            let open = self.make_file(Role::Log, true).await?;
            *self.spare.borrow_mut() = Some(open);
        }
        Ok(())
    }

    /// Makes a DataFile, which the table names before its first record. With `waits` it waits for
    /// room without a limit.
    pub(crate) async fn make_file(&self, role: Role, waits: bool) -> Result<Open, Fault> {
        let mut pause = RETRY.0;
        loop {
            self.over.borrow().clone().map_or(Ok(()), Err)?;
            let fault = match self.try_make_file(role, None).await {
                Ok(open) => {
                    self.name_file(&open.file, |_| {}).await?;
                    return Ok(open);
                }
                Err(fault) => fault,
            };
            if matches!(fault.kind, Kind::Fenced | Kind::Invalid) || !waits {
                return Err(fault);
            }
            tracing::warn!(cause = fault.message, "no new DataFile; trying again");
            self.env.sleep(self.env.jitter(pause)).await;
            pause = (2 * pause).min(RETRY.1);
        }
    }

    /// The first DataFile, which the opening has begun; `more` goes to the table with its row.
    pub(crate) async fn use_first_file(
        &self,
        begun: (String, Box<dyn Writer>),
        more: impl FnOnce(&mut Batch),
    ) -> Result<Open, Fault> {
        let open = self.try_make_file(Role::Log, Some(begun)).await?;
        self.name_file(&open.file, more).await?;
        Ok(open)
    }

    async fn name_file(
        &self,
        file: &Rc<DataFile>,
        more: impl FnOnce(&mut Batch),
    ) -> Result<(), Fault> {
        self.commit(|batch| {
            batch.put(&file_key(file.number), &file.state.get().encode());
            self.put_state(batch);
            more(batch);
            self.files.borrow_mut().insert(file.number, file.clone());
        })
        .await
    }

    /// Makes the next DataFile, with the writer of its empty file if there is one.
    async fn try_make_file(
        &self,
        role: Role,
        begun: Option<(String, Box<dyn Writer>)>,
    ) -> Result<Open, Fault> {
        let number = FileNo::new(self.next_file.get()).expect("numbers begin with 1");
        let next = number.get().checked_add(1);
        let next = next.ok_or_else(|| {
            self.fault(Kind::Invalid, "it has had 2^32 DataFiles; copy it into a new volume")
        })?;
        self.next_file.set(next);
        let (generation, born) = (self.generation, self.counter.get());
        let code = match role {
            Role::Log => None,
            Role::Collected => Some(self.outputs.redundancy()).filter(|form| form.is_coded()),
        };
        let state = FileState {
            generation,
            role,
            sealed: false,
            units: 1,
            blocks: 0,
            live: 0,
            born,
            clone_source: 0,
            code,
        };
        let file = DataFile::new(number, state);
        if code.is_some() {
            self.env.mark("segment: output in a code");
        }
        let store = match role {
            Role::Log => &self.store,
            Role::Collected => &self.outputs,
        };
        let begun = async {
            let writer = match begun {
                Some((name, writer)) => {
                    assert_eq!(name, file.name, "the first file has the next number");
                    writer
                }
                None => {
                    let writer = store.create(&file.name).await;
                    writer.map_err(|fault| self.cause("create", &file.name, fault))?
                }
            };
            let head = file_head(self.identity, number, self.epoch);
            let written = match writer.submit(&head).await {
                Ok(pending) => pending.await,
                Err(fault) => Err(fault),
            };
            written.map_err(|fault| self.cause("begin", &file.name, fault))?;
            if role == Role::Collected {
                writer.set_purpose(Purpose::Collection);
            }
            Ok(writer)
        };
        let writer = match begun.await {
            Ok(writer) => writer,
            Err(fault) => {
                // No row names it, and its name may be there though it could not be made. If it
                // cannot be removed now, the next opening does.
                self.env.mark("segment: unmade file removed");
                let _ = self.store.remove(&file.name).await;
                return Err(fault);
            }
        };
        Ok(Open { file, writer, next: (FILE_HEAD as u64 / UNIT) as u32 })
    }
}
