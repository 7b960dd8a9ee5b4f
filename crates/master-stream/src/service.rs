//! The stream service of one partition: requests in, decisions committed, answers out.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, FileId, Kind, ServerId};
use runtime::sync::{Notify, Semaphore};
use runtime::{Duration, Env, Instant};
use wire::control::{
    ChunkPlace, ControlError, OpId, Policy, RepairStatus, ReplicaFault, ReplicaPlace,
    StoppedCollection, StreamChange, StreamReply, StreamRequest, StreamView, WriterGrant,
};
use wire::data::Purpose;
use wire::token::{IssuerTime, Rights, Token};

use super::chunk::{Chunk, Slot};
use super::command::{Action, Command, Outcome, Refusal};
use super::limits::{
    LOCATE_CHUNKS_MAX, LOCATE_FILES_MAX, LOCATE_MANY_CHUNKS_MAX, LOCATE_REPLICAS_MAX, REPORTS_MAX,
    REQUESTS_INFLIGHT_MAX, SPARES_MAX, StreamConfig,
};
use super::ports::{ChunkserverCalls, ClusterSource, Log, replica_place};
use super::recover::{Flight, RETRY};
use super::state::{Stream, StreamMachine};
use crate::issuer::TokenIssuer;
use crate::placement::{ClusterView, NoPlace, ReplicaLocation};
use crate::repair::Repairs;
use master_consensus::leader::{GroupClock, ReadGate};
use master_consensus::{LocalFuture, ProposeError, ReadError};

/// Says whether a namespace grant allows to open a file's stream; fails when that is not known now.
pub type GrantCheck =
    Rc<dyn Fn(FileId, [u8; 16]) -> LocalFuture<'static, Result<bool, ControlError>>>;

/// Parts of a stream partition.
pub struct StreamParts<L> {
    /// Its log and state.
    pub log: L,
    /// The masters' view of chunkservers.
    pub cluster: Rc<dyn ClusterSource>,
    /// Calls to chunkservers.
    pub calls: Rc<dyn ChunkserverCalls>,
    /// Issues tokens for chunks.
    pub tokens: TokenIssuer,
    /// Checks namespace grants.
    pub grants: GrantCheck,
    /// Times and rates.
    pub config: StreamConfig,
}

/// The stream service of one partition on one master. It decides only while its master leads
/// the partition. Clones are handles of the same service.
pub struct StreamService<L: Log>(pub(crate) Rc<Service<L>>);

impl<L: Log> Clone for StreamService<L> {
    fn clone(&self) -> Self {
        StreamService(self.0.clone())
    }
}

/// Figures of the partition, for `craton status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamStatus {
    /// Chunks of its streams.
    pub chunks: u64,
    /// Of them, with fewer healthy replicas than their policy asks.
    pub under_replicated: u64,
    /// Of them, with too few healthy replicas to read.
    pub lost: u64,
    /// Of those that can be read, how many survive so many more losses of a replica: none, one, two,
    /// three or more.
    pub survive: [u64; 4],
    /// Bytes in sealed chunks.
    pub logical_bytes: u64,
    /// Bytes of replicas that no stream refers to.
    pub unreferenced_bytes: u64,
    /// Repair in figures.
    pub repair: RepairStatus,
    /// Chunks moved to other disks for balance.
    pub moved: u64,
    /// Files with stored chunks that are to have another form.
    pub converting: u64,
    /// Chunks that were given another form.
    pub converted: u64,
}

/// Chunks by their redundancy, see [`StreamStatus`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Danger {
    pub under_replicated: u64,
    pub lost: u64,
    pub survive: [u64; 4],
}

pub(crate) struct Service<L> {
    pub(crate) env: Env,
    pub(crate) log: L,
    pub(crate) cluster: Rc<dyn ClusterSource>,
    pub(crate) calls: Rc<dyn ChunkserverCalls>,
    tokens: TokenIssuer,
    grants: GrantCheck,
    pub(crate) config: StreamConfig,
    clock: GroupClock,
    reads: Rc<ReadGate>,
    requests: Semaphore,
    /// Recoveries under way: requests for the same wait for the same.
    pub(super) flights: RefCell<BTreeMap<(FileId, Epoch), Rc<Flight>>>,
    /// There are chunks with replicas to seal.
    pub(crate) work: Notify,
    /// Replicas reported as damaged, to be checked.
    pub(crate) reports: RefCell<BTreeSet<(ChunkId, ReplicaLocation)>>,
    pub(crate) repair: Cell<RepairStatus>,
    /// Chunks in danger at the last scan.
    pub(crate) danger: Cell<Danger>,
    pub(crate) repairs: Repairs,
}

