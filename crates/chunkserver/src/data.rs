//! The data path: append, read, commit, fence, seal, stat.

use base::limits::SECTOR;
use base::{ChunkId, Epoch};
use chunkstore::{Append, ChunkStore, StoreError};
use metrics::{Fact, Outcome, Span, Step};
use runtime::Buf;
use transport::{Priority, Request, Response};
use wire::control::CallClass;
use wire::data::{
    AppendRequest, ChunkRef, CommitRequest, DataError, DataReply, DataRequest, ReadRequest,
    ReplicaStat, ReplicaState,
};
use wire::data_codec::{DecodeError, encode_answer};
use wire::sector::parse_footer;
use wire::token::{Token, TokenError};

use crate::limits::{ISSUER_PAUSE, ISSUER_WAIT, READ_LEN_MAX};
use crate::server::{Chunkserver, Disk};
use crate::shard::Origin;
use crate::share::{TooManyWait, Urgency};

impl<S: ChunkStore> Chunkserver<S> {
    pub(crate) async fn answer_data(
        &self,
        request: Request,
        origin: Origin<'_>,
    ) -> (Response, Span) {
        let asked = DataRequest::decode(request.op, &request.body);
        let name = asked.as_ref().map_or("data request", operation_name);
        let trace = request.trace;
        self.traced((trace, name, origin.peer.addr), self.answer_decoded(asked, request, origin))
            .await
    }

    async fn answer_decoded(
        &self,
        asked: Result<DataRequest, DecodeError>,
        mut request: Request,
        origin: Origin<'_>,
    ) -> (Response, Outcome) {
        let answer = match asked {
            // Of reads alone: an append that its writer no longer waits for may be a needed copy.
            Ok(DataRequest::Read(_)) if !origin.waits(self.0.env.now()) => {
                self.give_up(false);
                Err(DataError::Busy)
            }
            Ok(asked) => match self.forward(asked.at().disk, &request, origin).await {
                Some(Ok(answered)) => return answered,
                Some(Err(_)) => Err(DataError::Busy),
                None => {
                    let payload = request.payload.take();
                    let asked = (asked, request.priority);
                    self.serve(asked, request.token, payload, origin).await
                }
            },
            Err(error) => {
                tracing::warn!(peer = origin.peer.name, %error, "data request not of its form");
                Err(DataError::Invalid)
            }
        };
        if matches!(answer, Err(DataError::Busy)) && origin.waits(self.0.env.now()) {
            self.count(|stats| stats.busy += 1);
        }
        let (answer, payload, outcome) = match answer {
            Ok((reply, payload)) => (Ok(reply), payload, Outcome::Done),
            Err(error) => {
                let outcome = Outcome::Failed(error.kind());
                (Err(error), None, outcome)
            }
        };
        let (status, body) = encode_answer(&answer);
        (Response { status, body, payload }, outcome)
    }

    async fn serve(
        &self,
        (request, priority): (DataRequest, Priority),
        token: Token,
        payload: Option<Buf>,
        origin: Origin<'_>,
    ) -> Result<(DataReply, Option<Buf>), DataError> {
        if let DataRequest::Append(AppendRequest { at, .. })
        | DataRequest::Commit(CommitRequest { at, .. }) = &request
        {
            self.note_writer_seen(at.disk, at.chunk);
        }
        self.authorize(&request, token).await?;
        match request {
            DataRequest::Append(append) => {
                let sectors = payload.ok_or(DataError::Invalid)?;
                Ok((self.append(append, sectors, priority).await?, None))
            }
            DataRequest::Commit(commit) => {
                let stat = self.disk(commit.at)?.store.stat(commit.at.chunk);
                let stat = stat.map_err(|error| self.data_error(commit.at, error))?;
                self.check_written(&commit, &stat)?;
                self.note_committed(commit);
                Ok((DataReply::Done, None))
            }
            DataRequest::Read(read) => self.read(read, priority, origin).await,
            DataRequest::Fence(fence) => {
                let disk = self.disk(fence.at)?;
                let stat = disk.store.fence(fence.at.chunk, fence.epoch).await;
                let stat = stat.map_err(|error| self.data_error(fence.at, error))?;
                let stat = self.with_committed(fence.at.chunk, stat);
                Ok((DataReply::Stat(stat), None))
            }
            DataRequest::Seal(seal) => {
                let disk = self.disk(seal.at)?;
                let stat = disk.store.seal(seal.at.chunk, seal.len).await;
                let stat = stat.map_err(|error| self.data_error(seal.at, error))?;
                self.0.committed.borrow_mut().remove(&seal.at.chunk);
                self.0.unsound.borrow_mut().remove(&(seal.at.disk, seal.at.chunk));
                Ok((DataReply::Stat(stat), None))
            }
            DataRequest::Stat(at) => {
                let stat = self.disk(at)?.store.stat(at.chunk);
                let stat = stat.map_err(|error| self.data_error(at, error))?;
                Ok((DataReply::Stat(self.with_committed(at.chunk, stat)), None))
            }
        }
    }

