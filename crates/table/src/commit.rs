//! Writes of a table: a bounded queue, groups, the log, memory (`protocols.md` 3.4).
//!
//! Batches that wait go into one append of the log together, and an append waits for those of callers
//! who were just answered (decision 20). They are given their sequences when
//! the append starts, become visible when it is durable, in order, and are acknowledged then: no
//! read ever sees bytes that could be lost.

use std::collections::VecDeque;
use std::future::{pending, ready};
use std::rc::Rc;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesOrdered, StreamExt};
use runtime::sync::oneshot;
use runtime::{Class, Duration, Instant};

use crate::batch::Batch;
use crate::engine::{Engine, Log};
use crate::error::{Error, Pressure};
use crate::format::edit::{Change, DataLog};
use crate::format::frame::{Form, Record, log_head, put_record};
use crate::group_commit::GroupCommitPolicy;
use crate::limits::{
    GROUP_BYTES_MAX, GROUP_COMMIT_BYTES_FULL, GROUP_COMMIT_FULL, GROUPS_INFLIGHT_MAX,
    QUEUE_BATCHES_MAX, QUEUE_BYTES_MAX, RUNS_SLOW, RUNS_STOP,
};
use crate::memtable::Memtable;
use crate::types::{Name, Place, Seq};
use wire::data::Purpose;

/// Pause after a log could not be made: first and longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Pause that a refused caller is asked to keep.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// Pause before a group for each run above the number that reads can handle fast.
const SLOW_PER_RUN: Duration = Duration::from_millis(1);

/// Batches that wait for the log.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Wait>,
    bytes: usize,
}

impl Queue {
    /// Bytes of batches that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A batch that is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Sequence of its last change.
    pub seq: Seq,
    /// Places of its data, in its order.
    pub places: Vec<Place>,
}

struct Wait {
    batch: Batch,
    places: Vec<Place>,
    done: oneshot::Sender<Result<Written, Error>>,
}

/// Batches that go into one append.
struct Group {
    first: Seq,
    waits: Vec<Wait>,
}

impl Group {
    /// What its append is for: the one of its batches that leaves most of the reserve.
    fn purpose(&self) -> Purpose {
        // They stand in the order of their right to it.
        self.waits.iter().map(|wait| wait.batch.purpose()).min().unwrap_or(Purpose::Metadata)
    }
}

impl Engine {
    /// Queues a batch; its outcome comes when it is durable. An error when there is no room.
    pub(crate) fn submit(
        &self,
        batch: &Batch,
    ) -> Result<oneshot::Receiver<Result<Written, Error>>, Error> {
        let table = || self.name().to_owned();
        if let Some(message) = batch.flaw() {
            return Err(Error::Invalid { table: table(), message: message.to_owned() });
        }
        if batch.data_bytes() > 0 && self.form == Form::Plain {
            let message = "was opened without room for data in its log".to_owned();
            return Err(Error::Invalid { table: table(), message });
        }
        if let Some(error) = self.over_error() {
            return Err(error);
        }
        if self.closing.get() {
            return Err(Error::Stopped { table: table(), cause: "it is being closed".to_owned() });
        }
        let cause = {
            let queue = self.queue.borrow();
            let bytes = queue.bytes + batch.bytes();
            if queue.waiting.len() >= QUEUE_BATCHES_MAX || bytes > QUEUE_BYTES_MAX {
                Some(Pressure::Queue)
            } else if self.is_full() && self.flush_lags() {
                Some(Pressure::Flush)
            } else if !batch.is_empty() && self.share.is_exceeded() {
                Some(Pressure::Memory)
            } else if self.runs.borrow().len() >= RUNS_STOP && self.options.auto_compact {
                Some(Pressure::Compaction)
            } else {
                None
            }
        };
        if let Some(cause) = cause {
            if cause == Pressure::Memory {
                self.freeze_soon();
            }
            self.count(|counts| counts.refused += 1);
            return Err(Error::Busy { table: table(), cause, retry_after: RETRY_AFTER });
        }
        Ok(self.queue_up(batch))
    }

