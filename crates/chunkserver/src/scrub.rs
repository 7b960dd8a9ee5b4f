//! Scrub: reads every replica at a capped rate and verifies it (C26); an open one up to its durable
//! length. Each disk has passes of its own, so that one that hangs holds back no other. Reports of
//! what scrub finds are repeated.

use std::rc::Rc;

use base::ChunkId;
use chunkstore::{ChunkStore, Read, StoreError};
use runtime::{Class, Env};
use wire::control::ChunkserverReply;
use wire::data::{ReplicaStat, ReplicaState};
use wire::row::logical_end;

use crate::limits::{BUSY_PAUSE, BUSY_WAIT_MAX, READ_LEN_MAX};
use crate::server::{Chunkserver, Disk};
use crate::share::Urgency;

/// Replicas listed at a time.
const PAGE: usize = 64;

impl<S: ChunkStore> Chunkserver<S> {
    /// How far scrub is on this shard's disks; begins the next pass of those where none is under way, if
    /// `start` says so.
    pub(crate) fn scrubs(&self, start: bool) -> ChunkserverReply {
        let now = self.0.env.now();
        let off = !self.0.scrub_rate.is_any();
        let report = |disk: Rc<Disk<S>>| {
            if start && !off {
                disk.scrub.ask();
            }
            disk.scrub.report(disk.id, now)
        };
        ChunkserverReply::Scrubs { disks: self.disks().into_iter().map(report).collect(), off }
    }

    /// Scrubs a disk in passes, for as long as the server has it.
    pub(crate) fn scrub(&self, disk: Rc<Disk<S>>) {
        if self.0.scrub_rate.is_any() {
            let (server, env) = (self.clone(), &self.0.env);
            env.spawn(Class::Background, "scrub", async move { server.run_scrub(disk).await });
        }
    }

    async fn run_scrub(&self, disk: Rc<Disk<S>>) {
        let env = &self.0.env;
        loop {
            // The pause comes first: a start is busy enough.
            // Unless an operator wants the pass now.
            let pause = env.jitter(self.0.config.scrub_pause);
            let _ = env.timeout(pause, disk.scrub.asked()).await;
            let has_it =
                self.0.disks.borrow().get(&disk.id).is_some_and(|it| Rc::ptr_eq(it, &disk));
            if !has_it {
                return;
            }
            disk.scrub.begin(disk.store.info().chunks);
            self.scrub_disk(&disk).await;
            disk.scrub.end(env.now());
            self.count(|stats| stats.scrub_passes += 1);
        }
    }

    async fn scrub_disk(&self, disk: &Rc<Disk<S>>) {
        let mut after: Option<ChunkId> = None;
        loop {
            let page = disk.store.list(after, PAGE);
            let Some(last) = page.last() else { return };
            after = Some(last.chunk);
            for replica in page.iter().filter(|info| is_scrubbed(info.stat.state)) {
                if disk.failed.get() || disk.store.info().failed {
                    return;
                }
                self.scrub_replica(disk, replica.chunk, &replica.stat).await;
                disk.scrub.note_done();
            }
        }
    }

    /// Has masters repair this shard's replicas whose reports they took long ago, if they are still
    /// there and damaged.
    pub(crate) fn repeat_damage_reports(&self) {
        for (id, chunk) in self.0.directory.taken_long_ago(self.0.env.now()) {
            let Some(disk) = self.0.disks.borrow().get(&id).cloned() else { continue };
            let stat = disk.store.stat(chunk).ok().filter(|stat| is_scrubbed(stat.state));
            if stat.is_some_and(|stat| stat.len < stat.durable_bound) {
                self.0.env.mark("chunkserver: damage report repeated");
                self.0.directory.repeat_damaged((id, chunk));
            } else {
                self.0.directory.forget_damaged((id, chunk));
            }
        }
    }

    async fn scrub_replica(&self, disk: &Rc<Disk<S>>, chunk: ChunkId, stat: &ReplicaStat) {
        // Known already: the report may have been lost.
        let damaged = || {
            disk.scrub.note_damaged();
            self.note_damaged(disk.id, chunk);
        };
        if stat.len < stat.durable_bound {
            return damaged();
        }
        let pace = async |sectors: &[u8]| {
            let bytes = sectors.len() as u64;
            self.count(|stats| stats.scrubbed_bytes += bytes);
            self.0.scrub_rate.pace(&self.0.env, bytes).await;
        };
        // Other errors: the replica was deleted, memory was short for long, or the disk has failed.
        let read = ReadThrough { env: &self.0.env, disk, urgency: Urgency::Scrub };
        let read = read.run(chunk, stat.len, pace).await;
        if matches!(read, Err(StoreError::Corrupt { .. })) {
            damaged();
        }
    }
}

/// Repair fills a replica from others, which are scrubbed; a tombstone has nothing.
fn is_scrubbed(state: ReplicaState) -> bool {
    matches!(state, ReplicaState::Open | ReplicaState::Fenced(_) | ReplicaState::Sealed)
}

/// A read of a whole replica, as background work of its disk.
pub(crate) struct ReadThrough<'a, S> {
    pub(crate) env: &'a Env,
    pub(crate) disk: &'a Disk<S>,
    pub(crate) urgency: Urgency,
}

impl<S: ChunkStore> ReadThrough<'_, S> {
    /// One read, in its turn.
    pub(crate) async fn read(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
    ) -> Result<Read, StoreError> {
        let read = self.disk.store.read(chunk, offset, len);
        let shared = self.disk.share.background(self.env, (self.urgency, len.into()), read).await;
        shared.unwrap_or(Err(StoreError::Busy))
    }

    /// Reads the first `len` bytes of a replica, each sector of which the store verifies; less where it is
    /// sealed at less by then. `each` gets the sectors of each read.
    pub(crate) async fn run(
        &self,
        chunk: ChunkId,
        len: u32,
        each: impl AsyncFn(&[u8]),
    ) -> Result<(), StoreError> {
        let (env, store) = (self.env, &self.disk.store);
        let (mut offset, mut busy_since) = (0, None);
        while offset < len {
            match self.read(chunk, offset, READ_LEN_MAX.min(len - offset)).await {
                Ok(read) => {
                    // Sectors hold 1 to 4048 bytes: a read may bring less than it asked for.
                    let Some(end) = logical_end(&read.sectors).filter(|&end| end > offset) else {
                        let sealed_here = store.stat(chunk)?.durable_bound <= offset;
                        return if sealed_here {
                            Ok(())
                        } else {
                            Err(StoreError::Corrupt { offset })
                        };
                    };
                    (offset, busy_since) = (end, None);
                    each(&read.sectors).await;
                }
                Err(StoreError::Busy) => {
                    let since = *busy_since.get_or_insert(env.now());
                    if env.now().since(since) >= BUSY_WAIT_MAX {
                        return Err(StoreError::Busy);
                    }
                    env.sleep(BUSY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
