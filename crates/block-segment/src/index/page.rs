//! [`Page`]: the locations of 512 blocks, in the smallest form.

use std::mem::size_of;

use block_volume::ids::FileNo;

use crate::format::page::Locs;
use crate::limits::{PAGE_BLOCKS, PAGE_OVERHEAD};
use crate::types::Loc;

const BLOCKS: usize = PAGE_BLOCKS as usize;
/// Entries up to which a list takes less memory than an array, which has 8 bytes a block: 10
/// bytes each and room to grow.
const LIST_MAX: usize = BLOCKS * 3 / 4;
/// Room that a list grows by: little is wasted, and copies are rare.
const LIST_STEP: usize = 8;

/// Locations in their smallest form: a list takes 10 bytes an entry, an array 8 a block.
#[derive(Debug)]
enum Places {
    /// All the same.
    Same(Loc),
    /// One for those that are not listed; the others in order.
    List {
        rest: Loc,
        blocks: Vec<u16>,
        locs: Vec<Loc>,
    },
    Array(Box<Locs>),
}

#[cfg(test)]
thread_local! {
    /// Blocks that were set one by one.
    pub(super) static SETS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A page of the index in memory.
///
/// Until it has met what the table has of it, blocks that were not changed are
/// [`Loc::UNKNOWN`]: changes need not wait for a read.
#[derive(Debug)]
pub(super) struct Page {
    places: Places,
    /// It was merged with the table's page.
    pub(super) met: bool,
    /// It differs from the table's page.
    pub(super) dirty: bool,
    /// Used since the sweep last came by.
    pub(super) used: bool,
    /// Counts changes, so that one during a write to the table is noticed.
    pub(super) version: u64,
    /// Moves of blocks whose location is not known yet, in their order.
    pub(super) moves: Vec<(u16, Loc, Loc)>,
    /// The page's blocks in files that the table's count lacks.
    pub(super) delta: Vec<(FileNo, i32)>,
}

impl Page {
    /// A page that is not merged with the table's yet.
    pub(super) fn new() -> Page {
        Page {
            places: Places::Same(Loc::UNKNOWN),
            met: false,
            dirty: false,
            used: true,
            version: 0,
            moves: Vec::new(),
            delta: Vec::new(),
        }
    }

    /// Memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let places = match &self.places {
            Places::Same(_) => 0,
            Places::List { blocks, locs, .. } => {
                blocks.capacity() * size_of::<u16>() + locs.capacity() * size_of::<Loc>()
            }
            Places::Array(_) => size_of::<Locs>(),
        };
        let moves = self.moves.capacity() * size_of::<(u16, Loc, Loc)>();
        let delta = self.delta.capacity() * size_of::<(FileNo, i32)>();
        PAGE_OVERHEAD + places + moves + delta
    }

    pub(super) fn get(&self, block: usize) -> Loc {
        match &self.places {
            Places::Same(loc) => *loc,
            Places::List { rest, blocks, locs } => match blocks.binary_search(&(block as u16)) {
                Ok(index) => locs[index],
                Err(_) => *rest,
            },
            Places::Array(locs) => locs[block],
        }
    }

    /// How many blocks are in files, one file after the other.
    pub(super) fn located(&self) -> Vec<(FileNo, i32)> {
        let mut runs: Vec<(FileNo, i32)> = Vec::new();
        let mut add = |loc: Loc, count: usize| {
            let Some((file, _)) = loc.place() else { return };
            match runs.last_mut() {
                Some((last, sum)) if *last == file => *sum += count as i32,
                _ => runs.push((file, count as i32)),
            }
        };
        match &self.places {
            Places::Same(loc) => add(*loc, BLOCKS),
            Places::List { rest, locs, .. } => {
                add(*rest, BLOCKS - locs.len());
                locs.iter().for_each(|loc| add(*loc, 1));
            }
            Places::Array(locs) => locs.iter().for_each(|loc| add(*loc, 1)),
        }
        runs
    }

    /// Gives all blocks the same location.
    pub(super) fn fill(&mut self, loc: Loc) {
        self.places = Places::Same(loc);
    }

    /// Sets a block's location; returns the one before.
    pub(super) fn set(&mut self, block: usize, loc: Loc) -> Loc {
        #[cfg(test)]
        SETS.set(SETS.get() + 1);
        if let Places::Same(rest) = self.places {
            if rest == loc {
                return rest;
            }
            self.places = Places::List { rest, blocks: Vec::new(), locs: Vec::new() };
        }
        if let Places::List { rest, blocks, locs } = &mut self.places {
            match blocks.binary_search(&(block as u16)) {
                Ok(index) => return std::mem::replace(&mut locs[index], loc),
                Err(_) if *rest == loc => return loc,
                Err(index) if blocks.len() < LIST_MAX => {
                    if blocks.len() == blocks.capacity() {
                        blocks.reserve_exact(LIST_STEP.max(blocks.len() / 4));
                        locs.reserve_exact(LIST_STEP.max(locs.len() / 4));
                    }
                    blocks.insert(index, block as u16);
                    locs.insert(index, loc);
                    return *rest;
                }
                Err(_) => self.places = Places::Array(self.all()),
            }
        }
        let Places::Array(locs) = &mut self.places else { unreachable!("made an array above") };
        std::mem::replace(&mut locs[block], loc)
    }

    /// All locations.
    pub(super) fn all(&self) -> Box<Locs> {
        match &self.places {
            Places::Same(loc) => Box::new([*loc; BLOCKS]),
            Places::List { rest, blocks, locs } => {
                let mut all = Box::new([*rest; BLOCKS]);
                blocks.iter().zip(locs).for_each(|(block, loc)| all[usize::from(*block)] = *loc);
                all
            }
            Places::Array(locs) => locs.clone(),
        }
    }

    /// Replaces all locations, in the smallest form.
    pub(super) fn replace(&mut self, all: Box<Locs>) {
        let rest = all[0];
        if all.iter().all(|loc| *loc == rest) {
            self.places = Places::Same(rest);
            return;
        }
        let listed = |loc: &&Loc| **loc != Loc::HOLE;
        let count = all.iter().filter(listed).count();
        if count > LIST_MAX {
            self.places = Places::Array(all);
            return;
        }
        let (mut blocks, mut locs) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (block, loc) in all.iter().enumerate().filter(|(_, loc)| **loc != Loc::HOLE) {
            blocks.push(block as u16);
            locs.push(*loc);
        }
        self.places = Places::List { rest: Loc::HOLE, blocks, locs };
    }

    /// Counts blocks more or less in a file.
    pub(super) fn count(&mut self, file: FileNo, change: i32) {
        match self.delta.binary_search_by_key(&file, |(file, _)| *file) {
            Ok(index) => {
                self.delta[index].1 += change;
                if self.delta[index].1 == 0 {
                    self.delta.remove(index);
                }
            }
            Err(index) => self.delta.insert(index, (file, change)),
        }
    }
}
