//! A Raft group: replicated commands over a deterministic state machine.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Fact, Histogram, Step, Unit};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{
    ChangeMembershipError, ClientWriteError, Fatal, ForwardToLeader, InitializeError,
    LinearizableReadError, RaftError,
};
use openraft::raft::SnapshotResponse;
use openraft::vote::RaftLeaderId;
use openraft::{Config, EmptyNode, Raft, ReadPolicy, ServerState, SnapshotPolicy};
use runtime::sync::{Mutex, Semaphore, watch};
use runtime::{Class, Env};
use wire::control::Group as GroupName;

use super::checkpoint::Checkpoints;
use super::device::LogDevice;
use super::error::LogError;
use super::incoming::Incoming;
use super::limits::{
    APPEND_ENTRIES_MAX, APPENDS_TOGETHER, COMMAND_LEN_MAX, LOG_BLOCK, PROPOSAL_BYTES_MAX,
    PROPOSALS_INFLIGHT_MAX, READS_INFLIGHT_MAX,
};
use super::log::RaftLog;
use super::machine::{Applied, StateMachine, Worker};
use super::net::{
    LocalFuture, Network, PeerReceive, PeerSend, Reply, Request, SnapshotPart, decode_request,
};
use super::outcome::{MembershipError, OpenError, ProposeError, ReadError};
use super::types::{Command, Snapshot, Types, Vote};

/// Configuration of a group. All members of a group use the same times.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The group, in every message.
    pub group: u32,
    /// This member.
    pub node: u64,
    /// A follower that receives nothing for this long stands for election; drawn each time.
    pub election_timeout: (Duration, Duration),
    /// Pause between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// A proposal or read without an outcome by then is given up.
    pub request_timeout: Duration,
    /// The owner calls [`Group::heartbeat`] at that pace, for all its groups at once, so that their
    /// messages go together. Otherwise the group has its own timer.
    pub heartbeats_together: bool,
    /// Entries after which a snapshot is taken.
    pub snapshot_after: u64,
    /// Entries in front of a snapshot that are kept, for followers that are a little behind.
    pub entries_kept: u64,
}

impl GroupConfig {
    /// Values for tests; a master has those of its configuration (`protocols.md` 6.5).
    pub fn new(group: u32, node: u64) -> GroupConfig {
        GroupConfig {
            group,
            node,
            election_timeout: (Duration::from_millis(150), Duration::from_millis(300)),
            heartbeat: Duration::from_millis(50),
            heartbeats_together: false,
            request_timeout: Duration::from_secs(2),
            snapshot_after: 20_000,
            entries_kept: 5_000,
        }
    }

    fn to_raft(&self) -> Config {
        let millis = |duration: Duration| duration.as_millis() as u64;
        Config {
            cluster_name: format!("group {}", self.group),
            election_timeout_min: millis(self.election_timeout.0),
            election_timeout_max: millis(self.election_timeout.1),
            heartbeat_interval: millis(self.heartbeat),
            install_snapshot_timeout: millis(self.election_timeout.1),
            max_payload_entries: APPEND_ENTRIES_MAX,
            max_append_entries: Some(APPEND_ENTRIES_MAX),
            replication_lag_threshold: self.snapshot_after + self.entries_kept,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_after),
            max_in_snapshot_log_to_keep: self.entries_kept,
            purge_batch_size: (self.snapshot_after / 8).max(1),
            api_channel_size: Some(2 * PROPOSALS_INFLIGHT_MAX as u64),
            notification_channel_size: Some(8192),
            state_machine_channel_size: Some(1024),
            enable_pre_vote: Some(true),
            // A restarted leader is elected again: its commit may be older than its last answers.
            enable_leader_restore: Some(false),
            backoff: "20ms 40ms ...200ms".to_owned(),
            ..Config::default()
        }
    }
}

/// The leader of a group, as this member knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// Its leader.
    pub leader: Option<u64>,
    /// This member leads: it takes proposals. It may be deposed already without knowing.
    pub leading: bool,
}

/// One member of a group. Clones are handles of the same member.
pub struct Group<M: StateMachine>(Rc<Member<M>>);

impl<M: StateMachine> Clone for Group<M> {
    fn clone(&self) -> Self {
        Group(self.0.clone())
    }
}

