//! Drives the first frames of a connection (the rules are `wire::handshake`'s).

use std::net::SocketAddr;
use std::rc::Rc;

use base::ClusterId;
use runtime::{BufPool, Env, Stream, WriteHalf};
use wire::frame::{FrameKind, Header};
use wire::handshake::{Agreed, ClusterKey, Hello, REFUSE_MAX, Side, Transcript, agree, wrong_key};

use crate::limits::Limits;
use crate::link::OpenedConnection;
use crate::message::PeerInfo;
use crate::queue::{Body, FramePart};
use crate::receive::{Inbound, ReceiveError, Receiver};
use crate::writer::send_now;

/// Cause for which there is no link.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The peer is not there, or went away: worth another attempt.
    Io(String),
    /// It stays so until an operator changes something.
    Refused(String),
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Failure {
        match error {
            ReceiveError::Frame(error) => Failure::Refused(error.to_string()),
            error => Failure::Io(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Io(error.to_string())
    }
}

/// This side's part of a handshake.
pub(crate) struct Own<'a> {
    pub(crate) env: &'a Env,
    pub(crate) limits: &'a Rc<Limits>,
    pub(crate) name: &'a str,
    pub(crate) key: Option<&'a ClusterKey>,
    pub(crate) cluster: ClusterId,
    /// Memory for when the buffer budget is spent: see [`CONNECT_RESERVE_BYTES`](crate::limits::CONNECT_RESERVE_BYTES).
    pub(crate) reserve: Option<&'a BufPool>,
}

struct Connection<'a> {
    own: Own<'a>,
    write: WriteHalf,
    receiver: Receiver,
    addr: SocketAddr,
}

impl Connection<'_> {
    async fn send(&mut self, kind: FrameKind, body: Vec<u8>) -> Result<(), Failure> {
        let header = Header { body_len: body.len() as u32, ..Header::empty(kind) };
        let body = Body::Whole(body);
        let piece =
            FramePart { header, service: None, body, payload: None, deadline: None, span: None };
        Ok(send_now((self.own.env.pool(), self.own.reserve), &mut self.write, piece).await?)
    }

    /// Sends the peer the reason why there is no link, as far as it still listens.
    async fn refuse(&mut self, why: String) -> Failure {
        let end = (0..=REFUSE_MAX.min(why.len())).rev().find(|&end| why.is_char_boundary(end));
        let text = why.as_bytes()[..end.unwrap_or(0)].to_vec();
        let _ = self.send(FrameKind::Refuse, text).await;
        Failure::Refused(why)
    }

    async fn receive(&mut self, kind: FrameKind) -> Result<Inbound, Failure> {
        match self.receiver.next(&()).await? {
            Some(message) if message.header.kind == kind => Ok(message),
            Some(message) if message.header.kind == FrameKind::Refuse => {
                Err(Failure::Refused(String::from_utf8_lossy(&message.body).into_owned()))
            }
            _ => Err(Failure::Refused(format!(
                "{} answers with frames that are out of order: upgrade the older process",
                self.addr
            ))),
        }
    }

    async fn receive_hello(&mut self) -> Result<(Vec<u8>, Hello), Failure> {
        let message = self.receive(FrameKind::Hello).await?;
        let hello = Hello::decode(&message.body)
            .map_err(|error| Failure::Refused(format!("{}: {error}", self.addr)))?;
        Ok((message.body, hello))
    }

    fn hello(&self) -> Hello {
        let mut nonce = [0; 32];
        self.own.env.fill_secret(&mut nonce);
        Hello::new(self.own.cluster, self.own.key.is_some(), nonce, self.own.name)
    }

    async fn check_proof(
        &mut self,
        transcript: Transcript<'_>,
        side: Side,
        peer: &Hello,
    ) -> Result<(), Failure> {
        let Some(key) = self.own.key else { return Ok(()) };
        let proof = self.receive(FrameKind::Proof).await?;
        if transcript.verify(key, side, &proof.body) {
            return Ok(());
        }
        Err(self.refuse(wrong_key(self.own.name, &peer.name)).await)
    }

    async fn prove(&mut self, transcript: Transcript<'_>, side: Side) -> Result<(), Failure> {
        let Some(key) = self.own.key else { return Ok(()) };
        self.send(FrameKind::Proof, transcript.prove(key, side).to_vec()).await
    }

    fn opened(self, agreed: Agreed, name: String) -> OpenedConnection {
        OpenedConnection {
            write: self.write,
            receiver: self.receiver,
            peer: PeerInfo { name, addr: self.addr },
            version: agreed.version,
            cluster: agreed.cluster,
        }
    }
}

fn connection<'a>(own: Own<'a>, stream: Stream) -> Result<Connection<'a>, Failure> {
    let receiver = Receiver::new(stream.read, own.env, own.limits, own.reserve)
        .map_err(|error| Failure::Io(error.to_string()))?;
    Ok(Connection { own, write: stream.write, receiver, addr: stream.peer })
}

/// The connecting side.
pub(crate) async fn connect(own: Own<'_>, stream: Stream) -> Result<OpenedConnection, Failure> {
    let mut peer = connection(own, stream)?;
    let own_hello = peer.hello();
    let own_bytes = own_hello.encode();
    peer.send(FrameKind::Hello, own_bytes.clone()).await?;
    let (peer_bytes, peer_hello) = peer.receive_hello().await?;
    let agreed = match agree(&own_hello, &peer_hello) {
        Ok(agreed) => agreed,
        Err(why) => return Err(peer.refuse(why).await),
    };
    let transcript = Transcript { connecting: &own_bytes, accepting: &peer_bytes };
    peer.check_proof(transcript, Side::Accepting, &peer_hello).await?;
    peer.prove(transcript, Side::Connecting).await?;
    peer.receive(FrameKind::Welcome).await?;
    Ok(peer.opened(agreed, peer_hello.name))
}

/// The accepting side.
pub(crate) async fn accept(own: Own<'_>, stream: Stream) -> Result<OpenedConnection, Failure> {
    let mut peer = connection(own, stream)?;
    let (peer_bytes, peer_hello) = peer.receive_hello().await?;
    let own_hello = peer.hello();
    let own_bytes = own_hello.encode();
    let agreed = match agree(&own_hello, &peer_hello) {
        Ok(agreed) => agreed,
        Err(why) => return Err(peer.refuse(why).await),
    };
    peer.send(FrameKind::Hello, own_bytes.clone()).await?;
    let transcript = Transcript { connecting: &peer_bytes, accepting: &own_bytes };
    peer.prove(transcript, Side::Accepting).await?;
    peer.check_proof(transcript, Side::Connecting, &peer_hello).await?;
    peer.send(FrameKind::Welcome, Vec::new()).await?;
    Ok(peer.opened(agreed, peer_hello.name))
}
