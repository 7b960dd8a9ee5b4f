//! Messages of a block server's data path (`protocols.md` 6.2): raw fixed layouts (C22), as in
//! [`wire::data`]. A payload is plain bytes of a volume. Tables: `docs/formats/wire.md`.

use block_volume::contract::{AllocationExtent, Clear, PIECES_MAX};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::location::{LOCATION_RUNS_MAX, LocationRun, RecordLocation};
use wire::data_codec::{DecodeError, Fields, put_u32s};
use wire::frame::PAYLOAD_MAX;

/// A session of an attachment on a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionRef {
    /// The segment.
    pub segment: SegmentId,
    /// The attachment's epoch.
    pub attachment: u64,
    /// Number of the session: the client counts them, for each segment.
    pub session: u64,
    /// Drawn by the server as it admitted the session: it distinguishes sessions of a previous
    /// process of the server.
    pub grant: u64,
}

/// ID of a change of a segment, so that it happens once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sequence {
    /// Counts the attachment's changes on the segment from 1, over sessions and owners: a change
    /// that is sent again keeps its number.
    pub seq: u64,
    /// All changes below this one are answered or given up. At most `seq`.
    pub floor: u64,
}

/// Requests of a block client to a block server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockIo {
    /// Begins a session: the attachment's previous one on this segment is closed first, and its
    /// changes that have not begun are never done. `at.grant` is 0.
    Open {
        /// The session.
        at: SessionRef,
        /// Attachments of lower epochs are over.
        fence: u64,
        /// Epoch of the owner who admitted the attachment's last session on this segment; 0 when
        /// there was none. Servers before decision 73 refuse any other value unless `fence` is the
        /// attachment's own epoch.
        after: u64,
    },
    /// Ends a session.
    Close {
        /// The session.
        at: SessionRef,
    },
    /// Reads bytes.
    Read {
        /// The session.
        at: SessionRef,
        /// First byte in the segment.
        offset: u64,
        /// Bytes, at least 1.
        len: u32,
        /// The answer may be [`BlockAnswer::Located`]: the client reads the DataFiles itself.
        locate: bool,
    },
    /// Writes the payload.
    Write {
        /// The session.
        at: SessionRef,
        /// The change's numbers.
        sequence: Sequence,
        /// First byte in the segment.
        offset: u64,
    },
    /// Makes bytes read as zeroes.
    Clear {
        /// The session.
        at: SessionRef,
        /// The change's numbers.
        sequence: Sequence,
        /// First byte in the segment.
        offset: u64,
        /// Bytes, at least 1.
        len: u64,
        /// The way.
        how: Clear,
    },
    /// Lists the pieces of a range.
    Pieces {
        /// The session.
        at: SessionRef,
        /// First byte in the segment.
        offset: u64,
        /// Bytes, at least 1.
        len: u64,
        /// Pieces at most, 1 to [`PIECES_MAX`].
        most: u32,
    },
}

/// Locations of blocks of a segment, in order, without gaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// Number of the first block: at or before the first requested one. Neighbours may be among the
    /// spans, too.
    pub first: u64,
    /// Location lease: for this long after the request was sent, by the client's clock, no other
    /// client changes these blocks; milliseconds. 0: the locations are those at the answer only.
    pub location_lease_ms: u32,
    /// All requested blocks, and neighbours.
    pub spans: Vec<LocationRun>,
}

/// Successful answers of a block server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockAnswer {
    /// To `Open`.
    Opened {
        /// The number that requests of the session carry.
        grant: u64,
        /// Bytes of the segment.
        bytes: u64,
        /// Highest number of the attachment's changes that have happened; 0 for none. A client
        /// without numbers begins behind it.
        last: u64,
        /// Epoch of the owner.
        epoch: u64,
    },
    /// To `Read`: the payload has the bytes.
    Read,
    /// To `Read` with `locate`: locations of the range's blocks. A record never changes, so it has
    /// the blocks' content at the answer.
    Located(Located),
    /// To `Pieces`, from the range's start on; may end early.
    Pieces(Vec<AllocationExtent>),
    /// To the others: done, and durable.
    Done,
}

/// Errors of a block server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// The segment is not served here (any more).
    NotOwner,
    /// The session is not open here: begin another. This message has changed nothing and never
    /// will; others with its number may have.
    NoSession,
    /// A session later than the one to open has begun.
    Superseded {
        /// Number of that session.
        session: u64,
    },
    /// The attachment is over.
    Fenced {
        /// Lowest epoch of attachments that are not over.
        fence: u64,
    },
    /// A limit is reached: nothing happened, ask again later.
    Busy,
    /// The change may or may not have happened.
    Unknown,
    /// No room is left.
    Full,
    /// Stored bytes do not verify.
    Corrupt,
    /// The request is invalid: no client sends it.
    Invalid,
}