impl<L: Log> StreamService<L> {
    /// A service that waits for requests. [`StreamService::start_background`] starts its repair.
    pub fn new(env: &Env, parts: StreamParts<L>) -> StreamService<L> {
        StreamService(Rc::new(Service {
            env: env.clone(),
            log: parts.log,
            cluster: parts.cluster,
            calls: parts.calls,
            tokens: parts.tokens,
            grants: parts.grants,
            config: parts.config,
            clock: GroupClock::default(),
            reads: ReadGate::new(env),
            requests: Semaphore::new(REQUESTS_INFLIGHT_MAX),
            flights: RefCell::default(),
            work: Notify::new(),
            reports: RefCell::default(),
            repair: Cell::default(),
            danger: Cell::default(),
            repairs: Repairs::new(env),
        }))
    }

    /// Serves one request. [`Kind::Reroute`] without a leader: the caller knows who leads the
    /// group, and says so.
    pub async fn handle(&self, request: StreamRequest) -> Result<StreamReply, ControlError> {
        let service = &self.0;
        let Ok(_permit) = service.requests.try_acquire() else {
            return Err(ControlError::new(Kind::Retry, "too many requests wait: retry later"));
        };
        match request {
            StreamRequest::Locate { file, offset, limit } => {
                service.read().await?;
                let limit = limit.clamp(1, LOCATE_CHUNKS_MAX) as usize;
                let limits = (limit, LOCATE_REPLICAS_MAX);
                let view = service.view(file, offset, limits).ok_or_else(no_stream)?;
                Ok(StreamReply::Views(vec![view]))
            }
            StreamRequest::LocateMany { wants, limit } => {
                if wants.len() > LOCATE_FILES_MAX {
                    return Err(invalid("too many files in one request: 64 are allowed"));
                }
                service.read().await?;
                let files = wants.len().max(1);
                let limit = limit.clamp(1, LOCATE_CHUNKS_MAX) as usize;
                let limits =
                    (limit.min(LOCATE_MANY_CHUNKS_MAX / files), LOCATE_REPLICAS_MAX / files);
                let views = wants.iter().filter_map(|&(file, at)| service.view(file, at, limits));
                Ok(StreamReply::Views(views.collect()))
            }
            StreamRequest::ReportBad { file, chunk, server, fault } => {
                service.report(file, chunk, server, fault);
                Ok(StreamReply::Done { len: 0 })
            }
            StreamRequest::Change { op, change } => service.change(op, change).await,
        }
    }

    /// True when a file's chunk has a replica on a server.
    pub fn has_replica(&self, file: FileId, chunk: ChunkId, server: ServerId) -> bool {
        !self.0.places_on(file, chunk, server).is_empty()
    }

    /// A chunkserver says that a replica is damaged or lost.
    pub fn report_damaged(&self, place: ReplicaLocation, chunk: ChunkId) {
        self.0.note_report(chunk, place);
    }

    /// A chunkserver reported at `at` that the writer of an open replica is silent.
    pub fn report_quiet(&self, place: ReplicaLocation, chunk: ChunkId, at: Instant) {
        self.0.repairs.note_quiet(chunk, place, at);
    }

    /// An operator says that what no stream refers to on `disk` may be deleted, however much it
    /// is: at the next comparison with it.
    pub fn condemn_all(&self, disk: DiskId) {
        self.0.repairs.unknown.permit(disk);
    }

    /// Collections of this partition that wait for an operator's permission.
    pub fn stopped(&self) -> Vec<StoppedCollection> {
        self.0.leads();
        let partition = self.0.log.with_state(|state| state.partition());
        self.0.repairs.unknown.stopped(partition)
    }

