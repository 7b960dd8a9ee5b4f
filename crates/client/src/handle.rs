//! [`ClientHandle`]: a client that any thread may use.
//!
//! A client lives on an executor's thread. A handle sends it work; the objects of the work (the
//! client, appenders, readers) stay there and are known here by a number.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use base::ClusterId;
use runtime::{Duration, Env, Handle, Refused, RemoteTask};
use transport::{ClusterKey, Endpoint, Identity, Limits};

use crate::client::Client;
use crate::config::Config;
use crate::error::Error;

/// Connection settings of a handle's client.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Masters' addresses; one that answers is enough.
    pub masters: Vec<SocketAddr>,
    /// The cluster, when it must be this one; zero to take the one that answers.
    pub cluster: ClusterId,
    /// The secret of the cluster's roles; none for clusters on loopback.
    pub key: Option<ClusterKey>,
    /// Name of this process, for the peers' logs.
    pub name: String,
    /// Behaviour.
    pub config: Config,
}

impl Connection {
    /// To the cluster that answers at `masters`.
    pub fn to(masters: Vec<SocketAddr>) -> Connection {
        Connection {
            masters,
            cluster: ClusterId::default(),
            key: None,
            name: format!("client {}", std::process::id()),
            config: Config::default(),
        }
    }

    async fn connect(self, env: Env) -> Result<Client, Error> {
        let identity = Identity { cluster: self.cluster, key: self.key, name: self.name };
        let endpoint = Endpoint::new(&env, identity, Limits::default());
        Client::connect(&env, endpoint, self.masters, self.config).await
    }
}

thread_local! {
    /// Objects that handles on other threads refer to.
    static KEPT: RefCell<BTreeMap<u64, Rc<dyn Any>>> = const { RefCell::new(BTreeMap::new()) };
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A value that stays on an executor's thread, and goes when the last remote is dropped.
pub(crate) struct Remote<T>(Arc<Shared<T>>);

impl<T> Clone for Remote<T> {
    fn clone(&self) -> Self {
        Remote(self.0.clone())
    }
}

struct Shared<T> {
    handle: Handle,
    number: u64,
    /// Numbers whose remotes are gone, while the executor takes no work.
    gone: Arc<Mutex<Vec<u64>>>,
    _value: std::marker::PhantomData<fn() -> T>,
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        self.gone.lock().expect("no panic inside").push(self.number);
        let gone = self.gone.clone();
        drop(self.handle.spawn(move |_| sweep(gone))); // Full: the next work sweeps.
    }
}

async fn sweep(gone: Arc<Mutex<Vec<u64>>>) {
    let numbers = std::mem::take(&mut *gone.lock().expect("no panic inside"));
    for number in numbers {
        let value = KEPT.with(|kept| kept.borrow_mut().remove(&number));
        drop(value); // Outside of the borrow: destructors may access it.
    }
}

/// Keeps a value on this thread for remotes with the number.
fn keep<T: 'static>(number: u64, value: T) {
    KEPT.with(|kept| kept.borrow_mut().insert(number, Rc::new(value)));
}

impl<T: 'static> Remote<T> {
    fn new(handle: Handle, gone: Arc<Mutex<Vec<u64>>>) -> Remote<T> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Remote(Arc::new(Shared { handle, number, gone, _value: std::marker::PhantomData }))
    }

    /// Runs work with the value on its thread.
    pub(crate) fn run<R, F>(&self, work: impl FnOnce(Rc<T>) -> F + Send + 'static) -> Task<R>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, Error>> + 'static,
    {
        let (number, gone) = (self.0.number, self.0.gone.clone());
        // The value lives at least until the work has begun to use it.
        let held = self.clone();
        Task(self.0.handle.spawn(move |_| async move {
            sweep(gone).await;
            let value = KEPT.with(|kept| kept.borrow().get(&number).cloned());
            let value = value.and_then(|value| value.downcast::<T>().ok());
            let Some(value) = value else { return Err(gone_error()) };
            let result = work(value).await;
            drop(held);
            result
        }))
    }

    /// Runs work that makes another value, which stays beside this one.
    pub(crate) fn make<U, F>(
        &self,
        work: impl FnOnce(Rc<T>) -> F + Send + 'static,
    ) -> (Remote<U>, Task<()>)
    where
        U: 'static,
        F: Future<Output = Result<U, Error>> + 'static,
    {
        let made = Remote::new(self.0.handle.clone(), self.0.gone.clone());
        let number = made.0.number;
        let task = self.run(move |value| async move {
            keep(number, work(value).await?);
            Ok(())
        });
        (made, task)
    }

    /// Takes the value away and runs work with it: for what ends it.
    pub(crate) fn take<R, F>(self, work: impl FnOnce(T) -> F + Send + 'static) -> Task<R>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, Error>> + 'static,
    {
        let number = self.0.number;
        self.run(move |value| async move {
            KEPT.with(|kept| kept.borrow_mut().remove(&number));
            match Rc::try_unwrap(value) {
                Ok(value) => work(value).await,
                Err(_) => Err(Error::invalid("close", "other calls are under way: wait for them")),
            }
        })
    }
}

/// Work of a client on its thread: awaited anywhere, in any runtime, or waited for by a thread
/// that may block. Dropping it lets the work run on.
#[derive(Debug)]
pub struct Task<T>(RemoteTask<Result<T, Error>>);

impl<T> Task<T> {
    /// Blocks this thread until the work has ended.
    pub fn wait(self) -> Result<T, Error> {
        flatten(self.0.wait())
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(flatten)
    }
}

fn flatten<T>(result: Result<Result<T, Error>, Refused>) -> Result<T, Error> {
    match result {
        Ok(result) => result,
        Err(Refused::Full) => Err(Error::Unavailable {
            what: "call the client".to_owned(),
            cause: Refused::Full.to_string(),
            waited: Duration::ZERO,
        }),
        Err(Refused::Stopped) => Err(gone_error()),
    }
}

fn gone_error() -> Error {
    Error::invalid("client", "it was stopped; connect again")
}

/// A client that any thread may use. Clones share it; it ends with the last of them and of the
/// objects made through them.
#[derive(Clone)]
pub struct ClientHandle(Remote<Client>);

impl ClientHandle {
    /// Connects a client on the executor behind `handle`.
    pub fn connect(handle: &Handle, connection: Connection) -> Task<ClientHandle> {
        let client = Remote::<Client>::new(handle.clone(), Arc::default());
        let number = client.0.number;
        Task(handle.spawn(move |env| async move {
            keep(number, connection.connect(env).await?);
            Ok(ClientHandle(client))
        }))
    }

    /// Runs work with the client, on its thread.
    pub fn run<T, F>(&self, work: impl FnOnce(Client) -> F + Send + 'static) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        self.0.run(|client| work((*client).clone()))
    }

    pub(crate) fn remote(&self) -> &Remote<Client> {
        &self.0
    }
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientHandle({})", self.0.0.number)
    }
}

const _: fn() = || {
    fn any_thread<T: Send + Sync>() {}
    any_thread::<ClientHandle>();
    any_thread::<Remote<Client>>();
};
