//! Questions to masters: who leads, retries with a budget, mutations that are done once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};

use base::{ClientId, Kind};
use futures_util::future::{Either, select};
use runtime::{Class, Duration, Env, Instant};
use wire::control::{
    ClusterInfo, ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, Group,
    OpId,
};

use crate::counters::{Counters, add};
use crate::error::Error;
use crate::limits::LEADER_LOOK;
use crate::peers::{PeerError, Peers, Recipient};
use crate::sequence::Sequences;
use crate::silence::Silence;

/// Pause after all masters have failed to answer, at least and at most.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(160);
/// Between them the pause is this part of what was waited so far: a new leader is found soon
/// after a short election, and masters that are gone for long are asked seldom.
const PAUSE_PART: u32 = 8;

/// A question to one group.
pub(crate) struct Question {
    pub(crate) group: Group,
    pub(crate) request: ControlRequest,
    /// Wait for one answer.
    pub(crate) attempt: Duration,
}

/// No successful answer.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) waited: Duration,
    /// The request may have taken effect.
    pub(crate) unknown: bool,
}

impl Refusal {
    /// As an error about `path`, in doing `what`.
    pub(crate) fn about(self, what: &str, path: &str) -> Error {
        let path = path.to_owned();
        match self.kind {
            Kind::NotFound => Error::NotFound { path },
            Kind::Exists => Error::Exists { path },
            Kind::Fenced => Error::Fenced { path },
            Kind::Full => Error::Full { path },
            Kind::Corrupt => Error::Corrupt { path, offset: 0 },
            Kind::Invalid => Error::Invalid { path, message: self.message },
            Kind::Retry | Kind::Refresh | Kind::Reroute | Kind::Unknown => {
                let (what, cause) = (format!("{what} {path}"), Error::traced(self.message));
                if self.unknown {
                    Error::Unknown { what, cause, waited: self.waited }
                } else {
                    Error::Unavailable { what, cause, waited: self.waited }
                }
            }
        }
    }
}

struct SessionState {
    masters: Vec<SocketAddr>,
    /// Leaders as last reported.
    leaders: BTreeMap<Group, SocketAddr>,
    /// Masters that did not answer, and when they are looked at again. Others relay what is for them.
    unreached: BTreeMap<SocketAddr, Instant>,
    /// When a master that relays was last asked who leads.
    looked: Option<Instant>,
    /// The master to ask when no leader is known.
    turn: usize,
    info: Option<ClusterInfo>,
}

/// One client session.
pub(crate) struct Session {
    env: Env,
    peers: Rc<dyn Peers>,
    counters: Rc<Counters>,
    budget: Duration,
    attempt: Duration,
    changes: Sequences,
    silence: Silence,
    state: RefCell<SessionState>,
    weak: Weak<Session>,
}

impl Session {
    pub(crate) fn new(
        env: &Env,
        peers: Rc<dyn Peers>,
        counters: Rc<Counters>,
        masters: Vec<SocketAddr>,
        (attempt, budget): (Duration, Duration),
    ) -> Rc<Session> {
        let mut id = [0; 8];
        env.fill_secret(&mut id);
        let turn = env.random_below(masters.len().max(1) as u64) as usize;
        let state = SessionState {
            masters,
            leaders: BTreeMap::new(),
            unreached: BTreeMap::new(),
            looked: None,
            turn,
            info: None,
        };
        Rc::new_cyclic(|weak| Session {
            env: env.clone(),
            silence: Silence::new(env, peers.clone()),
            peers,
            counters,
            budget,
            attempt,
            changes: Sequences::new(ClientId::new(u64::from_le_bytes(id))),
            state: RefCell::new(state),
            weak: weak.clone(),
        })
    }

    /// The session's identity.
    pub(crate) fn client(&self) -> ClientId {
        self.changes.client()
    }

    /// The cluster's facts as last answered; those of one partition before that.
    pub(crate) fn info(&self) -> Option<ClusterInfo> {
        self.state.borrow().info.clone()
    }

    /// Partitions of the namespace and of streams.
    pub(crate) fn partitions(&self) -> (u16, u16) {
        let state = self.state.borrow();
        state.info.as_ref().map_or((1, 1), |info| {
            (info.namespace_partitions.max(1), info.stream_partitions.max(1))
        })
    }

    /// The watch over processes that leave requests without an answer.
    pub(crate) fn silence(&self) -> &Silence {
        &self.silence
    }

