//! Liveness of chunkservers, as one master sees it from their heartbeats. Not replicated: every
//! server sends its heartbeats to every master, and every master pings every server, so a new leader
//! knows at once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use base::{ChunkId, DiskId, ID_COUNTER_END, ServerId};
use runtime::Instant;
use wire::control::{AbnormalServers, AbnormalVersion, DiskReport, Heartbeat, ServerStatus};

use super::abnormal::Abnormal;
use super::evidence::{Evidence, Reported};
use super::machine::ClusterMachine;
use super::reach::{Rounds, ServerReach, reaches_half};
use super::slow_disks::SlowDisks;
use crate::limits::{
    ABNORMAL_SHARE, DAMAGED_MAX, DISKS_MAX, REPORT_HOSTS, SERVER_PING, SLOW_DISK_JUDGED,
    SLOW_DISK_MIN,
};
use master_stream::placement::{ClusterView, DiskView, ServerView};

/// Bounds by which a master judges chunkservers.
#[derive(Clone, Copy, Debug)]
pub struct LivenessConfig {
    /// Without a heartbeat for so long a server is dead.
    pub dead_after: Duration,
    /// Hosts whose clients' reports make a server unreached without a failed ping.
    pub report_hosts: usize,
    /// When more than one server of so many is abnormal, none is named to clients.
    pub abnormal_share: usize,
    /// No disk is slow, by the times of heartbeats, below this latency.
    pub slow_disk_min: Duration,
    /// Drawn at the start of the master: versions of its list of abnormal servers are its own.
    pub boot: u64,
}

impl LivenessConfig {
    /// The usual ones.
    pub fn new(dead_after: Duration, boot: u64) -> LivenessConfig {
        LivenessConfig {
            dead_after,
            report_hosts: REPORT_HOSTS,
            abnormal_share: ABNORMAL_SHARE,
            slow_disk_min: SLOW_DISK_MIN,
            boot,
        }
    }
}

/// Heartbeats of all servers. Clones share it.
#[derive(Clone)]
pub struct Liveness(Rc<RefCell<LivenessState>>);

struct LivenessState {
    /// Without a heartbeat for so long a server is dead.
    dead_after: Duration,
    servers: BTreeMap<ServerId, LastHeartbeat>,
    damaged: BTreeSet<(ChunkId, ServerId, DiskId)>,
    /// Open replicas whose writers send nothing, with the time of their server's report.
    quiet: BTreeMap<(ChunkId, ServerId, DiskId), Instant>,
    /// When the first heartbeat came.
    since: Option<Instant>,
    /// What pings say of the servers that send heartbeats.
    reach: BTreeMap<ServerId, ServerReach>,
    rounds: Rounds,
    /// What clients report of them.
    evidence: Evidence,
    /// What clients are answered that ask about them.
    abnormal: Abnormal,
    /// Servers that operators have emptied.
    draining: BTreeSet<ServerId>,
    /// Disks that take much longer than others, and when that was judged.
    slow: SlowDisks,
    slow_judged: Option<Instant>,
    slow_disk_min: Duration,
}

struct LastHeartbeat {
    /// When the last heartbeat came.
    at: Instant,
    /// When the first one of this boot came.
    since: Instant,
    boot: u64,
    seq: u64,
    load: u32,
    /// Highest layout of replicas that it takes.
    layout: u8,
    /// It judges rights by the clock of their issuer.
    by_issuer: bool,
    disks: Vec<DiskReport>,
}

impl LivenessState {
    /// Since when a server whose heartbeats come is not reached: by pings, or as clients report.
    fn unreached(&self, server: ServerId, now: Instant) -> Option<Instant> {
        let reach = self.reach.get(&server)?;
        reach.unreached().or_else(|| self.evidence.unreached(server, now))
    }

    /// Brings the list for clients up to date.
    fn list_abnormal(&mut self, now: Instant) {
        let servers = self.reach.keys().copied();
        let unreached = servers.filter(|server| self.unreached(*server, now).is_some()).collect();
        let disks = |server| self.servers.get(&server).map_or(&[][..], |it| &it.disks);
        let slow = self.slow.servers(disks);
        self.abnormal.update(unreached, slow, &self.draining, self.reach.len());
    }

