//! DataFiles that volumes name, read from their directories.

use std::rc::Rc;

use base::{Fault, Kind};
use block_manager::FileUses;
use block_proto::paths::segment_path;
use block_proto::{VolumeInfo, geometry};
use block_segment::{FileUse, View};
use block_volume::ids::SegmentId;
use block_volume::space::Use;
use client::{Client, Error};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{StreamExt, iter};
use table::ClientStore;

/// Directories of segments whose size is read at a time.
const ROOM_LOOKS: usize = 16;
/// Reads of a directory that its owner changes during the read, at most.
const ATTEMPTS: u32 = 3;

/// Reads the directories through a client of the core.
#[derive(Clone, Debug)]
pub struct Directories(pub Client);

impl FileUses for Directories {
    fn uses<'a>(
        &'a self,
        volumes: &'a [VolumeInfo],
    ) -> LocalBoxFuture<'a, Result<Vec<Use>, Error>> {
        Box::pin(read(&self.0, volumes, Unreadable::Fails))
    }
}

/// What a directory counts as that is there and cannot be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unreadable {
    /// As one without files: a listing shows the others.
    Empty,
    /// The whole answer is an error: a sum without it would be wrong.
    Fails,
}

/// The DataFiles of volumes and snapshots, from their directories: no server has to have them open.
/// Changes that an owner is about to make may be missing, and directories that cannot be read.
pub async fn uses(client: &Client, volumes: &[VolumeInfo]) -> Result<Vec<Use>, Error> {
    read(client, volumes, Unreadable::Empty).await
}

async fn read(
    client: &Client,
    volumes: &[VolumeInfo],
    unreadable: Unreadable,
) -> Result<Vec<Use>, Error> {
    let count = |info: &VolumeInfo| {
        geometry(&info.spec).map_or(0, |sizes| sizes.segments(info.spec.bytes)) as u32
    };
    let segments = volumes.iter().flat_map(|info| (0..count(info)).map(move |index| (info, index)));
    let looks = segments.map(|(info, index)| async move {
        let path = segment_path(SegmentId { volume: info.volume, index });
        let since = client.env().now();
        let files = match read_segment(client, &path).await? {
            Ok(files) => files,
            Err(_) if unreadable == Unreadable::Empty => Vec::new(),
            Err(fault) => {
                let (what, waited) = (format!("read of {path}"), client.env().now() - since);
                return Err(Error::Unavailable { what, cause: fault.message, waited });
            }
        };
        // Files with a code say so; the others have the copies of what is written.
        let copies = block_server::written_policy(info.spec.policy).copies;
        let of = |one: FileUse| Use {
            volume: info.volume,
            file: one.file,
            bytes: one.stored_bytes(copies),
        };
        Ok(files.into_iter().map(of).collect::<Vec<_>>())
    });
    let mut looks = iter(looks.collect::<Vec<_>>()).buffer_unordered(ROOM_LOOKS);
    let mut found = Vec::new();
    while let Some(files) = looks.next().await {
        found.extend(files?);
    }
    Ok(found)
}

/// The DataFiles of a segment; none when it was never used. The inner error says that its directory is
/// there and cannot be read.
async fn read_segment(client: &Client, path: &str) -> Result<Result<Vec<FileUse>, Fault>, Error> {
    let mut attempts_left = ATTEMPTS;
    loop {
        attempts_left -= 1;
        let store = match ClientStore::find(client, path).await {
            Ok(store) => Rc::new(store),
            Err(error) if error.kind() == Kind::NotFound => return Ok(Ok(Vec::new())),
            Err(error) => return Err(error),
        };
        match View::find(client.env(), store).await {
            // Its owner has changed it while it was read.
            Err(fault) if fault.kind == Kind::Retry && attempts_left > 0 => {}
            Err(fault) => return Ok(Err(fault)),
            Ok(None) => return Ok(Ok(Vec::new())),
            Ok(Some(view)) => return Ok(Ok(view.files().collect())),
        }
    }
}
