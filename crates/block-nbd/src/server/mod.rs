//! The NBD server (B16): takes connections, negotiates, and serves exports from [`Device`]s.
//!
//! Each connection has a bound on its requests and on their bytes. A client that sends more waits
//! in its own socket. One that does not take its answers holds no more than its bound, and stops
//! nothing else. A connection gets its permit when it opens an export; until then it is a
//! handshake, and these have a bound of their own. Answered changes are durable, so a flush has
//! nothing left to do (`protocols.md` 6.3), on any connection.
//!
//! Invariant: knows no segment and no block server, only [`Exports`] and [`Device`].

mod connection;
mod handshakes;
mod input;
mod negotiate;
mod output;
mod requests;
mod shared;
pub mod tls;

pub use shared::{Limits, Stats};

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use std::{fmt, io};

use block_volume::export::Exports;
use handshakes::{Handshakes, RefusalLog};
use runtime::sync::Notify;
use runtime::{Class, Env, JoinHandle, Listener, Stream};
use shared::{FrontendInner, Running};
use tls::TlsPolicy;

/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Between two checks of whether all connections have ended.
const STOP_LOOK: Duration = Duration::from_millis(5);

/// Causes for which a front end does not listen.
#[derive(Debug)]
pub enum ListenError {
    /// The address is reachable from other machines, and there are no credentials.
    OffLoopback(SocketAddr),
    /// The operating system refuses the address.
    Address(String, io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::OffLoopback(addr) => write!(
                f,
                "{addr} is reachable from other machines, which are let in only through TLS with \
                 client certificates: give credentials and an allow-list, or listen on 127.0.0.1"
            ),
            ListenError::Address(addr, error) => write!(
                f,
                "cannot listen on {addr} ({error}): end the process that uses it, or configure \
                 another"
            ),
        }
    }
}

impl std::error::Error for ListenError {}

/// A running NBD server. Clones share it.
#[derive(Clone)]
pub struct Frontend(Rc<FrontendInner>);

impl Frontend {
    /// A server of `exports` that does not listen yet. Its limits are lowered to what the process's
    /// buffers are enough for.
    pub fn new(env: &Env, exports: Rc<dyn Exports>, limits: Limits) -> Frontend {
        let (wanted, limits) = (limits, limits.within(env.pool().budget()));
        if limits.connections_max < wanted.connections_max {
            let (connections, buffers) = (limits.connections_max, env.pool().budget());
            tracing::info!(
                connections,
                buffers,
                "fewer NBD connections: the process has few buffers"
            );
        }
        let (env, open) = (env.clone(), RefCell::default());
        let (stats, tasks) = (Cell::default(), RefCell::default());
        let (handshakes, refusals) = (Handshakes::default(), RefusalLog::default());
        Frontend(Rc::new(FrontendInner {
            env,
            exports,
            limits,
            open,
            handshakes,
            refusals,
            stats,
            tasks,
            running: Cell::new(0),
            stopping: Cell::new(false),
            stop: Notify::new(),
        }))
    }

    /// Takes connections at a loopback address; port 0 picks a free one.
    pub async fn listen(&self, addr: SocketAddr) -> Result<SocketAddr, ListenError> {
        if !addr.ip().is_loopback() {
            return Err(ListenError::OffLoopback(addr));
        }
        self.listen_at(addr, None).await
    }

    /// Takes connections at any address, under the policy `tls`.
    pub async fn listen_tls(
        &self,
        addr: SocketAddr,
        tls: Rc<TlsPolicy>,
    ) -> Result<SocketAddr, ListenError> {
        self.listen_at(addr, Some(tls)).await
    }

    async fn listen_at(
        &self,
        addr: SocketAddr,
        tls: Option<Rc<TlsPolicy>>,
    ) -> Result<SocketAddr, ListenError> {
        let listener = self.0.env.listen(addr).await;
        let listener = listener.map_err(|error| ListenError::Address(addr.to_string(), error))?;
        let addr = listener.local_addr();
        self.serve(listener, tls);
        Ok(addr)
    }

    /// Takes connections at a Unix socket, which its owner alone can open. A socket that a killed
    /// front end has left there is replaced.
    pub async fn listen_unix(&self, path: &Path) -> Result<(), ListenError> {
        let listener = self.0.env.listen_unix(path).await;
        let named = |error| ListenError::Address(path.display().to_string(), error);
        self.serve(listener.map_err(named)?, None);
        Ok(())
    }

    fn serve(&self, listener: Listener, tls: Option<Rc<TlsPolicy>>) {
        let accept = accept(self.0.clone(), listener, tls);
        let task = self.0.env.spawn(Class::Control, "nbd: accept", accept);
        self.0.tasks.borrow_mut().push(task);
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        Stats { handshakes: self.0.handshakes.count(), ..self.0.stats.get() }
    }

    /// Takes no more connections, and ends those that are open. Requests that were received are answered, as far
    /// as that takes no longer than [`crate::protocol::limits::NBD_STOP_MAX`]; a write of more than
    /// [`block_volume::limits::IO_MAX`] bytes, which is read in pieces, may have none. No answer is sent once this has
    /// returned: devices may fail then, and no client sees an error for it.
    pub async fn stop(&self) {
        self.0.tasks.take().iter().for_each(JoinHandle::abort);
        self.0.stopping.set(true);
        self.0.stop.notify_waiters();
        while self.0.handshakes.end_oldest() {}
        while self.0.running.get() > 0 {
            self.0.env.sleep(STOP_LOOK).await;
        }
    }
}

impl fmt::Debug for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frontend({:?})", self.stats())
    }
}

async fn accept(inner: Rc<FrontendInner>, listener: Listener, tls: Option<Rc<TlsPolicy>>) {
    loop {
        match listener.accept().await {
            Ok(stream) => admit(&inner, stream, tls.clone()),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection: raise the limit of open files");
                inner.env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn admit(inner: &Rc<FrontendInner>, stream: Stream, tls: Option<Rc<TlsPolicy>>) {
    if inner.handshakes.count() >= inner.limits.handshakes_max {
        inner.env.mark("nbd: too many handshakes");
        inner.count(|stats| stats.refused += 1);
        let ended = inner.handshakes.end_oldest();
        if let Some(unlogged) = inner.refusal() {
            let peer = &stream.peer;
            tracing::warn!(%peer, ended, unlogged, "too many NBD clients that open no volume");
        }
        if !ended {
            return;
        }
    }
    inner.count(|stats| stats.accepted += 1);
    let handshake = inner.handshakes.begin();
    let running = Running::begin(inner);
    let work = connection::run(inner.clone(), handshake, stream, tls);
    inner.env.spawn(Class::Foreground, "nbd: connection", async move {
        let _running = running;
        work.await;
    });
}
