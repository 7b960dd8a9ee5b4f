//! Masters: who leads, and the stream service.

use base::{ChunkId, ClusterId, Epoch, FileId, Kind, ServerId};
use wire::control::{
    AbnormalServer, AbnormalServers, AbnormalVersion, ChunkPlace, ClusterInfo, ClusterReply,
    ClusterRequest, ControlError, ControlReply, ControlRequest, Group, MasterInfo,
    NamespaceRequest, Policy, ReplicaPlace, StreamChange, StreamReply, StreamRequest, StreamView,
    WriterGrant,
};

use super::{Chunk, FakeState, Health, Replica, Stream};

type Answer = Result<ControlReply, ControlError>;

fn error(kind: Kind, message: &str) -> ControlError {
    ControlError::new(kind, message)
}

impl FakeState {
    pub fn serve_control(&mut self, master: usize, request: ControlRequest) -> Answer {
        if let ControlRequest::Cluster(ClusterRequest::Info) = request {
            return Ok(ControlReply::Cluster(ClusterReply::Info(self.info())));
        }
        if self.leader != Some(master) {
            let leader = self.leader.map(|leader| self.masters[leader]);
            return Err(ControlError { leader, ..error(Kind::Reroute, "not the leader") });
        }
        if let ControlRequest::Cluster(ClusterRequest::Abnormal { known }) = request {
            self.polls += 1;
            return self.serve_abnormal(known);
        }
        let op = match &request {
            ControlRequest::Namespace(NamespaceRequest::Change { op, .. })
            | ControlRequest::Stream(StreamRequest::Change { op, .. }) => Some(*op),
            _ => None,
        };
        if let Some(op) = op {
            self.changes += 1;
            assert!(op.acked_below <= op.seq && op.seq > 0);
            if let Some(reply) = self.replies.get(&(op.client, op.seq)) {
                return reply.clone();
            }
        }
        let answer = match request {
            ControlRequest::Namespace(request) => {
                self.serve_names(request).map(ControlReply::Namespace)
            }
            ControlRequest::Stream(request) => self.serve_stream(request).map(ControlReply::Stream),
            other => panic!("not asked by a client: {other:?}"),
        };
        let retried = |error: &ControlError| matches!(error.kind, Kind::Retry);
        if let Some(op) = op
            && !answer.as_ref().is_err_and(retried)
        {
            self.replies.insert((op.client, op.seq), answer.clone());
        }
        // Every answer must survive the wire.
        answer.map(|reply| ControlReply::decode(&reply.encode()).expect("a valid reply"))
    }

    fn serve_abnormal(&self, known: Option<AbnormalVersion>) -> Answer {
        let Some((changes, servers)) = &self.abnormal else {
            return Err(error(Kind::Invalid, "ClusterRequest.ask is missing"));
        };
        let version = AbnormalVersion { boot: 7, changes: *changes };
        let full = known != Some(version);
        let one = |&server: &ServerId| AbnormalServer {
            server,
            unreached: true,
            slow: false,
            draining: false,
        };
        let servers = servers.iter().filter(|_| full).map(one).collect();
        let answer = AbnormalServers { version, full, many: false, servers };
        Ok(ControlReply::Cluster(ClusterReply::Abnormal(answer)))
    }

    fn info(&self) -> ClusterInfo {
        let master = |(index, &addr): (usize, &std::net::SocketAddr)| MasterInfo {
            id: index as u64 + 1,
            name: format!("m{}", index + 1),
            addr,
        };
        let groups = [
            Group::Cluster,
            Group::Namespace(0),
            Group::Namespace(1),
            Group::Stream(0),
            Group::Stream(1),
        ];
        let leaders = self.leader.iter().flat_map(|&leader| groups.map(|g| (g, leader as u64 + 1)));
        ClusterInfo {
            cluster: ClusterId::new(5),
            masters: self.masters.iter().enumerate().map(master).collect(),
            namespace_partitions: 2,
            stream_partitions: 2,
            leaders: leaders.collect(),
        }
    }

