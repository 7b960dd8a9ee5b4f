//! Locations of blocks that an attachment keeps while no other attachment may change the blocks
//! (decision 24).
//!
//! [`LocationCache`] has what block servers have sent; [`Watch`] finds locations that were changed while
//! they were being requested, so that these are not kept. The caller compares the time with the lease's end
//! ([`block_proto::Located::location_lease_ms`]), and the session: locations of one session are not
//! used in the next.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use block_volume::limits::LOCATION_GROUP_BLOCKS;
use block_volume::location::{LocationRun, RecordLocation, push_location};
use block_volume::record::RECORD_UNITS;

use crate::limits::{LOCATION_FILES_MAX, LOCATION_GROUPS_MAX};

/// Blocks that are kept together.
const AROUND: usize = LOCATION_GROUP_BLOCKS as usize;
/// Groups that one search for a victim passes, at most.
const LOOK_MAX: usize = 32;

/// A segment and the number of a group in it.
type Key = (u32, u64);

/// Location of a block's record.
#[derive(Clone, Copy, Default)]
struct BlockLocation {
    /// Index into the known files.
    file: u32,
    /// Offset of the record; 0, where each file has its head, for zeroes.
    unit: u32,
}

/// Known locations of a group's blocks.
struct LocationGroup {
    /// The session in which they were sent.
    session: u64,
    /// A bit for each block whose location is known.
    known: u32,
    /// It was of use since the hand passed it.
    used: bool,
    locations: [BlockLocation; AROUND],
}

/// All that an attachment keeps.
#[derive(Default)]
pub(super) struct LocationCache(RefCell<LocationCacheState>);

#[derive(Default)]
struct LocationCacheState {
    groups: BTreeMap<Key, Box<LocationGroup>>,
    /// Files by their indices, and what gives them: the file and the volume of its records.
    files: Vec<((u32, u32), u64)>,
    numbers: BTreeMap<((u32, u32), u64), u32>,
    /// Position of the search for the next victim.
    hand: Key,
}

impl LocationCache {
    /// Locations of blocks of a segment, if all are known in this session.
    pub(super) fn find(
        &self,
        segment: u32,
        session: u64,
        blocks: Range<u64>,
    ) -> Option<Vec<LocationRun>> {
        let state = &mut *self.0.borrow_mut();
        let mut spans = Vec::new();
        let mut block = blocks.start;
        while block < blocks.end {
            let number = block / LOCATION_GROUP_BLOCKS;
            let group = state.groups.get_mut(&(segment, number))?;
            if group.session != session {
                return None;
            }
            group.used = true;
            let end = blocks.end.min((number + 1) * LOCATION_GROUP_BLOCKS);
            for block in block..end {
                let at = (block % LOCATION_GROUP_BLOCKS) as usize;
                if group.known & 1 << at == 0 {
                    return None;
                }
                let BlockLocation { file, unit } = group.locations[at];
                let place = (unit != 0).then(|| {
                    let (file, clone_source) = state.files[file as usize];
                    RecordLocation { file, clone_source, unit }
                });
                push_location(&mut spans, place);
            }
            block = end;
        }
        Some(spans)
    }

    /// Keeps the locations from `first` on, of blocks within `blocks` and not in `except`.
    pub(super) fn keep(
        &self,
        (segment, session): (u32, u64),
        (first, spans): (u64, &[LocationRun]),
        blocks: Range<u64>,
        except: &[Range<u64>],
    ) {
        let state = &mut *self.0.borrow_mut();
        let mut block = first;
        for span in spans {
            let file = match span.at {
                None => 0,
                Some(place) => state.number(place),
            };
            for n in 0..span.blocks {
                if block >= blocks.end {
                    return;
                }
                let unit = match span.at {
                    None => Some(0),
                    Some(place) => {
                        let behind = n.checked_mul(RECORD_UNITS);
                        behind.and_then(|behind| place.unit.checked_add(behind))
                    }
                };
                let spoiled = except.iter().any(|range| range.contains(&block));
                if let Some(unit) = unit.filter(|_| blocks.contains(&block) && !spoiled) {
                    let group = state.group((segment, block / LOCATION_GROUP_BLOCKS), session);
                    let at = (block % LOCATION_GROUP_BLOCKS) as usize;
                    group.known |= 1 << at;
                    group.locations[at] = BlockLocation { file, unit };
                }
                let Some(next) = block.checked_add(1) else { return };
                block = next;
            }
        }
    }

