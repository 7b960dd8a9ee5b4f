//! openraft's `AsyncRuntime` on [`runtime::Env`]: every task, timer and random number of the
//! library is the executor's, so that a simulated schedule is the seed's (design D3, D4).
//!
//! The watch channel is our own. `tokio`'s picks the list of waiters by a number that is drawn at
//! random as soon as any crate of the build enables `tokio/rt`, and its wake order with it.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::ops::{Add, AddAssign, Deref, DerefMut, Sub, SubAssign};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::{
    self, Mpsc, MpscReceiver, MpscSender, MpscWeakSender, Oneshot, OneshotSender, SendError,
    TryRecvError, watch,
};
use runtime::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use runtime::{Class, Env, JoinHandle, Rng};

/// The executor of the polled task, as openraft sees it.
#[derive(Debug)]
pub struct RaftRuntime;

/// A task ended without a result: its node was closed, or it was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskGone;

impl fmt::Display for TaskGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task ended without a result: its node was closed")
    }
}

/// A deadline passed before the future was ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlinePassed;

impl fmt::Display for DeadlinePassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline passed")
    }
}

/// The result of a spawned task. Dropping it detaches the task.
pub struct Join<T>(Option<JoinHandle<T>>);

impl<T> Future for Join<T> {
    type Output = Result<T, TaskGone>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let handle = self.0.as_mut().expect("present until dropped");
        Pin::new(handle).poll(cx).map(|result| result.map_err(|_| TaskGone))
    }
}

type BoxedSleep = Pin<Box<dyn Future<Output = ()>>>;

/// A future with a deadline.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: BoxedSleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, DeadlinePassed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        self.sleep.as_mut().poll(cx).map(|()| Err(DeadlinePassed))
    }
}

fn boxed_sleep_until(deadline: runtime::Instant) -> BoxedSleep {
    let env = Env::current();
    Box::pin(async move { env.sleep_until(deadline).await })
}

impl AsyncRuntime for RaftRuntime {
    type JoinError = TaskGone;
    type JoinHandle<T: 'static> = Join<T>;
    type Sleep = BoxedSleep;
    type Instant = RaftInstant;
    type TimeoutError = DeadlinePassed;
    type Timeout<R, T: Future<Output = R>> = Timeout<T>;
    type ThreadLocalRng = RaftRng;
    type Mpsc = RaftMpsc;
    type Watch = RaftWatch;
    type Oneshot = RaftOneshot;
    type Mutex<T: 'static> = RaftMutex<T>;

    fn spawn<T>(future: T) -> Join<T::Output>
    where
        T: Future + 'static,
        T::Output: 'static,
    {
        Join(Some(Env::current().spawn(Class::Control, "raft", future)))
    }

    fn sleep(duration: Duration) -> BoxedSleep {
        boxed_sleep_until(Env::current().now() + duration)
    }

    fn sleep_until(deadline: RaftInstant) -> BoxedSleep {
        boxed_sleep_until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R>>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R>>(deadline: RaftInstant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep_until(deadline) }
    }

    fn is_panic(_error: &TaskGone) -> bool {
        false // A panic of a task ends the process (`docs/style.md`), it is never joined.
    }

    fn thread_rng() -> RaftRng {
        RaftRng(Rng::new(Env::current().random_u64()))
    }

    fn new(_threads: usize) -> RaftRuntime {
        RaftRuntime
    }

    fn block_on<F, T>(&mut self, _future: F) -> T
    where
        F: Future<Output = T>,
    {
        unreachable!("only openraft's own tests start a runtime; ours is started by its driver")
    }

    fn spawn_blocking<F, T>(work: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // The default starts an OS thread. openraft itself calls this nowhere.
        ready(Ok(work()))
    }
}

/// A point of the node's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RaftInstant(pub(crate) runtime::Instant);

impl Add<Duration> for RaftInstant {
    type Output = RaftInstant;

    fn add(self, duration: Duration) -> RaftInstant {
        RaftInstant(self.0 + duration)
    }
}

