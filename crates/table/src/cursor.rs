//! Cursors over sorted runs.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::error::Error;
use crate::file::{OpenedFile, Partition, SortedFile};
use crate::format::block::{Block, Version};
use crate::format::edit::RunInfo;
use crate::limits::MERGE_READ_BYTES;
use crate::types::Seq;

/// A sorted run: files whose keys do not overlap, in order.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) info: Rc<RunInfo>,
    pub(crate) files: Vec<Rc<SortedFile>>,
    /// Some of them do not show all of their keys.
    pub(crate) is_bounded: bool,
}

impl Run {
    /// Bytes of its files.
    pub(crate) fn bytes(&self) -> u64 {
        self.info.files.iter().map(|file| file.len).sum()
    }

    /// The file that has `key`, if one does.
    pub(crate) fn file_of(&self, key: &[u8]) -> Option<&Rc<SortedFile>> {
        let place = self.files.partition_point(|file| file.info.last_key.as_slice() < key);
        self.files.get(place).filter(|file| file.info.first_key.as_slice() <= key)
    }

    /// The lowest place at or above `key` where a file may have a key that it shows.
    fn next_shown<'a>(&'a self, key: &'a [u8]) -> Option<&'a [u8]> {
        let number = self.files.partition_point(|file| file.info.last_key.as_slice() < key);
        self.files[number..].iter().find_map(|file| {
            let from = key.max(&file.info.first_key);
            let next = match &file.bounds {
                None => Some(from),
                Some(bounds) => bounds.next(from),
            };
            next.filter(|&next| next <= file.info.last_key.as_slice())
        })
    }

    /// The highest place below `key`, or at it when `inclusive`, where a file may have a key that it
    /// shows; whether that key may be at the place itself.
    fn shown_before<'a>(&'a self, key: &'a [u8], inclusive: bool) -> Option<(&'a [u8], bool)> {
        let number = self.files.partition_point(|file| file.info.first_key.as_slice() <= key);
        self.files[..number].iter().rev().find_map(|file| {
            let (first, last) = (file.info.first_key.as_slice(), file.info.last_key.as_slice());
            let (from, inclusive) = if last < key { (last, true) } else { (key, inclusive) };
            let before = match &file.bounds {
                None => Some((from, inclusive)),
                Some(bounds) => bounds.before(from, inclusive),
            };
            before.filter(|&(at, inclusive)| at > first || inclusive && at == first)
        })
    }
}

/// Position of a cursor.
struct CursorPosition {
    file: usize,
    opened: Rc<OpenedFile>,
    part: usize,
    partition: Rc<Partition>,
    block: usize,
    data: Rc<Block>,
    entry: usize,
}

/// A position in a run.
pub(crate) struct RunCursor {
    run: Rc<Run>,
    place: Option<CursorPosition>,
    key: Vec<u8>,
    /// Blocks read ahead, the first of them behind the present one.
    ahead: VecDeque<Rc<Block>>,
    /// Bytes to read ahead; grows while the cursor goes forward.
    window: usize,
    /// Keep what is read in the cache.
    fill: bool,
    /// Files of the run have keys that they do not show: the cursor passes them by.
    is_bounded: bool,
}

impl RunCursor {
    /// A cursor without a position. A merge reads ahead from the start and fills no cache.
    pub(crate) fn new(run: Rc<Run>, merge: bool) -> RunCursor {
        let window = if merge { MERGE_READ_BYTES } else { 0 };
        let (ahead, is_bounded) = (VecDeque::new(), run.is_bounded);
        let (place, key, fill) = (None, Vec::new(), !merge);
        RunCursor { run, place, key, ahead, window, fill, is_bounded }
    }

    /// Shows what bounds hide: a bug on purpose.
    pub(crate) fn show_all(&mut self) {
        self.is_bounded = false;
    }

