//! Cluster messages.

use base::{ChunkId, ClusterId, DiskId, FileId, FormationId, ServerId};

use super::envelope::change;
use super::{Proto, WireError, all, need, pb};
use crate::control::check::{
    addr_bytes, addr_from, bounded, cut, each, label, range, range_u8, text, u16_from, u128_bytes,
    u128_from,
};
use crate::control::limits::{
    ABNORMAL_MAX, DAMAGED_MAX, DISKS_MAX, DRAINING_MAX, GROUPS_MAX, HELD_FILES_MAX, LABEL_MAX,
    LOCK_TTL_MAX_MS, LOCK_TTL_MIN_MS, LOST_CHUNKS_MAX, MAINTENANCE_MAX_MS, MASTERS_MAX, REASON_MAX,
    SERVERS_MAX, STOPPED_MAX,
};
use crate::control::{
    AbnormalServer, AbnormalServers, AbnormalVersion, BackgroundWork, CallClass, CallKind,
    ClusterInfo, ClusterReply, ClusterRequest, ClusterStatus, DiskReport, DiskTimes, Group,
    Heartbeat, Holdings, IssuerClock, LockChange, Losses, LostChunk, MasterInfo, MemberChange,
    Registration, RepairStatus, ServerOrder, ServerStatus, StoppedCollection,
};
use crate::token::Issuer;
use base::limits::PATH_MAX;

fn master_id(id: u64, field: &'static str) -> Result<u64, WireError> {
    range(id, 1..=u64::MAX, field)
}

fn disk_bytes(disks: &[DiskId]) -> Vec<Vec<u8>> {
    disks.iter().map(|disk| u128_bytes(disk.get())).collect()
}

fn disks_from(disks: Vec<Vec<u8>>, field: &'static str) -> Result<Vec<DiskId>, WireError> {
    each(disks, DISKS_MAX, field, |disk| Ok(DiskId::new(u128_from(&disk, field)?)))
}

fn group(number: u32) -> Result<Group, WireError> {
    Group::from_number(number)
        .ok_or(WireError::OutOfRange { field: "group", value: u64::from(number) })
}

impl Proto for MasterInfo {
    type Pb = pb::MasterInfo;

    fn to_pb(&self) -> pb::MasterInfo {
        pb::MasterInfo { id: self.id, name: self.name.clone(), addr: addr_bytes(self.addr) }
    }

    fn from_pb(pb: pb::MasterInfo) -> Result<MasterInfo, WireError> {
        Ok(MasterInfo {
            id: master_id(pb.id, "MasterInfo.id")?,
            name: label(pb.name, "MasterInfo.name")?,
            addr: addr_from(&pb.addr, "MasterInfo.addr")?,
        })
    }
}

impl Proto for Registration {
    type Pb = pb::Registration;

    fn to_pb(&self) -> pb::Registration {
        pb::Registration {
            name: self.name.clone(),
            addr: addr_bytes(self.addr),
            domain: self.domain.clone(),
        }
    }

    fn from_pb(pb: pb::Registration) -> Result<Registration, WireError> {
        Ok(Registration {
            name: label(pb.name, "Registration.name")?,
            addr: addr_from(&pb.addr, "Registration.addr")?,
            domain: label(pb.domain, "Registration.domain")?,
        })
    }
}

impl Proto for DiskReport {
    type Pb = pb::DiskReport;

    fn to_pb(&self) -> pb::DiskReport {
        pb::DiskReport {
            disk: u128_bytes(self.disk.get()),
            path: self.path.clone(),
            capacity: self.capacity,
            used: self.used,
            chunks: self.chunks,
            failed: self.failed,
            reason: cut(&self.reason, REASON_MAX).to_owned(),
            addr: self.addr.map(addr_bytes).unwrap_or_default(),
            background: self
                .background
                .map(|BackgroundWork { share, waiting }| pb::BackgroundWork { share, waiting }),
            times: all(&self.times),
        }
    }

