//! [`KeyLocks`]: changes of one key wait for each other, in order of arrival (`object-protocols.md`
//! 6.1).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use runtime::sync::oneshot;

/// Those that wait for a key that is held, in order.
type Waiting = VecDeque<oneshot::Sender<KeyGuard>>;

/// Keys that are held.
#[derive(Clone, Default)]
pub(crate) struct KeyLocks(Rc<RefCell<BTreeMap<Vec<u8>, Waiting>>>);

/// A key that is held until this is dropped.
pub(crate) struct KeyGuard {
    locks: KeyLocks,
    /// Empty when another has it already.
    key: Option<Vec<u8>>,
}

impl KeyLocks {
    /// Holds a key, behind all that asked for it before.
    pub(crate) async fn lock(&self, key: &[u8]) -> KeyGuard {
        let granted = {
            let held = &mut *self.0.borrow_mut();
            match held.get_mut(key) {
                Some(waiting) => {
                    let (grant, granted) = oneshot::channel();
                    waiting.push_back(grant);
                    granted
                }
                None => {
                    held.insert(key.to_vec(), VecDeque::new());
                    return self.guard(key.to_vec());
                }
            }
        };
        granted.await.expect("a guard is passed on before its key is let go")
    }

    fn guard(&self, key: Vec<u8>) -> KeyGuard {
        KeyGuard { locks: self.clone(), key: Some(key) }
    }

    fn next(&self, key: &[u8]) -> Option<oneshot::Sender<KeyGuard>> {
        let held = &mut *self.0.borrow_mut();
        let next = held.get_mut(key).expect("it is held").pop_front();
        if next.is_none() {
            held.remove(key);
        }
        next
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        while let Some(next) = self.locks.next(&key) {
            match next.send(self.locks.guard(key.clone())) {
                Ok(()) => return,
                // It waits no more.
                Err(mut guard) => guard.key = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_key_goes_to_those_that_wait_in_order_and_passes_over_the_gone() {
        let locks = KeyLocks::default();
        let first = locks.lock(b"a").now_or_never().expect("it is free");
        assert!(locks.lock(b"b").now_or_never().is_some(), "another key");
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(locks.lock(b"a"))).collect();
        for wait in &mut waiting {
            assert!(wait.now_or_never().is_none());
        }
        drop(waiting.remove(0));
        drop(first);
        // It was granted and goes before it has looked: the next one has it.
        drop(waiting.remove(0));
        let second = (&mut waiting[0]).now_or_never().expect("the third has it");
        assert!((&mut waiting[1]).now_or_never().is_none());
        drop(second);
        drop((&mut waiting[1]).now_or_never().expect("the fourth has it"));
        assert!(locks.0.borrow().is_empty());
    }
}
