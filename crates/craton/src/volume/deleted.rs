//! Volumes that were deleted, and whose data is still there.

use block_proto::limits::VOLUMES_PAGE;
use block_proto::paths::AT;
use block_proto::{BlockReply, BlockRequest, DeletedVolume, Managers, VolumeInfo};
use block_volume::ids::VolumeId;
use block_volume::space::alone;
use roles::uses::uses;
use serde_json::json;

use super::change::{change, check_name, wait_open};
use super::{show, unexpected_reply};
use crate::exit::{Done, Failure};
use crate::output::{bytes, print_json, print_line, print_table, table};

/// Deleted volumes and their snapshots.
async fn all(managers: &Managers) -> Result<Vec<DeletedVolume>, Failure> {
    let mut found: Vec<DeletedVolume> = Vec::new();
    loop {
        let after = found.last().map(|one| one.info.volume);
        match managers.ask(BlockRequest::ListDeleted { after, limit: VOLUMES_PAGE }).await? {
            BlockReply::Deleted { volumes, more } => {
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

fn is_volume(one: &&DeletedVolume) -> bool {
    one.info.parent.is_none()
}

/// A time as text, in the two largest units.
pub fn left(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Lists deleted volumes, those that expire first before others.
pub async fn ls(managers: &Managers, json: bool) -> Done {
    let deleted = all(managers).await?;
    let mut volumes: Vec<_> = deleted.iter().filter(is_volume).collect();
    volumes.sort_by_key(|one| (one.left_ms, one.info.volume));
    let mut infos = show::all(managers).await?;
    infos.extend(deleted.iter().map(|one| one.info.clone()));
    let uses = match volumes.is_empty() {
        true => Vec::new(),
        false => uses(managers.client(), &infos).await?,
    };
    let snapshots = |of: VolumeId| -> Vec<&VolumeInfo> {
        let own = deleted.iter().filter(|one| one.info.parent == Some(of));
        own.map(|one| &one.info).collect()
    };
    let room = |of: VolumeId| {
        let own = snapshots(of);
        alone(&uses, |one| one == of || own.iter().any(|info| info.volume == one))
    };
    if json {
        let shown = |one: &&DeletedVolume| {
            let id = one.info.volume;
            json!({
                "name": one.info.spec.name,
                "id": id.to_string(),
                "size_bytes": one.info.spec.bytes,
                "bytes": room(id),
                "deleted_ms": one.at_ms,
                "left_s": one.left_ms / 1000,
                "snapshots": snapshots(id)
                    .iter()
                    .map(|info| info.spec.name.rsplit(AT).next().unwrap_or_default())
                    .collect::<Vec<_>>(),
            })
        };
        return print_json(&volumes.iter().map(shown).collect::<Vec<_>>());
    }
    let mut out = table(&["name", "id", "size", "on disks", "snapshots", "left"]);
    for one in volumes {
        let id = one.info.volume;
        out.add_row([
            one.info.spec.name.clone(),
            id.to_string(),
            bytes(one.info.spec.bytes),
            bytes(room(id)),
            snapshots(id).len().to_string(),
            left(one.left_ms),
        ]);
    }
    print_table(out, &[2, 3, 4])
}

/// The deleted volume of a name or ID.
async fn find(managers: &Managers, what: &str) -> Result<Option<VolumeInfo>, Failure> {
    let deleted = all(managers).await?;
    let id: Option<VolumeId> = what.parse().ok();
    let is_it = |one: &&DeletedVolume| Some(one.info.volume) == id || one.info.spec.name == what;
    let found: Vec<_> = deleted.iter().filter(is_volume).filter(is_it).collect();
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.info.clone())),
        _ => {
            let ids: Vec<_> = found.iter().map(|one| one.info.volume.to_string()).collect();
            Err(Failure::usage(format!(
                "{} deleted volumes had the name {what}: name one of {} ('craton volume ls \
                 --deleted' shows them)",
                ids.len(),
                ids.join(", ")
            )))
        }
    }
}

/// Brings a deleted volume back.
pub async fn undelete(
    managers: &Managers,
    what: &str,
    name: Option<&str>,
    (nbd, json): (Option<&str>, bool),
) -> Done {
    name.map_or(Ok(()), check_name)?;
    let Some(known) = find(managers, what).await? else {
        return Err(Failure::failed(format!(
            "{what}: no such deleted volume: 'craton volume ls --deleted' lists them"
        )));
    };
    let name = name.map(str::to_owned);
    let info = change(managers, BlockRequest::Undelete { volume: known.volume, name }).await?;
    wait_open(managers, &info).await?;
    match json {
        true => print_json(&show::volume(&info, nbd)),
        false => print_line(&format!("{} is back", info.spec.name)),
    }
}

/// Removes a deleted volume of a name or ID for good; nothing when there is none.
pub async fn remove(managers: &Managers, what: &str) -> Result<Option<VolumeInfo>, Failure> {
    let Some(known) = find(managers, what).await? else { return Ok(None) };
    let request = BlockRequest::RemoveDeleted { volume: known.volume };
    match managers.ask(request).await? {
        BlockReply::Done => Ok(Some(known)),
        other => Err(unexpected_reply(&other)),
    }
}
