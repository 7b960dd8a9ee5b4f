//! [`Decisions`]: changes of a table's keys that are decided one at a time for each key
//! (`object-protocols.md` 6.1).
//!
//! A decision holds its key from reading it to submitting its batch. What is submitted and not
//! durable stands in an overlay, which the next decision sees. Every answer, a refusal too, waits
//! until what it was decided on is durable. A failed append ends the instance: nothing that was
//! built on it is answered.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use object_proto::{Error, Stamp};
use runtime::sync::{Notify, oneshot};
use runtime::{Class, Env, Instant};
use table::{Batch, Purpose, Range, Snapshot, Table};

use crate::ground::Lease;
use crate::key_locks::{KeyGuard, KeyLocks};
use crate::keys::{LOG, STAMP, number_key};
use crate::limits::{CLOCK_AHEAD, CLOCK_LEAST_US, CLOCKS_APART, RECENT_BYTES};
use crate::logs::Logs;
use crate::planted::{Bugs, Planted};
use crate::recent::Recent;
use crate::room::Room;
use crate::row::{LogRow, decode_stamp, encode_stamp};

/// Cause of refusals of what makes room, while there is none to note it.
const NO_ROOM: &str = "the cluster is full, and has no room to note deletions until what was deleted \
    is given back, in some minutes";

/// A batch of the instance, by its number; 0 is what was durable before all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Basis(u64);

impl Basis {
    /// Its number.
    pub(crate) fn batch(self) -> u64 {
        self.0
    }
}

/// A row as a decision sees it.
pub(crate) struct Seen {
    /// Its value.
    pub(crate) value: Option<Vec<u8>>,
    /// The batch that it is of.
    pub(crate) basis: Basis,
}

#[derive(Default)]
struct State {
    /// Batches submitted.
    submitted: u64,
    /// The last commit.
    stamp: u64,
    /// Rows that are submitted and not durable, with their batch.
    overlay: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>,
}

/// Decisions on one table.
pub(crate) struct Decisions {
    env: Env,
    lease: Rc<dyn Lease>,
    /// The last commit of the owners before.
    last_before: u64,
    /// This wall clock when the manager's agreed with it last, and when that was.
    agreed: Cell<Option<(u64, Instant)>>,
    pub(crate) table: Table,
    /// Data in the table's logs.
    pub(crate) logs: Logs,
    /// Data that was put lately.
    pub(crate) recent: Recent,
    pub(crate) room: Room,
    locks: KeyLocks,
    state: RefCell<State>,
    /// The last batch that is durable, and all before it.
    durable: Cell<u64>,
    /// Those that wait for a batch to be durable, by its number.
    waiting: RefCell<BTreeMap<u64, Vec<oneshot::Sender<()>>>>,
    /// Nothing is decided any more.
    ending: Notify,
    /// See [`Decisions::shut`].
    shut: Cell<bool>,
    /// Why nothing is decided any more.
    over: RefCell<Option<String>>,
    bugs: Bugs,
}

/// Meaning of a table's error for a request that has changed nothing.
pub(crate) fn of_table(error: table::Error) -> Error {
    match error {
        table::Error::Busy { .. } | table::Error::Unavailable { .. } => {
            Error::Busy { cause: error.to_string() }
        }
        table::Error::Full { .. } => Error::Full,
        table::Error::Corrupt { .. } | table::Error::Missing { .. } => {
            Error::Damaged { what: error.to_string() }
        }
        table::Error::Fenced { .. } | table::Error::Stopped { .. } => Error::Reroute,
        table::Error::Unknown { .. } => Error::Unknown { cause: error.to_string() },
        table::Error::NotFound { .. }
        | table::Error::Version { .. }
        | table::Error::Invalid { .. } => Error::Invalid { message: error.to_string() },
    }
}

/// The wall clock, microseconds since 1970.
pub(crate) fn unix_us(env: &Env) -> u64 {
    env.unix_time().as_nanos() / 1000
}

/// Clocks that are so far apart end no lock.
pub(crate) fn are_apart(own_us: u64, manager_us: u64) -> bool {
    u128::from(own_us.abs_diff(manager_us)) >= CLOCKS_APART.as_micros()
}

/// A row that cannot be read.
pub(crate) fn damaged(what: &str) -> Error {
    Error::Damaged { what: what.to_owned() }
}

impl Decisions {
    /// Decisions on a table that this process has just opened.
    pub(crate) async fn new(
        env: &Env,
        table: Table,
        lease: Rc<dyn Lease>,
        room: &Room,
        bugs: Bugs,
    ) -> Result<Rc<Decisions>, Error> {
        let stamp = match table.get(&[STAMP]).await.map_err(of_table)? {
            Some(value) => decode_stamp(&value).ok_or_else(|| damaged("the last commit's row"))?,
            None => Stamp::default(),
        };
        let state = State { stamp: stamp.get(), ..State::default() };
        Ok(Rc::new(Decisions {
            env: env.clone(),
            lease,
            last_before: stamp.get(),
            agreed: Cell::default(),
            table,
            logs: Logs::default(),
            recent: Recent::new(RECENT_BYTES),
            room: room.clone(),
            locks: KeyLocks::default(),
            state: RefCell::new(state),
            durable: Cell::new(0),
            waiting: RefCell::default(),
            ending: Notify::new(),
            shut: Cell::new(false),
            over: RefCell::default(),
            bugs,
        }))
    }