struct Member<M: StateMachine> {
    env: Env,
    config: GroupConfig,
    raft: Raft<Types, Worker<M>>,
    log: RaftLog,
    applied: Rc<Applied<M>>,
    counted: Rc<Counted>,
    command_len_max: usize,
    proposals: Semaphore,
    proposal_bytes: Semaphore,
    reads: Semaphore,
    leadership: watch::Receiver<Leadership>,
    /// Appends take one permit, the installation of a snapshot all.
    installing: Semaphore,
    /// A snapshot of which some parts have come.
    incoming: Mutex<Option<Incoming>>,
    checkpoints: Checkpoints,
    /// The owner has asked for a shutdown.
    closing: Cell<bool>,
}

impl<M: StateMachine> Group<M> {
    /// Recovers the member from its log and snapshot and starts it. `machine` is in its initial
    /// state. The caller then delivers the messages of other members to [`PeerReceive`].
    pub async fn open(
        env: &Env,
        config: GroupConfig,
        device: impl LogDevice,
        checkpoints: Checkpoints,
        peers: Rc<dyn PeerSend>,
        machine: M,
    ) -> Result<Group<M>, OpenError> {
        let raft_config = config.to_raft().validate();
        let raft_config = raft_config.map_err(|error| OpenError::Config(error.to_string()))?;
        // The largest batch must fit a segment: half of it, for commands of unusual logs.
        let half_segment = usize::try_from(device.segment_len() / 2).unwrap_or(usize::MAX);
        let command_len_max = COMMAND_LEN_MAX.min(half_segment.saturating_sub(LOG_BLOCK));
        let log = RaftLog::open(env, device).await?;
        let worker = Worker::open(machine, checkpoints.clone(), log.purged()).await?;
        let applied = worker.applied();
        let network = Network {
            env: env.clone(),
            group: config.group,
            node: config.node,
            peers,
            append_timeout: config.election_timeout.0,
        };
        let raft = Raft::new(config.node, Arc::new(raft_config), network, log.clone(), worker);
        let raft = raft.await.map_err(|error| OpenError::State(error.to_string()))?;
        // After one turn of its core the library has published what it recovered.
        let recovered = raft.with_raft_state(|_| ()).await;
        recovered.map_err(|error| OpenError::State(error.to_string()))?;
        let counted = Rc::new(Counted::new(env, config.group));
        raft.runtime_config().heartbeat(!config.heartbeats_together);
        let leadership = watch_leadership(env, &config, &raft, counted.clone());
        Ok(Group(Rc::new(Member {
            env: env.clone(),
            config,
            raft,
            log,
            applied,
            counted,
            command_len_max,
            proposals: Semaphore::new(PROPOSALS_INFLIGHT_MAX),
            proposal_bytes: Semaphore::new(PROPOSAL_BYTES_MAX),
            reads: Semaphore::new(READS_INFLIGHT_MAX),
            leadership,
            installing: Semaphore::new(APPENDS_TOGETHER as usize),
            incoming: Mutex::new(None),
            checkpoints,
            closing: Cell::new(false),
        })))
    }

    /// Forms a new group of `members`, once, on one of them, before any knows of another.
    pub async fn bootstrap(&self, members: &BTreeSet<u64>) -> Result<(), MembershipError> {
        let members: BTreeMap<u64, EmptyNode> =
            members.iter().map(|&member| (member, EmptyNode::new())).collect();
        self.0.raft.initialize(members).await.map_err(|error| match error {
            RaftError::APIError(InitializeError::NotAllowed(_)) => MembershipError::Exists,
            RaftError::APIError(error) => MembershipError::Refused(error.to_string()),
            RaftError::Fatal(_) => MembershipError::Stopped,
        })
    }

