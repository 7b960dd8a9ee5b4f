//! Files of 3/2 that scenarios make and append to one at a time, and what servers have their chunks.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use client::{Appender, Client, ListReason};
use runtime::sim::{CrashMode, HostId, Sim};
use wire::control::Policy;

use crate::cluster::Cluster;
use crate::oracle::Oracle;

pub(super) const POLICY: Policy = Policy::plain(3, 2);

/// Files, and the clients that make them.
pub(super) struct Files {
    pub(super) sim: Sim,
    pub(super) cluster: Cluster,
    pub(super) oracle: Oracle,
    /// Host of clients that know no server: a new one begins for each file.
    fresh: Cell<Option<HostId>>,
    made: Cell<u64>,
}

impl Files {
    pub(super) fn new(cluster: &Cluster, oracle: Oracle) -> Files {
        Files {
            sim: cluster.sim().clone(),
            cluster: cluster.clone(),
            oracle,
            fresh: Cell::default(),
            made: Cell::default(),
        }
    }

    pub(super) fn draw(&self, low: u64, high: u64) -> u64 {
        self.sim.with_rng(|rng| rng.between(low, high))
    }

    pub(super) fn ip(&self, server: HostId) -> IpAddr {
        self.sim.addr(server, 1).ip()
    }

    /// The chunkserver at an address.
    pub(super) fn host_of(&self, addr: SocketAddr) -> HostId {
        let is_it = |host: &&HostId| self.ip(**host) == addr.ip();
        *self.cluster.servers().iter().find(is_it).expect("a chunkserver")
    }

    /// Whether these servers hear these masters no more; their own connections stay.
    pub(super) fn set_missed(&self, servers: &[HostId], masters: &[HostId], grey: bool) {
        for &master in masters {
            servers.iter().for_each(|&server| self.sim.set_grey_to(master, server, grey));
        }
    }

    /// A client that knows no server, on a host that goes down with [`Files::leave`].
    pub(super) async fn newcomer(&self) -> Result<(HostId, Client), String> {
        let connected = self.cluster.client(self.fresh.get()).await;
        let (host, client) = connected.map_err(|error| error.to_string())?;
        self.fresh.set(Some(host));
        Ok((host, client))
    }

    pub(super) fn leave(&self, newcomer: HostId) {
        self.sim.crash(newcomer, CrashMode::Process);
    }

    /// A client that has asked no server yet makes a file. Answers where it is.
    pub(super) async fn new_file(&self) -> Result<Vec<IpAddr>, String> {
        let (host, client) = self.newcomer().await?;
        let path = format!("/n{}", self.made.replace(self.made.get() + 1));
        let appender = self.create(&client, &path).await?;
        self.append(&appender, &path).await?;
        let view = client.open(&path).await.map_err(|error| format!("{path}: {error}"))?;
        let view = view.chunks().await.map_err(|error| format!("{path}: {error}"))?;
        appender.close().await.map_err(|error| format!("{path}: {error}"))?;
        self.leave(host);
        let replicas = view.chunks.iter().flat_map(|chunk| &chunk.replicas);
        Ok(replicas.map(|replica| replica.addr.ip()).collect())
    }

    pub(super) async fn create(&self, client: &Client, path: &str) -> Result<Appender, String> {
        let text = |error: client::Error| format!("{path}: {error}");
        let file = client.create(path, POLICY, 0o644, false).await.map_err(text)?;
        let appender = file.append_handle().await.map_err(text)?;
        self.oracle.opened(path, appender.epoch(), 0, self.draw(1, u64::MAX))?;
        Ok(appender)
    }

    /// Appends some bytes, and answers them.
    pub(super) async fn append(&self, to: &Appender, path: &str) -> Result<Vec<u8>, String> {
        let text = |error: client::Error| format!("{path}: {error}");
        let len = self.draw(1, 10_000);
        let data = self.oracle.next(path, to.epoch(), len as usize);
        let append = to.submit(&data).await.map_err(text)?;
        let end = append.offset() + len;
        append.await.map_err(text)?;
        self.oracle.acked(path, to.epoch(), end)?;
        Ok(data)
    }

    /// Servers with a replica of the last chunk of a file.
    pub(super) async fn last_chunk(&self, path: &str) -> Result<Vec<HostId>, String> {
        let (host, client) = self.newcomer().await?;
        let text = |error: client::Error| format!("{path}: {error}");
        let view = client.open(path).await.map_err(text)?.chunks().await.map_err(text)?;
        self.leave(host);
        let last = view.chunks.last().ok_or_else(|| format!("{path} has no chunk"))?;
        Ok(last.replicas.iter().map(|replica| self.host_of(replica.addr)).collect())
    }

    /// Servers that a client has out because masters do not reach them.
    pub(super) fn pushed(&self, client: &Client) -> Vec<HostId> {
        let listed = client.listed_disks().into_iter();
        let pushed = listed.filter(|listed| listed.reason == ListReason::MastersUnreached);
        pushed.map(|listed| self.host_of(listed.target.addr)).collect()
    }
}
