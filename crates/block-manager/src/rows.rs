//! Rows of the manager's table (`docs/formats/block-manager.md`).

use std::collections::VecDeque;
use std::fmt;
use std::net::{SocketAddr, SocketAddrV6};
use std::ops::{Deref, DerefMut};

use block_proto::{BlockServerId, VolumeGeometry, VolumeSpec};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use codec::cursor::Cursor;
use table::Batch;
use wire::control::Policy;

use super::entity::{
    AttachedClient, Boots, Counters, Deleted, Family, PendingDelete, Segment, Server, Volume,
};
use super::limits::{DONE_MAX, ROW_OVERHEAD, ROWS_TOGETHER, ROWS_TOGETHER_BYTES};

/// Version of the rows' form: the first byte of each value.
pub const VERSION: u8 = 1;
/// Stands for a whole volume in the key of a pending delete.
const WHOLE: u32 = u32::MAX;

/// The subject of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Key {
    /// Numbers that come next.
    Counters,
    /// A block server.
    Server(BlockServerId),
    /// Processes of a block server.
    Boots(BlockServerId),
    /// A segment.
    Segment(SegmentId),
    /// Files to be removed.
    PendingDelete(PendingDelete),
    /// A volume.
    Volume(VolumeId),
    /// Changes of a volume that have happened, and some that were refused.
    Done(VolumeId),
}

/// A row's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Of [`Key::Counters`].
    Counters(Counters),
    /// Of [`Key::Server`].
    Server(Server),
    /// Of [`Key::Boots`].
    Boots(Boots),
    /// Of [`Key::Segment`].
    Segment(Segment),
    /// Of [`Key::PendingDelete`].
    PendingDelete {
        /// The creation of the volume.
        nonce: u64,
    },
    /// Of [`Key::Volume`].
    Volume(Volume),
    /// Of [`Key::Done`]: numbers of the latest ones, in order, [`DONE_MAX`] at most (of a volume that was
    /// removed, the creation's alone), with those that were
    /// refused in front.
    Done(Vec<u64>),
}

/// A change of one row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The row.
    pub key: Key,
    /// Its content; `None` when it goes.
    pub value: Option<Value>,
}