    /// Compares the latencies of disks, if that is due.
    fn judge_disks(&mut self, now: Instant) {
        if self.slow_judged.is_some_and(|at| now.since(at) < SLOW_DISK_JUDGED) {
            return;
        }
        self.slow_judged = Some(now);
        let alive = |it: &(_, &LastHeartbeat)| now.since(it.1.at) < self.dead_after;
        let servers = self.servers.iter().map(|(id, heartbeat)| (*id, heartbeat)).filter(alive);
        let disks = servers.map(|(id, heartbeat)| (id, heartbeat.disks.as_slice()));
        for (server, disk, is_slow) in self.slow.judge(disks, self.slow_disk_min, now) {
            match is_slow {
                true => tracing::warn!(%server, %disk, "a disk takes much longer than others"),
                false => tracing::info!(%server, %disk, "a disk is as fast as others again"),
            }
        }
    }

    /// A disk is served by one process: of two live servers that report the same incarnation one
    /// has a copy of its store. The server that reported the disk first has it. Shortly after this
    /// master's start, when that says nothing, it is the one that joined the cluster first.
    fn refuse_copies(
        &mut self,
        server: ServerId,
        disks: &mut [DiskReport],
        now: Instant,
        registered: &ClusterMachine,
    ) {
        let young = now.since(*self.since.get_or_insert(now)) < self.dead_after;
        let reason = |disk: DiskId, other: ServerId| {
            let other = registered.server(other).map_or("another server", |it| it.name.as_str());
            format!(
                "'{other}' serves the same disk {disk}: this is a copy of its store. Stop one of \
                 the two, or format the copy"
            )
        };
        for disk in disks.iter_mut().filter(|disk| disk.disk != DiskId::default()) {
            let id = disk.disk;
            let others = self.servers.iter_mut().filter(|(other, _)| **other != server);
            for (&other, heartbeat) in others {
                if now.since(heartbeat.at) >= self.dead_after {
                    continue;
                }
                let Some(same) = heartbeat.disks.iter_mut().find(|it| it.disk == id) else {
                    continue;
                };
                let first = !young || other < server;
                let (copy, why) = match first {
                    true => (&mut *disk, reason(id, other)),
                    false => (same, reason(id, server)),
                };
                tracing::debug!(%server, %other, disk = %id, "two servers report one disk");
                *copy = DiskReport {
                    disk: DiskId::default(),
                    failed: true,
                    reason: why,
                    ..copy.clone()
                };
                break;
            }
        }
    }
}

impl Liveness {
    /// No heartbeats yet.
    pub fn new(config: LivenessConfig) -> Liveness {
        Liveness(Rc::new(RefCell::new(LivenessState {
            dead_after: config.dead_after,
            servers: BTreeMap::new(),
            damaged: BTreeSet::new(),
            quiet: BTreeMap::new(),
            since: None,
            reach: BTreeMap::new(),
            rounds: Rounds::default(),
            evidence: Evidence::new(config.report_hosts),
            abnormal: Abnormal::new(config.boot, config.abnormal_share),
            draining: BTreeSet::new(),
            slow: SlowDisks::default(),
            slow_judged: None,
            slow_disk_min: config.slow_disk_min,
        })))
    }

    /// False while this master reaches fewer than half of the servers: it is cut off itself.
    pub fn reaches_servers(&self) -> bool {
        !self.0.borrow().rounds.is_cut_off()
    }

    /// Without a heartbeat for so long a server is dead.
    pub fn dead_after(&self) -> Duration {
        self.0.borrow().dead_after
    }

    /// A heartbeat of a registered server came at `now`.
    pub fn hear(&self, heartbeat: Heartbeat, now: Instant, registered: &ClusterMachine) {
        let state = &mut *self.0.borrow_mut();
        // Those of partitions that others lead may fill it. All are reported again while they last.
        if state.damaged.len() + heartbeat.damaged.len() > DAMAGED_MAX {
            state.damaged.clear();
        }
        for (disk, chunk) in heartbeat.damaged {
            state.damaged.insert((chunk, heartbeat.server, disk));
        }
        if state.quiet.len() + heartbeat.quiet.len() > DAMAGED_MAX {
            state.quiet.clear(); // Reported again while it lasts.
        }
        for (disk, chunk) in heartbeat.quiet {
            state.quiet.insert((chunk, heartbeat.server, disk), now);
        }
        let known = state.servers.get(&heartbeat.server);
        if known.is_some_and(|known| known.boot == heartbeat.boot && known.seq >= heartbeat.seq) {
            return; // Overtaken by a later one.
        }
        let mut disks = heartbeat.disks;
        disks.truncate(DISKS_MAX);
        let Heartbeat { server, boot, seq, load, layout, by_issuer, .. } = heartbeat;
        let since = known.filter(|known| known.boot == boot).map_or(now, |known| known.since);
        if since == now {
            // Another process, which may be reached.
            state.reach.remove(&server);
            state.evidence.forget_server(server);
        }
        let gap = state.dead_after / 4;
        state.reach.entry(server).or_insert(ServerReach::new(now)).note_heartbeat(now, gap);
        state.refuse_copies(server, &mut disks, now, registered);
        let at = now;
        let last = LastHeartbeat { at, since, boot, seq, load, layout, by_issuer, disks };
        state.servers.insert(server, last);
    }

