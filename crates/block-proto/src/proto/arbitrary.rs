//! Arbitrary messages of the block service.

use block_volume::figures::{SegmentCheck, SegmentScrub, SegmentUsage};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use testing::made;
use testing::messages::{addr, label, name};
use wire::control::Policy;

use crate::limits::{LEASE_MAX_MS, SEGMENTS_PAGE, VOLUME_BYTES_WIRE, VOLUMES_PAGE};
use crate::*;

fn policy() -> impl Strategy<Value = Policy> {
    (1..=5u8).prop_flat_map(|copies| {
        (copies / 2 + 1..=copies).prop_map(move |acks| Policy::plain(copies, acks))
    })
}

fn volume() -> impl Strategy<Value = VolumeId> {
    any::<u64>().prop_map(VolumeId::new)
}

fn server() -> impl Strategy<Value = BlockServerId> {
    any::<u32>().prop_map(BlockServerId::new)
}

fn segment() -> impl Strategy<Value = SegmentId> {
    made!((volume, volume()), (index, any::<u32>()) => SegmentId { volume, index })
}

fn bytes() -> impl Strategy<Value = u64> {
    VOLUME_BYTES_WIRE.0..=VOLUME_BYTES_WIRE.1
}

fn epoch() -> impl Strategy<Value = u64> {
    1..=u64::MAX
}

fn limits() -> impl Strategy<Value = VolumeLimits> {
    any::<[u64; 4]>().prop_map(|n| VolumeLimits {
        iops_base: n[0],
        iops_burst: n[1],
        bytes_base: n[2],
        bytes_burst: n[3],
    })
}

fn spec() -> impl Strategy<Value = VolumeSpec> {
    let geometry = any::<(u64, u32, u64)>().prop_map(|(group_bytes, count, data_sector)| {
        VolumeGeometry { group_bytes, segments_per_group: count, data_sector }
    });
    made!((name, name()), (bytes, bytes()), (geometry, geometry), (policy, policy()),
        (limits, limits()), (shared, any::<bool>()) => {
        VolumeSpec { name, bytes, geometry, policy, limits, shared }
    })
}

fn info() -> impl Strategy<Value = VolumeInfo> {
    let attachment = made!((epoch, epoch()), (holder, label()) => Attachment { epoch, holder });
    made!((volume, volume()), (spec, spec()), (attachments, vec(attachment, 0..3)),
        (parent, option::of(volume())), (clone_source, option::of(volume())), (hold_us, any::<u64>()) => {
        VolumeInfo { volume, spec, attachments, parent, clone_source, hold_us }
    })
}

fn deleted() -> impl Strategy<Value = DeletedVolume> {
    made!((info, info()), (at_ms, any::<u64>()), (left_ms, any::<u64>()) => {
        DeletedVolume { info, at_ms, left_ms }
    })
}

fn place() -> impl Strategy<Value = SegmentPlace> {
    made!((index, any::<u32>()), (epoch, any::<u64>()), (server, option::of(server())),
        (name, "\\PC{0,9}"), (addr, option::of(addr())), (serving, any::<bool>()),
        (cause, "\\PC{0,20}") => {
        SegmentPlace { index, epoch, server, name, addr, serving, cause }
    })
}

fn seen() -> impl Strategy<Value = Seen> {
    any::<(u64, u64)>().prop_map(|(term, change)| Seen { term, change })
}

fn heartbeat() -> impl Strategy<Value = BlockHeartbeat> {
    let load = made!((segment, segment()), (iops, any::<u32>()), (bytes, any::<u64>()) => {
        SegmentLoad { segment, iops, bytes }
    });
    made!((server, server()), (addr, addr()), (boot, any::<u64>()), (seq, 1..=u64::MAX),
        (seen, seen()), (unopened, vec((segment(), "\\PC{0,20}"), 0..3)),
        (unopened_count, any::<u32>()), (loads, vec(load, 0..3)), (flags, any::<[bool; 2]>()) => {
        let [leaving, asks_admission] = flags;
        BlockHeartbeat {
            server, addr, boot, seq, seen, unopened, unopened_count, loads, leaving, asks_admission,
        }
    })
}