const OP_OPEN: u16 = 1;
const OP_CLOSE: u16 = 2;
const OP_READ: u16 = 3;
const OP_WRITE: u16 = 4;
const OP_CLEAR: u16 = 5;
const OP_PIECES: u16 = 6;

/// Statuses of this service: 0x0300 to 0x03ff, never reused.
const STATUS: u16 = 0x0300;

/// Bytes of the longest request body.
const BODY_LEN_MAX: usize = 80;

fn put_u64s(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
}

impl BlockIo {
    /// The frame's `op`.
    pub fn op(&self) -> u16 {
        match self {
            BlockIo::Open { .. } => OP_OPEN,
            BlockIo::Close { .. } => OP_CLOSE,
            BlockIo::Read { .. } => OP_READ,
            BlockIo::Write { .. } => OP_WRITE,
            BlockIo::Clear { .. } => OP_CLEAR,
            BlockIo::Pieces { .. } => OP_PIECES,
        }
    }

    /// Its name in traces and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            BlockIo::Open { .. } => "open segment",
            BlockIo::Close { .. } => "close segment",
            BlockIo::Read { .. } => "read segment",
            BlockIo::Write { .. } => "write segment",
            BlockIo::Clear { .. } => "clear segment",
            BlockIo::Pieces { .. } => "pieces of segment",
        }
    }

    /// Its session.
    pub fn at(&self) -> SessionRef {
        match self {
            BlockIo::Open { at, .. }
            | BlockIo::Close { at }
            | BlockIo::Read { at, .. }
            | BlockIo::Write { at, .. }
            | BlockIo::Clear { at, .. }
            | BlockIo::Pieces { at, .. } => *at,
        }
    }

    /// The frame's body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BODY_LEN_MAX);
        let at = self.at();
        put_u64s(&mut out, &[at.segment.volume.get()]);
        put_u32s(&mut out, &[at.segment.index, 0]);
        put_u64s(&mut out, &[at.attachment, at.session, at.grant]);
        match self {
            BlockIo::Open { fence, after, .. } => put_u64s(&mut out, &[*fence, *after]),
            BlockIo::Close { .. } => {}
            BlockIo::Read { offset, len, locate, .. } => {
                put_u64s(&mut out, &[*offset]);
                put_u32s(&mut out, &[*len, u32::from(*locate)]);
            }
            BlockIo::Write { sequence, offset, .. } => {
                put_u64s(&mut out, &[sequence.seq, sequence.floor, *offset]);
            }
            BlockIo::Clear { sequence, offset, len, how, .. } => {
                put_u64s(&mut out, &[sequence.seq, sequence.floor, *offset, *len]);
                put_u32s(&mut out, &[u32::from(*how == Clear::Zero), 0]);
            }
            BlockIo::Pieces { offset, len, most, .. } => {
                put_u64s(&mut out, &[*offset, *len]);
                put_u32s(&mut out, &[*most, 0]);
            }
        }
        out
    }

    /// Reads the body of a frame with operation `op`.
    pub fn decode(op: u16, body: &[u8]) -> Result<BlockIo, DecodeError> {
        if !(OP_OPEN..=OP_PIECES).contains(&op) {
            return Err(DecodeError::Code(op));
        }
        let mut fields = Fields::new(body);
        let (volume, index) = (VolumeId::new(fields.u64()?), fields.u32()?);
        fields.reserved()?;
        let segment = SegmentId { volume, index };
        let (attachment, session, grant) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let at = SessionRef { segment, attachment, session, grant };
        match op {
            OP_OPEN => {
                let fence = fields.u64()?;
                if fence > attachment {
                    return Err(DecodeError::Field("fence"));
                }
                if grant != 0 {
                    return Err(DecodeError::Field("grant"));
                }
                let after = fields.u64()?;
                Ok(BlockIo::Open { at, fence, after })
            }
            OP_CLOSE => Ok(BlockIo::Close { at }),
            OP_READ => {
                let (offset, len) = (fields.u64()?, fields.u32()?);
                let locate = fields.flag("locate")?;
                check_range(offset, u64::from(len))?;
                if len as usize > PAYLOAD_MAX {
                    return Err(DecodeError::Field("len"));
                }
                Ok(BlockIo::Read { at, offset, len, locate })
            }
            OP_WRITE => {
                let sequence = decode_sequence(&mut fields)?;
                Ok(BlockIo::Write { at, sequence, offset: fields.u64()? })
            }
            OP_CLEAR => {
                let sequence = decode_sequence(&mut fields)?;
                let (offset, len) = (fields.u64()?, fields.u64()?);
                let how = if fields.flag("how")? { Clear::Zero } else { Clear::Trim };
                fields.reserved()?;
                check_range(offset, len)?;
                Ok(BlockIo::Clear { at, sequence, offset, len, how })
            }
            _ => {
                let (offset, len, most) = (fields.u64()?, fields.u64()?, fields.u32()?);
                fields.reserved()?;
                check_range(offset, len)?;
                if most == 0 || most as usize > PIECES_MAX {
                    return Err(DecodeError::Field("most"));
                }
                Ok(BlockIo::Pieces { at, offset, len, most })
            }
        }
    }
}

