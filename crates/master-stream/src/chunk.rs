//! A chunk in its stream's state: 72 bytes, replicas included. Fragments of a coded chunk are in an
//! allocation of their own, 8 bytes each.

use std::collections::BTreeMap;

use base::limits::CHUNK_LEN_MAX;
use base::{ChunkId, Epoch};

use wire::control::{Compression, Policy};
use wire::row::{FRAGMENTS_MAX, Fragment};

use super::encoding::Encode;
use super::limits::{CODED_TARGETS_MAX, SLOTS_MAX};
use super::planted::{Planted, planted};
use super::votes::Quorum;
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Its location.
    pub place: PlaceIndex,
    /// The fragment of a coded chunk that it has; 0 where replicas are copies.
    pub fragment: u8,
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
    /// MaxCopy: the copies, or fragments, that it is to have, whatever the file's policy becomes.
    pub copies: u8,
    /// Data fragments; 1 where replicas are copies.
    data: u8,
    /// The compression, in its stored form.
    compression: u8,
    slots: Slots,
}

/// Replicas of a chunk. Those of copies need no memory beside the chunk's.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Slots {
    Few {
        count: u8,
        sealed: u8,
        target: u8,
        places: [PlaceIndex; SLOTS_MAX],
    },
    /// Of a coded chunk.
    Many(Vec<Slot>),
}

/// Memory of an index rests on it: below 200 bytes a sealed chunk of copies, with 24 in the index.
const _: () = assert!(size_of::<Chunk>() <= 72);
const _: () = assert!(size_of::<Slot>() <= 8);

impl Chunk {
    /// A new chunk, whose replicas all take part in acknowledgements: `policy` is that of a chunk for
    /// which there are so many places ([`Policy::for_places`]). Of a coded one the fragments are in
    /// the order of `places`.
    pub fn new(id: ChunkId, epoch: Epoch, policy: Policy, places: &[PlaceIndex]) -> Chunk {
        let Policy { copies, acks, data, compression, .. } = policy;
        let slots = if policy.is_coded() {
            assert!(places.len() == usize::from(copies), "no coded chunk lacks a fragment");
            let slot = |(fragment, &place)| Slot { place, fragment, ..Slot::default() };
            Slots::Many((0..).zip(places).map(slot).collect())
        } else {
            let mut few = [PlaceIndex::default(); SLOTS_MAX];
            few[..places.len()].copy_from_slice(places);
            Slots::Few { count: places.len() as u8, sealed: 0, target: 0, places: few }
        };
        let (base, len, compression) = (0, 0, Compression::to_byte(compression));
        Chunk { id, epoch, base, len, acks, copies, data, compression, slots }
    }

    /// What its stream's row says of it.
    pub(super) fn set_form(&mut self, copies: u8, compression: Option<Compression>) {
        (self.copies, self.compression) = (copies, Compression::to_byte(compression));
    }

    /// Compression that its writer is asked for.
    pub fn compression(&self) -> Option<Compression> {
        Compression::from_byte(self.compression).expect("it was made of one")
    }

    /// The policy that it was made by, with the acknowledgements for the places that it got.
    pub fn policy(&self) -> Policy {
        let Chunk { copies, acks, data, .. } = *self;
        Policy { data, compression: self.compression(), ..Policy::plain(copies, acks) }
    }

    /// Replicas that hold different bytes of it and give all of them back together: k, or 1 of copies.
    pub fn data(&self) -> usize {
        usize::from(self.data)
    }

    /// True when replicas are fragments of a code (C18).
    pub fn is_coded(&self) -> bool {
        self.data > 1
    }

    /// What a replica is a fragment of, as servers and clients name it; none where replicas are copies.
    pub fn fragment(&self, slot: Slot) -> Option<Fragment> {
        let (k, p) = (self.data, self.copies.saturating_sub(self.data));
        self.is_coded().then_some(Fragment { k, p, number: slot.fragment })
    }

    /// What its votes and seals are counted by.
    pub fn quorum(&self) -> Quorum {
        Quorum { n: self.voters(), m: usize::from(self.acks), k: self.data() }
    }

