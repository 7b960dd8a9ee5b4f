//! [`Machine`]: the manager's protocol. Requests and time go in; answers, rows to be stored and
//! servers with news come out. It does no I/O.
//!
//! An answer may be given when all rows of the time are durable. A lease may be granted at once:
//! it says only that the manager led when it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base::GIB;
use block_proto::answers::AnswerTimes;
use block_proto::lease::{LEASE, RENEW};
use block_proto::{
    BlockReply, BlockRequest, BlockServerId, BlockServerStatus, BlockStatus, NamedSettings,
    SegmentPlace, VolumeInfo,
};
use block_volume::ids::{SegmentId, VolumeId};
use runtime::{Duration, Instant};
use tenancy::Fleet;
use tenancy::fleet::{Member, Times};

use super::cut::Snapshots;
use super::entity::{Counters, PendingDelete};
use super::error::Refusal;
use super::limits::{
    LINK_ATTEMPT, PAGE_BYTES, PAGE_ENTRY, PAUSED, PURGE_AFTER, ROWS_TOGETHER, SERVER_DEAD, TICK,
    UNREACHED,
};
use super::peers::Peers;
use super::presence::Presence;
use super::refusals::Refusals;
use super::rows::{Key, Row, Value};
use super::state::ManagerState;

/// Configuration of a manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The manager's name, as it is shown.
    pub name: String,
    /// Its term: the fencing token of its lock, larger than those of all leaders before it.
    pub term: u64,
    /// Bytes of the smallest volume.
    pub bytes_least: u64,
    /// A lease.
    pub lease: Duration,
    /// A block server without a heartbeat for this long is dead.
    pub server_dead: Duration,
    /// A block server whose heartbeats come, and that answers no ping for this long, is not reached.
    pub unreached: Duration,
    /// Volumes at most.
    pub volumes_max: usize,
    /// Time for which the data of deleted volumes is kept.
    pub undelete: Duration,
    /// First epochs of new volumes.
    pub first: FirstEpochs,
}

/// Epochs of a new volume begin behind these: 0, but in the simulator. Numbers of volumes and of block servers begin
/// with the same values, so that they come near the ends of their ranges too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FirstEpochs {
    /// Of owners of its segments.
    pub owner: u64,
    /// Of its attachments.
    pub attachment: u32,
}

impl FirstEpochs {
    /// Numbers that come first in a cluster: 1, but in the simulator. 0 is no number.
    pub fn counters(self) -> Counters {
        Counters { volume: self.owner.max(1), server: self.attachment.max(1) }
    }
}

impl Config {
    /// The defaults, for a term.
    pub fn new(name: &str, term: u64) -> Config {
        Config {
            name: name.to_owned(),
            term,
            bytes_least: GIB,
            lease: LEASE,
            server_dead: SERVER_DEAD,
            unreached: UNREACHED,
            volumes_max: super::limits::VOLUMES_MAX,
            undelete: super::limits::UNDELETE,
            first: FirstEpochs::default(),
        }
    }
}

/// Cuts a page to `limit` entries, and to the bytes that an answer may have; true when something is
/// left for the next one. Each page has one entry at least.
fn cut_page<T>(page: &mut Vec<T>, limit: u32, bytes: impl Fn(&T) -> usize) -> bool {
    let mut sum = 0;
    let fits = page.iter().take(limit as usize).take_while(|&entry| {
        sum += bytes(entry);
        sum <= PAGE_BYTES
    });
    let fits = fits.count().max(1);
    let more = fits < page.len();
    page.truncate(fits);
    more
}

/// Remaining time of a deleted volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// The stored time, and when this leader read it.
    pub(super) stored: Duration,
    pub(super) since: Instant,
}

impl Left {
    pub(super) fn at(self, now: Instant) -> Duration {
        self.stored.saturating_sub(now - self.since)
    }
}

