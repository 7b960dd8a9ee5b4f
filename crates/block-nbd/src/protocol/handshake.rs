//! Negotiation: greeting, options, their replies.

use codec::cursor::Cursor;

use super::ProtocolError;
use super::input::{done, put_string, rest, string};
use crate::protocol::limits::{NBD_CONTEXTS_MAX, NBD_NAME_MAX, NBD_OPTION_MAX, NBD_STRING_MAX};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943; // "NBDMAGIC"
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054; // "IHAVEOPT"
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
/// Zeros behind the reply to the oldest option, unless both sides leave them out.
const EXPORT_NAME_ZEROES: usize = 124;

/// The server's first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The server speaks fixed newstyle; ours always does.
    pub fixed: bool,
    /// The server can leave out the zeros behind its oldest reply.
    pub no_zeroes: bool,
}

impl Greeting {
    /// Bytes of it.
    pub const LEN: usize = 18;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Greeting::LEN] {
        let mut out = [0; Greeting::LEN];
        out[..8].copy_from_slice(&NBD_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        let fixed = if self.fixed { FIXED_NEWSTYLE } else { 0 };
        let flags = fixed | if self.no_zeroes { NO_ZEROES } else { 0 };
        out[16..].copy_from_slice(&flags.to_be_bytes());
        out
    }

    /// From its bytes; flags that are not known are left aside.
    pub fn decode(bytes: &[u8; Greeting::LEN]) -> Result<Greeting, ProtocolError> {
        let mut input = Cursor(bytes);
        let mut long = || input.u64_be().expect("within the array");
        let (first, second) = (long(), long());
        for (seen, magic) in [(first, NBD_MAGIC), (second, OPTION_MAGIC)] {
            if seen != magic {
                return Err(ProtocolError::Magic { what: "greeting", seen });
            }
        }
        let flags = input.u16_be().expect("within the array");
        Ok(Greeting { fixed: flags & FIXED_NEWSTYLE != 0, no_zeroes: flags & NO_ZEROES != 0 })
    }
}

/// The client's answer to the greeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientHello {
    /// The client speaks fixed newstyle: unknown options are answered, not fatal.
    pub fixed: bool,
    /// The zeros behind the oldest reply are left out.
    pub no_zeroes: bool,
}

impl ClientHello {
    /// Its bytes.
    pub fn encode(&self) -> [u8; 4] {
        let fixed = if self.fixed { FIXED_NEWSTYLE } else { 0 };
        u32::from(fixed | if self.no_zeroes { NO_ZEROES } else { 0 }).to_be_bytes()
    }

    /// From its bytes. A flag that the server did not offer ends the connection.
    pub fn decode(bytes: [u8; 4]) -> Result<ClientHello, ProtocolError> {
        let flags = u32::from_be_bytes(bytes);
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(ProtocolError::Malformed { what: "client flags" });
        }
        let has = |flag: u16| flags & u32::from(flag) != 0;
        Ok(ClientHello { fixed: has(FIXED_NEWSTYLE), no_zeroes: has(NO_ZEROES) })
    }
}

/// An option, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionCode {
    /// Choose an export, the oldest way.
    ExportName,
    /// End the negotiation.
    Abort,
    /// Name the exports.
    List,
    /// Go on under TLS.
    StartTls,
    /// Return facts of an export.
    Info,
    /// Choose an export.
    Go,
    /// Answer in chunks.
    StructuredReply,
    /// Name metadata contexts.
    ListMetaContext,
    /// Choose metadata contexts.
    SetMetaContext,
    /// Something else.
    Other(u32),
}

const CODES: [(u32, OptionCode); 9] = [
    (1, OptionCode::ExportName),
    (2, OptionCode::Abort),
    (3, OptionCode::List),
    (5, OptionCode::StartTls),
    (6, OptionCode::Info),
    (7, OptionCode::Go),
    (8, OptionCode::StructuredReply),
    (9, OptionCode::ListMetaContext),
    (10, OptionCode::SetMetaContext),
];

impl OptionCode {
    /// Its number.
    pub fn get(self) -> u32 {
        match self {
            OptionCode::Other(code) => code,
            known => CODES.iter().find(|(_, code)| *code == known).expect("in the table").0,
        }
    }

    /// From its number.
    pub fn new(raw: u32) -> OptionCode {
        let known = CODES.iter().find(|(number, _)| *number == raw);
        known.map_or(OptionCode::Other(raw), |(_, code)| *code)
    }
}

