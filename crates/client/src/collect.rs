//! Rows whose replicas are damaged at different places: their cells are equal, so that each sector may
//! come from another one.

use wire::control::ChunkPlace;
use wire::data::{ChunkRef, DataReply, DataRequest, ReadRequest};
use wire::row::CellParts;
use wire::sector::AppendAt;

use crate::ask::order;
use crate::client::Client;
use crate::extent::Extent;

/// The row that holds a chunk's byte at `offset`, from there on; `want` bytes at most. `None` when it is
/// no row, when one of its sectors has no replica, and beyond what may be read.
pub(crate) async fn collect_row(
    client: &Client,
    chunk: &ChunkPlace,
    offset: u32,
    want: u32,
) -> Option<Extent> {
    let (epoch, base) = (chunk.epoch, chunk.base);
    let mut parts = CellParts::new(AppendAt { chunk: chunk.chunk, epoch, base, offset });
    let mut readable = chunk.sealed.unwrap_or(0);
    while parts.whole().is_none() {
        let before = parts.next_index();
        for replica in order(client, chunk) {
            let read = DataRequest::Read(ReadRequest {
                at: ChunkRef { chunk: chunk.chunk, disk: replica.disk },
                offset,
                len: 1,
                uncommitted: chunk.sealed.is_some(),
                cell_sector: Some(before),
                blocks: false,
            });
            let attempt = client.config().read_attempt;
            let answer = client.0.peers.data(replica.addr, read, chunk.token, None, attempt).await;
            let Ok((DataReply::Read { readable: shown, .. }, Some(sector))) = answer else {
                continue;
            };
            if parts.push(&sector).is_ok() {
                if chunk.sealed.is_none() {
                    readable = readable.max(shown);
                }
                break;
            }
        }
        if parts.next_index() == before {
            return None;
        }
    }
    let cell = client.env().pool().copy_of(parts.whole()?).ok()?;
    let rows = &mut *client.0.rows.borrow_mut();
    let mut extent = Extent::verify(chunk, offset, want, cell, rows).ok()?;
    extent.truncate(readable.saturating_sub(offset) as usize);
    client.env().mark("reader: a row from several replicas");
    (extent.len() > 0).then_some(extent)
}
