//! The fixed little-endian encoding of commands, answers and snapshots of our state machines.

use std::fmt;
use std::net::SocketAddr;

use base::{ClientId, DirId, FileId};
use codec::cursor::Cursor;
use codec::{crc32c, crc32c_extend};
use wire::control::{Compression, Later, NameKey, OpId, Policy, Verify};

/// The bytes end early, go on too long, or hold a value that their writer never wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError;

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are of another format")
    }
}

impl std::error::Error for DecodeError {}

/// Appends values to a vector.
#[derive(Default, Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Nothing yet.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// The bytes written.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// The bytes written so far; the writer begins again.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    /// 0 or 1.
    pub fn bool(&mut self, value: bool) -> &mut Writer {
        self.u8(u8::from(value))
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// Sixteen bytes.
    pub fn u128(&mut self, value: u128) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    /// A number of things that follow.
    pub fn count(&mut self, count: usize) -> &mut Writer {
        self.u32(u32::try_from(count).expect("tables hold fewer than 2^32 things"))
    }

    /// Length and bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.count(bytes.len()).raw(bytes)
    }

    /// Length and UTF-8.
    pub fn str(&mut self, text: &str) -> &mut Writer {
        self.bytes(text.as_bytes())
    }

    /// The bytes alone.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A directory's identity.
    pub fn dir(&mut self, dir: DirId) -> &mut Writer {
        self.u128(dir.get())
    }

    /// A file's identity.
    pub fn file(&mut self, file: FileId) -> &mut Writer {
        self.u64(file.get())
    }

    /// A place for a name.
    pub fn place(&mut self, place: &NameKey) -> &mut Writer {
        self.dir(place.parent).str(&place.name)
    }

    /// A mutation's identity.
    pub fn op(&mut self, op: &OpId) -> &mut Writer {
        self.u64(op.client.get()).u64(op.seq).u64(op.acked_below)
    }

    /// A policy. The form of plain copies is that of versions which had nothing else; one with a
    /// compression or a code begins with a byte that is no number of copies. What writers verify, where it
    /// is not the usual, and what old chunks get stand in front of it, in this order. A master of such a
    /// version cannot decode what has that, and stops (decision 49).
    pub fn policy(&mut self, policy: Policy) -> &mut Writer {
        let Policy { copies, acks, data, compression, later, verify } = policy;
        if verify != Verify::default() {
            self.u8(VERIFY_POLICY).u8(verify.number());
        }
        if let Some(later) = later {
            self.u8(LATER_POLICY).u32(later.after_s).policy(later.policy());
        }
        let byte = Compression::to_byte(compression);
        match compression {
            _ if data != 1 => self.u8(CODED_POLICY).u8(data).u8(copies).u8(acks).u8(byte),
            None => self.u8(copies).u8(acks),
            Some(_) => self.u8(COMPRESSED_POLICY).u8(copies).u8(acks).u8(byte),
        }
    }

    /// An address, as text.
    pub fn addr(&mut self, addr: SocketAddr) -> &mut Writer {
        self.str(&addr.to_string())
    }
}

/// First byte of the form of a policy with compression.
const COMPRESSED_POLICY: u8 = 0xC0;
/// First byte of the form of a policy with a code.
const CODED_POLICY: u8 = 0xC1;
/// First byte of what old chunks get, in front of the form of the policy.
const LATER_POLICY: u8 = 0xC2;
/// First byte of what writers verify, in front of that.
const VERIFY_POLICY: u8 = 0xC3;

/// The key of a row: big-endian, so that keys are in the order of their IDs.
pub fn row_key<const N: usize>(table: u8, id: [u8; N], name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + N + name.len());
    key.push(table);
    key.extend_from_slice(&id);
    key.extend_from_slice(name.as_bytes());
    key
}

/// The table, identity and name of [`row_key`].
pub fn split_key<const N: usize>(key: &[u8]) -> Result<([u8; N], &str), DecodeError> {
    let (_, rest) = key.split_first().ok_or(DecodeError)?;
    let (id, name) = rest.split_first_chunk().ok_or(DecodeError)?;
    Ok((*id, std::str::from_utf8(name).map_err(|_| DecodeError)?))
}

/// Takes values from a slice, in the order in which they were written.
#[derive(Clone, Debug)]
pub struct Reader<'a>(Cursor<'a>);