fn check_range(offset: u64, len: u64) -> Result<(), DecodeError> {
    if len == 0 || offset.checked_add(len).is_none() {
        return Err(DecodeError::Field("len"));
    }
    Ok(())
}

fn decode_sequence(fields: &mut Fields<'_>) -> Result<Sequence, DecodeError> {
    let sequence = Sequence { seq: fields.u64()?, floor: fields.u64()? };
    if sequence.floor == 0 || sequence.floor > sequence.seq {
        return Err(DecodeError::Field("floor"));
    }
    Ok(sequence)
}

const ANSWER_OPENED: u32 = 1;
const ANSWER_READ: u32 = 2;
const ANSWER_PIECES: u32 = 3;
const ANSWER_DONE: u32 = 4;
const ANSWER_LOCATED: u32 = 5;

const PIECE_HOLE: u32 = 1;
const PIECE_ZERO: u32 = 2;

impl BlockAnswer {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        match self {
            BlockAnswer::Opened { grant, bytes, last, epoch } => {
                put_u32s(&mut out, &[ANSWER_OPENED, 0]);
                put_u64s(&mut out, &[*grant, *bytes, *last, *epoch]);
            }
            BlockAnswer::Read => put_u32s(&mut out, &[ANSWER_READ, 0]),
            BlockAnswer::Pieces(pieces) => {
                assert!(pieces.len() <= PIECES_MAX, "{} pieces in an answer", pieces.len());
                put_u32s(&mut out, &[ANSWER_PIECES, pieces.len() as u32]);
                for piece in pieces {
                    put_u64s(&mut out, &[piece.len]);
                    let flag = |on: bool, flag: u32| if on { flag } else { 0 };
                    let flags = flag(piece.hole, PIECE_HOLE) | flag(piece.zero, PIECE_ZERO);
                    put_u32s(&mut out, &[flags, 0]);
                }
            }
            BlockAnswer::Done => put_u32s(&mut out, &[ANSWER_DONE, 0]),
            BlockAnswer::Located(Located { first, location_lease_ms, spans }) => {
                assert!(spans.len() <= LOCATION_RUNS_MAX, "{} spans in an answer", spans.len());
                put_u32s(&mut out, &[ANSWER_LOCATED, spans.len() as u32]);
                put_u64s(&mut out, &[*first]);
                put_u32s(&mut out, &[*location_lease_ms, 0]);
                for LocationRun { blocks, at } in spans {
                    let RecordLocation { file, clone_source, unit } =
                        at.unwrap_or(RecordLocation { file: (0, 0), clone_source: 0, unit: 0 });
                    put_u32s(&mut out, &[*blocks, file.0, file.1, unit]);
                    put_u64s(&mut out, &[clone_source]);
                }
            }
        }
        out
    }

    fn decode(body: &[u8]) -> Result<BlockAnswer, DecodeError> {
        let mut fields = Fields::new(body);
        let tag = fields.u32()?;
        if tag == ANSWER_PIECES {
            let count = decode_count(&mut fields, PIECES_MAX)?;
            let pieces = decode_list(&mut fields, count, decode_piece)?;
            return Ok(BlockAnswer::Pieces(pieces));
        }
        if tag == ANSWER_LOCATED {
            return decode_located(&mut fields).map(BlockAnswer::Located);
        }
        fields.reserved()?;
        match tag {
            ANSWER_OPENED => {
                let (grant, bytes, last) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Ok(BlockAnswer::Opened { grant, bytes, last, epoch: fields.u64()? })
            }
            ANSWER_READ => Ok(BlockAnswer::Read),
            ANSWER_DONE => Ok(BlockAnswer::Done),
            tag => Err(DecodeError::Code(u16::try_from(tag).unwrap_or(u16::MAX))),
        }
    }
}

fn decode_count(fields: &mut Fields<'_>, most: usize) -> Result<usize, DecodeError> {
    let count = fields.u32()? as usize;
    if count > most { Err(DecodeError::Field("count")) } else { Ok(count) }
}

