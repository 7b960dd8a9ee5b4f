//! Copies of replicas: the sectors of a chunk from others that have it.

use std::cell::Cell;

use base::limits::{APPEND_SECTORS_MAX, SECTOR, SECTOR_DATA_MAX};
use base::{DiskId, Kind};
use chunkstore::ChunkStore;
use runtime::{Buf, Env};
use transport::{Endpoint, Priority, Request, Service, Token};
use wire::control::{ControlError, CopyOrder, ReplicaPlace};
use wire::data::{ChunkRef, DataError, DataReply, DataRequest, ReadRequest};
use wire::data_codec::decode_answer;
use wire::row::{CellParts, usable_len, verify_append};
use wire::sector::{AppendAt, parse_footer};

use crate::limits::{BUSY_PAUSE, BUSY_WAIT_MAX, COPY_READ_TIMEOUT};
use crate::server::Chunkserver;
use crate::share::Urgency;

/// A copy under way.
pub(crate) struct CopySource {
    pub(crate) order: CopyOrder,
    /// The disk that it goes to.
    pub(crate) disk: DiskId,
    /// A source was given up that may serve the next order: it stayed busy, or the right to read has run
    /// out.
    pub(crate) passing: Cell<bool>,
}

impl CopySource {
    pub(crate) fn new(disk: DiskId, order: CopyOrder) -> CopySource {
        CopySource { order, disk, passing: Cell::new(false) }
    }

    /// Urgency of its reads and appends; none of a copy that recovery, and so an opening, waits for.
    pub(crate) fn urgency(&self) -> Option<Urgency> {
        let urgency = if self.order.urgent { Urgency::NoMargin } else { Urgency::Copy };
        self.order.seal.then_some(urgency)
    }

    /// The error for a copy without a source. Masters take it for a loss after some in a row, and have the
    /// copy begin again elsewhere: not where the sources were not at fault.
    pub(crate) fn cause(&self, error: ControlError) -> ControlError {
        if error.kind != Kind::Reroute || !self.passing.get() {
            return error;
        }
        let text = format!(
            "a source of {} stays busy, or the right to read it has run out: order the copy again, \
             which goes on where it stopped",
            self.order.chunk
        );
        ControlError::new(Kind::Retry, text)
    }

    /// Priority of its reads from sources.
    pub(crate) fn priority(&self) -> Priority {
        match self.urgency() {
            // At the target it has its share; here it may not wait.
            None | Some(Urgency::NoMargin) => Priority::Foreground,
            Some(_) => Priority::Background,
        }
    }
}

impl<S: ChunkStore> Chunkserver<S> {
    /// The next sectors of a copy. Each source may be damaged within the range, and at another place:
    /// less of it at a time, then one sector; of a row, which counts whole, its cell's sectors one by
    /// one.
    pub(crate) async fn next_sectors(
        &self,
        copy: &CopySource,
        sources: &mut Vec<&ReplicaPlace>,
        offset: u32,
        want: &mut u32,
    ) -> Result<Buf, ControlError> {
        loop {
            if let Some(sectors) = self.fetch_from(copy, sources, offset, *want).await {
                return Ok(sectors);
            }
            if *want > 1 && !sources.is_empty() {
                *want = if *want as usize > SECTOR_DATA_MAX { *want / 2 } else { 1 };
                continue;
            }
            let cell = self.collect_cell(copy, sources, offset).await;
            return cell.ok_or_else(|| {
                let text = format!("no source serves {} from byte {offset}", copy.order.chunk);
                ControlError::new(Kind::Reroute, text)
            });
        }
    }

    /// The cell of the row at `offset`, each sector from a source that has it.
    async fn collect_cell(
        &self,
        copy: &CopySource,
        sources: &[&ReplicaPlace],
        offset: u32,
    ) -> Option<Buf> {
        let at = AppendAt {
            chunk: copy.order.chunk,
            epoch: copy.order.epoch,
            base: copy.order.base,
            offset,
        };
        let mut parts = CellParts::new(at);
        while parts.whole().is_none() {
            let before = parts.next_index();
            for place in sources {
                let read = DataRequest::Read(ReadRequest {
                    at: ChunkRef { chunk: copy.order.chunk, disk: place.disk },
                    offset,
                    len: 1,
                    uncommitted: true,
                    cell_sector: Some(before),
                    blocks: false,
                });
                let (env, endpoint) = (&self.0.env, &self.0.endpoint);
                let sector = call_read(env, endpoint, place, read, copy).await;
                if sector.is_ok_and(|sector| parts.push(&sector).is_ok()) {
                    break;
                }
            }
            if parts.next_index() == before {
                return None;
            }
        }
        self.0.env.mark("copy collects a cell from several sources");
        self.0.env.pool().copy_of(parts.whole()?).ok()
    }

