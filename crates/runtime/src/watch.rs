//! [`channel`]: the present value of something, and a signal for each change of it.
//!
//! Not tokio's: where its `rt` feature is compiled in, as the HTTP edge has it, the receivers of a channel
//! wait in one of eight lists that is drawn at random. Tasks would be woken in another order in each
//! run of a seed. Here they are woken in the order in which they began to wait.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

struct State<T> {
    value: T,
    /// Grows with each change.
    version: u64,
    /// The sender is gone.
    closed: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // A value is replaced whole, or by a closure that may panic: it is there in any case.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the value. Receivers learn that it is gone.
pub struct Sender<T>(Arc<Shared<T>>);

/// Sees the value. Each one knows which changes it has seen.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The sender is gone: there will be no change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender is gone")
    }
}

impl std::error::Error for Closed {}

/// The value, which does not change while this is held: not across an await.
pub struct Ref<'a, T>(MutexGuard<'a, State<T>>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

/// A value with its sender and a first receiver, which has seen it.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let state = Mutex::new(State { value, version: 0, closed: false });
    let shared = Arc::new(Shared { state, changed: Notify::new() });
    (Sender(shared.clone()), Receiver { shared, seen: 0 })
}

impl<T> Sender<T> {
    /// Sets the value; returns the former one.
    pub fn send_replace(&self, value: T) -> T {
        let former = {
            let mut state = self.0.lock();
            state.version += 1;
            std::mem::replace(&mut state.value, value)
        };
        self.0.changed.notify_waiters();
        former
    }

    /// Changes the value. Receivers learn of it when the closure says that it has.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let modified = {
            let mut state = self.0.lock();
            let modified = modify(&mut state.value);
            state.version += u64::from(modified);
            modified
        };
        if modified {
            self.0.changed.notify_waiters();
        }
        modified
    }

    /// Another receiver, which has seen the present value.
    pub fn subscribe(&self) -> Receiver<T> {
        let seen = self.0.lock().version;
        Receiver { shared: self.0.clone(), seen }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    /// The present value, which counts as seen no more than before.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared.lock())
    }

    /// The present value, which is seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let state = self.shared.lock();
        self.seen = state.version;
        Ref(state)
    }

    /// Completes when there is a change that was not seen, which then is.
    ///
    /// # Errors
    ///
    /// [`Closed`] when there will be none.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let changed = self.shared.changed.notified();
            {
                let state = self.shared.lock();
                if state.version != self.seen {
                    self.seen = state.version;
                    return Ok(());
                }
                if state.closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
    }

    /// Completes when the value is as wanted.
    ///
    /// # Errors
    ///
    /// [`Closed`] when it never will be.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<(), Closed> {
        loop {
            if wanted(&self.borrow_and_update()) {
                return Ok(());
            }
            self.changed().await?;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        Receiver { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({:?})", self.0.lock().value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({:?})", self.shared.lock().value)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;

    struct Order {
        own: u32,
        next: Arc<AtomicU32>,
        woken: AtomicU32,
    }

    impl Wake for Order {
        fn wake(self: Arc<Self>) {
            self.woken.store(self.next.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    #[test]
    fn receivers_are_woken_in_the_order_of_their_waits() {
        let (sender, receiver) = channel(0);
        let next = Arc::new(AtomicU32::new(0));
        let mut receivers = vec![receiver; 20];
        let mut waits: Vec<_> = receivers.iter_mut().map(|it| Box::pin(it.changed())).collect();
        let mut orders = Vec::new();
        for (own, wait) in (0..).zip(&mut waits) {
            let order =
                Arc::new(Order { own, next: next.clone(), woken: AtomicU32::new(u32::MAX) });
            let waker = Waker::from(order.clone());
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            orders.push(order);
        }
        assert_eq!(sender.send_replace(1), 0);
        assert!(orders.iter().all(|order| order.woken.load(Ordering::Relaxed) == order.own));
    }

    #[test]
    fn changes_are_seen_once_and_the_end_of_the_sender_is() {
        use futures_util::FutureExt;
        let (sender, mut receiver) = channel(1);
        assert_eq!(receiver.changed().now_or_never(), None);
        assert!(!sender.send_if_modified(|_| false));
        assert_eq!(receiver.changed().now_or_never(), None);
        assert!(sender.send_if_modified(|value| std::mem::replace(value, 2) == 1));
        assert_eq!(*receiver.borrow(), 2);
        assert_eq!(receiver.changed().now_or_never(), Some(Ok(())));
        assert_eq!(receiver.changed().now_or_never(), None);
        let mut late = sender.subscribe();
        assert_eq!(late.changed().now_or_never(), None);
        sender.send_replace(3);
        assert_eq!(*receiver.borrow_and_update(), 3);
        assert_eq!(receiver.changed().now_or_never(), None);
        drop(sender);
        assert_eq!(receiver.changed().now_or_never(), Some(Err(Closed)));
        // What it has not seen comes first.
        assert_eq!(late.changed().now_or_never(), Some(Ok(())));
        assert_eq!(late.wait_for(|value| *value == 3).now_or_never(), Some(Ok(())));
        assert_eq!(late.wait_for(|value| *value == 4).now_or_never(), Some(Err(Closed)));
    }
}