    /// Commits `command` and returns what the state machine answered to it. Proposals that wait
    /// together share log writes and messages.
    pub async fn propose(&self, command: Vec<u8>) -> Result<Vec<u8>, ProposeError> {
        let member = &*self.0;
        let (len, max) = (command.len(), member.command_len_max);
        if len > max {
            return Err(ProposeError::TooLong { len, max });
        }
        let Ok(_one) = member.proposals.try_acquire() else {
            return Err(ProposeError::Busy(command));
        };
        let Ok(_bytes) = member.proposal_bytes.try_acquire_many(len as u32) else {
            return Err(ProposeError::Busy(command));
        };
        let began = member.env.now();
        member.env.note(Step::Proposed, Fact::Group(member.config.group));
        let written = member.raft.client_write(Command(command.into()));
        match member.env.timeout(member.config.request_timeout, written).await {
            Ok(Ok(response)) => {
                let took = (member.env.now() - began).as_nanos() as u64;
                member.counted.commit.record(took);
                member.note_entry(response.log_id.index);
                Ok(response.data)
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward)))) => {
                Err(ProposeError::NotLeader { hint: forward.leader_id })
            }
            Ok(Err(RaftError::APIError(_))) | Err(_) => Err(ProposeError::Unknown),
            Ok(Err(RaftError::Fatal(_))) => Err(ProposeError::Stopped),
        }
    }

    /// Returns when this member has applied everything that was committed before the call, with
    /// the index that covers it; a [`Group::read`] after it is linearizable. A quorum confirms
    /// the leader, no lease does (`protocols.md` 4.3).
    pub async fn read_index(&self) -> Result<u64, ReadError> {
        let member = &*self.0;
        let Ok(_one) = member.reads.try_acquire() else { return Err(ReadError::Busy) };
        let confirmed = member.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        match member.env.timeout(member.config.request_timeout, confirmed).await {
            Ok(Ok(read)) => Ok(read.index()),
            Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)))) => {
                Err(ReadError::NotLeader { hint: forward.leader_id })
            }
            Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)))) | Err(_) => {
                Err(ReadError::NoQuorum)
            }
            Ok(Err(RaftError::Fatal(_))) => Err(ReadError::Stopped),
        }
    }

    /// Reads this member's state, which may be older than what others have seen: see
    /// [`Group::read_index`].
    pub fn read<T>(&self, look: impl FnOnce(&M) -> T) -> T {
        look(&self.0.applied.machine.borrow())
    }

    /// Index of the last entry applied here.
    pub fn applied_index(&self) -> Option<u64> {
        self.0.applied.last_index()
    }

    /// The leader, as far as this member knows.
    pub fn leader(&self) -> Option<u64> {
        self.leadership().leader
    }

    /// The leader, as far as this member knows.
    pub fn leadership(&self) -> Leadership {
        *self.0.leadership.borrow()
    }

    /// Follows the leader.
    pub fn watch_leadership(&self) -> watch::Receiver<Leadership> {
        self.0.leadership.clone()
    }

    /// Starts to replicate to `node`, which has no vote yet. Returns when the membership is
    /// committed, not when the learner has caught up.
    pub async fn add_learner(&self, node: u64) -> Result<(), MembershipError> {
        self.check_leads_itself()?;
        let added = self.0.raft.add_learner(node, EmptyNode::new(), false);
        self.membership_outcome(added).await
    }

    /// Makes `voters` the members with a vote, through a joint quorum of old and new. They must
    /// be voters or learners. Voters that are not among them leave it. A leader does not remove
    /// itself: it hands over to a voter that stays, and names it.
    pub async fn change_membership(&self, voters: BTreeSet<u64>) -> Result<(), MembershipError> {
        self.check_leads_itself()?;
        if !voters.contains(&self.0.config.node) {
            return Err(self.hand_over(&voters).await);
        }
        let changed = self.0.raft.change_membership(voters, false);
        self.membership_outcome(changed).await
    }

    /// openraft 0.10.0-alpha.37 lets a leader that is no voter any more lead for some time, and
    /// panics when it is asked for another change then (a debug assertion of its
    /// `ReplicationHandler::append_membership`). So no leader of ours is asked to.
    fn check_leads_itself(&self) -> Result<(), MembershipError> {
        let leads = self.leadership().leading && self.voters().contains(&self.0.config.node);
        let hint = self.leader().filter(|&leader| leader != self.0.config.node);
        if leads { Ok(()) } else { Err(MembershipError::NotLeader { hint }) }
    }

    /// Transfers leadership to the voter among `successors` that has most of the log.
    async fn hand_over(&self, successors: &BTreeSet<u64>) -> MembershipError {
        let matched = self.0.raft.metrics().borrow_watched().replication.clone();
        let voters = self.voters();
        let stays = |node: &u64| successors.contains(node) && voters.contains(node);
        let candidates = matched.iter().flatten().filter(|(node, _)| stays(node));
        match candidates.max_by_key(|&(node, matched)| (*matched, *node)) {
            Some((&successor, _)) => {
                // Fails only when this member has stopped: then another will lead.
                let _ = self.0.raft.trigger().transfer_leader(successor).await;
                MembershipError::NotLeader { hint: Some(successor) }
            }
            None => MembershipError::Refused("keep one voter, and replace it after".to_owned()),
        }
    }

    async fn membership_outcome<T>(
        &self,
        change: impl Future<Output = Result<T, RaftError<Types, ClientWriteError<Types>>>>,
    ) -> Result<(), MembershipError> {
        match self.0.env.timeout(self.0.config.request_timeout, change).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(error))) => Err(match error {
                ClientWriteError::ForwardToLeader(ForwardToLeader { leader_id, .. }) => {
                    MembershipError::NotLeader { hint: leader_id }
                }
                ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_)
                    | ChangeMembershipError::UncommittedLeaderLog(_),
                ) => MembershipError::InProgress,
                ClientWriteError::LogEntryDiscarded(_) => MembershipError::Unknown,
                error => MembershipError::Refused(error.to_string()),
            }),
            Ok(Err(RaftError::Fatal(_))) => Err(MembershipError::Stopped),
            Err(_) => Err(MembershipError::Unknown),
        }
    }

    /// Members with a vote, as the last membership in this member's log says.
    pub fn voters(&self) -> BTreeSet<u64> {
        self.0.raft.voter_ids().collect()
    }

    /// Takes a snapshot soon, whatever the number of entries since the last.
    pub async fn snapshot_soon(&self) {
        // Fails only when the member has stopped.
        let _ = self.0.raft.trigger().snapshot().await;
    }

    /// Sends a heartbeat to all members now, if this one leads.
    pub async fn heartbeat(&self) {
        if self.leadership().leading {
            // Fails only when the member has stopped.
            let _ = self.0.raft.trigger().heartbeat().await;
        }
    }

    /// The log, for checkers.
    pub fn log(&self) -> &RaftLog {
        &self.0.log
    }

    /// Cause of the member's failure; none while it works or after a shutdown.
    pub fn failure(&self) -> Option<LogError> {
        let log = || self.0.log.failure().filter(|error| *error != LogError::Closed);
        self.0.applied.failure().or_else(log).or_else(|| self.0.core_failure())
    }

    /// Stops the member. Proposals under way end with [`ProposeError::Stopped`].
    pub async fn shutdown(&self) {
        self.0.closing.set(true);
        // Fails when it was shut down before.
        let _ = self.0.raft.shutdown().await;
        self.0.checkpoints.close().await;
        self.0.log.close().await;
    }
}

