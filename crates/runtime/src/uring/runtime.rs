//! [`Runtime`]: one executor on its ring; [`Handle`]: how other threads reach it; [`Cores`]: an
//! executor per core.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use metrics::Registry;

use super::driver::{RealDriver, Signal};
use super::helpers::Helpers;
use super::host::{RealNode, fill_random};
use super::poll::PollPolicy;
use super::ring::Ring;
use super::stats::{Counters, Stats};
use crate::buf::BufPool;
use crate::env::{Env, EnvInner, Host};
use crate::executor::{Class, Core, with_current};
use crate::limits::{HELPERS_DEFAULT, INBOX_MAX, POOL_BYTES_DEFAULT};
use crate::note::tracer_of;
use crate::rng::Rng;
use crate::sync::{mpsc, oneshot, watch};

/// Options of a [`Runtime`] or [`Cores`].
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// For logs and thread names.
    pub name: String,
    /// Bytes of buffers the process may hold: the hard budget, shared by its executors.
    pub pool_bytes: usize,
    /// Take buffers from huge pages where the machine has them.
    pub huge_pages: bool,
    /// Way of waiting for completions.
    pub poll: PollPolicy,
    /// Helper threads at most, for [`Env::blocking`]; shared by the process's executors.
    pub helpers: usize,
    /// Metrics of the process's executors: shared by those that are to be seen together.
    pub registry: Registry,
}

impl Default for RuntimeConfig {
    fn default() -> RuntimeConfig {
        RuntimeConfig {
            name: "craton".to_owned(),
            pool_bytes: POOL_BYTES_DEFAULT,
            huge_pages: true,
            poll: PollPolicy::default(),
            helpers: HELPERS_DEFAULT,
            registry: Registry::new(),
        }
    }
}

impl RuntimeConfig {
    /// The default with a name.
    pub fn named(name: &str) -> RuntimeConfig {
        RuntimeConfig { name: name.to_owned(), ..RuntimeConfig::default() }
    }

    fn shared(&self) -> (BufPool, Helpers) {
        let pool = match self.huge_pages {
            true => BufPool::on_huge_pages(self.pool_bytes),
            false => BufPool::new(self.pool_bytes),
        };
        (pool, Helpers::new(&self.name, self.helpers))
    }
}

/// An executor, its ring, and its [`Env`]. It stays on the thread that made it. Dropping it drops
/// its tasks, then waits for the disk operations in flight, then frees the ring.
pub struct Runtime {
    env: Env,
    ring: Rc<Ring>,
    handle: Handle,
    poll: PollPolicy,
}

impl Runtime {
    /// An executor for this thread.
    pub fn new(config: RuntimeConfig) -> io::Result<Runtime> {
        let (pool, helpers) = config.shared();
        Runtime::with_shared(&config, pool, helpers)
    }

    fn with_shared(config: &RuntimeConfig, pool: BufPool, helpers: Helpers) -> io::Result<Runtime> {
        let counters = Arc::new(Counters::default());
        let ring = Ring::new(counters.clone())?;
        let signal = Signal::new()?;
        let core = Core::new(Box::new({
            let signal = signal.clone();
            move || signal.notify()
        }));
        let remote = core.remote.clone();
        let driver = RealDriver::new(ring.clone(), remote, signal, config.poll, counters.clone())?;
        core.set_driver(Rc::new(driver));
        let mut seed = [0; 8];
        fill_random(&mut seed);
        let rng = Rng::new(u64::from_ne_bytes(seed));
        let env = Env(Rc::new(EnvInner {
            core,
            node: 0,
            name: config.name.clone(),
            host: Host::Real(RealNode::new(ring.clone(), helpers)),
            pool,
            tracer: tracer_of(&rng, config.registry.clone()),
            rng: RefCell::new(rng),
            closed: Cell::new(false),
        }));
        let (inbox, jobs) = mpsc::channel(INBOX_MAX);
        env.spawn(Class::Control, "inbox", serve_inbox(env.clone(), jobs));
        let (stop, _) = watch::channel(false);
        let handle = Handle(Arc::new(HandleInner { inbox, stop, counters }));
        Ok(Runtime { env, ring, handle, poll: config.poll })
    }

    /// The environment of this executor's tasks.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Handle of this executor for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Starts `count` more executors, on threads of their own, that share this one's pool and
    /// helpers.
    pub fn beside(&self, name: &str, count: usize) -> io::Result<Cores> {
        let registry = self.env.tracer().registry().clone();
        let config = RuntimeConfig { poll: self.poll, registry, ..RuntimeConfig::named(name) };
        let helpers = match &self.env.0.host {
            Host::Real(node) => node.helpers().clone(),
            Host::Sim(_) => unreachable!("a runtime is real"),
        };
        Cores::with_shared(&config, 1, count, self.env.pool(), &helpers)
    }

    /// Runs `future`, and all tasks beside it, until it ends.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        assert!(with_current(|_| ()).is_none(), "block_on within a task: await instead");
        let core = self.env.0.core.clone();
        core.run(Some(&self.env), future).expect("a real executor can always be woken")
    }

    /// Runs tasks until [`Handle::stop`].
    pub fn run(&self) {
        let handle = self.handle();
        self.block_on(async move { handle.stopped().await });
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.env.0.closed.set(true);
        self.handle.stop();
        self.env.0.core.clear();
        if !self.ring.shutdown() {
            // The kernel still has pointers into its operations: they must never be freed.
            std::mem::forget(self.ring.clone());
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime({})", self.env.name())
    }
}

