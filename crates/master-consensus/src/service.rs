//! A group as its services use it: proposals stamped with the group's clock, linearizable reads
//! that share their quorum, and commands for groups that another master leads.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use metrics::{Fact, Step};
use runtime::Env;
use runtime::sync::watch;
use wire::control::{ControlError, Group as GroupName, MasterInfo};

use crate::leader::{GroupClock, ReadGate};
use crate::member::VoterChange;
use crate::peers::{OP_ASK, OP_MEMBERS, OP_PROPOSE, Peers};
use crate::{
    Group, Leadership, LocalFuture, LogError, MembershipError, ProposeError, ReadError,
    StateMachine,
};

/// Facts of a group's state for its host.
pub trait Hostable: StateMachine {
    /// Milliseconds of the group's clock at the last command.
    fn clock_ms(&self) -> u64;

    /// Answers another master's question. The answer is linearizable.
    fn ask(&self, question: &[u8]) -> Vec<u8> {
        let _ = question;
        Vec::new()
    }
}

/// This master's member of a group. Clones share it.
pub struct Host<M: Hostable>(Rc<HostInner<M>>);

impl<M: Hostable> Clone for Host<M> {
    fn clone(&self) -> Self {
        Host(self.0.clone())
    }
}

struct HostInner<M: Hostable> {
    env: Env,
    name: GroupName,
    group: Group<M>,
    peers: Rc<Peers>,
    clock: GroupClock,
    reads: Rc<ReadGate>,
}

impl<M: Hostable> Host<M> {
    /// Hosts `group`.
    pub fn new(env: &Env, name: GroupName, group: Group<M>, peers: Rc<Peers>) -> Host<M> {
        Host(Rc::new(HostInner {
            env: env.clone(),
            name,
            group,
            peers,
            clock: GroupClock::default(),
            reads: ReadGate::new(env),
        }))
    }

    /// The group.
    pub fn group(&self) -> &Group<M> {
        &self.0.group
    }

    /// Its name.
    pub fn name(&self) -> GroupName {
        self.0.name
    }

    /// Reads the state as this member has it.
    pub fn read<T>(&self, look: impl FnOnce(&M) -> T) -> T {
        self.0.group.read(look)
    }

    /// True while this member believes to lead.
    pub fn leads(&self) -> bool {
        self.0.group.leadership().leading
    }

    /// The group's clock: what its leaders have counted. It stands still between leaders and
    /// never runs faster than time.
    pub fn clock_ms(&self) -> u64 {
        let inner = &*self.0;
        let leadership = inner.group.leadership();
        let term = leadership.leading.then_some(leadership.term);
        inner.clock.at(inner.env.now(), term, self.read(M::clock_ms))
    }

