//! What masters ask: copies, deletions, lists.

use base::limits::{APPEND_SECTORS_MAX, SECTOR};
use base::{ChunkId, DiskId, Kind};
use chunkstore::{Append, ChunkStore, StoreError};
use metrics::{Outcome, Span};
use runtime::{Buf, Env};
use transport::{Endpoint, PeerInfo, Priority, Request, Response, Service, Token};
use wire::control::{
    ChunkserverReply, ChunkserverRequest, ControlError, ControlReply, ControlRequest, ReplicaPlace,
    TraceReply, WireError,
};
use wire::data::{
    ChunkRef, DataError, DataReply, DataRequest, ReadRequest, ReplicaStat, ReplicaState,
};
use wire::data_codec::decode_answer;
use wire::sector::{AppendAt, parse_footer, verify_append};

use crate::limits::{COPY_READ_TIMEOUT, READ_LEN_MAX, REPLICATIONS_MAX};
use crate::server::Chunkserver;

/// Status of an answer whose body is a [`ControlError`].
pub(crate) const STATUS_ERROR: u16 = 1;

/// What a copy is made of; see [`ChunkserverRequest::Replicate`].
struct Copy {
    chunk: ChunkId,
    disk: DiskId,
    epoch: base::Epoch,
    base: u64,
    len: u32,
    sources: Vec<ReplicaPlace>,
    token: [u8; 16],
    seal: bool,
}

impl<S: ChunkStore> Chunkserver<S> {
    pub(crate) async fn answer_control(
        &self,
        request: Request,
        peer: &PeerInfo,
    ) -> (Response, Span) {
        let asked = ControlRequest::decode(&request.body);
        let name = asked.as_ref().map_or("control request", ControlRequest::name);
        let trace = request.trace;
        self.traced((trace, name, peer.addr), self.answer_asked(asked, request, peer)).await
    }

    async fn answer_asked(
        &self,
        asked: Result<ControlRequest, WireError>,
        request: Request,
        peer: &PeerInfo,
    ) -> (Response, Outcome) {
        let answer = match asked {
            Ok(ControlRequest::Chunkserver(asked)) => {
                match self.forward(asked.disk(), &request, peer).await {
                    Some(Ok(answered)) => return answered,
                    Some(Err(kind)) => {
                        Err(ControlError::new(kind, "this disk's executor does not take more now"))
                    }
                    None => self.serve_control(asked).await.map(ControlReply::Chunkserver),
                }
            }
            Ok(ControlRequest::Trace(asked)) => {
                let (env, process) = (&self.0.env, format!("chunkserver {}", self.0.config.name));
                let (ring, now) = (env.tracer().ring(), env.now().as_nanos());
                Ok(ControlReply::Trace(TraceReply::answer(&asked, &process, ring, now)))
            }
            Ok(_) => Err(ControlError::new(
                Kind::Invalid,
                "this is a chunkserver: ask a master for namespaces, streams and membership",
            )),
            Err(error) => Err(ControlError::new(Kind::Invalid, error.to_string())),
        };
        let (status, body, outcome) = match answer {
            Ok(reply) => (0, reply.encode(), Outcome::Done),
            Err(error) => (STATUS_ERROR, error.encode(), Outcome::Failed(error.kind)),
        };
        (Response { status, body, payload: None }, outcome)
    }

    async fn serve_control(
        &self,
        request: ChunkserverRequest,
    ) -> Result<ChunkserverReply, ControlError> {
        match request {
            ChunkserverRequest::Replicate {
                chunk,
                disk,
                epoch,
                base,
                len,
                sources,
                token,
                seal,
            } => self.replicate(Copy { chunk, disk, epoch, base, len, sources, token, seal }).await,
            ChunkserverRequest::Delete { disk, chunks } => {
                for chunk in chunks {
                    let at = ChunkRef { chunk, disk };
                    let store = self.disk(at).map_err(refused)?.store.clone();
                    store.delete(chunk).await.map_err(|error| self.refuse(at, error))?;
                    self.0.committed.borrow_mut().remove(&chunk);
                }
                Ok(ChunkserverReply::Done)
            }
            ChunkserverRequest::Forget { disk, chunks } => {
                for chunk in chunks {
                    let at = ChunkRef { chunk, disk };
                    let store = self.disk(at).map_err(refused)?.store.clone();
                    match store.forget(chunk).await {
                        Ok(()) | Err(StoreError::NotFound) => {}
                        Err(error) => return Err(self.refuse(at, error)),
                    }
                }
                Ok(ChunkserverReply::Done)
            }
            ChunkserverRequest::List { disk, after, limit } => {
                let at = ChunkRef { chunk: ChunkId::default(), disk };
                let store = self.disk(at).map_err(refused)?.store.clone();
                let limit = limit.clamp(1, 1000) as usize;
                let mut found = store.list(after, limit + 1);
                let more = found.len() > limit;
                found.truncate(limit);
                let replicas = found.iter().map(|info| (info.chunk, info.stat)).collect();
                Ok(ChunkserverReply::List { replicas, more })
            }
            ChunkserverRequest::FailDisk { disk, failed } => {
                if !self.0.config.fault_injection {
                    return Err(ControlError::new(
                        Kind::Invalid,
                        "fault injection is off: start the chunkserver with --allow-fault-injection",
                    ));
                }
                let disk = self.0.disks.get(&disk).ok_or_else(|| refused(DataError::WrongDisk))?;
                disk.failed.set(failed);
                self.beat_soon();
                Ok(ChunkserverReply::Done)
            }
        }
    }

