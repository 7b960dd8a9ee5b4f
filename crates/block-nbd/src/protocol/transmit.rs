//! Transmission: requests, simple replies, chunks of structured replies.

use codec::cursor::Cursor;

use super::input::done;
use super::{ProtocolError, request_flags};
use crate::protocol::limits::{NBD_DATA_MAX, NBD_EXTENTS_MAX, NBD_STRING_MAX};

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const CHUNK_DONE: u16 = 1;

/// Commands of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Send bytes.
    Read,
    /// Take the bytes that follow the request.
    Write,
    /// End the connection when all before is answered.
    Disconnect,
    /// Make all that was answered before durable.
    Flush,
    /// These bytes are not needed any more.
    Trim,
    /// Get ready to read these bytes.
    Cache,
    /// Write zeroes.
    WriteZeroes,
    /// Report what is stored.
    BlockStatus,
}

const COMMANDS: [(u16, Command); 8] = [
    (0, Command::Read),
    (1, Command::Write),
    (2, Command::Disconnect),
    (3, Command::Flush),
    (4, Command::Trim),
    (5, Command::Cache),
    (6, Command::WriteZeroes),
    (7, Command::BlockStatus),
];

/// A request, without the data of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its command.
    pub command: Command,
    /// See [`request_flags`].
    pub flags: u16,
    /// The client's ID for it, given back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// A request that is well formed but refused: it is answered with an error, and the connection goes
/// on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestFlaw {
    /// The client's ID for it.
    pub cookie: u64,
    /// The error of the reply.
    pub errno: Errno,
    /// Bytes of data behind it that have to be read and dropped.
    pub skip: u32,
}

impl Request {
    /// Bytes of it.
    pub const LEN: usize = 28;

    /// From its bytes. The outer error ends the connection, the inner one is answered.
    pub fn decode(
        bytes: &[u8; Request::LEN],
    ) -> Result<Result<Request, RequestFlaw>, ProtocolError> {
        let mut input = Cursor(bytes);
        let magic = input.u32_be().expect("within the array");
        if magic != REQUEST_MAGIC {
            return Err(ProtocolError::Magic { what: "request", seen: u64::from(magic) });
        }
        let mut short = || input.u16_be().expect("within the array");
        let (flags, code) = (short(), short());
        let mut long = || input.u64_be().expect("within the array");
        let (cookie, offset) = (long(), long());
        let len = input.u32_be().expect("within the array");
        let Some(&(_, command)) = COMMANDS.iter().find(|(number, _)| *number == code) else {
            // An unknown command has no data behind it, by the specification.
            return Ok(Err(RequestFlaw { cookie, errno: Errno::Invalid, skip: 0 }));
        };
        let is_write = command == Command::Write;
        if len > NBD_DATA_MAX && (is_write || command == Command::Read) {
            if is_write && u64::from(len) > 4 * u64::from(NBD_DATA_MAX) {
                // Skipping so much data would let a client keep the connection busy at will.
                let (len, max) = (u64::from(len), u64::from(NBD_DATA_MAX));
                return Err(ProtocolError::TooLong { what: "a write", len, max });
            }
            let skip = if is_write { len } else { 0 };
            return Ok(Err(RequestFlaw { cookie, errno: Errno::Overflow, skip }));
        }
        if flags & !allowed(command) != 0 {
            let skip = if is_write { len } else { 0 };
            return Ok(Err(RequestFlaw { cookie, errno: Errno::Invalid, skip }));
        }
        Ok(Ok(Request { command, flags, cookie, offset, len }))
    }

