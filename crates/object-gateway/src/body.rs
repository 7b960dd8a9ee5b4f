//! [`GuardedBody`]: a request's body as s3s reads it. Memory is claimed before s3s gets the first
//! byte, which is after signature and access were checked; a body that stalls ends; its framing is
//! checked, and the digests of documents, which s3s does not check.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{EXPECT, HeaderMap};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use object_proto::ChecksumKind;
use tokio::time::{Instant, Sleep};

use crate::budget::{Budget, Claim};
use crate::chunked::Scanner;
use crate::context::RequestContext;
use crate::digest::{Digest, Expected};
use crate::documents;
use crate::head::{BodyFacts, Framing};
use crate::limits::{DRAIN_MAX, DRAIN_TIME, PUT_BUFFER, XML_MAX};
use crate::payload::Payload;
use crate::reply::Refusal;
use crate::requests::Note;

/// Bytes of a signed chunk that need no claim of their own: what clients send, the SDK for Java 128 KiB.
const SMALL_CHUNK: usize = 128 << 10;

/// The body ended before its time; the cause is in the request's context.
#[derive(Debug)]
pub struct BodyFailed;

impl std::fmt::Display for BodyFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the request's body failed")
    }
}

impl std::error::Error for BodyFailed {}

/// Times that a body is held to.
#[derive(Clone, Copy, Debug)]
pub struct BodyTimes {
    /// Without a byte.
    pub stall: Duration,
    /// For its share of memory.
    pub claim: Duration,
}

type Claiming = Pin<Box<dyn Future<Output = Option<Claim>> + Send>>;

/// A request's body.
pub struct GuardedBody {
    /// There until this is dropped.
    incoming: Option<Incoming>,
    facts: BodyFacts,
    headers: HeaderMap,
    context: Arc<RequestContext>,
    note: Arc<Note>,
    budget: Budget,
    times: BodyTimes,
    started: bool,
    ended: bool,
    claiming: Option<Claiming>,
    claims: Vec<Claim>,
    /// Bytes of them.
    claimed: usize,
    /// Bytes of the content that are in memory at once, apart from those of a signed chunk.
    window: usize,
    scanner: Option<Scanner>,
    document: Option<Document>,
    pending: VecDeque<Bytes>,
    stall: Pin<Box<Sleep>>,
}

impl GuardedBody {
    /// The body of a request with these headers.
    pub fn new(
        incoming: Incoming,
        facts: BodyFacts,
        headers: HeaderMap,
        (context, note): (Arc<RequestContext>, Arc<Note>),
        budget: Budget,
        times: BodyTimes,
    ) -> GuardedBody {
        let scanner = match facts.framing {
            Framing::Plain => None,
            Framing::Chunked { signed, len } => Some(Scanner::new(signed, len)),
            Framing::Undecoded { len } => Some(Scanner::decoding(len)),
        };
        GuardedBody {
            incoming: Some(incoming),
            facts,
            headers,
            context,
            note,
            budget,
            times,
            started: false,
            ended: false,
            claiming: None,
            claims: Vec::new(),
            claimed: 0,
            window: 0,
            scanner,
            document: None,
            pending: VecDeque::new(),
            stall: Box::pin(tokio::time::sleep(times.stall)),
        }
    }

    fn restart_stall(&mut self) {
        let deadline = Instant::now() + self.times.stall;
        self.stall.as_mut().reset(deadline);
    }

    fn start(&mut self) -> Result<(), Refusal> {
        self.started = true;
        self.restart_stall();
        let len = self.facts.content_len().unwrap_or(u64::MAX);
        let is_content = self.context.is_content();
        if !is_content {
            if len > XML_MAX as u64 {
                return Err(Refusal::new("MaxMessageLengthExceeded", "Your request was too big."));
            }
            if self.facts.framing != Framing::Plain {
                let message = "Only an object or a part is sent in aws-chunked.";
                return Err(Refusal::new("InvalidRequest", message));
            }
            self.document = Some(Document::new(&self.headers, len)?);
        }
        let window = if is_content { PUT_BUFFER } else { XML_MAX };
        self.window = usize::try_from(len).unwrap_or(usize::MAX).min(window);
        // Signed chunks are claimed with the line of the first one: of bodies that claim twice, each could
        // wait for what another one has.
        if !matches!(self.facts.framing, Framing::Chunked { signed: true, .. }) {
            self.claim(self.window);
        }
        Ok(())
    }

    /// Claims so many bytes in all, or all that there are: a body does not wait for its own claims.
    fn claim(&mut self, wanted: usize) {
        let wanted = wanted.min(self.budget.total());
        let more = wanted.saturating_sub(self.claimed);
        if more == 0 {
            return;
        }
        self.claimed = wanted;
        let (budget, time) = (self.budget.clone(), self.times.claim);
        self.claiming = Some(Box::pin(async move { budget.claim(more, time).await }));
    }

