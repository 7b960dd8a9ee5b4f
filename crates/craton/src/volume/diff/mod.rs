//! Differences of snapshots as files: `export-diff` and `import-diff` (B10). Format:
//! `docs/formats/volume-diff.md`.

mod export;
mod import;

pub use export::export;
pub use import::import;

use std::rc::Rc;

use base::Fault;
use block_proto::VolumeInfo;
use block_proto::paths::{AT, segment_path};
use block_segment::{Change, Has, View};
use block_volume::contract::Device;
use block_volume::geometry::{Extent, Geometry, SegmentIndex};
use block_volume::ids::SegmentId;
use client::Client;
use table::ClientStore;

use super::open::{Site, failure};
use crate::exit::Failure;

/// Bytes that are compared or copied by one request.
const PIECE: u64 = block_volume::limits::IO_MAX as u64;
const _: () = assert!(PIECE as usize <= block_volume::diff::DATA_MAX);

/// A part of a volume in which two snapshots may differ.
#[derive(Clone, Copy, Debug)]
struct DiffPart {
    extent: Extent,
    now: Has,
    perhaps: bool,
}

/// The sizes of a volume.
pub fn geometry(info: &VolumeInfo) -> Result<Geometry, Failure> {
    let sizes = info.spec.geometry;
    Geometry::stored(sizes.group_bytes, sizes.segments_per_group, sizes.data_sector)
        .map_err(|error| Failure::failed(format!("{}: {error}", info.spec.name)))
}

/// The directory of a segment; nothing when it has none.
async fn look(client: &Client, segment: SegmentId) -> Result<Option<View>, Fault> {
    let store = match ClientStore::find(client, &segment_path(segment)).await {
        Ok(store) => store,
        Err(error) if error.kind() == base::Kind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::new(error.kind(), error.to_string())),
    };
    View::open(client.env(), Rc::new(store)).await.map(Some)
}

/// Searches for parts in which `newer` may differ from `older`, segment by segment, by their
/// directories: none of their data is read.
struct Search<'a> {
    client: &'a Client,
    newer: &'a VolumeInfo,
    older: Option<&'a VolumeInfo>,
    sizes: Geometry,
}

impl<'a> Search<'a> {
    fn new(
        client: &'a Client,
        newer: &'a VolumeInfo,
        older: Option<&'a VolumeInfo>,
    ) -> Result<Search<'a>, Failure> {
        Ok(Search { client, newer, older, sizes: geometry(newer)? })
    }

    /// Number of segments.
    fn segments(&self) -> u32 {
        self.sizes.segments(self.newer.spec.bytes) as u32
    }

    async fn views(&self, index: u32) -> Result<(View, Option<View>), Failure> {
        let failed = |fault: Fault| failure(&self.newer.spec.name, &fault);
        let newer = SegmentId { volume: self.newer.volume, index };
        let newer = look(self.client, newer).await.map_err(failed)?.ok_or_else(|| {
            let text = format!("{}: segment {index} is not there", self.newer.spec.name);
            Failure::new(crate::exit::Code::Damage, text)
        })?;
        let older = match self.older {
            // The volume has grown since.
            Some(info) if u64::from(index) >= self.sizes.segments(info.spec.bytes) => None,
            Some(info) => {
                let segment = SegmentId { volume: info.volume, index };
                let view = look(self.client, segment).await;
                let view = view.map_err(|fault| failure(&info.spec.name, &fault))?;
                Some(view.ok_or_else(|| {
                    let text = format!("{}: segment {index} is not there", info.spec.name);
                    Failure::new(crate::exit::Code::Damage, text)
                })?)
            }
            None => None,
        };
        Ok((newer, older))
    }

    /// The next parts of a segment, and the page to go on with.
    async fn parts(
        &self,
        index: u32,
        (newer, older): &mut (View, Option<View>),
        page: u32,
    ) -> Result<Option<(Vec<DiffPart>, u32)>, Failure> {
        let mut parts = Vec::new();
        let mut take = |change: Change| self.cut(index, change, &mut parts);
        let next = newer.changes(older.as_mut(), &mut take, page).await;
        let next = next.map_err(|fault| failure(&self.newer.spec.name, &fault))?;
        Ok(next.map(|next| (parts, next)))
    }

    /// Cuts a change of a segment into parts of the volume.
    fn cut(&self, index: u32, change: Change, parts: &mut Vec<DiffPart>) {
        let sector = self.newer.spec.geometry.data_sector;
        let (mut at, end) = (change.offset, change.offset + change.len);
        while at < end {
            let len = (sector - at % sector).min(PIECE - at % PIECE).min(end - at);
            let offset = self.sizes.offset_of(SegmentIndex::new(index), at);
            at += len;
            let (now, perhaps) = (change.now, change.perhaps);
            // A segment may be longer than its part of the volume.
            let Some(len) = self.newer.spec.bytes.checked_sub(offset).map(|most| most.min(len))
            else {
                continue;
            };
            match parts.last_mut() {
                Some(last)
                    if last.extent.end() == Some(offset)
                        && (last.now, last.perhaps) == (now, perhaps)
                        && (now != Has::Data || last.extent.len + len <= PIECE) =>
                {
                    last.extent.len += len;
                }
                _ if len > 0 => {
                    parts.push(DiffPart { extent: Extent { offset, len }, now, perhaps })
                }
                _ => {}
            }
        }
    }
}

/// The blocks of a part in which two snapshots differ, with the newer content.
async fn differing(
    newer: &dyn Device,
    older: Option<&dyn Device>,
    part: DiffPart,
) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
    let now = newer.read(part.extent).await?;
    let before = match older.filter(|_| part.perhaps) {
        Some(older) => older.read(part.extent).await?,
        None => return Ok(vec![(part.extent.offset, now.to_vec())]),
    };
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    let block = block_volume::limits::BLOCK as usize;
    for (n, (now, before)) in now.chunks(block).zip(before.chunks(block)).enumerate() {
        if now == before {
            continue; // Moved, or rewritten with the same bytes.
        }
        let offset = part.extent.offset + (n * block) as u64;
        match found.last_mut() {
            Some((start, bytes)) if *start + bytes.len() as u64 == offset => {
                bytes.extend_from_slice(now);
            }
            _ => found.push((offset, now.to_vec())),
        }
    }
    Ok(found)
}

/// A snapshot's facts, and the name of its volume.
async fn snapshot(site: &Site<'_>, name: &str) -> Result<(VolumeInfo, String), Failure> {
    let info = site.managers.volume(name).await?;
    match (info.parent, name.rsplit_once(AT)) {
        (Some(_), Some((volume, _))) => Ok((info, volume.to_owned())),
        _ => Err(Failure::usage(format!(
            "{name} is no snapshot: name one as VOLUME{AT}SNAPSHOT; 'craton volume snapshot ls \
             {name}' lists them"
        ))),
    }
}
