//! What volumes, snapshots and clones keep on the disks through shared files (B11): read from their
//! directories, so that a snapshot need not be opened for it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Kind, VolumeId};
use block::device::{FileId, View};
use block::manager::{Managers, segment_path};
use futures_util::stream::{StreamExt, iter};
use table::ClientStore;
use wire::control::{SegmentId, VolumeInfo};

use super::diff::geometry;
use crate::exit::Failure;

/// Directories that are looked at at a time.
const LOOKS: usize = 16;

/// What one of them keeps, all copies counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// Bytes of files that others have too.
    pub shared: u64,
    /// Bytes of files that nobody else has: what its removal gives back.
    pub alone: u64,
}

/// All that may share files with a volume, itself too: parents, snapshots, origins and clones.
fn family(volume: VolumeId, all: &[VolumeInfo]) -> Vec<&VolumeInfo> {
    let mut known = BTreeSet::from([volume]);
    loop {
        let before = known.len();
        for info in all {
            let near: Vec<VolumeId> =
                [Some(info.volume), info.parent, info.origin].into_iter().flatten().collect();
            if near.iter().any(|id| known.contains(id)) {
                known.extend(near);
            }
        }
        if known.len() == before {
            return all.iter().filter(|info| known.contains(&info.volume)).collect();
        }
    }
}

/// What all that may share files with a volume keep; nothing when it has no relations.
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
    let mut segments = Vec::new();
    for info in family {
        let count = geometry(info)?.segments(info.spec.bytes) as u32;
        segments.extend((0..count).map(|index| (info, index)));
    }
    let files = segments.into_iter().map(|(info, index)| async move {
        let path = segment_path(SegmentId { volume: info.volume, index });
        let store = match ClientStore::find(client, &path).await {
            Ok(store) => Rc::new(store),
            // Nobody has used it yet.
            Err(error) if error.kind() == Kind::NotFound => return Ok((info, Vec::new())),
            Err(error) => return Err(Failure::failed(error.to_string())),
        };
        // What an owner is about to change cannot always be seen: then it is not counted now.
        let seen = View::look(client.env(), store).await;
        Ok((info, seen.map(|view| view.files().collect()).unwrap_or_default()))
    });
    let mut files = iter(files).buffer_unordered(LOOKS);
    let (mut holders, mut uses) = (BTreeMap::<FileId, u32>::new(), Vec::new());
    while let Some(found) = files.next().await {
        let (info, found) = found?;
        for one in found {
            *holders.entry(one.file).or_default() += 1;
            uses.push((info, one.file, one.bytes * u64::from(info.spec.policy.copies)));
        }
    }
    let mut pinned: BTreeMap<VolumeId, Pinned> = BTreeMap::new();
    for (info, file, bytes) in uses {
        let of = pinned.entry(info.volume).or_default();
        match holders[&file] {
            1 => of.alone += bytes,
            _ => of.shared += bytes,
        }
    }
    Ok(pinned)
}