    fn serve_stream(&mut self, request: StreamRequest) -> Result<StreamReply, ControlError> {
        match request {
            StreamRequest::Locate { file, offset, limit } => {
                self.locates += 1;
                let view = self.view(file, offset, limit);
                let view = view.ok_or_else(|| error(Kind::NotFound, "no such stream"))?;
                Ok(StreamReply::Views(vec![view]))
            }
            StreamRequest::LocateMany { wants, limit } => {
                self.locates += 1;
                let views = wants.iter().filter_map(|&(file, at)| self.view(file, at, limit));
                Ok(StreamReply::Views(views.collect()))
            }
            StreamRequest::ReportBad { chunk, server, fault, .. } => {
                self.reports.push((chunk, server, fault));
                Ok(StreamReply::Done { len: 0 })
            }
            StreamRequest::Change { change, .. } => self.change_stream(change),
        }
    }

    fn place(&self, chunk: &Chunk) -> ChunkPlace {
        ChunkPlace {
            chunk: chunk.id,
            epoch: chunk.epoch,
            base: chunk.base,
            sealed: chunk.sealed,
            replicas: self.replica_places(chunk),
            acks: chunk.acks,
            token: self.right(),
            copies: chunk.copies,
            data: chunk.data,
            compression: chunk.compression,
        }
    }

    /// In a coded chunk each server has another fragment, in the order of the servers.
    fn replica_places(&self, chunk: &Chunk) -> Vec<ReplicaPlace> {
        let place = |(index, &server): (usize, &usize)| {
            let fragment = if chunk.data > 1 { index as u8 } else { 0 };
            ReplicaPlace { fragment, ..self.replica_place(server) }
        };
        chunk.servers.iter().enumerate().map(place).collect()
    }

    fn view(&self, file: FileId, offset: u64, limit: u32) -> Option<StreamView> {
        let stream = self.streams.get(&file)?;
        let from =
            |chunk: &&Chunk| chunk.sealed.is_none_or(|len| chunk.base + u64::from(len) > offset);
        let chunks = stream.chunks.iter().filter(from).take(limit as usize);
        Some(StreamView {
            file,
            chunks: chunks.map(|chunk| self.place(chunk)).collect(),
            sealed_len: stream.sealed_len(),
            open: stream.chunks.last().is_some_and(|chunk| chunk.sealed.is_none()),
            epoch: stream.epoch,
            policy: Some(stream.policy),
            loss_accepted: false,
            converting: false,
        })
    }

    fn allocate(&mut self, policy: Policy, epoch: Epoch, avoid: &[ServerId]) -> Option<Chunk> {
        if self.full {
            return None;
        }
        let id = ChunkId::new(self.next_chunk);
        let wanted = |&server: &usize| !avoid.contains(&ServerId::new(server as u32));
        let count = self.health.len();
        let first = self.next_chunk as usize % count;
        let mut servers: Vec<usize> = (0..count).map(|index| (first + index) % count).collect();
        servers.retain(|server| !self.no_place.contains(server));
        let all = servers.clone();
        let good = servers.iter().copied().filter(wanted).collect::<Vec<_>>();
        if good.len() >= usize::from(policy.copies).min(2) {
            servers = good;
        }
        if policy.is_coded() && servers.len() < usize::from(policy.copies) {
            servers = all;
        }
        let Policy { copies, acks, data, compression, .. } = policy.for_places(servers.len());
        servers.truncate(copies.into());
        self.next_chunk += 1;
        Some(Chunk { id, epoch, base: 0, sealed: None, servers, acks, copies, data, compression })
    }

    fn grant(&mut self, file: FileId) -> StreamReply {
        let stream = &self.streams[&file];
        let place = |chunk: &Chunk| self.place(chunk);
        StreamReply::Writer(WriterGrant {
            epoch: stream.epoch,
            len: stream.sealed_len(),
            current: stream.chunks.last().map(place),
            spares: stream.spares.iter().map(place).collect(),
            rights_ms: Some(self.rights_s * 1000).filter(|&ms| ms > 0),
        })
    }

