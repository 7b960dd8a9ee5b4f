//! The replicated state machine behind a group: ours, and as openraft drives it.

use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;

use futures_util::{Stream, TryStreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use runtime::{Env, Instant};

use super::checkpoint::{Checkpoints, SnapshotData};
use super::error::LogError;
use super::limits::LOAD_ROWS;
use super::rows::{Rows, first_row};
use super::types::{LogId, Snapshot, SnapshotMeta, StoredMembership, Types};

/// State that every replica computes alike from the same commands: rows, each a key and a value.
pub trait StateMachine: Sized + 'static {
    /// Applies the committed command of log index `index` and returns the answer for its proposer.
    /// Depends on nothing but the state and the arguments. Refusals are answers. A command that
    /// cannot be decoded changes nothing: the member stops in front of it, since other members may
    /// be able to decode it.
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Vec<u8>, BadCommand>;

    /// An error when [`StateMachine::apply`] could not decode the command. Asked before a
    /// command of another process is proposed.
    fn check_command(command: &[u8]) -> Result<(), BadCommand>;

    /// Puts the rows that have changed since they were last put, until `rows` is full; true when
    /// more is left. No command comes in between. All rows of a new state have changed.
    fn take_changes(&mut self, rows: &mut Rows) -> bool;

    /// A state of the same identity without rows.
    fn blank(&self) -> Self;

    /// Adds a row to a blank state: one of [`StateMachine::take_changes`]. Rows come in the
    /// order of their keys. Checks that the row fits those before it: when all are there nothing
    /// is checked any more, which would hold up other tasks.
    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadSnapshot>;

    /// Drops some rows of a state that is not needed any more; false when none is left. For
    /// states that take long to drop.
    fn shed(&mut self) -> bool {
        false
    }
}

/// The bytes are no command of this state machine, or of a version that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCommand;

impl fmt::Display for BadCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the command is damaged, or of a version that this master does not know")
    }
}

impl std::error::Error for BadCommand {}

/// The bytes are no snapshot of this state machine, or of a version that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadSnapshot;

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the snapshot is of another format: upgrade this master")
    }
}

impl std::error::Error for BadSnapshot {}

/// A state machine of any kind, as openraft's worker drives it. The library is generic over the
/// worker: with one kind of worker it is compiled once, here, and not in each crate that has a state
/// machine or opens a group.
pub(super) trait Replicated {
    /// See [`StateMachine::apply`].
    fn apply(&self, index: u64, command: &[u8]) -> Result<Vec<u8>, BadCommand>;

    /// See [`StateMachine::take_changes`].
    fn take_changes(&self, rows: &mut Rows) -> bool;

    /// Begins a blank state beside the present one.
    fn begin_load(&self);

    /// Adds a row to the state that was begun: [`StateMachine::load`].
    fn load(&self, key: &[u8], value: &[u8]) -> Result<(), BadSnapshot>;

    /// The state that was loaded is the present one from here on, and that before it is shed.
    fn finish_load(&self);

    /// Drops some rows of the state before; false when none is left: [`StateMachine::shed`].
    fn shed(&self) -> bool;
}

/// A state of one kind, shared by the group's handle and openraft's worker.
pub(super) struct State<M> {
    machine: RefCell<M>,
    /// The state that is being loaded, or the one before that is being shed.
    other: RefCell<Option<M>>,
}

impl<M: StateMachine> State<M> {
    pub(super) fn new(machine: M) -> Rc<State<M>> {
        Rc::new(State { machine: RefCell::new(machine), other: RefCell::new(None) })
    }

    pub(super) fn machine(&self) -> Ref<'_, M> {
        self.machine.borrow()
    }
}

impl<M: StateMachine> Replicated for State<M> {
    fn apply(&self, index: u64, command: &[u8]) -> Result<Vec<u8>, BadCommand> {
        self.machine.borrow_mut().apply(index, command)
    }

    fn take_changes(&self, rows: &mut Rows) -> bool {
        self.machine.borrow_mut().take_changes(rows)
    }

    fn begin_load(&self) {
        let blank = self.machine.borrow().blank();
        self.other.replace(Some(blank));
    }

    fn load(&self, key: &[u8], value: &[u8]) -> Result<(), BadSnapshot> {
        self.other.borrow_mut().as_mut().expect("begun").load(key, value)
    }

    fn finish_load(&self) {
        let fresh = self.other.take().expect("begun");
        self.other.replace(Some(self.machine.replace(fresh)));
    }

    fn shed(&self) -> bool {
        let more = self.other.borrow_mut().as_mut().is_some_and(M::shed);
        if !more {
            self.other.replace(None);
        }
        more
    }
}

/// The state with its place in the log; shared by the member and openraft's worker.
pub(super) struct Applied {
    state: Rc<dyn Replicated>,
    last: Cell<Option<LogId>>,
    /// Times at which the latest entries were found committed, and were applied here; each at its
    /// index modulo the length. For traces.
    times: RefCell<Vec<EntryTimes>>,
    membership: RefCell<StoredMembership>,
    /// The entry that stopped this member.
    failure: RefCell<Option<LogError>>,
}

/// Entries whose times are known: more than one group has proposals in flight, usually.
const TIMES: usize = 256;

/// Times at which an entry passed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct EntryTimes {
    index: u64,
    pub(super) committed: Instant,
    pub(super) applied: Instant,
}

/// openraft's view of a [`StateMachine`].
pub(super) struct Worker {
    env: Env,
    applied: Rc<Applied>,
    checkpoints: Checkpoints,
}