    /// Holds a key of the table.
    pub(crate) async fn lock(&self, key: &[u8]) -> KeyGuard {
        self.locks.lock(key).await
    }

    /// A row whose key the caller holds.
    pub(crate) async fn read(&self, key: &[u8]) -> Result<Seen, Error> {
        if !self.bugs.has(Planted::DurableOnly)
            && let Some((batch, value)) = self.state.borrow().overlay.get(key)
        {
            return Ok(Seen { value: value.clone(), basis: Basis(*batch) });
        }
        let value = self.table.get(key).await.map_err(of_table)?;
        Ok(Seen { value, basis: Basis::default() })
    }

    /// The first rows that begin with `prefix`, in order, `count` at most. The caller holds what they
    /// belong to.
    pub(crate) async fn first(
        &self,
        prefix: &[u8],
        count: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>, Basis)>, Error> {
        // Before the snapshot, which has all that is left out here since it is durable.
        let mut submitted: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)> = {
            let state = self.state.borrow();
            let rows = state.overlay.range(prefix.to_vec()..);
            let rows = rows.take_while(|(key, _)| key.starts_with(prefix));
            rows.map(|(key, row)| (key.clone(), row.clone())).collect()
        };
        let mut found = BTreeMap::new();
        let mut scan = self.table.snapshot().scan(Range::prefix(prefix));
        while found.len() < count
            && let Some((key, value)) = scan.next().await.map_err(of_table)?
        {
            if !submitted.contains_key(&key) {
                found.insert(key, (value, Basis::default()));
            }
        }
        while let Some((key, (batch, value))) = submitted.pop_first() {
            if let Some(value) = value {
                found.insert(key, (value, Basis(batch)));
            }
        }
        let rows = found.into_iter().take(count);
        Ok(rows.map(|(key, (value, basis))| (key, value, basis)).collect())
    }

    /// A durable row: what readers are shown.
    pub(crate) async fn durable(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.table.get(key).await.map_err(of_table)
    }

    /// The durable rows as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.table.snapshot()
    }

    /// Rows that are submitted and not durable yet.
    pub(crate) fn submitted(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        let state = self.state.borrow();
        state.overlay.iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect()
    }

    /// The wall clock, microseconds since 1970. One that is years ahead shifts no time for good: beside a manager
    /// that was heard it counts as far as a minute ahead of that one's, or of where it would be had it gone on from
    /// when both agreed. While they have not agreed yet, a day: what is put is not to be taken for older than it is
    /// when it is the manager's clock that is wrong. That one is known to be so when it is behind what was committed.
    pub(crate) fn now_us(&self) -> u64 {
        let (own_us, now) = (unix_us(&self.env), self.env.now());
        let Some(manager_us) = self.lease.manager_us() else { return own_us };
        if !are_apart(own_us, manager_us) {
            self.agreed.set(Some((own_us, now)));
            return own_us;
        }
        let (known_us, ahead) = match self.agreed.get() {
            Some((us, at)) => {
                let gone_on_us = us.saturating_add((now - at).as_micros() as u64);
                (manager_us.max(gone_on_us), CLOCKS_APART)
            }
            None if manager_us < self.last_before.max(CLOCK_LEAST_US) => return own_us,
            None => (manager_us, CLOCK_AHEAD),
        };
        let most = known_us.saturating_add(ahead.as_micros() as u64);
        if self.bugs.has(Planted::AnyClock) { own_us } else { own_us.min(most) }
    }

    /// Nothing is submitted from now on: what comes is to be decided elsewhere.
    pub(crate) fn shut(&self) {
        self.shut.set(true);
    }

    /// Lets others run.
    pub(crate) async fn yield_now(&self) {
        self.env.yield_now().await;
    }

    /// All durable rows that begin with `prefix`; for sections that have few.
    pub(crate) async fn all(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.table.scan(Range::prefix(prefix)).take(usize::MAX).await.map_err(of_table)
    }

    /// Submits what `fill` puts into a batch for a commit at a time that it is given. Nothing is
    /// awaited: what is decided and what is submitted are one step.
    ///
    /// # Errors
    ///
    /// Nothing was submitted.
    pub(crate) fn submit(
        self: &Rc<Self>,
        fill: impl FnOnce(&mut Batch, Stamp),
    ) -> Result<(Stamp, Basis), Error> {
        if self.over.borrow().is_some() || self.shut.get() {
            return Err(Error::Reroute);
        }
        let stamp = Stamp::new(self.now_us().max(self.state.borrow().stamp + 1));
        let mut batch = Batch::new();
        fill(&mut batch, stamp);
        batch.put(&[STAMP], &encode_stamp(stamp));
        if self.room.lacks(batch.purpose()) {
            return Err(match batch.purpose() {
                Purpose::Data => Error::Full,
                _ => Error::Busy { cause: NO_ROOM.to_owned() },
            });
        }
        let outcome = self.table.submit_placed(&batch).map_err(|error| {
            // It may have ended by itself, for a manifest or log that failed while it had no writes.
            if matches!(error, table::Error::Fenced { .. } | table::Error::Stopped { .. }) {
                self.end(error.to_string());
            }
            of_table(error)
        })?;
        let number = {
            let state = &mut *self.state.borrow_mut();
            state.submitted += 1;
            state.stamp = stamp.get();
            for (key, value) in batch.changes() {
                let value = value.map(<[u8]>::to_vec);
                state.overlay.insert(key.to_vec(), (state.submitted, value));
            }
            state.submitted
        };
        let (decisions, pieces) = (self.clone(), batch.data().cloned().collect::<Vec<_>>());
        self.env.spawn(Class::Foreground, "object: batch", async move {
            match outcome.await {
                Ok(written) => {
                    decisions.logs.placed(number, &written.places);
                    for (place, piece) in written.places.into_iter().zip(pieces) {
                        decisions.recent.note(place, piece);
                    }
                    decisions.settle(number);
                }
                Err(error) => {
                    if let Some(purpose) = decisions.table.out_of_room() {
                        decisions.room.note_full(&decisions.env, purpose);
                    }
                    decisions.end(error.to_string());
                }
            }
        });
        Ok((stamp, Basis(number)))
    }

    /// Submits the row of a log, which is for what is to be given back.
    pub(crate) fn put_log(self: &Rc<Self>, log: u64, row: LogRow) -> Result<Basis, Error> {
        let (_, basis) = self.submit(|batch, _| {
            batch.set_purpose(Purpose::Recovery);
            batch.put(&number_key(LOG, log), &row.encode());
        })?;
        self.logs.known(log, row);
        Ok(basis)
    }

    /// All batches up to this one are durable.
    fn settle(&self, number: u64) {
        self.durable.set(self.durable.get().max(number));
        let durable = self.durable.get();
        // Scanned whole: it holds what is under way, some hundred rows at most.
        self.state.borrow_mut().overlay.retain(|_, (batch, _)| *batch > durable);
        let mut waiting = self.waiting.borrow_mut();
        let later = waiting.split_off(&(durable + 1));
        for waits in std::mem::replace(&mut *waiting, later).into_values().flatten() {
            let _ = waits.send(()); // It may wait no more.
        }
    }

    /// Ends the instance: what is submitted and not durable has an unknown outcome.
    pub(crate) fn end(&self, cause: String) {
        self.over.borrow_mut().get_or_insert(cause);
        self.waiting.borrow_mut().clear();
        self.ending.notify_waiters();
    }

    /// True when nothing is decided any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Ends when a batch, and all before it, are durable. An error when that is not known.
    pub(crate) async fn settled(&self, basis: Basis) -> Result<(), Error> {
        loop {
            if self.durable.get() >= basis.0 {
                return Ok(());
            }
            if let Some(cause) = &*self.over.borrow() {
                return Err(Error::Unknown { cause: cause.clone() });
            }
            let (settled, waits) = oneshot::channel();
            self.waiting.borrow_mut().entry(basis.0).or_default().push(settled);
            let _ = waits.await; // One of the two has come.
        }
    }

    /// As [`Decisions::settled`], for an answer that changes nothing: its request may be decided
    /// again elsewhere.
    pub(crate) async fn settled_for_refusal(&self, basis: Basis) -> Result<(), Error> {
        if self.bugs.has(Planted::EarlyRefusal) {
            return Ok(());
        }
        self.settled_to_go_on(basis).await
    }

    /// As [`Decisions::settled`], for a decision that is to be made on durable rows; nothing was changed
    /// for it yet.
    pub(crate) async fn settled_to_go_on(&self, basis: Basis) -> Result<(), Error> {
        self.settled(basis).await.map_err(|_| Error::Reroute)
    }

    /// The last batch that was submitted.
    pub(crate) fn last(&self) -> Basis {
        Basis(self.state.borrow().submitted)
    }

    /// Ends when the instance is over.
    pub(crate) async fn ended(&self) {
        loop {
            let ending = self.ending.notified();
            if self.is_over() {
                return;
            }
            ending.await;
        }
    }

    /// Ends the table in order, so that the next opening is quick.
    pub(crate) async fn close(&self) {
        let _ = self.table.clone().close().await; // The next opening finds all of it.
        self.end("it was closed".to_owned());
    }
}
