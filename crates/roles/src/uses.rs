//! DataFiles that volumes name, read from their directories.

use std::rc::Rc;

use base::Kind;
use block_manager::FileUses;
use block_proto::paths::segment_path;
use block_proto::{VolumeInfo, geometry};
use block_segment::View;
use block_volume::ids::SegmentId;
use block_volume::space::Use;
use client::Client;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{StreamExt, iter};
use table::ClientStore;

/// Directories of segments whose size is read at a time.
const ROOM_LOOKS: usize = 16;

/// Reads the directories through a client of the core.
#[derive(Clone, Debug)]
pub struct Directories(pub Client);

impl FileUses for Directories {
    fn uses<'a>(
        &'a self,
        volumes: &'a [VolumeInfo],
    ) -> LocalBoxFuture<'a, Result<Vec<Use>, client::Error>> {
        Box::pin(uses(&self.0, volumes))
    }
}

/// The DataFiles of volumes and snapshots, from their directories: no server has to have them open.
/// Changes that an owner is about to make may be missing.
pub async fn uses(client: &Client, volumes: &[VolumeInfo]) -> Result<Vec<Use>, client::Error> {
    let count = |info: &VolumeInfo| {
        geometry(&info.spec).map_or(0, |sizes| sizes.segments(info.spec.bytes)) as u32
    };
    let segments = volumes.iter().flat_map(|info| (0..count(info)).map(move |index| (info, index)));
    let looks = segments.map(|(info, index)| async move {
        let path = segment_path(SegmentId { volume: info.volume, index });
        let store = match ClientStore::find(client, &path).await {
            Ok(store) => Rc::new(store),
            // It was never used.
            Err(error) if error.kind() == Kind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let seen = View::open(client.env(), store).await;
        let files = seen.map(|view| view.files().collect::<Vec<_>>()).unwrap_or_default();
        let copies = u64::from(info.spec.policy.copies);
        let of = |one: block_segment::FileUse| Use {
            volume: info.volume,
            file: one.file,
            bytes: one.bytes * copies,
        };
        Ok(files.into_iter().map(of).collect())
    });
    let mut looks = iter(looks.collect::<Vec<_>>()).buffer_unordered(ROOM_LOOKS);
    let mut found = Vec::new();
    while let Some(files) = looks.next().await {
        found.extend(files?);
    }
    Ok(found)
}
