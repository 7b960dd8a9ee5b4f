//! The receiving side of a link: few system calls, no copy of large payloads.
//!
//! Headers, bodies and small payloads come through a staging buffer, so that one read brings
//! many frames. A payload goes into its own aligned buffer: its staged part is copied there (60 to
//! 100 ns for 4 KiB), and a long rest is read straight into place.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::rc::Rc;

use runtime::{Buf, BufMut, BufPool, Env, Instant, ReadHalf};
use wire::frame::{BODY_MAX, FrameError, FrameKind, HEADER, Header, PART_MAX, PAYLOAD_MAX};

use crate::limits::Limits;

/// While parts of a large message are expected, a staged read takes no more than this, so that
/// their bytes are read straight into place.
const STAGED_READ_IN_PARTS: usize = 2 << 10;

/// Content of a message that comes in one frame: what is longer is split by its sender, since
/// `part_bytes` is at most this. So a frame whose rest does not come holds no more.
const WHOLE_MAX: usize = PART_MAX;

/// A message that has arrived whole.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Option<Buf>,
    /// There was no memory for its content, which is gone.
    pub(crate) lost: bool,
    /// Frames it came in.
    pub(crate) frames: u32,
    /// Bytes it took on the link.
    pub(crate) wire_len: usize,
}

/// Cause of the end of a link's input.
#[derive(Debug)]
pub(crate) enum ReceiveError {
    Io(io::Error),
    Ended,
    Frame(FrameError),
    /// A part that belongs to nothing, or a frame larger than this side allows now.
    Protocol(&'static str),
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::Io(error) => write!(f, "cannot receive: {error}"),
            ReceiveError::Ended => f.write_str("the peer closed the connection"),
            ReceiveError::Frame(error) => error.fmt(f),
            ReceiveError::Protocol(what) => write!(f, "the peer breaks the protocol: {what}"),
        }
    }
}

impl From<FrameError> for ReceiveError {
    fn from(error: FrameError) -> ReceiveError {
        ReceiveError::Frame(error)
    }
}

/// A split message of which parts are still to come.
struct Assembly {
    header: Header,
    body: Vec<u8>,
    body_got: usize,
    payload: Option<BufMut>,
    payload_got: usize,
    /// There was no room for its content: parts are skipped as they come.
    lost: bool,
    frames: u32,
    wire_len: usize,
    /// When its head or last part came.
    moved: Instant,
}

impl Assembly {
    fn is_complete(&self) -> bool {
        self.body_got == self.header.body_len as usize
            && self.payload_got == self.header.payload_len as usize
    }
}

/// Bytes of a message's content, split or not.
fn content_len(header: &Header) -> usize {
    header.body_len as usize + header.payload_len as usize
}

/// The split messages of a link of which parts are missing, together.
#[derive(Default)]
pub(crate) struct Unfinished {
    bytes: Cell<usize>,
    since: Cell<Option<Instant>>,
}

impl Unfinished {
    /// Bytes of the messages' bodies and payloads, whole: what they come to hold.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Since when nothing has come of the one that waits longest. None while none waits, and while
    /// this side does not read.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since.get()
    }
}

/// Makes room for messages of which parts are missing.
pub(crate) trait Room {
    /// Whether `len` bytes more may wait for their parts; frees some if need be.
    fn make_room(&self, len: usize) -> bool;
    /// More of them wait than before.
    fn note_held(&self);
}

/// Before the handshake is done.
impl Room for () {
    fn make_room(&self, _: usize) -> bool {
        false
    }

    fn note_held(&self) {}
}

pub(crate) struct Receiver {
    half: ReadHalf,
    env: Env,
    unfinished: Rc<Unfinished>,
    pool: BufPool,
    limits: Rc<Limits>,
    /// Absent only while a read is under way.
    staging: Option<BufMut>,
    /// Unread bytes are `staging[start..end]`.
    start: usize,
    end: usize,
    assemblies: [Option<Assembly>; 3],
    /// Parts of a large message are expected: read little into the staging buffer.
    narrow: bool,
    /// Parts taken in that were not yet reported to the sender.
    credits: u16,
    /// Largest frame content taken: small until the peer has proven itself.
    body_max: usize,
    payload_max: usize,
}

