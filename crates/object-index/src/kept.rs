//! [`Kept`]: buckets and access keys as a gateway keeps them, for any of its threads
//! (`object-protocols.md` 11.3). Which of them is good, the rules of the manager's side say
//! ([`crate::watchers`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use object_proto::{AccessKey, BucketName, BucketView, KeptChanges, KeptName, SeenChanges};
use runtime::Instant;

use crate::limits::{GATEWAY_CUT_OFF, KEPT_BYTES, KEPT_VALID, WATCH_IDLE};
use crate::planted::{Bugs, Planted};

/// Bytes of an entry besides texts of any length.
const ENTRY_BYTES: usize = 512;

#[derive(Clone)]
enum Entry {
    Bucket(Arc<BucketView>),
    Key(Arc<AccessKey>),
}

impl Entry {
    fn bytes(&self) -> usize {
        let policy = |policy: &Option<String>| policy.as_ref().map_or(0, String::len);
        ENTRY_BYTES
            + match self {
                Entry::Bucket(view) => view.settings.encode().len(),
                Entry::Key(key) => policy(&key.policy) + policy(&key.user.policy),
            }
    }
}

#[derive(Default)]
struct Inner {
    /// Changes that are seen: what is kept has them. None while nothing is kept.
    seen: Option<SeenChanges>,
    /// What is kept is good before this time.
    good_until: Instant,
    /// When something was asked for last.
    used: Instant,
    entries: BTreeMap<KeptName, Entry>,
    bytes: usize,
}

impl Inner {
    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    fn remove(&mut self, name: &KeptName) {
        if let Some(entry) = self.entries.remove(name) {
            self.bytes -= entry.bytes();
        }
    }
}

/// What is kept of a name.
pub(crate) struct Found<T> {
    pub(crate) value: T,
    /// It is as the manager has it.
    pub(crate) is_good: bool,
    /// Managers were heard within [`GATEWAY_CUT_OFF`].
    pub(crate) is_usable: bool,
}

/// Names that a gateway keeps.
#[derive(Default)]
pub(crate) struct Kept {
    inner: Mutex<Inner>,
    bugs: Bugs,
}

impl Kept {
    /// None is kept.
    pub(crate) fn new(bugs: Bugs) -> Kept {
        Kept { inner: Mutex::default(), bugs }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while it is held")
    }

    /// A bucket, if it is kept.
    pub(crate) fn bucket(&self, name: &BucketName, now: Instant) -> Option<Found<Arc<BucketView>>> {
        self.find(&KeptName::Bucket(name.clone()), now, |entry| match entry {
            Entry::Bucket(view) => Some(view.clone()),
            Entry::Key(_) => None,
        })
    }

    /// An access key, if it is kept.
    pub(crate) fn key(&self, id: &str, now: Instant) -> Option<Found<Arc<AccessKey>>> {
        self.find(&KeptName::Key(id.to_owned()), now, |entry| match entry {
            Entry::Key(key) => Some(key.clone()),
            Entry::Bucket(_) => None,
        })
    }

    fn find<T>(
        &self,
        name: &KeptName,
        now: Instant,
        read: impl FnOnce(&Entry) -> Option<T>,
    ) -> Option<Found<T>> {
        let inner = &mut *self.inner();
        inner.used = now;
        let value = read(inner.entries.get(name)?)?;
        let is_usable = now - inner.good_until < GATEWAY_CUT_OFF;
        let is_good = now < inner.good_until || self.bugs.has(Planted::KeptForever);
        Some(Found { value, is_good, is_usable })
    }

    /// Keeps a bucket, as it was asked for at `sent`.
    pub(crate) fn keep_bucket(&self, view: Arc<BucketView>, (at, sent): (SeenChanges, Instant)) {
        let name = KeptName::Bucket(view.bucket.name.clone());
        self.keep(name, Entry::Bucket(view), (at, sent));
    }

    /// Keeps an access key likewise.
    pub(crate) fn keep_key(&self, key: Arc<AccessKey>, (at, sent): (SeenChanges, Instant)) {
        self.keep(KeptName::Key(key.id.clone()), Entry::Key(key), (at, sent));
    }

    fn keep(&self, name: KeptName, entry: Entry, (at, sent): (SeenChanges, Instant)) {
        let inner = &mut *self.inner();
        match inner.seen {
            // A change that was seen since may concern it.
            Some(seen) if at < seen && !self.bugs.has(Planted::KeptLate) => return,
            Some(seen) if at.epoch <= seen.epoch => {}
            _ => {
                inner.clear();
                (inner.seen, inner.good_until) = (Some(at), sent);
            }
        }
        inner.remove(&name);
        if inner.bytes + entry.bytes() > KEPT_BYTES {
            inner.clear();
        }
        inner.bytes += entry.bytes();
        inner.entries.insert(name, entry);
    }

    /// The manager has no such name.
    pub(crate) fn forget(&self, name: &KeptName) {
        self.inner().remove(name);
    }

    /// The changes that are seen.
    pub(crate) fn seen(&self) -> SeenChanges {
        self.inner().seen.unwrap_or_default()
    }

