//! Transmission: receives requests, performs them on the device, answers them.

use std::collections::VecDeque;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::contract::{AllocationExtent, Clear};
use block_volume::geometry::Extent;
use block_volume::limits::IO_MAX;
use runtime::sync::{OwnedSemaphorePermit, mpsc};
use runtime::{Buf, BufPool, Class, JoinHandle};

use super::input::{Input, InputEnd};
use super::negotiate::ALLOCATION_ID;
use super::output::{AnswerPart, Message};
use super::shared::{Connection, acquire};
use crate::protocol::limits::NBD_EXTENTS_MAX;
use crate::protocol::{
    Chunk, Command, Errno, Request, SimpleReply, StatusExtent, allocation_flags, encode_data_head,
    request_flags,
};

/// Permits of a request, from its connection's bounds.
type RequestPermits = Vec<OwnedSemaphorePermit>;

/// Reason for an error in an answer.
struct Refusal {
    errno: Errno,
    why: String,
}

impl Refusal {
    fn new(errno: Errno, why: &str) -> Refusal {
        Refusal { errno, why: why.to_owned() }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        let errno = match fault.kind {
            Kind::Full => Errno::NoSpace,
            Kind::Invalid => Errno::Invalid,
            Kind::Fenced => Errno::Shutdown,
            _ => Errno::Io,
        };
        Refusal { errno, why: fault.message }
    }
}

/// Serves requests until the client disconnects.
pub(super) async fn run(connection: Rc<Connection>, mut input: Input) -> InputEnd {
    loop {
        match next(&connection, &mut input).await {
            Ok(()) => {}
            Err(ended) => return ended,
        }
    }
}

async fn next(connection: &Rc<Connection>, input: &mut Input) -> Result<(), InputEnd> {
    let head = input.array().await?;
    let mut held = vec![acquire(&connection.requests, 1).await];
    let request = match Request::decode(&head)? {
        Ok(request) => request,
        Err(flaw) => {
            input.skip(flaw.skip as usize).await?;
            let refusal = Refusal::new(flaw.errno, "the request cannot be granted in this form");
            connection.fail(flaw.cookie, refusal, held).await;
            return Ok(());
        }
    };
    if request.command == Command::Disconnect {
        return Err(InputEnd::Closed);
    }
    if let Err(refusal) = connection.check(&request) {
        if request.command == Command::Write {
            input.skip(request.len as usize).await?;
        }
        connection.fail(request.cookie, refusal, held).await;
        return Ok(());
    }
    let len = request.len as usize;
    let moves_data = matches!(request.command, Command::Read | Command::Write);
    if moves_data && len > connection.small_max() {
        // The next request is not decoded before this one has begun.
        held.push(acquire(&connection.large, 1).await);
        if request.command == Command::Write {
            return write_large(connection, input, &request, held).await;
        }
        let work = read_large(connection.clone(), request, held);
        connection.env.spawn(Class::Foreground, "nbd: large read", work);
        return Ok(());
    }
    if moves_data {
        held.push(acquire(&connection.room, BufPool::taken(len)).await);
    }
    let data = match request.command {
        Command::Write => Some(input.data(len).await?),
        _ => None,
    };
    let work = answer(connection.clone(), request, data, held);
    connection.env.spawn(Class::Foreground, "nbd: request", work);
    Ok(())
}

async fn answer(
    connection: Rc<Connection>,
    request: Request,
    data: Option<Buf>,
    held: RequestPermits,
) {
    let env = &connection.env;
    let name = match request.command {
        Command::Read => "nbd read",
        Command::Write => "nbd write",
        Command::Trim => "nbd trim",
        Command::WriteZeroes => "nbd zeroes",
        Command::BlockStatus => "nbd status",
        Command::Flush | Command::Cache | Command::Disconnect => "nbd flush",
    };
    let work = connection.serve(&request, data);
    match env.operation(name, |fault: &Fault| fault.kind, work).await {
        Ok((head, data)) => connection.succeed(&request, Message::new(head, data, held)).await,
        Err(fault) => connection.fail(request.cookie, fault.into(), held).await,
    }
}

