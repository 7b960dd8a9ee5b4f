//! One member of a group, whatever its state machine: what calls openraft.
//!
//! It is not generic, and its larger steps are boxed, so that the library is compiled here, once,
//! and not in each crate that opens a group or waits for one.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use metrics::{Counter, Fact, Histogram, Step, Unit};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{
    ChangeMembershipError, ClientWriteError, Fatal, ForwardToLeader, InitializeError,
    LinearizableReadError, RaftError,
};
use openraft::raft::{AppendEntriesResponse, SnapshotResponse};
use openraft::{ChangeMembers, EmptyNode, Raft, ReadPolicy};
use runtime::Env;
use runtime::sync::{Mutex, Semaphore, watch};
use wire::control::Group as GroupName;

use super::checkpoint::Checkpoints;
use super::config::GroupConfig;
use super::elections::{self, Candidate, Sign};
use super::error::LogError;
use super::incoming::Incoming;
use super::leadership::{Leadership, Published};
use super::limits::{
    APPENDS_TOGETHER, HAND_OVER_LOOK, HAND_OVER_LOOKS, PROPOSAL_BYTES_MAX, PROPOSALS_INFLIGHT_MAX,
    READS_INFLIGHT_MAX,
};
use super::log::RaftLog;
use super::machine::{Applied, Replicated, Worker};
use super::net::{
    LocalFuture, Network, PeerReceive, PeerSend, Reply, Request, SnapshotPart, decode_request,
};
use super::outcome::{MembershipError, OpenError, ProposeError, ReadError};
use super::types::{Command, Snapshot, Types, Vote};

/// A change of one vote. The library applies it to the members that there are then. A list of all, made before,
/// would take back what another change has done since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VoterChange {
    Add(u64),
    Remove(u64),
}

impl VoterChange {
    /// Makes the change. True when it changes anything.
    fn make(self, voters: &mut BTreeSet<u64>) -> bool {
        match self {
            VoterChange::Add(node) => voters.insert(node),
            VoterChange::Remove(node) => voters.remove(&node),
        }
    }

    fn members(self) -> ChangeMembers<u64, EmptyNode> {
        match self {
            VoterChange::Add(node) => ChangeMembers::AddVoterIds(BTreeSet::from([node])),
            VoterChange::Remove(node) => ChangeMembers::RemoveVoters(BTreeSet::from([node])),
        }
    }
}

/// One member of a group, for any state machine.
pub(super) struct Member {
    env: Env,
    config: GroupConfig,
    raft: Raft<Types, Worker>,
    log: RaftLog,
    applied: Rc<Applied>,
    counted: Rc<Counted>,
    command_len_max: usize,
    proposals: Semaphore,
    proposal_bytes: Semaphore,
    reads: Semaphore,
    published: Rc<Published>,
    /// Appends take one permit, the installation of a snapshot all.
    installing: Semaphore,
    /// A snapshot of which some parts have come.
    incoming: Mutex<Option<Incoming>>,
    checkpoints: Checkpoints,
    /// The owner has asked for a shutdown.
    closing: Cell<bool>,
    sign: Sign,
}