/// The head of an option, in front of its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionHead {
    /// The option.
    pub code: OptionCode,
    /// Bytes of data behind.
    pub len: u32,
}

impl OptionHead {
    /// Bytes of it.
    pub const LEN: usize = 16;

    /// From its bytes. An option that is too long ends the connection: it cannot be skipped in
    /// bounded time.
    pub fn decode(bytes: &[u8; OptionHead::LEN]) -> Result<OptionHead, ProtocolError> {
        let mut input = Cursor(bytes);
        let magic = input.u64_be().expect("within the array");
        if magic != OPTION_MAGIC {
            return Err(ProtocolError::Magic { what: "option", seen: magic });
        }
        let mut word = || input.u32_be().expect("within the array");
        let (code, len) = (OptionCode::new(word()), word());
        if len > NBD_OPTION_MAX {
            let (len, max) = (u64::from(len), u64::from(NBD_OPTION_MAX));
            return Err(ProtocolError::TooLong { what: "an option", len, max });
        }
        Ok(OptionHead { code, len })
    }
}

/// An export and the facts that a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Select {
    /// The export; empty for the default one.
    pub name: String,
    /// Kinds of facts wanted, as numbers of [`ServerInfo`].
    pub wants: Vec<u16>,
}

/// Metadata contexts that a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaQuery {
    /// The export.
    pub name: String,
    /// Contexts, or prefixes that end with a colon.
    pub queries: Vec<String>,
}

/// An option with its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionRequest {
    /// See [`OptionCode::ExportName`].
    ExportName(String),
    /// See [`OptionCode::Abort`].
    Abort,
    /// See [`OptionCode::List`].
    List,
    /// See [`OptionCode::StartTls`].
    StartTls,
    /// See [`OptionCode::Info`].
    Info(Select),
    /// See [`OptionCode::Go`].
    Go(Select),
    /// See [`OptionCode::StructuredReply`].
    StructuredReply,
    /// See [`OptionCode::ListMetaContext`].
    ListMetaContext(MetaQuery),
    /// See [`OptionCode::SetMetaContext`].
    SetMetaContext(MetaQuery),
}

/// Refusals of an option; the negotiation goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionFlaw {
    /// It is not known.
    Unsupported,
    /// Its data is not what it must be.
    Invalid,
}

impl OptionFlaw {
    /// The reply for it.
    pub fn reply(self) -> ReplyCode {
        match self {
            OptionFlaw::Unsupported => ReplyCode::Unsupported,
            OptionFlaw::Invalid => ReplyCode::Invalid,
        }
    }
}

impl OptionRequest {
    /// From an option's data.
    pub fn decode(code: OptionCode, data: &[u8]) -> Result<OptionRequest, OptionFlaw> {
        let mut input = Cursor(data);
        let bare = |request| data.is_empty().then_some(request);
        let decoded = match code {
            OptionCode::Other(_) => return Err(OptionFlaw::Unsupported),
            OptionCode::ExportName => rest(&mut input, NBD_NAME_MAX).map(OptionRequest::ExportName),
            // Its data, if any, says nothing.
            OptionCode::Abort => Some(OptionRequest::Abort),
            OptionCode::List => bare(OptionRequest::List),
            OptionCode::StartTls => bare(OptionRequest::StartTls),
            OptionCode::StructuredReply => bare(OptionRequest::StructuredReply),
            OptionCode::Info => select(input).map(OptionRequest::Info),
            OptionCode::Go => select(input).map(OptionRequest::Go),
            OptionCode::ListMetaContext => query(input).map(OptionRequest::ListMetaContext),
            OptionCode::SetMetaContext => query(input).map(OptionRequest::SetMetaContext),
        };
        decoded.ok_or(OptionFlaw::Invalid)
    }

    /// The option's code.
    pub fn code(&self) -> OptionCode {
        match self {
            OptionRequest::ExportName(_) => OptionCode::ExportName,
            OptionRequest::Abort => OptionCode::Abort,
            OptionRequest::List => OptionCode::List,
            OptionRequest::StartTls => OptionCode::StartTls,
            OptionRequest::Info(_) => OptionCode::Info,
            OptionRequest::Go(_) => OptionCode::Go,
            OptionRequest::StructuredReply => OptionCode::StructuredReply,
            OptionRequest::ListMetaContext(_) => OptionCode::ListMetaContext,
            OptionRequest::SetMetaContext(_) => OptionCode::SetMetaContext,
        }
    }