/// A write that is larger than a device takes: its pieces are received while others are written.
async fn write_large(
    connection: &Rc<Connection>,
    input: &mut Input,
    request: &Request,
    held: RequestPermits,
) -> Result<(), InputEnd> {
    let mut under_way: VecDeque<JoinHandle<Result<(), Fault>>> = VecDeque::new();
    let mut result = Ok(());
    for piece in pieces(request, connection.small_max()) {
        let room = acquire(&connection.pieces, 1).await;
        let data = input.data(piece.len as usize).await?;
        let this = connection.clone();
        let write = async move {
            let _room = room;
            this.device.write(piece.offset, data).await
        };
        under_way.push_back(connection.env.spawn(Class::Foreground, "nbd: piece", write));
        while under_way.front().is_some_and(JoinHandle::is_finished) {
            let ended = under_way.pop_front().expect("looked at");
            result = result.and(ended.await.unwrap_or_else(|_| Err(stopping())));
        }
    }
    for ended in under_way {
        result = result.and(ended.await.unwrap_or_else(|_| Err(stopping())));
    }
    match result {
        Ok(()) => {
            let head = SimpleReply { cookie: request.cookie, error: None }.encode().to_vec();
            connection.succeed(request, Message::new(head, None, held)).await;
        }
        Err(fault) => connection.fail(request.cookie, fault.into(), held).await,
    }
    Ok(())
}

fn stopping() -> Fault {
    Fault::new(Kind::Unknown, "the front end is going down")
}

type Ahead = VecDeque<(Extent, JoinHandle<(Result<Buf, Fault>, OwnedSemaphorePermit)>)>;

/// A read that is larger than a device gives: one piece is read while another is sent.
async fn read_large(connection: Rc<Connection>, request: Request, held: RequestPermits) {
    let mut todo = pieces(&request, connection.small_max()).peekable();
    let mut ahead = Ahead::new();
    let whole = !connection.structured || request.has(request_flags::DF);
    let (mut held, mut stream) = (Some(held), None::<mpsc::Sender<AnswerPart>>);
    loop {
        while ahead.len() < 2
            && let Some(piece) = todo.next()
        {
            ahead.push_back((piece, connection.read_ahead(piece).await));
        }
        let Some((piece, read)) = ahead.pop_front() else { break };
        let Ok((read, room)) = read.await else { return };
        let data = match read {
            Ok(data) => data,
            // A reply that was begun as a whole can only end with the connection.
            Err(_) if stream.is_some() => return,
            Err(fault) => {
                let held = held.take().expect("kept for the last answer");
                return connection.fail(request.cookie, fault.into(), held).await;
            }
        };
        if let Some(stream) = &stream {
            if stream.send((data, room)).await.is_err() {
                return;
            }
            continue;
        }
        let last = ahead.is_empty() && todo.peek().is_none();
        if !whole {
            let mut head = Vec::new();
            encode_data_head(request.cookie, last, piece.offset, piece.len as u32, &mut head);
            let mut room = vec![room];
            if last {
                room.extend(held.take().expect("taken with the last piece"));
            }
            if connection.outbox.send(Message::new(head, Some(data), room)).await.is_err() {
                return;
            }
            continue;
        }
        let (sender, receiver) = mpsc::channel(1);
        let head = connection.read_head(&request);
        let left = u64::from(request.len) - piece.len;
        let mut held = held.take().expect("taken with the first piece");
        held.push(room);
        let message = Message { head, data: Some(data), rest: Some((receiver, left)), held };
        if connection.outbox.send(message).await.is_err() {
            return;
        }
        stream = Some(sender);
    }
    connection.inner.count(|stats| {
        stats.done += 1;
        stats.read_bytes += u64::from(request.len);
    });
}

/// The parts of a large request, in order, without gaps, cut at multiples of `most`.
fn pieces(request: &Request, most: usize) -> impl Iterator<Item = Extent> + use<> {
    let (most, end) = (most as u64, request.offset + u64::from(request.len));
    let mut at = request.offset;
    std::iter::from_fn(move || {
        let len = (most - at % most).min(end - at);
        let piece = Extent { offset: at, len };
        at += len;
        (len > 0).then_some(piece)
    })
}

impl Connection {
    /// Bytes of requests that are served in one piece.
    fn small_max(&self) -> usize {
        // A buffer takes a power of two of the pool.
        IO_MAX.min(1 << self.inner.limits.connection_bytes_max.ilog2())
    }

    /// Refuses requests that no device can grant.
    fn check(&self, request: &Request) -> Result<(), Refusal> {
        use Command::{BlockStatus, Cache, Disconnect, Flush, Read, Trim, Write, WriteZeroes};
        let command = request.command;
        if matches!(command, Flush | Disconnect) {
            return Ok(());
        }
        if self.read_only && matches!(command, Write | Trim | WriteZeroes) {
            return Err(Refusal::new(Errno::NotPermitted, "the volume is open for reading only"));
        }
        if request.len == 0 {
            return Err(Refusal::new(Errno::Invalid, "a request of no bytes"));
        }
        let end = request.offset.checked_add(u64::from(request.len));
        if end.is_none_or(|end| end > self.bytes) {
            let errno = match command {
                Write | WriteZeroes => Errno::NoSpace,
                Read | Trim | Cache | BlockStatus | Flush | Disconnect => Errno::Invalid,
            };
            let Request { len, offset, .. } = request;
            let why = format!("{len} bytes at {offset} of a volume of {}", self.bytes);
            return Err(Refusal { errno, why });
        }
        if command == BlockStatus && !self.allocation {
            return Err(Refusal::new(Errno::Invalid, "no metadata context was chosen"));
        }
        Ok(())
    }

