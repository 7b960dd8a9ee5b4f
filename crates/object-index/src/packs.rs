//! Files that a gateway sends bodies in (`object-protocols.md` 5.3 and 5.4).
//!
//! A body takes the file of its range and of its bucket's way of storage that was written last, or a new one
//! when all are in use, and gives it back: as many are open as bodies are sent at once. The files are made in
//! the session's directory, and announced to the range's owner, which gives them a name in its own while the
//! first body is sent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use object_proto::{FileName, RangeId, SessionId, StorageRule};
use runtime::sync::Notify;
use runtime::{Duration, Instant};
use table::Store;

use crate::bodies::Pack;
use crate::limits::{OWN_BYTES, PACK_BYTES, PACK_IDLE};
use crate::session::Stay;

/// Bounds of the files that a gateway sends bodies in.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// A file that has so many bytes takes no further body.
    pub bytes: u64,
    /// A file that has taken none for so long takes none any more.
    pub idle: Duration,
    /// Bodies of so many bytes have files of their own.
    pub own: u64,
}

impl Default for PackOptions {
    fn default() -> PackOptions {
        PackOptions { bytes: PACK_BYTES, idle: PACK_IDLE, own: OWN_BYTES }
    }
}

/// A file that this gateway sends, for as long as bodies are written to it, or may be committed there.
pub(crate) struct SentFile {
    pub(crate) stay: Stay,
    pub(crate) range: RangeId,
    pub(crate) storage: StorageRule,
    pub(crate) name: FileName,
    announced: Cell<bool>,
    was_announced: Notify,
    /// What to do then.
    ended: Option<Box<dyn FnOnce()>>,
}

impl SentFile {
    /// A file that is about to be made. In the end `ended` is called.
    pub(crate) fn new(
        stay: &Stay,
        (range, name, storage): (RangeId, FileName, StorageRule),
        ended: Box<dyn FnOnce()>,
    ) -> Rc<SentFile> {
        Rc::new(SentFile {
            stay: stay.clone(),
            range,
            storage,
            name,
            announced: Cell::new(false),
            was_announced: Notify::new(),
            ended: Some(ended),
        })
    }

    /// Its owner was asked to keep it, with whatever answer.
    pub(crate) fn note_announced(&self) {
        self.announced.set(true);
        self.was_announced.notify_waiters();
    }

    /// Ends when the owner was asked to keep the file.
    pub(crate) async fn announced(&self) {
        loop {
            let announced = self.was_announced.notified();
            if self.announced.get() {
                return;
            }
            announced.await;
        }
    }
}

impl Drop for SentFile {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }
}

/// A file that takes a body.
pub(crate) struct OpenPack {
    pub(crate) file: Rc<SentFile>,
    pub(crate) pack: Pack,
}

/// A session's directory, for each storage that was asked for.
#[derive(Default)]
pub(crate) struct SessionDir {
    session: Option<SessionId>,
    stores: Vec<(StorageRule, Rc<dyn Store>)>,
}

impl SessionDir {
    /// What is known of it.
    pub(crate) fn find(&self, session: SessionId, storage: StorageRule) -> Option<Rc<dyn Store>> {
        let of = self.stores.iter().filter(|_| self.session == Some(session));
        of.into_iter().find(|(known, _)| *known == storage).map(|(_, store)| store.clone())
    }

    /// Keeps it; what is of another session is forgotten.
    pub(crate) fn keep(&mut self, session: SessionId, storage: StorageRule, store: Rc<dyn Store>) {
        if self.session.replace(session) != Some(session) {
            self.stores.clear();
        }
        self.stores.push((storage, store));
    }
}

/// Files that take bodies, and have none at present.
#[derive(Default)]
pub(crate) struct Packs {
    /// The one that was written last is the last.
    pub(crate) idle: RefCell<BTreeMap<RangeId, Vec<(Instant, OpenPack)>>>,
    /// The directory of the last session.
    pub(crate) dir: RefCell<SessionDir>,
    /// The task runs that seals those that take none any more.
    pub(crate) sealing: Cell<bool>,
}

impl Packs {
    /// The file of a session, range and storage that was written last.
    pub(crate) fn take(
        &self,
        stay: &Stay,
        range: RangeId,
        storage: StorageRule,
    ) -> Option<OpenPack> {
        let mut idle = self.idle.borrow_mut();
        let packs = idle.get_mut(&range)?;
        let fits = |file: &SentFile| file.storage == storage && file.stay.is_of(stay);
        let at = packs.iter().rposition(|(_, open)| fits(&open.file))?;
        Some(packs.remove(at).1)
    }

    /// Takes those to which nothing was written for some time, or that are of sessions that are over.
    pub(crate) fn take_old(&self, now: Instant, age: Duration) -> Vec<OpenPack> {
        let (mut idle, mut old) = (self.idle.borrow_mut(), Vec::new());
        for packs in idle.values_mut() {
            let all = std::mem::take(packs);
            for (since, open) in all {
                match now - since >= age || open.file.stay.is_over() {
                    true => old.push(open),
                    false => packs.push((since, open)),
                }
            }
        }
        idle.retain(|_, packs| !packs.is_empty());
        old
    }

    /// True when there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty()
    }
}
