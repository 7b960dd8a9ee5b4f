//! Offset maps of sealed replicas, bounded in bytes; the least recently used goes first.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ChunkId, Map};

use crate::map::{RUN_BYTES, Run};

/// Bytes that an entry takes beside its runs.
const OVERHEAD: usize = 96;

pub(crate) struct MapCache {
    maps: Map<ChunkId, (u64, Rc<[Run]>)>,
    order: BTreeMap<u64, ChunkId>,
    tick: u64,
    bytes: usize,
    budget: usize,
}

fn weight(runs: &[Run]) -> usize {
    runs.len() * RUN_BYTES + OVERHEAD
}

impl MapCache {
    pub(crate) fn new(budget: usize) -> MapCache {
        MapCache { maps: Map::default(), order: BTreeMap::new(), tick: 0, bytes: 0, budget }
    }

    pub(crate) fn get(&mut self, chunk: ChunkId) -> Option<Rc<[Run]>> {
        self.tick += 1;
        let (used, runs) = self.maps.get_mut(&chunk)?;
        self.order.remove(used);
        *used = self.tick;
        self.order.insert(self.tick, chunk);
        Some(runs.clone())
    }

    pub(crate) fn insert(&mut self, chunk: ChunkId, runs: Rc<[Run]>) {
        self.remove(chunk);
        self.tick += 1;
        self.bytes += weight(&runs);
        self.maps.insert(chunk, (self.tick, runs));
        self.order.insert(self.tick, chunk);
        while self.bytes > self.budget {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            let (_, gone) = self.maps.remove(&oldest).expect("ordered means kept");
            self.bytes -= weight(&gone);
        }
    }

    pub(crate) fn remove(&mut self, chunk: ChunkId) {
        if let Some((used, gone)) = self.maps.remove(&chunk) {
            self.order.remove(&used);
            self.bytes -= weight(&gone);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