    /// Appends head and data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        match self {
            OptionRequest::ExportName(name) => data.extend_from_slice(name.as_bytes()),
            OptionRequest::Info(select) | OptionRequest::Go(select) => {
                put_string(&mut data, &select.name);
                data.extend_from_slice(&(select.wants.len() as u16).to_be_bytes());
                select.wants.iter().for_each(|want| data.extend_from_slice(&want.to_be_bytes()));
            }
            OptionRequest::ListMetaContext(query) | OptionRequest::SetMetaContext(query) => {
                put_string(&mut data, &query.name);
                data.extend_from_slice(&(query.queries.len() as u32).to_be_bytes());
                query.queries.iter().for_each(|text| put_string(&mut data, text));
            }
            OptionRequest::Abort
            | OptionRequest::List
            | OptionRequest::StartTls
            | OptionRequest::StructuredReply => {}
        }
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.code().get().to_be_bytes());
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(&data);
    }
}

fn select(mut input: Cursor<'_>) -> Option<Select> {
    let name = string(&mut input, NBD_NAME_MAX)?;
    let count = input.u16_be()?;
    let wants = (0..count).map(|_| input.u16_be()).collect::<Option<_>>()?;
    done(input, Select { name, wants })
}

fn query(mut input: Cursor<'_>) -> Option<MetaQuery> {
    let name = string(&mut input, NBD_NAME_MAX)?;
    let count = input.u32_be()? as usize;
    if count > NBD_CONTEXTS_MAX {
        return None;
    }
    let queries = (0..count).map(|_| string(&mut input, NBD_STRING_MAX)).collect::<Option<_>>()?;
    done(input, MetaQuery { name, queries })
}

/// A fact about an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerInfo {
    /// Its bytes, and its flags (see [`super::export_flags`]).
    Export {
        /// Bytes.
        size: u64,
        /// Flags.
        flags: u16,
    },
    /// Its full name.
    Name(String),
    /// Its description, as tools show it.
    Description(String),
    /// Bytes of requests: least, best, most.
    BlockSize {
        /// Offsets and lengths are multiples of it.
        least: u32,
        /// The best one.
        preferred: u32,
        /// Bytes of one request's data at most.
        most: u32,
    },
}

impl ServerInfo {
    /// Number of [`ServerInfo::BlockSize`] among wants.
    pub const WANT_BLOCK_SIZE: u16 = 3;
    /// Number of [`ServerInfo::Name`] among wants.
    pub const WANT_NAME: u16 = 1;
    /// Number of [`ServerInfo::Description`] among wants.
    pub const WANT_DESCRIPTION: u16 = 2;

    fn encode(&self, out: &mut Vec<u8>) {
        let code: u16 = match self {
            ServerInfo::Export { .. } => 0,
            ServerInfo::Name(_) => ServerInfo::WANT_NAME,
            ServerInfo::Description(_) => ServerInfo::WANT_DESCRIPTION,
            ServerInfo::BlockSize { .. } => ServerInfo::WANT_BLOCK_SIZE,
        };
        out.extend_from_slice(&code.to_be_bytes());
        match self {
            ServerInfo::Export { size, flags } => {
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
            }
            ServerInfo::Name(text) | ServerInfo::Description(text) => {
                out.extend_from_slice(text.as_bytes());
            }
            ServerInfo::BlockSize { least, preferred, most } => {
                for size in [least, preferred, most] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
        }
    }

    fn decode(mut input: Cursor<'_>) -> Option<ServerInfo> {
        let info = match input.u16_be()? {
            0 => ServerInfo::Export { size: input.u64_be()?, flags: input.u16_be()? },
            1 => ServerInfo::Name(rest(&mut input, NBD_STRING_MAX)?),
            2 => ServerInfo::Description(rest(&mut input, NBD_STRING_MAX)?),
            ServerInfo::WANT_BLOCK_SIZE => {
                let (least, preferred, most) = (input.u32_be()?, input.u32_be()?, input.u32_be()?);
                ServerInfo::BlockSize { least, preferred, most }
            }
            _ => return None,
        };
        done(input, info)
    }
}

/// A refusal of an option, or its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyCode {
    /// The option is not known.
    Unsupported,
    /// The server does not allow it.
    Policy,
    /// Its data is not what it must be.
    Invalid,
    /// This machine cannot do it.
    Platform,
    /// TLS comes first.
    TlsRequired,
    /// No such export.
    Unknown,
    /// The server is going down.
    Shutdown,
    /// The client must ask for block sizes.
    BlockSizeRequired,
    /// Too much is asked for.
    TooBig,
}