    fn from_pb(pb: pb::DiskReport) -> Result<DiskReport, WireError> {
        Ok(DiskReport {
            disk: DiskId::new(u128_from(&pb.disk, "DiskReport.disk")?),
            path: text(pb.path, 0..=PATH_MAX, "DiskReport.path")?,
            capacity: pb.capacity,
            used: pb.used,
            chunks: pb.chunks,
            failed: pb.failed,
            reason: text(pb.reason, 0..=REASON_MAX, "DiskReport.reason")?,
            addr: match pb.addr.is_empty() {
                true => None,
                false => Some(addr_from(&pb.addr, "DiskReport.addr")?),
            },
            background: pb
                .background
                .map(|pb::BackgroundWork { share, waiting }| BackgroundWork { share, waiting }),
            times: each(pb.times, CallClass::COUNT, "DiskReport.times", Proto::from_pb)?,
        })
    }
}

impl Proto for DiskTimes {
    type Pb = pb::DiskTimes;

    fn to_pb(&self) -> pb::DiskTimes {
        let DiskTimes { class, p50_us: p50, p99_us: p99 } = *self;
        let (appends, size) = (class.kind == CallKind::Append, class.size as u32);
        pb::DiskTimes { appends, size, p50, p99 }
    }

    fn from_pb(pb: pb::DiskTimes) -> Result<DiskTimes, WireError> {
        let pb::DiskTimes { appends, size, p50, p99 } = pb;
        let kind = if appends { CallKind::Append } else { CallKind::Read };
        let is_it = |class: &CallClass| class.kind == kind && class.size as u32 == size;
        let class = CallClass::all()
            .find(is_it)
            .ok_or(WireError::OutOfRange { field: "DiskTimes.size", value: size.into() })?;
        Ok(DiskTimes { class, p50_us: p50, p99_us: p99 })
    }
}

impl Proto for Heartbeat {
    type Pb = pb::Heartbeat;

    fn to_pb(&self) -> pb::Heartbeat {
        let replica = |&(disk, chunk): &(DiskId, ChunkId)| pb::DamagedReplica {
            disk: u128_bytes(disk.get()),
            chunk: chunk.get(),
        };
        pb::Heartbeat {
            server: self.server.get(),
            addr: addr_bytes(self.addr),
            boot: self.boot,
            seq: self.seq,
            disks: all(&self.disks),
            damaged: self.damaged.iter().map(replica).collect(),
            load: self.load,
            quiet: self.quiet.iter().map(replica).collect(),
            layout: self.layout.into(),
            by_issuer: self.by_issuer,
        }
    }

    fn from_pb(pb: pb::Heartbeat) -> Result<Heartbeat, WireError> {
        Ok(Heartbeat {
            server: ServerId::new(pb.server),
            addr: addr_from(&pb.addr, "Heartbeat.addr")?,
            boot: pb.boot,
            seq: range(pb.seq, 1..=u64::MAX, "Heartbeat.seq")?,
            disks: each(pb.disks, DISKS_MAX, "Heartbeat.disks", Proto::from_pb)?,
            damaged: each(pb.damaged, DAMAGED_MAX, "Heartbeat.damaged", replica_from)?,
            load: pb.load,
            quiet: each(pb.quiet, DAMAGED_MAX, "Heartbeat.quiet", replica_from)?,
            layout: range_u8(pb.layout, 0..=u8::MAX, "Heartbeat.layout")?,
            by_issuer: pb.by_issuer,
        })
    }
}

fn replica_from(one: pb::DamagedReplica) -> Result<(DiskId, ChunkId), WireError> {
    let disk = u128_from(&one.disk, "DamagedReplica.disk")?;
    Ok((DiskId::new(disk), ChunkId::new(one.chunk)))
}

fn ttl(ttl_ms: u64, field: &'static str) -> Result<u64, WireError> {
    range(ttl_ms, LOCK_TTL_MIN_MS..=LOCK_TTL_MAX_MS, field)
}