impl Member {
    /// See [`Group::open`](super::Group::open): `log` is recovered, `state` in its initial state.
    pub(super) fn open<'a>(
        env: &'a Env,
        config: GroupConfig,
        log: RaftLog,
        command_len_max: usize,
        checkpoints: Checkpoints,
        peers: Rc<dyn PeerSend>,
        state: Rc<dyn Replicated>,
    ) -> LocalFuture<'a, Result<Rc<Member>, OpenError>> {
        Box::pin(async move {
            let raft_config = config.to_raft().validate();
            let raft_config = raft_config.map_err(|error| OpenError::Config(error.to_string()))?;
            let worker = Worker::open(state, checkpoints.clone(), log.purged()).await?;
            let applied = worker.applied();
            let network = Network {
                env: env.clone(),
                group: config.group,
                node: config.node,
                peers,
                append_timeout: config.call_timeout(),
            };
            let raft = Raft::new(config.node, Arc::new(raft_config), network, log.clone(), worker);
            let raft = raft.await.map_err(|error| OpenError::State(error.to_string()))?;
            // After one turn of its core the library has published what it recovered.
            let recovered = raft.with_raft_state(|_| ()).await;
            recovered.map_err(|error| OpenError::State(error.to_string()))?;
            let counted = Rc::new(Counted::new(env, config.group));
            raft.runtime_config().heartbeat(!config.heartbeats_together);
            let published = Published::watch(env, config.node, &raft, counted.elections.clone());
            let silence = config.election_timeout;
            let member = Rc::new(Member {
                env: env.clone(),
                sign: Sign::at(env.now()),
                config,
                raft,
                log,
                applied,
                counted,
                command_len_max,
                proposals: Semaphore::new(PROPOSALS_INFLIGHT_MAX),
                proposal_bytes: Semaphore::new(PROPOSAL_BYTES_MAX),
                reads: Semaphore::new(READS_INFLIGHT_MAX),
                published,
                installing: Semaphore::new(APPENDS_TOGETHER as usize),
                incoming: Mutex::new(None),
                checkpoints,
                closing: Cell::new(false),
            });
            let candidate: Rc<dyn Candidate> = member.clone();
            elections::watch(env, silence, Rc::downgrade(&candidate));
            Ok(member)
        })
    }

    /// [`Group::bootstrap`](super::Group::bootstrap).
    pub(super) fn bootstrap(
        &self,
        members: BTreeSet<u64>,
    ) -> LocalFuture<'_, Result<(), MembershipError>> {
        Box::pin(async move {
            let members: BTreeMap<u64, EmptyNode> =
                members.iter().map(|&member| (member, EmptyNode::new())).collect();
            self.raft.initialize(members).await.map_err(|error| match error {
                RaftError::APIError(InitializeError::NotAllowed(_)) => MembershipError::Exists,
                RaftError::APIError(error) => MembershipError::Refused(error.to_string()),
                RaftError::Fatal(_) => MembershipError::Stopped,
            })
        })
    }

    /// [`Group::propose`](super::Group::propose).
    pub(super) fn propose(
        &self,
        command: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, ProposeError>> {
        Box::pin(async move {
            let (len, max) = (command.len(), self.command_len_max);
            if len > max {
                return Err(ProposeError::TooLong { len, max });
            }
            let Ok(_one) = self.proposals.try_acquire() else {
                return Err(ProposeError::Busy(command));
            };
            let Ok(_bytes) = self.proposal_bytes.try_acquire_many(len as u32) else {
                return Err(ProposeError::Busy(command));
            };
            let began = self.env.now();
            self.env.note(Step::Proposed, Fact::Group(self.config.group));
            let written = self.raft.client_write(Command(command.into()));
            match self.env.timeout(self.config.request_timeout, written).await {
                Ok(Ok(response)) => {
                    let took = (self.env.now() - began).as_nanos() as u64;
                    self.counted.commit.record(took);
                    self.note_entry(response.log_id.index);
                    Ok(response.data)
                }
                Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward)))) => {
                    Err(ProposeError::NotLeader { hint: forward.leader_id })
                }
                Ok(Err(RaftError::APIError(_))) | Err(_) => Err(ProposeError::Unknown),
                Ok(Err(RaftError::Fatal(_))) => Err(ProposeError::Stopped),
            }
        })
    }

    /// [`Group::read_index`](super::Group::read_index).
    pub(super) fn read_index(&self) -> LocalFuture<'_, Result<u64, ReadError>> {
        Box::pin(async move {
            let Ok(_one) = self.reads.try_acquire() else { return Err(ReadError::Busy) };
            let confirmed = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
            match self.env.timeout(self.config.request_timeout, confirmed).await {
                Ok(Ok(read)) => Ok(read.index()),
                Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)))) => {
                    Err(ReadError::NotLeader { hint: forward.leader_id })
                }
                Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))))
                | Err(_) => Err(ReadError::NoQuorum),
                Ok(Err(RaftError::Fatal(_))) => Err(ReadError::Stopped),
            }
        })
    }

    /// [`Group::applied_index`](super::Group::applied_index).
    pub(super) fn applied_index(&self) -> Option<u64> {
        self.applied.last_index()
    }

    /// [`Group::leader`](super::Group::leader).
    pub(super) fn leader(&self) -> Option<u64> {
        self.leadership().leader
    }

    /// [`Group::leadership`](super::Group::leadership).
    pub(super) fn leadership(&self) -> Leadership {
        self.published.now()
    }

    /// [`Group::watch_leadership`](super::Group::watch_leadership).
    pub(super) fn watch_leadership(&self) -> watch::Receiver<Leadership> {
        self.published.subscribe()
    }

    /// [`Group::add_learner`](super::Group::add_learner).
    pub(super) fn add_learner(&self, node: u64) -> LocalFuture<'_, Result<(), MembershipError>> {
        Box::pin(async move {
            self.check_leads_itself()?;
            let learner = ChangeMembers::AddNodes(BTreeMap::from([(node, EmptyNode::new())]));
            // The library's own call would keep, as learners, those that a change in its first step removes.
            let added = self.raft.change_membership(learner, false);
            self.membership_outcome(added).await
        })
    }

    /// [`Group::change_membership`](super::Group::change_membership).
    pub(super) fn change_membership(
        &self,
        voters: BTreeSet<u64>,
    ) -> LocalFuture<'_, Result<(), MembershipError>> {
        Box::pin(async move {
            self.check_leads_itself()?;
            if !voters.contains(&self.config.node) {
                return Err(self.hand_over(&voters).await);
            }
            let changed = self.raft.change_membership(voters, false);
            self.membership_outcome(changed).await
        })
    }

    /// [`Group::change_voters`](super::Group::change_voters).
    pub(super) fn change_voters(
        &self,
        change: VoterChange,
    ) -> LocalFuture<'_, Result<(), MembershipError>> {
        Box::pin(async move {
            self.check_leads_itself()?;
            let (mut voters, is_done) = self.target_voters();
            let changes = change.make(&mut voters);
            if is_done && !changes {
                return Ok(());
            }
            if !voters.contains(&self.config.node) {
                return Err(self.hand_over(&voters).await);
            }
            if let VoterChange::Add(node) = change
                && changes
            {
                self.add_learner(node).await?;
                self.check_leads_itself()?;
            }
            // Without a change it gives an earlier one its second step. What is not committed is refused:
            // another leader may take it back.
            let changed = self.raft.change_membership(change.members(), false);
            self.membership_outcome(changed).await
        })
    }

    /// openraft 0.10.0-alpha.37 lets a leader that is no voter any more lead for some time, and
    /// panics when it is asked for another change then (a debug assertion of its
    /// `ReplicationHandler::append_membership`). So no leader of ours is asked to.
    fn check_leads_itself(&self) -> Result<(), MembershipError> {
        let leads = self.leadership().leading && self.voters().contains(&self.config.node);
        let hint = self.leader().filter(|&leader| leader != self.config.node);
        if leads { Ok(()) } else { Err(MembershipError::NotLeader { hint }) }
    }

    /// Transfers leadership to the voter among `successors` that has most of the log.
    async fn hand_over(&self, successors: &BTreeSet<u64>) -> MembershipError {
        match self.successor(successors) {
            Some((successor, _)) => {
                self.transfer(successor).await;
                MembershipError::NotLeader { hint: Some(successor) }
            }
            None => MembershipError::Refused("keep one voter, and replace it after".to_owned()),
        }
    }

    /// The voter among `candidates` that has most of the log, and whether it has all.
    fn successor(&self, candidates: &BTreeSet<u64>) -> Option<(u64, bool)> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let voters = self.voters();
        let may = |node: &u64| {
            candidates.contains(node) && voters.contains(node) && *node != self.config.node
        };
        let replication = metrics.replication.iter().flatten().filter(|(node, _)| may(node));
        let (&successor, matched) = replication.max_by_key(|&(node, at)| (*at, *node))?;
        let has_all = matched.as_ref().map(|id| id.index) >= metrics.last_log_index;
        Some((successor, has_all))
    }

    /// [`Group::lead_no_more`](super::Group::lead_no_more).
    pub(super) fn lead_no_more<'a>(
        &'a self,
        successors: &'a BTreeSet<u64>,
    ) -> LocalFuture<'a, Option<u64>> {
        Box::pin(async move {
            // The library takes no successor that lacks an entry: for a while no other leads then.
            for _ in 0..HAND_OVER_LOOKS {
                if !self.leadership().leading || self.successor(successors)?.1 {
                    break;
                }
                self.env.sleep(HAND_OVER_LOOK).await;
            }
            if !self.leadership().leading {
                return None;
            }
            let (successor, _) = self.successor(successors)?;
            self.transfer(successor).await;
            Some(successor)
        })
    }

    /// The library takes no proposals after this, and sends no heartbeats: this member does not lead any
    /// more, though it may not hear of another leader.
    async fn transfer(&self, successor: u64) {
        self.published.give_up(self.leadership().term, successor);
        // Fails only when this member has stopped: then another will lead.
        let _ = self.raft.trigger().transfer_leader(successor).await;
    }

    async fn membership_outcome<T>(
        &self,
        change: impl Future<Output = Result<T, RaftError<Types, ClientWriteError<Types>>>>,
    ) -> Result<(), MembershipError> {
        match self.env.timeout(self.config.request_timeout, change).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(error))) => Err(match error {
                ClientWriteError::ForwardToLeader(ForwardToLeader { leader_id, .. }) => {
                    MembershipError::NotLeader { hint: leader_id }
                }
                ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_)
                    | ChangeMembershipError::UncommittedLeaderLog(_),
                )
                // Another change came between the two steps of this one.
                | ClientWriteError::PreconditionFailed(_) => MembershipError::InProgress,
                ClientWriteError::LogEntryDiscarded(_) => MembershipError::Unknown,
                error => MembershipError::Refused(error.to_string()),
            }),
            Ok(Err(RaftError::Fatal(_))) => Err(MembershipError::Stopped),
            Err(_) => Err(MembershipError::Unknown),
        }
    }

    /// [`Group::voters`](super::Group::voters).
    pub(super) fn voters(&self) -> BTreeSet<u64> {
        self.raft.voter_ids().collect()
    }

    /// Members with a vote once the last change of them in this member's log is done, and whether it is: a
    /// change that is not committed, or in its first step, may be taken back by another leader.
    fn target_voters(&self) -> (BTreeSet<u64>, bool) {
        let (last, committed) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.membership_config.clone(), metrics.committed_membership_config.clone())
        };
        let configs = last.get_joint_config();
        let is_committed = last.log_id() == committed.log_id();
        (configs.last().cloned().unwrap_or_default(), configs.len() == 1 && is_committed)
    }

    /// [`Group::snapshot_soon`](super::Group::snapshot_soon).
    pub(super) fn snapshot_soon(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            // Fails only when the member has stopped.
            let _ = self.raft.trigger().snapshot().await;
        })
    }

    /// [`Group::heartbeat`](super::Group::heartbeat).
    pub(super) fn heartbeat(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            if self.leadership().leading {
                // Fails only when the member has stopped.
                let _ = self.raft.trigger().heartbeat().await;
            }
        })
    }

    /// [`Group::log`](super::Group::log).
    pub(super) fn log(&self) -> &RaftLog {
        &self.log
    }

    /// [`Group::failure`](super::Group::failure).
    pub(super) fn failure(&self) -> Option<LogError> {
        let log = || self.log.failure().filter(|error| *error != LogError::Closed);
        self.applied.failure().or_else(log).or_else(|| self.core_failure())
    }

    /// [`Group::shutdown`](super::Group::shutdown).
    pub(super) fn shutdown(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            self.closing.set(true);
            // Fails when it was shut down before.
            let _ = self.raft.shutdown().await;
            self.checkpoints.close().await;
            self.log.close().await;
        })
    }
}