    /// Its bytes; those of a write follow.
    pub fn encode(&self) -> [u8; Request::LEN] {
        let known = COMMANDS.iter().find(|(_, command)| *command == self.command);
        let code = known.expect("in the table").0;
        let mut out = [0; Request::LEN];
        out[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&code.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// True when it has a flag.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Flags that a command may have. FUA may stand with any: it means nothing to those that write
/// nothing.
fn allowed(command: Command) -> u16 {
    use request_flags::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
    match command {
        Command::Read => FUA | DF,
        Command::WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
        Command::BlockStatus => FUA | REQ_ONE,
        Command::Write | Command::Disconnect | Command::Flush | Command::Trim | Command::Cache => {
            FUA
        }
    }
}

/// Errors of replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// The export is read-only.
    NotPermitted,
    /// The storage has failed.
    Io,
    /// No memory for it now.
    NoMemory,
    /// The request is invalid.
    Invalid,
    /// No room, or past the end of a write.
    NoSpace,
    /// Too long.
    Overflow,
    /// Not understood, or not as fast as asked.
    NotSupported,
    /// The server is going down.
    Shutdown,
}

const ERRNOS: [(u32, Errno); 8] = [
    (1, Errno::NotPermitted),
    (5, Errno::Io),
    (12, Errno::NoMemory),
    (22, Errno::Invalid),
    (28, Errno::NoSpace),
    (75, Errno::Overflow),
    (95, Errno::NotSupported),
    (108, Errno::Shutdown),
];

impl Errno {
    /// Its number.
    pub fn get(self) -> u32 {
        ERRNOS.iter().find(|(_, errno)| *errno == self).expect("in the table").0
    }

    /// From its number; an unknown one counts as [`Errno::Invalid`], by the specification.
    pub fn new(raw: u32) -> Errno {
        ERRNOS.iter().find(|(number, _)| *number == raw).map_or(Errno::Invalid, |(_, e)| *e)
    }
}

/// A reply without chunks; the data of a read follows a successful one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimpleReply {
    /// The request's cookie.
    pub cookie: u64,
    /// The error; nothing after success.
    pub error: Option<Errno>,
}

impl SimpleReply {
    /// Bytes of it.
    pub const LEN: usize = 16;

