//! `craton volume check`: compares a volume's map with its stored data.

use std::net::SocketAddr;
use std::time::Duration;

use base::Kind;
use block_proto::managers::ask_peer;
use block_proto::{BlockServerReply, BlockServerRequest, Managers, Reply, Request};
use block_volume::figures::{SegmentCheck, SegmentScrub};
use block_volume::ids::SegmentId;
use client::{Client, PeerError};
use serde_json::json;

use crate::exit::{Code, Done, Failure};
use crate::output::{print_json, print_line};

/// Wait for one piece of a segment: 16 MiB to read, and a directory twice.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Tries of a piece whose segment moves, or is being opened, and the pause between two.
const TRIES: (u32, Duration) = (40, Duration::from_millis(250));

/// Findings of a volume's check.
#[derive(Default)]
struct Found {
    blocks: u64,
    files: u64,
    findings: Vec<String>,
    count: u64,
}

/// Runs the command; fails with the damage code when something is wrong.
pub async fn check(managers: &Managers, name: &str, json: bool) -> Done {
    let info = managers.volume(name).await?;
    let segments = managers.map(info.volume).await?;
    let mut found = Found::default();
    for index in segments.iter().map(|place| place.index) {
        let segment = SegmentId { volume: info.volume, index };
        let mut from = 0;
        loop {
            let piece = piece(managers, segment, from).await?;
            found.blocks += piece.blocks;
            found.files += piece.files;
            found.count += piece.findings_count;
            let of_segment = |finding| format!("segment {index}: {finding}");
            found.findings.extend(piece.findings.into_iter().map(of_segment));
            from = piece.next;
            if from == 0 {
                break;
            }
        }
    }
    let Found { blocks, files, findings, count } = found;
    if json {
        print_json(&json!({
            "name": name,
            "segments": segments.len(),
            "files": files,
            "blocks": blocks,
            "bytes": blocks * block_volume::limits::BLOCK,
            "findings": findings,
            "findings_count": count,
        }))?;
    } else {
        findings.iter().try_for_each(|finding| print_line(finding))?;
        print_line(&format!(
            "{name}: {} segments, {files} DataFiles, {blocks} blocks with data read and verified, \
             {count} findings",
            segments.len()
        ))?;
    }
    match count {
        0 => Ok(()),
        count => Err(Failure::new(
            Code::Damage,
            format!("{name}: {count} findings; restore what is lost from a copy of the volume"),
        )),
    }
}

/// Asks the present owner of a segment.
async fn piece(
    managers: &Managers,
    segment: SegmentId,
    from: u64,
) -> Result<SegmentCheck, Failure> {
    let client = managers.client();
    let mut cause = String::new();
    for _ in 0..TRIES.0 {
        let map = managers.map(segment.volume).await?;
        let place = map.into_iter().find(|place| place.index == segment.index);
        let addr = place.and_then(|place| place.addr);
        match addr {
            None => cause = "no block server has it; start one".to_owned(),
            Some(addr) => {
                match ask(client, addr, BlockServerRequest::Check { segment, from }).await {
                    Ok(BlockServerReply::Checked(piece)) => return Ok(piece),
                    Ok(other) => {
                        return Err(Failure::failed(format!("{addr} answers {other:?}")));
                    }
                    Err(PeerError::Refused(error))
                        if !matches!(error.kind, Kind::Retry | Kind::Reroute | Kind::Fenced) =>
                    {
                        return Err(Failure::failed(format!(
                            "segment {segment}: {}",
                            error.message
                        )));
                    }
                    Err(error) => cause = error.to_string(),
                }
            }
        }
        client.env().sleep(TRIES.1).await;
    }
    Err(Failure::new(Code::Unavailable, format!("segment {segment} cannot be checked: {cause}")))
}

async fn ask(
    client: &Client,
    addr: SocketAddr,
    request: BlockServerRequest,
) -> Result<BlockServerReply, PeerError<wire::control::ControlError>> {
    match ask_peer(client, addr, Request::BlockServer(request), ATTEMPT).await? {
        Reply::BlockServer(reply) => Ok(reply),
        _ => Err(PeerError::Foreign(format!("{addr} is no block server"))),
    }
}

/// Progress of a segment's scrub, when its owner reports it.
pub async fn scrub(client: &Client, addr: SocketAddr, segment: SegmentId) -> Option<SegmentScrub> {
    match ask(client, addr, BlockServerRequest::Scrub { segment }).await {
        Ok(BlockServerReply::Scrub(scrub)) => Some(scrub),
        _ => None,
    }
}