    /// Judges the answers to pings so far, and returns the servers that are to be pinged now: those
    /// whose heartbeats come, if they are several. Called at intervals of [`SERVER_PING`](crate::limits::SERVER_PING).
    pub fn ping_round(
        &self,
        registered: &ClusterMachine,
        now: Instant,
    ) -> Vec<(ServerId, SocketAddr)> {
        let state = &mut *self.0.borrow_mut();
        let LivenessState { dead_after, servers, reach, rounds, .. } = state;
        // One that is dead is pinged from its next heartbeat on.
        reach.retain(|server, _| {
            servers.get(server).is_some_and(|heartbeat| now.since(heartbeat.at) < *dead_after)
        });
        for (server, unreached) in rounds.begin(reach, now) {
            let name = registered.server(server).map_or("", |server| server.name.as_str());
            match unreached {
                true => tracing::warn!(
                    %server,
                    name,
                    "chunkserver answers no ping, though its heartbeats come: it gets no new chunks. \
                     Check what is sent to its address, such as a firewall's rules"
                ),
                false => tracing::info!(%server, name, "chunkserver answers pings again"),
            }
        }
        state.evidence.forget(now);
        state.draining = registered.orders().draining().collect();
        state.judge_disks(now);
        state.list_abnormal(now);
        if state.reach.len() < 2 {
            return Vec::new(); // Nothing would follow.
        }
        let addr = |server: &ServerId| Some((*server, registered.server(*server)?.addr));
        state.reach.keys().filter_map(addr).collect()
    }

    /// A client on the host `from`, if that is known, reports that it does not reach a server.
    pub fn report_unreached(
        &self,
        server: ServerId,
        from: Option<IpAddr>,
        now: Instant,
    ) -> Reported {
        let state = &mut *self.0.borrow_mut();
        let all = state.reach.len();
        if all < 2 || !state.reach.contains_key(&server) {
            return Reported::default(); // Heartbeats decide about others, as about single ones.
        }
        let judges = !state.rounds.is_cut_off();
        let reported = state.evidence.note(server, from, (all, judges), now);
        if reported.unreached {
            tracing::debug!(%server, "clients of several hosts do not reach a chunkserver");
            state.list_abnormal(now);
        }
        reported
    }

    /// The ping that a report has started at `sent` has ended. True when the server counts as unreached
    /// for it.
    pub fn report_pinged(
        &self,
        server: ServerId,
        answered: bool,
        sent: Instant,
        now: Instant,
    ) -> bool {
        let state = &mut *self.0.borrow_mut();
        if state.servers.get(&server).is_some_and(|heartbeat| sent < heartbeat.since) {
            return false; // It was a ping of a process that is gone.
        }
        let since =
            Instant::from_nanos(sent.as_nanos().saturating_sub(2 * SERVER_PING.as_nanos() as u64));
        let failed = !answered && reaches_half(&state.reach, server, since);
        let unreached = state.evidence.pinged(server, failed, state.reach.len(), now);
        if unreached {
            tracing::debug!(%server, "a client does not reach a chunkserver, nor does this master");
            state.list_abnormal(now);
        }
        unreached
    }

    /// Who is abnormal, for a client that has the list at `known`.
    pub fn abnormal(&self, known: Option<AbnormalVersion>) -> AbnormalServers {
        self.0.borrow().abnormal.answer(known)
    }

    /// A server has answered the ping that was sent at `sent`.
    pub fn answered(&self, server: ServerId, sent: Instant) {
        if let Some(reach) = self.0.borrow_mut().reach.get_mut(&server) {
            reach.note_answer(sent);
        }
    }

    /// True while heartbeats of `server` come.
    pub fn is_alive(&self, server: ServerId, now: Instant) -> bool {
        let state = self.0.borrow();
        state
            .servers
            .get(&server)
            .is_some_and(|heartbeat| now.since(heartbeat.at) < state.dead_after)
    }

    /// When the last heartbeat of `server` came here.
    pub fn heard_at(&self, server: ServerId) -> Option<Instant> {
        self.0.borrow().servers.get(&server).map(|heartbeat| heartbeat.at)
    }

