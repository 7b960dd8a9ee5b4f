//! Encoding of data-path messages. Tables: `docs/formats/wire.md`.
//!
//! A body may be longer than this build knows: bytes behind the known ones are fields of a newer
//! sender and are skipped. Reserved fields inside the known ones are zero and checked.

use std::fmt;

use base::limits::{APPEND_DATA_MAX, CHUNK_LEN_MAX};
use base::{ChunkId, DiskId, Epoch};

use crate::cell::CELL_SECTORS_MAX;
use crate::data::{
    AppendRequest, ChunkRef, CommitRequest, DataError, DataReply, DataRequest, FenceRequest,
    Purpose, ReadRequest, ReplicaStat, ReplicaState, SealRequest,
};
use crate::token::Rights;

/// Bytes that are no message of the kind expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The body ends early.
    Short,
    /// An operation, status or tag that this build does not know.
    Code(u16),
    /// A field has a value that no sender produces.
    Field(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => f.write_str("the message ends early"),
            DecodeError::Code(code) => write!(f, "message code {code} is not known here"),
            DecodeError::Field(name) => write!(f, "the message's field '{name}' is out of range"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Reads the fields of a body, in their order.
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of `body`.
    pub fn new(body: &'a [u8]) -> Fields<'a> {
        Fields(body)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    /// A number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    /// A number of 64 bits.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn epoch(&mut self) -> Result<Epoch, DecodeError> {
        self.u64().map(Epoch::new)
    }

    fn chunk_ref(&mut self) -> Result<ChunkRef, DecodeError> {
        let chunk = ChunkId::new(self.u64()?);
        let disk = DiskId::new(u128::from_le_bytes(self.take()?));
        Ok(ChunkRef { chunk, disk })
    }

    /// A flag: 32 bits, 0 or 1.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, DecodeError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Field(name)),
        }
    }

    /// Purpose of an append; senders before 0.2 end without it.
    fn purpose(&mut self) -> Result<Purpose, DecodeError> {
        if self.0.is_empty() {
            return Ok(Purpose::Data);
        }
        let number = self.u32()?;
        self.reserved()?;
        Purpose::from_number(number).ok_or(DecodeError::Field("purpose"))
    }

    /// A reserved field: 32 bits, 0.
    pub fn reserved(&mut self) -> Result<(), DecodeError> {
        match self.u32()? {
            0 => Ok(()),
            _ => Err(DecodeError::Field("reserved")),
        }
    }
}

fn put_ref(out: &mut Vec<u8>, at: &ChunkRef) {
    out.extend(at.chunk.get().to_le_bytes());
    out.extend(at.disk.get().to_le_bytes());
}

/// Appends numbers of 32 bits.
pub fn put_u32s(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
}

const OP_APPEND: u16 = 1;
const OP_COMMIT: u16 = 2;
const OP_READ: u16 = 3;
const OP_FENCE: u16 = 4;
const OP_SEAL: u16 = 5;
const OP_STAT: u16 = 6;
/// In place of a sector of a cell: those of the blocks with the range are enough.
const READ_BLOCKS: u32 = 1 << 16;
const _: () = assert!(CELL_SECTORS_MAX < READ_BLOCKS as usize);

/// Bytes of the longest request body.
const BODY_LEN_MAX: usize = 64;

impl DataRequest {
    /// The frame's `op`.
    pub fn op(&self) -> u16 {
        match self {
            DataRequest::Append(_) => OP_APPEND,
            DataRequest::Commit(_) => OP_COMMIT,
            DataRequest::Read(_) => OP_READ,
            DataRequest::Fence(_) => OP_FENCE,
            DataRequest::Seal(_) => OP_SEAL,
            DataRequest::Stat(_) => OP_STAT,
        }
    }

    /// The replica it is about.
    pub fn at(&self) -> ChunkRef {
        match self {
            DataRequest::Append(request) => request.at,
            DataRequest::Commit(request) => request.at,
            DataRequest::Read(request) => request.at,
            DataRequest::Fence(request) => request.at,
            DataRequest::Seal(request) => request.at,
            DataRequest::Stat(at) => *at,
        }
    }

    /// Rights that a token must have for it, and their epoch.
    pub fn needs(&self) -> (Rights, Epoch) {
        match self {
            DataRequest::Append(request) => (Rights::APPEND, request.epoch),
            DataRequest::Commit(request) => (Rights::APPEND, request.epoch),
            DataRequest::Read(_) | DataRequest::Stat(_) => (Rights::READ, Epoch::NONE),
            DataRequest::Fence(request) => (Rights::FENCE, request.epoch),
            DataRequest::Seal(_) => (Rights::SEAL, Epoch::NONE),
        }
    }

