//! [`IndexMap`]: pages in memory, within a bound, over those in the table.

use std::collections::BTreeMap;

use block_volume::ids::FileNo;
use runtime::Env;

use super::page::Page;
use crate::format::page::{Locs, encode_page};
use crate::limits::{PAGE_BLOCKS, STEP_VISITS};
use crate::types::{Loc, Update};

/// State of a block in the memory's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Loc(Loc),
    /// The page of this number has to be merged with the table's first.
    Ask(u32),
}

/// Changes of how many blocks files have in the index.
pub(crate) type Deltas = Vec<(FileNo, i32)>;

/// Pages of the index in memory.
///
/// It counts exactly how many blocks of each file the pages in the table have (each write of a page
/// brings its [`Deltas`]), and beside it the known later changes. A count may be too high until
/// pages are merged with the table's, and is never too low: 0 is right.
pub(crate) struct IndexMap {
    pages: BTreeMap<u32, Page>,
    /// Beyond the counts in the table.
    pending: BTreeMap<FileNo, i64>,
    bytes: usize,
    dirty: usize,
    /// Position of the sweep.
    hand: u32,
}

fn page_of(lba: u32) -> u32 {
    lba / PAGE_BLOCKS
}

impl IndexMap {
    pub(crate) fn new() -> IndexMap {
        let (pages, pending) = (BTreeMap::new(), BTreeMap::new());
        IndexMap { pages, pending, bytes: 0, dirty: 0, hand: 0 }
    }

