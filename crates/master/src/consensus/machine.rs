//! The replicated state machine behind a group: ours, and as openraft drives it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;

use futures_util::{Stream, TryStreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use runtime::sync::Mutex;
use runtime::{Env, Instant};

use super::error::LogError;
use super::snapshot::SnapshotStore;
use super::types::{LogId, Snapshot, SnapshotBytes, SnapshotMeta, StoredMembership, Types};

/// State that every replica computes alike from the same commands.
pub trait StateMachine: 'static {
    /// Applies the committed command of log index `index` and returns the answer for its
    /// proposer. Depends on nothing but the state and the arguments. Refusals are answers.
    fn apply(&mut self, index: u64, command: &[u8]) -> Vec<u8>;

    /// The whole state as bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the state by what [`StateMachine::snapshot`] returned.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot>;
}

/// The bytes are no snapshot of this state machine, or of a version that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadSnapshot;

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the snapshot is of another format: upgrade this master")
    }
}

impl std::error::Error for BadSnapshot {}

/// The state with its place in the log; shared by the group's handle and openraft's worker.
pub(super) struct Applied<M> {
    pub(super) machine: RefCell<M>,
    last: Cell<Option<LogId>>,
    /// When the latest entries were found committed, and were applied here; each at its index
    /// modulo the length. For traces.
    times: RefCell<Vec<EntryTimes>>,
    membership: RefCell<StoredMembership>,
}

/// Entries whose times are known: more than one group has proposals in flight, usually.
const TIMES: usize = 256;

/// When an entry passed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct EntryTimes {
    index: u64,
    pub(super) committed: Instant,
    pub(super) applied: Instant,
}

/// openraft's view of a [`StateMachine`].
pub(super) struct Worker<M> {
    applied: Rc<Applied<M>>,
    store: Rc<Store>,
}

struct Store {
    store: Mutex<Box<dyn SnapshotStore>>,
    /// What the stored snapshot covers.
    covers: Cell<Option<LogId>>,
}

impl Store {
    /// Keeps a snapshot, unless the one that is kept covers as much.
    async fn save(&self, meta: &SnapshotMeta, bytes: &[u8]) -> Result<(), io::Error> {
        let mut store = self.store.lock().await;
        if meta.last_log_id <= self.covers.get() {
            return Ok(());
        }
        let mut head = vec![0; 4];
        head = postcard::to_extend(meta, head).map_err(io::Error::other)?;
        let meta_len = (head.len() - 4) as u32;
        head[..4].copy_from_slice(&meta_len.to_le_bytes());
        store.save([&head, bytes]).await.map_err(|error| io::Error::from(LogError::from(error)))?;
        self.covers.set(meta.last_log_id);
        Ok(())
    }

    async fn load(&self) -> Result<Option<Snapshot>, LogError> {
        let Some(mut bytes) = self.store.lock().await.load().await? else { return Ok(None) };
        let head = bytes.get(..4).ok_or(LogError::SnapshotLost)?;
        let meta_len = u32::from_le_bytes(head.try_into().expect("4 bytes")) as usize;
        let meta = bytes.get(4..4 + meta_len).ok_or(LogError::SnapshotLost)?;
        let meta: SnapshotMeta = postcard::from_bytes(meta).map_err(|_| LogError::SnapshotLost)?;
        bytes.drain(..4 + meta_len);
        self.covers.set(meta.last_log_id);
        Ok(Some(Snapshot { meta, snapshot: Rc::new(bytes) }))
    }
}

impl<M: StateMachine> Worker<M> {
    /// `machine` is in its initial state; `purged` is where the log begins, which the stored
    /// snapshot must cover.
    pub(super) async fn open(
        machine: M,
        store: Box<dyn SnapshotStore>,
        purged: Option<u64>,
    ) -> Result<Self, LogError> {
        let applied = Rc::new(Applied {
            machine: RefCell::new(machine),
            last: Cell::new(None),
            times: RefCell::new(vec![EntryTimes::default(); TIMES]),
            membership: RefCell::default(),
        });
        let store = Rc::new(Store { store: Mutex::new(store), covers: Cell::new(None) });
        store.load().await?;
        if store.covers.get().map(|id| id.index) < purged {
            return Err(LogError::SnapshotLost);
        }
        Ok(Worker { applied, store })
    }

    pub(super) fn applied(&self) -> Rc<Applied<M>> {
        self.applied.clone()
    }
}

impl<M> Applied<M> {
    /// Index of the last entry that was applied.
    pub(super) fn last_index(&self) -> Option<u64> {
        self.last.get().map(|id| id.index)
    }

    /// When an entry passed here, if that was not long ago.
    pub(super) fn times(&self, index: u64) -> Option<EntryTimes> {
        let times = self.times.borrow()[index as usize % TIMES];
        (times.index == index).then_some(times)
    }
}

impl<M: StateMachine> Applied<M> {
    fn apply(&self, (entry, responder): EntryResponder<Types>) {
        let id = entry.log_id();
        let in_order = self.last.get().map_or(0, |last| last.index + 1) == id.index;
        // openraft's own suite (`tests.rs`) applies entries from the middle of a log.
        assert!(in_order || cfg!(test), "entry {} applied after {:?}", id.index, self.last.get());
        self.last.set(Some(id));
        let now = || Env::try_current().map(|env| env.now()).unwrap_or_default();
        let committed = if responder.is_some() { now() } else { Instant::default() };
        let answer = match entry.payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Normal(command) => self.machine.borrow_mut().apply(id.index, &command.0),
            EntryPayload::Membership(membership) => {
                *self.membership.borrow_mut() = StoredMembership::new(Some(id), membership);
                Vec::new()
            }
        };
        if let Some(responder) = responder {
            // Somebody here has proposed it.
            let times = EntryTimes { index: id.index, committed, applied: now() };
            self.times.borrow_mut()[id.index as usize % TIMES] = times;
            responder.send(answer);
        }
    }
}

impl<M: StateMachine> RaftStateMachine<Types> for Worker<M> {
    type SnapshotData = SnapshotBytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied.last.get(), self.applied.membership.borrow().clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.try_next().await? {
            self.applied.apply(entry);
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let last_membership = self.applied.membership.borrow().clone();
        let meta = SnapshotMeta { last_log_id: self.applied.last.get(), last_membership };
        let bytes = Rc::new(self.applied.machine.borrow().snapshot());
        Builder { meta, bytes, store: self.store.clone() }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotBytes,
    ) -> Result<(), io::Error> {
        self.store.save(meta, &snapshot).await?;
        self.applied.machine.borrow_mut().restore(&snapshot).map_err(io::Error::other)?;
        self.applied.last.set(meta.last_log_id);
        *self.applied.membership.borrow_mut() = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.store.load().await?)
    }
}

/// A snapshot that is on its way to the store.
pub struct Builder {
    meta: SnapshotMeta,
    bytes: SnapshotBytes,
    store: Rc<Store>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotBytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        self.store.save(&self.meta, &self.bytes).await?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: self.bytes.clone() })
    }
}