    /// Its bytes.
    pub fn encode(&self) -> [u8; SimpleReply::LEN] {
        let mut out = [0; SimpleReply::LEN];
        out[0..4].copy_from_slice(&SIMPLE_MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.error.map_or(0, Errno::get).to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out
    }

    /// From its bytes.
    pub fn decode(bytes: &[u8; SimpleReply::LEN]) -> Result<SimpleReply, ProtocolError> {
        let mut input = Cursor(bytes);
        let mut word = || input.u32_be().expect("within the array");
        let (magic, error) = (word(), word());
        if magic != SIMPLE_MAGIC {
            return Err(ProtocolError::Magic { what: "simple reply", seen: u64::from(magic) });
        }
        let cookie = input.u64_be().expect("within the array");
        Ok(SimpleReply { cookie, error: (error != 0).then(|| Errno::new(error)) })
    }
}

/// A range of one status, in an answer to [`Command::BlockStatus`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusExtent {
    /// Bytes; not 0.
    pub len: u32,
    /// See [`super::allocation_flags`].
    pub flags: u32,
}

/// The content of a chunk of a structured reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// Nothing: the end of a reply.
    None,
    /// Bytes of a read.
    Data {
        /// Their offset in the export.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Zeroes of a read.
    Hole {
        /// Their offset in the export.
        offset: u64,
        /// Their number.
        len: u32,
    },
    /// Extents from the request's offset on.
    Status {
        /// Number of the metadata context.
        context: u32,
        /// The extents, at least one.
        extents: Vec<StatusExtent>,
    },
    /// The request has failed.
    Error {
        /// The error.
        errno: Errno,
        /// The error in words.
        message: String,
        /// Its offset, if known.
        offset: Option<u64>,
    },
}

const NONE: u16 = 0;
const DATA: u16 = 1;
const HOLE: u16 = 2;
const STATUS: u16 = 5;
const ERROR: u16 = 1 << 15 | 1;
const ERROR_OFFSET: u16 = 1 << 15 | 2;

fn put_head(out: &mut Vec<u8>, done: bool, code: u16, cookie: u64, len: u32) {
    out.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out.extend_from_slice(&if done { CHUNK_DONE } else { 0 }.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Appends the head of a [`Chunk::Data`] whose `len` bytes are sent from their own buffer.
pub fn encode_data_head(cookie: u64, done: bool, offset: u64, len: u32, out: &mut Vec<u8>) {
    put_head(out, done, DATA, cookie, len + 8);
    out.extend_from_slice(&offset.to_be_bytes());
}

impl Chunk {
    /// Appends the chunk of the reply to a request; `done` with the last.
    pub fn encode(&self, cookie: u64, done: bool, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        let code = match self {
            Chunk::None => NONE,
            Chunk::Data { offset, bytes } => {
                encode_data_head(cookie, done, *offset, bytes.len() as u32, out);
                return out.extend_from_slice(bytes);
            }
            Chunk::Hole { offset, len } => {
                data.extend_from_slice(&offset.to_be_bytes());
                data.extend_from_slice(&len.to_be_bytes());
                HOLE
            }
            Chunk::Status { context, extents } => {
                data.extend_from_slice(&context.to_be_bytes());
                for extent in extents {
                    data.extend_from_slice(&extent.len.to_be_bytes());
                    data.extend_from_slice(&extent.flags.to_be_bytes());
                }
                STATUS
            }
            Chunk::Error { errno, message, offset } => {
                data.extend_from_slice(&errno.get().to_be_bytes());
                data.extend_from_slice(&(message.len() as u16).to_be_bytes());
                data.extend_from_slice(message.as_bytes());
                match offset {
                    Some(offset) => {
                        data.extend_from_slice(&offset.to_be_bytes());
                        ERROR_OFFSET
                    }
                    None => ERROR,
                }
            }
        };
        put_head(out, done, code, cookie, data.len() as u32);
        out.extend_from_slice(&data);
    }

    fn decode(code: u16, mut data: Cursor<'_>) -> Option<Chunk> {
        let chunk = match code {
            NONE => Chunk::None,
            DATA => {
                let offset = data.u64_be()?;
                let bytes = data.0.to_vec();
                data.0 = &[];
                (!bytes.is_empty()).then_some(Chunk::Data { offset, bytes })?
            }
            HOLE => {
                let (offset, len) = (data.u64_be()?, data.u32_be()?);
                (len > 0).then_some(Chunk::Hole { offset, len })?
            }
            STATUS => {
                let context = data.u32_be()?;
                let mut extents = Vec::new();
                while !data.0.is_empty() {
                    let extent = StatusExtent { len: data.u32_be()?, flags: data.u32_be()? };
                    if extent.len == 0 || extents.len() == NBD_EXTENTS_MAX {
                        return None;
                    }
                    extents.push(extent);
                }
                (!extents.is_empty()).then_some(Chunk::Status { context, extents })?
            }
            ERROR | ERROR_OFFSET => {
                let errno = data.u32_be().filter(|&errno| errno != 0)?;
                let len = data.u16_be()? as usize;
                if len > NBD_STRING_MAX {
                    return None;
                }
                let message = std::str::from_utf8(data.take(len)?).ok()?.to_owned();
                let offset = if code == ERROR_OFFSET { Some(data.u64_be()?) } else { None };
                Chunk::Error { errno: Errno::new(errno), message, offset }
            }
            _ => return None,
        };
        done(data, chunk)
    }
}

/// A chunk at the front of `bytes`: its request's cookie, whether it is the last, its content,
/// and the bytes it takes; nothing when more must come first. For clients.
pub fn decode_chunk(bytes: &[u8]) -> Result<Option<(u64, bool, Chunk, usize)>, ProtocolError> {
    const HEAD_DATA: u32 = 8;
    let mut input = Cursor(bytes);
    let Some(magic) = input.u32_be() else { return Ok(None) };
    if magic != CHUNK_MAGIC {
        return Err(ProtocolError::Magic { what: "chunk", seen: u64::from(magic) });
    }
    let head = input.u16_be().zip(input.u16_be()).zip(input.u64_be()).zip(input.u32_be());
    let Some((((flags, code), cookie), len)) = head else { return Ok(None) };
    if len > NBD_DATA_MAX + HEAD_DATA {
        let (len, max) = (u64::from(len), u64::from(NBD_DATA_MAX + HEAD_DATA));
        return Err(ProtocolError::TooLong { what: "a chunk", len, max });
    }
    let Some(data) = input.take(len as usize) else { return Ok(None) };
    let chunk = Chunk::decode(code, Cursor(data)).filter(|_| flags & !CHUNK_DONE == 0);
    let chunk = chunk.ok_or(ProtocolError::Malformed { what: "a chunk" })?;
    let done = flags & CHUNK_DONE != 0;
    if chunk == Chunk::None && !done {
        return Err(ProtocolError::Malformed { what: "an empty chunk that is not the last" });
    }
    Ok(Some((cookie, done, chunk, bytes.len() - input.0.len())))
}
