//! [`Room`]: whether the core has room for data (`object-protocols.md` 5.2).

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use base::{Fault, Kind};
use runtime::sync::Notify;
use runtime::{Duration, Env, Instant};
use table::Store;
use wire::data::Purpose;

use crate::limits::{ROOM_PAUSE, ROOM_PAUSE_KEPT, TIGHT};

/// Name of the file that tries it.
const NAME: &str = "room";
/// Its bytes: one sector.
const BYTES: usize = 4096;

/// What the owners of a process know of the core's room. Clones share it.
#[derive(Clone, Default)]
pub struct Room(Rc<State>);

#[derive(Default)]
struct State {
    /// Appends for this, and for what has less right to the reserve, find no room.
    lacking: Cell<Option<Purpose>>,
    /// Until then little room is assumed.
    tight_until: Cell<Instant>,
    /// Between two looks.
    pause: Cell<Duration>,
    /// When there was more room again.
    eased: Cell<Option<Instant>>,
    is_full: Notify,
}

impl Room {
    /// True since an append of data found no room, until one does.
    pub fn is_full(&self) -> bool {
        self.lacks(Purpose::Data)
    }

    /// True since an append for `purpose` found no room, until one does.
    pub fn lacks(&self, purpose: Purpose) -> bool {
        self.0.lacking.get().is_some_and(|lacking| lacking >= purpose)
    }

    /// True while there is no room, and for [`TIGHT`] after that: a sector that is free again is no room
    /// for what is being deleted.
    pub(crate) fn is_tight(&self, env: &Env) -> bool {
        self.is_full() || env.now() < self.0.tight_until.get()
    }

    /// Ends when there is no room.
    pub(crate) async fn filled(&self) {
        while !self.is_full() {
            let full = self.0.is_full.notified();
            if !self.is_full() {
                full.await;
            }
        }
    }

    /// An append for `purpose` found no room.
    pub(crate) fn note_full(&self, env: &Env, purpose: Purpose) {
        // What gives room back is always tried.
        let purpose = purpose.min(Purpose::Metadata);
        if self.lacks(purpose) {
            return;
        }
        let (was_full, eased) = (self.is_full(), self.0.eased.get());
        self.0.lacking.set(Some(purpose));
        let is_soon = eased.is_some_and(|eased| env.now() - eased < ROOM_PAUSE_KEPT);
        let pause = if is_soon { 2 * self.0.pause.get() } else { ROOM_PAUSE.0 };
        self.0.pause.set(pause.clamp(ROOM_PAUSE.0, ROOM_PAUSE.1));
        if !was_full {
            self.0.is_full.notify_waiters();
            env.mark("object: the core is full");
            tracing::warn!("the cluster has no room for data: objects are refused until it has");
        }
        if purpose > Purpose::Data {
            env.mark("object: no room to move what lives");
        }
        if purpose > Purpose::Collection {
            env.mark("object: no room to delete");
            tracing::warn!(
                "the cluster has no room to note deletions: they are refused until it has"
            );
        }
    }

    /// Ends when it is to be looked for room: some time after there was none.
    pub async fn look_due(&self, env: &Env) {
        self.filled().await;
        env.sleep(env.jitter(self.0.pause.get())).await;
    }

    /// Looks again for what there was no room for.
    pub(crate) async fn look(&self, env: &Env, store: &dyn Store) {
        let purposes = [Purpose::Metadata, Purpose::Collection, Purpose::Data];
        for (at, &purpose) in purposes.iter().enumerate() {
            if !self.lacks(purpose) {
                continue;
            }
            let tried = append(store, purpose).await;
            let _ = store.remove(NAME).await; // The next look removes it.
            if tried.is_err() {
                return;
            }
            self.0.lacking.set(purposes.get(at + 1).copied());
            self.0.eased.set(Some(env.now()));
        }
        if !self.is_full() {
            self.0.tight_until.set(env.now() + TIGHT);
            env.mark("object: the core has room again");
            tracing::info!("the cluster has room for data again");
        }
    }
}

async fn append(store: &dyn Store, purpose: Purpose) -> Result<(), Fault> {
    let writer = match store.create(NAME).await {
        Err(fault) if fault.kind == Kind::Exists => {
            store.remove(NAME).await?;
            store.create(NAME).await?
        }
        made => made?,
    };
    writer.set_purpose(purpose);
    writer.submit(&[0; BYTES]).await?.await?;
    writer.close().await.map(drop)
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room(lacking: {:?})", self.0.lacking.get())
    }
}
