//! Commands that show volumes.

use block_proto::limits::VOLUMES_PAGE;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeInfo};
use block_volume::figures::SegmentScrub;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use serde_json::{Value, json};

use super::space::Space;
use super::unexpected_reply;
use crate::exit::{Done, Failure};
use crate::output::{bytes, print_json, print_line, print_table, table, visible};

/// A volume as JSON has it.
pub fn volume(info: &VolumeInfo, nbd: Option<&str>) -> Value {
    let spec = &info.spec;
    let limits = spec.limits;
    let attachments = info.attachments.iter();
    let attachment =
        |one: &block_proto::Attachment| json!({ "holder": one.holder, "epoch": one.epoch });
    json!({
        "name": spec.name,
        "id": info.volume.to_string(),
        "bytes": spec.bytes,
        "policy": spec.policy.to_string(),
        "sector_bytes": spec.geometry.data_sector,
        "segments_per_group": spec.geometry.segments_per_group,
        "group_bytes": spec.geometry.group_bytes,
        "shared": spec.shared,
        "limits": {
            "iops_base": limits.iops_base,
            "iops_burst": limits.iops_burst,
            "bytes_base": limits.bytes_base,
            "bytes_burst": limits.bytes_burst,
        },
        "attachments": attachments.map(attachment).collect::<Vec<_>>(),
        "nbd": nbd.map(|nbd| format!("{nbd}/{}", spec.name)),
    })
}

/// Limits as text (B12).
pub fn limits(limits: VolumeLimits) -> String {
    if limits == VolumeLimits::default() {
        return "none".to_owned();
    }
    let bound = |count: u64, none: &str, unit: &str| match count {
        0 => none.to_owned(),
        count => format!("{count}{unit}"),
    };
    let mb = |bytes: u64| bytes / 1_000_000;
    format!(
        "requests a second {} promised, {} at most; MB a second {} promised, {} at most",
        bound(limits.iops_base, "none", ""),
        bound(limits.iops_burst, "any", ""),
        bound(mb(limits.bytes_base), "none", ""),
        bound(mb(limits.bytes_burst), "any", "")
    )
}

pub async fn all(managers: &Managers) -> Result<Vec<VolumeInfo>, Failure> {
    let mut found: Vec<VolumeInfo> = Vec::new();
    loop {
        let after = found.last().map(|info| info.spec.name.clone());
        match managers.ask(BlockRequest::List { after, limit: VOLUMES_PAGE }).await? {
            BlockReply::Volumes { volumes, more } => {
                let more = more && !volumes.is_empty();
                found.extend(volumes);
                if !more {
                    return Ok(found);
                }
            }
            other => return Err(unexpected_reply(&other)),
        }
    }
}

/// Snapshots of a volume, the oldest first.
fn snapshots_of<'a>(
    info: &VolumeInfo,
    all: &'a [VolumeInfo],
) -> impl Iterator<Item = &'a VolumeInfo> {
    let mut found: Vec<_> = all.iter().filter(|one| one.parent == Some(info.volume)).collect();
    found.sort_by_key(|one| one.volume);
    found.into_iter()
}

/// The snapshot that a volume shares files with.
fn clone_source_of(info: &VolumeInfo, all: &[VolumeInfo]) -> Option<String> {
    let clone_source = info.clone_source?;
    let known = all.iter().find(|one| one.volume == clone_source);
    Some(known.map_or_else(|| "a removed snapshot".to_owned(), |one| one.spec.name.clone()))
}

fn with_family(mut shown: Value, info: &VolumeInfo, all: &[VolumeInfo]) -> Value {
    shown["origin"] = clone_source_of(info, all).into();
    shown["snapshots"] = snapshots_of(info, all).map(super::snapshot::shown).collect();
    shown
}

/// Lists all volumes.
pub async fn ls(managers: &Managers, json: bool) -> Done {
    let all = all(managers).await?;
    let volumes = all.iter().filter(|info| info.parent.is_none());
    if json {
        let mut listed = Vec::new();
        for info in volumes {
            let mut shown = with_family(volume(info, None), info, &all);
            shown["state"] = health(managers, info.volume).await.into();
            listed.push(shown);
        }
        return print_json(&listed);
    }
    let mut out = table(&["name", "size", "policy", "snapshots", "clone of", "open by", "state"]);
    for info in volumes {
        let health = health(managers, info.volume).await;
        let holders: Vec<_> = info.attachments.iter().map(|one| visible(&one.holder)).collect();
        let holders = if holders.is_empty() { "-".to_owned() } else { holders.join(", ") };
        let policy = info.spec.policy.to_string();
        let snapshots = snapshots_of(info, &all).count().to_string();
        let clone_source = clone_source_of(info, &all).unwrap_or_else(|| "-".to_owned());
        let size = bytes(info.spec.bytes);
        out.add_row([
            info.spec.name.clone(),
            size,
            policy,
            snapshots,
            clone_source,
            holders,
            health,
        ]);
    }
    print_table(out, &[1, 3])
}