fn grant() -> impl Strategy<Value = BlockGrant> {
    let ownership = made!((epoch, epoch()), (bytes, bytes()), (policy, policy()),
        (hold_ms, 0..=LEASE_MAX_MS), (part, 0..=LEASE_MAX_MS), (read_only, any::<bool>()),
        (clone_source, option::of(volume())) => {
        let predecessor_ms = part.min(hold_ms);
        OwnershipGrant { epoch, bytes, policy, hold_ms, predecessor_ms, read_only, clone_source }
    });
    let change = made!((segment, segment()), (ownership, option::of(ownership)) => {
        Assignment { segment, ownership }
    });
    made!((lease_ms, 0..=LEASE_MAX_MS), (reset, any::<bool>()), (changes, vec(change, 0..4)),
        (seen, seen()), (more, any::<bool>()), (known, any::<bool>()) => {
        BlockGrant { lease_ms, reset, changes, seen, more, known }
    })
}

fn role() -> impl Strategy<Value = BlockRole> {
    prop_oneof![Just(BlockRole::Manager), Just(BlockRole::Frontend)]
}

fn status() -> impl Strategy<Value = BlockStatus> {
    let server = made!((server, server()), (name, label()), (addr, addr()),
        (alive, any::<[bool; 3]>()), (segments, any::<u32>()),
        (n, any::<[u64; 2]>()) => {
        BlockServerStatus {
            server, name, addr, alive: alive[0], leaving: alive[1], unreached: alive[2], segments,
            iops: n[0], bytes: n[1],
        }
    });
    let peer = made!((role, role()), (name, label()), (addr, addr()), (alive, any::<bool>()) => {
        BlockPeer { role, name, addr, alive }
    });
    made!((manager, label()), (n, any::<[u64; 5]>()), (servers, vec(server, 0..3)),
        (peers, vec(peer, 0..3)) => {
        BlockStatus {
            manager, term: n[0], volumes: n[1], removing: n[2], orphans: n[3], moves: n[4], servers,
            peers,
        }
    })
}

pub(super) fn request() -> impl Strategy<Value = BlockRequest> {
    let nonce = any::<u64>;
    prop_oneof![
        made!((nonce, nonce()), (spec, spec()) => BlockRequest::Create { nonce, spec }),
        made!((volume, volume()), (force, any::<bool>()) => {
            BlockRequest::Remove { volume, force }
        }),
        made!((volume, volume()) => BlockRequest::RemoveDeleted { volume }),
        made!((volume, volume()), (force, any::<bool>()), (snapshots, any::<bool>()) => {
            BlockRequest::Delete { volume, force, snapshots }
        }),
        made!((after, option::of(volume())), (limit, 1..=VOLUMES_PAGE) => {
            BlockRequest::ListDeleted { after, limit }
        }),
        made!((volume, volume()), (name, option::of(name())) => {
            BlockRequest::Undelete { volume, name }
        }),
        made!((volume, volume()), (bytes, bytes()), (force, any::<bool>()) => {
            BlockRequest::Resize { volume, bytes, force }
        }),
        made!((volume, volume()), (limits, limits()), (shared, any::<bool>()),
            (policy, option::of(policy())) => {
            BlockRequest::Set { volume, limits, shared, policy }
        }),
        made!((volume, volume()), (limits, limits()), (shared, any::<bool>()),
            (policy, option::of(policy())), (named, any::<[bool; 5]>()) => {
            let [iops_base, iops_burst, bytes_base, bytes_burst, of_shared] = named;
            let named = NamedSettings {
                iops_base, iops_burst, bytes_base, bytes_burst, shared: of_shared,
            };
            BlockRequest::Change { volume, limits, shared, policy, named }
        }),
        made!((nonce, nonce()), (volume, volume()), (name, name()) => {
            BlockRequest::Snapshot { nonce, volume, name }
        }),
        made!((nonce, nonce()), (snapshot, volume()), (name, name()) => {
            BlockRequest::Clone { nonce, snapshot, name }
        }),
        made!((nonce, nonce()), (snapshot, volume()) => BlockRequest::Rollback { nonce, snapshot }),
        volume().prop_map(|volume| BlockRequest::Flatten { volume }),
        name().prop_map(|name| BlockRequest::Find { name }),
        made!((after, option::of(name())), (limit, 1..=VOLUMES_PAGE) => {
            BlockRequest::List { after, limit }
        }),
        made!((volume, volume()), (from, any::<u32>()), (limit, 1..=SEGMENTS_PAGE) => {
            BlockRequest::Map { volume, from, limit }
        }),
        made!((name, name()), (nonce, nonce()), (holder, label()) => {
            BlockRequest::Attach { name, nonce, holder }
        }),
        vec((volume(), epoch()), 0..4).prop_map(|attachments| BlockRequest::Keep { attachments }),
        made!((volume, volume()), (epoch, epoch()) => BlockRequest::Detach { volume, epoch }),
        made!((segment, segment()), (epoch, epoch()), (attachment, epoch()) => {
            BlockRequest::Admit { segment, epoch, attachment }
        }),
        made!((segment, segment()), (epoch, epoch()) => BlockRequest::Doubt { segment, epoch }),
        made!((name, label()), (addr, addr()) => BlockRequest::Register { name, addr }),
        heartbeat().prop_map(BlockRequest::Heartbeat),
        made!((role, role()), (name, label()), (addr, addr()) => {
            BlockRequest::Here { role, name, addr }
        }),
        Just(BlockRequest::Status),
    ]
}