impl Receiver {
    /// A receiver that takes handshake frames only, until [`Receiver::open`]. Its staging buffer is of the reserve
    /// when the buffer budget is spent.
    pub(crate) fn new(
        half: ReadHalf,
        env: &Env,
        limits: &Rc<Limits>,
        reserve: Option<&BufPool>,
    ) -> Result<Receiver, runtime::OutOfMemory> {
        let pool = env.pool();
        let from_reserve = |refused| match reserve {
            Some(reserve) => reserve.alloc(limits.staging_bytes),
            None => Err(refused),
        };
        Ok(Receiver {
            half,
            env: env.clone(),
            unfinished: Rc::default(),
            pool: pool.clone(),
            limits: limits.clone(),
            staging: Some(pool.alloc(limits.staging_bytes).or_else(from_reserve)?),
            start: 0,
            end: 0,
            assemblies: [None, None, None],
            narrow: false,
            credits: 0,
            body_max: wire::handshake::REFUSE_MAX,
            payload_max: 0,
        })
    }

    /// Takes frames of any size from here on.
    pub(crate) fn open(&mut self) -> Rc<Unfinished> {
        (self.body_max, self.payload_max) = (BODY_MAX, PAYLOAD_MAX);
        self.unfinished.clone()
    }

    /// Nothing is read until [`Receiver::resume`]: no part can come.
    pub(crate) fn pause(&self) {
        self.unfinished.since.set(None);
    }

    /// Reads again.
    pub(crate) fn resume(&mut self) {
        let now = self.env.now();
        self.assemblies.iter_mut().flatten().for_each(|message| message.moved = now);
        self.note_unfinished();
    }

    fn note_unfinished(&mut self) {
        let waiting = || self.assemblies.iter().flatten();
        self.narrow = waiting().next().is_some();
        let held = waiting().filter(|message| !message.lost);
        self.unfinished.bytes.set(held.map(|message| content_len(&message.header)).sum());
        self.unfinished.since.set(waiting().map(|message| message.moved).min());
    }

    fn staged(&self) -> &[u8] {
        &self.staging.as_ref().expect("present between reads")[self.start..self.end]
    }