impl Proto for LockChange {
    type Pb = pb::LockChange;

    fn to_pb(&self) -> pb::LockChange {
        use pb::lock_change::{Acquire, Change, Release, Renew};
        let change = match self.clone() {
            LockChange::Acquire { name, owner, ttl_ms } => {
                Change::Acquire(Acquire { name, owner, ttl_ms })
            }
            LockChange::Renew { name, fencing, ttl_ms } => {
                Change::Renew(Renew { name, fencing, ttl_ms })
            }
            LockChange::Release { name, fencing } => Change::Release(Release { name, fencing }),
        };
        pb::LockChange { change: Some(change) }
    }

    fn from_pb(pb: pb::LockChange) -> Result<LockChange, WireError> {
        use pb::lock_change::Change;
        Ok(match pb.change.ok_or(WireError::Missing { field: "LockChange.change" })? {
            Change::Acquire(pb) => LockChange::Acquire {
                name: label(pb.name, "LockChange.Acquire.name")?,
                owner: text(pb.owner, 0..=LABEL_MAX, "LockChange.Acquire.owner")?,
                ttl_ms: ttl(pb.ttl_ms, "LockChange.Acquire.ttl_ms")?,
            },
            Change::Renew(pb) => LockChange::Renew {
                name: label(pb.name, "LockChange.Renew.name")?,
                fencing: pb.fencing,
                ttl_ms: ttl(pb.ttl_ms, "LockChange.Renew.ttl_ms")?,
            },
            Change::Release(pb) => LockChange::Release {
                name: label(pb.name, "LockChange.Release.name")?,
                fencing: pb.fencing,
            },
        })
    }
}

impl Proto for MemberChange {
    type Pb = pb::MemberChange;

    fn to_pb(&self) -> pb::MemberChange {
        use pb::member_change::Change;
        let change = match self {
            MemberChange::Add(master) => Change::Add(master.to_pb()),
            MemberChange::Remove { id } => Change::Remove(*id),
        };
        pb::MemberChange { change: Some(change) }
    }

    fn from_pb(pb: pb::MemberChange) -> Result<MemberChange, WireError> {
        use pb::member_change::Change;
        Ok(match pb.change.ok_or(WireError::Missing { field: "MemberChange.change" })? {
            Change::Add(master) => MemberChange::Add(Proto::from_pb(master)?),
            Change::Remove(id) => {
                MemberChange::Remove { id: master_id(id, "MemberChange.remove")? }
            }
        })
    }
}

impl Proto for AbnormalVersion {
    type Pb = pb::AbnormalVersion;

    fn to_pb(&self) -> pb::AbnormalVersion {
        pb::AbnormalVersion { boot: self.boot, changes: self.changes }
    }

    fn from_pb(pb: pb::AbnormalVersion) -> Result<AbnormalVersion, WireError> {
        Ok(AbnormalVersion { boot: pb.boot, changes: pb.changes })
    }
}

impl Proto for AbnormalServer {
    type Pb = pb::AbnormalServer;

    fn to_pb(&self) -> pb::AbnormalServer {
        let AbnormalServer { server, unreached, slow, draining } = *self;
        pb::AbnormalServer { server: server.get(), unreached, slow, draining }
    }

    fn from_pb(pb: pb::AbnormalServer) -> Result<AbnormalServer, WireError> {
        let pb::AbnormalServer { server, unreached, slow, draining } = pb;
        Ok(AbnormalServer { server: ServerId::new(server), unreached, slow, draining })
    }
}

impl Proto for AbnormalServers {
    type Pb = pb::cluster_reply::Abnormal;

    fn to_pb(&self) -> pb::cluster_reply::Abnormal {
        pb::cluster_reply::Abnormal {
            version: Some(self.version.to_pb()),
            full: self.full,
            many: self.many,
            servers: all(&self.servers),
        }
    }

