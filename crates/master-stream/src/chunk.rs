//! A chunk in its stream's state: 72 bytes, replicas included.

use std::collections::BTreeMap;

use base::limits::CHUNK_LEN_MAX;
use base::{ChunkId, Epoch};

use wire::control::{Compression, Policy};

use super::encoding::Encode;
use super::limits::SLOTS_MAX;
use crate::placement::ReplicaLocation;
use master_consensus::bytes::{DecodeError, Reader, Writer};

/// A place by its number in the partition's table: 4 bytes instead of 20.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct PlaceIndex(pub u32);

/// Places that the partition has ever used, numbered in the order of their first use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Places {
    list: Vec<ReplicaLocation>,
    index: BTreeMap<ReplicaLocation, PlaceIndex>,
}

impl Places {
    /// The number of `place`, a new one when it has none.
    pub fn intern(&mut self, place: ReplicaLocation) -> PlaceIndex {
        if let Some(&index) = self.index.get(&place) {
            return index;
        }
        let index = PlaceIndex(u32::try_from(self.list.len()).expect("fewer than 2^32 disks"));
        self.list.push(place);
        self.index.insert(place, index);
        index
    }

    /// The number of `place`, if it has one.
    pub fn find(&self, place: ReplicaLocation) -> Option<PlaceIndex> {
        self.index.get(&place).copied()
    }

    /// The place with a number.
    pub fn get(&self, index: PlaceIndex) -> ReplicaLocation {
        self.list[index.0 as usize]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = ReplicaLocation> + '_ {
        self.list.iter().copied()
    }

    /// Number of replicas.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl Encode for Places {
    fn put(&self, to: &mut Writer) {
        self.list.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Result<Places, DecodeError> {
        let mut places = Places::default();
        for place in Vec::<ReplicaLocation>::take(from)? {
            places.intern(place);
        }
        Ok(places)
    }
}

/// The stream's record of one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Its location.
    pub place: PlaceIndex,
    /// Known to be sealed at the chunk's length.
    pub sealed: bool,
    /// Being made by recovery or repair: no vote, no reads.
    pub target: bool,
}

/// A chunk of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its identity.
    pub id: ChunkId,
    /// The one epoch it is written under (`protocols.md` 1.1).
    pub epoch: Epoch,
    /// Offset in the file of its first byte; 0 for a spare.
    pub base: u64,
    /// Its committed length; 0 while open: a sealed chunk is never empty.
    len: u32,
    /// MinCopy, as allocated.
    pub acks: u8,
    /// MaxCopy: the copies that it is to have, whatever the file's policy becomes.
    pub copies: u8,
    /// Compression that its writer is asked for.
    pub compression: Option<Compression>,
    count: u8,
    sealed_slots: u8,
    target: u8,
    slots: [PlaceIndex; SLOTS_MAX],
}

/// Memory of an index rests on it: below 200 bytes a sealed chunk, with 24 in the index.
const _: () = assert!(size_of::<Chunk>() <= 72);

impl Chunk {
    /// A new chunk, whose replicas all take part in acknowledgements. Of the policy's copies it may get
    /// fewer.
    pub fn new(id: ChunkId, epoch: Epoch, policy: Policy, places: &[PlaceIndex]) -> Chunk {
        let mut slots = [PlaceIndex::default(); SLOTS_MAX];
        slots[..places.len()].copy_from_slice(places);
        let count = places.len() as u8;
        let (base, len, sealed_slots, target) = (0, 0, 0, 0);
        let Policy { copies, acks, compression, .. } = policy;
        Chunk {
            id,
            epoch,
            base,
            len,
            acks,
            copies,
            compression,
            count,
            sealed_slots,
            target,
            slots,
        }
    }

    /// Its committed length; absent while open.
    pub fn sealed(&self) -> Option<u32> {
        (self.len > 0).then_some(self.len)
    }

    /// Seals it.
    pub fn seal(&mut self, len: u32) {
        assert!(self.len == 0 && len > 0, "a chunk is sealed once, never empty");
        assert!(u64::from(len) <= CHUNK_LEN_MAX);
        self.len = len;
    }