/// Counters of a member.
struct Counted {
    /// From a proposal to its answer.
    commit: Histogram,
    /// Other leaders and other terms seen.
    elections: Counter,
}

impl Counted {
    fn new(env: &Env, group: u32) -> Counted {
        let name =
            GroupName::from_number(group).map_or_else(|| group.to_string(), |it| it.to_string());
        let (registry, labels) = (env.tracer().registry(), [("group", &*name)]);
        let help = "From a proposal to its answer, on the leader.";
        let seconds = "craton_group_commit_seconds";
        let commit = registry.histogram(seconds, help, Unit::Nanoseconds, &labels);
        let help = "Leaders that this member has seen come.";
        let elections = registry.counter("craton_group_elections_total", help, &labels);
        Counted { commit, elections }
    }
}

impl Member {
    /// Notes on the operation under way when its entry was committed and applied.
    fn note_entry(&self, index: u64) {
        let Some(times) = self.applied.times(index) else { return };
        let fact = Fact::Group(self.config.group);
        metrics::with_current(|span| {
            span.note(Step::Committed, times.committed.as_nanos(), fact);
            span.note(Step::Applied, times.applied.as_nanos(), fact);
        });
    }

    /// Cause for which the library has ended, unless that was the shutdown.
    fn core_failure(&self) -> Option<LogError> {
        match self.raft.metrics().borrow_watched().running_state.clone() {
            Ok(()) => None,
            Err(Fatal::Stopped) if self.closing.get() => None,
            Err(error) => Some(LogError::Ended { cause: error.to_string() }),
        }
    }