    fn from_pb(pb: pb::cluster_reply::Abnormal) -> Result<AbnormalServers, WireError> {
        let field = "ClusterReply.Abnormal.servers";
        Ok(AbnormalServers {
            version: need(pb.version, "ClusterReply.Abnormal.version")?,
            full: pb.full,
            many: pb.many,
            servers: each(pb.servers, ABNORMAL_MAX, field, Proto::from_pb)?,
        })
    }
}

impl Proto for ServerOrder {
    type Pb = pb::ServerOrder;

    fn to_pb(&self) -> pb::ServerOrder {
        use pb::server_order::Order;
        let order = match self {
            ServerOrder::Drain => Order::Drain(pb::Empty {}),
            ServerOrder::CancelDrain => Order::CancelDrain(pb::Empty {}),
            ServerOrder::Maintain { for_ms } => Order::MaintainMs(*for_ms),
            ServerOrder::EndMaintenance => Order::EndMaintenance(pb::Empty {}),
            ServerOrder::Decommission => Order::Decommission(pb::Empty {}),
            ServerOrder::DecommissionLosing(losses) => Order::DecommissionLosing(losses.to_pb()),
            ServerOrder::ListLosses => Order::ListLosses(pb::Empty {}),
        };
        pb::ServerOrder { order: Some(order) }
    }

    fn from_pb(pb: pb::ServerOrder) -> Result<ServerOrder, WireError> {
        use pb::server_order::Order;
        Ok(match pb.order.ok_or(WireError::Missing { field: "ServerOrder.order" })? {
            Order::Drain(_) => ServerOrder::Drain,
            Order::CancelDrain(_) => ServerOrder::CancelDrain,
            Order::MaintainMs(for_ms) => {
                let for_ms = range(for_ms, 1..=MAINTENANCE_MAX_MS, "ServerOrder.maintain_ms")?;
                ServerOrder::Maintain { for_ms }
            }
            Order::EndMaintenance(_) => ServerOrder::EndMaintenance,
            Order::Decommission(_) => ServerOrder::Decommission,
            Order::DecommissionLosing(pb) => ServerOrder::DecommissionLosing(Losses::from_pb(pb)?),
            Order::ListLosses(_) => ServerOrder::ListLosses,
        })
    }
}

impl Proto for Holdings {
    type Pb = pb::Holdings;

    fn to_pb(&self) -> pb::Holdings {
        pb::Holdings {
            server: self.server.get(),
            partitions: self.partitions.iter().map(|&partition| partition.into()).collect(),
            widest: self.widest.into(),
            replicas: self.replicas,
            open: self.open,
            bytes: self.bytes,
            only: self.only,
            files: self.files.iter().map(|file| file.get()).collect(),
            lost: (self.lost != Losses::default()).then(|| self.lost.to_pb()),
            lost_chunks: all(&self.lost_chunks),
            lost_replicas: self.lost_replicas,
        }
    }

    fn from_pb(pb: pb::Holdings) -> Result<Holdings, WireError> {
        let (partition, file) = ("Holdings.partitions", "Holdings.files");
        let lost = "Holdings.lost_chunks";
        Ok(Holdings {
            server: ServerId::new(pb.server),
            partitions: each(pb.partitions, GROUPS_MAX, partition, |one| u16_from(one, partition))?,
            widest: range(pb.widest, 0..=u64::from(u8::MAX), "Holdings.widest")? as u8,
            replicas: pb.replicas,
            open: pb.open,
            bytes: pb.bytes,
            only: pb.only,
            files: each(pb.files, HELD_FILES_MAX, file, |one| Ok(FileId::new(one)))?,
            // Not said by masters of an older version.
            lost: pb.lost.map(Losses::from_pb).transpose()?.unwrap_or_default(),
            lost_replicas: pb.lost_replicas,
            lost_chunks: each(pb.lost_chunks, LOST_CHUNKS_MAX, lost, Proto::from_pb)?,
        })
    }
}