    /// The frame's body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BODY_LEN_MAX);
        put_ref(&mut out, &self.at());
        match self {
            DataRequest::Append(request) => {
                out.extend(request.epoch.get().to_le_bytes());
                out.extend(request.base.to_le_bytes());
                let (create, purpose) = (u32::from(request.create), request.purpose as u32);
                put_u32s(&mut out, &[request.offset, request.len, request.committed, create]);
                put_u32s(&mut out, &[purpose, 0]);
            }
            DataRequest::Commit(request) => {
                out.extend(request.epoch.get().to_le_bytes());
                put_u32s(&mut out, &[request.committed, 0]);
            }
            DataRequest::Read(request) => {
                let uncommitted = u32::from(request.uncommitted);
                let cell_sector = match request.cell_sector {
                    Some(index) => u32::from(index) + 1,
                    None if request.blocks => READ_BLOCKS,
                    None => 0,
                };
                put_u32s(&mut out, &[request.offset, request.len, uncommitted, cell_sector]);
            }
            DataRequest::Fence(request) => out.extend(request.epoch.get().to_le_bytes()),
            DataRequest::Seal(request) => put_u32s(&mut out, &[request.len, 0]),
            DataRequest::Stat(_) => {}
        }
        out
    }

    /// Reads the body of a frame with operation `op`.
    pub fn decode(op: u16, body: &[u8]) -> Result<DataRequest, DecodeError> {
        let mut fields = Fields(body);
        let at = match op {
            OP_APPEND..=OP_STAT => fields.chunk_ref()?,
            _ => return Err(DecodeError::Code(op)),
        };
        match op {
            OP_APPEND => decode_append(at, &mut fields).map(DataRequest::Append),
            OP_COMMIT => {
                let request =
                    CommitRequest { at, epoch: fields.epoch()?, committed: fields.u32()? };
                fields.reserved()?;
                Ok(DataRequest::Commit(request))
            }
            OP_READ => {
                let (offset, len) = (fields.u32()?, fields.u32()?);
                let uncommitted = fields.flag("uncommitted")?;
                let of_cell = fields.u32()?;
                let cell_sector = match of_cell {
                    0 | READ_BLOCKS => None,
                    place if place <= CELL_SECTORS_MAX as u32 => Some(place as u16 - 1),
                    _ => return Err(DecodeError::Field("cell sector")),
                };
                if len == 0 {
                    return Err(DecodeError::Field("len"));
                }
                check_range(offset, len)?;
                let read = ReadRequest {
                    at,
                    offset,
                    len,
                    uncommitted,
                    cell_sector,
                    blocks: of_cell == READ_BLOCKS,
                };
                Ok(DataRequest::Read(read))
            }
            OP_FENCE => Ok(DataRequest::Fence(FenceRequest { at, epoch: fields.epoch()? })),
            OP_SEAL => {
                let len = fields.u32()?;
                fields.reserved()?;
                check_range(len, 0)?;
                Ok(DataRequest::Seal(SealRequest { at, len }))
            }
            _ => Ok(DataRequest::Stat(at)),
        }
    }
}

fn decode_append(at: ChunkRef, fields: &mut Fields<'_>) -> Result<AppendRequest, DecodeError> {
    let request = AppendRequest {
        at,
        epoch: fields.epoch()?,
        base: fields.u64()?,
        offset: fields.u32()?,
        len: fields.u32()?,
        committed: fields.u32()?,
        create: fields.flag("create")?,
        purpose: fields.purpose()?,
    };
    if request.len == 0 || request.len as usize > APPEND_DATA_MAX {
        return Err(DecodeError::Field("len"));
    }
    check_range(request.offset, request.len)?;
    Ok(request)
}

fn check_range(offset: u32, len: u32) -> Result<(), DecodeError> {
    if u64::from(offset) + u64::from(len) > CHUNK_LEN_MAX {
        return Err(DecodeError::Field("offset"));
    }
    Ok(())
}

const REPLY_APPENDED: u32 = 1;
const REPLY_READ: u32 = 2;
const REPLY_STAT: u32 = 3;
const REPLY_DONE: u32 = 4;

impl DataReply {
    /// The body of a response with status 0.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        match self {
            DataReply::Appended { len } => put_u32s(&mut out, &[REPLY_APPENDED, *len]),
            DataReply::Read { readable, sealed } => {
                put_u32s(&mut out, &[REPLY_READ, *readable, u32::from(*sealed), 0]);
            }
            DataReply::Stat(stat) => {
                let (state, fence) = match stat.state {
                    ReplicaState::Open => (0, Epoch::NONE),
                    ReplicaState::Fenced(epoch) => (1, epoch),
                    ReplicaState::Sealed => (2, Epoch::NONE),
                    ReplicaState::Repairing => (3, Epoch::NONE),
                    ReplicaState::Tombstone => (4, Epoch::NONE),
                    ReplicaState::Deleted => (5, Epoch::NONE),
                };
                put_u32s(&mut out, &[REPLY_STAT, state]);
                out.extend(fence.get().to_le_bytes());
                out.extend(stat.epoch.get().to_le_bytes());
                put_u32s(&mut out, &[stat.len, stat.durable_bound, stat.committed, 0]);
            }
            DataReply::Done => put_u32s(&mut out, &[REPLY_DONE]),
        }
        out
    }

    /// Reads the body of a response with status 0.
    pub fn decode(body: &[u8]) -> Result<DataReply, DecodeError> {
        let mut fields = Fields(body);
        match fields.u32()? {
            REPLY_APPENDED => Ok(DataReply::Appended { len: fields.u32()? }),
            REPLY_READ => {
                let (readable, sealed) = (fields.u32()?, fields.flag("sealed")?);
                fields.reserved()?;
                Ok(DataReply::Read { readable, sealed })
            }
            REPLY_STAT => decode_stat(&mut fields).map(DataReply::Stat),
            REPLY_DONE => Ok(DataReply::Done),
            tag => Err(DecodeError::Code(u16::try_from(tag).unwrap_or(u16::MAX))),
        }
    }
}