fn watch_leadership<M: StateMachine>(
    env: &Env,
    config: &GroupConfig,
    raft: &Raft<Types, Worker<M>>,
    counted: Rc<Counted>,
) -> watch::Receiver<Leadership> {
    let (sender, receiver) = watch::channel(Leadership::default());
    let mut metrics = raft.server_metrics();
    let node = config.node;
    env.spawn(Class::Control, "raft leadership", async move {
        loop {
            let now = {
                let metrics = metrics.borrow_and_update();
                Leadership {
                    term: metrics.vote.leader_id.term(),
                    leader: metrics.current_leader,
                    leading: metrics.state == ServerState::Leader
                        && metrics.current_leader == Some(node),
                }
            };
            sender.send_if_modified(|known| {
                let before = std::mem::replace(known, now);
                if now.leader.is_some() && (now.leader, now.term) != (before.leader, before.term) {
                    counted.elections.inc();
                }
                before != now
            });
            if metrics.changed().await.is_err() {
                // The member has stopped; it leads nothing, and follows nothing.
                sender.send_modify(|known| (known.leader, known.leading) = (None, false));
                return;
            }
        }
    });
    receiver
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

impl<M: StateMachine> Member<M> {
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
                Reply::Append(self.raft.append_entries(request).await.map_err(fatal)?)
            }
            Request::Vote(request) => Reply::Vote(self.raft.vote(request).await.map_err(fatal)?),
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

impl<M: StateMachine> PeerReceive for Group<M> {
    fn receive(&self, rpc: Vec<u8>) -> LocalFuture<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            let (request, receiver) = decode_request(&rpc)?;
            // Its answer would count as that of another member, which promised nothing.
            if receiver.is_some_and(|receiver| receiver != self.0.config.node) {
                self.0.env.mark("raft: meant for another");
                return None;
            }
            let reply = self.0.answer(request).await.ok()?;
            postcard::to_allocvec(&reply).ok()
        })
    }
}