impl Proto for Losses {
    type Pb = pb::Losses;

    fn to_pb(&self) -> pb::Losses {
        let Losses { chunks, digest } = *self;
        pb::Losses { chunks, digest }
    }

    fn from_pb(pb: pb::Losses) -> Result<Losses, WireError> {
        let pb::Losses { chunks, digest } = pb;
        Ok(Losses { chunks, digest })
    }
}

impl Proto for LostChunk {
    type Pb = pb::LostChunk;

    fn to_pb(&self) -> pb::LostChunk {
        let LostChunk { file, chunk, base, len } = *self;
        pb::LostChunk { file: file.get(), chunk: chunk.get(), base, len }
    }

    fn from_pb(pb: pb::LostChunk) -> Result<LostChunk, WireError> {
        let pb::LostChunk { file, chunk, base, len } = pb;
        Ok(LostChunk { file: FileId::new(file), chunk: ChunkId::new(chunk), base, len })
    }
}

impl Proto for ClusterRequest {
    type Pb = pb::ClusterRequest;

    fn to_pb(&self) -> pb::ClusterRequest {
        use pb::cluster_request::{Abnormal, Ask, Disks, Held, Lock, LockDoubt, Order};
        let ask = match self {
            ClusterRequest::Info => Ask::Info(pb::Empty {}),
            ClusterRequest::Register(registration) => Ask::Register(registration.to_pb()),
            ClusterRequest::Heartbeat(heartbeat) => Ask::Heartbeat(heartbeat.to_pb()),
            ClusterRequest::Status => Ask::Status(pb::Empty {}),
            ClusterRequest::Lock { op, change } => {
                Ask::Lock(Lock { op: Some(op.to_pb()), change: Some(change.to_pb()) })
            }
            ClusterRequest::LockHolder { name } => Ask::LockHolder(name.clone()),
            ClusterRequest::LockDoubt { name, fencing } => {
                Ask::LockDoubt(LockDoubt { name: name.clone(), fencing: *fencing })
            }
            ClusterRequest::Members { change } => Ask::Members(change.to_pb()),
            ClusterRequest::Identify { disks } => Ask::Identify(Disks { disks: disk_bytes(disks) }),
            ClusterRequest::Condemn { disk } => Ask::Condemn(u128_bytes(disk.get())),
            ClusterRequest::Abnormal { known } => {
                Ask::Abnormal(Abnormal { known: known.as_ref().map(Proto::to_pb) })
            }
            ClusterRequest::Order { server, order, dry_run } => {
                let (server, order) = (server.clone(), Some(order.to_pb()));
                Ask::Order(Order { server, order, dry_run: *dry_run })
            }
            ClusterRequest::Held { server, orders } => {
                Ask::Held(Held { server: server.get(), orders: *orders })
            }
            ClusterRequest::PauseBalance { paused } => Ask::PauseBalance(*paused),
        };
        pb::ClusterRequest { ask: Some(ask) }
    }