    /// Checks the token's rights (D11), with a key or without one: deletion forgets a fence once
    /// no right to the chunk is alive (`protocols.md` 2.4 and 2.5).
    async fn authorize(&self, request: &DataRequest, token: Token) -> Result<(), DataError> {
        let mut verified = self.verify(request, token);
        if verified == Err(TokenError::UnknownIssuer) {
            verified = self.verify_soon(request, token).await;
        }
        verified.map_err(|error| {
            tracing::warn!(chunk = %request.at().chunk, %error, "data request refused");
            self.count(|stats| stats.denied += 1);
            DataError::Denied
        })
    }

    fn verify(&self, request: &DataRequest, token: Token) -> Result<(), TokenError> {
        let (rights, epoch) = request.needs();
        let issuers = &mut *self.0.issuers.borrow_mut();
        self.0.directory.copy_issuers(issuers);
        let clocks = issuers.at(self.0.env.now(), self.wall_s());
        let verifier = &mut *self.0.verifier.borrow_mut();
        verifier.verify(token, request.at().chunk, rights, epoch, &clocks)
    }

    /// As [`Chunkserver::verify`], for a token of a master that this server has not heard of: it may
    /// have started just now, and a heartbeat makes it known.
    async fn verify_soon(&self, request: &DataRequest, token: Token) -> Result<(), TokenError> {
        let env = &self.0.env;
        let Ok(_turn) = self.0.issuer_waits.try_acquire() else {
            return Err(TokenError::UnknownIssuer);
        };
        env.mark("chunkserver: a right of a master that is not known yet");
        self.heartbeat_soon();
        let end = env.now() + ISSUER_WAIT;
        loop {
            env.sleep(ISSUER_PAUSE).await;
            let verified = self.verify(request, token);
            if verified != Err(TokenError::UnknownIssuer) || env.now() >= end {
                return verified;
            }
        }
    }

    /// Seconds since 1970, by the clock on the wall.
    pub(crate) fn wall_s(&self) -> u64 {
        self.0.env.unix_time().as_nanos() / 1_000_000_000
    }

    async fn append(
        &self,
        request: AppendRequest,
        sectors: Buf,
        priority: Priority,
    ) -> Result<DataReply, DataError> {
        let disk = self.disk(request.at)?;
        let bytes = sectors.len();
        let _held = self.0.append_bytes.take(bytes).ok_or(DataError::Busy)?;
        self.0.env.note(Step::Admitted, Fact::Chunk(request.at.chunk));
        self.check_sound(request.at, request.offset)?;
        let commit =
            CommitRequest { at: request.at, epoch: request.epoch, committed: request.committed };
        // Of a replica that is there: a delayed append leaves no note of one that was deleted.
        let is_open = || {
            let stat = disk.store.stat(request.at.chunk);
            stat.is_ok_and(|stat| matches!(stat.state, ReplicaState::Open))
        };
        let known = is_open();
        if known {
            self.note_committed(commit);
        }
        let append = Append {
            chunk: request.at.chunk,
            epoch: request.epoch,
            base: request.base,
            offset: request.offset,
            sectors,
            create: request.create,
            repair: false,
            purpose: request.purpose,
        };
        let appended = disk.store.append(append);
        let appended = self.share_work(&disk, priority, CallClass::append, bytes, appended).await?;
        let appended = appended.map_err(|error| self.data_error(request.at, error))?;
        if !known && is_open() {
            self.note_committed(commit);
        }
        self.count(|stats| {
            stats.appends += 1;
            match priority {
                // Clients append in the foreground.
                Priority::Background => stats.converted_bytes += bytes as u64,
                _ => stats.append_bytes[request.purpose as usize] += bytes as u64,
            }
        });
        Ok(DataReply::Appended { len: appended.len })
    }

