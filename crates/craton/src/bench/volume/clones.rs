//! How many clones of a small snapshotted volume are made in a second on one manager (B11).

use block::frontend::Exports;
use block::manager::{Managers, VolumeExports};
use futures_util::future::join_all;
use wire::control::{BlockReply, BlockRequest, VolumeInfo};

use super::super::{Latencies, Row};
use super::{CREATE_DEPTH, LARGE, create, say, until_served};

/// Data of the volume that is cloned: some in each of its four segments.
const DATA: u64 = 4 << 20;

/// Makes a volume with some data and a snapshot of it, clones that `count` times, some at a time,
/// and removes all.
pub(super) async fn clones(
    managers: &Managers,
    exports: &VolumeExports,
    tag: u64,
    (copies, count): (u8, u32),
) -> Result<Row, String> {
    let env = managers.client().env();
    let name = format!(".bench-cloned-{tag:016x}");
    let source = create(managers, &name, copies).await?;
    let device = exports.open(&name).await.map_err(say)?;
    let data = env.pool().copy_of(&[7; LARGE]).map_err(say)?;
    for n in 0..DATA / LARGE as u64 {
        device.write(n * LARGE as u64, data.clone()).await.map_err(say)?;
    }
    drop(device);
    let (nonce, snapshot) = (env.random_u64(), "s".to_owned());
    let request = BlockRequest::Snapshot { nonce, volume: source, name: snapshot };
    let snapshot = volume(managers, request).await?.volume;
    let began = env.now();
    let lanes = (0..CREATE_DEPTH).map(|lane| async move {
        let (mut latencies, mut made) = (Latencies::default(), Vec::new());
        for n in (lane..count as usize).step_by(CREATE_DEPTH) {
            let (started, nonce) = (env.now(), env.random_u64());
            let name = format!(".bench-clone-{tag:016x}-{n}");
            let request = BlockRequest::Clone { nonce, snapshot, name: name.clone() };
            let info = volume(managers, request).await?;
            until_served(managers, info.volume, &name).await?;
            made.push(info.volume);
            latencies.add(env.now() - started);
        }
        Ok::<_, String>((latencies, made))
    });
    let done = join_all(lanes).await;
    let busy = env.now() - began;
    let mut all = Latencies::default();
    let mut gone = Vec::new();
    for lane in done {
        let (latencies, made) = lane?;
        all.merge(latencies);
        gone.extend(made);
    }
    for volume in gone.into_iter().chain([snapshot, source]) {
        let request = BlockRequest::Remove { volume, force: true };
        managers.ask(request).await.map_err(say)?;
    }
    let kind = Some("clone volume".to_owned());
    let mut row = Row { kind, depth: CREATE_DEPTH, ..Row::default() };
    all.fill(&mut row, busy);
    Ok(row)
}

async fn volume(managers: &Managers, request: BlockRequest) -> Result<VolumeInfo, String> {
    match managers.ask(request).await.map_err(say)? {
        BlockReply::Volume(info) => Ok(info),
        other => Err(format!("the block manager answers something else than a volume: {other:?}")),
    }
}