impl Worker {
    /// `state` is in its initial state; `purged` is where the log begins, which the newest
    /// checkpoint must cover.
    pub(super) async fn open(
        state: Rc<dyn Replicated>,
        checkpoints: Checkpoints,
        purged: Option<u64>,
    ) -> Result<Worker, LogError> {
        if checkpoints.covers() < purged {
            return Err(LogError::SnapshotLost);
        }
        let env = checkpoints.env().clone();
        let applied = Applied {
            state,
            last: Cell::new(None),
            times: RefCell::new(vec![EntryTimes::default(); TIMES]),
            membership: RefCell::default(),
            failure: RefCell::default(),
        };
        if let Some((meta, data)) = checkpoints.current() {
            load(&env, &checkpoints, &*applied.state, &data).await?;
            applied.state.finish_load();
            while applied.state.shed() {}
            applied.last.set(meta.last_log_id);
            applied.membership.replace(meta.last_membership);
        }
        Ok(Worker { env, applied: Rc::new(applied), checkpoints })
    }

    pub(super) fn applied(&self) -> Rc<Applied> {
        self.applied.clone()
    }
}

/// Fills a blank state from a checkpoint, while other tasks run.
async fn load(
    env: &Env,
    checkpoints: &Checkpoints,
    state: &dyn Replicated,
    data: &SnapshotData,
) -> Result<(), LogError> {
    let lost = |_| LogError::SnapshotLost;
    state.begin_load();
    let sink = async |bytes: Vec<u8>| {
        let (mut at, mut count) = (0, 0);
        while let Some(row) = first_row(&bytes[at..]).map_err(|_| LogError::SnapshotLost)? {
            let value = row.value.ok_or(LogError::SnapshotLost)?;
            state.load(row.key, value).map_err(lost)?;
            at += row.len;
            count += 1;
            if count % LOAD_ROWS == 0 {
                env.yield_now().await;
            }
        }
        Ok(())
    };
    checkpoints.merged(&data.runs, false, sink).await
}

impl Applied {
    /// Index of the last entry that was applied.
    pub(super) fn last_index(&self) -> Option<u64> {
        self.last.get().map(|id| id.index)
    }

    /// Cause for which no further entry is applied.
    pub(super) fn failure(&self) -> Option<LogError> {
        self.failure.borrow().clone()
    }

    /// Times at which an entry passed here, if that was not long ago.
    pub(super) fn times(&self, index: u64) -> Option<EntryTimes> {
        let times = self.times.borrow()[index as usize % TIMES];
        (times.index == index).then_some(times)
    }

    fn apply(&self, (entry, responder): EntryResponder<Types>) -> Result<(), LogError> {
        let id = entry.log_id();
        let in_order = self.last.get().map_or(0, |last| last.index + 1) == id.index;
        // openraft's own suite (`tests.rs`) applies entries from the middle of a log.
        assert!(in_order || cfg!(test), "entry {} applied after {:?}", id.index, self.last.get());
        let now = || Env::try_current().map(|env| env.now()).unwrap_or_default();
        let committed = if responder.is_some() { now() } else { Instant::default() };
        let answer = match entry.payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Normal(command) => {
                let applied = self.state.apply(id.index, &command.0);
                applied.map_err(|BadCommand| {
                    let failure = LogError::BadCommand { index: id.index, len: command.0.len() };
                    self.failure.replace(Some(failure.clone()));
                    failure
                })?
            }
            EntryPayload::Membership(membership) => {
                *self.membership.borrow_mut() = StoredMembership::new(Some(id), membership);
                Vec::new()
            }
        };
        self.last.set(Some(id));
        if let Some(responder) = responder {
            // A caller here has proposed it.
            let times = EntryTimes { index: id.index, committed, applied: now() };
            self.times.borrow_mut()[id.index as usize % TIMES] = times;
            responder.send(answer);
        }
        Ok(())
    }
}

impl RaftStateMachine<Types> for Worker {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied.last.get(), self.applied.membership.borrow().clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.try_next().await? {
            self.applied.apply(entry)?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let mut rows = Rows::default();
        // Commands wait during this, other tasks do not.
        while self.applied.state.take_changes(&mut rows) {
            rows.next_slice();
            self.env.yield_now().await;
        }
        let last_membership = self.applied.membership.borrow().clone();
        let meta = SnapshotMeta { last_log_id: self.applied.last.get(), last_membership };
        let installed = self.checkpoints.installed();
        Builder { meta, rows: Some(rows), installed, checkpoints: self.checkpoints.clone() }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: SnapshotData,
    ) -> Result<(), io::Error> {
        let data = self.checkpoints.adopt(data).await?;
        load(&self.env, &self.checkpoints, &*self.applied.state, &data).await?;
        self.checkpoints.replace(meta, &data).await?;
        self.applied.state.finish_load();
        self.applied.last.set(meta.last_log_id);
        *self.applied.membership.borrow_mut() = meta.last_membership.clone();
        while self.applied.state.shed() {
            self.env.yield_now().await;
        }
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let current = self.checkpoints.current();
        Ok(current.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

/// A checkpoint that is on its way to the store.
pub struct Builder {
    meta: SnapshotMeta,
    /// The changed rows; none once they are written.
    rows: Option<Rows>,
    installed: u64,
    checkpoints: Checkpoints,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let rows = self.rows.take().ok_or_else(|| io::Error::other("built before"))?;
        let added = self.checkpoints.add(self.meta.clone(), rows, self.installed).await?;
        let (meta, snapshot) = match added {
            Some(data) => (self.meta.clone(), data),
            // A snapshot from elsewhere came in between: it covers more.
            None => self.checkpoints.current().ok_or(LogError::SnapshotLost)?,
        };
        Ok(Snapshot { meta, snapshot })
    }
}
