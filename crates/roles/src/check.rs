//! Check of a volume: what its owners' maps name is compared with what is stored.

use std::net::SocketAddr;
use std::rc::Rc;

use base::{Fault, Kind};
use block_client::VolumeExports;
use block_proto::managers::ask_peer;
use block_proto::{
    BlockServerReply, BlockServerRequest, Managers, Reply, Request, VolumeInfo, geometry,
};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::figures::SegmentCheck;
use block_volume::ids::SegmentId;
use client::{Client, PeerError};
use runtime::Duration;
use wire::control::ControlError;

/// Wait for one piece of a segment: 16 MiB to read, and a directory twice.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Tries of a piece whose segment moves, or is being opened, and the pause between two.
const TRIES: (u32, Duration) = (40, Duration::from_millis(250));

/// Result of the check of a volume or snapshot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct VolumeCheck {
    /// Its segments.
    pub segments: u32,
    /// DataFiles that they name.
    pub files: u64,
    /// Blocks with data, read and verified.
    pub blocks: u64,
    /// Damage and leaks, each with its segment; of a piece with very many, the first ones.
    pub findings: Vec<String>,
    /// Number of all findings.
    pub findings_count: u64,
}

/// Checks each segment of a volume or snapshot, by its present owner. Segments of a snapshot have
/// owners only while it is open: it is open here until the check ends.
pub async fn check(
    managers: &Managers,
    exports: &VolumeExports,
    info: &VolumeInfo,
) -> Result<VolumeCheck, Fault> {
    let _held: Option<Rc<dyn Device>> = match info.parent {
        Some(_) => Some(exports.open(&info.spec.name).await?),
        None => None,
    };
    let sizes = geometry(&info.spec);
    let sizes = sizes.map_err(|error| Fault::new(Kind::Invalid, error.to_string()))?;
    let segments = sizes.segments(info.spec.bytes) as u32;
    let mut found = VolumeCheck { segments, ..VolumeCheck::default() };
    for index in 0..segments {
        let segment = SegmentId { volume: info.volume, index };
        let mut from = 0;
        loop {
            let piece = piece(managers, segment, from).await?;
            found.blocks += piece.blocks;
            found.files += piece.files;
            found.findings_count += piece.findings_count;
            let of_segment = |finding| format!("segment {index}: {finding}");
            found.findings.extend(piece.findings.into_iter().map(of_segment));
            from = piece.next;
            if from == 0 {
                break;
            }
        }
    }
    Ok(found)
}

/// Asks the present owner of a segment.
async fn piece(managers: &Managers, segment: SegmentId, from: u64) -> Result<SegmentCheck, Fault> {
    let client = managers.client();
    let mut cause = String::new();
    for _ in 0..TRIES.0 {
        let map = managers.map(segment.volume).await?;
        let place = map.into_iter().find(|place| place.index == segment.index);
        match place.and_then(|place| place.addr) {
            None => cause = "no block server has it; start one".to_owned(),
            Some(addr) => {
                match ask(client, addr, BlockServerRequest::Check { segment, from }).await {
                    Ok(BlockServerReply::Checked(piece)) => return Ok(piece),
                    Ok(other) => {
                        let text = format!("{addr} answers {other:?}");
                        return Err(Fault::new(Kind::Invalid, text));
                    }
                    Err(PeerError::Refused(error))
                        if !matches!(error.kind, Kind::Retry | Kind::Reroute | Kind::Fenced) =>
                    {
                        let text = format!("segment {segment}: {}", error.message);
                        return Err(Fault::new(error.kind, text));
                    }
                    Err(error) => cause = error.to_string(),
                }
            }
        }
        client.env().sleep(TRIES.1).await;
    }
    let text = format!("segment {segment} cannot be checked: {cause}");
    Err(Fault::new(Kind::Retry, text))
}

/// Asks a block server, once.
pub async fn ask(
    client: &Client,
    addr: SocketAddr,
    request: BlockServerRequest,
) -> Result<BlockServerReply, PeerError<ControlError>> {
    match ask_peer(client, addr, Request::BlockServer(request), ATTEMPT).await? {
        Reply::BlockServer(reply) => Ok(reply),
        _ => Err(PeerError::Foreign(format!("{addr} is no block server"))),
    }
}