    /// Replicas on record at most.
    pub fn slots_max(&self) -> usize {
        if self.is_coded() { usize::from(self.copies) + CODED_TARGETS_MAX } else { SLOTS_MAX }
    }

    /// Of some of its replicas, those that are different redundancy: copies all are, fragments once
    /// each.
    pub fn distinct(&self, slots: impl Iterator<Item = Slot>) -> usize {
        if !self.is_coded() || planted(Planted::SameFragmentTwice) {
            return slots.count();
        }
        let mask = slots.fold(0u32, |mask, slot| mask | 1 << slot.fragment);
        mask.count_ones() as usize
    }

    /// Fragments that none of some replicas has, in order; for each copy that lacks a 0.
    pub fn missing(&self, slots: impl Iterator<Item = Slot>) -> Vec<u8> {
        let all = 0..self.copies;
        if !self.is_coded() {
            return all.skip(slots.count()).map(|_| 0).collect();
        }
        let mask = slots.fold(0u32, |mask, slot| mask | 1 << slot.fragment);
        let missing = all.filter(|fragment| mask >> fragment & 1 == 0);
        if planted(Planted::SameFragmentTwice) {
            return missing.map(|fragment| (fragment + 1) % self.copies).collect();
        }
        missing.collect()
    }

    /// True when a replica may go while sealed ones stay. One of a copy: when there is one. One of a
    /// fragment: when they give the bytes back, and have the same fragment, or one may be lost of
    /// them yet, or all others are there.
    pub fn may_lose(&self, slot: Slot, stay: &[Slot]) -> bool {
        let distinct = self.distinct(stay.iter().copied());
        if !self.is_coded() {
            return distinct > 0;
        }
        let same = stay.iter().any(|other| other.fragment == slot.fragment);
        let enough = self.data() + usize::from(!same);
        distinct >= enough.min(usize::from(self.copies) - 1)
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

    /// Bytes of a replica of it, of `len` bytes: of a fragment its share.
    pub fn replica_len(&self, len: u32) -> u64 {
        u64::from(len.div_ceil(u32::from(self.data)))
    }

    /// Its replicas.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.len_slots()).map(|at| match &self.slots {
            Slots::Few { sealed, target, places, .. } => Slot {
                place: places[at],
                fragment: 0,
                sealed: sealed >> at & 1 == 1,
                target: target >> at & 1 == 1,
            },
            Slots::Many(slots) => slots[at],
        })
    }

    /// Replicas that take part in acknowledgements of an open chunk: its n.
    pub fn voters(&self) -> usize {
        match &self.slots {
            Slots::Few { count, target, .. } => usize::from(*count) - target.count_ones() as usize,
            Slots::Many(slots) => slots.iter().filter(|slot| !slot.target).count(),
        }
    }

    /// Replicas on record, those that are being made included.
    pub fn len_slots(&self) -> usize {
        match &self.slots {
            Slots::Few { count, .. } => usize::from(*count),
            Slots::Many(slots) => slots.len(),
        }
    }

    /// The replica at `place`.
    pub fn slot(&self, place: PlaceIndex) -> Option<Slot> {
        self.slots().find(|slot| slot.place == place)
    }

    /// True when every replica is known to be sealed.
    pub fn is_sealed_everywhere(&self) -> bool {
        match &self.slots {
            Slots::Few { count, sealed, .. } => sealed.count_ones() == u32::from(*count),
            Slots::Many(slots) => slots.iter().all(|slot| slot.sealed),
        }
    }

    fn at(&self, place: PlaceIndex) -> usize {
        self.slots().position(|slot| slot.place == place).expect("a replica of the chunk")
    }

    /// Records a replica that is to be made, of a coded chunk with its fragment. The caller has checked
    /// that there is room and that `place` has none.
    pub fn add_target(&mut self, place: PlaceIndex, fragment: u8) {
        let at = self.len_slots();
        assert!(at < self.slots_max() && self.slot(place).is_none());
        match &mut self.slots {
            Slots::Few { count, target, places, .. } => {
                places[at] = place;
                *target |= 1 << at;
                *count += 1;
            }
            Slots::Many(slots) => slots.push(Slot { place, fragment, sealed: false, target: true }),
        }
    }

    /// A replica that was being made is made: it counts as any other.
    pub fn promote(&mut self, place: PlaceIndex) {
        let at = self.at(place);
        match &mut self.slots {
            Slots::Few { target, .. } => *target &= !(1 << at),
            Slots::Many(slots) => slots[at].target = false,
        }
    }

    /// A replica is known to be sealed.
    pub fn seal_slot(&mut self, place: PlaceIndex) {
        self.promote(place);
        let at = self.at(place);
        match &mut self.slots {
            Slots::Few { sealed, .. } => *sealed |= 1 << at,
            Slots::Many(slots) => slots[at].sealed = true,
        }
    }

    /// Takes a replica off.
    pub fn remove(&mut self, place: PlaceIndex) {
        let at = self.at(place);
        match &mut self.slots {
            Slots::Few { count, sealed, target, places } => {
                let last = usize::from(*count) - 1;
                places.copy_within(at + 1..=last, at);
                places[last] = PlaceIndex::default();
                let squeeze = |mask: u8| {
                    let below = mask & ((1 << at) - 1);
                    let above = (u16::from(mask) >> (at + 1) << at) as u8;
                    below | above
                };
                (*sealed, *target) = (squeeze(*sealed), squeeze(*target));
                *count -= 1;
            }
            Slots::Many(slots) => drop(slots.remove(at)),
        }
    }
}

