//! Rows of object servers and of ranges (`docs/formats/object.md`).

use std::net::SocketAddr;

use codec::cursor::put_varint;
use object_proto::{ObjectServerId, RangeBound, RangeId};

use crate::fields::{TEXT_MAX, VERSION, begin, put_text, text, whole};
use crate::halves::{bound, put_bound};

/// An object server; its number is the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerRow {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// The last number that was given to a process of it.
    pub given: u64,
    /// The last process that sent a heartbeat: those before it own nothing any more.
    pub heard: u64,
}

impl ServerRow {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_text(&mut out, &self.name);
        put_text(&mut out, &self.addr.to_string());
        put_varint(&mut out, self.given);
        put_varint(&mut out, self.heard);
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<ServerRow> {
        let mut cursor = begin(value)?;
        let name = text(&mut cursor, TEXT_MAX)?;
        let addr = text(&mut cursor, TEXT_MAX)?.parse().ok()?;
        let (given, heard) = (cursor.varint()?, cursor.varint()?);
        whole(cursor, ServerRow { name, addr, given, heard })
    }
}

/// A range; its number is the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeRow {
    /// Its first key.
    pub first: RangeBound,
    /// The epoch of its owner; 0: it never had one since owners have epochs of their own.
    pub epoch: u64,
    /// Its owner.
    pub owner: Option<ObjectServerId>,
}

impl RangeRow {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bound(&mut out, &self.first);
        put_varint(&mut out, self.epoch);
        // Servers are numbered from 1.
        put_varint(&mut out, self.owner.map_or(0, |owner| owner.get().into()));
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<RangeRow> {
        let mut cursor = begin(value)?;
        let first = bound(&mut cursor)?;
        let epoch = cursor.varint()?;
        let owner = u32::try_from(cursor.varint()?).ok()?;
        let owner = (owner > 0).then(|| ObjectServerId::new(owner));
        whole(cursor, RangeRow { first, epoch, owner })
    }
}

/// A split of a range that has begun; the range's number is the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitRow {
    /// The owner that makes it, by its epoch.
    pub epoch: u64,
    /// The range of the lower keys.
    pub low: RangeId,
    /// The range of the upper keys.
    pub high: RangeId,
    /// The first key of that one.
    pub at: RangeBound,
}

impl SplitRow {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.epoch);
        out.extend(self.low.get().to_le_bytes());
        out.extend(self.high.get().to_le_bytes());
        put_bound(&mut out, &self.at);
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<SplitRow> {
        let mut cursor = begin(value)?;
        let epoch = cursor.varint()?;
        let (low, high) = (RangeId::new(cursor.u64()?), RangeId::new(cursor.u64()?));
        let at = bound(&mut cursor)?;
        whole(cursor, SplitRow { epoch, low, high, at })
    }
}

/// The value of a row that has a number: the last one that a range got, or the time since when a directory is in
/// the trash, microseconds since 1970.
pub fn encode_number(number: u64) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_varint(&mut out, number);
    out
}

/// Reads such a value.
pub fn decode_number(value: &[u8]) -> Option<u64> {
    let mut cursor = begin(value)?;
    let number = cursor.varint()?;
    whole(cursor, number)
}
