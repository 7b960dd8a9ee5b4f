//! Registration and heartbeats: to every master, each of which keeps its own view of live servers.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

use base::{ChunkId, DiskId, ServerId};
use chunkstore::ChunkStore;
use futures_util::future::{Either, select};
use runtime::sync::Notify;
use runtime::{Class, Instant, JoinHandle};
use transport::{Priority, Request, Service, Token};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, Heartbeat,
    Registration,
};

use crate::limits::{
    DAMAGED_PER_HEARTBEAT_MAX, HEARTBEAT_TIMEOUT, JUDGE_PAUSE, JUDGE_WAIT_MAX, MASTER_KEPT,
    MASTERS_MAX, QUIET_PER_HEARTBEAT_MAX,
};
use crate::owner::Home;
use crate::server::Chunkserver;

/// The masters that get heartbeats, and when an answer last named each.
struct Masters {
    configured: BTreeSet<SocketAddr>,
    named: BTreeMap<SocketAddr, Instant>,
}

impl Masters {
    fn new(configured: &[SocketAddr], now: Instant) -> Masters {
        let named = configured.iter().map(|&master| (master, now)).collect();
        Masters { configured: configured.iter().copied().collect(), named }
    }

    fn all(&self) -> BTreeSet<SocketAddr> {
        self.named.keys().copied().collect()
    }

    /// Takes over masters that were asked on another's word.
    fn note_asked(&mut self, asked: BTreeSet<SocketAddr>, now: Instant) {
        for master in asked {
            self.named.entry(master).or_insert(now);
        }
    }

    /// Takes over the masters that an answer names, and drops those that none has named lately.
    fn note(&mut self, masters: impl Iterator<Item = SocketAddr>, now: Instant) {
        self.named.extend(masters.map(|master| (master, now)));
        let Masters { configured, named } = self;
        named.retain(|master, at| configured.contains(master) || now.since(*at) < MASTER_KEPT);
        while named.len() > MASTERS_MAX {
            let oldest = named.iter().min_by_key(|(_, at)| **at).map(|(&master, _)| master);
            oldest.map(|master| named.remove(&master));
        }
    }
}

/// A heartbeat under way to one master.
struct SentHeartbeat {
    /// The damaged replicas in it.
    damaged: Vec<(DiskId, ChunkId)>,
    /// A heartbeat that was to be sent at once was not sent to this master: one follows the answer.
    missed: Rc<Cell<bool>>,
    call: JoinHandle<Result<ClusterReply, ControlError>>,
}

/// Why heartbeats are sent, and to whom.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It is time: to each master that has answered the last one.
    Time,
    /// There is something to report at once: to each master, to those that have not answered the last one
    /// behind that answer.
    News,
    /// A master that missed the news has answered: to that one only. To the others too, masters that
    /// answer in turn would be sent heartbeats for ever.
    Missed,
}

/// A registration under way: the server's number, if it got one, and the masters that were asked.
type Joining = JoinHandle<(Option<ServerId>, BTreeSet<SocketAddr>)>;