    fn from_pb(pb: pb::ClusterRequest) -> Result<ClusterRequest, WireError> {
        use pb::cluster_request::Ask;
        Ok(match pb.ask.ok_or(WireError::Missing { field: "ClusterRequest.ask" })? {
            Ask::Info(_) => ClusterRequest::Info,
            Ask::Register(registration) => ClusterRequest::Register(Proto::from_pb(registration)?),
            Ask::Heartbeat(heartbeat) => ClusterRequest::Heartbeat(Proto::from_pb(heartbeat)?),
            Ask::Status(_) => ClusterRequest::Status,
            Ask::Lock(lock) => {
                let (op, change) = change(lock.op, lock.change, "ClusterRequest.Lock.change")?;
                ClusterRequest::Lock { op, change }
            }
            Ask::LockHolder(name) => {
                ClusterRequest::LockHolder { name: label(name, "ClusterRequest.lock_holder")? }
            }
            Ask::LockDoubt(pb) => ClusterRequest::LockDoubt {
                name: label(pb.name, "ClusterRequest.LockDoubt.name")?,
                fencing: pb.fencing,
            },
            Ask::Members(change) => ClusterRequest::Members { change: Proto::from_pb(change)? },
            Ask::Identify(pb) => ClusterRequest::Identify {
                disks: disks_from(pb.disks, "ClusterRequest.Disks.disks")?,
            },
            Ask::Condemn(disk) => {
                let disk = DiskId::new(u128_from(&disk, "ClusterRequest.condemn")?);
                ClusterRequest::Condemn { disk }
            }
            Ask::Abnormal(pb) => {
                ClusterRequest::Abnormal { known: pb.known.map(Proto::from_pb).transpose()? }
            }
            Ask::Order(pb) => ClusterRequest::Order {
                server: label(pb.server, "ClusterRequest.Order.server")?,
                order: need(pb.order, "ClusterRequest.Order.order")?,
                dry_run: pb.dry_run,
            },
            Ask::Held(pb) => {
                ClusterRequest::Held { server: ServerId::new(pb.server), orders: pb.orders }
            }
            Ask::PauseBalance(paused) => ClusterRequest::PauseBalance { paused },
        })
    }
}

impl Proto for ClusterInfo {
    type Pb = pb::ClusterInfo;

    fn to_pb(&self) -> pb::ClusterInfo {
        let leader =
            |&(group, master): &(Group, u64)| pb::GroupLeader { group: group.number(), master };
        pb::ClusterInfo {
            cluster: u128_bytes(self.cluster.get()),
            masters: all(&self.masters),
            namespace_partitions: self.namespace_partitions.into(),
            stream_partitions: self.stream_partitions.into(),
            leaders: self.leaders.iter().map(leader).collect(),
        }
    }

    fn from_pb(pb: pb::ClusterInfo) -> Result<ClusterInfo, WireError> {
        let partitions = |count, field| {
            range(u64::from(u16_from(count, field)?), 1..=u64::from(u16::MAX), field)
                .map(|count| count as u16)
        };
        Ok(ClusterInfo {
            cluster: ClusterId::new(u128_from(&pb.cluster, "ClusterInfo.cluster")?),
            masters: each(pb.masters, MASTERS_MAX, "ClusterInfo.masters", Proto::from_pb)?,
            namespace_partitions: partitions(
                pb.namespace_partitions,
                "ClusterInfo.namespace_partitions",
            )?,
            stream_partitions: partitions(pb.stream_partitions, "ClusterInfo.stream_partitions")?,
            leaders: each(pb.leaders, GROUPS_MAX, "ClusterInfo.leaders", |leader| {
                Ok((group(leader.group)?, master_id(leader.master, "GroupLeader.master")?))
            })?,
        })
    }
}

impl Proto for ServerStatus {
    type Pb = pb::ServerStatus;

    fn to_pb(&self) -> pb::ServerStatus {
        pb::ServerStatus {
            server: self.server.get(),
            name: self.name.clone(),
            addr: addr_bytes(self.addr),
            domain: self.domain.clone(),
            alive: self.alive,
            disks: all(&self.disks),
            unreached_ms: self.unreached_ms,
            heard_ms: self.heard_ms,
            draining: self.draining,
            maintenance_ms: self.maintenance_ms,
            slow_disks: disk_bytes(&self.slow_disks),
        }
    }

    fn from_pb(pb: pb::ServerStatus) -> Result<ServerStatus, WireError> {
        Ok(ServerStatus {
            server: ServerId::new(pb.server),
            name: label(pb.name, "ServerStatus.name")?,
            addr: addr_from(&pb.addr, "ServerStatus.addr")?,
            domain: label(pb.domain, "ServerStatus.domain")?,
            alive: pb.alive,
            unreached_ms: pb.unreached_ms,
            heard_ms: pb.heard_ms,
            disks: each(pb.disks, DISKS_MAX, "ServerStatus.disks", Proto::from_pb)?,
            draining: pb.draining,
            maintenance_ms: pb.maintenance_ms,
            slow_disks: disks_from(pb.slow_disks, "ServerStatus.slow_disks")?,
        })
    }
}