    /// Commits what `encode` makes of the group's clock.
    pub async fn propose(
        &self,
        encode: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<Vec<u8>, ControlError> {
        if !self.leads() {
            return Err(self.elsewhere(self.0.group.leader()));
        }
        let command = encode(self.clock_ms());
        self.0.group.propose(command).await.map_err(|error| match error {
            ProposeError::NotLeader { hint } => self.elsewhere(hint),
            error => ControlError::new(error.kind(), format!("{}: {error}", self.0.name)),
        })
    }

    /// Returns when this member's state is not older than the call. Calls share rounds.
    pub async fn read_barrier(&self) -> Result<(), ControlError> {
        if !self.leads() {
            return Err(self.elsewhere(self.0.group.leader()));
        }
        let this = self.clone();
        let confirm = move || {
            let this = this.clone();
            async move { this.0.group.read_index().await.map(|_| ()) }
        };
        let confirmed = self.0.reads.pass(confirm).await;
        self.0.env.note(Step::Confirmed, Fact::Group(self.0.name.number()));
        confirmed.map_err(|error| match error {
            ReadError::NotLeader { hint } => self.elsewhere(hint),
            error => ControlError::new(error.kind(), format!("{}: {error}", self.0.name)),
        })
    }

    /// "Ask another": the leader's address, when it is known and is another.
    pub fn elsewhere(&self, hint: Option<u64>) -> ControlError {
        let leader = hint.and_then(|leader| self.0.peers.addr(leader));
        let message = match hint {
            Some(leader) => format!("master {leader} leads {}", self.0.name),
            None => format!("{} has no leader yet: retry", self.0.name),
        };
        ControlError { kind: Kind::Reroute, message, leader }
    }

    async fn change_voters(&self, change: VoterChange) -> Result<(), ControlError> {
        let group = &self.0.group;
        if !self.leads() {
            return Err(self.elsewhere(group.leader()));
        }
        group.change_voters(change).await.map_err(|error| self.not_changed(error))
    }

    fn not_changed(&self, error: MembershipError) -> ControlError {
        let kind = match error {
            MembershipError::NotLeader { hint } => return self.elsewhere(hint),
            MembershipError::InProgress | MembershipError::Unknown => Kind::Retry,
            MembershipError::Refused(_) | MembershipError::Exists => Kind::Invalid,
            MembershipError::Stopped => Kind::Reroute,
        };
        ControlError::new(kind, format!("{}: {error}", self.0.name))
    }
}

/// A group of any kind.
pub trait Hosted {
    /// Its name.
    fn name(&self) -> GroupName;
    /// Its leader.
    fn leadership(&self) -> Leadership;
    /// Members with a vote.
    fn voters(&self) -> BTreeSet<u64>;
    /// Cause of this member's failure.
    fn failure(&self) -> Option<String>;
    /// The last entry that this member has applied.
    fn applied_index(&self) -> Option<u64>;
    /// Commits a command whose clock is 0, here.
    fn propose_here(&self, command: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>, ControlError>>;
    /// Answers a question, here.
    fn ask_here(&self, question: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>, ControlError>>;
    /// Adds a voter, which must be reachable.
    fn add_voter(&self, master: MasterInfo) -> LocalFuture<'_, Result<(), ControlError>>;
    /// Removes a voter.
    fn remove_voter(&self, master: u64) -> LocalFuture<'_, Result<(), ControlError>>;
    /// Forms the group of `members`, unless it has been formed.
    fn form(&self, members: BTreeSet<u64>) -> LocalFuture<'_, Result<(), MembershipError>>;
    /// Sends a heartbeat, if this member leads.
    fn heartbeat(&self) -> LocalFuture<'_, ()>;
    /// Follows the leader.
    fn watch_leadership(&self) -> watch::Receiver<Leadership>;
    /// Hands leadership over to one of `successors`, if this member leads, and names it.
    fn lead_no_more<'a>(&'a self, successors: &'a BTreeSet<u64>) -> LocalFuture<'a, Option<u64>>;
    /// Stops this member.
    fn shutdown(&self) -> LocalFuture<'_, ()>;
}

impl<M: Hostable> Hosted for Host<M> {
    fn name(&self) -> GroupName {
        self.0.name
    }

    fn leadership(&self) -> Leadership {
        self.0.group.leadership()
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.0.group.voters()
    }

    fn failure(&self) -> Option<String> {
        self.0.group.failure().map(|error| match error {
            LogError::BadCommand { .. } => error.to_string(),
            _ => format!("{error}: start the master again; if it repeats, replace its disk"),
        })
    }

    fn applied_index(&self) -> Option<u64> {
        self.0.group.applied_index()
    }

    fn propose_here(&self, command: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>, ControlError>> {
        Box::pin(async move {
            // Committed, it would stop every member.
            M::check_command(&command).map_err(|error| {
                let message = format!("{}: {error}: upgrade all masters", self.0.name);
                ControlError::new(Kind::Invalid, message)
            })?;
            self.propose(move |_| command).await
        })
    }

    fn ask_here(&self, question: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>, ControlError>> {
        Box::pin(async move {
            self.read_barrier().await?;
            Ok(self.read(|state| state.ask(&question)))
        })
    }

    fn add_voter(&self, master: MasterInfo) -> LocalFuture<'_, Result<(), ControlError>> {
        Box::pin(async move {
            self.0.peers.learn(&master);
            if !self.leads() {
                return Err(self.elsewhere(self.0.group.leader()));
            }
            if !self.0.group.voters().contains(&master.id) {
                self.0.peers.invite(&master).await?;
            }
            self.change_voters(VoterChange::Add(master.id)).await
        })
    }

    fn remove_voter(&self, master: u64) -> LocalFuture<'_, Result<(), ControlError>> {
        Box::pin(self.change_voters(VoterChange::Remove(master)))
    }

    fn form(&self, members: BTreeSet<u64>) -> LocalFuture<'_, Result<(), MembershipError>> {
        Box::pin(async move { self.0.group.bootstrap(&members).await })
    }

    fn heartbeat(&self) -> LocalFuture<'_, ()> {
        Box::pin(self.0.group.heartbeat())
    }

    fn watch_leadership(&self) -> watch::Receiver<Leadership> {
        self.0.group.watch_leadership()
    }

    fn lead_no_more<'a>(&'a self, successors: &'a BTreeSet<u64>) -> LocalFuture<'a, Option<u64>> {
        Box::pin(self.0.group.lead_no_more(successors))
    }

    fn shutdown(&self) -> LocalFuture<'_, ()> {
        Box::pin(self.0.group.shutdown())
    }
}