/// Stands where a chunk of copies has its number of replicas, of which none has so many. A master
/// that knows no codes refuses the row.
const CODED_CHUNK: u8 = 0xC1;
/// Bits of a fragment's byte.
const SEALED: u8 = 0x10;
const TARGET: u8 = 0x20;

/// Its form has neither `copies` nor `compression`: the row of its stream has them. That of a coded
/// chunk: [`CODED_CHUNK`], k, the number of replicas, and for each its place and a byte: the fragment
/// in the low half.
impl Encode for Chunk {
    fn put(&self, to: &mut Writer) {
        self.id.put(to);
        self.epoch.put(to);
        to.u64(self.base).u32(self.len).u8(self.acks);
        match &self.slots {
            Slots::Few { count, sealed, target, places } => {
                to.u8(*count).u8(*sealed).u8(*target);
                places[..usize::from(*count)].iter().for_each(|place| {
                    to.u32(place.0);
                });
            }
            Slots::Many(slots) => {
                to.u8(CODED_CHUNK).u8(self.data).u8(slots.len() as u8);
                slots.iter().for_each(|slot| {
                    let flag = |is: bool, bit: u8| if is { bit } else { 0 };
                    let flags = flag(slot.sealed, SEALED) | flag(slot.target, TARGET);
                    to.u32(slot.place.0).u8(slot.fragment | flags);
                });
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Chunk, DecodeError> {
        let (id, epoch) = (ChunkId::take(from)?, Epoch::take(from)?);
        let (base, len, acks) = (from.u64()?, from.u32()?, from.u8()?);
        if u64::from(len) > CHUNK_LEN_MAX {
            return Err(DecodeError);
        }
        let count = from.u8()?;
        let (data, slots) = match count {
            CODED_CHUNK => take_fragments(from)?,
            _ => (1, take_copies(count, from)?),
        };
        let (copies, compression) = (0, 0);
        Ok(Chunk { id, epoch, base, len, acks, copies, data, compression, slots })
    }
}

fn take_copies(count: u8, from: &mut Reader<'_>) -> Result<Slots, DecodeError> {
    let (sealed, target) = (from.u8()?, from.u8()?);
    if usize::from(count) > SLOTS_MAX {
        return Err(DecodeError);
    }
    let beyond = !((1u16 << count) - 1) as u8;
    if (sealed | target) & beyond != 0 || sealed & target != 0 {
        return Err(DecodeError);
    }
    let mut places = [PlaceIndex::default(); SLOTS_MAX];
    for place in &mut places[..usize::from(count)] {
        *place = PlaceIndex(from.u32()?);
    }
    Ok(Slots::Few { count, sealed, target, places })
}

/// The data fragments, of which there are several, and the replicas.
fn take_fragments(from: &mut Reader<'_>) -> Result<(u8, Slots), DecodeError> {
    let (data, count) = (from.u8()?, from.u8()?);
    if data < 2 || usize::from(count) > FRAGMENTS_MAX + CODED_TARGETS_MAX {
        return Err(DecodeError);
    }
    let mut slots = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (place, byte) = (PlaceIndex(from.u32()?), from.u8()?);
        let (sealed, target) = (byte & SEALED != 0, byte & TARGET != 0);
        if byte & !(SEALED | TARGET | 0x0F) != 0 || sealed && target {
            return Err(DecodeError);
        }
        slots.push(Slot { place, fragment: byte & 0x0F, sealed, target });
    }
    Ok((data, Slots::Many(slots)))
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
            chunk.add_target(PlaceIndex(target), 0);
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

    /// The same operations on fragments, and its form, which masters that know no codes refuse.
    #[test]
    fn fragments_come_and_go() {
        let places: Vec<_> = (10..16).map(PlaceIndex).collect();
        let mut chunk = Chunk::new(ChunkId::new(1), Epoch::new(1), Policy::ec(4, 2), &places);
        assert_eq!((chunk.slots_max(), chunk.data(), chunk.copies), (10, 4, 6));
        chunk.seal(100);
        (11..16).for_each(|place| chunk.seal_slot(PlaceIndex(place)));
        chunk.add_target(PlaceIndex(20), 0);
        chunk.add_target(PlaceIndex(21), 3);
        assert_eq!((chunk.voters(), chunk.len_slots()), (6, 8));
        let sealed = |chunk: &Chunk| chunk.slots().filter(|slot| slot.sealed).collect::<Vec<_>>();
        assert_eq!(chunk.missing(sealed(&chunk).into_iter()), [0]);
        chunk.seal_slot(PlaceIndex(21));
        let all = sealed(&chunk);
        assert_eq!((all.len(), chunk.distinct(all.iter().copied())), (6, 5));

        let mut to = Writer::new();
        chunk.put(&mut to);
        let bytes = to.finish();
        assert_eq!(bytes.len(), 29 + 3 + 8 * 5);
        assert_eq!(bytes[29..32], [0xC1, 4, 8]);
        let mut again = Chunk::take(&mut Reader::new(&bytes)).expect("a chunk");
        again.set_form(6, None);
        assert_eq!(again, chunk);
        assert!(take_copies(0xC1, &mut Reader::new(&bytes[30..])).is_err());
        for (at, byte) in [(30, 1), (31, 21), (36, 0x40), (36, 0x30)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert!(Chunk::take(&mut Reader::new(&wrong)).is_err(), "{byte:#x} at {at}");
        }

        chunk.remove(PlaceIndex(10));
        chunk.remove(PlaceIndex(20));
        assert!(chunk.is_sealed_everywhere());
        assert_eq!(chunk.missing(chunk.slots()), [0]);
    }

    /// What may go: a duplicate while the others give the bytes back, another while one more of them
    /// may be lost.
    #[test]
    fn a_fragment_goes_only_while_enough_stay() {
        let places: Vec<_> = (0..6).map(PlaceIndex).collect();
        let chunk = Chunk::new(ChunkId::new(1), Epoch::new(1), Policy::ec(4, 2), &places);
        let slots: Vec<_> = chunk.slots().collect();
        assert!(chunk.may_lose(slots[0], &slots[1..]));
        assert!(!chunk.may_lose(slots[0], &slots[2..]), "four others, and no other has it");
        assert!(chunk.may_lose(slots[0], &slots[..4]), "another replica has the same fragment");
        assert!(!chunk.may_lose(slots[0], &slots[..3]));
        let twice = [slots[1], slots[1], slots[2], slots[3], slots[4]];
        assert!(!chunk.may_lose(slots[0], &twice), "a fragment counts once");
        let small = Chunk::new(ChunkId::new(1), Epoch::new(1), Policy::ec(2, 1), &places[..3]);
        let slots: Vec<_> = small.slots().collect();
        assert!(small.may_lose(slots[0], &slots[1..]), "all others are there");
        assert!(!small.may_lose(slots[0], &slots[2..]));
    }
}