impl<S: ChunkStore> Chunkserver<S> {
    /// Sends heartbeats, and registers beside them: masters that know the server have to hear from
    /// it while another does not, and while a disk hangs.
    pub(crate) async fn run_heartbeats(self) {
        let env = self.0.env.clone();
        let boot = env.random_u64();
        let mut masters = Masters::new(&self.0.config.masters, env.now());
        let mut under_way: BTreeMap<SocketAddr, SentHeartbeat> = BTreeMap::new();
        // Masters that do not know the server get nothing before it has registered again.
        let mut strangers = BTreeSet::new();
        let mut joining: Option<Joining> = None;
        let (mut server, mut seq, mut cause) = (None, 0, Cause::Time);
        let missed_answers = Rc::new(Notify::new());
        let mut next = env.now();
        loop {
            let mut missed = BTreeSet::new();
            let answered = under_way.extract_if(.., |_, sent| sent.call.is_finished());
            for (master, sent) in answered.collect::<Vec<_>>() {
                if sent.missed.get() {
                    missed.insert(master);
                }
                let Ok(Ok(ClusterReply::Beat { masters: named, known, .. })) = sent.call.await
                else {
                    continue;
                };
                match known {
                    true => self.0.directory.note_taken(master, &sent.damaged, env.now()),
                    false => {
                        strangers.insert(master);
                    }
                }
                masters.note(named.iter().map(|master| master.addr), env.now());
            }
            if let Some(ended) = joining.take_if(|joining| joining.is_finished())
                && let Ok((number, asked)) = ended.await
            {
                masters.note_asked(asked, env.now());
                if number.is_some() {
                    server = number;
                    strangers.clear();
                }
            }
            if (server.is_none() || !strangers.is_empty()) && joining.is_none() {
                joining = Some(self.start_joining(masters.all()));
            }
            if let Some(server) = server {
                seq += 1;
                let mut heartbeat = self.heartbeat(server, boot, seq);
                if cause != Cause::Missed {
                    heartbeat.quiet = self.0.directory.take_quiet(QUIET_PER_HEARTBEAT_MAX);
                }
                for master in masters.all().difference(&strangers) {
                    if let Some(sent) = under_way.get(master) {
                        sent.missed.set(sent.missed.get() || cause == Cause::News);
                    } else if cause != Cause::Missed || missed.contains(master) {
                        let sent = self.send_heartbeat(*master, &heartbeat, &missed_answers);
                        under_way.insert(*master, sent);
                    }
                }
            }
            if cause != Cause::Missed {
                next = env.now() + env.jitter(self.0.config.heartbeat);
            }
            let news = pin!(self.0.directory.wait_for_heartbeat_request());
            let answer = pin!(missed_answers.notified());
            let pause = next.since(env.now());
            cause = match env.timeout(pause, select(news, answer)).await {
                Ok(Either::Left(_)) => Cause::News,
                Ok(Either::Right(_)) => Cause::Missed,
                Err(_) => Cause::Time,
            };
        }
    }

    /// Registers in a task, and has the disks judged for the cluster. The next heartbeat follows at
    /// once when the server has a number.
    fn start_joining(&self, mut asked: BTreeSet<SocketAddr>) -> Joining {
        let this = self.clone();
        self.0.env.spawn(Class::Control, "join the cluster", async move {
            let Some((server, home)) = this.register(&mut asked).await else {
                return (None, asked);
            };
            this.join_home(home, asked.iter().copied().collect()).await;
            tracing::info!(name = %this.0.config.name, %server, "joined the cluster");
            this.0.directory.heartbeat_soon();
            (Some(server), asked)
        })
    }

    /// Sends a heartbeat in a task. An answer behind which another one is to follow notifies `answers`.
    fn send_heartbeat(
        &self,
        master: SocketAddr,
        heartbeat: &Heartbeat,
        answers: &Rc<Notify>,
    ) -> SentHeartbeat {
        let mut heartbeat = heartbeat.clone();
        heartbeat.damaged = self.0.directory.damaged(master, DAMAGED_PER_HEARTBEAT_MAX);
        let damaged = heartbeat.damaged.clone();
        let missed = Rc::new(Cell::new(false));
        let (this, soon, answers) = (self.clone(), missed.clone(), answers.clone());
        let call = self.0.env.spawn(Class::Control, "heartbeat", async move {
            let (env, asked) = (&this.0.env, this.0.env.now());
            let answer = this.ask(master, ClusterRequest::Heartbeat(heartbeat)).await;
            if let Ok(ClusterReply::Beat { clock: Some(clock), .. }) = &answer {
                this.0.directory.note_issuer(*clock, asked, env.now());
            }
            if soon.get() {
                answers.notify_one();
            }
            answer
        });
        SentHeartbeat { damaged, missed, call }
    }

