//! What replicas take on disks, as their chunkservers say it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use base::{ChunkId, DiskId};
use client::Client;
use futures_util::stream::{StreamExt, iter};
use wire::control::{
    ChunkPlace, ChunkserverReply, ChunkserverRequest, ControlReply, ControlRequest,
};

/// A server that answers nothing for so long is asked no more.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Questions under way.
const ASKED: usize = 32;

/// Bytes on disk of the replicas of chunks.
pub async fn of(client: &Client, chunks: &[ChunkPlace]) -> BTreeMap<(ChunkId, DiskId), u64> {
    let silent: RefCell<BTreeSet<SocketAddr>> = RefCell::default();
    let places = chunks.iter().flat_map(|place| {
        place.replicas.iter().map(|replica| (place.chunk, replica.disk, replica.addr))
    });
    let ask = |(chunk, disk, addr)| {
        let silent = &silent;
        async move {
            if silent.borrow().contains(&addr) {
                return None;
            }
            // The one behind the number in front of it.
            let after = chunk_before(chunk);
            let list = ChunkserverRequest::List { disk, after, limit: 1 };
            let answer = client.ask_peer(addr, ControlRequest::Chunkserver(list), TIMEOUT).await;
            match answer {
                Ok(ControlReply::Chunkserver(ChunkserverReply::List { replicas, .. })) => {
                    let found = replicas.first().filter(|found| found.chunk == chunk)?;
                    Some(((chunk, disk), found.physical?))
                }
                Ok(_) => None,
                Err(_) => {
                    silent.borrow_mut().insert(addr);
                    None
                }
            }
        }
    };
    let answers = iter(places).map(ask).buffer_unordered(ASKED);
    answers.filter_map(async |answer| answer).collect().await
}

fn chunk_before(chunk: ChunkId) -> Option<ChunkId> {
    chunk.get().checked_sub(1).map(ChunkId::new)
}