    /// Asks masters until one answers with the cluster's facts.
    pub(crate) async fn connect(&self) -> Result<ClusterInfo, Refusal> {
        let question = Question {
            group: Group::Cluster,
            request: ControlRequest::Cluster(ClusterRequest::Info),
            attempt: self.attempt,
        };
        match self.ask(question, false).await? {
            ControlReply::Cluster(ClusterReply::Info(info)) => {
                self.learn(&info);
                Ok(info)
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    fn learn(&self, info: &ClusterInfo) {
        let state = &mut *self.state.borrow_mut();
        let addr_of = |id: u64| info.masters.iter().find(|master| master.id == id);
        for &(group, leader) in &info.leaders {
            if let Some(master) = addr_of(leader) {
                state.leaders.entry(group).or_insert(master.addr);
            }
        }
        if !info.masters.is_empty() {
            state.masters = info.masters.iter().map(|master| master.addr).collect();
        }
        state.info = Some(info.clone());
    }

    /// Runs a mutation: `build` gets the identity under which it is done once.
    pub(crate) async fn change(
        &self,
        group: Group,
        attempt: Duration,
        build: impl FnOnce(OpId) -> ControlRequest,
    ) -> Result<ControlReply, Refusal> {
        let sequence = self.changes.of(group);
        let _room = sequence.room().await;
        let open = match sequence.try_begin() {
            Some(open) => open,
            None => {
                self.env.mark("client: a change waits for an older one");
                let begun = self.env.timeout(self.budget, sequence.begin()).await;
                begun.map_err(|_| self.held_up(group))?
            }
        };
        let request = build(open.op);
        self.ask(Question { group, request, attempt }, true).await
    }

    /// A change that was not sent.
    fn held_up(&self, group: Group) -> Refusal {
        let message = format!("{group} takes no more changes before an older one has an answer");
        Refusal { kind: Kind::Retry, message, waited: self.budget, unknown: false }
    }

    /// Asks the leader of a group until there is an answer or the budget is spent.
    pub(crate) async fn ask(
        &self,
        question: Question,
        mutation: bool,
    ) -> Result<ControlReply, Refusal> {
        let start = self.env.now();
        let mut tries = Tries { asked: 0, start, unknown: false };
        loop {
            let to = self.target(question.group);
            let error = match self.ask_once(to, &question).await {
                Ok(reply) => {
                    self.note_success(question.group, to);
                    return Ok(reply);
                }
                Err(error) => error,
            };
            tries.unknown |= mutation && may_have_happened(&error);
            add(&self.counters.control_retries, 1);
            let message = error.to_string();
            let kind = self.after(question.group, to, error, mutation, &mut tries).await;
            let waited = self.env.now() - start;
            if let Some(kind) = kind {
                let unknown = tries.unknown && kind == Kind::Unknown;
                return Err(Refusal { kind, message, waited, unknown });
            }
            if waited >= self.budget {
                let kind = if tries.unknown { Kind::Unknown } else { Kind::Retry };
                return Err(Refusal { kind, message, waited, unknown: tries.unknown });
            }
        }
    }

    /// Asks once. An attempt ends early when the master answers no ping either.
    async fn ask_once(
        &self,
        to: Recipient,
        question: &Question,
    ) -> Result<ControlReply, PeerError<ControlError>> {
        let asked = self.peers.control(to, question.request.clone(), question.attempt);
        let silence = pin!(self.silence.of(to.addr));
        match select(asked, silence).await {
            Either::Left((answer, _)) => {
                if !matches!(answer, Err(PeerError::Unreachable(_) | PeerError::Silent(_))) {
                    self.silence.note_answer(to.addr);
                }
                answer
            }
            Either::Right(((), _)) => {
                let why = "it answers no ping either";
                Err(PeerError::Silent(format!("{}: {why}", to.addr)))
            }
        }
    }

    /// The master to ask: the leader, or another that relays while a master is not reached.
    fn target(&self, group: Group) -> Recipient {
        self.look_at_unreached();
        let state = &mut *self.state.borrow_mut();
        let leader = state.leaders.get(&group).copied();
        if let Some(addr) = leader.filter(|leader| !state.unreached.contains_key(leader)) {
            return addr.into();
        }
        let masters = state.masters.len();
        let reached = |turn: &usize| !state.unreached.contains_key(&state.masters[turn % masters]);
        state.turn =
            (state.turn..state.turn + masters).find(reached).unwrap_or(state.turn) % masters;
        Recipient { addr: state.masters[state.turn], relays: !state.unreached.is_empty() }
    }

    fn note_success(&self, group: Group, to: Recipient) {
        let state = &mut *self.state.borrow_mut();
        state.unreached.remove(&to.addr);
        if !to.relays {
            state.leaders.insert(group, to.addr);
            return;
        }
        let now = self.env.now();
        let looked = state.looked.is_some_and(|looked| now - looked < LEADER_LOOK);
        if !looked && !state.leaders.contains_key(&group) {
            state.looked = Some(now);
            self.spawn("client: ask who leads", async move |session| {
                session.ask_info(to.addr).await
            });
        }
    }

    /// Pings masters that were not reached, now and then: questions go to them again when they answer.
    fn look_at_unreached(&self) {
        let now = self.env.now();
        for (&master, look_at) in &mut self.state.borrow_mut().unreached {
            if now < *look_at {
                continue;
            }
            *look_at = now + LEADER_LOOK;
            self.spawn("client: look at a master", async move |session| {
                if session.silence.answers(master).await {
                    session.state.borrow_mut().unreached.remove(&master);
                }
            });
        }
    }

    fn spawn(&self, name: &'static str, work: impl AsyncFnOnce(Rc<Session>) + 'static) {
        if let Some(this) = self.weak.upgrade() {
            self.env.spawn(Class::Background, name, async move { work(this).await });
        }
    }

    /// Prepares the next try; a kind when the answer is final.
    async fn after(
        &self,
        group: Group,
        asked: Recipient,
        error: PeerError<ControlError>,
        mutation: bool,
        tries: &mut Tries,
    ) -> Option<Kind> {
        let asked = asked.addr;
        match error {
            PeerError::Foreign(_) => return Some(Kind::Invalid),
            PeerError::Unreachable(_) | PeerError::Silent(_) => {
                let look_at = self.env.now() + LEADER_LOOK;
                self.state.borrow_mut().unreached.insert(asked, look_at);
                self.forget(group, asked);
            }
            PeerError::Busy => {}
            PeerError::Refused(error) => match error.kind {
                Kind::Reroute => {
                    self.forget(group, asked);
                    if let Some(leader) = error.leader.filter(|&leader| leader != asked) {
                        self.state.borrow_mut().leaders.insert(group, leader);
                        // A hint is followed at once, but two masters that point at each
                        // other are not asked in a loop without a pause.
                        tries.asked += 1;
                        if !tries.asked.is_multiple_of(3) {
                            return None;
                        }
                    }
                }
                // A decision was made on an old state: the caller makes it again.
                Kind::Refresh if mutation => return Some(Kind::Refresh),
                Kind::Refresh => self.refresh().await,
                Kind::Retry | Kind::Unknown => {
                    tries.asked = 0;
                    self.pause(tries).await;
                    return None;
                }
                kind => return Some(kind),
            },
        }
        tries.asked += 1;
        let masters = self.state.borrow().masters.len() as u32;
        if tries.asked.is_multiple_of(masters.max(1)) {
            self.pause(tries).await;
            self.refresh().await;
        }
        None
    }

    async fn pause(&self, tries: &Tries) {
        let waited = self.env.now() - tries.start;
        let pause = (waited / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX);
        self.env.sleep(self.env.jitter(pause)).await;
    }

    /// `asked` is not the leader any more, or is gone: ask another master next.
    fn forget(&self, group: Group, asked: SocketAddr) {
        let state = &mut *self.state.borrow_mut();
        if state.leaders.get(&group) == Some(&asked) {
            state.leaders.remove(&group);
        }
        if state.masters[state.turn % state.masters.len()] == asked {
            state.turn = (state.turn + 1) % state.masters.len();
        }
    }

    /// Asks one master for the cluster's facts; fine when it does not answer.
    async fn refresh(&self) {
        let to = {
            let state = self.state.borrow();
            state.masters[self.env.random_below(state.masters.len() as u64) as usize]
        };
        self.ask_info(to).await;
    }

    async fn ask_info(&self, to: SocketAddr) {
        let request = ControlRequest::Cluster(ClusterRequest::Info);
        let answer = self.peers.control(to.into(), request, self.attempt / 4).await;
        if let Ok(ControlReply::Cluster(ClusterReply::Info(info))) = answer {
            self.learn(&info);
        }
    }
}

struct Tries {
    /// Masters asked since the last pause.
    asked: u32,
    /// When the question was first asked.
    start: Instant,
    unknown: bool,
}

fn may_have_happened(error: &PeerError<ControlError>) -> bool {
    match error {
        PeerError::Unreachable(_) | PeerError::Busy | PeerError::Foreign(_) => false,
        PeerError::Silent(_) => true,
        PeerError::Refused(error) => error.kind == Kind::Unknown,
    }
}

/// An answer of the wrong kind.
pub(crate) fn unexpected_reply(reply: &ControlReply) -> Refusal {
    let message = format!("a master answered something else: {reply:?}");
    Refusal { kind: Kind::Invalid, message, waited: Duration::ZERO, unknown: false }
}