    /// The next sectors of a copy from the first source that has them. Sources that are of no more
    /// use to the copy are taken off; one that is damaged here may serve again behind the damage.
    pub(crate) async fn fetch_from(
        &self,
        copy: &CopySource,
        sources: &mut Vec<&ReplicaPlace>,
        offset: u32,
        want: u32,
    ) -> Option<Buf> {
        let mut at = 0;
        while let Some(&place) = sources.get(at) {
            let why = match self.fetch(copy, place, offset, want).await {
                Ok(sectors) => return Some(sectors),
                Err(NoSectors::Damaged(why)) => {
                    at += 1;
                    why
                }
                Err(NoSectors::Lost(why)) => {
                    sources.remove(at);
                    why
                }
            };
            tracing::debug!(chunk = %copy.order.chunk, source = %place.addr, offset, why, "no sectors");
            self.0.env.mark("copy goes on from another source");
        }
        None
    }

    /// Reads and verifies the next sectors of a copy, cut at its length.
    pub(crate) async fn fetch(
        &self,
        copy: &CopySource,
        place: &ReplicaPlace,
        offset: u32,
        want: u32,
    ) -> Result<Buf, NoSectors> {
        let read = DataRequest::Read(ReadRequest {
            at: ChunkRef { chunk: copy.order.chunk, disk: place.disk },
            offset,
            len: (copy.order.len - offset).min(want),
            uncommitted: true,
            cell_sector: None,
            blocks: false,
        });
        let sectors = call_read(&self.0.env, &self.0.endpoint, place, read, copy).await?;
        // Short appends make many sectors: one append takes a part of them.
        let mut end = usable_len(&sectors, APPEND_SECTORS_MAX * SECTOR);
        while end >= SECTOR {
            let last = parse_footer(&sectors[end - SECTOR..end])
                .map_err(|error| NoSectors::Damaged(error.to_string()))?;
            if last.offset < copy.order.len {
                break;
            }
            end -= SECTOR;
        }
        let sectors = sectors.slice(0..end);
        let expected = AppendAt {
            chunk: copy.order.chunk,
            epoch: copy.order.epoch,
            base: copy.order.base,
            offset,
        };
        let len = verify_append(expected, &sectors)
            .map_err(|(index, error)| NoSectors::Damaged(format!("sector {index}: {error}")))?;
        if offset + len > copy.order.len {
            let text = format!("byte {} lies within a sector", copy.order.len);
            return Err(NoSectors::Damaged(text));
        }
        Ok(sectors)
    }
}

/// Cause of a source's failure.
pub(crate) enum NoSectors {
    /// Not these; it may have others.
    Damaged(String),
    /// It has no more for this copy, or does not answer.
    Lost(String),
}

/// One read from a source. One that is busy is waited for.
pub(crate) async fn call_read(
    env: &Env,
    endpoint: &Endpoint,
    place: &ReplicaPlace,
    read: DataRequest,
    copy: &CopySource,
) -> Result<Buf, NoSectors> {
    let lost = |why: &dyn std::fmt::Display| NoSectors::Lost(why.to_string());
    let give_up = env.now() + BUSY_WAIT_MAX;
    loop {
        let request = Request {
            service: Service::DATA,
            op: read.op(),
            priority: copy.priority(),
            flow: 0,
            trace: env.trace(),
            token: Token(copy.order.token),
            body: read.encode(),
            payload: None,
        };
        let answer = endpoint.call(place.addr, request, COPY_READ_TIMEOUT).await;
        let answer = answer.map_err(|error| lost(&error))?;
        match decode_answer(answer.status, &answer.body).map_err(|error| lost(&error))? {
            Ok(DataReply::Read { .. }) => {
                let sectors = answer.payload.ok_or(lost(&"the source has no more"))?;
                let help = "Bytes that copies have read from other chunkservers.";
                let read =
                    env.tracer().registry().counter("craton_copy_read_bytes_total", help, &[]);
                read.add(sectors.len() as u64);
                return Ok(sectors);
            }
            Ok(other) => {
                return Err(NoSectors::Lost(format!("not an answer to a read: {other:?}")));
            }
            Err(DataError::Corrupt { offset }) => {
                return Err(NoSectors::Damaged(format!("damaged at byte {offset}")));
            }
            Err(DataError::Busy) if env.now() < give_up => env.sleep(BUSY_PAUSE).await,
            Err(error @ (DataError::Busy | DataError::Denied)) => {
                copy.passing.set(true);
                return Err(lost(&error));
            }
            Err(error) => return Err(lost(&error)),
        }
    }
}