/// A row that this program cannot read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// Its key.
    pub key: Vec<u8>,
    /// The version of its form, when that is the cause.
    pub version: Option<u8>,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the row {:02x?} of the block manager's table ", self.key)?;
        match self.version {
            Some(version) => write!(
                f,
                "has format version {version}, this program reads {VERSION}; use the program \
                 that wrote it"
            ),
            None => f.write_str("is damaged; restore the table"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl Row {
    /// A row with its content.
    pub fn put(key: Key, value: Value) -> Row {
        Row { key, value: Some(value) }
    }

    /// A row that goes.
    pub fn delete(key: Key) -> Row {
        Row { key, value: None }
    }

    /// Its key in the table.
    pub fn key_bytes(&self) -> Vec<u8> {
        match self.key {
            Key::Counters => b"c".to_vec(),
            Key::Server(id) => [b"b".as_slice(), &id.get().to_be_bytes()].concat(),
            Key::Boots(id) => [b"p".as_slice(), &id.get().to_be_bytes()].concat(),
            Key::Segment(id) => segment_key(b"s", id.volume, id.index),
            Key::PendingDelete(pending_delete) => {
                segment_key(b"t", pending_delete.volume, pending_delete.segment.unwrap_or(WHOLE))
            }
            Key::Volume(id) => [b"v".as_slice(), &id.get().to_be_bytes()].concat(),
            Key::Done(id) => [b"d".as_slice(), &id.get().to_be_bytes()].concat(),
        }
    }

    /// Its content in the table.
    pub fn value_bytes(&self) -> Option<Vec<u8>> {
        let mut out = vec![VERSION];
        match self.value.as_ref()? {
            Value::Counters(counters) => {
                put_u64(&mut out, counters.volume);
                put_u32(&mut out, counters.server);
            }
            Value::Server(server) => {
                put_text(&mut out, &server.name);
                put_addr(&mut out, server.addr);
            }
            Value::Boots(boots) => {
                put_u64(&mut out, boots.given);
                put_u64(&mut out, boots.heard);
            }
            Value::Segment(segment) => {
                put_u64(&mut out, segment.epoch);
                put_u32(&mut out, segment.owner.map_or(0, BlockServerId::get));
            }
            Value::PendingDelete { nonce } => put_u64(&mut out, *nonce),
            Value::Volume(volume) => put_volume(&mut out, volume),
            Value::Done(done) => {
                out.push(done.len() as u8);
                done.iter().for_each(|&once| put_u64(&mut out, once));
            }
        }
        Some(out)
    }

    /// A row of the table.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Row, DecodeError> {
        let bad = |version| DecodeError { key: key.to_vec(), version };
        match value.first() {
            Some(&VERSION) => {}
            version => return Err(bad(version.copied())),
        }
        let mut input = Input(Cursor(&value[1..]));
        let row = decode_key(key).and_then(|key| {
            let value = match key {
                Key::Counters => {
                    let (volume, server) = (input.u64()?, input.u32()?);
                    Value::Counters(Counters { volume, server })
                }
                Key::Server(_) => {
                    let (name, addr) = (input.text()?, input.addr()?);
                    Value::Server(Server { name, addr })
                }
                Key::Boots(_) => {
                    let (given, heard) = (input.u64()?, input.u64()?);
                    Value::Boots(Boots { given, heard })
                }
                Key::Segment(_) => {
                    let (epoch, owner) = (input.u64()?, input.u32()?);
                    let owner = (owner != 0).then_some(BlockServerId::new(owner));
                    Value::Segment(Segment { epoch, owner })
                }
                Key::PendingDelete(_) => Value::PendingDelete { nonce: input.u64()? },
                Key::Volume(_) => Value::Volume(input.volume()?),
                Key::Done(_) => {
                    let count = Some(usize::from(input.u8()?)).filter(|&it| it <= DONE_MAX)?;
                    Value::Done((0..count).map(|_| input.u64()).collect::<Option<_>>()?)
                }
            };
            Some(Row::put(key, value))
        });
        row.filter(|_| input.is_empty()).ok_or(bad(None))
    }
}

/// Takes changes from the front of a queue for one batch of the table: one at least, more while
/// they are small. Answers how many.
pub fn next_batch(queue: &mut VecDeque<Vec<Row>>) -> (usize, Batch) {
    let (mut batch, mut taken, mut rows, mut bytes) = (Batch::new(), 0, 0, 0);
    while let Some(change) = queue.front() {
        let change: Vec<_> =
            change.iter().map(|row| (row.key_bytes(), row.value_bytes())).collect();
        let of = |value: &Option<Vec<u8>>| ROW_OVERHEAD + value.as_ref().map_or(0, Vec::len);
        rows += change.len();
        bytes += change.iter().map(|(_, value)| of(value)).sum::<usize>();
        if taken > 0 && (rows > ROWS_TOGETHER || bytes > ROWS_TOGETHER_BYTES) {
            break;
        }
        for (key, value) in change {
            match value {
                Some(value) => batch.put(&key, &value),
                None => batch.delete(&key),
            };
        }
        taken += 1;
        queue.pop_front();
    }
    (taken, batch)
}

fn segment_key(kind: &[u8], volume: VolumeId, index: u32) -> Vec<u8> {
    [kind, &volume.get().to_be_bytes(), &index.to_be_bytes()].concat()
}

fn decode_key(key: &[u8]) -> Option<Key> {
    let (&kind, rest) = key.split_first()?;
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
    let pair = |bytes: &[u8]| {
        let (volume, index) = bytes.split_first_chunk::<8>()?;
        let index = u32::from_be_bytes(index.try_into().ok()?);
        Some((VolumeId::new(u64::from_be_bytes(*volume)), index))
    };
    Some(match kind {
        b'c' if rest.is_empty() => Key::Counters,
        b'b' => Key::Server(BlockServerId::new(u32::from_be_bytes(rest.try_into().ok()?))),
        b'p' => Key::Boots(BlockServerId::new(u32::from_be_bytes(rest.try_into().ok()?))),
        b's' => {
            let (volume, index) = pair(rest)?;
            Key::Segment(SegmentId { volume, index })
        }
        b't' => {
            let (volume, index) = pair(rest)?;
            Key::PendingDelete(PendingDelete { volume, segment: (index != WHOLE).then_some(index) })
        }
        b'v' => Key::Volume(VolumeId::new(number(rest)?)),
        b'd' => Key::Done(VolumeId::new(number(rest)?)),
        _ => return None,
    })
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_addr(out: &mut Vec<u8>, addr: SocketAddr) {
    match addr {
        SocketAddr::V4(addr) => {
            out.push(4);
            out.extend(addr.ip().octets());
        }
        SocketAddr::V6(addr) => {
            out.push(6);
            out.extend(addr.ip().octets());
            put_u32(out, addr.scope_id());
        }
    }
    out.extend(addr.port().to_le_bytes());
}

fn put_volume(out: &mut Vec<u8>, volume: &Volume) {
    let VolumeSpec { name, bytes, geometry, policy, limits, shared } = &volume.spec;
    put_u64(out, volume.nonce);
    put_text(out, name);
    put_u64(out, *bytes);
    put_u64(out, geometry.group_bytes);
    put_u32(out, geometry.segments_per_group);
    put_u64(out, geometry.data_sector);
    let family = volume.family;
    let related = family != Family::default();
    let deleted = u8::from(volume.deleted.is_some());
    let counted = u8::from(volume.deleted.is_some_and(|deleted| deleted.left_ms.is_some()));
    let coded = policy.is_coded();
    let flags = u8::from(*shared)
        | u8::from(related) << 1
        | deleted << 2
        | counted << 3
        | u8::from(coded) << 4;
    out.extend([policy.copies, policy.acks, flags]);
    if coded {
        out.push(policy.data);
    }
    for limit in [limits.iops_base, limits.iops_burst, limits.bytes_base, limits.bytes_burst] {
        put_u64(out, limit);
    }
    put_u64(out, volume.attach_epoch);
    put_u64(out, volume.owner_floor);
    out.push(volume.attached.len() as u8);
    for attached in &volume.attached {
        put_u64(out, attached.epoch);
        put_u64(out, attached.nonce);
        put_text(out, &attached.holder);
    }
    if related {
        let counted = family.clone_source_segments.is_some();
        out.push(u8::from(family.making) | u8::from(counted) << 1);
        put_u64(out, family.parent.map_or(0, VolumeId::get));
        put_u64(out, family.clone_source.map_or(0, VolumeId::get));
        put_u64(out, family.hold_us);
        family.clone_source_segments.into_iter().for_each(|count| put_u32(out, count));
    }
    if let Some(Deleted { at_ms, until_ms, left_ms }) = volume.deleted {
        put_u64(out, at_ms);
        put_u64(out, until_ms);
        left_ms.into_iter().for_each(|left| put_u64(out, left));
    }
}

/// Takes the values of a row off the front of bytes.
struct Input<'a>(Cursor<'a>);

impl<'a> Deref for Input<'a> {
    type Target = Cursor<'a>;

    fn deref(&self) -> &Cursor<'a> {
        &self.0
    }
}