impl Proto for RepairStatus {
    type Pb = pb::RepairStatus;

    fn to_pb(&self) -> pb::RepairStatus {
        pb::RepairStatus { pending: self.pending, done: self.done, bytes: self.bytes }
    }

    fn from_pb(pb: pb::RepairStatus) -> Result<RepairStatus, WireError> {
        Ok(RepairStatus { pending: pb.pending, done: pb.done, bytes: pb.bytes })
    }
}

impl Proto for StoppedCollection {
    type Pb = pb::StoppedCollection;

    fn to_pb(&self) -> pb::StoppedCollection {
        pb::StoppedCollection {
            partition: self.partition.into(),
            server: self.server.get(),
            disk: u128_bytes(self.disk.get()),
            unknown: self.unknown,
            reported: self.reported,
        }
    }

    fn from_pb(pb: pb::StoppedCollection) -> Result<StoppedCollection, WireError> {
        Ok(StoppedCollection {
            partition: u16_from(pb.partition, "StoppedCollection.partition")?,
            server: ServerId::new(pb.server),
            disk: DiskId::new(u128_from(&pb.disk, "StoppedCollection.disk")?),
            unknown: pb.unknown,
            reported: pb.reported,
        })
    }
}

impl Proto for ClusterStatus {
    type Pb = pb::ClusterStatus;

    fn to_pb(&self) -> pb::ClusterStatus {
        pb::ClusterStatus {
            master: self.master,
            leads: self.leads.iter().map(|group| group.number()).collect(),
            servers: all(&self.servers),
            chunks: self.chunks,
            under_replicated: self.under_replicated,
            lost: self.lost,
            files: self.files,
            dirs: self.dirs,
            logical_bytes: self.logical_bytes,
            repair: Some(self.repair.to_pb()),
            stopped: all(&self.stopped),
            unreferenced_bytes: self.unreferenced_bytes,
            draining: all(&self.draining),
            balance_paused: self.balance_paused,
            survive: {
                let last = self.survive.iter().rposition(|&count| count > 0);
                self.survive[..last.map_or(0, |last| last + 1)].to_vec()
            },
        }
    }

    fn from_pb(pb: pb::ClusterStatus) -> Result<ClusterStatus, WireError> {
        Ok(ClusterStatus {
            master: master_id(pb.master, "ClusterStatus.master")?,
            leads: each(pb.leads, GROUPS_MAX, "ClusterStatus.leads", group)?,
            servers: each(pb.servers, SERVERS_MAX, "ClusterStatus.servers", Proto::from_pb)?,
            chunks: pb.chunks,
            under_replicated: pb.under_replicated,
            lost: pb.lost,
            files: pb.files,
            dirs: pb.dirs,
            logical_bytes: pb.logical_bytes,
            repair: need(pb.repair, "ClusterStatus.repair")?,
            unreferenced_bytes: pb.unreferenced_bytes,
            stopped: each(pb.stopped, STOPPED_MAX, "ClusterStatus.stopped", Proto::from_pb)?,
            draining: each(pb.draining, DRAINING_MAX, "ClusterStatus.draining", Proto::from_pb)?,
            balance_paused: pb.balance_paused,
            // A later master may count further: they are among those of three or more.
            survive: pb.survive.iter().enumerate().fold(
                [0; 4],
                |mut sum: [u64; 4], (at, count)| {
                    sum[at.min(3)] = sum[at.min(3)].saturating_add(*count);
                    sum
                },
            ),
        })
    }
}

impl Proto for ClusterReply {
    type Pb = pb::ClusterReply;