impl AddAssign<Duration> for RaftInstant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for RaftInstant {
    type Output = RaftInstant;

    fn sub(self, duration: Duration) -> RaftInstant {
        RaftInstant(self.0 - duration)
    }
}

impl Sub for RaftInstant {
    type Output = Duration;

    fn sub(self, earlier: RaftInstant) -> Duration {
        self.0 - earlier.0
    }
}

impl SubAssign<Duration> for RaftInstant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl openraft::Instant for RaftInstant {
    fn now() -> RaftInstant {
        RaftInstant(Env::current().now())
    }
}

/// The node's seeded generator, forked for one use.
pub struct RaftRng(Rng);

impl rand_core::TryRng for RaftRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.0.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(bytes);
        Ok(())
    }
}

/// Bounded queues.
pub struct RaftMpsc;
/// Sends into a bounded queue.
pub struct RaftSender<T>(Rc<mpsc::Sender<T>>);
/// Receives from a bounded queue.
pub struct RaftReceiver<T>(mpsc::Receiver<T>);
/// Does not keep the queue open.
pub struct RaftWeakSender<T>(Weak<mpsc::Sender<T>>);

impl<T> Clone for RaftSender<T> {
    fn clone(&self) -> Self {
        RaftSender(self.0.clone())
    }
}

impl<T> Clone for RaftWeakSender<T> {
    fn clone(&self) -> Self {
        RaftWeakSender(self.0.clone())
    }
}

impl Mpsc for RaftMpsc {
    type Sender<T> = RaftSender<T>;
    type Receiver<T> = RaftReceiver<T>;
    type WeakSender<T> = RaftWeakSender<T>;

    fn channel<T>(buffer: usize) -> (RaftSender<T>, RaftReceiver<T>) {
        let (sender, receiver) = mpsc::channel(buffer);
        (RaftSender(Rc::new(sender)), RaftReceiver(receiver))
    }
}

impl<T> MpscSender<RaftMpsc, T> for RaftSender<T> {
    async fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.send(message).await.map_err(|error| SendError(error.0))
    }

    fn downgrade(&self) -> RaftWeakSender<T> {
        RaftWeakSender(Rc::downgrade(&self.0))
    }
}

impl<T> MpscReceiver<T> for RaftReceiver<T> {
    async fn recv(&mut self) -> Option<T> {
        self.0.recv().await
    }

    fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            mpsc::TryRecvError::Empty => TryRecvError::Empty,
            mpsc::TryRecvError::Disconnected => TryRecvError::Disconnected,
        })
    }
}

impl<T> MpscWeakSender<RaftMpsc, T> for RaftWeakSender<T> {
    fn upgrade(&self) -> Option<RaftSender<T>> {
        self.0.upgrade().map(RaftSender)
    }
}

/// Channels for one message.
pub struct RaftOneshot;
/// Sends the message.
pub struct RaftOneshotSender<T>(oneshot::Sender<T>);

impl Oneshot for RaftOneshot {
    type Sender<T> = RaftOneshotSender<T>;
    type Receiver<T> = oneshot::Receiver<T>;
    type ReceiverError = oneshot::error::RecvError;

    fn channel<T>() -> (RaftOneshotSender<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (RaftOneshotSender(sender), receiver)
    }
}

impl<T> OneshotSender<T> for RaftOneshotSender<T> {
    fn send(self, message: T) -> Result<(), T> {
        self.0.send(message)
    }
}

/// A lock whose waiters are served in order.
pub struct RaftMutex<T> {
    turn: Semaphore,
    value: RefCell<T>,
}

/// Holds a [`RaftMutex`].
pub struct RaftMutexGuard<'a, T> {
    value: RefMut<'a, T>,
    // Dropped last: the next one finds the value free.
    _turn: SemaphorePermit<'a>,
}

