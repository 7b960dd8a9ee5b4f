//! Control requests of masters: copies, deletions, lists.

use std::cell::RefCell;
use std::collections::BTreeSet;

use base::{ChunkId, DiskId, Kind};
use chunkstore::{Append, ChunkInfo, ChunkStore, StoreError};
use metrics::{Outcome, Span};
use transport::{Request, Response};
use wire::control::{
    ChunkserverReply, ChunkserverRequest, ControlError, ControlReply, ControlRequest,
    ListedReplica, ReplicaPlace, TraceReply, WireError,
};
use wire::data::{ChunkRef, DataError, Purpose, ReplicaStat, ReplicaState};
use wire::row::{Fragment, Layout};
use wire::token::{IssuerClocks, IssuerTime};

use crate::copy::CopySource;
use crate::limits::{
    BUSY_PAUSE, BUSY_WAIT_MAX, READ_LEN_MAX, REPLICATIONS_MAX, REPLICATIONS_SHARED_MAX,
    REPLICATIONS_URGENT_MAX, UNHEARD_LIFE, UNHEARD_MAX,
};
use crate::probe::ProbeError;
use crate::rebuild::Rebuild;
use crate::scrub::ReadThrough;
use crate::server::{Chunkserver, Disk};
use crate::shard::Origin;
use crate::share::Urgency;

impl<S: ChunkStore> Chunkserver<S> {
    pub(crate) async fn answer_control(
        &self,
        request: Request,
        origin: Origin<'_>,
    ) -> (Response, Span) {
        let asked = ControlRequest::decode(&request.body);
        let name = asked.as_ref().map_or("control request", ControlRequest::name);
        let trace = request.trace;
        self.traced((trace, name, origin.peer.addr), self.answer_asked(asked, request, origin))
            .await
    }

    async fn answer_asked(
        &self,
        asked: Result<ControlRequest, WireError>,
        request: Request,
        origin: Origin<'_>,
    ) -> (Response, Outcome) {
        let answer = match asked {
            Ok(ControlRequest::Chunkserver(asked)) => {
                let forwarded = match asked.disk() {
                    Some(disk) => self.forward(disk, &request, origin).await,
                    None => None,
                };
                match forwarded {
                    Some(Ok(answered)) => return answered,
                    Some(Err(kind)) => {
                        Err(ControlError::new(kind, "this disk's executor does not take more now"))
                    }
                    None => self.serve_control(asked, origin).await.map(ControlReply::Chunkserver),
                }
            }
            Ok(ControlRequest::Trace(asked)) => {
                let (env, process) = (&self.0.env, format!("chunkserver {}", self.0.config.name));
                let (ring, now) = (env.tracer().ring(), env.now().as_nanos());
                Ok(ControlReply::Trace(TraceReply::answer(&asked, &process, ring, now)))
            }
            Ok(_) => Err(ControlError::new(
                Kind::Invalid,
                "this is a chunkserver: ask a master for namespaces, streams and membership",
            )),
            Err(error) => Err(ControlError::new(Kind::Invalid, error.to_string())),
        };
        match answer {
            Ok(reply) => (Response::ok(reply.encode()), Outcome::Done),
            Err(error) => (Response::error(&error), Outcome::Failed(error.kind)),
        }
    }