    /// Offset in the file behind its last byte.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.len)
    }

    /// Its replicas.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..usize::from(self.count)).map(|at| Slot {
            place: self.slots[at],
            sealed: self.sealed_slots >> at & 1 == 1,
            target: self.target >> at & 1 == 1,
        })
    }

    /// Replicas that take part in acknowledgements of an open chunk: its n.
    pub fn voters(&self) -> usize {
        usize::from(self.count) - self.target.count_ones() as usize
    }

    /// Replicas on record, those that are being made included.
    pub fn len_slots(&self) -> usize {
        usize::from(self.count)
    }

    /// The replica at `place`.
    pub fn slot(&self, place: PlaceIndex) -> Option<Slot> {
        self.slots().find(|slot| slot.place == place)
    }

    /// True when every replica is known to be sealed.
    pub fn is_sealed_everywhere(&self) -> bool {
        self.sealed_slots.count_ones() == u32::from(self.count)
    }

    fn at(&self, place: PlaceIndex) -> usize {
        let held = &self.slots[..usize::from(self.count)];
        held.iter().position(|&slot| slot == place).expect("a replica of the chunk")
    }

    /// Records a replica that is to be made. The caller has checked that there is room and that
    /// `place` has none.
    pub fn add_target(&mut self, place: PlaceIndex) {
        let at = usize::from(self.count);
        assert!(at < SLOTS_MAX && self.slot(place).is_none());
        self.slots[at] = place;
        self.target |= 1 << at;
        self.count += 1;
    }

    /// A replica that was being made is made: it counts as any other.
    pub fn promote(&mut self, place: PlaceIndex) {
        self.target &= !(1 << self.at(place));
    }

    /// A replica is known to be sealed.
    pub fn seal_slot(&mut self, place: PlaceIndex) {
        let at = self.at(place);
        self.target &= !(1 << at);
        self.sealed_slots |= 1 << at;
    }

    /// Takes a replica off.
    pub fn remove(&mut self, place: PlaceIndex) {
        let (at, count) = (self.at(place), usize::from(self.count));
        self.slots.copy_within(at + 1..count, at);
        self.slots[count - 1] = PlaceIndex::default();
        let squeeze = |mask: u8| {
            let below = mask & ((1 << at) - 1);
            let above = (u16::from(mask) >> (at + 1) << at) as u8;
            below | above
        };
        self.sealed_slots = squeeze(self.sealed_slots);
        self.target = squeeze(self.target);
        self.count -= 1;
    }
}

/// Its form has neither `copies` nor `compression`: the row of its stream has them.
impl Encode for Chunk {
    fn put(&self, to: &mut Writer) {
        self.id.put(to);
        self.epoch.put(to);
        to.u64(self.base).u32(self.len).u8(self.acks);
        to.u8(self.count).u8(self.sealed_slots).u8(self.target);
        self.slots().for_each(|slot| {
            to.u32(slot.place.0);
        });
    }

    fn take(from: &mut Reader<'_>) -> Result<Chunk, DecodeError> {
        let (id, epoch) = (ChunkId::take(from)?, Epoch::take(from)?);
        let (base, len, acks) = (from.u64()?, from.u32()?, from.u8()?);
        let (count, sealed_slots, target) = (from.u8()?, from.u8()?, from.u8()?);
        let mut slots = [PlaceIndex::default(); SLOTS_MAX];
        if usize::from(count) > SLOTS_MAX || u64::from(len) > CHUNK_LEN_MAX {
            return Err(DecodeError);
        }
        let beyond = !((1u16 << count) - 1) as u8;
        if (sealed_slots | target) & beyond != 0 || sealed_slots & target != 0 {
            return Err(DecodeError);
        }
        for slot in &mut slots[..usize::from(count)] {
            *slot = PlaceIndex(from.u32()?);
        }
        let (copies, compression) = (0, None);
        Ok(Chunk {
            id,
            epoch,
            base,
            len,
            acks,
            copies,
            compression,
            count,
            sealed_slots,
            target,
            slots,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_come_and_go() {
        let places: Vec<_> = (10..15).map(PlaceIndex).collect();
        let mut chunk = Chunk::new(ChunkId::new(1), Epoch::new(1), Policy::plain(5, 3), &places);
        chunk.seal(100);
        chunk.seal_slot(PlaceIndex(11));
        chunk.seal_slot(PlaceIndex(14));
        for target in 20..23 {
            chunk.add_target(PlaceIndex(target));
        }
        assert_eq!((chunk.voters(), chunk.len_slots()), (5, 8));
        chunk.remove(PlaceIndex(10));
        chunk.remove(PlaceIndex(21));
        chunk.seal_slot(PlaceIndex(22));
        let sealed: Vec<_> =
            chunk.slots().filter(|slot| slot.sealed).map(|slot| slot.place.0).collect();
        let targets: Vec<_> =
            chunk.slots().filter(|slot| slot.target).map(|slot| slot.place.0).collect();
        assert_eq!((sealed, targets), (vec![11, 14, 22], vec![20]));
        assert!(!chunk.is_sealed_everywhere());
    }
}