    /// Asks the masters in `asked`, and those that they name as leaders, which are added: the leader
    /// may have been added since the configuration was written.
    async fn register(&self, asked: &mut BTreeSet<SocketAddr>) -> Option<(ServerId, Home)> {
        let registration = Registration {
            name: self.0.config.name.clone(),
            addr: self.addr(),
            domain: self.0.config.domain.clone(),
        };
        let mut todo: Vec<SocketAddr> = asked.iter().rev().copied().collect();
        while let Some(master) = todo.pop() {
            let request = ClusterRequest::Register(registration.clone());
            match self.ask(master, request).await {
                Ok(ClusterReply::Registered { server, cluster, formation }) => {
                    return Some((server, Home { cluster, formation }));
                }
                Ok(other) => tracing::warn!(%master, ?other, "not an answer to a registration"),
                Err(error) => {
                    self.note_refusal(&error);
                    tracing::debug!(%master, %error, "registration not taken");
                    let new = error.leader.filter(|_| asked.len() < MASTERS_MAX);
                    todo.extend(new.filter(|&leader| asked.insert(leader)));
                }
            }
        }
        None
    }

    /// A process of the same name runs elsewhere: this is logged once.
    fn note_refusal(&self, error: &ControlError) {
        if error.kind == base::Kind::Exists && !self.0.refused.replace(true) {
            self.0.env.mark("chunkserver: refused as a second process");
            tracing::error!(name = %self.0.config.name, "cannot join the cluster: {error}");
        }
    }

    /// No heartbeat leaves before every disk is judged: masters take one that is missing in it
    /// for one that is gone. One that is not judged for [`JUDGE_WAIT_MAX`] hangs, and is missing.
    async fn join_home(&self, home: Home, masters: Vec<SocketAddr>) {
        let env = &self.0.env;
        self.0.directory.set_home(home, masters.clone());
        self.judge_disks(home, &masters);
        let judged = async {
            while !self.0.directory.all_judged(home) {
                env.sleep(JUDGE_PAUSE).await;
            }
        };
        if env.timeout(JUDGE_WAIT_MAX, judged).await.is_err() {
            env.mark("chunkserver: joined beside a disk that hangs");
            tracing::warn!(name = %self.0.config.name, "joins without disks that do not answer");
        }
    }

    /// A heartbeat, but for the damaged replicas, which depend on the master, and the quiet ones.
    fn heartbeat(&self, server: ServerId, boot: u64, seq: u64) -> Heartbeat {
        let mut report = self.report();
        for shard in self.0.directory.others(self.addr()) {
            // A report from before the server joined has disks that were not judged.
            if shard.home == report.home {
                report.disks.extend(shard.disks);
            }
            report.load = report.load.saturating_add(shard.load);
        }
        Heartbeat {
            server,
            addr: self.addr(),
            boot,
            seq,
            disks: report.disks,
            damaged: Vec::new(),
            load: report.load,
            quiet: Vec::new(),
            layout: wire::row::LAYOUT_CODED,
            by_issuer: true,
        }
    }

    pub(crate) async fn ask(
        &self,
        master: SocketAddr,
        request: ClusterRequest,
    ) -> Result<ClusterReply, ControlError> {
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Control,
            flow: 0,
            trace: self.0.env.trace(),
            token: Token::NONE,
            body: ControlRequest::Cluster(request).encode(),
            payload: None,
        };
        let invalid = |text: String| ControlError::new(base::Kind::Invalid, text);
        let answer = self.0.endpoint.call(master, request, HEARTBEAT_TIMEOUT).await;
        let answer = answer.map_err(|error| ControlError::new(error.kind(), error.to_string()))?;
        if answer.status != 0 {
            return Err(ControlError::decode(&answer.body).map_err(|e| invalid(e.to_string()))?);
        }
        match ControlReply::decode(&answer.body).map_err(|e| invalid(e.to_string()))? {
            ControlReply::Cluster(reply) => Ok(reply),
            other => Err(invalid(format!("not an answer of the cluster service: {other:?}"))),
        }
    }
}
