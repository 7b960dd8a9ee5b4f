//! A Raft group: replicated commands over a deterministic state machine.

use std::collections::BTreeSet;
use std::rc::Rc;

use runtime::Env;
use runtime::sync::watch;

use super::checkpoint::Checkpoints;
use super::config::GroupConfig;
use super::device::LogDevice;
use super::error::LogError;
use super::leadership::Leadership;
use super::limits::{COMMAND_LEN_MAX, LOG_BLOCK};
use super::log::RaftLog;
use super::machine::{State, StateMachine};
use super::member::{Member, VoterChange};
use super::net::{LocalFuture, PeerReceive, PeerSend};
use super::outcome::{MembershipError, OpenError, ProposeError, ReadError};

/// One member of a group. Clones are handles of the same member.
pub struct Group<M: StateMachine> {
    member: Rc<Member>,
    state: Rc<State<M>>,
}

impl<M: StateMachine> Clone for Group<M> {
    fn clone(&self) -> Self {
        Group { member: self.member.clone(), state: self.state.clone() }
    }
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
        // The largest batch must fit a segment: half of it, for commands of unusual logs.
        let half_segment = usize::try_from(device.segment_len() / 2).unwrap_or(usize::MAX);
        let len_max = COMMAND_LEN_MAX.min(half_segment.saturating_sub(LOG_BLOCK));
        let log = RaftLog::open(env, device).await?;
        let state = State::new(machine);
        let opened =
            Member::open(env, config, log, len_max, checkpoints, peers, state.clone()).await?;
        Ok(Group { member: opened, state })
    }

    /// Forms a new group of `members`, once, on one of them, before any knows of another.
    pub async fn bootstrap(&self, members: &BTreeSet<u64>) -> Result<(), MembershipError> {
        self.member.bootstrap(members.clone()).await
    }

    /// Commits `command` and returns what the state machine answered to it. Proposals that wait
    /// together share log writes and messages.
    pub async fn propose(&self, command: Vec<u8>) -> Result<Vec<u8>, ProposeError> {
        self.member.propose(command).await
    }

    /// Returns when this member has applied everything that was committed before the call, with
    /// the index that covers it; a [`Group::read`] after it is linearizable. A quorum confirms
    /// the leader, no lease does (`protocols.md` 4.3).
    pub async fn read_index(&self) -> Result<u64, ReadError> {
        self.member.read_index().await
    }

    /// Reads this member's state, which may be older than what others have seen: see
    /// [`Group::read_index`].
    pub fn read<T>(&self, look: impl FnOnce(&M) -> T) -> T {
        look(&self.state.machine())
    }

    /// Index of the last entry applied here.
    pub fn applied_index(&self) -> Option<u64> {
        self.member.applied_index()
    }

    /// The leader, as far as this member knows.
    pub fn leader(&self) -> Option<u64> {
        self.leadership().leader
    }

    /// The leader, as far as this member knows.
    pub fn leadership(&self) -> Leadership {
        self.member.leadership()
    }

    /// Follows the leader.
    pub fn watch_leadership(&self) -> watch::Receiver<Leadership> {
        self.member.watch_leadership()
    }

    /// Starts to replicate to `node`, which has no vote yet. Returns when the membership is
    /// committed, not when the learner has caught up.
    pub async fn add_learner(&self, node: u64) -> Result<(), MembershipError> {
        self.member.add_learner(node).await
    }

    /// Makes `voters` the members with a vote, through a joint quorum of old and new. They must
    /// be voters or learners. Voters that are not among them leave it. A leader does not remove
    /// itself: it hands over to a voter that stays, and names it.
    pub async fn change_membership(&self, voters: BTreeSet<u64>) -> Result<(), MembershipError> {
        self.member.change_membership(voters).await
    }

    /// Members with a vote, as the last membership in this member's log says.
    pub fn voters(&self) -> BTreeSet<u64> {
        self.member.voters()
    }

    /// Gives a vote to one member, a learner first, or takes one away. Returns when that is committed.
    pub(crate) async fn change_voters(&self, change: VoterChange) -> Result<(), MembershipError> {
        self.member.change_voters(change).await
    }

    /// Hands leadership over to the voter among `successors` that has most of the log, if this member
    /// leads, and names it. Another is elected when that one does not follow the call.
    pub async fn lead_no_more(&self, successors: &BTreeSet<u64>) -> Option<u64> {
        self.member.lead_no_more(successors).await
    }

    /// Takes a snapshot soon, whatever the number of entries since the last.
    pub async fn snapshot_soon(&self) {
        self.member.snapshot_soon().await;
    }

    /// Sends a heartbeat to all members now, if this one leads.
    pub async fn heartbeat(&self) {
        self.member.heartbeat().await;
    }

    /// The log, for checkers.
    pub fn log(&self) -> &RaftLog {
        self.member.log()
    }

    /// Cause of the member's failure; none while it works or after a shutdown.
    pub fn failure(&self) -> Option<LogError> {
        self.member.failure()
    }

    /// Stops the member. Proposals under way end with [`ProposeError::Stopped`].
    pub async fn shutdown(&self) {
        self.member.shutdown().await;
    }
}

impl<M: StateMachine> PeerReceive for Group<M> {
    fn receive(&self, rpc: Vec<u8>) -> LocalFuture<'_, Option<Vec<u8>>> {
        self.member.receive(rpc)
    }
}