    /// Figures, as of the last scan of this leader's term. Before its first one no chunk is in
    /// [`StreamStatus::survive`].
    pub fn status(&self) -> StreamStatus {
        self.0.leads();
        let (chunks, logical_bytes) =
            self.0.log.with_state(|state| (state.chunks(), state.logical_bytes()));
        let Danger { under_replicated, lost, survive } = self.0.danger.get();
        let (repair, moved) = (self.0.repair.get(), self.0.repairs.moves.get());
        StreamStatus {
            chunks,
            under_replicated,
            lost,
            survive,
            logical_bytes,
            unreferenced_bytes: self.0.repairs.unreferenced.borrow().values().sum(),
            repair,
            moved,
            converting: self.0.log.with_state(|state| {
                state.to_convert().len()
                    + state.aged_from((0, None), self.0.clock_ms() / 1000).count()
            }) as u64,
            converted: self.0.repairs.converted.get(),
        }
    }
}

impl<L: Log> Service<L> {
    /// The group's clock.
    pub(crate) fn clock_ms(&self) -> u64 {
        let state_ms = self.log.with_state(|state| state.clock_ms());
        self.clock.at(self.env.now(), self.log.leading(), state_ms)
    }

    /// When rights that are alive now have run out, by the group's clock.
    pub(crate) fn rights_end_ms(&self) -> u64 {
        self.clock_ms() + self.config.rights_life().as_millis() as u64
    }

    /// Until when an order that is sent now may be carried out. Half the life of a right: what is
    /// decided on the strength of an order's answer holds from the end of the rights on, and no order
    /// is under way for so long.
    pub(crate) fn orders_end(&self) -> IssuerTime {
        let by_issuer = self.cluster.view().judges_by_issuer();
        self.tokens.time(self.config.token_life / 2, by_issuer)
    }

    /// A linearizable read begins.
    pub(crate) async fn read(&self) -> Result<(), ControlError> {
        let log = self.log.clone();
        let confirm = move || {
            let log = log.clone();
            async move { log.read_index().await }
        };
        self.reads.pass(confirm).await.map_err(|error| match error {
            ReadError::NotLeader { .. } | ReadError::Stopped => not_leader(),
            error => ControlError::new(error.kind(), error.to_string()),
        })
    }

    /// Commits a decision.
    pub(crate) async fn decide(&self, action: Action) -> Result<Outcome, ControlError> {
        let command = Command { clock_ms: self.clock_ms(), action }.encode();
        let answer = self.log.propose(command).await.map_err(|error| match error {
            ProposeError::NotLeader { .. } => not_leader(),
            error => ControlError::new(error.kind(), error.to_string()),
        })?;
        Outcome::decode(&answer).map_err(|_| {
            ControlError::new(Kind::Unknown, "this master is older than the group: upgrade it")
        })
    }

