//! Volumes of a measurement: made, waited for and removed.

use std::time::Duration;

use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeSpec};
use block_volume::ids::VolumeId;
use block_volume::limits::{
    DATA_SECTOR_DEFAULT, GROUP_BYTES_DEFAULT, SEGMENTS_PER_GROUP_DEFAULT, VOLUME_BYTES,
};
use block_volume::qos::VolumeLimits;
use futures_util::future::join_all;
use wire::control::Policy;

use super::super::{Error, Latencies, Row};

/// Volumes that are being made at a time.
pub(super) const CREATE_DEPTH: usize = 16;
/// Between two checks of a volume that is being made.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// Wait for a new volume to be served.
pub(super) const OPEN_WAIT: Duration = Duration::from_secs(20);

/// Makes a volume of the default sizes; completes when it is served.
pub(super) async fn create(
    managers: &Managers,
    name: &str,
    policy: Policy,
) -> Result<VolumeId, Error> {
    let geometry = VolumeGeometry {
        group_bytes: GROUP_BYTES_DEFAULT,
        segments_per_group: SEGMENTS_PER_GROUP_DEFAULT,
        data_sector: DATA_SECTOR_DEFAULT,
    };
    create_as(managers, name, policy, (VOLUME_BYTES.0, geometry, false)).await
}

/// Makes a volume of these bytes and this geometry, shared or not; completes when it is served.
pub(super) async fn create_as(
    managers: &Managers,
    name: &str,
    policy: Policy,
    (bytes, geometry, shared): (u64, VolumeGeometry, bool),
) -> Result<VolumeId, Error> {
    let env = managers.client().env();
    let spec = VolumeSpec {
        name: name.to_owned(),
        bytes,
        geometry,
        policy,
        limits: VolumeLimits::default(),
        shared,
    };
    let nonce = env.random_u64();
    let request = BlockRequest::Create { nonce, spec };
    let BlockReply::Volume(info) = managers.ask(request).await.map_err(Error::failed)? else {
        return Err(Error::failed("the block manager answers something else than a volume"));
    };
    until_served(managers, info.volume, name).await?;
    Ok(info.volume)
}

/// Completes when all segments of a volume are served.
pub(super) async fn until_served(
    managers: &Managers,
    id: VolumeId,
    name: &str,
) -> Result<(), Error> {
    let env = managers.client().env();
    let deadline = env.now() + OPEN_WAIT;
    while !managers.map(id).await.map_err(Error::failed)?.iter().all(|place| place.serving) {
        if env.now() > deadline {
            let late = format!("the volume {name} is not served within {OPEN_WAIT:?}");
            return Err(Error::Failed(late));
        }
        env.sleep(LOOK).await;
    }
    Ok(())
}

/// Makes `count` volumes, some at a time, and removes them.
pub(super) async fn creations(
    managers: &Managers,
    tag: u64,
    (policy, count): (Policy, u32),
) -> Result<Row, Error> {
    let env = managers.client().env();
    let began = env.now();
    let lanes = (0..CREATE_DEPTH).map(|lane| async move {
        let (mut latencies, mut made) = (Latencies::default(), Vec::new());
        for n in (lane..count as usize).step_by(CREATE_DEPTH) {
            let started = env.now();
            let name = format!(".bench-create-{tag:016x}-{n}");
            made.push(create(managers, &name, policy).await?);
            latencies.add(env.now() - started);
        }
        Ok::<_, Error>((latencies, made))
    });
    let done = join_all(lanes).await;
    let busy = env.now() - began;
    let mut all = Latencies::default();
    for lane in done {
        let (latencies, made) = lane?;
        all.merge(latencies);
        for volume in made {
            remove(managers, volume).await?;
        }
    }
    let kind = Some("create volume".to_owned());
    let mut row = Row { kind, depth: CREATE_DEPTH, ..Row::default() };
    all.fill(&mut row, busy);
    Ok(row)
}

/// Removes a volume or a snapshot.
pub(super) async fn remove(managers: &Managers, volume: VolumeId) -> Result<(), Error> {
    let request = BlockRequest::Remove { volume, force: true };
    managers.ask(request).await.map(drop).map_err(Error::failed)
}