/// Reaches the leader of any group, here or at another master.
pub struct Router {
    env: Env,
    peers: Rc<Peers>,
    hosts: RefCell<BTreeMap<u32, Rc<dyn Hosted>>>,
    /// One call to another master.
    call_timeout: Duration,
    /// Pause before another attempt.
    pause: Duration,
}

/// Kinds of calls to a group's leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaderCall {
    /// A command, which may be repeated.
    Propose,
    /// A question.
    Ask,
    /// A change of its members.
    Members,
}

impl Router {
    /// No groups yet.
    pub fn new(env: &Env, peers: Rc<Peers>, call_timeout: Duration) -> Rc<Router> {
        let pause = call_timeout / 50;
        let hosts = RefCell::default();
        Rc::new(Router { env: env.clone(), peers, hosts, call_timeout, pause })
    }

    /// This process has a member of a group.
    pub fn add(&self, host: Rc<dyn Hosted>) {
        self.hosts.borrow_mut().insert(host.name().number(), host);
    }

    /// This process's member of a group.
    pub fn host(&self, group: u32) -> Option<Rc<dyn Hosted>> {
        self.hosts.borrow().get(&group).cloned()
    }

    /// All members in this process.
    pub fn hosts(&self) -> Vec<Rc<dyn Hosted>> {
        self.hosts.borrow().values().cloned().collect()
    }

    /// Runs a leader call here, for this or another master.
    pub async fn run_here(
        &self,
        group: u32,
        call: LeaderCall,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ControlError> {
        let host = self.host(group).ok_or_else(|| {
            ControlError::new(Kind::Invalid, format!("there is no group number {group}"))
        })?;
        match call {
            LeaderCall::Propose => host.propose_here(body).await,
            LeaderCall::Ask => host.ask_here(body).await,
            LeaderCall::Members => {
                let change = wire::control::MemberChange::decode(&body);
                match change.map_err(|it| ControlError::new(Kind::Invalid, it.to_string()))? {
                    wire::control::MemberChange::Add(master) => host.add_voter(master).await?,
                    wire::control::MemberChange::Remove { id } => host.remove_voter(id).await?,
                }
                Ok(Vec::new())
            }
        }
    }

    /// Runs a leader call at the group's leader, wherever that is, and tries for `timeout`. The
    /// call may be executed more than once.
    pub async fn run(
        &self,
        group: GroupName,
        call: LeaderCall,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, ControlError> {
        let deadline = self.env.now() + timeout;
        let mut hint: Option<SocketAddr> = None;
        for attempt in 1u32.. {
            let to = hint.take().or_else(|| self.beside(group.number(), attempt));
            let error = match self.run_once(group.number(), call, &body, to).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let again = matches!(error.kind, Kind::Reroute | Kind::Retry | Kind::Unknown);
            if !again || self.env.now() >= deadline {
                return Err(error);
            }
            hint = error.leader;
            // Two masters may send the call to each other for a while.
            if hint.is_none() || attempt > 2 {
                self.env.sleep(self.env.jitter(self.pause)).await;
            }
        }
        unreachable!("attempts end with the time limit")
    }

    /// In every second attempt, another voter of the group: a group that this master has been removed
    /// from no longer says who leads it. The voter asked is the leader, or names it.
    fn beside(&self, group: u32, attempt: u32) -> Option<SocketAddr> {
        let host = self
            .host(group)
            .filter(|host| attempt.is_multiple_of(2) && !host.leadership().leading)?;
        let voters: Vec<u64> = host.voters().into_iter().collect();
        let voter = *voters.get(attempt as usize / 2 % voters.len().max(1))?;
        self.peers.addr(voter)
    }

    async fn run_once(
        &self,
        group: u32,
        call: LeaderCall,
        body: &[u8],
        hint: Option<SocketAddr>,
    ) -> Result<Vec<u8>, ControlError> {
        let leadership = self.host(group).map(|host| host.leadership()).unwrap_or_default();
        if leadership.leading {
            return self.run_here(group, call, body.to_vec()).await;
        }
        let known = leadership.leader.and_then(|leader| self.peers.addr(leader));
        let Some(to) = hint.or(known) else {
            return Err(ControlError::new(Kind::Retry, format!("group {group} has no leader yet")));
        };
        let op = match call {
            LeaderCall::Propose => OP_PROPOSE,
            LeaderCall::Ask => OP_ASK,
            LeaderCall::Members => OP_MEMBERS,
        };
        let answer = self.peers.ask(to, op, group, body, self.call_timeout).await;
        answer.map_err(|mut error| {
            // A master that does not answer does not stay the first to be asked.
            if error.kind == Kind::Unknown {
                error.leader = None;
            }
            error
        })
    }
}