/// Shows a volume with its segments; `nbd` is the address of its front ends, when known.
pub async fn info(managers: &Managers, name: &str, nbd: Option<&str>, json: bool) -> Done {
    let info = managers.volume(name).await?;
    let map = managers.map(info.volume).await?;
    let space = Space::of(managers, &info, &map).await;
    let all = all(managers).await?;
    let pinned = super::pinned::of(managers, info.volume, &all).await?;
    let pinned = pinned.get(&info.volume).copied();
    if json {
        let mut shown = with_family(volume(&info, nbd), &info, &all);
        shown["space"] = space.json();
        if let Some(pinned) = pinned {
            shown["space"]["shared_bytes"] = pinned.shared.into();
            shown["space"]["alone_bytes"] = pinned.alone.into();
        }
        let scrubs = scrubs(managers, info.volume, &map).await;
        let segment = |(place, scrub): (&block_proto::SegmentPlace, &Option<SegmentScrub>)| {
            json!({
                "index": place.index,
                "epoch": place.epoch,
                "server": place.server.map(|_| place.name.clone()),
                "addr": place.addr.map(|addr| addr.to_string()),
                "serving": place.serving,
                "state": state(place),
                "cause": place.cause,
                "space": space.segment(place.index),
                "scrub": scrub.map(|scrub| json!({
                    "passes": scrub.passes,
                    "done_bytes": scrub.done_bytes,
                    "total_bytes": scrub.total_bytes,
                    "read_bytes": scrub.read_bytes,
                    "damaged_blocks": scrub.damaged,
                })),
            })
        };
        shown["segments"] = map.iter().zip(&scrubs).map(segment).collect();
        return print_json(&shown);
    }
    let spec = &info.spec;
    let geometry = spec.geometry;
    print_line(&format!(
        "volume    {} ({})\nsize      {} bytes ({}), {}\nlayout    sectors of {} over \
         {} segments of each {}\nlimits    {}\nspace     {}",
        spec.name,
        info.volume,
        spec.bytes,
        bytes(spec.bytes),
        spec.policy,
        bytes(geometry.data_sector),
        geometry.segments_per_group,
        bytes(geometry.group_bytes),
        limits(spec.limits),
        space.text()
    ))?;
    if let Some(nbd) = nbd {
        print_line(&format!("export    {nbd}/{}", spec.name))?;
    }
    if let Some(pinned) = pinned {
        print_line(&format!(
            "shared    {} on disks with snapshots or clones, {} alone",
            bytes(pinned.shared),
            bytes(pinned.alone)
        ))?;
    }
    if let Some(clone_source) = clone_source_of(&info, &all) {
        print_line(&format!("clone of  {clone_source}"))?;
    }
    for one in snapshots_of(&info, &all) {
        print_line(&format!("snapshot  {}", one.spec.name))?;
    }
    for one in &info.attachments {
        print_line(&format!("open by   {} (epoch {})", visible(&one.holder), one.epoch))?;
    }
    let mut out = table(&["segment", "server", "address", "epoch", "state", "scrub"]);
    let mut causes = Vec::new();
    let scrubs = scrubs(managers, info.volume, &map).await;
    for (place, scrub) in map.into_iter().zip(scrubs) {
        let dash = || "-".to_owned();
        out.add_row([
            place.index.to_string(),
            place.server.map_or_else(dash, |_| place.name.clone()),
            place.addr.map_or_else(dash, |addr| addr.to_string()),
            place.epoch.to_string(),
            state(&place).to_owned(),
            scrub.map_or_else(dash, |scrub| {
                let percent = scrub.done_bytes * 100 / scrub.total_bytes.max(1);
                format!("pass {}, {percent} %", scrub.passes + 1)
            }),
        ]);
        if let Some(damaged) = scrub.map(|scrub| scrub.damaged).filter(|damaged| *damaged > 0) {
            let index = place.index;
            causes.push(format!(
                "segment {index}: scrub met {damaged} damaged blocks: run 'craton volume check'"
            ));
        }
        if !place.cause.is_empty() {
            causes.push(format!("segment {}: {}", place.index, place.cause));
        }
    }
    print_table(out, &[0, 3])?;
    causes.iter().try_for_each(|cause| print_line(cause))
}

/// Progress of the segments' scrubs, from owners that report it (B14).
async fn scrubs(
    managers: &Managers,
    volume: VolumeId,
    map: &[block_proto::SegmentPlace],
) -> Vec<Option<SegmentScrub>> {
    let scrub = |place: &block_proto::SegmentPlace| {
        let segment = SegmentId { volume, index: place.index };
        let addr = place.addr.filter(|_| place.serving);
        async move { super::check::scrub(managers.client(), addr?, segment).await }
    };
    futures_util::future::join_all(map.iter().map(scrub)).await
}

/// Text: whether all segments of a volume are served; the cause of the first that is not.
async fn health(managers: &Managers, volume: VolumeId) -> String {
    let Ok(map) = managers.map(volume).await else { return "unknown".to_owned() };
    let waits: Vec<_> = map.iter().filter(|place| !place.serving).collect();
    match waits.first() {
        None => "served".to_owned(),
        Some(first) => {
            format!("{} of {} segments wait: {}", waits.len(), map.len(), first.cause)
        }
    }
}

/// State of a segment at its owner.
fn state(place: &block_proto::SegmentPlace) -> &'static str {
    match (place.serving, place.server) {
        (true, _) => "serves",
        (false, Some(_)) => "opens",
        (false, None) => "waits",
    }
}
