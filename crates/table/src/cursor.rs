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
}

impl RunCursor {
    /// A cursor without a position. A merge reads ahead from the start and fills no cache.
    pub(crate) fn new(run: Rc<Run>, merge: bool) -> RunCursor {
        let window = if merge { MERGE_READ_BYTES } else { 0 };
        let ahead = VecDeque::new();
        RunCursor { run, place: None, key: Vec::new(), ahead, window, fill: !merge }
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

    /// Goes to the last key below `key`, or at it when `inclusive`.
    pub(crate) async fn seek_back(&mut self, key: &[u8], inclusive: bool) -> Result<(), Error> {
        self.seek(key).await?;
        if self.place.is_none() {
            return self.last().await;
        }
        if inclusive && self.key == key {
            return Ok(());
        }
        self.back().await
    }

    /// Goes forward to the first key at or above `key`, through blocks that it has; stays when it is
    /// there or above.
    pub(crate) async fn seek_ahead(&mut self, key: &[u8]) -> Result<(), Error> {
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
            return self.seek(key).await;
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

    /// Goes back to the last key at or below `key`, through blocks that it has; stays when it is
    /// there or below.
    pub(crate) async fn seek_behind(&mut self, key: &[u8]) -> Result<(), Error> {
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
            return self.seek_back(key, true).await;
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

    /// Goes to the first key.
    pub(crate) async fn first(&mut self) -> Result<(), Error> {
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
        self.place = None;
        self.ahead.clear();
        if let Some(last) = self.run.files.len().checked_sub(1) {
            self.enter_file(last, true).await?;
        }
        self.note_key();
        Ok(())
    }

    /// Goes to the next key.
    pub(crate) async fn forward(&mut self) -> Result<(), Error> {
        let Some(place) = &mut self.place else { return Ok(()) };
        place.entry += 1;
        if place.entry == place.data.len() {
            self.next_block().await?;
        }
        self.note_key();
        Ok(())
    }

    /// Goes to the key before.
    pub(crate) async fn back(&mut self) -> Result<(), Error> {
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
