//! `craton volume check`: compares a volume's map with its stored data.

use std::net::SocketAddr;

use block_proto::{BlockServerReply, BlockServerRequest};
use block_volume::figures::SegmentScrub;
use block_volume::ids::SegmentId;
use client::Client;
use roles::check::{VolumeCheck, ask};
use serde_json::json;

use crate::exit::{Code, Done, Failure};
use crate::output::{print_json, print_line};

/// Shows the result; fails with the damage code when something is wrong.
pub fn show(name: &str, found: VolumeCheck, json: bool) -> Done {
    let VolumeCheck { segments, files, blocks, findings, findings_count } = found;
    if json {
        print_json(&json!({
            "name": name,
            "segments": segments,
            "files": files,
            "blocks": blocks,
            "bytes": blocks * block_volume::limits::BLOCK,
            "findings": findings,
            "findings_count": findings_count,
        }))?;
    } else {
        findings.iter().try_for_each(|finding| print_line(finding))?;
        print_line(&format!(
            "{name}: {segments} segments, {files} DataFiles, {blocks} blocks with data read and \
             verified, {findings_count} findings"
        ))?;
    }
    match findings_count {
        0 => Ok(()),
        count => Err(Failure::new(
            Code::Damage,
            format!("{name}: {count} findings; restore what is lost from a copy of the volume"),
        )),
    }
}

/// Progress of a segment's scrub, when its owner reports it.
pub async fn scrub(client: &Client, addr: SocketAddr, segment: SegmentId) -> Option<SegmentScrub> {
    match ask(client, addr, BlockServerRequest::Scrub { segment }).await {
        Ok(BlockServerReply::Scrub(scrub)) => Some(scrub),
        _ => None,
    }
}