    fn top_up(&mut self, file: FileId, wanted: u8, avoid: &[ServerId], in_copies: bool) {
        let (policy, epoch) = (self.streams[&file].policy, self.streams[&file].epoch);
        let policy = if in_copies { policy.in_copies() } else { policy };
        let places = self.health.len() - self.no_place.len();
        let Policy { copies, data, .. } = policy.for_places(places);
        let shape = (copies, data);
        let has_avoided = |chunk: &Chunk| {
            chunk.servers.iter().any(|&server| avoid.contains(&ServerId::new(server as u32)))
        };
        let useful = |chunk: &Chunk| !has_avoided(chunk) && (chunk.copies, chunk.data) == shape;
        self.streams.get_mut(&file).unwrap().spares.retain(useful);
        while self.streams[&file].spares.len() < usize::from(wanted) {
            let Some(chunk) = self.allocate(policy, epoch, avoid) else { return };
            self.streams.get_mut(&file).unwrap().spares.push(chunk);
        }
    }

    fn written(&mut self, file: FileId, epoch: Epoch) -> Result<&mut Stream, ControlError> {
        let stream = self.streams.get_mut(&file);
        let stream = stream.ok_or_else(|| error(Kind::NotFound, "no such stream"))?;
        if stream.epoch != epoch || !stream.writing {
            return Err(error(Kind::Fenced, "a newer writer"));
        }
        Ok(stream)
    }

    fn change_stream(&mut self, change: StreamChange) -> Result<StreamReply, ControlError> {
        match change {
            StreamChange::Open { file, policy, spares, follows, in_copies, avoid, .. } => {
                let stream = self.streams.entry(file).or_insert_with(|| Stream::new(policy));
                if stream.finished {
                    return Err(error(Kind::Invalid, "the file is finished"));
                }
                if follows.is_some_and(|follows| follows != stream.epoch) {
                    return Ok(StreamReply::Epoch { epoch: stream.epoch });
                }
                stream.epoch = stream.epoch.next();
                self.recover(file)?;
                let (policy, epoch) = (self.streams[&file].policy, self.streams[&file].epoch);
                let policy = if in_copies { policy.in_copies() } else { policy };
                let full = || error(Kind::Full, "no room");
                let mut first = self.allocate(policy, epoch, &avoid).ok_or_else(full)?;
                let stream = self.streams.get_mut(&file).unwrap();
                first.base = stream.sealed_len();
                stream.chunks.push(first);
                stream.writing = true;
                self.top_up(file, spares, &avoid, in_copies);
                Ok(self.grant(file))
            }
            StreamChange::Advance {
                file,
                epoch,
                sealed,
                len,
                next,
                avoid,
                spares,
                in_copies,
                ..
            } => {
                let stream = self.written(file, epoch)?;
                let at = stream.spares.iter().position(|spare| spare.id == next);
                let tail = stream.chunks.last().unwrap().id == sealed;
                let Some(at) = at.filter(|_| tail) else {
                    return Err(error(Kind::Refresh, "not recorded"));
                };
                let mut successor = stream.spares.drain(..=at).next_back().unwrap();
                self.seal_tail(file, len);
                let stream = self.streams.get_mut(&file).unwrap();
                successor.base = stream.sealed_len();
                stream.chunks.push(successor);
                self.top_up(file, spares, &avoid, in_copies);
                Ok(self.grant(file))
            }
            StreamChange::Extend { file, epoch, avoid, spares, in_copies, .. } => {
                self.written(file, epoch)?;
                self.top_up(file, spares, &avoid, in_copies);
                if self.full && self.streams[&file].spares.is_empty() {
                    return Err(error(Kind::Full, "no room"));
                }
                Ok(self.grant(file))
            }
            StreamChange::Close { file, epoch, sealed, finish, .. } => {
                let stream = self.written(file, epoch)?;
                let (chunk, len) = sealed.expect("the client knows");
                assert_eq!(stream.chunks.last().unwrap().id, chunk);
                stream.finished |= finish;
                stream.writing = false;
                stream.spares.clear();
                self.seal_tail(file, len);
                Ok(StreamReply::Done { len: self.streams[&file].sealed_len() })
            }
            StreamChange::Seal { file, follows, .. } => {
                let stream = self.streams.get_mut(&file);
                let stream = stream.ok_or_else(|| error(Kind::NotFound, "no such stream"))?;
                if stream.writing && follows.is_some_and(|follows| follows != stream.epoch) {
                    return Ok(StreamReply::Epoch { epoch: stream.epoch });
                }
                stream.epoch = stream.epoch.next();
                self.recover(file)?;
                Ok(StreamReply::Done { len: self.streams[&file].sealed_len() })
            }
            StreamChange::SetPolicy { file, policy, .. } => {
                let stream = self.streams.entry(file).or_insert_with(|| Stream::new(policy));
                stream.policy = policy;
                Ok(StreamReply::Done { len: 0 })
            }
            StreamChange::Convert { .. } => Ok(StreamReply::Done { len: 0 }),
            StreamChange::Delete { .. } => panic!("no business of a client"),
        }
    }