/// A manager while it leads.
#[derive(Debug)]
pub struct Machine {
    pub(super) config: Config,
    pub(super) state: ManagerState,
    /// Block servers and their leases.
    pub(super) fleet: Fleet<BlockServerId, SegmentId>,
    /// Managers and front ends.
    peers: Peers,
    /// Attachments, and what was heard of their clients.
    pub(super) kept: BTreeMap<(VolumeId, u64), Presence>,
    /// Segments that were moved for balance, and when.
    pub(super) moved: BTreeMap<SegmentId, Instant>,
    pub(super) moves: u64,
    pub(super) snapshots: Snapshots,
    pub(super) refusals: Refusals,
    /// Deleted volumes, without their snapshots.
    pub(super) left: BTreeMap<VolumeId, Left>,
    pub(super) balanced: Instant,
    pub(super) answer_times: AnswerTimes,
    /// Since when this leader knows of a pending delete.
    pending_since: BTreeMap<PendingDelete, Instant>,
    /// When [`Machine::tick`] is due.
    tick_due: Instant,
    /// Until then this manager leads for certain.
    leads_until: Instant,
    rows: Vec<Row>,
    /// Indices of rows that need not be stored together with those before them.
    parts: Vec<usize>,
}

impl Machine {
    /// A manager that begins to lead now, with what its table holds. Leases granted before are
    /// honoured for a full term.
    pub fn new(config: Config, state: ManagerState, now: Instant) -> Machine {
        let Config { lease, server_dead: dead, unreached, .. } = config;
        let times = Times { lease, dead, unreached };
        let servers = state.servers().map(|(id, _)| id);
        let owned = state.segments().filter_map(|(id, segment)| Some((segment.owner?, id)));
        let fleet = Fleet::new(times, now, servers, owned);
        // The leader before may have sent links just before its end.
        let since = |one| if state.is_given_up(one) { now + LINK_ATTEMPT } else { now };
        let pending_since = state.pending_deletes().map(|one| (one, since(one))).collect();
        let mut machine = Machine {
            config,
            fleet,
            peers: Peers::default(),
            kept: BTreeMap::new(),
            moved: BTreeMap::new(),
            moves: 0,
            snapshots: Snapshots::default(),
            refusals: Refusals::default(),
            left: BTreeMap::new(),
            balanced: now,
            answer_times: AnswerTimes::default(),
            pending_since,
            tick_due: now,
            leads_until: now,
            rows: Vec::new(),
            parts: Vec::new(),
            state,
        };
        for (id, volume) in machine.state.volumes() {
            for attached in &volume.attached {
                machine.kept.insert((id, attached.epoch), Presence::begun(now));
            }
        }
        machine.inherit(now);
        machine.inherit_deleted(now);
        machine
    }

    /// Sets until when this manager leads for certain, by its own clock.
    pub fn lead_until(&mut self, until: Instant) {
        self.leads_until = self.leads_until.max(until);
    }

    /// True while it leads for certain.
    pub fn leads(&self, now: Instant) -> bool {
        now < self.leads_until
    }

    /// The state that it stores.
    pub fn state(&self) -> &ManagerState {
        &self.state
    }

    /// Answers a request.
    pub fn handle(&mut self, now: Instant, request: BlockRequest) -> Result<BlockReply, Refusal> {
        match request {
            BlockRequest::Create { nonce, spec } => self.create(now, nonce, spec),
            BlockRequest::Remove { volume, force } => self.remove(now, volume, force),
            BlockRequest::Resize { volume, bytes, force } => self.resize(now, volume, bytes, force),
            BlockRequest::Set { volume, limits, shared, policy } => {
                self.set(volume, (limits, shared, NamedSettings::ALL), policy)
            }
            BlockRequest::Change { volume, limits, shared, policy, named } => {
                self.set(volume, (limits, shared, named), policy)
            }
            BlockRequest::Undelete { volume, name } => self.undelete(now, volume, name.as_deref()),
            BlockRequest::Delete { .. }
            | BlockRequest::RemoveDeleted { .. }
            | BlockRequest::ListDeleted { .. }
            | BlockRequest::Snapshot { .. }
            | BlockRequest::Clone { .. }
            | BlockRequest::Rollback { .. }
            | BlockRequest::Flatten { .. } => {
                unreachable!("they need block servers or a calendar, and are dealt with before")
            }
            BlockRequest::Find { name } => {
                let id = self.state.find(&name).ok_or(Refusal::NoName(name))?;
                self.volume_reply(id)
            }
            BlockRequest::List { after, limit } => Ok(self.list(after.as_deref(), limit)),
            BlockRequest::Map { volume, from, limit } => self.map(volume, from, limit),
            BlockRequest::Attach { name, nonce, holder } => self.attach(now, &name, nonce, &holder),
            BlockRequest::Keep { attachments } => Ok(self.keep(now, attachments)),
            BlockRequest::Detach { volume, epoch } => Ok(self.detach(volume, epoch)),
            BlockRequest::Admit { segment, epoch, attachment } => {
                Ok(self.admit(now, (segment, epoch), attachment))
            }
            // Pings have found out by now.
            BlockRequest::Doubt { segment, .. } => self.map(segment.volume, segment.index, 1),
            BlockRequest::Register { name, addr } => self.register(now, &name, addr),
            BlockRequest::Heartbeat(heartbeat) => {
                self.heartbeat(now, heartbeat).map(BlockReply::Grant)
            }
            BlockRequest::Here { role, name, addr } => {
                self.peers.heard(now, role, name, addr);
                Ok(BlockReply::Done)
            }
            BlockRequest::Status => Ok(BlockReply::Status(self.status(now))),
        }
    }