    /// The key at its position.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.place.as_ref().map(|_| self.key.as_slice())
    }

    /// The versions of that key, newest first.
    pub(crate) fn versions(&self) -> impl Iterator<Item = Version<'_>> {
        self.place.iter().flat_map(|place| place.data.versions(place.entry))
    }

    /// The newest version of that key at or below `seq`.
    pub(crate) fn visible(&self, seq: Seq) -> Option<Version<'_>> {
        let place = self.place.as_ref()?;
        place.data.visible(place.entry, seq)
    }

    fn note_key(&mut self) {
        if let Some(place) = &self.place {
            self.key = place.data.key(place.entry);
        }
    }

    /// Goes to the first key at or above `key`.
    pub(crate) async fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        if !self.is_bounded {
            return self.seek_any(key).await;
        }
        match self.run.next_shown(key).map(<[u8]>::to_vec) {
            None => self.leave(),
            Some(next) => self.seek_any(&next).await?,
        }
        self.pass_forward().await
    }

    /// Goes to the last key below `key`, or at it when `inclusive`.
    pub(crate) async fn seek_back(&mut self, key: &[u8], inclusive: bool) -> Result<(), Error> {
        if !self.is_bounded {
            return self.seek_back_any(key, inclusive).await;
        }
        match self.run.shown_before(key, inclusive).map(|(at, at_it)| (at.to_vec(), at_it)) {
            None => self.leave(),
            Some((at, inclusive)) => self.seek_back_any(&at, inclusive).await?,
        }
        self.pass_back().await
    }

    /// Goes forward to the first key at or above `key`, through blocks that it has; stays when it is
    /// there or above.
    pub(crate) async fn seek_ahead(&mut self, key: &[u8]) -> Result<(), Error> {
        if !self.is_bounded {
            return self.seek_ahead_any(key).await;
        }
        match self.run.next_shown(key).map(<[u8]>::to_vec) {
            _ if self.key().is_none_or(|at| at >= key) => return Ok(()),
            None => self.leave(),
            Some(next) => self.seek_ahead_any(&next).await?,
        }
        self.pass_forward().await
    }

    /// Goes back to the last key at or below `key`, through blocks that it has; stays when it is
    /// there or below.
    pub(crate) async fn seek_behind(&mut self, key: &[u8]) -> Result<(), Error> {
        self.seek_behind_any(key).await?;
        if self.is_bounded { self.pass_back().await } else { Ok(()) }
    }

    /// Goes to the first key.
    pub(crate) async fn first(&mut self) -> Result<(), Error> {
        if self.is_bounded {
            return self.seek(&[]).await;
        }
        self.place = None;
        self.ahead.clear();
        if !self.run.files.is_empty() {
            self.enter_file(0, false).await?;
        }
        self.note_key();
        Ok(())
    }

    /// Goes to the last key.
    pub(crate) async fn last(&mut self) -> Result<(), Error> {
        if !self.is_bounded {
            return self.last_any().await;
        }
        let Some(last) = self.run.files.last().cloned() else { return Ok(()) };
        self.seek_back(&last.info.last_key, true).await
    }

    /// Goes to the next key.
    pub(crate) async fn forward(&mut self) -> Result<(), Error> {
        let Some(place) = &mut self.place else { return Ok(()) };
        place.entry += 1;
        if place.entry == place.data.len() {
            self.next_block().await?;
        }
        self.note_key();
        if self.is_bounded { self.pass_forward().await } else { Ok(()) }
    }

    /// Goes to the key before.
    pub(crate) async fn back(&mut self) -> Result<(), Error> {
        self.back_any().await?;
        if self.is_bounded { self.pass_back().await } else { Ok(()) }
    }

    /// True when its key is one that its file does not show.
    fn is_hidden(&self) -> bool {
        self.place.as_ref().is_some_and(|place| !self.run.files[place.file].shows(&self.key))
    }

    /// Goes forward past keys that are not shown.
    async fn pass_forward(&mut self) -> Result<(), Error> {
        while self.is_hidden() {
            match self.run.next_shown(&self.key).map(<[u8]>::to_vec) {
                None => self.leave(),
                Some(next) => self.seek_ahead_any(&next).await?,
            }
        }
        Ok(())
    }

    /// Goes back past keys that are not shown.
    async fn pass_back(&mut self) -> Result<(), Error> {
        while self.is_hidden() {
            let before = self.run.shown_before(&self.key, false);
            match before.map(|(at, inclusive)| (at.to_vec(), inclusive)) {
                None => self.leave(),
                Some((at, inclusive)) => {
                    self.seek_behind_any(&at).await?;
                    if !inclusive && self.key() == Some(&at) {
                        self.back_any().await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives up its position: no key is left.
    fn leave(&mut self) {
        self.place = None;
        self.ahead.clear();
    }

    /// [`RunCursor::seek`] among all keys, shown or not; so are those below.
    async fn seek_any(&mut self, key: &[u8]) -> Result<(), Error> {
        self.place = None;
        self.ahead.clear();
        let number = self.run.files.partition_point(|file| file.info.last_key.as_slice() < key);
        let Some(file) = self.run.files.get(number).cloned() else { return Ok(()) };
        let broken = || file.damaged("an index ends too early", file.info.top_at);
        let opened = file.open().await?;
        let part = opened.top.lower_bound(key);
        if part == opened.top.len() {
            return Err(broken());
        }
        let partition = file.partition(&opened, part, self.fill).await?;
        let block = partition.index.lower_bound(key);
        if block == partition.index.len() {
            return Err(broken());
        }
        let data = file.data(&opened, &partition, block, self.fill).await?;
        let entry = data.lower_bound(key);
        if entry == data.len() {
            return Err(broken());
        }
        self.place =
            Some(CursorPosition { file: number, opened, part, partition, block, data, entry });
        self.note_key();
        Ok(())
    }

    async fn seek_back_any(&mut self, key: &[u8], inclusive: bool) -> Result<(), Error> {
        self.seek_any(key).await?;
        if self.place.is_none() {
            return self.last_any().await;
        }
        if inclusive && self.key == key {
            return Ok(());
        }
        self.back_any().await
    }

    async fn seek_ahead_any(&mut self, key: &[u8]) -> Result<(), Error> {
        let Some(place) = &mut self.place else { return Ok(()) };
        if self.key.as_slice() >= key {
            return Ok(());
        }
        let entry = place.data.lower_bound(key);
        if entry < place.data.len() {
            place.entry = entry;
            self.note_key();
            return Ok(());
        }
        let (before, block) = (place.block, place.partition.index.lower_bound(key));
        if block == place.partition.index.len() {
            self.end_read_ahead();
            return self.seek_any(key).await;
        }
        match block.checked_sub(before + 1) {
            None => return Err(self.damaged_index()),
            Some(skipped) if skipped > 0 && skipped >= self.ahead.len() => {
                self.end_read_ahead();
                self.enter_block(block).await?;
            }
            Some(skipped) => {
                self.ahead.drain(..skipped);
                place.block = block - 1;
                self.next_block().await?;
            }
        }
        let place = self.place.as_mut().expect("the partition has that block");
        place.entry = place.data.lower_bound(key);
        if place.entry == place.data.len() {
            return Err(self.damaged_index());
        }
        self.note_key();
        Ok(())
    }

    async fn seek_behind_any(&mut self, key: &[u8]) -> Result<(), Error> {
        let Some(place) = &mut self.place else { return Ok(()) };
        if self.key.as_slice() <= key {
            return Ok(());
        }
        if let Some(entry) = place.data.last_at_or_below(key) {
            place.entry = entry;
            self.note_key();
            return Ok(());
        }
        // All blocks before this one end below `key`.
        let block = place.partition.index.lower_bound(key);
        if block == 0 {
            // It may be in a partition before.
            return self.seek_back_any(key, true).await;
        }
        if block < place.block {
            self.end_read_ahead();
            self.enter_block(block).await?;
        }
        let place = self.place.as_mut().expect("the partition has that block");
        match place.data.last_at_or_below(key) {
            Some(entry) => place.entry = entry,
            None => self.block_before().await?,
        }
        self.note_key();
        Ok(())
    }

    /// Reads another block of the partition; the caller sets the entry.
    async fn enter_block(&mut self, block: usize) -> Result<(), Error> {
        let place = self.place.as_mut().expect("the caller has looked");
        let file = &self.run.files[place.file];
        place.data = file.data(&place.opened, &place.partition, block, self.fill).await?;
        place.block = block;
        Ok(())
    }

    fn damaged_index(&self) -> Error {
        let place = self.place.as_ref().expect("the caller has looked");
        let file = &self.run.files[place.file];
        file.damaged("an index block has another last key than its block", file.info.top_at)
    }

    /// The blocks to come are not the next ones: reading ahead begins again.
    fn end_read_ahead(&mut self) {
        self.ahead.clear();
        self.window = if self.fill { 0 } else { MERGE_READ_BYTES };
    }

    async fn last_any(&mut self) -> Result<(), Error> {
        self.place = None;
        self.ahead.clear();
        if let Some(last) = self.run.files.len().checked_sub(1) {
            self.enter_file(last, true).await?;
        }
        self.note_key();
        Ok(())
    }

    async fn back_any(&mut self) -> Result<(), Error> {
        let Some(place) = &mut self.place else { return Ok(()) };
        if place.entry > 0 {
            place.entry -= 1;
        } else {
            self.block_before().await?;
        }
        self.note_key();
        Ok(())
    }

    async fn next_block(&mut self) -> Result<(), Error> {
        let place = self.place.as_mut().expect("the caller has looked");
        if place.block + 1 == place.partition.index.len() {
            let (file, part) = (place.file, place.part);
            if part + 1 < place.opened.top.len() {
                return self.enter_part(file, part + 1, false).await;
            }
            self.place = None;
            if file + 1 < self.run.files.len() {
                return self.enter_file(file + 1, false).await;
            }
            return Ok(());
        }
        place.block += 1;
        place.entry = 0;
        if let Some(data) = self.ahead.pop_front() {
            place.data = data;
            return Ok(());
        }
        let file = &self.run.files[place.file];
        if self.window == 0 {
            // The second block in a row: from here on it pays to read ahead.
            place.data = file.data(&place.opened, &place.partition, place.block, self.fill).await?;
            self.window = 2 * place.data.memory();
            return Ok(());
        }
        let ahead =
            file.data_ahead(&place.opened, &place.partition, place.block, self.window).await?;
        self.ahead = ahead.into();
        self.window = (2 * self.window).min(MERGE_READ_BYTES);
        place.data = self.ahead.pop_front().expect("at least the one asked for");
        Ok(())
    }

    async fn block_before(&mut self) -> Result<(), Error> {
        self.ahead.clear();
        let place = self.place.as_mut().expect("the caller has looked");
        if place.block == 0 {
            let (file, part) = (place.file, place.part);
            if part > 0 {
                return self.enter_part(file, part - 1, true).await;
            }
            self.place = None;
            if file > 0 {
                return self.enter_file(file - 1, true).await;
            }
            return Ok(());
        }
        place.block -= 1;
        let file = &self.run.files[place.file];
        place.data = file.data(&place.opened, &place.partition, place.block, self.fill).await?;
        place.entry = place.data.len() - 1;
        Ok(())
    }

    async fn enter_file(&mut self, file: usize, at_end: bool) -> Result<(), Error> {
        let opened = self.run.files[file].open().await?;
        let part = if at_end { opened.top.len() - 1 } else { 0 };
        self.enter_part(file, part, at_end).await
    }

    async fn enter_part(&mut self, number: usize, part: usize, at_end: bool) -> Result<(), Error> {
        self.ahead.clear();
        let file = self.run.files[number].clone();
        let opened = file.open().await?;
        let partition = file.partition(&opened, part, self.fill).await?;
        let block = if at_end { partition.index.len() - 1 } else { 0 };
        let data = if self.window == 0 || at_end {
            file.data(&opened, &partition, block, self.fill).await?
        } else {
            self.ahead = file.data_ahead(&opened, &partition, block, self.window).await?.into();
            self.ahead.pop_front().expect("at least the one asked for")
        };
        let entry = if at_end { data.len() - 1 } else { 0 };
        self.place =
            Some(CursorPosition { file: number, opened, part, partition, block, data, entry });
        Ok(())
    }
}