type Job = Box<dyn FnOnce(&Env) + Send>;

async fn serve_inbox(env: Env, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job(&env);
    }
}

struct HandleInner {
    inbox: mpsc::Sender<Job>,
    stop: watch::Sender<bool>,
    counters: Arc<Counters>,
}

/// Reaches an executor from any thread. Clones reach the same one.
#[derive(Clone)]
pub struct Handle(Arc<HandleInner>);

/// A task was not run to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Too many tasks wait to be taken in by the executor. Nothing was done: try again later.
    Full,
    /// The executor stopped first, or the task was aborted.
    Stopped,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Full => "the executor's inbox is full: try again later",
            Refused::Stopped => "the executor has stopped",
        })
    }
}

impl std::error::Error for Refused {}

impl Handle {
    /// Runs a task on the executor: `make` is called there with its [`Env`]. The task runs to
    /// its end whether or not what is returned is kept.
    pub fn spawn<T, F>(&self, make: impl FnOnce(Env) -> F + Send + 'static) -> RemoteTask<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.spawn_class(Class::Foreground, "remote", make)
    }

    /// As [`Handle::spawn`], with the task's class and name.
    pub fn spawn_class<T, F>(
        &self,
        class: Class,
        name: &'static str,
        make: impl FnOnce(Env) -> F + Send + 'static,
    ) -> RemoteTask<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job = move |env: &Env| {
            let future = make(env.clone());
            env.spawn(class, name, async move {
                let _ = sender.send(future.await); // The one who asked may have gone.
            });
        };
        let refused = match self.0.inbox.try_send(Box::new(job)) {
            Ok(()) => None,
            Err(mpsc::TrySendError::Full(_)) => Some(Refused::Full),
            Err(mpsc::TrySendError::Closed(_)) => Some(Refused::Stopped),
        };
        RemoteTask { receiver, refused }
    }

    /// Ends [`Runtime::run`] and [`Handle::stopped`].
    pub fn stop(&self) {
        self.0.stop.send_replace(true);
    }

    /// Completes when [`Handle::stop`] is called or the runtime is dropped. On any thread.
    pub async fn stopped(&self) {
        let mut stop = self.0.stop.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = stop.wait_for(|stopped| *stopped).await;
    }

    /// Counts of the executor's work so far.
    pub fn stats(&self) -> Stats {
        self.0.counters.snapshot()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

/// The result of a task on another executor: awaited on any thread and in any runtime, or waited
/// for by a thread that may block.
pub struct RemoteTask<T> {
    receiver: oneshot::Receiver<T>,
    refused: Option<Refused>,
}

impl<T> RemoteTask<T> {
    /// Blocks this thread until the task ends. Panics on an executor's thread, which has other
    /// tasks to run: await there.
    pub fn wait(self) -> Result<T, Refused> {
        self.wait_timeout(Duration::MAX).unwrap_or(Err(Refused::Stopped))
    }

    /// As [`RemoteTask::wait`], for `limit` at most. `None` when the task has not ended by then;
    /// it runs on.
    pub fn wait_timeout(self, limit: Duration) -> Option<Result<T, Refused>> {
        assert!(with_current(|_| ()).is_none(), "would stop this executor: await instead");
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut this = pin!(self);
        let started = super::driver::now_nanos();
        loop {
            if let Poll::Ready(result) = this.as_mut().poll(&mut context) {
                return Some(result);
            }
            let waited = Duration::from_nanos(super::driver::now_nanos() - started);
            let left = limit.checked_sub(waited).filter(|left| !left.is_zero())?;
            thread::park_timeout(left);
        }
    }
}

impl<T> Future for RemoteTask<T> {
    type Output = Result<T, Refused>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(refused) = self.refused {
            return Poll::Ready(Err(refused));
        }
        Pin::new(&mut self.receiver).poll(cx).map(|result| result.map_err(|_| Refused::Stopped))
    }
}

impl<T> fmt::Debug for RemoteTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteTask({:?})", self.refused)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Executors on threads of their own, one per core, with one pool and one set of helpers.
pub struct Cores {
    handles: Vec<Handle>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Cores {
    /// Starts `count` executors.
    pub fn start(config: &RuntimeConfig, count: usize) -> io::Result<Cores> {
        let (pool, helpers) = config.shared();
        Cores::with_shared(config, 0, count.max(1), &pool, &helpers)
    }

    fn with_shared(
        config: &RuntimeConfig,
        first: usize,
        count: usize,
        pool: &BufPool,
        helpers: &Helpers,
    ) -> io::Result<Cores> {
        let mut cores = Cores { handles: Vec::new(), threads: Vec::new() };
        for index in first..first + count {
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            let (pool, helpers) = (pool.clone(), helpers.clone());
            let name = format!("{}-{index}", config.name);
            let config = RuntimeConfig { name: name.clone(), ..config.clone() };
            let serve = move || match Runtime::with_shared(&config, pool, helpers) {
                Ok(runtime) => {
                    let _ = sender.send(Ok(runtime.handle()));
                    runtime.run();
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                }
            };
            cores.threads.push(thread::Builder::new().name(name).spawn(serve)?);
            let handle = receiver.recv().map_err(|_| io::Error::other("the executor died"))??;
            cores.handles.push(handle);
        }
        Ok(cores)
    }

    /// One handle per executor, always in the same order.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Stops the executors and waits until their threads have ended. Also done by dropping.
    pub fn stop(self) {}
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.handles.iter().for_each(Handle::stop);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an executor's thread panicked");
            }
        }
    }
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cores({})", self.handles.len())
    }
}
