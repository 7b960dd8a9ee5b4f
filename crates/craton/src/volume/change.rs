//! Commands that change volumes.

use base::GIB;
use block_proto::managers::Error;
use block_proto::paths::AT;
use block_proto::{
    BlockReply, BlockRequest, Managers, NamedSettings, VolumeGeometry, VolumeInfo, VolumeSpec,
};
use block_volume::contract::Clear;
use block_volume::geometry::Extent;
use block_volume::limits::{BLOCK, VOLUME_BYTES};
use block_volume::qos::VolumeLimits;
use runtime::Duration;
use wire::control::Policy;

use super::args::{CreateArgs, LimitArgs};
use super::open::{self, Site};
use super::{deleted, show, unexpected_reply};
use crate::exit::{Code, Done, Failure};
use crate::fs::policy::{self, SpreadArg};
use crate::output::{bytes, print_json, print_line};

/// Interval of checks of a new volume's segments.
const LOOK: Duration = Duration::from_millis(5);
/// Wait for a new volume's segments to open.
const OPEN_WAIT: Duration = Duration::from_secs(30);
/// Bytes of one request that trims.
const TRIM_BYTES: u64 = GIB;
/// Bytes of a MB as limits have it.
const MB: u64 = 1_000_000;

impl LimitArgs {
    /// The limits, with known values for those that are not given.
    fn over(&self, known: VolumeLimits) -> VolumeLimits {
        let mb = |asked: Option<u64>| asked.map(|count| count.saturating_mul(MB));
        VolumeLimits {
            iops_base: self.iops_base.unwrap_or(known.iops_base),
            iops_burst: self.iops_burst.unwrap_or(known.iops_burst),
            bytes_base: mb(self.mbps_base).unwrap_or(known.bytes_base),
            bytes_burst: mb(self.mbps_burst).unwrap_or(known.bytes_burst),
        }
    }