    async fn change(
        self: &Rc<Self>,
        op: OpId,
        change: StreamChange,
    ) -> Result<StreamReply, ControlError> {
        match change {
            StreamChange::Open {
                file,
                policy,
                grant,
                spares,
                purpose,
                follows,
                in_copies,
                avoid,
            } => {
                self.check_grant(file, grant).await?;
                if !policy.is_valid() {
                    return Err(invalid("there is no such policy"));
                }
                if let Some(epoch) = self.is_late(&op, file, follows) {
                    return Ok(StreamReply::Epoch { epoch });
                }
                let wish = Wish { spares, purpose, in_copies };
                self.open(op, file, policy, (wish, &avoid), follows).await
            }
            StreamChange::Advance {
                file,
                epoch,
                sealed,
                len,
                next,
                avoid,
                spares,
                left,
                in_copies,
            } => {
                let wanted = Wish { spares, purpose: Purpose::Data, in_copies };
                let Spares { drop, fresh, .. } = self.spares(file, Some(next), &avoid, wanted);
                let delete_at_ms = self.rights_end_ms();
                let action = Action::Advance {
                    op,
                    file,
                    epoch,
                    sealed,
                    len,
                    next,
                    drop,
                    fresh,
                    delete_at_ms,
                };
                let outcome = self.decide(action).await?;
                self.note_left(&outcome, sealed, &left);
                self.seal_soon(sealed);
                self.writer(outcome)
            }
            StreamChange::Extend { file, epoch, avoid, spares, purpose, in_copies } => {
                self.note_writer_heard(file, epoch);
                let wanted = Wish { spares, purpose, in_copies };
                let Spares { drop, fresh, full } = self.spares(file, None, &avoid, wanted);
                if full {
                    return Err(self.no_place(NoPlace::Full));
                }
                let outcome = if drop.is_empty() && fresh.is_empty() {
                    // Nothing to record: rights are renewed by the state as it is now. Writers of
                    // chunks that are short of copies ask often while servers are missing.
                    self.read().await?;
                    Outcome::Writer { file, epoch }
                } else {
                    let delete_at_ms = self.rights_end_ms();
                    let action = Action::Extend { op, file, epoch, drop, fresh, delete_at_ms };
                    self.decide(action).await?
                };
                self.writer(outcome)
            }
            StreamChange::Close { file, epoch, sealed, finish, left } => {
                let delete_at_ms = self.rights_end_ms();
                let action = Action::Close { op, file, epoch, sealed, finish, delete_at_ms };
                let outcome = self.decide(action).await?;
                if let Some((chunk, _)) = sealed {
                    self.note_left(&outcome, chunk, &left);
                    self.seal_soon(chunk);
                }
                self.end(op, file, outcome).await
            }
            StreamChange::Seal { file, follows, accept_loss } => {
                if self.stream(file, |stream| stream.writing || stream.needs_recovery())
                    == Some(true)
                    && let Some(epoch) = self.is_late(&op, file, follows)
                {
                    return Ok(StreamReply::Epoch { epoch });
                }
                let outcome = match follows {
                    None => self.decide(Action::Seal { op, file }).await?,
                    Some(follows) => self.decide(Action::SealAfter { op, file, follows }).await?,
                };
                if let Some(epoch) = passed(&outcome, follows) {
                    return Ok(StreamReply::Epoch { epoch });
                }
                if let Outcome::Recover { epoch } = outcome
                    && accept_loss
                {
                    self.seal_with_loss(file, epoch).await?;
                }
                match self.end(op, file, outcome).await {
                    Err(error) if matches!(error.kind, Kind::Fenced | Kind::Refresh) => {
                        self.sealed_by_another(file).await
                    }
                    answer => answer,
                }
            }
            StreamChange::SetPolicy { file, policy, grant } => {
                self.check_grant(file, grant).await?;
                match self.decide(Action::SetPolicy { op, file, policy }).await? {
                    Outcome::Refused { why } => Err(refusal(why)),
                    _ => Ok(StreamReply::Done { len: 0 }),
                }
            }
            StreamChange::Convert { file, wanted } => {
                // Most files have the form already, and nothing is to be recorded.
                self.read().await?;
                let is_noted = |it: &Stream| it.converting == (wanted && it.has_other_form());
                if self.stream(file, is_noted) == Some(true) {
                    return Ok(StreamReply::Done { len: 0 });
                }
                match self.decide(Action::Convert { op, file, wanted }).await? {
                    Outcome::Refused { why } => Err(refusal(why)),
                    _ => Ok(StreamReply::Done { len: 0 }),
                }
            }
            StreamChange::Delete { file } => {
                let delete_at_ms = self.rights_end_ms();
                let file_memory_ms = self.config.file_memory.as_millis() as u64;
                let action = Action::Delete { op, file, delete_at_ms, file_memory_ms };
                match self.decide(action).await? {
                    Outcome::Refused { why } => Err(refusal(why)),
                    _ => Ok(StreamReply::Done { len: 0 }),
                }
            }
        }
    }

    async fn check_grant(&self, file: FileId, grant: [u8; 16]) -> Result<(), ControlError> {
        if (self.grants)(file, grant).await? {
            return Ok(());
        }
        let text = "the grant to open is not valid any more: look the file up again";
        Err(ControlError::new(Kind::Refresh, text))
    }

    /// The epoch that a file has by now in place of the one that a living client has to name: this saves
    /// the command that would be refused.
    fn is_late(&self, op: &OpId, file: FileId, follows: Option<Epoch>) -> Option<Epoch> {
        self.log.leading()?;
        let epoch = self.log.with_state(|state| state.is_late(op, file, follows?))?;
        self.env.mark("stream: an opening or a seal follows an older epoch");
        Some(epoch)
    }

