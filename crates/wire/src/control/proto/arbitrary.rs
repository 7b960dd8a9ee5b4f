//! Arbitrary control messages for property tests.

use base::limits::CHUNK_LEN_MAX;
use base::{
    ChunkId, ClientId, ClusterId, DirId, DiskId, Epoch, FileId, FormationId, Kind, ServerId,
    TraceId,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use testing::made;
use testing::messages::{addr, label, name};

use crate::control::limits::{
    ABNORMAL_MAX, CHUNKS_MAX, LATER_MAX_S, LATER_MIN_S, LIST_MAX, LOCATE_CHUNKS_MAX,
    LOCK_TTL_MAX_MS, LOCK_TTL_MIN_MS, MAINTENANCE_MAX_MS, MODE_MAX, PLACES_MAX, SPARES_MAX,
    TRACE_SLOW_MAX,
};
use crate::control::*;
use crate::data::{Purpose, ReplicaStat, ReplicaState};
use crate::row::Fragment;
use crate::token::{Issuer, IssuerTime};

fn file() -> impl Strategy<Value = FileId> {
    any::<u64>().prop_map(FileId::new)
}

fn chunk() -> impl Strategy<Value = ChunkId> {
    any::<u64>().prop_map(ChunkId::new)
}

fn disk() -> impl Strategy<Value = DiskId> {
    any::<u128>().prop_map(DiskId::new)
}

fn dir() -> impl Strategy<Value = DirId> {
    any::<u128>().prop_map(DirId::new)
}

fn server() -> impl Strategy<Value = ServerId> {
    any::<u32>().prop_map(ServerId::new)
}

fn epoch() -> impl Strategy<Value = Epoch> {
    any::<u64>().prop_map(Epoch::new)
}

fn chunk_len() -> impl Strategy<Value = u32> {
    0..=CHUNK_LEN_MAX as u32
}

fn op() -> impl Strategy<Value = OpId> {
    made!((client, any::<u64>()), (seq, 1..=u64::MAX), (back, any::<u64>()) => OpId {
        client: ClientId::new(client),
        seq,
        acked_below: seq.saturating_sub(back),
    })
}

fn master() -> impl Strategy<Value = MasterInfo> {
    made!((id, 1..=u64::MAX), (name, label()), (addr, addr()) => MasterInfo { id, name, addr })
}

fn group() -> impl Strategy<Value = Group> {
    prop_oneof![
        Just(Group::Cluster),
        any::<u16>().prop_map(Group::Namespace),
        any::<u16>().prop_map(Group::Stream),
    ]
}

fn disk_report() -> impl Strategy<Value = DiskReport> {
    made!((disk, disk()), (path, "\\PC{0,40}"), (counts, any::<[u64; 3]>()),
        (failed, any::<bool>()), (reason, "\\PC{0,40}"), (addr, option::of(addr())),
        (work, option::of(any::<(u32, u32)>())), (times, vec(disk_times(), 0..=CallClass::COUNT)) => DiskReport {
        disk,
        path,
        capacity: counts[0],
        used: counts[1],
        chunks: counts[2],
        failed,
        reason,
        addr,
        background: work.map(|(share, waiting)| BackgroundWork { share, waiting }),
        times,
    })
}

fn disk_times() -> impl Strategy<Value = DiskTimes> {
    made!((class, 0..CallClass::COUNT), (p50_us, any::<u64>()), (p99_us, any::<u64>()) => {
        let class = CallClass::all().nth(class).expect("a class");
        DiskTimes { class, p50_us, p99_us }
    })
}

fn registration() -> impl Strategy<Value = Registration> {
    made!((name, label()), (addr, addr()), (domain, label()) => {
        Registration { name, addr, domain }
    })
}

fn heartbeat() -> impl Strategy<Value = Heartbeat> {
    made!((server, server()), (addr, addr()), (boot, any::<u64>()), (seq, 1..=u64::MAX),
    (disks, vec(disk_report(), 0..4)), (damaged, vec((disk(), chunk()), 0..4)),
    (load, any::<u32>()), (quiet, vec((disk(), chunk()), 0..4)) => {
        let (layout, by_issuer) = ((load % 3) as u8, load % 2 == 0);
        Heartbeat { server, addr, boot, seq, disks, damaged, load, quiet, layout, by_issuer }
    })
}

fn not_after() -> impl Strategy<Value = Option<IssuerTime>> {
    option::of(
        (any::<u64>(), 1..=u64::MAX)
            .prop_map(|(issuer, seconds)| IssuerTime { issuer: Issuer::new(issuer), seconds }),
    )
}

fn lock_change() -> impl Strategy<Value = LockChange> {
    let ttl = LOCK_TTL_MIN_MS..=LOCK_TTL_MAX_MS;
    prop_oneof![
        made!((name, label()), (owner, label()), (ttl_ms, ttl.clone()) => {
            LockChange::Acquire { name, owner, ttl_ms }
        }),
        made!((name, label()), (fencing, any::<u64>()), (ttl_ms, ttl) => {
            LockChange::Renew { name, fencing, ttl_ms }
        }),
        made!((name, label()), (fencing, any::<u64>()) => LockChange::Release { name, fencing }),
    ]
}

fn cluster_request() -> impl Strategy<Value = ClusterRequest> {
    let member_change = prop_oneof![
        master().prop_map(MemberChange::Add),
        (1..=u64::MAX).prop_map(|id| MemberChange::Remove { id }),
    ];
    prop_oneof![
        Just(ClusterRequest::Info),
        registration().prop_map(ClusterRequest::Register),
        heartbeat().prop_map(ClusterRequest::Heartbeat),
        Just(ClusterRequest::Status),
        made!((op, op()), (change, lock_change()) => ClusterRequest::Lock { op, change }),
        label().prop_map(|name| ClusterRequest::LockHolder { name }),
        made!((name, label()), (fencing, any::<u64>()) => {
            ClusterRequest::LockDoubt { name, fencing }
        }),
        member_change.prop_map(|change| ClusterRequest::Members { change }),
        vec(disk(), 0..4).prop_map(|disks| ClusterRequest::Identify { disks }),
        disk().prop_map(|disk| ClusterRequest::Condemn { disk }),
        option::of(abnormal_version()).prop_map(|known| ClusterRequest::Abnormal { known }),
        made!((server, label()), (order, server_order()), (dry_run, any::<bool>()) => {
            ClusterRequest::Order { server, order, dry_run }
        }),
        made!((server, server()), (orders, any::<u64>()) => {
            ClusterRequest::Held { server, orders }
        }),
        any::<bool>().prop_map(|paused| ClusterRequest::PauseBalance { paused }),
    ]
}

fn server_order() -> impl Strategy<Value = ServerOrder> {
    prop_oneof![
        Just(ServerOrder::Drain),
        Just(ServerOrder::CancelDrain),
        (1..=MAINTENANCE_MAX_MS).prop_map(|for_ms| ServerOrder::Maintain { for_ms }),
        Just(ServerOrder::EndMaintenance),
        Just(ServerOrder::Decommission),
        losses().prop_map(ServerOrder::DecommissionLosing),
        Just(ServerOrder::ListLosses),
    ]
}

fn holdings() -> impl Strategy<Value = Holdings> {
    made!((server, server()), (partitions, vec(any::<u16>(), 0..4)), (widest, any::<u8>()),
        (n, any::<[u64; 5]>()), (files, vec(file(), 0..4)), (lost, losses()),
        (lost_chunks, vec(lost_chunk(), 0..3)) => Holdings {
        server,
        partitions,
        widest,
        replicas: n[0],
        open: n[1],
        bytes: n[2],
        only: n[3],
        files,
        lost,
        lost_replicas: n[4],
        lost_chunks,
    })
}

fn losses() -> impl Strategy<Value = Losses> {
    made!((chunks, any::<u64>()), (digest, any::<u64>()) => Losses { chunks, digest })
}

fn lost_chunk() -> impl Strategy<Value = LostChunk> {
    made!((file, file()), (chunk, chunk()), (base, any::<u64>()), (len, any::<u32>()) => {
        LostChunk { file, chunk, base, len }
    })
}

fn abnormal_version() -> impl Strategy<Value = AbnormalVersion> {
    made!((boot, any::<u64>()), (changes, any::<u64>()) => AbnormalVersion { boot, changes })
}

fn abnormal_servers() -> impl Strategy<Value = AbnormalServers> {
    let one = made!((server, server()), (unreached, any::<bool>()), (slow, any::<bool>()),
        (draining, any::<bool>()) => {
        AbnormalServer { server, unreached, slow, draining }
    });
    made!((version, abnormal_version()), (full, any::<bool>()), (many, any::<bool>()),
        (servers, vec(one, 0..=ABNORMAL_MAX)) => {
        AbnormalServers { version, full, many, servers }
    })
}

fn cluster_reply() -> impl Strategy<Value = ClusterReply> {
    let info = made!((cluster, any::<u128>()), (masters, vec(master(), 0..5)),
        (ns, 1..=u16::MAX), (st, 1..=u16::MAX), (leaders, vec((group(), 1..=u64::MAX), 0..5)) => {
        ClusterInfo {
            cluster: ClusterId::new(cluster),
            masters,
            namespace_partitions: ns,
            stream_partitions: st,
            leaders,
        }
    });
    let server_status = made!((server, server()), (name, label()), (addr, addr()),
        (domain, label()), (alive, any::<bool>()), (unreached_ms, any::<Option<u64>>()),
        (heard_ms, any::<Option<u64>>()), (disks, vec(disk_report(), 0..3)),
        (draining, any::<bool>()), (maintenance_ms, any::<Option<u64>>()),
        (slow_disks, vec(disk(), 0..3)) => ServerStatus {
        server,
        name,
        addr,
        domain,
        alive,
        unreached_ms,
        heard_ms,
        disks,
        draining,
        maintenance_ms,
        slow_disks,
    });
    let stopped = made!((partition, any::<u16>()), (server, server()), (disk, disk()),
        (unknown, any::<u64>()), (reported, any::<u64>()) => {
        StoppedCollection { partition, server, disk, unknown, reported }
    });
    let status = made!((master, 1..=u64::MAX), (leads, vec(group(), 0..4)),
        (servers, vec(server_status, 0..3)), (n, any::<[u64; 10]>()), (survive, any::<[u64; 4]>()),
        (stopped, vec(stopped, 0..3)), (draining, vec(holdings(), 0..2)),
        (balance_paused, any::<bool>()) => ClusterStatus {
        master,
        leads,
        servers,
        chunks: n[0],
        under_replicated: n[1],
        lost: n[2],
        survive,
        files: n[3],
        dirs: n[4],
        logical_bytes: n[5],
        repair: RepairStatus { pending: n[6], done: n[7], bytes: n[8] },
        unreferenced_bytes: n[9],
        stopped,
        draining,
        balance_paused,
    });
    prop_oneof![
        info.prop_map(ClusterReply::Info),
        made!((server, server()), (cluster, any::<u128>()),
            (formation, option::of(any::<u128>())) => {
            let formation = formation.map(FormationId::new);
            ClusterReply::Registered { server, cluster: ClusterId::new(cluster), formation }
        }),
        vec(disk(), 0..4).prop_map(|known| ClusterReply::Identified { known }),
        made!((masters, vec(master(), 0..5)), (known, any::<bool>()),
            (clock, option::of((1..=u64::MAX, any::<u64>()))) => {
            let clock = clock.map(|(issuer, clock_ms)| {
                IssuerClock { issuer: Issuer::new(issuer), clock_ms }
            });
            ClusterReply::Beat { masters, known, clock }
        }),
        status.prop_map(ClusterReply::Status),
        any::<u64>().prop_map(|fencing| ClusterReply::Lock { fencing }),
        option::of((label(), any::<u64>())).prop_map(ClusterReply::Holder),
        abnormal_servers().prop_map(ClusterReply::Abnormal),
        holdings().prop_map(ClusterReply::Held),
        Just(ClusterReply::Done),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let later =
        (LATER_MIN_S..=LATER_MAX_S, form()).prop_map(|(after_s, form)| Later::new(after_s, form));
    (form(), option::of(later), select(&Verify::ALL))
        .prop_map(|(policy, later, verify)| policy.and_later(later).verified(verify))
}

/// A policy that says nothing of later.
fn form() -> impl Strategy<Value = Policy> {
    let copies = (1..=5u8).prop_flat_map(|copies| {
        (copies / 2 + 1..=copies).prop_map(move |acks| Policy::plain(copies, acks))
    });
    let policies = prop_oneof![copies, code()];
    (policies, compression()).prop_map(|(policy, compression)| policy.compressed(compression))
}

/// The policy of a code.
fn code() -> impl Strategy<Value = Policy> {
    (2..=12u8, 1..=4u8).prop_flat_map(|(data, parity)| {
        let policy = Policy::ec(data, parity);
        (data + 1..=data + parity).prop_map(move |acks| Policy { acks, ..policy })
    })
}

fn fragment() -> impl Strategy<Value = Fragment> {
    code().prop_flat_map(|policy| {
        let (k, p) = (policy.data, policy.parity());
        (0..k + p).prop_map(move |number| Fragment { k, p, number })
    })
}

fn compression() -> impl Strategy<Value = Option<Compression>> {
    any::<u8>().prop_map(|byte| Compression::from_byte(byte).unwrap_or(None))
}

fn attributes() -> impl Strategy<Value = Attributes> {
    made!((mode, 0..=MODE_MAX), (mtime, any::<u64>()) => Attributes { mode, mtime })
}

fn place() -> impl Strategy<Value = NameKey> {
    made!((parent, dir()), (name, name()) => NameKey { parent, name })
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        made!((file, file()), (policy, policy()), (attributes, attributes()),
            (links, any::<u32>()), (len, any::<u64>()) => {
            Node::File { file, policy, attributes, links, len }
        }),
        made!((dir, dir()), (attributes, attributes()) => Node::Dir { dir, attributes }),
        made!((target, "\\PC{1,80}"), (attributes, attributes()) => {
            Node::Symlink { target, attributes }
        }),
    ]
}

fn namespace_change() -> impl Strategy<Value = NamespaceChange> {
    prop_oneof![
        made!((place, place()), (attributes, attributes()) => {
            NamespaceChange::Mkdir { place, attributes }
        }),
        made!((place, place()), (policy, policy()), (attributes, attributes()),
            (exclusive, any::<bool>()), (inherit, any::<bool>()) => {
            NamespaceChange::Create { place, policy, attributes, exclusive, inherit }
        }),
        made!((place, place()), (target, "\\PC{1,80}"), (attributes, attributes()) => {
            NamespaceChange::Symlink { place, target, attributes }
        }),
        vec((file(), place()), 0..4).prop_map(|links| NamespaceChange::Link { links }),
        place().prop_map(|place| NamespaceChange::Unlink { place }),
        place().prop_map(|place| NamespaceChange::Rmdir { place }),
        made!((from, place()), (to, place()), (replace, any::<bool>()) => {
            NamespaceChange::Rename { from, to, replace }
        }),
        (place(), attributes(), option::of(any::<u64>()), option::of(file())).prop_map(
            |(place, attributes, len, file)| {
                NamespaceChange::SetAttributes { place, attributes, len, file }
            },
        ),
        made!((dir, dir()), (policy, option::of(policy())) => {
            NamespaceChange::SetDirPolicy { dir, policy }
        }),
        made!((place, place()), (file, file()), (policy, policy()) => {
            NamespaceChange::SetFilePolicy { place, file, policy }
        }),
    ]
}

fn namespace_request() -> impl Strategy<Value = NamespaceRequest> {
    prop_oneof![
        place().prop_map(|place| NamespaceRequest::Lookup { place }),
        made!((dir, dir()), (after, option::of("\\PC{0,40}")), (limit, 1..=LIST_MAX) => {
            NamespaceRequest::List { dir, after, limit }
        }),
        file().prop_map(|file| NamespaceRequest::StatFile { file }),
        dir().prop_map(|dir| NamespaceRequest::DirPolicy { dir }),
        made!((op, op()), (change, namespace_change()) => {
            NamespaceRequest::Change { op, change }
        }),
    ]
}

fn namespace_reply() -> impl Strategy<Value = NamespaceReply> {
    let entry = made!((name, name()), (node, node()) => NamedNode { name, node });
    prop_oneof![
        made!((node, node()), (grant, any::<[u8; 16]>()), (dir_policy, option::of(policy())) => {
            NamespaceReply::Node { node, grant, dir_policy }
        }),
        option::of(policy()).prop_map(|policy| NamespaceReply::DirPolicy { policy }),
        made!((entries, vec(entry, 0..4)), (more, any::<bool>()) => {
            NamespaceReply::List { entries, more }
        }),
        Just(NamespaceReply::Done),
    ]
}

fn replica() -> impl Strategy<Value = ReplicaPlace> {
    made!((server, server()), (disk, disk()), (addr, addr()), (fragment, 0..16u8) => {
        ReplicaPlace { server, disk, addr, fragment }
    })
}

fn chunk_place() -> impl Strategy<Value = ChunkPlace> {
    let copies = (0..=5u8, 1..=5u8).prop_map(|(copies, acks)| (copies, acks, 1));
    let coded = code().prop_map(|policy| (policy.copies, policy.acks, policy.data));
    made!((chunk, chunk()), (epoch, epoch()), (base, any::<u64>()),
        (sealed, option::of(chunk_len())), (replicas, vec(replica(), 0..21)),
        (scheme, prop_oneof![copies, coded]), (token, any::<[u8; 16]>()),
        (compression, compression()) => {
        let (copies, acks, data) = scheme;
        ChunkPlace { chunk, epoch, base, sealed, replicas, acks, token, copies, data, compression }
    })
}

fn purpose() -> impl Strategy<Value = Purpose> {
    prop::sample::select(&Purpose::ALL[..])
}

fn stream_change() -> impl Strategy<Value = StreamChange> {
    let spares = 0..=SPARES_MAX;
    prop_oneof![
        made!((file, file()), (policy, policy()), (grant, any::<[u8; 16]>()),
            (spares, spares.clone()), (purpose, purpose()), (follows, option::of(epoch())),
            (in_copies, any::<bool>()), (avoid, vec(server(), 0..3)) => {
            StreamChange::Open { file, policy, grant, spares, purpose, follows, in_copies, avoid }
        }),
        made!((file, file()), (epoch, epoch()), (sealed, chunk()), (len, chunk_len()),
            (next, chunk()), (avoid, vec(server(), 0..4)), (spares, spares.clone()),
            (left, vec(server(), 0..=PLACES_MAX)), (in_copies, any::<bool>()) => {
            StreamChange::Advance {
                file, epoch, sealed, len, next, avoid, spares, left, in_copies,
            }
        }),
        made!((file, file()), (epoch, epoch()), (avoid, vec(server(), 0..4)),
            (spares, spares), (purpose, purpose()), (in_copies, any::<bool>()) => {
            StreamChange::Extend { file, epoch, avoid, spares, purpose, in_copies }
        }),
        made!((file, file()), (epoch, epoch()), (sealed, option::of((chunk(), chunk_len()))),
            (finish, any::<bool>()), (left, vec(server(), 0..=PLACES_MAX)) => {
            StreamChange::Close { file, epoch, sealed, finish, left }
        }),
        made!((file, file()), (follows, option::of(epoch())), (accept_loss, any::<bool>()) => {
            StreamChange::Seal { file, follows, accept_loss }
        }),
        file().prop_map(|file| StreamChange::Delete { file }),
        made!((file, file()), (policy, policy()), (grant, any::<[u8; 16]>()) => {
            StreamChange::SetPolicy { file, policy, grant }
        }),
        made!((file, file()), (wanted, any::<bool>()) => StreamChange::Convert { file, wanted }),
    ]
}

fn stream_request() -> impl Strategy<Value = StreamRequest> {
    let limit = 1..=LOCATE_CHUNKS_MAX;
    let fault = prop_oneof![
        Just(ReplicaFault::Unreachable),
        Just(ReplicaFault::Corrupt),
        Just(ReplicaFault::Missing),
        Just(ReplicaFault::DiskFailed),
    ];
    prop_oneof![
        made!((file, file()), (offset, any::<u64>()), (limit, limit.clone()) => {
            StreamRequest::Locate { file, offset, limit }
        }),
        made!((wants, vec((file(), any::<u64>()), 0..4)), (limit, limit) => {
            StreamRequest::LocateMany { wants, limit }
        }),
        made!((file, file()), (chunk, chunk()), (server, server()), (fault, fault) => {
            StreamRequest::ReportBad { file, chunk, server, fault }
        }),
        made!((op, op()), (change, stream_change()) => StreamRequest::Change { op, change }),
    ]
}

fn stream_reply() -> impl Strategy<Value = StreamReply> {
    let grant = made!((epoch, epoch()), (len, any::<u64>()),
        (current, option::of(chunk_place())), (spares, vec(chunk_place(), 0..3)) => {
        let rights_ms = Some(len % 90_000).filter(|&ms| ms > 0);
        WriterGrant { epoch, len, current, spares, rights_ms }
    });
    let view = made!((file, file()), (chunks, vec(chunk_place(), 0..3)),
        (sealed_len, any::<u64>()), (open, any::<bool>()), (epoch, epoch()),
        (policy, option::of(policy())), (loss_accepted, any::<bool>()),
        (converting, any::<bool>()) => {
        StreamView { file, chunks, sealed_len, open, epoch, policy, loss_accepted, converting }
    });
    prop_oneof![
        grant.prop_map(StreamReply::Writer),
        vec(view, 0..3).prop_map(StreamReply::Views),
        any::<u64>().prop_map(|len| StreamReply::Done { len }),
        epoch().prop_map(|epoch| StreamReply::Epoch { epoch }),
    ]
}

fn replica_stat() -> impl Strategy<Value = ReplicaStat> {
    let state = prop_oneof![
        Just(ReplicaState::Open),
        epoch().prop_map(ReplicaState::Fenced),
        Just(ReplicaState::Sealed),
        Just(ReplicaState::Repairing),
        Just(ReplicaState::Tombstone),
        Just(ReplicaState::Deleted),
    ];
    made!((state, state), (epoch, epoch()), (len, chunk_len()), (durable_bound, chunk_len()),
        (committed, chunk_len()) => ReplicaStat { state, epoch, len, durable_bound, committed })
}

fn chunkserver_request() -> impl Strategy<Value = ChunkserverRequest> {
    prop_oneof![
        made!((chunk, chunk()), (disk, disk()), (epoch, epoch()), (base, any::<u64>()),
            (len, chunk_len()), (sources, vec(replica(), 0..4)), (token, any::<[u8; 16]>()),
            (seal, any::<bool>()), (fragment, option::of(fragment())), (urgent, any::<bool>()) => {
            let order = CopyOrder {
                chunk, epoch, base, len, sources, token, seal, fragment, urgent,
            };
            ChunkserverRequest::Replicate { disk, order }
        }),
        made!((disk, disk()), (chunks, vec(chunk(), 0..5)), (not_after, not_after()) => {
            ChunkserverRequest::Delete { disk, chunks, not_after }
        }),
        made!((disk, disk()), (chunks, vec(chunk(), 0..5)), (not_after, not_after()) => {
            ChunkserverRequest::Forget { disk, chunks, not_after }
        }),
        made!((disk, disk()), (after, option::of(chunk())), (limit, 1..=CHUNKS_MAX as u32) => {
            ChunkserverRequest::List { disk, after, limit }
        }),
        made!((disk, disk()), (failed, any::<bool>()) => {
            ChunkserverRequest::FailDisk { disk, failed }
        }),
        made!((disk, disk()) => ChunkserverRequest::Probe { disk }),
        "\\PC{1,40}".prop_map(|path| ChunkserverRequest::ReplaceDisk { path }),
        any::<bool>().prop_map(|start| ChunkserverRequest::Scrub { start }),
        made!((disk, disk()), (order, conversion()) => ChunkserverRequest::Convert { disk, order }),
        made!((disk, disk()), (chunk, chunk()), (len, chunk_len()) => {
            ChunkserverRequest::Digest { disk, chunk, len }
        }),
        made!((disk, disk()), (order, row_check()) => ChunkserverRequest::CheckRows { disk, order }),
        Just(ChunkserverRequest::Ping),
    ]
}

fn conversion() -> impl Strategy<Value = Conversion> {
    made!((chunk, chunk()), (epoch, epoch()), (base, any::<u64>()), (len, chunk_len()),
        (sources, vec(replica(), 0..4)), (tokens, any::<[[u8; 16]; 2]>()),
        (code, option::of(fragment())), (made, chunk()), (policy, policy()),
        (places, vec(replica(), 0..4)) => {
        let [read_token, write_token] = tokens;
        Conversion {
            chunk, epoch, base, len, sources, read_token, code, made, policy, places, write_token,
        }
    })
}

fn row_check() -> impl Strategy<Value = RowCheck> {
    made!((chunk, chunk()), (epoch, epoch()), (base, any::<u64>()), (len, chunk_len()),
        (sources, vec(replica(), 0..4)), (token, any::<[u8; 16]>()), (code, fragment()),
        (one_in, 1..=u32::MAX) => {
        RowCheck { chunk, epoch, base, len, sources, token, code, one_in }
    })
}

fn disk_scrub() -> impl Strategy<Value = DiskScrub> {
    made!((disk, disk()), (running, any::<bool>()), (n, any::<[u64; 4]>()),
        (ended_ms, option::of(any::<u64>())) => {
        let [passes, done, replicas, damaged] = n;
        DiskScrub { disk, passes, running, done, replicas, damaged, ended_ms }
    })
}

fn listed_replica() -> impl Strategy<Value = ListedReplica> {
    made!((chunk, chunk()), (stat, replica_stat()), (physical, option::of(any::<u64>())) => {
        ListedReplica { chunk, stat, physical }
    })
}

fn chunkserver_reply() -> impl Strategy<Value = ChunkserverReply> {
    prop_oneof![
        made!((took_us, any::<u64>()) => ChunkserverReply::Probed { took_us }),
        made!((stat, replica_stat()), (bytes, any::<u64>()) => {
            ChunkserverReply::Replicated { stat, bytes }
        }),
        made!((replicas, vec(listed_replica(), 0..4)), (more, any::<bool>()) => {
            ChunkserverReply::List { replicas, more }
        }),
        disk().prop_map(|disk| ChunkserverReply::Replaced { disk }),
        made!((disks, vec(disk_scrub(), 0..3)), (off, any::<bool>()) => {
            ChunkserverReply::Scrubs { disks, off }
        }),
        vec(any::<u32>(), 0..4).prop_map(|digests| ChunkserverReply::Converted { digests }),
        any::<u32>().prop_map(|crc| ChunkserverReply::Digest { crc }),
        any::<[u32; 3]>().prop_map(|[checked, wrong, miscoded]| {
            ChunkserverReply::RowsChecked(RowFindings { checked, wrong, miscoded })
        }),
        Just(ChunkserverReply::Done),
    ]
}

fn trace() -> impl Strategy<Value = TraceId> {
    any::<u64>().prop_map(TraceId::new)
}

fn trace_request() -> impl Strategy<Value = TraceRequest> {
    prop_oneof![
        trace().prop_map(|trace| TraceRequest::Find { trace }),
        (1..=TRACE_SLOW_MAX).prop_map(|limit| TraceRequest::Slow { limit }),
    ]
}

fn trace_fact() -> impl Strategy<Value = TraceFact> {
    prop_oneof![
        addr().prop_map(TraceFact::Peer),
        disk().prop_map(TraceFact::Disk),
        chunk().prop_map(TraceFact::Chunk),
        any::<u64>().prop_map(TraceFact::Bytes),
        any::<u32>().prop_map(TraceFact::Group),
    ]
}

fn traced_operation() -> impl Strategy<Value = TracedOperation> {
    let outcome = prop_oneof![
        Just(TracedOutcome::Open),
        Just(TracedOutcome::Done),
        Just(TracedOutcome::Failed(Kind::Full)),
    ];
    let stage = made!((step, label()), (after_ns, any::<u64>()), (fact, option::of(trace_fact()))
        => TracedStage { step, after_ns, fact });
    made!((trace, trace()), (name, label()), (peer, option::of(addr())), (began_ns, any::<u64>()),
        (took_ns, any::<u64>()), (outcome, outcome), (stages, vec(stage, 0..5)),
        (stages_left_out, any::<u32>()) => TracedOperation {
        trace, name, peer, began_ns, took_ns, outcome, stages, stages_left_out,
    })
}

fn trace_reply() -> impl Strategy<Value = TraceReply> {
    made!((process, label()), (now_ns, any::<u64>()), (slow_ns, any::<u64>()),
        (operations, vec(traced_operation(), 0..4)) => TraceReply {
        process, now_ns, slow_ns, operations,
    })
}

fn service_message() -> impl Strategy<Value = ServiceMessage> {
    let tag = (ServiceTag::MIN..=ServiceTag::MAX).prop_map(|tag| ServiceTag::new(tag).unwrap());
    made!((tag, tag), (body, vec(any::<u8>(), 0..50)) => ServiceMessage { tag, body })
}

/// Every request.
pub(super) fn request() -> impl Strategy<Value = ControlRequest> {
    prop_oneof![
        cluster_request().prop_map(ControlRequest::Cluster),
        namespace_request().prop_map(ControlRequest::Namespace),
        stream_request().prop_map(ControlRequest::Stream),
        chunkserver_request().prop_map(ControlRequest::Chunkserver),
        trace_request().prop_map(ControlRequest::Trace),
        service_message().prop_map(ControlRequest::Service),
    ]
}

/// Every reply.
pub(super) fn reply() -> impl Strategy<Value = ControlReply> {
    prop_oneof![
        cluster_reply().prop_map(ControlReply::Cluster),
        namespace_reply().prop_map(ControlReply::Namespace),
        stream_reply().prop_map(ControlReply::Stream),
        chunkserver_reply().prop_map(ControlReply::Chunkserver),
        trace_reply().prop_map(ControlReply::Trace),
        service_message().prop_map(ControlReply::Service),
    ]
}

/// Every error.
pub(super) fn error() -> impl Strategy<Value = ControlError> {
    let kind = prop::sample::select(vec![
        Kind::Retry,
        Kind::Refresh,
        Kind::Reroute,
        Kind::Fenced,
        Kind::Corrupt,
        Kind::Unknown,
        Kind::NotFound,
        Kind::Exists,
        Kind::Full,
        Kind::Invalid,
    ]);
    made!((kind, kind), (message, "\\PC{0,80}"), (leader, option::of(addr())) => {
        ControlError { kind, message, leader }
    })
}
