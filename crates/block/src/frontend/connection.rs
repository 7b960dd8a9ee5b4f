//! One connection: its negotiation, its bounds, its end.

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{Either, select};
use runtime::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use runtime::{Class, Env, Stream};

use super::handshakes::Handshake;
use super::input::Ended;
use super::negotiate::{self, Chosen, Claim};
use super::output::{self, Message};
use super::tls::Gate;
use super::{Inner, Seat, requests};
use crate::contract::Device;
use crate::limits::NBD_PIECES_MAX;

/// What a connection's requests share. It lasts until the last of them has ended, and with it
/// the claim on the export: who opens it next finds no change under way.
pub(super) struct Connection {
    pub(super) env: Env,
    pub(super) inner: Rc<Inner>,
    pub(super) device: Rc<dyn Device>,
    /// Length that the client was told.
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
    _claim: Claim,
    _seat: Seat,
}

/// Waits for a share of one of the bounds.
pub(super) async fn acquire(bound: &Arc<Semaphore>, share: usize) -> OwnedSemaphorePermit {
    let share = u32::try_from(share).expect("bounds are below 4 GiB");
    bound.clone().acquire_many_owned(share).await.expect("never closed")
}

pub(super) async fn run(
    inner: Rc<Inner>,
    handshake: Handshake,
    stream: Stream,
    gate: Option<Rc<Gate>>,
) {
    let env = inner.env.clone();
    let peer = stream.peer;
    let negotiated = {
        let negotiation = negotiate::run(&inner, &handshake, stream, gate);
        let bounded = pin!(env.timeout(inner.limits.negotiation_max, negotiation));
        match select(bounded, pin!(handshake.ended())).await {
            Either::Left((negotiated, _)) => negotiated.ok(),
            Either::Right(_) => None,
        }
    };
    drop(handshake);
    let (chosen, input, write) = match negotiated {
        Some(Ok(chosen)) => chosen,
        Some(Err(ended)) => return note_end(&inner, peer, ended),
        None => {
            if let Some(unlogged) = inner.refusal() {
                tracing::info!(%peer, unlogged, "NBD client closed: it has opened no volume in time");
            }
            return;
        }
    };
    let (outbox, inbox) = mpsc::channel(inner.limits.requests_max);
    let writer =
        env.spawn(Class::Foreground, "nbd: answers", output::run(env.clone(), write, inbox));
    let connection = open(chosen, outbox);
    let reading = pin!(requests::run(connection, input));
    match select(reading, writer).await {
        // What was asked is answered still.
        Either::Left((Ended::Closed, writer)) => {
            let _ = writer.await;
        }
        Either::Left((broken, writer)) => {
            writer.abort();
            note_end(&inner, peer, broken);
        }
        // Nobody takes answers any more.
        Either::Right(_) => {}
    }
}

fn open(chosen: Chosen, outbox: mpsc::Sender<Message>) -> Rc<Connection> {
    let Chosen { seat, claim, about, device, structured, allocation } = chosen;
    let inner = seat.0.clone();
    let bound = |share: usize| Arc::new(Semaphore::new(share));
    Rc::new(Connection {
        env: inner.env.clone(),
        bytes: device.bytes(),
        device,
        read_only: about.read_only,
        structured,
        allocation,
        outbox,
        requests: bound(inner.limits.requests_max),
        room: bound(inner.limits.connection_bytes_max),
        large: bound(1),
        pieces: bound(NBD_PIECES_MAX),
        inner,
        _claim: claim,
        _seat: seat,
    })
}

fn note_end(inner: &Inner, peer: SocketAddr, ended: Ended) {
    if let Ended::Broken(broken) = ended {
        inner.count(|stats| stats.broken += 1);
        if let Some(unlogged) = inner.refusal() {
            tracing::warn!(%peer, unlogged, "NBD connection closed: {broken}");
        }
    }
}