impl<'a> DerefMut for Input<'a> {
    fn deref_mut(&mut self) -> &mut Cursor<'a> {
        &mut self.0
    }
}

impl Input<'_> {
    fn text(&mut self) -> Option<String> {
        let len = usize::from(self.u16()?);
        String::from_utf8(self.take(len)?.to_vec()).ok()
    }

    fn addr(&mut self) -> Option<SocketAddr> {
        Some(match self.u8()? {
            4 => SocketAddr::from((self.array::<4>()?, self.u16()?)),
            6 => {
                let (ip, scope) = (self.array::<16>()?, self.u32()?);
                SocketAddrV6::new(ip.into(), self.u16()?, 0, scope).into()
            }
            _ => return None,
        })
    }

    fn volume(&mut self) -> Option<Volume> {
        let (nonce, name, bytes) = (self.u64()?, self.text()?, self.u64()?);
        let geometry = VolumeGeometry {
            group_bytes: self.u64()?,
            segments_per_group: self.u32()?,
            data_sector: self.u64()?,
        };
        let [copies, acks, flags] = self.array()?;
        let coded = flags & 16 != 0;
        let data = if coded { self.u8()? } else { 1 };
        let policy = Policy { data, ..Policy::plain(copies, acks) };
        let limits = VolumeLimits {
            iops_base: self.u64()?,
            iops_burst: self.u64()?,
            bytes_base: self.u64()?,
            bytes_burst: self.u64()?,
        };
        let (shared, related, deleted, counted) = match flags & !16 {
            flags @ (0..=7 | 12..=15) => {
                (flags & 1 == 1, flags & 2 == 2, flags & 4 == 4, flags & 8 == 8)
            }
            _ => return None,
        };
        let spec = VolumeSpec { name, bytes, geometry, policy, limits, shared };
        // Assumptions of the users of rows.
        let sound =
            policy.is_valid() && policy.is_coded() == coded && block_proto::geometry(&spec).is_ok();
        let (attach_epoch, owner_floor) = (self.u64()?, self.u64()?);
        let mut attached = Vec::new();
        for _ in 0..self.u8()? {
            let (epoch, nonce) = (self.u64()?, self.u64()?);
            attached.push(AttachedClient { epoch, nonce, holder: self.text()? });
        }
        let family = if related { self.family()? } else { Family::default() };
        let deleted = match deleted {
            true => Some(self.deleted(counted)?),
            false => None,
        };
        let volume = Volume { nonce, spec, attach_epoch, owner_floor, attached, family, deleted };
        sound.then_some(volume)
    }

    fn deleted(&mut self, counted: bool) -> Option<Deleted> {
        let (at_ms, until_ms) = (self.u64()?, self.u64()?);
        let left_ms = if counted { Some(self.u64()?) } else { None };
        Some(Deleted { at_ms, until_ms, left_ms })
    }

    fn family(&mut self) -> Option<Family> {
        let (making, counted) = match self.u8()? {
            flags @ 0..=3 => (flags & 1 == 1, flags & 2 == 2),
            _ => return None,
        };
        let volume = |id: u64| (id != 0).then_some(VolumeId::new(id));
        let (parent, clone_source) = (volume(self.u64()?), volume(self.u64()?));
        let hold_us = self.u64()?;
        let clone_source_segments = if counted { Some(self.u32()?) } else { None };
        let family = Family { parent, clone_source, clone_source_segments, making, hold_us };
        (family != Family::default()).then_some(family)
    }
}