    /// Opens for append: answers only after all chunks of older epochs are fenced and sealed.
    async fn open(
        self: &Rc<Self>,
        op: OpId,
        file: FileId,
        policy: Policy,
        (wish, avoid): (Wish, &[ServerId]),
        follows: Option<Epoch>,
    ) -> Result<StreamReply, ControlError> {
        let chunks = 1 + usize::from(wish.spares).min(SPARES_MAX);
        let policy = self.log.with_state(|s| s.stream(file).map_or(policy, |found| found.policy));
        let busy = self.log.with_state(|state| {
            state.stream(file).is_some_and(|stream| stream.writing || stream.needs_recovery())
        });
        // No place for a new chunk: no writer is fenced for it.
        let demand = Demand { policy: wish.policy(policy), purpose: wish.purpose };
        let fresh = self.fresh(demand, chunks, avoid)?;
        let fresh = if busy { Vec::new() } else { fresh };
        let action = match follows {
            None => Action::Open { op, file, policy, fresh },
            Some(follows) => Action::OpenAfter { op, file, policy, fresh, follows },
        };
        let outcome = self.decide(action).await?;
        if let Some(epoch) = passed(&outcome, follows) {
            return Ok(StreamReply::Epoch { epoch });
        }
        let Outcome::Recover { epoch } = outcome else { return self.writer(outcome) };
        let outcome = self.finish(Some(op), file, epoch, Some((demand, chunks, avoid))).await?;
        self.writer(outcome)
    }

    /// Answers a seal whose recovery was shut out by a request that took the next epoch: another seal of
    /// the same file, or the master's own of a silent writer's, ends the file for both. Only an opening
    /// has the file written to again.
    async fn sealed_by_another(self: &Rc<Self>, file: FileId) -> Result<StreamReply, ControlError> {
        self.env.mark("stream: a seal waits for another's recovery");
        for _ in 0..3 {
            self.read().await?;
            let found = self.stream(file, |stream| {
                (stream.writing, stream.needs_recovery(), stream.epoch, stream.sealed_len())
            });
            let (writing, recovers, epoch, len) =
                found.ok_or_else(|| refusal(Refusal::NotFound))?;
            if writing {
                return Err(refusal(Refusal::Fenced { epoch }));
            }
            if !recovers {
                return Ok(StreamReply::Done { len });
            }
            match self.recover(file, epoch).await {
                Err(error) if !matches!(error.kind, Kind::Fenced | Kind::Refresh) => {
                    return Err(error);
                }
                _ => self.env.sleep(self.env.jitter(RETRY.0)).await,
            }
        }
        Err(ControlError::new(Kind::Retry, "other requests recover the file: retry"))
    }

    /// What follows on the end of a writer: recovery, when its length is not known.
    async fn end(
        self: &Rc<Self>,
        op: OpId,
        file: FileId,
        outcome: Outcome,
    ) -> Result<StreamReply, ControlError> {
        let outcome = match outcome {
            Outcome::Recover { epoch } => self.finish(Some(op), file, epoch, None).await?,
            outcome => outcome,
        };
        match outcome {
            Outcome::Done { len } => Ok(StreamReply::Done { len }),
            Outcome::Refused { why } => Err(refusal(why)),
            Outcome::Writer { .. } | Outcome::Recover { .. } => {
                Err(invalid("the operation was used for another change before"))
            }
        }
    }

    /// Recovers what older writers left, then grants new chunks, so many and apart from servers where there are
    /// others, or ends.
    pub(crate) async fn finish(
        self: &Rc<Self>,
        op: Option<OpId>,
        file: FileId,
        epoch: Epoch,
        grant: Option<(Demand, usize, &[ServerId])>,
    ) -> Result<Outcome, ControlError> {
        for _ in 0..3 {
            let fenced = self.recover(file, epoch).await?;
            let fresh = match grant {
                Some((demand, chunks, avoid)) => self.fresh(demand, chunks, avoid)?,
                None => Vec::new(),
            };
            let delete_at_ms = self.rights_end_ms();
            let action = Action::Finish { op, file, epoch, fenced, fresh, delete_at_ms };
            match self.decide(action).await? {
                Outcome::Refused { why: Refusal::Stale } => {}
                outcome => return Ok(outcome),
            }
        }
        Err(ControlError::new(Kind::Retry, "the stream changes too fast: retry"))
    }