    /// Queues a batch, whatever waits.
    fn queue_up(&self, batch: &Batch) -> oneshot::Receiver<Result<Written, Error>> {
        let (done, outcome) = oneshot::channel();
        {
            let queue = &mut *self.queue.borrow_mut();
            queue.bytes += batch.bytes();
            queue.waiting.push_back(Wait { batch: batch.clone(), places: Vec::new(), done });
        }
        self.note_memory();
        self.wake_commit.notify_one();
        outcome
    }

    /// Takes no batch any more, and ends when those that it has taken are durable.
    pub(crate) async fn hold_writes(&self) -> Result<(), Error> {
        if let Some(error) = self.over_error() {
            return Err(error);
        }
        self.closing.set(true);
        let gone = |_| {
            Err(Error::Stopped {
                table: self.name().to_owned(),
                cause: "the instance was dropped".to_owned(),
            })
        };
        self.queue_up(&Batch::new()).await.unwrap_or_else(gone).map(drop)
    }

    fn take_group(&self, first: Seq) -> Group {
        let queue = &mut *self.queue.borrow_mut();
        let mut group = Group { first, waits: Vec::new() };
        // A small memtable takes small groups: what is under way adds little to its memory.
        let most = GROUP_BYTES_MAX.min(self.options.memtable_bytes / 4);
        let (mut bytes, mut data) = (0, 0);
        while let Some(wait) = queue.waiting.front() {
            bytes += self.form.record_head() + wait.batch.body.len();
            data += wait.batch.data_bytes();
            // Data takes no memory once it is written.
            let is_over = bytes > most || bytes + data > GROUP_BYTES_MAX;
            if is_over && !group.waits.is_empty() {
                break;
            }
            queue.bytes -= wait.batch.bytes();
            group.waits.push(queue.waiting.pop_front().expect("just seen"));
        }
        group
    }

    /// Makes a log and has the manifest name it, unless one is ready.
    pub(crate) async fn make_log(&self) -> Result<(), Error> {
        let _making = self.making_log.lock().await;
        if self.next_log.borrow().is_some() {
            return Ok(());
        }
        let mut pause = RETRY.0;
        loop {
            if let Some(error) = self.over_error() {
                return Err(error);
            }
            let error = match self.try_make_log().await {
                Ok(log) => {
                    let file = log.file;
                    let install = || *self.next_log.borrow_mut() = Some(log);
                    return self.commit_edit(vec![Change::AddLog(file)], install).await;
                }
                Err(error) => self.explain(error).await,
            };
            if matches!(error, Error::Fenced { .. } | Error::Invalid { .. }) {
                self.end_with(&error);
                return Err(error);
            }
            tracing::warn!(%error, "no new log; trying again");
            self.env.sleep(self.env.jitter(pause)).await;
            pause = (2 * pause).min(RETRY.1);
        }
    }

    async fn try_make_log(&self) -> Result<Log, Error> {
        let file = self.next_file();
        let name = Name::Log(file);
        let path = self.table_files.path(name);
        let writer = self.table_files.store.create(&name.to_string()).await.map_err(|fault| {
            // Its name may be there: a full cluster refuses the first append.
            self.table_files.discard(&self.env, name);
            Error::of_store(fault, "create", &path)
        })?;
        let head = log_head(self.form, file);
        let cause = |fault| Error::of_store(fault, "write", &path);
        let written = writer.submit(&head).await.map_err(cause);
        let written = match written {
            Ok(pending) => pending.await.map_err(cause),
            Err(error) => Err(error),
        };
        match written {
            Ok(len) => Ok(Log { file, writer, len, data: 0 }),
            Err(error) => {
                // Nothing names it: it goes at once rather than with the next sweep.
                self.table_files.discard(&self.env, name);
                Err(error)
            }
        }
    }

    /// Goes on with a new memtable, and in the next log where this one is at its end. All of the
    /// present log is acknowledged.
    async fn rotate(&self, log: &mut Log) -> Result<(), Error> {
        if self.log_goes_on(log.len) {
            self.freeze_active(log.upto_here(), true);
            self.env.mark("table: log goes on behind a memtable");
            return Ok(());
        }
        self.make_log().await?;
        let next = self.next_log.borrow_mut().take().expect("just made");
        self.freeze_active(log.upto_here(), false);
        self.end_log.set(false);
        let old = std::mem::replace(log, next);
        self.log_len.set(log.len);
        self.log_file.set(Some(log.file));
        self.env.mark("table: log rotated");
        self.env.spawn(Class::Background, "close log", async move {
            if let Err(fault) = old.writer.close().await {
                tracing::debug!(cause = fault.message, "log not closed");
            }
        });
        Ok(())
    }