/// Numbers of refusals begin behind this.
const ERROR: u32 = 1 << 31;
const ERRORS: [(u32, ReplyCode); 9] = [
    (1, ReplyCode::Unsupported),
    (2, ReplyCode::Policy),
    (3, ReplyCode::Invalid),
    (4, ReplyCode::Platform),
    (5, ReplyCode::TlsRequired),
    (6, ReplyCode::Unknown),
    (7, ReplyCode::Shutdown),
    (8, ReplyCode::BlockSizeRequired),
    (9, ReplyCode::TooBig),
];

/// A reply to an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionReply {
    /// Done; nothing more comes.
    Ack,
    /// One export of a list.
    Server(String),
    /// A fact of an export.
    Info(ServerInfo),
    /// A metadata context and its number on this connection.
    MetaContext {
        /// The number; 0 in answers to a mere question.
        id: u32,
        /// Its name.
        name: String,
    },
    /// A refusal, with its reason in words.
    Refused {
        /// The reason.
        code: ReplyCode,
        /// The reason in words.
        message: String,
    },
}

impl OptionReply {
    /// Appends the reply to an option.
    pub fn encode(&self, to: OptionCode, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        let code = match self {
            OptionReply::Ack => 1,
            OptionReply::Server(name) => {
                put_string(&mut data, name);
                2
            }
            OptionReply::Info(info) => {
                info.encode(&mut data);
                3
            }
            OptionReply::MetaContext { id, name } => {
                data.extend_from_slice(&id.to_be_bytes());
                data.extend_from_slice(name.as_bytes());
                4
            }
            OptionReply::Refused { code, message } => {
                data.extend_from_slice(message.as_bytes());
                ERROR + ERRORS.iter().find(|(_, known)| known == code).expect("in the table").0
            }
        };
        out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&to.get().to_be_bytes());
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(&data);
    }
}

/// A reply at the front of `bytes`, the option it answers, and the bytes it takes; nothing when
/// more must come first. For clients.
pub fn decode_reply(
    bytes: &[u8],
) -> Result<Option<(OptionCode, OptionReply, usize)>, ProtocolError> {
    let mut input = Cursor(bytes);
    let Some(magic) = input.u64_be() else { return Ok(None) };
    if magic != REPLY_MAGIC {
        return Err(ProtocolError::Magic { what: "reply to an option", seen: magic });
    }
    let (Some(to), Some(code), Some(len)) = (input.u32_be(), input.u32_be(), input.u32_be()) else {
        return Ok(None);
    };
    if len > NBD_OPTION_MAX {
        let (len, max) = (u64::from(len), u64::from(NBD_OPTION_MAX));
        return Err(ProtocolError::TooLong { what: "a reply to an option", len, max });
    }
    let Some(data) = input.take(len as usize) else { return Ok(None) };
    let reply = reply_of(code, Cursor(data));
    let reply = reply.ok_or(ProtocolError::Malformed { what: "a reply to an option" })?;
    Ok(Some((OptionCode::new(to), reply, bytes.len() - input.0.len())))
}

fn reply_of(code: u32, mut data: Cursor<'_>) -> Option<OptionReply> {
    let reply = match code {
        1 => OptionReply::Ack,
        2 => OptionReply::Server(string(&mut data, NBD_STRING_MAX)?),
        3 => return ServerInfo::decode(data).map(OptionReply::Info),
        4 => {
            OptionReply::MetaContext { id: data.u32_be()?, name: rest(&mut data, NBD_STRING_MAX)? }
        }
        code => {
            let number = code.checked_sub(ERROR)?;
            let code = ERRORS.iter().find(|(known, _)| *known == number)?.1;
            OptionReply::Refused { code, message: rest(&mut data, NBD_STRING_MAX)? }
        }
    };
    done(data, reply)
}

/// Appends the reply to [`OptionRequest::ExportName`], which has no head.
pub fn encode_export_name_reply(size: u64, flags: u16, no_zeroes: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if !no_zeroes {
        out.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
    }
}
