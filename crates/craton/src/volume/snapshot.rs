//! Snapshots and clones on the command line (B10, B11).

use block_proto::paths::AT;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeInfo};
use runtime::Duration;
use serde_json::{Value, json};

use super::args::SnapshotCommand;
use super::change::{change, check_name, wait_open};
use super::{show, unexpected_reply};
use crate::exit::{Code, Done, Failure};
use crate::output::{bytes, print_json, print_line, print_table, table};

/// Between two checks of a clone's shared blocks.
const LOOK: Duration = Duration::from_millis(200);
/// A clone whose shared blocks get no fewer for this long is given up.
const STALL: Duration = Duration::from_secs(120);

/// Runs `craton volume snapshot`.
pub async fn run(managers: &Managers, command: SnapshotCommand) -> Done {
    match command {
        SnapshotCommand::Create { volume, name, json } => {
            create(managers, &volume, &name, json).await
        }
        SnapshotCommand::Ls { volume, json } => ls(managers, &volume, json).await,
        SnapshotCommand::Rm { volume, names, force, json } => {
            let mut removed = Vec::new();
            for name in names {
                let snapshot = find(managers, &format!("{volume}{AT}{name}")).await?;
                remove(managers, &snapshot, force).await?;
                removed.push(shown(&snapshot));
            }
            if json { print_json(&removed) } else { Ok(()) }
        }
        SnapshotCommand::Rollback { volume, name, json } => {
            rollback(managers, &volume, &name, json).await
        }
    }
}

/// A snapshot by its whole name.
async fn find(managers: &Managers, name: &str) -> Result<VolumeInfo, Failure> {
    let info = managers.volume(name).await?;
    match info.parent {
        Some(_) => Ok(info),
        None => Err(Failure::usage(format!(
            "{name} is no snapshot: name one as VOLUME{AT}SNAPSHOT; 'craton volume snapshot ls \
             {name}' lists them"
        ))),
    }
}

/// A snapshot as JSON has it; the part before the last `@` is its volume.
pub fn shown(info: &VolumeInfo) -> Value {
    let name = info.spec.name.rsplit(AT).next().unwrap_or_default();
    json!({
        "name": name,
        "export": info.spec.name,
        "id": info.volume.to_string(),
        "bytes": info.spec.bytes,
        "hold_us": info.hold_us,
        "open_by": info.attachments.iter().map(|one| one.holder.clone()).collect::<Vec<_>>(),
    })
}

fn millis(micros: u64) -> String {
    format!("{}.{:01} ms", micros / 1000, micros % 1000 / 100)
}

async fn create(managers: &Managers, volume: &str, name: &str, json: bool) -> Done {
    check_name(name)?;
    let source = managers.volume(volume).await?;
    let nonce = managers.client().env().random_u64();
    let (volume, name) = (source.volume, name.to_owned());
    let made = change(managers, BlockRequest::Snapshot { nonce, volume, name }).await?;
    match json {
        true => print_json(&shown(&made)),
        false => print_line(&format!(
            "{} of {} is there; writes waited {} for it at most",
            made.spec.name,
            bytes(made.spec.bytes),
            millis(made.hold_us)
        )),
    }
}

async fn ls(managers: &Managers, volume: &str, json: bool) -> Done {
    let source = managers.volume(volume).await?;
    let mut snapshots = show::all(managers).await?;
    let pinned = super::pinned::of(managers, source.volume, &snapshots).await?;
    let pinned = |info: &VolumeInfo| pinned.get(&info.volume).copied().unwrap_or_default();
    snapshots.retain(|info| info.parent == Some(source.volume));
    snapshots.sort_by_key(|info| info.volume);
    if json {
        let shown = |info: &VolumeInfo| {
            let (mut shown, pinned) = (shown(info), pinned(info));
            shown["shared_bytes"] = pinned.shared.into();
            shown["alone_bytes"] = pinned.alone.into();
            shown
        };
        return print_json(&snapshots.iter().map(shown).collect::<Vec<_>>());
    }
    let mut out = table(&["snapshot", "size", "shared", "alone", "held", "open by"]);
    for info in snapshots {
        let holders: Vec<_> = info.attachments.iter().map(|one| one.holder.as_str()).collect();
        let holders = if holders.is_empty() { "-".to_owned() } else { holders.join(", ") };
        out.add_row([
            info.spec.name.clone(),
            bytes(info.spec.bytes),
            bytes(pinned(&info).shared),
            bytes(pinned(&info).alone),
            millis(info.hold_us),
            holders,
        ]);
    }
    print_table(out, &[1, 2, 3, 4])
}

async fn remove(managers: &Managers, info: &VolumeInfo, force: bool) -> Done {
    match managers.ask(BlockRequest::Remove { volume: info.volume, force }).await? {
        BlockReply::Done => Ok(()),
        other => Err(unexpected_reply(&other)),
    }
}

async fn rollback(managers: &Managers, volume: &str, name: &str, json: bool) -> Done {
    let snapshot = find(managers, &format!("{volume}{AT}{name}")).await?;
    let nonce = managers.client().env().random_u64();
    let request = BlockRequest::Rollback { nonce, snapshot: snapshot.volume };
    let info = change(managers, request).await?;
    wait_open(managers, &info).await?;
    match json {
        true => print_json(&show::volume(&info, None)),
        false => print_line(&format!("{volume} is as {} again", snapshot.spec.name)),
    }
}

/// Makes a volume with the content of a snapshot, named as `VOLUME@SNAPSHOT`.
pub async fn clone(
    managers: &Managers,
    snapshot: &str,
    name: &str,
    nbd: Option<&str>,
    json: bool,
) -> Done {
    check_name(name)?;
    let snapshot = find(managers, snapshot).await?;
    let nonce = managers.client().env().random_u64();
    let (of, name) = (snapshot.volume, name.to_owned());
    let request = BlockRequest::Clone { nonce, snapshot: of, name: name.clone() };
    let info = change(managers, request).await?;
    wait_open(managers, &info).await?;
    if json {
        return print_json(&show::volume(&info, nbd));
    }
    let place = nbd.map(|nbd| format!(": {nbd}/{name}")).unwrap_or_default();
    print_line(&format!("{name} has the content of {}{place}", snapshot.spec.name))
}

/// Copies what a volume shares with others, and ends when it shares nothing.
pub async fn flatten(managers: &Managers, name: &str, json: bool) -> Done {
    let info = managers.volume(name).await?;
    let env = managers.client().env();
    let (mut least, mut since, mut first) = (u64::MAX, env.now(), None);
    loop {
        let left = match managers.ask(BlockRequest::Flatten { volume: info.volume }).await? {
            BlockReply::Shared(left) => left,
            other => return Err(unexpected_reply(&other)),
        };
        let shared = *first.get_or_insert(left);
        if left == 0 {
            return match json {
                true => print_json(&json!({ "name": name, "copied_blocks": shared })),
                false => print_line(&format!("{name} shares nothing any more")),
            };
        }
        if left < least {
            (least, since) = (left, env.now());
        } else if env.now() - since > STALL {
            return Err(Failure::new(
                Code::Unavailable,
                format!(
                    "{name} still shares {left} blocks, and they get no fewer; see the logs of \
                     the block servers, then run this again"
                ),
            ));
        }
        env.sleep(LOOK).await;
    }
}