    /// Memory of all pages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory of pages that the table lacks.
    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty
    }

    /// Blocks that a file has more (or fewer) than the pages in the table say.
    pub(crate) fn pending(&self, file: FileNo) -> i64 {
        self.pending.get(&file).copied().unwrap_or(0)
    }

    /// The location of a block.
    pub(crate) fn get(&mut self, lba: u32) -> Found {
        let number = page_of(lba);
        let Some(page) = self.pages.get_mut(&number) else { return Found::Ask(number) };
        page.used = true;
        match page.get((lba % PAGE_BLOCKS) as usize) {
            Loc::UNKNOWN => Found::Ask(number),
            loc => Found::Loc(loc),
        }
    }

    /// Works on a page and keeps the sums.
    fn with<T>(&mut self, number: u32, work: impl FnOnce(&mut Page, &mut Counter<'_>) -> T) -> T {
        let fresh = !self.pages.contains_key(&number);
        let page = self.pages.entry(number).or_insert_with(Page::new);
        let before = (page.bytes(), page.dirty);
        let worked = work(page, &mut Counter(&mut self.pending));
        let after = page.bytes();
        self.bytes = self.bytes + after - if fresh { 0 } else { before.0 };
        self.dirty -= if before.1 { before.0 } else { 0 };
        self.dirty += if page.dirty { after } else { 0 };
        worked
    }

    /// Makes a change. A move whose block has another location by now changes nothing.
    pub(crate) fn apply(&mut self, update: Update) {
        let (lba, count) = match update {
            Update::Data { lba, count, .. } | Update::Clear { lba, count, .. } => (lba, count),
            Update::Move { lba, from, to } => {
                self.with(page_of(lba), |page, counter| {
                    shift(page, (lba % PAGE_BLOCKS) as usize, from, to, counter);
                });
                return;
            }
        };
        let end = u64::from(lba) + u64::from(count);
        let mut at = u64::from(lba);
        while at < end {
            let number = page_of(at as u32);
            let page_end = (u64::from(number) + 1) * u64::from(PAGE_BLOCKS);
            let stop = page_end.min(end);
            let blocks = (at % u64::from(PAGE_BLOCKS)) as usize;
            let is_whole = stop - at == u64::from(PAGE_BLOCKS);
            self.with(number, |page, counter| {
                if let Update::Clear { to, .. } = update
                    && is_whole
                {
                    return clear(page, to, counter);
                }
                for (n, lba) in (at..stop).enumerate() {
                    let loc = match update {
                        Update::Data { lba: first, at, .. } => at.plus((lba as u32) - first),
                        Update::Clear { to, .. } => to,
                        Update::Move { .. } => unreachable!("done above"),
                    };
                    put(page, blocks + n, loc, counter);
                }
                if is_whole {
                    page.replace(page.all()); // When all are equal, it is small.
                }
            });
            at = stop;
        }
    }

    /// Makes many changes, of a map that no other task uses yet. `visits` counts on from call to call.
    pub(crate) async fn apply_in_steps(&mut self, env: &Env, updates: &[Update], visits: &mut u64) {
        for update in updates {
            *visits += update.visits();
            if *visits > STEP_VISITS {
                *visits = update.visits();
                env.yield_now().await;
            }
            self.apply(*update);
        }
    }

    /// True when a page was merged with the table's.
    pub(crate) fn has_met(&self, number: u32) -> bool {
        self.pages.get(&number).is_some_and(|page| page.met)
    }

    /// Merges a page with the table's, once.
    pub(crate) fn meet(&mut self, number: u32, stored: &Locs) {
        self.with(number, |page, counter| {
            if page.met {
                return;
            }
            let mut all = page.all();
            let moves = std::mem::take(&mut page.moves);
            for (block, loc) in all.iter_mut().enumerate() {
                match *loc {
                    Loc::UNKNOWN => *loc = stored[block],
                    // Blocks that changed before have left their old locations.
                    _ => counter.add(page, stored[block], -1),
                }
            }
            page.replace(all);
            page.met = true;
            for (block, from, to) in moves {
                counter.add(page, to, -1); // Until now, it counted as made.
                shift(page, usize::from(block), from, to, counter);
            }
        });
    }

    /// Numbers of the pages that the table lacks.
    pub(crate) fn dirty_pages(&self) -> Vec<u32> {
        let dirty = self.pages.iter().filter(|(_, page)| page.dirty);
        dirty.map(|(number, _)| *number).collect()
    }

    /// A merged page in its stored form, with the difference to the table's counts, and its
    /// version. Once taken, the deltas are the caller's.
    pub(crate) fn take_page(&mut self, number: u32) -> (Vec<u8>, Deltas, u64) {
        self.with(number, |page, counter| {
            assert!(page.met, "a page is stored only after it has met what is stored");
            let delta = std::mem::take(&mut page.delta);
            for (file, change) in &delta {
                counter.sum(*file, -i64::from(*change));
            }
            (encode_page(&page.all()), delta, page.version)
        })
    }

    /// The table has a page as it was at a version.
    pub(crate) fn stored(&mut self, number: u32, version: u64) {
        self.with(number, |page, _| page.dirty &= page.version != version);
    }

    /// True when something of a page is in memory.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.pages.contains_key(&number)
    }

    /// Drops a page, if the table has all of it.
    pub(crate) fn forget(&mut self, number: u32) {
        if let Some(page) = self.pages.get(&number).filter(|page| page.met && !page.dirty) {
            self.bytes -= page.bytes();
            self.pages.remove(&number);
        }
    }

    /// Continues over the pages, and drops unused pages that the table has, until that frees `want`
    /// bytes; true when it has reached the last page.
    pub(crate) fn sweep(&mut self, want: usize) -> bool {
        let before = self.bytes;
        while before - self.bytes < want {
            let next = self.pages.range(self.hand..).next();
            let Some(number) = next.map(|(number, _)| *number) else {
                self.hand = 0;
                return true;
            };
            self.hand = number + 1;
            let page = self.pages.get_mut(&number).expect("just found");
            let idle = !std::mem::take(&mut page.used);
            if idle && page.met && !page.dirty {
                self.bytes -= page.bytes();
                self.pages.remove(&number);
            }
        }
        false
    }

    /// Drops pages that the table has until `most` bytes are left, or none of them is.
    pub(crate) fn trim(&mut self, most: usize) {
        // From the hand to the end, and twice around: the first round clears the used marks.
        for _ in 0..3 {
            if !self.sweep(self.bytes.saturating_sub(most)) {
                return;
            }
        }
    }
}

/// Keeps the sums of pages' deltas.
struct Counter<'a>(&'a mut BTreeMap<FileNo, i64>);

impl Counter<'_> {
    fn sum(&mut self, file: FileNo, change: i64) {
        let count = self.0.entry(file).or_default();
        *count += change;
        if *count == 0 {
            self.0.remove(&file);
        }
    }

    fn add(&mut self, page: &mut Page, loc: Loc, change: i32) {
        if let Some((file, _)) = loc.place() {
            self.add_to(page, file, change);
        }
    }

    fn add_to(&mut self, page: &mut Page, file: FileNo, change: i32) {
        page.count(file, change);
        self.sum(file, i64::from(change));
    }
}