    async fn serve_control(
        &self,
        request: ChunkserverRequest,
        origin: Origin<'_>,
    ) -> Result<ChunkserverReply, ControlError> {
        match request {
            ChunkserverRequest::Replicate { disk, order } => {
                self.replicate(CopySource::new(disk, order), origin).await
            }
            ChunkserverRequest::Delete { disk, chunks, not_after } => {
                for chunk in chunks {
                    self.check_order(not_after)?;
                    let at = ChunkRef { chunk, disk };
                    let store = self.disk(at).map_err(refused)?.store.clone();
                    store.delete(chunk).await.map_err(|error| self.refuse(at, error))?;
                    self.0.committed.borrow_mut().remove(&chunk);
                    self.0.unsound.borrow_mut().remove(&(disk, chunk));
                }
                Ok(ChunkserverReply::Done)
            }
            ChunkserverRequest::Forget { disk, chunks, not_after } => {
                for chunk in chunks {
                    self.check_order(not_after)?;
                    let at = ChunkRef { chunk, disk };
                    let store = self.disk(at).map_err(refused)?.store.clone();
                    match store.forget(chunk).await {
                        Ok(()) | Err(StoreError::NotFound) => {}
                        Err(error) => return Err(self.refuse(at, error)),
                    }
                }
                Ok(ChunkserverReply::Done)
            }
            ChunkserverRequest::List { disk, after, limit } => {
                let at = ChunkRef { chunk: ChunkId::default(), disk };
                let store = self.disk(at).map_err(refused)?.store.clone();
                let limit = limit.clamp(1, 1000) as usize;
                let mut found = store.list(after, limit + 1);
                let more = found.len() > limit;
                found.truncate(limit);
                let listed = |info: &ChunkInfo| {
                    let ChunkInfo { chunk, stat, physical } = *info;
                    ListedReplica { chunk, stat, physical: Some(physical) }
                };
                let replicas = found.iter().map(listed).collect();
                Ok(ChunkserverReply::List { replicas, more })
            }
            ChunkserverRequest::Probe { disk } => self.probe(disk).await,
            ChunkserverRequest::Scrub { start } => Ok(self.scrubs(start)),
            ChunkserverRequest::Convert { disk, order } => self.convert(disk, &order).await,
            ChunkserverRequest::Digest { disk, chunk, len } => {
                self.digest(ChunkRef { chunk, disk }, len).await
            }
            ChunkserverRequest::CheckRows { disk, order } => self.check_rows(disk, &order).await,
            ChunkserverRequest::ReplaceDisk { path } => self.replace_disk(&path).await,
            ChunkserverRequest::Ping => Ok(ChunkserverReply::Done),
            ChunkserverRequest::FailDisk { disk, failed } => {
                if !self.0.config.fault_injection {
                    return Err(ControlError::new(
                        Kind::Invalid,
                        "fault injection is off: start the chunkserver with --allow-fault-injection",
                    ));
                }
                let disk = self.0.disks.borrow().get(&disk).cloned();
                let disk = disk.ok_or_else(|| refused(DataError::WrongDisk))?;
                disk.failed.set(failed);
                self.heartbeat_soon();
                Ok(ChunkserverReply::Done)
            }
        }
    }

    /// Answers how long a durable write and a read of the disk took.
    async fn probe(&self, disk: DiskId) -> Result<ChunkserverReply, ControlError> {
        let at = ChunkRef { chunk: ChunkId::default(), disk };
        let disk = self.disk(at).map_err(refused)?;
        let took =
            disk.probes.ask(&self.0.env, &disk.store).await.map_err(|error| match error {
                ProbeError::Late => {
                    let message = "the disk does not end its probe: it may recover";
                    ControlError::new(Kind::Retry, message)
                }
                ProbeError::Store(error) => self.refuse(at, error),
            })?;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Ok(ChunkserverReply::Probed { took_us })
    }

    /// Refuses an order that was under way for too long: the replica that it means may be gone, and
    /// another one made at the same place.
    fn check_order(&self, not_after: Option<IssuerTime>) -> Result<(), ControlError> {
        let Some(not_after) = not_after else { return Ok(()) };
        let issuers = &mut *self.0.issuers.borrow_mut();
        self.0.directory.copy_issuers(issuers);
        let now_s = issuers.at(self.0.env.now(), self.wall_s()).now_s(not_after.issuer);
        let Some(now_s) = now_s else {
            self.heartbeat_soon();
            let message = "the order is of a master that this chunkserver has not heard of: send it \
                           again after the next heartbeat";
            return Err(ControlError::new(Kind::Retry, message));
        };
        if now_s <= not_after.seconds {
            return Ok(());
        }
        self.0.env.mark("order that has run out refused");
        let message =
            format!("the order has run out {} s ago: send another one", now_s - not_after.seconds);
        tracing::warn!("{message}");
        Err(ControlError::new(Kind::Retry, message))
    }