    /// Begins a new memtable. The present one has the changes of the log up to here.
    fn freeze_active(&self, log: DataLog, goes_on: bool) {
        let full = self.active.borrow().clone();
        let mut logs = full.logs();
        self.freeze.set(false);
        if full.range().is_some() {
            logs.push(log);
            full.set_logs(logs, goes_on);
            self.active.replace(Rc::new(Memtable::new(Vec::new())));
            self.frozen.borrow_mut().push_back(full);
        } else if !goes_on {
            // A log without changes (of barriers alone) goes with the next memtable.
            logs.push(log);
            full.set_logs(logs, false);
        }
        self.wake_flush.notify_one();
        self.changed.notify_waiters();
    }

    /// The task that writes the log, until the instance is over.
    pub(crate) async fn write_log(self: Rc<Self>, log: Log) {
        let error = self.clone().write_groups(log).await.err();
        if let Some(error) = error {
            self.end_with(&error);
        }
        let over = self.over_error().expect("it has ended");
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        for wait in queue.waiting {
            let _ = wait.done.send(Err(over.clone())); // The caller may have gone.
        }
        self.commit_ended.set(true);
        self.changed.notify_waiters();
    }

    async fn write_groups(self: Rc<Self>, mut log: Log) -> Result<(), Error> {
        let mut inflight = FuturesOrdered::new();
        let mut submitted = self.visible.get();
        // An append could not be started: nothing may follow the hole.
        let mut broken = false;
        let (mut pace, mut inflight_count) = (GroupCommitPolicy::default(), 0);
        loop {
            while !broken && self.may_start(inflight.len(), &pace) {
                if self.is_over() {
                    break;
                }
                if self.is_full() || self.freeze.get() {
                    if !inflight.is_empty() || self.flush_lags() {
                        break;
                    }
                    self.rotate(&mut log).await?;
                    continue;
                }
                let runs = self.runs.borrow().len();
                if runs > RUNS_SLOW && self.options.auto_compact {
                    self.env.sleep(SLOW_PER_RUN * (runs - RUNS_SLOW) as u32).await;
                }
                pace.started(self.waiting());
                let began = self.env.now();
                let mut group = self.take_group(submitted.plus(1));
                inflight_count += group.waits.len();
                let mut bytes = Vec::new();
                for wait in &mut group.waits {
                    submitted = self.lay_out(&mut bytes, &mut log, submitted, wait);
                }
                log.writer.set_purpose(group.purpose());
                self.inflight_bytes.set(self.inflight_bytes.get() + bytes.len());
                log.len += bytes.len() as u64;
                self.log_len.set(log.len);
                self.count(|counts| {
                    counts.groups += 1;
                    counts.batches += group.waits.len() as u64;
                    counts.log_bytes += bytes.len() as u64;
                });
                let path = self.table_files.path(Name::Log(log.file));
                let started = log.writer.submit(&bytes).await;
                broken = started.is_err();
                let pending = started.unwrap_or_else(|fault| Box::pin(ready(Err(fault))));
                let len = bytes.len();
                inflight.push_back(async move { (pending.await, (group, len, began), path) });
            }
            if self.is_over() && inflight.is_empty() {
                if let Err(fault) = log.writer.close().await {
                    tracing::debug!(cause = fault.message, "log not closed");
                }
                return Ok(());
            }
            let done = {
                let hold = self.group_commit_hold(inflight.len(), &pace);
                let woken = Box::pin(async {
                    let woken = self.wake_commit.notified();
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
                (Ok(_), (group, len, began), _) => {
                    self.inflight_bytes.set(self.inflight_bytes.get() - len);
                    let (now, count) = (self.env.now(), group.waits.len());
                    inflight_count -= count;
                    pace.ended(now, (len, now - began), count, (inflight_count, self.waiting()));
                    self.apply(group);
                }
                (Err(fault), (group, ..), path) => {
                    let error = Error::of_store(fault, "write", &path);
                    return Err(self.fail(error, group, inflight).await);
                }
            }
        }
    }

    /// Lays a batch out behind the changes up to `submitted`; returns its last one.
    fn lay_out(&self, out: &mut Vec<u8>, log: &mut Log, submitted: Seq, wait: &mut Wait) -> Seq {
        let Wait { batch, places, .. } = wait;
        let data = batch.data_bytes();
        let data_at = log.len + (out.len() + self.form.record_head() + batch.body.len()) as u64;
        *places = batch.place(log.file, data_at);
        let (seq, count) = (submitted.get() + 1, batch.count);
        let record = Record { seq, count, body: &batch.body, data: data as u32 };
        put_record(out, self.form, log.file, &record);
        batch.put_data(out);
        log.data += data as u64;
        submitted.plus(u64::from(count))
    }

    /// Batches that wait.
    fn waiting(&self) -> usize {
        self.queue.borrow().waiting.len()
    }

    /// True when an append, or a new memtable, may start beside so many appends.
    fn may_start(&self, inflight: usize, pace: &GroupCommitPolicy) -> bool {
        if self.freeze.get() {
            return inflight < GROUPS_INFLIGHT_MAX;
        }
        let (waiting, bytes) = (self.waiting(), self.queue.borrow().bytes);
        let is_full = waiting >= GROUP_COMMIT_FULL || bytes >= GROUP_COMMIT_BYTES_FULL;
        let has_room = match inflight {
            0 => self.group_commit_hold(0, pace).is_none(),
            some => some < GROUPS_INFLIGHT_MAX && (is_full || !pace.is_shared()),
        };
        waiting > 0 && has_room
    }

    /// Group commit: the time until which an append should wait for batches that are about to come.
    fn group_commit_hold(&self, inflight: usize, pace: &GroupCommitPolicy) -> Option<Instant> {
        let (waiting, bytes) = (self.waiting(), self.queue.borrow().bytes);
        let has_room = inflight == 0 && waiting > 0 && bytes < GROUP_COMMIT_BYTES_FULL;
        let hurries = self.freeze.get() || self.closing.get() || self.is_over();
        (has_room && !hurries).then(|| pace.holds(self.env.now(), waiting)).flatten()
    }

    /// Takes a durable group over into memory and answers its callers.
    fn apply(&self, group: Group) {
        let active = self.active.borrow().clone();
        let mut seq = group.first;
        let mut outcomes = Vec::new();
        for wait in group.waits {
            for op in wait.batch.ops() {
                active.insert(seq, op.key, op.value, |old, new| self.unseen(old, new));
                seq = seq.plus(1);
            }
            let last = Seq::new(seq.get() - 1);
            outcomes.push((wait.done, Written { seq: last, places: wait.places }));
        }
        self.visible.set(Seq::new(seq.get() - 1));
        self.note_memory();
        for (done, written) in outcomes {
            let _ = done.send(Ok(written)); // The caller may have gone.
        }
        if self.is_log_near() && self.next_log.borrow().is_none() {
            // The next log is made before it is needed: no write waits for masters.
            self.wake_flush.notify_one();
        }
    }

    /// An append has failed: the outcome of all behind it is unknown.
    async fn fail<F>(&self, error: Error, group: Group, rest: FuturesOrdered<F>) -> Error
    where
        F: Future<Output = (Result<u64, base::Fault>, (Group, usize, Instant), String)>,
    {
        let error = match error {
            Error::Fenced { .. } => Error::Fenced { table: self.name().to_owned() },
            other => other,
        };
        self.out_of_room.set(matches!(error, Error::Full { .. }).then(|| group.purpose()));
        self.end_with(&error);
        let outcome = match &error {
            Error::Fenced { .. } => error.clone(),
            other => Error::Unknown {
                what: format!("write to {}", self.name()),
                cause: other.to_string(),
            },
        };
        let tell = |group: Group| {
            for wait in group.waits {
                let _ = wait.done.send(Err(outcome.clone())); // The caller may have gone.
            }
        };
        tell(group);
        // Appends behind a failed one are not acknowledged, even when they succeed.
        rest.for_each(|(_, (group, ..), _)| {
            tell(group);
            std::future::ready(())
        })
        .await;
        error
    }
}