    /// The answer to a writer, from the state as it is now.
    fn writer(&self, outcome: Outcome) -> Result<StreamReply, ControlError> {
        let (file, epoch) = match outcome {
            Outcome::Writer { file, epoch } => (file, epoch),
            Outcome::Refused { why } => return Err(refusal(why)),
            Outcome::Done { .. } | Outcome::Recover { .. } => {
                return Err(invalid("the operation was used for another change before"));
            }
        };
        let view = self.cluster.view();
        self.log.with_state(|state| {
            let stream = state.stream(file).ok_or_else(no_stream)?;
            if !stream.writing || stream.epoch != epoch {
                return Err(refusal(Refusal::Fenced { epoch: stream.epoch }));
            }
            let place = |chunk| self.chunk_place(&view, state, chunk, Rights::WRITER);
            let current = stream.tail().map(place);
            let spares = stream.spares.iter().map(place).collect();
            // Tokens end with a full second of the clock.
            let rights = self.config.token_life.saturating_sub(Duration::from_secs(1));
            let rights_ms = Some(rights.as_millis() as u64);
            let grant = WriterGrant { epoch, len: stream.sealed_len(), current, spares, rights_ms };
            Ok(StreamReply::Writer(grant))
        })
    }

    /// Chunks of a file from the one that holds a byte: so many, with so many replicas in all (see
    /// [`LOCATE_REPLICAS_MAX`]), and one in any case.
    fn view(
        &self,
        file: FileId,
        offset: u64,
        (limit, replicas): (usize, usize),
    ) -> Option<StreamView> {
        let view = self.cluster.view();
        self.log.with_state(|state| {
            let stream = state.stream(file)?;
            let from = stream
                .chunks
                .partition_point(|chunk| chunk.sealed().is_some() && chunk.end() <= offset);
            let mut said = 0;
            let fits = |(at, chunk): &(usize, &Chunk)| {
                said += chunk.len_slots() + 2;
                *at == 0 || said <= replicas
            };
            let chunks = stream.chunks[from..].iter().take(limit).enumerate().take_while(fits);
            let place = |chunk| self.chunk_place(&view, state, chunk, Rights::READ);
            Some(StreamView {
                file,
                chunks: chunks.map(|(_, chunk)| place(chunk)).collect(),
                sealed_len: stream.sealed_len(),
                open: stream.tail().is_some(),
                epoch: stream.epoch,
                policy: Some(stream.policy),
                loss_accepted: stream.loss_accepted,
                converting: stream.converting,
            })
        })
    }

    /// A chunk as clients see it: sealed replicas first, none that is being made.
    fn chunk_place(
        &self,
        view: &ClusterView,
        state: &StreamMachine,
        chunk: &Chunk,
        rights: Rights,
    ) -> ChunkPlace {
        let at = |slot: &Slot| {
            let place = state.place(slot.place);
            let fragment = slot.fragment;
            ReplicaPlace { fragment, ..replica_place(view, place.server, place.disk) }
        };
        let mut slots: Vec<_> = chunk.slots().filter(|slot| !slot.target).collect();
        slots.sort_by_key(|slot| !slot.sealed);
        ChunkPlace {
            chunk: chunk.id,
            epoch: chunk.epoch,
            base: chunk.base,
            sealed: chunk.sealed(),
            replicas: slots.iter().map(at).collect(),
            acks: chunk.acks,
            token: self.chunk_token(chunk.id, rights, chunk.epoch).0,
            copies: chunk.copies,
            data: chunk.data() as u8,
            // A writer is asked for rows only where every chunkserver takes them.
            compression: chunk.compression().filter(|_| view.takes_rows()),
        }
    }

    /// A right to a chunk (D11).
    pub(crate) fn chunk_token(&self, chunk: ChunkId, rights: Rights, epoch: Epoch) -> Token {
        let by_issuer = self.cluster.view().judges_by_issuer();
        let expiry = self.tokens.time(self.config.token_life, by_issuer);
        self.tokens.issue(chunk, rights, epoch, expiry)
    }

    /// A place on the wire.
    pub(crate) fn address(&self, place: ReplicaLocation) -> ReplicaPlace {
        replica_place(&self.cluster.view(), place.server, place.disk)
    }

    /// Replicas of a file's chunk on a server.
    fn places_on(&self, file: FileId, chunk: ChunkId, server: ServerId) -> Vec<ReplicaLocation> {
        let places = self.log.with_state(|state| {
            let (owner, _, chunk) = state.chunk(chunk)?;
            let places = chunk.slots().map(|slot| state.place(slot.place));
            let bad = places.filter(|place| place.server == server).collect::<Vec<_>>();
            Some(bad).filter(|_| owner == file)
        });
        places.unwrap_or_default()
    }

