//! Registration and heartbeats: to every master, each of which keeps its own view of live servers.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ChunkId, DiskId, ServerId};
use chunkstore::ChunkStore;
use runtime::{Class, Instant, JoinHandle};
use transport::{Priority, Request, Service, Token};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, Heartbeat,
    Registration,
};

use crate::limits::{
    DAMAGED_PER_HEARTBEAT_MAX, HEARTBEAT_TIMEOUT, JUDGE_PAUSE, MASTER_KEPT, MASTERS_MAX,
    QUIET_PER_HEARTBEAT_MAX,
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
    /// A heartbeat that was to be sent at once was not sent to this master: the next one follows
    /// the answer.
    missed: Rc<Cell<bool>>,
    call: JoinHandle<Result<ClusterReply, ControlError>>,
}

impl<S: ChunkStore> Chunkserver<S> {
    pub(crate) async fn run_heartbeats(self) {
        let env = self.0.env.clone();
        let boot = env.random_u64();
        let mut masters = Masters::new(&self.0.config.masters, env.now());
        let mut under_way: BTreeMap<SocketAddr, SentHeartbeat> = BTreeMap::new();
        let (mut server, mut seq, mut soon) = (None, 0, false);
        loop {
            let answered = under_way.extract_if(.., |_, sent| sent.call.is_finished());
            for (master, sent) in answered.collect::<Vec<_>>() {
                let Ok(Ok(ClusterReply::Beat { masters: named, known })) = sent.call.await else {
                    continue;
                };
                match known {
                    true => self.0.directory.note_taken(master, &sent.damaged, env.now()),
                    false => server = None,
                }
                masters.note(named.iter().map(|master| master.addr), env.now());
            }
            self.0.directory.drop_taken(&masters.all(), env.now());
            let known = match server {
                Some(known) => known,
                None => match self.register(&mut masters).await {
                    Some((registered, home)) => {
                        self.join_home(home, &masters).await;
                        tracing::info!(name = %self.0.config.name, server = %registered, "joined the cluster");
                        server = Some(registered);
                        registered
                    }
                    None => {
                        env.sleep(env.jitter(self.0.config.heartbeat)).await;
                        continue;
                    }
                },
            };
            if let Some((home, masters)) = self.0.directory.home() {
                self.judge_disks(home, &masters).await;
            }
            seq += 1;
            let heartbeat = self.heartbeat(known, boot, seq);
            for master in masters.all() {
                if let Some(sent) = under_way.get(&master) {
                    sent.missed.set(sent.missed.get() || soon);
                    continue;
                }
                under_way.insert(master, self.send_heartbeat(master, heartbeat.clone()));
            }
            let pause = env.jitter(self.0.config.heartbeat);
            // New reports do not wait for the next heartbeat.
            let requested = env.timeout(pause, self.0.directory.wait_for_heartbeat_request());
            soon = requested.await.is_ok();
        }
    }

    fn send_heartbeat(&self, master: SocketAddr, mut heartbeat: Heartbeat) -> SentHeartbeat {
        heartbeat.damaged = self.0.directory.damaged(master, DAMAGED_PER_HEARTBEAT_MAX);
        let damaged = heartbeat.damaged.clone();
        let missed = Rc::new(Cell::new(false));
        let (this, soon) = (self.clone(), missed.clone());
        let call = self.0.env.spawn(Class::Control, "heartbeat", async move {
            let answer = this.ask(master, ClusterRequest::Heartbeat(heartbeat)).await;
            if soon.get() {
                this.0.directory.heartbeat_soon();
            }
            answer
        });
        SentHeartbeat { damaged, missed, call }
    }

    /// Asks the masters that are known, and those that they name as leaders: the leader may have
    /// been added since the configuration was written.
    async fn register(&self, masters: &mut Masters) -> Option<(ServerId, Home)> {
        let registration = Registration {
            name: self.0.config.name.clone(),
            addr: self.addr(),
            domain: self.0.config.domain.clone(),
        };
        let mut todo: Vec<SocketAddr> = masters.named.keys().rev().copied().collect();
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
                    let new = error.leader.filter(|_| masters.named.len() < MASTERS_MAX);
                    let now = self.0.env.now();
                    todo.extend(new.filter(|&leader| masters.named.insert(leader, now).is_none()));
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
    /// for one that is gone.
    async fn join_home(&self, home: Home, masters: &Masters) {
        let masters: Vec<_> = masters.named.keys().copied().collect();
        self.0.directory.set_home(home, masters.clone());
        self.judge_disks(home, &masters).await;
        while !self.0.directory.all_judged(home) {
            self.0.env.sleep(JUDGE_PAUSE).await;
        }
    }

    /// A heartbeat, but for the damaged replicas: those depend on the master.
    fn heartbeat(&self, server: ServerId, boot: u64, seq: u64) -> Heartbeat {
        let mut report = self.report();
        for shard in self.0.directory.others(self.addr()) {
            report.disks.extend(shard.disks);
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
            quiet: self.0.directory.take_quiet(QUIET_PER_HEARTBEAT_MAX),
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