    async fn answer(&self, request: Request) -> Result<Reply, Fatal<Types>> {
        let fatal = |error: RaftError<Types>| error.unwrap_fatal();
        Ok(match request {
            Request::Append(request) => {
                // Heartbeats do not wait for a snapshot.
                let entries = !request.entries.is_empty();
                let _turn = if entries { self.installing.acquire().await.ok() } else { None };
                let response = self.raft.append_entries(request).await.map_err(fatal)?;
                if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
                    self.sign.note(self.env.now());
                }
                Reply::Append(response)
            }
            Request::Vote(request) => {
                let response = self.raft.vote(request).await.map_err(fatal)?;
                if response.vote_granted {
                    self.sign.note(self.env.now());
                }
                Reply::Vote(response)
            }
            Request::PreVote(request) => {
                Reply::Vote(self.raft.pre_vote(request).await.map_err(fatal)?)
            }
            Request::Snapshot(part) => match self.collect(part).await {
                Ok(Collected::Wants(offset)) => Reply::SnapshotWants(offset),
                Ok(Collected::Whole(vote, snapshot)) => {
                    Reply::SnapshotDone(self.install(vote, snapshot).await?)
                }
                Err(error) => {
                    tracing::warn!(%error, "a snapshot is not taken in");
                    return Err(Fatal::Stopped);
                }
            },
            Request::TransferLeader(request) => {
                Reply::TransferLeader(self.raft.handle_transfer_leader(request).await?)
            }
        })
    }

    /// Installs a snapshot, unless the log reaches beyond it already: a late or repeated one.
    /// openraft 0.10.0-alpha.37 would move the progress of its log back then (an assertion of
    /// its `IOProgress::advance` in debug builds). No entries are appended during it.
    async fn install(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<Types>, Fatal<Types>> {
        let all = self.installing.acquire_many(APPENDS_TOGETHER).await;
        let _turn = all.map_err(|_| Fatal::Stopped)?;
        if self.log.extends(&vote, snapshot.meta.last_log_id) {
            self.env.mark("raft: late snapshot ignored");
            // The answer says that all the snapshot covers is durable here, under this vote.
            self.log.flush().await.map_err(|_| Fatal::Stopped)?;
            if self.log.extends(&vote, snapshot.meta.last_log_id) {
                return Ok(SnapshotResponse::new(vote));
            }
        }
        self.env.mark("raft: snapshot received");
        self.raft.install_full_snapshot(vote, snapshot).await
    }

    /// Adds a part to the snapshot that is coming in; another snapshot replaces it.
    async fn collect(&self, part: SnapshotPart) -> Result<Collected, LogError> {
        self.sign.note(self.env.now());
        let mut incoming = self.incoming.lock().await;
        if !incoming.as_ref().is_some_and(|incoming| incoming.is(&part)) {
            *incoming = None;
            match Incoming::new(&self.checkpoints, &part) {
                Some(begun) => *incoming = Some(begun),
                None => return Ok(Collected::Wants(u64::MAX)), // The sender gives up.
            }
        }
        let whole = incoming.as_mut().expect("set above");
        if part.offset != whole.at() {
            return Ok(Collected::Wants(whole.at()));
        }
        let written = whole.add(&part.bytes).await;
        if !matches!(written, Ok(true)) {
            // Damaged and missing pieces are sent again, from the start.
            *incoming = None;
            return written.map(|_| Collected::Wants(0));
        }
        let (at, done) = (whole.at(), whole.is_whole());
        if !done {
            return Ok(Collected::Wants(at));
        }
        let whole = incoming.take().expect("set above");
        let (vote, meta, snapshot) = whole.finish(&self.checkpoints);
        Ok(Collected::Whole(vote, Snapshot { meta, snapshot }))
    }
}

enum Collected {
    Wants(u64),
    Whole(Vote, Snapshot),
}

impl Candidate for Member {
    fn node(&self) -> u64 {
        self.config.node
    }

    fn is_closing(&self) -> bool {
        self.closing.get()
    }

    fn leadership(&self) -> Leadership {
        self.published.now()
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.raft.voter_ids().collect()
    }

    fn sign(&self) -> &Sign {
        &self.sign
    }

    fn stand(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            // Fails only when the member has stopped.
            let _ = self.raft.trigger().elect(true).await;
        })
    }
}

impl PeerReceive for Member {
    fn receive(&self, rpc: Vec<u8>) -> LocalFuture<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            let (request, receiver) = decode_request(&rpc)?;
            // Its answer would count as that of another member, which promised nothing.
            if receiver.is_some_and(|receiver| receiver != self.config.node) {
                self.env.mark("raft: meant for another");
                return None;
            }
            let reply = self.answer(request).await.ok()?;
            postcard::to_allocvec(&reply).ok()
        })
    }
}
