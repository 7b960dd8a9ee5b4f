//! The chunk-information cache (C6): locations of chunks, by file and offset; the files used last
//! are kept. Entries may be stale: a replica's answer shows it, and the reader asks again.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::limits::CHUNK_LEN_MAX;
use base::{FileId, Map};
use wire::control::{ChunkPlace, StreamView};

struct FileEntry {
    /// By base, one at least. Empty sealed chunks hold no bytes and are not kept.
    chunks: BTreeMap<u64, Rc<ChunkPlace>>,
    used: u64,
}

/// True when a chunk holds a file's byte, or, while it is open, may come to hold it. No chunk
/// reaches further than [`CHUNK_LEN_MAX`] from its base.
pub(crate) fn holds(chunk: &ChunkPlace, at: u64) -> bool {
    let reach = chunk.sealed.map_or(CHUNK_LEN_MAX, u64::from);
    at.checked_sub(chunk.base).is_some_and(|distance| distance < reach)
}

/// Chunks of files.
pub(crate) struct Cache {
    files: Map<FileId, FileEntry>,
    /// Files by the time of their last use.
    order: BTreeMap<u64, FileId>,
    clock: u64,
    count: usize,
    max: usize,
}

impl Cache {
    pub(crate) fn new(max: usize) -> Cache {
        Cache { files: Map::default(), order: BTreeMap::new(), clock: 0, count: 0, max }
    }

    /// The chunk that holds a file's byte, or would if it were longer.
    pub(crate) fn get(&mut self, file: FileId, offset: u64) -> Option<Rc<ChunkPlace>> {
        self.clock += 1;
        let entry = self.files.get_mut(&file)?;
        self.order.remove(&entry.used);
        entry.used = self.clock;
        self.order.insert(self.clock, file);
        let (_, chunk) = entry.chunks.range(..=offset).next_back()?;
        holds(chunk, offset).then(|| chunk.clone())
    }

    /// Takes over an answer of the stream service.
    pub(crate) fn insert(&mut self, view: &StreamView) {
        let mut chunks = view.chunks.iter().filter(|chunk| chunk.sealed != Some(0)).peekable();
        if chunks.peek().is_none() {
            return;
        }
        self.clock += 1;
        let clock = self.clock;
        let entry = self
            .files
            .entry(view.file)
            .or_insert_with(|| FileEntry { chunks: BTreeMap::new(), used: clock });
        self.order.remove(&entry.used);
        entry.used = clock;
        self.order.insert(clock, view.file);
        let before = entry.chunks.len();
        for chunk in chunks {
            entry.chunks.insert(chunk.base, Rc::new(chunk.clone()));
        }
        self.count = self.count + entry.chunks.len() - before;
        while self.count > self.max && self.order.len() > 1 {
            let (_, oldest) = self.order.pop_first().expect("not empty");
            let entry = self.files.remove(&oldest).expect("both have it");
            self.count -= entry.chunks.len();
        }
        self.trim(view.file);
    }

    /// A single file larger than the cache keeps the chunks added last.
    fn trim(&mut self, file: FileId) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        while self.count > self.max {
            entry.chunks.pop_first();
            self.count -= 1;
        }
    }

    /// Drops one chunk's entry, and the file's with its last one.
    pub(crate) fn forget_chunk(&mut self, file: FileId, base: u64) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        if entry.chunks.remove(&base).is_some() {
            self.count -= 1;
        }
        if entry.chunks.is_empty() {
            self.order.remove(&entry.used);
            self.files.remove(&file);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use base::{ChunkId, Epoch};

    use super::*;

    fn view(file: u64, bases: std::ops::Range<u64>, sealed: Option<u32>) -> StreamView {
        let chunk = |base: u64| ChunkPlace {
            chunk: ChunkId::new(file << 8 | base),
            epoch: Epoch::new(1),
            base: base * 10,
            sealed,
            replicas: Vec::new(),
            acks: 1,
            token: [0; 16],
            copies: 0,
            data: 1,
            compression: None,
        };
        StreamView {
            file: FileId::new(file),
            chunks: bases.map(chunk).collect(),
            sealed_len: 0,
            open: sealed.is_none(),
            epoch: Epoch::new(1),
            policy: None,
            loss_accepted: false,
            converting: false,
        }
    }

    #[test]
    fn finds_what_holds_a_byte() {
        let mut cache = Cache::new(100);
        let file = FileId::new(1);
        cache.insert(&view(1, 0..2, Some(10)));
        assert_eq!(cache.get(file, 9).unwrap().base, 0);
        assert_eq!(cache.get(file, 10).unwrap().base, 10);
        assert!(cache.get(file, 20).is_none() && cache.get(FileId::new(2), 0).is_none());
        cache.insert(&view(1, 2..3, None));
        let last = 20 + CHUNK_LEN_MAX - 1;
        assert_eq!(cache.get(file, last).unwrap().base, 20, "an open chunk may grow");
        for beyond in [last + 1, (1 << 32) + 25, 1 << 40] {
            assert!(cache.get(file, beyond).is_none(), "no chunk grows to {beyond}");
        }
        cache.forget_chunk(file, 10);
        assert!(cache.get(file, 10).is_none());
    }

    #[test]
    fn keeps_the_files_used_last() {
        let mut cache = Cache::new(8);
        for file in 1..=4 {
            cache.insert(&view(file, 0..2, Some(10)));
        }
        assert!(cache.get(FileId::new(1), 0).is_some());
        cache.insert(&view(5, 0..2, Some(10)));
        assert!(cache.get(FileId::new(1), 0).is_some());
        assert!(cache.get(FileId::new(2), 0).is_none());
        cache.insert(&view(6, 0..20, Some(10)));
        assert_eq!(cache.len(), 8);
        assert!(cache.get(FileId::new(6), 199).is_some());
    }

    #[test]
    fn files_without_chunks_take_no_entry() {
        let mut cache = Cache::new(8);
        for file in 0..10_000 {
            cache.insert(&view(file, 0..0, Some(10)));
            cache.insert(&view(file, 0..1, Some(0)));
        }
        assert_eq!((cache.files.len(), cache.order.len()), (0, 0));
        for file in 0..10_000 {
            cache.insert(&view(file, 0..2, Some(10)));
            cache.forget_chunk(FileId::new(file), 0);
            cache.forget_chunk(FileId::new(file), 10);
        }
        assert_eq!((cache.files.len(), cache.order.len(), cache.len()), (0, 0, 0));
    }
}