    /// Makes a replica from another one (invariant 9: the sources stay as they are).
    async fn replicate(&self, copy: Copy) -> Result<ChunkserverReply, ControlError> {
        let at = ChunkRef { chunk: copy.chunk, disk: copy.disk };
        let store = self.disk(at).map_err(refused)?.store.clone();
        if copy.len == 0 || copy.sources.is_empty() {
            return Err(ControlError::new(Kind::Invalid, "a copy needs a length and a source"));
        }
        {
            let replicating = &mut *self.0.replicating.borrow_mut();
            if replicating.len() >= REPLICATIONS_MAX || !replicating.insert(copy.chunk) {
                return Err(ControlError::new(
                    Kind::Retry,
                    format!("{} copies are under way here: try again later", replicating.len()),
                ));
            }
        }
        let copied = self.copy_chunk(&store, at, &copy).await;
        self.0.replicating.borrow_mut().remove(&copy.chunk);
        let bytes = copied?;
        let stat = if copy.seal {
            store.seal(copy.chunk, copy.len).await.map_err(|error| self.refuse(at, error))?
        } else {
            store.stat(copy.chunk).map_err(|error| self.refuse(at, error))?
        };
        self.count(|stats| {
            stats.replications += 1;
            stats.replicated_bytes += bytes;
        });
        Ok(ChunkserverReply::Replicated { stat, bytes })
    }

    async fn copy_chunk(&self, store: &S, at: ChunkRef, copy: &Copy) -> Result<u64, ControlError> {
        // A copy that was interrupted goes on where it stood; a sealed one is done.
        let mut offset = match store.stat(copy.chunk) {
            Ok(ReplicaStat { state: ReplicaState::Sealed, len, .. }) if len == copy.len => {
                return Ok(0);
            }
            // What a fenced replica lacks is added in place: its vote stays (`protocols.md` 2.3).
            Ok(ReplicaStat {
                state: ReplicaState::Repairing | ReplicaState::Fenced(_),
                len,
                ..
            }) => len,
            Ok(stat) => {
                return Err(ControlError::new(
                    Kind::Exists,
                    format!(
                        "{} is here already, {:?} at {} bytes",
                        copy.chunk, stat.state, stat.len
                    ),
                ));
            }
            Err(_) => 0,
        };
        let (mut source, mut bytes) = (0, 0);
        while offset < copy.len {
            let Some(place) = copy.sources.get(source) else {
                return Err(ControlError::new(
                    Kind::Reroute,
                    format!("no source serves {} from byte {offset}", copy.chunk),
                ));
            };
            let sectors = match self.fetch(copy, place, offset).await {
                Ok(sectors) => sectors,
                Err(why) => {
                    tracing::info!(chunk = %copy.chunk, source = %place.addr, why, "copy goes on from the next source");
                    source += 1;
                    continue;
                }
            };
            bytes += sectors.len() as u64;
            let append = Append {
                chunk: copy.chunk,
                epoch: copy.epoch,
                base: copy.base,
                offset,
                sectors,
                create: offset == 0,
                repair: true,
            };
            match store.append(append).await {
                Ok(appended) => offset = appended.len,
                Err(StoreError::Busy) => {
                    self.0.env.sleep(std::time::Duration::from_millis(20)).await;
                }
                Err(error) => return Err(self.refuse(at, error)),
            }
        }
        Ok(bytes)
    }

    /// Reads and verifies the next sectors of a copy, cut at its length.
    async fn fetch(&self, copy: &Copy, place: &ReplicaPlace, offset: u32) -> Result<Buf, String> {
        let read = DataRequest::Read(ReadRequest {
            at: ChunkRef { chunk: copy.chunk, disk: place.disk },
            offset,
            len: (copy.len - offset).min(READ_LEN_MAX),
            uncommitted: true,
        });
        let sectors = call_read(&self.0.env, &self.0.endpoint, place, read, copy.token).await?;
        // Short appends make many sectors: one append takes a part of them.
        let mut end = sectors.len().min(APPEND_SECTORS_MAX * SECTOR);
        while end >= SECTOR {
            let last = parse_footer(&sectors[end - SECTOR..end]).map_err(|e| e.to_string())?;
            if last.offset < copy.len {
                break;
            }
            end -= SECTOR;
        }
        let sectors = sectors.slice(0..end);
        let expected = AppendAt { chunk: copy.chunk, epoch: copy.epoch, base: copy.base, offset };
        let len = verify_append(expected, &sectors)
            .map_err(|(index, error)| format!("sector {index}: {error}"))?;
        if offset + len > copy.len {
            return Err(format!("byte {} lies within a sector", copy.len));
        }
        Ok(sectors)
    }

    fn refuse(&self, at: ChunkRef, error: StoreError) -> ControlError {
        refused(self.data_error(at, error))
    }
}

async fn call_read(
    env: &Env,
    endpoint: &Endpoint,
    place: &ReplicaPlace,
    read: DataRequest,
    token: [u8; 16],
) -> Result<Buf, String> {
    let request = Request {
        service: Service::Data,
        op: read.op(),
        priority: Priority::Background,
        flow: 0,
        trace: env.trace(),
        token: Token(token),
        body: read.encode(),
        payload: None,
    };
    let answer = endpoint.call(place.addr, request, COPY_READ_TIMEOUT).await;
    let answer = answer.map_err(|error| error.to_string())?;
    match decode_answer(answer.status, &answer.body).map_err(|error| error.to_string())? {
        Ok(DataReply::Read { .. }) => answer.payload.ok_or("the source has no more".to_owned()),
        Ok(other) => Err(format!("not an answer to a read: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn refused(error: DataError) -> ControlError {
    ControlError::new(error.kind(), format!("the chunkserver refused: {error}"))
}
