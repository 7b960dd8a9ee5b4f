//! The chunkservers' data path.

use base::limits::SECTOR;
use client::DataAnswer;
use runtime::{Buf, Env};
use wire::data::{
    AppendRequest, ChunkRef, CommitRequest, DataError, DataReply, DataRequest, ReadRequest,
    ReplicaStat, ReplicaState,
};
use wire::pieces::CellPieces;
use wire::row::verify_append;
use wire::sector::{AppendAt, parse_footer};

use super::{FakeState, Replica};

impl FakeState {
    pub fn serve_data(
        &mut self,
        env: &Env,
        server: usize,
        request: &DataRequest,
        payload: Option<&Buf>,
    ) -> Result<DataAnswer, DataError> {
        match request {
            DataRequest::Append(append) => {
                let sectors = payload.expect("an append has sectors");
                Ok((DataReply::Appended { len: self.append(server, append, sectors)? }, None))
            }
            DataRequest::Commit(commit) => {
                self.commit(server, commit)?;
                Ok((DataReply::Done, None))
            }
            DataRequest::Read(read) => self.read(env, server, read),
            DataRequest::Stat(at) => {
                let replica = self.replica(server, *at)?;
                let state = match replica.sealed {
                    Some(_) => ReplicaState::Sealed,
                    None if replica.fence > replica.epoch => ReplicaState::Fenced(replica.fence),
                    None => ReplicaState::Open,
                };
                let stat = ReplicaStat {
                    state,
                    epoch: replica.epoch,
                    len: replica.sealed.unwrap_or(replica.len),
                    durable_bound: replica.sealed.unwrap_or(replica.len),
                    committed: replica.committed,
                };
                Ok((DataReply::Stat(stat), None))
            }
            DataRequest::Fence(_) | DataRequest::Seal(_) => panic!("no business of a client"),
        }
    }

    fn replica(&mut self, server: usize, at: ChunkRef) -> Result<&mut Replica, DataError> {
        if at.disk != self.replica_place(server).disk {
            return Err(DataError::WrongDisk);
        }
        self.replicas.get_mut(&(at.chunk, server)).ok_or(DataError::NotFound)
    }

    fn append(
        &mut self,
        server: usize,
        append: &AppendRequest,
        sectors: &Buf,
    ) -> Result<u32, DataError> {
        let at = AppendAt {
            chunk: append.at.chunk,
            epoch: append.epoch,
            base: append.base,
            offset: append.offset,
        };
        assert_eq!(verify_append(at, sectors), Ok(append.len), "formatted as announced");
        if self.full {
            return Err(DataError::Full);
        }
        if append.create {
            let replica = Replica::new(append.epoch, append.base);
            self.replicas.entry((append.at.chunk, server)).or_insert(replica);
        }
        let replica = self.replica(server, append.at)?;
        if let Some(len) = replica.sealed {
            return Err(DataError::Sealed { len });
        }
        if replica.fence > append.epoch {
            return Err(DataError::Fenced { epoch: replica.fence });
        }
        assert_eq!((replica.epoch, replica.base), (append.epoch, append.base));
        replica.committed = replica.committed.max(append.committed);
        if append.offset > replica.len {
            return Err(DataError::Gap { len: replica.len });
        }
        if append.offset < replica.len {
            // The sectors of a row's cell all have its offset.
            let at = replica.sectors.partition_point(|(start, _)| *start < append.offset);
            if replica.sectors.get(at).is_none_or(|(start, _)| *start != append.offset) {
                return Err(DataError::Conflict);
            }
            let stored = replica.sectors[at..].iter().map(|(_, sector)| &sector[..]);
            let same = stored.zip(sectors.chunks(SECTOR)).all(|(a, b)| a == b);
            return if same { Ok(replica.len) } else { Err(DataError::Conflict) };
        }
        for sector in sectors.chunks(SECTOR) {
            let footer = parse_footer(sector).unwrap();
            replica.sectors.push((footer.offset, sector.to_vec()));
        }
        replica.len += append.len;
        Ok(replica.len)
    }

    fn commit(&mut self, server: usize, commit: &CommitRequest) -> Result<(), DataError> {
        let replica = self.replica(server, commit.at)?;
        if let Some(len) = replica.sealed {
            return Err(DataError::Sealed { len });
        }
        if replica.fence > commit.epoch {
            return Err(DataError::Fenced { epoch: replica.fence });
        }
        replica.committed = replica.committed.max(commit.committed);
        Ok(())
    }

    fn read(
        &mut self,
        env: &Env,
        server: usize,
        read: &ReadRequest,
    ) -> Result<DataAnswer, DataError> {
        assert!(read.len > 0);
        let replica = self.replica(server, read.at)?;
        let sealed = replica.sealed.is_some();
        let open = if read.uncommitted { replica.len } else { replica.committed };
        let readable = replica.sealed.unwrap_or(open).min(replica.len);
        let reply = DataReply::Read { readable, sealed };
        if read.offset >= readable {
            return Ok((reply, None));
        }
        let end = readable.min(read.offset + read.len);
        let last = replica.sectors.partition_point(|(start, _)| *start <= read.offset) - 1;
        let begin = replica.sectors[last].0;
        let first = replica.sectors.partition_point(|(start, _)| *start < begin);
        if let Some(index) = read.cell_sector {
            let sector = replica.sectors.get(first + usize::from(index));
            let sector = sector.filter(|(start, _)| *start == begin).ok_or(DataError::Invalid)?;
            return Ok((reply, Some(env.pool().copy_of(&sector.1).expect("memory"))));
        }
        if read.blocks
            && replica.sectors[first..].iter().all(|(start, _)| *start == begin || *start >= end)
            && let Some(pieces) = pieces(replica, (begin, first), read)
        {
            return Ok((reply, Some(env.pool().copy_of(&pieces).expect("memory"))));
        }
        let chosen = replica.sectors[first..].iter().take(512);
        let chosen = chosen.take_while(|(start, _)| *start < end);
        let chosen: Vec<&[u8]> = chosen.map(|(_, sector)| &sector[..]).collect();
        let chosen = chosen.concat();
        Ok((reply, Some(env.pool().copy_of(&chosen).expect("memory"))))
    }
}

/// The first sector of the cell at `first`, whose row begins at `begin`, and those with the blocks of a
/// read: as stores answer for long cells.
fn pieces(replica: &Replica, (begin, first): (u32, usize), read: &ReadRequest) -> Option<Vec<u8>> {
    let cell: Vec<&[u8]> = replica.sectors[first..]
        .iter()
        .take_while(|(start, _)| *start == begin)
        .map(|(_, sector)| &sector[..])
        .collect();
    if cell.len() <= 6 {
        return None;
    }
    let (epoch, base) = (replica.epoch, replica.base);
    let at = AppendAt { chunk: read.at.chunk, epoch, base, offset: begin };
    let of_row = (read.offset - begin) as usize;
    let needed =
        CellPieces::verify(at, cell[0]).ok()?.needed(of_row..of_row + read.len as usize)?;
    let needed = &cell[needed.start as usize..needed.end as usize];
    Some([&[cell[0]], needed].concat().concat())
}