    /// Makes a replica from others (invariant 9: the sources stay as they are), and verifies it.
    async fn replicate(
        &self,
        copy: CopySource,
        origin: Origin<'_>,
    ) -> Result<ChunkserverReply, ControlError> {
        let at = ChunkRef { chunk: copy.order.chunk, disk: copy.disk };
        let disk = self.disk(at).map_err(refused)?;
        let store = &disk.store;
        if copy.order.len == 0 || copy.order.sources.is_empty() {
            return Err(ControlError::new(Kind::Invalid, "a copy needs a length and a source"));
        }
        let most = replications_max(copy.urgency());
        let Some(_slot) = Slot::take(&self.0.replicating, copy.order.chunk, most) else {
            return Err(ControlError::new(
                Kind::Retry,
                format!("{most} copies, or one of this chunk, are under way: retry"),
            ));
        };
        let bytes = self.copy_chunk(&disk, at, &copy).await?;
        self.check_fragment(&disk, &copy).await?;
        let mut is_verified = false;
        let stat = if copy.order.seal {
            let stat = store.seal(copy.order.chunk, copy.order.len).await;
            let stat = stat.map_err(|error| self.refuse(at, error))?;
            self.0.committed.borrow_mut().remove(&copy.order.chunk);
            let is_unsound = self.0.unsound.borrow_mut().remove(&(copy.disk, copy.order.chunk));
            is_verified = self.takes_unheard(&copy) && bytes == 0 && !is_unsound;
            stat
        } else {
            store.stat(copy.order.chunk).map_err(|error| self.refuse(at, error))?
        };
        if copy.order.seal && !is_verified {
            // The copy is verified from the medium, of a replica that was here before too: masters
            // drop others on the strength of this answer.
            let urgency = copy.urgency().unwrap_or(Urgency::Copy);
            let verified = ReadThrough { env: &self.0.env, disk: &disk, urgency };
            let verified = verified.run(copy.order.chunk, copy.order.len, async |_| ());
            verified.await.map_err(|error| self.refuse(at, error))?;
            if !origin.waits(self.0.env.now()) {
                self.keep_unheard(&copy);
            }
        }
        self.count(|stats| {
            stats.replications += 1;
            stats.replicated_bytes += bytes;
        });
        Ok(ChunkserverReply::Replicated { stat, bytes })
    }

    /// Refuses a replica of another fragment than is ordered, which was here before: what masters count
    /// on it for would be there twice, and this one not at all.
    async fn check_fragment(&self, disk: &Disk<S>, copy: &CopySource) -> Result<(), ControlError> {
        // Damage is for the read of all of it.
        let Ok(first) = disk.store.read(copy.order.chunk, 0, 1).await else { return Ok(()) };
        let found = match Layout::of(&first.sectors) {
            Layout::Rows(fragment) if fragment != Fragment::COPY => Some(fragment),
            Layout::Plain | Layout::Rows(_) => None,
        };
        if found == copy.order.fragment {
            return Ok(());
        }
        self.0.env.mark("copy ordered where another fragment is");
        let name = |it: Option<Fragment>| {
            it.map_or("a copy".to_owned(), |it| {
                format!("fragment {} of {}+{}", it.number, it.k, it.p)
            })
        };
        let (found, wanted) = (name(found), name(copy.order.fragment));
        let text = format!(
            "{} is here already, as {found}, not as {wanted}: order it at another place",
            copy.order.chunk
        );
        Err(ControlError::new(Kind::Exists, text))
    }

    /// Notes that a replica was verified for a master that had given up by then. With the least share of
    /// the disk that takes longer than orders may take: the next order would begin again, and all after
    /// it.
    fn keep_unheard(&self, copy: &CopySource) {
        let (unheard, now) = (&mut *self.0.unheard.borrow_mut(), self.0.env.now());
        unheard.retain(|_, &mut (_, at)| now - at < UNHEARD_LIFE);
        if unheard.len() < UNHEARD_MAX {
            unheard.insert((copy.disk, copy.order.chunk), (copy.order.len, now));
        }
    }

    /// Whether a replica was verified a while ago, of which no master has heard yet. Once: what is asked
    /// for again is read again.
    fn takes_unheard(&self, copy: &CopySource) -> bool {
        let unheard = self.0.unheard.borrow_mut().remove(&(copy.disk, copy.order.chunk));
        let now = self.0.env.now();
        unheard.is_some_and(|(len, at)| len == copy.order.len && now - at < UNHEARD_LIFE)
    }

