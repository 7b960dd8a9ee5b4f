//! Frames: the form of every message between processes (C22, design D5).
//!
//! A frame is a 64-byte header, then `body_len` bytes of body, then `payload_len` bytes of
//! payload. All numbers are little-endian. The byte table is in `docs/formats/wire.md`.

use std::fmt;

use base::TraceId;
use codec::{crc32c, crc32c_extend};

use crate::token::Token;

/// "CRTN", the first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"CRTN";
/// Bytes of a header.
pub const HEADER: usize = 64;
/// Oldest frame version that this build supports.
pub const VERSION_MIN: u8 = 1;
/// Newest frame version that this build supports.
pub const VERSION_MAX: u8 = 1;
/// Version in the header of the handshake's frames, whatever is agreed on: their layout is fixed.
pub const VERSION_HANDSHAKE: u8 = 1;
/// Bytes of a body at most: the largest control message (a page of a listing, a heartbeat of
/// 10,000 replicas of 100 bytes).
pub const BODY_MAX: usize = 1 << 20;
/// Bytes of a payload at most: the largest buffer class; four times the largest append.
pub const PAYLOAD_MAX: usize = 4 << 20;
/// Bytes of one part of a split message at most. At 1 GB/s a small frame waits 0.26 ms for one.
pub const PART_MAX: usize = 256 << 10;
const _: () = assert!(PART_MAX <= BODY_MAX && BODY_MAX <= PAYLOAD_MAX);
const _: () = assert!(base::limits::APPEND_SECTORS_MAX * base::limits::SECTOR <= PAYLOAD_MAX);

/// Status of a response to a control or consensus request: it failed, and the body is a
/// [`ControlError`](crate::control::ControlError).
pub const STATUS_ERROR: u16 = 1;
/// Status of a response: first of the range that belongs to the transport itself.
/// `docs/formats/wire.md` lists the ranges; a code is never given another meaning.
pub const STATUS_TRANSPORT: u16 = 0xff00;
/// A bound of the receiver is reached; nothing happened.
pub const STATUS_BUSY: u16 = 0xff01;
/// The handler gave no answer; the request may have taken effect.
pub const STATUS_DROPPED: u16 = 0xff02;
/// The deadline had passed when the request was read; nothing happened.
pub const STATUS_EXPIRED: u16 = 0xff03;

const VERSION_AT: usize = 4;
const KIND_AT: usize = 5;
const SERVICE_AT: usize = 6;
const FLAGS_AT: usize = 7;
const OP_AT: usize = 8;
const RESERVED_AT: usize = 10;
const BODY_LEN_AT: usize = 12;
const PAYLOAD_LEN_AT: usize = 16;
const DEADLINE_AT: usize = 20;
const REQUEST_AT: usize = 24;
const TRACE_AT: usize = 32;
const TOKEN_AT: usize = 40;
const BODY_CRC_AT: usize = 56;
const HEADER_CRC_AT: usize = 60;
const _: () = assert!(HEADER_CRC_AT + 4 == HEADER);

const FLAG_PRIORITY: u8 = 0b0011;
const FLAG_SECTORS: u8 = 0b0100;
const FLAG_SPLIT: u8 = 0b1000;

/// Kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// Name, versions and a fresh nonce of the sender.
    Hello = 1,
    /// Proof of the cluster key.
    Proof = 2,
    /// The accepting side is content: requests may flow.
    Welcome = 3,
    /// No link: the body says why, in words.
    Refuse = 4,
    /// A call.
    Request = 5,
    /// Its answer.
    Response = 6,
    /// The next bytes of the split message of this priority.
    Part = 7,
    /// The caller no longer waits for this request.
    Cancel = 8,
    /// Are you there?
    Ping = 9,
    /// Yes.
    Pong = 10,
    /// `op` more parts have been taken in: so many more may be sent.
    Credit = 11,
}

impl FrameKind {
    fn decode(raw: u8) -> Option<FrameKind> {
        Some(match raw {
            1 => FrameKind::Hello,
            2 => FrameKind::Proof,
            3 => FrameKind::Welcome,
            4 => FrameKind::Refuse,
            5 => FrameKind::Request,
            6 => FrameKind::Response,
            7 => FrameKind::Part,
            8 => FrameKind::Cancel,
            9 => FrameKind::Ping,
            10 => FrameKind::Pong,
            11 => FrameKind::Credit,
            _ => return None,
        })
    }

    fn has_service(self) -> bool {
        matches!(self, FrameKind::Request | FrameKind::Response)
    }

    fn is_handshake(self) -> bool {
        matches!(self, FrameKind::Hello | FrameKind::Proof | FrameKind::Welcome | FrameKind::Refuse)
    }

    fn may_have_payload(self) -> bool {
        matches!(self, FrameKind::Request | FrameKind::Response | FrameKind::Part)
    }
}