pub(super) fn reply() -> impl Strategy<Value = BlockReply> {
    prop_oneof![
        info().prop_map(BlockReply::Volume),
        made!((volumes, vec(info(), 0..3)), (more, any::<bool>()) => {
            BlockReply::Volumes { volumes, more }
        }),
        made!((segments, vec(place(), 0..4)), (more, any::<bool>()) => {
            BlockReply::Map { segments, more }
        }),
        made!((volume, info()), (epoch, epoch()) => BlockReply::Attached { volume, epoch }),
        vec((volume(), epoch()), 0..4).prop_map(|over| BlockReply::Kept { over }),
        any::<[bool; 3]>().prop_map(|[lives, owns, latest]| {
            BlockReply::Standing(Standing { lives, owns, latest })
        }),
        made!((server, server()), (boot, any::<u64>()) => BlockReply::Registered { server, boot }),
        grant().prop_map(BlockReply::Grant),
        status().prop_map(BlockReply::Status),
        any::<u64>().prop_map(BlockReply::Shared),
        made!((volumes, vec(deleted(), 0..3)), (more, any::<bool>()) => {
            BlockReply::Deleted { volumes, more }
        }),
        Just(BlockReply::Done),
    ]
}

pub(super) fn server_request() -> impl Strategy<Value = BlockServerRequest> {
    prop_oneof![
        Just(BlockServerRequest::HeartbeatNow),
        Just(BlockServerRequest::Ping),
        made!((segment, segment()), (from, any::<u64>()), (to, any::<u64>()) => {
            BlockServerRequest::HasData { segment, from, to }
        }),
        made!((segment, segment()), (from, any::<u64>()) => {
            BlockServerRequest::Check { segment, from }
        }),
        segment().prop_map(|segment| BlockServerRequest::Scrub { segment }),
        made!((segment, segment()), (cut, any::<u64>()), (hold_ms, 0..=LEASE_MAX_MS) => {
            BlockServerRequest::Cut { segment, cut, hold_ms }
        }),
        made!((segment, segment()), (cut, any::<u64>()), (keep, any::<bool>()) => {
            BlockServerRequest::Release { segment, cut, keep }
        }),
        made!((segment, segment()), (cut, any::<u64>()), (to, segment()), (policy, policy()) => {
            BlockServerRequest::Link { segment, cut, to, policy }
        }),
        segment().prop_map(|segment| BlockServerRequest::Flatten { segment }),
        segment().prop_map(|from| BlockServerRequest::Usage { from }),
    ]
}

pub(super) fn server_reply() -> impl Strategy<Value = BlockServerReply> {
    let check = made!((n, any::<[u64; 4]>()), (findings, vec("\\PC{0,20}", 0..3)) => {
        SegmentCheck { next: n[0], blocks: n[1], files: n[2], findings, findings_count: n[3] }
    });
    let scrub = any::<[u64; 5]>().prop_map(|n| SegmentScrub {
        passes: n[0],
        done_bytes: n[1],
        total_bytes: n[2],
        read_bytes: n[3],
        damaged: n[4],
    });
    let usage = made!(
        (index, any::<u32>()),
        (files, any::<u64>()),
        (blocks, any::<u64>()),
        (live, any::<u64>()),
        (bytes, any::<[u64; 6]>())
        => {
            let [file_bytes, stored_bytes, append_bytes, collected_bytes, index_bytes, collect_read_bytes] =
                bytes;
            SegmentUsage {
                index,
                files,
                file_bytes,
                stored_bytes,
                blocks,
                live,
                append_bytes,
                collected_bytes,
                collect_read_bytes,
                index_bytes,
            }
        }
    );
    prop_oneof![
        Just(BlockServerReply::Done),
        any::<bool>().prop_map(BlockServerReply::HasData),
        check.prop_map(BlockServerReply::Checked),
        scrub.prop_map(BlockServerReply::Scrub),
        any::<u64>().prop_map(BlockServerReply::Count),
        made!((segments, vec(usage, 0..4)), (more, any::<bool>()) => {
            BlockServerReply::Usage { segments, more }
        }),
    ]
}