    /// Answers an idle writer about its replica: when the replica is missing or damaged, the error
    /// is that of an append, and the writer goes on in another chunk.
    fn check_written(&self, commit: &CommitRequest, stat: &ReplicaStat) -> Result<(), DataError> {
        match stat.state {
            ReplicaState::Open => self.check_sound(commit.at, stat.len),
            ReplicaState::Fenced(epoch) if epoch > commit.epoch => Err(DataError::Fenced { epoch }),
            ReplicaState::Fenced(_) => Ok(()),
            ReplicaState::Sealed => Err(DataError::Sealed { len: stat.durable_bound }),
            ReplicaState::Repairing | ReplicaState::Tombstone | ReplicaState::Deleted => {
                Err(DataError::NotFound)
            }
        }
    }

    fn check_sound(&self, at: ChunkRef, offset: u32) -> Result<(), DataError> {
        let unsound = self.0.unsound.borrow();
        match !unsound.is_empty() && unsound.contains(&(at.disk, at.chunk)) {
            true => Err(DataError::Corrupt { offset }),
            false => Ok(()),
        }
    }

    /// Remembers what a chunk's writer says is acknowledged. It only grows.
    fn note_committed(&self, commit: CommitRequest) {
        if commit.committed == 0 {
            return;
        }
        let committed = &mut *self.0.committed.borrow_mut();
        let entry = committed.entry(commit.at.chunk).or_insert((commit.epoch, 0));
        if entry.0 == commit.epoch {
            entry.1 = entry.1.max(commit.committed);
        }
    }

    fn committed(&self, chunk: ChunkId, epoch: Epoch) -> u32 {
        match self.0.committed.borrow().get(&chunk) {
            Some(&(of, len)) if of == epoch => len,
            _ => 0,
        }
    }

    fn with_committed(
        &self,
        chunk: ChunkId,
        mut stat: wire::data::ReplicaStat,
    ) -> wire::data::ReplicaStat {
        stat.committed = stat.committed.max(self.committed(chunk, stat.epoch)).min(stat.len);
        stat
    }

    /// Counts a read whose caller waits no more.
    fn give_up(&self, disk_asked: bool) {
        self.0.env.mark("chunkserver: read of a caller that has gone");
        self.count(|stats| match disk_asked {
            true => stats.reads_cancelled_after += 1,
            false => stats.reads_cancelled_before += 1,
        });
    }