    /// Time has passed. Returns when to call it again: the next silent server is dead then.
    pub fn tick(&mut self, now: Instant) -> Instant {
        if self.stood_still(now) {
            self.fleet.excuse_silence(now);
            self.kept.values_mut().for_each(|presence| presence.excuse(now));
        }
        for server in self.fleet.condemn(now, &self.state) {
            tracing::warn!(%server, "block server is silent: others take its segments");
        }
        self.adopt(now);
        self.fleet.end_holds(now);
        self.balance(now);
        self.rest_snapshots(now);
        let next = self.fleet.next_death(&self.state);
        // Until the first heartbeat that comes without a tick.
        let latest = now + if self.fleet.has_heard() { self.config.server_dead } else { RENEW };
        let judged = self.fleet.judges_at().filter(|&at| at > now);
        let next = next.into_iter().chain(judged).min().unwrap_or(latest);
        self.tick_due = next.clamp(now + TICK, latest.max(now + TICK));
        self.tick_due
    }

    /// True when this manager stood still just before: heartbeats and renewals may wait to be read.
    pub(super) fn stood_still(&self, now: Instant) -> bool {
        now - self.tick_due > PAUSED
    }

    /// True when there is nothing to serve, so that no client waits for a successor of this manager.
    pub fn is_idle(&self) -> bool {
        self.state.named_count() == 0
    }

    /// Rows to be stored, in order.
    pub fn take_rows(&mut self) -> Vec<Row> {
        self.parts.clear();
        std::mem::take(&mut self.rows)
    }

    /// Rows to be stored, in order: those of each change whole or not at all.
    pub fn take_changes(&mut self) -> Vec<Vec<Row>> {
        let parts = std::mem::take(&mut self.parts);
        let (mut changes, mut rows) = (Vec::new(), self.take_rows());
        // From the back, so that each row is moved once or twice.
        let mut end = rows.len();
        for (index, &at) in parts.iter().enumerate().rev() {
            let before = index.checked_sub(1).map_or(0, |before| parts[before]);
            if end - before > ROWS_TOGETHER && at < end {
                changes.push(rows.split_off(at));
                end = at;
            }
        }
        changes.push(rows);
        changes.retain(|change| !change.is_empty());
        changes.reverse();
        changes
    }

    /// Changes from now on need not be stored together with those before. The owner of a segment
    /// does not concern other segments, and a server may own them all.
    pub(super) fn next_change(&mut self) {
        if self.parts.last() != Some(&self.rows.len()) {
            self.parts.push(self.rows.len());
        }
    }

    /// Block servers that should send a heartbeat now, for there is news for them.
    pub fn take_news(&mut self) -> Vec<SocketAddr> {
        let news = self.fleet.take_news();
        news.into_iter().filter_map(|id| Some(self.state.server(id)?.addr)).collect()
    }

    /// Files that may be removed now.
    pub fn due_deletes(&self, now: Instant) -> Vec<PendingDelete> {
        let due = self.pending_since.iter().filter(|&(_, &since)| now - since >= PURGE_AFTER);
        due.map(|(&pending_delete, _)| pending_delete).collect()
    }

    /// Removes directories of volumes that are gone: they become pending deletes. IDs are not reused.
    pub fn discard_strays(&mut self, now: Instant, found: impl Iterator<Item = VolumeId>) {
        let next = self.state.counters().volume;
        for volume in found {
            let is_known =
                self.state.volume(volume).is_some() || self.state.has_pending_deletes(volume);
            if !is_known && volume.get() < next {
                tracing::warn!(%volume, "files of a volume that is gone: they are removed");
                self.discard(now, PendingDelete { volume, segment: None }, 0);
            }
        }
    }

