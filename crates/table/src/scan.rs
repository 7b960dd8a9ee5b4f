//! [`Scan`]: entries in order of keys, from memory and runs together.

use std::fmt;
use std::ops::Bound;
use std::rc::Rc;

use futures_util::future::try_join_all;

use crate::cursor::RunCursor;
use crate::error::Error;
use crate::memtable::{Memtable, is_empty};
use crate::range::{Range, bound};
use crate::snapshot::Pin;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A source of entries.
enum Source {
    Memory { table: Rc<Memtable>, key: Option<Box<[u8]>> },
    Run(RunCursor),
}

/// The entries of a range as they were at one moment, one after the other.
pub struct Scan {
    pin: Pin,
    range: Range,
    /// Newest first.
    sources: Vec<Source>,
    started: bool,
}

impl Scan {
    pub(crate) fn new(pin: Pin, range: Range) -> Scan {
        let view = pin.view();
        let memory = view.memtables.into_iter().map(|table| Source::Memory { table, key: None });
        let runs = view.runs.iter().map(|run| Source::Run(RunCursor::new(run.clone(), false)));
        let empty = is_empty(bound(&range.lower), bound(&range.upper));
        let sources = if empty { Vec::new() } else { memory.chain(runs).collect() };
        Scan { pin, range, sources, started: false }
    }

    /// The next entry; nothing behind the last.
    pub async fn next(&mut self) -> Result<Option<Entry>, Error> {
        let found = self.step().await;
        match found {
            Ok(entry) => Ok(entry),
            Err(error) => {
                self.sources.clear();
                Err(self.pin.explain(error).await)
            }
        }
    }

    /// Skips the entries before `key`: the next one is the first at or behind it in the scan's order,
    /// so at or below it when the scan goes from the last key to the first. Nothing changes when the
    /// scan is at `key` or has passed it. What of the way has been read is not read again.
    pub async fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        if !self.started {
            self.range.begin_at(key);
            if is_empty(bound(&self.range.lower), bound(&self.range.upper)) {
                self.sources.clear();
            }
            return Ok(());
        }
        if !self.range.reaches(key) {
            self.sources.clear();
            return Ok(());
        }
        let range = &self.range;
        match try_join_all(self.sources.iter_mut().map(|source| source.seek(key, range))).await {
            Ok(_) => Ok(()),
            Err(error) => {
                self.sources.clear();
                Err(self.pin.explain(error).await)
            }
        }
    }

    /// Up to `limit` of the next entries.
    pub async fn take(&mut self, limit: usize) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        while entries.len() < limit {
            match self.next().await? {
                Some(entry) => entries.push(entry),
                None => break,
            }
        }
        Ok(entries)
    }

    async fn step(&mut self) -> Result<Option<Entry>, Error> {
        if !self.started {
            self.started = true;
            let range = &self.range;
            try_join_all(self.sources.iter_mut().map(|source| source.start(range))).await?;
        }
        loop {
            let keys = self.sources.iter().filter_map(Source::key);
            let best = if self.range.reverse { keys.max() } else { keys.min() };
            let Some(key) = best.map(<[u8]>::to_vec) else { return Ok(None) };
            if !self.range.reaches(&key) {
                self.sources.clear();
                return Ok(None);
            }
            let seq = self.pin.seq();
            let mut value = None;
            for source in &mut self.sources {
                if source.key() != Some(&key) {
                    continue;
                }
                if value.is_none() {
                    value = source.visible(&key, seq);
                }
                source.advance(&self.range).await?;
            }
            if let Some(Some(value)) = value {
                return Ok(Some((key, value)));
            }
        }
    }
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scan({:?} at {})", self.range, self.pin.seq())
    }
}

impl Source {
    fn key(&self) -> Option<&[u8]> {
        match self {
            Source::Memory { key, .. } => key.as_deref(),
            Source::Run(cursor) => cursor.key(),
        }
    }

    /// The value that the key at its position had at `seq`, if the run has one.
    fn visible(&self, at: &[u8], seq: crate::types::Seq) -> Option<Option<Vec<u8>>> {
        match self {
            Source::Memory { table, .. } => {
                let found = table.get(at, seq)?;
                Some(found.1.map(|value| value.to_vec()))
            }
            Source::Run(cursor) => Some(cursor.visible(seq)?.1.map(<[u8]>::to_vec)),
        }
    }

    async fn start(&mut self, range: &Range) -> Result<(), Error> {
        match self {
            Source::Memory { table, key } => {
                *key = table.next_key(bound(&range.lower), bound(&range.upper), range.reverse);
                Ok(())
            }
            Source::Run(cursor) if range.reverse => match bound(&range.upper) {
                Bound::Unbounded => cursor.last().await,
                Bound::Included(high) => cursor.seek_back(high, true).await,
                Bound::Excluded(high) => cursor.seek_back(high, false).await,
            },
            Source::Run(cursor) => match bound(&range.lower) {
                Bound::Unbounded => cursor.first().await,
                Bound::Included(low) => cursor.seek(low).await,
                Bound::Excluded(low) => {
                    cursor.seek(low).await?;
                    if cursor.key() == Some(low) {
                        cursor.forward().await?;
                    }
                    Ok(())
                }
            },
        }
    }

    /// Goes on to the first key at or behind `to`, which the range reaches.
    async fn seek(&mut self, to: &[u8], range: &Range) -> Result<(), Error> {
        match self {
            Source::Memory { table, key } => {
                if key.as_deref().is_some_and(|at| range.is_before(at, to)) {
                    *key = match range.reverse {
                        true => table.next_key(bound(&range.lower), Bound::Included(to), true),
                        false => table.next_key(Bound::Included(to), bound(&range.upper), false),
                    };
                }
                Ok(())
            }
            Source::Run(cursor) if range.reverse => cursor.seek_behind(to).await,
            Source::Run(cursor) => cursor.seek_ahead(to).await,
        }
    }

    async fn advance(&mut self, range: &Range) -> Result<(), Error> {
        match self {
            Source::Memory { table, key } => {
                let at = key.take().expect("it stands on a key");
                *key = match range.reverse {
                    true => table.next_key(bound(&range.lower), Bound::Excluded(&at), true),
                    false => table.next_key(Bound::Excluded(&at), bound(&range.upper), false),
                };
                Ok(())
            }
            Source::Run(cursor) if range.reverse => cursor.back().await,
            Source::Run(cursor) => cursor.forward().await,
        }
    }
}