    /// Takes the answer to a question for changes behind `asked`, which was sent at `sent`.
    pub(crate) fn take(&self, (asked, sent): (SeenChanges, Instant), changes: KeptChanges) {
        let inner = &mut *self.inner();
        // Another manager was heard since.
        if inner.seen.unwrap_or_default() != asked || changes.seen < asked {
            return;
        }
        match changes.names {
            Some(names) => names.iter().for_each(|name| inner.remove(name)),
            None => inner.clear(),
        }
        (inner.seen, inner.good_until) = (Some(changes.seen), sent + KEPT_VALID);
    }

    /// Nothing was asked for lately.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        now - self.inner().used > WATCH_IDLE
    }
}

#[cfg(test)]
mod tests {
    use object_proto::{User, UserId};
    use runtime::Duration;

    use super::*;

    fn key(id: &str) -> Arc<AccessKey> {
        let user = User { id: UserId::new("u"), ..User::default() };
        let (wrapped_secret, enabled) = (Vec::new(), true);
        let id = id.to_owned();
        Arc::new(AccessKey { id, user, wrapped_secret, enabled, expires_us: None, policy: None })
    }

    fn at(epoch: u64, number: u64) -> SeenChanges {
        SeenChanges { epoch, number }
    }

    fn second(second: u64) -> Instant {
        Instant::default() + Duration::from_secs(second)
    }

    fn is_good(kept: &Kept, id: &str, now: Instant) -> Option<bool> {
        kept.key(id, now).map(|found| found.is_good)
    }

    fn changes(seen: SeenChanges, names: Option<&[&str]>) -> KeptChanges {
        let names =
            names.map(|names| names.iter().map(|&id| KeptName::Key(id.to_owned())).collect());
        KeptChanges { seen, names }
    }

    #[test]
    fn what_is_kept_is_good_while_changes_are_heard_of() {
        let kept = Kept::default();
        kept.keep_key(key("a"), (at(1, 5), second(1)));
        assert_eq!(is_good(&kept, "a", second(1)), Some(false), "no change was asked for yet");
        kept.take((at(1, 5), second(1)), changes(at(1, 5), Some(&[])));
        assert_eq!(is_good(&kept, "a", second(1)), Some(true));
        assert_eq!(is_good(&kept, "a", second(1) + KEPT_VALID), Some(false));
        kept.take((at(1, 5), second(2)), changes(at(1, 6), Some(&["b"])));
        assert_eq!(is_good(&kept, "a", second(2)), Some(true));
        kept.take((at(1, 6), second(2)), changes(at(1, 7), Some(&["a"])));
        assert_eq!(is_good(&kept, "a", second(2)), None);
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let kept = Kept::default();
        kept.keep_key(key("a"), (at(1, 5), second(1)));
        kept.take((at(1, 5), second(1)), changes(at(1, 6), Some(&["b"])));
        kept.keep_key(key("b"), (at(1, 5), second(1)));
        assert_eq!(is_good(&kept, "b", second(1)), None);
        kept.keep_key(key("b"), (at(1, 6), second(1)));
        assert_eq!(is_good(&kept, "b", second(1)), Some(true));
    }

    #[test]
    fn another_manager_begins_again() {
        let kept = Kept::default();
        kept.keep_key(key("a"), (at(1, 5), second(1)));
        kept.take((at(1, 5), second(1)), changes(at(2, 0), None));
        assert_eq!(is_good(&kept, "a", second(1)), None);
        kept.keep_key(key("b"), (at(2, 0), second(1)));
        assert_eq!(is_good(&kept, "b", second(1)), Some(true));
        kept.keep_key(key("c"), (at(1, 9), second(1)));
        assert_eq!(is_good(&kept, "c", second(1)), None, "it is a former manager's");
        kept.keep_key(key("d"), (at(3, 0), second(1)));
        assert_eq!(is_good(&kept, "b", second(1)), None);
        assert_eq!(is_good(&kept, "d", second(1)), Some(false));
        kept.take((at(2, 0), second(1)), changes(at(2, 1), Some(&[])));
        assert_eq!(is_good(&kept, "d", second(1)), Some(false), "a former manager's again");
    }

    #[test]
    fn a_gateway_that_is_cut_off_goes_on_for_a_while() {
        let kept = Kept::default();
        kept.keep_key(key("a"), (at(1, 5), second(1)));
        let usable = |now| kept.key("a", now).is_some_and(|found| found.is_usable);
        assert!(usable(second(1) + GATEWAY_CUT_OFF - Duration::from_nanos(1)));
        assert!(!usable(second(1) + GATEWAY_CUT_OFF));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let kept = Kept::default();
        for number in 0..2 * KEPT_BYTES / ENTRY_BYTES {
            kept.keep_key(key(&number.to_string()), (at(1, 5), second(1)));
            assert!(kept.inner().bytes <= KEPT_BYTES);
        }
        assert!(kept.inner().entries.len() * ENTRY_BYTES <= KEPT_BYTES);
    }
}
