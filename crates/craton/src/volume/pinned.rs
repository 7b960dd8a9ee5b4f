//! Room on the disks that volumes, snapshots and clones keep through shared files (B11): read from
//! their directories, so that a snapshot need not be opened for it.

use std::collections::{BTreeMap, BTreeSet};

use block_proto::{Managers, VolumeInfo};
use block_volume::ids::{FileId, VolumeId};
use roles::uses::uses;

use crate::exit::Failure;

/// Bytes that one of them keeps, all copies counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// Bytes of files that others have too.
    pub shared: u64,
    /// Bytes of files that no other has: its removal gives these back.
    pub alone: u64,
}

/// All that may share files with a volume, itself too: parents, snapshots, clone sources and clones.
fn family(volume: VolumeId, all: &[VolumeInfo]) -> Vec<&VolumeInfo> {
    let mut known = BTreeSet::from([volume]);
    loop {
        let before = known.len();
        for info in all {
            let near: Vec<VolumeId> =
                [Some(info.volume), info.parent, info.clone_source].into_iter().flatten().collect();
            if near.iter().any(|id| known.contains(id)) {
                known.extend(near);
            }
        }
        if known.len() == before {
            return all.iter().filter(|info| known.contains(&info.volume)).collect();
        }
    }
}

/// Bytes that all relatives of a volume keep; nothing when it has none.
pub async fn of(
    managers: &Managers,
    volume: VolumeId,
    all: &[VolumeInfo],
) -> Result<BTreeMap<VolumeId, Pinned>, Failure> {
    let client = managers.client();
    let family = family(volume, all);
    if family.len() < 2 {
        return Ok(BTreeMap::new());
    }
    let family: Vec<VolumeInfo> = family.into_iter().cloned().collect();
    let uses = uses(client, &family).await.map_err(|error| Failure::failed(error.to_string()))?;
    let mut holders = BTreeMap::<FileId, u32>::new();
    uses.iter().for_each(|one| *holders.entry(one.file).or_default() += 1);
    let mut pinned: BTreeMap<VolumeId, Pinned> = BTreeMap::new();
    for one in uses {
        let of = pinned.entry(one.volume).or_default();
        match holders[&one.file] {
            1 => of.alone += one.bytes,
            _ => of.shared += one.bytes,
        }
    }
    Ok(pinned)
}
