//! Rows of object servers and of ranges (`docs/formats/object.md`).

use std::net::SocketAddr;

use codec::cursor::put_varint;
use object_proto::{BucketId, ObjectServerId, RangeBound};

use crate::fields::{TEXT_MAX, VERSION, begin, put_text, text, whole};

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
        out.extend(self.first.bucket.get().to_le_bytes());
        put_text(&mut out, &self.first.key);
        put_varint(&mut out, self.epoch);
        // Servers are numbered from 1.
        put_varint(&mut out, self.owner.map_or(0, |owner| owner.get().into()));
        out
    }

    /// Reads a value.
    pub fn decode(value: &[u8]) -> Option<RangeRow> {
        let mut cursor = begin(value)?;
        let bucket = BucketId::new(cursor.u64()?);
        let first = RangeBound { bucket, key: text(&mut cursor, TEXT_MAX)? };
        let epoch = cursor.varint()?;
        let owner = u32::try_from(cursor.varint()?).ok()?;
        let owner = (owner > 0).then(|| ObjectServerId::new(owner));
        whole(cursor, RangeRow { first, epoch, owner })
    }
}