    /// The files are gone.
    pub fn purged(&mut self, pending_delete: PendingDelete) {
        if self.pending_since.remove(&pending_delete).is_some() {
            self.change(Row::delete(Key::PendingDelete(pending_delete)));
        }
    }

    /// Address of a segment's owner.
    pub fn owner_addr(&self, id: SegmentId) -> Option<SocketAddr> {
        Some(self.state.server(self.state.segment(id)?.owner?)?.addr)
    }

    pub(super) fn change(&mut self, row: Row) {
        self.state.apply(row.clone());
        self.rows.push(row);
    }

    pub(super) fn put(&mut self, key: Key, value: Value) {
        self.change(Row::put(key, value));
    }

    pub(super) fn discard(&mut self, now: Instant, pending_delete: PendingDelete, nonce: u64) {
        self.put(Key::PendingDelete(pending_delete), Value::PendingDelete { nonce });
        self.pending_since.insert(pending_delete, now);
    }

    pub(super) fn volume_reply(&self, id: VolumeId) -> Result<BlockReply, Refusal> {
        self.state.info(id).map(BlockReply::Volume).ok_or(Refusal::NoVolume(id))
    }

    fn list(&self, after: Option<&str>, limit: u32) -> BlockReply {
        let is_whole = |id: &VolumeId| self.state.volume(*id).is_some_and(|v| !v.family.making);
        let found = self.state.list(after).filter(is_whole).take(limit as usize + 1);
        let mut volumes: Vec<_> = found.filter_map(|id| self.state.info(id)).collect();
        let bytes = |info: &VolumeInfo| {
            let holders = info.attachments.iter().map(|one| one.holder.len() + PAGE_ENTRY);
            PAGE_ENTRY + info.spec.name.len() + holders.sum::<usize>()
        };
        let more = cut_page(&mut volumes, limit, bytes);
        BlockReply::Volumes { volumes, more }
    }

    fn map(&self, volume: VolumeId, from: u32, limit: u32) -> Result<BlockReply, Refusal> {
        if self.state.volume(volume).is_none_or(|known| known.deleted.is_some()) {
            return Err(Refusal::NoVolume(volume));
        }
        let place = |(id, segment): (SegmentId, super::entity::Segment)| {
            let server = segment.owner.and_then(|owner| self.state.server(owner));
            SegmentPlace {
                index: id.index,
                epoch: segment.epoch,
                server: segment.owner,
                name: server.map(|server| server.name.clone()).unwrap_or_default(),
                addr: server.map(|server| server.addr),
                serving: self.fleet.serves(id, segment.owner),
                cause: match self.fleet.serves(id, segment.owner) {
                    true => String::new(),
                    false => self.cause(id, segment.owner),
                },
            }
        };
        let mut segments: Vec<_> =
            self.state.segments_of(volume, from).take(limit as usize + 1).map(place).collect();
        let bytes = |place: &SegmentPlace| PAGE_ENTRY + place.name.len() + place.cause.len();
        let more = cut_page(&mut segments, limit, bytes);
        Ok(BlockReply::Map { segments, more })
    }

    fn status(&mut self, now: Instant) -> BlockStatus {
        let peers = self.peers.list(now);
        let server = |(server, known): (BlockServerId, &super::entity::Server)| {
            let member = self.fleet.get(server);
            let (iops, bytes) = member.map_or((0, 0), Member::load);
            BlockServerStatus {
                server,
                name: known.name.clone(),
                addr: known.addr,
                alive: member.is_some_and(Member::is_alive),
                leaving: member.is_some_and(Member::is_leaving),
                unreached: member.is_some_and(Member::is_unreached),
                segments: self.state.owned_count(server) as u32,
                iops,
                bytes,
            }
        };
        let dead = self.fleet.iter().filter(|(_, member)| !member.is_alive());
        let left: usize = dead.map(|(id, _)| self.state.owned_count(id)).sum();
        BlockStatus {
            manager: self.config.name.clone(),
            term: self.config.term,
            volumes: self.state.named_count() as u64,
            removing: self.state.pending_deletes().count() as u64,
            orphans: (self.state.orphans().count() + left) as u64,
            moves: self.moves,
            servers: self.state.servers().map(server).collect(),
            peers,
        }
    }
}