/// The service of a message: the meaning of `op` and the body. The number is open: the core's
/// services have theirs here, any other service's crate has its own (`docs/formats/services.md`). A
/// frame of a number that a process does not serve reaches its handler, which refuses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Service(u8);

impl Service {
    /// Protobuf messages of the control path.
    pub const CONTROL: Service = Service(1);
    /// Raw layouts of the data path; payloads are whole sectors.
    pub const DATA: Service = Service(2);
    /// Consensus among masters.
    pub const RAFT: Service = Service(3);

    /// The highest number.
    pub const MAX: u8 = 31;

    /// The service of a number: 1 to [`Service::MAX`].
    pub const fn new(number: u8) -> Option<Service> {
        match number {
            1..=Service::MAX => Some(Service(number)),
            _ => None,
        }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// Order of frames when a link has a choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Priority {
    /// Elections, leases, heartbeats, fences.
    Control = 0,
    /// A user waits for it.
    Foreground = 1,
    /// Repair, scrub, collection.
    Background = 2,
}

impl Priority {
    /// All of them, most urgent first.
    pub const ALL: [Priority; 3] = [Priority::Control, Priority::Foreground, Priority::Background];

    fn decode(raw: u8) -> Option<Priority> {
        Priority::ALL.get(usize::from(raw)).copied()
    }
}

/// The fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version of this layout, as agreed at connect.
    pub version: u8,
    /// Its kind.
    pub kind: FrameKind,
    /// Set for requests and responses, absent otherwise.
    pub service: Option<Service>,
    /// Queue it travelled in; of a part, the queue of its message.
    pub priority: Priority,
    /// The payload is whole sectors, which carry their own CRCs: `body_crc` leaves them out.
    pub sectors: bool,
    /// The lengths are totals; no byte follows, the parts bring them.
    pub split: bool,
    /// Operation of a request, status of a response.
    pub op: u16,
    /// Bytes of body.
    pub body_len: u32,
    /// Bytes of payload.
    pub payload_len: u32,
    /// Microseconds that a request's caller still waits; saturates at 71 minutes.
    pub deadline_us: u32,
    /// Pairs request, response and cancel on one link.
    pub request: u64,
    /// Follows the operation across processes.
    pub trace: TraceId,
    /// Right to do it; zero when none is given.
    pub token: Token,
    /// CRC32C of the body and, unless `sectors`, of the payload behind it. 0 for a split head.
    pub body_crc: u32,
}

/// Cause for which a frame is refused. The link it came on is not used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// Fewer than 64 bytes.
    Short(usize),
    /// It does not start with [`MAGIC`]: the peer is no Craton process, or the stream is broken.
    Magic,
    /// The header's CRC does not match.
    HeaderCrc,
    /// The CRC of body or payload does not match.
    BodyCrc,
    /// A version that this build does not support.
    Version(u8),
    /// A field has a value that no sender produces.
    Field(&'static str),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Short(len) => write!(f, "{len} bytes are no frame header of {HEADER}"),
            FrameError::Magic => f.write_str(
                "the bytes are no frame: the peer is no Craton process (check the address and port)",
            ),
            FrameError::HeaderCrc => f.write_str("a frame header's checksum does not match"),
            FrameError::BodyCrc => f.write_str("a frame body's checksum does not match"),
            FrameError::Version(version) => write!(
                f,
                "frame version {version} is not spoken here ({VERSION_MIN} to {VERSION_MAX} are): \
                 upgrade the older process"
            ),
            FrameError::Field(name) => write!(f, "the frame's field '{name}' is out of range"),
        }
    }
}

impl std::error::Error for FrameError {}

impl Header {
    /// A header of `kind` without content.
    pub const fn empty(kind: FrameKind) -> Header {
        Header {
            version: VERSION_HANDSHAKE,
            kind,
            service: None,
            priority: Priority::Control,
            sectors: false,
            split: false,
            op: 0,
            body_len: 0,
            payload_len: 0,
            deadline_us: 0,
            request: 0,
            trace: TraceId::new(0),
            token: Token::NONE,
            body_crc: 0,
        }
    }

    /// Bytes that follow this header on the link.
    pub const fn following(&self) -> usize {
        if self.split { 0 } else { self.body_len as usize + self.payload_len as usize }
    }

    /// Writes the header's 64 bytes. The fields must be ones that [`Header::decode`] accepts.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        let flags = self.priority as u8
            | if self.sectors { FLAG_SECTORS } else { 0 }
            | if self.split { FLAG_SPLIT } else { 0 };
        put(0, &MAGIC);
        put(VERSION_AT, &[self.version, self.kind as u8]);
        put(SERVICE_AT, &[self.service.map_or(0, Service::number), flags]);
        put(OP_AT, &self.op.to_le_bytes());
        put(BODY_LEN_AT, &self.body_len.to_le_bytes());
        put(PAYLOAD_LEN_AT, &self.payload_len.to_le_bytes());
        put(DEADLINE_AT, &self.deadline_us.to_le_bytes());
        put(REQUEST_AT, &self.request.to_le_bytes());
        put(TRACE_AT, &self.trace.get().to_le_bytes());
        put(TOKEN_AT, &self.token.0);
        put(BODY_CRC_AT, &self.body_crc.to_le_bytes());
        let crc = crc32c(&out[..HEADER_CRC_AT]);
        out[HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(Header::decode(&out), Ok(*self));
        out
    }

