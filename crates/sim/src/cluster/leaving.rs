//! Servers that leave the cluster, and what is on record.

use std::collections::BTreeMap;

use base::{DiskId, ServerId};
use chunkstore::ChunkStore;
use master_stream::{Slot, StreamMachine};
use runtime::sim::CrashMode;

use super::Cluster;
use crate::planted::Store;

impl Cluster {
    /// A server has been decommissioned: it is switched off, and does not come back.
    pub(crate) fn server_leaves(&self, index: usize) {
        self.0.left.borrow_mut().insert(index);
        self.crash_server(index, CrashMode::Process);
    }

    /// Whether a server has left.
    pub(crate) fn has_left(&self, index: usize) -> bool {
        self.0.left.borrow().contains(&index)
    }

    /// The identity of a server, as the first master that knows it has it.
    pub(crate) fn server_id(&self, name: &str) -> Option<ServerId> {
        let running = self.0.running_masters.borrow();
        let mut found = running.iter().flatten().filter_map(|master| {
            master.cluster().host().read(|state| state.server_named(name).map(|(id, _)| id))
        });
        found.next()
    }

    /// A chunk that has a replica on record at one of some disks; an error while a partition cannot be
    /// looked at.
    pub(crate) fn chunk_at(&self, disks: &[DiskId]) -> Result<Option<String>, String> {
        let (mut partitions, mut found) = (0, None);
        self.newest_streams(|state, _| {
            partitions += 1;
            let at = |slot: &Slot| disks.contains(&state.place(slot.place).disk);
            let chunks = state.streams().flat_map(|(_, stream)| stream.all_chunks());
            let there = chunks.filter(|chunk| chunk.slots().any(|slot| at(&slot)));
            found = found.take().or(there.map(|chunk| chunk.id.to_string()).next());
        });
        if partitions < usize::from(self.0.shape.stream_partitions) {
            return Err("no master shows all partitions".to_owned());
        }
        Ok(found)
    }

    /// Checks that the copies of each sealed chunk are there, with all bytes, on disks that are served.
    pub(crate) fn check_copies(&self) -> Result<(), String> {
        self.check_copies_on(|_| true)
    }

    /// As [`Cluster::check_copies`], on other servers than this one.
    pub(crate) fn check_copies_without(&self, server: usize) -> Result<(), String> {
        self.check_copies_on(|index| index != server)
    }

    fn check_copies_on(&self, counts: impl Fn(usize) -> bool) -> Result<(), String> {
        let servers = (0..self.0.servers.len()).filter(|index| counts(*index));
        let stores: BTreeMap<DiskId, Store> =
            servers.flat_map(|index| self.stores(index)).collect();
        let mut short = None;
        self.newest_streams(|state, _| {
            for chunk in state.streams().flat_map(|(_, stream)| &stream.chunks) {
                let Some(len) = chunk.sealed() else { continue };
                let is_there = |slot: &Slot| {
                    let store = stores.get(&state.place(slot.place).disk);
                    let stat = store.and_then(|store| store.stat(chunk.id).ok());
                    stat.is_some_and(|stat| stat.len >= len && !stat.state.is_tombstone())
                };
                let count = chunk.slots().filter(is_there).count();
                if count < usize::from(chunk.copies) {
                    let (id, copies) = (chunk.id, chunk.copies);
                    short = Some(format!("{id} has {count} of {copies} replicas with all bytes"));
                }
            }
        });
        short.map_or(Ok(()), Err)
    }

    /// Shows the state of each stream partition, of the master that has applied most, with the entry
    /// that it applied last.
    pub(crate) fn newest_streams(&self, mut show: impl FnMut(&StreamMachine, u64)) {
        let running = self.0.running_masters.borrow();
        for partition in 0..usize::from(self.0.shape.stream_partitions) {
            let hosts = running.iter().flatten().map(|master| master.stream(partition));
            let newest = hosts.max_by_key(|host| host.group().applied_index());
            let Some(host) = newest else { continue };
            let applied = host.group().applied_index().unwrap_or(0);
            host.read(|state| show(state, applied));
        }
    }
}