    /// Fences and seals what an older writer had (`protocols.md` 2).
    fn recover(&mut self, file: FileId) -> Result<(), ControlError> {
        let stream = self.streams[&file].clone();
        let open: Vec<Chunk> =
            stream.chunks.iter().filter(|c| c.sealed.is_none()).cloned().collect();
        for chunk in open.iter().chain(&stream.spares) {
            for &server in &chunk.servers {
                if self.health[server] == Health::Good {
                    // A missing replica must not be made later (`protocols.md` 2.1).
                    let replica = self.replicas.entry((chunk.id, server)).or_insert_with(|| {
                        let (epoch, base) = (chunk.epoch, chunk.base);
                        Replica::new(epoch, base)
                    });
                    replica.fence = stream.epoch;
                }
            }
        }
        for chunk in open {
            let good = |server: &&usize| self.health[**server] == Health::Good;
            let len = |&server: &usize| self.replicas.get(&(chunk.id, server)).map_or(0, |r| r.len);
            let mut lens: Vec<u32> = chunk.servers.iter().filter(good).map(len).collect();
            lens.sort_unstable_by(|a, b| b.cmp(a));
            let missing = chunk.servers.len() - lens.len();
            // Each acknowledged row is on so many of those that answer; of a code k give it back.
            let rank = usize::from(chunk.acks).checked_sub(missing);
            let rank = rank.filter(|rank| *rank >= usize::from(chunk.data));
            let Some(rank) = rank else {
                return Err(error(Kind::Retry, "too few replicas answer"));
            };
            self.seal_tail(file, lens[rank - 1]);
        }
        let stream = self.streams.get_mut(&file).unwrap();
        stream.writing = false;
        stream.spares.clear();
        Ok(())
    }

    fn seal_tail(&mut self, file: FileId, len: u32) {
        let stream = self.streams.get_mut(&file).unwrap();
        let tail = stream.chunks.last_mut().unwrap();
        let (id, servers) = (tail.id, tail.servers.clone());
        if len == 0 {
            stream.chunks.pop();
            return;
        }
        tail.sealed = Some(len);
        let mut holders = 0;
        for server in servers {
            let good = self.health[server] == Health::Good;
            let Some(replica) = self.replicas.get_mut(&(id, server)) else { continue };
            if replica.len >= len {
                holders += 1;
                if good {
                    replica.sealed = Some(len);
                }
            } else {
                self.replicas.remove(&(id, server));
            }
        }
        assert!(holders > 0, "{id} sealed at {len} that no replica has");
    }
}

impl Stream {
    pub fn sealed_len(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.sealed.unwrap_or(0))).sum()
    }
}