fn decode_stat(fields: &mut Fields<'_>) -> Result<ReplicaStat, DecodeError> {
    let (state, fence) = (fields.u32()?, fields.epoch()?);
    let state = match state {
        0 => ReplicaState::Open,
        1 => ReplicaState::Fenced(fence),
        2 => ReplicaState::Sealed,
        3 => ReplicaState::Repairing,
        4 => ReplicaState::Tombstone,
        5 => ReplicaState::Deleted,
        _ => return Err(DecodeError::Field("state")),
    };
    if fence != Epoch::NONE && !matches!(state, ReplicaState::Fenced(_)) {
        return Err(DecodeError::Field("fence"));
    }
    let stat = ReplicaStat {
        state,
        epoch: fields.epoch()?,
        len: fields.u32()?,
        durable_bound: fields.u32()?,
        committed: fields.u32()?,
    };
    fields.reserved()?;
    Ok(stat)
}

impl DataError {
    /// The response's status: 1 to 255 are of the data path, and never reused.
    pub fn status(&self) -> u16 {
        match self {
            DataError::Gap { .. } => 1,
            DataError::Fenced { .. } => 2,
            DataError::Sealed { .. } => 3,
            DataError::Conflict => 4,
            DataError::NotFound => 5,
            DataError::WrongDisk => 6,
            DataError::DiskFailed => 7,
            DataError::Full => 8,
            DataError::Corrupt { .. } => 9,
            DataError::BadSectors { .. } => 10,
            DataError::Busy => 11,
            DataError::Denied => 12,
            DataError::Invalid => 13,
            DataError::Unknown => 14,
        }
    }

    /// The response's body.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            DataError::Gap { len } | DataError::Sealed { len } => len.to_le_bytes().to_vec(),
            DataError::Fenced { epoch } => epoch.get().to_le_bytes().to_vec(),
            DataError::Corrupt { offset } => offset.to_le_bytes().to_vec(),
            DataError::BadSectors { index } => index.to_le_bytes().to_vec(),
            _ => Vec::new(),
        }
    }

    /// Reads the body of a response with `status`, which is not 0.
    pub fn decode(status: u16, body: &[u8]) -> Result<DataError, DecodeError> {
        let mut fields = Fields(body);
        Ok(match status {
            1 => DataError::Gap { len: fields.u32()? },
            2 => DataError::Fenced { epoch: fields.epoch()? },
            3 => DataError::Sealed { len: fields.u32()? },
            4 => DataError::Conflict,
            5 => DataError::NotFound,
            6 => DataError::WrongDisk,
            7 => DataError::DiskFailed,
            8 => DataError::Full,
            9 => DataError::Corrupt { offset: fields.u32()? },
            10 => DataError::BadSectors { index: fields.u32()? },
            11 => DataError::Busy,
            12 => DataError::Denied,
            13 => DataError::Invalid,
            14 => DataError::Unknown,
            _ => return Err(DecodeError::Code(status)),
        })
    }
}

/// Status and body of an answer.
pub fn encode_answer(answer: &Result<DataReply, DataError>) -> (u16, Vec<u8>) {
    match answer {
        Ok(reply) => (0, reply.encode()),
        Err(error) => (error.status(), error.encode()),
    }
}

/// The answer in a response's status and body.
pub fn decode_answer(
    status: u16,
    body: &[u8],
) -> Result<Result<DataReply, DataError>, DecodeError> {
    match status {
        0 => DataReply::decode(body).map(Ok),
        status => DataError::decode(status, body).map(Err),
    }
}

/// Fuzz target: the first two bytes are the operation, the rest the body.
pub fn fuzz_request(bytes: &[u8]) {
    let Some((op, body)) = bytes.split_first_chunk() else { return };
    if let Ok(request) = DataRequest::decode(u16::from_le_bytes(*op), body) {
        let encoded = request.encode();
        // An older sender ends before the last fields, which then are zero.
        let (known, newer) = encoded.split_at(encoded.len().min(body.len()));
        assert_eq!(known, &body[..known.len()], "decode and encode differ");
        assert!(newer.iter().all(|byte| *byte == 0), "a field of its own");
    }
}

/// Fuzz target: the first two bytes are the status, the rest the body.
pub fn fuzz_answer(bytes: &[u8]) {
    let Some((status, body)) = bytes.split_first_chunk() else { return };
    let status = u16::from_le_bytes(*status);
    if let Ok(answer) = decode_answer(status, body) {
        let (again, encoded) = encode_answer(&answer);
        assert_eq!((again, &encoded[..]), (status, &body[..encoded.len()]), "encoding differs");
    }
}
