//! A connection: its phases and the time that each may take.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use s3s::StdError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::config::Times;
use crate::requests::Following;
use crate::tls::Stream;

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The first byte of a head.
    Idle,
    /// The rest of a head.
    Head,
    /// A request's end.
    Request,
}

#[derive(Debug)]
struct Progress {
    phase: Phase,
    since: Instant,
    /// The client takes no more bytes since then.
    blocked: Option<Instant>,
}

/// Clock of a connection.
#[derive(Debug)]
pub struct Watch {
    times: Times,
    progress: Mutex<Progress>,
}

impl Watch {
    /// For a connection that begins now.
    pub fn new(times: Times) -> Watch {
        let progress = Progress { phase: Phase::Idle, since: Instant::now(), blocked: None };
        Watch { times, progress: Mutex::new(progress) }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        change(&mut self.progress.lock().expect("no panic while it is held"))
    }

    /// A head came to its end.
    pub fn begin_request(&self) {
        self.with(|progress| progress.phase = Phase::Request);
    }

    fn end_request(&self) {
        self.with(|progress| (progress.phase, progress.since) = (Phase::Idle, Instant::now()));
    }

    fn received(&self) {
        self.with(|progress| {
            if progress.phase == Phase::Idle {
                (progress.phase, progress.since) = (Phase::Head, Instant::now());
            }
        });
    }

    fn sent(&self, is_blocked: bool) {
        self.with(|progress| match is_blocked {
            true => _ = progress.blocked.get_or_insert_with(Instant::now),
            false => progress.blocked = None,
        });
    }

    /// When the connection has used up its time, as things stand. How long a request takes is the
    /// backend's affair.
    fn deadline(&self) -> Option<Instant> {
        self.with(|progress| {
            let phase = match progress.phase {
                Phase::Idle => Some(progress.since + self.times.idle),
                Phase::Head => Some(progress.since + self.times.head),
                Phase::Request => None,
            };
            let blocked = progress.blocked.map(|since| since + self.times.stall);
            phase.into_iter().chain(blocked).min()
        })
    }
}

/// Ends when a connection has used up its time. Polled after each step of the connection.
pub struct TimeUp {
    watch: Arc<Watch>,
    timer: Pin<Box<Sleep>>,
}

impl TimeUp {
    /// Of this connection.
    pub fn new(watch: Arc<Watch>) -> TimeUp {
        let timer = Box::pin(tokio::time::sleep(watch.times.idle));
        TimeUp { watch, timer }
    }
}

impl Future for TimeUp {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(deadline) = self.watch.deadline() else { return Poll::Pending };
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            // A timer that fires early costs less than one that is moved for each request.
            if deadline < self.timer.deadline() || self.timer.is_elapsed() {
                self.timer.as_mut().reset(deadline);
            }
            std::task::ready!(self.timer.as_mut().poll(cx));
        }
    }
}

/// The connection's bytes; notes when they move.
pub struct WatchedStream {
    stream: Stream,
    watch: Arc<Watch>,
}

impl WatchedStream {
    /// Of a client's connection.
    pub fn new(stream: Stream, watch: Arc<Watch>) -> WatchedStream {
        WatchedStream { stream, watch }
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        self.watch.sent(written.is_pending());
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.watch.received();
        }
        read
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// An answer's body; its end is the request's.
pub struct WatchedBody {
    body: s3s::Body,
    watch: Arc<Watch>,
    following: Following,
}

impl WatchedBody {
    /// Of an answer on this connection.
    pub fn new(body: s3s::Body, watch: Arc<Watch>, following: Following) -> WatchedBody {
        WatchedBody { body, watch, following }
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.watch.end_request();
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.following.send(frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