    /// Forgets the locations of these blocks.
    pub(super) fn forget(&self, segment: u32, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let groups = &mut self.0.borrow_mut().groups;
        let (first, last) =
            (blocks.start / LOCATION_GROUP_BLOCKS, (blocks.end - 1) / LOCATION_GROUP_BLOCKS);
        for (&(_, number), group) in groups.range_mut((segment, first)..=(segment, last)) {
            let start = number * LOCATION_GROUP_BLOCKS;
            let from = blocks.start.saturating_sub(start).min(LOCATION_GROUP_BLOCKS);
            let to = (blocks.end - start).min(LOCATION_GROUP_BLOCKS);
            for at in from..to {
                group.known &= !(1 << at);
            }
        }
    }
}

impl LocationCacheState {
    /// The index of a file.
    fn number(&mut self, place: RecordLocation) -> u32 {
        let file = (place.file, place.clone_source);
        if let Some(&number) = self.numbers.get(&file) {
            return number;
        }
        if self.files.len() >= LOCATION_FILES_MAX {
            // Most of them were collected long ago.
            *self = LocationCacheState::default();
        }
        let number = self.files.len() as u32;
        self.files.push(file);
        self.numbers.insert(file, number);
        number
    }

    fn group(&mut self, key: Key, session: u64) -> &mut LocationGroup {
        if !self.groups.contains_key(&key) && self.groups.len() >= LOCATION_GROUPS_MAX {
            self.drop_one();
        }
        let fresh = || {
            Box::new(LocationGroup {
                session,
                known: 0,
                used: false,
                locations: Default::default(),
            })
        };
        let group = self.groups.entry(key).or_insert_with(fresh);
        if group.session != session {
            *group = fresh();
        }
        group
    }

    /// Drops a group that was not used lately.
    fn drop_one(&mut self) {
        for passed in 0.. {
            let next = self.groups.range_mut(self.hand..).next();
            let Some((&key, group)) = next else {
                self.hand = Key::default();
                continue;
            };
            if !std::mem::take(&mut group.used) || passed >= LOOK_MAX {
                self.groups.remove(&key);
                self.hand = key;
                return;
            }
            self.hand = (key.0, key.1 + 1);
        }
    }
}

/// Changes of a segment that are under way, and requests for locations.
#[derive(Default)]
pub(super) struct Watch(RefCell<Watched>);

#[derive(Default)]
struct Watched {
    next: u64,
    changes: BTreeMap<u64, Range<u64>>,
    questions: BTreeMap<u64, Question>,
}

struct Question {
    blocks: Range<u64>,
    /// Blocks that changed since the request was sent.
    spoiled: Vec<Range<u64>>,
}

/// A change under way, or a request for locations.
pub(super) struct Watching<'a> {
    watch: &'a Watch,
    id: u64,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Watch {
    fn next(&self) -> u64 {
        let watched = &mut *self.0.borrow_mut();
        watched.next += 1;
        watched.next
    }

    /// A change begins: called before it is sent. It ends when the returned value is dropped.
    pub(super) fn change(&self, blocks: Range<u64>) -> Watching<'_> {
        let id = self.next();
        let watched = &mut *self.0.borrow_mut();
        for question in watched.questions.values_mut() {
            if overlap(&question.blocks, &blocks) {
                question.spoiled.push(blocks.clone());
            }
        }
        watched.changes.insert(id, blocks);
        Watching { watch: self, id }
    }

    /// Begins a request for the locations of these blocks: called before it is sent.
    pub(super) fn ask(&self, blocks: Range<u64>) -> Watching<'_> {
        let id = self.next();
        let watched = &mut *self.0.borrow_mut();
        let under_way = watched.changes.values().filter(|change| overlap(change, &blocks));
        let spoiled = under_way.cloned().collect();
        watched.questions.insert(id, Question { blocks, spoiled });
        Watching { watch: self, id }
    }
}

impl Watching<'_> {
    /// The blocks of a request, and those of them that have changed since, or may have.
    pub(super) fn answered(&self) -> (Range<u64>, Vec<Range<u64>>) {
        let mut watched = self.watch.0.borrow_mut();
        let question = watched.questions.remove(&self.id).expect("a question is answered once");
        (question.blocks, question.spoiled)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let watched = &mut *self.watch.0.borrow_mut();
        watched.changes.remove(&self.id);
        watched.questions.remove(&self.id);
    }
}

const _: () = assert!(AROUND == u32::BITS as usize);
