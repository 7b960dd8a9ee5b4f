//! One connection: its negotiation, its bounds, its end.

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{Either, select};
use runtime::sync::{Semaphore, mpsc};
use runtime::{Class, JoinHandle, Stream};

use super::handshakes::Handshake;
use super::input::InputEnd;
use super::negotiate::{self, Chosen};
use super::output::{self, Message};
use super::requests;
use super::shared::{Connection, FrontendInner};
use super::tls::TlsPolicy;
use crate::protocol::limits::{NBD_PIECES_MAX, NBD_STOP_MAX};

pub(super) async fn run(
    inner: Rc<FrontendInner>,
    handshake: Handshake,
    stream: Stream,
    tls: Option<Rc<TlsPolicy>>,
) {
    let env = inner.env.clone();
    let peer = stream.peer;
    let negotiated = {
        let negotiation = negotiate::run(&inner, &handshake, stream, tls);
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
            if !inner.stopping.get()
                && let Some(unlogged) = inner.refusal()
            {
                tracing::info!(%peer, unlogged, "NBD client closed: it has opened no volume in time");
            }
            return;
        }
    };
    let (outbox, inbox) = mpsc::channel(inner.limits.requests_max);
    let writer =
        env.spawn(Class::Foreground, "nbd: answers", output::run(env.clone(), write, inbox));
    let connection = open(chosen, outbox);
    let reading = Box::pin(requests::run(connection, input));
    let reading = pin!(async {
        match select(reading, pin!(inner.stopped())).await {
            Either::Left((ended, _)) => ended,
            // Nothing more is received.
            Either::Right(_) => InputEnd::Closed,
        }
    });
    match select(reading, writer).await {
        // Requests that were received are still answered.
        Either::Left((InputEnd::Closed, writer)) => answer_rest(&inner, writer).await,
        Either::Left((broken, writer)) => {
            writer.abort();
            note_end(&inner, peer, broken);
        }
        // The connection takes no answers any more.
        Either::Right(_) => {}
    }
}

/// Waits for the answers to all requests; for a bounded time once the front end stops.
async fn answer_rest(inner: &FrontendInner, writer: JoinHandle<()>) {
    let too_long = async {
        inner.stopped().await;
        inner.env.sleep(NBD_STOP_MAX).await;
    };
    if let Either::Right(((), writer)) = select(writer, pin!(too_long)).await {
        writer.abort();
    }
}

fn open(chosen: Chosen, outbox: mpsc::Sender<Message>) -> Rc<Connection> {
    let Chosen { connection, export, about, device, structured, allocation } = chosen;
    let inner = connection.0.clone();
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
        _export: export,
        _connection: connection,
    })
}

fn note_end(inner: &FrontendInner, peer: SocketAddr, ended: InputEnd) {
    if let InputEnd::ProtocolError(broken) = ended {
        inner.count(|stats| stats.broken += 1);
        if let Some(unlogged) = inner.refusal() {
            tracing::warn!(%peer, unlogged, "NBD connection closed: {broken}");
        }
    }
}