    fn to_pb(&self) -> pb::ClusterReply {
        use pb::cluster_reply::{Answer, Beat, Holder, Identified, Registered};
        let answer = match self {
            ClusterReply::Info(info) => Answer::Info(info.to_pb()),
            ClusterReply::Registered { server, cluster, formation } => {
                Answer::Registered(Registered {
                    server: server.get(),
                    cluster: u128_bytes(cluster.get()),
                    formation: formation.map(|formation| u128_bytes(formation.get())),
                })
            }
            ClusterReply::Identified { known } => {
                Answer::Identified(Identified { known: disk_bytes(known) })
            }
            ClusterReply::Beat { masters, known, clock } => {
                let (issuer, clock_ms) =
                    clock.map_or((0, 0), |clock| (clock.issuer.get(), clock.clock_ms));
                Answer::Beat(Beat { masters: all(masters), known: *known, issuer, clock_ms })
            }
            ClusterReply::Status(status) => Answer::Status(status.to_pb()),
            ClusterReply::Lock { fencing } => Answer::Lock(*fencing),
            ClusterReply::Holder(None) => Answer::Holder(Holder { owner: None, fencing: 0 }),
            ClusterReply::Holder(Some((owner, fencing))) => {
                Answer::Holder(Holder { owner: Some(owner.clone()), fencing: *fencing })
            }
            ClusterReply::Abnormal(abnormal) => Answer::Abnormal(abnormal.to_pb()),
            ClusterReply::Held(held) => Answer::Held(held.to_pb()),
            ClusterReply::Done => Answer::Done(pb::Empty {}),
        };
        pb::ClusterReply { answer: Some(answer) }
    }

    fn from_pb(pb: pb::ClusterReply) -> Result<ClusterReply, WireError> {
        use pb::cluster_reply::Answer;
        Ok(match pb.answer.ok_or(WireError::Missing { field: "ClusterReply.answer" })? {
            Answer::Info(info) => ClusterReply::Info(Proto::from_pb(info)?),
            Answer::Registered(pb) => ClusterReply::Registered {
                server: ServerId::new(pb.server),
                cluster: ClusterId::new(u128_from(&pb.cluster, "ClusterReply.Registered.cluster")?),
                formation: match pb.formation {
                    None => None,
                    Some(bytes) => {
                        let field = "ClusterReply.Registered.formation";
                        Some(FormationId::new(u128_from(&bytes, field)?))
                    }
                },
            },
            Answer::Identified(pb) => ClusterReply::Identified {
                known: disks_from(pb.known, "ClusterReply.Identified.known")?,
            },
            Answer::Beat(pb) => {
                let field = "ClusterReply.Beat.masters";
                let masters = bounded(pb.masters, MASTERS_MAX, field)?;
                let masters = masters.into_iter().map(Proto::from_pb).collect::<Result<_, _>>()?;
                let (issuer, clock_ms) = (Issuer::new(pb.issuer), pb.clock_ms);
                let clock = IssuerClock { issuer, clock_ms };
                let clock = Some(clock).filter(|_| issuer != Issuer::WALL);
                ClusterReply::Beat { masters, known: pb.known, clock }
            }
            Answer::Status(status) => ClusterReply::Status(Proto::from_pb(status)?),
            Answer::Lock(fencing) => ClusterReply::Lock { fencing },
            Answer::Holder(pb) => {
                let owner = |owner| text(owner, 0..=LABEL_MAX, "ClusterReply.Holder.owner");
                let owner = pb.owner.map(owner).transpose()?;
                ClusterReply::Holder(owner.map(|owner| (owner, pb.fencing)))
            }
            Answer::Abnormal(pb) => ClusterReply::Abnormal(Proto::from_pb(pb)?),
            Answer::Held(pb) => ClusterReply::Held(Proto::from_pb(pb)?),
            Answer::Done(_) => ClusterReply::Done,
        })
    }
}
