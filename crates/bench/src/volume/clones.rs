//! Clones of a small snapshotted volume made in a second on one manager, and clones made and opened
//! (B11): a clone is rows of the manager until its segments are opened, which links
//! their files.

use std::rc::Rc;

use block_client::VolumeExports;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeInfo};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::ids::VolumeId;
use block_volume::limits::{DATA_SECTOR_DEFAULT, SEGMENTS_PER_GROUP_DEFAULT};
use futures_util::future::join_all;
use wire::control::Policy;

use super::super::{Error, Latencies, Row};
use super::make::{CREATE_DEPTH, create, remove, until_served};
use super::options::{LARGE, SMALL};

/// Data of the volume that is cloned: some in each of its four segments.
const DATA: u64 = 4 << 20;
/// Byte of its data.
const BYTE: u8 = 7;

const _: () = assert!(DATA >= SEGMENTS_PER_GROUP_DEFAULT as u64 * DATA_SECTOR_DEFAULT);

/// Makes a volume with some data and a snapshot of it, clones that `count` times, some at a time,
/// and as often again with the first read of each of the clone's segments; removes all.
pub(super) async fn clones(
    managers: &Managers,
    exports: &VolumeExports,
    tag: u64,
    (policy, count): (Policy, u32),
) -> Result<[Row; 2], Error> {
    let env = managers.client().env();
    let name = format!(".bench-cloned-{tag:016x}");
    let source = create(managers, &name, policy).await?;
    let device = exports.open(&name).await.map_err(Error::failed)?;
    let data = env.pool().copy_of(&[BYTE; LARGE]).map_err(Error::failed)?;
    for n in 0..DATA / LARGE as u64 {
        device.write(n * LARGE as u64, data.clone()).await.map_err(Error::failed)?;
    }
    drop(device);
    let (nonce, snapshot) = (env.random_u64(), "s".to_owned());
    let request = BlockRequest::Snapshot { nonce, volume: source, name: snapshot };
    let snapshot = volume(managers, request).await?.volume;
    let of = Of { managers, exports, snapshot, count: count as usize };
    let made = of.clones("clone volume", &format!(".bench-clone-{tag:016x}"), false).await?;
    let opened = format!(".bench-opened-{tag:016x}");
    let opened = of.clones("clone volume, read all segments", &opened, true).await?;
    for volume in [snapshot, source] {
        remove(managers, volume).await?;
    }
    Ok([made, opened])
}

/// Source of the clones.
struct Of<'a> {
    managers: &'a Managers,
    exports: &'a VolumeExports,
    snapshot: VolumeId,
    count: usize,
}

impl Of<'_> {
    async fn clones(&self, kind: &str, prefix: &str, read: bool) -> Result<Row, Error> {
        let env = self.managers.client().env();
        let began = env.now();
        let lanes = (0..CREATE_DEPTH).map(|lane| async move {
            let (mut latencies, mut made, mut open) = (Latencies::default(), vec![], vec![]);
            for n in (lane..self.count).step_by(CREATE_DEPTH) {
                let (started, nonce) = (env.now(), env.random_u64());
                let (name, snapshot) = (format!("{prefix}-{n}"), self.snapshot);
                let request = BlockRequest::Clone { nonce, snapshot, name: name.clone() };
                let info = volume(self.managers, request).await?;
                made.push(info.volume);
                match read {
                    true => open.push(self.read_all(&name).await?),
                    false => until_served(self.managers, info.volume, &name).await?,
                }
                latencies.add(env.now() - started);
            }
            Ok::<_, Error>((latencies, made, open))
        });
        let done = join_all(lanes).await;
        let busy = env.now() - began;
        let mut all = Latencies::default();
        for lane in done {
            let (latencies, made, open) = lane?;
            all.merge(latencies);
            drop(open);
            for volume in made {
                remove(self.managers, volume).await?;
            }
        }
        let mut row = Row { kind: Some(kind.to_owned()), depth: CREATE_DEPTH, ..Row::default() };
        all.fill(&mut row, busy);
        Ok(row)
    }

    /// Opens a clone, and reads the snapshot's data from each of its segments.
    async fn read_all(&self, name: &str) -> Result<Rc<dyn Device>, Error> {
        let device = self.exports.open(name).await.map_err(Error::failed)?;
        let reads = (0..u64::from(SEGMENTS_PER_GROUP_DEFAULT)).map(|n| {
            let extent = Extent { offset: n * DATA_SECTOR_DEFAULT, len: SMALL as u64 };
            device.read(extent)
        });
        for read in join_all(reads).await {
            if read.map_err(Error::failed)?[..] != [BYTE; SMALL] {
                let differs = format!("the clone {name} has not what its snapshot has");
                return Err(Error::Failed(differs));
            }
        }
        Ok(device)
    }
}

async fn volume(managers: &Managers, request: BlockRequest) -> Result<VolumeInfo, Error> {
    match managers.ask(request).await.map_err(Error::failed)? {
        BlockReply::Volume(info) => Ok(info),
        other => Err(Error::Failed(format!(
            "the block manager answers something else than a volume: {other:?}"
        ))),
    }
}
