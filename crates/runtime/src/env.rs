//! [`Env`]: all that logic sees of the world.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use metrics::Tracer;

use crate::buf::BufPool;
use crate::executor::{Class, Core};
use crate::io::{Entry, File, Listener, OpenOptions, Stream};
use crate::rng::Rng;
use crate::sim::SimNode;
use crate::task::JoinHandle;
use crate::time::{Instant, UnixTime};
use crate::uring::RealNode;

/// A node's clock, randomness, tasks, files and sockets. Cheap to clone; stays on its thread.
///
/// In a real process one `Env` belongs to each executor. In the simulator each boot of each
/// node has its own, and a crash closes it before its tasks are dropped, so that destructors
/// have no effects (`protocols.md` 5).
#[derive(Clone)]
pub struct Env(pub(crate) Rc<EnvInner>);

pub(crate) struct EnvInner {
    pub(crate) core: Rc<Core>,
    pub(crate) node: u32,
    pub(crate) name: String,
    pub(crate) host: Host,
    pub(crate) pool: BufPool,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) tracer: Rc<Tracer>,
    pub(crate) closed: Cell<bool>,
}

pub(crate) enum Host {
    Real(RealNode),
    Sim(SimNode),
}

/// A deadline passed first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

impl std::error::Error for Elapsed {}

/// Fate of a frame about to be sent. Always [`FrameFate::Deliver`] outside the simulator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameFate {
    /// Send it.
    Deliver,
    /// Lose it.
    Drop,
    /// Send it after a pause; later frames may overtake it.
    Delay(Duration),
    /// Send it now and again after a pause.
    Duplicate(Duration),
}

thread_local! {
    static CURRENT: RefCell<Option<Env>> = const { RefCell::new(None) };
}

/// Restores the context that was current before.
pub(crate) struct EnterGuard(Option<Env>);

impl Drop for EnterGuard {
    fn drop(&mut self) {
        let left =
            CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), self.0.take()));
        drop(left);
    }
}

impl Env {
    /// The `Env` of the task that runs on this thread. Panics outside of one: it is for
    /// libraries whose interfaces have no place for an `Env` (openraft); logic passes its own.
    pub fn current() -> Env {
        Env::try_current().expect("called from a task")
    }

    /// The `Env` of the task that runs on this thread, if one does.
    pub fn try_current() -> Option<Env> {
        CURRENT.with(|current| current.borrow().clone())
    }

    pub(crate) fn enter(&self) -> EnterGuard {
        EnterGuard(CURRENT.with(|current| current.borrow_mut().replace(self.clone())))
    }

    /// Number of this node's boot within its executor; 0 in a real process.
    pub fn node(&self) -> u32 {
        self.0.node
    }

    /// The node's name, for logs.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// True when both are of one boot of one node, on one executor.
    pub fn is_same_node(&self, other: &Env) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// True once the node has crashed (simulator) or its runtime stops.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// The node's monotonic clock.
    pub fn now(&self) -> Instant {
        match &self.0.host {
            Host::Real(_) => Instant::from_nanos(self.0.core.now()),
            Host::Sim(node) => Instant::from_nanos(node.local_time(self.0.core.now())),
        }
    }

    /// The node's wall clock.
    pub fn unix_time(&self) -> UnixTime {
        match &self.0.host {
            Host::Real(node) => node.unix_time(),
            Host::Sim(node) => node.unix_time(self.0.core.now()),
        }
    }