    fn report(&self, file: FileId, chunk: ChunkId, server: ServerId, fault: ReplicaFault) {
        tracing::debug!(%file, %chunk, %server, ?fault, "a client reports a bad replica");
        if fault == ReplicaFault::Unreachable {
            return; // It says nothing of what the replica holds: the master pings its server.
        }
        for place in self.places_on(file, chunk, server) {
            self.note_report(chunk, place);
        }
    }

    pub(crate) fn note_report(&self, chunk: ChunkId, place: ReplicaLocation) {
        let mut reports = self.reports.borrow_mut();
        if reports.len() < REPORTS_MAX && self.log.leading().is_some() {
            reports.insert((chunk, place));
            self.repairs.reported_some.notify_one();
        }
    }

    pub(crate) fn no_place(&self, why: NoPlace) -> ControlError {
        match why {
            NoPlace::Full => ControlError::new(
                Kind::Full,
                "the chunkservers' disks are full: delete files, or add a chunkserver",
            ),
            NoPlace::TooFewAlive => {
                let missing = self.cluster.missing();
                let missing = missing.unwrap_or_else(|| "it has never had enough".to_owned());
                let message = format!(
                    "the cluster has too few chunkservers or disks for a new chunk: {missing}; \
                     bring them back, or wait"
                );
                ControlError::new(Kind::Retry, message)
            }
        }
    }

    /// The state of a stream, for drivers.
    pub(crate) fn stream<T>(&self, file: FileId, look: impl FnOnce(&Stream) -> T) -> Option<T> {
        self.log.with_state(|state| state.stream(file).map(look))
    }
}

/// A writer's wish for new chunks.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub spares: u8,
    pub purpose: Purpose,
    /// In copies, whatever the code of the policy.
    pub in_copies: bool,
}

impl Wish {
    /// The policy that its chunks are placed by.
    pub fn policy(self, policy: Policy) -> Policy {
        if self.in_copies { policy.in_copies() } else { policy }
    }
}

/// Policy and purpose of a new chunk.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub policy: Policy,
    pub purpose: Purpose,
}

/// Result for a writer's spares.
#[derive(Default)]
pub(crate) struct Spares {
    /// Those that are no use to it.
    pub drop: Vec<ChunkId>,
    /// Places for new ones.
    pub fresh: Vec<Vec<ReplicaLocation>>,
    /// None is left and the disks are full.
    pub full: bool,
}

/// The epoch that a file has in place of the one that a command follows.
fn passed(outcome: &Outcome, follows: Option<Epoch>) -> Option<Epoch> {
    match *outcome {
        Outcome::Refused { why: Refusal::Fenced { epoch } } if follows.is_some() => Some(epoch),
        _ => None,
    }
}

fn invalid(text: &str) -> ControlError {
    ControlError::new(Kind::Invalid, text)
}

fn no_stream() -> ControlError {
    ControlError::new(Kind::NotFound, "the file was never opened for append, or was deleted")
}

pub(super) fn not_leader() -> ControlError {
    ControlError::new(Kind::Reroute, "another master leads this stream partition")
}

/// The client's answer for a refused command.
pub(super) fn refusal(why: Refusal) -> ControlError {
    let (kind, text) = match why {
        Refusal::NotFound => return no_stream(),
        Refusal::Dead => (Kind::NotFound, "the file was deleted"),
        Refusal::Fenced { epoch } => {
            let text = format!("epoch {epoch} has taken the file over: this writer is finished");
            return ControlError::new(Kind::Fenced, text);
        }
        Refusal::Finished => (Kind::Invalid, "the file is finished: it takes no appends"),
        Refusal::Stale => (Kind::Refresh, "the stream has other chunks by now: ask for them"),
        Refusal::Invalid => (Kind::Invalid, "the change contradicts the stream"),
        Refusal::Late => (Kind::Invalid, "a late duplicate of an operation that was answered"),
        Refusal::Busy => (Kind::Retry, "too many clients, or unacknowledged answers: retry later"),
        Refusal::Unreadable => {
            (Kind::Retry, "some masters are older than the leader: upgrade them")
        }
        Refusal::Full => {
            (Kind::Full, "numbers of chunks or of the file's writers are used up: copy its data")
        }
    };
    ControlError::new(kind, text)
}