impl<'a> Reader<'a> {
    /// From the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(Cursor(bytes))
    }

    /// Fails unless everything was taken.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError) }
    }

    /// The bytes not taken yet.
    pub fn rest(self) -> &'a [u8] {
        self.0.0
    }

    /// `len` bytes.
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        self.0.take(len).ok_or(DecodeError)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.0.u8().ok_or(DecodeError)
    }

    /// 0 or 1.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError),
        }
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.0.u16().ok_or(DecodeError)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.0.u32().ok_or(DecodeError)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.0.u64().ok_or(DecodeError)
    }

    /// Sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        self.0.u128().ok_or(DecodeError)
    }

    /// A number of things that follow, each of at least one byte.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        if count > self.0.0.len() { Err(DecodeError) } else { Ok(count) }
    }

    /// Length and bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.count()?;
        self.raw(len)
    }

    /// Length and UTF-8.
    pub fn str(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError)
    }

    /// `count` things.
    pub fn list<T>(
        &mut self,
        mut take: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.count()?;
        (0..count).map(|_| take(self)).collect()
    }

    /// A directory's identity.
    pub fn dir(&mut self) -> Result<DirId, DecodeError> {
        self.u128().map(DirId::new)
    }

    /// A file's identity.
    pub fn file(&mut self) -> Result<FileId, DecodeError> {
        self.u64().map(FileId::new)
    }

    /// A place for a name.
    pub fn place(&mut self) -> Result<NameKey, DecodeError> {
        Ok(NameKey { parent: self.dir()?, name: self.str()?.to_owned() })
    }

    /// A mutation's identity.
    pub fn op(&mut self) -> Result<OpId, DecodeError> {
        let client = ClientId::new(self.u64()?);
        Ok(OpId { client, seq: self.u64()?, acked_below: self.u64()? })
    }

    /// A policy, which may be an invalid one.
    pub fn policy(&mut self) -> Result<Policy, DecodeError> {
        let first = self.u8()?;
        if first == VERIFY_POLICY {
            let verify = Verify::from_number(self.u8()?).filter(|it| *it != Verify::default());
            let verify = verify.ok_or(DecodeError)?;
            let first = self.u8()?;
            return Ok(self.dated_from(first)?.verified(verify));
        }
        self.dated_from(first)
    }

    /// A policy that does not say what is verified.
    fn dated_from(&mut self, first: u8) -> Result<Policy, DecodeError> {
        if first == LATER_POLICY {
            let after_s = self.u32()?;
            let later = Later::new(after_s, self.form()?);
            return Ok(self.form()?.and_later(Some(later)));
        }
        self.form_from(first)
    }

    /// A policy that says nothing of later.
    fn form(&mut self) -> Result<Policy, DecodeError> {
        let first = self.u8()?;
        self.form_from(first)
    }

    fn form_from(&mut self, first: u8) -> Result<Policy, DecodeError> {
        if !matches!(first, COMPRESSED_POLICY | CODED_POLICY) {
            return Ok(Policy::plain(first, self.u8()?));
        }
        let data = if first == CODED_POLICY { self.u8()? } else { 1 };
        let policy = Policy { data, ..Policy::plain(self.u8()?, self.u8()?) };
        let compression = Compression::from_byte(self.u8()?).map_err(|_| DecodeError)?;
        // One form: what is neither coded nor compressed is written without.
        match (data, compression) {
            (1, _) if first == CODED_POLICY => Err(DecodeError),
            (1, None) => Err(DecodeError),
            _ => Ok(policy.compressed(compression)),
        }
    }

    /// An address.
    pub fn addr(&mut self) -> Result<SocketAddr, DecodeError> {
        self.str()?.parse().map_err(|_| DecodeError)
    }
}

/// Bytes in front of a snapshot's body: magic, version, CRC32C of version and body.
const SNAPSHOT_HEAD: usize = 9;

/// A writer for a snapshot's body of about `len` bytes; see [`end_snapshot`].
pub fn begin_snapshot(len: usize) -> Writer {
    let mut bytes = Vec::with_capacity(SNAPSHOT_HEAD + len);
    bytes.resize(SNAPSHOT_HEAD, 0);
    Writer(bytes)
}

/// Puts magic, version and CRC32C in front of what was written since [`begin_snapshot`].
pub fn end_snapshot(magic: [u8; 4], version: u8, body: Writer) -> Vec<u8> {
    let mut bytes = body.finish();
    let (head, body) = bytes.split_at_mut(SNAPSHOT_HEAD);
    head[..4].copy_from_slice(&magic);
    head[4] = version;
    head[5..].copy_from_slice(&checksum(version, body).to_le_bytes());
    bytes
}

/// As [`end_snapshot`], of a body that is there already.
pub fn seal_snapshot(magic: [u8; 4], version: u8, body: &[u8]) -> Vec<u8> {
    let mut writer = begin_snapshot(body.len());
    writer.raw(body);
    end_snapshot(magic, version, writer)
}

/// The version and body of a snapshot, verified.
pub fn open_snapshot(magic: [u8; 4], bytes: &[u8]) -> Result<(u8, &[u8]), DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.raw(4)? != magic {
        return Err(DecodeError);
    }
    let (version, crc) = (reader.u8()?, reader.u32()?);
    let body = reader.rest();
    if checksum(version, body) == crc { Ok((version, body)) } else { Err(DecodeError) }
}

fn checksum(version: u8, body: &[u8]) -> u32 {
    crc32c_extend(crc32c(&[version]), body)
}