    /// Those that are given.
    fn named(&self) -> NamedSettings {
        NamedSettings {
            iops_base: self.iops_base.is_some(),
            iops_burst: self.iops_burst.is_some(),
            bytes_base: self.mbps_base.is_some(),
            bytes_burst: self.mbps_burst.is_some(),
            shared: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.named() == NamedSettings::default()
    }
}

/// Sends a request that is answered with a volume.
pub async fn change(managers: &Managers, request: BlockRequest) -> Result<VolumeInfo, Failure> {
    match managers.ask(request).await? {
        BlockReply::Volume(info) => Ok(info),
        other => Err(unexpected_reply(&other)),
    }
}

/// A name that a volume can have.
pub fn check_name(name: &str) -> Done {
    let bad = name.is_empty()
        || name.len() > base::limits::NAME_MAX
        || name == "."
        || name == ".."
        || name.contains(['/', AT])
        || name.chars().any(char::is_control);
    match bad {
        false => Ok(()),
        true => Err(Failure::usage(format!(
            "'{}' is no name of a volume: 1 to {} bytes, no '/', no '@' and no control characters",
            name.escape_debug(),
            base::limits::NAME_MAX
        ))),
    }
}

/// Refuses lengths above those of any volume, which no request can carry.
fn check_length(bytes: u64) -> Done {
    let most = VOLUME_BYTES.1;
    match bytes > most {
        true => Err(Failure::failed(format!(
            "a volume of {bytes} bytes; choose a multiple of {BLOCK} of at most {most}"
        ))),
        false => Ok(()),
    }
}

/// Makes a volume and waits until its export can be opened. A name that is taken, and invalid
/// sizes, are refused.
pub async fn create(
    managers: &Managers,
    name: &str,
    args: &CreateArgs,
    nbd: Option<&str>,
    json: bool,
) -> Done {
    let info = make(managers, name, args).await?;
    if json {
        return print_json(&show::volume(&info, nbd));
    }
    let place = nbd.map(|nbd| format!(": {nbd}/{name}")).unwrap_or_default();
    print_line(&format!("{name} of {} can be opened{place}", bytes(info.spec.bytes)))
}

/// The same without output.
pub async fn make(
    managers: &Managers,
    name: &str,
    args: &CreateArgs,
) -> Result<VolumeInfo, Failure> {
    check_name(name)?;
    check_length(args.size as u64)?;
    let client = managers.client();
    let policy = match args.policy {
        Some(policy) => {
            policy::check_places(client, policy, SpreadArg::Domain).await?;
            policy
        }
        None => policy::default(client).await?,
    };
    let spec = VolumeSpec {
        name: name.to_owned(),
        bytes: args.size as u64,
        geometry: VolumeGeometry {
            group_bytes: args.group_size as u64,
            segments_per_group: args.segments,
            data_sector: args.sector_size as u64,
        },
        policy,
        limits: args.limits.over(VolumeLimits::default()),
        shared: args.shared,
    };
    let nonce = client.env().random_u64();
    let info = change(managers, BlockRequest::Create { nonce, spec }).await?;
    wait_open(managers, &info).await?;
    Ok(info)
}

/// Waits until every segment is served.
pub async fn wait_open(managers: &Managers, info: &VolumeInfo) -> Done {
    let env = managers.client().env();
    let deadline = env.now() + OPEN_WAIT;
    loop {
        let map = managers.map(info.volume).await?;
        let left: Vec<_> = map.iter().filter(|place| !place.serving).collect();
        if left.is_empty() {
            return Ok(());
        }
        if env.now() >= deadline {
            let orphans = left.iter().filter(|place| place.server.is_none()).count();
            let cause = match orphans {
                0 => "see the logs of the block servers",
                _ => "no block server is there to serve them: start one",
            };
            return Err(Failure::new(
                Code::Unavailable,
                format!(
                    "{} is made, but {} of its {} segments cannot be opened yet; {cause}",
                    info.spec.name,
                    left.len(),
                    map.len()
                ),
            ));
        }
        env.sleep(LOOK).await;
    }
}

/// Changes limits, sharing and policy of a volume; at least one must be named.
pub async fn set(
    managers: &Managers,
    name: &str,
    limits: &LimitArgs,
    (shared, policy): (Option<bool>, Option<Policy>),
    json: bool,
) -> Done {
    if limits.is_empty() && shared.is_none() && policy.is_none() {
        return Err(Failure::usage(
            "nothing to set: give --iops-base, --iops-burst, --mbps-base, --mbps-burst, --shared or \
             --policy",
        ));
    }
    if let Some(policy) = policy {
        policy::check_places(managers.client(), policy, SpreadArg::Domain).await?;
    }
    // The present settings are for managers of older programs, which set all of them.
    let known = managers.volume(name).await?;
    let request = BlockRequest::Change {
        volume: known.volume,
        limits: limits.over(known.spec.limits),
        shared: shared.unwrap_or(known.spec.shared),
        policy,
        named: NamedSettings { shared: shared.is_some(), ..limits.named() },
    };
    let info = change(managers, request).await?;
    if let Some(asked) = policy.filter(|asked| *asked != info.spec.policy) {
        return Err(Failure::failed(format!(
            "{name} keeps {}: the leading block manager is of a version that cannot set {asked}; \
             upgrade all block managers, then set it again",
            info.spec.policy
        )));
    }
    match json {
        true => print_json(&show::volume(&info, None)),
        false => {
            let limits = show::limits(info.spec.limits);
            print_line(&format!("{name}: {}; limits: {limits}", info.spec.policy))
        }
    }
}

/// Gives a volume `size` bytes. Data is cut off only with `force`, and never while the volume is
/// open (B11).
pub async fn resize(site: &Site<'_>, name: &str, size: u64, force: bool, json: bool) -> Done {
    let managers = site.managers;
    let known = managers.volume(name).await?;
    check_length(size)?;
    let request = |force| BlockRequest::Resize { volume: known.volume, bytes: size, force };
    let info = match managers.ask(request(false)).await {
        Err(Error::Refused { kind: base::Kind::Exists, .. }) if force => {
            trim_tail(site, &known, size).await?;
            managers.ask(request(true)).await
        }
        answer => answer,
    };
    let info = match info {
        Ok(BlockReply::Volume(info)) => info,
        Ok(other) => return Err(unexpected_reply(&other)),
        Err(Error::Refused { kind: base::Kind::Exists, .. }) if force => {
            let text =
                format!("{name}: a client wrote past {size} bytes at the same time; try again");
            return Err(Failure::failed(text));
        }
        Err(error) => return Err(error.into()),
    };
    if size > known.spec.bytes {
        wait_open(managers, &info).await?;
    }
    if json {
        return print_json(&show::volume(&info, None));
    }
    let (was, is) = (bytes(known.spec.bytes), bytes(size));
    print_line(&format!(
        "{name} had {was} and has {is}: who has it open sees it when opening again"
    ))
}

/// Trims a volume's data past `size` in segments that it keeps: those of the group in which it is
/// to end.
async fn trim_tail(site: &Site<'_>, known: &VolumeInfo, size: u64) -> Done {
    let name = &known.spec.name;
    let end = size.next_multiple_of(known.spec.geometry.group_bytes).min(known.spec.bytes);
    if size >= end {
        return Ok(()); // Whole segments go.
    }
    let device = site.open(name).await?;
    let mut offset = size;
    let mut trimmed = Ok(());
    while offset < end && trimmed.is_ok() {
        let extent = Extent { offset, len: (end - offset).min(TRIM_BYTES) };
        trimmed = device.clear(extent, Clear::Trim).await;
        offset += extent.len;
    }
    site.close(name, device).await;
    trimmed.map_err(|fault| open::failure(name, &fault))
}

/// Removes volumes. Their data is kept for a while, unless it is to go `now`: then deleted volumes
/// go too. With `force` also open and missing ones. With `snapshots` also their snapshots.
pub async fn rm(
    managers: &Managers,
    names: &[String],
    (force, snapshots, now): (bool, bool, bool),
    json: bool,
) -> Done {
    let mut removed = Vec::new();
    for name in names {
        let info = match managers.volume(name).await {
            Ok(info) => info,
            Err(Error::Refused { kind: base::Kind::NotFound, .. }) if now || force => {
                let gone = match now {
                    true => deleted::remove(managers, name).await?,
                    false => None,
                };
                match gone {
                    Some(info) => removed.push(show::volume(&info, None)),
                    None if force => {}
                    None => {
                        let text = format!("{name}: no such volume, and none is deleted");
                        return Err(Failure::failed(text));
                    }
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let volume = info.volume;
        let delete = BlockRequest::Delete { volume, force, snapshots };
        let request = match now || info.parent.is_some() {
            true if snapshots && info.parent.is_none() => {
                // One request checks all of them; when one is refused, none is removed.
                managers.ask(delete).await?;
                BlockRequest::RemoveDeleted { volume }
            }
            true => BlockRequest::Remove { volume, force },
            false => delete,
        };
        let mut shown = show::volume(&info, None);
        match managers.ask(request).await? {
            BlockReply::Done => {}
            BlockReply::Deleted { volumes, .. } => {
                let left_ms = volumes.first().map_or(0, |one| one.left_ms);
                shown["left_s"] = (left_ms / 1000).into();
                if !json {
                    let left = deleted::left(left_ms);
                    print_line(&format!(
                        "{name} is kept for {left}: 'craton volume undelete {name}' brings it back"
                    ))?;
                }
            }
            other => return Err(unexpected_reply(&other)),
        }
        removed.push(shown);
    }
    if json { print_json(&removed) } else { Ok(()) }
}
