//! [`Room`]: whether the core has room for data (`object-protocols.md` 5.2).

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use base::{Fault, Kind};
use runtime::sync::Notify;
use runtime::{Env, Instant};
use table::Store;
use wire::data::Purpose;

use crate::limits::TIGHT;

/// Name of the file that tries it.
const NAME: &str = "room";
/// Its bytes: one sector.
const BYTES: usize = 4096;

/// What the owners of a process know of the core's room. Clones share it.
#[derive(Clone, Default)]
pub struct Room(Rc<State>);

#[derive(Default)]
struct State {
    full: Cell<bool>,
    /// Not even for what collection moves.
    used_up: Cell<bool>,
    /// Until then little room is assumed.
    tight_until: Cell<Instant>,
    is_full: Notify,
}

impl Room {
    /// True since an append of data found no room, until one does.
    pub fn is_full(&self) -> bool {
        self.0.full.get()
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

    /// True when not even the room is there that is kept for what collection moves.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.used_up.get()
    }

    /// An append for `purpose` found no room.
    pub(crate) fn note_full(&self, env: &Env, purpose: Purpose) {
        if purpose > Purpose::Data && !self.0.used_up.replace(true) {
            env.mark("object: no room to move what lives");
        }
        if !self.0.full.replace(true) {
            self.0.is_full.notify_waiters();
            env.mark("object: the core is full");
            tracing::warn!(
                "the cluster has no room for data: small objects are refused until it has"
            );
        }
    }

    /// Looks again, if there was none.
    pub(crate) async fn look(&self, env: &Env, store: &dyn Store) {
        if !self.is_full() {
            return;
        }
        let tried = append(store).await;
        let _ = store.remove(NAME).await; // The next look removes it.
        if tried.is_ok() {
            self.0.full.set(false);
            self.0.used_up.set(false);
            self.0.tight_until.set(env.now() + TIGHT);
            env.mark("object: the core has room again");
            tracing::info!("the cluster has room for data again");
        }
    }
}

async fn append(store: &dyn Store) -> Result<(), Fault> {
    let writer = match store.create(NAME).await {
        Err(fault) if fault.kind == Kind::Exists => {
            store.remove(NAME).await?;
            store.create(NAME).await?
        }
        made => made?,
    };
    writer.set_purpose(Purpose::Data);
    writer.submit(&[0; BYTES]).await?.await?;
    writer.close().await.map(drop)
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room({})", if self.is_full() { "full" } else { "free" })
    }
}
