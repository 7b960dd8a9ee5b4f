//! One peer as callers see it: connected on the first call, again after a break, with backoff.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

use runtime::sync::Notify;
use runtime::{Class, Instant};

use crate::endpoint::EndpointInner;
use crate::error::CallError;
use crate::handshake::Failure;
use crate::link::Link;

pub(crate) struct Peer {
    addr: SocketAddr,
    state: RefCell<ConnectState>,
    /// Notified when a connection attempt has ended.
    settled: Notify,
}

enum ConnectState {
    Idle,
    Connecting {
        failures: u32,
    },
    Up(Rc<Link>),
    /// Calls fail with `error` until `until`; the first one after it connects again.
    Down {
        until: Instant,
        failures: u32,
        error: CallError,
    },
}

impl Peer {
    pub(crate) fn new(addr: SocketAddr) -> Rc<Peer> {
        Rc::new(Peer { addr, state: RefCell::new(ConnectState::Idle), settled: Notify::new() })
    }

    /// The link when it is up.
    pub(crate) fn live(&self) -> Option<Rc<Link>> {
        match &*self.state.borrow() {
            ConnectState::Up(link) if !link.is_broken() => Some(link.clone()),
            _ => None,
        }
    }

    /// Nothing would be lost by forgetting it but a pause between attempts.
    pub(crate) fn is_idle(&self) -> bool {
        self.live().is_none() && !matches!(&*self.state.borrow(), ConnectState::Connecting { .. })
    }

    /// The link, once it is up. The caller limits how long it waits.
    pub(crate) async fn link(
        self: &Rc<Peer>,
        inner: &Rc<EndpointInner>,
    ) -> Result<Rc<Link>, CallError> {
        loop {
            if let Some(link) = self.live() {
                return Ok(link);
            }
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            let failures = match &*self.state.borrow() {
                ConnectState::Connecting { .. } => None,
                ConnectState::Down { until, error, .. } if inner.env.now() < *until => {
                    return Err(error.clone());
                }
                ConnectState::Down { failures, .. } => Some(*failures),
                ConnectState::Idle | ConnectState::Up(_) => Some(0),
            };
            if let Some(failures) = failures {
                self.start_connect(inner, failures);
            }
            settled.await;
            if inner.is_closed() {
                return Err(CallError::Closed);
            }
        }
    }

    fn start_connect(self: &Rc<Peer>, inner: &Rc<EndpointInner>, failures: u32) {
        *self.state.borrow_mut() = ConnectState::Connecting { failures };
        let (peer, inner) = (self.clone(), inner.clone());
        let env = inner.env.clone();
        env.spawn(Class::Control, "transport: connect", async move {
            let made = inner.connect(peer.addr).await;
            peer.settle(&inner, made);
        });
    }

    fn settle(&self, inner: &Rc<EndpointInner>, made: Result<Rc<Link>, Failure>) {
        let failures = match &*self.state.borrow() {
            ConnectState::Connecting { failures } => *failures,
            _ => 0,
        };
        let next = match made {
            Ok(link) => ConnectState::Up(link),
            Err(failure) => {
                let error = self.describe(failure);
                tracing::debug!(addr = %self.addr, %error, failures, "no connection");
                let limits = &inner.limits;
                let doubled = limits.backoff_min.saturating_mul(1 << failures.min(16));
                let pause = inner.env.jitter(doubled.min(limits.backoff_max));
                ConnectState::Down { until: inner.env.now() + pause, failures: failures + 1, error }
            }
        };
        let before = self.state.replace(next);
        drop(before);
        self.settled.notify_waiters();
    }

    fn describe(&self, failure: Failure) -> CallError {
        match failure {
            Failure::Io(why) => CallError::Unreachable(format!("{}: {why}", self.addr)),
            Failure::Refused(why) => CallError::Refused(why),
        }
    }

    /// Ends the link, and with it all calls.
    pub(crate) fn close(&self) {
        if let Some(link) = self.live() {
            link.fail("the endpoint was closed");
        }
        self.settled.notify_waiters();
    }
}

/// Keeps the compiler's view of the future small: `Endpoint::call` awaits it only on first calls.
pub(crate) fn boxed<'a, T>(
    future: impl Future<Output = T> + 'a,
) -> std::pin::Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}
