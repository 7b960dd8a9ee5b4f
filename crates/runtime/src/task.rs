//! Tasks as their wakers and their owners see them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::executor::{Core, with_current};
use crate::remote::{Flag, Remote};

/// A waker's part of a task. Thread-safe, as the `Waker` contract asks; a wake on the executor's
/// own thread takes no lock.
pub(crate) struct TaskRef {
    pub(crate) slot: u32,
    /// Distinguishes the tasks that used a slot one after the other.
    pub(crate) generation: u32,
    pub(crate) queued: Flag,
    pub(crate) remote: Arc<Remote<Arc<TaskRef>>>,
}

impl Wake for TaskRef {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.set() {
            return;
        }
        let local = with_current(|core| {
            let same = Arc::ptr_eq(&core.remote, &self.remote);
            if same {
                core.make_ready(self.clone());
            }
            same
        });
        if local != Some(true) {
            self.remote.push(self.clone());
        }
    }
}

/// The task ended without a result: it was aborted, or its node crashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aborted;

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task was aborted")
    }
}

impl std::error::Error for Aborted {}

pub(crate) struct Join<T> {
    result: RefCell<Option<T>>,
    ended: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl<T> Join<T> {
    fn end(&self) {
        self.ended.set(true);
        let waiter = self.waiter.borrow_mut().take();
        if let Some(waiter) = waiter {
            waiter.wake(); // With no borrow held: it may be foreign code.
        }
    }
}

/// Ends the join when the task's future is dropped, finished or not.
pub(crate) struct Completer<T>(Rc<Join<T>>);

impl<T> Completer<T> {
    pub(crate) fn complete(self, value: T) {
        *self.0.result.borrow_mut() = Some(value);
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

pub(crate) fn join_pair<T>() -> (Rc<Join<T>>, Completer<T>) {
    let join = Rc::new(Join {
        result: RefCell::new(None),
        ended: Cell::new(false),
        waiter: RefCell::new(None),
    });
    (join.clone(), Completer(join))
}

/// Waits for a task's result. Dropping it lets the task run on; [`JoinHandle::abort`] ends it.
pub struct JoinHandle<T> {
    pub(crate) join: Rc<Join<T>>,
    pub(crate) task: Arc<TaskRef>,
    pub(crate) core: Weak<Core>,
}

impl<T> JoinHandle<T> {
    /// Drops the task's future now, or when its poll returns, unless it has ended.
    pub fn abort(&self) {
        if let Some(core) = self.core.upgrade() {
            core.abort(&self.task);
        }
    }

    /// True once the task has ended, with a result or without.
    pub fn is_finished(&self) -> bool {
        self.join.ended.get()
    }

    /// The result, if the task has ended with one that was not yet taken.
    pub fn take_result(&self) -> Option<T> {
        self.join.result.borrow_mut().take()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.join.ended.get() {
            let replaced = self.join.waiter.replace(Some(cx.waker().clone()));
            drop(replaced);
            return Poll::Pending;
        }
        Poll::Ready(self.join.result.borrow_mut().take().ok_or(Aborted))
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinHandle(slot {})", self.task.slot)
    }
}
