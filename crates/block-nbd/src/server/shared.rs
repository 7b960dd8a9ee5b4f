//! State that the connections of a front end, and the requests of a connection, share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::limits::IO_MAX;
use runtime::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use runtime::{Env, JoinHandle};

use super::handshakes::{Handshakes, RefusalLog};
use super::output::Message;
use crate::protocol::limits::{
    NBD_CONNECTION_BYTES_MAX, NBD_CONNECTIONS_MAX, NBD_HANDSHAKE_BYTES, NBD_HANDSHAKES_MAX,
    NBD_NEGOTIATION_MAX, NBD_PIECES_MAX, NBD_REQUESTS_MAX,
};

/// Bounds of a front end. The simulator and tests make them small. A front end whose process has few
/// buffers lowers the numbers of connections and handshakes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections that have an export open, at a time; one more is refused with that reason.
    pub connections_max: usize,
    /// Connections that have none yet, at a time; one more ends the oldest of them, those without
    /// a certificate first.
    pub handshakes_max: usize,
    /// Bytes of requests and answers that one connection may hold, beside one large request.
    pub connection_bytes_max: usize,
    /// Requests of one connection that are not answered.
    pub requests_max: usize,
    /// A client has chosen its export after this long, or is closed.
    pub negotiation_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: NBD_CONNECTIONS_MAX,
            handshakes_max: NBD_HANDSHAKES_MAX,
            connection_bytes_max: NBD_CONNECTION_BYTES_MAX,
            requests_max: NBD_REQUESTS_MAX,
            negotiation_max: NBD_NEGOTIATION_MAX,
        }
    }
}

impl Limits {
    /// As many connections as hold half of the process's buffers at most, and as many handshakes as hold
    /// a quarter; never more than before.
    pub(super) fn within(self, pool_bytes: usize) -> Limits {
        let connection = self.connection_bytes_max + NBD_PIECES_MAX * IO_MAX;
        let (connections, handshakes) =
            (pool_bytes / 2 / connection, pool_bytes / 4 / NBD_HANDSHAKE_BYTES);
        Limits {
            connections_max: self.connections_max.min(connections.max(1)),
            handshakes_max: self.handshakes_max.min(handshakes.max(1)),
            ..self
        }
    }
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Connections that have an export open now.
    pub connections: usize,
    /// Connections that have none yet.
    pub handshakes: usize,
    /// Connections taken.
    pub accepted: u64,
    /// Connections refused because of [`Limits::connections_max`] or [`Limits::handshakes_max`].
    pub refused: u64,
    /// Connections ended because the peer broke the protocol.
    pub broken: u64,
    /// Requests answered with success.
    pub done: u64,
    /// Requests answered with an error.
    pub failed: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

pub(super) struct FrontendInner {
    pub(super) env: Env,
    pub(super) exports: Rc<dyn Exports>,
    pub(super) limits: Limits,
    /// Connections that have each export open.
    pub(super) open: RefCell<BTreeMap<String, usize>>,
    pub(super) handshakes: Handshakes,
    pub(super) refusals: RefusalLog,
    pub(super) stats: Cell<Stats>,
    pub(super) tasks: RefCell<Vec<JoinHandle<()>>>,
    /// Connections and handshakes that have begun and are not over.
    pub(super) running: Cell<usize>,
    /// Connections are to end.
    pub(super) stopping: Cell<bool>,
    pub(super) stop: Notify,
}

impl FrontendInner {
    pub(super) fn count(&self, change: impl FnOnce(&mut Stats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Ends when the front end stops.
    pub(super) async fn stopped(&self) {
        loop {
            let stop = self.stop.notified();
            if self.stopping.get() {
                return;
            }
            stop.await;
        }
    }

    /// When this refusal may have a line of the log: the number of refusals without one since the last.
    pub(super) fn refusal(&self) -> Option<u64> {
        self.refusals.take(self.env.now())
    }
}

/// A connection or handshake; counted until it is dropped.
pub(super) struct Running(Rc<FrontendInner>);

impl Running {
    pub(super) fn begin(inner: &Rc<FrontendInner>) -> Running {
        inner.running.set(inner.running.get() + 1);
        Running(inner.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

/// One of the connections that have an export open; counted until it is dropped.
pub(super) struct ConnectionPermit(pub(super) Rc<FrontendInner>);

impl ConnectionPermit {
    /// A permit, if one is free.
    pub(super) fn take(inner: &Rc<FrontendInner>) -> Option<ConnectionPermit> {
        if inner.stats.get().connections >= inner.limits.connections_max {
            inner.env.mark("nbd: too many connections");
            inner.count(|stats| stats.refused += 1);
            return None;
        }
        inner.count(|stats| stats.connections += 1);
        Some(ConnectionPermit(inner.clone()))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.count(|stats| stats.connections -= 1);
    }
}

/// A connection's share of an export; given back when it is dropped.
pub(super) struct ExportPermit {
    pub(super) inner: Rc<FrontendInner>,
    pub(super) name: String,
}

impl Drop for ExportPermit {
    fn drop(&mut self) {
        let open = &mut *self.inner.open.borrow_mut();
        let count = open.get_mut(&self.name).expect("permitted once");
        *count -= 1;
        if *count == 0 {
            open.remove(&self.name);
        }
    }
}

/// What a connection's requests share. It lasts until the last of them has ended, and with it
/// the permit for the export: the next connection that opens it finds no change under way.
pub(super) struct Connection {
    pub(super) env: Env,
    pub(super) inner: Rc<FrontendInner>,
    pub(super) device: Rc<dyn Device>,
    /// Length that the client has been sent.
    pub(super) bytes: u64,
    pub(super) read_only: bool,
    pub(super) structured: bool,
    pub(super) allocation: bool,
    pub(super) outbox: mpsc::Sender<Message>,
    pub(super) requests: Arc<Semaphore>,
    pub(super) room: Arc<Semaphore>,
    /// One request at a time may be larger than a device's: its pieces have room of their own,
    /// so that it waits for no answer that waits for it.
    pub(super) large: Arc<Semaphore>,
    pub(super) pieces: Arc<Semaphore>,
    pub(super) _export: ExportPermit,
    pub(super) _connection: ConnectionPermit,
}

/// Waits for a share of one of the bounds.
pub(super) async fn acquire(bound: &Arc<Semaphore>, share: usize) -> OwnedSemaphorePermit {
    let share = u32::try_from(share).expect("bounds are below 4 GiB");
    bound.clone().acquire_many_owned(share).await.expect("never closed")
}