    /// Reads a header from the first 64 of `bytes` and checks every field, so that its lengths
    /// may be allocated.
    pub fn decode(bytes: &[u8]) -> Result<Header, FrameError> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err(FrameError::Short(bytes.len()));
        };
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[..4] != MAGIC {
            return Err(FrameError::Magic);
        }
        if crc32c(&bytes[..HEADER_CRC_AT]) != u32_at(HEADER_CRC_AT) {
            return Err(FrameError::HeaderCrc);
        }
        let (version, kind) = (bytes[VERSION_AT], FrameKind::decode(bytes[KIND_AT]));
        let handshake = version == VERSION_HANDSHAKE && kind.is_some_and(FrameKind::is_handshake);
        if !handshake && !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(FrameError::Version(version));
        }
        let kind = kind.ok_or(FrameError::Field("kind"))?;
        let service = match bytes[SERVICE_AT] {
            0 => None,
            raw => Some(Service::new(raw).ok_or(FrameError::Field("service"))?),
        };
        let flags = bytes[FLAGS_AT];
        if flags & !(FLAG_PRIORITY | FLAG_SECTORS | FLAG_SPLIT) != 0 {
            return Err(FrameError::Field("flags"));
        }
        if u16_at(RESERVED_AT) != 0 {
            return Err(FrameError::Field("reserved"));
        }
        let header = Header {
            version,
            kind,
            service,
            priority: Priority::decode(flags & FLAG_PRIORITY)
                .ok_or(FrameError::Field("priority"))?,
            sectors: flags & FLAG_SECTORS != 0,
            split: flags & FLAG_SPLIT != 0,
            op: u16_at(OP_AT),
            body_len: u32_at(BODY_LEN_AT),
            payload_len: u32_at(PAYLOAD_LEN_AT),
            deadline_us: u32_at(DEADLINE_AT),
            request: u64_at(REQUEST_AT),
            trace: TraceId::new(u64_at(TRACE_AT)),
            token: Token(bytes[TOKEN_AT..TOKEN_AT + 16].try_into().expect("16 bytes")),
            body_crc: u32_at(BODY_CRC_AT),
        };
        header.check()?;
        Ok(header)
    }

    /// Conditions on several fields together.
    fn check(&self) -> Result<(), FrameError> {
        let (body, payload) = (self.body_len as usize, self.payload_len as usize);
        if self.kind.has_service() != self.service.is_some() {
            return Err(FrameError::Field("service"));
        }
        if body > BODY_MAX {
            return Err(FrameError::Field("body_len"));
        }
        if payload > PAYLOAD_MAX || (payload > 0 && !self.kind.may_have_payload()) {
            return Err(FrameError::Field("payload_len"));
        }
        if self.kind == FrameKind::Part {
            // A part brings body or payload, never both, and never nothing.
            if (body == 0) == (payload == 0) || body.max(payload) > PART_MAX {
                return Err(FrameError::Field("part"));
            }
        }
        if self.split && !self.kind.has_service() {
            return Err(FrameError::Field("split"));
        }
        Ok(())
    }

    /// The CRC in `body_crc` for this content.
    pub fn content_crc(&self, body: &[u8], payload: &[u8]) -> u32 {
        if self.split || (body.is_empty() && (self.sectors || payload.is_empty())) {
            return 0;
        }
        let crc = crc32c(body);
        if self.sectors || payload.is_empty() { crc } else { crc32c_extend(crc, payload) }
    }

    /// Checks received content against `body_crc`.
    pub fn verify_content(&self, body: &[u8], payload: &[u8]) -> Result<(), FrameError> {
        if self.content_crc(body, payload) == self.body_crc {
            Ok(())
        } else {
            Err(FrameError::BodyCrc)
        }
    }
}

/// Fuzz target: any bytes give a header that encodes to the same bytes, or an error.
pub fn fuzz_header(bytes: &[u8]) {
    if let Ok(header) = Header::decode(bytes) {
        assert_eq!(header.encode(), bytes[..HEADER], "decode and encode differ");
    }
    // The same with the CRC set right, so that the fields behind it are reached.
    let mut fixed = [0; HEADER];
    let count = bytes.len().min(HEADER);
    fixed[..count].copy_from_slice(&bytes[..count]);
    fixed[..4].copy_from_slice(&MAGIC);
    let crc = crc32c(&fixed[..HEADER_CRC_AT]);
    fixed[HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    if let Ok(header) = Header::decode(&fixed) {
        assert_eq!(header.encode(), fixed, "decode and encode differ");
    }
}