    async fn copy_chunk(
        &self,
        disk: &Disk<S>,
        at: ChunkRef,
        copy: &CopySource,
    ) -> Result<u64, ControlError> {
        let store = &disk.store;
        // A copy that was interrupted goes on where it stopped; a sealed one is done.
        let mut offset = match store.stat(copy.order.chunk) {
            Ok(ReplicaStat { state: ReplicaState::Sealed, durable_bound, .. })
                if durable_bound == copy.order.len =>
            {
                return Ok(0);
            }
            // A fenced replica is completed in place, also one that was fenced before its creation:
            // its vote stays (`protocols.md` 2.3).
            Ok(ReplicaStat {
                state: ReplicaState::Repairing | ReplicaState::Fenced(_) | ReplicaState::Tombstone,
                len,
                ..
            }) => len,
            Ok(stat) => {
                return Err(ControlError::new(
                    Kind::Exists,
                    format!(
                        "{} is here already, {:?} at {} bytes",
                        copy.order.chunk, stat.state, stat.len
                    ),
                ));
            }
            Err(StoreError::NotFound) => 0,
            Err(error) => return Err(self.refuse(at, error)),
        };
        let mut sources: Vec<&ReplicaPlace> = copy.order.sources.iter().collect();
        let mut rebuild = copy.order.fragment.map(Rebuild::of);
        let (mut want, mut bytes, mut busy_since) = (READ_LEN_MAX, 0, None);
        while offset < copy.order.len {
            let sectors = match &mut rebuild {
                None => self.next_sectors(copy, &mut sources, offset, &mut want).await,
                Some(rebuild) => {
                    self.next_cells(copy, rebuild, &mut sources, offset, &mut want).await
                }
            };
            let sectors = sectors.map_err(|error| copy.cause(error))?;
            want = (want * 2).min(READ_LEN_MAX);
            let stored = sectors.len();
            let append = Append {
                chunk: copy.order.chunk,
                epoch: copy.order.epoch,
                base: copy.order.base,
                offset,
                sectors,
                create: offset == 0,
                repair: true,
                purpose: Purpose::Data,
            };
            let taken = store.append(append);
            let taken = match copy.urgency() {
                None => disk.share.foreground(&self.0.env, taken).await.0,
                Some(urgency) => {
                    let work = (urgency, stored as u64);
                    let shared = disk.share.background(&self.0.env, work, taken).await;
                    shared.unwrap_or(Err(StoreError::Busy))
                }
            };
            match taken {
                Ok(appended) => {
                    bytes += stored as u64;
                    (offset, busy_since) = (appended.len, None);
                }
                Err(StoreError::Busy) => {
                    let since = *busy_since.get_or_insert(self.0.env.now());
                    if self.0.env.now().since(since) >= BUSY_WAIT_MAX {
                        return Err(self.refuse(at, StoreError::Busy));
                    }
                    self.0.env.sleep(BUSY_PAUSE).await;
                }
                Err(error) => return Err(self.refuse(at, error)),
            }
        }
        Ok(bytes)
    }

    pub(crate) fn refuse(&self, at: ChunkRef, error: StoreError) -> ControlError {
        refused(self.data_error(at, error))
    }
}

/// Copies under way with which another one begins: those that wait for their share of a disk leave room
/// for what may not wait.
fn replications_max(urgency: Option<Urgency>) -> usize {
    match urgency {
        None => REPLICATIONS_MAX,
        Some(Urgency::NoMargin) => REPLICATIONS_URGENT_MAX,
        Some(Urgency::Copy | Urgency::Scrub) => REPLICATIONS_SHARED_MAX,
    }
}

/// One copy or conversion under way: bounds how many there are, and keeps a second one of the same off.
pub(crate) struct Slot<'a, K: Ord + Copy> {
    under_way: &'a RefCell<BTreeSet<K>>,
    key: K,
}

impl<'a, K: Ord + Copy> Slot<'a, K> {
    pub(crate) fn take(
        under_way: &'a RefCell<BTreeSet<K>>,
        key: K,
        most: usize,
    ) -> Option<Slot<'a, K>> {
        let all = &mut *under_way.borrow_mut();
        let free = all.len() < most && all.insert(key);
        // Made only when it is taken: what is dropped gives the slot back.
        free.then(|| Slot { under_way, key })
    }
}

impl<K: Ord + Copy> Drop for Slot<'_, K> {
    fn drop(&mut self) {
        self.under_way.borrow_mut().remove(&self.key);
    }
}

pub(crate) fn refused(error: DataError) -> ControlError {
    ControlError::new(error.kind(), format!("the chunkserver refused: {error}"))
}