    /// Performs a request; returns the answer's head, and its data.
    async fn serve(
        &self,
        request: &Request,
        data: Option<Buf>,
    ) -> Result<(Vec<u8>, Option<Buf>), Fault> {
        let extent = Extent { offset: request.offset, len: u64::from(request.len) };
        let device = &self.device;
        match request.command {
            Command::Read => {
                let data = device.read(extent).await?;
                assert_eq!(data.len() as u64, extent.len, "a device gives what it is asked for");
                return Ok((self.read_head(request), Some(data)));
            }
            Command::Write => {
                device.write(extent.offset, data.expect("came with the request")).await?;
            }
            Command::Trim => device.clear(extent, Clear::Trim).await?,
            // A record of zeroes takes no room and no time, so both flags are granted at once.
            Command::WriteZeroes if request.has(request_flags::NO_HOLE) => {
                device.clear(extent, Clear::Zero).await?;
            }
            Command::WriteZeroes => device.clear(extent, Clear::Trim).await?,
            Command::BlockStatus => return self.status(request, extent).await,
            // Answered changes are durable.
            Command::Flush | Command::Cache | Command::Disconnect => {}
        }
        let reply = SimpleReply { cookie: request.cookie, error: None };
        Ok((reply.encode().to_vec(), None))
    }

    async fn status(
        &self,
        request: &Request,
        extent: Extent,
    ) -> Result<(Vec<u8>, Option<Buf>), Fault> {
        let one = request.has(request_flags::REQ_ONE);
        let most = if one { 1 } else { NBD_EXTENTS_MAX };
        let found = self.device.pieces(extent, most).await?;
        let mut extents = Vec::with_capacity(found.len());
        let mut left = extent.len;
        for AllocationExtent { len, hole, zero } in found.into_iter().take(most) {
            let len = len.min(left);
            left -= len;
            let flag = |on: bool, flag: u32| if on { flag } else { 0 };
            let flags = flag(hole, allocation_flags::HOLE) | flag(zero, allocation_flags::ZERO);
            let len = u32::try_from(len).expect("no longer than the request");
            if len > 0 {
                extents.push(StatusExtent { len, flags });
            }
        }
        assert!(!extents.is_empty(), "a device returns at least one piece");
        let mut head = Vec::new();
        let chunk = Chunk::Status { context: ALLOCATION_ID, extents };
        chunk.encode(request.cookie, true, &mut head);
        Ok((head, None))
    }

    /// The head of a read's answer, whose data follows as a whole.
    fn read_head(&self, request: &Request) -> Vec<u8> {
        if !self.structured {
            return SimpleReply { cookie: request.cookie, error: None }.encode().to_vec();
        }
        let mut head = Vec::new();
        encode_data_head(request.cookie, true, request.offset, request.len, &mut head);
        head
    }

    /// Begins to read a piece, as soon as there is room.
    async fn read_ahead(
        self: &Rc<Connection>,
        piece: Extent,
    ) -> JoinHandle<(Result<Buf, Fault>, OwnedSemaphorePermit)> {
        let room = acquire(&self.pieces, 1).await;
        let this = self.clone();
        self.env.spawn(Class::Foreground, "nbd: piece", async move {
            (this.device.read(piece).await, room)
        })
    }

    async fn succeed(&self, request: &Request, message: Message) {
        self.inner.count(|stats| {
            stats.done += 1;
            match request.command {
                Command::Read => stats.read_bytes += u64::from(request.len),
                Command::Write => stats.written_bytes += u64::from(request.len),
                _ => {}
            }
        });
        // Fails when the client has gone.
        let _ = self.outbox.send(message).await;
    }

    async fn fail(&self, cookie: u64, refusal: Refusal, held: RequestPermits) {
        let Refusal { errno, why } = refusal;
        self.inner.count(|stats| stats.failed += 1);
        let head = if self.structured {
            let mut head = Vec::new();
            let message = why.chars().take(512).collect();
            Chunk::Error { errno, message, offset: None }.encode(cookie, true, &mut head);
            head
        } else {
            SimpleReply { cookie, error: Some(errno) }.encode().to_vec()
        };
        let _ = self.outbox.send(Message::new(head, None, held)).await;
    }
}