impl<T> Deref for RaftMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for RaftMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: 'static> async_runtime::Mutex<T> for RaftMutex<T> {
    type Guard<'a> = RaftMutexGuard<'a, T>;

    fn new(value: T) -> Self {
        RaftMutex { turn: Semaphore::new(1), value: RefCell::new(value) }
    }

    async fn lock(&self) -> RaftMutexGuard<'_, T> {
        let turn = self.turn.acquire().await.expect("never closed");
        RaftMutexGuard { value: self.value.borrow_mut(), _turn: turn }
    }
}

/// A value whose changes can be waited for; receivers wake in the order in which they waited.
pub struct RaftWatch;

struct Watched<T> {
    value: RefCell<T>,
    version: Cell<u64>,
    senders: Cell<usize>,
    receivers: Cell<usize>,
    /// At most one per waiting task.
    waiting: RefCell<Vec<Waker>>,
}

impl<T> Watched<T> {
    fn publish(&self) {
        self.version.set(self.version.get() + 1);
        self.wake();
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    fn wait(&self, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }
}

/// Changes the value.
pub struct RaftWatchSender<T>(Rc<Watched<T>>);

/// Sees the value.
pub struct RaftWatchReceiver<T> {
    watched: Rc<Watched<T>>,
    seen: u64,
}

impl<T> RaftWatchReceiver<T> {
    fn of(watched: &Rc<Watched<T>>, seen: u64) -> Self {
        watched.receivers.set(watched.receivers.get() + 1);
        RaftWatchReceiver { watched: watched.clone(), seen }
    }
}

impl<T> Clone for RaftWatchSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        RaftWatchSender(self.0.clone())
    }
}

impl<T> Drop for RaftWatchSender<T> {
    fn drop(&mut self) {
        self.0.senders.set(self.0.senders.get() - 1);
        if self.0.senders.get() == 0 {
            self.0.wake();
        }
    }
}

impl<T> Clone for RaftWatchReceiver<T> {
    fn clone(&self) -> Self {
        RaftWatchReceiver::of(&self.watched, self.seen)
    }
}

impl<T> Drop for RaftWatchReceiver<T> {
    fn drop(&mut self) {
        self.watched.receivers.set(self.watched.receivers.get() - 1);
    }
}

impl watch::Watch for RaftWatch {
    type Sender<T> = RaftWatchSender<T>;
    type Receiver<T> = RaftWatchReceiver<T>;
    type Ref<'a, T: 'a> = Ref<'a, T>;

    fn channel<T>(init: T) -> (RaftWatchSender<T>, RaftWatchReceiver<T>) {
        let watched = Rc::new(Watched {
            value: RefCell::new(init),
            version: Cell::new(0),
            senders: Cell::new(1),
            receivers: Cell::new(0),
            waiting: RefCell::new(Vec::new()),
        });
        let receiver = RaftWatchReceiver::of(&watched, 0);
        (RaftWatchSender(watched), receiver)
    }
}

impl<T> watch::WatchSender<RaftWatch, T> for RaftWatchSender<T> {
    fn send(&self, value: T) -> Result<(), watch::SendError<T>> {
        if self.0.receivers.get() == 0 {
            return Err(watch::SendError(value));
        }
        let old = self.0.value.replace(value);
        self.0.publish();
        drop(old);
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let modified = modify(&mut self.0.value.borrow_mut());
        if modified {
            self.0.publish();
        }
        modified
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.0.value.borrow()
    }

    fn subscribe(&self) -> RaftWatchReceiver<T> {
        RaftWatchReceiver::of(&self.0, self.0.version.get())
    }
}

impl<T> watch::WatchReceiver<RaftWatch, T> for RaftWatchReceiver<T> {
    async fn changed(&mut self) -> Result<(), watch::RecvError> {
        poll_fn(|cx| {
            let version = self.watched.version.get();
            if self.seen != version {
                self.seen = version;
                return Poll::Ready(Ok(()));
            }
            if self.watched.senders.get() == 0 {
                return Poll::Ready(Err(watch::RecvError(())));
            }
            self.watched.wait(cx.waker());
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.watched.value.borrow()
    }

    fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.watched.version.get();
        self.watched.value.borrow()
    }
}