    /// Reads until at least `need` bytes are staged; `need` fits the staging buffer.
    async fn fill(&mut self, need: usize) -> Result<(), ReceiveError> {
        while self.end - self.start < need {
            let mut staging = self.staging.take().expect("present between reads");
            staging.resize(self.limits.staging_bytes);
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.start + need > staging.len() {
                staging.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.narrow {
                let missing = need - (self.end - self.start);
                let room = staging.len() - self.end;
                staging.resize(self.end + room.min(missing.max(STAGED_READ_IN_PARTS)));
            }
            let (count, staging) = self.half.read(staging, self.end).await;
            self.staging = Some(staging);
            match count {
                Ok(0) => return Err(ReceiveError::Ended),
                Ok(count) => self.end += count,
                Err(error) => return Err(ReceiveError::Io(error)),
            }
        }
        Ok(())
    }

    /// Parts taken in since the last call.
    pub(crate) fn take_credits(&mut self) -> u16 {
        std::mem::take(&mut self.credits)
    }

    /// The next message, or `None` when a part has come of one that is not yet whole.
    pub(crate) async fn next(&mut self, room: &impl Room) -> Result<Option<Inbound>, ReceiveError> {
        loop {
            self.fill(HEADER).await?;
            let header = Header::decode(self.staged())?;
            self.start += HEADER;
            if header.body_len as usize > self.body_max
                || header.payload_len as usize > self.payload_max
            {
                return Err(ReceiveError::Protocol("a frame before the handshake is too large"));
            }
            if header.split {
                self.start_assembly(header, room);
            } else if header.kind == FrameKind::Part {
                let finished = self.take_part(header).await?;
                self.credits += 1;
                return Ok(finished);
            } else if header.following() > WHOLE_MAX {
                return Err(ReceiveError::Protocol("a message this long comes in parts"));
            } else {
                return self.take_whole(header).await.map(Some);
            }
        }
    }

    async fn take_whole(&mut self, header: Header) -> Result<Inbound, ReceiveError> {
        let mut body = Vec::new();
        self.take_body(header.body_len as usize, &mut body).await?;
        let mut lost = false;
        let payload = match header.payload_len as usize {
            0 => None,
            len => match self.pool.alloc(len) {
                Ok(buf) => Some(self.take_payload(buf, 0, len).await?.freeze()),
                Err(_) => {
                    lost = true;
                    self.skip(len).await?;
                    None
                }
            },
        };
        if !lost {
            header.verify_content(&body, payload.as_deref().unwrap_or(&[]))?;
        }
        let wire_len = HEADER + header.following();
        Ok(Inbound { header, body, payload, lost, frames: 1, wire_len })
    }

    /// A new head replaces a message whose rest will not come: its caller has cancelled.
    fn start_assembly(&mut self, header: Header, room: &impl Room) {
        self.assemblies[header.priority as usize] = None;
        self.note_unfinished();
        room.note_held();
        let (len, mut payload) = (content_len(&header), None);
        let mut lost = len > 0 && !room.make_room(len);
        if header.payload_len > 0 && !lost {
            payload = self.pool.alloc(header.payload_len as usize).ok();
            lost = payload.is_none();
        }
        self.assemblies[header.priority as usize] = Some(Assembly {
            header,
            body: Vec::new(),
            body_got: 0,
            payload,
            payload_got: 0,
            lost,
            frames: 1,
            wire_len: HEADER,
            moved: self.env.now(),
        });
        self.note_unfinished();
        room.note_held();
    }

    async fn take_part(&mut self, part: Header) -> Result<Option<Inbound>, ReceiveError> {
        let class = part.priority as usize;
        let Some(mut message) =
            self.assemblies[class].take_if(|message| message.header.request == part.request)
        else {
            return Err(ReceiveError::Protocol("a part belongs to no message"));
        };
        let (body_len, payload_len) = (part.body_len as usize, part.payload_len as usize);
        message.frames += 1;
        message.wire_len += HEADER + part.following();
        let body_left = message.header.body_len as usize - message.body_got;
        let payload_left = message.header.payload_len as usize - message.payload_got;
        if body_len > body_left || payload_len > payload_left || (payload_len > 0 && body_left > 0)
        {
            return Err(ReceiveError::Protocol("a part is too long"));
        }
        let more = body_len + payload_len < body_left + payload_left;
        if message.lost {
            self.skip(part.following()).await?;
        } else if payload_len == 0 {
            let from = message.body_got;
            self.take_body(body_len, &mut message.body).await?;
            part.verify_content(&message.body[from..], &[])?;
        } else {
            let buf = message.payload.take().expect("there is one unless it is lost");
            let from = message.payload_got;
            let buf = self.take_payload(buf, from, payload_len).await?;
            part.verify_content(&[], &buf[from..from + payload_len])?;
            message.payload = Some(buf);
        }
        message.body_got += body_len;
        message.payload_got += payload_len;
        if more {
            message.moved = self.env.now();
            self.assemblies[class] = Some(message);
            self.note_unfinished();
            return Ok(None);
        }
        assert!(message.is_complete(), "every byte was counted");
        self.note_unfinished();
        let Assembly { mut header, body, payload, lost, frames, wire_len, .. } = message;
        header.split = false;
        let payload = payload.map(BufMut::freeze);
        Ok(Some(Inbound { header, body, payload, lost, frames, wire_len }))
    }

    /// Forgets a split message that its sender has cancelled.
    pub(crate) fn cancel(&mut self, request: u64) {
        for assembly in &mut self.assemblies {
            drop(assembly.take_if(|message| message.header.request == request));
        }
        self.note_unfinished();
    }

    /// Appends `len` bytes to `body`.
    async fn take_body(&mut self, len: usize, body: &mut Vec<u8>) -> Result<(), ReceiveError> {
        let mut left = len;
        body.reserve_exact(len);
        while left > 0 {
            self.fill(left.min(self.limits.staging_bytes)).await?;
            let count = left.min(self.end - self.start);
            body.extend_from_slice(&self.staged()[..count]);
            self.start += count;
            left -= count;
        }
        Ok(())
    }

    /// Fills `buf[from..from + len]`; the buffer is as long as that then.
    async fn take_payload(
        &mut self,
        mut buf: BufMut,
        from: usize,
        len: usize,
    ) -> Result<BufMut, ReceiveError> {
        let to = from + len;
        buf.resize(to);
        let mut at = from;
        while at < to {
            let left = to - at;
            let staged = left.min(self.end - self.start);
            buf[at..at + staged].copy_from_slice(&self.staged()[..staged]);
            self.start += staged;
            at += staged;
            let left = to - at;
            if left == 0 {
                break;
            }
            if left <= self.limits.staged_tail_max {
                self.fill(left).await?;
                continue;
            }
            let (count, filled) = self.half.read(buf, at).await;
            buf = filled;
            match count {
                Ok(0) => return Err(ReceiveError::Ended),
                Ok(count) => at += count,
                Err(error) => return Err(ReceiveError::Io(error)),
            }
        }
        Ok(buf)
    }

    async fn skip(&mut self, len: usize) -> Result<(), ReceiveError> {
        let mut left = len;
        while left > 0 {
            self.fill(1).await?;
            let count = left.min(self.end - self.start);
            self.start += count;
            left -= count;
        }
        Ok(())
    }
}
