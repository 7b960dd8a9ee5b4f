//! [`Watchers`]: gateways that keep buckets, users and keys, as the manager knows them
//! (`object-protocols.md` 11.3).
//!
//! A gateway asks again and again for changes and says which it has seen. What it keeps is good for
//! [`KEPT_VALID`] from the sending of a question that was answered; so a change is answered when all
//! gateways have seen it, or have not asked for so long. The gateways of a former manager are not known:
//! a new one answers no change before their time is over.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use object_proto::{Error, KeptChanges, KeptName, SeenChanges};
use runtime::sync::Notify;
use runtime::{Duration, Env, Instant};
use tenancy::limits::drifted;

use crate::limits::{KEPT_CHANGES, KEPT_VALID, WATCH_HOLD, WATCHERS_MAX};
use crate::planted::{Bugs, Planted};

struct Watcher {
    seen: u64,
    /// When it asked last.
    heard: Instant,
}

/// Gateways that keep what the catalog has.
pub(crate) struct Watchers {
    bugs: Bugs,
    env: Env,
    epoch: u64,
    opened: Instant,
    /// Changes so far.
    number: Cell<u64>,
    /// Names of the last changes; the first one is that of change `number - len + 1`.
    names: RefCell<VecDeque<KeptName>>,
    known: RefCell<BTreeMap<u64, Watcher>>,
    /// There is a change.
    changed: Notify,
    /// A gateway has asked.
    asked: Notify,
}

/// What a gateway keeps is good for no longer by the manager's clock.
fn valid() -> Duration {
    drifted(KEPT_VALID)
}

impl Watchers {
    /// Of a new manager.
    pub(crate) fn new(env: &Env, epoch: u64, bugs: Bugs) -> Watchers {
        Watchers {
            bugs,
            env: env.clone(),
            epoch,
            opened: env.now(),
            number: Cell::new(0),
            names: RefCell::default(),
            known: RefCell::default(),
            changed: Notify::new(),
            asked: Notify::new(),
        }
    }

    /// Changes so far. Read before a row, it goes with what the row has.
    pub(crate) fn at(&self) -> SeenChanges {
        SeenChanges { epoch: self.epoch, number: self.number.get() }
    }

    /// A gateway asks. The answer waits for a change, for a while.
    pub(crate) async fn watch(
        &self,
        watcher: u64,
        seen: SeenChanges,
    ) -> Result<KeptChanges, Error> {
        let number = if seen.epoch == self.epoch { seen.number } else { 0 };
        let was_known = self.heard(watcher, number)?;
        // One that begins to ask is to know at once.
        if seen == self.at() && was_known {
            let changed = self.changed.notified();
            let _ = self.env.timeout(WATCH_HOLD, changed).await; // Either has happened.
        }
        let names = if seen.epoch == self.epoch { self.since(seen.number) } else { None };
        Ok(KeptChanges { seen: self.at(), names })
    }

    /// A gateway has seen so many changes. Returns whether what it keeps was good till now.
    fn heard(&self, watcher: u64, seen: u64) -> Result<bool, Error> {
        let (known, heard) = (&mut *self.known.borrow_mut(), self.env.now());
        if !known.contains_key(&watcher) && known.len() >= WATCHERS_MAX {
            known.retain(|_, watcher| heard - watcher.heard <= valid());
            if known.len() >= WATCHERS_MAX {
                return Err(Error::Busy { cause: "there are too many gateways".to_owned() });
            }
        }
        let before = known.insert(watcher, Watcher { seen, heard });
        self.asked.notify_waiters();
        Ok(before.is_some_and(|before| heard - before.heard < KEPT_VALID))
    }

    /// Names of the changes behind the first so many; none when they are not kept any more.
    fn since(&self, seen: u64) -> Option<Vec<KeptName>> {
        let (names, number) = (self.names.borrow(), self.number.get());
        let count = usize::try_from(number.checked_sub(seen)?).ok()?;
        let skipped = names.len().checked_sub(count)?;
        Some(names.iter().skip(skipped).cloned().collect())
    }

    /// These are on record otherwise than before.
    pub(crate) fn note(&self, names: impl IntoIterator<Item = KeptName>) {
        let kept = &mut *self.names.borrow_mut();
        for name in names {
            self.number.set(self.number.get() + 1);
            kept.push_back(name);
        }
        while kept.len() > KEPT_CHANGES {
            kept.pop_front();
        }
        self.changed.notify_waiters();
    }

    /// Ends when no gateway goes by what was before the changes so far.
    pub(crate) async fn settled(&self) {
        let number = self.number.get();
        while !self.bugs.has(Planted::KeyForever) {
            let asked = self.asked.notified();
            let now = self.env.now();
            // The gateways of a former manager may be any.
            let mut until = (self.opened + valid() > now).then_some(self.opened + valid());
            if self.bugs.has(Planted::KeptOfFormer) {
                until = None;
            }
            for watcher in self.known.borrow().values().filter(|watcher| watcher.seen < number) {
                let over = watcher.heard + valid();
                if over > now {
                    until = until.max(Some(over));
                }
            }
            let Some(until) = until else { return };
            self.env.mark("object: a change waits for gateways");
            let _ = self.env.timeout(until - now, asked).await; // Either has happened.
        }
    }
}