    /// All servers of the cluster with what their heartbeats say, for placement and repair.
    pub fn view(&self, registered: &ClusterMachine, now: Instant, unix_s: u64) -> ClusterView {
        let state = self.0.borrow();
        let view = |(id, server): (ServerId, &super::Server)| {
            let heartbeat = state.servers.get(&id);
            let standing = registered.standing(id);
            let opened = |disk: &&DiskReport| disk.disk != DiskId::default();
            let disk = |disk: &DiskReport| DiskView {
                disk: disk.disk,
                capacity: disk.capacity,
                used: disk.used,
                failed: disk.failed,
                addr: disk.addr,
            };
            ServerView {
                server: id,
                addr: server.addr,
                domain: server.domain.clone(),
                alive: heartbeat
                    .is_some_and(|heartbeat| now.since(heartbeat.at) < state.dead_after),
                reached: state.unreached(id, now).is_none(),
                load: heartbeat.map_or(0, |heartbeat| heartbeat.load),
                rows: heartbeat.is_none_or(|heartbeat| heartbeat.layout >= wire::row::LAYOUT),
                fragments: heartbeat
                    .is_none_or(|heartbeat| heartbeat.layout >= wire::row::LAYOUT_CODED),
                by_issuer: heartbeat.is_none_or(|heartbeat| heartbeat.by_issuer),
                disks: heartbeat.map_or(Vec::new(), |heartbeat| {
                    heartbeat.disks.iter().filter(opened).map(disk).collect()
                }),
                draining: standing.drains.is_some(),
                maintained: unix_s < standing.maintained_until_s,
            }
        };
        let orders = registered.orders();
        let view = ClusterView::new(registered.members().map(view).collect());
        view.with_orders(orders.balance_paused, orders.left().collect())
    }

    /// All servers of the cluster, for operators.
    pub fn status(
        &self,
        registered: &ClusterMachine,
        now: Instant,
        unix_s: u64,
    ) -> Vec<ServerStatus> {
        let state = self.0.borrow();
        let status = |(server, known): (ServerId, &super::Server)| {
            let heartbeat = state.servers.get(&server);
            let standing = registered.standing(server);
            let maintenance_s = standing.maintained_until_s.saturating_sub(unix_s);
            ServerStatus {
                server,
                name: known.name.clone(),
                addr: known.addr,
                domain: known.domain.clone(),
                alive: heartbeat
                    .is_some_and(|heartbeat| now.since(heartbeat.at) < state.dead_after),
                unreached_ms: state.unreached(server, now).map(|since| millis(now.since(since))),
                heard_ms: heartbeat.map(|heartbeat| millis(now.since(heartbeat.at))),
                disks: heartbeat.map_or(Vec::new(), |heartbeat| heartbeat.disks.clone()),
                draining: standing.drains.is_some(),
                maintenance_ms: (maintenance_s > 0).then_some(maintenance_s * 1000),
                slow_disks: state.slow.of(server),
            }
        };
        registered.members().map(status).collect()
    }

    /// Takes up to `limit` reports of damaged replicas of stream partition `partition`.
    pub fn take_damaged(&self, partition: u16, limit: usize) -> Vec<(ChunkId, ServerId, DiskId)> {
        let damaged = &mut self.0.borrow_mut().damaged;
        damaged.extract_if(reports_of(partition), |_| true).take(limit).collect()
    }

    /// Takes the reports of open replicas of stream partition `partition` whose writers send
    /// nothing, with the time of the heartbeat.
    pub fn take_quiet(&self, partition: u16) -> Vec<(ChunkId, ServerId, DiskId, Instant)> {
        let quiet = &mut self.0.borrow_mut().quiet;
        let of_partition = quiet.extract_if(reports_of(partition), |_, _| true);
        of_partition.map(|((chunk, server, disk), at)| (chunk, server, disk, at)).collect()
    }
}

/// Reports about chunks of a stream partition, which follow each other: a walk over all, with each heartbeat and
/// for each partition, would meet those of partitions that other masters lead.
fn reports_of(partition: u16) -> RangeInclusive<(ChunkId, ServerId, DiskId)> {
    let first = ChunkId::compose(partition, 0);
    let last = ChunkId::compose(partition, ID_COUNTER_END - 1);
    let (server, disk) = (ServerId::new(u32::MAX), DiskId::new(u128::MAX));
    (first, ServerId::new(0), DiskId::new(0))..=(last, server, disk)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