    /// Completes after `duration` of the node's clock.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Completes at `at` of the node's clock.
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        let at = match &self.0.host {
            Host::Real(_) => at.as_nanos(),
            Host::Sim(node) => node.global_time(at.as_nanos()),
        };
        Sleep::new(self.0.core.clone(), at)
    }

    /// The output of `future`, or [`Elapsed`] when `duration` passes first; then `future` is
    /// dropped at its present step, and its requests to others may still take effect.
    pub async fn timeout<T>(
        &self,
        duration: Duration,
        future: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let mut sleep = self.sleep(duration);
        let mut future = pin!(future);
        std::future::poll_fn(move |cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(value));
            }
            Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Starts a task on this executor. `name` appears in metrics and in the trace.
    pub fn spawn<T: 'static>(
        &self,
        class: Class,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        self.0.core.spawn(Some(self), class, name, future)
    }

    /// Lets other ready tasks run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Runs `work` where it may block or compute for long: on a helper thread, or in one step in
    /// the simulator.
    pub async fn blocking<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        match &self.0.host {
            Host::Real(node) => node.blocking(name, work).await,
            Host::Sim(node) => node.blocking(self, name, work).await,
        }
    }

    /// The next 64 bits of this node's random stream.
    pub fn random_u64(&self) -> u64 {
        self.0.rng.borrow_mut().next_u64()
    }

    /// A number in `0..bound` of this node's random stream.
    pub fn random_below(&self, bound: u64) -> u64 {
        self.0.rng.borrow_mut().below(bound)
    }

    /// `base` plus or minus up to a quarter of it, so that peers do not act in step.
    pub fn jitter(&self, base: Duration) -> Duration {
        let quarter = u64::try_from(base.as_nanos() / 4).unwrap_or(u64::MAX);
        let spread = self.random_below(quarter.saturating_mul(2).max(1));
        base.saturating_sub(Duration::from_nanos(quarter)) + Duration::from_nanos(spread)
    }

    /// Fills `bytes` with randomness fit for keys and identities: the kernel's in a real
    /// process, the node's seeded stream in the simulator.
    pub fn fill_secret(&self, bytes: &mut [u8]) {
        match &self.0.host {
            Host::Real(node) => node.fill_secret(bytes),
            Host::Sim(_) => self.0.rng.borrow_mut().fill(bytes),
        }
    }

    /// The pool that buffers of this node come from.
    pub fn pool(&self) -> &BufPool {
        &self.0.pool
    }

    /// Opens a file.
    pub async fn open_file(&self, path: &Path, options: OpenOptions) -> io::Result<File> {
        match &self.0.host {
            Host::Real(node) => node.open_file(path, options).await.map(File::Real),
            Host::Sim(node) => node.open_file(self, path, options).await.map(File::Sim),
        }
    }

    /// Makes a directory and its parents, durably; fine when it is there.
    pub async fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let there = match &self.0.host {
            Host::Real(node) => node.create_dir_all(path).await?,
            Host::Sim(node) => node.create_dir_all(path)?,
        };
        let mut dir = path;
        while let Some(parent) = dir.parent() {
            let made = !there.starts_with(dir);
            let holder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            match self.sync_dir(holder).await {
                // It was there, and is another user's: its owner made it.
                Err(error) if !made && error.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced?,
            }
            if !made {
                break; // Its own name may be of a start that was broken off, so it was synced.
            }
            dir = parent;
        }
        Ok(())
    }

    /// The entries of a directory, by name.
    pub async fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        match &self.0.host {
            Host::Real(node) => node.read_dir(path).await,
            Host::Sim(node) => node.read_dir(path),
        }
    }

    /// Renames a file, replacing what is at `to`. Durable after [`Env::sync_dir`] of the parent,
    /// as is making a file.
    pub async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        match &self.0.host {
            Host::Real(node) => node.rename(from, to).await,
            Host::Sim(node) => node.rename(from, to),
        }
    }

    /// Removes a file. Durable after [`Env::sync_dir`] of the parent.
    pub async fn remove_file(&self, path: &Path) -> io::Result<()> {
        match &self.0.host {
            Host::Real(node) => node.remove_file(path).await,
            Host::Sim(node) => node.remove_file(path),
        }
    }

    /// Makes the names in a directory durable.
    pub async fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match &self.0.host {
            Host::Real(node) => node.sync_dir(path).await,
            Host::Sim(node) => node.sync_dir(path),
        }
    }

    /// Accepts connections at `addr`. Port 0 picks a free one.
    pub async fn listen(&self, addr: SocketAddr) -> io::Result<Listener> {
        match &self.0.host {
            Host::Real(node) => node.listen(addr).await.map(Listener::Real),
            Host::Sim(node) => node.listen(self, addr).map(Listener::Sim),
        }
    }

    /// Accepts connections at a Unix socket: a file of that name, for this user only, which goes
    /// with the listener. The file of a dead process is replaced. Addresses of
    /// such a listener and of its peers read as 0.0.0.0:0. `Unsupported` in the simulator.
    pub async fn listen_unix(&self, path: &Path) -> io::Result<Listener> {
        match &self.0.host {
            Host::Real(node) => node.listen_unix(path).await.map(Listener::Real),
            Host::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Connects to `addr`.
    pub async fn connect(&self, addr: SocketAddr) -> io::Result<Stream> {
        match &self.0.host {
            Host::Real(node) => node.connect(addr).await,
            Host::Sim(node) => node.connect(self, addr).await,
        }
    }

    /// Fate of the next frame to `peer`: the simulator's place to lose, delay, reorder and
    /// duplicate messages.
    pub fn frame_fate(&self, peer: SocketAddr) -> FrameFate {
        match &self.0.host {
            Host::Real(_) => FrameFate::Deliver,
            Host::Sim(node) => node.frame_fate(peer),
        }
    }

    /// Notes that a rare path was reached. Costs nothing outside the simulator, which counts
    /// marks so that a scenario can prove that it exercised them.
    pub fn mark(&self, name: &'static str) {
        if let Host::Sim(node) = &self.0.host {
            node.mark(name);
        }
    }

    /// True in the simulator. For drivers of libraries only: logic must not branch on it.
    pub fn is_simulated(&self) -> bool {
        matches!(self.0.host, Host::Sim(_))
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Env({})", self.0.name)
    }
}

/// A timer. See [`Env::sleep`].
pub struct Sleep {
    core: Rc<Core>,
    at: u64,
    key: Option<(u64, u64)>,
}

impl Sleep {
    pub(crate) fn new(core: Rc<Core>, at: u64) -> Sleep {
        Sleep { core, at, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(key) = self.key {
            if self.core.update_timer(key, cx.waker()) {
                return Poll::Pending;
            }
            self.key = None;
            return Poll::Ready(());
        }
        if self.core.now() >= self.at {
            return Poll::Ready(());
        }
        let key = self.core.add_timer(self.at, cx.waker().clone());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.remove_timer(key);
        }
    }
}