    async fn read(
        &self,
        request: ReadRequest,
        priority: Priority,
        origin: Origin<'_>,
    ) -> Result<(DataReply, Option<Buf>), DataError> {
        if request.len == 0 || request.len > READ_LEN_MAX {
            return Err(DataError::Invalid);
        }
        let disk = self.disk(request.at)?;
        let chunk = request.at.chunk;
        let stat = disk.store.stat(chunk).map_err(|error| self.data_error(request.at, error))?;
        let sealed = stat.state == ReplicaState::Sealed;
        // A replica that repair is filling serves no reads; a damaged one serves what verifies.
        let readable = match stat.state {
            ReplicaState::Repairing | ReplicaState::Tombstone | ReplicaState::Deleted => {
                return Err(DataError::NotFound);
            }
            // Its length is final, whatever of it is damaged.
            ReplicaState::Sealed => stat.durable_bound,
            ReplicaState::Open | ReplicaState::Fenced(_) if request.uncommitted => stat.len,
            ReplicaState::Open | ReplicaState::Fenced(_) => {
                self.with_committed(chunk, stat).committed
            }
        };
        let reply = DataReply::Read { readable, sealed };
        if request.offset >= readable {
            return Ok((reply, None));
        }
        if let Some(index) = request.cell_sector {
            let _held = self.0.read_bytes.take(SECTOR).ok_or(DataError::Busy)?;
            let read = disk.store.read_cell_sector(chunk, request.offset, index);
            let read = self.share_work(&disk, priority, CallClass::read, SECTOR, read).await?;
            let read = read.map_err(|error| self.data_error(request.at, error))?;
            return Ok((reply, Some(read.sectors)));
        }
        let len = request.len.min(readable - request.offset);
        // Sectors hold data of 1 to 4048 bytes; bytes that are there are the usual case.
        let bytes = wire::sector::sectors_for(len as usize) * SECTOR;
        let _held = self.0.read_bytes.take(bytes).ok_or(DataError::Busy)?;
        self.0.env.note(Step::Admitted, Fact::Chunk(chunk));
        let waits = || origin.waits(self.0.env.now());
        let read = async {
            match request.blocks {
                true => disk.store.read_blocks(chunk, request.offset, len, waits).await,
                false => disk.store.read_while(chunk, request.offset, len, waits).await,
            }
        };
        let read = self.share_work(&disk, priority, CallClass::read, bytes, read).await?;
        if let Err(StoreError::Unwanted { device_asked }) = read {
            self.give_up(device_asked);
        } else if !waits() {
            self.give_up(true);
            return Err(DataError::Busy);
        }
        let read = read.map_err(|error| self.data_error(request.at, error))?;
        // Whole rows, which may be longer than what was asked for.
        let more = read.sectors.len().saturating_sub(bytes);
        let _held_too = self.0.read_bytes.take(more).ok_or(DataError::Busy)?;
        let sectors = trim(read.sectors, readable);
        self.count(|stats| {
            stats.reads += 1;
            stats.read_bytes += sectors.len() as u64;
        });
        Ok((reply, Some(sectors)))
    }
}

impl<S: ChunkStore> Chunkserver<S> {
    /// Reads or writes as what it is: a user waits for it, or it is part of a copy or a conversion, and gets
    /// that share of the disk.
    async fn share_work<T>(
        &self,
        disk: &Disk<S>,
        priority: Priority,
        class: fn(usize) -> CallClass,
        bytes: usize,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<Result<T, StoreError>, DataError> {
        let env = &self.0.env;
        match priority {
            Priority::Background => {
                let share = disk.share.background(env, (Urgency::Copy, bytes as u64), work).await;
                share.map_err(|TooManyWait| DataError::Busy)
            }
            Priority::Control | Priority::Foreground => {
                let (result, took) = disk.share.foreground(env, work).await;
                if result.is_ok() {
                    disk.times.note(class(bytes), took, env.now());
                }
                Ok(result)
            }
        }
    }
}

/// Name of a request in traces and metrics.
fn operation_name(request: &DataRequest) -> &'static str {
    match request {
        DataRequest::Append(_) => "append",
        DataRequest::Commit(_) => "commit",
        DataRequest::Read(_) => "read",
        DataRequest::Fence(_) => "fence",
        DataRequest::Seal(_) => "seal",
        DataRequest::Stat(_) => "stat",
    }
}

/// Drops sectors at the end that start at or beyond `readable`, of rows those whose row does: they are
/// not committed yet.
fn trim(sectors: Buf, readable: u32) -> Buf {
    let mut end = sectors.len();
    while end >= SECTOR {
        let last = parse_footer(&sectors[end - SECTOR..end]).expect("verified by the store");
        if last.offset < readable {
            break;
        }
        end -= SECTOR;
    }
    if end == sectors.len() { sectors } else { sectors.slice(0..end) }
}