    fn receive(&mut self, data: Bytes) -> Result<(), Refusal> {
        self.restart_stall();
        self.note.receive(data.len());
        if let Some(document) = &mut self.document {
            self.pending.extend(document.receive(&data)?);
            return Ok(());
        }
        let Some(scanner) = &mut self.scanner else {
            self.pending.push_back(data);
            return Ok(());
        };
        scanner.feed(data, &mut self.pending)?;
        let held = scanner.held();
        if held > 0 {
            // Of the chunk s3s gets nothing before this is there.
            self.claim(self.window + held.saturating_sub(SMALL_CHUNK));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Refusal> {
        self.ended = true;
        let Some(scanner) = &self.scanner else { return Ok(()) };
        scanner.end()?;
        if let Framing::Undecoded { .. } = self.facts.framing {
            self.context.end_with(scanner.trailers()?);
        }
        Ok(())
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refusal>>> {
        loop {
            if let Some(claiming) = &mut self.claiming {
                let claim = ready!(claiming.as_mut().poll(cx));
                self.claiming = None;
                match claim {
                    Some(claim) => self.claims.push(claim),
                    None => return Poll::Ready(Some(Err(busy()))),
                }
                self.restart_stall();
            }
            if !self.started {
                self.start()?;
                continue;
            }
            if let Some(data) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(data)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
            if !incoming.is_end_stream() {
                self.context.ask();
            }
            match Pin::new(incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers of HTTP mean nothing here.
                    if let Ok(data) = frame.into_data() {
                        self.receive(data)?;
                    }
                }
                Poll::Ready(Some(Err(_))) => {
                    return Poll::Ready(Some(Err(cut())));
                }
                Poll::Ready(None) => self.end()?,
                Poll::Pending => {
                    ready!(self.stall.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(stalled())));
                }
            }
        }
    }
}

impl Drop for GuardedBody {
    fn drop(&mut self) {
        // A client that waits for leave to send its body does not need to be read from.
        let waits = !self.started && self.headers.contains_key(EXPECT);
        if let Some(incoming) = self.incoming.take()
            && !waits
        {
            drain(incoming);
        }
    }
}

/// Reads the rest of a body that is not used, within bounds. A connection that is closed before its
/// client has sent all is reset, and the client sees that instead of the answer.
pub fn drain(mut incoming: Incoming) {
    // There is none when the gateway's thread ends.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if incoming.is_end_stream() {
        return;
    }
    runtime.spawn(async move {
        let mut left = DRAIN_MAX;
        let all = poll_fn(|cx| {
            loop {
                let frame = ready!(Pin::new(&mut incoming).poll_frame(cx));
                let Some(Ok(frame)) = frame else { return Poll::Ready(()) };
                let len = frame.data_ref().map_or(0, Bytes::len);
                let Some(rest) = left.checked_sub(len) else { return Poll::Ready(()) };
                left = rest;
            }
        });
        let _ = tokio::time::timeout(DRAIN_TIME, all).await; // The rest is the client's loss.
    });
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = BodyFailed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFailed>>> {
        let data = ready!(self.poll_data(cx));
        Poll::Ready(data.map(|data| {
            data.map(Frame::data).map_err(|refusal| {
                self.pending.clear();
                self.ended = true;
                self.context.fail(refusal);
                BodyFailed
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.facts.sent_len == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match (self.facts.framing, self.facts.sent_len) {
            (Framing::Plain, Some(len)) => SizeHint::with_exact(len),
            _ => SizeHint::new(),
        }
    }
}

/// A client went away before it had sent all.
pub fn cut() -> Refusal {
    Refusal::new("IncompleteBody", "The body ended before its last byte.")
}

/// A client sent nothing for too long.
pub fn stalled() -> Refusal {
    let message = "Your socket connection to the server was not read from or written to within \
                   the timeout period. Idle connections will be closed.";
    Refusal::new("RequestTimeout", message)
}

/// There is no memory for the body now.
pub fn busy() -> Refusal {
    Refusal::new("SlowDown", "Please reduce your request rate: the gateway's memory is in use.")
}

/// Digests of a document, which s3s reads as a whole and hands to its parser unchecked.
struct Document {
    left: u64,
    /// Bytes of `<!` that were just seen.
    mark: u8,
    expected: Expected,
    digest: Option<Digest>,
    payload: Option<Payload>,
    /// What has come of it.
    bytes: Vec<u8>,
}

impl Document {
    fn new(headers: &HeaderMap, len: u64) -> Result<Document, Refusal> {
        let expected = Expected::of(headers)?;
        let payload = Payload::of(headers, len);
        let digest = expected
            .is_given()
            .then(|| Digest::new(expected.kind().unwrap_or(ChecksumKind::Crc32)));
        Ok(Document { left: len, mark: 0, expected, digest, payload, bytes: Vec::new() })
    }

    /// Takes the next bytes. With the last ones it compares, as s3s may not ask for the end, and gives out the
    /// whole: s3s would keep each packet with the buffer of the connection that it came in.
    fn receive(&mut self, data: &[u8]) -> Result<Option<Bytes>, Refusal> {
        if self.bytes.is_empty() {
            // As claimed: no more than `XML_MAX`.
            self.bytes.reserve_exact(usize::try_from(self.left).unwrap_or(XML_MAX).min(XML_MAX));
        }
        self.left = self.left.saturating_sub(data.len() as u64);
        data.iter().try_for_each(|&byte| self.check_mark(byte))?;
        self.bytes.extend_from_slice(data);
        if let Some(payload) = &mut self.payload {
            payload.receive(data)?;
        }
        if let Some(digest) = &mut self.digest {
            digest.update(data);
        }
        if self.left > 0 {
            return Ok(None);
        }
        if let Some(digest) = self.digest.take() {
            self.expected.check(&digest.finish())?;
        }
        documents::check(&self.bytes)?;
        Ok(Some(Bytes::from(std::mem::take(&mut self.bytes))))
    }
}

impl Document {
    /// s3s passes over CDATA, so that a key would be cut to another one, and over the definitions
    /// of entities: what begins with `<!` and is no comment is refused.
    fn check_mark(&mut self, byte: u8) -> Result<(), Refusal> {
        self.mark = match (self.mark, byte) {
            (2, b'-') => 0,
            (2, _) => {
                let message = "Neither CDATA nor a document type is accepted in XML here.";
                return Err(Refusal::new("MalformedXML", message));
            }
            (1, b'!') => 2,
            (_, b'<') => 1,
            _ => 0,
        };
        Ok(())
    }
}