/// As [`put`] of a location in no file for each block of a page: one request trims millions of blocks, in one step.
fn clear(page: &mut Page, to: Loc, counter: &mut Counter<'_>) {
    debug_assert!(to.place().is_none(), "blocks have places of their own");
    for (file, count) in page.located() {
        counter.add_to(page, file, -count);
    }
    for (_, _, moved) in std::mem::take(&mut page.moves) {
        counter.add(page, moved, -1);
    }
    page.fill(to);
    (page.dirty, page.used) = (true, true);
    page.version += 1;
}

fn put(page: &mut Page, block: usize, loc: Loc, counter: &mut Counter<'_>) {
    let old = page.set(block, loc);
    page.dirty = true;
    page.used = true;
    page.version += 1;
    if !page.moves.is_empty() {
        let mut moves = std::mem::take(&mut page.moves);
        for (_, _, to) in moves.extract_if(.., |(other, ..)| usize::from(*other) == block) {
            counter.add(page, to, -1);
        }
        page.moves = moves;
    }
    counter.add(page, old, -1);
    counter.add(page, loc, 1);
}

/// Compare-and-set (`protocols.md` 6.4).
fn shift(page: &mut Page, block: usize, from: Loc, to: Loc, counter: &mut Counter<'_>) {
    match page.get(block) {
        Loc::UNKNOWN => {
            page.dirty = true;
            page.version += 1;
            page.moves.push((block as u16, from, to));
            counter.add(page, to, 1);
        }
        loc if loc == from => put(page, block, to, counter),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::page::SETS;
    use super::*;
    use crate::format::page::decode_page;

    const BLOCKS: usize = 3 * PAGE_BLOCKS as usize;

    /// An index of all blocks, and the table's part of it.
    struct Model {
        locs: Vec<Loc>,
        map: IndexMap,
        table: BTreeMap<u32, Vec<u8>>,
        counts: BTreeMap<FileNo, i64>,
    }

    fn file(number: u32) -> FileNo {
        FileNo::new(number).unwrap()
    }

    impl Model {
        fn apply(&mut self, update: Update) {
            self.map.apply(update);
            match update {
                Update::Data { lba, count, at } => {
                    (0..count).for_each(|n| self.locs[(lba + n) as usize] = at.plus(n));
                }
                Update::Clear { lba, count, to } => {
                    self.locs[lba as usize..][..count as usize].fill(to);
                }
                Update::Move { lba, from, to } => {
                    let loc = &mut self.locs[lba as usize];
                    *loc = if *loc == from { to } else { *loc };
                }
            }
        }

        fn meet(&mut self, number: u32) {
            let stored = self.table.get(&number).map_or(&[][..], Vec::as_slice);
            self.map.meet(number, &decode_page(stored).unwrap());
        }

        fn look(&mut self, lba: usize) {
            if let Found::Ask(number) = self.map.get(lba as u32) {
                self.meet(number);
            }
            assert_eq!(self.map.get(lba as u32), Found::Loc(self.locs[lba]), "{lba}");
        }

        fn store(&mut self) {
            for number in self.map.dirty_pages() {
                self.meet(number);
                let (bytes, deltas, version) = self.map.take_page(number);
                self.table.insert(number, bytes);
                for (file, change) in deltas {
                    *self.counts.entry(file).or_default() += i64::from(change);
                }
                self.map.stored(number, version);
            }
        }

        /// Blocks of each file, by the locations.
        fn wanted(&self) -> BTreeMap<FileNo, i64> {
            let mut want = BTreeMap::new();
            for (file, _) in self.locs.iter().filter_map(|loc| loc.place()) {
                *want.entry(file).or_default() += 1;
            }
            want
        }

        /// Unknown blocks are never counted too low: a file that seems empty is.
        fn check_no_fewer(&self) {
            for (file, count) in self.wanted() {
                let have = self.counts.get(&file).unwrap_or(&0) + self.map.pending(file);
                assert!(have >= count, "{file:?} has {count}, not {have}");
            }
        }

        /// Counts agree with the locations.
        fn check(&mut self) {
            (0..3).for_each(|number| self.meet(number));
            let want = self.wanted();
            for number in 1..9 {
                let file = file(number);
                let have = self.counts.get(&file).unwrap_or(&0) + self.map.pending(file);
                assert_eq!(have, want.get(&file).copied().unwrap_or(0), "{file:?}");
            }
            (0..BLOCKS).for_each(|lba| self.look(lba));
            let pages = self.map.pages.values();
            assert_eq!(self.map.bytes, pages.clone().map(Page::bytes).sum::<usize>());
            let dirty = pages.filter(|page| page.dirty);
            assert_eq!(self.map.dirty, dirty.map(Page::bytes).sum::<usize>());
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Update(Update),
        Look(usize),
        Store,
        Evict,
        /// Another map begins over the table, and replays the changes since it was stored.
        Crash,
    }

    fn steps() -> impl Strategy<Value = Step> {
        let range = || (0..BLOCKS as u32, 1..700u32);
        let fit = |(lba, count): (u32, u32)| (lba, count.min(BLOCKS as u32 - lba));
        let loc = || (1..9u32, 0..9u32).prop_map(|(n, unit)| Loc::new(file(n), unit * 65));
        prop_oneof![
            4 => (range(), loc()).prop_map(move |(range, at)| {
                let (lba, count) = fit(range);
                Step::Update(Update::Data { lba, count: count.min(3), at })
            }),
            1 => (range(), loc()).prop_map(move |(range, at)| {
                let (lba, count) = fit(range);
                Step::Update(Update::Data { lba, count, at })
            }),
            2 => (range(), any::<bool>()).prop_map(move |(range, zero)| {
                let (lba, count) = fit(range);
                let to = if zero { Loc::ZERO } else { Loc::HOLE };
                Step::Update(Update::Clear { lba, count, to })
            }),
            4 => (0..BLOCKS as u32, loc(), loc())
                .prop_map(|(lba, from, to)| Step::Update(Update::Move { lba, from, to })),
            3 => (0..BLOCKS).prop_map(Step::Look),
            1 => Just(Step::Store),
            1 => Just(Step::Evict),
            1 => Just(Step::Crash),
        ]
    }

    proptest! {
        #[test]
        fn map_agrees_with_a_complete_model(steps in prop::collection::vec(steps(), 1..60)) {
            let mut model = Model {
                locs: vec![Loc::HOLE; BLOCKS],
                map: IndexMap::new(),
                table: BTreeMap::new(),
                counts: BTreeMap::new(),
            };
            let mut since = Vec::new();
            for step in steps {
                match step {
                    Step::Update(update) => {
                        model.apply(update);
                        since.push(update);
                    }
                    Step::Look(lba) => model.look(lba),
                    Step::Store => {
                        model.store();
                        since.clear();
                    }
                    Step::Evict => model.map.trim(0),
                    Step::Crash => {
                        model.map = IndexMap::new();
                        since.iter().for_each(|update| model.map.apply(*update));
                    }
                }
                model.check_no_fewer();
            }
            model.check();
            model.store();
            model.map.trim(0);
            prop_assert_eq!((model.map.bytes(), model.map.dirty_bytes()), (0, 0));
            model.check();
        }
    }

    #[test]
    fn trims_of_whole_pages_visit_no_block() {
        let mut map = IndexMap::new();
        map.apply(Update::Data { lba: 100, count: 3000, at: Loc::new(file(1), 1) });
        let before = SETS.get();
        map.apply(Update::Clear { lba: 0, count: 4096 * PAGE_BLOCKS, to: Loc::HOLE });
        assert_eq!(SETS.get() - before, 0);
        assert_eq!(map.pending(file(1)), 0);
        map.apply(Update::Clear { lba: 5, count: 2 * PAGE_BLOCKS, to: Loc::ZERO });
        assert_eq!(SETS.get() - before, u64::from(PAGE_BLOCKS), "of the first and the last page");
        for (lba, loc) in [(4, Loc::HOLE), (5, Loc::ZERO), (700, Loc::ZERO), (2000, Loc::HOLE)] {
            assert_eq!(map.get(lba), Found::Loc(loc), "{lba}");
        }
    }

    #[test]
    fn hot_block_takes_16_bytes_at_most() {
        let mut map = IndexMap::new();
        let mut mapped = 0;
        // Pages with 64 random blocks, half full, full, and one run.
        for (page, blocks) in [64u32, 128, 256, 257, 400, 512].into_iter().enumerate() {
            for n in 0..blocks {
                let lba = page as u32 * PAGE_BLOCKS + (n * 37) % PAGE_BLOCKS;
                map.apply(Update::Data { lba, count: 1, at: Loc::new(file(1), n * 65) });
            }
            map.meet(page as u32, &[Loc::HOLE; PAGE_BLOCKS as usize]);
            mapped += blocks as usize;
            assert!(map.bytes() <= 16 * mapped, "{} bytes, {mapped} blocks", map.bytes());
        }
        let before = map.bytes();
        map.apply(Update::Clear { lba: 0, count: 6 * PAGE_BLOCKS, to: Loc::ZERO });
        assert!(map.bytes() < before / 8);
    }
}