fn decode_list<T>(
    fields: &mut Fields<'_>,
    count: usize,
    decode: fn(&mut Fields<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    (0..count).map(|_| decode(fields)).collect()
}

fn decode_located(fields: &mut Fields<'_>) -> Result<Located, DecodeError> {
    let count = decode_count(fields, LOCATION_RUNS_MAX)?;
    let (first, location_lease_ms) = (fields.u64()?, fields.u32()?);
    fields.reserved()?;
    Ok(Located { first, location_lease_ms, spans: decode_list(fields, count, decode_span)? })
}

fn decode_span(fields: &mut Fields<'_>) -> Result<LocationRun, DecodeError> {
    let (blocks, file) = (fields.u32()?, (fields.u32()?, fields.u32()?));
    let (unit, clone_source) = (fields.u32()?, fields.u64()?);
    if blocks == 0 {
        return Err(DecodeError::Field("blocks"));
    }
    match file.1 {
        0 if (file.0, unit, clone_source) != (0, 0, 0) => Err(DecodeError::Field("file")),
        0 => Ok(LocationRun { blocks, at: None }),
        _ => Ok(LocationRun { blocks, at: Some(RecordLocation { file, clone_source, unit }) }),
    }
}

fn decode_piece(fields: &mut Fields<'_>) -> Result<AllocationExtent, DecodeError> {
    let (len, flags) = (fields.u64()?, fields.u32()?);
    fields.reserved()?;
    if len == 0 {
        return Err(DecodeError::Field("len"));
    }
    if flags & !(PIECE_HOLE | PIECE_ZERO) != 0 {
        return Err(DecodeError::Field("flags"));
    }
    Ok(AllocationExtent { len, hole: flags & PIECE_HOLE != 0, zero: flags & PIECE_ZERO != 0 })
}

impl BlockError {
    fn code(self) -> u16 {
        match self {
            BlockError::NotOwner => 1,
            BlockError::NoSession => 2,
            BlockError::Superseded { .. } => 3,
            BlockError::Fenced { .. } => 4,
            BlockError::Busy => 5,
            BlockError::Unknown => 6,
            BlockError::Full => 7,
            BlockError::Corrupt => 8,
            BlockError::Invalid => 9,
        }
    }

    /// Its kind, which says how to react.
    pub fn kind(self) -> base::Kind {
        use base::Kind;
        match self {
            BlockError::NotOwner => Kind::Reroute,
            BlockError::NoSession | BlockError::Superseded { .. } => Kind::Refresh,
            BlockError::Fenced { .. } => Kind::Fenced,
            BlockError::Busy => Kind::Retry,
            BlockError::Unknown => Kind::Unknown,
            BlockError::Full => Kind::Full,
            BlockError::Corrupt => Kind::Corrupt,
            BlockError::Invalid => Kind::Invalid,
        }
    }

    fn decode(status: u16, body: &[u8]) -> Result<BlockError, DecodeError> {
        let mut fields = Fields::new(body);
        Ok(match status.wrapping_sub(STATUS) {
            1 => BlockError::NotOwner,
            2 => BlockError::NoSession,
            3 => BlockError::Superseded { session: fields.u64()? },
            4 => BlockError::Fenced { fence: fields.u64()? },
            5 => BlockError::Busy,
            6 => BlockError::Unknown,
            7 => BlockError::Full,
            8 => BlockError::Corrupt,
            9 => BlockError::Invalid,
            _ => return Err(DecodeError::Code(status)),
        })
    }
}

impl std::fmt::Display for BlockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for BlockError {}

/// Status and body of an answer.
pub fn encode_answer(answer: &Result<BlockAnswer, BlockError>) -> (u16, Vec<u8>) {
    match answer {
        Ok(answer) => (0, answer.encode()),
        Err(error) => {
            let body = match error {
                BlockError::Superseded { session: number }
                | BlockError::Fenced { fence: number } => number.to_le_bytes().to_vec(),
                _ => Vec::new(),
            };
            (STATUS + error.code(), body)
        }
    }
}

/// The answer in a response's status and body.
pub fn decode_answer(
    status: u16,
    body: &[u8],
) -> Result<Result<BlockAnswer, BlockError>, DecodeError> {
    match status {
        0 => BlockAnswer::decode(body).map(Ok),
        status => BlockError::decode(status, body).map(Err),
    }
}

/// Fuzz target: the first two bytes are the operation, the rest the body.
pub fn fuzz_request(bytes: &[u8]) {
    let Some((op, body)) = bytes.split_first_chunk() else { return };
    if let Ok(request) = BlockIo::decode(u16::from_le_bytes(*op), body) {
        let encoded = request.encode();
        assert_eq!(encoded, body[..encoded.len()], "decode and encode differ");
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
